"""Numbers in the prose of a chapter: they stand there as text, and a function of ``numbers`` says
what they are.

In a Markdown cell a number is written

    <span data-number="steps('sgd')">1940</span>

which every renderer shows as 1940. :func:`fill` writes the text anew from ``numbers.<paper>``, and
:func:`differences` names every number that is not what its function gives. A format may follow
the function after a colon: ``data-number="share('sgd'):.0%"``; without one, ``digits`` decides.
"""

import re
from collections.abc import Iterator

from natcompanion.chapters import numbers
from natcompanion.chapters.show import digits

NUMBER = re.compile(r'<span data-number="(?P<what>[^"]*)">(?P<text>[^<]*)</span>')
FORMAT = re.compile(r"^(?P<reference>\w+(\(.*\))?)(:(?P<spec>[^:()'\"]+))?$")


def shown(paper: str, what: str) -> str:
    """Return the text of one number: ``what`` is a reference, and perhaps a format.

    Raises
    ------
    ValueError
        If ``what`` is malformed, or its function is missing or fails.
    """
    found = FORMAT.match(what)
    if found is None:
        raise ValueError(f"data-number={what!r}: expected name, name(…) or name(…):format")
    value = numbers.value(paper, found["reference"])
    return format(value, found["spec"]) if found["spec"] else digits(value)


def fill(paper: str, text: str) -> str:
    """Return a Markdown text with every number written anew."""
    return NUMBER.sub(
        lambda found: f'<span data-number="{found["what"]}">{shown(paper, found["what"])}</span>',
        text,
    )


def differences(paper: str, text: str) -> Iterator[str]:
    """Yield a line for each number of a Markdown text that is not what its function gives today."""
    for found in NUMBER.finditer(text):
        try:
            today = shown(paper, found["what"])
        except ValueError as error:
            yield str(error)
        else:
            if today != found["text"]:
                yield f"{found['what']}: the text says {found['text']}, numbers.{paper} {today}"
    if len(NUMBER.findall(text)) != text.count("data-number"):
        yield 'a data-number that is not <span data-number="…">text</span> on one line'
