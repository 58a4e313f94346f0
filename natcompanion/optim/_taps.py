"""How an optimizer watches the passes of a layer without being kept alive by it."""

import weakref
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge


class Tap:
    """The hooks of one layer, which show an optimizer what passes through. It does not keep the
    optimizer alive, and a copy of it is blind.
    """

    def __init__(self, optimizer: Any = None, name: str = "") -> None:
        self.optimizer = (lambda: None) if optimizer is None else weakref.ref(optimizer)
        self.name = name

    def __reduce__(self) -> tuple:
        return type(self), ()


class OutsideTap(Tap):
    """A hook that runs as it is under ``torch.compile`` too; ``_show`` says what it does."""

    def __call__(self, *seen: Any) -> None:
        (self._show_uncompiled if torch.compiler.is_compiling() else self._show)(*seen)

    @torch._disable_dynamo
    def _show_uncompiled(self, *seen: Any) -> None:
        self._show(*seen)

    def _show(self, *seen: Any) -> None:
        raise NotImplementedError


def destination(*parameters: torch.Tensor | None) -> str | None:
    """Return where the backward pass at work puts the gradients of parameters: "grad" if one goes
    to its ``.grad``, "result" if one is returned by ``torch.autograd.grad``, else None.
    """
    found = {_destination(p) for p in parameters if p is not None and p.requires_grad}
    return "grad" if "grad" in found else "result" if "result" in found else None


def _destination(p: torch.Tensor) -> str | None:
    try:
        return "grad" if torch._C._will_engine_execute_node(get_gradient_edge(p).node) else None
    except RuntimeError:  # torch.autograd.grad with respect to p
        return "result"
