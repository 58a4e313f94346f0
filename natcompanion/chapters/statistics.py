"""Means, ratios, medians and shares with their 95 % intervals: the only place where the book
computes them.

The unit of an interval is the independent unit: one value for each seed, machine or problem.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

_RECORDED: ContextVar[list[tuple[str, float]] | None] = ContextVar("printed numbers", default=None)


@contextmanager
def recording() -> Iterator[list[tuple[str, float]]]:
    """Yield a list that takes every number which :func:`significant` prints inside a ``with``
    block: its text and its full value.

    Examples
    --------
    >>> with recording() as recorded:
    ...     text = f"one third is {significant(1 / 3)}"
    >>> recorded
    [('0.333', 0.3333333333333333)]
    """
    recorded: list[tuple[str, float]] = []
    token = _RECORDED.set(recorded)
    try:
        yield recorded
    finally:
        _RECORDED.reset(token)


def minus(number: str) -> str:
    """Return the text of a number with a minus sign, as in the figures, in place of a hyphen before
    it.

    Examples
    --------
    >>> minus("-1.00e-5")
    '−1.00e-5'
    """
    return re.sub("^-", "−", number)


def significant(value: float) -> str:
    """Return a number to three significant digits, zeros kept, with a minus sign as in the figures;
    0 is exact.

    Examples
    --------
    >>> [significant(x) for x in (1.0, -0.25, 123456.0, 1e-5, 0.0)]
    ['1.00', '−0.250', '123000', '1.00e-5', '0']
    """
    text = minus(_three_digits(value))
    if (recorded := _RECORDED.get()) is not None:
        recorded.append((text, float(value)))
    return text


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    text = f"{value:#.3g}".rstrip(".")
    if "e" not in text:
        return text
    mantissa, _, exponent = text.partition("e")
    if 0 < int(exponent) < 6:
        return f"{float(text):.0f}"
    return f"{mantissa}e{int(exponent)}"


@dataclass(frozen=True)
class Interval:
    """A mean (or share, or geometric mean) with its 95 % confidence interval over ``n`` values.

    ``low`` and ``high`` equal the mean if there is one value only. Of a geometric mean,
    ``geometric`` is true: its differences are factors.
    """

    mean: float
    low: float
    high: float
    n: int
    geometric: bool = False

    @property
    def effect(self) -> float:
        """The smallest difference from the truth that these values show at 95 %: half the width of
        the interval, of a geometric mean the factor.

        Examples
        --------
        >>> interval([1.0, 2.0, 3.0]).effect  # doctest: +ELLIPSIS
        2.48...
        """
        if self.geometric:
            return float(np.sqrt(self.high / self.low))
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        if self.n > 1 and self.high - self.low <= TIE * abs(self.mean):
            return f"{significant(self.mean)} (all equal)"
        mean, low, high = map(significant, (self.mean, self.low, self.high))
        return mean if self.n < 2 else f"{mean} [{low}, {high}]"


def _finite(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values).ravel()
    if array.size == 0 or array.dtype.kind not in "bifu" or not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers, got {array.tolist()}")
    return array


def _positive(values: Any, name: str) -> np.ndarray:
    array = _finite(values, name).astype(float)
    if (array <= 0).any():
        raise ValueError(f"{name}: expected positive ratios, got {array.tolist()}")
    return array


def interval(values: Any) -> Interval:
    """Return the mean and 95 % interval: Student's t for numbers, Clopper-Pearson for the share of
    True.

    Raises
    ------
    ValueError
        If there are no values or some are not finite.

    Examples
    --------
    >>> print(interval([1.0, 2.0, 3.0]))
    2.00 [−0.484, 4.48]
    >>> print(interval([2, 2, 2]))
    2.00 (all equal)
    >>> print(interval([True] * 9 + [False]))
    0.900 [0.555, 0.997]
    """
    array = _finite(values, "interval")
    n, mean = array.size, float(array.mean())
    if n == 1:
        return Interval(mean, mean, mean, 1)
    if array.dtype == bool:
        low, high = stats.binomtest(int(array.sum()), n).proportion_ci()
        return Interval(mean, float(low), float(high), n)
    half = float(stats.t.ppf(0.975, n - 1) * array.std(ddof=1) / np.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)


def ratio_interval(ratios: Any) -> Interval:
    """Return the geometric mean of positive ratios and its 95 % interval, by Student's t on
    logarithms.

    An arithmetic mean of ratios can have a negative limit, and it favours whichever is the
    numerator.

    Examples
    --------
    >>> print(ratio_interval([0.5, 2.0, 1.0]))
    1.00 [0.179, 5.59]
    """
    found = interval(np.log(_positive(ratios, "ratio_interval")))
    mean, low, high = (float(np.exp(x)) for x in (found.mean, found.low, found.high))
    return Interval(mean, low, high, found.n, geometric=True)


def geometric_mean(ratios: Any) -> float:
    """Return the geometric mean of positive ratios. The interval of :func:`ratio_interval` would
    overflow where a few of them are worlds apart.

    Examples
    --------
    >>> geometric_mean([1e-300, 1e300])
    1.0
    """
    return float(np.exp(np.log(_positive(ratios, "geometric_mean")).mean()))


def share_of_pairs(values: Any, pairs: Any) -> Interval:
    """Return the mean over pairs of things, such as digits, and its 95 % interval over the things.

    Pairs that share a thing are not independent, so that an interval over the pairs is too narrow.
    The jackknife leaves out one thing at a time, with all its pairs; ``n`` counts the things. The
    values are shares or truth values, and the limits stay between 0 and 1.

    Parameters
    ----------
    values : array_like, shape (pairs,)
        A share, or True or False, for each pair.
    pairs : array_like, shape (pairs, 2)
        The two things of each pair.

    Examples
    --------
    What holds for every pair with the thing 0 and for no other rests on one thing:

    >>> pairs = [(a, b) for a in range(5) for b in range(a + 1, 5)]
    >>> print(share_of_pairs([0 in pair for pair in pairs], pairs))
    0.400 [0, 1.00]
    """
    array, members = _finite(values, "share_of_pairs").astype(float), np.asarray(pairs)
    things = np.unique(members)
    without = np.array([array[(members != thing).all(1)].mean() for thing in things])
    found = interval(len(things) * array.mean() - (len(things) - 1) * without)
    low, high = max(found.low, 0.0), min(found.high, 1.0)
    return Interval(float(array.mean()), low, high, len(things))


def times(steps: Iterable[float | None]) -> np.ndarray:
    """Return when runs reached a target: a run that never did (None) is infinitely late, later than
    every other.

    Examples
    --------
    >>> times([10, None]).tolist()
    [10.0, inf]
    """
    return np.array([np.inf if step is None else float(step) for step in steps])


@dataclass(frozen=True)
class Arrivals:
    """How many runs reached a target, and the median over all runs: None if half of them never
    did.
    """

    arrived: int
    n: int
    median: float | None

    def __str__(self) -> str:
        middle = "never in half of the runs" if self.median is None else significant(self.median)
        return middle if self.arrived == self.n else f"{middle} ({self.arrived} of {self.n} arrive)"


def arrivals(steps: Iterable[float | None]) -> Arrivals:
    """Return how many of the runs arrived, and the median of their :func:`times`; None is a run
    that never did, so that the median needs more than half of the runs to arrive.

    Examples
    --------
    >>> print(arrivals([10, 30, None]))
    30.0 (2 of 3 arrive)
    >>> print(arrivals([10, None]))
    never in half of the runs (1 of 2 arrive)
    """
    taken = times(steps)
    if not taken.size:
        raise ValueError("arrivals: expected at least one run, got none")
    middle = float(np.median(taken))
    arrived = int(np.isfinite(taken).sum())
    return Arrivals(arrived, taken.size, middle if np.isfinite(middle) else None)


def median(values: Any) -> float:
    """Return the median: of an even count the mean of the two in the middle."""
    return float(np.median(_finite(values, "median")))


TIE = 1e-9
"""Relative difference up to which two values are a tie: converged runs differ by rounding."""


def best(items: Iterable[tuple[object, float]]) -> Any:
    """Return the key whose value is least; NaN and infinity never win; ties go to the first.

    Values within ``TIE`` of the least, relative to it, are ties: which of two converged runs ends
    lower by a rounding error depends on the processor.

    Raises
    ------
    ValueError
        If no value is finite.
    """
    finite = [(key, value) for key, value in items if np.isfinite(value)]
    if not finite:
        raise ValueError("best: expected at least one finite value")
    least = min(value for _, value in finite)
    return next(key for key, value in finite if value <= least + TIE * abs(least))
