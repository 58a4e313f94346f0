"""Which activation follows each layer: read off the traced network, or declared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from natcompanion._modules import is_transposed
from natcompanion.relative import activation_of
from natcompanion.relative.activations import NAMES, _nu

LAYERS = (nn.Linear, nn.Conv2d)


def is_layer(module: nn.Module) -> bool:
    """Return whether a module multiplies its input with weights, and is called for that."""
    if isinstance(module, NonDynamicallyQuantizableLinear):  # attention only reads its weights
        return False
    return isinstance(module, LAYERS) or is_transposed(module)


@dataclass(frozen=True)
class Activation:
    """An activation function: its name and its options, as for :func:`natcompanion.relative.nu`."""

    name: str
    options: tuple[tuple[str, float], ...] = ()
    learned: nn.PReLU | None = None
    """Where the slope left of 0 is learned."""

    def nu(self, a: torch.Tensor, omega: float) -> torch.Tensor:
        """Return the weight of every pre-activation in the metric."""
        options = (
            dict(self.options)
            if self.learned is None
            else {"iota": float(self.learned.weight.detach())}
        )
        return _nu(self.name, a, omega=omega, **options)


LINEAR = Activation("linear")
FUNCTIONS = {
    torch.relu: "relu",
    F.relu: "relu",
    torch.relu_: "relu",
    F.relu_: "relu",
    torch.tanh: "tanh",
    F.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    F.sigmoid: "sigmoid",
    F.elu: "elu",
    F.leaky_relu: "leaky",
}
METHODS = {"relu": "relu", "relu_": "relu", "tanh": "tanh", "sigmoid": "sigmoid"}
PASSED_MODULES = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten)
PASSED_FUNCTIONS = (
    torch.flatten,
    torch.reshape,
    torch.squeeze,
    torch.unsqueeze,
    torch.transpose,
    torch.permute,
    F.dropout,
)
PASSED_METHODS = (
    "flatten",
    "view",
    "reshape",
    "contiguous",
    "squeeze",
    "unsqueeze",
    "transpose",
    "permute",
    "float",
    "double",
    "to",
)
SOFTMAX_MODULES = (nn.Softmax, nn.LogSoftmax)
SOFTMAX_FUNCTIONS = (torch.softmax, F.softmax, torch.log_softmax, F.log_softmax)
SHAPES = ("shape", "dtype", "device", "ndim")
SHAPE_METHODS = ("size", "dim", "numel")
TWICE = "it is used twice"
LENT = "its weight or bias is used outside of it as well"
UNTRACED = "its activation is unknown, as the model cannot be traced"
UNUSED = f"{UNTRACED}: the computation that was traced does not come by"
NEVER = (TWICE, LENT)
"""Why the metric of a layer's inputs would be wrong for its parameters."""


def find_activations(
    model: nn.Module, declared: Mapping[str, str | nn.Module] | None
) -> tuple[dict[str, Activation | str], str]:
    """Return the activation of every linear and convolutional layer, by module name, and the name
    of the first layer.

    A layer without a known activation has the reason in its place.

    Raises
    ------
    ValueError
        If a declaration is wrong.
    """
    modules = {name: m for name, m in model.named_modules() if is_layer(m)}
    if not isinstance(declared, Mapping | None):
        raise ValueError(
            f'activations: expected a dict such as {{{next(iter(modules), "")!r}: "relu"}}, got '
            f"{declared!r}"
        )
    declared = dict(declared or {})
    if unknown := [name for name in declared if name not in modules]:
        raise ValueError(f"activations: expected names among {list(modules)}, got {unknown}")
    found: dict[str, Activation | str] = {
        name: _declared(name, value) for name, value in declared.items()
    }
    nodes, never, reason = _trace(model)
    for name in modules:
        if name in never:
            found[name] = never[name]
        elif name not in found:
            found[name] = _follow(nodes[name], model) if name in nodes else reason
    return {name: found[name] for name in modules}, next(iter(nodes or modules), "")


class _Tracer(fx.Tracer):
    """Traces through a model, but not into its layers."""

    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        return is_layer(m) or super().is_leaf_module(m, qualified_name)


def _trace(model: nn.Module) -> tuple[dict[str, fx.Node], dict[str, str], str]:
    """Return the layers' nodes in the order of computation, why some must have no metric, and why
    a layer may be missing.
    """
    if is_layer(model):
        model = nn.Sequential(model)
        model_name = {"0": ""}
    else:
        model_name = {}
    attributes = [(m, dict(m.__dict__)) for m in model.modules()]
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # noqa: BLE001 (a model may fail to trace in any way)
        return (
            {},
            {},
            f"{UNTRACED}: {error}",
        )
    finally:  # what the forward pass has noted in the model came from the tracer
        for module, before in attributes:
            module.__dict__.clear()
            module.__dict__.update(before)
    nodes: dict[str, fx.Node] = {}
    never: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "get_attr" and not all(map(_asks_shape, node.users)):
            owner = node.target.rpartition(".")[0]
            never[model_name.get(owner, owner)] = LENT
        if node.op == "call_module" and is_layer(model.get_submodule(node.target)):
            name = model_name.get(node.target, node.target)
            if name in nodes:
                never[name] = TWICE
            nodes[name] = node
    return nodes, {name: why for name, why in never.items() if name in nodes}, UNUSED


def _follow(node: fx.Node, model: nn.Module) -> Activation | str:
    """Return the activation that a node's value goes through, or what it meets instead."""
    found = {_meaning(user, model) for user in node.users if not _asks_shape(user)}
    if len(found) == 1:
        return found.pop()
    return "its output is used in several ways" if found else "its output is not used"


def _asks_shape(user: Any) -> bool:
    if user.op == "call_method":
        return user.target in SHAPE_METHODS
    return user.target is getattr and user.args[1] in SHAPES


def _meaning(user: Any, model: nn.Module) -> Activation | str:
    if user.op == "output":
        return LINEAR
    if user.op == "call_module":
        module = model.get_submodule(user.target)
        if isinstance(module, PASSED_MODULES):
            return _follow(user, model)
        if is_layer(module) or isinstance(module, SOFTMAX_MODULES):
            return LINEAR
        return _of_module(module)
    known = METHODS.get(user.target) if user.op == "call_method" else FUNCTIONS.get(user.target)
    if known == "elu":
        return Activation("elu", (("alpha", _argument(user, "alpha", 1.0)),))
    if known == "leaky":
        return Activation("relu", (("iota", _argument(user, "negative_slope", 0.01)),))
    if known:
        return Activation(known)
    if user.target in (*PASSED_FUNCTIONS, *PASSED_METHODS):
        return _follow(user, model)
    if user.target in (*SOFTMAX_FUNCTIONS, "softmax", "log_softmax"):
        return LINEAR
    return f"its output goes into {getattr(user.target, '__name__', user.target)}"


def _argument(node: Any, name: str, default: float) -> float:
    return float(node.args[1] if len(node.args) > 1 else node.kwargs.get(name, default))


def _of_module(module: nn.Module) -> Activation | str:
    if isinstance(module, nn.PReLU) and module.num_parameters == 1:
        return Activation("relu", learned=module)
    try:
        name, options = activation_of(module)
    except ValueError:
        return f"its output goes into {type(module).__name__}"
    return Activation(name, tuple(options.items()))  # type: ignore[arg-type]  # the options are numbers


def _declared(name: str, value: Any) -> Activation:
    if isinstance(value, str) and value in NAMES:
        return Activation(value)
    meaning = _of_module(value) if isinstance(value, nn.Module) else repr(value)
    if isinstance(meaning, str):
        raise ValueError(
            f"activations[{name!r}]: expected one of {', '.join(NAMES)}, or a module such "
            f"as nn.ELU(0.5), got {value!r}"
        )
    return meaning
