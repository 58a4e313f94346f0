"""The text of the pages is plain Markdown, which reads the same in the page, in JupyterLab and
in the preview of a repository; its links lead somewhere in all three.
"""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

from natcompanion.chapters import ledger, pages

BOOK = Path(__file__).resolve().parents[2] / "book"
NOTEBOOKS = sorted(BOOK.glob("*.ipynb"))
PAGES = sorted(BOOK.glob("*.md"))
CHAPTERS = ("foundations", *ledger.PAPERS)

RAW = re.compile(
    r"\{[\w:+-]+\}`[^`\s][^`\n]*`"  # a role
    r"|^\s*(?:`{3,}|~{3,}|:{3,})\s*\{"  # a directive
    r"|^\s*:{3,}"
    r"|^\s*\([\w-]+\)=\s*$"  # a target
    r"|^\s*\$\$\s*\([\w-]+\)\s*$"  # the label of an equation
    r"|\{glue|\{(?:cite|doc|ref|eq|numref)\b",
    re.MULTILINE,
)
FENCED = re.compile(r"^(`{3,}|~{3,})(.*)\n(?:.*\n)*?\1\s*$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def prose(path: Path) -> str:
    """Return the Markdown of a page or a notebook."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def raw(text: str) -> list[str]:
    """Return what shows raw where the book's extensions do not run."""
    kept = FENCED.sub(lambda fence: fence[0] if "{" in fence[2] else "", text)
    return [found[0].strip() for found in RAW.finditer(kept)]


def slug(heading: str) -> str:
    """Return the anchor of a heading, as repositories and the book make it."""
    plain = LINK.sub(lambda found: found[0][1:].partition("]")[0], heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    text = FENCED.sub("", prose(path))
    return {slug(heading) for heading in re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE)}


@cache
def places(path: Path) -> set[str]:
    """Return the anchors that JupyterLab finds on a page: headings as they are written, and
    marks.
    """
    text = FENCED.sub("", prose(path))
    headings = re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE)
    marks = re.findall(r'^<div data-jupyter-id="([^"]+)"></div>$', text, re.MULTILINE)
    return {heading.replace(" ", "-") for heading in headings} | set(marks)


@cache
def rows(name: str) -> set[str]:
    """Return the anchors that the book gives to the rows of a ledger; elsewhere such a link opens
    the page.
    """
    papers = ledger.papers(name) if name in ledger.LEDGERS else []
    return {anchor for paper in papers for anchor in pages.anchors(name, paper)}


def dead(path: Path, text: str) -> list[str]:
    """Return the links of a text that lead to no file, or to no heading of it."""
    found = []
    for link in LINK.findall(CODE.sub("", FENCED.sub("", text))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (path.parent / name).resolve() if name else path
        known = target.is_file() and (
            not anchor or anchor in anchors(target) & places(target) | rows(target.stem)
        )
        found += [] if known else [link]
    return found


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=lambda path: path.name)
def test_a_page_holds_no_markup_that_only_the_book_understands(path):
    assert raw(prose(path)) == []


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=lambda path: path.name)
def test_links_lead_to_a_file_and_a_heading(path):
    assert dead(path, prose(path)) == []


@pytest.mark.parametrize("name", ledger.LEDGERS)
def test_each_paper_has_its_place_on_the_page_of_a_ledger(name):
    text = prose(BOOK / f"{name}.md")
    assert anchors(BOOK / f"{name}.md") >= set(ledger.papers(name))
    drawn = re.findall(rf"^## (\w+)\n\n<!-- {name} (\w+) -->$", text, re.MULTILINE)
    assert [paper for _, paper in drawn] == ledger.papers(name)
    assert all(title.lower() == paper for title, paper in drawn)


@pytest.mark.parametrize("paper", ledger.PAPERS)
def test_a_chapter_leads_to_its_claims_its_equations_and_its_errata(paper):
    links = LINK.findall(prose(BOOK / f"{paper}.ipynb"))
    wanted = {f"{name}.md#{paper}" for name in ledger.LEDGERS if paper in ledger.papers(name)}
    assert wanted and wanted <= set(links)


def findings(text: str) -> list[str]:
    """Return the lines of a chapter's list of what it found, or tells."""
    _, _, after = text.partition("\n## What this chapter ")
    return re.findall(r"^(?:-|\d\.) (.+)$", after.partition("\n## ")[0], re.MULTILINE)


@pytest.mark.parametrize("chapter", [name for name in CHAPTERS if name != "after"])
def test_a_chapter_says_what_it_found_in_five_lines_that_lead_to_the_evidence(chapter):
    found = findings(prose(BOOK / f"{chapter}.ipynb"))
    assert len(found) == 5
    assert [line for line in found if not LINK.search(line)] == []


def test_a_line_is_a_point_of_the_list_and_of_no_other():
    text = "\n## What this chapter found\n\n- **One.** ([1](a.md))\n1. Two.\n\n## Next\n\n- Three."
    assert findings(text) == ["**One.** ([1](a.md))", "Two."]
    assert findings("## Another\n\n- One.") == []


@pytest.mark.parametrize(
    "text",
    [
        "as {cite}`amari1998natural` says",
        "see {doc}`whitening`",
        "{glue:text}`steps`",
        "{eq}`kl`",
        "$$ x $$ (kl)\n\n$$\nx\n$$ (kl)",
        "```{figure} map.svg\n```",
        ":::{note}\nA note.\n:::",
        "(here)=\n## Here",
    ],
)
def test_raw_markup_is_noticed(text):
    assert raw(text)


def test_plain_markdown_is_left_alone():
    text = 'Let $f_{x}$ and `{x}` be; $\\mathbb{E}[x]_{i}$.\n\n```python\nf"{x}"\n```'
    assert raw(text) == []


def test_a_dead_link_and_a_missing_citation_are_noticed():
    text = "[a](nowhere.ipynb) [b](bibliography.md#nobody-1900) [c](bibliography.md#amari-1998)"
    assert dead(BOOK / "x.md", "[a](claims.md#prong-aligned) [b](claims.md#prong-nothing)") == [
        "claims.md#prong-nothing"
    ]
    assert dead(BOOK / "x.md", text) == ["nowhere.ipynb", "bibliography.md#nobody-1900"]
    assert "amari-1998" in anchors(BOOK / "bibliography.md") & places(BOOK / "bibliography.md")
    assert "prong" not in places(BOOK / "prong.ipynb"), "a heading that JupyterLab calls PRONG"
