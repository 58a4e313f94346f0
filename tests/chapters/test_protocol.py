"""The protocol of comparisons, kept by every claim whose name ends in -fair; and what all rows say
of their criteria.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from natcompanion.chapters import experiments, ledger
from natcompanion.chapters.experiments import Result, Results
from natcompanion.chapters.experiments.encoding import digest

FAIR = [claim for claim in ledger.load("claims") if claim.id.endswith("-fair")]
EXPERIMENTS = sorted({claim.experiment for claim in FAIR})
RIVALS = {"sgd", "adamw", "kfac", "muon"}
EXEMPT = {
    ("whitening_rivals", "digits"): {
        "kfac": "one layer with one output: its factors are a second moment and a number",
        "muon": "the weights of one output are no matrix",
    },
    ("whitening_rivals", "machine"): {
        "kfac": "a Boltzmann machine has no layers, so that there are no factors",
        "muon": "the couplings of a visible machine are one number for each pair",
    },
    ("whitening_rivals", "separation"): {
        "kfac": "the loss holds the determinant of the weights, not what a layer puts out alone",
    },
    ("boltzmann_rivals", ""): {
        "kfac": "a Boltzmann machine has no layers, so that there are no factors",
    },
    ("after_poisson", ""): {
        "kfac": "each layer serves values and derivatives, which needs factors of its own",
    },
}
"""Why a problem of an experiment has no K-FAC or no Muon; ``protocol.md`` has the same list."""


def breaches(tuning: Results, report: Results) -> list[str]:
    """Return what in a search and its report is not as the protocol says, problem by problem."""
    parts = [by_problem(tuning), by_problem(report)]
    if parts[0].keys() != parts[1].keys():
        return [f"problems {sorted(parts[1])} reported, {sorted(parts[0])} searched"]
    return [text for key in parts[0] for text in breaches_of(parts[0][key], parts[1][key])]


def by_problem(results: Results) -> dict[str, Results]:
    """Return the records of each problem, if an experiment has several."""
    names = {record.settings.get("problem", "") for record in results}
    return {
        name: replace(
            results,
            records=tuple(r for r in results if r.settings.get("problem", "") == name),
        )
        for name in names
    }


def breaches_of(tuning: Results, report: Results) -> list[str]:
    """Return the same for one problem."""
    found = []
    name = next((record.settings.get("problem", "") for record in tuning), "")
    needed = RIVALS - EXEMPT.get((tuning.experiment, name), {}).keys()
    searched = {
        method: {record.identity[0] for record in tuning.select(method=method)}
        for method in {record.settings["method"] for record in tuning}
    }
    if len(set(map(len, searched.values()))) > 1 or min(map(len, searched.values())) < 12:
        counts = {method: len(settings) for method, settings in searched.items()}
        found.append(f"settings searched: {counts}")
    seeds: dict[tuple, set] = {}
    for record in tuning:
        seeds.setdefault(record.identity[:1], set()).add(record.seed)
    tuned = set.union(*seeds.values())
    if any(each != tuned for each in seeds.values()) or len(tuned) < 2:
        found.append("settings with other tuning seeds than the rest")
    reported: dict[str, set] = {}
    for record in report:
        reported.setdefault(record.settings["method"], set()).add(record.seed)
    if set(reported) != set(searched):
        found.append(f"reported {sorted(reported)}, searched {sorted(searched)}")
    if any(each != set.union(*reported.values()) for each in reported.values()):
        found.append("methods with other reported seeds than the rest")
    if min(map(len, reported.values())) < 5:
        found.append("fewer than five reported seeds")
    if set.union(*reported.values()) & tuned:
        found.append("seeds that are tuned and reported")
    known = {"sgd" if method == "momentum" else method for method in searched}  # SGD with momentum
    if missing := needed - known:
        found.append(f"not among the methods: {', '.join(sorted(missing))}")
    if not any(record.settings["momentum"] for record in tuning):
        found.append("no momentum")
    return found


def test_there_are_fair_rows():
    assert len(FAIR) >= 3


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_search_and_report_follow_the_protocol(name):
    experiment, _ = name.split(".")
    tuning, report = experiments.load(experiment, "tuning"), experiments.load(*name.split("."))
    assert breaches(tuning, report) == []
    assert tuning.states.keys() == report.states.keys() == {"current"}


@pytest.mark.parametrize("claim", FAIR, ids=lambda claim: claim.id)
def test_the_criterion_is_the_one_that_stood_when_the_runs_began(claim):
    report = experiments.load(*claim.experiment.split("."))
    assert {record.criteria.get(claim.id) for record in report} == {digest(claim.criterion)}


def runs(
    preset: str, seeds: tuple[int, ...], settings: int = 12, problem: str | None = None
) -> Results:
    """Return records of four methods by hand."""

    def run(method: str, lr: int, seed: int) -> Result:
        settings = {"method": method, "lr": lr, "momentum": 0.9}
        settings |= {"problem": problem} if problem else {}
        return Result("toy", preset, seed, settings, {}, "cpu", 1, 0.0, None, {})

    records = tuple(
        run(method, lr, seed)
        for method in sorted(RIVALS)
        for lr in range(settings)
        for seed in seeds
    )
    return Results("toy", preset, records)


GOOD = runs("tuning", (100, 101)), runs("paper", (0, 1, 2, 3, 4), 1)


def both(one: Results, other: Results) -> Results:
    """Return the records of both."""
    return replace(one, records=one.records + other.records)


TWO = (
    both(runs("tuning", (100, 101), 12, "a"), runs("tuning", (100, 101), 13, "b")),
    both(runs("paper", tuple(range(5)), 1, "a"), runs("paper", tuple(range(6)), 1, "b")),
)


def without(results: Results, **settings: object) -> Results:
    """Return the records but one that has these settings."""
    gone = results.select(**settings).records[0]
    return replace(results, records=tuple(r for r in results if r is not gone))


def only(*methods: str) -> Results:
    """Return the search of some methods."""
    records = tuple(r for r in GOOD[0] if r.settings["method"] in methods)
    return replace(GOOD[0], records=records)


@pytest.mark.parametrize(
    ("tuning", "report", "said"),
    [
        (*GOOD, None),
        (runs("tuning", (100, 101), 11), GOOD[1], "settings searched"),
        (without(GOOD[0], method="sgd", lr=3, seed=100), GOOD[1], "other tuning seeds"),
        (runs("tuning", (100,)), GOOD[1], "other tuning seeds"),
        (GOOD[0], runs("paper", (0, 1, 2, 3), 1), "fewer than five"),
        (GOOD[0], runs("paper", (0, 1, 2, 3, 100), 1), "tuned and reported"),
        (GOOD[0], without(GOOD[1], method="sgd"), "other reported seeds"),
        (GOOD[0], GOOD[1].select(method="sgd"), "reported ['sgd'], searched"),
        (GOOD[0].select(method="sgd"), GOOD[1].select(method="sgd"), "adamw, kfac, muon"),
        (only("adamw", "sgd"), GOOD[1], "not among the methods: kfac, muon"),
        (*TWO, None),
        (TWO[0], TWO[1].select(problem="a"), "problems"),
        (TWO[0], without(TWO[1], problem="b", method="sgd"), "other reported seeds"),
    ],
)
def test_a_breach_is_named(tuning, report, said):
    found = breaches(tuning, report)
    assert found == [] if said is None else any(said in text for text in found)


def test_a_changed_criterion_is_noticed():
    (claim, *_), changed = FAIR, {"reproduced": "low > 0.51"}
    assert digest(claim.criterion) != digest(changed)


def test_who_is_exempt_is_not_among_the_rivals_and_the_page_says_why():
    page = (Path(__file__).resolve().parents[2] / "book" / "protocol.md").read_text()
    for (name, problem), reasons in EXEMPT.items():
        found = by_problem(experiments.load(name, "tuning", allow_stale=True))[problem]
        assert not reasons.keys() & {record.settings["method"] for record in found}
        assert all(reason in page for reason in reasons.values())


AFTER = re.compile(r"criterion was (written|changed) (after the runs|when these runs were known)")


def silent(claim: ledger.Claim) -> bool:
    """Return whether records have another criterion than the claim, or none, and its note is silent
    about that.
    """
    report = experiments.load(*claim.experiment.split("."), allow_stale=True)
    stood = {record.criteria.get(claim.id) for record in report} == {digest(claim.criterion)}
    return not stood and not AFTER.search(claim.note or "")


MEASURED = [claim for claim in ledger.load("claims") if claim.experiment]


def test_a_criterion_that_did_not_stand_when_the_runs_began_is_said_to_be_later():
    assert [claim.id for claim in MEASURED if silent(claim)] == []


def test_a_silent_note_is_noticed():
    """The negative controls: a note without these words, and a criterion that is changed."""
    (late, *_) = [c for c in MEASURED if AFTER.search(c.note or "") and not c.id.endswith("-fair")]
    assert silent(replace(late, note="Why."))
    assert silent(replace(FAIR[0], criterion={"reproduced": "low > 0.51"}))
