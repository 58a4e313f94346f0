"""Sections 3.2 and 3.3: the metric of one layer, and what Eq. 26 prints in the place of a slope."""

from typing import Any

import torch
from torch import Tensor

from natcompanion import relative
from natcompanion.chapters.numbers.rfim.neuron import EXACT

KINDS = {"tanh": "three tanh neurons", "softmax": "softmax, three classes"}
BENDS: dict[str, tuple[Any, dict[str, float]]] = {
    "tanh": ("tanh", {}),
    "sigmoid": ("sigmoid", {}),
    "hard relu": ("relu", {}),
    "relu, ω = 0.3": ("relu", {"omega": 0.3}),
    "elu": ("elu", {}),
}
"""Activations by the names that readers see, with their options."""


def layer_metric(kind: str, samples: int) -> Tensor:
    """Return the RFIM (9, 9) of a layer of three units with two inputs and a bias, its mean over
    some samples.
    """
    generator = torch.Generator().manual_seed(3)
    W = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    x = torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    if kind == "softmax":
        return relative.softmax_rfim(W, x)
    return torch.block_diag(*relative.layer_rfim(W, x, "tanh"))


def metric_eigenvalues(G: Tensor) -> Tensor:
    """Return the eigenvalues in units of the largest, the largest first; what is rounding is 0."""
    values = torch.linalg.eigvalsh(G).flip(0)
    return torch.where(values > EXACT * values[0], values / values[0], 0.0)


def slope_and_nu(activation: str, sigma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs of a neuron, the slope of its activation there, and nu."""
    name, options = BENDS[activation]
    a = torch.linspace(-4, 4, 401, dtype=torch.float64)
    return a, relative.slope(name, a, **options), relative.nu(name, a, sigma=sigma, **options)


def slope_error(activation: str, sigma: float) -> float:
    """Return the largest distance between the slope and nu, 0 where it is rounding."""
    _, slope, nu = slope_and_nu(activation, sigma)
    largest = float((slope - nu).abs().max())
    return largest if largest > EXACT else 0.0
