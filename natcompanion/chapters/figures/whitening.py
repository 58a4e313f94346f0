"""The figures of the whitening chapter."""

import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natcompanion.chapters.experiments.whitening import TIMES
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
    pictures,
)
from natcompanion.chapters.numbers import whitening as numbers
from natcompanion.chapters.numbers.whitening.digits import COORDINATES as COORDINATE_NAMES
from natcompanion.chapters.numbers.whitening.example import METRICS
from natcompanion.chapters.numbers.whitening.machines import GUIDES, RULES
from natcompanion.chapters.numbers.whitening.plane import plane, step
from natcompanion.chapters.numbers.whitening.recipes import GUESSES as GUESS_NAMES
from natcompanion.chapters.page import PageFigure, Traced
from natcompanion.chapters.show import digits

COLORS = {
    "plain": colour("sgd"),
    "fisher": colour("natural"),
    "data_fisher": SKY,
    "energy": ORANGE,
    "centred_energy": GREEN,
    "diagonal": PURPLE,
    "block_diagonal": BLACK,
}
STYLES = {
    "steepest": ("steepest descent", colour("sgd"), "-"),
    "natural": ("natural gradient", colour("natural"), "-"),
    "eq35": ("regularized, Eq. 35", GREEN, "--"),
}

# ---- Section 1.1


def _start(text: str) -> torch.Tensor:
    return torch.tensor([float(part) for part in text.strip("()").split(",")], dtype=torch.float64)


def draw_figure1(lr: float, eps: float, origin: str) -> Figure:
    """Paths in parameter space, and the KL divergence against the number of steps."""
    start, dense = _start(origin), torch.arange(0, 201, dtype=torch.float64)
    steps = torch.cat([dense, torch.logspace(math.log10(201), 5, 150, dtype=torch.float64).round()])
    drawing, (plane, curve) = figure(6.6, 2, height_ratios=[1, 1])
    reach = 1.25 * float(start.abs().max())
    _contours(plane, reach)
    for name, path in numbers.gaussian_paths(lr, eps, start, steps).items():
        text, color, line = STYLES[name]
        inside = path.abs().amax(1) < 40 * reach
        plane.plot(*path[inside].T, line, color=color, marker=".", markersize=4, linewidth=1.6)
        values = numbers.example_kl(path).clamp(1e-12, 1e3)
        curve.loglog(steps[1:], values[1:], line, color=color, linewidth=2, label=text)
    plane.plot(*start, "o", color=BLACK)
    plane.plot(0, 0, "*", color=BLACK, markersize=12)
    plane.set(xlim=(-reach, reach), ylim=(-reach, reach))
    label(plane, "Path from the dot to the star", r"$\theta_1$", r"$\theta_2$")
    curve.set(ylim=(1e-10, 1e3), xlim=(1, 1e5))
    label(curve, "Distance to the data (KL, nats)", "number of steps")
    legend_below(drawing, curve)
    return drawing


def _contours(panel: Axes, reach: float) -> None:
    axis = np.linspace(-reach, reach, 80)
    kl = numbers.example_kl(torch.from_numpy(np.stack(np.meshgrid(axis, axis), -1)))
    panel.contour(
        axis, axis, kl.log10().clamp_min(-4), 8, colors="0.8", linewidths=0.8, linestyles="solid"
    )


def describe_figure1(lr: float, eps: float, origin: str) -> str:
    """The steps each rule needs until the divergence is 1e-4."""
    steps = numbers.example_steps(lr, eps, _start(origin))
    return (
        f"From {origin} with step size {lr:g}, a KL divergence of 0.0001 is reached by "
        f"steepest descent: {steps['steepest']}; natural gradient: {steps['natural']}; "
        f"natural gradient regularized by Eq. 35 with ε = {eps:g}: {steps['eq35']}."
    )


def _on_circle(angle: float) -> str:
    radians = math.radians(angle)
    return f"({math.sqrt(2) * math.cos(radians):.3g}, {math.sqrt(2) * math.sin(radians):.3g})"


def draw_any_figure1(lr: float, eps: float, angle: float) -> Figure:
    """The same from a start on the circle of radius 1.41, at an angle in degrees."""
    return draw_figure1(lr, eps, _on_circle(angle))


def describe_any_figure1(lr: float, eps: float, angle: float) -> str:
    """The sentence of the picture above."""
    return describe_figure1(float(f"{lr:.2g}"), float(f"{eps:.2g}"), _on_circle(angle))


def draw_fields() -> Figure:
    """Steepest-descent directions in theta and in phi (Figure 1c and 1d)."""
    drawing, panels = figure(7.4, 2)
    grid, fields = numbers.arrows()
    for panel, (name, field), title in zip(
        panels, fields.items(), ("Parameters", "Natural parameters"), strict=True
    ):
        panel.quiver(*grid.T, *field.T, color=BLUE, pivot="mid", scale=14, width=0.006)
        panel.plot(0, 0, "*", color=BLACK, markersize=14)
        panel.set(aspect="equal", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
        axes = [rf"$\{name}_{i}$" for i in (1, 2)]
        label(panel, rf"{title} $\{name}$: steepest descent", *axes)
    return drawing


def describe_fields() -> str:
    """How far the arrows point away from the goal."""
    angle = numbers.grid_angles("theta")
    return (
        f"On a grid of {len(angle)} points the arrows of steepest descent in theta miss the goal "
        f"by {digits(float(angle.median()))} degrees (median) and at most "
        f"{digits(float(angle.max()))}; in phi every arrow points at the goal."
    )


def _system(*values: float) -> list[torch.Tensor]:
    """Return a model, the inverses of its metric, and five starts, for a step of the plane."""
    M, _, _, inverses, _ = plane(*values)
    return [M, inverses, torch.tensor([[1.0, -1.0]], dtype=torch.float64).repeat(5, 1)]


# ---- Section 1.3


def draw_kinds(kind: str, correlation: float) -> Figure:
    """Samples before and after whitening (Figure 2); two samples are marked."""
    x, y = numbers.whitened(kind.lower(), correlation)
    marked = ((int(x[:, 0].argmax()), VERMILLION), (int(x[:, 1].argmax()), BLUE))
    drawing, panels = figure(3.2, 1, 2)
    for panel, data, title, reach in (
        (panels[0], x, "before", 9),
        (panels[1], y, f"after, {kind}", 4),
    ):
        panel.plot(*data.T, ".", color=SKY, markersize=4)
        for i, color in marked:
            panel.plot(*data[i], "o", color=color, markersize=9)
        panel.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach))
        label(panel, title, "first", "second" if data is x else "")
    return drawing


def describe_kinds(kind: str, correlation: float) -> str:
    """Covariance before and after."""
    before, after = map(numbers.covariance, numbers.whitened(kind.lower(), correlation))
    first, second, both = (digits(float(before[i, j])) for i, j in ((0, 0), (1, 1), (0, 1)))
    return (
        f"400 samples before and after {kind} whitening at correlation {correlation:g}. "
        f"Variances before: {first} and {second}, covariance {both}. After: variances "
        f"{digits(float(after[0, 0]))} and {digits(float(after[1, 1]))}, covariance "
        f"{'0' if abs(float(after[0, 1])) < 1e-10 else digits(float(after[0, 1]))}. "
        f"The samples move by {digits(numbers.moved(kind.lower(), correlation))} "
        "(root mean square)."
    )


def draw_digits(kind: str, eps: float) -> Figure:
    """Six digits before and after whitening, and the spectra."""
    x, after = numbers.digit_covariance()[0], numbers.whitened_digits(kind.lower(), eps)
    drawing, _ = figure(5.6)
    drawing.clear()
    halves: Any = drawing.subfigures(2, 1, height_ratios=[1, 1.35])
    top, bottom = halves
    images = torch.cat([x, after[0]]).reshape(-1, 28, 28)
    for panel, image in zip(top.subplots(2, 6).ravel(), images, strict=True):
        scale = float(image.abs().quantile(0.995))
        pictures([panel], [image], [""], vmin=0 if image.min() >= 0 else -scale, vmax=scale)
    panel = bottom.subplots()
    for lam, color, text in (
        (numbers.digit_spectrum(), VERMILLION, "before"),
        (after[1], BLUE, "after"),
    ):
        panel.semilogy(lam.clamp_min(1e-9), color=color, linewidth=2, label=text)
    panel.axhline(eps, color="0.5", linestyle=":", label=f"ε = {eps:g}")
    panel.set(ylim=(1e-9, 1e2), xlim=(0, 784))
    panel.tick_params(labelsize=FONT["tick"])
    panel.spines[["top", "right"]].set_visible(False)
    label(panel, "Eigenvalues of the covariance", "rank")
    legend_below(bottom, panel, 3)
    return drawing


def describe_digits(kind: str, eps: float) -> str:
    """Condition before, eigenvalues after."""
    counts = numbers.spectrum_counts(kind.lower(), eps)
    return (
        f"Six MNIST digits above, {kind}-whitened with ε = {eps:g} below them, and the spectra of "
        f"all 5000. Before, {counts['above']} of 784 eigenvalues exceed ε and the largest is "
        f"{digits(float(numbers.digit_spectrum()[0]))}. After, {counts['white']} lie between 0.5 "
        f"and 1 and {counts['zero']} stay at 0."
    )


# ---- Sections 2.1 to 2.6


def draw_coordinates() -> Figure:
    """Steps of logistic regression, 3 against 5, in several coordinates: one dot for each sample of
    digits.
    """
    drawing, (panel,) = figure(3.4)
    limit = numbers.setting("coordinates", "steps")
    for row, name in enumerate(COORDINATE_NAMES):
        values = numbers.coordinate_steps(name)
        middle = numbers.coordinate_arrivals(name).median or limit
        color = BLUE if name == "fisher" else VERMILLION
        spread = np.linspace(-0.22, 0.22, len(values))
        panel.semilogx(values, row + spread, "o", color=color, markersize=6, alpha=0.8)
        panel.plot([middle] * 2, [row - 0.38, row + 0.38], color=BLACK, linewidth=2)
    panel.axvline(limit, color="0.6", linestyle=":")
    texts = [text.replace("rescaled ", "rescaled\n") for text in COORDINATE_NAMES.values()]
    panel.set_yticks(range(len(texts)), texts, fontsize=FONT["tick"])
    panel.set_xlim(1, 2 * limit)
    panel.invert_yaxis()
    label(panel, "3 against 5", "steps to 1 % of the first excess loss")
    return drawing


def describe_coordinates() -> str:
    """Median steps to one per cent."""
    parts = [f"{text} {numbers.coordinate_middle(n)}" for n, text in COORDINATE_NAMES.items()]
    return (
        f"Steps to 1 % of the first excess loss, one dot for each of "
        f"{numbers.count('coordinates')} samples of digits; medians: {', '.join(parts)}. "
        "Dots on the dotted line did not arrive."
    )


def _case(units: str, rule: str) -> tuple[str, str]:
    """Return the stored names of what the sliders show in words."""
    return UNITS[units], next(key for key, text in RULES.items() if text == rule)


def draw_boltzmann(units: str, rule: str) -> Figure:
    """Learning curves on 20 Boltzmann machines, geometric mean with 95 % interval."""
    drawing, (panel,) = figure(5.6)
    times = np.array(TIMES) + 1
    for name, text in METRICS.items():
        band = numbers.curves(name, *_case(units, rule))
        low, middle, high = ([getattr(at, end) for at in band] for end in ("low", "mean", "high"))
        panel.fill_between(times, low, high, color=COLORS[name], alpha=0.15, linewidth=0)
        panel.loglog(times, middle, color=COLORS[name], linewidth=2, label=text)
    panel.set(ylim=(8e-4, 20), xlim=(1, 1001))
    label(panel, f"units {units}, {rule}", "1 + number of steps", "KL (first = 1)")
    legend_below(drawing, panel)
    return drawing


def describe_boltzmann(units: str, rule: str) -> str:
    """Median speed-ups with the range of the problems."""
    case, parts = _case(units, rule), []
    for name in GUIDES:
        low, high = map(digits, numbers.machine_range(name, *case))
        middle = digits(numbers.machine_speedup(name, *case))
        parts.append(f"{METRICS[name]} {middle} ({low} to {high})")
    return (
        f"{numbers.machines()} Boltzmann machines, units {units}, trained by {rule}. "
        f"Times fewer steps than steepest descent, median and range: {'; '.join(parts)}. "
        "Bands are 95 % intervals of the mean logarithm."
    )


def draw_gain(eps: float) -> Figure:
    """What Eq. 35 and damping make of an eigenvalue."""
    lam = torch.logspace(-4, 1.3, 300, dtype=torch.float64)
    drawing, (panel,) = figure(4.2)
    for gain, text, color, line in (
        (1 / lam, r"exact, $1/\lambda$", BLUE, "-"),
        (numbers.damped_gain(lam, eps), r"damping, $1/(\lambda+\epsilon)$", ORANGE, "-."),
        (
            numbers.regularized_gain(lam, eps),
            r"Eq. 35, $\lambda/(\lambda^2+\epsilon)$",
            GREEN,
            "--",
        ),
    ):
        panel.loglog(lam, gain, line, color=color, linewidth=2.2, label=text)
    for value in numbers.example_gains(eps)["eigenvalue"]:
        panel.axvline(value, color="0.6", linewidth=1)
    root: dict[str, Any] = {
        "color": VERMILLION,
        "linestyle": ":",
        "label": r"$\lambda=\sqrt{\epsilon}$",
    }
    panel.axvline(math.sqrt(eps), linewidth=2, **root)
    panel.set(ylim=(1e-4, 1e5), xlim=(1e-4, 20))
    label(
        panel,
        "Gain of the regularized inverse",
        r"eigenvalue $\lambda$ of the metric",
    )
    legend_below(drawing, panel)
    return drawing


def describe_gain(eps: float) -> str:
    """The gains of the two eigenvalues of the example."""
    gains = numbers.example_gains(eps)
    small, large = ({name: digits(pair[i]) for name, pair in gains.items()} for i in (0, 1))
    return (
        f"At ε = {eps:g} the small eigenvalue {small['eigenvalue']} of the example gets gain "
        f"{small['eq35']} from Eq. 35 and {small['damping']} from damping, where the exact "
        f"inverse has {small['exact']}. The large eigenvalue {large['eigenvalue']} gets "
        f"{large['eq35']}, {large['damping']} and {large['exact']}. Eq. 35 gives no eigenvalue "
        f"more than {digits(numbers.largest_gain(eps))}."
    )


# ---- Sections 2.9, 2.10


def draw_separation(condition: float, rule: str) -> Figure:
    """Three mixtures above, three recovered photographs below."""
    mixed, recovered, _, _ = numbers.unmixed(condition, rule == "Eq. 43")
    drawing, panels = figure(4.2, 2, 3)
    titles = [f"{kind} {k}" for kind in ("mixture", "output") for k in (1, 2, 3)]
    for panel, image, title in zip(panels, [*mixed, *recovered], titles, strict=True):
        low, high = float(image.quantile(0.01)), float(image.quantile(0.99))
        pictures([panel], [image.reshape(48, 48)], [title], vmin=low, vmax=high)
    return drawing


def describe_separation(condition: float, rule: str) -> str:
    """How well the sources are separated."""
    _, _, error, rate = numbers.unmixed(condition, rule == "Eq. 43")
    return (
        f"Three photographs mixed by a matrix of condition number {condition:g}, and what 100 "
        f"steps of the {rule} rule (step size {digits(rate)}, the best of the grid) make of the "
        f"mixtures. Amari error {digits(error)}: 0 is perfect separation. Order and sign of the "
        "outputs are free; the signs here are set to match."
    )


def draw_guesses() -> Figure:
    """Speed-up over steepest descent for good and bad guesses of the metric."""
    drawing, (panel,) = figure(4.8)
    boxes = panel.boxplot(
        [numbers.guess_speedups(name) for name in GUESS_NAMES],
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        tick_labels=list(GUESS_NAMES.values()),
        medianprops={"color": BLACK},
    )
    for box in boxes["boxes"]:
        box.set_facecolor(SKY)
    panel.axvline(1, color=VERMILLION, linewidth=2)
    panel.set_xscale("log")
    panel.invert_yaxis()
    label(
        panel,
        "Left of the line: worse than no metric at all",
        "times fewer steps than steepest descent",
    )
    return drawing


def describe_guesses() -> str:
    """Median speed-up and share of problems made worse."""
    parts = [
        f"{text} {digits(numbers.guess_middle(name))} ({numbers.guess_worse(name):.0f} % worse)"
        for name, text in GUESS_NAMES.items()
    ]
    return (
        f"{numbers.quadratics()} random quadratics of {numbers.setting('wrong_metric', 'dim')} "
        f"dimensions and condition number {numbers.setting('wrong_metric', 'condition')}. Median "
        f"speed-up, and share of problems that became slower: {'; '.join(parts)}. Boxes hold the "
        "middle half, whiskers 90 %."
    )


# ---- what the chapter shows

UNITS = {"0 and 1": "01", "-1 and +1": "pm1"}
LABELS = {"lr": "step size", "eps": "ε of Eq. 35"}

FIGURE1 = Drawing(
    draw_figure1,
    describe_figure1,
    grid={
        "lr": [0.02, 0.05, 0.1, 0.2, 0.23],
        "eps": [0.0, 1e-6, 1e-4, 1e-2],
        "origin": ["(1, -1)", "(-1, 9)", "(-0.5, -2)"],
    },
    start={"lr": 0.1, "eps": 1e-4, "origin": "(1, -1)"},
    labels={**LABELS, "origin": "start"},
)
ANY_FIGURE1 = Drawing(
    draw_any_figure1,
    describe_any_figure1,
    ranges={"lr": (1e-3, 2.0, "log"), "eps": (1e-8, 1.0, "log"), "angle": (0.0, 360.0)},
    start={"lr": 0.1, "eps": 1e-4, "angle": 315.0},
    labels={**LABELS, "angle": "angle of the start"},
)
PLANE = PageFigure(
    "whitening.js",
    {
        "plane": Traced(plane, [50.0, 0.5, 0.01], [6000.0, 0.2, 1e-6]),
        "step": Traced(step, [*_system(50.0, 0.5, 0.01), 0.1], [*_system(9.0, 1.0, 0.1), 0.5]),
    },
)
FIELDS = Drawing(draw_fields, describe_fields)
KINDS = Drawing(
    draw_kinds,
    describe_kinds,
    grid={"kind": ["ZCA", "PCA", "Cholesky"], "correlation": [0.0, 0.6, 0.95]},
    start={"correlation": 0.95},
)
DIGITS = Drawing(
    draw_digits,
    describe_digits,
    grid={"kind": ["ZCA", "PCA"], "eps": [1e-4, 1e-2, 1e-1]},
    ranges={"kind": ["ZCA", "PCA", "Cholesky"], "eps": (1e-6, 1.0, "log")},
    start={"eps": 1e-2},
    labels={"eps": "ε"},
)
COORDINATES = Drawing(draw_coordinates, describe_coordinates)
BOLTZMANN = Drawing(
    draw_boltzmann, describe_boltzmann, grid={"units": list(UNITS), "rule": list(RULES.values())}
)
GAIN = Drawing(
    draw_gain,
    describe_gain,
    grid={"eps": [1e-6, 1e-4, 1e-2, 1.0]},
    start={"eps": 1e-2},
    labels={"eps": "ε"},
)
SEPARATION = Drawing(
    draw_separation,
    describe_separation,
    grid={"condition": [1.0, 10.0, 100.0], "rule": ["plain gradient", "Eq. 43"]},
    start={"condition": 10.0, "rule": "Eq. 43"},
    labels={"condition": "condition number"},
)
GUESSES = Drawing(draw_guesses, describe_guesses)
