"""Momentum for every method, each with the same search, on three of the chapter's problems."""

import numpy as np

from natcompanion.chapters.figures.style import METHODS as TABLE
from natcompanion.chapters.figures.style import named
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.searching import Choice, Race, counted
from natcompanion.chapters.show import Table

PROBLEMS = {
    "digits": "pair of digits",
    "machine": "Boltzmann machine",
    "separation": "three photographs",
}
PLAIN = {"sgd": TABLE["momentum"].name} | named("adamw", "muon")
METRICS = {
    "digits": {"natural": "natural gradient", "whitened": "whitened inputs"},
    "machine": {"natural": "natural gradient", "whitened": "energy's covariance"},
    "separation": {"natural": "relative gradient"},
}


def rivals(problem: str) -> tuple[str, ...]:
    """Return the methods without a metric that were tried on a problem."""
    return tuple(name for name in PLAIN if name != "muon" or problem == "separation")


def _race(problem: str) -> Race:
    return Race("whitening_rivals", "chapter", {"problem": problem})


def chosen(problem: str, method: str) -> Choice:
    """Return step size and momentum that the search on other seeds chose."""
    return _race(problem).chosen(method)


def search_seeds(problem: str) -> int:
    """Return on how many seeds the search ran, pairs of digits among them."""
    tuning = stored("whitening_rivals.tuning").select(problem=problem)
    return len({record.seed for record in tuning})


def rival_median(problem: str, method: str, key: str = "steps_to_target") -> float | None:
    """Return the median of ``key`` over the seeds; None if half of them never arrive."""
    return _race(problem).arrivals(method, key).median


def first_order(problem: str, key: str = "steps_to_target") -> str:
    """Return which of the methods without a metric has the least median of ``key``."""
    return _race(problem).first(rivals(problem), key)


def ahead(problem: str, method: str, key: str = "steps_to_target") -> np.ndarray:
    """Return for each seed whether a method needs less of ``key`` than the best without a
    metric.
    """
    return _race(problem).ahead(method, rivals(problem), key)


def ahead_of(problem: str, method: str, key: str = "steps_to_target") -> str:
    """Return on how many of the seeds, in words: "12 of 12"."""
    return counted(ahead(problem, method, key))


def rival_times(problem: str, method: str) -> str:
    """Return how many times fewer steps a method needs than the best without a metric, as a ratio
    of medians, to two digits.

    Raises
    ------
    ValueError
        If half of the runs of either never arrive.
    """
    own, other = (rival_median(problem, name) for name in (method, first_order(problem)))
    if own is None or other is None:
        raise ValueError(f"{problem}, {method}: half of the runs never arrive")
    return f"{other / own:.2g}"


def rivals_table() -> Table:
    """Return what the search chose, steps and processor seconds of every method on every
    problem.
    """
    sizes = {
        chosen(problem, method).searched for problem in PROBLEMS for method in _methods(problem)
    }
    settings = " or ".join(map(str, sorted(sizes)))  # one number for each problem
    (seeds,) = {len(_race(p).runs(method)) for p in PROBLEMS for method in _methods(p)}
    return Table(
        ["problem", "method", "step size", "momentum", "reached", "median steps", "median seconds"],
        [
            _row(problem, method, name)
            for problem in PROBLEMS
            for method, name in _methods(problem).items()
        ],
        f"Steps and processor seconds to the target, {seeds} seeds; every method with the best of "
        f"{settings} pairs of step size and momentum on {search_seeds('machine')} other seeds, for "
        f"the digits on {search_seeds('digits')}, two hard pairs among them.",
    )


def _methods(problem: str) -> dict[str, str]:
    return {name: PLAIN[name] for name in rivals(problem)} | METRICS[problem]


def _row(problem: str, method: str, name: str) -> list:
    found = _race(problem).arrivals(method, "steps_to_target")
    picked = chosen(problem, method).settings
    return [
        PROBLEMS[problem],
        name,
        f"{picked['lr']:g}",
        f"{picked['momentum']:g}",
        f"{found.arrived} of {found.n}",
        None if found.median is None else f"{found.median:.0f}",
        rival_median(problem, method, "seconds_to_target"),
    ]
