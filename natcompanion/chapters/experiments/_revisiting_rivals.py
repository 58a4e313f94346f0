"""Restricted digits with momentum for every method: one method at one setting a run."""

import torch
from torch import nn

from natcompanion.chapters.experiments import _revisiting_training as training
from natcompanion.chapters.experiments import compare
from natcompanion.chapters.experiments.kit import Clock, fed, looks
from natcompanion.data import mnist
from natcompanion.optim import NaturalGradient

PART = 400
"""Digits of a part. The 5,000 have twelve, so that twelve seeds share no labelled digit."""

METRIC = ("natural", "unlabelled")
"""The natural gradient, its metric on the batch, or on as many unlabelled inputs."""


def twelfth(seed: int, size: int) -> training.Split:
    """Return the digits of a seed from 0 to 11: the part of its number is labelled, the next is for
    validation, the one after for the test, and the nine others are unlabelled.

    Raises
    ------
    ValueError
        If there is no such part.
    """
    if not 0 <= seed < 12:
        raise ValueError(f"seed: expected 0 to 11, one for each part of the digits, got {seed}")
    images, t = mnist(size=size, split="all", seed=0, dtype=torch.float32)
    x, t = (part[: 12 * PART].roll(-PART * seed, 0) for part in (images.flatten(1), t))
    validation, test = slice(PART, 2 * PART), slice(2 * PART, 3 * PART)
    return training.Split(
        x[:PART],
        t[:PART],
        (x[validation], t[validation]),
        (x[test], t[test]),
        x[3 * PART :],
    )


def stepper(
    setting: compare.Compare, model: nn.Module, split: training.Split, batch: int
) -> compare.Step:
    """Return the function that makes one update of a method from a batch of labelled digits."""
    if setting.method not in METRIC:
        problem = compare.Problem(
            training.LIKELIHOOD, split.x, split.t, model, lambda _: 0.0, batch, len(split.x)
        )
        return compare.stepper(setting, problem)
    optimizer = NaturalGradient(
        model,
        training.LIKELIHOOD,
        setting.lr,
        damping=setting.second,
        momentum=setting.momentum,
        max_iter=10,
    )
    generator = setting.generator(3)

    def step(x: torch.Tensor, t: torch.Tensor) -> None:
        if setting.method == "unlabelled":
            drawn = torch.randint(len(split.unlabelled), (len(x),), generator=generator)
            optimizer.step(x, t, split.unlabelled[drawn])
        else:
            optimizer.step(x, t)

    return step


def race(
    setting: compare.Compare,
    model: nn.Module,
    split: training.Split,
    *,
    batch: int,
    every: int,
    target: float,
) -> list[dict[str, float]]:
    """Train until the loss on the labelled digits is at most ``target``, for ``setting.updates`` at
    the most, and return what is seen every so many updates, the start included.
    """
    clock = Clock()
    with clock:
        step = stepper(setting, model, split, batch)
    points = [_seen(model, split, 0, clock)]
    fed_step = fed(step, split.x, split.t, batch, setting.generator(2))
    for update in looks(fed_step, setting.updates, every, clock):
        points.append(_seen(model, split, update, clock))
        train = points[-1]["train"]
        if train <= target or not train < 10 * points[0]["train"]:
            break
    return points


def _seen(model: nn.Module, split: training.Split, update: int, clock: Clock) -> dict[str, float]:
    """Return where a run is: loss on labelled and on validation digits, and test error."""
    return {
        "update": update,
        "seconds": clock.seconds,
        "train": training.cross_entropy(model, split.x, split.t),
        "validation": training.cross_entropy(model, *split.validation),
        "test": training.error(model, *split.test),
    }
