"""What the curves of several runs come to: their range and the line in the middle."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from natcompanion.chapters.experiments import Results
from natcompanion.chapters.statistics import interval


class Band(NamedTuple):
    """Least, middle and greatest of several curves at each point, (points,) each."""

    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


def band(curves: Iterable, middle: Callable = np.mean) -> Band:
    """Return the range of curves (runs, points) and their mean, or another ``middle``."""
    curves = np.asarray(list(curves), float)
    return Band(curves.min(0), middle(curves, axis=0), curves.max(0))


def by_seed(results: Results) -> list:
    """Return the records in the order of their seeds."""
    return sorted(results, key=lambda record: record.seed)


def mean(values: Any) -> float:
    """Return the mean over seeds or starts."""
    return interval(values).mean
