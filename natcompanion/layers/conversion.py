"""Plain networks made of whitened ones and the other way round, and the whitened initialization."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from natcompanion import _checks as check
from natcompanion._moments import Moments, first, rows
from natcompanion.layers.coordinates import Kind
from natcompanion.layers.whitened import Whitened, WhitenedConv2d, WhitenedLinear


def whiten_model(model: nn.Module, kind: Kind = "pca") -> nn.Module:
    """Return a copy of a model whose linear and convolutional layers are whitened ones, with ``U =
    I``, ``c = 0``.

    The copy computes the same. Layers that cannot be whitened (grouped convolutions, layers of
    other types, layers that share their parameters) stay plain.

    Parameters
    ----------
    model : Module
        Left as it is.
    kind : "pca" or "zca"
        Form of U, see :func:`whitening_pair`.

    Examples
    --------
    >>> whiten_model(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    Sequential(
      (0): WhitenedLinear(...)
      (1): Tanh()
    )
    """
    shared = _shared(model)

    def convert(module: nn.Module) -> nn.Module | None:
        if shared & {id(p) for p in module._parameters.values()}:
            return None
        if type(module) is nn.Linear:
            return WhitenedLinear.from_plain(module, kind)
        if type(module) is nn.Conv2d and module.groups == 1:
            return WhitenedConv2d.from_plain(module, kind)
        return None

    return _replaced(model, convert)


def _plain(module: Any) -> nn.Module | None:
    return module.plain() if isinstance(module, Whitened) else None  # type: ignore[operator]  # each whitened layer has its own


def canonical_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose whitened layers are plain ones that compute the same.

    Its ``state_dict`` fits the plain network. Source: prong Algorithm 1, line 7.

    Parameters
    ----------
    model : Module
        Left as it is.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    >>> canonical_model(whiten_model(model))
    Sequential(
      (0): Linear(in_features=2, out_features=2, bias=True)
      (1): Tanh()
    )
    """
    return _replaced(model, _plain)


def with_batch_norm(model: nn.Module) -> nn.Module:
    """Return a copy of a model with batch normalization after every linear and convolutional layer
    but the last.

    The layer ``name`` becomes ``name.0``, its normalization ``name.1``.

    Parameters
    ----------
    model : Module
        Left as it is.

    Examples
    --------
    >>> model = with_batch_norm(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    >>> model[0][1].num_features, type(model[2]).__name__
    (3, 'Linear')
    """
    found = [
        m for m in check.model(model).modules() if isinstance(m, (nn.Linear, nn.Conv2d, Whitened))
    ][:-1]

    def convert(module: Any) -> nn.Module | None:
        if not any(module is m for m in found):
            return None
        weight = module.V if isinstance(module, Whitened) else module.weight
        norm = nn.BatchNorm1d if weight.ndim == 2 else nn.BatchNorm2d
        return nn.Sequential(
            copy.deepcopy(module), norm(len(weight), device=weight.device, dtype=weight.dtype)
        )

    return _replaced(model, convert)


def _shared(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that several modules own."""
    owned = [
        id(p)
        for module in dict.fromkeys(check.model(model).modules())
        for p in module._parameters.values()
        if p is not None
    ]
    return {key for key in owned if owned.count(key) > 1}


def _replaced(model: nn.Module, convert: Any) -> nn.Module:
    """Return a copy of a model with some modules replaced by what ``convert`` makes of them."""
    memo = {
        id(old): new for old in check.model(model).modules() if (new := convert(old)) is not None
    }
    return copy.deepcopy(model, memo)


@torch.no_grad()
def whitened_initialization(
    model: nn.Module, inputs: torch.Tensor, eps: float, kind: Kind = "pca"
) -> nn.Module:
    r"""Read the present weights of a model as weights in whitened coordinates, layer by layer, in
    place.

    Each layer in turn, in the order of the forward pass, is given the weights :math:`W = V U` and
    the bias
    :math:`b = d - W c`, with its present weights and bias as (V, d), and with U and c from the
    statistics of what the layers before it, already changed, make of ``inputs``. After a "fan-in"
    initialization the pre-activations of every layer then have a scale that does not depend on the
    scale and correlation of its inputs.

    Parameters
    ----------
    model : Module
        Plain layers get new weights; whitened ones keep V and d and get new U and c. Layers that
        share their parameters stay as they are.
    inputs : Tensor, shape (n, ...)
    eps : float
        Added to the eigenvalues of the covariances.
    kind : "pca" or "zca"
        Form of U for plain layers.

    Returns
    -------
    Module
        The model.

    Notes
    -----
    Source: prong Section 4.1, "whitened initialization" (Figure 3b).

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False))
    >>> weight = model[0].weight.clone()
    >>> _ = whitened_initialization(model, torch.tensor([[-2.0], [2.0]]), eps=0.0)
    >>> torch.allclose(model[0].weight.abs(), weight.abs() / 2)
    True
    """
    done: set[int] = set()

    def initialize(module: Any, args: tuple, kwargs: dict) -> None:
        if id(module) in done:
            return
        done.add(id(module))
        moments = Moments.of(rows(module, first(args, kwargs))).checked("layer")
        if isinstance(module, Whitened):
            module.set_coordinates(moments.mean, moments.covariance(), eps)
            return
        whitened = type_of_whitened(module).from_plain(module, kind)
        whitened.set_coordinates(moments.mean, moments.covariance(), eps)
        W, b = whitened.canonical()
        module.weight.copy_(W)
        if b is not None:
            module.bias.copy_(b)

    shared = _shared(model)
    handles = [
        module.register_forward_pre_hook(initialize, with_kwargs=True)
        for module in model.modules()
        if whitenable(module) and not shared & {id(p) for p in module._parameters.values()}
    ]
    with preserved_buffers(model):
        try:
            with check.told(lambda: f"{check.TAKES}, but model({check.shown(inputs)}) failed"):
                model(inputs)
        finally:
            for handle in handles:
                handle.remove()
    return model


def type_of_whitened(module: nn.Module) -> type[WhitenedLinear] | type[WhitenedConv2d]:
    """Return the class of the whitened layer that stands for a plain one."""
    return WhitenedLinear if isinstance(module, nn.Linear) else WhitenedConv2d


def whitenable(module: nn.Module) -> bool:
    """Return whether a module is a whitened layer or can be turned into one.

    Parameters
    ----------
    module : Module

    Examples
    --------
    >>> whitenable(nn.Conv2d(4, 4, 3)), whitenable(nn.Conv2d(4, 4, 3, groups=4))
    (True, False)
    """
    return (
        isinstance(module, Whitened)
        or type(module) is nn.Linear
        or (type(module) is nn.Conv2d and module.groups == 1)
    )


@contextmanager
def preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the running statistics of BatchNorm and its like at the end; whitened layers are left
    alone.

    Both ways to change a buffer are undone: in place, and by a new tensor under its name.

    Parameters
    ----------
    model : Module

    Examples
    --------
    >>> norm = nn.BatchNorm1d(1)
    >>> with preserved_buffers(norm):
    ...     _ = norm(torch.tensor([[1.0], [3.0]]))
    >>> norm.running_mean
    tensor([0.])
    """
    kept = [
        (module._buffers, name, buffer, None if buffer is None else buffer.clone())
        for module in check.model(model).modules()
        if not isinstance(module, Whitened)
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for owner, name, buffer, before in kept:
            owner[name] = buffer
            if buffer is not None and before is not None:
                buffer.copy_(before)
