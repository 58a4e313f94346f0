"""Sums over the hidden states in closed form: the order of the statistics g, their mean and their
covariance, as functions of the parameters (W, a, b).
"""

from typing import Any

import torch

from natcompanion import _checks
from natcompanion._memory import affordable
from natcompanion.boltzmann.enumeration import check_enumerable, weighted_states


def statistic_names(visible: int, hidden: int) -> list[str]:
    """Return the names of the entries of g: v0, …, h0, …, v0h0, v0h1, …

    Parameters
    ----------
    visible, hidden : int
        D and H.

    Examples
    --------
    >>> statistic_names(1, 2)
    ['v0', 'h0', 'h1', 'v0h0', 'v0h1']
    """
    _checks.whole(visible, "visible", 0), _checks.whole(hidden, "hidden", 0)
    v, h = [f"v{i}" for i in range(visible)], [f"h{j}" for j in range(hidden)]
    return v + h + [x + y for x in v for y in h]


def transpose_order(
    visible: int, hidden: int, *, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return the index that turns the vector of ``rbm.transpose()`` into the vector of ``rbm``,
    (P,).

    Parameters
    ----------
    visible, hidden : int
        D and H.
    device : torch.device or str

    Examples
    --------
    >>> transpose_order(2, 1)  # (h0, v0, v1, h0v0, h0v1) to (v0, v1, h0, v0h0, v1h0)
    tensor([1, 2, 0, 3, 4])
    """
    pairs = torch.arange(visible * hidden, device=device).reshape(hidden, visible).mT.reshape(-1)
    first = torch.arange(visible, device=device) + hidden
    return torch.cat([first, torch.arange(hidden, device=device), pairs + visible + hidden])


def conditional_statistics(h: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Return E[g|h] = (m, h, vec(m h^T)) for each row; ``h`` (n, H), ``m`` = E[v|h] (n, D); result
    (n, P).

    Parameters
    ----------
    h : Tensor, shape (n, H)
    m : Tensor, shape (n, D)

    Examples
    --------
    >>> conditional_statistics(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5]]))
    tensor([[0.5000, 1.0000, 0.0000, 0.5000, 0.0000]])
    """
    return torch.cat([m, h, (m[:, :, None] * h[:, None, :]).flatten(1)], 1)


def pixel_blocks(visible: int, hidden: int, *, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the positions in g of (v_i, v_i h_0, …, v_i h_{H-1}) for each visible unit i, (D, H +
    1).

    Parameters
    ----------
    visible, hidden : int
        D and H.
    device : torch.device or str

    Examples
    --------
    >>> pixel_blocks(2, 1)  # g = (v0, v1, h0, v0h0, v1h0)
    tensor([[0, 3],
            [1, 4]])
    """
    v = torch.arange(visible, device=device)[:, None]
    return torch.cat([v, visible + hidden + hidden * v + torch.arange(hidden, device=device)], 1)


def conditional_blocks(p: torch.Tensor, h: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    r"""Return the D blocks of :math:`E_h[\mathrm{Cov}(g \mid h)]`, (D, H + 1, H + 1).

    Given h the visible units are independent, so only statistics of one visible unit co-vary:

    .. math:: B_i = \sum_h p(h)\, m_i (1 - m_i)\, (1, h)(1, h)^T

    Parameters
    ----------
    p : Tensor, shape (n,)
        Probabilities of the hidden states.
    h, m : Tensor, shapes (n, H) and (n, D)
        The states, and the visible units' means given each.

    Examples
    --------
    >>> one = torch.ones(1)
    >>> conditional_blocks(one, one[:, None], 0.5 * one[:, None])  # a single hidden state
    tensor([[[0.2500, 0.2500],
             [0.2500, 0.2500]]])
    """
    one_h = torch.cat([torch.ones_like(h[:, :1]), h], 1)
    pairs = (one_h[:, :, None] * one_h[:, None, :]).flatten(1)
    blocks = (p[:, None] * m * (1 - m)).mT @ pairs
    return blocks.reshape(m.shape[1], one_h.shape[1], one_h.shape[1])


def mean_statistics(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return E[g] under the model, (P,), by enumerating the smaller layer.

    Parameters
    ----------
    W, a, b
        Double precision, (D, H), (D,), (H,).

    Raises
    ------
    ValueError
        If the smaller layer is too large to be enumerated.
    """
    D, H = W.shape
    if H > D:
        return mean_statistics(W.mT, b, a)[transpose_order(D, H, device=W.device)]
    check_enumerable(H, D)
    mean_v: Any = 0.0
    mean_h: Any = 0.0
    mean_vh: Any = 0.0
    for p, h, m in weighted_states(W, a, b):
        weighted = p[:, None] * m
        mean_v, mean_h, mean_vh = (
            mean_v + weighted.sum(0),
            mean_h + p @ h,
            mean_vh + weighted.mT @ h,
        )
    return torch.cat([mean_v, mean_h, mean_vh.reshape(-1)])


def covariance_of_statistics(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    r"""Return Cov(g, g) under the model, (P, P): the Fisher matrix of p(v, h), symmetric.

    .. math:: G = \mathrm{Cov}_h(E[g \mid h]) + E_h[\mathrm{Cov}(g \mid h)]

    Parameters
    ----------
    W, a, b
        Double precision, (D, H), (D,), (H,).

    Raises
    ------
    ValueError
        If enumeration or the dense matrix would be too large.
    """
    D, H = W.shape
    if H > D:
        order = transpose_order(D, H, device=W.device)
        return covariance_of_statistics(W.mT, b, a)[order][:, order]
    check_enumerable(H, D)
    P = affordable(
        D + H + D * H,
        torch.float64,
        "fisher",
        "ExactFisherOperator (products without the matrix) or SampledFisherOperator",
    )
    mean = mean_statistics(W, a, b)
    G = torch.zeros(P, P, dtype=torch.float64, device=W.device)
    blocks = torch.zeros(D, H + 1, H + 1, dtype=torch.float64, device=W.device)
    for p, h, m in weighted_states(W, a, b):
        for part in torch.arange(len(p), device=p.device).split(max(1, 2**22 // P)):
            root = p[part].sqrt()[:, None] * (conditional_statistics(h[part], m[part]) - mean)
            G.addmm_(root.mT, root)
        blocks += conditional_blocks(p, h, m)
    index = pixel_blocks(D, H, device=W.device)
    G[index[:, :, None], index[:, None, :]] += blocks
    return (G + G.mT) / 2
