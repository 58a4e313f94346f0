"""The figures of the foundations chapter."""

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import (
    BLACK,
    BLUE,
    FONT,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    colour,
    figure,
    label,
    legend_below,
)
from natcompanion.chapters.numbers import foundations as numbers
from natcompanion.chapters.numbers.rulers import RULES, divergences, losses, reach, rulers, turn
from natcompanion.chapters.page import PageFigure, Traced
from natcompanion.chapters.show import digits

NAMES = {
    "exact": ("exact Fisher", "0.45", "-", 6.0),
    "kl": ("Hessian of the KL", BLACK, ":", 2.0),
    "gauss_newton": ("Gauss-Newton", BLUE, "--", 2.0),
    "monte_carlo": ("Monte Carlo", GREEN, "-", 1.6),
    "empirical": ("empirical Fisher", VERMILLION, "-", 1.6),
    "covariance": ("gradient covariance", PURPLE, "--", 1.6),
}
LEVEL = 0.0005
LEVELS = (0.3115, 0.3125, 0.3145, 0.318, 0.323, 0.33, 0.34)
SHEET = ((0.9, 2.1), (2.5, 4.0))
"""The values of v and of w in the figure to play with."""
COST, LENS = 1e-4, 5
"""Divergence of its steps, and how many times as large they are drawn."""


def kl_surface(v: float, w: float, dv: np.ndarray, dw: np.ndarray) -> np.ndarray:
    """Return the exact mean KL divergence from the model at (v, w) to that at (v + dv, w + dw)."""
    points = np.stack(np.broadcast_arrays(v + dv, w + dw), -1)
    found = divergences(v, w, torch.from_numpy(points.reshape(-1, 2)))
    return found.numpy().reshape(points.shape[:-1])


def ellipse(matrix: torch.Tensor, level: float = LEVEL) -> np.ndarray:
    """Return points of the curve where half the quadratic form of ``matrix`` is ``level``; (2,
    200).
    """
    lam, vectors = torch.linalg.eigh(matrix)
    angle = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()])
    return (vectors @ ((2 * level / lam.clamp_min(1e-9)).sqrt()[:, None] * circle)).numpy()


def _sheet(columns: int) -> torch.Tensor:
    """Return a grid of points (v, w), rows of so many columns; (columns squared, 2)."""
    axes = [torch.linspace(low, high, columns, dtype=torch.float64) for low, high in SHEET]
    w, v = torch.meshgrid(axes[1], axes[0], indexing="ij")
    return torch.stack([v, w], dim=-1).reshape(-1, 2)


UNIT_RULES = {
    "natural": ("natural gradient", colour("natural"), "-"),
    "gradient": ("gradient", colour("sgd"), "-"),
    "stretched gradient": ("gradient in u", colour("sgd"), "--"),
}


def draw_units(stretch: float, v: float, w: float) -> Figure:
    """Steps of equal divergence over the loss, in (v, w) and in (u, w), u = stretch v; each step
    ends in a dot.
    """
    steps, _, root, _ = rulers(v, w, stretch, COST)
    values = losses(_sheet(60)).reshape(60, 60)
    drawing, panels = figure(4.2, 1, 2, width_ratios=[1.2, 1.7], sharey=True)
    for panel, unit, half in zip(panels, (1.0, stretch), (0.6, 0.85), strict=True):
        scale = np.array([[unit], [1.0]])
        here = scale * np.array([[v], [w]])
        axes = [np.linspace(low, high, 60) for low, high in SHEET]
        panel.contour(unit * axes[0], axes[1], values, LEVELS, colors="0.75", linewidths=1)
        angle = np.linspace(0, 2 * np.pi, 100)
        circle = root.numpy() @ np.stack([np.cos(angle), np.sin(angle)])
        panel.plot(*(here + LENS * scale * circle), color="0.45", linewidth=2)
        for name, (text, color, line) in UNIT_RULES.items():
            if panel is panels[0] or name != "gradient":
                step = steps[RULES.index(name)].numpy()[:, None]
                ends = np.hstack([here, here + LENS * scale * step])
                panel.plot(*ends, line, marker=".", markevery=[1], color=color, label=text)
        panel.plot(*here, "o", color=BLACK, markersize=8)
        panel.plot(unit * numbers.TEACHER[0], numbers.TEACHER[1], "*", color=BLACK, markersize=12)
        panel.set(xlim=(1.5 * unit - half, 1.5 * unit + half), ylim=SHEET[1], aspect="equal")
    label(panels[0], "Parameters v and w", "v", "w")
    label(panels[1], f"The same model, u = {stretch:.2g} v", "u")
    legend_below(drawing, panels[0])
    return drawing


def describe_units(stretch: float, v: float, w: float) -> str:
    """By how much the two gradients turn, and how far the loss falls along each step."""
    steps, values, _, _ = rulers(v, w, stretch, COST)
    falls = dict(zip(RULES, values[0] - values[1:], strict=True))
    said = [f"{float(falls[key]):.5f} ({text})" for key, (text, *_) in UNIT_RULES.items()]
    return (
        f"At v = {v:.3g} and w = {w:.3g}, written with u = {stretch:.2g} v, the gradient turns by "
        f"{turn(steps[0], steps[2]):.0f} degrees, the natural gradient by "
        f"{turn(steps[1], steps[3]):.0f}. Steps that change the predictions equally much lower the "
        f"loss by {said[0]}, {said[1]} and {said[2]} nats."
    )


def draw_six(samples: int, targets: str, w: float) -> Figure:
    """Curves of equal length around the model under each matrix, over the exact divergence; and the
    differences.
    """
    matrices = numbers.six_matrices(samples, targets, w)
    gaps = numbers.six_gaps(samples, targets, w)
    drawing, (plane, bars) = figure(6.6, rows=2, height_ratios=[3, 1.7])
    reach = 1.9 * np.abs(ellipse(matrices["exact"])).max(1)
    dv, dw = np.meshgrid(np.linspace(-reach[0], reach[0], 60), np.linspace(-reach[1], reach[1], 60))
    levels = LEVEL * np.array([0.25, 1.0, 2.25, 4.0])
    plane.contour(dv, dw, kl_surface(0.7, w, dv, dw), levels, colors="0.75", linewidths=1)
    for name, (_, color, line, width) in NAMES.items():
        plane.plot(
            *ellipse(matrices[name]),
            line,
            color=color,
            linewidth=width,
            alpha=0.5 if name == "exact" else 1,
        )
    plane.set(xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]))
    label(plane, "One length, six rulers", "change of v", "change of w")
    for row, (name, (text, color, line, width)) in enumerate(reversed(NAMES.items())):
        bars.plot([0, 0.2], [row, row], line, color=color, linewidth=width)
        bars.text(0.25, row, text, va="center", fontsize=FONT["tick"])
        apart = f"differs by {digits(gaps[name])}" if gaps[name] else "equal"
        bars.text(1.45, row, apart, va="center", fontsize=FONT["tick"])
    bars.set(xlim=(0, 2.2), ylim=(-0.7, 5.7))
    bars.set_axis_off()
    return drawing


def describe_six(samples: int, targets: str, w: float) -> str:
    """The relative difference of each matrix from the exact Fisher matrix."""
    gaps = numbers.six_gaps(samples, targets, w)
    return (
        f"At w = {w:g}, relative to the exact Fisher matrix: the Hessian of the KL "
        "divergence and the Gauss-Newton matrix "
        f"are {'equal' if gaps['kl'] + gaps['gauss_newton'] == 0 else 'different'}; Monte "
        f"Carlo with {samples} "
        f"label{'s' if samples > 1 else ''} an input differs by "
        f"{digits(gaps['monte_carlo'])}; with targets "
        f"{'that are ' if targets.startswith('the') else ''}{targets}, the empirical Fisher "
        "matrix differs by "
        f"{digits(gaps['empirical'])} and the gradient covariance by {digits(gaps['covariance'])}."
    )


def draw_any_six(samples: float, targets: str, w: float) -> Figure:
    """The same at any number of samples."""
    return draw_six(round(samples), targets, w)


def describe_any_six(samples: float, targets: str, w: float) -> str:
    """The sentence of the picture above."""
    return describe_six(round(samples), targets, float(f"{w:.2g}"))


def draw_directions() -> Figure:
    """Decrease of the loss against the direction, in degrees, of a step that spends a fixed
    divergence.
    """
    drawing, (panel,) = figure(3.2)
    panel.plot(1e3 * numbers.falls(), color="0.4", linewidth=2)
    for at, color, text in (
        (numbers.natural_angle(), BLUE, "natural gradient"),
        (numbers.plain_angle(), ORANGE, "gradient"),
    ):
        panel.axvline(at, color=color, linewidth=2, linestyle="--", label=text)
    panel.axhline(0, color="0.8", linewidth=1)
    panel.set(xlim=(0, 360), xticks=[0, 90, 180, 270, 360])
    label(
        panel,
        "Decrease of the loss (0.001 nats)",
        "direction in the (v, w) plane (degrees)",
        legend="upper center",
    )
    return drawing


def describe_directions() -> str:
    """Which direction is best, and where the two rules point."""
    return (
        f"Of {len(numbers.falls())} directions that all spend the same KL divergence, the one at "
        f"{numbers.best_angle()} degrees lowers the loss most; the natural gradient points to "
        f"{numbers.natural_angle()} degrees and the gradient to {numbers.plain_angle()}."
    )


PATHS = {
    "gradient": ("gradient, (v, w)", colour("sgd"), "-", 2.5),
    "gradient, other": ("gradient, (a, b)", colour("sgd"), "--", 2.5),
    "natural": ("natural gradient, (v, w)", colour("natural"), "-", 5.0),
    "natural, other": ("natural gradient, (a, b)", BLACK, ":", 2.5),
}


def draw_paths() -> Figure:
    """Paths of small steps of two rules, each in two coordinates, over the loss."""
    drawing, (plane,) = figure(4.6)
    v, w = np.meshgrid(np.linspace(1.2, 2.4, 60), np.linspace(0.9, 3.2, 60))
    loss = np.vectorize(lambda *at: numbers.look(*at)[0])(v, w)
    plane.contour(
        v, w, loss, [0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.12], colors="0.8", linewidths=1
    )
    for name, (text, color, line, width) in PATHS.items():
        plane.plot(*numbers.path(name).T, line, color=color, linewidth=width, label=text)
    plane.plot(*numbers.START, "o", color=BLACK, markersize=8)
    plane.plot(*numbers.TEACHER, "*", color=BLACK, markersize=12)
    plane.annotate(
        "start", numbers.START, (8, -2), textcoords="offset points", fontsize=FONT["tick"]
    )
    plane.annotate(
        "lowest loss", numbers.TEACHER, (-4, 10), textcoords="offset points", fontsize=FONT["tick"]
    )
    label(plane, "Two rules, each in two coordinates", "v", "w")
    legend_below(drawing, plane)
    return drawing


def describe_paths() -> str:
    """How far the paths in the two coordinates are apart."""
    return (
        "From the start at v = 2, w = 1 to the lowest loss, the path of the gradient in the other "
        f"coordinates strays by {digits(numbers.paths_apart('gradient'))} from its path in (v, w); "
        f"the path of the natural gradient by {digits(numbers.paths_apart('natural'))}."
    )


LAMBDAS = {
    0.0: (BLUE, "-", "no damping"),
    0.001: (GREEN, "--", "λ = 0.001"),
    0.01: (PURPLE, ":", "λ = 0.01"),
}


def draw_damping() -> Figure:
    """The length of the damped step where F becomes singular, and how far damped steps in two
    coordinates end apart.
    """
    drawing, (near, apart) = figure(5.6, rows=2)
    w = np.geomspace(0.003, 2, 60)
    for lam, (color, line, text) in LAMBDAS.items():
        lengths = [numbers.damped_length(at, lam) for at in w]
        near.loglog(w, lengths, line, color=color, linewidth=2.5, label=text)
    label(near, "Length of the step (v = 0.7)", "weight w", legend="upper right")
    lams = np.geomspace(1e-4, 1e4, 80)
    apart.loglog(lams, [numbers.damped_apart(lam) for lam in lams], color=BLUE, linewidth=2.5)
    apart.axhline(numbers.apart(0.001, False), color=ORANGE, linestyle="--", linewidth=2)
    apart.text(
        1.5e-4, 1.25 * numbers.apart(0.001, False), "gradient", color="0.2", fontsize=FONT["tick"]
    )
    apart.set_ylim(3e-3, 120)
    label(apart, "Two coordinates end apart (steps)", "damping λ")
    return drawing


def describe_damping() -> str:
    """What damping does to the length of a step and to its invariance."""
    lengths = [digits(numbers.damped_length(0.01, lam)) for lam in LAMBDAS]
    return (
        f"At w = 0.01 the undamped step has the length {lengths[0]}; with λ = 0.001 it is "
        f"{lengths[1]}, with λ = 0.01 {lengths[2]}. At the model at work, steps in two coordinates "
        f"end {digits(numbers.damped_apart(0.001))} steps apart with λ = 0.001 and "
        f"{digits(numbers.damped_apart(1.0))} with λ = 1."
    )


def draw_stale() -> Figure:
    """The loss along natural gradient steps whose matrix is renewed every T steps."""
    drawing, (panel,) = figure(3.6)
    for period, color, line in zip(
        numbers.PERIODS, (BLUE, GREEN, PURPLE, VERMILLION), ("-", "--", "-.", ":"), strict=True
    ):
        losses = numbers.walk("natural", numbers.STALE_RATE, 30, period)[1]
        panel.semilogy(losses, line, color=color, linewidth=2.5, label=f"T = {period}")
    panel.axhline(numbers.CLOSE, color="0.7", linewidth=1)
    label(panel, "Loss above its minimum (nats)", "steps")
    legend_below(drawing, panel, 4)
    return drawing


def describe_stale() -> str:
    """How many steps each period takes."""
    paths = {T: numbers.walk("natural", numbers.STALE_RATE, 30, T)[1] for T in numbers.PERIODS}
    said = ", ".join(
        f"T = {T} " + (f"in {len(losses) - 1}" if losses[-1] < numbers.CLOSE else "not in 30")
        for T, losses in paths.items()
    )
    return f"Steps of size {numbers.STALE_RATE:g} come within 0.001 nats of the minimum: {said}."


def draw_stretched() -> Figure:
    """The fewest steps of two rules against the unit of one parameter."""
    drawing, (panel,) = figure(3.4)
    for rule, color, marker, text in (
        ("gradient", colour("sgd"), "o", "gradient, best step size"),
        ("natural", colour("natural"), "s", "natural gradient"),
    ):
        steps = [numbers.fewest(rule, s if rule == "gradient" else 1.0) for s in numbers.STRETCHES]
        panel.loglog(numbers.STRETCHES, steps, "-", marker=marker, color=color, label=text)
    panel.set_ylim(1, 1000)
    label(panel, "Steps to come within 0.001 nats", "unit of w (w = s b): s", legend="upper left")
    return drawing


def describe_stretched() -> str:
    """The steps of both rules at each unit."""
    steps = ", ".join(f"{numbers.fewest('gradient', s)} at s = {s:g}" for s in numbers.STRETCHES)
    return (
        f"With the best step size of a grid the gradient needs {steps} steps; the natural gradient "
        f"needs {numbers.fewest('natural')} at every s."
    )


UNITS = Drawing(
    draw_units,
    describe_units,
    grid={"stretch": [0.4, 0.6, 1.0, 1.4], "v": [1.2, 1.4, 1.9], "w": [2.7, 3.6]},
    ranges={"stretch": (0.25, 1.4, "log"), "v": (1.0, 2.0), "w": (2.6, 3.9)},
    start={"stretch": 0.6, "v": 1.4, "w": 3.6},
    labels={"stretch": "stretch of v"},
)

START = {"samples": 10, "targets": "drawn from a teacher", "w": 2.0}
LABELS = {"samples": "labels per input (Monte Carlo)", "targets": "targets", "w": "weight w"}
TARGETS = ["drawn from the model", "drawn from a teacher", "the likelier class"]

SIX = Drawing(
    draw_six,
    describe_six,
    grid={"samples": [1, 10, 100], "targets": TARGETS, "w": [0.5, 1.0, 2.0, 4.0]},
    start=START,
    labels=LABELS,
)
ANY_SIX = Drawing(
    draw_any_six,
    describe_any_six,
    ranges={"samples": (1.0, 1000.0, "log"), "targets": TARGETS, "w": (0.2, 6.0)},
    start={**START, "samples": 10.0},
    labels=LABELS,
)
DIRECTIONS = Drawing(draw_directions, describe_directions)
PATHS_APART = Drawing(draw_paths, describe_paths)
DAMPING = Drawing(draw_damping, describe_damping)
STALE = Drawing(draw_stale, describe_stale)
STRETCHED = Drawing(draw_stretched, describe_stretched)


RULERS = PageFigure(
    "foundations.js",
    {
        "rulers": Traced(rulers, [1.2, 3.8, 0.5, 1e-4], [1.0, 2.5, 1.4, 1e-3]),
        "reach": Traced(reach, [1.2, 3.8, 1e-4, _sheet(6)], [1.9, 2.6, 1e-3, 1.1 * _sheet(6)]),
        "valley": Traced(losses, [_sheet(33)], [1.3 * _sheet(33)]),
    },
)
