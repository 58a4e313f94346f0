"""Take the picture of a chapter that the README shows: ``python tools/picture.py
_build/html/book/whitening.html``.
"""

import sys
from pathlib import Path

from browser import program
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "book" / "_static" / "chapter.png"


def main(page_of_book: str) -> None:
    """Open a built page at its first interactive figure and store what a reader sees."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1100, "height": 800})
        page.goto(Path(page_of_book).resolve().as_uri())
        page.locator(".nc-frame img").first.wait_for()
        page.locator(".nc-explore").first.evaluate("box => window.scrollTo(0, box.offsetTop - 200)")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
