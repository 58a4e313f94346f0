"""Figures 2 and 3: the grid of thresholds and fractions, and the same with a fixed weight."""

from typing import Any, NamedTuple

import numpy as np

from natcompanion.boltzmann import FRACTIONS, THRESHOLDS
from natcompanion.chapters.experiments import Results
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.numbers.boltzmann.curves import Band, band, by_seed, mean
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, interval, median

CELLS = [(v, p) for v in THRESHOLDS for p in FRACTIONS]
USUAL = {
    "states": False,
    "additive": False,
    "grey": False,
    "gamma": 0.01,
    "cap": 1.0,
    "classifier": "label units",
}
PLACEBO = "placebo: plain SGD"
READINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "as printed": ("printed", {}),
    "γ at most 0.5": ("printed", {"cap": 0.5}),
    "product rule put right": ("product", {}),
    "binary states for the moments": ("printed", {"states": True}),
    "likelihood keeps weight 1": ("printed", {"additive": True}),
    "true gradient": ("exact", {}),
    PLACEBO: ("none", {}),
}
PERCENT = ("train_error", "test_error")


def grid(reading: str = "as printed") -> Results:
    """Return the stored grids of one reading of the scheme, on binary digits."""
    rule, settings = READINGS[reading]
    return stored("boltzmann_thresholds.paper").select(rule=rule, **{**USUAL, **settings})


# ---- one cell


class Cell(NamedTuple):
    """Runs that hold several cells, and which of them is meant."""

    runs: Results
    index: int  # type: ignore[assignment]  # instead of the method of tuples


def cell(v: float, p: float, reading: str = "as printed") -> Cell:
    """Return the cell of a threshold and a fraction."""
    return Cell(grid(reading), CELLS.index((v, p)))


def held_cell(gamma: float, rule: str, classifier: str = "label units") -> Cell:
    """Return the runs whose weight of the penalty is kept at gamma."""
    runs = stored("boltzmann_held.paper").select(rule=rule, classifier=classifier)
    return Cell(runs, runs.records[0]["gammas"].index(gamma))


def cell_curves(of: Cell, key: str) -> np.ndarray:
    """Return a curve of one cell for every seed, seed 0 first, (seeds, epochs); errors in %."""
    factor = 100 if key in PERCENT else 1
    return factor * np.array([record[key][of.index] for record in by_seed(of.runs)])


def cell_band(of: Cell, key: str) -> Band:
    """Return the range over the seeds, and as the middle the curve of seed 0, whose filters are
    shown.
    """
    return band(cell_curves(of, key), lambda curves, axis: curves[0])


def at_end(of: Cell, key: str) -> float:
    """Return the mean over the seeds after the last epoch."""
    return mean(cell_curves(of, key)[:, -1])


def cell_epochs(of: Cell) -> np.ndarray:
    """Return the epochs of the curves."""
    return np.array(of.runs.records[0]["epochs"])


def filters(of: Cell) -> tuple[np.ndarray, float]:
    """Return the filters of seed 0 from -99 to 99, (pixels, hidden), and the weight that 99
    stands for.
    """
    record = of.runs.select(seed=0).records[0]
    return np.array(record["filters"][of.index], float), record["filter_scale"][of.index]


# ---- all cells


def errors(reading: str = "as printed", key: str = "final_test") -> np.ndarray:
    """Return the test errors in % of all 35 cells, (seeds, 35): at the end, or with
    ``"best_test"`` the least over the epochs.
    """
    return 100 * grid(reading).values(key)


def cell_means(reading: str) -> np.ndarray:
    """Return the mean error over the seeds of each threshold (rows) and fraction (columns)."""
    return band(errors(reading)).middle.reshape(len(THRESHOLDS), len(FRACTIONS))


def best(reading: str, key: str = "final_test") -> float:
    """Return the error of the best of the 35 cells, mean over the seeds."""
    return mean(errors(reading, key).min(1))


def middle(reading: str, key: str = "final_test") -> float:
    """Return the median of the 35 cells, mean over the seeds."""
    return mean([median(row) for row in errors(reading, key)])


def worst(reading: str, key: str = "final_test") -> float:
    """Return the error of the worst of the 35 cells, mean over the seeds."""
    return mean(errors(reading, key).max(1))


def _best_of_readings() -> list[float]:
    return [best(reading) for reading in READINGS if reading != PLACEBO]


def least_best() -> float:
    """Return the least of the best errors of all readings of the scheme."""
    return min(_best_of_readings())


def most_best() -> float:
    """Return the greatest of the best errors of all readings of the scheme."""
    return max(_best_of_readings())


def best_cell_gap() -> np.ndarray:
    """Return the best of 35 cells minus the best of 35 plain runs, with the minimum over epochs,
    for each seed.
    """
    ours, plain = (errors(reading, "best_test").min(1) for reading in ("as printed", PLACEBO))
    return ours - plain


def best_cell_worse() -> Interval:
    """Return the mean of these with its interval."""
    return interval(best_cell_gap())


def _grey() -> np.ndarray:
    plain = {"rule": "none", **USUAL, "grey": True}
    return 100 * stored("boltzmann_thresholds.paper").values("best_test", **plain)


def grey_best() -> float:
    """Return the least error of plain SGD on grey digits over 35 runs and the epochs."""
    return float(_grey().min())


def grey_worst() -> float:
    """Return the error of the worst of the 35 runs on grey digits."""
    return float(_grey().max())


def readings_table() -> Table:
    """Return the final errors of each reading."""
    return Table(
        ["reading", "seeds", "best", "median", "worst"],
        [[name, len(grid(name)), best(name), middle(name), worst(name)] for name in READINGS],
        "Final test error in %: best, median and worst of 35 cells, mean over the seeds.",
    )


def minimum_table() -> Table:
    """Return the same with the minimum over the epochs."""
    names = {"the paper's scheme": "as printed", "true gradient": "true gradient", PLACEBO: PLACEBO}
    return Table(
        ["scheme", "best", "median", "worst"],
        [
            [name, *(of(reading, "best_test") for of in (best, middle, worst))]
            for name, reading in names.items()
        ],
        f"The same with the minimum over the epochs, as the paper takes it; {len(grid())} seeds.",
    )


# ---- Figure 3


class Stopping(NamedTuple):
    """All cells of all seeds: epochs that the likelihood was given, error in %, Hoyer sparsity."""

    kept: np.ndarray
    error: np.ndarray
    hoyer: np.ndarray


def stopping(reading: str = "as printed") -> Stopping:
    """Return the points of Figure 3, (seeds, 35) each."""
    runs = grid(reading)
    return Stopping(runs.values("kept_epochs"), errors(reading), runs.values("hoyer"))


def while_it_learns() -> tuple[np.ndarray, np.ndarray]:
    """Return epochs and the error in % of plain SGD while it learns, mean of 35 runs of seed 0."""
    record = grid(PLACEBO).select(seed=0).records[0]
    return np.array(record["epochs"]), 100 * band(record["test_error"]).middle


def engaged() -> np.ndarray:
    """Return which cells lost more than 10 of their 100 epochs to the penalty, (seeds, 35)."""
    return stopping().kept < 90


def cells_engaged() -> int:
    """Return how many cells of all seeds did."""
    return int(engaged().sum())


def hoyer(which: str) -> float:
    """Return the sparsity of the ``"engaged"`` cells, of the ``"other"`` cells, or of ``"plain"``
    SGD: the mean over the cells of a seed, then over the seeds.
    """
    return mean([value for value in _hoyer(which) if value is not None])


def _hoyer(which: str) -> list[float | None]:
    """Return the mean of these cells for each seed, None where a seed has no such cell."""
    if which == "plain":
        return [mean(row) for row in stopping(PLACEBO).hoyer]
    chosen = {"engaged": engaged(), "other": ~engaged()}[which]
    rows = zip(stopping().hoyer, chosen, strict=True)
    return [mean(values[keep]) if keep.any() else None for values, keep in rows]


def sparser() -> np.ndarray:
    """Return how much sparser the sparsest cell is than the sparsest of as many plain runs, for
    each seed.
    """
    return stopping().hoyer.max(1) - stopping(PLACEBO).hoyer.max(1)


def dead_units() -> np.ndarray:
    """Return the hidden units without weights in the 35 cells, for each seed."""
    return grid().values("dead_units").sum(1)


def dead_in_all() -> int:
    """Return the hidden units without weights in all cells of all seeds."""
    return int(dead_units().sum())


def below_train(reading: str = "as printed") -> Interval:
    """Return the share of the 35 cells whose test error is below the training error, over the
    splits of the digits.
    """
    return interval([mean(row) for row in grid(reading).values("test_below_train")])


def below_percent(reading: str, which: str = "mean") -> float:
    """Return the same in %: the ``"mean"`` over the splits, the ``"least"`` or the ``"most"``."""
    shares = 100 * grid(reading).values("test_below_train").astype(float)
    pick: Any = {"mean": mean, "least": min, "most": max}[which]
    return float(pick([mean(row) for row in shares]))


# ---- a fixed weight

HELD = {
    "as printed": ("printed", "label units"),
    "as printed, softmax": ("printed", "softmax"),
    "true gradient": ("exact", "label units"),
    "natural, 2C": ("natural", "label units"),
}


def held_error(gamma: float, penalty: str) -> float:
    """Return the final test error in % at a fixed weight, mean over the seeds."""
    of = held_cell(gamma, *HELD[penalty])
    return mean(100 * of.runs.values("final_test")[:, of.index])


def held_norm(gamma: float, penalty: str) -> float:
    """Return the squared norm of cov(v, h) after training at a fixed weight, mean over the
    seeds.
    """
    return at_end(held_cell(gamma, *HELD[penalty]), "norm")


def held_gammas() -> list[float]:
    """Return the fixed weights."""
    return held_cell(0.0, "printed").runs.records[0]["gammas"]


def held_table() -> Table:
    """Return the final errors at each fixed weight."""
    seeds = len(held_cell(0.0, "printed").runs)
    return Table(
        ["γ", *HELD],
        [[f"{g:g}", *(held_error(g, penalty) for penalty in HELD)] for g in held_gammas()],
        f"Final test error in % at a fixed weight of the penalty, mean of {seeds} seeds.",
    )
