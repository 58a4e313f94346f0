"""What is done with the Fisher matrix once it is there: its blocks, its inverse, its roots."""

from typing import NamedTuple

import torch

from natcompanion import _checks


def fisher_blocks(G: torch.Tensor, visible: int, hidden: int) -> dict[str, torch.Tensor]:
    """Return the blocks of G by name: ``"v,v"``, ``"h,h"``, ``"v,h"``, ``"v,vh"``, ``"h,vh"``,
    ``"vh,vh"``.

    Parameters
    ----------
    G
        (P, P)
    visible, hidden
        D and H.

    Examples
    --------
    >>> fisher_blocks(torch.arange(9.0).reshape(3, 3), 1, 1)["v,vh"]
    tensor([[2.]])
    """
    sizes = (visible, hidden, visible * hidden)
    _checks.shaped(G, "G", sum(sizes), sum(sizes))
    rows = [row.split(sizes, 1) for row in G.split(sizes, 0)]
    names = ("v", "h", "vh")
    order = [(0, 0), (1, 1), (0, 1), (0, 2), (1, 2), (2, 2)]
    return {f"{names[i]},{names[j]}": rows[i][j] for i, j in order}


def norm_terms(G: torch.Tensor, visible: int, hidden: int) -> dict[str, float]:
    r"""Return the six terms of the squared norm of G with their counts; they sum to
    ``(G**2).sum()``.

    .. math:: \|G\|_F^2 = \sum_{b} c_b \|C_b\|_F^2, \qquad c = 1, 1, 2, 2, 2, 1

    Parameters
    ----------
    G : Tensor, shape (P, P)
    visible, hidden : int
        D and H.

    Notes
    -----
    Source: boltzmann Sec. 4.1 and Appendix A (there written as a trace of squares of blocks that
    are not square).

    Examples
    --------
    >>> norm_terms(torch.ones(3, 3), 1, 1)
    {'v,v': 1.0, 'h,h': 1.0, 'v,h': 2.0, 'v,vh': 2.0, 'h,vh': 2.0, 'vh,vh': 1.0}
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

    Parameters
    ----------
    G : Tensor, shape (P, P)
    gradient : Tensor, shape (P,)
    damping : float
        Added to the diagonal.

    Examples
    --------
    >>> solve(torch.eye(2), torch.ones(2), damping=1.0)
    tensor([0.5000, 0.5000])
    """
    return torch.cholesky_solve(gradient[:, None], _factor(G, damping))[:, 0]


class FisherForms(NamedTuple):
    """The matrices of Figure 1: G + damping I, its inverse, its lower Cholesky factor, its inverse
    root.

    Parameters
    ----------
    fisher, inverse, cholesky, inverse_root : Tensor, shape (P, P)

    Examples
    --------
    >>> forms = fisher_forms(torch.diag(torch.tensor([4.0, 1.0])))
    >>> forms.inverse_root.diagonal()
    tensor([0.5000, 1.0000])
    """

    fisher: torch.Tensor
    inverse: torch.Tensor
    cholesky: torch.Tensor
    inverse_root: torch.Tensor


def fisher_forms(G: torch.Tensor, damping: float = 0.0) -> FisherForms:
    """Return the quantities of Figure 1 for a Fisher matrix ``G`` (P, P).

    Parameters
    ----------
    G : Tensor, shape (P, P)
    damping : float
        Added to the diagonal.

    Raises
    ------
    ValueError
        If G + damping I is singular to working precision.

    Notes
    -----
    Source: boltzmann Figure 1; ``inverse_root`` is the whitening of boltzmann Sec. 2.1.

    Examples
    --------
    >>> fisher_forms(torch.diag(torch.tensor([3.0, 0.0])), damping=1.0).inverse.diagonal()
    tensor([0.2500, 1.0000])
    """
    _checks.symmetric(G, "G")
    L = _factor(G, damping)
    values, vectors = torch.linalg.eigh(L @ L.mT)
    return FisherForms(
        L @ L.mT, torch.cholesky_inverse(L), L, (vectors / values.sqrt()) @ vectors.mT
    )
