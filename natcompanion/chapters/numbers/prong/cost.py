"""Section 4.2, where the time goes, and Section 4.3, what the recipe for ImageNet would cost."""

import numpy as np

from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, median, ratio_interval
from natcompanion.recipes.cost import Cost, Work

PAPER = {
    "rmsprop_ratio": 9.0,
    "batchnorm_ratio": 2.3,
    "whitened_ratio": 3.2,
    "whitened_factoring": 34.0,
    "whitened_statistics": 4.0,
}
"""What the paper reports: times the time of SGD, and shares of the time of PRONG in per cent."""
QUANTITIES = {
    "rmsprop_ratio": "RMSprop / SGD",
    "batchnorm_ratio": "batch normalization / SGD",
    "prong_ratio": "PRONG on a plain model / SGD",
    "whitened_ratio": "PRONG on whitened layers / SGD",
    "prong_factoring": "plain model: Cholesky factors, %",
    "whitened_factoring": "whitened layers: eigenvectors and projection, %",
    "whitened_statistics": "whitened layers: statistics, %",
}
BARS = {
    "SGD": ("sgd", ()),
    "RMSprop": ("rmsprop", ()),
    "batch normalization": ("batchnorm", ()),
    "PRONG, plain model": ("prong", ("forward", "moments", "cholesky")),
    "PRONG, whitened layers": ("whitened", ("forward", "moments", "eigenvectors", "projection")),
}
"""What an update of each method consists of: itself, and parts of a whitening."""


def cost_each(quantity: str, preset: str = "paper") -> np.ndarray:
    """Return a ratio or share in every repetition of the timing."""
    return stored(f"prong_time.{preset}").values(quantity)[0]


def cost(quantity: str, preset: str = "paper") -> float:
    """Return the median of a ratio or share."""
    return median(cost_each(quantity, preset))


def part_ratio(part: str, other: str) -> Interval:
    """Return the time of one part of PRONG on whitened layers in units of another's."""
    return ratio_interval(cost_each(f"whitened_{part}") / cost_each(f"whitened_{other}"))


def part_ratio_of_the_paper() -> float:
    """Return the time of the whitening in units of that of the statistics, in the paper."""
    return PAPER["whitened_factoring"] / PAPER["whitened_statistics"]


def unamortized() -> Interval:
    """Return the time of a whitening before every update, in units of the updates' own."""
    period = stored("prong_time.paper").records[0].settings["period"]
    whitening, statistics = cost_each("whitened_factoring"), cost_each("whitened_statistics")
    return ratio_interval(period * whitening / (100 - whitening - statistics))


def cost_bars(preset: str = "paper") -> dict[str, dict[str, float]]:
    """Return the parts of an update of each method in units of an update of SGD; a part of a
    whitening is spread over the updates of a period.
    """
    (record,) = stored(f"prong_time.{preset}").records
    return {
        name: {"update": record[update] / record["sgd"]}
        | {part: record[part] / record.settings["period"] / record["sgd"] for part in parts}
        for name, (update, parts) in BARS.items()
    }


def time_table() -> Table:
    """Return ratios and shares at both sizes beside the paper's."""
    rows = [
        [text, cost(key, "chapter"), cost(key), f"{PAPER[key]:g}" if key in PAPER else None]
        for key, text in QUANTITIES.items()
    ]
    return Table(
        ["quantity", "chapter's size", "paper's size", "paper"],
        rows,
        "Medians of several measurements; batch normalization in the paper used another batch "
        "size.",
    )


def recipe_table(work: Work, total: Cost) -> Table:
    """Return what a run of the recipe takes."""
    rows = [
        ["operations for one image, forward and backward", work.forward + work.backward],
        ["updates", total.updates],
        ["operations in all", total.flops],
        ["share that SGD would not need, %", 100 * total.share],
        ["of it preconditioning, %", 100 * total.preconditioning / (total.flops - total.gradients)],
        [f"days at {total.flops_per_second:g} operations a second", total.days],
    ]
    return Table(
        ["quantity", "value"],
        rows,
        f"The recipe's network at 224 × 224 pixels: {total.epochs:g} epochs, which are the "
        "100,000 updates of the paper's first comparison.",
    )
