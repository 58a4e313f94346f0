"""The exact step in sample space against the dense system, for likelihoods and kinds of layers."""

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch import nn

from natcompanion import reference
from natcompanion.damping import LevenbergMarquardt
from natcompanion.likelihoods import Bernoulli, Categorical, FromNLL, Gaussian
from natcompanion.metrics import FisherOperator, dense_limit
from natcompanion.optim import SampleSpaceNaturalGradient
from natcompanion.optim import sample_space as module
from natcompanion.solvers import Reason

COUNTS = FromNLL(lambda r, t: (r.exp() - t * r + torch.lgamma(t + 1)).sum(-1))
LIKELIHOODS = {
    "gaussian": Gaussian(0.5),
    "bernoulli": Bernoulli(),
    "categorical": Categorical(),
    "own": COUNTS,
}
DAMPING = 1e-3


def randn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(sizes=(4, 6, 3), bias=True):
    torch.manual_seed(0)
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b, bias=bias), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).double()


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)
    ).double()


class Reused(nn.Module):
    """A layer that is used twice: no layer explains the outputs."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Elsewhere(nn.Module):
    """A weight that is used outside of its layer: the layers give another gradient."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)) @ self.layer.weight)


def made(kind):
    torch.manual_seed(0)
    return {
        "mlp": (mlp, (4,)),
        "no bias": (lambda: mlp(bias=False), (4,)),
        "convolution": (convnet, (1, 4, 4)),
        "sequence": (
            lambda: nn.Sequential(
                nn.Linear(4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3)
            ).double(),
            (2, 4),
        ),
        "norm": (
            lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double(),
            (4,),
        ),
        "twice": (lambda: Reused().double(), (4,)),
        "elsewhere": (lambda: Elsewhere().double(), (4,)),
    }[kind]


def targets(likelihood, n, o):
    g = torch.Generator().manual_seed(2)
    if isinstance(likelihood, Categorical):
        return torch.randint(o, (n,), generator=g)
    if isinstance(likelihood, Gaussian):
        return torch.randn(n, o, generator=g, dtype=torch.float64)
    return torch.randint(2, (n, o), generator=g).double()


def flat(tensors):
    return torch.cat([p.detach().flatten() for p in tensors])


def dense_direction(model, x, t, likelihood, damping=DAMPING):
    """Return (G + damping I)^-1 g from the brute-force Fisher matrix, or the operator's."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    g = flat(torch.autograd.grad(likelihood.nll(model(x), t).mean(), parameters))
    if isinstance(likelihood, FromNLL):
        G = FisherOperator(model, x, likelihood).dense()
    else:
        G = reference.fisher(model, x, likelihood)
    return torch.linalg.solve(G + damping * torch.eye(len(g), dtype=torch.float64), g)


def gap(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize(
    "kind", ["mlp", "no bias", "convolution", "sequence", "norm", "twice", "elsewhere"]
)
@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS.keys())
def test_a_step_is_that_of_the_dense_system(kind, likelihood):
    make, shape = made(kind)
    model, x = make(), randn(5, *shape)
    t = targets(likelihood, 5, 3)
    d, before = dense_direction(model, x, t, likelihood), flat(model.parameters())
    optimizer = SampleSpaceNaturalGradient(model, likelihood, 0.1, damping=DAMPING)
    loss = optimizer.step(x, t)
    move = flat(model.parameters()) - before
    assert gap(move, -0.1 * d) < 1e-10
    assert optimizer.last.residual < 1e-10 and optimizer.last.reason is Reason.CONVERGED
    assert loss == optimizer.last.loss and optimizer.last.accepted
    # negative controls: another damping is another step, and so is the gradient
    assert gap(move, -0.1 * dense_direction(make(), x, t, likelihood, 2 * DAMPING)) > 1e-4


@pytest.mark.parametrize(
    "kind, layers",
    [("mlp", True), ("convolution", True), ("norm", False), ("twice", False), ("elsewhere", False)],
)
def test_layers_are_used_where_they_explain_the_outputs(kind, layers):
    make, shape = made(kind)
    f = module.ModelFunction(make())
    assert module.explained_by_layers(f, randn(5, *shape)) is layers
    J = module.jacobian(f, randn(5, *shape), by_layers=layers)
    assert isinstance(J, module.LayerJacobian) is layers
    rows = module.Jacobian(f, randn(5, *shape))
    u, v = randn(5, 3), randn(f.size)
    assert gap(J.pull(u), rows.pull(u)) < 1e-13 and gap(J.push(v), rows.push(v)) < 1e-13
    assert gap(J.kernel(), rows.kernel()) < 1e-13


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_frozen_parameters_stay_and_have_no_part(frozen):
    model, x, t = mlp(), randn(5, 4), targets(Categorical(), 5, 3)
    model.get_parameter(frozen).requires_grad_(False)
    d, before = dense_direction(model, x, t, Categorical()), flat(model.parameters())
    free = [p for p in model.parameters() if p.requires_grad]
    start, stays = flat(free), model.get_parameter(frozen).detach().clone()
    SampleSpaceNaturalGradient(model, Categorical(), 0.1, damping=DAMPING).step(x, t)
    assert gap(flat(free) - start, -0.1 * d) < 1e-10 and len(before) > len(start)
    assert torch.equal(model.get_parameter(frozen), stays)


def test_a_residual_loss():
    """Least squares of residuals: with no damping to speak of, a Gauss-Newton step to zero."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()

        def forward(self, x):  # u' = cos
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                u = self.net(x)
                (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            return slope - x.cos()

    torch.manual_seed(0)
    model, x = Residual(), torch.linspace(-2, 2, 15, dtype=torch.float64)[:, None]
    optimizer = SampleSpaceNaturalGradient(model, Gaussian(), 1.0, damping=1e-6, kl=10.0)
    zero = torch.zeros(15, 1, dtype=torch.float64)
    for _ in range(25):
        optimizer.step(x, zero)
    assert float(model(x).detach().square().mean()) < 1e-6


@pytest.mark.parametrize("n", [16, 17, 18, 40])
def test_more_outputs_than_parameters(n):
    model, x, t = mlp(), randn(n, 4), targets(Categorical(), n, 3)  # P = 51
    d, before = dense_direction(model, x, t, Categorical()), flat(model.parameters())
    optimizer = SampleSpaceNaturalGradient(model, Categorical(), 0.1, damping=DAMPING)
    optimizer.step(x, t)
    assert gap(flat(model.parameters()) - before, -0.1 * d) < 1e-10
    assert optimizer.last.residual < 1e-10


@pytest.mark.parametrize("radius", [1e-4, 1e-2])
def test_the_step_keeps_to_its_radius_and_does_not_rise(radius):
    model, x, t = mlp(), randn(5, 4), targets(Categorical(), 5, 3)
    optimizer = SampleSpaceNaturalGradient(model, Categorical(), 50.0, kl=radius)
    for _ in range(10):
        before = model(x).detach()
        losses = float(Categorical().nll(before, t).mean())
        optimizer.step(x, t)
        last = optimizer.last
        measured = float(Categorical().kl(before, model(x).detach()).mean())
        assert last.accepted and measured == pytest.approx(last.measured_kl, rel=1e-6)
        assert (
            measured <= radius and float(Categorical().nll(model(x).detach(), t).mean()) <= losses
        )
        assert last.measured_kl > 0.3 * radius  # it goes as far as it may
        assert last.predicted_kl <= radius * (1 + 1e-12) and last.scale < 1
    assert last.predicted_kl == pytest.approx(last.measured_kl, rel=0.2)


def test_no_step_that_rises_is_taken_within_a_radius():
    model, x, t = mlp(), randn(5, 4), targets(Gaussian(), 5, 3)
    with torch.no_grad():  # at the minimum every step rises
        t = model(x).detach() + 1e-3 * randn(5, 3)
    optimizer = SampleSpaceNaturalGradient(model, Gaussian(), 3.0, kl=1e9, damping=1e-9)
    for _ in range(3):
        before = float(Gaussian().nll(model(x).detach(), t).mean())
        optimizer.step(x, t)
        assert float(Gaussian().nll(model(x).detach(), t).mean()) <= before


def test_float32_reports_a_small_residual_and_what_it_cannot_hold():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 80), nn.Tanh(), nn.Linear(80, 10))
    x, t = torch.randn(16, 50), torch.arange(16) % 10
    optimizer = SampleSpaceNaturalGradient(model, Categorical(), 0.1, damping=1e-3)
    g = flat(torch.autograd.grad(Categorical().nll(model(x), t).mean(), list(model.parameters())))
    operator = FisherOperator(copy.deepcopy(model).double(), x.double(), Categorical())
    before = flat(model.parameters())
    optimizer.step(x, t)
    d = (before - flat(model.parameters())).double() / 0.1
    true = float((operator @ d + 1e-3 * d - g.double()).norm() / g.double().norm())
    assert optimizer.last.residual < 1e-4 and true < 1e-4 + 1e-3  # the move is rounded
    strict = SampleSpaceNaturalGradient(model, Categorical(), 0.1, damping=1e-3, rtol=1e-12)
    strict.step(x, t)
    assert strict.last.reason is Reason.STAGNATED and strict.last.residual > 1e-12


class Derivative(nn.Module):
    """The derivative of a network by its input, example by example, in a transform."""

    def __init__(self):
        super().__init__()
        self.inner = mlp((2, 5, 1))

    def forward(self, x):
        return torch.func.vmap(torch.func.jacrev(lambda z: self.inner(z)[0]))(x)


def test_layers_inside_a_transform_are_no_layers_of_the_outputs():
    model, x = Derivative(), randn(6, 2)
    twin = copy.deepcopy(model)
    SampleSpaceNaturalGradient(model, Gaussian(), 0.1, damping=0.1).step(x, torch.zeros_like(x))
    f = FisherOperator(twin, x, Gaussian(), damping=0.1)
    g = torch.autograd.grad(
        Gaussian().nll(twin(x), torch.zeros_like(x)).mean(),
        list(twin.parameters()),
        materialize_grads=True,
    )
    dense = torch.stack([f @ e for e in torch.eye(f.shape[0], dtype=x.dtype)], 1)
    wanted = flat(twin.parameters()) - 0.1 * torch.linalg.solve(dense, flat(g))
    torch.testing.assert_close(flat(model.parameters()), wanted, rtol=1e-8, atol=1e-10)


def test_momentum_decay_damping_rule_copies_and_states_go_on():
    x, t = randn(5, 4), targets(Categorical(), 5, 3)
    model = mlp()
    optimizer = SampleSpaceNaturalGradient(
        model, Categorical(), 0.1, damping=LevenbergMarquardt(0.5), momentum=0.5, weight_decay=0.1
    )
    optimizer.step(x, t)
    assert optimizer.damping.damping != 0.5
    pairs = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    resumed = copy.deepcopy(model)
    other = SampleSpaceNaturalGradient(
        resumed, Categorical(), 0.1, damping=LevenbergMarquardt(0.1), momentum=0.5, weight_decay=0.1
    )
    other.load_state_dict(optimizer.state_dict())
    pairs.append((resumed, other))
    optimizer.step(x, t)
    for m, o in pairs:
        o.step(x, t)
        assert torch.equal(flat(m.parameters()), flat(model.parameters()))


def test_a_step_that_momentum_turns_uphill_at_every_length_is_not_taken():
    model, x = mlp((4, 3)), randn(8, 4)
    down = model(x).detach() - 1.0
    optimizer = SampleSpaceNaturalGradient(model, Gaussian(), 0.5, momentum=0.99, kl=10.0)
    optimizer.step(x, down)
    before = [w.detach().clone() for w in model.parameters()]
    optimizer.step(x, model(x).detach() + 1e-6)  # the minimum is behind us, the velocity goes on
    assert not optimizer.last.accepted
    assert optimizer.last.loss_after > optimizer.last.loss
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_refusals():
    model, x = mlp(), randn(5, 4)
    t = targets(Categorical(), 5, 3)
    before = flat(model.parameters())
    with dense_limit(1e-7), pytest.raises(ValueError, match="outputs of a batch need a dense"):
        SampleSpaceNaturalGradient(model, Categorical(), 0.1).step(x, t)
    normed = nn.Sequential(nn.Linear(4, 50), nn.LayerNorm(50), nn.Linear(50, 3)).double()
    with dense_limit(1e-5), pytest.raises(ValueError, match="15 gradients of 503 parameters need"):
        SampleSpaceNaturalGradient(normed, Categorical(), 0.1).step(x, t)
    with pytest.raises(ValueError, match="finite loss"):
        SampleSpaceNaturalGradient(model, Gaussian(), 0.1).step(x, torch.full((5, 3), torch.inf))
    with pytest.raises(ValueError, match="metric_inputs: the system is that of the batch"):
        SampleSpaceNaturalGradient(model, Categorical(), 0.1).step(x, t, x)
    with pytest.raises(ValueError, match="influence"):
        mixing = Mixing().double()
        SampleSpaceNaturalGradient(mixing, Categorical(), 0.1).step(x, t)
    for options, message in (
        ({"damping": 0.0}, "damping"),
        ({"kl": 0.0}, "kl"),
        ({"solver": None}, "solver: expected one of"),
    ):
        with pytest.raises(ValueError, match=message):
            SampleSpaceNaturalGradient(model, Categorical(), 0.1, **options)
    assert torch.equal(flat(model.parameters()), before)


class Mixing(nn.Module):
    """Examples that influence one another."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        r = self.layer(x)
        return r - r.mean(0)
