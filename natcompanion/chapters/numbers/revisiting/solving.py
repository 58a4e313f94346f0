"""Section 8.3: solvers of the system, damping, the training run and the price of a product."""

import math
from functools import cache
from typing import Literal

import numpy as np
import scipy.sparse.linalg
import torch
from torch import nn

from natcompanion import metrics, optim
from natcompanion.chapters.experiments._revisiting_metrics import normal, small_network, textbook_cg
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table, digits
from natcompanion.chapters.statistics import Interval, interval, median, ratio_interval
from natcompanion.damping import LevenbergMarquardt
from natcompanion.likelihoods import Categorical, Gaussian
from natcompanion.optim.natural_gradient import Step
from natcompanion.solvers import Solution, minres, minres_qlp

Prediction = Literal["linear", "quadratic"]

LIKELIHOOD = Categorical()
PRODUCTS = 40
SOLVERS = {"cg": "conjugate gradients", "minres": "MINRES", "minres_qlp": "MINRES-QLP"}

# ---- Stored systems


def _systems(key: str) -> np.ndarray:
    return stored("revisiting_solvability.quick").values(key)


def minres_qlp_converged() -> np.ndarray:
    """Return for each system without a solution whether MINRES-QLP found the shortest answer."""
    return _systems("other_minres_qlp_converged")


def outside_share() -> float:
    """Return how many per cent of the gradient lie outside the range on the mean."""
    return 100 * interval(_systems("other_null")).mean


def in_words(reason: str) -> str:
    """Return a reason for stopping in words."""
    return reason.lower().replace("_", " ")


def solver_table() -> Table:
    """What the solvers of the library do with a metric of another batch."""
    rows = [
        [
            text,
            int(_systems(f"other_{solver}_converged").sum()),
            median(_systems(f"other_{solver}_length")),
            ", ".join(
                in_words(reason) for reason in sorted(set(_systems(f"other_{solver}_reason")))
            ),
        ]
        for solver, text in SOLVERS.items()
    ]
    count = len(minres_qlp_converged())
    return Table(
        ["solver", f"converged, of {count}", "length / shortest", "reason"],
        rows,
        f"The library's solvers on {count} systems whose metric comes from another batch, no "
        "damping. Length of the answer in units of the shortest least-squares solution, median.",
    )


# ---- One system, solved here


@cache
def system(batch: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the Fisher matrix, on "the same" batch as the gradient or "another", and the gradient.

    8 examples, 103 parameters.
    """
    generator = torch.Generator().manual_seed(3)
    model = small_network(generator)
    x, other = normal(generator, 8, 6), normal(generator, 8, 6)
    t = torch.randint(4, (8,), generator=generator)
    g = metrics.per_example_gradients(model, x, t, LIKELIHOOD).mean(0)
    return metrics.fisher(model, x if batch == "the same" else other, LIKELIHOOD), g


def shortest(A: torch.Tensor, b: torch.Tensor) -> float:
    """Return the length of the shortest least-squares solution."""
    return float((torch.linalg.pinv(A, rtol=1e-11, hermitian=True) @ b).norm())


@cache
def step_lengths(batch: str, damping: float) -> dict[str, list[float]]:
    """Return the length of x after 1, 2, ... products, for three solvers, and the shortest exact
    one.
    """
    G, g = system(batch)
    A = G + damping * torch.eye(len(g), dtype=g.dtype)
    counts = range(1, PRODUCTS + 1)
    lengths = {"conjugate gradients": [textbook_cg(A, g, k) for k in counts]}
    for name, solver in (("MINRES", minres), ("MINRES-QLP", minres_qlp)):
        lengths[name] = [float(solver(A, g, rtol=1e-10, max_iter=k).x.norm()) for k in counts]
    return {**lengths, "exact": [shortest(A, g)]}


def size_in_words(length: float) -> str:
    """Return a length as text; only its power of ten where rounding decides the digits."""
    if length < 1e4:
        return digits(length)
    return f"about 1e{round(math.log10(length))}" if length < 1e9 else "above 1e9"


def per_cent_outside(batch: str) -> float:
    """Return how many per cent of the gradient lie where the metric of a batch is zero."""
    G, g = system(batch)
    curvature, vectors = torch.linalg.eigh(G)
    outside = vectors[:, curvature < 1e-10 * curvature[-1]].mT @ g
    return 100 * float(outside.norm() / g.norm())


def verdict_of(solution: Solution) -> str:
    """Return what a solver of the library reports, in words."""
    text = in_words(solution.reason.name)
    return text if solution.converged else f"not converged: {text}"


def answers(A: torch.Tensor, b: torch.Tensor) -> list[tuple[str, str, torch.Tensor]]:
    """Return what SciPy's MINRES and two of ours say of a system: name, report, answer."""
    x, info = scipy.sparse.linalg.minres(A.numpy(), b.numpy())
    ours = [(f"our {solver.__name__}", solver(A, b)) for solver in (minres, minres_qlp)]
    return [
        ("SciPy's minres", "no success" if info else "success", torch.from_numpy(x)),
        *[(name, verdict_of(solution), solution.x) for name, solution in ours],
    ]


def residual_in_words(A: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> str:
    """Return the relative residual of an answer as text, small ones as a bound."""
    residual = float((b - A @ x).norm() / b.norm())
    return "below 1e-4" if residual < 1e-4 else f"{residual:.2f}"


def length_in_words(ratio: float) -> str:
    """Return a ratio of lengths as text; above 10 its power of ten, which every processor gives."""
    return digits(ratio) if ratio < 10 else f"above {10 ** math.floor(math.log10(ratio))}"


def scipy_table() -> Table:
    """SciPy's MINRES beside ours on a graded system and on one without a solution."""
    graded = torch.logspace(0, -8, 9, dtype=torch.float64).diag()
    systems = {
        "diagonal, 1 to 1e-8": (graded, torch.ones(9, dtype=torch.float64)),
        "metric on another batch": system("another"),
    }
    rows = [
        [
            name,
            solver,
            report,
            residual_in_words(A, b, x),
            length_in_words(float(x.norm()) / shortest(A, b)),
        ]
        for name, (A, b) in systems.items()
        for solver, report, x in answers(A, b)
    ]
    return Table(
        ["system", "solver", "reports", "residual", "length / shortest"],
        rows,
        "What three solvers report, the residual |b - A x| / |b| of their answers, and the length "
        "of x over that of the shortest least-squares solution.",
    )


# ---- Damping


def least_squares() -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    """Return a linear model of two outputs at a fixed start, 40 inputs and random targets."""
    model = nn.Linear(3, 2).double()
    with torch.no_grad():
        start = [[0.3, -0.2, 0.1], [0.0, 0.5, -0.4]]
        model.weight.copy_(torch.tensor(start, dtype=torch.float64))
        model.bias.zero_()
    generator = torch.Generator().manual_seed(4)
    return model, normal(generator, 40, 3), normal(generator, 40, 2)


def step_of(optimizer: optim.NaturalGradient, x: torch.Tensor, t: torch.Tensor) -> Step:
    """Make a step and return what it did."""
    optimizer.step(x, t)
    assert optimizer.last is not None
    return optimizer.last


def ratio_on_a_quadratic(eta: float, prediction: Prediction) -> float:
    """Return the reduction ratio of a step on least squares, "linear" (Eq. 30) or "quadratic"."""
    model, x, y = least_squares()
    damping = LevenbergMarquardt(1e-8)
    optimizer = optim.NaturalGradient(
        model, Gaussian(), eta, damping=damping, rtol=1e-12, prediction=prediction
    )
    return round(step_of(optimizer, x, y).rho, 6)


def ratio_table() -> Table:
    """The two reduction ratios on an exact quadratic."""
    rows = [
        [
            f"{eta:g}",
            ratio_on_a_quadratic(eta, "linear"),
            1 - eta / 2,
            ratio_on_a_quadratic(eta, "quadratic"),
        ]
        for eta in (0.1, 0.5, 1.0, 1.8)
    ]
    return Table(
        ["η", "Eq. 30", "1 - η/2", "Martens"],
        rows,
        "Reduction ratio of one step of size η on least squares, an exact quadratic: by Eq. 30, "
        "what it must be, and by Martens.",
    )


@cache
def noisy_labels() -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return 80 inputs, labels that no linear model explains, and the least mean loss of one."""
    generator = torch.Generator().manual_seed(5)
    x = normal(generator, 80, 3)
    t = LIKELIHOOD.sample(x, generator=generator)
    model = nn.Linear(3, 3).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # a random start would depend on what ran before
    optimizer = optim.NaturalGradient(
        model, LIKELIHOOD, 1.0, damping=1e-6, rtol=1e-12, max_iter=100
    )
    return x, t, min(step_of(optimizer, x, t).loss for _ in range(30))


@cache
def damping_run(eta: float, rule: str, first: float) -> dict[str, list[float]]:
    """Return damping, ratio and excess loss of at most 25 steps of softmax regression.

    ``rule`` is "Eq. 30" or "Martens". The run ends where rounding decides.
    """
    x, t, floor = noisy_labels()
    model = nn.Linear(3, 3).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(3) - 1)
        model.bias.copy_(torch.tensor([1.0, -1.0, 0.0]))
    prediction: Prediction = "linear" if rule == "Eq. 30" else "quadratic"
    damping = LevenbergMarquardt(first, minimum=1e-6)
    optimizer = optim.NaturalGradient(
        model, LIKELIHOOD, eta, damping=damping, prediction=prediction
    )
    run: dict[str, list[float]] = {"damping": [], "rho": [], "excess": []}
    for _ in range(25):
        step = step_of(optimizer, x, t)
        if step.loss - floor < 1e-9:
            break
        run["excess"].append(step.loss - floor)
        run["damping"].append(step.damping)
        run["rho"].append(step.rho)
    return run


def median_ratio(eta: float, rule: str, first: float) -> float:
    """Return the median reduction ratio of such a run."""
    return float(np.nanmedian(damping_run(eta, rule, first)["rho"]))


# ---- A training run, and the price of a product


def digits_setting(key: str) -> int:
    """Return a setting of the training run on digits."""
    return stored("revisiting_digits.chapter").records[0].settings[key]


def digits_updates() -> str:
    """Return after how many updates each run has no training error, as text.

    Raises
    ------
    ValueError
        If a run has errors left, or did not repeat an update to the last bit: the sentence would
        be wrong.
    """
    results = [run.values for run in stored("revisiting_digits.chapter")]
    if any(run["errors"][-1] != 0 or run["repeated"] != run["updates"] for run in results):
        raise ValueError(
            "revisiting_digits: a run with errors left, or with an update not repeated"
        )
    return " and ".join(str(updates) for updates in sorted(run["updates"] for run in results))


def product_cost() -> Interval:
    """Return the time of a Gauss-Newton product over that of a Hessian product: geometric mean."""
    results = stored("revisiting_products.quick")
    return ratio_interval(results.values("gauss_newton") / results.values("hessian"))
