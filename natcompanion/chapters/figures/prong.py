"""The figures of the PRONG chapter."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from natcompanion.chapters.experiments._prong_fisher import DEFINITIONS
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
    sparse,
)
from natcompanion.chapters.numbers import prong as numbers
from natcompanion.chapters.numbers.prong import METHODS, NAMES, PERIODS, STARTS
from natcompanion.chapters.numbers.prong import whitened_layer as layer
from natcompanion.chapters.page import PageFigure, Traced
from natcompanion.chapters.show import digits

COLORS = {name: colour(name) for name in METHODS if name != "backward"}
COLORS["backward"] = PURPLE  # footnote 4's variant, of this chapter alone
EPS = {1e-4: SKY, 1e-3: BLUE, 1e-2: GREEN, 1e-1: ORANGE}
BEST = "each its best"


def _ticks(panel: Axes, values: Iterable[float]) -> None:
    """Label a logarithmic error axis at these values only."""
    panel.set_yscale("log")
    panel.set_yticks(list(values), [f"{value:g}" for value in values])
    panel.minorticks_off()


def _band(panel: Axes, band: tuple, method: str) -> None:
    """Draw the median run of a method in a band from the least to the most."""
    x, middle, least, most = band
    panel.fill_between(x, least, most, color=COLORS[method], alpha=0.15, linewidth=0)
    panel.plot(x, middle, **_line(method))


def _line(method: str) -> dict[str, Any]:
    """Return the look of a method's curve; the variant of this chapter alone has no marker."""
    line = {"color": COLORS[method], "linewidth": 2.2, "label": METHODS[method]}
    return line if method == "backward" else line | sparse(method, list(METHODS).index(method))


# ---- The first screen: a layer that is whitened while it learns


def _inputs(correlation: float, rate: float, eps: float) -> dict[str, list]:
    """Return inputs of each program of the layer, at an update after a whitening."""
    x, y = layer.data(correlation, 0.1, -0.2)
    omega, phi = layer.whiten(*layer.start(), x, eps)
    omega = layer.update(omega, phi, x, y, rate)
    return {
        "start": [],
        "data": [correlation, rate, -eps],
        "whiten": [omega, phi, x, eps],
        "update": [omega, phi, x, y, rate],
        "look": [omega, phi, x, y],
    }


LAYER = PageFigure(
    "prong.js",
    {
        name: Traced(getattr(layer, name), example, other)
        for (name, example), other in zip(
            _inputs(0.9, 0.3, 0.01).items(), _inputs(0.5, 1.0, 0.2).values(), strict=True
        )
    },
)


LAYER_METHODS = {"plain": colour("sgd"), "prong": colour("prong")}


def draw_layer(T: int, step: int) -> Figure:
    """What the second layer is fed at one update, and loss and condition number of all."""
    drawing, panels = figure(6.2, 2, 2)
    circle = np.linspace(0, 2 * np.pi, 100)
    circle = 2 * np.stack([np.cos(circle), np.sin(circle)])
    _, y = layer.data(0.9, 0.0, 0.0)
    sure = y[:, 0].numpy() > 0.5
    for (method, color), panel in zip(LAYER_METHODS.items(), (panels[1], panels[0]), strict=True):
        z, mean, root = (part.numpy() for part in layer.learned(method, T)[step][3:6])
        panel.plot(*(mean[:, None] + root @ circle), color=color, linewidth=2)
        for kind, fill in ((sure, color), (~sure, "white")):
            panel.plot(*z[kind].T, "o", color=color, markerfacecolor=fill, markersize=4.5)
        reach = 5.6 if method == "prong" else 1.7
        panel.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        label(panel, layer.METHODS[method], "what layer 2 is fed")
    panels[0].plot(*circle, ":", color="0.4")
    for method, color in LAYER_METHODS.items():
        looks = layer.learned(method, T)
        for panel, place in zip(panels[2:], (0, 1), strict=True):
            values = [float(look[place]) for look in looks]
            panel.plot(values, color=color, linewidth=2, label=layer.METHODS[method])
    for panel in panels[2:]:
        panel.axvline(step, color="0.5", linestyle=":")
        panel.set_xlim(0, len(looks) - 1)
    panels[2].set_ylim(0.15, 0.75)
    panels[3].set(yscale="log", ylim=(0.8, 1000))
    label(panels[2], f"Loss, nats; update {step}", "update")
    label(panels[3], "Condition number", "update")
    legend_below(drawing, panels[2])
    return drawing


def describe_layer(T: int, step: int) -> str:
    """Loss and condition numbers of both at an update."""
    plain, prong = (layer.learned(method, T)[step] for method in LAYER_METHODS)
    age = f"{step % T} updates after the last whitening" if step % T else "just after a whitening"
    return (
        f"A network of 2-2-1 units learns 40 points; T = {T}. At update {step}, {age}, the "
        f"condition number of the second layer by Eq. 5 is {digits(float(prong[1]))} with PRONG "
        f"and {digits(float(plain[1]))} with the plain gradient, the exact ones "
        f"{digits(float(prong[2]))} and {digits(float(plain[2]))}; the loss is "
        f"{digits(float(prong[0]))} and {digits(float(plain[0]))} nats."
    )


LAYER_FRAMES = Drawing(
    draw_layer,
    describe_layer,
    grid={"T": [1, 20, 200], "step": [0, 19, 20, 100, 200]},
    start={"T": 20, "step": 19},
    labels={"step": "update"},
)


# ---- Epsilon and T


def draw_sensitivity(eps: float, T: str, rate: float) -> Figure:
    """Training curves for every epsilon, and for every T from both starts; the chosen ones are
    heavy.
    """
    drawing, panels = figure(3.4, 1, 2, sharex=True, sharey=True)
    updates = numbers.sensitivity_looks()

    def curve(
        panel: Axes, at: tuple[float, str, str], color: str, name: str, heavy: bool, line: str = "-"
    ) -> None:
        error = np.minimum(numbers.sensitivity_curve(*at, rate), 100)
        width = 3.2 if heavy else 1.3
        panel.plot(updates, error, line, color=color, linewidth=width, label=name or None)

    for value, color in EPS.items():
        curve(panels[0], (value, T, "whitened"), color, f"ε = {value:g}", value == eps)
    for text, color in zip(PERIODS, (ORANGE, BLUE, BLACK), strict=True):
        name = f"T = {text}" if text.isdigit() else f"T: {text}"
        curve(panels[1], (eps, text, "whitened"), color, name, text == T)
        curve(panels[1], (eps, text, "fan-in"), color, "", text == T, "--")
    panels[1].plot([], [], "--", color="0.4", label="fan-in start")
    panels[0].set(ylim=(2.5, 4000), xlim=(0, updates[-1]))
    label(panels[0], f"T: {T}", "updates", "error", "upper right")
    label(panels[1], f"ε: {eps:g}", "updates", "", "upper right")
    for panel in panels:
        _ticks(panel, [3, 10, 30, 100])
    return drawing


def describe_sensitivity(eps: float, T: str, rate: float) -> str:
    """The final errors from both starts, and the best epsilon."""
    best = numbers.best_eps(T, rate)
    ends = [
        numbers.sensitivity_curve(*at, rate)[-1]
        for at in ((eps, T, "whitened"), (eps, T, "fan-in"), (best, T, "whitened"))
    ]
    whitened, fan_in, least = ("above 20 (unstable)" if e > 20 else digits(e) for e in ends)
    when = f"every {T} updates" if T.isdigit() else "once, before the first update,"
    return (
        f"Whitening {when} with ε = {eps:g}, step size {rate:g}: error after "
        f"{numbers.sensitivity_looks()[-1]} updates {whitened} from the whitened start and "
        f"{fan_in} from the fan-in start; the mean image has {digits(numbers.mean_image())}. The "
        f"best ε at this T and step size is {best:g}, with {least} from the whitened start."
    )


SENSITIVITY = Drawing(
    draw_sensitivity,
    describe_sensitivity,
    grid={"eps": list(EPS), "T": list(PERIODS), "rate": [1e-3, 3e-3, 1e-2]},
    start={"eps": 1e-2, "T": "100", "rate": 1e-2},
    labels={"eps": "ε", "T": "T", "rate": "step size"},
)


def draw_periods() -> Figure:
    """Final error against T, from both starts; bars are 95 % intervals."""
    drawing, (panel,) = figure(4.0)
    for start, color, shift in (("whitened", BLUE, -0.06), ("fan-in", VERMILLION, 0.06)):
        found = [numbers.period_error(T, start) for T in PERIODS]
        panel.errorbar(
            np.arange(len(found)) + shift,
            [error.mean for error in found],
            yerr=[[e.mean - e.low for e in found], [e.high - e.mean for e in found]],
            fmt="o",
            color=color,
            capsize=5,
            linewidth=2,
            label=f"{start} start",
        )
    panel.set_xticks(range(len(PERIODS)), list(PERIODS))
    panel.set(xlim=(-0.4, len(PERIODS) - 0.6), ylim=(0, 20))
    title = f"Training error after {numbers.period_updates()} updates"
    label(panel, title, "T", "error", legend="upper left")
    return drawing


def describe_periods() -> str:
    """The means with their intervals."""
    parts = [
        f"T {T}: {numbers.period_error(T, 'whitened')} from the whitened start, "
        f"{numbers.period_error(T, 'fan-in')} from the fan-in start"
        for T in PERIODS
    ]
    return (
        f"Training error after {numbers.period_updates()} updates with ε = step size = 0.01, "
        f"mean and 95 % interval of five runs. {'; '.join(parts)}."
    )


PERIOD = Drawing(draw_periods, describe_periods)


# ---- Figure 2


def draw_fisher(eps: float, covariance: str) -> Figure:
    """Absolute values of the Fisher matrix of the middle layer before and after whitening."""
    drawing, panels = figure(3.6, 1, 2)
    pair = {"before": numbers.fisher_matrix(), "after": numbers.fisher_matrix(eps, covariance)}
    for panel, (title, F) in zip(panels, pair.items(), strict=True):
        image = panel.imshow(
            (F.abs() / F.abs().max()).clamp_min(1e-4).numpy(),
            norm=LogNorm(1e-8, 1),  # its upper half: from white to blue
            cmap="RdBu",
            interpolation="antialiased",
        )
        panel.set(xticks=[], yticks=[])
        label(panel, title)
    place = drawing.add_axes((0.1, 0.1, 0.8, 0.035))
    drawing.colorbar(image, cax=place, orientation="horizontal")
    place.set_xlim(1e-4, 1)
    place.tick_params(labelsize=FONT["tick"])
    return drawing


def describe_fisher(eps: float, covariance: str) -> str:
    """The condition numbers by each definition, before and after."""
    before, after = numbers.fisher_conditions(), numbers.fisher_conditions(eps, covariance)
    parts = [
        f"{NAMES[name]} {digits(before[name])} and {digits(after[name])}"
        for name in ("raw", "tail", "median", "means")
    ]
    return (
        "Fisher matrix of the 400 weights of the middle layer, absolute values relative to "
        f"the largest, before and after whitening its input with ε = {eps:.3g} and the "
        f"{covariance} covariance. Before and after: {'; '.join(parts)}."
    )


FISHER = Drawing(
    draw_fisher,
    describe_fisher,
    grid={
        "eps": [1e-8, 1e-4, 1e-3, 1e-2, 1e-1, 1.0],
        "covariance": ["centred", "as printed"],
    },
    ranges={"eps": (1e-8, 10.0, "log"), "covariance": ["centred", "as printed"]},
    start={"eps": 1e-3, "covariance": "centred"},
    labels={"eps": "ε", "covariance": "covariance"},
)


def draw_conditions(definition: str) -> Figure:
    """The condition number during training: its value, and as a percentage of each method's
    first.
    """
    drawing, panels = figure(6.6, 2, sharex=True)
    for method in numbers.TRAINED:
        for panel, relative in zip(panels, (False, True), strict=True):
            curve = numbers.condition_curves(definition, method, relative)
            panel.semilogy(curve.x, curve.middle, **_line(method))
    panels[0].set(xlim=(0, curve.x[-1]))
    label(panels[0], NAMES[definition])
    label(panels[1], "per cent of the first value", "updates")
    legend_below(drawing, panels[0])
    return drawing


def describe_conditions(definition: str) -> str:
    """First and last values of every method."""
    parts = [
        f"{METHODS[method]} from {digits(numbers.condition_start(definition, method))} to "
        f"{digits(numbers.condition_end(definition, method))} "
        f"({digits(numbers.condition_share(method, definition))} %)"
        for method in numbers.TRAINED
    ]
    return (
        "Condition number of the weights of the middle layer during training, by the "
        f"definition '{DEFINITIONS[definition]}', medians of five initializations: "
        f"{'; '.join(parts)}."
    )


CONDITIONS = Drawing(
    draw_conditions,
    describe_conditions,
    grid={"definition": list(DEFINITIONS)},
    start={"definition": "tail"},
    labels={"definition": "condition number"},
)


DIRECTIONS = {
    "fresh": ("PRONG, whitened at this update", SKY),
    "stale": ("PRONG", BLUE),
    "gradient": ("plain gradient", VERMILLION),
}


def draw_alignment() -> Figure:
    """Cosine of a step with the natural gradient against the age of the whitening."""
    drawing, (panel,) = figure(4.0)
    for kind, (text, color) in DIRECTIONS.items():
        x, middle, least, most = numbers.alignment_curve(kind)
        panel.fill_between(x, least, most, color=color, alpha=0.15, linewidth=0)
        panel.plot(x, middle, ".-", color=color, linewidth=2.2, label=text)
    panel.set(xlim=(0, x[-1]), ylim=(0, 1))
    label(panel, "Cosine with the natural gradient", "updates since the whitening")
    legend_below(drawing, panel)
    return drawing


def describe_alignment() -> str:
    """The mean cosines at the first and at the last look."""
    first, *_, last = numbers.alignment_curve("stale").x.tolist()
    parts = [
        f"{text} from {digits(numbers.cosine(kind, first).mean)} to "
        f"{digits(numbers.cosine(kind, last).mean)}"
        for kind, (text, _) in DIRECTIONS.items()
    ]
    return (
        f"Cosine with the natural gradient, right after a whitening and {last} updates later, "
        f"mean of {numbers.cosine('stale', first).n} initializations: {'; '.join(parts)}."
    )


ALIGNMENT = Drawing(draw_alignment, describe_alignment)


# ---- The auto-encoder


def _chosen(origin: str) -> dict[str, str | None]:
    """Return the methods that were run from a start, and that start (None: each its best)."""
    start = None if origin == BEST else origin
    return {
        method: start
        for method in METHODS
        if (numbers.starts_of(method) if start is None else start in numbers.starts_of(method))
    }


def draw_autoencoder(origin: str) -> Figure:
    """Training error against updates and against CPU seconds: median runs, bands from the least to
    the most.
    """
    drawing, panels = figure(7.4, 2, sharey=True)
    for method, start in _chosen(origin).items():
        for panel, cost in zip(panels, ("updates", "seconds"), strict=True):
            _band(panel, numbers.autoencoder_curves(method, start, cost), method)
    panels[0].set(ylim=(1.8, 15), xlim=(0, numbers.autoencoder_settings("updates")))
    panels[1].set(xlim=(0, 6))
    for panel in panels:
        _ticks(panel, [2, 3, 5, 10])
    label(panels[0], f"Training error; start: {STARTS.get(origin, origin)}", "updates", "error")
    label(panels[1], "", "CPU seconds", "error")
    legend_below(drawing, panels[0])
    return drawing


def describe_autoencoder(origin: str) -> str:
    """The final errors at the settings chosen."""
    parts = []
    for method, start in _chosen(origin).items():
        own = STARTS[numbers.autoencoder(method, start).settings["start"]]
        place = "" if start else f" ({own})"
        parts.append(f"{METHODS[method]}{place} {numbers.final_error(method, start)}")
    return (
        f"Training error of the auto-encoder after {numbers.autoencoder_settings('updates'):,} "
        f"updates, start: {STARTS.get(origin, origin)}; mean and 95 % interval of five "
        f"initializations at the settings that each method chose: {'; '.join(parts)}. The mean "
        f"image has {digits(numbers.mean_image())}."
    )


AUTOENCODER = Drawing(
    draw_autoencoder,
    describe_autoencoder,
    grid={"origin": [BEST, *STARTS]},
    start={"origin": BEST},
    labels={"origin": "start"},
)


def draw_paper() -> Figure:
    """Training error of the paper's auto-encoder against updates and CPU seconds."""
    drawing, panels = figure(6.8, 2, sharey=True)
    for method in numbers.paper_runs():
        for panel, cost in zip(panels, ("updates", "seconds"), strict=True):
            panel.plot(*numbers.paper_curves(method, cost), **_line(method))
    panels[0].set(ylim=(0.6, 60))
    for panel in panels:
        _ticks(panel, [1, 2, 5, 10, 20, 50])
    label(panels[0], "784-1000-500-250-30", "updates", "training error")
    label(panels[1], "", "CPU seconds", "training error")
    legend_below(drawing, panels[0])
    return drawing


def describe_paper() -> str:
    """The final errors."""
    parts = [
        f"{METHODS[method]} {digits(numbers.paper_error(method))} after "
        f"{numbers.paper_updates():,} updates and {digits(numbers.paper_seconds(method))} s"
        for method in numbers.paper_runs()
    ]
    return f"Training error of the paper's auto-encoder, one initialization: {'; '.join(parts)}."


PAPER = Drawing(draw_paper, describe_paper)


# ---- Time

PARTS = {
    "update": ("update", "0.75"),
    "forward": ("forward pass", SKY),
    "moments": ("means and covariances", GREEN),
    "cholesky": ("Cholesky factor", ORANGE),
    "eigenvectors": ("eigenvectors", VERMILLION),
    "projection": ("projection", PURPLE),
}


def draw_time() -> Figure:
    """Cost of an update of each method, in units of an update of SGD, with the parts of a
    whitening.
    """
    drawing, (panel,) = figure(4.0)
    bars = numbers.cost_bars()
    for row, parts in enumerate(reversed(bars.values())):
        left = 0.0
        for part, length in parts.items():
            panel.barh(row, length, left=left, color=PARTS[part][1])
            left += length
    for text, color in PARTS.values():
        panel.barh(0, 0, color=color, label=text)
    panel.set_yticks(range(len(bars)), list(reversed(bars)))
    label(panel, "Cost (SGD = 1), T = 100")
    legend_below(drawing, panel)
    return drawing


def describe_time() -> str:
    """The ratios and shares."""
    m = {quantity: digits(numbers.cost(quantity)) for quantity in numbers.QUANTITIES}
    return (
        f"CPU time of an update in units of an update of SGD, medians: RMSprop "
        f"{m['rmsprop_ratio']}, batch normalization {m['batchnorm_ratio']}, PRONG with T = 100 "
        f"on a plain model {m['prong_ratio']} (factors {m['prong_factoring']} % of its time, "
        f"statistics {digits(numbers.cost('prong_statistics'))} %), on whitened layers "
        f"{m['whitened_ratio']} ({m['whitened_factoring']} % and {m['whitened_statistics']} %)."
    )


TIME = Drawing(draw_time, describe_time)


# ---- Figure 4


def draw_convolutional() -> Figure:
    """Training loss and validation error of the convolutional network; medians of five runs."""
    drawing, panels = figure(6.8, 2, sharex=True)
    for method in numbers.convolutional_methods():
        for panel, key in zip(panels, ("train", "validation"), strict=True):
            _band(panel, numbers.convolutional_curves(method, key), method)
    label(panels[0], "Training loss")
    label(panels[1], "Validation error, per cent", "updates")
    legend_below(drawing, panels[0])
    return drawing


def describe_convolutional() -> str:
    """Final training loss and test error."""
    parts = [
        f"{METHODS[method]} {digits(numbers.final_loss(method))} and {numbers.test_error(method)} %"
        for method in numbers.convolutional_methods()
    ]
    return (
        "Final training loss (median) and test error (mean and 95 % interval of five runs): "
        f"{'; '.join(parts)}."
    )


CONVOLUTIONAL = Drawing(draw_convolutional, describe_convolutional)


# ---- Footnote 4 and K-FAC


def draw_backward() -> Figure:
    """Final error of every setting tried, against the step size."""
    drawing, panels = figure(4.4, 1, len(numbers.COMPARED), sharey=True)
    for panel, method in zip(panels, numbers.COMPARED, strict=True):
        curves = numbers.searched(method)
        for color, (second, points) in zip(
            (SKY, BLUE, GREEN, ORANGE, VERMILLION), curves.items(), strict=True
        ):
            rates, errors = zip(*points, strict=True)
            height = np.minimum(errors, 50)
            panel.loglog(rates, height, ".-", color=color, label=f"{second:g}")
        panel.axhline(numbers.mean_image(method), color="0.4", linestyle=":")
        panel.set(ylim=(3, 60), xticks=[1e-3, 1])
        _ticks(panel, [3, 5, 10, 20, 50])
        panel.set_yticklabels(["3", "5", "10", "20", "50+"])
        label(panel, METHODS[method], "step size", "error" if panel is panels[0] else "")
    options = {"columnspacing": 1, "handlelength": 1.2, "title": "added to the eigenvalues"}
    legend_below(drawing, panels[0], 5, **options)
    return drawing


def describe_backward() -> str:
    """The best error and the share of useless settings of each method."""
    parts = [
        f"{METHODS[method]}: best {digits(numbers.best_searched(method))}, "
        f"{numbers.useless_share(method):.0f} % of the settings no better than the mean image"
        for method in numbers.COMPARED
    ]
    return (
        f"Error after 200 updates at every setting tried. {'; '.join(parts)}. The mean image "
        f"(dotted) has {digits(numbers.mean_image())}."
    )


BACKWARD = Drawing(draw_backward, describe_backward)
