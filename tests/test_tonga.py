"""TONGA: the covariance of the gradients by brute force, centred or not, and what it cannot use."""

import pytest
import torch

from natcompanion import reference
from natcompanion.damping import LevenbergMarquardt
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian
from natcompanion.optim import TONGA, NaturalGradient
from tests.test_natural_gradient import (
    EXACT,
    batch,
    mean_gradient,
    mlp,
    named,
    solved,
    trajectory,
    vector,
)


@named
@pytest.mark.parametrize("centred", [True, False])
def test_one_step(likelihood, centred):
    model, (x, t) = mlp(), batch(likelihood)
    before, g = vector(model), mean_gradient(model, x, t, likelihood)
    C = reference.gradient_covariance(model, x, t, likelihood)
    U = reference.empirical_fisher(model, x, t, likelihood)
    G = reference.fisher(model, x, likelihood)
    TONGA(model, likelihood, 0.3, damping=0.05, centred=centred, **EXACT).step(x, t)
    moved = vector(model) - before
    right, wrong = (C, U) if centred else (U, C)
    torch.testing.assert_close(moved, -0.3 * solved(right, g, 0.05), rtol=1e-9, atol=1e-11)
    for other in (wrong, G):  # negative controls
        assert float((moved + 0.3 * solved(other, g, 0.05)).norm() / moved.norm()) > 1e-3


@named
def test_centred_and_uncentred_steps_are_parallel(likelihood):
    """Their ratio is 1 + g^T (C + damping I)^-1 g."""
    steps, (x, t) = [], batch(likelihood)
    for centred in (True, False):
        model = mlp()
        before = vector(model)
        TONGA(model, likelihood, 0.3, damping=0.05, centred=centred, **EXACT).step(x, t)
        steps.append(vector(model) - before)
    model = mlp()
    g, C = (
        mean_gradient(model, x, t, likelihood),
        reference.gradient_covariance(model, x, t, likelihood),
    )
    ratio = 1 + float(g @ solved(C, g, 0.05))
    torch.testing.assert_close(steps[0], ratio * steps[1], rtol=1e-8, atol=1e-11)
    assert ratio > 1.01


def test_it_needs_targets_and_so_refuses_other_inputs():
    model, (x, t) = mlp(), batch(Categorical())
    before = vector(model)
    with pytest.raises(
        ValueError, match="metric_inputs: the covariance of gradients needs targets"
    ):
        TONGA(model, Categorical(), 0.1).step(x, t, metric_inputs=x)
    with pytest.raises(ValueError, match="metric: TONGA has its own"):
        TONGA(model, Categorical(), 0.1, metric=lambda *_: None)
    assert torch.equal(vector(model), before)


def test_resumes_bit_for_bit():
    def make(seed):
        model = mlp(seed=seed, dtype=torch.float32)
        return model, TONGA(
            model, Categorical(), 0.7, damping=LevenbergMarquardt(0.5), warm_start=0.5, max_iter=3
        )

    model, optimizer = make(0)
    end = trajectory(optimizer, model, Categorical(), range(5))
    model, optimizer = make(0)
    trajectory(optimizer, model, Categorical(), range(2))
    saved = model.state_dict(), optimizer.state_dict()
    model, optimizer = make(5)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert torch.equal(trajectory(optimizer, model, Categorical(), range(2, 5)), end)


@pytest.mark.parametrize("likelihood", [Gaussian(), Bernoulli()], ids=repr)
def test_where_all_gradients_agree_the_damping_alone_is_left(likelihood):
    """One example, repeated: C is zero, so the centred step is the plain gradient over the
    damping.
    """
    model, (x, t) = mlp(), batch(likelihood)
    x, t = x[:1].repeat(8, 1), t[:1].repeat(8, 1)
    before, g = vector(model), mean_gradient(model, x, t, likelihood)
    TONGA(model, likelihood, 0.1, damping=0.5, **EXACT).step(x, t)
    torch.testing.assert_close(vector(model) - before, -0.2 * g, rtol=1e-9, atol=1e-12)
    assert isinstance(TONGA(model, likelihood, 0.1), NaturalGradient)


@pytest.mark.parametrize("centred", [True, False])
def test_path_does_not_depend_on_a_linear_change_of_parameters(centred):
    """Section 4.1 denies this property to the covariance. Undamped, it transforms as the Fisher
    matrix does.
    """
    likelihood = Categorical()
    x, t = batch(likelihood, n=60)
    A = torch.tensor([[2.0, 0.3, 0.0], [0.0, 0.5, 0.1], [0.4, 0.0, 1.5]], dtype=torch.float64)

    def outputs(change, damping):
        model = torch.nn.Linear(3, 3).double()
        with torch.no_grad():
            model.weight.copy_(torch.linalg.inv(change))
            model.bias.zero_()
        optimizer = TONGA(model, likelihood, 0.2, damping=damping, centred=centred, **EXACT)
        for _ in range(4):
            optimizer.step(x @ change.T, t)
        return model(x @ change.T).detach()

    for damping, invariant in ((1e-10, True), (1.0, False)):
        gap = float(
            (outputs(A, damping) - outputs(torch.eye(3, dtype=torch.float64), damping)).abs().max()
        )
        assert (gap < 1e-5) is invariant


@pytest.mark.parametrize("matrix", ["gradient_covariance", "empirical_fisher"])
def test_a_step_of_the_covariance_is_as_fast_in_all_coordinates_but_not_in_all_places(matrix):
    """Section 4.1, "at the same speed". A step has a length of 0.001 in a metric, and its speed is
    the KL divergence in units of that length. The Fisher matrix fixes it to 1; the covariance has
    the same in all linear coordinates of a place, but another one in another place. With the
    identity the coordinates count.
    """
    likelihood, length = Bernoulli(), 1e-3
    x, t = batch(likelihood, n=20, o=1)
    A = torch.tensor([[2.0, 0.3, 0.0], [0.0, 0.5, 0.1], [0.4, 0.0, 1.5]], dtype=torch.float64)
    places = torch.tensor([[[0.0, 0.0, 0.0]], [[1.0, -2.0, 0.5]], [[4.0, 3.0, -5.0]]]).double()

    def speed(metric, place, change):
        model, inputs = torch.nn.Linear(3, 1).double(), x @ change.T
        with torch.no_grad():
            model.weight.copy_(place @ torch.linalg.inv(change))
            model.bias.zero_()
        M, g = metric(model, inputs), mean_gradient(model, inputs, t, likelihood)
        d = torch.linalg.solve(M, g)
        d = -length * d / (d @ M @ d).sqrt()
        before, after = (
            reference.outputs(model, vector(model) + step, inputs) for step in (0 * d, d)
        )
        return float(likelihood.kl(before, after).mean()) / (0.5 * length**2)

    def speeds(metric):
        coordinates = torch.eye(3, dtype=torch.float64), A
        return torch.tensor([[speed(metric, p, change) for p in places] for change in coordinates])

    one, other = speeds(lambda model, x: reference.fisher(model, x, likelihood))
    assert torch.allclose(one, torch.ones(3), rtol=0.01) and torch.allclose(one, other, rtol=1e-4)
    one, other = speeds(lambda model, x: getattr(reference, matrix)(model, x, t, likelihood))
    assert torch.allclose(one, other, rtol=1e-4) and one.max() > 2 * one.min()
    one, other = speeds(lambda model, _: torch.eye(4, dtype=torch.float64))
    assert not torch.allclose(one, other, rtol=0.2)
