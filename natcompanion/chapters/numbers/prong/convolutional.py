"""Section 4.3, Figures 4a and 4b: the convolutional network."""

import numpy as np

from natcompanion.chapters.experiments import Result
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval, median, ratio_interval

from .words import METHODS, Band, band

PAPER = {"batchnorm": 8.22, "prong": 7.32}
"""The paper's test errors on CIFAR-10, in per cent."""


def convolutional_methods() -> list[str]:
    """Return the methods whose runs are stored."""
    found = {record.settings["method"] for record in stored("prong_convolutional.chapter")}
    return [method for method in METHODS if method in found]


def _record(method: str) -> Result:
    (record,) = stored("prong_convolutional.chapter").select(method=method).records
    return record


def convolutional_curves(method: str, key: str) -> Band:
    """Return the loss on "train" or the error in "validation" against updates."""
    curves = _record(method)["curve"]
    return band(
        [point["update"] for point in curves[0]],
        [[point[key] for point in curve] for curve in curves],
    )


def classification_losses(method: str) -> np.ndarray:
    """Return the training loss of every run after its last update."""
    return np.array([curve[-1]["train"] for curve in _record(method)["curve"]])


def final_loss(method: str) -> float:
    """Return the median of the final training losses."""
    return median(classification_losses(method))


def loss_ratio(method: str, rival: str) -> Interval:
    """Return the final training loss in units of the rival's."""
    return ratio_interval(classification_losses(method) / classification_losses(rival))


def test_error(method: str) -> Interval:
    """Return the test error in per cent."""
    return interval(_record(method)["test"])


def test_difference(method: str, rival: str) -> np.ndarray:
    """Return for each initialization the test error minus the rival's."""
    return np.subtract(_record(method)["test"], _record(rival)["test"])


def classification_table() -> Table:
    """Return the settings, losses and test errors of every method."""
    rows = [
        [
            METHODS[method],
            f"{record['best']['rate']:g}",
            f"{record['best']['second']:g}" if record["best"]["second"] else None,
            final_loss(method),
            test_error(method),
            f"{PAPER[method]:g}" if method in PAPER else None,
        ]
        for method in convolutional_methods()
        for record in [_record(method)]
    ]
    return Table(
        ["method", "step size", "ε", "training loss", "test error, %", "paper, CIFAR-10, %"],
        rows,
        "Median training loss and mean test error with its 95 % interval, "
        f"{test_error('prong').n} runs.",
    )
