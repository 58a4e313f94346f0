"""Simplified metrics, the condition number, and metrics of per-example gradients."""

import math

import pytest
import torch

from natcompanion.metrics import (
    block_diagonal,
    condition_number,
    diagonal,
    energy_metric,
    gradient_second_moment,
)

G = torch.arange(16.0, dtype=torch.float64).reshape(4, 4)
G = G + G.mT


def test_diagonal_keeps_only_the_diagonal():
    assert diagonal(G).tolist() == [
        [2 * 5.0 * i if i == j else 0.0 for j in range(4)] for i in range(4)
    ]


def test_block_diagonal_keeps_only_the_blocks():
    got = block_diagonal(G, [1, 2, 1])
    block = [0, 1, 1, 2]
    for i in range(4):
        for j in range(4):
            assert got[i, j] == (G[i, j] if block[i] == block[j] else 0)
    assert torch.equal(block_diagonal(G, [4]), G)
    assert torch.equal(block_diagonal(G, (1, 1, 1, 1)), diagonal(G))
    assert not torch.equal(block_diagonal(G, [2, 2]), got)


@pytest.mark.parametrize("sizes", [[], [1, 2], [5], [2, 0, 2], [-1, 5], [2.0, 2.0], [1, 1, 1, 2]])
def test_block_sizes_must_fill_the_matrix(sizes):
    with pytest.raises(ValueError, match="sizes: expected positive integers with sum 4"):
        block_diagonal(G, sizes)


def test_condition_number_case(cases):
    case = cases("whitening")["g2d_fisher"]["expected"]
    metric = torch.tensor(case["G"], dtype=torch.float64)
    assert condition_number(metric) == pytest.approx(case["cond"], rel=1e-8)
    assert 2 / torch.linalg.eigvalsh(metric)[-1].item() == pytest.approx(
        case["lr_max_steepest"], rel=1e-8
    )


def test_condition_number_leaves_out_what_rtol_says():
    metric = torch.diag(torch.tensor([1e-6, 1e-3, 1.0, 10.0], dtype=torch.float64))
    assert condition_number(metric) == pytest.approx(1e7)
    assert condition_number(metric, rtol=1e-5) == pytest.approx(1e4)
    assert condition_number(metric, rtol=0.01) == pytest.approx(10)
    assert condition_number(metric, rtol=0.5) == 1.0
    # Negative control: the cut is relative to the largest eigenvalue, not absolute.
    assert condition_number(100 * metric, rtol=1e-5) == pytest.approx(1e4)


def test_condition_number_of_a_singular_metric():
    a = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    singular = a @ a.mT  # its smallest eigenvalues are rounding, not exact zeros
    values = torch.linalg.eigvalsh(a.mT @ a)
    assert condition_number(singular) == math.inf
    assert condition_number(singular, rtol=1e-10) == pytest.approx(float(values[-1] / values[0]))
    assert condition_number(singular.float()) == math.inf
    assert condition_number(torch.zeros(2, 2)) == math.inf
    assert condition_number(torch.zeros(2, 2), rtol=0.5) == math.inf
    assert condition_number(torch.tensor([[3.0]])) == 1.0


@pytest.mark.parametrize("function", [diagonal, lambda G: block_diagonal(G, [2]), condition_number])
def test_refuses_what_is_no_metric(function):
    for bad in (
        torch.full((2, 2), float("nan")),
        torch.zeros(0, 0),
        torch.ones(2),
        torch.ones(2, 3),
        torch.eye(2).long(),
    ):
        with pytest.raises(ValueError, match="G: expected"):
            function(bad)
    for dtype in (torch.float16, torch.bfloat16):
        result = function(torch.eye(2, dtype=dtype))
        assert result == 1.0 if isinstance(result, float) else result.dtype == dtype


def test_condition_number_refuses_bad_input():
    with pytest.raises(ValueError, match="symmetric"):
        condition_number(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="eigenvalue -1"):
        condition_number(torch.diag(torch.tensor([1.0, -1.0])))
    for rtol in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="rtol"):
            condition_number(torch.eye(2), rtol=rtol)


# ---- per-example gradients


def energy(params, x):
    """A small energy of any kind: a layer, a matrix and a bias."""
    hidden = torch.tanh(params["W"] @ x + params["b"])
    return (hidden * params["a"]).sum() + 0.5 * params["b"] @ params["b"]


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {"W": normal(3, 2), "b": normal(3), "a": normal(3)}, normal(7, 2)


def one_by_one(params, x):
    """Per-example gradients by a loop of autograd."""
    rows = []
    for x_i in x:
        leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
        grads = torch.autograd.grad(energy(leaves, x_i), list(leaves.values()))
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return torch.stack(rows)


def test_energy_metric_against_a_loop():
    params, x = problem()
    g = one_by_one(params, x)
    torch.testing.assert_close(
        energy_metric(energy, params, x), g.mT @ g / 7, rtol=1e-12, atol=1e-12
    )
    centred = torch.cov(g.mT, correction=0)
    torch.testing.assert_close(
        energy_metric(energy, params, x, centred=True), centred, rtol=1e-12, atol=1e-12
    )
    # Negative controls: the square of the mean gradient, and the divisor n - 1.
    assert not torch.allclose(
        energy_metric(energy, params, x), torch.outer(g.mean(0), g.mean(0)), rtol=1e-2
    )
    assert not torch.allclose(
        energy_metric(energy, params, x, centred=True), torch.cov(g.mT), rtol=1e-2
    )


def test_parameters_may_be_a_tensor_a_tuple_or_a_dict_in_any_order():
    params, x = problem()
    expected = energy_metric(energy, params, x)
    by_tuple = energy_metric(
        lambda p, x: energy(dict(zip("Wba", p, strict=True)), x), tuple(params.values()), x
    )
    torch.testing.assert_close(by_tuple, expected)

    def flat(theta, x):
        return energy({"W": theta[:6].reshape(3, 2), "b": theta[6:9], "a": theta[9:]}, x)

    theta = torch.cat([p.reshape(-1) for p in params.values()])
    torch.testing.assert_close(energy_metric(flat, theta, x), expected)
    reordered = energy_metric(energy, {name: params[name] for name in ("a", "W", "b")}, x)
    order = [*range(9, 12), *range(9)]
    torch.testing.assert_close(reordered, expected[order][:, order])


def test_function_of_inputs_and_integer_labels():
    theta, labels = torch.tensor([0.3, -0.2]), torch.tensor([0, 2, 1])

    def nll(theta, x, t):
        return torch.nn.functional.cross_entropy(torch.stack([theta[0] * x, theta[1] * x, x]), t)

    got = gradient_second_moment(nll, theta, torch.tensor([1.0, 2.0, 3.0]), labels)
    assert got.shape == (2, 2)
    assert not torch.allclose(
        got, gradient_second_moment(nll, theta, torch.tensor([1.0, 2.0, 3.0]), labels.flip(0))
    )


def test_the_result_is_detached_and_keeps_the_dtype():
    params, x = problem(torch.float32)
    params = {name: p.requires_grad_() for name, p in params.items()}
    got = energy_metric(energy, params, x)
    assert got.dtype == torch.float32
    assert not got.requires_grad
    half, x = problem(torch.bfloat16)
    assert energy_metric(energy, half, x).dtype == torch.bfloat16


def test_energy_metric_refuses_bad_input():
    params, x = problem()
    for bad in (x * float("nan"), x[:0], torch.tensor(1.0)):
        with pytest.raises(ValueError, match="data: expected"):
            energy_metric(energy, params, bad)
    for bad in (
        {},
        {**params, "b": params["b"] * float("nan")},
        {**params, "a": torch.ones(3).long()},
    ):
        with pytest.raises(ValueError, match="params: expected"):
            energy_metric(energy, bad, x)
    with pytest.raises(ValueError, match="one batch size"):
        gradient_second_moment(energy, params, x, x[:3])
    with pytest.raises(ValueError, match="one batch size"):
        gradient_second_moment(energy, params)
