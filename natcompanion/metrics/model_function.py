"""A torch module as a function of its trainable parameters, evaluated without leaving a trace in
it.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from natcompanion import _checks as check
from natcompanion._checks import all_finite
from natcompanion._own_likelihood import complete
from natcompanion.metrics.structured import Inputs, Positions, joined

CHUNK = 2**24
"""Numbers that a block of per-example rows may hold."""
DETACHED = (
    "model: expected outputs that depend on the parameters, got outputs without a graph; is "
    "there a detach()?"
)


class ModelFunction:
    """The outputs ``r`` of ``model``, (n, o), and products of their Jacobian, as a function of the
    chosen parameters.

    The model runs in evaluation mode (BatchNorm uses its running statistics, Dropout is off) and is
    left as it was: same modes, same buffers, no hooks. Half-precision models are computed in
    float32. Examples must not influence one another.

    Parameters
    ----------
    model
        Any module that maps (n, ...) to (n, o), or to (n, ..., o) with positions, or to (n,); these
        are flattened to one row per example, and :meth:`on` makes a likelihood see them as they
        were. A tuple or dictionary of inputs is taken apart: ``model(*x)``, ``model(**x)``.
    parameters
        Names or parameters to differentiate by, pairs of both, or groups of these; by default every
        parameter with ``requires_grad``, in the order of ``model.parameters()``. Shared (tied)
        parameters count once.
    output
        Selects the outputs (n, ..., o) from what the model returns.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Iterable[str | nn.Parameter] | None = None,
        output: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        self.select, self.trailing = check.function(output, "output"), torch.Size()
        if torch.is_inference_mode_enabled():
            raise ValueError(
                "model: expected derivatives to be possible, got torch.inference_mode; use "
                "torch.no_grad"
            )
        self.model = check.model(model)
        self.modules = dict(model.named_modules())
        _refuse_batch_statistics(self.modules)
        self.slots = find_slots(self.modules)
        self.originals = select({slot.name: slot.tensor for slot in self.slots}, parameters)
        first = next(iter(self.originals.values()))
        self.out_dtype = first.dtype
        self.dtype = (
            torch.float32 if first.dtype in (torch.float16, torch.bfloat16) else first.dtype
        )
        self.theta = {
            name: self._cast(
                p.detach().clone() if id(p) in _renormalized(self.modules) else p.detach()
            )
            for name, p in self.originals.items()
        }
        self.size = sum(p.numel() for p in self.theta.values())
        others = {id(slot.tensor): slot.tensor for slot in self.slots}
        for p in self.originals.values():
            del others[id(p)]
        self.constants = {
            key: self._cast(tensor.detach().clone()) for key, tensor in others.items()
        }

    def _cast(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype) if x.is_floating_point() and x.dtype != self.dtype else x

    def on(self, likelihood: Any) -> Any:
        """Return a likelihood on rows (n, o) of outputs that may have had positions."""
        return Positions(complete(likelihood), self)

    def check(self, x: Any) -> Any:
        """Return the batch of inputs in the computing dtype, if it is one the model can take."""
        x = joined(x)
        if isinstance(x, Inputs):
            return x.map(self.check)
        if not isinstance(x, torch.Tensor) or x.ndim < 1 or x.numel() == 0:
            got = (
                f"a tensor of shape {tuple(x.shape)}"
                if isinstance(x, torch.Tensor)
                else type(x).__name__
            )
            raise ValueError(
                f"x: expected a non-empty batch, a tensor of shape (n, ...), got {got}"
            )
        check.numbers(x, "x")
        if x.is_floating_point() and x.dtype != self.out_dtype:
            raise ValueError(
                f"x: expected {self.out_dtype} like the model's parameters, got {x.dtype}; "
                "convert one"
            )
        if not all_finite(x):
            raise ValueError(
                f"x: expected finite numbers, got {int((~torch.isfinite(x)).sum())} NaN or infinite"
            )
        return self._cast(x.detach())

    def __call__(self, theta: dict[str, torch.Tensor], x: Any) -> torch.Tensor:
        """Return the outputs (n, o) at the parameters ``theta``."""
        new = self.constants | {id(self.originals[name]): tensor for name, tensor in theta.items()}
        with (
            evaluation(self.modules.values()),
            _true_gradients(self.modules.values()),
            substituted(self.slots, new),
            _twice_differentiable(self.modules),
            torch.enable_grad(),  # the model may differentiate by its inputs
        ):
            with check.told(lambda: f"{check.TAKES}, but {_call(x)} failed"):
                found = (
                    x.map(torch.Tensor.detach).given_to(self.model)
                    if isinstance(x, Inputs)
                    else self.model(x.detach())
                )
            with check.told(
                lambda: f"output: expected to select from {check.got(found)}, but failed"
            ):
                r = found if self.select is None else self.select(found)
        if not isinstance(r, torch.Tensor) or r.ndim < 1 or len(r) != len(x):
            got = f"shape {tuple(r.shape)}" if isinstance(r, torch.Tensor) else type(r).__name__
            raise ValueError(
                f"model: expected outputs of shape ({len(x)}, ..., o) for this batch, got {got}; "
                "output=lambda found: ... selects them from what the model returns"
            )
        self.trailing = r.shape[1:]
        r = r if r.ndim == 2 else r.reshape(len(r), -1)
        return r if torch.is_grad_enabled() else r.detach()

    def output(self, x: Any) -> torch.Tensor:
        """Return the outputs (n, o), without a graph, if they are finite and examples do not
        influence one another.

        One example is tried alone: not at an end, because others may reach it from before or from
        behind, nor the middle one, which may be their mean.
        """
        k = 3 * len(x) // 5
        r = self(self.theta, x).detach()
        alone = self(self.theta, x[k : k + 1]).detach()
        if not all_finite(r):
            raise ValueError(
                "model: expected finite outputs, got NaN or infinite ones; check the parameters"
            )
        gap = float((alone[0] - r[k]).abs().max())
        if gap > torch.finfo(self.dtype).eps ** 0.4 * (1 + float(r.abs().max())):
            raise ValueError(
                "model: expected examples that do not influence one another, but output "
                f"{k} changes by "
                f"{gap:.3g} when its input is alone; use statistics that do not depend on the batch"
            )
        return r

    def flat(self, pieces: Iterable[torch.Tensor], lead: int = 0) -> torch.Tensor:
        """Join one tensor per parameter into vectors of length P, keeping ``lead`` leading
        dimensions.
        """
        return torch.cat([p.reshape(*p.shape[:lead], p.shape[lead:].numel()) for p in pieces], -1)

    def rows(self, x: Any, cotangents: torch.Tensor) -> torch.Tensor:
        """Return the products ``cotangents @ J`` of each example; (n, k, o) in, (n, k, P) out."""

        def one(x_i: Any, c_i: torch.Tensor) -> torch.Tensor:
            alone = Inputs.alone(x_i, x)
            _, pull, *_ = vjp(lambda theta: self(theta, alone)[0], self.theta)
            return self.flat(vmap(lambda c: pull(c)[0])(c_i).values(), 1)

        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "There is a performance drop")
                return vmap(one)(x.tensors if isinstance(x, Inputs) else x, cotangents)
        except RuntimeError:  # a layer that vmap cannot batch: one example after the other
            return torch.stack(
                [self._rows_of_one(x[i : i + 1], c_i) for i, c_i in enumerate(cotangents)]
            )

    def _rows_of_one(self, x_i: Any, c_i: torch.Tensor) -> torch.Tensor:
        theta = {name: p.clone().requires_grad_() for name, p in self.theta.items()}
        with torch.enable_grad():
            r, leaves = self(theta, x_i)[0], list(theta.values())
            rows = [
                torch.autograd.grad(r, leaves, c, retain_graph=True, materialize_grads=True)
                for c in c_i
            ]
        return torch.stack([self.flat(row) for row in rows])

    def chunks(self, x: Any, cotangents: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield ``(examples, rows of these examples)`` in blocks of bounded size."""
        step = max(1, CHUNK // (cotangents.shape[1] * self.size))
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            yield part, self.rows(x[part], cotangents[part])


def _call(x: Any) -> str:
    """Return the call of the model with these inputs, in words."""
    if not isinstance(x, Inputs):
        return f"model({check.shown(x)})"
    parts = [(f"{k}=" if x.named else "") + check.shown(v) for k, v in x.parts.items()]
    return f"model({', '.join(parts)})"


@contextmanager
def evaluation(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switch every module to evaluation mode, and each back to its own mode at the end."""
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _true_gradients(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let embeddings give dense gradients that are the derivatives: sparse ones cannot be joined to
    one vector, nor differentiated again, and scaled ones are those of no function.
    """
    kinds = nn.Embedding, nn.EmbeddingBag
    flags = [
        (module, key)
        for module in modules
        if isinstance(module, kinds)
        for key in ("sparse", "scale_grad_by_freq")
        if getattr(module, key)
    ]
    try:
        for module, key in flags:
            setattr(module, key, False)
        yield
    finally:
        for module, key in flags:
            setattr(module, key, True)


def _renormalized(modules: dict[str, nn.Module]) -> set[int]:
    """Return the ids of the weights that a forward pass changes: those of embeddings with a
    ``max_norm``.
    """
    kinds = nn.Embedding, nn.EmbeddingBag
    return {
        id(module.weight)
        for module in modules.values()
        if isinstance(module, kinds) and module.max_norm is not None
    }


class Slot(NamedTuple):
    """A place in a module that holds a parameter or a buffer. Shared tensors have several slots and
    one name.
    """

    module: nn.Module
    owner: dict[str, Any]
    key: str
    tensor: torch.Tensor
    name: str


def find_slots(modules: dict[str, nn.Module]) -> list[Slot]:
    """Return every place that holds a tensor, in the order of ``model.named_parameters()``."""
    names: dict[int, str] = {}
    return [
        Slot(
            module,
            owner,
            key,
            tensor,
            names.setdefault(id(tensor), f"{prefix}.{key}" if prefix else key),
        )
        for prefix, module in modules.items()
        for owner in (module._parameters, module._buffers)
        for key, tensor in owner.items()
        if tensor is not None
    ]


@contextmanager
def substituted(slots: list[Slot], new: dict[int, torch.Tensor]) -> Iterator[None]:
    """Replace tensors, found by their ``id``, wherever they occur, and put the old ones back at the
    end.

    Unlike ``torch.func.functional_call`` it also restores a module that occurs twice in the model.
    """
    slots = [slot for slot in slots if id(slot.tensor) in new]
    recurrent = {
        slot.module: slot.module._flat_weights
        for slot in slots
        if isinstance(slot.module, nn.RNNBase)
    }
    try:
        for slot in slots:
            slot.owner[slot.key] = new[id(slot.tensor)]
        for module in recurrent:
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
        yield
    finally:
        for slot in slots:
            slot.owner[slot.key] = slot.tensor
        for module, weights in recurrent.items():
            module._flat_weights = weights


@contextmanager
def _twice_differentiable(modules: dict[str, nn.Module]) -> Iterator[None]:
    """Choose the plain form of attention and recurrent layers: the fused ones have no second
    derivative.
    """
    recurrent = any(isinstance(module, nn.RNNBase) for module in modules.values())
    fused = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(fused and not recurrent)  # torch.backends.mkldnn.flags warns
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(fused)


def select(
    tensors: dict[str, torch.Tensor], parameters: Iterable[str | nn.Parameter] | None = None
) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, or the chosen ones of them, in the order of the
    model.
    """
    named = {
        name: p for name, p in tensors.items() if isinstance(p, nn.Parameter) and p.requires_grad
    }
    if parameters is not None:
        wanted = {key if isinstance(key, str) else id(key) for key in _alone(parameters)}
        unknown = wanted - set(named) - {id(p) for p in named.values()}
        if not wanted:
            raise ValueError(
                "parameters: expected at least one that is trained, got none; is requires_grad "
                "off everywhere?"
            )
        if unknown:
            raise ValueError(
                "parameters: expected trainable parameters of the model or their names, of "
                f"{list(named)}; "
                f"{len(unknown)} of the {len(wanted)} given are not among them; an optimizer keeps "
                "those that it was built with, so build it anew if the model's were replaced"
            )
        named = {name: p for name, p in named.items() if name in wanted or id(p) in wanted}
    if not named:
        raise ValueError("model: expected at least one parameter with requires_grad, got none")
    for name, p in named.items():
        check.numbers(p, f"model: {name}")
        if p.numel() and not all_finite(p):
            raise ValueError(
                f"model: expected finite parameters, got NaN or infinite numbers in {name}"
            )
    return named


def _alone(parameters: Any) -> Iterator[Any]:
    """Yield parameters and names from these, from pairs of both, and from groups."""
    for item in check.listed(parameters):
        if isinstance(item, Mapping) and "params" in item:
            yield from _alone(item["params"])
        else:
            pair = isinstance(item, tuple) and len(item) == 2
            yield item[1] if pair else item


def _refuse_batch_statistics(modules: dict[str, nn.Module]) -> None:
    """Raise if a BatchNorm layer has no running statistics: its examples depend on one another."""
    for name, module in modules.items():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"model: layer {name!r} ({type(module).__name__}) has no running "
                "statistics, so that examples "
                "depend on one another; use track_running_stats=True"
            )
