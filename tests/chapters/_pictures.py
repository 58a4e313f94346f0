"""What every figure of a chapter must satisfy, at every point of its grid."""

import itertools
import re
from collections.abc import Callable

from matplotlib.figure import Figure


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
        for axes in figure.axes:
            for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels()):
                assert text.get_fontsize() >= 10, "too small for a phone"
    assert len(sizes) == 1
