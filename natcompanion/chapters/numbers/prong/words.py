"""The words that readers see for methods, starts, periods and condition numbers, and what the
modules of this package share.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from natcompanion.chapters.experiments._prong_training import NEVER
from natcompanion.chapters.figures.style import named

METHODS = (
    named("sgd", "rmsprop", "batchnorm", "prong", "prong+")
    | {"backward": "footnote 4"}
    | named("kfac")
)
STARTS = {"fan-in": "fan-in", "sigmoid": "4 × Glorot", "whitened": "whitened"}
PERIODS = {"10": 10, "100": 100, "never again": NEVER}
NAMES = {
    "raw": "largest / smallest",
    "damped": "largest / smallest, damped",
    "tail": "largest / 90 % exceed",
    "median": "largest / median",
    "means": "arithmetic / geometric mean",
    "absolute": "absolute damping 1e-4",
    "spread": "1 - effective rank / dimension",
}
"""Short names of the definitions of a condition number."""


class Band(NamedTuple):
    """A curve over several runs: where, the median run, and the least and the most of the runs."""

    x: np.ndarray
    middle: np.ndarray
    least: np.ndarray
    most: np.ndarray


def band(x: Sequence[float] | np.ndarray, runs: Sequence[Sequence[float]] | np.ndarray) -> Band:
    """Return the band of curves (runs, places)."""
    runs = np.asarray(runs)
    return Band(np.asarray(x), np.median(runs, 0), runs.min(0), runs.max(0))


def looks(settings: dict) -> np.ndarray:
    """Return the numbers of updates at which a run was looked at: 0, every, 2 every, ..."""
    return np.arange(0, settings["updates"] + 1, settings["every"])


def first_arrival(curve: Sequence[float], goal: float) -> int | None:
    """Return the first look at which a curve is at or below a goal; None if it never is."""
    return next((look for look, error in enumerate(curve) if error <= goal), None)
