"""The judges of the exercises on relative Fisher metrics: each tests a property, by trial."""

from collections.abc import Callable

import torch
from torch import Tensor

from natcompanion import relative
from natcompanion.relative.activations import Activation

INPUTS, SAMPLES = 6, 40
Rule = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def _random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def names(weights: float, metric: float) -> str:
    """Say what is off with the factor of the weights that makes a sigmoid neuron of a tanh neuron,
    and with the ratio of their metrics.
    """
    x = _random(SAMPLES, INPUTS)
    for seed in (1, 2, 3):
        w = _random(INPUTS + 1, seed=seed)
        a = relative.augment(x) @ w
        if not torch.allclose((1 + a.tanh()) / 2, (weights * a).sigmoid()):
            return "the two neurons do not answer with the same probabilities"
        tanh = relative.neuron_rfim(w, x, "tanh")
        sigmoid = relative.neuron_rfim(weights * w, x, "sigmoid")
        if not torch.allclose(tanh, metric * sigmoid):
            return "the metrics do not have this ratio"
    return ""


def samples(tanh: int, active: int) -> str:
    """Say what is off with the number of samples that gives a tanh neuron of six inputs a metric of
    full rank, and with how many of them must be active for a relu neuron.
    """
    w, x = _random(INPUTS + 1, seed=1), _random(10 * SAMPLES, INPUTS)
    on = x[relative.augment(x) @ w > 0]
    off = x[relative.augment(x) @ w < 0]
    neurons: list[tuple[Activation, int, Tensor]] = [("tanh", tanh, x), ("relu", active, on)]
    for name, number, seen in neurons:
        if not 1 <= int(number) <= len(seen):
            return f"{name} is tried with 1 to {len(seen)} samples"
        rest = off if name == "relu" else x[:0]
        ranks = [
            relative.rank(relative.neuron_rfim(w, torch.cat([seen[:n], rest]), name))
            for n in (int(number) - 1, int(number))
            if n + len(rest)
        ]
        if ranks[-1] < INPUTS + 1:
            return f"with {number} samples the metric of {name} has no full rank"
        if ranks[0] == INPUTS + 1:
            return f"fewer than {number} samples are enough for {name}"
    return ""


def memory(slow: int, fast: int) -> str:
    """Say what is off with the first steps after which less than 0.001 of the identity is left, for
    λ = 0.995 and 0.95.
    """
    for decay, steps in ((0.995, slow), (0.95, fast)):
        left = decay ** (int(steps) - 1)
        if not left * decay < 1e-3:
            return f"with λ = {decay} there is still {left * decay:.3g} after {steps} steps"
        if left < 1e-3:
            return f"with λ = {decay} fewer than {steps} steps are enough"
    return ""


def sigmoid_neuron(scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return metric, inputs and gradient of a sigmoid neuron with weights of a scale."""
    x, w = _random(SAMPLES, INPUTS), scale * _random(INPUTS + 1, seed=1)
    Z, t = relative.augment(x), (_random(SAMPLES, seed=2) > 0).double()
    gradient = ((Z @ w).sigmoid() - t) @ Z / len(Z)
    return relative.neuron_rfim(w, x, "sigmoid"), Z, gradient


def coordinates_gap(rule: Rule, B: Tensor) -> float:
    """Return how far a rule's steps for inputs ``Z`` and ``Z @ B.T`` end apart, as a multiple of
    the first.
    """
    g, Z, gradient = sigmoid_neuron()
    one = rule(g, Z, gradient, 0.01)
    other = B.T @ rule(B @ g @ B.T, Z @ B.T, B @ gradient, 0.01)
    return float((one - other).norm() / one.norm())


def damping(rule: Rule) -> str:
    """Say what is off with a damped natural step ``rule(g, Z, gradient, eps)``: it must be the same
    step in all affine coordinates, nearly undamped for a small eps, and bounded where the neuron is
    saturated.
    """
    g, Z, gradient = sigmoid_neuron()
    if not rule(g, Z, gradient, 0.01) @ gradient > 0:
        return "its step does not go down"
    natural = torch.linalg.solve(g, gradient)
    if not (rule(g, Z, gradient, 1e-8) - natural).norm() < 1e-3 * natural.norm():
        return "with ε = 1e-8 it is not the natural gradient"
    if not rule(*sigmoid_neuron(50.0), 0.01).norm() < 1e4:
        return "where the neuron is saturated its step is beyond bounds"
    for seed in (3, 4, 5):
        gap = coordinates_gap(rule, _random(INPUTS + 1, INPUTS + 1, seed=seed))
        if not gap < 1e-6:
            return f"in other coordinates it ends {gap:.3g} steps away"
    return ""
