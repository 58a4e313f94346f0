"""Tracing a function for a page: what is folded, dropped, merged and refused."""

import json

import pytest
import torch

from natcompanion import solvers
from natcompanion.chapters.page import trace


def vectors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor([value, value + 1], dtype=torch.float64) for value in values]


def traced(function, one=(1.0,), two=(3.0,)):
    return trace(function, vectors(*one), vectors(*two))


def test_a_program_is_short_and_can_be_read():
    program = traced(lambda x: (x * 2 + torch.eye(2, dtype=torch.float64)).exp())
    assert json.loads(program.json()) == {
        "inputs": [[2]],
        "constants": [[[2, 2], [1, 0, 0, 1]]],
        "code": [["mul", "0", 2], ["add", "2", "1"], ["exp", "3"]],
        "outputs": ["4"],
    }


def test_what_no_result_needs_is_dropped():
    def function(x):
        torch.special.i0(x).sum().item()  # a check, in an operation that no page has
        return x * 2

    assert traced(function).code == [["mul", "0", 2]]


def test_tensors_are_compared_beside_the_trace():
    def function(x):
        assert not torch.equal(x, x + 1)
        return x * 2

    assert traced(function).code == [["mul", "0", 2]]


def test_what_is_computed_twice_stands_once():
    program = traced(lambda x: (x.exp() * 3, x.exp() * 3 + 1))
    assert program.code == [["exp", "0"], ["mul", "1", 3], ["add", "2", 1]]
    assert program.outputs == ["2", "3"]


def test_what_is_changed_between_is_not_merged():
    def function(x):
        y = x * 1
        first = y.exp()
        y.add_(1)
        return first, y.exp()

    names = [line[0] for line in traced(function).code]
    assert names.count("exp") == 2


def test_memory_that_inputs_reach_is_made_anew():
    def function(x):
        kept = torch.zeros(2, dtype=torch.float64)
        kept.add_(x)
        return kept

    program = traced(function)
    assert [line[0] for line in program.code] == ["clone", "add", "copy_"]
    assert program.constants == [[[2], [0, 0]]]


def test_a_number_is_an_input():
    G = torch.eye(2, dtype=torch.float64)
    program = trace(
        lambda g, damping: solvers.damped_solve(G, g, damping),
        [*vectors(1.0), 0.1],
        [*vectors(2.0), 0.3],
    )
    assert program.inputs == [[2], []]
    assert {"solve", "mul", "add"} <= program.operations


def test_a_large_constant_is_short_where_it_repeats():
    rows = torch.arange(50.0, dtype=torch.float64).expand(40, 50).contiguous()
    ones = torch.ones(30, 40, 50, dtype=torch.float64)
    program = traced(lambda x: x.sum() * rows + x.sum() * ones)
    assert program.constants == [[[1, 50], list(range(50))], [[1, 1, 1], [1]]]
    assert ["expand", "1", [40, 50]] in program.code


REFUSED = {
    "an operation": (
        lambda x: torch.special.i0(x),
        r"aten\.special_?i0|aten\.i0.*no such operation",
    ),
    "an argument": (lambda x: torch.div(x, 2, rounding_mode="floor"), r"aten\.div\.Tensor_mode"),
    "chance": (lambda x: x * torch.rand(2, dtype=torch.float64), r"aten\.rand\.default: random"),
    "another dtype": (lambda x: x.float() * 2, r"expected float64, got torch\.float32"),
    "a mask": (lambda x: x.index_put((x > 2,), x[0]), r"aten\.index_put\.default: a mask"),
    "a value that was read": (lambda x: x * float(x.sum()), "the trace differs from the function"),
    "a branch": (lambda x: x * 2 if x.sum() > 4 else x * 3, "the trace differs from the function"),
    "a full decomposition": (
        lambda x: torch.linalg.svd(x.reshape(2, 1) * 1)[0].abs(),
        r"aten\._linalg_svd\.default: expected full_matrices=False",
    ),
    "a result": (
        lambda x: torch.linalg.solve_ex(torch.diag_embed(x), x)[1] + 0.5 * x.sum(),
        r"aten\._linalg_solve_ex\.default: the runtime does not compute its result 3",
    ),
    "a side": (
        lambda x: torch.linalg.solve(torch.diag_embed(x), torch.diag_embed(x), left=False),
        r"aten\._linalg_solve_ex\.default: the runtime heeds 2 arguments, got 3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_page_cannot_run_is_refused_by_name(name):
    function, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        traced(function)


def test_inputs_are_float64():
    with pytest.raises(ValueError, match=r"expected float64, got torch\.float32"):
        trace(lambda x: x * 2, [torch.ones(2)], [torch.ones(2)])
