"""The fingerprint of an experiment's code: a hash over the definitions that its function reaches.

Reached are the function, the class of its settings, and every function, class and constant that a
reached definition names, across the modules of this package (or of the package the function is
from). A class is reached as a whole. Where an object is not known, its attributes are looked up by
name among the classes of the modules that are reached. Docstrings, comments, annotations and the
place of a definition do not count; names of other packages count by the name they were imported
under.
"""

import hashlib
import importlib.util
import sys
from ast import Call
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from .syntax import REGISTER, ROOT, Module, canonical, chain, parsed

Definition = tuple[str, str]
Find = Callable[[str], tuple[str, bool] | None]
"""From the name of a module to its source and whether it is a package, None if there is none."""


@dataclass
class Reach:
    """The definitions reached so far."""

    find: Find
    roots: set[str]
    modules: dict[str, Any] = field(default_factory=dict)
    reached: set[Definition] = field(default_factory=set)
    todo: list[Definition] = field(default_factory=list)
    external: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)

    def module(self, name: str) -> Module | None:
        """Return a module of the packages that count, None for all others."""
        if name not in self.modules:
            found = self.find(name) if name.partition(".")[0] in self.roots else None
            self.modules[name] = parsed(name, *found) if found else None
        return self.modules[name]

    def add(self, definition: Definition) -> None:
        """Reach one definition."""
        if definition not in self.reached:
            self.reached.add(definition)
            self.todo.append(definition)

    def follow(self, module: str, names: tuple[str, ...]) -> None:
        """Reach what ``names[0].names[1]...`` means in a module; attributes that are left are kept
        by name.
        """
        here, (name, *rest) = self.module(module), names
        if here and name in here.definitions:
            self.add((module, name))
            self.attributes.update(rest)
        elif here and name in here.imports:
            self.enter(name, here.imports[name], tuple(rest))
        elif self.module(f"{module}.{name}"):
            self.enter(name, (f"{module}.{name}", ""), tuple(rest))
        else:
            self.attributes.update(rest)

    def enter(self, local: str, target: tuple[str, str], rest: tuple[str, ...]) -> None:
        """Follow an imported name into its module."""
        base, attribute = target
        if base.partition(".")[0] not in self.roots:
            self.external.add(f"{local}={base}.{attribute}")
            self.attributes.update(rest)
        elif attribute:
            self.follow(base, (attribute, *rest))
        elif rest:
            self.follow(base, rest)
        elif module := self.module(base):  # the module itself is handed on: anything may be used
            for name in module.definitions:
                self.add((base, name))

    def read(self, definition: Definition) -> None:
        """Reach everything that one definition names."""
        module = self.modules[definition[0]]
        facts = module.facts(definition[1])
        for first, *rest in facts.uses:
            if not first:
                self.attributes.update(rest)
            elif first in facts.imports:
                self.enter(first, facts.imports[first], tuple(rest))
            else:
                self.follow(module.name, (first, *rest))

    def widen(self) -> None:
        """Reach classes by the names of their members, and functions by their decorators."""
        for name in {module for module, _ in self.reached}:
            module = self.modules[name]
            for owner, members in module.members.items():
                if members & self.attributes:
                    self.add((name, owner))
            for own, nodes in module.definitions.items():
                for decorator in getattr(nodes[0], "decorator_list", []):
                    base = chain(decorator.func if isinstance(decorator, Call) else decorator)
                    if base and base[0] != REGISTER and (name, base[0]) in self.reached:
                        self.add((name, own))

    def close(self) -> None:
        """Go on until nothing new is reached."""
        while self.todo:
            while self.todo:
                self.read(self.todo.pop())
            self.widen()

    def digest(self) -> str:
        """Return the hash over everything reached."""
        texts = set(self.external)
        for module, name in self.reached:
            texts.add(self.modules[module].facts(name).text)
        for module in {module for module, _ in self.reached}:
            texts |= set(map(canonical, self.modules[module].effects))
        return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:16]


def of_source(definitions: list[Definition], find: Find) -> str | None:
    """Return the hash of these definitions and all they reach; None if one has no source."""
    reach = Reach(find, {module.partition(".")[0] for module, _ in definitions} | {ROOT})
    for module, name in definitions:
        found = reach.module(module)
        if found is None or name not in found.definitions:
            return None
        reach.add((module, name))
    reach.close()
    return reach.digest()


def find(name: str) -> tuple[str, bool] | None:
    """Return the source of an installed module; modules of this package are not imported for it."""
    if name.partition(".")[0] == ROOT:
        path = Path(__file__).parents[2].joinpath(*name.split(".")[1:])
        for file, package in ((path / "__init__.py", True), (path.with_suffix(".py"), False)):
            if file.is_file():
                return file.read_text(encoding="utf-8"), package
        return None
    loaded = sys.modules.get(name)
    try:
        spec = None if loaded else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    origin = getattr(loaded, "__file__", None) or getattr(spec, "origin", None)
    file = Path(origin or "")
    if file.suffix != ".py" or not file.is_file():
        return None
    return file.read_text(encoding="utf-8"), file.name == "__init__.py"


def _code(code: CodeType) -> str:
    """Return a compiled function as text; it differs between versions of Python."""
    constants = [_code(x) if isinstance(x, CodeType) else repr(x) for x in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


@cache
def fingerprint(function: Callable, *classes: type) -> str:
    """Return the fingerprint of a function and of the classes that are handed to it.

    A function without a source file (typed at a prompt, or defined in another) is hashed as
    compiled, without what it calls.
    """
    parts: list[Any] = [function, *classes]
    wanted = [(part.__module__, part.__qualname__) for part in parts]
    known = of_source(wanted, find)
    if known:
        return known
    return hashlib.sha256(_code(function.__code__).encode()).hexdigest()[:16]
