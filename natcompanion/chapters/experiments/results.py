"""What a stored experiment says: values over seeds, means and their intervals."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from natcompanion.chapters.statistics import Interval, interval

from . import registry, store
from .encoding import plain
from .provenance import PACKAGES
from .store import Result

STATES = ("current", "dirty", "legacy", "stale", "edited")


def state(record: Result) -> str:
    """Return how far a record can be trusted.

    ``edited``: it is not what was written. ``legacy``: made before records had fingerprints.
    ``stale``: made by other code than today's. ``dirty``: made by code that no commit holds.
    ``current``: none of these.
    """
    if record.edited:
        return "edited"
    if record.fingerprint is None:
        return "legacy"
    try:
        now = registry.get(record.experiment).fingerprint
    except ValueError:
        return "stale"
    if record.fingerprint != now:
        return "stale"
    return "dirty" if record.dirty else "current"


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

    @property
    def states(self) -> dict[str, int]:
        """How many records there are of each state; see ``state``."""
        return dict(Counter(map(state, self.records)))

    @property
    def core_seconds(self) -> float:
        """The seconds of all runs, times their threads. They are seconds of the clock, so that on a
        busy machine they are more than the work took.
        """
        return sum(record.seconds * record.threads for record in self.records)

    @property
    def dirty(self) -> bool:
        """Whether a record was made by code that no commit holds."""
        return any(record.dirty for record in self.records)

    @property
    def notes(self) -> list[str]:
        """What a reader has to know about these records: states other than current, and several
        versions or devices in one average.
        """
        found = [f"{count} {name}" for name, count in self.states.items() if name != "current"]
        kinds: dict[str, set[Any]] = {
            name: {r.versions.get(name) for r in self.records} - {None} for name in PACKAGES
        }
        kinds |= {"device": {record.device for record in self.records}}
        return sorted(found) + [
            f"several of {name}: {', '.join(sorted(each))}"
            for name, each in kinds.items()
            if len(each) > 1
        ]

    def select(self, **settings: Any) -> "Results":
        """Return the records whose settings (``seed`` and ``device`` too) have these values.

        Raises
        ------
        ValueError
            If a setting is unknown or no record has these values.
        """
        wanted = plain(settings)
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

    def values(self, key: str, **settings: Any) -> np.ndarray:
        """Return one value of every record, in the order of seeds, as an array (records, ...).

        Keyword arguments select records first. If the records that remain differ in more than the
        seed, the order is by settings, then seed.
        """
        chosen = self.select(**settings) if settings else self
        return np.array(
            [record[key] for record in sorted(chosen.records, key=lambda record: record.identity)]
        )

    def mean(self, key: str, **settings: Any) -> Interval:
        """Return the mean of a value over the records with its 95 % interval."""
        return interval(self.values(key, **settings))

    def median(self, key: str, **settings: Any) -> float:
        """Return the median of a value over the records."""
        return float(np.median(self.values(key, **settings)))


def load(
    name: str, preset: str = "quick", *, folder: Path | None = None, allow_stale: bool = False
) -> Results:
    """Return the stored results of an experiment; works from any folder.

    Parameters
    ----------
    name, preset
        The experiment and its preset.
    folder
        Where results lie; the default is the book's.
    allow_stale
        Return records that other code than today's has made. Whoever allows it shows
        ``Results.notes``, as the scoreboard and ``natcompanion doctor`` do.

    Raises
    ------
    ValueError
        If nothing is stored, the file is not a results file, a record was edited after it was
        written, or (unless allowed) was made by other code.
    """
    records = store.read(name, preset, folder)
    path = store.path_of(name, preset, folder)
    if not records:
        raise ValueError(
            f"no stored results in {path}; run: natcompanion sweep {name} --preset {preset}"
        )
    for record in records:
        if record.edited:
            raise ValueError(
                f"{path}: the record of {record} was edited after it was written (its content has "
                f"hash {store.content_hash(record)}, the run wrote {record.hash}); restore it from "
                f"git, or run it again: natcompanion renew {name}.{preset}"
            )
        if not allow_stale and state(record) == "stale":
            raise ValueError(
                f"{path}: the record of {record} was made by other code (fingerprint "
                f"{record.fingerprint}); run it again: natcompanion renew {name}.{preset}"
            )
    return Results(name, preset, tuple(records))


def stored(folder: Path | None = None) -> list[tuple[str, str]]:
    """Return the experiment and preset of every results file."""
    paths = (folder or store.results_folder()).glob("[!.]*/[!.]*.*.json*")
    return sorted({(path.name.split(".")[0], path.name.split(".")[1]) for path in paths})
