"""Levenberg-Marquardt: both ratios on an exact quadratic, bounds, and steps that must not be
taken.
"""

import math

import pytest
import torch
from torch import nn

from natcompanion import metrics
from natcompanion.damping import (
    LevenbergMarquardt,
    linear_decrease,
    quadratic_decrease,
    reduction_ratio,
    try_step,
)
from natcompanion.likelihoods import Gaussian
from natcompanion.solvers import conjugate_gradient


def ratios(lr):
    """Return the ratio of Eq. 30 and that of Martens for a step on an exact quadratic."""
    a = torch.tensor([[4.0, 1.0], [1.0, 0.5]], dtype=torch.float64)
    x = torch.tensor([1.0, -2.0], dtype=torch.float64)
    gradient = a @ x
    step = -lr * torch.linalg.solve(a, gradient)
    before, after = (float(z @ a @ z) / 2 for z in (x, x + step))
    return (
        reduction_ratio(before, after, linear_decrease(step, gradient)),
        reduction_ratio(before, after, quadratic_decrease(step, gradient, a @ step)),
    )


@pytest.mark.parametrize("lr", [0.01, 0.1, 0.5, 1.0, 1.5, 3.0])
def test_ratios_on_an_exact_quadratic(lr):
    slope, curved = ratios(lr)
    assert slope == pytest.approx(1 - lr / 2)
    assert curved == pytest.approx(1)


def test_the_two_ratios_decide_differently():
    slope, curved = ratios(1.0)
    assert (
        LevenbergMarquardt(1.0).update(slope) == 1.0
    )  # a perfect model, and the damping does not fall
    assert LevenbergMarquardt(1.0).update(curved) == pytest.approx(2 / 3)
    slope, curved = ratios(1.6)
    assert LevenbergMarquardt(1.0).update(slope) == pytest.approx(
        3 / 2
    )  # a perfect model, and it rises
    assert LevenbergMarquardt(1.0).update(curved) == pytest.approx(2 / 3)


def test_sign_of_the_ratio():
    assert reduction_ratio(2.0, 1.0, 2.0) == 0.5
    assert reduction_ratio(1.0, 2.0, 2.0) == -0.5
    eq30 = (1.0 - 2.0) / -2.0  # revisiting Eq. 30: (after - before) / predicted change
    assert reduction_ratio(2.0, 1.0, 2.0) == eq30


@pytest.mark.parametrize(
    ("before", "after", "predicted"),
    [
        (1.0, 0.5, 0.0),
        (1.0, math.nan, 1.0),
        (1.0, math.inf, 1.0),
        (math.nan, 0.5, 1.0),
        (1.0, 0.5, math.nan),
    ],
)
def test_no_ratio_without_numbers(before, after, predicted):
    assert math.isnan(reduction_ratio(before, after, predicted))


def test_the_ratio_tends_to_one_where_rounding_hides_both_decreases():
    eps = torch.finfo(torch.float32).eps
    after = 1.0 + eps  # uphill by rounding
    assert reduction_ratio(1.0, after, 1e-9) < -100
    assert reduction_ratio(1.0, after, 1e-9, eps=eps) == pytest.approx(0.9, abs=0.01)
    assert reduction_ratio(1.0, 1.0, 1e-12, eps=eps) == pytest.approx(1)
    assert reduction_ratio(1.0, 1.0 + 100 * eps, 1e-9, eps=eps) < 0  # uphill beyond rounding
    assert reduction_ratio(1.0, 0.9, 0.2, eps=eps) == pytest.approx(0.5, abs=1e-5)
    assert reduction_ratio(-1000.0, -1000.0, 1e-6, eps=eps) == pytest.approx(
        1, abs=1e-2
    )  # in the loss's own size
    assert math.isnan(reduction_ratio(1.0, 1.0, 0.0, eps=eps))
    assert math.isnan(reduction_ratio(1.0, 1.0, -10 * eps, eps=eps))
    assert reduction_ratio(1.0, 0.9, 0.2, eps=torch.finfo(torch.float64).eps) == pytest.approx(
        0.5, rel=1e-13
    )


def test_damping_is_bounded():
    rule = LevenbergMarquardt(1.0, minimum=0.1, maximum=10.0)
    for _ in range(100):
        rule.update(1.0)
    assert rule.damping == 0.1
    for rho in [math.nan, -1.0, -math.inf] * 50:
        rule.update(rho)
    assert rule.damping == 10.0
    assert rule.update(0.5) == 10.0  # neither good nor bad


def test_at_the_ends_of_its_range_a_ratio_is_neither_good_nor_bad():
    rule = LevenbergMarquardt(1.0, low=0.25, high=0.75)
    assert rule.update(0.75) == 1.0 == rule.update(0.25)
    assert rule.update(math.nextafter(0.75, 1)) < 1.0 < LevenbergMarquardt(1.0).update(0.2499)


def test_arguments_change_the_rule():
    assert LevenbergMarquardt(1.0, high=0.4).update(0.5) == pytest.approx(2 / 3)
    assert LevenbergMarquardt(1.0, low=0.6).update(0.5) == pytest.approx(3 / 2)
    assert LevenbergMarquardt(1.0, decrease=0.5).update(0.9) == 0.5
    assert LevenbergMarquardt(1.0, increase=4.0).update(0.0) == 4.0


def attempt(x, step, loss, before, predicted=1.0):
    return try_step(
        [x], torch.tensor(step, dtype=torch.float64), loss, before=before, predicted=predicted
    )


def test_a_good_step_is_kept():
    x = torch.tensor([3.0, 0.0], dtype=torch.float64, requires_grad=True)
    trial = attempt(x, [-1.0, 0.0], lambda: x.square().sum(), 9.0, predicted=5.0)
    assert trial.accepted
    assert trial.rho == pytest.approx(1.0)
    assert x.tolist() == [2.0, 0.0]
    assert x.requires_grad


def test_a_step_that_rounding_hides_lowers_the_damping():
    x = torch.ones(2)  # float32
    trial = try_step(
        [x], torch.full((2,), -1e-12), lambda: x.square().sum(), before=2.0, predicted=4e-12
    )
    assert trial.after == 2.0 and LevenbergMarquardt(1e8).update(trial.rho) < 1e8


@pytest.mark.parametrize(
    "loss", [lambda: 10.0, lambda: math.nan, lambda: math.inf, lambda: torch.tensor(math.nan)]
)
def test_uphill_and_nan_steps_are_undone(loss):
    x = torch.tensor([0.1, 0.3], dtype=torch.float64)
    before = x.clone()
    trial = attempt(x, [0.7, 1e16], loss, 1.0)
    assert not trial.accepted
    assert torch.equal(x, before)
    assert LevenbergMarquardt(1.0).update(trial.rho) == 1.5


def test_a_loss_that_raises_undoes_the_step():
    x = torch.tensor([0.1], dtype=torch.float64)

    def loss():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        attempt(x, [0.7], loss, 1.0)
    assert x.tolist() == [0.1]


@pytest.mark.parametrize(
    ("step", "predicted"), [([math.nan], 1.0), ([1.0], 0.0), ([1.0], -1.0), ([1.0], math.nan)]
)
def test_hopeless_steps_are_not_tried(step, predicted):
    x = torch.tensor([0.1], dtype=torch.float64)
    trial = attempt(x, step, lambda: pytest.fail("the loss must not be asked"), 1.0, predicted)
    assert not trial.accepted
    assert x.tolist() == [0.1]


def test_an_exact_minimum_makes_no_step_and_stays_bounded():
    torch.manual_seed(0)
    model = nn.Linear(2, 1).double()
    x = torch.randn(10, 2, dtype=torch.float64)
    t = model(x).detach()
    parameters = list(model.parameters())
    before = [p.detach().clone() for p in parameters]
    rule = LevenbergMarquardt(1.0, maximum=100.0)
    for _ in range(50):
        loss = Gaussian().nll(model(x), t).mean()
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, parameters)])
        operator = metrics.FisherOperator(model, x, Gaussian(), damping=rule.damping)
        step = -conjugate_gradient(operator, g).x
        trial = try_step(
            parameters,
            step,
            lambda: Gaussian().nll(model(x), t).mean(),
            before=loss.item(),
            predicted=linear_decrease(step, g),
        )
        rule.update(trial.rho)
        assert not trial.accepted
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))
    assert rule.damping == 100.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"damping": 0.0}, "damping"),
        ({"damping": math.nan}, "damping"),
        ({"damping": 1.0, "maximum": 0.5}, "damping: expected"),
        ({"low": 0.8}, "low < high"),
        ({"decrease": 2.0}, "decrease <= 1"),
        ({"increase": 0.5}, "decrease <= 1"),
    ],
)
def test_bad_rules_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LevenbergMarquardt(**arguments)
