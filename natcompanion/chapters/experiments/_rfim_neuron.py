"""One sigmoid neuron that tells two digits apart (rfim Section 5.1), for a batch of parameter
vectors.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from natcompanion.data import mnist

METHODS = {
    "GD": ("raw", False),
    "WhiteGD": ("white", False),
    "NGD": ("raw", True),
    "WhiteNGD": ("white", True),
}
"""The four methods of Figure 4: coordinates, and whether the step is Eq. 30's."""


@dataclass(frozen=True)
class Neuron:
    """Logistic regression of ``t`` (n,) on inputs ``Z`` (n, r), r coordinates in the span of the
    true inputs.

    All steps from theta = 0 stay in that span, so that nothing is lost. ``dim`` is the number of
    parameters of the true neuron, D in the damping eps tr(g) / D.
    """

    Z: torch.Tensor
    t: torch.Tensor
    dim: int

    def loss(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy (rfim Eq. 29) of each theta (b, r)."""
        r = theta @ self.Z.mT
        return softplus(torch.where(self.t > 0.5, -r, r)).mean(-1)

    def gradient(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the loss, (b, r)."""
        return (torch.sigmoid(theta @ self.Z.mT) - self.t) @ self.Z / len(self.Z)

    def metric(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the relative Fisher metric, the mean of nu z z^T (rfim Eq. 14), (b, r, r)."""
        a = theta @ self.Z.mT
        nu = torch.sigmoid(a) * torch.sigmoid(-a) / len(self.Z)
        return (self.Z.mT * nu[:, None]) @ self.Z

    def damping(self, g: torch.Tensor, eps: float) -> torch.Tensor:
        """Return eps tr(g) / D for each metric, (b,)."""
        return eps * g.diagonal(dim1=-2, dim2=-1).sum(-1) / self.dim

    def direction(self, theta: torch.Tensor, eps: float) -> torch.Tensor:
        """Return (g + eps tr(g)/D I)^-1 times the gradient (rfim Eq. 30); not finite where g has
        vanished.
        """
        g = self.metric(theta)
        g.diagonal(dim1=-2, dim2=-1).add_(self.damping(g, eps)[:, None])
        factor, failed = torch.linalg.cholesky_ex(g)
        step = torch.cholesky_solve(self.gradient(theta)[..., None], factor)[..., 0]
        return torch.where(failed[:, None] > 0, torch.nan, step)

    def minimum(self, steps: int = 60) -> float | None:
        """Return the smallest loss by Newton's method, None if it has no minimum: the classes are
        separable.
        """
        theta = torch.zeros(1, self.Z.shape[1], dtype=self.Z.dtype)
        for _ in range(steps):
            if float(self.loss(theta)[0]) < 1e-6:
                return None
            step = self.direction(theta, 1e-9)
            theta = theta - step * min(1.0, 10 / float(step.norm()))
        return float(self.loss(theta)[0])


def neuron(x: torch.Tensor, t: torch.Tensor, coordinates: str, *, smallest: float = 1e-6) -> Neuron:
    """Return the neuron on inputs ``x`` (n, d) with a bias, in "raw" or "white" coordinates (rfim
    Eq. 28).

    Whitening drops directions of variance below ``smallest`` times the largest. An orthogonal
    change of coordinates moves none of the four methods, so principal components stand for every
    root of the covariance.
    """
    dim, ones = x.shape[1] + 1, torch.ones_like(x[:, :1])
    if coordinates == "white":
        centred = x - x.mean(0)
        variance, vectors = torch.linalg.eigh(centred.mT @ centred / len(x))
        kept = variance > smallest * variance[-1]
        return Neuron(
            torch.cat([centred @ vectors[:, kept] / variance[kept].sqrt(), ones], 1), t, dim
        )
    U, S, _ = torch.linalg.svd(torch.cat([x, ones], 1), full_matrices=False)
    kept = S > 1e-8 * S[0]
    return Neuron(U[:, kept] * S[kept], t, dim)


def digits(pair: str, size: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``n`` digits of a pair such as "3v5": pixels (n, size^2) and labels 0 and 1."""
    classes = tuple(int(digit) for digit in pair.split("v"))
    images, labels = mnist(
        n, size=size, split="train+validation", seed=seed, classes=classes, dtype=torch.float64
    )
    return images.flatten(1), (labels == classes[1]).double()


def train(
    problem: Neuron,
    natural: bool,
    rates: torch.Tensor,
    momenta: torch.Tensor,
    *,
    epochs: int,
    eps: float,
    floor: float = 0.0,
) -> torch.Tensor:
    """Return the loss after 0, 1, ..., ``epochs`` full-batch steps from theta = 0, one row for each
    step size, (b, epochs + 1).

    The velocity is v <- momentum v - rate step. A run ends, and keeps the loss ``floor``, when it
    is at most that; one that is not finite, or whose metric cannot be factored, keeps the loss inf.
    """
    theta = torch.zeros(len(rates), problem.Z.shape[1], dtype=problem.Z.dtype)
    velocity = torch.zeros_like(theta)
    curves = torch.full((len(rates), epochs + 1), torch.inf, dtype=theta.dtype)
    curves[:, 0] = problem.loss(theta)
    alive = torch.arange(len(rates))
    for epoch in range(1, epochs + 1):
        step = problem.direction(theta, eps) if natural else problem.gradient(theta)
        velocity = momenta[alive, None] * velocity - rates[alive, None] * step
        theta = theta + velocity
        losses = problem.loss(theta).nan_to_num(torch.inf, posinf=torch.inf)
        curves[alive, epoch] = losses.clamp_min(floor)
        curves[alive[losses <= floor], epoch:] = floor
        kept = (losses > floor) & losses.isfinite()
        alive, theta, velocity = alive[kept], theta[kept], velocity[kept]
        if not len(alive):
            break
    return curves


def epochs_to(curves: torch.Tensor, target: float) -> torch.Tensor:
    """Return the first epoch at which each curve (b, epochs + 1) is at most ``target``, epochs + 1
    if never.
    """
    hit = curves <= target
    return torch.where(hit.any(-1), hit.double().argmax(-1), curves.shape[-1])


def condition_numbers(problem: Neuron, *, epochs: int, eps: float) -> torch.Tensor:
    """Return the condition number of the damped metric along ``epochs`` natural steps of size 1,
    (epochs,).
    """
    theta = torch.zeros(1, problem.Z.shape[1], dtype=problem.Z.dtype)
    values = []
    for _ in range(epochs):
        g = problem.metric(theta)
        lam, damping = torch.linalg.eigvalsh(g[0]).clamp_min(0), problem.damping(g, eps)[0]
        values.append((lam[-1] + damping) / (lam[0] + damping))
        theta = theta - problem.direction(theta, eps)
    return torch.stack(values)
