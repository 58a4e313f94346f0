r"""A machine of 4 x 3 units that learns by two rules, with its Fisher matrix at each step: with the
covariance penalty, and with whitening that is learned beside it.
"""

import torch

from natcompanion.boltzmann import RBM, CovariancePenalty, LearnedWhitening, covariances
from natcompanion.boltzmann.penalty import model_moments

VISIBLE, HIDDEN = 4, 3
UP, DOWN, BOUNDS = 1.1, 0.9, (1e-5, 1.0)
"""How gamma changes, as in `natcompanion.boltzmann.ThresholdController`."""


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
    covariance: torch.Tensor, gamma: torch.Tensor, threshold: float, fraction: float
) -> torch.Tensor:
    """Return gamma after the paper's rule: what `ThresholdController` does, without branches."""
    share = (covariance.abs() > threshold).double().mean()
    return torch.where(share > fraction, gamma * UP, gamma * DOWN).clamp(*BOUNDS)


def whitened(
    theta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    v: torch.Tensor,
    rate: float,
    pace: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a step along the learned whitened direction.

    Parameters
    ----------
    theta : Tensor, shape (19,)
    A, B : Tensor, shapes (4, 4) and (3, 3)
        Whitening matrices, which are moved before the step.
    v : Tensor, shape (n, 4)
    rate, pace, eps : float
        Step size; rate of the equivariant rule; its ridge.

    Returns
    -------
    theta, A, B : Tensor
        After the step.
    likelihood : Tensor, shape ()
        Mean log-likelihood before it.
    fisher : Tensor, shape (19, 19)
        Of the whitened parameters, before the step.
    """
    rbm = RBM.from_vector(theta, VISIBLE, HIDDEN)
    whitening = LearnedWhitening(VISIBLE, HIDDEN, rate=pace, eps=eps)
    whitening.A, whitening.B = A, B
    moments, C = model_moments(rbm), covariances(rbm)
    whitening.update_exact(moments, C["vv"], C["hh"])
    T = coordinates(whitening.A, whitening.B, moments.v, moments.h)
    step = rate * whitening.direction(rbm.gradient(v))
    fisher = T @ rbm.fisher() @ T.mT
    return theta + step, whitening.A, whitening.B, rbm.log_likelihood(v).mean(), fisher


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
