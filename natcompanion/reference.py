"""The naive twins: each fast function of the library written out in a few lines anyone can check by
eye.
"""

import itertools
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from natcompanion.metrics.model_function import find_slots, substituted

# ---- --- Fisher matrices and their relatives (tests compare natcompanion.metrics with these)


def labels(likelihood: Likelihood, r: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return every label of one output ``r`` (o,) as ``(label, probability)``; for a Gaussian, a
    quadrature rule.

    The rule has two nodes per output, ``r - beta`` and ``r + beta``: exact for the products of
    scores we integrate.
    """
    binary = itertools.product([0.0, 1.0], repeat=len(r))
    match likelihood:
        case Categorical():
            return [(torch.tensor(k), p) for k, p in enumerate(torch.softmax(r, 0))]
        case Bernoulli():
            y = torch.sigmoid(r)
            return [(t, (t * y + (1 - t) * (1 - y)).prod()) for t in map(r.new_tensor, binary)]
        case Gaussian(beta):
            return [
                (r + beta * (2 * r.new_tensor(t) - 1), r.new_tensor(0.5 ** len(r))) for t in binary
            ]
    raise ValueError(f"likelihood: expected Gaussian, Bernoulli or Categorical, got {likelihood!r}")


def gradient(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``loss`` by the trainable parameters as one vector (P,)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    pieces = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([piece.reshape(-1) for piece in pieces])


def gradients(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return the gradient of ``-log p(t | x)`` of each example, one after the other; (n, P)."""
    return torch.stack(
        [
            gradient(model, likelihood.nll(model(x[i : i + 1]), t[i : i + 1]).sum())
            for i in range(len(x))
        ]
    )


def fisher(model: nn.Module, x: torch.Tensor, likelihood: Likelihood) -> torch.Tensor:
    """Return the Fisher matrix as a sum over all examples and all labels of p(label) g gᵀ; (P,
    P).
    """
    total = torch.zeros(())
    for x_i in x.split(1):
        r = model(x_i)
        for label, probability in labels(likelihood, r[0].detach()):
            g = gradient(model, likelihood.nll(r, label.unsqueeze(0)).sum())
            total = total + probability * torch.outer(g, g)
    return total / len(x)


def empirical_fisher(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return U: the mean of g gᵀ over the examples; (P, P)."""
    g = gradients(model, x, t, likelihood)
    return sum(torch.outer(g_i, g_i) for g_i in g) / len(g)


def gradient_covariance(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return C: the mean of (g - mean g)(g - mean g)ᵀ over the examples; (P, P)."""
    g = gradients(model, x, t, likelihood)
    return sum(torch.outer(g_i - g.mean(0), g_i - g.mean(0)) for g_i in g) / len(g)


def outputs(model: nn.Module, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return ``model(x)`` with the trainable parameters replaced by the vector ``theta`` (P,)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    pieces = theta.split([p.numel() for p in parameters])
    new = {id(p): piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)}
    with substituted(find_slots(dict(model.named_modules())), new):
        return model(x)


def parameter_vector(model: nn.Module) -> torch.Tensor:
    """Return the trainable parameters as one vector (P,)."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def kl(
    model: nn.Module, x: torch.Tensor, likelihood: Likelihood, delta: torch.Tensor
) -> torch.Tensor:
    """Return the mean over ``x`` of KL(p_θ || p_(θ+δ)), summed over all labels (for a Gaussian, by
    quadrature).

    The oracle of every Fisher matrix: it is ½ δᵀ F δ up to the third order in ``delta`` (P,).
    """
    theta = parameter_vector(model)
    total = torch.zeros((), dtype=theta.dtype)
    for x_i in x.split(1):
        r, s = outputs(model, theta, x_i), outputs(model, theta + delta, x_i)
        for label, probability in labels(likelihood, r[0].detach()):
            t = label.unsqueeze(0)
            total = total + probability * (likelihood.nll(s, t) - likelihood.nll(r, t)).sum()
    return total / len(x)


def kl_hessian(model: nn.Module, x: torch.Tensor, likelihood: Likelihood) -> torch.Tensor:
    """Return the Hessian of ``kl`` at δ = 0 by differentiating twice; (P, P). Source: revisiting
    Eq. 3.
    """
    zero = torch.zeros_like(parameter_vector(model))
    return torch.autograd.functional.hessian(lambda delta: kl(model, x, likelihood, delta), zero)


def loss_hessian(
    model: nn.Module, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return the Hessian of the mean negative log-likelihood by differentiating twice; (P, P)."""
    return torch.autograd.functional.hessian(
        lambda theta: likelihood.nll(outputs(model, theta, x), t).mean(), parameter_vector(model)
    )


def jacobian(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the Jacobian of each output by the parameters, one entry after the other; (n, o,
    P).
    """
    return torch.stack(
        [torch.stack([gradient(model, r_k) for r_k in model(x_i)[0]]) for x_i in x.split(1)]
    )


# ---- --- Boltzmann machines (tests compare natcompanion.boltzmann with these)


def rbm_joint(
    W: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return every pair of states ``v`` (n, D), ``h`` (n, H), its probability (n,), and log Z; n =
    2^(D + H).
    """
    D, H = W.shape
    pairs = W.new_tensor(list(itertools.product([0.0, 1.0], repeat=D + H)))
    v, h = pairs[:, :D], pairs[:, D:]
    minus_energy = torch.stack([a @ x + b @ y + x @ W @ y for x, y in zip(v, h, strict=True)])
    log_Z = torch.logsumexp(minus_energy, 0)
    return v, h, torch.exp(minus_energy - log_Z), log_Z


def rbm_statistics(v: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Return g = (v, h, vec(v hᵀ)) of each row, (n, P)."""
    return torch.stack(
        [torch.cat([x, y, torch.outer(x, y).reshape(-1)]) for x, y in zip(v, h, strict=True)]
    )


def rbm_fisher(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the covariance of g under the model, one pair of states after the other; (P, P)."""
    v, h, p, _ = rbm_joint(W, a, b)
    g = rbm_statistics(v, h)
    mean = p @ g
    return sum(p_k * torch.outer(g_k - mean, g_k - mean) for p_k, g_k in zip(p, g, strict=True))


def rbm_covariance(W: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return cov(v, h) under the model, (D, H); differentiable."""
    v, h, p, _ = rbm_joint(W, a, b)
    return (p[:, None] * (v - p @ v)).mT @ (h - p @ h)


def rbm_log_likelihood(
    W: torch.Tensor, a: torch.Tensor, b: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """Return the mean of log p(v) over the rows of ``x`` (n, D), which must be binary;
    differentiable.
    """
    v, _, p, _ = rbm_joint(W, a, b)
    return torch.stack([p[(v == row).all(1)].sum().log() for row in x]).mean()


# ---- --- The enumerable Boltzmann machine (tests compare natcompanion.models with these)


def all_states(n: int, values: tuple[float, float]) -> torch.Tensor:
    """Return all 2**n states of n units, the first unit changing slowest; (2**n, n)."""
    return torch.tensor(list(itertools.product(values, repeat=n)), dtype=torch.float64)


def pair_energy(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return E of one state: minus couplings (pairs i < j in order) and biases, one term after the
    other.
    """
    pairs = list(itertools.combinations(range(len(x)), 2))
    energy = -sum(theta[len(pairs) + i] * x[i] for i in range(len(x)))
    return energy - sum(theta[k] * x[i] * x[j] for k, (i, j) in enumerate(pairs))


def boltzmann_probabilities(theta: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return exp(-E) / Z of every state, one after the other."""
    weights = torch.stack([torch.exp(-pair_energy(theta, x)) for x in states])
    return weights / weights.sum()


def gibbs_matrix(theta: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return T with T[a, b] the probability that one Gibbs sweep, units in order, goes from state a
    to state b.
    """
    q, sweep = boltzmann_probabilities(theta, states), torch.eye(len(states), dtype=states.dtype)
    for unit in range(states.shape[1]):
        rest = [i for i in range(states.shape[1]) if i != unit]
        same = (states[:, None, rest] == states[None, :, rest]).all(-1).to(states.dtype)
        sweep = sweep @ (same * q / (same * q).sum(1, keepdim=True))
    return sweep


def minimum_probability_flow(
    theta: torch.Tensor, x: torch.Tensor, values: tuple[float, float]
) -> torch.Tensor:
    """Return the mean over the data ``x`` (m, n) of the sum over single flips of exp((E(x) -
    E(flipped)) / 2).
    """
    total = torch.zeros((), dtype=x.dtype)
    for state in x:
        for unit in range(len(state)):
            flipped = state.clone()
            flipped[unit] = sum(values) - state[unit]
            total = total + torch.exp((pair_energy(theta, state) - pair_energy(theta, flipped)) / 2)
    return total / len(x)


# ---- --- Relative Fisher metrics (tests compare natcompanion.relative with these)


def rfim(
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
    """Return every response of a layer (k, units) and the volume of a cell, for :func:`rfim`.

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
