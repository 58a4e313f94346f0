"""Interactive figures: one drawing for the page without a kernel, for a live kernel, and for the
tests.

A figure is two plain functions of the slider values: ``draw(**point)`` returns a
`matplotlib.figure.Figure`, and ``describe(**point)`` returns the sentence that says what the
picture shows, with its numbers. They use no globals that change and no pyplot state.

* `explore` draws every point of a grid once. Its sliders answer in the page opened from disk, with
  no kernel. End the cell with the call, so that its result is the output of the cell.
* `live` draws any point inside ranges, at once where that is quick, else when the reader presses
  Run, and needs a kernel. Tag its cell ``remove-cell``: the rendered book then leaves it out, and
  JupyterLab and Binder show it.

Both give their description at the start point as the plain text of the output. That is what GitHub
shows and what ``pytest --nbval`` compares, so the description holds at most 3 significant digits.
"""

from natcompanion.chapters.explore._grid import explore
from natcompanion.chapters.explore._live import live

__all__ = ["explore", "live"]
