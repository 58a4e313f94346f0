"""The script that counts what a reader of a chapter meets."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = spec_from_file_location("words_tool", ROOT / "tools" / "words.py")
words = module_from_spec(spec)
spec.loader.exec_module(words)

WORDS, TABLES = 4500, 6

PAGE = """<html><body><nav>not counted</nav><article class="bd-article">
<section><h1>Two words<a class="headerlink" href="#x">#</a></h1>
<p>Three more words &amp; <span class="math">\\(x + y\\)</span> &mdash;<br/> six.</p>
<div class="cell"><div class="highlight"><pre>a = 1
b = 2
</pre></div><img src="x.png" alt="not read"/><table><tr><td>7</td></tr></table></div>
<details class="hide"><summary>Show the code</summary>
  <pre>c = 3
</pre><p>folded words</p><table></table></details>
<div class="admonition dropdown"><p>folded</p></div>
<script type="application/vnd.jupyter.widget-view+json">{"a": 1}</script>
<p>last</p></section></article><footer>not counted</footer></body></html>"""


def test_words_tables_pictures_and_code_are_counted_open_and_folded():
    found = words.count(PAGE)
    assert found.seen == {"words": 9, "tables": 1, "pictures": 2, "code": 2}
    assert found.folded == {"words": 3, "tables": 1, "code": 1}


def test_a_page_without_an_article_counts_nothing():
    found = words.count(PAGE.replace("article", "main"))
    assert not found.seen.total() and not found.folded.total()


def test_a_row_is_printed_for_each_page(tmp_path, capsys):
    path = tmp_path / "chapter.html"
    path.write_text(PAGE)
    words.main([str(path)])
    head, row = capsys.readouterr().out.splitlines()
    assert row.split() == ["chapter", "9", "12", "1", "2", "2", "2", "2", "3"]
    assert len(head.split()) == 1 + 4 * 3


def too_much(found):
    """Return what a page shows more of, with its folded parts closed, than a chapter may."""
    most = {"words": WORDS, "tables": TABLES}
    return [f"{found.seen[what]} {what}" for what in most if found.seen[what] > most[what]]


@pytest.mark.parametrize("chapter", words.CHAPTERS)
def test_a_chapter_with_its_folded_parts_closed_is_short(site, chapter):
    found = words.count((site / "book" / f"{chapter}.html").read_text(encoding="utf-8"))
    assert found.seen["words"] > WORDS / 2
    assert too_much(found) == []


def test_a_chapter_that_shows_too_much_is_noticed_and_what_is_folded_does_not_count():
    within = words.Count()
    within.seen.update(words=WORDS, tables=TABLES)
    within.folded.update(words=WORDS, tables=TABLES)
    assert too_much(within) == []
    within.seen.update(words=1, tables=1)
    assert too_much(within) == ["4501 words", "7 tables"]
