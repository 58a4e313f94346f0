"""Every number, table and claim of the book as a small function; one module per paper.

A function reads stored records with :func:`stored` (or computes something small and exact), and
returns one of

* a number, a text or an :class:`~natcompanion.chapters.statistics.Interval`, for the prose;
* a number, an Interval, or one number or truth value for each independent unit, for a claim;
* a :class:`~natcompanion.chapters.show.Table`.

Prose and ledgers name it: :func:`value` turns ``steps`` or ``steps("sgd", rate=0.1)`` into the
function's result. Arguments are literals; nothing is evaluated.
"""

import ast
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

from natcompanion.chapters.experiments import Results, load, store

__all__ = ["call", "reading", "results", "stored", "value"]


_FOLDER: ContextVar[Path | None] = ContextVar("folder of results", default=None)


@contextmanager
def results(folder: Path | None) -> Iterator[None]:
    """Read records from another folder inside a ``with`` block; None is the book's."""
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)


_READ: ContextVar[set[str] | None] = ContextVar("names of what is read", default=None)


@contextmanager
def reading() -> Iterator[set[str]]:
    """Yield a set that takes the ``experiment.preset`` of all records that are read inside a
    ``with`` block.
    """
    names: set[str] = set()
    token = _READ.set(names)
    try:
        yield names
    finally:
        _READ.reset(token)


def stored(name: str) -> Results:
    """Return the records of ``experiment.preset``, read once for each state of the file."""
    experiment, _, preset = name.partition(".")
    if (names := _READ.get()) is not None:
        names.add(f"{experiment}.{preset or 'quick'}")
    path = store.path_of(experiment, preset or "quick", _FOLDER.get())
    return _stored(experiment, preset or "quick", path, store.changed(path))


@lru_cache(maxsize=256)
def _stored(experiment: str, preset: str, path: Path, changed: tuple) -> Results:
    return load(experiment, preset, folder=path.parents[1], allow_stale=True)


def call(reference: str) -> tuple[str, list, dict]:
    """Return name, arguments and keywords of ``name`` or ``name(literal, key=literal)``.

    Raises
    ------
    ValueError
        If the text is anything else.
    """
    try:
        node = ast.parse(reference, mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            raise ValueError("no name, no call")
        keywords = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
        return node.func.id, [ast.literal_eval(argument) for argument in node.args], keywords
    except (SyntaxError, ValueError):
        raise ValueError(
            f"{reference!r}: expected the name of a function in numbers, or a call with literals"
        ) from None


def value(paper: str, reference: str) -> Any:
    """Return what a function of ``numbers.<paper>`` gives, such as ``value("rfim",
    "cost('adam')")``.

    Raises
    ------
    ValueError
        If there is no such function, or it fails.
    """
    name, arguments, keywords = call(reference)
    module = importlib.import_module(f"{__name__}.{paper}")
    function: Any = getattr(module, name, None)
    home = getattr(function, "__module__", None) or ""
    if name.startswith("_") or not f"{home}.".startswith(f"{module.__name__}."):
        raise ValueError(f"numbers.{paper}: no function {name!r}")
    try:
        return function(*arguments, **keywords)
    except Exception as error:
        raise ValueError(f"numbers.{paper}.{reference}: {error}") from error
