"""The figures of the foundations chapter."""

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    figure,
    label,
)
from natcompanion.chapters.numbers import foundations as numbers
from natcompanion.chapters.show import digits
from natcompanion.likelihoods import Bernoulli

NAMES = {
    "exact": ("exact Fisher", "0.45", "-", 6.0),
    "kl": ("Hessian of the KL", BLACK, ":", 2.0),
    "gauss_newton": ("Gauss-Newton", BLUE, "--", 2.0),
    "monte_carlo": ("Monte Carlo", GREEN, "-", 1.6),
    "empirical": ("empirical Fisher", VERMILLION, "-", 1.6),
    "covariance": ("gradient covariance", PURPLE, "--", 1.6),
}
LEVEL = 0.0005


def kl_surface(v: float, w: float, dv: np.ndarray, dw: np.ndarray) -> np.ndarray:
    """Return the exact mean KL divergence from the model at (v, w) to that at (v + dv, w + dw)."""
    x = numbers.inputs()[:, 0]
    shape = np.broadcast(dv, dw).shape
    here = (w * torch.tanh(v * x)).expand(*shape, -1)
    there = torch.from_numpy(w + dw)[..., None] * torch.tanh(
        torch.from_numpy(v + dv)[..., None] * x
    )
    return Bernoulli().kl(here, there).numpy() / len(x)


def ellipse(matrix: torch.Tensor, level: float = LEVEL) -> np.ndarray:
    """Return points of the curve where half the quadratic form of ``matrix`` is ``level``; (2,
    200).
    """
    lam, vectors = torch.linalg.eigh(matrix)
    angle = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()])
    return (vectors @ ((2 * level / lam.clamp_min(1e-9)).sqrt()[:, None] * circle)).numpy()


def draw_six(samples: int, targets: str, w: float) -> Figure:
    """Curves of equal length around the model under each matrix, over the exact divergence; and the
    differences.
    """
    matrices = numbers.six_matrices(samples, targets, w)
    gaps = numbers.six_gaps(samples, targets, w)
    drawing, (plane, bars) = figure(6.6, rows=2, height_ratios=[3, 1.7])
    reach = 1.9 * np.abs(ellipse(matrices["exact"])).max(1)
    dv, dw = np.meshgrid(np.linspace(-reach[0], reach[0], 60), np.linspace(-reach[1], reach[1], 60))
    levels = LEVEL * np.array([0.25, 1.0, 2.25, 4.0])
    plane.contour(dv, dw, kl_surface(0.7, w, dv, dw), levels, colors="0.75", linewidths=1)
    for name, (_, color, line, width) in NAMES.items():
        plane.plot(
            *ellipse(matrices[name]),
            line,
            color=color,
            linewidth=width,
            alpha=0.5 if name == "exact" else 1,
        )
    plane.set(xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]))
    label(plane, "One length, six rulers", "change of v", "change of w")
    for row, (name, (text, color, line, width)) in enumerate(reversed(NAMES.items())):
        bars.plot([0, 0.2], [row, row], line, color=color, linewidth=width)
        bars.text(0.25, row, text, va="center", fontsize=11)
        apart = f"differs by {digits(gaps[name])}" if gaps[name] else "equal"
        bars.text(1.45, row, apart, va="center", fontsize=11)
    bars.set(xlim=(0, 2.2), ylim=(-0.7, 5.7))
    bars.set_axis_off()
    return drawing


def describe_six(samples: int, targets: str, w: float) -> str:
    """The relative difference of each matrix from the exact Fisher matrix."""
    gaps = numbers.six_gaps(samples, targets, w)
    return (
        f"At w = {w:g}, relative to the exact Fisher matrix: the Hessian of the KL "
        "divergence and the Gauss-Newton matrix "
        f"are {'equal' if gaps['kl'] + gaps['gauss_newton'] == 0 else 'different'}; Monte "
        f"Carlo with {samples} "
        f"label{'s' if samples > 1 else ''} an input differs by "
        f"{digits(gaps['monte_carlo'])}; with targets "
        f"{'that are ' if targets.startswith('the') else ''}{targets}, the empirical Fisher "
        "matrix differs by "
        f"{digits(gaps['empirical'])} and the gradient covariance by {digits(gaps['covariance'])}."
    )


def draw_any_six(samples: float, targets: str, w: float) -> Figure:
    """The same at any number of samples."""
    return draw_six(round(samples), targets, w)


def describe_any_six(samples: float, targets: str, w: float) -> str:
    """The sentence of the picture above."""
    return describe_six(round(samples), targets, float(f"{w:.2g}"))


def draw_directions() -> Figure:
    """Decrease of the loss against the direction, in degrees, of a step that spends a fixed
    divergence.
    """
    drawing, (panel,) = figure(3.2)
    panel.plot(1e3 * numbers.falls(), color="0.4", linewidth=2)
    for at, color, text in (
        (numbers.natural_angle(), BLUE, "natural gradient"),
        (numbers.plain_angle(), ORANGE, "gradient"),
    ):
        panel.axvline(at, color=color, linewidth=2, linestyle="--", label=text)
    panel.axhline(0, color="0.8", linewidth=1)
    panel.set(xlim=(0, 360), xticks=[0, 90, 180, 270, 360])
    label(
        panel,
        "Decrease of the loss (0.001 nats)",
        "direction in the (v, w) plane (degrees)",
        legend="upper center",
    )
    return drawing


def describe_directions() -> str:
    """Which direction is best, and where the two rules point."""
    return (
        f"Of {len(numbers.falls())} directions that all spend the same KL divergence, the one at "
        f"{numbers.best_angle()} degrees lowers the loss most; the natural gradient points to "
        f"{numbers.natural_angle()} degrees and the gradient to {numbers.plain_angle()}."
    )


START = {"samples": 10, "targets": "drawn from a teacher", "w": 2.0}
LABELS = {"samples": "labels per input (Monte Carlo)", "targets": "targets", "w": "weight w"}
TARGETS = ["drawn from the model", "drawn from a teacher", "the likelier class"]

SIX = Drawing(
    draw_six,
    describe_six,
    grid={"samples": [1, 10, 100], "targets": TARGETS, "w": [0.5, 1.0, 2.0, 4.0]},
    start=START,
    labels=LABELS,
)
ANY_SIX = Drawing(
    draw_any_six,
    describe_any_six,
    ranges={"samples": (1.0, 1000.0, "log"), "targets": TARGETS, "w": (0.2, 6.0)},
    start={**START, "samples": 10.0},
    labels=LABELS,
)
DIRECTIONS = Drawing(draw_directions, describe_directions)
