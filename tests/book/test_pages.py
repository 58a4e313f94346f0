"""The rendered pages, as a reader meets them: from disk and from a server, with the network
blocked, by keyboard.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from playwright.sync_api import Page
from read import check, small_text
from visit import STATES, THEME, Visit, opened, pages, visit, weigh

from natcompanion.chapters import ledger

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1_000_000
PATH = re.compile(r"^\S+\.(png|svg|jpe?g|webp|gif)$|/_images/|\\|^data:")

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module", params=["disk", "server"])
def base(request, site, serve) -> str:
    """Return the address of the book, without a slash at the end."""
    return site.as_uri() if request.param == "disk" else serve(site)


@pytest.fixture(scope="module")
def visits(browser, site, base) -> list[Visit]:
    """Open every page of the book once."""
    disk, looks = base.startswith("file"), set()
    return [visit(browser, site, base, name, disk, looks if disk else None) for name in pages(site)]


@pytest.fixture(scope="module")
def mini_visit(browser, mini_site) -> Visit:
    """Open the chapter of the small book once."""
    return visit(browser, mini_site, mini_site.as_uri(), "book/chapter.html", looks=set())


def slider_problems(seen: Visit) -> list[str]:
    """Return what is wrong with the sliders of a page."""
    problems = []
    for states in seen.sliders:
        where = f"{seen.page}, slider {states[0]['name']!r}"
        walked = states[:-2]
        checks = {
            "is outside of an interactive figure": all(state["height"] for state in states),
            "has no name": bool(states[0]["name"]) and states[0]["name"] != "null",
            "loses the focus": all(state["focused"] for state in states),
            "does not say the value that it shows": all(
                state["value"] == state["shown"] for state in states
            ),
            "does not go over its values": len({state["shown"] for state in walked}) == len(walked),
            "does not return with Home": states[-2]["shown"] == states[0]["shown"],
            "does not jump with End": states[-1]["shown"] == walked[-1]["shown"],
            "does not move the picture": len(walked) == 1
            or len({state["src"] for state in walked}) > 1,
            "does not change the description": len(walked) == 1
            or len({state["alt"] for state in walked}) > 1,
            "returns to another picture": states[-2]["src"] == states[0]["src"],
            "has a caption that is not the description": all(
                state["alt"] == state["caption"] for state in states
            ),
            "makes the page jump": len({state["height"] for state in states}) == 1,
        }
        problems += [f"{where} {text}" for text, good in checks.items() if not good]
    return problems


def content_problems(seen: Visit) -> list[str]:
    """Return what is wrong with the equations and the pictures of a page."""
    content = seen.content
    problems = [f"not typeset: {text}" for text in content["raw"]]
    problems += [f"wrong in an equation: {text}" for text in content["errors"]]
    if content["typeset"] < content["math"]:
        problems.append(
            f"{content['math'] - content['typeset']} of {content['math']} equations are not typeset"
        )
    for alt, width in content["pictures"]:
        if not alt.strip() or PATH.search(alt):
            problems.append(f"a picture without a description: {alt!r}")
        if not width:
            problems.append(f"a picture that does not load: {alt!r}")
    return [f"{seen.page}: {problem}" for problem in problems]


def layout_problems(seen: Visit) -> list[str]:
    """Return what is wrong with a page at some width and theme."""
    problems = []
    for layout in seen.layouts:
        where = f"{seen.page} at {layout['width']} px, {layout['asked']}"
        tops = [slider["top"] for slider in layout["sliders"]]
        checks = {
            "has the other theme": layout["theme"] == layout["asked"],
            "scrolls sideways": layout["page"] <= layout["window"],
            f"cuts off equations ({layout['clipped']})": not layout["clipped"]
            or layout["width"] < 800,
            "has sliders side by side": len(set(tops)) == len(tops),
            "has narrow sliders": all(slider["share"] > 0.8 for slider in layout["sliders"]),
            "has a short track": all(
                slider["track"] > 0.3 * layout["width"] * (1 if layout["width"] < 800 else 0.5)
                for slider in layout["sliders"]
            ),
            "has a picture that is not on white": layout["picture"] in (None, "rgb(255, 255, 255)"),
            "has a block behind its sliders": layout["block"] in (None, "rgba(0, 0, 0, 0)"),
        }
        problems += [f"{where} {text}" for text, good in checks.items() if not good]
    return problems


def test_no_request_leaves_the_book(visits):
    assert {seen.page: seen.outside for seen in visits if seen.outside} == {}


def test_everything_a_page_asks_for_is_there(visits):
    assert {seen.page: seen.failed for seen in visits if seen.failed} == {}


def test_no_page_reports_an_error(visits):
    assert {seen.page: seen.errors for seen in visits if seen.errors} == {}


def test_equations_are_typeset_and_pictures_described(visits):
    assert [problem for seen in visits for problem in content_problems(seen)] == []
    assert any(seen.content["typeset"] for seen in visits)


def test_every_slider_moves_its_picture_by_keyboard(visits):
    assert [problem for seen in visits for problem in slider_problems(seen)] == []


def test_pages_fit_phones_and_screens_in_light_and_dark(visits):
    assert [problem for seen in visits for problem in layout_problems(seen)] == []


def test_no_page_has_a_barrier(visits):
    assert [line for seen in visits for line in seen.barriers] == []


ALONE = """figure => {
  for (let node = figure; node !== document.body; node = node.parentElement)
    for (const other of [...node.parentElement.children])
      if (other !== node && !other.matches('style, link, script')) other.remove();
}"""
"""What is left of a page for axe, which walks over all of it whatever it is asked."""


def touched(page: Page) -> list[str]:
    """Move a slider and a handle of a figure that computes in the page, and return what a reader
    meets then, in every width and theme.
    """
    found = []
    figure = page.locator(".nc-figure").first
    for control in ("input[type=range]", ".nc-handle"):
        if figure.locator(control).count():
            figure.locator(control).first.press("ArrowRight")
    figure.evaluate(ALONE)
    for width, theme in STATES:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(THEME, arg=theme)
        page.wait_for_timeout(50)
        lines = check(page, {"include": [[".nc-figure"]]}) + small_text(page, ".nc-figure")
        found += [f"{width} px, {theme}: {line}" for line in lines]
    return found


def test_a_figure_that_was_touched_has_no_barrier_and_no_small_text(browser, site):
    figures, found = 0, []
    for name in pages(site):
        if '<div class="nc-figure"' not in (site / name).read_text():
            continue
        page = opened(browser.new_page(), (site / name).as_uri())
        found += [f"{name} at {line}" for line in touched(page)]
        figures += 1
        if figures == 1:
            pale = ".nc-figure button { color: #777; background: #888 }"
            page.add_style_tag(content=f"@media (max-width: 600px) {{ [data-theme=dark] {pale} }}")
            states = {line.partition(": ")[0] for line in touched(page)}
            assert states == {"390 px, dark"}, "a fault of one width and theme is noticed there"
        page.close()
    assert figures and found == []


def test_no_formula_is_cut(visits):
    assert [line for seen in visits for line in seen.cut] == []


def test_no_line_begins_with_the_comma_of_a_formula(visits):
    assert [line for seen in visits for line in seen.parted] == []


def test_no_text_is_smaller_than_twelve_pixels_on_a_phone(visits):
    assert [line for seen in visits for line in seen.small] == []


def test_pages_are_light(visits, site, base):
    for seen in visits:
        travel, alone = weigh(site, base, seen)
        assert travel <= 4 * MEGABYTE, f"{seen.page}: {travel / MEGABYTE:.1f} MB travel"
        assert alone <= 4 * MEGABYTE, f"{seen.page}: {alone / MEGABYTE:.1f} MB of page and pictures"
    assert sum(file.stat().st_size for file in site.rglob("*") if file.is_file()) <= 40 * MEGABYTE


def test_the_first_page_leads_to_the_introduction(browser, site):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/book/intro.html")
    page.close()


def test_every_page_has_a_title(site, mini_site):
    for folder in (site, mini_site):
        for name in (*pages(folder), "index.html"):
            assert re.search(r"<title>[^<]+</title>", (folder / name).read_text()), name


def test_a_knob_of_a_slider_is_hit_beside_it(browser, mini_site):
    page = browser.new_page()
    page.goto((mini_site / "book" / "chapter.html").as_uri())
    page.locator(".nc-explore .noUi-handle").first.wait_for()
    hit = """(knob, far) => {
      knob.scrollIntoView({block: 'center'});
      const {left, right, top, bottom} = knob.getBoundingClientRect();
      const [x, y] = [(left + right) / 2, (top + bottom) / 2];
      return [[left - far, y], [right + far, y], [x, top - far], [x, bottom + far]]
        .every(place => knob.contains(document.elementFromPoint(...place)));
    }"""
    knob = page.locator(".nc-explore .noUi-handle").first
    assert knob.evaluate(hit, 3)
    assert not knob.evaluate(hit, 8)
    page.close()


class Links(HTMLParser):
    """Collect the links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember where a tag leads and what it is called."""
        values = dict(attrs)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and values.get("href"):
            self.links.add(values["href"])


def test_every_link_inside_the_book_leads_somewhere(site):
    parsed = {site / name: Links((site / name).read_text()) for name in pages(site)}
    dead = []
    for page, found in parsed.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchors = parsed[target].anchors if target in parsed else None
            if not target.exists() or (
                anchors is not None and parts.fragment and parts.fragment not in anchors
            ):
                dead.append(f"{page.relative_to(site)} -> {link}")
    assert dead == []


@pytest.mark.parametrize("name", ledger.LEDGERS)
def test_tables_of_a_ledger_have_captions_widths_badges_and_links(site, name):
    text, entries = (site / "book" / f"{name}.html").read_text(), ledger.load(name)
    tables = re.findall(
        rf'<table class="ledger-table ledger-{name}[^>]*>(.*?)</table>', text, re.DOTALL
    )
    assert len(tables) == len(ledger.papers(name))
    assert all("<caption>" in table and "<col style=" in table for table in tables)
    rows = [row for table in tables for row in table.split("<tr ")[2:]]
    assert len(rows) == len(entries)
    assert all(row.count('"ledger-badge ledger-') == 1 for row in rows)
    if name == "equations":
        linked = [row for row in rows if 'href="api/' in row]
        assert len(linked) > 0.9 * sum(entry.function is not None for entry in entries)


@pytest.mark.parametrize("name", ledger.LEDGERS)
def test_on_a_phone_every_verdict_is_on_the_screen(browser, site, name):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((site / "book" / f"{name}.html").as_uri())
    where = "badges => badges.map(b => b.getBoundingClientRect()).map(r => [r.left, r.right])"
    places = page.locator(".ledger-badge").evaluate_all(where)
    assert len(places) == len(ledger.load(name))
    assert all(0 <= left < right <= 390 for left, right in places)
    page.close()


def test_a_dark_page_is_light_on_paper(browser, site):
    page = browser.new_page(color_scheme="dark")
    page.goto((site / "book" / "protocol.html").as_uri())
    colours = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colours)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(colours) == "rgb(255, 255, 255)" != dark
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(colours) == dark
    page.close()


def test_every_page_of_the_book_is_in_its_contents():
    contents = yaml.safe_dump(yaml.safe_load((ROOT / "_toc.yml").read_text()))
    written = [
        *(ROOT / "book").glob("*.md"),
        *(ROOT / "book").glob("*.ipynb"),
        *(ROOT / "book" / "api").glob("*.*"),
    ]
    assert [
        path.name
        for path in written
        if f"book/{path.relative_to(ROOT / 'book').with_suffix('')}" not in contents
    ] == []


def test_the_small_book_has_no_problem(mini_visit):
    assert (
        len(mini_visit.sliders) == 2
        and len(mini_visit.layouts) == 4
        and mini_visit.content["math"] == 1
    )
    assert mini_visit.outside == mini_visit.failed == mini_visit.errors == []
    assert mini_visit.barriers == mini_visit.cut == mini_visit.small == mini_visit.parted == []
    assert (
        slider_problems(mini_visit) + content_problems(mini_visit) + layout_problems(mini_visit)
        == []
    )


SPOILED = {
    "outside": (
        "</article>",
        '<img src="https://example.org/x.png" alt="A picture from elsewhere"></article>',
    ),
    "failed": ("</article>", '<img src="missing.png" alt="A picture that is not there"></article>'),
    "errors": ("</article>", "<script>throw new Error('spoiled')</script></article>"),
    "not typeset": ("</article>", r"<p class='tex2jax_ignore mathjax_ignore'>\(x\)</p></article>"),
    "without a description": (
        "</article>",
        '<img src="data:," alt="../_images/plot.png"></article>',
    ),
    "scrolls sideways": ("</article>", '<div style="width: 3000px">.</div></article>'),
    "cuts off equations": (
        "</article>",
        (
            '<mjx-container display="true" style="display: block"><div style="width: '
            '3000px">.</div></mjx-container></article>'
        ),
    ),
    "barriers": (
        "</article>",
        (
            '<button></button><p style="color: #bbb; background: #fff">pale</p>'
            '<p>In <em>plain <b style="color: #ccc; background: #fff">words</b></em></p>'
            "<p>In <em>plain <b>words</b></em> and <code>names</code></p>"
            '<p class="pale"><span>in <i>the dark</i></span></p>'
            "<style>[data-theme=dark] .pale {color: #333; background: #222}</style></article>"
        ),
    ),
    "cut": (
        "</article>",
        (
            '<div style="overflow: hidden; width: 9px"><div style="width: 99px">'
            "<mjx-container>wide</mjx-container></div></div><p><mjx-container tabindex='0' "
            'style="display: inline-block; overflow-x: auto; width: 9px">wide, with room'
            "</mjx-container></p></article>"
        ),
    ),
    "parted": (
        "</article>",
        (
            '<p style="width: 60px"><mjx-container style="display: inline-block; width: 60px">wide'
            "</mjx-container>, and</p></article>"
        ),
    ),
    "small": ("</article>", '<p style="font-size: 11px">small</p></article>'),
    "no name": ("_static/book.js", "_static/doctools.js"),
    "a block behind": ("_static/book.css", "_static/pygments.css"),
    "does not move the picture": (
        "</body>",
        "<script>HTMLImageElement.prototype.__defineGetter__('src', () => 1)</script></body>",
    ),
}
"""Changes of a page, each of which one of the checks above must notice."""


@pytest.mark.parametrize("kind", SPOILED)
def test_a_spoiled_page_is_noticed(browser, mini_site, kind, monkeypatch):
    monkeypatch.setattr("visit.PATIENCE", 50)
    text = (mini_site / "book" / "chapter.html").read_text()
    assert SPOILED[kind][0] in text
    name = f"book/spoiled-{kind.replace(' ', '-')}.html"
    (mini_site / name).write_text(text.replace(*SPOILED[kind]))
    looks = set() if kind in ("barriers", "cut", "parted", "small") else None
    seen = visit(browser, mini_site, mini_site.as_uri(), name, looks=looks)
    found = getattr(seen, kind, None) or slider_problems(seen) + content_problems(
        seen
    ) + layout_problems(seen)
    assert found and (hasattr(seen, kind) or any(kind in problem for problem in found)), found
    if kind == "cut":
        assert {line[-4:] for line in found} == {"room", "wide"}
    if kind == "barriers":
        rules = {line.split(": ")[1] for line in found}
        assert {"button-name", "color-contrast"} <= rules
        assert sum("color-contrast" in line for line in found) == 3, "one for each pale text"
