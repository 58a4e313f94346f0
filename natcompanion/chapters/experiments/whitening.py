"""The experiments on the whitening paper. Every method chooses its step size from the same grid,
`RATES`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from natcompanion.chapters.experiments import Settings, experiment
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.experiments import _whitening_rivals as racing
from natcompanion.chapters.experiments._descent import RATES, Descent, Problem, descend
from natcompanion.chapters.experiments.kit import Clock
from natcompanion.optim import natural_space
from natcompanion.solvers import damped_solve, stochastic_robust_inverse

TIMES = (0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)


def _float64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _normal(settings: Settings, *shape: int, offset: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=settings.generator(offset), dtype=torch.float64)


def first_below(values: torch.Tensor, threshold: float) -> int | None:
    """Return the first index at which ``values`` (n,) is below the threshold, None if never."""
    hits = (values < threshold).nonzero()
    return int(hits[0]) if len(hits) else None


def overtakes(slow: torch.Tensor, fast: torch.Tensor) -> int:
    """Return the step, at least 1, from which ``fast`` is below ``slow`` at all later steps at
    which ``slow`` is not 0.
    """
    behind = ((fast >= slow) & (slow > 0))[1:].nonzero()
    return int(behind[-1]) + 2 if len(behind) else 1


def quadratic_spectrum(
    G: torch.Tensor, H: torch.Tensor, start: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Return eigenvalues and weights such that descent on ½ theta·G theta with steps H G theta is
    known in closed form.

    After t steps of size eta the loss is the sum of weight_i (1 - eta lambda_i)^(2t), where lambda
    are the eigenvalues of H G, in ascending order.
    """
    root = torch.linalg.cholesky((H + H.mT) / 2)
    lam, vectors = torch.linalg.eigh(root.mT @ G @ root)
    coordinates = (
        vectors.mT @ torch.linalg.solve_triangular(root, start[:, None], upper=False)[:, 0]
    )
    return lam, 0.5 * lam * coordinates.square()


def quadratic_curve(
    G: torch.Tensor, H: torch.Tensor, start: torch.Tensor, rate: float, steps: int
) -> torch.Tensor:
    """Return the loss after 0, 1, ..., ``steps`` steps of theta <- theta - rate H G theta."""
    lam, weight = quadratic_spectrum(G, H, start)
    t = torch.arange(steps + 1, dtype=G.dtype)[:, None]
    return (weight * (1 - rate * lam).abs() ** (2 * t)).sum(-1)


def compare(problem: Problem, metrics: tuple[str | None, ...], steps: int) -> dict[str, Descent]:
    """Return the best descent of each metric; None, steepest descent, is called "plain"."""
    return {metric or "plain": descend(problem, metric, steps=steps) for metric in metrics}


def summary(runs: dict[str, Descent], limit: int) -> dict:
    """Return the steps and best step size by name, and how many times fewer steps than "plain" each
    needs.

    A run that did not reach the target counts with ``limit`` steps, so that its speed-up is an
    upper bound, and a lower bound if it is the plain gradient that did not.
    """
    capped = {name: run.steps if run.steps is not None else limit for name, run in runs.items()}
    return {
        "steps": {name: run.steps for name, run in runs.items()},
        "rates": {name: run.rate for name, run in runs.items()},
        **{
            f"speedup_{name}": capped["plain"] / max(1, steps)
            for name, steps in capped.items()
            if name != "plain"
        },
    }


# ---- Sections 1.1, 2.6


@dataclass(frozen=True, kw_only=True)
class Figure1(Settings):
    """Step sizes of the table and its number of steps; starts drawn at random on the circle, and
    their most steps.
    """

    rates: tuple[float, ...] = (0.01, 0.05, 0.1, 0.2)
    steps: int = 100_000
    starts: int = 20
    search: int = 20_000


@experiment("whitening_figure1", quick=Figure1())
def figure1(settings: Figure1) -> dict:
    """Steps that the plain and the natural gradient need on the Gaussian of Section 1.1."""
    G, start, rows = problems.example().fisher(), _float64(1, -1), []
    eye = torch.eye(2, dtype=torch.float64)
    for rate in settings.rates:
        curves = {
            name: quadratic_curve(G, H, start, rate, settings.steps)
            for name, H in (("plain", eye), ("natural", torch.linalg.inv(G)))
        }
        rows.append(
            {
                "rate": rate,
                "overtakes": overtakes(curves["plain"], curves["natural"]),
                **{
                    f"{name} {kl:g}": first_below(curve, kl)
                    for kl in (1e-3, 1e-4)
                    for name, curve in curves.items()
                },
            }
        )
    angle = (
        2
        * torch.pi
        * torch.rand(settings.starts, generator=settings.generator(), dtype=torch.float64)
    )
    starts = [(1.0, -1.0), *torch.stack([angle.cos(), angle.sin()], 1).tolist()]
    names = (None, "fisher", "data_fisher", "diagonal")
    best = [
        summary(compare(problems.gaussian(tuple(s)), names, settings.search), settings.search)
        for s in starts
    ]
    return {
        "equal_rates": rows,
        "best_rates": best[0]["steps"],
        **{key: [one[key] for one in best] for key in best[0] if key.startswith("speedup")},
    }


@dataclass(frozen=True, kw_only=True)
class Regularization(Settings):
    """Regularization strengths, and a noisy metric: its dimension, condition number and number of
    samples.
    """

    eps: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    dim: int = 20
    condition: float = 100.0
    samples: int = 20
    steps: int = 100


@experiment("whitening_regularization", quick=Regularization())
def regularization(settings: Regularization) -> dict:
    """Eq. 35 against damping: the Gaussian of Section 1.1, and a metric estimated anew at each step
    from few samples.
    """
    G, start = problems.example().fisher(), _float64(1, -1)
    table = []
    for eps in settings.eps:
        inverses = {
            "eq35": stochastic_robust_inverse(G, eps),
            "damping": damped_solve(G, torch.eye(2).double(), eps),
        }
        curves = {name: quadratic_curve(G, H, start, 1.0, 60_000) for name, H in inverses.items()}
        table.append(
            {"eps": eps, **{name: first_below(curve, 1e-4) for name, curve in curves.items()}}
        )
    lam = settings.condition ** -torch.linspace(0, 1, settings.dim, dtype=torch.float64)
    noise = _normal(settings, settings.steps, settings.samples, settings.dim)
    noisy = (noise * lam.sqrt()).mT @ (noise * lam.sqrt()) / settings.samples
    theta = _normal(settings, settings.dim, offset=1) / lam.sqrt()
    vectors, values = torch.linalg.eigh(noisy)[1], torch.linalg.eigvalsh(noisy).clamp_min(0)
    gains = {
        "inverse": [values.clamp_min(1e-300).reciprocal()],
        "eq35": [values / (values.square() + eps) for eps in settings.eps],
        "damping": [1 / (values + eps) for eps in settings.eps],
    }
    plain = _noisy_descent(lam, theta, torch.ones_like(lam).diag_embed().expand_as(noisy))
    final = {
        name: min(
            _noisy_descent(lam, theta, (vectors * gain[:, None]) @ vectors.mT) for gain in options
        )
        for name, options in gains.items()
    }
    at_001 = {
        "inverse": gains["inverse"][0],
        "eq35": values / (values.square() + 0.01),
        "damping": 1 / (values + 0.01),
    }
    return {
        "steps": table,
        "loss_plain": plain,
        **{f"loss_{name}": value for name, value in final.items()},
        **{f"largest_gain_{name}": float(gain.max()) for name, gain in at_001.items()},
    }


def _noisy_descent(lam: torch.Tensor, theta: torch.Tensor, inverses: torch.Tensor) -> float:
    """Return the loss, in units of the first, after one step with each inverse, at the best step
    size.
    """
    rate = _float64(*RATES)[:, None]
    path = theta.expand(len(RATES), -1)
    for inverse in inverses:
        path = path - rate * ((path * lam) @ inverse)
    loss = (lam * path.square()).sum(-1) / (lam * theta.square()).sum()
    return float(loss.nan_to_num(torch.inf).min())


# ---- Sections 1.4, 1.5


@dataclass(frozen=True, kw_only=True)
class Invariance(Settings):
    """Random linear maps of the parameters, the size of the Boltzmann machine, and step sizes for a
    curved map.
    """

    maps: int = 100
    units: int = 5
    rates: tuple[float, ...] = (0.1, 0.01, 0.001)


@experiment("whitening_invariance", quick=Invariance())
def invariance(settings: Invariance) -> dict:
    """How far the path moves when the parameters are replaced by linear and by curved functions of
    them.
    """
    problem = problems.boltzmann(settings.units, "pm1", "ml", 0.5, 0.5, settings.generator(), 0.0)
    size = len(problem.start)
    maps = torch.eye(size, dtype=torch.float64) + 0.1 * _normal(
        settings, settings.maps, size, size, offset=1
    )
    moved = {
        name: _path_difference(problem, maps, natural, 0.5, 10)
        for name, natural in (("natural", True), ("plain", False))
    }
    curved = [_curved_difference(problem, rate, round(1 / rate)) for rate in settings.rates]
    return {
        **{f"linear_{name}": value for name, value in moved.items()},
        "curved": curved,
        "condition": float(torch.linalg.cond(maps).max()),
    }


def _path_difference(
    problem: Problem, maps: torch.Tensor, natural: bool, rate: float, steps: int
) -> float:
    """Return the largest distance, relative to the path's end, between descent in theta and in psi,
    theta = A psi.
    """
    theta, psi, largest = problem.start[None], problem.start.expand(len(maps), -1), 0.0
    for _ in range(steps):
        theta = theta - rate * _direction(
            problem, theta, torch.eye(len(problem.start)).double()[None], natural
        )
        mapped = (maps @ psi[..., None])[..., 0]
        psi = psi - rate * _direction(problem, mapped, maps, natural)
        largest = max(largest, float(((maps @ psi[..., None])[..., 0] - theta).norm(dim=-1).max()))
    return largest / float(theta.norm())


def _direction(
    problem: Problem, theta: torch.Tensor, A: torch.Tensor, natural: bool
) -> torch.Tensor:
    """Return the gradient, or the natural gradient, with respect to psi at theta(psi) with Jacobian
    A.
    """
    g = (A.mT @ problem.gradient(theta)[..., None])[..., 0]
    if not natural:
        return g
    G = A.mT @ problem.metrics["fisher"](theta) @ A
    return torch.linalg.solve(G, g)


def _curved_difference(problem: Problem, rate: float, steps: int) -> float:
    """Return the same for theta = sinh(psi), whose Jacobian changes along the path."""
    theta, psi, largest = problem.start[None], problem.start[None], 0.0
    eye = torch.eye(len(problem.start), dtype=torch.float64)[None]
    for _ in range(steps):
        theta = theta - rate * _direction(problem, theta, eye, True)
        psi = psi - rate * _direction(problem, psi.sinh(), psi.cosh().diag_embed(), True)
        largest = max(largest, float((psi.sinh() - theta).norm()))
    return largest / float(theta.norm())


@dataclass(frozen=True, kw_only=True)
class StaleMetric(Settings):
    """How many steps the metric is kept; 0 means to the end."""

    holds: tuple[int, ...] = (1, 2, 5, 10, 20, 0)
    size: int = 7
    ridge: float = 1e-5
    target: float = 1e-4
    steps: int = 2000


@experiment("whitening_stale_metric", quick=StaleMetric())
def stale_metric(settings: StaleMetric) -> dict:
    """Steps when the Fisher matrix is kept for several steps: a pair of digits, and a Boltzmann
    machine.
    """
    pair = problems.DIGIT_PAIRS[settings.seed]
    x, t = problems.digit_pair(pair, settings.size)
    digits = problems.logistic(problems.with_bias(x), t, settings.ridge, settings.target)
    machine = problems.boltzmann(6, "01", "ml", 1.0, 1.0, settings.generator(), settings.target)

    values = {"pair": list(pair)}
    for name, problem in (("digits", digits), ("boltzmann", machine)):
        runs = {
            f"hold_{hold}": descend(
                problem, "fisher", steps=settings.steps, hold=hold or settings.steps
            )
            for hold in settings.holds
        }
        runs["plain"] = descend(problem, steps=settings.steps)
        values |= {f"{name}_{key}": value for key, value in summary(runs, settings.steps).items()}
    return values


# ---- Sections 2.3 - 2.5


@dataclass(frozen=True, kw_only=True)
class Boltzmann(Settings):
    """The machine: values of a unit ("01", "pm1"), learning rule ("ml", "cd", "mpf"), spread of
    couplings and biases.
    """

    n: int = 6
    units: str = "01"
    rule: str = "ml"
    coupling: float = 1.0
    field: float = 1.0
    target: float = 1e-3
    steps: int = 3000


@experiment("whitening_boltzmann", quick=Boltzmann())
def boltzmann(settings: Boltzmann) -> dict:
    """Steps and learning curves of six metrics on a Boltzmann machine that is enumerated."""
    problem = problems.boltzmann(
        settings.n,
        settings.units,
        settings.rule,
        settings.coupling,
        settings.field,
        settings.generator(),
        settings.target,
    )
    runs = compare(problem, (None, *problem.metrics), settings.steps)
    return {
        **summary(runs, settings.steps),
        "curves": {name: run.at(TIMES) for name, run in runs.items()},
    }


@dataclass(frozen=True, kw_only=True)
class DigitPairs(Settings):
    """Logistic regression on a pair of digits (the seed chooses one of 45): image size, ridge,
    target, most steps.
    """

    size: int = 7
    ridge: float = 1e-5
    target: float = 1e-2
    steps: int = 5000


@experiment("whitening_digit_pairs", quick=DigitPairs())
def digit_pairs(settings: DigitPairs) -> dict:
    """Steps of four metrics in logistic regression on one of the 45 pairs of digits."""
    pair = problems.DIGIT_PAIRS[settings.seed]
    x, t = problems.digit_pair(pair, settings.size)
    problem = problems.logistic(problems.with_bias(x), t, settings.ridge, settings.target)
    return {
        "pair": list(pair),
        **summary(compare(problem, (None, *problem.metrics), settings.steps), settings.steps),
    }


@dataclass(frozen=True, kw_only=True)
class Coordinates(Settings):
    """Digits 3 and 5 in several coordinates: image size, ridge, target, most steps."""

    size: int = 7
    ridge: float = 1e-5
    target: float = 1e-2
    steps: int = 5000


@experiment("whitening_coordinates", quick=Coordinates())
def coordinates(settings: Coordinates) -> dict:
    """Logistic regression on 3 against 5: raw, rescaled, standardized and whitened pixels, and the
    natural gradient.
    """
    images, labels = problems.mnist(
        size=settings.size, classes=(3, 5), seed=settings.seed, dtype=torch.float64
    )
    x, t = images.flatten(1), (labels == 5).double()
    x = x[:, x.std(0) > 0]
    problem = problems.logistic(problems.with_bias(x), t, settings.ridge, settings.target)
    scale = 10 ** (
        2 * torch.rand(x.shape[1], generator=settings.generator(), dtype=torch.float64) - 1
    )
    maps = coordinate_maps(x, scale)
    problem.metrics.update({name: _pulled_back(T) for name, T in maps.items()})
    runs = compare(problem, (None, *maps, "fisher"), settings.steps)
    return {
        **summary(runs, settings.steps),
        "curves": {name: run.at(TIMES) for name, run in runs.items()},
    }


def coordinate_maps(x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the matrices T that take an input with bias (x, 1) to other coordinates, by name."""
    mean, centred = x.mean(0), x - x.mean(0)
    cov = centred.mT @ centred / len(x)
    values, vectors = torch.linalg.eigh(cov)
    parts = {
        "rescaled": (scale.diag(), 0 * mean),
        "standardized": (cov.diagonal().rsqrt().diag(), mean),
        "whitened": ((vectors * values.rsqrt()) @ vectors.mT, mean),
    }
    return {name: _affine(W, shift) for name, (W, shift) in parts.items()}


def _affine(W: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    T = torch.block_diag(W, torch.ones(1, 1, dtype=W.dtype))
    T[:-1, -1] = -W @ shift
    return T


def _pulled_back(T: torch.Tensor) -> Callable:
    """Return the metric that makes steepest descent in coordinates T z a step on the parameters of
    z.
    """
    inverse = torch.linalg.inv(T)
    return lambda theta: inverse @ inverse.mT


# ---- Section 2.7


@dataclass(frozen=True, kw_only=True)
class LBFGS(Settings):
    """L-BFGS on a pair of digits: iterations in a block, most blocks, and the excess loss to
    reach.
    """

    size: int = 7
    ridge: float = 1e-5
    target: float = 1e-6
    block: int = 10
    blocks: int = 60


@experiment("whitening_lbfgs", quick=LBFGS())
def lbfgs(settings: LBFGS) -> dict:
    """Evaluations of L-BFGS in theta, in phi (fixed and renewed), and with natural gradients passed
    blindly.
    """
    pair = problems.DIGIT_PAIRS[settings.seed]
    x, t = problems.digit_pair(pair, settings.size)
    problem = problems.logistic(problems.with_bias(x), t, settings.ridge, settings.target)
    ways: dict[str, dict[str, Any]] = {
        "theta": {},
        "phi": {"period": None},
        "renewed": {"period": 1},
        "blind": {"blind": True},
    }
    runs = {name: _lbfgs_run(problem, settings, **options) for name, options in ways.items()}
    runs |= {
        f"{name}_scipy": _scipy_run(problem, settings, blind=name == "blind")
        for name in ("theta", "blind")
    }
    limit = 2 * settings.block * settings.blocks
    capped = {name: run[0] or limit for name, run in runs.items()}
    return {
        "pair": list(pair),
        "evaluations": {name: run[0] for name, run in runs.items()},
        "excess": {name: run[1] for name, run in runs.items()},
        **{f"speedup_{name}": capped["theta"] / capped[name] for name in capped if name != "theta"},
        **{f"reached_{name}": run[0] is not None for name, run in runs.items()},
    }


def _scipy_run(problem: Problem, settings: LBFGS, blind: bool) -> tuple[int | None, float]:
    """Return the same as :func:`_lbfgs_run` for scipy's L-BFGS-B."""
    excess = []

    def function(point: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(point)[None]
        excess.append(float(problem.loss(theta)[0]))
        g = problem.gradient(theta)[0]
        return excess[-1], (
            torch.linalg.solve(problem.metrics["fisher"](theta)[0], g) if blind else g
        ).numpy()

    options = {
        "maxfun": 2 * settings.block * settings.blocks,
        "maxiter": 10_000,
        "ftol": 1e-15,
        "gtol": 1e-12,
    }
    end = minimize(function, problem.start.numpy(), jac=True, method="L-BFGS-B", options=options)
    reached = first_below(torch.tensor(excess), problem.target)
    return (None if reached is None else reached + 1), float(
        problem.loss(torch.from_numpy(end.x)[None])[0]
    )


def _lbfgs_run(
    problem: Problem, settings: LBFGS, blind: bool = False, **space: Any
) -> tuple[int | None, float]:
    """Return the number of evaluations to the target (None if never) and the excess loss at the
    end.
    """
    theta = problem.start.clone().requires_grad_()
    evaluations, reached = 0, None

    def closure() -> Any:
        nonlocal evaluations, reached
        evaluations += 1
        value = problem.loss(theta.detach()[None])[0]
        if reached is None and float(value) <= problem.target:
            reached = evaluations
        g = problem.gradient(theta.detach()[None])[0]
        theta.grad = torch.linalg.solve(fisher(), g) if blind else g
        return value

    def fisher() -> torch.Tensor:
        return problem.metrics["fisher"](theta.detach()[None])[0]

    def inner(params: list[torch.Tensor]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(
            params,
            max_iter=settings.block,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-12,
            tolerance_change=1e-16,
        )

    optimizer = natural_space([theta], fisher, inner, **space) if space else inner([theta])
    for _ in range(settings.blocks):
        optimizer.step(closure)
        if reached is not None:
            break
    return reached, float(problem.loss(theta.detach()[None])[0])


# ---- Sections 2.8, 2.9


@dataclass(frozen=True, kw_only=True)
class CurveFit(Settings):
    """A least-squares fit of two tanh units: noise, number of points, target, most steps."""

    noise: float = 0.0
    n: int = 50
    target: float = 1e-3
    steps: int = 2000


@experiment("whitening_curve_fit", quick=CurveFit())
def curve_fit(settings: CurveFit) -> dict:
    """Eq. 39 against Eq. 41 on a least-squares fit."""
    problem = problems.curve_fit(settings.noise, settings.n, settings.generator(), settings.target)
    runs = compare(problem, (None, "eq39", "eq41"), settings.steps)
    return {
        **summary(runs, settings.steps),
        "lowest": {name: float(run.curve.min()) for name, run in runs.items()},
    }


@dataclass(frozen=True, kw_only=True)
class InputDistribution(Settings):
    """A pair of digits: image size, ridge, target, most steps, and samples drawn for each
    artificial distribution.
    """

    size: int = 7
    ridge: float = 1e-5
    target: float = 1e-2
    steps: int = 5000
    samples: int = 1000


@experiment("whitening_input_distribution", quick=InputDistribution())
def input_distribution(settings: InputDistribution) -> dict:
    """Eq. 41 with inputs from the data, from a Gaussian of the same covariance, and from an
    isotropic one.
    """
    pair = problems.DIGIT_PAIRS[settings.seed]
    x, t = problems.digit_pair(pair, settings.size)
    problem = problems.logistic(problems.with_bias(x), t, settings.ridge, settings.target)
    noise = _normal(settings, settings.samples, x.shape[1])
    cov = torch.cov(x.mT, correction=0)
    spread = {
        "gaussian": torch.linalg.cholesky(cov + 1e-9 * torch.eye(len(cov)).double()).mT,
        "isotropic": cov.diagonal().mean().sqrt() * torch.eye(len(cov)).double(),
    }
    for name, root in spread.items():
        z = problems.with_bias(x.mean(0) + noise @ root)
        problem.metrics[name] = problems.logistic_fisher(z, settings.ridge)
    runs = compare(problem, (None, "fisher", *spread), settings.steps)
    return {"pair": list(pair), **summary(runs, settings.steps)}


@dataclass(frozen=True, kw_only=True)
class Separation(Settings):
    """Three photographs, mixed: condition number of the mixture, image size, excess loss to reach,
    most steps.
    """

    condition: float = 10.0
    size: int = 48
    target: float = 1e-3
    steps: int = 1000


@experiment("whitening_separation", quick=Separation())
def separation(settings: Separation) -> dict:
    """Blind separation of three mixed photographs by the plain gradient and by Eq. 43."""
    sources = problems.differences(problems.photographs(settings.size))
    sources = sources / sources.std(1, keepdim=True)
    floor = float(
        descend(
            problems.separation(sources, -torch.inf), "relative", steps=300, rates=(0.2,)
        ).curve[-1]
    )
    A = problems.mixing(3, settings.condition, settings.generator())
    problem = problems.separation(A @ sources, settings.target, floor)
    runs = compare(problem, (None, "relative"), settings.steps)
    return {
        **summary(runs, settings.steps),
        "excess": {name: float(run.curve[-1]) for name, run in runs.items()},
        **{f"equivariance_{name}": _equivariance(sources, A, name == "relative") for name in runs},
    }


def _equivariance(sources: torch.Tensor, A: torch.Tensor, relative: bool, steps: int = 20) -> float:
    """Return the largest change of W A when sources and start are mixed by A (20 steps of 0.02)."""
    plain, mixed = problems.separation(sources, 0.0), problems.separation(A @ sources, 0.0)
    W, V = torch.eye(3, dtype=A.dtype), torch.linalg.inv(A)
    for _ in range(steps):
        W, V = (
            M - 0.02 * _relative(p.gradient(M.reshape(1, -1)).reshape(3, 3), M, relative)
            for p, M in ((plain, W), (mixed, V))
        )
    return float((V @ A - W).abs().max())


def _relative(gradient: torch.Tensor, W: torch.Tensor, relative: bool) -> torch.Tensor:
    return gradient @ W.mT @ W if relative else gradient


# ---- Today's rivals


@dataclass(frozen=True, kw_only=True)
class Rivals(Settings):
    """One method with one step size and momentum on one of three problems, and its most steps.

    Problems: "digits" (the seed chooses one of 45 pairs), "machine", "separation". Methods: "sgd",
    "adamw", "natural", "whitened" (a constant metric, of the inputs or of the energy), and "muon"
    for the square matrix of "separation".
    """

    problem: str = "digits"
    method: str = "natural"
    lr: float = 1.0
    momentum: float = 0.0
    steps: int = 2000


@experiment("whitening_rivals", quick=Rivals(steps=10), chapter=Rivals(), tuning=Rivals())
def rivals(settings: Rivals) -> dict:
    """Steps and processor seconds of one method with momentum to the target of a problem."""
    problem = racing.problem_of(settings.problem, settings.seed, settings.generator())
    metric = racing.METRICS[settings.problem].get(settings.method)
    theta = torch.nn.Parameter(problem.start.clone()[None])
    move = racing.mover(problem, theta, settings.method, metric, settings.lr, settings.momentum)
    clock, first = Clock(), float(problem.loss(theta.detach()))
    best = first
    for step in range(settings.steps + 1):
        finite = bool(theta.isfinite().all())
        loss = float(problem.loss(theta.detach())) if finite else float("inf")
        if not loss <= 1e6 * abs(first):
            break
        best = min(best, loss)
        if loss <= problem.target:
            return {"steps_to_target": step, "seconds_to_target": clock.seconds, "best": best}
        with clock:
            move(problem.gradient(theta.detach()))
    return {"steps_to_target": None, "seconds_to_target": None, "best": best}


# ---- Section 2.10


@dataclass(frozen=True, kw_only=True)
class WrongMetric(Settings):
    """Random quadratics: how many, their dimension, condition number, and the factor by which the
    loss shall fall.
    """

    problems: int = 20
    dim: int = 8
    condition: float = 1000.0
    target: float = 1e-6


@experiment("whitening_wrong_metric", quick=WrongMetric())
def wrong_metric(settings: WrongMetric) -> dict:
    """Steps on random quadratics with a guessed inverse metric H, good and bad."""
    generator = settings.generator()
    steps: dict[str, list[float]] = {}
    downhill = []
    for _ in range(settings.problems):
        G, start = _quadratic(settings, generator)
        for name, H in _guesses(G, generator).items():
            steps.setdefault(name, []).append(_quadratic_steps(G, H, start, settings.target))
            g = G @ start
            downhill.append(float(g @ H @ g) > 0)
    speedups = {
        f"speedup_{name}": [a / b for a, b in zip(steps["none"], steps[name], strict=True)]
        for name in steps
    }
    return {"steps_none": steps["none"], **speedups, "downhill": downhill}


def _quadratic(
    settings: WrongMetric, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a Hessian with log-uniform eigenvalues from 1/condition to 1 in a random basis, and a
    normal start.
    """
    spread = torch.rand(settings.dim, generator=generator, dtype=torch.float64)
    spread[0], spread[1] = 0, 1
    Q = torch.linalg.qr(
        torch.randn(settings.dim, settings.dim, generator=generator, dtype=torch.float64)
    )[0]
    start = torch.randn(settings.dim, generator=generator, dtype=torch.float64)
    return (Q * settings.condition**-spread) @ Q.mT, start


def _guesses(G: torch.Tensor, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return inverse metrics by name, from exact through noisy to unrelated.

    noise_s: the root of G times I + s E, with E standard normal, is the root of the guess, so that
    every eigenvalue has the relative error s. shift_s: s times the mean eigenvalue times a random
    Wishart matrix is added.
    """
    dim, root = len(G), torch.linalg.cholesky(G)
    eye = torch.eye(dim, dtype=G.dtype)

    def normal(rows: int = dim) -> torch.Tensor:
        return torch.randn(rows, dim, generator=generator, dtype=G.dtype)

    def noisy(size: float) -> torch.Tensor:
        factor = root @ (eye + size * normal())
        return torch.linalg.inv(factor @ factor.mT)

    def shifted(size: float) -> torch.Tensor:
        E = normal()
        return torch.linalg.inv(G + size * G.diagonal().mean() * E @ E.mT / dim)

    def sampled(n: int) -> torch.Tensor:
        x = normal(n) @ root.mT
        return torch.linalg.inv(x.mT @ x / n)

    E = normal()
    return {
        "none": eye,
        "exact": torch.linalg.inv(G),
        "diagonal": G.diagonal().reciprocal().diag(),
        "noise_001": noisy(0.01),
        "noise_01": noisy(0.1),
        "noise_03": noisy(0.3),
        "noise_1": noisy(1.0),
        "shift_001": shifted(0.01),
        "shift_01": shifted(0.1),
        "samples_16": sampled(2 * dim),
        "samples_80": sampled(10 * dim),
        "random": E @ E.mT / dim,
    }


def _quadratic_steps(G: torch.Tensor, H: torch.Tensor, start: torch.Tensor, target: float) -> float:
    """Return the steps of theta <- theta - eta H G theta until the loss has fallen by ``target``,
    at the best eta.

    The loss falls with every step, so the number of steps is found by bisection. The step sizes are
    2 / lambda_max times 0.05, 0.1, ..., 0.95.
    """
    lam, weight = quadratic_spectrum(G, H, start)
    shrink = (1 - torch.arange(1, 20)[:, None] / 20 * 2 * lam / lam[-1]).abs()

    def loss(log_steps: torch.Tensor) -> torch.Tensor:
        return (weight * shrink ** (2 * log_steps.exp()[:, None])).sum(-1) / weight.sum()

    low, high = torch.zeros(19, dtype=G.dtype), torch.full((19,), 60.0, dtype=G.dtype)
    for _ in range(60):
        middle = (low + high) / 2
        reached = loss(middle) <= target
        low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
    return max(1.0, float(high.exp().min()))
