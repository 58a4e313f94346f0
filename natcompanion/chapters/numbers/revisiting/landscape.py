"""Four methods on the landscape of Figure 1: what the chapter's figure computes while it is played
with.

Every function calls the auto-encoder of the experiment. Points are rows (w, b).
"""

from functools import cache

import torch

from natcompanion.chapters.experiments import _revisiting_autoencoder as autoencoder
from natcompanion.chapters.numbers.revisiting.toy import METHODS, wells

STEPS = 100
START = (-1.0, 3.0)
RATES = {**autoencoder.RATES, "natural": 0.1}
"""Step sizes of Section 8.4; the natural gradient's is smaller, so that its path is smooth."""
DAMPING = autoencoder.DAMPING
SIDE, EXTENT = 32, 4.84375
"""Starts of a basin on a side of a square, and the outermost of them: the middles of cells that
fill the square of side 10.
"""
CLOSE = 0.5
"""Distance from a minimum within which a path has reached it."""


def advance(
    theta: torch.Tensor, method: str, rate: float, damping: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return n points after a step, their loss before it and the divergence of the step.

    Parameters
    ----------
    theta : Tensor, shape (n, 2)
    method : str
        Of `METHODS`.
    rate : float
        Step size.
    damping : float or None
        Multiple of the identity that is added to the method's matrix; none for plain descent.

    Returns
    -------
    theta : Tensor, shape (n, 2)
    loss, kl : Tensor, shape (n,)
        The mean squared error, and nats.
    """
    model = autoencoder.example()
    step = model.step(theta, method, rate, damping)
    return theta + step, model.loss(theta), model.kl(theta, step)


def moved(theta: torch.Tensor, method: str, rate: float, damping: float | None) -> torch.Tensor:
    """Return n points after a step, (n, 2)."""
    return advance(theta, method, rate, damping)[0]


def surface(theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the model says at n points, (n, 11), and the logarithm of their loss,
    (n,).
    """
    model = autoencoder.example()
    return model.outputs(theta), model.loss(theta).log()


def loops(outputs: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Return the root of the divergence from the model at a point (1, 2) to those that say
    ``outputs`` (n, 11), outputs having standard deviation 1; (n,).

    A divergence grows as the square of the distance, so its root is drawn on a coarser grid.
    """
    here = autoencoder.example().outputs(theta)
    return (0.5 * (outputs - here).square().mean(-1)).sqrt()


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what is drawn before anything is computed: the `basin` of every method at its own
    settings, (4, SIDE * SIDE), the two minima (2, 2) and their loss (2,).
    """
    ends = torch.stack([basin(method) for method in METHODS])
    return ends, wells().clone(), autoencoder.example().loss(wells())


def reached(theta: torch.Tensor) -> torch.Tensor:
    """Return for n points the minimum that they have reached: 0 the better one, 1 the other, -1
    neither; (n,).
    """
    distance = (theta[:, None] - wells()).square().sum(-1).sqrt()
    return torch.where(distance.amin(1) < CLOSE, distance.argmin(1).double(), -1.0)


def starts(side: int = SIDE, extent: float = EXTENT) -> torch.Tensor:
    """Return the starts of a basin, b fastest; (side * side, 2)."""
    line = torch.linspace(-extent, extent, side, dtype=torch.float64)
    return torch.cartesian_prod(line, line)


@cache
def basin(
    method: str, rate: float | None = None, damping: float | None = None, steps: int = STEPS
) -> torch.Tensor:
    """Return for each of the `starts` the minimum that a method has reached, as `reached` does."""
    theta = starts()
    for _ in range(steps):
        theta = moved(theta, method, rate or RATES[method], damping or DAMPING[method])
    return reached(theta)


def reaching(method: str, minimum: int, *options: float) -> float:
    """Return from how many per cent of the `starts` a method has reached a minimum, numbered as in
    `reached`.
    """
    return 100 * float((basin(method, *options) == minimum).double().mean())


def step_divergence(method: str, number: int = 0, start: tuple[float, float] = START) -> float:
    """Return by how many nats a step of a method changes the model, on its way from a start."""
    theta = torch.tensor([start], dtype=torch.float64)
    for _ in range(number + 1):
        theta, _, kl = advance(theta, method, RATES[method], DAMPING[method])
    return float(kl)
