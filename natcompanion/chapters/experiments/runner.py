"""Run one experiment once."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from . import provenance, registry, store
from .encoding import plain
from .registry import Experiment
from .settings import Settings
from .store import Result


@dataclass(frozen=True)
class Origin:
    """The code that a run executes: commit, fingerprint, and hashes of the claims' criteria."""

    commit: str | None
    fingerprint: str
    criteria: dict = field(default_factory=dict)


@contextmanager
def _quiet_state(seed: int, threads: int) -> Iterator[None]:
    """Seed torch, set its threads and its default dtype, and put all back afterwards."""
    before, dtype = torch.get_num_threads(), torch.get_default_dtype()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        torch.set_num_threads(threads)
        torch.set_default_dtype(torch.float32)  # chapters have another
        try:
            yield
        finally:
            torch.set_num_threads(before)
            torch.set_default_dtype(dtype)


def execute(
    experiment: Experiment, preset: str, settings: Settings, threads: int, origin: Origin
) -> Result:
    """Run an experiment once with these settings; random state, thread count and default dtype of
    the caller neither matter nor change.
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
    record = Result(
        experiment.name,
        preset,
        settings.seed,
        settings.plain(),
        plain(values, experiment.name),
        settings.device,
        threads,
        round(seconds, 3),
        origin.commit,
        provenance.versions(),
        origin.fingerprint,
        provenance.machine(),
        origin.criteria,
    )
    return store.sealed(record)


def run(
    name: str,
    preset: str = "quick",
    seed: int = 0,
    device: str = "cpu",
    *,
    threads: int = 1,
    **overrides: Any,
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
    experiment = registry.get(name)
    settings = experiment.settings(preset, dict(overrides, seed=seed, device=device))
    origin = Origin(provenance.commit(), experiment.fingerprint)
    return execute(experiment, preset, settings, threads, origin)


@dataclass(frozen=True)
class Task:
    """One run of a sweep."""

    experiment: Experiment
    preset: str
    settings: Settings
    threads: int
    origin: Origin

    def run(self) -> Result:
        """Return the record of the run."""
        return execute(self.experiment, self.preset, self.settings, self.threads, self.origin)

    def __str__(self) -> str:
        return str(self.settings)
