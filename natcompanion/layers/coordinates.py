r"""The coordinates of a whitened layer: the whitening matrix, and the maps to the plain weights and
back.
"""

from typing import Literal

import torch

from natcompanion import _checks as check
from natcompanion.whitening import whitening_matrix

Kind = Literal["pca", "zca"]


def whitening_pair(
    cov: torch.Tensor, eps: float = 0.0, kind: Kind = "pca"
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Return the whitening matrix of a covariance and its inverse.

    .. math:: \Sigma = Q \Lambda Q^\top, \qquad U_\mathrm{pca} = (\Lambda + \epsilon
              I)^{-1/2} Q^\top, \qquad
              U_\mathrm{zca} = Q (\Lambda + \epsilon I)^{-1/2} Q^\top

    Parameters
    ----------
    cov : Tensor, shape (d, d)
        Symmetric positive semi-definite; eigenvalues that are negative by rounding count as 0.
    eps : float
        Added to every eigenvalue.
    kind : "pca" or "zca"
        The paper's form, with eigenvalues in descending order, or the symmetric one.

    Returns
    -------
    tuple of Tensor
        ``U`` and its inverse, (d, d) each, in float64.

    Raises
    ------
    ValueError
        If ``cov`` is no covariance, or singular while ``eps`` is 0.

    Notes
    -----
    Source: prong Eq. 7, with the centred covariance.

    Examples
    --------
    >>> U, inverse = whitening_pair(torch.diag(torch.tensor([4.0, 1.0])), kind="zca")
    >>> U.diagonal(), inverse.diagonal()
    (tensor([0.5000, 1.0000], dtype=torch.float64), tensor([2., 1.], dtype=torch.float64))
    """
    if kind not in ("pca", "zca"):
        raise ValueError(f'kind: expected "pca" or "zca", got {kind!r}')
    sigma = check.symmetric(cov, "cov").detach().double()
    values, vectors = check.semidefinite_eigh(sigma, "cov", cov.dtype)
    if check.non_negative(eps, "eps") == 0:
        try:
            check.full_rank(values, "cov", torch.float64)
        except ValueError:  # scales that lie far apart, or truly singular
            U = whitening_matrix(sigma, kind)
            return U, sigma @ U.mT
    roots, Q = (values + eps).sqrt().flip(0), vectors.flip(1)
    if kind == "pca":
        return (Q / roots).mT, Q * roots
    return (Q / roots) @ Q.mT, (Q * roots) @ Q.mT


def to_canonical(
    V: torch.Tensor, d: torch.Tensor | None, U: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    r"""Return :math:`W = V U` and :math:`b = d - W c` of whitened coordinates.

    Parameters
    ----------
    V : Tensor, shape (out, in) or (out, in, height, width)
        For a convolution, U acts on the feature maps, and c counts once per tap.
    d : Tensor, shape (out,), or None
    U, c : Tensor, shapes (in, in) and (in,)

    Notes
    -----
    The map is linear in (V, d), so that it also takes velocities from one kind of coordinates to
    the other. Source: prong Algorithm 1, line 7.

    Examples
    --------
    >>> V, d, U, c = torch.eye(1), torch.zeros(1), torch.tensor([[0.5]]), torch.tensor([3.0])
    >>> to_canonical(V, d, U, c)
    (tensor([[0.5000]]), tensor([-1.5000]))
    """
    check.shaped(U, "U", V.shape[1], V.shape[1]), check.shaped(c, "c", V.shape[1])
    W = torch.einsum("oi...,ij->oj...", V, U)
    return W, None if d is None else d - _shift(W, c)


def to_whitened(
    W: torch.Tensor, b: torch.Tensor | None, U_inverse: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    r"""Return :math:`V = W U^{-1}` and :math:`d = b + W c`, the inverse of :func:`to_canonical`.

    Source: prong Algorithm 1, line 10.

    Parameters
    ----------
    W : Tensor, shape (out, in) or (out, in, height, width)
    b : Tensor, shape (out,), or None
    U_inverse, c : Tensor, shapes (in, in) and (in,)

    Examples
    --------
    >>> W, b, U, c = torch.eye(1), torch.zeros(1), torch.tensor([[0.5]]), torch.tensor([3.0])
    >>> to_whitened(W, b, U.inverse(), c)
    (tensor([[2.]]), tensor([3.]))
    """
    d = W.shape[1]
    check.shaped(U_inverse, "U_inverse", d, d), check.shaped(c, "c", d)
    return torch.einsum("oj...,ji->oi...", W, U_inverse), None if b is None else b + _shift(W, c)


def _shift(W: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return W.reshape(*W.shape[:2], -1).sum(2) @ c
