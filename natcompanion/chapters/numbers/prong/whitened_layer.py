r"""A network of 2-2-1 units that learns by Algorithm 1, and what its second layer is fed: what the
chapter's figure computes while it is played with.

The parameters are packed in two vectors: Omega = (V_1, d_1, V_2, d_2), which learns, and
Phi = (U_0, c_0, U_1, c_1), which whitens. With Phi = (I, 0, I, 0) for good, an update is one of
plain gradient descent.
"""

from functools import lru_cache

import torch

from natcompanion.layers import whitening_pair
from natcompanion.likelihoods import Bernoulli
from natcompanion.reference import prong

EXAMPLES, DRAGGED = 40, 26
"""How many points there are, and which of them the reader may drag."""
CENTRE, SURE = (0.8, 0.4), 0.95
"""Mean of the points; probability of the label that a point has."""
W1, W2 = ((0.5, 0.4), (-0.1, -0.8)), ((-0.3, 0.1),)
"""Weights before the first update; the biases are 0."""
METHODS = {"plain": "plain gradient", "prong": "PRONG"}
SHAPES = {"V1": (2, 2), "d1": (2,), "V2": (1, 2), "d2": (1,)}
COEFFICIENTS = {"U0": (2, 2), "c0": (2,), "U1": (2, 2), "c1": (2,)}


def _sources() -> torch.Tensor:
    """Return points with mean 0 and covariance I; (40, 2)."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(EXAMPLES, 2, generator=generator, dtype=torch.float64)
    points = points - points.mean(0)
    factor = torch.linalg.cholesky(points.mT @ points / len(points))
    return torch.linalg.solve_triangular(factor, points.mT, upper=False).mT


SOURCES = _sources()


def data(correlation: float, across: float, up: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points and their labels.

    Parameters
    ----------
    correlation : float
        Of the two inputs, in [0, 1).
    across, up : float
        By how much one point is dragged away.

    Returns
    -------
    x : Tensor, shape (40, 2)
        With variances 1, if no point is dragged.
    y : Tensor, shape (40, 1)
        The probability of the label 1: high where both sources are positive, else low.
    """
    rho = torch.as_tensor(correlation, dtype=torch.float64)
    along, beside = ((1 + rho) / 2).sqrt(), ((1 - rho) / 2).sqrt()
    wide, narrow = along * SOURCES[:, :1], beside * SOURCES[:, 1:]
    centre = torch.tensor(CENTRE, dtype=torch.float64)
    moved = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in (across, up)])
    at = torch.zeros(EXAMPLES, 1, dtype=torch.float64)
    at[DRAGGED] = 1
    sure = (SOURCES > 0).all(1, keepdim=True).double()
    x = torch.cat([wide + narrow, wide - narrow], 1) + centre + at * moved
    return x, (1 - SURE) + (2 * SURE - 1) * sure


def start() -> tuple[torch.Tensor, torch.Tensor]:
    """Return Omega (9,) and Phi (12,) before the first update, lines 1 to 3 of Algorithm 1."""
    weights = [torch.tensor(W, dtype=torch.float64) for W in (W1, W2)]
    return packed(prong.whitened_network(weights, [W.new_zeros(len(W)) for W in weights]))


def unpacked(omega: torch.Tensor, phi: torch.Tensor) -> prong.WhitenedNetwork:
    """Return the network of these vectors."""
    V1, d1, V2, d2 = _parts(omega, SHAPES)
    U0, c0, U1, c1 = _parts(phi, COEFFICIENTS)
    return prong.WhitenedNetwork({1: V1, 2: V2}, {1: d1, 2: d2}, {0: U0, 1: U1}, {0: c0, 1: c1})


def _parts(vector: torch.Tensor, shapes: dict[str, tuple[int, ...]]) -> list[torch.Tensor]:
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    parts = vector.split(sizes)
    return [part.reshape(shape) for part, shape in zip(parts, shapes.values(), strict=True)]


def packed(net: prong.WhitenedNetwork) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Omega and Phi of a network."""
    omega = [tensor.flatten() for i in net.V for tensor in (net.V[i], net.d[i])]
    phi = [tensor.flatten() for i in net.U for tensor in (net.U[i], net.c[i])]
    return torch.cat(omega), torch.cat(phi)


def symmetric(Sigma: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the symmetric whitening matrix: the paper's, turned back to the units' own axes."""
    return whitening_pair(Sigma, eps, "zca")[0]


def whiten(
    omega: torch.Tensor, phi: torch.Tensor, x: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Omega and Phi after lines 6 to 11 of Algorithm 1; the network computes what it did."""
    net = unpacked(omega, phi)
    prong.reparametrize(net, x, eps, whiten=symmetric)
    return packed(net)


def loss(r: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy, in nats."""
    return Bernoulli().nll(r, y).mean()


def update(
    omega: torch.Tensor, phi: torch.Tensor, x: torch.Tensor, y: torch.Tensor, rate: float
) -> torch.Tensor:
    """Return Omega after a gradient step, line 13 of Algorithm 1."""
    leaf = omega.detach().requires_grad_()
    outputs = prong.activations(unpacked(leaf, phi), x)[2]
    (gradient,) = torch.autograd.grad(loss(outputs, y), leaf)
    return omega - rate * gradient


def look(
    omega: torch.Tensor, phi: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    r"""Return what the network computes, and what its second layer is fed.

    Parameters
    ----------
    omega, phi : Tensor, shapes (9,) and (12,)
    x, y : Tensor, shapes (40, 2) and (40, 1)

    Returns
    -------
    loss : Tensor, shape ()
        In nats.
    condition, exact : Tensor, shape ()
        Condition numbers of the Fisher matrix of V_2 and d_2: by Eq. 5, where it is proportional to
        :math:`\mathbb E[\tilde z\tilde z^T]` with :math:`\tilde z = [z; 1]`; and itself,
        :math:`\mathbb E[p(1-p)\,\tilde z\tilde z^T]`.
    z : Tensor, shape (40, 2)
        :math:`U_1(h_1 - c_1)`: what V_2 sees.
    mean, root : Tensor, shapes (2,) and (2, 2)
        Of z: the unit circle mapped by ``root`` and moved to ``mean`` is one standard deviation.
    outputs : Tensor, shape (40,)
    """
    net = unpacked(omega, phi)
    h = prong.activations(net, x)
    z = (h[1] - net.c[1]) @ net.U[1].mT
    one = torch.cat([z, torch.ones_like(z[:, :1])], 1)
    weighed = Bernoulli().fisher_product(h[2].expand_as(one), one)
    spread, Q = torch.linalg.eigh(torch.cov(z.mT, correction=0))
    root = (Q * spread.clamp_min(0).sqrt()) @ Q.mT
    return (
        loss(h[2], y),
        condition(one.mT @ one),
        condition(one.mT @ weighed),
        z,
        z.mean(0),
        root,
        h[2][:, 0],
    )


def condition(matrix: torch.Tensor) -> torch.Tensor:
    """Return the condition number of a symmetric matrix, at most 1e15; ()."""
    values = torch.linalg.eigvalsh(matrix)
    return values[-1] / torch.maximum(values[0], 1e-15 * values[-1])


@lru_cache(maxsize=32)
def learned(
    method: str,
    T: int = 20,
    rate: float = 0.3,
    eps: float = 0.01,
    correlation: float = 0.9,
    across: float = 0.0,
    up: float = 0.0,
    updates: int = 200,
) -> list[tuple[torch.Tensor, ...]]:
    """Return a look at the network before each update and at the end, after the whitening if there
    is one; ``updates + 1`` of them.

    Parameters
    ----------
    method : str
        Of `METHODS`.
    T : int
        Updates between two whitenings.
    rate, eps : float
        Step size; what is added to the variances.
    correlation, across, up : float
        See :func:`data`.
    updates : int
    """
    x, y = data(correlation, across, up)
    omega, phi = start()
    seen = []
    for t in range(updates + 1):
        if method == "prong" and t % T == 0:
            omega, phi = whiten(omega, phi, x, eps)
        seen.append(look(omega, phi, x, y))
        omega = update(omega, phi, x, y, rate)
    return seen


def layer_loss(method: str, **setting: float) -> float:
    """Return the loss after 200 updates, in nats; see :func:`learned`."""
    return float(learned(method, **setting)[-1][0])


def layer_condition(method: str, step: int, **setting: float) -> float:
    """Return the condition number by Eq. 5 at an update; see :func:`learned`."""
    return float(learned(method, **setting)[step][1])
