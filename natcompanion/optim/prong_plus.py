r"""PRONG+: PRONG with a diagonal rescaling for every batch, by batch normalization or in whitened
coordinates.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from natcompanion import _checks as check
from natcompanion import _distributed
from natcompanion.layers import whitening_pair
from natcompanion.optim._prong_layers import Map
from natcompanion.optim.prong import PRONG


class ScaledWhitening:
    r"""Multiplication of rows by :math:`U^\top D^2 U`, with D from the batch."""

    def __init__(self, U: torch.Tensor, floor: torch.Tensor) -> None:
        self.tensors = (U, floor)

    def prepared(self, centred: torch.Tensor | None) -> Map:
        """Return the multiplication for a batch of centred inputs; D is 1 without one."""
        U, floor = self.tensors
        if centred is None:
            return lambda x: (x @ U.mT) @ U
        total = (centred @ U.mT).square().sum(0)
        count = total.new_tensor([float(len(centred))])
        _distributed.reduce_sum([total, count])
        scale = 1 / (total / count + floor)
        return lambda x: ((x @ U.mT) * scale) @ U


@dataclass(frozen=True)
class MakeScaledWhitening:
    """Make the metric of a layer with a given floor."""

    floor: float
    ndims = (2, 0)

    def of(self, sigma: torch.Tensor, eps: float, like: torch.Tensor) -> ScaledWhitening:
        """Return the metric for a covariance in float64; it computes in the dtype of ``like``."""
        U, _ = whitening_pair(sigma, eps, "pca")
        return ScaledWhitening(U.to(like), like.new_tensor(self.floor))

    def __call__(self, U: torch.Tensor, floor: torch.Tensor) -> ScaledWhitening:
        """Return the metric from what was stored of one."""
        return ScaledWhitening(U, floor)


class PRONGPlus(PRONG):
    r"""PRONG with a diagonal that follows every batch.

    ``normalization="batch"`` is the paper's implementation: PRONG on a model with batch
    normalization, such as
    :func:`natcompanion.layers.with_batch_norm` makes. It differs from :class:`PRONG` only in that
    it refuses a model without.

    ``normalization="diagonal"`` is the paper's own form. The layer is

    .. math:: V D U (h - c) + d, \qquad D = \mathrm{diag}\big(E[z_i^2] + \phi\big)^{-1/2}, \qquad
              z = U (h - c)

    with the mean over the current batch. A step in (V, d), mapped back, is the step of PRONG with
    :math:`U^\top D^2 U` in place of :math:`U^\top U`.

    Parameters
    ----------
    model, lr, momentum, **options
        As of :class:`PRONG`.
    normalization : "batch" or "diagonal"
    floor : float
        :math:`\phi`, positive. A direction whose variance is far below ``eps`` has :math:`E[z_i^2]`
        near 0; D then multiplies the step by up to 1/floor, against the bound 1/eps that ``eps``
        sets.

    Raises
    ------
    ValueError
        As :class:`PRONG`; if there is no batch normalization in the model, or there are whitened
        layers, whose coordinates do not follow every batch.

    Notes
    -----
    The print has :math:`W = V D^{-1} U` with unit variance of :math:`D U h`, which contradict one
    another: with the D of the second the first feeds V inputs of the variance squared. The square
    is taken about c, so that a batch of one has one. U is the PCA form: D depends on the rotation.
    Source: prong Section 3.2, with the exponent corrected.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        momentum: float = 0.0,
        *,
        normalization: Literal["batch", "diagonal"] = "batch",
        floor: float = 0.1,
        **options: Any,
    ) -> None:
        if normalization not in ("batch", "diagonal"):
            raise ValueError(
                f'normalization: expected "batch" or "diagonal", got {normalization!r}'
            )
        if normalization == "batch" and not any(isinstance(m, _BatchNorm) for m in model.modules()):
            raise ValueError(
                "model: expected batch normalization in it, found none; use "
                "layers.with_batch_norm(model), "
                'or normalization="diagonal"'
            )
        if normalization == "diagonal" and any(hasattr(m, "V") for m in model.modules()):
            raise ValueError(
                'normalization: expected plain layers for "diagonal", got whitened ones'
            )
        self.normalization, self.floor = normalization, check.positive(floor, "floor")
        super().__init__(model, lr, momentum, **options)

    def _metric_type(self) -> Any:
        return (
            MakeScaledWhitening(self.floor)
            if self.normalization == "diagonal"
            else super()._metric_type()
        )
