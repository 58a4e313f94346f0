"""The figures of the PRONG chapter, over the whole grid of each."""

import numpy as np
import pytest
import torch
from _pictures import check_drawings, check_texts

from natcompanion.chapters.figures import prong as figures

GRIDS = {
    "sensitivity": (figures.draw_sensitivity, figures.describe_sensitivity, figures.SENSITIVITY),
    "fisher": (figures.draw_fisher, figures.describe_fisher, figures.FISHER),
    "live fisher": (
        figures.draw_live_fisher,
        figures.describe_live_fisher,
        {"eps": [1e-8, 0.0123, 10.0], "covariance": ["centred", "as printed"]},
    ),
    "conditions": (figures.draw_conditions, figures.describe_conditions, figures.CONDITIONS),
    "periods": (figures.draw_periods, figures.describe_periods, {}),
    "autoencoder": (figures.draw_autoencoder, figures.describe_autoencoder, figures.AUTOENCODER),
    "paper": (figures.draw_paper, figures.describe_paper, {}),
    "time": (figures.draw_time, figures.describe_time, {"preset": ["chapter", "paper"]}),
    "convolutional": (figures.draw_convolutional, figures.describe_convolutional, {}),
    "backward": (figures.draw_backward, figures.describe_backward, {}),
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_the_grid_is_described(name):
    _, describe, grid = GRIDS[name]
    check_texts(describe, grid)


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_the_grid_is_drawn_in_one_size_on_white(name):
    draw, _, grid = GRIDS[name]
    check_drawings(draw, grid)


def test_ratio_counts_updates_to_the_other_methods_final_error():
    slow = {
        "train": [[10.0, 8.0, 6.0, 5.0, 4.0], [10.0, 9.0, 8.0, 7.0, 6.0]],
        "seconds": [[0, 1, 2, 3, 4]] * 2,
    }
    fast = {
        "train": [[10.0, 5.0, 3.0, 2.0, 1.0], [10.0, 9.5, 9.0, 8.5, 8.0]],
        "seconds": [[0, 2, 4, 6, 8]] * 2,
    }
    updates, seconds = figures._ratio(fast, slow)
    np.testing.assert_allclose(updates, [2, 0.8])  # the second never gets there
    np.testing.assert_allclose(seconds, [1, 0.4])


def test_every_method_has_a_full_run_at_the_papers_size_at_a_setting_that_was_tried():
    runs = figures.paper_runs()
    assert set(runs) == {"sgd", "rmsprop", "batchnorm", "prong", "prong+"}
    for method, record in runs.items():
        assert record.settings["updates"] == 5000
        assert tuple(
            record["best"][key] for key in ("rate", "momentum", "second")
        ) in figures.tried(method)
        assert len(figures.tried(method)) >= 3
        others = figures.stored("prong_autoencoder", "paper").select(updates=5000, method=method)
        assert record["train"][0][-1] == min(other["train"][0][-1] for other in others)


def test_algorithm_1_preserves_the_function_only_when_corrected():
    model, x = figures.network()
    before = model(x).detach()
    assert float((figures.algorithm_1(model, x, 1e-3, printed=False) - before).abs().max()) < 1e-12
    assert float((figures.algorithm_1(model, x, 1e-3, printed=True) - before).abs().max()) > 1
    torch.testing.assert_close(model(x).detach(), before, rtol=0, atol=0)
