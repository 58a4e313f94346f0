"""The covariance penalty on hidden layers, against explicit loops and the Boltzmann machine."""

import itertools

import pytest
import torch
from torch import nn

from natcompanion import boltzmann
from natcompanion.boltzmann import CovariancePenalty, covariance_norm, hidden_covariance_penalty


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def images(n=6):
    return torch.randn(n, 2, 5, 4, generator=rng(1), dtype=torch.float64)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.Tanh()).double()


def convolutional():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 2), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 2)).double()


def written_out(x, y, p):
    """The squared norm unit by unit, from E[xy] - E[x] E[y]."""
    total = 0.0
    for i, j in itertools.product(range(x.shape[1]), range(y.shape[1])):
        total += ((p * x[:, i] * y[:, j]).sum() - (p @ x[:, i]) * (p @ y[:, j])) ** 2
    return total


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_over_all_inputs_of_a_feed_forward_network():
    """Eight binary inputs, equally likely or not: value and gradient by enumeration."""
    x = boltzmann.states(3)
    p = torch.softmax(torch.randn(8, generator=rng(2), dtype=torch.float64), 0)
    model = mlp()
    for weights in (None, p):
        output, penalty = hidden_covariance_penalty(
            model, x, [("input", "1"), ("1", "3")], weights=weights
        )
        q = torch.full((8,), 1 / 8, dtype=torch.float64) if weights is None else weights
        h = model[:2](x)
        expected = written_out(x, h, q) + written_out(h, model(x), q)
        assert torch.equal(output, model(x))
        close(penalty, expected)
        found = torch.autograd.grad(penalty, list(model.parameters()))
        close(list(found), list(torch.autograd.grad(expected, list(model.parameters()))))
        second_moment = ((q[:, None] * x).mT @ h).square().sum()
        assert abs(second_moment - written_out(x, h, q)) > 1e-3  # the means matter
    a, b = (hidden_covariance_penalty(model, x, [("1", "1")], weights=w)[1] for w in (None, p))
    assert abs(a - b) > 1e-3  # and so do the weights


@pytest.mark.parametrize("units", ["channels", "positions"])
def test_convolutions(units):
    x, model = images(), convolutional()
    h, g = model[:2](x), model[:4](x)
    _, penalty = hidden_covariance_penalty(model, x, [("1", "1"), ("3", "3")], units=units)
    expected = 0.0
    for maps in (h, g):
        rows = (
            torch.stack(
                [m[:, i, j] for m in maps for i in range(m.shape[1]) for j in range(m.shape[2])]
            )
            if units == "channels"
            else torch.stack([m.reshape(-1) for m in maps])
        )
        p = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
        expected = expected + written_out(rows, rows, p)
    close(penalty, expected)
    names = ["0.weight", "2.weight"]
    parameters = [dict(model.named_parameters())[name] for name in names]
    found = torch.autograd.grad(penalty, parameters)
    close(list(found), list(torch.autograd.grad(expected, parameters)))
    others = {"channels": "positions", "positions": "channels"}
    other = hidden_covariance_penalty(model, x, [("1", "1"), ("3", "3")], units=others[units])[1]
    assert abs(other / penalty - 1) > 0.1  # negative control: the other units, another number


def test_weights_of_examples_are_those_of_their_positions():
    x, model = images(3), convolutional()
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    _, weighted = hidden_covariance_penalty(model, x, [("1", "3")], units="positions", weights=p)
    for units in ("channels", "positions"):
        _, weighted = hidden_covariance_penalty(model, x, [("1", "1")], units=units, weights=p)
        twice = torch.cat([x[:1], x])
        close(hidden_covariance_penalty(model, twice, [("1", "1")], units=units)[1], weighted)


def test_more_units_than_examples_make_no_matrix_of_units():
    x = torch.randn(4, 30, generator=rng(3), dtype=torch.float64)
    p = torch.full((4,), 0.25, dtype=torch.float64)
    close(covariance_norm(x), written_out(x, x, p))
    close(covariance_norm(x[:, :1], x[:, 1:3]), written_out(x[:, :1], x[:, 1:3], p))


def test_on_the_layer_of_a_machine_it_is_the_machines_penalty():
    """With the machine's distribution of v; of h with itself, but for the variances."""
    rbm = boltzmann.RBM.random(4, 3, scale=1.0, bias_scale=0.7, generator=rng(4))
    model = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()).double()
    with torch.no_grad():
        model[0].weight.copy_(rbm.W.mT)
        model[0].bias.copy_(rbm.b)
    v = boltzmann.states(4)
    p = (rbm.log_likelihood(v)).exp()
    _, vh = hidden_covariance_penalty(model, v, [("input", "1")], weights=p)
    close(vh.detach(), CovariancePenalty("vh").value(rbm))
    _, hh = hidden_covariance_penalty(model, v, [("1", "1")], weights=p)
    h = model(v)
    C = ((p[:, None] * (h - p @ h)).mT @ (h - p @ h)).detach()
    exact = boltzmann.covariances(rbm)["hh"]
    close(C - torch.diag(C.diagonal()), exact - torch.diag(exact.diagonal()))
    assert float(CovariancePenalty("hh").value(rbm)) > float(hh.detach()) + 1e-3


@pytest.mark.parametrize("make,x", [(mlp, "rows"), (convolutional, "images")])
def test_training_on_it_decorrelates(make, x):
    """The correlations of hidden units fall while the network learns as before."""
    x = images(40) if x == "images" else torch.randn(40, 3, generator=rng(5)).double()
    ends = []
    for gamma in (0.0, 0.9):
        model = make()
        t = torch.randn(40, model(x).shape[1], generator=rng(6), dtype=torch.float64).sign() * 0.5
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(60):
            optimizer.zero_grad()
            output, penalty = hidden_covariance_penalty(model, x, [("1", "1")])
            loss = (output - t).square().mean()
            ((1 - gamma) * loss + gamma * penalty).backward()
            optimizer.step()
        ends.append((float(penalty.detach()), float(loss.detach())))
    assert ends[1][0] < 0.5 * ends[0][0]


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([], {}, "pairs: expected pairs of"),
        ([("1", "nothing")], {}, "pairs: expected pairs of"),
        ([("1",)], {}, "pairs: expected pairs of"),
        ([("1", "3")], {}, "maps of one size"),
        ([("1", "1")], {"units": "pixels"}, "units: expected"),
        ([("1", "1")], {"weights": torch.ones(6).double()}, "weights: expected"),
    ],
)
def test_refuses(pairs, options, message):
    model = convolutional()
    with pytest.raises(ValueError, match=message):
        hidden_covariance_penalty(model, images(), pairs, **options)
    assert not model[1]._forward_hooks


def test_a_module_that_runs_twice_is_refused():
    tanh = nn.Tanh()
    model = nn.Sequential(nn.Linear(3, 4), tanh, nn.Linear(4, 4), tanh).double()
    with pytest.raises(ValueError, match="runs again"):
        hidden_covariance_penalty(model, boltzmann.states(3), [("1", "1")])
