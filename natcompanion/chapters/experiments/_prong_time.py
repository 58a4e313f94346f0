"""Where the time of PRONG goes: CPU seconds of updates and of the parts of a whitening."""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from natcompanion import layers
from natcompanion._moments import Moments, damped_inverse
from natcompanion.chapters.experiments import _prong_training as training
from natcompanion.chapters.experiments._prong_training import EPS, Choice, Clock

UPDATES = ("sgd", "rmsprop", "batchnorm", "prong", "whitened")
"""Methods whose updates are timed; "whitened" is PRONG on whitened layers, as the paper writes it.
"""
PARTS = ("forward", "moments", "eigenvectors", "projection", "cholesky")
"""Parts of a whitening. Layers that stay plain need the first two and the last, whitened layers all
but the last.
"""


def seconds(work: Callable[..., Any], times: int = 1) -> float:
    """Return the CPU seconds of one call, the mean over ``times``."""
    with Clock() as clock:
        for _ in range(times):
            work()
    return clock.seconds / times


def time(settings: Any) -> dict[str, float | list[float]]:
    """Return the median CPU seconds of every update and part, and the ratios of each repetition."""
    x, _ = training.images(settings.size)
    generator = settings.generator()
    sample = x[torch.randint(len(x), (settings.samples,), generator=generator)]
    runs = {method: _run(method, settings, x, sample, generator) for method in UPDATES}
    rounds: list[dict[str, float]] = []
    for _ in range(settings.repeats):
        measured = {method: seconds(run.update, settings.updates) for method, run in runs.items()}
        rounds.append(measured | _parts(runs["sgd"].model, sample))
    typical = {key: median(r[key] for r in rounds) for key in rounds[0]}
    return typical | {
        key: [_ratios(r, settings.period)[key] for r in rounds]
        for key in _ratios(typical, settings.period)
    }


def _ratios(measured: dict[str, float], period: int) -> dict[str, float]:
    """Return costs per update in units of an update of SGD, and shares of the time of PRONG, in per
    cent.
    """
    statistics = (measured["forward"] + measured["moments"]) / period
    plain = measured["prong"] + statistics + measured["cholesky"] / period
    factoring = (measured["eigenvectors"] + measured["projection"]) / period
    whitened = measured["whitened"] + statistics + factoring
    return {
        "rmsprop_ratio": measured["rmsprop"] / measured["sgd"],
        "batchnorm_ratio": measured["batchnorm"] / measured["sgd"],
        "prong_ratio": plain / measured["sgd"],
        "whitened_ratio": whitened / measured["sgd"],
        "prong_factoring": 100 * measured["cholesky"] / period / plain,
        "prong_statistics": 100 * statistics / plain,
        "whitened_factoring": 100 * factoring / whitened,
        "whitened_statistics": 100 * statistics / whitened,
    }


def _run(
    method: str, settings: Any, x: torch.Tensor, sample: torch.Tensor, generator: torch.Generator
) -> training.Run:
    """Return a run that has made its first update, and does not whiten again."""
    model: nn.Module
    model = training.autoencoder(settings.widths, method == "batchnorm")
    training.initialize(model, "whitened", sample, EPS, generator)
    second = {"rmsprop": 0.9, "prong": EPS, "whitened": EPS}.get(method, 0.0)
    kind = "prong" if method == "whitened" else method
    if method == "whitened":
        model = layers.whiten_model(model)
    optimizer = training.make_optimizer(
        kind, model, Choice(1e-6, 0.0, second), lambda: sample, period=training.NEVER
    )
    batch = x[: settings.batch]
    run = training.Run(model, optimizer, training.LIKELIHOOD, lambda: (batch, batch), Clock())
    return run.train(2)


@torch.no_grad()
def _parts(model: Any, sample: torch.Tensor) -> dict[str, float]:
    """Return the CPU seconds of each part of a whitening, summed over the layers."""
    inputs, h = [], sample
    for layer in model:
        if isinstance(layer, nn.Linear):
            inputs.append((layer, h))
        h = layer(h)
    parts = dict.fromkeys(PARTS, 0.0) | {"forward": seconds(lambda: model(sample))}
    for layer, h in inputs:
        moments = Moments.of(h)
        parts["moments"] += seconds(lambda h=h: Moments.of(h))
        covariance = moments.covariance()
        parts["cholesky"] += seconds(lambda covariance=covariance: damped_inverse(covariance, EPS))
        factoring = seconds(lambda covariance=covariance: layers.whitening_pair(covariance, EPS))
        parts["eigenvectors"] += factoring
        whitened = layers.WhitenedLinear.from_plain(layer)
        whole = seconds(lambda m=moments, w=whitened: w.rewhiten(m.mean, m.covariance(), EPS))
        parts["projection"] += max(0.0, whole - factoring)
    return parts
