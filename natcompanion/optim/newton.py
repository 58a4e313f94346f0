r"""Newton's method for small problems: the exact Hessian of the loss, negative curvature
included.
"""

from typing import Any

import torch
from torch import nn
from torch.func import grad, jacrev

from natcompanion import _checks as check
from natcompanion.likelihoods import Likelihood
from natcompanion.metrics.model_function import ModelFunction
from natcompanion.optim.natural_gradient import NaturalGradient

LARGEST = 5000
"""Parameters, at most: a Hessian of this size has 200 MB in float64."""


def loss_hessian(
    model: nn.Module,
    x: torch.Tensor,
    t: torch.Tensor,
    likelihood: Likelihood,
    *,
    parameters: Any = None,
    output: Any = None,
) -> torch.Tensor:
    """Return the Hessian (P, P) of the mean negative log-likelihood, by differentiating twice.

    Unlike the Fisher matrix it needs targets and may have negative eigenvalues.

    Parameters
    ----------
    model, x, t, likelihood, parameters, output
        As for :func:`natcompanion.metrics.gauss_newton`.

    Raises
    ------
    ValueError
        If there are more than 5000 parameters, the batch does not fit the model, or torch has no
        second derivative of a layer.

    Notes
    -----
    Source: revisiting Section 4.2.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = nn.Linear(1, 1).double(), torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> t = 3 * x + 1
    >>> loss_hessian(model, x, t, Gaussian())
    tensor([[0.6667, 0.0000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    f = ModelFunction(model, parameters, output)
    x = f.check(x)
    if f.size > LARGEST:
        raise ValueError(
            f"model: expected at most {LARGEST} parameters for an exact Hessian, got {f.size} "
            f"({8e-9 * f.size**2:.1f} GB); use NaturalGradient, whose metric is never formed"
        )
    theta = f.flat(f.theta.values())

    def loss(vector: torch.Tensor) -> torch.Tensor:
        pieces = vector.split([p.numel() for p in f.theta.values()])
        named = {
            name: piece.view_as(p) for (name, p), piece in zip(f.theta.items(), pieces, strict=True)
        }
        return f.on(likelihood).nll(f(named, x), t).mean()

    try:
        H = jacrev(grad(loss))(theta).detach()
    except RuntimeError:  # a model that functional transforms cannot take
        H = _row_by_row(f, x, t, f.on(likelihood))
    return (H + H.mT) / 2


def _row_by_row(
    f: ModelFunction, x: torch.Tensor, t: torch.Tensor, likelihood: Likelihood
) -> torch.Tensor:
    """Return the derivatives of the gradient (P, P), one after the other."""
    theta = {name: p.clone().requires_grad_() for name, p in f.theta.items()}
    leaves = list(theta.values())
    try:
        with torch.enable_grad():
            loss = likelihood.nll(f(theta, x), t).mean()
            pieces = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
            g = f.flat(pieces)
        if not g.requires_grad:  # the loss is linear
            return torch.zeros(f.size, f.size, dtype=f.dtype, device=x.device)
        g.sum().backward(retain_graph=True)  # grad passes by what has no derivative, in silence
        rows = [
            torch.autograd.grad(g_i, leaves, retain_graph=True, materialize_grads=True) for g_i in g
        ]
        return torch.stack([f.flat(row) for row in rows])
    except check.Refused:
        raise
    except RuntimeError as error:
        raise ValueError(
            f"model: expected layers with second derivatives, got one without ({error}); use "
            "NaturalGradient, which needs first ones"
        ) from error


class Newton(NaturalGradient):
    r"""Newton's method with damping.

    .. math:: \theta \leftarrow \theta - \mathrm{lr}\, (H + \lambda I)^{-1} g, \qquad
              H = \frac{\partial^2 \mathcal L}{\partial \theta^2}

    It is drawn to saddle points and maxima where H has negative eigenvalues beyond the damping.

    Parameters
    ----------
    model, likelihood, **options
        As for :class:`natcompanion.optim.NaturalGradient`, without ``metric``; by default the
        system is solved to ten digits. ``metric_inputs`` is refused: the Hessian needs targets.
    lr : float
        Step size; 1 is Newton's own.

    Source: revisiting Sections 4 and 4.2.

    Examples
    --------
    >>> from natcompanion.likelihoods import Gaussian
    >>> model, x = nn.Linear(1, 1).double(), torch.tensor([[-1.0], [0.0], [1.0]]).double()
    >>> t = 3 * x + 1
    >>> optimizer = Newton(model, Gaussian(), damping=0.0)
    >>> _ = optimizer.step(x, t)
    >>> torch.allclose(model.weight, 3 * torch.ones(1, 1).double())  # a quadratic takes one step
    True
    """

    def __init__(
        self, model: nn.Module, likelihood: Likelihood, lr: float = 1.0, **options: Any
    ) -> None:
        if "metric" in options:
            raise ValueError(
                "metric: Newton has its own, the Hessian; use NaturalGradient for another"
            )
        super().__init__(model, likelihood, lr, **{"rtol": 1e-10, "max_iter": None, **options})

    needs_targets = "the Hessian needs targets and cannot use other inputs; leave them out"

    def _metric(
        self, x: torch.Tensor, t: torch.Tensor, inputs: torch.Tensor, g: torch.Tensor
    ) -> torch.Tensor:
        with torch.enable_grad():
            return loss_hessian(self.model, x, t, self.likelihood, **self._chosen())
