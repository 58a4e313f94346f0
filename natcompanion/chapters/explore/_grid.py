"""`explore`: every point of a grid is drawn once; linked sliders show the one they stand on."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ipywidgets import HTML, Layout, SelectionSlider, Stack, Widget, jslink

from natcompanion.chapters.explore._frames import (
    Describe,
    Described,
    Draw,
    check_labels,
    check_mapping,
    check_names,
    check_positive,
    frame_html,
    name_point,
    name_value,
    render_all,
)

MAX_FRAMES = 400
OPTIONS = ("start", "labels", "dpi", "workers")


def explore(
    draw: Draw,
    describe: Describe,
    *,
    start: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    dpi: float = 96,
    workers: int | None = None,
    **grid: Iterable[Any],
) -> Described:
    """Return an interactive figure whose sliders work without a kernel.

    Every point of the grid is drawn once. The picture, its alternative text and its caption change
    with the sliders.

    A set of axes costs about 0.07 s and 5 KB in each frame, and more with pictures or contours. Set
    margins with ``subplots_adjust``: the axes then keep their place when a slider moves.

    Parameters
    ----------
    draw : callable
        ``draw(**point)`` returns a `matplotlib.figure.Figure`, of the same size at every point. It
        is shown on opaque white with a palette of 48 colours.
    describe : callable
        ``describe(**point)`` returns the sentence that is alternative text and caption.
    start : dict, optional
        Values, of some or all parameters, at which the sliders stand first. Default: the first
        value of each.
    labels : dict, optional
        Label of the slider of a parameter. Default: its name.
    dpi : float
        Dots per inch of the picture. It is shown at 96 pixels per inch of the figure, or narrower
        to fit.
    workers : int, optional
        Number of processes that draw. Default: two if more than about 10 s of drawing is left after
        two frames, else one. The functions and what they refer to are copied to the workers.
    **grid : iterable
        One to three parameters, each with its values: numbers or names.

    Returns
    -------
    ipywidgets.VBox
        With the class ``nc-explore``: the sliders over the picture. Each frame has the class
        ``nc-frame``. Its plain text is the description at the start point.

    Raises
    ------
    ValueError
        If the grid, an option, or what the functions return is not as above, or if there are more
        than 400 frames.
    RuntimeError
        If ``draw`` or ``describe`` raises; the message names the point.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> def draw(power, scale):
    ...     figure = Figure(figsize=(3, 2))
    ...     figure.subplots().plot([scale * x**power for x in range(10)])
    ...     return figure
    >>> def describe(power, scale):
    ...     return f"The curve ends at {scale * 9**power:.3g}."
    >>> figure = explore(draw, describe, start={"power": 2}, power=[1, 2], scale=[0.5, 1.0])
    >>> print(figure.text)
    [power = 2, scale = 0.5] The curve ends at 40.5.
    """
    check_names(tuple(grid), OPTIONS, {"draw": draw, "describe": describe})
    check_positive("dpi", dpi)
    check_positive("workers", 1 if workers is None else workers)
    values = _check_grid(grid)
    captions = check_labels(labels, tuple(values))
    first = _start_indices(check_mapping("start", start, tuple(values)), values)

    points = [
        dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())
    ]
    frames = render_all(draw, describe, points, dpi, workers)
    if len({frame[1:3] for frame in frames}) > 1:
        other = next(i for i, frame in enumerate(frames) if frame[1:3] != frames[0][1:3])
        raise ValueError(
            f"draw: expected figures of one size, got {frames[0][1:3]} pixels at "
            f"{name_point(points[0])} "
            f"and {frames[other][1:3]} at {name_point(points[other])}; give figsize in draw"
        )

    longest = max((frame.text for frame in frames), key=len)
    layout, style = (
        Layout(width="100%"),
        HTML().style,
    )  # shared, which makes the saved state smaller
    leaves = [HTML(frame_html(frame, longest), layout=layout, style=style) for frame in frames]
    for leaf in leaves:
        leaf.add_class("nc-frame")
    width = f"{min(max(map(len, captions.values())), 24) + 1}ch"
    sliders = [
        SelectionSlider(
            options=[(label, i) for i, label in enumerate(_option_labels(values[name]))],
            index=first[name],
            description=captions[name],
            layout=Layout(width="100%"),
            style={"description_width": width},
        )
        for name in values
    ]
    at = {name: values[name][first[name]] for name in values}
    box = Described([*sliders, _nest(leaves, sliders)])
    box.begin(at, frames[points.index(at)])
    box.add_class("nc-explore")
    return box


def _nest(leaves: Sequence[Widget], sliders: Sequence[SelectionSlider]) -> Stack:
    """Return the leaves (last parameter fastest) in nested stacks, each linked to its slider."""
    level: Sequence[Widget] = leaves
    for slider in reversed(sliders):
        size = len(slider.options)
        level = [
            Stack(level[i : i + size], selected_index=slider.index, layout=Layout(width="100%"))
            for i in range(0, len(level), size)
        ]
        for stack in level:
            jslink((slider, "index"), (stack, "selected_index"))
    return level[0]


def _check_grid(grid: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    if len(grid) > 3:
        raise ValueError(f"expected one to three sliders, got {len(grid)}: {', '.join(grid)}")
    values = {name: _check_values(name, given) for name, given in grid.items()}
    frames = math.prod(map(len, values.values()))
    if frames > MAX_FRAMES:
        sizes = " x ".join(str(len(v)) for v in values.values())
        raise ValueError(
            f"expected at most {MAX_FRAMES} frames, got {sizes} = {frames}; give fewer values"
        )
    return values


def _check_values(name: str, given: Iterable[Any]) -> list[Any]:
    """Return the values of a parameter as a list of distinct plain numbers or names."""
    expected = f"{name}: expected a list of distinct numbers or names"
    if isinstance(given, (str, Mapping)) or not hasattr(given, "__iter__"):
        raise ValueError(f"{expected}, got {given!r}")
    values = given.tolist() if hasattr(given, "tolist") else list(given)  # of arrays and tensors
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not values:
        raise ValueError(f"{expected}, got an empty one")
    for value in values:
        if not isinstance(value, (int, float, str)) or str(value) in ("", "nan"):
            raise ValueError(f"{expected}, got the value {value!r}")
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ValueError(f"{expected}, got {twice[0]!r} twice")
    return values


def _start_indices(start: Mapping[str, Any], values: Mapping[str, list[Any]]) -> dict[str, int]:
    first = dict.fromkeys(values, 0)
    for name, wanted in start.items():
        hits = [i for i, value in enumerate(values[name]) if _same(value, wanted)]
        if not hits:
            listed = ", ".join(map(name_value, values[name]))
            raise ValueError(f"start: expected {name} to be one of {listed}, got {wanted!r}")
        first[name] = hits[0]
    return first


def _same(value: Any, wanted: Any) -> bool:
    numbers = isinstance(value, (int, float)) and isinstance(wanted, (int, float))
    return math.isclose(value, wanted, rel_tol=1e-9) if numbers else value == wanted


def _option_labels(values: Sequence[Any]) -> list[str]:
    """Return short labels, or full ones where short ones would be equal."""
    short = [name_value(value) for value in values]
    return short if len(set(short)) == len(short) else [str(value) for value in values]
