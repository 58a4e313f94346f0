"""Figures with a kernel behind them: a small training runs at the values of the controls."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import BLUE, GREEN, ORANGE, PURPLE, figure, label
from natcompanion.chapters.numbers.boltzmann import knobs as boltzmann
from natcompanion.chapters.numbers.prong import knobs as prong
from natcompanion.chapters.numbers.revisiting import knobs as revisiting
from natcompanion.chapters.numbers.rfim import knobs as rfim
from natcompanion.chapters.numbers.small_training import UPDATES, last_loss, train
from natcompanion.chapters.numbers.whitening import knobs as whitening
from natcompanion.chapters.show import digits

COLOURS = (BLUE, PURPLE, GREEN, ORANGE)


def curves(
    losses: Mapping[str, Sequence[float]],
    title: str,
    x: str,
    ylim: tuple[float, float],
    steps: int,
    logarithmic: bool = True,
) -> Figure:
    """Return one panel with a curve for each name, on axes that do not move."""
    drawing, (panel,) = figure(3.6)
    for (name, values), colour in zip(losses.items(), COLOURS, strict=False):
        panel.plot(range(len(values)), values, color=colour, linewidth=2.2, label=name)
    panel.set(xlim=(0, steps), ylim=ylim, yscale="log" if logarithmic else "linear")
    label(panel, title, x, legend=True)
    return drawing


def ending(losses: Sequence[float]) -> str:
    """Return in words where a run of small_training ends."""
    last = last_loss(list(losses))
    return f"diverges after {len(losses)} updates" if last is None else f"ends at {last:.2g}"


def draw_prong(eps: float, T: int, rate: float) -> Figure:
    """The losses of PRONG and of gradient descent."""
    runs = {"PRONG": prong.live_prong(eps, T, rate), "SGD": prong.live_sgd(rate)}
    return curves(runs, "Loss of the mini-batch", "update", (1e-3, 10), UPDATES)


def describe_prong(eps: float, T: int, rate: float) -> str:
    """Where both runs end."""
    return (
        f"A network 64-32-32-10 on small digits: PRONG with ε = {eps:.2g}, T = {T} and step size "
        f"{rate:.2g} {ending(prong.live_prong(eps, T, rate))}, SGD with the same step size "
        f"{ending(prong.live_sgd(rate))}."
    )


PRONG = Drawing(
    draw_prong,
    describe_prong,
    ranges={"eps": (1e-4, 1.0, "log"), "T": (1, 150), "rate": (1e-3, 1.0, "log")},
    start={"eps": 0.01, "T": 10, "rate": 0.03},
    labels={"eps": "ε", "rate": "step size"},
    code=[prong.live_prong, train],
)


def draw_rngd(eps: float, T: int) -> Figure:
    """The costs of RNGD and of gradient descent."""
    runs = {"RNGD": rfim.live_rngd(eps, T), "SGD": rfim.live_sgd()}
    return curves(runs, "Cost of the mini-batch", "iteration", (1e-3, 10), UPDATES)


def describe_rngd(eps: float, T: int) -> str:
    """Where both runs end."""
    return (
        f"A network 64-32-32-10 on small digits at step size 0.3: RNGD with ε = {eps:.2g} and "
        f"T = {T} {ending(rfim.live_rngd(eps, T))}, SGD {ending(rfim.live_sgd())}."
    )


RNGD = Drawing(
    draw_rngd,
    describe_rngd,
    ranges={"eps": (1e-3, 1.0, "log"), "T": (1, 150)},
    start={"eps": 0.03, "T": 20},
    labels={"eps": "ε"},
    code=[rfim.live_rngd, train],
)


def draw_damping(first: float, rule: str, rate: float) -> Figure:
    """Loss, and the damping of each step."""
    run = revisiting.live_damping(first, rule, rate)
    runs = {"loss": run["loss"], "damping": run["damping"]}
    title = "Natural gradient on small digits"
    return curves(runs, title, "update", (1e-6, 1e3), revisiting.LIVE_UPDATES)


def describe_damping(first: float, rule: str, rate: float) -> str:
    """The end of the run."""
    run = revisiting.live_damping(first, rule, rate)
    return (
        f"A network 64-10-10 on 300 small digits, step size {rate:.2g}. With damping {first:.2g}, "
        f"{'which is held constant' if rule == revisiting.HELD else f'adapted by {rule}'}, the "
        f"loss goes from {digits(run['loss'][0])} to {run['loss'][-1]:.2g} in "
        f"{len(run['loss'])} updates; the last damping is {run['damping'][-1]:.2g}."
    )


DAMPING = Drawing(
    draw_damping,
    describe_damping,
    ranges={
        "first": (1e-5, 10.0, "log"),
        "rule": [revisiting.HELD, revisiting.ADAPTED],
        "rate": (0.1, 1.5),
    },
    start={"first": 0.1, "rule": revisiting.ADAPTED, "rate": 1.0},
    labels={"first": "damping", "rule": "then", "rate": "step size"},
    code=[revisiting.live_damping],
)


def draw_scheme(threshold: float, fraction: float, cap: float) -> Figure:
    """The weight γ above, the log-likelihood below."""
    run = boltzmann.live_scheme(threshold, fraction, cap)
    drawing, panels = figure(4.6, 2, sharex=True)
    panels[0].semilogy(run["gamma"], color=ORANGE, linewidth=2.2)
    panels[0].axhline(cap, color="0.5", linestyle=":")
    panels[0].set(ylim=(5e-6, 2), xlim=(0, boltzmann.LIVE_STEPS))
    panels[1].plot(run["likelihood"], color=BLUE, linewidth=2.2)
    panels[1].set(ylim=(-35, -10))
    label(panels[0], "Weight γ of the penalty (dotted: its cap)")
    label(panels[1], "Exact log-likelihood, nats an image", "step")
    return drawing


def describe_scheme(threshold: float, fraction: float, cap: float) -> str:
    """Where the weight and the likelihood end."""
    run = boltzmann.live_scheme(threshold, fraction, cap)
    return (
        f"A machine of 49 and {boltzmann.HIDDEN} units on binary digits. With threshold "
        f"{threshold:.2g}, fraction {fraction:.2g} and γ at most {cap:.2g}, γ ends at "
        f"{run['gamma'][-1]:.2g} and the log-likelihood at {run['likelihood'][-1]:.3g} nats."
    )


SCHEME = Drawing(
    draw_scheme,
    describe_scheme,
    ranges={
        "threshold": (1e-5, 1e-2, "log"),
        "fraction": (0.01, 0.9),
        "cap": (0.01, 1.0, "log"),
    },
    start={"threshold": 1e-4, "fraction": 0.05, "cap": 1.0},
    labels={"threshold": "threshold v", "fraction": "fraction p", "cap": "γ at most"},
    code=[boltzmann.live_scheme],
)


def draw_learned(eps: float) -> Figure:
    """The log-likelihood along plain and along whitened steps."""
    runs = boltzmann.live_whitening(eps)
    names = {"learned whitening": runs["whitened"], "plain gradient": runs["plain"]}
    title, steps = "Exact log-likelihood, nats an image", len(runs["plain"])
    return curves(names, title, "step", (-35, -10), steps, logarithmic=False)


def describe_learned(eps: float) -> str:
    """Where both runs end."""
    runs = boltzmann.live_whitening(eps)
    return (
        f"A machine of 49 and {boltzmann.HIDDEN} units on binary digits: after "
        f"{len(runs['plain'])} steps of the exact gradient the log-likelihood is "
        f"{runs['plain'][-1]:.3g} nats, in coordinates whitened as they are learned, with "
        f"ε = {eps:.2g}, {runs['whitened'][-1]:.3g} nats."
    )


LEARNED = Drawing(
    draw_learned,
    describe_learned,
    ranges={"eps": (1e-4, 1.0, "log")},
    start={"eps": 0.01},
    labels={"eps": "ε"},
    code=[boltzmann.live_whitening],
)


def _tiny(value: float) -> str:
    """Return two digits of a divergence, unless rounding decides them."""
    return f"{value:.2g}" if value > 1e-12 else "less than 1e-12"


def draw_regularized(eps: float, rate: float) -> Figure:
    """The divergence along both rules."""
    runs = whitening.live_descent(eps, rate)
    title = "KL divergence to the goal, nats"
    return curves(runs, title, "step", (1e-12, 1e3), whitening.LIVE_STEPS)


def describe_regularized(eps: float, rate: float) -> str:
    """Where both rules end."""
    first, *_, last = zip(*whitening.live_descent(eps, rate).values(), strict=True)
    return (
        f"The example of Eq. 1 from (1, -1), step size {rate:.2g}, ε = {eps:.2g}: in "
        f"{whitening.LIVE_STEPS} steps the divergence goes from {digits(first[0])} nats to "
        f"{_tiny(last[0])} with Eq. 35 and to {_tiny(last[1])} with damping."
    )


REGULARIZED = Drawing(
    draw_regularized,
    describe_regularized,
    ranges={"eps": (1e-8, 1.0, "log"), "rate": (0.01, 1.5, "log")},
    start={"eps": 0.01, "rate": 1.0},
    labels={"eps": "ε", "rate": "step size"},
    code=[whitening.live_descent],
)
