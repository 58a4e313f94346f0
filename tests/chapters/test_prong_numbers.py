"""The numbers of the PRONG chapter, on records made by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from natcompanion.chapters import ledger, numbers
from natcompanion.chapters.experiments import Result, store
from natcompanion.chapters.experiments import _prong_fisher as fisher
from natcompanion.chapters.numbers import prong
from natcompanion.chapters.numbers.prong import words
from natcompanion.chapters.statistics import Arrivals, Interval
from natcompanion.recipes.cost import Cost, Work


class Book:
    """A folder of results made by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, where: str, settings: dict, values: dict, seed: int = 0) -> None:
        """Store one record of ``experiment.preset``."""
        name, preset = where.split(".")
        record = Result(name, preset, seed, settings, values, "cpu", 1, 0.0, None, {})
        store.merge(record, self.folder)


@pytest.fixture
def book(tmp_path):
    """Return an empty book of results, which numbers read during the test."""
    with numbers.results(tmp_path):
        yield Book(tmp_path)


def check(found: Interval, mean: float, low: float | None = None, n: int = 2) -> None:
    """Compare an interval with its mean, its lower limit (None: not below the mean) and n."""
    assert found.mean == pytest.approx(mean) and found.n == n
    assert found.low <= found.mean <= found.high
    if low is not None:
        assert found.low == pytest.approx(low)


T_2 = 12.706204736432095
"""97.5 % point of Student's t with one degree of freedom."""


def lower(ratios: tuple[float, float]) -> float:
    """Return the lower limit of the geometric mean of two ratios, written out."""
    a, b = map(math.log, ratios)
    return math.exp((a + b) / 2 - T_2 * abs(a - b) / 2)


# ---- What the modules share


def test_first_arrival_is_the_first_look_at_or_below_the_goal():
    assert words.first_arrival([5, 3, 2, 3, 1], 2) == 2  # a tie arrives
    assert words.first_arrival([5, 3, 2.5], 2) is None
    assert words.first_arrival([2], 2) == 0


def test_band_is_the_median_of_an_even_count_between_least_and_most():
    found = words.band([0, 2], [[4, 1], [2, 7], [9, 3], [3, 2]])
    assert [list(part) for part in found] == [[0, 2], [3.5, 2.5], [2, 1], [9, 7]]


def test_looks_include_the_first_and_the_last_update():
    assert words.looks({"updates": 6, "every": 2}).tolist() == [0, 2, 4, 6]
    assert words.looks({"updates": 2, "every": 1}).tolist() == [0, 1, 2]


# ---- Conditioning


def test_the_fisher_matrix_is_that_of_the_middle_layer_before_and_after_whitening():
    model, x = prong.network()
    assert [tuple(layer.weight.shape) for _, layer in fisher.linear_layers(model)] == [
        (20, 100),
        (20, 20),
        (10, 20),
    ]
    assert x.shape == (1000, 100)
    place, layer = fisher.linear_layers(model)[1]
    G = fisher.layer_fisher(model, layer, x)
    plain = fisher.in_coordinates(G, fisher.plain_map(20))
    torch.testing.assert_close(prong.fisher_matrix(), plain)
    for covariance, centred in (("centred", True), ("as printed", False)):
        c, U = fisher.layer_statistics(model, place, x, 0.1, centred)
        expected = fisher.in_coordinates(G, fisher.whitened_map(c, U))
        torch.testing.assert_close(prong.fisher_matrix(0.1, covariance), expected)
        found = prong.fisher_conditions(0.1, covariance)
        assert found == pytest.approx(fisher.conditions(expected), rel=1e-6)
    assert prong.fisher_conditions() == pytest.approx(fisher.conditions(plain), rel=1e-6)
    assert prong.fisher_conditions()["tail"] == pytest.approx(257_000, rel=2e-3)  # this network
    model[0].weight.data.zero_()  # a copy: the next is whole
    assert float(prong.network()[0][0].weight.detach().norm()) > 1


def conditioning(book: Book) -> None:
    """Store two initializations: the first is lowered to a half and a fifth, the second to an
    eighth and a fifth; as printed to a quarter and to all of it.
    """
    for seed, before, after, printed in ((0, 8.0, 4.0, 2.0), (1, 16.0, 2.0, 16.0)):
        book.add(
            "prong_conditioning.chapter",
            {"eps": [0.01, 0.001, 0.1]},
            {
                "before": dict.fromkeys(fisher.DEFINITIONS, before),
                "after": {key: [before, after, before / 5] for key in fisher.DEFINITIONS},
                "printed": dict.fromkeys(fisher.DEFINITIONS, printed),
            },
            seed,
        )


def test_reduction_is_by_the_geometric_mean_of_after_to_before(book):
    conditioning(book)
    found = prong.reduction("raw")
    check(found, 75.0)  # the geometric mean of 1/2 and 1/8 is 1/4; the arithmetic one 5/16
    assert found.high == pytest.approx(100 * (1 - lower((1 / 2, 1 / 8))))
    check(prong.reduction("tail", eps=0.1), 80.0)
    assert prong.reduced("raw") == pytest.approx(75.0)
    assert prong.raised("raw") == pytest.approx(-75.0)
    assert prong.reduced("raw", "as printed") == pytest.approx(50.0)


def test_conditioning_table_shows_medians_and_reductions(book):
    conditioning(book)
    table = prong.conditioning_table()
    interval = str(prong.reduction("raw"))
    assert table.rows == [[text, "12.0", interval, "80.0"] for text in fisher.DEFINITIONS.values()]
    assert "2 initializations" in table.caption


DURING = {
    "sgd": ((8.0, 9.0, 4.0), (8.0, 9.0, 6.0)),
    "rmsprop": ((10.0, 9.0, 4.0), (8.0, 9.0, 8.0)),
    "batchnorm": ((2.0, 9.0, 4.0), (2.0, 9.0, 1.0)),
    "prong": ((8.0, 3.0, 1.0), (16.0, 3.0, 4.0)),
}


def during(book: Book) -> None:
    """Store two initializations of four methods, and definitions that differ by a factor."""
    for method, runs in DURING.items():
        for seed, run in enumerate(runs):
            book.add(
                "prong_conditioning_during.chapter",
                {"method": method, "updates": 40, "every": 20},
                {
                    "tail": list(run),
                    "raw": [3 * value for value in run],
                    "rate": 0.1 * (1 + seed),
                    "loss": len(method) + seed,
                },
                seed,
            )


def test_condition_numbers_during_training(book):
    during(book)
    found = prong.condition_curves("tail", "prong")
    assert [list(part) for part in found] == [[0, 20, 40], [12, 3, 2.5], [8, 3, 1], [16, 3, 4]]
    share = prong.condition_curves("tail", "prong", relative=True)
    assert list(share.middle) == [100, 100 * (3 / 8 + 3 / 16) / 2, (12.5 + 25) / 2]
    assert prong.condition_start("raw", "prong") == 36 and prong.condition_end("raw", "sgd") == 15
    assert prong.condition_share("prong") == 18.75
    assert prong.condition_share("batchnorm", "raw") == 125
    check(prong.condition_ratio("prong", "batchnorm"), 1.0, lower((1 / 4, 4)))  # 2.125 on average
    check(prong.condition_ratio("prong", "sgd", "raw"), (1 / 4 * 2 / 3) ** 0.5)
    # the worst run of PRONG ends at 1/4 of its first, the best of the others at 4/10
    assert prong.worst_against_best() == pytest.approx(0.25 / 0.4)
    assert prong.worst_against_best("raw") == pytest.approx(0.25 / 0.4)


def test_what_training_does_with_and_without_whitening(book):
    during(book)
    # left of the first value: 1/2 and 3/4 with SGD, 2/5 and 1 with RMSprop
    check(prong.reduction_without_whitening(), 100 * (1 - (2 / 5 * 3 / 4) ** 0.5))
    check(prong.reduction_with_whitening(), 100 * (1 - (1 / 8 * 1 / 4) ** 0.5))


def test_trained_table_shows_medians(book):
    during(book)
    table = prong.trained_table()
    assert table.rows == [
        ["SGD", "0.15", "3.50"],
        ["RMSprop", "0.15", "7.50"],
        ["batch normalization", "0.15", "9.50"],
        ["PRONG", "0.15", "5.50"],
    ]
    assert "medians of 2 initializations" in table.caption


def test_condition_numbers_from_the_same_start(book):
    last = {"sgd": (8, 1), "rmsprop": (2, 10), "batchnorm": (4, 9), "prong": (1, 2)}
    for method, runs in last.items():
        for seed, value in enumerate(runs):
            start = 100.0 * (1 + seed)
            middle = {"tail": [start, 50, value], "median": [start, 50, 7 * value]}
            full = {"median": [start * (1.5 if method == "batchnorm" else 1), 50, 3 * value]}
            whitened = {"median": (2.0, 16.0)[seed]} if method == "prong" else None
            values = {"middle": middle, "full": full, "whitened": whitened, "rate": 0.1, "loss": 1}
            book.add("prong_conditioning_equal.chapter", {"method": method}, values, seed)
    # the least of the others is 2 in the first run and 1 in the second
    check(prong.equal_start_ratio("middle", "tail"), 1.0, lower((1 / 2, 2)))
    check(prong.equal_start_ratio("full", "median"), 1.0)
    assert prong.equal_start_spread("middle", "tail") == 0
    assert prong.equal_start_spread("full", "median") == 0.5
    check(prong.full_reduction("median"), 96.0)  # 2 % and 8 % are left; 95 on average
    table = prong.equal_start_table()
    assert table.rows[3] == ["PRONG", "0.1", "1.00", "150", "1.50", "150", "4.50"]
    assert "2 initializations" in table.caption


def test_alignment_is_looked_up_by_the_age_of_the_whitening(book):
    for seed in (0, 1):
        values = {"stale": [0.9, 0.5 + seed / 10], "fresh": [0.9, 0.8], "gradient": [0.2, 0.1]}
        book.add("prong_alignment.quick", {"lags": [0, 30]}, values, seed)
    assert prong.alignment("stale", 30).tolist() == [0.5, 0.6]
    assert prong.staleness(30) == pytest.approx([-0.3, -0.2])
    check(prong.cosine("stale", 30), 0.55)
    curve = prong.alignment_curve("stale")
    assert curve.x.tolist() == [0, 30]
    assert curve.least.tolist() == [0.9, 0.5] and curve.most.tolist() == [0.9, 0.6]
    table = prong.alignment_table()
    assert table.rows == [["0", "0.900", "0.900", "0.200"], ["30", "0.550", "0.800", "0.100"]]
    assert "mean of 2 initializations" in table.caption


# ---- Epsilon and T


def sensitivity(book: Book) -> None:
    """Store single runs at two step sizes, repeated ones of 4 updates, and longer ones of 8."""

    def add(train: list, **settings: object) -> None:
        given = {"eps": 0.01, "period": 100, "start": "whitened", "rates": [0.1, 0.2], "every": 2}
        given |= {"updates": 4, "repeats": 1, **settings}
        book.add("prong_sensitivity.chapter", given, {"train": train})

    add([[[9, 5, 3]], [[9, 8, 7]]])
    add([[[9, 4, 4]], [[9, 2, 1]]], eps=0.1)
    add([[[9, 4, 0]], [[9, 2, 0]]], eps=0.1, start="fan-in")
    add([[[9, 4, 0]], [[9, 2, 0]]], eps=1.0, period=10)
    add([[[9, 2, 1], [9, 2, 4]], [[9, 2, 2], [9, 2, 8]]], repeats=2)
    add([[[9, 2, 2], [9, 2, 2]], [[9, 2, 1], [9, 2, 1]]], eps=0.1, repeats=2)
    add([[[9, 2, 7], [9, 2, 7]], [[9, 2, 7], [9, 2, 7]]], eps=0.1, repeats=2, period=10)
    for place, T in enumerate(prong.PERIODS.values()):
        for start, more in (("whitened", 0), ("fan-in", 2)):
            runs = [[9, 1, 1, 1, 1 + place + more], [9, 1, 1, 1, 3 + place + more]]
            add([runs], period=T, start=start, updates=8, rates=[0.1], repeats=2)


def test_curves_and_best_epsilon_of_single_runs(book):
    sensitivity(book)
    assert prong.sensitivity_looks().tolist() == [0, 2, 4]
    assert prong.sensitivity_curve(0.01, "100", "whitened", 0.2).tolist() == [9, 8, 7]
    assert prong.sensitivity_curve(0.1, "100", "fan-in", 0.1).tolist() == [9, 4, 0]
    assert prong.best_eps("100", 0.1) == 0.01 and prong.best_eps("100", 0.2) == 0.1
    assert prong.best_eps("10", 0.1) == 1.0


def test_ratios_of_errors_are_geometric(book):
    sensitivity(book)
    check(prong.eps_ratio(0.01, 0.1, 0.1, 0.1), 1.0, lower((1 / 2, 2)))
    check(prong.eps_ratio(0.01, 0.2, 0.1, 0.1), 2.0)
    check(prong.eps_ratio(0.1, 0.2, 0.01, 0.1), 0.5)
    check(prong.period_ratio("never again", "whitened", "10", "fan-in"), 1.0)
    check(prong.period_ratio("never again", "fan-in", "10", "whitened"), (5 * 7 / 3) ** 0.5)


@pytest.mark.parametrize(
    "from_large, from_small, wins",
    [((0.5, 0.51), (0.5, 0.51), 2), ((0.5, 0.51), (2.0, 2.1), 1), ((0.5, 0.9), (2.0, 2.1), 0)],
)
def test_lower_epsilon_wins_only_where_the_whole_interval_is_below_one(
    book, from_large, from_small, wins
):
    errors = {
        (0.0001, 0.001): (1.0, 1.0),
        (0.1, 0.01): tuple(1 / x for x in from_large),
        (0.01, 0.01): tuple(1 / x for x in from_small),
    }
    for eps in (0.0001, 0.01, 0.1):
        runs = [
            [[9.0, error] for error in errors.get((eps, rate), (0.1, 0.1))]
            for rate in (0.001, 0.01)
        ]
        given = {"eps": eps, "period": 100, "start": "whitened", "rates": [0.001, 0.01]}
        given |= {"updates": 4, "repeats": 2, "every": 4}
        book.add("prong_sensitivity.chapter", given, {"train": runs})
    longer = {"eps": 0.01, "period": 10, "start": "whitened", "rates": [0.01], "every": 4}
    book.add("prong_sensitivity.chapter", longer | {"updates": 8, "repeats": 2}, {"train": []})
    assert prong.bases_where_eps_wins() == wins
    assert prong.bases_where_eps_wins((0.1,)) == (from_large[1] < 0.9)


def test_final_errors_by_the_interval(book):
    sensitivity(book)
    assert prong.period_updates() == 8
    check(prong.period_error("100", "fan-in"), 5.0, 5 - T_2)
    table = prong.period_table()
    wide = str(Interval(2.0, 2 - T_2, 2 + T_2, 2))
    assert table.columns == ["T", "whitened start", "fan-in start"]
    assert [row[0] for row in table.rows] == ["10", "100", "never again"]
    assert table.rows[0][1] == wide and table.rows[0][2].startswith("4.00 [")
    assert table.rows[2][1].startswith("4.00 [") and table.rows[2][2].startswith("6.00 [")
    assert table.caption.startswith("Training error after 8 updates")
    assert table.caption.endswith("of 2 runs.")


# ---- The auto-encoder


def autoencoder(book: Book) -> None:
    """Store four methods with runs that arrive by a tie, at the end, or never."""

    def add(method: str, start: str, train: list, seconds: list, test: list, **best) -> None:
        settings = {"method": method, "start": start, "updates": 6, "every": 2, "short": 3}
        values = {"train": train, "seconds": seconds, "test": test, "search": [{}] * 12}
        values["best"] = {"rate": 0.1, "momentum": 0.9, "second": 0.0} | best
        book.add("prong_autoencoder.chapter", settings, values)

    clock = [[0.5, 1, 2, 3], [0.5, 1.5, 2, 5]]
    test = [[9, 5, 3, 2], [9, 7, 5, 4]]
    add("prong", "whitened", [[8, 4, 2, 1], [8, 6, 4, 2]], clock, test, second=0.01)
    add("prong", "fan-in", [[8, 7, 6, 5.5], [8, 7, 6, 0.1]], clock, test)
    add("sgd", "sigmoid", [[8, 7, 6, 4], [8, 7, 6, 4]], [[0, 1, 2, 6], [0, 1, 2, 8]], test)
    add("sgd", "whitened", [[8, 7, 6, 5], [8, 7, 7, 6]], [[0, 1, 2, 6], [0, 1, 2, 8]], test)
    add("batchnorm", "fan-in", [[8, 2, 2, 1], [8, 2, 1, 1]], clock, test, rate=0.067)
    three = [[8, 3, 2, 1], [8, 6, 4, 2], [8, 8, 8, 8]]
    slow = [[8, 7, 6, 4], [8, 7, 6, 4], [8, 7, 6, 4]]
    add("prong+", "whitened", three, [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 10]], test)
    add("rmsprop", "sigmoid", slow, [[1, 2, 3, 8]] * 3, test, second=0.9, momentum=0.0)


def test_the_best_start_is_that_of_the_least_mean_error(book):
    autoencoder(book)
    assert prong.starts_of("prong") == ["fan-in", "whitened"]
    assert prong.starts_of("kfac") == []
    assert prong.autoencoder("prong").settings["start"] == "whitened"  # 1.5 against 2.8
    assert prong.autoencoder("sgd").settings["start"] == "sigmoid"
    check(prong.final_error("prong"), 1.5, 1.5 - T_2 / 2)
    check(prong.final_error("prong", "fan-in"), 2.8)
    assert [prong.autoencoder_settings(key) for key in ("tried", "short", "updates")] == [12, 3, 6]
    assert prong.not_run() == (
        "SGD from fan-in; RMSprop from fan-in and whitened; batch normalization from 4 × Glorot "
        "and whitened; PRONG from 4 × Glorot; PRONG+ from fan-in and 4 × Glorot"
    )


def test_gains_are_what_the_rival_spent_over_what_the_method_needs(book):
    autoencoder(book)
    assert prong.gains("prong", "sgd") == [3, 1.5]  # ties: at looks 1 and 2 of 3
    assert prong.gains("prong", "sgd", "seconds") == [6, 4]
    assert prong.gains("prong", "sgd", "updates", "fan-in", "whitened") == [None, 1.5]
    assert prong.gains("prong", "batchnorm") == [1, None]
    check(prong.saving("prong", "sgd"), 4.5**0.5, lower((3, 1.5)))
    check(prong.saving("prong", "sgd", "seconds"), 24**0.5)
    check(prong.saving("prong", "sgd", "updates", "whitened", "whitened"), 3.0)


def test_runs_that_never_arrive_are_counted_not_averaged(book):
    autoencoder(book)
    assert prong.arrived("prong", "batchnorm") == "1 of 2"
    assert prong.arrived("prong+", "rmsprop") == "2 of 3"
    assert prong.saving("prong", "batchnorm") == Arrivals(1, 2, None)
    assert prong.saving("prong+", "rmsprop") == Arrivals(2, 3, 1.5)  # gains 3, 1.5, never
    assert prong.saving("prong+", "rmsprop", "seconds").median == pytest.approx(8 / 3)


def test_final_errors_are_compared_start_by_start(book):
    autoencoder(book)
    check(prong.error_ratio("prong", "sgd"), 8**-0.5, lower((1 / 4, 1 / 2)))
    check(prong.error_ratio("prong", "batchnorm"), 2**0.5, lower((1, 2)))
    # the least rival of each start: 1 and 1, not the better of the two methods on average
    check(prong.error_ratio("sgd", "prong", "batchnorm"), 4.0, 4.0)
    check(prong.error_ratio("batchnorm", "prong", "sgd"), 2**-0.5, lower((1, 1 / 2)))


def test_errors_in_equal_time_are_those_of_the_last_look_in_the_shorter_of_two_runs(book):
    autoencoder(book)
    # PRONG is done after 3 and 5 s; SGD had been at its looks at 2 s by then: 6, 6
    check(prong.error_ratio_in_time("prong", "sgd"), (1 / 6 * 2 / 6) ** 0.5)
    check(prong.error_ratio_in_time("sgd", "prong"), (6 / 1 * 6 / 2) ** 0.5)
    check(prong.error_ratio_in_time("prong", "batchnorm"), 2**0.5)  # equal clocks: both ends
    assert prong.error_ratio("prong", "sgd").mean > prong.error_ratio_in_time("prong", "sgd").mean


def test_curves_of_the_autoencoder(book):
    autoencoder(book)
    found = prong.autoencoder_curves("prong")
    assert [list(part) for part in found] == [
        [0, 2, 4, 6],
        [8, 5, 3, 1.5],
        [8, 4, 2, 1],
        [8, 6, 4, 2],
    ]
    assert list(prong.autoencoder_curves("prong+", cost="seconds").x) == [1, 2, 3, 4]
    assert list(prong.autoencoder_curves("prong", "fan-in", "seconds").x) == [0.5, 1.25, 2, 4]


def test_tables_of_the_autoencoder(book):
    autoencoder(book)
    table = prong.autoencoder_table()
    rows = {(row[0], row[1]): row[2:] for row in table.rows}
    assert len(rows) == 7
    error = str(prong.final_error("prong"))
    assert rows["PRONG", "whitened"] == ["0.1", "0.9", "0.01", error, "3.00", "4.00"]
    assert rows["batch normalization", "fan-in"][:3] == ["0.067", "0.9", "–"]
    assert rows["RMSprop", "4 × Glorot"][:3] == ["0.1", "0", "0.9"]
    assert "mean of 2 initializations" in table.caption
    with pytest.raises(ValueError):  # PRONG has two runs here, its rival three
        prong.saving("prong", "rmsprop")


def test_saving_table_holds_updates_and_seconds(book, monkeypatch):
    autoencoder(book)
    monkeypatch.setattr(
        "natcompanion.chapters.numbers.prong.training.PAIRS",
        (("prong", "sgd"), ("prong", "batchnorm")),
    )
    table = prong.saving_table()
    assert table.rows == [
        ["PRONG", "SGD", *(str(prong.saving("prong", "sgd", c)) for c in ("updates", "seconds"))],
        ["PRONG", "batch normalization", *2 * ["never in half of the runs (1 of 2 arrive)"]],
    ]
    assert "of 2 runs" in table.caption


# ---- The paper's size


def paper(book: Book) -> None:
    """Store one full run of four methods, two of RMSprop, and trials of two updates."""

    def add(method, train, seconds, rate=0.1, updates=8, second=0.0):
        settings = {"method": method, "start": "whitened", "updates": updates, "every": 2}
        settings |= {"rates": [rate], "momenta": [0.9], "second": [second]}
        values = {"train": [train], "seconds": [seconds], "test": [[2 * e for e in train]]}
        values["best"] = {"rate": rate, "momentum": 0.9, "second": second}
        book.add("prong_autoencoder.paper", settings, values)

    add("prong", [9, 6, 4, 2, 3], [0, 3, 6, 9, 12], second=0.01)
    add("prong", [9, 0], [0, 3], updates=2, rate=0.2)
    add("sgd", [9, 8, 7, 5, 4], [0, 1, 2, 3, 7])
    add("sgd", [9, 0], [0, 1], updates=2)  # the setting of the full run
    add("batchnorm", [9, 5, 4, 3, 3.5], [0, 2, 4, 5, 6])
    add("rmsprop", [9, 8, 7, 5, 2.5], [0, 1, 2, 3, 4], rate=0.3)
    add("rmsprop", [9, 8, 7, 4, 4.5], [0, 1, 2, 3, 5], rate=0.4)


def test_full_runs_at_the_papers_size(book):
    paper(book)
    assert prong.paper_updates() == 8
    runs = prong.paper_runs()
    assert list(runs) == ["sgd", "rmsprop", "batchnorm", "prong"]
    assert runs["rmsprop"]["best.rate"] == 0.3
    assert prong.paper_error("rmsprop") == 2.5 and prong.paper_error("prong", "test") == 6
    assert prong.other_runs_error("rmsprop") == 4.5
    assert prong.paper_seconds("batchnorm") == 6
    assert [list(part) for part in prong.paper_curves("sgd")] == [[0, 2, 4, 6, 8], [9, 8, 7, 5, 4]]
    assert list(prong.paper_curves("sgd", "seconds")[0]) == [0, 1, 2, 3, 7]


def test_reaching_and_overtaking_at_the_papers_size(book):
    paper(book)
    assert prong.paper_updates_to("prong", "sgd") == 4  # a tie
    assert prong.paper_seconds_to("prong", "sgd") == 6
    assert prong.paper_fewer("prong", "sgd") == 2
    assert prong.paper_updates_to("sgd", "prong") is None
    assert prong.paper_seconds_to("sgd", "prong") is prong.paper_fewer("sgd", "prong") is None
    assert prong.overtakes("prong", "batchnorm") == 6  # equal after 4 updates, ahead from 6 on
    assert prong.error_when_done("prong", "batchnorm") == 4  # at 6 s, not at 9
    assert prong.error_when_done("prong", "sgd") == 4
    assert prong.error_when_done("batchnorm", "rmsprop") == 4


def test_overtaking_from_the_start_is_after_no_update(book):
    for method, train in (("prong", [1, 1]), ("sgd", [2, 2])):
        settings = {"method": method, "start": "whitened", "updates": 2, "every": 2}
        values = {"train": [train], "seconds": [[0, 1]]}
        book.add("prong_autoencoder.paper", settings, values)
    assert prong.overtakes("prong", "sgd") == 0


def test_settings_tried_and_the_table_at_the_papers_size(book):
    paper(book)
    assert prong.tried("prong") == {(0.1, 0.9, 0.01), (0.2, 0.9, 0.0)}
    assert prong.tried_in_all() == 2 + 1 + 1 + 2
    rows = {row[0]: row[1:] for row in prong.paper_table().rows}
    start = ["whitened", "0.1", "0.9"]
    assert rows["PRONG"] == [*start, "0.01", "2", "8", "3", "6", "12"]
    assert rows["SGD"] == [*start, "–", "1", "8", "4", "8", "7"]
    assert rows["RMSprop"][1] == "0.3"


# ---- Time


def timing(book: Book) -> None:
    """Store two repetitions of an even count of ratios, and a period that is not 100."""
    for preset, scale in (("paper", 1.0), ("chapter", 10.0)):
        ratios = {
            "rmsprop_ratio": [1.0, 2.0, 4.0, 9.0],
            "batchnorm_ratio": [1.0, 1.0, 2.0, 2.0],
            "prong_ratio": [1.0, 1.0, 1.0, 2.0],
            "whitened_ratio": [2.0, 2.0, 2.0, 3.0],
            "prong_factoring": [5.0, 5.0, 5.0, 5.0],
            "whitened_factoring": [10.0, 40.0, 10.0, 40.0],
            "whitened_statistics": [10.0, 10.0, 10.0, 10.0],
        }
        ratios = {key: [scale * value for value in values] for key, values in ratios.items()}
        parts = {"sgd": 2.0, "rmsprop": 3.0, "batchnorm": 4.0, "prong": 5.0, "whitened": 6.0}
        parts |= {"forward": 20.0, "moments": 40.0, "eigenvectors": 60.0, "projection": 80.0}
        parts |= {"cholesky": 100.0}
        book.add(f"prong_time.{preset}", {"period": 20}, ratios | parts)


def test_costs_are_medians_and_their_ratios_geometric_means(book):
    timing(book)
    assert prong.cost_each("rmsprop_ratio").tolist() == [1, 2, 4, 9]
    assert prong.cost("rmsprop_ratio") == 3 and prong.cost("rmsprop_ratio", "chapter") == 30
    check(prong.part_ratio("factoring", "statistics"), 2.0, n=4)  # of 1 and 4; 2.5 on average
    check(prong.part_ratio("statistics", "factoring"), 0.5, n=4)
    check(prong.unamortized(), ((20 * 10 / 80) * (20 * 40 / 50)) ** 0.5, n=4)
    assert prong.part_ratio_of_the_paper() == 8.5


def test_bars_spread_a_whitening_over_its_period(book):
    timing(book)
    assert prong.cost_bars() == {
        "SGD": {"update": 1.0},
        "RMSprop": {"update": 1.5},
        "batch normalization": {"update": 2.0},
        "PRONG, plain model": {"update": 2.5, "forward": 0.5, "moments": 1.0, "cholesky": 2.5},
        "PRONG, whitened layers": {
            "update": 3.0,
            "forward": 0.5,
            "moments": 1.0,
            "eigenvectors": 1.5,
            "projection": 2.0,
        },
    }


def test_time_table_holds_both_sizes_and_the_paper(book):
    timing(book)
    assert prong.time_table().rows == [
        ["RMSprop / SGD", "30.0", "3.00", "9"],
        ["batch normalization / SGD", "15.0", "1.50", "2.3"],
        ["PRONG on a plain model / SGD", "10.0", "1.00", "–"],
        ["PRONG on whitened layers / SGD", "20.0", "2.00", "3.2"],
        ["plain model: Cholesky factors, %", "50.0", "5.00", "–"],
        ["whitened layers: eigenvectors and projection, %", "250", "25.0", "34"],
        ["whitened layers: statistics, %", "100", "10.0", "4"],
    ]


def test_recipe_table_adds_up():
    work = Work(forward=3.0, backward=7.0, precondition=2.0, statistics=1.0, inverse=50.0)
    total = Cost(
        work, images=100, epochs=2, batch=10, period=5, sample_size=10, flops_per_second=1.0
    )
    rows = dict(prong.recipe_table(work, total).rows)
    # 20 updates: gradients 2000, preconditioning 40, 4 renewals: statistics 160, inverses 200
    assert rows["operations for one image, forward and backward"] == "10.0"
    assert rows["updates"] == "20" and rows["operations in all"] == "2400"
    assert rows["share that SGD would not need, %"] == "16.7"
    assert rows["of it preconditioning, %"] == "10.0"
    assert rows["days at 1 operations a second"] == "0.0278"


# ---- The convolutional network


def convolutional(book: Book) -> None:
    """Store an even count of runs of two methods."""
    for method, losses, errors in (
        ("prong", (1.0, 9.0), (20.0, 30.0)),
        ("batchnorm", (2.0, 2.0), (24.0, 28.0)),
    ):
        curves = [
            [
                {"update": 10, "train": 8.0, "validation": 50.0},
                {"update": 20, "train": loss, "validation": 40.0 + loss},
            ]
            for loss in losses
        ]
        best = {"rate": 0.1, "momentum": 0.9, "second": 0.01 if method == "prong" else 0.0}
        values = {"curve": curves, "test": list(errors), "best": best}
        book.add("prong_convolutional.chapter", {"method": method}, values)


def test_convolutional_numbers(book):
    convolutional(book)
    assert prong.convolutional_methods() == ["batchnorm", "prong"]
    found = prong.convolutional_curves("prong", "validation")
    assert [list(part) for part in found] == [[10, 20], [50, 45], [50, 41], [50, 49]]
    assert prong.classification_losses("prong").tolist() == [1, 9]
    assert prong.final_loss("prong") == 5
    check(prong.loss_ratio("prong", "batchnorm"), 1.5, lower((1 / 2, 9 / 2)))
    check(prong.test_error("prong"), 25.0, 25 - 5 * T_2)
    assert prong.test_difference("prong", "batchnorm").tolist() == [-4, 2]
    table = prong.classification_table()
    assert table.rows == [
        ["batch normalization", "0.1", "–", "2.00", str(prong.test_error("batchnorm")), "8.22"],
        ["PRONG", "0.1", "0.01", "5.00", str(prong.test_error("prong")), "7.32"],
    ]
    assert table.caption.endswith("2 runs.")


# ---- Footnote 4


def store_searches(book: Book, seed: int, **errors: tuple[float, ...]) -> None:
    """Store the searches of the methods from one initialization, each of four settings."""
    places = [(rate, second) for rate in (0.1, 1.0) for second in (10.0, 0.01)]
    for method, ends in errors.items():
        search = [
            {"rate": rate, "second": second, "train": error}
            for (rate, second), error in zip(places, ends, strict=True)
        ]
        values = {"search": search, "mean_image": 10.0, "rate": 0.1, "train": [ends[0], 5.0]}
        settings = {"method": method, "second": [10.0, 0.01]}
        book.add("prong_backward.chapter", settings, values, seed=seed)


def twofold(book: Book) -> None:
    """Store searches of four settings: better than, as good as and worse than the mean image."""
    store_searches(
        book,
        seed=0,
        prong=(3.0, 10.0, 5.0, 50.0),
        backward=(6.0, 10.0, 12.0, 50.0),
        kfac=(2.0, 9.0, 8.0, 7.0),
    )


def test_settings_no_better_than_the_mean_image_are_useless(book):
    twofold(book)
    assert prong.mean_image() == prong.mean_image("kfac") == 10
    assert [prong.useful(m) for m in ("prong", "backward", "kfac")] == [2, 1, 4]
    assert [prong.useless_share(m) for m in ("prong", "backward", "kfac")] == [50, 75, 0]
    assert prong.tried_settings() == 4
    assert [prong.best_searched(m) for m in ("prong", "backward", "kfac")] == [3, 6, 2]
    check(prong.searched_again("prong"), 4.0, 4 - T_2)
    assert prong.searched("prong") == {
        0.01: [(0.1, 10.0), (1.0, 50.0)],
        10.0: [(0.1, 3.0), (1.0, 5.0)],
    }
    table = prong.twofold_table()
    assert [row[0] for row in table.rows] == ["PRONG", "footnote 4", "K-FAC"]
    assert table.rows[1] == [
        "footnote 4",
        "6.00",
        "0.1",
        str(prong.searched_again("backward")),
        "75.0",
    ]


def test_settings_diverge_if_they_end_above_what_the_least_step_size_leaves(book):
    twofold(book)
    # the least step size leaves at most 10, of any method; 12 is useless and diverged, 10 is not
    assert [list(prong.diverged(m)) for m in ("prong", "backward", "kfac")] == [[1], [2], [0]]
    assert prong.diverged_more() == 1 and prong.diverged_more("kfac", "backward") == -2
    assert prong.diverged_settings("backward") == Interval(2, 2, 2, 1)


def test_settings_that_diverge_are_counted_for_each_initialization(book):
    twofold(book)
    # the second starts higher: its least step size leaves 60, and one setting of footnote 4 more
    store_searches(
        book,
        seed=1,
        prong=(60.0, 20.0, 50.0, 60.0),
        backward=(55.0, 60.0, 61.0, 1000.0),
        kfac=(10.0, 10.0, 10.0, 1000.0),
    )
    assert [list(prong.diverged(m)) for m in prong.COMPARED] == [[1, 0], [2, 2], [0, 1]]
    assert list(prong.diverged_more()) == [1, 2]
    found = prong.diverged_settings("prong")
    assert isinstance(found, Interval)
    check(found, 0.5)
    assert prong.best_searched("prong") == 3  # what is drawn is the first
    check(prong.searched_again("prong"), 4.0)


def test_slow_settings_and_those_that_are_no_number_are_told_apart(book):
    for method, end in (("prong", 39.0), ("backward", math.nan), ("kfac", 41.0)):
        search = [{"rate": 0.1, "second": 1.0, "train": 40.0}]
        search += [{"rate": 1.0, "second": 1.0, "train": end}]
        values = {"search": search, "mean_image": 10.0}
        book.add("prong_backward.chapter", {"method": method, "second": [1.0]}, values)
    assert [prong.useful(m) for m in prong.COMPARED] == [0, 0, 0]  # useless are all, stable one
    assert [list(prong.diverged(m)) for m in prong.COMPARED] == [[0], [1], [1]]


# ---- What the ledger and the chapter name


def test_every_claim_names_a_function():
    for claim in ledger.load("claims", "prong"):
        if claim.experiment:
            assert np.size(ledger.measured(claim).each), claim.id


def test_every_method_has_a_full_run_at_the_papers_size_at_a_setting_that_was_tried():
    runs = prong.paper_runs()
    assert set(runs) == {"sgd", "rmsprop", "batchnorm", "prong", "prong+"}
    for method, record in runs.items():
        best = tuple(record["best"][key] for key in ("rate", "momentum", "second"))
        assert record.settings["updates"] == 5000 and best in prong.tried(method)
        assert len(prong.tried(method)) >= 3
