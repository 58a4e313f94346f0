"""Run a function of torch once and write down what it does to arrays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from natcompanion import _checks
from natcompanion.chapters.page._program import Program, write

aten = torch.ops.aten
FURTHER = [aten.addmm, aten.addmv, aten.var, aten.linalg_vector_norm]
AGREEMENT = 1e-12
"""Of a trace with its function at other inputs, relative to the largest value of a result."""

Input = torch.Tensor | float


def trace(
    function: Callable[..., Any], example: Sequence[Input], other: Sequence[Input]
) -> Program:
    """Return what a function does to its inputs, as a program for a page.

    Parameters
    ----------
    function : callable
        Of tensors and numbers, in torch. It returns a tensor or a tuple of tensors.
    example : sequence of Tensor or float
        Inputs at which it is run. Numbers become inputs of the program, as tensors do; what the
        function knows otherwise becomes constants. Tensors are float64.
    other : sequence of Tensor or float
        Inputs of the same shapes, at which the trace must agree with the function to 1e-12.

    Returns
    -------
    Program

    Raises
    ------
    ValueError
        If the runtime lacks an operation, if random numbers are drawn, if something is not float64,
        or if the trace disagrees with the function: then a number of the example, or a branch that
        it took, has become part of the program.

    Examples
    --------
    >>> one, two = torch.ones(2).double(), torch.tensor([1.0, 3.0]).double()
    >>> program = trace(lambda x, rate: x - rate * x.sum(), [one, 0.5], [two, 0.1])
    >>> program.code
    [['sum', '0', []], ['mul', '1', '2'], ['sub', '0', '3']]
    """
    inputs, others = ([_tensor(x) for x in given] for given in (example, other))
    computed = _results(function, others)  # first: what a function keeps is made outside a trace
    tracer = make_fx(lambda *x: _results(function, x), decomposition_table=_decompositions())
    graph = tracer(*inputs)
    program = write(graph, inputs)
    with torch.no_grad():  # a model's parameters may be written to
        traced = graph(*others)
    _agree(traced, computed)
    return program


@cache
def _decompositions() -> dict:
    """Return how operations that the runtime lacks are made of others."""
    return {**core_aten_decompositions(), **get_decompositions(FURTHER)}


def _tensor(x: Input) -> torch.Tensor:
    """Return an input as a detached tensor in float64."""
    x = torch.as_tensor(x, dtype=torch.float64) if isinstance(x, (int, float)) else x.detach()
    if x.dtype != torch.float64:
        raise ValueError(f"example, other: expected float64, got {x.dtype}; use .double()")
    return x


def _results(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple:
    """Return the results of a function as a tuple; its checks take numbers that are tensors."""
    with _numbers_stay_tensors(), _ReadBeside():
        results = function(*inputs)
    return results if isinstance(results, tuple) else (results,)


class _ReadBeside(TorchDispatchMode):
    """Read a value of a tensor, or compare two, as checks and branches do, without tracing that."""

    READS = (aten._local_scalar_dense.default, aten.equal.default)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func not in self.READS:
            return func(*args, **(kwargs or {}))
        with disable_proxy_modes_tracing():
            return func(*args)


@contextmanager
def _numbers_stay_tensors() -> Iterator[None]:
    """Let the library's checks of numbers return a tensor as it came: as a float, it would be a
    constant of the program.
    """

    def keeping(check: Callable) -> Callable:
        def checked(value: Any, name: str) -> Any:
            number = check(float(value), name)
            return value if isinstance(value, torch.Tensor) else number

        return checked

    with (
        patch.object(_checks, "non_negative", keeping(_checks.non_negative)),
        patch.object(_checks, "positive", keeping(_checks.positive)),
    ):
        yield


def _agree(traced: tuple, computed: tuple) -> None:
    """Refuse a trace that gives other results than its function."""
    for number, (one, two) in enumerate(zip(traced, computed, strict=True)):
        one, two = one.detach().double(), two.detach().double()
        bound = AGREEMENT * float(two.nan_to_num(0, 0, 0).abs().max())
        if not torch.allclose(one, two, rtol=0, atol=bound, equal_nan=True):
            raise ValueError(
                f"result {number}: the trace differs from the function at the other inputs, by "
                f"{float((one - two).abs().max()):.2g}; a number of the example, or a branch that "
                "it took, has become a constant"
            )
