"""Feed-forward and convolutional networks that learn with the covariance penalty."""

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from natcompanion.boltzmann import hidden_covariance_penalty

Data = tuple[torch.Tensor, torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LAYERS = ("1", "3")
"""The names of the two hidden layers' outputs in both networks."""

PAIRS = {
    "plain": (),
    "hidden": tuple((layer, layer) for layer in LAYERS),
    "visible": tuple(zip(("input", *LAYERS), LAYERS, strict=False)),
}
"""Covariances that are penalized: none; of each hidden layer with itself, cov(h, h); of each with
the layer before it, cov(v, h).
"""


def network(problem: str, size: int, generator: torch.Generator) -> nn.Sequential:
    """Return a network of two hidden layers of tanh units, on flat images, or of two
    convolutions, each of which halves the image.

    Weights are normal, with variance 1 over the number of inputs of a unit; biases are zero.
    """
    if problem == "layers":
        hidden = [nn.Linear(size**2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
        model = nn.Sequential(*hidden, nn.Linear(64, 10))
    else:
        maps = [nn.Conv2d(1, 4, 4, 2, 1), nn.Tanh(), nn.Conv2d(4, 8, 4, 2, 1), nn.Tanh()]
        model = nn.Sequential(*maps, nn.Flatten(), nn.Linear(8 * (size // 4) ** 2, 10))
    for p in model.parameters():
        fan = p[0].numel()
        noise = torch.randn(p.shape, generator=generator)
        p.data = noise / fan**0.5 if p.ndim > 1 else torch.zeros_like(p)
    return model


def objective(model: nn.Sequential, method: str, gamma: float) -> Loss:
    """Return the convex combination of cross-entropy and penalty (Sec. 4.1)."""
    pairs = PAIRS[method]

    def loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        if not pairs:
            return cross_entropy(model(x), t)
        # By position, since a convolution and what it takes have maps of different sizes.
        output, penalty = hidden_covariance_penalty(model, x, pairs, units="positions")
        return (1 - gamma) * cross_entropy(output, t) + gamma * penalty

    return loss


@torch.no_grad()
def correlation(model: nn.Sequential, x: torch.Tensor) -> float:
    """Return the mean squared correlation of two hidden units of a layer, over both layers; of
    units that vary, and NaN if there are no two.
    """
    found = []
    for name, layer in model.named_children():
        x = layer(x)
        if name in LAYERS:
            h = x.flatten(1)
            varying = h[:, h.std(0) > 0]
            if varying.shape[1] > 1:
                r = torch.corrcoef(varying.mT)
                found.append(float((r.square().sum() - len(r)) / (r.numel() - len(r))))
    return sum(found) / len(found) if found else math.nan


@torch.no_grad()
def seen(model: nn.Sequential, train: Data, validation: Data, test: Data) -> dict[str, float]:
    """Return the losses on training and validation images, and the test error in per cent."""
    losses = [float(cross_entropy(model(x), t)) for x, t in (train, validation)]
    wrong = model(test[0]).argmax(1) != test[1]
    return {"train": losses[0], "validation": losses[1], "test": 100 * float(wrong.float().mean())}
