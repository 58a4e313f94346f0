"""The experiments on the rfim paper. Every method of a comparison chooses from the same declared
grid.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from natcompanion import relative
from natcompanion.chapters.experiments import Settings, experiment
from natcompanion.chapters.experiments import _rfim_geometry as geometry
from natcompanion.chapters.experiments import _rfim_neuron as single
from natcompanion.chapters.experiments import _rfim_training as training
from natcompanion.data import mnist
from natcompanion.likelihoods import Bernoulli
from natcompanion.metrics import fisher

# ---- Section 5.1, Figure 4

TIMES = (*range(11), 12, 15, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100)


@dataclass(frozen=True, kw_only=True)
class Figure4(Settings):
    """Two digits ("3v5", "4v9"), the size of the images, how many; the paper's grid of step sizes
    and momenta, and runs.

    A run draws its own digits. The loss is not followed below the floor; targets are losses in
    excess of the minimum. ``beyond`` are step sizes above the paper's grid: what they change is
    told apart.
    """

    pair: str = "3v5"
    size: int = 7
    n: int = 800
    runs: int = 10
    epochs: int = 100
    rates: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)
    beyond: tuple[float, ...] = (1e3, 1e4)
    momenta: tuple[float, ...] = (0.0, 0.8)
    eps: float = 1e-2
    floor: float = 1e-12
    targets: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)


@experiment("rfim_figure4", quick=Figure4(), paper=Figure4(size=28))
def figure4(settings: Figure4) -> dict:
    """GD, WhiteGD, NGD and WhiteNGD on a pair of digits, each at the best of the paper's grid."""
    axes = (settings.rates + settings.beyond, settings.momenta)
    grid = torch.cartesian_prod(*(torch.tensor(values, dtype=torch.float64) for values in axes))
    printed = len(settings.rates) * len(settings.momenta)
    curves: dict[str, list]
    curves, minima, extra = {name: [] for name in single.METHODS}, [], []
    for run in range(settings.runs):
        x, t = single.digits(settings.pair, settings.size, settings.n, 100 * settings.seed + run)
        problems = {name: single.neuron(x, t, name) for name in ("raw", "white")}
        minima.append(problems["white"].minimum())
        extra.append(_geometry(problems, settings.eps))
        for name, (coordinates, natural) in single.METHODS.items():
            curves[name].append(
                single.train(
                    problems[coordinates],
                    natural,
                    *grid.T,
                    epochs=settings.epochs,
                    eps=settings.eps,
                    floor=settings.floor,
                )
            )
    least = torch.tensor([value or 0.0 for value in minima], dtype=torch.float64)
    values = {"separable": sum(value is None for value in minima), "minimum": least}
    values |= {key: [one[key] for one in extra] for key in extra[0]}
    for name, runs in curves.items():
        stacked = torch.stack(runs)
        best = _best(stacked[:, :printed], grid[:printed], least, settings)
        beyond = _best(stacked, grid, least, settings)
        best |= {f"beyond_{key}": beyond[key] for key in ("rate", "momentum", "excess")}
        best["grid"] = beyond["grid"]
        values |= {f"{key}_{name}": value for key, value in best.items()}
    return values


def _geometry(problems: dict[str, single.Neuron], eps: float) -> dict:
    """Return the largest stable step size of GD at the start, and the mean log10 condition number
    over five natural steps.
    """
    values = {}
    for name, problem in problems.items():
        start = problem.metric(torch.zeros(1, problem.Z.shape[1], dtype=problem.Z.dtype))[0]
        values[f"stable_rate_{name}"] = 2 / float(torch.linalg.eigvalsh(start)[-1])
        condition = single.condition_numbers(problem, epochs=5, eps=eps)
        values[f"log_condition_{name}"] = float(condition.log10().mean())
    return values


def _best(curves: torch.Tensor, grid: torch.Tensor, least: torch.Tensor, settings: Figure4) -> dict:
    """Return the configuration of least mean final loss, of ties the soonest, and what it did;
    curves (runs, grid, epochs + 1).
    """
    final = curves[..., -1].mean(0)
    soonest = torch.stack([single.epochs_to(one, settings.floor).double() for one in curves]).mean(
        0
    )
    tied = final <= final.min() * (1 + 1e-9)
    best = int(torch.where(tied, soonest, torch.inf).argmin())
    chosen = curves[:, best]
    excess = chosen - least[:, None]
    times = torch.tensor([t for t in TIMES if t <= settings.epochs])
    return {
        "rate": grid[best, 0],
        "momentum": grid[best, 1],
        "final": [float(f"{value:.4g}") for value in chosen[:, -1].tolist()],
        "excess": [
            float(f"{value:.4g}") for value in excess[:, -1].clamp_min(settings.floor).tolist()
        ],
        "epochs": [
            [int(e) for e in single.epochs_to(excess, target)] for target in settings.targets
        ],
        "log_curves": [
            [round(v, 3) for v in row]
            for row in excess[:, times].clamp_min(settings.floor).log10().tolist()
        ],
        "grid": [
            [*point, float(f"{value:.4g}") if value < torch.inf else None]
            for point, value in zip(grid.tolist(), final.tolist(), strict=True)
        ],
    }


@dataclass(frozen=True, kw_only=True)
class Damping(Settings):
    """NGD and WhiteNGD at equal step size for each damping; the seed draws the digits.

    Here whitening drops no direction, so that both train the same neuron.
    """

    pair: str = "3v5"
    size: int = 7
    n: int = 800
    epochs: int = 20
    rate: float = 1.0
    eps: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)


@experiment("rfim_damping", quick=Damping())
def damping(settings: Damping) -> dict:
    """How far the loss curves of NGD and WhiteNGD lie apart, as the damping goes to 0; 1 if one of
    them diverges.
    """
    x, t = single.digits(settings.pair, settings.size, settings.n, settings.seed)
    problems = {name: single.neuron(x, t, name, smallest=1e-14) for name in ("raw", "white")}
    rate, still = torch.tensor([[settings.rate], [0.0]], dtype=torch.float64)
    target = problems["white"].minimum() + 1e-3  # type: ignore[operator]  # the digits have one
    gaps, raw, white = [], [], []
    for eps in settings.eps:
        curve = {
            name: single.train(problem, True, rate, still, epochs=settings.epochs, eps=eps)
            for name, problem in problems.items()
        }
        gap = (curve["raw"] - curve["white"]).abs().nan_to_num(torch.inf)
        gaps.append(float(gap.max().clamp_max(1.0)))
        raw.append(int(single.epochs_to(curve["raw"], target)))
        white.append(int(single.epochs_to(curve["white"], target)))
    return {"gap": gaps, "epochs_NGD": raw, "epochs_WhiteNGD": white}


# ---- Section 4


@dataclass(frozen=True, kw_only=True)
class Rank(Settings):
    """A random network with one Bernoulli output, its activation, and numbers of samples."""

    sizes: tuple[int, ...] = (6, 8, 8, 1)
    activation: str = "tanh"
    n: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 40, 60)


@experiment("rfim_rank", quick=Rank())
def rank(settings: Rank) -> dict:
    """Ranks of the Fisher matrix, its block of each layer, and the RFIM of each layer, against the
    number of samples.
    """
    generator = settings.generator()
    model = geometry.network(settings.sizes, settings.activation, generator)
    x = torch.randn(max(settings.n), settings.sizes[0], generator=generator, dtype=torch.float64)
    full, blocks, own = [], [], []
    for n in settings.n:
        F = fisher(model, x[:n], Bernoulli())
        full.append(relative.rank(F))
        blocks.append([relative.rank(G) for G in relative.fisher_blocks(F, model)])
        own.append([relative.rank(G) for G in relative.network_rfim(model, x[:n], Bernoulli())])
    shapes = [[m, d + 1] for d, m in pairwise(settings.sizes)]
    return {"fisher": full, "fisher_blocks": blocks, "rfim": own, "shapes": shapes, "n": settings.n}


@dataclass(frozen=True, kw_only=True)
class Reliability(Settings):
    """A random network with one Bernoulli output, how many samples count as all, batches of how
    many, and how many of these.
    """

    sizes: tuple[int, ...] = (6, 8, 8, 1)
    activation: str = "tanh"
    all_samples: int = 2000
    batch: int = 50
    batches: int = 20


@experiment("rfim_reliability", quick=Reliability())
def reliability(settings: Reliability) -> dict:
    """How far small batches put each layer's RFIM and its block of the Fisher matrix off, and what
    lies outside the blocks.
    """
    generator = settings.generator()
    model = geometry.network(settings.sizes, settings.activation, generator)
    x = torch.randn(
        settings.all_samples, settings.sizes[0], generator=generator, dtype=torch.float64
    )
    F = fisher(model, x, Bernoulli())
    exact = {
        "rfim": relative.network_rfim(model, x, Bernoulli()),
        "fisher": relative.fisher_blocks(F, model),
    }
    errors: dict[str, list] = {"rfim": [], "fisher": []}
    for batch in x.split(settings.batch)[: settings.batches]:
        found = {
            "rfim": relative.network_rfim(model, batch, Bernoulli()),
            "fisher": relative.fisher_blocks(fisher(model, batch, Bernoulli()), model),
        }
        for name, metrics in found.items():
            errors[name].append(
                [
                    float((a - b).norm() / b.norm())
                    for a, b in zip(metrics, exact[name], strict=True)
                ]
            )
    inside = torch.stack([block.square().sum() for block in exact["fisher"]]).sum()
    return {
        **{f"error_{name}": torch.tensor(rows).mean(0) for name, rows in errors.items()},
        "outside": float((1 - inside / F.square().sum()).sqrt()),
    }


@dataclass(frozen=True, kw_only=True)
class Balance(Settings):
    """Two connected tanh layers, the scale of their input, the largest step, and how many random
    steps and samples.
    """

    sizes: tuple[int, ...] = (8, 6, 6)
    scale: float = 1.0
    radius: float = 0.1
    steps: int = 200
    n: int = 200


@experiment("rfim_balance", quick=Balance())
def balance(settings: Balance) -> dict:
    """What steps of one size do to two layers and to the second one's metric, in raw and in
    balanced coordinates.
    """
    generator = settings.generator()
    model = geometry.network((*settings.sizes, 1), "tanh", generator)
    x = settings.scale * torch.randn(
        settings.n, settings.sizes[0], generator=generator, dtype=torch.float64
    )
    layers = [geometry.matrix(module) for module in model if isinstance(module, torch.nn.Linear)][
        :2
    ]
    metrics = relative.network_rfim(model, x, Bernoulli())[:2]
    values: dict[str, Any] = {}
    for name in ("raw", "balanced"):
        steps = []
        for W, G in zip(layers, metrics, strict=True):
            delta = torch.randn(
                settings.steps, W.numel(), generator=settings.generator(1), dtype=W.dtype
            )
            delta = settings.radius * delta / delta.norm(dim=1, keepdim=True)
            steps.append(geometry.balanced(delta, G) if name == "balanced" else delta)
        length = [geometry.intrinsic(G, delta) for G, delta in zip(metrics, steps, strict=True)]
        h = geometry.tanh_responses(layers[0] + steps[0].reshape(-1, *layers[0].shape), x)
        after = torch.stack(
            [torch.block_diag(*relative.layer_rfim(layers[1], one, "tanh")) for one in h]
        )
        change = (after - metrics[1]).flatten(1).norm(dim=1) / metrics[1].norm()
        values |= {
            f"first_{name}": float(length[0].mean()),
            f"second_{name}": float(length[1].mean()),
            f"largest_{name}": float(torch.stack(length).max()),
            f"change_{name}": float(change.mean()),
        }
    return values


@dataclass(frozen=True, kw_only=True)
class Conditioning(Settings):
    """A random ReLU network on small digits; the damping is ``eps`` times the mean eigenvalue of
    each metric.
    """

    size: int = 7
    n: int = 1000
    hidden: tuple[int, ...] = (32, 32)
    eps: float = 1e-4


@experiment("rfim_conditioning", quick=Conditioning())
def conditioning(settings: Conditioning) -> dict:
    """Condition number of each linear layer's RFIM with raw, centred, normalized (batch
    normalization) and whitened inputs.
    """
    images, _ = mnist(settings.n, size=settings.size, seed=settings.seed, dtype=torch.float64)
    model = geometry.network(
        (settings.size**2, *settings.hidden, 10), "relu", settings.generator(), scale=2**0.5
    )
    rows = [
        geometry.conditioning(h, settings.eps)
        for h in geometry.layer_inputs(model, images.flatten(1))
    ]
    return {key: [row[key] for row in rows] for key in rows[0]}


# ---- Section 5.2, Figure 5


@dataclass(frozen=True, kw_only=True)
class Figure5(Settings):
    """Data ("digits", "fashion", "mnist"), a method with its step size, RNGD's settings, and the
    training.

    ``every``: RNGD's statistics come from every k-th step, 0 for its default, ten of a period.
    ``smooth``: costs in a point of the curve. ``tests``: how often the test set is looked at.
    ``taus``: the shares of the sharp-ratio table.
    """

    data: str = "digits"
    method: str = "rngd"
    rate: float = 0.3
    eps: float = 0.03
    period: int = 100
    decay: float = 0.995
    every: int = 0
    steps: int = 300
    batch: int = 100
    hidden: tuple[int, ...] = (64, 64, 64)
    smooth: int = 10
    tests: int = 20
    taus: tuple[float, ...] = (0.01, 0.1)


RATES = {
    "sgd": (0.01, 0.018, 0.03, 0.056, 0.1, 0.18, 0.3, 0.56, 1.0, 1.8, 3.0, 5.6),
    "adam": (1e-4, 1.8e-4, 3e-4, 5.6e-4, 1e-3, 1.8e-3, 3e-3, 5.6e-3, 1e-2, 1.8e-2, 3e-2, 5.6e-2),
}
"""Figure 5's search: twelve step sizes, a factor of about 1.8 apart; RNGD has those of SGD."""

DIGITS, FASHION = Figure5(steps=1000), Figure5(data="fashion", steps=2200)


@experiment(
    "rfim_figure5",
    quick=Figure5(),
    digits=DIGITS,
    digits_tuning=replace(DIGITS, tests=0),
    fashion=FASHION,
    fashion_tuning=replace(FASHION, steps=550, tests=0),
    sliders=Figure5(tests=0),
    paper=Figure5(data="mnist", steps=55_000, smooth=100),
)
def figure5(settings: Figure5) -> dict:
    """Learning curve of the 784-64-64-64-10 ReLU network by one method: cost per iteration, sharp
    ratio, test error.
    """
    split = training.load(settings.data, settings.seed)
    sizes = (split.x.shape[1], *settings.hidden, 10)
    normalization = settings.method.partition("_")[2] if "_bn" in settings.method else ""
    model = training.network(sizes, normalization, settings.generator())
    optimizer = training.optimizer(
        settings.method,
        model,
        settings.rate,
        eps=settings.eps,
        period=settings.period,
        decay=settings.decay,
        every=settings.every,
    )
    tests: list[tuple[float, float]] = []

    def watch(step: int) -> None:
        if settings.tests and step % max(1, settings.steps // settings.tests) == 0:
            tests.append(training.evaluate(model, *split.test))

    costs, seconds = training.train(
        model,
        optimizer,
        split.x,
        split.t,
        settings.steps,
        settings.batch,
        settings.generator(1),
        watch,
    )
    final, _ = training.evaluate(model, split.x, split.t)
    return {
        "curve": training.smoothed(costs, settings.smooth),
        **training.summary(costs, settings.taus),
        "train_cost": final,
        "test_cost": [training.short(cost) for cost, _ in tests],
        "test_error": [error for _, error in tests],
        "milliseconds": 1e3 * seconds,
    }


@dataclass(frozen=True, kw_only=True)
class StepTime(Settings):
    """One turn of every method: iterations, which must be a multiple of the period, and iterations
    where T is 1.
    """

    data: str = "digits"
    hidden: tuple[int, ...] = (64, 64, 64)
    batch: int = 100
    steps: int = 100
    steps_each: int = 10


@experiment("rfim_step_time", quick=StepTime())
def step_time(settings: StepTime) -> dict:
    """Milliseconds of processor time that an iteration of Figure 5 takes, by method, after one turn
    to warm up.
    """
    split = training.load(settings.data, settings.seed)
    sizes = (split.x.shape[1], *settings.hidden, 10)
    options: dict[str, Any] = {"eps": 0.03, "period": settings.steps, "decay": 0.995}
    ways = {
        "sgd": {},
        "sgd_bna": {},
        "sgd_bnb": {},
        "adam": {},
        "rngd": {},
        "rngd_every_batch": {"every": 1},
        "rngd_each_step": {"every": 1, "period": 1},
    }
    values = {}
    for name, changes in ways.items():
        method = name if "every" not in changes else "rngd"
        normalization = method.partition("_")[2]
        model = training.network(sizes, normalization, settings.generator())
        optimizer = training.optimizer(
            method, model, 1e-3 if method == "adam" else 0.1, **{**options, **changes}
        )
        steps = settings.steps_each if name == "rngd_each_step" else settings.steps
        for _ in range(2):
            _, seconds = training.train(
                model, optimizer, split.x, split.t, steps, settings.batch, settings.generator(1)
            )
        values[name] = 1e3 * seconds
    return values
