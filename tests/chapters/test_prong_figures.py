"""What the figures of the PRONG chapter show: the right curve is heavy, and each has its method's
colour and numbers.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from natcompanion.chapters.figures import prong as figures
from natcompanion.chapters.numbers import prong as numbers
from natcompanion.chapters.numbers.prong import whitened_layer as layer


def lines(panel: Axes) -> dict[str, Line2D]:
    """Return the named curves of a panel."""
    return {line.get_label(): line for line in panel.lines if line.get_label()[0] != "_"}


def shows(line: Line2D, expected: np.ndarray) -> bool:
    """Return whether a curve has these heights."""
    return np.allclose(line.get_ydata(), expected, rtol=1e-12)


def test_the_chosen_epsilon_and_interval_are_heavy():
    above, below = figures.draw_sensitivity(eps=1e-2, T="10", rate=1e-3).axes
    for eps in figures.EPS:
        line = lines(above)[f"ε = {eps:g}"]
        assert shows(line, numbers.sensitivity_curve(eps, "10", "whitened", 1e-3))
        assert (line.get_linewidth() > 3) is (eps == 1e-2)
    heavy = [line for line in below.lines if line.get_linewidth() > 3]
    assert [line.get_linestyle() for line in heavy] == ["-", "--"]
    for line, start in zip(heavy, ("whitened", "fan-in"), strict=True):
        assert shows(line, numbers.sensitivity_curve(1e-2, "10", start, 1e-3))


def test_diverged_runs_are_said_to_be_unstable():
    text = figures.describe_sensitivity(eps=1e-4, T="100", rate=1e-2)
    assert "above 20 (unstable)" in text and "best ε at this T and step size is 0.01" in text


def test_curves_have_the_colour_and_the_numbers_of_their_method():
    panels = figures.draw_autoencoder("whitened").axes
    found = lines(panels[0])
    assert set(found) == {"SGD", "PRONG", "PRONG+"}
    for method in ("sgd", "prong", "prong+"):
        line = found[figures.METHODS[method]]
        assert line.get_color() == figures.COLORS[method]
        for panel, cost in zip(panels, ("updates", "seconds"), strict=True):
            curve = numbers.autoencoder_curves(method, "whitened", cost)
            shown = lines(panel)[figures.METHODS[method]]
            assert shows(shown, curve.middle) and np.allclose(shown.get_xdata(), curve.x)
    assert set(lines(figures.draw_autoencoder(figures.BEST).axes[0])) == {
        *set(found),
        "RMSprop",
        "batch normalization",
    }


def test_condition_numbers_are_absolute_above_and_relative_below():
    panels = figures.draw_conditions("tail").axes
    for method in numbers.TRAINED:
        for panel, relative in zip(panels, (False, True), strict=True):
            curve = numbers.condition_curves("tail", method, relative)
            assert shows(lines(panel)[figures.METHODS[method]], curve.middle)


def test_full_runs_against_updates_and_seconds():
    panels = figures.draw_paper().axes
    for method in numbers.paper_runs():
        for panel, cost in zip(panels, ("updates", "seconds"), strict=True):
            spent, errors = numbers.paper_curves(method, cost)
            line = lines(panel)[figures.METHODS[method]]
            assert shows(line, errors) and np.allclose(line.get_xdata(), spent)


def test_intervals_of_the_starts_are_drawn_as_they_are():
    (panel,) = figures.draw_periods().axes
    for container, start in zip(panel.containers, ("whitened", "fan-in"), strict=True):
        middle, _, (bars,) = container.lines
        found = [numbers.period_error(T, start) for T in figures.PERIODS]
        assert container.get_label() == f"{start} start"
        assert shows(middle, [error.mean for error in found])
        ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
        assert np.allclose(ends, [[error.low, error.high] for error in found])


def test_bars_end_at_the_cost_of_an_update():
    (panel,) = figures.draw_time().axes
    bars = numbers.cost_bars()
    names = [label.get_text() for label in panel.get_yticklabels()]
    assert names == list(reversed(bars))
    for row, name in enumerate(names):
        right = max(
            p.get_x() + p.get_width() for p in panel.patches if round(p.get_y() + 0.4) == row
        )
        assert np.isclose(right, sum(bars[name].values()))


def test_settings_tried_are_drawn_below_the_cut():
    for panel, method in zip(figures.draw_backward().axes, numbers.COMPARED, strict=True):
        assert panel.get_title(loc="left") == figures.METHODS[method]
        for second, points in numbers.searched(method).items():
            assert shows(lines(panel)[f"{second:g}"], np.minimum([e for _, e in points], 50))
        assert numbers.mean_image(method) in [line.get_ydata()[0] for line in panel.lines]


def test_the_layer_is_drawn_with_the_curves_and_the_points_of_the_runs():
    panels = figures.draw_layer(T=20, step=19).axes
    for method, panel in (("prong", panels[0]), ("plain", panels[1])):
        looks = layer.learned(method, 20)
        z = looks[19][3].numpy()
        drawn = np.concatenate([np.array(line.get_data()).T for line in panel.lines[1:3]])
        assert np.allclose(np.sort(drawn, axis=0), np.sort(z, axis=0))
        for chart, place in ((panels[2], 0), (panels[3], 1)):
            line = lines(chart)[layer.METHODS[method]]
            assert line.get_color() == figures.LAYER_METHODS[method]
            assert shows(line, np.array([float(look[place]) for look in looks]))
    assert figures.LAYER_FRAMES.start["T"] == 20


def test_the_layer_is_described_with_its_numbers():
    text = figures.describe_layer(T=20, step=20)
    assert (
        "just after a whitening, the condition number of the second layer by Eq. 5 is 1.11" in text
    )
    assert "and 132 with the plain gradient" in text
