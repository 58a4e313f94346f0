"""Where a record comes from: the commit, the versions and the processor."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

ROOT = __name__.partition(".")[0]

PACKAGES = ("torch", "numpy", "scipy")
"""The packages whose version a value may depend on."""

SWITCHES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
"""Environment variables that choose instruction sets."""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


@cache
def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in (*PACKAGES, "natcompanion")},
    }


def same_versions(stored: dict, now: dict) -> bool:
    """Return whether two records were made with the same numerical packages, ``+cpu`` aside."""
    return all(
        stored[name].partition("+")[0] == now[name].partition("+")[0]
        for name in PACKAGES
        if name in stored and name in now
    )


PACKAGE = Path(__file__).resolve().parents[2]


def _git(package: Path, *arguments: str) -> str:
    """Return what git says about the checkout that holds a package."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", package, *arguments],
        capture_output=True,
        check=True,
        timeout=30,
        env=environment,
    )
    return os.fsdecode(done.stdout).strip()


def _is_ours(package: Path) -> bool:
    """Return whether the package is tracked at the top of its own checkout."""
    _git(package, "ls-files", "--error-unmatch", "__init__.py")
    return Path(_git(package, "rev-parse", "--show-toplevel")).resolve() == package.parent


def commit(package: Path = PACKAGE) -> str | None:
    """Return the commit of this package's own repository, ``+changes`` added if the package
    differs from it.

    None outside a checkout, and for a package installed inside somebody else's repository.
    """
    try:
        if not _is_ours(package):
            return None
        changed = _git(package, "status", "--porcelain", "--untracked-files=all", "--", ".")
        return _git(package, "rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def history(package: Path = PACKAGE) -> set[str] | None:
    """Return the commits, twelve digits each, that led to the package as it is; None where that
    cannot be told: outside its own checkout, and in a shallow clone.
    """
    try:
        if not _is_ours(package) or _git(package, "rev-parse", "--is-shallow-repository") == "true":
            return None
        return {line[:12] for line in _git(package, "rev-list", "HEAD").split()}
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _blas() -> str:
    """Return the linear algebra library torch was built with."""
    _, _, rest = torch.__config__.show().partition("BLAS_INFO=")
    return rest.partition(",")[0] or "unknown"


@cache
def machine() -> dict[str, str]:
    """Return processor, instruction set, linear algebra library, and the switches that are set."""
    return {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(),
        **{name: os.environ[name] for name in SWITCHES if name in os.environ},
    }
