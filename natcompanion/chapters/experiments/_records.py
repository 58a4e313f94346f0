"""Stored results: records in strict JSON, merged under a lock and written atomically."""

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

try:
    import fcntl
except ImportError:  # not on Windows: there two sweeps must not write the same file at once
    fcntl = None

NOT_FINITE = "$float"


@dataclass(frozen=True)
class Result:
    """One finished run: what was run, what came out, and where.

    ``result["gap"]`` is short for ``result.values["gap"]``, and ``result["plain.steps"]`` looks
    inside a dict.
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

    def __getitem__(self, key: str) -> object:
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


def identity(settings: dict, seed: int) -> tuple[str, int]:
    """Return the settings as text, and the seed."""
    return json.dumps(settings, sort_keys=True), seed


def plain(value: object, where: str = "value") -> object:
    """Return ``value`` as numbers, strings, booleans, None, lists and dicts; tensors and arrays
    become lists.
    """
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, dict):
        if bad := [key for key in value if not isinstance(key, str) or key == NOT_FINITE]:
            raise ValueError(
                f"{where}: expected string keys other than {NOT_FINITE!r}, got {bad[0]!r}"
            )
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(
        f"{where}: expected numbers, strings, lists, dicts or tensors, got {type(value).__name__}"
    )


def dumps(value: object, indent: str = "\n") -> str:
    """Return strict, stable JSON: sorted keys, one space of indent, a list of plain items on one
    line.

    JSON has no NaN and no infinity; they are written as ``{"$float": "nan"}``, ``"inf"`` or
    ``"-inf"``.
    :func:`loads` reads them back.
    """
    inner = indent + " "
    if isinstance(value, float) and not math.isfinite(value):
        return f'{{"{NOT_FINITE}": "{value}"}}'
    if isinstance(value, dict) and value:
        return (
            "{"
            + ",".join(f"{inner}{json.dumps(k)}: {dumps(value[k], inner)}" for k in sorted(value))
            + indent
            + "}"
        )
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "[" + ",".join(inner + dumps(item, inner) for item in value) + indent + "]"
    if isinstance(value, list):
        return "[" + ", ".join(dumps(item) for item in value) + "]"
    return json.dumps(value, allow_nan=False)


def loads(text: str) -> object:
    """Return what :func:`dumps` wrote."""

    def not_json(name: str) -> None:
        raise ValueError(f"{name} is not strict JSON")

    def revive(item: dict) -> object:
        return float(item[NOT_FINITE]) if set(item) == {NOT_FINITE} else item

    return json.loads(text, object_hook=revive, parse_constant=not_json)


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


def read(experiment: str, preset: str, folder: Path | None = None) -> list[Result]:
    """Return the stored records, none if there is no file; ValueError if the file is anything
    else.
    """
    path = path_of(experiment, preset, folder)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    try:
        content = loads(text)
        if not isinstance(content, list):
            raise TypeError("expected a list of records")
        records = [Result(**record) for record in content]
        if strange := {(r.experiment, r.preset) for r in records} - {(experiment, preset)}:
            raise ValueError(f"it holds records of {'.'.join(strange.pop())}")
        if len({record.identity for record in records}) < len(records):
            raise ValueError("two records have the same settings and seed")
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: not a results file of {experiment}.{preset} ({error}); "
            "nothing was changed: restore it from git or move it away"
        ) from None
    return records


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system frees it when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill at any moment, finds the old text or the new, never
    a part.
    """
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def merge(new: Result, folder: Path | None = None) -> None:
    """Add one record to its file, in place of a record with the same settings and seed."""
    path = path_of(new.experiment, new.preset, folder)
    with _locked(path.parent):
        kept = [
            record
            for record in read(new.experiment, new.preset, folder)
            if record.identity != new.identity
        ]
        records = sorted([*kept, new], key=lambda record: record.identity)
        write_atomically(path, dumps([asdict(record) for record in records]) + "\n")
