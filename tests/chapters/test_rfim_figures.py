"""The figures of the chapter on relative Fisher metrics: which number goes into which curve."""

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection

from natcompanion.chapters.figures import rfim as figures
from natcompanion.chapters.numbers import rfim as numbers


def lines(drawing) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the named curves of a drawing's last panel."""
    found = drawing.axes[-1].get_lines()
    return {
        line.get_label(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for line in found
        if not line.get_label().startswith("_")
    }


def test_steps_are_drawn_under_their_own_names():
    plane = numbers.neuron_steps("tanh", 1.0, 0.01, 0.1, 0.0)
    curves = lines(figures.draw_neuron("tanh", 1.0, 0.01))
    assert list(curves) == list(numbers.METHODS)
    for name, (x, y) in curves.items():
        step = plane.steps[name].tolist()
        assert [x[1] - x[0], y[1] - y[0]] == pytest.approx(step)


def test_a_sample_is_drawn_as_large_as_its_weight_in_the_metric():
    plane = numbers.neuron_steps("sigmoid", 1.0, 0.01, 0.1, 0.0)
    panel = figures.draw_neuron("sigmoid", 1.0, 0.01).axes[0]
    dots = [marks for marks in panel.collections if isinstance(marks, PathCollection)]
    sizes = np.concatenate([marks.get_sizes() for marks in dots])
    brightest = 0.25  # of a sigmoid: s (1 - s) at one half
    right = 8 + 60 * plane.nu.numpy() / brightest
    assert sorted(sizes) == pytest.approx(sorted(right), rel=0.01)


def test_the_loss_around_the_weights_is_that_of_the_bent_relu():
    panel = figures.draw_neuron("relu", 1.0, 0.01, omega=0.5, iota=0.2).axes[-1]
    x, y = (torch.linspace(*limits, 60).double() for limits in (panel.get_xlim(), panel.get_ylim()))
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    shares = [0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7]
    (levels,) = [np.asarray(c.levels) for c in panel.collections if hasattr(c, "levels")]
    for omega, iota, alike in ((0.5, 0.2, True), (0.2, 0.5, False)):
        loss = numbers.plane_loss(grid, "relu", omega, iota)
        assert np.allclose(levels, np.quantile(loss, shares), rtol=1e-4) == alike


def test_the_picture_of_a_layer_is_its_metric_with_its_zeros():
    for layer, inputs, rank in (("tanh", 1, 3), ("tanh", 3, 9), ("softmax", 1, 2)):
        metric, spectrum = figures.draw_layer(layer, inputs).axes
        assert np.array_equal(metric.images[0].get_array(), numbers.layer_metric(layer, inputs))
        above, zero = spectrum.get_lines()
        assert (len(above.get_xdata()), len(zero.get_xdata())) == (rank, 9 - rank)
    assert "6 of 9 eigenvalues" in figures.describe_layer("softmax", 100)


def test_the_slope_and_nu_are_drawn_under_their_own_names():
    curves = lines(figures.draw_slope("elu", 0.7))
    _, slope, nu = numbers.slope_and_nu("elu", 0.7)
    assert np.array_equal(curves["slope (the chain rule)"][1], slope)
    assert np.array_equal(curves[r"$\nu$ (as printed)"][1], nu)
    assert "are equal" in figures.describe_slope("hard relu", 1.0)
    assert "differ by up to 1.0." in figures.describe_slope("hard relu", 0.7)


def test_ranks_and_their_bounds_are_told_apart():
    found = numbers.ranks("second", "relu")
    curves = lines(figures.draw_ranks("second", "relu"))
    assert curves["RFIM of the layer"][1].tolist() == found.rfim
    assert curves["its Fisher block"][1].tolist() == found.block
    assert curves["bound $n$, or all parameters"][1].tolist() == found.block_bound


@pytest.mark.parametrize("pair", figures.PAIRS)
def test_curves_of_figure_4_and_of_damping(pair):
    problem = "7 x 7 pixels, 800"
    for name, (x, y) in lines(figures.draw_figure4(problem, pair)).items():
        epochs, mean, *_ = numbers.figure4_curves(problem, pair, name)
        assert (x == epochs + 1).all() and (y == mean).all()
    for name, (_, y) in lines(figures.draw_damping(0.01, 1.0, pair)).items():
        excess = numbers.natural_curve(name, 0.01, 1.0, pair) - numbers.least_loss(pair)
        assert y == pytest.approx(excess.numpy())


@pytest.mark.parametrize("axis, unit", [("iterations", 1.0), ("seconds", 1e-3)])
def test_curves_of_figure_5(axis, unit):
    names = {text: name for name, text in numbers.TRAINERS.items()}
    curves = lines(figures.draw_figure5("digits", axis, "plain"))
    assert [names[text] for text in curves] == ["sgd", "adam", "rngd", "fast"]
    for text, (x, y) in curves.items():
        name = names[text]
        scale = unit * (numbers.milliseconds("digits", name) if axis == "seconds" else 1)
        assert x == pytest.approx(scale * numbers.iterations("digits", name))
        assert (y == numbers.curve("digits", name)[0]).all()


def test_sentences_name_floors_divergence_and_jumps():
    assert "NGD the floor of 1e-12" in figures.describe_figure4(
        "28 x 28 pixels, 800", "3 against 5"
    )
    assert "jumps at 0 not at all" in figures.describe_nu(0.1, 0.0, 1.0)
    assert "by 0.75" in figures.describe_nu(0.1, 0.0, 0.5)
    assert "has 0.250 at 0" in figures.describe_nu(0.1, 0.0, 0.5)
    told = figures.describe_divergence(2.3, 1.0)
    assert "natural gradient beyond a million" in told and "gradient is at" in told
    texts = [figures.describe_rngd(*point) for point in settings()]
    assert sum("diverges" in text for text in texts) == numbers.settings_diverge() > 0
    assert "WhiteNGD after 8 epochs" in figures.describe_damping(0.01, 1.0, "3 against 5")


def settings() -> list[tuple]:
    """Return every choice of RNGD's settings."""
    grid = figures.RNGD.grid
    return [(e, t, d) for e in grid["eps"] for t in grid["period"] for d in grid["decay"]]
