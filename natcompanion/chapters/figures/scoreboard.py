"""The ledgers at a glance: how many entries of each kind a paper has."""

from typing import Any

from matplotlib.figure import Figure

from natcompanion.chapters.figures.drawing import Drawing
from natcompanion.chapters.figures.style import FONT, STATUS, figure
from natcompanion.chapters.ledger import LEDGERS, counts

HATCHES = ("", "//", "\\\\", "xx", "..")


def draw(ledger: str) -> Figure:
    """Return one bar for each paper, divided by the verdict, status or severity of its entries."""
    tally = counts(ledger)
    kinds = list(tally["whitening"])
    drawing, (axes,) = figure(3.2)
    left = dict.fromkeys(tally, 0)
    for kind, colour, hatch in zip(kinds, STATUS, HATCHES, strict=False):
        width = [tally[paper][kind] for paper in tally]
        bars: dict[str, Any] = {
            "color": colour,
            "hatch": hatch,
            "edgecolor": "white",
            "label": kind,
        }
        axes.barh(list(tally), width, left=list(left.values()), **bars)
        left = {paper: left[paper] + tally[paper][kind] for paper in tally}
    axes.invert_yaxis()
    axes.set_xlim(0, max(1, *left.values()))
    ticks: Any = axes.xaxis.get_major_locator()
    ticks.set_params(integer=True)
    axes.set_xlabel(f"number of {ledger}", fontsize=FONT["label"])
    drawing.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=FONT["legend"])
    return drawing


def describe(ledger: str) -> str:
    """Return the same counts in words."""
    parts = []
    for paper, tally in counts(ledger).items():
        kinds = ", ".join(f"{count} {kind}" for kind, count in tally.items() if count)
        parts.append(f"{paper} {kinds or 'none yet'}")
    return f"Number of {ledger} of each paper: {'; '.join(parts)}."


LEDGER = Drawing(draw, describe, grid={"ledger": list(LEDGERS)})
