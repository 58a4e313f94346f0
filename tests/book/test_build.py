"""A build fails on everything that is wrong, every time, and its buttons follow the repository's
address.
"""

import json
from pathlib import Path

BREAKS = {
    "directive": "```{nonsense}\n```",
    "page": "{doc}`nowhere`",
    "equation": "{eq}`nowhere`",
    "anchor": "[text](#nowhere)",
    "link": "[text](nowhere.ipynb)",
    "citation": "[Nobody (1900)](bibliography.md#nobody-1900)",
    "number": '<span data-number="natural_angle()">7</span>',
    "table": "<!-- errata prong -->\n<!-- end -->",
    "picture": "![alt](nowhere.png)",
    "function": "{py:func}`natcompanion.nowhere`",
}
"""What can be wrong on a page. Each is put on a page of its own, which is called foundations where
it takes the numbers of that chapter.
"""
WHOLE = {
    "number": "number in the prose: natural_angle(): the",
    "table": "table of errata prong: not as in",
}
"""What is found before the page is read line by line, and what is said of it."""


def one_cell(book: Path, source: str) -> None:
    """Reduce the chapter of the small book to one cell."""
    path = book / "book" / "chapter.ipynb"
    notebook = json.loads(path.read_text())
    title, code = notebook["cells"][:2]
    notebook["cells"] = [title, {**code, "source": source}]
    path.write_text(json.dumps(notebook))


def assert_fails_twice(build, book: Path, *words: str) -> None:
    """Build twice without a change between: both must fail, and say why."""
    for run in (1, 2):
        done = build(book)
        assert done.returncode != 0, f"run {run} succeeded"
        for word in words:
            assert word in done.stdout + done.stderr, f"run {run} does not name {word}"
        assert not (book / "_build" / ".complete").exists()


def test_mistakes_on_pages_and_printed_warnings_fail_every_build(mini_book, build_book):
    one_cell(mini_book, "import sys\nprint('a warning', file=sys.stderr)")
    names = {kind: "foundations" if kind == "number" else kind for kind in BREAKS}
    for kind, text in BREAKS.items():
        (mini_book / "book" / f"{names[kind]}.md").write_text(f"# A page\n\n{text}\n")
    with (mini_book / "_toc.yml").open("a") as toc:
        toc.writelines(f"  - file: book/{name}\n" for name in names.values())
    pages = [f"{mini_book}/book/{kind}.md:3: " for kind in BREAKS if kind not in WHOLE]
    whole = [f"{mini_book}/book/{names[kind]}.md: WARNING: {text}" for kind, text in WHOLE.items()]
    assert_fails_twice(
        build_book, mini_book, *pages, *whole, "stderr was found in the cell outputs"
    )


def test_a_failing_cell_fails_every_build(mini_book, build_book):
    one_cell(mini_book, "raise RuntimeError('a failing cell')")
    assert_fails_twice(build_book, mini_book, "a failing cell", "CellExecutionError")


def test_buttons_appear_with_the_address_of_the_repository_only(mini_site, mini_book, build_book):
    address = "https://github.com/someone/some-book"
    one_cell(mini_book, "1 + 1")
    done = build_book(mini_book, NATCOMPANION_REPOSITORY=address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr, (
        "the kernel's notices are kept out of the log"
    )
    assert str(mini_book / "_build" / "html" / "index.html") in done.stdout
    page = (mini_book / "_build" / "html" / "book" / "chapter.html").read_text()
    assert "/v2/gh/someone/some-book/main?urlpath=lab/tree/book/chapter.ipynb" in page
    assert f'href="{address}"' in page
    plain = (mini_site / "book" / "chapter.html").read_text()
    for word in ("binder", "github", "launch-button", "repository-button", "issues", "edit-page"):
        assert word not in plain.lower().split("<article")[0].split("<body")[1]
        assert word not in plain.split('class="article-header-buttons"')[1].split("</div>")[0]


def test_the_page_shows_the_widget_and_not_the_picture_beside_it(mini_site):
    page = (mini_site / "book" / "chapter.html").read_text()
    assert page.count('<script type="application/vnd.jupyter.widget-view+json">') == 1
    assert page.count('src="../_images/') == 1, "the picture of the last cell"
    assert "vnd.natcompanion" not in page


def test_a_wrong_address_is_refused(mini_book, build_book):
    done = build_book(mini_book, NATCOMPANION_REPOSITORY="someone/some-book")
    assert done.returncode != 0 and "expected https://host/owner/name" in done.stdout + done.stderr


def test_lock_file_holds_no_addresses_of_packages():
    lock = json.loads((Path(__file__).parents[2] / "package-lock.json").read_text())
    installed = {name: entry for name, entry in lock["packages"].items() if name}
    assert installed and not any("resolved" in entry for entry in installed.values())
    assert all("integrity" in entry for entry in installed.values())
