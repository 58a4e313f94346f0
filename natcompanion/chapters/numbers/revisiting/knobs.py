"""A small training run for the reader's hand: the natural gradient at any damping, held or
adapted.
"""

from functools import lru_cache

import torch
from torch import nn

from natcompanion import optim
from natcompanion.chapters.numbers.revisiting.solving import step_of
from natcompanion.chapters.numbers.small_training import same_start
from natcompanion.damping import LevenbergMarquardt
from natcompanion.data import digits as small_digits
from natcompanion.likelihoods import Categorical

HELD, ADAPTED = "constant", "Levenberg–Marquardt"
LIVE_UPDATES = 15


@lru_cache(maxsize=1)
def live_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 300 small digits, (300, 64), and their labels."""
    images, labels = small_digits(300, dtype=torch.float64)
    return images.flatten(1), labels


def live_network() -> nn.Sequential:
    """Return the network 64-10-10 with tanh, the same at every call."""
    return same_start(lambda linear: [linear(64, 10), nn.Tanh(), linear(10, 10)])


@lru_cache(maxsize=32)
def live_damping(first: float, rule: str, rate: float) -> dict[str, list[float]]:
    """Return the loss before each update and the damping of its step: constant, or adapted to
    how well the last step was predicted.
    """
    x, t = live_digits()
    damping = LevenbergMarquardt(first) if rule == ADAPTED else first
    optimizer = optim.NaturalGradient(
        live_network(), Categorical(), rate, damping=damping, max_iter=20
    )
    steps = [step_of(optimizer, x, t) for _ in range(LIVE_UPDATES)]
    return {
        "loss": [min(step.loss, 1e3) for step in steps],
        "damping": [step.damping for step in steps],
    }
