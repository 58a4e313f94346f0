"""One comparison of the methods that a reader would choose among, on three problems, and on the
network of RNGD's Figure 5.

Its settings are searched on some seeds (preset ``tuning``) and reported from others
(``chapter``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn

from natcompanion import optim
from natcompanion.chapters.experiments import Settings, experiment
from natcompanion.chapters.experiments import _prong_training as prong
from natcompanion.chapters.experiments import _rfim_training as rfim
from natcompanion.chapters.experiments.kit import Clock, fed, looks
from natcompanion.data import digits
from natcompanion.likelihoods import Bernoulli, Categorical, Likelihood

METHODS = (
    "sgd",
    "momentum",
    "adamw",
    "muon",
    "batchnorm",
    "natural",
    "sample",
    "kfac",
    "prong",
    "prong+",
    "rngd",
)
NORMALIZED = ("batchnorm", "prong+")
"""The methods whose model has batch normalization."""
WIDTHS = (196, 100, 50, 25, 10)
"""Of the auto-encoder in PRONG's chapter."""
TARGETS = {"autoencoder": 3.5, "logistic": 1e-4, "convolution": 0.05, "figure5": 0.01}
"""The score at which a run has arrived: squared error of an image, excess loss, training loss."""

Step = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class Problem:
    """Data, a model to train, and the score that has to fall to the target.

    ``x`` and ``t`` hold all examples, of which a step sees ``batch``; statistics of the inputs are
    taken from ``samples`` of them.
    """

    likelihood: Likelihood
    x: torch.Tensor
    t: torch.Tensor
    model: nn.Module
    score: Callable[[nn.Module], float]
    batch: int
    samples: int = 1000


@dataclass(frozen=True, kw_only=True)
class Compare(Settings):
    """One run of a method on a problem.

    ``momentum`` is the first decay for "adamw" and for what "muon" leaves to AdamW. ``second`` is
    the damping of "natural", "sample" and "kfac", and epsilon of "prong", "prong+" and "rngd".
    ``start`` is that of the auto-encoder. Statistics are renewed every ``period`` updates. The
    score is taken every ``every`` updates; with ``stop`` the run ends when it has arrived.
    """

    problem: str = "logistic"
    method: str = "momentum"
    lr: float = 0.1
    momentum: float = 0.9
    second: float = 0.0
    start: str = "sigmoid"
    period: int = 100
    updates: int = 20
    every: int = 10
    stop: bool = False


@experiment("compare", quick=Compare(), chapter=Compare(), tuning=Compare(stop=True))
def compare(settings: Compare) -> dict:
    """Score of one method against updates and processor seconds, and when it arrives at the
    target.
    """
    problem = PROBLEMS[settings.problem](settings)
    with (clock := Clock()):
        step = stepper(settings, problem)
    target, curve, seconds = TARGETS[settings.problem], [problem.score(problem.model)], [0.0]
    fed_step, arrived = fed(step, problem.x, problem.t, problem.batch, settings.generator(2)), None
    for update in looks(fed_step, settings.updates, settings.every, clock):
        curve.append(problem.score(problem.model))
        seconds.append(clock.seconds)
        if not curve[-1] < 10 * curve[0]:
            break
        if arrived is None and curve[-1] <= target:
            arrived = (update, clock.seconds)
            if settings.stop:
                break
    finite = [x for x in curve if math.isfinite(x)]
    return {
        "score": [float(f"{x:.4g}") for x in finite],
        "clock": [round(x, 4) for x in seconds[: len(finite)]],
        "best": min(finite),
        "updates_to_target": arrived and arrived[0],
        "seconds_to_target": arrived and arrived[1],
        "lateness": _lateness(settings, curve, arrived and arrived[0], target),
    }


def _lateness(
    settings: Compare, curve: list[float], arrived: int | None, target: float
) -> float | None:
    """Return what a search compares: the updates to the target; of a run that does not arrive, all
    updates times last score over target; None if it broke off.
    """
    if arrived is not None:
        return float(arrived)
    whole = len(curve) == 1 + settings.updates // settings.every
    return settings.updates * curve[-1] / target if whole and curve[-1] < curve[0] else None


# ---- The problems


def autoencoder(settings: Compare) -> Problem:
    """The auto-encoder of PRONG's chapter, on 4,000 digits of 14 x 14 pixels."""
    x, _ = prong.images(14)
    generator = settings.generator(1)
    model = prong.initialize(
        prong.autoencoder(WIDTHS, settings.method in NORMALIZED),
        settings.start,
        x[torch.randperm(len(x), generator=generator)[:1000]],
        prong.EPS,
        generator,
    )
    return Problem(
        prong.LIKELIHOOD, x, x, model, lambda m: prong.reconstruction_error(m, x[:1000]), batch=128
    )


def logistic(settings: Compare) -> Problem:
    """Logistic regression on 1,000 correlated inputs of 20 features, of scales from 0.1 to 10.

    All examples in every step; the score is the excess of the loss over its minimum.
    """
    generator, likelihood = settings.generator(1), Bernoulli()

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scales = torch.logspace(-1, 1, 20, dtype=torch.float64)
    x = (normal(1000, 20) + normal(1000, 1) + 1) * scales
    w = 2 * normal(20) / scales / 20**0.5
    t = torch.bernoulli(torch.sigmoid((x - x.mean(0)) @ w), generator=generator)[:, None]
    least = _least_loss(x, t)
    norm = [nn.BatchNorm1d(20, dtype=torch.float64)] if settings.method in NORMALIZED else []
    linear = nn.Linear(20, 1, dtype=torch.float64)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    model = nn.Sequential(*norm, linear)
    return Problem(
        likelihood, x, t, model, lambda m: _loss(m, likelihood, x, t) - least, batch=len(x)
    )


def convolution(settings: Compare) -> Problem:
    """A network of two convolutions and a linear layer on scikit-learn's digits of 8 x 8 pixels."""
    x, t = digits(split="train+validation", dtype=torch.float32)
    likelihood, norm = Categorical(), settings.method in NORMALIZED
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=settings.generator(1))))
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((1, 8, 16)):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, dtype=torch.float32))
            layers += [nn.BatchNorm2d(outputs, dtype=torch.float32)] if norm else []
            layers.append(nn.ReLU())
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10, dtype=torch.float32))
    x = x[:, None]  # one channel
    return Problem(likelihood, x, t, model, lambda m: _loss(m, likelihood, x, t), batch=64)


def figure5(settings: Compare) -> Problem:
    """The network of 784-64-64-64-10 ReLU units of RFIM's Figure 5, on 4,000 digits."""
    split, likelihood = rfim.load("digits", settings.seed), Categorical()
    normalization = "bnb" if settings.method in NORMALIZED else ""
    model = rfim.network((split.x.shape[1], 64, 64, 64, 10), normalization, settings.generator(1))
    x, t = split.x, split.t
    return Problem(likelihood, x, t, model, lambda m: _loss(m, likelihood, x, t), batch=100)


PROBLEMS: dict[str, Callable[[Compare], Problem]] = {
    "autoencoder": autoencoder,
    "logistic": logistic,
    "convolution": convolution,
    "figure5": figure5,
}


@torch.no_grad()
def _loss(model: nn.Module, likelihood: Likelihood, x: torch.Tensor, t: torch.Tensor) -> float:
    """Return the mean loss in nats, batch normalization at rest."""
    model.eval()
    loss = float(likelihood.nll(model(x), t).mean())
    model.train()
    return loss


def _least_loss(x: torch.Tensor, t: torch.Tensor) -> float:
    """Return the least mean loss of a logistic regression, by Newton's method in SciPy."""
    X, y = np.c_[x.numpy(), np.ones(len(x))], t.numpy()[:, 0]
    scale = X.std(0) + (X.std(0) == 0)
    X = X / scale

    def loss(w: np.ndarray) -> float:
        return float((np.logaddexp(0, X @ w) - y * (X @ w)).mean())

    def gradient(w: np.ndarray) -> np.ndarray:
        return X.T @ (1 / (1 + np.exp(-X @ w)) - y) / len(X)

    def hessian(w: np.ndarray) -> np.ndarray:
        p = 1 / (1 + np.exp(-X @ w))
        return (X.T * (p * (1 - p))) @ X / len(X)

    found = minimize(
        loss, np.zeros(X.shape[1]), jac=gradient, hess=hessian, method="trust-exact", tol=1e-12
    )
    return float(found.fun)


# ---- The methods


def stepper(settings: Compare, problem: Problem) -> Step:
    """Return the function that makes one update from a batch."""
    model, likelihood = problem.model, problem.likelihood
    lr, momentum, second = settings.lr, settings.momentum, settings.second
    if settings.method in ("natural", "sample"):
        kind: Any = {
            "natural": optim.NaturalGradient,
            "sample": optim.SampleSpaceNaturalGradient,
        }[settings.method]
        solving = kind(model, likelihood, lr, damping=second, momentum=momentum)
        return lambda x, t: solving.step(x, t)
    statistics = settings.generator(3)

    def sample() -> torch.Tensor:
        order = torch.randperm(len(problem.x), generator=statistics)
        return problem.x[order[: problem.samples]]

    if settings.method == "kfac":
        kfac = optim.KFAC(
            model,
            likelihood,
            lr,
            momentum=momentum,
            damping=second,
            factored=True,
            draws=1,
            generator=statistics,
        )
        return _refreshed(kfac, lambda: kfac.refresh(sample()), problem, settings.period)
    return _plain(optimizers(settings, model, sample), problem)


def optimizers(
    settings: Compare, model: nn.Module, sample: Callable[[], torch.Tensor]
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a method that follows gradients: two for Muon, one for the rest."""
    lr, momentum, second = settings.lr, settings.momentum, settings.second
    betas, weights = (momentum, 0.999), list(model.parameters())
    if settings.method in ("sgd", "momentum", "batchnorm"):
        return [torch.optim.SGD(weights, lr, momentum=momentum)]
    if settings.method == "adamw":
        return [torch.optim.AdamW(weights, lr, betas=betas, weight_decay=0.0)]
    if settings.method == "muon":
        flat, rest = [w for w in weights if w.ndim == 2], [w for w in weights if w.ndim != 2]
        return [
            torch.optim.Muon(
                flat, lr, momentum=momentum, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(rest, lr, betas=betas, weight_decay=0.0),
        ]
    if settings.method in ("prong", "prong+"):
        kind = optim.PRONG if settings.method == "prong" else optim.PRONGPlus
        return [kind(model, lr, momentum, eps=second, period=settings.period, sample=sample)]
    decay = 0.5 ** (1 / settings.period)  # half of a metric is older than one period
    return [
        optim.RNGD(model, lr, momentum=momentum, eps=second, period=settings.period, decay=decay)
    ]


def _plain(optimizers: list[torch.optim.Optimizer], problem: Problem) -> Step:
    """Return the step of optimizers that follow gradients."""

    def step(x: torch.Tensor, t: torch.Tensor) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        problem.likelihood.nll(problem.model(x), t).mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def _refreshed(
    optimizer: torch.optim.Optimizer, refresh: Callable[[], Any], problem: Problem, period: int
) -> Step:
    """Return the same with fresh factors before updates 0, ``period``, 2 ``period``, ..."""
    step, count = _plain([optimizer], problem), 0

    def refreshed(x: torch.Tensor, t: torch.Tensor) -> None:
        nonlocal count
        if count % period == 0:
            refresh()
        count += 1
        step(x, t)

    return refreshed
