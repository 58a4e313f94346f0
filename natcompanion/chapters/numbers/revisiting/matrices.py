"""Sections 3 and 4: the metric on other inputs, and the covariance beside it."""

import numpy as np

from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval, median

QUANTILES = (0.05, 0.5, 0.95)


def quantiles(values: np.ndarray) -> np.ndarray:
    """Return the 5 %, 50 % and 95 % quantiles over the first axis; (3, ...)."""
    return np.quantile(values, QUANTILES, axis=0)


# ---- A metric on unbalanced inputs


def _unbalanced(key: str) -> np.ndarray:
    return stored("revisiting_unbalanced.quick").values(key)


def unbalanced_networks() -> int:
    """Return the number of networks."""
    return len(stored("revisiting_unbalanced.quick"))


def unbalanced_updates() -> int:
    """Return the number of updates."""
    return stored("revisiting_unbalanced.quick").records[0].settings["updates"]


def unbalanced_ratios(inputs: str) -> np.ndarray:
    """Return for each network the first step's change on A over that on B, with the metric on
    "balanced" inputs or on those with A "doubled".
    """
    return _unbalanced(f"ratio_{inputs}")


def slower_on_a() -> np.ndarray:
    """Return in decades how much less the first step changes A over B if the metric has A twice."""
    return np.log10(unbalanced_ratios("doubled") / unbalanced_ratios("balanced"))


def networks_slower_on_a() -> int:
    """Return in how many networks it changes A less."""
    return int((slower_on_a() < 0).sum())


def probability_gained() -> np.ndarray:
    """Return how many points of probability A gains if the metric has A twice."""
    return 100 * (_unbalanced("probability_doubled") - _unbalanced("probability_balanced"))


def probability_lost() -> Interval:
    """Return how many points of probability A loses: mean over the networks."""
    return interval(-probability_gained())


def unbalanced_table() -> Table:
    """What the step and the training do to class A."""
    rows = [
        [
            text,
            median(unbalanced_ratios(key)),
            100 * interval(_unbalanced(f"probability_{key}")).mean,
        ]
        for text, key in (("balanced inputs", "balanced"), ("inputs with A twice", "doubled"))
    ]
    return Table(
        ["metric on", "change on A / on B", "probability of A, %"],
        rows,
        "KL divergence of the first step on class A over that on B, median of "
        f"{unbalanced_networks()} networks, and the mean probability of A on new balanced inputs "
        f"after {unbalanced_updates()} updates.",
    )


# ---- Ranks, and what happens at convergence


def _convergence(key: str) -> np.ndarray:
    return stored("revisiting_convergence.quick").values(key)


def convergence_networks() -> int:
    """Return the number of networks."""
    return len(stored("revisiting_convergence.quick"))


def ranks(matrix: str) -> str:
    """Return the ranks that a matrix ("fisher", "empirical" or "covariance") has, as text."""
    return " or ".join(str(rank) for rank in sorted(set(_convergence(f"rank_{matrix}").tolist())))


def rank_table() -> Table:
    """The ranks of G, U and C."""
    rows = [
        [letter, ranks(name)]
        for letter, name in (("G", "fisher"), ("U", "empirical"), ("C", "covariance"))
    ]
    return Table(
        ["matrix", "rank"],
        rows,
        "Rank of three matrices on 8 examples with 4 classes, over "
        f"{convergence_networks()} networks. For softmax outputs the bound "
        "of G is n (o - 1): one direction changes nothing.",
    )


def last_distance(key: str) -> np.ndarray:
    """Return for each network a distance from G at its last point: most labels, sharpest outputs.

    ``key`` is "sampled" (U, the model's labels), "certain_empirical" (U) or "certain_hessian".
    """
    return _convergence(key)[:, -1]


def distance_points(key: str) -> list[float]:
    """Return where these distances were measured: numbers of labels, factors on the logits."""
    settings = stored("revisiting_convergence.quick").records[0].settings
    return settings["samples" if key == "sampled" else "sharpen"]


def distance_band(key: str) -> np.ndarray:
    """Return the quantiles of a distance from G over the networks at each point; (3, points)."""
    return quantiles(_convergence(key))


# ---- Plateaus, variances


def _speed_kept(step: str) -> np.ndarray:
    """Return the divergence of a step on the plateau over that before it, for each network."""
    moved = stored("revisiting_plateau.quick").values(step)
    return moved[:, -1] / moved[:, 0]


def speed_kept_beyond_gradient(step: str) -> np.ndarray:
    """Return how many decades of speed less than gradient descent a step loses on the plateau."""
    return np.log10(_speed_kept(step)) - np.log10(_speed_kept("gradient"))


def plateau_table() -> Table:
    """Quantiles of the speed that each step keeps."""
    rows = [
        [text, *quantiles(_speed_kept(name)).tolist()]
        for name, text in (
            ("gradient", "gradient descent"),
            ("natural", "natural gradient"),
            ("covariance", "uncentred covariance U"),
        )
    ]
    results = stored("revisiting_plateau.quick")
    return Table(
        ["step", "5 %", "median", "95 %"],
        rows,
        "KL divergence moved by a step on the plateau (input weights times "
        f"{results.records[0].settings['factors'][-1]:g}), in units of that before; quantiles of "
        f"{len(results)} networks, damping 1e-6.",
    )


def variance_correlation() -> np.ndarray:
    """Return for each network the rank correlation of curvature and variance of the gradients."""
    return stored("revisiting_variances.quick").values("random")
