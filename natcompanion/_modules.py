"""What a module holds itself, and how: nothing here runs a module or computes a weight."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def own(module: nn.Module, key: str) -> Any:
    """Return a parameter that a module holds itself, or None. Nothing is computed: to look at a
    parametrized weight may change what it is computed from.
    """
    held = module._parameters
    return held[key] if key in held else None  # noqa: SIM401 (that of a scripted module has no get)


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a module holds itself."""
    return [p for p in module._parameters.values() if p is not None]


def is_transposed(module: nn.Module) -> bool:
    """Return whether a module is a linear layer with weight (inputs, outputs): the Conv1D of
    GPT-2.
    """
    weight = own(module, "weight")  # an attribute of a traced model is a proxy
    return (
        type(module).__name__ == "Conv1D"
        and weight is not None
        and weight.ndim == 2
        and getattr(module, "nf", None) == weight.shape[1]
    )


def cleared(parameters: Iterable[torch.Tensor | None]) -> bool:
    """Return whether no parameter holds a gradient, or none but zeros."""
    return not any(p is not None and p.grad is not None and p.grad.any() for p in parameters)
