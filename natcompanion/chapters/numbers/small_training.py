"""One small training for the figures that run in a kernel: 1,000 small digits, 150 mini-batches."""

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import nn

from natcompanion.data import digits as small_digits

UPDATES, BATCH = 150, 100


@lru_cache(maxsize=1)
def images_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 1,000 small digits, (1000, 64), and their labels."""
    images, labels = small_digits(1000, dtype=torch.float64)
    return images.flatten(1), labels


def small_network(f: type[nn.Module]) -> nn.Sequential:
    """Return the network 64-32-32-10 with non-linearity f, the same at every call."""
    return same_start(lambda linear: [linear(64, 32), f(), linear(32, 32), f(), linear(32, 10)])


def same_start(layers: Callable[[Callable], list[nn.Module]]) -> nn.Sequential:
    """Return a network whose weights do not depend on random state or default dtype; ``layers``
    makes it from a function that makes a linear layer of two widths.

    Examples
    --------
    >>> one, other = (same_start(lambda linear: [linear(2, 3)])[0].weight for _ in range(2))
    >>> one.dtype, torch.equal(one, other)
    (torch.float64, True)
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*layers(partial(nn.Linear, dtype=torch.float64)))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the loss of each mini-batch before its update; a run that diverges ends early."""
    x, t = images_and_labels()
    losses: list[float] = []
    for update in range(UPDATES):
        rows = torch.arange(BATCH * update, BATCH * (update + 1)) % len(x)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), t[rows])
        if not loss < 100:
            break
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def last_loss(losses: list[float]) -> float | None:
    """Return the mean of the last ten losses, None for a run that diverged.

    Examples
    --------
    >>> last_loss([3.0] * 140 + [1.0] * 10), last_loss([3.0, 90.0])
    (1.0, None)
    """
    return sum(losses[-10:]) / 10 if len(losses) == UPDATES else None
