"""What does not fit into memory, or is of a kind that cannot be taken, is refused in words."""

import pytest
import torch
from torch import nn

from natcompanion import boltzmann, relative
from natcompanion.layers import WhitenedLinear
from natcompanion.layers.coordinates import whitening_pair
from natcompanion.likelihoods import Gaussian
from natcompanion.metrics import (
    dense_limit,
    energy_metric,
    gradient_second_moment,
    per_example_gradients,
)
from natcompanion.optim import MirrorDescent, RelativeGradient
from natcompanion.solvers import conjugate_gradient, minres, minres_qlp

SOLVERS = pytest.mark.parametrize("solver", [conjugate_gradient, minres, minres_qlp])
MACHINE, V = boltzmann.RBM(torch.ones(8, 4), torch.ones(8), torch.ones(4)), torch.eye(8)
W, C, X = torch.ones(20, 11), torch.ones(3, 20), torch.randn(5, 10)


def linear(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (w * x).sum()


DENSE = {
    "layer_rfim": lambda: relative.layer_rfim(W, X, "tanh"),
    "layer_rfim of many": lambda: relative.layer_rfim(W, torch.ones(400, 10), "tanh"),
    "softmax_rfim": lambda: relative.softmax_rfim(W, X),
    "two_layer_rfim": lambda: relative.two_layer_rfim(W, C, X, "tanh"),
    "conditional_covariance": lambda: boltzmann.conditional_covariance(MACHINE, V),
    "log_likelihood_hessian": lambda: boltzmann.log_likelihood_hessian(MACHINE, V),
    "marginal_fisher": lambda: boltzmann.marginal_fisher(MACHINE),
    "ExactFisherOperator.dense": lambda: boltzmann.ExactFisherOperator(MACHINE).dense(),
    "SampledFisherOperator.dense": lambda: boltzmann.SampledFisherOperator(V, V[:, :4]).dense(),
    "principal_inputs": lambda: relative.principal_inputs(torch.eye(40))[0],
    "energy_metric": lambda: energy_metric(linear, torch.ones(60), torch.ones(4, 60)),
    "gradient_second_moment": lambda: gradient_second_moment(
        linear, torch.ones(60), torch.ones(4, 60)
    ),
    "per_example_gradients": lambda: per_example_gradients(
        nn.Linear(10, 20), torch.ones(40, 10), torch.ones(40, 20), Gaussian()
    ),
}


@pytest.mark.parametrize("compute", DENSE.values(), ids=DENSE)
def test_results_beyond_the_limit_are_refused_before_they_are_made(compute):
    with dense_limit(8e3 / 2**30), pytest.raises(ValueError, match="need.*GiB.*dense_limit"):
        compute()
    assert compute().isfinite().all()  # the control: they fit by default


@SOLVERS
def test_a_function_is_no_matrix_but_an_object_around_it_is(solver):
    class Twice:
        dtype, shape = torch.float32, (3, 3)

        def __matmul__(self, v: torch.Tensor) -> torch.Tensor:
            return 2 * v

    b = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="an object with @, got function.*__matmul__"):
        solver(lambda v: 2 * v, b)
    torch.testing.assert_close(solver(Twice(), b).x, b / 2)


@SOLVERS
def test_complex_and_sparse_systems_are_refused_without_bad_advice(solver):
    A, b = torch.eye(3), torch.ones(3)
    for system in ((A, b + 1j), (A + 1j, b)):
        with pytest.raises(ValueError, match="complex64; give the real system"):
            solver(*system)
    for system in ((A.to_sparse(), b), (A, b.to_sparse())):
        with pytest.raises(ValueError, match=r"expected a dense tensor.*to_dense\(\)"):
            solver(*system)
    assert solver(A, b).converged  # the control


@pytest.mark.parametrize("kind", ["pca", "zca"])
@pytest.mark.parametrize("units", [1e-8, 1e-30])
def test_units_are_not_rank_in_whitened_coordinates(kind, units):
    scale = torch.tensor([1.0, units, 3.0], dtype=torch.float64)
    R = torch.tensor([[1.0, 0.5, 0.2], [0.5, 1.0, -0.3], [0.2, -0.3, 1.0]], dtype=torch.float64)
    cov = scale[:, None] * R * scale
    U, inverse = whitening_pair(cov, 0.0, kind)
    eye = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(U @ cov @ U.mT, eye, rtol=0, atol=1e-9)
    torch.testing.assert_close(inverse @ inverse.mT / scale[:, None] / scale, R, rtol=1e-9, atol=0)
    layer = WhitenedLinear(3, 2).double()
    x = torch.randn(4, 3, dtype=torch.float64) * scale
    before = layer(x).detach()
    layer.rewhiten(torch.zeros(3, dtype=torch.float64), cov, 0.0)
    torch.testing.assert_close(layer(x).detach(), before, rtol=1e-9, atol=1e-9)
    R[1] = R[:, 1] = R[0]  # the control: what is singular in any units
    R[1, 1] = 1.0
    with pytest.raises(ValueError, match="rank 2 of 3"):
        whitening_pair(scale[:, None] * R * scale, 0.0, kind)


@pytest.mark.parametrize("kind", [MirrorDescent, RelativeGradient])
def test_sparse_gradients_give_the_steps_of_dense_ones(kind):
    paths, potential = [], [torch.eye(9) + 0.5] if kind is MirrorDescent else []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(3, 3, sparse=sparse)
        optimizer = kind(model.parameters(), *potential, lr=0.1, momentum=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor([0, 2, 2])).square().sum().backward()
            assert model.weight.grad.is_sparse == sparse
            optimizer.step()
        paths.append(model.weight.detach())
    assert torch.equal(*paths)
