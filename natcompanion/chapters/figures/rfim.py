"""The figures of the chapter on relative Fisher metrics."""

import math
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from torch.nn.functional import elu, softplus

from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _rfim_neuron as single
from natcompanion.chapters.experiments._rfim_training import best_rates
from natcompanion.chapters.experiments.rfim import TIMES
from natcompanion.chapters.figures.style import (
    BLACK,
    BLUE,
    FONT,
    GREEN,
    ORANGE,
    SKY,
    VERMILLION,
    figure,
    label,
)
from natcompanion.chapters.show import digits
from natcompanion.relative import nu

NEURON = {
    "activation": ["sigmoid", "tanh", "relu", "elu"],
    "scale": [0.3, 1.0, 3.0],
    "eps": [1e-6, 1e-2, 1.0],
}
NU = {"omega": [0.01, 0.1, 1.0], "iota": [0.0, 0.1, 0.3], "alpha": [0.5, 1.0, 1.5]}
RANKS = {"layer": ["first", "second", "last"], "activation": ["tanh", "relu"]}
FIGURE4 = {"problem": ["28 x 28, 800", "28 x 28, 200", "7 x 7, 800"], "pair": ["3v5", "4v9"]}
DIVERGENCE = {"weight": [1.0, 2.0, 2.3, 4.0], "rate": [0.2, 1.0]}
DAMPING = {"eps": [1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8], "rate": [0.3, 1.0], "pair": ["3v5", "4v9"]}

METHODS = {
    "GD": ("GD", VERMILLION, "-"),
    "WhiteGD": ("WhiteGD", ORANGE, "--"),
    "NGD": ("NGD", SKY, "-"),
    "WhiteNGD": ("WhiteNGD", BLUE, "--"),
}
FIGURE5 = {
    "data": ["digits", "fashion"],
    "axis": ["iterations", "seconds"],
    "against": ["plain", "batch normalization"],
}
RNGD = {"eps": [0.003, 0.01, 0.03, 0.1], "period": [10, 20, 50, 100], "decay": [0.9, 0.98, 0.995]}
TRAINERS = {
    "sgd": ("SGD", VERMILLION, "-"),
    "adam": ("Adam", ORANGE, "-"),
    "sgd_bna": ("SGD, BNA", VERMILLION, "-"),
    "sgd_bnb": ("SGD, BNB", VERMILLION, "--"),
    "adam_bna": ("Adam, BNA", ORANGE, "-"),
    "adam_bnb": ("Adam, BNB", ORANGE, "--"),
    "rngd": ("RNGD", SKY, "-"),
    "fast": ("RNGD, T = 20", BLUE, "-"),
}
RIVALS = {
    "plain": ("sgd", "adam"),
    "batch normalization": ("sgd_bna", "sgd_bnb", "adam_bna", "adam_bnb"),
}
PROBLEMS = {
    "28 x 28, 800": ("paper", 800),
    "28 x 28, 200": ("paper", 200),
    "7 x 7, 800": ("quick", 800),
}

# ---- A single neuron


@cache
def plane_samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 60 correlated samples of mean zero in the plane, (60, 2), and labels 0 and 1 that
    overlap.
    """
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64) * torch.tensor(
        [2.0, 0.7], dtype=torch.float64
    )
    turn = torch.tensor([[0.94, -0.342], [0.342, 0.94]], dtype=torch.float64)
    x = (x - x.mean(0)) @ turn.mT
    noise = torch.randn(60, generator=generator, dtype=torch.float64)
    return x, (x @ torch.tensor([0.8, 1.5], dtype=torch.float64) + noise > 0).double()


def neuron_loss(
    activation: str, a: torch.Tensor, t: torch.Tensor, omega: float, iota: float
) -> torch.Tensor:
    """Return -log p(t | a) up to a constant, (..., n): Bernoulli for sigmoid and tanh, Gaussian of
    variance 1 for relu and elu.
    """
    if activation in ("sigmoid", "tanh"):
        a = a if activation == "sigmoid" else 2 * a
        return softplus(torch.where(t > 0.5, -a, a))
    mean = elu(a) if activation == "elu" else omega * torch.logaddexp(iota * a / omega, a / omega)
    return 0.5 * (mean - t).square()


def neuron_steps(
    activation: str, scale: float, eps: float, omega: float, iota: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor], dict[str, float]]:
    """Return weights (2,), nu of each sample, the metric (2, 2), one step of each method, and the
    loss after it by name.

    A natural step has size 1 and damping eps tr(g) / D. A gradient step has the size 1 / (largest
    eigenvalue of the metric in its coordinates). The neuron has no bias, so that its parameters are
    a plane.
    """
    x, t = plane_samples()
    w = scale * torch.tensor([0.96, -0.28], dtype=torch.float64)
    options = {"omega": omega, "iota": iota} if activation == "relu" else {}
    weight = nu(activation, x @ w, **options)
    root = torch.linalg.cholesky(
        x.mT @ x / len(x)
    )  # x = root z with white z; weights of z: root^T w
    g = (x.mT * weight) @ x / len(x)
    white = torch.linalg.solve_triangular(
        root, torch.linalg.solve_triangular(root, g, upper=False).mT, upper=False
    )

    def loss(v: torch.Tensor) -> torch.Tensor:
        return neuron_loss(activation, v @ x.mT, t, omega, iota).mean(-1)

    gradient = torch.autograd.functional.jacobian(loss, w)
    inward = torch.linalg.solve_triangular(root, gradient[:, None], upper=False)[
        :, 0
    ]  # gradient by the weights of z

    def back(step: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(root.mT, step[:, None], upper=True)[:, 0]

    steps = {
        "GD": -gradient / torch.linalg.eigvalsh(g)[-1],
        "WhiteGD": -back(inward) / torch.linalg.eigvalsh(white)[-1],
        "NGD": -_damped(g, gradient, eps),
        "WhiteNGD": -back(_damped(white, inward, eps)),
    }
    losses = {"start": float(loss(w))} | {
        name: float(loss(w + step)) for name, step in steps.items()
    }
    return w, weight, g, steps, losses


def _damped(g: torch.Tensor, gradient: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.linalg.solve(
        g + eps * g.trace() / len(g) * torch.eye(len(g), dtype=g.dtype), gradient
    )


def draw_live_neuron(
    activation: str, scale: float, eps: float, omega: float, iota: float
) -> Figure:
    """Samples under the spotlight nu, and the weights with the metric as an ellipse and four
    steps.
    """
    w, weight, g, steps, _ = neuron_steps(activation, scale, eps, omega, iota)
    drawing, (data, plane) = figure(7.6, 2, height_ratios=[1, 1.15])
    _draw_spotlight(data, activation, w, weight, omega, iota)
    _draw_steps(plane, activation, w, g, steps, omega, iota)
    drawing.legend(
        *plane.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        fontsize=FONT["legend"],
        frameon=False,
        handlelength=1.4,
        columnspacing=1.0,
    )
    return drawing


def _draw_spotlight(
    panel: Axes, activation: str, w: torch.Tensor, weight: torch.Tensor, omega: float, iota: float
) -> None:
    x, t = plane_samples()
    across, up = (
        torch.linspace(-5.5, 5.5, 120, dtype=torch.float64),
        torch.linspace(-3.2, 3.2, 80, dtype=torch.float64),
    )
    grid = torch.stack(torch.meshgrid(across, up, indexing="xy"), -1)
    options = {"omega": omega, "iota": iota} if activation == "relu" else {}
    field = nu(activation, grid @ w, **options)
    shades = ["#FFFDF5", "#FFF3D0", "#FFE5A3", "#FFD277", "#FDBB55", "#F5A03C"]
    panel.contourf(across, up, field, np.linspace(0, float(field.max()) + 1e-9, 7), colors=shades)
    size = 8 + 60 * weight / float(field.max())
    for value, marker, color in ((0, "o", VERMILLION), (1, "^", BLUE)):
        panel.scatter(
            *x[t == value].T,
            s=size[t == value],
            marker=marker,
            color=color,
            edgecolor="white",
            linewidth=0.5,
        )
    normal = torch.tensor([-w[1], w[0]]) / w.norm()
    panel.plot(*torch.stack([-7 * normal, 7 * normal]).T, color=BLACK, linewidth=1)
    panel.set(xlim=(-5.5, 5.5), ylim=(-3.2, 3.2))
    label(panel, r"Samples: the spotlight $\nu$", "$x_1$", "$x_2$")


def _draw_steps(
    panel: Axes,
    activation: str,
    w: torch.Tensor,
    g: torch.Tensor,
    steps: dict[str, torch.Tensor],
    omega: float,
    iota: float,
) -> None:
    x, t = plane_samples()
    size = torch.sqrt(steps["NGD"] @ g @ steps["NGD"])
    lam, vectors = torch.linalg.eigh(g)
    axes = 2 * size / lam.clamp_min(1e-12).sqrt()
    angle = math.degrees(math.atan2(float(vectors[1, 0]), float(vectors[0, 0])))
    panel.add_patch(
        Ellipse(
            w.tolist(),
            float(axes[0]),
            float(axes[1]),
            angle=angle,
            fill=False,
            edgecolor=BLACK,
            linewidth=1.5,
        )
    )
    reach = 1.15 * max(float(step.norm()) for step in steps.values())
    reach = max(reach, 0.6 * float(axes[0]))
    line = torch.linspace(-1, 1, 60, dtype=torch.float64)
    grid = w + torch.stack(torch.meshgrid(1.6 * reach * line, reach * line, indexing="xy"), -1)
    loss = neuron_loss(activation, grid @ x.mT, t, omega, iota).mean(-1)
    panel.contour(
        grid[0, :, 0],
        grid[:, 0, 1],
        loss,
        np.quantile(loss, [0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7]),
        colors="0.8",
        linewidths=0.8,
    )
    for name, step in steps.items():
        text, color, line_style = METHODS[name]
        end = w + step
        panel.plot(*torch.stack([w, end]).T, line_style, color=color, linewidth=2.2, label=text)
        panel.plot(*end, "o", color=color, markersize=6)
    panel.plot(*w, "s", color=BLACK, markersize=5)
    panel.set(
        aspect="equal",
        xlim=(float(w[0]) - 1.6 * reach, float(w[0]) + 1.6 * reach),
        ylim=(float(w[1]) - reach, float(w[1]) + reach),
    )
    label(panel, "Weights: the metric and one step", "$w_1$", "$w_2$")


def describe_live_neuron(
    activation: str, scale: float, eps: float, omega: float, iota: float
) -> str:
    """Where nu is, the condition of the metric, and the loss after one step of each method."""
    _, weight, g, _, losses = neuron_steps(activation, scale, eps, omega, iota)
    ordered = weight.sort(descending=True).values.cumsum(0)
    half = int((ordered < 0.5 * ordered[-1]).sum()) + 1
    lam = torch.linalg.eigvalsh(g)
    damping = eps * lam.mean()
    after = ", ".join(f"{name} {digits(losses[name])}" for name in METHODS)
    return (
        f"A {activation} neuron at weight scale {scale:g}. Half of all ν falls on {half} of "
        f"the {len(weight)} samples. The "
        f"metric has condition number {digits(float(lam[1] / lam[0]))}, and "
        f"{digits(float((lam[1] + damping) / (lam[0] + damping)))} "
        f"with the damping ε = {eps:g}. Loss {digits(losses['start'])} before, and after "
        f"one step: {after}."
    )


def draw_neuron(activation: str, scale: float, eps: float) -> Figure:
    """The same at the smoothing and the leak of a plain ReLU."""
    return draw_live_neuron(activation, scale, eps, 0.1, 0.0)


def describe_neuron(activation: str, scale: float, eps: float) -> str:
    """The same at the smoothing and the leak of a plain ReLU."""
    return describe_live_neuron(activation, scale, eps, 0.1, 0.0)


def draw_nu(omega: float, iota: float, alpha: float) -> Figure:
    """nu of the four activations against the input of the neuron."""
    drawing, (panel,) = figure(4.0)
    a = torch.linspace(-4, 4, 801, dtype=torch.float64)
    for name, options, color, line in (
        ("tanh", {}, VERMILLION, "-"),
        ("sigmoid", {}, ORANGE, "-"),
        ("relu", {"omega": omega, "iota": iota}, BLUE, "-"),
        ("elu", {"alpha": alpha}, GREEN, "--"),
    ):
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
    at = torch.tensor([0.0, 0.5], dtype=torch.float64)
    zero, half = nu("relu", at, omega=omega, iota=iota).tolist()
    jump = 1 - alpha**2
    return (
        f"ν of tanh is 1 at 0, that of the sigmoid 0.25. Smoothed ReLU with ω = {omega:g}, "
        f"ι = {iota:g} has {digits(zero)} at 0 and "
        f"{digits(half)} at 0.5, where hard ReLU has 1. ELU with α = {alpha:g} jumps at 0 "
        f"{'by ' + digits(round(jump, 6)) if jump else 'not at all'}."
    )


# ---- Section 4

LAYERS = {"first": 0, "second": 1, "last": 2}


def _ranks(
    layer: str, activation: str
) -> tuple[list[int], np.ndarray, np.ndarray, tuple[int, int]]:
    record = experiments.load("rfim_rank").select(activation=activation).records[0]
    row = LAYERS[layer]
    block, relative = (np.array(record[key])[:, row] for key in ("fisher_blocks", "rfim"))
    return list(record["n"]), block, relative, tuple(record["shapes"][row])


def draw_ranks(layer: str, activation: str) -> Figure:
    """Rank of one layer's block of the Fisher matrix and of its RFIM, with the bounds, against the
    number of samples.
    """
    n, block, relative, (m, d) = _ranks(layer, activation)
    drawing, (panel,) = figure(4.0)
    bound = [min(k * m, m * d) for k in n]
    panel.plot(n, bound, ":", color=BLACK, linewidth=1.6, label="bound $n D_h$, or all parameters")
    panel.plot(
        n,
        [min(k, m * d) for k in n],
        ":",
        color="0.55",
        linewidth=1.6,
        label="bound $n$, or all parameters",
    )
    panel.plot(n, relative, "o-", color=BLUE, linewidth=2, markersize=5, label="RFIM of the layer")
    panel.plot(
        n,
        block,
        "s-",
        color=VERMILLION,
        linewidth=2,
        markersize=5,
        label="its block of the Fisher matrix",
    )
    panel.set(xlim=(0, max(n) + 1), ylim=(0, 78))
    label(
        panel,
        f"Rank, {layer} layer: {m} x {d} parameters",
        "number of samples",
        "rank",
        legend="lower right",
    )
    return drawing


def describe_ranks(layer: str, activation: str) -> str:
    """Both ranks at three numbers of samples."""
    n, block, relative, (m, d) = _ranks(layer, activation)
    parts = [
        f"{relative[i]} against {block[i]} with n = {n[i]}"
        for i in (n.index(1), n.index(5), n.index(20), n.index(60))
    ]
    return (
        f"The {layer} layer of a 6-8-8-1 {activation} network has {m * d} parameters. Rank "
        "of its RFIM against that of its block "
        f"of the Fisher matrix: {', '.join(parts)}."
    )


# ---- Section 5.1, Figure 4


def figure4_record(problem: str, pair: str) -> experiments.Result:
    """Return the stored record of one panel of Figure 4."""
    preset, n = PROBLEMS[problem]
    return experiments.load("rfim_figure4", preset).select(n=n, pair=pair).records[0]


def draw_figure4(problem: str, pair: str) -> Figure:
    """Loss of the four methods, mean of the logarithm over the runs with their range."""
    record = figure4_record(problem, pair)
    drawing, (panel,) = figure(4.4)
    times = np.array([t for t in TIMES if t <= record.settings["epochs"]])
    for name, (text, color, line) in METHODS.items():
        curves = np.array(record[f"log_curves_{name}"])
        panel.fill_between(
            times + 1,
            10 ** curves.min(0),
            10 ** curves.max(0),
            color=color,
            alpha=0.15,
            linewidth=0,
        )
        panel.loglog(times + 1, 10 ** curves.mean(0), line, color=color, linewidth=2.2, label=text)
    low, high = (1e-13, 1e4) if not problem.startswith("7") else (1e-6, 10)
    panel.set(xlim=(1, 101), ylim=(low, high))
    excess = "loss" if not problem.startswith("7") else "loss above the minimum"
    label(
        panel,
        f"{pair.replace('v', ' against ')}, {problem} digits",
        "1 + number of epochs",
        excess,
        legend="upper right",
    )
    return drawing


def describe_figure4(problem: str, pair: str) -> str:
    """Best configuration and mean end of each method."""
    record = figure4_record(problem, pair)
    parts = []
    for name in METHODS:
        end = np.mean(record[f"excess_{name}"])
        text = "the floor of 1e-12" if end <= 1.0001e-12 else digits(float(f"{end:.2g}"))
        parts.append(
            f"{name} {text} (step size {record[f'rate_{name}']:g}, momentum "
            f"{record[f'momentum_{name}']:g})"
        )
    kind = "Loss" if record["separable"] else "Loss above its minimum"
    return (
        f"{kind} after 100 epochs, mean of {record.settings['runs']} runs, each method at "
        "the best of the paper's grid: "
        f"{', '.join(parts)}. The classes are linearly separable in {record['separable']} runs."
    )


@cache
def _pair(pair: str, coordinates: str) -> single.Neuron:
    return single.neuron(*single.digits(pair, 7, 800, 0), coordinates, smallest=1e-14)


@cache
def _natural_curves(eps: float, rate: float, pair: str) -> dict[str, torch.Tensor]:
    rates, still = torch.tensor([[rate], [0.0]], dtype=torch.float64)
    return {
        name: single.train(_pair(pair, name), True, rates, still, epochs=40, eps=eps)[0]
        for name in ("raw", "white")
    }


@cache
def _least(pair: str) -> float:
    return _pair(pair, "white").minimum()


def draw_damping(eps: float, rate: float, pair: str) -> Figure:
    """NGD and WhiteNGD at one step size and one damping."""
    drawing, (panel,) = figure(4.0)
    for name, coordinates in (("NGD", "raw"), ("WhiteNGD", "white")):
        text, color, line = METHODS[name]
        excess = _natural_curves(eps, rate, pair)[coordinates] - _least(pair)
        panel.semilogy(
            excess.clamp_min(1e-9), line, color=color, linewidth=3 if line == "-" else 2, label=text
        )
    panel.set(xlim=(0, 40), ylim=(1e-7, 1))
    label(
        panel,
        f"{pair.replace('v', ' against ')}, damping ε = {eps:g}",
        "epochs",
        "loss above the minimum",
        legend="upper right",
    )
    return drawing


def describe_damping(eps: float, rate: float, pair: str) -> str:
    """The largest distance of the two curves, and the epochs to 0.001."""
    curves = _natural_curves(eps, rate, pair)
    gap = float((curves["raw"] - curves["white"]).abs().max())
    epochs = [int(single.epochs_to(curves[name], _least(pair) + 1e-3)) for name in ("raw", "white")]
    words = [f"{e} epochs" if e <= 40 else "more than 40 epochs" for e in epochs]
    return (
        f"With ε = {eps:g} and step size {rate:g} the loss curves differ by at most "
        f"{digits(float(f'{gap:.1g}'))}. NGD reaches 0.001 above the "
        f"minimum after {words[0]}, WhiteNGD after {words[1]}."
    )


# ---- Section 5.2, Figure 5


@cache
def _training(preset: str) -> experiments.Results:
    return experiments.load("rfim_figure5", preset)


def trainers(data: str) -> dict[str, experiments.Results]:
    """Return the stored runs of Figure 5 by method, at the method's best step size."""
    best = best_rates(_training(data))
    return {
        name: _training(data).select(method=name, rate=best[name])
        for name in TRAINERS
        if name in best
    }


def milliseconds(runs: experiments.Results) -> float:
    """Return the processor time of an iteration: the least over the seeds, because other work on
    the machine only adds.
    """
    return float(runs.values("milliseconds").min())


def draw_figure5(data: str, axis: str, against: str) -> Figure:
    """Mini-batch cost of RNGD and its rivals, mean of the logarithm with the range of the seeds."""
    drawing, (panel,) = figure(5.2)
    for name, runs in trainers(data).items():
        if name not in (*RIVALS[against], "rngd", "fast"):
            continue
        text, color, line = TRAINERS[name]
        curves = np.log10(np.clip(runs.values("curve").astype(float), 1e-6, 10))
        x = runs.records[0].settings["smooth"] * (np.arange(curves.shape[1]) + 1)
        x = x * milliseconds(runs) / 1000 if axis == "seconds" else x
        panel.fill_between(
            x, 10 ** curves.min(0), 10 ** curves.max(0), color=color, alpha=0.12, linewidth=0
        )
        panel.loglog(x, 10 ** curves.mean(0), line, color=color, linewidth=1.8, label=text)
    label(
        panel,
        f"{DATA[data]}: cost of the mini-batches",
        "iteration" if axis == "iterations" else "seconds of one processor",
    )
    drawing.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


DATA = {"digits": "4,000 digits", "fashion": "Fashion-MNIST, 55,000"}


def describe_figure5(data: str, axis: str, against: str) -> str:
    """Cost at the end, and what an iteration takes."""
    parts = []
    for name, runs in trainers(data).items():
        if name in (*RIVALS[against], "rngd", "fast"):
            curve = np.exp(np.log(runs.values("curve").astype(float)).mean(0))
            unit = (
                ""
                if axis == "iterations"
                else f", {digits(float(f'{milliseconds(runs):.2g}'))} ms an iteration"
            )
            parts.append(
                f"{TRAINERS[name][0]} {digits(float(f'{curve[len(curve) // 2 - 1]:.2g}'))} and "
                f"{digits(float(f'{curve[-1]:.2g}'))}{unit}"
            )
    steps = next(iter(trainers(data).values())).records[0].settings["steps"]
    return (
        f"{DATA[data]}: cost of the mini-batches halfway and at the end of {steps} "
        "iterations, each method at its best step "
        f"size: {'; '.join(parts)}. Bands are the range of the seeds."
    )


def draw_rngd(eps: float, period: int, decay: float) -> Figure:
    """The start of RNGD's training for one choice of its three settings."""
    drawing, (panel,) = figure(4.0)
    runs = _training("sliders")
    for record in runs:
        curve = np.clip(np.array(record["curve"], dtype=float), 1e-6, 10)
        x = record.settings["smooth"] * (np.arange(len(curve)) + 1)
        panel.semilogy(x, curve, color="0.88", linewidth=0.8, zorder=1)
    curve = np.clip(np.array(_setting(eps, period, decay)["curve"], dtype=float), 1e-6, 10)
    panel.semilogy(x, curve, color=BLUE, linewidth=2.4)
    panel.set(xlim=(0, x[-1]), ylim=(1e-3, 10))
    label(
        panel, f"ε = {eps:g}, T = {period}, λ = {decay:g}", "iteration", "cost of the mini-batches"
    )
    return drawing


def _setting(eps: float, period: int, decay: float) -> experiments.Result:
    return _training("sliders").select(eps=eps, period=period, decay=decay).records[0]


def describe_rngd(eps: float, period: int, decay: float) -> str:
    """Cost after a third and at the end."""
    record = _setting(eps, period, decay)
    curve = np.array(record["curve"], dtype=float)
    steps, rate = record.settings["steps"], record.settings["rate"]
    if not np.isfinite(curve).all():
        return (
            f"RNGD at step size {rate:g} with ε = {eps:g}, T = {period} and λ = {decay:g} diverges."
        )
    third, end = (
        digits(float(f"{value:.2g}")) for value in (curve[len(curve) // 3 - 1], curve[-1])
    )
    return (
        f"RNGD at step size {rate:g} with ε = {eps:g}, T = {period} and λ = {decay:g}: cost "
        f"{third} after {steps // 3} iterations "
        f"and {end} after {steps}. Grey: all other settings."
    )


# ---- Section 6


def balanced_neuron_path(start: float, rate: float, natural: bool, steps: int = 30) -> list[float]:
    """Return the weight of a sigmoid neuron that sees the input 1 with both labels equally often;
    ends beyond 1e6.

    The loss is log(1 + e^w) - w/2, its minimum 0, the gradient s(w) - 1/2, the metric s(w) s(-w),
    and their ratio sinh(w).
    """
    path = [start]
    while len(path) <= steps and abs(path[-1]) < 1e6:
        w = path[-1]
        step = math.sinh(min(max(w, -300), 300)) if natural else 1 / (1 + math.exp(-w)) - 0.5
        path.append(w - rate * step)
    return path


def draw_divergence(weight: float, rate: float) -> Figure:
    """The weight along the gradient and the natural gradient."""
    drawing, (panel,) = figure(3.8)
    for natural, text, color in ((False, "gradient", VERMILLION), (True, "natural gradient", BLUE)):
        path = np.clip(balanced_neuron_path(weight, rate, natural), -12, 12)
        panel.plot(path, "o-", color=color, linewidth=2, markersize=4, label=text)
    panel.axhline(0, color="0.7", linewidth=1)
    panel.set(xlim=(-0.5, 30), ylim=(-10, 10))
    label(panel, "The goal is weight 0", "step", "weight", legend="upper right")
    return drawing


def describe_divergence(weight: float, rate: float) -> str:
    """Where both are after 30 steps."""
    ends = {}
    for name, natural in (("gradient", False), ("natural gradient", True)):
        path = balanced_neuron_path(weight, rate, natural)
        gone = abs(path[-1]) >= 1e6
        ends[name] = (
            f"beyond a million after {len(path) - 1} steps"
            if gone
            else f"at {digits(round(path[-1], 6))} after 30 steps"
        )
    return (
        f"From weight {weight:g} with step size {rate:g} the gradient is "
        f"{ends['gradient']}, the natural gradient "
        f"{ends['natural gradient']}. The goal is 0."
    )


# ---- Numbers for the text


def settings() -> dict[str, float]:
    """Return the settings and results of the stored experiments that the chapter's text mentions,
    by name.
    """
    pooled, balance = experiments.load("rfim_figure4"), experiments.load("rfim_balance")
    return {
        "balance_radius": balance.records[0].settings["radius"],
        "balance_networks": len(balance.select(scale=1.0)),
        "n_large": PROBLEMS["28 x 28, 800"][1],
        "damping_draws": len(experiments.load("rfim_damping")),
        "stable_raw": float(pooled.values("stable_rate_raw").mean()),
        "stable_white": float(pooled.values("stable_rate_white").mean()),
    }


def epochs_text(record: experiments.Result, method: str, target: float) -> str:
    """Return the median number of epochs to a target of the stored Figure 4, or that it is not
    reached.
    """
    row = record[f"epochs_{method}"][record.settings["targets"].index(target)]
    middle = float(np.median(row))
    return digits(middle) if middle <= record.settings["epochs"] else "never"


def figure4_numbers() -> dict[str, float]:
    """Return what the text says of the stored Figure 4: runs won, and epochs to a loss of 1e-8 on
    separable digits.
    """
    pooled, large = (
        experiments.load("rfim_figure4"),
        experiments.load("rfim_figure4", "paper").select(n=800),
    )
    end = {name: pooled.values(f"excess_{name}") for name in METHODS}
    first = {name: pooled.values(f"log_curves_{name}")[..., 1] for name in METHODS}
    others = np.minimum(np.minimum(end["GD"], end["WhiteGD"]), end["NGD"])
    wins = {
        pair: pooled.values("excess_NGD", pair=pair) < pooled.values("excess_WhiteGD", pair=pair)
        for pair in FIGURE4["pair"]
    }
    target = large.records[0].settings["targets"].index(1e-8)
    floor = large.records[0].settings["floor"]
    return {
        "figure4_runs": int(others.size),
        "white_natural_wins": int((end["WhiteNGD"] < others).sum()),
        **{f"ngd_wins_{pair}": int(won.sum()) for pair, won in wins.items()},
        "white_first": int((first["WhiteGD"] < np.minimum(first["NGD"], first["WhiteNGD"])).sum()),
        "white_floor": int((large.values("excess_WhiteGD") <= floor).sum()),
        "white_soon": float(np.median(large.values("epochs_WhiteGD")[:, target])),
        "natural_soon": float(np.median(large.values("epochs_NGD")[:, target])),
    }


def sharp_rows(data: str) -> list[list]:
    """Return a row for each method of Figure 5: name, step size, mean and deviation of the last
    tenth of the costs, test error.
    """
    rows = []
    for name, runs in trainers(data).items():
        mean, deviation = (
            float(runs.values(f"sharp_{key}")[:, -1].mean()) for key in ("mean", "std")
        )
        error = float(runs.values("test_error")[:, -1].mean())
        rows.append(
            [
                TRAINERS[name][0],
                float(runs.records[0].settings["rate"]),
                mean,
                deviation,
                f"{error:.1f} %",
            ]
        )
    return rows


STEPS = {
    "sgd": "SGD",
    "adam": "Adam",
    "sgd_bna": "SGD, BNA",
    "sgd_bnb": "SGD, BNB",
    "rngd": "RNGD, T = 100",
    "rngd_every_batch": "the same, statistics of every batch",
    "rngd_each_step": "RNGD, T = 1",
}


def step_rows() -> list[list]:
    """Return a row for each way of training: name, and how many times the processor time of SGD an
    iteration takes, median.
    """
    stored = experiments.load("rfim_step_time")
    return [
        [text, float(np.median(stored.values(name) / stored.values("sgd")))]
        for name, text in STEPS.items()
    ]


def figure5_numbers(data: str) -> dict[str, float]:
    """Return what the text says of Figure 5: cost at the end, and after the time that SGD needs for
    all its iterations.

    Costs are geometric means over the seeds of the mean of 10 mini-batches. "bn" is the best of the
    four with batch normalization. "ratio" is the processor time of an iteration in those runs over
    that of SGD, and "reached" the iterations done in the time of SGD's.
    """
    runs = trainers(data)
    curves = {
        name: np.log10(one.values("curve").astype(float)).mean(0) for name, one in runs.items()
    }
    steps = {name: one.records[0].settings["smooth"] for name, one in runs.items()}
    ratio = {name: milliseconds(one) / milliseconds(runs["sgd"]) for name, one in runs.items()}
    updates = steps["sgd"] * len(curves["sgd"])

    def at(name: str, iteration: float) -> float:
        index = max(1, min(len(curves[name]), iteration // steps[name])) - 1
        return float(10 ** curves[name][int(index)])

    ends = {name: at(name, math.inf) for name in runs}
    normalized = min((name for name in runs if "_bn" in name), key=ends.get)
    names = {"sgd": "sgd", "adam": "adam", "bn": normalized, "rngd": "rngd", "fast": "fast"}
    names = {key: name for key, name in names.items() if name in runs}
    return {
        **{f"{data}_{key}": ends[name] for key, name in names.items()},
        **{f"{data}_{key}_300": at(name, 300) for key, name in names.items()},
        **{f"{data}_{key}_budget": at(name, updates / ratio[name]) for key, name in names.items()},
        **{f"{data}_{key}_reached": int(updates / ratio[name]) for key, name in names.items()},
        **{f"{data}_{key}_ratio": ratio[name] for key, name in names.items()},
        f"{data}_steps": updates,
        f"{data}_seeds": len(runs["rngd"]),
    }
