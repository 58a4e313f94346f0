"""Descent with momentum on the whitening chapter's problems, one method and one setting a run."""

from collections.abc import Callable

import torch
from torch import nn

from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.experiments._descent import Problem, descend, solve

TARGETS = {"digits": 1e-2, "machine": 1e-3, "separation": 1e-3}
"""The excess loss at which a run has arrived, as in the chapter's other experiments."""

METRICS = {
    "digits": {"natural": "fisher", "whitened": "whitened"},
    "machine": {"natural": "fisher", "whitened": "centred_energy"},
    "separation": {"natural": "relative"},
}
"""The metric of each method that has one."""

Move = Callable[[torch.Tensor], None]


def problem_of(name: str, seed: int, generator: torch.Generator) -> Problem:
    """Return logistic regression on a pair of digits, a machine of six units that learns another,
    or the separation of three photographs.
    """
    return {"digits": _digits, "machine": _machine, "separation": _separation}[name](
        seed, generator
    )


def _digits(seed: int, _: torch.Generator) -> Problem:
    x, t = problems.digit_pair(problems.DIGIT_PAIRS[seed], 7)
    Z, ridge = problems.with_bias(x), 1e-5
    problem = problems.logistic(Z, t, ridge, TARGETS["digits"])
    second = Z.mT @ Z / len(Z) + ridge * torch.eye(Z.shape[1], dtype=Z.dtype)
    problem.metrics["whitened"] = lambda theta: second  # of steepest descent on whitened inputs
    return problem


def _machine(_: int, generator: torch.Generator) -> Problem:
    return problems.boltzmann(6, "01", "ml", 1.0, 1.0, generator, TARGETS["machine"])


def _separation(_: int, generator: torch.Generator) -> Problem:
    sources = problems.differences(problems.photographs(48))
    sources = sources / sources.std(1, keepdim=True)
    unmixed = problems.separation(sources, -torch.inf)
    floor = float(descend(unmixed, "relative", steps=300, rates=(0.2,)).curve[-1])
    A = problems.mixing(3, 10.0, generator)
    return problems.separation(A @ sources, TARGETS["separation"], floor)


def mover(
    problem: Problem, theta: nn.Parameter, method: str, metric: str | None, lr: float, mu: float
) -> Move:
    """Return the function that moves ``theta`` by one step, given the gradient (1, P).

    Heavy-ball momentum for gradient, natural gradient and whitened inputs; the first decay for
    "adamw" (no weight decay). For "muon" ``theta`` is a square matrix, flattened.
    """
    optimizer: torch.optim.Optimizer
    if method == "muon":
        side = round(theta.numel() ** 0.5)
        moved = nn.Parameter(theta.detach().reshape(side, side))  # the same numbers, seen as W
        optimizer = torch.optim.Muon(
            [moved], lr=lr, momentum=mu, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        )
    elif method == "adamw":
        moved = theta
        optimizer = torch.optim.AdamW([moved], lr=lr, betas=(mu, 0.999), weight_decay=0.0)
    else:
        moved, optimizer = theta, torch.optim.SGD([theta], lr=lr, momentum=mu)

    def move(gradient: torch.Tensor) -> None:
        if metric is not None:
            gradient = solve(problem.metrics[metric](theta.detach()), gradient)
        moved.grad = gradient.reshape(moved.shape)
        optimizer.step()

    return move
