"""Newton's method: the exact Hessian, one step on a quadratic, and negative curvature."""

import pytest
import torch
from torch import nn

from natcompanion import reference
from natcompanion.likelihoods import Categorical, Gaussian
from natcompanion.optim import NaturalGradient, Newton, loss_hessian
from tests.test_metrics import ByHand, Residual
from tests.test_metrics import batch as batch_of
from tests.test_natural_gradient import (
    EXACT,
    batch,
    mean_gradient,
    mlp,
    named,
    quadratic,
    solved,
    vector,
)
from tests.test_operators import ONCE


@named
def test_hessian_and_one_step(likelihood):
    model, (x, t) = mlp(), batch(likelihood)
    H, g = reference.loss_hessian(model, x, t, likelihood), mean_gradient(model, x, t, likelihood)
    G, before = reference.fisher(model, x, likelihood), vector(model)
    torch.testing.assert_close(loss_hessian(model, x, t, likelihood), H, rtol=1e-10, atol=1e-12)
    assert float((H - G).norm() / H.norm()) > 0.01  # negative control: it is not the Fisher matrix
    Newton(model, likelihood, 0.7, damping=0.5).step(x, t)
    torch.testing.assert_close(
        vector(model) - before, -0.7 * solved(H, g, 0.5), rtol=1e-7, atol=1e-10
    )


def test_a_quadratic_takes_one_step():
    model, (x, t) = quadratic()
    optimizer = Newton(model, Gaussian(), damping=0.0)
    optimizer.step(x, t)
    assert float(mean_gradient(model, x, t, Gaussian()).norm()) < 1e-9
    assert optimizer.last.rho == pytest.approx(0.5, abs=1e-9)  # Eq. 30 at step size 1


class Saddle(nn.Module):
    """Outputs w1 and w2, whatever the input; the loss with targets (0, 0) through r = w1 w2 has a
    saddle at 0.
    """

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x):
        return (self.w[0] * self.w[1]).expand(len(x), 1)


def test_newton_goes_to_a_saddle_and_the_natural_gradient_does_not():
    """Fit w1 w2 = 1 from (0.1, 0.1): the Hessian has a negative eigenvalue, the Fisher matrix
    cannot have one.
    """
    x, t = torch.zeros(4, 1, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    newton, natural = Saddle([0.1, 0.1]), Saddle([0.1, 0.1])
    assert float(torch.linalg.eigvalsh(loss_hessian(newton, x, t, Gaussian()))[0]) < -0.5
    assert float(torch.linalg.eigvalsh(reference.fisher(natural, x, Gaussian()))[0]) >= -1e-12
    first, second = (
        Newton(newton, Gaussian(), damping=0.0),
        NaturalGradient(natural, Gaussian(), 0.5, damping=1e-3, **EXACT),
    )
    for _ in range(20):
        first.step(x, t)
        second.step(x, t)
    assert float(newton.w.detach().abs().max()) < 1e-6  # at the saddle, loss 1/2
    assert float(natural.w.detach().prod()) == pytest.approx(1, abs=1e-3)


def test_refusals():
    model, (x, t) = mlp(), batch(Categorical())
    with pytest.raises(ValueError, match="metric_inputs: the Hessian needs targets"):
        Newton(model, Categorical()).step(x, t, metric_inputs=x)
    with pytest.raises(ValueError, match="metric: Newton has its own"):
        Newton(model, Categorical(), metric=lambda *_: None)
    large = nn.Linear(100, 60).double()
    with pytest.raises(ValueError, match=r"at most 5000 parameters.*got 6060 \(0\.3 GB\)"):
        loss_hessian(
            large,
            torch.zeros(1, 100, dtype=torch.float64),
            torch.zeros(1, dtype=torch.long),
            Categorical(),
        )


@pytest.mark.parametrize("in_place", [False, True])
def test_the_hessian_of_a_model_that_differentiates_by_its_inputs(in_place):
    x, t = batch_of(5, (1,)), batch_of(5, (1,), seed=3)
    H = loss_hessian(Residual(in_place).double(), x, t, Gaussian())
    expected = reference.loss_hessian(ByHand().double(), x, t, Gaussian())
    torch.testing.assert_close(H, expected, rtol=1e-10, atol=1e-12)
    G = reference.fisher(ByHand().double(), x, Gaussian())
    assert float((G - expected).norm() / expected.norm()) > 0.01  # negative control


@pytest.mark.parametrize("key", ["hardsigmoid", "bags", "once"])
def test_layers_without_a_second_derivative_are_refused_in_words(key):
    model, x = ONCE[key]
    with pytest.raises(ValueError, match="second derivatives.*NaturalGradient"):
        loss_hessian(model.double(), x, torch.zeros(5, dtype=torch.long), Categorical())


class ByPosition(nn.Module):
    """Outputs (n, T, o) with a part that functional transforms cannot take, or the same without."""

    def __init__(self, by_hand):
        super().__init__()
        self.layer, self.by_hand = nn.Linear(2, 3), by_hand

    def forward(self, x):
        if self.by_hand:
            slope = 2 * x
        else:
            x = x.requires_grad_()
            (slope,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
        return self.layer(slope).tanh()


def test_outputs_at_positions_are_rows_of_classes_here_too():
    x, t = batch_of(4, (5, 2)), torch.arange(20).view(4, 5) % 3
    models = [ByPosition(by_hand).double() for by_hand in (True, False)]
    models[1].load_state_dict(models[0].state_dict())
    expected, H = (loss_hessian(model, x, t, Categorical()) for model in models)
    torch.testing.assert_close(H, expected, rtol=1e-10, atol=1e-12)
    flat = loss_hessian(models[0], x.flatten(0, 1), t.flatten(), Categorical())
    torch.testing.assert_close(expected, 5 * flat, rtol=1e-10, atol=1e-12)  # positions add up
