"""Experiments: one frozen dataclass of settings and one function each; one module per paper.

A module of this package registers its experiments like this::

    @dataclass(frozen=True, kw_only=True)
    class Figure1(Settings):
        rate: float = 0.1
        steps: int = 50

    @experiment("whitening_figure1", quick=Figure1(), paper=Figure1(steps=10_000))
    def figure1(settings: Figure1) -> dict:
        \"\"\"Steps to a KL of 1e-4 along the plain and the natural gradient.\"\"\"
        noise = torch.randn(3, generator=settings.generator())
        return {"plain": 7833, "natural": 50}

``run("whitening_figure1")`` runs it once, ``sweep("whitening_figure1", "paper", seeds=range(5))``
stores records in ``book/results/whitening_figure1.paper.json``, and ``load("whitening_figure1",
"paper")`` reads them.
"""

from .registry import Experiment, experiment, get, names
from .results import Interval, Results, interval, load, stored
from .runner import run
from .settings import Settings
from .store import Result, book_folder, results_folder
from .sweeping import default_workers, sweep

__all__ = [
    "Experiment",
    "Interval",
    "Result",
    "Results",
    "Settings",
    "book_folder",
    "default_workers",
    "experiment",
    "get",
    "interval",
    "load",
    "names",
    "results_folder",
    "run",
    "stored",
    "sweep",
]
