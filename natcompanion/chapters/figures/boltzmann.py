"""The figures of the Boltzmann chapter."""

import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natcompanion.boltzmann import FRACTIONS, THRESHOLDS
from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import (
    BLACK,
    BLUE,
    FONT,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    colour,
    figure,
    label,
    legend_below,
)
from natcompanion.chapters.figures.style import (
    LINES as TABLE,
)
from natcompanion.chapters.numbers import boltzmann as numbers
from natcompanion.chapters.numbers.boltzmann import machine
from natcompanion.chapters.numbers.boltzmann.curves import Band
from natcompanion.chapters.page import PageFigure, Traced
from natcompanion.chapters.show import digits

GREY = "#999999"
COLOURS = {
    "sgd": colour("sgd"),
    "centred": GREEN,
    "diagonal": PURPLE,
    "whitened": ORANGE,
    "easi": colour("whitened"),
    "prong": GREY,
    "natural": colour("natural"),
}
TERM_COLOURS = dict(
    zip(numbers.TERMS, (SKY, GREEN, BLACK, ORANGE, PURPLE, VERMILLION), strict=True)
)
PENALTY_COLOURS = dict(zip(numbers.PENALTIES, (BLACK, SKY, GREEN, VERMILLION), strict=True))


def _shade(panel: Axes, x: np.ndarray, band: Band, color: str, text: str, **style: Any) -> None:
    """Draw a band and the line in its middle."""
    panel.fill_between(x, band.low, band.high, color=color, alpha=0.2, linewidth=0)
    panel.plot(x, band.middle, color=color, **{"linewidth": 2, "label": text, **style})


# ---- The first screen: a machine that learns while its Fisher matrix is looked at


def _inputs(size: float, rate: float, gamma: float, eps: float) -> dict[str, list]:
    """Return inputs of each program of the machine, at its start times ``size``."""
    theta, v = machine.start(size)
    _, _, covariance, fisher = machine.penalized(theta, v, rate, gamma)
    A, B = (size * torch.eye(n, dtype=torch.float64) for n in (machine.VISIBLE, machine.HIDDEN))
    mean = torch.full((len(A) + len(B),), size / 4, dtype=torch.float64)
    return {
        "start": [size],
        "penalized": [theta, v, rate, gamma],
        "next_gamma": [covariance, gamma, size / 100, rate],
        "natural": [theta, v, rate, eps],
        "whitened": [theta, A, B, mean, v, rate, gamma, eps],
        "off_diagonal": [fisher],
    }


MACHINE = PageFigure(
    "boltzmann.js",
    {
        name: Traced(getattr(machine, name), example, other)
        for (name, example), other in zip(
            _inputs(1.0, 0.1, 0.2, 0.01).items(), _inputs(0.7, 0.3, 0.6, 0.2).values(), strict=True
        )
    },
)

LINES = TABLE | {"plain": TABLE["sgd"]}


def draw_machine(method: str, step: int) -> Figure:
    """The Fisher matrix of one method at one step; log-likelihood and share off the diagonal of
    all.
    """
    name = next(key for key, text in machine.METHODS.items() if text == method)
    G = machine.learned(name)[1][step]
    drawing = Figure(figsize=(5.4, 5.8), layout="constrained", facecolor="white")
    halves: Any = drawing.subfigures(2, 1, height_ratios=[1.5, 1])
    top, bottom = halves
    panel, most = top.subplots(), float(G.abs().max())
    image = panel.imshow(G.numpy(), cmap="RdBu", vmin=-most, vmax=most, interpolation="nearest")
    top.colorbar(image, ax=panel)
    for edge in (3.5, 6.5):
        panel.axhline(edge, color="0.4", linewidth=0.8)
        panel.axvline(edge, color="0.4", linewidth=0.8)
    panel.set_xticks([1.5, 5, 12.5], ["v", "h", "vh"], fontsize=FONT["tick"])
    panel.set_yticks([1.5, 5, 12.5], ["v", "h", "vh"], fontsize=FONT["tick"])
    label(panel, f"{method}, step {step}")
    left, right = bottom.subplots(1, 2)
    for key, text in machine.METHODS.items():
        likelihood, matrices, _ = machine.learned(key)
        style: dict[str, Any] = {"color": LINES[key][0], "linestyle": LINES[key][1]}
        style |= {"linewidth": 3 if key == name else 1.5}
        shares = np.array([float(machine.off_diagonal(matrix)) for matrix in matrices])
        left.semilogx(1 + np.arange(len(likelihood)), likelihood, label=text, **style)
        right.semilogx(1 + np.arange(len(shares)), 100 * shares, **style)
    for panel in (left, right):
        panel.axvline(1 + step, color="0.5", linestyle=":")
        panel.tick_params(labelsize=FONT["tick"])
        panel.spines[["top", "right"]].set_visible(False)
    right.set(ylim=(0, 100))
    label(left, "Log-likelihood, nats", "1 + number of steps")
    label(right, "Off the diagonal, %", "1 + number of steps")
    legend_below(drawing, left)
    return drawing


def describe_machine(method: str, step: int) -> str:
    """The share off the diagonal at the start and at the step, and the log-likelihood."""
    name = next(key for key, text in machine.METHODS.items() if text == method)
    likelihood, matrices, _ = machine.learned(name)
    first, now = (100 * float(machine.off_diagonal(matrices[k])) for k in (0, step))
    best = -math.log(len(machine.start(1.0)[1]))
    return (
        f"A machine of {machine.VISIBLE} visible and {machine.HIDDEN} hidden units learns four "
        f"patterns by {method}. After {step} steps {now:.0f} % of its Fisher matrix, by squares, "
        f"lie off the diagonal, at the start {first:.0f} %; the log-likelihood is "
        f"{digits(float(likelihood[step]))} nats, and {digits(best)} is the best there is."
    )


MACHINE_FRAMES = Drawing(
    draw_machine,
    describe_machine,
    grid={"method": list(machine.METHODS.values()), "step": [0, 20, 100]},
    start={"method": machine.METHODS["whitened"], "step": 20},
)

# ---- Figures 2 and 3

CAPS = {"at most 0.5": "γ at most 0.5", "at most 1": "as printed"}
RULES = {"as printed": "printed", "true gradient": "exact", "natural, 2C": "natural"}


def _ours_and_plain(v: float, p: float, gamma: str) -> tuple[numbers.Cell, numbers.Cell]:
    return numbers.cell(v, p, CAPS[gamma]), numbers.cell(v, p, numbers.PLACEBO)


def draw_thresholds(v: float, p: float, gamma: str) -> Figure:
    """Gamma, the covariance norm, the errors and the filters of one cell, beside plain SGD."""
    return _draw_cell(*_ours_and_plain(v, p, gamma))


def describe_thresholds(v: float, p: float, gamma: str) -> str:
    """Gamma, errors and norms at the end, beside plain SGD."""
    told = _describe_cell(*_ours_and_plain(v, p, gamma))
    return f"Threshold {v:g}, fraction {p:g}, γ {gamma}: {told}"


def _held_and_plain(gamma: float, penalty: str) -> tuple[numbers.Cell, numbers.Cell]:
    return numbers.held_cell(gamma, RULES[penalty]), numbers.held_cell(0.0, RULES[penalty])


def draw_held(gamma: float, penalty: str) -> Figure:
    """The same panels at a fixed gamma; gamma = 0 is plain SGD."""
    return _draw_cell(*_held_and_plain(gamma, penalty))


def describe_held(gamma: float, penalty: str) -> str:
    """Errors and norms at the end, beside gamma = 0."""
    told = _describe_cell(*_held_and_plain(gamma, penalty))
    return f"γ held at {gamma:g}, penalty {penalty}: {told}"


def _draw_cell(ours: numbers.Cell, plain: numbers.Cell) -> Figure:
    drawing = Figure(figsize=(5.4, 6.6), facecolor="white")
    drawing.subplots_adjust(0.15, 0.05, 0.97, 0.95, hspace=0.55)
    grid = drawing.add_gridspec(3, 1, height_ratios=[1, 1, 0.85])
    top, middle, bottom = (drawing.add_subplot(grid[i]) for i in range(3))
    for panel in (top, middle):
        panel.tick_params(labelsize=FONT["tick"])
        panel.spines[["top", "right"]].set_visible(False)
    _cell_curve(top, "gamma", "γ", BLUE, ours)
    _both(top, "norm", "‖cov(v, h)‖²", ORANGE, ours, plain)
    top.set(ylim=(5e-6, 50), xlim=(0, 100), yscale="log")
    top.set_yticks([1e-5, 1e-3, 0.1, 10], ["0.00001", "0.001", "0.1", "10"], minor=False)
    top.minorticks_off()
    label(top, "Weight of the penalty, and the covariance")
    legend: dict[str, Any] = {"fontsize": FONT["legend"], "frameon": False, "loc": "upper right"}
    top.legend(ncols=3, columnspacing=1, handlelength=1.5, **legend)
    _both(middle, "train_error", "train", BLACK, ours, plain)
    _both(middle, "test_error", "test", VERMILLION, ours, plain)
    middle.set(ylim=(0, 150), xlim=(0, 100), yticks=range(0, 101, 25))  # room for the names
    label(middle, "Error in % over 100 epochs")
    middle.legend(ncols=2, **legend)
    W, reach = numbers.filters(ours)
    bottom.imshow(mosaic(W), cmap="gray", vmin=-99, vmax=99, interpolation="nearest")
    bottom.set_axis_off()
    label(bottom, f"The ten filters, grey from -{reach:.2g} to {reach:.2g}")
    return drawing


def _cell_curve(panel: Axes, key: str, text: str, color: str, ours: numbers.Cell) -> None:
    band = Band(*(np.maximum(curve, 1e-5) for curve in numbers.cell_band(ours, key)))
    _shade(panel, numbers.cell_epochs(ours), band, color, text)


def _both(
    panel: Axes, key: str, text: str, color: str, ours: numbers.Cell, plain: numbers.Cell
) -> None:
    """Draw a cell, and plain SGD with seed 0 dotted."""
    _cell_curve(panel, key, text, color, ours)
    dotted = np.maximum(numbers.cell_band(plain, key).middle, 1e-5)
    style: dict[str, Any] = {"color": color, "linewidth": 2, "label": f"{text}, plain SGD"}
    panel.plot(numbers.cell_epochs(plain), dotted, ":", **style)


def _describe_cell(ours: numbers.Cell, plain: numbers.Cell) -> str:
    test, train, norm = (
        f"{digits(numbers.at_end(ours, key))} (plain SGD {digits(numbers.at_end(plain, key))})"
        for key in ("test_error", "train_error", "norm")
    )
    gamma = numbers.cell_band(ours, "gamma").middle[-1]
    return (
        f"after 100 epochs γ is {gamma:.3g}. Means of {len(ours.runs)} seeds: test error in "
        f"% {test}, training error {train}, squared norm of cov(v, h) {norm}."
    )


def mosaic(W: np.ndarray) -> np.ndarray:
    """Return the columns of W as small images in two rows, with white gaps."""
    side, hidden = int(np.sqrt(len(W))), W.shape[1]
    images = [np.pad(W[:, j].reshape(side, side), 1, constant_values=99) for j in range(hidden)]
    rows = [np.concatenate(images[start : start + 5], 1) for start in range(0, hidden, 5)]
    return np.concatenate(rows, 0)


THRESHOLD = Drawing(
    draw_thresholds,
    describe_thresholds,
    grid={"v": THRESHOLDS, "p": FRACTIONS, "gamma": tuple(CAPS)},
    start={"v": 0.001, "p": 0.05, "gamma": "at most 1"},
    labels={"v": "threshold v", "p": "fraction p", "gamma": "weight γ"},
)
HELD = Drawing(
    draw_held,
    describe_held,
    grid={"gamma": (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0), "penalty": tuple(RULES)},
    start={"gamma": 0.5, "penalty": "true gradient"},
    labels={"gamma": "γ held at", "penalty": "penalty"},
)

GRIDS = {
    "The paper's scheme": "as printed",
    "γ at most 0.5": "γ at most 0.5",
    "True gradient": "true gradient",
    "Plain SGD in every cell": numbers.PLACEBO,
}


def draw_grid() -> Figure:
    """Figure 2: the final test error of all 35 cells, beside 35 plain SGD runs."""
    drawing, panels = figure(10.6, len(GRIDS))
    for panel, (title, reading) in zip(panels, GRIDS.items(), strict=True):
        mean = numbers.cell_means(reading)
        panel.imshow(mean, cmap="RdBu", vmin=-40, vmax=90, aspect="auto")  # from white to blue
        for (i, j), value in np.ndenumerate(mean):
            style: dict[str, Any] = {
                "color": "white" if value > 65 else "black",
                "fontsize": FONT["tick"],
            }
            panel.text(j, i, f"{value:.0f}", ha="center", va="center", **style)
        panel.set_xticks(range(len(FRACTIONS)), [f"{p:g}" for p in FRACTIONS])
        panel.set_yticks(range(len(THRESHOLDS)), [f"{v:g}" for v in THRESHOLDS])
        label(panel, title, "fraction p" if panel is panels[-1] else "", "threshold v")
    return drawing


def describe_grid() -> str:
    """Best, median and worst of the cells of each grid."""
    parts = [
        f"{title} ({len(numbers.grid(reading))} seeds): best {digits(numbers.best(reading))}, "
        f"median {digits(numbers.middle(reading))}, worst {digits(numbers.worst(reading))}"
        for title, reading in GRIDS.items()
    ]
    return f"Final test error in % over the 35 cells, mean over the seeds. {'; '.join(parts)}."


def draw_stopping() -> Figure:
    """Errors and sparsity of all cells against the epochs that the likelihood was given."""
    drawing, (left, right) = figure(3.9, 1, 2)
    for reading, color, text in (
        (numbers.PLACEBO, BLACK, "plain SGD"),
        ("as printed", BLUE, "the paper's scheme"),
    ):
        points = numbers.stopping(reading)
        kept = np.maximum(points.kept.ravel(), 1)
        style = {"color": color, "alpha": 0.6}
        left.semilogx(kept, points.error.ravel(), ".", label=text, **style)
        right.semilogx(kept, points.hoyer.ravel(), ".", **style)
    epochs, error = numbers.while_it_learns()
    left.semilogx(np.maximum(epochs, 1), error, color=VERMILLION, label="SGD while it learns")
    legend_below(drawing, left)
    label(left, "test error in %", "Σ(1 - γ), epochs")
    label(right, "Hoyer sparsity of W", "Σ(1 - γ), epochs")
    return drawing


def describe_stopping() -> str:
    """How sparse the engaged cells are."""
    engaged, others, plain = (digits(numbers.hoyer(k)) for k in ("engaged", "other", "plain"))
    return (
        f"{numbers.cells_engaged()} of {numbers.engaged().size} cells lost more than 10 of their "
        f"100 epochs to the penalty. Their mean Hoyer sparsity is {engaged}, that of the others "
        f"{others} and that of plain SGD {plain}. Dead hidden units: {numbers.dead_in_all()}."
    )


GRID = Drawing(draw_grid, describe_grid)
STOPPING = Drawing(draw_stopping, describe_stopping)


# ---- Figure 1


def draw_forms(form: str, scale: float) -> Figure:
    """Figure 1: the Fisher matrix of a small machine, its inverse, its Cholesky factor and its
    inverse root.
    """
    M = numbers.form(form, scale)
    drawing = Figure(figsize=(5.4, 4.6), facecolor="white")
    panel = drawing.add_axes((0.08, 0.08, 0.74, 0.83))
    reach = numbers.largest(M)
    image = panel.imshow(M.numpy(), cmap="RdBu", vmin=-reach, vmax=reach, interpolation="nearest")
    drawing.colorbar(image, cax=drawing.add_axes((0.86, 0.12, 0.03, 0.75)))
    panel.tick_params(labelsize=FONT["tick"])
    for edge in (4.5, 7.5):
        panel.axhline(edge, color="0.4", linewidth=0.8)
        panel.axvline(edge, color="0.4", linewidth=0.8)
    panel.set_xticks([2, 6, 15], ["v", "h", "vh"])
    panel.set_yticks([2, 6, 15], ["v", "h", "vh"])
    label(panel, f"{form}, weights times {scale:g}")
    return drawing


def describe_forms(form: str, scale: float) -> str:
    """Size, largest entry and condition number."""
    M = numbers.form(form, scale)
    return (
        f"{form} of a machine with 5 visible and 3 hidden units (23 parameters), weights "
        f"times {scale:g}: largest entry {digits(numbers.largest(M))}, condition number "
        f"{digits(numbers.condition(M))}, entries below 1e-12: {numbers.zeros(M)} of {M.numel()}."
    )


def draw_spectrum(scale: float, bias: float) -> Figure:
    """The eigenvalues of the Fisher matrix of the same machine with any size of weights and
    biases.
    """
    drawing, (panel,) = figure(3.6)
    values = numbers.spectrum(scale, bias).clamp_min(1e-12).numpy()
    panel.semilogy(values, "o-", color=BLUE)
    panel.axhline(0.25, color="0.5", linestyle=":", label="largest variance of a 0/1 statistic")
    panel.set(ylim=(1e-9, 10))
    label(panel, "Eigenvalues of the Fisher matrix", "rank", "", legend="lower left")
    return drawing


def describe_spectrum(scale: float, bias: float) -> str:
    """Largest and smallest eigenvalue and the squared norm."""
    values = numbers.spectrum(scale, bias)
    least, most = digits(float(values[-1])), digits(float(values[0]))
    norm = digits(numbers.squared_norm(scale, bias))
    distance = digits(numbers.squared_distance_to_identity(scale, bias))
    return (
        f"Weights times {scale:.2g}, biases times {bias:.2g}: eigenvalues from {least} to {most}, "
        f"squared norm {norm}, squared distance from the identity {distance}."
    )


FORMS = Drawing(
    draw_forms,
    describe_forms,
    grid={"form": numbers.FORMS, "scale": (0.0, 0.5, 1.0, 2.0)},
    start={"form": "inverse", "scale": 0.5},
    labels={"form": "matrix", "scale": "weights times"},
)
SPECTRUM = Drawing(
    draw_spectrum,
    describe_spectrum,
    ranges={"scale": (0.0, 4.0), "bias": (0.0, 6.0)},
    start={"scale": 1.0, "bias": 1.0},
    labels={"scale": "weights times", "bias": "biases times"},
)


# ---- learning


def draw_learning() -> Figure:
    """Exact log-likelihood against steps and against seconds, median and range of the starts."""
    drawing, (top, bottom) = figure(7.2, 2)
    for method, text in numbers.METHODS.items():
        band, color = numbers.learning_band(method), COLOURS[method]
        _shade(top, numbers.learning_steps(method) + 1, band, color, text)
        seconds = np.maximum(numbers.learning_seconds(method), 1e-2)
        _shade(bottom, seconds, band, color, text)
    for panel, unit in ((top, "1 + number of steps"), (bottom, "seconds of processor time")):
        panel.set(ylim=(-14.5, -11.4), xscale="log")
        title = "Mean log-likelihood of 3,000 binary digits" if panel is top else ""
        label(panel, title, unit, "nats")
    legend_below(drawing, top, 2)
    return drawing


def describe_learning() -> str:
    """Median steps to the target."""
    parts = [f"{text} {numbers.median_steps(m)}" for m, text in numbers.METHODS.items()]
    return (
        f"Median steps to {numbers.target():g} nats over {numbers.starts()} random starts: "
        f"{', '.join(parts)}. Bands are ranges."
    )


def draw_cosines() -> Figure:
    """Angles to the natural gradient along exact SGD."""
    drawing, (panel,) = figure(4.6)
    for method in numbers.COSINES:
        style = {"marker": "o", "markersize": 4}
        x, band = numbers.path_steps() + 1, numbers.cosine_band(method)
        _shade(panel, x, band, COLOURS[method], numbers.METHODS[method], **style)
    panel.set(ylim=(0, 1.02), xscale="log")
    label(panel, "Cosine to the natural gradient", "1 + number of SGD steps")
    legend_below(drawing, panel, 2)
    return drawing


def describe_cosines() -> str:
    """Mean cosines over the path, at the start and at the end."""
    parts = []
    for method in numbers.COSINES:
        middle = numbers.cosine_band(method).middle
        first, last = digits(middle[0]), digits(middle[-1])
        parts.append(f"{numbers.METHODS[method]} {first} then {last}")
    return (
        "Cosine (in the Fisher metric) to the natural gradient at the first and the last point "
        f"of the path: {'; '.join(parts)}."
    )


LEARNING = Drawing(draw_learning, describe_learning)
COSINES = Drawing(draw_cosines, describe_cosines)


# ---- geometry


def draw_terms() -> Figure:
    """Shares of the six terms along exact SGD."""
    drawing, (panel,) = figure(4.2)
    for name, color in TERM_COLOURS.items():
        style = {"color": color, "linewidth": 2, "markersize": 4, "label": f"({name})"}
        panel.semilogx(numbers.path_steps() + 1, numbers.term_share(name), "o-", **style)
    panel.set(ylim=(0, 100))
    label(panel, "Share of each term in ‖G‖², in %", "1 + number of SGD steps")
    panel.legend(fontsize=FONT["legend"], frameon=False, ncols=3, loc="upper right")
    return drawing


def describe_terms() -> str:
    """Shares at the start and at the end."""
    shares = {name: numbers.term_share(name) for name in numbers.TERMS}
    text = ", ".join(f"({n}) {digits(s[0])} then {digits(s[-1])}" for n, s in shares.items())
    return (
        "Share in % of each term of the squared norm of G, with its count, at the start and "
        f"after {numbers.path_steps()[-1]} steps: {text}."
    )


def draw_assumption() -> Figure:
    """What descent on the first three terms does to the last three and to the likelihood."""
    drawing, (left, right) = figure(3.7, 1, 2)
    for penalty, text in numbers.PENALTIES.items():
        style: dict[str, Any] = {"color": PENALTY_COLOURS[penalty], "linewidth": 2}
        last = numbers.descent_curve(penalty, "last")
        x = np.linspace(0, numbers.descent_steps(), len(last))
        left.plot(x, last, label=text, **style)
        right.plot(x, numbers.descent_curve(penalty, "log_likelihood"), **style)
    left.legend(fontsize=FONT["legend"], frameon=False)
    left.set(yscale="log")
    label(left, "last three terms", "steps of descent")
    label(right, "log-likelihood, nats", "steps of descent")
    return drawing


def describe_assumption() -> str:
    """Ratios at the end."""
    parts = [
        f"{text}: last three terms times {digits(numbers.last_terms(penalty))}, log-likelihood "
        f"{digits(numbers.nats_gained(penalty))}"
        for penalty, text in numbers.PENALTIES.items()
    ]
    return (
        f"After {numbers.descent_steps()} steps of descent on the squared norm of "
        f"{'; '.join(parts)} nats."
    )


PAIRS = {
    "covariance_to_gradient": (GREEN, "C itself, to the true gradient"),
    "printed_to_gradient": (VERMILLION, "the paper's matrix, to the true gradient"),
    "printed_to_covariance": (BLUE, "the paper's matrix, to C"),
}


def draw_proxy() -> Figure:
    """Cosines over the epochs of CD-1 training."""
    drawing, (panel,) = figure(4.6)
    for pair, (color, text) in PAIRS.items():
        band = numbers.proxy_band(pair)
        _shade(panel, np.arange(1, len(band.middle) + 1), band, color, text)
    panel.axhline(0, color="0.6", linewidth=1)
    panel.set(ylim=(-1, 1.05))
    label(panel, "Cosine over training", "epoch of CD-1")
    legend_below(drawing, panel, columns=1)
    return drawing


def describe_proxy() -> str:
    """Means over training."""
    a, b, c = (digits(numbers.proxy_cosine(pair).mean) for pair in PAIRS)
    epochs = len(numbers.proxy_band("printed_to_gradient").middle)
    return (
        f"Mean cosine over {epochs} epochs and {len(numbers.proxy_runs())} starts: C to the true "
        f"gradient of its squared norm {a}; the paper's matrix to the true gradient {b}, to C {c}. "
        "Bands are ranges over the starts."
    )


def draw_projections() -> Figure:
    """Measured errors of random projections and their laws."""
    drawing, (panel,) = figure(3.9)
    for key, color, text in (
        ("features", VERMILLION, "projected pixels, bias removed"),
        ("sketch", BLUE, "mixed examples"),
        ("norm", GREEN, "‖cov(v, h)‖² alone"),
    ):
        x = numbers.directions()
        panel.loglog(x, numbers.projection_errors(key), "o", color=color, label=text)
        if key != "features":
            law = numbers.projection_errors(f"{key}_law")
            panel.loglog(x, law, "-", color=color, linewidth=1.5)
    panel.axhline(1, color="0.6", linewidth=1)
    title = "Relative error; lines are the laws"
    label(panel, title, "number of directions k", "", legend="upper right")
    return drawing


def describe_projections() -> str:
    """Errors at the largest k."""
    a, b, c = (digits(numbers.projection_errors(key)[-1]) for key in ("features", "sketch", "norm"))
    return (
        f"Root mean square relative error at k = {numbers.directions()[-1]}: covariance from "
        f"projected pixels {a}, from mixed examples {b}, the squared norm of cov(v, h) {c}. "
        "The pixels are 196."
    )


def draw_heldout() -> Figure:
    """Paired gains over SGD with 95 % intervals."""
    drawing, (panel,) = figure(3.4)
    shown = list(numbers.SEARCHED.items())[:0:-1]
    for row, (method, _) in enumerate(shown):
        found, each = numbers.gain(method), numbers.gains(method)
        panel.plot(each, np.full(len(each), row) + 0.18, ".", color="0.6", markersize=5)
        panel.plot([found.low, found.high], [row, row], color=BLUE, linewidth=3)
        panel.plot(found.mean, row, "o", color=BLUE)
    panel.axvline(0, color=BLACK, linewidth=1)
    panel.set_yticks(range(len(shown)), [name for _, name in shown])
    label(panel, "Test error gained over SGD", "percentage points")
    return drawing


def describe_heldout() -> str:
    """Gains with intervals."""
    parts = []
    for method, name in list(numbers.SEARCHED.items())[1:]:
        found = numbers.gain(method)
        parts.append(f"{name} {digits(found.mean)} ({digits(found.low)} to {digits(found.high)})")
    return (
        "Percentage points of test error gained over the best SGD, mean and 95 % interval over "
        f"{numbers.splits()} splits: {'; '.join(parts)}."
    )


TERMS = Drawing(draw_terms, describe_terms)
ASSUMPTION = Drawing(draw_assumption, describe_assumption)
PROXY = Drawing(draw_proxy, describe_proxy)
PROJECTIONS = Drawing(draw_projections, describe_projections)
HELDOUT = Drawing(draw_heldout, describe_heldout)
