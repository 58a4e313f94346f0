"""The real chapters in a real JupyterLab: what a reader sees before anything runs, and after."""

import itertools
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyterlab_server import local, running
from playwright.sync_api import Browser, Locator, Page, expect
from test_form import RAW

from natcompanion.chapters.prose import NUMBER

BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = [path.stem for path in sorted(BOOK.glob("*.ipynb"))]
ALWAYS = "whitening"  # run in full by default; the others by make nightly
SECOND = 1000
WORKSPACES = map("room-{}".format, itertools.count())  # each opens nothing but its chapter

pytestmark = pytest.mark.browser

TEXTS = "cells => cells.map(cell => cell.innerText)"
PICTURES = """images => images.filter(i => i.complete && i.naturalWidth > 100
  && i.offsetParent !== null).length"""
FOLDED = "cells => cells.filter(cell => cell.querySelector('.jp-{}Placeholder')).length"


@cache
def stored(chapter: str) -> nbformat.NotebookNode:
    """Return a chapter as it is stored."""
    return nbformat.read(BOOK / f"{chapter}.ipynb", as_version=4)


def hidden(cell: nbformat.NotebookNode, what: str) -> bool:
    """Return whether the stored cell hides its "source" or its "outputs"."""
    return bool(cell.metadata.get("jupyter", {}).get(f"{what}_hidden"))


def code(chapter: str) -> list[nbformat.NotebookNode]:
    """Return the code cells of a chapter."""
    return [cell for cell in stored(chapter).cells if cell.cell_type == "code"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A JupyterLab with the chapters; yields the address at which one is opened."""
    root = tmp_path_factory.mktemp("lab")
    (root / "work").mkdir()
    for path in (*BOOK.glob("*.ipynb"), *BOOK.glob("*.md")):
        shutil.copy(path, root / "work")
    with running(root) as address:
        yield f"{address}/lab/workspaces"


def opened(lab: str, browser: Browser, chapter: str) -> Page:
    """Open a chapter, and record what would leave the machine."""
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(60 * SECOND)
    page.outside = []
    page.on("request", lambda r: None if local(r.url) else page.outside.append(r.url))
    page.goto(f"{lab}/{next(WORKSPACES)}/tree/{chapter}.ipynb")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    expect(page.locator(".jp-CodeCell")).to_have_count(len(code(chapter)), timeout=60 * SECOND)
    texts = [cell for cell in stored(chapter).cells if cell.cell_type == "markdown"]
    rendered = page.locator(".jp-MarkdownCell .jp-RenderedMarkdown:visible")
    expect(rendered).to_have_count(len(texts), timeout=60 * SECOND)
    return page


def missing_numbers(chapter: str, shown: list[str]) -> list[str]:
    """Return the numbers of the prose that the text of their cell does not show, in order."""
    texts = [cell.source for cell in stored(chapter).cells if cell.cell_type == "markdown"]
    missing = []
    for source, text in zip(texts, shown, strict=True):
        position = 0
        for number in NUMBER.finditer(source):
            found = text.find(number["text"], position)
            position = max(found, position)
            missing += [number[0]] if found < 0 else []
    return missing


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_before_anything_runs_a_chapter_reads_as_its_page(lab, browser, chapter):
    page = opened(lab, browser, chapter)
    shown = page.locator(".jp-MarkdownCell").evaluate_all(TEXTS)
    assert [raw[0] for text in shown for raw in RAW.finditer(text)] == []
    assert not [text for text in shown if "data-number" in text or "<span" in text]
    assert missing_numbers(chapter, shown) == []
    cells = code(chapter)
    pictures = [
        output
        for cell in cells
        if not hidden(cell, "outputs")
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    images = page.locator(".jp-CodeCell .jp-RenderedImage img")
    assert images.evaluate_all(PICTURES) == len(pictures) > 0
    for what, name in (("source", "Input"), ("outputs", "Output")):
        folded = page.locator(".jp-CodeCell").evaluate_all(FOLDED.format(name))
        assert folded == sum(hidden(cell, what) for cell in cells), what
    assert page.outside == []
    page.close()


def change(page: Page, box: Locator, control: Locator) -> None:
    """Move one control of a live figure, press Run if it asks for it, and wait for another
    picture.
    """
    image = box.locator(".nc-frame img")
    before = image.get_attribute("src")
    if control.get_attribute("role") == "slider":
        control.focus()
        low = control.get_attribute("aria-valuenow") == control.get_attribute("aria-valuemin")
        for _ in range(3):
            page.keyboard.press("ArrowRight" if low else "ArrowLeft")
    else:
        control.click()
    status = box.get_by_role("status")
    for _ in range(240):  # a busy machine draws late: then the figure asks for Run
        page.wait_for_timeout(250)
        said = status.inner_text()
        if said == "Done." and image.get_attribute("src") != before:
            return
        if "Run draws" in said:
            box.get_by_role("button", name="Run", exact=True).click()
    raise AssertionError(f"the picture did not change: {said}")


def run(chapter: str) -> Any:
    """Return the chapter as a parameter: all but one wait for the night."""
    return pytest.param(chapter, marks=[] if chapter == ALWAYS else [pytest.mark.nightly])


@pytest.mark.parametrize("chapter", [run(chapter) for chapter in CHAPTERS])
def test_a_chapter_runs_without_errors_and_every_control_changes_its_picture(lab, browser, chapter):
    page = opened(lab, browser, chapter)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    live = [cell for cell in code(chapter) if ".live(" in cell.source]
    boxes = page.locator(".nc-live")
    expect(boxes).to_have_count(len(live), timeout=240 * SECOND)
    last = page.locator(".jp-CodeCell .jp-InputArea-prompt:visible").last
    expect(last).to_have_text(re.compile(r"\[\d+\]:"), timeout=240 * SECOND)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    for kind in ("stderr", "error"):
        assert page.locator(f".jp-OutputArea-output[data-mime-type*={kind}]").count() == 0, kind
    for box in boxes.all():
        names = box.locator(".widget-toggle-button:not(.mod-active)")
        relu = names.filter(has_text="relu")  # some controls are of relu alone: it comes first
        controls = [*(relu if relu.count() else names).all()[:1], *box.get_by_role("slider").all()]
        assert controls
        for control in controls:
            change(page, box, control)
    assert page.outside == []
    page.close()


def test_raw_markup_and_a_missing_number_would_be_noticed(lab, browser):
    page = opened(lab, browser, "scoreboard")
    shown = page.locator(".jp-MarkdownCell").evaluate_all(TEXTS)
    assert RAW.search(shown[0] + "\nas {doc}`whitening` says")
    texts = [cell.source for cell in stored(ALWAYS).cells if cell.cell_type == "markdown"]
    wrong = [NUMBER.sub("7", text) for text in texts]
    assert len(missing_numbers(ALWAYS, wrong)) > 50
    page.close()
