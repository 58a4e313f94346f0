"""What is summed on the spot: which Fisher matrix, its computation, Figure 1, and angles."""

from collections.abc import Mapping
from functools import cache

import torch

from natcompanion import boltzmann
from natcompanion.boltzmann import RBM
from natcompanion.chapters.experiments import boltzmann as experiment
from natcompanion.chapters.show import Table

EXACT = 1e-12


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rank(G: torch.Tensor) -> int:
    """Return the number of directions in which a metric is more than rounding."""
    return int(torch.linalg.matrix_rank(G, rtol=1e-9))


def rank_of_the_data_alone() -> int:
    """Return the rank of the Fisher matrix of p(v) of the machine of Section 2."""
    rbm = RBM.random(4, 3, scale=1.0, bias_scale=0.7, generator=_generator(5))
    return rank(boltzmann.marginal_fisher(rbm))


def metrics_table(joint: torch.Tensor, alone: torch.Tensor, gain: Mapping[str, float]) -> Table:
    """Return trace and rank of both metrics of Section 2, and the log-likelihood gained by a step
    along the plain gradient and by each of them.
    """
    metrics = {"joint": joint, "data alone": alone}
    plain = ["plain gradient", None, None, gain["plain gradient"]]
    rows = [[name, float(G.trace()), rank(G), gain[name]] for name, G in metrics.items()]
    return Table(
        ["metric", "trace", "rank of 19", "nats gained"], [plain, *rows], "One step of size 0.1."
    )


def computations_table(candidates: Mapping[str, torch.Tensor], exact: torch.Tensor) -> Table:
    """Return the relative error of each way to compute G; below 1e-12 it is 0."""
    errors = {name: float((M - exact).norm() / exact.norm()) for name, M in candidates.items()}
    return Table(
        ["computed as", "relative error of G"],
        [[name, error if error > EXACT else 0] for name, error in errors.items()],
        "Fisher matrix of a machine with 49 visible and 10 hidden units (549 parameters).",
    )


def equal_table(pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> Table:
    """Return whether both ways to each quantity agree."""
    return Table(
        ["quantity", "equal to 1e-12"],
        [[name, bool((a - b).abs().max() < EXACT)] for name, (a, b) in pairs.items()],
        "Sum over hidden states against all pairs of states, and against autograd.",
    )


def ten_steps_table(digits: torch.Tensor, start: RBM, plain: RBM, natural: RBM) -> Table:
    """Return the mean log-likelihood before and after ten steps of either rule."""

    def nats(rbm: RBM) -> float:
        return float(rbm.log_likelihood(digits).mean())

    rules = {"plain, step 0.5": plain, "natural, step 1": natural}
    return Table(
        ["rule", "start", "after 10 steps"],
        [[name, nats(start), nats(rbm)] for name, rbm in rules.items()],
        f"Mean log-likelihood in nats of {len(digits):,} digits.",
    )


# ---- Figure 1

FORMS = ("Fisher matrix", "inverse", "Cholesky factor", "whitening matrix")
VISIBLE, HIDDEN = 5, 3


@cache
def small_fisher(weights: float, biases: float = 1.0) -> torch.Tensor:
    """Return the Fisher matrix of a machine of five visible and three hidden units, whose weights
    and biases are multiplied by these factors.
    """
    rbm = RBM.random(VISIBLE, HIDDEN, scale=1.0, bias_scale=0.5, generator=_generator(4))
    return RBM(weights * rbm.W, biases * rbm.a, biases * rbm.b).fisher()


def form(name: str, weights: float) -> torch.Tensor:
    """Return one of the matrices of Figure 1."""
    return boltzmann.fisher_forms(small_fisher(weights))[FORMS.index(name)]


def largest(M: torch.Tensor) -> float:
    """Return the largest absolute entry."""
    return float(M.abs().max())


def zeros(M: torch.Tensor) -> int:
    """Return how many entries are zero up to rounding."""
    return int((M.abs() < EXACT).sum())


def condition(M: torch.Tensor) -> float:
    """Return the condition number."""
    return float(torch.linalg.cond(M))


def spectrum(weights: float, biases: float) -> torch.Tensor:
    """Return the eigenvalues of the Fisher matrix of the small machine, the largest first."""
    return torch.linalg.eigvalsh(small_fisher(weights, biases)).flip(0)


def squared_norm(weights: float, biases: float) -> float:
    """Return the sum of the squared eigenvalues."""
    return float(spectrum(weights, biases).square().sum())


def squared_distance_to_identity(weights: float, biases: float) -> float:
    """Return the squared Frobenius norm of G - I."""
    return float((spectrum(weights, biases) - 1).square().sum())


# ---- whitening


def ridge_cosine(eps: float) -> float:
    """Return the cosine of the exact whitened direction with this ridge to the undamped natural
    gradient, at the start of seed 0.
    """
    digits = experiment.binary_digits(7, 0, margin=1e-9)
    start = experiment.data_start(digits, 10, _generator(0))
    g, G = start.gradient(digits), start.fisher()
    natural = boltzmann.fisher.solve(G, g, 1e-6)
    return boltzmann.metric_cosine(G, boltzmann.exact_whitened_direction(start, g, eps), natural)


def equivariant_table(steps: Mapping[int, int]) -> Table:
    """Return the number of equivariant steps for each condition number."""
    return Table(
        ["condition number of C", "steps"],
        [[f"{condition:,}", count] for condition, count in steps.items()],
        "Mean equivariant steps of rate 0.1 until A C A' differs from the identity by 0.1.",
    )


def cosines_table(
    G: torch.Tensor, natural: torch.Tensor, ways: Mapping[str, torch.Tensor]
) -> Table:
    """Return the cosine of each direction to the natural gradient."""
    rows = [[name, boltzmann.metric_cosine(G, d, natural)] for name, d in ways.items()]
    return Table(["direction", "cosine to the natural gradient"], rows, "At W = 0.")
