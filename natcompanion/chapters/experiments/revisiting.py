"""The experiments on the revisiting paper. Every column of a table chooses its settings by the same
declared search.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from natcompanion.chapters.experiments import Settings, experiment
from natcompanion.chapters.experiments import _revisiting_autoencoder as autoencoder
from natcompanion.chapters.experiments import _revisiting_metrics as comparisons
from natcompanion.chapters.experiments import _revisiting_order as orders
from natcompanion.chapters.experiments import _revisiting_rivals as racing
from natcompanion.chapters.experiments import _revisiting_training as training
from natcompanion.chapters.experiments.compare import Compare
from natcompanion.data import mnist

# ---- Section 3


@dataclass(frozen=True, kw_only=True)
class Unbalanced(Settings):
    """Examples of each class, updates, step size and damping."""

    examples: int = 100
    updates: int = 10
    rate: float = 0.3
    damping: float = 1e-3


@experiment("revisiting_unbalanced", quick=Unbalanced())
def unbalanced(settings: Unbalanced) -> dict:
    """What a metric on inputs with twice as many of class A does to the model's speed on A, and to
    its answers.
    """
    return comparisons.unbalanced(
        training.draws(settings),
        settings.examples,
        settings.updates,
        settings.rate,
        settings.damping,
    )


# ---- Section 4


@dataclass(frozen=True, kw_only=True)
class Figure1(Settings):
    """Starts on a square grid, steps, the step size of the natural gradient, and random points for
    the step lengths.
    """

    side: int = 9
    extent: float = 4.0
    steps: int = 300
    natural_rate: float = 0.1
    points: int = 2000


@experiment("revisiting_figure1", quick=Figure1())
def figure1(settings: Figure1) -> dict:
    """Where four methods end on the auto-encoder with one hidden unit, and how long their steps
    are.
    """
    model = autoencoder.example()
    wells = autoencoder.minima(model)[:2]
    line = torch.linspace(-settings.extent, settings.extent, settings.side, dtype=torch.float64)
    starts = torch.cartesian_prod(line, line)
    values: dict = {"minima": wells, "minima_loss": model.loss(wells)}
    for method in autoencoder.METHODS:
        rate = settings.natural_rate if method == "natural" else None
        path = model.path(starts, method, settings.steps, rate)
        loss = model.loss(path).nan_to_num(torch.inf)
        distance = (path[-1][:, None] - wells).norm(dim=-1).nan_to_num(torch.inf)
        values[f"end_{method}"] = torch.where(distance.min(1).values < 0.5, distance.argmin(1), -1)
        values[f"uphill_{method}"] = (loss[1:] > loss[:-1] + 1e-12).double().mean(0)
    theta = (
        2
        * settings.extent
        * (
            torch.rand(settings.points, 2, generator=training.draws(settings), dtype=torch.float64)
            - 0.5
        )
    )
    step = {
        name: model.step(theta, name, autoencoder.RATES[name], autoencoder.DAMPING[name])
        for name in ("natural", "gradient")
    }
    cosine = torch.cosine_similarity(step["natural"], step["gradient"], dim=-1)
    readings = [(x, factor) for x in autoencoder.INPUTS.values() for factor in (1.0, 2.0)]
    claimed = [
        autoencoder.claimed_lengths(autoencoder.AutoEncoder(x), theta, factor)
        for x, factor in readings
    ]
    return {
        **values,
        "median_angle": float(torch.rad2deg(torch.arccos(cosine.clamp(-1, 1))).median()),
        "short_natural": int((step["natural"].norm(dim=-1) < step["gradient"].norm(dim=-1)).sum()),
        "claimed_lengths": claimed,
        "inputs": list(autoencoder.INPUTS),
        "points": settings.points,
    }


@dataclass(frozen=True, kw_only=True)
class Convergence(Settings):
    """Sizes of the sample of labels, and factors by which the logits are sharpened."""

    samples: tuple[int, ...] = (100, 1000, 10_000)
    sharpen: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    examples: int = 8


@experiment("revisiting_convergence", quick=Convergence())
def convergence(settings: Convergence) -> dict:
    """How far U and the Hessian are from G: labels drawn from the model, and certain labels; and
    the three ranks.
    """
    return comparisons.convergence(
        training.draws(settings), settings.samples, settings.sharpen, settings.examples
    )


@dataclass(frozen=True, kw_only=True)
class Variances(Settings):
    """Examples in the batch."""

    examples: int = 200


@experiment("revisiting_variances", quick=Variances())
def variances(settings: Variances) -> dict:
    """Whether the directions in which the model changes little are those in which the gradients
    vary little.
    """
    return comparisons.variances(training.draws(settings), settings.examples)


@dataclass(frozen=True, kw_only=True)
class Plateau(Settings):
    """Factors on the input weights: the larger, the more saturated the hidden units."""

    factors: tuple[float, ...] = (1.0, 4.0, 16.0)
    damping: float = 1e-6


@experiment("revisiting_plateau", quick=Plateau())
def plateau(settings: Plateau) -> dict:
    """KL divergence that a small step of each method moves the model on and off a plateau."""
    return comparisons.plateau(training.draws(settings), settings.factors, settings.damping)


@dataclass(frozen=True, kw_only=True)
class Solvability(Settings):
    """Examples in a batch, the largest number of products, and dampings."""

    examples: int = 8
    max_iter: int = 40
    dampings: tuple[float, ...] = (1e-6, 1e-4, 1e-2)


@experiment("revisiting_solvability", quick=Solvability())
def solvability(settings: Solvability) -> dict:
    """The system G x = g with the metric of the same batch and of another one, by three solvers."""
    return comparisons.solvability(
        training.draws(settings), settings.examples, settings.max_iter, settings.dampings
    )


# ---- Section 5


@dataclass(frozen=True, kw_only=True)
class Table1(Settings):
    """A column of Table 1, the data, the network, the budget, and the search, which is the same for
    all columns.

    The data are "digits" (5,000 of them, the seed is the fold), "fashion" or "mnist" (the whole
    set, to be found or downloaded; the seed is the subset). The natural-gradient columns and the
    covariance try every pair of a step size and a damping; a damping followed by "lm" adapts by Eq.
    30. Minibatch SGD has no damping and tries as many step sizes instead. The setting with the
    lowest validation error at the end wins (at a tie, with the lowest validation cross-entropy).
    """

    column: str = "same"
    data: str = "digits"
    size: int = 14
    labelled: int = 1000
    validation: int = 500
    test: int = 1000
    hidden: int = 50
    maps: tuple[int, int] | tuple[()] = ()
    updates: int = 20
    batch: int = 500
    metric_batch: int = 500
    max_iter: int = 10
    sgd_batch: int = 50
    sgd_ratio: int = 20
    rates: tuple[float, ...] = (0.1,)
    dampings: tuple[str, ...] = ("0.01",)
    sgd_rates: tuple[float, ...] = (1.0,)
    decay_after: int = 0
    watch_every: int = 10

    def search(self) -> list[training.Setting]:
        """Return the settings that this column tries."""
        if self.column == "msgd":
            return [training.Setting(rate) for rate in self.sgd_rates]
        return [
            training.Setting(rate, float(damping.removesuffix("lm")), damping.endswith("lm"))
            for rate, damping in product(self.rates, self.dampings)
        ]

    def split(self) -> training.Split:
        """Return the data of this seed, on the device."""
        sizes = {"size": self.size, "labelled": self.labelled, "validation": self.validation}
        if self.data == "digits":
            return training.digits_fold(self.seed, **sizes).to(self.device)
        return training.subset(self.data, self.seed, test=self.test, **sizes).to(self.device)

    def schedule(self, update: int) -> float:
        """Return the factor on the step size: 1, or the decay of Section 8.6."""
        return (
            1.0
            if not self.decay_after
            else 1 / (1 + max(0, update - self.decay_after) / (self.decay_after / 10))
        )


SEARCH: dict[str, Any] = {
    "updates": 100,
    "rates": (0.1, 0.5),
    "dampings": ("0.001", "0.01", "2.0lm"),
    "sgd_rates": (0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
}
"""Six settings for each column, at the size of the chapter."""

WIDE: dict[str, Any] = {
    "updates": 100,
    "rates": (0.1, 0.5, 1.0, 5.0, 10.0),
    "dampings": ("0.01", "0.1", "2.0lm"),
    "sgd_rates": (
        0.02,
        0.03,
        0.044,
        0.065,
        0.097,
        0.14,
        0.21,
        0.32,
        0.47,
        0.7,
        1.0,
        1.5,
        2.3,
        3.4,
        5.0,
    ),
}
"""Fifteen settings for each column, among them those that the paper chose at its own size."""

PAPER: dict[str, Any] = {
    "size": 28,
    "labelled": 5000,
    "validation": 1000,
    "test": 10_000,
    "hidden": 1500,
    "updates": 2000,
    "batch": 2500,
    "metric_batch": 2500,
    "max_iter": 20,
    "sgd_batch": 250,
    "rates": (0.1, 1.0, 5.0),
    "dampings": ("0.01", "0.1", "2.0lm"),
    "sgd_rates": (0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0),
    "watch_every": 50,
}
"""The paper's sizes (Section 8.5), and a search that holds the settings it chose. About a day for
each column on one core.
"""

SHORT_SEARCH: dict[str, Any] = {
    "updates": 100,
    "rates": (0.1, 0.5),
    "dampings": ("0.01", "2.0lm"),
    "sgd_rates": (0.1, 0.3, 1.0, 2.0),
}
"""Four settings for each column, where a run is longer."""


@experiment(
    "revisiting_restricted_mnist",
    quick=Table1(),
    chapter=Table1(**SEARCH),
    wide=Table1(**WIDE),
    paper=Table1(data="mnist", **PAPER),
)
def restricted_mnist(settings: Table1) -> dict:
    """Table 1, restricted MNIST: one column, its settings chosen on a validation set."""
    return _column(settings)


@experiment(
    "revisiting_fashion",
    quick=Table1(data="fashion"),
    chapter=Table1(data="fashion", test=10_000, **SHORT_SEARCH),
    paper=Table1(data="fashion", **PAPER),
)
def fashion(settings: Table1) -> dict:
    """Table 1 on Fashion-MNIST, where 58,500 images are unlabelled: one column, its settings chosen
    on a validation set.
    """
    return _column(settings)


@experiment(
    "revisiting_convolutional",
    quick=Table1(size=14, maps=(4, 8), hidden=20, updates=3, batch=100, metric_batch=100),
    chapter=Table1(
        maps=(4, 8),
        hidden=50,
        labelled=2000,
        batch=250,
        metric_batch=250,
        decay_after=20,
        **{**SHORT_SEARCH, "updates": 40, "rates": (0.5, 1.0), "dampings": ("0.1", "5.0lm")},
    ),
)
def convolutional(settings: Table1) -> dict:
    """Table 1, MNIST: one column for the network with two convolutions, its settings chosen on a
    validation set.
    """
    return _column(settings)


def _column(settings: Table1) -> dict:
    """Run the search of one column; return what it tried, and the results of the winner."""
    split = settings.split()
    tried = [_one_run(settings, split, setting) for setting in settings.search()]
    best = min(tried, key=lambda run: (run["validation"], run["validation_loss"]))
    return {
        **best,
        "search": [{key: value for key, value in run.items() if key != "curve"} for run in tried],
    }


def _one_run(settings: Table1, split: training.Split, setting: training.Setting) -> dict:
    """Train once and return the setting, the final errors and losses, and the curves."""
    generator = training.draws(settings, 1)
    inputs = split.x.shape[1]
    model = (
        training.convolutional(settings.size, settings.maps, settings.hidden, generator)
        if settings.maps
        else training.mlp(inputs, settings.hidden, generator)
    ).to(settings.device)
    curve: list[dict] = []

    def watch(update: int) -> None:
        if update % settings.watch_every == 0:
            curve.append(
                {
                    "update": update,
                    "train": training.cross_entropy(model, split.x, split.t),
                    "test": training.error(model, *split.test),
                }
            )

    training.train(
        settings.column,
        model,
        split,
        setting,
        generator,
        updates=settings.updates,
        batch=settings.batch,
        metric_batch=settings.metric_batch,
        max_iter=settings.max_iter,
        sgd_ratio=settings.sgd_ratio,
        sgd_batch=settings.sgd_batch,
        watch=watch,
        schedule=settings.schedule,
    )
    loss = training.cross_entropy(model, split.x, split.t)
    return {
        "rate": setting.rate,
        "damping": setting.damping,
        "adaptive": setting.adaptive,
        "diverged": not loss < 1e3,
        "train": min(loss, 1e3),
        "train_error": training.error(model, split.x, split.t),
        "validation": training.error(model, *split.validation),
        "validation_loss": min(training.cross_entropy(model, *split.validation), 1e3),
        "test": training.error(model, *split.test),
        "curve": curve,
    }


# ---- Table 1 with early stopping


@experiment(
    "revisiting_early_stopping",
    quick=Table1(),
    chapter=Table1(**{**SEARCH, "watch_every": 5}),
    fashion=Table1(data="fashion", test=10_000, **{**SHORT_SEARCH, "watch_every": 5}),
)
def early_stopping(settings: Table1) -> dict:
    """Table 1 with the early stopping of Algorithm 1: one column, each run stopped at its least
    validation error, and the setting with the least of these.
    """
    split = settings.split()
    tried = [_stopped_run(settings, split, setting) for setting in settings.search()]
    best = min(tried, key=lambda run: (run["validation"], run["validation_loss"]))
    return {
        **best,
        "search": [{key: value for key, value in run.items() if key != "curve"} for run in tried],
    }


def _stopped_run(settings: Table1, split: training.Split, setting: training.Setting) -> dict:
    """Train once; return the setting, the curves, and what was seen at the least validation error
    (at a tie, at the least validation loss).
    """
    generator = training.draws(settings, 1)
    model = training.mlp(split.x.shape[1], settings.hidden, generator).to(settings.device)
    curve: list[dict] = []

    def watch(update: int) -> None:
        if update % settings.watch_every == 0:
            curve.append(
                {
                    "update": update,
                    "train": min(training.cross_entropy(model, split.x, split.t), 1e3),
                    "validation": training.error(model, *split.validation),
                    "validation_loss": min(training.cross_entropy(model, *split.validation), 1e3),
                    "test": training.error(model, *split.test),
                }
            )

    watch(0)
    training.train(
        settings.column,
        model,
        split,
        setting,
        generator,
        updates=settings.updates,
        batch=settings.batch,
        metric_batch=settings.metric_batch,
        max_iter=settings.max_iter,
        sgd_ratio=settings.sgd_ratio,
        sgd_batch=settings.sgd_batch,
        watch=watch,
    )
    stop = min(curve, key=lambda point: (point["validation"], point["validation_loss"]))
    return {
        "rate": setting.rate,
        "damping": setting.damping,
        "adaptive": setting.adaptive,
        "end_test": curve[-1]["test"],
        **stop,
        "curve": curve,
    }


# ---- Table 1 beside momentum


@dataclass(frozen=True, kw_only=True)
class Rivals(Settings):
    """One method at one setting on 400 labelled digits, the seed's twelfth; seeds from 0 to 11.

    Methods: "natural", "unlabelled" (the metric on unlabelled inputs), "sgd", "adamw", "muon" and
    "kfac". ``momentum`` is the first decay of "adamw"; ``second`` is the damping of a method with a
    metric. A run ends at the target of the training loss, or after ``epochs``.
    """

    method: str = "natural"
    lr: float = 0.1
    momentum: float = 0.9
    second: float = 0.0
    batch: int = 200
    period: int = 10
    size: int = 14
    hidden: int = 50
    epochs: int = 80
    target: float = 0.01


@experiment(
    "revisiting_rivals",
    quick=Rivals(second=0.01, epochs=2),
    chapter=Rivals(),
    tuning=Rivals(),
)
def rivals(settings: Rivals) -> dict:
    """Updates and processor seconds of one method with momentum to a training loss, and its test
    error where its validation loss is least.
    """
    split = racing.twelfth(settings.seed, settings.size)
    model = training.mlp(split.x.shape[1], settings.hidden, training.draws(settings, 1))
    an_epoch = len(split.x) // settings.batch
    setting = Compare(
        seed=settings.seed,
        method=settings.method,
        lr=settings.lr,
        momentum=settings.momentum,
        second=settings.second,
        period=settings.period,
        updates=settings.epochs * an_epoch,
    )
    points = racing.race(
        setting,
        model,
        split,
        batch=settings.batch,
        every=max(an_epoch // 2, 1),
        target=settings.target,
    )
    end, stop = points[-1], min(points, key=lambda point: point["validation"])
    arrived = end["train"] <= settings.target
    return {
        "updates_to_target": end["update"] if arrived else None,
        "seconds_to_target": end["seconds"] if arrived else None,
        "validation": stop["validation"],
        "test": stop["test"],
        "stopped": stop["update"],
        "updates": [point["update"] for point in points],
        "clock": [round(point["seconds"], 4) for point in points],
        "train": [float(f"{point['train']:.4g}") for point in points],
    }


@dataclass(frozen=True, kw_only=True)
class WhyUnlabelled(Settings):
    """Updates before the measurement, and the damping of the compared steps; the seed is the
    fold.
    """

    size: int = 14
    labelled: int = 1000
    hidden: int = 50
    updates: int = 20
    batch: int = 500
    damping: float = 1e-4
    max_iter: int = 200
    decrease: float = 1e-3


@experiment("revisiting_why_unlabelled", quick=WhyUnlabelled())
def why_unlabelled(settings: WhyUnlabelled) -> dict:
    """How far a step moves the model on its batch, on unlabelled and on test inputs, for equal
    decrease of the loss.
    """
    split = training.digits_fold(
        settings.seed, size=settings.size, labelled=settings.labelled, validation=500
    ).to(settings.device)
    generator = training.draws(settings, 1)
    model = training.mlp(split.x.shape[1], settings.hidden, generator).to(settings.device)
    training.train(
        "same",
        model,
        split,
        training.Setting(0.1, 0.01),
        generator,
        updates=settings.updates,
        batch=settings.batch,
        metric_batch=settings.batch,
        max_iter=10,
    )
    return comparisons.reach(
        model,
        split,
        settings.batch,
        settings.damping,
        settings.max_iter,
        settings.decrease,
        generator,
    )


# ---- Section 8.3


@dataclass(frozen=True, kw_only=True)
class Digits(Settings):
    """Size and number of the digits, and the optimizer: Levenberg-Marquardt damping from
    ``damping``.
    """

    size: int = 14
    examples: int = 300
    hidden: int = 20
    rate: float = 1.0
    damping: float = 1.0
    batch: int = 100
    max_iter: int = 10
    updates: int = 100


@experiment(
    "revisiting_digits",
    quick=Digits(),
    chapter=Digits(size=28, examples=5000, hidden=200, batch=1000, updates=200),
)
def digits(settings: Digits) -> dict:
    """Updates of the natural gradient until no digit is misclassified; each repeated from a saved
    state.
    """
    images, t = (
        part.to(settings.device)
        for part in mnist(size=settings.size, split="all", seed=0, dtype=torch.float32)
    )
    setting = training.Setting(settings.rate, settings.damping, adaptive=True)
    errors, repeated = training.to_no_error(
        images[: settings.examples].flatten(1),
        t[: settings.examples],
        settings.hidden,
        setting,
        training.draws(settings),
        batch=settings.batch,
        max_iter=settings.max_iter,
        updates=settings.updates,
    )
    return {"updates": len(errors) - 1, "errors": errors, "repeated": repeated}


# ---- Section 6


@dataclass(frozen=True, kw_only=True)
class Stream(Settings):
    """The stream of deformed digits, its segments and replacements, the network, and the digits
    held out.
    """

    size: int = 14
    hidden: int = 50
    segments: int = 10
    replacements: int = 5
    segment: int = 100
    batch: int = 100
    held_out: int = 1000


@dataclass(frozen=True, kw_only=True)
class Order(Stream):
    """The step sizes to choose from, and the damping and the solver of the natural gradient."""

    rates: tuple[float, ...] = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    damping: float = 1.0
    max_iter: int = 10
    rtol: float = 0.01
    sgd_rates: tuple[float, ...] = tuple(k / 10 for k in range(2, 21))


@experiment(
    "revisiting_order",
    quick=Order(segments=3, replacements=2),
    chapter=Order(segment=500, batch=50, held_out=2000),
)
def order(settings: Order) -> dict:
    """Figure 3: variance of the trained model when a tenth of the first half of the data is
    replaced.
    """
    return orders.order(settings)


@dataclass(frozen=True, kw_only=True)
class OrderSpeed(Stream):
    """Two step sizes of SGD, and how many times longer the slow one may go on."""

    segment: int = 500
    batch: int = 50
    rate: float = 1.0
    slow: float = 0.1
    longer: int = 5


@experiment(
    "revisiting_order_speed",
    quick=OrderSpeed(segments=3, replacements=2, segment=100),
    chapter=OrderSpeed(),
)
def order_speed(settings: OrderSpeed) -> dict:
    """Section 6: the variance of SGD at a smaller step size, and with more steps at that step
    size.
    """
    return orders.order_speed(settings)


@dataclass(frozen=True, kw_only=True)
class OrderFrontier(Stream):
    """One method at one step size and momentum, and which segments are replaced.

    ``method`` is "natural", "sgd", "adamw", "muon" or "kfac"; the momentum of AdamW is its first
    decay. ``damping`` is of the natural gradient and of K-FAC.
    """

    method: str = "natural"
    lr: float = 0.5
    momentum: float = 0.0
    damping: float = 1.0
    period: int = 10
    max_iter: int = 10
    rtol: float = 0.01
    segment: int = 500
    batch: int = 50
    held_out: int = 2000
    replaced: tuple[int, ...] = (0, 4, 9)


@experiment(
    "revisiting_order_frontier",
    quick=OrderFrontier(segments=3, segment=100, held_out=500, replaced=(0, 2)),
    tuning=OrderFrontier(replaced=(4,)),
    chapter=OrderFrontier(replaced=(4,)),
)
def order_frontier(settings: OrderFrontier) -> dict:
    """Figure 3 as a frontier: validation error and variance of one method at one setting."""
    return orders.frontier(settings)


@experiment(
    "revisiting_order_rivals",
    quick=OrderFrontier(segments=3, segment=100, held_out=500, replaced=(0, 2)),
    tuning=OrderFrontier(replaced=(4,)),
    chapter=OrderFrontier(replaced=(4,)),
)
def order_rivals(settings: OrderFrontier) -> dict:
    """Figure 3 with momentum: validation error and variance of one method at one setting."""
    return orders.frontier(settings)


# ---- Section 7


@dataclass(frozen=True, kw_only=True)
class Products(Settings):
    """The network, the batch, and how often each product is timed."""

    size: int = 28
    hidden: int = 200
    batch: int = 500
    repeats: int = 20


@experiment("revisiting_products", quick=Products())
def products(settings: Products) -> dict:
    """Section 7: processor time of a product with the Gauss-Newton matrix (the metric) and with the
    Hessian.
    """
    return training.time_products(settings)
