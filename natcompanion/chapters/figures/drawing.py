"""The declaration of a figure: what draws it, what describes it, and which values its controls
take.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from natcompanion.chapters.explore import explore, live
from natcompanion.chapters.show import Picture, Source


@dataclass(frozen=True)
class Drawing:
    """One figure of a chapter, declared once; the chapter's cell ends on one of its methods.

    Attributes
    ----------
    draw, describe : callable
        Functions of the values of the controls: the picture, and the sentence with its numbers.
    grid : dict
        Values of each slider that are drawn beforehand, for :meth:`explore`. Empty: no sliders.
    ranges : dict
        Range of each control in a kernel, for :meth:`live`.
    start : dict
        Where the controls stand first.
    labels : dict
        Their names, the same in the page and in a kernel.
    code : sequence of callable
        What computes the figure, for :meth:`source`.
    """

    draw: Callable[..., Figure]
    describe: Callable[..., str]
    grid: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    code: Sequence[Callable[..., Any]] = ()

    def explore(self, **options: Any) -> Any:
        """Return the figure whose sliders answer without a kernel."""
        return explore(self.draw, self.describe, **options, **self._texts(self.grid), **self.grid)

    def live(self, **options: Any) -> Any:
        """Return the figure that a kernel draws at any value."""
        return live(self.draw, self.describe, **options, **self._texts(self.ranges), **self.ranges)

    def _texts(self, controls: Mapping[str, Any]) -> dict[str, Any]:
        """Return start and labels of these controls."""
        return {
            key: {name: value for name, value in getattr(self, key).items() if name in controls}
            for key in ("start", "labels")
        }

    def picture(self, **point: Any) -> Picture:
        """Return the figure drawn once."""
        return Picture(self.draw, self.describe, **point)

    def source(self) -> Source:
        """Return the code of what computes the figure, to read."""
        return Source(*self.code)


def declared(module: Any) -> dict[str, Drawing]:
    """Return the figures that a module declares, by the name they have there."""
    return {name: item for name, item in vars(module).items() if isinstance(item, Drawing)}
