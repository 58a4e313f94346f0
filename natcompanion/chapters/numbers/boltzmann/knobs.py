"""Two small training runs for the reader's hand: the paper's scheme at any threshold, fraction and
cap, and learned whitening at any ε.
"""

from collections.abc import Iterator
from functools import lru_cache

import torch

from natcompanion import boltzmann
from natcompanion.boltzmann import RBM, Moments
from natcompanion.data import mnist

LIVE_STEPS = 200
HIDDEN = 6


@lru_cache(maxsize=1)
def live_digits() -> torch.Tensor:
    """Return 400 binary digits of 7 by 7 pixels, (400, 49)."""
    images, _ = mnist(400, size=7, dtype=torch.float64)
    return (images.flatten(1) > 0.5).double()


def live_machine() -> RBM:
    """Return a machine with small random weights, the same at every call."""
    return RBM.random(49, HIDDEN, scale=0.1, generator=torch.Generator().manual_seed(0))


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield for each step the data and the uniform numbers that decide hidden and visible states,
    the same at every call.
    """
    noise = torch.Generator().manual_seed(1)
    for step in range(LIVE_STEPS):
        data = live_digits()[torch.arange(50 * step, 50 * step + 50) % 400]
        u_h = torch.rand(50, HIDDEN, generator=noise, dtype=torch.float64)
        yield data, u_h, torch.rand(50, 49, generator=noise, dtype=torch.float64)


def contrast(
    rbm: RBM, data: torch.Tensor, u_h: torch.Tensor, u_v: torch.Tensor
) -> tuple[torch.Tensor, Moments]:
    """Return the gradient by contrastive divergence (a, b, vec W), (P,), and the moments of the
    reconstruction, by probabilities.
    """
    m = rbm.visible_mean((u_h < rbm.hidden_mean(data)).double())
    model = (u_v < m).double()
    return rbm.contrast(data, model), boltzmann.sample_moments(m, rbm.hidden_mean(model))


@lru_cache(maxsize=32)
def live_scheme(threshold: float, fraction: float, cap: float) -> dict[str, list[float]]:
    """Return the weight γ and the exact log-likelihood along the paper's scheme."""
    rbm, penalty = live_machine(), boltzmann.PaperPenalty()
    controller = boltzmann.ThresholdController(threshold, fraction, bounds=(1e-5, cap))
    run: dict[str, list[float]] = {"gamma": [], "likelihood": []}
    for data, u_h, u_v in batches():
        gradient, moments = contrast(rbm, data, u_h, u_v)
        matrix = penalty.update(moments)
        gamma = controller.update(matrix)
        lowered = torch.cat([torch.zeros(49 + HIDDEN), matrix.reshape(-1)])
        rbm = rbm.moved(0.1 * ((1 - gamma) * gradient - gamma * lowered))
        run["gamma"].append(gamma)
        run["likelihood"].append(float(rbm.log_likelihood(live_digits()).mean()))
    return run


@lru_cache(maxsize=32)
def live_whitening(eps: float) -> dict[str, list[float]]:
    """Return the exact log-likelihood along plain and along whitened steps, whitening learned."""
    runs: dict[str, list[float]] = {}
    for name in ("plain", "whitened"):
        rbm = live_machine()
        learned = boltzmann.LearnedWhitening(49, HIDDEN, rate=0.1, eps=eps)
        runs[name] = []
        for _ in range(LIVE_STEPS // 4):
            direction = rbm.gradient(live_digits())
            if name == "whitened":
                C = boltzmann.covariances(rbm)
                learned.update_exact(boltzmann.model_moments(rbm), C["vv"], C["hh"])
                direction = learned.direction(direction)
            rbm = rbm.moved(0.1 * direction)
            runs[name].append(float(rbm.log_likelihood(live_digits()).mean()))
    return runs
