"""The figures of the foundations chapter."""

import math
from functools import cache

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from natcompanion import metrics, reference
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
from natcompanion.chapters.show import digits
from natcompanion.likelihoods import Bernoulli

SIX = {
    "samples": [1, 10, 100],
    "targets": ["drawn from the model", "drawn from a teacher", "the likelier class"],
    "w": [0.5, 1.0, 2.0, 4.0],
}
NAMES = {
    "exact": ("exact Fisher", "0.45", "-", 6.0),
    "kl": ("Hessian of the KL", BLACK, ":", 2.0),
    "gauss_newton": ("Gauss-Newton", BLUE, "--", 2.0),
    "monte_carlo": ("Monte Carlo", GREEN, "-", 1.6),
    "empirical": ("empirical Fisher", VERMILLION, "-", 1.6),
    "covariance": ("gradient covariance", PURPLE, "--", 1.6),
}
TEACHER = (1.5, 3.0)
LEVEL = 0.0005


def tiny(v: float, w: float) -> nn.Sequential:
    """Return the network ``w tanh(v x)``, whose only parameters are v and w, in float64."""
    model = nn.Sequential(
        nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 1, bias=False)
    ).double()
    nn.utils.vector_to_parameters(torch.tensor([v, w], dtype=torch.float64), model.parameters())
    return model


def inputs(n: int = 40) -> torch.Tensor:
    """Return n numbers from -1.5 to 2.5; (n, 1)."""
    return torch.linspace(-1.5, 2.5, n, dtype=torch.float64).unsqueeze(1)


def make_targets(kind: str, model: nn.Module, x: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """Return the targets 0 and 1 of that kind; (n, 1)."""
    with torch.no_grad():
        r = tiny(*TEACHER)(x) if kind == "drawn from a teacher" else model(x)
    if kind == "the likelier class":
        return (r > 0).double()
    return Bernoulli().sample(r, generator=torch.Generator().manual_seed(seed))


@cache
def _kl_hessian(v: float, w: float) -> torch.Tensor:
    return reference.kl_hessian(tiny(v, w), inputs(), Bernoulli())


@cache
def six_matrices(samples: int, targets: str, w: float, v: float = 0.7) -> dict[str, torch.Tensor]:
    """Return the six matrices of the model at (v, w), each (2, 2)."""
    model, x, likelihood = tiny(v, w), inputs(), Bernoulli()
    t = make_targets(targets, model, x)
    draw = torch.Generator().manual_seed(1)
    return {
        "exact": metrics.fisher(model, x, likelihood),
        "kl": _kl_hessian(v, w),
        "gauss_newton": metrics.gauss_newton(model, x, t, likelihood),
        "monte_carlo": metrics.monte_carlo_fisher(
            model, x, likelihood, samples=samples, generator=draw
        ),
        "empirical": metrics.empirical_fisher(model, x, t, likelihood),
        "covariance": metrics.gradient_covariance(model, x, t, likelihood),
    }


def difference(matrix: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative difference in the Frobenius norm, 0 where it is rounding."""
    gap = float((matrix - exact).norm() / exact.norm())
    return gap if gap > 1e-12 else 0.0


def entries(matrix: torch.Tensor) -> list[float]:
    """Return the three entries vv, vw and ww of a symmetric matrix (2, 2)."""
    return [float(matrix[0, 0]), float(matrix[0, 1]), float(matrix[1, 1])]


def degrees(direction: torch.Tensor) -> float:
    """Return the angle of a vector (2,) from the first axis, from 0 to 360 degrees."""
    return float(torch.rad2deg(torch.atan2(direction[1], direction[0])) % 360)


def kl_surface(v: float, w: float, dv: np.ndarray, dw: np.ndarray) -> np.ndarray:
    """Return the exact mean KL divergence from the model at (v, w) to that at (v + dv, w + dw)."""
    x = inputs()[:, 0]
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
    matrices = six_matrices(samples, targets, w)
    drawing, (plane, bars) = figure(6.6, rows=2, height_ratios=[3, 1.7])
    reach = 1.9 * np.abs(ellipse(matrices["exact"])).max(1)
    dv, dw = np.meshgrid(np.linspace(-reach[0], reach[0], 60), np.linspace(-reach[1], reach[1], 60))
    levels = LEVEL * np.array([0.25, 1.0, 2.25, 4.0])
    plane.contour(dv, dw, kl_surface(0.7, w, dv, dw), levels, colors="0.75", linewidths=1)
    for name, matrix in matrices.items():
        text, color, line, width = NAMES[name]
        plane.plot(
            *ellipse(matrix),
            line,
            color=color,
            linewidth=width,
            alpha=0.5 if name == "exact" else 1,
        )
    plane.set(xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]))
    label(plane, "One length, six rulers", "change of v", "change of w")
    exact = matrices["exact"]
    for row, (name, matrix) in enumerate(reversed(matrices.items())):
        text, color, line, width = NAMES[name]
        bars.plot([0, 0.2], [row, row], line, color=color, linewidth=width)
        bars.text(0.25, row, text, va="center", fontsize=11)
        gap = difference(matrix, exact)
        bars.text(
            1.45, row, f"differs by {digits(gap)}" if gap else "equal", va="center", fontsize=11
        )
    bars.set(xlim=(0, 2.2), ylim=(-0.7, 5.7))
    bars.set_axis_off()
    return drawing


def describe_six(samples: int, targets: str, w: float) -> str:
    """The relative difference of each matrix from the exact Fisher matrix."""
    matrices = six_matrices(samples, targets, w)
    gaps = {name: difference(matrix, matrices["exact"]) for name, matrix in matrices.items()}
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


def draw_live_six(samples: float, targets: str, w: float) -> Figure:
    """The same at any number of samples."""
    return draw_six(round(samples), targets, w)


def describe_live_six(samples: float, targets: str, w: float) -> str:
    """The sentence of the picture above."""
    return describe_six(round(samples), targets, float(f"{w:.2g}"))


def draw_directions(decrease: np.ndarray, natural: float, plain: float) -> Figure:
    """Decrease of the loss against the direction, in degrees, of a step that spends a fixed
    divergence.
    """
    drawing, (panel,) = figure(3.2)
    panel.plot(1e3 * decrease, color="0.4", linewidth=2)
    for at, color, text in ((natural, BLUE, "natural gradient"), (plain, ORANGE, "gradient")):
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


def describe_directions(decrease: np.ndarray, natural: float, plain: float) -> str:
    """Which direction is best, and where the two rules point."""
    return (
        f"Of {len(decrease)} directions that all spend the same KL divergence, the one at "
        f"{int(np.argmax(decrease))} "
        f"degrees lowers the loss most; the natural gradient points to {natural:.0f} "
        f"degrees and the gradient to {plain:.0f}."
    )
