r"""The plane between the parameters and the natural parameters: what the chapter's figure computes
while it is played with.

In the coordinates :math:`G^{t/2} \theta` the Fisher matrix is :math:`G^{1-t}`: for t = 0 they are
the parameters, for t = 1 the natural ones, in which the valley is a bowl.
"""

import torch

from natcompanion import solvers
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.models import LinearGaussian
from natcompanion.whitening import whitening_matrix

RULES = ("steepest", "natural", "plane", "eq35", "damping")
"""Steepest descent in theta, in phi, in the plane that is shown; two regularized inverses."""


def model(condition: float) -> LinearGaussian:
    """Return the example of Eq. 1 with another condition number of its Fisher matrix.

    The eigenvectors and the largest eigenvalue stay.
    """
    values, vectors = torch.linalg.eigh(problems.example().fisher())
    roots = torch.stack([values[1] / condition, values[1]]).sqrt()
    return LinearGaussian(symmetric(roots, vectors))


def power(G: torch.Tensor, exponent: float) -> torch.Tensor:
    """Return a power of a positive definite matrix."""
    values, vectors = torch.linalg.eigh(G)
    return symmetric(values**exponent, vectors)


def symmetric(values: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the matrix with these eigenvalues and, in the columns, eigenvectors."""
    return (vectors * values) @ vectors.mT


def plane(
    condition: float, t: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    r"""Return what the plane and the five rules need.

    Parameters
    ----------
    condition : float
        Of the Fisher matrix.
    t : float
        From 0, the parameters, to 1, the natural parameters.
    eps : float
        Of the regularized inverse of Eq. 35, and the damping beside it; positive.

    Returns
    -------
    M : Tensor, shape (2, 2)
        Of the model.
    root : Tensor, shape (2, 2)
        :math:`(G / \lambda)^{t/2}`, where :math:`\lambda` is the largest eigenvalue: the
        coordinates of the plane, in which the steep direction keeps its length.
    whitening : Tensor, shape (2, 2)
        Maps the circle of radius 1 to the ellipse of a divergence of 1/2 nat.
    inverses : Tensor, shape (5, 2, 2)
        What each rule multiplies the gradient by.
    limits : Tensor, shape (5,)
        The largest stable step size of each rule.
    """
    example = model(condition)
    G, identity = example.fisher(), torch.eye(2, dtype=torch.float64)
    inverses = torch.stack(
        [
            identity,
            solvers.damped_solve(G, identity, 0.0),
            power(G, -t),
            solvers.stochastic_robust_inverse(G, eps),
            solvers.damped_solve(G, identity, eps),
        ]
    )
    scaled = G / torch.linalg.eigvalsh(G)[-1]
    limits = 2 / torch.linalg.eigvalsh(inverses @ G)[:, -1]
    return example.M, power(scaled, t / 2), whitening_matrix(G), inverses, limits


def step(
    M: torch.Tensor, inverses: torch.Tensor, theta: torch.Tensor, rate: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parameters (5, 2) after one step of each rule, and their divergence (5,) in nats
    before it.
    """
    example, goal = LinearGaussian(M), torch.zeros(2, dtype=torch.float64)
    direction = inverses @ example.gradient(theta, goal)[..., None]
    return theta - rate * direction[..., 0], example.kl(theta, goal)
