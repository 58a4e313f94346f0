r"""The natural gradient for a square matrix parameter: whitening Section 2.9."""

from collections.abc import Iterable
from typing import Any

import torch

from natcompanion import _checks as check
from natcompanion.optim.base import Directions, Preconditioned


def natural_relative_gradient(gradient: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    r"""Return the natural gradient of a function of a non-singular matrix.

    .. math:: \tilde\nabla J(W) = \frac{\partial J}{\partial W} W^\top W

    It belongs to the metric that is invariant to right multiplication: for the function
    :math:`W \mapsto J(W Y^{-1})` at :math:`W Y` it is :math:`\tilde\nabla J(W)\, Y`. A descent step
    subtracts it.

    Parameters
    ----------
    gradient : Tensor, shape (n, n)
        The ordinary gradient at ``W``.
    W : Tensor, shape (n, n)

    Returns
    -------
    Tensor, shape (n, n)
        Half precision is multiplied in float32; the dtype of ``W`` is kept.

    Raises
    ------
    ValueError
        If ``W`` or the gradient is not a finite square floating-point matrix, or the shapes differ.

    Notes
    -----
    Source: whitening Eq. 43, as a gradient; the step in the direction printed there needs a minus
    sign.

    Examples
    --------
    >>> natural_relative_gradient(torch.ones(2, 2), torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    tensor([[4., 1.],
            [4., 1.]])
    """
    if check.square(gradient, "gradient").shape != check.square(W, "W").shape:
        raise ValueError(
            f"gradient: expected shape {tuple(W.shape)} like W, got {tuple(gradient.shape)}"
        )
    wide = torch.promote_types(W.dtype, torch.float32)
    W_wide = W.to(wide)
    return (gradient.to(wide) @ W_wide.mT @ W_wide).to(W.dtype)


class RelativeGradient(Preconditioned):
    r"""Descend along the natural gradient of square matrices.

    .. math:: W \leftarrow W - \mathrm{lr} \, \frac{\partial J}{\partial W} W^\top W

    Every parameter is a square non-singular matrix with a step of its own. The path is equivariant:
    if the data x become A x and the start W becomes :math:`W A^{-1}`, then every iterate W becomes
    :math:`W A^{-1}`.

    Parameters
    ----------
    params : iterable of Tensor or of dict
        Square matrices.
    lr : float
        Step size, at least 0.
    momentum, nesterov, weight_decay
        As for :class:`natcompanion.optim.Preconditioned`: momentum of the natural gradient, whose
        sum is equivariant too, and decoupled decay.

    Raises
    ------
    ValueError
        If a parameter is not a finite square floating-point matrix; if a gradient is not finite, in
        which case no parameter is changed.

    Notes
    -----
    Source: whitening Eqs. 43-44, with the minus sign that Eq. 43 leaves out.

    Examples
    --------
    The likelihood of a Gaussian model is greatest where W whitens the data:

    >>> C = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> W = torch.nn.Parameter(torch.eye(2))
    >>> optimizer = RelativeGradient([W], lr=0.3)
    >>> for _ in range(30):
    ...     optimizer.zero_grad()
    ...     ((W @ C * W).sum() / 2 - torch.linalg.slogdet(W)[1]).backward()
    ...     optimizer.step()
    >>> bool(torch.dist(W @ C @ W.mT, torch.eye(2)) < 1e-4)
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(None, params, {"lr": lr, **options})

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        for p in group["params"]:
            check.square(p.detach(), "params")

    def _directions(self, gradients: Directions) -> Directions:
        return {p: natural_relative_gradient(g.to_dense(), p) for p, g in gradients.items()}
