"""The judges of the exercises of Foundations: each tests a property, by divergences or by trial."""

import math
from collections.abc import Callable

import torch

from natcompanion import reference
from natcompanion.chapters.numbers import foundations as numbers
from natcompanion.likelihoods import Gaussian

COIN = 0.3
BETA = 0.5
CHANGE = 1e-4


def _between(p: float, q: float) -> float:
    """Return the divergence from a coin with probability p to one with q."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def coin(by_p: float, by_r: float) -> str:
    """Say what is off with the Fisher information of a coin about p, and about r, p = σ(r)."""
    r = math.log(COIN / (1 - COIN))
    ways = {
        "p": (by_p, COIN + CHANGE),
        "r": (by_r, 1 / (1 + math.exp(-r - CHANGE))),
    }
    for name, (answer, moved) in ways.items():
        ratio = float(answer) * CHANGE**2 / 2 / _between(COIN, moved)
        if not abs(ratio - 1) < 0.01:
            return f"by {name}, half of F δ² is {ratio:.3g} times the divergence"
    return ""


def gaussian(matrix: torch.Tensor) -> str:
    """Say what is off with the Fisher matrix of the chapter's network as the mean of a Gaussian."""
    model, x = numbers.tiny(*numbers.HERE), numbers.inputs()
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    if matrix.shape != (2, 2):
        return f"expected a matrix of shape (2, 2), got {tuple(matrix.shape)}"
    for direction in ((1.0, 0.0), (0.0, 1.0), (0.6, 0.8), (0.6, -0.8)):
        delta = CHANGE * torch.tensor(direction, dtype=torch.float64)
        truth = float(reference.kl(model, x, Gaussian(BETA), delta))
        ratio = float(delta @ matrix @ delta) / 2 / truth
        if not abs(ratio - 1) < 0.01:
            return f"in the direction {direction}, half of δᵀFδ is {ratio:.3g} times the divergence"
    return ""


def multiples(best: float, limit: float) -> str:
    """Say what is off with the multiple of the natural gradient step that lowers the quadratic
    model most, and with the one from which it lowers it no longer.
    """
    gradient, natural = numbers.gradients()

    def change(multiple: float) -> float:
        step = -multiple * natural
        return float(gradient @ step + step @ numbers.exact() @ step / 2)

    if not min(change(best - 0.01), change(best + 0.01)) > change(best):
        return f"there is a better multiple than {best:g}"
    if not (change(limit - 0.01) < 0 < change(limit + 0.01)):
        return f"the sign of the change does not turn at {limit:g}"
    return ""


SINGULAR = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=torch.float64)
ROW = torch.tensor([1.0, 2.0], dtype=torch.float64)
UNITS = ((1.0, 10.0), (0.01, 1.0), (5.0, 0.2))
Rule = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def damping(rule: Rule) -> str:
    """Say what is off with a damped step ``rule(F, gradient, lam)``: it must be finite where F is
    singular, and not depend on the unit of any parameter.
    """
    F, (gradient, _) = numbers.exact(), numbers.gradients()
    try:
        singular = rule(SINGULAR, ROW, 0.01)
    except torch.linalg.LinAlgError:
        return "it has no answer where F is singular"
    if not singular.norm() < 1e4:
        return "it has no answer where F is singular"
    if not (singular @ ROW > 0 and rule(F, gradient, 0.01) @ gradient > 0):
        return "its step does not go down"
    for unit in UNITS:
        B = torch.diag(torch.tensor(unit, dtype=torch.float64))
        for F_here, g in ((F, gradient), (SINGULAR, ROW)):
            gap = rescaled_gap(rule, B, F_here, g)
            if not gap < 1e-6:
                return f"with other units it ends {gap:.3g} steps away"
    return ""


def rescaled_gap(rule: Rule, B: torch.Tensor, F: torch.Tensor, gradient: torch.Tensor) -> float:
    """Return how far the steps of a rule in two coordinates end apart, as a multiple of the first;
    B is the derivative of the old coordinates by the new ones.
    """
    one = rule(F, gradient, 0.01)
    other = B @ rule(B.mT @ F @ B, B.mT @ gradient, 0.01)
    return float((one - other).norm() / one.norm())
