"""Solvers for the linear systems of natural-gradient methods."""

from natcompanion.solvers.cg import conjugate_gradient
from natcompanion.solvers.minres import minres
from natcompanion.solvers.minres_qlp import minres_qlp
from natcompanion.solvers.regularized import damped_solve, ridge_solve, stochastic_robust_inverse
from natcompanion.solvers.solution import Reason, Solution

__all__ = [
    "Reason",
    "Solution",
    "conjugate_gradient",
    "damped_solve",
    "minres",
    "minres_qlp",
    "ridge_solve",
    "stochastic_robust_inverse",
]
