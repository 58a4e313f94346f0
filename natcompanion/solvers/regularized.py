r"""Inverting a metric with care: damping, and the regularized inverse of whitening Eq. 35."""

import torch

from natcompanion import _checks as check


def damped_solve(G: torch.Tensor, g: torch.Tensor, damping: float) -> torch.Tensor:
    r"""Solve a damped linear system.

    .. math:: x = (G + \lambda I)^{-1} g

    An eigenvalue :math:`\mu` of a symmetric ``G`` is inverted to :math:`1 / (\mu + \lambda)`.

    Parameters
    ----------
    G : Tensor, shape (P, P)
        Any square matrix; it need not be symmetric.
    g : Tensor, shape (P,) or (P, k)
        One right side, or k of them as columns.
    damping : float
        :math:`\lambda \ge 0`, in the units of ``G``.

    Returns
    -------
    Tensor
        Shape and dtype of ``g``; computed in float64.

    Raises
    ------
    ValueError
        On malformed input, or if the matrix is singular: to float64 precision, and without damping
        already to the precision ``G`` came in.

    Notes
    -----
    Source: whitening Eqs. 25 and 36; the damped form is not in the paper.

    Examples
    --------
    >>> damped_solve(torch.eye(2), torch.ones(2), damping=1.0)
    tensor([0.5000, 0.5000])
    """
    damping = check.non_negative(damping, "damping")
    _right_side(G, g)
    A = G.double() + damping * torch.eye(len(G), dtype=torch.float64, device=G.device)
    _inverse(A, "G + damping I", "damping", G.dtype if damping == 0 else torch.float64)
    return torch.linalg.solve(A, g.double()).to(g.dtype)


def stochastic_robust_inverse(G: torch.Tensor, eps: float) -> torch.Tensor:
    r"""Return the regularized inverse of whitening Eq. 35.

    .. math:: G_{\mathrm{reg}}^{-1} = (G^\top G + \epsilon I)^{-1} G^\top

    A singular value :math:`\sigma` of ``G`` is inverted to :math:`\sigma / (\sigma^2 + \epsilon)`:
    nearly
    :math:`1/\sigma` above :math:`\sqrt\epsilon`, and nearly 0 far below it. So :math:`\epsilon` is
    measured in squared units of ``G``, and directions far below :math:`\sqrt\epsilon` are frozen
    rather than damped. The result solves ridge regression on Eq. 36, see :func:`ridge_solve`.

    Parameters
    ----------
    G : Tensor, shape (P, P)
        Any square matrix; it need not be symmetric.
    eps : float
        At least 0. With 0 the result is the plain inverse.

    Returns
    -------
    Tensor, shape (P, P)
        In the dtype of ``G``; computed in float64.

    Raises
    ------
    ValueError
        On malformed input, or if ``G`` is singular at its own precision while ``eps`` is 0.

    Notes
    -----
    Computed from the singular values, because forming :math:`G^\top G` would square the condition
    number. Source: whitening Eq. 35.

    Examples
    --------
    >>> stochastic_robust_inverse(torch.diag(torch.tensor([1.0, 2.0])), eps=1.0).diagonal()
    tensor([0.5000, 0.4000])
    """
    eps = check.non_negative(eps, "eps")
    wide = check.square(G, "G").double()
    if eps == 0:
        return _inverse(wide, "G", "eps", G.dtype).to(G.dtype)
    U, S, Vh = torch.linalg.svd(wide)
    return ((Vh.mT * (S / (S.square() + eps))) @ U.mT).to(G.dtype)


def ridge_solve(G: torch.Tensor, g: torch.Tensor, eps: float) -> torch.Tensor:
    r"""Solve ``G x = g`` by ridge regression.

    .. math:: x = \arg\min_x \; \lVert G x - g \rVert^2 + \epsilon \lVert x \rVert^2

    Solved by least squares with ``G`` stacked on :math:`\sqrt\epsilon I`, without Eq. 35; it equals
    ``stochastic_robust_inverse(G, eps) @ g``.

    Parameters
    ----------
    G : Tensor, shape (P, P)
        Any square matrix; it need not be symmetric.
    g : Tensor, shape (P,) or (P, k)
        One right side, or k of them as columns.
    eps : float
        At least 0, in squared units of ``G``. With 0 the result is the plain solution.

    Returns
    -------
    Tensor
        Shape and dtype of ``g``; computed in float64.

    Raises
    ------
    ValueError
        On malformed input, or if ``G`` is singular at its own precision while ``eps`` is 0.

    Notes
    -----
    Source: whitening Eq. 36.

    Examples
    --------
    >>> ridge_solve(2 * torch.eye(2), torch.ones(2), eps=4.0)
    tensor([0.2500, 0.2500])
    """
    eps = check.non_negative(eps, "eps")
    _right_side(G, g)
    if eps == 0:
        return damped_solve(G, g, 0.0)
    identity = torch.eye(len(G), dtype=torch.float64, device=G.device)
    columns = g.double().reshape(len(G), -1)
    stacked = torch.cat([G.double(), eps**0.5 * identity])
    Q, R = torch.linalg.qr(stacked)
    x = torch.linalg.solve_triangular(R, Q[: len(G)].mT @ columns, upper=True)
    return x.reshape(g.shape).to(g.dtype)


def _right_side(G: torch.Tensor, g: torch.Tensor) -> None:
    """Refuse a pair that does not form a square linear system."""
    check.square(G, "G")
    if check.floating(g, "g").ndim not in (1, 2) or len(g) != len(G):
        raise ValueError(
            f"g: expected shape ({len(G)},) or ({len(G)}, k) to match G, got {tuple(g.shape)}"
        )


def _inverse(A: torch.Tensor, name: str, option: str, dtype: torch.dtype) -> torch.Tensor:
    """Return the inverse of ``A``, or refuse it as singular to the precision ``dtype``."""
    inverse, info = torch.linalg.inv_ex(A)
    if info == 0:
        condition = float(
            (torch.linalg.matrix_norm(A, 1) * torch.linalg.matrix_norm(inverse, 1)).detach()
        )
        if condition <= 1 / torch.finfo(dtype).eps:
            return inverse
    rank = int(torch.linalg.matrix_rank(A, rtol=torch.finfo(dtype).eps))
    raise ValueError(
        f"{name}: expected an invertible matrix, got one of numerical rank {rank} of {len(A)}; "
        f"increase {option} (a condition number below {1 / torch.finfo(dtype).eps:.0e} is needed)"
    )
