"""Table 1 with momentum for every method, each with the same search."""

import numpy as np

from natcompanion.chapters.experiments import Results
from natcompanion.chapters.figures.style import METHODS as TABLE
from natcompanion.chapters.figures.style import named
from natcompanion.chapters.numbers.searching import Choice, Race, counted, median_of
from natcompanion.chapters.show import Table, digits
from natcompanion.chapters.statistics import Arrivals, Interval, interval

PLAIN = {"sgd": TABLE["momentum"].name} | named("adamw", "muon", "kfac")
NATURAL = {"natural": "natural gradient", "unlabelled": "unlabelled metric"}
RIVALS = PLAIN | NATURAL
"""The rivals, and the natural gradient with the metric of its batch and of unlabelled digits."""

KEYS = {
    "updates": "updates_to_target",
    "seconds": "seconds_to_target",
    "test": "validation",
}
"""What a search minimizes for a comparison of updates, of processor seconds, of test errors."""


def _race(by: str) -> Race:
    names = ("lr", "momentum", "second", "batch")
    return Race("revisiting_rivals", "chapter", names=names, key=KEYS[by])


def rival_choice(method: str, by: str = "updates") -> Choice:
    """Return the setting that the search on two other seeds chose for a comparison."""
    return _race(by).chosen(method)


def rival_settings() -> int:
    """Return how many settings the search tried, the same number for every method."""
    (count,) = {rival_choice(method, by).searched for method in RIVALS for by in KEYS}
    return count


def rival_runs(method: str, by: str = "updates") -> Results:
    """Return the reported runs at that setting."""
    return _race(by).runs(method)


def rival_arrivals(method: str, by: str = "updates") -> Arrivals:
    """Return how many runs reach the target, and the median updates or seconds."""
    return _race(by).arrivals(method, KEYS[by])


def arrived(method: str, by: str = "updates") -> str:
    """Return the median updates or seconds to the target, and how many runs arrive if not all."""
    found = rival_arrivals(method, by)
    middle = median_of(found, whole=by == "updates")
    text = middle if isinstance(middle, str) else digits(middle)
    return text if found.arrived == found.n else f"{text} ({found.arrived} of {found.n})"


def longer(method: str, by: str = "seconds") -> str:
    """Return how many times as long as the best rival a method takes, as a ratio of medians.

    Raises
    ------
    ValueError
        If half of the runs of either never arrive.
    """
    own, other = (rival_arrivals(name, by).median for name in (method, best_rival(by)))
    if own is None or other is None:
        raise ValueError(f"{method}: half of the runs never arrive")
    return f"{own / other:.2g}"


def best_rival(by: str = "updates") -> str:
    """Return the rival with the least median of updates, of seconds or, for test errors, of the
    validation loss.
    """
    return _race(by).first(PLAIN, KEYS[by])


def ahead(method: str, by: str = "updates") -> np.ndarray:
    """Return for each seed whether a method reaches the target before the best rival."""
    return _race(by).ahead(method, PLAIN, KEYS[by])


def ahead_of(method: str, by: str = "updates") -> str:
    """Return on how many of the seeds, in words: "9 of 10"."""
    return counted(ahead(method, by))


def rival_tests(method: str) -> np.ndarray:
    """Return the test error of each seed where the validation loss is least, in per cent."""
    return np.array(_race("test").of_each_seed(method, "test"))


def rival_test(method: str) -> Interval:
    """Return the mean of these."""
    return interval(rival_tests(method))


def rival_differences(method: str) -> np.ndarray:
    """Return the test error of a method minus that of the best rival for each seed, in points."""
    return rival_tests(method) - rival_tests(best_rival("test"))


def rival_difference(method: str) -> Interval:
    """Return the mean of these."""
    return interval(rival_differences(method))


def rival_target() -> float:
    """Return the training loss at which a run has arrived."""
    (target,) = {run.settings["target"] for method in RIVALS for run in rival_runs(method)}
    return target


def rival_curve(method: str) -> tuple[np.ndarray, np.ndarray]:
    """Return updates, and the median training loss of the seeds at each, down to the target.

    A run that has arrived keeps its last loss. The setting is that of the comparison of updates.
    """
    runs = list(rival_runs(method))
    longest = max(runs, key=lambda run: len(run["train"]))
    length = len(longest["train"])
    losses = np.median(
        [run["train"] + run["train"][-1:] * (length - len(run["train"])) for run in runs], axis=0
    )
    below = np.flatnonzero(losses <= rival_target())
    shown = below[0] + 1 if len(below) else length
    return np.array(longest["updates"])[:shown], losses[:shown]


def rivals_table() -> Table:
    """Return updates, seconds and test error of every method, each with what its search chose."""
    (seeds,) = {len(rival_runs(method, by)) for method in RIVALS for by in KEYS}
    return Table(
        ["method", "median updates", "at", "median seconds", "at", "test, %", "at"],
        [_row(method, name) for method, name in RIVALS.items()],
        f"Updates and processor seconds to a training loss of {rival_target():g}, and test error "
        f"(mean, 95 % interval) where the validation loss is least; {seeds} seeds. At: step size, "
        "momentum, and batch or, with a metric, damping, the best of "
        f"{rival_settings()} on two other seeds for each comparison.",
    )


def _row(method: str, name: str) -> list:
    return [
        name,
        arrived(method),
        _setting(method, "updates"),
        arrived(method, "seconds"),
        _setting(method, "seconds"),
        str(rival_test(method)),
        _setting(method, "test"),
    ]


def _setting(method: str, by: str) -> str:
    """Return a chosen setting as text: "0.3, 0.9, 200"."""
    found = rival_choice(method, by).settings
    last = found["batch"] if method in ("sgd", "adamw", "muon") else found["second"]
    return f"{found['lr']:g}, {found['momentum']:g}, {last:g}"
