"""Section 5.1: a sigmoid neuron that tells two digits apart (Figure 4), damping, conditioning."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from natcompanion.chapters.experiments import Result, Results
from natcompanion.chapters.experiments import _rfim_neuron as single
from natcompanion.chapters.experiments.rfim import TIMES
from natcompanion.chapters.numbers import stored
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import (
    Arrivals,
    Interval,
    arrivals,
    interval,
    median,
    ratio_interval,
)

METHODS = ("GD", "WhiteGD", "NGD", "WhiteNGD")
PAIRS = {"3 against 5": "3v5", "4 against 9": "4v9"}
PROBLEMS = {
    "28 x 28 pixels, 800": ("paper", 800),
    "28 x 28 pixels, 200": ("paper", 200),
    "7 x 7 pixels, 800": ("quick", 800),
}
FLOOR = 1e-12

# ---- Figure 4


def figure4_record(problem: str, pair: str) -> Result:
    """Return the stored record of one panel of Figure 4."""
    preset, n = PROBLEMS[problem]
    return stored(f"rfim_figure4.{preset}").select(n=n, pair=PAIRS[pair]).records[0]


def figure4_curves(problem: str, pair: str, method: str) -> tuple[np.ndarray, ...]:
    """Return epochs, and the geometric mean, least and largest excess of the runs at each."""
    record = figure4_record(problem, pair)
    epochs = np.array([t for t in TIMES if t <= record.settings["epochs"]])
    curves = np.array(record[f"log_curves_{method}"])
    return epochs, *(10**row for row in (curves.mean(0), curves.min(0), curves.max(0)))


def figure4_end(problem: str, pair: str, method: str) -> float | None:
    """Mean excess of the runs at the end; None if all are at the floor."""
    ends = np.array(figure4_record(problem, pair)[f"excess_{method}"])
    return None if at_floor(ends).all() else float(ends.mean())


def at_floor(excess: np.ndarray) -> np.ndarray:
    """Whether a loss is at the floor, below which it is not followed."""
    return excess <= FLOOR


def large_digits() -> int:
    """The larger number of digits."""
    return max(n for _, n in PROBLEMS.values())


def small_digits() -> Results:
    """The runs on 7 x 7 pixels, of both pairs."""
    return stored("rfim_figure4.quick")


def large_runs() -> Results:
    """The runs on 800 digits of 28 x 28 pixels, of both pairs."""
    return stored("rfim_figure4.paper").select(n=large_digits())


def lowest(runs: Results, key: str, method: str, rivals: Sequence[str]) -> np.ndarray:
    """Whether a method's value is below those of all rivals, for each run; a tie is no win."""
    others = np.min([runs.values(f"{key}_{rival}") for rival in rivals], axis=0)
    return (runs.values(f"{key}_{method}") < others).ravel()


def natural_lowest(pair: str) -> np.ndarray:
    """Whether NGD ends below GD and WhiteGD, for each run on overlapping digits of one pair."""
    runs = small_digits().select(pair=PAIRS[pair])
    return lowest(runs, "excess", "NGD", ("GD", "WhiteGD"))


def white_natural_lowest() -> np.ndarray:
    """Whether WhiteNGD ends below the other three, for each run on overlapping digits."""
    return lowest(small_digits(), "excess", "WhiteNGD", ("GD", "WhiteGD", "NGD"))


def white_first() -> np.ndarray:
    """Whether WhiteGD is below both natural methods after the first epoch, for each run."""
    first = TIMES.index(1)
    curves = {name: small_digits().values(f"log_curves_{name}")[:, :, first] for name in METHODS}
    return (curves["WhiteGD"] < np.minimum(curves["NGD"], curves["WhiteNGD"])).ravel()


def white_natural_wins() -> int:
    """In how many runs WhiteNGD ends lowest."""
    return int(white_natural_lowest().sum())


def white_first_wins() -> int:
    """In how many runs WhiteGD is ahead after the first epoch."""
    return int(white_first().sum())


def figure4_runs() -> int:
    """Number of runs, of both pairs."""
    return len(white_natural_lowest())


def natural_wins(pair: str) -> int:
    """In how many runs of a pair NGD ends below WhiteGD."""
    runs = small_digits().select(pair=PAIRS[pair])
    return int(lowest(runs, "excess", "NGD", ("WhiteGD",)).sum())


def white_at_floor() -> int:
    """In how many runs on 800 separable digits WhiteGD is at the floor at the end."""
    return int(at_floor(large_runs().values("excess_WhiteGD")).sum())


def epochs_to(runs: Results, method: str, target: float) -> Arrivals:
    """When the runs of a method reach a loss above the minimum; they stop after 100 epochs."""
    settings = runs.records[0].settings
    counts = runs.values(f"epochs_{method}")[:, settings["targets"].index(target)].ravel()
    return arrivals([int(e) if e <= settings["epochs"] else None for e in counts])


def median_text(found: Arrivals) -> str:
    """Return a median with how many arrive, if not all do."""
    if found.median is None:
        return "never"
    some = f" ({found.arrived} of {found.n})" if found.arrived < found.n else ""
    return f"{found.median:g}{some}"


def epochs_on_large(method: str) -> str:
    """Median number of epochs to a loss of 1e-8 on 800 separable digits."""
    return median_text(epochs_to(large_runs(), method, 1e-8))


def epochs_table() -> Table:
    """Epochs to 0.001 above the minimum by digits and method."""
    rows = []
    for problem, (preset, n) in PROBLEMS.items():
        for pair, code in PAIRS.items():
            runs = stored(f"rfim_figure4.{preset}").select(n=n, pair=code)
            counts = [median_text(epochs_to(runs, method, 1e-3)) for method in METHODS]
            rows.append([f"{problem} digits, {pair}", *counts])
    return Table(
        ["digits", *METHODS],
        rows,
        "Epochs until the loss is 0.001 above its minimum (0 where the classes are separable),"
        " median of ten runs, each method at its best setting. In brackets how many runs arrive,"
        " where not all do; never: at most half do.",
    )


def stable_rate(coordinates: str) -> float:
    """Largest stable step size of gradient descent at the start, mean of the runs."""
    return float(small_digits().values(f"stable_rate_{coordinates}").mean())


def stable_rate_ratio() -> Interval:
    """Largest stable step size in white over that in raw coordinates, over the runs."""
    runs = small_digits()
    return ratio_interval(runs.values("stable_rate_white") / runs.values("stable_rate_raw"))


def condition_gain() -> np.ndarray:
    """Decades of the condition number that whitening takes off, for each run."""
    runs = small_digits()
    return (runs.values("log_condition_raw") - runs.values("log_condition_white")).ravel()


def whitening_gain(method: str = "GD") -> np.ndarray:
    """Decades between the excess loss of a method and of its whitened form, for each run."""
    runs = small_digits()
    return np.log10(runs.values(f"excess_{method}") / runs.values(f"excess_White{method}")).ravel()


def coordinates_moved(method: str) -> np.ndarray:
    """Nats by which whitening moves the final loss of a method, for each run."""
    runs = small_digits()
    return np.abs(runs.values(f"excess_{method}") - runs.values(f"excess_White{method}")).ravel()


def gradient_moved_more() -> np.ndarray:
    """Whether whitening moves the final loss of GD more than twice as far as that of NGD, for each
    run.
    """
    return coordinates_moved("GD") > 2 * coordinates_moved("NGD")


# ---- Damping


def plain(value: float) -> str:
    """Return a setting as readers write it: 0.1, 1e-8."""
    return f"{value:g}".replace("e-0", "e-")


def damping_draws() -> int:
    """Number of draws of digits."""
    return len(stored("rfim_damping.quick"))


def gap_left() -> np.ndarray:
    """Whether a tenth of the difference at ε = 0.01 is left at ε = 1e-8, for each draw."""
    runs = stored("rfim_damping.quick")
    eps = runs.records[0].settings["eps"]
    gaps = runs.values("gap")
    return gaps[:, eps.index(1e-8)] > 0.1 * gaps[:, eps.index(1e-2)]


def damping_table() -> Table:
    """How far NGD and WhiteNGD lie apart, by damping."""
    runs = stored("rfim_damping.quick")
    settings, rows = runs.records[0].settings, []
    for i, eps in enumerate(settings["eps"]):
        counts = []
        for method in ("NGD", "WhiteNGD"):
            taken = runs.values(f"epochs_{method}")[:, i]
            found = arrivals([int(e) if e <= settings["epochs"] else None for e in taken])
            counts.append(median_text(found).replace("never", f"more than {settings['epochs']}"))
        gap = median(runs.values("gap")[:, i])
        rows.append([plain(eps), plain(float(f"{gap:.1g}")), *counts])
    return Table(
        ["ε", "largest difference", "NGD", "WhiteNGD"],
        rows,
        f"Step size {settings['rate']:g}, no momentum, {len(runs)} draws of 7 x 7 digits: largest"
        " difference of the two loss curves, and epochs until 0.001 above the minimum; medians. In"
        " brackets how many draws arrive, where not all do.",
    )


EPOCHS = 40


@cache
def _pair(pair: str, coordinates: str) -> single.Neuron:
    return single.neuron(*single.digits(PAIRS[pair], 7, 800, 0), coordinates, smallest=1e-14)


@cache
def least_loss(pair: str) -> float:
    """The minimum of the loss on 800 digits of 7 x 7 pixels."""
    return _pair(pair, "white").minimum()  # type: ignore[return-value]  # these digits have one


@cache
def natural_curve(method: str, eps: float, rate: float, pair: str) -> torch.Tensor:
    """Loss of NGD or WhiteNGD after each of 40 epochs, (41,)."""
    coordinates = single.METHODS[method][0]
    rates, still = torch.tensor([[rate], [0.0]], dtype=torch.float64)
    return single.train(_pair(pair, coordinates), True, rates, still, epochs=EPOCHS, eps=eps)[0]


def curve_gap(eps: float, rate: float, pair: str) -> float:
    """Largest distance of the two loss curves."""
    raw, white = (natural_curve(method, eps, rate, pair) for method in ("NGD", "WhiteNGD"))
    return float((raw - white).abs().max())


def natural_epochs(method: str, eps: float, rate: float, pair: str) -> int | None:
    """Epochs until 0.001 above the minimum, None if that takes more than 40."""
    epochs = int(single.epochs_to(natural_curve(method, eps, rate, pair), least_loss(pair) + 1e-3))
    return epochs if epochs <= EPOCHS else None


# ---- Conditioning of a linear layer (Section 5.2)

INPUTS = ("raw", "centred", "normalized", "whitened")


def diagonal_uniform(inputs: str = "normalized") -> np.ndarray:
    """Whether the diagonal of the metric is uniform in all layers, for each network."""
    values = stored("rfim_conditioning.quick").values(f"diagonal_{inputs}")
    return np.all(values < 1 + 1e-6, axis=1)


def condition_decades() -> Interval:
    """Decades of the condition number that normalization takes off, mean of layers, by network."""
    runs = stored("rfim_conditioning.quick")
    return interval((runs.values("raw") - runs.values("normalized")).mean(1))


def conditioning_table() -> Table:
    """Condition numbers of three layers by what is done to their inputs."""
    runs = stored("rfim_conditioning.quick")
    rows = [
        [name, *(10 ** runs.values(name).mean(0)).tolist(), bool(diagonal_uniform(name).all())]
        for name in INPUTS
    ]
    return Table(
        ["inputs", "pixels", "hidden 1", "hidden 2", "diagonal uniform"],
        rows,
        f"Condition number of the linear layer's RFIM (geometric mean of {len(runs)} networks;"
        " damped by 0.0001 of its mean eigenvalue), and whether all its diagonal entries are"
        " equal.",
    )
