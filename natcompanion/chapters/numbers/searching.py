"""The search of a comparison: every method's settings on tuning seeds, and the one that is
reported.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from natcompanion.chapters.experiments import Result, Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.statistics import Arrivals, arrivals, best, geometric_mean, times


@dataclass(frozen=True)
class Choice:
    """The setting that a search chose for one method, and what was searched."""

    settings: dict[str, Any]
    searched: int
    edges: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
            for name, value in self.settings.items()
        )


def choice(
    tuning: Results,
    method: str,
    key: str | Callable[[Result], float | None],
    names: Sequence[str],
    zero: Sequence[str] = (),
) -> Choice:
    """Return the setting of a method with the least geometric mean of ``key`` over the tuning
    seeds; a key may also be a function of a record.

    A setting with a seed that has no value (None) comes after all others, and of settings that are
    equal but for rounding the first is taken. ``edges`` names the settings of which the chosen
    value is the least or the greatest that was tried; 0 is none for those in ``zero``, which can be
    no less.

    Raises
    ------
    ValueError
        If settings were not tried on the same seeds, or none has a value on every seed.
    """
    found: dict[tuple, list] = {}
    seeds: dict[tuple, set] = {}
    for record in tuning.select(method=method):
        point = tuple(record.settings[name] for name in names)
        found.setdefault(point, []).append(key(record) if callable(key) else record[key])
        seeds.setdefault(point, set()).add(record.seed)
    if len({frozenset(each) for each in seeds.values()}) != 1:
        raise ValueError(f"{method}: settings were tried on different seeds")
    arrived = {point: values for point, values in found.items() if None not in values}
    if not arrived:
        raise ValueError(f"{method}: no setting has a value on every seed")
    chosen = best((point, geometric_mean(values)) for point, values in arrived.items())
    edges = []
    for position, name in enumerate(names):
        tried = sorted({point[position] for point in found})
        ends = {tried[0], tried[-1]} - ({0} if name in zero else set())
        if len(tried) > 1 and chosen[position] in ends:
            edges.append(name)
    return Choice(dict(zip(names, chosen, strict=True)), len(found), tuple(edges))


@dataclass(frozen=True)
class Race:
    """The search of an experiment (its preset "tuning"), and the runs of another preset on other
    seeds: of each method those at the setting that has the least ``key`` in the search.

    ``where`` holds settings of all these records. A momentum of 0 is no edge.
    """

    experiment: str
    preset: str
    where: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ("lr", "momentum")
    key: str = "steps_to_target"

    def chosen(self, method: str) -> Choice:
        """Return the setting of a method."""
        tuning = stored(f"{self.experiment}.tuning").select(**self.where)
        return choice(tuning, method, self.key, self.names, zero=("momentum",))

    def runs(self, method: str) -> Results:
        """Return the reported runs of a method at its setting."""
        report = stored(f"{self.experiment}.{self.preset}").select(**self.where)
        return report.select(method=method, **self.chosen(method).settings)

    def of_each_seed(self, method: str, key: str) -> list:
        """Return ``key`` of these runs, in the order of the seeds."""
        return [run[key] for run in sorted(self.runs(method), key=lambda run: run.seed)]

    def arrivals(self, method: str, key: str) -> Arrivals:
        """Return how many of the runs arrive, and the median of ``key``."""
        return arrivals(self.of_each_seed(method, key))

    def first(self, methods: Iterable[str], key: str) -> str:
        """Return which of some methods has the least median of ``key``."""
        names = list(methods)
        medians = times(self.arrivals(method, key).median for method in names)
        return best(zip(names, medians, strict=True))

    def ahead(self, method: str, others: Iterable[str], key: str) -> np.ndarray:
        """Return for each seed whether a method needs less of ``key`` than the first of the
        others; as much is not less, and neither is never.
        """
        own, other = (
            times(self.of_each_seed(name, key)) for name in (method, self.first(others, key))
        )
        return own < other


def counted(won: np.ndarray) -> str:
    """Return how many of some truth values are true, in words: "11 of 12"."""
    return f"{int(won.sum())} of {len(won)}"


def median_of(found: Arrivals, *, whole: bool = False) -> float | str:
    """Return the median of the runs, rounded if ``whole``; "never" if half of them never arrive."""
    if found.median is None:
        return "never"
    return round(found.median) if whole else found.median
