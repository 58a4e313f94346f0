"""Take the picture that README and introduction show: ``python tools/picture.py
_build/html/book/foundations.html``.
"""

import sys
from pathlib import Path

from browser import program
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "book" / "_static" / "chapter.png"


def main(page_of_book: str) -> None:
    """Open a built page and store the drawing of its opening figure, without the controls."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900}, device_scale_factor=1.5)
        page.goto(Path(page_of_book).resolve().as_uri())
        page.locator(".nc-figure svg").first.wait_for()
        page.wait_for_timeout(1000)
        boxes = [svg.bounding_box() for svg in page.locator(".nc-figure svg").all()[:2]]
        left, top = (min(box[side] for box in boxes) - 12 for side in "xy")
        right = max(box["x"] + box["width"] for box in boxes) + 12
        bottom = max(box["y"] + box["height"] for box in boxes)
        clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        page.screenshot(path=PICTURE, clip=clip)
        browser.close()
    Image.open(PICTURE).convert("RGB").quantize(96).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
