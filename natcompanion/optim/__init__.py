"""Optimizers of the papers, as torch optimizers wherever a per-step rule allows."""

from natcompanion.optim.kfac import KFAC
from natcompanion.optim.krylov import HessianFree, KrylovSubspaceDescent
from natcompanion.optim.natural_gradient import NaturalGradient, Step
from natcompanion.optim.natural_space import NaturalSpace, natural_space
from natcompanion.optim.newton import Newton, loss_hessian
from natcompanion.optim.relative_gradient import RelativeGradient, natural_relative_gradient
from natcompanion.optim.tonga import TONGA

__all__ = [
    "KFAC",
    "TONGA",
    "HessianFree",
    "KrylovSubspaceDescent",
    "NaturalGradient",
    "NaturalSpace",
    "Newton",
    "RelativeGradient",
    "Step",
    "loss_hessian",
    "natural_relative_gradient",
    "natural_space",
]
