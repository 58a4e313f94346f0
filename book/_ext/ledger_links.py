"""Sphinx extension: links between the rows of the ledgers, the chapters, the reference, the tests
and the stored results, in both directions.

Every row gets an anchor. Its place in the paper leads to the section of the chapter that treats it,
its evidence to the test or the result, of which the site holds a copy. A chapter leads back: each
"Eq. 35" to the equation, and a line under each section to the claims that it settles. So does the
reference: under a function stand the equations that it computes.
"""

import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from natcompanion.chapters import ledger, pages

EQUATIONS = re.compile(r"\bEqs?\. (\d+)(?:(?:-|–| to )(\d+))?((?:(?:, | and )\d+)*)")
PLACE = re.compile(r"(?:Section|Figure|Table|Algorithm|Footnote|Appendix) [\w.]*\w")
ASIDE = ("Deviations", "Claims and errata", "Exercises")
PLAIN = (nodes.reference, nodes.literal, nodes.literal_block, nodes.title, nodes.math)


@dataclass(frozen=True)
class Section:
    """A section of a chapter: its anchor, its title, and what stands in it but not below it."""

    anchor: str
    title: str
    text: str


def numbers(text: str) -> set[str]:
    """Return the equations that a text names: those of "Eqs. 3, 5 and 7", of "Eqs. 1 to 4", and of
    formulas that carry their number.
    """
    found = set(re.findall(r"\\q?quad\s*\((\d+)\)|\\tag\{(\d+)\}", text))
    named = {number for pair in found for number in pair if number}
    for first, last, more in EQUATIONS.findall(text):
        named |= {str(n) for n in range(int(first), int(last or first) + 1)}
        named |= set(re.findall(r"\d+", more))
    return named


def own_numbers(title: str) -> set[str]:
    """Return the numbers of the sections of the paper that a title names: "1.1", "2.3" to "2.5"
    for "2.3–2.5 ...", or what stands behind "Section".
    """
    found = re.match(r"(?:(\d+)\.)?(\d+)(?:–\d+\.(\d+))?\b", title)
    first, number, last = found.groups() if found else (None, "0", None)
    ahead = f"{first}." if first else ""
    own = {f"{ahead}{n}" for n in range(int(number), int(last or number) + 1)} if found else set()
    return own | set(re.findall(r"\(Section ([\d.]*\d)\)", title))


def fit(section: Section, where: str, measure: str | None) -> float:
    """Return how well a section fits an entry: it shows its number, is the section that it names,
    or speaks of the same figure, table, footnote or equation.
    """
    text = f"{section.title}\n{section.text}".lower()
    score = 4.0 * bool(measure and f'data-number="{measure}"'.lower() in text)
    if measure:
        name = re.escape(measure.partition("(")[0].lower())
        score += 2.0 * bool(re.search(rf"(?:data-number=\"|numbers\.){name}\b", text))
    for place in PLACE.findall(where):
        kind, _, number = place.partition(" ")
        score += 3.0 * (kind == "Section" and number in own_numbers(section.title))
        score += 1.0 * bool(re.search(rf"{re.escape(place.lower())}\b", text))
        whole = place.lower().rstrip("abcdef")
        score += 0.5 * bool(re.search(rf"{re.escape(whole)}[a-f]?\b", text))
    return score + 1.5 * bool(numbers(where) & numbers(section.text))


def home(sections: list[Section], where: str, measure: str | None = None) -> Section | None:
    """Return the section that fits best, the first of equals; None if none fits at all."""
    told = [section for section in sections if not section.title.startswith(ASIDE)]
    best = max(told, key=lambda section: fit(section, where, measure), default=None)
    return best if best and fit(best, where, measure) else None


def read_sections(doctree: nodes.document) -> Iterator[Section]:
    """Yield the sections of a chapter."""
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title)
        own = [child for child in section.children if not isinstance(child, nodes.section)]
        text = "\n".join(child.astext() for child in own)
        yield Section(section["ids"][0], title.astext() if title else "", text)


def page_name(docname: str) -> str:
    """Return the name of a page of the book, and none for the reference, where names come again."""
    return docname.removeprefix("book/") if "/api/" not in docname else ""


def remember(app: Sphinx, doctree: nodes.document) -> None:
    """Keep the sections of a chapter until the ledgers' pages are written; give rows anchors, which
    Markdown can name: ``[text](claims.md#prong-aligned)``.
    """
    name = page_name(app.env.docname)
    if name in ledger.PAPERS:
        kept = app.env.__dict__.setdefault("ledger_sections", {})
        kept[name] = list(read_sections(doctree))
    if name in ledger.LEDGERS:
        for table in doctree.findall(nodes.table):
            paper = table.parent["ids"][0]
            for row, anchor in zip(body(table), pages.anchors(name, paper), strict=True):
                row["ids"].append(anchor)
                row["names"].append(anchor)
                app.env.metadata[app.env.docname]["myst_slugs"][anchor] = (0, anchor, anchor)
    if name == "scoreboard":
        for raw in doctree.findall(nodes.raw):
            raw.replace_self(nodes.raw("", lead(raw.astext()), format=raw["format"]))


def body(table: nodes.table) -> list[nodes.row]:
    """Return the rows of a table below its head."""
    return list(table.next_node(nodes.tbody).findall(nodes.row))


def lead(html: str) -> str:
    """Return a table of the scoreboard whose claims, and whose counts of verdicts, are links."""
    claims = {claim.id for claim in ledger.load("claims")}

    def claim(cell: re.Match) -> str:
        link = f'<a href="claims.html#{cell[2]}">{cell[2]}</a>'
        return f"{cell[1]}{link}</th>" if cell[2] in claims else cell[0]

    html = re.sub(r"(<th scope=\"row\">)([\w-]+)</th>", claim, html)
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]*)</th>", html)
    if heads[:2] != ["paper", "claims"]:
        return html

    def row(found: re.Match) -> str:
        kinds = iter(heads[1:])

        def count(cell: re.Match) -> str:
            kind = next(kinds)
            page = kind if kind in ledger.LEDGERS else "claims"
            query = f"paper={found[1]}" + (f"&kind={quote(kind)}" if page != kind else "")
            name = f"{cell[2]} {found[1]} {kind}"
            link = f'<a href="{page}.html?{escape(query)}" aria-label="{name}">{cell[2]}</a>'
            return f"{cell[1]}{link}</td>"

        return re.sub(r"(<td[^>]*>)(\d+)</td>", count, found[0])

    return re.sub(r"<tr><th scope=\"row\">(\w+)</th>.*?</tr>", row, html)


def connect(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put the links into a page."""
    name = page_name(docname)
    if name in ledger.LEDGERS:
        connect_rows(app, doctree, docname)
    elif name in ledger.PAPERS:
        connect_equations(doctree, docname)
        connect_claims(app, doctree, docname)
    elif "/api/" in docname:
        connect_functions(doctree)


def connect_rows(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Lead from each row to its section, and from its evidence to the copy of it."""
    name = page_name(docname)
    kept = getattr(app.env, "ledger_sections", {})
    for table in doctree.findall(nodes.table):
        paper = table.parent["ids"][0]
        for row, entry in zip(body(table), ledger.load(name, paper), strict=True):
            where = f"Eq. {entry.number}" if name == "equations" else entry.where
            first = row.children[0].next_node(nodes.paragraph)
            section = home(kept.get(paper, []), where, getattr(entry, "measure", None))
            if section or paper in kept:
                uri = f"{paper}.html" + (f"#{section.anchor}" if section else "")
                link = nodes.reference("", "", *first.children, internal=True, refuri=uri)
                first.clear()
                first += link
            here = f'<a class="ledger-here" href="#{row["ids"][0]}" aria-label="# this row">#</a>'
            first += [nodes.Text(" "), nodes.raw("", here, format="html")]
            if address := evidence(Path(app.srcdir), name, entry):
                wrap(row.children[-1], address)


def evidence(root: Path, name: str, entry: ledger.Entry) -> str | None:
    """Return the address of the copy of a test or a result, from a page of the book."""
    node = entry.evidence if name == "errata" else entry.test
    if node:
        file, _, test = node.partition("::")
        function = re.sub(r"\[.*", "", test).rpartition("::")[2]
        path, mark = f"{file}.txt", f"#:~:text={quote(f'def {function}')}"
    elif name == "claims" and entry.experiment:
        found = next((root / "book" / "results").glob(f"*/{entry.experiment}.json"), None)
        file = path = found.relative_to(root).as_posix() if found else ""
        mark = ""
    else:
        return None
    return f"../_sources/{path}{mark}" if (root / file).is_file() else None


def wrap(cell: nodes.entry, address: str) -> None:
    """Make the first name of a test or a result in a cell a link."""
    marks = [raw for raw in cell.findall(nodes.raw) if raw.astext() in ("<code>", "</code>")]
    opening, closing = marks[:2]
    opening.replace_self(nodes.raw("", f'<a href="{escape(address)}"><code>', format="html"))
    closing.replace_self(nodes.raw("", "</code></a>", format="html"))


def connect_equations(doctree: nodes.document, docname: str) -> None:
    """Lead from each "Eq. 35" of a chapter to the row of the equation."""
    paper = page_name(docname)
    known = {str(entry.number) for entry in ledger.load("equations", paper)}
    for text in list(doctree.findall(nodes.Text)):
        if any(isinstance(node, PLAIN) for node in ancestors(text)):
            continue
        parts, end = [], 0
        for found in EQUATIONS.finditer(text):
            if found[1] in known:
                uri = f"equations.html#{paper}-eq-{found[1]}"
                label = text[found.start() : found.end(1)]
                parts += [
                    nodes.Text(text[end : found.start()]),
                    nodes.reference("", "", nodes.Text(label), internal=True, refuri=uri),
                ]
                end = found.end(1)
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    """Yield what a node stands in."""
    while node := node.parent:
        yield node


def connect_claims(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put under each section of a chapter the claims that it settles, each by its own name: several
    may be of one section of the paper.
    """
    paper = page_name(docname)
    sections = app.env.ledger_sections[paper]
    settled = defaultdict(list)
    for claim in ledger.load("claims", paper):
        if section := home(sections, claim.where, claim.measure):
            settled[section.anchor].append(claim)
    for section in list(doctree.findall(nodes.section)):
        if not (claims := settled[section["ids"][0]]):
            continue
        line = nodes.paragraph("", "Claims: ", classes=["ledger-line"])
        for claim in claims:
            text = f"{claim.id.removeprefix(f'{paper}-')} ({claim.verdict})"
            uri = f"claims.html#{claim.id}"
            line += nodes.reference("", "", nodes.Text(text), internal=True, refuri=uri)
            line += nodes.Text("." if claim is claims[-1] else ", ")
        below = section.first_child_matching_class(nodes.section)
        section.insert(len(section) if below is None else below, line)


def connect_functions(doctree: nodes.document) -> None:
    """Put under each function of the reference the equations that it computes."""
    computed = defaultdict(list)
    for entry in ledger.load("equations"):
        if entry.function:
            found = ledger.resolve(entry.function)
            for place in {entry.function, f"{found.__module__}.{found.__qualname__}"}:
                computed[place].append(entry)
    for description in doctree.findall(addnodes.desc):
        signature = description.next_node(addnodes.desc_signature)
        content = description.first_child_matching_class(addnodes.desc_content)
        ids = signature["ids"]
        if not (ids and computed[ids[0]]):
            continue
        line = nodes.paragraph("", "Equations: ", classes=["ledger-line"])
        for entry in computed[ids[0]]:
            anchor = f"{entry.paper}-eq-{pages.slug(str(entry.number))}"
            text = f"{entry.paper} {entry.number}"
            uri = f"../equations.html#{anchor}"
            line += nodes.reference("", "", nodes.Text(text), internal=True, refuri=uri)
            line += nodes.Text("." if entry is computed[ids[0]][-1] else ", ")
        description[content] += line


def copy_evidence(app: Sphinx, exception: Exception | None) -> None:
    """Copy the tests and the results that rows lead to."""
    root, target = Path(app.srcdir), Path(app.outdir) / "_sources"
    for name in ledger.LEDGERS if exception is None else ():
        for entry in ledger.load(name):
            if address := evidence(root, name, entry):
                file = address.removeprefix("../_sources/").partition("#")[0]
                copy = target / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / file.removesuffix(".txt"), copy)


def setup(app: Sphinx) -> dict:
    """Register the extension."""
    app.connect("doctree-read", remember)
    app.connect("doctree-resolved", connect)
    app.connect("build-finished", copy_evidence)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
