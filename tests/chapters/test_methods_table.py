"""One table says which colour and line a method has; every figure keeps to it."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from natcompanion.chapters.figures import (
    after,
    boltzmann,
    compare,
    foundations,
    prong,
    revisiting,
    rfim,
    whitening,
)
from natcompanion.chapters.figures.style import LINES as TABLE
from natcompanion.chapters.figures.style import METHODS, NARROW, colour

CSS = Path(__file__).parents[2] / "book" / "_static" / "page" / "figure.css"

LINES = {
    "compare": (compare.LINES, {"truncated": "natural"}),
    "after": (after.STYLES, {"momentum": "sgd", "truncated": "natural"}),
    "boltzmann's machine": (boltzmann.LINES, {}),
}
"""Figures that take colour and line, and their own names for methods of the table."""
COLOURS = {
    "boltzmann": (boltzmann.COLOURS, {"whitened": "easi", "": "prong"}),
    "prong": (prong.COLORS, {}),
    "prong's layer": (prong.LAYER_METHODS, {"sgd": "plain"}),
    "revisiting": (revisiting.METHODS, {"sgd": "gradient"}),
    "revisiting's columns": (revisiting.COLUMNS, {"sgd": "msgd"}),
    "rfim": ({name: first for name, (first, _) in rfim.TRAINERS.items()}, {}),
    "whitening": (whitening.COLORS, {"sgd": "plain", "natural": "fisher"}),
    "whitening's plane": (
        {name: second for name, (_, second, _) in whitening.STYLES.items()},
        {"sgd": "steepest"},
    ),
    "foundations": (
        {name: second for name, (_, second, _, _) in foundations.PATHS.items()},
        {"sgd": "gradient"},
    ),
}
"""Figures whose lines stand for something else, and take the colours alone."""
SHOWN = {
    "compare": {"sgd", "momentum", "adam", "muon", "batchnorm", "truncated", "sample", "kfac"}
    | {"prong", "prong+", "rngd"},
    "after": {"momentum", "adam", "muon", "lbfgs", "sample"},
    "boltzmann": {"sgd", "penalty", "whitened", "natural"},
    "prong": {"sgd", "rmsprop", "batchnorm", "prong", "prong+", "kfac"},
    "revisiting": {"sgd", "newton", "leroux", "natural"},
    "rfim": {"sgd", "momentum", "kfac", "rngd"},
}


@pytest.mark.parametrize("name", LINES)
def test_colour_and_line_are_those_of_the_table(name):
    given, own = LINES[name]
    kept = [method for method in METHODS if own.get(method, method) in given]
    assert len(kept) > 4
    for method in kept:
        if method not in own.values():  # its name means another method here
            assert given[own.get(method, method)] == TABLE[method], method


@pytest.mark.parametrize("name", COLOURS)
def test_the_colour_is_that_of_the_table(name):
    given, own = COLOURS[name]
    kept = [method for method in METHODS if own.get(method, method) in given]
    assert kept
    for method in kept:
        if method not in own.values():
            assert given[own.get(method, method)] == colour(method), method


@pytest.mark.parametrize("name", SHOWN)
def test_methods_of_one_figure_can_be_told_apart(name):
    shown = [TABLE[method] for method in SHOWN[name]]
    assert len(set(shown)) == len(shown)


def test_the_page_has_the_colours_of_the_table():
    light = CSS.read_text().split('html[data-theme="dark"]')[0]
    found = dict(re.findall(r"--(\w+): (#\w+);", light))
    for variable, method in {
        "steepest": "sgd",
        "natural": "natural",
        "penalty": "penalty",
        "whitened": "whitened",
        "newton": "newton",
        "leroux": "leroux",
        "relative": "rngd",
    }.items():
        assert found[variable] == colour(method).lower(), variable
    assert re.search(r"\.nc-kfac \{\s+--colour: var\(--text\);", CSS.read_text())  # black


PAGE = ["sgd", "momentum", "kfac", "rngd", "natural", "penalty", "whitened", "newton", "leroux"]
"""Methods that have a class in the style sheet of the page."""


@pytest.mark.parametrize("method", PAGE)
def test_the_page_has_the_lines_of_the_table(method):
    assert re.search(rf"\.nc-{method}\b", CSS.read_text())
    given = re.search(rf"\.nc-line\.nc-{method} {{[^}}]*dasharray: ([\d ]+)", CSS.read_text())
    lengths = len(given[1].split()) if given else 0
    assert lengths == {"-": 0, "--": 2, "-.": 4}[METHODS[method].line]


def test_markers_and_names_are_distinct():
    own = {key: method for key, method in METHODS.items() if key != "adamw"}  # a kind of Adam
    assert len({method.marker for method in own.values()}) == len(own)
    assert len({method.name for method in METHODS.values()}) == len(METHODS)


def lightness(method):
    """Return how light a method's colour is in print, 0 to 1."""
    return float(np.dot(to_rgb(colour(method)), [0.299, 0.587, 0.114]))


@pytest.mark.parametrize("name", SHOWN)
def test_methods_of_one_figure_can_be_told_apart_in_grey(name):
    for one, other in itertools.combinations(sorted(SHOWN[name]), 2):
        first, second = METHODS[one], METHODS[other]
        apart = abs(lightness(one) - lightness(other)) > 0.1 or first.line != second.line
        assert apart or name in (*MARKED, "prong"), (one, other)


MARKED = {
    "compare": lambda: compare.draw("Auto-encoder", "updates"),
    "after": lambda: after.draw_poisson("updates"),
}
"""Figures whose curves have the markers of the table."""


@pytest.mark.parametrize("name", MARKED)
def test_curves_have_markers_and_a_phone_shows_the_numbers(name):
    drawing = MARKED[name]()
    (panel,) = drawing.axes
    curves = [line for line in panel.lines if len(line.get_xdata()) > 2]
    markers = [line.get_marker() for line in curves]
    assert len(set(markers)) == len(markers) and set(markers) <= {
        m.marker for m in METHODS.values()
    }
    scale = 338 / (96 * drawing.get_size_inches()[0]) * 96 / 72
    assert drawing.get_size_inches()[0] == NARROW
    texts = [*panel.get_xticklabels(), *panel.get_yticklabels(), *panel.texts]
    texts += drawing.legends[0].get_texts()
    assert min(text.get_fontsize() for text in texts) * scale >= 12
    assert panel.texts, "the target has its value"


def test_curves_of_prong_s_chapter_have_markers():
    drawing = prong.draw_autoencoder(prong.BEST)
    for panel in drawing.axes:
        named = {line.get_label(): line.get_marker() for line in panel.lines}
        for method in ("batchnorm", "prong", "kfac"):
            if METHODS[method].name in named:
                assert named[METHODS[method].name] == METHODS[method].marker
        assert {METHODS["batchnorm"].name, METHODS["prong"].name} <= named.keys()
