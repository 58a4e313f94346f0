"""The naive twins against exact values and each other."""

import pytest
import torch
from torch import nn

from natcompanion import reference
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()


X = torch.tensor([[0.5, -1.0], [2.0, 0.3], [-0.7, 0.1]], dtype=torch.float64)


@pytest.mark.parametrize(
    "likelihood", [Gaussian(), Gaussian(2.0), Bernoulli(), Categorical()], ids=repr
)
def test_probabilities_sum_to_one_and_scores_to_zero(likelihood):
    net = model()
    r = net(X[:1])
    pairs = reference.labels(likelihood, r[0].detach())
    assert float(sum(p for _, p in pairs)) == pytest.approx(1)
    score = sum(
        p * reference.gradient(net, likelihood.nll(r, t.unsqueeze(0)).sum()) for t, p in pairs
    )
    assert float(score.abs().max()) < 1e-14  # footnote 2 of revisiting


@pytest.mark.parametrize(
    "likelihood", [Gaussian(), Gaussian(2.0), Bernoulli(), Categorical()], ids=repr
)
def test_fisher_by_sum_and_by_curvature(likelihood):
    net = model()
    torch.testing.assert_close(
        reference.fisher(net, X, likelihood), reference.kl_hessian(net, X, likelihood)
    )


def test_fisher_of_logistic_regression_by_hand():
    net = nn.Linear(2, 1, bias=False).double()
    y = torch.sigmoid(net(X))
    by_hand = (X.T * (y * (1 - y))[:, 0]) @ X / 3
    torch.testing.assert_close(reference.fisher(net, X, Bernoulli()), by_hand)


def test_jacobian_by_finite_differences():
    net = model()
    theta = reference.parameter_vector(net)
    jacobian = reference.jacobian(net, X)
    for k in range(len(theta)):
        step = torch.zeros_like(theta)
        step[k] = 1e-6
        difference = (
            reference.outputs(net, theta + step, X) - reference.outputs(net, theta - step, X)
        ) / 2e-6
        torch.testing.assert_close(jacobian[..., k], difference, rtol=1e-7, atol=1e-9)


def test_loss_hessian_by_finite_differences():
    net, t = model(), torch.tensor([0, 1, 1])
    theta = reference.parameter_vector(net)
    hessian = reference.loss_hessian(net, X, t, Categorical())
    step = 1e-3 * torch.linspace(-1, 1, len(theta), dtype=torch.float64)

    def loss(delta):
        return float(Categorical().nll(reference.outputs(net, theta + delta, X), t).mean())

    second = loss(step) + loss(-step) - 2 * loss(0 * step)
    assert second == pytest.approx(float(step @ hessian @ step), rel=1e-5)


def test_the_model_keeps_its_parameters():
    net = model()
    before = reference.parameter_vector(net)
    reference.outputs(net, 0 * before, X)
    assert torch.equal(reference.parameter_vector(net), before)


def test_unknown_likelihood():
    with pytest.raises(ValueError, match="likelihood: expected"):
        reference.labels("poisson", torch.zeros(2))
