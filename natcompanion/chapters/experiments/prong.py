"""The experiments on PRONG. Every method chooses its settings by the same declared search."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from natcompanion import layers
from natcompanion.chapters import statistics
from natcompanion.chapters.experiments import Settings, experiment
from natcompanion.chapters.experiments import _prong_convolutional as maps
from natcompanion.chapters.experiments import _prong_fisher as fisher
from natcompanion.chapters.experiments import _prong_time as timing
from natcompanion.chapters.experiments import _prong_training as training

# ---- Section 4.2, Figure 3c-d

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
SECOND = {"rmsprop": (0.9, 0.99, 0.999), "prong": (1e-1, 1e-2, 1e-3), "prong+": (1e-1, 1e-2, 1e-3)}
"""What a method searches besides step size and momentum. One that has nothing more tries as many
more step sizes.
"""


def choices(
    method: str, settings: Any, second: Mapping[str, tuple[float, ...]]
) -> list[training.Choice]:
    """Return the points that a method tries: as many as every other method."""
    if settings.second:
        return training.choices_of(settings.rates, settings.momenta, settings.second)
    if method in second:
        return training.choices_of(settings.rates, settings.momenta, second[method])
    rates = training.refined(settings.rates, len(second["prong"]))
    return training.choices_of(rates, settings.momenta, (0.0,))


@dataclass(frozen=True, kw_only=True)
class AutoEncoder(Settings):
    """The auto-encoder, the budget, and the search.

    All combinations of step size, momentum and second setting (empty: the method's own) are run for
    ``short`` updates; the ``kept`` best are trained to the end from ``repeats`` other
    initializations, and the lowest mean training error wins.
    """

    method: str = "sgd"
    start: str = "sigmoid"
    size: int = 7
    widths: tuple[int, ...] = (49, 20, 5)
    updates: int = 60
    short: int = 20
    kept: int = 2
    rates: tuple[float, ...] = (1e-2, 1e-1)
    momenta: tuple[float, ...] = (0.0,)
    second: tuple[float, ...] = ()
    repeats: int = 2
    every: int = 20
    period: int = 20
    batch: int = 128
    samples: int = 1000
    watched: int = 1000


CHAPTER: dict[str, Any] = {
    "size": 14,
    "widths": (196, 100, 50, 25, 10),
    "updates": 1000,
    "short": 150,
    "kept": 3,
    "rates": RATES,
    "momenta": (0.0, 0.9),
    "repeats": 5,
    "every": 20,
    "period": 100,
}
PAPER: dict[str, Any] = {
    "size": 28,
    "widths": (784, 1000, 500, 250, 30),
    "updates": 5000,
    "rates": (0.1,),
    "second": (0.0,),
    "repeats": 1,
    "every": 100,
    "period": 100,
    "samples": 4000,
}
"""The paper's network. Its step sizes come from the search at the size of the chapter; give one for
each run.
"""


@experiment(
    "prong_autoencoder",
    quick=AutoEncoder(),
    chapter=AutoEncoder(**CHAPTER),
    paper=AutoEncoder(**PAPER),
)
def autoencoder(settings: AutoEncoder) -> dict:
    """Figure 3c-d: error of the auto-encoder against updates and CPU time, one method at its best
    settings.
    """
    x, x_test = training.images(settings.size)
    watched = x[: settings.watched], x_test[: settings.watched]

    def make(choice: training.Choice, stream: int) -> training.Run:
        return training.autoencoder_run(
            settings.method,
            settings.start,
            choice,
            settings.widths,
            x,
            settings.generator(stream),
            period=settings.period,
            batch=settings.batch,
            samples=settings.samples,
        )

    best, tried, runs = training.search(
        make,
        choices(settings.method, settings, SECOND),
        lambda run: run.error(watched[0]),
        lambda run: training.record(run, *watched, settings.updates, settings.every),
        short=settings.short,
        kept=settings.kept,
        repeats=settings.repeats,
    )
    curves = {key: [[float(f"{v:.4g}") for v in run[key]] for run in runs] for key in runs[0]}
    return {"best": asdict(best), "search": tried, **curves}


# ---- Section 4.1, Figure 2


@dataclass(frozen=True, kw_only=True)
class Conditioning(Settings):
    """The network of tanh units on 10 x 10 digits, the images for the metric, and the values of
    epsilon.
    """

    widths: tuple[int, ...] = (100, 20, 20, 10)
    images: int = 1000
    eps: tuple[float, ...] = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
    printed_eps: float = 1e-3


@experiment("prong_conditioning", quick=Conditioning(), chapter=Conditioning(images=4000))
def conditioning(settings: Conditioning) -> dict:
    """Figure 2a-b: condition numbers of the middle layer's Fisher matrix before and after the first
    whitening.
    """
    x = fisher.digits()[0][: settings.images]
    model = fisher.tanh_network(settings.widths, settings.generator())
    middle = len(settings.widths) // 2 - 1
    place, layer = fisher.linear_layers(model)[middle]
    G = fisher.layer_fisher(model, layer, x)

    def whitened(eps: float, centred: bool = True) -> dict[str, float]:
        statistics = fisher.layer_statistics(model, place, x, eps, centred)
        return fisher.conditions(fisher.in_coordinates(G, fisher.whitened_map(*statistics)))

    after = [whitened(eps) for eps in settings.eps]
    return {
        "before": fisher.conditions(fisher.in_coordinates(G, fisher.plain_map(layer.in_features))),
        "after": {name: [values[name] for values in after] for name in fisher.DEFINITIONS},
        "printed": whitened(settings.printed_eps, centred=False),
        "centred": whitened(settings.printed_eps),
    }


@dataclass(frozen=True, kw_only=True)
class ConditioningDuring(Settings):
    """The same network in training; the step size is the one of ``rates`` that ends nearest to the
    training loss ``target``.
    """

    method: str = "sgd"
    widths: tuple[int, ...] = (100, 20, 20, 10)
    images: int = 1000
    updates: int = 100
    every: int = 50
    period: int = 100
    batch: int = 100
    eps: float = 1e-3
    target: float = 0.2
    rates: tuple[float, ...] = (1e-2, 1e-1)


def _nearest_rate(
    settings: ConditioningDuring, start: Callable[[float], fisher.Training]
) -> tuple[float, list[float]]:
    """Return the step size whose final loss is nearest to the target, and all final losses."""
    final = [start(rate).train(settings.updates).loss() for rate in settings.rates]
    nearest = min(
        zip(final, settings.rates, strict=True), key=lambda pair: abs(pair[0] - settings.target)
    )
    return nearest[1], final


@experiment(
    "prong_conditioning_during",
    quick=ConditioningDuring(),
    chapter=ConditioningDuring(
        images=2000, updates=300, every=20, rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
    ),
)
def conditioning_during(settings: ConditioningDuring) -> dict:
    """Figure 2c: condition numbers during training, for one method, at a matched training loss."""
    x, t = fisher.digits()
    options = {key: getattr(settings, key) for key in ("widths", "period", "batch", "eps")}

    def start(rate: float) -> fisher.Training:
        return fisher.Training(settings.method, rate, x, t, settings.generator(), **options)

    rate, final = _nearest_rate(settings, start)
    run = start(rate)
    curve = [run.conditions(x[: settings.images])]
    for _ in range(settings.updates // settings.every):
        curve.append(run.train(settings.every).conditions(x[: settings.images]))
    return {
        "rate": rate,
        "loss": run.loss(),
        "final": final,
        **{name: [float(f"{values[name]:.4g}") for values in curve] for name in fisher.DEFINITIONS},
    }


@experiment(
    "prong_conditioning_equal",
    quick=ConditioningDuring(updates=50, images=200),
    chapter=ConditioningDuring(
        images=2000, updates=300, every=100, rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
    ),
)
def conditioning_equal(settings: ConditioningDuring) -> dict:
    """Figure 2c from the same initial conditioning for all, for the middle layer and for the
    Fisher matrix of all weights and biases.
    """
    x, t = fisher.digits()
    options = {key: getattr(settings, key) for key in ("widths", "period", "batch", "eps")}

    def start(rate: float) -> fisher.EqualStart:
        return fisher.EqualStart(settings.method, rate, x, t, settings.generator(), **options)

    rate, final = _nearest_rate(settings, start)
    run, images = start(rate), x[: settings.images]
    middle, full = [run.conditions(images)], [run.full_conditions(images)]
    for _ in range(settings.updates // settings.every):
        run.train(settings.every)
        middle.append(run.conditions(images))
        full.append(run.full_conditions(images))
    whitened = None
    if settings.method == "prong":
        whitened = start(rate).whiten().full_conditions(images)
    return {"rate": rate, "loss": run.loss(), "final": final} | {
        "middle": {name: [values[name] for values in middle] for name in fisher.DEFINITIONS},
        "full": {name: [values[name] for values in full] for name in fisher.DEFINITIONS},
        "whitened": whitened,
    }


# ---- Section 3.2


@dataclass(frozen=True, kw_only=True)
class Alignment(Settings):
    """The network of Figure 2, updates before the whitening, and the updates after it at which the
    steps are compared.
    """

    widths: tuple[int, ...] = (100, 20, 20, 10)
    images: int = 1000
    before: int = 100
    lags: tuple[int, ...] = (0, 10, 30, 100, 300)
    rate: float = 1e-2
    batch: int = 100
    eps: float = 1e-2


@experiment("prong_alignment", quick=Alignment())
def alignment(settings: Alignment) -> dict:
    """Cosine of PRONG's step with the natural gradient of each layer, by the age of the
    whitening.
    """
    x, t = fisher.digits()
    run = fisher.Training(
        "prong",
        settings.rate,
        x,
        t,
        settings.generator(),
        widths=settings.widths,
        period=100,
        batch=settings.batch,
        eps=settings.eps,
    ).train(settings.before)
    watched = x[: settings.images], t[: settings.images]
    found: dict[str, list[float]] = {"stale": [], "fresh": [], "gradient": []}
    old: list[torch.Tensor] = []
    for lag, last in zip(settings.lags, (0, *settings.lags), strict=False):
        model: Any
        model = layers.canonical_model(run.train(lag - last).model)
        new = [
            fisher.second_moment(model, place, watched[0])
            for place, _ in fisher.linear_layers(model)
        ]
        old = old or new
        stale = fisher.alignment(model, *watched, old, settings.eps)
        found["stale"].append(stale["prong"])
        found["gradient"].append(stale["gradient"])
        found["fresh"].append(fisher.alignment(model, *watched, new, settings.eps)["prong"])
    return {key: [round(value, 4) for value in values] for key, values in found.items()}


# ---- Section 4.1, Figure 3a-b


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Settings):
    """Epsilon, the period and the start of PRONG; every step size of ``rates`` is run ``repeats``
    times.

    The start is "whitened" or "fan-in"; at both the first whitening comes before the first update,
    as in Algorithm 1.
    """

    eps: float = 1e-2
    period: int = 20
    start: str = "whitened"
    rates: tuple[float, ...] = (1e-2,)
    size: int = 7
    widths: tuple[int, ...] = (49, 20, 5)
    updates: int = 40
    every: int = 20
    batch: int = 128
    samples: int = 1000
    watched: int = 1000
    repeats: int = 2


@experiment(
    "prong_sensitivity",
    quick=Sensitivity(),
    chapter=Sensitivity(
        size=14,
        widths=(196, 100, 50, 25, 10),
        updates=300,
        every=10,
        repeats=5,
        period=100,
        rates=(1e-3, 3e-3, 1e-2),
    ),
)
def sensitivity(settings: Sensitivity) -> dict:
    """Figure 3a-b: training error of PRONG for one epsilon, period and start, at several step
    sizes.
    """
    x, _ = training.images(settings.size)
    watched = x[: settings.watched]
    curves = []
    for rate in settings.rates:
        for k in range(settings.repeats):
            run = training.autoencoder_run(
                "prong",
                settings.start,
                training.Choice(rate, 0.0, settings.eps),
                settings.widths,
                x,
                settings.generator(1 + k),
                period=settings.period,
                batch=settings.batch,
                samples=settings.samples,
            )
            curve = [run.error(watched)]
            for _ in range(settings.updates // settings.every):
                curve.append(run.train(settings.every).error(watched))
            curves.append([float(f"{value:.4g}") for value in curve])
    return {
        "train": torch.tensor(curves, dtype=torch.float64).view(
            len(settings.rates), settings.repeats, -1
        )
    }


# ---- K-FAC and footnote 4 (Section 5)


@dataclass(frozen=True, kw_only=True)
class Backward(Settings):
    """The method ("prong", "backward" for footnote 4, or "kfac"), the auto-encoder, and the grid of
    settings.
    """

    method: str = "prong"
    start: str = "whitened"
    size: int = 7
    widths: tuple[int, ...] = (49, 20, 5)
    updates: int = 40
    rates: tuple[float, ...] = (1e-2, 1e-1)
    second: tuple[float, ...] = (1e-2,)
    period: int = 20
    batch: int = 128
    samples: int = 1000
    watched: int = 1000
    repeats: int = 1


@experiment(
    "prong_backward",
    quick=Backward(),
    chapter=Backward(
        size=14,
        widths=(196, 100, 50, 25, 10),
        updates=200,
        period=100,
        rates=(1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
        second=(10.0, 1.0, 1e-1, 1e-2, 1e-3),
        repeats=5,
    ),
)
def backward(settings: Backward) -> dict:
    """Footnote 4 and K-FAC: which settings of each method diverge, and the error of the best
    one.
    """
    x, _ = training.images(settings.size)
    watched = x[: settings.watched]

    def final(choice: training.Choice, stream: int) -> float:
        run = training.autoencoder_run(
            settings.method,
            settings.start,
            choice,
            settings.widths,
            x,
            settings.generator(stream),
            period=settings.period,
            batch=settings.batch,
            samples=settings.samples,
        )
        return round(run.train(settings.updates).error(watched), 4)

    tried = {
        choice: final(choice, 0)
        for choice in training.choices_of(settings.rates, (0.0,), settings.second)
    }
    best = statistics.best(tried.items())
    mean_image = float((watched - watched.mean(0)).square().sum(1).mean())
    return {
        "rate": best.rate,
        "second": best.second,
        "mean_image": mean_image,
        "search": [
            {"rate": c.rate, "second": c.second, "train": error} for c, error in tried.items()
        ],
        "train": [final(best, 1 + k) for k in range(settings.repeats)],
    }


# ---- Where the time goes


@dataclass(frozen=True, kw_only=True)
class Time(Settings):
    """The auto-encoder, and how often each piece is timed; the median counts."""

    size: int = 7
    widths: tuple[int, ...] = (49, 20, 5)
    updates: int = 3
    repeats: int = 3
    period: int = 100
    batch: int = 128
    samples: int = 1000


@experiment(
    "prong_time",
    quick=Time(),
    chapter=Time(size=14, widths=(196, 100, 50, 25, 10), updates=50, repeats=7),
    paper=Time(size=28, widths=(784, 1000, 500, 250, 30), updates=10, repeats=5),
)
def time(settings: Time) -> dict:
    """CPU seconds of an update by each method, and of the parts of one whitening, in both forms of
    PRONG.
    """
    return timing.time(settings)


# ---- Section 4.3, Figure 4


@dataclass(frozen=True, kw_only=True)
class Convolutional(Settings):
    """The pictures, the network, the budget, and the search, which is that of the auto-encoder on
    the validation error.
    """

    method: str = "sgd"
    data: str = "fashion"
    size: int = 16
    crop: int = 14
    train: int = 500
    validation: int = 500
    test: int = 500
    maps: tuple[int, ...] = (4, 8)
    updates: int = 20
    short: int = 10
    kept: int = 2
    rates: tuple[float, ...] = (1e-2, 1e-1)
    momenta: tuple[float, ...] = (0.9,)
    second: tuple[float, ...] = ()
    repeats: int = 2
    every: int = 10
    patience: int = 8
    period: int = 50
    batch: int = 64
    samples: int = 256


CONVOLUTIONAL_SECOND = {"rmsprop": (0.9, 0.99), "prong": (1e-1, 1e-2), "prong+": (1e-1, 1e-2)}


@experiment(
    "prong_convolutional",
    quick=Convolutional(),
    chapter=Convolutional(
        train=10_000,
        validation=2000,
        test=10_000,
        maps=(8, 16),
        updates=240,
        short=80,
        kept=2,
        rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
        repeats=5,
        every=20,
    ),
    paper=Convolutional(
        data="cifar10",
        size=32,
        crop=24,
        train=40_000,
        validation=5000,
        test=10_000,
        maps=(64, 128, 256),
        updates=40_000,
        short=2000,
        kept=4,
        rates=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
        repeats=5,
        every=500,
        batch=128,
        samples=1000,
        period=1000,
    ),
)
def convolutional(settings: Convolutional) -> dict:
    """Figure 4a-b: training loss and test error of a convolutional network, one method at its best
    settings.
    """
    sizes = {key: getattr(settings, key) for key in ("size", "crop", "train", "validation", "test")}
    data = maps.pictures(settings.data, **sizes)
    options = {
        key: getattr(settings, key) for key in ("period", "batch", "samples", "every", "patience")
    }

    def make(choice: training.Choice, stream: int) -> maps.AnnealedRun:
        return maps.start(
            settings.method, choice, data, settings.maps, settings.generator(stream), **options
        )

    def finish(run: maps.AnnealedRun) -> dict:
        run.train(settings.updates)
        return {
            "test": maps.error(run.at_rest(), *data.test),
            "curve": run.curve,
            "seconds": run.clock.seconds,
        }

    best, tried, runs = training.search(
        make,
        choices(settings.method, settings, CONVOLUTIONAL_SECOND),
        maps.AnnealedRun.score,
        finish,
        short=settings.short,
        kept=settings.kept,
        repeats=settings.repeats,
    )
    return {
        "best": asdict(best),
        "search": tried,
        **{key: [run[key] for run in runs] for key in runs[0]},
    }
