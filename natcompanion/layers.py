r"""Layers that whiten their input, and the maps between a plain network and a whitened one.

A whitened layer computes

.. math:: V U (h - c) + d

with parameters ``V`` and ``d``, and with ``U`` and ``c`` set from the statistics of ``h``. It is the plain layer
with :math:`W = V U` and :math:`b = d - W c`, in coordinates in which plain gradient descent is a natural-gradient step.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import conv2d, linear, pad

from natcompanion import _checks as check
from natcompanion._moments import Moments, rows

Kind = Literal["pca", "zca"]


def whitening_pair(
    cov: torch.Tensor, eps: float = 0.0, kind: Kind = "pca"
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Return the whitening matrix of a covariance and its inverse.

    .. math:: \Sigma = Q \Lambda Q^\top, \qquad U_\mathrm{pca} = (\Lambda + \epsilon I)^{-1/2} Q^\top, \qquad
              U_\mathrm{zca} = Q (\Lambda + \epsilon I)^{-1/2} Q^\top

    Parameters
    ----------
    cov : Tensor, shape (d, d)
        Symmetric positive semi-definite; eigenvalues that are negative by rounding count as 0.
    eps : float
        Added to every eigenvalue.
    kind : "pca" or "zca"
        The paper's form, with eigenvalues in descending order, or the symmetric one.

    Returns
    -------
    tuple of Tensor
        ``U`` and its inverse, (d, d) each, in float64.

    Raises
    ------
    ValueError
        If ``cov`` is no covariance, or singular while ``eps`` is 0.

    Notes
    -----
    Source: prong Eq. 7, with the centred covariance.
    """
    if kind not in ("pca", "zca"):
        raise ValueError(f'kind: expected "pca" or "zca", got {kind!r}')
    sigma = check.symmetric(cov, "cov").detach().double()
    values, vectors = check.semidefinite_eigh(sigma, "cov", cov.dtype)
    if check.non_negative(eps, "eps") == 0:
        check.full_rank(values, "cov", torch.float64)
    roots, Q = (values + eps).sqrt().flip(0), vectors.flip(1)
    if kind == "pca":
        return (Q / roots).mT, Q * roots
    return (Q / roots) @ Q.mT, (Q * roots) @ Q.mT


def to_canonical(
    V: torch.Tensor, d: torch.Tensor | None, U: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    r"""Return :math:`W = V U` and :math:`b = d - W c` of whitened coordinates.

    Parameters
    ----------
    V : Tensor, shape (out, in) or (out, in, height, width)
        For a convolution, U acts on the feature maps, and c counts once per tap.
    d : Tensor, shape (out,), or None
    U, c : Tensor, shapes (in, in) and (in,)

    Notes
    -----
    The map is linear in (V, d), so that it also takes velocities from one kind of coordinates to the other.
    Source: prong Algorithm 1, line 7.
    """
    W = torch.einsum("oi...,ij->oj...", V, U)
    return W, None if d is None else d - _shift(W, c)


def to_whitened(
    W: torch.Tensor, b: torch.Tensor | None, U_inverse: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    r"""Return :math:`V = W U^{-1}` and :math:`d = b + W c`, the inverse of :func:`to_canonical`.

    Source: prong Algorithm 1, line 10.
    """
    return torch.einsum("oj...,ji->oi...", W, U_inverse), None if b is None else b + _shift(W, c)


def _shift(W: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return W.reshape(*W.shape[:2], -1).sum(2) @ c


class _Whitened(nn.Module):
    """What the linear and the convolutional whitened layer share."""

    V: nn.Parameter
    d: nn.Parameter | None
    U: torch.Tensor
    c: torch.Tensor

    def _set_up(self, plain: nn.Module, features: int, kind: Kind) -> None:
        """Take over the parameters of a plain layer, with ``U = I`` and ``c = 0``."""
        if kind not in ("pca", "zca"):
            raise ValueError(f'kind: expected "pca" or "zca", got {kind!r}')
        self.kind = kind
        self.V = nn.Parameter(plain.weight.detach().clone(), plain.weight.requires_grad)
        self.register_parameter("d", None)
        if plain.bias is not None:
            self.d = nn.Parameter(plain.bias.detach().clone(), plain.bias.requires_grad)
        like = {"dtype": plain.weight.dtype, "device": plain.weight.device}
        self.register_buffer("U", torch.eye(features, **like))
        self.register_buffer("c", torch.zeros(features, **like))
        self.train(plain.training)

    @torch.no_grad()
    def canonical(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weights and bias of the plain layer that computes the same; the bias is None without d."""
        W, b = to_canonical(*self._wide(self.V, self.d), *self._wide(self.U, self.c))
        return W.to(self.V.dtype), None if b is None else b.to(self.V.dtype)

    @torch.no_grad()
    def rewhiten(
        self,
        mean: torch.Tensor,
        cov: torch.Tensor,
        eps: float,
        along: Iterable[tuple[torch.Tensor, torch.Tensor | None]] = (),
    ) -> None:
        r"""Set U and c from statistics of the input, and change V and d so that the layer computes the same.

        Parameters
        ----------
        mean : Tensor, shape (in,)
            Mean of the layer's input, over feature maps for a convolution.
        cov : Tensor, shape (in, in)
            Centred covariance, divisor n.
        eps : float
            Added to the eigenvalues of ``cov``.
        along : iterable of pairs, optional
            Velocities in the coordinates of (V, d), changed in place in the same way.

        Raises
        ------
        ValueError
            If the statistics do not fit the layer or are not finite. Nothing is changed then.

        Notes
        -----
        A layer without d cannot be centred: c stays 0, and U whitens the second moment
        ``cov + outer(mean, mean)``. Source: prong Algorithm 1, lines 7-10, corrected: the old U in line 7, the new
        one in line 10.
        """
        mean, cov = check.floating(mean, "mean"), check.square(cov, "cov")
        if mean.shape != self.c.shape or len(cov) != len(mean):
            raise ValueError(
                f"rewhiten: expected mean and cov of {len(self.c)} features, got shapes {tuple(mean.shape)} "
                f"and {tuple(cov.shape)}"
            )
        old = self._wide(self.U, self.c)
        mean, cov = self._wide(mean, cov)
        if self.d is None:
            cov, mean = cov + torch.outer(mean, mean), torch.zeros_like(mean)
        U, inverse = whitening_pair(cov, eps, self.kind)
        for V, d in [(self.V, self.d), *along]:
            W, b = to_canonical(*self._wide(V, d), *old)
            V_new, d_new = to_whitened(W, b, inverse, mean)
            V.copy_(V_new)
            if d is not None:
                d.copy_(d_new)
        self.U.copy_(U)
        self.c.copy_(mean)

    @torch.no_grad()
    def set_coordinates(self, mean: torch.Tensor, cov: torch.Tensor, eps: float) -> None:
        """Set U and c from statistics of the input and leave V and d alone, so that the function changes."""
        V, d = self.V.detach().clone(), None if self.d is None else self.d.detach().clone()
        self.rewhiten(mean, cov, eps)
        self.V.copy_(V)
        if d is not None:
            self.d.copy_(d)

    def _wide(self, *tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
        return [
            None if tensor is None else tensor.detach().to(self.V.device, torch.float64) for tensor in tensors
        ]


class WhitenedLinear(_Whitened):
    r"""A linear layer in whitened coordinates, :math:`V U (h - c) + d`.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As in ``torch.nn.Linear``; V and d are initialized as its weight and bias, and U = I, c = 0.
    kind : "pca" or "zca"
        Form of U, see :func:`whitening_pair`. Gradient descent makes the same steps with both.

    Attributes
    ----------
    V, d : Parameter, shapes (out, in) and (out,)
        ``d`` is None without bias.
    U, c : Tensor, shapes (in, in) and (in,)
        Buffers: no gradient reaches them.

    Notes
    -----
    Source: prong Eq. 6.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        kind: Kind = "pca",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._set_up(
            nn.Linear(in_features, out_features, bias, device=device, dtype=dtype), in_features, kind
        )

    @classmethod
    def from_plain(cls, plain: nn.Linear, kind: Kind = "pca") -> "WhitenedLinear":
        """Return a whitened layer with the parameters of a plain one, which computes the same."""
        layer = cls(*reversed(plain.weight.shape), bias=plain.bias is not None, kind=kind, device="meta")
        layer._set_up(plain, plain.in_features, kind)
        return layer

    def plain(self) -> nn.Linear:
        """Return the ``nn.Linear`` that computes the same."""
        out_features, in_features = self.V.shape
        layer = nn.Linear(in_features, out_features, self.d is not None, device="meta")
        return _with_parameters(layer, self)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out)."""
        return linear(linear(h - self.c, self.U), self.V, self.d)

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{self.V.shape[1]}, {self.V.shape[0]}, bias={self.d is not None}, kind={self.kind!r}"


class WhitenedConv2d(_Whitened):
    r"""A convolution whose input maps are whitened: a centred 1x1 convolution by U, then one by V.

    The pixels of a map count as independent samples: U is (maps, maps). The input is padded first and then centred and
    whitened, so that the border sees what it sees in the plain layer: a padded pixel enters as :math:`U(0 - c)`.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, bias, padding_mode, device, dtype
        As in ``torch.nn.Conv2d``; there are no groups.
    kind : "pca" or "zca"
        Form of U, see :func:`whitening_pair`.

    Attributes
    ----------
    V, d : Parameter, shapes (out, in, height, width) and (out,)
    U, c : Tensor, shapes (in, in) and (in,)

    Notes
    -----
    Source: prong Section 4.3.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        kind: Kind = "pca",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._take(
            nn.Conv2d(
                in_channels, out_channels, kernel_size, stride, padding, dilation, 1, bias, padding_mode,
                device=device, dtype=dtype,
            ),
            kind,
        )  # fmt: skip

    def _take(self, plain: nn.Conv2d, kind: Kind) -> None:
        if plain.groups != 1:
            raise ValueError(f"WhitenedConv2d: expected a convolution without groups, got {plain.groups}")
        self._set_up(plain, plain.in_channels, kind)
        self.kernel_size, self.stride, self.dilation = plain.kernel_size, plain.stride, plain.dilation
        self.padding, self.padding_mode = plain.padding, plain.padding_mode
        self._border = list(plain._reversed_padding_repeated_twice)

    @classmethod
    def from_plain(cls, plain: nn.Conv2d, kind: Kind = "pca") -> "WhitenedConv2d":
        """Return a whitened layer with the parameters of a plain one, which computes the same."""
        layer = cls(1, 1, 1, bias=False, device="meta")
        layer._take(plain, kind)
        return layer

    def plain(self) -> nn.Conv2d:
        """Return the ``nn.Conv2d`` that computes the same."""
        out_channels, in_channels = self.V.shape[:2]
        layer = nn.Conv2d(
            in_channels, out_channels, self.kernel_size, self.stride, self.padding, self.dilation, 1,
            self.d is not None, self.padding_mode, device="meta",
        )  # fmt: skip
        return _with_parameters(layer, self)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Map (n, in, height, width) to (n, out, ...)."""
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        padded = pad(h, self._border, mode=mode) if any(self._border) else h
        white = conv2d(padded - self.c[:, None, None], self.U[:, :, None, None])
        return conv2d(white, self.V, self.d, self.stride, 0, self.dilation)

    def extra_repr(self) -> str:
        """Describe the layer."""
        return (
            f"{self.V.shape[1]}, {self.V.shape[0]}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, bias={self.d is not None}, kind={self.kind!r}"
        )


def _with_parameters(layer: nn.Module, whitened: _Whitened) -> nn.Module:
    """Give a plain layer the canonical parameters of a whitened one."""
    W, b = whitened.canonical()
    layer.weight = nn.Parameter(W, whitened.V.requires_grad)
    if b is not None:
        layer.bias = nn.Parameter(b, whitened.d.requires_grad)
    return layer.train(whitened.training)


def whiten_model(model: nn.Module, kind: Kind = "pca") -> nn.Module:
    """Return a copy of a model whose linear and convolutional layers are whitened ones, with ``U = I``, ``c = 0``.

    The copy computes the same. Layers that cannot be whitened (grouped convolutions, layers of other types, layers
    that share their parameters) stay plain.
    """
    shared = _shared(model)

    def convert(module: nn.Module) -> nn.Module | None:
        if shared & {id(p) for p in module._parameters.values()}:
            return None
        if type(module) is nn.Linear:
            return WhitenedLinear.from_plain(module, kind)
        if type(module) is nn.Conv2d and module.groups == 1:
            return WhitenedConv2d.from_plain(module, kind)
        return None

    return _replaced(model, convert)


def canonical_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose whitened layers are plain ones that compute the same.

    Its ``state_dict`` fits the plain network.
    """
    return _replaced(model, lambda module: module.plain() if isinstance(module, _Whitened) else None)


def with_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy of a model with batch normalization after every linear and convolutional layer but the last.

    The layer ``name`` becomes ``name.0``, its normalization ``name.1``.
    """
    found = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d, _Whitened))][:-1]

    def convert(module: nn.Module) -> nn.Module | None:
        if not any(module is m for m in found):
            return None
        weight = module.V if isinstance(module, _Whitened) else module.weight
        norm = nn.BatchNorm1d if weight.ndim == 2 else nn.BatchNorm2d
        return nn.Sequential(
            copy.deepcopy(module), norm(len(weight), device=weight.device, dtype=weight.dtype)
        )

    return _replaced(model, convert)


def _shared(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that several modules own."""
    owned = [
        id(p)
        for module in dict.fromkeys(model.modules())
        for p in module._parameters.values()
        if p is not None
    ]
    return {key for key in owned if owned.count(key) > 1}


def _replaced(model: nn.Module, convert: Any) -> nn.Module:
    """Return a copy of a model with some modules replaced by what ``convert`` makes of them."""
    memo = {id(old): new for old in model.modules() if (new := convert(old)) is not None}
    return copy.deepcopy(model, memo)


@torch.no_grad()
def whitened_initialization(
    model: nn.Module, inputs: torch.Tensor, eps: float, kind: Kind = "pca"
) -> nn.Module:
    r"""Read the present weights of a model as weights in whitened coordinates, layer by layer, in place.

    Each layer in turn, in the order of the forward pass, is given the weights :math:`W = V U` and the bias
    :math:`b = d - W c`, with its present weights and bias as (V, d), and with U and c from the statistics of what the
    layers before it, already changed, make of ``inputs``. After a "fan-in" initialization the pre-activations of every
    layer then have a scale that does not depend on the scale and correlation of its inputs.

    Parameters
    ----------
    model : Module
        Plain layers get new weights; whitened ones keep V and d and get new U and c.
    inputs : Tensor, shape (n, ...)
    eps : float
        Added to the eigenvalues of the covariances.
    kind : "pca" or "zca"
        Form of U for plain layers.

    Returns
    -------
    Module
        The model.

    Notes
    -----
    Source: prong Section 4.1, "whitened initialization" (Figure 3b).
    """
    done: set[int] = set()

    def initialize(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if id(module) in done:
            return
        done.add(id(module))
        moments = Moments.of(rows(module, args[0])).checked("layer")
        if isinstance(module, _Whitened):
            module.set_coordinates(moments.mean, moments.covariance(), eps)
            return
        whitened = type_of_whitened(module).from_plain(module, kind)
        whitened.set_coordinates(moments.mean, moments.covariance(), eps)
        W, b = whitened.canonical()
        module.weight.copy_(W)
        if b is not None:
            module.bias.copy_(b)

    handles = [
        module.register_forward_pre_hook(initialize) for module in model.modules() if whitenable(module)
    ]
    with preserved_buffers(model):
        try:
            model(inputs)
        finally:
            for handle in handles:
                handle.remove()
    return model


def type_of_whitened(module: nn.Module) -> type[WhitenedLinear] | type[WhitenedConv2d]:
    """Return the class of the whitened layer that stands for a plain one."""
    return WhitenedLinear if isinstance(module, nn.Linear) else WhitenedConv2d


def whitenable(module: nn.Module) -> bool:
    """Return whether a module is a whitened layer or can be turned into one."""
    return (
        isinstance(module, _Whitened)
        or type(module) is nn.Linear
        or (type(module) is nn.Conv2d and module.groups == 1)
    )


@contextmanager
def preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the running statistics of BatchNorm and its like at the end; whitened layers are left alone."""
    kept = [
        (buffer, buffer.clone())
        for module in model.modules()
        if not isinstance(module, _Whitened)
        for buffer in module._buffers.values()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
