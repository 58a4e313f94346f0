"""The problems of the whitening experiments, as batches of parameter vectors."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares
from torch.nn.functional import softplus

from natcompanion.chapters.experiments._descent import Problem
from natcompanion.data import mnist
from natcompanion.models import BoltzmannMachine, LinearGaussian

EQ1 = ((3, 1 / 3), (1 / 3, 0))
DIGIT_PAIRS = tuple(combinations(range(10), 2))


def example() -> LinearGaussian:
    """Return the two-dimensional Gaussian of whitening Eq. 1."""
    return LinearGaussian(torch.tensor(EQ1, dtype=torch.float64))


def gaussian(start: tuple[float, float] = (1.0, -1.0), target: float = 1e-4) -> Problem:
    """Return the example of whitening Section 1.1: data of mean zero, the loss is the KL divergence
    in nats.
    """
    model, mean = example(), torch.zeros(2, dtype=torch.float64)
    return Problem(
        torch.tensor(start, dtype=torch.float64),
        lambda theta: model.kl(theta, mean),
        lambda theta: model.gradient(theta, mean),
        target,
        {
            "fisher": lambda theta: model.fisher(),
            "data_fisher": lambda theta: model.data_fisher(theta, mean),
            "diagonal": lambda theta: model.fisher().diagonal().diag(),
        },
    )


def boltzmann(
    n: int,
    units: Any,
    rule: str,
    coupling: float,
    field: float,
    generator: torch.Generator,
    target: float,
) -> Problem:
    """Return a Boltzmann machine that learns another of its kind, from theta = 0.

    The couplings of the true machine are N(0, coupling^2 / n), its biases N(0, field^2). The data
    distribution is the true machine's own, so that the three rules ("ml", "cd", "mpf") have the
    same fixed point. The loss is the KL divergence in units of its value at the start.
    """
    machine = BoltzmannMachine(n, units)
    pairs = machine.parameters - n
    scale = torch.cat([torch.full((pairs,), coupling / n**0.5), torch.full((n,), field)]).double()
    truth = scale * torch.randn(machine.parameters, generator=generator, dtype=torch.float64)
    p = machine.distribution(truth)
    rules = {"ml": machine.gradient, "cd": machine.cd_gradient, "mpf": machine.mpf_gradient}
    inside = torch.block_diag(torch.ones(pairs, pairs), torch.ones(n, n)).double()
    start = torch.zeros_like(truth)
    first = machine.kl(start, p)
    return Problem(
        start,
        lambda theta: machine.kl(theta, p) / first,
        lambda theta: rules[rule](theta, p),
        target,
        {
            "fisher": machine.fisher,
            "data_fisher": lambda theta: machine.data_fisher(theta, p),
            "energy": lambda theta: machine.energy_metric(p),
            "centred_energy": lambda theta: machine.energy_metric(p, centred=True),
            "diagonal": lambda theta: machine.fisher(theta).diagonal(dim1=-2, dim2=-1).diag_embed(),
            "block_diagonal": lambda theta: machine.fisher(theta) * inside,
        },
    )


def logistic(Z: torch.Tensor, t: torch.Tensor, ridge: float, target: float) -> Problem:
    """Return logistic regression of labels ``t`` on inputs ``Z`` (n, P) with a ridge penalty.

    The loss is the excess over the minimum, in units of the excess at theta = 0. The metric is the
    Fisher information of the labels plus the ridge, which here is also the Hessian.
    """
    identity = torch.eye(Z.shape[1], dtype=Z.dtype)

    def objective(theta: torch.Tensor) -> torch.Tensor:
        r = theta @ Z.mT
        return (softplus(r) - r * t).mean(-1) + 0.5 * ridge * theta.square().sum(-1)

    def gradient(theta: torch.Tensor) -> torch.Tensor:
        return (torch.sigmoid(theta @ Z.mT) - t) @ Z / len(Z) + ridge * theta

    fisher = logistic_fisher(Z, ridge)

    def data_fisher(theta: torch.Tensor) -> torch.Tensor:
        weight = (torch.sigmoid(theta @ Z.mT) - t).square() / len(Z)
        return (Z.mT * weight[..., None, :]) @ Z + ridge * identity

    start = torch.zeros(Z.shape[1], dtype=Z.dtype)
    floor = float(objective(minimum(start, gradient, fisher)))
    scale = float(objective(start)) - floor
    return Problem(
        start,
        lambda theta: (objective(theta) - floor) / scale,
        gradient,
        target,
        {
            "fisher": fisher,
            "data_fisher": data_fisher,
            "diagonal": lambda theta: fisher(theta).diagonal(dim1=-2, dim2=-1).diag_embed(),
        },
    )


def logistic_fisher(Z: torch.Tensor, ridge: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from theta (..., P) to the Fisher information of the label, averaged over
    ``Z``, plus the ridge.
    """

    def fisher(theta: torch.Tensor) -> torch.Tensor:
        r = theta @ Z.mT
        weight = torch.sigmoid(r) * torch.sigmoid(-r) / len(Z)
        return (Z.mT * weight[..., None, :]) @ Z + ridge * torch.eye(Z.shape[1], dtype=Z.dtype)

    return fisher


def minimum(
    start: torch.Tensor, gradient: Callable, hessian: Callable, steps: int = 200
) -> torch.Tensor:
    """Return the minimum of a convex function, by Newton's method with steps of length at most
    10.
    """
    theta = start
    for _ in range(steps):
        g = gradient(theta)
        if float(g.norm()) < 1e-13:
            break
        step = torch.linalg.solve(hessian(theta), g)
        theta = theta - step * min(1.0, 10 / float(step.norm()))
    return theta


def digit_pair(pair: tuple[int, int], size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embedded MNIST digits of two classes: pixels without the constant ones (n, d),
    labels 0 and 1.
    """
    images, labels = mnist(size=size, split="all", classes=pair, dtype=torch.float64)
    x = images.flatten(1)
    return x[:, x.std(0) > 0], (labels == pair[1]).double()


def _least_squares(residual: Callable, guess: torch.Tensor) -> torch.Tensor:
    fit = least_squares(
        lambda theta: residual(torch.from_numpy(theta)).numpy(),
        guess.numpy(),
        xtol=1e-15,
        ftol=1e-15,
    )
    return torch.from_numpy(fit.x)


def with_bias(x: torch.Tensor) -> torch.Tensor:
    """Return the inputs with a last column of ones."""
    return torch.cat([x, torch.ones_like(x[:, :1])], 1)


def photographs(size: int) -> torch.Tensor:
    """Return three grey photographs (3, size, size) in [0, 1]: a temple, a flower, a portrait.

    The first two come with scikit-learn (by danielbuechele and vultilion, CC BY 2.0), the third, of
    Grace Hopper, with matplotlib (public domain). Each is the centre square, area-averaged.
    """
    from matplotlib.cbook import get_sample_data
    from PIL import Image
    from sklearn.datasets import load_sample_image

    file: Any
    with get_sample_data("grace_hopper.jpg") as file:  # type: ignore[union-attr]  # a file, not an array
        portrait = Image.open(file).convert("L")
    images = [
        Image.fromarray(load_sample_image(name)).convert("L")
        for name in ("china.jpg", "flower.jpg")
    ]
    return torch.stack([_square(image, size) for image in (*images, portrait)])


def _square(image: Any, size: int) -> torch.Tensor:
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    cut = image.resize((size, size), 4, box=(left, top, left + side, top + side))  # 4: area average
    return torch.from_numpy(np.asarray(cut) / 255.0)


def differences(images: torch.Tensor) -> torch.Tensor:
    """Return the differences of neighbouring pixels, (k, size, size) -> (k, m): sparse, and nearly
    independent.
    """
    across, down = images.diff(dim=2).flatten(1), images.diff(dim=1).flatten(1)
    return torch.cat([across, down], 1)


def mixing(k: int, condition: float, generator: torch.Generator) -> torch.Tensor:
    """Return a random k x k matrix of determinant +-1 and this condition number (spectral norm)."""
    left, right = (
        torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64))[0]
        for _ in range(2)
    )
    scales = condition ** torch.linspace(0.5, -0.5, k, dtype=torch.float64)
    return (left * scales) @ right


def separation(mixed: torch.Tensor, target: float, floor: float = 0.0) -> Problem:
    r"""Return maximum-likelihood separation of ``mixed`` (k, m) by a square matrix W, flattened
    row-major.

    .. math:: J(W) = -\log|\det W| + \frac1m \sum_n \sum_i \log\cosh(w_i \cdot x_n) - \mathrm{floor}

    Its metric "relative" is that of whitening Section 2.9: the natural gradient is :math:`\nabla
    J\, W^\top W`.
    """
    k = len(mixed)

    def matrix(theta: torch.Tensor) -> torch.Tensor:
        return theta.reshape(-1, k, k)

    def loss(theta: torch.Tensor) -> torch.Tensor:
        y = (matrix(theta) @ mixed).abs()
        logcosh = y + torch.log1p(torch.exp(-2 * y)) - np.log(2)
        return logcosh.sum(-2).mean(-1) - torch.linalg.slogdet(matrix(theta))[1] - floor

    def gradient(theta: torch.Tensor) -> torch.Tensor:
        W = matrix(theta)
        return (
            torch.tanh(W @ mixed) @ mixed.mT / mixed.shape[1] - torch.linalg.inv_ex(W)[0].mT
        ).flatten(1)

    def relative(theta: torch.Tensor) -> torch.Tensor:
        W = matrix(theta)
        right = torch.linalg.inv_ex(W.mT @ W)[0]
        eye = torch.eye(k, dtype=W.dtype)
        return torch.einsum("ij,rab->riajb", eye, right).reshape(-1, k * k, k * k)

    return Problem(
        torch.eye(k, dtype=mixed.dtype).flatten(), loss, gradient, target, {"relative": relative}
    )


def amari_error(P: torch.Tensor) -> float:
    """Return how far ``P`` = W A is from a scaled permutation: 0 for perfect separation, at most
    1.
    """
    P, k = P.abs(), len(P)
    rows = (P.sum(1) / P.amax(1) - 1).sum()
    columns = (P.sum(0) / P.amax(0) - 1).sum()
    return float((rows + columns) / (2 * k * (k - 1)))


def curve_fit(noise: float, n: int, generator: torch.Generator, target: float) -> Problem:
    r"""Return a least-squares fit of two tanh units, :math:`f(x) = \sum_k a_k \tanh(b_k x)`, from a
    point nearby.

    The loss is the mean of :math:`(y - f(x))^2` (whitening Eq. 38), as the excess over the best fit
    found from the truth and from the start, in units of the excess at the start; "eq39" and "eq41"
    are the two metrics of Section 2.8, where Eq. 41 takes the square for :math:`-\log q` and so has
    noise variance 1/2 and the factor 2.
    """
    draw = torch.randn(4, generator=generator, dtype=torch.float64)
    truth = torch.tensor([1.0, -0.7, 0.6, 2.0], dtype=torch.float64) + 0.1 * draw
    start = truth * (1 + 0.3 * torch.randn(4, generator=generator, dtype=torch.float64))
    x = torch.linspace(-3, 3, n, dtype=torch.float64)

    def model(theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = theta[..., :2, None], theta[..., 2:, None]
        unit = torch.tanh(b * x)
        return (a * unit).sum(-2), torch.cat(
            [unit, a * (1 - unit.square()) * x], -2
        )  # f (r, n), df (r, 4, n)

    y = model(truth)[0] + noise * torch.randn(n, generator=generator, dtype=torch.float64)

    def residual(theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        f, df = model(theta)
        return f - y, df

    def gradient(theta: torch.Tensor) -> torch.Tensor:
        r, df = residual(theta)
        return 2 * (df * r[..., None, :]).mean(-1)

    def eq41(theta: torch.Tensor) -> torch.Tensor:
        df = model(theta)[1]
        return 2 * df @ df.mT / n

    def eq39(theta: torch.Tensor) -> torch.Tensor:
        r, df = residual(theta)
        return 4 * (df * r.square()[..., None, :]) @ df.mT / n

    def loss(theta: torch.Tensor) -> torch.Tensor:
        return residual(theta)[0].square().mean(-1)

    fits = [_least_squares(lambda theta: residual(theta)[0], guess) for guess in (truth, start)]
    best = min(fits, key=lambda theta: float(loss(theta)))
    floor, first = loss(best), loss(start)
    return Problem(
        start,
        lambda theta: (loss(theta) - floor) / (first - floor),
        gradient,
        target,
        {"eq39": eq39, "eq41": eq41},
    )
