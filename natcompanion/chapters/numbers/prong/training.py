"""Section 4.2, Figures 3c and 3d: the auto-encoder, every method after the same search."""

from collections.abc import Sequence

import numpy as np

from natcompanion.chapters.experiments import Result
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import (
    Arrivals,
    Interval,
    arrivals,
    best,
    interval,
    ratio_interval,
)

from .words import METHODS, STARTS, Band, band, first_arrival, looks

PAIRS = (
    ("prong", "sgd"),
    ("prong", "rmsprop"),
    ("prong", "batchnorm"),
    ("prong+", "sgd"),
    ("prong+", "batchnorm"),
)
"""Which method is held against which."""


def starts_of(method: str) -> list[str]:
    """Return the starts from which a method was trained."""
    results = stored("prong_autoencoder.chapter")
    found = {r.settings["start"] for r in results if r.settings["method"] == method}
    return [start for start in STARTS if start in found]


def autoencoder(method: str, start: str | None = None) -> Result:
    """Return the runs of a method, from the start with the least mean final error if none is
    given.
    """
    if start is None:
        start = best((each, final_error(method, each).mean) for each in starts_of(method))
    return stored("prong_autoencoder.chapter").select(method=method, start=start).records[0]


def last(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the last value of each curve."""
    return [curve[-1] for curve in curves]


def final_error(method: str, start: str | None = None) -> Interval:
    """Return the training error after the last update."""
    return interval(last(autoencoder(method, start)["train"]))


def autoencoder_settings(key: str) -> int:
    """Return "tried", the settings that each method tried, or "short" or "updates", how many
    updates the search and the full runs made.
    """
    record = autoencoder("prong")
    return len(record["search"]) if key == "tried" else record.settings[key]


def not_run() -> str:
    """Return which methods were not run from which starts."""
    missing = {
        METHODS[method]: [text for start, text in STARTS.items() if start not in starts_of(method)]
        for method in METHODS
        if starts_of(method)
    }
    return "; ".join(
        f"{name} from {' and '.join(starts)}" for name, starts in missing.items() if starts
    )


def _spent(record: Result, cost: str) -> list[list[float]]:
    """Return the updates or the CPU seconds that each run had spent at each look."""
    if cost == "seconds":
        return record["seconds"]
    return [looks(record.settings).tolist()] * len(record["train"])


def gains(
    method: str,
    rival: str,
    cost: str = "updates",
    start: str | None = None,
    rival_start: str | None = None,
) -> list[float | None]:
    """Return for each initialization how many times less a method spends than its rival to be at
    the rival's final error; None if it never is.
    """
    fast, slow = autoencoder(method, start), autoencoder(rival, rival_start)
    runs = zip(fast["train"], slow["train"], _spent(fast, cost), _spent(slow, cost), strict=True)
    found = []
    for errors, goals, spent, others in runs:
        look = first_arrival(errors, goals[-1])
        found.append(None if look is None else others[-1] / spent[look])
    return found


def saving(
    method: str,
    rival: str,
    cost: str = "updates",
    start: str | None = None,
    rival_start: str | None = None,
) -> Interval | Arrivals:
    """Return the geometric mean of :func:`gains`; if a run never arrives, how many do, and the
    median.
    """
    each = gains(method, rival, cost, start, rival_start)
    if None not in each:
        return ratio_interval(each)
    found = arrivals(None if gain is None else 1 / gain for gain in each)
    return Arrivals(found.arrived, found.n, found.median and 1 / found.median)


def arrived(method: str, rival: str) -> str:
    """Return how many runs of a method get to its rival's final error, such as "2 of 5"."""
    each = gains(method, rival)
    return f"{len(each) - each.count(None)} of {len(each)}"


def error_ratio(method: str, *rivals: str) -> Interval:
    """Return the final error of a method in units of the least of its rivals' from the same
    initialization.
    """
    others = [last(autoencoder(rival)["train"]) for rival in rivals]
    return ratio_interval(np.divide(last(autoencoder(method)["train"]), np.min(others, axis=0)))


def error_ratio_in_time(method: str, rival: str) -> Interval:
    """Return the error of a method in units of its rival's, each at its last look before the first
    of the two has made all its updates, in CPU seconds.
    """
    records = [autoencoder(name) for name in (method, rival)]
    budgets = np.min([last(record["seconds"]) for record in records], axis=0)
    own, other = (
        [
            errors[int(np.searchsorted(spent, budget, side="right")) - 1]
            for errors, spent, budget in zip(
                record["train"], record["seconds"], budgets, strict=True
            )
        ]
        for record in records
    )
    return ratio_interval(np.divide(own, other))


def autoencoder_curves(method: str, start: str | None = None, cost: str = "updates") -> Band:
    """Return the training error against updates, or against the median of the CPU seconds."""
    record = autoencoder(method, start)
    return band(np.median(_spent(record, cost), 0), record["train"])


def autoencoder_table() -> Table:
    """Return the settings that won, and the errors after the last update."""
    rows = [
        [
            METHODS[method],
            STARTS[start],
            f"{record['best']['rate']:g}",
            f"{record['best']['momentum']:g}",
            f"{record['best']['second']:g}" if record["best"]["second"] else None,
            final_error(method, start),
            interval(last(record["test"])).mean,
            interval(last(record["seconds"])).mean,
        ]
        for method in METHODS
        for start in starts_of(method)
        for record in [autoencoder(method, start)]
    ]
    return Table(
        [
            "method",
            "start",
            "step size",
            "momentum",
            "ε or decay",
            "training error",
            "test error",
            "CPU s",
        ],
        rows,
        "The settings that won, and the errors after the last update: mean of "
        f"{final_error('prong').n} initializations, for the training error with its 95 % interval.",
    )


def saving_table() -> Table:
    """Return how much less PRONG and PRONG+ spend than their rivals."""
    rows = [
        [
            METHODS[method],
            METHODS[rival],
            saving(method, rival),
            saving(method, rival, "seconds"),
        ]
        for method, rival in PAIRS
    ]
    return Table(
        ["method", "against", "times fewer updates", "times less CPU time"],
        rows,
        "To reach the other's final training error, both from their best starts: geometric mean "
        f"and 95 % interval of {final_error('prong').n} runs, if all of them get there.",
    )
