"""Open every page of a site in Chromium, with the network blocked, and record what a reader would
meet.
"""

import gzip
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import read
from playwright.sync_api import Browser, Page, Route, TimeoutError

STATES = ((1280, "light"), (1280, "dark"), (390, "dark"), (390, "light"))
"""The widths and themes of a page. A theme is quick to change, a width moves every line."""

PATIENCE = 500
"""How often the state of a slider is asked for until it has moved; 20 milliseconds lie between."""

COMPRESSED = (".html", ".js", ".css", ".svg", ".json", ".ipynb")
"""What a web server sends compressed."""

SETTLED = """() => {
  const math = window.MathJax?.startup?.promise;
  const view = 'script[type="application/vnd.jupyter.widget-view+json"]';
  const views = document.querySelectorAll(view).length;
  const shown = document.querySelectorAll('.widget-subarea > .jupyter-widgets').length;
  const empty = [...document.querySelectorAll('.nc-explore')]
    .some(box => !box.querySelector('.nc-frame img'));
  return shown >= views && !empty ? Promise.resolve(math).then(() => true) : false;
}"""

THEME = "theme => document.documentElement.dataset.theme === theme"

LAYOUT = """() => {
  const color = node => node ? getComputedStyle(node).backgroundColor : null;
  const frame = document.querySelector('.nc-frame img');
  const sliders = [...document.querySelectorAll('.nc-explore .widget-slider')].map(slider => {
    const box = slider.getBoundingClientRect();
    const outer = slider.closest('.nc-explore').getBoundingClientRect();
    return {top: box.top, share: box.width / outer.width,
            track: slider.querySelector('.slider-container').getBoundingClientRect().width};
  });
  return {theme: document.documentElement.dataset.theme, page: document.documentElement.scrollWidth,
          window: document.documentElement.clientWidth, sliders,
          clipped: [...document.querySelectorAll('mjx-container[display="true"]')]
            .filter(node => node.scrollWidth > node.clientWidth + 1)
            .map(node => node.textContent.slice(0, 60)),
          picture: color(frame),
          block: color(document.querySelector('.widget-subarea'))};
}"""

CONTENT = r"""() => {
  const article = document.querySelector('.bd-article') || document.body;
  const walker = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  const raw = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const plain = !node.parentElement.closest('script, style, pre, code, mjx-container');
    if (plain && /\\\(|\\\[|\$\$/.test(node.data))
      raw.push(node.data.slice(0, 80));
  }
  return {
    raw, math: document.querySelectorAll('.math').length,
    typeset: document.querySelectorAll('.math mjx-container').length,
    errors: [...document.querySelectorAll('mjx-merror, [data-mml-node="merror"]')]
      .map(n => n.textContent.slice(0, 80)),
    pictures: [...article.querySelectorAll('img')]
      .map(n => [n.getAttribute('alt') || '', n.naturalWidth]),
  };
}"""

SLIDER = """handle => {
  const box = handle.closest('.nc-explore');
  const frame = box && [...box.querySelectorAll('.nc-frame')].find(node => node.offsetParent);
  const image = frame && frame.querySelector('img');
  return {name: handle.getAttribute('aria-label'), value: handle.getAttribute('aria-valuetext'),
          shown: handle.closest('.widget-slider').querySelector('.widget-readout')
            .textContent.trim(),
          last: handle.getAttribute('aria-valuenow') === handle.getAttribute('aria-valuemax'),
          first: handle.getAttribute('aria-valuenow') === handle.getAttribute('aria-valuemin'),
          focused: document.activeElement === handle,
          height: box && Math.round(box.getBoundingClientRect().height),
          src: image && image.src, alt: image && image.alt,
          caption: frame && (frame.querySelector('figcaption') || frame).textContent.trim()};
}"""


@dataclass
class Visit:
    """What one page did and showed."""

    page: str
    outside: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    loaded: set[str] = field(default_factory=set)
    content: dict = field(default_factory=dict)
    layouts: list[dict] = field(default_factory=list)
    barriers: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    parted: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    sliders: list[list[dict]] = field(default_factory=list)


def pages(site: Path) -> list[str]:
    """Return the pages of a site, relative to it, without the first one, which only leads to
    another.
    """
    found = (path.relative_to(site) for path in site.rglob("*.html"))
    return sorted(
        path.as_posix() for path in found if path.parts[0] not in ("_static", "index.html")
    )


def watch(page: Page, visit: Visit, base: str) -> None:
    """Record requests and errors of a page, and let nothing through that leaves ``base``."""

    def inside(url: str) -> bool:
        return url.startswith((base, "data:", "blob:", "about:"))

    def block(route: Route) -> None:
        route.abort() if not inside(route.request.url) else route.continue_()

    def record(request) -> None:
        url = request.url
        if not inside(url):
            visit.outside.append(url[:200])
        elif url.startswith(base):
            visit.loaded.add(unquote(urlsplit(urldefrag(url).url).path))

    page.route(re.compile(r"^(?!data:|blob:)"), block)
    page.on("request", record)
    page.on("requestfailed", lambda request: visit.failed.append(request.url[:200]))
    page.on(
        "response",
        lambda reply: visit.failed.append(reply.url[:200]) if reply.status >= 400 else None,
    )
    page.on("pageerror", lambda error: visit.errors.append(str(error)[:300]))
    page.on(
        "console",
        lambda line: visit.errors.append(line.text[:300]) if line.type == "error" else None,
    )


def walk(page: Page) -> Iterator[list[dict]]:
    """Move every slider over its whole range by keyboard alone, and back to where it stood."""
    for handle in page.query_selector_all("[role=slider]"):
        handle.focus()
        before = handle.evaluate(SLIDER)
        states = [press(page, handle, "Home", before)]
        while not states[-1]["last"] and len(states) < 100:
            states.append(press(page, handle, "ArrowRight", states[-1]))
        states.append(press(page, handle, "Home", states[-1]))
        states.append(press(page, handle, "End", states[-1]))
        yield states
        while (
            handle.evaluate(SLIDER)["shown"] != before["shown"]
            and not handle.evaluate(SLIDER)["first"]
        ):
            press(page, handle, "ArrowLeft", handle.evaluate(SLIDER))


def press(page: Page, handle, key: str, before: dict) -> dict:
    """Press a key and return the state of the slider once it has moved and the picture with it, or
    when patience ends.
    """
    page.keyboard.press(key)
    still = (key == "Home" and before["first"]) or (key == "End" and before["last"])
    for _ in range(1 if still else PATIENCE):
        page.wait_for_timeout(5 if still else 20)
        state = handle.evaluate(SLIDER)
        moved = state["value"] == state["shown"] != before["shown"]
        if (
            moved
            and state["alt"]
            and (state["alt"], state["src"]) != (before["alt"], before["src"])
        ):
            break
    return state


def visit(
    browser: Browser,
    site: Path,
    base: str,
    name: str,
    layouts: bool = True,
    looks: set[str] | None = None,
) -> Visit:
    """Open one page, in every width and theme, move its sliders, and return what happened.

    What is drawn before is looked at; figures that compute in the page have tests of their own.
    With ``looks``, the page is read for barriers as well; see :mod:`read`.
    """
    result = Visit(name)
    context = browser.new_context(
        viewport={"width": STATES[0][0], "height": 900}, color_scheme="light"
    )
    page = context.new_page()
    watch(page, result, base)
    try:
        page.goto(f"{base}/{name}?frames", wait_until="load", timeout=120_000)
        page.wait_for_function(SETTLED, timeout=60_000)
        result.content = page.evaluate(CONTENT)
        if looks is not None:
            read.unfold(page, True)
        for width, theme in STATES if layouts else ():
            page.emulate_media(color_scheme=theme)
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(50)
            with suppress(TimeoutError):  # a page that keeps its theme is told by its layout
                page.wait_for_function(THEME, arg=theme, timeout=5_000)
            result.layouts.append({"asked": theme, "width": width, **page.evaluate(LAYOUT)})
            if looks is not None:
                read_layout(page, result, looks)
        if looks is not None:
            read.unfold(page, False)
        result.sliders = list(walk(page))
    finally:
        context.close()
    return result


def opened(page: Page, address: str) -> Page:
    """Open an address and wait until its equations and figures stand."""
    page.goto(address, timeout=120_000)
    page.wait_for_function(SETTLED, timeout=60_000)
    return page


def read_layout(page: Page, result: Visit, looks: set[str]) -> None:
    """Read a page in one width and theme: what the theme does not change, once for each width."""
    state, layout = len(result.layouts) - 1, result.layouts[-1]
    where = f"{result.page} at {layout['width']} px, {layout['asked']}: "
    rules = [None, [], read.BY_WIDTH, []][state]
    if state in (0, 2):  # before axe, for which formulas are emptied
        result.cut += [where + line for line in read.cut_formulas(page)]
        result.parted += [where + line for line in read.parted_formulas(page)]
    result.barriers += [where + line for line in read.barriers(page, rules, looks)]
    if state == 2:
        result.small += [where + line for line in read.small_text(page)]


@cache
def compressed(data: bytes) -> int:
    """Return the length of data as a web server sends it."""
    return len(gzip.compress(data))


def weigh(site: Path, base: str, seen: Visit) -> tuple[int, int]:
    """Return the bytes that travel when the page is opened for the first time, and those of the
    page alone.

    The first number counts everything the page loads, text compressed as a web server sends it. The
    second counts the HTML and the pictures as they lie on the disk.
    """
    prefix = unquote(urlsplit(base).path)
    travel = alone = 0
    for path in seen.loaded:
        file = site / path.removeprefix(prefix).lstrip("/")
        data = file.read_bytes() if file.is_file() else b""
        travel += compressed(data) if file.suffix in COMPRESSED else len(data)
        alone += len(data) if "_static" not in file.parts and file.suffix != ".js" else 0
    return travel, alone
