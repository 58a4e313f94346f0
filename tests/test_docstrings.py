"""Every exported name shows how it is used, lists its arguments, and says where its mathematics
comes from.
"""

import importlib
import inspect
import pkgutil
import re
from enum import Enum
from typing import Protocol

import pytest

import natcompanion
from natcompanion.chapters import ledger

NOT_CALLED = (Exception, Enum)
PAPERS = "|".join(ledger.PAPERS)
PLACES = "Eqs?|Sec|Sections?|Algorithm|Figure"
SOURCE = re.compile(rf"Source: ({PAPERS})\b|\b({PAPERS}) ({PLACES})\b")


def exported() -> dict[str, object]:
    """Return the classes and functions of the library that some module exports, by their path."""
    found = {}
    for module in pkgutil.walk_packages(natcompanion.__path__, "natcompanion."):
        if module.name.partition(".chapters")[1] or module.name == "natcompanion.cli":
            continue
        package = importlib.import_module(module.name)
        for name in getattr(package, "__all__", []):
            value = getattr(package, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


EXPORTED = exported()
named = pytest.mark.parametrize("path", EXPORTED)


def arguments(value: object) -> list[str]:
    """Return the names of the arguments that a caller gives."""
    if inspect.isclass(value) and (issubclass(value, NOT_CALLED) or Protocol in value.__bases__):
        return []
    return list(inspect.signature(value).parameters)


def test_the_library_exports_something():
    assert len(EXPORTED) > 150


@named
def test_it_has_an_example(path):
    text = inspect.getdoc(EXPORTED[path])
    assert "\nExamples\n--------\n" in text and ">>> " in text


@named
def test_its_arguments_are_listed(path):
    if arguments(EXPORTED[path]):
        assert "\nParameters\n----------\n" in inspect.getdoc(EXPORTED[path])


@pytest.mark.parametrize(
    "path", sorted({entry.function for entry in ledger.load("equations") if entry.function})
)
def test_what_an_equation_is_bound_to_names_its_source(path):
    value = ledger.resolve(path)
    owner = EXPORTED.get(f"{value.__module__}.{value.__qualname__.partition('.')[0]}", value)
    text = " ".join(" ".join((inspect.getdoc(part) or "").split()) for part in (value, owner))
    assert SOURCE.search(text)
