"""One table says which colour and line a method has; every figure keeps to it."""

import re
from pathlib import Path

import pytest

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
from natcompanion.chapters.figures.style import METHODS, colour

CSS = Path(__file__).parents[2] / "book" / "_static" / "page" / "figure.css"

LINES = {
    "compare": (compare.LINES, {"adam": "adamw", "truncated": "natural"}),
    "after": (after.STYLES, {"momentum": "sgd", "adam": "adamw", "truncated": "natural"}),
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
            assert given[own.get(method, method)] == METHODS[method], method


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
    shown = [METHODS[method] for method in SHOWN[name]]
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


@pytest.mark.parametrize("method", ["sgd", "momentum", "kfac", "rngd", "penalty"])
def test_the_page_has_the_lines_of_the_table(method):
    given = re.search(rf"\.nc-line\.nc-{method} {{[^}}]*dasharray: (\d+) ", CSS.read_text())
    assert bool(given) == (METHODS[method][1] == "--")
