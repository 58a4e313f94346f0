"""Boltzmann machines: Sections 1.4, 1.5 and 2.3 to 2.5."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from natcompanion.chapters.experiments import Result
from natcompanion.chapters.experiments.whitening import TIMES
from natcompanion.chapters.numbers.whitening._read import count, read, setting
from natcompanion.chapters.numbers.whitening.example import METRICS
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import Interval, ratio_interval

UNITS = {"01": "0/1", "pm1": "±1"}
RULES = {
    "ml": "maximum likelihood",
    "cd": "contrastive divergence",
    "mpf": "minimum probability flow",
}
SHORT = {"ml": "likelihood", "cd": "contrastive", "mpf": "flow"}
CASES = [(units, rule) for units in UNITS for rule in RULES]
GUIDES = [name for name in METRICS if name != "plain"]

# ---- Section 1.5


def curved_gap(rate: float) -> float:
    """Return how far the path of the natural gradient moves under θ = sinh ψ (seed 0)."""
    record = read("invariance").select(seed=0).records[0]
    return dict(zip(record.settings["rates"], record["curved"], strict=True))[rate]


def plain_gap() -> float:
    """Return by how many per cent of θ the path of steepest descent moves under linear maps."""
    return 100 * read("invariance").select(seed=0).records[0]["linear_plain"]


def invariance_table(run: Result) -> Table:
    """Return how far the paths move in one run of the experiment."""
    curved = zip(run.settings["rates"], run["curved"], strict=True)
    return Table(
        ["rule", "path moves by"],
        [
            ["steepest descent, linear map", run["linear_plain"]],
            *[[f"natural, θ = sinh ψ, step {rate:g}", gap] for rate, gap in curved],
        ],
        "Largest distance between the paths taken in θ and in ψ, relative to the length of θ at "
        "the end.",
    )


def linear_residuals() -> np.ndarray:
    """Return for each seed how far the natural gradient's path moves under linear maps."""
    return read("invariance").values("linear_natural")


def curved_shrink() -> Interval:
    """Return by which factor the gap shrinks when steps are 100 times shorter."""
    curved = read("invariance").values("curved")
    return ratio_interval(curved[:, 2] / curved[:, 0])


# ---- Sections 2.3 to 2.5


def machine_parameters() -> int:
    """Return the number of couplings and biases of a machine."""
    units = setting("boltzmann", "n")
    return units * (units + 1) // 2


def machine_states() -> int:
    """Return the number of states of a machine."""
    return 2 ** setting("boltzmann", "n")


def machines() -> int:
    """Return how many machines are learned, in each of the cases."""
    return count("boltzmann", units="01", rule="ml")


def speedups(name: str, units: str, rule: str) -> np.ndarray:
    """Return the speed-up of a metric on each machine, in one case."""
    return read("boltzmann").values(f"speedup_{name}", units=units, rule=rule)


def machine_speedup(name: str, units: str, rule: str) -> float:
    """Return the median speed-up of a metric over the machines, in one case."""
    return float(np.median(speedups(name, units, rule)))


def machine_range(name: str, units: str, rule: str) -> tuple[float, float]:
    """Return the least and the greatest speed-up."""
    values = speedups(name, units, rule)
    return values.min(), values.max()


def curves(name: str, units: str, rule: str) -> list[Interval]:
    """Return the geometric mean over the machines of the loss (first = 1, at least 0.001), with
    its interval, at each of ``TIMES``.
    """
    records = read("boltzmann").select(units=units, rule=rule)
    values = np.maximum([record["curves"][name] for record in records], 1e-3)
    return [ratio_interval(values[:, k]) for k in range(len(TIMES))]


def conditions_table(found: Mapping[str, float]) -> Table:
    """Return condition numbers by metric."""
    return Table(
        ["metric", "condition number"],
        list(found.items()),
        "Condition number of the Fisher matrix at the goal in parameters whitened by each metric, "
        "also taken at the goal; 1 is perfect.",
    )


def machine_table() -> Table:
    """Return the median speed-up of each metric in each case."""
    return Table(
        ["metric", *[f"{UNITS[units]} {SHORT[rule]}" for units, rule in CASES]],
        [[METRICS[n], *[machine_speedup(n, *case) for case in CASES]] for n in GUIDES],
        f"Times fewer steps than steepest descent, median of {machines()} machines; units 0/1 and "
        "±1, by maximum likelihood, contrastive divergence, and minimum probability flow.",
    )


def machine_wins_table() -> Table:
    """Return on how many machines each metric is faster, in each case."""
    return Table(
        ["metric", *[f"{UNITS[units]} {SHORT[rule]}" for units, rule in CASES]],
        [
            [METRICS[n], *[f"{(speedups(n, *case) > 1).sum()}/{machines()}" for case in CASES]]
            for n in GUIDES
        ],
        "On how many of the machines the metric needs fewer steps than steepest descent.",
    )


def _share(holds: Callable[[str, str], np.ndarray], rules: Iterable[str]) -> np.ndarray:
    """Return for each machine the share of its cases, over both units, in which something holds.

    A machine is the independent unit: its cases share couplings and biases.
    """
    return np.mean([holds(units, rule) for units, rule in CASES if rule in rules], axis=0)


def machines_accelerated(name: str, rules: tuple[str, ...] = tuple(RULES)) -> np.ndarray:
    """Return for each machine the share of its cases in which a metric is faster than none."""
    return _share(lambda *case: speedups(name, *case) > 1, rules)


def machines_threefold(name: str) -> np.ndarray:
    """Return for each machine the share of its cases in which a metric is three times as fast."""
    return _share(lambda *case: speedups(name, *case) >= 3, RULES)


def blocks_win() -> np.ndarray:
    """Return for each machine the share of its cases in which blocks beat the diagonal."""

    def wins(units: str, rule: str) -> np.ndarray:
        return speedups("block_diagonal", units, rule) > speedups("diagonal", units, rule)

    return _share(wins, RULES)
