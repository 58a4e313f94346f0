"""Hessian-Free and Krylov Subspace Descent: both are natural-gradient methods (Section 7)."""

import itertools
import math

import pytest
import torch

from natcompanion import metrics, reference
from natcompanion.damping import LevenbergMarquardt
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian
from natcompanion.metrics import FisherOperator, GaussNewtonOperator
from natcompanion.optim import TONGA, HessianFree, KrylovSubspaceDescent, NaturalGradient
from natcompanion.optim.krylov import krylov_basis
from natcompanion.solvers import Reason, conjugate_gradient
from tests.test_natural_gradient import batch, mean_gradient, mlp, named, trajectory, vector


def path(make, likelihood, steps=6):
    model = mlp()
    optimizer = make(model)
    for seed in range(steps):
        optimizer.step(*batch(likelihood, seed=seed))
    return vector(model)


@named
def test_gauss_newton_products_are_fisher_products(likelihood):
    model, (x, t) = mlp(), batch(likelihood)
    operator = GaussNewtonOperator(model, x, t, likelihood)
    dense = torch.stack(
        [operator @ e for e in torch.eye(operator.shape[0], dtype=torch.float64)], 1
    )
    torch.testing.assert_close(
        dense, metrics.gauss_newton(model, x, t, likelihood), rtol=1e-12, atol=1e-14
    )
    torch.testing.assert_close(
        dense, reference.fisher(model, x, likelihood), rtol=1e-12, atol=1e-14
    )
    H = reference.loss_hessian(model, x, t, likelihood)
    assert float((dense - H).norm() / H.norm()) > 0.01  # negative control: not the Hessian itself


@named
def test_hessian_free_takes_the_path_of_the_natural_gradient(likelihood):
    """Section 7: with the same solver and damping rule the two are one algorithm; with the
    covariance they are not.
    """
    rule = {"solver": conjugate_gradient, "prediction": "quadratic", "warm_start": 0.95}
    free = path(lambda model: HessianFree(model, likelihood), likelihood)
    natural = path(
        lambda model: NaturalGradient(
            model, likelihood, 1.0, damping=LevenbergMarquardt(1.0), **rule
        ),
        likelihood,
    )
    covariance = path(
        lambda model: TONGA(model, likelihood, 1.0, damping=LevenbergMarquardt(1.0), **rule),
        likelihood,
    )
    torch.testing.assert_close(free, natural, rtol=1e-6, atol=1e-7)
    assert float((free - covariance).norm()) > 0.01


def test_hessian_free_defaults_and_refusals():
    model, (x, t) = mlp(), batch(Categorical())
    assert (
        HessianFree(model, Categorical()).damping is not HessianFree(model, Categorical()).damping
    )
    assert HessianFree(model, Categorical(), damping=0.5).damping == 0.5
    with pytest.raises(ValueError, match="metric: HessianFree has its own"):
        HessianFree(model, Categorical(), metric=FisherOperator)
    with pytest.raises(
        ValueError, match="metric_inputs: HessianFree takes its matrix from the batch"
    ):
        HessianFree(model, Categorical()).step(x, t, metric_inputs=x)


def test_krylov_basis():
    """Orthonormal, spans the powers, and stops where the space is invariant."""
    model, (x, t) = mlp(), batch(Categorical())
    g, A = mean_gradient(model, x, t, Categorical()), FisherOperator(model, x, Categorical())
    extra = torch.randn(len(g), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    B = krylov_basis(A, g, 4, extra)
    assert B.shape == (len(g), 5)
    torch.testing.assert_close(B.mT @ B, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-12)
    power = g
    for _ in range(4):
        assert float((power - B @ (B.mT @ power)).norm() / power.norm()) < 1e-10
        power = A @ power
    assert (
        float((power - B @ (B.mT @ power)).norm() / power.norm()) > 1e-6
    )  # the next one is outside
    assert krylov_basis(
        torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64), 3
    ).shape == (
        3,
        1,
    )
    assert krylov_basis(A, torch.zeros_like(g), 3).shape == (len(g), 0)


@named
def test_krylov_subspace_descent_never_goes_uphill_and_beats_the_gradient(likelihood):
    model, plain = mlp(), mlp()
    x, t = batch(likelihood)
    optimizer, one = (
        KrylovSubspaceDescent(model, likelihood),
        KrylovSubspaceDescent(plain, likelihood, dimension=1),
    )
    losses = [optimizer.step(x, t) for _ in range(8)]
    alone = [one.step(x, t) for _ in range(8)]
    assert all(b <= a for a, b in itertools.pairwise(losses))
    # The search in the subspace is inexact: its gradient's norm differs by half between processors,
    # the loss in the fourth digit.
    assert losses[-1] < alone[-1] - 0.02


def test_krylov_subspace_descent_uses_gauss_newton_and_fisher_alike():
    """The paths agree as long as the curvature matrix is the same."""
    likelihood = Bernoulli()

    def gauss_newton(model, inputs, likelihood, parameters):
        t = torch.zeros(
            len(inputs), 3, dtype=torch.float64
        )  # the inner Hessian does not depend on the targets
        return GaussNewtonOperator(model, inputs, t, likelihood, parameters=parameters)

    def identity(model, inputs, likelihood, parameters):
        return torch.eye(sum(p.numel() for p in model.parameters()), dtype=torch.float64)

    options = {"dimension": 4, "search_iterations": 5}
    fisher, ours, wrong = (
        path(
            lambda m, metric=metric: KrylovSubspaceDescent(m, likelihood, metric=metric, **options),
            likelihood,
            3,
        )
        for metric in (FisherOperator, gauss_newton, identity)
    )
    torch.testing.assert_close(fisher, ours, rtol=1e-6, atol=1e-8)
    assert float((fisher - wrong).norm()) > 1e-3


def test_krylov_subspace_descent_takes_other_inputs_for_the_metric():
    paths = []
    for inputs in (None, batch(Categorical(), n=9, seed=7)[0]):
        model = mlp()
        x, t = batch(Categorical())
        KrylovSubspaceDescent(model, Categorical(), dimension=3).step(x, t, metric_inputs=inputs)
        paths.append(vector(model))
    assert not torch.equal(*paths)


@pytest.mark.parametrize(
    ("iterations", "reason"), [(1, Reason.MAX_ITERATIONS), (200, Reason.CONVERGED)]
)
def test_krylov_subspace_descent_says_why_its_search_ended(iterations, reason):
    optimizer = KrylovSubspaceDescent(
        mlp((3, 3)), Gaussian(), dimension=12, search_iterations=iterations
    )
    optimizer.step(*batch(Gaussian()))
    assert optimizer.last.reason is reason


@pytest.mark.parametrize("kind", ["hf", "ksd"])
def test_resume_bit_for_bit(kind):
    def make(seed):
        model = mlp(seed=seed, dtype=torch.float32)
        if kind == "hf":
            return model, HessianFree(model, Categorical(), max_iter=3)
        return model, KrylovSubspaceDescent(model, Categorical(), dimension=3)

    model, optimizer = make(0)
    end = trajectory(optimizer, model, Categorical(), range(5))
    model, optimizer = make(0)
    trajectory(optimizer, model, Categorical(), range(2))
    saved = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
    model, optimizer = make(5)
    model.load_state_dict(saved[0])
    fresh = trajectory(optimizer, model, Categorical(), range(2, 5))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert torch.equal(trajectory(optimizer, model, Categorical(), range(2, 5)), end)
    assert not torch.equal(fresh, end)


@pytest.mark.parametrize("kind", [HessianFree, KrylovSubspaceDescent])
def test_confident_networks_stay_finite(kind):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(1e4 * torch.eye(3))
    x, t = torch.eye(3), torch.tensor([1, 2, 0])
    optimizer = kind(model, Categorical())
    for _ in range(3):
        assert math.isfinite(optimizer.step(x, t))
    assert bool(torch.isfinite(vector(model)).all())


def test_at_an_exact_minimum_nothing_moves():
    likelihood = Bernoulli()
    for kind in (HessianFree, KrylovSubspaceDescent):
        model = mlp()
        x, _ = batch(likelihood)
        t = torch.sigmoid(model(x)).detach()
        before = vector(model)
        optimizer = kind(model, likelihood)
        optimizer.step(x, t)
        assert float((vector(model) - before).norm()) < 1e-6


@pytest.mark.parametrize(
    "options", [{"dimension": 0}, {"search_iterations": 1.5}, {"damping": 1.0}]
)
def test_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        KrylovSubspaceDescent(mlp(), Categorical(), **options)
