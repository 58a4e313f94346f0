"""The ledgers' pages as a reader uses them: rows with an address, links both ways, a filter."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from natcompanion.chapters import ledger, pages

ROOT = Path(__file__).resolve().parents[2]
spec = spec_from_file_location("ledger_links", ROOT / "book" / "_ext" / "ledger_links.py")
links = module_from_spec(spec)
spec.loader.exec_module(links)

SECTIONS = [
    links.Section("start", "The figure to play with", "Figure 1 of the paper, and Eq. 35."),
    links.Section("recipe", "2.1–2.2 The recipe", "data-number=\"steps('sgd')\""),
    links.Section("metric", "The metric (Section 3.1)", r"G \qquad (9), Footnote 2; Eqs. 3 to 5"),
    links.Section("deviations", "Deviations from the paper", "Figure 1, Section 2.1"),
]


@pytest.fixture(scope="module", params=ledger.LEDGERS)
def name(request) -> str:
    """Return the name of a ledger."""
    return request.param


@pytest.fixture
def page(browser):
    """Open a window as wide as a screen."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_navigation_timeout(120_000)
    yield page
    page.close()


def test_equations_of_a_text_are_read():
    assert links.numbers("Eqs. 3, 5 and 7; Eq. 9; Eqs. 11 to 13") == set("3579") | {
        "11",
        "12",
        "13",
    }
    assert links.numbers(r"x = y \qquad (25), z \tag{26}") == {"25", "26"}
    assert links.numbers("Section 4, n = 5 (6)") == set()


def test_a_title_names_sections_of_the_paper():
    assert links.own_numbers("2.3–2.5 When it is out of reach") == {"2.3", "2.4", "2.5"}
    assert links.own_numbers("5 Results") == {"5"}
    assert links.own_numbers("Damping (Section 8.3)") == {"8.3"}
    assert links.own_numbers("What to keep") == set()


@pytest.mark.parametrize(
    ("where", "measure", "anchor"),
    [
        ("Section 2.2", None, "recipe"),
        ("Section 3.1", None, "metric"),
        ("Figure 1b", None, "start"),
        ("Eq. 4", None, "metric"),
        ("Eq. 35", None, "start"),
        ("Section 3.1", "steps('sgd')", "recipe"),
        ("Table 7", None, None),
    ],
)
def test_an_entry_finds_its_section(where, measure, anchor):
    found = links.home(SECTIONS, where, measure)
    assert (found and found.anchor) == anchor


def test_rows_of_a_page_have_an_address(site, name):
    text = (site / "book" / f"{name}.html").read_text()
    expected = [anchor for paper in ledger.PAPERS for anchor in pages.anchors(name, paper)]
    assert re.findall(r'<tr class="row-\w+" id="([^"]+)"', text) == expected
    assert len(set(expected)) == len(expected)
    assert set(expected) <= set(re.findall(r'class="ledger-here" href="#([^"]+)"', text))


def test_every_test_and_result_that_a_ledger_names_is_found(name):
    for entry in ledger.load(name):
        named = (
            entry.evidence if name == "errata" else entry.test or getattr(entry, "experiment", None)
        )
        assert bool(links.evidence(ROOT, name, entry)) == bool(named), entry.id


def test_rows_lead_to_their_chapter_and_to_their_evidence(site, name):
    text = (site / "book" / f"{name}.html").read_text()
    rows = re.findall(r'<tr class="row-\w+" id=".*?</tr>', text, re.DOTALL)
    papers = [paper for paper in ledger.PAPERS for _ in ledger.load(name, paper)]
    entries = [entry for paper in ledger.PAPERS for entry in ledger.load(name, paper)]
    evidence = {"claims": ("test", "experiment"), "equations": ("test",), "errata": ("evidence",)}
    deep = 0
    for row, paper, entry in zip(rows, papers, entries, strict=True):
        found = re.search(rf'<td><p><a [^>]*href="{paper}\.html(#[^"]+)?"', row)
        assert found, row
        deep += found[1] is not None
        proof = next((value for kind in evidence[name] if (value := getattr(entry, kind))), None)
        file = proof and re.search(r'href="\.\./_sources/([^"#]+)', row)
        assert bool(file) == bool(proof), row
        if file:
            assert (site / "_sources" / file[1]).is_file()
    share = {"claims": 0.8, "equations": 0.45, "errata": 0.7}[name]  # appendices are in no chapter
    assert deep > share * len(rows), f"{deep} of {len(rows)} lead to a section"


def test_chapters_lead_back(site):
    claims, named = 0, 0
    for paper in ledger.PAPERS:
        text = (site / "book" / f"{paper}.html").read_text()
        ids = {claim.id for claim in ledger.load("claims", paper)}
        back = set(re.findall(r'href="claims\.html#([^"]+)"', text)) & ids
        claims, named = claims + len(ids), named + len(back)
        equations = set(re.findall(r'href="equations\.html#(\w+-eq-[^"]+)"', text))
        assert bool(equations) == (paper in ledger.papers("equations"))
        assert equations <= set(pages.anchors("equations", paper))
    assert named > 0.8 * claims, f"chapters lead to {named} of {claims} claims"


def test_claims_of_a_section_have_names_of_their_own(site):
    lines = 0
    for paper in ledger.PAPERS:
        html = (site / "book" / f"{paper}.html").read_text(encoding="utf-8")
        for line in re.findall(r'<p class="ledger-line">Claims: .*?</p>', html, re.DOTALL):
            names = re.findall(r'href="claims\.html#[^"]*">([^<]+)</a>', line)
            assert names and len(set(names)) == len(names), f"{paper}: {names}"
            lines += 1
    assert lines > 30


def test_functions_lead_to_their_equations(site):
    text = (site / "book" / "api" / "solvers.html").read_text()
    function = text.partition('id="natcompanion.solvers.stochastic_robust_inverse"')[2]
    own = re.split(r'id="natcompanion\.', function)[0]
    assert 'href="../equations.html#whitening-eq-35"' in own


def test_every_equation_but_an_algorithm_is_shown(site):
    entries = ledger.load("equations")
    assert {entry.number for entry in entries if not entry.formula} == {"Algorithm 1"}
    text = (site / "book" / "equations.html").read_text()
    assert text.count(r"\(\displaystyle ") == len(entries) - 1


@pytest.mark.browser
def test_without_scripts_all_rows_stand_there(browser, site, name):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "book" / f"{name}.html").as_uri())
    rows = page.locator("table.ledger-table tbody tr")
    assert rows.count() == len(ledger.load(name)) and rows.last.is_visible()
    assert page.locator(".ledger-filter").count() == 0
    context.close()


def shown(page) -> tuple[int, str]:
    """Return how many rows are shown, and what the live region says."""
    visible = page.locator("table.ledger-table tbody tr:visible").count()
    return visible, page.locator(".ledger-filter [role=status]").text_content()


@pytest.mark.browser
def test_the_filter_works_by_keyboard_and_keeps_its_state_in_the_address(page, site, name):
    entries = ledger.load(name)
    field = {"claims": "verdict", "equations": "status", "errata": "severity"}[name]
    page.goto((site / "book" / f"{name}.html").as_uri())
    assert shown(page) == (len(entries), f"{len(entries)} of {len(entries)} rows")
    page.locator("[name=paper]").focus()
    for _ in range(1 + list(ledger.PAPERS).index("rfim")):
        page.keyboard.press("ArrowDown")
    rfim = [entry for entry in entries if entry.paper == "rfim"]
    assert shown(page) == (len(rfim), f"{len(rfim)} of {len(entries)} rows")
    page.keyboard.press("Tab")
    kind = getattr(rfim[-1], field)
    page.locator("[name=kind]").select_option(kind)
    both = [entry for entry in rfim if getattr(entry, field) == kind]
    assert shown(page)[0] == len(both) < len(rfim)
    assert page.url.partition("?")[2] == f"paper=rfim&kind={kind}".replace(" ", "+")
    page.reload()
    assert shown(page)[0] == len(both)
    page.locator("[name=words]").fill("no such words anywhere")
    assert shown(page) == (0, f"0 of {len(entries)} rows")
    page.locator("[type=reset]").press("Enter")
    page.wait_for_function("!location.search")
    assert shown(page)[0] == len(entries)


@pytest.mark.browser
def test_claims_are_filtered_by_what_turns_them_over(page, site):
    entries = ledger.load("claims")
    counts = {}
    for kind in ("firm", "turned", "exact", "open"):
        page.goto((site / "book" / "claims.html").as_uri() + f"?stability={kind}")
        counts[kind] = shown(page)[0]
    text = (ROOT / "book" / "claims.md").read_text()
    assert counts["turned"] == text.count("<br>Turned over by:") > 0
    assert counts["exact"] == sum(claim.test is not None for claim in entries)
    assert counts["open"] == sum(claim.verdict == "not testable here" for claim in entries)
    assert sum(counts.values()) == len(entries)


@pytest.mark.browser
def test_words_find_an_equation_and_a_link_shows_a_hidden_row(page, site):
    address = (site / "book" / "equations.html").as_uri()
    page.goto(f"{address}?words=stochastic+robust")
    assert shown(page)[0] == 1 and page.locator("#whitening-eq-35").is_visible()
    page.evaluate("location.hash = 'rfim-eq-81'")
    page.wait_for_function("document.getElementById('rfim-eq-81').offsetParent")
    assert page.url == f"{address}#rfim-eq-81"


@pytest.mark.browser
def test_back_brings_the_filter_of_the_address_back(page, site):
    all_rows = len(ledger.load("claims"))
    page.goto((site / "book" / "claims.html").as_uri() + "?paper=rfim")
    rfim = shown(page)[0]
    page.evaluate("location.hash = 'whitening'")
    page.wait_for_function("!location.search")
    assert shown(page)[0] == all_rows
    page.go_back()
    page.wait_for_function("location.search === '?paper=rfim'")
    page.wait_for_function("!document.querySelector('#whitening').offsetParent")
    assert shown(page)[0] == rfim < all_rows
    assert page.locator("[name=paper]").input_value() == "rfim"
    page.go_forward()
    page.wait_for_function("!location.search")
    page.wait_for_function("document.querySelector('#whitening').offsetParent")
    assert shown(page)[0] == all_rows


@pytest.mark.browser
def test_an_address_that_is_cut_or_asks_for_anything_is_no_error(page, site):
    errors, all_rows = [], len(ledger.load("claims"))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for ending in ("?length=1&item=2&0=3&namedItem=4&paper=none", "#%", "#whitening_%E0%A4"):
        page.goto((site / "book" / "claims.html").as_uri() + ending)
        page.reload()
        assert shown(page)[0] == all_rows, ending
    page.goto((site / "book" / "claims.html").as_uri() + "?length=1&paper=rfim#%")
    assert 0 < shown(page)[0] < all_rows
    assert errors == []
    page.evaluate("setTimeout(() => decodeURIComponent('%'))")
    page.wait_for_timeout(50)
    assert len(errors) == 1, "an error that is seen"


@pytest.mark.browser
def test_the_address_of_a_row_is_wide_and_high_enough_for_a_finger(page, site, name):
    page.goto((site / "book" / f"{name}.html").as_uri())
    sizes = """links => links.map(link => link.getBoundingClientRect())
      .map(({width, height}) => Math.min(width, height))"""
    for width in (1280, 640, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert min(page.locator(".ledger-here").evaluate_all(sizes)) >= 24


@pytest.mark.browser
def test_counts_of_the_scoreboard_lead_to_as_many_rows(page, site):
    page.goto((site / "book" / "scoreboard.html").as_uri())
    cells = page.locator("td a[href*='?paper=']").evaluate_all(
        "links => links.map(link => [link.href, Number(link.textContent)])"
    )
    assert len(cells) == len(ledger.PAPERS) * (1 + len(ledger.VERDICTS) + 2)
    for address, count in cells[1 :: len(ledger.PAPERS)]:
        page.goto(address)
        assert shown(page)[0] == count, address
