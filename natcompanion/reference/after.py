"""What came after the papers, each method in a few lines: PRONG and FOOF, K-FAC, Shampoo, Muon,
learned whitening in expectation, and the damped step in two spaces.

The first ones give the direction of a step for one layer, (o, D + 1), from what goes in, ``h``
(n, D + 1) with a 1 last, and what comes back, ``delta`` (n, o): the gradient of each example's loss
by what the layer puts out. A step subtracts a step size times the direction.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

CUBIC = (1.5, -0.5, 0.0)
"""Of the Newton-Schulz iteration that converges."""
MUON = (3.4445, -4.7750, 2.0315)
"""Of the one that Muon repeats five times."""


def gradient(h: Tensor, delta: Tensor) -> Tensor:
    """Return the gradient of the mean loss by the weights of a layer, bias last; (o, D + 1).

    Parameters
    ----------
    h : Tensor, shape (n, D + 1)
        What the layer receives, with a 1 last.
    delta : Tensor, shape (n, o)
        The gradients of the examples' losses by its outputs.

    Examples
    --------
    >>> gradient(torch.tensor([[2.0, 1.0]]), torch.tensor([[3.0]]))
    tensor([[6., 3.]])
    """
    return delta.mT @ h / len(h)


def prong(h: Tensor, delta: Tensor, eps: float = 0.0) -> Tensor:
    """Return a plain gradient step in white coordinates, read in the canonical ones.

    With z = U (h - c) a layer computes V z + d, so that W = V U and b = d - W c.

    Parameters
    ----------
    h, delta
        As for :func:`gradient`.
    eps : float
        Added to the eigenvalues of the covariance.

    Notes
    -----
    Source: prong Algorithm 1, lines 7, 9 and 13.

    Examples
    --------
    >>> h = torch.tensor([[-2.0, 1.0], [2.0, 1.0]])
    >>> prong(h, torch.tensor([[-1.0], [2.0]]))  # the gradient is (3, 0.5), the variance 4
    tensor([[0.7500, 0.5000]])
    """
    c = h[:, :-1].mean(0)
    centred = h[:, :-1] - c
    lam, Q = torch.linalg.eigh(centred.mT @ centred / len(h))
    U = torch.diag((lam + eps) ** -0.5) @ Q.mT
    z = centred @ U.mT
    G_V, g_d = delta.mT @ z / len(z), delta.mean(0)
    G_W = G_V @ U
    return torch.cat([G_W, (g_d - G_W @ c)[:, None]], 1)


def foof(h: Tensor, delta: Tensor, damping: float = 0.0) -> Tensor:
    """Return the change of the weights that moves what the layer puts out along ``delta``, as
    nearly as least squares can: gradient descent on neurons.

    Parameters
    ----------
    h, delta
        As for :func:`gradient`.
    damping : float
        Weight of the squared change itself.

    Notes
    -----
    Source: Benzing (2022), whose update is G (E[h hᵀ] + damping I)^-1.

    Examples
    --------
    >>> h = torch.tensor([[-2.0, 1.0], [2.0, 1.0]])
    >>> torch.allclose(foof(h, torch.tensor([[-1.0], [2.0]])), torch.tensor([[0.75, 0.5]]))
    True
    """
    n, inputs = h.shape
    ridge = (n * damping) ** 0.5 * torch.eye(inputs, dtype=h.dtype)
    rows, goal = torch.cat([h, ridge]), torch.cat([delta, delta.new_zeros(inputs, delta.shape[1])])
    return torch.linalg.lstsq(rows, goal).solution.mT


def kfac(h: Tensor, delta: Tensor, B: Tensor, damping: float = 0.0) -> Tensor:
    """Return the solution of (B ⊗ A + damping I) vec(X) = vec(G), where A is the second moment of
    what goes in.

    Parameters
    ----------
    h, delta
        As for :func:`gradient`.
    B : Tensor, shape (o, o)
        Second moment of what comes back, for labels drawn from the model.
    damping : float

    Notes
    -----
    Source: Martens and Grosse (2015).

    Examples
    --------
    >>> h, delta = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0], [1.0]])
    >>> kfac(h, delta, torch.tensor([[4.0]]))  # the gradient (1, 0.5) over 4 times (2, 0.5)
    tensor([[0.1250, 0.2500]])
    """
    A, G = h.mT @ h / len(h), gradient(h, delta)
    block = torch.kron(B, A)
    block = block + damping * torch.eye(len(block), dtype=h.dtype)
    return torch.linalg.solve(block, G.flatten()).view_as(G)


def power(M: Tensor, exponent: float) -> Tensor:
    """Return a power of a symmetric matrix with no negative eigenvalue, zero where it is singular.

    Parameters
    ----------
    M : Tensor, shape (d, d)
    exponent : float

    Examples
    --------
    >>> power(torch.tensor([[4.0, 0.0], [0.0, 0.0]]), -0.5)
    tensor([[0.5000, 0.0000],
            [0.0000, 0.0000]])
    """
    lam, Q = torch.linalg.eigh(M)
    zero = len(M) * torch.finfo(M.dtype).eps * lam[-1]
    return (Q * torch.where(lam > zero, lam.clamp_min(zero) ** exponent, 0)) @ Q.mT


def shampoo(gradients: Sequence[Tensor]) -> Tensor:
    """Return the step for the last of some gradients: L^(-1/4) G R^(-1/4), where L is the sum of
    their G Gᵀ and R that of their Gᵀ G.

    Parameters
    ----------
    gradients : sequence of Tensor, shape (o, D)

    Notes
    -----
    Source: Gupta, Koren and Singer (2018), Algorithm 1 without its ridge.

    Examples
    --------
    >>> shampoo([torch.tensor([[4.0, 0.0], [0.0, 1.0]])])
    tensor([[1., 0.],
            [0., 1.]])
    """
    L = sum((G @ G.mT for G in gradients[1:]), gradients[0] @ gradients[0].mT)
    R = sum((G.mT @ G for G in gradients[1:]), gradients[0].mT @ gradients[0])
    return power(L, -0.25) @ gradients[-1] @ power(R, -0.25)


def polar(G: Tensor) -> Tensor:
    """Return the matrix nearest to one of full rank whose singular values are all 1.

    Parameters
    ----------
    G : Tensor, shape (o, D)

    Examples
    --------
    >>> polar(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    return U @ Vh


def newton_schulz(
    X: Tensor, steps: int, coefficients: tuple[float, float, float] = CUBIC
) -> Tensor:
    """Return X after ``steps`` times X ← a X + b X Xᵀ X + c (X Xᵀ)² X.

    Each singular value s goes to a s + b s³ + c s⁵, and the singular vectors stay.

    Parameters
    ----------
    X : Tensor, shape (o, D)
    steps : int
    coefficients : tuple of float
        a, b and c.

    Examples
    --------
    >>> newton_schulz(torch.tensor([[0.5]]), 1)  # 1.5 / 2 - 0.5 / 8
    tensor([[0.6875]])
    """
    a, b, c = coefficients
    for _ in range(steps):
        M = X @ X.mT
        X = a * X + (b * M + c * M @ M) @ X
    return X


def muon(
    momentum: Tensor, steps: int = 5, coefficients: tuple[float, float, float] = MUON
) -> Tensor:
    """Return the direction of Muon: a momentum over its norm, after ``steps`` of Newton-Schulz.

    Parameters
    ----------
    momentum : Tensor, shape (o, D)
    steps, coefficients
        As for :func:`newton_schulz`.

    Notes
    -----
    Source: Jordan et al. (2024), ``torch.optim.Muon``. The norm is that of all entries, so that no
    singular value is above 1.

    Examples
    --------
    >>> muon(torch.tensor([[5.0]]), steps=1)  # 3.4445 - 4.775 + 2.0315
    tensor([[0.7010]])
    """
    return newton_schulz(momentum / momentum.norm(), steps, coefficients)


def easi(W: Tensor, C: Tensor, rate: float) -> Tensor:
    """Return a whitening matrix after the mean update of EASI, W ← W - rate (W C Wᵀ - I) W.

    Parameters
    ----------
    W : Tensor, shape (d, d)
    C : Tensor, shape (d, d)
        Covariance of the signals.
    rate : float

    Notes
    -----
    Source: boltzmann Section 4 (Cardoso and Laheld 1996), without the skew part.

    Examples
    --------
    >>> easi(torch.tensor([[1.0]]), torch.tensor([[1.5]]), 0.5)
    tensor([[0.7500]])
    """
    return W - rate * (W @ C @ W.mT - torch.eye(len(W), dtype=W.dtype)) @ W


def dense_step(J: Tensor, H: Tensor, s: Tensor, damping: float) -> Tensor:
    """Return (Jᵀ H J / n + damping I)^-1 Jᵀ s / n from a system of the P parameters.

    Parameters
    ----------
    J : Tensor, shape (n, o, P)
        Derivative of the outputs of each example.
    H : Tensor, shape (n, o, o)
        Fisher matrix of its outputs.
    s : Tensor, shape (n, o)
        Gradient of its loss by its outputs.
    damping : float

    Notes
    -----
    Source: revisiting Eq. 8.

    Examples
    --------
    >>> one = torch.ones(1, 1, 1)
    >>> dense_step(3 * one, one, one[0], damping=1.0)  # 3 / (9 + 1)
    tensor([0.3000])
    """
    n, _, P = J.shape
    G = torch.einsum("nap,nab,nbq->pq", J, H, J) / n
    g = torch.einsum("nap,na->p", J, s) / n
    return torch.linalg.solve(G + damping * torch.eye(P, dtype=J.dtype), g)


def sample_step(J: Tensor, H: Tensor, s: Tensor, damping: float) -> Tensor:
    """Return Jᵀ (H J Jᵀ / n + damping I)^-1 s / n from a system of the n o outputs: the same.

    Parameters
    ----------
    J, H, s, damping
        As for :func:`dense_step`.

    Notes
    -----
    Source: revisiting Eq. 8, by (Jᵀ H J + n damping I) Jᵀ = Jᵀ (H J Jᵀ + n damping I); known as
    the formula of Woodbury, minSR, or the kernel trick.

    Examples
    --------
    >>> one = torch.ones(1, 1, 1)
    >>> sample_step(3 * one, one, one[0], damping=1.0)
    tensor([0.3000])
    """
    n, o, P = J.shape
    rows = J.reshape(n * o, P)
    HK = (H @ (rows @ rows.mT).view(n, o, n * o)).view(n * o, n * o)
    system = HK / n + damping * torch.eye(n * o, dtype=J.dtype)
    return rows.mT @ torch.linalg.solve(system, s.flatten()) / n
