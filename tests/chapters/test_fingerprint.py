"""The fingerprint of code: what changes it, what does not, and that it holds all that runs."""

import ast
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import fingerprint, syntax

SOURCES = {
    "toy": '"""A package."""\nfrom .work import run\n',
    "toy.work": '''
        """A module."""
        import math
        from functools import wraps
        from toy import constants
        from toy.parts import Solver as Iteration, scaled

        WIDTH = 3
        TABLE = {"first": 1}
        TABLE["second"] = 2

        def twice(function):
            @wraps(function)
            def inner(x):
                return 2 * function(x)
            return inner

        @twice
        def helper(x: float, power: int = 2) -> float:
            """Return a power."""
            return math.sqrt(x) ** power

        def unused(x):
            return x - 1

        def run(settings):
            """Run."""
            local = WIDTH + TABLE["first"]

            def nested(y):
                return y + 10

            solver = Iteration(rate=0.5)
            return {"x": nested(helper(local)) * constants.SCALE, "y": solver.solve(scaled(1))}
        ''',
    "toy.constants": "SCALE = 7\nOTHER = 8\n",
    "toy.parts": """
        from dataclasses import dataclass

        def scaled(x):
            return 3 * x

        @dataclass
        class Solver:
            rate: float = 0.1
            limit = 100

            def solve(self, x):
                return self._step(x)

            def _step(self, x):
                return x * self.rate

        class Unused:
            def other(self):
                return 0
        """,
}


def hashed(**changes: tuple[str, str]) -> str:
    """Return the fingerprint of toy.work.run after replacing a text in some modules."""
    sources = {name: textwrap.dedent(text) for name, text in SOURCES.items()}
    for module, (old, new) in changes.items():
        name = f"toy.{module}"
        assert sources[name].count(old) == 1, (old, sources[name].count(old))
        sources[name] = sources[name].replace(old, new)

    def find(name: str) -> tuple[str, bool] | None:
        return (sources[name], name == "toy") if name in sources else None

    return fingerprint.of_source([("toy.work", "run")], find)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("work", '"""Run."""', '"""Run it well."""'),
        ("work", '    """Return a power."""\n', ""),
        ("work", "x: float, power: int = 2) -> float:", "x, power=2):"),
        ("work", "WIDTH = 3", "WIDTH = 3  # units"),
        ("work", "WIDTH = 3", "WIDTH: int = 3"),
        ("work", "return x - 1", "return x - 2"),
        ("work", "WIDTH = 3\n", "WIDTH = 3\n\n\ndef new():\n    return 5\n"),
        ("constants", "OTHER = 8", "OTHER = 9"),
        ("constants", "SCALE = 7\nOTHER = 8\n", "OTHER = 8\nSCALE = 7\n"),
        ("parts", "return 0", "return 1"),
        ("parts", "rate: float = 0.1", "rate: object = 0.1"),
    ],
)
def test_what_keeps_it(module, old, new):
    assert hashed(**{module: (old, new)}) == hashed()


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("work", "WIDTH = 3", "WIDTH = 4"),  # a constant
        ("work", '"first": 1', '"first": 5'),
        ("work", 'TABLE["second"] = 2', 'TABLE["second"] = 3'),
        ("work", "power: int = 2", "power: int = 3"),  # a default argument
        ("work", "return 2 * function(x)", "return 3 * function(x)"),  # a decorator
        ("work", "@twice\n", ""),
        ("work", "return y + 10", "return y + 11"),  # a nested function
        ("work", "math.sqrt(x)", "math.exp(x)"),
        ("work", "import math", "import cmath as math"),  # the same name of another package
        ("constants", "SCALE = 7", "SCALE = 7.1"),  # a constant of another module
        ("parts", "return 3 * x", "return 4 * x"),
        ("parts", "rate: float = 0.1", "rate: float = 0.2"),  # a class attribute
        ("parts", "limit = 100", "limit = 101"),
        ("parts", "x * self.rate", "x / self.rate"),  # a method of a method
    ],
)
def test_what_changes_it(module, old, new):
    assert hashed(**{module: (old, new)}) != hashed()


def test_a_settings_class_counts_although_only_an_annotation_names_it():
    classes = {
        f"toy{k}": f"class S:\n    rate = {k}\n\ndef run(settings: S):\n    return settings.rate\n"
        for k in (1, 2)
    }

    def of(name: str, *wanted: str) -> str:
        return fingerprint.of_source(
            [(name, one) for one in wanted], lambda n: (classes[n], False) if n in classes else None
        )

    assert of("toy1", "run", "S") != of("toy2", "run", "S")


def test_a_local_name_hides_the_module_s():
    """What a function binds itself reaches nothing; its default arguments do."""
    text = "def gram(x):\n    return {}\n\ndef run(gram{}):\n    return [gram for gram in gram]\n"

    def of(value: int, default: str) -> str:
        return fingerprint.of_source([("toy", "run")], lambda _: (text.format(value, default), 0))

    assert of(1, "") == of(2, "") and of(1, "=gram") != of(2, "=gram")


def test_text_is_the_same_in_all_versions():
    """Written down once; parts of f-strings, type parameters and lists differ between versions."""
    tree = ast.parse("def f(x: int, *, k=1):\n    '''Doc.'''\n    return f'a{x!r:>{k}}b' 'c'\n")
    assert syntax.canonical(tree.body) == (
        "[FunctionDef(name='f' args=arguments(args=[arg(arg='x')] kwonlyargs=[arg(arg='k')] "
        "kw_defaults=[Constant(value=1)]) body=[Return(value=JoinedStr(values=[Constant(value='a'),"
        "FormattedValue(value=Name(id='x') conversion=114 format_spec=JoinedStr(values=["
        "Constant(value='>'),FormattedValue(value=Name(id='k') conversion=-1)])),"
        "Constant(value='bc')]))])]"
    )


def test_every_experiment_has_one_within_a_second():
    names = experiments.names()
    start = time.perf_counter()
    found = {experiments.get(name).fingerprint for name in names}
    assert len(found) == len(names) and time.perf_counter() - start < len(names)


RUNS = ["rfim_conditioning", "whitening_regularization", "revisiting_plateau", "prong_conditioning"]


@pytest.mark.parametrize("name", RUNS)
def test_all_that_runs_is_reached(name):
    """A profile of a real run names no function of the library that the fingerprint leaves out."""
    experiment = experiments.get(name)
    settings = experiment.preset("quick")
    wanted = [(p.__module__, p.__qualname__) for p in (experiment.function, type(settings))]
    reach = fingerprint.Reach(fingerprint.find, {"natcompanion"})
    for module, own in wanted:
        reach.module(module)
        reach.add((module, own))
    reach.close()
    root, ran = Path(fingerprint.__file__).parents[2], set()

    def profile(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(root)):
            path = Path(code.co_filename).relative_to(root.parent).with_suffix("")
            module = ".".join(path.parts).removesuffix(".__init__")
            ran.add((module, code.co_qualname.partition(".")[0]))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        experiment.function(settings)
    finally:
        sys.setprofile(before)
    ran = {(module, own) for module, own in ran if not own.startswith("<")}
    assert len(ran) > 5 and ran <= reach.reached


def test_a_function_without_source_is_hashed_as_compiled():
    first, second = (eval(f"lambda settings: {{'x': {k}}}") for k in (1, 2))
    assert fingerprint.fingerprint(first) != fingerprint.fingerprint(second)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    free = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", folder, *identity, *arguments]
    subprocess.run(command, check=True, capture_output=True, env=free)


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """Return an empty package in a folder that is no checkout yet."""
    monkeypatch.setenv("GIT_DIR", os.devnull)
    folder = tmp_path / "lib" / "natcompanion"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    return folder


def test_the_commit_is_of_this_repository(tmp_path, package):
    """Installed in a folder of somebody else's repository there is none, also if he tracks it."""
    from natcompanion.chapters.experiments.provenance import commit

    assert commit(package) is None
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "his")
    assert commit(package) is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "his, with ours in it")
    assert commit(package) is None
    git(tmp_path / "lib", "init")
    git(tmp_path / "lib", "add", ".")
    git(tmp_path / "lib", "commit", "-m", "ours")
    clean = commit(package)
    assert len(clean) == 12
    git(tmp_path / "lib", "config", "status.showUntrackedFiles", "no")
    (package / "new.py").touch()
    assert commit(package) == f"{clean}+changes"


def test_the_commit_does_not_hang_on_the_locale(tmp_path):
    """A folder whose name the locale cannot spell is read as the file system has it."""
    package = tmp_path / "l\u00efb" / "natcompanion"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for command in (["init"], ["add", "."], ["commit", "-m", "ours"]):
        git(package.parent, *command)
    code = "from natcompanion.chapters.experiments import provenance; from pathlib import Path; "
    code += "import sys; print(provenance.commit(Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", code, package],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert len(done.stdout.strip()) == 12


def test_the_history_holds_what_led_here_and_no_branch_that_was_left(tmp_path, package):
    """A commit that was amended is not in it; a shallow clone does not say."""
    from natcompanion.chapters.experiments.provenance import commit, history

    assert history(package) is None
    git(tmp_path / "lib", "init")
    git(tmp_path / "lib", "add", ".")
    git(tmp_path / "lib", "commit", "-m", "first")
    first = commit(package)
    git(tmp_path / "lib", "commit", "--allow-empty", "-m", "second")
    left = commit(package)
    git(tmp_path / "lib", "commit", "--amend", "--allow-empty", "-m", "in other words")
    assert history(package) == {first, commit(package)}
    assert left not in history(package)
    git(tmp_path, "clone", "--depth", "1", (tmp_path / "lib").as_uri(), "shallow")
    assert history(tmp_path / "shallow" / "natcompanion") is None
