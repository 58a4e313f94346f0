"""`explore` and `live`: every point of a grid shows its own frame, and bad input is named."""

import base64
import html
import io
import itertools
import math
import pickle
import re

import matplotlib
import numpy as np
import pytest
import torch
from ipywidgets import HTML, Dropdown, FloatLogSlider, FloatSlider, IntSlider, ToggleButtons
from ipywidgets.widgets import widget
from ipywidgets.widgets.widget_link import Link
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from natcompanion.chapters.explore import _frames, _live, _palette, explore, live
from natcompanion.chapters.figures.style import COLOURS, METHODS, PURPLE, SHADES, STATUS, colour

matplotlib.use("agg")

COLORS = {method: colour(method) for method in METHODS}


def draw(**point):
    figure = Figure(figsize=(2, 1.5))
    figure.subplots().set_title(" ".join(map(str, point.values())))
    return figure


def describe(**point):
    return f"Value {sorted(point.items())}."


def shown(box, indices):
    """Return the HTML that a browser shows with the sliders at ``indices``, by following the
    links.
    """
    sliders, node = box.children[:-1], box.children[-1]
    links = {
        link.target: link.source for link in widget._instances.values() if isinstance(link, Link)
    }
    at = dict(zip(sliders, indices, strict=True))
    while not isinstance(node, HTML):
        source, trait = links[node, "selected_index"]
        assert trait == "index"
        node = node.children[at[source]]
    return node.value


def texts(value):
    """Return the alternative text and the caption in the HTML of a frame."""
    found = re.search('alt="([^"]*)".*<figcaption[^>]*>([^<]*)<', value)
    return [html.unescape(text) for text in found.groups()]


def picture(value):
    """Return the picture in the HTML of a frame."""
    return Image.open(io.BytesIO(base64.b64decode(re.search(r'base64,([^"]+)"', value)[1])))


GRIDS = [
    {"eps": [0.1, 1.0, 10.0]},
    {"eps": [0.1, 1.0], "kind": ["zca", "pca", "cholesky"]},
    {"eps": np.logspace(-1, 0, 2), "T": torch.arange(1, 4), "kind": ("zca", "pca")},
]


@pytest.mark.parametrize("grid", GRIDS, ids=["one", "two", "three"])
def test_every_combination_of_sliders_shows_its_own_frame(grid):
    box = explore(draw, describe, **grid)
    values = [
        value.tolist() if hasattr(value, "tolist") else list(value) for value in grid.values()
    ]
    pictures = set()
    for indices in itertools.product(*(range(len(value)) for value in values)):
        point = {name: value[i] for name, value, i in zip(grid, values, indices, strict=True)}
        value = shown(box, indices)
        assert texts(value) == [describe(**point)] * 2
        pictures.add(picture(value).tobytes())
    assert len(pictures) == np.prod([len(value) for value in values])


def test_swapped_parameters_would_be_seen():
    box = explore(draw, describe, a=[1, 2], b=[1, 2])
    assert describe(a=1, b=2) in texts(shown(box, (0, 1)))
    assert describe(a=1, b=2) not in texts(shown(box, (1, 0)))


@pytest.mark.parametrize("grid", GRIDS, ids=["one", "two", "three"])
def test_any_start_point(grid):
    start = {name: list(value)[-1] for name, value in grid.items()}
    start = {
        name: value.item() if hasattr(value, "item") else value for name, value in start.items()
    }
    box = explore(draw, describe, start=start, **grid)
    node = box.children[-1]
    for slider in box.children[:-1]:
        assert slider.index == len(slider.options) - 1 == node.selected_index
        node = node.children[node.selected_index]
    assert describe(**start) in texts(node.value)
    assert describe(**start) in box._repr_mimebundle_()[0]["text/plain"]


def test_a_start_that_differs_by_rounding_is_found():
    box = explore(draw, describe, start={"eps": 0.3}, eps=[0.1, 0.1 + 0.2])
    assert box.children[0].index == 1
    with pytest.raises(ValueError, match="start: expected eps to be one of 0.1, 0.3, got 0.31"):
        explore(draw, describe, start={"eps": 0.31}, eps=[0.1, 0.1 + 0.2])


def test_the_output_has_a_view_and_a_plain_text_without_identifiers():
    first, second = (
        explore(draw, lambda eps: "KL is 3.61.", eps=[0.5, 1.0])._repr_mimebundle_()[0]
        for _ in range(2)
    )
    assert first["text/plain"] == second["text/plain"] == "[eps = 0.5] KL is 3.61."
    assert "application/vnd.jupyter.widget-view+json" in first
    view = "application/vnd.jupyter.widget-view+json"
    assert first[view]["model_id"] != second[view]["model_id"]


def test_classes_and_labels():
    box = explore(
        draw, describe, labels={"eps": "ε of Eq. 35"}, eps=[1e-8, 0.25, 1234567], T=[100, 1000000]
    )
    assert "nc-explore" in box._dom_classes
    assert "nc-frame" in box.children[-1].children[0].children[0]._dom_classes
    assert [slider.description for slider in box.children[:-1]] == ["ε of Eq. 35", "T"]
    assert [label for label, _ in box.children[0].options] == ["1e-08", "0.25", "1234567"]
    assert [label for label, _ in box.children[1].options] == ["100", "1000000"]


def test_labels_that_would_be_equal_are_written_out():
    box = explore(draw, describe, eps=[0.12345678, 0.12345679])
    assert [label for label, _ in box.children[0].options] == ["0.12345678", "0.12345679"]


def test_text_is_escaped():
    nasty = '<script>alert("1 & 2")</script>'
    box = explore(draw, lambda kind: nasty + kind, kind=['"><b>x</b>', "b"])
    value = shown(box, (0,))
    assert "<script" not in value and "<b>" not in value
    assert texts(value) == [nasty + '"><b>x</b>'] * 2


def test_frames_have_one_size_white_ground_and_few_bytes():
    def grey(eps):
        figure = Figure(figsize=(2, 1), facecolor="none")
        figure.text(0, 0, eps)
        return figure

    box = explore(grey, lambda eps: "x" * eps, eps=[1, 5], dpi=192)
    values = [shown(box, (i,)) for i in range(2)]
    assert all('width="192" height="96"' in value for value in values)
    assert all('visibility:hidden">xxxxx</div>' in value for value in values), (
        "room for the longest caption"
    )
    for value in values:
        image = picture(value)
        assert image.size == (384, 192) and image.mode == "RGB"
        assert image.getpixel((300, 10)) == (255, 255, 255)
        assert len(value) < 5000


def frame(figure, dpi=100):
    """Return a frame as (height, width, 3) bytes."""
    uri = _frames._encode(figure, dpi)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def crowded(k):
    """Draw every colour of a method as a field, a ramp of greys, and ``k`` things of other
    colours.
    """
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    for place, (method, color) in enumerate(COLORS.items()):
        axes.barh(place, 4, color=color, label=method)
    axes.imshow(
        np.linspace(0, 1, 12)[None], cmap="gray", extent=(0, 4, -3, -1), interpolation="nearest"
    )
    field = np.random.default_rng(k).normal(size=(20, 20))
    axes.imshow(field[:k, :k], cmap=("viridis", "RdBu")[k % 2], extent=(5, 9, 0, 8))
    axes.plot([5, 9], [-3, 9], color=PURPLE, alpha=0.5, lw=1 + k)
    axes.set(xlim=(0, 9), ylim=(-3, len(COLORS)), aspect="auto")
    return figure


def places(figure):
    """Return the pixel in the middle of each method's field, and those along the ramp."""
    FigureCanvasAgg(figure).draw()
    axes, height = figure.axes[0], round(figure.bbox.height)
    spots = [(2, place) for place in range(len(COLORS))]
    spots += [(4 * (k + 0.5) / 12, -2) for k in range(12)]
    x, y = np.floor(axes.transData.transform(spots)).astype(int).T
    return height - 1 - y, x


def faults(frames, spots):
    """Return what is wrong with colours of frames: fields of methods, greys, and one another."""
    seen = np.array([image[spots] for image in frames]).astype(int)
    exact = [(255 * np.array(to_rgb(color)) + 0.5).astype(int) for color in COLORS.values()]
    found = []
    if (seen[:, : len(COLORS)] != exact).any():
        found.append("a method's colour is not exact")
    if np.ptp(seen[:, len(COLORS) :], axis=-1).any():
        found.append("a grey has a tint")
    if np.ptp(seen, axis=0).any():
        found.append("a colour differs between frames")
    return found


def test_colours_are_the_same_in_all_frames():
    figures = [crowded(k) for k in (3, 8, 13, 20)]
    spots = places(figures[0])
    assert not faults([frame(figure) for figure in figures], spots)


def test_a_palette_for_each_frame_would_be_seen(monkeypatch):
    """The negative control: 48 colours chosen for each frame."""

    def adaptive(image):
        return image.quantize(48, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)

    figures = [crowded(k) for k in (3, 8, 13, 20)]
    spots = places(figures[0])
    monkeypatch.setattr(_frames, "indexed", adaptive)
    assert set(faults([frame(figure) for figure in figures], spots)) >= {
        "a method's colour is not exact",
        "a colour differs between frames",
    }


def test_every_grey_stays_grey():
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)[None]
    shown = np.asarray(_palette.indexed(Image.fromarray(ramp)).convert("RGB")).astype(int)
    assert not np.ptp(shown, axis=-1).any() and (np.diff(shown[0, :, 0]) >= 0).all()
    assert np.abs(shown - ramp).max() <= 7
    near = _palette.PALETTE[_palette.nearest(np.array([[120, 121, 120], [20, 20, 22]]))]
    assert not np.ptp(near.astype(int), axis=1).any()


def test_the_palette_holds_what_the_figures_are_drawn_in():
    held = {tuple(one) for one in _palette.PALETTE.tolist()}
    assert len(held) == len(_palette.PALETTE) <= 256
    for color in (*COLORS.values(), *COLOURS, *SHADES, *STATUS, "black", "white", "0.7"):
        assert tuple((255 * np.array(to_rgb(color)) + 0.5).astype(int)) in held, color
    for name in _palette.MAPS:  # neighbours of a map are near enough to be no bands
        given = 255 * matplotlib.colormaps[name](np.linspace(0, 1, 500))[:, :3]
        near = _palette.PALETTE[_palette.nearest(np.round(given))]
        assert np.abs(near - given).max() < 25


def test_the_png_has_the_colours_of_the_frame():
    uri = _frames._encode(crowded(8), 96)
    stored = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
    assert (np.asarray(Image.open(io.BytesIO(_frames.png(uri))).convert("RGB")) == stored).all()


def test_figures_of_pyplot_are_closed():
    from matplotlib import pyplot

    def with_pyplot(k):
        return pyplot.figure(figsize=(1, 1))

    explore(with_pyplot, describe, k=[1, 2])
    live(with_pyplot, describe, k=(1, 2))
    assert pyplot.get_fignums() == []


def test_workers_draw_the_same_frames_with_the_notebook_s_state(monkeypatch):
    offset = 0.25

    def closure(a, b):
        figure = Figure(figsize=(1, 1))
        figure.text(0, offset, f"{a}{b}")
        return figure

    def state(a, b):
        return f"{a}{b} {matplotlib.rcParams['lines.linewidth']} {torch.tensor(1.0).dtype}"

    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 7.5)
    torch.set_default_dtype(torch.float64)
    try:
        boxes = [
            explore(closure, state, a=[1, 2, 3], b=["x", "y"], workers=workers)
            for workers in (1, 2)
        ]
    finally:
        torch.set_default_dtype(torch.float32)
    for indices in itertools.product(range(3), range(2)):
        one, two = (shown(box, indices) for box in boxes)
        assert one == two and "7.5 torch.float64" in one
    with pytest.raises(RuntimeError, match="draw failed at a = 3, b = 1: ZeroDivisionError"):
        explore(
            lambda a, b: closure(a, b) if (a, b) != (3, 1) else 1 / 0,  # one: workers race
            state,
            a=[1, 2, 3],
            b=[1, 2],
            workers=2,
        )


def test_functions_that_cannot_be_copied_are_drawn_here():
    class Stuck:
        def __reduce__(self):
            raise pickle.PicklingError("no")

    stuck = Stuck()

    def closure(k):
        assert stuck
        return draw(k=k)

    box = explore(closure, describe, k=[1, 2, 3, 4], workers=2)
    assert describe(k=4) in texts(shown(box, (3,)))


def test_slow_drawings_go_to_workers(monkeypatch):
    asked = []
    monkeypatch.setattr(_frames, "_parallel", lambda *args: asked.append(args[-1]))
    explore(draw, describe, k=[1, 2, 3])
    monkeypatch.setattr(_frames, "PARALLEL_FROM", 0.0)
    monkeypatch.setattr(_frames.joblib, "cpu_count", lambda: 16)
    explore(draw, describe, k=[1, 2, 3])
    assert asked == [1, 2]


def nothing(**point):
    return None


def grows(k):
    return Figure(figsize=(k, 1))


def late(k):
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, r"$\unknown$")
    return figure


def has_dpi(k, dpi):
    return draw(k=k)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "at least one slider", {}),
        (
            ValueError,
            "one to three sliders, got 4: a, b, c, d",
            {"a": [1], "b": [1], "c": [1], "d": [1]},
        ),
        (
            ValueError,
            "k: expected a list of distinct numbers or names, got an empty one",
            {"k": []},
        ),
        (ValueError, "k: .* got 2.0 twice", {"k": [2, 1, 2.0]}),
        (ValueError, "k: .* got the value \\[1\\]", {"k": [[1], [2]]}),
        (ValueError, "k: .* got the value nan", {"k": [float("nan")]}),
        (ValueError, "k: .* got the value ''", {"k": [""]}),
        (ValueError, "k: .* got the value None", {"k": [None]}),
        (ValueError, "k: .* got 'abc'", {"k": "abc"}),
        (ValueError, "k: .* got 3", {"k": 3}),
        (ValueError, "at most 400 frames, got 21 x 20 = 420", {"k": range(21), "l": range(20)}),
        (
            ValueError,
            "start: expected k to be one of 1, 2, got 3",
            {"k": [1, 2], "start": {"k": 3}},
        ),
        (ValueError, "start: expected keys among k, got 'x'", {"k": [1], "start": {"x": 3}}),
        (
            ValueError,
            "start: expected a dict .* cannot be called 'start'",
            {"k": [1], "start": [1, 2]},
        ),
        (ValueError, "labels: expected keys among k, got 'x'", {"k": [1], "labels": {"x": "X"}}),
        (
            ValueError,
            "draw: its parameter 'dpi' has the name of an option",
            {"k": [1], "draw": has_dpi},
        ),
        (ValueError, "draw: expected a function", {"k": [1], "draw": 3}),
        (ValueError, "dpi: expected a positive number, got 0", {"k": [1], "dpi": 0}),
        (ValueError, "workers: expected a positive number, got -1", {"k": [1], "workers": -1}),
        (
            ValueError,
            "draw: expected a matplotlib Figure at k = 1, got None",
            {"k": [1], "draw": nothing},
        ),
        (
            ValueError,
            "draw: expected figures of one size, got .*96, 96.* at k = 1 and .*192, 96.* at k = 2",
            {"k": [1, 2], "draw": grows},
        ),
        (
            ValueError,
            "describe: expected a sentence at k = 1, got None",
            {"k": [1], "describe": nothing},
        ),
        (
            ValueError,
            "describe: .* sentence at k = 1, got ' '",
            {"k": [1], "describe": lambda k: " "},
        ),
        (
            RuntimeError,
            "describe failed at k = 1: ZeroDiv",
            {"k": [1], "describe": lambda k: 1 / 0},
        ),
        (
            RuntimeError,
            "draw failed at k = 0.5: ZeroDivisionError",
            {"k": [0.5], "draw": lambda k: 1 / 0},
        ),
        (
            RuntimeError,
            "draw failed at k = 1: TypeError: .*unexpected",
            {"k": [1], "draw": lambda x: 0},
        ),
        (RuntimeError, "draw failed at k = 1: (?s:.*)unknown", {"k": [1], "draw": late}),
    ],
)
def test_bad_input_is_named(error, message, arguments):
    with pytest.raises(error, match=message):
        explore(**{"draw": draw, "describe": describe, **arguments})


def test_live_controls_and_values():
    box = live(
        draw,
        describe,
        lr=(0.1, 1.1),
        eps=(1e-8, 1, "log"),
        T=(1, 10),
        n=(10, 1000, "log"),
        kind=["zca", "pca"],
        digits=["three versus five", "four versus nine", "zero versus one"],
        start={"T": 3},
        labels={"lr": "step size"},
    )
    kinds = [FloatSlider, FloatLogSlider, IntSlider, FloatLogSlider, ToggleButtons, Dropdown]
    assert [type(control) for control in box.controls.values()] == kinds
    assert box.controls["lr"].description == "step size"
    assert box.point == pytest.approx(
        {"lr": 0.6, "eps": 1e-4, "T": 3, "n": 100, "kind": "zca", "digits": "three versus five"}
    )
    assert type(box.point["n"]) is int and type(box.point["T"]) is int
    assert box._repr_mimebundle_()[0]["text/plain"].startswith(
        "[lr = 0.6, eps = 0.0001, T = 3, n = 100, kind = zca"
    )
    assert "nc-live" in box._dom_classes


def test_live_redraws_at_once_where_that_is_quick(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(_live.time, "process_time", lambda: next(now) * 0.2)
    box = live(draw, describe, start={"T": 2}, labels={"T": "updates"}, T=(1, 10))
    box.controls["T"].value = 7
    assert describe(T=7) in texts(box.result.value) and "Done." in box.status.value
    assert "nc-stale" not in box.result._dom_classes
    monkeypatch.setattr(_live.time, "process_time", lambda: next(now) * 0.4)
    box.controls["T"].value = 8
    assert describe(T=8) in texts(box.result.value)
    box.controls["T"].value = 9
    assert describe(T=8) in texts(box.result.value)
    assert "The picture is at updates = 8. Run draws updates = 9." in box.status.value


def test_live_draws_at_start_and_on_run_and_marks_a_stale_picture(monkeypatch):
    monkeypatch.setattr(_live, "QUICK", 0.0)
    calls = []

    def busy(T):
        calls.append((T, box.button.disabled, box.button.description) if T > 5 else T)
        return draw(T=T)

    box = live(busy, describe, start={"T": 2}, T=(1, 10))
    assert calls == [2] and describe(T=2) in texts(box.result.value)
    box.controls["T"].value = 7
    assert calls == [2] and describe(T=2) in texts(box.result.value)
    assert "nc-stale" in box.result._dom_classes
    assert "The picture is at T = 2. Run draws T = 7." in box.status.value
    box.button.click()
    assert calls == [2, (7, True, "Running…")]
    assert describe(T=7) in texts(box.result.value) and not box.button.disabled
    assert box.button.description == "Run" and "nc-stale" not in box.result._dom_classes
    box.controls["T"].value = 8
    box.controls["T"].value = 7
    assert "nc-stale" not in box.result._dom_classes and "Press Run" not in box.status.value


def test_live_shows_errors_and_recovers(capsys):
    def fails(T):
        if T == 7:
            raise ValueError("<b>expected</b> T != 7")
        return draw(T=T)

    box = live(fails, describe, start={"T": 6}, T=(1, 10))
    box.controls["T"].value = 7
    box.button.click()
    assert "ValueError: &lt;b&gt;expected&lt;/b&gt; T != 7" in box.result.value
    assert (
        "<img" not in box.result.value
        and "Failed at T = 7" in box.status.value
        and not box.button.disabled
    )
    box.controls["T"].value = 8
    box.button.click()
    assert describe(T=8) in texts(box.result.value) and "Failed" not in box.status.value
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_an_error_at_the_start_point_stops_the_build():
    with pytest.raises(RuntimeError, match="draw failed at k = 2: ZeroDivisionError"):
        live(lambda k: 1 / 0, describe, k=(1, 3))


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("at least one slider", {}),
        ('k: expected .low, high., .low, high, "log". or a list of names', {"k": (1, 2, 3)}),
        ("k: expected .low, high.", {"k": 3}),
        ("k: expected .low, high.", {"k": (1.0, float("inf"))}),
        ("k: expected .low, high.", {"k": ("a", "b")}),
        ("k: expected low < high", {"k": (2, 1)}),
        ("low > 0 for a logarithmic range", {"k": (0, 1, "log")}),
        ("k: expected a list of distinct names", {"k": []}),
        ("k: expected a list of distinct names", {"k": ["a", "a"]}),
        ("k: expected a list of distinct names", {"k": [["a"], ["b"]]}),
        ("start: expected k to be one of a, b, got 'c'", {"k": ["a", "b"], "start": {"k": "c"}}),
        ("start: expected k between 1 and 2, got 3", {"k": (1, 2), "start": {"k": 3}}),
        ("start: expected k between 1 and 2, got 'x'", {"k": (1, 2), "start": {"k": "x"}}),
        ("start: expected keys among k, got 'x'", {"k": (1, 2), "start": {"x": 3}}),
        ("start: expected a dict", {"k": (1, 2), "start": (1, 2)}),
        ("its parameter 'dpi' has the name of an option", {"k": (1, 2), "draw": has_dpi}),
    ],
)
def test_live_bad_input_is_named(message, arguments):
    with pytest.raises(ValueError, match=message):
        live(**{"draw": draw, "describe": describe, **arguments})


@pytest.mark.parametrize(
    "given", [(0.2, 6.0), (1.0, 1000.0, "log"), (0.3, 7.1), (1e-8, 2.0, "log")]
)
@pytest.mark.parametrize("start", [0.3, 1.0, 1.7, 2.0])
def test_a_slider_starts_on_one_of_its_steps(given, start):
    """The browser moves a handle to a step, and the picture would be of another value."""
    if not given[0] <= start:
        start += 1
    figure = live(lambda x: Figure(), lambda x: f"x is {x:.3g}.", x=given, start={"x": start})
    slider = figure.controls["x"]
    value = math.log10(slider.value) if len(given) == 3 else slider.value
    moved = slider.min + slider.step * round((value - slider.min) / slider.step)
    slider.value = 10**moved if len(given) == 3 else moved
    assert figure.point == figure.shown == {"x": start}
