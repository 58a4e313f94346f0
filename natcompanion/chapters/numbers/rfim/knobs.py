"""A small training run for the reader's hand: RNGD on small digits, at any ε and T."""

from functools import lru_cache

import torch
from torch import nn

from natcompanion import optim
from natcompanion.chapters.numbers.small_training import small_network, train


@lru_cache(maxsize=32)
def live_rngd(eps: float, T: int) -> list[float]:
    """Return the costs of RNGD that inverts its metrics every T iterations."""
    model = small_network(nn.ReLU)
    return train(model, optim.RNGD(model, 0.3, eps=eps, period=T, decay=0.95))


@lru_cache(maxsize=1)
def live_sgd() -> list[float]:
    """Return the costs of gradient descent at the same step size."""
    model = small_network(nn.ReLU)
    return train(model, torch.optim.SGD(model.parameters(), 0.3))
