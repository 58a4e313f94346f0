"""The figures of the whitening chapter."""

import math
from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.experiments._descent import RATES
from natcompanion.chapters.experiments.whitening import TIMES
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
    pictures,
)
from natcompanion.chapters.show import choose, digits
from natcompanion.data import mnist
from natcompanion.whitening import whitening_matrix

FIGURE1 = {
    "lr": [0.02, 0.05, 0.1, 0.2, 0.23],
    "eps": [0.0, 1e-6, 1e-4, 1e-2],
    "origin": ["(1, -1)", "(-1, 9)", "(-0.5, -2)"],
}
KINDS = {"kind": ["zca", "pca", "cholesky"], "correlation": [0.0, 0.6, 0.95]}
GAIN = {"eps": [1e-6, 1e-4, 1e-2, 1.0]}
BOLTZMANN = {"units": ["01", "pm1"], "rule": ["ml", "cd", "mpf"]}
DIGITS = {"kind": ["zca", "pca"], "eps": [1e-4, 1e-2, 1e-1]}
SEPARATION = {"condition": [1.0, 10.0, 100.0], "rule": ["plain gradient", "Eq. 43"]}

METRICS = {
    "plain": ("steepest descent", VERMILLION),
    "fisher": ("Fisher, Eq. 30", BLUE),
    "data_fisher": ("over the data, Eq. 31", SKY),
    "energy": ("energy, Eq. 33", ORANGE),
    "centred_energy": ("energy, centred", GREEN),
    "diagonal": ("diagonal, Eq. 34", PURPLE),
    "block_diagonal": ("block diagonal", BLACK),
}
RULES = {
    "ml": "maximum likelihood",
    "cd": "contrastive divergence",
    "mpf": "minimum probability flow",
}
UNITS = {"01": "units 0 and 1", "pm1": "units -1 and +1"}

# ---- settings and numbers


def settings() -> dict[str, float]:
    """Return the settings of the stored experiments that the chapter's text mentions, by name."""
    names = (
        "stale_metric",
        "boltzmann",
        "digit_pairs",
        "regularization",
        "curve_fit",
        "wrong_metric",
        "invariance",
    )
    stored = {name: experiments.load(f"whitening_{name}") for name in names}
    used = {name: results.records[0].settings for name, results in stored.items()}
    units, guesses = used["boltzmann"]["n"], used["wrong_metric"]
    ridges = sorted({record.settings["ridge"] for record in stored["digit_pairs"]})
    return {
        "rates_count": len(RATES),
        "rates_low": RATES[0],
        "rates_high": RATES[-1],
        "stale_pairs": len(stored["stale_metric"]),
        "stale_target": used["stale_metric"]["target"],
        "stale_limit": used["stale_metric"]["steps"],
        "maps": used["invariance"]["maps"],
        "bm_units": units,
        "bm_parameters": units * (units + 1) // 2,
        "bm_states": 2**units,
        "bm_machines": len(stored["boltzmann"].select(units="01", rule="ml")),
        "bm_target": used["boltzmann"]["target"],
        "pairs": len(stored["digit_pairs"].select(ridge=ridges[0])),
        "pairs_target": 100 * used["digit_pairs"]["target"],
        "ridge_weak": ridges[0],
        "ridge_strong": ridges[-1],
        "reg_dim": used["regularization"]["dim"],
        "reg_samples": used["regularization"]["samples"],
        "reg_eps": len(used["regularization"]["eps"]),
        "curve_points": used["curve_fit"]["n"],
        "curve_fits": len(stored["curve_fit"].select(noise=0.0)),
        "quadratics": guesses["problems"] * len(stored["wrong_metric"]),
        "quadratic_dim": guesses["dim"],
        "quadratic_condition": guesses["condition"],
        "quadratic_target": guesses["target"],
    }


def example_speedups(name: str) -> torch.Tensor:
    """Return the speed-ups of a metric on the example of Section 1.1: the paper's start, then the
    random ones.

    Every record holds the paper's start first; it is taken once.
    """
    values = torch.as_tensor(experiments.load("whitening_figure1").values(f"speedup_{name}"))
    return torch.cat([values[0, :1], values[:, 1:].flatten()])


# ---- Figure 1


def gaussian_paths(
    lr: float, eps: float, start: torch.Tensor, steps: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return theta after each of the steps, (len(steps), 2), along three rules, in the eigenvectors
    of G.

    All three multiply the part of theta along an eigenvector of eigenvalue lambda by 1 - lr gain
    lambda, where the gain is 1, 1/lambda and lambda / (lambda^2 + eps).
    """
    lam, vectors = torch.linalg.eigh(problems.example().fisher())
    gains = {
        "steepest": torch.ones_like(lam),
        "natural": 1 / lam,
        "eq35": lam / (lam.square() + eps),
    }
    along = vectors.mT @ start
    shrink = {
        name: ((1 - lr * gain * lam) ** steps[:, None]).clamp(-1e50, 1e50)
        for name, gain in gains.items()
    }
    return {name: (factor * along) @ vectors.mT for name, factor in shrink.items()}


def _start(text: str) -> torch.Tensor:
    return torch.tensor([float(part) for part in text.strip("()").split(",")], dtype=torch.float64)


STYLES = {
    "steepest": ("steepest descent", VERMILLION, "-"),
    "natural": ("natural gradient", BLUE, "-"),
    "eq35": ("regularized, Eq. 35", GREEN, "--"),
}


def draw_figure1(lr: float, eps: float, origin: str) -> Figure:
    """Paths in parameter space, and the KL divergence against the number of steps."""
    model, mean, start = problems.example(), torch.zeros(2, dtype=torch.float64), _start(origin)
    dense = torch.arange(0, 201, dtype=torch.float64)
    steps = torch.cat([dense, torch.logspace(math.log10(201), 5, 150, dtype=torch.float64).round()])
    paths = gaussian_paths(lr, eps, start, steps)
    drawing, (plane, curve) = figure(6.6, 2, height_ratios=[1, 1])
    reach = 1.25 * float(start.abs().max())
    _contours(plane, reach)
    for name, path in paths.items():
        text, color, line = STYLES[name]
        inside = path.abs().amax(1) < 40 * reach
        plane.plot(*path[inside].T, line, color=color, marker=".", markersize=4, linewidth=1.6)
        values = model.kl(path, mean).clamp(1e-12, 1e3)
        curve.loglog(steps[1:], values[1:], line, color=color, linewidth=2, label=text)
    plane.plot(*start, "o", color=BLACK)
    plane.plot(0, 0, "*", color=BLACK, markersize=12)
    plane.set(xlim=(-reach, reach), ylim=(-reach, reach))
    label(plane, "Path from the dot to the star", r"$\theta_1$", r"$\theta_2$")
    curve.set(ylim=(1e-10, 1e3), xlim=(1, 1e5))
    label(curve, "Distance to the data (KL, nats)", "number of steps", "", legend="upper right")
    return drawing


def _contours(panel: Axes, reach: float) -> None:
    axis = np.linspace(-reach, reach, 80)
    grid = torch.from_numpy(np.stack(np.meshgrid(axis, axis), -1))
    kl = problems.example().kl(grid, torch.zeros(2, dtype=torch.float64))
    panel.contour(
        axis, axis, kl.log10().clamp_min(-4), 8, colors="0.8", linewidths=0.8, linestyles="solid"
    )


def describe_figure1(lr: float, eps: float, origin: str) -> str:
    """The steps each rule needs until the divergence is 1e-4."""
    steps = torch.arange(0, 100_001, dtype=torch.float64)
    paths = gaussian_paths(lr, eps, _start(origin), steps)
    counts = {}
    for name, path in paths.items():
        kl = problems.example().kl(path, torch.zeros(2, dtype=torch.float64))
        below = (kl < 1e-4).nonzero()
        counts[name] = f"{digits(int(below[0]))} steps" if len(below) else "never (in 100000 steps)"
        if not float(kl[-1]) < float(kl[0]):
            counts[name] = "never, it diverges"
    return (
        f"From {origin} with step size {lr:g}, a KL divergence of 0.0001 is reached by "
        "steepest descent: "
        f"{counts['steepest']}; natural gradient: {counts['natural']}; natural gradient "
        "regularized by Eq. 35 with "
        f"ε = {eps:g}: {counts['eq35']}."
    )


def draw_live_figure1(lr: float, eps: float, angle: float) -> Figure:
    """The same from a start on the circle of radius 1.41, at an angle in degrees."""
    return draw_figure1(lr, eps, _on_circle(angle))


def describe_live_figure1(lr: float, eps: float, angle: float) -> str:
    """The sentence of the picture above."""
    return describe_figure1(float(f"{lr:.2g}"), float(f"{eps:.2g}"), _on_circle(angle))


def _on_circle(angle: float) -> str:
    radians = math.radians(angle)
    return f"({math.sqrt(2) * math.cos(radians):.3g}, {math.sqrt(2) * math.sin(radians):.3g})"


def draw_fields() -> Figure:
    """Steepest-descent directions in theta and in phi (Figure 1c and 1d)."""
    G = problems.example().fisher()
    drawing, panels = figure(7.4, 2)
    axis = torch.linspace(-1, 1, 11, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
    for panel, field, title, name in (
        (panels[0], -grid @ G, r"Parameters $\theta$", r"\theta"),
        (panels[1], -grid, r"Natural parameters $\phi$", r"\phi"),
    ):
        field = field / field.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        panel.quiver(
            *grid.unbind(-1), *field.unbind(-1), color=BLUE, pivot="mid", scale=14, width=0.006
        )
        panel.plot(0, 0, "*", color=BLACK, markersize=14)
        panel.set(aspect="equal", xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
        label(panel, f"{title}: steepest descent", f"${name}_1$", f"${name}_2$")
    return drawing


def describe_fields() -> str:
    """How far the arrows point away from the goal."""
    G = problems.example().fisher()
    axis = torch.linspace(-1, 1, 11, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).reshape(-1, 2)
    grid = grid[grid.norm(dim=1) > 0]
    cosine = torch.nn.functional.cosine_similarity(grid @ G, grid, dim=1).clamp(-1, 1)
    angle = torch.rad2deg(cosine.arccos())
    return (
        "On a grid of 120 points the arrows of steepest descent in theta miss the goal by "
        f"{digits(float(angle.median()))} "
        f"degrees (median) and at most {digits(float(angle.max()))}; in phi every arrow "
        "points at the goal."
    )


# ---- Figure 2


def whitening_samples(correlation: float) -> torch.Tensor:
    """Return 400 samples with standard deviations 3 and 1 and about this correlation."""
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = torch.stack([x[:, 0], correlation * x[:, 0] + math.sqrt(1 - correlation**2) * x[:, 1]], 1)
    return y * torch.tensor([3.0, 1.0], dtype=torch.float64)


def _whitened(kind: str, correlation: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = whitening_samples(correlation)
    x = x - x.mean(0)
    return x, x @ whitening_matrix(x.mT @ x / len(x), kind).mT


def draw_kinds(kind: str, correlation: float) -> Figure:
    """Samples before and after whitening (Figure 2); two samples are marked."""
    x, y = _whitened(kind, correlation)
    drawing, panels = figure(3.2, 1, 2)
    for panel, data, title, reach in (
        (panels[0], x, "before", 9),
        (panels[1], y, f"after, {kind}", 4),
    ):
        panel.plot(*data.T, ".", color=SKY, markersize=4)
        for i, color in (
            (data[:, 0].argmax() if data is x else x[:, 0].argmax(), VERMILLION),
            (x[:, 1].argmax(), BLUE),
        ):
            panel.plot(*data[int(i)], "o", color=color, markersize=9)
        panel.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach))
        label(panel, title, "first", "second" if data is x else "")
    return drawing


def describe_kinds(kind: str, correlation: float) -> str:
    """Covariance before and after."""
    x, y = _whitened(kind, correlation)
    before, after = (data.mT @ data / len(data) for data in (x, y))
    moved = (x - y).square().sum(1).mean().sqrt()
    return (
        f"400 samples before and after {kind} whitening at correlation {correlation:g}. "
        "Variances before: "
        f"{digits(float(before[0, 0]))} and {digits(float(before[1, 1]))}, covariance "
        f"{digits(float(before[0, 1]))}. After: "
        f"variances {digits(float(after[0, 0]))} and {digits(float(after[1, 1]))}, "
        "covariance below 1e-10: "
        f"{bool(after[0, 1].abs() < 1e-10)}. The samples move by {digits(float(moved))} "
        "(root mean square)."
    )


# ---- Sections 2.3 - 2.6


def draw_gain(eps: float) -> Figure:
    """What Eq. 35 and damping make of an eigenvalue."""
    lam = torch.logspace(-4, 1.3, 300, dtype=torch.float64)
    drawing, (panel,) = figure(4.2)
    for gain, text, color, line in (
        (1 / lam, r"exact, $1/\lambda$", BLUE, "-"),
        (1 / (lam + eps), r"damping, $1/(\lambda+\epsilon)$", ORANGE, "-."),
        (lam / (lam.square() + eps), r"Eq. 35, $\lambda/(\lambda^2+\epsilon)$", GREEN, "--"),
    ):
        panel.loglog(lam, gain, line, color=color, linewidth=2.2, label=text)
    for value in torch.linalg.eigvalsh(problems.example().fisher()).tolist():
        panel.axvline(value, color="0.6", linewidth=1)
    panel.axvline(
        math.sqrt(eps),
        color=VERMILLION,
        linestyle=":",
        linewidth=2,
        label=r"$\lambda=\sqrt{\epsilon}$",
    )
    panel.set(ylim=(1e-4, 1e5), xlim=(1e-4, 20))
    label(
        panel,
        "Gain of the regularized inverse",
        r"eigenvalue $\lambda$ of the metric",
        "",
        legend="upper right",
    )
    return drawing


def describe_gain(eps: float) -> str:
    """The gains of the two eigenvalues of the example."""
    low, high = torch.linalg.eigvalsh(problems.example().fisher()).tolist()
    return (
        f"At ε = {eps:g} the small eigenvalue {digits(low)} of the example gets gain "
        f"{digits(low / (low**2 + eps))} from "
        f"Eq. 35 and {digits(1 / (low + eps))} from damping, where the exact inverse has "
        f"{digits(1 / low)}. The large "
        f"eigenvalue {digits(high)} gets {digits(high / (high**2 + eps))}, "
        f"{digits(1 / (high + eps))} and "
        f"{digits(1 / high)}. Eq. 35 gives no eigenvalue more than "
        f"{digits(1 / (2 * math.sqrt(eps)))}."
    )


@cache
def _boltzmann() -> experiments.Results:
    return experiments.load("whitening_boltzmann")


def _log_curves(units: str, rule: str) -> dict[str, np.ndarray]:
    records = _boltzmann().select(units=units, rule=rule)
    return {
        name: np.log10(np.maximum([r["curves"][name] for r in records], 1e-3)) for name in METRICS
    }


def draw_boltzmann(units: str, rule: str) -> Figure:
    """Learning curves on 20 Boltzmann machines, mean of the logarithm with 95 % interval."""
    drawing, (panel,) = figure(5.6)
    times = np.array(TIMES) + 1
    for name, curves in _log_curves(units, rule).items():
        text, color = METRICS[name]
        mean, half = curves.mean(0), 2.09 * curves.std(0, ddof=1) / math.sqrt(len(curves))
        panel.fill_between(
            times, 10 ** (mean - half), 10 ** (mean + half), color=color, alpha=0.15, linewidth=0
        )
        panel.loglog(times, 10**mean, color=color, linewidth=2, label=text)
    panel.set(ylim=(8e-4, 20), xlim=(1, 1001))
    label(panel, f"{UNITS[units]}, {RULES[rule]}", "1 + number of steps", "KL (first = 1)")
    drawing.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_boltzmann(units: str, rule: str) -> str:
    """Median speed-ups with the range of the problems."""
    records = _boltzmann().select(units=units, rule=rule)
    parts = [
        (
            f"{METRICS[name][0]} {digits(float(np.median(speed)))} "
            f"({digits(float(speed.min()))} to {digits(float(speed.max()))})"
        )
        for name in METRICS
        if name != "plain"
        for speed in [records.values(f"speedup_{name}")]
    ]
    return (
        f"{len(records)} Boltzmann machines, {UNITS[units]}, trained by {RULES[rule]}. "
        "Times fewer steps than steepest "
        f"descent, median and range: {'; '.join(parts)}. Bands are 95 % intervals of the "
        "mean logarithm."
    )


# ---- Sections 1.3, 2


@cache
def _digit_covariance() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    images, _ = mnist(split="all", dtype=torch.float64)
    x = images.flatten(1)
    mean = x.mean(0)
    return x[:6], mean, (x - mean).mT @ (x - mean) / len(x)


@cache
def _digit_whitening(kind: str, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return six whitened digits and the eigenvalues of the covariance after whitening,
    descending.
    """
    x, mean, cov = _digit_covariance()
    W = whitening_matrix(cov, kind, eps)
    after = torch.linalg.eigvalsh(W @ cov @ W.mT).flip(0)
    return (x - mean) @ W.mT, after


def draw_digits(kind: str, eps: float) -> Figure:
    """Six digits before and after whitening, and the spectra."""
    x, _, cov = _digit_covariance()
    y, after = _digit_whitening(kind, eps)
    drawing, _ = figure(5.6)
    drawing.clear()
    top, bottom = drawing.subfigures(2, 1, height_ratios=[1, 1.35])
    panels = top.subplots(2, 6).ravel()
    images = [*x.reshape(-1, 28, 28), *y.reshape(-1, 28, 28)]
    for panel, image in zip(panels, images, strict=True):
        scale = float(image.abs().quantile(0.995))
        pictures([panel], [image], [""], vmin=0 if image.min() >= 0 else -scale, vmax=scale)
    before = torch.linalg.eigvalsh(cov).flip(0).clamp_min(1e-9)
    panel = bottom.subplots()
    panel.semilogy(before, color=VERMILLION, linewidth=2, label="before")
    panel.semilogy(after.clamp_min(1e-9), color=BLUE, linewidth=2, label="after")
    panel.axhline(eps, color="0.5", linestyle=":", label=f"ε = {eps:g}")
    panel.set(ylim=(1e-9, 1e2), xlim=(0, 784))
    panel.tick_params(labelsize=FONT["tick"])
    panel.spines[["top", "right"]].set_visible(False)
    label(panel, "Eigenvalues of the covariance", "rank", "", legend="upper right")
    return drawing


def describe_digits(kind: str, eps: float) -> str:
    """Condition before, eigenvalues after."""
    _, _, cov = _digit_covariance()
    after = _digit_whitening(kind, eps)[1]
    before = torch.linalg.eigvalsh(cov)
    return (
        f"Six MNIST digits above, {kind}-whitened with ε = {eps:g} below them, and the "
        "spectra of all 5000. Before, "
        f"{int((before > eps).sum())} of 784 eigenvalues exceed ε and the largest is "
        f"{digits(float(before[-1]))}. After, "
        f"{int((after > 0.5).sum())} lie between 0.5 and 1 and {int((after < 1e-6).sum())} "
        "stay at 0."
    )


COORDINATES = {
    "rescaled": "pixels rescaled\nat random",
    "plain": "raw pixels",
    "whitened": "whitened",
    "standardized": "standardized",
    "fisher": "natural gradient",
}


def _coordinate_steps() -> tuple[dict[str, list[int]], int]:
    """Return the steps of every sample by coordinates, those that did not arrive at the limit, and
    the limit.
    """
    results = experiments.load("whitening_coordinates")
    limit = results.records[0].settings["steps"]
    return {
        name: [record["steps"][name] or limit for record in results] for name in COORDINATES
    }, limit


def draw_coordinates() -> Figure:
    """Steps of logistic regression, 3 against 5, in several coordinates: one dot for each sample of
    digits.
    """
    drawing, (panel,) = figure(3.4)
    steps, limit = _coordinate_steps()
    for row, (name, values) in enumerate(steps.items()):
        color = BLUE if name == "fisher" else VERMILLION
        spread = np.linspace(-0.22, 0.22, len(values))
        panel.semilogx(sorted(values), row + spread, "o", color=color, markersize=6, alpha=0.8)
        panel.plot([np.median(values)] * 2, [row - 0.38, row + 0.38], color=BLACK, linewidth=2)
    panel.axvline(limit, color="0.6", linestyle=":")
    panel.set_yticks(range(len(steps)), list(COORDINATES.values()), fontsize=FONT["tick"])
    panel.set_xlim(1, 2 * limit)
    panel.invert_yaxis()
    label(panel, "3 against 5", "steps to 1 % of the first excess loss")
    return drawing


def describe_coordinates() -> str:
    """Median steps to one per cent."""
    steps, limit = _coordinate_steps()
    parts = []
    for name, values in steps.items():
        middle = float(np.median(values))
        parts.append(
            f"{COORDINATES[name].replace(chr(10), ' ')} "
            f"{'more than ' if middle >= limit else ''}{digits(int(middle))}"
        )
    return (
        f"Steps to 1 % of the first excess loss, one dot for each of {len(steps['plain'])} "
        "samples of digits; "
        f"medians: {', '.join(parts)}. Dots on the dotted line did not arrive."
    )


# ---- Sections 2.7 - 2.10


@cache
def _separated(
    condition: float, rule: str, steps: int = 100
) -> tuple[torch.Tensor, torch.Tensor, float, float]:
    """Return three mixed and three recovered photographs, the Amari error, and the step size (best
    of the grid).
    """
    images = problems.photographs(48)
    sources = problems.differences(images)
    scale = sources.std(1, keepdim=True)
    A = problems.mixing(3, condition, torch.Generator().manual_seed(0))
    mixed = A @ (sources / scale)
    problem = problems.separation(mixed, -math.inf)
    rates = [rate for rate in RATES if 0.01 <= rate <= 2]
    best = (math.inf, 0.0, torch.eye(3, dtype=mixed.dtype))
    for rate in rates:
        W = _unmix(problem, rate, steps, rule == "Eq. 43")
        cost = float(problem.loss(W.reshape(1, 9))[0]) if bool(W.isfinite().all()) else math.inf
        best = min(best, (cost, rate, W), key=lambda item: item[0])
    W = best[2]
    shown = (images.flatten(1) - images.flatten(1).mean(1, keepdim=True)) / scale
    through = W @ A
    signs = through.gather(
        1, through.abs().argmax(1, keepdim=True)
    ).sign()  # the sign of an output is free
    return A @ shown, signs * (through @ shown), problems.amari_error(through), best[1]


def _unmix(problem, rate: float, steps: int, relative: bool) -> torch.Tensor:
    W = torch.eye(3, dtype=problem.start.dtype)
    for _ in range(steps):
        g = problem.gradient(W.reshape(1, 9)).reshape(3, 3)
        W = W - rate * (g @ W.mT @ W if relative else g)
        if not bool((W.abs() < 1e6).all()):
            return torch.full_like(W, torch.nan)
    return W


def draw_separation(condition: float, rule: str) -> Figure:
    """Three mixtures above, three recovered photographs below."""
    mixed, recovered, _, _ = _separated(condition, rule)
    drawing, panels = figure(4.2, 2, 3)
    titles = [*("mixture 1", "mixture 2", "mixture 3"), *("output 1", "output 2", "output 3")]
    for panel, image, title in zip(panels, [*mixed, *recovered], titles, strict=True):
        low, high = float(image.quantile(0.01)), float(image.quantile(0.99))
        pictures([panel], [image.reshape(48, 48)], [title], vmin=low, vmax=high)
    return drawing


def describe_separation(condition: float, rule: str) -> str:
    """How well the sources are separated."""
    _, _, error, rate = _separated(condition, rule)
    return (
        f"Three photographs mixed by a matrix of condition number {condition:g}, and what "
        f"100 steps of the {rule} rule "
        f"(step size {digits(rate)}, the best of the grid) make of the mixtures. Amari "
        f"error {digits(error)}: 0 is perfect "
        f"separation. Order and sign of the outputs are free; the signs here are set to match."
    )


GUESSES = {
    "exact": "exact inverse",
    "noise_001": "1 % noise",
    "noise_01": "10 % noise",
    "noise_03": "30 % noise",
    "noise_1": "100 % noise",
    "samples_80": "from 80 samples",
    "samples_16": "from 16 samples",
    "diagonal": "diagonal only",
    "random": "random matrix",
}


def _guess_speedups() -> dict[str, np.ndarray]:
    results = experiments.load("whitening_wrong_metric")
    return {name: results.values(f"speedup_{name}").ravel() for name in GUESSES}


def draw_guesses() -> Figure:
    """Speed-up over steepest descent for good and bad guesses of the metric."""
    drawing, (panel,) = figure(4.8)
    values = _guess_speedups()
    boxes = panel.boxplot(
        choose(values, list(GUESSES)),
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        patch_artist=True,
        tick_labels=list(GUESSES.values()),
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
    values = _guess_speedups()
    parts = [
        f"{GUESSES[name]} {digits(float(np.median(v)))} ({100 * (v < 1).mean():.0f} % worse)"
        for name, v in values.items()
    ]
    return (
        f"{len(values['exact'])} random quadratics of 8 dimensions and condition number "
        "1000. Median speed-up, and share of "
        f"problems that became slower: {'; '.join(parts)}. Boxes hold the middle half, "
        "whiskers 90 %."
    )
