"""The Gaussian of Sections 1.1 to 1.5 and 2.6, whose every path has a closed form."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from natcompanion import metrics
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.numbers.whitening._read import percent, positional, read
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import median
from natcompanion.whitening import whitening_matrix

METRICS = {
    "plain": "steepest descent",
    "fisher": "Fisher, Eq. 30",
    "data_fisher": "over the data, Eq. 31",
    "energy": "energy, Eq. 33",
    "centred_energy": "energy, centred",
    "diagonal": "diagonal, Eq. 34",
    "block_diagonal": "block diagonal",
}
GOAL = torch.zeros(2, dtype=torch.float64)

# ---- Section 1.1


def first_steps(
    steps: int = 5, rate: float = 0.1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the path of steepest descent from (1, -1), (steps + 1, 2), the angle in degrees
    between each next step and the goal, and the length of that step.
    """
    model, start = problems.example(), torch.tensor([1.0, -1.0], dtype=torch.float64)
    path = model.path(start, GOAL, lr=rate, steps=steps)
    step = -model.gradient(path, GOAL)
    cosine = torch.cosine_similarity(step, GOAL - path, dim=1)
    return path, torch.rad2deg(cosine.arccos()), rate * step.norm(dim=1)


def steepest_angle() -> float:
    """Return the largest angle, in degrees, between a step and the goal."""
    return float(first_steps()[1].max())


def step_length(step: int) -> float:
    """Return the length of one step of steepest descent."""
    return float(first_steps()[2][step])


def descent_table(kl: torch.Tensor, angle: torch.Tensor, length: torch.Tensor) -> Table:
    """Return the first steps of steepest descent, as the chapter computes them."""
    return Table(
        ["step", "KL", "angle", "length"],
        [[t, float(kl[t]), float(angle[t]), float(length[t])] for t in (0, 1, 2, 3, 5)],
        "Steepest descent from (1, -1), step size 0.1: KL divergence in nats, degrees between "
        "the next step and the goal, and its length.",
    )


def _equal_rates() -> dict[float, dict]:
    return {row["rate"]: row for row in read("figure1").records[0]["equal_rates"]}


def equal_steps(rule: str, kl: float, rate: float = 0.1) -> int:
    """Return the steps of the rule "plain" or "natural" to a divergence, at an equal step size."""
    return _equal_rates()[rate][f"{rule} {kl:g}"]


def overtakes(rate: float = 0.1) -> int:
    """Return the step from which the natural gradient is ahead for good."""
    return _equal_rates()[rate]["overtakes"]


def equal_rates_table() -> Table:
    """Return the steps of both rules to two divergences, by step size."""
    cells = [(rule, kl) for kl in (1e-3, 1e-4) for rule in ("plain", "natural")]
    return Table(
        [
            "step size",
            *("steepest to 0.001", "natural to 0.001"),
            *("steepest to 0.0001", "natural to 0.0001"),
            "natural ahead from step",
        ],
        [
            [f"{rate:g}", *(equal_steps(rule, kl, rate) for rule, kl in cells), overtakes(rate)]
            for rate in _equal_rates()
        ],
        "Steps to a KL of 0.001 and of 0.0001 at equal step sizes, and the step from which the "
        "natural gradient is ahead for good.",
    )


def natural_first() -> int:
    """Return at how many step sizes and divergences the natural gradient needs fewer steps."""
    return sum(
        equal_steps("natural", kl, rate) < equal_steps("plain", kl, rate)
        for rate in _equal_rates()
        for kl in (1e-3, 1e-4)
    )


def example_speedups(name: str) -> np.ndarray:
    """Return the speed-ups of a metric: from the paper's start, then from the random ones.

    Every record holds the paper's start first; it is taken once.
    """
    values = read("figure1").values(f"speedup_{name}")
    return np.concatenate([values[0, :1], values[:, 1:].ravel()])


def example_faster(name: str = "fisher") -> np.ndarray:
    """Return for each start whether a metric needs fewer steps than steepest descent."""
    return example_speedups(name) > 1


def example_table() -> Table:
    """Return the speed-ups of three metrics over the starts."""
    speedups = {n: example_speedups(n) for n in ("fisher", "data_fisher", "diagonal")}
    return Table(
        ["metric", "median", "least", "most", "share faster"],
        [
            [METRICS[n], median(v), v.min(), v.max(), percent(example_faster(n).mean())]
            for n, v in speedups.items()
        ],
        "Times fewer steps than steepest descent to a KL of 0.0001, each at its best step size: "
        f"the paper's start and {len(speedups['fisher']) - 1} random ones on the unit circle.",
    )


def gaussian_paths(
    lr: float, eps: float, start: torch.Tensor, steps: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return theta after each of the steps, (len(steps), 2), along three rules.

    All three multiply the part of theta along an eigenvector of eigenvalue lambda by 1 - lr gain
    lambda, where the gain is 1, 1/lambda and lambda / (lambda^2 + eps).
    """
    lam, vectors = torch.linalg.eigh(problems.example().fisher())
    gains = {
        "steepest": torch.ones_like(lam),
        "natural": 1 / lam,
        "eq35": regularized_gain(lam, eps),
    }
    along = vectors.mT @ start
    return {
        name: (((1 - lr * gain * lam) ** steps[:, None]).clamp(-1e50, 1e50) * along) @ vectors.mT
        for name, gain in gains.items()
    }


def example_kl(theta: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence in nats of the example from the data, (...,) for (..., 2)."""
    return problems.example().kl(theta, GOAL)


def steps_to(kl: torch.Tensor, target: float = 1e-4) -> str:
    """Return in words after how many steps a curve is below the target.

    Examples
    --------
    >>> steps_to(torch.tensor([1.0, 0.1, 1e-5]))
    '2 steps'
    """
    if not float(kl[-1]) < float(kl[0]):
        return "never, it diverges"
    below = (kl < target).nonzero()
    return f"{int(below[0])} steps" if len(below) else f"never (in {len(kl) - 1} steps)"


def example_steps(lr: float, eps: float, start: torch.Tensor) -> dict[str, str]:
    """Return for each rule in words how many steps it needs to a divergence of 0.0001."""
    paths = gaussian_paths(lr, eps, start, torch.arange(0, 100_001, dtype=torch.float64))
    return {name: steps_to(example_kl(path)) for name, path in paths.items()}


# ---- Sections 1.2 to 1.4


def spectrum_table(G: torch.Tensor) -> Table:
    """Return the eigenvalues of the Fisher matrix, and what they mean for the step size."""
    low, high = torch.linalg.eigvalsh(G).tolist()
    return Table(
        ["quantity", "value"],
        [
            ["smallest eigenvalue", low],
            ["largest eigenvalue", high],
            ["condition number", metrics.condition_number(G)],
            ["largest stable step size of steepest descent", 2 / high],
        ],
        "The Fisher matrix of the example.",
    )


def samples(correlation: float) -> torch.Tensor:
    """Return 400 samples of mean 0, standard deviations near 3 and 1 and about this correlation."""
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = torch.stack([x[:, 0], correlation * x[:, 0] + math.sqrt(1 - correlation**2) * x[:, 1]], 1)
    y = y * torch.tensor([3.0, 1.0], dtype=torch.float64)
    return y - y.mean(0)


def covariance(x: torch.Tensor) -> torch.Tensor:
    """Return the covariance of centred samples (n, d), with the divisor n."""
    return x.mT @ x / len(x)


def whitened(kind: Any, correlation: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples before and after whitening."""
    x = samples(correlation)
    return x, x @ whitening_matrix(covariance(x), kind).mT


def moved(kind: str, correlation: float) -> float:
    """Return by how much whitening moves the samples, root mean square."""
    x, y = whitened(kind, correlation)
    return float((x - y).square().sum(1).mean().sqrt())


def arrows() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return an 11 x 11 grid (121, 2) around the goal, and the unit vectors of steepest descent
    at its points, taken as parameters theta and as parameters phi; 0 at the goal.

    In phi, the gradient is the inverse root of the metric times that in theta.
    """
    G = problems.example().fisher()
    axis = torch.linspace(-1, 1, 11, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis).round(decimals=12)
    root = torch.linalg.inv(whitening_matrix(G))
    fields = {"theta": -grid @ G}
    fields["phi"] = torch.linalg.solve(root.mT, -G @ torch.linalg.solve(root, grid.mT)).mT
    return grid, {
        name: field / field.norm(dim=1, keepdim=True).clamp_min(1e-12)
        for name, field in fields.items()
    }


def grid_angles(name: str) -> torch.Tensor:
    """Return by how many degrees the arrows in "theta" or "phi" miss the goal, on the 120 points
    of the grid that are not the goal.
    """
    grid, fields = arrows()
    away = grid.norm(dim=1) > 0
    to_goal, arrow = -grid[away], fields[name][away]
    sine = arrow[:, 0] * to_goal[:, 1] - arrow[:, 1] * to_goal[:, 0]
    return torch.rad2deg(torch.atan2(sine.abs(), (arrow * to_goal).sum(1)))


def roots_table(differences: Mapping[str, float]) -> Table:
    """Return for each root whether its step in phi is the natural gradient step."""
    names = {"zca": "symmetric", "pca": "principal components", "cholesky": "Cholesky"}
    return Table(
        ["root W", "same step to 1e-12"],
        [[names[kind], size < 1e-12] for kind, size in differences.items()],
        "One step in φ against one natural gradient step in θ.",
    )


# ---- Section 2.6


def regularized_gain(lam: torch.Tensor, eps: float) -> torch.Tensor:
    """Return what Eq. 35 makes of the eigenvalues of the metric."""
    return lam / (lam.square() + eps)


def damped_gain(lam: torch.Tensor, eps: float) -> torch.Tensor:
    """Return what damping makes of them."""
    return 1 / (lam + eps)


def example_gains(eps: float) -> dict[str, list[float]]:
    """Return the gains of the small and the large eigenvalue of the example, and both
    eigenvalues.
    """
    lam = torch.linalg.eigvalsh(problems.example().fisher())
    return {
        "eigenvalue": lam.tolist(),
        "exact": (1 / lam).tolist(),
        "eq35": regularized_gain(lam, eps).tolist(),
        "damping": damped_gain(lam, eps).tolist(),
    }


def largest_gain(eps: float) -> float:
    """Return the largest gain that Eq. 35 gives to any eigenvalue, at the root of eps."""
    return 1 / (2 * math.sqrt(eps))


def solutions_table(eq35: torch.Tensor, ridge: torch.Tensor, damped: torch.Tensor) -> Table:
    """Return three solutions of G x = g."""
    named = {"Eq. 35": eq35, "ridge on Eq. 36": ridge, "damping": damped}
    return Table(
        ["solution of G x = g", "x1", "x2"],
        [[name, *solution.tolist()] for name, solution in named.items()],
        "The same ε = 0.01 in three solutions; the exact one is (1, -1).",
    )


def regularized_steps(rule: str, eps: float = 0.01) -> int | None:
    """Return the steps to a divergence of 0.0001 with "eq35" or "damping", at step size 1."""
    return {row["eps"]: row[rule] for row in read("regularization").records[0]["steps"]}[eps]


def regularization_table() -> Table:
    """Return these steps for every ε."""
    rows = read("regularization").records[0]["steps"]
    return Table(
        ["ε", "Eq. 35", "damping"],
        [[positional(row["eps"]), row["eq35"], row["damping"]] for row in rows],
        "Steps to a KL of 0.0001 on the paper's own example, step size 1.",
    )


def regularization_values() -> int:
    """Return from how many ε each remedy chooses on a noisy metric."""
    return len(read("regularization").records[0].settings["eps"])


def noisy_table() -> Table:
    """Return the largest losses of descent with a noisy metric, by remedy."""
    names = {"plain": "none", "inverse": "unregularized", "eq35": "Eq. 35", "damping": "damping"}
    loss = {text: read("regularization").values(f"loss_{n}") for n, text in names.items()}
    return Table(
        ["inverse used", "largest loss", "runs that went up"],
        [[text, f"1e{round(math.log10(v.max()))}", int((v > 1).sum())] for text, v in loss.items()],
        f"Largest loss of {len(loss['none'])} runs after 100 steps, in units of the first (order "
        "of magnitude), with a metric estimated from few samples at each step.",
    )


def inverse_decades() -> np.ndarray:
    """Return for each seed the decimal logarithm of the largest eigenvalue of the inverse."""
    return np.log10(read("regularization").values("largest_gain_inverse"))


def eq35_tames() -> np.ndarray:
    """Return for each seed whether the plain inverse explodes and Eq. 35 beats steepest descent."""
    results = read("regularization")
    better = results.values("loss_eq35") < results.values("loss_plain")
    return better & (results.values("loss_inverse") > 1)


def one_step_table(ratios: Mapping[float, float]) -> Table:
    """Return what one step with the exact metric makes of the divergence, by step size."""
    return Table(
        ["step size", "KL after / before"],
        [[f"{rate:g}", ratio] for rate, ratio in ratios.items()],
        "One step with the exact metric: 'will descend' holds for small enough steps.",
    )
