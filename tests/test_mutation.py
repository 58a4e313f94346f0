"""The tool that changes the code: one place at a time, by the seed, in clones only."""

import ast
import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))  # the tool starts pytest with a plugin beside it
spec = spec_from_file_location("mutation_tool", ROOT / "tools" / "mutation.py")
tool = module_from_spec(spec)
spec.loader.exec_module(tool)

FORMULA, FIGURE = "natcompanion/small.py", "natcompanion/chapters/figures/small.py"

KINDS = {
    "a + b": ["a - b"],
    "a - b": ["a + b"],
    "a * b": ["a / b"],
    "a / b": ["a * b"],
    "a @ b": ["a + b"],
    "a**2": ["a ** 3"],
    "a and b": ["a or b"],
    "a or b": ["a and b"],
    "a < b": ["a > b"],
    "a >= b": ["a <= b"],
    "-a": ["a"],
    "min(a, b)": ["max(a, b)"],
    "a.mean(0)": ["a.sum(0)"],
    "a.median()": ["a.mean()"],
    "a.argmax()": ["a.argmin()"],
    "ratio_interval(a)": ["interval(a)"],
    "a.sqrt()": ["a"],
    "a.mT": ["a"],
    "0.5": ["0.75"],
    # and what is no formula
    "'%s' % a": [],
    "-1": [],
    "1e-6": [],
    "f'{a + b}'": [],
    "f(a, b)": [],
}


def changes(code: str, file: str = FORMULA) -> list[str]:
    """Return what becomes of an expression in a function."""
    source = f"def f(a, b):\n    return {code}\n"
    found = []
    for node, new in tool.candidates(file, source):
        text = ast.parse(tool.spliced(source, node, new))
        found.append(ast.unparse(text.body[0].body[0].value))
    return found


@pytest.mark.parametrize("code", KINDS)
def test_each_kind_changes_the_tree_at_one_place(code):
    assert changes(code) == KINDS[code]


def test_arguments_are_swapped_in_figures_only():
    assert changes("f(a, b)", FIGURE) == ["f(b, a)"]
    assert changes("f(a, a)", FIGURE) == [] == changes("0.5", FIGURE)


def test_one_mutant_for_each_place_and_the_rest_stays():
    source = (
        "RATE = 0.5 * 2.0\n\n\n"
        "class A:\n"
        '    """Text with 1 - 2."""\n\n'
        "    def __repr__(self):\n        return 1 - self.x\n\n"
        "    def f(self, x, rate=0.5 * 2.0):\n"
        "        if x < 0:\n            raise ValueError(x - 1)\n"
        "        é = {'é': x - 1}  # é\n"
        "        return (é['é'] *\n            x.sqrt())\n"
    )
    texts = [tool.spliced(source, *pair) for pair in tool.candidates(FORMULA, source)]
    dumps = [ast.unparse(ast.parse(text)) for text in texts]
    plain = ast.unparse(ast.parse(source))
    differing = [
        [new for old, new in zip(plain.split("\n"), dump.split("\n"), strict=True) if old != new]
        for dump in dumps
    ]
    assert differing == [
        ["        é = {'é': x + 1}"],
        ["        return é['é'] / x.sqrt()"],
        ["        return é['é'] * x"],
    ]


def test_criteria_are_turned_around_where_the_runs_decide():
    rows = "# reproduced: a < b\n- id: one\n  criterion:\n    reproduced: low > 1\n  verdict: {}\n"
    for verdict, expected in (("partly", [(4, "    reproduced: low < 1")]), ("undecided", [])):
        found = [(line, after) for line, _, after in tool.criteria(rows.format(verdict))]
        assert found == expected


def pool() -> dict[str, list]:
    """Return 40 mutants of each kind, two on a line."""
    return {
        kind: [tool.Mutant(kind, "f.py", n // 2, str(n), "", "") for n in range(40)]
        for kind in tool.SHARES
    }


def test_the_seed_decides_the_sample():
    sample = tool.chosen(pool(), 20, seed=1)
    assert sample == tool.chosen(pool(), 20, seed=1) != tool.chosen(pool(), 20, seed=2)
    counts = {kind: sum(m.kind == kind for m in sample) for kind in tool.SHARES}
    assert counts == {"formulas": 9, "numbers": 6, "figures": 3, "criteria": 2}
    assert len({(m.kind, m.line) for m in sample}) == 20


def test_former_survivors_are_still_in_the_code():
    found = list(tool.first(ROOT))
    assert len(found) == len(tool.FIRST) and all(m.text.count(m.after) == 1 for m in found)
    for mutant in found:
        compile(mutant.text, mutant.file, "exec")


CODE = """
def double(x):
    '>>> double(1.0)\\n2.0'
    return x * 2.0

def half(x):
    return x / 2.0

def lower(x):
    while x > 0:
        x = x - 1
    return x
"""
DOUBLING = ("tests/test_small.py::test_double", "natcompanion/small.py::natcompanion.small.double")
"""Both notice; which one is asked first is a matter of milliseconds."""

TESTS = """
import pytest
from natcompanion.small import double, half, lower

def test_double():
    assert double(3) == 6

@pytest.mark.parametrize("x", [1, 2], ids=["the first one", "the other"])
def test_half(x):
    assert isinstance(half(x), float)

def test_lower():
    assert lower(3) == 0

def test_red():
    assert double(1) == 3
"""


NAME = ["-c", "user.name=A", "-c", "user.email=a@b.c"]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A repository of one module and one file of tests, measured."""
    files = {
        "natcompanion/__init__.py": "",
        "natcompanion/small.py": CODE,
        "natcompanion/chapters/__init__.py": "def unused():\n    return 1\n",
        "tests/test_small.py": TESTS,
        tool.CRITERIA: "",
        ".gitignore": "_build\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"], [*NAME, "commit", "-qm", "One"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "TOOLS", ROOT / "tools")
    monkeypatch.setattr(tool, "WORK", tmp_path / "_build")
    monkeypatch.setattr(tool, "SCORE", tmp_path / "score.json")
    monkeypatch.setattr(tool, "SUITES", {"library": ["tests", "natcompanion"]})
    monkeypatch.setattr(tool, "UNFIT", [])
    monkeypatch.setattr(tool, "FIRST", [])
    monkeypatch.setattr(tool, "LIMIT", 8)
    monkeypatch.setattr(sys, "argv", ["mutation", "--count", "12", "-n", "1"])
    return tmp_path


def test_the_score_names_who_caught_what_and_reports_survivors(small, capsys):
    assert tool.main() == 1
    score = json.loads((small / "score.json").read_text())
    caught = {row["before"]: row["caught_by"] for row in score["rows"]}
    assert caught["x * 2.0"] in DOUBLING
    assert caught == {
        "x * 2.0": caught["x * 2.0"],
        "x / 2.0": None,  # the test looks at the type alone
        "x > 0": "tests/test_small.py::test_lower",
        "x - 1": "tests/test_small.py::test_lower",  # it never ends
    }
    assert score["coverage"] == {"library": 100.0, "chapters": 50.0}
    said = capsys.readouterr().out
    assert said.count("SURVIVES") == 1 and "x / 2.0  ->  x * 2.0: SURVIVES" in said
    assert (
        "not used, as it does not pass without any mutation: tests/test_small.py::test_red" in said
    )


def test_survivors_are_tried_again_on_new_tests(small, capsys, monkeypatch):
    assert tool.main() == 1
    (small / "tests" / "test_new.py").write_text(
        "from natcompanion.small import half\n\ndef test_value():\n    assert half(4) == 2\n"
    )
    subprocess.run(["git", "add", "-A"], cwd=small, check=True)
    subprocess.run(["git", *NAME, "commit", "-qm", "Two"], cwd=small, check=True)
    monkeypatch.setattr(sys, "argv", ["mutation", "--again", "tests/test_new.py"])
    assert tool.main() == 0
    score = json.loads((small / "score.json").read_text())
    assert score["commit"] != score["tests"]
    caught = {row["before"]: row["caught_by"] for row in score["rows"]}
    assert caught["x / 2.0"] == "tests/test_new.py::test_value"
    assert caught["x * 2.0"] in DOUBLING
    assert "caught 4 of 4" in capsys.readouterr().out


def test_only_clones_are_changed_and_they_are_restored(small):
    tool.measure(1)
    (mutant, *_), table = (
        tool.mutants(small, tool.tests_by_line())["formulas"],
        tool.tests_by_line(),
    )
    tests = table[mutant.file][mutant.line]
    clone = tool.clone(small / "_build" / "tree", "tree0")
    assert tool.tried(mutant, tests, clone) in DOUBLING
    for tree in (small, small / "_build" / "tree", clone):
        assert (tree / "natcompanion/small.py").read_text() == CODE
    assert tool.tried(mutant, ["tests/test_small.py::test_lower"], clone) is None
    with pytest.raises(ValueError, match="not found"):
        tool.tried(mutant, ["tests/test_small.py::test_that_nobody_wrote"], clone)
    assert tool.unreliable({*tests, "tests/test_small.py::test_red"}, clone) == {
        "tests/test_small.py::test_red"
    }
