"""The hooks by which PRONG sees the passes of a model, and the backward pass that one option puts
in.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from natcompanion._moments import first
from natcompanion.optim._prong_layers import Map, PlainLayer, computing
from natcompanion.optim._taps import Tap


class LayerTap(Tap):
    """The hooks before and after a layer."""

    def before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Tell the optimizer that a pass begins."""
        optimizer = self.optimizer()
        if optimizer is not None and not torch.compiler.is_compiling():
            optimizer._before(self.name, module, first(args, kwargs))

    def after(
        self, module: nn.Module, args: tuple, kwargs: dict, output: torch.Tensor
    ) -> torch.Tensor | None:
        """Show input and output of the layer to the optimizer."""
        optimizer = self.optimizer()
        if optimizer is None:
            return None
        if torch.compiler.is_compiling() and not optimizer._needs_passes(optimizer.param_groups[0]):
            return None
        return optimizer._after(self.name, module, first(args, kwargs), output)


def transformed(h: torch.Tensor) -> bool:
    """Return whether a transform of ``torch.func`` is at work, whose results are not for
    training.
    """
    return torch._C._functorch.is_functorch_wrapped_tensor(h)


def recomputing() -> bool:
    """Return whether a backward pass is at work, so that a forward pass repeats one that was
    seen.
    """
    return torch._C._current_graph_task_id() != -1


def remove_taps(module: nn.Module) -> None:
    """Remove the taps of earlier optimizers from a module."""
    for hooks, flags in (
        (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
        (module._forward_hooks, module._forward_hooks_with_kwargs),
    ):
        for key in [
            key
            for key, hook in hooks.items()
            if isinstance(getattr(hook, "__self__", None), LayerTap)
        ]:
            del hooks[key]
            flags.pop(key, None)


class Route(torch.autograd.Function):
    """The identity on the output of a plain linear layer, with the preconditioned gradients as its
    backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        output: torch.Tensor,
        h: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        layer: PlainLayer,
        c: torch.Tensor | None,
        apply: Map,
    ) -> torch.Tensor:
        ctx.save_for_backward(h, weight)
        ctx.how = layer, c, apply
        ctx.mark_dirty(output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: torch.Tensor) -> tuple:
        h, weight = ctx.saved_tensors
        layer, c, apply = ctx.how
        _, for_input, for_weight, for_bias, *_ = ctx.needs_input_grad
        back = weight if layer.transposed else weight.mT
        grad_h = (delta @ back.mT.to(delta.dtype)).to(h.dtype) if for_input else None
        W = b = None
        if for_weight:
            layer.routed = True
            dtype = computing(weight.dtype)
            rows = (part.reshape(-1, part.shape[-1]).to(dtype) for part in (h, delta))
            with torch.autocast(delta.device.type, enabled=False):
                W, b = layer.from_passes(*rows, c, apply)
            W = W.to(weight.dtype)
        b = b.to(weight.dtype) if b is not None and for_bias else None
        return None, grad_h, W, b, None, None, None
