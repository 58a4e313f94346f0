"""What the experiments of several papers share: a clock of processor time, batches, and a loop."""

import time
from collections.abc import Callable, Iterator
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


def fed(
    step: Callable[[torch.Tensor, torch.Tensor], object],
    x: torch.Tensor,
    t: torch.Tensor,
    size: int,
    generator: torch.Generator,
) -> Callable[[], object]:
    """Return the function that makes a step with the next batch of the examples."""
    order = batches(len(x), size, generator)

    def next_step() -> object:
        index = next(order)
        return step(x[index], t[index])

    return next_step


def looks(step: Callable[[], object], updates: int, every: int, clock: Clock) -> Iterator[int]:
    """Make updates, inside the clock, and yield the number of each after which to look.

    A step that the library refuses, because something is no longer finite, is the last.
    """
    for update in range(1, updates + 1):
        try:
            with clock:
                step()
        except ValueError:
            return
        if update % every == 0:
            yield update
