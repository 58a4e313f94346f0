r"""A machine of 4 x 3 units that learns by several rules, with its Fisher matrix at each step: what
the chapter's figure computes while it is played with.
"""

from functools import lru_cache

import torch

from natcompanion.boltzmann import RBM, CovariancePenalty, covariances
from natcompanion.boltzmann.whitened import equivariant_step, whitened_direction

VISIBLE, HIDDEN = 4, 3
UP, DOWN, BOUNDS = 1.1, 0.9, (1e-5, 1.0)
"""How gamma changes, as in `natcompanion.boltzmann.ThresholdController`."""
FRACTION, PACE = 0.05, 0.1
"""Of the covariances, beyond which gamma grows; rate at which whitening is learned."""
METHODS = {
    "plain": "plain gradient",
    "penalty": "penalty",
    "whitened": "learned whitening",
    "natural": "natural gradient",
}
START = RBM.random(
    VISIBLE, HIDDEN, scale=1.0, bias_scale=0.5, generator=torch.Generator().manual_seed(3)
).vector()


def start(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parameters at the start times a number, (19,), and the four patterns that are
    learned, (4, 4): the first unit on, the first two, three, four.
    """
    return scale * START, torch.ones(4, VISIBLE, dtype=torch.float64).tril()


def penalized(
    theta: torch.Tensor, v: torch.Tensor, rate: float, gamma: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a step with the covariance penalty, and what the machine was before it.

    Parameters
    ----------
    theta : Tensor, shape (19,)
    v : Tensor, shape (n, 4)
        Data.
    rate : float
        Step size.
    gamma : float
        Weight of the penalty, in [0, 1].

    Returns
    -------
    theta : Tensor, shape (19,)
        After the step.
    likelihood : Tensor, shape ()
        Mean log-likelihood before it.
    covariance : Tensor, shape (4, 3)
    fisher : Tensor, shape (19, 19)
    """
    rbm, penalty = RBM.from_vector(theta, VISIBLE, HIDDEN), CovariancePenalty()
    step = rate * penalty.objective_gradient(rbm, v, gamma)
    return theta - step, rbm.log_likelihood(v).mean(), covariances(rbm)["vh"], rbm.fisher()


def next_gamma(
    covariance: torch.Tensor, gamma: torch.Tensor | float, threshold: float, fraction: float
) -> torch.Tensor:
    """Return gamma after the paper's rule: what `ThresholdController` does, without branches."""
    weight = torch.as_tensor(gamma, dtype=torch.float64)
    share = (covariance.abs() > threshold).double().mean()
    return torch.where(share > fraction, weight * UP, weight * DOWN).clamp(*BOUNDS)


def natural(
    theta: torch.Tensor, v: torch.Tensor, rate: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a natural gradient step, the likelihood and the Fisher matrix before it.

    Parameters
    ----------
    theta : Tensor, shape (19,)
    v : Tensor, shape (n, 4)
    rate, eps : float
        Step size; damping, which is positive.

    Returns
    -------
    theta : Tensor, shape (19,)
        After the step.
    likelihood : Tensor, shape ()
    fisher : Tensor, shape (19, 19)
    """
    rbm = RBM.from_vector(theta, VISIBLE, HIDDEN)
    step = rate * rbm.natural_gradient(v, damping=eps)
    return theta + step, rbm.log_likelihood(v).mean(), rbm.fisher()


def whitened(
    theta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    mean: torch.Tensor,
    v: torch.Tensor,
    rate: float,
    pace: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """Return a step along the learned whitened direction, with the whitening after it.

    The whitening learns as `natcompanion.boltzmann.LearnedWhitening.update` does, from so many
    samples of the machine that its moments are exact.

    Parameters
    ----------
    theta : Tensor, shape (19,)
    A, B : Tensor, shapes (4, 4) and (3, 3)
        Whitening matrices.
    mean : Tensor, shape (7,)
        Running means of the visible and the hidden units.
    v : Tensor, shape (n, 4)
    rate, pace, eps : float
        Step size; rate of the equivariant rule and of the means; its ridge.

    Returns
    -------
    theta, A, B, mean : Tensor
        After the step.
    likelihood : Tensor, shape ()
        Mean log-likelihood before it.
    fisher : Tensor, shape (19, 19)
        Before it, in the coordinates whitened by what was learned before it.
    """
    rbm = RBM.from_vector(theta, VISIBLE, HIDDEN)
    T = coordinates(A, B, *mean.split([VISIBLE, HIDDEN]))
    likelihood, fisher = rbm.log_likelihood(v).mean(), T @ rbm.fisher() @ T.mT
    moments, C = rbm.statistics_mean()[: VISIBLE + HIDDEN], covariances(rbm)
    mean = mean + pace * (moments - mean)
    (mean_v, mean_h), (off_v, off_h) = (x.split([VISIBLE, HIDDEN]) for x in (mean, moments - mean))
    A = equivariant_step(A, C["vv"] + torch.outer(off_v, off_v), pace, eps)
    B = equivariant_step(B, C["hh"] + torch.outer(off_h, off_h), pace, eps)
    direction = whitened_direction(rbm.gradient(v), mean_v, mean_h, A.mT @ A, B.mT @ B)
    return theta + rate * direction, A, B, mean, likelihood, fisher


def coordinates(
    A: torch.Tensor, B: torch.Tensor, mean_v: torch.Tensor, mean_h: torch.Tensor
) -> torch.Tensor:
    r"""Return the linear map T (19, 19) from the statistics (v, h, vec v h^T) to those of the
    whitened units, up to constants.

    .. math:: (A v,\; B h,\; \mathrm{vec}\, A (v - \mu)(h - \lambda)^T B^T)

    The whitened direction is :math:`T^T T` times the gradient.
    """
    D, H = len(A), len(B)
    zero = torch.zeros(D, H, dtype=A.dtype)
    AB = torch.kron(A, B)
    first = torch.kron(A, (B @ mean_h)[:, None])
    second = torch.kron((A @ mean_v)[:, None], B)
    top = torch.cat([A, zero, torch.zeros(D, D * H, dtype=A.dtype)], 1)
    middle = torch.cat([zero.mT, B, torch.zeros(H, D * H, dtype=A.dtype)], 1)
    return torch.cat([top, middle, torch.cat([-first, -second, AB], 1)], 0)


def off_diagonal(G: torch.Tensor) -> torch.Tensor:
    """Return the share of the squared norm of a matrix that lies off its diagonal, ()."""
    return 1 - G.diagonal().square().sum() / G.square().sum()


@lru_cache(maxsize=8)
def learned(
    method: str,
    steps: int = 100,
    rate: float = 0.1,
    gamma: float = 0.01,
    threshold: float = 0.01,
    eps: float = 0.01,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the mean log-likelihood, the Fisher matrix and gamma before each step and at the end,
    (steps + 1,), (steps + 1, 19, 19) and (steps + 1,).

    Parameters
    ----------
    method : str
        Of `METHODS`. The matrix of learned whitening is that of the whitened parameters.
    steps : int
    rate, gamma, threshold, eps : float
        Step size; weight of the penalty at the start; threshold of its rule; ridge and damping.
    """
    theta, v = start(1.0)
    A, B = (torch.eye(n, dtype=torch.float64) for n in (VISIBLE, HIDDEN))
    mean = theta.new_zeros(VISIBLE + HIDDEN)
    weight = torch.tensor(gamma if method == "penalty" else 0.0, dtype=torch.float64)
    seen = []
    for _ in range(steps + 1):
        before = weight
        if method == "whitened":
            theta, A, B, mean, likelihood, G = whitened(theta, A, B, mean, v, rate, PACE, eps)
        elif method == "natural":
            theta, likelihood, G = natural(theta, v, rate, eps)
        else:
            theta, likelihood, C, G = penalized(theta, v, rate, float(weight))
            weight = next_gamma(C, weight, threshold, FRACTION) if method == "penalty" else weight
        seen.append((likelihood, G, before))
    likelihoods, matrices, weights = (torch.stack(values) for values in zip(*seen, strict=True))
    return likelihoods, matrices, weights
