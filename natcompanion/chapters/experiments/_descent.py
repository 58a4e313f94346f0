"""Descent at every step size of one grid: the fair comparison that the training experiments
share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from natcompanion.chapters import statistics

RATES = tuple(10 ** (k / 4) for k in range(-12, 9))
"""The step sizes that every method may choose from: 0.001 to 100, four a decade."""

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """A function to minimize, written for a batch of parameter vectors.

    ``loss`` maps (r, P) to (r,), ``gradient`` (r, P) to (r, P). ``metrics`` maps a name to a
    function from (r, P) to (r, P, P), or to (P, P) if the metric is the same everywhere. The run
    ends when the loss is at most ``target``.
    """

    start: torch.Tensor
    loss: Function
    gradient: Function
    target: float
    metrics: dict[str, Function]


@dataclass(frozen=True)
class Descent:
    """The best of the step sizes: steps to the target (None if never), the step size, and the loss
    after each step.
    """

    steps: int | None
    rate: float
    curve: torch.Tensor

    def at(self, times: tuple[int, ...]) -> list[float]:
        """Return the loss after these numbers of steps; after the end of the run its last value."""
        return [float(self.curve[min(t, len(self.curve) - 1)]) for t in times]


def descend(
    problem: Problem,
    metric: str | None = None,
    *,
    steps: int,
    hold: int = 1,
    rates: tuple[float, ...] = RATES,
) -> Descent:
    r"""Run :math:`\theta \leftarrow \theta - \eta\, G^{-1} \nabla J` for every step size at once.

    The first step size whose loss reaches the target is the best. One whose loss is not finite, or
    a million times the first, has diverged and is dropped.

    Parameters
    ----------
    problem : Problem
    metric : str, optional
        Name of one of the problem's metrics; steepest descent when left out.
    steps : int
        The most steps to take.
    hold : int
        Steps for which the metric is kept before it is computed anew.
    rates : tuple of float
        The step sizes.
    """
    rate = torch.tensor(rates, dtype=problem.start.dtype)
    theta = problem.start.repeat(len(rates), 1)
    losses = problem.loss(theta)
    G: Any  # the metric, once there is one
    limit, history, alive, G = 1e6 * losses[0].abs(), [losses], torch.arange(len(rates)), None
    for t in range(steps):
        if float(losses.min()) <= problem.target:
            break
        step = problem.gradient(theta)
        if metric is not None:
            G = problem.metrics[metric](theta) if t % hold == 0 else G
            step = solve(G, step)
        theta = theta - rate[alive, None] * step
        losses = torch.full_like(limit.expand(len(theta)), torch.inf)
        finite = theta.isfinite().all(-1)
        losses[finite] = problem.loss(theta[finite]).nan_to_num(torch.inf)
        kept = losses <= limit
        if not bool(kept.any()):
            break
        alive, theta, losses = alive[kept], theta[kept], losses[kept]
        G = G[kept] if G is not None and G.ndim == 3 else G
        history.append(
            torch.full((len(rates),), torch.inf, dtype=theta.dtype).index_copy(0, alive, losses)
        )
    best = statistics.best(enumerate(history[-1].tolist()))
    done = float(history[-1][best]) <= problem.target
    return Descent(len(history) - 1 if done else None, rates[best], torch.stack(history)[:, best])


def solve(G: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Solve G x = g for a batch of vectors ``g`` (r, P) and one or r metrics; not finite where G is
    singular.
    """
    return torch.linalg.solve_ex(G.expand(len(g), -1, -1), g)[0]
