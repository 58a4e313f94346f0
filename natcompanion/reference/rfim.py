"""Relative Fisher metrics by summing over the responses of a subsystem, and RNGD in the paper's
letters.
"""

import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch

from natcompanion.reference.whitening import all_states


def brute_force_rfim(
    response_log_prob: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    theta: torch.Tensor,
    responses: torch.Tensor,
    volume: float = 1.0,
    form: Literal["scores", "curvature", "roots"] = "scores",
) -> torch.Tensor:
    """Return the Fisher matrix of any subsystem by summing over its responses; (P, P). Source: rfim
    Eq. 9, 1 and 2.

    ``response_log_prob(theta, responses)`` is the log-probability of each of the k responses given
    the rest of the network; ``theta`` has any shape and P elements. For a continuous response, the
    responses are a grid, and ``volume`` is that of one of its cells. The three forms are E[g gᵀ],
    -E[Hessian], and 4 ∫ ∂√p ∂√pᵀ.

    Parameters
    ----------
    response_log_prob : callable
    theta : Tensor, P elements
    responses : Tensor, shape (k, ...)
    volume : float
    form : "scores", "curvature" or "roots"

    Examples
    --------
    >>> def bit(theta, y):  # log-probability of y under a coin of bias theta
    ...     return torch.nn.functional.logsigmoid(theta * (2 * y[:, 0] - 1))
    >>> brute_force_rfim(bit, torch.zeros(1), torch.tensor([[0.0], [1.0]]))
    tensor([[0.2500]])
    """

    def log_prob(flat: torch.Tensor) -> torch.Tensor:
        return response_log_prob(flat.view_as(theta), responses)

    flat = theta.detach().reshape(-1)
    weights = log_prob(flat).exp() * volume
    if form == "scores":
        g = torch.func.jacrev(log_prob, chunk_size=256)(flat)  # all at once need memory k²
        return torch.einsum("k,ki,kj->ij", weights, g, g)
    if form == "curvature":
        one = lambda flat, y: response_log_prob(flat.view_as(theta), y.unsqueeze(0)).squeeze(0)
        hessian = torch.func.jacrev(torch.func.jacrev(one))
        return -torch.einsum(
            "k,kij->ij", weights, torch.func.vmap(hessian, (None, 0))(flat, responses)
        )
    r = torch.func.jacrev(lambda flat: torch.exp(log_prob(flat) / 2))(flat)
    return 4 * volume * torch.einsum("ki,kj->ij", r, r)


def activation(
    name: str, t: torch.Tensor, iota: float = 0.0, omega: float = 0.0, alpha: float = 1.0
) -> torch.Tensor:
    """Return f(t) by the book's definition, without care for large ``t``. Source: rfim Eq. 34, 38,
    15, 40 and 42.

    Parameters
    ----------
    name : "linear", "tanh", "sigmoid", "relu" or "elu"
    t : Tensor
    iota, omega, alpha : float
        As for :func:`natcompanion.relative.nu`.

    Examples
    --------
    >>> activation("relu", torch.tensor([-1.0, 2.0]), iota=0.5)
    tensor([-0.5000,  2.0000])
    """
    match name:
        case "linear":
            return t
        case "tanh":
            return (torch.exp(t) - torch.exp(-t)) / (torch.exp(t) + torch.exp(-t))
        case "sigmoid":
            return 1 / (1 + torch.exp(-t))
        case "relu" if omega == 0:
            return torch.where(t >= 0, t, iota * t)
        case "relu":
            return omega * torch.log(torch.exp(iota * t / omega) + torch.exp(t / omega))
        case "elu":
            return torch.where(t >= 0, t, alpha * (torch.exp(t) - 1))
    raise ValueError(f"activation: expected linear, tanh, sigmoid, relu or elu, got {name!r}")


def responses(
    name: str, units: int = 1, sigma: float = 1.0, largest: float = 3.0
) -> tuple[torch.Tensor, float]:
    """Return every response of a layer (k, units) and the volume of a cell, for
    :func:`brute_force_rfim`.

    Gaussian responses are a grid with step 0.7 sigma that reaches 9 sigma beyond means of modulus
    ``largest``. The trapezoidal rule on it is exact to float64.

    Parameters
    ----------
    name : "linear", "tanh", "sigmoid", "relu" or "elu"
    units : int
    sigma, largest : float

    Examples
    --------
    >>> responses("sigmoid", units=1)
    (tensor([[0.],
            [1.]], dtype=torch.float64), 1.0)
    """
    if name in ("tanh", "sigmoid"):
        return all_states(units, (-1.0, 1.0) if name == "tanh" else (0.0, 1.0)), 1.0
    step = 0.7 * sigma
    line = torch.arange(-largest - 9 * sigma, largest + 9 * sigma + step, step, dtype=torch.float64)
    return torch.cartesian_prod(*[line] * units).view(-1, units), step**units


def layer_log_prob(
    W: torch.Tensor, x: torch.Tensor, y: torch.Tensor, name: str, sigma: float = 1.0, **shape: float
) -> torch.Tensor:
    """Return log p(y | W, x) of each response ``y`` (k, m) of a layer: the sum over its m
    independent neurons.

    ``W`` (m, D + 1) has the biases last, ``x`` (D,) is one input. Source: rfim Eq. 11, 13, 15, 19,
    64 and 71.

    Parameters
    ----------
    W : Tensor, shape (m, D + 1)
    x : Tensor, shape (D,)
    y : Tensor, shape (k, m)
    name : "linear", "tanh", "sigmoid", "relu" or "elu"
    sigma, **shape : float
        As for :func:`natcompanion.relative.nu`.

    Examples
    --------
    >>> layer_log_prob(torch.zeros(2, 2), torch.ones(1), torch.ones(1, 2), "sigmoid").exp()
    tensor([0.2500])
    """
    mean = activation(name, W @ torch.cat([x, x.new_ones(1)]), **shape)
    match name:
        case "tanh":
            p = (1 + y * mean) / 2
            return p.log().sum(1)
        case "sigmoid":
            p = y * mean + (1 - y) * (1 - mean)
            return p.log().sum(1)
    return (-((y - mean) ** 2) / (2 * sigma**2) - 0.5 * math.log(2 * math.pi * sigma**2)).sum(1)


def two_layer_log_prob(
    W: torch.Tensor,
    C: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    name: str,
    sigma: float = 1.0,
    **shape: float,
) -> torch.Tensor:
    """Return log p(y | W, C, x) of each response (k, o) of a layer ``C`` (o, m) on h = f(W x̃).
    Source: rfim Section 3.3.

    Parameters
    ----------
    W, C : Tensor, shapes (m, D + 1) and (o, m)
    x : Tensor, shape (D,)
    y : Tensor, shape (k, o)
    name : "linear", "tanh", "sigmoid", "relu" or "elu"
    sigma, **shape : float
        As for :func:`natcompanion.relative.nu`.

    Examples
    --------
    >>> W, C, x, y = torch.zeros(1, 2), torch.zeros(2, 1), torch.ones(1), torch.ones(1, 2)
    >>> two_layer_log_prob(W, C, x, y, "sigmoid").exp()
    tensor([0.2500])
    """
    h = activation(name, W @ torch.cat([x, x.new_ones(1)]), **shape)
    return layer_log_prob(torch.cat([C, C.new_zeros(len(C), 1)], 1), h, y, name, sigma, **shape)


def softmax_log_prob(W: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return log p(y | W, x) of each class number ``y`` (k,). Source: rfim Eq. 24 and 75.

    Parameters
    ----------
    W : Tensor, shape (m, D + 1)
    x : Tensor, shape (D,)
    y : Tensor, shape (k,)

    Examples
    --------
    >>> softmax_log_prob(torch.zeros(4, 2), torch.ones(1), torch.tensor([2])).exp()
    tensor([0.2500])
    """
    scores = torch.exp(W @ torch.cat([x, x.new_ones(1)]))
    return torch.log(scores / scores.sum())[y]


def stochastic_log_prob(
    W: torch.Tensor, V: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Return log p(h, y | x) of every state h and response ``y`` (k, o) of two random sigmoid
    layers; (2^m, k).

    ``W`` (m, D + 1) and ``V`` (o, m + 1). Its ``logsumexp(0)`` is log p(y | x). Source: rfim Eq. 4.

    Parameters
    ----------
    W, V : Tensor, shapes (m, D + 1) and (o, m + 1)
    x : Tensor, shape (D,)
    y : Tensor, shape (k, o)

    Examples
    --------
    >>> W, x = torch.zeros(1, 2).double(), torch.ones(1).double()
    >>> stochastic_log_prob(W, W, x, x[:, None]).exp()
    tensor([[0.2500],
            [0.2500]], dtype=torch.float64)
    """
    states = all_states(len(W), (0.0, 1.0))
    first = layer_log_prob(W, x, states, "sigmoid")
    second = torch.stack([layer_log_prob(V, h, y, "sigmoid") for h in states])
    return first[:, None] + second


def forward(
    W: list[torch.Tensor], x: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return what each layer of a network receives, with a 1 last for the bias, and the output.

    ``W`` holds one matrix (m, D + 1) a layer, ``x`` is (n, D); f acts between two layers.
    """
    received: list[torch.Tensor] = []
    for k, W_k in enumerate(W):
        h = f(received[-1] @ W[k - 1].T) if k else x
        received.append(torch.cat([h, h.new_ones(len(h), 1)], 1))
    return received, received[-1] @ W_k.T


def running_rfim(
    G: torch.Tensor,
    w: torch.Tensor,
    x: torch.Tensor,
    nu: Callable[[torch.Tensor], torch.Tensor],
    lam: float,
    eps: float,
) -> torch.Tensor:
    """Return the metric G_l (D + 1, D + 1) of one neuron after one more mini-batch.

    ``w`` (D + 1,) are its weights, ``x`` (n, D + 1) its inputs with a 1 last, and ``nu`` gives
    ν_f at w·x. Source: rfim Eq. 32.

    Parameters
    ----------
    G : Tensor, shape (D + 1, D + 1)
    w : Tensor, shape (D + 1,)
    x : Tensor, shape (n, D + 1)
    nu : callable
    lam, eps : float

    Examples
    --------
    >>> G, w, x = torch.zeros(2, 2), torch.zeros(2), torch.tensor([[2.0, 1.0]])
    >>> running_rfim(G, w, x, torch.ones_like, lam=0.5, eps=0.0)
    tensor([[2.0000, 1.0000],
            [1.0000, 0.5000]])
    """
    mean = sum(nu(w @ x_i) * torch.outer(x_i, x_i) for x_i in x) / len(x)
    I = torch.eye(len(w), dtype=w.dtype)
    return lam * G + (1 - lam) * (mean + eps * I)


def rngd(
    W: list[torch.Tensor],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    cost: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    f: Callable[[torch.Tensor], torch.Tensor],
    nu: Callable[[torch.Tensor], torch.Tensor],
    *,
    gamma: float,
    lam: float,
    eps: float,
    T: int,
) -> list[torch.Tensor]:
    """Return the weights of a network after one step of RNGD on each mini-batch.

    ``W`` holds one matrix (m, D + 1) a layer, biases last; ``cost`` is E of outputs and labels. The
    first and the last layer have the metric of a linear layer, ν = 1. The step size γ is missing in
    the paper. Source: rfim Section 5.2, Eqs. 31 to 33.

    Parameters
    ----------
    W : list of Tensor, shapes (m, D + 1)
    batches : iterable of pairs of Tensor
    cost, f, nu : callable
    gamma, lam, eps : float
    T : int
        Steps between inversions.

    Examples
    --------
    >>> W, x = [torch.zeros(1, 2)], torch.tensor([[-1.0], [1.0]])
    >>> def cost(y, t):
    ...     return (y - t).square().mean() / 2
    >>> numbers = {"gamma": 1.0, "lam": 0.0, "eps": 0.0, "T": 1}
    >>> (W,) = rngd(W, [(x, 3 * x)], cost, torch.tanh, torch.ones_like, **numbers)
    >>> torch.allclose(W, torch.tensor([[3.0, 0.0]]))
    True
    """
    E = lambda W, x, y: cost(forward(W, x, f)[1], y)
    G = [torch.eye(w.shape[1], dtype=w.dtype).repeat(len(w), 1, 1) for w in W]
    G_inverse = [G_k.clone() for G_k in G]
    for t, (x, y) in enumerate(batches, start=1):
        gradients = torch.func.grad(E)(W, x, y)
        for k, h in enumerate(forward(W, x, f)[0]):
            nu_k = nu if 0 < k < len(W) - 1 else torch.ones_like
            for neuron, w in enumerate(W[k]):
                G[k][neuron] = running_rfim(G[k][neuron], w, h, nu_k, lam, eps)
            if t % T == 0:
                G_inverse[k] = torch.linalg.inv(G[k])
        W = [
            w - gamma * torch.einsum("lij,lj->li", H, g)
            for w, H, g in zip(W, G_inverse, gradients, strict=True)
        ]
    return W


def energy_distance(p: torch.Tensor, q: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Return the squared energy distance E[2 d(X, Y) - d(X, X') - d(Y, Y')] of two distributions
    over k points.

    X and X' have the probabilities ``p`` (k,), Y and Y' have ``q``; ``distance`` is (k, k). Source:
    rfim Section 6.

    Parameters
    ----------
    p, q : Tensor, shape (k,)
    distance : Tensor, shape (k, k)

    Examples
    --------
    >>> apart = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> energy_distance(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), apart)
    tensor(2.)
    """
    return 2 * p @ distance @ q - p @ distance @ p - q @ distance @ q


def energy_information(
    probabilities: Callable[[torch.Tensor], torch.Tensor],
    theta: torch.Tensor,
    distance: torch.Tensor,
) -> torch.Tensor:
    """Return E with squared energy distance δᵀ E δ + O(δ³) between ``theta`` (P,) and θ + δ; (P,
    P).

    ``probabilities(theta)`` gives those of k points, ``distance`` is (k, k): E = -Σ_ab d(a, b)
    ∂p(a) ∂p(b)ᵀ. Source: rfim Section 6.

    Parameters
    ----------
    probabilities : callable
    theta : Tensor, shape (P,)
    distance : Tensor, shape (k, k)

    Examples
    --------
    >>> apart = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> energy_information(lambda p: torch.cat([p, 1 - p]), torch.tensor([0.5]), apart)
    tensor([[2.]])
    """
    p = torch.func.jacrev(probabilities)(theta)
    return -torch.einsum("ab,ai,bj->ij", distance, p, p)
