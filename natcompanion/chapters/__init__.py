"""The book's wing: experiments, their stored results, the numbers and figures drawn from them, the
ledgers.

It needs the extra ``natcompanion[book]``; the library beside it needs torch, numpy and scipy alone.
"""

from importlib import import_module
from typing import Any

import torch


def begin(chapter: str) -> tuple[Any, Any]:
    """Return the modules of figures and of numbers of a chapter, whose cells compute in float64 on
    one thread.

    Examples
    --------
    >>> figures, numbers = begin("scoreboard")
    >>> figures.__name__, torch.get_default_dtype()
    ('natcompanion.chapters.figures.scoreboard', torch.float64)
    >>> torch.set_default_dtype(torch.float32)
    """
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    kinds = ("figures", "numbers")
    figures, numbers = (import_module(f"{__name__}.{kind}.{chapter}") for kind in kinds)
    return figures, numbers
