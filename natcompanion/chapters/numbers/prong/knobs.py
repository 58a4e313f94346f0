"""A small training run for the reader's hand: PRONG on small digits, at any ε, T and step size."""

from functools import lru_cache

import torch
from torch import nn

from natcompanion import optim
from natcompanion.chapters.numbers.small_training import images_and_labels, small_network, train


@lru_cache(maxsize=32)
def live_prong(eps: float, T: int, rate: float) -> list[float]:
    """Return the losses of PRONG that whitens every T updates."""
    model = small_network(nn.Tanh)
    sample = images_and_labels()[0][:500]
    return train(model, optim.PRONG(model, rate, eps=eps, period=T, sample=sample))


@lru_cache(maxsize=32)
def live_sgd(rate: float) -> list[float]:
    """Return the losses of gradient descent on the same network and the same batches."""
    model = small_network(nn.Tanh)
    return train(model, torch.optim.SGD(model.parameters(), rate))
