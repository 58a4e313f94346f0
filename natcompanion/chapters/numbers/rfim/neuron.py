"""One neuron in the plane, closed forms against sums (Section 3), and Section 6."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu, softplus

from natcompanion import reference, relative
from natcompanion.chapters.show import Table

EXACT, FAR = 1e-12, 1e6
LETTERS = {"sigma": "σ", "iota": "ι", "omega": "ω", "alpha": "α"}

# ---- The opening figure


@cache
def plane_samples() -> tuple[Tensor, Tensor]:
    """Return 60 correlated samples of mean zero in the plane, (60, 2), and labels 0 and 1 that
    overlap.
    """
    generator = torch.Generator().manual_seed(5)
    options: dict[str, Any] = {"dtype": torch.float64}
    x = torch.randn(60, 2, generator=generator, **options) * torch.tensor([2.0, 0.7], **options)
    turn = torch.tensor([[0.94, -0.342], [0.342, 0.94]], **options)
    x = (x - x.mean(0)) @ turn.mT
    noise = torch.randn(60, generator=generator, **options)
    return x, (x @ torch.tensor([0.8, 1.5], **options) + noise > 0).double()


def spotlight(activation: Any, a: Tensor, omega: float, iota: float) -> Tensor:
    """Return nu at the inputs ``a``; only relu has the shape parameters."""
    options = {"omega": omega, "iota": iota} if activation == "relu" else {}
    return relative.nu(activation, a, **options)


def neuron_loss(activation: str, a: Tensor, t: Tensor, omega: float, iota: float) -> Tensor:
    """Return -log p(t | a) up to a constant, (..., n): Bernoulli for sigmoid and tanh, Gaussian of
    variance 1 for relu and elu.
    """
    if activation in ("sigmoid", "tanh"):
        a = a if activation == "sigmoid" else 2 * a
        return softplus(torch.where(t > 0.5, -a, a))
    mean = elu(a) if activation == "elu" else omega * torch.logaddexp(iota * a / omega, a / omega)
    return 0.5 * (mean - t).square()


@dataclass(frozen=True)
class Plane:
    """Weights (2,), nu of each sample, the metric (2, 2), one step of each method, and losses."""

    w: Tensor
    nu: Tensor
    g: Tensor
    steps: dict[str, Tensor]
    losses: dict[str, float]


def plane_loss(v: Tensor, activation: str, omega: float, iota: float) -> Tensor:
    """Return the mean loss over the samples at weights ``v`` (..., 2)."""
    x, t = plane_samples()
    return neuron_loss(activation, v @ x.mT, t, omega, iota).mean(-1)


def neuron_steps(activation: str, scale: float, eps: float, omega: float, iota: float) -> Plane:
    """Return one step of each method, and the loss before and after it.

    A natural step has size 1 and damping eps tr(g) / D. A gradient step has the size 1 / (largest
    eigenvalue of the metric in its coordinates). The neuron has no bias, so that its parameters are
    a plane.
    """
    x, _ = plane_samples()
    w = scale * torch.tensor([0.96, -0.28], dtype=torch.float64)
    nu = spotlight(activation, x @ w, omega, iota)
    g = (x.mT * nu) @ x / len(x)
    loss = lambda v: plane_loss(v, activation, omega, iota)
    gradient = torch.autograd.functional.jacobian(loss, w)
    # x = root z with white z, so that the weights of z are root^T w
    root = torch.linalg.cholesky(x.mT @ x / len(x))
    inverse = torch.linalg.inv(root)
    white, inward = inverse @ g @ inverse.mT, inverse @ gradient
    steps = {
        "GD": -gradient / torch.linalg.eigvalsh(g)[-1],
        "WhiteGD": -inverse.mT @ inward / torch.linalg.eigvalsh(white)[-1],
        "NGD": -damped_solve(g, gradient, eps),
        "WhiteNGD": -inverse.mT @ damped_solve(white, inward, eps),
    }
    losses = {"start": float(loss(w))} | {k: float(loss(w + step)) for k, step in steps.items()}
    return Plane(w, nu, g, steps, losses)


def damped_solve(g: Tensor, gradient: Tensor, eps: float) -> Tensor:
    """Return (g + eps tr(g) / D I)^-1 times the gradient (Eq. 30)."""
    damping = eps * g.trace() / len(g)
    return torch.linalg.solve(g + damping * torch.eye(len(g), dtype=g.dtype), gradient)


def half_of_nu(nu: Tensor) -> int:
    """Return how many samples, the brightest first, hold half of all nu."""
    total = nu.sort(descending=True).values.cumsum(0)
    return int((total < 0.5 * total[-1]).sum()) + 1


def conditions(g: Tensor, eps: float) -> tuple[float, float]:
    """Return the condition number of a metric, and with the damping eps tr(g) / D."""
    lam = torch.linalg.eigvalsh(g)
    damping = eps * lam.mean()
    return float(lam[-1] / lam[0]), float((lam[-1] + damping) / (lam[0] + damping))


def ellipse(plane: Plane) -> tuple[float, float, float]:
    """Return width, height and angle (degrees) of the ellipse of steps as long as NGD's."""
    lam, vectors = torch.linalg.eigh(plane.g)
    size = torch.sqrt(plane.steps["NGD"] @ plane.g @ plane.steps["NGD"])
    width, height = (2 * size / lam.clamp_min(EXACT).sqrt()).tolist()
    return width, height, math.degrees(math.atan2(float(vectors[1, 0]), float(vectors[0, 0])))


def relu_nu(omega: float, iota: float) -> tuple[float, float]:
    """Return nu of the smoothed ReLU at 0 and at 0.5."""
    zero, half = spotlight("relu", torch.tensor([0.0, 0.5], dtype=torch.float64), omega, iota)
    return float(zero), float(half)


def elu_jump(alpha: float) -> float:
    """Return by how much nu of ELU jumps at 0, from alpha^2 to 1."""
    return round(1 - alpha**2, 6)


# ---- Closed forms against sums


def difference(metric: Tensor, exact: Tensor) -> float:
    """Return the relative difference in the Frobenius norm."""
    return float((metric - exact).norm() / exact.norm())


def equal(metric: Tensor, exact: Tensor) -> bool:
    """Return whether no entry differs by 1e-12."""
    return float((metric - exact).abs().max()) < EXACT


def or_none(value: float) -> float | str:
    """Return a difference, or "none" where it is rounding."""
    return value if value > EXACT else "none"


def options_text(options: dict[str, float]) -> str:
    """Return the options of an activation in the paper's letters."""
    return ", ".join(f"{LETTERS[name]} = {v:g}" for name, v in options.items()) or "–"


def neuron_table(w: Tensor, x: Tensor, by_sum: Callable[..., Tensor]) -> Table:
    """The closed form of five neurons against ``by_sum(name, **options)``."""
    neurons: list[tuple[Any, dict[str, float]]] = [
        ("tanh", {}),
        ("sigmoid", {}),
        ("relu", {}),
        ("relu", {"sigma": 0.7, "iota": 0.1, "omega": 0.3}),
        ("elu", {"sigma": 0.7, "alpha": 0.6}),
    ]
    rows = []
    for name, options in neurons:
        g = relative.neuron_rfim(w, x, name, **options)
        shown = equal(g, by_sum(name, **options))
        rows.append([name, options_text(options), float(g[-1, -1]), shown])
    return Table(
        ["activation", "options", "ν", "equals the sum to 1e-12"],
        rows,
        "The RFIM of one neuron at one input: closed form and sum over all responses.",
    )


def layer_table(
    W: Tensor, x: Tensor, by_sum: Callable[[str], Tensor], softmax: Tensor, by_classes: Tensor
) -> Table:
    """The RFIM of layers against ``by_sum(name)``, and of a softmax layer against its own sum."""
    rows = []
    for name in ("linear", "tanh", "sigmoid", "relu", "elu"):
        G = torch.block_diag(*relative.layer_rfim(W, x, name))
        rows.append([f"{name}, {len(W)} neurons", equal(G, by_sum(name)), relative.rank(G)])
    classes = len(softmax) // (len(x) + 1)
    rows.append([f"softmax, {classes} classes", equal(softmax, by_classes), relative.rank(softmax)])
    return Table(
        ["layer", "equals the sum to 1e-12", "rank"],
        rows,
        "RFIM of a layer at one input against the sum over the responses.",
    )


def two_layer_table(
    slopes: Callable[..., Tensor], printed: Callable[..., Tensor], by_sum: Callable[..., Tensor]
) -> Table:
    """Both forms of Eq. 26 against the sum, for seven activations ``(name, **options)``."""
    cases = [
        ("tanh", {}),
        ("sigmoid", {}),
        ("relu", {}),
        ("relu", {"omega": 0.5}),
        ("relu", {"iota": 0.3}),
        ("relu", {"sigma": 0.5}),
        ("elu", {"alpha": 0.7}),
    ]
    rows = []
    for name, options in cases:
        exact = by_sum(name, **options)
        right = difference(slopes(name, **options), exact) < EXACT
        wrong = or_none(difference(printed(name, **options), exact))
        text = wrong if isinstance(wrong, str) else f"{wrong:.0%}".replace("%", " %")
        rows.append([name, options_text(options), right, text])
    return Table(
        ["activation", "options", "corrected: equals sum", "printed: error"],
        rows,
        "Two layers, 2 neurons each: the form with slopes and the printed form (Eq. 26) against the"
        " sum over the responses.",
    )


# ---- Section 6


def balanced_neuron_path(start: float, rate: float, natural: bool, steps: int = 30) -> list[float]:
    """Return the weight of a sigmoid neuron that sees the input 1 with both labels equally often;
    ends beyond 1e6.

    The loss is log(1 + e^w) - w/2, its minimum 0, the gradient s(w) - 1/2, the metric s(w) s(-w),
    and their ratio sinh(w).
    """
    path = [start]
    while len(path) <= steps and abs(path[-1]) < FAR:
        w = path[-1]
        step = math.sinh(min(max(w, -300), 300)) if natural else 1 / (1 + math.exp(-w)) - 0.5
        path.append(w - rate * step)
    return path


def energy_table(
    family: Callable[[float], Callable[[Tensor], Tensor]],
    informations: Callable[..., tuple[float, float]],
    distance: Tensor,
    order: Tensor,
) -> Table:
    """Fisher and energy information of ``family(sigma)``, by ``informations(p, distance)``, and
    with the outcomes in another order.
    """
    rows, delta = [], torch.tensor([0.01], dtype=torch.float64)
    for sigma in (0.25, 0.5, 1.0):
        p = family(sigma)
        energy, fisher = informations(p, distance)
        moved = float(reference.energy_distance(p(delta), p(0 * delta), distance))
        mixed, _ = informations(p, distance[order][:, order])
        formula = 1 / (sigma * math.sqrt(math.pi))
        per_square = moved / float(delta.square())
        rows.append([f"{sigma:g}", fisher, 1 / sigma**2, energy, formula, per_square, mixed])
    return Table(
        ["σ", "Fisher", "1/σ²", "energy", "1/(σ√π)", "D²/δ²", "shuffled"],
        rows,
        "Fisher and energy information of a Gaussian mean, each beside its formula; the energy"
        " distance for δ = 0.01 over δ²; the energy information when the outcomes trade places.",
    )
