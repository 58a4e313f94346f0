"""What every figure of a chapter must satisfy, at every point of its grid."""

import itertools
import re
from collections.abc import Callable, Iterator

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def points(grid: dict) -> list[dict]:
    """Return every point of a grid ``{name: values}``."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def significant(number: str) -> int:
    """Return how many significant digits a decimal number has."""
    return len(number.replace(".", "").lstrip("0"))


def check_texts(describe: Callable[..., str], grid: dict, *, own: float = 0.6) -> None:
    """Check that each point has a short sentence of finite numbers with 3 digits, more than ``own``
    of them different.
    """
    texts = [describe(**point) for point in points(grid)]
    assert len(set(texts)) > own * len(texts)
    for text in texts:
        assert text.endswith(".") and len(text) < 900
        assert not re.search(r"(?<![a-z])(nan|inf)(?![a-z])|None", text), text
        assert max(map(significant, re.findall(r"\d+\.\d+", text)), default=0) <= 3, text


def check_drawings(draw: Callable[..., Figure], grid: dict, *, every: int = 1) -> None:
    """Check that each point, or one in ``every``, is drawn on white, in one size, with letters for
    a phone.
    """
    sizes = set()
    for point in points(grid)[::every]:
        figure = draw(**point)
        assert isinstance(figure, Figure) and figure.get_facecolor() == (1, 1, 1, 1)
        sizes.add(tuple(figure.get_size_inches()))
        assert figure.axes or figure.subfigs
        assert not unreadable(figure), point
        assert not small(figure), point
    assert len(sizes) == 1


PHONE, LEAST = 390, 12
"""Pixels: the width of a phone, which shows a picture from edge to edge, and of letters there."""


def small(figure: Figure) -> list[str]:
    """Return the texts of a figure, numbers at axes among them, that a phone shows too small;
    exponents are part of their number.
    """
    scale = min(96.0, PHONE / figure.get_size_inches()[0]) / 72
    sizes = [(text.get_text(), scale * text.get_fontsize()) for text in _texts(figure)]
    return [f"{name!r} has {size:.1f} pixels" for name, size in sizes if size < LEAST]


def unreadable(figure: Figure) -> list[str]:
    """Return what cannot be read in a figure: texts cut at its edge, texts on one another, and the
    names of a legend that a line of the panel runs through.
    """
    FigureCanvasAgg(figure).draw()
    boxes = [(text.get_text(), text.get_window_extent()) for text in _texts(figure)]
    edge, found = figure.bbox.padded(0.5), []
    for name, box in boxes:
        if not (edge.contains(box.x0, box.y0) and edge.contains(box.x1, box.y1)):
            found.append(f"{name!r} is cut")
    for (name, box), (other, below) in itertools.combinations(boxes, 2):
        common = Bbox.intersection(box, below)
        if common is not None and common.width > 1 and common.height > 2:
            found.append(f"{name!r} lies on {other!r}")
    for axes in figure.axes:
        names = axes.get_legend().get_texts() if axes.get_legend() else []
        for text, line in itertools.product(names, axes.lines):
            drawn = line.get_path().transformed(line.get_transform())
            if line.get_linestyle() != "None" and drawn.intersects_bbox(
                text.get_window_extent(), filled=False
            ):
                found.append(f"a line runs through {text.get_text()!r}")
    return found


def _texts(figure: Figure) -> Iterator[Text]:
    """Yield all texts of a figure that are seen."""
    legends = [*figure.legends, *(legend for part in figure.subfigs for legend in part.legends)]
    legends += [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    texts = [text for legend in legends for text in legend.get_texts()] + figure.texts
    for axes in figure.axes:
        texts += [axes.title, axes._left_title, *axes.texts]
        if axes.axison:
            texts += [axes.xaxis.label, axes.yaxis.label, *_ticks(axes)]
    for text in texts:
        if text.get_visible() and text.get_text().strip():
            yield text


def _ticks(axes: Axes) -> Iterator[Text]:
    """Yield the numbers at the axes, as far as these reach."""
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        for tick in axis.get_major_ticks():
            if min(limits) <= tick.get_loc() <= max(limits):
                yield tick.label1
