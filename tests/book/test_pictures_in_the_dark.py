"""Drawn pictures in dark mode: on the ground of the page, legible, each colour of the palette still
itself; and on a phone as wide as it is.
"""

import base64
import colorsys
import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from natcompanion.chapters.figures.style import BLACK, COLOURS, YELLOW

pytestmark = pytest.mark.browser

STYLE = Path(__file__).resolve().parents[2] / "book" / "_static" / "book.css"
GROUND = (18, 18, 18)
SWATCHES = ("#FFFFFF", BLACK, "#4D4D4D", "#666666", *COLOURS)
SIZE = 20


def shine(colour) -> float:
    """Return the relative luminance of a colour, as WCAG has it, and 0.05."""
    x = np.asarray(colour, float)
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722]) + 0.05


def contrast(one, other) -> float:
    """Return the contrast of two colours."""
    return max(shine(one) / shine(other), shine(other) / shine(one))


@pytest.fixture(scope="module")
def shown(browser, tmp_path_factory):
    """Function ``shown(theme, media, style)``: the colours of the swatches on a screen."""
    strip = np.repeat([to_rgb(name) for name in SWATCHES], SIZE, axis=0)[None]
    picture, file = io.BytesIO(), tmp_path_factory.mktemp("dark") / "page.html"
    pixels = np.repeat((255 * strip).round().astype(np.uint8), SIZE, axis=0)
    Image.fromarray(pixels).save(picture, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
    page = browser.new_page(viewport={"width": 800, "height": 60})

    def look(theme: str, media: str = "screen", style: str = "") -> np.ndarray:
        file.write_text(
            f'<!doctype html><html data-theme="{theme}"><link rel="stylesheet" '
            f'href="{STYLE.as_uri()}"><style>body {{margin: 0; background: '
            f"{'rgb(18 18 18)' if theme == 'dark' else 'white'}}} {style}</style>"
            '<div class="bd-content"><div class="cell_output">'
            f'<img style="display: block" src="{uri}"></div></div>'
        )
        page.goto(file.as_uri())
        page.emulate_media(media=media)
        image = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        return image[SIZE // 2, SIZE // 2 :: SIZE][: len(SWATCHES)] / 255

    yield look
    page.close()


def hue(colour) -> float:
    return 360 * colorsys.rgb_to_hsv(*colour)[0]


def problems(seen: np.ndarray) -> list[str]:
    """Return what a reader in the dark would miss of the swatches."""
    found = [] if np.allclose(255 * seen[0], GROUND, atol=1) else ["white is not the ground"]
    for name, colour in zip(SWATCHES[1:], seen[1:], strict=True):
        least = 4.5 if name not in COLOURS else 3
        if contrast(colour, seen[0]) < least:
            found.append(f"{name} has contrast {contrast(colour, seen[0]):.1f}")
        if name in COLOURS and abs(hue(colour) - hue(to_rgb(name))) > 12:
            found.append(f"{name} has another hue")
    return found


def test_pictures_in_the_dark_lie_on_the_page_with_their_colours(shown):
    assert problems(shown("dark")) == []


def test_elsewhere_pictures_are_as_they_were_drawn(shown):
    drawn = [to_rgb(name) for name in SWATCHES]
    for theme, media in (("light", "screen"), ("light", "print"), ("dark", "print")):
        assert np.allclose(shown(theme, media), drawn, atol=0.01), (theme, media)


@pytest.mark.parametrize(
    "style", ["filter: none", "filter: invert(1)", "filter: invert(1) hue-rotate(90deg)"]
)
def test_a_white_card_and_turned_colours_would_be_noticed(shown, style):
    rule = f'html[data-theme="dark"] .bd-content div.cell_output img {{{style} !important}}'
    assert problems(shown("dark", style=rule)) != []


def test_yellow_is_a_colour_that_white_hides_and_the_dark_shows(shown):
    place = SWATCHES.index(YELLOW)
    light, dark = shown("light"), shown("dark")
    assert contrast(light[place], light[0]) < 3 < contrast(dark[place], dark[0])


def test_a_phone_shows_a_picture_from_edge_to_edge(browser, mini_site):
    """There 12 points of a picture of 5.4 inches are 12 pixels high."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto((mini_site / "book" / "chapter.html").as_uri())
    page.locator(".nc-frame img").first.wait_for(state="visible")
    images = page.locator(".cell_output img:visible")
    for box in images.evaluate_all("all => all.map(x => x.getBoundingClientRect().toJSON())"):
        assert (box["left"], box["width"]) == pytest.approx((0, 390), abs=0.5)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for words in page.locator(".nc-frame figcaption:visible, .widget-hslider").all():
        text = words.evaluate("""node => {
          const style = getComputedStyle(node), box = node.getBoundingClientRect();
          return [box.left + parseFloat(style.paddingLeft),
                  innerWidth - box.right + parseFloat(style.paddingRight)];
        }""")
        assert min(text) >= 16, "words keep their distance from the edge"
    page.close()
