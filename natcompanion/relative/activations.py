r"""Activations, their slopes, and the coefficient :math:`\nu` of a neuron's relative Fisher
metric.
"""

from typing import Literal, TypedDict

import torch

from natcompanion import _checks as check

Activation = Literal["linear", "tanh", "sigmoid", "relu", "elu"]
NAMES = ("linear", "tanh", "sigmoid", "relu", "elu")
ALIASES = {"sigm": "sigmoid", "prelu": "relu"}


class Options(TypedDict, total=False):
    """What an activation may have; :func:`nu` says what each is."""

    sigma: float
    iota: float
    omega: float
    alpha: float


def nu(
    activation: Activation,
    a: torch.Tensor,
    *,
    sigma: float = 1.0,
    iota: float = 0.0,
    omega: float = 0.0,
    alpha: float = 1.0,
) -> torch.Tensor:
    r"""Return the coefficient of a neuron's relative Fisher metric :math:`\nu\, \tilde x \tilde
    x^\top`.

    ========== ========================== ====================================================
    activation Source: rfim               :math:`\nu` at the pre-activation :math:`a`
    ========== ========================== ====================================================
    tanh       Eq. 12                     :math:`1 - \tanh^2 a`
    sigmoid    Eq. 14                     :math:`s(a)\,(1 - s(a))`
    relu       Eq. 18; 16 for ``omega=0`` :math:`(\iota+(1-\iota)s((1-\iota)a/\omega))^2/\sigma^2`
    elu        Eq. 20                     :math:`1/\sigma^2`; below 0: :math:`(\alpha e^a/\sigma)^2`
    linear     Eq. 22                     :math:`1/\sigma^2`
    ========== ========================== ====================================================

    Here :math:`s(a) = 1/(1 + e^{-a})`. For tanh and sigmoid it is the slope of the activation, for
    the others the square of the slope over :math:`\sigma^2`.

    Parameters
    ----------
    activation : "linear", "tanh", "sigmoid", "relu" or "elu"
        "sigm" and "prelu" are other names of "sigmoid" and "relu".
    a : Tensor
        Pre-activations :math:`w^\top \tilde x`, any shape.
    sigma : float
        Standard deviation of the response; for relu, elu and linear.
    iota : float
        Slope of relu below 0, in [0, 1): 0 for ReLU, else PReLU.
    omega : float
        Width of the bend of relu; 0 is the hard one. Its metric is undefined at ``a = 0``: here the
        slope is ``iota`` there, as in torch. Any ``omega > 0`` gives the slope :math:`(1 +
        \iota)/2`.
    alpha : float
        Minus the limit of elu for ``a`` to minus infinity. Except for 1, the metric jumps at 0.

    Returns
    -------
    Tensor
        In the shape and dtype of ``a``; half precision is computed in float32.

    Raises
    ------
    ValueError
        If the activation is unknown, ``a`` is not a finite floating-point tensor, or an option is
        out of its range. An option that the activation does not have is ignored.

    Examples
    --------
    >>> nu("sigmoid", torch.zeros(1)), nu("tanh", torch.zeros(1))
    (tensor([0.2500]), tensor([1.]))
    """
    name = _checked(activation, a, sigma=sigma, iota=iota, omega=omega, alpha=alpha)
    return _nu(name, _wide(a), sigma=sigma, iota=iota, omega=omega, alpha=alpha).to(a.dtype)


def activate(
    activation: Activation,
    a: torch.Tensor,
    *,
    iota: float = 0.0,
    omega: float = 0.0,
    alpha: float = 1.0,
) -> torch.Tensor:
    r"""Return the activation :math:`f(a)`, elementwise; arguments and errors as for :func:`nu`.

    The smooth relu is

    .. math:: \omega \log\left(e^{\iota a / \omega} + e^{a / \omega}\right),

    and hard for ``omega=0``. Source: rfim Eq. 34, 38, 40 (with the :math:`\iota` of the first
    exponent) and 42.

    Parameters
    ----------
    activation : "linear", "tanh", "sigmoid", "relu" or "elu"
    a : Tensor
        Pre-activations, any shape.
    iota, omega, alpha : float
        As for :func:`nu`.

    Examples
    --------
    >>> activate("relu", torch.tensor([-1.0, 2.0]), iota=0.5)
    tensor([-0.5000,  2.0000])
    """
    name = _checked(activation, a, iota=iota, omega=omega, alpha=alpha)
    return _activate(name, _wide(a), iota=iota, omega=omega, alpha=alpha).to(a.dtype)


def slope(
    activation: Activation,
    a: torch.Tensor,
    *,
    iota: float = 0.0,
    omega: float = 0.0,
    alpha: float = 1.0,
) -> torch.Tensor:
    r"""Return the derivative :math:`f'(a)`, elementwise; arguments and errors as for :func:`nu`.

    Source: rfim Eq. 37, 39, 41 and 43.

    Parameters
    ----------
    activation : "linear", "tanh", "sigmoid", "relu" or "elu"
    a : Tensor
        Pre-activations, any shape.
    iota, omega, alpha : float
        As for :func:`nu`.

    Examples
    --------
    >>> slope("relu", torch.tensor([-1.0, 2.0]), iota=0.5)
    tensor([0.5000, 1.0000])
    """
    name = _checked(activation, a, iota=iota, omega=omega, alpha=alpha)
    return _slope(name, _wide(a), iota=iota, omega=omega, alpha=alpha).to(a.dtype)


def _nu(name: str, a: torch.Tensor, *, sigma: float = 1.0, **shape: float) -> torch.Tensor:
    slopes = _slope(name, a, **shape)
    return slopes if name in ("tanh", "sigmoid") else (slopes / sigma).square()


def _activate(
    name: str, a: torch.Tensor, iota: float = 0.0, omega: float = 0.0, alpha: float = 1.0
) -> torch.Tensor:
    match name:
        case "tanh":
            return torch.tanh(a)
        case "sigmoid":
            return torch.sigmoid(a)
        case "relu":
            hard, omega = torch.maximum(a, iota * a), _width(omega, a)
            return (
                hard
                if omega == 0
                else hard + omega * torch.exp((iota - 1) * a.abs() / omega).log1p()
            )
        case "elu":
            return torch.where(a >= 0, a, alpha * torch.expm1(a.clamp(max=0)))
    return a


def _slope(
    name: str, a: torch.Tensor, iota: float = 0.0, omega: float = 0.0, alpha: float = 1.0
) -> torch.Tensor:
    match name:
        case "tanh":
            return (
                4 * torch.sigmoid(2 * a) * torch.sigmoid(-2 * a)
            )  # 1 - tanh(a)**2 loses its digits
        case "sigmoid":
            return torch.sigmoid(a) * torch.sigmoid(-a)
        case "relu":
            on = (
                (a > 0).to(a.dtype)
                if omega == 0
                else torch.sigmoid((1 - iota) * a / _width(omega, a))
            )
            return iota + (1 - iota) * on
        case "elu":
            return torch.where(a >= 0, torch.ones_like(a), alpha * torch.exp(a.clamp(max=0)))
    return torch.ones_like(a)


def _checked(activation: str, a: torch.Tensor, **options: float) -> str:
    """Return the name of the activation if it and everything else is in order."""
    name = _options(activation, **options)
    check.floating(a, "a")
    return name


def _options(
    activation: str,
    *,
    sigma: float = 1.0,
    iota: float = 0.0,
    omega: float = 0.0,
    alpha: float = 1.0,
) -> str:
    name = ALIASES.get(activation, activation) if isinstance(activation, str) else activation
    if name not in NAMES:
        raise ValueError(f"activation: expected one of {', '.join(NAMES)}, got {activation!r}")
    check.positive(sigma, "sigma")
    check.non_negative(omega, "omega")
    check.positive(alpha, "alpha")
    if check.non_negative(iota, "iota") >= 1:
        raise ValueError(f"iota: expected a number in [0, 1), got {iota!r}")
    return name


def _width(omega: float, a: torch.Tensor) -> float:
    """Return the width of a bend, 0 or a normal number in the dtype of ``a``."""
    limits = torch.finfo(a.dtype)
    return omega and min(max(omega, limits.tiny), limits.max)


def _wide(a: torch.Tensor) -> torch.Tensor:
    return a.float() if a.dtype in (torch.float16, torch.bfloat16) else a
