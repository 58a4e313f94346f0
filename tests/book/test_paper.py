"""Chapters on paper: how long they are, and that nothing stands there which needs a screen."""

import pytest
from read import printed
from visit import opened

pytestmark = pytest.mark.browser

CHAPTERS = ("foundations", "whitening", "revisiting", "prong", "rfim", "boltzmann", "after")
STORY, WHOLE = 20, 40


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_is_printed_as_it_is_open(browser, site, chapter):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    opened(page, (site / "book" / f"{chapter}.html").as_uri())
    story, controls = printed(page, folded=True)
    whole, more = printed(page, folded=False)
    page.close()
    assert controls == more == []
    assert 1 < story <= STORY, f"{chapter}: {story} pages"
    assert story < whole <= WHOLE, f"{chapter}: {whole} pages"


def test_code_whose_result_is_folded_is_for_the_screen(browser, site):
    page = browser.new_page()
    opened(page, (site / "book" / "prong.html").as_uri())
    code = page.locator(".cell:has(> details.below-input) > .cell_input")
    shown = "all => all.filter(one => one.checkVisibility()).length"
    assert code.evaluate_all(shown) == code.count() > 2
    page.emulate_media(media="print")
    assert code.evaluate_all(shown) == 0
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    assert code.evaluate_all(shown) == code.count()
    page.close()


def test_on_paper_a_picture_keeps_its_settings_and_a_table_its_title(browser, mini_site):
    page = browser.new_page()
    opened(page, (mini_site / "book" / "chapter.html").as_uri())
    page.emulate_media(media="print")
    style = (
        "all => all.map(one => [getComputedStyle(one).display, getComputedStyle(one).breakInside])"
    )
    kept = page.locator(".nc-explore").evaluate_all(style)
    assert kept and all(found == ["block", "avoid"] for found in kept)
    table = (
        "one => one.insertAdjacentHTML('beforeend', '<div class=\"text_html\">title, table</div>')"
    )
    page.locator(".cell_output").first.evaluate(table)
    assert page.locator(".cell_output .text_html").first.evaluate_all(style)[0][1] == "avoid"
    page.close()


def test_the_button_folds_and_unfolds(browser, site):
    page = browser.new_page()
    page.goto((site / "book" / "whitening.html").as_uri())
    parts = page.locator(".bd-article details")
    button = page.get_by_role("button", name="the folded parts")
    still = "parts => parts.filter(part => part.open).length"
    assert parts.evaluate_all(still) == 0 and "Open" in button.text_content()
    button.press("Enter")
    page.wait_for_function("document.querySelector('.nc-fold').textContent.startsWith('Close')")
    assert parts.evaluate_all(still) == parts.count() > 2
    button.press("Enter")
    assert parts.evaluate_all(still) == 0
    page.close()


def test_a_control_on_paper_is_noticed(browser, mini_site):
    page = browser.new_page()
    opened(page, (mini_site / "book" / "chapter.html").as_uri())
    assert printed(page, folded=False)[1] == []
    page.evaluate("document.querySelector('.bd-article').append(document.createElement('select'))")
    assert len(printed(page, folded=False)[1]) == 1
    page.close()
