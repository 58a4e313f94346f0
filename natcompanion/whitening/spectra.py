r"""Rules of thumb that read :math:`\epsilon` and the period of whitening off spectra."""

from collections.abc import Mapping
from itertools import takewhile

import torch

from natcompanion import _checks as check


def suggest_eps(matrix: torch.Tensor, share: float = 0.99) -> float:
    r"""Return the eigenvalue at which the larger ones hold a share of the trace.

    Added to the eigenvalues, it leaves the directions that hold this share nearly as they are, and
    keeps the steps along the others, which are seen least and estimated worst, below
    :math:`1/\epsilon`. For the covariance of a layer's inputs it is an :math:`\epsilon` to start
    a search from; for a Fisher matrix a damping.

    Parameters
    ----------
    matrix : Tensor, shape (d, d)
        Symmetric positive semi-definite, not zero: a covariance or a metric.
    share : float
        Between 0 and 1, both excluded.

    Returns
    -------
    float
        :math:`\lambda_k` with the least k for which :math:`\lambda_1 + \dots + \lambda_k \ge`
        share times the trace; positive.

    Raises
    ------
    ValueError
        If ``matrix`` is not finite, symmetric and of positive trace, or ``share`` is out of range.

    Notes
    -----
    Source: none of the papers; a rule of thumb.

    Examples
    --------
    >>> import torch
    >>> from natcompanion.whitening import suggest_eps
    >>> suggest_eps(torch.diag(torch.tensor([90.0, 8.0, 1.9, 0.1])), share=0.95)
    8.0
    """
    sigma = check.symmetric(matrix, "matrix").detach().double()
    if not check.positive(share, "share") < 1:
        raise ValueError(f"share: expected a number below 1, got {share!r}")
    eigenvalues = check.semidefinite_eigh(sigma, "matrix", matrix.dtype)[0].flip(0)
    total = float(eigenvalues.sum())
    if not total > 0:
        raise ValueError("matrix: expected a positive trace, got a matrix of zeros")
    # a share that is reached but for rounding is reached
    reached = eigenvalues.cumsum(0) >= share * total * (1 - 1e-12)
    return float(eigenvalues[reached.int().argmax()])


def staleness(covariances: Mapping[int, torch.Tensor], eps: float) -> dict[int, float]:
    r"""Return by step the largest variance of inputs in the coordinates of the first step.

    With :math:`U^\top U = (\Sigma_0 + \epsilon I)^{-1}` it is the largest eigenvalue of
    :math:`U (\Sigma_t + \epsilon I) U^\top`: 1 at first; later a step is too long by that factor
    along some direction.

    Parameters
    ----------
    covariances : dict
        The covariance (d, d) of a layer's inputs, by the step at which it was measured. The
        earliest is the one that was whitened.
    eps : float
        :math:`\epsilon`, positive.

    Raises
    ------
    ValueError
        If there are fewer than two covariances, they are not finite, symmetric and of one shape,
        or ``eps`` is not positive.

    Notes
    -----
    Source: prong Algorithm 1, which whitens every T steps.

    Examples
    --------
    >>> import torch
    >>> from natcompanion.whitening import staleness
    >>> found = staleness({0: torch.eye(2), 5: torch.diag(torch.tensor([3.0, 1.0]))}, eps=1.0)
    >>> {step: round(variance, 9) for step, variance in found.items()}
    {0: 1.0, 5: 2.0}
    """
    eps = check.positive(eps, "eps")
    if not isinstance(covariances, Mapping):
        raise ValueError(
            "covariances: expected a dictionary of covariances by step, got "
            f"{check.got(covariances)}"
        )
    if len(covariances) < 2:
        raise ValueError(f"covariances: expected at least 2, got {len(covariances)}")
    steps = sorted(covariances)
    shape = check.square(covariances[steps[0]], f"covariances[{steps[0]}]").shape
    damped = {}
    for step in steps:
        sigma = check.symmetric(covariances[step], f"covariances[{step}]").double()
        if sigma.shape != shape:
            raise ValueError(
                f"covariances[{step}]: expected shape {tuple(shape)}, got {tuple(sigma.shape)}"
            )
        damped[step] = sigma + eps * torch.eye(len(sigma), dtype=sigma.dtype, device=sigma.device)
    L = torch.linalg.cholesky(damped[steps[0]])
    found = {}
    for step, sigma in damped.items():
        half = torch.linalg.solve_triangular(L, sigma, upper=False)
        white = torch.linalg.solve_triangular(L, half.mT, upper=False)
        found[step] = float(torch.linalg.eigvalsh((white + white.mT) / 2)[-1])
    return found


def suggest_period(covariances: Mapping[int, torch.Tensor], eps: float, limit: float = 2.0) -> int:
    r"""Return for how many steps a whitening stays useful.

    Parameters
    ----------
    covariances, eps
        As for :func:`staleness`.
    limit : float
        The largest factor that is allowed, above 1.

    Returns
    -------
    int
        The number of steps from the earliest to the last measurement before the first beyond the
        limit; 0 if the next one already is.

    Raises
    ------
    ValueError
        As for :func:`staleness`, or if ``limit`` is out of range.

    Notes
    -----
    Source: the period T of prong Algorithm 1; the rule itself is none of the papers'.

    Examples
    --------
    >>> import torch
    >>> from natcompanion.whitening import suggest_period
    >>> measured = {step: torch.eye(2) * (1 + step / 10) for step in (0, 5, 10, 15)}
    >>> suggest_period(measured, eps=1e-3)
    10
    """
    if not check.positive(limit, "limit") > 1:
        raise ValueError(f"limit: expected a number above 1, got {limit!r}")
    largest = staleness(covariances, eps)
    fresh = list(takewhile(lambda step: largest[step] <= limit * (1 + 1e-12), largest))
    return fresh[-1] - fresh[0]
