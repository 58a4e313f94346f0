"""Section 5, footnote 4: whitening the gradients too, and K-FAC."""

import numpy as np

from natcompanion.chapters.experiments import Result
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval

from .words import METHODS

COMPARED = ("prong", "backward", "kfac")


def _record(method: str, seed: int = 0) -> Result:
    (record,) = stored("prong_backward.chapter").select(method=method, seed=seed).records
    return record


def initializations() -> list[int]:
    """Return the seeds from which every setting was tried; the first is the one that is drawn."""
    return sorted({record.seed for record in stored("prong_backward.chapter")})


def mean_image(method: str = "prong") -> float:
    """Return the error of the mean image, which ignores the input."""
    return _record(method)["mean_image"]


def searched(method: str) -> dict[float, list[tuple[float, float]]]:
    """Return step size and error of every setting tried, by what is added to the eigenvalues."""
    record = _record(method)
    return {
        second: [(e["rate"], e["train"]) for e in record["search"] if e["second"] == second]
        for second in sorted(record.settings["second"])
    }


def useful(method: str) -> int:
    """Return how many of the settings end better than the mean image."""
    return sum(entry["train"] < mean_image(method) for entry in _record(method)["search"])


def useless_share(method: str) -> float:
    """Return how many of the settings, in per cent, end no better than the mean image."""
    return 100 * (1 - useful(method) / len(_record(method)["search"]))


def tried_settings() -> int:
    """Return how many settings each method tried."""
    (count,) = {len(_record(method)["search"]) for method in COMPARED}
    return count


def diverged(method: str) -> np.ndarray:
    """Return for each initialization how many of the settings end above the error that the least
    step size leaves, which hardly lowers that of the start. The error of a run that broke off is
    stored as 1,000.
    """
    return np.array([_diverged(method, seed) for seed in initializations()])


def _diverged(method: str, seed: int) -> int:
    entries = [entry for name in COMPARED for entry in _record(name, seed)["search"]]
    least = min(entry["rate"] for entry in entries)
    limit = max(entry["train"] for entry in entries if entry["rate"] == least)
    return sum(not entry["train"] <= limit for entry in _record(method, seed)["search"])


def diverged_settings(method: str) -> Interval:
    """Return the mean of these numbers over the initializations."""
    return interval(diverged(method))


def diverged_more(method: str = "backward", rival: str = "prong") -> np.ndarray:
    """Return for each initialization how many more settings than the rival's diverge."""
    return diverged(method) - diverged(rival)


def best_searched(method: str) -> float:
    """Return the least error of the search."""
    return min(entry["train"] for entry in _record(method)["search"])


def searched_again(method: str) -> Interval:
    """Return the error of the best setting from other initializations."""
    return interval(_record(method)["train"])


def twofold_table() -> Table:
    """Return the best setting of each method, and how many are useless."""
    rows = [
        [
            METHODS[method],
            best_searched(method),
            f"{_record(method)['rate']:g}",
            searched_again(method),
            useless_share(method),
        ]
        for method in COMPARED
    ]
    return Table(
        [
            "method",
            "best of the search",
            "its step size",
            "again, five initializations",
            "useless settings, %",
        ],
        rows,
        "Useless is a setting that ends no better than the mean image.",
    )
