"""Does a penalty help: the declared search, its edges, and the gains on unseen digits."""

import numpy as np

from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.boltzmann.curves import mean
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval

SEARCHED = {
    "sgd": "SGD",
    "weight_decay": "weight decay",
    "exact_penalty": "exact penalty",
    "natural_penalty": "natural penalty, -2C",
    "paper": "the paper's scheme",
    "decorrelation": "decorrelated hidden units",
}
LARGEST_STEP = 8


def splits() -> int:
    """Return the number of splits of the digits."""
    return len(stored("boltzmann_heldout.paper"))


def gains(method: str) -> np.ndarray:
    """Return the test error of SGD minus that of a method, in percentage points, for each split."""
    return 100 * stored("boltzmann_heldout.paper").values(f"gain.{method}")


def gain(method: str) -> Interval:
    """Return its mean with the interval over the splits."""
    return interval(gains(method))


def wins(method: str) -> int:
    """Return on how many splits the method has the smaller test error."""
    return int((gains(method) > 0).sum())


def heldout_error(part: str, method: str) -> float:
    """Return the error in % on ``"train"`` or ``"test"`` digits, mean over the splits."""
    return mean(100 * stored("boltzmann_heldout.paper").values(f"{part}.{method}"))


def heldout_table() -> Table:
    """Return errors and gains of each penalty."""
    return Table(
        ["method", "train", "test", "points gained over SGD"],
        [
            [
                name,
                heldout_error("train", method),
                heldout_error("test", method),
                None if method == "sgd" else gain(method),
            ]
            for method, name in SEARCHED.items()
        ],
        f"Error in %, mean over {splits()} splits; gain with 95 % interval.",
    )


def _chosen_steps() -> list[float]:
    records = stored("boltzmann_heldout.paper")
    return [choice["lr"] for record in records for choice in record["chosen"].values()]


def choices() -> int:
    """Return how many configurations were chosen: one for each method and split."""
    return len(_chosen_steps())


def choices_at_the_edge() -> int:
    """Return how many of them have the largest step size of the search."""
    return sum(lr >= LARGEST_STEP for lr in _chosen_steps())


def least_error_beyond() -> float:
    """Return the least validation error, in %, at twice the largest step size."""
    records = stored("boltzmann_edge.paper")
    return 100 * min(error for record in records for error in record["step"].values())


def _stronger() -> list[bool]:
    """Return, split by split, whether three times the largest strength would have been chosen."""
    inside = stored("boltzmann_heldout.paper")
    return [
        error < inside.select(seed=record.seed).records[0]["validation"][method]
        for record in stored("boltzmann_edge.paper")
        for method, error in record["strength"].items()
    ]


def stronger_chosen() -> int:
    """Return in how many cases it would have been."""
    return sum(_stronger())


def stronger_cases() -> int:
    """Return the number of these cases."""
    return len(_stronger())
