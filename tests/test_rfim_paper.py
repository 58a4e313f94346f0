"""Every numbered equation of the rfim paper, and every misprint with its counter-example.

Each test has a control: a nearby wrong form, often the printed one, that it tells apart from the
right one. Responses are summed over one by one, Gaussian ones on a grid that is exact to float64.
"""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import nn

from natcompanion import metrics, reference, relative
from natcompanion.chapters.experiments import _rfim_neuron as single
from natcompanion.likelihoods import Bernoulli, Categorical
from natcompanion.optim import RNGD, MirrorDescent, NaturalGradient, bregman_divergence
from natcompanion.solvers import damped_solve
from natcompanion.whitening import Whitener


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gap(a, b) -> float:
    """The distance of ``a`` from ``b``, relative to ``b``."""
    a, b = torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64)
    return float((a - b).norm() / b.norm())


def hessian(function):
    """The second derivative of a function of one tensor, by reverse mode twice."""
    return torch.func.jacrev(torch.func.jacrev(function))


W = tensor([[0.3, -0.2, 0.4], [-0.6, 0.5, -0.1]])
C = tensor([[0.5, 0.2], [-0.3, 0.8], [0.7, -0.4]])
X = tensor([[0.5, -1.0], [2.0, 0.3], [-0.7, 0.9], [0.1, 0.2]])
X1 = X[0]
A1 = relative.augment(X1)
XX = torch.outer(A1, A1)
SMOOTH = {"sigma": 0.7, "iota": 0.1, "omega": 0.3}
ELU = {"sigma": 0.7, "alpha": 0.6}


def brute(
    activation: str, w: torch.Tensor = W[0], x: torch.Tensor = X1, form: str = "scores", **options
):
    """The metric of one neuron, or of a layer, at one input, summed over its responses."""
    w = torch.atleast_2d(w)
    y, volume = reference.responses(activation, len(w), options.get("sigma", 1.0))
    return reference.brute_force_rfim(
        lambda t, y: reference.layer_log_prob(t, x, y, activation, **options), w, y, volume, form
    )


def network(sizes=(4, 5, 4, 3), seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).double()


# ---- Section 1


def location_scale(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """log of a Gaussian density with mean theta[0] and log standard deviation theta[1]."""
    z = (x - theta[0]) / theta[1].exp()
    return -z.square() / 2 - theta[1] - math.log(2 * math.pi) / 2


LINE, CELL = torch.linspace(-14, 14, 101, dtype=torch.float64), 0.28


def test_equation_1():
    theta = tensor([0.4, -0.2])
    G = reference.brute_force_rfim(location_scale, theta, LINE, CELL)
    assert gap(G, torch.diag(tensor([math.exp(0.4), 2.0]))) < 1e-12
    scores = torch.func.jacrev(lambda t: location_scale(t, LINE))(theta)
    mean = (location_scale(theta, LINE).exp() * CELL) @ scores
    assert float(mean.norm()) < 1e-12  # the square of the mean score is no metric


def test_equation_2():
    theta = tensor([0.4, -0.2])
    G = reference.brute_force_rfim(location_scale, theta, LINE, CELL)
    for form in ("curvature", "roots"):
        assert gap(reference.brute_force_rfim(location_scale, theta, LINE, CELL, form), G) < 1e-12
    assert gap(reference.brute_force_rfim(location_scale, theta, LINE, CELL, "roots") / 4, G) > 0.5
    # -E[Hessian] needs the expectation under the model itself.
    hessians = hessian(lambda t: location_scale(t, LINE))(theta)
    other = location_scale(theta + 0.5, LINE).exp() * CELL
    assert gap(-torch.einsum("k,kij->ij", other, hessians), G) > 0.1


def test_equation_3():
    """The Hessian at observed labels comes to the Fisher matrix, if the labels are those of the
    model.
    """
    model, errors = network((2, 3, 2)), {}
    for n in (50, 20_000):
        x = normal(n, 2, seed=3)
        F = metrics.fisher(model, x, Categorical())
        own = Categorical().sample(model(x).detach(), generator=torch.Generator().manual_seed(4))
        errors[n] = gap(reference.loss_hessian(model, x, own, Categorical()), F)
    assert errors[20_000] < 0.05 < errors[50]
    assert gap(reference.loss_hessian(model, x, torch.zeros_like(own), Categorical()), F) > 0.2


def test_erratum_observed_metric_needs_labels_of_the_model():
    test_equation_3()


def test_erratum_orthogonal_parameters():
    """E[d2 l / dΘi dΘj] summed against the Jacobian vanishes off the diagonal for orthogonal
    parameters.
    """

    def moments(theta, x):  # mean and second moment: not orthogonal
        variance = theta[1] - theta[0] ** 2
        return (
            -((x - theta[0]) ** 2) / (2 * variance)
            - 0.5 * variance.log()
            - math.log(2 * math.pi) / 2
        )

    omega = tensor([0.4, -0.2])  # mean and log standard deviation: orthogonal
    to_theta = lambda o: torch.stack([o[0], o[0] ** 2 + (2 * o[1]).exp()])
    J = torch.func.jacrev(to_theta)(omega)
    I = reference.brute_force_rfim(moments, to_theta(omega), LINE, CELL, "curvature")
    assert abs(float((J.mT @ I @ J)[0, 1])) < 1e-12
    assert abs(float(I[0, 1])) > 0.1
    # Printed, there is one derivative more, by no parameter in particular. By the first, it does
    # not vanish.
    theta = to_theta(omega)
    p = moments(theta, LINE).exp() * CELL
    thirds = torch.func.vmap(torch.func.jacrev(hessian(moments)), (None, 0))(theta, LINE)
    third = torch.einsum("n,nijk->ijk", p, thirds)
    printed = torch.einsum("ia,ijk,jb->abk", J, third, J)[0, 1]
    assert float(printed[0].abs()) > 0.1


def test_erratum_cumulant_function():
    """The Hessian of the log-normalizer is the Fisher matrix; that of the moment generating
    function is not.
    """
    theta = tensor(0.7)
    second = hessian
    mu = torch.sigmoid(theta)
    F = second(lambda t: torch.log1p(t.exp()))(theta)
    I = reference.brute_force_rfim(
        lambda t, y: t * y - torch.log1p(t.exp()), theta, tensor([0.0, 1.0])
    )
    assert gap(F, I[0, 0]) < 1e-14
    moment = second(lambda s: 1 - mu + mu * s.exp())(tensor(0.0))
    assert gap(moment, I[0, 0]) > 0.5


def test_erratum_variance_of_the_estimate():
    """The mean of n coins has the variance I^-1 / n, not I^-1 / sqrt(n)."""
    n, p = 6, 0.3
    coins = reference.all_states(n, (0.0, 1.0))
    weights = (coins * p + (1 - coins) * (1 - p)).prod(1)
    variance = weights @ (coins.mean(1) - p) ** 2
    information = reference.brute_force_rfim(
        lambda t, y: y * t.log() + (1 - y) * (1 - t).log(), tensor(p), tensor([0.0, 1.0])
    )[0, 0]
    assert gap(variance, 1 / (n * information)) < 1e-12
    assert gap(variance, 1 / (math.sqrt(n) * information)) > 0.5


def test_erratum_dual_affine_map():
    """If Θ goes to A Θ + b, the gradient of the potential goes to A^-T H, not to A^-1 H."""
    A, b = tensor([[2.0, 1.0], [0.0, 0.5]]), tensor([0.3, -0.1])
    potential = lambda t: torch.logsumexp(torch.cat([t, t.new_zeros(1)]), 0)
    theta = tensor([0.4, -0.7])
    H = torch.func.grad(potential)(theta)
    moved = torch.func.grad(lambda t: potential(torch.linalg.solve(A, t - b)))(A @ theta + b)
    assert gap(moved, torch.linalg.solve(A.mT, H)) < 1e-12
    assert gap(moved, torch.linalg.solve(A, H)) > 0.1


def test_mixed_coordinates_make_the_metric_block_diagonal():
    """Of an exponential family, some natural and the other moment parameters; the two bases are
    dual.
    """
    theta = tensor([0.4, -0.7, 0.2])
    potential = lambda t: torch.logsumexp(torch.cat([t, t.new_zeros(1)]), 0)
    information = hessian(potential)(theta)
    log_p = lambda t, y: torch.cat([t, t.new_zeros(1)])[y] - potential(t)
    assert gap(information, reference.brute_force_rfim(log_p, theta, torch.arange(4))) < 1e-12
    to_mixed = lambda t: torch.cat([t[:1], torch.func.grad(potential)(t)[1:]])  # (Θ_1, H_2, H_3)
    J = torch.linalg.inv(torch.func.jacrev(to_mixed)(theta))  # dΘ / dΩ
    mixed = J.mT @ information @ J
    assert float(mixed[0, 1:].norm()) < 1e-12 and float(information[0, 1:].norm()) > 0.1
    by_moments = torch.linalg.inv(
        torch.func.jacrev(torch.func.grad(potential))(theta)
    )  # columns d / dH_i
    assert (
        gap(by_moments.mT @ information, torch.eye(3)) < 1e-12
    )  # <d / dH_i, d / dΘ_j> = 1 for i = j, else 0


# ---- Section 2

V = tensor([[0.8, -0.5, 0.2]])


def test_equation_4():
    y = tensor([[0.0], [1.0]])
    joint = reference.stochastic_log_prob(W, V, X1, y)
    assert joint.shape == (4, 2) and gap(joint.exp().sum(), 1) < 1e-14
    marginal = joint.logsumexp(0).exp()
    mean = torch.sigmoid(W @ A1)  # the mean of h in the place of h
    assert gap(reference.layer_log_prob(V, mean, y, "sigmoid").exp(), marginal) > 1e-4
    # Large weights make h certain: the sum has one term, as for a delta.
    certain = reference.stochastic_log_prob(200 * W, V, X1, y).logsumexp(0)
    assert gap(certain, reference.layer_log_prob(V, (W @ A1 > 0).double(), y, "sigmoid")) < 1e-12


def tanh_softmax(theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """log p(y | x) of the network 2-3-2 with its parameters in torch's order."""
    W1, b1, W2, b2 = theta.split([6, 3, 6, 2])
    h = torch.tanh(W1.view(3, 2) @ x + b1)
    return reference.softmax_log_prob(torch.cat([W2.view(2, 3), b2[:, None]], 1), h, y)


@pytest.fixture
def small():
    model = network((2, 3, 2))
    return model, reference.parameter_vector(model), metrics.fisher(model, X, Categorical())


def test_equation_5(small):
    _, theta, G = small
    for form in ("scores", "curvature"):
        each = [
            reference.brute_force_rfim(
                lambda t, y, x=x: tanh_softmax(t, x, y), theta, torch.arange(2), 1.0, form
            )
            for x in X
        ]
        assert gap(G, sum(each) / len(X)) < 1e-12
        assert gap(G, sum(each)) > 0.5


def test_equation_6(small):
    _, theta, G = small
    delta = 0.1 * normal(len(theta), seed=1)
    squares, means = [], []
    for x in X:
        p = tanh_softmax(theta, x, torch.arange(2)).exp()
        change = (
            torch.func.jacrev(lambda t, x=x: tanh_softmax(t, x, torch.arange(2)))(theta) @ delta
        )
        squares.append(p @ change**2)
        means.append((p @ change) ** 2)
    assert gap(delta @ G @ delta, torch.stack(squares).mean()) < 1e-12
    assert float(torch.stack(means).mean()) < 1e-25  # the square of the expectation is 0


def test_erratum_expectation_of_the_square(small):
    test_equation_6(small)


def test_equation_7():
    """The step minimizes the quadratic model of the mean loss with the penalty 1/(2 γ)."""
    x, t, rate = normal(30, 3, seed=2), (normal(30, 1, seed=3) > 0).double(), 0.3
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    theta = reference.parameter_vector(model)
    G = reference.fisher(model, x, Bernoulli())
    g = reference.gradients(model, x, t, Bernoulli()).mean(0)
    NaturalGradient(model, Bernoulli(), rate, damping=0.0, rtol=1e-14, max_iter=200).step(x, t)
    step = reference.parameter_vector(model) - theta

    def penalized(d: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return g @ d + d @ G @ d / (factor * rate)

    slope = torch.func.grad(penalized)
    assert float(slope(step).norm()) < 1e-9 * float(g.norm())
    assert float(torch.func.grad(lambda d: penalized(d, 1.0))(step).norm()) > 0.1 * float(g.norm())
    assert gap(step, -rate * damped_solve(G, g, 0.0)) < 1e-9


def test_erratum_sum_and_mean():
    """With the summed loss of Section 2 and the mean metric of Eq. 5 the step is n times too
    long.
    """
    x, t = normal(30, 3, seed=2), (normal(30, 1, seed=3) > 0).double()
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    G, g = reference.fisher(model, x, Bernoulli()), reference.gradients(model, x, t, Bernoulli())
    theta = reference.parameter_vector(model)

    def loss(step):
        return float(Bernoulli().nll(reference.outputs(model, theta + step, x), t).mean())

    assert loss(-damped_solve(G, g.mean(0), 0.0)) < loss(0 * theta)
    assert loss(-damped_solve(G, g.sum(0), 0.0)) > 2 * loss(0 * theta)


def test_equation_8():
    x, t = normal(30, 3, seed=2), (normal(30, 1, seed=3) > 0).double()
    J = tensor([[2.0, 0.3, 0.0], [-1.0, 0.5, 0.2], [0.4, 0.0, 1.5]])  # Λ = J Θ
    steps = {}
    for name, inputs, start in (("theta", x @ J, 0 * x[0]), ("lambda", x, 0 * x[0])):
        model = nn.Linear(3, 1, bias=False).double()
        with torch.no_grad():
            model.weight.copy_(start[None])
        G = metrics.fisher(model, inputs, Bernoulli())
        steps[name] = damped_solve(
            G, reference.gradients(model, inputs, t, Bernoulli()).mean(0), 0.0
        )
    assert gap(J @ steps["theta"], steps["lambda"]) < 1e-10
    assert gap(steps["theta"], steps["lambda"]) > 0.1


class Cubic(nn.Module):
    """Logistic regression whose weight is l^3 + l."""

    def __init__(self, l: float):
        super().__init__()
        self.l = nn.Parameter(tensor([l]))

    def forward(self, x):
        return x * (self.l**3 + self.l)


def test_finite_natural_steps_depend_on_the_coordinates():
    """After Eq. 8: the steps differ by a share that falls with the step size; that of plain
    gradients stays.
    """
    x, t = normal(30, 1, seed=2), (normal(30, 1, seed=3) > 0).double()
    l = 0.7

    def moved(model, rate, natural):
        g = reference.gradients(model, x, t, Bernoulli()).mean(0)
        G = metrics.fisher(model, x, Bernoulli())
        return -rate * (damped_solve(G, g, 0.0) if natural else g)

    straight = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        straight.weight.fill_(l**3 + l)
    gaps = {}
    for natural in (True, False):
        for rate in (1.0, 0.01, 0.001):
            end = l + moved(Cubic(l), rate, natural)
            change = end**3 + end - (l**3 + l)
            gaps[natural, rate] = gap(change, moved(straight, rate, natural))
    assert gaps[True, 1.0] > 0.01
    assert gaps[True, 0.01] / gaps[True, 0.001] == pytest.approx(10, rel=0.1)
    assert gaps[False, 0.01] / gaps[False, 0.001] == pytest.approx(1, rel=0.1)


def test_online_natural_gradient_is_fisher_efficient():
    """With step size 1/t the variance of the estimate comes to the Cramér-Rao bound; that of the
    gradient does not.
    """
    runs, n, truth = 5000, 600, tensor(0.8)
    draws = torch.Generator().manual_seed(0)
    natural = plain = torch.zeros(runs, dtype=torch.float64)
    for t in range(10, 10 + n):
        y = (torch.rand(runs, generator=draws, dtype=torch.float64) < torch.sigmoid(truth)).double()
        natural = natural - (torch.sigmoid(natural) - y) / relative.nu("sigmoid", natural) / t
        plain = plain - (torch.sigmoid(plain) - y) / t
    bound = 1 / (n * relative.nu("sigmoid", truth))
    assert gap((natural - truth).square().mean(), bound) < 0.1  # the standard error is 2 percent
    assert float((plain - truth).square().mean()) > 2 * float(bound)


# ---- Section 3


def test_equation_9(small):
    """One definition for every subsystem: a neuron, a layer, and the whole network."""
    _, theta, G = small
    assert gap(brute("tanh"), relative.neuron_rfim(W[0], X1, "tanh")) < 1e-12
    whole = sum(
        reference.brute_force_rfim(lambda t, y, x=x: tanh_softmax(t, x, y), theta, torch.arange(2))
        for x in X
    ) / len(X)
    assert gap(whole, G) < 1e-12
    fewer = reference.brute_force_rfim(
        lambda t, y: reference.layer_log_prob(t, X1, y, "tanh"), W[:1], tensor([[1.0]])
    )  # not all responses
    assert gap(fewer, brute("tanh")) > 0.1


def test_equation_10():
    delta = 1e-3 * normal(3, seed=1)
    y, _ = reference.responses("sigmoid")
    old, new = (reference.layer_log_prob(w[None], X1, y, "sigmoid") for w in (W[0], W[0] + delta))
    square = delta @ brute("sigmoid") @ delta
    divergence = old.exp() @ (old - new)
    assert (
        gap(2 * divergence, square) < 1e-2
    )  # the distance is twice the divergence to second order
    assert gap(divergence, square) > 0.4


def test_proposition_2():
    """The metric of some parameters of a subsystem is a block of the metric of all of them."""
    whole = brute("relu", W, **SMOOTH)
    first = reference.brute_force_rfim(
        lambda t, y: reference.layer_log_prob(torch.stack([t, W[1]]), X1, y, "relu", **SMOOTH),
        W[0],
        *reference.responses("relu", 2, 0.7),
    )
    assert gap(first, whole[:3, :3]) < 1e-12
    assert gap(first, whole[3:, 3:]) > 0.1


def test_equation_11():
    y = tensor([[-1.0], [1.0]])
    p = reference.layer_log_prob(W[:1], X1, y, "tanh").exp()
    assert gap(p, (1 + y[:, 0] * torch.tanh(W[0] @ A1)) / 2) < 1e-14 and gap(p.sum(), 1) < 1e-14
    assert gap(p[1], torch.sigmoid(2 * W[0] @ A1)) < 1e-14  # a sigmoid of twice the weights
    assert gap(p[1], torch.sigmoid(W[0] @ A1)) > 1e-2


def test_equation_12():
    nu = relative.nu("tanh", W[0] @ A1)
    assert gap(nu, 1 - torch.tanh(W[0] @ A1) ** 2) < 1e-14
    assert gap(nu * XX, brute("tanh")) < 1e-12
    assert gap(nu * XX, 4 * brute("sigmoid", 2 * W[0])) < 1e-12
    assert gap(torch.outer(X1, X1) * nu, brute("tanh")[:2, :2]) < 1e-12
    assert gap(nu**2 * XX, brute("tanh")) > 0.1


def test_equation_13():
    y = tensor([[0.0], [1.0]])
    p = reference.layer_log_prob(W[:1], X1, y, "sigmoid").exp()
    assert gap(p, torch.stack([1 - torch.sigmoid(W[0] @ A1), torch.sigmoid(W[0] @ A1)])) < 1e-14
    assert gap(p[1], torch.sign(W[0] @ A1)) > 0.1


def test_erratum_sign_is_the_sigmoid():
    """The printed name of the activation is that of another function, whose metric is 0."""
    test_equation_13()
    t = tensor(0.5).requires_grad_()
    assert (
        float(torch.autograd.grad(torch.sign(t), t)[0])
        == 0
        < float(relative.nu("sigmoid", t.detach()))
    )


def test_equation_14():
    s = torch.sigmoid(W[0] @ A1)
    assert gap(relative.nu("sigmoid", W[0] @ A1), s * (1 - s)) < 1e-14
    assert gap(relative.neuron_rfim(W[0], X1, "sigmoid"), brute("sigmoid")) < 1e-12
    assert gap(s * XX, brute("sigmoid")) > 0.5


T = torch.linspace(-3, 3, 40, dtype=torch.float64)  # without 0


def test_equation_15():
    value = relative.activate("relu", T, iota=0.3)
    assert gap(value, torch.where(T >= 0, T, 0.3 * T)) < 1e-14
    assert gap(relative.activate("relu", T), T.clamp(min=0)) < 1e-14
    assert gap(value, T) > 0.2  # "t if t < 0", as in the text


def test_erratum_branch_below_zero():
    test_equation_15()


def test_equation_16():
    for w, factor in ((W[0], 1.0), (-W[0], 0.3**2)):
        metric = relative.neuron_rfim(w, X1, "relu", sigma=0.7, iota=0.3)
        assert gap(metric, factor / 0.7**2 * XX) < 1e-12
        assert gap(brute("relu", w, sigma=0.7, iota=0.3), metric) < 1e-12
    mean = float(-0.3 * W[0] @ A1)  # μ² in the place of ι²
    assert gap(mean**2 / 0.7**2 * XX, metric) > 0.4


def test_erratum_iota_squared():
    test_equation_16()


def test_equation_17():
    value = relative.activate("relu", T, iota=0.1, omega=0.25)
    right = 0.25 * torch.log(torch.exp(0.1 * T / 0.25) + torch.exp(T / 0.25))
    assert gap(value, right) < 1e-13
    for omega in (1e-2, 1e-4, 1e-6):
        hard = relative.activate("relu", T, iota=0.1)
        assert (
            float((relative.activate("relu", T, iota=0.1, omega=omega) - hard).abs().max())
            <= 0.7 * omega
        )
    printed = 0.25 * torch.log(torch.exp(T / 0.25) + torch.exp(T / 0.25))
    assert gap(printed, T + 0.25 * math.log(2)) < 1e-12  # a straight line
    assert gap(printed, value) > 0.5


def test_erratum_iota_in_the_exponent():
    test_equation_17()


def test_equation_18():
    for w in W:
        s = torch.sigmoid(0.9 / 0.3 * w @ A1)
        assert gap(relative.nu("relu", w @ A1, **SMOOTH), (0.1 + 0.9 * s) ** 2 / 0.7**2) < 1e-14
        assert (
            gap(relative.neuron_rfim(w, X1, "relu", **SMOOTH), brute("relu", w, **SMOOTH)) < 1e-12
        )
        assert gap((0.1 + 0.9 * s) / 0.7**2 * XX, brute("relu", w, **SMOOTH)) > 0.01
    far, near, zero = tensor(1.0), tensor(-1.0), tensor(0.0)
    assert gap(relative.nu("relu", far, omega=0.02), 1) < 1e-12
    assert float(relative.nu("relu", near, omega=0.02)) < 1e-12
    assert float(relative.nu("relu", zero, omega=0.02)) == 0.25


def test_equation_19():
    assert (
        gap(relative.activate("elu", T, alpha=0.6), torch.where(T >= 0, T, 0.6 * (T.exp() - 1)))
        < 1e-14
    )
    assert gap(relative.activate("elu", T, alpha=0.6), nn.functional.elu(T, 0.6)) < 1e-14
    assert gap(relative.activate("elu", T, alpha=0.6), relative.activate("elu", T)) > 0.01


def test_equation_20():
    for w in W:
        a = w @ A1
        right = torch.where(a >= 0, torch.ones_like(a), 0.36 * (2 * a).exp()) / 0.49
        assert gap(relative.nu("elu", a, **ELU), right) < 1e-14
        assert gap(relative.neuron_rfim(w, X1, "elu", **ELU), brute("elu", w, **ELU)) < 1e-12
    assert (
        float(a) < 0 and gap(0.6 * a.exp() / 0.49 * XX, brute("elu", w, **ELU)) > 0.1
    )  # not squared


def test_erratum_continuity_of_elu():
    """The metric of elu is continuous at 0 for α = 1 only; there its slope jumps."""
    left, right = tensor(-1e-9), tensor(1e-9)
    assert float(relative.nu("elu", right) - relative.nu("elu", left)) < 1e-8
    assert float(relative.nu("elu", right, alpha=0.6) - relative.nu("elu", left, alpha=0.6)) > 0.6
    assert float(relative.nu("elu", left, alpha=2.0) - relative.nu("elu", right, alpha=2.0)) > 2.9


NEURONS = [
    ("tanh", {}),
    ("sigmoid", {}),
    ("relu", {}),
    ("relu", SMOOTH),
    ("elu", ELU),
    ("linear", {"sigma": 0.7}),
]
each = pytest.mark.parametrize(("activation", "options"), NEURONS, ids=str)


@each
def test_equation_21(activation, options):
    for w in W:
        right = torch.stack([brute(activation, w, x, **options) for x in X]).mean(0)
        assert gap(relative.neuron_rfim(w, X, activation, **options), right) < 1e-12
        assert gap(
            relative.neuron_rfim(w - tensor([0, 0, 2]), X, activation, **options), right
        ) > 0.01 or (activation == "linear")


def test_erratum_nu_may_be_zero():
    """ "A positive coefficient" fails for the hard ReLU, and in the reference to Eq. 20 elu is left
    out.
    """
    assert float(relative.nu("relu", tensor(-1.0))) == 0
    assert float(relative.nu("relu", tensor(-1.0), iota=0.1)) > 0
    test_equation_20()


# ---- Section 3.2


def test_equation_22():
    block = relative.linear_rfim(X1, sigma=0.7)
    assert gap(block, XX / 0.49) < 1e-14
    assert gap(torch.block_diag(block, block), brute("linear", W, sigma=0.7)) < 1e-12
    assert (
        gap(
            torch.block_diag(*relative.layer_rfim(W, X1, "linear", sigma=0.7)),
            torch.block_diag(block, block),
        )
        < 1e-14
    )
    assert gap(torch.block_diag(block, block), brute("linear", W)) > 0.5


@each
def test_equation_23(activation, options):
    whole = torch.block_diag(*relative.layer_rfim(W, X1, activation, **options))
    assert gap(whole, brute(activation, W, **options)) < 1e-12
    shared = relative.neuron_rfim(W[0], X1, activation, **options)
    assert activation == "linear" or gap(torch.block_diag(shared, shared), whole) > 0.01


def test_erratum_inputs_of_a_layer():
    """ "W^T w~" has no meaning; with the input x~ the mean response is f(W x~)."""
    test_equation_23("tanh", {})
    y, _ = reference.responses("tanh", 2)
    mean = reference.layer_log_prob(W, X1, y, "tanh").exp() @ y
    assert gap(mean, torch.tanh(W @ A1)) < 1e-14
    assert gap(torch.tanh(W @ W[0]), mean) > 0.1


S = torch.cat([tensor([[0.1, 0.9, -1.2]]), W])


def test_equation_24():
    p = reference.softmax_log_prob(S, X1, torch.arange(3)).exp()
    assert gap(p, Categorical().mean(S @ A1)) < 1e-14
    assert gap(p, torch.sigmoid(S @ A1)) > 0.1


def test_equation_25():
    right = reference.brute_force_rfim(
        lambda t, y: reference.softmax_log_prob(t, X1, y), S, torch.arange(3)
    )
    G = relative.softmax_rfim(S, X1)
    eta = Categorical().mean(S @ A1)
    assert gap(G, right) < 1e-12
    assert gap(torch.kron(torch.diag(eta) - torch.outer(eta, eta), XX), right) < 1e-12
    assert gap(torch.kron(torch.diag(eta), XX), right) > 0.1
    logits = (
        eta.log() - (1 - eta).log()
    )  # a block is a sigmoid neuron at the class's own probability
    assert gap(G[3:6, 3:6], relative.nu("sigmoid", logits[1]) * XX) < 1e-12


def test_erratum_softmax_is_always_singular():
    """The same change of all rows has length 0, whatever the data; the rank is at most (m - 1) (D +
    1).
    """
    x = normal(200, 2, seed=5)
    G = relative.softmax_rfim(S, x)
    for k in range(3):
        shift = torch.zeros(3, 3, dtype=torch.float64)
        shift[:, k] = 1
        assert float((G @ shift.reshape(-1)).norm()) < 1e-14
    assert relative.rank(G) == 6 and relative.rank(relative.softmax_rfim(S, X1)) == 2
    assert relative.rank(torch.block_diag(*relative.layer_rfim(S, x, "sigmoid"))) == 9


def brute_two_layers(activation: str, **options) -> torch.Tensor:
    return reference.brute_force_rfim(
        lambda t, y: reference.two_layer_log_prob(t, C, X1, y, activation, **options),
        W,
        *reference.responses(activation, 3, options.get("sigma", 1.0)),
    )


def printed_two_layers(activation: str, **options) -> torch.Tensor:
    """Eq. 26 as printed."""
    shape = {key: value for key, value in options.items() if key != "sigma"}
    nu = relative.nu(activation, W @ A1, **options)
    outer = relative.nu(activation, C @ relative.activate(activation, W @ A1, **shape), **options)
    return torch.kron(torch.einsum("li,lj,l,i,j->ij", C, C, outer, nu, nu), XX)


def test_equation_26():
    for activation in ("tanh", "sigmoid"):
        right = brute_two_layers(activation)
        assert gap(printed_two_layers(activation), right) < 1e-12
        assert gap(relative.two_layer_rfim(W, C, X1, activation), right) < 1e-12
        diagonal = metrics.block_diagonal(right, [3, 3])  # without the correlations between neurons
        assert gap(diagonal, right) > 0.05


@pytest.mark.parametrize(
    ("activation", "options"), [("relu", {"omega": 0.5}), ("relu", SMOOTH), ("elu", {"alpha": 0.7})]
)
def test_erratum_slope_in_two_layers(activation, options):
    y, volume = reference.responses(activation, 1, options.get("sigma", 1.0))
    one = C[:1]
    right = reference.brute_force_rfim(
        lambda t, y: reference.two_layer_log_prob(t, one, X1, y, activation, **options),
        W,
        y,
        volume,
    )
    assert gap(relative.two_layer_rfim(W, one, X1, activation, **options), right) < 1e-12
    shape = {key: value for key, value in options.items() if key != "sigma"}
    nu = relative.nu(activation, W @ A1, **options)
    outer = relative.nu(activation, one @ relative.activate(activation, W @ A1, **shape), **options)
    printed = torch.kron(torch.einsum("li,lj,l,i,j->ij", one, one, outer, nu, nu), XX)
    assert gap(printed, right) > 0.1


# ---- Section 4


def test_equation_27():
    """The Fisher matrix of a network with one binary output, from its mean; averaged over the
    samples.
    """
    model, x = network((4, 5, 4, 1)), normal(7, 4, seed=1)
    mean = torch.sigmoid(model(x))[:, 0]
    rows = torch.stack([reference.gradient(model, mu) for mu in mean])
    mean = mean.detach()
    each = torch.einsum("n,ni,nj->nij", 1 / (mean * (1 - mean)), rows, rows)
    first = torch.einsum("n,ni,nj->nij", 1 / mean, rows, rows) + torch.einsum(
        "n,ni,nj->nij", 1 / (1 - mean), rows, rows
    )
    G = metrics.fisher(model, x, Bernoulli())
    assert gap(each.mean(0), G) < 1e-12 and gap(first, each) < 1e-12
    assert gap(each[0], G) > 0.1  # one sample only, as printed
    assert relative.rank(G) == 7


def test_erratum_rank_with_many_classes():
    """Each sample adds one to the rank for a binary output, and m - 1 for m classes."""
    for outputs, samples, expected in ((1, 10, 10), (3, 10, 20), (3, 4, 8)):
        model, x = network((6, 8, 8, outputs)), normal(samples, 6, seed=1)
        likelihood = Bernoulli() if outputs == 1 else Categorical()
        assert relative.rank(metrics.fisher(model, x, likelihood)) == expected


def test_erratum_rank_of_a_layer():
    """The rank of a layer's metric is at most min(n, D + 1) m; n m is reached for few samples
    only.
    """
    for samples in (2, 5, 7, 10, 40):
        model, x = network((6, 8, 1)), normal(samples, 6, seed=1)
        assert relative.rank(relative.network_rfim(model, x, Bernoulli())[0]) == min(samples, 7) * 8
    relu = relative.layer_rfim(
        normal(8, 7), normal(3, 6, seed=1), "relu"
    )  # hard: silent units count for less
    assert relative.rank(torch.block_diag(*relu)) < 3 * 8


def test_rank_of_the_blocks_of_the_fisher_matrix():
    """A layer's block has the rank n of the whole, as long as the layer has n parameters, and a
    rank far below n with far fewer; the relative metric far more.
    """
    model, x = network((6, 8, 8, 1)), normal(9, 6, seed=1)
    G = metrics.fisher(model, x, Bernoulli())
    assert [relative.rank(block) for block in relative.fisher_blocks(G, model)] == [9, 9, 9]
    assert [relative.rank(g) for g in relative.network_rfim(model, x, Bernoulli())] == [56, 72, 9]
    G = metrics.fisher(model, normal(20, 6, seed=1), Bernoulli())
    assert [relative.rank(block) for block in relative.fisher_blocks(G, model)] == [20, 20, 9]


def test_last_layer_metric_is_the_block_of_the_fisher_matrix():
    model, x = network((6, 8, 8, 3)), normal(9, 6, seed=1)
    blocks = relative.fisher_blocks(metrics.fisher(model, x, Categorical()), model)
    own = relative.network_rfim(model, x, Categorical())
    assert gap(own[2], blocks[2]) < 1e-12
    assert min(gap(own[0], blocks[0]), gap(own[1], blocks[1])) > 0.5


def test_metric_is_invariant_to_the_rest_of_the_network():
    """Another width, depth, activation or output after a layer changes its Fisher block, but not
    its own metric.
    """
    torch.manual_seed(0)
    first, x = [nn.Linear(4, 5), nn.Tanh()], normal(9, 4, seed=1)
    tails = [
        ([nn.Linear(5, 1)], Bernoulli()),
        ([nn.Linear(5, 3)], Categorical()),
        ([nn.Linear(5, 30), nn.ELU(), nn.Linear(30, 6), nn.ReLU(), nn.Linear(6, 2)], Categorical()),
    ]
    models = [(nn.Sequential(*first, *tail).double(), likelihood) for tail, likelihood in tails]
    own = [relative.network_rfim(model, x, likelihood)[0] for model, likelihood in models]
    assert all(torch.equal(one, own[0]) for one in own)
    blocks = [
        relative.fisher_blocks(metrics.fisher(m, x, likelihood), m)[0] for m, likelihood in models
    ]
    assert min(gap(a, b) for a, b in itertools.combinations(blocks, 2)) > 0.1


def test_metrics_are_blocks_of_the_fisher_matrix_with_stochastic_neurons():
    """If the hidden units are random and seen, the Fisher matrix has the relative metrics as
    blocks, and nothing else.

    If they are not seen, it is smaller: the marginal one of Eq. 4.
    """
    theta, y = torch.cat([W.reshape(-1), V.reshape(-1)]), tensor([[0.0], [1.0]])

    def joint(t, y):
        return reference.stochastic_log_prob(t[:6].view(2, 3), t[6:].view(1, 3), X1, y)

    complete = reference.brute_force_rfim(lambda t, y: joint(t, y).reshape(-1), theta, y)
    states = reference.all_states(2, (0.0, 1.0))
    p = reference.layer_log_prob(W, X1, states, "sigmoid").exp()
    first = torch.block_diag(*relative.layer_rfim(W, X1, "sigmoid"))
    second = sum(
        p_h * relative.neuron_rfim(V[0], h, "sigmoid") for p_h, h in zip(p, states, strict=True)
    )
    assert gap(torch.block_diag(first, second), complete) < 1e-12
    marginal = reference.brute_force_rfim(lambda t, y: joint(t, y).logsumexp(0), theta, y)
    assert gap(marginal, complete) > 0.1
    assert float(torch.linalg.eigvalsh(complete - marginal)[0]) > -1e-14
    assert relative.rank(marginal) == 1 and relative.rank(complete) == 5


def test_balanced_subsystems():
    """Scaled to a largest eigenvalue of 1, two layers change their responses alike for steps of the
    same length.
    """
    radius = 1e-3
    layers = {"tanh": (W, X1), "relu": (3 * W, 10 * X1)}
    changes = {}
    for name, (weights, x) in layers.items():
        options = {"omega": 5.0} if name == "relu" else {}
        G = torch.block_diag(*relative.layer_rfim(weights, x, name, **options))
        values, vectors = torch.linalg.eigh(G)
        y, volume = reference.responses(name, 2, largest=30.0)
        for scaled in (False, True):
            step = radius * vectors[:, -1] / (values[-1].sqrt() if scaled else 1.0)
            old, new = (
                reference.layer_log_prob(w, x, y, name, **options)
                for w in (weights, weights + step.view_as(weights))
            )
            changes[name, scaled] = float((old.exp() * volume) @ (old - new))
    assert changes["tanh", True] == pytest.approx(radius**2 / 2, rel=1e-2)
    assert changes["relu", True] == pytest.approx(radius**2 / 2, rel=1e-2)
    assert changes["relu", False] > 20 * changes["tanh", False]


# ---- Section 5


def test_equation_28():
    x = normal(50, 3, seed=1) @ tensor([[1, 0.9, 0], [0, 0.3, 0], [0, 0, 20]]) + 3
    whitener = Whitener("zca").fit(x)
    z = relative.augment(whitener.transform(x))
    moments = z.mT @ z / len(z)
    assert float((moments - torch.eye(4, dtype=torch.float64)).norm()) < 1e-10
    raw = relative.augment(x)
    assert float((raw.mT @ raw / len(raw) - torch.eye(4, dtype=torch.float64)).norm()) > 1
    theta = normal(
        4, seed=2
    )  # the same function of x for another parameter: θ' = (A^T θ, θ_0 - θ^T A a)
    A, a = whitener.matrix, whitener.mean
    other = torch.cat([A.mT @ theta[:3], (theta[3] - theta[:3] @ A @ a)[None]])
    assert gap(raw @ other, z @ theta) < 1e-12


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights, correlated inputs and noisy labels of a small logistic regression."""
    x = normal(60, 2, seed=1) @ tensor([[2.0, 1.5], [0.0, 0.3]]) + 1
    y = (x @ tensor([0.5, -1.0]) + normal(60, seed=2) > 0).double()
    return tensor([0.3, -0.2, 0.1]), x, y


def cross_entropy(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    s = 1 / (1 + torch.exp(-relative.augment(x) @ w))
    return (-y * s.log() - (1 - y) * (1 - s).log()).mean()


def test_equation_29():
    w, x, y = digits()
    r = (relative.augment(x) @ w)[:, None]
    assert gap(Bernoulli().nll(r, y[:, None]).mean(), cross_entropy(w, x, y)) < 1e-13
    gradient = torch.func.grad(cross_entropy)(w, x, y)
    assert gap((torch.sigmoid(r[:, 0]) - y) @ relative.augment(x) / len(x), gradient) < 1e-12
    assert gap((torch.sigmoid(r[:, 0]) + y) @ relative.augment(x) / len(x), gradient) > 0.1


def test_equation_30():
    w, x, y = digits()
    gradient = torch.func.grad(cross_entropy)(w, x, y)
    G = torch.stack([brute("sigmoid", w, x_i) for x_i in x]).mean(0)
    damping = 1e-2 * G.trace() / 3
    right = w - 0.5 * torch.linalg.solve(G + damping * torch.eye(3, dtype=torch.float64), gradient)
    assert gap(relative.neuron_step(w, x, y, lr=0.5), right) < 1e-12
    assert gap(w - 0.5 * gradient, right) > 0.1


def test_erratum_two_epsilons():
    """One ε would be its own value times tr(g)/D; with 10^-2 itself as the damping the step is
    another.
    """
    w, x, y = digits()
    gradient, G = torch.func.grad(cross_entropy)(w, x, y), relative.neuron_rfim(w, x, "sigmoid")
    assert relative.relative_damping(G) == pytest.approx(1e-2 * float(G.trace()) / 3)
    absolute = w - torch.linalg.solve(G + 1e-2 * torch.eye(3, dtype=torch.float64), gradient)
    assert gap(relative.neuron_step(w, x, y), absolute) > 1e-3


def test_erratum_dependence_on_the_coordinates():
    """Whitening, a linear map, changes the natural gradient through the damping only, at any step
    size.
    """
    w, x, y = digits()
    whitener = Whitener("zca").fit(x)
    A, a = whitener.matrix, whitener.mean
    gaps = {}
    for eps in (1e-2, 1e-6, 0.0):
        raw, white = w, torch.cat([torch.linalg.solve(A.mT, w[:2]), (w[2] + w[:2] @ a)[None]])
        for _ in range(5):
            raw = relative.neuron_step(raw, x, y, lr=1.0, eps=eps)
            white = relative.neuron_step(white, whitener.transform(x), y, lr=1.0, eps=eps)
        back = torch.cat([A.mT @ white[:2], (white[2] - white[:2] @ A @ a)[None]])
        gaps[eps] = gap(back, raw)
    assert gaps[0.0] < 1e-9 and gaps[1e-6] < 1e-3 < gaps[1e-2]


def test_erratum_full_batches():
    """At the step size 1, natural steps on all samples converge; on batches of 100 they run away
    until the metric vanishes.
    """
    x, y = single.digits("3v5", 7, 800, 0)
    w = start = x.new_zeros(x.shape[1] + 1)
    for _ in range(8):
        w = relative.neuron_step(w, x, y)
    assert float(cross_entropy(w, x, y)) < 0.1
    with pytest.raises(ValueError, match="G . damping I"):
        for i in torch.arange(800).split(100) * 8:
            start = relative.neuron_step(start, x[i], y[i])


@pytest.fixture
def layer():
    """One tanh layer before a linear one, a batch, and how to set its gradient."""
    model, x, t = network((3, 2, 2)), normal(20, 3, seed=1), normal(20, 2, seed=2)

    def backward(model):
        model.zero_grad()
        (model(x) - t).square().mean().backward()
        return torch.cat([model[0].weight.grad, model[0].bias.grad[:, None]], 1)

    return model, x, backward


def weights(linear: nn.Linear) -> torch.Tensor:
    return torch.cat([linear.weight, linear.bias[:, None]], 1).detach().clone()


def solve(blocks: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(blocks, gradient[..., None])[..., 0]


EYE = torch.eye(4, dtype=torch.float64)


def test_equation_31(layer):
    model, x, backward = layer
    before = weights(model[0])
    optimizer = RNGD(model, lr=0.1, eps=1e-2, period=1, decay=0.0, blocks="neuron")
    gradient = backward(model)
    optimizer.step()
    right = -0.1 * solve(relative.layer_rfim(before, x, "tanh") + 1e-2 * EYE, gradient)
    step = weights(model[0]) - before
    assert gap(step, right) < 1e-10
    assert (
        gap(-0.1 * solve(relative.linear_rfim(x).expand(2, 4, 4) + 1e-2 * EYE, gradient), step)
        > 0.1
    )


def test_equations_32_and_33(layer):
    """The running mean starts at I; its inverse is renewed every T steps and used in between."""
    model, x, backward = layer
    optimizer = RNGD(model, lr=0.1, eps=1e-2, period=2, decay=0.9, blocks="neuron")
    G, inverse = EYE.expand(2, 4, 4), EYE.expand(2, 4, 4)
    for iteration in range(1, 6):
        before = weights(model[0])
        gradient = backward(model)
        optimizer.step()
        neurons = zip(G, before, strict=True)
        received, tanh = relative.augment(x), partial(relative.nu, "tanh")
        G = [reference.running_rfim(G_l, w, received, tanh, 0.9, 1e-2) for G_l, w in neurons]
        G = torch.stack(G)
        if iteration % 2 == 0:
            inverse = torch.linalg.inv(G)
        step = weights(model[0]) - before
        assert gap(step, -0.1 * (inverse @ gradient[..., None])[..., 0]) < 1e-10
        stale = iteration == 5
        assert not stale or gap(-0.1 * solve(G, gradient), step) > 1e-3


def test_erratum_step_size_of_rngd():
    """Without a step size, Eq. 33 raises the loss where a smaller step lowers it."""
    losses = {}
    for lr in (1.0, 0.01):
        model, x = network((3, 8, 1), seed=1), normal(40, 3, seed=1)
        t = torch.sin(3 * x[:, :1])
        optimizer = RNGD(model, lr=lr, eps=1e-3, period=1, decay=0.0)
        for _ in range(5):
            optimizer.zero_grad()
            loss = 10 * (model(x) - t).square().mean()
            loss.backward()
            optimizer.step()
        losses[lr] = float(10 * (model(x) - t).detach().square().mean())
        first = losses.setdefault(
            "start", float(10 * (network((3, 8, 1), seed=1)(x) - t).detach().square().mean())
        )
    assert losses[0.01] < first < losses[1.0]


def test_batch_normalization_makes_the_diagonal_uniform():
    """It does; but the correlations stay, and with them the condition number. Independent features
    are well conditioned.
    """
    scales = tensor([1e-2, 1.0, 30.0])
    independent = normal(4000, 3, seed=1) * scales + scales
    mixed = (
        normal(4000, 3, seed=1) @ tensor([[1, 0.99, 0.99], [0, 0.1, 0.05], [0, 0, 0.05]]) * scales
        + scales
    )
    condition = {}
    for name, x in (("independent", independent), ("mixed", mixed)):
        y = nn.BatchNorm1d(3, eps=1e-15, affine=False).double()(x)
        G = relative.linear_rfim(y)
        assert float((G.diagonal() - 1).abs().max()) < 1e-8
        assert float(relative.linear_rfim(x).diagonal().max()) > 500
        condition[name] = [metrics.condition_number(relative.linear_rfim(z)) for z in (x, y)]
    assert condition["independent"][0] > 1e5 and condition["independent"][1] < 1.2
    assert condition["mixed"][1] > 100


def test_informative_samples_are_those_with_a_gradient():
    """A ReLU neuron learns from the samples with nu = 1 only; its own metric whitens these, the
    linear one does not.
    """
    model, x = network((3, 2, 1)), normal(400, 3, seed=1) + 0.5
    model[1] = nn.ReLU()
    W = weights(model[0])
    nu = relative.nu("relu", relative.augment(x) @ W.mT)
    assert 50 < float(nu[:, 0].sum()) < 350 and bool(((nu == 0) | (nu == 1)).all())
    for sample, weight in zip(x[:30], nu, strict=False):
        model.zero_grad()
        model(sample[None]).square().sum().backward()
        assert torch.equal(model[0].weight.grad.abs().sum(1) > 0, weight > 0)
    rows = relative.augment(x)[nu[:, 0] == 1]
    for G, white in (
        (relative.layer_rfim(W, x, "relu")[0], True),
        (relative.linear_rfim(x), False),
    ):
        z = torch.linalg.solve_triangular(torch.linalg.cholesky(G), rows.mT, upper=False)
        off = (z @ z.mT / len(rows)).triu(1).abs().max()
        assert bool(off < 1e-10) == white and bool(off > 0.1) != white


# ---- Section 6


class Softplus:
    """The potential of independent Bernoulli variables, F(Θ) = Σ log(1 + e^Θ)."""

    def value(self, theta):
        return torch.nn.functional.softplus(theta).sum()

    def gradient(self, theta):
        return torch.sigmoid(theta)

    def conjugate_gradient(self, omega):
        return omega.log() - (1 - omega).log()


def test_erratum_metric_of_mirror_descent():
    """Mirror descent with potential F is natural gradient in H = ∇F(Θ), with the metric ∇²F*(H)
    there.

    ∇²F(Θ) is the same metric in the coordinates Θ; as a matrix it is the inverse.
    """
    cost = lambda t: (t - tensor([0.5, -1.0])).square().sum() + t[0] * t[1]
    theta = tensor([0.3, 0.8]).requires_grad_()
    mirror = Softplus()
    H = mirror.gradient(theta).detach()
    by_dual = torch.func.grad(lambda h: cost(mirror.conjugate_gradient(h)))(H)
    dual_metric = torch.diag(1 / (H * (1 - H)))  # ∇²F*
    right = H - 0.05 * torch.linalg.solve(dual_metric, by_dual)
    printed = H - 0.05 * torch.linalg.solve(torch.linalg.inv(dual_metric), by_dual)
    optimizer = MirrorDescent([theta], mirror, 0.05)
    cost(theta).backward()
    optimizer.step()
    assert gap(mirror.gradient(theta.detach()), right) < 1e-10
    assert gap(printed, right) > 0.1


def test_erratum_gradient_in_the_bregman_divergence():
    """The gradient is that at the second argument; at the first the printed form is never positive,
    and no distance.
    """
    mirror, old = Softplus(), tensor([0.3, 0.8])
    for new in (tensor([1.0, -0.5]), tensor([0.3, 0.9])):
        right = bregman_divergence(mirror, new, old)
        printed = mirror.value(new) - mirror.value(old) - (new - old) @ mirror.gradient(new)
        assert float(right) > 0 > float(printed)
        assert gap(printed, -bregman_divergence(mirror, old, new)) < 1e-12


def test_erratum_two_roles_of_F():
    """With the potential's own gradient in the place of the cost's, the step only shrinks the dual
    parameters.
    """
    theta, mirror, rate = tensor([0.3, 0.8]), Softplus(), 0.05

    def objective(q, slope):
        bregman = mirror.value(q) - mirror.value(theta) - (q - theta) @ mirror.gradient(theta)
        return q @ slope + bregman / rate

    def stationary(q, slope):
        return float(torch.func.grad(objective)(q, slope).norm())

    printed = mirror.conjugate_gradient((1 - rate) * mirror.gradient(theta))
    assert stationary(printed, mirror.gradient(theta)) < 1e-12  # whatever the cost
    cost = tensor([1.0, -2.0])
    right = mirror.conjugate_gradient(mirror.gradient(theta) - rate * cost)
    assert stationary(right, cost) < 1e-12 and stationary(printed, cost) > 0.1


POINTS = torch.arange(6, dtype=torch.float64)
ORDINAL = (POINTS[:, None] - POINTS).abs()


def binomial(theta: torch.Tensor) -> torch.Tensor:
    """Probabilities of 0, ..., 5 under a tilted binomial; theta holds a linear and a quadratic
    coefficient.
    """
    return torch.softmax(theta[0] * POINTS + theta[1] * POINTS**2 / 5, 0)


def test_energy_information_is_the_second_order_of_the_energy_distance():
    theta, delta = tensor([0.2, -0.3]), 1e-3 * tensor([1.0, 0.5])
    E = reference.energy_information(binomial, theta, ORDINAL)
    square = reference.energy_distance(binomial(theta), binomial(theta + delta), ORDINAL)
    assert gap(square, delta @ E @ delta) < 1e-2 < gap(square, delta @ E @ delta / 2)
    J = torch.func.jacrev(lambda t: binomial(t).cumsum(0))(theta)
    assert (
        gap(2 * J.mT @ J, E) < 1e-12
    )  # on a line: twice the square of the change of the distribution function
    fisher = reference.brute_force_rfim(lambda t, y: binomial(t).log()[y], theta, torch.arange(6))
    assert gap(E / E.trace(), fisher / fisher.trace()) > 0.01


def test_energetic_gradient_generalizes_the_natural_gradient():
    """For one distance, which depends on the distribution, the energy information is the Fisher
    matrix.
    """
    theta = tensor([0.2, -0.3])
    p = binomial(theta)
    distance = (1 / p[:, None] + 1 / p) / 2 * (1 - torch.eye(6, dtype=torch.float64))
    fisher = reference.brute_force_rfim(lambda t, y: binomial(t).log()[y], theta, torch.arange(6))
    assert gap(reference.energy_information(binomial, theta, distance), fisher) < 1e-12
    discrete = reference.energy_information(binomial, theta, (distance > 0).double())
    assert gap(discrete / discrete.trace(), fisher / fisher.trace()) > 0.01


def test_erratum_energy_distance():
    """With a minus before d(X, X') the distance of a distribution to itself is 0; as printed there
    is none.
    """
    p = binomial(tensor([0.2, -0.3]))
    assert abs(float(reference.energy_distance(p, p, ORDINAL))) < 1e-14
    assert float(2 * p @ ORDINAL @ p + p @ ORDINAL @ p - p @ ORDINAL @ p) > 1


def test_erratum_information_of_a_statistic():
    """I_T <= I_X, with equality for a sufficient T; a strict sign has no case of equality."""
    coins = reference.all_states(3, (0.0, 1.0))

    def log_prob(t, y):
        return (y * t - torch.log1p(t.exp())).sum(1)

    theta = tensor(0.4)
    whole = reference.brute_force_rfim(log_prob, theta, coins)
    for statistic, equal in ((coins.sum(1), True), (coins[:, 0], False)):
        values = statistic.unique()
        table = (statistic == values[:, None]).double()
        part = reference.brute_force_rfim(
            lambda t, y, table=table: (table @ log_prob(t, coins).exp()).log(), theta, values
        )
        assert (gap(part, whole) < 1e-12) == equal and float(part) < float(whole) + 1e-14


def test_natural_gradient_may_diverge_where_the_gradient_converges():
    """A sigmoid neuron whose targets are all 1/2: the step is w - γ sinh w, and overshoots more
    each time.
    """
    x, y, start = tensor([[1.0], [-1.0]]), tensor([0.5, 0.5]), tensor([2.5, 0.0])
    natural, damped, plain = start, start, start
    for _ in range(2):
        after = relative.neuron_step(natural, x, y, eps=0.0)
        assert gap(after[0], natural[0] - torch.sinh(natural[0])) < 1e-10
        natural, damped = after, relative.neuron_step(damped, x, y)
    for _ in range(200):
        plain = plain - torch.func.grad(cross_entropy)(plain, x, y)
    assert (
        float(natural[0].abs()) > 10 and float(damped[0].abs()) > 10
    )  # the relative damping does not help
    assert float(plain.norm()) < 1e-6
    inside = tensor([2.0, 0.0])  # within the threshold, 2.18, it converges fast
    for _ in range(6):
        inside = relative.neuron_step(inside, x, y, eps=0.0)
    assert float(inside.norm()) < 1e-6


# ---- Appendix A


def derivative(function) -> torch.Tensor:
    """Central differences, good to about 1e-9."""
    return (function(T + 1e-5) - function(T - 1e-5)) / 2e-5


def test_equations_34_to_37():
    tanh = (torch.exp(T) - torch.exp(-T)) / (torch.exp(T) + torch.exp(-T))
    sech = 2 / (torch.exp(T) + torch.exp(-T))
    assert gap(relative.activate("tanh", T), tanh) < 1e-13
    assert gap(sech**2, (1 + tanh) * (1 - tanh)) < 1e-12
    assert gap(relative.slope("tanh", T), sech**2) < 1e-13
    assert gap(derivative(torch.tanh), sech**2) < 1e-8 and gap(derivative(torch.tanh), sech) > 0.1


def test_equations_38_and_39():
    s = 1 / (1 + torch.exp(-T))
    assert gap(relative.activate("sigmoid", T), s) < 1e-14
    assert gap(relative.slope("sigmoid", T), s * (1 - s)) < 1e-13
    assert (
        gap(derivative(torch.sigmoid), s * (1 - s)) < 1e-8
        and gap(derivative(torch.sigmoid), s) > 0.1
    )


def test_equation_41():
    f = lambda t: 0.25 * torch.log(torch.exp(0.1 * t / 0.25) + torch.exp(t / 0.25))
    assert gap(relative.slope("relu", T, iota=0.1, omega=0.25), derivative(f)) < 1e-8
    assert (
        gap(0.1 + 0.9 * torch.sigmoid(T / 0.25), derivative(f)) > 1e-3
    )  # without 1 - ι in the exponent


def test_equations_42_and_43():
    test_equation_19()
    f = lambda t: nn.functional.elu(t, 0.6)
    assert gap(relative.slope("elu", T, alpha=0.6), derivative(f)) < 1e-8
    assert gap(relative.slope("elu", T), derivative(f)) > 0.01


# ---- Appendix B to E


def slopes_of_probabilities(activation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of the two responses of a Bernoulli neuron and their gradients, (2,) and (2,
    3).
    """
    y, _ = reference.responses(activation)
    function = lambda w: reference.layer_log_prob(w[None], X1, y, activation).exp()
    return function(W[0]), torch.func.jacrev(function)(W[0])


def test_equations_44_to_46():
    for activation in ("tanh", "sigmoid"):
        (minus, plus), (d_minus, d_plus) = slopes_of_probabilities(activation)
        outer = torch.outer(d_plus, d_plus)
        assert (
            gap(outer / plus + torch.outer(d_minus, d_minus) / minus, brute(activation)) < 1e-12
        )  # 44
        assert float((d_plus + d_minus).norm()) < 1e-14  # 45
        assert gap(outer / (plus * minus), brute(activation)) < 1e-12  # 46
        assert gap(outer / plus, brute(activation)) > 0.1


def test_erratum_transposed_gradient():
    """Two columns have no matrix product; a column and a row give the metric of Eq. 44."""
    (minus, plus), (d_minus, d_plus) = slopes_of_probabilities("tanh")
    down, up = d_minus[:, None], d_plus[:, None]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        up @ up
    assert gap(up @ up.mT / plus + down @ down.mT / minus, brute("tanh")) < 1e-12


def test_equations_47_to_50():
    test_equation_11()
    mu = torch.tanh(W[0] @ A1)
    assert gap((1 - mu**2) * XX, brute("tanh")) < 1e-12
    d_mu = torch.func.jacrev(lambda w: torch.tanh(w @ A1))(W[0])
    assert (
        gap(torch.outer(d_mu / 2, d_mu / 2) / ((1 - mu) / 2 * (1 + mu) / 2), brute("tanh")) < 1e-12
    )
    assert (
        gap(torch.outer(d_mu, d_mu) / ((1 - mu) / 2 * (1 + mu) / 2), brute("tanh")) > 1
    )  # without the halves


def test_equations_51_and_52():
    a = W[0] @ A1
    y = tensor([[-1.0], [1.0]])
    right = torch.stack([torch.exp(-a), torch.exp(a)]) / (torch.exp(a) + torch.exp(-a))
    assert gap(reference.layer_log_prob(W[:1], X1, y, "tanh").exp(), right) < 1e-14
    b = W[0, :2] @ X1  # the printed denominator of Eq. 51, without the bias
    printed = torch.exp(-a) / (torch.exp(b) + torch.exp(-b))
    assert gap(printed + right[1], 1) > 0.01


def test_erratum_bias_in_the_denominator():
    test_equations_51_and_52()


def test_equation_53():
    curvature = hessian(lambda w: torch.log(torch.exp(w @ A1) + torch.exp(-w @ A1)))(W[0])
    sech = 2 / (torch.exp(W[0] @ A1) + torch.exp(-W[0] @ A1))
    assert gap(curvature, brute("tanh", form="curvature")) < 1e-12
    assert gap(sech**2 * XX, curvature) < 1e-12 and gap(sech * XX, curvature) > 0.1


def test_metric_needs_as_many_samples_as_weights():
    x = normal(6, 4, seed=3)
    ranks = [relative.rank(relative.neuron_rfim(normal(5), x[:n], "tanh")) for n in range(1, 7)]
    assert ranks == [1, 2, 3, 4, 5, 5]


def test_equations_54_to_57():
    test_equation_13()
    mu = torch.sigmoid(W[0] @ A1)
    d_mu = torch.func.jacrev(lambda w: torch.sigmoid(w @ A1))(W[0])
    assert gap(torch.outer(d_mu, d_mu) / (mu * (1 - mu)), brute("sigmoid")) < 1e-12
    assert gap(mu * (1 - mu) * XX, brute("sigmoid")) < 1e-12
    assert gap(torch.outer(d_mu, d_mu), brute("sigmoid")) > 0.5


def test_equation_58():
    """A Gaussian neuron: the outer product of the gradient of its mean, over σ²."""
    for activation, options in (("relu", SMOOTH), ("elu", ELU), ("linear", {"sigma": 0.7})):
        shape = {key: value for key, value in options.items() if key != "sigma"}
        d_mu = torch.func.jacrev(
            lambda w, f=activation, o=shape: reference.activation(f, w @ A1, **o)
        )(W[1])
        assert gap(torch.outer(d_mu, d_mu) / 0.49, brute(activation, W[1], **options)) < 1e-12
        assert gap(torch.outer(d_mu, d_mu) / 0.7, brute(activation, W[1], **options)) > 0.2


def test_equations_59_and_60():
    test_equation_18()
    test_equation_17()


def test_equations_61_to_63():
    test_equation_20()
    d_mu = torch.func.jacrev(lambda w: reference.activation("elu", w @ A1, alpha=0.6))(W[1])
    assert gap(0.6 * torch.exp(W[1] @ A1) * A1, d_mu) < 1e-12
    assert gap(torch.exp(W[1] @ A1) * A1, d_mu) > 0.5


# ---- Appendix F to I


def test_equations_64_and_65():
    y, volume = reference.responses("linear", 3, 0.7)
    log_p = reference.layer_log_prob(S, X1, y, "linear", 0.7)
    squares = ((y - S @ A1) ** 2).sum(1) / (2 * 0.49)
    right = -1.5 * math.log(2 * math.pi) - 1.5 * math.log(0.49) - squares
    assert gap(log_p, right) < 1e-13
    assert gap(right.exp().sum() * volume, 1) < 1e-12
    printed = (
        -0.5 * math.log(2 * math.pi) - 1.5 * math.log(0.49) - squares
    )  # D_y = 3 is missing in the first term
    assert gap(printed.exp().sum() * volume, 2 * math.pi) < 1e-12


def test_erratum_normalization_of_the_gaussian():
    test_equations_64_and_65()


def linear_scores(y: torch.Tensor) -> torch.Tensor:
    return torch.func.jacrev(lambda W: reference.layer_log_prob(W, X1, y, "linear", 0.7))(W)


def test_equations_66_to_70():
    y, volume = reference.responses("linear", 2, 0.7)
    p = reference.layer_log_prob(W, X1, y, "linear", 0.7).exp() * volume
    scores = linear_scores(y)  # (k, 2, 3)
    residual = y - W @ A1
    assert gap(scores, residual[..., None] * A1 / 0.49) < 1e-12  # 66
    assert gap(scores, -residual[..., None] * A1 / 0.49) > 1
    products = torch.einsum("kia,kjb->kijab", scores, scores)
    assert (
        gap(products, torch.einsum("ki,kj,ab->kijab", residual, residual, XX) / 0.7**4) < 1e-12
    )  # 67
    blocks = torch.einsum("k,kijab->ijab", p, products)
    assert float(blocks[0, 1].norm()) < 1e-12  # 68
    assert gap(blocks[0, 0], XX / 0.49) < 1e-12 and gap(blocks[1, 1], XX / 0.49) < 1e-12  # 69
    assert (
        gap(
            torch.block_diag(blocks[0, 0], blocks[1, 1]),
            torch.block_diag(*[relative.linear_rfim(X1, sigma=0.7)] * 2),
        )
        < 1e-12
    )  # 70
    assert gap(blocks[0, 0], XX / 0.7**4) > 0.5


def test_equations_71_and_72():
    """The neurons of a layer answer independently."""
    y, volume = reference.responses("relu", 2, 0.7)
    whole = reference.layer_log_prob(W, X1, y, "relu", **SMOOTH)
    parts = [
        reference.layer_log_prob(W[i : i + 1], X1, y[:, i : i + 1], "relu", **SMOOTH)
        for i in range(2)
    ]
    assert gap(sum(parts), whole) < 1e-13 and gap(whole.exp().sum() * volume, 1) < 1e-12
    assert gap(sum(parts[::-1]) / 2, whole) > 0.1


def test_equations_73_and_74():
    y, volume = reference.responses("tanh", 2)
    log_prob = lambda flat: reference.layer_log_prob(flat.view(2, 3), X1, y, "tanh")
    hessians = hessian(log_prob)(W.reshape(-1))
    assert float(hessians[:, :3, 3:].norm()) == 0  # 73: block diagonal for every response
    one, _ = reference.responses("tanh", 1)
    for i in range(2):
        own = hessian(lambda w: reference.layer_log_prob(w[None], X1, one, "tanh"))(W[i])
        p = reference.layer_log_prob(W[i : i + 1], X1, one, "tanh").exp()
        block = slice(3 * i, 3 * i + 3)
        right = -torch.einsum("k,kab->ab", log_prob(W.reshape(-1)).exp(), hessians[:, block, block])
        assert gap(-torch.einsum("k,kab->ab", p, own), right) < 1e-12  # 74
        assert gap(relative.layer_rfim(W, X1, "tanh")[i], right) < 1e-12
        assert gap(relative.layer_rfim(W, X1, "tanh")[1 - i], right) > 0.01
    assert volume == 1.0


def test_equations_75_to_79():
    scores = torch.exp(S @ A1)
    eta = scores / scores.sum()
    log_p = lambda W: reference.softmax_log_prob(W, X1, torch.arange(3))
    assert gap(log_p(S), S @ A1 - scores.sum().log()) < 1e-13  # 75, 76
    delta = torch.eye(3, dtype=torch.float64)
    assert gap(torch.func.jacrev(log_p)(S), (delta - eta)[..., None] * A1) < 1e-12  # 77
    hessians = hessian(log_p)(S)  # (3, 3, 3, 3, 3): label, class, input, class, input
    right = torch.einsum("jk,ab->jakb", torch.outer(eta, eta) - torch.diag(eta), XX)
    for label in range(3):
        assert gap(hessians[label], right) < 1e-12  # 78: the same for every label
    assert gap(relative.softmax_rfim(S, X1), -right.reshape(9, 9)) < 1e-12  # 79
    assert gap(relative.softmax_rfim(S, X1), right.reshape(9, 9)) > 1
    # The printed index i in numerator and sum: Σ_i of p(y=i) would be taken at the same label,
    # giving 1/m.
    assert (
        gap(torch.stack([scores[i] / sum(scores[i] for _ in range(3)) for i in range(3)]), eta)
        > 0.1
    )


def test_erratum_index_of_the_softmax_sum():
    test_equations_75_to_79()


def test_equations_80_and_81():
    test_equation_26()
    for activation in ("tanh", "sigmoid"):
        h = lambda w, f=activation: C @ reference.activation(f, w.view(2, 3) @ A1)
        J = torch.func.jacrev(h)(W.reshape(-1))  # of C^T h by W, (3, 6)
        nu = relative.nu(activation, h(W))
        assert gap(J.mT @ torch.diag(nu) @ J, brute_two_layers(activation)) < 1e-12  # 80
        assert gap(J.mT @ J, brute_two_layers(activation)) > 0.05


# ---- Figure 5


def test_erratum_sharp_ratio():
    """ "The training cost over the last τ M iterations" is no ratio: its mean and deviation are; M
    is 100 epochs of 550.
    """
    costs = torch.linspace(2, 0, 1000, dtype=torch.float64)
    mean, std = relative.sharp_ratio(costs, 0.1)
    assert mean == pytest.approx(float(costs[-100:].mean())) and std == pytest.approx(
        float(costs[-100:].std(correction=0))
    )
    assert mean < float(costs[:100].mean()) and mean != pytest.approx(float(costs[-100:].sum()))
    # As many iterations as examples: then there are as many epochs as examples in a batch.
    sizes = (50, 100, 200)
    equal = {(b, e) for b in sizes for e in sizes if 55_000 / b * e == 55_000}
    assert equal == {(size, size) for size in sizes}


# ---- More misprints, in the order of the paper


def test_erratum_crossed_indices():
    """Section 1: with Θ to A Θ the derivatives by Θ go with A^-T, lower indices, and those by H
    with A, upper ones. Printed, one vector has both.
    """
    A, theta = tensor([[2.0, 1.0], [0.0, 0.5]]), tensor([0.4, -0.7])
    potential = lambda t: torch.logsumexp(torch.cat([t, t.new_zeros(1)]), 0)
    moved = lambda t: potential(torch.linalg.solve(A, t))
    # Rows are basis vectors by their components in Θ: ∂/∂Θ_j is e_j, ∂/∂H_i is dΘ/dH_i.
    by_H = torch.linalg.inv(hessian(potential)(theta))
    by_H_moved = torch.linalg.inv(hessian(moved)(A @ theta)) @ torch.linalg.inv(A).mT
    by_theta_moved = torch.linalg.inv(A).mT
    assert gap(by_H_moved, A @ by_H) < 1e-12
    assert gap(by_H_moved, by_theta_moved @ by_H) > 0.1
    metric = hessian(potential)(theta)
    assert gap(by_H @ metric, torch.eye(2, dtype=torch.float64)) < 1e-12  # dual to ∂/∂Θ
    assert gap(metric, torch.eye(2, dtype=torch.float64)) > 0.5  # ∂/∂Θ is not dual to itself


def test_erratum_metric_has_a_letter_of_its_own():
    """Section 1: in orthogonal parameters Ω the squared length is that of a diagonal metric g, not
    of Ω.
    """
    omega = tensor([0.4, -0.2])
    G = reference.brute_force_rfim(location_scale, omega, LINE, CELL)
    assert gap(G, torch.diag(G.diagonal())) < 1e-12
    assert gap(torch.diag(omega), G) > 0.5


def test_erratum_singular_is_neither_indefinite_nor_zero():
    """Sections 1 and 2: a degenerate Fisher matrix has eigenvalues 0 and none below, so it is not
    pseudo-Riemannian; and it is not zero.
    """
    values = torch.linalg.eigvalsh(relative.softmax_rfim(S, normal(50, 2, seed=5)))
    assert float(values[0]) > -1e-14 and float(values[2]) < 1e-14  # three directions of length 0
    assert float(values[-1]) > 0.1


def test_erratum_observables_of_a_network():
    """After Eq. 9: the response that gives the Fisher matrix of Eq. 5 is y; the inputs, which are
    x there, say nothing of the parameters.
    """
    inputs = tensor([[0.5, -1.0], [2.0, 0.3]])
    y, _ = reference.responses("tanh", 1)

    def joint(w):  # log of p(x) p(y | x, w), with p(x) = 1/2: rows x, columns y
        rows = [reference.layer_log_prob(w[None], x, y, "tanh") for x in inputs]
        return torch.stack(rows) - math.log(2)

    right = reference.brute_force_rfim(lambda w, _: joint(w).reshape(-1), W[0], torch.zeros(4))
    assert gap(right, relative.neuron_rfim(W[0], inputs, "tanh")) < 1e-12
    of_x = torch.func.jacrev(lambda w: joint(w).logsumexp(1))(W[0])
    assert float(of_x.norm()) < 1e-14


def test_erratum_side_of_equation_15():
    """Section 3.1.3: the smooth relu takes the place of the mean, to the right of the bar; in the
    place of y the metric keeps its jump.
    """
    eps = tensor(1e-6)

    def jump(**options):
        return float(relative.nu("relu", eps, **options) - relative.nu("relu", -eps, **options))

    assert abs(jump(omega=0.3)) < 1e-4 and jump() == 1
    y, volume = reference.responses("relu", 1)
    w = tensor([1e-6, 0.0, 0.0])
    # Of y' = relu_ω(y), the density is that of y over the slope, which holds no parameter.
    slope = torch.sigmoid(y[:, 0] / 0.3)

    def transformed(w, y):
        return reference.layer_log_prob(w[None], X1.abs(), y, "relu") - slope.log()

    printed = [
        reference.brute_force_rfim(transformed, sign * w, y, volume * slope) for sign in (1, -1)
    ]
    assert float(printed[0].norm()) > 0.1 and float(printed[1].norm()) < 1e-12


def test_erratum_layer_without_the_constant():
    """Sections 3.3, 4 and 5.2: W has a row for the constant, so that W^T x has no value; W^T x~
    has.
    """
    with pytest.raises(RuntimeError, match="size mismatch"):
        W @ X1
    y, _ = reference.responses("tanh", 2)
    mean = reference.layer_log_prob(W, X1, y, "tanh").exp() @ y
    assert gap(mean, torch.tanh(W @ relative.augment(X1))) < 1e-14
    assert gap(torch.tanh(W[:, :2] @ X1), mean) > 0.1


def test_erratum_layer_of_theta():
    """Section 4: θ of layer L - 1 acts between h of L - 2 and h of L - 1. The maps that are
    printed, from h of L - 1 on, do not contain it.
    """
    model, x = network((4, 4, 4, 3)), normal(9, 4, seed=1)
    h_1 = model[:2](x).detach()
    h_2 = model[2:4](h_1).detach()
    own, after = model[2:4], model[4:]  # layer L - 1 = 2, and the one from h of L - 1 to y
    theta = torch.cat([model[2].weight, model[2].bias[:, None]], 1).detach()
    metric = torch.block_diag(*relative.layer_rfim(theta, h_1, "tanh"))
    printed = torch.block_diag(*relative.layer_rfim(theta, h_2, "tanh"))
    found = relative.network_rfim(model, x, Categorical())[1]
    found = found if found.ndim == 2 else torch.block_diag(*found)
    assert gap(found, metric) < 1e-12 and gap(printed, metric) > 0.1
    before = own(h_1).detach(), after(h_2).detach()
    with torch.no_grad():
        model[2].weight.mul_(1.1)
    assert torch.equal(after(h_2), before[1]) and gap(own(h_1).detach(), before[0]) > 1e-3


def test_erratum_second_constant():
    """Section 5.1: z of Eq. 28 ends with the constant; ν and the metric of Eq. 14 as printed would
    append another, and be singular.
    """
    x = normal(40, 2, seed=6)
    z = relative.augment(x)
    w = tensor([0.3, -0.2, 0.4])
    right = relative.neuron_rfim(w, x, "sigmoid")
    nu = relative.nu("sigmoid", z @ w)
    assert gap(torch.einsum("n,ni,nj->ij", nu, z, z) / len(z), right) < 1e-12
    printed = relative.neuron_rfim(torch.cat([w, w.new_zeros(1)]), z, "sigmoid")
    assert relative.rank(right) == 3 and printed.shape == (4, 4) and relative.rank(printed) == 3


def test_erratum_factor_of_equation_41():
    """The first term of the derivative has the factor ι / ω; with t / ω it is none."""
    iota, omega = 0.1, 0.25
    low, high = torch.exp(iota * T / omega), torch.exp(T / omega)
    right, printed = (
        omega * (factor / omega * low + high / omega) / (low + high) for factor in (iota, T)
    )
    assert gap(relative.slope("relu", T, iota=iota, omega=omega), right) < 1e-12
    assert gap(printed, right) > 0.1


def test_erratum_blocks_on_the_diagonal():
    """Eq. 73: the Hessian of a layer is square; its blocks in one column are not."""
    y = tensor([[1.0, -1.0]])
    whole = hessian(lambda flat: reference.layer_log_prob(flat.view(2, 3), X1, y, "tanh")[0])(
        W.reshape(-1)
    )
    blocks = [
        hessian(lambda w, i=i: reference.layer_log_prob(w[None], X1, y[:, i : i + 1], "tanh")[0])(
            W[i]
        )
        for i in range(2)
    ]
    assert gap(torch.block_diag(*blocks), whole) < 1e-12
    assert torch.cat(blocks).shape == (6, 3) != whole.shape
