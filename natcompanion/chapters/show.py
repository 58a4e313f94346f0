"""What a chapter's cell ends on: a picture, a table or source code that also has a text form."""

import ast
import html
import inspect
import io
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from natcompanion.chapters import printed
from natcompanion.chapters.statistics import minus, recording, significant


def digits(value: Any) -> str:
    """Return a value as readers see it: three significant digits, yes or no, None as a dash.

    Examples
    --------
    >>> [digits(x) for x in (1.0, -12, 0.05, True, None, "text")]
    ['1.00', '−12', '0.0500', 'yes', '–', 'text']
    """
    if value is None:
        return "–"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)) and abs(int(value)) < 100_000:
        return minus(str(value))
    if isinstance(value, (int, float, np.integer, np.floating)):
        return significant(float(value))
    return str(value)


class Picture:
    """A figure drawn once, shown as PNG; its text form is the description, which carries the
    numbers.
    """

    def __init__(
        self, draw: Callable[..., Figure], describe: Callable[..., str], **point: Any
    ) -> None:
        with recording() as self.recorded:
            self.text = " ".join(describe(**point).split())
        figure = draw(**point)
        figure.patch.set(facecolor="white", alpha=1, visible=True)
        figure.set_dpi(144)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()).quantize(
            128, dither=Image.Dither.NONE
        )
        buffer = io.BytesIO()
        image.save(buffer, "PNG", optimize=True)
        self.png = buffer.getvalue()
        self.width = round(96 * figure.get_size_inches()[0])

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict, dict]:
        values = printed.metadata(self.text, self.recorded)
        shown = {"image/png": self.png, "text/plain": self.text}
        return shown, {"image/png": {"width": self.width}, **values}


class Table:
    """Rows under a heading, as an HTML table and as plain text; numbers carry at most three digits.

    Parameters
    ----------
    columns : sequence of str
    rows : sequence of sequences
        Text and numbers, as many as there are columns; None becomes a dash.
    caption : str
        A sentence that can be read alone.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = ""
    ) -> None:
        self.columns, self.caption = list(columns), caption
        with recording() as self.recorded:
            self.rows = [[digits(cell) for cell in row] for row in rows]
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(
                f"rows: expected {len(self.columns)} cells each, got "
                f"{[len(row) for row in self.rows]}"
            )

    def __str__(self) -> str:
        """Return the table as text in aligned columns."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*([self.caption] if self.caption else []), *text])

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict, dict]:
        head = "".join(
            f'<th scope="col" style="padding-left:{"1em" if i else 0}">{html.escape(cell)}</th>'
            for i, cell in enumerate(self.columns)
        )
        body = "".join(
            "<tr>"
            + f'<th scope="row">{html.escape(row[0])}</th>'
            + "".join(f'<td style="padding-left:1em">{html.escape(cell)}</td>' for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        name = f' aria-label="{html.escape(self.caption)}"' if self.caption else ""
        table = (
            f'<table class="nc-table"{name}>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
        # The first line is all that JupyterLab shows of a folded output, as it stands; and a
        # <caption> would be as narrow as its table there.
        above = f"{html.escape(self.caption, quote=False)}\n" if self.caption else ""
        page = f'{above}<div style="overflow-x:auto">{table}</div>'
        shown = {"text/plain": str(self), "text/html": page}
        return shown, printed.metadata(str(self), self.recorded)


class Source:
    """The source of functions, as Python to read; of a long docstring the summary only.

    Parameters
    ----------
    *functions : callable or class
        Written in Python.

    Examples
    --------
    >>> print(Source(digits).text.splitlines()[-1])
        return str(value)
    """

    def __init__(self, *functions: Callable[..., Any]) -> None:
        texts = [textwrap.dedent(inspect.getsource(function)) for function in functions]
        self.text = "\n\n\n".join(_shortened(text).rstrip() for text in texts)

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text, "text/markdown": f"```python\n{self.text}\n```"}


def _shortened(text: str) -> str:
    """Return the source of one definition with its docstring cut to the first paragraph."""
    definition: Any = ast.parse(text).body[0]
    docstring = ast.get_docstring(definition)
    if docstring is None or "\n\n" not in docstring:
        return text
    lines, node = text.splitlines(), definition.body[0]
    summary = docstring.partition("\n\n")[0].splitlines()
    shown = textwrap.indent('"""' + "\n".join(summary) + '"""', " " * node.col_offset)
    return "\n".join([*lines[: node.lineno - 1], shown, *lines[node.end_lineno :]])
