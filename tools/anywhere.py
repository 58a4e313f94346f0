"""Run unit tests and notebooks as other processors would: ``python tools/anywhere.py [--all]``.

Environment variables choose which instructions ATen, MKL and oneDNN use; they are read when Python
starts, so every setting is a process of its own. A handful runs by default, without what this
processor does by itself and ``make test`` has run; all with ``--all``.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHOOSING = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
NUMERIC = " and ".join(
    f"not {word}" for word in ("figures", "drawings", "isolation", "packaging", "cli", "data_files")
)
UNIT = ("tests", "--ignore=tests/book", "--dist", "loadfile")
SUITES = {
    "unit": UNIT,
    "numeric": (*UNIT, "-k", NUMERIC),
    "notebooks": ("--nbval", "book/", "--dist", "loadfile"),
}

HANDFUL: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "ATen default": ({"ATEN_CPU_CAPABILITY": "default"}, ("numeric", "notebooks")),
    "AVX2 everywhere": (
        {
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "ONEDNN_MAX_CPU_ISA": "AVX2",
        },
        ("numeric", "notebooks"),
    ),
    "MKL compatible, 2 threads": (
        {"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "2"},
        ("numeric",),
    ),
}
EVERY = {
    "native": {},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "ATen AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATen default": {"ATEN_CPU_CAPABILITY": "default"},
    "MKL compatible": {"MKL_CBWR": "COMPATIBLE"},
    "MKL reproducible AVX2": {"MKL_CBWR": "AVX2"},
    "MKL AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL SSE4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "oneDNN AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
}


def own() -> str:
    """Return the instructions that ATen chooses here by itself: default, avx2, avx512."""
    asked = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
    return subprocess.check_output(
        [sys.executable, "-c", asked], cwd=ROOT, env=environment({}), text=True
    ).strip()


def other(instructions: str) -> dict[str, tuple[dict[str, str], tuple[str, ...]]]:
    """Return the handful without the setting of these instructions, the processor's own."""
    return {
        name: (setting, suites)
        for name, (setting, suites) in HANDFUL.items()
        if setting.get("ATEN_CPU_CAPABILITY") != instructions
    }


def environment(setting: dict[str, str]) -> dict[str, str]:
    """Return this environment with one thread, and no choice of instructions but the setting's."""
    kept = {key: value for key, value in os.environ.items() if key not in CHOOSING}
    return {**kept, "OMP_NUM_THREADS": "1", **setting}


def run(name: str, setting: dict[str, str], suite: str, *more: str) -> bool:
    """Run one suite under one setting, print how long it took, and return whether it passed."""
    threads = int(setting.get("OMP_NUM_THREADS", "1"))
    workers = max(1, (os.cpu_count() or 1) // threads)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), *SUITES[suite], *more]
    start = time.monotonic()
    status = subprocess.run(command, check=False, cwd=ROOT, env=environment(setting)).returncode
    word = "passed" if status == 0 else "FAILED"
    print(f"== {name}, {suite}: {word} in {time.monotonic() - start:.0f} s", flush=True)
    return status == 0


def main() -> int:
    """Run the settings one after the other; a failure does not hide the next."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every setting, unit and notebooks")
    if parser.parse_args().all:
        settings = {name: (setting, ("unit", "notebooks")) for name, setting in EVERY.items()}
    else:
        settings = other(own())
        for name in HANDFUL.keys() - settings.keys():
            print(f"== {name}: as this processor by itself, in make test", flush=True)
    passed = [
        run(name, setting, suite)
        for name, (setting, suites) in settings.items()
        for suite in suites
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
