r"""Sums of outer products of per-example gradients for Linear and Conv2d layers, without the
gradients.

The gradient of an output by the weights of a linear layer is a Kronecker product :math:`\delta
\otimes a` of what comes back (k cotangents per example) and what went in (the same for all of
them). So the sum over cotangents is done first, on the small factors, and one matrix product forms
a block:

.. math:: \sum_n \sum_k (\delta_{kn} \otimes a_n)(\delta'_{kn} \otimes a'_n)^T
          = \sum_n \Big(\sum_k \delta_{kn} \delta_{kn}'^T\Big) \otimes (a_n a_n'^T).

Layers that share their weights over positions (convolutions, sequences) contribute explicit rows
instead. What lies between the layers is left to autograd, so that any activation, pooling or skip
connection will do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad, unfold
from torch.nn.grad import conv2d_weight

from natcompanion._moments import first
from natcompanion.metrics.model_function import CHUNK, DETACHED, ModelFunction


@dataclass
class Layer:
    """A Linear or Conv2d layer, where its parameters lie in the vector of all, and what passed
    through it.
    """

    module: Any
    weight: slice | None
    bias: slice | None
    inputs: Any = None
    outputs: Any = None
    calls: int = 0

    @property
    def flat(self) -> bool:
        """Whether the weights are used once per example."""
        return isinstance(self.module, nn.Linear) and self.inputs.ndim == 2

    @property
    def pieces(self) -> list[tuple[slice, slice]]:
        """Return for weight and bias the place in the vector of parameters and in the columns of a
        block.
        """
        if not self.flat:  # explicit rows: weight and bias lie side by side
            chosen = list(filter(None, (self.weight, self.bias)))
            return [(slice(chosen[0].start, chosen[-1].stop), slice(None))]
        places, width = [], self.inputs.shape[-1] if self.weight else 0
        if self.weight:
            places.append((self.weight, slice(0, width)))
        if self.bias:
            places.append((self.bias, slice(width, width + 1)))
        return places

    def augmented(self) -> torch.Tensor:
        """Return the inputs (n, a) with a column of ones for the bias; without the columns of a
        frozen parameter.
        """
        ones = torch.ones_like(self.inputs[:, :1])
        return torch.cat(([self.inputs] if self.weight else []) + ([ones] if self.bias else []), 1)

    def rows(self, delta: torch.Tensor) -> torch.Tensor:
        """Return the gradients by this layer's parameters for cotangents (k, n, ...) of its output;
        (n, k, p).
        """
        m = self.module
        if isinstance(m, nn.Linear):
            n = len(self.inputs)
            delta, inputs = (
                delta.reshape(len(delta), n, -1, delta.shape[-1]),
                self.inputs.reshape(n, -1, m.in_features),
            )
            weight = torch.einsum("knso,nsi->nkoi", delta, inputs) if self.weight else None
            bias = delta.sum(2).transpose(0, 1)
        else:
            mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
            padded = pad(self.inputs, m._reversed_padding_repeated_twice, mode=mode)
            patches = unfold(padded, m.kernel_size, m.dilation, 0, m.stride).unflatten(
                1, (m.groups, -1)
            )
            delta = delta.flatten(3).unflatten(2, (m.groups, -1))  # (k, n, groups, out, s)
            weight = torch.einsum("kngos,ngis->nkgoi", delta, patches) if self.weight else None
            bias = delta.sum(-1).flatten(2).transpose(0, 1)
        parts = ([weight.flatten(2)] if weight is not None else []) + ([bias] if self.bias else [])
        return torch.cat(parts, 2)

    def gradient(self, delta: torch.Tensor) -> torch.Tensor:
        """Return the sum over the examples of the gradients by this layer's parameters, (p,), for
        cotangents (n, ...) of its output: one product, where the rows would be n times as large.
        """
        m, h = self.module, self.inputs
        if isinstance(m, nn.Linear):
            flat = delta.flatten(0, -2)
            weight, bias = flat.mT @ h.flatten(0, -2), flat.sum(0)
        else:
            mode = "constant" if m.padding_mode == "zeros" else m.padding_mode
            padded = pad(h, m._reversed_padding_repeated_twice, mode=mode)
            how = (m.stride, 0, m.dilation, m.groups)
            weight, bias = conv2d_weight(padded, m.weight.shape, delta, *how), delta.sum((0, 2, 3))
        parts = ([weight.flatten()] if self.weight else []) + ([bias] if self.bias else [])
        return torch.cat(parts)


def gram(f: ModelFunction, x: torch.Tensor, cotangents: torch.Tensor) -> torch.Tensor | None:
    """Return the sum over examples and cotangents (n, k, o) of the outer products of the rows
    ``cotangents @ J``.

    The result is (P, P), or None if the model is not made of Linear and Conv2d layers with
    parameters of their own, each called once.
    """
    layers = find_layers(f)
    if layers is None:
        return None
    total = torch.zeros(f.size, f.size, dtype=f.dtype, device=x.device)
    step = max(1, CHUNK // max(_numbers_per_example(layers, cotangents.shape[1]), 1))
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        deltas = backpropagate(f, layers, x[part], cotangents[part])
        if deltas is None:
            return None
        _add_blocks(total, layers, deltas)
    return total


def diagonal(f: ModelFunction, x: torch.Tensor, cotangents: torch.Tensor) -> torch.Tensor | None:
    """Return the diagonal (P,) of :func:`gram`, or None where that gives None.

    Where weights are used once per example, the squares are summed over the cotangents first, and
    one product of the squared inputs with that sum is the diagonal. Explicit rows, of one layer at
    a time, are left for weights that are used at several positions.
    """
    layers = find_layers(f)
    if layers is None:
        return None
    total = torch.zeros(f.size, dtype=f.dtype, device=x.device)
    start, step = 0, 1
    while start < len(x):
        part = slice(start, start + step)
        deltas = backpropagate(f, layers, x[part], cotangents[part])
        if deltas is None:
            return None
        for layer, delta in zip(layers, deltas, strict=True):
            _add_squares(total, layer, delta)
        start += step
        step = max(1, CHUNK // (_diagonal_numbers(layers, deltas) // len(x[part])))
    return total


def _diagonal_numbers(layers: list[Layer], deltas: list[torch.Tensor]) -> int:
    """Return how many numbers the cotangents, and the rows where they are needed, hold."""
    return sum(
        d.numel() + (0 if m.flat else d.shape[0] * d.shape[1] * m.module.weight.numel())
        for m, d in zip(layers, deltas, strict=True)
    )


def _add_squares(total: torch.Tensor, layer: Layer, delta: torch.Tensor) -> None:
    """Add the squares of a layer's rows, summed over examples and cotangents, in their place."""
    if layer.flat:
        squares = delta.square().sum(0)
        if layer.weight:
            total[layer.weight] += (squares.mT @ layer.inputs.square()).flatten()
        if layer.bias:
            total[layer.bias] += squares.sum(0)
        return
    found, start = layer.rows(delta).square().sum((0, 1)), 0
    for place in filter(None, (layer.weight, layer.bias)):
        width = place.stop - place.start
        total[place] += found[start : start + width]
        start += width


def find_layers(f: ModelFunction) -> list[Layer] | None:
    """Return the layers that own the chosen parameters, or None if anything but a plain layer owns
    one of them.
    """
    places, start = {}, 0
    for p in f.originals.values():
        places[id(p)] = slice(start, start + p.numel())
        start += p.numel()
    layers, owners = [], []
    for module in dict.fromkeys(f.model.modules()):
        own = [id(p) for p in module._parameters.values() if id(p) in places]
        if own and type(module) not in (nn.Linear, nn.Conv2d):
            return None
        owners += own
        if any(places[key].start == places[key].stop for key in own):
            return None  # no inputs or no outputs
        if own:
            layers.append(Layer(module, places.get(id(module.weight)), places.get(id(module.bias))))
    return layers if sorted(owners) == sorted(places) else None


def _numbers_per_example(layers: list[Layer], k: int) -> int:
    """Bound the numbers that one example adds to the largest intermediate."""
    sizes = [
        (
            layer.module.weight.shape[0],
            layer.module.weight[0].numel() + 1,
            isinstance(layer.module, nn.Linear),
        )
        for layer in layers
    ]
    return max(
        (o * p + a * b) if flat and also_flat else k * o * a + p * o * b
        for (o, a, flat), (p, b, also_flat) in combinations_with_replacement(sizes, 2)
    )


def backpropagate(
    f: ModelFunction, layers: list[Layer], x: torch.Tensor, cotangents: torch.Tensor
) -> list[torch.Tensor] | None:
    """Run the model and return each layer's cotangents (k, n, ...), or None if autograd sees more
    than the layers.
    """
    theta = {name: p.clone().requires_grad_() for name, p in f.theta.items()}
    with torch.enable_grad(), _recording(layers):
        r = f(theta, x)
    if any(layer.calls != 1 for layer in layers):
        return None
    if not r.requires_grad:
        raise ValueError(DETACHED)
    outputs = [layer.outputs for layer in layers]
    if not all(out.requires_grad for out in outputs):
        return None
    columns = [
        torch.autograd.grad(r, outputs, c, retain_graph=True, materialize_grads=True)
        for c in cotangents.unbind(1)
    ]
    deltas = [torch.stack(column) for column in zip(*columns, strict=True)]
    return deltas if _explains_gradient(f, layers, deltas, r, theta, cotangents) else None


def _explains_gradient(
    f: ModelFunction,
    layers: list[Layer],
    deltas: list[torch.Tensor],
    r: torch.Tensor,
    theta: dict[str, torch.Tensor],
    cotangents: torch.Tensor,
) -> bool:
    """Compare one gradient, a mixture of all cotangents, with autograd's: it differs if a weight is
    used elsewhere.
    """
    mix = torch.linspace(1, 2, cotangents.shape[1], dtype=f.dtype, device=r.device)
    seen = f.flat(
        torch.autograd.grad(
            r,
            list(theta.values()),
            torch.einsum("nko,k->no", cotangents, mix),
            materialize_grads=True,
        )
    )
    ours = torch.zeros_like(seen)
    for layer, delta in zip(layers, deltas, strict=True):
        row, start = layer.gradient(torch.einsum("k,k...->...", mix, delta)), 0
        for place in filter(None, (layer.weight, layer.bias)):
            ours[place] = row[start : start + place.stop - place.start]
            start += place.stop - place.start
    return float((ours - seen).norm()) <= torch.finfo(f.dtype).eps ** 0.5 * float(seen.norm())


@contextmanager
def _recording(layers: list[Layer]) -> Iterator[None]:
    """Note what goes into and comes out of each layer; the hooks are gone at the end, whatever
    happens.
    """

    def hook(layer: Layer) -> Callable:
        def note(
            _module: nn.Module, args: tuple, kwargs: dict, output: torch.Tensor
        ) -> torch.Tensor:
            layer.calls += 1
            layer.inputs, layer.outputs = first(args, kwargs).detach(), output
            return output.clone()  # a later operation in place must not touch what was noted

        return note

    for layer in layers:
        layer.calls = 0
    handles = [
        layer.module.register_forward_hook(hook(layer), with_kwargs=True, prepend=True)
        for layer in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _add_blocks(total: torch.Tensor, layers: list[Layer], deltas: list[torch.Tensor]) -> None:
    """Add the block of every pair of layers to ``total`` (P, P)."""
    factors = [
        layer.augmented() if layer.flat else layer.rows(d)
        for layer, d in zip(layers, deltas, strict=True)
    ]
    everything = list(zip(layers, deltas, factors, strict=True))
    for i, (one, delta, factor) in enumerate(everything):
        for other, delta_, factor_ in everything[i:]:
            if one.flat and other.flat:
                block = (
                    _kronecker_square(delta, factor)
                    if one is other
                    else _kronecker(delta, factor, delta_, factor_)
                )
            elif one.flat:
                block = _kronecker_rows(delta, factor, factor_)
            elif other.flat:
                block = _kronecker_rows(delta_, factor_, factor).permute(2, 3, 0, 1)
            else:
                block = (factor.flatten(0, 1).mT @ factor_.flatten(0, 1))[None, :, None, :]
            _add(total, one.pieces, other.pieces, block)
            if one is not other:
                _add(total, other.pieces, one.pieces, block.permute(2, 3, 0, 1))


def _add(total: torch.Tensor, rows: list, columns: list, block: torch.Tensor) -> None:
    """Add a block (o, a, p, b), with ``a`` and ``b`` split into weight and bias columns, in its
    place in ``total``.
    """
    for place, part in rows:
        for place_, part_ in columns:
            here = (
                total[place, place_]
                .unflatten(1, (block.shape[2], -1))
                .unflatten(0, (block.shape[0], -1))
            )
            here += block[:, part, :, part_]


def _kronecker(
    delta: torch.Tensor, a: torch.Tensor, delta_: torch.Tensor, a_: torch.Tensor
) -> torch.Tensor:
    """Return the block of two layers, (o, a, p, b), from cotangents (k, n, o), (k, n, p) and inputs
    (n, a), (n, b).
    """
    left = torch.einsum("kno,knp->nop", delta, delta_).flatten(1)
    right = (a.unsqueeze(2) * a_.unsqueeze(1)).flatten(1)
    block = (
        (left.mT @ right)
        .unflatten(1, (a.shape[1], a_.shape[1]))
        .unflatten(0, (delta.shape[2], delta_.shape[2]))
    )
    return block.transpose(1, 2)


def _kronecker_square(delta: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return the block of a layer with itself: both factors are symmetric, so a quarter of the
    product will do.
    """
    (i, j), pair = _pairs(delta.shape[2], delta.device)
    (p, q), pair_ = _pairs(a.shape[1], a.device)
    left = torch.einsum("kno,knp->nop", delta, delta)[:, i, j]
    quarter = left.mT @ (a[:, p] * a[:, q])
    half = quarter.index_select(1, pair_.flatten())
    return (
        half.index_select(0, pair.flatten())
        .unflatten(1, pair_.shape)
        .unflatten(0, pair.shape)
        .transpose(1, 2)
    )


def _pairs(size: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index pairs of an upper triangle (2, m), and the table (size, size) of their
    numbers.
    """
    pairs = torch.triu_indices(size, size, device=device)
    table = torch.empty(size, size, dtype=torch.long, device=device)
    table[pairs[0], pairs[1]] = table[pairs[1], pairs[0]] = torch.arange(
        pairs.shape[1], device=device
    )
    return pairs, table


def _kronecker_rows(delta: torch.Tensor, a: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the block of a layer (k, n, o), (n, a) with explicit rows (n, k, p) of another: (o, a,
    1, p).
    """
    summed = torch.einsum("kno,nkp->nop", delta, rows).flatten(1)
    return (a.mT @ summed).unflatten(1, (delta.shape[2], -1)).transpose(0, 1).unsqueeze(2)
