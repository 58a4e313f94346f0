"""What a stored experiment says: values over seeds, means and their intervals."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from natcompanion.chapters.statistics import Interval, interval

from . import _records
from ._records import Result


@dataclass(frozen=True)
class Results:
    """The stored records of one experiment and preset."""

    experiment: str
    preset: str
    records: tuple[Result, ...]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.records)

    def select(self, **settings: object) -> "Results":
        """Return the records whose settings (``seed`` and ``device`` too) have these values.

        Raises
        ------
        ValueError
            If a setting is unknown or no record has these values.
        """
        wanted = _records.plain(settings)
        known = {"seed", "device"}.union(*(record.settings for record in self.records))
        if unknown := sorted(set(wanted) - known):
            raise ValueError(
                f"{self.experiment}: no setting {', '.join(unknown)}; there are "
                f"{', '.join(sorted(known))}"
            )
        kept = tuple(
            record
            for record in self.records
            for has in [{**record.settings, "seed": record.seed, "device": record.device}]
            if all(has[key] == value for key, value in wanted.items())
        )
        if not kept:
            raise ValueError(f"{self.experiment}.{self.preset}: no stored record with {settings}")
        return Results(self.experiment, self.preset, kept)

    def values(self, key: str, **settings: object) -> np.ndarray:
        """Return one value of every record, in the order of seeds, as an array (records, ...).

        Keyword arguments select records first. If the records that remain differ in more than the
        seed, the order is by settings, then seed.
        """
        chosen = self.select(**settings) if settings else self
        return np.array(
            [record[key] for record in sorted(chosen.records, key=lambda record: record.identity)]
        )

    def mean(self, key: str, **settings: object) -> Interval:
        """Return the mean of a value over the records with its 95 % interval."""
        return interval(self.values(key, **settings))

    def median(self, key: str, **settings: object) -> float:
        """Return the median of a value over the records."""
        return float(np.median(self.values(key, **settings)))


def load(name: str, preset: str = "quick", *, folder: Path | None = None) -> Results:
    """Return the stored results of an experiment; works from any folder.

    Raises
    ------
    ValueError
        If nothing is stored, or the file is not a results file.
    """
    records = _records.read(name, preset, folder)
    if not records:
        path = _records.path_of(name, preset, folder)
        raise ValueError(
            f"no stored results in {path}; run: natcompanion sweep {name} --preset {preset}"
        )
    return Results(name, preset, tuple(records))


def stored(folder: Path | None = None) -> list[tuple[str, str]]:
    """Return the experiment and preset of every results file."""
    paths = (folder or _records.results_folder()).glob("[!.]*/[!.]*.*.json")
    return sorted((path.name.split(".")[0], path.name.split(".")[1]) for path in paths)
