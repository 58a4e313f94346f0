"""Run an experiment at many settings and store each record as it finishes."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from operator import index
from pathlib import Path
from typing import Any

from tqdm import tqdm

from . import provenance, registry, store
from .encoding import one_line
from .pool import Failure, Pool, outcomes
from .registry import Experiment
from .results import Results, load, state
from .runner import Origin, Task
from .settings import Settings
from .store import Result


def plan(
    experiment: Experiment,
    preset: str,
    seeds: Sequence[int],
    grid: Mapping[str, Sequence],
    device: str,
) -> list[Settings]:
    """Return the settings of every point of the grid at every seed, none twice.

    Raises
    ------
    ValueError
        If there are no values for a setting, or they are no sequence, a setting does not exist,
        or a seed is no whole number.
    """
    for key, values in grid.items():
        several = hasattr(values, "__len__") and getattr(values, "ndim", 1) > 0
        if isinstance(values, str) or not several or not len(values):
            raise ValueError(f"grid: expected a list of values for {key}, got {values!r}")
    points = [dict(zip(grid, point, strict=True)) for point in product(*grid.values())]
    every = [
        experiment.settings(preset, {**p, "seed": _whole(s), "device": device})
        for p in points
        for s in seeds
    ]
    return list({store.identity(each.plain(), each.seed): each for each in every}.values())


def _whole(seed: Any) -> int:
    try:
        return index(seed)
    except TypeError:
        raise ValueError(f"seeds: expected whole numbers, got {seed!r}") from None


def origin_of(experiment: Experiment, preset: str) -> Origin:
    """Return what a record of this experiment, run now, says of its code and its claims."""
    return Origin(provenance.commit(), experiment.fingerprint, _criteria(experiment, preset))


def _criteria(experiment: Experiment, preset: str) -> dict[str, str]:
    """Return the hashes of the criteria that this experiment's records settle."""
    ours = experiment.function.__module__.startswith(f"{provenance.ROOT}.")
    if not (ours and store.book_folder("ledger")):
        return {}
    from natcompanion.chapters import ledger  # it reads records, so it cannot be imported first

    return ledger.criteria(f"{experiment.name}.{preset}")


def outdated(record: Result, device: str, dirty: bool) -> str | None:
    """Return why a stored record does not stand for a run of today's code here; None if it does."""
    found = state(record)
    if found != "current" and not (found == "dirty" and dirty):
        return found
    if not provenance.same_versions(record.versions, provenance.versions()):
        return "of other versions"
    return None if record.device == device else f"of device {record.device}"


def missing(
    name: str, preset: str, wanted: list[Settings], dirty: bool, folder: Path | None
) -> tuple[list[Settings], Counter]:
    """Return the settings that have no record that counts, and why the others' do not count."""
    stored = {record.identity: record for record in store.read(name, preset, folder)}
    reasons: Counter[str]
    todo, reasons = [], Counter()
    for settings in wanted:
        record = stored.get(store.identity(settings.plain(), settings.seed))
        reason = "missing" if record is None else outdated(record, settings.device, dirty)
        if reason:
            todo.append(settings)
            reasons[reason] += 1
    del reasons["missing"]
    return todo, reasons


def drop(stream: Any) -> None:
    """Send what a stream still holds, and all that follows, nowhere.

    Else Python tries to write it once more when it ends, and ends with code 120.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Unread:
    """A stream that goes on when nobody reads it any more: ``sweep 2>&1 | head`` stops no run."""

    def __init__(self, stream: Any):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> None:
        """Write, if it can be."""
        self._do("write", text)

    def flush(self) -> None:
        """Flush, if it can be."""
        self._do("flush")

    def _do(self, what: str, *arguments: str) -> None:
        with suppress(AttributeError):  # None: closed from the start
            try:
                getattr(self.stream, what)(*arguments)
            except OSError:
                drop(self.stream)


class Keeper:
    """Stores records; one that cannot be stored goes to a file of the current folder."""

    def __init__(self, folder: Path | None):
        self.rescued: set[Path]
        self.folder, self.rescued = folder, set()

    def keep(self, record: Result) -> None:
        """Store one record."""
        try:
            store.append(record, self.folder)
        except OSError:
            self.rescued.add(self._rescue(record))

    def _rescue(self, record: Result) -> Path:
        line = one_line(store.as_dict(record))
        near = store.rescue_file(record.experiment, record.preset)
        for path in (near, Path(tempfile.gettempdir()) / near.name):
            try:
                store.append_line(path, line)
            except OSError:
                continue
            return path
        raise OSError(f"no place to write the record of {record}:\n{line}")


def finish(
    name: str,
    preset: str,
    tasks: list[Task],
    pool: Pool,
    *,
    progress: bool = True,
    folder: Path | None = None,
) -> None:
    """Run tasks of one experiment and preset and store what they give.

    Raises
    ------
    OSError
        If nothing can be stored: before the first run.
    RuntimeError
        If some runs failed, or some records had to be written elsewhere; all others are stored.
    """
    store.probe(name, preset, folder)
    keeper, failures = Keeper(folder), []
    try:
        stderr: Any = Unread(sys.stderr)
        with tqdm(total=len(tasks), desc=name, disable=not progress, file=stderr) as bar:
            for outcome in outcomes(tasks, pool):
                if isinstance(outcome, Failure):
                    failures.append(outcome)
                else:
                    keeper.keep(outcome)
                bar.update()
    finally:
        if not keeper.rescued:
            store.compact(name, preset, folder)
    if keeper.rescued:
        raise RuntimeError(
            f"{name}: records could not be stored; they are in "
            f"{', '.join(map(str, keeper.rescued))}: a sweep from that folder takes them over"
        )
    if failures:
        error = RuntimeError(
            f"{name}: {len(failures)} of {len(tasks)} runs failed; the first: {failures[0].message}"
        )
        error.add_note(failures[0].details)
        raise error


def clean(origin: Origin, dirty: bool) -> None:
    """Raise ValueError if the library differs from its commit and nobody said that it may."""
    if (origin.commit or "").endswith("+changes") and not dirty:
        raise ValueError(
            "the library has changes that are not committed, so that nobody could run these "
            "records again: commit them, or store records marked as dirty (--dirty, dirty=True)"
        )


def sweep(
    name: str,
    preset: str = "quick",
    *,
    seeds: Sequence[int] = range(5),
    grid: Mapping[str, Sequence] | None = None,
    device: str = "cpu",
    workers: int = 1,
    backend: str | None = None,
    scheduler: str | None = None,
    threads: int = 1,
    fresh: bool = False,
    dirty: bool = False,
    progress: bool = True,
    folder: Path | None = None,
) -> Results:
    """Run an experiment at every seed and grid point and store each record as it finishes.

    A record is known by its settings and seed. Records that are stored already are not run again,
    so a sweep that was killed goes on where it stopped; those that other code, other versions or
    another device made are, and stderr says how many. Two sweeps may write the same file.

    Parameters
    ----------
    name, preset, device, threads
        As in :func:`run`.
    seeds
        The seeds.
    grid
        Values to try for some settings, ``{"rate": [0.1, 0.2]}``: every combination is run.
    workers, backend, scheduler
        Handed to joblib: ``loky`` (processes, the default), ``threading``, or ``dask`` with the
        address of a scheduler.
    fresh
        Run again what is stored, and replace it.
    dirty
        Store records although the library differs from its commit; they are marked.
    progress
        Show a progress bar on stderr.
    folder
        Where the results file lies; the default is the book's.

    Returns
    -------
    Results
        All stored records of this experiment and preset, with those of earlier sweeps.

    Raises
    ------
    ValueError
        On an unknown experiment, preset, setting or backend, a results file that cannot be read,
        or changes that are not committed.
    OSError
        If nothing can be stored; nothing was run then.
    RuntimeError
        If some runs failed; the others are stored.
    """
    experiment = registry.get(name)
    wanted = plan(experiment, preset, seeds, grid or {}, device)
    pool = Pool(workers, backend or "loky", scheduler)
    if store.rescue_file(name, preset).exists():
        store.adopt(name, preset, folder)
    todo, reasons = missing(name, preset, wanted, dirty, folder)
    if fresh:
        todo = wanted
    elif reasons:
        Unread(sys.stderr).write(f"{name}.{preset}: run again are {counted(reasons)}\n")
    if todo:
        origin = origin_of(experiment, preset)
        clean(origin, dirty)
        tasks = [Task(experiment, preset, settings, threads, origin) for settings in todo]
        finish(name, preset, tasks, pool, progress=progress, folder=folder)
    store.compact(name, preset, folder)
    return load(name, preset, folder=folder, allow_stale=True)


def renew(
    name: str,
    preset: str,
    *,
    pool: Pool,
    dirty: bool = False,
    progress: bool = True,
    folder: Path | None = None,
) -> tuple[dict[tuple, Result], list[Result]]:
    """Run again the stored records that :func:`outdated` does not accept, with their own settings.

    Returns
    -------
    tuple
        All records as they were, by identity, and the new ones.

    Raises
    ------
    ValueError, OSError, RuntimeError
        As :func:`sweep`.
    """
    experiment = registry.get(name)
    old = {record.identity: record for record in store.read(name, preset, folder)}
    todo = [record for record in old.values() if outdated(record, record.device, dirty)]
    if todo:
        origin = origin_of(experiment, preset)
        clean(origin, dirty)
        tasks = [
            Task(
                experiment,
                preset,
                experiment.settings(
                    preset, {**record.settings, "seed": record.seed, "device": record.device}
                ),
                record.threads,
                origin,
            )
            for record in todo
        ]
        finish(name, preset, tasks, pool, progress=progress, folder=folder)
    ran = {record.identity for record in todo}
    new = [record for record in store.read(name, preset, folder) if record.identity in ran]
    return old, new


def counted(reasons: Mapping[str, int]) -> str:
    """Return counts in words.

    Examples
    --------
    >>> counted({"legacy": 3, "of other versions": 1})
    '3 legacy, 1 of other versions'
    """
    return ", ".join(f"{count} {name}" for name, count in sorted(reasons.items()))


def default_workers() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
