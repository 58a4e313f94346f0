"""The library's own code in a page of the book: traced once, replayed in the reader's browser.

A step of an algorithm is written in torch, in the library. `trace` runs it once, in float64, and
returns a `Program`: a flat list of operations on arrays of fixed shapes. ``book/_static/page``
holds the runtime that replays a program, in plain JavaScript, from disk, with no kernel.

* Control flow is not traced. Trace one step; the page repeats it. A branch that depends on a value
  is the branch of the example, so a page keeps its inputs where that branch is the right one.
* Checks read values beside the trace. What they would refuse the page must not ask for.
* An operation that the runtime does not have is an error of the build, by name; so is a trace that
  does not agree with the function at inputs other than its example.
"""

from natcompanion.chapters.page._figure import PageFigure, Traced, fill, find
from natcompanion.chapters.page._program import Program
from natcompanion.chapters.page._trace import trace

__all__ = ["PageFigure", "Program", "Traced", "fill", "find", "trace"]
