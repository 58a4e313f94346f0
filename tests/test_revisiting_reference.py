"""Algorithm 1 of the revisiting paper in its own letters against the library's fast code."""

import pytest
import torch
from torch import nn

from natcompanion import metrics, reference
from natcompanion.damping import LevenbergMarquardt
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian
from natcompanion.optim import NaturalGradient
from natcompanion.reference import revisiting
from natcompanion.solvers import conjugate_gradient

each = pytest.mark.parametrize("likelihood", [Gaussian(0.5), Bernoulli(), Categorical()], ids=repr)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def batch(likelihood, n: int = 12, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, r = torch.randn(2, n, 3, generator=generator, dtype=torch.float64)
    return x, likelihood.sample(r, generator=generator)


@each
def test_metric_and_product_are_the_librarys(likelihood):
    model, (x, _) = network(), batch(likelihood)
    v = torch.randn(31, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    G = metrics.fisher(model, x, likelihood)
    torch.testing.assert_close(revisiting.metric(model, x, likelihood), G, rtol=1e-12, atol=1e-13)
    product = revisiting.gfn(model, x, likelihood, v)
    torch.testing.assert_close(product, G @ v, rtol=1e-12, atol=1e-12)
    assert float((product - G.diagonal() * v).norm() / product.norm()) > 0.1


def test_the_printed_square_of_beta_is_another_matrix():
    model, (x, _) = network(), batch(Gaussian(0.5))
    J = revisiting.output_jacobian(model, x, Gaussian(0.5))
    printed = 0.5**2 * torch.einsum("nop,noq->pq", J, J) / len(x)
    G = revisiting.metric(model, x, Gaussian(0.5))
    assert float(G.norm() / printed.norm()) == pytest.approx(16)


def test_an_unknown_likelihood_is_refused():
    with pytest.raises(ValueError, match="expected Gaussian"):
        revisiting.inner_weight(nn.Identity(), torch.ones(1))


def test_linear_cg_solves_in_as_many_steps_as_there_are_eigenvalues():
    A = torch.diag(torch.tensor([1.0, 4.0, 9.0, 9.0])).double()
    b = torch.tensor([2.0, 3.0, 5.0, 7.0]).double()
    three = revisiting.linear_cg(lambda v: A @ v, b, max_iters=3, rtol=1e-14)
    torch.testing.assert_close(A @ three, b, rtol=1e-12, atol=1e-12)
    two = revisiting.linear_cg(lambda v: A @ v, b, max_iters=2)
    assert float((A @ two - b).norm()) > 0.01
    torch.testing.assert_close(two, conjugate_gradient(A, b, max_iter=2).x, rtol=1e-12, atol=1e-12)


def test_linear_cg_stops_at_its_tolerance():
    """Of a graded system, a rough answer takes fewer products than a good one."""
    A, b = torch.logspace(0, 3, 20).double().diag(), torch.ones(20).double()
    counts = []
    for rtol in (0.5, 1e-4):
        taken: list[int] = []
        x = revisiting.linear_cg(lambda v, taken=taken: taken.append(1) or A @ v, b, 200, rtol)
        assert float((A @ x - b).norm()) <= rtol * float(b.norm()) * (1 + 1e-9)
        counts.append(len(taken))
    assert counts[0] < counts[1] < 200
    taken = []
    revisiting.linear_cg(lambda v: taken.append(1) or A @ v, b)
    assert len(taken) == 20


@each
def test_the_algorithm_takes_the_path_of_the_library(likelihood):
    batches = [batch(likelihood, seed=seed) for seed in range(5)]
    γ, λ = 0.5, 0.3
    printed, fast = network(), network()
    revisiting.natural_gradient(printed, batches, likelihood, γ, λ)
    optimizer = NaturalGradient(fast, likelihood, γ, damping=λ, solver=conjugate_gradient)
    for x, t in batches:
        optimizer.step(x, t)
    θ, same = reference.parameter_vector(printed), reference.parameter_vector(fast)
    torch.testing.assert_close(θ, same, rtol=1e-9, atol=1e-9)
    other = network()
    revisiting.natural_gradient(other, batches, likelihood, γ, 0.2)
    assert float((reference.parameter_vector(other) - θ).norm() / θ.norm()) > 0.01


def test_without_damping_the_algorithm_is_the_printed_one():
    """One step on one example: the metric has rank 2, and CG ends after two products."""
    model, (x, t) = network(), batch(Categorical(), n=1)
    g = reference.gradients(model, x, t, Categorical())[0]
    natural = torch.linalg.pinv(metrics.fisher(model, x, Categorical()), rtol=1e-9) @ g
    before = reference.parameter_vector(model)
    revisiting.natural_gradient(model, [(x, t)], Categorical(), 0.1)
    moved = reference.parameter_vector(model) - before
    torch.testing.assert_close(moved, -0.1 * natural, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("actual", [0.24, 0.26, 0.74, 0.76, -1.0, 2.0])
def test_levenberg_marquardt_is_the_librarys(actual):
    """The loss falls by ``actual`` times what the slope predicts."""
    θ, g, ng = (torch.tensor(v).double() for v in ([1.0, 2.0], [0.5, -1.0], [2.0, -3.0]))
    η, λ = 0.1, 0.8

    def f(at: torch.Tensor) -> torch.Tensor:
        return actual * float(g @ ng) * η * ((at - θ) @ -ng) / (η * (ng @ ng)) * -1

    rule = LevenbergMarquardt(λ)
    found = revisiting.levenberg_marquardt(f, θ, g, ng, η, λ)
    assert float(found) == pytest.approx(rule.update(actual))
    assert (found != λ) == (not 0.25 <= actual <= 0.75)
