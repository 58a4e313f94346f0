"""The validation helpers say what was expected, what came and what to do."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from natcompanion import _checks as check


def test_good_input_comes_back():
    x = torch.eye(2)
    assert check.floating(x, "x") is x
    assert check.matrix(x, "x") is x
    assert check.square(x, "x") is x
    assert torch.equal(check.symmetric(x, "x"), x)
    assert check.non_negative(0, "eps") == 0.0
    assert check.positive(2, "lr") == 2.0


@pytest.mark.parametrize("name", ["Embedding", "LSTM", "RNN", "ELU", "InstanceNorm1d"])
def test_an_article_before_a_vowel(name):
    assert check.kind(type(name, (), {})()) == f"an {name}"


@pytest.mark.parametrize("name", ["Linear", "GRU", "UNet", "UpBlock", "ReLU", "MultiheadAttention"])
def test_an_article_before_a_consonant(name):
    assert check.kind(type(name, (), {})()) == f"a {name}"


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0], "x: expected a torch.Tensor, got list; wrap it"),
        (torch.ones(2, dtype=torch.int32), "got torch.int32; convert it"),
        (torch.ones(2, 0), r"got an empty tensor of shape \(2, 0\)"),
        (
            torch.tensor([1.0, float("nan"), float("inf")]),
            "got 2 NaN or infinite of 3; remove them",
        ),
    ],
)
def test_floating(x, message):
    with pytest.raises(ValueError, match=message):
        check.floating(x, "x")


def test_shapes():
    with pytest.raises(
        ValueError, match=r"x: expected a matrix \(two dimensions\), got shape \(3,\)"
    ):
        check.matrix(torch.ones(3), "x")
    with pytest.raises(ValueError, match=r"x: expected a square matrix, got shape \(3, 2\)"):
        check.square(torch.ones(3, 2), "x")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_symmetric_forgives_rounding_only(dtype):
    x = torch.ones(3, 3, dtype=dtype)
    x[0, 1] += torch.finfo(dtype).eps
    got = check.symmetric(x, "x")
    assert torch.equal(got, got.mT)
    x[0, 1] = -1
    with pytest.raises(ValueError, match="differs from its transpose by 2"):
        check.symmetric(x, "x")
    assert torch.equal(
        check.symmetric(torch.zeros(2, 2, dtype=dtype), "x"), torch.zeros(2, 2, dtype=dtype)
    )


@pytest.mark.parametrize(
    "value", [-1.0, float("nan"), np.float32("inf"), "1", None, True, 1j, torch.ones(2)]
)
def test_numbers(value):
    with pytest.raises(ValueError, match="eps: expected a finite number >= 0"):
        check.non_negative(value, "eps")
    with pytest.raises(ValueError, match="lr: expected a finite number > 0"):
        check.positive(value, "lr")
    with pytest.raises(ValueError, match="> 0, got 0"):
        check.positive(0, "lr")


def test_real_numbers_of_any_kind_become_floats():
    for value in (1, 1.0, np.float32(1), np.float16(1), np.int64(1), Fraction(1)):
        for found in (check.non_negative(value, "eps"), check.positive(value, "lr")):
            assert found == 1.0 and type(found) is float


def test_unit():
    x = torch.tensor([0.0, 0.5, 1.0])
    assert check.unit(x, "v") is x
    for bad in (-x, 2 * x):
        with pytest.raises(
            ValueError, match=r"v: expected values in \[0, 1\], got minimum .* and maximum"
        ):
            check.unit(bad, "v")
    with pytest.raises(ValueError, match="v: expected finite numbers"):
        check.unit(x / 0, "v")


@pytest.mark.parametrize("value", [0, -1, 6, True, 2.0, "2", None, float("nan"), torch.tensor(2)])
def test_whole_refuses_what_is_no_integer_in_its_range(value):
    with pytest.raises(ValueError, match="n: expected an integer from 1 to 5, got"):
        check.whole(value, "n", 1, 5)


def test_whole_takes_integers_of_numpy_and_returns_an_int():
    assert [check.whole(value, "n", 0, 5) for value in (0, 5, np.int64(3))] == [0, 5, 3]
    assert type(check.whole(np.int8(3), "n")) is int
    with pytest.raises(ValueError, match="n: expected an integer >= 1, got 0"):
        check.whole(0, "n")


def test_semidefinite_eigh():
    values, vectors = check.semidefinite_eigh(
        torch.diag(torch.tensor([2.0, -1e-7, 1.0])), "G", torch.float64
    )
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert vectors.shape == (3, 3)
    for smallest in (-1e-5, -1.0):
        with pytest.raises(
            ValueError,
            match=f"G: expected a positive semi-definite matrix, got the eigenvalue {smallest:.3g}",
        ):
            check.semidefinite_eigh(torch.diag(torch.tensor([1.0, smallest])), "G", torch.float64)
    with pytest.raises(ValueError, match="eigenvalue -1"):
        check.semidefinite_eigh(torch.tensor([[-1.0]]), "G", torch.float64)


def test_independent_looks_at_correlations():
    units = torch.tensor([1.0, 1e-9, 1e9], dtype=torch.float64)
    correlations = torch.eye(3, dtype=torch.float64)
    correlations[0, 1] = correlations[1, 0] = 0.9
    check.independent(units[:, None] * correlations * units, "G", torch.float64)
    correlations[0, 1] = correlations[1, 0] = 1.0
    with pytest.raises(ValueError, match="G: expected a matrix of full rank.*rank 2 of 3"):
        check.independent(units[:, None] * correlations * units, "G", torch.float64)


def test_full_rank():
    check.full_rank(torch.tensor([1e-3, 1.0]), "G", torch.float32)
    with pytest.raises(
        ValueError, match="G: expected a matrix of full rank, got numerical rank 1 of 2"
    ):
        check.full_rank(torch.tensor([1e-8, 1.0]), "G", torch.float32)
    check.full_rank(torch.tensor([1e-8, 1.0], dtype=torch.float64), "G", torch.float64)
