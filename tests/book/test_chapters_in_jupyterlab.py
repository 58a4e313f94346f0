"""The real chapters in a real JupyterLab: what a reader sees before anything runs, and after."""

from collections.abc import Iterator
from typing import Any

import pytest
from jupyterlab_reader import (
    CHAPTERS,
    NUMBER,
    SECOND,
    after,
    before,
    code,
    figures,
    hidden,
    laboratory,
    numbers_of_the_page,
    opened,
)
from playwright.sync_api import expect
from test_form import RAW

ALWAYS = "whitening"  # run in full by default; the others by make nightly
MEMORY = 0.9e9
"""Bytes that a chapter may take when every control was moved. Whitening, the largest, takes 0.64
billion, and 0.77 where it shares no library with other processes; without the settings of memory
in ``binder/start`` it takes 0.87 to 1.01, with a second drawing process above 1.4.
"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A JupyterLab with the book; yields its address."""
    with laboratory(tmp_path_factory.mktemp("lab")) as address:
        yield address


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_before_anything_runs_a_chapter_reads_as_its_page(lab, browser, site, chapter):
    page = opened(lab, browser, chapter)
    found, cells = before(page), code(chapter)
    assert found.raw == []
    assert found.numbers == numbers_of_the_page(browser, site, chapter) != []
    assert found.pictures == figures(chapter) > 0
    assert found.inputs == sum(hidden(cell, "source") for cell in cells)
    assert found.outputs == sum(hidden(cell, "outputs") for cell in cells)
    assert page.outside == []
    page.close()


def run(chapter: str) -> Any:
    """Return the chapter as a parameter: all but one wait for the night."""
    return pytest.param(chapter, marks=[] if chapter == ALWAYS else [pytest.mark.nightly])


@pytest.mark.parametrize("chapter", [run(chapter) for chapter in CHAPTERS])
def test_a_chapter_runs_without_errors_and_every_control_changes_its_picture(lab, browser, chapter):
    page = opened(lab, browser, chapter)
    found = after(page, lab, chapter)
    assert found.trouble == []
    assert bool(found.moves) == any(".live(" in cell.source for cell in code(chapter))
    assert 1e8 < found.memory < MEMORY
    assert page.outside == []
    page.close()


@pytest.mark.parametrize("name", ["claims", "equations", "errata", "intro", "notation"])
def test_the_other_pages_are_read_as_text(lab, browser, name):
    page = browser.new_page()
    page.goto(f"{lab}/lab/workspaces/{name}/tree/book/{name}.md")
    text = page.locator(".jp-MarkdownViewer .jp-RenderedMarkdown")
    expect(text.locator("table").first).to_be_visible(timeout=60 * SECOND)
    shown = text.inner_text()
    assert not RAW.search(shown) and "<!--" not in shown and "<br>" not in shown
    page.close()


def test_a_link_of_a_chapter_opens_the_text_of_its_claims(lab, browser):
    page = opened(lab, browser, "prong")
    page.locator(".jp-RenderedMarkdown a", has_text="claims").last.click()
    shown = page.locator(".jp-MarkdownViewer .jp-RenderedMarkdown")
    expect(shown.get_by_role("heading", name="PRONG")).to_be_in_viewport(timeout=60 * SECOND)
    page.close()


def test_a_missing_number_and_raw_markup_would_be_noticed(lab, browser, site):
    page = opened(lab, browser, "scoreboard")
    spoil = "cell => { cell.textContent = 'as {doc}`whitening` says' }"
    page.locator(".jp-MarkdownCell .jp-RenderedMarkdown").first.evaluate(spoil)
    found = before(page)
    assert len(found.raw) == 1
    assert found.numbers != numbers_of_the_page(browser, site, "scoreboard")
    assert NUMBER.findall("from −1.5e-7 to 1,024 of x2") == ["−1.5e-7", "1,024", "2"]
    page.close()
