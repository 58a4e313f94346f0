"""The ledgers' pages as a reader uses them: rows with an address, links both ways, a filter."""

import re
from dataclasses import replace
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
    links.Section("deviations", "Deviations from the paper", "Figure 1, Section 2.1, Section 4.3"),
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
        ("Section 2.2.1", None, "recipe"),
        ("Sections 7 and 3.1", None, "metric"),
        ("Table 7", None, None),
        ("Section 4.3", None, "deviations"),
    ],
)
def test_an_entry_finds_its_section(where, measure, anchor):
    found = links.home(SECTIONS, where, measure)
    assert (found and found.anchor) == anchor


def test_a_section_that_names_a_row_is_its_section_before_the_opening():
    linked = links.Section("k-fac", "K-FAC", "", frozenset({"after-kfac-exact"}))
    assert links.home([*SECTIONS, linked], "Benzing", row="after-kfac-exact") == linked
    shown = links.Section("regularization", "Damping", r"x \qquad (35, 36)")
    assert links.home([*SECTIONS, shown], "Eq. 35") == shown
    assert links.home([*SECTIONS, shown], "Eq. 36") == shown


def test_a_step_of_a_derivation_leads_to_what_it_derives():
    twelve = links.Section("one-neuron", "3.1 One neuron", "the formula (Eq. 12)")
    (step,) = [entry for entry in ledger.load("equations", "rfim") if entry.number == 36]
    assert links.find([twelve], "equations", step) == links.Home(twelve, 12)
    (slip,) = [entry for entry in ledger.load("errata", "rfim") if entry.where == "Eq. 51"]
    assert links.find([twelve], "errata", slip) == links.Home(twelve, 12)
    assert links.find([], "errata", slip) is None
    with pytest.raises(ledger.LedgerError, match="no section #elsewhere"):
        links.find([twelve], "equations", replace(step, toward=None, section="elsewhere"))


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


def rows_of(site: Path, name: str) -> list[tuple[ledger.Entry, str, str]]:
    """Return each entry of a ledger with its address on the page and its row there."""
    text = (site / "book" / f"{name}.html").read_text(encoding="utf-8")
    rows = re.findall(r'<tr class="row-\w+" id="([^"]+)".*?>(.*?)</tr>', text, re.DOTALL)
    entries = [entry for paper in ledger.PAPERS for entry in ledger.load(name, paper)]
    return [(entry, *row) for entry, row in zip(entries, rows, strict=True)]


def own_part(page: str, anchor: str) -> str | None:
    """Return what stands in a section of a page but not below it; None if there is no such."""
    found = re.search(rf'<section [^>]*\bid="{re.escape(anchor)}"', page)
    ends = [page.find(mark, found.end()) for mark in ("<section", "</section>")] if found else []
    return page[found.start() : min(end for end in ends if end > 0)] if found else None


def one_way(
    rows: list[tuple[ledger.Entry, str, str]], name: str, chapters: dict[str, str]
) -> list[str]:
    """Return the rows that lead to no section, and do not say so, or whose section does not lead
    back.
    """
    found = []
    for entry, anchor, row in rows:
        line = re.search(r'<p class="ledger-home">(.*?)</p>', row, re.DOTALL)
        if line and line[1] == links.NOT_THERE:
            continue
        target = line and re.search(rf'href="{entry.paper}\.html#([^"]+)"', line[1])
        part = target and own_part(chapters[entry.paper], target[1])
        if not part or f'href="{name}.html#{anchor}"' not in part:
            found.append(anchor)
    return found


def test_every_row_and_its_section_lead_to_each_other(site, name):
    rows = rows_of(site, name)
    chapters = {key: (site / "book" / f"{key}.html").read_text() for key in ledger.PAPERS}
    assert one_way(rows, name, chapters) == []
    absent = [anchor for _, anchor, row in rows if links.NOT_THERE in row]
    assert len(absent) < 0.1 * len(rows), f"{len(absent)} rows are of no section: {absent}"


def test_a_link_that_is_missing_either_way_is_noticed(site, name):
    """The negative control: a row without its line, a chapter without the section or the line."""
    rows = rows_of(site, name)[:1]
    ((entry, anchor, row),) = rows
    text = (site / "book" / f"{entry.paper}.html").read_text()
    back = f'href="{name}.html#{anchor}"'
    assert one_way(rows, name, {entry.paper: text}) == []
    for broken in (text.replace(back, ""), text.replace('<section id="', '<section id="x-')):
        assert one_way(rows, name, {entry.paper: broken}) == [anchor]
    bare = row.replace("ledger-home", "")
    assert one_way([(entry, anchor, bare)], name, {entry.paper: text}) == [anchor]


def test_rows_lead_to_their_evidence(site, name):
    evidence = {"claims": ("test", "experiment"), "equations": ("test",), "errata": ("evidence",)}
    for entry, _, row in rows_of(site, name):
        assert re.search(rf'<td><p><a [^>]*href="{entry.paper}\.html(#[^"]+)?"', row), row
        proof = next((value for kind in evidence[name] if (value := getattr(entry, kind))), None)
        file = proof and re.search(r'href="\.\./_sources/([^"#]+)', row)
        assert bool(file) == bool(proof), row
        if file:
            assert (site / "_sources" / file[1]).is_file()


def test_every_equation_and_its_function_lead_to_each_other(site):
    api, counted = {}, 0
    for entry, anchor, row in rows_of(site, "equations"):
        found = re.search(r'href="api/(\w+)\.html#([^"]+)"', row)
        assert bool(found) == bool(entry.function), f"{anchor}: {entry.function}"
        if found:
            text = api.setdefault(
                found[1], (site / "book" / "api" / f"{found[1]}.html").read_text()
            )
            own = text.partition(f'id="{found[2]}"')[2]
            assert f'href="../equations.html#{anchor}"' in re.split(r'<dt [^>]*id="', own)[0], (
                anchor
            )
            counted += 1
    assert counted > 150


def test_equations_of_a_paper_are_met_in_its_chapter(site):
    for paper in ledger.PAPERS:
        text = (site / "book" / f"{paper}.html").read_text()
        equations = set(re.findall(r'href="equations\.html#(\w+-eq-[^"]+)"', text))
        assert bool(equations) == (paper in ledger.papers("equations"))
        assert equations <= set(pages.anchors("equations", paper))


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


SCROLLED = """() => [...document.querySelectorAll('table.ledger-table td mjx-container')]
  .filter(formula => formula.scrollWidth > formula.clientWidth + 1)
  .map(formula => [formula.closest('tr').id, formula.tabIndex,
    formula.getBoundingClientRect().right <= innerWidth])"""


@pytest.mark.browser
def test_formulas_have_room_on_a_screen_and_scroll_by_keyboard_on_a_phone(page, site):
    page.goto((site / "book" / "equations.html").as_uri())
    page.wait_for_function("window.MathJax.startup.promise.then(() => true)")
    assert len(page.evaluate(SCROLLED)) <= 5
    page.add_style_tag(content="table.ledger-equations tr { max-width: 20rem }")
    assert len(page.evaluate(SCROLLED)) > 50, "narrow rows are noticed"
    page.locator("style").last.evaluate("style => style.remove()")
    page.set_viewport_size({"width": 390, "height": 900})
    reached = "document.querySelectorAll('td mjx-container[tabindex=\"0\"]').length > 50"
    page.wait_for_function(reached)
    wide = page.evaluate(SCROLLED)
    assert all(index == 0 and inside for _, index, inside in wide), wide
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
