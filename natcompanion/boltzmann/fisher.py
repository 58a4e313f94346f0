"""The Fisher matrix of a restricted Boltzmann machine: dense, by blocks, and as an operator."""

from typing import TYPE_CHECKING, NamedTuple

import torch

from natcompanion import _checks
from natcompanion.boltzmann.enumeration import check_enumerable, weighted_states

if TYPE_CHECKING:
    from natcompanion.boltzmann.rbm import RBM

_DENSE_LIMIT_BYTES = 2**31


def statistic_names(visible: int, hidden: int) -> list[str]:
    """Return the names of the entries of g: v0, …, h0, …, v0h0, v0h1, …"""
    v, h = [f"v{i}" for i in range(visible)], [f"h{j}" for j in range(hidden)]
    return v + h + [x + y for x in v for y in h]


def transpose_order(
    visible: int, hidden: int, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return the index that turns the vector of ``rbm.transpose()`` into the vector of ``rbm``,
    (P,).
    """
    pairs = torch.arange(visible * hidden, device=device).reshape(hidden, visible).mT.reshape(-1)
    first = torch.arange(visible, device=device) + hidden
    return torch.cat([first, torch.arange(hidden, device=device), pairs + visible + hidden])


def conditional_statistics(h: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Return E[g|h] = (m, h, vec(m h^T)) for each row; ``h`` (n, H), ``m`` = E[v|h] (n, D); result
    (n, P).
    """
    return torch.cat([m, h, (m[:, :, None] * h[:, None, :]).flatten(1)], 1)


def pixel_blocks(visible: int, hidden: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the positions in g of (v_i, v_i h_0, …, v_i h_{H-1}) for each visible unit i, (D, H +
    1).
    """
    v = torch.arange(visible, device=device)[:, None]
    return torch.cat([v, visible + hidden + hidden * v + torch.arange(hidden, device=device)], 1)


def conditional_blocks(p: torch.Tensor, h: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    r"""Return the D blocks of :math:`E_h[\mathrm{Cov}(g \mid h)]`, (D, H + 1, H + 1).

    Given h the visible units are independent, so only statistics of one visible unit co-vary:

    .. math:: B_i = \sum_h p(h)\, m_i (1 - m_i)\, (1, h)(1, h)^T
    """
    one_h = torch.cat([torch.ones_like(h[:, :1]), h], 1)
    pairs = (one_h[:, :, None] * one_h[:, None, :]).flatten(1)
    blocks = (p[:, None] * m * (1 - m)).mT @ pairs
    return blocks.reshape(m.shape[1], one_h.shape[1], one_h.shape[1])


def exact_fisher(rbm: "RBM") -> torch.Tensor:
    r"""Return the Fisher matrix of the joint distribution, summing over the states of the smaller
    layer.

    .. math:: G = \mathrm{Cov}_h(E[g \mid h]) + E_h[\mathrm{Cov}(g \mid h)]

    Both terms are in closed form: no visible configuration is summed and nothing is sampled. It is
    also the Hessian of log Z.

    Parameters
    ----------
    rbm
        The machine; its smaller layer is enumerated.

    Returns
    -------
    torch.Tensor
        (P, P), symmetric, order (a, b, vec W).

    Raises
    ------
    ValueError
        If enumeration or the dense matrix would be too large.

    Notes
    -----
    Source: boltzmann Sec. 3.
    """
    D, H = rbm.visible, rbm.hidden
    if H > D:
        order = transpose_order(D, H, device=rbm.W.device)
        return exact_fisher(rbm.transpose())[order][:, order]
    check_enumerable(H, D)
    P = D + H + D * H
    if 8 * P * P > _DENSE_LIMIT_BYTES:
        raise ValueError(
            f"fisher: {P} parameters need a dense matrix of {8 * P * P / 2**30:.2g} GiB; "
            "use ExactFisherOperator (products without the matrix) or SampledFisherOperator"
        )
    mean = rbm.statistics_mean().double()
    G = torch.zeros(P, P, dtype=torch.float64, device=rbm.W.device)
    blocks = torch.zeros(D, H + 1, H + 1, dtype=torch.float64, device=rbm.W.device)
    for p, h, m in weighted_states(*rbm.double()):
        for part in torch.arange(len(p), device=p.device).split(max(1, 2**22 // P)):
            root = p[part].sqrt()[:, None] * (conditional_statistics(h[part], m[part]) - mean)
            G.addmm_(root.mT, root)
        blocks += conditional_blocks(p, h, m)
    index = pixel_blocks(D, H, device=rbm.W.device)
    G[index[:, :, None], index[:, None, :]] += blocks
    return ((G + G.mT) / 2).to(rbm.W.dtype)


def conditional_covariance(
    rbm: "RBM", v: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the average over rows of ``v`` of Cov(g|v), (P, P): h is random and v is given.

    Parameters
    ----------
    rbm
        The machine.
    v
        (n, D)
    weights
        (n,), summing to 1; by default 1/n each.
    """
    q = rbm.hidden_mean(v).double()
    weights = torch.full((len(v),), 1 / len(v), dtype=q.dtype) if weights is None else weights
    blocks = conditional_blocks(weights, v.double(), q)
    index = pixel_blocks(rbm.hidden, rbm.visible, device=q.device)
    P = len(rbm.vector())
    out = torch.zeros(P, P, dtype=q.dtype, device=q.device)
    out[index[:, :, None], index[:, None, :]] += blocks
    order = transpose_order(rbm.visible, rbm.hidden, device=q.device)
    return out[order][:, order].to(rbm.W.dtype)


def marginal_fisher(rbm: "RBM") -> torch.Tensor:
    """Return the Fisher matrix of p(v) alone, G - E_v[Cov(g|v)], (P, P), by enumerating the visible
    units.

    It is another matrix than the joint Fisher, and its rank is at most 2**D - 1.

    Notes
    -----
    Source: boltzmann Sec. 2 (the definition with p(x), x the data).
    """
    from natcompanion.boltzmann.enumeration import states

    check_enumerable(rbm.visible, rbm.hidden)
    v = states(rbm.visible, device=rbm.W.device)
    p = rbm.visible_probabilities().double()
    return exact_fisher(rbm) - conditional_covariance(rbm, v.to(rbm.W.dtype), p)


def log_likelihood_hessian(rbm: "RBM", v: torch.Tensor) -> torch.Tensor:
    """Return the Hessian of the mean log-likelihood, E_data[Cov(g|v)] - G, (P, P); not -G, since h
    is hidden.
    """
    return conditional_covariance(rbm, v) - exact_fisher(rbm)


def fisher_blocks(G: torch.Tensor, visible: int, hidden: int) -> dict[str, torch.Tensor]:
    """Return the blocks of G by name: ``"v,v"``, ``"h,h"``, ``"v,h"``, ``"v,vh"``, ``"h,vh"``,
    ``"vh,vh"``.

    Parameters
    ----------
    G
        (P, P)
    visible, hidden
        D and H.
    """
    sizes = (visible, hidden, visible * hidden)
    rows = [row.split(sizes, 1) for row in G.split(sizes, 0)]
    names = ("v", "h", "vh")
    order = [(0, 0), (1, 1), (0, 1), (0, 2), (1, 2), (2, 2)]
    return {f"{names[i]},{names[j]}": rows[i][j] for i, j in order}


def norm_terms(G: torch.Tensor, visible: int, hidden: int) -> dict[str, float]:
    r"""Return the six terms of the squared norm of G with their counts; they sum to
    ``(G**2).sum()``.

    .. math:: \|G\|_F^2 = \sum_{b} c_b \|C_b\|_F^2, \qquad c = 1, 1, 2, 2, 2, 1

    Notes
    -----
    Source: boltzmann Sec. 4.1 and Appendix A (there written as a trace of squares of blocks that
    are not square).
    """
    counts = (1, 1, 2, 2, 2, 1)
    blocks = fisher_blocks(G, visible, hidden)
    return {
        name: count * float((C**2).sum())
        for count, (name, C) in zip(counts, blocks.items(), strict=True)
    }


def restrict(G: torch.Tensor, visible: int, hidden: int, structure: str) -> torch.Tensor:
    """Return G with the entries outside ``structure`` set to zero: ``"full"``, ``"block"`` or
    ``"diagonal"``.
    """
    if structure == "full":
        return G
    if structure == "diagonal":
        return torch.diag(G.diagonal())
    if structure == "block":
        blocks = fisher_blocks(G, visible, hidden)
        return torch.block_diag(blocks["v,v"], blocks["h,h"], blocks["vh,vh"])
    raise ValueError(f'structure: expected "full", "block" or "diagonal", got {structure!r}')


def _factor(G: torch.Tensor, damping: float) -> torch.Tensor:
    damped = G + _checks.non_negative(damping, "damping") * torch.eye(
        len(G), dtype=G.dtype, device=G.device
    )
    L, info = torch.linalg.cholesky_ex(damped)
    pivots = L.diagonal()
    if (
        int(info)
        or float(pivots.min()) ** 2 < len(G) * torch.finfo(G.dtype).eps * float(pivots.max()) ** 2
    ):
        raise ValueError(
            f"Fisher matrix of {len(G)} parameters with damping {damping:.3g}: singular to "
            "working precision "
            "(units that never change do that); pass a damping of 1e-4 or more"
        )
    return L


def solve(G: torch.Tensor, gradient: torch.Tensor, damping: float = 0.0) -> torch.Tensor:
    """Return (G + damping I)^-1 gradient by Cholesky; a clear ValueError if that matrix is
    singular.
    """
    return torch.cholesky_solve(gradient[:, None], _factor(G, damping))[:, 0]


class FisherForms(NamedTuple):
    """The matrices of Figure 1: G + damping I, its inverse, its lower Cholesky factor, its inverse
    root.
    """

    fisher: torch.Tensor
    inverse: torch.Tensor
    cholesky: torch.Tensor
    inverse_root: torch.Tensor


def fisher_forms(G: torch.Tensor, damping: float = 0.0) -> FisherForms:
    """Return the quantities of Figure 1 for a Fisher matrix ``G`` (P, P).

    Raises
    ------
    ValueError
        If G + damping I is singular to working precision.

    Notes
    -----
    Source: boltzmann Figure 1; ``inverse_root`` is the whitening of boltzmann Sec. 2.1.
    """
    _checks.symmetric(G, "G")
    L = _factor(G, damping)
    values, vectors = torch.linalg.eigh(L @ L.mT)
    return FisherForms(
        L @ L.mT, torch.cholesky_inverse(L), L, (vectors / values.sqrt()) @ vectors.mT
    )


class ExactFisherOperator:
    """Products with G + damping I by enumeration, without the matrix: 2**H D H operations each.

    Parameters
    ----------
    rbm
        The machine; the hidden layer is enumerated.
    damping
        Added to the diagonal.
    """

    def __init__(self, rbm: "RBM", damping: float = 0.0):
        check_enumerable(rbm.hidden, rbm.visible)
        self._parameters, self.sizes = (
            rbm.double(),
            (rbm.visible, rbm.hidden, rbm.visible * rbm.hidden),
        )
        self._mean = rbm.statistics_mean().double()
        self._blocks = sum(
            conditional_blocks(p, h, m) for p, h, m in weighted_states(*self._parameters)
        )
        self._index = pixel_blocks(rbm.visible, rbm.hidden, device=rbm.W.device)
        self.damping = _checks.non_negative(damping, "damping")
        self.shape = (sum(self.sizes), sum(self.sizes))

    def __matmul__(self, u: torch.Tensor) -> torch.Tensor:
        """Return (G + damping I) u for ``u`` (P,), in the dtype of ``u``."""
        D, H, _ = self.sizes
        u_v, u_h, u_vh = u.double().split(self.sizes)
        U = u_vh.reshape(D, H)
        out_v, out_h, out_vh = 0.0, 0.0, 0.0
        for p, h, m in weighted_states(*self._parameters):
            along = p * (m @ u_v + h @ u_h + ((m @ U) * h).sum(1) - self._mean @ u.double())
            out_v, out_h, out_vh = (
                out_v + along @ m,
                out_h + along @ h,
                out_vh + (along[:, None] * m).mT @ h,
            )
        out = torch.cat([out_v, out_h, out_vh.reshape(-1)]) + self.damping * u
        out[self._index] += (self._blocks @ u.double()[self._index][:, :, None])[:, :, 0]
        return out.to(u.dtype)

    def diagonal(self) -> torch.Tensor:
        """Return the diagonal, (P,), double precision."""
        return _second_moments(self._mean) + self.damping

    def dense(self) -> torch.Tensor:
        """Return the matrix, (P, P), one product per column."""
        eye = torch.eye(self.shape[0], dtype=torch.float64, device=self._mean.device)
        return torch.stack([self @ column for column in eye], 1)


def _second_moments(mean: torch.Tensor) -> torch.Tensor:
    return mean * (1 - mean)


class SampledFisherOperator:
    """Products with the covariance of g over samples, plus damping, without the matrix: n D H
    operations each.

    For machines beyond enumeration: draw (v, h) from Gibbs chains and solve with conjugate
    gradients or MINRES.

    Parameters
    ----------
    v
        Samples (n, D) from the model.
    h
        Samples (n, H), drawn with them.
    damping
        Added to the diagonal; the covariance of n samples has rank below n, so use a positive one.

    Notes
    -----
    Divisor 1/n. Source: boltzmann Sec. 3 (G as a covariance).
    """

    def __init__(self, v: torch.Tensor, h: torch.Tensor, damping: float = 0.0):
        _checks.matrix(v, "v"), _checks.matrix(h, "h")
        if len(v) != len(h):
            raise ValueError(
                f"v and h: expected one row per sample in both, got {len(v)} and {len(h)}"
            )
        self.v, self.h, self.damping = v, h, _checks.non_negative(damping, "damping")
        self.sizes = (v.shape[1], h.shape[1], v.shape[1] * h.shape[1])
        self.shape = (sum(self.sizes), sum(self.sizes))

    def along(self, u: torch.Tensor) -> torch.Tensor:
        """Return g . u of every sample, centred, (n,)."""
        u_v, u_h, u_vh = u.split(self.sizes)
        U = u_vh.reshape(self.v.shape[1], self.h.shape[1])
        values = self.v @ u_v + self.h @ u_h + ((self.v @ U) * self.h).sum(1)
        return values - values.mean()

    def covariance_with(self, values: torch.Tensor) -> torch.Tensor:
        """Return Cov(g, values) over the samples for centred ``values`` (n,), (P,)."""
        n = len(values)
        pairs = (values[:, None] * self.v).mT @ self.h
        return torch.cat([values @ self.v, values @ self.h, pairs.reshape(-1)]) / n

    def __matmul__(self, u: torch.Tensor) -> torch.Tensor:
        """Return (Cov(g, g) + damping I) u for ``u`` (P,)."""
        return self.covariance_with(self.along(u)) + self.damping * u

    def diagonal(self) -> torch.Tensor:
        """Return the diagonal, (P,)."""
        n = len(self.v)
        mean = torch.cat([self.v.mean(0), self.h.mean(0), (self.v.mT @ self.h / n).reshape(-1)])
        v2, h2 = self.v**2, self.h**2
        return (
            torch.cat([v2.mean(0), h2.mean(0), (v2.mT @ h2 / n).reshape(-1)])
            - mean**2
            + self.damping
        )

    def dense(self) -> torch.Tensor:
        """Return the matrix, (P, P)."""
        g = conditional_statistics(self.h, self.v)
        centred = g - g.mean(0)
        return centred.mT @ centred / len(g) + self.damping * torch.eye(
            g.shape[1], dtype=g.dtype, device=g.device
        )
