"""Likelihoods of one's own, from ``nll`` alone: against closed forms and the library's own."""

import math

import pytest
import torch
from torch import nn

from natcompanion import metrics
from natcompanion.likelihoods import Bernoulli, Categorical, FromNLL, Gaussian
from natcompanion.optim import KFAC, NaturalGradient
from tests.test_metrics import batch, mlp

GRID = torch.linspace(-30, 30, 3001, dtype=torch.float64)


def learned_scale(r, t):
    mean, log_s = r.unbind(-1)
    return 0.5 * ((t - mean) / log_s.exp()) ** 2 + log_s + 0.5 * math.log(2 * math.pi)


def draw_learned_scale(r, generator=None):
    mean, log_s = r.unbind(-1)
    noise = torch.randn(mean.shape, generator=generator, dtype=r.dtype, device=r.device)
    return mean + log_s.exp() * noise


def poisson(r, t):
    return (r.exp() - t * r + torch.lgamma(t + 1)).sum(-1)


class Poisson:
    """A user's own class, with nothing but ``nll``."""

    def nll(self, r, t):
        return poisson(r, t)


def scales(r):
    """Return the closed form of the Fisher matrix of a Gaussian with a learned scale."""
    return torch.diag_embed(torch.stack([(-2 * r[:, 1]).exp(), torch.full_like(r[:, 1], 2)], 1))


def close(a, b, rtol=1e-9):
    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-9)


def outputs(o, n=5):
    return 0.5 * torch.randn(n, o, generator=torch.Generator().manual_seed(0)).double()


def test_a_learned_scale_by_its_targets():
    own, r, s = FromNLL(learned_scale, targets=GRID), outputs(2), outputs(2).flip(0)
    close(own.fisher(r), scales(r))
    close(own.fisher_root(r) @ own.fisher_root(r).mT, scales(r))
    close(own.fisher_product(r, s), (scales(r) @ s.unsqueeze(2)).squeeze(2))
    close(own.mean(r), r[:, 0])
    variance = (2 * (r[:, 1] - s[:, 1])).exp()
    apart = ((r[:, 0] - s[:, 0]) / s[:, 1].exp()) ** 2
    close(own.kl(r, s), 0.5 * (variance + apart - 1) - r[:, 1] + s[:, 1])
    drawn = own.sample(r[:1].expand(20000, 2), generator=torch.Generator().manual_seed(1))
    assert abs(float(drawn.mean() - r[0, 0])) < 0.05
    assert float(drawn.std()) == pytest.approx(float(r[0, 1].exp()), rel=0.03)
    assert own.fisher(r.float()).dtype == torch.float32


def test_a_learned_scale_by_drawn_targets():
    own, r = FromNLL(learned_scale, sample=draw_learned_scale, draws=20000), outputs(2)
    torch.testing.assert_close(own.fisher(r), scales(r), rtol=0.1, atol=0.1)
    assert torch.equal(own.fisher(r), own.fisher(r))  # one fixed matrix
    assert float((own.mean(r) - r[:, 0]).abs().max()) < 0.05


@pytest.mark.parametrize("targets", [None, torch.arange(60)])
def test_counts(targets):
    """One output, by the sum over counts and by the second derivative alone."""
    own, r, s = FromNLL(poisson_one(targets), targets=targets), outputs(1), outputs(1).flip(0)
    close(own.fisher(r), r.exp().unsqueeze(2))
    close(own.mean(r).reshape(-1), r.exp().reshape(-1))
    close(own.kl(r, s), (r.exp() * (r - s) - r.exp() + s.exp()).squeeze(1))


def poisson_one(targets):
    return poisson if targets is None else lambda r, t: poisson(r, t.unsqueeze(-1).to(r.dtype))


@pytest.mark.parametrize("known", [Gaussian(0.5), Bernoulli(), Categorical()], ids=repr)
def test_the_likelihoods_of_the_library_again(known):
    categorical = isinstance(known, Categorical)
    own = FromNLL(known.nll, targets=torch.arange(3) if categorical else None)
    r = outputs(3)
    close(own.fisher(r), known.fisher_root(r) @ known.fisher_root(r).mT)
    if not categorical:
        close(own.mean(r), known.mean(r))
        close(own.kl(r, r.flip(0)), known.kl(r, r.flip(0)))


def brute_force(model, x, t, p, nll):
    """Sum the outer products of gradients over examples and targets, with their weights."""
    F = 0.0
    for i in range(len(x)):
        for value, weight in zip(t, p[i], strict=True):
            loss = nll(model(x[i : i + 1]), value.reshape(1)).sum()
            g = torch.cat([v.flatten() for v in torch.autograd.grad(loss, model.parameters())])
            F = F + weight * torch.outer(g, g) / len(x)
    return F


def test_the_metrics_of_a_network_against_brute_force():
    x, model = batch(3), mlp((3, 4, 2))
    t = torch.linspace(-15, 15, 301, dtype=torch.float64)
    r = model(x).detach()
    density = torch.exp(-learned_scale(r.unsqueeze(1), t.expand(3, -1)))
    F = brute_force(model, x, t, density * 0.1, learned_scale)
    own = FromNLL(learned_scale, targets=t)
    close(metrics.fisher(model, x, own), F)
    operator = metrics.FisherOperator(model, x, own)
    close(operator @ torch.eye(len(F), dtype=F.dtype), F)
    close(operator.diagonal(), F.diagonal())
    squared = metrics.fisher(model, x, Gaussian())  # the scale is an output too: not this
    assert float((squared - F).norm() / F.norm()) > 0.1
    drawn = metrics.monte_carlo_fisher(model, x, own, samples=3000)
    assert float((drawn - F).norm() / F.norm()) < 0.2


@pytest.mark.parametrize("likelihood", [Poisson(), FromNLL(poisson)], ids=["object", "adapter"])
def test_an_object_with_nll_alone_works_everywhere(likelihood):
    x, rates = batch(20), torch.ones(20, 2, dtype=torch.float64)
    model = mlp((3, 4, 2))
    J = metrics.fisher(model, x, Gaussian())
    F = metrics.fisher(model, x, likelihood)
    close(metrics.FisherOperator(model, x, likelihood) @ F[0], F @ F[0])
    assert float((F - J).norm() / F.norm()) > 0.05
    optimizer = NaturalGradient(model, likelihood, 1.0, damping=1e-2)
    losses = [optimizer.step(x, rates) for _ in range(10)]
    assert losses[-1] < losses[0]
    optimizer = KFAC(model, likelihood, 0.1)
    optimizer.refresh(x)
    poisson(model(x), rates).mean().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="expected to know the targets"):
        metrics.monte_carlo_fisher(model, x, likelihood)


def test_refusals():
    r = outputs(2)
    with pytest.raises(ValueError, match="expected to know the targets, got nll alone"):
        FromNLL(learned_scale).fisher(torch.cat([r, r], 1)[:, :2])
    with pytest.raises(ValueError, match="expected to know the targets, got nll alone"):
        FromNLL(nn.functional.nll_loss).fisher(r)
    with pytest.raises(ValueError, match=r"one number per example, shape \(5,\), got \(\)"):
        FromNLL(lambda r, t: poisson(r, t).mean()).nll(r, r)
    with pytest.raises(ValueError, match="expected a normalized density"):
        FromNLL(lambda r, t: learned_scale(r, t) + r[:, 1], targets=GRID).fisher(r)
    with pytest.raises(ValueError, match="targets that cover the density"):
        FromNLL(learned_scale, targets=GRID[GRID > 0]).fisher(r)
    with pytest.raises(ValueError, match="expected one such as Categorical"):
        metrics.fisher(mlp(), batch(), "gaussian")


def test_images_give_one_number_per_example():
    r, t = torch.randn(2, 1, 8, 8).double(), torch.rand(2, 1, 8, 8).double()
    for likelihood in (Gaussian(0.5), Bernoulli()):
        flat = likelihood.nll(r.flatten(1), t.flatten(1))
        assert flat.shape == (2,)
        close(likelihood.nll(r, t), flat)
        rows = likelihood.kl(r, t)  # of every row of outputs: grids of models are compared so
        close(rows.flatten(1).sum(1), likelihood.kl(r.flatten(1), t.flatten(1)))
        assert rows.shape == (2, 1, 8)
