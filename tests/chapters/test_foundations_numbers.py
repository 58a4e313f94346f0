"""The numbers of Foundations, against sums over both labels and plain loops."""

import math

import numpy as np
import pytest
import torch

from natcompanion.chapters.figures import foundations as figures
from natcompanion.chapters.numbers import foundations as numbers

X = np.linspace(-1.5, 2.5, 40)


def probability(v, w):
    """Return the probability of the label 1 at every input."""
    return 1 / (1 + np.exp(-w * np.tanh(v * X)))


def kl(one, other):
    """Return the mean divergence of two models (v, w), summed over both labels."""
    p, q = probability(*one), probability(*other)
    return float(np.mean(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))))


def jacobian(v, w):
    """Return the derivative of r = w tanh(v x) by v and w at every input."""
    t = np.tanh(v * X)
    return np.stack([w * X * (1 - t**2), t], 1)


def fisher(v, w):
    """Return the Fisher matrix by its formula."""
    y, J = probability(v, w), jacobian(v, w)
    return (J.T * (y * (1 - y))) @ J / len(X)


HERE = (0.7, 2.0)
TARGETS = numbers.make_targets(
    "drawn from a teacher", numbers.tiny(*HERE), numbers.inputs()
).numpy()[:, 0]
GRADIENT = (probability(*HERE) - TARGETS) @ jacobian(*HERE) / len(X)


def test_the_model_and_its_inputs():
    r = numbers.tiny(0.7, 2.0)(numbers.inputs()).detach().numpy()[:, 0]
    assert r == pytest.approx(2 * np.tanh(0.7 * X))
    assert numbers.exact().numpy() == pytest.approx(fisher(*HERE))


def test_targets_of_three_kinds():
    model, x = numbers.tiny(*HERE), numbers.inputs().repeat(500, 1)
    likelier = numbers.make_targets("the likelier class", model, numbers.inputs())[:, 0]
    assert (likelier.numpy() == (probability(*HERE) > 0.5)).all()
    for kind, at in (("drawn from the model", HERE), ("drawn from a teacher", (1.5, 3.0))):
        share = numbers.make_targets(kind, model, x).reshape(500, 40).mean(0).numpy()
        assert share == pytest.approx(probability(*at), abs=0.1)


@pytest.mark.parametrize("length", [0.3, 0.01])
def test_divergence_and_its_quadratic_model(length):
    delta = length * np.array([0.6, 0.8])
    there = (HERE[0] + delta[0], HERE[1] + delta[1])
    assert numbers.step(length).numpy() == pytest.approx(delta)
    assert numbers.divergence(numbers.step(length)) == pytest.approx(
        (kl(HERE, there), kl(there, HERE))
    )
    assert numbers.quadratic_ratio(length) == pytest.approx(
        delta @ fisher(*HERE) @ delta / 2 / kl(HERE, there)
    )
    assert numbers.swap(length) == pytest.approx(100 * (1 - kl(there, HERE) / kl(HERE, there)))


def test_the_table_of_the_divergence_shows_what_it_is_given():
    table = numbers.divergence_table(lambda delta: (delta.norm(), delta[0], 3, 4))
    assert [row[:3] for row in table.rows] == [
        ["0.3", "0.300", "0.180"],
        ["0.1", "0.100", "0.0600"],
        ["0.03", "0.0300", "0.0180"],
        ["0.01", "0.0100", "0.00600"],
    ]


def test_the_natural_gradient_points_where_the_loss_falls_most():
    gradient, natural = numbers.gradients()
    assert gradient.numpy() == pytest.approx(GRADIENT)
    assert natural.numpy() == pytest.approx(np.linalg.solve(fisher(*HERE), GRADIENT))
    degrees = [math.degrees(math.atan2(-v[1], -v[0])) % 360 for v in (natural, gradient)]
    assert [numbers.natural_angle(), numbers.plain_angle()] == [round(d) for d in degrees]
    assert abs(numbers.best_angle() - numbers.natural_angle()) <= 1
    assert abs(numbers.plain_angle() - numbers.natural_angle()) > 45


def test_whole_degrees():
    turns = {(1.0, 0.0): 0, (0.0, 1.0): 90, (-1.0, 0.0): 180, (0.0, -1.0): 270, (1.0, -1e-3): 0}
    for direction, degrees in turns.items():
        assert numbers.angle(torch.tensor(direction)) == degrees


def test_every_step_spends_the_same_divergence():
    def loss(v, w):
        p = probability(v, w)
        return -float(np.mean(TARGETS * np.log(p) + (1 - TARGETS) * np.log(1 - p)))

    F = fisher(*HERE)
    for degree in (0, 20, 90, 309):
        unit = np.array([math.cos(math.radians(degree)), math.sin(math.radians(degree))])
        delta = unit * math.sqrt(2 * 1e-7 / (unit @ F @ unit))
        fall = loss(*HERE) - loss(HERE[0] + delta[0], HERE[1] + delta[1])
        assert numbers.falls()[degree] == pytest.approx(fall, rel=1e-6)
    best, plain = numbers.falls().max(), numbers.falls()[numbers.plain_angle()]
    assert numbers.lost() == pytest.approx(100 * (best - plain) / best)


@pytest.mark.parametrize("natural", [False, True])
def test_how_far_two_parametrizations_end_apart(natural):
    B = np.diag([HERE[0], 10.0])
    one, other = GRADIENT, B.T @ GRADIENT
    if natural:
        one, other = (
            np.linalg.solve(M, g) for M, g in ((fisher(*HERE), one), (B @ fisher(*HERE) @ B, other))
        )
    ab = np.array([math.log(HERE[0]), HERE[1] / 10]) - 0.01 * other
    end = np.array(HERE) - 0.01 * one
    gap = np.linalg.norm(end - [math.exp(ab[0]), 10 * ab[1]]) / np.linalg.norm(0.01 * one)
    assert numbers.apart(0.01, natural) == pytest.approx(gap)
    assert (numbers.apart(0.001, natural) < 0.2 * gap) == natural


def test_the_table_of_parametrizations_shows_what_it_is_given():
    table = numbers.apart_table(lambda rate: 2 * rate, lambda rate: rate)
    assert table.rows[0] == ["0.1", "0.200", "0.100"] and len(table.rows) == 3


def test_the_jacobian_by_its_formula():
    assert numbers.jacobian().numpy() == pytest.approx(jacobian(*HERE))


def test_what_the_matrix_takes():
    rows = numbers.price_table().rows
    assert rows[0] == ["2", "4", "16 bytes", "less than 1 ms"]
    assert rows[2] == ["100,000", "10¹⁰", "40 GB", "5.6 minutes"]
    assert rows[3][2:] == ["400 TB", "11 years"]


def test_damping_brings_the_dependence_on_coordinates_back():
    B = np.diag([HERE[0], 10.0])
    one = np.linalg.solve(fisher(*HERE) + 0.1 * np.eye(2), GRADIENT)
    other = np.linalg.solve(fisher(*HERE) + 0.1 * np.linalg.inv(B @ B.T), GRADIENT)
    gap = np.linalg.norm(one - other) / np.linalg.norm(one)
    assert numbers.damped_apart(0.1) == pytest.approx(gap)
    assert numbers.damped_apart(0.0) < 1e-12
    limit = np.linalg.norm(GRADIENT - B @ B.T @ GRADIENT) / np.linalg.norm(GRADIENT)
    assert numbers.damped_apart(1e9) == pytest.approx(limit, rel=1e-6)


def test_the_loss_above_its_minimum_is_the_divergence_from_the_teacher():
    for place in ((2.0, 1.0), (0.7, 2.0), (1.5, 3.0)):
        loss, gradient, F = numbers.look(*place)
        assert loss == pytest.approx(kl(numbers.TEACHER, place), abs=1e-12)
        assert pytest.approx(fisher(*place)) == F
        for k in range(2):
            delta = 1e-6 * np.eye(2)[k]
            ends = [numbers.look(*(place + sign * delta))[0] for sign in (1, -1)]
            assert gradient[k] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-8)


def test_damping_bounds_the_step_where_the_metric_is_singular():
    for w in (0.1, 0.01):
        assert 9 < numbers.damped_length(w / 10, 0.0) / numbers.damped_length(w, 0.0) < 11
    _, gradient, _ = numbers.look(HERE[0], 0.01)
    assert numbers.damped_length(0.01, 0.01) < np.linalg.norm(gradient) / 0.01
    assert numbers.damped_length(0.001, 0.01) == pytest.approx(
        numbers.damped_length(0.01, 0.01), rel=0.01
    )


def coordinates(v, w):
    return np.array([np.log(v), w / 10])


@pytest.mark.parametrize("rule", ["gradient", "natural"])
def test_one_step_of_each_rule_in_both_coordinates(rule):
    v, w = numbers.START
    _, g, F = numbers.look(v, w)
    B = np.diag([v, 10.0])
    natural = rule == "natural"
    step = np.linalg.solve(F, g) if natural else g
    assert numbers.walk(rule, 0.1, 1)[0][1] == pytest.approx(np.array([v, w]) - 0.1 * step)
    step = np.linalg.solve(B @ F @ B, B @ g) if natural else B @ g
    end = numbers.walk(f"{rule}, other", 0.1, 1)[0][1]
    assert coordinates(*end) == pytest.approx(coordinates(v, w) - 0.1 * step)


def test_a_unit_of_w_scales_its_part_of_the_gradient_by_the_square():
    v, w = numbers.START
    _, g, _ = numbers.look(v, w)
    b = w / 3 - 0.1 * 3 * g[1]
    assert numbers.walk("gradient", 0.1, 1, 1, 3.0)[0][1] == pytest.approx([v - 0.1 * g[0], 3 * b])


def test_a_stale_matrix_is_that_of_the_last_renewal():
    fresh, stale = (numbers.walk("natural", 0.1, 3, period)[0] for period in (1, 2))
    assert (fresh[:2] == stale[:2]).all()
    old, (_, g, _) = numbers.look(*stale[0])[2], numbers.look(*stale[1])
    assert stale[2] == pytest.approx(stale[1] - 0.1 * np.linalg.solve(old, g))
    _, g, F = numbers.look(*stale[2])
    assert stale[3] == pytest.approx(stale[2] - 0.1 * np.linalg.solve(F, g))


def test_only_the_natural_paths_agree():
    assert numbers.paths_apart("natural") < 1e-3
    assert numbers.paths_apart("gradient") > 0.05
    for rule in numbers.FINE:
        assert numbers.look(*numbers.path(rule)[-1])[0] < numbers.CLOSE


def test_arrivals():
    losses = numbers.walk("natural", 0.3, 1000)[1]
    assert numbers.arrival("natural", 0.3) == len(losses) - 1
    assert losses[-1] < numbers.CLOSE <= losses[-2]
    assert numbers.arrival("gradient", 100.0) is None
    assert numbers.fewest("natural") == min(
        steps for rate in numbers.RATES if (steps := numbers.arrival("natural", rate))
    )
    assert numbers.fewest("gradient", 30.0) > 10 * numbers.fewest("gradient", 3.0)


def test_six_matrices_by_their_formulas():
    six = numbers.six_matrices(10, "drawn from a teacher", 2.0)
    J, y = jacobian(*HERE), probability(*HERE)
    scores = (y - TARGETS)[:, None] * J
    U = scores.T @ scores / len(X)
    for name in ("exact", "kl", "gauss_newton"):
        assert six[name].numpy() == pytest.approx(fisher(*HERE), abs=1e-12), name
    assert six["empirical"].numpy() == pytest.approx(U)
    assert six["covariance"].numpy() == pytest.approx(U - np.outer(GRADIENT, GRADIENT))
    assert 0 < numbers.difference(six["monte_carlo"], six["exact"]) < 0.2
    gaps = numbers.six_gaps(10, "drawn from a teacher", 2.0)
    F = fisher(*HERE)
    assert gaps["exact"] == gaps["kl"] == gaps["gauss_newton"] == 0
    expected = np.linalg.norm(U - F) / np.linalg.norm(F)
    assert gaps["empirical"] == pytest.approx(expected)
    assert numbers.gap("empirical") == pytest.approx(100 * expected)


def test_the_exact_curve_is_the_broad_pale_one():
    plane = figures.draw_six(10, "drawn from a teacher", 2.0).axes[0]
    curves = dict(zip(figures.NAMES, plane.lines, strict=True))
    assert {name: line.get_alpha() for name, line in curves.items() if line.get_alpha() != 1} == {
        "exact": 0.5
    }
    assert max(curves, key=lambda name: curves[name].get_linewidth()) == "exact"


def test_entries_and_table():
    M, F = torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.tensor([[1.0, 2.0], [2.0, 2.0]])
    assert numbers.entries(M) == [1, 2, 4]
    assert numbers.difference(M, F) == pytest.approx(2 / math.sqrt(13))
    assert numbers.difference(F, F) == numbers.difference(F * (1 + 1e-13), F) == 0
    table = numbers.matrix_table({"M": M}, F, "caption")
    assert table.rows == [["M", "1.00", "2.00", "4.00", "0.555"]]


def test_the_error_is_the_root_of_the_mean_square():
    F = numbers.exact()
    assert numbers.rms_error([F, F * 1.2, F * 0.6]) == pytest.approx(math.sqrt(0.2 / 3))


def test_errors_fall_with_the_root_of_the_count_and_the_teachers_do_not():
    for name in ("monte_carlo", "model"):
        assert numbers.error_power(name) == pytest.approx(-0.5, abs=0.05)
        powers = math.log10(numbers.error(name, 100) / numbers.error(name, 1)) / 2
        assert numbers.error_power(name) == pytest.approx(powers)
    assert numbers.error("monte_carlo", 1) == pytest.approx(numbers.error("model", 1))
    assert numbers.teacher_left() == 100 * numbers.error("teacher", 100)
    teacher = probability(1.5, 3.0)
    y, J = probability(*HERE), jacobian(*HERE)
    weight = teacher * (1 - y) ** 2 + (1 - teacher) * y**2
    left = np.linalg.norm((J.T * weight) @ J / 40 - fisher(*HERE)) / np.linalg.norm(fisher(*HERE))
    assert numbers.error("teacher", 100) == pytest.approx(left, rel=0.02)
    table = numbers.error_table()
    assert [row[0] for row in table.rows] == ["1", "10", "100"] and table.rows[0][1] == "0.253"


def test_a_confident_model():
    y, J = probability(0.7, 8.0), jacobian(0.7, 8.0)
    right = np.maximum(y, 1 - y)
    U, F = ((J.T * weight) @ J / 40 for weight in ((1 - right) ** 2, y * (1 - y)))
    p, ratio, hessian = numbers.confident(8.0)
    assert p == pytest.approx(right.mean())
    assert ratio == pytest.approx(np.trace(U) / np.trace(F))
    assert (numbers.sure_probability(), numbers.sure_trace()) == (p, ratio)
    assert (numbers.sure_too_long(), numbers.sure_hessian()) == (1 / ratio, hessian)
    assert numbers.confident(4.0)[2] > hessian > 0
    rows = numbers.confidence_table().rows
    assert [row[0] for row in rows] == ["1", "2", "4", "8"] and rows[-1][2] == "0.106"


def test_the_figure_draws_every_matrix_under_its_name():
    plane, bars = figures.SIX.draw(10, "drawn from a teacher", 2.0).axes
    six = numbers.six_matrices(10, "drawn from a teacher", 2.0)
    by_colour = {line.get_color(): line.get_xydata() for line in plane.get_lines()}
    for name, (text, colour, _, _) in figures.NAMES.items():
        points, M = by_colour[colour], six[name].numpy()
        lengths = np.einsum("ni,ij,nj->n", points, M, points) / 2
        assert lengths == pytest.approx(np.full(200, figures.LEVEL), rel=1e-6), name
        assert any(label.get_text() == text for label in bars.texts)


def test_the_surface_of_divergences_is_the_sum_over_labels():
    dv, dw = np.array([[0.0, 0.3], [-0.2, 0.1]]), np.array([[0.0, -0.1], [0.4, 0.2]])
    found = figures.kl_surface(1.4, 3.6, dv, dw)
    right = [
        [kl((1.4, 3.6), (1.4 + a, 3.6 + b)) for a, b in zip(*rows, strict=True)]
        for rows in zip(dv, dw, strict=True)
    ]
    assert found == pytest.approx(np.array(right), rel=1e-9, abs=1e-15)
