r"""Le Roux's natural gradient (TONGA): the covariance of the gradients in the place of the Fisher
matrix.
"""

from typing import Any

import torch
from torch import nn

from natcompanion.likelihoods import Likelihood
from natcompanion.metrics import CovarianceOperator
from natcompanion.optim.natural_gradient import NaturalGradient


class TONGA(NaturalGradient):
    r"""Descend along the gradient divided by the covariance of the examples' gradients.

    .. math:: \theta \leftarrow \theta - \mathrm{lr}\, (C + \lambda I)^{-1} \bar g, \qquad
              C = \frac1n \sum_i (g_i - \bar g)(g_i - \bar g)^\top

    With ``centred=False`` the matrix is :math:`U = C + \bar g \bar g^\top`. At equal damping both
    give the same direction, because :math:`(U + \lambda I)^{-1} \bar g` is
    :math:`(C + \lambda I)^{-1} \bar g / (1 + \bar g^\top (C + \lambda I)^{-1} \bar g)`, as long as
    the covariance is that of the batch of the gradient.

    The covariance needs targets, so that unlabelled inputs cannot improve it: ``metric_inputs`` is
    refused.

    Parameters
    ----------
    model, likelihood, lr, **options
        As for :class:`natcompanion.optim.NaturalGradient`, without ``metric``.
    centred : bool
        C of Eq. 12 or U of Eq. 13.

    Notes
    -----
    Source: revisiting Section 4.1, Eq. 12 and 13.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = nn.Linear(1, 1).double(), torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> t = 3 * x + 1
    >>> optimizer = TONGA(model, Gaussian(), lr=0.1, damping=1.0)
    >>> _ = optimizer.step(x, t)
    >>> optimizer.last.accepted, optimizer.last.loss_after < optimizer.last.loss
    (True, True)
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        lr: float,
        *,
        centred: bool = True,
        **options: Any,
    ) -> None:
        self.centred = centred
        if "metric" in options:
            raise ValueError(
                "metric: TONGA has its own, the covariance; use NaturalGradient for another"
            )
        super().__init__(model, likelihood, lr, **options)

    SETTINGS = (*NaturalGradient.SETTINGS, "centred")
    needs_targets = (
        "the covariance of gradients needs targets and cannot use other inputs; leave them "
        "out, or use NaturalGradient"
    )

    def _metric(
        self, x: torch.Tensor, t: torch.Tensor, inputs: torch.Tensor, g: torch.Tensor
    ) -> Any:
        uncentred = CovarianceOperator(
            self.model, x, t, self.likelihood, centred=False, **self._chosen()
        )
        return Centred(uncentred, g) if self.centred else uncentred


class Centred:
    """The covariance ``U - g g^T``, where ``g`` is the mean gradient."""

    def __init__(self, uncentred: CovarianceOperator, mean: torch.Tensor) -> None:
        self.uncentred, self.mean = uncentred, mean
        self.shape, self.dtype = uncentred.shape, uncentred.dtype

    def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
        return self.uncentred @ v - self.mean * (self.mean @ v)
