"""The figures of the chapter on relative Fisher metrics."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from natcompanion.chapters.figures import compare
from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    SHADES,
    SKY,
    VERMILLION,
    colour,
    figure,
    label,
    legend_below,
)
from natcompanion.chapters.numbers import rfim as numbers
from natcompanion.chapters.numbers.rfim import light
from natcompanion.chapters.page import PageFigure, Traced
from natcompanion.chapters.show import digits
from natcompanion.relative import nu

METHODS = {
    "GD": (VERMILLION, "-"),
    "WhiteGD": (ORANGE, "--"),
    "NGD": (SKY, "-"),
    "WhiteNGD": (BLUE, "--"),
}
TRAINERS = {
    "sgd": (colour("sgd"), "-"),
    "adam": (colour("adam"), "-"),
    "sgd_bna": (colour("sgd"), "-"),
    "sgd_bnb": (colour("sgd"), "--"),
    "adam_bna": (colour("adam"), "-"),
    "adam_bnb": (colour("adam"), "--"),
    "rngd": (colour("rngd"), "-"),
    "fast": (BLUE, "-"),
}
OURS = ("rngd", "fast")
RIVALS = {"plain": numbers.PLAIN, "batch normalization": numbers.NORMALIZED}
DATA = {"digits": "4,000 digits", "fashion": "Fashion-MNIST, 55,000"}
ACTIVATIONS = ["sigmoid", "tanh", "relu", "elu"]
PAIRS = list(numbers.PAIRS)


def two_digits(value: float) -> str:
    """Return a number to two significant digits, zeros kept."""
    return f"{value:#.2g}".replace("e-0", "e-").rstrip(".")


# ---- The first screen: a neuron that learns, and its spotlight

SHEET = ((-4.2, 4.2), (-3.2, 3.2))
GRID = 33
LEVELS = [0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0]
HEARD = {"activation": list(light.OPTIONS), "step": [0, 3, 60]}


def _sheet(count: int) -> torch.Tensor:
    """Return a grid of points of the sheet, row by row from below; (count^2, 2)."""
    across, up = (torch.linspace(*ends, count, dtype=torch.float64) for ends in SHEET)
    return torch.stack(torch.meshgrid(across, up, indexing="xy"), -1).reshape(-1, 2)


def draw_light(
    activation: str,
    step: int,
    w1: float = light.START[0],
    w2: float = light.START[1],
    rate: float = 0.5,
    eps: float = 0.01,
    stretch: float = 1.0,
) -> Figure:
    """The points in the spotlight of the neuron after some steps of the relative natural gradient;
    its weights with two metrics and four paths; the loss of all.
    """
    (x, t), paths = light.cloud(1.0), light.learned(activation, (w1, w2), rate, eps, stretch)
    weights, losses = paths
    step = light.last(weights, step)
    w = weights[step, -1]
    drawing, (inputs, plane, chart) = figure(9.6, 3, height_ratios=[1.3, 1.3, 0.9])
    _draw_inputs(inputs, activation, w, x, t)
    level = light.losses(activation, _sheet(60), x, t).reshape(60, 60)
    across, up = (np.linspace(*ends, 60) for ends in SHEET)
    plane.contour(across, up, level, LEVELS, colors="0.8", linewidths=0.8)
    _draw_rings(plane, w, light.look(activation, w, x, t, eps, stretch)[2:])
    lowest = float(losses.nan_to_num(torch.inf).min())
    for m, (name, text) in enumerate(light.METHODS.items()):
        style: dict[str, Any] = dict(zip(("color", "linestyle"), compare.LINES[name], strict=True))
        plane.plot(*weights[:, m].mT, linewidth=2.2, label=text, **style)
        plane.plot(*weights[step, m], "o", color=style["color"], markersize=6)
        chart.loglog(1 + np.arange(len(losses)), losses[:, m] - lowest, linewidth=2.2, **style)
    plane.set(aspect="equal", xlim=SHEET[0], ylim=SHEET[1])
    label(plane, "Weights: metrics and paths", "$w_1$", "$w_2$")
    chart.axvline(1 + step, color="0.5", linestyle=":")
    chart.set(ylim=(1e-6, 3))
    label(chart, "Loss above the lowest reached, nats", "1 + number of steps")
    legend_below(drawing, plane)
    return drawing


def _draw_inputs(
    panel: Axes, activation: Any, w: torch.Tensor, x: torch.Tensor, t: torch.Tensor
) -> None:
    points, shape = _sheet(120), light.OPTIONS[activation]
    field = nu(activation, points @ w, **shape).reshape(120, 120)
    brightest = BRIGHTEST[activation]
    across, up = (np.linspace(*ends, 120) for ends in SHEET)
    panel.contourf(across, up, field, np.linspace(0, brightest + 1e-9, 7), colors=SHADES)
    size = 12 + 90 * nu(activation, x @ w, **shape) / brightest
    for value, face in ((1, BLACK), (0, "white")):
        of = t == value
        marks: dict[str, Any] = {"facecolor": face, "edgecolor": BLACK}
        panel.scatter(x[of, 0], x[of, 1], s=size[of], **marks)
    panel.axline((0, 0), (-float(w[1]), float(w[0])), color=BLACK, linewidth=1)
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "linewidth": 2, "color": BLACK}
    panel.annotate("", (float(w[0]), float(w[1])), (0, 0), arrowprops=arrow)
    panel.set(aspect="equal", xlim=SHEET[0], ylim=SHEET[1])
    label(panel, r"Inputs: the spotlight $\nu$ (filled: label 1)", "$x_1$", "$x_2$")


def _draw_rings(panel: Axes, w: torch.Tensor, rings: Sequence[torch.Tensor]) -> None:
    """Draw the steps of one norm around the weights, by the relative metric and by K-FAC's."""
    angle = torch.linspace(0, 2 * np.pi, 73, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()])
    for name, ring in zip(("rngd", "kfac"), rings, strict=True):
        panel.plot(*(w[:, None] + ring @ circle), color=compare.LINES[name][0], linewidth=1)


def describe_light(
    activation: str,
    step: int,
    w1: float = light.START[0],
    w2: float = light.START[1],
    rate: float = 0.5,
    eps: float = 0.01,
    stretch: float = 1.0,
) -> str:
    """On how many points half of nu falls, and when each method is close to the lowest loss."""
    x, t = light.cloud(1.0)
    weights, losses = light.learned(activation, (w1, w2), rate, eps, stretch)
    step = light.last(weights, step)
    seen = light.look(activation, weights[step, -1], x, t, eps, stretch)[0]
    arrived = [
        f"{text} {'not in 60' if k is None else k}"
        for text, k in zip(light.METHODS.values(), light.arrivals(losses), strict=True)
    ]
    return (
        f"A {activation} neuron after {step} steps of the relative natural gradient: half of all ν "
        f"falls on {numbers.half_of_nu(seen)} of its {len(x)} points. Steps until the loss is "
        f"within 0.001 nats of the lowest that any method reaches: {', '.join(arrived)}."
    )


BRIGHTEST = {"sigmoid": 0.25, "tanh": 1.0, "relu": 1.0}
"""The largest nu of each activation."""

LIGHT_FRAMES = Drawing(
    draw_light,
    describe_light,
    grid=HEARD,
    ranges={
        **HEARD,
        "w1": (-3.5, 3.5),
        "w2": (-2.7, 2.7),
        "rate": (0.02, 2.0, "log"),
        "eps": (1e-6, 1.0, "log"),
        "stretch": (0.25, 4.0, "log"),
    },
    start={
        "activation": "sigmoid",
        "step": 0,
        "w1": light.START[0],
        "w2": light.START[1],
        "rate": 0.5,
        "eps": 0.01,
        "stretch": 1.0,
    },
    labels={
        "w1": "first weight",
        "w2": "second weight",
        "rate": "step size",
        "eps": "damping ε",
        "stretch": "stretch of w₁",
    },
)


def _inputs(size: float) -> dict[str, list]:
    """Return inputs of each program of the figure."""
    (x, t), w = light.cloud(size), size * torch.tensor(light.START, dtype=torch.float64)
    setting = [size / 50, 1.1 * size]
    return {
        "step": [w.expand(4, 2).clone(), w / 3, x, t, size / 2, *setting],
        "look": [w, x, t, *setting],
        "losses": [size * _sheet(GRID), x, t],
    }


def _nu(activation: Any, a: torch.Tensor) -> torch.Tensor:
    return nu(activation, a, **light.OPTIONS[activation])


ACROSS = torch.linspace(-1, 1, 81, dtype=torch.float64)
LIGHT = PageFigure(
    "rfim.js",
    {
        "cloud": Traced(light.cloud, [1.0], [0.7]),
        **{
            f"{name}_{activation}": Traced(partial(getattr(light, name), activation), one, other)
            for activation in light.OPTIONS
            for (name, one), other in zip(_inputs(1.0).items(), _inputs(0.7).values(), strict=True)
        },
        **{
            f"nu_{activation}": Traced(partial(_nu, activation), [ACROSS], [9 * ACROSS])
            for activation in light.OPTIONS
        },
    },
)

# ---- A single neuron


def draw_neuron(
    activation: str, scale: float, eps: float, omega: float = 0.1, iota: float = 0.0
) -> Figure:
    """Samples under the spotlight nu, and the weights with the metric as an ellipse and four
    steps.
    """
    plane = numbers.neuron_steps(activation, scale, eps, omega, iota)
    drawing, (above, below) = figure(7.6, 2, height_ratios=[1, 1.15])
    _draw_spotlight(above, activation, plane, omega, iota)
    _draw_steps(below, activation, plane, omega, iota)
    legend_below(drawing, below, columns=4, handlelength=1.4, columnspacing=1.0)
    return drawing


def _draw_spotlight(
    panel: Axes, activation: str, plane: numbers.Plane, omega: float, iota: float
) -> None:
    x, t = numbers.plane_samples()
    across = torch.linspace(-5.5, 5.5, 120, dtype=torch.float64)
    up = torch.linspace(-3.2, 3.2, 80, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(across, up, indexing="xy"), -1)
    field = numbers.spotlight(activation, grid @ plane.w, omega, iota)
    brightest = float(field.max())
    panel.contourf(across, up, field, np.linspace(0, brightest + 1e-9, 7), colors=SHADES)
    size = 8 + 60 * plane.nu / brightest
    marks: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.5}
    for value, marker, color in ((0, "o", VERMILLION), (1, "^", BLUE)):
        of = t == value
        panel.scatter(x[of, 0], x[of, 1], s=size[of], marker=marker, color=color, **marks)
    panel.axline((0, 0), (-float(plane.w[1]), float(plane.w[0])), color=BLACK, linewidth=1)
    panel.set(xlim=(-5.5, 5.5), ylim=(-3.2, 3.2))
    label(panel, r"Samples: the spotlight $\nu$", "$x_1$", "$x_2$")


def _draw_steps(
    panel: Axes, activation: str, plane: numbers.Plane, omega: float, iota: float
) -> None:
    w = plane.w
    width, height, angle = numbers.ellipse(plane)
    ring = Ellipse(
        (float(w[0]), float(w[1])), width, height, angle=angle, fill=False, edgecolor=BLACK
    )
    ring.set_linewidth(1.5)
    panel.add_patch(ring)
    reach = max(1.15 * max(float(step.norm()) for step in plane.steps.values()), 0.6 * width)
    line = torch.linspace(-1, 1, 60, dtype=torch.float64)
    grid = w + torch.stack(torch.meshgrid(1.6 * reach * line, reach * line, indexing="xy"), -1)
    loss = numbers.plane_loss(grid, activation, omega, iota)
    levels = np.quantile(loss, [0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7])
    panel.contour(grid[0, :, 0], grid[:, 0, 1], loss, levels, colors="0.8", linewidths=0.8)
    for name, (color, line_style) in METHODS.items():
        end = w + plane.steps[name]
        panel.plot(*torch.stack([w, end]).T, line_style, color=color, linewidth=2.2, label=name)
        panel.plot(*end, "o", color=color, markersize=6)
    panel.plot(*w, "s", color=BLACK, markersize=5)
    x, y = w.tolist()
    panel.set(aspect="equal", xlim=(x - 1.6 * reach, x + 1.6 * reach), ylim=(y - reach, y + reach))
    label(panel, "Weights: the metric and one step", "$w_1$", "$w_2$")


def describe_neuron(
    activation: str, scale: float, eps: float, omega: float = 0.1, iota: float = 0.0
) -> str:
    """Where nu is, the condition of the metric, and the loss after one step of each method."""
    plane = numbers.neuron_steps(activation, scale, eps, omega, iota)
    bare, damped = map(digits, numbers.conditions(plane.g, eps))
    after = ", ".join(f"{name} {digits(plane.losses[name])}" for name in METHODS)
    return (
        f"A {activation} neuron at weight scale {scale:g}. Half of all ν falls on "
        f"{numbers.half_of_nu(plane.nu)} of the {len(plane.nu)} samples. The metric has condition "
        f"number {bare}, and {damped} with the damping ε = {eps:g}. Loss "
        f"{digits(plane.losses['start'])} before, and after one step: {after}."
    )


NEURON = Drawing(
    draw=draw_neuron,
    describe=describe_neuron,
    grid={"activation": ACTIVATIONS, "scale": [0.3, 1.0, 3.0], "eps": [1e-6, 1e-2, 1.0]},
    ranges={
        "activation": ACTIVATIONS,
        "scale": (0.1, 10.0, "log"),
        "eps": (1e-8, 1.0, "log"),
        "omega": (0.01, 1.0, "log"),
        "iota": (0.0, 0.9),
    },
    start={"activation": "sigmoid", "scale": 1.0, "eps": 1e-2, "omega": 0.1, "iota": 0.0},
    labels={
        "scale": "weight scale",
        "eps": "damping ε",
        "omega": "ω of relu",
        "iota": "ι of relu",
    },
)


def draw_nu(omega: float, iota: float, alpha: float) -> Figure:
    """nu of the four activations against the input of the neuron."""
    drawing, (panel,) = figure(4.0)
    a = torch.arange(-400, 401, dtype=torch.float64) / 100  # 0 is 0: ELU jumps there
    curves: tuple[tuple[Any, dict[str, float], str, str], ...] = (
        ("tanh", {}, VERMILLION, "-"),
        ("sigmoid", {}, ORANGE, "-"),
        ("relu", {"omega": omega, "iota": iota}, BLUE, "-"),
        ("elu", {"alpha": alpha}, GREEN, "--"),
    )
    for name, options, color, line in curves:
        panel.plot(a, nu(name, a, **options), line, color=color, linewidth=2.2, label=name)
    panel.set(xlim=(-4, 4), ylim=(-0.05, 2.35))
    label(
        panel,
        r"$\nu$: where a neuron learns",
        r"$\mathbf{w}^T\tilde{\mathbf{x}}$",
        r"$\nu$",
        legend="upper left",
    )
    return drawing


def describe_nu(omega: float, iota: float, alpha: float) -> str:
    """The value of smoothed ReLU at 0, its error at 0.5, and the jump of ELU."""
    zero, half = map(digits, numbers.relu_nu(omega, iota))
    jump = numbers.elu_jump(alpha)
    return (
        f"ν of tanh is 1 at 0, that of the sigmoid 0.25. Smoothed ReLU with ω = {omega:g}, "
        f"ι = {iota:g} has {zero} at 0 and {half} at 0.5, where hard ReLU has 1. ELU with "
        f"α = {alpha:g} jumps at 0 {'by ' + digits(jump) if jump else 'not at all'}."
    )


NU = Drawing(
    draw=draw_nu,
    describe=describe_nu,
    grid={"omega": [0.01, 0.1, 1.0], "iota": [0.0, 0.1, 0.3], "alpha": [0.5, 1.0, 1.5]},
    start={"omega": 0.1, "iota": 0.1, "alpha": 1.5},
    labels={"omega": "ω of relu", "iota": "ι of relu", "alpha": "α of elu"},
)

# ---- Sections 3.2 and 3.3

ZERO = 1e-6
"""Where an eigenvalue of 0 is drawn on a logarithmic axis."""


def draw_layer(layer: str, samples: int) -> Figure:
    """The metric of a layer, entry by entry, and its eigenvalues; those that are 0 lie at the
    bottom.
    """
    G = numbers.layer_metric(layer, samples)
    values = numbers.metric_eigenvalues(G)
    drawing, (matrix, spectrum) = figure(3.4, columns=2, width_ratios=[1, 1.1])
    most = float(G.abs().max())
    matrix.imshow(G.numpy(), cmap="RdBu", vmin=-most, vmax=most, interpolation="nearest")
    for edge in (2.5, 5.5):
        matrix.axhline(edge, color="0.4", linewidth=0.8)
        matrix.axvline(edge, color="0.4", linewidth=0.8)
    matrix.set_xticks([1, 4, 7], ["1", "2", "3"])
    matrix.set_yticks([1, 4, 7], ["1", "2", "3"])
    label(matrix, "Metric", "weights of unit", "weights of unit")
    place = np.arange(1, len(values) + 1)
    zero = (values == 0).numpy()
    spectrum.semilogy(place[~zero], values[~zero], "o", color=BLUE)
    spectrum.semilogy(place[zero], np.full(zero.sum(), ZERO), "o", mfc="white", color=VERMILLION)
    spectrum.set(ylim=(ZERO / 3, 4), xlim=(0.5, 9.5), xticks=[1, 3, 5, 7, 9])
    spectrum.set_yticks([ZERO, 1e-4, 1e-2, 1], ["0", "0.0001", "0.01", "1"])
    spectrum.minorticks_off()
    label(spectrum, "Eigenvalues / largest", "number")
    return drawing


def describe_layer(layer: str, samples: int) -> str:
    """How many eigenvalues are above 0."""
    values = numbers.metric_eigenvalues(numbers.layer_metric(layer, samples))
    held = "input" if samples == 1 else "inputs"
    return (
        f"Metric of a layer ({numbers.KINDS[layer]}, two inputs and a bias), mean over {samples} "
        f"{held}: {int((values > 0).sum())} of {len(values)} eigenvalues are above 0."
    )


LAYER = Drawing(
    draw=draw_layer,
    describe=describe_layer,
    grid={"layer": list(numbers.KINDS), "samples": [1, 2, 3, 10, 100]},
    start={"layer": "softmax", "samples": 100},
    labels={"samples": "inputs"},
)


def draw_slope(activation: str, sigma: float) -> Figure:
    """The slope of an activation, and nu, which Eq. 26 prints in its place."""
    a, slope, nu = numbers.slope_and_nu(activation, sigma)
    drawing, (panel,) = figure(3.6)
    panel.plot(a, slope, "-", color=BLUE, linewidth=4, label="slope (the chain rule)")
    panel.plot(a, nu, "--", color=VERMILLION, linewidth=2.2, label=r"$\nu$ (as printed)")
    panel.set(xlim=(-4, 4), ylim=(-0.05, max(1.6, 1.25 * float(nu.max()))))
    label(panel, f"{activation}, σ = {sigma:g}", "input of the neuron", "", "upper left")
    return drawing


def describe_slope(activation: str, sigma: float) -> str:
    """How far the two are apart."""
    error = numbers.slope_error(activation, sigma)
    far = f"differ by up to {two_digits(error)}" if error else "are equal"
    return f"Slope and ν of {activation} with σ = {sigma:g} {far}."


SLOPE = Drawing(
    draw=draw_slope,
    describe=describe_slope,
    grid={"activation": list(numbers.BENDS), "sigma": [0.7, 1.0, 1.5]},
    start={"activation": "relu, ω = 0.3", "sigma": 1.0},
    labels={"sigma": "σ"},
)

# ---- Section 4


def draw_ranks(layer: str, activation: str) -> Figure:
    """Rank of one layer's block of the Fisher matrix and of its RFIM, with the bounds, against the
    number of samples.
    """
    found = numbers.ranks(layer, activation)
    drawing, (panel,) = figure(4.0)
    for ranks, style, color, text in (
        (found.rfim_bound, ":", BLACK, "bound $n D_h$, or all parameters"),
        (found.block_bound, ":", "0.55", "bound $n$, or all parameters"),
        (found.rfim, "o-", BLUE, "RFIM of the layer"),
        (found.block, "s-", VERMILLION, "its Fisher block"),
    ):
        panel.plot(found.n, ranks, style, color=color, linewidth=1.8, markersize=5, label=text)
    panel.set(xlim=(0, 61), ylim=(0, 78))
    label(
        panel,
        f"Rank, {layer} layer: {found.neurons} x {found.inputs} parameters",
        "number of samples",
        "rank",
    )
    legend_below(drawing, panel, handlelength=1.2, columnspacing=0.8)
    return drawing


def describe_ranks(layer: str, activation: str) -> str:
    """Both ranks at four numbers of samples."""
    found = numbers.ranks(layer, activation)
    of = {n: pair for n, *pair in zip(found.n, found.rfim, found.block, strict=True)}
    parts = [f"{of[n][0]} against {of[n][1]} with n = {n}" for n in (1, 5, 20, 60)]
    return (
        f"The {layer} layer of a 6-8-8-1 {activation} network has {found.parameters} parameters. "
        f"Rank of its RFIM against that of its block of the Fisher matrix: {', '.join(parts)}."
    )


RANKS = Drawing(
    draw=draw_ranks,
    describe=describe_ranks,
    grid={"layer": list(numbers.LAYERS), "activation": ["tanh", "relu"]},
)

# ---- Section 5.1, Figure 4


def draw_figure4(problem: str, pair: str) -> Figure:
    """Loss of the four methods, mean of the logarithm over the runs with their range."""
    drawing, (panel,) = figure(4.4)
    for name, (color, line) in METHODS.items():
        epochs, mean, least, most = numbers.figure4_curves(problem, pair, name)
        panel.fill_between(epochs + 1, least, most, color=color, alpha=0.15, linewidth=0)
        panel.loglog(epochs + 1, mean, line, color=color, linewidth=2.2, label=name)
    separable = numbers.figure4_record(problem, pair)["separable"]
    panel.set(xlim=(1, 101), ylim=(1e-13, 1e4) if separable else (1e-6, 10))
    label(
        panel,
        f"{pair}, {problem} digits",
        "1 + number of epochs",
        "loss" if separable else "loss above the minimum",
    )
    legend_below(drawing, panel, columns=4, handlelength=1.4, columnspacing=1.0)
    return drawing


def describe_figure4(problem: str, pair: str) -> str:
    """Best configuration and mean end of each method."""
    record = numbers.figure4_record(problem, pair)
    parts = []
    for name in METHODS:
        end = numbers.figure4_end(problem, pair, name)
        text = "the floor of 1e-12" if end is None else two_digits(end)
        rate, momentum = record[f"rate_{name}"], record[f"momentum_{name}"]
        parts.append(f"{name} {text} (step size {rate:g}, momentum {momentum:g})")
    return (
        f"{'Loss' if record['separable'] else 'Loss above its minimum'} after 100 epochs, mean of "
        f"{record.settings['runs']} runs, each method at the best of the paper's grid: "
        f"{', '.join(parts)}. The classes are linearly separable in {record['separable']} runs."
    )


FIGURE4 = Drawing(
    draw=draw_figure4,
    describe=describe_figure4,
    grid={"problem": list(numbers.PROBLEMS), "pair": PAIRS},
    start={"problem": "7 x 7 pixels, 800"},
    labels={"problem": "digits"},
)


def draw_damping(eps: float, rate: float, pair: str) -> Figure:
    """NGD and WhiteNGD at one step size and one damping."""
    drawing, (panel,) = figure(4.0)
    for name, width in (("NGD", 3), ("WhiteNGD", 2)):
        color, line = METHODS[name]
        excess = numbers.natural_curve(name, eps, rate, pair) - numbers.least_loss(pair)
        panel.semilogy(excess.clamp_min(1e-9), line, color=color, linewidth=width, label=name)
    panel.set(xlim=(0, numbers.EPOCHS), ylim=(1e-7, 1))
    label(
        panel,
        f"{pair}, damping ε = {eps:g}",
        "epochs",
        "loss above the minimum",
        legend="upper right",
    )
    return drawing


def describe_damping(eps: float, rate: float, pair: str) -> str:
    """The largest distance of the two curves, and the epochs to 0.001."""
    words = []
    for name in ("NGD", "WhiteNGD"):
        epochs = numbers.natural_epochs(name, eps, rate, pair)
        words.append(f"more than {numbers.EPOCHS}" if epochs is None else str(epochs))
    gap = numbers.plain(float(f"{numbers.curve_gap(eps, rate, pair):.1g}"))
    return (
        f"With ε = {eps:g} and step size {rate:g} the loss curves differ by at most {gap}. NGD "
        f"reaches 0.001 above the minimum after {words[0]} epochs, WhiteNGD after {words[1]} "
        "epochs."
    )


DAMPING = Drawing(
    draw=draw_damping,
    describe=describe_damping,
    grid={"eps": [1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8], "rate": [0.3, 1.0], "pair": PAIRS},
    start={"eps": 1e-2, "rate": 1.0},
    labels={"eps": "damping ε", "rate": "step size", "pair": "digits"},
)

# ---- Section 5.2, Figure 5


def draw_figure5(data: str, axis: str, against: str) -> Figure:
    """Mini-batch cost of RNGD and its rivals, mean of the logarithm with the range of the seeds."""
    drawing, (panel,) = figure(5.2)
    for name in numbers.methods(data, (*RIVALS[against], *OURS)):
        color, line = TRAINERS[name]
        x = numbers.iterations(data, name)
        if axis == "seconds":
            x = x * numbers.milliseconds(data, name) / 1000
        mean, least, most = numbers.curve(data, name)
        panel.fill_between(x, least, most, color=color, alpha=0.12, linewidth=0)
        text = numbers.TRAINERS[name]
        panel.loglog(x, mean, line, color=color, linewidth=1.8, label=text)
    label(
        panel,
        f"{DATA[data]}: cost of the mini-batches",
        "iteration" if axis == "iterations" else "seconds of one processor",
    )
    legend_below(drawing, panel, columns=3)
    return drawing


def describe_figure5(data: str, axis: str, against: str) -> str:
    """Cost halfway and at the end, and what an iteration takes."""
    parts, steps = [], numbers.steps(data)
    for name in numbers.methods(data, (*RIVALS[against], *OURS)):
        half, end = (two_digits(numbers.cost(data, name, at)) for at in (steps // 2, steps))
        time = f", {two_digits(numbers.milliseconds(data, name))} ms an iteration"
        text = f"{numbers.TRAINERS[name]} {half} and {end}"
        parts.append(text + (time if axis == "seconds" else ""))
    return (
        f"{DATA[data]}: cost of the mini-batches halfway and at the end of {steps} iterations, "
        f"each method at the step size that its search chose: {'; '.join(parts)}. "
        "Bands are the range of the seeds."
    )


FIGURE5 = Drawing(
    draw=draw_figure5,
    describe=describe_figure5,
    grid={
        "data": ["digits", "fashion"],
        "axis": ["iterations", "seconds"],
        "against": list(RIVALS),
    },
    start={"axis": "iterations"},
    labels={"axis": "against", "against": "rivals"},
)


def draw_rngd(eps: float, period: int, decay: float) -> Figure:
    """The start of RNGD's training for one choice of its three settings."""
    drawing, (panel,) = figure(4.0)
    for record in numbers.stored("rfim_figure5.sliders"):
        panel.semilogy(*numbers.start_curve(record), color="0.88", linewidth=0.8, zorder=1)
    x, cost = numbers.start_curve(numbers.setting(eps, period, decay))
    panel.semilogy(x, cost, color=BLUE, linewidth=2.4)
    panel.set(xlim=(0, x[-1]), ylim=(1e-3, 10))
    label(
        panel, f"ε = {eps:g}, T = {period}, λ = {decay:g}", "iteration", "cost of the mini-batches"
    )
    return drawing


def describe_rngd(eps: float, period: int, decay: float) -> str:
    """Cost after a third and at the end."""
    record = numbers.setting(eps, period, decay)
    what = (
        f"RNGD at step size {record.settings['rate']:g} with ε = {eps:g}, T = {period} and "
        f"λ = {decay:g}"
    )
    if numbers.diverges(record):
        return f"{what} diverges."
    x, cost = numbers.start_curve(record)
    third = len(x) // 3 - 1
    return (
        f"{what}: cost {two_digits(cost[third])} after {x[third]} iterations and "
        f"{two_digits(cost[-1])} after {x[-1]}. Grey: all other settings."
    )


RNGD = Drawing(
    draw=draw_rngd,
    describe=describe_rngd,
    grid={
        "eps": [0.003, 0.01, 0.03, 0.1],
        "period": [10, 20, 50, 100],
        "decay": [0.9, 0.98, 0.995],
    },
    start={"eps": 0.03, "period": 20, "decay": 0.98},
    labels={"eps": "ε", "period": "T", "decay": "λ"},
)

# ---- Section 6


def draw_divergence(weight: float, rate: float) -> Figure:
    """The weight along the gradient and the natural gradient."""
    drawing, (panel,) = figure(3.8)
    for natural, text, color in ((False, "gradient", VERMILLION), (True, "natural gradient", BLUE)):
        path = np.clip(numbers.balanced_neuron_path(weight, rate, natural), -12, 12)
        panel.plot(path, "o-", color=color, linewidth=2, markersize=4, label=text)
    panel.axhline(0, color="0.7", linewidth=1)
    panel.set(xlim=(-0.5, 30), ylim=(-10, 10))
    label(panel, "The goal is weight 0", "step", "weight", legend="upper right")
    return drawing


def describe_divergence(weight: float, rate: float) -> str:
    """Where both are after 30 steps."""
    ends = []
    for natural in (False, True):
        path = numbers.balanced_neuron_path(weight, rate, natural)
        steps = len(path) - 1
        far = abs(path[-1]) >= numbers.FAR
        place = "beyond a million" if far else f"at {digits(round(path[-1], 6))}"
        ends.append(f"{place} after {steps} steps")
    return (
        f"From weight {weight:g} with step size {rate:g} the gradient is {ends[0]}, the natural "
        f"gradient {ends[1]}. The goal is 0."
    )


DIVERGENCE = Drawing(
    draw=draw_divergence,
    describe=describe_divergence,
    grid={"weight": [1.0, 2.0, 2.3, 4.0], "rate": [0.2, 1.0]},
    start={"weight": 2.3, "rate": 1.0},
    labels={"weight": "first weight", "rate": "step size"},
)
