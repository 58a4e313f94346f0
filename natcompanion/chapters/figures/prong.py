"""The figures of the PRONG chapter."""

import copy
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from natcompanion import layers
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _prong_fisher as fisher
from natcompanion.chapters.experiments._prong_training import NEVER
from natcompanion.chapters.figures.style import (
    BLACK,
    BLUE,
    FONT,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    figure,
    label,
)
from natcompanion.chapters.show import digits

EPS, RATES = [1e-4, 1e-3, 1e-2, 1e-1], [1e-3, 3e-3, 1e-2]
PERIODS = {"10": 10, "100": 100, "never again": NEVER}
SENSITIVITY = {"eps": EPS, "T": list(PERIODS), "rate": RATES}
FISHER = {"eps": [1e-8, 1e-4, 1e-3, 1e-2, 1e-1, 1.0], "covariance": ["centred", "as printed"]}
CONDITIONS = {"definition": list(fisher.DEFINITIONS)}

METHODS = {
    "sgd": ("SGD", PURPLE),
    "rmsprop": ("RMSprop", ORANGE),
    "batchnorm": ("batch normalization", GREEN),
    "prong": ("PRONG", BLUE),
    "prong+": ("PRONG+", SKY),
    "backward": ("footnote 4", VERMILLION),
    "kfac": ("K-FAC", BLACK),
}
STARTS = {"fan-in": "fan-in", "sigmoid": "4 × Glorot", "whitened": "whitened"}
NAMES = {
    "raw": "largest / smallest",
    "damped": "largest / smallest, damped",
    "tail": "largest / 90 % exceed",
    "median": "largest / median",
    "means": "arithmetic / geometric mean",
    "absolute": "absolute damping 1e-4",
    "spread": "1 - effective rank / dimension",
}
"""Short names of the definitions of a condition number."""


@cache
def stored(name: str, preset: str = "chapter") -> experiments.Results:
    """Return the stored results of an experiment."""
    return experiments.load(name, preset)


# ---- Sensitivity


def _sensitivity(eps: float, period: int, start: str, rate: float) -> np.ndarray:
    """Return the error at each look of one run."""
    (record,) = stored("prong_sensitivity").select(eps=eps, period=period, start=start, repeats=1)
    return np.array(record["train"])[record.settings["rates"].index(rate), 0]


def _looks(name: str, **settings: object) -> np.ndarray:
    """Return the numbers of updates at which an experiment looked at the error."""
    s = stored(name).select(**settings).records[0].settings
    return np.arange(0, s["updates"] + 1, s["every"])


def draw_sensitivity(eps: float, T: str, rate: float) -> Figure:
    """Training curves for every epsilon, and for every T from both starts; the chosen ones are
    heavy.
    """
    drawing, panels = figure(7.6, 2, sharex=True, sharey=True)
    updates = _looks("prong_sensitivity", repeats=1)
    colors = (SKY, BLUE, GREEN, ORANGE)
    for value, color in zip(EPS, colors, strict=True):
        curve = _sensitivity(value, PERIODS[T], "whitened", rate)
        _curve(panels[0], updates, curve, color, f"ε = {value:g}", heavy=value == eps)
    for (text, period), color in zip(PERIODS.items(), (ORANGE, BLUE, BLACK), strict=True):
        for start, line in (("whitened", "-"), ("fan-in", "--")):
            curve = _sensitivity(eps, period, start, rate)
            name = f"T = {text}" if text.isdigit() else f"T: {text}"
            _curve(panels[1], updates, curve, color, name if line == "-" else "", text == T, line)
    panels[0].set(ylim=(2.5, 500), yscale="log", xlim=(0, updates[-1]))
    panels[0].set_yticks([3, 5, 10, 20, 50, 100], ["3", "5", "10", "20", "50", "100"])
    panels[0].minorticks_off()
    label(panels[0], f"T: {T}; step size {rate:g}", "", "error", legend=False)
    label(
        panels[1],
        f"ε = {eps:g}; step size {rate:g}; dashed: fan-in start",
        "updates",
        "error",
        legend=False,
    )
    for panel in panels:
        panel.legend(loc="upper right", ncols=2, fontsize=FONT["legend"], frameon=False)
    return drawing


def _curve(
    panel: Axes, x: np.ndarray, y: np.ndarray, color: str, name: str, heavy: bool, line: str = "-"
) -> None:
    panel.plot(
        x,
        np.minimum(y, 1e3),
        line,
        color=color,
        linewidth=3.2 if heavy else 1.3,
        label=name or None,
    )


def describe_sensitivity(eps: float, T: str, rate: float) -> str:
    """The final errors from both starts, and the best epsilon."""
    end = {
        start: _sensitivity(eps, PERIODS[T], start, rate)[-1] for start in ("whitened", "fan-in")
    }
    others = {value: _sensitivity(value, PERIODS[T], "whitened", rate)[-1] for value in EPS}
    best = min(others, key=others.get)
    when = f"every {T} updates" if T.isdigit() else "once, before the first update,"
    return (
        f"Whitening {when} with ε = {eps:g}, step size {rate:g}: after "
        f"{_looks('prong_sensitivity', repeats=1)[-1]} updates the training error is "
        f"{_error(end['whitened'])} from the whitened start and {_error(end['fan-in'])} "
        "from the fan-in start. The mean image "
        f"has 10.1. The best ε at this T and step size is {best:g}, with "
        f"{_error(others[best])} from the whitened start."
    )


def _error(value: float) -> str:
    return "above 20 (unstable)" if value > 20 else f"{value:.2g}" if value < 10 else f"{value:.3g}"


# ---- Figure 2


@cache
def _middle_layer() -> tuple[torch.nn.Sequential, torch.Tensor, int, torch.Tensor]:
    """Return the network of Figure 2, its inputs, the place of its middle layer and that layer's
    Fisher matrix.
    """
    x = fisher.digits()[0][:1000]
    model = fisher.tanh_network((100, 20, 20, 10), torch.Generator().manual_seed(0))
    place, layer = fisher.linear_layers(model)[1]
    return model, x, place, fisher.layer_fisher(model, layer, x)


@cache
def fisher_of(eps: float | None, covariance: str = "centred") -> torch.Tensor:
    """Return the Fisher matrix of the middle layer's weights: plain for ``eps=None``, else after
    whitening.
    """
    model, x, place, G = _middle_layer()
    if eps is None:
        return fisher.in_coordinates(G, fisher.plain_map(20))
    c, U = fisher.layer_statistics(model, place, x, eps, covariance == "centred")
    return fisher.in_coordinates(G, fisher.whitened_map(c, U))


def draw_fisher(eps: float, covariance: str) -> Figure:
    """Absolute values of the Fisher matrix of the middle layer before and after whitening."""
    drawing, panels = figure(3.6, 1, 2)
    for panel, (title, F) in zip(
        panels, (("before", fisher_of(None)), ("after", fisher_of(eps, covariance))), strict=True
    ):
        size = F.abs() / F.abs().max()
        image = panel.imshow(
            size.clamp_min(1e-4).numpy(),
            norm=LogNorm(1e-4, 1),
            cmap="viridis",
            interpolation="antialiased",
        )
        panel.set(xticks=[], yticks=[])
        label(panel, title)
    bar = drawing.colorbar(
        image, cax=drawing.add_axes([0.1, 0.1, 0.8, 0.035]), orientation="horizontal"
    )
    bar.ax.tick_params(labelsize=FONT["tick"])
    return drawing


def describe_fisher(eps: float, covariance: str) -> str:
    """The condition numbers by each definition, before and after."""
    before, after = (
        fisher.conditions(fisher_of(None)),
        fisher.conditions(fisher_of(eps, covariance)),
    )
    parts = [
        f"{NAMES[name]} {digits(before[name])} and {digits(after[name])}"
        for name in ("raw", "tail", "median", "means")
    ]
    return (
        "Fisher matrix of the 400 weights of the middle layer, absolute values relative to "
        "the largest, before and after "
        f"whitening its input with ε = {eps:g} and the {covariance} covariance. Before and "
        f"after: {'; '.join(parts)}."
    )


def draw_live_fisher(eps: float, covariance: str) -> Figure:
    """The same at any epsilon."""
    return draw_fisher(float(f"{eps:.3g}"), covariance)


def describe_live_fisher(eps: float, covariance: str) -> str:
    """The sentence of the picture above."""
    return describe_fisher(float(f"{eps:.3g}"), covariance)


def reductions(name: str, key: str = "after", eps: float = 1e-3) -> np.ndarray:
    """Return by how many per cent the first whitening lowers a condition number, for every seed."""
    results = stored("prong_conditioning")
    before = np.array([r["before"][name] for r in _by_seed(results)])
    if key != "after":
        return 100 * (1 - np.array([r[key][name] for r in _by_seed(results)]) / before)
    place = results.records[0].settings["eps"].index(eps)
    return 100 * (1 - np.array([r["after"][name][place] for r in _by_seed(results)]) / before)


def _by_seed(results: experiments.Results) -> list[experiments.Result]:
    return sorted(results.records, key=lambda record: record.seed)


def network() -> tuple[torch.nn.Sequential, torch.Tensor]:
    """Return the network of Figure 2, a new copy, and 1,000 digits of 10 x 10 pixels."""
    model, x, _, _ = _middle_layer()
    return copy.deepcopy(model), x


@torch.no_grad()
def algorithm_1(
    model: torch.nn.Sequential, x: torch.Tensor, eps: float, printed: bool
) -> torch.Tensor:
    """Return the outputs after lines 6 to 11 of Algorithm 1, which should leave them as they were.

    As printed, line 9 updates U_i and c_i while lines 7 and 10 of the same layer read U_(i-1) and
    c_(i-1). Otherwise lines 8 and 9 work on the input of the layer, i - 1.
    """
    plain = [layer for _, layer in fisher.linear_layers(model)]
    V, d = [layer.weight.clone() for layer in plain], [layer.bias.clone() for layer in plain]
    sizes = [layer.in_features for layer in plain] + [plain[-1].out_features]
    U, c = (
        [torch.eye(n, dtype=x.dtype) for n in sizes],
        [torch.zeros(n, dtype=x.dtype) for n in sizes],
    )

    def forward(upto: int) -> torch.Tensor:
        h = x
        for j in range(upto):
            h = (h - c[j]) @ U[j].mT @ V[j].mT + d[j]
            h = h.tanh() if j < len(plain) - 1 else h
        return h

    for i in range(len(plain)):  # the paper's layer i + 1
        W = V[i] @ U[i]
        b = d[i] - W @ c[i]
        k = i + 1 if printed else i
        h = forward(k)
        c[k] = h.mean(0)
        U[k] = layers.whitening_pair(torch.cov(h.mT, correction=0), eps)[0]
        V[i] = W @ torch.linalg.inv(U[i])
        d[i] = b + V[i] @ U[i] @ c[i]
    return forward(len(plain))


TRAINED = ("sgd", "rmsprop", "batchnorm", "prong")
"""The methods of Figure 2c."""


def draw_conditions(definition: str) -> Figure:
    """The condition number during training: its value, and as a percentage of each method's
    first.
    """
    drawing, panels = figure(6.6, 2, sharex=True)
    updates = _looks("prong_conditioning_during")
    for method in TRAINED:
        text, color = METHODS[method]
        values = stored("prong_conditioning_during").values(definition, method=method)
        panels[0].semilogy(updates, np.median(values, 0), color=color, linewidth=2.2, label=text)
        panels[1].semilogy(
            updates, 100 * np.median(values / values[:, :1], 0), color=color, linewidth=2.2
        )
    panels[0].set(xlim=(0, updates[-1]))
    label(panels[0], NAMES[definition])
    label(panels[1], "per cent of the first value", "updates")
    drawing.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_conditions(definition: str) -> str:
    """First and last values of every method."""
    parts = []
    for method in TRAINED:
        values = stored("prong_conditioning_during").values(definition, method=method)
        share = float(np.median(values[:, -1] / values[:, 0]))
        first, last = (digits(float(np.median(values[:, k]))) for k in (0, -1))
        parts.append(f"{METHODS[method][0]} from {first} to {last} ({digits(100 * share)} %)")
    return (
        "Condition number of the weights of the middle layer during training, by the "
        f"definition '{fisher.DEFINITIONS[definition]}', "
        f"medians of five initializations: {'; '.join(parts)}."
    )


# ---- T sweep


T_SWEEP = 600
"""Updates of the runs with different T."""


def draw_periods() -> Figure:
    """Final error against T, from both starts; bars are 95 % intervals."""
    drawing, (panel,) = figure(4.0)
    for start, color, shift in (("whitened", BLUE, -0.06), ("fan-in", VERMILLION, 0.06)):
        for place, period in enumerate(PERIODS.values()):
            mean = experiments.interval(final_by_period(period, start))
            panel.errorbar(
                place + shift,
                mean.mean,
                yerr=(mean.high - mean.low) / 2,
                fmt="o",
                color=color,
                capsize=5,
                linewidth=2,
                label=f"{start} start" if place == 0 else None,
            )
    panel.set_xticks(range(len(PERIODS)), list(PERIODS))
    panel.set(xlim=(-0.4, len(PERIODS) - 0.6), ylim=(0, 20))
    label(panel, f"Training error after {T_SWEEP} updates", "T", "error", legend="upper left")
    return drawing


def final_by_period(period: int, start: str) -> np.ndarray:
    """Return the final errors of the five runs with this period from this start, at epsilon and
    step size 0.01.
    """
    curves = stored("prong_sensitivity").values(
        "train", updates=T_SWEEP, period=period, start=start, eps=1e-2
    )
    return curves[0, 0, :, -1]


def describe_periods() -> str:
    """The means with their intervals."""
    parts = [
        f"T {text}: {experiments.interval(final_by_period(period, 'whitened'))} from the "
        "whitened start, "
        f"{experiments.interval(final_by_period(period, 'fan-in'))} from the fan-in start"
        for text, period in PERIODS.items()
    ]
    return (
        f"Training error after {T_SWEEP} updates with ε = step size = 0.01, mean and 95 % "
        f"interval of five runs. {'; '.join(parts)}."
    )


# ---- Figure 3c-d


def starts_of(method: str) -> list[str]:
    """Return the starts from which a method was trained."""
    found = {
        r.settings["start"] for r in stored("prong_autoencoder") if r.settings["method"] == method
    }
    return [start for start in STARTS if start in found]


def record_of(method: str, start: str | None = None) -> experiments.Result:
    """Return the stored runs of a method: from its best start if none is given."""
    if start is None:
        start = min(starts_of(method), key=lambda s: np.mean(final_errors(method, s)))
    return stored("prong_autoencoder").select(method=method, start=start).records[0]


def final_errors(method: str, start: str | None = None) -> np.ndarray:
    """Return the final training errors of the five runs."""
    return np.array(record_of(method, start)["train"])[:, -1]


def updates_ratio(
    method: str, start: str | None = None, than: str = "sgd", than_start: str | None = None
) -> np.ndarray:
    """Return for each run how many times fewer updates it needs to reach the other method's final
    training error.

    Every look at which it is above that error counts, also a later one.
    """
    return _ratio(record_of(method, start), record_of(than, than_start))[0]


def seconds_ratio(
    method: str, start: str | None = None, than: str = "sgd", than_start: str | None = None
) -> np.ndarray:
    """Return the same for CPU seconds."""
    return _ratio(record_of(method, start), record_of(than, than_start))[1]


def _ratio(fast: experiments.Result, slow: experiments.Result) -> tuple[np.ndarray, np.ndarray]:
    goal = np.array(slow["train"])[:, -1:]
    needed = (np.array(fast["train"]) > goal).sum(1) / (len(fast["train"][0]) - 1)
    seconds = (np.array(record["seconds"])[:, -1] for record in (slow, fast))
    return 1 / needed, next(seconds) / (needed * next(seconds))


AUTOENCODER = {"origin": ["each its best", *STARTS]}


def draw_autoencoder(origin: str) -> Figure:
    """Training error against updates and against CPU seconds: median runs, bands from the least to
    the most.
    """
    chosen = {
        method: record_of(method, None if origin == "each its best" else origin)
        for method in METHODS
        if origin in starts_of(method) or (origin == "each its best" and starts_of(method))
    }
    drawing, panels = figure(7.4, 2, sharey=True)
    for method, record in chosen.items():
        text, color = METHODS[method]
        errors, seconds = np.array(record["train"]), np.array(record["seconds"])
        updates = np.arange(errors.shape[1]) * record.settings["every"]
        for panel, x in zip(panels, (updates, np.median(seconds, 0)), strict=True):
            panel.fill_between(
                x, errors.min(0), errors.max(0), color=color, alpha=0.15, linewidth=0
            )
            panel.plot(x, np.median(errors, 0), color=color, linewidth=2.2, label=text)
    panels[0].set(ylim=(1.8, 15), yscale="log", xlim=(0, 1000))
    panels[0].set_yticks([2, 3, 5, 10], ["2", "3", "5", "10"])
    panels[1].set(xlim=(0, 6))
    for panel in panels:
        panel.minorticks_off()
    label(panels[0], f"Training error; start: {STARTS.get(origin, origin)}", "updates", "error")
    label(panels[1], "", "CPU seconds", "error")
    drawing.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_autoencoder(origin: str) -> str:
    """The final errors at the settings chosen."""
    parts = []
    for method in METHODS:
        if not starts_of(method) or origin not in ("each its best", *starts_of(method)):
            continue
        record = record_of(method, None if origin == "each its best" else origin)
        mean = experiments.interval(np.array(record["train"])[:, -1])
        place = f" ({STARTS[record.settings['start']]})" if origin == "each its best" else ""
        parts.append(f"{METHODS[method][0]}{place} {mean}")
    return (
        "Training error of the auto-encoder after 1,000 updates, start: "
        f"{STARTS.get(origin, origin)}; mean and 95 % interval of "
        f"five initializations at the settings that each method chose: {'; '.join(parts)}. "
        "The mean image has 10.1."
    )


# ---- The paper's size


def paper_runs() -> dict[str, experiments.Result]:
    """Return the full run of each method at the paper's size; of several, the best."""
    runs: dict[str, experiments.Result] = {}
    for record in stored("prong_autoencoder", "paper").select(updates=5000):
        method = record.settings["method"]
        if method not in runs or record["train"][0][-1] < runs[method]["train"][0][-1]:
            runs[method] = record
    return {method: runs[method] for method in METHODS if method in runs}


def tried(method: str) -> set[tuple[float, ...]]:
    """Return the step sizes, momenta and second settings that a method tried at the paper's
    size.
    """
    keys = ("rates", "momenta", "second")
    records = stored("prong_autoencoder", "paper").select(method=method)
    return {tuple(value for key in keys for value in record.settings[key]) for record in records}


def draw_paper() -> Figure:
    """Training error of the paper's auto-encoder against updates and CPU seconds."""
    drawing, panels = figure(6.8, 2, sharey=True)
    for method, record in paper_runs().items():
        text, color = METHODS[method]
        errors, seconds = record["train"][0], record["seconds"][0]
        updates = np.arange(len(errors)) * record.settings["every"]
        panels[0].semilogy(updates, errors, color=color, linewidth=2.2, label=text)
        panels[1].semilogy(seconds, errors, color=color, linewidth=2.2)
    for panel in panels:
        panel.set(
            ylim=(0.6, 60),
            yticks=[1, 2, 5, 10, 20, 50],
            yticklabels=["1", "2", "5", "10", "20", "50"],
        )
        panel.minorticks_off()
    label(panels[0], "784-1000-500-250-30", "updates", "training error")
    label(panels[1], "", "CPU seconds", "training error")
    drawing.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_paper() -> str:
    """The final errors."""
    parts = [
        (
            f"{METHODS[m][0]} {digits(r['train'][0][-1])} after {r.settings['updates']:,} "
            f"updates and {digits(r['seconds'][0][-1])} s"
        )
        for m, r in paper_runs().items()
    ]
    return f"Training error of the paper's auto-encoder, one initialization: {'; '.join(parts)}."


# ---- Time

COSTS = {
    "forward": "forward pass",
    "moments": "means and covariances",
    "cholesky": "Cholesky factor",
    "eigenvectors": "eigenvectors",
    "projection": "projection",
}


def draw_time(preset: str = "paper") -> Figure:
    """Cost of an update of each method, in units of an update of SGD, with the parts of a whitening
    at T = 100.
    """
    (record,) = stored("prong_time", preset).records
    sgd, period = record["sgd"], record.settings["period"]
    drawing, (panel,) = figure(4.0)
    rows = {
        "SGD": ("sgd", ()),
        "RMSprop": ("rmsprop", ()),
        "batch normalization": ("batchnorm", ()),
        "PRONG, plain model": ("prong", ("forward", "moments", "cholesky")),
        "PRONG, whitened layers": (
            "whitened",
            ("forward", "moments", "eigenvectors", "projection"),
        ),
    }
    colors = dict(zip(COSTS, (SKY, GREEN, ORANGE, VERMILLION, PURPLE), strict=True))
    for row, (name, (update, parts)) in enumerate(reversed(rows.items())):
        left = record[update] / sgd
        panel.barh(row, left, color="0.75", label="update" if name == "SGD" else None)
        for part in parts:
            share = record[part] / period / sgd
            panel.barh(row, share, left=left, color=colors[part])
            left += share
    for part, text in COSTS.items():
        panel.barh(0, 0, color=colors[part], label=text)
    panel.set_yticks(range(len(rows)), list(reversed(rows)))
    label(panel, "Cost of an update (SGD = 1), T = 100", "", "")
    drawing.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_time(preset: str = "paper") -> str:
    """The ratios and shares."""
    (record,) = stored("prong_time", preset).records
    m = {
        key: float(np.median(value))
        for key, value in record.values.items()
        if isinstance(value, list)
    }
    return (
        "CPU time of an update in units of an update of SGD, medians: RMSprop "
        f"{digits(m['rmsprop_ratio'])}, batch normalization "
        f"{digits(m['batchnorm_ratio'])}, PRONG with T = 100 on a plain model "
        f"{digits(m['prong_ratio'])} (factors "
        f"{digits(m['prong_factoring'])} % of its time, statistics "
        f"{digits(m['prong_statistics'])} %), on whitened layers "
        f"{digits(m['whitened_ratio'])} ({digits(m['whitened_factoring'])} % and "
        f"{digits(m['whitened_statistics'])} %)."
    )


# ---- Figure 4


def convolutional_methods() -> list[str]:
    """Return the methods whose convolutional runs are stored."""
    found = {record.settings["method"] for record in stored("prong_convolutional")}
    return [method for method in METHODS if method in found]


def draw_convolutional() -> Figure:
    """Training loss and validation error of the convolutional network; medians of five runs."""
    drawing, panels = figure(6.8, 2, sharex=True)
    for method in convolutional_methods():
        text, color = METHODS[method]
        (record,) = stored("prong_convolutional").select(method=method).records
        for panel, key in zip(panels, ("train", "validation"), strict=True):
            values = np.array([[point[key] for point in curve] for curve in record["curve"]])
            updates = [point["update"] for point in record["curve"][0]]
            panel.fill_between(
                updates, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0
            )
            panel.plot(updates, np.median(values, 0), color=color, linewidth=2.2, label=text)
    label(panels[0], "Training loss")
    label(panels[1], "Validation error, per cent", "updates")
    drawing.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_convolutional() -> str:
    """Final training loss and test error."""
    parts = []
    for method in convolutional_methods():
        (record,) = stored("prong_convolutional").select(method=method).records
        loss = float(np.median([curve[-1]["train"] for curve in record["curve"]]))
        parts.append(
            f"{METHODS[method][0]} {digits(loss)} and {experiments.interval(record['test'])} %"
        )
    return (
        "Final training loss (median) and test error (mean and 95 % interval of five runs): "
        f"{'; '.join(parts)}."
    )


# ---- Footnote 4 and K-FAC


def unstable(method: str) -> float:
    """Return the share of the tried settings, in per cent, that end no better than the mean
    image.
    """
    (record,) = stored("prong_backward").select(method=method).records
    return 100 * float(
        np.mean([entry["train"] >= record["mean_image"] for entry in record["search"]])
    )


def draw_backward(methods: Sequence[str] = ("prong", "backward", "kfac")) -> Figure:
    """Final error of every setting tried, against the step size."""
    drawing, panels = figure(4.4, 1, len(methods), sharey=True)
    for panel, method in zip(panels, methods, strict=True):
        (record,) = stored("prong_backward").select(method=method).records
        colors = (SKY, BLUE, GREEN, ORANGE, VERMILLION)
        for second, color in zip(sorted(record.settings["second"]), colors, strict=True):
            points = [
                (e["rate"], min(e["train"], 50)) for e in record["search"] if e["second"] == second
            ]
            panel.loglog(*zip(*points, strict=True), ".-", color=color, label=f"{second:g}")
        panel.axhline(record["mean_image"], color="0.4", linestyle=":")
        panel.set(ylim=(3, 60), xticks=[1e-3, 1], yticks=[3, 5, 10, 20, 50])
        panel.set_yticklabels(["3", "5", "10", "20", "50+"])
        panel.minorticks_off()
        label(panel, METHODS[method][0], "step size", "error" if panel is panels[0] else "")
    drawing.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=5,
        columnspacing=1,
        handlelength=1.2,
        fontsize=FONT["legend"],
        frameon=False,
        title="added to the eigenvalues",
    )
    return drawing


def describe_backward() -> str:
    """The best error and the share of useless settings of each method."""
    parts = []
    for method in ("prong", "backward", "kfac"):
        (record,) = stored("prong_backward").select(method=method).records
        best = min(entry["train"] for entry in record["search"])
        parts.append(
            f"{METHODS[method][0]}: best {digits(best)}, {unstable(method):.0f} % of the "
            "settings no better than the mean image"
        )
    return (
        f"Error after 200 updates at every setting tried. {'; '.join(parts)}. The mean image "
        "(dotted) has 10.1."
    )
