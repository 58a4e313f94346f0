r"""Simplified forms and properties of a metric given as a matrix."""

from collections.abc import Sequence

import torch

from natcompanion import _checks as check


def diagonal(G: torch.Tensor) -> torch.Tensor:
    r"""Return the metric without its off-diagonal elements, :math:`\delta_{ij} G_{ij}`.

    Parameters
    ----------
    G : Tensor, shape (P, P)

    Returns
    -------
    Tensor, shape (P, P)
        A matrix again, so that every metric is used in the same way.

    Raises
    ------
    ValueError
        If ``G`` is not a finite square floating-point matrix.

    Notes
    -----
    Source: whitening Eq. 34.

    Examples
    --------
    >>> diagonal(torch.ones(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    return torch.diag(check.square(G, "G").diagonal())


def block_diagonal(G: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the metric with only the elements inside consecutive diagonal blocks.

    Parameters
    ----------
    G : Tensor, shape (P, P)
    sizes : sequence of int
        The block sizes, in order; they add up to P.

    Returns
    -------
    Tensor, shape (P, P)

    Raises
    ------
    ValueError
        If ``G`` is not a finite square floating-point matrix, or the sizes are not positive
        integers with sum P.

    Notes
    -----
    Source: whitening Section 2.5.

    Examples
    --------
    >>> block_diagonal(torch.ones(3, 3), [1, 2])
    tensor([[1., 0., 0.],
            [0., 1., 1.],
            [0., 1., 1.]])
    """
    check.square(G, "G")
    if not isinstance(sizes, Sequence):
        raise ValueError(f"sizes: expected a list of integers, got {check.got(sizes)}")
    sizes = list(sizes)
    if not all(isinstance(size, int) and size > 0 for size in sizes) or sum(sizes) != len(G):
        raise ValueError(f"sizes: expected positive integers with sum {len(G)}, got {sizes}")
    block = torch.repeat_interleave(
        torch.arange(len(sizes), device=G.device), torch.tensor(sizes, device=G.device)
    )
    return torch.where(block[:, None] == block, G, torch.zeros_like(G))


def condition_number(G: torch.Tensor, rtol: float = 0.0) -> float:
    r"""Return the ratio of the largest to the smallest eigenvalue that is kept.

    Parameters
    ----------
    G : Tensor, shape (P, P)
        Symmetric positive semi-definite.
    rtol : float
        Eigenvalues below ``rtol`` times the largest are left out; 0 keeps all. In [0, 1).

    Returns
    -------
    float
        ``inf`` if an eigenvalue that is kept is 0 at the precision of ``G``, that is at most
        ``P * finfo(dtype).eps`` times the largest. So ``rtol=0`` gives ``inf`` for every singular
        metric.

    Raises
    ------
    ValueError
        If ``G`` is not a finite symmetric floating-point matrix, has a truly negative eigenvalue,
        or ``rtol`` is outside [0, 1).

    Notes
    -----
    Computed in float64. It bounds steepest descent: the largest stable step size is two over the
    largest eigenvalue, and the slowest direction then contracts by about one minus two over the
    condition number.

    Examples
    --------
    >>> condition_number(torch.diag(torch.tensor([4.0, 2.0, 0.0])))
    inf
    >>> condition_number(torch.diag(torch.tensor([4.0, 2.0, 0.0])), rtol=1e-3)
    2.0
    """
    if check.non_negative(rtol, "rtol") >= 1:
        raise ValueError(f"rtol: expected a number in [0, 1), got {rtol}")
    values, _ = check.semidefinite_eigh(check.symmetric(G, "G").detach().double(), "G", G.dtype)
    largest = float(values[-1])
    smallest = float(values[values >= rtol * largest][0])
    if smallest <= len(values) * torch.finfo(G.dtype).eps * largest:
        return float("inf")
    return largest / smallest
