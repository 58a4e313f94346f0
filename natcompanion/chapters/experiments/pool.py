"""Many runs at once, of which one may fail, or its process be killed, without the others."""

import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from joblib import Parallel, delayed, parallel_config

from .store import Result


@dataclass(frozen=True)
class Failure:
    """What went wrong in a run: in one line, and in full."""

    message: str
    details: str = ""


Outcome = Result | Failure


class Task(Protocol):
    """Something to run."""

    def run(self) -> Result: ...


@dataclass(frozen=True)
class Pool:
    """Where tasks run: joblib's ``loky`` (processes), ``threading``, or a ``dask`` cluster."""

    workers: int = 1
    backend: str = "loky"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("workers: expected a number other than 0, got 0")
        if self.scheduler and self.backend != "dask":
            raise ValueError("scheduler: only the dask backend has one; add backend='dask'")

    @property
    def here(self) -> bool:
        """Whether tasks run in this process."""
        return self.backend == "threading" or (self.backend == "loky" and self.workers == 1)

    @property
    def watched(self) -> bool:
        """Whether tasks run in other processes of this machine."""
        return self.backend == "loky" and self.workers != 1


def said(error: BaseException) -> str:
    """Return the type and the text of an exception, which may have none that can be had.

    Examples
    --------
    >>> said(ValueError("no"))
    'ValueError: no'
    """
    return "".join(traceback.format_exception_only(error)).strip()


def attempt(number: int, task: Task, here: bool, folder: Path | None) -> tuple[int, Outcome]:
    """Run a task and return what it gave, or what went wrong.

    A file in ``folder`` stands for the task while it runs: when its process is killed, the file
    stays.
    """
    marker = folder / str(number) if folder else None
    try:
        if marker:
            marker.touch()
        return number, task.run()
    except BaseException as error:
        if here and isinstance(error, KeyboardInterrupt):
            raise  # somebody wants to stop
        return number, Failure(f"{task}: {said(error)}", traceback.format_exc())
    finally:
        if marker:
            marker.unlink(missing_ok=True)


@contextmanager
def connected(pool: Pool) -> Iterator[None]:
    """Choose where joblib runs its tasks; for dask, connect to the scheduler first."""
    if pool.backend != "dask":
        with parallel_config(backend=pool.backend, n_jobs=pool.workers):
            yield
        return
    try:
        from distributed import Client
    except ImportError:
        raise ValueError(
            "backend dask: package distributed is not installed; pip install 'dask[distributed]'"
        ) from None
    options = {} if pool.scheduler else {"n_workers": pool.workers, "threads_per_worker": 1}
    with Client(pool.scheduler, **options), parallel_config(backend="dask", n_jobs=-1):
        yield


def _killed(error: Exception) -> bool:
    """Return whether the error says that a worker's process ended."""
    return isinstance(error, BrokenProcessPool) or type(error).__name__ == "KilledWorker"


def outcomes(tasks: Sequence[Task], pool: Pool) -> Iterator[Outcome]:
    """Yield what each task gave, as they finish.

    When a process is killed, joblib gives up all that ran beside it. The tasks that ran then are
    tried once more, each alone, after all others; one whose process is killed again is a failure.
    """
    pending = dict(enumerate(tasks))
    suspects: dict[int, Task] = {}
    with connected(pool), TemporaryDirectory() as scratch:
        folder = Path(scratch) if pool.watched else None
        idle = 0
        while pending and idle < 2:
            before = len(pending)
            try:
                for number, outcome in _parallel(pending, pool.here, folder):
                    del pending[number]
                    yield outcome
            except Exception as error:
                if not _killed(error):
                    raise
                hit = {n for n in pending if folder and (folder / str(n)).exists()}
                suspects |= {n: pending.pop(n) for n in hit}
                idle = 0 if len(pending) < before else idle + 1
        for number, task in {**suspects, **pending}.items():
            yield _alone(number, task, folder)


def _parallel(
    tasks: dict[int, Task], here: bool, folder: Path | None, **options: Any
) -> Iterator[tuple[int, Outcome]]:
    jobs = (delayed(attempt)(number, task, here, folder) for number, task in list(tasks.items()))
    return Parallel(return_as="generator_unordered", batch_size=1, **options)(jobs)


def _alone(number: int, task: Task, folder: Path | None) -> Outcome:
    """Run one task in a pool where its end hurts no other."""
    try:
        options = {"n_jobs": 2} if folder else {}
        return next(iter(_parallel({number: task}, False, folder, **options)))[1]
    except Exception as error:
        if not _killed(error):
            raise
        return Failure(
            f"{task}: its process was killed, twice; was memory short? "
            f"({' '.join(str(error).split())})"
        )
