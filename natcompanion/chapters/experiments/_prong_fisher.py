"""Conditioning of the Fisher matrix of a small tanh network, in plain and in whitened coordinates
(Figure 2).
"""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from natcompanion import layers, metrics, optim
from natcompanion.chapters.experiments._prong_training import at_rest
from natcompanion.data import mnist
from natcompanion.likelihoods import Categorical
from natcompanion.whitening import whitening_matrix

LIKELIHOOD = Categorical()
DEFINITIONS = {
    "raw": "largest over smallest eigenvalue",
    "damped": "the same, 1e-6 of the largest added to both",
    "tail": "largest over the one that 90 % exceed",
    "median": "largest over median",
    "means": "arithmetic over geometric mean",
    "absolute": "largest over smallest, 1e-4 added to both",
    "spread": "share of directions that do not count: 1 - effective rank / dimension",
}
"""What "the condition number" of a nearly singular matrix may mean. Smaller is better for each of
them.
"""


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 4,000 digits of 10 x 10 pixels as rows, in float64, and their labels."""
    x, t = mnist(size=10, split="train+validation", seed=0, dtype=torch.float64)
    return x.flatten(1), t


def tanh_network(
    widths: tuple[int, ...], generator: torch.Generator, batch_norm: bool = False
) -> nn.Sequential:
    """Return a float64 classifier with tanh units; weights N(0, 1 / fan-in), biases 0."""
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(
                torch.randn(outputs, inputs, generator=generator, dtype=torch.float64)
                * inputs**-0.5
            )
            layer.bias.zero_()
        parts += [layer, nn.BatchNorm1d(outputs, dtype=torch.float64)] if batch_norm else [layer]
        parts.append(nn.Tanh())
    return nn.Sequential(*parts[: -2 if batch_norm else -1])


def linear_layers(model: nn.Sequential) -> list[tuple[int, nn.Linear]]:
    """Return the linear layers and their places."""
    return [(place, layer) for place, layer in enumerate(model) if isinstance(layer, nn.Linear)]


@torch.no_grad()
def layer_statistics(
    model: nn.Sequential, place: int, x: torch.Tensor, eps: float, centred: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return c and U for the input of the layer at ``place``.

    With ``centred=False`` U whitens the uncentred second moment, as the paper prints it; c is the
    mean all the same.
    """
    h = model[:place](x)
    c = h.mean(0)
    spread = h - c if centred else h
    return c, whitening_matrix(spread.mT @ spread / len(h), "pca", eps)


def layer_fisher(model: nn.Module, layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the Fisher matrix of one layer, ordered unit by unit: the weights of a unit, then its
    bias.
    """
    G = metrics.fisher(model, x, LIKELIHOOD, parameters=[layer.weight, layer.bias])
    rows, columns = layer.weight.shape
    weight = torch.arange(rows * columns).view(rows, columns)
    order = torch.cat([weight, rows * columns + torch.arange(rows)[:, None]], 1).flatten()
    return G[order][:, order]


def in_coordinates(G: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
    """Return the Fisher matrix of V, where each unit's weights and bias are [w b] = v A; ``G`` is
    ordered unit by unit.
    """
    units = len(G) // A.shape[1]
    blocks = G.view(units, A.shape[1], units, A.shape[1])
    return torch.einsum("ai,kilj,bj->kalb", A, blocks, A).reshape(units * len(A), units * len(A))


def whitened_map(c: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
    """Return A of :func:`in_coordinates` for W = V U, b = d - V U c at fixed d (Eq. 6)."""
    return torch.cat([U, -(U @ c)[:, None]], 1)


def plain_map(features: int) -> torch.Tensor:
    """Return A for the weights of an ordinary layer at fixed bias."""
    return torch.eye(features, features + 1, dtype=torch.float64)


def conditions(G: torch.Tensor) -> dict[str, float]:
    """Return the value of each of the :data:`DEFINITIONS`; infinite at the precision of float64
    becomes 1e16.
    """
    lam = torch.linalg.eigvalsh(G).clamp_min(0)
    top, n = float(lam[-1]), len(lam)
    floor = lam.clamp_min(1e-16 * top)
    return {
        "raw": top / float(floor[0]),
        "damped": (1 + 1e-6) * top / (float(lam[0]) + 1e-6 * top),
        "tail": top / float(floor[n // 10]),
        "median": top / float(floor.median()),
        "means": float(floor.mean() / floor.log().mean().exp()),
        "absolute": (top + 1e-4) / (float(lam[0]) + 1e-4),
        "spread": 1 - float(lam.sum() ** 2 / lam.square().sum()) / n,
    }


class Training:
    """Training of the small network by one method, with its condition numbers on demand.

    PRONG trains whitened layers, and its conditions are those of V in the coordinates of the last
    whitening.
    """

    def __init__(
        self,
        method: str,
        rate: float,
        x: torch.Tensor,
        t: torch.Tensor,
        generator: torch.Generator,
        *,
        widths: tuple[int, ...],
        period: int,
        batch: int,
        eps: float,
    ) -> None:
        self.x, self.t, self.generator, self.batch = x, t, generator, batch
        self.middle = len(widths) // 2 - 1
        self.model: Any
        self.optimizer: torch.optim.Optimizer
        self.model = tanh_network(widths, generator, method == "batchnorm")
        if method == "prong":
            self.model = layers.whiten_model(self.model)
            self.optimizer = optim.PRONG(self.model, rate, eps=eps, period=period, sample=lambda: x)
        elif method == "rmsprop":
            self.optimizer = torch.optim.RMSprop(self.model.parameters(), rate)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), rate)

    def train(self, updates: int) -> "Training":
        """Make some more updates."""
        for _ in range(updates):
            index = torch.randint(len(self.x), (self.batch,), generator=self.generator)
            self.optimizer.zero_grad()
            LIKELIHOOD.nll(self.model(self.x[index]), self.t[index]).mean().backward()
            self.optimizer.step()
        return self

    @torch.no_grad()
    def loss(self) -> float:
        """Return the training loss, 100 if the run has diverged; batch norm at rest."""
        resting = at_rest(self.model, self.x)
        return min(100.0, float(LIKELIHOOD.nll(resting(self.x), self.t).mean().nan_to_num(100.0)))

    def conditions(self, x: torch.Tensor) -> dict[str, float]:
        """Return the condition numbers of the weights of the middle layer."""
        model: Any
        model = layers.canonical_model(at_rest(self.model, self.x))
        layer = linear_layers(model)[self.middle][1]
        whitened = [m for m in self.model if isinstance(m, layers.WhitenedLinear)]
        A = plain_map(layer.in_features)
        if whitened:
            A = whitened_map(whitened[self.middle].c, whitened[self.middle].U)
        return conditions(in_coordinates(layer_fisher(model, layer, x), A))


@torch.no_grad()
def undo_batch_norm(model: nn.Sequential, x: torch.Tensor) -> None:
    """Set gain and shift of each batch normalization so that with the statistics of ``x`` it
    changes nothing: the network is then the one without.
    """
    h = x
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d):
            layer.weight.copy_((h.var(0, unbiased=False) + layer.eps).sqrt())
            layer.bias.copy_(h.mean(0))
        else:
            h = layer(h)


def full_fisher(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """Return the Fisher matrix of all weights and biases, ordered layer by layer and unit by
    unit: the weights of a unit, then its bias.
    """
    linear = [layer for _, layer in linear_layers(model)]
    pairs: list[list[Any]] = [[layer.weight, layer.bias] for layer in linear]
    G = metrics.fisher(model, x, LIKELIHOOD, parameters=[p for pair in pairs for p in pair])
    orders, start = [], 0
    for W, b in pairs:
        place = torch.arange(start, start + W.numel() + b.numel())
        weight, bias = place[: W.numel()].view(W.shape), place[W.numel() :]
        orders.append(torch.cat([weight, bias[:, None]], 1).flatten())
        start += len(place)
    order = torch.cat(orders)
    return G[order][:, order]


def in_all_coordinates(G: torch.Tensor, maps: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """Return the Fisher matrix of [V d] of every layer, whose units' weights and biases are [w b] =
    [v d] A; ``maps`` has the number of units and A for each layer, and ``G`` is that of
    :func:`full_fisher`.
    """
    for _ in range(2):  # the rows, then the columns, which the transpose makes rows
        parts = G.split([units * len(A) for units, A in maps])
        moved = [
            torch.einsum("ai,uip->uap", A, part.view(units, len(A), -1)).reshape(len(part), -1)
            for part, (units, A) in zip(parts, maps, strict=True)
        ]
        G = torch.cat(moved).mT
    return G


class EqualStart(Training):
    """The same training, where batch normalization starts as the network without, and the
    conditions are also of the Fisher matrix of all weights and biases.

    PRONG starts with U = I and whitens at its first update. So all methods start from the same
    function with the same Fisher matrix.
    """

    def __init__(self, method: str, rate: float, x: torch.Tensor, *args: Any, **options: Any):
        super().__init__(method, rate, x, *args, **options)
        undo_batch_norm(self.model, x)

    def whiten(self) -> "EqualStart":
        """Whiten now, as PRONG does at its first update; no step is made."""
        self.optimizer.refresh()  # type: ignore[attr-defined]  # asked of PRONG only
        return self

    def full_conditions(self, x: torch.Tensor) -> dict[str, float]:
        """Return the condition numbers of the Fisher matrix of all weights and biases."""
        model: Any
        model = layers.canonical_model(at_rest(self.model, self.x))
        maps = [
            (layer.out_features, torch.eye(layer.in_features + 1, dtype=torch.float64))
            for _, layer in linear_layers(model)
        ]
        whitened = [m for m in self.model if isinstance(m, layers.WhitenedLinear)]
        for (_, A), layer in zip(maps, whitened, strict=False):
            A[:-1] = whitened_map(layer.c, layer.U)
        return conditions(in_all_coordinates(full_fisher(model, x), maps))


def flat_gradient(
    model: nn.Module, layer: nn.Linear, x: torch.Tensor, t: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of one layer as (units, inputs + 1): weights and bias of each unit."""
    loss = LIKELIHOOD.nll(model(x), t).mean()
    W, b = torch.autograd.grad(loss, [layer.weight, layer.bias])
    return torch.cat([W, b[:, None]], 1)


@torch.no_grad()
def second_moment(model: nn.Sequential, place: int, x: torch.Tensor) -> torch.Tensor:
    """Return the mean of [h; 1] [h; 1]^T for the input of the layer at ``place``."""
    h = model[:place](x)
    h = torch.cat([h, torch.ones_like(h[:, :1])], 1)
    return h.mT @ h / len(h)


def alignment(
    model: nn.Sequential, x: torch.Tensor, t: torch.Tensor, moments: list[torch.Tensor], eps: float
) -> dict[str, float]:
    """Return the cosine of the natural gradient of each layer with PRONG's step and with the
    gradient, averaged.

    PRONG's step uses the given second moments of the layers' inputs. The exact block of the Fisher
    matrix is damped as PRONG damps: epsilon times the mean eigenvalue of the gradients' factor.
    """
    found: dict[str, list[float]] = {"prong": [], "gradient": []}
    for (place, layer), moment in zip(linear_layers(model), moments, strict=True):
        g = flat_gradient(model, layer, x, t)
        damping = torch.ones(len(moment), dtype=g.dtype)
        damping[-1] = 0
        F = layer_fisher(model, layer, x)
        present = second_moment(model, place, x)
        scale = float(F.trace() / present.trace()) / len(g)
        natural = torch.linalg.solve(
            F + scale * eps * torch.eye(len(F), dtype=F.dtype), g.flatten()
        )
        prong = torch.linalg.solve(moment + eps * torch.diag(damping), g.mT).mT
        for name, step in (("prong", prong), ("gradient", g)):
            found[name].append(float(torch.cosine_similarity(step.flatten(), natural, dim=0)))
    return {name: sum(values) / len(values) for name, values in found.items()}
