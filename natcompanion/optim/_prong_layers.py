r"""The layers that PRONG acts on.

A plain layer keeps its parameters, and its weight gradient is multiplied by the inverse covariance
of its input inside the backward pass (:class:`PlainLayer`). A whitened layer is given new
coordinates (:class:`WhitenedLayer`).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.grad import conv2d_input, conv2d_weight

from natcompanion._moments import Moments, damped_inverse
from natcompanion.layers import whitenable

Map = Callable[[torch.Tensor], torch.Tensor]


def without_autocast(method: Callable) -> Callable:
    """Return a method of a layer that computes in the precision it asks for, wherever it is
    called.
    """

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        device = self.weight.device.type
        if not torch.is_autocast_enabled(device):  # the context takes longer than a small product
            return method(self, *arguments)
        with torch.autocast(device, enabled=False):
            return method(self, *arguments)

    return call


class InverseCovariance:
    r"""Multiplication of rows by :math:`(\Sigma + \epsilon I)^{-1}`."""

    ndims = (2,)
    """Dimensions of each of the tensors, all as long as the input of the layer."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.tensors = (matrix,)

    @classmethod
    def of(cls, sigma: torch.Tensor, eps: float, like: torch.Tensor) -> "InverseCovariance":
        """Return the metric for a covariance in float64; it computes in the dtype of ``like``."""
        return cls(damped_inverse(sigma, eps, like.dtype).to(like))

    def prepared(self, centred: torch.Tensor | None) -> Map:
        """Return the multiplication to use with a batch of centred inputs."""
        return lambda x: x @ self.tensors[0]


class PlainLayer:
    r"""A linear or convolutional layer whose gradient is preconditioned in the backward pass.

    .. math:: \hat G_W = (G_W - g_b c^\top) P = \sum_n \delta_n \big(P (h_n - c)\big)^\top, \qquad
              \hat g_b = g_b - \hat G_W c, \qquad P = (\Sigma + \epsilon I)^{-1}

    Without a trainable bias nothing can be centred: c is 0, and P the inverse of the second moment.
    """

    def __init__(self, name: str, module: Any, metric_type: Any) -> None:
        self.name, self.weight, self.bias = name, module.weight, module.bias
        self.convolution = (
            (module.stride, module.padding, module.dilation)
            if isinstance(module, nn.Conv2d)
            else None
        )
        self.metric_type = metric_type
        self.renewed = -1
        self.metric: Any = None
        self.mean: torch.Tensor | None = None
        self.moments: Moments | None = None
        self.backward_eps: float | None = None
        self.backward_moments: Moments | None = None
        self.backward_inverse: torch.Tensor | None = None
        self.refresh_backward = False
        self.routed = self.seen = False
        self.trains_bias = True

    def owns(self, module: nn.Module) -> bool:
        """Return whether the module has its own parameters just now, and not substitutes."""
        return module.weight is self.weight

    def unbatched(self, h: torch.Tensor) -> bool:
        """Return whether the input is a single image, or nothing: its gradient is preconditioned in
        the step.
        """
        return (self.convolution is not None and h.ndim == 3) or not h.numel()

    def cleared(self) -> None:
        """Forget where the gradient came from, if there is none."""
        self.routed = self.routed and self.weight.grad is not None

    def refresh(self, moments: Moments, eps: float, _state: dict) -> None:
        """Take over new statistics of the input."""
        centred = self.bias is not None and self.bias.requires_grad and self.trains_bias
        sigma = moments.covariance() if centred else moments.second_moment()
        like = torch.empty((), dtype=_computing(self.weight.dtype), device=self.weight.device)
        self.metric = self.metric_type.of(sigma, eps, like)
        self.mean = moments.mean.to(like) if centred else None
        self.refresh_backward = self.backward_eps is not None

    @without_autocast
    def gradients(
        self, h: torch.Tensor, delta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the preconditioned gradients of weight and bias for inputs and back-propagated
        gradients.
        """
        self.routed = True
        b: torch.Tensor | None
        dtype = self._followed()
        h, delta = h.to(dtype), delta.to(dtype)
        if self.convolution is None:
            h, delta = h.reshape(-1, h.shape[-1]), delta.reshape(-1, delta.shape[-1])
            W, b = self._linear(h if self.mean is None else h - self.mean, delta)
            errors = delta
        else:
            raw = conv2d_weight(h, self.weight.shape, delta, *self.convolution)
            samples, errors = rows_of_maps(h), rows_of_maps(delta)
            apply = self.metric.prepared(samples if self.mean is None else samples - self.mean)
            W, b = self._per_tap(raw, errors.sum(0), apply)
        if self.backward_eps is not None:
            self._note_backward(errors * len(h))
        return self._finished(W, b)

    def input_gradient(
        self, h: torch.Tensor, weight: torch.Tensor, delta: torch.Tensor
    ) -> torch.Tensor:
        """Return what the layer sends back to its input, as ever."""
        weight = weight.to(delta.dtype)
        if self.convolution is None:
            return (delta @ weight).to(h.dtype)
        return conv2d_input(h.shape, weight, delta, *self.convolution).to(h.dtype)

    def _linear(
        self, centred: torch.Tensor, delta: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of a linear layer, by the cheaper order of the two products."""
        apply = self.metric.prepared(centred)
        if len(centred) >= delta.shape[1]:
            W, b = apply(delta.mT @ centred), delta.sum(0)
            return W, b if self.mean is None else b - W @ self.mean
        white = apply(centred)
        share = torch.ones_like(white[:, 0]) if self.mean is None else 1 - white @ self.mean
        return delta.mT @ white, delta.mT @ share

    @without_autocast
    def precondition(self) -> None:
        """Precondition the gradients as they are in ``.grad``, if they did not come through the
        backward pass.
        """
        if self.metric is None or self.weight.grad is None:
            return
        dtype = self._followed()
        if self.mean is not None and self.bias.grad is None:
            self.bias.grad = torch.zeros_like(self.bias)
        b = None if self.bias is None or self.bias.grad is None else self.bias.grad.to(dtype)
        W = self.weight.grad.to(dtype)
        taps = W if self.convolution is not None else W[:, :, None, None]
        taps, b = self._per_tap(taps, b, self.metric.prepared(None))
        W, b = self._finished(taps.view_as(W), b)
        self.weight.grad.copy_(W)
        if b is not None:
            self.bias.grad.copy_(b)

    def _per_tap(
        self, W: torch.Tensor, b: torch.Tensor | None, apply: Map
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the gradients for those of the weights (out, in, height, width) and the bias."""
        if self.mean is not None:
            W = W - torch.outer(b, self.mean)[:, :, None, None]  # type: ignore[arg-type]  # a mean has a bias
        W = apply(W.movedim(1, -1)).movedim(-1, 1).contiguous()
        return W, b if self.mean is None else b - W.sum((2, 3)) @ self.mean  # type: ignore[operator]  # a mean has a bias

    def _finished(
        self, W: torch.Tensor, b: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Whiten the back-propagated gradients if asked to, and return the dtype of the
        parameters.
        """
        if self.backward_inverse is not None:
            W = torch.tensordot(self.backward_inverse, W, 1)
            b = None if b is None else self.backward_inverse @ b
        return W.to(self.weight.dtype), None if b is None else b.to(self.weight.dtype)

    def _note_backward(self, delta: torch.Tensor) -> None:
        moments, due = Moments.of(delta), self.refresh_backward or self.backward_inverse is None
        if self.backward_moments is not None:
            moments = self.backward_moments.merged(moments, 0.9)
        total = (moments.reduced() if due else moments).checked(
            f"back-propagated gradients of {self.name}"
        )
        self.backward_moments = moments
        if due:
            self.backward_inverse = damped_inverse(total.second_moment(), self.backward_eps).to(  # type: ignore[arg-type]  # gradients are noted only where there is one
                delta
            )
            self.refresh_backward = False

    def _followed(self) -> torch.dtype:
        """Return the dtype to compute in, after moving the statistics to it and to the device of
        the weight.
        """
        weight, dtype = self.weight, _computing(self.weight.dtype)
        found = None if self.metric is None else self.metric.tensors[0]
        if found is not None and (found.dtype != dtype or found.device != weight.device):
            self.metric = self.metric_type(
                *(part.to(weight.device, dtype) for part in self.metric.tensors)
            )
            for key in ("mean", "backward_inverse"):
                part = getattr(self, key)
                setattr(self, key, None if part is None else part.to(weight.device, dtype))
        return dtype

    def state(self) -> dict[str, Any]:
        """Return what the next step needs, as tensors and numbers."""
        return {
            "metric": None if self.metric is None else self.metric.tensors,
            "mean": self.mean,
            "moments": packed(self.moments),
            "backward_moments": packed(self.backward_moments),
            "backward_inverse": self.backward_inverse,
            "refresh_backward": self.refresh_backward,
            "renewed": self.renewed,
        }

    def fits(self, state: dict[str, Any]) -> bool:
        """Return whether a state has the entries and shapes of one of this layer."""
        if state.keys() != self.state().keys():
            return False
        out, features = self.weight.shape[:2]
        mean, backward = state["mean"], state["backward_inverse"]
        return (
            _shaped(state["metric"], *((features,) * ndim for ndim in self.metric_type.ndims))
            and (mean is None or mean.shape == (features,))
            and (
                backward is None or (self.backward_eps is not None and backward.shape == (out, out))
            )
            and _moments_fit(state["moments"], features)
            and _moments_fit(state["backward_moments"], out)
        )

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state from :meth:`state`."""
        device = self.weight.device
        self.metric = None if state["metric"] is None else self.metric_type(*state["metric"])
        self.moments, self.backward_moments = (
            unpacked(state[key], device) for key in ("moments", "backward_moments")
        )
        for key in ("mean", "backward_inverse", "refresh_backward", "renewed"):
            setattr(self, key, state[key])
        self._followed()


def packed(moments: Moments | None) -> tuple | None:
    """Return moments as a tuple that can be stored without this package."""
    return None if moments is None else (moments.count, moments.mean, moments.scatter)


def unpacked(values: tuple | None, device: torch.device) -> Moments | None:
    """Undo :func:`packed`, on a device."""
    return None if values is None else Moments(values[0], *(part.to(device) for part in values[1:]))


def _shaped(tensors: tuple | None, *shapes: tuple) -> bool:
    """Return whether tensors have given shapes, if there are any."""
    return tensors is None or [one.shape for one in tensors] == list(shapes)


def _moments_fit(values: tuple | None, features: int) -> bool:
    return values is None or _shaped(values[1:], (features,), (features, features))


class WhitenedLayer:
    """A whitened layer: new statistics change its coordinates, and the momentum with them."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module = name, module
        self.weight, self.bias = module.V, module.d
        self.moments: Moments | None = None
        self.renewed = -1
        self.routed, self.seen = True, False

    def owns(self, module: nn.Module) -> bool:
        """Return whether the module has its own parameters just now, and not substitutes."""
        return module.V is self.weight

    def cleared(self) -> None:
        """Do nothing: autograd gives the right gradients."""

    def refresh(self, moments: Moments, eps: float, state: dict) -> None:
        """Take over new statistics of the input."""
        velocity = state.get(self.weight, {}).get("momentum_buffer")
        along = []
        if velocity is not None:
            shift = (
                state.get(self.bias, {}).get("momentum_buffer") if self.bias is not None else None
            )
            along = [(velocity, shift)]
        self.module.rewhiten(moments.mean, moments.covariance(), eps, along)

    def state(self) -> dict[str, Any]:
        """Return what the next step needs beside the model."""
        return {"moments": packed(self.moments), "renewed": self.renewed}

    def fits(self, state: dict[str, Any]) -> bool:
        """Return whether a state has the entries and shapes of one of this layer."""
        return state.keys() == self.state().keys() and _moments_fit(
            state["moments"], self.weight.shape[1]
        )

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state from :meth:`state`."""
        self.moments, self.renewed = (
            unpacked(state["moments"], self.weight.device),
            state["renewed"],
        )


def rows_of_maps(x: torch.Tensor) -> torch.Tensor:
    """Return maps (n, channels, height, width) as rows (pixels, channels)."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


def _computing(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def trained_layers(
    model: nn.Module, parameters: Iterable[nn.Parameter]
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the layers to act on, by name, and why the other modules that own some of the
    parameters are not.
    """
    chosen, layers, plain = {id(p) for p in parameters}, {}, {}
    modules = {id(m): (name, m) for name, m in model.named_modules()}.values()
    owners = Counter(id(p) for _, m in modules for p in m._parameters.values() if p is not None)
    for name, module in modules:
        mine = [p for p in module._parameters.values() if p is not None and id(p) in chosen]
        reason = refusal(module, mine, owners) if mine else None
        if reason is not None:
            plain[name] = reason
        elif mine:
            layers[name] = module
    return layers, plain


def refusal(module: nn.Module, mine: list[nn.Parameter], owners: Counter) -> str | None:
    """Return why a module gets plain steps, or None."""
    if not whitenable(module):
        return (
            f"a {type(module).__name__} is neither a linear layer nor a convolution without groups"
        )
    weight = module.V if hasattr(module, "V") else module.weight
    if not any(p is weight for p in mine):
        return "its weight is not trained by this optimizer"
    if any(owners[id(p)] > 1 for p in mine):
        return "it shares parameters with another layer"
    if isinstance(module, nn.Conv2d) and (
        module.padding_mode != "zeros" or isinstance(module.padding, str)
    ):
        return "only zero padding given by numbers is known for convolutions"
    return None
