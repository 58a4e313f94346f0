"""Training runs of the PRONG experiments: the deep auto-encoder, its starts, the five methods, and
one search for all.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from natcompanion import layers, optim
from natcompanion.chapters import statistics
from natcompanion.chapters.experiments.kit import Clock
from natcompanion.data import mnist
from natcompanion.likelihoods import Bernoulli, Likelihood

LIKELIHOOD = Bernoulli()
METHODS = ("sgd", "rmsprop", "batchnorm", "prong", "prong+")
STARTS = ("fan-in", "sigmoid", "whitened")
EPS = 1e-2
"""Epsilon where it is not searched."""
NEVER = 100_000
"""A period that no run of the chapter reaches: the first whitening is the only one. The paper's
largest.
"""


@dataclass(frozen=True)
class Choice:
    """A point of the search: step size, momentum, and what the method has besides.

    That is the decay of the mean square for ``rmsprop``, epsilon for ``prong`` and ``prong+``, what
    is added to the eigenvalues of the back-propagated gradients for ``backward``, the damping for
    ``kfac``, and nothing (0) otherwise.
    """

    rate: float
    momentum: float = 0.0
    second: float = 0.0


def images(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 4,000 digits for training and 1,000 for testing, one row each, in float32."""
    load: dict[str, Any] = {"size": size, "seed": 0, "dtype": torch.float32}
    return mnist(split="train+validation", **load)[0].flatten(1), mnist(split="test", **load)[
        0
    ].flatten(1)


def autoencoder(widths: tuple[int, ...], batch_norm: bool = False) -> nn.Sequential:
    """Return the auto-encoder with these widths from the input to the code, mirrored: sigmoid
    units, linear code.

    With ``batch_norm`` every hidden layer's sum is normalized before its non-linearity.
    """
    sizes = [*widths, *widths[-2::-1]]
    parts: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        parts.append(nn.Linear(inputs, outputs, dtype=torch.float32))
        last, code = i == len(sizes) - 1, i == len(widths) - 1
        if batch_norm and not last:
            parts.append(nn.BatchNorm1d(outputs, dtype=torch.float32))
        if not last and not code:
            parts.append(nn.Sigmoid())
    return nn.Sequential(*parts)


@torch.no_grad()
def initialize(
    model: nn.Sequential, start: str, x: torch.Tensor, eps: float, generator: torch.Generator
) -> Any:
    """Draw the weights, set the biases, and return the model.

    ``fan-in``: N(0, 1 / fan-in). ``sigmoid``: uniform within 4 sqrt(6 / (fan-in + fan-out)), the
    rule of Glorot and Bengio for sigmoid units. ``whitened``: N(0, 1 / fan-in) in the whitened
    coordinates of each layer's input.
    """
    for layer in model:
        if isinstance(layer, nn.Linear):
            fan_out, fan_in = layer.weight.shape
            if start == "sigmoid":
                uniform = torch.rand(fan_out, fan_in, generator=generator, dtype=torch.float32)
                layer.weight.copy_((2 * uniform - 1) * 4 * (6 / (fan_in + fan_out)) ** 0.5)
            else:
                noise = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float32)
                layer.weight.copy_(noise * fan_in**-0.5)
            layer.bias.zero_()
    return layers.whitened_initialization(model, x, eps) if start == "whitened" else model


@torch.no_grad()
def reconstruction_error(model: nn.Module, x: torch.Tensor, block: int = 1000) -> float:
    """Return the squared error of the reconstruction, summed over pixels, averaged over images;
    batch norm at rest.
    """
    was_training = model.training
    model.eval()
    total = sum(
        float((LIKELIHOOD.mean(model(part)) - part).square().sum()) for part in x.split(block)
    )
    model.train(was_training)
    return total / len(x)


@torch.no_grad()
def at_rest(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """Return a copy in evaluation mode whose batch normalization uses the statistics of ``x``, not
    the running ones.
    """
    resting = copy.deepcopy(model)
    norms = [layer for layer in resting.modules() if isinstance(layer, _BatchNorm)]
    for layer in norms:
        layer.reset_running_stats()
        layer.momentum = None
    if norms:
        resting.train()(x)
    return resting.eval()


class Run:
    """One training run that can be continued: model, optimizer, stream of batches, and the CPU
    seconds spent.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        likelihood: Likelihood,
        draw: Callable[[], tuple[torch.Tensor, torch.Tensor]],
        clock: Clock,
    ) -> None:
        self.model, self.optimizer, self.likelihood, self.draw, self.clock = (
            model,
            optimizer,
            likelihood,
            draw,
            clock,
        )
        self.diverged = False

    def train(self, updates: int) -> "Run":
        """Make some more updates; a run whose loss is not finite, or absurd, stays where it is."""
        with self.clock:
            for _ in range(updates):
                self.diverged = self.diverged or not self.update()
                if self.diverged:
                    break
        return self

    def update(self) -> bool:
        """Make one update, and return whether the loss is still of this world."""
        x, t = self.draw()
        try:
            loss = self.likelihood.nll(self.model(x), t).mean()
            if not float(loss.detach()) < 1e4:
                return False
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        except ValueError:  # the library's optimizers refuse what is not finite
            return False
        return True

    def error(self, x: torch.Tensor) -> float:
        """Return the reconstruction error, or 1,000 if the run has diverged."""
        error = reconstruction_error(self.model, x)
        return error if not self.diverged and error < 1e3 else 1e3


def autoencoder_run(
    method: str,
    start: str,
    choice: Choice,
    widths: tuple[int, ...],
    x: torch.Tensor,
    generator: torch.Generator,
    *,
    period: int,
    batch: int,
    samples: int,
) -> Run:
    """Return a run of one method on the auto-encoder, from its start."""

    def draw(n: int) -> torch.Tensor:
        return x[torch.randint(len(x), (n,), generator=generator)]

    with Clock() as clock:
        eps = choice.second if method in ("prong", "prong+") else EPS
        model = initialize(
            autoencoder(widths, method in ("batchnorm", "prong+")),
            start,
            draw(samples),
            eps,
            generator,
        )
        optimizer = make_optimizer(method, model, choice, lambda: draw(samples), period=period)

    def pair() -> tuple[torch.Tensor, torch.Tensor]:
        images = draw(batch)
        return images, images

    return Run(model, optimizer, LIKELIHOOD, pair, clock)


def make_optimizer(
    method: str,
    model: nn.Module,
    choice: Choice,
    sample: Callable[[], torch.Tensor],
    *,
    period: int,
) -> torch.optim.Optimizer:
    """Return the optimizer of a method: one of :data:`METHODS`, "backward" (footnote 4), or "kfac".

    PRONG+ is PRONG on a model with batch normalization. ``sample`` gives the inputs for the
    statistics.
    """
    rate, momentum = choice.rate, choice.momentum
    if method in ("sgd", "batchnorm"):
        return torch.optim.SGD(model.parameters(), rate, momentum=momentum)
    if method == "rmsprop":
        return torch.optim.RMSprop(model.parameters(), rate, alpha=choice.second, momentum=momentum)
    if method == "kfac":
        return RefreshedKFAC(model, choice, sample, period)
    more: dict[str, Any] = {"backward_eps": choice.second} if method == "backward" else {}
    eps = choice.second if method in ("prong", "prong+") else EPS
    return optim.PRONG(model, rate, momentum, eps=eps, period=period, sample=sample, **more)


class RefreshedKFAC(optim.KFAC):
    """K-FAC that takes its factors from a new sample before updates 0, ``period``, 2 ``period``,
    ...
    """

    def __init__(
        self, model: nn.Module, choice: Choice, sample: Callable[[], torch.Tensor], period: int
    ) -> None:
        super().__init__(
            model,
            LIKELIHOOD,
            choice.rate,
            damping=choice.second,
            factored=True,
            draws=1,
            generator=torch.Generator().manual_seed(0),
        )
        self.draw_sample, self.period, self.updates = sample, period, 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without a closure
        """Make a step, with fresh factors if they are due."""
        if self.updates % self.period == 0:
            self.refresh(self.draw_sample())
        self.updates += 1
        super().step(closure)


def search(
    make: Callable[[Choice, int], Any],
    choices: list[Choice],
    score: Callable[[Any], float],
    finish: Callable[[Any], dict],
    *,
    short: int,
    kept: int,
    repeats: int,
) -> tuple[Choice, list[dict], list[dict]]:
    """Return the best choice, everything that was tried, and the finished runs of the best choice.

    Every choice gets ``short`` updates from initialization 0. The ``kept`` best of them are trained
    to the end by ``finish`` from ``repeats`` other initializations each, and the lowest mean final
    score wins.
    """
    first = {
        choice: score(make(choice, 0).train(short)) if len(choices) > 1 else 0.0
        for choice in choices
    }
    order = sorted(choices, key=first.__getitem__)
    finished, mean = {}, {}
    for choice in order[:kept]:
        runs = [make(choice, 1 + k) for k in range(repeats)]
        finished[choice] = [finish(run) for run in runs]
        mean[choice] = sum(map(score, runs)) / repeats
    tried = [{**asdict(c), "short": round(first[c], 4), "full": mean.get(c)} for c in order]
    best = statistics.best(mean.items())
    return best, tried, finished[best]


def choices_of(
    rates: tuple[float, ...], momenta: tuple[float, ...], second: tuple[float, ...]
) -> list[Choice]:
    """Return every combination."""
    return [Choice(*point) for point in product(rates, momenta, second)]


def refined(rates: tuple[float, ...], times: int) -> tuple[float, ...]:
    """Return ``times`` as many step sizes over about the same range, evenly between neighbours on a
    logarithmic scale.
    """
    ends = [*rates[1:], rates[-1] * rates[-1] / rates[-2]]
    return tuple(
        float(f"{low * (high / low) ** (k / times):.2g}")
        for low, high in zip(rates, ends, strict=True)
        for k in range(times)
    )


def record(
    run: Run, x: torch.Tensor, x_test: torch.Tensor, updates: int, every: int
) -> dict[str, list]:
    """Train for ``updates`` and return errors and CPU seconds at 0, ``every``, 2 ``every``, ...
    updates.
    """
    points = list(_watched(run, x, x_test, updates, every))
    return {
        key: [point[i] for point in points] for i, key in enumerate(("train", "test", "seconds"))
    }


def _watched(
    run: Run, x: torch.Tensor, x_test: torch.Tensor, updates: int, every: int
) -> Iterator[tuple[float, float, float]]:
    yield run.error(x), run.error(x_test), run.clock.seconds
    for _ in range(updates // every):
        run.train(every)
        yield run.error(x), run.error(x_test), run.clock.seconds
