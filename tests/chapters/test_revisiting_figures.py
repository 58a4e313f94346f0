"""What the figures of the revisiting chapter draw: each line holds the numbers its label says."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from natcompanion.chapters.figures import revisiting as figures
from natcompanion.chapters.numbers import revisiting as numbers


def lines(figure: Figure, panel: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the lines of a panel by their labels."""
    drawn = figure.axes[panel].get_lines()
    return {
        line.get_label(): (np.array(line.get_xdata()), np.array(line.get_ydata())) for line in drawn
    }


def test_paths_carry_the_names_of_their_methods():
    drawn = lines(figures.FIGURE1.draw(rate=0.1, damping=0.01, origin="(-1, 3)"))
    for name, path in numbers.paths(0.1, 0.01, (-1.0, 3.0)).items():
        w, b = path[(path.abs() < 8).all(1)].T
        x, y = drawn[numbers.METHODS[name]]
        assert np.allclose(x, b) and np.allclose(y, w)
    assert len({tuple(y) for _, y in drawn.values()}) >= 4


def test_the_live_figure_is_the_same_one():
    point = {"rate": 0.1, "damping": 0.01}
    told = figures.FIGURE1_LIVE.describe(**point, w=1.0, b=-3.0)
    assert told == figures.FIGURE1.describe(**point, origin="(1, -3)")
    assert told != figures.FIGURE1.describe(**point, origin="(-1, 3)")


def test_surfaces_are_numbered_and_their_arrows_have_the_colours_of_the_methods():
    drawing = figures.FIGURE1.draw(rate=0.5, damping=0.1, origin="(1, -3)")
    plane, *surfaces = drawing.axes
    path = numbers.path("natural", (1.0, -3.0), 0.5, 0.1)
    marks = {n: text.xy for text in plane.texts for n in text.get_text().split(", ")}
    assert [text.get_text() for text in plane.texts] == ["1", "2", "3, 4"]  # one place, one mark
    for number, (stop, panel) in enumerate(zip(numbers.STOPS, surfaces, strict=True), start=1):
        first = numbers.STOPS[2] if number == 4 else stop
        assert np.allclose(marks[str(number)], path[first].flip(0))
        assert (path[stop] - path[first]).norm() < 0.6
        assert panel.get_title() == f"KL at {number}"
        arrows = {text.arrow_patch.get_facecolor(): np.array(text.xy) for text in panel.texts}
        assert len(arrows) == len(panel.texts) == 4
        assert all(np.hypot(*tip) == pytest.approx(0.8) for tip in arrows.values())


def test_solvers_carry_their_names():
    drawn = lines(figures.SOLVERS.draw(batch="another", damping=0.0))
    lengths = numbers.step_lengths("another", 0.0)
    for name in figures.STYLES:
        assert np.allclose(drawn[name][1], np.minimum(lengths[name], 1e30))
    assert drawn["shortest exact solution"][1][0] == lengths["exact"][0]


def test_damping_ratio_and_loss_stand_in_their_panels():
    drawing = figures.DAMPING.draw(eta=1.0, rule="Martens", first=0.3)
    run = numbers.damping_run(1.0, "Martens", 0.3)
    for panel, key in zip(drawing.axes, ("damping", "rho", "excess"), strict=True):
        shown = np.clip(run[key], -0.5, 1.5) if key == "rho" else run[key]
        assert np.allclose(panel.get_lines()[0].get_ydata(), shown)


@pytest.mark.parametrize("where", ["digits", "paper"])
def test_curves_carry_the_names_of_their_columns(where):
    drawing = {"digits": figures.CURVES, "paper": figures.PAPER_CURVES}[where].draw()
    for panel, key in enumerate(("train", "test")):
        drawn = lines(drawing, panel)
        assert len(drawn) == len(numbers.columns(where)) == 5
        for column in numbers.columns(where):
            x, y = drawn[numbers.COLUMNS[column]]
            updates, values = numbers.curve(where, column, key)
            assert x.tolist() == updates and y.tolist() == values.tolist()


@pytest.mark.parametrize("where", ["digits", "fashion"])
def test_folds_and_means_stand_in_the_row_of_their_column(where):
    panel = {"digits": figures.TABLE1, "fashion": figures.FASHION}[where].draw().axes[0]
    rows = {text.get_text(): row for row, text in enumerate(panel.get_yticklabels())}
    marked = [line for line in panel.get_lines() if line.get_marker() in ("o", ".")]
    dots = {round(float(line.get_ydata()[0]), 2): line for line in marked}
    for column in numbers.columns(where):
        row = rows[numbers.COLUMNS[column]]
        folds, mean = dots[row + 0.17], dots[row]
        assert folds.get_xdata().tolist() == numbers.tests(where, column).tolist()
        assert mean.get_xdata()[0] == numbers.mean_test(where, column).mean
        assert folds.get_color() == mean.get_color() == figures.COLUMNS[column]
    ends = [path for bars in panel.collections for path in bars.get_segments()]
    low = numbers.mean_test(where, numbers.columns(where)[-1])
    assert ends[0][:, 0] == pytest.approx([low.low, low.high])


def test_orders_carry_the_names_of_their_methods():
    drawing = figures.ORDER.draw()
    drawn = lines(drawing)
    for method, text in (("sgd", "minibatch SGD"), ("natural", "natural gradient")):
        band = numbers.variance_band(method)
        assert drawn[text][1] == pytest.approx([tenth.mean for tenth in band])
        assert drawn[text][0].tolist() == list(range(1, 11))
    area = drawing.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    sgd = numbers.variance_band("sgd")
    assert area.min() == pytest.approx(min(tenth.low for tenth in sgd))
    assert area.max() == pytest.approx(max(tenth.high for tenth in sgd))


def test_distances_from_the_metric_carry_their_names():
    drawing = figures.CONVERGENCE.draw()
    sampled, certain = lines(drawing, 0), lines(drawing, 1)
    for drawn, text, key in (
        (sampled, "U", "sampled"),
        (certain, "U", "certain_empirical"),
        (certain, "Hessian", "certain_hessian"),
    ):
        assert drawn[text][1].tolist() == numbers.distance_band(key)[1].tolist()
        assert drawn[text][0].tolist() == numbers.distance_points(key)


def test_every_sentence_names_values_beside_the_right_words():
    table = figures.TABLE1.describe()
    for column in numbers.columns("digits"):
        assert f"{numbers.COLUMNS[column]} {numbers.mean_test('digits', column)}" in table
    assert table.startswith("Test error in per cent, mean and 95 % interval over 5 splits")
    assert figures.CURVES.describe().startswith("Median final")
    assert figures.PAPER_CURVES.describe().startswith("Final training loss")
    assert "MINRES-QLP 704 and 111" in figures.SOLVERS.describe(batch="another", damping=0.0)
    assert "46 % lies" in figures.SOLVERS.describe(batch="another", damping=0.0)


def test_rivals_stand_under_their_names_in_both_panels():
    above, below = figures.RIVALS.draw().axes
    names = {text.get_text(): row for row, text in enumerate(below.get_yticklabels())}
    for method, name in numbers.RIVALS.items():
        (drawn,) = (line for line in above.get_lines() if line.get_label() == name)
        x, losses = numbers.rival_curve(method)
        assert drawn.get_xdata().tolist() == x[1:].tolist()
        assert drawn.get_ydata().tolist() == losses[1:].tolist()
        dots = [
            line
            for line in below.get_lines()
            if line.get_marker() == "." and line.get_ydata()[0] == names[name] + 0.2
        ]
        assert [line.get_xdata().tolist() for line in dots] == [
            numbers.rival_tests(method).tolist()
        ]
        assert dots[0].get_color() == drawn.get_color() == figures.LINES[method][0]


def test_falls_saddle_and_networks_are_those_of_the_numbers():
    fell = numbers.falls()
    drawn = lines(figures.FALLS.draw())
    assert drawn["natural gradient"][0].tolist() == [1, 1]
    assert drawn["gradient"][0][0] == fell["gradient"][0]
    saddle = lines(figures.SADDLE.draw())
    for name, path in numbers.saddle_paths().items():
        assert np.allclose(np.c_[saddle[numbers.METHODS[name]]], path)
    x, y = saddle["solutions"]
    assert np.allclose(x * y, 1)
    panel = figures.UNBALANCED.draw().axes[0]
    places = dict(
        zip((t.get_text() for t in panel.get_yticklabels()), panel.get_yticks(), strict=True)
    )
    for line, balanced, doubled in zip(
        panel.get_lines(),
        numbers.unbalanced_ratios("balanced"),
        numbers.unbalanced_ratios("doubled"),
        strict=False,
    ):
        assert line.get_xdata().tolist() == [balanced, doubled]
        assert line.get_ydata().tolist() == [places["balanced"], places["A twice"]]


def test_four_matrices_stand_under_their_names():
    for panel, (name, matrix) in zip(
        figures.MATRICES.draw().axes, numbers.four_matrices().items(), strict=True
    ):
        assert panel.get_title() == name
        assert np.allclose(panel.get_images()[0].get_array(), matrix)
