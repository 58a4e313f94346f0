"""What came after: how white a few steps of Newton-Schulz make a momentum, how a differential
equation is solved, and K-FAC against the exact step.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from natcompanion.chapters.experiments.after import LENGTH, TARGET, network
from natcompanion.chapters.experiments.store import Result
from natcompanion.chapters.figures.style import METHODS as TABLE
from natcompanion.chapters.figures.style import named
from natcompanion.chapters.numbers import compare, stored
from natcompanion.chapters.numbers.searching import Choice, choice, median_of
from natcompanion.chapters.show import Table
from natcompanion.chapters.statistics import (
    Arrivals,
    Interval,
    arrivals,
    best,
    interval,
    median,
    significant,
    times,
)
from natcompanion.data import digits
from natcompanion.reference import after as reference
from natcompanion.reference import jacobian

# ---- One layer, and one equation, for the identities


def layer() -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a layer receives (60, 6), correlated and not centred, a 1 last, and what comes
    back to its outputs (60, 3).
    """
    generator = torch.Generator().manual_seed(0)
    x, delta, mixing = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((60, 5), (60, 3), (5, 5))
    )
    x = x @ (torch.eye(5, dtype=torch.float64) + mixing / 4) + 0.5
    return torch.cat([x, torch.ones(60, 1, dtype=torch.float64)], 1), delta


def linearized() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return J (10, 1, 97), H (10, 1, 1) and s (10, 1) of the network of the differential equation
    at its start, for 10 points.
    """
    model = network(torch.Generator().manual_seed(0))
    x = torch.linspace(0, 1, 10, dtype=torch.float64)[:, None]
    ones = torch.ones(10, 1, 1, dtype=torch.float64)
    return jacobian(model, x).view(10, 1, -1), ones, model(x).detach()


# ---- Muon: the momentum of a small network, and what the iteration makes of it

COEFFICIENTS = {"cubic": reference.CUBIC, "muon": reference.MUON}
ITERATIONS = {"cubic": "cubic", "muon": "Muon's"}
MUON_STEPS = 5
TRAINED = 60
"""Steps after which the momentum is looked at."""
STEPS = (1, 2, 3, 5, 8, 12, 20)
BAND = (0.5, 1.5)
"""Where Muon's iteration is said to bring singular values."""


@cache
def momentum() -> torch.Tensor:
    """Return the momentum (32, 64) of the first layer of a network on 500 digits of 8 x 8 pixels,
    which Muon has trained with all examples in every step.
    """
    x, t = digits(dtype=torch.float64)
    x, t = x[:500].flatten(1), t[:500]
    generator = torch.Generator().manual_seed(0)
    shapes = (32, 64), (10, 32)
    weights = [
        torch.randn(*s, generator=generator, dtype=torch.float64) / s[1] ** 0.5 for s in shapes
    ]
    found = [torch.zeros_like(w) for w in weights]
    for _ in range(TRAINED):
        leaves = [w.requires_grad_() for w in weights]
        r = torch.tanh(x @ leaves[0].mT) @ leaves[1].mT
        slopes = torch.autograd.grad(torch.nn.functional.cross_entropy(r, t), leaves)
        found = [0.95 * m + 0.05 * g for m, g in zip(found, slopes, strict=True)]
        weights = [
            w.detach() - 0.02 * reference.muon(m) for w, m in zip(weights, found, strict=True)
        ]
    return found[0]


def singular_values() -> torch.Tensor:
    """Return those of the momentum, in units of the root of the sum of all squares, falling."""
    values = torch.linalg.svdvals(momentum())
    return values / values.norm()


def lifted(coefficients: str, steps: int, values: torch.Tensor) -> torch.Tensor:
    """Return where some steps of the iteration bring singular values."""
    a, b, c = COEFFICIENTS[coefficients]
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return values


@cache
def orthogonalized(coefficients: str, steps: int) -> torch.Tensor:
    """Return what some steps make of the momentum."""
    return reference.muon(momentum(), steps, COEFFICIENTS[coefficients])


def muon_steps() -> int:
    """Return how many steps Muon makes."""
    return MUON_STEPS


def trained() -> int:
    """Return after how many steps the momentum is looked at."""
    return TRAINED


def size() -> int:
    """Return how many singular values the momentum has."""
    return len(singular_values())


def within(coefficients: str, steps: int) -> int:
    """Return how many singular values lie in the band after some steps."""
    values = torch.linalg.svdvals(orthogonalized(coefficients, steps))
    return int(((values > BAND[0]) & (values < BAND[1])).sum())


def distance(coefficients: str, steps: int) -> float:
    """Return the distance from the polar factor, relative to its norm."""
    polar = reference.polar(momentum())
    return float((orthogonalized(coefficients, steps) - polar).norm() / polar.norm())


def cubic_steps_as_near() -> int:
    """Return how many steps of the cubic iteration come as near as five of Muon's."""
    aim, steps = distance("muon", MUON_STEPS), 1
    while distance("cubic", steps) > aim:
        steps += 1
    return steps


def condition() -> float:
    """Return the ratio of the largest to the least singular value of the momentum."""
    values = singular_values()
    return float(values[0] / values[-1])


# ---- The differential equation

METHODS = {
    "sgd": TABLE["momentum"].name,
    **named("adamw", "muon", "lbfgs"),
    "sample": "sample-space step",
}
RIVALS = ("sgd", "adamw", "muon", "lbfgs")
SETTINGS = ("lr", "momentum", "second")


def chosen(method: str) -> Choice:
    """Return the settings that the search chose for a method; a momentum of 0 is no edge."""
    tuning = stored("after_poisson.tuning")
    return choice(tuning, method, "lateness", SETTINGS, zero=("momentum",))


def runs(method: str) -> list[Result]:
    """Return the reported runs of a method, in the order of seeds."""
    found = stored("after_poisson.chapter").select(method=method, **chosen(method).settings)
    return sorted(found, key=lambda record: record.seed)


def starts() -> int:
    """Return the number of reported seeds."""
    (count,) = {len(runs(method)) for method in METHODS}
    return count


def searched() -> int:
    """Return the number of settings that each method tried."""
    (count,) = {chosen(method).searched for method in METHODS}
    return count


def to_target(method: str, key: str = "updates") -> list[float | None]:
    """Return the updates or the seconds to the target of every run; None if it never arrives."""
    return [record[f"{key}_to_target"] for record in runs(method)]


def reached(method: str, key: str = "updates") -> Arrivals:
    """Return how many runs arrive, and their median."""
    return arrivals(to_target(method, key))


def middle(method: str, key: str = "updates") -> float | str:
    """Return the median updates or seconds to the target, or that half of the runs never arrive."""
    return median_of(reached(method, key), whole=key == "updates")


def rival(key: str = "seconds") -> str:
    """Return the rival with the least median; half of its runs have to arrive."""
    return best((method, float(np.median(times(to_target(method, key))))) for method in RIVALS)


def best_rival(key: str = "seconds") -> str:
    """Return its name."""
    return METHODS[rival(key)]


def ahead(key: str = "seconds") -> np.ndarray:
    """Return for each start whether the step in sample space arrives before that rival."""
    own, other = (times(to_target(method, key)) for method in ("sample", rival(key)))
    return own < other


def starts_ahead(key: str = "seconds") -> int:
    """Return the number of these starts."""
    return int(ahead(key).sum())


def least(method: str) -> np.ndarray:
    """Return the least error of each run."""
    return np.array([record["least"] for record in runs(method)])


def decades(*methods: str) -> np.ndarray:
    """Return for each start by how many decades the least error in sample space is below the best
    of some rivals, or of all.
    """
    others = np.min([least(method) for method in methods or RIVALS], axis=0)
    return np.log10(others / least("sample"))


def decades_below(*methods: str) -> str:
    """Return their mean over the starts."""
    return significant(float(decades(*methods).mean()))


def decades_interval(*methods: str) -> Interval:
    """Return the mean with its 95 % interval over the starts."""
    return interval(decades(*methods))


def length(method: str) -> float:
    """Return the median processor seconds of a run, to its end."""
    return median([record["clock"][-1] for record in runs(method)])


def longer(*methods: str) -> float:
    """Return how many times as long the rivals run, the least of them."""
    return min(length(method) for method in methods or RIVALS) / length("sample")


def curve(method: str, against: str = "updates") -> tuple[np.ndarray, np.ndarray]:
    """Return updates or seconds, and the error of every run (runs, points), as long as all runs go
    on.
    """
    found = runs(method)
    points = min(len(record["error"]) for record in found)
    errors = np.array([record["error"][:points] for record in found])
    if against == "updates":
        return found[0].settings["every"] * np.arange(points), errors
    return np.median([record["clock"][:points] for record in found], axis=0), errors


def milliseconds(method: str) -> float:
    """Return the median over the runs of the processor time of an update."""
    return median(
        [
            1000 * record["clock"][-1] / (record.settings["every"] * (len(record["clock"]) - 1))
            for record in runs(method)
        ]
    )


SECOND = {"lbfgs": "memory", "sample": "damping"}


def settings_text(method: str) -> str:
    """Return the chosen settings in words."""
    picked = chosen(method).settings
    parts = [] if method == "sample" else [f"step {picked['lr']:g}"]
    parts += [] if method == "lbfgs" else [f"momentum {picked['momentum']:g}"]
    parts += [f"{SECOND[method]} {picked['second']:g}"] if method in SECOND else []
    return ", ".join(parts)


def at_an_edge() -> str:
    """Return the methods with a chosen setting that is the least or the greatest that was tried."""
    found = []
    for method, name in METHODS.items():
        words = {"lr": "step size", "second": SECOND.get(method)}
        ends = [words.get(edge, edge) for edge in chosen(method).edges]
        found += [f"{name} ({' and '.join(map(str, ends))})"] if ends else []
    return ", ".join(found) or "none"


def table() -> Table:
    """Return what every method chose, whether and when it arrives, and how far it gets."""

    def row(method: str) -> list[Any]:
        found = reached(method)
        return [
            METHODS[method],
            settings_text(method),
            f"{found.arrived} of {found.n}",
            middle(method) if found.median is not None else f"over {LENGTH[method]}",
            reached(method, "seconds").median,
            milliseconds(method),
            median(least(method)),
        ]

    return Table(
        ["method", "chosen", "arrive", "updates", "seconds", "ms an update", "least error"],
        [row(method) for method in METHODS],
        f"Median updates and processor seconds to a relative error of {TARGET:g}, {starts()} "
        f"starts; every method with the best of {searched()} settings on two other starts.",
    )


def core_seconds() -> str:
    """Return the processor time of all these runs, search and report."""
    presets: Sequence[str] = ("tuning", "chapter")
    total = sum(
        record["clock"][-1] for preset in presets for record in stored(f"after_poisson.{preset}")
    )
    return significant(total)


# ---- K-FAC and the exact step


def kfac_ahead() -> np.ndarray:
    """Return for each start of the small convolutional network whether K-FAC arrives before the
    exact damped natural gradient of the batch.
    """
    own, other = (times(compare.to_target("convolution", method)) for method in ("kfac", "sample"))
    return own < other


def kfac_starts_ahead() -> int:
    """Return the number of these starts."""
    return int(kfac_ahead().sum())


def kfac_starts() -> int:
    """Return the number of starts."""
    return len(kfac_ahead())
