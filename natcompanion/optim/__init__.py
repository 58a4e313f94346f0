"""Optimizers of the papers, as torch optimizers wherever a per-step rule allows."""

from natcompanion.optim.kfac import KFAC
from natcompanion.optim.krylov import HessianFree, KrylovSubspaceDescent
from natcompanion.optim.mirror_descent import (
    Mirror,
    MirrorDescent,
    Quadratic,
    bregman_divergence,
    mirror_step,
    proximal_objective,
)
from natcompanion.optim.natural_gradient import NaturalGradient, Step
from natcompanion.optim.natural_space import NaturalSpace, natural_space
from natcompanion.optim.newton import Newton, loss_hessian
from natcompanion.optim.prong import PRONG
from natcompanion.optim.prong_plus import PRONGPlus
from natcompanion.optim.relative_gradient import RelativeGradient, natural_relative_gradient
from natcompanion.optim.rngd import RNGD
from natcompanion.optim.sample_space import SampleSpaceNaturalGradient, SampleSpaceStep
from natcompanion.optim.tonga import TONGA

__all__ = [
    "KFAC",
    "PRONG",
    "RNGD",
    "TONGA",
    "HessianFree",
    "KrylovSubspaceDescent",
    "Mirror",
    "MirrorDescent",
    "NaturalGradient",
    "NaturalSpace",
    "Newton",
    "PRONGPlus",
    "Quadratic",
    "RelativeGradient",
    "SampleSpaceNaturalGradient",
    "SampleSpaceStep",
    "Step",
    "bregman_divergence",
    "loss_hessian",
    "mirror_step",
    "natural_relative_gradient",
    "natural_space",
    "proximal_objective",
]
