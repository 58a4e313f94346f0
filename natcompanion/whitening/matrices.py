r"""Whitening: linear maps after which a signal has mean zero and covariance :math:`I`."""

from typing import Literal

import torch
from scipy.linalg.lapack import dgejsv

from natcompanion import _checks as check
from natcompanion._memory import affordable

Kind = Literal["zca", "pca", "cholesky"]


def whitening_matrix(
    cov: torch.Tensor, kind: Kind = "zca", eps: float = 0.0, *, components: int | None = None
) -> torch.Tensor:
    r"""Return a whitening matrix of a covariance.

    The result :math:`W` solves

    .. math:: W (\Sigma + \epsilon I) W^\top = I.

    ========== ==================================================================
    kind       the matrix :math:`W`
    ========== ==================================================================
    zca        :math:`(\Sigma + \epsilon I)^{-1/2}`, the symmetric solution
    pca        :math:`(\Lambda + \epsilon I)^{-1/2} U^\top`, rows by descending
               eigenvalue; the entry of largest modulus of each row is positive
    cholesky   :math:`L^{-1}` with :math:`L L^\top = \Sigma + \epsilon I`
    ========== ==================================================================

    The transpose also whitens a parameter space: with :math:`\Sigma` a metric :math:`G`, the matrix
    :math:`W^{-\top}` is a root of the metric, :math:`(W^{-\top})^\top W^{-\top} = G + \epsilon I`.

    Parameters
    ----------
    cov : Tensor, shape (d, d)
        Symmetric positive semi-definite. Eigenvalues that are negative by rounding, down to
        ``-d * finfo(float32).eps`` times the largest (covariances often come from float32 data),
        count as 0.
    kind : "zca", "pca" or "cholesky"
        Which of the solutions, which differ by a rotation.
    eps : float
        Added to every eigenvalue, in the units of ``cov``.
    components : int, optional
        Keep only the rows of that many largest eigenvalues, for ``"pca"``; then only these must not
        be 0.

    Returns
    -------
    Tensor, shape (d, d), or (components, d)
        Computed in float64, returned in the dtype of ``cov``, detached from its graph.

    Raises
    ------
    ValueError
        If ``cov`` is not a finite symmetric floating-point matrix, has a truly negative eigenvalue,
        or is singular while ``eps`` is 0, or still is, to float64 precision, with ``eps`` added.
        Its correlations decide that, not its units: they are singular if one of their eigenvalues
        is at most ``d * finfo(dtype).eps`` times the largest. If there are more ``components`` than
        dimensions, or, with ``eps=0``, than eigenvalues above that part of the largest.

    Notes
    -----
    Source: whitening Eqs. 8-9 and footnote 1.

    Examples
    --------
    >>> whitening_matrix(torch.diag(torch.tensor([4.0, 1.0]))).diagonal()
    tensor([0.5000, 1.0000])
    """
    if kind not in ("zca", "pca", "cholesky"):
        raise ValueError(f'kind: expected "zca", "pca" or "cholesky", got {kind!r}')
    eps = check.non_negative(eps, "eps")
    sigma = check.symmetric(cov, "cov").detach().double()
    values, vectors = check.semidefinite_eigh(sigma, "cov", cov.dtype)
    if components is not None:
        if kind != "pca":
            raise ValueError(f'components: expected kind="pca" with it, got {kind!r}')
        k = check.whole(components, "components", high=len(sigma))
        return _leading(values, vectors, eps, k, cov.dtype).to(cov.dtype)
    if eps > 0 and values[0] == 0:  # a negative eigenvalue became 0: take that matrix
        sigma = (vectors * values) @ vectors.mT
    identity = torch.eye(len(sigma), dtype=sigma.dtype, device=sigma.device)
    shifted = sigma + eps * identity
    check.independent(shifted, "cov", cov.dtype if eps == 0 else torch.float64)
    factor = torch.linalg.cholesky(shifted)
    if kind == "cholesky":
        return torch.linalg.solve_triangular(factor, identity, upper=False).to(cov.dtype)
    U, roots = vectors.flip(1), (values + eps).sqrt().flip(0)
    if roots[0] > 100 * roots[-1]:
        U, roots = _from_factor(factor, graded=bool(roots[0] > 1e6 * roots[-1]))
    if kind == "zca":
        return ((U / roots) @ U.mT).to(cov.dtype)
    return _signed((U / roots).mT).to(cov.dtype)


def _signed(rows: torch.Tensor) -> torch.Tensor:
    """Make the entry of largest modulus of each row positive."""
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return rows * largest.sign()


def _leading(
    values: torch.Tensor, vectors: torch.Tensor, eps: float, k: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the rows (k, d) that whiten the directions of the k largest of ascending
    eigenvalues.
    """
    rank = int((values > len(values) * torch.finfo(dtype).eps * values[-1]).sum())
    if eps == 0 and k > rank:
        raise ValueError(
            f"components: expected at most {rank}, the numerical rank of the covariance, got {k}; "
            "keep fewer, or increase eps"
        )
    return _signed((vectors[:, -k:] / (values[-k:] + eps).sqrt()).flip(1).mT)


def _from_factor(factor: torch.Tensor, *, graded: bool) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Return eigenvectors of :math:`L L^\top` and the roots of its eigenvalues, descending, from
    the Cholesky factor.

    It is slower than from the matrix, and half as many digits are lost. Where scales lie many
    orders apart (``graded``), Jacobi's method keeps the digits of the smallest (Drmac and Veselic
    2008, LAPACK's ``gejsv``): other methods lose what is below the rounding of the largest.
    """
    if not graded:
        U, roots, _ = torch.linalg.svd(factor)
        return U, roots
    jobs = {"joba": 0, "jobu": 3, "jobv": 0, "jobr": 0}
    values, _, U, scale, _, info = dgejsv(factor.mT.cpu().numpy(), **jobs)
    if info:
        raise ValueError(
            f"cov: expected a singular value decomposition, LAPACK's gejsv gave {info}; "
            "increase eps, or scale the features"
        )
    roots = torch.from_numpy(values * (scale[0] / scale[1]))
    return torch.from_numpy(U).to(factor), roots.to(factor)


class Whitener:
    r"""Centre and whiten data by the statistics of a training set.

    .. math:: y = W (x - \mu), \qquad
              \mu = \frac1n \sum_i x_i, \qquad
              \Sigma = \frac1n \sum_i (x_i - \mu)(x_i - \mu)^\top

    with :math:`W` from :func:`whitening_matrix`. The divisor is n, so that the covariance of the
    whitened training set, again with divisor n, is :math:`W \Sigma W^\top`: the identity for
    ``eps=0``, and with eigenvalues :math:`\lambda / (\lambda + \epsilon)` otherwise. A constant
    feature therefore stays at 0.

    Parameters
    ----------
    kind : "zca", "pca" or "cholesky"
        See :func:`whitening_matrix`.
    eps : float
        Added to every eigenvalue of the covariance, in squared units of the data. Needed when the
        covariance is singular: constant or repeated features, or fewer samples than features plus
        one. Features of very different units are no reason.
    components : int, optional
        Keep only that many directions, of the largest variance, for ``"pca"``.

    Attributes
    ----------
    mean : Tensor, shape (d,)
        In float64, like the two below.
    covariance : Tensor, shape (d, d)
    matrix : Tensor, shape (d, d), or (components, d)

    Notes
    -----
    Source: whitening Eqs. 6-10, with the mean taken out first.

    Examples
    --------
    >>> Whitener().fit(torch.tensor([[1.0], [5.0]])).transform(torch.tensor([[5.0]]))
    tensor([[1.]])

    Three samples of five features span two directions:

    >>> x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> y = Whitener("pca", components=2).fit(x).transform(x)
    >>> torch.allclose(y.mT @ y / 3, torch.eye(2).double())
    True
    """

    mean: torch.Tensor
    covariance: torch.Tensor
    matrix: torch.Tensor

    def __init__(
        self, kind: Kind = "zca", eps: float = 0.0, *, components: int | None = None
    ) -> None:
        if kind not in ("zca", "pca", "cholesky"):
            raise ValueError(f'kind: expected "zca", "pca" or "cholesky", got {kind!r}')
        if components is not None and kind != "pca":
            raise ValueError(f'components: expected kind="pca" with it, got {kind!r}')
        self.kind, self.eps = kind, check.non_negative(eps, "eps")
        self.components = components

    def fit(self, x: torch.Tensor) -> "Whitener":
        """Learn mean, covariance and whitening matrix from ``x`` of shape (n, d); return the
        whitener.

        Raises
        ------
        ValueError
            If ``x`` is not a finite floating-point matrix, its covariance is singular while
            ``eps`` is 0, or it would be larger than :func:`natcompanion.metrics.dense_limit`
            allows. The earlier fit is kept.
        """
        remedy = "fewer features, such as the principal ones of torch.pca_lowrank(x)"
        if isinstance(x, torch.Tensor):
            check.numbers(x, "x")
        width = check.matrix(x, "x").shape[1]
        affordable(width, torch.float64, "Whitener", remedy, what="features")
        wide = x.detach().double()
        mean = wide.mean(0)
        centred = wide - mean
        rounding = 16 * torch.finfo(torch.float64).eps * mean.abs()  # all that constants differ by
        centred = centred.where(centred.abs().amax(0) > rounding, 0)
        covariance = centred.mT @ centred / len(x)
        matrix = whitening_matrix(covariance, self.kind, self.eps, components=self.components)
        self.mean, self.covariance, self.matrix = mean, covariance, matrix
        return self

    def transform(self, x: torch.Tensor) -> torch.Tensor:
        """Whiten ``x`` of shape (n, d); the dtype of ``x`` is kept."""
        self._fitted()
        return ((self._rows(x, "x", len(self.mean)) - self.mean) @ self.matrix.mT).to(x.dtype)

    def inverse_transform(self, y: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`transform` for ``y`` of shape (n, d), or (n, components), whose nearest point
        of the directions that are kept is returned; the dtype of ``y`` is kept.
        """
        self._fitted()
        rows = self._rows(y, "y", len(self.matrix))
        if self.components is not None:
            return (rows @ torch.linalg.pinv(self.matrix).mT + self.mean).to(y.dtype)
        return (torch.linalg.solve(self.matrix, rows.mT).mT + self.mean).to(y.dtype)

    def _fitted(self) -> None:
        if not hasattr(self, "matrix"):
            raise ValueError("Whitener: expected a fitted whitener; call .fit(x) first")

    def _rows(self, x: torch.Tensor, name: str, columns: int) -> torch.Tensor:
        if check.matrix(x, name).shape[1] != columns:
            raise ValueError(
                f"{name}: expected {columns} columns as in fit, got shape {tuple(x.shape)}"
            )
        return x.double()
