"""The figure of the chapter that compares all methods."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import (
    LINES as TABLE,
)
from natcompanion.chapters.figures.style import (
    NARROW,
    figure,
    label,
    legend_below,
    mark_value,
    sparse,
)
from natcompanion.chapters.numbers import compare as numbers
from natcompanion.chapters.show import digits
from natcompanion.chapters.statistics import Arrivals

OWN = {"natural": "truncated"}
"""Names in the records that mean another method of the table."""
LINES = TABLE | {name: TABLE[method] for name, method in OWN.items()}
SHORT = {
    "natural": "truncated\nnatural gradient",
    "sample": "natural gradient\nin sample space",
}
SCORES = {
    "autoencoder": ("Auto-encoder", "squared error of an image"),
    "convolution": ("Small convolutional network", "training loss, nats"),
    "logistic": ("Logistic regression", "excess loss, nats"),
}
PROBLEMS = {title: problem for problem, (title, _) in SCORES.items()}
AXES = {"updates": "updates", "seconds": "seconds of one processor"}


def draw_runs(
    panel: Axes,
    x: np.ndarray,
    runs: np.ndarray,
    text: str,
    line: tuple[str, str],
    marker: dict[str, Any],
    alpha: float,
) -> None:
    """Draw the median of the runs (runs, points) of a method, in a band from the least to the most,
    on logarithmic axes; the start is not shown.
    """
    color, style = line
    x, runs = x[1:], runs[:, 1:]
    panel.fill_between(x, runs.min(0), runs.max(0), color=color, alpha=alpha, linewidth=0)
    look: dict[str, Any] = {"color": color, "linestyle": style, "linewidth": 1.8, "label": text}
    panel.loglog(x, np.median(runs, 0), **look, **marker)


def draw(problem: str, against: str) -> Figure:
    """Score of every method, the median of the starts, and the target."""
    name, key = PROBLEMS[problem], {text: key for key, text in AXES.items()}[against]
    drawing, (panel,) = figure(5.6, width=NARROW)
    for place, method in enumerate(numbers.methods(name)):
        look = LINES[method], sparse(OWN.get(method, method), place)
        text = SHORT.get(method, numbers.METHODS[method])
        draw_runs(panel, *numbers.curve(name, method, key), text, *look, alpha=0.1)
    mark_value(panel, numbers.TARGETS[name])
    panel.set_ylim(bottom=numbers.TARGETS[name] / 3)
    label(panel, f"{problem}:\n{SCORES[name][1]}", against)
    legend_below(drawing, panel, columnspacing=0.8, handlelength=1.6)
    return drawing


def arrival(found: Arrivals, key: str) -> str:
    """Return the median to the target, and how many runs arrive where some do not."""
    if found.median is None:
        when = "never in half of the runs"
    else:
        when = f"{round(found.median)}" if key == "updates" else digits(found.median)
    counted = "" if found.arrived == found.n else f" ({found.arrived} of {found.n} arrive)"
    return f"{when}{counted}"


def describe(problem: str, against: str) -> str:
    """The median updates or seconds to the target, and how many runs arrive."""
    name, key = PROBLEMS[problem], {text: key for key, text in AXES.items()}[against]
    parts = []
    for method in numbers.methods(name):
        found = numbers.reached(name, method, key)
        parts.append(f"{numbers.METHODS[method]} {arrival(found, key)}")
    return (
        f"{problem}: {against} until the {SCORES[name][1].partition(',')[0]} is "
        f"{numbers.TARGETS[name]:g} (grey line), median of {numbers.starts(name)} starts, "
        f"each method at the settings that its search chose: {'; '.join(parts)}. Bands are the "
        "range of the starts."
    )


ARENA = Drawing(
    draw=draw,
    describe=describe,
    grid={"problem": list(PROBLEMS), "against": list(AXES.values())},
    start={"against": "updates"},
    labels={"problem": "problem", "against": "against"},
)
