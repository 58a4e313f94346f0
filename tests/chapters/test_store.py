"""The record store: round trips, merging, sealing, locks, journals."""

import json
import math
import os
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import Result, encoding, locking, store

NUMBERS = st.integers(-(10**18), 10**18) | st.floats() | st.booleans() | st.none()
KEYS = st.text(max_size=8).filter(lambda key: key != encoding.NOT_FINITE)
PLAIN = st.recursive(
    NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
RECORDS = st.builds(
    Result,
    st.just("toy"),
    st.just("quick"),
    st.integers(0, 5),
    st.dictionaries(KEYS, NUMBERS, max_size=2),
    st.dictionaries(KEYS, PLAIN, max_size=3),
    st.sampled_from(["cpu", "cuda"]),
    st.integers(1, 4),
    st.floats(0, 1e6),
    st.none() | st.just("0123456789ab"),
    st.just({"torch": "2"}),
    st.none() | st.just("f" * 16),
)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def same(a: object, b: object) -> bool:
    """Return whether two values are equal in type and to the bit; NaN equals NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def record(seed: int, **values: object) -> Result:
    return Result("toy", "quick", seed, {}, values, "cpu", 1, 0.1, None, {})


@FEW
@given(PLAIN)
def test_any_value_comes_back(value):
    pretty, line = encoding.dumps(value), encoding.one_line(value)
    assert same(encoding.loads(pretty), value) and same(encoding.loads(line), value)
    assert "\n" not in line and encoding.dumps(encoding.loads(line)) == pretty
    assert encoding.digest(encoding.loads(pretty)) == encoding.digest(value)
    json.loads(pretty, parse_constant=pytest.fail)


@FEW
@given(st.lists(RECORDS, min_size=1, max_size=6), st.randoms())
def test_records_come_back_in_any_order(records, order):
    """The last of an identity wins, and the file does not depend on the order of the others."""
    last = {one.identity: one for one in records}
    texts = []
    for _ in range(2):
        with TemporaryDirectory() as name:
            folder = Path(name)
            for one in last.values() if texts else records:
                store.append(one, folder)
            before = store.read("toy", "quick", folder)
            store.compact("toy", "quick", folder)
            found = store.read("toy", "quick", folder)
            assert not any(one.edited for one in found)
            assert list(map(store.as_dict, before)) == list(map(store.as_dict, found)) or any(
                map(has_nan, records)
            )
            assert {one.identity for one in found} == set(last)
            for one in found:
                assert same(one.values, last[one.identity].values)
            texts.append(store.path_of("toy", "quick", folder).read_text())
        shuffled = list(last.items())
        order.shuffle(shuffled)
        last = dict(shuffled)
    assert texts[0] == texts[1]


def has_nan(one: Result) -> bool:
    return '"nan"' in encoding.one_line(store.as_dict(one))


@FEW
@given(RECORDS, st.sampled_from(["seed", "settings", "values", "device", "seconds", "commit"]))
def test_a_changed_field_is_noticed(one, field):
    sealed = store.sealed(one)
    new = {"seed": 6, "settings": {"a": 9}, "values": {"a": 9}, "device": "tpu", "seconds": -1.0}
    assert not sealed.edited and replace(sealed, **{field: new.get(field, "x")}).edited


def test_a_changed_digit_is_named(tmp_path):
    store.merge(record(3, x=0.125), tmp_path)
    path = store.path_of("toy", "quick", tmp_path)
    path.write_text(path.read_text().replace("0.125", "0.126"))
    with pytest.raises(ValueError, match=r"the record of toy.quick, seed 3, {} was edited"):
        experiments.load("toy", folder=tmp_path)


def test_a_removed_hash_is_an_edit_too():
    one = store.sealed(replace(record(1), fingerprint="f"))
    assert replace(one, hash=None).edited
    assert not replace(record(1), hash=None).edited  # a record from before there were hashes


def test_a_torn_line_is_dropped_and_cut_off(tmp_path):
    for seed in range(2):
        store.append(record(seed), tmp_path)
    journal = store.journal_of(store.path_of("toy", "quick", tmp_path))
    whole = journal.read_bytes()
    for cut in (1, 10, len(whole) // 4):
        journal.write_bytes(whole[:-cut])
        assert [one.seed for one in store.read("toy", "quick", tmp_path)] == [0]
    store.append(record(2), tmp_path)
    assert [one.seed for one in store.read("toy", "quick", tmp_path)] == [0, 2]
    store.compact("toy", "quick", tmp_path)
    assert not journal.exists() and len(experiments.load("toy", folder=tmp_path)) == 2


def test_a_whole_line_that_is_no_record_is_damage(tmp_path):
    store.append(record(0), tmp_path)
    journal = store.journal_of(store.path_of("toy", "quick", tmp_path))
    journal.write_text("{}\n" + journal.read_text())
    with pytest.raises(ValueError, match="not a results file"):
        store.read("toy", "quick", tmp_path)


def test_a_kill_between_file_and_journal_changes_nothing(tmp_path, monkeypatch):
    for seed in range(3):
        store.append(record(seed, x=seed), tmp_path)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.compact("toy", "quick", tmp_path)
    monkeypatch.undo()
    assert [one.seed for one in store.read("toy", "quick", tmp_path)] == [0, 1, 2]
    store.compact("toy", "quick", tmp_path)
    assert [one.seed for one in store.read("toy", "quick", tmp_path)] == [0, 1, 2]


def test_one_more_of_five_thousand_is_cheap(tmp_path):
    values = torch.rand(50).tolist()
    lines = [store.as_dict(store.sealed(record(seed, x=values))) for seed in range(5000)]
    path = store.path_of("toy", "quick", tmp_path)
    path.parent.mkdir()
    store.write_atomically(path, encoding.dumps(lines))
    times = []
    for seed in range(5000, 5011):
        start = time.perf_counter()
        store.append(record(seed, x=values), tmp_path)
        times.append(time.perf_counter() - start)
    assert sorted(times)[5] < 0.02
    assert len(store.read("toy", "quick", tmp_path)) == 5011


def test_a_folder_that_takes_no_record_is_found_before_the_first_run(tmp_path):
    (tmp_path / "toy").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="results cannot be stored there.*nothing was run"):
        store.probe("toy", "quick", tmp_path)


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)])
def test_who_may_read_a_file_is_up_to_the_umask_and_stays(tmp_path, umask, mode):
    path, before = tmp_path / "file", os.umask(umask)
    try:
        store.write_atomically(path, "new")
        assert path.stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
    path.chmod(0o640)
    store.write_atomically(path, "newer")
    assert path.stat().st_mode & 0o777 == 0o640 and path.read_text() == "newer"


def no_flock(*_: object) -> None:
    raise OSError(37, "No locks available")


def append_many(folder: Path, seeds: range) -> None:
    locking.fcntl.flock = no_flock
    for seed in seeds:
        store.append(record(seed), folder)


def test_two_writers_on_a_file_system_without_locks(tmp_path):
    start = get_context("spawn")
    writers = [
        start.Process(target=append_many, args=(tmp_path, range(i, 40, 2))) for i in range(2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(store.read("toy", "quick", tmp_path)) == 40


def test_a_lock_left_behind_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(locking.fcntl, "flock", no_flock)
    held = tmp_path / ".lock.held"
    gone = get_context("spawn").Process(target=time.time)
    gone.start()
    gone.join()
    held.write_text(f"{locking.socket.gethostname()} {gone.pid}")
    with locking.locked(tmp_path):
        assert held.exists()
    assert not held.exists()
    held.write_text("another-machine 1")
    assert not locking._abandoned(held)
    os.utime(held, (0, 0))
    assert locking._abandoned(held)
    held.write_text(f"{locking.socket.gethostname()} {os.getpid()}")
    assert not locking._abandoned(held)


def test_every_record_of_the_book_is_sealed():
    for name, preset in experiments.stored():
        for one in store.read(name, preset):
            assert one.hash and not one.edited, str(one)


def test_no_record_of_the_book_is_stale_or_dirty():
    """Today's code made every record that has a fingerprint; else: natcompanion renew NAME."""
    for name, preset in experiments.stored():
        states = experiments.load(name, preset, allow_stale=True).states
        assert not {"stale", "dirty"} & set(states), f"natcompanion renew {name}.{preset}"


def test_complex_numbers_are_refused_with_their_place():
    with pytest.raises(ValueError, match=r"toy\.x\[0\]: expected numbers.*got complex"):
        encoding.plain({"x": torch.tensor([1 + 1j])}, "toy")
    assert math.isnan(encoding.plain({"x": torch.tensor(math.nan)})["x"])
