"""PRONG+: the step of V D U, its diagonal from every batch, and the sign of the exponent."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from natcompanion import layers
from natcompanion.optim import PRONG, PRONGPlus


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 3)).double()


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def data(n=60, seed=1):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g, dtype=torch.float64).cumsum(1) * 0.4 + 0.7
    return x, torch.randint(3, (n,), generator=g)


def train(model, optimizer, x, t, steps, start=0):
    for i in range(start, start + steps):
        chosen = (torch.arange(10) + 10 * i) % len(x)
        optimizer.zero_grad()
        cross_entropy(model(x[chosen]), t[chosen]).backward()
        optimizer.step()


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("floor", [0.01, 0.5])
def test_step_in_the_coordinates_of_v_d_u(floor):
    (x, t), lr, eps = data(), 0.1, 0.03
    model = linear()
    W, b = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    c = x.mean(0)
    U, U_inverse = layers.whitening_pair(torch.cov(x.T, correction=0), eps, "pca")
    xb, tb = x[:10], t[:10]
    z = (xb - c) @ U.T

    def stepped(D):
        V = (W @ U_inverse / D).requires_grad_()
        d = (b + W @ c).requires_grad_()
        torch.testing.assert_close((z * D) @ V.T + d, xb @ W.T + b)  # the function is as before
        cross_entropy((z * D) @ V.T + d, tb).backward()
        W_new = ((V - lr * V.grad) * D) @ U
        return W_new.detach(), (d - lr * d.grad - W_new @ c).detach()

    D = (z.square().mean(0) + floor).rsqrt()
    W_new, b_new = stepped(D)
    train(
        model,
        PRONGPlus(model, lr, eps=eps, sample=x, normalization="diagonal", floor=floor),
        x,
        t,
        1,
    )
    torch.testing.assert_close(model[0].weight.detach(), W_new, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(model[0].bias.detach(), b_new, rtol=1e-9, atol=1e-11)
    inverted = stepped(1 / D)[0]  # the exponent as printed
    assert float((inverted - W_new).norm() / (W_new - W).norm()) > 0.1


def test_print_feeds_the_square_of_the_variance():
    """W = V D^-1 U with Var[D U h] = 1 gives V inputs of variance v^2; W = V D U gives 1."""
    x = data(400)[0] @ torch.diag(torch.tensor([3.0, 1.0, 0.5, 2.0, 1.5])).double()
    U = torch.eye(5, dtype=torch.float64)  # any U will do
    v = (x @ U.T).var(0, correction=0)
    D = v.rsqrt()
    torch.testing.assert_close(
        (x @ U.T * D).var(0, correction=0), torch.ones(5, dtype=torch.float64)
    )
    torch.testing.assert_close((x @ U.T / D).var(0, correction=0), v**2)
    assert float((v**2).max()) > 5


def test_diagonal_differs_from_prong_and_from_batch_to_batch():
    x, t = data()
    ends = []
    for make in (PRONG, PRONGPlus):
        model = mlp()
        more = {"normalization": "diagonal", "floor": 1e-3} if make is PRONGPlus else {}
        train(model, make(model, 0.05, 0.9, eps=0.05, period=3, sample=x, **more), x, t, 7)
        ends.append(parameters(model))
    assert torch.isfinite(ends[1]).all() and float((ends[0] - ends[1]).norm()) > 0.1


def test_directions_below_eps_are_bounded_by_the_floor():
    x, t = data()
    x = torch.cat((x[:, :4], 1.0 + 1e-6 * x[:, 4:]), 1)  # a feature that hardly varies
    model = linear()
    optimizer = PRONGPlus(model, 0.1, eps=1e-2, sample=x, normalization="diagonal", floor=0.1)
    train(model, optimizer, x, t, 3)
    layer = optimizer.layers["0"]
    layer.inputs = [x[:10]]
    U = optimizer.state[model[0].weight]["whitening"]
    apply = optimizer._applied(U, optimizer._scale(layer, U, x.mean(0)))
    largest = torch.linalg.eigvalsh(apply(torch.eye(5, dtype=torch.float64)))[-1]
    assert float(largest) == pytest.approx(1 / (1e-2 * 0.1), rel=0.05)


@pytest.mark.parametrize("case", ["batch of one", "convolution", "float32"])
def test_diagonal_is_finite(case):
    x, t = data()
    model = mlp()
    if case == "batch of one":
        optimizer = PRONGPlus(model, 1e-3, eps=0.05, sample=x, normalization="diagonal")
        for i in range(10):
            optimizer.zero_grad()
            cross_entropy(model(x[i : i + 1]), t[i : i + 1]).backward()
            optimizer.step()
    elif case == "float32":
        model, x = model.float(), x.float()
        train(model, PRONGPlus(model, 1e-3, eps=1e-6, sample=x, normalization="diagonal"), x, t, 10)
    else:
        model = nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
        ).double()
        x = x[:, None, :, None].expand(-1, 1, -1, 4) * torch.arange(1, 5).double()
        x = x[:, :, :3]
        train(model, PRONGPlus(model, 1e-3, eps=0.1, sample=x, normalization="diagonal"), x, t, 10)
    assert torch.isfinite(parameters(model)).all()


def test_diagonal_resumes_bit_for_bit_and_copies():
    x, t = data()

    def fresh():
        model = mlp()
        options = {"eps": 0.05, "period": 3, "sample": x, "normalization": "diagonal"}
        return model, PRONGPlus(model, 0.02, 0.9, **options)

    model, optimizer = fresh()
    train(model, optimizer, x, t, 4)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    state, rest = torch.load(file, weights_only=True)
    other, again = fresh()
    other.load_state_dict(state)
    again.load_state_dict(rest)
    third = copy.deepcopy((model, optimizer))
    for pair in ((model, optimizer), (other, again), third):
        train(*pair, x, t, 4, start=4)
    assert torch.equal(parameters(model), parameters(other))
    assert torch.equal(parameters(model), parameters(third[0]))


def test_batch_normalization_is_prong_on_such_a_model():
    x, t = data()
    model = layers.with_batch_norm(mlp())
    assert [type(m) for m in model[0]] == [nn.Linear, nn.BatchNorm1d] and type(
        model[2]
    ) is nn.Linear
    assert torch.equal(model[0][0].weight, mlp()[0].weight)
    other = copy.deepcopy(model)
    train(model, PRONGPlus(model, 0.05, eps=0.05, sample=x), x, t, 5)
    train(other, PRONG(other, 0.05, eps=0.05, sample=x), x, t, 5)
    assert torch.equal(parameters(model), parameters(other))
    convolution = layers.with_batch_norm(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    )
    assert type(convolution[0][1]) is nn.BatchNorm2d and convolution[0][1].num_features == 4
    whitened = layers.with_batch_norm(layers.whiten_model(mlp()))
    assert type(whitened[0][0]) is layers.WhitenedLinear


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "with_batch_norm"),
        ({"normalization": "layer"}, "normalization"),
        ({"normalization": "diagonal", "floor": 0.0}, "floor"),
        ({"normalization": "diagonal", "eps": -1.0}, "eps"),
    ],
)
def test_bad_arguments_are_refused(options, word):
    with pytest.raises(ValueError, match=word):
        PRONGPlus(mlp(), 0.1, **options)


def test_whitened_layers_have_no_diagonal():
    with pytest.raises(ValueError, match="plain layers"):
        PRONGPlus(layers.whiten_model(mlp()), 0.1, normalization="diagonal")
