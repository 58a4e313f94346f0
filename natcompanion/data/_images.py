"""From raw arrays to tensors: order the examples, pick some, scale the pixels, resize by area
averaging.
"""

from collections.abc import Collection
from numbers import Real
from typing import Any

import numpy as np
import torch

from natcompanion import _checks as check

SPLITS = ("train", "validation", "test", "train+validation", "all")


def area_average(images: torch.Tensor, size: int) -> torch.Tensor:
    """Resize square images by averaging over the area that each new pixel covers.

    A pixel is read as a constant on its square, so the result is exact for every size, also for
    sizes that do not divide the old one and for larger ones. The mean of an image does not change.

    Parameters
    ----------
    images : Tensor, shape (..., s, s)
        Square images.
    size : int
        The new side length.

    Returns
    -------
    Tensor, shape (..., size, size)
    """
    size, old = check.whole(size, "size", 1), images.shape[-1]
    if size == old:
        return images
    edges = torch.arange(size + 1, dtype=torch.float64) * old / size
    cells = torch.arange(old, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], cells + 1) - torch.maximum(edges[:-1, None], cells)
    weights = overlap.clamp(min=0) * size / old
    return (weights @ images.double() @ weights.T).to(images.dtype)


def spread(labels: np.ndarray, seed: int) -> np.ndarray:
    """Shuffle so that every start of the order holds the classes in proportion.

    Parameters
    ----------
    labels : ndarray, shape (n,)
    seed : int

    Returns
    -------
    ndarray, shape (n,)
        A permutation of ``0..n-1``. With classes of equal size, their counts in a prefix differ by
        at most one.
    """
    rng = np.random.default_rng(check.whole(seed, "seed", 0))
    key, place = rng.random(len(labels)), rng.random(len(labels))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        members = members[np.argsort(key[members])]
        place[members] = (np.arange(len(members)) + place[members]) / len(members)
    return np.argsort(place, kind="stable")


def choose(
    labels: np.ndarray,
    *,
    n: int | None,
    split: str,
    seed: int,
    classes: Collection[int] | None,
    train: int,
    validation: int,
    official_test: int = 0,
) -> np.ndarray:
    """Return the indices of the wanted examples: first the split, then the classes, then the first
    ``n``.

    ``train`` and ``validation`` are the sizes of these splits. The test split is the rest, or the
    last ``official_test`` examples if the set comes with a test part of its own.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}")
    own = len(labels) - official_test
    order = spread(labels[:own], seed)
    if split == "all":
        order = spread(labels, seed)
    elif split == "test":
        order = own + spread(labels[own:], seed) if official_test else order[train + validation :]
    else:
        low = train if split == "validation" else 0
        high = train if split == "train" else train + validation
        order = order[low:high]
    if classes is not None:
        order = order[np.isin(labels[order], _known_classes(classes, labels))]
    return order if n is None else order[: check.whole(n, "n", 1, len(order))]


def _known_classes(classes: Collection[int], labels: np.ndarray) -> list[int]:
    known = np.unique(labels).tolist()
    several = isinstance(classes, (list, tuple, range, set, frozenset, np.ndarray))
    wanted: list[Any] = list(classes) if several else [classes]
    good = all(isinstance(label, Real) and label in known for label in wanted)
    if not (wanted and good and len(set(wanted)) == len(wanted)):
        raise ValueError(f"classes: expected different labels out of {known}, got {classes!r}")
    return wanted


def floating_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return ``dtype``, or torch's default, if it can hold numbers between 0 and 1."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(
            f"dtype: expected a floating-point torch.dtype, got {dtype}; images are scaled "
            "to [0, 1]"
        )
    return dtype


def to_tensors(
    pixels: np.ndarray,
    labels: np.ndarray,
    size: int,
    dtype: torch.dtype | None,
    white: float = 255.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale pixels to [0, 1], resize them, and return images and int64 labels."""
    dtype = floating_dtype(dtype)
    chunks = torch.from_numpy(pixels).split(5000)  # the work is done in float64, which is large
    images = [area_average(chunk.double() / white, size).clamp(0, 1).to(dtype) for chunk in chunks]
    return torch.cat(images), torch.from_numpy(labels.astype(np.int64))
