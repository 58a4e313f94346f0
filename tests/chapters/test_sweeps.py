"""Sweeps lose nothing, and count nothing that other code, versions or devices made."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import (
    Settings,
    experiment,
    provenance,
    registry,
    store,
    sweeping,
)


@dataclass(frozen=True, kw_only=True)
class Toy(Settings):
    rate: float = 0.1
    steps: int = 3
    how: str = "well"


class Mute(Exception):
    """An exception whose text cannot be had."""

    def __str__(self):
        raise RuntimeError("no text")


def toy(settings: Toy) -> dict:
    """Fail in many ways."""
    if settings.seed == 1 and settings.how == "mute":
        raise Mute
    if settings.how == "dtype":
        third = float(torch.tensor(1.0) / 3)
        torch.set_default_dtype(torch.float16)
        return {"x": third}
    if settings.seed == 1 and settings.how == "leaves":
        raise SystemExit(3)
    if settings.seed == 1 and settings.how == "complex":
        return {"x": torch.tensor([1 + 1j])}
    if settings.seed == 1 and settings.how == "stops":
        raise KeyboardInterrupt
    return {"x": settings.rate * settings.seed}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    experiments.names()
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setattr(provenance, "commit", lambda: "0123456789ab")
    experiment("toy", quick=Toy())(toy)


def sweep(folder: Path, **options: object) -> experiments.Results:
    return experiments.sweep("toy", folder=folder, progress=False, **options)


def seeds(folder: Path) -> list[int]:
    return [record.seed for record in store.read("toy", "quick", folder)]


@pytest.mark.parametrize("how", ["leaves", "complex", "mute"])
def test_a_run_that_gives_nothing_stops_no_other(tmp_path, how):
    with pytest.raises(RuntimeError, match="1 of 4 runs failed.*(SystemExit|complex|Mute)"):
        sweep(tmp_path, seeds=range(4), grid={"how": [how]})
    assert seeds(tmp_path) == [0, 2, 3]


def test_whoever_stops_a_sweep_keeps_what_had_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, seeds=[0, 2, 1, 3], grid={"how": ["stops"]})
    assert seeds(tmp_path) == [0, 2]


@pytest.mark.parametrize("callers", [torch.float32, torch.float64])
def test_the_default_dtype_of_the_caller_and_of_other_runs_does_not_matter(tmp_path, callers):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(callers)
        found = sweep(tmp_path, seeds=[0, 1], grid={"how": ["dtype"]})
        assert torch.get_default_dtype() == callers
    finally:
        torch.set_default_dtype(before)
    assert found.values("x").tolist() == [float(np.float32(1) / np.float32(3))] * 2


@pytest.mark.parametrize("values", [0.1, "abc", [], np.array(0.1)])
def test_a_grid_of_no_list_is_refused(tmp_path, values):
    with pytest.raises(ValueError, match="grid: expected a list of values for rate"):
        sweep(tmp_path, grid={"rate": values})
    with pytest.raises(ValueError, match="workers: expected a number other than 0"):
        sweep(tmp_path, workers=0)


def test_a_grid_may_hold_arrays(tmp_path):
    grid = {"rate": np.array([0.1, 0.2]), "steps": np.arange(2), "how": ["well"]}
    assert len(sweep(tmp_path, seeds=np.arange(2), grid=grid)) == 8
    assert experiments.run("toy", rate=np.float64(0.5), steps=torch.tensor(2)).settings == {
        "rate": 0.5,
        "steps": 2,
        "how": "well",
    }


CHANGES = {
    "legacy": {"fingerprint": None},
    "stale": {"fingerprint": "0" * 16},
    "dirty": {"commit": "0123456789ab+changes"},
    "of other versions": {"versions": {"torch": "1.0", "numpy": "2"}},
    "of device cuda": {"device": "cuda"},
}


@pytest.mark.parametrize("reason", [*CHANGES, "edited"])
def test_records_of_something_else_are_run_again(tmp_path, capsys, reason):
    sweep(tmp_path, seeds=range(3))
    old = store.read("toy", "quick", tmp_path)[1]
    change = CHANGES.get(reason, {"values": {"x": 77.0}})
    other = replace(old, **change, hash=old.hash if reason == "edited" else None)
    store.merge(other, tmp_path)
    capsys.readouterr()
    results = sweep(tmp_path, seeds=range(3))
    assert capsys.readouterr().err == f"toy.quick: run again are 1 {reason}\n"
    assert results.states == {"current": 3} and results.notes == []
    assert results.values("x")[1] == old["x"]


def test_results_say_what_they_rest_on(tmp_path):
    sweep(tmp_path, seeds=range(3))
    for record, change in zip(store.read("toy", "quick", tmp_path), CHANGES.values(), strict=False):
        store.merge(replace(record, **change, hash=None), tmp_path)
    with pytest.raises(ValueError, match=r"toy.quick, seed 1, .* was made by other code"):
        experiments.load("toy", folder=tmp_path)
    results = experiments.load("toy", folder=tmp_path, allow_stale=True)
    assert results.states == {"legacy": 1, "stale": 1, "dirty": 1} and results.dirty
    assert results.notes == ["1 dirty", "1 legacy", "1 stale"]
    store.merge(replace(results.records[0], device="cuda", hash=None), tmp_path)
    notes = experiments.load("toy", folder=tmp_path, allow_stale=True).notes
    assert "several of device: cpu, cuda" in notes


def test_a_dirty_tree_stores_nothing_unless_told_to(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda: "0123456789ab+changes")
    with pytest.raises(ValueError, match="changes that are not committed"):
        sweep(tmp_path, seeds=range(2))
    assert seeds(tmp_path) == []
    results = sweep(tmp_path, seeds=range(2), dirty=True)
    assert results.dirty and results.notes == ["2 dirty"]
    assert sweep(tmp_path, seeds=range(2), dirty=True).records == results.records  # not run again


def test_a_changed_constant_makes_a_record_stale(tmp_path):
    """The whole way: a module on disk, its records, and the same module with another constant."""
    script = tmp_path / "mine.py"
    text = """
        import sys
        from dataclasses import dataclass
        from pathlib import Path
        from natcompanion.chapters.experiments import Settings, experiment, sweep

        FACTOR = 2

        @experiment("mine", quick=Settings())
        def mine(settings):
            '''Return a number.'''
            return {"x": FACTOR * settings.seed}

        if __name__ == "__main__":
            results = sweep("mine", folder=Path(sys.argv[1]), progress=False, dirty=True)
            print(results.values("x").tolist())
        """

    def run() -> tuple[str, str]:
        command = [sys.executable, script, str(tmp_path / "results")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip(), done.stderr

    script.write_text(textwrap.dedent(text))
    assert run() == ("[0, 2, 4, 6, 8]", "")
    script.write_text(script.read_text().replace("Return a number.", "Return twice the seed."))
    assert run() == ("[0, 2, 4, 6, 8]", "")
    script.write_text(script.read_text().replace("FACTOR = 2", "FACTOR = 3"))
    assert run() == ("[0, 3, 6, 9, 12]", "mine.quick: run again are 5 stale\n")


def test_a_record_holds_the_criteria_of_its_claims():
    found = experiments.get("rfim_conditioning")
    criteria = sweeping.origin_of(found, "quick").criteria
    assert len(criteria) > 0 and all(len(digest) == 16 for digest in criteria.values())
    assert sweeping.origin_of(experiments.get("toy"), "quick").criteria == {}


def test_a_finished_record_is_never_thrown_away(tmp_path, monkeypatch):
    """The folder fails after the probe; a later sweep from the same place adopts the records."""
    monkeypatch.chdir(tmp_path)
    append = store.append

    def full(record, folder):
        if record.seed:
            raise OSError("disk full")
        append(record, folder)

    monkeypatch.setattr(store, "append", full)
    with pytest.raises(RuntimeError, match=r"could not be stored; they are in .*rescued.jsonl"):
        sweep(tmp_path / "results", seeds=range(3))
    assert seeds(tmp_path / "results") == [0]
    monkeypatch.setattr(store, "append", append)
    monkeypatch.setattr(sweeping, "finish", None)  # nothing is run
    assert len(sweep(tmp_path / "results", seeds=range(3))) == 3
    assert not store.rescue_file("toy", "quick").exists()


def test_a_folder_that_takes_nothing_costs_no_run(tmp_path, monkeypatch):
    (tmp_path / "toy").write_text("")
    monkeypatch.setattr(sweeping, "outcomes", None)
    with pytest.raises(OSError, match="nothing was run"):
        sweep(tmp_path)


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from natcompanion.chapters.experiments import Settings, experiment, sweep

@experiment("slow", quick=Settings())
def slow(settings):
    '''Take a while; kill the process, once or always.'''
    flag = Path(sys.argv[1]) / f"killed{settings.seed}"
    time.sleep(0.05)
    if settings.seed in map(int, sys.argv[3].split(",")) and settings.seed != 9:
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.seed == 9 and "9" in sys.argv[3] and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": settings.seed}

if __name__ == "__main__":
    try:
        sweep("slow", seeds=range(10), folder=Path(sys.argv[1]), progress=False, dirty=True,
              workers=int(sys.argv[2]))
    except RuntimeError as error:
        sys.exit(str(error))
"""


def slow(folder: Path, workers: int, killed: str = "-1") -> list[str]:
    script = folder / "slow_script.py"
    script.write_text(SCRIPT)
    return [sys.executable, str(script), str(folder), str(workers), killed]


def test_a_killed_worker_stops_no_other_run(tmp_path):
    """Seed 2 kills its process each time, seed 9 the first time only."""
    done = subprocess.run(slow(tmp_path, 2, "2,9"), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "1 of 10 runs failed" in done.stderr
    assert "seed=2" in done.stderr and "its process was killed, twice" in done.stderr
    found = [record.seed for record in store.read("slow", "quick", tmp_path)]
    assert found == [0, 1, 3, 4, 5, 6, 7, 8, 9]


def kill_at_random(folder: Path, times: int, workers: list[int]) -> None:
    """Start a sweep and kill it at a random moment, again and again; then let one finish."""
    rng, before = random.Random(0), []
    for _ in range(times):
        process = subprocess.Popen(
            slow(folder, rng.choice(workers)), start_new_session=True, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 30
        while len(store.read("slow", "quick", folder)) <= len(before):
            if process.poll() is not None or time.monotonic() > until:
                break
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.08))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        after = [record.identity for record in store.read("slow", "quick", folder)]
        assert set(before) <= set(after)
        before = after
        if len(before) == 10:
            store.path_of("slow", "quick", folder).unlink(missing_ok=True)
            store.journal_of(store.path_of("slow", "quick", folder)).unlink(missing_ok=True)
            before = []
    subprocess.run(slow(folder, max(workers)), check=True)
    records = store.read("slow", "quick", folder)
    assert [record.seed for record in records] == list(range(10))
    assert all(record["x"] == record.seed and not record.edited for record in records)
    assert not [
        path.name for path in (folder / "slow").iterdir() if path.suffix in (".jsonl", ".tmp")
    ]


def test_three_sweeps_killed_at_random_moments(tmp_path):
    kill_at_random(tmp_path, 3, [1])


@pytest.mark.nightly
def test_twenty_sweeps_killed_at_random_moments(tmp_path):
    kill_at_random(tmp_path, 20, [1, 2])


def test_dask_with_a_local_scheduler(tmp_path):
    """A scheduler of this machine, by its address: the same numbers as without."""
    from distributed import LocalCluster

    plain = experiments.sweep(
        "rfim_conditioning", seeds=range(2), folder=tmp_path / "plain", progress=False
    )
    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        there = experiments.sweep(
            "rfim_conditioning",
            seeds=range(2),
            folder=tmp_path / "dask",
            progress=False,
            backend="dask",
            scheduler=cluster.scheduler_address,
        )
    assert [a.values for a in there] == [b.values for b in plain] and len(there) == 2


def test_streams_of_all_seeds_and_offsets_are_apart():
    """A stride of one between seeds would give seed 1 the second stream of seed 0."""
    firsts = {
        Settings(seed=seed).generator(offset).initial_seed()
        for seed in range(5)
        for offset in (0, 1, 2, 500, 999)
    }
    assert len(firsts) == 25


def test_no_point_is_run_twice():
    wanted = sweeping.plan(
        experiments.get("toy"), "quick", [0, np.int64(0), 1], {"rate": [1, 1.0, 2]}, "cpu"
    )
    assert [(each.rate, each.seed) for each in wanted] == [(1, 0), (1, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize("seed", [1.7, "1", None])
def test_a_seed_that_is_no_whole_number_is_refused(tmp_path, seed):
    with pytest.raises(ValueError, match="seeds: expected whole numbers, got"):
        sweep(tmp_path, seeds=[0, seed])
