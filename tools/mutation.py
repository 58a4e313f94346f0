"""Change one thing in the code at a time and see which test notices: ``python tools/mutation.py
--count 80 --seed 1``.

A mutant swaps an operator, a comparison or a reduction, changes a constant, drops a sign, a root or
a transpose, or turns a criterion of the ledger around. Which ones is decided by the seed. Only
lines that some test runs are candidates: coverage by test function, measured once and kept in
``_build/mutation``, says which tests to try. Nothing in the checkout is changed: mutants live in a
copy. The score goes to ``book/results/mutation.json``.
"""

import argparse
import ast
import copy
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

from coverage import Coverage

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "_build" / "mutation"
SCORE = ROOT / "book" / "results" / "mutation.json"
SUITES = {
    "library": ["tests", "--ignore=tests/book", "--ignore=tests/chapters"],
    "chapters": ["tests/chapters"],
}
SHARES = {"formulas": 0.45, "numbers": 0.3, "figures": 0.15, "criteria": 0.1}
CRITERIA = "book/ledger/claims.yml"
MOST_TESTS = 12
SECONDS = 300

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
    "best": "max",
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
    position: int
    """Which of the candidates of its file."""


@dataclass(frozen=True)
class Verdict:
    """A mutant and the test that noticed it, if any."""

    mutant: Mutant
    caught_by: str | None


def kind_of(file: str) -> str:
    """Return the kind of code that a file holds."""
    for kind in ("numbers", "figures"):
        if f"chapters/{kind}/" in file:
            return kind
    return "" if "/chapters/" in file or file.count("_checks") else "formulas"


def changed(node: ast.AST, kind: str) -> ast.AST | None:
    """Return a copy of a node with one thing changed, or None where there is nothing to change."""
    new = copy.deepcopy(node)
    match new:
        case ast.BinOp(op=ast.Mod()):
            return None
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            new.op = OPERATORS[type(op)]()
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=int() | float() as power)):
            new.right = ast.Constant(power + 1)
        case ast.Compare(ops=[op]) if type(op) in OPERATORS:
            new.ops = [OPERATORS[type(op)]()]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            return operand
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            new.func.id = NAMES[name]
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES and name != "best":
            new.func.attr = NAMES[name]
        case ast.Call(func=ast.Attribute(attr=name, value=inner), args=[]) if name in ROOTS:
            return inner
        case ast.Attribute(attr=name, value=inner) if name in DROPPED:
            return inner
        case ast.Constant(value=float() as value) if abs(value) > 1e-3 and kind != "figures":
            new.value = value * 1.5
        case _:
            return None
    return new


def candidates(file: str, source: str) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield nodes of a module that can be changed, with their changed copies.

    Messages of errors, checks of arguments, representations, annotations, defaults and decorators
    are no formulas.
    """
    kind = kind_of(file)

    def visit(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            return
        if isinstance(node, ast.If) and any(isinstance(part, ast.Raise) for part in node.body):
            for part in node.orelse:
                yield from visit(part)
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith("__") and node.name != "__init__":
                return
            for part in node.body:
                yield from visit(part)
            return
        if (new := changed(node, kind)) is not None:
            yield node, new
        for part in ast.iter_child_nodes(node):
            yield from visit(part)

    for part in ast.walk(ast.parse(source)):
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) and part.col_offset in (0, 4):
            yield from visit(part)


def spliced(source: str, node: ast.AST, new: ast.AST) -> str:
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
    """Return the lines of criteria in the ledger, with their comparisons turned around."""
    found = []
    for number, line in enumerate(source.split("\n"), start=1):
        name, colon, rule = line.strip().partition(": ")
        if name == "reproduced" and colon and ("<" in rule or ">" in rule):
            turned = rule.translate(str.maketrans("<>", "><"))
            found.append((number, line, line.replace(rule, turned)))
    return found


def measure(environment: dict[str, str]) -> None:
    """Run the suites once with coverage by test function, and keep data and durations."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    config = WORK / "coveragerc"
    config.write_text(
        f"[run]\nsource = natcompanion\ndynamic_context = test_function\nparallel = True\n"
        f"data_file = {WORK / 'coverage'}\nbranch = False\n"
    )
    runs = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "coverage",
                "run",
                f"--rcfile={config}",
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                f"--junitxml={WORK / name}.xml",
                *paths,
            ],
            cwd=ROOT,
            env=environment,
            stdout=(WORK / f"{name}.log").open("w"),
            stderr=subprocess.STDOUT,
        )
        for name, paths in SUITES.items()
    ]
    if sum(run.wait() for run in runs):
        raise SystemExit(f"the suite is red without any mutation: see {WORK}/*.log")
    command = [sys.executable, "-m", "coverage", "combine", f"--rcfile={config}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def shown() -> int:
    """Print the share of lines that tests run, by wing; exit code 1 below 90 % of the library."""
    coverage = Coverage(data_file=str(WORK / "coverage"))
    coverage.load()
    wings = {"library": "natcompanion/*", "chapters": "natcompanion/chapters/*"}
    omitted = {"library": ["natcompanion/chapters/*"], "chapters": []}
    shares = {
        wing: coverage.report(include=[pattern], omit=omitted[wing], file=io.StringIO())
        for wing, pattern in wings.items()
    }
    for wing, share in shares.items():
        print(f"{wing}: {share:.1f} % of the lines")
    return int(shares["library"] < 90)


def node_ids() -> dict[str, tuple[str, float]]:
    """Return for each ``module.function`` the node id of its tests and their mean seconds."""
    files = {path.stem: path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    found: dict[str, tuple[str, float]] = {}
    for name in SUITES:
        for case in ElementTree.parse(WORK / f"{name}.xml").iter("testcase"):
            stem, function = case.attrib["classname"].split(".")[-1], case.attrib["name"]
            short = function.partition("[")[0]
            if stem in files:
                seconds = found.get(f"{stem}.{short}", ("", 0.0))[1] + float(case.attrib["time"])
                found[f"{stem}.{short}"] = (f"{files[stem]}::{short}", seconds)
    return found


def tests_by_line() -> dict[str, dict[int, list[str]]]:
    """Return for each file and line the node ids of the tests that run it, quickest first."""
    coverage = Coverage(data_file=str(WORK / "coverage"))
    coverage.load()
    data, known = coverage.get_data(), node_ids()
    table: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        lines = {}
        for line, contexts in data.contexts_by_lineno(file).items():
            short = {".".join(context.split(".")[-2:]) for context in contexts if context}
            tests = sorted((known[name] for name in short if name in known), key=lambda t: t[1])
            lines[line] = [node for node, _ in tests]
        table[str(Path(file).relative_to(ROOT))] = lines
    return table


def mutants(table: dict[str, dict[int, list[str]]]) -> dict[str, list[Mutant]]:
    """Return every candidate by its kind."""
    found: dict[str, list[Mutant]] = {kind: [] for kind in SHARES}
    for file in sorted(table):
        if kind := kind_of(file):
            source = (ROOT / file).read_text(encoding="utf-8")
            for position, (node, new) in enumerate(candidates(file, source)):
                if table[file].get(node.lineno):
                    words = ast.unparse(node), ast.unparse(new)
                    found[kind].append(Mutant(kind, file, node.lineno, *words, position))
    for position, (line, before, after) in enumerate(criteria((ROOT / CRITERIA).read_text())):
        found["criteria"].append(
            Mutant("criteria", CRITERIA, line, before.strip(), after.strip(), position)
        )
    return found


def chosen(found: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Return a sample with the shares of the kinds, one function line at most once."""
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


def mutated(mutant: Mutant) -> str:
    """Return the text of the mutant's file with its change."""
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    if mutant.kind == "criteria":
        line, _, after = criteria(source)[mutant.position]
        lines = source.split("\n")
        lines[line - 1] = after
        return "\n".join(lines)
    pairs = list(candidates(mutant.file, source))
    return spliced(source, *pairs[mutant.position])


def checkout(folder: Path) -> None:
    """Copy what the tests need into a folder."""
    for part in ("natcompanion", "tests", "book/ledger", "book/results", "book/_ext"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "README.md", "requirements.txt", "_config.yml"):
        shutil.copy(ROOT / part, folder)


def failures(
    folder: Path, tests: list[str], environment: dict[str, str], *options: str
) -> list[str]:
    """Return the tests that fail or cannot start in a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", *options]
    done = subprocess.run(
        [*command, *tests],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(folder)},
        timeout=SECONDS,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    failed = [words[1] for words in lines if words[:1] in (["FAILED"], ["ERROR"])]
    return failed or ["the tests do not start"] * (done.returncode != 0)


def tried(mutant: Mutant, tests: list[str], environment: dict[str, str]) -> Verdict:
    """Return whether one of these tests fails with the mutant in place of the code.

    Where one fails, the same tests must pass without the mutant: a test that cannot run in a copy
    would notice every mutant.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkout(folder)
        (folder / mutant.file).write_text(mutated(mutant), encoding="utf-8")
        try:
            failed = failures(folder, tests, environment, "-x")
        except subprocess.TimeoutExpired:
            return Verdict(mutant, "it never ends")
        if not failed:
            return Verdict(mutant, None)
        shutil.copy(ROOT / mutant.file, folder / mutant.file)
        named = [failed[0]] if "::" in failed[0] else tests
        return Verdict(mutant, None if failures(folder, named, environment) else failed[0])


def tests_for(mutant: Mutant, table: dict[str, dict[int, list[str]]]) -> list[str]:
    """Return the tests to try, quickest first."""
    if mutant.kind == "criteria":
        return ["tests/book/test_ledgers.py::test_the_verdict_follows_from_the_stored_result"]
    return table[mutant.file][mutant.line][:MOST_TESTS]


def stored(verdicts: list[Verdict], seed: int) -> dict:
    """Return the score as it is stored."""
    caught = [verdict for verdict in verdicts if verdict.caught_by]
    kinds = {
        kind: {
            "mutants": sum(v.mutant.kind == kind for v in verdicts),
            "caught": sum(v.mutant.kind == kind for v in caught),
        }
        for kind in SHARES
    }
    rows = [{**asdict(v.mutant), "caught_by": v.caught_by} for v in verdicts]
    return {
        "seed": seed,
        "mutants": len(verdicts),
        "caught": len(caught),
        "kinds": kinds,
        "rows": rows,
    }


def main() -> int:
    """Command line; exit code 1 if fewer than 95 % of the mutants are caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="measure the coverage anew")
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--coverage", action="store_true", help="show the coverage and stop")
    options = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    if options.fresh or not (WORK / "coverage").exists():
        measure(environment)
    if options.coverage:
        return shown()
    table = tests_by_line()
    sample = chosen(mutants(table), options.count, options.seed)
    print(
        f"{len(sample)} mutants; coverage ready after {time.perf_counter() - began:.0f} s",
        flush=True,
    )

    def one(mutant: Mutant) -> Verdict:
        verdict = tried(mutant, tests_for(mutant, table), environment)
        print(
            f"{mutant.file}:{mutant.line}: {mutant.before[:60]}  ->  {mutant.after[:60]}: "
            f"{verdict.caught_by or 'SURVIVES'}",
            flush=True,
        )
        return verdict

    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(options.workers) as pool:
        for verdict in pool.map(one, sample):  # the score is stored as it grows
            verdicts.append(verdict)
            score = stored(verdicts, options.seed)
            SCORE.write_text(json.dumps(score, indent=1, ensure_ascii=False) + "\n")
    print(f"caught {score['caught']} of {score['mutants']} in {time.perf_counter() - began:.0f} s")
    return int(score["caught"] < 0.95 * score["mutants"])


if __name__ == "__main__":
    sys.exit(main())
