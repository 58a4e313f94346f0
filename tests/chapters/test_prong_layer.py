"""The small network whose second layer is looked at while Algorithm 1 whitens it."""

import math

import pytest
import torch
from torch import nn

from natcompanion import layers, metrics, optim
from natcompanion.chapters.numbers.prong import whitened_layer as layer
from natcompanion.chapters.page import trace
from natcompanion.likelihoods import Bernoulli
from natcompanion.reference import prong

X, Y = layer.data(0.9, 0.0, 0.0)


def given(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return any Omega and any Phi whose matrices can be inverted."""
    generator = torch.Generator().manual_seed(seed)
    omega, phi = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (9, 12))
    eye = torch.eye(2, dtype=torch.float64).flatten()
    zero = torch.zeros(2, dtype=torch.float64)
    return omega, 0.3 * phi + torch.cat([eye, zero, eye, zero])


def outputs(omega: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
    return layer.look(omega, phi, X, Y)[-1]


def plain_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        for i, W in ((0, layer.W1), (2, layer.W2)):
            model[i].weight.copy_(torch.tensor(W, dtype=torch.float64))
            model[i].bias.zero_()
    return model


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_the_points_are_correlated_as_said_and_one_is_dragged(correlation):
    x, y = layer.data(correlation, 0.0, 0.0)
    torch.testing.assert_close(x.mean(0), torch.tensor(layer.CENTRE, dtype=torch.float64))
    rho = torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(torch.cov(x.mT, correction=0), rho)
    assert y.flatten().unique().tolist() == pytest.approx([0.05, 0.95])
    assert int((y > 0.5).sum()) == int((layer.SOURCES > 0).all(1).sum()) == 10
    moved = layer.data(correlation, 0.5, -2.0)[0] - x
    assert moved[layer.DRAGGED].tolist() == pytest.approx([0.5, -2.0])
    assert float(moved.abs().sum()) == pytest.approx(2.5)


@pytest.mark.parametrize("seed", range(3))
def test_a_whitening_leaves_the_function_and_whitens_what_the_layer_is_fed(seed):
    omega, phi = given(seed)
    before = outputs(omega, phi)
    after = layer.whiten(omega, phi, X, 0.01)
    assert float((outputs(*after) - before).abs().max()) < 1e-10
    h = torch.tanh(
        (X - phi[4:6]) @ phi[:4].reshape(2, 2).mT @ omega[:4].reshape(2, 2).mT + omega[4:6]
    )
    lam = torch.linalg.eigvalsh(torch.cov(h.mT, correction=0))
    _, _, _, z, mean, root, _ = layer.look(*after, X, Y)
    assert float(mean.abs().max()) < 1e-10
    torch.testing.assert_close(torch.linalg.eigvalsh(z.mT @ z / len(z)), lam / (lam + 0.01))
    torch.testing.assert_close(root @ root.mT, torch.cov(z.mT, correction=0))
    # new coefficients alone, without line 10, do change the function
    assert float((outputs(omega, after[1]) - before).abs().max()) > 1e-3


def test_sixty_updates_are_those_of_algorithm_1():
    omega, phi = layer.start()
    net = layer.unpacked(omega, phi)
    batches = [(X, Y)] * 60
    prong.prong(net, batches, layer.loss, X, alpha=0.3, eps=0.01, T=7)
    theirs = prong.activations(net, X)[2][:, 0].detach()
    for t in range(60):
        if t % 7 == 0:
            omega, phi = layer.whiten(omega, phi, X, 0.01)
        omega = layer.update(omega, phi, X, Y, 0.3)
    torch.testing.assert_close(outputs(omega, phi), theirs, rtol=0, atol=1e-10)
    torch.testing.assert_close(layer.learned("prong", 7)[60][-1], theirs, rtol=0, atol=1e-10)
    assert float((layer.learned("plain")[60][-1] - theirs).abs().max()) > 0.1


@pytest.mark.parametrize("method", layer.METHODS)
def test_the_updates_are_those_of_the_library(method):
    model = plain_model()
    whitened = layers.whiten_model(model, "zca")
    optimizer = (
        torch.optim.SGD(model.parameters(), 0.3)
        if method == "plain"
        else optim.PRONG(whitened, 0.3, eps=0.01, period=7, sample=X)
    )
    net = model if method == "plain" else whitened
    for _ in range(50):
        optimizer.zero_grad()
        Bernoulli().nll(net(X), Y).mean().backward()
        optimizer.step()
    ours = layer.learned(method, 7)[50][-1]
    torch.testing.assert_close(net(X)[:, 0].detach(), ours, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_condition_numbers_are_those_of_the_fisher_matrix_of_the_layer(seed):
    omega, phi = given(seed)
    found, by_eq5, exact, z, *_ = layer.look(omega, phi, X, Y)
    last = layers.WhitenedLinear(2, 1).double()
    with torch.no_grad():
        last.V.copy_(omega[6:8][None])
        last.d.copy_(omega[8:])
    fisher = metrics.fisher(last, z, Bernoulli())
    assert float(torch.linalg.cond(fisher)) == pytest.approx(float(exact), rel=1e-9)
    second = sum(torch.outer(row, row) for row in torch.cat([z, torch.ones(40, 1).double()], 1))
    assert float(torch.linalg.cond(second)) == pytest.approx(float(by_eq5), rel=1e-9)
    p = outputs(omega, phi).sigmoid()
    nats = -(Y[:, 0] * p.log() + (1 - Y[:, 0]) * (1 - p).log()).mean()
    assert float(found) == pytest.approx(float(nats))


def test_a_matrix_without_full_rank_has_a_large_condition_number():
    assert float(layer.condition(torch.diag(torch.tensor([4.0, 2.0]).double()))) == 2
    assert float(layer.condition(torch.ones(2, 2).double())) >= 1e14


def test_the_numbers_of_the_text_are_those_of_the_runs():
    for method in layer.METHODS:
        looks = layer.learned(method, T=50)
        assert layer.layer_loss(method, T=50) == float(looks[200][0])
        assert layer.layer_condition(method, 49, T=50) == float(looks[49][1])


def losses(method: str, **setting: float) -> list[float]:
    return [float(look[0]) for look in layer.learned(method, **setting)]


def test_the_figure_shows_what_the_chapter_says_about_it():
    plain, white = losses("plain"), losses("prong")
    conditions = [float(look[1]) for look in layer.learned("prong")]
    assert conditions[19] > 10
    assert conditions[20] < 1.5
    assert min(float(look[1]) for look in layer.learned("plain")) > 100
    assert plain[200] > white[35] > white[200] + 0.05
    for T in (1, 5, 50, 200):  # it hardly matters how often
        assert losses("prong", T=T)[200] == pytest.approx(white[200], abs=0.01)
    assert max(float(look[1]) for look in layer.learned("prong", 200)[:200]) > 10
    assert losses("prong", eps=1.0)[200] == pytest.approx(plain[200], abs=0.01)
    assert losses("plain", correlation=0.0)[200] < white[200] + 0.05
    assert losses("plain", rate=3.0)[200] < white[200] + 0.03  # ten times the step size
    least = -0.95 * math.log(0.95) - 0.05 * math.log(0.05)
    assert white[200] > least + 0.05


def test_the_steps_can_be_traced_and_hold_at_other_inputs():
    (omega, phi), (other, psi) = given(0), given(1)
    x, y = layer.data(0.3, 1.0, -0.5)
    programs = [
        trace(layer.start, [], []),
        trace(layer.data, [0.9, 0.0, 0.0], [0.3, 1.0, -0.5]),
        trace(layer.whiten, [omega, phi, X, 0.01], [other, psi, x, 0.5]),
        trace(layer.update, [omega, phi, X, Y, 0.3], [other, psi, x, y, 1.0]),
        trace(layer.look, [omega, phi, X, Y], [other, psi, x, y]),
    ]
    assert all(len(program.code) < 120 for program in programs)
