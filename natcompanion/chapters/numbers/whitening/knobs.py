"""A descent for the reader's hand: two regularized inverses at any ε and step size."""

from functools import lru_cache

import torch

from natcompanion import solvers
from natcompanion.chapters.experiments._whitening import example

RULES = {"Eq. 35": solvers.ridge_solve, "damping": solvers.damped_solve}
LIVE_STEPS = 200


@lru_cache(maxsize=32)
def live_descent(eps: float, rate: float) -> dict[str, list[float]]:
    """Return the KL divergence in nats before each step, by the rule that regularizes the
    inverse.
    """
    model, goal = example(), torch.zeros(2, dtype=torch.float64)
    G = model.fisher()
    curves: dict[str, list[float]] = {}
    for name, solve in RULES.items():
        theta, curves[name] = torch.tensor([1.0, -1.0], dtype=torch.float64), []
        for _ in range(LIVE_STEPS):
            curves[name].append(float(model.kl(theta, goal)))
            theta = theta - rate * solve(G, model.gradient(theta, goal), eps)
    return curves
