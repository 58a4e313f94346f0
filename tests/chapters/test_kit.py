"""The loop that experiments share."""

import pytest
import torch

from natcompanion.chapters.experiments.kit import Clock, batches, fed, looks


def test_looks_come_every_so_many_updates_and_no_others():
    made: list[int] = []
    seen = [(update, len(made)) for update in looks(lambda: made.append(0), 10, 3, Clock())]
    assert seen == [(3, 3), (6, 6), (9, 9)]
    assert len(made) == 10  # the last one is made, and not looked at


def test_a_refused_step_is_the_last():
    left = [1, 2, 3, 4]

    def step() -> None:
        if not left:
            raise ValueError("expected a finite gradient")
        left.pop()

    assert list(looks(step, 10, 2, Clock())) == [2, 4]


def test_other_errors_are_not_hidden():
    def step() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        list(looks(step, 10, 2, Clock()))


def test_a_step_is_fed_whole_batches_of_pairs_that_belong_together():
    x, seen = torch.arange(7.0), []
    step = fed(lambda a, b: seen.append((a, b)), x, 10 * x, 3, torch.Generator().manual_seed(0))
    for _ in range(4):
        step()
    assert all(bool((b == 10 * a).all()) for a, b in seen)
    order = batches(7, 3, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, x[next(order)]) for a, _ in seen)
    epoch = torch.cat([a for a, _ in seen[:2]])
    assert len(set(epoch.tolist())) == 6  # no example twice in an epoch
