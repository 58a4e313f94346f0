"""One look for all figures: colours that colour-blind readers can tell apart, and letters that a
phone can show.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
"""The palette of Okabe and Ito."""

COLOURS = (ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE)
SHADES = ("#FFFDF5", "#FFF3D0", "#FFE5A3", "#FFD277", "#FDBB55", "#F5A03C")
"""Fields behind curves, from dark to bright as a lamp is."""
STATUS = ("#2f7d4f", "#d9a400", "#5b7fb5", "#b5483c", "#9a9a9a")
"""Verdicts of the scoreboard. Frames are stored in these colours, in tints and blends of
``COLOURS``, in greys, and in those of two maps: another colour is shown by its nearest.
"""


class Method(NamedTuple):
    """How a method is drawn and called wherever a chapter has no more to say."""

    colour: str
    line: str
    marker: str
    name: str


METHODS = {
    "sgd": Method(VERMILLION, "-", "o", "SGD"),
    "momentum": Method(VERMILLION, "--", "v", "SGD with momentum"),
    "adam": Method(ORANGE, "-", "s", "Adam"),
    "rmsprop": Method(ORANGE, "-", "D", "RMSprop"),
    "muon": Method(PURPLE, "-", "P", "Muon"),
    "lbfgs": Method(BLACK, "--", "X", "L-BFGS"),
    "batchnorm": Method(GREEN, "-", "^", "batch normalization"),
    "newton": Method(GREEN, "--", "<", "Newton"),
    "leroux": Method(ORANGE, "-.", ">", "Le Roux"),
    "natural": Method(BLUE, "-", "*", "natural gradient"),
    "truncated": Method("0.55", "-", "d", "truncated natural gradient"),
    "sample": Method("0.55", "--", "h", "natural gradient in sample space"),
    "kfac": Method(BLACK, "-", "p", "K-FAC"),
    "prong": Method(BLUE, "-", "x", "PRONG"),
    "prong+": Method(SKY, "--", "+", "PRONG+"),
    "rngd": Method(SKY, "-", "1", "RNGD"),
    "penalty": Method(PURPLE, "--", "2", "penalty"),
    "whitened": Method(SKY, "-.", "|", "learned whitening"),
}
METHODS["adamw"] = METHODS["adam"]._replace(name="AdamW")
"""Colour, line, marker and name of every method, the same in all chapters and in the figures of
the page.

PRONG, the natural gradient of each layer, has the blue of the natural gradient: no figure shows
both. A figure in which lines stand for something else takes the colours alone.
"""

LINES = {key: (method.colour, method.line) for key, method in METHODS.items()}

WIDTH = 5.4
"""Inches. At 96 pixels an inch this fits a text column. A phone of 390 pixels shows a picture from
edge to edge: there 12 points are 12 pixels high.
"""

NARROW = 4.69
"""Inches of a picture whose numbers any phone has to show: on 338 pixels 12 points are 12 high."""

FONT = {"title": 13, "label": 12, "tick": 12, "legend": 12}


def colour(method: str) -> str:
    """Return the colour of a method."""
    return METHODS[method].colour


def named(*methods: str) -> dict[str, str]:
    """Return the names of methods by their keys."""
    return {method: METHODS[method].name for method in methods}


def figure(
    height: float, rows: int = 1, columns: int = 1, width: float = WIDTH, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a new figure on opaque white, and its panels in reading order."""
    drawing = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    panels = drawing.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for panel in panels:
        panel.tick_params(labelsize=FONT["tick"])
        panel.tick_params(axis="x", pad=6)  # off the number of the other axis, at the corner
        panel.spines[["top", "right"]].set_visible(False)
    return drawing, panels


def label(
    panel: Axes, title: str = "", x: str = "", y: str = "", legend: str | bool = False
) -> None:
    """Set the texts of a panel in the common sizes."""
    panel.set_title(title, fontsize=FONT["title"], loc="left")
    panel.set_xlabel(x, fontsize=FONT["label"])
    panel.set_ylabel(y, fontsize=FONT["label"])
    if legend:
        where: Any = legend if isinstance(legend, str) else "best"
        panel.legend(fontsize=FONT["legend"], frameon=False, loc=where)


def mark_value(panel: Axes, value: float) -> None:
    """Draw a grey line at a height, with its value at the right end."""
    panel.axhline(value, color="0.7", linewidth=1, zorder=0)
    panel.text(
        1.01,
        value,
        f"{value:g}",
        transform=panel.get_yaxis_transform(),
        va="center",
        fontsize=FONT["tick"],
    )


def sparse(method: str, place: int) -> dict[str, Any]:
    """Return the marker of a method for a curve, a few along it; those of curves that share a panel
    are shifted by their ``place``.
    """
    every = (0.05 + 0.03 * (place % 8), 0.24)
    return {"marker": METHODS[method].marker, "markevery": every, "markersize": 6}


def legend_below(drawing: FigureBase, panel: Axes, columns: int = 2, **options: Any) -> None:
    """Put the legend of a panel below the picture."""
    drawing.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        fontsize=FONT["legend"],
        frameon=False,
        **options,
    )


def pictures(
    panels: Iterable[Axes], images: Iterable, titles: Iterable[str], **options: Any
) -> None:
    """Show grey images without axes, one to a panel."""
    for panel, image, title in zip(panels, images, titles, strict=True):
        panel.imshow(np.asarray(image), cmap="gray", interpolation="nearest", **options)
        panel.set_title(title, fontsize=FONT["legend"])
        panel.set_axis_off()
