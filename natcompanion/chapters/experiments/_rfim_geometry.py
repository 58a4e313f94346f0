"""Networks and their metrics for Section 4 of the rfim paper: balance and conditioning."""

from itertools import pairwise

import torch
from torch import nn

from natcompanion.relative import augment, linear_rfim

ACTIVATIONS = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "relu": nn.ReLU}


def network(
    sizes: tuple[int, ...], activation: str, generator: torch.Generator, scale: float = 1.0
) -> nn.Sequential:
    """Return a network in float64 whose weights are normal with variance scale^2 / inputs, biases
    scale^2 / 16.
    """
    modules: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layer = nn.utils.skip_init(nn.Linear, fan_in, fan_out, dtype=torch.float64)
        for tensor, spread in ((layer.weight, fan_in**-0.5), (layer.bias, 0.25)):
            draw = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.data.copy_(scale * spread * draw)
        modules += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*modules[:-1])


def matrix(layer: nn.Linear) -> torch.Tensor:
    """Return weights and, as the last column, biases: (m, D + 1)."""
    return torch.cat([layer.weight, layer.bias[:, None]], 1).detach()


def layer_inputs(model: nn.Sequential, x: torch.Tensor) -> list[torch.Tensor]:
    """Return what enters each linear layer."""
    inputs = []
    for module in model:
        if isinstance(module, nn.Linear):
            inputs.append(x)
        x = module(x).detach()
    return inputs


def balanced(delta: torch.Tensor, metric: torch.Tensor) -> torch.Tensor:
    """Return steps in coordinates in which the largest eigenvalue of the metric is 1 as steps of
    the parameters themselves.
    """
    return delta / torch.linalg.eigvalsh(metric)[-1].sqrt()


def intrinsic(metric: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return the length of steps ``delta`` (k, P) in a metric (rfim Eq. 10), (k,)."""
    return ((delta @ metric) * delta).sum(-1).sqrt()


def tanh_responses(W: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return tanh(W x~) for weights (..., m, D + 1), (..., n, m)."""
    return torch.tanh(augment(x) @ W.mT)


def conditioning(x: torch.Tensor, eps: float) -> dict[str, float]:
    """Return log10 condition numbers of the linear layer's RFIM on ``x`` (n, d), and its largest
    over its smallest diagonal entry.

    The inputs are raw, centred, normalized to variance 1, and whitened; features that are constant,
    and directions of variance below 1e-6 of the largest, are left out. The metric is damped by
    ``eps`` times its mean eigenvalue.
    """
    x = x[:, x.std(0) > 1e-6]
    centred = x - x.mean(0)
    variance, vectors = torch.linalg.eigh(centred.mT @ centred / len(x))
    kept = variance > 1e-6 * variance[-1]
    inputs = {
        "raw": x,
        "centred": centred,
        "normalized": centred / centred.square().mean(0).sqrt(),
        "whitened": centred @ vectors[:, kept] / variance[kept].sqrt(),
    }
    values = {}
    for name, z in inputs.items():
        metric = linear_rfim(z)
        lam = torch.linalg.eigvalsh(metric).clamp_min(0)
        values[name] = float(((lam[-1] + eps * lam.mean()) / (lam[0] + eps * lam.mean())).log10())
        values[f"diagonal_{name}"] = float(metric.diagonal().max() / metric.diagonal().min())
    return values
