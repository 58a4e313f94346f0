"""The places that name versions, licences and addresses agree."""

import re
import subprocess
import tomllib
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


def run_time_needs() -> set[str]:
    """Return the names of the packages that the library needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {re.match(r"[\w.-]+", need).group() for need in project["dependencies"]}


def test_binder_has_the_same_versions_with_torch_for_the_cpu():
    everything, binder = pins(ROOT / "requirements.txt"), pins(ROOT / "binder" / "requirements.txt")
    assert binder.pop("torch") == everything["torch"] + "+cpu"
    assert binder.items() <= everything.items()
    assert run_time_needs() | {"jupyterlab", "ipykernel", "pytest", "nbval"} <= binder.keys() | {
        "torch"
    }


def test_every_need_of_the_library_is_pinned():
    assert run_time_needs() <= pins(ROOT / "requirements.txt").keys()


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
