"""What cells end on: source code to read."""

import types

import pytest

from natcompanion.chapters.numbers import value
from natcompanion.chapters.show import Source


def documented(x):
    """Return x.

    Parameters
    ----------
    x : anything
    """
    y = x  # kept

    return y


def short(x):
    """Return x, in one line."""
    return x


def bare(x):
    return x


def test_source_keeps_the_code_and_the_summary_only():
    text = str(Source(documented))
    assert text == ('def documented(x):\n    """Return x."""\n    y = x  # kept\n\n    return y')
    assert str(Source(short)).splitlines()[1] == '    """Return x, in one line."""'
    assert str(Source(bare)) == "def bare(x):\n    return x"


def test_source_is_python_on_the_page_and_text_elsewhere():
    bundle = Source(bare)._repr_mimebundle_()
    assert bundle["text/markdown"] == f"```python\n{bundle['text/plain']}\n```"
    assert bundle["text/plain"] == str(Source(bare))
    assert str(Source(bare, short)) == f"{Source(bare)}\n\n\n{Source(short)}"


def test_values_come_from_the_modules_of_a_paper_only(monkeypatch):

    for name in ("whitening", "whitening.part", "whitening_else"):
        home = f"natcompanion.chapters.numbers.{name}"
        part = types.FunctionType((lambda: 3).__code__, {"__name__": home}, "three")
        monkeypatch.setattr("natcompanion.chapters.numbers.whitening.three", part, raising=False)
        if name == "whitening_else":
            with pytest.raises(ValueError, match="no function 'three'"):
                value("whitening", "three")
        else:
            assert value("whitening", "three") == 3
