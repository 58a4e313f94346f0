"""Sphinx directives ``ledger-claims``, ``ledger-equations``, ``ledger-errata``: accessible tables
from the ledgers.

Each takes the key of one paper, or nothing for all papers. ``ledger-cost`` is a table of the stored
computing time. Cells are parsed as the page is, so that math, code and links work. A wide table
scrolls in the box that the theme puts around every table; the box takes the keyboard focus.
"""

from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from natcompanion.chapters import ledger
from natcompanion.chapters.numbers import scoreboard

COLUMNS = {
    "claims": {"Where": 14, "Claim": 34, "Verdict": 20, "Evidence and remarks": 32},
    "equations": {"Eq.": 7, "What it says": 45, "Status": 16, "Function and test": 32},
    "errata": {"Where": 14, "As printed": 28, "Right": 32, "Kind and evidence": 26},
    "cost": {"Paper": 36, "Experiments": 16, "Runs": 10, "Computing time": 18, "Records": 20},
}
CAPTIONS = {
    "claims": "Claims against measurements",
    "equations": "Numbered equations",
    "errata": "Misprints and gaps",
    "cost": "Stored experiments",
}


def badge(text: str) -> nodes.inline:
    """Return a verdict, status or severity: its words on a colour of their own."""
    kind = text.replace(" ", "-")
    return nodes.inline("", text, classes=["ledger-badge", f"ledger-{kind}"])


class LedgerTable(SphinxDirective):
    """The table of one ledger."""

    optional_arguments = 1
    name_of_ledger: str

    @property
    def book(self) -> Path:
        """The folder of the book that is being built."""
        return Path(self.env.srcdir) / "book"

    def run(self) -> list[nodes.Node]:
        """Return one table, or one for each paper that has entries."""
        folder = self.book / "ledger"
        paper = self.arguments[0] if self.arguments else None
        self.env.note_dependency(str(folder / f"{self.name_of_ledger}.yml"))
        try:
            papers = [paper] if paper else list(ledger.PAPERS)
            tables = {key: ledger.load(self.name_of_ledger, key, folder=folder) for key in papers}
            return [
                node
                for key, entries in tables.items()
                if entries
                for node in self.table(key, entries)
            ]
        except ledger.LedgerError as error:
            raise self.error(str(error)) from error

    def table(self, paper: str, entries: list) -> list[nodes.Node]:
        """Return the table of one paper."""
        rows = [getattr(self, self.name_of_ledger)(entry) for entry in entries]
        return [self.drawn(f"{CAPTIONS[self.name_of_ledger]}: {ledger.PAPERS[paper].title}", rows)]

    def drawn(self, title: str, rows: list[list]) -> nodes.table:
        """Return a table with a caption and a header row."""
        columns = COLUMNS[self.name_of_ledger]
        group = nodes.tgroup("", cols=len(columns))
        group += [nodes.colspec("", colwidth=width) for width in columns.values()]
        head, body = nodes.thead(), nodes.tbody()
        head += self.row(list(columns))
        body += [self.row(row) for row in rows]
        group += [head, body]
        classes = ["ledger-table", f"ledger-{self.name_of_ledger}", "colwidths-given"]
        return nodes.table("", nodes.title("", title), group, classes=classes)

    def row(self, cells: list) -> nodes.row:
        """Return a table row of Markdown texts and ready-made nodes."""
        return nodes.row("", *[self.cell(cell) for cell in cells])

    def cell(self, content: object) -> nodes.entry:
        """Return one cell; text is parsed as the page is, and a list of parts stands one below the
        other.
        """
        entry = nodes.entry()
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, nodes.Node):
                entry += nodes.paragraph("", "", part)
            elif part is not None:
                self.state.nested_parse(
                    StringList(str(part).splitlines(), "ledger"), self.content_offset, entry
                )
        return entry

    def function(self, path: str | None) -> nodes.Node | None:
        """Return a function's name, linked to its API page where there is one."""
        if path is None:
            return None
        text = nodes.literal(
            "", path.removeprefix("natcompanion."), classes=["xref", "py", "py-obj"]
        )
        return addnodes.pending_xref(
            "",
            text,
            refdomain="py",
            reftype="obj",
            reftarget=path,
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=False,
            ledger=True,
        )

    def claims(self, claim: ledger.Claim) -> list:
        """Return the cells of a claim."""
        results = self.book / "results"
        if claim.experiment:
            self.env.note_dependency(str(results / f"{claim.experiment}.json"))
        evidence = f"`{claim.experiment or claim.test}`" if claim.experiment or claim.test else None
        value = None if claim.paper_value is None else f"Paper: {claim.paper_value}"
        found = ledger.measured(claim, folder=results)
        measured = f"Measured: {found}" if found else "Exact test" if claim.test else None
        verdict = ledger.verdict(claim, folder=results)
        limit = f"These {found.resolution}." if found and verdict == "undecided" else None
        outcome = [badge(verdict), measured, limit]
        return [claim.where, [claim.claim, value], outcome, [evidence, claim.note]]

    def equations(self, equation: ledger.Equation) -> list:
        """Return the cells of an equation."""
        return [
            str(equation.number),
            [equation.says, equation.correction and f"Correction: {equation.correction}"],
            badge(equation.status),
            [self.function(equation.function), equation.test and f"`{equation.test}`"],
        ]

    def errata(self, erratum: ledger.Erratum) -> list:
        """Return the cells of an erratum."""
        proof = [badge(erratum.severity), f"`{erratum.evidence}`"]
        return [erratum.where, erratum.printed, [erratum.right, erratum.note], proof]


class LedgerCost(LedgerTable):
    """The table of what the stored experiments cost."""

    optional_arguments = 0
    name_of_ledger = "cost"

    def run(self) -> list[nodes.Node]:
        """Return the table; there is always at least the row of the sum."""
        folder = self.book / "results"
        for path in folder.glob("*/*.json"):
            self.env.note_dependency(str(path))
        return [self.drawn(CAPTIONS["cost"], scoreboard.cost(folder))]


def resolve_elsewhere(
    app: Sphinx, env, node: nodes.Element, contents: nodes.Node
) -> nodes.Node | None:
    """Link a function that is documented under the module that defines it, not the one it is
    imported from.
    """
    if not node.get("ledger"):
        return None
    found = ledger.resolve(node["reftarget"])
    home = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
    domain = env.get_domain("py")
    return (
        domain.resolve_xref(env, node["refdoc"], app.builder, "obj", home, node, contents)
        or contents
    )


def add_styles(app: Sphinx, config) -> None:
    """Ship the style sheet beside this file."""
    config.html_static_path.append(str(Path(__file__).parent / "ledger_static"))


def add_note(app: Sphinx, doctree: nodes.document) -> None:
    """Say under a chapter how many of the stored runs behind it are not of today's code."""
    _, _, page = app.env.docname.rpartition("book/")
    folder = Path(app.srcdir) / "book" / "results"
    note = scoreboard.trust(page, folder) if page in ledger.PAPERS and folder.is_dir() else ""
    if note:
        last = doctree.children[-1] if doctree.children else doctree
        last += nodes.paragraph(note, note, classes=["records-note"])


def setup(app: Sphinx) -> dict:
    """Register the directives."""
    for name in ledger.LEDGERS:
        app.add_directive(
            f"ledger-{name}",
            type(f"Ledger{name.title()}", (LedgerTable,), {"name_of_ledger": name}),
        )
    app.add_directive("ledger-cost", LedgerCost)
    app.add_css_file("ledger.css")
    app.connect("config-inited", add_styles)
    app.connect("doctree-read", add_note)
    app.connect("missing-reference", resolve_elsewhere)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
