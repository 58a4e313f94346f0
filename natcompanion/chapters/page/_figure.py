"""A figure of a page: its programs, and the markup that the build puts where a chapter wants it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from natcompanion.chapters.page._program import Program
from natcompanion.chapters.page._trace import Input, trace

PLACE = re.compile(r'<div class="nc-figure" data-figure="(?P<name>[\w.]+)"></div>')
"""Where a chapter wants a figure. JupyterLab and a printed page show nothing there."""


@dataclass(frozen=True)
class Traced:
    """A function for a page, and inputs of it.

    Attributes
    ----------
    function : callable
        See `natcompanion.chapters.page.trace`.
    example, other : sequence of Tensor or float
        Inputs at which it is traced, and at which the trace is compared with it.
    """

    function: Callable[..., Any]
    example: Sequence[Input]
    other: Sequence[Input]

    @cached_property
    def program(self) -> Program:
        """The program of the function."""
        return trace(self.function, self.example, self.other)


@dataclass(frozen=True)
class PageFigure:
    """A figure that computes in the page.

    Attributes
    ----------
    script : str
        The file in ``book/_static/page`` that draws it.
    programs : dict
        What it computes.
    """

    script: str
    programs: Mapping[str, Traced]

    def markup(self, name: str) -> str:
        """Return the element of a figure with its programs."""
        texts = [f'"{key}":{traced.program.json()}' for key, traced in self.programs.items()]
        programs = "{" + ",".join(texts) + "}"
        return (
            f'<div class="nc-figure" data-figure="{name}">'
            f'<script type="application/json">{programs}</script></div>'
        )


def find(name: str) -> PageFigure:
    """Return a declared figure, such as ``"whitening.PLANE"``."""
    module, _, key = name.partition(".")
    return getattr(import_module(f"natcompanion.chapters.figures.{module}"), key)


def fill(page: str) -> tuple[str, list[str]]:
    """Return a page with the figures that it has places for, and the files that they need.

    Examples
    --------
    >>> fill("<p>No figure.</p>")
    ('<p>No figure.</p>', [])
    """
    names = [found["name"] for found in PLACE.finditer(page)]
    if not names:
        return page, []
    scripts = dict.fromkeys(["runtime.js", "figure.js", *(find(name).script for name in names)])
    return PLACE.sub(lambda found: find(found["name"]).markup(found["name"]), page), list(scripts)
