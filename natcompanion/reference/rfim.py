"""Relative Fisher metrics by summing over the responses of a subsystem."""

import math
from collections.abc import Callable
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
    """

    def log_prob(flat: torch.Tensor) -> torch.Tensor:
        return response_log_prob(flat.view_as(theta), responses)

    flat = theta.detach().reshape(-1)
    weights = log_prob(flat).exp() * volume
    if form == "scores":
        g = torch.func.jacrev(log_prob)(flat)
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
    """
    h = activation(name, W @ torch.cat([x, x.new_ones(1)]), **shape)
    return layer_log_prob(torch.cat([C, C.new_zeros(len(C), 1)], 1), h, y, name, sigma, **shape)


def softmax_log_prob(W: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return log p(y | W, x) of each class number ``y`` (k,). Source: rfim Eq. 24 and 75."""
    scores = torch.exp(W @ torch.cat([x, x.new_ones(1)]))
    return torch.log(scores / scores.sum())[y]


def stochastic_log_prob(
    W: torch.Tensor, V: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Return log p(h, y | x) of every state h and response ``y`` (k, o) of two random sigmoid
    layers; (2^m, k).

    ``W`` (m, D + 1) and ``V`` (o, m + 1). Its ``logsumexp(0)`` is log p(y | x). Source: rfim Eq. 4.
    """
    states = all_states(len(W), (0.0, 1.0))
    first = layer_log_prob(W, x, states, "sigmoid")
    second = torch.stack([layer_log_prob(V, h, y, "sigmoid") for h in states])
    return first[:, None] + second


def energy_distance(p: torch.Tensor, q: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Return the squared energy distance E[2 d(X, Y) - d(X, X') - d(Y, Y')] of two distributions
    over k points.

    X and X' have the probabilities ``p`` (k,), Y and Y' have ``q``; ``distance`` is (k, k). Source:
    rfim Section 6.
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
    """
    p = torch.func.jacrev(probabilities)(theta)
    return -torch.einsum("ab,ai,bj->ij", distance, p, p)
