"""Section 4.2 at the paper's size: one initialization of each method."""

from typing import Any

import numpy as np

from natcompanion.chapters.experiments import Result, Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table

from .words import METHODS, STARTS, first_arrival, looks


def _results() -> Results:
    return stored("prong_autoencoder.paper")


def paper_updates() -> int:
    """Return the length of the full runs; what is shorter is a trial."""
    return max(record.settings["updates"] for record in _results())


def _full(method: str | None = None) -> list[Result]:
    """Return the full runs, the one with the least final error first."""
    chosen = _results().select(updates=paper_updates(), **({"method": method} if method else {}))
    return sorted(chosen, key=lambda record: record["train"][0][-1])


def paper_runs() -> dict[str, Result]:
    """Return the full run of each method; of several, the best."""
    found = {record.settings["method"] for record in _full()}
    return {method: _full(method)[0] for method in METHODS if method in found}


def paper_error(method: str, images: str = "train") -> float:
    """Return the error after the last update, on the images for training or for "test"."""
    return _full(method)[0][images][0][-1]


def other_runs_error(method: str) -> float:
    """Return the final training error of a method's full run that was not the best."""
    return _full(method)[-1]["train"][0][-1]


def paper_seconds(method: str) -> float:
    """Return the CPU seconds of the whole run."""
    return _full(method)[0]["seconds"][0][-1]


def paper_curves(method: str, cost: str = "updates") -> tuple[np.ndarray, np.ndarray]:
    """Return updates (or CPU seconds) and training error at each look."""
    record = _full(method)[0]
    spent = record["seconds"][0] if cost == "seconds" else looks(record.settings)
    return np.asarray(spent), np.asarray(record["train"][0])


def _spent_to(method: str, rival: str, cost: str) -> Any:
    spent, errors = paper_curves(method, cost)
    look = first_arrival(errors.tolist(), paper_error(rival))
    return None if look is None else spent[look].item()


def paper_updates_to(method: str, rival: str) -> int | None:
    """Return after how many updates a method first is at its rival's final error."""
    return _spent_to(method, rival, "updates")


def paper_seconds_to(method: str, rival: str) -> float | None:
    """Return after how many CPU seconds a method first is at its rival's final error."""
    return _spent_to(method, rival, "seconds")


def paper_fewer(method: str, rival: str) -> float | None:
    """Return how many times fewer updates a method needs to be at its rival's final error."""
    needed = paper_updates_to(method, rival)
    return None if needed is None else paper_updates() / needed


def overtakes(method: str, rival: str) -> int:
    """Return the updates from which on a method's error is the lower one at every look."""
    updates, errors = paper_curves(method)
    behind = np.flatnonzero(errors >= paper_curves(rival)[1])
    return int(updates[behind.max() + 1]) if behind.size else 0


def error_when_done(method: str, rival: str) -> float:
    """Return the error of a method at its last look before its rival's run was over."""
    spent, errors = paper_curves(method, "seconds")
    return float(errors[spent <= paper_seconds(rival)][-1])


def tried(method: str) -> set[tuple[float, ...]]:
    """Return the step sizes, momenta and second settings that a method tried."""
    keys = ("rates", "momenta", "second")
    records = _results().select(method=method)
    return {tuple(value for key in keys for value in record.settings[key]) for record in records}


def tried_in_all() -> int:
    """Return how many settings were tried, all methods together."""
    return sum(len(tried(method)) for method in paper_runs())


def paper_table() -> Table:
    """Return settings, errors and time of the full runs."""
    rows = [
        [
            METHODS[method],
            STARTS[record.settings["start"]],
            f"{record['best']['rate']:g}",
            f"{record['best']['momentum']:g}",
            f"{record['best']['second']:g}" if record["best"]["second"] else None,
            len(tried(method)),
            record.settings["updates"],
            paper_error(method),
            paper_error(method, "test"),
            paper_seconds(method),
        ]
        for method, record in paper_runs().items()
    ]
    return Table(
        [
            "method",
            "start",
            "step size",
            "momentum",
            "ε or decay",
            "settings tried",
            "updates",
            "training error",
            "test error",
            "CPU s",
        ],
        rows,
        "The paper's network, one initialization of each method. Settings were tried for 150 or "
        "300 updates; the best run of the full length is shown.",
    )
