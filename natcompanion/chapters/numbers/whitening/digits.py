"""Digits: whitened (Section 1.3), and told apart by logistic regression (1.4, 2.1, 2.2, 2.5,
2.7).
"""

from functools import cache
from typing import Any

import numpy as np
import torch

from natcompanion.chapters.numbers.whitening._read import (
    RIDGES,
    arrived,
    count,
    fraction,
    positional,
    read,
    ridge,
    setting,
    whole,
)
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import (
    Arrivals,
    Interval,
    ratio_interval,
    share_of_pairs,
    significant,
)
from natcompanion.data import mnist
from natcompanion.whitening import whitening_matrix

# ---- Section 1.3


@cache
def digit_covariance() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return six digits (6, 784), the mean of all 5000 and their covariance."""
    images, _ = mnist(split="all", dtype=torch.float64)
    x = images.flatten(1)
    six, mean = x[:6].clone(), x.mean(0)  # a view would keep all of them
    x = x.sub_(mean)
    return six, mean, x.mT @ x / len(x)


@cache
def digit_spectrum() -> torch.Tensor:
    """Return the eigenvalues of the covariance, the largest first."""
    return torch.linalg.eigvalsh(digit_covariance()[2]).flip(0)


@cache
def whitened_digits(kind: Any, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the six digits whitened, and the eigenvalues of the covariance of all after it."""
    x, mean, cov = digit_covariance()
    W = whitening_matrix(cov, kind, eps)
    return (x - mean) @ W.mT, torch.linalg.eigvalsh(W @ cov @ W.mT).flip(0)


def spectrum_counts(kind: str, eps: float) -> dict[str, int]:
    """Return how many eigenvalues exceed ε before, and how many are white and how many 0 after."""
    after = whitened_digits(kind, eps)[1]
    return {
        "above": int((digit_spectrum() > eps).sum()),
        "white": int((after > 0.5).sum()),
        "zero": int((after < 1e-6).sum()),
    }


# ---- Section 1.4

HOLDS = (1, 2, 5, 10, 20, 0)
PROBLEMS = ("digits", "boltzmann")


def held(problem: str, hold: int) -> np.ndarray:
    """Return the speed-up of a metric kept for ``hold`` steps (0: to the end), by problem."""
    return read("stale_metric").values(f"{problem}_speedup_hold_{hold}")


def held_speedup(problem: str, hold: int) -> float:
    """Return the median of these speed-ups."""
    return float(np.median(held(problem, hold)))


def held_left(problem: str) -> float:
    """Return how many per cent of the median speed-up are left when the metric is kept for ten
    steps.
    """
    return 100 * held_speedup(problem, 10) / held_speedup(problem, 1)


def held_wins() -> str:
    """Return on how many problems the metric kept for ten steps beats steepest descent."""
    wins = held_faster(10)
    return f"{sum(wins)} of the {len(wins)}"


def held_slower() -> float:
    """Return on how many per cent of the pairs of digits the first metric, kept, is slower."""
    return 100 * float((held("digits", 0) < 1).mean())


def fresh_steps() -> float | None:
    """Return the median number of steps that a fresh metric takes on the digits."""
    return whole(arrived("stale_metric", "digits_steps", "hold_1").median)


def held_missed() -> str:
    """Return on how many pairs of digits steepest descent missed the target."""
    found = arrived("stale_metric", "digits_steps", "plain")
    return f"{found.n - found.arrived} of the {found.n}"


def stale_table() -> Table:
    """Return the median speed-up by how long the metric is kept."""
    return Table(
        ["kept for", "digits", "Boltzmann machines"],
        [[hold or "all", *(held_speedup(p, hold) for p in PROBLEMS)] for hold in HOLDS],
        f"Times fewer steps than steepest descent, median over {count('stale_metric')} problems "
        "each, when the metric is kept for so many steps.",
    )


def held_faster(hold: int) -> list[bool]:
    """Return for each problem, digits and machines, whether the kept metric is faster than none."""
    return [bool(v > 1) for problem in PROBLEMS for v in held(problem, hold)]


def held_half_as_fast() -> list[bool]:
    """Return for each problem whether a metric kept for ten steps is at least half as fast as a
    fresh one.
    """
    return [bool(v >= 0.5) for problem in PROBLEMS for v in held(problem, 10) / held(problem, 1)]


# ---- Sections 2.1, 2.2

COORDINATES = {
    "rescaled": "pixels rescaled at random",
    "plain": "raw pixels",
    "whitened": "whitened",
    "standardized": "standardized",
    "fisher": "natural gradient",
}


def coordinate_arrivals(name: str) -> Arrivals:
    """Return how many samples of digits reach the target in these coordinates, and their steps."""
    return arrived("coordinates", "steps", name)


def coordinate_steps(name: str) -> list[int]:
    """Return the steps on every sample, in order; the limit stands for those without arrival."""
    limit = setting("coordinates", "steps")
    return sorted(record["steps"][name] or limit for record in read("coordinates"))


def coordinate_middle(name: str) -> str:
    """Return the median number of steps in words."""
    middle = coordinate_arrivals(name).median
    limit = setting("coordinates", "steps")
    return f"more than {limit}" if middle is None else f"{whole(middle)}"


def coordinate_missed(name: str) -> int:
    """Return how many samples did not arrive."""
    found = coordinate_arrivals(name)
    return found.n - found.arrived


def coordinate_speedup(name: str) -> float:
    """Return the median of times fewer steps than raw pixels."""
    return read("coordinates").median(f"speedup_{name}")


def coordinate_range(name: str) -> str:
    """Return the 95 % interval of its geometric mean."""
    found = coordinate_gain(name)
    return f"{significant(found.low)} to {significant(found.high)}"


def coordinate_table() -> Table:
    """Return the median speed-up by coordinates."""
    return Table(
        ["coordinates", "speed-up"],
        [[text, coordinate_speedup(n)] for n, text in COORDINATES.items() if n != "plain"],
        "Times fewer steps than raw pixels to 1 % of the first excess loss, median of "
        f"{count('coordinates')} samples of digits.",
    )


def coordinate_gain(name: str) -> Interval:
    """Return the geometric mean of times fewer steps than raw pixels."""
    return ratio_interval(read("coordinates").values(f"speedup_{name}"))


# ---- Section 2.5


def pair_speedups(name: str, strength: str) -> np.ndarray:
    """Return the speed-up of a metric on every pair of digits, with the weak or strong ridge."""
    return read("digit_pairs").values(f"speedup_{name}", ridge=RIDGES[strength])


def pairs() -> int:
    """Return the number of pairs of digits."""
    return len(pair_speedups("diagonal", "weak"))


def pairs_target() -> Any:
    """Return the target in per cent of the first excess loss."""
    return positional(100 * float(setting("digit_pairs", "target")))


def pairs_improved(strength: str) -> int:
    """Return on how many pairs the diagonal needs fewer steps than steepest descent."""
    return int((pair_speedups("diagonal", strength) > 1).sum())


def pairs_table() -> Table:
    """Return what the diagonal and the full Fisher matrix bring, by ridge."""
    return Table(
        ["ridge", "diagonal", "pairs improved", "full Fisher"],
        [
            [
                ridge(strength),
                float(np.median(pair_speedups("diagonal", strength))),
                f"{pairs_improved(strength)}/{pairs()}",
                float(np.median(pair_speedups("fisher", strength))),
            ]
            for strength in RIDGES
        ],
        f"Times fewer steps than steepest descent, median of {pairs()} pairs of digits, and on how "
        "many pairs the diagonal needs fewer.",
    )


def pairs_always(name: str) -> np.ndarray:
    """Return for each pair whether a metric is faster than none with both ridges."""
    return np.all([pair_speedups(name, strength) > 1 for strength in RIDGES], axis=0)


def _over_digits(experiment: str, values: Any) -> Interval:
    """Return a mean over the pairs with its interval over the digits, which pairs share."""
    chosen = read(experiment).select(ridge=RIDGES["weak"])
    return share_of_pairs(values, [record["pair"] for record in chosen])


def pairs_share(name: str) -> Interval:
    """Return the share of pairs and ridges with which a metric is faster than none, by digits."""
    faster = [pair_speedups(name, strength) > 1 for strength in RIDGES]
    return _over_digits("digit_pairs", np.mean(faster, axis=0))


# ---- Section 2.7

WAYS = {
    "theta": "in θ",
    "phi": "in φ, fixed at the start",
    "renewed": "in φ, renewed every 10",
    "blind": "natural gradients passed blindly",
    "theta_scipy": "in θ, scipy",
    "blind_scipy": "passed blindly, scipy",
}


def lbfgs_arrivals(way: str, strength: str) -> Arrivals:
    """Return how many pairs L-BFGS solves, and its median number of evaluations."""
    return arrived("lbfgs", "evaluations", way, ridge=RIDGES[strength])


def lbfgs_evaluations(way: str, strength: str = "weak") -> float | None:
    """Return the median number of evaluations over all pairs, None if half are never solved."""
    return whole(lbfgs_arrivals(way, strength).median)


def lbfgs_reached(way: str, strength: str = "weak") -> str:
    """Return on how many pairs L-BFGS reaches the target."""
    return fraction(lbfgs_arrivals(way, strength))


def blind_stops() -> float:
    """Return the median per cent of the first excess loss at which scipy's blind search stops."""
    chosen = read("lbfgs").select(ridge=RIDGES["weak"])
    return 100 * float(np.median([record["excess"]["blind_scipy"] for record in chosen]))


def lbfgs_faster(way: str, strength: str) -> np.ndarray:
    """Return for each pair whether a way needs fewer evaluations than L-BFGS in θ."""
    return read("lbfgs").values(f"speedup_{way}", ridge=RIDGES[strength]) > 1


def blind_slower(strength: str) -> np.ndarray:
    """Return for each pair whether blind L-BFGS is slower than L-BFGS in θ."""
    return read("lbfgs").values("speedup_blind", ridge=RIDGES[strength]) < 1


def blind_share(strength: str) -> Interval:
    """Return the share of pairs on which it is slower, with an interval over the digits."""
    return _over_digits("lbfgs", blind_slower(strength))


def blind_slower_pairs() -> str:
    """Return on how many pairs it is, with the strong ridge."""
    slower = blind_slower("strong")
    return f"{slower.sum()} of {slower.size}"


def blind_fails() -> np.ndarray:
    """Return for each pair whether scipy's blind search never reaches the target (weak ridge)."""
    return ~read("lbfgs").values("reached_blind_scipy", ridge=RIDGES["weak"])


def renewed_share() -> Interval:
    """Return the share of pairs and ridges with which renewed L-BFGS in φ is faster, by digits."""
    faster = [lbfgs_faster("renewed", strength) for strength in RIDGES]
    return _over_digits("lbfgs", np.mean(faster, axis=0))


def lbfgs_table() -> Table:
    """Return how many pairs each way solves, and with how many evaluations."""
    heads = ["reached", "evaluations"]
    return Table(
        ["L-BFGS", *heads, *[f"{head}, ridge {ridge('strong')}" for head in heads]],
        [
            [text, *(f(way, s) for s in RIDGES for f in (lbfgs_reached, lbfgs_evaluations))]
            for way, text in WAYS.items()
        ],
        f"{pairs()} pairs of digits, ridge {ridge('weak')} unless stated: pairs on which "
        "0.000001 of the first excess loss is reached, and the median number of evaluations over "
        "all pairs (a dash where half of them are never solved); torch's L-BFGS with a strong "
        "Wolfe search, and scipy's.",
    )


# ---- Footnote 4


def inputs_always() -> np.ndarray:
    """Return for each pair whether the metric is faster than none with all three distributions of
    the inputs.
    """
    results = read("input_distribution")
    names = ("fisher", "gaussian", "isotropic")
    return np.all([results.values(f"speedup_{name}") > 1 for name in names], axis=0)
