r"""One neuron with two weights that learns from points of a plane by four rules, and the light in
which it sees them: what the chapter's figure computes while it is played with.

A tanh neuron answers with -1 or 1, a sigmoid neuron with 0 or 1, both at random; a relu neuron with
a Gaussian of standard deviation 1 around its activation. The loss is the mean of -log p of the
labels, up to a constant. The bias is 0 and given: the relative metric is the block of the weights.
"""

from functools import lru_cache
from typing import Any

import torch

from natcompanion.chapters.numbers.rfim.neuron import half_of_nu, neuron_loss
from natcompanion.relative import activate, neuron_rfim, nu, slope
from natcompanion.solvers import damped_solve

__all__ = ["lit_points", "metric_moves", "path_moves", "steps_of"]

OPTIONS: dict[str, dict[str, float]] = {"sigmoid": {}, "tanh": {}, "relu": {"omega": 0.1}}
"""The activations, and their shapes."""
METHODS = {
    "sgd": "gradient",
    "momentum": "momentum",
    "kfac": "K-FAC",
    "rngd": "relative natural gradient",
}
MOMENTUM, RADIUS = 0.9, 0.3
"""Of the method momentum; the relative norm of the steps on the ellipse."""
STEPS, CLOSE, FAR = 60, 1e-3, 100.0
"""Length of a path; how near the lowest loss counts as there, in nats; weights that have run away.
"""
START = (2.0, -1.5)
POINTS = (
    *((-1.7, -0.8), (-0.6, 0.1), (2.1, 0.8), (-1.1, -1.6), (0.1, 0.6), (-0.4, -0.3), (1.2, 0.8)),
    *((1.0, -0.2), (-2.4, -0.5), (0.6, 1.4), (1.8, 1.9), (-0.9, 0.5), (-1.3, 0.2), (0.5, -0.6)),
)
LABELS = (0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0)


def cloud(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points of the start times a number, (14, 2), and their labels, 0 and 1, (14,)."""
    points, labels = (torch.tensor(given, dtype=torch.float64) for given in (POINTS, LABELS))
    return scale * points, labels


def losses(activation: str, points: torch.Tensor, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the loss at k weights, (k, 2) to (k,), in nats."""
    omega = OPTIONS[activation].get("omega", 0.0)
    return neuron_loss(activation, points @ x.mT, t, omega, 0.0).mean(-1)


def slopes(activation: str, w: torch.Tensor, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the loss at k weights; (k, 2) to (k, 2)."""
    name: Any = activation
    a, options = w @ x.mT, OPTIONS[activation]
    missed = activate(name, a, **options) - (2 * t - 1 if name == "tanh" else t)
    return (missed * slope(name, a, **options) if name == "relu" else missed) @ x / len(x)


def metric(activation: str, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the relative metric of weights (2,), given the bias 0; (2, 2)."""
    name: Any = activation
    with_bias = torch.cat([w, torch.zeros_like(w[:1])])
    return neuron_rfim(with_bias, x, name, **OPTIONS[activation])[:2, :2]


def kfac_metric(activation: str, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the metric of K-FAC, the mean of nu times the second moments of the inputs; (2, 2)."""
    name: Any = activation
    return nu(name, x @ w, **OPTIONS[activation]).mean() * (x.mT @ x) / len(x)


def natural(G: torch.Tensor, slope: torch.Tensor, eps: float, B: torch.Tensor) -> torch.Tensor:
    """Return a damped natural gradient that was computed in other coordinates.

    Parameters
    ----------
    G : Tensor, shape (2, 2)
    slope : Tensor, shape (2,)
    eps : float
        Damping relative to the mean eigenvalue of the metric in those coordinates (Eq. 30).
    B : Tensor, shape (2,)
        Derivatives of the weights by those coordinates.

    Returns
    -------
    Tensor, shape (2,)
        In the weights.
    """
    there = B[:, None] * G * B
    mean = there.diagonal().mean()
    return B * damped_solve(there / mean, B * slope / mean, eps)


def units(stretch: float) -> torch.Tensor:
    """Return the derivatives of the weights by the coordinates (stretch * w1, w2); (2,)."""
    one = torch.ones((), dtype=torch.float64)
    return torch.stack([one / stretch, one])


def step(
    activation: str,
    w: torch.Tensor,
    velocity: torch.Tensor,
    x: torch.Tensor,
    t: torch.Tensor,
    rate: float,
    eps: float,
    stretch: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a step of each method in the coordinates (stretch * w1, w2), and the loss before it.

    Parameters
    ----------
    activation : str
    w : Tensor, shape (4, 2)
        The weights of ``METHODS``.
    velocity : Tensor, shape (2,)
        Of momentum.
    x : Tensor, shape (n, 2)
    t : Tensor, shape (n,)
        Labels 0 and 1.
    rate, eps, stretch : float
        Step size; damping of both metrics; by how much the axis of the first weight is stretched.

    Returns
    -------
    w : Tensor, shape (4, 2)
    velocity : Tensor, shape (2,)
    losses : Tensor, shape (4,)
    """
    gradient, B = slopes(activation, w, x, t), units(stretch)
    velocity = MOMENTUM * velocity + B.square() * gradient[1]
    directions = [
        B.square() * gradient[0],
        velocity,
        natural(kfac_metric(activation, w[2], x), gradient[2], eps, B),
        natural(metric(activation, w[3], x), gradient[3], eps, B),
    ]
    return w - rate * torch.stack(directions), velocity, losses(activation, w, x, t)


def look(
    activation: str, w: torch.Tensor, x: torch.Tensor, t: torch.Tensor, eps: float, stretch: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return how a neuron sees its points, and two steps of one relative norm.

    Parameters
    ----------
    activation : str
    w : Tensor, shape (2,)
    x, t, eps, stretch
        As for :func:`step`.

    Returns
    -------
    nu : Tensor, shape (n,)
    steps : Tensor, shape (2, 2)
        Along the gradient and the relative natural gradient. NaN where the gradient is zero.
    ellipse : Tensor, shape (2, 2)
        Maps the circle of radius 1 to the steps of relative norm ``RADIUS``.
    kfac : Tensor, shape (2, 2)
        The same for the norm of K-FAC.
    """
    name: Any = activation
    G, B = metric(activation, w, x), units(stretch)
    gradient = slopes(activation, w[None], x, t)[0]
    steps = -torch.stack([B.square() * gradient, natural(G, gradient, eps, B)])
    steps = RADIUS * steps / ((steps @ G) * steps).sum(1, keepdim=True).sqrt()
    light = nu(name, x @ w, **OPTIONS[activation])
    return light, steps, circle(G), circle(kfac_metric(activation, w, x))


def circle(G: torch.Tensor) -> torch.Tensor:
    """Return the symmetric map from the unit circle to the steps of norm ``RADIUS``; (2, 2)."""
    values, vectors = torch.linalg.eigh(G)
    return (vectors * RADIUS / values.clamp_min(1e-12).sqrt()) @ vectors.mT


@lru_cache(maxsize=8)
def learned(
    activation: str,
    start: tuple[float, float] = START,
    rate: float = 0.5,
    eps: float = 0.01,
    stretch: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights and the losses of ``METHODS`` before each step and at the end.

    A method whose weights exceed ``FAR`` has run away: NaN from there on.

    Returns
    -------
    weights : Tensor, shape (STEPS + 1, 4, 2)
    losses : Tensor, shape (STEPS + 1, 4)
    """
    x, t = cloud(1.0)
    first = w = torch.tensor(start, dtype=torch.float64).expand(4, 2)
    velocity, gone, seen = w.new_zeros(2), torch.zeros(4, dtype=torch.bool), []
    for _ in range(STEPS + 1):
        gone = gone | (w.abs().amax(1) > FAR)
        before = w.masked_fill(gone[:, None], torch.nan)
        w = torch.where(gone[:, None], first, w)
        w, velocity, loss = step(activation, w, velocity, x, t, rate, eps, stretch)
        seen.append((before, loss.masked_fill(gone, torch.nan)))
    weights, values = (torch.stack(found) for found in zip(*seen, strict=True))
    return weights, values


def arrivals(losses: torch.Tensor) -> list[int | None]:
    """Return after how many steps each column of losses is first within ``CLOSE`` of the lowest of
    all; None if it never is.
    """
    near = losses < losses.nan_to_num(torch.inf).min() + CLOSE
    return [int(column.nonzero()[0]) if bool(column.any()) else None for column in near.mT]


def last(weights: torch.Tensor, step: int) -> int:
    """Return the last step up to ``step`` before the relative natural gradient has run away."""
    return int(weights[: step + 1, -1, 0].isfinite().sum()) - 1


# ---- What the chapter says about the figure

LONG, DARK, AWAY = (3.0, -2.0), 8, (-3.9, -0.5)
"""Weights with which a tanh neuron has few points in its light; the point that is least lit at the
start, and a place farther in the dark.
"""


def lit_points(activation: str, longer: float = 1.0) -> int:
    """Return on how many points half of nu falls, with the start's weights times a number."""
    x, t = cloud(1.0)
    w = longer * torch.tensor(START, dtype=torch.float64)
    return half_of_nu(look(activation, w, x, t, 0.01, 1.0)[0])


def metric_moves(which: str) -> float:
    """Return by what part of it (Frobenius) the metric "relative" or "kfac" of the sigmoid neuron
    changes when the least lit point goes farther into the dark.
    """
    x, _ = cloud(1.0)
    moved, w = x.clone(), torch.tensor(START, dtype=torch.float64)
    moved[DARK] = torch.tensor(AWAY, dtype=torch.float64)
    function = {"relative": metric, "kfac": kfac_metric}[which]
    before, after = (function("sigmoid", w, given) for given in (x, moved))
    return float((after - before).norm() / before.norm())


def steps_of(
    method: str, activation: str = "sigmoid", start: str = "", **setting: float
) -> int | str:
    """Return after how many steps a method is within ``CLOSE`` of the lowest loss that any reaches;
    "away" if it runs away, "late" if it is not there after ``STEPS``. It starts at ``START``, or at
    ``LONG`` if ``start`` is "long".
    """
    m = list(METHODS).index(method)
    losses = learned(activation, LONG if start == "long" else START, **setting)[1]
    never = "away" if bool(losses[-1, m].isnan()) else "late"
    arrived = arrivals(losses)[m]
    return never if arrived is None else arrived


def path_moves(method: str, eps: float) -> float:
    """Return by how much the path of a method moves when the first weight is stretched by 4: the
    largest change of a weight.
    """
    m = list(METHODS).index(method)
    one, other = (learned("sigmoid", eps=eps, stretch=s)[0][:, m] for s in (1.0, 4.0))
    return float((one - other).abs().max())
