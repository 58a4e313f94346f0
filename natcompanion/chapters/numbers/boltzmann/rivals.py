"""Exact learning with momentum for every method, each with the same search."""

import numpy as np

from natcompanion.chapters.experiments import Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.boltzmann.learning import METHODS
from natcompanion.chapters.numbers.searching import Choice, Race
from natcompanion.chapters.show import Table

PLAIN = {"sgd": "SGD with momentum", "adamw": "AdamW", "muon": "Muon on the weights"}
RIVALS = {**PLAIN, **{name: text for name, text in METHODS.items() if name != "sgd"}}


RACE = Race("boltzmann_rivals", "paper")


def chosen(method: str) -> Choice:
    """Return step size and momentum that the search on two other starts chose for a method."""
    return RACE.chosen(method)


def rival_runs(method: str) -> Results:
    """Return the reported runs of a method: those at the setting that the search chose."""
    return RACE.runs(method)


def rival_median(method: str, key: str = "steps_to_target") -> float | None:
    """Return the median of ``key`` over the starts; None if half of them never arrive."""
    return RACE.arrivals(method, key).median


def rival_steps(method: str) -> int:
    """Return the median number of steps to the target, rounded.

    Raises
    ------
    ValueError
        If half of the starts never reach it.
    """
    median = rival_median(method)
    if median is None:
        raise ValueError(f"{method}: half of the starts never reach the target")
    return round(median)


def first_order(key: str = "steps_to_target") -> str:
    """Return which of SGD with momentum, AdamW and Muon has the least median of ``key``."""
    return RACE.first(PLAIN, key)


def ahead(method: str, key: str = "steps_to_target") -> np.ndarray:
    """Return for each start whether a method needs less of ``key`` than the best first-order
    one.
    """
    return RACE.ahead(method, PLAIN, key)


def starts_ahead(method: str, key: str = "steps_to_target") -> int:
    """Return the number of these starts."""
    return int(ahead(method, key).sum())


def rivals_table() -> Table:
    """Return what the search chose, steps and processor seconds of every method."""
    count = len(rival_runs("sgd"))
    choices = {method: chosen(method) for method in RIVALS}
    (settings,) = {each.searched for each in choices.values()}
    length = stored("boltzmann_rivals.tuning").records[0].settings["steps"]
    return Table(
        ["direction", "step size", "momentum", "reached", "median steps", "median seconds"],
        [_row(method, name, choices[method].settings) for method, name in RIVALS.items()],
        f"Steps and processor seconds to the target, {count} starts; every method with the best of "
        f"{settings} pairs of step size and momentum on two other starts, within {length} steps.",
    )


def _row(method: str, name: str, picked: dict) -> list:
    found = RACE.arrivals(method, "steps_to_target")
    middle = None if found.median is None else f"{found.median:.0f}"
    seconds = rival_median(method, "seconds_to_target")
    return [
        name,
        f"{picked['lr']:g}",
        f"{picked['momentum']:g}",
        f"{found.arrived} of {found.n}",
        middle,
        seconds,
    ]
