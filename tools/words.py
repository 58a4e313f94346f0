"""Count what a reader of a built page meets: words, tables, pictures and lines of code, with the
folded parts closed and open.

``python tools/words.py`` prints a row for each chapter of ``_build/html``; other pages can be
named. A formula counts as one word, and an interactive figure as one picture. Code is no words.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = ("foundations", "whitening", "revisiting", "prong", "rfim", "boltzmann")
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
UNSEEN = {"button", "nav", "script", "style", "svg", "summary"}
FOLDED = {"dropdown", "toggle"}
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass
class Count:
    """What stands in the open, and what stands in folded parts."""

    seen: Counter = field(default_factory=Counter)
    folded: Counter = field(default_factory=Counter)


class Page(HTMLParser):
    """The counts of a page; only what stands in its article counts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.count = Count()
        self.stack: list[tuple[str, str, bool]] = []
        self.feed(html)

    @property
    def place(self) -> tuple[str, bool]:
        """What is read here (nothing, text or code), and whether it is folded."""
        return self.stack[-1][1:] if self.stack else ("", False)

    def add(self, what: str, number: int = 1) -> None:
        """Count here."""
        getattr(self.count, "folded" if self.place[1] else "seen")[what] += number

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Count a table, a picture or a formula, and note what the tag opens."""
        values = {key: value or "" for key, value in attrs}
        classes = set(values.get("class", "").split())
        mode, folded = self.place
        if mode and (tag == "img" or values.get("type") == WIDGET):
            self.add("pictures")
        if mode and tag == "table":
            self.add("tables")
        if tag in VOID:
            return
        if tag == "article":
            mode = "text"
        elif mode and (tag in UNSEEN or "headerlink" in classes):
            mode = ""
        elif mode and tag == "pre":
            mode = "code"
        elif mode and "math" in classes:
            self.add("words")
            mode = ""
        self.stack.append((tag, mode, folded or tag == "details" or bool(classes & FOLDED)))

    def handle_endtag(self, tag: str) -> None:
        """Close what is open."""
        if tag in {opened for opened, *_ in self.stack}:
            while self.stack.pop()[0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Count words or lines of code."""
        if self.place[0] == "text":
            self.add("words", len(re.findall(r"\S*\w\S*", data)))
        elif self.place[0] == "code":
            self.add("code", data.count("\n"))


def count(html: str) -> Count:
    """Return the counts of a page."""
    return Page(html).count


def main(pages: list[str]) -> None:
    """Print a line for each page."""
    kinds = ("words", "tables", "pictures", "code")
    print(f"{'page':<14}" + "".join(f"{kind:>10}{'+ folded':>10}" for kind in kinds))
    site = ROOT / "_build" / "html"
    for path in [Path(page) for page in pages] or [site / f"book/{c}.html" for c in CHAPTERS]:
        found = count(path.read_text(encoding="utf-8"))
        numbers = [(found.seen[kind], found.seen[kind] + found.folded[kind]) for kind in kinds]
        print(f"{path.stem:<14}" + "".join(f"{a:>10}{b:>10}" for a, b in numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
