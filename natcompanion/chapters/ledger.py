"""The ledgers: every claim, numbered equation and misprint of the papers, checked against tests and
stored results.

Three YAML files in ``book/ledger`` hold lists of entries; :func:`load` reads them strictly.
:func:`measured` and
:func:`verdict` recompute what a claim says from the stored results.

A claim's ``measure`` names a function of ``natcompanion.chapters.numbers.<paper>``, perhaps with
literal arguments. It gives a number, an interval, or one number or truth value for each
independent unit. A ``criterion`` compares ``value``, ``low``, ``high`` (the mean and its 95 %
interval), ``middle`` (the median), ``n``, and ``all``, ``any``, ``min``, ``max``, ``sum``, ``abs``
or ``mean`` of these and of ``each`` (the array) with numbers; ``and`` and ``or`` join comparisons.
Where the interval has numbers that meet the criterion and numbers that do not, the claim is
``undecided``.
"""

import ast
import importlib
import itertools
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from natcompanion.chapters import experiments, numbers
from natcompanion.chapters._schema import (
    LEDGERS,
    PAPERS,
    SEVERITIES,
    STATUSES,
    VERDICTS,
    Claim,
    Entry,
    Equation,
    Erratum,
    LedgerError,
    Paper,
    build,
)
from natcompanion.chapters.experiments import verifying
from natcompanion.chapters.experiments.encoding import digest
from natcompanion.chapters.statistics import Interval, interval, significant

__all__ = [
    "PAPERS",
    "SEVERITIES",
    "STATUSES",
    "VERDICTS",
    "Claim",
    "Equation",
    "Erratum",
    "LedgerError",
    "Measurement",
    "Paper",
    "counts",
    "load",
    "measured",
    "papers",
    "report",
    "resolve",
    "turned_by",
    "verdict",
]

MIN_SEEDS = 5

REDUCE: dict[str, Callable] = {
    "all": np.all,
    "any": np.any,
    "min": np.min,
    "max": np.max,
    "sum": np.sum,
    "abs": np.abs,
    "mean": np.mean,
}


# In C, where that was compiled: nine times as fast.
_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_SAFE):
    """YAML that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = Counter(self.construct_object(key, deep=True) for key, _ in node.value)
        if twice := [key for key, count in keys.items() if count > 1]:
            raise LedgerError(f"line {node.start_mark.line + 1}: key {twice[0]!r} is given twice")
        return super().construct_mapping(node, deep)


def ledger_folder() -> Path:
    """Return ``book/ledger`` of the checkout; ValueError outside one."""
    if folder := experiments.book_folder("ledger"):
        return folder
    raise LedgerError("no folder book/ledger here or above; run from a checkout of the book")


def load(name: str, paper: str | None = None, *, folder: Path | None = None) -> list[Any]:
    """Return the entries of the ledger ``claims``, ``equations`` or ``errata``, of one paper or of
    all.

    Raises
    ------
    LedgerError
        A ValueError that names the file and the entry.
    """
    if name not in LEDGERS or paper not in (None, *PAPERS):
        raise LedgerError(
            f"expected one of {', '.join(LEDGERS)} and of {', '.join(PAPERS)}, got "
            f"{name!r}, {paper!r}"
        )
    path = (folder or ledger_folder()) / f"{name}.yml"
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)  # a safe one
    except (OSError, yaml.YAMLError, LedgerError) as error:
        raise LedgerError(f"{path}: {error}") from None
    raw = [] if raw is None else raw
    if not isinstance(raw, list):
        raise LedgerError(f"{path}: expected a list of entries, got {type(raw).__name__}")
    entries: dict[str, Entry] = {}
    for position, item in enumerate(raw, start=1):
        label = (
            (
                f"{path}: entry {position} "
                f"({item.get('id') or item.get('number') or item.get('where')})"
            )
            if isinstance(item, dict)
            else f"{path}: entry {position}"
        )
        try:
            entry = build(LEDGERS[name], item)
        except LedgerError as error:
            raise LedgerError(f"{label}: {error}") from None
        if entry.id in entries:
            raise LedgerError(f"{label}: {entry.id!r} is there twice")
        entries[entry.id] = entry
    return [entry for entry in entries.values() if paper in (None, entry.paper)]


def papers(name: str, *, folder: Path | None = None) -> list[str]:
    """Return the keys of the papers that have entries in a ledger, in the order of the book."""
    found = {entry.paper for entry in load(name, folder=folder)}
    return [paper for paper in PAPERS if paper in found]


@dataclass(frozen=True)
class Measurement:
    """What a claim's ``measure`` gave: the values and their mean with its 95 % interval."""

    each: np.ndarray
    interval: Interval
    unit: str | None = None

    def __str__(self) -> str:
        """Return the value with its interval, to three digits, and how many values it rests on."""
        v = self.interval
        if v.n == 1:
            text = str(bool(v.mean)) if self.each.dtype == bool else f"{v.mean:.3g}"
        elif self.each.dtype == bool:
            text = f"{self.each.sum()} of {v.n} ({v.low:.0%} to {v.high:.0%})"
        else:
            text = f"{v} (n = {v.n})"
        return f"{text} {self.unit}" if self.unit else text

    @property
    def resolution(self) -> str:
        """How small an effect these values show, in words."""
        effect = significant(self.interval.effect)
        kind = f"a factor of {effect}" if self.interval.geometric else f"a difference of {effect}"
        return f"{self.interval.n} values show {kind} or more"


COMPARISONS: dict[type, Callable] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}


def holds(criterion: str, names: dict[str, Any]) -> bool:
    """Return whether a criterion holds: comparisons of these names and of numbers, nothing else.

    Examples
    --------
    >>> holds("low > 1 and all(each)", {"low": 1.5, "each": np.array([True, True])})
    True

    Raises
    ------
    LedgerError
        If it is anything but comparisons joined by ``and`` and ``or``.
    """

    def read(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -read(operand)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in REDUCE:
                return REDUCE[name](read(argument))
            case ast.BoolOp(op=op, values=parts):
                return (all if isinstance(op, ast.And) else any)([read(part) for part in parts])
            case ast.Compare(left=left, ops=ops, comparators=rest):
                sides = [read(side) for side in (left, *rest)]
                pairs = zip(ops, itertools.pairwise(sides), strict=True)
                compared = [COMPARISONS[type(op)](*pair) for op, pair in pairs]
                return np.logical_and.reduce(compared)
        raise LedgerError(f"criterion {criterion!r}: {ast.unparse(node)!r} is not a comparison")

    try:
        return bool(read(ast.parse(criterion, mode="eval").body))
    except (SyntaxError, KeyError, TypeError) as error:
        raise LedgerError(f"criterion {criterion!r}: {error}") from error


def measured(claim: Claim, *, folder: Path | None = None) -> Measurement | None:
    """Return the measured value of a claim from the stored result; None if no experiment settles
    it.

    Raises
    ------
    LedgerError
        If nothing is stored, the function fails, or it gives two to four values: too few for an
        interval.
    """
    if claim.experiment is None:
        return None
    try:
        experiments.load(*claim.experiment.split("."), folder=folder, allow_stale=True)
        with numbers.results(folder):
            measure: Any = claim.measure  # a text, as there is an experiment
            found = numbers.value(claim.paper, measure)
        if isinstance(found, Interval):
            _enough(found.n)
            return Measurement(np.array([found.mean]), found, claim.unit)
        each = np.asarray(found)
        if each.ndim > 1 and max(each.shape) < each.size:
            raise LedgerError(
                f"measure: expected one number for each seed or problem, got shape {each.shape}"
            )
        _enough(each.size)
        return Measurement(each.ravel(), interval(each), claim.unit)
    except ValueError as error:
        raise LedgerError(f"{claim.id}: {error}") from error


def _enough(n: int) -> None:
    if 1 < n < MIN_SEEDS:
        raise LedgerError(f"measure: expected one value or at least {MIN_SEEDS}, got {n}")


def verdict(claim: Claim, *, folder: Path | None = None) -> str:
    """Return the verdict that the stored result gives.

    The first criterion that holds gives it; one that some numbers of the interval meet and others
    do not leaves it ``undecided``; it is ``not reproduced`` if no number of the interval meets any.
    A claim settled by a test, or not at all, keeps the verdict written down; its test asserts it.
    """
    return settle(claim, measured(claim, folder=folder))


def settle(claim: Claim, measurement: Measurement | None) -> str:
    """Return the verdict of a claim on a measurement, or the one written down if there is none."""
    return claim.verdict if measurement is None else _outcome(claim.criterion or {}, measurement)


def _outcome(criterion: dict[str, str], measurement: Measurement) -> str:
    """Return the verdict of a criterion on a measurement."""
    v, each = measurement.interval, measurement.each
    names = {
        "value": v.mean,
        "low": v.low,
        "high": v.high,
        "middle": np.median(each),
        "n": v.n,
        "each": each,
    }
    for outcome in ("reproduced", "partly"):
        if (rule := criterion.get(outcome)) is None:
            continue
        sides = {holds(rule, names | point) for point in _points(rule, v)}
        if holds(rule, names) and (outcome == "reproduced" or sides == {True}):
            return outcome
        if sides == {True, False}:
            return "undecided"
    return "not reproduced"


def turned_by(claim: Claim, *, folder: Path | None = None) -> dict[str, str]:
    """Return the small moves that turn a verdict over, and the verdict that each leads to.

    The moves are all bounds of the criterion 20 % lower or higher (of a share above the half, what
    is missing to the whole), each independent unit left out, a run with other instructions of the
    processor, and those that the claim names (``turns``). Empty for a claim that no experiment
    settles.
    """
    return moves(claim, measured(claim, folder=folder))


def moves(claim: Claim, measurement: Measurement | None) -> dict[str, str]:
    """Return the small moves that turn over the verdict of a claim on a measurement; see
    :func:`turned_by`.
    """
    if measurement is None:
        return {}
    criterion = claim.criterion or {}
    verdict, found = _outcome(criterion, measurement), {}
    share = measurement.each.size > 1 and 0 <= measurement.each.min() <= measurement.each.max() <= 1
    whole = 100.0 if claim.unit == "%" else 1.0 if share else None
    for factor, name in ((0.8, "bounds 20 % lower"), (1.2, "bounds 20 % higher")):
        scaled = {key: _scaled(rule, factor, whole) for key, rule in criterion.items()}
        found[name] = _outcome(scaled, measurement)
    without = Counter(
        _outcome(criterion, Measurement(rest, interval(rest)))
        for rest in _one_left_out(measurement.each)
    )
    turned = {name: outcome for name, outcome in found.items() if outcome != verdict}
    for outcome, count in without.items():
        if outcome != verdict:
            turned[f"{count} of {without.total()} units, each left out alone"] = outcome
    elsewhere = verifying.read_turned().get(claim.experiment or "", {}).get(claim.id)
    known = {"a run with other instructions": elsewhere} if elsewhere else {}
    named = {move: to for move, to in (known | (claim.turns or {})).items() if to != verdict}
    return turned | named


def _one_left_out(each: np.ndarray) -> list[np.ndarray]:
    """Return the values without each one of them; none if there are fewer than three."""
    return [np.delete(each, k) for k in range(each.size)] if each.size > 2 else []


def _scaled(rule: str, factor: float, whole: float | None) -> str:
    """Return a criterion with its bounds times a factor, but those of ``n`` and of equalities.

    Of a share of ``whole``, a bound above the half moves as what is missing to the whole does.
    """

    def moved(bound: float) -> float:
        if whole is not None and whole / 2 < bound < whole:
            return whole - (whole - bound) * (2 - factor)
        return bound * factor

    class Scale(ast.NodeTransformer):
        def visit_Compare(self, node: ast.Compare) -> ast.AST:
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            exact = names == {"n"} or any(isinstance(op, ast.Eq) for op in node.ops)
            return node if exact else self.generic_visit(node)

        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            value = node.value
            return ast.Constant(moved(value)) if isinstance(value, (int, float)) else node

    return ast.unparse(Scale().visit(ast.parse(rule, mode="eval")))


def _points(rule: str, found: Interval) -> list[dict[str, float]]:
    """Return numbers of an interval, each in the place of mean, median and limits: its ends, its
    middle, the bounds of a criterion inside it, and what lies between these.

    A criterion is a comparison with constants, so it changes at these only.
    """
    bounds = [float(ast.literal_eval(node)) for node in ast.walk(ast.parse(rule)) if _number(node)]
    inside = sorted(
        {found.low, found.mean, found.high} | {x for x in bounds if found.low < x < found.high}
    )
    between = [(a + b) / 2 for a, b in itertools.pairwise(inside)]
    return [dict.fromkeys(("value", "low", "high", "middle"), x) for x in (*inside, *between)]


def _number(node: ast.AST) -> bool:
    """Return whether a node of a syntax tree is a number, perhaps with a minus."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def criteria(experiment: str, *, folder: Path | None = None) -> dict[str, str]:
    """Return the hash of the criterion of each claim that ``experiment.preset`` settles."""
    return {
        claim.id: digest(claim.criterion)
        for claim in load("claims", folder=folder)
        if claim.experiment == experiment
    }


def counts(name: str = "claims", *, folder: Path | None = None) -> dict[str, dict[str, int]]:
    """Return for each paper how many entries there are of each verdict, status or severity."""
    field, kinds = {
        "claims": ("verdict", VERDICTS),
        "equations": ("status", STATUSES),
        "errata": ("severity", SEVERITIES),
    }[name]
    entries = load(name, folder=folder)
    tally = {
        paper: Counter(getattr(entry, field) for entry in entries if entry.paper == paper)
        for paper in PAPERS
    }
    return {paper: {kind: tally[paper][kind] for kind in kinds} for paper in PAPERS}


def report(
    paper: str | None = None, *, folder: Path | None = None, results: Path | None = None
) -> str:
    """Return the claims as lines of text: verdict, claim, measured value."""
    lines = []
    for claim in load("claims", paper, folder=folder):
        found = measured(claim, folder=results)
        outcome = verdict(claim, folder=results)
        limit = f"; these {found.resolution}" if found and outcome == "undecided" else ""
        evidence = (
            f"measured {found}{limit}"
            if found
            else f"by {claim.test}"
            if claim.test
            else claim.note
        )
        lines.append(f"{outcome.upper():<20} {claim.id}: {claim.claim} ({evidence})")
    return "\n".join(lines)


def resolve(path: str) -> Any:
    """Return the object at a dotted path such as ``natcompanion.solvers.damped_solve``.

    A function that has the name of its module, and is imported into the package, wins over the
    module.

    Raises
    ------
    LedgerError
        If there is no such module or name.
    """
    first, *rest = path.split(".")
    try:
        found, module = importlib.import_module(first), first
        for name in rest:
            module = f"{module}.{name}"
            if not hasattr(found, name):
                importlib.import_module(module)
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise LedgerError(f"{path}: {error}") from error
    return found
