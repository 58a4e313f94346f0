"""The ledgers' schema, loader, measured values and verdicts, on small files with one mistake
each.
"""

import importlib.util
import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from docutils import nodes
from docutils.utils import new_document

from natcompanion import optim
from natcompanion.chapters import ledger, numbers
from natcompanion.chapters.experiments import Result, store, verifying
from natcompanion.chapters.figures import scoreboard as figures
from natcompanion.chapters.ledger import Claim, LedgerError
from natcompanion.chapters.numbers import boltzmann, scoreboard, stored
from natcompanion.chapters.statistics import ratio_interval

CLAIM = {
    "id": "whitening-faster",
    "paper": "whitening",
    "where": "Figure 1",
    "claim": "It is faster.",
    "paper_value": None,
    "experiment": "toy.quick",
    "measure": "fast_over_slow",
    "criterion": {"reproduced": "high < 1", "partly": "value < 1"},
    "verdict": "reproduced",
}
TESTED = {
    key: CLAIM[key] for key in ("id", "paper", "where", "claim", "paper_value", "verdict")
} | {"test": "tests/test_a.py::test_b"}
EQUATION = {
    "paper": "whitening",
    "number": 35,
    "says": "Ridge.",
    "status": "verified",
    "function": "natcompanion.solvers.damped_solve",
    "test": "tests/test_a.py::test_b[1-x]",
}
ERRATUM = {
    "paper": "rfim",
    "where": "Eq. 3",
    "printed": "plus",
    "right": "minus",
    "evidence": "tests/book/test_a.py::T::test_b",
    "severity": "misprint",
}


def write(folder, name, *entries):
    (folder / f"{name}.yml").write_text(yaml.safe_dump(list(entries), allow_unicode=True))


def test_good_entries(tmp_path):
    write(tmp_path, "claims", CLAIM, TESTED | {"id": "whitening-b"})
    write(
        tmp_path,
        "equations",
        EQUATION,
        EQUATION | {"number": "B.3", "status": "definition", "function": None, "test": None},
    )
    write(tmp_path, "errata", ERRATUM)
    assert [type(ledger.load(name, folder=tmp_path)[0]) for name in ledger.LEDGERS] == list(
        ledger.LEDGERS.values()
    )
    assert [e.number for e in ledger.load("equations", "whitening", folder=tmp_path)] == [35, "B.3"]
    assert ledger.load("errata", "whitening", folder=tmp_path) == []
    assert ledger.counts("claims", folder=tmp_path)["whitening"]["reproduced"] == 2


BAD = [
    ("claims", CLAIM, {"colour": "red"}, "unknown key colour; the keys are id, paper"),
    ("claims", CLAIM, {"where": ...}, "missing key where"),
    (
        "claims",
        CLAIM,
        {"paper": "newton"},
        "paper: expected one of whitening, revisiting.*got 'newton'",
    ),
    ("claims", CLAIM, {"verdict": "true"}, "verdict: expected one of reproduced, partly"),
    ("claims", CLAIM, {"id": "Faster"}, "id: expected whitening-…"),
    ("claims", CLAIM, {"id": "rfim-faster"}, "id: expected whitening-…"),
    ("claims", CLAIM, {"claim": " "}, "claim: expected some text"),
    ("claims", CLAIM, {"where": 3}, "where: expected some text, got 3"),
    ("claims", CLAIM, {"verdict": "partly"}, "note: expected the reason"),
    ("claims", CLAIM, {"experiment": "toy"}, "experiment: expected name.preset"),
    ("claims", CLAIM, {"measure": ...}, "measure: expected some text"),
    ("claims", CLAIM, {"criterion": "high < 1"}, "criterion: expected the keys reproduced"),
    (
        "claims",
        CLAIM,
        {"criterion": {"partly": "high < 1"}},
        "criterion: expected the keys reproduced",
    ),
    (
        "claims",
        CLAIM,
        {"criterion": {"reproduced": "n", "not reproduced": "n"}},
        "criterion: expected the keys",
    ),
    (
        "claims",
        CLAIM,
        {"criterion": {"reproduced": True}},
        "criterion: expected expressions as text, got True",
    ),
    (
        "claims",
        CLAIM,
        {"test": "tests/test_a.py::test_b"},
        "test: expected null, because there is an experiment",
    ),
    (
        "claims",
        CLAIM,
        {"verdict": "not testable here", "note": "x"},
        "'not testable here' has no experiment",
    ),
    ("claims", TESTED, {"measure": "1"}, "measure: expected null, because there is no experiment"),
    ("claims", TESTED, {"test": ...}, "expected an experiment or a test"),
    (
        "claims",
        TESTED,
        {"verdict": "not testable here", "note": "x"},
        "expected an experiment or a test",
    ),
    ("claims", TESTED, {"test": "test_b"}, "test: expected a pytest node id"),
    ("claims", TESTED, {"verdict": "undecided", "note": "x"}, "only an interval of an experiment"),
    ("claims", TESTED, {"turns": {"a seed": "partly"}}, "turns: expected null"),
    ("claims", CLAIM, {"turns": {}}, "turns: expected moves and verdicts"),
    ("claims", CLAIM, {"turns": "a seed"}, "turns: expected moves and verdicts"),
    ("claims", CLAIM, {"turns": {" ": "partly"}}, "turns: expected a move in words"),
    ("claims", CLAIM, {"turns": {"a seed": "reproduced"}}, "turns: expected another verdict"),
    ("claims", CLAIM, {"turns": {"a seed": "not testable here"}}, "turns: expected another"),
    ("equations", EQUATION, {"number": 3.5}, "number: expected a number or a label"),
    ("equations", EQUATION, {"number": True}, "number: expected a number or a label"),
    ("equations", EQUATION, {"status": "right"}, "status: expected one of verified"),
    ("equations", EQUATION, {"function": None}, "function: expected natcompanion"),
    (
        "equations",
        EQUATION,
        {"function": "numpy.linalg.inv"},
        "function: expected a dotted path natcompanion",
    ),
    ("equations", EQUATION, {"test": None}, "test: expected a pytest node id"),
    ("equations", EQUATION, {"test": "src/test_a.py::b"}, "test: expected a pytest node id"),
    ("equations", EQUATION, {"correction": "minus"}, "correction: expected for the status"),
    (
        "equations",
        EQUATION,
        {"status": "verified with correction"},
        "correction: expected for the status",
    ),
    ("errata", ERRATUM, {"severity": "bad"}, "severity: expected one of misprint"),
    ("errata", ERRATUM, {"evidence": None}, "evidence: expected a pytest node id"),
    ("errata", ERRATUM, {"printed": None}, "printed: expected some text"),
]


@pytest.mark.parametrize(("name", "good", "change", "message"), BAD)
def test_bad_entries_are_named(tmp_path, name, good, change, message):
    entry = {key: value for key, value in (good | change).items() if value is not ...}
    other = {"id": "whitening-other", "number": 1, "where": "elsewhere"}
    first = {**good, **{key: value for key, value in other.items() if key in good}}
    write(tmp_path, name, first, entry)
    with pytest.raises(LedgerError, match=rf"{name}\.yml: entry 2.*: .*{message}"):
        ledger.load(name, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "good"), [("claims", CLAIM), ("equations", EQUATION), ("errata", ERRATUM)]
)
def test_no_entry_twice(tmp_path, name, good):
    write(tmp_path, name, good, good)
    with pytest.raises(LedgerError, match=r"entry 2 .*is there twice"):
        ledger.load(name, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "expected a list of entries, got dict"),
        ("- 3", "entry 1: expected keys and values, got 3"),
        ("- id: a\n  id: b", "line 1: key 'id' is given twice"),
        ("- id: [", "claims.yml: while parsing"),
        ("- id: !!python/name:os.system", "could not determine a constructor"),
    ],
)
def test_bad_files(tmp_path, text, message):
    (tmp_path / "claims.yml").write_text(text)
    with pytest.raises(LedgerError, match=message):
        ledger.load("claims", folder=tmp_path)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(LedgerError, match="claims.yml"):
        ledger.load("claims", folder=tmp_path)
    (tmp_path / "claims.yml").write_text("# nothing yet\n")
    assert ledger.load("claims", folder=tmp_path) == []
    with pytest.raises(LedgerError, match="expected one of claims, equations, errata"):
        ledger.load("claim", folder=tmp_path)


@pytest.fixture
def results(tmp_path):
    """Store ten records in which ``fast / slow`` is 0.5, 0.6, ... 1.4."""
    for seed in range(10):
        values = {
            "fast": 0.5 + seed / 10,
            "slow": 1.0,
            "many": [1.0, 2.0, 3.0],
            "nested": {"win": seed < 9},
        }
        store.merge(
            Result("toy", "quick", seed, {"rate": 0.1}, values, "cpu", 1, 0.1, None, {}), tmp_path
        )
    return tmp_path


def claim(**changes) -> Claim:
    return Claim(**(CLAIM | {"note": "why"} | changes))


def test_measured_value_and_interval(results):
    found = ledger.measured(claim(unit="of the time"), folder=results)
    assert found.interval.n == 10 and found.interval.mean == pytest.approx(0.95)
    half = 2.262 * np.std(0.5 + np.arange(10) / 10, ddof=1) / np.sqrt(10)
    assert found.interval.high == pytest.approx(0.95 + half, abs=1e-3)
    assert str(found) == "0.950 [0.733, 1.17] (n = 10) of the time"


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        # the mean is 0.950, its interval [0.733, 1.167]
        ({"reproduced": "high < 1", "partly": "value < 1"}, "undecided"),
        ({"reproduced": "high < 1.2", "partly": "value < 1"}, "reproduced"),
        ({"reproduced": "high < 1"}, "undecided"),
        ({"reproduced": "low > 1"}, "undecided"),
        ({"reproduced": "value < 1"}, "reproduced"),
        ({"reproduced": "value > 1"}, "undecided"),
        ({"reproduced": "high < 0.7", "partly": "high < 1.2"}, "partly"),
        ({"reproduced": "high < 0.7", "partly": "high < 1"}, "undecided"),
        ({"reproduced": "high < 0.7", "partly": "value < 1"}, "undecided"),
        ({"reproduced": "high < 0.7"}, "not reproduced"),
        ({"reproduced": "high < 0", "partly": "low > 1.2"}, "not reproduced"),
        ({"reproduced": "low > 0.9 and high < 1"}, "undecided"),  # holds between its ends only
        ({"reproduced": "low > 1.2 or high < 0.95"}, "undecided"),
        ({"reproduced": "value == 1"}, "undecided"),
        ({"reproduced": "value == -1"}, "not reproduced"),
        ({"reproduced": "all(each < 1)"}, "not reproduced"),  # no interval: a count
        ({"reproduced": "middle > 1"}, "undecided"),  # the median is 0.95
        ({"reproduced": "middle < 1"}, "reproduced"),
        ({"reproduced": "middle > 1.2"}, "not reproduced"),
        ({"reproduced": "n > 10", "partly": "low > 0.5"}, "partly"),
        (
            {"reproduced": "n == 10 and middle < 1 and min(each) > 0.4 and all(each < 2)"},
            "reproduced",
        ),
    ],
)
def test_the_verdict_follows_the_criterion(results, criterion, expected):
    assert ledger.verdict(claim(criterion=criterion), folder=results) == expected


def test_an_undecided_claim_says_how_small_an_effect_its_values_show(results):
    found = ledger.measured(claim(), folder=results)
    assert found.interval.effect == pytest.approx(2.262 * 0.30277 / np.sqrt(10), rel=1e-3)
    assert found.resolution == "10 values show a difference of 0.217 or more"
    ratio = ledger.measured(claim(measure="interval"), folder=results)
    assert ratio.interval.effect == pytest.approx(np.sqrt(1.15 / 0.708), rel=1e-2)
    assert ratio.resolution == "10 values show a factor of 1.28 or more"


ALL_LEFT_OUT = {"10 of 10 units, each left out alone": "not reproduced"}


@pytest.mark.parametrize(
    ("criterion", "turned"),
    [
        # the mean is 0.950, its interval [0.733, 1.167]; the values go from 0.5 to 1.4
        ({"reproduced": "high < 1.24"}, {"bounds 20 % lower": "undecided"}),
        ({"reproduced": "low > 0.65"}, {"bounds 20 % higher": "undecided"}),
        ({"reproduced": "high < 1.6"}, {}),
        ({"reproduced": "low > 0.1 and n > 9"}, ALL_LEFT_OUT),
        ({"reproduced": "value == 3"}, {}),
        (
            {"reproduced": "min(each) < 0.52"},
            {
                "1 of 10 units, each left out alone": "not reproduced",
                "bounds 20 % lower": "not reproduced",
            },
        ),
    ],
)
def test_small_moves_that_turn_a_verdict_over_are_named(results, criterion, turned):
    assert ledger.turned_by(claim(criterion=criterion), folder=results) == turned


def test_moves_that_a_claim_names_join_those_that_are_computed(results):
    """A named move counts unless it leads to the verdict that the runs give."""
    named, firm = {"another grid": "partly"}, {"reproduced": "high < 1.6"}
    assert ledger.turned_by(claim(criterion=firm), folder=results) == {}
    assert ledger.turned_by(claim(criterion=firm, turns=named), folder=results) == named
    near = claim(criterion={"reproduced": "high < 1.24"}, turns=named)
    assert ledger.turned_by(near, folder=results) == {"bounds 20 % lower": "undecided"} | named
    partly = {"reproduced": "high < 0", "partly": "high < 1.6"}
    assert ledger.turned_by(claim(criterion=partly, turns=named), folder=results) == {}


def test_a_bound_on_a_share_moves_within_the_whole(results):
    """9 of 10, interval 55 to 100 %: a bound of 0.5 becomes 0.6, one of 0.9 becomes 0.92."""
    share = {"measure": "wins", "criterion": {"reproduced": "low > 0.5"}}
    assert "bounds 20 % higher" in ledger.turned_by(claim(**share), folder=results)
    assert ledger._scaled("low > 0.9", 1.2, 1.0) == f"low > {1 - (1 - 0.9) * 0.8}"
    assert ledger._scaled("low > 0.9", 1.2, None) == f"low > {0.9 * 1.2}"
    assert ledger._scaled("low > -2 and n > 3 and all(each == 1)", 0.8, None) == (
        "low > -1.6 and n > 3 and all(each == 1)"
    )


def test_a_run_with_other_instructions_is_a_small_move(results, monkeypatch):
    monkeypatch.setenv("NATCOMPANION_RESULTS", str(results))
    firm = claim(criterion={"reproduced": "high < 1.6"})
    file = {firm.experiment: {firm.id: "undecided", "another": "partly"}}
    verifying.turned_file(results).write_text(json.dumps(file))
    expected = {"a run with other instructions": "undecided"}
    assert ledger.turned_by(firm, folder=results) == expected
    file[firm.experiment][firm.id] = "reproduced"  # as it is
    verifying.turned_file(results).write_text(json.dumps(file))
    assert ledger.turned_by(firm, folder=results) == {}


def test_the_verdict_follows_the_result(results):
    """A written verdict does not count: other stored numbers give another verdict."""
    wrong = claim(verdict="not reproduced", criterion={"reproduced": "value < 1"})
    assert ledger.verdict(wrong, folder=results) == "reproduced"
    slow = Result(
        "toy", "quick", 0, {"rate": 0.1}, {"fast": 9.0, "slow": 1.0}, "cpu", 1, 0.1, None, {}
    )
    store.merge(slow, results)
    assert ledger.verdict(wrong, folder=results) == "undecided"


MEASURES = {
    "fast_over_slow": lambda toy: toy.values("fast") / toy.values("slow"),
    "wins": lambda toy: toy.values("nested.win"),
    "faster": lambda toy: toy.values("fast") < toy.values("slow"),
    "mean": lambda toy: float(np.mean(toy.values("fast"))),
    "rows": lambda toy: toy.values("many").mean(axis=1),
    "enough": lambda toy: len(toy) > 3,
    "interval": lambda toy: ratio_interval(toy.values("fast") / toy.values("slow")),
    "nothing": lambda toy: toy.values("nothing"),
    "table": lambda toy: toy.values("many"),
    "four": lambda toy: toy.values("fast")[:4],
    "interval_of_four": lambda toy: ratio_interval(toy.values("fast")[:4]),
    "infinite": lambda toy: toy.values("fast") * np.inf,
    "text": lambda _: "text",
    "unknown": lambda toy: toy.values("fast", speed=1),
}


@pytest.fixture(autouse=True)
def measures(monkeypatch):
    """Functions of the toy's results in the place of a paper's numbers."""
    module = types.ModuleType("natcompanion.chapters.numbers.whitening")
    for name, measure in MEASURES.items():

        def function(measure=measure):
            return measure(numbers.stored("toy.quick"))

        function.__module__ = module.__name__
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize(
    ("measure", "text"),
    [
        ("wins", "9 of 10 (55% to 100%)"),
        ("faster", "5 of 10 (19% to 81%)"),
        ("mean", "0.95"),
        ("rows", "2.00 (all equal) (n = 10)"),
        ("enough", "True"),
        ("interval", "0.904 [0.708, 1.15] (n = 10)"),
    ],
)
def test_measures(results, measure, text):
    assert str(ledger.measured(claim(measure=measure), folder=results)) == text


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("nothing", "no value 'nothing'"),
        ("table", "one number for each seed or problem, got shape"),
        ("four", "at least 5, got 4"),
        ("interval_of_four", "at least 5, got 4"),
        ("infinite", "finite numbers"),
        ("text", "finite numbers"),
        ("unknown", "no setting speed"),
        ("nobody_wrote_this", "no function 'nobody_wrote_this'"),
        ('values("fast") / 2', "a function in numbers, or a call with literals"),
        ("wins.__class__", "a function in numbers, or a call with literals"),
        ('__import__("os")', "no function '__import__'"),
        ("wins(wins)", "a function in numbers, or a call with literals"),
    ],
)
def test_bad_measures(results, measure, message):
    with pytest.raises(LedgerError, match=f"whitening-faster: .*{message}"):
        ledger.measured(claim(measure=measure), folder=results)


def test_nothing_stored(tmp_path):
    with pytest.raises(
        LedgerError,
        match="whitening-faster: no stored results.*natcompanion sweep toy --preset quick",
    ):
        ledger.verdict(claim(), folder=tmp_path)


def test_a_bad_criterion_is_named(results):
    with pytest.raises(LedgerError, match="'higher < 1': 'higher' is not a comparison"):
        ledger.verdict(claim(criterion={"reproduced": "higher < 1"}), folder=results)


def test_a_claim_settled_by_a_test_keeps_its_verdict(tmp_path):
    entry = Claim(**TESTED)
    assert (
        ledger.measured(entry, folder=tmp_path) is None
        and ledger.verdict(entry, folder=tmp_path) == "reproduced"
    )
    assert ledger.verdict(replace(entry, verdict="partly", note="x"), folder=tmp_path) == "partly"


def test_report(results, tmp_path):
    write(
        tmp_path,
        "claims",
        CLAIM | {"verdict": "partly", "note": "why"},
        TESTED | {"id": "whitening-b"},
    )
    first, second = ledger.report("whitening", folder=tmp_path, results=results).splitlines()
    assert first.startswith("UNDECIDED") and "measured 0.950 [0.733, 1.17] (n = 10)" in first
    assert "these 10 values show a difference of 0.217 or more" in first
    assert second.startswith("REPRODUCED") and "by tests/test_a.py::test_b" in second


def test_resolve():
    assert ledger.resolve("natcompanion.chapters.ledger.load") is ledger.load
    assert (
        ledger.resolve("natcompanion.optim.natural_space") is optim.natural_space
    )  # its module has the same name
    for path in ("natcompanion.chapters.ledger.lode", "natcompanion.nothing.x"):
        with pytest.raises(LedgerError, match=path):
            ledger.resolve(path)


@pytest.mark.parametrize("name", list(ledger.LEDGERS))
def test_the_picture_shows_what_the_words_say(name):
    figure, words, tally = figures.draw(name), figures.describe(name), ledger.counts(name)
    widths = sum(bar.get_width() for container in figure.axes[0].containers for bar in container)
    assert widths == sum(sum(row.values()) for row in tally.values())
    for paper, row in tally.items():
        assert (
            all(f"{count} {kind}" in words for kind, count in row.items() if count)
            and paper in words
        )
    assert figure.get_facecolor() == (1, 1, 1, 1)


def test_the_summary_adds_up():
    rows = scoreboard.summary_table().rows
    assert [row[0] for row in rows] == list(ledger.PAPERS)
    assert scoreboard.summary_table().columns[2:-2] == list(ledger.VERDICTS)
    for row in rows:
        claims, *verdicts = map(int, row[1:-2])
        assert claims == sum(verdicts)
    for column, name in ((1, "claims"), (-2, "equations"), (-1, "errata")):
        assert scoreboard.total(name) == sum(int(row[column]) for row in rows)
        assert scoreboard.total(name) == len(ledger.load(name))


def test_cost(results):
    """Ten runs of 0.1 s; ``toy`` is of no paper, so only the sum has it."""
    assert scoreboard.cost(results) == [("All", "1", "10", "below 1 h")]
    long = Result("rfim_x", "paper", 0, {}, {}, "cpu", 1, 5500.0, None, {})
    store.merge(long, results)
    first, *_, last = scoreboard.cost(results)
    assert first[1:] == ("1", "1", "2 h") and last[1:] == ("2", "11", "2 h")
    store.merge(replace(long, commit="a+changes", fingerprint="0", seed=1), results)
    assert scoreboard.trust("rfim", results) == (
        "Stored runs behind this page: 2, of which 1 legacy, 1 stale (legacy: made before records "
        "carried the fingerprint of their code; stale: made by other code than today's)."
    )
    assert scoreboard.trust("prong", results) == ""


def test_what_a_claim_costs(tmp_path, monkeypatch):
    """A claim on a report and its search, one on the report alone, and one settled by a test."""
    point = {"lr": 0.5, "momentum": 0.9}
    for seed in range(5):
        for preset, seconds, threads in (("paper", 2.0, 1), ("tuning", 30.0, 2)):
            store.merge(
                Result(
                    "boltzmann_rivals",
                    preset,
                    seed,
                    {"method": "natural", **point},
                    {"steps_to_target": 10 + seed},
                    "cpu",
                    threads,
                    seconds,
                    None,
                    {},
                ),
                tmp_path,
            )
    store.merge(Result("rfim_x", "quick", 0, {}, {}, "cpu", 1, 1e6, None, {}), tmp_path)
    fair = next(row for row in ledger.load("claims") if row.id == "boltzmann-natural-fair")
    report = "boltzmann_rivals.paper"
    monkeypatch.setattr(boltzmann, "of_the_report", lambda: len(stored(report)), raising=False)
    monkeypatch.setattr(boltzmann.of_the_report, "__module__", boltzmann.__name__)
    tested = next(row for row in ledger.load("claims") if row.experiment is None)
    claims = [
        replace(fair, id="boltzmann-searched", measure="rival_median('natural')"),
        replace(fair, id="boltzmann-reported", measure="of_the_report"),
        tested,
    ]
    monkeypatch.setattr(ledger, "load", lambda name: claims)
    assert scoreboard.rests_on(claims[0], tmp_path) == {report, "boltzmann_rivals.tuning"}
    assert scoreboard.rests_on(claims[1], tmp_path) == {report}
    assert scoreboard.rests_on(claims[2], tmp_path) == set()
    # five runs of 2 s, and five of 30 s on two threads; a run that no claim reads costs nothing
    assert scoreboard.claim_costs(tmp_path) == {
        "boltzmann-searched": 310.0,
        "boltzmann-reported": 10.0,
    }
    assert scoreboard.all_claims_cost(tmp_path) == 310.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "below 1 h"), (1799, "below 1 h"), (1801, "1 h"), (5401, "2 h"), (7200, "2 h")],
)
def test_duration(seconds, text):
    assert scoreboard.duration(seconds) == text


def test_a_page_says_which_records_it_rests_on(results, tmp_path):
    """The note goes to the end of the last section of a chapter, and of no other page."""
    path = Path(ledger.__file__).parents[2] / "book" / "_ext" / "ledger.py"
    spec = importlib.util.spec_from_file_location("ledger_directives", path)
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    store.merge(Result("rfim_x", "paper", 0, {}, {}, "cpu", 1, 1.0, None, {}), results)
    (tmp_path / "book").mkdir(exist_ok=True)
    (tmp_path / "book" / "results").symlink_to(results)

    def noted(page: str) -> str:
        doctree = new_document("page")
        doctree += [nodes.section("", nodes.title("", "First")), nodes.section("")]
        app = SimpleNamespace(env=SimpleNamespace(docname=page), srcdir=tmp_path)
        extension.add_note(app, doctree)
        return doctree.children[-1].astext()

    assert noted("book/rfim").startswith("Stored runs behind this page: 1, of which 1 legacy")
    assert noted("book/intro") == noted("book/prong") == ""


def test_the_score_of_the_tests_is_counted_from_its_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("NATCOMPANION_RESULTS", str(tmp_path))
    tests = [
        ("numbers", "tests/test_a.py::test_b"),
        ("numbers", None),
        ("figures", "x::y"),
        ("a", "b"),
    ]
    rows = [{"kind": kind, "caught_by": test} for kind, test in tests]
    score = {"coverage": {"library": 98.5, "chapters": 97.6}, "rows": rows}
    (tmp_path / "mutation.json").write_text(json.dumps(score))
    assert (scoreboard.mutants(), scoreboard.caught(), scoreboard.caught_share()) == (4, 3, 75)
    assert (scoreboard.mutants("numbers"), scoreboard.caught("numbers")) == (2, 1)
    assert scoreboard.coverage("library") == 98.5


def test_the_stored_score_is_what_was_promised():
    """At least 80 mutants, 95 % of them caught by a named test, 90 % of the library's lines run."""
    assert scoreboard.mutants() >= 80 and scoreboard.caught_share() >= 95
    assert scoreboard.coverage("library") >= 90
    named = {row["caught_by"] for row in scoreboard.score()["rows"]} - {None}
    root = Path(__file__).resolve().parents[2]
    for test in named:
        file, _, name = test.partition("::")
        function = name.partition("[")[0].rpartition(".")[2]  # a doctest has dots
        assert f"def {function}(" in (root / file).read_text(), test
