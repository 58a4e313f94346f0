"""The figures of the Boltzmann chapter."""

from functools import cache

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from natcompanion import boltzmann
from natcompanion.boltzmann import FRACTIONS, RBM, THRESHOLDS
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import Interval, Result, Results, interval
from natcompanion.chapters.experiments.boltzmann import CELLS
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

CAPS = {"at most 0.5": 0.5, "at most 1": 1.0}
GRID = {"v": list(THRESHOLDS), "p": list(FRACTIONS), "gamma": list(CAPS)}
RULES = {"as printed": "printed", "true gradient": "exact", "natural, 2C": "natural"}
HELD = {"gamma": [0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0], "penalty": list(RULES)}
FORMS = {
    "form": ["Fisher matrix", "inverse", "Cholesky factor", "whitening matrix"],
    "scale": [0.0, 0.5, 1.0, 2.0],
}

METHODS = {
    "sgd": ("SGD", VERMILLION),
    "centred": ("centred", GREEN),
    "diagonal": ("diagonal Fisher", PURPLE),
    "whitened": ("whitened, exact", ORANGE),
    "easi": ("whitened, learned", SKY),
    "prong": ("whitened every 50 steps", "#999999"),
    "natural": ("natural gradient", BLUE),
}
PENALTIES = {
    "sgd": "SGD",
    "weight_decay": "weight decay",
    "exact_penalty": "exact penalty",
    "natural_penalty": "natural penalty, -2C",
    "paper": "the paper's scheme",
    "decorrelation": "decorrelated hidden units",
}
TERMS = {
    "v,v": SKY,
    "h,h": GREEN,
    "v,h": BLACK,
    "v,vh": ORANGE,
    "h,vh": PURPLE,
    "vh,vh": VERMILLION,
}

# ---- Figures 2 and 3


@cache
def thresholds(rule: str = "printed", **settings: object) -> Results:
    """Return the stored grids of one reading of the scheme; without settings the paper's, on binary
    digits.
    """
    usual = {
        "states": False,
        "additive": False,
        "grey": False,
        "gamma": 0.01,
        "cap": 1.0,
        "classifier": "label units",
    }
    return experiments.load("boltzmann_thresholds", "paper").select(
        rule=rule, **{**usual, **settings}
    )


def seed_zero(rule: str, **settings: object) -> Result:
    """Return the grid of seed 0."""
    return thresholds(rule, **settings).select(seed=0).records[0]


def draw_thresholds(v: float, p: float, gamma: str) -> Figure:
    """Gamma, the covariance norm, the errors and the filters of one cell, beside plain SGD."""
    cell = CELLS.index((v, p))
    return _draw_cell(thresholds(cap=CAPS[gamma]), cell, thresholds("none"), cell)


def describe_thresholds(v: float, p: float, gamma: str) -> str:
    """Gamma, errors and norms at the end, beside plain SGD."""
    cell = CELLS.index((v, p))
    told = _describe_cell(thresholds(cap=CAPS[gamma]), cell, thresholds("none"), cell)
    return f"Threshold {v:g}, fraction {p:g}, γ {gamma}: {told}"


@cache
def held(rule: str, classifier: str = "label units") -> Results:
    """Return the stored runs with a fixed gamma."""
    return experiments.load("boltzmann_held", "paper").select(rule=rule, classifier=classifier)


def final_norms(rule: str) -> np.ndarray:
    """Return the squared norm of cov(v, h) after training at each fixed gamma, (gammas, seeds)."""
    return np.array([[curve[-1] for curve in record["norm"]] for record in held(rule)]).T


def draw_held(gamma: float, penalty: str) -> Figure:
    """The same panels at a fixed gamma; gamma = 0 is plain SGD."""
    runs = held(RULES[penalty])
    return _draw_cell(runs, runs.records[0]["gammas"].index(gamma), runs, 0)


def describe_held(gamma: float, penalty: str) -> str:
    """Errors and norms at the end, beside gamma = 0."""
    runs = held(RULES[penalty])
    told = _describe_cell(runs, runs.records[0]["gammas"].index(gamma), runs, 0)
    return f"γ held at {gamma:g}, penalty {penalty}: {told}"


def _curves(runs: Results, key: str, cell: int) -> np.ndarray:
    """Return one curve of one cell for every seed, seed 0 first, (seeds, epochs)."""
    return np.array([record[key][cell] for record in sorted(runs, key=lambda record: record.seed)])


def _draw_cell(runs: Results, cell: int, plain: Results, plain_cell: int) -> Figure:
    drawing = Figure(figsize=(5.4, 6.6), facecolor="white")
    drawing.subplots_adjust(0.15, 0.05, 0.97, 0.95, hspace=0.55)
    grid = drawing.add_gridspec(3, 1, height_ratios=[1, 1, 0.85])
    top, middle, bottom = (drawing.add_subplot(grid[i]) for i in range(3))
    for panel in (top, middle):
        panel.tick_params(labelsize=FONT["tick"])
        panel.spines[["top", "right"]].set_visible(False)
    _both(top, "gamma", "γ", BLUE, (runs, cell), None)
    _both(top, "norm", "‖cov(v, h)‖²", ORANGE, (runs, cell), (plain, plain_cell))
    top.set(ylim=(5e-6, 50), xlim=(0, 100), yscale="log")
    top.set_yticks([1e-5, 1e-3, 0.1, 10], ["0.00001", "0.001", "0.1", "10"], minor=False)
    top.minorticks_off()
    label(top, "Weight of the penalty, and the covariance")
    top.legend(
        fontsize=10, frameon=False, loc="upper right", ncols=3, columnspacing=1, handlelength=1.5
    )
    for key, color, text in (("train_error", BLACK, "train"), ("test_error", VERMILLION, "test")):
        _both(middle, key, text, color, (runs, cell), (plain, plain_cell), 100)
    middle.set(ylim=(0, 100), xlim=(0, 100))
    label(middle, "Error in % over 100 epochs")
    middle.legend(fontsize=10, frameon=False, loc="upper right", ncols=2)
    record = runs.select(seed=0).records[0]
    bottom.imshow(
        mosaic(record["filters"][cell]), cmap="gray", vmin=-99, vmax=99, interpolation="nearest"
    )
    bottom.set_axis_off()
    reach = record["filter_scale"][cell]
    label(bottom, f"The ten filters, grey from -{reach:.2g} to {reach:.2g}")
    return drawing


def _both(
    panel: Axes,
    key: str,
    text: str,
    color: str,
    ours: tuple[Results, int],
    plain: tuple[Results, int] | None,
    scale: float = 1,
) -> None:
    """Draw seed 0 as a line and the range of the seeds as a band; plain SGD, seed 0, dotted."""
    curves, epochs = (
        scale * np.maximum(_curves(ours[0], key, ours[1]), 1e-5),
        ours[0].records[0]["epochs"],
    )
    panel.fill_between(epochs, curves.min(0), curves.max(0), color=color, alpha=0.2, linewidth=0)
    panel.plot(epochs, curves[0], color=color, linewidth=2, label=text)
    if plain:
        dotted = scale * np.maximum(_curves(plain[0], key, plain[1])[0], 1e-5)
        panel.plot(
            plain[0].records[0]["epochs"],
            dotted,
            ":",
            color=color,
            linewidth=2,
            label=f"{text}, plain SGD",
        )


def _describe_cell(runs: Results, cell: int, plain: Results, plain_cell: int) -> str:
    def at_end(key: str, scale: float = 1) -> str:
        ours, others = (
            scale * _curves(runs, key, cell)[:, -1],
            scale * _curves(plain, key, plain_cell)[:, -1],
        )
        return f"{digits(float(ours.mean()))} (plain SGD {digits(float(others.mean()))})"

    gamma = float(_curves(runs, "gamma", cell)[0, -1])
    return (
        f"after 100 epochs γ is {digits(gamma)}. Means of {len(runs)} seeds: test error in "
        f"% {at_end('test_error', 100)}, "
        f"training error {at_end('train_error', 100)}, squared norm of cov(v, h) {at_end('norm')}."
    )


def mosaic(filters: list) -> np.ndarray:
    """Return the columns of W as small images in two rows, with white gaps."""
    W = np.array(filters, dtype=float)
    side, hidden = int(np.sqrt(len(W))), W.shape[1]
    rows = []
    for start in range(0, hidden, 5):
        images = [
            np.pad(W[:, j].reshape(side, side), 1, constant_values=99)
            for j in range(start, min(start + 5, hidden))
        ]
        rows.append(np.concatenate(images, 1))
    return np.concatenate(rows, 0)


GRIDS = {
    "The paper's scheme": ("printed", {}),
    "γ at most 0.5": ("printed", {"cap": 0.5}),
    "True gradient": ("exact", {}),
    "Plain SGD in every cell": ("none", {}),
}
READINGS = {
    "as printed": ("printed", {}),
    "γ at most 0.5": ("printed", {"cap": 0.5}),
    "product rule put right": ("product", {}),
    "binary states for the moments": ("printed", {"states": True}),
    "likelihood keeps weight 1": ("printed", {"additive": True}),
    "true gradient": ("exact", {}),
    "placebo: plain SGD": ("none", {}),
}


def draw_grid() -> Figure:
    """Figure 2: the final test error of all 35 cells, beside 35 plain SGD runs."""
    drawing, panels = figure(10.6, len(GRIDS))
    for panel, (title, (rule, settings)) in zip(panels, GRIDS.items(), strict=True):
        mean = 100 * thresholds(rule, **settings).values("final_test").mean(0).reshape(
            len(THRESHOLDS), len(FRACTIONS)
        )
        panel.imshow(mean, cmap="viridis", vmin=25, vmax=90, aspect="auto")
        for (i, j), value in np.ndenumerate(mean):
            color = "white" if value < 60 else "black"
            panel.text(
                j, i, f"{value:.0f}", ha="center", va="center", color=color, fontsize=FONT["tick"]
            )
        panel.set_xticks(range(len(FRACTIONS)), [f"{p:g}" for p in FRACTIONS])
        panel.set_yticks(range(len(THRESHOLDS)), [f"{v:g}" for v in THRESHOLDS])
        label(panel, title, "fraction p" if panel is panels[-1] else "", "threshold v")
    return drawing


def best_middle_worst(
    rule: str, key: str = "final_test", **settings: object
) -> tuple[float, float, float]:
    """Return the best, the median and the worst error of the 35 cells in %, each the mean over the
    seeds.
    """
    errors = 100 * thresholds(rule, **settings).values(key)
    return (
        float(errors.min(1).mean()),
        float(np.median(errors, 1).mean()),
        float(errors.max(1).mean()),
    )


def describe_grid() -> str:
    """Best, median and worst of the cells of each grid."""
    parts = []
    for title, (rule, settings) in GRIDS.items():
        best, middle, worst = map(digits, best_middle_worst(rule, **settings))
        parts.append(
            f"{title} ({len(thresholds(rule, **settings))} seeds): best {best}, median "
            f"{middle}, worst {worst}"
        )
    return f"Final test error in % over the 35 cells, mean over the seeds. {'; '.join(parts)}."


def draw_stopping() -> Figure:
    """Errors and sparsity of all cells against the epochs that the likelihood was given."""
    drawing, (left, right) = figure(3.6, 1, 2)
    for rule, color, text in (
        ("none", BLACK, "plain SGD"),
        ("printed", BLUE, "the paper's scheme"),
    ):
        results = thresholds(rule)
        kept = np.maximum(results.values("kept_epochs").ravel(), 1)
        left.semilogx(
            kept,
            100 * results.values("final_test").ravel(),
            ".",
            color=color,
            label=text,
            alpha=0.6,
        )
        right.semilogx(kept, results.values("hoyer").ravel(), ".", color=color, alpha=0.6)
    curve = np.array(seed_zero("none")["test_error"]).mean(0)
    left.semilogx(
        np.maximum(seed_zero("none")["epochs"], 1),
        100 * curve,
        color=VERMILLION,
        label="SGD while it learns",
    )
    left.legend(fontsize=9, frameon=False, loc="lower left")
    label(left, "test error in %", "Σ(1 - γ), epochs")
    label(right, "Hoyer sparsity of W", "Σ(1 - γ), epochs")
    return drawing


def describe_stopping() -> str:
    """How sparse the engaged cells are."""
    results = thresholds()
    kept, hoyer = results.values("kept_epochs").ravel(), results.values("hoyer").ravel()
    engaged = kept < 90
    return (
        f"{int(engaged.sum())} of {len(kept)} cells lost more than 10 of their 100 epochs "
        "to the penalty. Their mean Hoyer sparsity is "
        f"{digits(float(hoyer[engaged].mean()))}, that of the others "
        f"{digits(float(hoyer[~engaged].mean()))} and that of plain SGD "
        f"{digits(float(thresholds('none').values('hoyer').mean()))}. Dead hidden units: "
        f"{int(results.values('dead_units').sum())}."
    )


# ---- Figure 1


@cache
def small_machine(scale: float) -> RBM:
    """Return a machine of five visible and three hidden units whose weights have this size."""
    generator = torch.Generator().manual_seed(4)
    return (
        RBM.random(5, 3, scale=1.0, bias_scale=0.5, generator=generator)
        if scale == 1
        else _scaled(scale)
    )


def _scaled(scale: float) -> RBM:
    rbm = small_machine(1.0)
    return RBM(scale * rbm.W, rbm.a, rbm.b)


def _form(form: str, scale: float) -> torch.Tensor:
    forms = boltzmann.fisher_forms(small_machine(scale).fisher())
    return dict(zip(FORMS["form"], forms[:2] + forms[2:], strict=True))[form]


def draw_forms(form: str, scale: float) -> Figure:
    """Figure 1: the Fisher matrix of a small machine, its inverse, its Cholesky factor and its
    inverse root.
    """
    M = _form(form, scale)
    drawing = Figure(figsize=(5.4, 4.6), facecolor="white")
    panel, bar = (
        drawing.add_axes((0.08, 0.08, 0.74, 0.83)),
        drawing.add_axes((0.86, 0.12, 0.03, 0.75)),
    )
    reach = float(M.abs().max())
    image = panel.imshow(M.numpy(), cmap="RdBu", vmin=-reach, vmax=reach, interpolation="nearest")
    drawing.colorbar(image, cax=bar)
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
    M = _form(form, scale)
    return (
        f"{form} of a machine with 5 visible and 3 hidden units (23 parameters), weights "
        f"times {scale:g}: largest entry "
        f"{digits(float(M.abs().max()))}, condition number "
        f"{digits(float(torch.linalg.cond(M)))}, entries below 1e-12: "
        f"{int((M.abs() < 1e-12).sum())} of 529."
    )


def draw_live_forms(scale: float, bias: float) -> Figure:
    """The eigenvalues of the Fisher matrix of the same machine with any size of weights and
    biases.
    """
    G = _live_machine(scale, bias).fisher()
    drawing, (panel,) = figure(3.6)
    panel.semilogy(torch.linalg.eigvalsh(G).flip(0).clamp_min(1e-12).numpy(), "o-", color=BLUE)
    panel.axhline(0.25, color="0.5", linestyle=":", label="largest variance of a 0/1 statistic")
    panel.set(ylim=(1e-9, 10))
    label(panel, "Eigenvalues of the Fisher matrix", "rank", "", legend="lower left")
    return drawing


def describe_live_forms(scale: float, bias: float) -> str:
    """Largest and smallest eigenvalue and the squared norm."""
    G = _live_machine(scale, bias).fisher()
    values = torch.linalg.eigvalsh(G)
    return (
        f"Weights times {scale:.2g}, biases times {bias:.2g}: eigenvalues from "
        f"{digits(float(values[0]))} to "
        f"{digits(float(values[-1]))}, squared norm {digits(float(G.square().sum()))}, "
        "squared distance from the identity "
        f"{digits(float((G - torch.eye(23)).square().sum()))}."
    )


def _live_machine(scale: float, bias: float) -> RBM:
    rbm = small_machine(1.0)
    return RBM(scale * rbm.W, bias * rbm.a, bias * rbm.b)


# ---- learning


@cache
def learning(method: str, lr: float | None = None) -> Results:
    """Return the stored runs of one method at its step size; the natural gradient at 1 if none is
    given.

    The search on two other starts chose 1.5 for it, at which one of the ten starts diverges.
    """
    lr = 1.0 if method == "natural" and lr is None else lr
    return experiments.load("boltzmann_learning", "paper").select(
        method=method, **({} if lr is None else {"lr": lr})
    )


def _band(panel: Axes, x: np.ndarray, curves: np.ndarray, color: str, text: str) -> None:
    panel.fill_between(x, curves.min(0), curves.max(0), color=color, alpha=0.2, linewidth=0)
    panel.semilogx(x, np.median(curves, 0), color=color, linewidth=2, label=text)


def padded(results: Results, key: str) -> np.ndarray:
    """Return a curve of every record, (records, length); one that ended early, by divergence, keeps
    its last value.
    """
    curves = [record[key] for record in sorted(results, key=lambda record: record.seed)]
    length = max(map(len, curves))
    return np.array([curve + [curve[-1]] * (length - len(curve)) for curve in curves])


def draw_learning() -> Figure:
    """Exact log-likelihood against steps and against seconds, median and range of the starts."""
    drawing, (top, bottom) = figure(7.2, 2)
    for method, (text, color) in METHODS.items():
        results = learning(method)
        curves = padded(results, "log_likelihood")
        steps = max((record["steps"] for record in results), key=len)
        _band(top, np.array(steps) + 1, curves, color, text)
        _band(bottom, np.maximum(np.median(padded(results, "clock"), 0), 1e-2), curves, color, text)
    for panel, unit in ((top, "1 + number of steps"), (bottom, "seconds of processor time")):
        panel.set(ylim=(-14.5, -11.4))
        label(
            panel,
            "Mean log-likelihood of 3,000 binary digits" if panel is top else "",
            unit,
            "nats",
        )
    drawing.legend(
        *top.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def steps_to_target(method: str) -> np.ndarray:
    """Return the steps to the target of every start; NaN where it was not reached."""
    return np.array(
        [
            np.nan if r["steps_to_target"] is None else r["steps_to_target"]
            for r in learning(method)
        ],
        float,
    )


def describe_learning() -> str:
    """Median steps to the target."""
    parts = []
    for method, (text, _) in METHODS.items():
        steps = steps_to_target(method)
        limit = learning(method).records[0].settings["steps"]
        middle = np.nanmedian(np.where(np.isnan(steps), np.inf, steps))
        parts.append(
            f"{text} {digits(int(middle)) if np.isfinite(middle) else f'more than {limit}'}"
        )
    target = learning("sgd").records[0].settings["target"]
    return (
        f"Median steps to {target:g} nats over {len(learning('sgd'))} random starts: "
        f"{', '.join(parts)}. Bands are ranges."
    )


# ---- geometry


@cache
def stored(name: str) -> Results:
    """Return the stored paper-scale results of one experiment."""
    return experiments.load(name, "paper")


def term_shares() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the steps, and the mean share of each term of the squared norm of G at each step."""
    results = stored("boltzmann_geometry")
    steps = np.array(results.records[0]["step"])
    totals = {
        name: np.array([[row[name] for row in record["terms"]] for record in results])
        for name in TERMS
    }
    whole = sum(totals.values())
    return steps, {name: (total / whole).mean(0) for name, total in totals.items()}


def draw_terms() -> Figure:
    """Shares of the six terms along exact SGD."""
    drawing, (panel,) = figure(4.2)
    steps, shares = term_shares()
    for name, color in TERMS.items():
        panel.semilogx(
            steps + 1,
            100 * shares[name],
            "o-",
            color=color,
            linewidth=2,
            markersize=4,
            label=f"({name})",
        )
    panel.set(ylim=(0, 100))
    label(panel, "Share of each term in ‖G‖², in %", "1 + number of SGD steps")
    panel.legend(fontsize=FONT["legend"], frameon=False, ncols=3, loc="upper right")
    return drawing


def describe_terms() -> str:
    """Shares at the start and at the end."""
    steps, shares = term_shares()
    text = ", ".join(
        f"({name}) {digits(float(100 * s[0]))} then {digits(float(100 * s[-1]))}"
        for name, s in shares.items()
    )
    return (
        "Share in % of each term of the squared norm of G, with its count, at the start and "
        f"after {steps[-1]} steps: {text}."
    )


def draw_assumption() -> Figure:
    """What descent on the first three terms does to the last three and to the likelihood."""
    drawing, (left, right) = figure(3.7, 1, 2)
    results = stored("boltzmann_assumption")
    for name, color, text in (
        ("first_three", BLACK, "all three"),
        ("vv", SKY, "cov(v, v)"),
        ("hh", GREEN, "cov(h, h)"),
        ("vh", VERMILLION, "cov(v, h)"),
    ):
        last = np.array([record[name]["last"] for record in results])
        likelihood = np.array([record[name]["log_likelihood"] for record in results])
        x = np.linspace(0, results.records[0].settings["steps"], last.shape[1])
        left.plot(x, (last / last[:, :1]).mean(0), color=color, linewidth=2, label=text)
        right.plot(x, likelihood.mean(0), color=color, linewidth=2)
    left.legend(fontsize=9, frameon=False)
    left.set(yscale="log")
    label(left, "last three terms", "steps of descent")
    label(right, "log-likelihood, nats", "steps of descent")
    return drawing


def describe_assumption() -> str:
    """Ratios at the end."""
    results = stored("boltzmann_assumption")
    parts = [
        f"{text}: last three terms times "
        f"{digits(float(results.values(f'ratio_last_{name}').mean()))}, log-likelihood "
        f"{digits(float(results.values(f'gain_likelihood_{name}').mean()))}"
        for name, text in (
            ("first_three", "all three"),
            ("vv", "cov(v, v)"),
            ("hh", "cov(h, h)"),
            ("vh", "cov(v, h)"),
        )
    ]
    return (
        f"After {results.records[0].settings['steps']} steps of descent on the squared norm of "
        f"{'; '.join(parts)} nats."
    )


# ---- the proxy


def proxy(states: bool = False, frozen: bool = False) -> Results:
    """Return the stored comparison of the paper's matrix with the true gradient."""
    return stored("boltzmann_proxy").select(states=states, frozen=frozen)


def draw_proxy() -> Figure:
    """Cosines over the epochs of CD-1 training."""
    drawing, (panel,) = figure(4.6)
    results = proxy()
    for key, color, text in (
        ("covariance_to_gradient", GREEN, "C itself, to the true gradient"),
        ("printed_to_gradient", VERMILLION, "the paper's matrix, to the true gradient"),
        ("printed_to_covariance", BLUE, "the paper's matrix, to C"),
    ):
        curves = results.values(key)
        x = np.arange(1, curves.shape[1] + 1)
        panel.fill_between(x, curves.min(0), curves.max(0), color=color, alpha=0.2, linewidth=0)
        panel.plot(x, curves.mean(0), color=color, linewidth=2, label=text)
    panel.axhline(0, color="0.6", linewidth=1)
    panel.set(ylim=(-1, 1.05))
    label(panel, "Cosine over training", "epoch of CD-1")
    drawing.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_proxy() -> str:
    """Means over training."""
    results = proxy()
    keys = ("covariance_to_gradient", "printed_to_gradient", "printed_to_covariance")
    a, b, c = (results.mean(f"mean_{key}") for key in keys)
    return (
        f"Mean cosine over {results.records[0].settings['epochs']} epochs and "
        f"{len(results)} starts: C to the true gradient of its "
        f"squared norm {digits(a.mean)}; the paper's matrix to the true gradient "
        f"{digits(b.mean)}, to C {digits(c.mean)}. "
        "Bands are ranges over the starts."
    )


# ---- does it help?


def gains(method: str) -> Interval:
    """Return the interval of the test error of SGD minus that of the method, in percentage
    points.
    """
    return interval(100 * stored("boltzmann_heldout").values(f"gain.{method}"))


def draw_heldout() -> Figure:
    """Paired gains over SGD with 95 % intervals."""
    drawing, (panel,) = figure(3.4)
    for row, method in enumerate(list(PENALTIES)[:0:-1]):
        found = gains(method)
        each = 100 * stored("boltzmann_heldout").values(f"gain.{method}")
        panel.plot(each, np.full(len(each), row) + 0.18, ".", color="0.6", markersize=5)
        panel.plot([found.low, found.high], [row, row], color=BLUE, linewidth=3)
        panel.plot(found.mean, row, "o", color=BLUE)
    panel.axvline(0, color=BLACK, linewidth=1)
    panel.set_yticks(range(len(PENALTIES) - 1), list(PENALTIES.values())[:0:-1])
    label(panel, "Points of test error gained over SGD", "percentage points")
    return drawing


def describe_heldout() -> str:
    """Gains with intervals."""
    parts = []
    for method in list(PENALTIES)[1:]:
        found = gains(method)
        parts.append(
            f"{PENALTIES[method]} {digits(found.mean)} ({digits(found.low)} to "
            f"{digits(found.high)})"
        )
    n = len(stored("boltzmann_heldout"))
    return (
        "Percentage points of test error gained over the best SGD, mean and 95 % interval over "
        f"{n} splits: {'; '.join(parts)}."
    )


# ---- whitening

COSINES = {
    "sgd": METHODS["sgd"],
    "centred": METHODS["centred"],
    "diagonal": METHODS["diagonal"],
    "whitened": METHODS["whitened"],
    "easi": METHODS["easi"],
    "prong": METHODS["prong"],
}


def draw_cosines() -> Figure:
    """Angles to the natural gradient along exact SGD."""
    drawing, (panel,) = figure(4.6)
    results = stored("boltzmann_geometry")
    steps = np.array(results.records[0]["step"]) + 1
    for name, (text, color) in COSINES.items():
        curves = np.array([[row[name] for row in record["cosine"]] for record in results])
        panel.fill_between(
            steps, curves.min(0), curves.max(0), color=color, alpha=0.15, linewidth=0
        )
        panel.semilogx(
            steps, curves.mean(0), "o-", color=color, linewidth=2, markersize=4, label=text
        )
    panel.set(ylim=(0, 1.02))
    label(panel, "Cosine to the natural gradient", "1 + number of SGD steps")
    drawing.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_cosines() -> str:
    """Mean cosines over the path, at the start and at the end."""
    results = stored("boltzmann_geometry")
    parts = [
        f"{text} {digits(float(results.values(f'first_cosine.{name}').mean()))} then "
        f"{digits(float(results.values(f'last_cosine.{name}').mean()))}"
        for name, (text, _) in COSINES.items()
    ]
    return (
        "Cosine (in the Fisher metric) to the natural gradient at the first and the last point "
        f"of the path: {'; '.join(parts)}."
    )


def draw_projections() -> Figure:
    """Measured errors of random projections and their laws."""
    drawing, (panel,) = figure(3.9)
    results = stored("boltzmann_projections")
    ks = np.array(results.records[0]["ks"])
    for key, color, text in (
        ("features", VERMILLION, "projected pixels, bias removed"),
        ("sketch", BLUE, "mixed examples"),
        ("norm", GREEN, "‖cov(v, h)‖² alone"),
    ):
        panel.loglog(ks, results.values(key).mean(0), "o", color=color, label=text)
        if key != "features":
            panel.loglog(ks, results.values(f"{key}_law").mean(0), "-", color=color, linewidth=1.5)
    panel.axhline(1, color="0.6", linewidth=1)
    label(
        panel,
        "Relative error; lines are the laws",
        "number of directions k",
        "",
        legend="upper right",
    )
    return drawing


def describe_projections() -> str:
    """Errors at the largest k."""
    results = stored("boltzmann_projections")
    k = results.records[0]["ks"][-1]
    a, b, c = (float(results.values(key).mean(0)[-1]) for key in ("features", "sketch", "norm"))
    return (
        f"Root mean square relative error at k = {k}: covariance from projected pixels "
        f"{digits(a)}, from mixed examples {digits(b)}, "
        f"the squared norm of cov(v, h) {digits(c)}. The pixels are 196."
    )
