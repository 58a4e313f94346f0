"""Section 6 with momentum for every method: variance of the outputs against validation error.

Each method has a front: the settings that no other of its settings beats in both. The search finds
it on seeds of its own; reported are those of its settings that reach the error which all methods
reach, and the next one.
"""

import numpy as np

from natcompanion.chapters.experiments import Result
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.revisiting.frontier import Points, front, variance_at
from natcompanion.chapters.numbers.revisiting.rivals import PLAIN
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import (
    Interval,
    best,
    geometric_mean,
    interval,
    median,
    ratio_interval,
)

METHODS = {"natural": "natural gradient"} | PLAIN
SETTING = ("lr", "momentum", "damping")
LEVELS = ("all", "both")
"""The lowest validation error that all five methods reach, or the natural gradient and the rival of
least error.
"""

Setting = tuple[float, ...]


def _setting(run: Result) -> Setting:
    return tuple(run.settings[name] for name in SETTING)


def _searched(method: str) -> dict[Setting, tuple[float, float]]:
    """Return mean validation error and geometric mean of the variance of each setting of the
    search, but for those that diverged on a seed, or stopped to depend on the examples at all.
    """
    found: dict[Setting, list[Result]] = {}
    for run in stored("revisiting_order_rivals.tuning").select(method=method):
        found.setdefault(_setting(run), []).append(run)
    return {
        setting: (
            float(np.mean([run["error"] for run in runs])),
            geometric_mean([np.mean(run["variance"]) for run in runs]),
        )
        for setting, runs in found.items()
        if all(run["error"] is not None and np.mean(run["variance"]) > 0 for run in runs)
    }


def order_searched() -> int:
    """Return how many settings the search tried, the same number for every method."""
    tuning = stored("revisiting_order_rivals.tuning")
    (count,) = {len({_setting(run) for run in tuning.select(method=m)}) for m in METHODS}
    return count


def order_error_searched() -> float:
    """Return the lowest validation error that every method reaches in the search, in per cent."""
    return max(front(list(_searched(method).values()))[0][0] for method in METHODS)


def order_front(method: str) -> list[Setting]:
    """Return step size, momentum and damping of the settings that are reported, by rising error."""
    searched, reached = _searched(method), order_error_searched()
    points = front(list(searched.values()))
    kept = sum(error <= reached for error, _ in points) + 1
    named = {point: setting for setting, point in reversed(searched.items())}
    return [named[point] for point in points[:kept]]


def order_seeds() -> list[int]:
    """Return the reported seeds."""
    return sorted({run.seed for run in stored("revisiting_order_rivals.chapter")})


def _points(method: str, seed: int) -> Points:
    """Return error and variance of the reported settings on a seed, but for runs that diverged."""
    reported = order_front(method)
    runs = stored("revisiting_order_rivals.chapter").select(method=method, seed=seed)
    found = {_setting(run): run for run in runs}
    return [
        (run["error"], float(np.mean(run["variance"])))
        for run in (found[setting] for setting in reported)
        if run["error"] is not None
    ]


def order_best(level: str = "all") -> str:
    """Return the rival that the search has ahead: in variance at the error that all reach, or in
    error.
    """
    fronts = {method: front(list(_searched(method).values())) for method in PLAIN}
    if level == "both":
        return best((method, points[0][0]) for method, points in fronts.items())
    error = order_error_searched()
    return best((method, variance_at(points, error)) for method, points in fronts.items())


def order_levels(level: str = "all") -> np.ndarray:
    """Return for each seed the lowest validation error that the methods of :data:`LEVELS` reach."""
    methods = METHODS if level == "all" else ("natural", order_best("both"))
    return np.array([max(min(_points(m, seed))[0] for m in methods) for seed in order_seeds()])


def order_variances(method: str, level: str = "all") -> np.ndarray:
    """Return for each seed the variance of a method at that error, between two of its settings on
    its front.
    """
    pairs = zip(order_seeds(), order_levels(level), strict=True)
    return np.array([variance_at(_points(method, seed), error) for seed, error in pairs])


def order_decades(level: str = "all") -> np.ndarray:
    """Return for each seed how many decades more the variance of the best rival is than that of
    the natural gradient.
    """
    rival, natural = (order_variances(m, level) for m in (order_best(level), "natural"))
    return np.log10(rival / natural)


def order_times(level: str = "all") -> Interval:
    """Return how many times larger it is: geometric mean and interval."""
    return ratio_interval(10 ** order_decades(level))


def order_level(level: str = "all") -> float:
    """Return the median of these errors, in per cent."""
    return median(order_levels(level))


def order_least_error(method: str) -> Interval:
    """Return the least validation error of a method over its reported settings, in per cent."""
    return interval([min(_points(method, seed))[0] for seed in order_seeds()])


def order_rivals_table() -> Table:
    """Return variance and least error of every method, and the settings that are reported."""
    return Table(
        ["method", "variance, 1e-5", "least error, %", "reported settings"],
        [[name, *_cells(method)] for method, name in METHODS.items()],
        "Variance of the outputs (geometric mean, 95 % interval) at the lowest validation error "
        f"that all methods reach, {order_level():.1f} % in the middle one of {len(order_seeds())} "
        "seeds, and the least error of each. Settings: step size, momentum and, with a metric, "
        f"damping: the front of the {order_searched()} of each method on two other seeds, as far "
        "as it reaches that error, and the next.",
    )


def _cells(method: str) -> list[str]:
    metric = method in ("natural", "kfac")
    settings = [setting if metric else setting[:2] for setting in order_front(method)]
    return [
        str(ratio_interval(1e5 * order_variances(method))),
        str(order_least_error(method)),
        "; ".join(", ".join(f"{value:g}" for value in setting) for setting in settings),
    ]
