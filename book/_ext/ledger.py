"""Sphinx extension: the tables of the ledgers, which stand in their pages as Markdown, get a
caption, widths, badges for verdicts, and links from functions to the reference.

A wide table scrolls in the box that the theme puts around every table; the box takes the keyboard
focus. A table that is not what the ledger gives today is a warning, so the build fails.
"""

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

from natcompanion.chapters import ledger, pages
from natcompanion.chapters.numbers import scoreboard

LOGGER = logging.getLogger(__name__)
WIDTHS = {
    "claims": (14, 34, 20, 32),
    "equations": (7, 45, 16, 32),
    "errata": (14, 28, 32, 26),
}
CAPTIONS = {
    "claims": "Claims against measurements",
    "equations": "Numbered equations",
    "errata": "Misprints and gaps",
}
KINDS = {*ledger.VERDICTS, *ledger.STATUSES, *ledger.SEVERITIES}


def check_tables(app: Sphinx, docname: str, source: list[str]) -> None:
    """Warn of every table of a page that is not what the ledger gives."""
    for line in pages.differences(source[0]):
        LOGGER.warning("%s; run make notebooks", line, location=docname)


def dress(app: Sphinx, doctree: nodes.document) -> None:
    """Give the tables of a ledger's page what Markdown cannot say."""
    name = app.env.docname.rpartition("/")[2]
    for table in doctree.findall(nodes.table) if name in WIDTHS else ():
        title = f"{CAPTIONS[name]}: {table.parent.next_node(nodes.title).astext()}"
        table.insert(0, nodes.title("", title))
        doctree.note_implicit_target(table)
        table["classes"] = ["ledger-table", f"ledger-{name}", "colwidths-given"]
        for column, width in zip(table.findall(nodes.colspec), WIDTHS[name], strict=True):
            column["colwidth"] = width
        for strong in list(table.findall(nodes.strong)):
            if strong.astext() in KINDS:
                strong.replace_self(badge(strong.astext()))
        for row in table.findall(nodes.row) if name == "equations" else ():
            for literal in list(row[-1].findall(nodes.literal)):
                literal.replace_self(function(literal, app.env.docname))


def badge(text: str) -> nodes.inline:
    """Return a verdict, status or severity: its words on a colour of their own."""
    kind = text.replace(" ", "-")
    return nodes.inline("", text, classes=["ledger-badge", f"ledger-{kind}"])


def function(literal: nodes.literal, docname: str) -> nodes.Node:
    """Return a function's name, linked to its API page where there is one."""
    target = f"natcompanion.{literal.astext()}"
    text = nodes.literal("", literal.astext(), classes=["xref", "py", "py-obj"])
    return addnodes.pending_xref(
        "",
        text,
        refdomain="py",
        reftype="obj",
        reftarget=target,
        refdoc=docname,
        refexplicit=True,
        refwarn=False,
        ledger=True,
    )


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
    """Register the extension."""
    app.add_css_file("ledger.css")
    app.add_js_file("ledger.js")
    app.connect("config-inited", add_styles)
    app.connect("source-read", check_tables)
    app.connect("doctree-read", dress)
    app.connect("doctree-read", add_note)
    app.connect("missing-reference", resolve_elsewhere)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
