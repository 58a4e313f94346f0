r"""The relative metric of one layer: its statistics, running mean and inverse, and the hook that
sees the layer's inputs.
"""

from collections import Counter
from collections.abc import Iterable
from math import isfinite, prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from natcompanion._modules import cleared, is_transposed, own
from natcompanion._moments import first, gram
from natcompanion.metrics.model_function import evaluation
from natcompanion.optim._activations import LINEAR, Activation
from natcompanion.optim._prong_hooks import recomputing, transformed
from natcompanion.optim._taps import OutsideTap, destination
from natcompanion.optim.base import Directions

KINDS = ("neuron", "mean", "linear", "diagonal")
FLOOR = 1e-3
"""The relative damping of a neuron is at least this part of the layer's mean."""


def packed_moments(x: torch.Tensor, nu: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    r"""Return :math:`\sum_i \nu_{li}\, \tilde x_{ia} \tilde x_{ib}` for the pairs ``a <= b`` in
    ``index``.

    One matrix product for all neurons: ``x`` (rows, D), ``nu`` (rows, m), ``index`` (2, D (D + 1) /
    2), the result (m, D (D + 1) / 2).
    """
    xt = x.mT.contiguous()
    pairs = xt.index_select(0, index[0]).mul_(xt.index_select(0, index[1]))
    return nu.mT @ pairs.mT


def unpacked(packed: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the symmetric matrices (m, D, D) whose upper triangles are the rows of ``packed``."""
    first, second = torch.triu_indices(dim, dim, device=packed.device)
    where = torch.empty(dim, dim, dtype=torch.long, device=packed.device)
    where[first, second] = where[second, first] = torch.arange(len(first), device=packed.device)
    return packed.index_select(1, where.flatten()).view(-1, dim, dim)


def definite_inverse(G: torch.Tensor, relative: float) -> torch.Tensor:
    r"""Return the inverses of :math:`G_l + \rho \max(t_l, t / 1000) I` for a stack (m, D, D) or one
    matrix (D, D).

    :math:`t_l = \mathrm{tr}\, G_l / D`, ``t`` is its mean over the stack, and :math:`\rho` is
    ``relative``. A block that is still not positive definite in this precision gets more: the
    damping grows tenfold, from the precision times its trace, until it is, and its inverse finite.
    """
    level = G.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(max=torch.finfo(G.dtype).max)
    level = torch.maximum(level, FLOOR * level.mean())
    eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
    if relative:
        G = G + (relative * level)[..., None, None] * eye
    inverse, failed = _inverse(G)
    extra = torch.finfo(G.dtype).eps
    while bool(failed.any()):
        level = torch.where(level > 0, level, torch.ones_like(level))
        G = torch.where(failed[..., None, None], G + (extra * level)[..., None, None] * eye, G)
        inverse, failed = _inverse(G)
        extra *= 10
    return inverse


def _inverse(G: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inverses by Cholesky, and which of them are not to be used.

    A pivot counts as 0 from where its products are subnormal: there digits are lost, some
    processors and libraries flush them to 0 and others do not, and the inverse overflows.
    """
    root, failed = torch.linalg.cholesky_ex(G)
    info = torch.finfo(G.dtype)
    pivots = root.diagonal(dim1=-2, dim2=-1)
    failed = (failed > 0) | (pivots < (info.tiny / info.eps) ** 0.5).any(-1)
    if bool(failed.any()):  # a zero pivot is an error in cholesky_inverse
        eye = torch.eye(G.shape[-1], dtype=G.dtype, device=G.device)
        root = torch.where(failed[..., None, None], eye, root)
    inverse = torch.cholesky_inverse(root)
    if not isfinite(float(inverse.sum())):
        failed = failed | ~inverse.isfinite().all(-1).all(-1)
    return inverse, failed


def windows(layer: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """Return the patches (n, positions, C k k) that a convolution multiplies with its weights."""
    sizes = list(zip(layer.kernel_size, layer.dilation, strict=True))
    if layer.padding == "same":
        total = [d * (k - 1) for k, d in sizes]
        margins = [(t // 2, t - t // 2) for t in total]
    else:
        margins = [(0, 0) if layer.padding == "valid" else (p, p) for p in _pair(layer.padding)]
    x = F.pad(x, (*margins[1], *margins[0]))
    return F.unfold(x, layer.kernel_size, dilation=layer.dilation, stride=layer.stride).mT


def _pair(padding: Any) -> tuple:
    return padding if isinstance(padding, tuple) else (0, 0)


def still(layer: nn.Module) -> torch.Tensor:
    """Return the weight of a layer. One that is computed from other parameters is computed in
    evaluation mode: spectral normalization goes on by an iteration with every look in training.
    """
    if (held := own(layer, "weight")) is not None:
        return held
    with torch.no_grad(), evaluation(layer.modules()):
        return layer.weight  # type: ignore[return-value]  # a layer has one


Kept = dict[str, Any]
"""What the optimizer's state keeps of a layer; see :class:`Block`."""


class Block:
    """One layer with its metric.

    What lasts is kept in the state of the optimizer, with the first parameter of the layer. The
    metric is ``S + identity * I``: ``S`` is the running mean of the statistics from 0, and
    ``identity`` is what the start at I and the absolute damping contribute to Eq. 32. Statistics
    that never change are ``constant``, and ``share`` of them is in the mean. ``inverse`` is that of
    the rows and columns from ``start`` to ``stop``, which were trained when it was computed; of
    these it holds those named in ``live``, and the others are ``rest`` times I.
    """

    def __init__(
        self,
        name: str,
        layer: Any,
        activation: Activation | str,
        kind: str,
        chosen: Iterable[int],
    ) -> None:
        self.name, self.layer, self.kind = name, layer, kind
        self.activation = LINEAR if isinstance(activation, str) else activation
        self.transposed = is_transposed(layer)
        chosen = set(chosen)
        weight: Any = still(layer)
        self.weight = weight if id(weight) in chosen else None
        bias: Any = own(layer, "bias")
        self.bias = bias if id(bias) in chosen else None
        self.parts = [p for p in (self.weight, self.bias) if p is not None]
        self.neurons = weight.shape[1] if self.transposed else len(weight)
        self.width = 0 if self.weight is None else self.weight.numel() // self.neurons
        self.dim = self.width + (self.bias is not None)
        self.accumulated = False
        self.pending: list[tuple[torch.Tensor, Any, int]] = []  # Any: weights, or None for 1

    @property
    def dtype(self) -> torch.dtype:
        """That of the metric: float32 for half precision."""
        dtype = self.parts[0].dtype
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    @property
    def own(self) -> bool:
        """Whether every neuron has a metric of its own."""
        return self.kind == "neuron"

    @property
    def trained(self) -> tuple[int, int]:
        """The first and the last but one of the columns that are trained now."""
        start = 0 if self.weight is not None and self.weight.requires_grad else self.width
        last = self.bias is not None and self.bias.requires_grad
        return start, self.dim if last else self.width

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the statistics: upper triangles for each neuron, or one matrix, or a
        diagonal.
        """
        if self.own:
            return self.neurons, self.dim * (self.dim + 1) // 2
        return (self.dim,) * (1 if self.kind == "diagonal" else 2)

    @property
    def memory(self) -> int:
        """Bytes of the running mean and the inverse."""
        numbers = prod(self.shape) + prod(self._inverse_shape(self.dim))
        return numbers * torch.finfo(self.dtype).bits // 8

    def _inverse_shape(self, dim: int) -> tuple[int, ...]:
        return (self.neurons, dim, dim) if self.own else (dim,) * len(self.shape)

    # ---- Statistics

    def see(self, x: torch.Tensor, a: torch.Tensor, omega: float) -> None:
        """Note the inputs and weights of a forward pass, once a gradient comes back through it to
        the parameters.
        """
        if transformed(a) or not (torch.is_grad_enabled() and a.requires_grad):
            return
        if not x.numel():  # no examples
            return
        if (
            self.weight is not None and self.layer.weight is not self.weight
        ):  # torch.func.functional_call
            return
        if self.accumulated and not recomputing() and cleared(self.parts):
            self.forget()  # those gradients were cleared without a step
        with torch.no_grad():
            noted = (x.detach(), self._nu(a.detach(), omega), _examples(self.layer, x))
        a.register_hook(lambda _: self._keep(*noted))

    def _keep(self, x: torch.Tensor, nu: torch.Tensor | None, examples: int) -> None:
        """Keep what a pass showed, if the backward pass that is at work goes to ``.grad`` of the
        parameters, or, while none did, to what ``autograd.grad`` returns of them.
        """
        into = destination(*self.parts)
        if into is None or (into != "grad" and self.accumulated):
            return
        if into == "grad" and not self.accumulated:
            self.pending.clear()
            self.accumulated = True
        self.pending.append((x.clone(), nu, examples))  # the user may fill x anew before the step

    def forget(self) -> None:
        """Forget the passes that were seen."""
        self.pending.clear()
        self.accumulated = False

    def _nu(self, a: torch.Tensor, omega: float) -> torch.Tensor | None:
        """Return the weights (rows, m), or their mean over the neurons (rows, 1), or None for 1."""
        if self.kind in ("linear", "diagonal") or self.activation.name == "linear":
            return torch.ones_like(self._rows(a), dtype=self.dtype) if self.own else None
        nu = self._rows(self.activation.nu(a.to(self.dtype), omega))
        return nu if self.own else nu.mean(1, keepdim=True)

    def _rows(self, a: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, nn.Conv2d):
            return a.movedim(-3, -1).reshape(-1, self.neurons)
        return a.reshape(-1, self.neurons)

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return the extended inputs (rows, D) of the parameters: a 1 last for the bias."""
        if isinstance(self.layer, nn.Conv2d):
            x = windows(self.layer, x)
        x = x.reshape(-1, x.shape[-1]).to(self.dtype)
        one = [x.new_ones(len(x), 1)] if self.bias is not None else []
        return torch.cat([x] * (self.weight is not None) + one, 1)

    @property
    def examples(self) -> int:
        """How many were seen."""
        return sum(n for _, _, n in self.pending)

    def statistics(self) -> torch.Tensor:
        """Return the sum of the seen ``nu x x^T`` over positions, divided by the number of
        examples.
        """
        x = torch.cat([self.inputs(x) for x, _, _ in self.pending])
        examples = self.examples
        nu: Any = (
            None if self.pending[0][1] is None else torch.cat([nu for _, nu, _ in self.pending])
        )
        if self.own:
            return packed_moments(x, nu / examples, self._index(x.device))
        return self.moments(x * (examples**-0.5 if nu is None else (nu / examples).sqrt()))

    def moments(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the outer products of rows, or its diagonal."""
        return x.square().sum(0) if self.kind == "diagonal" else gram(x)

    def nothing(self) -> torch.Tensor:
        """Return the statistics of no examples."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.parts[0].device)

    def sees_finite(self) -> bool:
        """Return whether all inputs of the seen passes are finite."""
        return all(bool(x.isfinite().all()) for x, _, _ in self.pending)

    # ---- What is kept

    def new(self) -> Kept:
        """Return what is kept before the first step: G = I."""
        return {"kind": self.kind, "identity": 1.0, "share": 0.0}

    def fits(self, kept: Kept) -> bool:
        """Return whether something kept is of this layer's metric."""
        start, stop = kept.get("start", 0), kept.get("stop", self.dim)
        live = len(kept["live"]) if "live" in kept else stop - start
        shapes = {"S": self.shape, "constant": self.shape, "inverse": self._inverse_shape(live)}
        return kept["kind"] == self.kind and all(
            kept[key].shape == shape for key, shape in shapes.items() if key in kept
        )

    def accumulate(
        self, kept: Kept, statistics: torch.Tensor | None, eps: float, decay: float
    ) -> None:
        """Move the running mean (Eq. 32); None stands for statistics that never change."""
        kept["identity"] = decay * kept["identity"] + (1 - decay) * eps
        kept["share"] = decay * kept["share"] + (1 - decay)
        if statistics is not None:
            S = kept["S"].to(self.dtype) if "S" in kept else torch.zeros_like(statistics)
            kept["S"] = S.mul_(decay).add_(statistics, alpha=1 - decay)

    def metric(self, kept: Kept) -> torch.Tensor:
        """Return G of what is trained: (m, D, D), or for all neurons one matrix (D, D), or its
        diagonal (D,).
        """
        G = self._mean(kept).clone()
        (G if self.kind == "diagonal" else G.diagonal(dim1=-2, dim2=-1)).add_(kept["identity"])
        return G

    def _mean(self, kept: Kept) -> torch.Tensor:
        """Return the running mean of the statistics, from 0."""
        if "constant" in kept:
            S = kept["share"] * kept["constant"].to(self.dtype)
        else:
            S = kept["S"].to(self.dtype) if "S" in kept else self.nothing()
        if self.own:
            S = unpacked(S, self.dim)
        part = slice(*self.trained)
        return S[part] if self.kind == "diagonal" else S[..., part, part]

    def refresh(self, kept: Kept, relative: float) -> None:
        """Compute the inverse of the present metric.

        Inputs that were always 0, such as the margin of an image, have rows of their own in a
        shared metric, all the same multiple of I. They are left out of the matrix.
        """
        G = self.metric(kept)
        kept["start"], kept["stop"] = self.trained
        kept.pop("live", None), kept.pop("rest", None)
        if self.kind == "diagonal":
            floor = torch.finfo(G.dtype).eps * G.mean()
            kept["inverse"] = 1 / (G + relative * G.mean()).clamp(min=float(floor) or 1.0)
            return
        if not self.own:
            level = kept["identity"] + relative * float(G.diagonal().mean())
            live = self._mean(kept).count_nonzero(1) > 0
            if level > 0 and 20 * int((~live).sum()) > len(G):
                kept["live"], kept["rest"] = live.nonzero()[:, 0], 1 / level
                G, relative = G[live][:, live], 0.0
                G.diagonal().add_(level - kept["identity"])
        kept["inverse"] = definite_inverse(G, relative)

    # ---- The direction

    def directions(self, kept: Kept, gradients: Directions, relative: float) -> Directions:
        """Return the gradients times the stored inverse; one that is missing counts as 0."""
        if "inverse" not in kept:
            return {}
        if (kept["start"], kept["stop"]) != self.trained:
            self.refresh(kept, relative)
        own = [p for p in self.parts if p.requires_grad]
        given = [gradients.get(p) for p in own]
        pieces = [
            self._matrix(torch.zeros_like(p) if g is None else g)
            for p, g in zip(own, given, strict=True)
        ]
        g = torch.cat(pieces, 1) if len(pieces) > 1 else pieces[0]
        inverse = kept["inverse"]
        d = self._times(inverse, kept, g if g.dtype == inverse.dtype else g.to(inverse.dtype))
        found: Directions = {}
        start = 0
        for p, piece in zip(own, pieces, strict=True):
            part = d[:, start : start + piece.shape[1]]
            start += piece.shape[1]
            if p.grad is not None:
                found[p] = (part.mT if self.transposed and p.ndim > 1 else part).reshape(p.shape)
        return found

    def _matrix(self, g: torch.Tensor) -> torch.Tensor:
        """Return a gradient with one row for each neuron."""
        return g.mT if self.transposed and g.ndim > 1 else g.reshape(self.neurons, -1)

    def _times(self, inverse: torch.Tensor, kept: Kept, g: torch.Tensor) -> torch.Tensor:
        """Return gradients (m, D) times an inverse."""
        if self.kind == "diagonal":
            return g * inverse
        if self.own:
            return torch.bmm(g[:, None], inverse)[:, 0]
        if "live" not in kept:
            return g @ inverse
        d = kept["rest"] * g
        return d.index_copy_(1, kept["live"], g.index_select(1, kept["live"]) @ inverse)

    def _index(self, device: torch.device) -> torch.Tensor:
        cached = getattr(self, "_pairs", None)
        if cached is None or cached.device != device:
            self._pairs = torch.triu_indices(self.dim, self.dim, device=device)
        return self._pairs


class InputTap(OutsideTap):
    """A forward hook that shows an optimizer what a layer sees."""

    def _show(self, layer: nn.Module, args: tuple, kwargs: dict, output: torch.Tensor) -> None:
        optimizer = self.optimizer()
        if optimizer is not None and optimizer._watches():
            optimizer._see(self.name, first(args, kwargs), output)


class PassTap(OutsideTap):
    """Two hooks on the model, before and after a pass, for what tracing it could not show."""

    def _show(self, model: nn.Module, args: tuple, kwargs: dict, *output: Any) -> None:
        optimizer = self.optimizer()
        if optimizer is not None and optimizer._watches():
            optimizer._end_pass(*output) if output else optimizer._begin_pass()


def uses(output: Any) -> Counter:
    """Return how often each parameter enters the graph of what a pass made, by ``id``."""
    tensors = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor)]
    waiting = [x.grad_fn for x in tensors if x.grad_fn is not None and not transformed(x)]
    seen: set[Any] = set(waiting)
    found: Counter[int] = Counter()
    node: Any  # its kind has attributes that torch does not declare
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if type(node).__name__ == "AccumulateGrad":
                found[id(node.variable)] += 1
            elif node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return found


def _examples(layer: nn.Module, x: torch.Tensor) -> int:
    single = 3 if isinstance(layer, nn.Conv2d) else 1
    return 1 if x.ndim == single else len(x)
