r"""Layers that whiten their input, and the maps between a plain network and a whitened one.

A whitened layer computes

.. math:: V U (h - c) + d

with parameters ``V`` and ``d``, and with ``U`` and ``c`` set from the statistics of ``h``. It is
the plain layer with :math:`W = V U` and :math:`b = d - W c`, in coordinates in which plain gradient
descent is a natural-gradient step.
"""

from natcompanion.layers.conversion import (
    canonical_model,
    preserved_buffers,
    whiten_model,
    whitenable,
    whitened_initialization,
    with_batch_norm,
)
from natcompanion.layers.coordinates import to_canonical, to_whitened, whitening_pair
from natcompanion.layers.whitened import Whitened, WhitenedConv2d, WhitenedLinear

__all__ = [
    "Whitened",
    "WhitenedConv2d",
    "WhitenedLinear",
    "canonical_model",
    "preserved_buffers",
    "to_canonical",
    "to_whitened",
    "whiten_model",
    "whitenable",
    "whitened_initialization",
    "whitening_pair",
    "with_batch_norm",
]
