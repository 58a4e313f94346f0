"""Gauss-Newton matrix and Hessian by their products, and estimates of trace and diagonal, against
the matrices.
"""

import math

import pytest
import torch
from torch import nn

from natcompanion import metrics, reference
from natcompanion.likelihoods import Categorical, Gaussian
from natcompanion.metrics import (
    FisherOperator,
    GaussNewtonOperator,
    HessianOperator,
    estimate_diagonal,
    estimate_trace,
)
from tests.test_metrics import NETWORKS, batch, mlp, named, target
from tests.test_operators import agree, matrix_of


class Cauchy:
    """A density whose logarithm is not concave: its Gauss-Newton matrix is indefinite."""

    def nll(self, r, t):
        return (1 + (t - r).square()).log().sum(-1) + r.shape[-1] * math.log(math.pi)


class Tilted:
    """A loss that is linear in r, which has no curvature of its own."""

    def nll(self, r, t):
        return (r * t).sum(-1)


def seeded(k):
    return torch.Generator().manual_seed(k)


def far(n=5, o=3):
    return 3 * torch.randn(n, o, generator=seeded(4), dtype=torch.float64)


@named
@pytest.mark.parametrize(("model", "x"), NETWORKS)
def test_gauss_newton_is_the_fisher_matrix_of_the_standard_likelihoods(model, x, likelihood):
    t = target(likelihood, n=len(x))
    operator = GaussNewtonOperator(model, x, t, likelihood)
    agree(operator, metrics.gauss_newton(model, x, t, likelihood))
    torch.testing.assert_close(matrix_of(operator), metrics.fisher(model, x, likelihood))


def test_gauss_newton_of_ones_own_likelihood_may_be_indefinite():
    model, x, t = mlp(), batch(), far()
    operator = GaussNewtonOperator(model, x, t, Cauchy())
    agree(operator, metrics.gauss_newton(model, x, t, Cauchy()))
    J = reference.jacobian(model, x)
    u = (model(x) - t).detach().square()
    inner = torch.diag_embed(2 * (1 - u) / (1 + u).square())  # the second derivative of the loss
    expected = torch.einsum("nop,noq,nqr->pr", J, inner, J) / len(x)
    agree(operator, expected)
    assert torch.linalg.eigvalsh(expected)[0] < -1e-3  # so that a clamp at 0 would be seen
    assert float((operator.diagonal() < 0).sum())


@named
@pytest.mark.parametrize(("model", "x"), NETWORKS)
def test_hessian_products(model, x, likelihood):
    t = target(likelihood, n=len(x))
    agree(HessianOperator(model, x, t, likelihood), reference.loss_hessian(model, x, t, likelihood))


def test_the_hessian_is_not_the_gauss_newton_matrix():
    model, x, t = mlp(), batch(), far()
    H, G = (
        kind(model, x, t, Gaussian()).dense() for kind in (HessianOperator, GaussNewtonOperator)
    )
    assert (H - G).norm() > 0.1 * H.norm() and torch.linalg.eigvalsh(H)[0] < -1e-2
    deep = nn.Linear(3, 3).double()  # without a curvature of its own they are the same
    same = [kind(deep, x, t, Gaussian()).dense() for kind in (HessianOperator, GaussNewtonOperator)]
    torch.testing.assert_close(*same)


@pytest.mark.parametrize("kind", [GaussNewtonOperator, HessianOperator])
def test_a_loss_that_is_linear_in_the_outputs(kind):
    model, x, t = mlp(), batch(), far()
    hessian = reference.loss_hessian(model, x, t, Tilted())
    expected = hessian if kind is HessianOperator else torch.zeros_like(hessian)
    agree(kind(model, x, t, Tilted()), expected)
    assert hessian.norm() > 0.1  # the layers are curved, but not the loss
    agree(kind(nn.Linear(3, 3).double(), x, t, Tilted()), torch.zeros(12, 12).double())


@named
@pytest.mark.parametrize("kind", [GaussNewtonOperator, HessianOperator])
def test_batches_damping_parts_and_selected_outputs(kind, likelihood):
    model, x, t = mlp(), batch(7), target(likelihood, n=7)
    whole = kind(model, x, t, likelihood).dense()
    pairs = [(x[:4], t[:4]), (x[4:6], t[4:6]), (x[6:], t[6:])]
    agree(kind(model, pairs, None, likelihood), whole)
    operator = kind(model, x, t, likelihood, damping=0.3)
    agree(operator, whole + 0.3 * torch.eye(31, dtype=torch.float64))
    part = kind(model, x, t, likelihood, parameters=["0.weight"])
    agree(part, whole[:12, :12])

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x):
            return {"logits": self.net(x)}

    agree(kind(Wrapped(), x, t, likelihood, output=lambda found: found["logits"]), whole)
    v = torch.randn(31, generator=seeded(1), dtype=torch.float64)
    scipy = torch.from_numpy(kind(model, pairs, None, likelihood).to_scipy() @ v.numpy())
    torch.testing.assert_close(scipy, whole @ v)


@pytest.mark.parametrize("kind", [GaussNewtonOperator, HessianOperator])
def test_positions_and_products_again(kind):
    """The graph of one batch is kept, and gives the same product each time."""
    model = mlp()
    x = torch.randn(4, 2, 3, generator=seeded(2), dtype=torch.float64)
    t = torch.randint(3, (4, 2), generator=seeded(3))
    operator = kind(model, x, t, Categorical())
    flat = kind(model, x.flatten(0, 1), t.flatten(), Categorical())
    v = torch.randn(31, generator=seeded(1), dtype=torch.float64)
    first = operator @ v
    torch.testing.assert_close(first, 2 * (flat @ v))  # a sum over the positions of an example
    assert torch.equal(operator @ v, first)
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        model[0].weight.add_(1.0)
    with pytest.raises(ValueError, match="parameters changed"):
        operator @ v


def test_what_will_not_do_is_named():
    model, x, t = mlp(), batch(), target(Categorical())
    for kind in (GaussNewtonOperator, HessianOperator):
        with pytest.raises(ValueError, match="t: expected targets"):
            kind(model, x, None, Categorical())
        with pytest.raises(ValueError, match="targets"):
            kind(model, x, torch.full((5, 3), torch.nan).double(), Gaussian())
        for pair in ((x, t), [x, t]):
            with pytest.raises(ValueError, match="of two tensors"):
                kind(model, pair, None, Categorical())
    with metrics.dense_limit(1e-9):
        operator = HessianOperator(model, x, t, Categorical())
        for call in (operator.dense, operator.diagonal):
            with pytest.raises(ValueError, match="estimate_diagonal"):
                call()
    bent = nn.Sequential(nn.Linear(3, 4), nn.Hardsigmoid(), nn.Linear(4, 3)).double()
    operator = HessianOperator(bent, x, t, Categorical())
    with pytest.raises(ValueError, match="second derivative.*GaussNewtonOperator"):
        operator @ torch.ones(31, dtype=torch.float64)
    expected = metrics.fisher(bent, x, Categorical())
    torch.testing.assert_close(GaussNewtonOperator(bent, x, t, Categorical()).dense(), expected)


# ---- Estimates


def symmetric(P=12):
    A = torch.randn(P, P, generator=seeded(0), dtype=torch.float64)
    return A + A.mT


def test_estimates_and_their_errors_by_counting():
    """Over many estimates: the mean is the right value, and the error the deviation from it."""
    A, m, repeats = symmetric(), 20, 400
    off = A - A.diagonal().diag()
    for estimate, right, variance in (
        (estimate_trace, A.trace(), 2 * off.square().sum() / m),
        (estimate_diagonal, A.diagonal(), off.square().sum(1) / m),
    ):
        found = [estimate(A, m, generator=seeded(k)) for k in range(repeats)]
        values = torch.stack([f.value for f in found])
        errors = torch.stack([f.error for f in found])
        deviation = variance.sqrt()
        assert ((values.mean(0) - right).abs() < 5 * deviation / repeats**0.5).all()
        torch.testing.assert_close(values.std(0), deviation, rtol=0.2, atol=0)
        torch.testing.assert_close(errors.square().mean(0).sqrt(), deviation, rtol=0.2, atol=0)


def test_signs_are_exact_on_a_diagonal_matrix():
    """Normal numbers would not be."""
    D = torch.arange(1.0, 6.0).diag()
    for value, error in (estimate_trace(D, 2), estimate_diagonal(D, 2)):
        assert float(error.sum()) == 0
        assert torch.equal(value, D.trace() if value.ndim == 0 else D.diagonal())


def test_estimates_of_an_operator():
    model, x = mlp(), batch()
    operator = FisherOperator(model, x, Categorical(), damping=0.1)
    trace = estimate_trace(operator, 300, generator=seeded(1))
    diagonal = estimate_diagonal(operator, 300, generator=seeded(1))
    exact = operator.diagonal()
    assert (trace.value - exact.sum()).abs() < 5 * trace.error
    assert ((diagonal.value - exact).abs() < 5 * diagonal.error).all()
    assert diagonal.value.dtype == torch.float64
    again = estimate_trace(operator, 300, generator=seeded(1))
    assert torch.equal(again.value, trace.value)


def test_estimates_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match="square matrix"):
        estimate_trace(torch.ones(2, 3))
    for samples in (1, 2.5):
        with pytest.raises(ValueError, match="samples: expected an integer >= 2"):
            estimate_diagonal(torch.eye(2), samples)
