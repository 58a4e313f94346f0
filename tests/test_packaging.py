"""The places that name versions, licences and addresses agree."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import yaml

import natcompanion

ROOT = Path(__file__).resolve().parents[1]
TORCH_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"


def pins(path: Path) -> dict[str, str]:
    """Return the pinned version of every package in a requirements file."""
    lines = [line.split("#")[0].strip() for line in path.read_text().splitlines()]
    named = [line for line in lines if line and not line.startswith("-")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+", line) for line in named), named
    return dict(line.split("==") for line in named)


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(needs: list[str]) -> set[str]:
    """Return the names of packages that a list of requirements asks for."""
    return {re.match(r"[\w.-]+", need).group() for need in needs}


def extra() -> set[str]:
    """Return the names of the packages of the extra ``book``, which holds that of ``data``."""
    extras = project()["optional-dependencies"]
    assert "natcompanion[data]" in extras["book"]
    return (names(extras["book"]) | names(extras["data"])) - {"natcompanion"}


def test_the_library_needs_three_packages_and_the_book_more():
    assert names(project()["dependencies"]) == {"torch", "numpy", "scipy"}
    assert {"matplotlib", "ipywidgets", "pooch", "mlxtend"} <= extra()
    assert not extra() & {"torch", "numpy", "scipy"}


def test_binder_has_the_same_versions_with_torch_for_the_cpu():
    everything, binder = pins(ROOT / "requirements.txt"), pins(ROOT / "binder" / "requirements.txt")
    assert binder.pop("torch") == everything["torch"] + "+cpu"
    assert binder.items() <= everything.items()
    came_along = {"ipython"}  # with ipykernel, which is pinned
    needed = names(project()["dependencies"]) | extra() | {"jupyterlab", "ipykernel", "pytest"}
    assert needed - came_along <= binder.keys() | {"torch"}


def test_every_need_is_pinned():
    pinned = pins(ROOT / "requirements.txt").keys()
    assert names(project()["dependencies"]) | extra() - {"ipython"} <= pinned


BARE = """
import importlib, importlib.metadata, pkgutil, re, sys

def closure(names):
    seen, todo = set(), list(names)
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name not in seen:
            seen.add(name)
            try:
                needs = importlib.metadata.requires(name) or []
            except importlib.metadata.PackageNotFoundError:
                continue  # not for this machine
            todo += [re.match(r"[\\w.-]+", need).group() for need in needs if "extra" not in need]
    return seen

allowed = closure(sys.argv[1].split(",")) | {"natcompanion"}
owners = importlib.metadata.packages_distributions()
hidden = {
    name for name, packages in owners.items()
    if not {package.lower().replace("_", "-") for package in packages} & allowed
}

class Bare:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in hidden:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Bare, sys.meta_path)
"""
"""A Python that sees the packages named by its argument, what they need, and this library."""

LIBRARY = """
import torch
import natcompanion
from natcompanion.likelihoods import Categorical
from natcompanion.optim import PRONG, NaturalGradient

EXTRA = ("natcompanion.chapters", "natcompanion.data", "natcompanion.recipes")
modules = [m.name for m in pkgutil.walk_packages(natcompanion.__path__, "natcompanion.")
           if not m.name.startswith(EXTRA)]
for module in modules:
    importlib.import_module(module)
x, t = torch.randn(40, 5), torch.randint(3, (40,))
model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
before = [p.detach().clone() for p in model.parameters()]
optimizer = PRONG(model, 0.1, sample=x)
torch.nn.functional.cross_entropy(model(x), t).backward()
optimizer.step()
assert not all(map(torch.equal, before, model.parameters()))
print(len(modules))
"""

COMMAND = """
from importlib import import_module
module, name = {!r}.split(":")
sys.exit(getattr(import_module(module), name)(["list"]))
"""


def bare(program: str, *allowed: str) -> subprocess.CompletedProcess:
    """Run a program as after ``pip install .`` into a clean environment."""
    command = [sys.executable, "-c", BARE + program, ",".join(allowed)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_library_imports_and_trains_with_its_three_packages_alone():
    done = bare(LIBRARY, *sorted(names(project()["dependencies"])))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_without_one_of_them_it_does_not():
    """The negative control: the import hook hides what it should."""
    done = bare(LIBRARY, "torch", "numpy")
    assert done.returncode == 1 and "No module named 'scipy'" in done.stderr


def test_the_command_says_in_one_line_what_is_missing():
    command = COMMAND.format(project()["scripts"]["natcompanion"])
    done = bare(command, "torch", "numpy", "scipy")
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'natcompanion[book]'" in done.stderr


def test_binder_installs_the_package_and_uses_one_thread():
    folder = ROOT / "binder"
    assert (folder / "runtime.txt").read_text().strip() == "python-3.11"
    assert "pip install --no-deps --editable ." in (folder / "postBuild").read_text()
    for script in (folder / "postBuild", folder / "start"):
        assert script.stat().st_mode & 0o111
        subprocess.run(["bash", "-n", str(script)], check=True)
    command = ["bash", str(folder / "start"), "printenv", "OMP_NUM_THREADS"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "1"


WHEEL = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"


def wheel(folder: Path, change: Callable[[str], str] = str) -> set[str]:
    """Build the wheel of the committed files in a folder, and return the names of its files."""
    command = ["git", "-C", str(ROOT), "ls-files", "natcompanion", "README.md", "LICENSE"]
    for name in subprocess.check_output(command, text=True).split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(change(settings), encoding="utf-8")
    command = [sys.executable, "-c", WHEEL]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return set(zipfile.ZipFile(folder / done.stdout.split()[-1]).namelist())


def test_the_wheel_holds_every_file_and_the_mark_of_annotations(tmp_path):
    """Without ``py.typed`` the annotations do not count for those who use the library."""
    files = wheel(tmp_path)
    command = ["git", "-C", str(ROOT), "ls-files", "natcompanion"]
    assert set(subprocess.check_output(command, text=True).split()) <= files
    assert "natcompanion/py.typed" in files


def test_a_wheel_without_the_mark_is_told_from_one_with_it(tmp_path):
    """The negative control."""
    files = wheel(tmp_path, lambda text: text.replace("package-data", "exclude-package-data"))
    assert "natcompanion/__init__.py" in files and "natcompanion/py.typed" not in files


def test_versions_and_licences_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == str(citation["version"]) == natcompanion.__version__
    assert project["license"] == citation["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
    assert "CC-BY-4.0" in (ROOT / "LICENSE-text").read_text()


def test_no_address_of_a_package_index_but_torchs_own():
    listed = subprocess.check_output(["git", "-C", str(ROOT), "ls-files", "-z"], text=True).split(
        "\0"
    )
    files = [
        ROOT / name for name in listed if name and Path(name).suffix not in (".png", ".webp", ".gz")
    ]
    words = (
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "npmjs" + ".org",
        "npmjs" + ".com",
        "index" + "-url",
    )
    hits = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in files
        if file.is_file()
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        if any(word in line for word in words) and line != TORCH_INDEX
    ]
    assert [hit for hit in hits if "tests/test_packaging.py" not in hit] == []
