"""The figures of the revisiting chapter."""

import math
from functools import cache

import numpy as np
import scipy.sparse.linalg
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from natcompanion import metrics, reference
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _revisiting_autoencoder as autoencoder
from natcompanion.chapters.experiments._revisiting_metrics import normal, small_network, textbook_cg
from natcompanion.chapters.experiments._revisiting_training import LIKELIHOOD
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
from natcompanion.damping import LevenbergMarquardt
from natcompanion.likelihoods import Likelihood
from natcompanion.optim import NaturalGradient
from natcompanion.solvers import minres, minres_qlp

FIGURE1 = {
    "rate": [0.05, 0.1, 0.5],
    "damping": [1e-3, 1e-2, 1e-1, 1.0],
    "origin": ["(-1, 3)", "(1, -3)"],
}
SOLVERS = {"batch": ["the same", "another"], "damping": [0.0, 1e-6, 1e-4, 1e-2]}
DAMPING = {"eta": [0.1, 0.5, 1.0, 1.5, 1.9], "rule": ["Eq. 30", "Martens"], "first": [0.01, 0.3]}

METHODS = {
    "newton": ("Newton", BLUE),
    "natural": ("natural gradient", BLACK),
    "leroux": ("Le Roux", ORANGE),
    "gradient": ("gradient descent", PURPLE),
}
COLUMNS = {
    "msgd": ("minibatch SGD", PURPLE),
    "unlabelled": ("KL, unlabelled", GREEN),
    "added": ("KL, batch and unlabelled", SKY),
    "different": ("KL, different batch", BLUE),
    "same": ("KL, same batch", BLACK),
    "covariance": ("covariance", ORANGE),
}
STOPS = (0, 3, 10, 30)
"""Steps of the natural gradient whose KL surfaces are shown."""
STEPS = 100

# ---- Figure 1


def _start(text: str) -> torch.Tensor:
    return torch.tensor([float(part) for part in text.strip("()").split(",")], dtype=torch.float64)


@cache
def _wells() -> torch.Tensor:
    """Return the two minima, the better one first."""
    return autoencoder.minima(autoencoder.example())[:2]


@cache
def _path(method: str, start: str, *options: float) -> torch.Tensor:
    return autoencoder.example().path(_start(start), method, STEPS, *options)


def _paths(rate: float, damping: float, start: str) -> dict[str, torch.Tensor]:
    return {
        name: _path(name, start, *((rate, damping) if name == "natural" else ()))
        for name in METHODS
    }


def draw_figure1(rate: float, damping: float, origin: str) -> Figure:
    """The error surface with four paths, and the KL surfaces at four points of the natural
    gradient's path.
    """
    model, paths = autoencoder.example(), _paths(rate, damping, origin)
    drawing, _ = figure(7.4)
    drawing.clear()
    top, bottom = drawing.subfigures(2, 1, height_ratios=[2.6, 1])
    plane, surfaces = top.subplots(), bottom.subplots(1, 4).tolist()
    _error_surface(model, plane)
    for name, path in paths.items():
        text, color = METHODS[name]
        inside = path[(path.abs() < 8).all(1)]
        plane.plot(
            inside[:, 1],
            inside[:, 0],
            color=color,
            linewidth=1.8,
            marker=".",
            markersize=4,
            label=text,
        )
    natural = paths["natural"]
    plane.plot(natural[0, 1], natural[0, 0], "o", color=BLACK, markersize=7)
    for number, stop in enumerate(STOPS, start=1):
        plane.annotate(
            str(number),
            natural[stop].flip(0).tolist(),
            (6, 6),
            textcoords="offset points",
            fontsize=11,
            bbox={"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "0.5"},
        )
        _kl_surface(model, surfaces[number - 1], natural[stop], rate, damping, number)
    plane.set(xlim=(-4.5, 4.5), ylim=(-4.5, 4.5))
    plane.tick_params(labelsize=FONT["tick"])
    label(plane, "Error, and 100 steps of each method", "$b$", "$w$")
    drawing.legend(
        *plane.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def _error_surface(model: autoencoder.AutoEncoder, panel: Axes) -> None:
    axis = torch.linspace(-4.5, 4.5, 90, dtype=torch.float64)
    w, b = torch.meshgrid(axis, axis, indexing="ij")
    loss = model.loss(torch.stack([w, b], -1))
    panel.contour(axis, axis, loss.log10(), 18, colors="0.75", linewidths=0.8, linestyles="solid")
    panel.plot(_wells()[:, 1], _wells()[:, 0], "*", color=VERMILLION, markersize=12)


def _kl_surface(
    model: autoencoder.AutoEncoder,
    panel: Axes,
    theta: torch.Tensor,
    rate: float,
    damping: float,
    number: int,
) -> None:
    """Draw KL(p_theta || p_theta+d) for small d, and the directions of the four steps, all of one
    length.
    """
    axis = torch.linspace(-1, 1, 41, dtype=torch.float64)
    w, b = torch.meshgrid(axis, axis, indexing="ij")
    kl = model.kl(theta, torch.stack([w, b], -1))
    panel.contour(axis, axis, kl.clamp_min(1e-12).sqrt(), 7, colors="0.75", linewidths=0.8)
    for name, (_, color) in METHODS.items():
        options = (
            (rate, damping)
            if name == "natural"
            else (autoencoder.RATES[name], autoencoder.DAMPING[name])
        )
        step = model.step(theta, name, *options)
        step = 0.8 * step / step.norm().clamp_min(1e-300)
        panel.annotate(
            "",
            step.flip(0).tolist(),
            (0, 0),
            arrowprops={"color": color, "width": 1.2, "headwidth": 6, "headlength": 6},
        )
    panel.set(xlim=(-1, 1), ylim=(-1, 1), xticks=[], yticks=[], aspect="equal")
    panel.set_title(f"KL at {number}", fontsize=FONT["title"])


def describe_figure1(rate: float, damping: float, origin: str) -> str:
    """Where each method ends."""
    model, paths = autoencoder.example(), _paths(rate, damping, origin)
    ends = []
    for name, path in paths.items():
        distance = (path[-1] - _wells()).norm(dim=1)
        nearest = int(distance.argmin())
        well, gap = ("the better minimum", "the other minimum")[nearest], float(distance[nearest])
        place = "between" if gap > 1 else f"near {well}" if gap > 0.1 else well
        ends.append(f"{METHODS[name][0]} {place} (error {digits(float(model.loss(path[-1])))})")
    return (
        f"From (w, b) = {origin}, with step size {rate:g} and damping {damping:g} for the "
        "natural gradient and the paper's "
        f"for the others, the position after 100 steps: {'; '.join(ends)}. The numbered "
        "panels are the KL surfaces at steps "
        f"{', '.join(map(str, STOPS))} of the natural gradient, with the directions of the "
        "four steps."
    )


def draw_live_figure1(rate: float, damping: float, w: float, b: float) -> Figure:
    """The same from any start."""
    return draw_figure1(rate, damping, f"({w:.3g}, {b:.3g})")


def describe_live_figure1(rate: float, damping: float, w: float, b: float) -> str:
    """The sentence of the picture above."""
    return describe_figure1(float(f"{rate:.2g}"), float(f"{damping:.2g}"), f"({w:.3g}, {b:.3g})")


# ---- Solvers


@cache
def _system(batch: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the Fisher matrix, on the batch of the gradient or on another one, and the
    gradient.
    """
    generator = torch.Generator().manual_seed(3)
    model = small_network(generator)
    x, other = normal(generator, 8, 6), normal(generator, 8, 6)
    t = torch.randint(4, (8,), generator=generator)
    g = metrics.per_example_gradients(model, x, t, LIKELIHOOD).mean(0)
    return metrics.fisher(model, x if batch == "the same" else other, LIKELIHOOD), g


@cache
def _solver_lengths(batch: str, damping: float) -> dict[str, list[float]]:
    """Return the length of x after 1, 2, ... products, for three solvers, and that of the exact
    answer.
    """
    G, g = _system(batch)
    A = G + damping * torch.eye(len(g), dtype=g.dtype)
    lengths = {"conjugate gradients": [textbook_cg(A, g, k) for k in range(1, 41)]}
    for name, solver in (("MINRES", minres), ("MINRES-QLP", minres_qlp)):
        lengths[name] = [float(solver(A, g, rtol=1e-10, max_iter=k).x.norm()) for k in range(1, 41)]
    lengths["exact"] = [float((torch.linalg.pinv(A, rtol=1e-11, hermitian=True) @ g).norm())]
    return lengths


def draw_solvers(batch: str, damping: float) -> Figure:
    """The length of the solution against the number of products, for three solvers."""
    lengths = _solver_lengths(batch, damping)
    drawing, (panel,) = figure(4.6)
    styles = {
        "conjugate gradients": (VERMILLION, "-"),
        "MINRES": (SKY, "-"),
        "MINRES-QLP": (BLUE, "--"),
    }
    for name, (color, line) in styles.items():
        panel.semilogy(
            range(1, 41),
            np.minimum(lengths[name], 1e30),
            line,
            color=color,
            linewidth=2.2,
            label=name,
        )
    panel.axhline(
        lengths["exact"][0],
        color="0.4",
        linestyle=":",
        linewidth=2,
        label="shortest exact solution",
    )
    panel.set(ylim=(1e-1, 1e12), xlim=(1, 40))
    label(
        panel,
        f"Metric on {batch} batch, damping {damping:g}",
        "products with the metric",
        "length of the step",
        legend="upper left",
    )
    return drawing


def describe_solvers(batch: str, damping: float) -> str:
    """The lengths after 20 and 40 products."""
    lengths, (G, g) = _solver_lengths(batch, damping), _system(batch)
    lam, vectors = torch.linalg.eigh(G)
    outside = vectors[:, lam < 1e-10 * lam[-1]].mT @ g

    def size(name: str, k: int) -> str:
        value = lengths[name][k - 1]
        return (
            digits(value)
            if value < 1e4
            else f"about 1e{round(math.log10(value))}"
            if value < 1e9
            else "above 1e9"
        )

    parts = [
        f"{n} {size(n, 20)} and {size(n, 40)}"
        for n in ("conjugate gradients", "MINRES", "MINRES-QLP")
    ]
    return (
        f"Metric on {batch} batch of 8 examples, damping {damping:g}, {len(g)} parameters. "
        "Of the gradient, "
        f"{100 * float(outside.norm() / g.norm()):.0f} % lies where the undamped metric is "
        "zero. Length of the step after 20 and "
        f"40 products: {'; '.join(parts)}. Shortest exact solution: {digits(lengths['exact'][0])}."
    )


def solvers_beside_scipy() -> list[list]:
    """Return rows (system, solver, what it says, relative residual, length over the shortest) for
    two systems.
    """
    graded = (
        torch.logspace(0, -8, 9, dtype=torch.float64).diag(),
        torch.ones(9, dtype=torch.float64),
    )
    rows = []
    for name, (A, b) in (
        ("diagonal, 1 to 1e-8", graded),
        ("metric on another batch", _system("another")),
    ):
        shortest = float((torch.linalg.pinv(A, rtol=1e-11, hermitian=True) @ b).norm())
        x, info = scipy.sparse.linalg.minres(A.numpy(), b.numpy())
        answers = [
            ("SciPy's minres", "success" if info == 0 else "no success", torch.from_numpy(x))
        ]
        for solver in (minres, minres_qlp):
            solution = solver(A, b)
            text = solution.reason.name.lower().replace("_", " ")
            answers.append(
                (
                    f"our {solver.__name__}",
                    text if solution.converged else f"not converged: {text}",
                    solution.x,
                )
            )
        for solver, text, x in answers:
            residual, length = float((b - A @ x).norm() / b.norm()), float(x.norm()) / shortest
            rows.append(
                [
                    name,
                    solver,
                    text,
                    "below 1e-4" if residual < 1e-4 else f"{residual:.2f}",
                    f"{length:.3g}" if length < 10 else f"above {10 ** int(math.log10(length))}",
                ]
            )
    return rows


# ---- Damping


@cache
def _noisy_labels() -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return 80 inputs, labels that no linear model explains, and the smallest mean loss of such a
    model.
    """
    generator = torch.Generator().manual_seed(5)
    x = normal(generator, 80, 3)
    t = LIKELIHOOD.sample(x, generator=generator)
    model = nn.Linear(3, 3).double()
    optimizer = NaturalGradient(model, LIKELIHOOD, 1.0, damping=1e-6, rtol=1e-12, max_iter=100)
    return x, t, min(optimizer.step(x, t) for _ in range(30))


@cache
def _damping_run(eta: float, rule: str, first: float) -> dict[str, list[float]]:
    """Return damping, ratio and excess loss of 25 steps of softmax regression."""
    x, t, floor = _noisy_labels()
    model = nn.Linear(3, 3).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(3) - 1)
        model.bias.copy_(torch.tensor([1.0, -1.0, 0.0]))
    damping = LevenbergMarquardt(first, minimum=1e-6)
    prediction = "linear" if rule == "Eq. 30" else "quadratic"
    optimizer = NaturalGradient(model, LIKELIHOOD, eta, damping=damping, prediction=prediction)
    run: dict[str, list[float]] = {"damping": [], "rho": [], "excess": []}
    for _ in range(25):
        excess = optimizer.step(x, t) - floor
        if excess < 1e-9:  # rounding decides from here on
            break
        run["excess"].append(excess)
        run["damping"].append(optimizer.last.damping)
        run["rho"].append(optimizer.last.rho)
    return run


def draw_damping(eta: float, rule: str, first: float) -> Figure:
    """Damping, reduction ratio and excess loss, until the minimum is reached to nine digits."""
    run = _damping_run(eta, rule, first)
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
    run = _damping_run(eta, rule, first)
    rho = float(np.nanmedian(run["rho"]))
    return (
        f"Softmax regression on labels that no model explains, step size {eta:g}, ratio of "
        f"{rule}, damping {first:g} at first. "
        f"Median reduction ratio {rho:.2g}. After {len(run['rho'])} steps the damping is "
        f"{run['damping'][-1]:.2g} and the loss "
        f"{digits(run['excess'][-1])} above its minimum."
    )


# ---- Stored results


@cache
def _stored(name: str, preset: str) -> experiments.Results:
    return experiments.load(name, preset)


def columns_of(name: str, preset: str = "chapter") -> list[str]:
    """Return the stored columns of a table, in the paper's order."""
    stored = {record.settings["column"] for record in _stored(name, preset)}
    return [column for column in COLUMNS if column in stored]


def draw_table1(name: str) -> Figure:
    """Test error of every column: each fold, and the mean with its interval."""
    columns = columns_of(name)
    drawing, (panel,) = figure(0.62 * len(columns) + 1.4)
    for row, column in enumerate(reversed(columns)):
        color = COLUMNS[column][1]
        values = _stored(name, "chapter").values("test", column=column)
        mean = experiments.interval(values)
        panel.plot(values, [row + 0.17] * len(values), ".", color=color, alpha=0.7)
        panel.errorbar(
            mean.mean,
            row,
            xerr=(mean.high - mean.low) / 2,
            fmt="o",
            color=color,
            capsize=5,
            linewidth=2,
        )
    panel.set_yticks(range(len(columns)), [COLUMNS[column][0] for column in reversed(columns)])
    panel.set(ylim=(-0.6, len(columns) - 0.4))
    label(panel, "Test error at the chosen settings", "per cent", "")
    return drawing


def describe_table1(name: str) -> str:
    """The means with their intervals."""
    results = _stored(name, "chapter")
    parts = [
        f"{COLUMNS[c][0]} {experiments.interval(results.values('test', column=c))}"
        for c in columns_of(name)
    ]
    count = len(results.values("test", column="same"))
    return (
        f"Test error in per cent, mean and 95 % interval over {count} splits: {'; '.join(parts)}."
    )


def draw_curves(name: str, preset: str = "chapter") -> Figure:
    """Training loss and test error against the number of updates, median over the records (Figure
    4).
    """
    drawing, panels = figure(6.8, 2, sharex=True)
    for column in columns_of(name, preset):
        text, color = COLUMNS[column]
        records = _stored(name, preset).select(column=column)
        updates = [point["update"] for point in records.records[0]["curve"]]
        for panel, key in zip(panels, ("train", "test"), strict=True):
            middle = np.median([[point[key] for point in record["curve"]] for record in records], 0)
            panel.plot(updates, middle, color=color, linewidth=2, label=text)
    panels[0].set_yscale("log")
    label(panels[0], "Training loss (cross-entropy)")
    label(panels[1], "Test error, per cent", "updates (minibatch SGD makes 20 in one)")
    drawing.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=FONT["legend"],
        frameon=False,
    )
    return drawing


def describe_curves(name: str, preset: str = "chapter") -> str:
    """The final values, medians where there are several records of a column."""
    parts, runs = [], 0
    for column in columns_of(name, preset):
        records = _stored(name, preset).select(column=column)
        runs = max(runs, len(records))
        parts.append(
            f"{COLUMNS[column][0]} {digits(records.median('train'))}, "
            f"{digits(records.median('test'))} %"
        )
    return (
        f"{'Median final' if runs > 1 else 'Final'} training loss and test error: "
        f"{'; '.join(parts)}."
    )


def draw_order() -> Figure:
    """Figure 3: variance of the outputs by the replaced tenth."""
    results = _stored("revisiting_order", "chapter")
    drawing, (panel,) = figure(4.4)
    for key, text, color in (
        ("sgd", "minibatch SGD", PURPLE),
        ("natural", "natural gradient", BLACK),
    ):
        log = np.log10(results.values(key))
        mean, half = log.mean(0), 2.78 * log.std(0, ddof=1) / math.sqrt(len(log))
        tenth = range(1, log.shape[1] + 1)
        panel.fill_between(
            tenth, 10 ** (mean - half), 10 ** (mean + half), color=color, alpha=0.15, linewidth=0
        )
        panel.semilogy(tenth, 10**mean, "o-", color=color, linewidth=2, label=text)
    label(
        panel,
        "Variance of the outputs",
        "replaced tenth of the first half",
        "",
        legend="upper right",
    )
    return drawing


def describe_order() -> str:
    """Means of the two curves and the errors."""
    r = _stored("revisiting_order", "chapter")
    return (
        "Variance of the outputs on held-out digits when one tenth of the first half of "
        "the stream is replaced, "
        f"{len(r)} initializations, bands are 95 % intervals. Mean over the tenths: natural "
        "gradient "
        f"{digits(float(r.values('natural').mean()))}, SGD "
        f"{digits(float(r.values('sgd').mean()))}. Validation error: natural gradient "
        f"{digits(float(r.values('natural_error').mean()))} %, SGD "
        f"{digits(float(r.values('sgd_error').mean()))} %."
    )


def draw_convergence() -> Figure:
    """Distance of U and of the Hessian from G: labels drawn from the model, and certain labels."""
    r = _stored("revisiting_convergence", "quick")
    drawing, (sampled, certain) = figure(3.8, 1, 2, sharey=True)
    setting = r.records[0].settings
    _band(sampled, setting["samples"], r.values("sampled"), ORANGE, "U")
    _band(certain, setting["sharpen"], r.values("certain_empirical"), ORANGE, "U")
    _band(certain, setting["sharpen"], r.values("certain_hessian"), BLUE, "Hessian")
    label(sampled, "Model's labels", "number of labels", "distance from G")
    label(certain, "Certain labels", "logits multiplied by", "", legend="lower left")
    certain.set_xticks(setting["sharpen"], [f"{v:g}" for v in setting["sharpen"]], minor=False)
    certain.minorticks_off()
    return drawing


def _band(panel: Axes, x: list[float], values: np.ndarray, color: str, text: str) -> None:
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95], axis=0)
    panel.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    panel.loglog(x, middle, "o-", color=color, linewidth=2, label=text)


def describe_convergence() -> str:
    """The medians at both ends."""
    r = _stored("revisiting_convergence", "quick")
    sampled, U, H = (
        np.median(r.values(k), 0) for k in ("sampled", "certain_empirical", "certain_hessian")
    )
    return (
        f"Relative distance from G, median of {len(r)} networks. Labels drawn from the "
        f"model: U {digits(float(sampled[0]))} at "
        f"100 labels, {digits(float(sampled[-1]))} at 10000. Certain labels, logits as they "
        "are and 8 times larger: U "
        f"{digits(float(U[0]))} and {digits(float(U[-1]))}, Hessian {digits(float(H[0]))} "
        f"and {digits(float(H[-1]))}."
    )


# ---- Small things for the tables


def network_of(sizes: tuple[int, ...], seed: int = 0) -> nn.Sequential:
    """Return a float64 network of tanh units for the chapter's tables."""
    return small_network(torch.Generator().manual_seed(seed), sizes)


def random_batch(n: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``n`` random inputs (n, 3) and labels."""
    generator = torch.Generator().manual_seed(1)
    return normal(generator, n, 3), torch.randint(classes, (n,), generator=generator)


def jacobian_of_outputs(model: nn.Module, x: torch.Tensor, likelihood: Likelihood) -> torch.Tensor:
    """Return the derivatives of the outputs y by the parameters, one after the other; (n, o, P)."""
    rows = [
        [reference.gradient(model, y_k) for y_k in likelihood.mean(model(x_i))[0]]
        for x_i in x.split(1)
    ]
    return torch.stack([torch.stack(row) for row in rows])


class Product(nn.Module):
    """A model whose output is the product of its two parameters, whatever the input."""

    def __init__(self, start: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return w1 w2 for each of the ``n`` inputs; (n, 1)."""
        return self.w.prod().expand(len(x), 1)


def path_of(
    optimizer: type, x: torch.Tensor, t: torch.Tensor, steps: int = 8, **options: object
) -> torch.Tensor:
    """Return the parameters after some steps of size 1 on one batch, from the network of the
    tables.
    """
    model = network_of((3, 4, 3))
    chosen = optimizer(model, LIKELIHOOD, lr=1.0, **options)
    for _ in range(steps):
        chosen.step(x, t)
    return reference.parameter_vector(model)


def least_squares(x: torch.Tensor) -> tuple[nn.Linear, torch.Tensor]:
    """Return a linear model of two outputs at a fixed start, and random targets for ``x``."""
    model = nn.Linear(3, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, -0.2, 0.1], [0.0, 0.5, -0.4]]))
        model.bias.zero_()
    return model, normal(torch.Generator().manual_seed(4), len(x), 2)
