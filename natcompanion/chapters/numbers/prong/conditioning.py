"""Sections 2 to 4.1: the Fisher matrix of the middle layer, its condition numbers, and how close
a step is to the natural gradient.
"""

import copy
from functools import cache, lru_cache

import numpy as np
import torch

from natcompanion.chapters.experiments import Results
from natcompanion.chapters.experiments import _prong_fisher as fisher
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval, median, ratio_interval

from .words import METHODS, Band, band, looks

TRAINED = ("sgd", "rmsprop", "batchnorm", "prong")
"""The methods of Figure 2c."""


@cache
def _figure_2() -> tuple[torch.nn.Sequential, torch.Tensor, int, torch.Tensor]:
    """Return the network of Figure 2, its inputs, the place of its middle layer and that layer's
    Fisher matrix.
    """
    x = fisher.digits()[0][:1000]
    model = fisher.tanh_network((100, 20, 20, 10), torch.Generator().manual_seed(0))
    place, layer = fisher.linear_layers(model)[1]
    return model, x, place, fisher.layer_fisher(model, layer, x)


def network() -> tuple[torch.nn.Sequential, torch.Tensor]:
    """Return the network of Figure 2, a new copy, and 1,000 digits of 10 x 10 pixels."""
    model, x, _, _ = _figure_2()
    return copy.deepcopy(model), x


@lru_cache(maxsize=32)
def fisher_matrix(eps: float | None = None, covariance: str = "centred") -> torch.Tensor:
    """Return the Fisher matrix of the middle layer's weights: plain, or whitened with ``eps``."""
    model, x, place, G = _figure_2()
    if eps is None:
        return fisher.in_coordinates(G, fisher.plain_map(20))
    c, U = fisher.layer_statistics(model, place, x, eps, covariance == "centred")
    return fisher.in_coordinates(G, fisher.whitened_map(c, U))


def fisher_conditions(eps: float | None = None, covariance: str = "centred") -> dict[str, float]:
    """Return the condition number of :func:`fisher_matrix` by every definition."""
    return fisher.conditions(fisher_matrix(eps, covariance))


# ---- The first whitening


def reduction(definition: str, covariance: str = "centred", eps: float = 1e-3) -> Interval:
    """Return by how many per cent the first whitening lowers a condition number.

    From the geometric mean, over initializations, of the ratio after to before.
    """
    results = stored("prong_conditioning.chapter")
    before = results.values(f"before.{definition}")
    if covariance == "as printed":
        after = results.values(f"printed.{definition}")
    else:
        place = results.records[0].settings["eps"].index(eps)
        after = results.values(f"after.{definition}")[:, place]
    return _reduction(before, after)


def _reduction(before: np.ndarray, after: np.ndarray) -> Interval:
    left = ratio_interval(after / before)
    mean, low, high = (100 * (1 - x) for x in (left.mean, left.high, left.low))
    return Interval(mean, low, high, left.n)


def reduced(definition: str, covariance: str = "centred") -> float:
    """Return the middle of :func:`reduction`."""
    return reduction(definition, covariance).mean


def raised(definition: str) -> float:
    """Return by how many per cent the first whitening raises a condition number."""
    return -reduced(definition)


def conditioning_table() -> Table:
    """Return the reductions by every definition of a condition number."""
    results = stored("prong_conditioning.chapter")
    rows = [
        [
            text,
            median(results.values(f"before.{name}")),
            reduction(name),
            reduction(name, eps=0.1).mean,
        ]
        for name, text in fisher.DEFINITIONS.items()
    ]
    return Table(
        ["condition number", "before", "reduction, %, ε = 0.001", "ε = 0.1"],
        rows,
        f"The first whitening, {len(results)} initializations: median before, and reduction by "
        "the geometric mean of after / before, with its 95 % interval.",
    )


# ---- During training


def _during(definition: str, method: str) -> np.ndarray:
    """Return the condition number at every look; (initializations, looks)."""
    return stored("prong_conditioning_during.chapter").values(definition, method=method)


def condition_curves(definition: str, method: str, relative: bool = False) -> Band:
    """Return the condition number during training, or its percentage of the first value."""
    values = _during(definition, method)
    if relative:
        values = 100 * values / values[:, :1]
    settings = stored("prong_conditioning_during.chapter").records[0].settings
    return band(looks(settings), values)


def condition_start(definition: str, method: str) -> float:
    """Return the median of the condition number before training."""
    return float(condition_curves(definition, method).middle[0])


def condition_end(definition: str, method: str) -> float:
    """Return the median of the condition number after training."""
    return float(condition_curves(definition, method).middle[-1])


def condition_share(method: str, definition: str = "tail") -> float:
    """Return the median of the last condition number, in per cent of each run's first."""
    return float(condition_curves(definition, method, relative=True).middle[-1])


def condition_ratio(method: str, rival: str, definition: str = "tail") -> Interval:
    """Return the last condition number of a method in units of its rival's."""
    return ratio_interval(_during(definition, method)[:, -1] / _during(definition, rival)[:, -1])


def worst_against_best(definition: str = "tail") -> float:
    """Return the most of PRONG's last condition numbers, relative to the first, in units of the
    least of the other methods'.
    """
    last = {
        method: (values := _during(definition, method))[:, -1] / values[:, 0] for method in TRAINED
    }
    best = min(float(shares.min()) for method, shares in last.items() if method != "prong")
    return float(last["prong"].max()) / best


def reduction_with_whitening() -> Interval:
    """Return by how many per cent training with PRONG lowers the condition number."""
    values = _during("tail", "prong")
    return _reduction(values[:, 0], values[:, -1])


def reduction_without_whitening() -> Interval:
    """Return by how many per cent training lowers the condition number without any whitening, by
    the better of SGD and RMSprop in each initialization.
    """
    plain = [_during("tail", method) for method in ("sgd", "rmsprop")]
    shares = np.min([values[:, -1] / values[:, 0] for values in plain], axis=0)
    return _reduction(np.ones_like(shares), shares)


# ---- From the same initial conditioning


def _equal(part: str, definition: str, method: str) -> np.ndarray:
    """Return the condition number of the "middle" layer or of the "full" matrix at every look, all
    methods from the same start; (initializations, looks).
    """
    results = stored("prong_conditioning_equal.chapter")
    return results.values(f"{part}.{definition}", method=method)


def equal_start_ratio(part: str, definition: str) -> Interval:
    """Return the last condition number of PRONG in units of the least of the other methods' from
    the same initialization.
    """
    rivals = [_equal(part, definition, method)[:, -1] for method in TRAINED if method != "prong"]
    return ratio_interval(_equal(part, definition, "prong")[:, -1] / np.min(rivals, axis=0))


def equal_start_spread(part: str, definition: str) -> float:
    """Return the largest first condition number of an initialization in units of its least, over
    the methods, less 1.
    """
    first = np.array([_equal(part, definition, method)[:, 0] for method in TRAINED])
    return float((first.max(0) / first.min(0)).max() - 1)


def full_reduction(definition: str) -> Interval:
    """Return by how many per cent the first whitening lowers the condition number of the full
    matrix.
    """
    results = stored("prong_conditioning_equal.chapter").select(method="prong")
    before = results.values(f"full.{definition}")[:, 0]
    return _reduction(before, results.values(f"whitened.{definition}"))


def _outcome(results: Results, method: str) -> list[str | float]:
    """Return the name of a method, the step size that was chosen, and the final loss."""
    return [
        METHODS[method],
        f"{median(results.values('rate', method=method)):g}",
        median(results.values("loss", method=method)),
    ]


def equal_start_table() -> Table:
    """Return step sizes, losses, and both condition numbers, before and after training."""
    results = stored("prong_conditioning_equal.chapter")
    parts = [("middle", "tail"), ("full", "median")]
    rows = [
        [
            *_outcome(results, method),
            *[median(_equal(*part, method)[:, look]) for part in parts for look in (0, -1)],
        ]
        for method in TRAINED
    ]
    return Table(
        ["method", "step size", "loss", "middle: first", "last", "full: first", "last"],
        rows,
        f"Medians of {len(results) // len(TRAINED)} initializations: the step size that was "
        "chosen, the training loss, and condition numbers before and after training: of the "
        "middle layer (largest eigenvalue over the one that 90 % exceed) and of the full matrix "
        "(largest over median).",
    )


def trained_table() -> Table:
    """Return the step sizes that were chosen for Figure 2c, and the final losses."""
    during = stored("prong_conditioning_during.chapter")
    return Table(
        ["method", "step size", "training loss"],
        [_outcome(during, method) for method in TRAINED],
        "The step sizes that were chosen, and the final losses: medians of "
        f"{len(during) // len(TRAINED)} initializations.",
    )


# ---- How close a step is to the natural gradient


def alignment(kind: str, lag: int) -> np.ndarray:
    """Return the cosine with the natural gradient, ``lag`` updates after a whitening, of every
    initialization: "stale" is PRONG's step, "fresh" one with new statistics, or "gradient".
    """
    results = stored("prong_alignment.quick")
    return results.values(kind)[:, results.records[0].settings["lags"].index(lag)]


def cosine(kind: str, lag: int) -> Interval:
    """Return the mean of :func:`alignment`."""
    return interval(alignment(kind, lag))


def alignment_curve(kind: str) -> Band:
    """Return :func:`alignment` against the updates since the whitening."""
    results = stored("prong_alignment.quick")
    return band(results.records[0].settings["lags"], results.values(kind))


def staleness(lag: int) -> np.ndarray:
    """Return how much the cosine changes by statistics that are ``lag`` updates old."""
    return alignment("stale", lag) - alignment("fresh", lag)


def alignment_table() -> Table:
    """Return the mean cosines by the age of the whitening."""
    results = stored("prong_alignment.quick")
    rows = [
        [lag, *[cosine(kind, lag).mean for kind in ("stale", "fresh", "gradient")]]
        for lag in results.records[0].settings["lags"]
    ]
    return Table(
        ["updates since the whitening", "PRONG", "with fresh statistics", "plain gradient"],
        rows,
        f"Cosine with the natural gradient, mean of {len(results)} initializations of the network "
        "of Figure 2.",
    )
