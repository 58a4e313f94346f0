"""The Fisher matrix of a restricted Boltzmann machine: joint, of the data alone, and as an
operator.
"""

from typing import Any

import torch

from natcompanion import _checks
from natcompanion._memory import affordable
from natcompanion.boltzmann.blocks import solve
from natcompanion.boltzmann.enumeration import check_enumerable, states, weighted_states
from natcompanion.boltzmann.rbm import RBM
from natcompanion.boltzmann.sums import (
    conditional_blocks,
    conditional_statistics,
    pixel_blocks,
    transpose_order,
)

__all__ = [
    "ExactFisherOperator",
    "SampledFisherOperator",
    "conditional_blocks",
    "conditional_covariance",
    "conditional_statistics",
    "exact_fisher",
    "log_likelihood_hessian",
    "marginal_fisher",
    "pixel_blocks",
    "solve",
    "transpose_order",
]


def exact_fisher(rbm: RBM) -> torch.Tensor:
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

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> exact_fisher(rbm)
    tensor([[0.2500, 0.0000, 0.1250],
            [0.0000, 0.2500, 0.1250],
            [0.1250, 0.1250, 0.1875]])
    """
    return RBM.check(rbm).fisher()


def conditional_covariance(
    rbm: RBM, v: torch.Tensor, weights: torch.Tensor | None = None
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

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> conditional_covariance(rbm, torch.tensor([[1.0]]))  # h and v h = h vary
    tensor([[0.0000, 0.0000, 0.0000],
            [0.0000, 0.2500, 0.2500],
            [0.0000, 0.2500, 0.2500]])
    """
    P = len(RBM.check(rbm).vector())
    affordable(P, torch.float64, "conditional_covariance", "fewer units")
    q = rbm.hidden_mean(v).double()
    if weights is None:
        weights = q.new_full((len(v),), 1 / len(v))
    _checks.shaped(weights, "weights", len(v))
    blocks = conditional_blocks(weights, v.double(), q)
    index = pixel_blocks(rbm.hidden, rbm.visible, device=q.device)
    out = torch.zeros(P, P, dtype=q.dtype, device=q.device)
    out[index[:, :, None], index[:, None, :]] += blocks
    order = transpose_order(rbm.visible, rbm.hidden, device=q.device)
    return out[order][:, order].to(rbm.W.dtype)


def marginal_fisher(rbm: RBM) -> torch.Tensor:
    """Return the Fisher matrix of p(v) alone, G - E_v[Cov(g|v)], (P, P), by enumerating the visible
    units.

    It is another matrix than the joint Fisher, and its rank is at most 2**D - 1.

    Parameters
    ----------
    rbm : RBM

    Notes
    -----
    Source: boltzmann Sec. 2 (the definition with p(x), x the data).

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> marginal_fisher(rbm).diagonal()
    tensor([0.2500, 0.0000, 0.0625])
    """
    affordable(
        len(RBM.check(rbm).vector()),
        torch.float64,
        "marginal_fisher",
        "fewer units, or ExactFisherOperator",
    )
    check_enumerable(rbm.visible, rbm.hidden)
    v = states(rbm.visible, device=rbm.W.device)
    p = rbm.visible_probabilities().double()
    return exact_fisher(rbm) - conditional_covariance(rbm, v.to(rbm.W.dtype), p)


def log_likelihood_hessian(rbm: RBM, v: torch.Tensor) -> torch.Tensor:
    """Return the Hessian of the mean log-likelihood, E_data[Cov(g|v)] - G, (P, P); not -G, since h
    is hidden.

    Parameters
    ----------
    rbm : RBM
    v : Tensor, shape (n, D)
        The data.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> log_likelihood_hessian(rbm, torch.tensor([[1.0]])).diagonal()
    tensor([-0.2500,  0.0000,  0.0625])
    """
    return conditional_covariance(rbm, v) - exact_fisher(rbm)


class ExactFisherOperator:
    """Products with G + damping I by enumeration, without the matrix: 2**H D H operations each.

    Parameters
    ----------
    rbm
        The machine; the hidden layer is enumerated.
    damping
        Added to the diagonal.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> ExactFisherOperator(rbm, damping=1.0) @ torch.tensor([1.0, 0.0, 0.0])
    tensor([1.2500, 0.0000, 0.1250])
    """

    def __init__(self, rbm: RBM, damping: float = 0.0):
        check_enumerable(RBM.check(rbm).hidden, rbm.visible)
        self._parameters, self.sizes = (
            rbm.double(),
            (rbm.visible, rbm.hidden, rbm.visible * rbm.hidden),
        )
        self._mean = rbm.statistics_mean().double()
        self._blocks: Any = sum(
            conditional_blocks(p, h, m) for p, h, m in weighted_states(*self._parameters)
        )
        self._index = pixel_blocks(rbm.visible, rbm.hidden, device=rbm.W.device)
        self.damping = _checks.non_negative(damping, "damping")
        self.shape = (sum(self.sizes), sum(self.sizes))

    def __matmul__(self, u: torch.Tensor) -> torch.Tensor:
        """Return (G + damping I) u for ``u`` (P,), in the dtype of ``u``."""
        D, H, _ = self.sizes
        _checks.shaped(u, "u", sum(self.sizes))
        u_v, u_h, u_vh = u.double().split(self.sizes)
        U = u_vh.reshape(D, H)
        out_v: Any = 0.0
        out_h: Any = 0.0
        out_vh: Any = 0.0
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
        affordable(self.shape[0], torch.float64, "ExactFisherOperator.dense", OPERATOR)
        eye = torch.eye(self.shape[0], dtype=torch.float64, device=self._mean.device)
        return torch.stack([self @ column for column in eye], 1)


OPERATOR = "products with the operator, or its diagonal()"


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

    Examples
    --------
    >>> v, h = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
    >>> SampledFisherOperator(v, h).dense()
    tensor([[0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500]])
    """

    def __init__(self, v: torch.Tensor, h: torch.Tensor, damping: float = 0.0):
        _checks.paired(v, h)
        self.v, self.h, self.damping = v, h, _checks.non_negative(damping, "damping")
        self.sizes = (v.shape[1], h.shape[1], v.shape[1] * h.shape[1])
        self.shape = (sum(self.sizes), sum(self.sizes))

    def along(self, u: torch.Tensor) -> torch.Tensor:
        """Return g . u of every sample, centred, (n,)."""
        u_v, u_h, u_vh = _checks.shaped(u, "u", sum(self.sizes)).split(self.sizes)
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
        affordable(self.shape[0], torch.float64, "SampledFisherOperator.dense", OPERATOR)
        g = conditional_statistics(self.h, self.v)
        centred = g - g.mean(0)
        return centred.mT @ centred / len(g) + self.damping * torch.eye(
            g.shape[1], dtype=g.dtype, device=g.device
        )
