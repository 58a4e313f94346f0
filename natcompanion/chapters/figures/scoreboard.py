"""The ledgers at a glance: a table and a picture of how many entries of each kind a paper has."""

from collections import Counter
from pathlib import Path

from matplotlib.figure import Figure

from natcompanion.chapters import experiments, ledger
from natcompanion.chapters.experiments import Results
from natcompanion.chapters.ledger import PAPERS, counts

COLOURS = ("#2f7d4f", "#d9a400", "#b5483c", "#9a9a9a")
HATCHES = ("", "//", "xx", "..")


def summary() -> str:
    """Return a table: for each paper its claims by verdict, and its numbers of equations and
    errata.
    """
    rows = [
        ["", "claims", "", "", "not", "not", "equations", "errata"],
        ["", "", "reproduced", "partly", "reproduced", "testable", "", ""],
    ]
    claims, equations, errata = (counts(name) for name in ledger.LEDGERS)
    for paper in PAPERS:
        total, others = (
            sum(claims[paper].values()),
            [sum(tally[paper].values()) for tally in (equations, errata)],
        )
        rows.append([paper, total, *claims[paper].values(), *others])
    widths = (10, 8, 12, 8, 12, 10, 11, 8)
    lines = (
        "".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )
    return "\n".join(f"{row[0]:<10}{line}".rstrip() for row, line in zip(rows, lines, strict=True))


def draw(ledger: str) -> Figure:
    """Return one bar for each paper, divided by the verdict, status or severity of its entries."""
    tally = counts(ledger)
    kinds = list(tally["whitening"])
    figure = Figure(figsize=(7, 3.2), layout="constrained", facecolor="white")
    axes = figure.subplots()
    left = dict.fromkeys(tally, 0)
    for kind, colour, hatch in zip(kinds, COLOURS, HATCHES, strict=False):
        width = [tally[paper][kind] for paper in tally]
        axes.barh(
            list(tally),
            width,
            left=list(left.values()),
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=kind,
        )
        left = {paper: left[paper] + tally[paper][kind] for paper in tally}
    axes.invert_yaxis()
    axes.set_xlim(0, max(1, *left.values()))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(f"number of {ledger}")
    figure.legend(loc="outside upper center", ncols=len(kinds), frameon=False)
    return figure


def describe(ledger: str) -> str:
    """Return the same counts in words."""
    parts = []
    for paper, tally in counts(ledger).items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in tally.items() if count)
        parts.append(f"{paper} {kinds or 'none yet'}")
    return f"Number of {ledger} of each paper: {'; '.join(parts)}."


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    whole = round(seconds)
    for unit, size in (("h", 3600), ("min", 60)):
        if whole >= size:
            return f"{whole / size:.1f} {unit}"
    return f"{whole} s" if whole else "below 1 s"


STATES = {
    "legacy": "made before records carried the fingerprint of their code",
    "stale": "made by other code than today's",
    "dirty": "made by code that no commit holds",
}


def tally(results: list[Results]) -> str:
    """Return in words how many records are not what today's code, committed, has made."""
    counted = sum((Counter(each.states) for each in results), Counter())
    return ", ".join(f"{counted[name]} {name}" for name in STATES if counted[name]) or "all current"


def trust(paper: str, folder: Path | None = None) -> str:
    """Return the note under a chapter: how many of its records are not current; empty if all
    are.
    """
    found = [
        experiments.load(name, preset, folder=folder, allow_stale=True)
        for name, preset in experiments.stored(folder)
        if name.partition("_")[0] == paper
    ]
    states = {name for results in found for name in results.states}
    reasons = [f"{name}: {reason}" for name, reason in STATES.items() if name in states]
    runs = sum(map(len, found))
    note = (
        f"Stored runs behind this page: {runs:,}, of which {tally(found)} ({'; '.join(reasons)})."
    )
    return note if reasons else ""


def cost(folder: Path | None = None) -> list[tuple[str, str, str, str, str]]:
    """Return paper, number of stored experiments, of runs, their computing time, and how many are
    not current; all together in the last row.
    """
    found = [
        (name.partition("_")[0], experiments.load(name, preset, folder=folder, allow_stale=True))
        for name, preset in experiments.stored(folder)
    ]

    def row(title: str, results: list[Results]) -> tuple[str, str, str, str, str]:
        seconds = sum(record.seconds for records in results for record in records)
        runs = sum(map(len, results))
        return title, str(len(results)), str(runs), duration(seconds), tally(results)

    groups = {key: [results for paper, results in found if paper == key] for key in PAPERS}
    rows = [row(PAPERS[key].title, results) for key, results in groups.items() if results]
    return [*rows, row("All", [results for _, results in found])]
