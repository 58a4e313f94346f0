"""The numbers and tables of the scoreboard: how many entries the ledgers have, and what the stored
results cost.
"""

import json
from collections import Counter
from functools import cache
from pathlib import Path

from natcompanion.chapters import experiments, ledger, numbers
from natcompanion.chapters.experiments import Results, store
from natcompanion.chapters.ledger import PAPERS, Claim, counts
from natcompanion.chapters.show import Table


def total(name: str) -> int:
    """Return how many entries a ledger has."""
    return sum(sum(tally.values()) for tally in counts(name).values())


def summary_table() -> Table:
    """Return for each paper its claims by verdict, and its numbers of equations and errata."""
    claims, equations, errata = (counts(name) for name in ledger.LEDGERS)
    return Table(
        ["paper", "claims", *next(iter(claims.values())), "equations", "errata"],
        [
            [
                paper,
                *(sum(claims[paper].values()), *claims[paper].values()),
                *(sum(tally[paper].values()) for tally in (equations, errata)),
            ]
            for paper in PAPERS
        ],
        "Entries of the three ledgers: claims by verdict, numbered equations, and errata.",
    )


def turned() -> dict[str, dict[str, str]]:
    """Return the claims whose verdict a small move turns over, with the moves; see
    ``ledger.turned_by``.
    """
    found = {claim.id: ledger.turned_by(claim) for claim in ledger.load("claims")}
    return {name: moves for name, moves in found.items() if moves}


def turned_table() -> Table:
    """Return these claims with their verdict and what each move makes of it."""
    verdicts = {claim.id: claim.verdict for claim in ledger.load("claims")}
    return Table(
        ["claim", "verdict", "move", "verdict then"],
        [
            [name, verdicts[name], move, outcome]
            for name, moves in turned().items()
            for move, outcome in moves.items()
        ],
        "Verdicts that a small move turns over.",
    )


def settled_by_runs() -> int:
    """Return how many claims are settled by stored runs."""
    return sum(claim.experiment is not None for claim in ledger.load("claims"))


def duration(seconds: float) -> str:
    """Return a computing time in whole hours.

    Examples
    --------
    >>> duration(90), duration(7900)
    ('below 1 h', '2 h')
    """
    hours = round(seconds / 3600)
    return f"{hours} h" if hours else "below 1 h"


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


def cost(folder: Path | None = None) -> list[tuple[str, str, str, str]]:
    """Return paper, number of stored experiments, of runs and their computing time; the comparison
    of all methods, which belongs to none; and all together in the last row.
    """
    found = [
        (name.partition("_")[0], experiments.load(name, preset, folder=folder, allow_stale=True))
        for name, preset in experiments.stored(folder)
    ]

    def row(title: str, results: list[Results]) -> tuple[str, str, str, str]:
        seconds = sum(record.seconds for records in results for record in records)
        runs = sum(map(len, results))
        return title, str(len(results)), str(runs), duration(seconds)

    titles = {**{key: paper.title for key, paper in PAPERS.items()}, "compare": "Comparison of all"}
    groups = {key: [results for paper, results in found if paper == key] for key in titles}
    rows = [row(titles[key], results) for key, results in groups.items() if results]
    return [*rows, row("All", [results for _, results in found])]


# ---- What a claim costs


def core_seconds(name: str, folder: Path | None = None) -> float:
    """Return the core-seconds of the records of ``experiment.preset``."""
    return experiments.load(*name.split("."), folder=folder, allow_stale=True).core_seconds


def rests_on(claim: Claim, folder: Path | None = None) -> set[str]:
    """Return the ``experiment.preset`` of all records that a claim's measure reads: those of the
    report, and of a search where there was one.
    """
    if claim.experiment is None:
        return set()
    with numbers.reading() as names:
        ledger.measured(claim, folder=folder)
    return names | {claim.experiment}


@cache
def _costs(folder: Path | None) -> tuple[dict[str, float], float]:
    """Return the core-seconds of each claim that stored runs settle, and of all of these runs; each
    measure is computed, and each file read, once.
    """
    reads = {
        claim.id: rests_on(claim, folder) for claim in ledger.load("claims") if claim.experiment
    }
    seconds = {
        name: core_seconds(name, folder) for name in sorted(set[str]().union(*reads.values()))
    }
    costs = {claim: sum(seconds[name] for name in names) for claim, names in reads.items()}
    return costs, sum(seconds.values())


def claim_costs(folder: Path | None = None) -> dict[str, float]:
    """Return the core-seconds that each claim rests on, for those that stored runs settle.

    Claims share runs, so that these are more than :func:`all_claims_cost` together.
    """
    return _costs(folder)[0]


def all_claims_cost(folder: Path | None = None) -> float:
    """Return the core-seconds of all runs that some claim rests on, each run counted once."""
    return _costs(folder)[1]


def core_hours() -> float:
    """Return the same in hours."""
    return all_claims_cost() / 3600


def costly_table(count: int = 12) -> Table:
    """Return the claims that rest on the most computing, and all together."""
    costs = claim_costs()
    dearest = sorted(costs, key=lambda name: -costs[name])[:count]
    rows = [(name, costs[name]) for name in dearest]
    return Table(
        ["claim", "core-seconds"],
        [[name, f"{cost:,.0f}"] for name, cost in (*rows, ("all", all_claims_cost()))],
        f"Computing behind a claim: the {count} of {len(costs)} that took most, and all runs that "
        "some claim rests on, each counted once. Seconds of the clock times threads, on machines "
        "that were busy.",
    )


def cheap_share(seconds: float) -> float:
    """Return the share of these claims, in %, that rest on at most so many core-seconds."""
    costs = claim_costs().values()
    return 100 * sum(cost <= seconds for cost in costs) / len(costs)


# ---- How well the code is tested


def score() -> dict:
    """Return what ``make mutation`` has stored."""
    path = store.results_folder() / "mutation.json"
    return json.loads(path.read_text(encoding="utf-8"))


def mutants(kind: str | None = None) -> int:
    """Return how many changes of the code were tried, of one kind or of all."""
    return len([row for row in score()["rows"] if kind in (None, row["kind"])])


def caught(kind: str | None = None) -> int:
    """Return how many of them a test noticed."""
    rows = [row for row in score()["rows"] if kind in (None, row["kind"])]
    return sum(row["caught_by"] is not None for row in rows)


def caught_share() -> float:
    """Return the share of them that a test noticed, in %."""
    return 100 * caught() / mutants()


def coverage(wing: str) -> float:
    """Return the share of the lines of ``"library"`` or ``"chapters"`` that tests run, in %."""
    return score()["coverage"][wing]
