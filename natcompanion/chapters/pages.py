"""Tables of the ledgers as Markdown: they stand in the pages as text, and this module says what
they are.

On a page a table stands between two comments, which no renderer shows:

    <!-- claims whitening -->
    | Where | Claim | … |
    <!-- end -->

:func:`fill` writes it anew from the ledger and the stored results, and :func:`differences` names
every table that is not what they give today.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from natcompanion.chapters import ledger
from natcompanion.chapters.numbers import scoreboard

TABLE = re.compile(
    r"<!-- (?P<name>claims|equations|errata|cost)(?: (?P<paper>\w+))? -->\n.*?<!-- end -->",
    re.DOTALL,
)
BREAK = r"\1<wbr>"
MATH = re.compile(r"(\$[^$]+\$)")


def cell(*parts: object) -> str:
    r"""Return a cell of a table: its parts, one below the other, in one line without a bare bar.

    Examples
    --------
    >>> print(cell("a | b", None, r"$|x| = \|y\|$"))
    a \| b<br>$\vert x\vert  = \Vert y\Vert $
    """
    text = "<br>".join(" ".join(str(part).split()) for part in parts if part is not None)
    return "".join(
        piece.replace(r"\|", r"\Vert ").replace("|", r"\vert ")
        if piece.startswith("$")
        else piece.replace("|", r"\|")
        for piece in MATH.split(text)
    )


def breakable(node: str) -> str:
    """Return the name of a test or a record as code that a narrow column may break.

    Examples
    --------
    >>> print(breakable("tests/test_x.py::test_y"))
    <code>tests/<wbr>test_<wbr>x.py::<wbr>test_<wbr>y</code>
    """
    return f"<code>{re.sub('(/|_+|::)', BREAK, html.escape(node))}</code>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of ready cells.

    Examples
    --------
    >>> print(table(["x", "y"], [["1", "2"]]))
    | x | y |
    |---|---|
    | 1 | 2 |
    """
    lines = [columns, *rows]
    texts = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([texts[0], "|---" * len(columns) + "|", *texts[1:]])


def claims(paper: str) -> str:
    """Return the claims of a paper with the measured values and the verdicts."""
    rows, costs = [], scoreboard.claim_costs()
    for claim in ledger.load("claims", paper):
        evidence = claim.experiment or claim.test
        value = None if claim.paper_value is None else f"Paper: {claim.paper_value}"
        found = ledger.measured(claim)
        measured = f"Measured: {found}" if found else "Exact test" if claim.test else None
        verdict = ledger.settle(claim, found)
        limit = f"These {found.resolution}." if found and verdict == "undecided" else None
        outcome = cell(f"**{verdict}**", measured, limit, stability(claim, found))
        spent = f"{costs[claim.id]:,.1f} core-seconds" if claim.id in costs else None
        proof = cell(evidence and breakable(evidence), spent, claim.note)
        rows.append([cell(claim.where), cell(claim.claim, value), outcome, proof])
    return table(["Where", "Claim", "Verdict", "Evidence and remarks"], rows)


def stability(claim: ledger.Claim, found: ledger.Measurement | None) -> str | None:
    """Return what small moves do to a verdict that runs settle."""
    if found is None:
        return None
    turned = ledger.moves(claim, found)
    return f"Turned over by: {', '.join(turned)}" if turned else "Firm"


def equations(paper: str) -> str:
    """Return the numbered equations of a paper with their functions and tests."""
    rows = []
    for entry in ledger.load("equations", paper):
        correction = entry.correction and f"Correction: {entry.correction}"
        function = entry.function and f"`{entry.function.removeprefix('natcompanion.')}`"
        test = entry.test and breakable(entry.test)
        formula = entry.formula and rf"$\displaystyle {entry.formula}$"
        says, proof = cell(formula, entry.says, correction), cell(function, test)
        rows.append([cell(entry.number), says, f"**{entry.status}**", proof])
    return table(["Eq.", "What it says", "Status", "Function and test"], rows)


def errata(paper: str) -> str:
    """Return the misprints and gaps of a paper with their evidence."""
    rows = []
    for entry in ledger.load("errata", paper):
        proof = cell(f"**{entry.severity}**", breakable(entry.evidence))
        right = cell(entry.right, entry.note)
        rows.append([cell(entry.where), cell(entry.printed), right, proof])
    return table(["Where", "As printed", "Right", "Kind and evidence"], rows)


def slug(text: str) -> str:
    """Return a text as an anchor.

    Examples
    --------
    >>> slug("Eqs. 6, 10")
    'eqs-6-10'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def anchors(name: str, paper: str) -> list[str]:
    """Return the anchor of each row of the table of a ledger and a paper, in the table's order.

    Examples
    --------
    >>> anchors("equations", "whitening")[34]
    'whitening-eq-35'
    """
    entries = ledger.load(name, paper)
    if name == "claims":
        return [claim.id for claim in entries]
    if name == "equations":
        return [f"{paper}-eq-{slug(str(entry.number))}" for entry in entries]
    found, seen = [], Counter[str]()
    for entry in entries:
        place = f"{paper}-{slug(entry.where)[:40].strip('-')}"
        seen[place] += 1
        found.append(place if seen[place] == 1 else f"{place}-{seen[place]}")
    return found


def cost() -> str:
    """Return what the stored experiments cost."""
    return table(["Paper", "Experiments", "Runs", "Computing time"], scoreboard.cost())


def today(found: re.Match) -> str:
    """Return the table that stands between two comments, and the comments, as they are today."""
    paper = found["paper"]
    text = globals()[found["name"]](*([paper] if paper else []))
    return f"<!-- {found['name']}{f' {paper}' if paper else ''} -->\n\n{text}\n\n<!-- end -->"


def fill(text: str) -> str:
    """Return a Markdown text with every table written anew."""
    return TABLE.sub(today, text)


def differences(text: str) -> Iterator[str]:
    """Yield a line for each table of a text that is not what the ledger gives today."""
    for found in TABLE.finditer(text):
        old, new = found[0].splitlines(), today(found).splitlines()
        if old != new:
            changed = [line for line in new if line not in old] or new
            yield f"table of {found['name']} {found['paper'] or ''}: not as in {changed[0]}"
