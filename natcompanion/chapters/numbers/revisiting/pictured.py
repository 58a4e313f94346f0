"""What the pictures of Sections 2, 4.2 and 7 show: small enough to compute while they are
drawn.
"""

import torch

from natcompanion import metrics, optim
from natcompanion.chapters.numbers.revisiting.examples import (
    Product,
    moved,
    network_of,
    random_batch,
    random_directions,
    scaled,
)
from natcompanion.likelihoods import Categorical, Gaussian

# ---- Section 2


def falls(c: float = 1e-6) -> dict[str, list[float]]:
    """Return how much the loss falls along the natural gradient, along the plain one and along 200
    random directions, in units of the first; all scaled to the divergence ``c``.
    """
    model, batch = network_of(), random_batch(40, 3)
    G = metrics.fisher(model, batch[0], Categorical())
    g = metrics.per_example_gradients(model, *batch, Categorical()).mean(0)
    natural = torch.linalg.solve(G + 1e-9 * torch.eye(len(g)), g)
    ways = {"natural": -natural[None], "gradient": -g[None], "random": random_directions(len(g))}
    fell = {
        name: [moved(model, *batch, scaled(d, G, c))[1] for d in directions]
        for name, directions in ways.items()
    }
    return {name: [one / fell["natural"][0] for one in each] for name, each in fell.items()}


# ---- Section 4.2


def saddle_paths(steps: int = 40) -> dict[str, torch.Tensor]:
    """Return the paths (steps + 1, 2) of Newton's method and of the natural gradient that fit the
    product of two numbers to 1, from (0.1, 0.1).
    """
    ones, paths = torch.ones(4, 1, dtype=torch.float64), {}
    for name, make in (("newton", optim.Newton), ("natural", optim.NaturalGradient)):
        product = Product([0.1, 0.1])
        optimizer = make(product, Gaussian(), lr=0.5, damping=1e-3)
        path = [product.w.detach().clone()]
        for _ in range(steps):
            optimizer.step(ones, ones)
            path.append(product.w.detach().clone())
        paths[name] = torch.stack(path)
    return paths


def saddle_loss(axis: torch.Tensor) -> torch.Tensor:
    """Return half the squared distance of the product from 1 on a square grid."""
    return (axis[:, None] * axis - 1) ** 2 / 2


# ---- Section 7


def four_matrices() -> dict[str, torch.Tensor]:
    """Return the Fisher matrix of a softmax network on six inputs with random labels, and three
    matrices beside it; (31, 31) each.
    """
    model, likelihood = network_of(), Categorical()
    x, t = (part[:6] for part in random_batch(40, 3))
    return {
        "Fisher": metrics.fisher(model, x, likelihood),
        "Gauss-Newton": metrics.gauss_newton(model, x, t, likelihood),
        "Hessian": optim.loss_hessian(model, x, t, likelihood),
        "U": metrics.empirical_fisher(model, x, t, likelihood),
    }
