"""Every declared figure: drawn and described over its grid, at the ends of its ranges, and with
the data it should have.
"""

import importlib
import itertools
import pkgutil

import pytest
from _pictures import check_drawings, check_texts, unreadable
from matplotlib.figure import Figure

from natcompanion.chapters import figures
from natcompanion.chapters.figures.drawing import Drawing, declared

DRAWINGS = {
    f"{module.name}.{name}": drawing
    for module in pkgutil.iter_modules(figures.__path__)
    for name, drawing in declared(
        importlib.import_module(f"natcompanion.chapters.figures.{module.name}")
    ).items()
}
every = pytest.mark.parametrize("drawing", DRAWINGS.values(), ids=DRAWINGS)


def ends(ranges: dict) -> list[dict]:
    """Return the corners of the ranges of a live figure; none if it has no ranges."""
    if not ranges:
        return []
    choices = [given if isinstance(given, list) else given[:2] for given in ranges.values()]
    return [dict(zip(ranges, point, strict=True)) for point in itertools.product(*choices)]


@every
def test_every_point_is_described_and_some_are_drawn(drawing: Drawing):
    grid = {name: list(values) for name, values in drawing.grid.items()}
    count = len(list(itertools.product(*grid.values())))
    if grid:
        check_texts(drawing.describe, grid, own=0.5)
    if grid or not drawing.ranges:
        check_drawings(drawing.draw, grid, every=max(1, count // 5))
        assert len(drawing.describe(**{name: values[0] for name, values in grid.items()})) > 40


@every
def test_the_ends_of_live_ranges_are_drawn(drawing: Drawing):
    for point in ends(dict(drawing.ranges))[:8] if drawing.ranges else []:
        check_drawings(drawing.draw, {name: [value] for name, value in point.items()})
        assert drawing.describe(**point).strip()


@every
def test_controls_start_inside_their_values_and_have_names(drawing: Drawing):
    for name, value in drawing.start.items():
        assert name in {**drawing.grid, **drawing.ranges}
        if name in drawing.grid:
            assert value in list(drawing.grid[name])
    assert {**drawing.grid, **drawing.ranges}.keys() >= drawing.labels.keys()


def test_what_cannot_be_read_is_found():
    drawing = Figure()
    panel = drawing.add_axes((0.3, 0.3, 0.4, 0.4))
    panel.plot([0, 1], [0, 1], label="a line")
    panel.legend(loc="lower right")
    assert not unreadable(drawing)
    panel.legend(loc="center")
    assert unreadable(drawing) == ["a line runs through 'a line'"]
    panel.legend(loc="upper left")
    panel.set_title("a title " * 20)
    assert [text.endswith("is cut") for text in unreadable(drawing)] == [True]
    panel.set_title("short")
    panel.text(0.5, 0.5, "one")
    panel.text(0.51, 0.5, "two")
    assert unreadable(drawing) == ["'one' lies on 'two'"]
