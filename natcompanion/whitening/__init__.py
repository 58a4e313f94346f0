r"""Whitening: linear maps after which a signal has mean zero and covariance :math:`I`, exactly
or learned.
"""

from natcompanion.whitening.adaptive import (
    EASI,
    Divergence,
    potter_update,
    relative_gradient,
    sherman_morrison_update,
)
from natcompanion.whitening.matrices import Whitener, whitening_matrix
from natcompanion.whitening.spectra import staleness, suggest_eps, suggest_period

__all__ = [
    "EASI",
    "Divergence",
    "Whitener",
    "potter_update",
    "relative_gradient",
    "sherman_morrison_update",
    "staleness",
    "suggest_eps",
    "suggest_period",
    "whitening_matrix",
]
