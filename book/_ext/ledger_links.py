"""Sphinx extension: links between the rows of the ledgers, the chapters, the reference, the tests
and the stored results, in both directions.

Every row gets an anchor. Its place in the paper leads to the section of the chapter that treats it,
its evidence to the test or the result, of which the site holds a copy. A row of no section says so.
A chapter leads back: each "Eq. 35" to the equation, and lines under each section to the claims, the
equations and the errata that it treats. So does the reference: under a function stand the equations
that it computes.
"""

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import quote

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from natcompanion.chapters import ledger, pages

EQUATIONS = re.compile(r"\bEqs?\. (\d+)(?:(?:-|–| to )(\d+))?((?:(?:, | and )\d+)*)")
PLACE = re.compile(r"(?:Section|Figure|Table|Algorithm|Footnote|Appendix) [\w.]*\w")
SECTIONS = re.compile(r"Sections ([\d.]*\d(?:(?:, | and | to |–)[\d.]*\d)+)")
NOT_THERE = "The chapter does not come to it."
ASIDE = ("Deviations", "Exercises")
LISTS = "Claims and errata"
SUMMARY = "What this chapter found"
TREATED = {"Claims": "claims", "Equations": "equations", "Errata": "errata"}
PLAIN = (nodes.reference, nodes.literal, nodes.literal_block, nodes.title, nodes.math)


@dataclass(frozen=True)
class Section:
    """A section of a chapter: its anchor, its title, what stands in it but not below it, and the
    rows of the ledgers that it links to.
    """

    anchor: str
    title: str
    text: str
    rows: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Home:
    """Where the reader meets a row; ``toward`` is the equation that stands there instead of it."""

    section: Section
    toward: int | str | None = None


def numbers(text: str) -> set[str]:
    """Return the equations that a text names: those of "Eqs. 3, 5 and 7", of "Eqs. 1 to 4", and of
    formulas that carry their number.
    """
    shown = re.findall(r"\\q?quad\s*\((\d+(?:, \d+)*)\)|\\tag\{(\d+)\}", text)
    named = {number for pair in shown for number in re.findall(r"\d+", " ".join(pair))}
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


def places(where: str) -> list[str]:
    """Return the places of a paper that a text names: "Sections 2 and 4.1" are two."""
    spelled = SECTIONS.sub(
        lambda found: ", ".join(f"Section {n}" for n in re.findall(r"[\d.]*\d", found[1])), where
    )
    return PLACE.findall(spelled)


def fit(section: Section, where: str, measure: str | None) -> float:
    """Return how well a section fits an entry: it shows its number, is the section that it names or
    the one around it, or speaks of the same figure, table, footnote or equation.
    """
    text = f"{section.title}\n{section.text}".lower()
    score = 4.0 * bool(measure and f'data-number="{measure}"'.lower() in text)
    if measure:
        name = re.escape(measure.partition("(")[0].lower())
        score += 2.0 * bool(re.search(rf"(?:data-number=\"|numbers\.){name}\b", text))
    for place in places(where):
        kind, _, number = place.partition(" ")
        own = own_numbers(section.title)
        score += 3.0 * (kind == "Section" and number in own)
        score += 0.75 * (kind == "Section" and any(number.startswith(f"{n}.") for n in own))
        score += 1.0 * bool(re.search(rf"{re.escape(place.lower())}\b", text))
        whole = place.lower().rstrip("abcdef")
        score += 0.5 * bool(re.search(rf"{re.escape(whole)}[a-f]?\b", text))
    return score + 1.5 * bool(numbers(where) & numbers(section.text))


def home(
    sections: list[Section], where: str, measure: str | None = None, row: str | None = None
) -> Section | None:
    """Return the section that fits best and links to the row, the first of equals, the opening and
    its summary last; else what fits of what stands aside; None if none fits at all.
    """

    def score(section: Section) -> float:
        return fit(section, where, measure) + 2.0 * (row in section.rows)

    first = sections[:1] + [section for section in sections if section.title.startswith(SUMMARY)]
    aside = [section for section in sections if section.title.startswith(ASIDE)]
    told = [section for section in sections if section not in (*first, *aside)]
    for some in (told + first[::-1], aside):
        best = max(some, key=score, default=None)
        if best and score(best):
            return best
    return None


def find(sections: list[Section], name: str, entry: ledger.Entry) -> Home | None:
    """Return where the reader meets an entry: in the section that the ledger names, or in the one
    that fits; else with the equation that the entry is about or is a step towards.
    """
    if entry.section:
        named = [section for section in sections if section.anchor == entry.section]
        if not named:
            raise ledger.LedgerError(f"{entry.id}: its chapter has no section #{entry.section}")
        return Home(named[0])
    where = f"Eq. {entry.number}" if name == "equations" else entry.where
    row = entry.id if name == "claims" else None
    if section := home(sections, where, getattr(entry, "measure", None), row):
        return Home(section)
    toward = getattr(entry, "toward", None)
    about = {str(toward)} if toward else numbers(where)
    for other in equations(entry.paper) if about else ():
        named = str(other.number) in about and other != entry
        if named and (found := find(sections, "equations", other)):
            return Home(found.section, found.toward or other.number)
    return None


@cache
def equations(paper: str) -> list[ledger.Equation]:
    """Return the equations of a paper, read once."""
    return ledger.load("equations", paper)


def read_sections(doctree: nodes.document) -> Iterator[Section]:
    """Yield the sections of a chapter."""
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title)
        own = [child for child in section.children if not isinstance(child, nodes.section)]
        text = "\n".join(child.astext() for child in own)
        links = [link for child in own for link in child.findall(addnodes.pending_xref)]
        rows = frozenset(link.get("reftargetid") or "" for link in links)
        if title and not title.astext().startswith(LISTS):
            yield Section(section["ids"][0], title.astext(), text, rows)


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
        connect_sections(app, doctree, docname)
    elif "/api/" in docname:
        connect_functions(doctree)


def connect_rows(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Lead from each row to its section, and from its evidence to the copy of it."""
    name = page_name(docname)
    kept = getattr(app.env, "ledger_sections", {})
    for table in doctree.findall(nodes.table):
        paper = table.parent["ids"][0]
        for row, entry in zip(body(table), ledger.load(name, paper), strict=True):
            first = row.children[0].next_node(nodes.paragraph)
            if paper in kept:
                found = find(kept[paper], name, entry)
                uri = f"{paper}.html" + (f"#{found.section.anchor}" if found else "")
                link = nodes.reference("", "", *first.children, internal=True, refuri=uri)
                first.clear()
                first += link
                row.children[-1] += told(found, name, uri)
            here = f'<a class="ledger-here" href="#{row["ids"][0]}" aria-label="# this row">#</a>'
            first += [nodes.Text(" "), nodes.raw("", here, format="html")]
            if address := evidence(Path(app.srcdir), name, entry):
                wrap(row.children[-1], address)


def told(found: Home | None, name: str, uri: str) -> nodes.paragraph:
    """Return the line of a row that says where in the chapter the reader meets it."""
    if found is None:
        return nodes.paragraph("", NOT_THERE, classes=["ledger-home"])
    title = nodes.reference("", "", nodes.Text(found.section.title), internal=True, refuri=uri)
    words = "In the chapter: "
    if found.toward:
        step = f"A step towards Eq. {found.toward}, which is in the chapter: "
        words = step if name == "equations" else f"In the chapter, with Eq. {found.toward}: "
    return nodes.paragraph("", words, title, classes=["ledger-home"])


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


def connect_sections(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Put under each section of a chapter, folded, the claims, the equations and the errata that it
    treats, each by its own name: several may be of one place of the paper.
    """
    paper = page_name(docname)
    sections = app.env.ledger_sections[paper]
    lines, counts = defaultdict(list), defaultdict(list)
    for title, name in TREATED.items():
        treated = defaultdict(list)
        for entry, anchor in zip(ledger.load(name, paper), pages.anchors(name, paper), strict=True):
            if found := find(sections, name, entry):
                treated[found.section.anchor].append((label(name, entry), f"{name}.html#{anchor}"))
        for anchor, links in treated.items():
            lines[anchor].append(line_of(title, links))
            counts[anchor].append(f"{title.lower()} {len(links)}")
    for section in list(doctree.findall(nodes.section)):
        below = section.first_child_matching_class(nodes.section)
        place = len(section) if below is None else below
        if found := lines[anchor := section["ids"][0]]:
            summary = f"<summary>{', '.join(counts[anchor]).capitalize()}</summary>"
            section[place:place] = [
                nodes.raw("", f'<details class="ledger-lines">{summary}', format="html"),
                *found,
                nodes.raw("", "</details>", format="html"),
            ]


def label(name: str, entry: ledger.Entry) -> str:
    """Return what a chapter calls a row of a ledger."""
    if name == "claims":
        return f"{entry.id.removeprefix(f'{entry.paper}-')} ({entry.verdict})"
    return str(entry.number) if name == "equations" else entry.where.partition(";")[0]


def line_of(title: str, links: list[tuple[str, str]]) -> nodes.paragraph:
    """Return a line of links, those of one name numbered."""
    line = nodes.paragraph("", f"{title}: ", classes=["ledger-line"])
    names, seen = Counter(name for name, _ in links), Counter[str]()
    for place, (name, uri) in enumerate(links):
        seen[name] += 1
        text = f"{name} ({seen[name]})" if names[name] > 1 else name
        line += nodes.reference("", "", nodes.Text(text), internal=True, refuri=uri)
        line += nodes.Text("." if place == len(links) - 1 else ", ")
    return line


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
        links = [
            (
                f"{entry.paper} {entry.number}",
                f"../equations.html#{entry.paper}-eq-{pages.slug(str(entry.number))}",
            )
            for entry in computed[ids[0]]
        ]
        below = description[content].first_child_matching_class(addnodes.desc)
        place = len(description[content]) if below is None else below
        description[content].insert(place, line_of("Equations", links))


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
