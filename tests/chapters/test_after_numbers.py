"""The numbers of what came after: the iterations on a momentum, and records made by hand."""

import numpy as np
import pytest
import torch

from natcompanion.chapters import numbers
from natcompanion.chapters.experiments import Result, store
from natcompanion.chapters.experiments.after import network
from natcompanion.chapters.figures import after as figures
from natcompanion.chapters.numbers import after

SPEED = {"sgd": 400, "adamw": 200, "muon": 600, "lbfgs": 40, "sample": 5}
"""Updates to the target at the best setting, in the first seed."""
COST = {"lbfgs": 0.003, "sample": 0.004}
ENDS = {"sgd": 1e-4, "adamw": 4e-5, "muon": 1e-3, "lbfgs": 1e-5, "sample": 1e-7}


# ---- One layer, one equation


def test_the_layer_is_correlated_and_not_centred():
    h, delta = after.layer()
    assert h.shape == (60, 6) and delta.shape == (60, 3) and bool((h[:, -1] == 1).all())
    x = h[:, :-1]
    assert float(x.mean(0).abs().max()) > 0.2
    assert float(torch.corrcoef(x.mT).triu(1).abs().max()) > 0.1
    assert float(torch.linalg.cond(h.mT @ h)) < 1e3


def test_the_equation_is_linearized_in_its_parameters():
    J, H, s = after.linearized()
    assert J.shape == (10, 1, 97) and H.flatten().tolist() == [1] * 10 and s.shape == (10, 1)
    model = network(torch.Generator().manual_seed(0))
    x = torch.linspace(0, 1, 10, dtype=torch.float64)[:, None]
    with torch.no_grad():
        model.last.bias += 1e-6
        moved = (model(x) - s) / 1e-6
    assert torch.allclose(moved, J[:, :, -1], atol=1e-6)
    assert torch.allclose(J[:, :, -1], torch.full((10, 1), -2.0, dtype=torch.float64))


# ---- The iterations


def test_the_momentum_is_what_muon_would_whiten():
    M = after.momentum()
    assert M.shape == (32, 64) and after.size() == 32
    s = after.singular_values()
    assert float((s**2).sum()) == pytest.approx(1) and after.condition() > 100
    assert list(s) == sorted(s, reverse=True)


@pytest.mark.parametrize("name", after.COEFFICIENTS)
def test_singular_values_are_lifted_as_numbers_and_as_matrices_alike(name):
    for steps in (1, 5):
        found = torch.linalg.svdvals(after.orthogonalized(name, steps))
        wanted = after.lifted(name, steps, after.singular_values())
        assert torch.allclose(found, wanted.sort(descending=True).values, atol=1e-10)
        assert after.within(name, steps) == int(((wanted > 0.5) & (wanted < 1.5)).sum())
        gap = (wanted - 1).square().mean().sqrt()  # the singular vectors are those of the factor
        assert after.distance(name, steps) == pytest.approx(float(gap), rel=1e-8)


def test_muon_s_coefficients_are_sooner_near_and_the_cubic_ones_arrive():
    assert after.within("muon", 5) > 2 * after.within("cubic", 5)
    assert after.distance("muon", 5) < 0.5 * after.distance("cubic", 5)
    assert after.distance("cubic", 20) < 0.01 and after.distance("muon", 20) > 0.1
    k = after.cubic_steps_as_near()
    aim = after.distance("muon", 5)
    assert after.distance("cubic", k) <= aim < after.distance("cubic", k - 1)


def test_the_caption_counts_what_the_picture_shows():
    said = figures.describe_muon(5)
    assert f"Muon's coefficients {after.within('muon', 5)} of 32" in said
    assert f"cubic coefficients {after.within('cubic', 5)} of 32" in said


# ---- The differential equation, on records made by hand


def values(updates, every, cost, end, length=4):
    """Return the values of a run that arrives after ``updates``, or never."""
    errors = np.geomspace(1, end, length).tolist()
    return {
        "error": errors,
        "clock": [cost * every * k for k in range(length)],
        "least": end,
        "updates_to_target": updates,
        "seconds_to_target": None if updates is None else cost * updates,
        "lateness": 9e4 if updates is None else float(updates),
    }


@pytest.fixture
def add(tmp_path):
    """Return a function that stores a run in an empty book, which numbers read meanwhile."""

    def add(preset, seed, method, updates, lr=0.1, every=10, end=None, **more):
        end, cost = end or ENDS[method], COST.get(method, 0.001)
        settings = {"method": method, "lr": lr, "momentum": 0.9, "second": 0.0, "every": every}
        settings |= {"updates": 100, "stop": preset == "tuning"} | more
        found = values(updates, every, cost, end)
        record = Result("after_poisson", preset, seed, settings, found, "cpu", 1, 0.0, None, {})
        store.append(record, tmp_path)

    with numbers.results(tmp_path):
        yield add


@pytest.fixture
def arena(add):
    """Store a search of three step sizes, of which 0.2 is best, and five reported starts."""
    for method, speed in SPEED.items():
        for lr, factor in ((0.1, 3), (0.2, 1), (0.4, 2)):
            for seed in (100, 101):
                add("tuning", seed, method, speed * factor + seed - 100, lr)
        for seed in range(5):
            late = None if method == "muon" and seed < 3 else speed + seed
            add("chapter", seed, method, late, 0.2)
    return add


def test_the_search_chooses_the_least_lateness_and_names_edges(arena):
    found = after.chosen("adamw")
    assert (found.settings["lr"], found.searched, found.edges) == (0.2, 3, ())
    assert after.searched() == 3 and after.starts() == 5 and after.at_an_edge() == "none"
    for seed in (100, 101):
        arena("tuning", seed, "adamw", 1, 0.8)
        arena("tuning", seed, "sample", 1, 0.2, second=1e-5)
        arena("tuning", seed, "sgd", 1, 0.2, momentum=0.0)
    assert after.at_an_edge() == "AdamW (step size), sample-space step (damping)"


def test_the_best_rival_and_who_is_ahead_are_counted_start_by_start(arena):
    assert after.best_rival() == "L-BFGS", "0.12 s against 0.2"
    assert after.ahead().all() and after.starts_ahead() == 5
    arena("chapter", 3, "sample", 31, 0.2)  # 0.124 s, L-BFGS 0.129
    arena("chapter", 4, "sample", 34, 0.2)  # 0.136 s against 0.132
    assert after.ahead().tolist() == [True, True, True, True, False]
    assert after.ahead("updates").all()


def test_runs_that_never_arrive_are_later_than_all_others(arena):
    assert after.middle("muon") == "never" and after.middle("sgd") == 402
    assert after.middle("lbfgs", "seconds") == pytest.approx(0.126)
    found = after.reached("muon")
    assert (found.arrived, found.n, found.median) == (2, 5, None)
    for seed, method in ((0, "lbfgs"), (0, "sample"), (1, "sample"), (2, "lbfgs")):
        arena("chapter", seed, method, None, 0.2)
    assert after.ahead().tolist() == [False, False, True, True, True]


def test_decades_are_to_the_best_rival_of_each_start(arena):
    assert after.decades() == pytest.approx([2] * 5), "L-BFGS ends at 1e-5"
    assert after.decades("sgd", "adamw") == pytest.approx([np.log10(400)] * 5)
    arena("chapter", 1, "muon", None, 0.2, end=1e-8)
    assert after.decades() == pytest.approx([2, -1, 2, 2, 2])
    assert after.decades("sgd") == pytest.approx([3] * 5)
    assert float(after.decades_below()) == pytest.approx(1.4)
    assert float(after.decades_below("sgd")) == pytest.approx(3)
    assert after.decades_interval().mean == pytest.approx(1.4)
    assert after.decades_interval("sgd").low == pytest.approx(3)


def test_cost_is_of_an_update_and_of_a_run(arena):
    assert after.milliseconds("lbfgs") == pytest.approx(3)
    assert after.length("sgd") == pytest.approx(0.03)
    assert after.longer() == pytest.approx(0.03 / 0.12)
    assert after.longer("lbfgs") == pytest.approx(0.09 / 0.12)
    a_run = 3 * 0.03 + 0.09 + 0.12
    assert float(after.core_seconds()) == pytest.approx(11 * a_run, rel=0.01)


def test_curves_end_where_the_first_run_ends(arena):
    x, errors = after.curve("sgd")
    assert x.tolist() == [0, 10, 20, 30] and errors.shape == (5, 4)
    assert after.curve("sample", "seconds")[0] == pytest.approx([0, 0.04, 0.08, 0.12])


def test_the_table_says_what_was_chosen(arena):
    shown = after.table()
    rows = {row[0]: row[1:] for row in shown.rows}
    assert rows["Muon"][:4] == ["step 0.2, momentum 0.9", "2 of 5", "over 2000", "–"]
    assert rows["L-BFGS"][0] == "step 0.2, memory 0"
    assert rows["sample-space step"][:2] == ["momentum 0.9, damping 0", "5 of 5"]
    assert "best of 3 settings" in shown.caption and "0.0001, 5 starts" in shown.caption


def test_k_fac_is_compared_with_the_exact_step(tmp_path):
    settings = {"problem": "convolution", "lr": 0.1, "momentum": 0.9, "second": 0.0}
    settings |= {"start": "sigmoid", "period": 100, "every": 5, "updates": 40}
    for method, late in (("kfac", 20), ("sample", 30)):
        for preset, seeds in (("tuning", (100, 101)), ("chapter", range(5))):
            for seed in seeds:
                at = None if method == "sample" and seed == 1 else late - 15 * (seed == 2)
                at = 40 if method == "kfac" and seed == 3 else at
                found = {"updates_to_target": at, "lateness": float(at or 99)}
                given = settings | {"method": method}
                record = Result("compare", preset, seed, given, found, "cpu", 1, 0.0, None, {})
                store.append(record, tmp_path)
    with numbers.results(tmp_path):
        assert after.kfac_ahead().tolist() == [True, True, True, False, True]
        assert (after.kfac_starts_ahead(), after.kfac_starts()) == (4, 5)
