"""Section 5: why unlabelled data do not help here, and Table 1 at the paper's size."""

import math

import numpy as np

from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.revisiting.training import COLUMNS, chosen, columns, setting
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval, ratio_interval

METRICS = {
    "plain": "plain gradient",
    "same": "same batch",
    "unlabelled": "500 unlabelled",
    "more": "1,250 unlabelled",
}
"""The steps that are compared, by what their metric is computed on."""

NATURAL = ("same", "unlabelled", "different")

# ---- Where a step moves the model


def _reach(key: str) -> np.ndarray:
    return stored("revisiting_why_unlabelled.quick").values(key)


def share(metric: str) -> float:
    """Return which share of the gain on the batch reaches the test loss: mean over the folds."""
    return interval(_reach(f"{metric}_share")).mean


def share_beyond_plain() -> np.ndarray:
    """Return the share with the metric of the batch minus that of the plain gradient."""
    return _reach("same_share") - _reach("plain_share")


def share_beyond_same() -> np.ndarray:
    """Return the share with the metric of as many unlabelled inputs minus that of the batch."""
    return _reach("unlabelled_share") - _reach("same_share")


def reach_decades() -> np.ndarray:
    """Return how far a step with many unlabelled inputs moves the test inputs, in decades.

    In units of a step with the metric of the batch, for each fold.
    """
    return np.log10(_reach("more_kl_test") / _reach("same_kl_test"))


def reach_ratio() -> Interval:
    """Return the same as a ratio: geometric mean over the folds."""
    return ratio_interval(10 ** reach_decades())


def reach_table() -> Table:
    """Where a step with each metric moves the model."""
    places = ("batch", "seen", "unlabelled", "test")
    rows = [
        [
            text,
            *[f"{1e6 * interval(_reach(f'{name}_kl_{place}')).mean:.2g}" for place in places],
            str(interval(_reach(f"{name}_share"))),
        ]
        for name, text in METRICS.items()
    ]
    return Table(
        [
            "metric on",
            "batch",
            "inputs of the unlabelled metric",
            "new inputs",
            "test",
            "share of the gain that reaches the test loss",
        ],
        rows,
        "KL divergence in millionths that a step moves the model by on different inputs, and the "
        "fall of the test loss over that of the batch; five folds.",
    )


# ---- At the paper's size, one seed


def _run(column: str) -> dict:
    return stored("revisiting_fashion.paper").select(column=column).records[0].values


def at_paper_size(column: str, key: str) -> float:
    """Return "train", "train_error" or "test" of a column at the end."""
    return float(_run(column)[key])


def hours() -> float:
    """Return how many hours all columns took."""
    return sum(record.seconds for record in stored("revisiting_fashion.paper")) / 3600


def hours_of_the_paper() -> int:
    """Return how many hours the paper's 2,000 updates would take."""
    return round(hours() * 2000 / setting("paper", "updates"))


def sgd_rates_tried() -> int:
    """Return how many step sizes SGD chose from."""
    return len(_run("msgd")["search"])


def _natural_tests() -> list[float]:
    return [at_paper_size(column, "test") for column in NATURAL]


def spread() -> float:
    """Return by how many points the test errors of the natural gradient differ."""
    return max(_natural_tests()) - min(_natural_tests())


def standard_error() -> float:
    """Return the standard error of one such test error, in points."""
    p = min(_natural_tests()) / 100
    return 100 * math.sqrt(p * (1 - p) / setting("paper", "test"))


def _lowest() -> tuple[float, int]:
    points = (point for column in NATURAL for point in _run(column)["curve"])
    return min((point["test"], point["update"]) for point in points)


def lowest_test() -> float:
    """Return the lowest test error on the way, of the three metrics."""
    return _lowest()[0]


def lowest_update() -> int:
    """Return after how many updates it was passed."""
    return _lowest()[1]


def paper_size_table() -> Table:
    """The columns at the paper's size."""
    rows = [
        [
            COLUMNS[column],
            chosen(_run(column), column),
            f"{at_paper_size(column, 'train'):.2g}",
            f"{at_paper_size(column, 'test'):.1f}",
        ]
        for column in columns("paper")
    ]
    return Table(
        ["column", "step size, damping", "train", "test, %"],
        rows,
        f"Training loss on {setting('paper', 'labelled')} images and test error on "
        f"{setting('paper', 'test')} after {setting('paper', 'updates')} updates (SGD: "
        f"{setting('paper', 'sgd_ratio')} for each), one seed, {setting('paper', 'hidden')} hidden "
        "units.",
    )
