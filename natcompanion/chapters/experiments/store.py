"""Stored results: records in strict JSON; each new one is appended to a journal beside its file.

``toy.quick.json`` holds the records, sorted. While a sweep runs, ``toy.quick.jsonl`` beside it
takes one line for each record as it finishes; :func:`compact` merges the two when the sweep ends,
and :func:`read` reads both, so a sweep killed at any moment has lost nothing.
"""

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .encoding import digest, dumps, loads, one_line
from .locking import locked


@dataclass(frozen=True)
class Result:
    """One finished run: what was run, what came out, and where.

    ``result["gap"]`` is short for ``result.values["gap"]``, and ``result["plain.steps"]`` looks
    inside a dict. ``fingerprint`` is that of the code, None in records made before there was one;
    ``criteria`` holds the hashes of the claims' criteria at the time of the run; ``hash`` is that
    of the record itself.
    """

    experiment: str
    preset: str
    seed: int
    settings: dict
    values: dict
    device: str
    threads: int
    seconds: float
    commit: str | None
    versions: dict
    fingerprint: str | None = None
    machine: dict = field(default_factory=dict)
    criteria: dict = field(default_factory=dict)
    hash: str | None = None

    def __getitem__(self, key: str) -> Any:
        found = self.values
        for part in key.split("."):
            if not isinstance(found, dict) or part not in found:
                raise ValueError(
                    f"{self.experiment} has no value {key!r}; it has "
                    f"{', '.join(sorted(self.values))}"
                )
            found = found[part]
        return found

    @property
    def identity(self) -> tuple[str, int]:
        """What makes a record the same as another: its settings and its seed."""
        return identity(self.settings, self.seed)

    @property
    def dirty(self) -> bool:
        """Whether the library differed from its commit when this was run."""
        return (self.commit or "").endswith("+changes")

    @property
    def edited(self) -> bool:
        """Whether the record is not what was written."""
        if self.hash is None:  # only records from before there were hashes have none
            return self.fingerprint is not None
        return self.hash != content_hash(self)

    def __str__(self) -> str:
        return f"{self.experiment}.{self.preset}, seed {self.seed}, {self.settings}"


LATER = {"fingerprint", "machine", "criteria", "hash"}
"""Fields that early records do not have; they are written only if they hold something."""


def as_dict(record: Result) -> dict:
    """Return a record as it is written."""
    items = {item.name: getattr(record, item.name) for item in fields(record)}
    return {key: value for key, value in items.items() if value or key not in LATER}


def content_hash(record: Result) -> str:
    """Return the hash of everything in a record but its hash."""
    return digest(as_dict(replace(record, hash=None)))


def sealed(record: Result) -> Result:
    """Return the record with its hash, if it has none."""
    return record if record.hash else replace(record, hash=content_hash(record))


def identity(settings: dict, seed: int) -> tuple[str, int]:
    """Return the settings as text, and the seed."""
    return json.dumps(settings, sort_keys=True), seed


def book_folder(name: str) -> Path | None:
    """Return ``book/<name>`` of the checkout this package runs from or of a folder above the
    current one, if any.
    """
    for root in (Path(__file__).resolve().parents[3], Path.cwd(), *Path.cwd().parents):
        if (root / "book" / name).is_dir():
            return root / "book" / name
    return None


def results_folder() -> Path:
    """Return the folder of stored results.

    ``NATCOMPANION_RESULTS`` if it is set; else ``book/results`` of the checkout this package runs
    from, or of the folder above the current one that has it; else ``results`` in the current
    folder.
    """
    if chosen := os.environ.get("NATCOMPANION_RESULTS"):
        return Path(chosen)
    return book_folder("results") or Path.cwd() / "results"


def path_of(experiment: str, preset: str, folder: Path | None = None) -> Path:
    """Return the file that holds an experiment's records for one preset."""
    paper = experiment.partition("_")[0]
    return (folder or results_folder()) / paper / f"{experiment}.{preset}.json"


def journal_of(path: Path) -> Path:
    """Return the journal beside a results file."""
    return path.with_suffix(".jsonl")


def changed(path: Path) -> tuple[int, ...]:
    """Return when the file and its journal last changed, to know whether to read them again."""
    return tuple(
        file.stat().st_mtime_ns if file.exists() else 0 for file in (path, journal_of(path))
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _lines(path: Path) -> list[dict]:
    """Return the whole lines of a journal; a last line without its end was cut by a kill."""
    return [loads(line) for line in _text(path).split("\n")[:-1]]


def _unique(records: Iterable[Result], path: Path) -> dict[tuple, Result]:
    found: dict[tuple, Result] = {}
    for record in records:
        if f"{record.experiment}.{record.preset}.json" != path.name:
            raise ValueError(f"it holds records of {record.experiment}.{record.preset}")
        found[record.identity] = record
    return found


def read(experiment: str, preset: str, folder: Path | None = None) -> list[Result]:
    """Return the stored records, none if there is no file; ValueError if the file is anything
    else.
    """
    path = path_of(experiment, preset, folder)
    try:
        late = [Result(**line) for line in _lines(journal_of(path))]  # before the file: see compact
        content = loads(path.read_text(encoding="utf-8")) if path.exists() else []
        if not isinstance(content, list):
            raise TypeError("expected a list of records")
        early = [Result(**record) for record in content]
        kept = _unique(early, path)
        if len(kept) < len(early):
            raise ValueError("two records have the same settings and seed")
        kept |= _unique(late, path)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: not a results file of {experiment}.{preset} ({error}); "
            "nothing was changed: restore it from git or move it away"
        ) from None
    return sorted(kept.values(), key=lambda record: record.identity)


def _umask() -> int:
    """Return which permissions new files do not get; the system tells only who sets it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill at any moment, finds the old text or the new, never
    a part.
    """
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, mode)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def append_line(path: Path, line: str) -> None:
    """Add one line to a journal; what a kill left of an earlier line is cut off first."""
    with open(path, "a+b") as file:
        size = file.tell()
        file.seek(max(0, size - 1))
        if size and file.read(1) != b"\n":
            file.seek(0)
            size = file.read().rfind(b"\n") + 1
            file.truncate(size)
        try:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def append(new: Result, folder: Path | None = None) -> None:
    """Add one finished record, in place of a record with the same settings and seed.

    The cost does not grow with the number of records.
    """
    journal = journal_of(path_of(new.experiment, new.preset, folder))
    line = one_line(as_dict(sealed(new)))
    journal.parent.mkdir(parents=True, exist_ok=True)
    with locked(journal.parent):
        append_line(journal, line)


def compact(experiment: str, preset: str, folder: Path | None = None) -> None:
    """Merge the journal into the file.

    The file is replaced before the journal goes, and a reader reads them the other way round, so
    that every record is in one of the two at all times.
    """
    path = path_of(experiment, preset, folder)
    if not journal_of(path).exists():
        return
    with locked(path.parent):
        records = [as_dict(record) for record in read(experiment, preset, folder)]
        write_atomically(path, dumps(records) + "\n")
        journal_of(path).unlink(missing_ok=True)


def merge(new: Result, folder: Path | None = None) -> None:
    """Add one record to its file at once."""
    read(new.experiment, new.preset, folder)
    append(new, folder)
    compact(new.experiment, new.preset, folder)


PROBE = 1 << 14
"""Bytes that must fit where results will lie: more than most records have."""


def probe(experiment: str, preset: str, folder: Path | None = None) -> None:
    """Write and remove a file where the results will lie.

    Raises
    ------
    OSError
        If a record could not be stored there.
    """
    path = path_of(experiment, preset, folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):
            handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".probe.")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(bytes(PROBE))  # an empty file fits on a full disk
                    file.flush()
                    os.fsync(handle)
            finally:
                os.unlink(scratch)
            if journal_of(path).exists():
                journal_of(path).open("ab").close()
    except OSError as error:
        raise OSError(f"{path.parent}: results cannot be stored there ({error}); nothing was run")


def rescue_file(experiment: str, preset: str) -> Path:
    """Return the file of the current folder that takes records which cannot be stored."""
    return Path.cwd() / f"{experiment}.{preset}.rescued.jsonl"


def adopt(experiment: str, preset: str, folder: Path | None = None) -> int:
    """Move rescued records of the current folder to where they belong; return how many."""
    path = rescue_file(experiment, preset)
    records = [Result(**line) for line in _lines(path)]
    for record in records:
        append(record, folder)
    path.unlink(missing_ok=True)
    return len(records)
