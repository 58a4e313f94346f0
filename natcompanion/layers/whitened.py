"""Linear and convolutional layers that whiten their input."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import conv2d, linear, pad

from natcompanion import _checks as check
from natcompanion.layers.coordinates import Kind, to_canonical, to_whitened, whitening_pair


class Whitened(nn.Module):
    """What :class:`WhitenedLinear` and :class:`WhitenedConv2d` share: parameters V and d, buffers U
    and c.

    Parameters
    ----------
    *args, **kwargs
        Of the layer.

    Examples
    --------
    >>> layer: Whitened = WhitenedLinear(1, 1)
    >>> W, b = layer.canonical()
    >>> torch.equal(W, layer.V), torch.equal(b, layer.d)  # U = I and c = 0
    (True, True)
    """

    V: nn.Parameter
    d: nn.Parameter | None
    U: torch.Tensor
    c: torch.Tensor

    def _set_up(self, plain: Any, features: int, kind: Kind) -> None:
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
        """Return the weights and bias of the plain layer that computes the same; the bias is None
        without d.
        """
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
        r"""Set U and c from statistics of the input, and change V and d so that the layer computes
        the same.

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
        ``cov + outer(mean, mean)``. Source: prong Algorithm 1, lines 7-10, corrected: the old U in
        line 7, the new one in line 10.
        """
        mean, cov = check.floating(mean, "mean"), check.square(cov, "cov")
        if mean.shape != self.c.shape or len(cov) != len(mean):
            raise ValueError(
                f"rewhiten: expected mean and cov of {len(self.c)} features, got shapes "
                f"{tuple(mean.shape)} "
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
            if d is not None and d_new is not None:
                d.copy_(d_new)
        self.U.copy_(U)
        self.c.copy_(mean)

    @torch.no_grad()
    def set_coordinates(self, mean: torch.Tensor, cov: torch.Tensor, eps: float) -> None:
        """Set U and c from statistics of the input and leave V and d alone, so that the function
        changes.
        """
        V, d = self.V.detach().clone(), None if self.d is None else self.d.detach().clone()
        self.rewhiten(mean, cov, eps)
        self.V.copy_(V)
        if self.d is not None and d is not None:
            self.d.copy_(d)

    def _wide(self, *tensors: torch.Tensor | None) -> list[Any]:
        return [
            None if tensor is None else tensor.detach().to(self.V.device, torch.float64)
            for tensor in tensors
        ]


class WhitenedLinear(Whitened):
    r"""A linear layer in whitened coordinates, :math:`V U (h - c) + d`.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As in ``torch.nn.Linear``; V and d are initialized as its weight and bias, and U = I, c = 0.
    kind : "pca" or "zca"
        Form of U, see :func:`whitening_pair`. Gradient descent makes the same steps with both, but
        in float32 the second loses a factor of up to sqrt(largest eigenvalue / eps) in accuracy,
        the first none.

    Attributes
    ----------
    V, d : Parameter, shapes (out, in) and (out,)
        ``d`` is None without bias.
    U, c : Tensor, shapes (in, in) and (in,)
        Buffers: no gradient reaches them.

    Notes
    -----
    Source: prong Eq. 6.

    Examples
    --------
    >>> layer = WhitenedLinear(2, 3)
    >>> layer.V.shape, layer.U
    (torch.Size([3, 2]), tensor([[1., 0.],
            [0., 1.]]))
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
            nn.Linear(in_features, out_features, bias, device=device, dtype=dtype),
            in_features,
            kind,
        )

    @classmethod
    def from_plain(cls, plain: nn.Linear, kind: Kind = "pca") -> "WhitenedLinear":
        """Return a whitened layer with the parameters of a plain one, which computes the same."""
        layer = cls(
            plain.in_features, plain.out_features, plain.bias is not None, kind=kind, device="meta"
        )
        layer._set_up(plain, plain.in_features, kind)
        return layer

    def plain(self) -> nn.Linear:
        """Return the ``nn.Linear`` that computes the same."""
        out_features, in_features = self.V.shape
        layer = nn.Linear(in_features, out_features, self.d is not None, device="meta")
        return _with_parameters(layer, self)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out)."""
        return linear(linear(input - self.c, self.U), self.V, self.d)

    def extra_repr(self) -> str:
        """Describe the layer."""
        return (
            f"{self.V.shape[1]}, {self.V.shape[0]}, bias={self.d is not None}, kind={self.kind!r}"
        )


class WhitenedConv2d(Whitened):
    r"""A convolution whose input maps are whitened: a centred 1x1 convolution by U, then one by V.

    The pixels of a map count as independent samples: U is (maps, maps). The input is padded first
    and then centred and whitened, so that the border sees what it sees in the plain layer: a padded
    pixel enters as :math:`U(0 - c)`.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, bias
        As in ``torch.nn.Conv2d``.
    padding_mode, device, dtype
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

    Examples
    --------
    >>> layer = WhitenedConv2d(2, 3, 5)
    >>> layer.V.shape, layer.U.shape
    (torch.Size([3, 2, 5, 5]), torch.Size([2, 2]))
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
        padding_mode: Any = "zeros",
        *,
        kind: Kind = "pca",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._take(
            nn.Conv2d(
                in_channels,
                out_channels,
                kernel_size,
                stride,
                padding,
                dilation,
                1,
                bias,
                padding_mode,
                device=device,
                dtype=dtype,
            ),
            kind,
        )

    def _take(self, plain: nn.Conv2d, kind: Kind) -> None:
        if plain.groups != 1:
            raise ValueError(
                f"WhitenedConv2d: expected a convolution without groups, got {plain.groups}"
            )
        self._set_up(plain, plain.in_channels, kind)
        self.kernel_size: Any = plain.kernel_size
        self.stride: Any = plain.stride
        self.dilation: Any = plain.dilation
        self.padding: Any = plain.padding
        self.padding_mode: Any = plain.padding_mode
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
            in_channels,
            out_channels,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            1,
            self.d is not None,
            self.padding_mode,
            device="meta",
        )
        return _with_parameters(layer, self)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (n, in, height, width) to (n, out, ...)."""
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        padded = pad(input, self._border, mode=mode) if any(self._border) else input
        white = conv2d(padded - self.c[:, None, None], self.U[:, :, None, None])
        return conv2d(white, self.V, self.d, self.stride, 0, self.dilation)

    def extra_repr(self) -> str:
        """Describe the layer."""
        return (
            f"{self.V.shape[1]}, {self.V.shape[0]}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, "
            f"padding={self.padding}, bias={self.d is not None}, kind={self.kind!r}"
        )


def _with_parameters(layer: Any, whitened: Any) -> Any:
    """Give a plain layer the canonical parameters of a whitened one."""
    W, b = whitened.canonical()
    layer.weight = nn.Parameter(W, whitened.V.requires_grad)
    if b is not None:
        layer.bias = nn.Parameter(b, whitened.d.requires_grad)
    return layer.train(whitened.training)
