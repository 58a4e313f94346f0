"""The figures of the revisiting chapter."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import (
    BLACK,
    BLUE,
    FONT,
    GREEN,
    ORANGE,
    SKY,
    VERMILLION,
    colour,
    figure,
    label,
    legend_below,
)
from natcompanion.chapters.figures.style import LINES as LOOKS
from natcompanion.chapters.numbers import revisiting as numbers
from natcompanion.chapters.numbers.revisiting import landscape
from natcompanion.chapters.page import PageFigure, Traced
from natcompanion.chapters.show import digits
from natcompanion.chapters.statistics import median

METHODS = {name: colour(name) for name in ("newton", "natural", "leroux")} | {
    "gradient": colour("sgd")
}
DASHES = {name: LOOKS.get(name, LOOKS["sgd"])[1] for name in METHODS}
COLUMNS = {
    "msgd": colour("sgd"),
    "unlabelled": GREEN,
    "added": SKY,
    "different": BLUE,
    "same": BLACK,
    "covariance": ORANGE,
}

# ---- The first screen: Figure 1 as a landscape on which the start is moved

BATCH, GRID = 16, 61
"""Starts of a basin that the page follows at once, and points of a row of its landscape."""


def _traced(function: Callable, method: str, points: int) -> Traced:
    """Return a step of a method, at any of its settings."""

    def step(theta: torch.Tensor, rate: float, damping: float | None = None) -> Any:
        return function(theta, method, rate, damping)

    one, two = (
        torch.linspace(low, high, 2 * points, dtype=torch.float64).view(points, 2)
        for low, high in ((-1, 3), (2, -4))
    )
    if method == "gradient":
        return Traced(step, [one, 0.1], [two, 0.7])
    return Traced(step, [one, 0.1, 0.01], [two, 0.7, 0.4])


def _row(w: float) -> torch.Tensor:
    """Return a row of the landscape, (61, 2)."""
    b = torch.linspace(-5, 5, GRID, dtype=torch.float64)
    return torch.stack([torch.full_like(b, w), b], 1)


LANDSCAPE = PageFigure(
    "revisiting.js",
    {
        **{method: _traced(landscape.advance, method, 1) for method in numbers.METHODS},
        **{f"many {m}": _traced(landscape.moved, m, BATCH) for m in numbers.METHODS},
        "surface": Traced(landscape.surface, [_row(1.0)], [_row(-2.0)]),
        "loops": Traced(
            landscape.loops,
            [landscape.surface(_row(1.0))[0], _row(2.0)[:1]],
            [landscape.surface(_row(-2.0))[0], _row(3.0)[-1:]],
        ),
        "reached": Traced(landscape.reached, [_row(2.5)[35:51]], [_row(-2.3)[18:34]]),
        "drawn": Traced(landscape.drawn, [], []),
    },
)

# ---- Figure 1

Start = tuple[float, float]


def draw_figure1(rate: float, damping: float, start: Start) -> Figure:
    """The error surface with four paths, and the KL surfaces at four points of the natural
    gradient's path.
    """
    paths = numbers.paths(rate, damping, start)
    drawing, _ = figure(7.4)
    drawing.clear()
    top, bottom = drawing.subfigures(2, 1, squeeze=False, height_ratios=[2.6, 1])[:, 0]
    plane, surfaces = top.subplots(), bottom.subplots(1, 4).tolist()
    _error_surface(plane)
    for name, path in paths.items():
        w, b = path[(path.abs() < 8).all(1)].T
        text, style = numbers.METHODS[name], {"linewidth": 1.8, "marker": ".", "markersize": 4}
        style["linestyle"] = DASHES[name]
        plane.plot(b, w, color=METHODS[name], label=text, **style)
    natural = paths["natural"]
    plane.plot(natural[0, 1], natural[0, 0], "o", color=BLACK, markersize=7)
    _mark(plane, [natural[stop] for stop in numbers.STOPS])
    for number, (stop, panel) in enumerate(zip(numbers.STOPS, surfaces, strict=True), start=1):
        _kl_surface(panel, natural[stop], rate, damping, number)
    plane.set(xlim=(-4.5, 4.5), ylim=(-4.5, 4.5))
    label(plane, "Error, and 100 steps of each method", "$b$", "$w$")
    legend_below(drawing, plane)
    return drawing


def _mark(panel: Axes, points: list[torch.Tensor]) -> None:
    """Number points of a path (w, b) from 1; those in one place share a mark."""
    marks: list[tuple[torch.Tensor, list[str]]] = []
    for number, point in enumerate(points, start=1):
        if marks and float((point - marks[-1][0]).norm()) < 0.6:
            marks[-1][1].append(str(number))
        else:
            marks.append((point, [str(number)]))
    for point, found in marks:
        panel.annotate(
            ", ".join(found),
            (float(point[1]), float(point[0])),
            (6, 6),
            textcoords="offset points",
            fontsize=FONT["tick"],
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "0.5"},
        )


def _error_surface(panel: Axes) -> None:
    axis = torch.linspace(-4.5, 4.5, 90, dtype=torch.float64)
    surface = numbers.error_surface(axis)
    panel.contour(axis, axis, surface, 18, linestyles="solid", colors="0.75", linewidths=0.8)
    w, b = numbers.wells().T
    panel.plot(b, w, "*", color=VERMILLION, markersize=12)
    panel.tick_params(labelsize=FONT["tick"])


def _kl_surface(panel: Axes, theta: torch.Tensor, rate: float, damping: float, number: int) -> None:
    """Draw KL(p_theta || p_theta+d) for small d, and the directions of the four steps, all of one
    length.
    """
    axis = torch.linspace(-1, 1, 41, dtype=torch.float64)
    panel.contour(axis, axis, numbers.kl_surface(theta, axis), 7, colors="0.75", linewidths=0.8)
    for name, direction in numbers.directions(theta, rate, damping).items():
        arrow = {"color": METHODS[name], "width": 1.2, "headwidth": 6, "headlength": 6}
        w, b = (0.8 * direction).tolist()
        panel.annotate("", (b, w), (0, 0), arrowprops=arrow)
    panel.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[], yticks=[], aspect="equal")
    panel.set_title(f"KL at {number}", fontsize=FONT["title"])


def describe_figure1(rate: float, damping: float, start: Start) -> str:
    """Where each method ends."""
    ends = [
        f"{numbers.METHODS[name]} {numbers.place(path[-1])} "
        f"(error {digits(numbers.error(path[-1]))})"
        for name, path in numbers.paths(rate, damping, start).items()
    ]
    w, b = start
    return (
        f"From (w, b) = ({w:g}, {b:g}), with step size {rate:g} and damping {damping:g} for the "
        "natural gradient and the paper's for the others, the position after 100 steps: "
        f"{'; '.join(ends)}. The numbered panels are the KL surfaces at steps "
        f"{', '.join(map(str, numbers.STOPS))} of the natural gradient, with the directions of "
        "the four steps."
    )


STARTS = {"(-1, 3)": (-1.0, 3.0), "(1, -3)": (1.0, -3.0)}

FIGURE1 = Drawing(
    draw=lambda rate, damping, origin: draw_figure1(rate, damping, STARTS[origin]),
    describe=lambda rate, damping, origin: describe_figure1(rate, damping, STARTS[origin]),
    grid={"rate": [0.05, 0.1, 0.5], "damping": [1e-3, 1e-2, 1e-1, 1.0], "origin": list(STARTS)},
    start={"rate": 0.1, "damping": 0.01, "origin": "(-1, 3)"},
    labels={"rate": "step size", "damping": "damping", "origin": "start (w, b)"},
)


def _rounded(value: float) -> float:
    """Return a value to three digits: what the sentence says is what is drawn."""
    return float(f"{value:.3g}")


def _live(show: Callable) -> Callable:
    """Return a function of the four controls that shows the figure at their rounded values."""

    def shown(rate: float, damping: float, w: float, b: float) -> Figure | str:
        return show(_rounded(rate), _rounded(damping), (_rounded(w), _rounded(b)))

    return shown


FIGURE1_LIVE = Drawing(
    _live(draw_figure1),
    _live(describe_figure1),
    ranges={
        "rate": (0.02, 0.6, "log"),
        "damping": (1e-3, 1.0, "log"),
        "w": (-4.0, 4.0),
        "b": (-4.0, 4.0),
    },
    start={"rate": 0.1, "damping": 0.01, "w": -1.0, "b": 3.0},
    labels={"rate": "step size", "damping": "damping", "w": "start w", "b": "start b"},
)

# ---- Sections 2, 3, 4.2 and 7


def draw_falls() -> Figure:
    """The fall of the loss along the natural gradient, the plain one, and random directions."""
    fell = numbers.falls()
    drawing, (panel,) = figure(3.4)
    panel.hist(fell["random"], 24, color="0.8", label="200 random directions")
    for name, text in (("gradient", "gradient"), ("natural", "natural gradient")):
        line = LOOKS["sgd" if name == "gradient" else name][1]
        panel.axvline(fell[name][0], color=METHODS[name], linestyle=line, linewidth=3, label=text)
    panel.axvline(0, color="0.5", linewidth=0.8)
    label(panel, "Steps of the same divergence", "fall of the loss", "directions")
    legend_below(drawing, panel)
    return drawing


def describe_falls() -> str:
    """The falls in units of that of the natural gradient."""
    fell = numbers.falls()
    return (
        "Fall of the loss along steps that change the model by the same divergence, 1e-6, in units "
        f"of that of the natural gradient: plain gradient {digits(fell['gradient'][0])}, of 200 "
        f"random directions from {digits(min(fell['random']))} to {digits(max(fell['random']))}."
    )


FALLS = Drawing(draw_falls, describe_falls)


def draw_inputs() -> Figure:
    """How much the first step changes class A over B, network by network, for two metrics."""
    balanced, doubled = map(numbers.unbalanced_ratios, ("balanced", "doubled"))
    drawing, (panel,) = figure(2.8)
    for pair in zip(balanced, doubled, strict=True):
        panel.plot(pair, (1, 0), ".-", color=colour("natural"), alpha=0.6, linewidth=1)
    panel.axvline(1, color="0.5", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_xticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    panel.minorticks_off()
    panel.set(ylim=(-0.4, 1.4))
    panel.set_yticks([1, 0], ["balanced", "A twice"])
    label(panel, "Change on A over change on B", "first step, one line for each network", "")
    return drawing


def describe_inputs() -> str:
    """The medians, and how many networks change A less."""
    balanced, doubled = (
        float(np.median(numbers.unbalanced_ratios(key))) for key in ("balanced", "doubled")
    )
    return (
        "KL divergence of the first step on class A over that on B, "
        f"{numbers.unbalanced_networks()} networks: median {digits(balanced)} with the metric on "
        f"balanced inputs, {digits(doubled)} on inputs with A twice; lower in "
        f"{numbers.networks_slower_on_a()} of them."
    )


UNBALANCED = Drawing(draw_inputs, describe_inputs)


def draw_saddle() -> Figure:
    """The paths of Newton's method and of the natural gradient from a point near a saddle."""
    drawing, (panel,) = figure(4.2)
    axis, levels = torch.linspace(-0.5, 2.7, 90, dtype=torch.float64), np.geomspace(0.02, 20, 14)
    panel.contour(axis, axis, numbers.saddle_loss(axis), levels, colors="0.8", linewidths=0.8)
    for name, path in numbers.saddle_paths().items():
        x, y = path.T
        style: dict[str, Any] = {"marker": ".", "linestyle": DASHES[name], "linewidth": 2}
        panel.plot(x, y, color=METHODS[name], label=numbers.METHODS[name], **style)
    panel.plot(0.1, 0.1, "o", color=BLACK, markersize=7)
    line = torch.linspace(0.37, 2.7, 50, dtype=torch.float64)
    panel.plot(line, 1 / line, "--", color="0.4", linewidth=2, label="solutions")
    panel.set(aspect="equal", xlim=(-0.5, 2.7), ylim=(-0.5, 2.7))
    label(panel, "Fit of a product to 1", "$w_1$", "$w_2$")
    legend_below(drawing, panel, 3)
    return drawing


def describe_saddle() -> str:
    """Where the two end."""
    ends = [
        f"{numbers.METHODS[name]} at a product of {float(path[-1].prod()):.2f}"
        for name, path in numbers.saddle_paths().items()
    ]
    return (
        "Half the squared distance of w1 w2 from 1, with a saddle at 0, and 40 steps of size 0.5 "
        f"from (0.1, 0.1): {'; '.join(ends)}."
    )


SADDLE = Drawing(draw_saddle, describe_saddle)


def draw_matrices() -> Figure:
    """Four matrices of one network as images, in one scale."""
    found = numbers.four_matrices()
    drawing, panels = figure(3.0, 1, 4)
    bound = float(found["Fisher"].abs().max()) / 3  # small entries are to be seen
    for panel, (name, matrix) in zip(panels, found.items(), strict=True):
        panel.imshow(matrix.numpy(), cmap="RdBu", vmin=-bound, vmax=bound, interpolation="nearest")
        panel.set_title(name, fontsize=FONT["legend"])
        panel.set_axis_off()
    return drawing


def describe_matrices() -> str:
    """The distances from the Fisher matrix."""
    found = numbers.four_matrices()
    parts = [
        f"{name} {numbers.same(matrix, found['Fisher'])}"
        for name, matrix in found.items()
        if name != "Fisher"
    ]
    return (
        "Four matrices of one softmax network with 31 parameters on six inputs, in one scale of "
        f"colours. Relative distance from the Fisher matrix: {'; '.join(parts)}."
    )


MATRICES = Drawing(draw_matrices, describe_matrices)

# ---- Solvers

STYLES = {
    "conjugate gradients": (VERMILLION, "-"),
    "MINRES": (SKY, "-"),
    "MINRES-QLP": (BLUE, "--"),
}


def draw_solvers(batch: str, damping: float) -> Figure:
    """The length of the solution against the number of products, for three solvers."""
    lengths = numbers.step_lengths(batch, damping)
    drawing, (panel,) = figure(4.6)
    products = range(1, numbers.PRODUCTS + 1)
    for name, (color, line) in STYLES.items():
        shown = np.minimum(lengths[name], 1e30)  # beyond the axis; matplotlib overflows later
        panel.semilogy(products, shown, line, color=color, linewidth=2.2, label=name)
    exact, text = lengths["exact"][0], "shortest exact solution"
    panel.axhline(exact, color="0.4", linestyle=":", linewidth=2, label=text)
    panel.set(ylim=(1e-1, 1e12), xlim=(1, numbers.PRODUCTS))
    title = f"Metric on {batch} batch, damping {damping:g}"
    label(panel, title, "products with the metric", "length of the step", legend="upper left")
    return drawing


def describe_solvers(batch: str, damping: float) -> str:
    """The lengths after 20 and 40 products."""
    lengths = numbers.step_lengths(batch, damping)
    parts = [
        f"{name} {numbers.size_in_words(lengths[name][19])} and "
        f"{numbers.size_in_words(lengths[name][39])}"
        for name in STYLES
    ]
    return (
        f"Metric on {batch} batch of 8 examples, damping {damping:g}, 103 parameters. Of the "
        f"gradient, {numbers.per_cent_outside(batch):.0f} % lies where the undamped metric is "
        f"zero. Length of the step after 20 and 40 products: {'; '.join(parts)}. Shortest exact "
        f"solution: {digits(lengths['exact'][0])}."
    )


SOLVERS = Drawing(
    draw_solvers,
    describe_solvers,
    grid={"batch": ["the same", "another"], "damping": [0.0, 1e-6, 1e-4, 1e-2]},
    start={"batch": "another", "damping": 0.0},
    labels={"batch": "metric on", "damping": "damping"},
)

# ---- Damping


def draw_damping(eta: float, rule: str, first: float) -> Figure:
    """Damping, reduction ratio and excess loss, until the minimum is reached to nine digits."""
    run = numbers.damping_run(eta, rule, first)
    drawing, panels = figure(6.6, 3, sharex=True)
    steps = range(1, len(run["rho"]) + 1)
    panels[0].semilogy(steps, run["damping"], ".-", color=BLUE, linewidth=2)
    panels[0].set(ylim=(1e-5, 1e2))
    panels[1].axhspan(0.25, 0.75, color="0.9")
    panels[1].plot(steps, np.clip(run["rho"], -0.5, 1.5), ".-", color=VERMILLION)
    panels[1].set(ylim=(-0.6, 1.6))
    panels[2].semilogy(steps, run["excess"], ".-", color=GREEN, linewidth=2)
    panels[2].set(ylim=(1e-9, 10), xlim=(0, 26))
    label(panels[0], f"Damping; step size {eta:g}, ratio of {rule}")
    label(panels[1], "Reduction ratio (grey: damping kept)")
    label(panels[2], "Loss above its minimum", "step")
    return drawing


def describe_damping(eta: float, rule: str, first: float) -> str:
    """The end of the run."""
    run = numbers.damping_run(eta, rule, first)
    return (
        f"Softmax regression on labels that no model explains, step size {eta:g}, ratio of "
        f"{rule}, damping {first:g} at first. Median reduction ratio "
        f"{numbers.median_ratio(eta, rule, first):.2g}. After {len(run['rho'])} steps the damping "
        f"is {run['damping'][-1]:.2g} and the loss {digits(run['excess'][-1])} above its minimum."
    )


DAMPING = Drawing(
    draw_damping,
    describe_damping,
    grid={"eta": [0.1, 0.5, 1.0, 1.5, 1.9], "rule": ["Eq. 30", "Martens"], "first": [0.01, 0.3]},
    start={"eta": 1.0, "rule": "Eq. 30", "first": 0.3},
    labels={"eta": "step size", "rule": "ratio", "first": "first damping"},
)

# ---- Table 1 and its curves


def draw_columns(where: str) -> Figure:
    """Test error of every column: each fold, and the mean with its interval."""
    columns = numbers.columns(where)[::-1]
    drawing, (panel,) = figure(0.62 * len(columns) + 1.4)
    for row, column in enumerate(columns):
        color, values = COLUMNS[column], numbers.tests(where, column)
        mean = numbers.mean_test(where, column)
        bar = [[mean.mean - mean.low], [mean.high - mean.mean]]
        panel.plot(values, [row + 0.17] * len(values), ".", color=color, alpha=0.7)
        panel.errorbar(mean.mean, row, xerr=bar, fmt="o", color=color, capsize=5, linewidth=2)
    panel.set_yticks(range(len(columns)), [numbers.COLUMNS[column] for column in columns])
    panel.set(ylim=(-0.6, len(columns) - 0.4))
    label(panel, "Test error at the chosen settings", "per cent", "")
    return drawing


def describe_columns(where: str) -> str:
    """The means with their intervals."""
    means = [
        f"{numbers.COLUMNS[column]} {numbers.mean_test(where, column)}"
        for column in numbers.columns(where)
    ]
    return (
        "Test error in per cent, mean and 95 % interval over "
        f"{numbers.mean_test(where, 'same').n} splits: {'; '.join(means)}."
    )


def _curves(where: str, keys: tuple[str, str], first: int = 0) -> tuple[Figure, list[Axes]]:
    """Return a figure of two panels with the medians of two keys against the number of updates,
    from a look on.
    """
    drawing, panels = figure(6.8, 2, sharex=True)
    for column in numbers.columns(where):
        for panel, key in zip(panels, keys, strict=True):
            text, color = numbers.COLUMNS[column], COLUMNS[column]
            updates, values = numbers.curve(where, column, key)
            panel.plot(updates[first:], values[first:], color=color, linewidth=2, label=text)
    label(panels[1], "Test error, per cent", "updates (minibatch SGD makes 20 in one)")
    return drawing, panels


def draw_curves(where: str) -> Figure:
    """Training loss and test error against the number of updates, median over the seeds (Figure
    4).
    """
    drawing, panels = _curves(where, ("train", "test"))
    panels[0].set_yscale("log")
    label(panels[0], "Training loss (cross-entropy)")
    legend_below(drawing, panels[0])
    return drawing


def describe_curves(where: str) -> str:
    """The final values, medians where there are several seeds."""
    parts = [
        f"{numbers.COLUMNS[column]} {digits(numbers.final_train(where, column))}, "
        f"{digits(numbers.final_test(where, column))} %"
        for column in numbers.columns(where)
    ]
    median = "Median final" if numbers.mean_test(where, "same").n > 1 else "Final"
    return f"{median} training loss and test error: {'; '.join(parts)}."


SHOWN = 3
"""The first look that is drawn, after 15 updates; before it the errors fall from 90 per cent."""


def draw_stopped(where: str) -> Figure:
    """Validation and test error against the number of updates, median over the seeds; a dot for
    each seed where it stops.
    """
    drawing, panels = _curves(where, ("validation", "test"), SHOWN)
    for column in numbers.columns(where):
        ends = numbers.stopped_updates(where, column), numbers.tests(where, column)
        panels[1].plot(*ends, "o", color=COLUMNS[column], alpha=0.6)
    label(panels[0], "Validation error, per cent")
    legend_below(drawing, panels[0])
    return drawing


def describe_stopped(where: str) -> str:
    """When the middle run was stopped, and the mean test errors."""
    parts = [
        f"{numbers.COLUMNS[column]} after {median(numbers.stopped_updates(where, column)):g} "
        f"updates, {digits(numbers.mean_test(where, column).mean)} %"
        for column in numbers.columns(where)
    ]
    return (
        "Each column at the setting that its search with early stopping chose, medians of the "
        "seeds; dots are where they stop. Median update, and mean test error there: "
        + "; ".join(parts)
        + "."
    )


TABLE1 = Drawing(partial(draw_columns, "digits"), partial(describe_columns, "digits"))
FASHION = Drawing(partial(draw_columns, "fashion"), partial(describe_columns, "fashion"))
CURVES = Drawing(partial(draw_curves, "digits"), partial(describe_curves, "digits"))
STOPPED = Drawing(partial(draw_stopped, "stopped"), partial(describe_stopped, "stopped"))
PAPER_CURVES = Drawing(partial(draw_curves, "paper"), partial(describe_curves, "paper"))

# ---- Beside momentum

LINES = {
    "sgd": LOOKS["momentum"],
    "adamw": LOOKS["adam"],
    "muon": LOOKS["muon"],
    "kfac": LOOKS["kfac"],
    "natural": LOOKS["natural"],
    "unlabelled": (colour("natural"), "--"),
}


def draw_rivals() -> Figure:
    """Training loss against updates, and the test error of every seed where its run stops."""
    drawing, (above, below) = figure(7.4, 2, height_ratios=[1.5, 1])
    for row, (method, text) in enumerate(reversed(numbers.RIVALS.items())):
        color, line = LINES[method]
        x, losses = numbers.rival_curve(method)
        above.loglog(x[1:], losses[1:], line, color=color, linewidth=2, label=text)
        tests, mean = numbers.rival_tests(method), numbers.rival_test(method)
        bar = [[mean.mean - mean.low], [mean.high - mean.mean]]
        below.plot(tests, [row + 0.2] * len(tests), ".", color=color, alpha=0.7)
        below.errorbar(mean.mean, row, xerr=bar, fmt="o", color=color, capsize=5, linewidth=2)
    above.axhline(numbers.rival_target(), color="0.7", linewidth=1, zorder=0)
    below.set_yticks(range(len(LINES)), list(reversed(numbers.RIVALS.values())))
    label(above, "Training loss, median of the seeds", "updates")
    label(below, "Test error", "per cent, at the least validation loss")
    legend_below(drawing, above, reverse=True)
    return drawing


def describe_rivals() -> str:
    """Median updates and seconds, and mean test errors."""
    parts = [
        f"{text} {numbers.arrived(method)} updates, {numbers.arrived(method, 'seconds')} seconds, "
        f"test error {digits(numbers.rival_test(method).mean)} %"
        for method, text in numbers.RIVALS.items()
    ]
    return (
        f"Medians of {numbers.rival_test('natural').n} seeds to a training loss of "
        f"{numbers.rival_target():g} (grey line), and mean test error, each method at the "
        f"settings that its searches chose: {'; '.join(parts)}."
    )


RIVALS = Drawing(draw_rivals, describe_rivals)

# ---- Order, convergence


def draw_order() -> Figure:
    """Figure 3: variance of the outputs by the replaced tenth."""
    drawing, (panel,) = figure(4.4)
    for method, text in (("sgd", "minibatch SGD"), ("natural", "natural gradient")):
        color = colour(method)
        band = numbers.variance_band(method)
        tenth, (low, mean, high) = (
            range(1, len(band) + 1),
            ([getattr(interval, side) for interval in band] for side in ("low", "mean", "high")),
        )
        panel.fill_between(tenth, low, high, color=color, alpha=0.15, linewidth=0)
        panel.semilogy(tenth, mean, "o-", color=color, linewidth=2, label=text)
    x = "replaced tenth of the first half"
    label(panel, "Variance of the outputs", x, "", legend="upper right")
    return drawing


def describe_order() -> str:
    """Means of the two curves and the errors."""
    return (
        "Variance of the outputs on held-out digits when one tenth of the first half of the "
        f"stream is replaced, {numbers.initializations()} initializations, bands are 95 % "
        "intervals. Mean over the tenths: natural gradient "
        f"{digits(numbers.mean_variance('natural'))}, SGD {digits(numbers.mean_variance('sgd'))}. "
        f"Validation error: natural gradient {digits(numbers.validation_error('natural'))} %, SGD "
        f"{digits(numbers.validation_error('sgd'))} %."
    )


ORDER = Drawing(draw_order, describe_order)


def draw_convergence() -> Figure:
    """Distance of U and of the Hessian from G: labels drawn from the model, and certain labels."""
    drawing, (sampled, certain) = figure(3.8, 1, 2, sharey=True)
    _band(sampled, "sampled", ORANGE, "U")
    _band(certain, "certain_empirical", ORANGE, "U")
    _band(certain, "certain_hessian", BLUE, "Hessian")
    label(sampled, "Model's labels", "number of labels", "distance from G")
    label(certain, "Certain labels", "logits multiplied by", "", legend="lower left")
    factors = numbers.distance_points("certain_hessian")
    certain.set_xticks(factors, [f"{factor:g}" for factor in factors], minor=False)
    certain.minorticks_off()
    return drawing


def _band(panel: Axes, key: str, color: str, text: str) -> None:
    x, (low, middle, high) = numbers.distance_points(key), numbers.distance_band(key)
    panel.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    panel.loglog(x, middle, "o-", color=color, linewidth=2, label=text)


def describe_convergence() -> str:
    """The medians at both ends."""

    def ends(key: str, joint: str) -> str:
        _, middle, _ = numbers.distance_band(key)
        return f"{digits(middle[0])}{joint}{digits(middle[-1])}"

    return (
        f"Relative distance from G, median of {numbers.convergence_networks()} networks. Labels "
        f"drawn from the model: U {ends('sampled', ' at 100 labels, ')} at 10000. Certain labels, "
        "logits as they are and 8 times larger: U "
        f"{ends('certain_empirical', ' and ')}, Hessian {ends('certain_hessian', ' and ')}."
    )


CONVERGENCE = Drawing(draw_convergence, describe_convergence)
