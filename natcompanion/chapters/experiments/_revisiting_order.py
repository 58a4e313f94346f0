"""How much the order of the data matters: Figure 3 of revisiting, on a stream of deformed
digits.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from natcompanion.chapters.experiments._revisiting_training import (
    LIKELIHOOD,
    cross_entropy,
    draws,
    error,
    mlp,
)
from natcompanion.data import deformed_digits
from natcompanion.optim import KFAC, NaturalGradient

Stream = tuple[torch.Tensor, torch.Tensor]


def stream(settings: Any, start: int, n: int, split: str = "train") -> Stream:
    """Return a stretch of the endless stream of this seed: pixels (n, d) and labels."""
    x, t = deformed_digits(n, start=start, seed=settings.seed, size=settings.size, split=split)
    return x.flatten(1).float().to(settings.device), t.to(settings.device)


def train_online(settings: Any, data: Stream, make: Callable) -> torch.nn.Module:
    """Return the network of this seed after one pass through the stream."""
    model = mlp(settings.size**2, settings.hidden, draws(settings, 1)).to(settings.device)
    step = make(model)
    for x, t in zip(data[0].split(settings.batch), data[1].split(settings.batch), strict=True):
        step(x, t)
    return model


def natural(settings: Any, rate: float) -> Callable:
    """Return what makes a step of the natural gradient, with the metric of the same batch."""

    def make(model: torch.nn.Module) -> Callable:
        optimizer = NaturalGradient(
            model,
            LIKELIHOOD,
            rate,
            damping=settings.damping,
            max_iter=settings.max_iter,
            rtol=settings.rtol,
        )
        return optimizer.step

    return make


def plain(rate: float) -> Callable:
    """Return what makes a step of minibatch SGD."""

    def make(model: torch.nn.Module) -> Callable:
        optimizer = torch.optim.SGD(model.parameters(), rate)

        def step(x: torch.Tensor, t: torch.Tensor) -> None:
            optimizer.zero_grad()
            LIKELIHOOD.nll(model(x), t).mean().backward()
            optimizer.step()

        return step

    return make


def replaced(settings: Any, base: Stream, segment: int, replacement: int) -> Stream:
    """Return the stream with one segment replaced by digits that are not in it."""
    size = settings.segment
    fresh_start = len(base[0]) + (segment * settings.replacements + replacement) * size
    fresh = stream(settings, fresh_start, size)
    here = slice(segment * size, (segment + 1) * size)
    x, t = base[0].clone(), base[1].clone()
    x[here], t[here] = fresh
    return x, t


def variances(settings: Any, base: Stream, held_out: torch.Tensor, make: Callable) -> list[float]:
    """Return, for each segment, the variance of the outputs over its replacements, averaged over
    inputs and classes.
    """
    result = []
    for segment in range(settings.segments):
        outputs = []
        for replacement in range(settings.replacements):
            model = train_online(settings, replaced(settings, base, segment, replacement), make)
            with torch.no_grad():
                outputs.append(LIKELIHOOD.mean(model(held_out)))
        result.append(float(torch.stack(outputs).double().var(0).mean()))
    return result


def order_speed(settings: Any) -> dict:
    """Return the curves of SGD at two step sizes, and at the smaller one with a stream ``longer``
    times as long.
    """
    n = 2 * settings.segments * settings.segment
    held_out = stream(settings, 0, settings.held_out, "test")[0]
    base, longer = stream(settings, 0, n), stream(settings, 0, settings.longer * n)
    return {
        "fast": variances(settings, base, held_out, plain(settings.rate)),
        "slow": variances(settings, base, held_out, plain(settings.slow)),
        "longer": variances(settings, longer, held_out, plain(settings.slow)),
    }


def order(settings: Any) -> dict:
    """Return the two curves, at matched validation error.

    SGD takes the step size of lowest validation error. The natural gradient takes the one whose
    validation error is nearest to that of SGD. The stream is twice as long as the segments
    together, as in the paper.
    """
    base = stream(settings, 0, 2 * settings.segments * settings.segment)
    validation = stream(settings, 0, settings.held_out, "validation")
    held_out = stream(settings, 0, settings.held_out, "test")[0]

    def search(
        rates: tuple[float, ...], make: Callable
    ) -> tuple[dict[float, float], dict[float, float]]:
        models = {rate: train_online(settings, base, make(rate)) for rate in rates}
        errors = {rate: error(model, *validation) for rate, model in models.items()}
        return errors, {rate: cross_entropy(model, *validation) for rate, model in models.items()}

    sgd, sgd_loss = search(settings.sgd_rates, plain)
    ours, our_loss = search(settings.rates, lambda rate: natural(settings, rate))
    sgd_rate = min(sgd, key=lambda rate: (sgd[rate], rate))
    rate = min(ours, key=lambda rate: (abs(ours[rate] - sgd[sgd_rate]), rate))
    curves = {
        "natural": variances(settings, base, held_out, natural(settings, rate)),
        "sgd": variances(settings, base, held_out, plain(sgd_rate)),
    }
    return {
        "natural_error": ours[rate],
        "natural_loss": our_loss[rate],
        "natural_rate": rate,
        "sgd_error": sgd[sgd_rate],
        "sgd_loss": sgd_loss[sgd_rate],
        "sgd_rate": sgd_rate,
        "natural_errors": list(ours.values()),
        "sgd_errors": list(sgd.values()),
        **curves,
        "ratio": sum(curves["sgd"]) / sum(curves["natural"]),
    }


def stepper(settings: Any) -> Callable:
    """Return what makes a step of one of the methods of the frontier, each with its momentum.

    The metric is that of the same batch; K-FAC renews its factors every ``period`` steps. Muon
    moves the weights, and AdamW at the same step size the biases.
    """
    lr, mu = settings.lr, settings.momentum
    common = {"lr": lr, "momentum": mu}
    adamw: Any = partial(torch.optim.AdamW, lr=lr, betas=(mu, 0.999), weight_decay=0.0)
    muon: Any = partial(
        torch.optim.Muon, weight_decay=0.0, adjust_lr_fn="match_rms_adamw", **common
    )

    def make(model: torch.nn.Module) -> Callable:
        if settings.method == "natural":
            solver = {"max_iter": settings.max_iter, "rtol": settings.rtol}
            return NaturalGradient(
                model, LIKELIHOOD, damping=settings.damping, **solver, **common
            ).step
        weights = [p for p in model.parameters() if p.ndim == 2]
        biases = [p for p in model.parameters() if p.ndim == 1]
        optimizers: list[Any] = {
            "sgd": lambda: [torch.optim.SGD(model.parameters(), **common)],
            "adamw": lambda: [adamw(model.parameters())],
            "muon": lambda: [muon(weights), adamw(biases)],
            "kfac": lambda: [KFAC(model, LIKELIHOOD, damping=settings.damping, **common)],
        }[settings.method]()
        taken = 0

        def step(x: torch.Tensor, t: torch.Tensor) -> None:
            nonlocal taken
            if settings.method == "kfac" and taken % settings.period == 0:
                optimizers[0].refresh(x)
            taken += 1
            model.zero_grad()
            LIKELIHOOD.nll(model(x), t).mean().backward()
            for optimizer in optimizers:
                optimizer.step()

        return step

    return make


def frontier(settings: Any) -> dict:
    """Return the validation error of one method at one setting, and for each replaced segment the
    variance of the outputs; None if a run diverges.

    The two runs that differ in one segment give half their squared difference: an estimate of the
    variance without bias. The error is the mean over all runs.
    """
    base = stream(settings, 0, 2 * settings.segments * settings.segment)
    validation = stream(settings, 0, settings.held_out, "validation")
    held_out = stream(settings, 0, settings.held_out, "test")[0]
    streams = [base, *(replaced(settings, base, segment, 0) for segment in settings.replaced)]
    try:
        models = [train_online(settings, each, stepper(settings)) for each in streams]
    except ValueError:  # the loss or a parameter is no longer finite
        return {"error": None, "variance": None}
    with torch.no_grad():
        first, *others = (LIKELIHOOD.mean(model(held_out)).double() for model in models)
    variance = [float((other - first).square().mean()) / 2 for other in others]
    if not all(map(math.isfinite, variance)):
        return {"error": None, "variance": None}
    errors = [error(model, *validation) for model in models]
    return {"error": sum(errors) / len(errors), "variance": variance}
