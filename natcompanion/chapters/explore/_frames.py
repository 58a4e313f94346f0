"""Frames: one drawing and its description, turned into a small picture and the HTML that shows
it.
"""

import base64
import html
import inspect
import io
import math
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import joblib
import matplotlib
from ipywidgets import VBox
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from natcompanion.chapters import printed
from natcompanion.chapters.explore._palette import indexed
from natcompanion.chapters.statistics import recording

Draw = Callable[..., Figure]
Describe = Callable[..., str]
Point = Mapping[str, Any]

PARALLEL_FROM = 10.0  # seconds of drawing left at which two workers repay their start of 3 to 5 s
WORKERS = 2  # by default: each worker that imports torch takes about 250 MB


class Frame(NamedTuple):
    """One picture, its size in CSS pixels, the text that says what it shows, and the numbers
    printed in it.
    """

    uri: str
    width: int
    height: int
    text: str
    recorded: Sequence[tuple[str, float]] = ()


class Described(VBox):
    """A box that is also a picture and a description: what is shown where no kernel runs, and what
    a stored notebook is compared by.
    """

    def __init__(self, children: Sequence[Any]) -> None:
        super().__init__(children)
        self.text = ""

    def begin(self, point: Point, frame: Frame) -> None:
        """Take the first picture and its description."""
        self.text, self.frame = f"[{name_point(point)}] {frame.text}", frame

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        shown = {"image/png": png(self.frame.uri), "text/plain": self.text}
        values = printed.metadata(self.text, self.frame.recorded)
        metadata = {"image/png": {"width": self.frame.width}, **values}
        return {**super()._repr_mimebundle_(**kwargs), **shown}, metadata


def name_value(value: Any) -> str:
    """Return a short readable form of a number or a name."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def name_point(point: Point) -> str:
    """Return ``"eps = 0.1, T = 5"``."""
    return ", ".join(f"{name} = {name_value(value)}" for name, value in point.items())


def check_names(
    names: Sequence[str], options: Sequence[str], functions: Mapping[str, Callable]
) -> None:
    """Refuse a function whose parameter has the name of an option, and an empty set of
    parameters.
    """
    for label, function in functions.items():
        if not callable(function):
            raise ValueError(f"{label}: expected a function of the slider values, got {function!r}")
        for taken in inspect.signature(function).parameters.keys() & set(options):
            raise ValueError(
                f"{label}: its parameter {taken!r} has the name of an option; rename it"
            )
    if not names:
        raise ValueError(
            "expected at least one slider, got none; give one as a keyword, such as eps=…"
        )


def check_labels(labels: Mapping[str, str] | None, names: Sequence[str]) -> dict[str, str]:
    """Return the label of every parameter: the given one, or its name."""
    labels = check_mapping("labels", labels, names)
    return {name: str(labels.get(name, name)) for name in names}


def check_mapping(
    option: str, given: Mapping[str, Any] | None, names: Sequence[str]
) -> Mapping[str, Any]:
    """Return ``given`` (or an empty dict) if it maps names of parameters to something."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{option}: expected a dict with keys among {', '.join(names)}, got {given!r}; "
            f"it is an option, so a parameter cannot be called {option!r}"
        )
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(f"{option}: expected keys among {', '.join(names)}, got {unknown[0]!r}")
    return given


def check_positive(option: str, value: float) -> None:
    """Refuse an option that is not a positive number."""
    if not (isinstance(value, (int, float)) and 0 < value < math.inf):
        raise ValueError(f"{option}: expected a positive number, got {value!r}")


def render(draw: Draw, describe: Describe, point: Point, dpi: float) -> Frame:
    """Return the frame at one point.

    Raises
    ------
    ValueError
        If ``draw`` gives no Figure or ``describe`` no text.
    RuntimeError
        If one of them raises; the message names the point.
    """
    figure = _call("draw", draw, point)
    if not isinstance(figure, Figure):
        raise ValueError(
            f"draw: expected a matplotlib Figure at {name_point(point)}, got "
            f"{type(figure).__name__}"
        )
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close(figure)
    with recording() as recorded:
        text = _call("describe", describe, point)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"describe: expected a sentence at {name_point(point)}, got {text!r}")
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    uri = _call(
        "draw", lambda **_: _encode(figure, dpi), point
    )  # layout and mathtext can still fail here
    return Frame(uri, width, height, " ".join(text.split()), recorded)


def render_all(
    draw: Draw, describe: Describe, points: Sequence[Point], dpi: float, workers: int | None
) -> list[Frame]:
    """Return the frames at all points, drawn by several processes if that is quicker.

    Drawing starts here. The time of the second frame (the first one warms caches) says whether
    workers pay.
    """
    frames = [render(draw, describe, point, dpi) for point in points[:1]]
    began = time.perf_counter()
    frames += [render(draw, describe, point, dpi) for point in points[1:2]]
    rest = points[2:]
    if workers is None:
        slow = (time.perf_counter() - began) * len(rest) > PARALLEL_FROM
        workers = min(WORKERS, joblib.cpu_count()) if slow else 1
    return frames + (
        _parallel(draw, describe, rest, dpi, workers) or _render_each(draw, describe, rest, dpi)
    )


def frame_html(frame: Frame, longest: str = "") -> str:
    """Return the figure with alternative text and caption, as high as the ``longest`` caption makes
    it.

    One line more is kept, because a caption of fewer characters can break into more lines.
    """
    text, longest = html.escape(frame.text), html.escape(longest)
    below = "grid-area:2/1;line-height:1.5;text-align:left"
    return (
        '<figure style="display:grid;grid-template-columns:minmax(0,1fr);margin:0 '
        f'auto;max-width:{frame.width}px">'
        f'<img src="{frame.uri}" alt="{text}" width="{frame.width}" height="{frame.height}" '
        'style="max-width:100%;height:auto;background:#fff">'
        f'<figcaption style="{below}">{text}</figcaption>'
        '<div aria-hidden="true" '
        f'style="{below};padding-bottom:1.5em;visibility:hidden">{longest}</div></figure>'
    )


def png(uri: str) -> bytes:
    """Return a frame as PNG with the palette: the form that every viewer of notebooks shows."""
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    buffer = io.BytesIO()
    indexed(image).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _call(role: str, function: Callable, point: Point) -> Any:
    try:
        return function(**point)
    except Exception as error:
        message = f"{role} failed at {name_point(point)}: {type(error).__name__}: {error}"
        raise RuntimeError(message) from error


def _encode(figure: Figure, dpi: float) -> str:
    """Return the figure on opaque white as a data address: lossless WebP in the colours of the one
    palette, with which text and lines stay crisp and a frame weighs 4 to 30 KB.
    """
    figure.patch.set(facecolor="white", alpha=1, visible=True)
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.frombytes("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba())).convert(
        "RGB"
    )
    buffer = io.BytesIO()
    indexed(image).convert("RGB").save(buffer, "WEBP", lossless=True, quality=80, method=3)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def _render_each(
    draw: Draw, describe: Describe, points: Sequence[Point], dpi: float
) -> list[Frame]:
    return [render(draw, describe, point, dpi) for point in points]


def _render_with(
    state: tuple, draw: Draw, describe: Describe, points: Sequence[Point], dpi: float
) -> list[Frame]:
    """In a worker: take over the style and the default dtype of the notebook, then draw."""
    style, dtype = state
    if dtype is not None:
        import torch

        torch.set_default_dtype(dtype)
    with matplotlib.rc_context(style):
        return _render_each(draw, describe, points, dpi)


def _notebook_state() -> tuple:
    """Return what a worker needs to draw the same picture: changed style settings, torch's default
    dtype.
    """
    default, now = matplotlib.rcParamsDefault, matplotlib.rcParams
    style = {k: now[k] for k in now if now[k] != default[k] and not k.startswith("backend")}
    torch = sys.modules.get("torch")
    return style, torch.get_default_dtype() if torch else None


def _parallel(
    draw: Draw, describe: Describe, points: Sequence[Point], dpi: float, workers: int
) -> list[Frame] | None:
    """Return the frames drawn by ``workers`` processes, or None if that is not possible here."""
    if workers < 2 or len(points) < 2:
        return None
    state = _notebook_state()
    shares = [points[k::workers] for k in range(workers)]
    tasks = [joblib.delayed(_render_with)(state, draw, describe, share, dpi) for share in shares]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # joblib warns when it replaces a worker; a chapter keeps stderr empty
            drawn = joblib.Parallel(n_jobs=workers, backend="loky")(tasks)
    except (BrokenProcessPool, pickle.PicklingError, TypeError, AttributeError):
        return None  # a worker was killed, or a function refers to something that cannot be copied
    frames: list[Any] = [None] * len(points)
    for k, share in enumerate(drawn):
        frames[k::workers] = share
    return frames
