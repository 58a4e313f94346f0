r"""Metrics made of per-example gradients of any scalar function: whitening Eqs. 31, 33 and 39."""

from collections.abc import Callable

import torch
from torch.func import grad, vmap

from natcompanion import _checks as check
from natcompanion._memory import affordable

Params = torch.Tensor | dict[str, torch.Tensor] | tuple[torch.Tensor, ...] | list[torch.Tensor]


def energy_metric(
    energy: Callable[[Params, torch.Tensor], torch.Tensor],
    params: Params,
    x: torch.Tensor,
    *,
    centred: bool = False,
) -> torch.Tensor:
    r"""Return the metric of the energy approximation.

    .. math:: G_{ij} = \frac1n \sum_x \frac{\partial E(x; \theta)}{\partial \theta_i}
                                      \frac{\partial E(x; \theta)}{\partial \theta_j}

    It leaves out the log partition function, and with it the mean of the energy gradient under the
    model. Where that mean is far from 0, the Fisher matrix and this metric differ much;
    ``centred=True`` subtracts the mean over the data instead, at the same cost.

    Parameters
    ----------
    energy : callable
        ``energy(params, x_i)`` -> scalar for one example, written with torch operations that
        ``vmap`` can batch.
    params : Tensor, dict, tuple or list of Tensor
        P parameters in all, flattened in their own order, each row-major.
    x : Tensor, shape (n, ...)
        The data, batch first.
    centred : bool
        Return the covariance of the gradients over the data (divisor n) instead of their second
        moment.

    Returns
    -------
    Tensor, shape (P, P)
        In the dtype of the parameters; averaged in float64.

    Raises
    ------
    ValueError
        As for :func:`gradient_second_moment`.

    Notes
    -----
    Source: whitening Eq. 33.

    Examples
    --------
    >>> energy_metric(lambda w, x: w * x, torch.tensor(0.5), torch.tensor([1.0, 2.0]))
    tensor([[2.5000]])
    """
    return gradient_second_moment(energy, params, x, centred=centred)


def gradient_second_moment(
    function: Callable[..., torch.Tensor],
    params: Params,
    *data: torch.Tensor,
    centred: bool = False,
) -> torch.Tensor:
    r"""Return the average outer product of per-example gradients.

    .. math:: G_{ij} = \left\langle \frac{\partial f(x; \theta)}{\partial \theta_i}
                                    \frac{\partial f(x; \theta)}{\partial \theta_j}
                                    \right\rangle_{p(x)}

    With ``function`` the log likelihood this is the Fisher information over the data (Eq. 31), with
    an energy it is Eq. 33, with a loss Eq. 39.

    Parameters
    ----------
    function : callable
        ``function(params, *example)`` -> scalar for one example, written with torch operations that
        ``vmap`` can batch.
    params : Tensor, dict, tuple or list of Tensor
        P parameters in all, flattened in their own order, each row-major.
    *data : Tensor, shape (n, ...)
        One or more tensors with the same batch size, for instance inputs and targets, which may be
        integers.
    centred : bool
        Subtract the mean gradient first (divisor n).

    Returns
    -------
    Tensor, shape (P, P)
        In the dtype of the parameters; averaged in float64.

    Raises
    ------
    ValueError
        If a parameter is not floating point, a tensor is empty or holds NaN, or the batch sizes
        differ.

    Notes
    -----
    Source: whitening Eqs. 31, 33, 39.

    Examples
    --------
    >>> x, t = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])
    >>> gradient_second_moment(lambda w, x, t: (w * x - t) ** 2 / 2, torch.tensor(1.0), x, t)
    tensor([[2.5000]])
    """
    size = sum(leaf.numel() for leaf in _leaves(params) if isinstance(leaf, torch.Tensor))
    affordable(size, torch.float64, "gradient_second_moment", "fewer parameters at a time")
    gradients = _per_example_gradients(function, params, data).double()
    if centred:
        gradients = gradients - gradients.mean(0)
    return (gradients.mT @ gradients / len(gradients)).to(_leaves(params)[0].dtype)


def _per_example_gradients(
    function: Callable[..., torch.Tensor], params: Params, data: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """Return the gradient of ``function(params, *example)`` for each example, shape (n, P)."""
    check.function(function, "function")
    if not (leaves := _leaves(params)):
        raise ValueError("params: expected at least one tensor, got none")
    for leaf in leaves:
        check.floating(leaf, "params")
    for tensor in data:
        if isinstance(tensor, torch.Tensor):
            tensor = check.numbers(tensor, "data").double()
        check.floating(tensor, "data")
    if not data or any(t.ndim == 0 for t in data) or len({len(t) for t in data}) != 1:
        raise ValueError(
            "data: expected tensors with one batch size, got shapes "
            f"{[tuple(t.shape) for t in data]}"
        )
    example = ", ".join(["params", *(check.shown(t[0]) for t in data)])
    with check.told(lambda: f"function: expected a number of function({example}), but it failed"):
        gradients = vmap(grad(function), in_dims=(None, *[0] * len(data)))(params, *data)
    if isinstance(params, dict):
        gradients = [gradients[name] for name in params]
    return torch.cat([leaf.reshape(len(data[0]), -1) for leaf in _leaves(gradients)], 1).detach()


def _leaves(params: Params) -> list[torch.Tensor]:
    if isinstance(params, torch.Tensor):
        return [params]
    if not isinstance(params, (dict, tuple, list)):
        raise ValueError(
            f"params: expected a tensor, or a dict, tuple or list of them, got {check.got(params)}"
        )
    return list(params.values()) if isinstance(params, dict) else list(params)
