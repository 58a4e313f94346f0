"""Every numbered equation of the whitening paper, and every misprint with its counter-example.

Each test has a control: a nearby wrong form that it tells apart from the right one.
"""

import math

import pytest
import torch

from natcompanion import reference
from natcompanion.chapters.experiments._descent import RATES
from natcompanion.metrics import (
    block_diagonal,
    condition_number,
    diagonal,
    energy_metric,
    gradient_second_moment,
)
from natcompanion.models import BoltzmannMachine, LinearGaussian
from natcompanion.optim import RelativeGradient, natural_relative_gradient, natural_space
from natcompanion.solvers import damped_solve, ridge_solve, stochastic_robust_inverse
from natcompanion.whitening import Whitener, whitening_matrix

KINDS = ["zca", "pca", "cholesky"]


def tensor(x) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a, b, tol: float = 1e-10) -> bool:
    return torch.allclose(torch.as_tensor(a), torch.as_tensor(b), rtol=tol, atol=tol)


M = tensor([[3.0, 1 / 3], [1 / 3, 0.0]])
GAUSSIAN = LinearGaussian(M)
G = GAUSSIAN.fisher()
THETA, MEAN, ZERO = tensor([1.0, -1.0]), tensor([0.5, -0.25]), tensor([0.0, 0.0])
IDENTITY = torch.eye(2, dtype=torch.float64)


def quadrature(mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights that average polynomials up to degree 5 exactly over N(mean, I) in two
    dimensions.
    """
    node, weight = tensor([-math.sqrt(3), 0.0, math.sqrt(3)]), tensor([1 / 6, 2 / 3, 1 / 6])
    return torch.cartesian_prod(node, node) + mean, torch.outer(weight, weight).reshape(-1)


def roots(metric: torch.Tensor) -> list[torch.Tensor]:
    """Three different W with W^T W = G."""
    return [torch.linalg.inv(whitening_matrix(metric, kind)).mT for kind in KINDS]


def metric_root(metric: torch.Tensor) -> torch.Tensor:
    """The symmetric root G^(1/2)."""
    return torch.linalg.inv(whitening_matrix(metric))


def signal() -> torch.Tensor:
    """A correlated signal of mean zero, 400 samples of 3 variables."""
    x = normal(400, 3) @ normal(3, 3, seed=1)
    return x - x.mean(0)


def second_moment(x: torch.Tensor) -> torch.Tensor:
    return x.mT @ x / len(x)


def machine(seed: int = 0, units: str = "01", n: int = 4):
    """An enumerable machine, parameters, and the distribution of 50 samples of another such
    machine.
    """
    model = BoltzmannMachine(n, units)
    theta, true = normal(2, model.parameters, seed=seed)
    x = model.sample(true, 50, generator=torch.Generator().manual_seed(seed))
    return model, theta, x, model.empirical(x)


def descend(theta, gradient, steps, step):
    """theta after some steps theta + step(gradient(theta))."""
    for _ in range(steps):
        theta = theta + step(gradient(theta))
    return theta


# ---- Section 1.1


def test_equation_1():
    x = tensor([0.7, -1.3])
    printed = (
        1
        / (2 * math.pi)
        * math.exp(-0.5 * (0.7 - (3 * 1.0 + 1 / 3 * -1.0)) ** 2 - 0.5 * (-1.3 - 1 / 3 * 1.0) ** 2)
    )
    assert GAUSSIAN.log_prob(THETA, x).exp().item() == pytest.approx(printed, rel=1e-12)
    axis = torch.linspace(-12, 12, 241, dtype=torch.float64)
    density = GAUSSIAN.log_prob(THETA, torch.cartesian_prod(axis, axis)).exp()
    assert density.sum().item() * 0.1**2 == pytest.approx(1, rel=1e-10)
    assert GAUSSIAN.log_prob(THETA.flip(0), x).exp().item() < 0.5 * printed


def test_equation_2():
    x, weight = quadrature(MEAN)
    J = -(weight * GAUSSIAN.log_prob(THETA, x)).sum()
    assert close(GAUSSIAN.nll(THETA, MEAN), J, 1e-12)
    assert not close(GAUSSIAN.nll(THETA, MEAN), -J, 1e-3)


def test_equation_3():
    gradient = torch.func.grad(GAUSSIAN.nll)(THETA, MEAN)
    step = GAUSSIAN.path(THETA, MEAN, lr=0.01, steps=1).diff(dim=0)[0]
    assert close(step, -0.01 * gradient, 1e-12)
    assert (
        GAUSSIAN.nll(THETA + step, MEAN)
        < GAUSSIAN.nll(THETA, MEAN)
        < GAUSSIAN.nll(THETA - step, MEAN)
    )


def test_equation_4():
    x, weight = quadrature(MEAN)
    one, two = x[:, 0] - (3 * THETA[0] + THETA[1] / 3), x[:, 1] - THETA[0] / 3
    printed = torch.stack([(weight * (3 * one + two / 3)).sum(), (weight * one / 3).sum()])
    assert close(-GAUSSIAN.gradient(THETA, MEAN), printed, 1e-12)
    assert not close(GAUSSIAN.gradient(THETA, MEAN), printed, 1e-3)


# ---- Section 1.2


def test_equation_5():
    step = 1e-3 * tensor([0.3, -2.0])
    double_sum = sum(G[i, j] * step[i] * step[j] for i in range(2) for j in range(2))
    assert close(double_sum, step @ G @ step, 1e-14)
    # What the length measures: the root mean square change of log q(x), and twice the KL
    # divergence.
    x, weight = quadrature(M @ THETA)
    change = GAUSSIAN.log_prob(THETA + step, x) - GAUSSIAN.log_prob(THETA, x)
    assert (weight * change.square()).sum().item() == pytest.approx(double_sum.item(), rel=1e-5)
    assert 2 * GAUSSIAN.kl(THETA + step, M @ THETA).item() == pytest.approx(
        double_sum.item(), rel=1e-9
    )
    assert not close(double_sum, step @ step, 1e-12)


# ---- Section 1.3


def test_equation_6():
    x = signal()
    brute = sum(torch.outer(row, row) for row in x) / len(x)
    assert close(Whitener().fit(x).covariance, brute, 1e-12)
    assert not close(
        Whitener().fit(x).covariance, torch.cov(x.mT), 1e-4
    )  # the divisor is n, not n - 1


def test_equation_7():
    whitener = Whitener("cholesky").fit(signal())
    dx = tensor([0.4, -1.0, 2.0])
    distance = dx @ torch.linalg.solve(whitener.covariance, dx)
    moved = whitener.transform(torch.stack([dx, torch.zeros_like(dx)])).diff(dim=0)[0]
    assert close(moved.square().sum(), distance, 1e-12)
    assert not close(dx @ whitener.covariance @ dx, distance, 1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_equation_8(kind):
    x = signal()
    W = whitening_matrix(second_moment(x), kind)
    y = x @ W.mT
    for moment in (second_moment(y), W @ second_moment(x) @ W.mT):
        assert close(moment, torch.eye(3, dtype=torch.float64), 1e-12)
    assert kind == "zca" or not close(
        W.mT @ second_moment(x) @ W, torch.eye(3, dtype=torch.float64), 1e-2
    )


def test_equation_9():
    sigma = second_moment(signal())
    W = whitening_matrix(sigma, "zca")
    assert close(W, W.mT, 1e-12)
    assert float(torch.linalg.eigvalsh(W)[0]) > 0
    assert close(torch.linalg.inv(W @ W), sigma)
    assert not close(whitening_matrix(sigma, "pca"), W, 1e-2)


def test_equation_10():
    x = signal()
    y = Whitener("zca").fit(x).transform(x)
    values, vectors = torch.linalg.eigh(second_moment(x))
    assert close(y, x @ (vectors @ torch.diag(values**-0.5) @ vectors.mT))
    assert not close(y, x @ (vectors @ torch.diag(1 / values) @ vectors.mT), 1e-2)


# ---- Section 1.4


def test_equation_11():
    """phi = W theta: the inner optimizer meets exactly that vector."""
    for kind, W in zip(["symmetric", "pca", "cholesky"], roots(G), strict=True):
        theta = THETA.clone().requires_grad_()
        optimizer = natural_space(
            [theta], G, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1.0), root=kind
        )
        theta.grad = torch.zeros(2, dtype=torch.float64)
        optimizer.step()  # with no gradient, decay alone shrinks phi, and with it theta
        assert close(theta.detach(), torch.linalg.solve(W, 0.9 * (W @ THETA)))
        assert close(optimizer.state[theta]["phi"], 0.9 * (W @ THETA))


@pytest.mark.parametrize("number", [12, 13, 14])
def test_equations_12_to_14(number):
    """Lengths agree: |dphi|^2 = |dtheta|^2, written out further with each number."""
    step = normal(2)
    in_theta = {
        12: 2 * GAUSSIAN.kl(THETA + step, M @ THETA),
        13: step @ G @ step,
        14: step @ G @ step,
    }[number]
    for W in roots(G):
        dphi = W @ (THETA + step) - W @ THETA
        in_phi = {12: dphi.norm() ** 2, 13: dphi @ IDENTITY @ dphi, 14: dphi @ dphi}[number]
        assert close(in_phi, in_theta)
        assert not close(in_phi, step @ step, 1e-3)


def test_equation_15():
    """dphi = W dtheta, and so the metric on phi is the identity: W^-T G W^-1 = I."""
    for W in roots(G):
        inverse = torch.linalg.inv(W)
        assert close(inverse.mT @ G @ inverse, IDENTITY, 1e-9)
    assert not close(metric_root(G).mT @ G @ metric_root(G), IDENTITY, 1e-2)


def test_equation_16():
    step = normal(2)
    for W in roots(G):
        assert close(step @ W.mT @ W @ step, step @ G @ step)
        assert close(W.mT @ W, G)
    lower = torch.linalg.cholesky(G)  # L L^T = G, so L^T is a root and L is none
    assert close(lower @ lower.mT, G)
    assert not close(lower.mT @ lower, G, 1e-2)


def test_equation_17(cases):
    expected = tensor(cases("whitening")["g2d_phi"]["expected"]["G_half"])
    assert close(metric_root(G), expected, 1e-8)
    assert not close(torch.linalg.inv(whitening_matrix(G, "cholesky")), expected, 1e-2)


def test_equation_18(cases):
    expected = tensor(cases("whitening")["g2d_phi"]["expected"]["phi"])
    assert close(metric_root(G) @ THETA, expected, 1e-8)
    assert not close(G @ THETA, expected, 1e-2)


# ---- Section 1.5


def in_phi(W: torch.Tensor):
    """The objective as a function of the natural parameters."""
    return lambda phi: GAUSSIAN.nll(torch.linalg.solve(W, phi), MEAN)


def one_step_in_phi(root):
    """theta after one plain step of size 0.1 in the natural parameter space."""
    theta = THETA.clone().requires_grad_()
    theta.grad = GAUSSIAN.gradient(THETA, MEAN)
    natural_space([theta], G, lambda phi: torch.optim.SGD(phi, lr=0.1), root=root).step()
    return theta.detach()


def test_equation_19():
    """A descent step in phi is minus its gradient, as in Eqs. 3 and 28; with the printed sign J
    grows.
    """
    W = metric_root(G)
    phi = W @ THETA
    step = 0.1 * torch.func.grad(in_phi(W))(phi)
    assert close(one_step_in_phi("symmetric"), torch.linalg.solve(W, phi - step), 1e-9)
    assert in_phi(W)(phi - step) < in_phi(W)(phi) < in_phi(W)(phi + step)


def test_equation_20():
    for W in roots(G):
        jacobian = torch.linalg.inv(W)  # d theta / d phi^T
        expected = torch.func.grad(in_phi(W))(W @ THETA)
        assert close(jacobian.mT @ GAUSSIAN.gradient(THETA, MEAN), expected)
    assert not close(
        jacobian @ GAUSSIAN.gradient(THETA, MEAN), expected, 1e-2
    )  # the transpose matters


def test_equation_21():
    W = metric_root(G)
    expected = torch.func.grad(in_phi(W))(W @ THETA)
    assert close(whitening_matrix(G) @ GAUSSIAN.gradient(THETA, MEAN), expected)
    assert not close(W @ GAUSSIAN.gradient(THETA, MEAN), expected, 1e-2)


def test_equation_22():
    dphi = normal(2)
    for W in roots(G):
        jacobian = torch.autograd.functional.jacobian(
            lambda phi, W=W: torch.linalg.solve(W, phi), W @ THETA
        )
        moved = torch.linalg.solve(W, W @ THETA + dphi) - THETA
        assert close(jacobian @ dphi, moved)
    assert not close(jacobian.mT @ dphi, moved, 1e-2)


def test_equation_23():
    W, dphi = metric_root(G), normal(2)
    assert close(torch.linalg.solve(W, W @ THETA + dphi) - THETA, whitening_matrix(G) @ dphi)
    assert not close(W @ dphi, whitening_matrix(G) @ dphi, 1e-2)


def test_equation_24():
    """One plain step in phi is minus G^-1 grad J in theta for any root; with the printed sign J
    grows.
    """
    natural = damped_solve(G, GAUSSIAN.gradient(THETA, MEAN), 0.0)
    for root in ("symmetric", "pca", "cholesky"):
        assert close(one_step_in_phi(root) - THETA, -0.1 * natural, 1e-9)
    J = [GAUSSIAN.nll(THETA + sign * 0.1 * natural, MEAN) for sign in (-1, 0, 1)]
    assert J[0] < J[1] < J[2]


def test_equation_25():
    """The path along G^-1 grad J does not depend on a linear re-parametrization; that along grad J
    does.
    """
    inverse = torch.linalg.inv(G)
    path = GAUSSIAN.path(THETA, MEAN, lr=0.3, steps=10, inverse_metric=inverse)
    plain = GAUSSIAN.path(THETA, MEAN, lr=0.1, steps=10)
    for seed in range(10):
        A = normal(2, 2, seed=seed)  # theta = A eta
        other = LinearGaussian(M @ A)
        start = torch.linalg.solve(A, THETA)
        inverse = torch.linalg.inv(other.fisher())
        again = other.path(start, MEAN, lr=0.3, steps=10, inverse_metric=inverse)
        assert close(again @ A.mT, path, 1e-6)
        assert not close(other.path(start, MEAN, lr=0.1, steps=10) @ A.mT, plain, 1e-2)


# ---- Sections 2.1 and 2.2


def test_equation_26():
    """Among steps of one length |dtheta|, the natural gradient changes J most (in Figure 1's
    valley).
    """
    gradient = GAUSSIAN.gradient(tensor([0.12, -1.09]), ZERO)
    natural = damped_solve(G, gradient, 0.0)
    assert close(G @ natural, gradient, 1e-9)

    def slope(direction):
        return (gradient @ direction / (direction @ G @ direction).sqrt()).item()

    others = [normal(2, seed=seed) for seed in range(200)]
    assert max(slope(d) for d in others) <= slope(natural) + 1e-12
    assert slope(gradient) < 0.95 * slope(natural)


@pytest.mark.parametrize("number", [27, 28])
def test_equations_27_and_28(cases, number):
    """theta_(t+1) = theta_t + step (27), with the step along minus the natural gradient (28)."""
    case = cases("whitening")["g2d_ng_path"]
    inverse, theta = torch.linalg.inv(G), THETA
    path = GAUSSIAN.path(THETA, ZERO, lr=0.1, steps=5, inverse_metric=inverse)
    for expected, got in zip(tensor(case["expected"]["path"]), path, strict=True):
        assert close(theta, expected, 1e-8)
        assert close(got, expected, 1e-8)
        theta = theta + -0.1 * (inverse @ GAUSSIAN.gradient(theta, ZERO))
    assert not close(THETA + 0.1 * (inverse @ GAUSSIAN.gradient(THETA, ZERO)), path[1], 1e-2)


def test_equation_29():
    model, theta, x, p = machine()
    assert close(model.nll(theta, p), -sum(model.log_prob(theta, row) for row in x) / len(x))
    assert not close(model.nll(theta, p), -model.log_prob(theta, model.states).mean(), 1e-2)


def scores(model, theta):
    """The gradient of log q at every state."""
    return torch.func.vmap(torch.func.grad(model.log_prob), (None, 0))(theta, model.states)


def test_equation_30():
    assert float((G - tensor([[9 + 1 / 9, 1.0], [1.0, 1 / 9]])).abs().max()) < 1e-12
    model, theta, _, p = machine()
    g, q = scores(model, theta), model.distribution(theta)
    brute = sum(q_x * torch.outer(g_x, g_x) for q_x, g_x in zip(q, g, strict=True))
    assert close(model.fisher(theta), brute)
    step = 1e-4 * normal(10)
    assert 2 * model.kl(theta + step, q).item() == pytest.approx(
        (step @ brute @ step).item(), rel=1e-3
    )
    assert not close(model.data_fisher(theta, p), brute, 1e-2)


# ---- Sections 2.3 to 2.5


def test_equation_31():
    model, theta, x, p = machine()
    brute = gradient_second_moment(model.log_prob, theta, x)
    assert close(model.data_fisher(theta, p), brute)
    # It is the Fisher matrix where model and data agree, and not elsewhere.
    assert close(model.data_fisher(theta, model.distribution(theta)), model.fisher(theta))
    assert not close(brute, model.fisher(theta), 1e-2)


def test_equation_32():
    model, theta, _, _ = machine()
    weights = torch.exp(-model.energy(theta, model.states))
    assert close(model.distribution(theta), weights / weights.sum())
    assert not close(model.distribution(theta), 1 / weights / (1 / weights).sum(), 1e-2)


def test_equation_33():
    model, theta, x, p = machine()
    assert close(energy_metric(model.energy, theta, x), second_moment(model.features(x)))
    assert close(model.energy_metric(p), second_moment(model.features(x)))
    # It lacks the gradient of log Z: adding that back gives Eq. 31.
    mean, q_mean = model.features(x).mean(0), model.distribution(theta) @ model.statistics
    cross = torch.outer(mean, q_mean)
    assert close(
        model.energy_metric(p) - cross - cross.mT + torch.outer(q_mean, q_mean),
        model.data_fisher(theta, p),
    )
    assert not close(model.energy_metric(p), model.data_fisher(theta, p), 1e-2)


def test_equation_34():
    model, theta, _, _ = machine()
    squares = (model.distribution(theta)[:, None] * scores(model, theta).square()).sum(0)
    assert close(diagonal(model.fisher(theta)), torch.diag(squares))
    assert not close(diagonal(model.fisher(theta)), model.fisher(theta), 1e-3)


# ---- Section 2.6


@pytest.mark.parametrize("metric", [G, normal(2, 2)], ids=["symmetric", "general"])
def test_equation_35(metric):
    printed = torch.linalg.inv(metric.mT @ metric + 0.01 * IDENTITY) @ metric.mT
    assert close(stochastic_robust_inverse(metric, 0.01), printed)
    assert not close(stochastic_robust_inverse(metric, 0.02), printed, 1e-3)


def test_equation_35_by_its_definition():
    """It minimizes the mean of |(G + U) x - g|^2 over U with E U^T U = eps I (Boyd, Section
    6.4.1).
    """
    metric, g, eps = normal(2, 2), normal(2, seed=1), 0.3
    x = stochastic_robust_inverse(metric, eps) @ g
    rotation = torch.linalg.qr(normal(2, 2, seed=2)).Q
    U = eps**0.5 * torch.stack([rotation, -rotation])  # two equally likely values, of mean zero

    def expected_error(x):
        return ((metric + U) @ x - g).square().sum(-1).mean()

    assert close(torch.func.grad(expected_error)(x), ZERO)
    assert float(torch.func.grad(expected_error)(damped_solve(metric, g, eps)).norm()) > 0.1


def test_equation_36():
    """G times the natural gradient is the gradient; the ridge solution tends to it with eps."""
    gradient = GAUSSIAN.gradient(THETA, MEAN)
    natural = ridge_solve(G, gradient, 0.0)
    assert close(G @ natural, gradient, 1e-9)
    errors = [
        float((ridge_solve(G, gradient, eps) - natural).norm()) for eps in (1e-2, 1e-6, 1e-10)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3 * errors[0]


# ---- Section 2.7


def test_equation_37(cases):
    """Steepest descent in phi = G^(1/2)(theta_fixed) theta takes natural-gradient steps with that
    G.
    """
    case = cases("whitening")["phi_space_equals_theta_space"]
    Z, y = tensor(case["inputs"]["Z"]), tensor(case["inputs"]["y"])

    def fisher(theta):
        p = torch.sigmoid(Z @ theta)
        return (Z.mT * (p * (1 - p))) @ Z / len(Z)

    def gradient(theta):
        return Z.mT @ (torch.sigmoid(Z @ theta) - y) / len(Z)

    def run(period):
        theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        optimizer = natural_space(
            [theta],
            lambda: fisher(theta.detach()),
            lambda p: torch.optim.SGD(p, lr=0.5),
            period=period,
        )
        for _ in range(3):
            theta.grad = gradient(theta.detach())
            optimizer.step()
        return theta.detach()

    fixed = descend(
        torch.zeros(3, dtype=torch.float64),
        gradient,
        3,
        lambda g: -0.5 * torch.linalg.solve(fisher(torch.zeros(3, dtype=torch.float64)), g),
    )
    assert close(run(None), fixed)
    assert close(run(1), tensor(case["expected"]["path"])[-1], 1e-8)
    assert not close(fixed, run(1), 1e-2)


# ---- Section 2.8


def squared_error(theta, x, y):
    """The penalty l(x, y; theta) of one pair."""
    return (y - x @ theta) ** 2


def regression(cases):
    inputs = cases("whitening")["l2_metrics"]["inputs"]
    return tensor(inputs["X"]), tensor(inputs["y"]), tensor(inputs["theta"])


def test_equation_38(cases):
    """J is an average of a loss, and its gradient the average of per-example gradients."""
    X, y, theta = regression(cases)
    J = torch.func.grad(
        lambda theta: torch.stack(
            [squared_error(theta, *pair) for pair in zip(X, y, strict=True)]
        ).mean()
    )
    expected = tensor(cases("whitening")["l2_metrics"]["expected"]["grad_J"])
    assert close(J(theta), expected, 1e-8)
    assert not close(3 * J(theta), expected, 1e-2)


def test_equation_39(cases):
    X, y, theta = regression(cases)
    expected = tensor(cases("whitening")["l2_metrics"]["expected"]["eq39"])
    assert close(gradient_second_moment(squared_error, theta, X, y), expected, 1e-8)
    mean = tensor(cases("whitening")["l2_metrics"]["expected"]["grad_J"])
    assert not close(torch.outer(mean, mean), expected, 1e-2)


@pytest.mark.parametrize("number", [40, 41])
def test_equations_40_and_41(cases, number):
    """The joint and the conditional give the same metric, because p(x) does not depend on theta."""
    X, _, theta = regression(cases)

    def log_q(theta, x, y):
        conditional = -squared_error(theta, x, y) - 0.5 * math.log(math.pi)
        return conditional + (-0.5 * (x @ x) if number == 40 else 0.0)  # log p(x) of some p

    # Averages over y from q(y | x) by two nodes, mean plus and minus the deviation 1/sqrt(2): exact
    # here.
    inputs, offset = torch.cat([X, X]), tensor([[0.5**0.5], [-(0.5**0.5)]])
    metric = gradient_second_moment(log_q, theta, inputs, (X @ theta + offset).reshape(-1))
    expected = tensor(cases("whitening")["l2_metrics"]["expected"]["eq41"])
    assert close(metric, expected, 1e-8)
    assert close(
        2 * second_moment(X), expected, 1e-8
    )  # exp(-|y - f|^2) has variance 1/2, hence the 2
    assert not close(second_moment(X), expected, 1e-2)


def relative_length(W, dW):
    """|dW|^2 of the metric that is invariant to right multiplication."""
    return (dW @ torch.linalg.inv(W)).square().sum()


def test_equation_42():
    """It holds when each length is taken with the metric at its own point, not with one metric for
    both.
    """
    W, dW, Y = normal(3, 3), 1e-3 * normal(3, 3, seed=1), normal(3, 3, seed=2)

    def T(V):
        return V @ Y

    change = T(W + dW) - T(W)
    # For the natural gradient: on the moved problem, V -> J(V Y^-1) at T(W), it is moved as well.
    J = separation_objective(normal(40, 3, seed=3))
    natural = natural_relative_gradient(torch.func.grad(J)(W), W)
    moved = torch.func.grad(lambda V: J(V @ torch.linalg.inv(Y)))(T(W))
    assert close(natural_relative_gradient(moved, T(W)), T(natural), 1e-8)
    assert not close(moved, T(torch.func.grad(J)(W)), 1e-2)
    assert close(relative_length(T(W), change), relative_length(W, dW))
    assert not close(relative_length(W, change) * 1e6, relative_length(W, dW) * 1e6, 1e-2)


# ---- Section 2.9


def separation_objective(x):
    return lambda W: -torch.linalg.slogdet(W).logabsdet + (x @ W.mT).cosh().log().sum(1).mean()


def test_equation_43():
    """It is the inverse of the invariant metric times the gradient; minus that direction
    descends.
    """
    W, J = normal(3, 3), separation_objective(normal(40, 3, seed=1))
    gradient = torch.func.grad(J)(W)
    inverse = torch.linalg.inv(W)
    metric = torch.kron(torch.eye(3, dtype=torch.float64), inverse @ inverse.mT)
    natural = natural_relative_gradient(gradient, W)
    assert close(natural, torch.linalg.solve(metric, gradient.reshape(-1)).reshape(3, 3), 1e-8)
    assert J(W - 0.01 * natural) < J(W) < J(W + 0.01 * natural)
    part = W.clone().requires_grad_()
    part.grad = gradient
    RelativeGradient([part], lr=0.01).step()
    assert close(part.detach(), W - 0.01 * gradient @ W.mT @ W)
    assert not close(W @ W.mT @ gradient, natural, 1e-2)


def vec_metric(W):
    """G(W) on row-major vec(dW)."""
    inverse = torch.linalg.inv(W)
    return torch.kron(torch.eye(len(W), dtype=torch.float64), inverse @ inverse.mT)


def test_equation_44():
    W, dW, Y = normal(3, 3), normal(3, 3, seed=1), normal(3, 3, seed=2)
    before = dW.reshape(-1) @ vec_metric(W) @ dW.reshape(-1)
    moved = (dW @ Y).reshape(-1)
    assert close(moved @ vec_metric(W @ Y) @ moved, before, 1e-8)
    assert close(before, relative_length(W, dW))
    natural = torch.linalg.solve(vec_metric(W), dW.reshape(-1)).reshape(3, 3)
    assert close(natural_relative_gradient(dW, W), natural, 1e-8)
    assert not close(moved @ vec_metric(W) @ moved, before, 1e-2)
    left = (Y @ dW).reshape(-1)
    assert not close(left @ vec_metric(Y @ W) @ left, before, 1e-2)


def test_equation_45():
    """A small step along H times the descent direction descends, for every positive definite H."""
    gradient = GAUSSIAN.gradient(THETA, MEAN)
    for seed in range(20):
        H = normal(2, 2, seed=seed)
        J = GAUSSIAN.nll(
            GAUSSIAN.path(THETA, MEAN, lr=1e-6, steps=1, inverse_metric=H @ H.mT), MEAN
        )
        assert J[1] < J[0]
    indefinite = IDENTITY - 2 * torch.outer(gradient, gradient) / gradient.square().sum()
    assert GAUSSIAN.nll(THETA - 1e-6 * indefinite @ gradient, MEAN) > GAUSSIAN.nll(THETA, MEAN)


# ---- Misprints: the printed form fails, the right one passes


def test_erratum_sign_of_the_steps():
    """Section 1.4 step 2, Eqs. 19 and 24: the printed recipe climbs, with a minus it learns."""
    Z, y = (
        tensor(
            [
                [2.0, 0.5, 1.0],
                [-1.0, 0.3, 1.0],
                [0.4, -1.2, 1.0],
                [1.5, 1.1, 1.0],
                [-2.2, -0.1, 1.0],
            ]
        ),
        tensor([1.0, 0, 1, 0, 0]),
    )

    def loss(theta):
        return torch.nn.functional.binary_cross_entropy_with_logits(Z @ theta, y)

    def after_ten_steps(sign):
        theta = torch.zeros(3, dtype=torch.float64)
        for _ in range(10):
            p = torch.sigmoid(Z @ theta)
            A = whitening_matrix((Z.mT * (p * (1 - p))) @ Z / len(Z), eps=1e-12)
            phi = torch.linalg.solve(A, theta)
            phi = phi + sign * 0.1 * (A @ torch.func.grad(loss)(theta))
            theta = A @ phi
        return loss(theta).item()

    start = math.log(2)
    assert after_ten_steps(-1) < start - 0.02
    assert after_ten_steps(1) > start + 0.02


def test_erratum_sign_of_the_relative_gradient():
    W, J = normal(3, 3), separation_objective(normal(40, 3, seed=1))
    printed, right = (
        descend(
            W,
            torch.func.grad(J),
            1,
            lambda g, sign=sign: sign * 0.01 * natural_relative_gradient(g, W),
        )
        for sign in (1, -1)
    )
    assert J(right) < J(W) < J(printed)


def test_erratum_log_likelihood():
    """Section 1.2 and the caption of Figure 1: J is minus the log likelihood, as Eq. 4 needs."""
    x, weight = quadrature(MEAN)

    def log_likelihood(theta):
        return (weight * GAUSSIAN.log_prob(theta, x)).sum()

    assert close(log_likelihood(THETA), -GAUSSIAN.nll(THETA, MEAN))
    assert close(torch.func.grad(log_likelihood)(THETA), -GAUSSIAN.gradient(THETA, MEAN))
    step = -0.01 * GAUSSIAN.gradient(THETA, MEAN)
    assert log_likelihood(THETA + step) > log_likelihood(THETA)


def test_erratum_length_and_change_of_the_objective():
    """Section 1.2: |dtheta| is the rms change of log q(x); at the optimum J changes by half its
    square.
    """
    step = 1e-2 * tensor([0.3, -2.0])
    length = (step @ G @ step).sqrt().item()
    x, weight = quadrature(M @ THETA)
    change = GAUSSIAN.log_prob(THETA + step, x) - GAUSSIAN.log_prob(THETA, x)
    assert (weight * change.square()).sum().sqrt().item() == pytest.approx(length, rel=1e-4)
    J_change = (GAUSSIAN.nll(THETA + step, M @ THETA) - GAUSSIAN.nll(THETA, M @ THETA)).item()
    assert J_change == pytest.approx(length**2 / 2, rel=1e-6)
    assert J_change < 0.1 * length


def steps_until(kl: torch.Tensor, threshold: float) -> int:
    """The first step from which on the divergence stays below the threshold."""
    return int((kl >= threshold).nonzero()[-1]) + 1


def divergence(gain: torch.Tensor, lr: float, steps: int) -> torch.Tensor:
    """KL after 0..steps steps on the problem of Figure 1, with eigenvalue i of G inverted to
    gain[i].
    """
    values, vectors = torch.linalg.eigh(G)
    t = torch.arange(steps + 1, dtype=torch.float64)
    contraction = (1 - lr * gain * values) ** (2 * t[:, None])
    return 0.5 * (values * (vectors.mT @ THETA) ** 2 * contraction).sum(1)


VALUES = torch.linalg.eigvalsh(G)


def test_the_closed_form_of_figure_1_is_right():
    for inverse, gain in (
        (IDENTITY, torch.ones(2, dtype=torch.float64)),
        (torch.linalg.inv(G), 1 / VALUES),
    ):
        path = GAUSSIAN.path(THETA, ZERO, lr=0.1, steps=50, inverse_metric=inverse)
        assert close(GAUSSIAN.kl(path, ZERO), divergence(gain, 0.1, 50), 1e-8)


def test_erratum_figure_1_at_equal_step_size():
    """Figure 1b: at the same step size, which method "converges more quickly" depends on the
    threshold.
    """
    plain, natural = (
        divergence(torch.ones(2, dtype=torch.float64), 0.1, 10_000),
        divergence(1 / VALUES, 0.1, 10_000),
    )
    assert (steps_until(plain, 1e-3), steps_until(natural, 1e-3)) == (2, 39)
    assert (steps_until(plain, 1e-4), steps_until(natural, 1e-4)) == (7833, 50)


def test_erratum_ridge_is_no_alternative_to_equation_35():
    gradient = GAUSSIAN.gradient(THETA, MEAN)
    by_inverse, by_ridge = (
        stochastic_robust_inverse(G, 0.01) @ gradient,
        ridge_solve(G, gradient, 0.01),
    )
    assert float((by_inverse - by_ridge).abs().max()) < 1e-12
    assert (
        float((by_inverse - damped_solve(G, gradient, 0.01)).norm()) > 0.1
    )  # this one is different


def test_erratum_eps_compares_with_squared_eigenvalues():
    """Section 2.6, "say 0.01": directions far below sqrt(eps) = 0.1 stand still; no gain exceeds
    5.
    """
    eps = 0.01
    gain = stochastic_robust_inverse(torch.diag(VALUES), eps).diagonal()
    assert gain[0] < 0.01 * min(1 / VALUES[0], 1 / (VALUES[0] + eps))
    grid = torch.logspace(-6, 3, 2000, dtype=torch.float64)
    assert (grid / (grid**2 + eps)).max().item() == pytest.approx(1 / (2 * eps**0.5), rel=1e-3)
    regularized, damped = divergence(gain, 1.0, 10_000), divergence(1 / (VALUES + eps), 1.0, 10_000)
    plain = divergence(torch.ones(2, dtype=torch.float64), 0.2, 10_000)
    counts = [steps_until(kl, 1e-4) for kl in (regularized, plain, damped)]
    assert counts == [5852, 3917, 9]

    def best(gain):
        """Return the least number of steps over the step sizes at which the last is home."""
        curves = [divergence(gain, rate, 6_000) for rate in RATES]
        return min(steps_until(kl, 1e-4) for kl in curves if kl[-1] < 1e-4)

    assert [best(gain), best(torch.ones_like(gain))] == [3291, 4405]  # Eq. 35, steepest descent


def test_erratum_descent_only_for_small_steps():
    """Eq. 45: with the best of metrics, a step beyond twice the natural one climbs."""
    natural = damped_solve(G, GAUSSIAN.gradient(THETA, MEAN), 0.0)
    best = GAUSSIAN.nll(THETA - natural, MEAN)

    def excess(lr):
        return (
            (GAUSSIAN.nll(THETA - lr * natural, MEAN) - best) / (GAUSSIAN.nll(THETA, MEAN) - best)
        ).item()

    assert excess(0.1) == pytest.approx(0.81)
    assert excess(2.1) == pytest.approx(1.21)


def test_erratum_mean_of_the_signal():
    """Eqs. 6 and 10 as printed do not whiten a signal whose mean is not zero."""
    x = signal() + tensor([3.0, -2.0, 1.0])
    printed = x @ whitening_matrix(second_moment(x)).mT
    right = Whitener().fit(x).transform(x)
    eye = torch.eye(3, dtype=torch.float64)
    assert close(torch.cov(right.mT, correction=0), eye)
    assert close(right.mean(0), torch.zeros(3, dtype=torch.float64))
    assert not close(torch.cov(printed.mT, correction=0), eye, 0.1)
    assert float(printed.mean(0).norm()) > 0.5


def test_erratum_second_order_dependencies():
    """Section 1.3: whitening removes second-order dependencies; first-order ones (means) pass Eq.
    10.
    """
    x = signal() + tensor([3.0, -2.0, 1.0])
    y = x @ whitening_matrix(torch.cov(x.mT, correction=0)).mT
    assert close(torch.cov(y.mT, correction=0), torch.eye(3, dtype=torch.float64))
    assert float(y.mean(0).norm()) > 1


def test_erratum_systems_of_linear_equations():
    """Eqs. 8 and 16 are quadratic in W: two solutions, but not their average, as linear systems
    have.
    """
    sigma = second_moment(signal())
    W = whitening_matrix(sigma)
    eye = torch.eye(3, dtype=torch.float64)
    for solution in (W, -W, whitening_matrix(sigma, "pca"), whitening_matrix(sigma, "cholesky")):
        assert close(solution @ sigma @ solution.mT, eye)
    for pair in ((W, -W), (W, whitening_matrix(sigma, "cholesky"))):
        average = (pair[0] + pair[1]) / 2
        assert not close(average @ sigma @ average.mT, eye, 1e-2)


def test_erratum_distance_after_whitening():
    """The end of Section 1.3 prints y^T y for dy^T dy."""
    x = signal()
    y = Whitener().fit(x).transform(x)
    dx, dy = x[0] - x[1], y[0] - y[1]
    distance = dx @ torch.linalg.solve(second_moment(x), dx)
    assert close(dy @ dy, distance)
    assert not close(y[0] @ y[0], distance, 1e-2)
    assert not close(y[1] @ y[1], distance, 1e-2)


def test_erratum_quadratic_form_of_a_matrix():
    """Eq. 44 multiplies a matrix dtheta with G as if it were a vector; it needs vec(dtheta)."""
    W, dW, Y = normal(3, 3), normal(3, 3, seed=1), normal(3, 3, seed=2)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        dW.mT @ vec_metric(W) @ dW
    moved = (dW @ Y).reshape(-1)
    assert close(
        moved @ vec_metric(W @ Y) @ moved, dW.reshape(-1) @ vec_metric(W) @ dW.reshape(-1), 1e-8
    )


def preconditioned_condition(metric: torch.Tensor, hessian: torch.Tensor) -> float:
    """The condition number that descent along metric^-1 sees near the optimum."""
    A = whitening_matrix(metric)
    return condition_number(A @ hessian @ A.mT)


def random_machines(count: int = 20):
    """0/1 machines of 6 units, couplings N(0, 1/6), biases N(0, 1), and the Hessian at their
    optimum.
    """
    model = BoltzmannMachine(6)
    for seed in range(count):
        theta = torch.cat([normal(15, seed=seed) / 6**0.5, normal(6, seed=1000 + seed)])
        yield model, theta, model.fisher(theta)


def test_erratum_the_diagonal_can_make_it_worse():
    """Section 2.5: "almost all problems" does not hold for 0/1 machines; there, two blocks do
    help.
    """
    plain = [condition_number(F) for _, _, F in random_machines()]
    diagonals = [preconditioned_condition(diagonal(F), F) for _, _, F in random_machines()]
    blocks = [
        preconditioned_condition(block_diagonal(F, [15, 6]), F) for _, _, F in random_machines()
    ]
    assert sum(d > p for d, p in zip(diagonals, plain, strict=True)) >= 5
    assert sum(b < p for b, p in zip(blocks, plain, strict=True)) >= 19


def test_erratum_the_energy_metric_misses_the_mean():
    """Section 2.4: Eq. 33 leaves a bad condition number; with the mean subtracted it leaves
    none.
    """
    printed, centred = [], []
    for model, theta, F in random_machines():
        q = model.distribution(theta)
        assert preconditioned_condition(model.energy_metric(q), F) < condition_number(F)
        printed.append(preconditioned_condition(model.energy_metric(q), F))
        centred.append(preconditioned_condition(model.energy_metric(q, centred=True), F))
    assert sorted(printed)[10] > 10
    assert max(centred) < 1 + 1e-6


def test_erratum_a_random_metric_makes_things_worse():
    """Section 2.10: true of an educated guess, not of any positive definite H."""
    worse_random = worse_educated = 0
    for seed in range(100):
        A = torch.linalg.qr(normal(8, 8, seed=seed)).Q
        A = A @ torch.diag(torch.logspace(-3, 0, 8, dtype=torch.float64)) @ A.mT
        A = (A + A.mT) / 2
        B = normal(8, 8, seed=1000 + seed)
        noise = normal(8, 8, seed=2000 + seed)
        guess = A + 0.01 * second_moment(noise)  # roughly right metric
        worse_random += preconditioned_condition(B @ B.mT, A) > condition_number(A)
        worse_educated += preconditioned_condition(guess, A) > condition_number(A)
    assert worse_random >= 95
    assert worse_educated == 0


def test_erratum_unit_norm_of_an_axis():
    """Footnote 1 and Section 1.3: each axis gets unit variance; of unit norm (length), the 400
    samples of an axis have the variance 1/400.
    """
    x = signal()
    axes = torch.linalg.eigh(second_moment(x)).eigenvectors
    rotated, eye = x @ axes, torch.eye(3, dtype=torch.float64)
    right = rotated / rotated.square().mean(0).sqrt() @ axes.mT
    printed = rotated / rotated.norm(dim=0) @ axes.mT
    assert close(right, x @ whitening_matrix(second_moment(x)).mT)
    assert close(second_moment(printed), eye / len(x))


def test_erratum_unitary_transformations_from_the_left():
    """Footnote 1: R Sigma^(-1/2) whitens for every rotation R; Sigma^(-1/2) R does not."""
    sigma = second_moment(signal())
    W, R = whitening_matrix(sigma), torch.linalg.qr(normal(3, 3, seed=5)).Q
    eye = torch.eye(3, dtype=torch.float64)
    assert close(R @ W @ sigma @ (R @ W).mT, eye)
    assert not close(W @ R @ sigma @ (W @ R).mT, eye, 0.1)


def test_erratum_penalty_is_minus_the_log_likelihood():
    """Section 2.8, item 2: a step that raises the log likelihood of the Gaussian lowers the
    penalty.
    """
    x, y, theta = normal(20, 3), normal(20, seed=1), 0.3 * normal(3, seed=2)

    def penalty(theta):
        return (y - torch.tanh(x @ theta)).square().sum()

    def log_likelihood(theta):
        return torch.distributions.Normal(torch.tanh(x @ theta), 0.5**0.5).log_prob(y).sum()

    slope = torch.func.grad(log_likelihood)(theta)
    assert close(slope, -torch.func.grad(penalty)(theta))
    assert penalty(theta + 1e-3 * slope) < penalty(theta)


# ---- the algorithm of Section 1.4, as the reference writes it


def machine_problem():
    """A Boltzmann machine, its objective, a start and the data; the metric changes with theta."""
    machine = BoltzmannMachine(4)
    truth, theta = 0.5 * normal(machine.parameters, seed=1), 0.3 * normal(10, seed=2)
    p = machine.distribution(truth)
    return machine, (lambda theta: machine.kl(theta, p)), theta, p


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_in_phi_is_the_natural_gradient_step_for_every_root(kind):
    machine, J, theta, p = machine_problem()
    G, g = machine.fisher(theta), machine.gradient(theta, p)
    W = torch.linalg.inv(whitening_matrix(G, kind)).mT
    torch.testing.assert_close(W.mT @ W, G)
    natural = theta - 0.5 * torch.linalg.solve(G, g)
    torch.testing.assert_close(reference.step_in_phi(J, theta, W, 0.5), natural)
    # as printed, without the minus, it goes uphill
    assert J(reference.step_in_phi(J, theta, W, -0.5)) > J(theta) > J(natural)


def test_the_lower_cholesky_factor_is_no_root():
    machine, J, theta, p = machine_problem()
    G, g = machine.fisher(theta), machine.gradient(theta, p)
    L = torch.linalg.cholesky(G)
    natural = theta - 0.5 * torch.linalg.solve(G, g)
    torch.testing.assert_close(reference.step_in_phi(J, theta, L.mT, 0.5), natural)
    assert (reference.step_in_phi(J, theta, L, 0.5) - natural).norm() > 0.1 * natural.norm()


def test_the_algorithm_is_the_librarys_natural_space():
    machine, J, start, p = machine_problem()
    theta = start.clone().requires_grad_()
    optimizer = natural_space(
        [theta],
        lambda: machine.fisher(theta.detach()),
        lambda phi: torch.optim.SGD(phi, lr=0.3),
        period=1,
    )
    for _ in range(4):
        theta.grad = machine.gradient(theta.detach(), p)
        optimizer.step()
    slow = reference.descend_in_phi(J, start, machine.fisher, 0.3, 4)
    torch.testing.assert_close(theta.detach(), slow, rtol=1e-9, atol=1e-12)
    kept = reference.descend_in_phi(J, start, lambda _: machine.fisher(start), 0.3, 4)
    assert (kept - slow).norm() > 1e-3  # the metric is taken anew at every step
