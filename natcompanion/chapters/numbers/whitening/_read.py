"""Stored results of the whitening chapter, their settings, and how both are written."""

from typing import Any

import numpy as np

from natcompanion.chapters.experiments import Results
from natcompanion.chapters.experiments._descent import RATES
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.statistics import Arrivals, arrivals

RIDGES = {"weak": 1e-5, "strong": 1e-3}


def read(experiment: str) -> Results:
    """Return the records of ``whitening_<experiment>.quick``."""
    return stored(f"whitening_{experiment}.quick")


def positional(value: Any) -> Any:
    """Return a float as decimals without an exponent, anything else as it is.

    Examples
    --------
    >>> positional(1e-05), positional(1000.0), positional(6)
    ('0.00001', '1000', 6)
    """
    return np.format_float_positional(value, trim="-") if isinstance(value, float) else value


def whole(steps: float | None) -> float | None:
    """Return a number of steps as an integer where it is one (a median may end on a half)."""
    return int(steps) if steps is not None and steps == int(steps) else steps


def percent(share: float) -> str:
    """Return a share as per cent, without decimals."""
    return f"{100 * share:.0f} %"


def setting(experiment: str, key: str) -> Any:
    """Return a setting that all stored records of an experiment share.

    Raises
    ------
    ValueError
        If the records differ in it.
    """
    found = {str(record.settings[key]): record.settings[key] for record in read(experiment)}
    if len(found) != 1:
        raise ValueError(f"{experiment}: {key} has the values {', '.join(sorted(found))}")
    return positional(next(iter(found.values())))


def count(experiment: str, **settings: Any) -> int:
    """Return how many records are stored, or how many have these settings."""
    results = read(experiment)
    return len(results.select(**settings) if settings else results)


def ridge(name: str) -> Any:
    """Return the weak or the strong ridge."""
    return positional(RIDGES[name])


def rates() -> int:
    """Return how many step sizes every method chooses from."""
    return len(RATES)


def lowest_rate() -> Any:
    """Return the smallest of these step sizes."""
    return positional(float(min(RATES)))


def highest_rate() -> Any:
    """Return the largest of these step sizes."""
    return positional(float(max(RATES)))


def arrived(experiment: str, key: str, name: str, **settings: Any) -> Arrivals:
    """Return how many runs of a method reached the target, and their median number of steps.

    Parameters
    ----------
    experiment, name : str
        The experiment and the method.
    key : str
        What holds the number of steps by method: "steps" or "evaluations".
    """
    results = read(experiment)
    chosen = results.select(**settings) if settings else results
    return arrivals(record[key][name] for record in chosen)


def fraction(found: Arrivals) -> str:
    """Return how many of the runs arrived, as a fraction."""
    return f"{found.arrived}/{found.n}"
