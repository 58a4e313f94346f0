"""Section 4.1, Figures 3a and 3b: epsilon, the interval T and the two starts."""

import numpy as np

from natcompanion.chapters.experiments import Result, Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, best, interval, ratio_interval

from .words import PERIODS, looks

STARTS = ("whitened", "fan-in")
BASES = (0.1, 0.01)
"""Values of epsilon from which it is lowered, or the step size raised."""


def _results() -> Results:
    return stored("prong_sensitivity.chapter")


def _single(eps: float, T: str, start: str) -> Result:
    """Return the record of one run at each step size."""
    return _results().select(eps=eps, period=PERIODS[T], start=start, repeats=1).records[0]


def sensitivity_looks() -> np.ndarray:
    """Return the numbers of updates at which these runs were looked at."""
    return looks(_results().select(repeats=1).records[0].settings)


def sensitivity_curve(eps: float, T: str, start: str, rate: float) -> np.ndarray:
    """Return the training error at each look of one run."""
    record = _single(eps, T, start)
    return np.array(record["train"][record.settings["rates"].index(rate)][0])


def best_eps(T: str, rate: float) -> float:
    """Return the epsilon with the least final error from the whitened start."""
    runs = _results().select(period=PERIODS[T], start="whitened", repeats=1)
    tried = [record.settings["eps"] for record in runs]
    return best((eps, sensitivity_curve(eps, T, "whitened", rate)[-1]) for eps in tried)


def _by_eps(eps: float, rate: float) -> np.ndarray:
    """Return the final errors of the repeated runs at this epsilon and step size."""
    records = [
        record
        for record in _results().select(eps=eps, start="whitened", period=PERIODS["100"])
        if record.settings["repeats"] > 1 and record.settings["updates"] < period_updates()
    ]
    (record,) = records
    return np.array(record["train"])[record.settings["rates"].index(rate), :, -1]


def eps_ratio(eps: float, rate: float, than_eps: float, than_rate: float) -> Interval:
    """Return the final error at one epsilon and step size in units of that at another."""
    return ratio_interval(_by_eps(eps, rate) / _by_eps(than_eps, than_rate))


def bases_where_eps_wins(bases: tuple[float, ...] = BASES) -> int:
    """Return from how many of these values of epsilon, at the step size 0.001, lowering it to
    0.0001 ends lower than ten times the step size does: where the whole interval is below 1.
    """
    return sum(eps_ratio(0.0001, 0.001, eps, 0.01).high < 1 for eps in bases)


def period_updates() -> int:
    """Return the length of the runs with different T."""
    return max(record.settings["updates"] for record in _results())


def _by_period(T: str, start: str) -> np.ndarray:
    """Return the final errors of the runs with this T from this start."""
    chosen = _results().select(updates=period_updates(), period=PERIODS[T], start=start)
    return np.array(chosen.records[0]["train"])[0, :, -1]


def period_error(T: str, start: str) -> Interval:
    """Return the final error with this T from this start."""
    return interval(_by_period(T, start))


def period_ratio(T: str, start: str, than_T: str, than_start: str) -> Interval:
    """Return the final error with one T and start in units of that with another."""
    return ratio_interval(_by_period(T, start) / _by_period(than_T, than_start))


def period_table() -> Table:
    """Return the final error for every T from both starts."""
    return Table(
        ["T", *(f"{start} start" for start in STARTS)],
        [[T, *(period_error(T, start) for start in STARTS)] for T in PERIODS],
        f"Training error after {period_updates()} updates, mean and 95 % interval of "
        f"{period_error('100', 'whitened').n} runs.",
    )
