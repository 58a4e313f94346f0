"""Two rulers at a point: what the figure of Foundations computes, against plain NumPy and by what
must hold in every coordinate.
"""

import numpy as np
import pytest
import torch

from natcompanion.chapters.numbers import foundations as chapter
from natcompanion.chapters.numbers import rulers as numbers

POINTS = [(1.4, 3.6), (1.9, 2.7), (1.0, 3.9), (2.0, 2.6), (0.7, 2.0)]
STRETCHES = [0.1, 0.6, 1.0, 4.0]
COST = 1e-4
X = np.linspace(-1.5, 2.5, 40)
every_point = pytest.mark.parametrize("point", POINTS)


def kl(one, other):
    """Return the mean divergence of two models (v, w), summed over both labels."""
    p, q = (1 / (1 + np.exp(-w * np.tanh(v * X))) for v, w in (one, other))
    return float(np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def loss(v, w):
    """Return the expected loss, summed over both labels."""
    t = 1 / (1 + np.exp(-chapter.TEACHER[1] * np.tanh(chapter.TEACHER[0] * X)))
    y = 1 / (1 + np.exp(-w * np.tanh(v * X)))
    return float(np.mean(-t * np.log(y) - (1 - t) * np.log(1 - y)))


def steps(point, stretch=1.0, cost=COST):
    """Return the steps by their names."""
    return dict(zip(numbers.RULES, numbers.rulers(*point, stretch, cost)[0], strict=True))


@every_point
@pytest.mark.parametrize("stretch", STRETCHES)
def test_a_stretch_turns_the_gradient_and_leaves_the_natural_gradient(point, stretch):
    found = steps(point, stretch)
    torch.testing.assert_close(found["stretched natural"], found["natural"], rtol=1e-8, atol=1e-12)
    _, gradient, F = chapter.look(*point)
    by_hand = -gradient / np.array([stretch**2, 1])  # dv = du / s, and dL/du = dL/dv / s
    by_hand *= np.sqrt(2 * COST / (by_hand @ F @ by_hand))
    assert found["stretched gradient"].numpy() == pytest.approx(by_hand)
    turned = numbers.turn(found["gradient"], found["stretched gradient"])
    assert turned < 1e-5 if stretch == 1 else turned > 1


@every_point
def test_the_steps_are_those_of_formulas_and_cost_the_same(point):
    _, gradient, F = chapter.look(*point)
    found = steps(point)
    for name, direction in (("gradient", -gradient), ("natural", -np.linalg.solve(F, gradient))):
        length = np.sqrt(2 * COST / (direction @ F @ direction))
        assert found[name].numpy() == pytest.approx(length * direction)
    for step in steps(point, 0.6).values():
        assert step.numpy() @ F @ step.numpy() / 2 == pytest.approx(COST)


@every_point
def test_of_all_small_steps_of_one_divergence_the_natural_lowers_the_loss_most(point):
    tiny, angle = 1e-9, np.linspace(0, 2 * np.pi, 720, endpoint=False)
    _, values, ellipse, slope = numbers.rulers(*point, 0.6, tiny)
    falls = dict(zip(numbers.RULES, (values[0] - values[1:]).tolist(), strict=True))
    around = (ellipse.numpy() @ np.stack([np.cos(angle), np.sin(angle)])).T
    costs = [kl(point, point + step) for step in around]
    assert np.allclose(costs, tiny, rtol=0.003)
    best = max(loss(*point) - loss(*(point + step)) for step in around)
    assert falls["natural"] == pytest.approx(best, rel=1e-3)
    assert falls["gradient"] < falls["natural"]
    assert values[0].item() == pytest.approx(loss(*point))
    assert slope.numpy() == pytest.approx(chapter.look(*point)[1])


@every_point
def test_the_ellipse_is_left_by_the_divergence_as_the_steps_grow(point):
    angle = torch.linspace(0, 6, 25, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()])
    gaps = []
    for cost in (1e-7, 1e-5, 1e-3):
        around = (numbers.rulers(*point, 1.0, cost)[2] @ circle).T
        gaps.append(max(abs(kl(point, point + step.numpy()) / cost - 1) for step in around))
    assert gaps[0] < 0.03 < gaps[2]
    assert gaps[0] < gaps[1] / 3 < gaps[2] / 9  # it grows as the length, the root of the cost


@every_point
@pytest.mark.parametrize("cost", [1e-5, 1e-4, 3e-4])
def test_a_few_rounds_reach_the_divergence(point, cost):
    angle = torch.linspace(0, 6, 25, dtype=torch.float64)
    here = numbers.point(*point)
    ellipse = numbers.rulers(*point, 1.0, cost)[2]
    first = reached = here + (ellipse @ torch.stack([angle.cos(), angle.sin()])).T
    for _ in range(3):
        reached = numbers.reach(*point, cost, reached)
    costs = [kl(point, place) for place in reached.numpy()]
    assert np.allclose(costs, cost, rtol=0.05)
    assert np.allclose(numbers.divergences(*point, reached).numpy(), costs, rtol=1e-8)
    one, other = first - here, reached - here
    assert torch.allclose(one[:, 0] * other[:, 1], one[:, 1] * other[:, 0], atol=1e-12)


def test_the_ruler_of_another_place_is_another():
    """A wrong Fisher matrix shows in the ellipse."""
    ellipse = numbers.rulers(1.4, 3.6, 1.0, 1e-7)[2].numpy()
    costs = [kl((1.9, 2.7), (1.9, 2.7) + step) for step in ellipse.T]
    assert not np.allclose(costs, 1e-7, rtol=0.1)


def test_the_natural_gradient_points_at_the_teacher_where_the_figure_goes():
    apart: dict[str, list[float]] = {"gradient": [], "natural": []}
    for v in np.linspace(1, 2, 9):
        for w in np.linspace(2.6, 3.9, 9):
            star = torch.tensor(chapter.TEACHER, dtype=torch.float64) - numbers.point(v, w)[0]
            found = steps((v, w))
            if star.norm() > 0.1:
                for name, angles in apart.items():
                    angles.append(numbers.turn(found[name], star))
    assert max(apart["natural"]) < 20
    assert max(apart["gradient"]) > 60
    assert 3 * np.median(apart["natural"]) < np.median(apart["gradient"])


def test_there_is_no_step_at_the_lowest_loss():
    slope = numbers.rulers(*chapter.TEACHER, 0.6, COST)[3]
    assert slope.abs().max() < 1e-12


def test_the_turn_is_an_angle():
    east, north = torch.tensor([[2.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    assert numbers.turn(east, north) == pytest.approx(90)
    assert numbers.turn(north, -north) == pytest.approx(180)
    assert numbers.turn(east + north / 1e6, east - north / 1e6) == pytest.approx(0, abs=1e-3)
