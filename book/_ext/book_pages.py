"""Sphinx extension: the one place that knows the repository's address, and small fixes to every
page.

``NATCOMPANION_REPOSITORY`` (for example set by the publishing workflow) is the address of the
repository on its host. With it, pages get repository and Binder buttons. Without it, a page has
none of these buttons. ``NATCOMPANION_BRANCH`` (default ``main``) and ``NATCOMPANION_BINDER``
(default the public Binder) go with it.

A number in the prose that its function does not give today is a warning, so the build fails. A
figure whose step the runtime of a page cannot replay is an error.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ConfigError
from sphinx.util import logging

from natcompanion.chapters import page, prose

LOGGER = logging.getLogger(__name__)
CODE = re.compile(r"`[^`\n]*`")
FOLLOWED = re.compile(r'(<span class="math [^>]*>\\\([^<]*\\\)</span>)([-,.;:!?)\]’”"]+)')
"""An inline formula, and what may not begin a line without it."""


def repository_options(environ: dict[str, str]) -> dict:
    """Return the theme options that depend on the repository's address: none when it is not set."""
    url = environ.get("NATCOMPANION_REPOSITORY", "").strip().rstrip("/")
    if not url:
        return {"repository_url": "", "launch_buttons": {}}
    if not url.startswith("https://") or len(url.split("/")) < 5:
        raise ConfigError(f"NATCOMPANION_REPOSITORY: expected https://host/owner/name, got {url!r}")
    return {
        "repository_url": url,
        "repository_branch": environ.get("NATCOMPANION_BRANCH", "main"),
        "repository_provider": "gitlab" if "gitlab" in url else "github",
        "path_to_docs": "",
        "use_repository_button": True,
        "use_issues_button": True,
        "launch_buttons": {
            "notebook_interface": "jupyterlab",
            "binderhub_url": environ.get("NATCOMPANION_BINDER", "https://mybinder.org"),
        },
    }


def set_repository(app: Sphinx, config: Config) -> None:
    """Add the repository's options to those of the theme."""
    config.html_theme_options.update(repository_options(dict(os.environ)))


def markdown(path: Path, text: str) -> Iterator[str]:
    """Yield the Markdown texts of a page: the cells of a notebook, or the page itself."""
    if path.suffix != ".ipynb":
        yield text
        return
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "markdown":
            yield "".join(cell["source"])


def check_numbers(app: Sphinx, docname: str, source: list[str]) -> None:
    """Warn of every number of the prose, code aside, that is not what its function gives."""
    path = Path(app.env.doc2path(docname))
    for text in markdown(path, source[0]):
        for line in prose.differences(path.stem, CODE.sub("", text)):
            LOGGER.warning("number in the prose: %s", line, location=docname)


def draw_figures(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: object
) -> None:
    """Put the figures that compute in the page where a chapter wants them, with their scripts."""
    context["body"], scripts = page.fill(context.get("body", ""))
    for script in scripts:
        app.add_js_file(f"page/{script}")
    if scripts:
        app.add_css_file("page/figure.css")


def keep_together(body: str) -> str:
    """Return a page in which no line begins with the punctuation that follows a formula."""
    return FOLLOWED.sub(r'<span class="nc-kept">\1\2</span>', body)


def keep_formulas(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: object
) -> None:
    """Keep the formulas of a page together with the punctuation behind them."""
    context["body"] = keep_together(context.get("body", ""))


def name_first_page(app: Sphinx, exception: Exception | None) -> None:
    """Give the page that leads on to the introduction a title."""
    first = Path(app.outdir) / "index.html"
    if exception is None and first.exists() and "<title" not in (text := first.read_text()):
        head = f'<meta charset="utf-8"><title>{app.config.html_title}</title>'
        first.write_text(f'<!doctype html><html lang="en">{head}{text}</html>\n')


def setup(app: Sphinx) -> dict:
    """Register the extension."""
    app.add_config_value(
        "comments_config", {}, ""
    )  # Jupyter Book sets it even when sphinx_comments is not loaded
    app.connect("config-inited", set_repository, priority=100)
    app.connect("source-read", check_numbers)
    app.connect("html-page-context", draw_figures)
    app.connect("html-page-context", keep_formulas)
    app.connect("build-finished", name_first_page, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
