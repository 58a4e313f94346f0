"""A differential equation solved by a small network: the natural gradient in sample space and its
rivals.

Settings are searched on some seeds (preset ``tuning``, grids in SEARCH) and reported from others
(``chapter``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn

from natcompanion.chapters.experiments import Settings, experiment
from natcompanion.chapters.experiments.kit import Clock, looks
from natcompanion.likelihoods import Gaussian
from natcompanion.optim import SampleSpaceNaturalGradient

TARGET = 1e-4
"""The relative error at which a run has arrived."""
KL = 10.0
"""Bound on a step in sample space, in nats; the recipe's."""
GRIDS: dict[str, dict[str, tuple]] = {
    "sgd": {"lr": (1e-2, 2e-2, 4e-2, 6e-2, 8e-2), "momentum": (0.5, 0.8, 0.9, 0.95)},
    "adamw": {"lr": (0.03, 0.1, 0.2, 0.3, 1.0), "momentum": (0.5, 0.8, 0.9, 0.95)},
    "muon": {"lr": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), "momentum": (0.5, 0.8, 0.9, 0.95)},
    "lbfgs": {"lr": (0.25, 0.4, 0.55, 0.7, 1.0), "second": (10.0, 30.0, 100.0, 300.0)},
    "sample": {
        "second": (1e-1, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8),
        "momentum": (0.0, 0.3),
    },
}
"""What the search tries: twenty settings a method, after narrower searches whose choices for SGD,
Muon and the memory of L-BFGS lay at an edge.
"""
FIXED: dict[str, dict[str, float]] = {"lbfgs": {"momentum": 0.0}, "sample": {"lr": 1.0}}
LENGTH = {"sgd": 2000, "adamw": 2000, "muon": 2000, "lbfgs": 800, "sample": 150}
"""Updates of a reported run: at least twice as many seconds for each rival as in sample space."""
EVERY = {"sgd": 20, "adamw": 20, "muon": 20, "lbfgs": 5, "sample": 1}
"""Updates between two looks at the error."""


@dataclass(frozen=True, kw_only=True)
class AfterPoisson(Settings):
    """One run of a method.

    ``momentum`` is the first decay for "adamw" and for what "muon" leaves to AdamW. ``second`` is
    the damping of "sample", and the length of the memory of "lbfgs".
    """

    method: str = "sample"
    lr: float = 1.0
    momentum: float = 0.0
    second: float = 1e-6
    updates: int = 20
    every: int = 1
    stop: bool = False


class Poisson(nn.Module):
    """The residuals of -u'' = π² sin πx with u = 0 at 0 and 1, which sin πx solves."""

    def __init__(self, first: nn.Linear, last: nn.Linear) -> None:
        super().__init__()
        self.first, self.last = first, last

    def u(self, x: torch.Tensor) -> torch.Tensor:
        """Return the solution that the network stands for."""
        return x * (1 - x) * self.last(torch.tanh(self.first(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return u'' + π² sin πx."""
        return self.bend(x) + math.pi**2 * torch.sin(math.pi * x)

    def bend(self, x: torch.Tensor) -> torch.Tensor:
        """Return u'', written out for one layer of tanh units: the fastest way for every method."""
        t, w, v = torch.tanh(self.first(x)), self.first.weight[:, 0], self.last.weight[0]
        dt = 1 - t**2
        N, slope, bend = t @ v + self.last.bias, (dt * w) @ v, (-2 * t * dt * w**2) @ v
        x = x[:, 0]
        return (-2 * N + 2 * (1 - 2 * x) * slope + x * (1 - x) * bend)[:, None]

    def error(self) -> float:
        """Return the relative error of u at 201 points."""
        x = torch.linspace(0, 1, 201, dtype=torch.float64)[:, None]
        wanted = torch.sin(math.pi * x)
        with torch.no_grad():
            return float((self.u(x) - wanted).norm() / wanted.norm())


def network(generator: torch.Generator) -> Poisson:
    """Return the network of 32 tanh units, its weights drawn as torch draws them."""
    first, last = nn.Linear(1, 32, dtype=torch.float64), nn.Linear(32, 1, dtype=torch.float64)
    for layer in (first, last):
        bound = layer.in_features**-0.5
        for p in (layer.weight, layer.bias):
            nn.init.uniform_(p, -bound, bound, generator=generator)
    return Poisson(first, last)


def search(method: str) -> list[dict[str, Any]]:
    """Return the settings that are tried for a method."""
    grid, how = GRIDS[method], {"updates": LENGTH[method], "every": EVERY[method]}
    common: dict[str, Any] = {"method": method, **how, **FIXED.get(method, {})}
    if "second" not in grid:
        common["second"] = 0.0
    return [common | dict(zip(grid, point, strict=True)) for point in product(*grid.values())]


@experiment(
    "after_poisson",
    quick=AfterPoisson(),
    chapter=AfterPoisson(),
    tuning=AfterPoisson(stop=True),
)
def poisson(settings: AfterPoisson) -> dict:
    """Relative error of one method against updates and processor seconds, on 40 points."""
    model = network(settings.generator(1))
    x = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    with (clock := Clock()):
        step = stepper(settings, model, x)
    curve, seconds, arrived = [model.error()], [0.0], None
    at_once = settings.every if settings.method == "lbfgs" else 1  # updates of one call of the step
    for call in looks(step, settings.updates // at_once, settings.every // at_once, clock):
        update, error = at_once * call, model.error()
        if not error < 10 * curve[0]:
            break
        curve.append(error)
        seconds.append(clock.seconds)
        if arrived is None and error <= TARGET:
            arrived = (update, clock.seconds)
            if settings.stop:
                break
    return {
        "error": [float(f"{error:.4g}") for error in curve],
        "clock": [round(x, 4) for x in seconds],
        "least": min(curve),
        "updates_to_target": arrived and arrived[0],
        "seconds_to_target": arrived and arrived[1],
        "lateness": lateness(settings, curve, arrived and arrived[0]),
    }


def lateness(settings: AfterPoisson, curve: list[float], arrived: int | None) -> float | None:
    """Return what a search compares: the updates to the target; of a run that does not arrive, all
    updates times last error over target; None if it broke off.
    """
    if arrived is not None:
        return float(arrived)
    whole = len(curve) == 1 + settings.updates // settings.every
    return settings.updates * curve[-1] / TARGET if whole else None


def stepper(settings: AfterPoisson, model: Poisson, x: torch.Tensor) -> Callable[[], object]:
    """Return the function that makes one update with all points."""
    lr, momentum, second = settings.lr, settings.momentum, settings.second
    zero = torch.zeros_like(x)
    if settings.method == "sample":
        solving = SampleSpaceNaturalGradient(
            model, Gaussian(), lr, damping=second, kl=KL, momentum=momentum
        )
        return lambda: solving.step(x, zero)
    followers = optimizers(settings, list(model.parameters()))

    def loss() -> torch.Tensor:
        for optimizer in followers:
            optimizer.zero_grad()
        value = Gaussian().nll(model(x), zero).mean()
        value.backward()
        return value

    if settings.method == "lbfgs":
        return lambda: followers[0].step(lambda: float(loss().detach()))

    def step() -> None:
        loss()
        for optimizer in followers:
            optimizer.step()

    return step


def optimizers(settings: AfterPoisson, weights: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a method that follows gradients: two for Muon, one for the rest."""
    lr, momentum = settings.lr, settings.momentum
    plain: dict[str, Any] = {"lr": lr, "betas": (momentum, 0.999), "weight_decay": 0.0}
    match settings.method:
        case "sgd":
            return [torch.optim.SGD(weights, lr, momentum=momentum)]
        case "adamw":
            return [torch.optim.AdamW(weights, **plain)]
        case "muon":
            flat, rest = [w for w in weights if w.ndim == 2], [w for w in weights if w.ndim != 2]
            orthogonal = torch.optim.Muon(
                flat, lr, momentum=momentum, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            )
            return [orthogonal, torch.optim.AdamW(rest, **plain)]
        case "lbfgs":  # all iterations to the next look in one call, and none of torch's reasons
            # to stop: a call looks once more at the loss where the one before has ended
            memory = int(settings.second)
            options: dict[str, Any] = {"line_search_fn": "strong_wolfe", "history_size": memory}
            options |= {"max_iter": settings.every, "max_eval": 25 * settings.every}
            options |= {"tolerance_grad": 0.0, "tolerance_change": 0.0}
            return [torch.optim.LBFGS(weights, lr, **options)]
    raise ValueError(f"method: expected one of {', '.join(GRIDS)}, got {settings.method!r}")
