"""Two rulers at a point of the parameters: what the figure of Foundations computes while it is
played with.

The model is the chapter's, ``w tanh(v x)`` with one binary label; the loss is its expectation under
the teacher.
"""

import torch
from torch import nn

from natcompanion import metrics
from natcompanion.chapters.numbers import foundations as numbers

RULES = ("gradient", "natural", "stretched gradient", "stretched natural")
"""The steps of :func:`rulers`: two in (v, w), and the same two rules in (stretch * v, w)."""


class Tiny(nn.Module):
    """The network ``w tanh(v x)``; a page may choose its parameters."""

    def __init__(self, v: float, w: float) -> None:
        super().__init__()
        self.v, self.w = (nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))
        with torch.no_grad():  # a parameter that is made of v would be a constant of the page
            self.v.copy_(torch.as_tensor(v, dtype=torch.float64))
            self.w.copy_(torch.as_tensor(w, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs at inputs of any shape."""
        return self.w * torch.tanh(self.v * x)


def point(v: float, w: float) -> torch.Tensor:
    """Return a point as a row; (1, 2)."""
    return torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in (v, w)])[None]


def outputs(points: torch.Tensor) -> torch.Tensor:
    """Return the outputs of the networks at k points (v, w); (k, 2) to (k, 40)."""
    return points[:, 1:] * torch.tanh(points[:, :1] * numbers.inputs()[:, 0])


def targets() -> torch.Tensor:
    """Return the probability that the teacher gives to the label 1 of each input; (1, 40)."""
    return outputs(point(*numbers.TEACHER)).sigmoid()


def losses(points: torch.Tensor) -> torch.Tensor:
    """Return the expected loss at k points, (k, 2) to (k,), in nats."""
    r = outputs(points)
    return numbers.LIKELIHOOD.nll(r, targets().expand_as(r)) / r.shape[1]


def divergences(v: float, w: float, points: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence from the network at (v, w) to those at k points; (k,), in nats."""
    there = outputs(points)
    return numbers.LIKELIHOOD.kl(outputs(point(v, w)).expand_as(there), there) / there.shape[1]


def reach(v: float, w: float, cost: float, points: torch.Tensor) -> torch.Tensor:
    """Return k points in the same directions from (v, w), closer to where the divergence is
    ``cost``.

    A divergence grows about as the square of the distance, so a few rounds suffice.
    """
    here = point(v, w)
    return here + (points - here) * (cost / divergences(v, w, points)).sqrt()[:, None]


def turn(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the angle between two steps (2,), in degrees."""
    sine = one[0] * other[1] - one[1] * other[0]
    return abs(float(torch.rad2deg(torch.atan2(sine, one @ other))))


def rulers(
    v: float, w: float, stretch: float, cost: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a step of the gradient and one of the natural gradient, each in two coordinates.

    In the coordinates (u, w), u = stretch * v, the gradient is that of the loss by u and by w, and
    the Fisher matrix that of u and w. The steps are carried back to (v, w).

    Parameters
    ----------
    v, w : float
    stretch : float
        By how much the axis of v is stretched; positive.
    cost : float
        Divergence of each step in nats, as the Fisher matrix counts it.

    Returns
    -------
    steps : Tensor, shape (4, 2)
        Of ``RULES``, in (v, w). NaN where the gradient is zero.
    losses : Tensor, shape (5,)
        At (v, w), and after each of the steps, in nats.
    ellipse : Tensor, shape (2, 2)
        Maps the circle of radius 1 to the steps that cost ``cost``.
    gradient : Tensor, shape (2,)
        Of the loss, by v and w.
    """
    model, x = Tiny(v, w), numbers.inputs()
    F = metrics.fisher(model, x, numbers.LIKELIHOOD)
    gradient = metrics.per_example_gradients(model, x, targets().mT, numbers.LIKELIHOOD).mean(0)
    one = torch.ones((), dtype=torch.float64)
    directions = []
    for B in (torch.stack([one, one]), torch.stack([one / stretch, one])):  # (v, w) by (u, w)
        slope, metric = B * gradient, B[:, None] * F * B
        directions += [B * slope, B * torch.linalg.solve(metric, slope)]
    steps = -torch.stack(directions)
    steps = steps * (2 * cost / ((steps @ F) * steps).sum(1, keepdim=True)).sqrt()
    places = point(v, w) + torch.cat([torch.zeros_like(steps[:1]), steps])
    values, vectors = torch.linalg.eigh(F)
    ellipse = (vectors * (2 * cost / values).sqrt()) @ vectors.mT
    return steps, losses(places), ellipse, gradient
