"""The two figures of what came after: how white a momentum becomes, and a differential equation."""

import torch
from matplotlib.figure import Figure

from natcompanion.chapters.figures.compare import AXES, LINES, arrival, draw_runs
from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import (
    BLUE,
    NARROW,
    colour,
    figure,
    label,
    legend_below,
    mark_value,
    sparse,
)
from natcompanion.chapters.numbers import after as numbers
from natcompanion.chapters.show import digits

COLORS = {"cubic": BLUE, "muon": colour("muon")}


def draw_muon(steps: int) -> Figure:
    """Where the iterations bring singular values, and how far they are from the polar factor."""
    drawing, (left, right) = figure(6.2, 2, height_ratios=[1.3, 1])
    values = numbers.singular_values()
    line = torch.logspace(-4, 0, 400, dtype=torch.float64)
    left.axhspan(*numbers.BAND, color="0.9", zorder=0)
    for name, color in COLORS.items():
        text = numbers.ITERATIONS[name]
        left.semilogx(line, numbers.lifted(name, steps, line), color=color, linewidth=1.2)
        left.semilogx(
            values, numbers.lifted(name, steps, values), "o", color=color, markersize=4, label=text
        )
        away = [max(numbers.distance(name, k), 1e-4) for k in numbers.STEPS]
        right.semilogy(numbers.STEPS, away, "o-", color=color, linewidth=1.8)
    left.set(xlim=(1e-4, 1), ylim=(0, 1.6))
    label(left, f"Singular values after {steps} steps", "before, over their norm", "")
    right.axvline(steps, color="0.5", linestyle="--")
    right.set(ylim=(5e-5, 2), xlim=(0, numbers.STEPS[-1] + 0.5))
    label(right, "Distance from the polar factor, relative", "steps", "")
    legend_below(drawing, left)
    return drawing


def describe_muon(steps: int) -> str:
    """How many singular values are in the band, and the distances."""
    parts = [
        f"{text} coefficients {numbers.within(name, steps)} of {numbers.size()} singular values "
        f"between 0.5 and 1.5, distance {digits(round(numbers.distance(name, steps), 4))}"
        for name, text in numbers.ITERATIONS.items()
    ]
    return (
        f"The momentum of a layer after {digits(steps)} steps of Newton–Schulz: "
        f"{'; '.join(parts)}. The distance is that from the polar factor, over its norm, and ends "
        "at 0.0001 in the picture. Dots are the singular values, which begin between "
        f"{digits(float(numbers.singular_values()[-1]))} and "
        f"{digits(float(numbers.singular_values()[0]))}."
    )


MUON = Drawing(
    draw_muon,
    describe_muon,
    grid={"steps": list(numbers.STEPS)},
    start={"steps": 5},
    labels={"steps": "steps"},
)

KEYS = {text: key for key, text in AXES.items()}
STYLES = LINES | {"sgd": LINES["momentum"]}


def draw_poisson(against: str) -> Figure:
    """Relative error of every method, the median of the starts, and the target."""
    drawing, (panel,) = figure(5.6, width=NARROW)
    for place, (method, name) in enumerate(numbers.METHODS.items()):
        look = STYLES[method], sparse("momentum" if method == "sgd" else method, place)
        draw_runs(panel, *numbers.curve(method, KEYS[against]), name, *look, alpha=0.07)
    mark_value(panel, numbers.TARGET)
    label(panel, "Relative error of the solution", against)
    legend_below(drawing, panel)
    return drawing


def describe_poisson(against: str) -> str:
    """The median updates or seconds to the target, and how many runs arrive."""
    parts = []
    for method, name in numbers.METHODS.items():
        found = numbers.reached(method, KEYS[against])
        parts.append(f"{name} {arrival(found, KEYS[against])}")
    return (
        f"{against[0].upper()}{against[1:]} until the relative error is "
        f"{numbers.TARGET:g} (grey line), median of {numbers.starts()} starts, each method "
        f"at the settings that its search chose: {'; '.join(parts)}. Bands are the range of the "
        "starts."
    )


POISSON = Drawing(
    draw_poisson,
    describe_poisson,
    grid={"against": list(AXES.values())},
    start={"against": AXES["seconds"]},
    labels={"against": "against"},
)
