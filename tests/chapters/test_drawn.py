"""Figures draw the data that they did: curves are not swapped, no wrong one is heavy, no value
moves.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

spec = spec_from_file_location("drawn", Path(__file__).resolve().parents[2] / "tools" / "drawn.py")
tool = module_from_spec(spec)
spec.loader.exec_module(tool)

DRAWINGS, STORED = tool.drawings(), tool.stored()


def test_every_figure_is_stored_and_no_other():
    assert DRAWINGS.keys() == STORED.keys(), "run tools/drawn.py"
    assert tool.SPREADS.keys() <= DRAWINGS.keys()
    assert all(tool.EXACT < spread <= 0.2 for spread in tool.SPREADS.values())


@pytest.mark.parametrize("name", sorted(DRAWINGS.keys() & STORED.keys()))
def test_the_figure_draws_what_it_did(name):
    drawing = DRAWINGS[name]
    today = tool.shown(name, drawing)
    spread = tool.SPREADS.get(name, tool.EXACT)
    assert list(tool.differences(STORED[name], today, spread)) == [], "meant? tools/drawn.py"


LOSSES = {"SGD": np.array([[1.0, 4.0], [1.0, 2.0]]), "PRONG": np.array([[1.0, 3.0], [0.5, 0.1]])}
COLOURS = {"SGD": "#e69f00", "PRONG": "#0072b2"}


def toy(
    losses: dict = LOSSES, heavy: str = "PRONG", best: object = min, step: float = 0.1
) -> Figure:
    """Return a figure with what the book's figures have: curves, points, bars, an image, words."""
    figure = Figure()
    left, middle, right = figure.subplots(1, 3)
    for name, color in COLOURS.items():
        width = 3 if name == heavy else 1
        left.plot(losses[name].mean(axis=1), color=color, linewidth=width, label=name)
        left.fill_between([0, 1], losses[name].min(axis=1), losses[name].max(axis=1), color=color)
    left.legend()
    left.set_title(f"Step {step:.2f}")
    left.text(0, 0, f"best {best(x.mean() for x in losses.values()):.3f}")
    middle.bar([0, 1], [losses[name].sum() for name in COLOURS], color=list(COLOURS.values()))
    middle.set_xticks([0, 1], list(COLOURS))
    middle.scatter([0, 1, 2], [1.0, 2.0, losses["SGD"].max()], s=4)
    right.imshow(losses["SGD"], cmap="viridis", vmin=0, vmax=4)
    right.contour([0, 1], [0, 1], losses["SGD"], levels=[1.5, 2.5])
    right.quiver([0, 1], [0, 1], [1.0, losses["PRONG"][0, 1]], [0.0, 1.0])
    return figure


SWAPPED = {"SGD": LOSSES["PRONG"], "PRONG": LOSSES["SGD"]}
NUDGED = {**LOSSES, "PRONG": LOSSES["PRONG"] * (1 + 1e-4)}


@pytest.mark.parametrize(
    "changed, words",
    [
        (toy(SWAPPED), "axes 1, line 1 'SGD': first was"),
        (toy(SWAPPED), "axes 2, bars 1: first was"),
        (toy(heavy="SGD"), "axes 1, line 1 'SGD': style was #e69f00ff width [1.0]"),
        (toy(NUDGED), "axes 1, line 2 'PRONG': mean was"),
        (toy(NUDGED), "axes 3, collection 2: largest was"),
        (toy(best=max), "axes 1: texts was ['best 1.150'], is ['best 2.000']"),
        (toy({**LOSSES, "SGD": -LOSSES["SGD"]}), "axes 3, image 1: first was"),
        (toy({**LOSSES, "SGD": LOSSES["SGD"].T}), "axes 3, image 1: middle was"),
        (toy(step=0.2), "axes 1: title was Step 0.10, is Step 0.20"),
        (Figure(), "axes 1 is gone"),
    ],
)
def test_what_moved_is_named(changed, words):
    found = list(tool.differences(tool.fingerprint(toy()), tool.fingerprint(changed)))
    assert any(line.startswith(words) for line in found), found


def test_the_same_figure_and_rounding_are_no_difference():
    before = tool.fingerprint(toy())
    near = {name: values * (1 + 1e-9) for name, values in LOSSES.items()}
    assert list(tool.differences(before, before)) == []
    assert list(tool.differences(before, tool.fingerprint(toy(near)))) == []
    assert list(tool.differences(before, tool.fingerprint(toy(NUDGED)), spread=0.01)) == []
    assert list(tool.differences(before, tool.fingerprint(toy(SWAPPED)), spread=0.01))


def test_what_lies_beyond_the_axes_is_no_difference():
    for limit, differs in ((2.0, True), (0.5, False)):
        before, after = Figure(), Figure()
        for figure, end in ((before, 1.0), (after, 3.0)):
            axes = figure.subplots()
            axes.plot([0.2, end])
            axes.set_ylim(0, limit)
        found = list(tool.differences(tool.fingerprint(before), tool.fingerprint(after)))
        assert bool(found) is differs


def test_colours_of_a_legend_and_names_of_bars_are_words_too():
    for artist in ("legend", "ticks"):
        changed = toy()
        left, middle, _ = changed.axes
        if artist == "legend":
            left.legend(left.lines[::-1], ["SGD", "PRONG"])
        else:
            middle.set_xticklabels(["PRONG", "SGD"])
        found = list(tool.differences(tool.fingerprint(toy()), tool.fingerprint(changed)))
        assert len(found) == 1 and artist in found[0]
