"""The command line: what it prints, and how it fails."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest
import torch

from natcompanion.chapters import cli, experiments, ledger
from natcompanion.chapters.experiments import (
    Result,
    Settings,
    experiment,
    provenance,
    registry,
    store,
)


@dataclass(frozen=True, kw_only=True)
class Toy(Settings):
    rate: float = 0.1
    kind: str = "plain"


def toy(settings: Toy) -> dict:
    """Draw a number."""
    return {
        "x": settings.rate * torch.randn((), generator=settings.generator()).item(),
        "curve": [0.0] * 50,
    }


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """One experiment, and an empty results folder."""
    monkeypatch.setattr(registry, "_import_all", lambda: None)
    monkeypatch.setattr(registry, "_REGISTRY", {})
    monkeypatch.setattr(provenance, "commit", lambda: "0123456789ab")
    monkeypatch.setenv("NATCOMPANION_RESULTS", str(tmp_path))
    experiment("toy", quick=Toy(), paper=Toy(rate=1.0))(toy)


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    return code, *capsys.readouterr()


def test_list(capsys):
    code, out, err = call(capsys, "list")
    assert code == 0 and err == "" and out.split() == ["toy", "quick,paper", "Draw", "a", "number."]


def test_run_prints_the_values(capsys):
    code, out, _ = call(capsys, "run", "toy", "--seed", "3", "--set", "rate=2")
    assert (
        code == 0
        and f"{experiments.run('toy', seed=3, rate=2)['x']:.4g}" in out
        and "list of 50" in out
    )


def test_sweep_stores_and_report_reads(capsys, tmp_path, monkeypatch):
    """Six seeds at two rates, then a seventh at the default rate."""
    code, out, err = call(
        capsys, "sweep", "toy", "--seeds", "0:6", "--set", "rate=0.1,0.2", "--quiet"
    )
    assert (
        code == 0
        and err == ""
        and out.startswith("12 records in")
        and (tmp_path / "toy" / "toy.quick.json").exists()
    )
    code, out, _ = call(capsys, "sweep", "toy", "--seeds", "0,7", "--quiet")
    assert out.startswith("13 records")
    monkeypatch.setattr(ledger, "report", lambda paper: f"claims of {paper}")
    code, out, _ = call(capsys, "report")
    assert code == 0 and "7 seeds, {'kind': 'plain', 'rate': 0.1}" in out
    assert str(experiments.load("toy").mean("x", rate=0.2)) in out and "claims of None" in out


def test_the_progress_bar_goes_to_stderr(capsys):
    _, out, err = call(capsys, "sweep", "toy", "--seeds", "0:2")
    assert "2/2" in err and "2/2" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nope"], "no experiment 'nope'; there are toy"),
        (["run", "toy", "--preset", "huge"], "no preset 'huge'"),
        (["run", "toy", "--set", "speed=1"], "no setting speed"),
        (["run", "toy", "--set", "rate"], "--set: expected setting=value"),
        (["run", "toy", "--set", "rate=1,2"], "several are for sweep"),
        (["run", "toy", "--set", "rate=fast"], "rate expected float"),
        (["run", "toy", "--set", "seed=1"], "--set seed: use --seed (of run), --seeds (of sweep)"),
        (
            ["run", "toy", "--set", "device=cpu"],
            "--set device: use --seed (of run), --seeds (of sweep) or --device",
        ),
        (
            ["sweep", "toy", "--set", "seed=1,2"],
            "--set seed: use --seed (of run), --seeds (of sweep)",
        ),
        (["run", "toy", "--device", "cuda:99"], "--device: expected one that torch"),
        (["run", "toy", "--device", "quantum"], "such as cpu, got 'quantum'"),
        (["sweep", "toy", "--device", "cuda:99"], "--device: expected one that torch"),
        (["sweep", "toy", "--seeds", "x"], "--seeds: expected 0:5"),
        (["sweep", "toy", "--seeds", "5:5"], "--seeds: expected 0:5"),
        (["sweep", "toy", "--scheduler", "tcp://x"], "add backend='dask'"),
    ],
)
def test_an_error_is_one_line_and_code_2(capsys, arguments, message):
    code, out, err = call(capsys, *arguments)
    assert (
        code == 2
        and out == ""
        and err.count("\n") == 1
        and message in err
        and err.startswith("natcompanion: ")
    )


def test_an_error_of_usage_has_code_2(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["fly"])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("pairs", "grid"),
    [
        (["rate=1"], {"rate": [1]}),
        (["rate=0.1,0.2", "kind=a,b"], {"rate": [0.1, 0.2], "kind": ["a", "b"]}),
        (["kind=plain"], {"kind": ["plain"]}),
        (["sizes=[1,2]"], {"sizes": [[1, 2]]}),
        (["sizes=[1,2],[3]"], {"sizes": [[1, 2], [3]]}),
        (["flag=True"], {"flag": [True]}),
    ],
)
def test_grids(pairs, grid):
    assert cli.parse_grid(pairs) == grid


def test_doctor_is_content(capsys):
    call(capsys, "sweep", "toy", "--seeds", "0:2", "--quiet")
    found = [problem for problem in cli.problems() if "no stored results" not in problem]
    assert found == []
    code, out, _ = call(capsys, "doctor")
    assert code in (0, 1) and all(
        word in out for word in ("python", "torch", "threads", "cache", "chromium", "node")
    )


def test_doctor_finds_damage(capsys, tmp_path):
    call(capsys, "sweep", "toy", "--seeds", "0:2", "--quiet")
    path = tmp_path / "toy" / "toy.quick.json"
    whole = path.read_text()
    path.write_text(whole[:-9])
    code, out, _ = call(capsys, "doctor")
    assert code == 1 and "not a results file of toy.quick" in out
    path.write_text(whole.replace('"rate"', '"speed"'))
    code, out, _ = call(capsys, "doctor")
    assert code == 1 and "the record of toy.quick, seed 0, {'kind': 'plain', 'speed'" in out
    assert "was edited after it was written" in out
    path.write_text("[]")
    store.merge(Result("toy", "quick", 0, {"kind": "plain", "speed": 1}, {}, "cpu", 1, 0, None, {}))
    code, out, _ = call(capsys, "doctor")
    assert code == 1 and "stored with other settings (rate, speed)" in out


def test_the_command_is_installed():
    command = [sys.executable, "-m", "natcompanion.chapters.cli", "run", "nope"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 2
        and done.stdout == ""
        and done.stderr.startswith("natcompanion: no experiment 'nope'")
    )


def test_a_reader_that_stops_early_is_no_error():
    command = (
        f"{sys.executable} -m natcompanion.chapters.cli list | head -1; exit ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1


STOPPED = """
import signal, sys, time
# a background job starts with Ctrl-C ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
from natcompanion.chapters import cli
from natcompanion.chapters.experiments import Settings, experiment

@experiment("slow", quick=Settings())
def slow(settings):
    if settings.seed > 1:
        open(sys.argv[1] + f"/waits{settings.seed}", "w").close()
        time.sleep(60)
    return {"x": settings.seed}

if __name__ == "__main__":
    arguments = ["sweep", "slow", "--quiet", "--dirty", "--seeds", "0:4", "--workers", sys.argv[2]]
    sys.exit(cli.main(arguments))
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_prints_one_line(tmp_path, workers):
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    process = subprocess.Popen(
        [sys.executable, script, str(tmp_path), workers],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "NATCOMPANION_RESULTS": str(tmp_path / "results")},
    )
    results = tmp_path / "results"
    waiting = [tmp_path / f"waits{seed}" for seed in range(2, 2 + int(workers))]
    while not (
        all(mark.exists() for mark in waiting) and len(store.read("slow", "quick", results)) == 2
    ):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, error = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130
    assert error == "natcompanion: interrupted; what had finished is stored\n"
    assert [one.seed for one in store.read("slow", "quick", results)] == [0, 1]


TOY = '''
import os, sys, time
from dataclasses import dataclass
from natcompanion.chapters import cli
from natcompanion.chapters.experiments import Settings, experiment, provenance, registry

@dataclass(frozen=True, kw_only=True)
class Toy(Settings):
    nap: float = 0.0

registry._import_all = lambda: None
provenance.commit = lambda: "0123456789ab"

@experiment("toy", quick=Toy())
def toy(settings):
    """Draw \u03b5."""
    if settings.nap:
        open(f"{os.environ['NATCOMPANION_RESULTS']}/pid{os.getpid()}", "w").close()
        time.sleep(settings.nap)
    return {"x": settings.seed}

if __name__ == "__main__":
    sys.exit(cli.main())
'''


def toy_command(folder) -> list[str]:
    """Return the command with one experiment, in a process of its own."""
    script = folder / "toy_script.py"
    script.write_text(TOY, encoding="utf-8")
    return [sys.executable, str(script)]


def shell(folder, line: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a line of bash in which TOY is that command."""
    return subprocess.run(
        ["bash", "-c", line.replace("TOY", " ".join(toy_command(folder)))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NATCOMPANION_RESULTS": str(folder), **environment},
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_output_stops_no_command(tmp_path, closed):
    assert shell(tmp_path, f"TOY sweep toy --seeds 0:2 {closed}").returncode == 0
    assert [one.seed for one in store.read("toy", "quick", tmp_path)] == [0, 1]
    done = shell(tmp_path, f"TOY run nope {closed}")
    assert done.returncode == 2 and done.stdout == ""


def test_a_sweep_goes_on_when_nobody_reads_its_bar(tmp_path):
    """``sweep 2>&1 | head``: the reader is gone before the first run. What a buffer still holds at
    the end is no error either.
    """
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*toy_command(tmp_path), "sweep", "toy", "--seeds", "0:4"],
        stdout=subprocess.PIPE,
        stderr=writer,
        check=False,
        env={**os.environ, "NATCOMPANION_RESULTS": str(tmp_path), "PYTHONUNBUFFERED": ""},
    )
    os.close(writer)
    assert done.returncode == 0 and done.stdout.startswith(b"4 records in")


def test_a_locale_without_a_character_is_no_error(tmp_path):
    done = shell(tmp_path, "TOY list", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and done.stdout.endswith("Draw \\u03b5.\n")


def test_a_full_disk_is_found_before_the_first_run(tmp_path):
    """A limit on file sizes stands for the full disk: an empty file still fits."""
    done = shell(tmp_path, "ulimit -f 1; TOY sweep toy --seeds 0:2 --quiet --set nap=0.01")
    assert done.returncode == 2 and "nothing was run" in done.stderr
    assert not list(tmp_path.glob("pid*")) and not list((tmp_path / "toy").glob(".probe*"))


def alive(process: int) -> bool:
    """Return whether a process runs; one that only waits to be asked how it ended does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    found = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() != "" and not found.stdout.startswith("Z")


def test_a_terminated_sweep_leaves_no_process_behind(tmp_path):
    """Batch systems end a job so."""
    process = subprocess.Popen(
        [*toy_command(tmp_path), "sweep", "toy", "--quiet", "--seeds", "1:5"]
        + ["--workers", "2", "--set", "nap=60"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NATCOMPANION_RESULTS": str(tmp_path)},
    )
    while len(marks := list(tmp_path.glob("pid*"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    _, error = process.communicate(timeout=120)
    assert process.returncode == 143
    assert error == "natcompanion: interrupted; what had finished is stored\n"
    workers, until = [int(mark.name[3:]) for mark in marks], time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def test_an_edited_record_can_be_renewed_as_its_message_says(capsys, tmp_path):
    call(capsys, "sweep", "toy", "--seeds", "0:2", "--quiet")
    path = tmp_path / "toy" / "toy.quick.json"
    path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1', 1))
    with pytest.raises(ValueError, match=r"natcompanion renew toy\.quick"):
        experiments.load("toy")
    code, out, err = call(capsys, "renew", "toy.quick", "--quiet")
    assert (code, err) == (0, "") and "1 records renewed, 0 of their values moved" in out
    assert len(experiments.load("toy")) == 2


def test_a_setting_given_twice_is_refused(capsys):
    code, _, err = call(capsys, "run", "toy", "--set", "rate=1", "--set", "rate=2")
    assert code == 2 and "--set rate: given twice" in err


def test_a_broken_pipe_to_a_process_is_no_success(capsys, monkeypatch):
    """Not everything that breaks is a reader who has seen enough."""

    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(experiments, "sweep", broken)
    code, _, err = call(capsys, "sweep", "toy", "--quiet")
    assert code == 2 and err.startswith("natcompanion: a process that helped has ended")


def test_doctor_needs_no_home(capsys, monkeypatch):
    def homeless() -> None:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(cli, "cache_folder", homeless)
    monkeypatch.setattr(ledger, "load", lambda *_, **__: [])
    code, out, _ = call(capsys, "doctor")
    assert code == 0 and "data cache   none: could not determine the home directory" in out
