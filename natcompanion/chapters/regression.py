"""The rules by which a fresh run of a notebook equals its stored outputs, as a plugin of nbval.

``pytest --nbval book/`` uses it, through ``book/conftest.py``; for notebooks elsewhere add
``-p natcompanion.chapters.regression``.

The rules:

1. Text, the order of outputs, missing and added outputs, errors and stderr are compared exactly.
   Runs of blanks count as one, since columns are aligned. Of HTML the text is compared, not the
   markup. Pictures must be there; what they show is in the text beside them.
2. A number with a full value beside it (tables, pictures, interactive figures) is compared by that
   value, to a relative ``EXACT``; one of two digits, which was rounded before, by rule 3.
3. A number that is printed only may differ by one unit of its last digit. Whole numbers and numbers
   of one digit, which are counts and settings, are compared exactly, and so is displayed source.
4. The numbers of a cell that trains live may differ by the relative spread that the cell states in
   its metadata: ``{"natcompanion": {"spread": 0.05}}``, at most ``WIDEST``.
"""

import html
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from natcompanion.chapters.printed import Printed, full_values, numbers_of, values_in, wording

EXACT = 1e-6
WIDEST = 0.2
VIEW = "application/vnd.jupyter.widget-view+json"  # holds random names
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
OUTPUT_TIMEOUT, STARTUP_TIMEOUT = 120, 300  # seconds; nbval's own 5 and 60 fail on a busy machine
KERNEL_OPTIONS = "c.HistoryManager.hist_file = ':memory:'\nc.IPKernelApp.log_level = 'ERROR'\n"
"""No history file, which one kernel could find locked by another; no notice that they talk over a
local port.
"""

Output = Mapping[str, Any]


def spread_of(metadata: Mapping[str, Any]) -> float | None:
    """Return the spread that a cell states, None if it states none.

    Raises
    ------
    ValueError
        If it is not a number above ``EXACT`` and at most ``WIDEST``.
    """
    spread = metadata.get("natcompanion", {}).get("spread")
    if spread is not None and not (isinstance(spread, float) and EXACT < spread <= WIDEST):
        raise ValueError(f"spread: expected a number in ({EXACT}, {WIDEST}], got {spread!r}")
    return spread


def compare(
    stored: Sequence[Output], fresh: Sequence[Output], spread: float | None = None
) -> Iterator[str]:
    """Yield a line for each difference between the stored outputs of a cell and fresh ones."""
    for before, now in zip_longest(stored, fresh):
        one, other = _parts(before or {}), _parts(now or {})
        if not (one and other):
            what, parts = ("missing", one) if one else ("added", other)
            yield f"an output is {what}: {_short(next(iter(parts.values()), ''))}"
        elif one.keys() != other.keys():
            yield f"an output is of another kind: stored {_kinds(one)}, now {_kinds(other)}"
        else:
            beside = [_recorded(one, before), _recorded(other, now)]
            yield from _compare_parts(one, other, beside, spread)


def _parts(output: Output) -> dict[str, Any]:
    """Return what an output shows, by kind."""
    if "text" in output or "ename" in output:
        text = output.get("text", f"{output.get('ename')}: {output.get('evalue')}")
        return {output.get("name") or output["output_type"]: "".join(text)}
    shown = {kind: value for kind, value in output.get("data", {}).items() if kind != VIEW}
    parts = {kind: "".join(x) if isinstance(x, list) else x for kind, x in shown.items()}
    if "text/html" in parts:
        parts["text/html"] = _text(parts["text/html"])
    return parts


def _text(page: str) -> str:
    """Return the text of HTML, in one line."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


def _kinds(parts: Mapping[str, Any]) -> str:
    return ", ".join(sorted(parts))


def _short(text: Any, most: int = 60) -> str:
    first = str(text).strip().partition("\n")[0]
    return repr(first if len(first) <= most else first[: most - 1] + "…")


def _compare_parts(
    stored: Mapping[str, Any], fresh: Mapping[str, Any], beside: Sequence, spread: float | None
) -> Iterator[str]:
    """Yield the differences of one output; of its forms, the first that differs is enough."""
    if bool(beside[0]) != bool(beside[1]):
        where = "fresh output only: run 'make notebooks'" if beside[1] else "stored output only"
        yield f"{_name(stored)}: full values are beside the numbers of the {where}"
    code = "text/markdown" in stored  # displayed source
    for kind in sorted(stored.keys() - set(PICTURES), key="text/plain".__ne__):
        one, other = stored[kind], fresh[kind]
        where = f"{_name(stored)} {_short(stored.get('text/plain', one))}"
        if code or not isinstance(one, str) or not isinstance(other, str):
            found = [] if one == other else [f"{where}: stored {_short(one)}, now {_short(other)}"]
        else:
            found = list(_compare_texts(one, other, beside, spread, where))
        if found:
            yield from found
            return


def _name(parts: Mapping[str, Any]) -> str:
    """Return what readers call an output."""
    if any(kind in parts for kind in PICTURES):
        return "figure"
    return "table" if "text/html" in parts else next(iter(parts.keys() - {"text/plain"}), "text")


def _recorded(parts: Mapping[str, Any], output: Output) -> list[tuple[str, float]]:
    """Return the numbers of an output that have full values: their text and their value."""
    numbers = numbers_of(parts.get("text/plain", ""))
    pairs = zip(numbers, values_in(output.get("metadata", {})), strict=False)
    return [(number.text, value) for number, value in pairs if value is not None]


def _compare_texts(
    stored: str, fresh: str, beside: Sequence, spread: float | None, where: str
) -> Iterator[str]:
    """Yield the differences of two texts: first their words, then their numbers one by one."""
    words, today = wording(stored), wording(fresh)
    if words != today:
        yield f"{where}: stored {_around(words, today)}, now {_around(today, words)}"
        return
    values = [full_values(text, of) for text, of in zip((stored, fresh), beside, strict=True)]
    rows = zip(numbers_of(stored), numbers_of(fresh), *values, strict=True)
    for count, (one, other, exact, today_exact) in enumerate(rows, start=1):
        allowed = _refusal(one, other, exact, today_exact, spread)
        if allowed:
            before, now = _both(one, exact), _both(other, today_exact)
            yield f"number {count} of {where}: stored {before}, now {now} (allowed: {allowed})"


def _around(text: str, other: str) -> str:
    """Return the place where a text begins to differ from another."""
    same = len(os.path.commonprefix([text, other]))
    return _short(("…" if same > 20 else "") + text[max(same - 20, 0) :].replace("\n", " | "))


def _both(number: Printed, exact: float | None) -> str:
    return number.text if exact is None else f"{number.text} ({exact:.9g})"


def _refusal(
    stored: Printed, fresh: Printed, exact: float | None, today: float | None, spread: float | None
) -> str:
    """Return what would have been allowed if two numbers differ by more, else an empty text."""
    one, other, unit = stored.value, fresh.value, max(stored.unit, fresh.unit)
    if exact is not None and today is not None:
        one, other, unit = exact, today, _unit(exact, today)
    allowed, rule = unit, "one unit of the last digit" if unit else "nothing"
    larger = max(abs(one), abs(other))
    if spread is not None:
        allowed, rule = max(spread * larger, unit), f"a spread of {spread:g}"
    elif exact is not None and not unit:
        allowed, rule = EXACT * larger, f"{EXACT:g} of it"
    return "" if abs(one - other) <= allowed * (1 + 1e-9) else rule


def _unit(*values: float) -> float:
    """Return one unit of the last digit of values that were rounded to two digits before they were
    printed, 0 if one was not.
    """
    numbers = [numbers_of(f"{value:.9g}")[0] for value in values]
    mantissas = [number.text.partition("e")[0].lstrip("-0.") for number in numbers]
    rounded = all(len(mantissa.replace(".", "")) <= 2 for mantissa in mantissas)
    return max(number.unit for number in numbers) if rounded else 0.0


def pytest_configure(config: Any) -> None:
    """Give kernels that nbval starts their options, and time to start."""
    if not getattr(config.option, "nbval", False):
        return
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    os.environ["IPYTHONDIR"] = str(profile(Path(folder.name)))
    option = "nbval_kernel_startup_timeout"
    setattr(config.option, option, max(STARTUP_TIMEOUT, getattr(config.option, option)))


def profile(folder: Path) -> Path:
    """Write ``KERNEL_OPTIONS`` as a profile of IPython into a folder, and return the folder."""
    (folder / "profile_default").mkdir()
    (folder / "profile_default" / "ipython_kernel_config.py").write_text(KERNEL_OPTIONS)
    return folder


def pytest_collection_modifyitems(items: Sequence[Any]) -> None:
    """Let every cell of a notebook be compared by these rules, and wait longer for its outputs."""
    for item in items:
        if hasattr(item, "output_timeout") and hasattr(item, "cell"):
            item.output_timeout = OUTPUT_TIMEOUT
            item.compare_outputs = _Comparison(item)


class _Comparison:
    """What nbval calls with the fresh and the stored outputs of a cell."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __call__(self, fresh: Sequence[Output], stored: Sequence[Output]) -> bool:
        item = self.item
        place = f"{_relative(item.path, item.config.rootpath)}, cell {item.cell_num}"
        found = compare(_shown(stored), _shown(fresh), spread_of(item.cell.metadata))
        item.comparison_traceback = [f"{place}, {line}" for line in found]
        return not item.comparison_traceback


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root) if path.is_relative_to(root) else path.name)


def _shown(outputs: Sequence[Output]) -> list[Output]:
    """Return the outputs without those that hold nothing but a widget, which are not stored."""
    return [output for output in outputs if set(output.get("data", {"text": ""})) - {VIEW}]
