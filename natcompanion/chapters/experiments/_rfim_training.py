"""Training runs of Figure 5: data, networks with and without batch normalization, and the
methods.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from natcompanion.chapters.experiments.kit import Clock, batches
from natcompanion.data import fashion_mnist, mnist
from natcompanion.optim import RNGD
from natcompanion.relative import sharp_ratio

METHODS = (
    "sgd",
    "sgd_bna",
    "sgd_bnb",
    "adam",
    "adam_bna",
    "adam_bnb",
    "rngd",
    "rngd_linear",
    "fast",
    "fast_linear",
)
"""``rngd`` has the period and decay of the settings, ``fast`` a shorter period and memory;
``_linear`` sets nu to 1.
"""

FAST = {"period": 20, "decay": 0.98}


@dataclass(frozen=True)
class Split:
    """Images (n, 784) and labels for training and for the test."""

    x: torch.Tensor
    t: torch.Tensor
    test: tuple[torch.Tensor, torch.Tensor]


def load(data: str, seed: int) -> Split:
    """Return 4,000 and 1,000 of the digits, or 55,000 and 10,000 images of Fashion-MNIST or of
    MNIST.
    """
    options: dict[str, Any] = {"seed": seed, "dtype": torch.float32}
    if data == "digits":
        x, t = mnist(split="train+validation", **options)
        x_test, t_test = mnist(split="test", **options)
    else:
        get: Any
        get = {"fashion": fashion_mnist, "mnist": lambda n=None, **kw: mnist(n, full=True, **kw)}[
            data
        ]
        x, t = get(55_000, split="train+validation", **options)
        x_test, t_test = get(split="test", **options)
    return Split(x.flatten(1), t, (x_test.flatten(1), t_test))


def network(
    sizes: tuple[int, ...], normalization: str, generator: torch.Generator
) -> nn.Sequential:
    """Return a ReLU network: weights N(0, 2 / fan-in), biases 0.

    Batch normalization of the hidden units, with an epsilon of 1e-3 and a learned scale and shift,
    stands before the activation ("bnb"), after it ("bna"), or nowhere ("").
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            noise = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float32)
            layer.weight.copy_(math.sqrt(2 / inputs) * noise)
            layer.bias.zero_()
        unit: list[nn.Module] = [nn.ReLU()]
        if normalization:
            unit.insert(0 if normalization == "bnb" else 1, nn.BatchNorm1d(outputs, eps=1e-3))
        layers += [layer, *unit]
    return nn.Sequential(*layers[: -len(unit)]).float()


def optimizer(
    method: str,
    model: nn.Module,
    rate: float,
    *,
    eps: float,
    period: int,
    decay: float,
    every: int = 0,
) -> torch.optim.Optimizer:
    """Return the optimizer of a method; ``every`` is RNGD's ``statistics_every``, 0 its default."""
    name, _, variant = method.partition("_")
    if name in ("sgd", "adam"):
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
        return kind(model.parameters(), rate)
    timing: dict[str, Any] = FAST if name == "fast" else {"period": period, "decay": decay}
    return RNGD(
        model, rate, eps=eps, **timing, statistics_every=every or None, blocks=variant or None
    )


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    t: torch.Tensor,
    steps: int,
    batch: int,
    generator: torch.Generator,
    watch: Callable[[int], None] = lambda step: None,
) -> tuple[torch.Tensor, float]:
    """Train in place and return the mini-batch costs and the CPU seconds an iteration took.

    Ends early, with an infinite cost, if the cost is no longer finite or exceeds 1000.
    ``watch(step)`` is called after each step; its time does not count.
    """
    costs, clock = torch.full((steps,), torch.inf), Clock()
    for step, index in zip(range(steps), batches(len(x), batch, generator), strict=False):
        with clock:
            optimizer.zero_grad()
            cost = nn.functional.cross_entropy(model(x[index]), t[index])
            cost.backward()
            if not float(cost.detach()) < 1000:
                return costs, clock.seconds / max(step, 1)
            try:
                optimizer.step()
            except ValueError:  # a gradient is no longer finite
                return costs, clock.seconds / max(step, 1)
        costs[step] = cost.detach()
        watch(step + 1)
    return costs, clock.seconds / steps


@torch.no_grad()
def evaluate(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, block: int = 5000
) -> tuple[float, float]:
    """Return the mean cost, infinite if the model has diverged, and the percentage of errors, in
    evaluation mode.
    """
    model.eval()
    cost = wrong = 0.0
    for a, b in zip(x.split(block), t.split(block), strict=True):
        r = model(a)
        cost += float(nn.functional.cross_entropy(r, b, reduction="sum"))
        wrong += int((r.argmax(1) != b).sum())
    model.train()
    return (cost / len(x) if math.isfinite(cost) else math.inf), 100 * wrong / len(x)


def smoothed(costs: torch.Tensor, width: int) -> list[float]:
    """Return the means of successive ``width`` costs, four digits each."""
    return [short(value) for value in costs.unfold(0, width, width).double().mean(1).tolist()]


def short(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")


def summary(costs: torch.Tensor, taus: tuple[float, ...]) -> dict[str, list[float]]:
    """Return mean and standard deviation of the last share tau of the costs, for each tau; infinite
    if training diverged.
    """
    if not bool(torch.isfinite(costs).all()):
        return {"sharp_mean": [math.inf] * len(taus), "sharp_std": [math.inf] * len(taus)}
    pairs = [sharp_ratio(costs, tau) for tau in taus]
    return {"sharp_mean": [p[0] for p in pairs], "sharp_std": [p[1] for p in pairs]}
