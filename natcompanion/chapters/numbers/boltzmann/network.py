"""Section 4.1 on networks: the covariance penalty on hidden layers and on convolutions."""

import numpy as np

from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.searching import Choice, Race, counted
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import (
    Interval,
    best,
    geometric_mean,
    interval,
    ratio_interval,
)

NETWORKS = {"layers": "two hidden layers", "convolution": "two convolutions"}
COVARIANCES = {"hidden": "cov(h, h)", "visible": "cov(v, h)"}
KEYS = {"steps": "steps_to_target", "test": "validation"}
"""What a search minimizes for a comparison of updates, and of test errors."""


def _race(problem: str, by: str) -> Race:
    names = ("lr", "momentum", "gamma")
    return Race("boltzmann_network", "paper", {"problem": problem}, names, KEYS[by])


def _searched(problem: str, by: str, method: str) -> float:
    """Return what the search found for a method at the setting that it chose."""
    race = _race(problem, by)
    tuning = Race("boltzmann_network", "tuning", race.where, race.names, race.key)
    return geometric_mean(tuning.of_each_seed(method, race.key))


def penalized(problem: str, by: str) -> str:
    """Return which covariance the search penalizes: that with the better best setting."""
    return best((method, _searched(problem, by, method)) for method in COVARIANCES)


def penalty_choice(problem: str, by: str, method: str) -> Choice:
    """Return the setting that the search on two other seeds chose for a comparison."""
    return _race(problem, by).chosen(method)


def _pairs(problem: str, by: str, key: str) -> np.ndarray:
    """Return ``key`` with the penalty and without, for each seed; (seeds, 2)."""
    race = _race(problem, by)
    both = [race.of_each_seed(method, key) for method in (penalized(problem, by), "plain")]
    return np.array(both, dtype=float).T


def penalty_ahead(problem: str) -> np.ndarray:
    """Return for each seed whether the penalty reaches the training loss in fewer updates."""
    return _race(problem, "steps").ahead(penalized(problem, "steps"), ["plain"], KEYS["steps"])


def penalty_seeds_ahead(problem: str) -> str:
    """Return on how many of the seeds, in words: "9 of 10"."""
    return counted(penalty_ahead(problem))


def penalty_test_differences(problem: str) -> np.ndarray:
    """Return the test error with the penalty minus that without for each seed, in points."""
    first, second = _pairs(problem, "test", "test").T
    return first - second


def penalty_test_difference(problem: str) -> Interval:
    """Return the mean of these."""
    return interval(penalty_test_differences(problem))


def penalty_decorrelates(problem: str, by: str = "test") -> Interval:
    """Return the squared correlation of hidden units without the penalty over that with it."""
    first, second = _pairs(problem, by, "correlation").T
    return ratio_interval(second / first)


def penalty_settings(*methods: str) -> int:
    """Return how many settings of these methods the search tried, the same number in each."""
    (count,) = {
        sum(penalty_choice(problem, by, method).searched for method in methods)
        for problem in NETWORKS
        for by in KEYS
    }
    return count


def network_table() -> Table:
    """Return updates, test error and correlation of both networks, without a penalty and with."""
    (seeds,) = {len(_race(problem, by).runs("plain")) for problem in NETWORKS for by in KEYS}
    rows = [_row(problem, penalty) for problem in NETWORKS for penalty in (False, True)]
    return Table(
        ["network", "penalty", "median updates", "at", "test, %", "correlation", "at"],
        rows,
        f"Updates to a training loss of {penalty_target():g}, and test error (mean, 95 % interval) "
        "where the validation loss is least, with the mean squared correlation of hidden units at "
        f"the end; {seeds} seeds. At: covariance, step size, momentum, and weight of the penalty, "
        f"the best of {penalty_settings(*COVARIANCES)} on two other seeds, without a penalty of "
        f"{penalty_settings('plain')}, for each comparison.",
    )


def penalty_target() -> float:
    """Return the training loss at which a run has arrived."""
    (target,) = {run.settings["target"] for run in stored("boltzmann_network.paper")}
    return target


def _row(problem: str, penalty: bool) -> list:
    steps, test = (
        (_race(problem, by), penalized(problem, by) if penalty else "plain") for by in KEYS
    )
    return [
        NETWORKS[problem],
        "with" if penalty else "none",
        str(steps[0].arrivals(steps[1], KEYS["steps"])),
        _at(*steps),
        str(interval(test[0].of_each_seed(test[1], "test"))),
        float(np.mean(test[0].of_each_seed(test[1], "correlation"))),
        _at(*test),
    ]


def _at(race: Race, method: str) -> str:
    """Return a chosen setting as text: "cov(h, h), 0.3, 0.9, 0.001"."""
    numbers = [f"{value:g}" for value in race.chosen(method).settings.values()]
    return ", ".join([COVARIANCES[method], *numbers] if method in COVARIANCES else numbers[:2])
