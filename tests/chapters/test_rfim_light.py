"""The neuron that learns in its own spotlight, in the opening figure of the chapter on RFIM."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from natcompanion.chapters.figures import compare
from natcompanion.chapters.figures import rfim as figures
from natcompanion.chapters.numbers import rfim as numbers
from natcompanion.chapters.numbers.rfim import light
from natcompanion.chapters.page import trace
from natcompanion.likelihoods import Bernoulli
from natcompanion.metrics import kronecker_factors
from natcompanion.relative import activate, relative_damping
from natcompanion.solvers import damped_solve

ACTIVATIONS = list(light.OPTIONS)
ONE = torch.ones(2, dtype=torch.float64)


def given(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return weights (4, 2), points (14, 2) and labels (14,)."""
    generator = torch.Generator().manual_seed(seed)
    w, x = (1.5 * torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (4, 14))
    return w, x, (torch.rand(14, generator=generator) > 0.5).double()


def log_probability(activation: str, a: torch.Tensor, answer: float) -> torch.Tensor:
    """Return ln p(answer) at the input a, from the words of the paper: answers -1 and 1 of tanh
    with the odds e^(2a), 0 and 1 of the sigmoid with the odds e^a.
    """
    odds = torch.exp(2 * a if activation == "tanh" else a)
    return torch.log((odds if answer > 0 else 1) / (1 + odds))


def loss(activation: str, w: torch.Tensor, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    a = x @ w
    if activation == "relu":
        return 0.5 * (activate("relu", a, omega=0.1) - t).square().mean()
    one, other = (log_probability(activation, a, answer) for answer in (1, -1))
    return -(t * one + (1 - t) * other).mean()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_loss_and_gradient_are_those_of_the_answers(activation):
    w, x, t = given(0)
    brute = torch.stack([loss(activation, row, x, t) for row in w])
    torch.testing.assert_close(light.losses(activation, w, x, t), brute)
    slope = torch.func.jacrev(lambda v: loss(activation, v, x, t))
    torch.testing.assert_close(
        light.slopes(activation, w, x, t), torch.stack([slope(row) for row in w])
    )


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_the_metric_is_the_mean_square_of_the_scores_over_all_answers(activation):
    w, x, _ = given(1)
    G = torch.zeros(2, 2, dtype=torch.float64)
    for row in x:
        for answer in (-1, 1):
            ln_p = partial(log_probability, activation, answer=answer)
            score = torch.func.grad(lambda v, row=row, ln_p=ln_p: ln_p(row @ v))(w[0])
            G += ln_p(row @ w[0]).exp() * torch.outer(score, score) / len(x)
    torch.testing.assert_close(light.metric(activation, w[0], x), G)


def test_the_metric_of_kfac_is_the_librarys_and_equal_only_where_all_are_lit_alike():
    w, x, _ = given(2)
    model = nn.Linear(2, 1, bias=False).double()
    for weights in (w[0], 0 * w[0]):
        with torch.no_grad():
            model.weight.copy_(weights)
        factors = kronecker_factors(model, x, Bernoulli())[""]
        kfac = light.kfac_metric("sigmoid", weights, x)
        torch.testing.assert_close(kfac, torch.kron(factors.B, factors.A))
        same = torch.allclose(kfac, light.metric("sigmoid", weights, x))
        assert same == (weights.abs().max() == 0)


def test_a_step_by_hand():
    # one point (2, 0) with label 1 and weights 0: the gradient is (0.5 - 1) (2, 0) = (-1, 0), nu is
    # 1/4, the metric (1, 0; 0, 0), and the damping half of eps
    w, x = torch.zeros(4, 2, dtype=torch.float64), torch.tensor([[2.0, 0.0]]).double()
    v, t = torch.tensor([-0.5, 0.25]).double(), torch.ones(1).double()
    for s in (1.0, 4.0):
        moved, velocity, losses = light.step("sigmoid", w, v, x, t, 0.5, 0.2, s)
        momentum = [-0.45 - 1 / s**2, 0.225]
        wanted = [[0.5 / s**2, 0], [-0.5 * momentum[0], -0.1125], [0.5 / 1.1, 0], [0.5 / 1.1, 0]]
        torch.testing.assert_close(moved, torch.tensor(wanted, dtype=torch.float64))
        assert velocity.tolist() == pytest.approx(momentum)
        assert losses.tolist() == pytest.approx(4 * [math.log(2)])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_damping_is_that_of_the_paper_and_alone_depends_on_the_unit(activation):
    w, x, t = given(3)
    G, slope = light.metric(activation, w[0], x), light.slopes(activation, w[:1], x, t)[0]
    for eps in (1e-6, 0.3):
        ours = light.natural(G, slope, eps, ONE)
        torch.testing.assert_close(ours, damped_solve(G, slope, relative_damping(G, eps)))
    free, damped = (
        light.natural(G, slope, eps, light.units(3.0)) - light.natural(G, slope, eps, ONE)
        for eps in (1e-12, 0.3)
    )
    assert float(free.norm()) < 1e-8 * float(slope.norm())
    assert float(damped.norm()) > 1e-3 * float(slope.norm())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_arrows_and_ellipses_have_one_length(activation, seed):
    w, x, t = given(seed)
    nu, steps, ring, kfac = light.look(activation, w[0], x, t, 1e-9, 1.7)
    G = light.metric(activation, w[0], x)
    torch.testing.assert_close(G, (nu[:, None] * x).mT @ x / len(x))
    square = torch.full((2,), light.RADIUS**2, dtype=torch.float64)
    torch.testing.assert_close(((steps @ G) * steps).sum(1), square)
    around = torch.linalg.qr(given(seed + 9)[0][:2])[0]  # directions at right angles
    for metric, circle in ((G, ring), (light.kfac_metric(activation, w[0], x), kfac)):
        ends = circle @ around
        torch.testing.assert_close((ends * (metric @ ends)).sum(0), square)
    slope = light.slopes(activation, w[:1], x, t)[0]
    gradient, natural = (float(slope @ step) for step in steps)
    assert natural < gradient < 0  # of all steps of this length the natural one goes down most
    angle = torch.linspace(0, 2 * torch.pi, 100, dtype=torch.float64)
    most = (slope @ ring @ torch.stack([angle.cos(), angle.sin()])).min()
    assert natural == pytest.approx(float(most), rel=2e-3)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_paths_are_those_of_the_optimizers_of_torch(activation):
    x, t = light.cloud(1.0)
    weights, losses = light.learned(activation)
    for m, momentum in enumerate((0.0, light.MOMENTUM)):
        w = torch.tensor(light.START, dtype=torch.float64).requires_grad_()
        optimizer = torch.optim.SGD([w], 0.5, momentum=momentum)
        for k in range(light.STEPS + 1):
            optimizer.zero_grad()
            value = loss(activation, w, x, t)
            torch.testing.assert_close(weights[k, m], w.detach(), rtol=0, atol=1e-9)
            torch.testing.assert_close(losses[k, m], value.detach(), rtol=0, atol=1e-9)
            value.backward()
            optimizer.step()
    assert weights[0].tolist() == 4 * [list(light.START)]


def test_what_has_run_away_does_not_come_back():
    weights, losses = light.learned("tanh", light.LONG)
    gone = weights.isnan().any(2)
    assert gone.any(0).tolist() == [False, False, False, True]
    first = int(gone[:, 3].nonzero()[0])
    assert gone[first:, 3].all()
    assert losses.isnan().equal(gone)
    assert float(weights[:first, 3].abs().max()) <= light.FAR
    assert [light.last(weights, k) for k in (0, first - 1, first, 60)] == [0] + 3 * [first - 1]


def test_arrivals_by_hand():
    nan = math.nan
    losses = torch.tensor([[1.0, 1.0, 1.0], [0.5, 1.0, 0.7], [0.4995, nan, 0.5006]])
    assert light.arrivals(losses) == [1, None, None]
    assert light.arrivals(losses[:2]) == [1, None, None]
    assert light.arrivals(losses[:1]) == [0, 0, 0]


def test_the_figure_shows_what_the_chapter_says_about_it():
    assert numbers.lit_points("sigmoid", 1.8) < numbers.lit_points("sigmoid")
    assert numbers.lit_points("relu", 1.8) == numbers.lit_points("relu")
    assert numbers.metric_moves("kfac") > 10 * numbers.metric_moves("relative")
    assert numbers.steps_of("rngd", "tanh", "long") == "away"
    assert numbers.steps_of("sgd") == "late"
    assert numbers.steps_of("rngd") < numbers.steps_of("kfac") < numbers.steps_of("momentum")
    for dx in (-0.15, 0.15):  # who drags the dot does not hit a number
        start = (light.LONG[0] + dx, light.LONG[1] + dx)
        ended = [
            light.learned("tanh", start, **s)[1][-1] for s in ({}, {"eps": 0.1}, {"rate": 0.2})
        ]
        assert [bool(end[3].isnan()) for end in ended] == [True, False, False]
    for method in ("rngd", "kfac"):
        assert numbers.path_moves(method, 1e-6) < 1e-4
        assert numbers.path_moves(method, 1.0) > 0.3
    assert min(numbers.path_moves(method, 0.01) for method in ("sgd", "momentum")) > 0.05
    x, _ = light.cloud(1.0)
    assert light.POINTS[light.DARK][0] == float(x[:, 0].min())
    with pytest.raises(KeyError):
        numbers.metric_moves("whole")


def test_arrivals_do_not_hang_on_rounding():
    for activation, start, setting in (
        *(("sigmoid", light.START, {}), ("tanh", light.LONG, {"eps": 0.1})),
        ("tanh", light.LONG, {"rate": 0.2}),
    ):
        losses = light.learned(activation, start, **setting)[1]
        above = (losses - losses.nan_to_num(torch.inf).min() - light.CLOSE).abs()
        assert float(above.nan_to_num(1.0).min()) > 1e-6


def test_colours_and_dashes_of_the_page_are_those_of_the_table_of_methods(request):
    css = (request.config.rootpath / "book/_static/page/figure.css").read_text()
    assert f"--relative: {compare.LINES['rngd'][0].lower()};" in css
    assert f"--steepest: {compare.LINES['sgd'][0].lower()};" in css
    assert compare.LINES["sgd"][0] == compare.LINES["momentum"][0]
    dashed = {name: f".nc-line.nc-{name} {{\n  stroke-dasharray" in css for name in light.METHODS}
    assert dashed == {name: compare.LINES[name][1] != "-" for name in light.METHODS}


def test_the_constants_of_the_page_are_those_of_the_library(request):
    script = (request.config.rootpath / "book/_static/page/rfim.js").read_text()
    assert f"[{light.STEPS}, {light.FAR:g}, 1e-3, {figures.GRID}, " in script
    assert light.CLOSE == 1e-3
    (_, wide), (_, high) = figures.SHEET
    assert f"[WIDE, HIGH] = [{wide}, {high}]" in script
    assert f"LEVELS = {figures.LEVELS};" in script
    assert f"w1: {light.START[0]:g}, w2: {light.START[1]:g}" in script
    for name, text in light.METHODS.items():
        assert f'{{ name: "{name}", text: "{text}"' in script
    for name, brightest in figures.BRIGHTEST.items():
        assert f'key: "{name}"' in script
        assert f"brightest: {brightest:g} }}" in script


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_steps_can_be_traced_and_hold_at_other_inputs(activation):
    one, two = (
        [w, w[0], x, t, rate, eps, stretch]
        for (w, x, t), rate, eps, stretch in (
            (given(4), 0.5, 0.01, 1.0),
            (given(5), 0.2, 0.3, 0.6),
        )
    )
    assert len(trace(partial(light.step, activation), one, two).code) < 200
