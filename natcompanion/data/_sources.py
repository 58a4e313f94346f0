"""Where the full data sets come from: local folders first, then checked downloads."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from natcompanion.data._formats import CIFAR_BATCHES, read_cifar, read_idx
from natcompanion.data._store import DataUnavailable, cache_folder, fetch


@dataclass(frozen=True)
class Source:
    """A data set: its names, its files with their MD5, and the addresses that have them."""

    name: str
    folders: tuple[str, ...]  # where it usually lies below a data folder
    files: dict[str, str]
    mirrors: tuple[str, ...]
    counts: tuple[tuple[int, ...], tuple[int, ...]] = (
        (),
        (),
    )  # training and test examples of each class
    system: str = ""  # where a Linux distribution installs it


# MD5 sums: the training images, training labels, test images and test labels as their authors
# published them.
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
MNIST = Source(
    name="MNIST",
    folders=("mnist", "MNIST/raw"),
    files={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    counts=(
        (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    ),
)
FASHION_MNIST = Source(
    name="Fashion-MNIST",
    folders=("fashion-mnist", "FashionMNIST/raw"),
    files={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    mirrors=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
    counts=((6000,) * 10, (1000,) * 10),
    system="/usr/share/datasets/fashion-mnist",  # Debian's package dataset-fashion-mnist
)
CIFAR10 = Source(
    name="CIFAR-10",
    folders=("cifar-10", "cifar-10-batches-bin"),
    files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    mirrors=("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/"),
)


def load_idx(
    source: Source, folder: str | os.PathLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (n, 28, 28) and labels (n,), training examples first, both uint8."""
    notes = []
    for place in _places(source, folder):
        found = {name: _either(place / name) for name in IDX_FILES}
        paths = [path for path in found.values() if path is not None]
        missing = [name for name, path in found.items() if path is None]
        if missing:
            notes.append(
                f"{place}: no {' or '.join(missing[:1])}" + (" and others" if missing[1:] else "")
            )
        elif not _is_of(source, paths):
            notes.append(
                f"{place}: has another data set (the number of examples of each class is different)"
            )
        else:
            return _read(paths)
    return _read(_download(source, folder, notes))


def load_cifar(folder: str | os.PathLike | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (60000, 3, 32, 32) and labels (60000,), training examples first, both uint8."""
    notes = []
    (archive,) = CIFAR10.files
    for place in _places(CIFAR10, folder):
        if (place / archive).is_file():
            return read_cifar(place / archive)
        if all((place / name).is_file() for name in CIFAR_BATCHES):
            return read_cifar(place)
        notes.append(f"{place}: no {archive} and not all of its .bin files")
    return read_cifar(_download(CIFAR10, folder, notes)[0])


def _places(source: Source, folder: str | os.PathLike | None) -> Iterator[Path]:
    """Folders that may have the files: the given one, or else ``NATCOMPANION_DATA`` and the
    system's.
    """
    roots = [folder] if folder is not None else [os.environ.get("NATCOMPANION_DATA")]
    for root in roots:
        if root:
            yield from (Path(root).expanduser() / name for name in (*source.folders, "."))
    if folder is None and source.system:
        yield Path(source.system)


def _either(path: Path) -> Path | None:
    compressed = path.with_name(path.name + ".gz")
    return next((p for p in (path, compressed) if p.is_file()), None)


def _is_of(source: Source, paths: list[Path]) -> bool:
    return all(
        tuple(np.bincount(read_idx(path, ndim=1), minlength=10)) == counts
        for path, counts in zip(paths[1::2], source.counts, strict=True)
    )


def _read(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    pixels = [read_idx(path, ndim=3) for path in paths[0::2]]
    labels = [read_idx(path, ndim=1) for path in paths[1::2]]
    for path, images, names in zip(paths[0::2], pixels, labels, strict=True):
        if images.shape != (len(names), 28, 28):
            raise ValueError(
                f"{path}: expected shape ({len(names)}, 28, 28) to match the labels, got "
                f"{images.shape}"
            )
    return np.concatenate(pixels), np.concatenate(labels)


def _download(source: Source, folder: str | os.PathLike | None, notes: list[str]) -> list[Path]:
    if folder is not None:
        raise DataUnavailable(
            f"{source.name} is not in the given folder:\n"
            + "\n".join(notes)
            + f"\nPut {_names(source)} there."
        )
    try:
        subfolder = source.folders[0]
        return [fetch(name, md5, source.mirrors, subfolder) for name, md5 in source.files.items()]
    except DataUnavailable as error:
        raise DataUnavailable(
            f"{source.name} is not on this machine and could not be downloaded. Tried:\n"
            + "\n".join([*notes, *str(error).splitlines()])
            + "\nWith a network, try again: a download goes on where it broke off. Without "
            "one, put "
            f"{_names(source)} "
            "into a folder, set the environment variable NATCOMPANION_DATA to it, or pass "
            "it as folder=. "
            f"The cache is {cache_folder()}; NATCOMPANION_CACHE changes it."
        ) from None


def _names(source: Source) -> str:
    return ", ".join(source.files)
