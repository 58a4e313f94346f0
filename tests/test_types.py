"""What mypy is told to ignore: little, and each with its reason. ``make check`` runs mypy."""

import io
import re
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "natcompanion"
MOST = 30
REASONED = re.compile(r"# type: ignore\[[a-z-]+\]  # \w.{5,}")


def ignored(source: str) -> list[str]:
    """Return the comments of a source that silence a finding."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [comment for comment in comments if re.search(r"type:\s*ignore", comment)]


def test_what_is_ignored_has_a_code_and_a_reason():
    comments = [one for file in PACKAGE.rglob("*.py") for one in ignored(file.read_text())]
    assert 0 < len(comments) <= MOST
    assert [one for one in comments if not REASONED.fullmatch(one)] == []


def test_a_bare_one_does_not():
    """The negative control; a text that looks like a comment is none."""
    found = ignored(
        "a = 1  # type: ignore\n"
        "b = 2  # type: ignore[arg-type]\n"
        "c = 3  # type:ignore[arg-type]  # a reason, but mistyped\n"
        "d = '# type: ignore'\n"
        "e = 5  # type: ignore[arg-type]  # a number here\n"
    )
    assert [bool(REASONED.fullmatch(one)) for one in found] == [False, False, False, True]
