"""The search of a comparison: every method's settings on tuning seeds, and the one that is
reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from natcompanion.chapters.experiments import Results
from natcompanion.chapters.statistics import Arrivals, best, ratio_interval


@dataclass(frozen=True)
class Choice:
    """The setting that a search chose for one method, and what was searched."""

    settings: dict[str, Any]
    searched: int
    edges: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.settings.items())


def choice(
    tuning: Results, method: str, key: str, names: Sequence[str], zero: Sequence[str] = ()
) -> Choice:
    """Return the setting of a method with the least geometric mean of ``key`` over the tuning
    seeds.

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
        found.setdefault(point, []).append(record[key])
        seeds.setdefault(point, set()).add(record.seed)
    if len({frozenset(each) for each in seeds.values()}) != 1:
        raise ValueError(f"{method}: settings were tried on different seeds")
    arrived = {point: values for point, values in found.items() if None not in values}
    if not arrived:
        raise ValueError(f"{method}: no setting has a value on every seed")
    chosen = best((point, ratio_interval(values).mean) for point, values in arrived.items())
    edges = []
    for position, name in enumerate(names):
        tried = sorted({point[position] for point in found})
        ends = {tried[0], tried[-1]} - ({0} if name in zero else set())
        if len(tried) > 1 and chosen[position] in ends:
            edges.append(name)
    return Choice(dict(zip(names, chosen, strict=True)), len(found), tuple(edges))


def median_of(found: Arrivals, *, whole: bool = False) -> float | str:
    """Return the median of the runs, rounded if ``whole``; "never" if half of them never arrive."""
    if found.median is None:
        return "never"
    return round(found.median) if whole else found.median
