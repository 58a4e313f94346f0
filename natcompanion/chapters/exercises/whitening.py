"""The judges of the exercises of Whitening: each tests a property, by the library's own steps."""

import math
from collections.abc import Callable
from functools import cache

import torch

from natcompanion import metrics, models, solvers
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.whitening import whitening_matrix

GOAL = torch.zeros(2, dtype=torch.float64)
STARTS = ((1.0, -1.0), (0.1, 0.2), (-0.5, 2.0), (0.02, -0.03))
MACHINES = range(1, 6)
Metric = Callable[[models.BoltzmannMachine, torch.Tensor], torch.Tensor]


def root(W: torch.Tensor) -> str:
    """Say what is off with an upper triangular root of the metric of the example, WᵀW = G."""
    W, G = torch.as_tensor(W, dtype=torch.float64), problems.example().fisher()
    if W.shape != (2, 2):
        return f"expected a matrix of shape (2, 2), got {tuple(W.shape)}"
    off = float((W.mT @ W - G).norm() / G.norm())
    if not off < 1e-6:
        return f"WᵀW differs from G by {off:.3g} of it"
    return "" if abs(float(W[1, 0])) < 1e-6 else "it is a root, and not upper triangular"


def half_rate(eps: float) -> str:
    """Say what is off with the ε at which a step with Eq. 35 contracts the slow direction of the
    example half as much as one with the exact inverse.
    """
    model = problems.example()
    G = model.fisher()
    slow = torch.linalg.eigh(G).eigenvectors[:, 0]
    inverse = solvers.stochastic_robust_inverse(G, float(eps))
    kept = float(slow @ inverse @ model.gradient(slow, GOAL))
    return "" if abs(kept - 0.5) < 0.005 else f"at this ε, {kept:.3g} of the rate is left"


def shortening(factor: Callable[[float], float]) -> str:
    """Say what is off with the factor, as a function of the divergence, by which the step with
    Eq. 31 is shorter than the one with Eq. 30.
    """
    model = problems.example()
    for start in STARTS:
        theta = torch.tensor(start, dtype=torch.float64)
        g, kl = model.gradient(theta, GOAL), float(model.kl(theta, GOAL))
        with_model = torch.linalg.solve(model.fisher(), g)
        with_data = torch.linalg.solve(model.data_fisher(theta, GOAL), g)
        answer, truth = float(factor(kl)), float(with_data.norm() / with_model.norm())
        if not abs(answer / truth - 1) < 1e-4:
            return f"where the divergence is {kl:.3g} it gives {answer:.3g}"
    return ""


@cache
def flow_curvature(seed: int) -> tuple[models.BoltzmannMachine, torch.Tensor, torch.Tensor]:
    """Return a machine of six units 0/1, the distribution that it has at its goal, (64,), and the
    Hessian there of the objective of minimum probability flow, (21, 21).
    """
    machine = models.BoltzmannMachine(6, "01")
    random = torch.Generator().manual_seed(seed)
    truth = torch.randn(machine.parameters, generator=random, dtype=torch.float64)
    p = machine.distribution(truth)
    hessian = torch.func.jacrev(lambda at: machine.mpf_gradient(at, p))(truth)
    return machine, p, (hessian + hessian.mT) / 2


def conditioned(matrix: torch.Tensor, metric: torch.Tensor) -> float:
    """Return the condition number of a matrix in parameters that a metric whitens."""
    W = whitening_matrix(metric)
    return metrics.condition_number(W @ matrix @ W)


def flow(metric: Metric) -> str:
    """Say what is off with a metric from the data for minimum probability flow: over five machines
    it must lower the condition number of the Hessian at the goal to a fifth (geometric mean).
    """
    ratios = []
    for seed in MACHINES:
        machine, p, hessian = flow_curvature(seed)
        try:
            after = conditioned(hessian, metric(machine, p))
        except (ValueError, RuntimeError):
            return "it is no positive definite matrix for every machine"
        ratios.append(after / metrics.condition_number(hessian))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return "" if mean < 0.2 else f"the condition number becomes {mean:.3g} times what it was"
