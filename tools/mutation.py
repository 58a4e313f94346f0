"""Change one thing in the code at a time and see which test notices: ``python tools/mutation.py
--count 90 --seed 1``.

A mutant swaps an operator, a comparison, a reduction or two arguments, changes a constant, drops a
sign, a root or a transpose, or turns a criterion of the ledger around. The seed decides which;
those of ``FIRST`` come before. Nothing in the checkout is changed: all runs are in clones of its
last commit, in ``_build/mutation``. There, one run of the tests under coverage says which of them
run a line; a mutant is tried on those, quickest first. It is caught if one fails, by name, that
passes without it. The score, with every survivor, goes to ``book/results/mutation.json``.
"""

import argparse
import ast
import contextlib
import copy
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

import pytest
from coverage import Coverage

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
WORK = ROOT / "_build" / "mutation"
SCORE = ROOT / "book" / "results" / "mutation.json"
SUITES = {
    "library": ["tests", "natcompanion", "--ignore=tests/book", "--ignore=tests/chapters"],
    "chapters": ["tests/chapters", "tests/book/test_ledgers.py", "tests/book/test_prose.py"],
}
UNFIT = [
    "tests/chapters/test_stored_records.py",  # these notice any change of code, wrong or not,
    "tests/book/test_ledgers.py::test_stored_results_are_those_of_the_experiments_as_they_are",
    "tests/book/test_ledgers.py::test_every_named_test_exists_and_passes",  # or run the others
    "tests/book/test_ledgers.py::test_a_test_that_does_not_exist_is_noticed",
]
SHARES = {"formulas": 0.45, "numbers": 0.3, "figures": 0.15, "criteria": 0.1}
CRITERIA = "book/ledger/claims.yml"
VERDICTS = "tests/book/test_ledgers.py::test_the_verdict_follows_from_the_stored_result"
MOST_SECONDS = 120
"""Tests that run a line are tried as long as they take less than this together."""
LIMIT = 60 + 3 * MOST_SECONDS
"""Tests that take longer than this never end."""

FIRST = [
    (
        "natcompanion/optim/natural_gradient.py",
        "start = self.warm_start * self",
        "start = -self.warm_start * self",
    ),
    ("natcompanion/chapters/experiments/settings.py", "manual_seed(1000 *", "manual_seed(1 *"),
    ("natcompanion/damping.py", "elif rho > self.high", "elif rho >= self.high"),
    ("natcompanion/chapters/numbers/prong/conditioning.py", "best = min(", "best = max("),
    (
        "natcompanion/chapters/numbers/prong/conditioning.py",
        "ratio_interval(after / before)",
        "ratio_interval(before / after)",
    ),
    (
        "natcompanion/chapters/numbers/boltzmann/heldout.py",
        "(gains(method) > 0)",
        "(gains(method) < 0)",
    ),
    (
        "natcompanion/chapters/figures/boltzmann.py",
        "_cell_curve(panel, key, text, color, ours)",
        "_cell_curve(panel, key, text, color, plain)",
    ),
    (
        "natcompanion/chapters/figures/foundations.py",
        'alpha=0.5 if name == "exact" else 1',
        'alpha=0.5 if name != "exact" else 1',
    ),
]
"""Changes that tests had once let pass: file, text, changed text."""

OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.MatMult: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}
NAMES = {
    "min": "max",
    "max": "min",
    "argmin": "argmax",
    "argmax": "argmin",
    "mean": "sum",
    "median": "mean",
    "amin": "amax",
    "amax": "amin",
    "any": "all",
    "all": "any",
    "ratio_interval": "interval",
}
DROPPED = {"mT", "T"}
ROOTS = {"sqrt", "square", "exp", "log"}


@dataclass(frozen=True)
class Mutant:
    """One change: where, what it was, what it became."""

    kind: str
    file: str
    line: int
    before: str
    after: str
    text: str
    """The file with the change."""


@dataclass(frozen=True)
class Verdict:
    """A mutant and the test that noticed it, if any."""

    mutant: Mutant
    caught_by: str | None


# ---- What may be changed


def kind_of(file: str) -> str:
    """Return the kind of code that a file holds."""
    for kind in ("numbers", "figures"):
        if f"chapters/{kind}/" in file:
            return kind
    return "" if "/chapters/" in file or file.count("_checks") else "formulas"


def changed(node: ast.expr, kind: str) -> ast.expr | None:
    """Return a copy of a node with one thing changed, or None where there is nothing to change."""
    new = copy.deepcopy(node)
    match new:
        case ast.BinOp(op=ast.Mod()):
            return None
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            new.op = OPERATORS[type(op)]()
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=int() | float() as power)):
            new.right = ast.Constant(power + 1)
        case ast.BoolOp(op=op):
            new.op = OPERATORS[type(op)]()
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            new.ops = [OPERATORS[type(op)]()]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            return operand
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            new.func.id = NAMES[name]
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            new.func.attr = NAMES[name]
        case ast.Call(func=ast.Attribute(attr=name, value=inner), args=[]) if name in ROOTS:
            return inner
        case ast.Call(args=[*_, ast.Name(id=one), ast.Name(id=two)]) if (
            kind == "figures" and one != two
        ):
            new.args[-2:] = [ast.Name(two), ast.Name(one)]
        case ast.Attribute(attr=name, value=inner) if name in DROPPED:
            return inner
        case ast.Constant(value=float() as value) if abs(value) > 1e-3 and kind != "figures":
            new.value = value * 1.5
        case _:
            return None
    return new


def functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module and the methods of its classes, each once."""
    for part in tree.body:
        if isinstance(part, ast.ClassDef):
            yield from functions(part)
        elif isinstance(part, ast.FunctionDef):
            yield part


def candidates(file: str, source: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield nodes of a module that can be changed, with their changed copies.

    Messages of errors, checks of arguments, representations, annotations, defaults and decorators
    are no formulas.
    """
    kind = kind_of(file)

    def visit(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            return
        if isinstance(node, ast.If) and any(isinstance(part, ast.Raise) for part in node.body):
            for part in node.orelse:
                yield from visit(part)
            return
        if isinstance(node, ast.FunctionDef):
            if not node.name.startswith("__") or node.name == "__init__":
                for part in node.body:
                    yield from visit(part)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from visit(node.value)
            return
        if isinstance(node, ast.expr) and (new := changed(node, kind)) is not None:
            yield node, new
        for part in ast.iter_child_nodes(node):
            yield from visit(part)

    for function in functions(ast.parse(source)):
        yield from visit(function)


def spliced(source: str, node: ast.expr, new: ast.expr) -> str:
    """Return the source with the text of a node replaced by that of another, in brackets."""
    lines = source.split("\n")
    text = "\n".join(lines[node.lineno - 1 : node.end_lineno]).encode()
    last = lines[node.end_lineno - 1].encode()
    tail = last[node.end_col_offset :]
    head = text[: node.col_offset]
    lines[node.lineno - 1 : node.end_lineno] = [
        (head + b"(" + ast.unparse(new).encode() + b")" + tail).decode()
    ]
    return "\n".join(lines)


def criteria(source: str) -> list[tuple[int, str, str]]:
    """Return the lines of criteria in the ledger, with their comparisons turned around.

    Where the verdict is ``undecided`` the stored runs allow both sides, so nothing could notice.
    """
    found, lines = [], source.split("\n")
    ends = [number for number, line in enumerate(lines) if line.startswith("- ")]
    for begin, end in pairwise([*ends, len(lines)]):
        if "  verdict: undecided" in lines[begin:end]:
            continue
        for number, line in enumerate(lines[begin:end], start=begin + 1):
            name, colon, rule = line.strip().partition(": ")
            if name == "reproduced" and colon and ("<" in rule or ">" in rule):
                turned = rule.translate(str.maketrans("<>", "><"))
                found.append((number, line, line.replace(rule, turned)))
    return found


def every(tree: Path, file: str) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    source = (tree / file).read_text(encoding="utf-8") if (tree / file).exists() else ""
    if file == CRITERIA:
        for line, before, after in criteria(source):
            lines = source.split("\n")
            lines[line - 1] = after
            text = "\n".join(lines)
            yield Mutant("criteria", file, line, before.strip(), after.strip(), text)
    else:
        yield from (mutant for mutant in first(tree) if mutant.file == file)
        for node, new in candidates(file, source):
            before, after, text = ast.unparse(node), ast.unparse(new), spliced(source, node, new)
            yield Mutant(kind_of(file), file, node.lineno, before, after, text)


def mutants(tree: Path, table: dict[str, dict[int, list[str]]]) -> dict[str, list[Mutant]]:
    """Return every candidate by its kind: of the code, those on lines that some test runs."""
    found: dict[str, list[Mutant]] = {kind: [] for kind in SHARES}
    for file in sorted(table):
        for mutant in every(tree, file):
            if mutant.kind in found and table[file].get(mutant.line):
                found[mutant.kind].append(mutant)
    found["criteria"] = list(every(tree, CRITERIA))
    return found


def first(tree: Path) -> Iterator[Mutant]:
    """Yield the mutants of ``FIRST``."""
    for file, before, after in FIRST:
        source = (tree / file).read_text(encoding="utf-8")
        if source.count(before) != 1:
            raise SystemExit(f"FIRST: expected {before!r} once in {file}")
        line = source.partition(before)[0].count("\n") + 1
        yield Mutant("first", file, line, before, after, source.replace(before, after))


def chosen(found: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Return a sample with the shares of the kinds, at most one mutant of a line."""
    draw = random.Random(seed)
    sample = []
    for kind, share in SHARES.items():
        pool = found[kind][:]
        draw.shuffle(pool)
        lines: set[tuple[str, int]] = set()
        for mutant in pool:
            if len(lines) < round(share * count) and (mutant.file, mutant.line) not in lines:
                lines.add((mutant.file, mutant.line))
                sample.append(mutant)
    return sample


# ---- Which tests run a line


def pytest_in(
    tree: Path, ran: Path, arguments: list[str], limit: float | None = None, *before: str
) -> None:
    """Run pytest in a clone, on its own code; the plugin's lines go to ``ran``.

    Raises
    ------
    ValueError
        If pytest does not know a test that it is given: then it runs none.
    ChildProcessError
        If a signal ended it.
    """
    command = [sys.executable, *before, "-m", "pytest", "-q", "-p", "ran", "--ran", str(ran)]
    options = ["-p", "no:cacheprovider", "--doctest-modules"]
    done = subprocess.run(
        [*command, *options, *arguments],
        cwd=tree,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",  # a mutant may have the size and second of another
            "PYTHONPATH": f"{tree}{os.pathsep}{TOOLS}",
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=limit,
    )
    if done.returncode < 0:
        raise ChildProcessError(f"pytest was ended by signal {-done.returncode}")
    if done.returncode == pytest.ExitCode.USAGE_ERROR and not lines_of(ran):
        raise ValueError(done.stderr)


def lines_of(ran: Path) -> list[dict]:
    """Return what the plugin wrote."""
    return [json.loads(line) for line in ran.read_text(encoding="utf-8").splitlines()]


def commit_of(tree: Path) -> str:
    """Return the commit that is checked out."""
    command = ["git", "-C", str(tree), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def clone(source: Path, name: str) -> Path:
    """Return a fresh clone in ``WORK`` of what a checkout has committed last."""
    tree = WORK / name
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["git", "clone", "-q", "--shared", str(source), str(tree)], check=True)
    return tree


def measure(workers: int) -> None:
    """Run the suites once under coverage, and keep what ran."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    tree, config = clone(ROOT, "tree"), WORK / "coveragerc"
    config.write_text(
        "[run]\nsource = natcompanion\nparallel = True\nrelative_files = True\n"
        f"data_file = {WORK / 'coverage'}\n"
    )
    unfit = [f"--deselect={name}" for name in UNFIT]
    under = ["-m", "coverage", "run", f"--rcfile={config}"]

    def one(name: str) -> None:
        pytest_in(tree, WORK / f"{name}.jsonl", SUITES[name] + unfit, None, *under)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, SUITES))
    command = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={config}"]
    subprocess.run(command, cwd=tree, check=True)


def measured() -> Coverage:
    """Return the coverage that was measured."""
    coverage = Coverage(data_file=str(WORK / "coverage"), config_file=str(WORK / "coveragerc"))
    coverage.load()
    return coverage


def shares() -> dict[str, float]:
    """Return the share of lines that tests run, in %, by wing."""
    omitted = {"library": ["natcompanion/chapters/*"], "chapters": []}
    wings = {"library": "natcompanion/*", "chapters": "natcompanion/chapters/*"}
    coverage = measured()
    with contextlib.chdir(WORK / "tree"):
        return {
            wing: round(
                coverage.report(include=[pattern], omit=omitted[wing], file=io.StringIO()), 1
            )
            for wing, pattern in wings.items()
        }


def seconds_of_tests(*runs: str) -> dict[str, float]:
    """Return how long each test took in some runs that passed, was prepared and ended well."""
    seconds: dict[str, float] = defaultdict(float)
    failed = set()
    for name in runs:
        for line in lines_of(WORK / f"{name}.jsonl"):
            seconds[line["test"]] += line["seconds"]
            if line["outcome"] not in ("started", "passed"):
                failed.add(line["test"])
    for test in sorted(failed):
        print(f"not used, as it does not pass without any mutation: {test}")
    return {test: time for test, time in seconds.items() if test not in failed}


def tests_by_line() -> dict[str, dict[int, list[str]]]:
    """Return for each file and line the tests that run it, quickest first."""
    seconds, data = seconds_of_tests(*SUITES), measured().get_data()
    table: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        table[file] = {}
        for line, contexts in data.contexts_by_lineno(file).items():
            tests = sorted(seconds.keys() & set(contexts), key=lambda test: (seconds[test], test))
            total = 0.0
            table[file][line] = []
            for test in tests:
                total += seconds[test]
                if total < MOST_SECONDS:
                    table[file][line].append(test)
    return table


# ---- Which test notices


def tried(mutant: Mutant, tests: list[str], tree: Path, limit: float = 0) -> str | None:
    """Return the first of the tests that fails with the mutant in place of the code, if any.

    One that never ends, or ends Python, counts as failing. The clone is as it was afterwards.
    """
    file, ran = tree / mutant.file, tree / "ran.jsonl"
    original = file.read_bytes()
    file.write_text(mutant.text, encoding="utf-8")
    ran.write_text("")
    try:
        pytest_in(tree, ran, ["-x", *tests], limit or LIMIT)
    except (subprocess.TimeoutExpired, ChildProcessError):
        return [*tests[:1], *(line["test"] for line in lines_of(ran))][-1]
    finally:
        file.write_bytes(original)
    return next((line["test"] for line in lines_of(ran) if line["outcome"] == "failed"), None)


def unreliable(tests: set[str], tree: Path) -> set[str]:
    """Return those of the tests that do not pass in a clone without any mutant."""
    ran = tree / "ran.jsonl"
    pytest_in(tree, ran, sorted(tests))
    passed = {line["test"] for line in lines_of(ran) if line["outcome"] == "passed"}
    failed = {line["test"] for line in lines_of(ran) if line["outcome"] == "failed"}
    return tests - passed | failed


def stored(verdicts: list[Verdict], seed: int, commit: str, coverage: dict[str, float]) -> dict:
    """Return the score as it is stored; the texts of the mutants are left out."""
    rows = [{**asdict(v.mutant), "caught_by": v.caught_by} for v in verdicts]
    for row in rows:
        del row["text"]
    return {"seed": seed, "commit": commit, "tests": commit, "coverage": coverage, "rows": rows}


def again(score: dict, files: list[str]) -> dict:
    """Return the score with its survivors tried on the tests of some files as they are now; a
    survivor whose code is gone is left out.
    """
    tree = clone(ROOT, "again")
    pytest_in(tree, WORK / "again.jsonl", files)
    seconds = seconds_of_tests("again")
    tests, limit = sorted(seconds, key=seconds.__getitem__), 60 + 3 * sum(seconds.values())
    rows = []
    for row in score["rows"]:
        if row["caught_by"] is None:
            same = (row["before"], row["after"])
            now = [m for m in every(tree, row["file"]) if (m.before, m.after) == same]
            if not now:
                continue
            mutant = min(now, key=lambda m: abs(m.line - row["line"]))
            row = {**row, "line": mutant.line, "caught_by": tried(mutant, tests, tree, limit)}
            print(f"{mutant.file}:{mutant.line}: {row['caught_by'] or 'SURVIVES'}", flush=True)
        rows.append(row)
    return {**score, "tests": commit_of(tree), "rows": rows}


def written(score: dict) -> int:
    """Store a score, and return whether too few mutants are caught or lines covered."""
    SCORE.write_text(json.dumps(score, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    caught, count = sum(bool(row["caught_by"]) for row in score["rows"]), len(score["rows"])
    print(f"caught {caught} of {count}")
    return int(caught < 0.95 * count or score["coverage"]["library"] < 90)


def main() -> int:
    """Command line; exit code 1 if fewer than 95 % of the mutants are caught, or 90 % of the lines
    covered.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="measure the coverage anew")
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--coverage", action="store_true", help="show the coverage and stop")
    parser.add_argument(
        "--again", nargs="+", metavar="FILE", help="try the last survivors on these files of tests"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    if options.again:
        return written(again(json.loads(SCORE.read_text(encoding="utf-8")), options.again))
    if options.fresh or not (WORK / "coverage").exists():
        measure(options.workers)
    for wing, share in (coverage := shares()).items():
        print(f"{wing}: {share} % of the lines")
    if options.coverage:
        return int(coverage["library"] < 90)
    tree, table = WORK / "tree", tests_by_line()
    sample = [*first(tree), *chosen(mutants(tree, table), options.count, options.seed)]
    print(f"{len(sample)} mutants after {time.perf_counter() - began:.0f} s", flush=True)
    free: SimpleQueue[Path] = SimpleQueue()
    for number in range(options.workers):
        free.put(clone(tree, f"tree{number}"))

    def one(mutant: Mutant) -> Verdict:
        tests = [VERDICTS] if mutant.file == CRITERIA else table[mutant.file][mutant.line]
        place = free.get()
        try:
            verdict = Verdict(mutant, tried(mutant, tests, place))
        finally:
            free.put(place)
        words = f"{mutant.before[:60]}  ->  {mutant.after[:60]}"
        print(
            f"{mutant.file}:{mutant.line}: {words}: {verdict.caught_by or 'SURVIVES'}", flush=True
        )
        return verdict

    with ThreadPoolExecutor(options.workers) as pool:
        verdicts = list(pool.map(one, sample))
    doubtful = unreliable({v.caught_by for v in verdicts if v.caught_by}, tree)
    verdicts = [
        Verdict(v.mutant, None if v.caught_by in doubtful else v.caught_by) for v in verdicts
    ]
    print(f"tried in {time.perf_counter() - began:.0f} s")
    return written(stored(verdicts, options.seed, commit_of(tree), coverage))


if __name__ == "__main__":
    sys.exit(main())
