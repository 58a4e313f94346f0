"""Losses that are no likelihoods, square matrices, and guessed metrics: Sections 2.8 to 2.10."""

import math
from functools import cache

import numpy as np
import torch

from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.experiments._descent import RATES, Problem
from natcompanion.chapters.numbers.whitening._read import (
    arrived,
    count,
    fraction,
    percent,
    read,
    setting,
    whole,
)
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import best

# ---- Section 2.8

NOISES = (0.0, 0.1)


def fits() -> int:
    """Return how many curves are fitted, at each level of noise."""
    return count("curve_fit", noise=NOISES[0])


def fit_reached(name: str, noise: float) -> str:
    """Return on how many fits a metric reaches the target."""
    return fraction(arrived("curve_fit", "steps", name, noise=noise))


def fit_steps(name: str, noise: float) -> float | None:
    """Return the median number of steps over all fits, None if half never arrive."""
    return whole(arrived("curve_fit", "steps", name, noise=noise).median)


def curve_fit_table() -> Table:
    """Return how many fits each metric solves, and in how many steps."""
    names = {"plain": "steepest descent", "eq39": "Eq. 39", "eq41": "Eq. 41"}
    return Table(
        ["metric", "reached", "steps", "reached, noise 0.1", "steps"],
        [
            [text, *(f(n, noise) for noise in NOISES for f in (fit_reached, fit_steps))]
            for n, text in names.items()
        ],
        f"Fits that reach 0.001 of the first excess loss within {setting('curve_fit', 'steps')} "
        "steps, and the median number of steps over all fits (a dash where half of them never "
        "arrive); without and with noise.",
    )


def fits_faster(name: str, noise: float) -> np.ndarray:
    """Return for each fit at a level of noise whether a metric is faster than none."""
    return read("curve_fit").values(f"speedup_{name}", noise=noise) > 1


def fits_accelerated(name: str) -> np.ndarray:
    """Return for each fit the share of the levels of noise at which a metric is."""
    return np.mean([fits_faster(name, noise) for noise in NOISES], axis=0)


# ---- Section 2.9

CONDITIONS = (1.0, 10.0, 100.0)


def separated(condition: float, rule: str) -> str:
    """Return on how many mixings the rule "plain" or "relative" reaches the target."""
    return fraction(arrived("separation", "steps", rule, condition=condition))


def separation_table() -> Table:
    """Return what Eq. 43 brings at each condition number of the mixing."""
    results = read("separation")
    return Table(
        [
            "condition",
            "plain reached",
            "Eq. 43 reached",
            "speed-up",
            "plain: W A differs by",
            "Eq. 43: W A same",
        ],
        [
            [
                f"{condition:g}",
                separated(condition, "plain"),
                separated(condition, "relative"),
                results.median("speedup_relative", condition=condition),
                round(results.median("equivariance_plain", condition=condition), 3),
                bool((results.values("equivariance_relative", condition=condition) < 1e-10).all()),
            ]
            for condition in CONDITIONS
        ],
        f"Separations to an excess loss of 0.001 nats within {setting('separation', 'steps')} "
        f"steps, and median speed-up, {count('separation', condition=1.0)} mixings for each "
        "condition number. Last columns: change of W A when sources and start are mixed, median, "
        "and whether Eq. 43 leaves it the same.",
    )


def threefold(*conditions: float) -> np.ndarray:
    """Return for each seed whether Eq. 43 is at least three times as fast at all these condition
    numbers of the mixing.
    """
    results = read("separation")
    values = [results.values("speedup_relative", condition=condition) for condition in conditions]
    return np.all([value >= 3 for value in values], axis=0)


def separation_residuals() -> np.ndarray:
    """Return for each seed the largest change of W A when sources and start are mixed, Eq. 43."""
    results = read("separation")
    values = [results.values("equivariance_relative", condition=c) for c in CONDITIONS]
    return np.max(values, axis=0)


@cache
def unmixed(
    condition: float, relative: bool, steps: int = 100
) -> tuple[torch.Tensor, torch.Tensor, float, float]:
    """Return three mixed and three recovered photographs, the Amari error, and the step size (best
    of the grid).
    """
    images = problems.photographs(48)
    sources = problems.differences(images)
    scale = sources.std(1, keepdim=True)
    A = problems.mixing(3, condition, torch.Generator().manual_seed(0))
    mixed = A @ (sources / scale)
    rate, W = _best_unmixing(problems.separation(mixed, -math.inf), steps, relative)
    shown = (images.flatten(1) - images.flatten(1).mean(1, keepdim=True)) / scale
    through = W @ A
    largest = through.abs().argmax(1, keepdim=True)
    signs = through.gather(1, largest).sign()  # the sign of an output is free
    return A @ shown, signs * (through @ shown), problems.amari_error(through), rate


def _best_unmixing(problem: Problem, steps: int, relative: bool) -> tuple[float, torch.Tensor]:
    """Return the step size with the least loss after so many steps, and its matrix."""
    rates = [rate for rate in RATES if 0.01 <= rate <= 2]
    found = {rate: _unmix(problem, rate, steps, relative) for rate in rates}
    costs = {rate: float(problem.loss(W.reshape(1, 9))[0]) for rate, W in found.items()}
    rate = best(costs.items())
    return rate, found[rate]


def _unmix(problem: Problem, rate: float, steps: int, relative: bool) -> torch.Tensor:
    """Return the matrix after so many steps from the identity, NaN if it diverged."""
    W = torch.eye(3, dtype=problem.start.dtype)
    for _ in range(steps):
        g = problem.gradient(W.reshape(1, 9)).reshape(3, 3)
        W = W - rate * (g @ W.mT @ W if relative else g)
        if not bool((W.abs() < 1e6).all()):
            return torch.full_like(W, torch.nan)
    return W


# ---- Section 2.10

GUESSES = {
    "exact": "exact inverse",
    "noise_001": "1 % noise",
    "noise_01": "10 % noise",
    "noise_03": "30 % noise",
    "noise_1": "100 % noise",
    "samples_80": "from 80 samples",
    "samples_16": "from 16 samples",
    "diagonal": "diagonal only",
    "random": "random matrix",
}


def guess_speedups(name: str) -> np.ndarray:
    """Return the speed-up of a guess on every quadratic."""
    return read("wrong_metric").values(f"speedup_{name}").ravel()


def quadratics() -> int:
    """Return the number of quadratics."""
    return len(guess_speedups("exact"))


def guess_middle(name: str) -> float:
    """Return the median speed-up of a guess."""
    return float(np.median(guess_speedups(name)))


def guess_faster(name: str) -> np.ndarray:
    """Return for each quadratic whether a guess is faster than none."""
    return guess_speedups(name) > 1


def guess_slower(name: str) -> np.ndarray:
    """Return for each quadratic whether a guess is slower than none."""
    return guess_speedups(name) < 1


def guess_tenfold(name: str) -> np.ndarray:
    """Return for each quadratic whether a guess is at least ten times as fast as none."""
    return guess_speedups(name) >= 10


def guess_worse(name: str) -> float:
    """Return on how many per cent of the quadratics a guess is slower than none."""
    return 100 * float(guess_slower(name).mean())


def downhill() -> np.ndarray:
    """Return for each guess on each quadratic whether its direction descends."""
    return read("wrong_metric").values("downhill").ravel()


def downhill_cases() -> str:
    """Return in how many cases the direction descends."""
    return f"{downhill().sum()} of the {downhill().size}"


def guesses_table() -> Table:
    """Return what each guess brings."""
    return Table(
        ["guess", "median", "worse than none"],
        [[text, guess_middle(n), percent(guess_slower(n).mean())] for n, text in GUESSES.items()],
        f"Times fewer steps than steepest descent, and share of the {quadratics()} quadratics on "
        "which the guess is slower.",
    )
