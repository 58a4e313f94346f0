r"""The auto-encoder with one hidden unit of revisiting Section 4, for many parameter pairs at once.

.. math:: y(x) = w\,\sigma(w x + b) - b, \qquad \mathcal L = \frac1n \sum_i (x_i - y(x_i))^2

Parameters are tensors (..., 2) that hold (w, b). Everything is written out, so that it can be
checked by eye.
"""

from dataclasses import dataclass
from typing import Any

import torch

METHODS = ("newton", "natural", "leroux", "gradient")
RATES = {"newton": 1.0, "natural": 0.5, "leroux": 1.0, "gradient": 0.1}
"""The step sizes of Section 8.4."""
DAMPING: dict[str, Any] = {"newton": 1.0, "natural": 0.01, "leroux": 1.0, "gradient": None}
"""The dampings of Section 8.4; plain gradient descent has none."""


@dataclass(frozen=True)
class AutoEncoder:
    """The model on its inputs ``x`` (n,)."""

    x: torch.Tensor

    def outputs(self, theta: torch.Tensor) -> torch.Tensor:
        """Return y, (..., n)."""
        w, b = theta[..., :1], theta[..., 1:]
        return w * torch.sigmoid(w * self.x + b) - b

    def loss(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error, (...)."""
        return (self.x - self.outputs(theta)).square().mean(-1)

    def jacobian(self, theta: torch.Tensor) -> torch.Tensor:
        """Return dy/d(w, b), (..., n, 2)."""
        w, b = theta[..., :1], theta[..., 1:]
        s = torch.sigmoid(w * self.x + b)
        slope = s * (1 - s)
        return torch.stack([s + w * slope * self.x, w * slope - 1], -1)

    def kl(self, theta: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        """Return the mean KL divergence from theta to theta + delta for Gaussian outputs of
        standard deviation 1.
        """
        return 0.5 * (self.outputs(theta + delta) - self.outputs(theta)).square().mean(-1)

    def gradients(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the gradient of each example's loss, (..., n, 2)."""
        return 2 * (self.outputs(theta) - self.x)[..., None] * self.jacobian(theta)

    def fisher(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the metric E[J J^T] of Gaussian outputs of standard deviation 1, (..., 2, 2)."""
        return _mean_outer(self.jacobian(theta))

    def covariance(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the covariance C of the examples' gradients (Eq. 12), (..., 2, 2)."""
        g = self.gradients(theta)
        return _mean_outer(g - g.mean(-2, keepdim=True))

    def hessian(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the Hessian of the loss, (..., 2, 2)."""
        w, b = theta[..., :1], theta[..., 1:]
        s = torch.sigmoid(w * self.x + b)
        slope = s * (1 - s)
        bend = slope * (1 - 2 * s)
        error = self.outputs(theta) - self.x
        ww = (error * (2 * slope * self.x + w * bend * self.x**2)).mean(-1)
        wb = (error * (slope + w * bend * self.x)).mean(-1)
        bb = (error * w * bend).mean(-1)
        curvature = torch.stack([torch.stack([ww, wb], -1), torch.stack([wb, bb], -1)], -2)
        return 2 * (self.fisher(theta) + curvature)

    def step(self, theta: torch.Tensor, method: str, rate: float, damping: Any) -> torch.Tensor:
        """Return the step of a method, (..., 2)."""
        g = self.gradients(theta).mean(-2)
        if method == "gradient":
            return -rate * g
        matrix = {"newton": self.hessian, "natural": self.fisher, "leroux": self.covariance}[
            method
        ](theta)
        damped = matrix + damping * torch.eye(2, dtype=theta.dtype)
        return -rate * torch.linalg.solve_ex(damped, g)[0]

    def path(
        self,
        start: torch.Tensor,
        method: str,
        steps: int = 100,
        rate: float | None = None,
        damping: float | None = None,
    ) -> torch.Tensor:
        """Return the parameters after 0, 1, ..., ``steps`` steps, (steps + 1, ..., 2); settings of
        the paper if none.
        """
        rate = RATES[method] if rate is None else rate
        damping = DAMPING[method] if damping is None else damping
        points = [start]
        for _ in range(steps):
            points.append(points[-1] + self.step(points[-1], method, rate, damping))
        return torch.stack(points)


INPUTS = {
    "-1 to 1": torch.linspace(-1, 1, 11, dtype=torch.float64),
    "0 to 1": torch.linspace(0, 1, 11, dtype=torch.float64),
    "0 and 1": torch.tensor([0.0, 1.0], dtype=torch.float64),
    "1": torch.ones(1, dtype=torch.float64),
}
"""Inputs that the auto-encoder of Figure 1 may have had; the paper does not state its own."""


def example() -> AutoEncoder:
    """Return the auto-encoder on eleven inputs from -1 to 1; the paper does not state its own."""
    return AutoEncoder(INPUTS["-1 to 1"])


def claimed_lengths(model: AutoEncoder, theta: torch.Tensor, factor: float) -> int:
    """Return how often, at the settings of Section 8.4, the natural step is shorter than the plain
    one and Newton's longer.

    ``factor`` multiplies the metric: 1 for outputs of standard deviation 1 (Eq. 9), 2 for those
    whose negative log-likelihood is the sum of squares that is minimized (Eq. 16).
    """
    step = {
        name: model.step(theta, name, RATES[name], DAMPING[name]).norm(dim=-1)
        for name in ("gradient", "newton")
    }
    natural = model.step(
        theta, "natural", RATES["natural"] / factor, DAMPING["natural"] / factor
    ).norm(dim=-1)
    return int(((natural < step["gradient"]) & (step["newton"] > step["gradient"])).sum())


def minima(model: AutoEncoder) -> torch.Tensor:
    """Return the minima found by many steps of damped Newton from a grid of starts, best first; (k,
    2).
    """
    line = torch.linspace(-4, 4, 17, dtype=torch.float64)
    theta = torch.cartesian_prod(line, line)
    for _ in range(400):
        values, vectors = torch.linalg.eigh(model.hessian(theta))
        g = (vectors.mT @ model.gradients(theta).mean(-2)[..., None])[..., 0]
        step = (vectors @ (g / (values.abs() + 0.05))[..., None])[..., 0]
        theta = theta - 0.5 * step
    kept: list[torch.Tensor] = []
    for point in theta[model.loss(theta).argsort()]:
        settled = float(model.gradients(point).mean(-2).norm()) < 1e-8
        if settled and not any(float((point - other).norm()) < 1e-3 for other in kept):
            kept.append(point)
    return torch.stack(kept)


def _mean_outer(rows: torch.Tensor) -> torch.Tensor:
    return rows.mT @ rows / rows.shape[-2]
