"""Ask of an open page what a reader with other eyes, hands or paper meets: axe finds barriers, cut
formulas and small text are measured, and the page is printed.

The structure of a page depends on its width only where something scrolls or goes, and on its theme
not at all; the contrast of a text depends on its colours and on whether it is large. So axe checks
the structure once, what a width can change once for the other width, and contrast once for each
look that a text has on any page, in any state. It walks over every node whatever it is asked: so it
is asked once in each state, and what no rule can tell from plain text is plain text meanwhile: the
insides of formulas, which it is not asked about, of code, and of text with nothing but emphasis,
whose looks are known. Where it is asked about contrast alone, only the text with a new look stays,
and what is around it.
"""

import re
from pathlib import Path

from playwright.sync_api import Page

AXE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"
LEAST = 12
EVERYTHING = {"include": [["html"]], "exclude": [["mjx-container"]]}
CONTRAST = "color-contrast"
BY_WIDTH = ["scrollable-region-focusable", "aria-hidden-focus", "region", "bypass"]

UNFOLD = """open => new Promise(done => {
  document.querySelectorAll('.bd-article details').forEach(part => part.open = open);
  requestAnimationFrame(() => requestAnimationFrame(done));
})"""

LOOKS = """known => {
  const seen = new Set(known), grounds = new Map();
  const ground = node => {
    if (!node) return '';
    if (!grounds.has(node)) {
      const {backgroundColor, backgroundImage, opacity} = getComputedStyle(node);
      const own = backgroundColor === 'rgba(0, 0, 0, 0)' ? '' : backgroundColor;
      const solid = own.startsWith('rgb(') && opacity === '1';
      const clear = !own && backgroundImage === 'none' && opacity === '1';
      const behind = solid ? '' : ground(node.parentElement);
      grounds.set(node, clear ? behind : own + backgroundImage + opacity + behind);
    }
    return grounds.get(node);
  };
  document.querySelectorAll('[data-look]').forEach(node => node.removeAttribute('data-look'));
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest('mjx-container, script, style')) continue;
    if (!node.checkVisibility({visibilityProperty: true})) continue;
    const {color, fontSize, fontWeight} = getComputedStyle(node);
    const large = parseFloat(fontSize) >= (fontWeight >= 700 ? 18.67 : 24);
    const look = [color, large, ground(node)].join(' ');
    if (seen.has(look)) continue;
    seen.add(look);
    found.push(look);
    node.setAttribute('data-look', '');
  }
  return found;
}"""

ASIDE = """looksAlone => {
  const INLINE = 'span, em, strong, b, i, code, br, wbr, sub, sup';
  const plain = node => looksAlone || node.matches(INLINE) &&
    !/hidden|heard|sr-only/.test(node.className) &&
    node.getAttributeNames().every(name => name === 'class');
  const all = [...document.body.querySelectorAll('*')], bare = new Set();
  for (const node of all.toReversed())
    if ([...node.children].every(child => plain(child) && bare.has(child))) bare.add(node);
  const chosen = [];
  for (const node of all) {
    const whole = bare.has(node) && node.firstElementChild;
    if (!whole && !node.matches('mjx-container, pre')) continue;
    if (chosen.at(-1)?.contains(node)) continue;
    if (!node.matches('[data-look]') && !node.querySelector('[data-look]')) chosen.push(node);
  }
  window.aside = chosen.map(node => {
    const text = looksAlone || node.matches('mjx-container') ? '' : node.textContent;
    const kept = new DocumentFragment();
    kept.append(...node.childNodes);
    node.append(text);
    return [node, kept];
  });
}"""

BACK = "() => aside.forEach(([node, kept]) => node.replaceChildren(kept))"

ONLY_NEW = "id => axe.configure({rules: [{id, selector: '[data-look]'}]})"

CHECK = """async ([context, options]) => {
  const {violations} = await axe.run(
    context, {reporter: 'no-passes', resultTypes: ['violations'], preload: false, ...options});
  return violations.flatMap(({id, nodes}) => nodes.map(({target, html}) =>
    `${id}: ${target.join(' ')} ${html.slice(0, 120)}`));
}"""

SMALL = """([least, where]) => {
  const small = [];
  const walker = document.createTreeWalker(document.querySelector(where), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim()) continue;
    if (node.closest('mjx-container, script, style, sub, sup, tspan[dy]')) continue;
    if (!node.checkVisibility({visibilityProperty: true})) continue;
    const matrix = node.getScreenCTM?.();  // a drawing fills its panel; a text in it may be turned
    const scale = matrix ? Math.hypot(matrix.a, matrix.b) : 1;
    const size = scale * parseFloat(getComputedStyle(node).fontSize);
    if (size < least) small.push(`${size} px: ${walker.currentNode.data.trim().slice(0, 60)}`);
  }
  return small;
}"""

CUT = """() => [...document.querySelectorAll('.bd-article mjx-container')].filter(node => {
  if (!node.checkVisibility()) return false;
  const line = node.closest('p, li, dd, td, th, figcaption, summary, h1, h2, h3, h4');
  const wide = node.scrollWidth > node.clientWidth + 1;
  if (wide && node.getAttribute('display') !== 'true' &&
      line?.clientWidth > node.scrollWidth + 16) return true;  // it scrolls, and had room
  for (let box = node; box && !box.matches('.bd-article'); box = box.parentElement) {
    const {overflowX, display} = getComputedStyle(box);
    if (display === 'inline' || overflowX === 'visible') continue;
    if (box.scrollWidth <= box.clientWidth + 1) continue;
    if (overflowX !== 'auto' && overflowX !== 'scroll') return true;
    const inside = 'a[href], button, input, [tabindex="0"]';
    if (box.tabIndex < 0 && !box.querySelector(inside)) return true;
  }
  return node.getBoundingClientRect().right > innerWidth + 1 &&
    !node.closest('[tabindex="0"], .pst-scrollable-table-container');
}).map(node => node.textContent.slice(0, 60))"""

PARTED = """() => [...document.querySelectorAll('.bd-article mjx-container')].filter(formula => {
  let node = formula;
  while (!node.nextSibling && node.matches('mjx-container, .math')) node = node.parentElement;
  const text = node.nextSibling;
  if (text?.nodeType !== Node.TEXT_NODE || !/^[-,.;:!?)\\]’”"]/.test(text.data)) return false;
  const sign = document.createRange();
  sign.setStart(text, 0);
  sign.setEnd(text, 1);
  const place = sign.getClientRects()[0];
  return place && place.top >= formula.getBoundingClientRect().bottom - 2;
}).map(node => node.textContent.slice(0, 60))"""

CONTROLS = """() => [...document.querySelectorAll(
    'button, input, select, summary, [role=slider], .headerlink, .copybtn')]
  .filter(node => node.checkVisibility() && node.getBoundingClientRect().width)
  .filter(node => !node.matches('details[open]:not(.hide) > summary'))
  .map(node => node.outerHTML.slice(0, 120))"""


def barriers(page: Page, rules: list[str] | None, looks: set[str]) -> list[str]:
    """Return the barriers that axe finds on a page as it is.

    ``rules`` says what of the structure is checked, ``None`` for all of it; ``looks`` holds the
    looks of text whose contrast has been, and gets the new ones.
    """
    new = page.evaluate(LOOKS, sorted(looks))
    looks.update(new)
    if rules == [] and not new:
        return []
    page.evaluate(ASIDE, rules == [])
    load(page)
    page.evaluate(ONLY_NEW, CONTRAST)
    asked = {} if rules is None else {"runOnly": [*rules, CONTRAST]}
    found = check(page, EVERYTHING, **asked)
    if any(line.startswith(CONTRAST) for line in found):
        # on a busy machine the colours of a theme just chosen may be on their way
        page.wait_for_timeout(1000)
        found = check(page, EVERYTHING, **asked)
    page.evaluate(BACK)
    return found


def cut_formulas(page: Page) -> list[str]:
    """Return the formulas that a reader does not see whole."""
    return page.evaluate(CUT)


def parted_formulas(page: Page) -> list[str]:
    """Return the formulas whose comma or full stop begins the next line."""
    return page.evaluate(PARTED)


def small_text(page: Page, where: str = "body") -> list[str]:
    """Return the text that is smaller than twelve pixels, formulas and their indices aside."""
    return page.evaluate(SMALL, [LEAST, where])


def load(page: Page) -> None:
    """Give a page axe, and colours that change at once."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE.read_text())
        page.add_style_tag(content="*, ::before, ::after { transition: none !important; }")


def check(page: Page, context: dict, **options: object) -> list[str]:
    """Return what axe finds."""
    load(page)
    return page.evaluate(CHECK, [context, options])


def unfold(page: Page, unfolded: bool) -> None:
    """Open or close all folded parts."""
    page.evaluate(UNFOLD, unfolded)


def printed(page: Page, folded: bool) -> tuple[int, list[str]]:
    """Return how many pages a page prints on, and the controls that stand on them."""
    unfold(page, not folded)
    data = page.pdf(format="A4")
    page.emulate_media(media="print")
    left = page.evaluate(CONTROLS)
    page.emulate_media(media="null")  # "screen" would hold for the next PDF, too
    return len(re.findall(rb"/Type\s*/Page\b", data)), left
