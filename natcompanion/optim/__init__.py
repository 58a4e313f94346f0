"""Optimizers of the papers, as torch optimizers wherever a per-step rule allows."""

from natcompanion.optim.natural_space import NaturalSpace, natural_space
from natcompanion.optim.relative_gradient import RelativeGradient, natural_relative_gradient

__all__ = [
    "NaturalSpace",
    "RelativeGradient",
    "natural_relative_gradient",
    "natural_space",
]
