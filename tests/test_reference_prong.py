"""Algorithm 1 in the paper's letters: against the library's two forms, and where it may go
wrong.
"""

import itertools

import pytest
import torch
from torch import nn

from natcompanion import layers, optim
from natcompanion.likelihoods import Categorical
from natcompanion.reference import prong

LOSS = Categorical()


def network(sizes=(5, 6, 4, 3), seed=0):
    torch.manual_seed(seed)
    parts = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*parts[:-1]).double()


def data(n=120):
    """Correlated inputs of different scales, not centred, and labels."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 5, generator=g, dtype=torch.float64).cumsum(1) + 1
    return x, torch.randint(3, (n,), generator=g)


def literal(model):
    plain = [m for m in model if isinstance(m, nn.Linear)]
    return prong.whitened_network((m.weight for m in plain), (m.bias for m in plain))


def trained(model, **options):
    """Return the outputs after ten updates by the library's optimizer."""
    x, t = data()
    optimizer = optim.PRONG(model, 0.05, eps=0.01, sample=x, **options)
    for batch, labels in zip(x.split(12), t.split(12), strict=True):
        optimizer.zero_grad()
        LOSS.nll(model(batch), labels).mean().backward()
        optimizer.step()
    return model(x).detach()


def by_algorithm_1(model, T=4, **options):
    """Return the network and its outputs after the same ten updates by Algorithm 1."""
    x, t = data()
    net = literal(model)
    settings = {"alpha": 0.05, "eps": 0.01, "T": T} | options
    batches = zip(x.split(12), t.split(12), strict=True)
    prong.prong(net, batches, lambda r, y: LOSS.nll(r, y).mean(), x, **settings)
    return net, prong.activations(net, x)[3].detach()


@pytest.mark.parametrize("form", [lambda m: m, layers.whiten_model], ids=["plain", "whitened"])
def test_both_forms_of_the_library_take_the_steps_of_algorithm_1(form):
    model = network()
    _, expected = by_algorithm_1(model)
    torch.testing.assert_close(trained(form(model), period=4), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("wrong", [{"T": 3}, {"eps": 0.02}, {"alpha": 0.06}], ids=str)
def test_other_settings_end_elsewhere(wrong):
    model = network()
    found = by_algorithm_1(model)[1] - by_algorithm_1(model, **wrong)[1]
    assert float(found.abs().max()) > 1e-4


def test_re_parametrization_keeps_the_function_and_whitens_the_inputs():
    model, (x, _) = network(), data()
    net = literal(model)
    torch.testing.assert_close(prong.activations(net, x)[3], model(x).detach())
    prong.reparametrize(net, x, 1e-3)
    h = prong.activations(net, x)
    torch.testing.assert_close(h[3], model(x).detach(), rtol=1e-12, atol=1e-12)
    for i in net.V:
        z = (h[i - 1] - net.c[i - 1]) @ net.U[i - 1].T
        lam = torch.linalg.eigvalsh(torch.cov(h[i - 1].T, correction=0))
        spectrum = torch.linalg.eigvalsh(z.T @ z / len(z))
        torch.testing.assert_close(spectrum, lam / (lam + 1e-3), rtol=1e-9, atol=1e-9)
    again = {i: V.clone() for i, V in net.V.items()}
    prong.reparametrize(net, x, 1e-3)  # the same statistics: nothing changes
    for i, V in net.V.items():
        torch.testing.assert_close(V @ V.T, again[i] @ again[i].T, rtol=1e-8, atol=1e-8)


def test_as_printed_the_function_changes_and_the_first_layer_is_never_whitened():
    model, (x, _) = network(), data()
    net = literal(model)
    prong.reparametrize(net, x, 1e-3, printed=True)
    assert float((prong.activations(net, x)[3] - model(x).detach()).abs().max()) > 0.1
    assert torch.equal(net.U[0], torch.eye(5).double()) and set(net.U) == {0, 1, 2, 3}


def test_canonical_parameters_are_those_of_the_plain_model():
    model, (x, _) = network(), data()
    net = literal(model)
    prong.reparametrize(net, x, 1e-3)
    W, b = prong.canonical(net)
    for m, W_i, b_i in zip(model[::2], W, b, strict=True):
        torch.testing.assert_close(W_i, m.weight.detach(), rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(b_i, m.bias.detach(), rtol=1e-11, atol=1e-11)
    assert float((net.V[1] - W[0]).norm()) > 0.1, "the coordinates are others"
