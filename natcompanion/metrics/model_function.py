"""A torch module as a function of its trainable parameters, evaluated without leaving a trace in the module."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import vjp, vmap

CHUNK = 2**24
"""Numbers that a block of per-example rows may hold."""


class ModelFunction:
    """The outputs ``r`` of ``model`` and products of their Jacobian, as a function of the chosen parameters.

    The model runs in evaluation mode (BatchNorm uses its running statistics, Dropout is off) and is left as it was:
    same modes, same buffers, no hooks. Half-precision models are computed in float32. Examples must not influence
    one another.

    Parameters
    ----------
    model
        Any module that maps (n, ...) to (n, o).
    parameters
        Names or parameters to differentiate by; by default every parameter with ``requires_grad``, in the order of
        ``model.parameters()``. Shared (tied) parameters count once.
    """

    def __init__(self, model: nn.Module, parameters: Iterable[str | nn.Parameter] | None = None) -> None:
        self.model = model
        self.originals = select(model, parameters)
        first = next(iter(self.originals.values()))
        self.out_dtype = first.dtype
        self.dtype = torch.float32 if first.dtype in (torch.float16, torch.bfloat16) else first.dtype
        self.theta = {name: self._cast(p.detach()) for name, p in self.originals.items()}
        self.constants = {
            n: self._cast(p.detach()) for n, p in model.named_parameters() if n not in self.theta
        }
        self.constants |= {n: self._cast(b.detach().clone()) for n, b in model.named_buffers()}
        self.size = sum(p.numel() for p in self.theta.values())
        _refuse_batch_statistics(model)

    def _cast(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype) if x.is_floating_point() and x.dtype != self.dtype else x

    def check(self, x: torch.Tensor) -> torch.Tensor:
        """Return the batch of inputs in the computing dtype, if it is one the model can take."""
        if not isinstance(x, torch.Tensor) or x.ndim < 1 or x.numel() == 0:
            got = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"x: expected a non-empty batch, a tensor of shape (n, ...), got {got}")
        if x.is_floating_point() and x.dtype != self.out_dtype:
            raise ValueError(
                f"x: expected {self.out_dtype} like the model's parameters, got {x.dtype}; convert one"
            )
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            raise ValueError(
                f"x: expected finite numbers, got {int((~torch.isfinite(x)).sum())} NaN or infinite"
            )
        return self._cast(x)

    def __call__(self, theta: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, o) at the parameters ``theta``."""
        with evaluation(self.model), substituted(self.model, self.constants | theta):
            r = self.model(x)
        if not isinstance(r, torch.Tensor) or r.ndim != 2 or len(r) != len(x):
            got = f"shape {tuple(r.shape)}" if isinstance(r, torch.Tensor) else type(r).__name__
            raise ValueError(f"model: expected outputs of shape ({len(x)}, o) for this batch, got {got}")
        return r

    def output(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, o), without a graph."""
        with torch.no_grad():
            r = self(self.theta, x)
        if not bool(torch.isfinite(r).all()):
            raise ValueError("model: expected finite outputs, got NaN or infinite ones; check the parameters")
        return r

    def flat(self, pieces: Iterable[torch.Tensor], lead: int = 0) -> torch.Tensor:
        """Join one tensor per parameter into vectors of length P, keeping ``lead`` leading dimensions."""
        return torch.cat([p.reshape(*p.shape[:lead], -1) for p in pieces], -1)

    def rows(self, x: torch.Tensor, cotangents: torch.Tensor) -> torch.Tensor:
        """Return the products ``cotangents @ J`` of each example; (n, k, o) in, (n, k, P) out."""

        def one(x_i: torch.Tensor, c_i: torch.Tensor) -> torch.Tensor:
            _, pull = vjp(lambda theta: self(theta, x_i.unsqueeze(0))[0], self.theta)
            return self.flat(vmap(lambda c: pull(c)[0])(c_i).values(), 1)

        try:
            return vmap(one)(x, cotangents)
        except RuntimeError:  # a layer that vmap cannot batch: one example after the other
            return torch.stack([self._rows_of_one(x_i, c_i) for x_i, c_i in zip(x, cotangents, strict=True)])

    def _rows_of_one(self, x_i: torch.Tensor, c_i: torch.Tensor) -> torch.Tensor:
        theta = {name: p.clone().requires_grad_() for name, p in self.theta.items()}
        with torch.enable_grad():
            r = self(theta, x_i.unsqueeze(0))[0]
            rows = [
                torch.autograd.grad(r, theta.values(), c, retain_graph=True, materialize_grads=True)
                for c in c_i
            ]
        return torch.stack([self.flat(row) for row in rows])

    def chunks(self, x: torch.Tensor, cotangents: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield ``(examples, rows of these examples)`` in blocks of bounded size."""
        step = max(1, CHUNK // (cotangents.shape[1] * self.size))
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            yield part, self.rows(x[part], cotangents[part])


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Switch every module to evaluation mode, and each back to its own mode at the end."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def substituted(model: nn.Module, tensors: dict[str, torch.Tensor]) -> Iterator[None]:
    """Replace parameters and buffers by the given tensors, wherever they occur, and put them back at the end.

    Unlike ``torch.func.functional_call`` it also restores a module that occurs twice in the model.
    """
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    new = {id(named[name]): tensor for name, tensor in tensors.items()}
    slots = [
        (owner, name, old)
        for module in set(model.modules())
        for owner in (module._parameters, module._buffers)
        for name, old in owner.items()
        if id(old) in new
    ]
    recurrent = [(m, m._flat_weights) for m in model.modules() if isinstance(m, nn.RNNBase)]
    try:
        for owner, name, old in slots:
            owner[name] = new[id(old)]
        for module, _ in recurrent:
            module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
        yield
    finally:
        for owner, name, old in slots:
            owner[name] = old
        for module, weights in recurrent:
            module._flat_weights = weights


def select(
    model: nn.Module, parameters: Iterable[str | nn.Parameter] | None = None
) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, in the order of ``model.parameters()``, or the chosen ones of them."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if parameters is not None:
        wanted = {key if isinstance(key, str) else id(key) for key in parameters}
        known = set(named) | {id(p) for p in named.values()}
        if not wanted or wanted - known:
            raise ValueError(
                f"parameters: expected trainable parameters of the model or their names, one or more of {list(named)}; "
                f"{len(wanted - known)} of the {len(wanted)} given are not among them"
            )
        named = {name: p for name, p in named.items() if name in wanted or id(p) in wanted}
    if not named:
        raise ValueError("model: expected at least one parameter with requires_grad, got none")
    for name, p in named.items():
        if not bool(torch.isfinite(p).all()):
            raise ValueError(f"model: expected finite parameters, got NaN or infinite numbers in {name}")
    return named


def _refuse_batch_statistics(model: nn.Module) -> None:
    """Raise if a BatchNorm layer has no running statistics: its examples depend on one another."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"model: layer {name!r} ({type(module).__name__}) has no running statistics, so that examples depend "
                "on one another; use track_running_stats=True"
            )
