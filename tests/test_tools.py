"""The tools of the tests: offline, another processor, a browser, and margins of comparisons."""

import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKE = (ROOT / "Makefile").read_text()

LOOK = """
import os, socket
print(os.listdir(os.environ["HOME"]))
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    try:
        s.connect(("192.0.2.1", 9))
        print("a route")
    except OSError:
        print("no route")
"""

COMPARISONS = """
import numpy as np, pytest, torch

def test_them():
    torch.testing.assert_close(torch.tensor([1.0, 2.05]), torch.tensor([1.0, 2.0]), rtol=0, atol=.1)
    np.testing.assert_allclose(1.02, 1.0, rtol=0.1)
    assert 1.03 == pytest.approx(1.0, abs=0.1)
    x = 0.04
    assert x < 0.1 and len("abc") > 2
"""


def load(name):
    spec = spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_offline_leaves_loopback_and_an_empty_home_or_says_that_it_cannot():
    done = run("tools/offline.py", sys.executable, "-c", LOOK)
    home, route = done.stdout.splitlines()
    assert done.returncode == 0 and home == "[]"
    assert route == "no route" or done.stderr.startswith("offline: no network namespace is allowed")
    assert run("tools/offline.py", sys.executable, "-c", "raise SystemExit(3)").returncode == 3


def test_a_setting_replaces_the_choice_of_instructions(monkeypatch):
    tool = load("anywhere")
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert "MKL_CBWR" not in tool.environment({})
    chosen = tool.environment({"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"})
    assert chosen["OMP_NUM_THREADS"] == "2"
    program = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run(
        [sys.executable, "-c", program], env=chosen, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "DEFAULT"


def test_what_this_processor_does_by_itself_is_not_run_again():
    tool = load("anywhere")
    left_out = {"avx2": {"AVX2 everywhere"}, "avx512": set(), "default": {"ATen default"}}
    assert {own: tool.HANDFUL.keys() - tool.other(own).keys() for own in left_out} == left_out
    assert tool.own() in left_out


def test_a_browser_that_cannot_be_had_is_one_line(tmp_path, monkeypatch, capsys):
    tool = load("browser")
    monkeypatch.setattr(tool, "DOWNLOADED", tmp_path)
    monkeypatch.setattr(tool, "from_distribution", lambda: None)
    monkeypatch.setattr(tool, "from_playwright", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "type: sudo apt-get install chromium" in line


def test_a_browser_that_does_not_start_is_none(tmp_path, monkeypatch, capsys):
    tool = load("browser")
    monkeypatch.setattr(tool, "DOWNLOADED", tmp_path / "browsers")
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, status in (("chromium", 1), ("google-chrome", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    assert tool.program() == str(tmp_path / "google-chrome")
    assert tool.main() == 0 and "google-chrome" in capsys.readouterr().out


def test_margins_are_noted(tmp_path):
    (tmp_path / "test_small.py").write_text(COMPARISONS)
    options = ["-p", "tests.margins", "-o", "enable_assertion_pass_hook=true", "-q"]
    options += ["-p", "no:cacheprovider", "--rootdir", tmp_path, "--margins", tmp_path / "noted"]
    done = run("-m", "pytest", *options, tmp_path, PYTHONPYCACHEPREFIX=str(tmp_path / "compiled"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(map(json.loads, (tmp_path / "noted").read_text().splitlines()))
    found = [(row["kind"], round(row["value"] / row["bound"], 4)) for row in rows]
    assert found == [("close", 0.5), ("close", 0.2), ("approx", 0.3), ("assert", 0.4)]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_documents_name_targets_that_exist(document):
    targets = set(re.findall(r"^([a-z-]+):", MAKE, re.MULTILINE))
    text = (ROOT / document).read_text()
    named = set(re.findall(r"(?:^|`|\.py )make ([a-z-]+)", text, re.MULTILINE))
    assert {"install", "test", "test-anywhere"} <= named <= targets
