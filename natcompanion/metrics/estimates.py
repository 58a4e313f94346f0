"""Trace and diagonal of a matrix that is known by its products, estimated with error bars."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from natcompanion import _checks as check


class Estimate(NamedTuple):
    """An estimate and its standard error.

    Parameters
    ----------
    value : Tensor, shape () or (P,)
        The mean over the probes.
    error : Tensor, of the same shape
        Its standard deviation, estimated from the probes.

    Examples
    --------
    >>> Estimate(torch.tensor(2.0), torch.tensor(0.5)).error
    tensor(0.5000)
    """

    value: torch.Tensor
    error: torch.Tensor


def estimate_trace(
    A: Any, samples: int = 100, *, generator: torch.Generator | None = None
) -> Estimate:
    r"""Return an unbiased estimate of the trace, and its standard error.

    .. math:: \operatorname{tr} A \approx \frac1m \sum_k z_k^T A z_k, \qquad z_{ki} = \pm 1

    Its variance is that of the off-diagonal elements, :math:`\frac2m \sum_{i \ne j} A_{ij}^2` for a
    symmetric matrix, so that it is exact for a diagonal one. A ``FisherOperator`` has its trace
    exactly, as ``diagonal().sum()``.

    Parameters
    ----------
    A : Tensor or operator, shape (P, P)
        A matrix, or anything with ``@`` and ``shape``.
    samples : int
        m, the number of products; at least 2.
    generator : torch.Generator, optional

    Returns
    -------
    Estimate
        ``value`` and ``error``, both of shape ().

    Raises
    ------
    ValueError
        If ``A`` is not square, or there are fewer than two samples.

    Notes
    -----
    The estimator of Hutchinson (1990).

    Examples
    --------
    >>> found = estimate_trace(torch.diag(torch.tensor([1.0, 2.0])), samples=3)
    >>> found.value, found.error
    (tensor(3.), tensor(0.))
    """
    return _mean([z @ Az for z, Az in _probes(A, samples, generator)])


def estimate_diagonal(
    A: Any, samples: int = 100, *, generator: torch.Generator | None = None
) -> Estimate:
    r"""Return an unbiased estimate of the diagonal, and the standard error of each element.

    .. math:: A_{ii} \approx \frac1m \sum_k z_{ki} (A z_k)_i, \qquad z_{ki} = \pm 1

    The variance of element i is :math:`\frac1m \sum_{j \ne i} A_{ij}^2`.

    Parameters
    ----------
    A, samples, generator
        As for :func:`natcompanion.metrics.estimate_trace`.

    Returns
    -------
    Estimate
        ``value`` and ``error``, both of shape (P,).

    Raises
    ------
    ValueError
        If ``A`` is not square, or there are fewer than two samples.

    Notes
    -----
    The estimator of Bekas, Kokiopoulou and Saad (2007), for signs.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> value, error = estimate_diagonal(A, samples=400, generator=generator)
    >>> bool(((value - A.diagonal()).abs() < 4 * error).all()), bool((error < 0.06).all())
    (True, True)
    """
    return _mean([z * Az for z, Az in _probes(A, samples, generator)])


def _probes(
    A: Any, samples: int, generator: torch.Generator | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield vectors of random signs and their products."""
    shape = tuple(getattr(A, "shape", ()))
    if len(shape) != 2 or shape[0] != shape[1]:
        got = f"shape {shape}" if hasattr(A, "shape") else check.got(A)
        raise ValueError(f"A: expected a square matrix, or an operator with shape, got {got}")
    columns = shape[1]
    check.generator(generator)
    source = "cpu" if generator is None else generator.device
    dtype = getattr(A, "dtype", torch.get_default_dtype())
    for _ in range(check.whole(samples, "samples", 2)):
        signs = torch.randint(2, (columns,), generator=generator, device=source)
        z = (2 * signs - 1).to(dtype=dtype, device=getattr(A, "device", source))
        yield z, A @ z


def _mean(samples: list[torch.Tensor]) -> Estimate:
    values = torch.stack(samples)
    return Estimate(values.mean(0), values.std(0) / len(values) ** 0.5)
