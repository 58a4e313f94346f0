"""Run stored records again and compare: values, and the verdicts that rest on them."""

import math
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from natcompanion.data import DataUnavailable

from . import runner, store
from .encoding import dumps, loads
from .pool import said
from .results import stored
from .store import Result

DIGITS = 1e-6
"""Relative agreement of a value that does not depend on the order of additions."""

ZERO = 1e-12
"""Two numbers that are as close as this agree: both are zero but for rounding."""

NEARLY = 1e-3
"""A move by instruction sets that is less than this is one of rounding, not of a training."""

MARGIN = 30.0
"""Room for processors and seeds that nobody has tried, in moves of rounding that were seen."""

SHARE = 0.95
"""Share of the numbers of one trained curve that must lie within the spread over seeds."""

CLOCK = re.compile(r"seconds|clock|time|^prong_time|^rfim_step_time|^revisiting_products")
"""Names of experiments and values that a clock gave: no two runs agree on them."""

UNPACKAGED = ("fashion", "cifar", "mnist")
"""Words in settings that name data which no package ships."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number, text and truth value of a record with its path.

    Examples
    --------
    >>> list(leaves({"a": [1, 2], "b": {"c": True}}))
    [('a[0]', 1), ('a[1]', 2), ('b.c', True)]
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]")
    else:
        yield path, value


def off(old: Any, new: Any) -> float:
    """Return the relative difference of two values; infinity if they are not both numbers.

    Examples
    --------
    >>> off(2.0, 1.0), off("a", "a"), off(3e-16, 5e-16), off(1, "a")
    (0.5, 0.0, 0.0, inf)
    """
    if old == new:
        return 0.0
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (old, new)):
        return math.inf
    if math.isnan(old) and math.isnan(new):
        return 0.0
    if not (math.isfinite(old) and math.isfinite(new)):
        return math.inf
    return abs(old - new) / max(abs(old), abs(new)) if abs(old - new) > ZERO else 0.0


Sets = dict[str, dict[str, float]]
"""For ``experiment.preset`` and the name of a value: by how much instruction sets move it."""


def sets_file(folder: Path | None = None) -> Path:
    """Return the file that says by how much other instruction sets move the stored values.

    A value that it does not name is the same on all of them; of an experiment that it does not
    name at all nobody has measured it.
    """
    return (folder or store.results_folder()) / "instruction_sets.json"


def read_sets(folder: Path | None = None) -> Sets:
    """Return the content of :func:`sets_file`; empty if there is none."""
    return _content(sets_file(folder))


def _content(path: Path) -> dict:
    return loads(path.read_text(encoding="utf-8")) if path.exists() else {}


@dataclass(frozen=True)
class Value:
    """How one value of a record came out again."""

    key: str
    how: str
    moved: str = ""


@dataclass(frozen=True)
class Check:
    """A stored record, its rerun, how the values compare, and the verdicts that changed; or why it
    was not run, or why it failed.
    """

    old: Result
    new: Result | None
    values: tuple[Value, ...] = ()
    verdicts: tuple[str, ...] = ()
    unchanged: int = 0
    skipped: str = ""
    failed: str = ""

    @property
    def agrees(self) -> bool:
        """Whether it ran and nothing moved."""
        moved = self.verdicts or any(value.moved for value in self.values)
        return self.new is not None and not moved

    def __str__(self) -> str:
        if self.skipped:
            return f"not run: {self.skipped}"
        if self.failed:
            return f"FAILED {self.failed}"
        moved = [f"{value.key}: {value.moved}" for value in self.values if value.moved]
        if moved or self.verdicts:
            return "MOVED " + "; ".join([*moved[:3], *self.verdicts])
        ways = sorted({value.how for value in self.values})
        verdicts = f", {self.unchanged} verdicts unchanged" if self.unchanged else ""
        return ", ".join(ways) + verdicts


def timed(experiment: str, key: str) -> bool:
    """Return whether a clock gave this value.

    Examples
    --------
    >>> timed("whitening_rivals", "seconds_to_target"), timed("whitening_rivals", "steps")
    (True, False)
    """
    return bool(CLOCK.search(experiment) or CLOCK.search(key))


def moves_of(old: Result, new: Result) -> dict[str, float]:
    """Return by how much each value moved that is no time, at most 1; those that did not are left
    out.
    """
    found = {}
    for key in old.values:
        if not timed(old.experiment, key):
            before, after = (dict(leaves(one.values.get(key), key)) for one in (old, new))
            most = max((off(x, after.get(path)) for path, x in before.items()), default=0.0)
            if most > DIGITS / 10:
                found[key] = float(f"{min(most, 1.0):.2g}")
    return found


Turned = dict[str, dict[str, str]]
"""For ``experiment.preset`` and a claim: its verdict with a run by other instructions."""


def turned_file(folder: Path | None = None) -> Path:
    """Return the file that says which verdicts other instruction sets turn.

    A claim that it does not name keeps its verdict with any run of the experiments named there.
    """
    return (folder or store.results_folder()) / "instruction_verdicts.json"


def read_turned(folder: Path | None = None) -> Turned:
    """Return the content of :func:`turned_file`; empty if there is none."""
    return _content(turned_file(folder))


def learn(checks: Iterable[Check], folder: Path | None = None) -> None:
    """Keep by how much this processor moved the values, in :func:`sets_file`, and which verdicts
    that turned, in :func:`turned_file`.
    """
    sets, turned = read_sets(folder), read_turned(folder)
    for check in checks:
        if check.new:
            name = f"{check.old.experiment}.{check.old.preset}"
            known = sets.setdefault(name, {})
            for key, move in moves_of(check.old, check.new).items():
                known[key] = max(move, known.get(key, 0.0))
            if check.verdicts or check.unchanged:
                changes = (change.split(": ", 1) for change in check.verdicts)
                found = {claim: change.rpartition(" -> ")[2] for claim, change in changes}
                turned.setdefault(name, {}).update(found)
    store.write_atomically(sets_file(folder), dumps(sets) + "\n")
    store.write_atomically(turned_file(folder), dumps(turned) + "\n")


def _within(found: Any, known: list[Any]) -> bool:
    """Return whether a value lies in the range of the known ones, widened by its width on both
    sides (of positive numbers also in logarithms: what diverged, or is a rounding error, spreads
    over powers of ten), or is one of them.
    """
    if any(off(found, one) <= DIGITS for one in known):
        return True
    numbers = [x for x in known if isinstance(x, (int, float)) and math.isfinite(x)]
    if not numbers or not isinstance(found, (int, float)) or isinstance(found, bool):
        return False
    low, high = min(numbers), max(numbers)
    if low > 0 and low / high <= found / low and found / high <= high / low:
        return True
    return low - (high - low) <= found <= high + (high - low)


def compare(old: Result, new: Result, peers: Sequence[Result], sets: Sets) -> tuple[Value, ...]:
    """Return how each value of a record came out again.

    A value on which instruction sets agree must agree to :data:`DIGITS`; one that they move a
    little, to :data:`MARGIN` times that, or times what they move another value of the experiment by
    (values of one run share its rounding; to :data:`NEARLY` at most); a trained one must lie within
    the spread of ``peers``, the stored records of the same settings, or if there is one only, of
    its own numbers; a time is not compared.
    """
    moves = sets.get(f"{old.experiment}.{old.preset}")
    rounding = max((move for move in (moves or {}).values() if move < NEARLY), default=0.0)
    shared = min(MARGIN * rounding, NEARLY)
    found = []
    for key in sorted(old.values | new.values):
        if timed(old.experiment, key):
            found.append(Value(key, "times not compared"))
            continue
        move = math.inf if moves is None else moves.get(key, 0.0)
        allowed = max(DIGITS, MARGIN * move, shared) if 0 < move < NEARLY else DIGITS
        others = [peer.values.get(key) for peer in peers] if move >= NEARLY else []
        found.append(_value(key, old.values.get(key), new.values.get(key), allowed, others))
    return tuple(found)


def _value(key: str, old: Any, new: Any, allowed: float, peers: list) -> Value:
    before, after = dict(leaves(old, key)), dict(leaves(new, key))
    paths = list(before | after)
    wrong = [path for path in paths if off(before.get(path), after.get(path)) > allowed]
    if not wrong:
        return Value(key, "exact" if allowed <= DIGITS else f"within {allowed:.0e}")
    known = [dict(leaves(peer, key)) for peer in peers]
    alone = len(known) == 1  # then the other numbers of the run are all there is to compare with
    outside = [
        path
        for path in wrong
        if not _within(
            after.get(path), list(before.values()) if alone else [one.get(path) for one in known]
        )
    ]
    if peers and len(outside) <= (1 - SHARE) * len(paths):
        return Value(key, f"within the spread over {'the run' if alone else 'seeds'}")
    worst = max(outside or wrong, key=lambda path: off(before.get(path), after.get(path)))
    return Value(key, "moved", f"{worst} {before.get(worst)} -> {after.get(worst)}")


def peers_of(record: Result, records: Iterable[Result]) -> list[Result]:
    """Return the records of the same settings; if there are fewer than three, all of them."""
    every = list(records)
    same = [other for other in every if other.identity[0] == record.identity[0]]
    return same if len(same) > 2 else every


def select(
    records: Sequence[Result], sample: int | None, seed: int, budget: float, packaged: bool
) -> list[Result]:
    """Return records to run again, in the order of a seed: of as many experiments as possible, and
    of an experiment as many methods, problems and whatever else its settings name in words.

    Their recorded seconds add up to at most ``budget``, if there is a sample to choose.
    """
    if packaged:
        records = [record for record in records if not needs_download(record)]
    if sample is None:
        return list(records)
    shuffle: Callable = random.Random(seed).shuffle
    files = _grouped(records, lambda record: (record.experiment, record.preset))
    lists = [_in_turn(_grouped(file, _kind), shuffle) for file in files]
    chosen: list[Result]
    chosen, left = [], budget
    for record in _in_turn(lists, shuffle, inside=False):
        if len(chosen) < sample and record.seconds <= min(left, budget / 4):
            chosen.append(record)
            left -= record.seconds
    return chosen


def _kind(record: Result) -> tuple[str, ...]:
    """Return the words among a record's settings: two methods round in other ways."""
    return tuple(f"{path}={x}" for path, x in leaves(record.settings) if isinstance(x, str))


def _grouped(records: Iterable[Result], key: Callable) -> list[list[Result]]:
    groups: dict[Any, list[Result]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.values())


def _in_turn(lists: list[list[Result]], shuffle: Callable, inside: bool = True) -> list[Result]:
    """Return the records of shuffled lists, one of each after the other."""
    for group in (lists, *(lists if inside else ())):
        shuffle(group)
    return [record for record in chain(*zip_longest(*lists)) if record is not None]


def needs_download(record: Result) -> bool:
    """Return whether a record's settings name data that no package ships."""
    return any(value in UNPACKAGED for _, value in leaves(record.settings))


def again(record: Result) -> Result:
    """Run a stored record once more, with its own settings."""
    return runner.run(
        record.experiment,
        record.preset,
        record.seed,
        record.device,
        threads=record.threads,
        **record.settings,
    )


def chosen_files(names: Sequence[str], folder: Path | None) -> list[tuple[str, str]]:
    """Return experiment and preset of the results files of these names; all if there are none.

    Raises
    ------
    ValueError
        If nothing is stored under a name.
    """
    files = stored(folder)
    for name in names:
        if not any(name in (file[0], ".".join(file)) for file in files):
            raise ValueError(f"no stored results of {name!r}")
    return [file for file in files if not names or {file[0], ".".join(file)} & set(names)]


def verify(
    names: Sequence[str] = (),
    *,
    sample: int | None = None,
    seed: int = 0,
    budget: float = 600.0,
    packaged: bool = False,
    folder: Path | None = None,
) -> Iterator[Check]:
    """Run stored records again and yield how each compares.

    Parameters
    ----------
    names
        Experiments, or ``experiment.preset``; all if there are none.
    sample, seed, budget
        Run so many records of those, chosen by the seed, that took at most ``budget`` seconds.
    packaged
        Leave out what needs data that no package ships.
    folder
        Where results lie; the default is the book's.

    Raises
    ------
    ValueError
        If nothing is stored under a name, or the sample is empty.
    """
    if sample is not None and sample < 1:
        raise ValueError(f"sample: expected at least 1, got {sample}")
    place = folder or store.results_folder()
    files = {file: store.read(*file, folder) for file in chosen_files(names, folder)}
    sets = read_sets(folder)
    with TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(place, Path(scratch) / "results"))
        for old in select([r for rs in files.values() for r in rs], sample, seed, budget, packaged):
            try:
                new = again(old)
            except DataUnavailable as error:
                yield Check(old, None, skipped=str(error).partition(" Tried:")[0])
                continue
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                yield Check(old, None, failed=said(error))
                continue
            peers = peers_of(old, files[old.experiment, old.preset])
            changed, same = verdicts(old, new, place, copy)
            yield Check(old, new, compare(old, new, peers, sets), changed, same)


def verdicts(old: Result, new: Result, place: Path, copy: Path) -> tuple[tuple[str, ...], int]:
    """Return the verdicts that change when the new record takes the place of the old, and how many
    do not. The old times stay: beside other work they are others, and so are verdicts on seconds.
    """
    from natcompanion.chapters import ledger  # it reads records, so it cannot be imported first

    if not store.book_folder("ledger"):
        return (), 0
    name = f"{old.experiment}.{old.preset}"
    claims = [claim for claim in ledger.load("claims") if claim.experiment == name]
    path = store.path_of(old.experiment, old.preset, copy)
    store.compact(old.experiment, old.preset, copy)  # a killed sweep leaves a journal alone
    before = path.read_bytes()
    times = {key: value for key, value in old.values.items() if timed(old.experiment, key)}
    store.merge(replace(new, values={**new.values, **times}, hash=None), copy)
    try:
        pairs = [
            (claim.id, ledger.verdict(claim, folder=place), ledger.verdict(claim, folder=copy))
            for claim in claims
        ]
    finally:
        path.write_bytes(before)
    changed = tuple(f"{claim}: {a} -> {b}" for claim, a, b in pairs if a != b)
    return changed, len(pairs) - len(changed)
