"""What the chapter computes on the page: small networks, and the comparison of their matrices."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from natcompanion import metrics, reference
from natcompanion.chapters.experiments._revisiting_metrics import normal, small_network
from natcompanion.chapters.show import Table
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

LIKELIHOODS: dict[str, Likelihood] = {
    "linear, β = 0.5": Gaussian(0.5),
    "sigmoid": Bernoulli(),
    "softmax": Categorical(),
}
SIZES = (3, 4, 3)


def network_of(sizes: tuple[int, int, int] = SIZES, seed: int = 0) -> nn.Sequential:
    """Return a float64 network with one hidden layer of tanh units."""
    return small_network(torch.Generator().manual_seed(seed), sizes)


def random_batch(n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``n`` random inputs (n, 3) and labels."""
    generator = torch.Generator().manual_seed(1)
    return normal(generator, n, 3), torch.randint(classes, (n,), generator=generator)


def targets_of(likelihood: Likelihood, x: torch.Tensor) -> torch.Tensor:
    """Return random targets of three outputs for ``x``, as a likelihood expects them."""
    generator = torch.Generator().manual_seed(3)
    r = normal(generator, len(x), 3)
    return likelihood.sample(r, generator=generator)


# ---- Steps of the same divergence


def moved(model: nn.Module, x: torch.Tensor, t: torch.Tensor, d: torch.Tensor) -> tuple:
    """Return the KL divergence that a step ``d`` (P,) moves a softmax model, and the fall of its
    loss.
    """
    likelihood = Categorical()
    r = model(x).detach()
    s = reference.outputs(model, reference.parameter_vector(model) + d, x).detach()
    fall = likelihood.nll(r, t) - likelihood.nll(s, t)
    return float(likelihood.kl(r, s).mean()), float(fall.mean())


def scaled(d: torch.Tensor, G: torch.Tensor, c: float) -> torch.Tensor:
    """Return ``d`` scaled so that d' G d / 2 = c."""
    return d * (2 * c / (d @ G @ d)).sqrt()


def random_directions(parameters: int) -> torch.Tensor:
    """Return 200 random directions; (200, P)."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(200, parameters, generator=generator, dtype=torch.float64)


def steps_table(
    natural_step: Callable[[float], torch.Tensor],
    G: torch.Tensor,
    g: torch.Tensor,
    model: nn.Module,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> Table:
    """Compare natural steps with the plain gradient and 200 random directions of the same length.

    Length as G measures it. ``natural_step`` is a function of the divergence c.
    """
    directions = random_directions(len(g))

    def fall(d: torch.Tensor, c: float) -> float:
        return moved(model, *batch, scaled(d, G, c))[1]

    rows = []
    for c in (1e-4, 1e-6, 1e-8):
        kl, natural = moved(model, *batch, natural_step(c))
        rows.append([f"{c:g}", kl / c, natural, fall(-g, c), max(fall(d, c) for d in directions)])
    return Table(
        ["c", "KL / c", "fall: natural", "plain", "best of 200 random"],
        rows,
        "Divergence of the natural step in units of c, and how much the loss falls along three "
        "directions d, all scaled so that d'G d / 2 = c.",
    )


# ---- Matrices beside the Fisher matrix


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the distance of two matrices in units of the second."""
    return float((a - b).norm() / b.norm())


def same(a: torch.Tensor, b: torch.Tensor) -> str:
    """Return in words whether two matrices are equal to rounding, or by how much they differ."""
    gap = distance(a, b)
    return "equal" if gap < 1e-11 else f"differs by {gap:.2g}"


def matrices_table(matrices_of: Callable, x: torch.Tensor) -> Table:
    """Compare matrices with the Fisher matrix for linear, sigmoid and softmax outputs.

    ``matrices_of(likelihood, t)`` returns them by name, for random targets t of the inputs ``x``.
    """
    model = network_of()
    found = {
        name: matrices_of(likelihood, targets_of(likelihood, x))
        for name, likelihood in LIKELIHOODS.items()
    }
    rows = [
        [name, *[same(M, metrics.fisher(model, x, LIKELIHOODS[name])) for M in matrices.values()]]
        for name, matrices in found.items()
    ]
    return Table(
        ["outputs", *next(iter(found.values()))],
        rows,
        "Relative distance from the Fisher matrix of the library; 'equal' means below 1e-11.",
    )


# ---- Paths


class Product(nn.Module):
    """A model whose output is the product of its two parameters, whatever the input."""

    def __init__(self, start: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return w1 w2 for each of the ``n`` inputs; (n, 1)."""
        return self.w.prod().expand(len(x), 1)


def path_of(
    optimizer: type, x: torch.Tensor, t: torch.Tensor, steps: int = 8, **options: Any
) -> torch.Tensor:
    """Return the parameters after some steps of size 1 on one batch, from ``network_of()``."""
    model = network_of()
    chosen_optimizer = optimizer(model, Categorical(), lr=1.0, **options)
    for _ in range(steps):
        chosen_optimizer.step(x, t)
    return reference.parameter_vector(model)
