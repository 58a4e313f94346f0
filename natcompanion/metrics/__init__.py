"""Metrics on parameter space: Fisher matrices and their relatives, dense and matrix-free."""

from natcompanion._memory import dense_limit
from natcompanion.metrics.curvature import GaussNewtonOperator, HessianOperator
from natcompanion.metrics.dense import (
    empirical_fisher,
    fisher,
    gauss_newton,
    gradient_covariance,
    monte_carlo_fisher,
    per_example_gradients,
)
from natcompanion.metrics.energy import energy_metric, gradient_second_moment
from natcompanion.metrics.estimates import Estimate, estimate_diagonal, estimate_trace
from natcompanion.metrics.kronecker import KroneckerFactors, kronecker_factors
from natcompanion.metrics.matrix import block_diagonal, condition_number, diagonal
from natcompanion.metrics.operators import (
    CovarianceOperator,
    FisherOperator,
    MetricOperator,
    MonteCarloOperator,
)

__all__ = [
    "CovarianceOperator",
    "Estimate",
    "FisherOperator",
    "GaussNewtonOperator",
    "HessianOperator",
    "KroneckerFactors",
    "MetricOperator",
    "MonteCarloOperator",
    "block_diagonal",
    "condition_number",
    "dense_limit",
    "diagonal",
    "empirical_fisher",
    "energy_metric",
    "estimate_diagonal",
    "estimate_trace",
    "fisher",
    "gauss_newton",
    "gradient_covariance",
    "gradient_second_moment",
    "kronecker_factors",
    "monte_carlo_fisher",
    "per_example_gradients",
]
