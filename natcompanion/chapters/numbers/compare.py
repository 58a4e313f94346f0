"""One problem, every method: when the runs of the comparison arrive, and what they cost."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from natcompanion.chapters.experiments.compare import TARGETS
from natcompanion.chapters.experiments.store import Result
from natcompanion.chapters.figures.style import METHODS as TABLE
from natcompanion.chapters.figures.style import named
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.searching import Choice, choice, median_of
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Arrivals, arrivals, best, median, significant, times

METHODS = (
    named("sgd", "momentum", "adamw", "muon", "batchnorm")
    | {"natural": TABLE["truncated"].name}
    | named("sample", "kfac", "prong", "prong+", "rngd")
)
RIVALS = ("momentum", "adamw", "muon", "batchnorm", "kfac")
"""Whom PRONG and RNGD have to beat in the rows that end in ``-fair``."""

SETTINGS = ("lr", "momentum", "second", "start", "period")
"""What is chosen for a method; some of it has one value only."""

PRESETS = ("compare.tuning", "compare.chapter")
"""The runs of the search and those of the report."""

ROUNDING = 1e-12
"""A difference of two losses in float64 may be as large without meaning anything."""


def methods(problem: str) -> list[str]:
    """Return the methods that were reported on a problem."""
    found = {
        record.settings["method"] for record in stored("compare.chapter").select(problem=problem)
    }
    return [method for method in METHODS if method in found]


def chosen(problem: str, method: str) -> Choice:
    """Return the settings that the search chose for a method. A momentum of 0 is no edge, and
    neither is one of two values.
    """
    tuning = stored("compare.tuning").select(problem=problem)
    found = choice(tuning, method, "lateness", SETTINGS, zero=("momentum",))
    tried = {record.settings["momentum"] for record in tuning.select(method=method)}
    numeric = ("lr", "momentum", "second") if len(tried) > 2 else ("lr", "second")
    return Choice(
        found.settings, found.searched, tuple(name for name in found.edges if name in numeric)
    )


def step_size(problem: str, method: str) -> float:
    """Return the step size that the search chose."""
    return chosen(problem, method).settings["lr"]


def runs(problem: str, method: str) -> list[Result]:
    """Return the reported runs of a method, in the order of seeds."""
    report = stored("compare.chapter")
    found = report.select(problem=problem, method=method, **chosen(problem, method).settings)
    return sorted(found, key=lambda record: record.seed)


def starts(problem: str) -> int:
    """Return the number of reported seeds."""
    (count,) = {len(runs(problem, method)) for method in methods(problem)}
    return count


def searched(problem: str) -> int:
    """Return the number of settings that each method tried."""
    (count,) = {chosen(problem, method).searched for method in methods(problem)}
    return count


def to_target(problem: str, method: str, key: str = "updates") -> list[float | None]:
    """Return the updates or the seconds to the target of every run; None if it never arrives."""
    return [record[f"{key}_to_target"] for record in runs(problem, method)]


def reached(problem: str, method: str, key: str = "updates") -> Arrivals:
    """Return how many runs arrive, and their median."""
    return arrivals(to_target(problem, method, key))


def middle(problem: str, method: str, key: str = "updates") -> float | str:
    """Return the median updates or seconds to the target, or that half of the runs never arrive."""
    return median_of(reached(problem, method, key), whole=key == "updates")


def fastest(problem: str, key: str = "updates", among: Sequence[str] | None = None) -> str:
    """Return the method with the least median, of all or of some."""
    names = methods(problem) if among is None else [m for m in methods(problem) if m in among]
    medians = times(reached(problem, method, key).median for method in names)
    return best(zip(names, medians, strict=True))


def fastest_name(problem: str, key: str = "updates") -> str:
    """Return its name."""
    return METHODS[fastest(problem, key)]


def best_rival(problem: str, key: str = "updates") -> str:
    """Return the name of the rival with the least median."""
    return METHODS[fastest(problem, key, RIVALS)]


def ahead(method: str, problem: str, key: str = "updates") -> np.ndarray:
    """Return for each start whether a method arrives before the rival with the least median."""
    own, other = (
        times(to_target(problem, name, key)) for name in (method, fastest(problem, key, RIVALS))
    )
    return own < other


def starts_ahead(method: str, problem: str, key: str = "updates") -> int:
    """Return the number of these starts."""
    return int(ahead(method, problem, key).sum())


def milliseconds(problem: str, method: str) -> float:
    """Return the median over the runs of the processor time of an update, statistics and all."""
    return median(
        [
            1000 * record["clock"][-1] / (record.settings["every"] * (len(record["clock"]) - 1))
            for record in runs(problem, method)
        ]
    )


def curve(problem: str, method: str, against: str = "updates") -> tuple[np.ndarray, np.ndarray]:
    """Return updates or seconds, and the score of every run (runs, points), as long as all runs
    go on.
    """
    found = runs(problem, method)
    length = min(len(record["score"]) for record in found)
    scores = np.array([record["score"][:length] for record in found])
    if against == "updates":
        return found[0].settings["every"] * np.arange(length), scores
    return np.median([record["clock"][:length] for record in found], axis=0), scores


def last(problem: str, method: str) -> float:
    """Return the median score at the end; an excess loss that is rounding is none."""
    score = median(curve(problem, method)[1][:, -1])
    return score if score > ROUNDING else 0.0


def updates(problem: str, method: str) -> int:
    """Return how many updates a reported run makes."""
    return runs(problem, method)[0].settings["updates"]


def table(problem: str) -> Table:
    """Return what every method chose, whether and when it arrives, and what an update costs."""
    return Table(
        ["method", "chosen", "arrive", "updates", "seconds", "ms an update", "score at the end"],
        [_row(problem, method) for method in methods(problem)],
        f"Median updates and processor seconds to a score of {TARGETS[problem]:g}, "
        f"{starts(problem)} starts; every method with the best of {searched(problem)} settings on "
        "two other starts.",
    )


def _row(problem: str, method: str) -> list[Any]:
    found = reached(problem, method)
    length = updates(problem, method)
    return [
        METHODS[method],
        settings_text(problem, method),
        arrived(problem, method),
        middle(problem, method) if found.median is not None else f"over {length}",
        reached(problem, method, "seconds").median,
        milliseconds(problem, method),
        last(problem, method),
    ]


SECOND = {
    "natural": "damping",
    "sample": "damping",
    "kfac": "damping",
    "prong": "ε",
    "prong+": "ε",
    "rngd": "ε",
}


def settings_text(problem: str, method: str) -> str:
    """Return the chosen settings in words."""
    picked = chosen(problem, method).settings
    parts = [f"step {picked['lr']:g}"]
    if method != "sgd":
        parts.append(f"momentum {picked['momentum']:g}")
    if method in SECOND:
        parts.append(f"{SECOND[method]} {picked['second']:g}")
    if problem == "autoencoder":
        parts.append("whitened start" if picked["start"] == "whitened" else "plain start")
    return ", ".join(parts)


def at_an_edge(problem: str) -> str:
    """Return the methods with a chosen setting that is the least or the greatest that was tried."""
    words = {"lr": "step size", "momentum": "momentum"}
    found = [
        f"{METHODS[method]} ({' and '.join(words.get(e, SECOND.get(method, e)) for e in edges)})"
        for method in methods(problem)
        if (edges := chosen(problem, method).edges)
    ]
    return ", ".join(found) or "none"


def core_minutes() -> str:
    """Return the processor time of training in the whole comparison, search and report, in
    minutes.
    """
    total = sum(record["clock"][-1] for preset in PRESETS for record in stored(preset))
    return significant(total / 60)


def all_minutes() -> str:
    """Return the same with all else that the runs did: the core-seconds of the claims, in
    minutes.
    """
    return significant(sum(stored(preset).core_seconds for preset in PRESETS) / 60)


def arrived(problem: str, method: str) -> str:
    """Return how many of the runs arrive."""
    found = reached(problem, method)
    return f"{found.arrived} of {found.n}"
