"""Source files as syntax trees: what each definition says, and which names it uses."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

ROOT = __name__.partition(".")[0]
REGISTER = "experiment"
"""The decorator that registers an experiment; its settings stand in each record."""

IGNORED = {"annotation", "returns", "type_comment", "ctx", "kind", "type_params", "type_ignores"}


def _text(node: ast.AST) -> bool:
    """Return whether a statement is a string: a docstring, or the description of a constant."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _joined(values: list[Any]) -> list[ast.expr]:
    """Return the parts of an f-string with neighbouring texts put together."""
    parts: list[ast.expr] = []
    for part in values:
        text = isinstance(part, ast.Constant)
        if text and parts and isinstance(parts[-1], ast.Constant):
            parts[-1] = ast.Constant(parts[-1].value + part.value)
        elif not (text and part.value == ""):
            parts.append(part)
    return parts


def canonical(node: Any, inside_class: bool = False) -> str:
    """Return a syntax tree as text that is the same in every version of Python.

    Examples
    --------
    >>> f, g = (ast.parse(x) for x in ('def f(x: int): return x + 1', 'def f(x):  return x+1'))
    >>> canonical(f) == canonical(g)
    True
    """
    if isinstance(node, list):
        kept = [item for item in node if not (isinstance(item, ast.AST) and _text(item))]
        return "[" + ",".join(filter(None, (canonical(x, inside_class) for x in kept))) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(ROOT)):
        return ""
    if isinstance(node, ast.AnnAssign) and not inside_class:
        if node.value is None:
            return ""
        node = ast.Assign([node.target], node.value)
    if isinstance(node, ast.JoinedStr):
        node = ast.JoinedStr(_joined(node.values))
    inside = isinstance(node, ast.ClassDef)
    parts = [
        f"{name}={canonical(value, inside)}"
        for name in node._fields
        if name not in IGNORED and (value := getattr(node, name, None)) not in (None, [])
    ]
    return f"{type(node).__name__}({' '.join(parts)})"


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node; annotations are none."""
    for name in node._fields:
        if name not in IGNORED:
            value = getattr(node, name, None)
            yield from (x for x in (value if isinstance(value, list) else [value]) if x)


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _stores(node: ast.AST) -> Iterator[str]:
    """Yield the names that a scope binds itself, without those of the scopes inside."""
    for part in _children(node):
        if not isinstance(part, ast.AST):
            continue
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield part.name
        elif isinstance(part, ast.arg):
            yield part.arg
        elif isinstance(part, ast.Name) and isinstance(part.ctx, (ast.Store, ast.Del)):
            yield part.id
        elif not isinstance(part, (ast.Lambda, *COMPREHENSIONS)):
            yield from _stores(part)


def _uses(node: ast.AST, shadow: frozenset[str] = frozenset()) -> Iterator[tuple[str, ...]]:
    """Yield ``("a", "b")`` for each ``a.b`` whose ``a`` no scope in between binds, and
    ``("", "b")`` for the attribute of anything else.
    """
    if names := chain(node):
        yield names if names[0] not in shadow else ("", *names[1:])
        return
    inner, outside = shadow, []
    if isinstance(node, SCOPES):
        declared = {n for x in ast.walk(node) if isinstance(x, ast.Global) for n in x.names}
        inner = shadow | (set(_stores(node)) - declared)
        outside = [
            *getattr(node, "decorator_list", []),
            *node.args.defaults,
            *node.args.kw_defaults,
        ]
    elif isinstance(node, COMPREHENSIONS):
        inner = shadow | {name for part in node.generators for name in _stores(part)}
    elif isinstance(node, ast.Attribute):
        yield ("", node.attr)
    for part in filter(None, outside):
        yield from _uses(part, shadow)
    for part in _children(node):
        if isinstance(part, ast.AST):
            yield from _uses(part, inner)


def chain(node: ast.AST) -> tuple[str, ...]:
    """Return ``("a", "b", "c")`` for ``a.b.c``, ``()`` for what is no name with attributes."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else ()


def _bound(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module binds or changes."""
    names = set(_stores(ast.Module([node], [])))
    for part in ast.walk(node):
        if isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(part.ctx, ast.Store):
            while isinstance(part, (ast.Attribute, ast.Subscript)):
                part = part.value
            names |= {part.id} if isinstance(part, ast.Name) else set()
    return names


def _imports(node: ast.AST, module: str, package: bool) -> dict[str, tuple[str, str]]:
    """Return local name -> (module, attribute or "") of the imports in a tree."""
    found = {}
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            for alias in part.names:
                target = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or target] = (target, "")
        elif isinstance(part, ast.ImportFrom):
            up = module.split(".")[: (1 if package else 0) - part.level or None]
            base = ".".join([*(up if part.level else []), *filter(None, [part.module])])
            found |= {alias.asname or alias.name: (base, alias.name) for alias in part.names}
    return found


@dataclass(frozen=True)
class Facts:
    """What one definition says: its text, what it names, and what it imports itself."""

    text: str
    uses: frozenset[tuple[str, ...]]
    imports: dict[str, tuple[str, str]]


class Module:
    """The definitions, imports and bare statements of one source file."""

    def __init__(self, name: str, source: str, package: bool):
        self.name, self.package = name, package
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        self.effects: list[ast.stmt] = []
        self.members: dict[str, set[str]] = {}
        self._facts: dict[str, Facts] = {}
        for node in ast.parse(source).body:
            self._add(node)

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.If, ast.Try, ast.With)):
            self.imports |= _imports(node, self.name, self.package)
        if isinstance(node, ast.Expr):
            self.effects += [] if _text(node) else [node]
            return
        for name in _bound(node):
            self.definitions.setdefault(name, []).append(node)
        if isinstance(node, ast.ClassDef):
            fields = {id(x.target) for x in node.body if isinstance(x, ast.AnnAssign)}
            kept = [x for x in node.body if id(getattr(x, "target", None)) not in fields]
            self.members[node.name] = {
                name for part in kept for name in _bound(part) if not name.startswith("__")
            }

    def facts(self, name: str) -> Facts:
        """Return what the definition of a name says."""
        if name not in self._facts:
            nodes = [without_registration(node) for node in self.definitions[name]]
            imports: dict[str, tuple[str, str]] = {}
            for node in nodes:
                imports |= _imports(node, self.name, self.package)
            uses = frozenset(use for node in nodes for use in _uses(node))
            self._facts[name] = Facts(canonical(nodes), uses, imports)
        return self._facts[name]


def without_registration(node: ast.stmt) -> ast.stmt:
    """Return a function without the decorator that registers it."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node

    def registers(decorator: ast.expr) -> bool:
        return isinstance(decorator, ast.Call) and chain(decorator.func)[-1:] == (REGISTER,)

    kept = [decorator for decorator in node.decorator_list if not registers(decorator)]
    if len(kept) == len(node.decorator_list):
        return node
    fields: dict[str, Any] = {name: getattr(node, name, None) for name in node._fields}
    return type(node)(**fields | {"decorator_list": kept})


@lru_cache(maxsize=1024)
def parsed(name: str, source: str, package: bool) -> Module:
    """Return a source file, read once."""
    return Module(name, source, package)
