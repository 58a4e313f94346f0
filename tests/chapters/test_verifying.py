"""Stored records run again: what agrees, what moved, which verdicts follow."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from natcompanion.chapters import cli, experiments, ledger
from natcompanion.chapters.experiments import (
    Result,
    Settings,
    encoding,
    experiment,
    provenance,
    registry,
    store,
    verifying,
)
from natcompanion.data import DataUnavailable


@dataclass(frozen=True, kw_only=True)
class Toy(Settings):
    rate: float = 0.1
    data: str = "digits"


FACTOR = 1.0


def toy(settings: Toy) -> dict:
    """Draw a number."""
    if FACTOR == 0 and settings.seed == 1:
        raise SystemExit("no factor")
    if FACTOR == 0 and settings.seed == 2:
        raise DataUnavailable("no data")
    noise = torch.randn(3, generator=settings.generator())
    return {"x": FACTOR * noise[0].item(), "curve": (FACTOR * noise).tolist(), "seconds": 1.0}


@pytest.fixture(autouse=True)
def results(monkeypatch, tmp_path):
    """Five stored records of one experiment."""
    monkeypatch.setattr(registry, "_import_all", lambda: None)
    monkeypatch.setattr(registry, "_REGISTRY", {})
    monkeypatch.setattr(provenance, "commit", lambda: "0123456789ab")
    monkeypatch.setenv("NATCOMPANION_RESULTS", str(tmp_path))
    experiment("toy", quick=Toy())(toy)
    experiments.sweep("toy", progress=False)
    return tmp_path


def record(seed: int, **values: object) -> Result:
    return Result("toy", "quick", seed, {}, values, "cpu", 1, 0.1, None, {})


def how(old: object, new: object, peers: list, **sets: float) -> tuple[str, bool]:
    known = [record(k, x=value) for k, value in enumerate(peers)]
    found = verifying.compare(record(0, x=old), record(0, x=new), known, {"toy.quick": sets})[0]
    return found.how, not found.moved


def test_an_exact_value_agrees_to_six_digits():
    assert how(1.0, 1.0 + 5e-7, [1.0, 2.0]) == ("exact", True)
    assert how(1.0, 1.0 + 5e-6, [1.0, 2.0]) == ("moved", False)
    assert how([1, None, "a", math.nan], [1, None, "a", math.nan], []) == ("exact", True)
    assert how(True, False, [True, False]) == ("moved", False)
    assert how([1.0, 2.0], [1.0], []) == ("moved", False)


def test_a_value_that_rounding_moves_a_little_agrees_a_little_less():
    assert how(1.0, 1.0001, [1.0], x=1e-5) == ("within 3e-04", True)
    assert how(1.0, 1.001, [1.0, 2.0], x=1e-5) == ("moved", False)


def test_values_of_one_run_share_its_rounding():
    """What another value moves by counts as well, up to 0.1 %; not for one that never moved."""
    assert how(1.0, 1.0002, [1.0], x=1e-6) == ("moved", False)
    assert how(1.0, 1.0002, [1.0], x=1e-6, other=1e-5) == ("within 3e-04", True)
    assert how(1.0, 1.0002, [1.0], other=1e-5) == ("moved", False)
    assert how(1.0, 1.002, [1.0], x=1e-6, other=9e-4) == ("moved", False)


def test_a_trained_value_agrees_within_the_spread_over_seeds():
    """Peers from 1 to 2: from 0 to 4 is within, what lies beyond is not; a sign counts."""
    for value, within in ((0.1, True), (3.9, True), (4.1, False), (-0.1, False), (math.nan, False)):
        assert how(1.5, value, [1.0, 1.5, 2.0], x=0.5)[1] is within
    for value, within in ((-2.9, True), (2.9, True), (3.1, False)):
        assert how(0.5, value, [-1.0, 0.5, 1.0], x=0.5)[1] is within
    for value, within in ((1e-19, True), (9e-11, True), (2e-10, False), (math.inf, False)):
        assert how(1e-15, value, [1e-18, 1e-14], x=0.5)[1] is within
    assert how(1.5, None, [1.5, None], x=0.5)[1] and not how(1.5, None, [1.5, 2.0], x=0.5)[1]
    curve = [1.0] * 100
    wild = [9.0, *curve[1:]]
    assert how(curve, wild, [curve, [2.0] * 100], x=0.5)[1]  # one number of a hundred
    assert not how(curve, [9.0] * 10 + curve[10:], [curve, [2.0] * 100], x=0.5)[1]


def test_a_trained_value_of_the_only_run_agrees_within_the_spread_of_its_own_numbers():
    """As where each number is of another start: ends from 0 to 1, so from -1 to 2 is within."""
    old = [0.0, 1.0, 0.5, 1.0]
    assert how(old, [1.0, 0.0, 0.5, 1.0], [old], x=0.5) == ("within the spread over the run", True)
    for wrong in ([0.0, 1.0, 0.5, 2.1], [0.0, 1.0, 0.5, math.nan], [0.0, 1.0, 0.5]):
        assert not how(old, wrong, [old], x=0.5)[1]
    assert not how(1.0, 1.5, [1.0], x=0.5)[1]  # a number alone has no spread


def test_what_nobody_measured_counts_as_trained():
    known = [record(k, x=float(k)) for k in range(3)]
    assert not verifying.compare(record(0, x=1.0), record(0, x=1.5), known, {})[0].moved


def test_times_are_not_compared():
    one, two = (replace(record(0, x=1.0), values={"clock_train": t}) for t in (1.0, 9.0))
    assert verifying.compare(one, two, [], {"toy.quick": {}})[0].how == "times not compared"


def test_the_stored_records_agree(capsys, results):
    (results / "instruction_sets.json").write_text('{"toy.quick": {}}')
    assert cli.main(["verify"]) == 0
    out = capsys.readouterr().out
    assert out.count("exact, times not compared") == 5 and "5 of 5 agree" in out


def test_a_constant_changed_by_one_percent_is_seen(capsys, results, monkeypatch):
    (results / "instruction_sets.json").write_text('{"toy.quick": {}}')
    monkeypatch.setattr(f"{__name__}.FACTOR", 1.01)
    assert cli.main(["verify", "--sample", "3", "--seed", "1", "toy"]) == 1
    out = capsys.readouterr().out
    assert out.count("MOVED curve: curve[") == 3 and "0 of 3 agree" in out


def test_a_run_that_fails_is_a_disagreement_and_stops_no_other(capsys, results, monkeypatch):
    monkeypatch.setattr(f"{__name__}.FACTOR", 0.0)
    assert cli.main(["verify", "toy"]) == 1
    out = capsys.readouterr().out
    assert "FAILED SystemExit: no factor" in out and "not run: no data" in out
    assert "3 of 4 agree, 1 were not run" in out


@pytest.mark.parametrize("sample", ["0", "-1"])
def test_an_empty_sample_is_refused(capsys, results, sample):
    assert cli.main(["verify", "--sample", sample]) == 2
    assert "sample: expected at least 1" in capsys.readouterr().err


@pytest.fixture
def verdicts(results, monkeypatch):
    """From the mean of a value over the records, its sign is the verdict; returned are the verdicts
    that change with values that take the place of those of the first record.
    """
    claim = ledger.Claim(
        id="rfim-toy",
        paper="rfim",
        where="here",
        claim="x is positive",
        paper_value="positive",
        experiment="toy.quick",
        measure="sign",
        criterion={"reproduced": "value > 0"},
        verdict="reproduced",
    )

    def changed(measure, **values):
        def verdict(claim, folder):
            records = experiments.load("toy", folder=folder, allow_stale=True)
            return "reproduced" if records.mean(measure).mean > 0 else "not reproduced"

        monkeypatch.setattr(ledger, "load", lambda *_, **__: [claim])
        monkeypatch.setattr(ledger, "verdict", verdict)
        old = store.read("toy", "quick")[0]
        new = replace(old, values={**old.values, **values}, hash=None)
        copy = results.parent / "copy"
        verifying.shutil.copytree(results, copy, dirs_exist_ok=True)
        found = verifying.verdicts(old, new, results, copy)
        return verifying.Check(old, new, (), *found)

    return changed


def test_a_changed_verdict_is_a_disagreement(verdicts):
    """The sign of the new value turns the verdict over, within the spread as it is."""
    values = experiments.load("toy").values("x")
    flipped = -10 * abs(values).sum() * math.copysign(1, values.mean())
    check = verdicts("x", x=float(flipped))
    assert not check.agrees and "MOVED rfim-toy: " in str(check) and check.unchanged == 0
    check = verdicts("x")
    assert check.agrees and check.unchanged == 1


def test_a_changed_verdict_is_learned(verdicts, results):
    """The file keeps what it turns to; an experiment whose verdicts stay is named with none."""
    values = experiments.load("toy").values("x")
    flipped = -10 * abs(values).sum() * math.copysign(1, values.mean())
    verifying.learn([verdicts("x")])
    assert verifying.read_turned() == {"toy.quick": {}}
    verifying.learn([verdicts("x", x=float(flipped)), verdicts("x")])
    outcome = "not reproduced" if values.mean() > 0 else "reproduced"
    assert verifying.read_turned() == {"toy.quick": {"rfim-toy": outcome}}


def test_a_verdict_on_seconds_does_not_change_with_the_clock(verdicts):
    """Beside other work a rerun takes other times."""
    assert verdicts("seconds", seconds=-1e3).agrees


def test_a_journal_that_a_killed_sweep_left_is_verified(capsys, results):
    """There is no file beside it yet."""
    path = store.path_of("toy", "quick")
    records = store.read("toy", "quick")
    path.unlink()
    for one in records:
        store.append(one)
    assert cli.main(["verify"]) == 0 and "5 of 5 agree" in capsys.readouterr().out
    assert not path.exists() and store.read("toy", "quick") == records


def test_doctor_names_records_that_lost_fingerprint_and_hash(capsys):
    """So does an edited record that should pass for one of the early ones."""
    first, *_ = store.read("toy", "quick")
    store.merge(replace(first, fingerprint=None, hash=None), None)
    assert cli.main(["doctor"]) == 1
    assert "problem      toy.quick: 1 legacy; run them again" in capsys.readouterr().out


def test_a_sample_covers_many_experiments_within_its_time():
    records = [
        replace(record(seed), experiment=f"e{k}", seconds=float(k))
        for k in range(8)
        for seed in range(4)
    ]
    chosen = verifying.select(records, 6, 0, 20.0, False)
    assert len({one.experiment for one in chosen}) == len(chosen) == 6
    assert sum(one.seconds for one in chosen) <= 20 and max(one.seconds for one in chosen) <= 5
    assert chosen == verifying.select(records, 6, 0, 20.0, False)
    assert chosen != verifying.select(records, 6, 1, 20.0, False)
    assert verifying.select(records, None, 0, 0.0, False) == records


def test_a_sample_covers_the_methods_of_an_experiment():
    """One of a hundred is of another method, which other instructions may move more."""
    records = [replace(record(seed), settings={"method": "sgd"}) for seed in range(99)]
    records.append(replace(record(99), settings={"method": "muon"}))
    for seed in range(20):
        chosen = verifying.select(records, 2, seed, 10.0, False)
        assert {one.settings["method"] for one in chosen} == {"sgd", "muon"}


def test_the_packaged_sample_leaves_out_downloads():
    one = replace(record(0), settings={"data": "fashion"})
    two = replace(record(0), settings={"data": "digits"})
    assert verifying.select([one, two], 5, 0, 10.0, True) == [two]


def test_names_that_are_not_stored():
    with pytest.raises(ValueError, match="no stored results of 'nope'"):
        list(verifying.verify(["nope"]))


def test_renew_runs_legacy_records_again_where_they_are_named(capsys):
    for old in store.read("toy", "quick")[:2]:
        store.merge(replace(old, fingerprint=None, hash=None), None)
    assert cli.main(["renew", "--quiet"]) == 0 and capsys.readouterr().out == ""
    assert experiments.load("toy").states == {"current": 3, "legacy": 2}
    assert cli.main(["renew", "toy", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out == "toy.quick: 2 records renewed, 0 of their values moved\n"
    assert experiments.load("toy").states == {"current": 5}
    assert cli.main(["renew", "toy", "--quiet"]) == 0
    assert "0 records renewed" in capsys.readouterr().out


def test_renew_without_names_takes_files_with_stale_records(capsys):
    first, *_ = store.read("toy", "quick")
    store.merge(replace(first, fingerprint="0" * 16, hash=None), None)
    assert cli.main(["renew", "--quiet"]) == 0
    assert "toy.quick: 1 records renewed" in capsys.readouterr().out
    assert experiments.load("toy").states == {"current": 5}


def test_doctor_names_stale_and_dirty_records(capsys):
    first, second, *_ = store.read("toy", "quick")
    store.merge(replace(first, fingerprint="0" * 16, hash=None), None)
    store.merge(replace(second, commit="0123456789ab+changes", hash=None), None)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "problem      toy.quick: 1 dirty, 1 stale; run them again" in out
    assert "records      3 current, 1 dirty, 1 stale" in out


def test_another_instruction_set_is_learned(capsys, results, monkeypatch):
    """What moves once is allowed from then on, and the file keeps the largest move."""
    monkeypatch.setattr(f"{__name__}.FACTOR", 1 + 2e-5)
    (results / "instruction_sets.json").write_text('{"toy.quick": {"curve": 0.0005}}')
    assert cli.main(["verify"]) == 1
    assert cli.main(["verify", "--learn"]) == 1
    sets = verifying.read_sets()
    assert sets["toy.quick"] == {"curve": 0.0005, "x": pytest.approx(2e-5, rel=0.1)}
    assert cli.main(["verify"]) == 0


def test_the_file_of_instruction_sets_names_stored_values(monkeypatch):
    monkeypatch.delenv("NATCOMPANION_RESULTS")
    sets = verifying.read_sets()
    names = {".".join(file) for file in experiments.stored()}
    assert len(sets) > 20 and set(sets) <= names
    claims = {claim.id: claim.experiment for claim in ledger.load("claims")}
    for name, turned in verifying.read_turned().items():
        assert all(claims[claim] == name for claim in turned)
        assert set(turned.values()) <= set(ledger.VERDICTS)
    for name, moves in sets.items():
        record = store.read(*name.split("."))[0]
        assert set(moves) <= set(record.values), name
        assert all(0 < move for move in moves.values())
    assert encoding.loads(verifying.sets_file().read_text()) == sets
