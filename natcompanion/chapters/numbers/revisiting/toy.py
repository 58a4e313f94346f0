"""Figure 1: the auto-encoder with two parameters."""

from functools import cache
from typing import Any

import numpy as np
import torch

from natcompanion.chapters.experiments import _revisiting_autoencoder as autoencoder
from natcompanion.chapters.figures.style import named
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table

METHODS = named("newton", "natural", "leroux") | {"gradient": "gradient descent"}
STEPS = 100
STOPS = (0, 3, 10, 30)
"""Steps of the natural gradient whose KL surfaces are shown."""


def _stored(key: str) -> Any:
    return stored("revisiting_figure1.quick").records[0][key]


def _ends(method: str) -> np.ndarray:
    """Return the minimum that each start ends in: 0 the better one, 1 the other, -1 neither."""
    return np.array(_stored(f"end_{method}"))


def different_minima() -> np.ndarray:
    """Return for each start whether natural gradient and gradient descent end in different minima.

    A path that ends in no minimum does not count.
    """
    natural, plain = _ends("natural"), _ends("gradient")
    return (natural >= 0) & (plain >= 0) & (natural != plain)


def count_different_minima() -> int:
    """Return from how many starts they do."""
    return int(different_minima().sum())


def starts() -> int:
    """Return the number of starts."""
    return len(different_minima())


def ends_table() -> Table:
    """Where each method ends, and how often it goes uphill."""
    rows = [
        [
            text,
            *[int((_ends(name) == end).sum()) for end in (0, 1, -1)],
            100 * float(np.mean(_stored(f"uphill_{name}"))),
        ]
        for name, text in METHODS.items()
    ]
    return Table(
        ["method", "better minimum", "other minimum", "neither", "steps uphill, %"],
        rows,
        f"Where 300 steps of each method end, from {starts()} starts on a grid, and how many of "
        "the steps raise the error.",
    )


def shorter_steps() -> list[bool]:
    """Return for each reading whether a natural step is shorter and Newton's longer at any point.

    Shorter and longer than that of gradient descent.
    """
    return [points > 0 for points in _stored("claimed_lengths")]


def readings() -> int:
    """Return the number of readings of the paper: four sets of inputs, two metrics."""
    return len(shorter_steps())


def readings_that_hold() -> int:
    """Return for how many of them it happens."""
    return sum(shorter_steps())


def most_points() -> int:
    """Return the largest number of points at which it happens."""
    return max(_stored("claimed_lengths"))


def points() -> int:
    """Return the number of random points tried."""
    return _stored("points")


def median_angle() -> float:
    """Return the median angle between the natural step and the plain one, in degrees."""
    return _stored("median_angle")


# ---- The picture


@cache
def wells() -> torch.Tensor:
    """Return the two minima, the better one first; (2, 2)."""
    return autoencoder.minima(autoencoder.example())[:2]


@cache
def path(method: str, start: tuple[float, float], *options: float) -> torch.Tensor:
    """Return the points (w, b) of a method, its start first; (STEPS + 1, 2)."""
    origin = torch.tensor(start, dtype=torch.float64)
    return autoencoder.example().path(origin, method, STEPS, *options)


def paths(rate: float, damping: float, start: tuple[float, float]) -> dict[str, torch.Tensor]:
    """Return the path of every method; step size and damping are those of the natural gradient."""
    options = {"natural": (rate, damping)}
    return {name: path(name, start, *options.get(name, ())) for name in METHODS}


def directions(theta: torch.Tensor, rate: float, damping: float) -> dict[str, torch.Tensor]:
    """Return the step of every method at a point, scaled to length 1."""
    own = {**autoencoder.RATES, "natural": rate}, {**autoencoder.DAMPING, "natural": damping}
    steps = {
        name: autoencoder.example().step(theta, name, own[0][name], own[1][name])
        for name in METHODS
    }
    return {name: step / step.norm().clamp_min(1e-300) for name, step in steps.items()}


def error_surface(axis: torch.Tensor) -> torch.Tensor:
    """Return the decimal logarithm of the error at every w (rows) and b (columns) of an axis."""
    return autoencoder.example().loss(_plane(axis)).log10()


def kl_surface(theta: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    """Return the root of KL(p_theta || p_theta+d) at every step d = (w, b) of an axis."""
    return autoencoder.example().kl(theta, _plane(axis)).clamp_min(1e-12).sqrt()


def _plane(axis: torch.Tensor) -> torch.Tensor:
    return torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)


def place(point: torch.Tensor) -> str:
    """Return in words where a point lies: in a minimum, near one (0.1 to 1), or between."""
    distance = (point - wells()).norm(dim=1)
    nearest = ("the better minimum", "the other minimum")[int(distance.argmin())]
    gap = float(distance.min())
    return "between" if gap > 1 else f"near {nearest}" if gap > 0.1 else nearest


def error(point: torch.Tensor) -> float:
    """Return the error at a point."""
    return float(autoencoder.example().loss(point))
