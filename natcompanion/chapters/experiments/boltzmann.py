"""The experiments on the Boltzmann paper: thresholds, learning curves, geometry, and an honest
comparison.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from natcompanion import boltzmann
from natcompanion.boltzmann import FRACTIONS, RBM, THRESHOLDS
from natcompanion.chapters.experiments import Settings, experiment
from natcompanion.chapters.experiments import _boltzmann as many
from natcompanion.chapters.experiments import _boltzmann_network as layered
from natcompanion.chapters.experiments.kit import Clock, fed, looks
from natcompanion.data import mnist
from natcompanion.projections import (
    debiased_projected_covariance,
    projected_norm_error,
    projected_squared_norm,
    projection,
    sketch_error,
    sketched_covariance,
)

# ---- Figures 2 and 3


@dataclass(frozen=True, kw_only=True)
class Thresholds(Settings):
    """Size of the digits, the machine, the training, and which reading of the scheme is run.

    ``rule``: "printed" (Eq. 4), "product" (its third term put right), "exact" (the true gradient
    from samples), "natural" (minus 2 cov) or "none" (plain SGD in every cell). ``gamma``: the
    weight of the penalty at the start; ``cap``: the largest it may get. ``states``: moments from
    binary states instead of probabilities. ``additive``: the likelihood keeps its weight 1.
    ``grey``: grey digits instead of binary ones. ``classifier``: "label units" of the machine, or a
    "softmax" on the hidden units of a machine of pixels alone.
    """

    rule: str = "printed"
    gamma: float = 0.01
    cap: float = 1.0
    states: bool = False
    additive: bool = False
    grey: bool = False
    classifier: str = "label units"
    size: int = 7
    hidden: int = 10
    epochs: int = 20
    every: int = 4
    lr: float = 0.3
    window: int = 15
    batch: int = 100


CELLS = [(v, p) for v in THRESHOLDS for p in FRACTIONS]


@experiment("boltzmann_thresholds", quick=Thresholds(), paper=Thresholds(epochs=100))
def thresholds(settings: Thresholds) -> dict:
    """Figures 2 and 3: the 35 pairs of threshold and fraction, each with its own start and its own
    random numbers.
    """
    v_limit, p_limit = torch.tensor(CELLS).T
    start = torch.full((len(CELLS),), 0.0 if settings.rule == "none" else settings.gamma)

    def adapt(gamma: torch.Tensor, P: torch.Tensor) -> torch.Tensor:
        return many.next_gamma(gamma, P, v_limit, p_limit, settings.cap)

    return {"cells": [list(cell) for cell in CELLS], **_train_cells(settings, start, adapt)}


@dataclass(frozen=True, kw_only=True)
class Held(Thresholds):
    """The same training without the controller: the weight of the penalty keeps each of these
    values.
    """

    gammas: tuple[float, ...] = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)


@experiment("boltzmann_held", quick=Held(), paper=Held(epochs=100))
def held(settings: Held) -> dict:
    """What the penalty does at a fixed weight: errors, covariance and filters for seven values of
    gamma.
    """
    found = _train_cells(settings, torch.tensor(settings.gammas), lambda gamma, P: gamma)
    return {"gammas": list(settings.gammas), **found}


def _train_cells(settings: Thresholds, gamma: torch.Tensor, adapt: Callable) -> dict:
    """Train one machine for each entry of ``gamma``, which ``adapt(gamma, P)`` changes at each
    step.
    """
    labels = settings.classifier == "label units"
    data, generator = (
        many.digits(settings.size, settings.seed, settings.grey, labels),
        settings.generator(),
    )
    machines = many.Machines.random(len(gamma), data["train"], settings.hidden, generator)
    classifier = machines if labels else many.SoftmaxOnHidden(len(gamma), settings.hidden)
    average = many.MovingDifference(settings.window, settings.rule)
    visible, trace, weight = data["train"].visible, [], torch.zeros(len(gamma))
    for epoch in range(settings.epochs + 1):
        if epoch % settings.every == 0 or epoch == settings.epochs:
            trace.append((gamma, machines.covariance_norms(), *_errors(classifier, machines, data)))
        if epoch == settings.epochs:
            break
        for rows in torch.randperm(len(visible), generator=generator).split(settings.batch):
            phases = many.contrast(machines, visible[rows], generator)
            step: tuple[torch.Tensor, ...]
            step = phases.gradient()
            if settings.rule != "none":
                P = _penalty(settings, phases, average, generator)
                gamma = adapt(gamma, P[0])
                keep = 1 if settings.additive else 1 - gamma
                step = tuple(
                    _by(torch.as_tensor(keep), d) - _by(gamma, p)
                    for d, p in zip(step, P, strict=True)
                )
            weight += 1 if settings.additive else 1 - gamma
            for parameter, change in zip((machines.W, machines.a, machines.b), step, strict=True):
                parameter += settings.lr * change
    return _report(settings, machines, trace, weight / len(visible) * settings.batch)


def _errors(
    classifier: Any, machines: many.Machines, data: dict
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training and the test error of each machine."""
    if classifier is machines:
        return machines.errors(data["train"]), machines.errors(data["test"])
    classifier.fit(machines, data["train"])
    return classifier.errors(machines, data["train"]), classifier.errors(machines, data["test"])


def _report(
    settings: Thresholds, machines: many.Machines, trace: list[tuple], kept: torch.Tensor
) -> dict:
    """Return the curves, the errors and the sparsity of the weights of all machines."""
    names = ("gamma", "norm", "train_error", "test_error")
    curves = {
        name: torch.stack(column).T.double()
        for name, column in zip(names, zip(*trace, strict=True), strict=True)
    }
    W = machines.W[:, : machines.pixels]
    size, n = W.abs(), W[0].numel()
    hoyer = (n**0.5 - size.sum((1, 2)) / W.square().sum((1, 2)).sqrt()) / (n**0.5 - 1)
    return {
        "epochs": [
            e for e in range(settings.epochs + 1) if e % settings.every == 0 or e == settings.epochs
        ],
        **{name: _rounded(curve) for name, curve in curves.items()},
        "best_test": _rounded(curves["test_error"].min(1).values),
        "final_test": _rounded(curves["test_error"][:, -1]),
        "final_train": _rounded(curves["train_error"][:, -1]),
        "kept_epochs": _rounded(kept, 2),
        "test_below_train": curves["test_error"][:, -1] < curves["train_error"][:, -1],
        "hoyer": _rounded(hoyer),
        "small_share": _rounded(
            (size < 0.05 * size.amax((1, 2), keepdim=True)).double().mean((1, 2))
        ),
        "dead_units": (size.amax(1) < 0.05 * size.amax((1, 2))[:, None]).sum(1),
        "filters": (99 * W / size.amax((1, 2), keepdim=True)).round().int()
        if settings.seed == 0
        else [],
        "filter_scale": _rounded(size.amax((1, 2)), 3),
    }


def _rounded(x: torch.Tensor, digits: int = 5) -> list:
    return torch.round(x.double(), decimals=digits).tolist()


def _penalty(
    settings: Thresholds,
    phases: many.Phases,
    average: many.MovingDifference,
    generator: torch.Generator,
) -> tuple[torch.Tensor, Any, Any]:
    """Return the penalty direction (W, a, b) of the chosen rule."""
    if settings.rule == "exact":
        return many.exact_rule(phases, generator)
    if settings.rule == "natural":
        return 2 * many.sample_covariance(phases), torch.zeros(1, 1), torch.zeros(1, 1)
    now = many.moments(phases, "states" if settings.states else "probabilities", generator)
    return average.update(now), torch.zeros(1, 1), torch.zeros(1, 1)


# ---- learning, exact


def binary_digits(
    size: int, seed: int, split: str = "train", *, margin: float = 0.0
) -> torch.Tensor:
    """Return digits as rows of zeros and ones (pixels above `many.LEVEL`), double precision.

    Some grey values are the level itself up to rounding, so that with no margin two or three pixels
    of a set depend on the processor; with a ``margin`` of 1e-9 they are off everywhere.
    """
    grey = mnist(size=size, split=split, seed=seed)[0].flatten(1)
    return (grey > many.LEVEL + margin).double()


def data_start(
    X: torch.Tensor, hidden: int, generator: torch.Generator, scale: float = 0.01
) -> RBM:
    """Return a machine with small random weights and visible biases that give the (smoothed) pixel
    means.
    """
    mean = (X.sum(0) + 1) / (len(X) + 2)
    W = scale * torch.randn(X.shape[1], hidden, generator=generator, dtype=torch.float64)
    return RBM(W, torch.logit(mean), torch.zeros(hidden, dtype=torch.float64))


class Tracked:
    """Directions of the second approach along a path: whitening learned by EASI, or recomputed
    every few steps.
    """

    def __init__(self, rbm: RBM, eps: float, period: int = 0, rate: float = 0.1):
        self.period, self.eps, self.count = period, eps, 0
        self.learned = boltzmann.LearnedWhitening(rbm.visible, rbm.hidden, rate=rate, eps=eps)
        self.frozen: tuple = ()

    def __call__(self, rbm: RBM, gradient: torch.Tensor) -> torch.Tensor:
        """Return the direction at this step, after moving (or recomputing) the whitening."""
        moments, C = boltzmann.model_moments(rbm), boltzmann.covariances(rbm)
        if not self.period:
            self.learned.update_exact(moments, C["vv"], C["hh"])
            return self.learned.direction(gradient)
        if self.count % self.period == 0:
            inverses = (boltzmann.ridge_inverse(C[name], self.eps) for name in ("vv", "hh"))
            self.frozen = (moments.v, moments.h, *inverses)
        self.count += 1
        return boltzmann.whitened_direction(gradient, *self.frozen)


def directions(
    rbm: RBM, damping: float, eps: float
) -> dict[str, Callable[[RBM, torch.Tensor], torch.Tensor]]:
    """Return the search directions by name: functions of the machine and its exact gradient."""

    def natural(rbm: RBM, gradient: torch.Tensor) -> torch.Tensor:
        return boltzmann.fisher.solve(rbm.fisher(), gradient, damping)

    def diagonal(rbm: RBM, gradient: torch.Tensor) -> torch.Tensor:
        mean = rbm.statistics_mean()
        return gradient / (
            mean * (1 - mean) + damping
        )  # the variance of a statistic that is 0 or 1

    return {
        "sgd": lambda rbm, gradient: gradient,
        "centred": boltzmann.centred_direction,
        "diagonal": diagonal,
        "whitened": lambda rbm, gradient: boltzmann.exact_whitened_direction(rbm, gradient, eps),
        "easi": Tracked(rbm, eps),
        "prong": Tracked(rbm, eps, period=50),
        "natural": natural,
    }


@dataclass(frozen=True, kw_only=True)
class Learning(Settings):
    """Exact full-batch ascent of one method: its step size and number of steps, and the target
    log-likelihood.
    """

    method: str = "natural"
    lr: float = 1.0
    steps: int = 30
    every: int = 1
    size: int = 7
    hidden: int = 10
    damping: float = 1e-3
    eps: float = 0.01
    target: float = -11.8


@experiment(
    "boltzmann_learning", quick=Learning(), paper=Learning(steps=3000), tuning=Learning(steps=3000)
)
def learning(settings: Learning) -> dict:
    """Exact log-likelihood per step and per second of processor time of one method, from one random
    start, on binary 7 x 7 digits.
    """
    X = binary_digits(settings.size, 0)
    rbm = data_start(X, settings.hidden, settings.generator())
    direction = directions(rbm, settings.damping, settings.eps)[settings.method]
    steps, values, seconds, clock = [], [], [], Clock()
    reached = None
    for step in range(settings.steps + 1):
        if step % settings.every == 0 or step == settings.steps:
            value = float(rbm.log_likelihood(X).mean())
            steps.append(step)
            values.append(round(value, 4))
            seconds.append(round(clock.seconds, 3))
            if reached is None and value >= settings.target:
                reached = (step, clock.seconds)
            if value < -100:
                break
        try:
            with clock:
                rbm = rbm.moved(settings.lr * direction(rbm, rbm.gradient(X)))
        except (ArithmeticError, ValueError):
            break
    return {
        "steps": steps,
        "log_likelihood": values,
        "clock": seconds,
        "best": max(values),
        "final": values[-1],
        "steps_to_target": reached[0] if reached else None,
        "seconds_to_target": reached[1] if reached else None,
        "diverged": values[-1] < values[0] - 1 or steps[-1] < settings.steps,
    }


@dataclass(frozen=True, kw_only=True)
class Rivals(Settings):
    """Exact full-batch ascent of one method with momentum, until it reaches the target.

    ``momentum`` is that of gradient ascent with momentum for the directions, the first decay of
    "adamw" (no weight decay), and the momentum of "muon", which moves the weights, and AdamW at
    the same step size the biases.
    """

    method: str = "natural"
    lr: float = 1.0
    momentum: float = 0.0
    steps: int = 30
    size: int = 7
    hidden: int = 10
    damping: float = 1e-3
    eps: float = 0.01
    target: float = -11.8


@experiment("boltzmann_rivals", quick=Rivals(), paper=Rivals(steps=3000), tuning=Rivals(steps=300))
def rivals(settings: Rivals) -> dict:
    """Steps and processor seconds to a log-likelihood, of one method with one step size and
    momentum, on binary 7 x 7 digits.
    """
    X = binary_digits(settings.size, 0, margin=1e-9)
    rbm = data_start(X, settings.hidden, settings.generator())
    move, clock, best = _mover(settings, rbm), Clock(), -float("inf")
    for step in range(settings.steps + 1):
        value = float(rbm.log_likelihood(X).mean())
        best = max(best, value)
        if value >= settings.target:
            return {"steps_to_target": step, "seconds_to_target": clock.seconds, "best": best}
        if value < -100 or step == settings.steps:
            break
        try:
            with clock:
                rbm = move(rbm, rbm.gradient(X))
        except (ArithmeticError, ValueError):
            break
    return {"steps_to_target": None, "seconds_to_target": None, "best": best}


def _mover(settings: Rivals, rbm: RBM) -> Callable[[RBM, torch.Tensor], RBM]:
    """Return the function that makes one step, from the machine and its exact gradient."""
    lr, mu = settings.lr, settings.momentum
    if settings.method in ("adamw", "muon"):
        return _torch_mover(settings.method, lr, mu, rbm)
    direction = directions(rbm, settings.damping, settings.eps)[settings.method]
    velocity = torch.zeros_like(rbm.vector())

    def move(rbm: RBM, gradient: torch.Tensor) -> RBM:
        velocity.mul_(mu).add_(direction(rbm, gradient))
        return rbm.moved(lr * velocity)

    return move


def _torch_mover(method: str, lr: float, mu: float, rbm: RBM) -> Callable[[RBM, torch.Tensor], RBM]:
    """Return the step of an optimizer of torch, which descends the negative log-likelihood."""
    biases = torch.cat([rbm.a, rbm.b]).requires_grad_()
    W = rbm.W.clone().requires_grad_()
    adamw = partial(torch.optim.AdamW, lr=lr, betas=(mu, 0.999), weight_decay=0.0)
    muon = partial(
        torch.optim.Muon, lr=lr, momentum=mu, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
    )
    optimizers = [adamw([biases]), muon([W]) if method == "muon" else adamw([W])]

    def move(rbm: RBM, gradient: torch.Tensor) -> RBM:
        biases.grad = -gradient[: len(biases)]
        W.grad = -gradient[len(biases) :].reshape(W.shape)
        for optimizer in optimizers:
            optimizer.step()
        return RBM.from_vector(
            torch.cat([biases.detach(), W.detach().ravel()]), rbm.visible, rbm.hidden
        )

    return move


# ---- The penalty on the layers of a network


@dataclass(frozen=True, kw_only=True)
class Network(Settings):
    """A network of two hidden layers ("layers") or of two convolutions ("convolution"), and whose
    covariances are penalized: nothing ("plain"), of each hidden layer with itself ("hidden"), or
    with the layer before it ("visible"), with the weight ``gamma``.
    """

    problem: str = "layers"
    method: str = "plain"
    gamma: float = 0.0
    lr: float = 1.0
    momentum: float = 0.9
    batch: int = 100
    updates: int = 20
    every: int = 5
    target: float = 0.1
    size: int = 16


@experiment(
    "boltzmann_network",
    quick=Network(),
    paper=Network(updates=500),
    tuning=Network(updates=500),
)
def network(settings: Network) -> dict:
    """Updates of one network to a training loss, with the covariance penalty or without; then its
    run ends. Its test error where its validation loss is least, and at the end the mean squared
    correlation of its hidden units.
    """
    generator = settings.generator()
    images, labels = mnist(size=settings.size, split="all", seed=0, dtype=torch.float32)
    order = torch.randperm(len(images), generator=generator)
    x, t = images[order].unsqueeze(1), labels[order]
    if settings.problem == "layers":
        x = x.flatten(1)
    (x, validation, test), (t, *others) = (part.split([2000, 1000, 2000]) for part in (x, t))
    model = layered.network(settings.problem, settings.size, generator)
    loss = layered.objective(model, settings.method, settings.gamma)
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum)

    def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss(inputs, labels).backward()
        optimizer.step()

    found = [layered.seen(model, (x, t), (validation, others[0]), (test, others[1]))]
    fed_step = fed(step, x, t, settings.batch, generator)
    for _ in looks(fed_step, settings.updates, settings.every, Clock()):
        found.append(layered.seen(model, (x, t), (validation, others[0]), (test, others[1])))
        train = found[-1]["train"]
        if train <= settings.target or not train < 10 * found[0]["train"]:
            break
    stop = min(found, key=lambda one: one["validation"])
    arrived = found[-1]["train"] <= settings.target
    return {
        "steps_to_target": settings.every * (len(found) - 1) if arrived else None,
        "validation": stop["validation"],
        "test": stop["test"],
        "correlation": layered.correlation(model, x),
        "train": [one["train"] for one in found],
    }


@dataclass(frozen=True, kw_only=True)
class Geometry(Settings):
    """The path whose geometry is measured: exact gradient ascent, and where on it to look.

    The direction "prong" is recomputed every 50 steps: at steps 49, 99, ... it is as stale as it
    gets.
    """

    lr: float = 0.5
    steps: int = 200
    points: tuple[int, ...] = (0, 5, 20, 49, 99, 199)
    size: int = 7
    hidden: int = 10
    damping: float = 1e-3
    eps: float = 0.01


@experiment(
    "boltzmann_geometry",
    quick=Geometry(),
    paper=Geometry(steps=1000, points=(0, 5, 20, 49, 99, 199, 499, 999)),
)
def geometry(settings: Geometry) -> dict:
    """Along exact SGD: the six terms of the squared norm of G, its condition number, and angles to
    the natural gradient.
    """
    X = binary_digits(settings.size, 0)
    rbm = data_start(X, settings.hidden, settings.generator())
    ways = directions(rbm, settings.damping, settings.eps)
    rows = []
    for step in range(settings.steps + 1):
        gradient = rbm.gradient(X)
        tracked = {name: ways[name](rbm, gradient) for name in ("easi", "prong")}
        if step in settings.points:
            rows.append(_geometry_row(step, rbm, X, gradient, tracked, ways, settings.damping))
        rbm = rbm.moved(settings.lr * gradient)
    return {
        **{key: [row[key] for row in rows] for key in rows[0]},
        "mean_cosine": {
            n: sum(row["cosine"][n] for row in rows) / len(rows) for n in rows[0]["cosine"]
        },
        "first_cosine": rows[0]["cosine"],
        "last_cosine": rows[-1]["cosine"],
    }


def _geometry_row(
    step: int,
    rbm: RBM,
    X: torch.Tensor,
    gradient: torch.Tensor,
    tracked: dict,
    ways: dict,
    damping: float,
) -> dict:
    G = rbm.fisher()
    natural = boltzmann.fisher.solve(G, gradient, damping)
    found = {
        **tracked,
        **{name: ways[name](rbm, gradient) for name in ("sgd", "centred", "diagonal", "whitened")},
    }
    values, terms = torch.linalg.eigvalsh(G), boltzmann.norm_terms(G, rbm.visible, rbm.hidden)
    return {
        "step": step,
        "log_likelihood": float(rbm.log_likelihood(X).mean()),
        "terms": terms,
        "last_three_share": sum(list(terms.values())[3:]) / sum(terms.values()),
        "condition": float((values[-1] + damping) / (values[0].clamp_min(0) + damping)),
        "cosine": {name: boltzmann.metric_cosine(G, d, natural) for name, d in found.items()},
    }


@dataclass(frozen=True, kw_only=True)
class Assumption(Settings):
    """Descent on the first three terms of the squared norm of G, from a machine trained a
    little.
    """

    train_steps: int = 200
    steps: int = 100
    lr: float = 0.5
    size: int = 5
    hidden: int = 8


@experiment(
    "boltzmann_assumption", quick=Assumption(), paper=Assumption(train_steps=500, steps=1000)
)
def assumption(settings: Assumption) -> dict:
    """Does lowering the first three terms of the squared norm of G lower the last three, and what
    else does it do?
    """
    X = binary_digits(settings.size, 0)
    start = data_start(X, settings.hidden, settings.generator())
    for _ in range(settings.train_steps):
        start = start.moved(0.5 * start.gradient(X))
    out = {}
    parts = {"first_three": ("vv", "hh", "vh"), "vv": ("vv",), "hh": ("hh",), "vh": ("vh",)}
    for name, pairs in parts.items():
        rbm, rows = start, []
        for step in range(settings.steps + 1):
            if step % max(1, settings.steps // 20) == 0:
                rows.append(_state_of(rbm, X))
            gradient: Any
            gradient = sum(
                (2 if pair == "vh" else 1) * boltzmann.CovariancePenalty(pair).gradient(rbm)
                for pair in pairs
            )
            rbm = rbm.moved(-settings.lr * gradient)
        out[name] = {key: [row[key] for row in rows] for key in rows[0]}
        out[f"ratio_first_{name}"] = out[name]["first"][-1] / out[name]["first"][0]
        out[f"ratio_last_{name}"] = out[name]["last"][-1] / out[name]["last"][0]
        out[f"gain_cosine_{name}"] = out[name]["cosine"][-1] - out[name]["cosine"][0]
        out[f"gain_likelihood_{name}"] = (
            out[name]["log_likelihood"][-1] - out[name]["log_likelihood"][0]
        )
    return out


def _state_of(rbm: RBM, X: torch.Tensor) -> dict:
    G = rbm.fisher()
    terms = list(boltzmann.norm_terms(G, rbm.visible, rbm.hidden).values())
    values, gradient = torch.linalg.eigvalsh(G), rbm.gradient(X)
    natural = boltzmann.fisher.solve(G, gradient, 1e-3)
    return {
        "cosine": boltzmann.metric_cosine(G, gradient, natural),
        "first": sum(terms[:3]),
        "last": sum(terms[3:]),
        "log_likelihood": float(rbm.log_likelihood(X).mean()),
        "from_identity": float((G - torch.eye(len(G), dtype=G.dtype)).square().sum()) / len(G),
        "condition": float((values[-1] + 1e-3) / (values[0].clamp_min(0) + 1e-3)),
    }


# ---- the proxy


@dataclass(frozen=True, kw_only=True)
class Proxy(Settings):
    """CD-1 training during which the paper's matrix is compared with what it stands for.

    ``frozen``: the weights stay where 20 epochs of CD-1 left them, so that the true derivative is
    zero. ``states``: moments from binary states instead of probabilities.
    """

    epochs: int = 4
    lr: float = 0.3
    every: int = 5
    batch: int = 100
    size: int = 7
    hidden: int = 10
    window: int = 15
    frozen: bool = False
    states: bool = False


@experiment("boltzmann_proxy", quick=Proxy(), paper=Proxy(epochs=30))
def proxy(settings: Proxy) -> dict:
    """The paper's penalty matrix against the exact gradient of the squared norm of cov(v, h), along
    CD-1 training.
    """
    X, generator = binary_digits(settings.size, 0), settings.generator()
    rbm = data_start(X, settings.hidden, generator, 0.01)
    if settings.frozen:
        for _ in range(20):
            rbm = boltzmann.cd_epoch(
                rbm, X, lr=settings.lr, batch_size=settings.batch, generator=generator
            )
    averages = {
        rule: boltzmann.PaperPenalty(settings.window, rule=rule) for rule in ("printed", "product")
    }
    totals: dict[str, Any]
    exact, rows, totals = boltzmann.CovariancePenalty(), [], dict.fromkeys(averages, 0.0)
    count = 0
    for _ in range(settings.epochs):
        inside = []
        for rows_now in torch.randperm(len(X), generator=generator).split(settings.batch):
            v = X[rows_now]
            model, h = rbm.gibbs(v, 1, generator=generator)
            moments = _proxy_moments(rbm, model, h, settings.states, generator)
            penalties = {rule: average.update(moments) for rule, average in averages.items()}
            totals, count = {rule: totals[rule] + penalties[rule] for rule in totals}, count + 1
            if count % settings.every == 0:
                inside.append(_agreement(penalties, exact.gradient(rbm), rbm))
            if not settings.frozen:
                rbm = rbm.moved(settings.lr * rbm.contrast(v, model))
        rows.append({key: sum(row[key] for row in inside) / len(inside) for key in inside[0]})
    C, curves = (
        boltzmann.model_moments(rbm).covariance,
        {key: [row[key] for row in rows] for key in rows[0]},
    )
    slopes = {
        f"{rule}_slope": float((T / count * C).sum() / C.square().sum())
        for rule, T in totals.items()
    }
    means = {f"mean_{key}": sum(curve) / len(curve) for key, curve in curves.items()}
    summed = {f"summed_{rule}_to_covariance": _cosine(T, C) for rule, T in totals.items()}
    return {**curves, **slopes, **means, **summed, "batch_bias": -2 / settings.batch}


def _proxy_moments(
    rbm: RBM, model: torch.Tensor, h: torch.Tensor, states: bool, generator: torch.Generator
) -> boltzmann.Moments:
    """Return the batch moments of the reconstructions by binary states, or by probabilities."""
    q = rbm.hidden_mean(model)
    if not states:
        return boltzmann.sample_moments(rbm.visible_mean(h), q)
    return boltzmann.sample_moments(
        model, (torch.rand(q.shape, generator=generator, dtype=q.dtype) < q).to(q.dtype)
    )


def _agreement(
    penalties: dict[str, torch.Tensor], gradient: torch.Tensor, rbm: RBM
) -> dict[str, float]:
    """Return cosines of the averaged penalty matrices to the true gradient by W and to C, and
    shares of equal signs.
    """
    slope = gradient[rbm.visible + rbm.hidden :].reshape(rbm.W.shape)
    C = boltzmann.model_moments(rbm).covariance
    out = {"covariance_to_gradient": _cosine(C, slope)}
    for rule, P in penalties.items():
        out[f"{rule}_to_gradient"], out[f"{rule}_to_covariance"] = _cosine(P, slope), _cosine(P, C)
        out[f"{rule}_same_sign"] = float((P.sign() == slope.sign()).double().mean())
        out[f"{rule}_size"] = float(P.abs().max())
    return out


def _cosine(A: torch.Tensor, B: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(A.reshape(-1), B.reshape(-1), dim=0))


# ---- does it help?


@dataclass(frozen=True, kw_only=True)
class HeldOut(Settings):
    """The search: every method has 16 configurations, chosen on validation digits, then trained
    anew and tested.
    """

    epochs: int = 5
    inits: int = 1
    final_inits: int = 2
    size: int = 7
    hidden: int = 10
    batch: int = 100


RATES = (1.0, 2.0, 4.0, 8.0)
"""Step sizes of the search; at 8 most runs fall apart."""


def search_space() -> dict[str, list[dict]]:
    """Return the 16 configurations of each method: 16 step sizes for SGD, 4 step sizes times 4
    strengths elsewhere.
    """

    def grid(name: str, strengths: tuple) -> list[dict]:
        return [{"lr": lr, name: strength} for lr in RATES for strength in strengths]

    return {
        "sgd": [{"lr": 0.5 * 16 ** (i / 15)} for i in range(16)],
        "weight_decay": grid("decay", (3e-4, 1e-3, 3e-3, 1e-2)),
        "exact_penalty": grid("exact", (1e-3, 1e-2, 3e-2, 0.1)),
        "natural_penalty": grid("natural", (3e-3, 1e-2, 3e-2, 0.1)),
        "paper": grid("paper", ((1e-3, 0.1), (1e-3, 0.3), (1e-2, 0.01), (1e-2, 0.1))),
        "decorrelation": grid("hidden", (3e-3, 1e-2, 3e-2, 0.1)),
    }


@experiment("boltzmann_heldout", quick=HeldOut(), paper=HeldOut(epochs=60, final_inits=4))
def heldout(settings: HeldOut) -> dict:
    """Test error of each penalty when all methods search equally: choice by validation, one split
    of the digits a seed.
    """
    data, space = many.digits(settings.size, settings.seed), search_space()
    names = [name for name in space for _ in space[name]]
    configurations = [configuration for name in space for configuration in space[name]]
    generator = settings.generator()
    machines = train_all(settings, data, configurations * settings.inits, generator)
    errors = machines.errors(data["validation"]).reshape(settings.inits, -1).mean(0)
    best = {
        name: min((float(errors[i]), i) for i in range(len(names)) if names[i] == name)
        for name in space
    }
    chosen = [configurations[i] for _, i in best.values()]
    final = train_all(settings, data, chosen * settings.final_inits, settings.generator(1))
    scores = {
        part: final.errors(data[part]).reshape(settings.final_inits, -1).mean(0)
        for part in ("train", "test")
    }
    return {
        "chosen": {
            name: {
                key: list(value) if isinstance(value, tuple) else value for key, value in c.items()
            }
            for name, c in zip(space, chosen, strict=True)
        },
        "validation": {name: error for name, (error, _) in best.items()},
        "train": dict(zip(space, scores["train"].tolist(), strict=True)),
        "test": dict(zip(space, scores["test"].tolist(), strict=True)),
        "gain": {
            name: float(scores["test"][0] - error)
            for name, error in zip(space, scores["test"], strict=True)
        },
    }


@experiment("boltzmann_edge", quick=HeldOut(), paper=HeldOut(epochs=60))
def edge(settings: HeldOut) -> dict:
    """Does the search end far enough out? The least validation errors at twice its largest step and
    three times its largest strengths.
    """
    data, beyond = many.digits(settings.size, settings.seed), beyond_the_search()
    machines = train_all(
        settings, data, [c for part in beyond.values() for c in part], settings.generator()
    )
    errors = machines.errors(data["validation"]).split([len(part) for part in beyond.values()])
    least = {name: float(part.min()) for name, part in zip(beyond, errors, strict=True)}
    return {
        part: {
            name.removesuffix(f".{part}"): error
            for name, error in least.items()
            if name.endswith(part)
        }
        for part in ("step", "strength")
    }


def beyond_the_search() -> dict[str, list[dict]]:
    """Return the configurations just outside the search: ``method.step`` and, where it is a number,
    ``method.strength``.
    """
    out = {}
    for name, configurations in search_space().items():
        out[f"{name}.step"] = [
            {**c, "lr": 2 * c["lr"]} for c in configurations if c["lr"] == max(RATES)
        ]
        for kind in {key for c in configurations for key in c} - {"lr", "paper"}:
            largest = max(c[kind] for c in configurations)
            out[f"{name}.strength"] = [{"lr": lr, kind: 3 * largest} for lr in RATES[:-1]]
    return out


def train_all(
    settings: HeldOut, data: dict, configurations: list[dict], generator: torch.Generator
) -> many.Machines:
    """Train one machine for each configuration by CD-1 with a step size that falls linearly to
    zero.
    """
    lr = torch.tensor([c["lr"] for c in configurations])
    penalties = [
        _Penalty(kind, configurations, generator)
        for kind in ("decay", "exact", "natural", "paper", "hidden")
    ]
    machines = many.Machines.random(len(configurations), data["train"], settings.hidden, generator)
    visible, step = data["train"].visible, 0
    steps = settings.epochs * -(-len(visible) // settings.batch)
    for _ in range(settings.epochs):
        for rows in torch.randperm(len(visible), generator=generator).split(settings.batch):
            phases = many.contrast(machines, visible[rows], generator)
            change = phases.gradient()
            for penalty in penalties:
                penalty.subtract(change, phases, machines)
            for parameter, part in zip((machines.W, machines.a, machines.b), change, strict=True):
                parameter += _by(lr * (1 - step / steps), part)
            step += 1
    return machines


class _Penalty:
    """One kind of penalty, for those machines whose configuration asks for it; its own random
    numbers.
    """

    def __init__(self, kind: str, configurations: list[dict], generator: torch.Generator):
        self.kind = kind
        self.at = torch.tensor(
            [i for i, c in enumerate(configurations) if kind in c], dtype=torch.long
        )
        self.strength = torch.tensor([configurations[i][kind] for i in self.at])
        seed = int(torch.randint(2**31, (), generator=generator))
        self.generator = torch.Generator().manual_seed(seed)
        self.average, self.gamma = (
            many.MovingDifference(15, "printed"),
            torch.full((len(self.at),), 0.01),
        )

    def subtract(
        self, change: tuple[torch.Tensor, ...], phases: many.Phases, machines: many.Machines
    ) -> None:
        """Subtract the penalty from the change (W, a, b) of its machines, in place."""
        if len(self.at):
            for part, penalty in zip(
                change, self._directions(change, phases.of(self.at), machines), strict=True
            ):
                if penalty is not None:
                    part[self.at] -= penalty

    def _directions(
        self, change: tuple[torch.Tensor, ...], phases: many.Phases, machines: many.Machines
    ) -> tuple:
        if self.kind == "paper":
            return self._paper(change, phases)
        if self.kind == "decay":
            return _by(self.strength, machines.W[self.at]), None, None
        if self.kind == "natural":
            return _by(2 * self.strength, many.sample_covariance(phases)), None, None
        if self.kind == "exact":
            return tuple(_by(self.strength, d) for d in many.exact_rule(phases, self.generator))
        W, b = many.decorrelation(phases)
        return _by(self.strength, W), None, _by(self.strength, b)

    def _paper(self, change: tuple[torch.Tensor, ...], phases: many.Phases) -> tuple:
        """Move gamma by the threshold rule; the likelihood keeps the weight 1 - gamma."""
        P = self.average.update(many.moments(phases, "probabilities", self.generator))
        self.gamma = many.next_gamma(self.gamma, P, *self.strength.T)
        W, a, b = (_by(self.gamma, part[self.at]) for part in change)
        return W + _by(self.gamma, P), a, b


def _by(factor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return factor.reshape(-1, *[1] * (x.ndim - 1)) * x


# ---- learned whitening


@dataclass(frozen=True, kw_only=True)
class Whitened(Settings):
    """CD-1 training with one of the directions "sgd", "centred", "easi" or "prong" (every
    ``period`` steps).
    """

    method: str = "easi"
    lr: float = 0.3
    epochs: int = 4
    batch: int = 100
    size: int = 7
    hidden: int = 10
    rate: float = 0.01
    eps: float = 0.1
    period: int = 100
    damping: float = 1e-3


@experiment(
    "boltzmann_whitened", quick=Whitened(), paper=Whitened(epochs=20), tuning=Whitened(epochs=20)
)
def whitened(settings: Whitened) -> dict:
    """The second approach with samples: exact log-likelihood and the angle to the natural gradient
    while it learns.
    """
    X, generator = binary_digits(settings.size, 0), settings.generator()
    rbm = data_start(X, settings.hidden, generator)
    learned = boltzmann.LearnedWhitening(
        rbm.visible, rbm.hidden, rate=settings.rate, eps=settings.eps
    )
    eyes = torch.eye(rbm.visible, dtype=torch.float64), torch.eye(rbm.hidden, dtype=torch.float64)
    inverses: tuple[torch.Tensor, ...]
    inverses, steps, values, cosines = eyes, settings.epochs * -(-len(X) // settings.batch), [], []
    step = 0

    def direction(gradient: torch.Tensor) -> torch.Tensor:
        if settings.method == "sgd":
            return gradient
        if settings.method == "easi":
            return learned.direction(gradient)
        return boltzmann.whitened_direction(gradient, learned.mean_v, learned.mean_h, *inverses)

    for epoch in range(settings.epochs + 1):
        gradient = rbm.gradient(X)
        natural = boltzmann.fisher.solve(rbm.fisher(), gradient, settings.damping)
        values.append(round(float(rbm.log_likelihood(X).mean()), 4))
        cosines.append(boltzmann.metric_cosine(rbm.fisher(), direction(gradient), natural))
        if epoch == settings.epochs:
            break
        for rows in torch.randperm(len(X), generator=generator).split(settings.batch):
            v, h = rbm.gibbs(X[rows], 1, generator=generator)
            h = (torch.rand(h.shape, generator=generator, dtype=h.dtype) < rbm.hidden_mean(v)).to(
                h.dtype
            )
            learned.update(v, h)
            if settings.method == "prong" and step % settings.period == 0:
                inverses = tuple(
                    boltzmann.ridge_inverse(torch.cov(x.mT, correction=0), settings.eps)
                    for x in (v, h)
                )
            rate = settings.lr * (1 - step / steps)
            rbm = rbm.moved(rate * direction(rbm.contrast(X[rows], v)))
            step += 1
    return {
        "log_likelihood": values,
        "cosine": cosines,
        "final": values[-1],
        "cosine_first": cosines[1],
    }


# ---- projections


@dataclass(frozen=True, kw_only=True)
class Projections(Settings):
    """Numbers of directions, and how often each is drawn, on digits of the given size."""

    ks: tuple[int, ...] = (1, 3, 10, 30, 100)
    draws: int = 20
    size: int = 14
    hidden: int = 10


@experiment("boltzmann_projections", quick=Projections(), paper=Projections(draws=50))
def projections(settings: Projections) -> dict:
    """Relative errors of covariances from random projections, beside their laws."""
    X, generator = (
        mnist(split="train", size=settings.size)[0].flatten(1).double(),
        settings.generator(),
    )
    C = torch.cov(X.mT, correction=0)
    rbm = data_start(X, settings.hidden, generator, 0.3)
    h = (
        torch.rand(len(X), settings.hidden, generator=generator, dtype=torch.float64)
        < rbm.hidden_mean(X)
    ).double()
    cross = boltzmann.sample_moments(X, h).covariance
    out: dict[str, list]
    out = {key: [] for key in ("features", "sketch", "sketch_law", "norm", "norm_law")}
    for k in settings.ks:
        features, sketches, norms = [], [], []
        for _ in range(settings.draws):
            R = projection(k, len(C), generator=generator)
            features.append(_distance(debiased_projected_covariance(C, R), C))
            sketches.append(_distance(sketched_covariance(X, k, generator=generator), C))
            norms.append(
                float(projected_squared_norm(X, h, k, generator=generator) / cross.square().sum())
                - 1
            )
        for key, errors in (("features", features), ("sketch", sketches), ("norm", norms)):
            out[key].append((sum(e * e for e in errors) / len(errors)) ** 0.5)
        out["sketch_law"].append(sketch_error(C, k))
        out["norm_law"].append(projected_norm_error(cross, k))
    ratio = [a / b for a, b in zip(out["sketch"], out["sketch_law"], strict=True)]
    return {"ks": list(settings.ks), **out, "sketch_ratio": ratio}


def _distance(A: torch.Tensor, B: torch.Tensor) -> float:
    return float(torch.linalg.matrix_norm(A - B) / torch.linalg.matrix_norm(B))
