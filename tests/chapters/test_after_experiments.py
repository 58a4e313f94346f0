"""The differential equation: its residuals, first steps written out, and when a run arrives."""

import math
from dataclasses import replace

import pytest
import torch

from natcompanion import reference
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import after as paper
from natcompanion.chapters.experiments.after import AfterPoisson
from natcompanion.reference.after import sample_step

X = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]


def network(seed=0):
    return paper.network(AfterPoisson(seed=seed).generator(1))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_residuals_are_those_of_the_equation():
    model, x, e = network(), X[1:-1], 1e-4
    with torch.no_grad():
        bend = (model.u(x + e) - 2 * model.u(x) + model.u(x - e)) / e**2
        wanted = bend + math.pi**2 * torch.sin(math.pi * x)
        assert torch.allclose(model(x), wanted, atol=1e-5)
        assert not torch.allclose(model(x), bend - math.pi**2 * torch.sin(math.pi * x), atol=1.0)
        assert model.u(torch.tensor([[0.0], [1.0]], dtype=torch.float64)).abs().max() == 0


def test_the_solution_has_no_residual_and_no_error():
    class Solved(paper.Poisson):
        def u(self, x):
            return torch.sin(math.pi * x)

        def bend(self, x):
            return -(math.pi**2) * torch.sin(math.pi * x)

    model = Solved(network().first, network().last)
    assert float(model(X).abs().max()) < 1e-12
    assert model.error() == 0 and network().error() > 0.5


def gradient_of(model):
    loss = model(X).square().mean() / 2
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def first_move(**settings):
    settings = AfterPoisson(**settings)
    model = network()
    before, g = weights(model), gradient_of(model)
    paper.stepper(settings, model, X)()
    return weights(model) - before, g


def test_the_first_step_along_a_gradient_is_that_written_out():
    moved, g = first_move(method="sgd", lr=1e-3, momentum=0.9)
    assert torch.allclose(moved, -1e-3 * g) and not torch.allclose(moved, -2e-3 * g)
    moved, g = first_move(method="adamw", lr=1e-3, momentum=0.9)
    signs = -1e-3 * g / (g.abs() + 1e-8)
    assert torch.allclose(moved, signs)
    moved, g = first_move(method="muon", lr=1e-3, momentum=0.9)
    assert torch.allclose(moved[32:64], signs[32:64]), "AdamW has the biases"
    cosine = torch.nn.functional.cosine_similarity(moved[:32], -g[:32], dim=0)
    assert cosine > 0.99 and not torch.allclose(moved[:32], signs[:32])


def test_the_first_step_in_sample_space_is_that_of_the_reference():
    model = network()
    before, J = weights(model), reference.jacobian(model, X).view(40, 1, -1)
    r = model(X).detach()
    one = torch.ones(40, 1, 1, dtype=torch.float64)
    d = sample_step(J, one, r, 100.0)  # so damped that no bound of a step is met
    paper.stepper(AfterPoisson(method="sample", second=100.0), model, X)()
    assert torch.allclose(weights(model) - before, -d, rtol=1e-8)
    assert not torch.allclose(weights(model) - before, -d / 2, rtol=1e-2)


def test_lbfgs_makes_one_iteration_an_update():
    model = network()
    step = paper.stepper(AfterPoisson(method="lbfgs", lr=0.2, second=10.0), model, X)
    losses = [float(step()) for _ in range(6)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0]


def test_lbfgs_makes_the_same_iterations_in_fewer_calls():
    """And looks at the loss less often."""
    common = {"method": "lbfgs", "lr": 0.5, "second": 10.0, "updates": 30}
    fine, coarse = (experiments.run("after_poisson", every=n, **common) for n in (1, 5))
    assert coarse["error"] == pytest.approx(fine["error"][::5], rel=1e-6)
    assert coarse["error"] != pytest.approx(fine["error"][:7], rel=1e-3)


@pytest.mark.parametrize("method", paper.GRIDS)
def test_every_method_tries_twenty_settings_and_learns(method):
    found = paper.search(method)
    assert len(found) == len({tuple(s.items()) for s in found}) == 20
    assert {s["updates"] for s in found} == {paper.LENGTH[method]}
    rate = {"sgd": 1e-2, "adamw": 0.1, "muon": 1e-2, "lbfgs": 0.2, "sample": 1.0}[method]
    settings = {"lr": rate, "second": 1e-4 if method == "sample" else 10.0}
    settings |= {"momentum": 0.0 if method == "sample" else 0.9, "every": 5}
    run = experiments.run("after_poisson", method=method, updates=40, **settings)
    assert run["error"][-1] < 0.5 * run["error"][0] and len(run["error"]) == len(run["clock"]) == 9
    again = experiments.run("after_poisson", method=method, updates=40, **settings)
    assert again["error"] == run["error"]


def test_an_unknown_method_is_named():
    with pytest.raises(ValueError, match="expected one of sgd, adamw"):
        experiments.run("after_poisson", method="adam")


def test_a_run_stops_at_the_target_if_it_shall():
    settings = {"method": "sample", "second": 1e-5, "updates": 40}
    through = experiments.run("after_poisson", **settings)
    stopped = experiments.run("after_poisson", preset="tuning", **settings)
    at = through["updates_to_target"]
    assert at == stopped["updates_to_target"] == stopped["lateness"] and 1 < at < 40
    assert len(through["error"]) == 41 and len(stopped["error"]) == 1 + at
    assert through["error"][at] <= paper.TARGET < through["error"][at - 1]
    assert through["clock"] == sorted(through["clock"]) and through["seconds_to_target"] > 0


def test_a_run_that_never_arrives_is_the_later_the_higher_it_ends():
    slow = experiments.run("after_poisson", method="sgd", lr=1e-4, momentum=0.9, updates=20)
    assert slow["updates_to_target"] is None
    assert slow["lateness"] == pytest.approx(20 * slow["error"][-1] / paper.TARGET, rel=1e-3)
    wild = experiments.run("after_poisson", method="sgd", lr=1e3, momentum=0.9, updates=20)
    assert wild["lateness"] is None and wild["updates_to_target"] is None


def test_the_search_stops_early_and_differs_in_nothing_else():
    tuning, chapter = (
        experiments.get("after_poisson").preset(name) for name in ("tuning", "chapter")
    )
    assert tuning == replace(chapter, stop=True)
