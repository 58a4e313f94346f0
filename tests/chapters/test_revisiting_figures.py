"""The figures of the revisiting chapter, over the whole grid of each."""

import pytest
from _pictures import check_drawings, check_texts

from natcompanion.chapters.figures import revisiting as figures

GRIDS = {
    "figure1": (figures.draw_figure1, figures.describe_figure1, figures.FIGURE1),
    "live figure1": (
        figures.draw_live_figure1,
        figures.describe_live_figure1,
        {"rate": [0.02, 0.6], "damping": [1e-3, 1.0], "w": [-4.0, 4.0], "b": [-4.0, 0.0, 4.0]},
    ),
    "solvers": (figures.draw_solvers, figures.describe_solvers, figures.SOLVERS),
    "damping": (figures.draw_damping, figures.describe_damping, figures.DAMPING),
    "convergence": (figures.draw_convergence, figures.describe_convergence, {}),
    "table": (
        figures.draw_table1,
        figures.describe_table1,
        {"name": ["revisiting_restricted_mnist"]},
    ),
    "fashion": (figures.draw_table1, figures.describe_table1, {"name": ["revisiting_fashion"]}),
    "order": (figures.draw_order, figures.describe_order, {}),
    "curves": (
        figures.draw_curves,
        figures.describe_curves,
        {"name": ["revisiting_restricted_mnist", "revisiting_fashion"]},
    ),
    "paper curves": (
        figures.draw_curves,
        figures.describe_curves,
        {"name": ["revisiting_fashion"], "preset": ["paper"]},
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_the_grid_is_described(name):
    _, describe, grid = GRIDS[name]
    check_texts(describe, grid)


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_the_grid_is_drawn_in_one_size_on_white(name):
    draw, _, grid = GRIDS[name]
    check_drawings(draw, grid)


def test_the_two_ratios_end_at_different_dampings():
    """At step size 1 Eq. 30 keeps more damping than Martens' rule; at 0.1 both lower it alike."""
    runs = {
        (eta, rule): figures._damping_run(eta, rule, 0.3)["damping"][-1]
        for eta in (0.1, 1.0)
        for rule in ("Eq. 30", "Martens")
    }
    assert runs[1.0, "Eq. 30"] > 3 * runs[1.0, "Martens"]
    assert runs[0.1, "Eq. 30"] == pytest.approx(runs[0.1, "Martens"])


def test_scipy_reports_success_on_both_systems_and_ours_do_not():
    rows = figures.solvers_beside_scipy()
    assert len(rows) == 6
    for scipys, ours, qlp in (rows[:3], rows[3:]):
        assert scipys[2] == "success" and float(scipys[3]) > 0.4
        assert qlp[2] in ("converged", "least squares") and float(qlp[4]) == pytest.approx(
            1, abs=1e-2
        )
        assert ours[2] == (
            "converged" if ours[3] == "below 1e-4" else "not converged: least squares"
        )


def test_solver_lengths_are_those_of_the_systems():
    """On another batch MINRES-QLP ends at the shortest solution, MINRES at a longer one; on the
    same batch all agree.
    """
    other, same = figures._solver_lengths("another", 0.0), figures._solver_lengths("the same", 0.0)
    exact = other["exact"][0]
    assert (
        other["MINRES-QLP"][-1] == pytest.approx(exact, rel=1e-3)
        and other["MINRES"][-1] > 3 * exact
    )
    assert all(
        lengths[-1] == pytest.approx(same["exact"][0], rel=1e-3) for lengths in same.values()
    )
