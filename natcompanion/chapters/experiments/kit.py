"""What the experiments of several papers share: a clock of processor time, and batches."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch


@dataclass
class Clock:
    """Processor seconds spent inside its ``with`` blocks; with one thread, the time that the work
    takes on a free core.
    """

    seconds: float = 0.0

    def __enter__(self) -> Self:
        self._start = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


def batches(n: int, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield whole batches of indices, epoch after epoch, each in a new order."""
    while True:
        order = torch.randperm(n, generator=generator)
        yield from order[: n - n % size].split(size)
