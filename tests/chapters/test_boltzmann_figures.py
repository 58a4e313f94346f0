"""The figures of the Boltzmann chapter: drawn from stored results, described over the whole
grid.
"""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from natcompanion.chapters.figures import Picture
from natcompanion.chapters.figures import boltzmann as figures

PICTURES = [name.removeprefix("draw_") for name in vars(figures) if name.startswith("draw_")]
WITH_POINTS = {"thresholds", "held", "forms", "live_forms"}
GRIDS = {"thresholds": figures.GRID, "held": figures.HELD, "forms": figures.FORMS}


@pytest.mark.parametrize("name", sorted(set(PICTURES) - WITH_POINTS))
def test_pictures_are_drawn_with_a_description(name):
    picture = Picture(getattr(figures, f"draw_{name}"), getattr(figures, f"describe_{name}"))
    assert len(picture.png) > 3000 and len(picture.text) > 60


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_the_grid_has_its_own_description(name):
    points = [
        dict(zip(GRIDS[name], values, strict=True))
        for values in itertools.product(*GRIDS[name].values())
    ]
    texts = [getattr(figures, f"describe_{name}")(**point) for point in points]
    assert len(set(texts)) == len(texts)
    drawing = getattr(figures, f"draw_{name}")(**points[len(points) // 2])
    assert isinstance(drawing, Figure) and drawing.get_facecolor() == (1, 1, 1, 1)


@pytest.mark.parametrize("scale,bias", list(itertools.product([0.0, 1.3, 4.0], [0.0, 6.0])))
def test_the_live_figure_is_drawn_at_the_ends_of_its_ranges(scale, bias):
    assert isinstance(figures.draw_live_forms(scale, bias), Figure)
    assert "eigenvalues from" in figures.describe_live_forms(scale, bias)


def test_the_cell_that_starts_the_explorer_stopped_learning():
    """The sentence under the first picture: gamma is 1 and the error far above that of plain
    SGD.
    """
    text = figures.describe_thresholds(v=0.001, p=0.05, gamma="at most 1")
    assert "γ is 1." in text
    record, half, plain = (
        figures.seed_zero(rule, **o)
        for rule, o in (("printed", {}), ("printed", {"cap": 0.5}), ("none", {}))
    )
    cell = figures.CELLS.index((0.001, 0.05))
    assert record["final_test"][cell] > plain["final_test"][cell] + 0.2 > half["final_test"][cell]


def test_every_variant_that_is_shown_has_three_seeds():
    for rule, settings in [*figures.GRIDS.values(), *figures.READINGS.values()]:
        assert len(figures.thresholds(rule, **settings)) >= 3
    assert all(len(figures.held(rule)) >= 3 for rule in figures.RULES.values())
    assert len(figures.held("printed", "softmax")) >= 3
    assert all(len(figures.learning(method)) >= 10 for method in figures.METHODS)


def test_a_fixed_gamma_of_zero_is_plain_sgd_for_every_penalty():
    """The printed rule draws no other random numbers than plain SGD, and keeps the likelihood alone
    at gamma 0.
    """
    for rule in figures.RULES.values():
        runs = figures.held(rule)
        assert all(
            record["kept_epochs"][0] == 100 and record["kept_epochs"][-1] == 0 for record in runs
        )
        assert runs.values("final_test")[:, 0].max() < 0.4


def test_beyond_the_largest_step_of_the_search_every_method_is_worse():
    """On every split the least validation error at twice the largest step is far above that of the
    choice.
    """
    found = figures.stored("boltzmann_heldout")
    for record in found:
        beyond = figures.stored("boltzmann_edge").select(seed=record.seed).records[0]
        for method, error in record["validation"].items():
            assert beyond["step"][method] > error + 0.1


def test_mosaic_keeps_each_filter():
    W = np.arange(9 * 10).reshape(9, 10).tolist()
    picture = figures.mosaic(W)
    assert picture.shape == (10, 25)
    assert np.array_equal(picture[6:9, 1:4], np.array(W)[:, 5].reshape(3, 3))


def test_figure_1_shows_inverse_and_roots():
    G = figures.small_machine(0.5).fisher()
    eye = torch.eye(23, dtype=torch.float64)
    root = figures._form("whitening matrix", 0.5)
    torch.testing.assert_close(root @ G @ root, eye, rtol=0, atol=1e-10)
    torch.testing.assert_close(figures._form("inverse", 0.5) @ G, eye, rtol=0, atol=1e-9)
    L = figures._form("Cholesky factor", 0.5)
    torch.testing.assert_close(L @ L.mT, G, rtol=0, atol=1e-12)
    assert (figures._form("inverse", 0.5) - figures._form("inverse", 1.0)).abs().max() > 1
