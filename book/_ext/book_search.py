"""Sphinx extension: the search page, which works from disk and knows what the book is made of.

Entries are the pages, their sections, the rows of the ledgers and the functions of the reference,
each with its text, so that a result shows the lines around the words. They are read from the pages
as they were written. ``book_search.js`` ranks them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
SKIPPED = {"button", "nav", "pre", "script", "style", "svg"}
UNREAD = {
    "collapsed",
    "expanded",
    "headerlink",
    "ledger-here",
    "ledger-line",
    "ledger-lines",
    "nc-explore",
    "records-note",
}
CHAPTERS = ("foundations", "whitening", "revisiting", "prong", "rfim", "boltzmann")
ROWS = {"claims": "claim", "equations": "equation", "errata": "erratum"}
LETTERS = dict(
    re.findall(
        r"(\w+) (\S)",
        "alpha α beta β gamma γ delta δ epsilon ε eta η theta θ lambda λ mu μ nu ν omega ω phi φ "
        "psi ψ rho ρ sigma σ tau τ Delta Δ Sigma Σ Omega Ω Theta Θ Lambda Λ nabla ∇ propto ∝ "
        "approx ≈ partial ∂ sum Σ le ≤ ge ≥ cdot · langle ⟨ rangle ⟩ tilde ~ to → ",
    )
)


def plain(tex: str) -> str:
    r"""Return a formula as a line of text.

    Examples
    --------
    >>> plain(r"\tilde\nabla_\theta J = \mathbf{G}^{-1}\nabla_\theta J")
    '~∇_θ J = G^-1∇_θ J'
    """
    text = re.sub(r"\\([A-Za-z]+) ?", lambda found: LETTERS.get(found[1], ""), tex)
    return " ".join(re.sub(r"[\\{}&$]|\((?=\s*\))", "", text).split())


@dataclass
class Entry:
    """What a search can find: its kind, its page and anchor, and its words."""

    kind: str
    page: str
    anchor: str = ""
    title: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def written(self, chapter: str) -> list[str]:
        """Return kind, address, title, chapter and text."""
        address = f"{self.page}#{self.anchor}" if self.anchor else self.page
        title, text = (" ".join("".join(part).split()) for part in (self.title, self.text))
        return [self.kind, address, title or self.anchor, chapter, text]


class Reader(HTMLParser):
    """The entries of a page, in their order."""

    def __init__(self, page: str, html: str) -> None:
        super().__init__()
        self.page, self.name = page, Path(page).stem
        self.entries: list[Entry] = []
        self.stack: list[tuple[str, Entry | None, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an entry where one begins, or a part that is not read."""
        if tag in VOID:
            self.handle_data(" " if tag in ("br", "hr") else "")
            return
        values = {key: value or "" for key, value in attrs}
        classes = set(values.get("class", "").split())
        outer = self.stack[-1] if self.stack else ("", None, "out")
        entry, mode = outer[1], outer[2]
        if tag == "article":
            mode = "text"
        if mode != "out" and (tag in SKIPPED or classes & UNREAD):
            mode = "skip"
        elif mode == "text" and (opened := self.opened(tag, values, classes)):
            self.entries.append(opened)
            entry = opened
        elif tag == "dt" and "sig" in classes and entry and not entry.anchor:
            entry.anchor = values.get("id", "")
            mode = "skip"
        elif mode == "text" and self.names(tag, entry):
            mode = "title"
        elif mode != "out" and "math" in classes:
            mode = "math" if mode == "text" else mode
        self.stack.append((tag, entry, mode))

    def opened(self, tag: str, values: dict[str, str], classes: set[str]) -> Entry | None:
        """Return the entry that begins with a tag: a page, a section, a row or a function."""
        anchor = values.get("id", "")
        if tag == "section":
            if self.entries:
                return Entry("section", self.page, anchor)
            kind = "chapter" if self.name in CHAPTERS else "page"
            return Entry("api" if "/api/" in self.page else kind, self.page)
        if tag == "tr" and anchor and self.name in ROWS:
            return Entry(ROWS[self.name], self.page, anchor)
        return Entry("function", self.page) if tag == "dl" and "py" in classes else None

    def names(self, tag: str, entry: Entry | None) -> bool:
        """Return whether a tag holds the title of its entry: a heading, or a row's first cell."""
        row = entry is not None and entry.kind in ROWS.values()
        return (tag == "td" and not entry.title) if row else tag in ("h1", "h2", "h3", "h4")

    def handle_endtag(self, tag: str) -> None:
        """Close what is open."""
        if tag in {opened for opened, *_ in self.stack}:
            while self.stack.pop()[0] != tag:
                pass
        self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        """Add text to the entry that is open."""
        if not self.stack or self.stack[-1][1] is None:
            return
        _, entry, mode = self.stack[-1]
        if mode == "title":
            entry.title.append(data)
        elif mode in ("text", "math"):
            entry.text.append(plain(data) if mode == "math" else data)


def order(path: Path) -> tuple[int, str]:
    """Return where a page stands: chapters in the order of the book, then the others by name."""
    return CHAPTERS.index(path.stem) if path.stem in CHAPTERS else len(CHAPTERS), str(path)


def read(folder: Path) -> Iterator[list[str]]:
    """Yield the entries of all pages of a site."""
    for path in sorted((folder / "book").rglob("*.html"), key=order):
        page = path.relative_to(folder).as_posix()
        name = paper = ""
        for entry in Reader(page, path.read_text(encoding="utf-8")).entries:
            title = " ".join("".join(entry.title).split())
            if entry.kind in ("chapter", "page", "api"):
                name = title
            elif entry.kind == "section":
                paper = title
            yield entry.written(paper if entry.kind in ROWS.values() else name)


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the entries, as a script: a page from disk may load nothing else."""
    if exception is None and app.builder.format == "html":
        folder = Path(app.outdir)
        text = json.dumps(list(read(folder)), ensure_ascii=False, separators=(",", ":"))
        (folder / "_static" / "book_search_entries.js").write_text(f"window.SEARCHED = {text};\n")


def own_page(app: Sphinx) -> None:
    """Take the place of the search that Sphinx brings."""
    app.builder.search = False


def pages(app: Sphinx) -> Iterator[tuple[str, dict, str]]:
    """Yield the search page."""
    yield "search", {}, "book_search.html"


def add_files(app: Sphinx, config: object) -> None:
    """Ship the template and the script beside this file."""
    app.config.templates_path.append(str(HERE / "search"))
    app.config.html_static_path.append(str(HERE / "search_static"))


def setup(app: Sphinx) -> dict:
    """Register the extension."""
    app.connect("config-inited", add_files)
    app.connect("builder-inited", own_page)
    app.connect("html-collect-pages", pages)
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
