"""Readers for the file formats of the data sets. A damaged file is a ValueError that names it."""

import gzip
import io
import math
import tarfile
import zlib
from pathlib import Path

import numpy as np

CIFAR_IMAGES = 10_000  # in each file
CIFAR_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue plane
CIFAR_BATCHES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")


def _contents(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file ({error}); replace it or remove it") from error


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Read an IDX file of bytes, plain or gzip.

    The format: two zero bytes, the type (8 is unsigned byte), the number of dimensions, each
    dimension as a big-endian 32-bit integer, then the values.

    Parameters
    ----------
    path : Path
    ndim : int
        The expected number of dimensions.

    Raises
    ------
    ValueError
        If the file is damaged, too short, too long or of another kind.
    """
    data = _contents(path)
    start = 4 + 4 * ndim
    if len(data) < start or data[:4] != bytes([0, 0, 8, ndim]):
        raise ValueError(
            f"{path}: expected an IDX file of bytes with {ndim} dimensions, got a start of "
            f"{data[:4]!r}"
        )
    shape = np.frombuffer(data, ">u4", ndim, 4).tolist()
    if len(data) != start + math.prod(shape):
        raise ValueError(
            f"{path}: expected {start + math.prod(shape)} bytes for an IDX file of shape "
            f"{tuple(shape)}, "
            f"got {len(data)}; replace it or remove it"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the binary version of CIFAR-10 from its ``.tar.gz`` file or its folder of ``.bin``
    files.

    Returns
    -------
    pixels : ndarray, shape (60000, 3, 32, 32)
        The 50,000 training images, then the 10,000 test images, uint8.
    labels : ndarray, shape (60000,)

    Raises
    ------
    ValueError
        If the archive is damaged, a file is missing or of the wrong size, or a label is not in
        0..9.
    """
    if path.is_dir():
        batches = [(path / name).read_bytes() for name in CIFAR_BATCHES]
    else:
        batches = _from_tar(path)
    for name, batch in zip(CIFAR_BATCHES, batches, strict=True):
        if len(batch) != CIFAR_IMAGES * CIFAR_RECORD:
            raise ValueError(
                f"{path}: expected {CIFAR_IMAGES * CIFAR_RECORD} bytes in {name}, got {len(batch)}"
            )
    records = np.concatenate([np.frombuffer(batch, np.uint8) for batch in batches]).reshape(
        -1, CIFAR_RECORD
    )
    if records[:, 0].max() > 9:
        raise ValueError(f"{path}: expected labels 0..9, got {records[:, 0].max()}")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _from_tar(path: Path) -> list[bytes]:
    try:
        with tarfile.open(fileobj=io.BytesIO(_contents(path))) as archive:
            members = [
                archive.extractfile(f"cifar-10-batches-bin/{name}") for name in CIFAR_BATCHES
            ]
            return [member.read() for member in members if member is not None]
    except (tarfile.TarError, KeyError) as error:
        raise ValueError(
            f"{path}: not the binary version of CIFAR-10 ({error}); replace it or remove it"
        ) from error
