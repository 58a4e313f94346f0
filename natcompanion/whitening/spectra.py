r"""Rules of thumb that read :math:`\epsilon` and the period of whitening off spectra."""

from collections.abc import Mapping

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


def suggest_period(covariances: Mapping[int, torch.Tensor], eps: float, limit: float = 2.0) -> int:
    r"""Return for how many steps a whitening stays useful.

    With the coordinates of the first covariance, the inputs of step t have the covariance
    :math:`U (\Sigma_t + \epsilon I) U^\top`, where :math:`U^\top U = (\Sigma_0 + \epsilon
    I)^{-1}`. Its largest eigenvalue is 1 at first; a step is too long by that factor along some
    direction.

    Parameters
    ----------
    covariances : dict
        The covariance (d, d) of a layer's inputs, by the step at which it was measured. The
        earliest is the one that was whitened.
    eps : float
        :math:`\epsilon`, positive.
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
        If there are fewer than two covariances, they are not finite, symmetric and of one shape,
        or a number is out of range.

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
    eps = check.positive(eps, "eps")
    if not check.positive(limit, "limit") > 1:
        raise ValueError(f"limit: expected a number above 1, got {limit!r}")
    if len(covariances) < 2:
        raise ValueError(f"covariances: expected at least 2, got {len(covariances)}")
    first, *later = sorted(covariances)
    for step in (first, *later):
        check.symmetric(covariances[step], f"covariances[{step}]")
        if covariances[step].shape != covariances[first].shape:
            raise ValueError(
                f"covariances[{step}]: expected shape {tuple(covariances[first].shape)}, got "
                f"{tuple(covariances[step].shape)}"
            )
    L = torch.linalg.cholesky(_damped(covariances[first], eps))
    last = first
    for step in later:
        half = torch.linalg.solve_triangular(L, _damped(covariances[step], eps), upper=False)
        white = torch.linalg.solve_triangular(L, half.mT, upper=False)
        if float(torch.linalg.eigvalsh((white + white.mT) / 2)[-1]) > limit * (1 + 1e-12):
            break
        last = step
    return last - first


def _damped(cov: torch.Tensor, eps: float) -> torch.Tensor:
    return cov.double() + eps * torch.eye(len(cov), dtype=torch.float64, device=cov.device)
