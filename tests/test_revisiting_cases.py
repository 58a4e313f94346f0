"""The exact values for Pascanu & Bengio, computed elsewhere: tests/cases/revisiting.json."""

import math

import pytest
import torch
from torch import nn

from natcompanion import metrics, reference, solvers
from natcompanion.damping import (
    LevenbergMarquardt,
    linear_decrease,
    quadratic_decrease,
    reduction_ratio,
)
from natcompanion.likelihoods import Bernoulli, Categorical, Gaussian
from natcompanion.metrics import CovarianceOperator, FisherOperator
from tests.conftest import load_cases

CASES = load_cases("revisiting")
LIKELIHOODS = {"softmax": Categorical(), "sigmoid": Bernoulli()}


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def network(inputs):
    """Build the network of a case, and its batch."""
    (a, h, o) = inputs["sizes"]
    model = nn.Sequential(nn.Linear(a, h), nn.Tanh(), nn.Linear(h, o)).double()
    with torch.no_grad():
        for p, key in zip(model.parameters(), ("W1", "b1", "W2", "b2"), strict=True):
            p.copy_(tensor(inputs[key]))
    return model, tensor(inputs["X"])


def close(actual, expected, rtol):
    """Compare by the norm of the difference, as the case file asks."""
    actual = actual.detach() if isinstance(actual, torch.Tensor) else tensor(actual)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    assert float((actual - expected).norm()) <= rtol * float(expected.norm())


@pytest.mark.parametrize("output", LIKELIHOODS)
def test_fisher(output):
    case = CASES[f"002-fisher-{output}"]
    model, x = network(case["inputs"])
    likelihood = LIKELIHOODS[output]
    g = metrics.fisher(model, x, likelihood)
    close(g, case["expected"]["G"], case["rtol"])
    close(FisherOperator(model, x, likelihood).dense(), case["expected"]["G"], case["rtol"])
    close(reference.fisher(model, x, likelihood), case["expected"]["G"], case["rtol"])
    close(g.trace(), case["expected"]["trace"], case["rtol"])
    assert int(torch.linalg.matrix_rank(g, rtol=1e-10)) == case["expected"]["rank"]


def test_product():
    case = CASES["002-Gv-softmax"]
    model, x = network(case["inputs"])
    v = tensor(case["inputs"]["v"])
    product = FisherOperator(model, x, Categorical()) @ v
    close(product, case["expected"]["Gv"], case["rtol"])
    close(v @ product, case["expected"]["vGv"], case["rtol"])


@pytest.mark.parametrize("output", LIKELIHOODS)
def test_kl(output):
    case = CASES[f"002-kl-{output}"]
    model, x = network(case["inputs"])
    likelihood, delta = LIKELIHOODS[output], tensor(case["inputs"]["D"])
    theta = reference.parameter_vector(model)
    r, s = (reference.outputs(model, z, x) for z in (theta, theta + delta))
    close(likelihood.kl(r, s).mean(), case["expected"]["kl"], case["rtol"])
    close(likelihood.kl(s, r).mean(), case["expected"]["kl_reverse"], case["rtol"])
    close(reference.kl(model, x, likelihood, delta), case["expected"]["kl"], case["rtol"])
    g = metrics.fisher(model, x, likelihood)
    close(delta @ g @ delta / 2, case["expected"]["quadratic"], case["rtol"])


@pytest.mark.parametrize(
    ("name", "likelihood"), [("sigmoid", Bernoulli()), ("linear", Gaussian(0.5))]
)
def test_output_hessian(name, likelihood):
    case = CASES[f"002-Hout-{name}"]
    model, x = network(case["inputs"])
    r = model(x).detach()
    close(r, case["expected"]["r"], case["rtol"])
    root = likelihood.fisher_root(r)
    close(root @ root.mT, case["expected"]["H"], case["rtol"])


def test_gradient():
    case = CASES["002-gradient-softmax"]
    model, x = network(case["inputs"])
    t = torch.tensor(case["inputs"]["labels"])
    loss = Categorical().nll(model(x), t).mean()
    close(loss, case["expected"]["loss"], case["rtol"])
    close(reference.gradient(model, loss), case["expected"]["grad"], case["rtol"])


def test_covariances():
    case = CASES["002-tonga"]
    model, x = network(case["inputs"])
    t = torch.tensor(case["inputs"]["labels"])
    close(
        metrics.per_example_gradients(model, x, t, Categorical()),
        case["expected"]["per_example"],
        case["rtol"],
    )
    close(
        metrics.gradient_covariance(model, x, t, Categorical()), case["expected"]["C"], case["rtol"]
    )
    close(metrics.empirical_fisher(model, x, t, Categorical()), case["expected"]["U"], case["rtol"])
    close(
        CovarianceOperator(model, x, t, Categorical()).dense(), case["expected"]["C"], case["rtol"]
    )


def test_directions():
    case = CASES["002-directions"]
    model, x = network(case["inputs"])
    t, damping = torch.tensor(case["inputs"]["labels"]), case["inputs"]["damping"]
    g = metrics.per_example_gradients(model, x, t, Categorical()).mean(0)
    directions = {
        "natural": FisherOperator(model, x, Categorical(), damping),
        "U": CovarianceOperator(model, x, t, Categorical(), damping, centred=False),
        "C": CovarianceOperator(model, x, t, Categorical(), damping),
    }
    directions = {
        key: solvers.conjugate_gradient(op, g, rtol=1e-13).x for key, op in directions.items()
    }
    for key, direction in directions.items():
        close(direction, case["expected"][key], case["rtol"])
    ratio = directions["C"].norm() / directions["U"].norm()
    close(ratio, case["expected"]["ratio_C_over_U"], case["rtol"])
    close(1 + g @ directions["C"], case["expected"]["predicted_ratio"], case["rtol"])
    cosine = torch.cosine_similarity(directions["natural"], directions["U"], dim=0)
    close(cosine, case["expected"]["cos_natural_vs_U"], case["rtol"])


def test_same_batch_is_compatible():
    case = CASES["002-same-batch-compatible"]
    model, x = network(case["inputs"])
    t = torch.tensor(case["inputs"]["labels"])
    g = metrics.per_example_gradients(model, x, t, Categorical()).mean(0)
    operator = FisherOperator(model, x, Categorical())
    for solver in (solvers.conjugate_gradient, solvers.minres, solvers.minres_qlp):
        solution = solver(operator, g, rtol=1e-9)
        assert solution.converged
        close(solution.x, case["expected"]["pinv_solution"], case["rtol"])


@pytest.mark.parametrize("name", ["cg", "minres"])
def test_iterates(name):
    case = CASES[f"002-{name}-spd"]
    a, b = tensor(case["inputs"]["A"]), tensor(case["inputs"]["b"])
    methods = [solvers.conjugate_gradient] if name == "cg" else [solvers.minres, solvers.minres_qlp]
    for solver in methods:
        for k in (1, 2, 3, 4):
            close(solver(a, b, rtol=0, max_iter=k).x, case["expected"][f"x{k}"], case["rtol"])


def test_singular_compatible():
    case = CASES["002-minresqlp-singular-compatible"]
    a, b = tensor(case["inputs"]["A"]), tensor(case["inputs"]["b"])
    for solver in (solvers.minres_qlp, solvers.minres, solvers.conjugate_gradient):
        solution = solver(a, b, rtol=1e-12)
        close(solution.x, case["expected"]["x"], case["rtol"])
        close(solution.x.norm(), case["expected"]["norm"], case["rtol"])
        assert solution.converged


@pytest.mark.parametrize("lr", CASES["002-lm-quadratic"]["expected"])
def test_levenberg_marquardt(lr):
    case = CASES["002-lm-quadratic"]
    a, x = tensor(case["inputs"]["A"]), tensor(case["inputs"]["x0"])
    expected, g = case["expected"][lr], a @ x
    step = -float(lr) * torch.linalg.solve(a, g)
    before, after = (float(z @ a @ z) / 2 for z in (x, x + step))
    slope = reduction_ratio(before, after, linear_decrease(step, g))
    curved = reduction_ratio(before, after, quadratic_decrease(step, g, a @ step))
    close(slope, expected["rho30"], case["rtol"])
    close(curved, expected["rho_martens"], case["rtol"])
    if lr != "0.5":  # there rho is 3/4 up to rounding
        rule = LevenbergMarquardt(case["inputs"]["lam"])
        close(rule.update(slope), expected["lam_after_rho30"], case["rtol"])
    close(
        LevenbergMarquardt(case["inputs"]["lam"]).update(curved),
        expected["lam_after_martens"],
        case["rtol"],
    )


def test_lagrangian():
    case = CASES["002-lagrangian"]
    model, x = network(case["inputs"])
    t, c = torch.tensor(case["inputs"]["labels"]), case["inputs"]["c"]
    g = metrics.per_example_gradients(model, x, t, Categorical()).mean(0)
    operator = FisherOperator(model, x, Categorical(), case["inputs"]["damping"])
    natural = torch.linalg.solve(operator.dense(), g)
    multiplier = math.sqrt(float(g @ natural) / (2 * c))
    close(multiplier, case["expected"]["multiplier"], case["rtol"])
    step = -natural / multiplier
    close(step, case["expected"]["step"], case["rtol"])
    close(step @ (operator @ step) / 2, case["expected"]["check"], case["rtol"])
    printed = 2 * step  # the factor 2 / lambda of the text after Eq. 5
    assert float(printed @ (operator @ printed) / 2) == pytest.approx(4 * c)


class AutoEncoder(nn.Module):
    """One hidden unit with tied weight and bias, y = w s(w x + b) + b; parameters (b, w)."""

    def __init__(self, b, w):
        super().__init__()
        self.b, self.w = nn.Parameter(tensor([b])), nn.Parameter(tensor([w]))

    def forward(self, x):
        return self.w * torch.sigmoid(self.w * x + self.b) + self.b


@pytest.mark.parametrize("start", ["-3,-1", "3,1"])
def test_auto_encoder(start):
    case = CASES[f"002-fig1-{start}"]
    model = AutoEncoder(case["inputs"]["b"], case["inputs"]["w"])
    x = torch.linspace(-1, 1, 11, dtype=torch.float64).unsqueeze(1)
    squares = Gaussian(
        math.sqrt(0.5)
    )  # the squared error is -log p with beta^2 = 1/2, and a constant
    expected, rtol = case["expected"], case["rtol"]
    close((model(x) - x).square().mean(), expected["loss"], rtol)
    gradient = metrics.per_example_gradients(model, x, x, squares).mean(0)
    close(gradient, expected["grad"], rtol)
    g = metrics.fisher(model, x, Gaussian())
    close(g, expected["G"], rtol)
    hessian = reference.loss_hessian(model, x, x, squares)
    close(hessian, expected["H"], rtol)
    u, c = (
        m(model, x, x, squares) for m in (metrics.empirical_fisher, metrics.gradient_covariance)
    )
    close(u, expected["U"], rtol)
    close(c, expected["C"], rtol)
    eye = torch.eye(2, dtype=torch.float64)
    steps = {
        "Newton": -torch.linalg.solve(hessian + eye, gradient),
        "natural gradient": -0.5 * torch.linalg.solve(g + 0.01 * eye, gradient),
        "Le Roux": -torch.linalg.solve(u + eye, gradient),
        "gradient descent": -0.1 * gradient,
    }
    for name, step in steps.items():
        close(step, expected["steps"][name], rtol)


def test_kl_surface():
    case = CASES["002-fig1-kl"]
    b, w = case["inputs"]["b"], case["inputs"]["w"]
    x = torch.linspace(-1, 1, 11, dtype=torch.float64).unsqueeze(1)
    r = AutoEncoder(b, w)(x)
    surface = [
        [
            float(Gaussian().kl(r, AutoEncoder(b + db, w + dw)(x)).mean().detach())
            for db in case["inputs"]["db"]
        ]
        for dw in case["inputs"]["dw"]
    ]
    close(tensor(surface), case["expected"]["kl"], case["rtol"])


def test_printed_cost_is_the_mirror_image():
    case = CASES["002-fig1-printed-mirror"]
    b, w, x = case["inputs"]["b"], case["inputs"]["w"], tensor(case["inputs"]["x"])
    printed = (x - w * torch.sigmoid(w * x + b) + b).square().mean()
    close(printed, case["expected"]["printed"], case["rtol"])
    mirrored = (-x - AutoEncoder(b, -w)(-x)).square().mean()
    close(mirrored, case["expected"]["printed"], case["rtol"])
    tied = (x - AutoEncoder(b, w)(x)).square().mean()
    close(tied, case["expected"]["tied_same_params"], case["rtol"])
