"""Numbers in printed text: where they stand, how exact they are, and the full values beside them.

A table, a picture or an interactive figure shows three digits. The metadata of its output also hold
the full value of each number of its text, which the comparison of notebooks reads: one entry for
each number in the order of the text, - where it is not known. (Metadata, since myst-nb warns of
a kind of output that it does not know, which ends the build.)
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

STORED_DIGITS = 9  # of a full value: enough for the comparison, and the same on most processors

NUMBER = re.compile(
    r"(?<![\w.])[-−+]?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
    r"(?P<decimals>\.[0-9]+)?(?P<exponent>[eE][-+−]?[0-9]+)?(?!\w|\.[0-9])"
)
"""A number that is no part of a word: ``conv2``, ``10th`` and ``1em`` hold none."""


class Printed(NamedTuple):
    """One number of a text."""

    text: str
    value: float
    unit: float
    """One unit of the last digit. 0 for whole numbers and numbers of one digit, which are counts
    and settings; a whole percentage is rounded, so its unit is 1.
    """


def numbers_of(text: str) -> list[Printed]:
    """Return the numbers of a text in order.

    Examples
    --------
    >>> [number.value for number in numbers_of("−1.50e-3 of 12,345 in conv2, 3-5 times")]
    [-0.0015, 12345.0, 3.0, 5.0]
    >>> [number.unit for number in numbers_of("0.25, 40, 40 %, 0.1, 1.0e5")]
    [0.01, 0.0, 1.0, 0.0, 10000.0]
    """
    return [_printed(found, text) for found in NUMBER.finditer(text)]


def _printed(found: re.Match, text: str) -> Printed:
    decimals, exponent = found["decimals"] or "", (found["exponent"] or "e0").replace("−", "-")
    percent = re.match(r"\s?%", text[found.end() :]) and not decimals and not found["exponent"]
    digits = (found["whole"].replace(",", "") + decimals[1:]).lstrip("0")
    rounded = percent or ((decimals or found["exponent"]) and len(digits) > 1)
    unit = float(f"1e{int(exponent[1:]) - max(len(decimals) - 1, 0)}") if rounded else 0.0
    return Printed(found.group(), float(_plain(found.group())), unit)


def _plain(number: str) -> str:
    return number.replace("−", "-").replace(",", "").lstrip("+")


def wording(text: str) -> str:
    """Return a text with ``#`` for each number, and one blank for several, which align columns.

    Examples
    --------
    >>> wording("loss    0.5   after 3 steps")
    'loss # after # steps'
    """
    return re.sub(r"[ \t]+", " ", NUMBER.sub("#", text)).replace(" \n", "\n").strip()


def full_values(text: str, recorded: Iterable[tuple[str, float]]) -> list[float | None]:
    """Return the full value of each number of a text, None where nothing recorded prints so.

    Parameters
    ----------
    text : str
    recorded : iterable of (str, float)
        How each number was printed, and its value, in the order of printing. The first that is
        not taken yet is meant, or the last one if all are.

    Examples
    --------
    >>> full_values("0.333 after 10 steps", [("0.333", 1 / 3)])
    [0.333333333, None]
    """
    left: dict[str, list[float]] = {}
    for printed, value in recorded:
        left.setdefault(_plain(printed), []).append(float(f"{value:.{STORED_DIGITS}g}"))
    values: list[float | None] = []
    for number in numbers_of(text):
        queue = left.get(_plain(number.text), [])
        values.append((queue.pop(0) if len(queue) > 1 else queue[0]) if queue else None)
    return values


def metadata(text: str, recorded: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """Return the metadata of an output that shows a text: its full values, if there are any.

    Examples
    --------
    >>> metadata("0.333 after 10 steps", [("0.333", 1 / 3)])
    {'natcompanion': {'values': '0.333333333 -'}}
    """
    values = full_values(text, recorded)
    line = " ".join("-" if value is None else f"{value:.{STORED_DIGITS}g}" for value in values)
    return {"natcompanion": {"values": line}} if line.strip("- ") else {}


def values_in(metadata: Mapping[str, Any]) -> list[float | None]:
    """Return the full values in the metadata of an output, none if it holds none."""
    line = metadata.get("natcompanion", {}).get("values", "")
    return [None if value == "-" else float(value) for value in line.split()]
