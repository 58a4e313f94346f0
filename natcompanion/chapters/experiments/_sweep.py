"""Run one experiment, or a grid of them on as many workers as there are."""

import os
import platform
import subprocess
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

import torch
from joblib import Parallel, delayed, parallel_config
from tqdm import tqdm

from . import _records, _registry
from ._records import Result, identity
from ._registry import Experiment, Settings
from ._results import Results, load


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


@cache
def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy", "natcompanion")},
    }


@cache
def commit() -> str | None:
    """Return the commit of the checkout, with ``+changes`` if the library differs from it; None
    outside a checkout.
    """
    package = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", package, *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", ".") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return None


@contextmanager
def _quiet_state(seed: int, threads: int) -> Iterator[None]:
    """Seed torch and set its threads, and put both back afterwards."""
    before = torch.get_num_threads()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def execute(experiment: Experiment, preset: str, settings: Settings, threads: int = 1) -> Result:
    """Run an experiment once with these settings; the random state and thread count of the caller
    do not change.
    """
    with _quiet_state(settings.seed, threads):
        start = time.perf_counter()
        values = experiment.function(settings)
        seconds = time.perf_counter() - start
    if not isinstance(values, dict):
        raise TypeError(
            f"{experiment.name}: expected the function to return a dict, got "
            f"{type(values).__name__}"
        )
    return Result(
        experiment.name,
        preset,
        settings.seed,
        settings.plain(),
        _records.plain(values, experiment.name),
        settings.device,
        threads,
        round(seconds, 3),
        commit(),
        versions(),
    )


def run(
    name: str,
    preset: str = "quick",
    seed: int = 0,
    device: str = "cpu",
    *,
    threads: int = 1,
    **overrides: object,
) -> Result:
    """Run one experiment and return its result; nothing is stored.

    The same settings give the same numbers on the same machine: torch is seeded, and restored
    afterwards.

    Parameters
    ----------
    name
        One of :func:`names`.
    preset
        ``quick`` (seconds) or ``paper`` (the paper's sizes).
    seed, device
        Passed on in the settings.
    threads
        Threads torch may use; more than one can change the last digits.
    **overrides
        Settings to change.

    Raises
    ------
    ValueError
        If there is no such experiment, preset or setting, or a setting has the wrong type.
    """
    experiment = _registry.get(name)
    return execute(
        experiment,
        preset,
        experiment.settings(preset, dict(overrides, seed=seed, device=device)),
        threads,
    )


def _attempt(
    experiment: Experiment, preset: str, settings: Settings, threads: int
) -> Result | tuple[str, str]:
    """Return the result, or what went wrong and the traceback, so that one failure does not stop
    the rest.
    """
    try:
        return execute(experiment, preset, settings, threads)
    except Exception as error:  # noqa: BLE001 (reported with the others when the sweep ends)
        return f"{settings}: {type(error).__name__}: {error}", traceback.format_exc()


@contextmanager
def _workers(workers: int, backend: str | None, scheduler: str | None) -> Iterator[None]:
    """Choose where joblib runs its tasks; for dask, connect to the scheduler first."""
    if backend != "dask":
        if scheduler:
            raise ValueError("scheduler: only the dask backend has one; add backend='dask'")
        with parallel_config(backend=backend or "loky", n_jobs=workers):
            yield
        return
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(
            "backend dask: package distributed is not installed; pip install 'dask[distributed]'"
        ) from None
    client = Client(scheduler) if scheduler else Client(n_workers=workers, threads_per_worker=1)
    with client, parallel_config(backend="dask", n_jobs=-1):
        yield


def plan(
    experiment: Experiment,
    preset: str,
    seeds: Sequence[int],
    grid: Mapping[str, Sequence],
    device: str,
) -> list[Settings]:
    """Return the settings of every point of the grid at every seed."""
    points = [dict(zip(grid, point, strict=True)) for point in product(*grid.values())]
    return [
        experiment.settings(preset, {**p, "seed": int(s), "device": device})
        for p in points
        for s in seeds
    ]


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
    progress: bool = True,
    folder: Path | None = None,
) -> Results:
    """Run an experiment at every seed and grid point and store each record as it finishes.

    A record is known by its settings and seed. Records that are stored already are not run again,
    so a sweep that was killed goes on where it stopped; the device does not count as a setting. Two
    sweeps may write the same file.

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
        On an unknown experiment, preset, setting or backend, or a results file that cannot be read.
    RuntimeError
        If some runs failed; the others are stored.
    """
    experiment = _registry.get(name)
    done = set() if fresh else {record.identity for record in _records.read(name, preset, folder)}
    tasks = [
        settings
        for settings in plan(experiment, preset, seeds, grid or {}, device)
        if identity(settings.plain(), settings.seed) not in done
    ]
    failures = []
    with (
        _workers(workers, backend, scheduler),
        tqdm(total=len(tasks), desc=name, disable=not progress) as bar,
    ):
        jobs = (delayed(_attempt)(experiment, preset, settings, threads) for settings in tasks)
        for outcome in Parallel(return_as="generator_unordered", batch_size=1)(jobs):
            if isinstance(outcome, Result):
                _records.merge(outcome, folder)
            else:
                failures.append(outcome)
            bar.update()
    if failures:
        error = RuntimeError(
            f"{name}: {len(failures)} of {len(tasks)} runs failed; the first: {failures[0][0]}"
        )
        error.add_note(failures[0][1])
        raise error
    return load(name, preset, folder=folder)


def default_workers() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
