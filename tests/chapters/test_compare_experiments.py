"""The comparison of all methods: its problems, the first step of each method written out, and when
a run arrives.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import compare as paper
from natcompanion.chapters.experiments.compare import Compare

SECOND = {"natural": 0.01, "sample": 0.01, "kfac": 1e-12, "prong": 0.1, "rngd": 0.1}


def first_step(settings: Compare) -> tuple[torch.Tensor, paper.Problem, torch.Tensor]:
    """Return the first move of the weights of the logistic regression, the problem, and the
    gradient by hand, bias last.
    """
    problem = paper.logistic(settings)
    before = weights(problem)
    x = torch.cat([problem.x, torch.ones(len(problem.x), 1, dtype=torch.float64)], 1)
    gradient = ((torch.sigmoid(x @ before) - problem.t[:, 0])[:, None] * x).mean(0)
    paper.stepper(settings, problem)(problem.x, problem.t)
    return weights(problem) - before, problem, gradient


def weights(problem: paper.Problem) -> torch.Tensor:
    linear = problem.model[-1]
    return torch.cat([linear.weight[0], linear.bias]).detach().clone()


def second_moment(problem: paper.Problem) -> torch.Tensor:
    x = torch.cat([problem.x, torch.ones(len(problem.x), 1, dtype=torch.float64)], 1)
    return x.T @ x / len(x)


def metric(method: str, problem: paper.Problem) -> torch.Tensor:
    """Return the matrix of a method at zero weights, where every probability is a half."""
    A, eps = second_moment(problem), SECOND[method]
    eye = torch.eye(len(A), dtype=torch.float64)
    inputs = eye.clone()
    inputs[-1, -1] = 0
    return {
        "natural": A / 4 + eps * eye,
        "sample": A / 4 + eps * eye,
        "kfac": A / 4,
        "prong": A + eps * inputs,
        "rngd": 0.5 * eye + 0.5 * (A + eps * eye),
    }[method]


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("method", list(SECOND))
def test_the_first_step_of_a_metric_is_that_written_out(method):
    settings = Compare(method=method, lr=0.1, momentum=0.0, second=SECOND[method], period=1)
    moved, problem, gradient = first_step(settings)
    G = metric(method, problem)
    bound = {"natural": 0.02, "kfac": 0.01}.get(method, 1e-6)  # a solver's rtol; factored damping
    assert apart(moved, -0.1 * torch.linalg.solve(G, gradient)) < bound
    assert apart(moved, -0.1 * torch.linalg.solve(2 * G, gradient)) > 0.3
    assert apart(moved, -0.1 * gradient) > 0.3


@pytest.mark.parametrize("method", ["sgd", "momentum", "adamw", "muon"])
def test_the_first_step_along_a_gradient_is_that_written_out(method):
    moved, _, g = first_step(Compare(method=method, lr=0.1, momentum=0.9))
    signs = -0.1 * g / (g.abs() + 1e-8)
    if method == "muon":  # the bias is AdamW's, and one row is made as long as AdamW's step
        assert torch.allclose(moved[-1], signs[-1])
        cosine = torch.nn.functional.cosine_similarity(moved[:-1], -g[:-1], dim=0)
        assert cosine > 0.99
    else:
        assert torch.allclose(moved, signs if method == "adamw" else -0.1 * g)


def test_momentum_adds_to_the_second_step():
    runs = {
        mu: experiments.run(
            "compare", method="momentum", lr=1e-4, momentum=mu, updates=2, every=1
        ).values["score"]
        for mu in (0.0, 0.9)
    }
    assert runs[0.0][1] == runs[0.9][1] and runs[0.9][2] < runs[0.0][2]


def test_statistics_are_renewed_every_period(monkeypatch):
    counts = []
    original = paper.optim.KFAC.refresh
    monkeypatch.setattr(
        paper.optim.KFAC, "refresh", lambda self, x: (counts.append(1), original(self, x))
    )
    settings = {"method": "kfac", "second": 1.0, "lr": 1e-3, "every": 1}
    experiments.run("compare", updates=7, period=3, **settings)
    assert len(counts) == 3  # before updates 0, 3 and 6


def test_the_least_loss_is_a_minimum():
    problem = paper.logistic(Compare(seed=4))
    x = problem.x.numpy()
    w = np.zeros(21)
    X = np.c_[x, np.ones(len(x))]
    for _ in range(50):
        p = 1 / (1 + np.exp(-X @ w))
        w -= np.linalg.solve((X.T * (p * (1 - p))) @ X, X.T @ (p - problem.t.numpy()[:, 0]))
    with torch.no_grad():
        problem.model[0].weight.copy_(torch.from_numpy(w[None, :-1]))
        problem.model[0].bias.copy_(torch.from_numpy(w[-1:]))
    assert abs(problem.score(problem.model)) < 1e-9
    with torch.no_grad():
        problem.model[0].bias.add_(0.1)
    assert problem.score(problem.model) > 1e-5


def test_the_logistic_regression_is_badly_scaled():
    problem = paper.logistic(Compare())
    spread = problem.x.std(0)
    assert spread.max() / spread.min() > 50
    assert 0.2 < float(problem.t.mean()) < 0.8


@pytest.mark.parametrize("problem", list(paper.PROBLEMS))
def test_methods_start_from_the_same_function_and_see_the_same_batches(problem):
    runs = {
        method: experiments.run(
            "compare", problem=problem, method=method, lr=1e-12, second=1.0, updates=2, every=1
        )
        for method in ("momentum", "muon", "kfac", "prong", "rngd")
    }
    assert len({run["score"][0] for run in runs.values()}) == 1
    other = experiments.run("compare", problem=problem, seed=1, updates=1, every=1)
    assert other["score"][0] != runs["momentum"]["score"][0] or problem == "logistic"


@pytest.mark.parametrize("method", paper.METHODS)
def test_every_method_learns_the_digits(method):
    rate = {"adamw": 0.01, "muon": 0.02, "batchnorm": 0.1}
    options = {"lr": rate.get(method, 0.3), "second": 0.3, "updates": 24, "every": 24}
    settings = {"momentum": 0.5, "period": 4, **options}
    found = experiments.run("compare", problem="convolution", method=method, **settings)
    assert found["score"][-1] < 0.8 * found["score"][0]
    again = experiments.run("compare", problem="convolution", method=method, **settings)
    assert again["score"] == found["score"]


def test_sample_space_is_too_large_for_the_autoencoder():
    settings = Compare(problem="autoencoder", method="sample", lr=0.1, second=0.1)
    problem = paper.autoencoder(settings)
    step = paper.stepper(settings, problem)
    with pytest.raises(ValueError, match="GiB"):
        step(problem.x[:128], problem.t[:128])


def test_batch_normalization_is_in_the_model_of_its_methods_alone():
    for problem in paper.PROBLEMS:
        kinds = {
            method: {type(m).__name__ for m in paper.PROBLEMS[problem](settings).model.modules()}
            for method in ("momentum", "batchnorm", "prong", "prong+")
            for settings in [Compare(problem=problem, method=method)]
        }
        for method, names in kinds.items():
            assert any("BatchNorm" in n for n in names) == (method in ("batchnorm", "prong+"))


def test_a_run_stops_at_the_target_if_it_shall():
    settings = {"method": "prong", "lr": 4.0, "momentum": 0.0, "second": 1e-5, "period": 1}
    settings |= {"updates": 40, "every": 2}
    through = experiments.run("compare", **settings)
    stopped = experiments.run("compare", preset="tuning", **settings)
    at = through["updates_to_target"]
    assert at == stopped["updates_to_target"] == stopped["lateness"] and 0 < at < 40
    assert len(through["score"]) == 21 and len(stopped["score"]) == 1 + at // 2
    assert through["score"][at // 2] <= paper.TARGETS["logistic"] < through["score"][at // 2 - 1]
    assert through["clock"] == sorted(through["clock"]) and through["seconds_to_target"] > 0


def test_a_run_that_never_arrives_is_the_later_the_higher_it_ends():
    slow = experiments.run("compare", method="sgd", lr=1e-5, momentum=0.0)
    assert slow["updates_to_target"] is None
    late = 20 * slow["score"][-1] / paper.TARGETS["logistic"]
    assert slow["lateness"] == pytest.approx(late, rel=1e-3)
    wild = experiments.run("compare", method="sgd", lr=1e4, momentum=0.0)
    assert wild["lateness"] is None and wild["updates_to_target"] is None


def test_presets_differ_in_what_a_search_saves():
    tuning, chapter = (experiments.get("compare").preset(name) for name in ("tuning", "chapter"))
    assert tuning == replace(chapter, stop=True)
