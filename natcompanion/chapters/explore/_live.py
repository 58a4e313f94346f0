"""`live`: any point inside ranges, drawn by the kernel at once or when the reader presses Run."""

import html
import math
import time
from collections.abc import Mapping
from typing import Any

from ipywidgets import (
    HTML,
    Button,
    Dropdown,
    FloatLogSlider,
    FloatSlider,
    HBox,
    IntSlider,
    Layout,
    ToggleButtons,
    ValueWidget,
)

from natcompanion.chapters.explore._frames import (
    Describe,
    Described,
    Draw,
    Frame,
    check_labels,
    check_mapping,
    check_names,
    check_positive,
    frame_html,
    name_point,
    render,
)

OPTIONS = ("start", "labels", "dpi")
STEPS = 100  # at least, of a slider over real numbers
QUICK = 0.3  # processor seconds of drawing up to which a control redraws at once


def live(
    draw: Draw,
    describe: Describe,
    *,
    start: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    dpi: float = 96,
    **ranges: tuple | list,
) -> Described:
    """Return a figure that the kernel draws at any point of ranges.

    Where the last picture took less than 0.3 s of processor time, it is drawn again whenever a
    control moves; else when the reader presses Run. While it is drawn, the button says so and is
    disabled. A picture that does not belong to the controls is dimmed, and a line says which point
    it shows and which one Run draws. An error at the start point is raised, so that it stops the
    build of the book; later the reader sees its type and message in place of the picture. Tag the
    cell ``remove-cell``.

    Parameters
    ----------
    draw, describe : callable
        As for `natcompanion.chapters.explore.explore`.
    start : dict, optional
        Values, of some or all parameters, at which the sliders stand first. Default: the middle of
        the range (the geometric one for a logarithmic range), or the first name.
    labels : dict, optional
        Label of the control of a parameter. Default: its name.
    dpi : float
        Dots per inch of the picture.
    **ranges : tuple or list
        ``(low, high)``, ``(low, high, "log")`` or a list of names or numbers. A range between two
        integers gives integers.

    Returns
    -------
    ipywidgets.VBox
        With the class ``nc-live``. Its plain text is the description at the start point.

    Raises
    ------
    ValueError
        If a range, an option, or what the functions return at the start point is not as above.
    RuntimeError
        If ``draw`` or ``describe`` raises at the start point.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> def draw(power, kind):
    ...     figure = Figure(figsize=(3, 2))
    ...     figure.subplots().plot([x**power for x in range(10)], "-" if kind == "line" else ".")
    ...     return figure
    >>> def describe(power, kind):
    ...     return f"The {kind} ends at {9**power:.3g}."
    >>> figure = live(draw, describe, start={"power": 2.0}, power=(0.5, 3.0), kind=["line", "dots"])
    >>> print(figure.text)
    [power = 2, kind = line] The line ends at 81.
    """
    names = tuple(ranges)
    check_names(names, OPTIONS, {"draw": draw, "describe": describe})
    check_positive("dpi", dpi)
    captions, start = check_labels(labels, names), check_mapping("start", start, names)
    width = f"{min(max(map(len, captions.values())), 24) + 1}ch"
    controls = {
        name: _control(name, ranges[name], start.get(name), captions[name], width) for name in names
    }
    return _Live(draw, describe, dpi, ranges, controls, captions)


class _Live(Described):
    """The controls, the Run button, the status line and the picture."""

    def __init__(
        self,
        draw: Draw,
        describe: Describe,
        dpi: float,
        ranges: Mapping,
        controls: Mapping,
        captions: Mapping,
    ) -> None:
        self.draw, self.describe, self.dpi, self.captions = draw, describe, dpi, captions
        self.ranges, self.controls = ranges, controls
        self.button = Button(
            description="Run", button_style="primary", tooltip="Draw at these values"
        )
        self.status, self.result = HTML(), HTML(layout=Layout(width="100%"))
        self.result.add_class("nc-frame")
        super().__init__([*controls.values(), HBox([self.button, self.status]), self.result])
        self.add_class("nc-live")
        self.shown, self.outcome = self.point, "Ready."
        frame = self._render()
        self.begin(self.shown, frame)
        self._say(self.outcome)
        self.button.on_click(lambda _: self.run())
        for control in controls.values():
            control.observe(lambda _: self._moved(), "value")

    @property
    def point(self) -> dict[str, Any]:
        """The values at which the controls stand, as they are shown."""
        return {
            name: _shown(self.ranges[name], control.value)
            for name, control in self.controls.items()
        }

    def run(self) -> None:
        """Draw the picture at the point of the controls, or show why that failed."""
        self.shown = self.point
        self.button.disabled, self.button.description = True, "Running…"
        self._say("Running…")
        try:
            self._render()
            self.outcome = "Done."
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the reader sees it
            cause = error.__cause__ or error
            message = html.escape(f"{type(cause).__name__}: {cause}")
            self.result.value = f'<pre role="alert" style="white-space:pre-wrap">{message}</pre>'
            self.outcome = f"Failed at {self._named(self.shown)}."
        self.button.disabled, self.button.description = False, "Run"
        self._mark_stale()

    def _render(self) -> Frame:
        """Draw the picture at the point ``shown``, show it, and note its processor time."""
        began = time.process_time()
        frame = render(self.draw, self.describe, self.shown, self.dpi)
        self.result.value, self.seconds = frame_html(frame), time.process_time() - began
        return frame

    def _moved(self) -> None:
        """Draw at once if that is quick, else say that the picture is of another point."""
        if self.seconds < QUICK and self.point != self.shown:
            self.run()
        else:
            self._mark_stale()

    def _named(self, point: Mapping[str, Any]) -> str:
        """Return a point in the words of the controls."""
        return name_point({self.captions[name]: value for name, value in point.items()})

    def _mark_stale(self) -> None:
        stale = self.point != self.shown
        (self.result.add_class if stale else self.result.remove_class)("nc-stale")
        shown, wanted = self._named(self.shown), self._named(self.point)
        points = f"The picture is at {shown}. Run draws {wanted}."
        self._say(points if stale else self.outcome)

    def _say(self, text: str) -> None:
        style = "<style>.nc-stale { opacity: 0.4 }</style>"
        self.status.value = (
            f'{style}<span role="status" aria-live="polite">{html.escape(text)}</span>'
        )


def _shown(given: tuple | list, value: Any) -> Any:
    """Return the value of a control as its readout shows it: an integer, three digits, or a
    name.
    """
    if isinstance(given, list):
        return value
    return round(value) if _integers(given) else float(f"{value:.3g}")


def _steps(share: float) -> int:
    """Return into how many steps to divide a slider, so that the start, at this share of it, is on
    one: the browser moves a handle to a step.
    """
    counts = range(STEPS, 4 * STEPS)
    return min(counts, key=lambda steps: round(abs(share * steps - round(share * steps)), 3))


def _integers(given: tuple | list) -> bool:
    return isinstance(given, tuple) and all(type(end) is int for end in given[:2])


def _control(name: str, given: tuple | list, start: Any, caption: str, width: str) -> ValueWidget:
    """Return the control of one parameter."""
    common = {
        "description": caption,
        "layout": Layout(width="100%"),
        "style": {"description_width": width},
    }
    if isinstance(given, list):
        return _choice(name, given, start, common)
    low, high, log = _check_range(name, given)
    middle = math.sqrt(low * high) if log else (low + high) / 2
    if start is None:
        start = round(middle) if _integers(given) else middle
    if not isinstance(start, (int, float)) or not low <= start <= high:
        raise ValueError(f"start: expected {name} between {low:g} and {high:g}, got {start!r}")
    if log:
        ends = {
            "min": math.log10(low),
            "max": math.log10(high),
            "step": math.log10(high / low) / _steps(math.log(start / low) / math.log(high / low)),
        }
        return FloatLogSlider(
            start, **ends, readout_format=".0f" if _integers(given) else ".3g", **common
        )
    if _integers(given):
        return IntSlider(round(start), min=low, max=high, **common)
    step = (high - low) / _steps((start - low) / (high - low))
    return FloatSlider(start, min=low, max=high, step=step, readout_format=".3g", **common)


def _choice(name: str, names: list, start: Any, common: Mapping[str, Any]) -> ValueWidget:
    if (
        not names
        or not all(isinstance(n, (str, int, float)) for n in names)
        or len(set(names)) < len(names)
    ):
        raise ValueError(f"{name}: expected a list of distinct names or numbers, got {names!r}")
    start = names[0] if start is None else start
    if start not in names:
        raise ValueError(
            f"start: expected {name} to be one of {', '.join(map(str, names))}, got {start!r}"
        )
    kind = ToggleButtons if sum(len(str(n)) for n in names) <= 40 else Dropdown
    return kind(options=names, value=start, **common)


def _check_range(name: str, given: Any) -> tuple[float, float, bool]:
    """Return the ends of a range and whether it is logarithmic."""
    shape = isinstance(given, tuple) and len(given) in (2, 3) and given[2:] in ((), ("log",))
    if not shape or not all(
        isinstance(end, (int, float)) and math.isfinite(end) for end in given[:2]
    ):
        raise ValueError(
            f'{name}: expected (low, high), (low, high, "log") or a list of names, got {given!r}'
        )
    low, high = given[:2]
    if low >= high or (len(given) == 3 and low <= 0):
        raise ValueError(
            f"{name}: expected low < high, and low > 0 for a logarithmic range, got {given!r}"
        )
    return low, high, len(given) == 3
