"""The real ledgers: every verdict follows from stored results, and every test they name exists and
passes.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from natcompanion.chapters import cli, ledger, pages
from natcompanion.chapters.statistics import interval

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = {name: ledger.load(name) for name in ledger.LEDGERS}
FIELD = {"claims": "test", "equations": "test", "errata": "evidence"}
COMPLETE = {key: paper.equations for key, paper in ledger.PAPERS.items() if paper.equations}


def node_ids() -> list[str]:
    """Return the distinct tests that the ledgers name."""
    named = {getattr(entry, FIELD[name]) for name, entries in ENTRIES.items() for entry in entries}
    return sorted(named - {None})


def run_pytest(*arguments: str) -> subprocess.CompletedProcess:
    """Run pytest in a process of its own, from the root of the repository."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    keep = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**keep, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("claim", ENTRIES["claims"], ids=lambda claim: claim.id)
def test_the_verdict_follows_from_the_stored_result(claim):
    assert ledger.verdict(claim) == claim.verdict, f"measured: {ledger.measured(claim)}"


def test_a_criterion_can_be_met_and_can_fail():
    """With so many truth values as there are: all true or all false decide it, one way each."""
    counted = 0
    for claim in ENTRIES["claims"]:
        found = ledger.measured(claim)
        if found is None or found.each.dtype != bool or found.each.size == 1:
            continue
        outcomes = set()
        for every in (True, False):
            each = np.full(found.each.size, every)
            outcomes.add(ledger.settle(claim, ledger.Measurement(each, interval(each))))
        assert outcomes == {"reproduced", "not reproduced"}, f"{claim.id}: {outcomes}"
        counted += 1
    assert counted > 20


TURNING = re.compile(
    r"moves? turns?|turns the verdict|the other way round|[Aa]t the paper's size|the opposite"
)


def firm_in_spite_of_its_note(claims) -> list[str]:
    """Return the claims whose note says that a move turns the verdict, and that no move turns."""
    said = [claim for claim in claims if claim.experiment and TURNING.search(claim.note or "")]
    return [claim.id for claim in said if not ledger.turned_by(claim)]


def test_no_verdict_is_firm_that_its_note_turns_over():
    assert firm_in_spite_of_its_note(ENTRIES["claims"]) == []


@pytest.mark.parametrize("name", ["prong-conditioning", "prong-updates-rmsprop"])
def test_a_firm_verdict_with_such_a_note_is_noticed(name):
    """The negative control: without the moves that it names, the claim is found."""
    (claim,) = [entry for entry in ENTRIES["claims"] if entry.id == name]
    assert firm_in_spite_of_its_note([replace(claim, turns=None)]) == [name]


MEASURES_OF_MOVES = [
    ("prong-conditioning", "ε = 0.1", "reduction('raw', eps=0.1)"),
    ("prong-conditioning", "second moment", "reduction('raw', 'as printed')"),
    ("prong-conditioning-tail", "ε = 0.1", "reduction('tail', eps=0.1)"),
    ("prong-epsilon-or-step-size", "ε = 0.001", "bases_where_eps_wins((0.1, 0.01, 0.001))"),
    ("whitening-approximate-metric", "100 % noise", "guess_faster('noise_1')"),
    ("rfim-figure5-variation", "Fashion-MNIST", "variation_ratio('fashion')"),
    ("rfim-figure5-fashion-variation", "digits", "variation_ratio('digits')"),
    (
        "revisiting-order-variance",
        "least variance",
        "frontier_decades(('sgd',), momentum=False)",
    ),
]


@pytest.mark.parametrize(("name", "move", "measure"), MEASURES_OF_MOVES)
def test_a_named_move_leads_where_it_is_said_to_lead(name, move, measure):
    """Where the stored runs hold the move, the claim's criterion gives the verdict."""
    (claim,) = [entry for entry in ENTRIES["claims"] if entry.id == name]
    (outcome,) = [verdict for text, verdict in claim.turns.items() if move in text]
    assert ledger.verdict(replace(claim, measure=measure)) == outcome


@pytest.mark.parametrize("path", sorted({e.function for e in ENTRIES["equations"]} - {None}))
def test_the_function_can_be_imported(path):
    assert callable(ledger.resolve(path))


@pytest.mark.parametrize("paper", COMPLETE)
def test_no_equation_is_missing(paper):
    numbers = [entry.number for entry in ENTRIES["equations"] if entry.paper == paper]
    assert sorted(number for number in numbers if isinstance(number, int)) == list(
        range(1, COMPLETE[paper] + 1)
    )


def test_equations_are_in_the_order_of_the_paper():
    for paper in ledger.PAPERS:
        numbers = [
            e.number for e in ENTRIES["equations"] if e.paper == paper and isinstance(e.number, int)
        ]
        assert numbers == sorted(numbers), paper


def equations_named(where: str) -> set[int]:
    """Return the numbers in "Eq. 7; Eqs. 1, 3 and 5 to 8"."""
    found: set[int] = set()
    for run in re.findall(r"Eqs?\. (\d+(?:(?:-| to |, | and )\d+)*)", where):
        for part in re.split(r", | and ", run):
            first, *last = (int(number) for number in re.split(r"-| to ", part))
            found |= set(range(first, (last or [first])[0] + 1))
    return found


def corrections_without_an_erratum(errata) -> list[str]:
    """Return the equations "verified with correction" that no erratum of their paper names."""
    places: dict[str, list[str]] = {paper: [] for paper in ledger.PAPERS}
    for entry in errata:
        places[entry.paper].append(entry.where)

    def named(equation) -> bool:
        number = equation.number
        if isinstance(number, int):
            return any(number in equations_named(place) for place in places[equation.paper])
        label = f"Appendix {number}" if len(number) == 1 else number
        return any(label in place for place in places[equation.paper])

    corrected = [e for e in ENTRIES["equations"] if e.correction is not None]
    return [equation.id for equation in corrected if not named(equation)]


def test_every_corrected_equation_has_its_erratum():
    assert corrections_without_an_erratum(ENTRIES["errata"]) == []


@pytest.mark.parametrize(
    ("equation", "place"),
    [
        ("whitening 42", "Eq. 42"),
        ("rfim 73", "Eq. 73"),
        ("revisiting 21", "Eq. 21"),
        ("prong Section 3.2", "Section 3.2"),
        ("boltzmann A", "Appendix A"),
    ],
)
def test_a_correction_without_an_erratum_is_noticed(equation, place):
    """The negative control: without the errata of its place, the equation is named."""
    paper = equation.partition(" ")[0]
    left = [e for e in ENTRIES["errata"] if e.paper != paper or place not in e.where]
    assert equation in corrections_without_an_erratum(left)


def test_numbers_in_a_place_are_read():
    assert equations_named("Section 2.8, Eq. 7; Eqs. 1, 3 and 5 to 8; 9-11") == {1, 3, 5, 6, 7, 8}
    assert equations_named("Eqs. 8-9 and 16-17") == {8, 9, 16, 17}


def test_no_ledger_names_its_own_tests():
    assert not [node for node in node_ids() if node.startswith("tests/book/test_ledgers.py")]


def test_every_named_test_exists_and_passes():
    assert node_ids()
    done = run_pytest("-n", "2", *node_ids())
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout and "xfailed" not in done.stdout


def test_a_test_that_does_not_exist_is_noticed():
    """The negative control of the test above."""
    file = node_ids()[0].partition("::")[0]
    done = run_pytest("--collect-only", f"{file}::test_that_nobody_wrote")
    assert done.returncode != 0 and "not found" in done.stdout + done.stderr


def test_stored_results_are_those_of_the_experiments_as_they_are():
    assert cli.problems() == []


@pytest.mark.parametrize("name", [*ledger.LEDGERS, "intro"])
def test_the_tables_of_a_page_are_those_of_today(name):
    page = ROOT / "book" / f"{name}.md"
    text = page.read_text()
    assert pages.TABLE.search(text)
    assert pages.fill(text) == text, [
        f"run: python tools/notebooks.py book/{name}.md",
        *pages.differences(text),
    ]


def test_a_table_that_is_not_of_today_is_noticed():
    tables = pages.TABLE.finditer((ROOT / "book" / "claims.md").read_text())
    table = min((found[0] for found in tables if "**partly**" in found[0]), key=len)
    worse = table.replace("**partly**", "**reproduced**", 1)
    assert [line for line in pages.differences(worse) if "**partly**" in line]
    assert list(pages.differences("<!-- errata prong -->\n<!-- end -->"))


@pytest.mark.parametrize("name", ledger.LEDGERS)
def test_a_page_has_a_row_for_each_entry(name):
    rows = [
        line for line in (ROOT / "book" / f"{name}.md").read_text().splitlines() if line[:2] == "| "
    ]
    assert len(rows) == len(ENTRIES[name]) + len(ledger.papers(name)), "entries, and heads"
    bars = [line.replace(r"\|", "").count("|") for line in rows]
    assert set(bars) == {5}
