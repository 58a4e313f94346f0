"""The covariance penalty over all pairs of statistics, products of units among them."""

from typing import Any

import torch

from natcompanion.boltzmann.blocks import fisher_blocks
from natcompanion.boltzmann.enumeration import weighted_states
from natcompanion.boltzmann.penalty import CovariancePenalty
from natcompanion.boltzmann.rbm import RBM
from natcompanion.boltzmann.sums import (
    conditional_statistics,
    covariance_of_statistics,
    mean_statistics,
    pixel_blocks,
    transpose_order,
)

PAIRS = ("v,vh", "h,vh", "vh,vh", "full")
SWAPPED = {"v,vh": "h,vh", "h,vh": "v,vh"}


class StatisticsPenalty(CovariancePenalty):
    r"""The squared Frobenius norm of the Fisher matrix of a machine, or of a block of it that holds
    products of units, exactly.

    The statistics are g = (v, h, vec v h^T), and G their covariance:

    .. math:: \|G\|_F^2 = \|vv\|^2 + \|hh\|^2 + 2\|vh\|^2 + 2\|v,vh\|^2 + 2\|h,vh\|^2
              + \|vh,vh\|^2

    The first three are those of :class:`CovariancePenalty`, whose ``objective`` this has too.

    Parameters
    ----------
    pair
        ``"v,vh"``, ``"h,vh"``, ``"vh,vh"``, or ``"full"`` for all pairs together.

    Raises
    ------
    ValueError
        For another pair; later, if enumeration or the Fisher matrix would be too large.

    Notes
    -----
    With x the centred statistics and K the block, symmetric and in its place, the gradient is
    :math:`2\,\mathrm{Cov}(g, x^T K x)`, summed over the states of the smaller layer: given these, x
    is linear in the other layer's units, which are independent. Source: boltzmann Sec. 4.1.

    Examples
    --------
    >>> rbm = RBM(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))  # four states, equally likely
    >>> float(StatisticsPenalty().value(rbm)) == float((rbm.fisher() ** 2).sum())
    True
    """

    def __init__(self, pair: str = "full"):
        if pair not in PAIRS:
            raise ValueError(
                f"pair: expected one of {', '.join(PAIRS)}, got {pair!r}; CovariancePenalty has "
                "vh, vv and hh"
            )
        self.pair = pair

    def value(self, rbm: RBM) -> torch.Tensor:
        """Return the squared Frobenius norm, a scalar."""
        G = rbm.fisher()
        return (G if self.pair == "full" else self._block(G, rbm)).square().sum()

    def gradient(self, rbm: RBM) -> torch.Tensor:
        """Return the gradient of ``value`` with respect to (a, b, vec W), (P,)."""
        W, a, b = rbm.double()
        D, H = W.shape
        if H > D:
            other = StatisticsPenalty(SWAPPED.get(self.pair, self.pair))
            return other.gradient(rbm.transpose())[transpose_order(D, H, device=W.device)]
        mean, K = mean_statistics(W, a, b), self._in_place(covariance_of_statistics(W, a, b), rbm)
        index = pixel_blocks(D, H, device=W.device)
        own = K[index[:, :, None], index[:, None, :]]
        total: Any = 0.0
        expected_q: Any = 0.0
        for probabilities, states, means in weighted_states(W, a, b):
            for part in torch.arange(len(states), device=W.device).split(max(1, 2**22 // len(K))):
                p, h, m = probabilities[part], states[part], means[part]
                one_h = torch.cat([torch.ones_like(h[:, :1]), h], 1)
                x = conditional_statistics(h, m) - mean
                Kx, variance = x @ K, m * (1 - m)
                curvature = torch.einsum("nj,ijk,nk->ni", one_h, own, one_h)
                slope = 2 * (Kx[:, index] * one_h[:, None]).sum(2) + curvature * (1 - 2 * m)
                q = (Kx * x).sum(1) + (variance * curvature).sum(1)
                visible = q[:, None] * m + slope * variance
                products = (visible[:, :, None] * h[:, None]).flatten(1)
                total = total + p @ torch.cat([visible, q[:, None] * h, products], 1)
                expected_q = expected_q + p @ q
        return (2 * (total - expected_q * mean)).to(rbm.W.dtype)

    def _block(self, G: torch.Tensor, rbm: RBM) -> torch.Tensor:
        return fisher_blocks(G, rbm.visible, rbm.hidden)[self.pair]

    def _in_place(self, G: torch.Tensor, rbm: RBM) -> torch.Tensor:
        """Return G where the pair's entries are, each pair counted once, (P, P) symmetric."""
        if self.pair == "full":
            return G
        mask = torch.zeros_like(G)
        self._block(mask, rbm).fill_(1)
        return G * mask if self.pair == "vh,vh" else G * (mask + mask.mT) / 2
