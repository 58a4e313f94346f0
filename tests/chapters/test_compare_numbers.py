"""The numbers of the comparison of all methods, on records made by hand."""

import pytest

from natcompanion.chapters import numbers
from natcompanion.chapters.experiments import Result, store
from natcompanion.chapters.numbers import compare, prong, rfim

SPEED = {"momentum": 30, "adamw": 40, "muon": 20, "batchnorm": 50, "kfac": 10, "prong": 18}
"""Updates to the target at the best step size, in the first seed."""


def values(updates, every=10, length=5, clock=0.001):
    """Return the values of a run that arrives after ``updates``, or never."""
    scores = [10.0 - k for k in range(length)]
    return {
        "score": scores,
        "clock": [round(clock * every * k, 6) for k in range(length)],
        "best": scores[-1],
        "updates_to_target": updates,
        "seconds_to_target": None if updates is None else clock * updates,
        "lateness": 90.0 if updates is None else float(updates),
    }


@pytest.fixture
def add(tmp_path):
    """Return a function that stores a run in an empty book, which numbers read meanwhile."""

    def add(found, preset, seed, method="kfac", lr=0.1, problem="autoencoder", **more):
        settings = {"problem": problem, "method": method, "lr": lr, "momentum": 0.9}
        settings |= {"second": 0.0, "start": "sigmoid", "period": 100, "every": 10, "updates": 40}
        settings |= more
        record = Result("compare", preset, seed, settings, found, "cpu", 2, 3.0, None, {})
        store.append(record, tmp_path)

    with numbers.results(tmp_path):
        yield add


@pytest.fixture
def arena(add):
    """Store a search of three step sizes, of which 0.2 is best, and five reported starts."""
    for problem in ("autoencoder", "convolution"):
        for method, speed in SPEED.items():
            for lr, factor in ((0.1, 3), (0.2, 1), (0.4, 2)):
                for seed in (100, 101):
                    add(values(speed * factor + seed - 100), "tuning", seed, method, lr, problem)
            for seed in range(5):
                late = None if method == "muon" and seed < 2 else speed + seed
                clock = 0.004 if method == "kfac" else 0.001
                add(values(late, clock=clock), "chapter", seed, method, 0.2, problem)
    return add


def test_the_search_chooses_the_least_lateness_over_its_seeds(arena):
    found = compare.chosen("autoencoder", "kfac")
    assert (found.settings["lr"], found.searched, found.edges) == (0.2, 3, ())
    assert "lr 0.2" in str(found) and "start sigmoid" in str(found)
    for seed in (100, 101):
        arena(values(1), "tuning", seed, "kfac", 0.8)
    assert compare.chosen("autoencoder", "kfac").edges == ("lr",)
    assert compare.at_an_edge("autoencoder") == "K-FAC (step size)"
    assert compare.at_an_edge("convolution") == "none"


def test_only_runs_at_the_chosen_setting_are_reported(arena):
    arena(values(1), "chapter", 0, "kfac", 0.1)
    assert compare.to_target("autoencoder", "kfac") == [10, 11, 12, 13, 14]
    assert compare.starts("autoencoder") == 5 and compare.searched("autoencoder") == 3


def test_medians_count_the_runs_that_never_arrive(arena):
    found = compare.reached("autoencoder", "muon")
    assert (found.arrived, found.n, found.median) == (3, 5, 24.0)
    assert compare.middle("autoencoder", "muon") == 24
    assert compare.middle("autoencoder", "kfac", "seconds") == pytest.approx(0.048)
    for seed in range(5, 8):
        arena(values(None), "chapter", seed, "muon", 0.2)
    assert compare.middle("autoencoder", "muon") == "never"


def test_the_best_rival_is_the_one_with_the_least_median(arena):
    assert compare.fastest("autoencoder") == "kfac"
    assert compare.best_rival("autoencoder") == "K-FAC"
    assert compare.best_rival("autoencoder", "seconds") == "Muon", "24 ms against 48"
    assert compare.fastest("autoencoder", "seconds") == "prong", "no rival of its own"
    assert compare.fastest_name("autoencoder", "seconds") == "PRONG"


def test_ahead_is_counted_start_by_start(arena):
    assert not compare.ahead("prong", "autoencoder").any(), "K-FAC needs 10, PRONG 18"
    assert compare.ahead("prong", "autoencoder", "seconds").all(), "Muon needs 20 or never arrives"
    assert prong.ahead("seconds").tolist() == [True] * 5
    assert prong.starts_ahead("updates") == 0 and compare.starts_ahead("prong", "convolution") == 0
    arena(values(9), "chapter", 3, "prong", 0.2)
    assert prong.ahead().tolist() == [False, False, False, True, False]
    assert prong.arrives("prong") == 19 and prong.arrives("kfac") == 12


def test_rngd_is_compared_on_a_named_problem(arena):
    for seed in (100, 101):
        arena(values(9), "tuning", seed, "rngd", 0.2, "convolution")
    for seed in range(5):
        arena(values(None if seed == 4 else 9), "chapter", seed, "rngd", 0.2, "convolution")
    assert rfim.ahead("convolution").tolist() == [True] * 4 + [False]
    assert rfim.starts_ahead("convolution", "updates") == 4
    assert rfim.arrives("convolution", "rngd") == 9
    assert compare.methods("convolution") == [*list(SPEED), "rngd"]
    assert compare.methods("autoencoder") == list(SPEED)


def test_two_runs_that_never_arrive_are_not_ahead_of_each_other(arena):
    for seed in range(2):
        arena(values(None), "chapter", seed, "prong", 0.2)
    found = compare.ahead("prong", "autoencoder", "seconds")
    assert found.tolist() == [False, False, True, True, True]


def test_curves_end_where_the_first_run_ends(arena):
    arena(values(10, length=3), "chapter", 2, "kfac", 0.2)
    x, scores = compare.curve("autoencoder", "kfac")
    assert x.tolist() == [0, 10, 20] and scores.shape == (5, 3)
    seconds, _ = compare.curve("autoencoder", "kfac", "seconds")
    assert seconds == pytest.approx([0, 0.04, 0.08])
    assert compare.last("autoencoder", "kfac") == 8 and compare.last("autoencoder", "prong") == 6


def test_cost_is_of_an_update(arena):
    assert compare.milliseconds("autoencoder", "kfac") == pytest.approx(4)
    assert compare.milliseconds("autoencoder", "prong") == pytest.approx(1)
    searches, reports = 2 * 6 * 6 * 0.04, 2 * 5 * (5 * 0.04 + 0.16)
    assert float(compare.core_minutes()) == pytest.approx((searches + reports) / 60, rel=0.01)
    assert float(compare.all_minutes()) == pytest.approx(2 * (6 * 6 + 5 * 6) * 2 * 3 / 60, rel=0.01)


def test_the_table_says_what_was_chosen_and_when_it_arrives(arena):
    shown = compare.table("autoencoder")
    rows = {row[0]: row[1:] for row in shown.rows}
    assert rows["K-FAC"][:4] == [
        "step 0.2, momentum 0.9, damping 0, plain start",
        "5 of 5",
        "12",
        "0.0480",
    ]
    assert rows["Muon"][1:3] == ["3 of 5", "24"]
    assert rows["PRONG"][4:] == ["1.00", "6.00"]
    assert "3.5, 5 starts" in shown.caption and "best of 3 settings" in shown.caption
    for seed in range(5, 8):
        arena(values(None), "chapter", seed, "muon", 0.2)
    with pytest.raises(ValueError):  # the methods have other numbers of starts
        compare.table("autoencoder")


def test_a_method_that_never_arrives_is_shown_as_such(add):
    for seed in (100, 101):
        add(values(None), "tuning", seed, "sgd", momentum=0.0)
    for seed in range(5):
        add(values(None), "chapter", seed, "sgd", momentum=0.0)
    (row,) = compare.table("autoencoder").rows
    assert row[1:5] == ["step 0.1, plain start", "0 of 5", "over 40", "–"]
    assert compare.reached("autoencoder", "sgd").median is None


def test_an_excess_loss_that_is_rounding_is_none_and_one_that_is_not_stays(add):
    for method, end in (("kfac", -5e-17), ("prong", 5e-17), ("adamw", 2e-9)):
        for preset in ("tuning", "chapter"):
            add(values(20) | {"score": [1.0, 0.1, end]}, preset, 0, method, problem="logistic")
    assert [compare.last("logistic", m) for m in ("kfac", "prong", "adamw")] == [0.0, 0.0, 2e-9]


def test_the_step_size_of_a_method_is_the_one_that_the_search_chose(arena):
    assert compare.step_size("autoencoder", "kfac") == 0.2
