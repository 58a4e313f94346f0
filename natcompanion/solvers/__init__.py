"""Solvers for the linear systems of natural-gradient methods."""

from natcompanion.solvers.regularized import damped_solve, ridge_solve, stochastic_robust_inverse

__all__ = [
    "damped_solve",
    "ridge_solve",
    "stochastic_robust_inverse",
]
