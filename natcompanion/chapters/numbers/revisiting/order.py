"""Section 6: how much the trained model depends on the order of its data."""

import numpy as np

from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table, digits
from natcompanion.chapters.statistics import Interval, interval, median, ratio_interval

METHODS = ("natural", "sgd")


def _order(key: str) -> np.ndarray:
    return stored("revisiting_order.chapter").values(key)


def _speed(key: str) -> np.ndarray:
    return stored("revisiting_order_speed.chapter").values(key)


def initializations() -> int:
    """Return the number of initializations."""
    return len(stored("revisiting_order.chapter"))


def variance_band(method: str) -> list[Interval]:
    """Return for each replaced tenth the variance of "natural" or "sgd": geometric means."""
    return [ratio_interval(column) for column in _order(method).T]


def mean_variance(method: str) -> float:
    """Return the mean variance over tenths and initializations."""
    return float(_order(method).mean())


def validation_error(method: str) -> float:
    """Return the mean validation error in per cent."""
    return interval(_order(f"{method}_error")).mean


def flat_rates() -> str:
    """Return how many step sizes of SGD end within a point of its least validation error, as text:
    the least and the largest number over the initializations.
    """
    errors = _order("sgd_errors")
    counts = (errors < errors.min(1, keepdims=True) + 1).sum(1)
    return f"{counts.min()} to {counts.max()}"


def early(curves: np.ndarray) -> np.ndarray:
    """Return how many times as much the first tenth matters as the last five on the mean.

    ``curves`` is (runs, 10); the result (runs,).
    """
    return curves[:, 0] / curves[:, 5:].mean(1)


def early_order(method: str) -> np.ndarray:
    """Return the same in decades for each initialization of "natural" or "sgd"."""
    return np.log10(early(_order(method)))


def early_natural() -> Interval:
    """Return how many times as much the first tenth matters for the natural gradient."""
    return ratio_interval(early(_order("natural")))


def early_natural_runs() -> int:
    """Return in how many initializations it matters more than the last five."""
    return int((early(_order("natural")) > 1).sum())


def variance_ratio_low() -> float:
    """Return the least ratio of the variance of SGD to that of the natural gradient."""
    return float(_order("ratio").min())


def variance_ratio_high() -> float:
    """Return the largest."""
    return float(_order("ratio").max())


def variance_ratio_median() -> float:
    """Return the median over the initializations."""
    return median(_order("ratio"))


def variance_decades() -> np.ndarray:
    """Return the ratio in decades for each initialization."""
    return np.log10(_order("ratio"))


def early_beside_late() -> np.ndarray:
    """Return the first tenth of the natural gradient against the last tenth of SGD, in decades."""
    return np.log10(_order("natural")[:, 0] / _order("sgd")[:, -1])


def relative_early() -> np.ndarray:
    """Return the first tenth over the last, the natural gradient against SGD, in decades."""
    natural, sgd = _order("natural"), _order("sgd")
    return np.log10(natural[:, 0] / natural[:, -1]) - np.log10(sgd[:, 0] / sgd[:, -1])


def order_table() -> Table:
    """Both methods for each initialization."""
    results = stored("revisiting_order.chapter")

    rows = [
        [
            str(run.seed),
            " / ".join(digits(run[f"{method}_error"]) for method in METHODS),
            " / ".join(f"{run[f'{method}_rate']:g}" for method in METHODS),
            " / ".join(digits(early(np.array([run[method]]))[0]) for method in METHODS),
            run["ratio"],
        ]
        for run in sorted(results, key=lambda run: run.seed)
    ]
    return Table(
        [
            "seed",
            "validation error, %",
            "step size",
            "first tenth / last five",
            "variance, SGD / natural",
        ],
        rows,
        f"Natural gradient / SGD for {len(results)} initializations: matched validation errors, "
        "step sizes, and how much more the first tenth matters than the mean of the last five; "
        "last, the ratio of the mean variances.",
    )


# ---- The speed of learning


def slower() -> np.ndarray:
    """Return the variance of SGD at the small step size against the large one, in decades."""
    return np.log10(_speed("slow").mean(1) / _speed("fast").mean(1))


def slower_times() -> float:
    """Return how many times smaller it is: geometric mean."""
    return ratio_interval(10 ** -slower()).mean


def shape(name: str) -> float:
    """Return how many times as much the first tenth matters: geometric mean.

    ``name`` is "fast", "slow" or "longer" (slow, with more data).
    """
    return ratio_interval(early(_speed(name))).mean


def nearer_with_more_steps() -> np.ndarray:
    """Return how many decades nearer to the shape of "fast" that of "longer" is than "slow"."""
    fast, slow, longer = (np.log10(early(_speed(name))) for name in ("fast", "slow", "longer"))
    return np.abs(slow - fast) - np.abs(longer - fast)
