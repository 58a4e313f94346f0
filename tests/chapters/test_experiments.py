"""Experiments: settings, storage that survives anything, sweeps that resume."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import (
    Result,
    Settings,
    encoding,
    experiment,
    interval,
    pool,
    provenance,
    registry,
    store,
)


@dataclass(frozen=True, kw_only=True)
class Toy(Settings):
    rate: float = 0.1
    steps: int = 3
    sizes: tuple = (1, 2)
    kind: str = "plain"


def toy(settings: Toy) -> dict:
    """Draw a number.

    The rest is not the summary.
    """
    if settings.kind == "fails" and settings.seed == 1:
        raise ArithmeticError("seed 1 does not work")
    noise = torch.randn((), generator=settings.generator()).item()
    return {
        "own": settings.rate * noise,
        "global": torch.randn(2),
        "nested": {"one": settings.seed},
    }


@pytest.fixture(autouse=True)
def toy_experiment(monkeypatch):
    """Register the toy for one test only, beside the real ones."""
    experiments.names()  # modules register once, when first imported: not into the copy
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setattr(provenance, "commit", lambda: "0123456789ab")
    experiment("toy", quick=Toy(), paper=Toy(steps=100))(toy)


def record(seed: int, **settings) -> Result:
    return Result("toy", "quick", seed, settings, {"x": float(seed)}, "cpu", 1, 0.1, None, {})


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def sweep(folder, **options):
    return experiments.sweep("toy", folder=folder, progress=False, **options)


def test_registry():
    assert "toy" in experiments.names() and experiments.names() == sorted(experiments.names())
    assert experiments.get("toy").summary == "Draw a number."
    assert experiments.get("toy").preset("paper").steps == 100


def test_every_module_registers_experiments_of_its_paper():
    for name in experiments.names():
        module = experiments.get(name).function.__module__
        if module.startswith("natcompanion."):
            assert f"{name}_".startswith(module.rpartition(".")[2] + "_"), name
            assert experiments.get(name).summary, name


def test_a_name_is_taken_once():
    with pytest.raises(ValueError, match="registered already"):
        experiment("toy", quick=Toy())(lambda settings: {})


@pytest.mark.parametrize("name", ["Toy", "to y", "toy-x", ""])
def test_bad_names(name):
    with pytest.raises(ValueError, match="lower-case words"):
        experiment(name, quick=Toy())


def test_settings_are_frozen_dataclasses_of_one_type():
    with pytest.raises(ValueError, match="frozen dataclass"):
        experiment("toy2", quick={"rate": 1})
    with pytest.raises(ValueError, match="frozen dataclass"):
        experiment("toy2", quick=Toy(), paper=Settings())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"speed": 1}, "no setting speed; there are seed, device, rate"),
        ({"rate": "fast"}, "rate expected float, got 'fast'"),
        ({"steps": 1.5}, "steps expected int"),
        ({"steps": True}, "steps expected int"),
        ({"kind": 1}, "kind expected str"),
    ],
)
def test_bad_settings(overrides, message):
    with pytest.raises(ValueError, match=message):
        experiments.run("toy", **overrides)


def test_numbers_and_lists_become_the_type_of_the_default():
    settings = experiments.run("toy", rate=1, sizes=[3]).settings
    assert (
        settings["rate"] == 1.0 and isinstance(settings["rate"], float) and settings["sizes"] == [3]
    )


def test_unknown_experiment_and_preset():
    with pytest.raises(ValueError, match="no experiment 'nope'; there are .*toy"):
        experiments.run("nope")
    with pytest.raises(ValueError, match="no preset 'huge'; there are quick, paper"):
        experiments.run("toy", "huge")


def test_a_function_that_returns_no_dict(monkeypatch):
    experiment("toy3", quick=Toy())(lambda settings: 3)
    with pytest.raises(TypeError, match="return a dict, got int"):
        experiments.run("toy3")


def test_same_settings_give_the_same_numbers_and_leave_no_trace():
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first, again, other = (experiments.run("toy", seed=seed) for seed in (2, 2, 3))
    assert first.values == again.values
    assert first["own"] != other["own"] and first["global"] != other["global"]
    assert torch.equal(torch.get_rng_state(), before) and torch.get_num_threads() == threads


def test_streams_differ():
    a, b = (torch.randn(4, generator=Toy(seed=1).generator(offset)) for offset in (0, 1))
    assert not torch.equal(a, b)


def test_a_record_says_where_it_comes_from():
    result = experiments.run("toy", seed=1)
    assert result.versions.keys() == {"python", "torch", "numpy", "scipy", "natcompanion"}
    assert (
        result.versions["torch"] == torch.__version__.partition("+")[0]
        or result.versions["torch"] == torch.__version__
    )
    assert result.device == "cpu" and result.threads == 1 and result.seconds >= 0
    assert "seed" not in result.settings and "device" not in result.settings
    assert result["nested.one"] == 1
    with pytest.raises(ValueError, match="no value 'gap'; it has global, nested, own"):
        result["gap"]


def test_json_is_strict_stable_and_round():
    value = {
        "b": [1.5, math.nan, -math.inf],
        "a": {"c": [[1, 2], []], "d": None, "e": True, "f": "NaN", "g": {}},
    }
    text = encoding.dumps(value)
    back = encoding.loads(text)
    assert encoding.dumps(back) == text and text.index('"a"') < text.index('"b"')
    assert math.isnan(back["b"][1]) and back["b"][2] == -math.inf and back["a"] == value["a"]
    assert json.loads(text, parse_constant=pytest.fail)["a"]["f"] == "NaN"
    with pytest.raises(ValueError, match="not strict JSON"):
        encoding.loads("[NaN]")


def test_floats_keep_every_digit():
    numbers = np.random.default_rng(0).standard_normal(100).tolist()
    assert encoding.loads(encoding.dumps(numbers)) == numbers


def test_values_become_plain():
    value = {
        "t": torch.tensor([1.0]),
        "n": np.float64(2),
        "l": (1, np.int64(2)),
        "b": torch.tensor(True),
    }
    assert encoding.plain(value) == {"t": [1.0], "n": 2.0, "l": [1, 2], "b": True}
    with pytest.raises(ValueError, match=r"toy\.f: expected numbers.*got set"):
        encoding.plain({"f": {1}}, "toy")
    with pytest.raises(ValueError, match="string keys"):
        encoding.plain({1: 2})


def test_sweep_stores_each_point_of_the_grid(tmp_path):
    results = sweep(tmp_path, seeds=range(3), grid={"rate": [0.1, 0.2], "steps": [1, 2]})
    assert len(results) == 12 and len(results.select(rate=0.2)) == 6
    np.testing.assert_allclose(
        results.values("own", rate=0.2, steps=1), 2 * results.values("own", rate=0.1, steps=1)
    )
    assert results.values("own", rate=0.1, steps=1)[2] == experiments.run("toy", seed=2)["own"]
    assert results.values("global").shape == (12, 2)
    assert files(tmp_path / "toy") == ["toy.quick.json"]


def test_sweep_runs_only_what_is_missing(tmp_path, monkeypatch):
    sweep(tmp_path, seeds=[0, 1])
    before = (tmp_path / "toy" / "toy.quick.json").read_bytes()
    ran = []
    attempt = pool.attempt
    monkeypatch.setattr(
        pool, "attempt", lambda n, task, *a: ran.append(task.settings.seed) or attempt(n, task, *a)
    )
    sweep(tmp_path, seeds=[0, 1])
    assert ran == [] and (tmp_path / "toy" / "toy.quick.json").read_bytes() == before
    assert len(sweep(tmp_path, seeds=[0, 1, 2])) == 3 and ran == [2]
    assert len(sweep(tmp_path, seeds=[1], fresh=True)) == 3 and ran == [2, 1]


def test_workers_give_the_same_numbers(tmp_path):
    one = sweep(tmp_path / "one", seeds=range(4))
    two = sweep(tmp_path / "two", seeds=range(4), workers=2, backend="threading")
    np.testing.assert_array_equal(one.values("own"), two.values("own"))


def test_one_failure_does_not_stop_the_others(tmp_path):
    with pytest.raises(
        RuntimeError, match="1 of 3 runs failed.*ArithmeticError: seed 1 does not work"
    ) as caught:
        sweep(tmp_path, seeds=range(3), grid={"kind": ["fails"]})
    assert "Traceback" in caught.value.__notes__[0]
    assert [r.seed for r in experiments.load("toy", folder=tmp_path)] == [0, 2]


def test_dask(tmp_path):
    with pytest.raises(ValueError, match="add backend='dask'"):
        sweep(tmp_path, scheduler="tcp://127.0.0.1:1")
    if "distributed" not in sys.modules:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match="pip install"):
            patch.setitem(sys.modules, "distributed", None)
            sweep(tmp_path, backend="dask")
    with pytest.raises(ValueError, match="nowhere"):
        sweep(tmp_path, backend="nowhere")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "3",
        "[1]",
        '{"a": 1}',
        '[{"seed": 1}]',
        "[NaN]",
        "not json",
        '[{"experiment"',
        "[[]]",
    ],
)
def test_a_foreign_file_is_never_overwritten(tmp_path, text):
    path = tmp_path / "toy" / "toy.quick.json"
    path.parent.mkdir()
    path.write_text(text)
    for attempt in (lambda: sweep(tmp_path), lambda: store.merge(record(1), tmp_path)):
        with pytest.raises(ValueError, match=r"toy.quick.json: not a results file of toy.quick"):
            attempt()
    assert path.read_text() == text and files(tmp_path / "toy") == ["toy.quick.json"]


def teststore_of_another_experiment_are_refused(tmp_path):
    sweep(tmp_path, seeds=[0])
    (tmp_path / "toy" / "toy.quick.json").rename(tmp_path / "toy" / "toy.paper.json")
    with pytest.raises(ValueError, match=r"it holds records of toy\.quick"):
        experiments.load("toy", "paper", folder=tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    store.merge(record(0), tmp_path)
    before = (tmp_path / "toy" / "toy.quick.json").read_bytes()

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        store.merge(record(1), tmp_path)
    assert (tmp_path / "toy" / "toy.quick.json").read_bytes() == before
    assert [r.seed for r in store.read("toy", "quick", tmp_path)] == [0]


def merge_many(folder: Path, seeds: range) -> None:
    for seed in seeds:
        store.merge(record(seed), folder)


def test_two_writers_lose_nothing(tmp_path):
    start = get_context("spawn")
    writers = [start.Process(target=merge_many, args=(tmp_path, range(i, 60, 2))) for i in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [r.seed for r in experiments.load("toy", folder=tmp_path)] == list(range(60))


SLOW = """
import sys, time
from dataclasses import dataclass
from pathlib import Path
from natcompanion.chapters.experiments import Settings, experiment, sweep

@dataclass(frozen=True, kw_only=True)
class Slow(Settings):
    pause: float = 0.3

@experiment("slow", quick=Slow())
def slow(settings):
    with open(sys.argv[1] + "/ran", "a") as file:
        file.write(f"{settings.seed}\\n")
    time.sleep(settings.pause)
    return {"x": settings.seed}

sweep("slow", seeds=range(6), folder=Path(sys.argv[1]) / "results", progress=False, dirty=True)
"""


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path):
    command = [sys.executable, "-c", SLOW, str(tmp_path)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    path = tmp_path / "results" / "slow" / "slow.quick.json"
    while len(store.read("slow", "quick", tmp_path / "results")) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = [record.seed for record in store.read("slow", "quick", tmp_path / "results")]
    assert 2 <= len(finished) < 6
    subprocess.run(command, check=True)
    ran = [int(line) for line in (tmp_path / "ran").read_text().split()]
    assert [item["seed"] for item in json.loads(path.read_text())] == list(range(6))
    assert all(ran.count(seed) == 1 for seed in finished) and set(ran) == set(range(6))


def test_results_say_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="run: natcompanion sweep toy --preset paper"):
        experiments.load("toy", "paper", folder=tmp_path)
    results = sweep(tmp_path, seeds=range(2))
    with pytest.raises(ValueError, match="no setting speed; there are device, kind, rate, seed"):
        results.select(speed=1)
    with pytest.raises(ValueError, match="no stored record with {'rate': 9}"):
        results.values("own", rate=9)
    assert results.select(seed=1, sizes=(1, 2)).records[0].seed == 1


def test_means_and_medians(tmp_path):
    results = sweep(tmp_path, seeds=range(6))
    own = results.values("own")
    assert results.mean("own").mean == pytest.approx(own.mean()) and results.median(
        "own"
    ) == np.median(own)


def test_the_t_interval():
    # Mean 3, sample deviation sqrt(2.5), t(0.975, 4) = 2.776: half width 1.963.
    found = interval([1, 2, 3, 4, 5])
    assert (found.mean, found.n) == (3, 5)
    assert found.low == pytest.approx(3 - 1.963, abs=1e-3) and found.high == pytest.approx(
        3 + 1.963, abs=1e-3
    )
    normal = 1.96 * math.sqrt(2.5 / 5)
    assert found.high - 3 > 1.2 * normal  # the normal quantile would be too narrow
    assert str(found) == "3.00 [1.04, 4.96]" and str(interval([2.0])) == "2.00"


def test_the_interval_covers_the_mean_in_95_percent_of_trials():
    rng = np.random.default_rng(0)
    trials = [interval(rng.standard_normal(5)) for _ in range(2000)]
    assert 0.935 < np.mean([t.low < 0 < t.high for t in trials]) < 0.965


def test_the_share_of_true_has_an_exact_interval():
    found = interval([True] * 20)
    assert found.mean == 1 and found.high == 1 and found.low == pytest.approx(0.025 ** (1 / 20))
    assert interval([1.0] * 20).low == 1  # Student's t would claim certainty
    half = interval([True, False] * 5)
    assert half.low == pytest.approx(stats.beta.ppf(0.025, 5, 6))


@pytest.mark.parametrize("values", [[], [math.nan], [1, math.inf], ["a"], [None, 1.0]])
def test_interval_refuses(values):
    with pytest.raises(ValueError, match="expected finite numbers"):
        interval(values)


def test_the_results_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("NATCOMPANION_RESULTS", raising=False)
    monkeypatch.chdir(tmp_path)
    checkout = Path(store.__file__).resolve().parents[3] / "book" / "results"
    assert experiments.results_folder() == checkout
    monkeypatch.setattr(
        store, "__file__", str(tmp_path / "lib" / "natcompanion" / "experiments" / "x.py")
    )
    assert experiments.results_folder() == tmp_path / "results"
    (tmp_path / "book" / "results").mkdir(parents=True)
    (tmp_path / "book" / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "book" / "deep")
    assert experiments.results_folder() == tmp_path / "book" / "results"
    monkeypatch.setenv("NATCOMPANION_RESULTS", str(tmp_path / "mine"))
    assert experiments.results_folder() == tmp_path / "mine"
