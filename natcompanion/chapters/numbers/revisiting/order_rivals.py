"""Section 6 with momentum for every method: variance of the outputs at one validation error."""

import numpy as np

from natcompanion.chapters.experiments import Result, Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.revisiting.rivals import PLAIN
from natcompanion.chapters.numbers.searching import Choice, choice
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, best, interval, median, ratio_interval

METHODS = {"natural": "natural gradient"} | PLAIN
SETTING = ("lr", "momentum", "damping")
COMPARED = ("variance", "error")
"""Each method has the setting of least variance among those that reach the error of
:func:`order_error_reached`, or the one of least validation error.
"""


def _spread(run: Result) -> float | None:
    """Return the variance of a run, the mean over the replaced segments; None if it diverged."""
    return None if run["error"] is None else float(np.mean(run["variance"]))


def _point(run: Result) -> tuple:
    return tuple(run.settings[name] for name in SETTING)


def _searched(method: str) -> dict[tuple, float]:
    """Return the mean validation error of each setting that did not diverge on a tuning seed."""
    found: dict[tuple, list] = {}
    for run in stored("revisiting_order_rivals.tuning").select(method=method):
        found.setdefault(_point(run), []).append(run["error"])
    return {point: float(np.mean(errors)) for point, errors in found.items() if None not in errors}


def order_error_reached() -> float:
    """Return the lowest validation error that every method reaches in the search, in per cent."""
    return max(min(_searched(method).values()) for method in METHODS)


def order_choice(method: str, by: str = "variance") -> Choice:
    """Return the setting that the search chose for a method: see :data:`COMPARED`."""
    errors = _searched(method)
    limit = order_error_reached() if by == "variance" else min(errors.values())

    def key(run: Result) -> float | None:
        return _spread(run) if errors.get(_point(run), np.inf) <= limit else None

    tuning = stored("revisiting_order_rivals.tuning")
    return choice(tuning, method, key, SETTING, zero=("momentum",))


def order_searched() -> int:
    """Return how many settings the search tried, the same number for every method."""
    (count,) = {order_choice(method, by).searched for method in METHODS for by in COMPARED}
    return count


def _runs(method: str, by: str) -> Results:
    report = stored("revisiting_order_rivals.chapter")
    return report.select(method=method, **order_choice(method, by).settings)


def _of_each_seed(method: str, by: str) -> list[Result]:
    return sorted(_runs(method, by), key=lambda run: run.seed)


def order_variances(method: str, by: str = "variance") -> np.ndarray:
    """Return the variance on each reported seed.

    Raises
    ------
    ValueError
        If a run diverged.
    """
    found = [_spread(run) for run in _of_each_seed(method, by)]
    if None in found:
        raise ValueError(f"{method}: {found.count(None)} of {len(found)} runs diverged")
    return np.array(found)


def order_error(method: str, by: str = "variance") -> Interval:
    """Return the validation error of these runs in per cent."""
    return interval([run["error"] for run in _of_each_seed(method, by)])


def order_best(by: str = "variance") -> str:
    """Return the rival with the least median variance or the least mean validation error."""
    measure = {
        "variance": lambda method: median(order_variances(method)),
        "error": lambda method: order_error(method, "error").mean,
    }[by]
    return best((method, measure(method)) for method in PLAIN)


def order_decades(by: str = "variance") -> np.ndarray:
    """Return for each seed how many decades more the variance of the best rival is than that of
    the natural gradient.
    """
    return np.log10(order_variances(order_best(by), by) / order_variances("natural", by))


def order_times(by: str = "variance") -> Interval:
    """Return how many times larger it is: geometric mean and interval."""
    return ratio_interval(10 ** order_decades(by))


def order_rivals_table() -> Table:
    """Return error and variance of every method at both settings that the search chose."""
    (seeds,) = {len(_runs(method, by)) for method in METHODS for by in COMPARED}
    return Table(
        ["method", "error, %", "variance, 1e-5", "at", "least error, %", "variance, 1e-5", "at"],
        [
            [name, *_cells(method, "variance"), *_cells(method, "error")]
            for method, name in METHODS.items()
        ],
        f"Left, the setting of least variance among those whose validation error is at most "
        f"{order_error_reached():.1f} % in the search; right, the one of least validation error. "
        f"Validation error (mean, 95 % interval) and variance of the outputs (geometric mean) of "
        f"{seeds} seeds. At: step size, momentum and, with a metric, damping, the best of "
        f"{order_searched()} on two other seeds.",
    )


def _cells(method: str, by: str) -> list[str]:
    """Return error, variance and setting as text."""
    found = order_choice(method, by).settings
    names = SETTING if method in ("natural", "kfac") else SETTING[:2]
    return [
        str(order_error(method, by)),
        str(ratio_interval(1e5 * order_variances(method, by))),
        ", ".join(f"{found[name]:g}" for name in names),
    ]
