"""The search page, from disk: what a reader looks for comes first, with the lines around it."""

import pytest

pytestmark = pytest.mark.browser

EXPECTED = {
    "Fisher": "book/foundations.html",
    "PRONG": "book/prong.html",
    "RNGD": "book/rfim.html#rngd",
    "whitening": "book/whitening.html",
    "natural gradient": "book/foundations.html",
    "Boltzmann machine": "book/boltzmann.html",
    "Eq. 35": "book/equations.html#whitening-eq-35",
    "35": "book/equations.html#whitening-eq-35",
    "equation 81": "book/equations.html#rfim-eq-81",
    "damping": "book/revisiting.html#damping-section-8-3",
    "regularization": "book/whitening.html#regularization",
    "mirror descent": "book/rfim.html#mirror-descent",
    "Gauss-Newton": "book/revisiting.html#gauss-newton-is-the-fisher-matrix-section-7",
    "covariance penalty": "book/boltzmann.html#the-covariance-penalty",
    "overfitting": "book/revisiting.html#robustness-to-overfitting-section-5",
    "K-FAC": "book/use.html#k-fac-for-a-small-language-model",
    "errata": "book/errata.html",
    "scoreboard": "book/scoreboard.html",
    "whitening_matrix": "book/api/whitening.html#natcompanion.whitening.whitening_matrix",
    "damped_solve": "book/api/solvers.html#natcompanion.solvers.damped_solve",
}


@pytest.fixture(scope="module")
def page(browser, site):
    """Open the search page from disk."""
    page = browser.new_page()
    page.failures = []
    page.on("requestfailed", lambda request: page.failures.append(request.url))
    page.on("pageerror", lambda error: page.failures.append(str(error)))
    page.goto((site / "search.html").as_uri())
    yield page
    page.close()


def ask(page, query: str) -> list[str]:
    """Type a question and return the addresses of what is found, the best first."""
    page.locator(".book-search input").fill(query)
    page.keyboard.press("Enter")
    return page.locator(".book-search li > a").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )


def test_what_is_looked_for_comes_first(page):
    first = {query: (ask(page, query) or [None])[0] for query in EXPECTED}
    wrong = {query: hit for query, hit in first.items() if hit != EXPECTED[query]}
    assert len(EXPECTED) == 20 and len(wrong) <= 2, wrong
    assert not page.failures


def test_every_result_of_every_question_leads_somewhere(page, site):
    for query in ("Fisher", "35"):
        for address in ask(page, query):
            file, _, anchor = address.partition("#")
            assert f'id="{anchor}"' in (site / file).read_text() or not anchor, address


def test_results_show_the_words_that_were_asked_for(page):
    found = ask(page, "singular")
    marks = page.locator(".book-search li p mark").all_text_contents()
    assert len(found) > 3 and len(marks) >= len(found) / 2
    assert all(mark.lower().startswith("singular") for mark in marks)


def test_the_number_of_results_is_announced_and_the_address_keeps_the_question(page):
    found = ask(page, "mirror descent")
    assert status(page) == f"{len(found)} places"
    assert page.url.endswith("?q=mirror+descent")
    page.reload()
    assert status(page) == f"{len(found)} places"
    assert ask(page, "xyzzy") == [] and status(page) == "No places"


def status(page) -> str:
    """Return what the live region says."""
    return page.locator(".book-search [role=status]").text_content()


def test_the_same_question_in_other_letters_finds_the_same(page):
    for one, *others in (
        ("K-FAC", "kfac", "KFAC", "k-fac"),
        ("Gauss-Newton", "gaussnewton"),
        ("damped_solve", "damped_solve()", "solvers.damped_solve(G, g)"),
        ("Eq. 35", "eqn 35", "Eqs. 35", "Eqns. (35)", "equation 35"),
    ):
        found = ask(page, one)
        assert found
        for other in others:
            again = ask(page, other)
            assert again[0] == found[0], f"{one}, {other}"
            assert again == found or "_" in one, f"{one}, {other}"
    marked = [mark for mark in ask(page, "kfac") and page.locator("li mark").all_text_contents()]
    assert {"K-FAC", "KFAC"} <= set(marked)


def test_a_result_names_its_page(page):
    ask(page, "PRONG")
    places = page.locator(".book-search li").evaluate_all("""lines => lines.map(line =>
      line.querySelector('a').textContent + ', ' + line.querySelector('span').textContent)""")
    assert {"PRONG, Claims", "PRONG, Equations", "PRONG, Errata"} <= set(places)
    assert len(set(places[:10])) == 10


def test_words_that_the_book_does_not_have_are_taken_for_the_nearest(page):
    for asked, shown in {
        "fishers": "fisher",
        "whitenning": "whitening",
        "natrual gradient": "natural gradient",
    }.items():
        found = ask(page, asked)
        assert status(page).startswith(f"Nothing for “{asked}”; shown is “{shown}”: "), asked
        assert found == ask(page, shown) and "Nothing" not in status(page)
        marks = page.locator(".book-search li mark").all_text_contents()
        assert marks
    for nowhere in ("C++", "xyzzy", "quetzalcoatl"):
        assert ask(page, nowhere) == [] and status(page) == "No places"


def test_without_scripts_the_page_has_no_form_that_does_nothing(browser, site):
    for scripts in (True, False):
        context = browser.new_context(java_script_enabled=scripts)
        page = context.new_page()
        page.goto((site / "search.html").as_uri())
        assert page.locator(".book-search form").is_visible() == scripts
        assert page.locator("noscript p").is_visible() != scripts
        assert page.title() == "Search — natcompanion"
        context.close()


def test_a_question_is_text(page):
    """What looks like a pattern or like markup is neither."""
    for query in ("(", "[a-", "<b>Fisher</b>", "\\", "c++"):
        ask(page, query)
    assert page.locator(".book-search li b").count() == 0
    assert not page.failures
