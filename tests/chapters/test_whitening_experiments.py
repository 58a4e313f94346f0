"""The whitening experiments: problems against autograd and the library, descent against a plain
loop, claims of the paper.
"""

import math

import pytest
import torch

from natcompanion import metrics
from natcompanion.chapters import experiments
from natcompanion.chapters.experiments import _whitening as problems
from natcompanion.chapters.experiments import _whitening_rivals as racing
from natcompanion.chapters.experiments import whitening
from natcompanion.chapters.experiments._descent import RATES, Problem, descend
from natcompanion.whitening import Whitener, whitening_matrix

F64 = {"dtype": torch.float64}


def generator(seed: int = 0) -> torch.Generator:
    """Return a fresh generator."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(shape, generator=generator(seed), **F64)


def some_problems() -> dict[str, Problem]:
    """Return one small problem of each kind whose rule is the gradient of its loss."""
    x = normal(40, 3, seed=1)
    mixed = problems.mixing(3, 5.0, generator()) @ normal(3, 200, seed=2).pow(3)
    return {
        "gaussian": problems.gaussian(),
        "boltzmann": problems.boltzmann(3, "01", "ml", 1.0, 1.0, generator(), 1e-3),
        "logistic": problems.logistic(problems.with_bias(x), (x[:, 0] > 0.3).double(), 1e-2, 1e-3),
        "curve fit": problems.curve_fit(0.1, 20, generator(), 1e-3),
        "separation": problems.separation(mixed, 0.0),
    }


@pytest.mark.parametrize("name", some_problems())
def test_gradients_are_those_of_the_losses(name):
    problem = some_problems()[name]
    theta = problem.start + 0.1 * normal(5, len(problem.start))
    theta.requires_grad_()
    (by_autograd,) = torch.autograd.grad(problem.loss(theta).sum(), theta)
    stated = problem.gradient(theta.detach())
    # losses are scaled by their value at the start, gradients are not: parallel is what a step size
    # search needs
    scale = (stated * by_autograd).sum() / by_autograd.square().sum()
    assert torch.allclose(stated, scale * by_autograd, atol=1e-10)
    assert scale > 0


@pytest.mark.parametrize("name", some_problems())
def test_metrics_are_positive_and_act_on_batches(name):
    problem = some_problems()[name]
    theta = problem.start + 0.1 * normal(4, len(problem.start))
    for metric in problem.metrics.values():
        G = metric(theta).expand(4, -1, -1)
        assert torch.linalg.eigvalsh(G).min() > -1e-12
        one = metric(theta[2:3])
        assert torch.allclose(G[2], one[0] if one.ndim == 3 else one, atol=1e-12)


def test_logistic_metric_is_the_hessian_and_the_diagonal_is_the_librarys():
    problem = some_problems()["logistic"]
    theta = normal(4)
    hessian = torch.func.jacrev(lambda th: problem.gradient(th[None])[0])(theta)
    G = problem.metrics["fisher"](theta[None])[0]
    assert torch.allclose(G, hessian, atol=1e-12)
    assert torch.equal(problem.metrics["diagonal"](theta[None])[0], metrics.diagonal(G))
    assert not torch.allclose(problem.metrics["data_fisher"](theta[None])[0], hessian, atol=1e-3)


def test_block_diagonal_is_the_librarys():
    problem = some_problems()["boltzmann"]
    theta = normal(1, 6)
    G = problem.metrics["fisher"](theta)[0]
    assert torch.equal(
        problem.metrics["block_diagonal"](theta)[0], metrics.block_diagonal(G, [3, 3])
    )


def test_the_logistic_loss_is_zero_at_the_minimum_and_one_at_the_start():
    problem = some_problems()["logistic"]
    assert float(problem.loss(problem.start[None])) == pytest.approx(1)
    best = problems.minimum(
        problem.start, problem.gradient, lambda th: problem.metrics["fisher"](th[None])[0]
    )
    assert abs(float(problem.loss(best[None]))) < 1e-12
    assert float(problem.loss(best[None] + 0.1)) > 1e-6


def test_descend_equals_a_plain_loop():
    problem = problems.gaussian(target=1e-4)
    found = descend(problem, "fisher", steps=100, rates=(0.1,))
    theta, counted = problem.start, 0
    while float(problem.loss(theta)) > 1e-4:
        theta = theta - 0.1 * torch.linalg.solve(
            problem.metrics["fisher"](theta), problem.gradient(theta)
        )
        counted += 1
    assert found.steps == counted == 50
    assert float(found.curve[-1]) == pytest.approx(float(problem.loss(theta)), abs=1e-15)


def test_descend_takes_the_best_step_size_and_drops_those_that_diverge():
    problem = problems.gaussian(target=7e-4)
    best = descend(problem, steps=5000)
    alone = {
        rate: descend(problem, steps=5000, rates=(rate,)).steps for rate in RATES if 0.05 < rate < 1
    }
    assert (
        best.steps
        == min(steps for steps in alone.values() if steps is not None)
        == alone[best.rate]
    )
    assert (
        descend(problem, steps=5000, rates=(1.0,)).steps is None
    )  # above 0.217 steepest descent diverges


def test_a_metric_that_is_held_is_computed_less_often():
    calls = []
    problem = some_problems()["logistic"]
    fisher = problem.metrics["fisher"]
    problem.metrics["counted"] = lambda theta: calls.append(1) or fisher(theta)
    held = descend(problem, "counted", steps=9, hold=3, rates=(0.01,))
    assert len(calls) == 3
    fresh = descend(problem, "fisher", steps=9, rates=(0.01,))
    assert float((held.curve - fresh.curve).abs().max()) > 1e-9


def test_closed_form_of_a_quadratic():
    A = normal(4, 4)
    G, H, start = (
        A @ A.mT + torch.eye(4, **F64),
        torch.diag(torch.tensor([1.0, 2.0, 0.5, 0.1], **F64)),
        normal(4, seed=3),
    )
    theta, losses = start, []
    for _ in range(6):
        losses.append(float(theta @ G @ theta / 2))
        theta = theta - 0.05 * H @ G @ theta
    assert whitening.quadratic_curve(G, H, start, 0.05, 5).tolist() == pytest.approx(
        losses, rel=1e-10
    )
    steps = whitening._quadratic_steps(G, torch.linalg.inv(G), start, 1e-6)
    assert steps == pytest.approx(1)
    assert whitening._quadratic_steps(G, torch.eye(4, **F64), start, 1e-6) > 2


def test_coordinates_are_a_metric():
    x = normal(30, 3) * torch.tensor([1.0, 5.0, 0.1], **F64) + 2
    z, t = problems.with_bias(x), (x[:, 0] > 2).double()
    for name, T in whitening.coordinate_maps(x, torch.tensor([10.0, 0.1, 3.0], **F64)).items():
        problem = problems.logistic(z, t, 1e-2, 1e-3)
        theta = normal(4, seed=5)
        other = torch.linalg.solve(T.mT, theta)  # the same classifier in coordinates T z
        moved = other - 0.3 * (torch.sigmoid(z @ T.mT @ other) - t) @ (z @ T.mT) / len(z)
        problem = problems.logistic(z, t, 0.0 + 1e-12, 1e-3)
        step = torch.linalg.solve(
            whitening._pulled_back(T)(theta), problem.gradient(theta[None])[0]
        )
        assert torch.allclose(T.mT @ moved, theta - 0.3 * step, atol=1e-8), name
        assert not torch.allclose(
            T.mT @ moved, theta - 0.3 * problem.gradient(theta[None])[0], atol=1e-3
        )


def test_photographs_mixing_and_amari_error():
    images = problems.photographs(16)
    assert images.shape == (3, 16, 16) and images.min() >= 0 and images.max() <= 1
    assert problems.differences(images).shape == (3, 2 * 16 * 15)
    A = problems.mixing(3, 50.0, generator())
    assert float(torch.linalg.cond(A)) == pytest.approx(50)
    assert abs(float(torch.linalg.det(A))) == pytest.approx(1)
    permuted = torch.tensor([[0, 0, 2.0], [-3.0, 0, 0], [0, 0.1, 0]], **F64)
    assert problems.amari_error(permuted) == 0
    assert problems.amari_error(torch.ones(3, 3, **F64)) == pytest.approx(1)


def test_the_relative_metric_is_eq_43():
    problem = some_problems()["separation"]
    W = torch.eye(3, **F64) + 0.2 * normal(3, 3)
    g = problem.gradient(W.reshape(1, 9))
    step = torch.linalg.solve(problem.metrics["relative"](W.reshape(1, 9))[0], g[0]).reshape(3, 3)
    assert torch.allclose(step, g.reshape(3, 3) @ W.mT @ W, atol=1e-10)
    assert not torch.allclose(step, W @ W.mT @ g.reshape(3, 3), atol=1e-3)


def test_eq_39_shrinks_with_the_square_of_the_residual_and_eq_41_does_not():
    problem = problems.curve_fit(0.0, 20, generator(), 1e-3)
    truth = torch.tensor([1.0, -0.7, 0.6, 2.0], **F64) + 0.1 * torch.randn(
        4, generator=generator(), **F64
    )
    near, nearer = (
        truth[None] + size * torch.tensor([1.0, 0, 0, 0], **F64) for size in (1e-3, 1e-4)
    )
    shrink = {name: float(G(near).norm() / G(nearer).norm()) for name, G in problem.metrics.items()}
    assert shrink["eq39"] == pytest.approx(100, rel=0.05)
    assert shrink["eq41"] == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("whitening_figure1", {"starts": 1, "steps": 5000, "search": 200}),
        ("whitening_regularization", {"steps": 10, "dim": 5, "samples": 5}),
        ("whitening_invariance", {"maps": 3, "units": 3}),
        ("whitening_stale_metric", {"size": 4, "steps": 100}),
        ("whitening_boltzmann", {"n": 3, "steps": 200}),
        ("whitening_digit_pairs", {"size": 4, "steps": 100}),
        ("whitening_coordinates", {"size": 4, "steps": 50}),
        ("whitening_lbfgs", {"size": 4, "blocks": 3}),
        ("whitening_input_distribution", {"size": 4, "steps": 50}),
        ("whitening_curve_fit", {"steps": 100}),
        ("whitening_separation", {"size": 12, "steps": 50}),
        ("whitening_wrong_metric", {"problems": 3, "dim": 4}),
        ("whitening_rivals", {"steps": 3}),
    ],
)
def test_experiments_run_and_repeat_to_the_last_bit(name, settings):
    first, second = (experiments.run(name, seed=2, **settings) for _ in range(2))
    assert {**first.values, "seconds_to_target": 0} == {**second.values, "seconds_to_target": 0}
    assert any(
        key.startswith(("speedup", "loss", "linear", "digits", "best")) for key in first.values
    )


def test_the_seed_matters():
    one, two = (
        experiments.run("whitening_boltzmann", seed=seed, n=3, steps=200)["curves"]
        for seed in (0, 1)
    )
    assert one != two


@pytest.mark.parametrize(
    ("problem", "method"),
    [(p, m) for p, ways in racing.METRICS.items() for m in ("sgd", *ways)],
)
def test_two_steps_of_a_rival_are_those_of_heavy_ball_momentum(problem, method):
    """theta_2 = theta_1 - lr (mu d_0 + d_1), with d = G^{-1} g of the problem's metric."""
    there = racing.problem_of(problem, 1, generator())
    metric = racing.METRICS[problem].get(method)
    theta = torch.nn.Parameter(there.start.clone()[None])
    move, points, directions = racing.mover(there, theta, method, metric, 0.1, 0.5), [], []
    for _ in range(2):
        point = theta.detach().clone()
        g = there.gradient(point)
        if metric is not None:
            g = torch.linalg.solve(there.metrics[metric](point).reshape(g.numel(), -1), g[0])[None]
        points.append(point)
        directions.append(g)
        move(there.gradient(point))
    assert torch.allclose(points[1], points[0] - 0.1 * directions[0], rtol=1e-9, atol=1e-12)
    wanted = points[1] - 0.1 * (0.5 * directions[0] + directions[1])
    assert torch.allclose(theta.detach(), wanted, rtol=1e-9, atol=1e-12)
    plain = points[1] - 0.1 * directions[1]  # without momentum it would be another point
    assert not torch.allclose(theta.detach(), plain, rtol=1e-3)


def test_muon_moves_the_unmixing_matrix():
    there = racing.problem_of("separation", 1, generator())
    theta = torch.nn.Parameter(there.start.clone()[None])
    racing.mover(there, theta, "muon", None, 0.1, 0.9)(there.gradient(theta.detach()))
    step = (theta.detach() - there.start).reshape(3, 3)
    scales = torch.linalg.svdvals(step) / (0.1 * 0.2 * 3**0.5)  # AdamW's usual size for 3 x 3
    assert 0.4 < float(scales.min()) and float(scales.max()) < 1.5
    g = torch.linalg.svdvals(there.gradient(there.start[None]).reshape(3, 3))
    assert float(g.max()) > 2 * float(g.min())  # the gradient itself is no such matrix
    assert float((step * there.gradient(there.start[None]).reshape(3, 3)).sum()) < 0  # downhill


# ---- claims settled here exactly


def test_steepest_descent_is_nearly_perpendicular_to_the_goal():
    model, goal = problems.example(), torch.zeros(2, **F64)
    path = model.path(torch.tensor([1.0, -1.0], **F64), goal, lr=0.1, steps=5)
    cosine = torch.cosine_similarity(-model.gradient(path, goal), -path, dim=1)
    angle = torch.rad2deg(cosine.arccos())
    assert 86 < float(angle.max()) < 90
    assert float(angle[5]) < 2  # in the valley the steps point at the goal again; they are short


def test_natural_descent_arrives_in_one_step_and_steepest_descent_not_in_ten():
    """At any of 21 step sizes. Where the Fisher matrix is the identity both arrive at once."""
    goal = torch.zeros(2, **F64)
    starts = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0]], **F64)

    def arrive(model, steps: int, lr: float, metric: torch.Tensor | None = None) -> list[bool]:
        inverse = None if metric is None else torch.linalg.inv(metric)
        path = model.path(starts, goal, lr=lr, steps=steps, inverse_metric=inverse)
        return (model.kl(path[-1], goal) < 1e-4).tolist()

    model = problems.example()
    assert all(arrive(model, 1, 1.0, model.fisher()))
    rates = torch.logspace(-3, 1, 21).tolist()
    assert not any(any(arrive(model, steps, lr)) for lr in rates for steps in range(1, 11))
    round_one = type(model)(torch.eye(2, **F64))
    assert all(arrive(round_one, 1, 1.0))


def test_steepest_descent_in_phi_goes_straight_to_the_goal():
    G = problems.example().fisher()
    root = torch.linalg.inv(whitening_matrix(G))
    phi = root @ torch.tensor([1.0, -1.0], **F64)
    gradient = torch.linalg.solve(root, G @ torch.linalg.solve(root, phi))
    assert float(torch.cosine_similarity(gradient, phi, dim=0)) == pytest.approx(1, abs=1e-12)
    theta = torch.tensor([1.0, -1.0], **F64)
    assert float(torch.cosine_similarity(G @ theta, theta, dim=0)) < 0.7


def test_a_small_step_in_phi_changes_as_much_in_every_direction():
    """Section 1.4: steps of one length around the goal, in 64 directions."""
    model, goal = problems.example(), torch.zeros(2, **F64)
    angle = torch.linspace(0, 2 * math.pi, 65, **F64)[:-1]
    steps = 0.01 * torch.stack([angle.cos(), angle.sin()], 1)
    root = torch.linalg.inv(whitening_matrix(model.fisher()))
    change = {"theta": model.kl(steps, goal), "phi": model.kl(steps @ torch.inverse(root).mT, goal)}
    assert torch.allclose(change["phi"], torch.full((64,), 0.5 * 0.01**2, **F64), rtol=1e-9)
    assert float(change["theta"].max() / change["theta"].min()) > 1000


def test_every_rotation_of_a_whitening_matrix_whitens():
    A = normal(4, 4)
    cov = A @ A.mT
    W = whitening_matrix(cov)
    turned = torch.linalg.qr(normal(4, 4, seed=1))[0] @ W
    eye = torch.eye(4, **F64)
    assert torch.allclose(turned @ cov @ turned.mT, eye, atol=1e-10)
    stretched = torch.diag(torch.tensor([1.0, 1, 1, 1.1], **F64)) @ W
    assert not torch.allclose(stretched @ cov @ stretched.mT, eye, atol=1e-3)


def test_whitening_undoes_any_scaling_of_the_dimensions():
    x = normal(50, 3)
    scaled = x * torch.tensor([100.0, 0.01, 3.0], **F64)
    ones, others = (Whitener().fit(data).transform(data) for data in (x, scaled))
    rotation = torch.linalg.lstsq(ones, others).solution
    assert torch.allclose(rotation.mT @ rotation, torch.eye(3, **F64), atol=1e-8)
    assert torch.allclose(ones @ rotation, others, atol=1e-8)


def test_whitened_inputs_are_the_natural_gradient_frozen_at_the_start():
    x = normal(60, 3) @ normal(3, 3, seed=1) + 1
    z, t = problems.with_bias(x), (x[:, 0] > 1).double()
    T = whitening.coordinate_maps(x, torch.ones(3, **F64))["whitened"]
    frozen = whitening._pulled_back(T)(None)
    fisher = problems.logistic(z, t, 1e-12, 1e-3).metrics["fisher"]
    assert torch.allclose(frozen, 4 * fisher(torch.zeros(1, 4, **F64))[0], atol=1e-8)
    assert not torch.allclose(frozen, 4 * fisher(torch.ones(1, 4, **F64))[0], atol=1e-2)


def test_any_positive_definite_matrix_goes_downhill_and_an_indefinite_one_need_not():
    """Section 2.10, Eq. 45, on random quadratics: short steps along H times the negative
    gradient.
    """
    for seed in range(20):
        A, B = normal(4, 4, seed=seed), normal(4, 4, seed=100 + seed)
        curvature, g = A @ A.mT, normal(4, seed=200 + seed)
        H = B @ B.mT + 1e-3 * torch.eye(4, **F64)
        reflected = torch.eye(4, **F64) - 2 * torch.outer(g, g) / (g @ g)
        steps = (-1e-6 * M @ g for M in (H, reflected))
        downhill, uphill = (float(g @ d + d @ curvature @ d / 2) for d in steps)
        assert downhill < 0 < uphill


def test_a_step_that_is_too_long_goes_uphill():
    model, goal, theta = problems.example(), torch.zeros(2, **F64), torch.tensor([1.0, -1.0], **F64)
    natural = torch.linalg.solve(model.fisher(), model.gradient(theta, goal))
    ratio = {
        lr: float(model.kl(theta - lr * natural, goal) / model.kl(theta, goal))
        for lr in (0.01, 2.1)
    }
    assert ratio[0.01] < 1 and ratio[2.1] == pytest.approx(1.21)


def test_curved_maps_move_the_path_in_proportion_to_the_step():
    moved = experiments.run("whitening_invariance", units=3, maps=5)["curved"]
    assert moved[0] / moved[1] == pytest.approx(10, rel=0.1)
    assert moved[1] / moved[2] == pytest.approx(10, rel=0.1)
    assert math.isfinite(moved[0]) and moved[0] > 1e-5
