"""Mirror descent: equations 2 and 8 to 10, the natural gradient in two forms, and any convex
function.
"""

import copy
import pickle

import pytest
import torch
from torch import nn

from natcompanion import metrics, reference
from natcompanion.likelihoods import Categorical
from natcompanion.optim import (
    MirrorDescent,
    NaturalSpace,
    Quadratic,
    bregman_divergence,
    mirror_step,
    proximal_objective,
)

F64 = {"dtype": torch.float64}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **F64)


def metric(size, seed=1):
    a = random(size, size, seed=seed)
    return a @ a.mT / size + 0.2 * torch.eye(size, **F64)


def gap(a, b):
    return float((a - b).norm() / b.norm())


class NegativeEntropy:
    """The mirror of the exponentiated gradient, on positive parameters."""

    def value(self, theta):
        return (theta * theta.log() - theta).sum()

    def gradient(self, theta):
        return theta.log()

    def conjugate_gradient(self, omega):
        return omega.exp()


# ---- Equations


def test_case_mirror_descent(cases):
    """Equations 8 to 10 on exact values, and the gradient of the wrong space as a negative
    control.
    """
    case = cases("prong")["003-mirror-descent"]
    F, theta, g = (torch.tensor(case["inputs"][key], **F64) for key in ("F", "theta", "g"))
    lr = case["inputs"]["alpha"]
    psi, root = Quadratic(F), Quadratic(F).root()
    _, dual_gradient = torch.autograd.functional.vjp(
        root.conjugate_gradient, root.gradient(theta), g
    )
    found = {
        "sqrtF": root.metric,
        "Omega": psi.gradient(theta),
        "Omega_new": psi.gradient(theta) - lr * g,
        "Omega_t": root.gradient(theta),
        "Omega_t_new": root.gradient(theta) - lr * dual_gradient,
        "theta_new": mirror_step(psi, theta, g, lr),
        "wrong_primal_gradient": mirror_step(root, theta, g, lr),
    }
    assert found.keys() == case["expected"].keys()
    for key, value in found.items():
        assert gap(value, torch.tensor(case["expected"][key], **F64)) < case["rtol"], key
    assert gap(mirror_step(root, theta, g, lr, dual=True), found["theta_new"]) < 1e-14
    assert gap(found["wrong_primal_gradient"], found["theta_new"]) > 0.01


@pytest.mark.parametrize("seed", range(5))
def test_both_forms_are_the_natural_gradient_to_14_digits(seed):
    F, theta, g = metric(6, seed), random(6, seed=seed + 10), random(6, seed=seed + 20)
    natural = theta - 0.3 * torch.linalg.solve(F, g)
    scale = float(torch.linalg.cond(F)) * 2e-16
    assert scale < 1e-13
    for found in (
        mirror_step(Quadratic(F), theta, g, 0.3),
        mirror_step(Quadratic(F).root(), theta, g, 0.3, dual=True),
    ):
        assert gap(found, natural) < 1e-14
    for wrong in (  # negative controls: each function with the gradient of the other form
        mirror_step(Quadratic(F).root(), theta, g, 0.3),
        mirror_step(Quadratic(F), theta, g, 0.3, dual=True),
    ):
        assert gap(wrong, natural) > 0.01


def test_the_dual_gradient_is_that_of_the_loss_as_a_function_of_omega():
    root, theta = Quadratic(metric(4)).root(), random(4)
    target = random(4, seed=3)
    loss = lambda theta: ((theta - target).square().sum() + theta.prod()).sin()
    g = torch.func.grad(loss)(theta)
    by_omega = torch.func.grad(lambda omega: loss(root.conjugate_gradient(omega)))(
        root.gradient(theta)
    )
    expected = root.conjugate_gradient(root.gradient(theta) - 0.1 * by_omega)
    assert gap(mirror_step(root, theta, g, 0.1, dual=True), expected) < 1e-14
    # E[F^-1/2 dl/dtheta]; the backward pass of the root's eigenvectors loses three digits
    assert gap(by_omega, torch.linalg.solve(root.metric, g)) < 1e-10
    assert gap(by_omega, g) > 1e-3  # negative control


@pytest.mark.parametrize(
    "psi", [Quadratic(metric(4)), Quadratic(torch.eye(4, **F64)), NegativeEntropy()]
)
def test_a_step_minimizes_the_proximal_objective(psi):
    """Equation 2, with the Bregman divergence in the place of half the squared distance."""
    theta, g = random(4).exp(), random(4, seed=5)
    step = mirror_step(psi, theta, g, 0.3)
    objective = lambda q: proximal_objective(psi, q, theta, g, 0.3)
    assert float(torch.func.grad(objective)(step).norm()) < 1e-12
    for seed in range(20):
        assert objective(step * (1 + 0.1 * random(4, seed=seed).tanh())) > objective(step)
    assert float(torch.func.grad(objective)(theta - 0.2 * g).norm()) > 0.01  # negative control


def test_equation_2_is_gradient_descent_for_the_plain_distance():
    theta, g, q = random(4), random(4, seed=5), random(4, seed=6)
    plain = Quadratic(torch.eye(4, **F64))
    assert gap(mirror_step(plain, theta, g, 0.3), theta - 0.3 * g) < 1e-15
    printed = q @ g + (q - theta).square().sum() / (2 * 0.3)
    assert gap(proximal_objective(plain, q, theta, g, 0.3), printed) < 1e-14


def test_the_conjugate_is_the_convex_one():
    """The supremum over theta of <theta, omega> - psi(theta), attained where omega is the
    gradient.
    """
    psi, theta = Quadratic(metric(5)), random(5)
    omega = psi.gradient(theta)
    assert gap(psi.conjugate(omega), theta @ omega - psi.value(theta)) < 1e-14
    for seed in range(20):
        other = random(5, seed=seed + 1)
        assert psi.conjugate(omega) > other @ omega - psi.value(other)
    gradient = torch.func.grad(psi.conjugate)(omega)
    assert gap(gradient, theta) < 1e-13 and gap(psi.conjugate_gradient(omega), theta) < 1e-13
    assert (
        gap(psi.gradient(omega), theta) > 0.1
    )  # negative control: grad psi(omega), without the star


def test_bregman_divergence_is_half_the_squared_distance_or_the_kl():
    F, q, p = metric(4), random(4, seed=2).exp(), random(4).exp()
    assert gap(bregman_divergence(Quadratic(F), q, p), (q - p) @ F @ (q - p) / 2) < 1e-13
    q, p = q / q.sum(), p / p.sum()
    assert gap(bregman_divergence(NegativeEntropy(), q, p), (q * (q / p).log()).sum()) < 1e-13


# ---- The optimizer


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def batch(dtype=torch.float64):
    x = random(20, 3)
    return x.to(dtype), (x[:, 0] > x[:, 1]).long()


def damped_fisher(model, x):
    F = metrics.fisher(model, x, Categorical())
    return F + 0.1 * torch.eye(len(F)).to(F)


def backward(model, x, t):
    model.zero_grad()
    loss = Categorical().nll(model(x), t).mean()
    loss.backward()
    return loss


def path(model, optimizer, x, t, steps):
    out = []
    for _ in range(steps):
        backward(model, x, t)
        optimizer.step()
        out.append(reference.parameter_vector(model).clone())
    return torch.stack(out)


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("period", [1, 3])
def test_descends_along_the_natural_gradient(dual, period):
    model, (x, t) = network(), batch()
    other = copy.deepcopy(model)
    theta, expected = reference.parameter_vector(other).clone(), []
    for step in range(7):
        if step % period == 0:
            F = damped_fisher(other, x)
        g = reference.gradient(other, Categorical().nll(other(x), t).mean())
        theta = theta - 0.5 * torch.linalg.solve(F, g)
        nn.utils.vector_to_parameters(theta, other.parameters())
        expected.append(theta)
    optimizer = MirrorDescent(
        model.parameters(), lambda: damped_fisher(model, x), 0.5, dual=dual, period=period
    )
    assert gap(path(model, optimizer, x, t, 7), torch.stack(expected)) < 1e-12


def test_amortized_form_is_plain_descent_on_the_dual_parameters():
    """Project once, take T gradient steps on the dual parameters, project back: the point of
    equation 10.
    """
    model, (x, t) = network(), batch()
    start = reference.parameter_vector(model).clone()
    root = Quadratic(damped_fisher(model, x)).root()
    omega = root.gradient(start).requires_grad_()
    sgd = torch.optim.SGD([omega], lr=0.5)
    for _ in range(6):
        sgd.zero_grad()
        r = reference.outputs(model, root.conjugate_gradient(omega), x)
        Categorical().nll(r, t).mean().backward()
        sgd.step()
    amortized = root.conjugate_gradient(omega.detach())
    optimizer = MirrorDescent(
        model.parameters(), lambda: damped_fisher(model, x), 0.5, dual=True, period=6
    )
    assert gap(path(model, optimizer, x, t, 6)[-1], amortized) < 1e-13
    nn.utils.vector_to_parameters(start, model.parameters())
    renewed = MirrorDescent(model.parameters(), lambda: damped_fisher(model, x), 0.5, dual=True)
    assert (
        gap(path(model, renewed, x, t, 6)[-1], amortized) > 1e-3
    )  # negative control: a period of one


def test_is_gradient_descent_in_the_natural_space():
    x, t = batch()
    paths = []
    for make in (
        lambda model: MirrorDescent(model.parameters(), damped_fisher(model, x), 0.5, dual=True),
        lambda model: NaturalSpace(
            model.parameters(), damped_fisher(model, x), lambda p: torch.optim.SGD(p, lr=0.5)
        ),
    ):
        model = network()
        paths.append(path(model, make(model), x, t, 5))
    assert gap(*paths) < 1e-13


def test_any_mirror_will_do_and_may_keep_parameters_positive():
    """The exponentiated gradient finds a distribution, never leaves the positive numbers, and
    multiplies.
    """
    target = torch.tensor([0.7, 0.2, 0.1], **F64)
    theta = torch.full((3,), 1 / 3, requires_grad=True, **F64)
    optimizer = MirrorDescent([theta], NegativeEntropy(), 0.5)
    for step in range(200):
        optimizer.zero_grad()
        (theta - target).square().sum().backward()
        expected = theta.detach() * (-0.5 * theta.grad).exp()
        optimizer.step()
        assert gap(theta.detach(), expected) < 1e-14 and bool((theta > 0).all()), step
    assert gap(theta.detach(), target) < 1e-3


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resumes_to_the_last_bit_within_a_period(dual, dtype):
    model, (x, t) = network(dtype=dtype), batch(dtype)

    def make(model, lr=0.5):
        return MirrorDescent(
            model.parameters(), lambda: damped_fisher(model, x), lr, dual=dual, period=4
        )

    optimizer = make(model)
    path(model, optimizer, x, t, 6)
    other = network(seed=9, dtype=dtype)
    other.load_state_dict(model.state_dict())
    resumed = make(other, 0.1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(path(model, optimizer, x, t, 5), path(other, resumed, x, t, 5))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_on_as_the_original(copied):
    model, (x, t) = network(), batch()
    optimizer = MirrorDescent(model.parameters(), damped_fisher(model, x), 0.5, dual=True)
    path(model, optimizer, x, t, 2)
    other, again = copied((model, optimizer))
    assert torch.equal(path(model, optimizer, x, t, 3), path(other, again, x, t, 3))


def test_closure_scheduler_zero_rate_missing_gradients_and_half_precision():
    model, (x, t) = network(dtype=torch.bfloat16), batch(torch.bfloat16)
    optimizer = MirrorDescent(model.parameters(), metric(26), 0.0)
    before = copy.deepcopy(model.state_dict())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * step)
    assert optimizer.step(lambda: backward(model, x, t)).dtype == torch.bfloat16
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.zero_grad()
    optimizer.step()
    scheduler.step()
    assert all(
        gap(p.float(), before[name].float()) < 0.01 for name, p in model.state_dict().items()
    )


def test_refusals_leave_the_parameters_alone():
    model, (x, t) = network(), batch()
    before = reference.parameter_vector(model).clone()
    parameters = list(model.parameters())
    with pytest.raises(ValueError, match=r"metric: expected shape \(26, 26\)"):
        MirrorDescent(parameters, metric(3), 0.1)
    with pytest.raises(ValueError, match="full rank"):
        MirrorDescent(parameters, torch.zeros(26, 26, **F64), 0.1)
    with pytest.raises(ValueError, match="semi-definite"):
        Quadratic(-metric(3))
    with pytest.raises(ValueError, match="psi: expected a mirror"):
        MirrorDescent(parameters, 3.0, 0.1)
    with pytest.raises(ValueError, match="lr"):
        MirrorDescent(parameters, metric(26), -0.1)
    with pytest.raises(ValueError, match="period"):
        MirrorDescent(parameters, metric(26), 0.1, period=0)
    optimizer = MirrorDescent(parameters, metric(26), 1e308)
    backward(model, x, t)
    parameters[0].grad *= 1e9
    with pytest.raises(ValueError, match="after the step"):
        optimizer.step()
    parameters[0].grad[0] = torch.nan
    with pytest.raises(ValueError, match="gradient"):
        optimizer.step()
    assert torch.equal(reference.parameter_vector(model), before)


@pytest.mark.parametrize("dual", [False, True])
def test_groups_have_steps_of_their_own_in_one_metric(dual):
    model, (x, t) = network(), batch()
    before, parts = reference.parameter_vector(model), list(model.parameters())
    groups = [{"params": parts[:2], "lr": 0.0}, {"params": parts[2:]}]
    backward(model, x, t)
    g = torch.cat([p.grad.reshape(-1) for p in parts])
    MirrorDescent(groups, metric(26), 0.1, dual=dual, momentum=0.5).step()
    expected = 0.1 * Quadratic(metric(26)).conjugate_gradient(g)
    first = sum(p.numel() for p in parts[:2])
    expected[:first] = 0
    moved = before - reference.parameter_vector(model)
    torch.testing.assert_close(moved, expected)


def test_a_mirror_that_is_a_module():
    class Exponential(nn.Module):
        def value(self, theta):
            return theta.exp().sum()

        def gradient(self, theta):
            return theta.exp()

        def conjugate_gradient(self, omega):
            return omega.log()

    p = nn.Parameter(torch.zeros(3, **F64))
    optimizer = MirrorDescent([p], Exponential(), 0.1)
    p.grad = torch.ones(3, **F64)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9, **F64).log())


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    model, (x, t) = network(), batch()
    optimizer = MirrorDescent(model.parameters(), lambda: metric(26), 0.1, period=3)
    backward(model, x, t)
    optimizer.step()
    psi, state = optimizer.psi, optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.7
    other = {**state, "state": {**state["state"], 0: {"metric": metric(3)}}}
    with pytest.raises(ValueError, match=r"expected shape \(26, 26\), got \(3, 3\)"):
        optimizer.load_state_dict(other)
    with pytest.raises(ValueError, match="expected one of MirrorDescent"):
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), 0.7).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1 and optimizer.psi is psi
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.7
