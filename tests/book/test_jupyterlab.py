"""A real JupyterLab with a live kernel: a reader moves sliders by keyboard and presses Run."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyterlab_server import local, running
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, Page, expect

STORED = Path(__file__).parent / "mini" / "book" / "chapter.ipynb"

pytestmark = pytest.mark.browser
expect.set_options(timeout=20_000)

FUNCTIONS = """
import time
from matplotlib.figure import Figure
from natcompanion.chapters.explore import _live, explore, live

_live.QUICK = 0

def draw(eps, T):
    if T == 7:
        raise ValueError("expected <i>T</i> other than 7")
    time.sleep(2 if T == 9 else 0)
    figure = Figure(figsize=(5, 2))
    figure.subplots().plot([eps * t for t in range(T)])
    return figure

def describe(eps, T):
    return f"After {T} steps the sum is {eps * T:.3g}."
"""

CELLS = [
    FUNCTIONS,
    (
        "explore(draw, describe, start={'eps': 0.5}, labels={'eps': 'ε'}, eps=[0.25, 0.5], "
        "T=[2, 4, 6])"
    ),
    "live(draw, describe, start={'eps': 0.1, 'T': 6}, eps=(0.01, 1.0, 'log'), T=(2, 10))",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A JupyterLab on this machine with nothing but our notebook; yields the notebook's address."""
    root = tmp_path_factory.mktemp("lab")
    (root / "work").mkdir()
    notebook = new_notebook(cells=[new_code_cell(source.strip()) for source in CELLS])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    nbformat.write(notebook, root / "work" / "figures.ipynb")
    shutil.copy(STORED, root / "work" / "stored.ipynb")
    with running(root) as address:
        yield address + "/lab/tree/figures.ipynb"


@pytest.fixture(scope="module")
def page(lab: str, browser: Browser) -> Iterator[Page]:
    """The notebook in Chromium, with all cells run and requests that would leave the machine
    recorded.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(20_000)
    page.outside = []
    page.on(
        "request", lambda request: None if local(request.url) else page.outside.append(request.url)
    )
    page.goto(lab)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.locator(".nc-live .nc-frame img").wait_for()
    yield page
    page.close()


def picture(page: Page, box: str) -> str:
    """Return the address of the one visible picture of a figure."""
    image = page.locator(f"{box} .nc-frame img")
    expect(image).to_have_count(1)
    assert image.evaluate("i => i.complete && i.naturalWidth > 0"), "the picture does not decode"
    return image.get_attribute("src")


def test_sliders_of_explore_change_picture_and_text(page):
    image = page.locator(".nc-explore .nc-frame img")
    expect(image).to_have_attribute("alt", "After 2 steps the sum is 1.")
    first, height = (
        picture(page, ".nc-explore"),
        page.locator(".nc-explore").bounding_box()["height"],
    )
    handles = page.locator(".nc-explore .noUi-handle")
    handles.nth(1).focus()
    page.keyboard.press("ArrowRight")
    expect(image).to_have_attribute("alt", "After 4 steps the sum is 2.")
    handles.nth(0).focus()
    page.keyboard.press("ArrowLeft")
    expect(image).to_have_attribute("alt", "After 4 steps the sum is 1.")
    expect(page.locator(".nc-explore figcaption")).to_have_text("After 4 steps the sum is 1.")
    expect(page.locator(".nc-explore .widget-readout")).to_have_text(["0.25", "4"])
    assert picture(page, ".nc-explore") != first
    assert page.locator(".nc-explore").bounding_box()["height"] == height, "the page jumps"


def test_run_draws_the_point_of_the_controls(page):
    box = page.locator(".nc-live")
    image, run = box.locator(".nc-frame img"), box.get_by_role("button", name="Run")
    expect(image).to_have_attribute("alt", "After 6 steps the sum is 0.6.")
    first = picture(page, ".nc-live")
    move(page, 6, 8)
    expect(box.locator(".nc-frame")).to_have_class(re.compile("nc-stale"))
    assert picture(page, ".nc-live") == first
    move(page, 8, 9, drawn=6)
    run.click()
    expect(box.get_by_role("button", name="Running…")).to_be_disabled()
    expect(image).to_have_attribute("alt", "After 9 steps the sum is 0.9.")
    expect(box.locator(".nc-frame")).not_to_have_class(re.compile("nc-stale"))
    expect(box.get_by_role("status")).to_have_text("Done.")
    expect(run).to_be_enabled()
    assert picture(page, ".nc-live") != first


def test_an_error_is_shown_and_does_not_stick(page):
    box = page.locator(".nc-live")
    run = box.get_by_role("button", name="Run", exact=True)
    move(page, 9, 7)
    run.press("Enter")
    expect(box.get_by_role("alert")).to_have_text("ValueError: expected <i>T</i> other than 7")
    expect(box.get_by_role("status")).to_have_text("Failed at eps = 0.1, T = 7.")
    expect(box.locator("img")).to_have_count(0)
    move(page, 7, 8)
    run.press("Enter")
    expect(box.locator("img")).to_have_attribute("alt", "After 8 steps the sum is 0.8.")


def test_a_stored_notebook_shows_its_pictures_before_anything_runs(lab, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.goto(lab.replace("figures.ipynb", "stored.ipynb"))
    images = page.locator(".jp-RenderedImage img")
    expect(images).to_have_count(2)
    assert all(image.evaluate("i => i.complete && i.naturalWidth > 200") for image in images.all())
    expect(page.locator(".jp-OutputArea-output")).to_have_count(3)
    expect(page.get_by_text("[power = 1")).to_have_count(0)
    page.close()


def test_nothing_went_to_stderr_or_left_the_machine(page):
    expect(page.locator(".jp-OutputArea-output[data-mime-type*=stderr]")).to_have_count(0)
    assert page.outside == []


def move(page: Page, start: int, end: int, drawn: int | None = None) -> None:
    """Move the slider T of `live` with the keyboard, and wait until the kernel knows where it
    stands.
    """
    row = page.locator(".nc-live .widget-slider").filter(has_text="T")
    row.locator(".noUi-handle").focus()
    for _ in range(abs(end - start)):
        page.keyboard.press("ArrowRight" if end > start else "ArrowLeft")
    points = f"The picture is at eps = 0.1, T = {drawn or start}. Run draws eps = 0.1, T = {end}."
    expect(page.locator(".nc-live").get_by_role("status")).to_have_text(points)
