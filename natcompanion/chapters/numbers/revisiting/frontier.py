"""Section 6: variance against validation error, both methods at all their settings."""

import numpy as np

from natcompanion.chapters.numbers import stored
from natcompanion.chapters.statistics import Interval, median, ratio_interval

METHODS = ("natural", "sgd")
"""The methods that are reported."""

Points = list[tuple[float, float]]
"""Validation error and variance of settings."""


def front(points: Points) -> Points:
    """Return the points that no other beats in both error and variance, by rising error.

    Examples
    --------
    >>> front([(30.0, 2.0), (20.0, 8.0), (40.0, 3.0)])
    [(20.0, 8.0), (30.0, 2.0)]
    """
    kept: Points = []
    for error, variance in sorted(points):
        if not kept or variance < kept[-1][1]:
            kept.append((error, variance))
    return kept


def variance_at(points: Points, error: float) -> float:
    """Return the variance of a front at an error: its logarithm is linear between two settings.

    Beyond the largest error of the front it is that of the last setting.

    Raises
    ------
    ValueError
        If no setting reaches the error.

    Examples
    --------
    >>> round(variance_at([(20.0, 100.0), (30.0, 1.0)], 25.0), 9)
    10.0
    """
    errors, variances = zip(*front(points), strict=True)
    if error < errors[0]:
        raise ValueError(f"no setting has an error of {error:g}; the least is {errors[0]:g}")
    return float(np.exp(np.interp(error, errors, np.log(variances))))


def _points(methods: tuple[str, ...], seed: int, momentum: bool) -> Points:
    """Return the points of the settings of some methods that did not diverge, of one seed."""
    return [
        (record["error"], float(np.mean(record["variance"])))
        for record in stored("revisiting_order_frontier.chapter").select(seed=seed)
        if record.settings["method"] in methods
        and record["error"] is not None
        and (momentum or record.settings["momentum"] == 0)
    ]


def frontier_seeds() -> list[int]:
    """Return the seeds of the frontier."""
    return sorted({record.seed for record in stored("revisiting_order_frontier.chapter")})


def matched_errors(
    rivals: tuple[str, ...], momentum: bool = True, above: float = 0.0
) -> np.ndarray:
    """Return for each seed the lowest validation error that the natural gradient and the best of
    its rivals both reach, and ``above`` times that more.
    """
    return (1 + above) * np.array(
        [
            max(min(_points(each, seed, momentum))[0] for each in (("natural",), rivals))
            for seed in frontier_seeds()
        ]
    )


def frontier_decades(
    rivals: tuple[str, ...], momentum: bool = True, above: float = 0.0
) -> np.ndarray:
    """Return for each seed how many decades more the least variance of the rivals is than that of
    the natural gradient, both at the error of :func:`matched_errors`.

    ``momentum=False`` leaves out all settings with momentum.
    """
    errors = matched_errors(rivals, momentum, above)
    seeds = list(zip(frontier_seeds(), errors, strict=True))

    def variances(methods: tuple[str, ...]) -> np.ndarray:
        return np.array([variance_at(_points(methods, seed, momentum), e) for seed, e in seeds])

    return np.log10(variances(rivals) / variances(("natural",)))


def frontier_times(rivals: tuple[str, ...], momentum: bool = True, above: float = 0.0) -> Interval:
    """Return how many times larger the variance of the rivals is: geometric mean and interval."""
    return ratio_interval(10 ** frontier_decades(rivals, momentum, above))


def matched_error(rivals: tuple[str, ...], momentum: bool = True, above: float = 0.0) -> float:
    """Return the median of these errors, in per cent."""
    return median(matched_errors(rivals, momentum, above))


def frontier_settings() -> int:
    """Return how many settings each method has."""
    results = stored("revisiting_order_frontier.chapter")
    (count,) = {len(results.select(method=m, seed=results.records[0].seed)) for m in METHODS}
    return count
