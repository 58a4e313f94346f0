"""RNGD: the paper's algorithm, closed forms, convolutions, resuming and copying, degenerate units,
refusals.
"""

import copy
import gc
import io
import itertools
import pickle
import warnings
from functools import partial

import pytest
import torch
from _states import equal
from torch import nn
from torch.nn import functional as F

from natcompanion import reference, relative
from natcompanion.data import mnist
from natcompanion.optim import RNGD
from natcompanion.optim._blocks import definite_inverse, packed_moments, unpacked, windows

ACTIVATIONS = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "elu": nn.ELU(0.7)}
OPTIONS = {"elu": {"alpha": 0.7}}
named = pytest.mark.parametrize("activation", ACTIVATIONS)


def mlp(sizes=(5, 4, 4, 3), activation="relu", seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = [
        m
        for a, b in itertools.pairwise(sizes)
        for m in (nn.Linear(a, b), copy.copy(ACTIVATIONS[activation]))
    ]
    return nn.Sequential(*layers[:-1]).to(dtype)


def batch(step=0, n=12, d=5, classes=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(100 + step)
    return torch.randn(n, d, generator=g, dtype=dtype) + 0.5, torch.randint(
        classes, (n,), generator=g
    )


def descend(model, optimizer, steps, start=0, **options):
    for step in range(start, start + steps):
        x, t = batch(step, **options)
        optimizer.zero_grad()
        F.cross_entropy(model(x), t).backward()
        optimizer.step()


def kept(optimizer, name):
    """What the state keeps of a layer."""
    return optimizer.state[optimizer.blocks[name].parts[0]]


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def with_one(x):
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


def matrices(model):
    """Return weights and, as the last column, biases of each linear layer."""
    linears = [m for m in model if isinstance(m, nn.Linear)]
    return [torch.cat([m.weight, m.bias[:, None]], 1).detach() for m in linears]


def in_papers_letters(model, activation, steps, **changes):
    """Return the weights after steps of the paper's algorithm."""
    nu = partial(relative.nu, activation, **OPTIONS.get(activation, {}))
    f, batches = ACTIVATIONS[activation], map(batch, range(steps))
    settings = {"gamma": 0.2, "lam": 0.8, "eps": 0.05, "T": 3, "nu": nu, **changes}
    return reference.rngd(matrices(model), batches, F.cross_entropy, f, **settings)


# ---- The trajectory


@named
def test_trajectory_is_that_of_the_papers_algorithm(activation):
    model = mlp(activation=activation)
    expected = in_papers_letters(model, activation, 8)
    descend(model, RNGD(model, 0.2, eps=0.05, period=3, decay=0.8, statistics_every=1), 8)
    torch.testing.assert_close(matrices(model), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"T": 4}, {"nu": torch.ones_like}, {"lam": 0.81}, {"eps": 0.051}, {"gamma": 0.201}]
)
def test_the_papers_algorithm_tells_wrong_settings(wrong):
    model = mlp()
    other = in_papers_letters(model, "relu", 8, **wrong)
    descend(model, RNGD(model, 0.2, eps=0.05, period=3, decay=0.8, statistics_every=1), 8)
    gaps = [(a - b).abs().max() for a, b in zip(matrices(model), other, strict=True)]
    assert max(gaps) > 1e-5


@pytest.mark.parametrize("lam, equal", [(0.8**2, True), (0.8, False)])
def test_statistics_of_every_second_step(lam, equal):
    """One neuron of the hidden layer: the mean takes in every second batch, with the square of the
    decay.
    """
    model = mlp()
    optimizer = RNGD(model, 0.2, eps=0.05, period=4, decay=0.8, statistics_every=2)
    G = torch.eye(5).double()
    for step in range(9):
        if step % 2:
            h = with_one(model[:2](batch(step)[0])).detach()
            w = matrices(model)[1][1]
            G = reference.running_rfim(G, w, h, partial(relative.nu, "relu"), lam, 0.05)
        descend(model, optimizer, 1, start=step)
    assert torch.allclose(optimizer.metric("2")[1], G, rtol=1e-10) == equal


def test_by_default_ten_statistics_a_period():
    assert RNGD(mlp(), 0.1).defaults["statistics_every"] == 10
    assert RNGD(mlp(), 0.1, period=7).defaults["statistics_every"] == 1


def test_the_first_period_is_gradient_descent():
    model = mlp()
    twin = copy.deepcopy(model)
    descend(model, RNGD(model, 0.2, period=5), 4)
    descend(twin, torch.optim.SGD(twin.parameters(), 0.2), 4)
    torch.testing.assert_close(flat(model), flat(twin), rtol=1e-12, atol=0)
    descend(model, RNGD(model, 0.2, period=1), 1)
    assert (flat(model) - flat(twin)).abs().max() > 1e-3


def test_a_step_whitens_the_inputs_of_a_linear_layer():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    before, (x, _) = with_one(torch.zeros(1, 3).double()), batch(d=3)
    optimizer = RNGD(model, 1.0, eps=0.0, period=1, decay=0.0, statistics_every=1)
    target = torch.randn(12, 2, dtype=torch.float64)
    (0.5 * (model(x) - target).square().sum(1).mean()).backward()
    optimizer.step()
    rows = with_one(x)
    exact = torch.linalg.lstsq(rows, target).solution  # one step of length 1 solves least squares
    torch.testing.assert_close(torch.cat([model.weight, model.bias[:, None]], 1).detach(), exact.mT)
    assert before.shape == (1, 4)


# ---- The metric


@named
def test_running_mean_is_the_layers_rfim(activation):
    model = mlp(activation=activation)
    optimizer = RNGD(model, 0.0, eps=0.0, period=1, decay=0.0)
    descend(model, optimizer, 1)
    x, _ = batch(0)
    h = model[1](model[0](x)).detach()
    W = torch.cat([model[2].weight, model[2].bias[:, None]], 1).detach()
    expected = relative.layer_rfim(W, h, activation, **OPTIONS.get(activation, {}))
    torch.testing.assert_close(optimizer.metric("2"), expected)
    shared = relative.linear_rfim(x)
    torch.testing.assert_close(optimizer.metric("0"), shared)
    if activation != "elu":
        assert (expected - relative.linear_rfim(h)).abs().max() > 1e-2


def test_packed_moments():
    torch.manual_seed(0)
    x, nu = torch.randn(7, 4).double(), torch.rand(7, 3).double()
    index = torch.triu_indices(4, 4)
    expected = torch.einsum("nl,na,nb->lab", nu, x, x)
    torch.testing.assert_close(unpacked(packed_moments(x, nu, index), 4), expected)
    torch.testing.assert_close(definite_inverse(expected, 0.0), torch.linalg.inv(expected))


def test_kinds_of_blocks():
    metrics = {}
    for kind in ("neuron", "mean", "linear"):
        model = mlp()
        optimizer = RNGD(model, 0.0, eps=0.1, period=1, decay=0.5, blocks=kind)
        descend(model, optimizer, 2)
        metrics[kind] = optimizer.metric("2")
    assert metrics["neuron"].shape == (4, 5, 5)
    torch.testing.assert_close(metrics["mean"], metrics["neuron"].mean(0))
    assert (metrics["mean"] - metrics["linear"]).abs().max() > 0.1
    torch.testing.assert_close(metrics["linear"], metrics["linear"].mT)
    kinds = {name: b.kind for name, b in RNGD(mlp(), 0.1, blocks={"2": "mean"}).blocks.items()}
    assert kinds == {"0": "linear", "2": "mean", "4": "linear"}


def test_sample_once():
    x, t = batch()
    models = [mlp(), mlp()]
    once = RNGD(models[0], 0.3, eps=0.1, period=2, decay=0.7, sample=x)
    always = RNGD(models[1], 0.3, eps=0.1, period=2, decay=0.7)
    for model, optimizer in zip(models, (once, always), strict=True):
        for _ in range(7):
            optimizer.zero_grad()
            F.cross_entropy(model(x), t).backward()
            optimizer.step()
    torch.testing.assert_close(flat(models[0]), flat(models[1]), rtol=1e-10, atol=1e-12)
    assert "S" not in kept(once, "0")
    other = RNGD(mlp(), 0.3, sample=2 * x)
    assert not torch.equal(kept(other, "0")["constant"], kept(once, "0")["constant"])


@pytest.mark.parametrize("given", [False, True])
def test_the_diagonal_in_principal_axes_is_the_whole_metric(given):
    """The copied inputs make the first layer's metric diagonal; in other axes it is not."""
    x, t = batch(n=40)
    z, Q = relative.principal_inputs(x)
    paths = {}
    for name, inputs in (("whole", x), ("axes", z), ("diagonal of x", x)):
        model, kind = mlp(), "linear" if name == "whole" else "diagonal"
        if name == "axes":
            W = matrices(model)[0] @ Q
            model[0] = nn.Linear(6, 4, bias=False).double()
            model[0].weight.data.copy_(W)
        sample = {"sample": inputs} if given else {}
        optimizer = RNGD(
            model, 0.3, eps=0.1, period=2, decay=0.7, blocks={"0": kind}, **sample, momentum=0.5
        )
        for _ in range(9):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), t).backward()
            optimizer.step()
        paths[name] = model(inputs).detach()
    torch.testing.assert_close(paths["axes"], paths["whole"], rtol=1e-9, atol=1e-11)
    assert (paths["diagonal of x"] - paths["whole"]).abs().max() > 1e-2


def test_sample_pass_through_what_comes_before_the_first_layer():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 2)).double().train()
    torch.manual_seed(0)
    x = torch.randn(9, 2, 2).double()
    optimizer = RNGD(model, 0.1, sample=x)
    torch.testing.assert_close(kept(optimizer, "2")["constant"], relative.linear_rfim(x.flatten(1)))
    assert all(m.training for m in model.modules())


@pytest.mark.parametrize(
    ("first", "inputs"),
    [
        (nn.Embedding(7, 4), torch.arange(14).view(7, 2) % 7),
        (nn.LayerNorm(4), torch.randn(9, 2, 4).double()),
        (nn.ConvTranspose1d(2, 2, 3), torch.randn(9, 2, 4).double()),
    ],
    ids=lambda a: type(a).__name__,
)
def test_a_first_layer_whose_inputs_change_has_no_metric_from_a_sample(first, inputs):
    """What comes before the first layer that has a metric may be trained itself."""
    torch.manual_seed(0)
    model = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(3)).double()
    model(inputs)
    with pytest.raises(ValueError, match=r"'2' depend on '0\..*freeze what comes before"):
        RNGD(model, 0.1, sample=inputs)
    model[0].requires_grad_(False)
    found = kept(RNGD(model, 0.1, sample=inputs), "2")["constant"]
    expected = relative.linear_rfim(model[:2](inputs).detach())
    torch.testing.assert_close(found, expected)


def test_a_sample_for_a_model_that_differentiates_by_its_inputs():
    class Slope(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 4), nn.Linear(4, 1)

        def forward(self, x):
            x = x.requires_grad_()
            u = self.b(torch.tanh(self.a(x)))
            return torch.autograd.grad(u.sum(), x, create_graph=True)[0]

    torch.manual_seed(0)
    model, x = Slope().double(), torch.randn(9, 2).double()
    found = kept(RNGD(model, 0.1, sample=x, blocks="linear"), "a")["constant"]
    torch.testing.assert_close(found, relative.linear_rfim(x))
    assert not x.requires_grad


def test_inputs_that_are_always_zero_change_nothing_else():
    """The rows of dead inputs are left out of the inverse: exact, as the whole inverse shows."""
    torch.manual_seed(0)
    model = nn.Linear(9, 2).double()
    optimizer = RNGD(model, 0.1, eps=0.01, period=1, decay=0.9, relative_eps=0.01)
    for _ in range(3):
        x = torch.randn(6, 9).double()
        x[:, 2:6] = 0
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    block, state = optimizer.blocks[""], kept(optimizer, "")
    assert state["inverse"].shape == (6, 6)
    g = torch.randn(2, 10).double()
    gradients = {model.weight: g[:, :-1], model.bias: g[:, -1]}
    d = block.directions(state, gradients, 0.01)
    together = torch.cat([d[model.weight], d[model.bias][:, None]], 1)
    torch.testing.assert_close(together, g @ definite_inverse(optimizer.metric(""), 0.01))


def test_relative_damping_is_a_share_of_the_mean_eigenvalue():
    G = torch.diag(torch.tensor([1.0, 3.0])).double()
    torch.testing.assert_close(
        definite_inverse(G, 0.5), torch.diag(1 / torch.tensor([2.0, 4.0])).double()
    )
    stack = torch.stack([G, 0 * G])
    dead = 0.5 * 1e-3 * stack.diagonal(dim1=1, dim2=2).mean()
    torch.testing.assert_close(definite_inverse(stack, 0.5)[1], torch.eye(2).double() / dead)


def test_every_option_changes_the_result():
    base = {
        "eps": 0.05,
        "period": 2,
        "decay": 0.8,
        "relative_eps": 0.01,
        "omega": 0.1,
        "statistics_every": 1,
    }
    changes = {
        "eps": 0.1,
        "period": 3,
        "decay": 0.9,
        "relative_eps": 0.1,
        "omega": 1.0,
        "statistics_every": 2,
    }
    results = []
    for options in [base] + [{**base, key: value} for key, value in changes.items()]:
        model = mlp()
        descend(model, RNGD(model, 0.2, **options), 6)
        results.append(flat(model))
    assert min((a - b).abs().max() for a, b in itertools.combinations(results, 2)) > 1e-6


# ---- Convolutions and sequences


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1, "stride": 2},
        {"padding": "same", "dilation": 2},
        {"padding": "valid"},
        {"padding": (0, 2)},
    ],
)
def test_windows_are_what_a_convolution_multiplies(options):
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, (3, 2), **options).double()
    x = torch.randn(4, 2, 7, 6).double()
    rows = windows(layer, x) @ layer.weight.flatten(1).mT + layer.bias
    torch.testing.assert_close(rows.mT, layer(x).flatten(2))


@pytest.mark.parametrize("single", [False, True])
def test_a_convolution_sums_over_positions(single):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.ReLU()).double()
    optimizer = RNGD(model, 0.0, eps=0.0, period=1, decay=0.0, blocks="neuron")
    x = torch.randn(2, 6, 6).double() if single else torch.randn(5, 2, 6, 6).double()
    model(x).sum().backward()
    optimizer.step()
    images = x[None] if single else x
    W = torch.cat([model[0].weight.flatten(1), model[0].bias[:, None]], 1).detach()
    rows = windows(model[0], images).flatten(0, 1)  # every position is an input of the same neurons
    expected = relative.layer_rfim(W, rows, "relu") * len(rows) / len(images)
    torch.testing.assert_close(optimizer.metric("0"), expected)
    assert len(rows) > len(images)  # a mean over positions would be smaller


def test_by_default_a_convolution_has_the_mean_metric_of_its_neurons():
    """By brute force, one example, position and neuron after the other."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 2),
        nn.Tanh(),
        nn.Conv2d(2, 3, 2, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).double()
    x, t = torch.randn(4, 1, 6, 6).double(), torch.tensor([0, 1, 2, 0])
    optimizer = RNGD(model, 0.1, period=1, decay=0.5, eps=0.2)
    h, layer = model[:2](x).detach(), model[2]
    found, flat_metric = torch.zeros(9, 9).double(), torch.zeros(9, 9).double()
    for image in h:
        for i, j in itertools.product(range(0, 4, 2), range(0, 4, 2)):
            patch = torch.cat([image[:, i : i + 2, j : j + 2].flatten(), torch.ones(1).double()])
            flat_metric += torch.outer(patch, patch) / 4
            for w, b in zip(layer.weight, layer.bias, strict=True):
                on = float(w.flatten() @ patch[:-1] + b > 0)
                found += on * torch.outer(patch, patch) / (3 * 4)
    eye = torch.eye(9).double()
    wanted = 0.5 * eye + 0.5 * (found + 0.2 * eye)
    F.cross_entropy(model(x), t).backward()
    before = torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1).detach()
    g = torch.cat([layer.weight.grad.flatten(1), layer.bias.grad[:, None]], 1)
    optimizer.step()
    after = torch.cat([layer.weight.flatten(1), layer.bias[:, None]], 1).detach()
    torch.testing.assert_close(optimizer.metric("2"), wanted)
    torch.testing.assert_close(after, before - 0.1 * torch.linalg.solve(wanted, g.mT).mT)
    linear = 0.5 * eye + 0.5 * (flat_metric + 0.2 * eye)
    for other in (linear, eye):  # the controls
        assert not torch.allclose(after, before - 0.1 * torch.linalg.solve(other, g.mT).mT)


def test_a_linear_layer_sums_over_positions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()
    optimizer = RNGD(model, 0.0, eps=0.0, period=1, decay=0.0, blocks="neuron")
    x = torch.randn(5, 4, 3).double()
    model(x).sum().backward()
    optimizer.step()
    W = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach()
    torch.testing.assert_close(
        optimizer.metric("0"), 4 * relative.layer_rfim(W, x.flatten(0, 1), "tanh")
    )


def test_a_convolutional_network_trains():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6, 10),
    )
    x, t = mnist(100, size=8, dtype=torch.float32)
    optimizer = RNGD(model, 1.0, eps=0.03, period=2, decay=0.9)
    assert {n: b.kind for n, b in optimizer.blocks.items()} == {
        "0": "linear",
        "3": "mean",
        "6": "linear",
    }
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[:, None]), t)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.75 * losses[0]


# ---- Which parameters


def test_layers_without_bias_or_with_frozen_parts():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)
    )
    model[2].bias.requires_grad_(False)
    model[4].weight.requires_grad_(False)
    model.double()
    frozen = model[4].weight.clone()
    optimizer = RNGD(model, 0.1, eps=0.0, period=1, decay=0.0, blocks="neuron")
    x, _ = batch(d=3)
    model(x).square().sum(1).mean().backward()
    optimizer.step()
    sizes = [optimizer.metric(name).shape[-1] for name in optimizer.blocks]
    assert sizes == [3, 4, 1]
    torch.testing.assert_close(optimizer.metric("4"), torch.ones(2, 1, 1).double())
    assert torch.equal(model[4].weight, frozen)
    every = torch.autograd.grad(model(x).sum(), [p for p in model.parameters() if p.requires_grad])
    assert all(torch.isfinite(g).all() for g in every)


def test_other_parameters_take_plain_gradient_steps():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    optimizer = RNGD(model, 0.5, period=1)
    x, t = batch()
    F.cross_entropy(model(x), t).backward()
    scale = model[2].weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(model[2].weight.detach(), scale - 0.5 * model[2].weight.grad)


def test_groups_have_step_sizes_and_periods_of_their_own():
    model = mlp()
    twin, before = copy.deepcopy(model), flat(model)
    groups = [
        {"params": [model[0].weight, model[2].weight], "lr": 0.1, "period": 2},
        {"params": [model[0].bias, model[2].bias], "lr": 0.0},
        {"params": list(model[4].parameters()), "period": 1},
    ]
    optimizer = RNGD(model, 0.3, statistics_every=1, parameters=groups)
    descend(model, optimizer, 1)
    assert "inverse" in kept(optimizer, "4") and "inverse" not in kept(optimizer, "0")
    assert torch.equal(model[0].bias, twin[0].bias)
    assert not torch.equal(flat(model), before)
    x, t = batch(0)
    F.cross_entropy(twin(x), t).backward()
    torch.testing.assert_close(
        model[2].weight.detach(), (twin[2].weight - 0.1 * twin[2].weight.grad).detach()
    )


def test_a_scheduler_a_closure_and_no_step():
    model = mlp()
    optimizer = RNGD(model, 0.0, period=1)
    before = flat(model)
    descend(model, optimizer, 3)
    assert torch.equal(flat(model), before)
    optimizer = RNGD(model, 0.4, period=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    x, t = batch()

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), t)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.step(closure) < first


def test_layers_can_be_added():
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1, parameters=list(model[4].parameters()))
    descend(model, optimizer, 2)
    assert list(optimizer.blocks) == ["4"]
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.05})
    descend(model, optimizer, 2)
    assert "inverse" in kept(optimizer, "2")
    part = RNGD(model, 0.1, parameters=[model[0].weight], period=1)
    descend(model, part, 1)
    with pytest.raises(ValueError, match="add its parameters together"):
        part.add_param_group({"params": [model[0].bias]})
    assert len(part.param_groups) == 1


def test_accumulated_gradients_see_the_whole_batch():
    models = [mlp(), mlp()]
    optimizers = [RNGD(m, 0.2, period=1, decay=0.5) for m in models]
    x, t = batch()
    F.cross_entropy(models[0](x), t).backward()
    for part in (slice(0, 8), slice(8, 12)):
        (F.cross_entropy(models[1](x[part]), t[part], reduction="sum") / len(x)).backward()
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(flat(models[0]), flat(models[1]))


# ---- Resuming, copying, hooks


@pytest.mark.parametrize("steps", range(1, 8))
def test_resuming_is_exact_at_every_step(steps):
    options = {"eps": 0.02, "period": 3, "decay": 0.9, "statistics_every": 2, "relative_eps": 0.01}
    straight, resumed = mlp(dtype=torch.float32), mlp(dtype=torch.float32)
    descend(straight, RNGD(straight, 0.2, **options), 12, dtype=torch.float32)
    first = RNGD(resumed, 0.2, **options)
    descend(resumed, first, steps, dtype=torch.float32)
    stored = io.BytesIO()
    torch.save([resumed.state_dict(), first.state_dict()], stored)
    other = mlp(seed=1, dtype=torch.float32)
    second = RNGD(other, 0.7, eps=1.0)
    stored.seek(0)
    for target, state in zip((other, second), torch.load(stored), strict=True):
        target.load_state_dict(state)
    descend(other, second, 12 - steps, start=steps, dtype=torch.float32)
    assert torch.equal(flat(other), flat(straight))


def test_a_loaded_state_is_a_copy_and_must_fit():
    model = mlp()
    optimizer = RNGD(model, 0.2, period=1)
    descend(model, optimizer, 2)
    state = optimizer.state_dict()
    other = RNGD(model, 0.2)
    other.load_state_dict(state)
    assert kept(other, "2")["inverse"] is not kept(optimizer, "2")["inverse"]
    with pytest.raises(ValueError):
        RNGD(mlp((5, 3)), 0.2).load_state_dict(state)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_trains_its_own_model_alike(clone):
    model = mlp()
    optimizer = RNGD(model, 0.2, period=2)
    descend(model, optimizer, 3)
    other = clone(optimizer)
    assert other.model is not model
    before = flat(model)
    descend(other.model, other, 3, start=3)
    assert torch.equal(flat(model), before)
    descend(model, optimizer, 3, start=3)
    assert torch.equal(flat(other.model), flat(model))
    assert [len(m._forward_hooks) for m in other.model] == [1, 0, 1, 0, 1]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copied_model_is_an_ordinary_model(clone):
    model = mlp()
    optimizer = RNGD(model, 0.2, period=1)
    other = clone(model)
    x, t = batch()
    F.cross_entropy(other(x), t).backward()
    assert all(not b.pending for b in optimizer.blocks.values())
    descend(other, RNGD(other, 0.2, period=1), 2)
    descend(model, optimizer, 2)
    assert torch.equal(flat(other), flat(model))


def test_hooks_go_with_the_optimizer():
    model = mlp()
    optimizer = RNGD(model, 0.2)
    descend(model, optimizer, 1)
    del optimizer
    gc.collect()
    assert all(not m._forward_hooks for m in model)


def test_only_passes_with_a_gradient_are_remembered_and_only_until_the_step():
    model = mlp()
    optimizer = RNGD(model, 0.2, period=1)
    x, t = batch()
    for _ in range(20):
        model(x)
        with torch.no_grad():
            model(x)
    assert all(not b.pending for b in optimizer.blocks.values())
    F.cross_entropy(model(x), t).backward()
    assert all(len(b.pending) == 1 for b in optimizer.blocks.values())
    optimizer.zero_grad()
    assert all(not b.pending for b in optimizer.blocks.values())
    F.cross_entropy(model(x), t).backward()
    optimizer.step()
    assert all(not b.pending for b in optimizer.blocks.values())


def test_an_activation_in_place_is_seen_before_it():
    results = []
    for inplace in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(5, 4),
            nn.ELU(inplace=inplace),
            nn.Linear(4, 4),
            nn.ELU(inplace=inplace),
            nn.Linear(4, 3),
        )
        model.double()
        descend(model, RNGD(model, 0.2, period=1, decay=0.5), 3)
        results.append(flat(model))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_statistics_in_single(dtype):
    model = mlp(dtype=dtype)
    optimizer = RNGD(model, 0.2, period=1)
    descend(model, optimizer, 3, dtype=dtype)
    assert kept(optimizer, "2")["inverse"].dtype == torch.float32
    other = RNGD(copy.deepcopy(model), 0.2, period=1)
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(kept(other, "2")["inverse"], kept(optimizer, "2")["inverse"])
    assert flat(model).dtype == dtype and torch.isfinite(flat(model)).all()


# ---- Degenerate units


def degenerate(case):
    """Return a network of 4 hidden units, of which unit 0 is dead or saturated, inputs, and the
    names of options.
    """
    activation = "tanh" if case == "saturated" else "relu"
    model = mlp((5, 6, 4, 3), activation, dtype=torch.float32)
    x, t = batch(n=1 if case == "one" else 12, dtype=torch.float32)
    with torch.no_grad():
        if case == "dead":
            model[2].bias[:] = torch.tensor([-100.0, 1.0, 1.0, 1.0])
        if case == "saturated":
            model[2].weight[0], model[2].bias[0] = 100, 300
        if case == "all dead":
            model[2].bias[:] = -100
    if case == "constant":
        x = torch.full_like(x, 2.0)
    if case == "zero":
        x = torch.zeros_like(x)
    return model, x, t


@pytest.mark.parametrize(
    "options",
    [{"eps": 1e-2}, {"eps": 0.0, "relative_eps": 1e-2}, {"eps": 0.0}],
    ids=["absolute", "relative", "none"],
)
@pytest.mark.parametrize("case", ["dead", "all dead", "saturated", "constant", "zero", "one"])
def test_degenerate_units_stay_finite_and_healthy_ones_train(case, options):
    model, x, t = degenerate(case)
    before, start = flat(model), model[2].weight.detach().clone()
    optimizer = RNGD(model, 0.05, period=2, decay=0.5, **options)
    losses = []
    for _ in range(60):  # the start at I has faded below the precision
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), t)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert torch.isfinite(flat(model)).all() and not torch.equal(flat(model), before)
    if options != {"eps": 0.0}:  # without any damping a step may be too long, but it is finite
        assert losses[-1] < 0.9 * losses[0]
    moved = (model[2].weight.detach() - start).abs().sum(1) > 0
    if case == "dead":
        assert moved.tolist() == [False, True, True, True]


def test_damping_grows_until_the_matrix_is_definite():
    one = torch.ones(3, 3)
    H = definite_inverse(torch.stack([one, torch.eye(3), 0 * one]), 0.0)
    assert torch.isfinite(H).all()
    torch.testing.assert_close(H[1], torch.eye(3))
    assert (
        float(H[0].sum(0).abs().max()) < 10
    )  # on the range of the matrix it is the inverse: 1/3 a row


# ---- Which activation


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.one, self.two, self.three, self.four = (nn.Linear(8, 8) for _ in range(4))
        self.slope = nn.PReLU()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = torch.relu(self.conv(x)).flatten(1)
        h = F.dropout(F.leaky_relu(self.one(h), 0.2), 0.5, self.training)
        h = F.elu(self.two(h.view(h.shape[0], -1)), alpha=0.5)
        h = self.slope(self.three(h))
        return F.log_softmax(self.head(self.four(h).tanh()), 1)


def test_activations_are_found_in_the_traced_model():
    optimizer = RNGD(Functional(), 0.1)
    found = {name: (a.name, dict(a.options)) for name, a in optimizer.activations.items()}
    assert found == {
        "conv": ("relu", {}),
        "one": ("relu", {"iota": 0.2}),
        "two": ("elu", {"alpha": 0.5}),
        "three": ("relu", {}),
        "four": ("tanh", {}),
        "head": ("linear", {}),
    }
    assert optimizer.first == "conv"
    assert isinstance(optimizer.activations["three"].learned, nn.PReLU)


def test_functional_and_modular_networks_train_alike():
    class Twin(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.a, self.b, self.c = layers

        def forward(self, x):
            return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))

    model = mlp(activation="tanh")
    twin = Twin(copy.deepcopy([m for m in model if isinstance(m, nn.Linear)]))
    descend(model, RNGD(model, 0.2, period=2), 5)
    descend(twin, RNGD(twin, 0.2, period=2), 5)
    assert torch.equal(flat(model), flat(twin))


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.c(torch.relu(self.b(h))) if h.sum() > 0 else self.c(h)


def test_activations_can_be_declared():
    torch.manual_seed(0)
    model = Untraceable().double()
    with pytest.warns(UserWarning, match=r"100%.*'a', its activation.*cannot be traced"):
        assert set(RNGD(model, 0.1, blocks="neuron").plain) == {"a", "b", "c"}
    optimizer = RNGD(
        model, 0.1, period=1, activations={"a": "relu", "b": nn.LeakyReLU(0.3), "c": "linear"}
    )
    descend(model, optimizer, 3)
    assert optimizer.blocks["b"].activation.options == (("iota", 0.3),)
    with pytest.raises(ValueError, match="expected names among"):
        RNGD(model, 0.1, activations={"d": "relu"})
    with pytest.raises(ValueError, match=r"activations\['a'\]: expected one of.*got 'gelu'"):
        RNGD(model, 0.1, activations={"a": "gelu"})


@pytest.mark.parametrize(
    ("middle", "message"),
    [
        (nn.GELU(), "goes into GELU"),
        (nn.BatchNorm1d(4), "goes into BatchNorm1d"),
        (nn.PReLU(4), "goes into PReLU"),
    ],
)
def test_unknown_activations_are_linear_or_declared(middle, message):
    model = nn.Sequential(nn.Linear(5, 4), middle, nn.Linear(4, 3)).double()
    with pytest.warns(UserWarning, match="take plain gradient steps"):
        optimizer = RNGD(model, 0.1, blocks="neuron")
    assert message in optimizer.plain["0"] and list(optimizer.blocks) == ["2"]
    assert {name: b.kind for name, b in RNGD(model, 0.1).blocks.items()} == {
        "0": "linear",
        "2": "linear",
    }
    declared = RNGD(model, 0.1, activations={"0": "linear"})
    descend(model, declared, 2)
    assert list(declared.blocks) == ["0", "2"]
    assert list(RNGD(model, 0.1, blocks="linear").blocks) == ["0", "2"]


def test_an_output_used_twice_is_plain():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x):
            a = self.a(x)
            return torch.relu(a) + a

    with pytest.warns(UserWarning, match="100%.*used in several ways"):
        RNGD(Skip(), 0.1, blocks="neuron")
    assert RNGD(Skip(), 0.1).plain == {}


def test_layers_with_many_inputs_take_plain_steps():
    model = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3)).double()
    optimizer = RNGD(model, 0.1, period=1, max_features=8)
    assert "it has 9 inputs, more than max_features=8" in optimizer.plain["2"]
    assert "raise max_features" in optimizer.plain["2"] and list(optimizer.blocks) == ["0"]
    x, t = batch()
    F.cross_entropy(model(x), t).backward()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    moved = [old - 0.1 * p.grad for old, p in zip(before, model.parameters(), strict=True)]
    torch.testing.assert_close(model[2].weight.detach(), moved[2])
    assert not torch.allclose(model[0].weight, moved[0])
    assert RNGD(model, 0.1, max_features=9).plain == {}  # the control


@pytest.mark.filterwarnings("ignore:RNGD")  # over half of these small models
def test_what_counts_as_an_input():
    convolutions = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.GELU())
    assert "it has 18 inputs" in RNGD(convolutions, 0.1, max_features=17).plain["2"]
    assert "it has 5 inputs" in RNGD(Conv1D(5, 9), 0.1, max_features=4).plain[""]
    assert set(RNGD(mlp(), 0.1, max_features=4).plain) == {"0"}  # the control: 5 inputs, 4 and 4
    assert RNGD(mlp(), 0.1, max_features=4, blocks="diagonal").plain == {}  # it has no matrix
    model = mlp()
    assert RNGD(model, 0.1, max_features=4, parameters=[model[0].bias]).plain == {}


def test_the_network_of_the_mnist_example():
    """Its layer with 9,216 inputs has most of the parameters, and is plain."""
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )
    with pytest.warns(UserWarning, match=r"98%.*'6', it has 9216 inputs.*65 GB.*raise") as seen:
        optimizer = RNGD(model, 0.1)
    assert len(seen) == 1 and list(optimizer.plain) == ["6"]
    with pytest.warns(UserWarning, match="100%.*The first: module '6', it has 9216"):
        RNGD(model, 0.1, max_features=1)  # the largest is named first
    kinds = {name: block.kind for name, block in optimizer.blocks.items()}
    assert kinds == {"0": "linear", "2": "mean", "8": "linear"}


class Lending(nn.Module):
    """Its first layer lends its weight, is called as well or not, and may be out of sight of
    torch.fx.
    """

    def __init__(self, called, traceable, reads=lambda layer: layer.weight):
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 3)
        self.called, self.traceable, self.reads = called, traceable, reads

    def forward(self, x):
        if not self.traceable and x.sum() > 1e9:
            return x
        h = torch.relu(self.a(x)) if self.called else x
        return self.b(torch.relu(F.linear(h, self.reads(self.a).mT)))


@pytest.mark.parametrize(
    ("called", "traceable", "kind", "reason"),
    [
        (True, True, None, "used outside of it as well"),
        (True, True, "linear", "used outside of it as well"),
        (False, True, None, "used outside of it as well"),
        (True, False, None, "used outside of it as well"),
        (False, False, None, "used outside of it as well"),
    ],
)
def test_a_layer_that_lends_its_weight_takes_plain_steps(called, traceable, kind, reason):
    torch.manual_seed(0)
    model, (x, t) = Lending(called, traceable).double(), batch()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer = RNGD(model, 0.1, period=2, decay=0.5, statistics_every=1, blocks=kind)
        assert len(seen) == (traceable and called)
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(model(x), t).backward()
            before, b = model.a.weight.detach().clone(), model.b.weight.detach().clone()
            optimizer.step()
            torch.testing.assert_close(model.a.weight.detach(), before - 0.1 * model.a.weight.grad)
    assert len(seen) == 1 and "62%" in str(seen[0].message)
    assert reason in optimizer.plain["a"]
    assert not torch.allclose(model.b.weight, b - 0.1 * model.b.weight.grad)  # the control
    copy.deepcopy(optimizer).load_state_dict(optimizer.state_dict())


class Auxiliary(nn.Module):
    """A network with a head that is used in training only."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x):
        return self.a(x) + (self.head(x) if self.training else 0)


def encoder():
    """A layer into which tracing does not look, and a linear one after it."""
    inner = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Unflatten(1, (5, 1)), nn.Linear(1, 4), inner, nn.Flatten(), nn.Linear(20, 3)
    )


@pytest.mark.parametrize(
    ("model", "names"),
    [(Auxiliary, ["a", "head"]), (encoder, ["1", "2.linear1", "2.linear2", "4"])],
    ids=["head", "encoder"],
)
def test_layers_that_tracing_does_not_come_by_have_the_metric_of_a_linear_one(model, names):
    torch.manual_seed(0)
    model, (x, t) = model().double().eval(), batch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = RNGD(model, 0.1, period=1, statistics_every=1)
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), t).backward()
        before = {name: model.get_submodule(name).weight.detach().clone() for name in names}
        optimizer.step()
        for name, old in before.items():
            weight = model.get_submodule(name).weight
            assert not torch.allclose(weight.detach(), old - 0.1 * weight.grad)
    assert set(names) <= set(optimizer.blocks) and not set(names) & set(optimizer.plain)


@pytest.mark.parametrize(
    "reads", [lambda a: a.weight.dtype, lambda a: a.weight.shape[0], lambda a: a.weight.size(0)]
)
def test_to_read_the_shape_of_a_weight_is_not_to_use_it(reads):
    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 5)

        def forward(self, x):
            reads(self.a)
            return torch.relu(self.a(x))

    assert RNGD(Reading(), 0.1).plain == {}


def test_a_gradient_without_any_pass_is_refused_in_a_model_that_cannot_be_traced():
    torch.manual_seed(0)
    model = Untraceable().double()
    optimizer = RNGD(model, 0.1, period=1)
    assert optimizer.plain == {}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = flat(model)
    with pytest.raises(ValueError, match="layer 'a' has a gradient and saw none"):
        optimizer.step()
    assert torch.equal(flat(model), before)
    with pytest.raises(ValueError, match="calls its first layer"):
        RNGD(Lending(called=False, traceable=False), 0.1, sample=torch.ones(3, 5))


# ---- Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr: expected a finite number >= 0"),
        ({"eps": -1.0}, "eps: expected"),
        ({"decay": 1.0}, "decay: expected a number from 0 to below 1"),
        ({"period": 0}, "period: expected an integer >= 1"),
        ({"period": 1.5}, "period: expected an integer"),
        ({"statistics_every": 0}, "statistics_every: expected"),
        ({"relative_eps": float("nan")}, "relative_eps: expected"),
        ({"omega": -1.0}, "omega: expected"),
        ({"memory_limit": 0.0}, "memory_limit: expected"),
        ({"max_features": 0}, "max_features: expected an integer >= 1"),
        ({"blocks": "layer"}, "blocks: expected one of neuron, mean, linear, diagonal"),
        ({"blocks": {"1": "mean"}}, "by names among"),
        (
            {"blocks": "neuron", "sample": torch.randn(3, 5).double()},
            'expected blocks.* = "linear"',
        ),
        ({"sample": torch.full((3, 5), torch.nan)}, "sample: expected finite"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        RNGD(mlp(), **{"lr": 0.1, **options})


def blocks_between(middle, *names):
    """A large known layer before, so that no warning is due, and what lies between."""
    return nn.Sequential(nn.Linear(5, 40), nn.ReLU(), nn.Linear(40, 4), nn.ReLU(), *middle)


shared = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("middle", "plain"),
    [
        ([nn.LayerNorm(4)], {"4": "a LayerNorm has no metric here"}),
        ([shared, nn.ReLU(), shared], {"4": "it is used twice"}),
        (
            [nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 4, 1, groups=2), nn.Flatten()],
            {"5": "it is a Conv2d with groups = 2, padding_mode = 'zeros'"},
        ),
        ([nn.Conv1d(12, 12, 1)], {"4": "a Conv1d has no metric here"}),
    ],
    ids=["norm", "used twice", "grouped", "another kind"],
)
def test_what_it_does_not_know_takes_plain_steps(middle, plain, recwarn):
    torch.manual_seed(0)
    model = blocks_between(copy.deepcopy(middle)).double()
    optimizer = RNGD(model, 0.1, period=1, decay=0.0)
    assert not recwarn.list
    assert optimizer.plain == plain
    x, t = batch()
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), t).backward()
        (name,) = plain
        before = [p.detach().clone() for p in model.get_submodule(name).parameters()]
        first = model[0].weight.detach().clone()
        optimizer.step()
    for p, old in zip(model.get_submodule(name).parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), old - 0.1 * p.grad)
    step = 0.1 * model[0].weight.grad
    assert (first - step - model[0].weight).abs().max() > 0.1 * step.abs().max()


def test_layers_with_a_common_parameter_take_plain_steps():
    tied = mlp()
    tied[4] = nn.Linear(4, 4).double()
    tied[4].weight = tied[2].weight
    with pytest.warns(UserWarning, match="take plain gradient steps"):
        plain = RNGD(tied[2:], 0.1).plain
    assert plain == dict.fromkeys(("2", "4"), "it shares parameters with another layer")


def test_a_model_without_layers_is_gradient_descent():
    model = nn.PReLU().double()
    with pytest.warns(UserWarning, match="100% of the parameters"):
        optimizer = RNGD(model, 0.1, period=1)
    model(-torch.ones(3).double()).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.tensor([0.25 + 0.3]).double())


class Conv1D(nn.Module):
    """The linear layer of GPT-2, whose weight is (inputs, outputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.nf = outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 3)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", ["neuron", "mean", "linear", "diagonal"])
def test_a_transposed_layer_trains_like_a_linear_one(kind, frozen):
    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(5, 4), nn.Tanh(), Conv1D(4, 3)).double()
    twin = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    for a, b in ((model[0], twin[0]), (model[2], twin[2])):
        b.weight.data.copy_(a.weight.mT), b.bias.data.copy_(a.bias)
        a.bias.requires_grad_(not frozen), b.bias.requires_grad_(not frozen)
    for net in (model, twin):
        optimizer = RNGD(net, 0.2, period=2, decay=0.5, blocks=kind)
        assert not optimizer.plain
        descend(net, optimizer, 5)
    torch.testing.assert_close(model[0].weight.mT, twin[0].weight)
    torch.testing.assert_close(model[2].weight.mT, twin[2].weight)


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_part_that_is_frozen_and_trained_again(part):
    """While it is frozen the other has the metric that it has alone; nothing moves in silence."""
    model, twin = mlp(), mlp()
    for net in (model, twin):
        p = getattr(net[2], part)
        p.requires_grad_(False)
        given = None if net is model else [q for q in net.parameters() if q is not p]
        optimizer = RNGD(net, 0.2, period=2, decay=0.5, parameters=given)
        descend(net, optimizer, 5)
        if net is model:
            following = optimizer
    torch.testing.assert_close(flat(model), flat(twin), rtol=1e-10, atol=1e-12)
    p = getattr(model[2], part)
    p.requires_grad_(True)
    before = p.detach().clone()
    descend(model, following, 1, start=5)
    assert not torch.equal(p, before)
    assert following.metric("2").shape == (4, 5, 5)
    assert kept(following, "2")["inverse"].shape == (4, 5, 5)


def test_a_layer_frozen_now_and_trained_later():
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = RNGD(model, 0.2, period=2, decay=0.5)
    descend(model, optimizer, 3)
    before = model[0].weight.detach().clone()
    model[0].requires_grad_(True)
    descend(model, optimizer, 3, start=3)
    assert not torch.equal(model[0].weight, before) and "inverse" in kept(optimizer, "0")


def test_metrics_that_do_not_fit_are_refused_with_the_figure():
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Linear(10, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.ReLU(), nn.Linear(2000, 10)
        )
    with pytest.raises(
        ValueError, match=r"would take 44\.8 GiB.*layer '2' takes 44\.8.*blocks=\{'2': \"mean\"\}"
    ):
        RNGD(model, 0.1)
    need = sum(b.memory for b in RNGD(model, 0.1, blocks={"2": "mean"}).blocks.values())
    assert need == 4 * 2 * (11**2 + 2001**2 + 2001**2)


def test_memory_is_what_is_stated():
    model = mlp(activation="tanh", dtype=torch.float32)
    optimizer = RNGD(model, 0.1, period=1)
    descend(model, optimizer, 2, dtype=torch.float32)
    for name, block in optimizer.blocks.items():
        stored = [kept(optimizer, name)[key] for key in ("S", "inverse")]
        assert block.memory == sum(x.numel() * x.element_size() for x in stored)


@pytest.mark.parametrize("where", ["input", "gradient", "loss"])
def test_a_bad_batch_changes_nothing(where):
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1)
    descend(model, optimizer, 2)
    before, state = flat(model), copy.deepcopy(optimizer.state_dict())
    x, t = batch()
    if where == "input":
        x[0, 0] = torch.inf
    optimizer.zero_grad()
    (F.cross_entropy(model(x), t) * (torch.nan if where == "loss" else 1)).backward()
    if where == "gradient":
        model[2].bias.grad[0] = torch.nan
    with pytest.raises(ValueError, match="expected finite (inputs|gradients)"):
        optimizer.step()
    assert torch.equal(flat(model), before)
    assert equal(optimizer.state_dict(), state)
    descend(model, optimizer, 1)


def test_a_gradient_without_a_pass_is_refused():
    model = mlp()
    optimizer = RNGD(model, 0.1, period=1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="saw none"):
        optimizer.step()
    RNGD(model, 0.1, period=20, statistics_every=2).step()  # not a step that needs statistics


def test_it_learns_digits_faster_than_gradient_descent():
    x, t = mnist(400, size=7, dtype=torch.float32)
    ends = []
    for make in (
        lambda m: RNGD(m, 0.3, eps=0.03, period=5, decay=0.9),
        lambda m: torch.optim.SGD(m.parameters(), 0.3),
    ):
        model = mlp((49, 16, 16, 10), dtype=torch.float32)
        optimizer = make(model)
        for step in range(80):
            rows = slice(100 * (step % 4), 100 * (step % 4) + 100)
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows].flatten(1)), t[rows]).backward()
            optimizer.step()
        ends.append(float(F.cross_entropy(model(x.flatten(1)), t).detach()))
    assert ends[0] < 0.5 * ends[1]
