"""The judges of the exercises on Boltzmann machines: each tests a property, by sums over all
states or batches.
"""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from natcompanion import boltzmann, reference
from natcompanion.boltzmann import RBM, CovariancePenalty

SIZES = ((1, 1), (2, 2), (4, 3), (5, 2))
BATCHES = ((2, 1, 4), (1, 1, 6))
Estimate = Callable[[Tensor, Tensor], Tensor]


def _random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def weak(gradient: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Say what is off with the gradient of the penalty by a small weight, as a function of the
    variances of its visible and hidden unit and of the weight.
    """
    machine = RBM(1e-5 * _random(4, 3), _random(4, seed=1), _random(3, seed=2))
    truth = CovariancePenalty().gradient(machine)[7:].reshape(4, 3)
    s, t = (x.sigmoid() * (-x).sigmoid() for x in (machine.a, machine.b))
    for (i, j), right in zip(itertools.product(range(4), range(3)), truth.flatten(), strict=True):
        ratio = float(gradient(s[i], t[j], machine.W[i, j])) / float(right)
        if not abs(ratio - 1) < 0.01:
            where = f"where the variances are {s[i]:.3f} and {t[j]:.3f}"
            return f"{where}, it is {ratio:.3g} times the gradient"
    return ""


def from_identity(machine: RBM) -> float:
    """Return the squared distance of the Fisher matrix of a machine from the identity."""
    G = machine.fisher()
    return float((G - torch.eye(len(G), dtype=G.dtype)).square().sum())


def independent(visible: int, hidden: int) -> Iterator[RBM]:
    """Yield machines without weights whose units are all on with the same probability."""
    W = torch.zeros(visible, hidden, dtype=torch.float64)
    for bias in torch.linspace(0, 2, 21, dtype=torch.float64):
        yield RBM(W, bias.repeat(visible), bias.repeat(hidden))


def bound(least: Callable[[int], float]) -> str:
    """Say what is off with a lower bound of the squared distance of G from the identity, as a
    function of the number of parameters: no machine may come closer, and it must be at least what
    the diagonal gives.
    """
    for D, H in SIZES:
        n = D + H + D * H
        answer, closest = float(least(n)), min(map(from_identity, independent(D, H)))
        if not answer <= closest:
            return f"a machine with {D} + {H} units comes as close as {closest:.4g}"
        if answer < n * (1 - 0.25) ** 2 - 1e-9:
            return f"for {n} parameters a larger bound than {answer:.4g} holds"
    return ""


def wiring(W: Tensor) -> str:
    """Say what is off with the weights (4, 3) of a machine whose p(h) is the product of those of
    its units, whatever the biases: no machine with more weights may have this property, and each
    hidden unit must be wired.
    """
    W = torch.as_tensor(W, dtype=torch.float64)
    if W.shape != (4, 3):
        return f"expected a matrix of shape (4, 3), got {tuple(W.shape)}"
    h = boltzmann.states(3).to(W)
    for seed in range(3):
        machine = RBM(W, _random(4, seed=seed), _random(3, seed=seed + 9))
        mean = machine.statistics_mean()[4:7]
        product = torch.where(h > 0, mean, 1 - mean).prod(1)
        gap = float((machine.hidden_probabilities() - product).abs().max())
        if not gap < 1e-9:
            return f"p(h) is up to {gap:.2g} away from the product"
    if not bool((W.abs() > 0.1).any(0).all()):
        return "a hidden unit has no weight of size 0.1"
    if int((W.abs() > 0.1).sum()) < 4:
        return "more weights of size 0.1 are possible"
    return ""


def over_batches(estimate: Estimate, visible: int, hidden: int, n: int) -> tuple[float, float]:
    """Return the mean of an estimate over all batches of ``n`` states of a machine, each with its
    probability, and the squared norm of cov(v, h) of the machine.
    """
    W = 2 * _random(visible, hidden, seed=3)
    v, h, p, _ = reference.rbm_joint(W, _random(visible, seed=4), _random(hidden, seed=5))
    mean = 0.0
    for batch in itertools.product(range(len(p)), repeat=n):
        rows = list(batch)
        mean += float(p[rows].prod()) * float(estimate(v[rows], h[rows]))
    machine = RBM(W, _random(visible, seed=4), _random(hidden, seed=5))
    return mean, float(boltzmann.model_moments(machine).covariance.square().sum())


def unbiased(estimate: Estimate) -> str:
    """Say what is off with an estimate of the squared norm of cov(v, h) from a batch ``v`` (n, D)
    and ``h`` (n, H) of at least four: its mean over all batches must be right.
    """
    for visible, hidden, n in BATCHES:
        mean, truth = over_batches(estimate, visible, hidden, n)
        if not abs(mean - truth) < 1e-4 * truth:
            return f"its mean over batches of {n} is {mean:.3g}, where {truth:.3g} is right"
    return ""
