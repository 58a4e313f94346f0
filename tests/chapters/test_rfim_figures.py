"""The figures of the chapter on relative Fisher metrics, over the whole grid of each."""

import math

import numpy as np
import pytest
import torch
from _pictures import check_drawings, check_texts

from natcompanion import relative
from natcompanion.chapters.figures import rfim as figures

GRIDS = {
    "neuron": (figures.draw_neuron, figures.describe_neuron, figures.NEURON),
    "live neuron": (
        figures.draw_live_neuron,
        figures.describe_live_neuron,
        {
            "activation": ["sigmoid", "relu"],
            "scale": [0.1, 10.0],
            "eps": [1e-8, 1.0],
            "omega": [0.01],
            "iota": [0.0, 0.9],
        },
    ),
    "nu": (figures.draw_nu, figures.describe_nu, figures.NU),
    "ranks": (figures.draw_ranks, figures.describe_ranks, figures.RANKS),
    "figure 4": (figures.draw_figure4, figures.describe_figure4, figures.FIGURE4),
    "damping": (figures.draw_damping, figures.describe_damping, figures.DAMPING),
    "figure 5": (figures.draw_figure5, figures.describe_figure5, figures.FIGURE5),
    "rngd": (figures.draw_rngd, figures.describe_rngd, figures.RNGD),
    "divergence": (figures.draw_divergence, figures.describe_divergence, figures.DIVERGENCE),
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_the_grid_is_described(name):
    _, describe, grid = GRIDS[name]
    check_texts(describe, grid)


@pytest.mark.parametrize("name", GRIDS)
def test_points_of_the_grid_are_drawn_in_one_size_on_white(name):
    draw, _, grid = GRIDS[name]
    check_drawings(draw, grid, every=3)


@pytest.mark.parametrize("activation", figures.NEURON["activation"])
def test_natural_steps_of_the_neuron_are_the_librarys(activation):
    w, weight, g, steps, losses = figures.neuron_steps(activation, 1.0, 1e-9, 0.1, 0.0)
    x, t = figures.plane_samples()
    options = {"omega": 0.1} if activation == "relu" else {}
    full = torch.cat([w, w.new_zeros(1)])
    assert torch.allclose(
        g, relative.neuron_rfim(full, x, activation, **options)[:2, :2], atol=1e-12
    )
    assert torch.allclose(steps["NGD"], steps["WhiteNGD"], atol=1e-6)
    damped = figures.neuron_steps(activation, 1.0, 0.5, 0.1, 0.0)[3]
    assert not torch.allclose(damped["NGD"], damped["WhiteNGD"], atol=1e-3)
    assert losses["GD"] < losses["start"] and weight.shape == t.shape


def test_the_loss_of_the_neuron_has_the_metric_as_expected_curvature():
    """The mean over labels drawn from the model of the score's square is nu, for each
    activation.
    """
    a = torch.tensor([-1.5, 0.3, 2.0], dtype=torch.float64)
    for activation in ("sigmoid", "tanh"):
        p = torch.sigmoid(a if activation == "sigmoid" else 2 * a)
        total = torch.zeros_like(a)
        for label, weight in ((1.0, p), (0.0, 1 - p)):
            score = torch.autograd.functional.jacobian(
                lambda b, name=activation, t=label: figures.neuron_loss(
                    name, b, torch.full_like(b, t), 0.1, 0.0
                ).sum(),
                a,
            )
            total += weight * score.square()
        assert torch.allclose(total, relative.nu(activation, a), atol=1e-12)
    for activation in ("relu", "elu"):
        mean = relative.activate(activation, a, **({"omega": 0.1} if activation == "relu" else {}))
        assert torch.allclose(
            figures.neuron_loss(activation, a, mean, 0.1, 0.0), torch.zeros_like(a), atol=1e-12
        )


def test_elu_jumps_unless_alpha_is_one():
    assert "jumps at 0 not at all" in figures.describe_nu(0.1, 0.0, 1.0)
    assert "by 0.75" in figures.describe_nu(0.1, 0.0, 0.5)
    assert "has 0.250 at 0" in figures.describe_nu(0.1, 0.0, 0.5)


def test_the_natural_gradient_of_a_neuron_diverges_where_the_gradient_converges():
    assert abs(figures.balanced_neuron_path(2.3, 1.0, False)[-1]) < 1e-2
    assert abs(figures.balanced_neuron_path(2.0, 1.0, True)[-1]) < 1e-6
    assert abs(figures.balanced_neuron_path(2.3, 1.0, True)[-1]) > 1e6
    w = torch.tensor(1.3, dtype=torch.float64)
    step = (torch.sigmoid(w) - 0.5) / relative.nu("sigmoid", w)
    path = figures.balanced_neuron_path(1.3, 0.5, True, steps=1)
    assert path[1] == pytest.approx(float(w - 0.5 * step), abs=1e-12)


def test_settings_of_the_text_are_plain_numbers():
    settings = figures.settings()
    assert settings["damping_draws"] == 20 and 2 < settings["stable_raw"] < 3
    assert settings["stable_white"] == pytest.approx(8.0)
    assert all(isinstance(value, (int, float)) for value in settings.values())


def test_epochs_are_counted_or_never():
    record = figures.figure4_record("7 x 7, 800", "3v5")
    assert figures.epochs_text(record, "GD", 1e-3) == "never"
    assert float(figures.epochs_text(record, "WhiteNGD", 1e-3)) < 20


def test_tables_of_figure_5_are_in_the_order_of_the_methods():
    rows = figures.sharp_rows("digits")
    assert [row[0] for row in rows] == [text for text, _, _ in figures.TRAINERS.values()]
    assert all(0 < row[2] < 1 and 0 < row[3] < 1 and row[4].endswith(" %") for row in rows)
    steps = dict(figures.step_rows())
    assert steps["SGD"] == 1 and 1 < steps["RNGD, T = 100"] < steps["RNGD, T = 1"]


def test_numbers_of_figure_5_are_those_of_its_curves():
    numbers = figures.figure5_numbers("digits")
    runs = figures.trainers("digits")["rngd"]
    curves = runs.values("curve").astype(float)
    assert numbers["digits_seeds"] == len(curves) >= 5
    assert numbers["digits_rngd"] == pytest.approx(math.exp(np.log(curves[:, -1]).mean()))
    assert numbers["digits_sgd_budget"] == pytest.approx(numbers["digits_sgd"])
    assert numbers["digits_rngd_budget"] > numbers["digits_rngd"]
    assert (
        numbers["digits_sgd_ratio"] == 1
        and numbers["digits_sgd_reached"] == numbers["digits_steps"]
    )
    share = numbers["digits_steps"] / numbers["digits_rngd_ratio"]
    assert numbers["digits_rngd_reached"] == int(share) < numbers["digits_steps"]
