"""Algorithm 1 of *Natural Neural Networks* in the paper's letters, one line of it a line here.

Layers are numbered as in the paper: V and d from 1 to L, U and c from 0, the input of layer 1.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Whiten = Callable[[Tensor, float], Tensor]


@dataclass
class WhitenedNetwork:
    """The parameters Ω = {V_i, d_i} and the coefficients Φ = {U_i, c_i}, by the index of the layer;
    ``f`` is the non-linearity, and the last layer is linear.
    """

    V: dict[int, Tensor]
    d: dict[int, Tensor]
    U: dict[int, Tensor]
    c: dict[int, Tensor]
    f: Callable[[Tensor], Tensor] = field(default_factory=lambda: torch.tanh)


def whitened_network(W: Iterable[Tensor], b: Iterable[Tensor]) -> WhitenedNetwork:
    """Return the network of these weights (out, in) and biases (out,) after lines 1 to 3.

    The paper sets U = I and c = 0 and does not say what V and d are: V = W and d = b.
    """
    V = {i: W_i.detach().clone() for i, W_i in enumerate(W, start=1)}
    d = {i: b_i.detach().clone() for i, b_i in enumerate(b, start=1)}
    U = {i - 1: torch.eye(V_i.shape[1], dtype=V_i.dtype) for i, V_i in V.items()}
    c = {i: torch.zeros(len(U_i), dtype=U_i.dtype) for i, U_i in U.items()}
    return WhitenedNetwork(V, d, U, c)


def activations(net: WhitenedNetwork, x: Tensor) -> dict[int, Tensor]:
    """Return h_0 = x, h_1, ..., h_L by Eq. 6; (n, units) each."""
    h = {0: x}
    for i, V in net.V.items():
        z = (h[i - 1] - net.c[i - 1]) @ net.U[i - 1].T
        a = z @ V.T + net.d[i]
        h[i] = a if i == len(net.V) else net.f(a)
    return h


def whitening(Sigma: Tensor, eps: float) -> Tensor:
    """Return U = diag(λ + ε)^(-1/2) Ũ^T for Σ = Ũ diag(λ) Ũ^T (Eq. 7)."""
    lam, U_tilde = torch.linalg.eigh(Sigma)
    return torch.diag((lam + eps) ** -0.5) @ U_tilde.T


@torch.no_grad()
def reparametrize(
    net: WhitenedNetwork,
    x: Tensor,
    eps: float,
    *,
    printed: bool = False,
    whiten: Whiten = whitening,
) -> None:
    """Change U, c, V and d so that the network computes what it did: lines 6 to 11.

    Parameters
    ----------
    net : WhitenedNetwork
        Changed in place.
    x : Tensor, shape (N_s, inputs)
        The sample for the statistics.
    eps : float
        Added to the eigenvalues.
    printed : bool
        Lines 8 and 9 as printed, on layer i instead of i - 1: lines 7 and 10 then see the same
        U and c, and the function changes.
    whiten : callable
        Form of U; any rotation of it will do.
    """
    for i in net.V:
        W = net.V[i] @ net.U[i - 1]  # line 7
        b = net.d[i] - W @ net.c[i - 1]
        k = i if printed else i - 1
        h = activations(net, x)[k]  # line 8
        mu, Sigma = h.mean(0), torch.cov(h.T, correction=0)  # centred, unlike Eq. 7
        net.c[k], net.U[k] = mu, whiten(Sigma, eps)  # line 9
        net.V[i] = W @ torch.linalg.inv(net.U[i - 1])  # line 10
        net.d[i] = b + net.V[i] @ net.U[i - 1] @ net.c[i - 1]


def prong(
    net: WhitenedNetwork,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    sample: Tensor,
    *,
    alpha: float,
    eps: float,
    T: int,
) -> None:
    """Train a network in place by Algorithm 1: gradient steps in Ω, new coordinates every T.

    Parameters
    ----------
    net : WhitenedNetwork
    batches : iterable of pairs (x, y)
        One for each update.
    loss : callable
        Of the outputs h_L and the targets; a mean over the batch.
    sample : Tensor, shape (N_s, inputs)
        Inputs for the statistics.
    alpha, eps, T : float, float, int
        Step size, what is added to the eigenvalues, updates between two whitenings.
    """
    for t, (x, y) in enumerate(batches):  # lines 4, 14, 15
        if t % T == 0:  # line 5
            reparametrize(net, sample, eps)
        Omega = [p.requires_grad_() for p in (*net.V.values(), *net.d.values())]
        h = activations(net, x)
        gradients = torch.autograd.grad(loss(h[len(net.V)], y), Omega)
        for p, g in zip(Omega, gradients, strict=True):  # line 13
            p.detach_().sub_(alpha * g)


@torch.no_grad()
def canonical(net: WhitenedNetwork) -> tuple[list[Tensor], list[Tensor]]:
    """Return W_i = V_i U_{i-1} and b_i = d_i - W_i c_{i-1} (line 7)."""
    W = [V @ net.U[i - 1] for i, V in net.V.items()]
    return W, [d - W_i @ net.c[i - 1] for (i, d), W_i in zip(net.d.items(), W, strict=True)]
