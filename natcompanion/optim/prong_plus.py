r"""PRONG+: PRONG with a diagonal rescaling for every batch, by batch normalization or in whitened
coordinates.
"""

from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from natcompanion import _checks as check
from natcompanion import _distributed
from natcompanion.layers import whitening_pair
from natcompanion.optim._prong_layers import Layer, Map, PlainLayer
from natcompanion.optim.prong import PRONG


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
        With the second, the inputs of a step are kept until it is made: D is that of all of them.
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

    Examples
    --------
    >>> from natcompanion.layers import with_batch_norm
    >>> model = with_batch_norm(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> optimizer = PRONGPlus(model, lr=0.1)
    >>> x, t = torch.randn(20, 4), torch.randint(3, (20,))
    >>> nn.functional.cross_entropy(model(x), t).backward()
    >>> optimizer.step()
    >>> sorted(optimizer.layers), sorted(optimizer.plain)
    (['0.0', '2'], ['0.1'])
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
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        if normalization == "batch" and modules and not any(map(_normalizes, modules)):
            raise ValueError(
                "model: expected batch normalization in it, found none; use "
                "layers.with_batch_norm(model), "
                'or normalization="diagonal"'
            )
        if normalization == "diagonal" and any(hasattr(m, "V") for m in modules):
            raise ValueError(
                'normalization: expected plain layers for "diagonal", got whitened ones'
            )
        if normalization == "diagonal":
            self.METRIC = "whitening"
        self._more = {"normalization": normalization, "floor": floor}
        super().__init__(model, lr, momentum, **options)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check.positive(group["floor"], "floor")
        kind = "diagonal" if self.METRIC == "whitening" else "batch"
        if group["normalization"] != kind:
            raise ValueError(f"normalization: expected {kind!r}, got {group['normalization']!r}")

    def _wanted(self, layer: Layer, h: torch.Tensor, output: torch.Tensor) -> dict[str, Any]:
        wanted = super()._wanted(layer, h, output)
        if self.METRIC == "whitening" and isinstance(layer, PlainLayer):
            wanted["inputs"] = h.detach().clone()
        return wanted

    def _needs_passes(self, group: dict[str, Any]) -> bool:
        return self.METRIC == "whitening" or super()._needs_passes(group)

    def _made(self, sigma: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
        if self.METRIC == "whitening":
            return whitening_pair(sigma, eps, "pca")[0]
        return super()._made(sigma, eps, dtype)

    def _scale(self, layer: PlainLayer, matrix: torch.Tensor, c: Any) -> torch.Tensor | None:
        """Return the squares of D, from the inputs of this step; 1 without any."""
        if self.METRIC != "whitening":
            return None
        total, count = torch.zeros_like(matrix[0]), matrix.new_zeros(1)
        for h in layer.inputs:
            rows = layer.rows(h).to(matrix)
            total += ((rows if c is None else rows - c) @ matrix.mT).square().sum(0)
            count += len(rows)
        _distributed.reduce_sum([total, count])
        floor = self.param_groups[0]["floor"]
        return 1 / (total / count + floor) if count else torch.ones_like(total)

    def _applied(self, matrix: torch.Tensor, scale: torch.Tensor | None) -> Map:
        if scale is None:
            return super()._applied(matrix, scale)
        return lambda x: ((x @ matrix.mT) * scale) @ matrix


def _normalizes(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm)
