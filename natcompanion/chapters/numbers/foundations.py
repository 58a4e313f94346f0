"""The numbers and tables of Foundations: six matrices on a network with two parameters.

The model at work is ``w tanh(v x)`` at v = 0.7 and w = 2, with one binary label; targets are drawn
from a teacher unless another kind is named.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import nn

from natcompanion import metrics, reference
from natcompanion.chapters.show import Table
from natcompanion.likelihoods import Bernoulli

TEACHER = (1.5, 3.0)
HERE = (0.7, 2.0)
START = (2.0, 1.0)
LIKELIHOOD = Bernoulli()
COUNTS = (1, 10, 100)
PERIODS = (1, 3, 10, 30)
STRETCHES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
RATES = tuple(10 ** (power / 2) for power in range(-4, 6))
STALE_RATE = 0.5
CLOSE = 1e-3


def tiny(v: float, w: float) -> nn.Sequential:
    """Return the network ``w tanh(v x)``, whose only parameters are v and w, in float64."""
    model = nn.Sequential(
        nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False)
    ).double()
    nn.utils.vector_to_parameters(torch.tensor([v, w], dtype=torch.float64), model.parameters())
    return model


def inputs(n: int = 40) -> torch.Tensor:
    """Return n numbers from -1.5 to 2.5; (n, 1)."""
    return torch.linspace(-1.5, 2.5, n, dtype=torch.float64).unsqueeze(1)


def make_targets(kind: str, model: nn.Module, x: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """Return the targets 0 and 1 of that kind; (n, 1)."""
    with torch.no_grad():
        r = tiny(*TEACHER)(x) if kind == "drawn from a teacher" else model(x)
    if kind == "the likelier class":
        return (r > 0).double()
    return LIKELIHOOD.sample(r, generator=torch.Generator().manual_seed(seed))


@cache
def exact() -> torch.Tensor:
    """Return the Fisher matrix of the model at work."""
    return metrics.fisher(tiny(*HERE), inputs(), LIKELIHOOD)


def jacobian(v: float = HERE[0], w: float = HERE[1]) -> torch.Tensor:
    """Return the derivative of the output by v and w at every input; (n, 2)."""
    x = inputs()[:, 0]
    bent = torch.tanh(v * x)
    return torch.stack([w * x * (1 - bent**2), bent], dim=1)


def difference(matrix: torch.Tensor, other: torch.Tensor) -> float:
    """Return the relative difference in the Frobenius norm, 0 where it is rounding."""
    gap = float((matrix - other).norm() / other.norm())
    return gap if gap > 1e-12 else 0.0


def entries(matrix: torch.Tensor) -> list[float]:
    """Return the three entries vv, vw and ww of a symmetric matrix (2, 2)."""
    return [float(matrix[0, 0]), float(matrix[0, 1]), float(matrix[1, 1])]


def matrix_table(matrices: Mapping[str, torch.Tensor], F: torch.Tensor, caption: str) -> Table:
    """Return the entries of matrices and their difference from F."""
    rows = [[name, *entries(M), difference(M, F)] for name, M in matrices.items()]
    return Table(["matrix", "vv", "vw", "ww", "differs"], rows, caption)


# ---- the divergence and its quadratic model


def divergence(delta: torch.Tensor) -> tuple[float, float]:
    """Return the divergence from the model at work to that at a distance ``delta``, and back."""
    theta = torch.tensor(HERE, dtype=torch.float64)
    moved = tiny(*(theta + delta).tolist())
    forward = reference.kl(tiny(*HERE), inputs(), LIKELIHOOD, delta)
    backward = reference.kl(moved, inputs(), LIKELIHOOD, -delta)
    return float(forward), float(backward)


def step(length: float) -> torch.Tensor:
    """Return the step of a length in the direction (0.6, 0.8)."""
    return length * torch.tensor([0.6, 0.8], dtype=torch.float64)


def quadratic_ratio(length: float) -> float:
    """Return the quadratic model of the divergence over the divergence, for a step."""
    delta = step(length)
    return float(delta @ exact() @ delta / 2) / divergence(delta)[0]


def swap(length: float) -> float:
    """Return by how many per cent the divergence falls when the two models are exchanged."""
    forward, backward = divergence(step(length))
    return 100 * (1 - backward / forward)


def divergence_table(compare: Callable[[torch.Tensor], tuple]) -> Table:
    """Return the divergence and its quadratic model for four lengths, as the chapter computes
    them.
    """
    return Table(
        ["length", "KL", "½ δᵀFδ", "ratio", "reversed"],
        [[f"{size:g}", *map(float, compare(step(size)))] for size in (0.3, 0.1, 0.03, 0.01)],
        "Steps δ in the direction (0.6, 0.8): the divergence in nats, its quadratic model, the "
        "ratio of the model to the divergence, and the divergence with the roles of the two "
        "distributions exchanged.",
    )


# ---- the natural gradient


@cache
def gradients() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of the loss with the teacher's labels, and the natural gradient."""
    model, x = tiny(*HERE), inputs()
    t = make_targets("drawn from a teacher", model, x)
    gradient = metrics.per_example_gradients(model, x, t, LIKELIHOOD).mean(0)
    return gradient, torch.linalg.solve(exact(), gradient)


def angle(direction: torch.Tensor) -> int:
    """Return the angle of a vector (2,) from the first axis, in whole degrees from 0 to 359."""
    degrees = float(torch.rad2deg(torch.atan2(direction[1], direction[0])))
    return round(degrees) % 360


def natural_angle() -> int:
    """Return the direction of a natural gradient step, in degrees."""
    return angle(-gradients()[1])


def plain_angle() -> int:
    """Return the direction of a gradient step, in degrees."""
    return angle(-gradients()[0])


@cache
def falls(cost: float = 1e-7) -> np.ndarray:
    """Return by how much the loss falls along each of 360 directions, one a degree, when the
    quadratic model gives every step the same divergence.
    """
    x, F = inputs(), exact()
    t = make_targets("drawn from a teacher", tiny(*HERE), x)

    def loss(v: float, w: float) -> float:
        return LIKELIHOOD.nll(tiny(v, w)(x), t).mean().item()

    found = []
    for degree in range(360):
        turn = torch.deg2rad(torch.tensor(float(degree), dtype=torch.float64))
        unit = torch.stack([turn.cos(), turn.sin()])
        delta = unit * (2 * cost / (unit @ F @ unit)).sqrt()
        found.append(loss(*HERE) - loss(HERE[0] + float(delta[0]), HERE[1] + float(delta[1])))
    return np.array(found)


def best_angle() -> int:
    """Return the direction in which the loss falls most, in degrees."""
    return int(falls().argmax())


def lost() -> float:
    """Return how many per cent less the loss falls along the gradient than along the best."""
    return 100 * (1 - float(falls()[plain_angle()] / falls().max()))


def apart(rate: float, natural: bool) -> float:
    """Return how far apart one step in (v, w) and one in (a, b), v = exp a and w = 10 b, end, as a
    multiple of the first.
    """
    theta = torch.tensor(HERE, dtype=torch.float64)
    B = torch.diag(torch.tensor([HERE[0], 10.0], dtype=torch.float64))  # of (v, w) by (a, b)
    gradient = gradients()[0]
    one, other = gradient, B.mT @ gradient
    if natural:
        one = torch.linalg.solve(exact(), one)
        other = torch.linalg.solve(B.mT @ exact() @ B, other)
    a, b = theta[0].log() - rate * other[0], theta[1] / 10 - rate * other[1]
    gap = theta - rate * one - torch.stack([a.exp(), 10 * b])
    return float(gap.norm() / (rate * one).norm())


def apart_table(plain: Callable[[float], float], natural: Callable[[float], float]) -> Table:
    """Return how far apart the parametrizations end under both rules, as the chapter computes
    it.
    """
    return Table(
        ["step size", "gradient", "natural gradient"],
        [[f"{rate:g}", plain(rate), natural(rate)] for rate in (0.1, 0.01, 0.001)],
        "How far apart the two parametrizations end after one step, as a multiple of the step.",
    )


# ---- the price


def price_table() -> Table:
    """Return what the matrix takes: its numbers, its memory, the time of one factorization."""
    rows = []
    for count, text in ((2, "2"), (10**3, "1,000"), (10**5, "100,000"), (10**7, "10,000,000")):
        rows.append([text, _size(count**2), _memory(4 * count**2), _time(count**3 / 3e12)])
    return Table(
        ["parameters P", "numbers in F", "memory", "one factorization"],
        rows,
        "What the exact matrix takes: P² numbers of 4 bytes, and P³/3 multiplications to factor "
        "it, at 10¹² a second.",
    )


def _size(count: int) -> str:
    power = len(str(count)) - 1
    return str(count) if count < 1000 else "10" + str(power).translate(_RAISED)


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _memory(size: float) -> str:
    return _scaled(size, {"bytes": 1, "MB": 1e6, "GB": 1e9, "TB": 1e12})


def _time(seconds: float) -> str:
    units = {"less than 1 ms": 0.0, "ms": 1e-3, "s": 1, "minutes": 60, "years": 3.156e7}
    return "less than 1 ms" if seconds < 1e-3 else _scaled(seconds, units)


def _scaled(value: float, units: Mapping[str, float]) -> str:
    """Return a value to two digits in the largest unit that it fills."""
    name = [unit for unit, size in units.items() if value >= size][-1]
    return f"{float(f'{value / units[name]:.2g}'):g} {name}"


def damped_apart(lam: float) -> float:
    """Return how far apart damped natural gradient steps in (v, w) and in (a, b) end, as a
    multiple of the first, in the limit of small steps.
    """
    B = torch.diag(torch.tensor([HERE[0], 10.0], dtype=torch.float64))
    eye, gradient = torch.eye(2, dtype=torch.float64), gradients()[0]
    one = torch.linalg.solve(exact() + lam * eye, gradient)
    other = B @ torch.linalg.solve(B.mT @ exact() @ B + lam * eye, B.mT @ gradient)
    return float((one - other).norm() / one.norm())


def look(v: float, w: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the loss above its minimum, its gradient (2,) and the Fisher matrix (2, 2) at (v, w);
    the targets are the probabilities of the teacher, as if every input had countless labels.
    """
    x = inputs().numpy()[:, 0]
    t = 1 / (1 + np.exp(-TEACHER[1] * np.tanh(TEACHER[0] * x)))
    bent = np.tanh(v * x)
    r, y = w * bent, 0.5 * (1 + np.tanh(w * bent / 2))
    J = np.stack([w * x * (1 - bent**2), bent], axis=1)
    lowest = np.mean(-t * np.log(t) - (1 - t) * np.log(1 - t))
    loss = np.mean(np.logaddexp(0, r) - t * r) - lowest
    return float(loss), (y - t) @ J / len(x), (J.T * (y * (1 - y))) @ J / len(x)


def damped_length(w: float, lam: float) -> float:
    """Return the length of the natural gradient at (0.7, w), damped by lam."""
    _, gradient, F = look(HERE[0], w)
    return float(np.linalg.norm(np.linalg.solve(F + lam * np.eye(2), gradient)))


@cache
def walk(
    rule: str, rate: float, steps: int, period: int = 1, stretch: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places (k, 2) on a path from START and the loss above its minimum at each.

    The path ends after so many steps, or where the loss is close to its minimum, has gone up
    tenfold, or where there is no step to take. Rules: the "gradient" in the coordinates (v, b),
    w = stretch b; the "natural" gradient, whose matrix is renewed every ``period`` steps; either of
    them in the coordinates v = exp a, w = 10 b, as "gradient, other" or "natural, other".
    """
    place, places, losses, F = np.array(START), [], [], np.eye(2)
    for k in range(steps + 1):
        loss, gradient, fresh = look(*place)
        places.append(place)
        losses.append(loss)
        if not CLOSE <= loss <= 10 * losses[0]:
            break
        F = fresh if k % period == 0 else F
        name, _, other = rule.partition(", ")
        if name == "natural":
            if np.linalg.cond(F) > 1e12:
                break
            step = rate * np.linalg.solve(F, gradient)
        else:
            scale = [place[0] ** 2, 100] if other else [1, stretch**2]
            step = rate * np.array(scale) * gradient
        v = place[0] * np.exp(-step[0] / place[0]) if other else place[0] - step[0]
        place = np.array([v, place[1] - step[1]])
    return np.array(places), np.array(losses)


FINE = {"gradient": 0.1, "gradient, other": 0.01, "natural": 0.02, "natural, other": 0.02}
"""Small step sizes, with which a path is close to that of infinitely many, infinitely small steps.
"""


def path(rule: str) -> np.ndarray:
    """Return the path (k, 2) of small steps of a rule, to where the loss is close to its
    minimum.
    """
    return walk(rule, FINE[rule], 2000)[0]


def paths_apart(name: str) -> float:
    """Return how far the path of a rule in the other coordinates strays from that in (v, w)."""
    one, other = path(name), path(f"{name}, other")
    gaps = np.linalg.norm(other[:, None] - one[None], axis=2)
    return float(gaps.min(axis=1).max())


def arrival(rule: str, rate: float, period: int = 1, stretch: float = 1.0) -> int | None:
    """Return after how many of at most 1,000 steps the loss is close to its minimum, or None."""
    losses = walk(rule, rate, 1000, period, stretch)[1]
    return len(losses) - 1 if losses[-1] < CLOSE else None


def fewest(rule: str, stretch: float = 1.0, period: int = 1) -> int | None:
    """Return the fewest steps over the step sizes of a grid, or None if no one arrives."""
    found = [arrival(rule, rate, period, stretch) for rate in RATES]
    return min((steps for steps in found if steps is not None), default=None)


# ---- six matrices


@cache
def _kl_hessian(v: float, w: float) -> torch.Tensor:
    return reference.kl_hessian(tiny(v, w), inputs(), LIKELIHOOD)


@cache
def six_matrices(
    samples: int, targets: str, w: float, v: float = HERE[0], seed: int = 1
) -> dict[str, torch.Tensor]:
    """Return the six matrices of the model at (v, w), each (2, 2), and the Hessian of the loss."""
    model, x = tiny(v, w), inputs()
    given = (model, x, make_targets(targets, model, x), LIKELIHOOD)
    draw = torch.Generator().manual_seed(seed)
    return {
        "exact": metrics.fisher(model, x, LIKELIHOOD),
        "kl": _kl_hessian(v, w),
        "gauss_newton": metrics.gauss_newton(*given),
        "monte_carlo": metrics.monte_carlo_fisher(
            model, x, LIKELIHOOD, samples=samples, generator=draw
        ),
        "empirical": metrics.empirical_fisher(*given),
        "covariance": metrics.gradient_covariance(*given),
        "loss_hessian": reference.loss_hessian(*given),
    }


def six_gaps(samples: int, targets: str, w: float) -> dict[str, float]:
    """Return the relative difference of each matrix from the exact one."""
    matrices = six_matrices(samples, targets, w)
    return {name: difference(matrix, matrices["exact"]) for name, matrix in matrices.items()}


def gap(name: str) -> float:
    """Return the difference of a matrix from the exact one in per cent: 10 labels, seed 0."""
    matrices = six_matrices(10, "drawn from a teacher", HERE[1], seed=0)
    return 100 * difference(matrices[name], matrices["exact"])


# ---- when they agree


def monte_carlo(k: int, seed: int) -> torch.Tensor:
    """Return the Monte Carlo estimate from k labels for each input."""
    rng = torch.Generator().manual_seed(seed)
    return metrics.monte_carlo_fisher(tiny(*HERE), inputs(), LIKELIHOOD, samples=k, generator=rng)


def empirical(k: int, seed: int, kind: str) -> torch.Tensor:
    """Return the empirical Fisher matrix over the inputs repeated k times."""
    model, many = tiny(*HERE), inputs().repeat(k, 1)
    return metrics.empirical_fisher(model, many, make_targets(kind, model, many, seed), LIKELIHOOD)


def rms_error(draws: Sequence[torch.Tensor]) -> float:
    """Return the root mean square of the relative error of estimates of the Fisher matrix."""
    squares = (torch.stack(list(draws)) - exact()).square().sum((1, 2)) / exact().square().sum()
    return float(squares.mean().sqrt())


@cache
def error(name: str, k: int) -> float:
    """Return the error over 100 draws of "monte_carlo", or of the empirical Fisher matrix with
    labels of the "model" or of a "teacher".
    """
    if name == "monte_carlo":
        return rms_error([monte_carlo(k, seed) for seed in range(100)])
    kind = {"model": "drawn from the model", "teacher": "drawn from a teacher"}[name]
    return rms_error([empirical(k, seed, kind) for seed in range(100)])


def error_power(name: str) -> float:
    """Return the power of k with which the error falls from the first k to the last."""
    first, last = COUNTS[0], COUNTS[-1]
    return float(np.log(error(name, last) / error(name, first)) / np.log(last / first))


def teacher_left() -> float:
    """Return how many per cent are left of the error with the teacher's labels at k = 100."""
    return 100 * error("teacher", COUNTS[-1])


def error_table() -> Table:
    """Return the errors by k."""
    names = ("monte_carlo", "model", "teacher")
    return Table(
        ["k", "Monte Carlo, k labels", "U, model's labels", "U, teacher's labels"],
        [[k, *(error(name, k) for name in names)] for k in COUNTS],
        "Relative error, root mean square over 100 draws. The empirical Fisher matrix U is taken "
        "over the inputs repeated k times.",
    )


@cache
def confident(w: float) -> tuple[float, float, float]:
    """Return the mean probability of the likelier labels, trace U / trace F with them as targets,
    and the difference of the Hessian of the loss from F.
    """
    model, x = tiny(HERE[0], w), inputs()
    t = make_targets("the likelier class", model, x)
    p = torch.exp(-LIKELIHOOD.nll(model(x), t)).mean().item()
    F = metrics.fisher(model, x, LIKELIHOOD)
    U = metrics.empirical_fisher(model, x, t, LIKELIHOOD)
    H = reference.loss_hessian(model, x, t, LIKELIHOOD)
    return p, float(U.trace() / F.trace()), difference(H, F)


def sure_probability() -> float:
    """Return the mean probability at w = 8."""
    return confident(8.0)[0]


def sure_trace() -> float:
    """Return trace U / trace F at w = 8."""
    return confident(8.0)[1]


def sure_too_long() -> float:
    """Return by which factor steps with U in place of F would be too long there."""
    return 1 / sure_trace()


def sure_hessian() -> float:
    """Return the difference of the Hessian of the loss from F there."""
    return confident(8.0)[2]


def confidence_table() -> Table:
    """Return what happens as the model grows confident."""
    return Table(
        ["w", "mean p", "trace U / trace F", "Hessian, difference"],
        [[f"{w:g}", *confident(w)] for w in (1.0, 2.0, 4.0, 8.0)],
        "A model that is right about every target and grows confident: the empirical Fisher matrix "
        "becomes small beside the exact one. Last, the relative difference of the Hessian of the "
        "loss from F.",
    )
