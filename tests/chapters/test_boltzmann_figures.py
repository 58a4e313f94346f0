"""The figures of the Boltzmann chapter: what the walk over all declared figures does not see."""

import numpy as np
import pytest

from natcompanion.chapters.figures import boltzmann as figures
from natcompanion.chapters.numbers import boltzmann as numbers
from natcompanion.chapters.show import digits


def lines(figure, panel=0):
    """Return the lines of a panel by their names."""
    return {line.get_label(): line for line in figure.axes[panel].get_lines()}


def test_mosaic_keeps_each_filter():
    W = np.arange(9 * 10).reshape(9, 10)
    picture = figures.mosaic(W)
    assert picture.shape == (10, 25)
    assert np.array_equal(picture[6:9, 1:4], W[:, 5].reshape(3, 3))
    assert set(np.delete(picture, [1, 2, 3, 6, 7, 8], 0).ravel()) == {99}


def test_a_cell_is_drawn_heavy_and_plain_sgd_dotted():
    point = {"v": 0.001, "p": 0.05, "gamma": "at most 1"}
    figure = figures.THRESHOLD.draw(**point)
    ours, plain = numbers.cell(0.001, 0.05), numbers.cell(0.001, 0.05, numbers.PLACEBO)
    for panel, key, name in ((0, "norm", "‖cov(v, h)‖²"), (1, "test_error", "test")):
        drawn = lines(figure, panel)
        of_cell, dotted = drawn[name], drawn[f"{name}, plain SGD"]
        assert np.array_equal(of_cell.get_ydata(), numbers.cell_curves(ours, key)[0])
        assert np.array_equal(dotted.get_ydata(), numbers.cell_curves(plain, key)[0])
        assert (of_cell.get_linestyle(), dotted.get_linestyle()) == ("-", ":")
    assert numbers.cell_curves(ours, "test_error")[0, -1] > 50
    assert "γ is 1." in figures.THRESHOLD.describe(**point)


def test_the_spectrum_is_described_by_numbers_of_its_own_machine():
    text = figures.describe_spectrum(scale=0.5, bias=2.0)
    for value in (numbers.squared_norm(0.5, 2.0), numbers.squared_distance_to_identity(0.5, 2.0)):
        assert f" {digits(value)}" in text
    assert digits(numbers.squared_norm(2.0, 0.5)) not in text


def test_the_cap_of_the_slider_is_the_cap_of_the_runs():
    text = figures.THRESHOLD.describe(v=0.001, p=0.05, gamma="at most 0.5")
    assert "γ is 0.5." in text and "test error in % 3" in text


def test_a_held_gamma_is_drawn_beside_gamma_zero():
    drawn = lines(figures.HELD.draw(gamma=0.5, penalty="true gradient"), 1)
    for name, gamma in (("train", 0.5), ("train, plain SGD", 0.0)):
        curve = numbers.cell_curves(numbers.held_cell(gamma, "exact"), "train_error")[0]
        assert np.array_equal(drawn[name].get_ydata(), curve)


def test_each_method_has_its_own_curve_and_colour():
    figure = figures.LEARNING.draw()
    drawn = lines(figure)
    assert len({line.get_color() for line in drawn.values()}) == len(numbers.METHODS)
    for method, name in numbers.METHODS.items():
        assert np.array_equal(drawn[name].get_ydata(), numbers.learning_band(method).middle)
    (x, *_), (seconds, *_) = (lines(figure, panel)["SGD"].get_xdata() for panel in (0, 1))
    assert x == 1 and seconds == 0.01
    assert figure.axes[0].get_xscale() == "log"


def test_intervals_of_gains_stand_beside_the_name_of_the_method():
    panel = figures.HELDOUT.draw().axes[0]
    names = [label.get_text() for label in panel.get_yticklabels()]
    middles = {
        line.get_ydata()[0]: line.get_xdata()[0]
        for line in panel.get_lines()
        if line.get_marker() == "o"
    }
    for method, name in list(numbers.SEARCHED.items())[1:]:
        assert middles[names.index(name)] == pytest.approx(numbers.gain(method).mean)


def test_a_number_of_the_grid_is_that_of_its_row_and_column():
    panel = figures.GRID.draw().axes[0]
    found = {text.get_position(): text.get_text() for text in panel.texts}
    i, j = 1, 5  # threshold 0.001, fraction 0.5
    mean = numbers.errors()[:, numbers.CELLS.index((0.001, 0.5))].mean()
    assert found[(j, i)] == f"{mean:.0f}"
    assert len(found) == 35


def test_figure_3_draws_every_cell_of_every_seed():
    left, right = figures.STOPPING.draw().axes
    for panel, key in ((left, "error"), (right, "hoyer")):
        plain, ours = panel.get_lines()[:2]
        for line, reading in ((plain, numbers.PLACEBO), (ours, "as printed")):
            points = numbers.stopping(reading)
            assert np.array_equal(line.get_ydata(), getattr(points, key).ravel())
            assert np.array_equal(line.get_xdata(), np.maximum(points.kept.ravel(), 1))
