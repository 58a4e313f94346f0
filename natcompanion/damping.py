r"""Levenberg-Marquardt: let the damping follow how well a step was predicted.

The reduction ratio divides the decrease that a step brought by the decrease that was predicted. Two
predictions are in use, and with the same thresholds they decide differently:

* revisiting Eq. 29 and 30 predict by the slope alone. On an exact quadratic, with ``d = -lr A^-1
  g``, the ratio is ``1 - lr / 2``: at ``lr = 1`` a perfect model scores 1/2, and at small ``lr``
  everything scores about 1.
* Martens (2010) predicts by slope and curvature. On an exact quadratic the ratio is 1 at any
  ``lr``. The predicted decrease changes sign at ``lr = 2``.

Near a minimum both decreases fall below the rounding of the loss, and their quotient means nothing.
Told the rounding, the ratio then tends to 1; else the damping would rise until no step changes the
loss, and stay there.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from natcompanion import _checks

__all__ = [
    "LevenbergMarquardt",
    "Trial",
    "linear_decrease",
    "quadratic_decrease",
    "reduction_ratio",
    "try_step",
]


def linear_decrease(step: torch.Tensor, gradient: torch.Tensor) -> float:
    r"""Return the decrease :math:`-g^T d` that the slope predicts for the step d. Source:
    revisiting Eq. 29.

    Parameters
    ----------
    step, gradient : Tensor, shape (P,)

    Examples
    --------
    >>> linear_decrease(torch.tensor([-1.0, 0.0]), gradient=torch.tensor([2.0, 3.0]))
    2.0
    """
    _checks.shaped(step, "step", *gradient.shape)
    return -float(gradient @ step)


def quadratic_decrease(
    step: torch.Tensor, gradient: torch.Tensor, metric_step: torch.Tensor
) -> float:
    r"""Return the decrease :math:`-g^T d - \tfrac12 d^T G d` of the quadratic model, given d, g and
    the product G d.

    Source: Martens (2010), Section 4.1; compare revisiting Eq. 30.

    Parameters
    ----------
    step, gradient, metric_step : Tensor, shape (P,)

    Examples
    --------
    >>> step = torch.tensor([-1.0, 0.0])
    >>> quadratic_decrease(step, gradient=torch.tensor([2.0, 3.0]), metric_step=2 * step)
    1.0
    """
    _checks.shaped(step, "step", *gradient.shape)
    _checks.shaped(metric_step, "metric_step", *gradient.shape)
    return -float(gradient @ step) - 0.5 * float(step @ metric_step)


def reduction_ratio(before: float, after: float, predicted: float, *, eps: float = 0.0) -> float:
    r"""Return the decrease of the loss divided by the ``predicted`` one, both as far as rounding
    shows them.

    .. math:: \rho = \frac{\text{before} - \text{after} + \delta}{\text{predicted} + \delta}, \qquad
              \delta = 10 \, \text{eps} \, \max(|\text{before}|, |\text{after}|)

    ``predicted`` is positive for a step that should lower the loss (see :func:`linear_decrease` and
    :func:`quadratic_decrease`). ``eps`` is that of the numbers the loss was computed with, such as
    ``torch.finfo(torch.float32).eps``; with 0 the ratio is taken as it is. The result is NaN if any
    number is not finite or nothing was predicted.

    Source: revisiting Eq. 30, with numerator and denominator multiplied by -1; the rounding as in
    Conn, Gould and Toint (2000), Section 17.4.2.

    Parameters
    ----------
    before, after : float
        The loss before and after the step.
    predicted : float
        The decrease that a model of the loss predicts.
    eps : float
        Precision of the loss.

    Examples
    --------
    >>> reduction_ratio(before=3.0, after=2.0, predicted=2.0)
    0.5
    """
    before, after, predicted = float(before), float(after), float(predicted)
    slack = 10 * eps * max(abs(before), abs(after))
    if 0 in (predicted, predicted + slack) or not all(
        map(math.isfinite, (before, after, predicted))
    ):
        return math.nan
    return (before - after + slack) / (predicted + slack)


@dataclass
class LevenbergMarquardt:
    """A damping that falls after steps that were predicted well and rises after steps that were
    not.

    Parameters
    ----------
    damping
        Where to start.
    low, high
        Below ``low`` the damping is multiplied by ``increase``; above ``high``, by ``decrease``.
    increase, decrease
        The paper gives no numbers; these are those of Martens (2010), 3/2 and 2/3.
    minimum, maximum
        The damping never leaves this range.

    Raises
    ------
    ValueError
        If the numbers are not ordered as their names say.

    Source: revisiting Section 8.3 and Eq. 30.

    Examples
    --------
    >>> rule = LevenbergMarquardt(damping=1.0)
    >>> rule.update(0.1)  # the step was predicted badly
    1.5
    >>> round(rule.update(0.9), 9)
    1.0
    """

    damping: float = 1.0
    low: float = 0.25
    high: float = 0.75
    increase: float = 1.5
    decrease: float = 2 / 3
    minimum: float = 1e-8
    maximum: float = 1e8

    def __post_init__(self) -> None:
        for name in ("damping", "minimum", "maximum", "increase", "decrease"):
            _checks.positive(getattr(self, name), name)
        if not self.minimum <= self.damping <= self.maximum:
            raise ValueError(
                f"damping: expected {self.minimum} to {self.maximum}, got {self.damping}"
            )
        if not self.low < self.high:
            raise ValueError(f"low, high: expected low < high, got {self.low} and {self.high}")
        if not self.decrease <= 1 <= self.increase:
            raise ValueError(
                "decrease, increase: expected decrease <= 1 <= increase, got "
                f"{self.decrease}, {self.increase}"
            )

    def update(self, rho: float) -> float:
        """Adapt the damping to a reduction ratio and return it; NaN counts as a step that
        failed.
        """
        if not rho >= self.low:
            self.damping = min(self.damping * self.increase, self.maximum)
        elif rho > self.high:
            self.damping = max(self.damping * self.decrease, self.minimum)
        return self.damping


@dataclass(frozen=True)
class Trial:
    """What came of a step: whether it was kept, the loss it led to (NaN included), and its
    reduction ratio.

    Parameters
    ----------
    accepted : bool
    after, rho : float

    Examples
    --------
    >>> Trial(accepted=True, after=0.5, rho=1.0).rho
    1.0
    """

    accepted: bool
    after: float
    rho: float


def try_step(
    parameters: Iterable[torch.Tensor],
    step: torch.Tensor,
    loss: Callable[[], torch.Tensor | float],
    *,
    before: float,
    predicted: float,
) -> Trial:
    """Add ``step`` (P,) to the parameters and keep it if the loss is finite and not above
    ``before``.

    A rejected step leaves every parameter as it was, to the last bit. A step that is not finite, or
    that predicts no decrease, is rejected without being tried: at an exact minimum nothing moves.
    The reduction ratio allows for the rounding of the parameters' dtype.

    Parameters
    ----------
    parameters : iterable of Tensor
        P numbers in all; changed in place.
    step : Tensor, shape (P,)
    loss : callable
        Gives the loss at the present parameters.
    before, predicted : float
        The loss before the step, and the decrease that is predicted.

    Examples
    --------
    >>> theta = torch.tensor([2.0])
    >>> step, loss = torch.tensor([-1.0]), lambda: theta.square().sum()
    >>> trial = try_step([theta], step, loss, before=4.0, predicted=4.0)
    >>> trial.accepted, round(trial.rho, 3), theta
    (True, 0.75, tensor([1.]))
    """
    parameters = list(parameters)
    _checks.shaped(step, "step", sum(p.numel() for p in parameters))
    if not (math.isfinite(predicted) and predicted > 0 and bool(torch.isfinite(step).all())):
        return Trial(False, before, math.nan)
    saved = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, piece in zip(parameters, step.split([p.numel() for p in parameters]), strict=True):
            p.add_(piece.view_as(p))
        after = math.nan
        try:
            after = float(loss())
        finally:
            accepted = math.isfinite(after) and after <= before
            if not accepted:
                for p, old in zip(parameters, saved, strict=True):
                    p.copy_(old)
    eps = max(torch.finfo(p.dtype).eps for p in parameters)
    return Trial(accepted, after, reduction_ratio(before, after, predicted, eps=eps))
