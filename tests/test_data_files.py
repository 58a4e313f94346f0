"""Data files: readers, local folders, and downloads from a server that misbehaves."""

import gzip
import hashlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
from _file_server import FileServer

from natcompanion import data
from natcompanion.data import _formats, _sets, _sources, _store

BODY = np.random.default_rng(0).integers(0, 256, 20_000).astype(np.uint8).tobytes()
MD5 = hashlib.md5(BODY).hexdigest()
CUT = 2 * _store.CHUNK
DEAD = "http://127.0.0.1:9/"  # nobody listens on the discard port


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder; no proxy, no data folder."""
    monkeypatch.setenv("NATCOMPANION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("NATCOMPANION_DATA", raising=False)
    return tmp_path / "cache"


def fetch(*mirrors):
    return _store.fetch("file.gz", MD5, mirrors, "set")


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# Downloads


def test_a_download_is_kept(cache, capfd):
    with FileServer({"file.gz": BODY}) as server:
        path = fetch(server.url)
        assert path.read_bytes() == BODY and path == cache / "set" / "file.gz"
        assert "file.gz: " in capfd.readouterr().err  # the progress bar
        fetch(server.url)
        assert server.requests == [("file.gz", 0)]
        assert capfd.readouterr() == ("", "")  # and none without a download
    assert fetch(DEAD) == path and files(cache) == ["file.gz"]


def test_the_next_mirror_is_tried(cache):
    with (
        FileServer({"file.gz": BODY[::-1]}) as wrong,
        FileServer({}) as empty,
        FileServer({"file.gz": BODY}) as good,
    ):
        assert fetch(DEAD, empty.url, wrong.url, good.url).read_bytes() == BODY
        assert empty.requests == wrong.requests == good.requests == [("file.gz", 0)]
    assert files(cache) == ["file.gz"]


def test_no_mirror_works(cache):
    with FileServer({"file.gz": BODY[::-1]}) as wrong, FileServer({}) as empty:
        with pytest.raises(data.DataUnavailable) as caught:
            fetch(DEAD, empty.url, wrong.url)
        lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert (
        "refused" in lines[0]
        and "404" in lines[1]
        and "MD5" in lines[2]
        and "does not match" in lines[2]
    )
    assert isinstance(caught.value, RuntimeError) and files(cache) == []


def test_a_broken_download_goes_on_where_it_stopped(cache):
    with FileServer({"file.gz": BODY}, cut=CUT) as server:
        with pytest.raises(data.DataUnavailable, match="IncompleteRead|Connection broken"):
            fetch(server.url)
        (part,) = files(cache)
        assert part.startswith("file.gz.") and part.endswith(".part")
        assert (cache / "set" / part).read_bytes() == BODY[:CUT]
        with pytest.raises(data.DataUnavailable):
            fetch(server.url)
        assert fetch(server.url).read_bytes() == BODY
        starts = [start for _, start in server.requests]
    assert starts == [0, CUT, 2 * CUT] and files(cache) == ["file.gz"]


def test_another_mirror_goes_on_too(cache):
    with FileServer({"file.gz": BODY}, cut=CUT) as first, FileServer({"file.gz": BODY}) as second:
        assert fetch(first.url, second.url).read_bytes() == BODY
        assert second.requests == [("file.gz", CUT)]


def test_a_server_without_ranges_starts_again(cache):
    with (
        FileServer({"file.gz": BODY}, cut=CUT) as first,
        FileServer({"file.gz": BODY}, ranges=False) as second,
    ):
        assert fetch(first.url, second.url).read_bytes() == BODY
    assert files(cache) == ["file.gz"]


@pytest.mark.parametrize("old", [b"wrong" * 100, BODY[:-1] + b"x", BODY + b"x", BODY])
def test_a_bad_or_complete_part_is_no_obstacle(cache, old):
    (cache / "set").mkdir(parents=True)
    part = cache / "set" / "file.gz.0.part"
    part.write_bytes(old)
    os.utime(part, (0, 0))
    with FileServer({"file.gz": BODY}) as server:
        assert fetch(server.url).read_bytes() == BODY
        assert [start for _, start in server.requests] == [len(old), 0]
    assert files(cache) == ["file.gz"]


def test_a_part_in_use_is_left_alone(cache):
    (cache / "set").mkdir(parents=True)
    part = cache / "set" / "file.gz.0.part"
    part.write_bytes(b"being written")
    with FileServer({"file.gz": BODY}) as server:
        fetch(server.url)
        assert server.requests == [("file.gz", 0)]
    assert part.read_bytes() == b"being written"


def test_a_damaged_file_in_the_cache_is_replaced(cache):
    (cache / "set").mkdir(parents=True)
    (cache / "set" / "file.gz").write_bytes(BODY[:-1])
    with pytest.raises(data.DataUnavailable):
        fetch(DEAD)
    with FileServer({"file.gz": BODY}) as server:
        assert fetch(server.url).read_bytes() == BODY
    assert files(cache) == ["file.gz"]


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NATCOMPANION_CACHE", str(tmp_path / "file" / "cache"))
    with (
        FileServer({"file.gz": BODY}) as server,
        pytest.raises(data.DataUnavailable, match="cache"),
    ):
        fetch(server.url)


SCRIPT = (
    "import runpy, sys; runpy.run_path(sys.argv[1])['fetch']('file.gz', sys.argv[2], "
    "sys.argv[3:], 'set')"
)


def start(url):
    """Fetch in a process of its own, without the time to import torch."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, _store.__file__, MD5, url], stderr=subprocess.PIPE
    )


def test_a_killed_process_and_two_at_once(cache, monkeypatch):
    with FileServer({"file.gz": BODY}, pause=0.03) as server:
        killed = start(server.url)
        while not any(part.stat().st_size for part in (cache / "set").glob("*.part")):
            assert killed.poll() is None
            time.sleep(0.005)
        killed.kill()
        killed.communicate()
        (part,) = (cache / "set").glob("*.part")
        size = part.stat().st_size
        assert (
            killed.returncode < 0
            and 0 < size < len(BODY)
            and not (cache / "set" / "file.gz").exists()
        )
        two = start(server.url), start(server.url)
        for process in two:
            assert b"Downloading" not in process.communicate()[1]  # pooch's announcement
        assert [process.returncode for process in two] == [0, 0]
        assert [request for _, request in server.requests] == [0, 0, 0]
    assert (cache / "set" / "file.gz").read_bytes() == BODY
    (cache / "set" / "file.gz").unlink()
    monkeypatch.setattr(_store, "QUIET", -1)  # as if a minute had passed
    with FileServer({"file.gz": BODY}) as server:
        assert fetch(server.url).read_bytes() == BODY
        assert server.requests == [("file.gz", size)]


# IDX files


def idx(array, kind=8):
    shape = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, kind, array.ndim]) + shape + array.astype(np.uint8).tobytes()


IMAGES = np.random.default_rng(1).integers(0, 256, (6, 28, 28)).astype(np.uint8)
ZIPPED = gzip.compress(idx(IMAGES), mtime=0)


@pytest.mark.parametrize("content", [idx(IMAGES), ZIPPED])
def test_read_idx(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    assert np.array_equal(_formats.read_idx(tmp_path / "file", ndim=3), IMAGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected an IDX file"),
        (idx(IMAGES)[:9], "expected an IDX file"),
        (b"x" + idx(IMAGES)[1:], "expected an IDX file"),
        (idx(IMAGES, kind=13), "expected an IDX file"),
        (idx(IMAGES[0]), "with 3 dimensions"),
        (idx(IMAGES)[:-1], "got 4719; replace"),
        (idx(IMAGES) + b"x", "expected 4720 bytes for an IDX file of shape"),
        (ZIPPED[:-20], "damaged gzip"),
        (ZIPPED[:500] + bytes([ZIPPED[500] ^ 255]) + ZIPPED[501:], "damaged gzip"),
        (ZIPPED[:-8] + b"\0" * 8, "damaged gzip"),
        (ZIPPED[:3], "damaged gzip"),
        (b"<html>not found</html>", "expected an IDX file"),
    ],
)
def test_damaged_idx(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        _formats.read_idx(tmp_path / "file", ndim=3)
    assert str(tmp_path / "file") in str(caught.value)


# Whole sets

LABELS = np.tile(np.arange(10), 7), np.tile(np.arange(10), 2)
PIXELS = [
    np.random.default_rng(k).integers(0, 256, (len(y), 28, 28)).astype(np.uint8)
    for k, y in enumerate(LABELS)
]
CONTENT = dict(
    zip(_sources.IDX_FILES, map(idx, (PIXELS[0], LABELS[0], PIXELS[1], LABELS[1])), strict=True)
)  # 70 training and 20 test examples


def put(folder, zipped=True, **changed):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        CONTENT | {name.replace("_", "-"): c for name, c in changed.items()}
    ).items():
        (folder / (name + ".gz" * zipped)).write_bytes(
            gzip.compress(content) if zipped else content
        )
    return folder


@pytest.fixture
def small(monkeypatch):
    """Full MNIST as a set of 90 examples; returns a function that sets its mirrors."""
    bodies = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in CONTENT.items()}

    def serve(*mirrors):
        hashes = {name: hashlib.md5(body).hexdigest() for name, body in bodies.items()}
        counts = ((7,) * 10, (2,) * 10)
        source = _sources.Source("MNIST", ("mnist", "MNIST/raw"), hashes, mirrors, counts)
        monkeypatch.setattr(_sets, "MNIST", source)
        return bodies

    serve(DEAD)
    return serve


def check(images, labels, part=1):
    """The images belong to the labels, and are those of the training (0) or test (1) part."""
    pixels = (images * 255).round().numpy().astype(np.uint8)
    wanted = {(PIXELS[part][k].tobytes(), int(LABELS[part][k])) for k in range(len(LABELS[part]))}
    assert {(p.tobytes(), int(y)) for p, y in zip(pixels, labels, strict=True)} == wanted


def test_full_set_by_download(small, cache):
    with FileServer(small()) as server:
        small(DEAD, server.url)
        check(*data.mnist(full=True, split="test"))
        check(*data.mnist(full=True, split="train+validation"), part=0)
        assert len(server.requests) == 4
    assert len(data.mnist(full=True, split="train")[1]) == 50
    assert len(data.mnist(full=True, split="all")[1]) == 90


def test_unavailable_says_what_to_do(small, cache):
    with pytest.raises(data.DataUnavailable) as caught:
        data.mnist(full=True)
    for words in (
        "MNIST",
        DEAD,
        "refused",
        "NATCOMPANION_DATA",
        "folder=",
        "train-images",
        str(cache),
    ):
        assert words in str(caught.value)
    assert files(cache) == []


@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_local_folder(small, tmp_path, monkeypatch, below, zipped):
    put(tmp_path / "idx" / below, zipped)
    check(*data.mnist(full=True, split="test", folder=tmp_path / "idx"))
    monkeypatch.setenv("NATCOMPANION_DATA", str(tmp_path / "idx"))
    check(*data.mnist(full=True, split="test"))


def test_another_set_in_the_folder_is_not_taken(small, tmp_path, monkeypatch):
    folder = put(tmp_path / "idx", train_labels_idx1_ubyte=idx(LABELS[0] // 2))
    with pytest.raises(data.DataUnavailable, match="has another data set"):
        data.mnist(full=True, folder=folder)
    monkeypatch.setenv("NATCOMPANION_DATA", str(folder))
    with pytest.raises(data.DataUnavailable, match="has another data set"):
        data.mnist(full=True)


def test_an_incomplete_folder_names_what_is_missing(small, tmp_path):
    folder = put(tmp_path / "idx")
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(data.DataUnavailable, match="no t10k-images-idx3-ubyte"):
        data.mnist(full=True, folder=folder)


def test_a_damaged_local_file_is_an_error(small, tmp_path, monkeypatch):
    folder = put(tmp_path / "idx", t10k_images_idx3_ubyte=idx(PIXELS[1])[:-1])
    monkeypatch.setenv("NATCOMPANION_DATA", str(folder))
    with pytest.raises(ValueError, match="t10k-images-idx3-ubyte.gz: expected 15696 bytes"):
        data.mnist(full=True)
    put(folder, t10k_images_idx3_ubyte=idx(PIXELS[1][:-1]))
    with pytest.raises(ValueError, match=r"expected shape \(20, 28, 28\) to match the labels"):
        data.mnist(full=True)


def test_the_real_sources_are_complete():
    for source in (_sources.MNIST, _sources.FASHION_MNIST):
        assert [name.removesuffix(".gz") for name in source.files] == list(_sources.IDX_FILES)
        assert [sum(part) for part in source.counts] == [60_000, 10_000]
    for source in (_sources.MNIST, _sources.FASHION_MNIST, _sources.CIFAR10):
        assert len(source.mirrors) >= 2 and all(mirror.endswith("/") for mirror in source.mirrors)
        assert all(len(md5) == 32 and int(md5, 16) for md5 in source.files.values())


def test_fashion_mnist_reads_a_folder(small, tmp_path, monkeypatch):
    monkeypatch.setattr(_sets, "FASHION_MNIST", _sets.MNIST)
    images, labels = data.fashion_mnist(10, split="test", folder=put(tmp_path / "idx"), size=14)
    assert images.shape == (10, 14, 14) and sorted(labels.tolist()) == list(range(10))


# CIFAR-10

RECORDS = np.random.default_rng(2).integers(0, 256, (12, 3073)).astype(np.uint8)
RECORDS[:, 0] = np.arange(12) % 2
BATCHES = {
    name: RECORDS[2 * k : 2 * k + 2].tobytes() for k, name in enumerate(_formats.CIFAR_BATCHES)
}


def tar(batches, folder="cifar-10-batches-bin"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in batches.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def two_images(monkeypatch):
    monkeypatch.setattr(_formats, "CIFAR_IMAGES", 2)


def test_cifar10(two_images, tmp_path, monkeypatch):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(tar(BATCHES))
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    images, labels = data.cifar10(split="test", folder=tmp_path)
    for name, content in BATCHES.items():
        with pytest.raises(data.DataUnavailable, match="not all of its .bin files"):
            data.cifar10(folder=folder)
        (folder / name).write_bytes(content)
    assert images.shape == (2, 3, 32, 32)
    wanted = {row.tobytes() for row in RECORDS[10:]}
    rows = np.column_stack([labels, (images.flatten(1) * 255).round()]).astype(np.uint8)
    assert {row.tobytes() for row in rows} == wanted
    assert data.cifar10(folder=folder, split="all")[0].shape == (12, 3, 32, 32)
    assert [len(data.cifar10(folder=folder, split=s)[1]) for s in ("train", "validation")] == [8, 2]
    monkeypatch.setenv("NATCOMPANION_DATA", str(tmp_path))
    assert data.cifar10(3, size=8)[0].shape == (3, 3, 8, 8)


def test_cifar10_by_download(two_images, monkeypatch, cache):
    body = tar(BATCHES)
    with FileServer({"cifar-10-binary.tar.gz": body}) as server:
        hashes = {"cifar-10-binary.tar.gz": hashlib.md5(body).hexdigest()}
        monkeypatch.setattr(
            _sources,
            "CIFAR10",
            _sources.Source("CIFAR-10", ("cifar-10",), hashes, (DEAD, server.url)),
        )
        assert data.cifar10(split="all")[0].shape == (12, 3, 32, 32)
    assert files(cache) == ["cifar-10-binary.tar.gz"]


BAD_LABEL = BATCHES | {"test_batch.bin": b"\x0a" + BATCHES["test_batch.bin"][1:]}
SHORT = BATCHES | {"data_batch_3.bin": BATCHES["data_batch_3.bin"][:-1]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (tar(BATCHES)[:-300], "damaged gzip"),
        (tar(SHORT), "expected 6146 bytes in data_batch_3.bin, got 6145"),
        (tar(BAD_LABEL), "expected labels 0..9, got 10"),
        (tar({"data_batch_1.bin": b""}), "not the binary version"),
        (tar({"data_batch_1": pickle.dumps({})}, "cifar-10-batches-py"), "not the binary version"),
        (gzip.compress(tarfile.BLOCKSIZE * b"x", mtime=0), "not the binary version"),
        (b"", "not the binary version"),
    ],
)
def test_damaged_cifar10(two_images, tmp_path, body, message):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(body)
    with pytest.raises(ValueError, match=message):
        data.cifar10(folder=tmp_path)


def test_cifar10_unavailable(tmp_path):
    with pytest.raises(data.DataUnavailable, match="no cifar-10-binary.tar.gz and not all"):
        data.cifar10(folder=tmp_path)
