r"""The layers that PRONG acts on, and what the passes since the last step left at them.

On a plain layer the gradient is multiplied by the inverse covariance of its input
(:class:`PlainLayer`). A whitened layer is given new coordinates (:class:`WhitenedLayer`).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion._memory import beyond
from natcompanion._modules import is_transposed, own_parameters
from natcompanion._moments import Moments
from natcompanion.layers import whitenable
from natcompanion.optim._taps import destination

Map = Callable[[torch.Tensor], torch.Tensor]
Pair = tuple[torch.Tensor, torch.Tensor | None]
"""What belongs to the weight of a layer, and to its bias if that takes part."""


class Layer:
    """A layer, and what the passes since the last step left at it."""

    def __init__(self, name: str, module: Any, weight: Any, bias: Any) -> None:
        self.name, self.weight, self.bias = name, weight, bias
        self.linear = getattr(module, "kernel_size", None) is None
        self.transposed = is_transposed(module)
        self.seen = self.routed = False
        self.forgotten = 0
        self.forget()

    @property
    def features(self) -> int:
        """How many features or maps the input has."""
        return self.weight.shape[0 if self.transposed else 1]

    def owns(self, module: nn.Module) -> bool:
        """Return whether the module has its own parameters just now, and not substitutes."""
        return (module.V if isinstance(self, WhitenedLayer) else module.weight) is self.weight

    @property
    def outputs(self) -> int:
        """How many features or maps the output has."""
        return self.weight.shape[1 if self.transposed else 0]

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs or outputs as rows (n, features); pixels count as examples."""
        last = x if self.linear else x.movedim(-3, -1)
        return last.reshape(-1, last.shape[-1])

    def forget(self) -> None:
        """Drop what earlier passes left; one whose graph is still there may come by once more."""
        self.forgotten += 1
        self.into: str | None = None
        self.moments: Moments | None = None
        self.errors: Moments | None = None
        self.examples = 0
        self.inputs: list[torch.Tensor] = []
        self.captured: list[tuple[torch.Tensor, int, torch.Tensor]] = []

    def arrived(self, wanted: dict[str, Any], delta: torch.Tensor) -> None:
        """Note a pass whose backward pass brings ``delta`` to the output and goes on to ``.grad``,
        or, if none does, to what ``autograd.grad`` returns of the parameters.

        The moments of a pass count once.
        """
        into = destination(self.weight, self.bias)
        if into is None or (into != "grad" and self.into == "grad"):
            return
        if into != self.into:
            self.forget()
            self.into = into
        new = wanted.get("moments")
        if new is not None and wanted.get("counted") != self.forgotten:
            wanted["counted"] = self.forgotten
            self.moments = new if self.moments is None else self.moments.merged(new)
        if "inputs" in wanted:
            self.inputs.append(wanted["inputs"])
        if "errors" in wanted and delta.numel():
            noted = Moments.of(self.rows(delta))
            self.errors = noted if self.errors is None else self.errors.merged(noted)
            alone = delta.ndim == (1 if self.linear else 3)  # an example without a batch
            self.examples += 1 if alone else len(delta)
        if "captured" in wanted:
            self.captured = [*self.captured[-1:], (*wanted["captured"], delta.detach())]

    def errors_of_a_mean(self) -> Moments | None:
        """Return the moments of the gradients of the examples' own losses, if the loss was a mean
        over all examples of the step.
        """
        if (m := self.errors) is None:
            return None
        return Moments(m.count, m.mean * self.examples, m.scatter * self.examples**2)


class PlainLayer(Layer):
    r"""A linear or convolutional layer, whose gradient is preconditioned.

    .. math:: \hat G_W = (G_W - g_b c^\top) P = \sum_n \delta_n \big(P (h_n - c)\big)^\top, \qquad
              \hat g_b = g_b - \hat G_W c, \qquad P = (\Sigma + \epsilon I)^{-1}

    Without a trainable bias nothing can be centred: c is 0, and P the inverse of the second moment.
    """

    def __init__(self, name: str, module: Any) -> None:
        super().__init__(name, module, module.weight, module.bias)

    def cheap(self, n: int) -> bool:
        """Return whether the second form of the step costs less than the first, for n examples."""
        out, features = self.outputs, self.features
        return self.linear and n * (features + out) < out * features

    def from_gradient(self, G: torch.Tensor, b: Any, c: Any, apply: Map) -> Pair:
        """Return the step for the gradients of weight and bias.

        A bias that does not move cannot take up the centring. The inverse of the second moment
        follows then from that of the covariance, by the formula of Sherman and Morrison.
        """
        rows = self._inputs_last(G)
        if c is None:
            return self._as_weight(apply(rows)), b
        if b is None:
            W, u = apply(rows), apply(c)
            return self._as_weight(W - (W @ c)[..., None] * (u / (1 + c @ u))), None
        W = apply(rows - b.reshape(-1, *[1] * (rows.ndim - 1)) * c)
        return self._as_weight(W), b - (W @ c).reshape(len(b), -1).sum(1)

    def from_passes(self, h: torch.Tensor, delta: torch.Tensor, c: Any, apply: Map) -> Pair:
        """Return the same from inputs (n, in) and back-propagated gradients (n, out)."""
        centred = h if c is None else h - c
        if not self.cheap(len(h)):
            W, b = apply(delta.mT @ centred), delta.sum(0)
            return W.mT if self.transposed else W, b if c is None else b - W @ c
        white = apply(centred)
        W = white.mT @ delta if self.transposed else delta.mT @ white
        share = torch.ones_like(white[:, 0]) if c is None else 1 - white @ c
        return W, delta.mT @ share

    def explains(
        self, h: torch.Tensor, delta: torch.Tensor, G: torch.Tensor, b: torch.Tensor | None
    ) -> bool:
        """Return whether the gradients are what these inputs and back-propagated gradients give, to
        rounding: along one random direction of the weights and the bias.
        """
        generator = torch.Generator().manual_seed(0)
        r = torch.randn(self.features + 1, generator=generator, dtype=torch.float64).to(h)
        along = h @ r[:-1] + (0 if b is None else r[-1])
        found = self._inputs_last(G) @ r[:-1] + (0 if b is None else b * r[-1])
        bound = 200 * torch.finfo(h.dtype).eps * delta.norm() * along.norm()
        return bool((delta.mT @ along - found).norm() <= bound)

    def _inputs_last(self, W: torch.Tensor) -> torch.Tensor:
        """Return a tensor like the weight as (out, ..., in)."""
        return W.mT if self.transposed else W.movedim(1, -1)

    def _as_weight(self, rows: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`_inputs_last`."""
        return (rows.mT if self.transposed else rows.movedim(-1, 1)).contiguous()


class WhitenedLayer(Layer):
    """A whitened layer: new statistics change its coordinates, and all that is written in them."""

    def __init__(self, name: str, module: Any) -> None:
        super().__init__(name, module, module.V, module.d)
        self.module = module

    def renew(
        self, moments: Moments, eps: float, velocity: Pair | None, gradient: Pair | None
    ) -> Pair | None:
        """Take over new statistics of the input, change a velocity with them in place, and return
        the gradient in the new coordinates.

        Where d does not move, c cannot either: U whitens the second moment about it.
        """
        module = self.module
        mean, cov = moments.mean, moments.covariance()
        if module.d is not None and not module.d.requires_grad:
            gap = mean - module.c.to(mean)
            mean, cov = module.c.to(mean), cov + torch.outer(gap, gap)
        old = [part.to(torch.float64, copy=True) for part in (module.U, module.c)]
        module.rewhiten(mean, cov, eps, [] if velocity is None else [velocity])
        return None if gradient is None else self._carried(*gradient, *old)

    def _carried(
        self, G: torch.Tensor, g: torch.Tensor | None, U: torch.Tensor, c: torch.Tensor
    ) -> Pair:
        new, rows = self.module.U.double(), G.double().movedim(1, -1)
        flat = rows.reshape(-1, len(c))
        W = torch.linalg.solve(U, flat.mT).mT.reshape(rows.shape)
        if g is not None:
            gap = c - self.module.c.double()
            W = W + g.double().reshape(-1, *[1] * (rows.ndim - 1)) * gap
        return (W @ new.mT).movedim(-1, 1).to(G.dtype).contiguous(), g


def computing(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which steps on parameters of a dtype are computed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def trained_layers(
    model: nn.Module, parameters: Iterable[nn.Parameter], max_features: int
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the layers to act on, by name, and why the other modules that own some of the
    parameters are not.
    """
    chosen, layers, plain = {id(p) for p in parameters}, {}, {}
    modules = {id(m): (name, m) for name, m in model.named_modules()}.values()
    owners = Counter(id(p) for _, m in modules for p in own_parameters(m))
    for name, module in modules:
        mine = [p for p in own_parameters(module) if id(p) in chosen]
        reason = refusal(module, mine, owners, max_features) if mine else None
        if reason is not None:
            plain[name] = reason
        elif mine:
            layers[name] = module
    return layers, plain


def refusal(
    module: Any, mine: list[nn.Parameter], owners: Counter, max_features: int
) -> str | None:
    """Return why a module gets plain steps, or None."""
    if not whitenable(module) and not is_transposed(module):
        return f"{check.kind(module)} is neither a linear layer nor a convolution without groups"
    weight = module.V if hasattr(module, "V") else module.weight
    if not any(p is weight for p in mine):
        return "its weight is not trained by this optimizer"
    if not weight.numel():
        return "it has no inputs or no outputs"
    if any(owners[id(p)] > 1 for p in mine):
        return "it shares parameters with another layer"
    if isinstance(module, nn.Conv2d) and (
        module.padding_mode != "zeros" or isinstance(module.padding, str)
    ):
        return "only zero padding given by numbers is known for convolutions"
    features = weight.shape[0 if is_transposed(module) else 1]
    if features > max_features:
        what = f"its input has {features} features"
        return beyond(what, max_features, 24e-9 * features**2, 2e-9 * features**3)
    return None
