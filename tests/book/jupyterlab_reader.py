"""What a reader of a chapter meets in a real JupyterLab, before anything runs and after.

``python tests/book/jupyterlab_reader.py [CHAPTER ...]`` prints it for the chapters as two tables,
with the pages in ``_build/html`` to compare with.
"""

import itertools
import json
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import nbformat
from jupyterlab_server import local, running
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from test_form import RAW

BOOK = Path(__file__).resolve().parents[2] / "book"
CHAPTERS = [path.stem for path in sorted(BOOK.glob("*.ipynb"))]
SECOND = 1000
RUN = 600 * SECOND  # a chapter takes a minute; on a busy machine ten times as much
WORKSPACES = map("room-{}".format, itertools.count())  # each opens nothing but its chapter
MARKUP = re.compile(r"</?[a-z]")  # in the line that stands for a folded output
NUMBER = re.compile(r"[-−+]?\d+(?:[.,]\d+)*(?:e[-−+]?\d+)?")

TEXTS = "cells => cells.map(cell => cell.innerText)"
PICTURES = """images => images.filter(i => i.complete && i.naturalWidth > 100
  && i.offsetParent !== null).length"""
FOLDED = "cells => cells.filter(cell => cell.querySelector('.jp-{}Placeholder')).length"
PROSE = """(boxes, without) => boxes.map(box => {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  let text = '';
  while (walker.nextNode())
    if (!walker.currentNode.parentElement.closest(without)) text += walker.currentNode.data;
  return text;
}).join('\\n')"""
"""The text of elements, folded parts included, without that of equations and cells of code."""


@cache
def stored(chapter: str) -> nbformat.NotebookNode:
    """Return a chapter as it is stored."""
    return nbformat.read(BOOK / f"{chapter}.ipynb", as_version=4)


def code(chapter: str) -> list[nbformat.NotebookNode]:
    """Return the code cells of a chapter."""
    return [cell for cell in stored(chapter).cells if cell.cell_type == "code"]


def hidden(cell: nbformat.NotebookNode, what: str) -> bool:
    """Return whether the stored cell hides its "source" or its "outputs"."""
    return bool(cell.metadata.get("jupyter", {}).get(f"{what}_hidden"))


def figures(chapter: str) -> int:
    """Return how many figures a chapter shows, solutions aside."""
    return sum(
        "image/png" in output.get("data", {})
        for cell in code(chapter)
        if not hidden(cell, "outputs")
        for output in cell.outputs
    )


@contextmanager
def laboratory(root: Path) -> Iterator[str]:
    """Run a JupyterLab that shows the book as Binder does, and yield its address."""
    unread = shutil.ignore_patterns("results", "vendor", "__pycache__", ".ipynb_checkpoints")
    shutil.copytree(BOOK, root / "work" / "book", ignore=unread)
    with running(root) as address:
        yield address


def opened(address: str, browser: Browser, chapter: str) -> Page:
    """Open a chapter, and record what would leave the machine."""
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(60 * SECOND)
    page.outside = []
    page.on("request", lambda r: None if local(r.url) else page.outside.append(r.url))
    page.goto(f"{address}/lab/workspaces/{next(WORKSPACES)}/tree/book/{chapter}.ipynb")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    expect(page.locator(".jp-CodeCell")).to_have_count(len(code(chapter)), timeout=60 * SECOND)
    texts = [cell for cell in stored(chapter).cells if cell.cell_type == "markdown"]
    rendered = page.locator(".jp-MarkdownCell .jp-RenderedMarkdown:visible")
    expect(rendered).to_have_count(len(texts), timeout=60 * SECOND)
    return page


class Before(NamedTuple):
    """A chapter as it is opened."""

    raw: list[str]
    numbers: list[str]
    pictures: int
    inputs: int
    outputs: int


def before(page: Page) -> Before:
    """Return what an opened chapter shows before anything runs."""
    texts, cells = page.locator(".jp-MarkdownCell"), page.locator(".jp-CodeCell")
    shown = texts.evaluate_all(TEXTS)
    raw = [found[0] for text in shown for found in RAW.finditer(text)]
    raw += [text for text in shown if "data-number" in text or "<span" in text]
    lines = page.locator(".jp-OutputPlaceholder:visible .jp-PlaceholderText").all_inner_texts()
    raw += [line for line in lines if MARKUP.search(line)]
    prose = page.locator(".jp-RenderedMarkdown").evaluate_all(PROSE, "mjx-container, .jp-CodeCell")
    images = page.locator(".jp-CodeCell .jp-RenderedImage img")
    folded = [cells.evaluate_all(FOLDED.format(name)) for name in ("Input", "Output")]
    return Before(raw, NUMBER.findall(prose), images.evaluate_all(PICTURES), *folded)


def numbers_of_the_page(browser: Browser, site: Path, chapter: str) -> list[str]:
    """Return the numbers in the prose of the built page."""
    page = browser.new_page()
    page.goto((site / "book" / f"{chapter}.html").as_uri())
    without = ".math, .cell, .nc-figure, .headerlink, .ledger-lines, .records-note, script, style"
    prose = page.locator("article.bd-article").evaluate_all(PROSE, without)
    page.close()
    return NUMBER.findall(prose)


class Move(NamedTuple):
    """A control that was moved: by which way the picture came, and after how many seconds."""

    control: str
    way: str
    seconds: float


class After(NamedTuple):
    """A chapter after Run All Cells and a move of every control."""

    trouble: list[str]
    moves: list[Move]
    memory: int


def run_all(page: Page, chapter: str) -> list[str]:
    """Run all cells and return the errors and what went to stderr."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    live = [cell for cell in code(chapter) if ".live(" in cell.source]
    expect(page.locator(".nc-live")).to_have_count(len(live), timeout=RUN)
    last = page.locator(".jp-CodeCell .jp-InputArea-prompt:visible").last
    expect(last).to_have_text(re.compile(r"\[\d+\]:"), timeout=RUN)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    return trouble(page)


def trouble(page: Page) -> list[str]:
    """Return the errors, what went to stderr, and pictures of other values than their controls'."""
    kinds = ", ".join(f".jp-OutputArea-output[data-mime-type*={k}]" for k in ("stderr", "error"))
    return page.locator(f"{kinds}, .nc-live [role=alert], .nc-live .nc-stale").all_inner_texts()


def after(page: Page, address: str, chapter: str) -> After:
    """Run a chapter, move every control of its live figures, and return what happened."""
    with watched(address, chapter) as seen:
        found = run_all(page, chapter)
        moves = [move for box in page.locator(".nc-live").all() for move in moved(box)]
    return After(found + trouble(page), moves, max(seen))


def moved(box: Locator) -> Iterator[Move]:
    """Move every control of a live figure."""
    rows = box.locator(".widget-toggle-buttons, .widget-dropdown, .widget-slider")
    expect(box.locator(".widget-label:visible")).to_have_count(rows.count())
    for row in rows.all():
        for move in moves(row):
            yield timed(box, row, move)


def moves(row: Locator) -> Iterator[Callable[[], object]]:
    """Yield what moves a control: a menu and buttons once, a slider twice."""
    menu, others = row.locator("select"), row.locator(".widget-toggle-button:not(.mod-active)")
    if menu.count():
        other = menu.evaluate("menu => (menu.selectedIndex + 1) % menu.length")
        yield partial(menu.select_option, index=other)
    elif others.count():
        relu = others.filter(has_text="relu")  # some controls are of relu alone
        yield partial((relu if relu.count() else others).first.click, force=True)
    else:
        track = row.locator(".noUi-base")
        area = track.bounding_box()
        for place in far_first(row):
            at = {"x": place * area["width"], "y": area["height"] / 2}
            yield partial(track.click, position=at, force=True)


def far_first(row: Locator) -> tuple[float, float]:
    """Return two places on a slider, first the one that is farther from its handle."""
    track, handle = (row.locator(f".noUi-{part}").bounding_box() for part in ("base", "handle"))
    right = handle["x"] + handle["width"] / 2 > track["x"] + track["width"] / 2
    return (0.2, 0.8) if right else (0.8, 0.2)


def timed(box: Locator, row: Locator, move: Callable[[], object]) -> Move:
    """Move a control; press Run if the figure asks for it; wait for another picture."""
    label = row.locator(".widget-label").inner_text()
    image, status = box.locator(".nc-frame img"), box.get_by_role("status")
    shown, way = image.get_attribute("src"), "at once"
    row.scroll_into_view_if_needed()
    expect(row.locator(".noUi-state-tap")).to_have_count(0)  # gliding, it would ignore a click
    began = time.perf_counter()
    move()
    while time.perf_counter() - began < 60:
        said = status.inner_text()
        if said == "Done." and image.get_attribute("src") != shown:
            return Move(label, way, time.perf_counter() - began)
        if "Run draws" in said and way == "at once":
            began, way = time.perf_counter(), "Run"
            box.get_by_role("button", name="Run", exact=True).click()
        box.page.wait_for_timeout(10)
    raise AssertionError(f"{label} did not change the picture: {said}")


@contextmanager
def watched(address: str, chapter: str) -> Iterator[list[int]]:
    """Inside, collect twice a second the memory of a chapter's kernel and its workers, in bytes;
    what they share counts once.
    """
    with urllib.request.urlopen(address + "/api/sessions") as answer:
        sessions = json.load(answer)
    (kernel,) = [s["kernel"]["id"] for s in sessions if s["path"] == f"book/{chapter}.ipynb"]
    seen, done = [memory(kernel)], threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            seen.append(memory(kernel))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def memory(kernel: str) -> int:
    """Return the memory that a kernel and its workers take now."""
    processes = dict(filter(None, map(process, Path("/proc").glob("[0-9]*"))))
    family = {pid for pid, (_, words) in processes.items() if kernel in words}
    while more := {pid for pid, (parent, _) in processes.items() if parent in family} - family:
        family |= more
    return sum(map(share, family))


def process(folder: Path) -> tuple[int, tuple[int, str]] | None:
    """Return a process with its parent and its command, unless it has gone."""
    try:
        status, words = (folder / "status").read_text(), (folder / "cmdline").read_text()
    except OSError:
        return None
    return int(folder.name), (int(re.search(r"PPid:\s*(\d+)", status)[1]), words)


def share(pid: int) -> int:
    """Return the memory of a process, its share of what it has in common with others."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * int(re.search(r"^Pss:\s*(\d+)", text, re.MULTILINE)[1])


def main(chapters: list[str]) -> None:
    """Print both tables."""
    site = BOOK.parent / "_build" / "html"
    with (
        tempfile.TemporaryDirectory() as root,
        laboratory(Path(root)) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for chapter in chapters:
            page = opened(address, browser, chapter)
            first, written = before(page), numbers_of_the_page(browser, site, chapter)
            same = sum(map(str.__eq__, first.numbers, written))
            print(
                f"{chapter}: raw {len(first.raw)}; numbers {same} of {len(written)} equal; "
                f"pictures {first.pictures} of {figures(chapter)}; folded {first.inputs} inputs, "
                f"{first.outputs} outputs of {len(code(chapter))} cells"
            )
            found = after(page, address, chapter)
            print(
                f"  after Run All: {len(found.trouble)} errors or lines on stderr; "
                f"memory {found.memory / 1e6:.0f} MB"
            )
            for move in found.moves:
                print(f"  {move.control}: {move.way}, {move.seconds:.2f} s", flush=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:] or CHAPTERS)
