"""How large a dense matrix may become before it is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from natcompanion import _checks as check

_LIMIT: ContextVar[float] = ContextVar("dense_limit", default=2 * 2.0**30)


@contextmanager
def dense_limit(gib: float) -> Iterator[None]:
    """Allow dense matrices of up to ``gib`` GiB inside a ``with`` block; 2 outside of it.

    Parameters
    ----------
    gib : float
        The largest size of one matrix (P, P). While it is computed, two or three of that size may
        exist.

    Raises
    ------
    ValueError
        If ``gib`` is not a positive number.

    Examples
    --------
    >>> import torch
    >>> from natcompanion.likelihoods import Gaussian
    >>> from natcompanion.metrics import dense_limit, fisher
    >>> model, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
    >>> with dense_limit(1e-7):
    ...     fisher(model, x, Gaussian())
    Traceback (most recent call last):
    ValueError: fisher: 8 parameters need a dense matrix of 2.4e-07 GiB, more than 1e-07; use ...
    >>> with dense_limit(16):
    ...     fisher(model, x, Gaussian()).shape
    torch.Size([8, 8])
    """
    token = _LIMIT.set(check.positive(gib, "gib") * 2.0**30)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def affordable(
    size: int, dtype: torch.dtype, name: str, remedy: str, what: str = "parameters"
) -> int:
    """Return ``size`` if a matrix (size, size) of this dtype is within the limit; else say how
    large it would be and what to use instead.
    """
    refuse_larger(size * size, dtype, f"{name}: {size} {what} need a dense matrix of", remedy)
    return size


def beyond(what: str, most: int, gigabytes: float, operations: float) -> str:
    """Return why a layer that has ``what`` gets no metric, with what it would cost; ``operations``
    are billions.
    """
    return (
        f"{what}, more than max_features={most}: the statistics would take {gigabytes:.2g} GB, and "
        f"a renewal {operations:.2g} billion operations; raise max_features to include it"
    )


def affordable_root(r: torch.Tensor) -> int:
    """Return o of outputs (n, ..., o), or refuse a root (n, ..., o, o) of their Fisher matrix that
    is beyond the limit.
    """
    o = r.shape[-1]
    refuse_larger(
        r.numel() * o,
        r.dtype,
        f"fisher_root: {r.numel() // max(o, 1)} exact expectations over {o} outputs need",
        "fewer examples at a time, or labels that are drawn (draws=1 of K-FAC, MonteCarloOperator)",
    )
    return o


def refuse_larger(numbers: int, dtype: torch.dtype, what: str, remedy: str) -> None:
    """Raise ValueError if that many numbers of this dtype are beyond the limit."""
    needed, limit = float(numbers) * dtype.itemsize, _LIMIT.get()
    if needed > limit:
        raise ValueError(
            f"{what} {needed / 2**30:.2g} GiB, more "
            f"than {limit / 2**30:.2g}; use {remedy}, or allow it with "
            "`with natcompanion.metrics.dense_limit(gib):`"
        )
