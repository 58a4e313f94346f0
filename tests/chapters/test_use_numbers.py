"""The numbers of *In your own code*."""

import numpy as np
import pytest
import torch

from natcompanion.chapters.figures import use as figures
from natcompanion.chapters.numbers import use as numbers


def test_the_covariances_are_those_of_the_layer_s_inputs():
    x = numbers.digits()[0]
    model = numbers.network()
    hidden = torch.tanh(x @ model[0].weight.mT + model[0].bias).detach().numpy()
    assert numbers.measured()[0].numpy() == pytest.approx(np.cov(hidden.T, bias=True), rel=1e-9)
    assert numbers.matrix("pixels").numpy() == pytest.approx(np.cov(x.T, bias=True), abs=1e-12)
    assert numbers.matrix("Fisher matrix").shape == (49 * 16 + 16 + 160 + 10,) * 2
    assert list(numbers.since(350)) == [350, 360, 370, 380, 390, 400]


@pytest.mark.parametrize("place", numbers.PLACES)
@pytest.mark.parametrize("share", numbers.SHARES)
def test_what_is_kept_holds_the_share(place, share):
    values, kept = numbers.spectrum(place), numbers.kept(place, share)
    total = float(values.sum())
    assert float(values[:kept].sum()) >= share * total > float(values[: kept - 1].sum())
    assert numbers.eps(place, share) == pytest.approx(float(values[kept - 1]), rel=1e-9)


@pytest.mark.parametrize("share", numbers.SHARES)
def test_the_period_ends_before_the_curve_crosses_two(share):
    curve = dict(numbers.stale_variances(share))
    assert curve[0] == pytest.approx(1.0)
    ok = [step for step, value in curve.items() if value <= 2]
    assert numbers.period(share) == max(ok) and ok == list(curve)[: len(ok)]
    assert numbers.period(share) == numbers.period(share, start=100)


def test_a_later_whitening_lasts_longer():
    assert numbers.period(0.99, 0) == 0 < numbers.soonest() < numbers.period(0.99)
    assert numbers.period(0.99) < numbers.period(0.99, 200)


def test_the_caption_says_whether_the_end_was_seen():
    assert "until a variance doubles" in figures.describe_spectrum(0.99)
    assert "as long as was measured" in figures.describe_spectrum(0.9)


def test_the_text_is_windows_of_nine_characters():
    context, target, size = numbers.sonnet()
    alphabet = sorted(set(numbers.SONNET))
    assert size == len(alphabet) and context.shape == (len(numbers.SONNET) - 8, 8)
    read = "".join(alphabet[k] for k in [*context[5].tolist(), int(target[5])])
    assert read == numbers.SONNET[5:14]


def test_the_tasks_share_no_digit_and_no_example():
    parts = numbers.two_tasks()
    assert [len(x) for x, _ in parts[:2]] == [500, 100] and len(parts[2][0]) > 1000
    assert all(set(t.tolist()) == {0, 1, 2, 3, 4} for _, t in parts)
    new = torch.cat([parts[1][0], parts[2][0]])
    assert len(torch.unique(new, dim=0)) == len(new)


def test_accuracy_counts_the_largest_output():
    model = torch.nn.Identity()
    x = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    assert numbers.accuracy(model, x, torch.tensor([1, 0, 1, 1])) == 75


def test_the_public_example_takes_digits_of_half_the_side():
    model, loader = numbers.public_example()
    x, _ = next(iter(loader))
    assert x.shape == (50, 1, 14, 14) and model(x).shape == (50, 10) and len(loader.dataset) == 1000
