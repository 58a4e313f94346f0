"""Covariances from random projections: of the features, of the examples, and of their norm
alone.
"""

import torch

from natcompanion import _checks


def projection(
    k: int,
    d: int,
    *,
    generator: torch.Generator | None = None,
    like: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a Gaussian projection R (k, d) with E[R^T R] = I (Johnson and Lindenstrauss).

    It is drawn in double precision where the generator is (CPU without one), and then follows
    ``like`` in dtype and device, so that a seed gives the same numbers everywhere.
    """
    if k < 1 or d < 1:
        raise ValueError(f"projection: expected k >= 1 and d >= 1, got {k} and {d}")
    _checks.generator(generator)
    device = "cpu" if generator is None else generator.device
    R = torch.randn(k, d, generator=generator, dtype=torch.float64, device=device) / k**0.5
    return R if like is None else R.to(like)


def projected_covariance(C: torch.Tensor, R: torch.Tensor) -> torch.Tensor:
    r"""Return R^T (R C R^T) R, the covariance seen through projected features, back in d
    dimensions.

    Its mean is biased:

    .. math:: E[R^T R\, C\, R^T R] = (1 + 1/k)\, C + \mathrm{tr}(C)/k\; I

    Parameters
    ----------
    C
        (d, d)
    R
        (k, d), from `projection`.
    """
    _checks.square(C, "C"), _checks.shaped(_checks.matrix(R, "R"), "R", len(R), len(C))
    return R.mT @ (R @ C @ R.mT) @ R


def debiased_projected_covariance(C: torch.Tensor, R: torch.Tensor) -> torch.Tensor:
    """Return `projected_covariance` with its bias removed, (d, d); unbiased, and noisier than C is
    large.
    """
    B = projected_covariance(C, R)
    k, d = R.shape
    trace = B.trace() / (1 + (d + 1) / k)
    return (B - trace / k * torch.eye(d, dtype=B.dtype, device=B.device)) / (1 + 1 / k)


def sketched_covariance(
    x: torch.Tensor, k: int, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return the covariance (divisor 1/n) of ``x`` (n, d) from k random mixtures of its rows, (d,
    d), unbiased.
    """
    centred = _checks.matrix(x, "x") - x.mean(0)
    mixed = projection(k, len(x), generator=generator, like=x) @ centred
    return mixed.mT @ mixed / len(x)


def sketch_error(C: torch.Tensor, k: int) -> float:
    r"""Return the root mean square relative error of `sketched_covariance`.

    .. math:: \sqrt{\frac{1 + (\mathrm{tr}\, C / \|C\|_F)^2}{k}}
    """
    _checks.square(C, "C"), _checks.whole(k, "k")
    return float(((1 + (C.trace() / torch.linalg.matrix_norm(C)) ** 2) / k).sqrt())


def projected_squared_norm(
    v: torch.Tensor, h: torch.Tensor, k: int, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    r"""Return an unbiased estimate of the squared norm of cov(v, h) from k random directions,
    without the matrix.

    .. math:: \|C\|_F^2 = E\,\|C r\|^2, \qquad r \sim N(0, I)

    Parameters
    ----------
    v, h
        Paired samples (n, D) and (n, H).
    k
        Number of directions; n (D + H) operations each.
    """
    _checks.paired(v, h)
    directions = projection(k, h.shape[1], generator=generator, like=h)
    along = (h - h.mean(0)) @ directions.mT
    return (((v - v.mean(0)).mT @ along / len(v)) ** 2).sum()


def projected_norm_error(C: torch.Tensor, k: int) -> float:
    r"""Return the relative standard deviation of `projected_squared_norm`, (D, H) to a number.

    .. math:: \sqrt{2/k}\; \|C^T C\|_F / \|C\|_F^2
    """
    _checks.matrix(C, "C"), _checks.whole(k, "k")
    return float((2 / k) ** 0.5 * torch.linalg.matrix_norm(C.mT @ C) / (C**2).sum())
