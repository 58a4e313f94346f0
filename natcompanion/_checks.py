"""Validation in one place: each helper returns its argument or raises a ValueError that says what
to do.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import nn


def all_finite(x: torch.Tensor) -> bool:
    """Say whether ``x`` has no NaN or infinite entry, in one pass and without a temporary
    tensor.
    """
    return not x.is_floating_point() or all(math.isfinite(end) for end in torch.aminmax(x.detach()))


def numbers(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``x`` if it is a dense tensor of real numbers."""
    if x.is_complex():
        raise ValueError(
            f"{name}: expected real numbers, got {x.dtype}; give real and imaginary parts as "
            "numbers of their own, see torch.view_as_real"
        )
    if x.layout != torch.strided or x.is_nested:
        got = "a nested tensor" if x.is_nested else str(x.layout)
        remedy = "pad it to one" if x.is_nested else "convert it with .to_dense()"
        raise ValueError(f"{name}: expected a dense tensor, got {got}; {remedy}")
    if x.is_meta:
        raise ValueError(
            f'{name}: expected numbers, got a tensor on the device "meta", which has none; '
            "make it on another device"
        )
    return x


def floating(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``x`` if it is a non-empty finite floating-point tensor."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(
            f"{name}: expected a torch.Tensor, got {type(x).__name__}; wrap it in torch.as_tensor"
        )
    if not x.is_floating_point():
        raise ValueError(
            f"{name}: expected a floating-point tensor, got {x.dtype}; convert it with .double()"
        )
    if x.numel() == 0:
        raise ValueError(
            f"{name}: expected at least one element, got an empty tensor of shape {tuple(x.shape)}"
        )
    if not all_finite(x):
        bad = int((~torch.isfinite(x)).sum())
        raise ValueError(
            f"{name}: expected finite numbers, got {bad} NaN or infinite of {x.numel()}; "
            "remove them"
        )
    return x


def matrix(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``x`` if it is a finite floating-point matrix."""
    floating(x, name)
    if x.ndim != 2:
        raise ValueError(f"{name}: expected a matrix (two dimensions), got shape {tuple(x.shape)}")
    return x


def square(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``x`` if it is a finite square matrix."""
    matrix(x, name)
    if x.shape[0] != x.shape[1]:
        raise ValueError(f"{name}: expected a square matrix, got shape {tuple(x.shape)}")
    return x


def shaped(x: torch.Tensor, name: str, *shape: int) -> torch.Tensor:
    """Return ``x`` if it is a tensor of this shape."""
    if not isinstance(x, torch.Tensor) or x.shape != shape:
        came = f"shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else got(x)
        raise ValueError(f"{name}: expected a tensor of shape {shape}, got {came}")
    return x


def paired(v: torch.Tensor, h: torch.Tensor) -> None:
    """Refuse samples that are not matrices with as many rows."""
    if len(matrix(v, "v")) != len(matrix(h, "h")):
        raise ValueError(f"v, h: expected one row per sample in both, got {len(v)} and {len(h)}")


def symmetric(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return the symmetrized ``x`` if it is square and symmetric up to rounding."""
    square(x, name)
    gap, scale = float((x - x.mT).detach().abs().max()), float(x.detach().abs().max())
    if gap > 100 * torch.finfo(x.dtype).eps * max(scale, torch.finfo(x.dtype).tiny) * math.sqrt(
        len(x)
    ):
        raise ValueError(
            f"{name}: expected a symmetric matrix, got one that differs from its transpose "
            f"by {gap:.3g} "
            f"(largest entry {scale:.3g}); use (A + A.T) / 2 if that is rounding"
        )
    return (x + x.mT) / 2


class Refused(ValueError, RuntimeError):
    """What the user's own code refused; a RuntimeError too, after which other ways are tried, such
    as one example after the other.
    """


@contextmanager
def told(what: Callable[[], str]) -> Iterator[None]:
    """Say in words what failed in the user's own code, before the original message."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (TypeError, RuntimeError, LookupError, AttributeError) as error:
        raise Refused(f"{what()}: {type(error).__name__}: {error}") from error


def shown(x: Any) -> str:
    """Return dtype and shape of a tensor, or the beginning of anything else, for messages."""
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)[:40]


TAKES = (
    "model: expected inputs that it takes, a tensor as model(x), a tuple as model(*x), a "
    "dictionary as model(**x)"
)


def unit(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return ``x`` if its values are in [0, 1]."""
    low, high = (float(end) for end in torch.aminmax(floating(x, name)))
    if low < 0 or high > 1:
        raise ValueError(
            f"{name}: expected values in [0, 1], got minimum {low:.4g} and maximum {high:.4g}; "
            "scale the data first (8-bit images: divide by 255)"
        )
    return x


def non_negative(value: float, name: str) -> float:
    """Return ``value`` as a float if it is a finite real number >= 0; True and False are none."""
    if not (_real(value) and value >= 0):
        raise ValueError(f"{name}: expected a finite number >= 0, got {value!r}")
    return float(value)


def positive(value: float, name: str) -> float:
    """Return ``value`` as a float if it is a finite real number > 0; True and False are none."""
    if not (_real(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number > 0, got {value!r}")
    return float(value)


def _real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: int, name: str, low: int = 1, high: int | None = None) -> int:
    """Return ``value`` as an int if it is an integer in ``low..high``; True and False are none."""
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not integer or value < low or (high is not None and value > high):
        wanted = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
        raise ValueError(f"{name}: expected {wanted}, got {value!r}")
    return int(value)


def generator(g: Any) -> None:
    """Refuse what is no source of random numbers, nor None."""
    if not (g is None or isinstance(g, torch.Generator)):
        raise ValueError(
            f"generator: expected a torch.Generator, got {g!r}; make one of a seed with "
            "torch.Generator().manual_seed(0)"
        )


def kind(x: object) -> str:
    """Return the class of an object with its article, for messages.

    Examples
    --------
    >>> kind(torch.nn.Embedding(2, 1)), kind(torch.nn.LSTM(1, 1)), kind(torch.nn.ReLU())
    ('an Embedding', 'an LSTM', 'a ReLU')
    """
    name = type(x).__name__
    spelled = name[:2].isupper() and name[0] in "AEFHILMNORSX"
    return f"an {name}" if spelled or name[0] in "AEIO" else f"a {name}"


def got(x: object) -> str:
    """Return what came instead of something else, for messages: a class is one to be called.

    Examples
    --------
    >>> got(torch.nn.Linear), got(torch.nn.ReLU()), got("relu")
    ('the class Linear; call it: Linear(...)', 'ReLU', "'relu'")
    """
    if isinstance(x, type):
        return f"the class {x.__name__}; call it: {x.__name__}(...)"
    return repr(x) if isinstance(x, str) or x is None else type(x).__name__


def model(x: Any) -> nn.Module:
    """Return ``x`` if it is a model."""
    if not isinstance(x, nn.Module):
        raise ValueError(
            f"model: expected a torch.nn.Module, got {got(x)}; give the model itself, neither its "
            "parameters nor a function, whose code would be the forward() of a module"
        )
    return x


def listed(parameters: Any) -> list[Any]:
    """Return a choice of parameters as a list; one parameter, name or group is a list of one.

    Examples
    --------
    >>> listed("0.weight"), listed(["0.weight", "0.bias"])
    (['0.weight'], ['0.weight', '0.bias'])
    """
    if isinstance(parameters, (str, torch.Tensor, Mapping)):
        return [parameters]
    if isinstance(parameters, nn.Module) or not isinstance(parameters, Iterable):
        raise ValueError(
            "parameters: expected parameters of the model, their names, pairs of both, or groups "
            f"of these, got {got(parameters)}; of a part of a model take layer.parameters()"
        )
    return list(parameters)


def function(f: Any, name: str, *, classes: bool = False) -> Any:
    """Return ``f`` if it can be called, and is no class unless ``classes``; None passes."""
    if f is not None and ((isinstance(f, type) and not classes) or not callable(f)):
        raise ValueError(f"{name}: expected a function, got {got(f)}")
    return f


def entries(state_dict: dict, names: set[str], kind: str) -> None:
    """Refuse a state that lacks some of these entries: it is not one of this ``kind`` of
    optimizer.
    """
    known = isinstance(state_dict, Mapping)
    if not known or not names <= set(state_dict):
        found = f"the entries {list(state_dict)}" if known else got(state_dict)
        raise ValueError(f"state_dict: expected one of {kind}, got {found}")


def semidefinite_eigh(
    a: torch.Tensor, name: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ascending eigenvalues and eigenvectors of a symmetric matrix; negative rounding
    becomes 0.

    ``dtype`` is the precision the matrix came in, float32 at best: a negative eigenvalue beyond
    ``len(a) * finfo(dtype).eps`` times the largest modulus is refused.
    """
    values, vectors = torch.linalg.eigh(a)
    slack = (
        len(a)
        * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
        * float(values.abs().max())
    )
    if float(values[0]) < -slack:
        raise ValueError(
            f"{name}: expected a positive semi-definite matrix, got the eigenvalue "
            f"{float(values[0]):.3g} "
            f"(largest {float(values[-1]):.3g}); check its sign and how it was estimated"
        )
    return values.clamp(min=0), vectors


def full_rank(values: torch.Tensor, name: str, dtype: torch.dtype) -> None:
    """Refuse ascending eigenvalues of a matrix that is singular at the precision ``dtype``."""
    rank = int((values > len(values) * torch.finfo(dtype).eps * values[-1]).sum())
    if rank < len(values):
        raise ValueError(
            f"{name}: expected a matrix of full rank, got numerical rank {rank} of {len(values)}; "
            "increase eps, or remove constant and repeated directions first"
        )


def independent(a: torch.Tensor, name: str, dtype: torch.dtype) -> None:
    """Refuse a positive semi-definite matrix that is singular at the precision ``dtype``, whatever
    the units of its coordinates: the matrix of correlations decides, as units are not rank.
    """
    roots = a.diagonal().clamp(min=0).sqrt()
    scale = torch.where(roots > 0, 1 / roots, 0)
    full_rank(torch.linalg.eigvalsh(scale[:, None] * a * scale), name, dtype)
