"""Choices that a report makes: the least value, and what counts as a tie."""

import math

import pytest

from natcompanion.chapters.statistics import TIE, best, share_of_pairs


def test_the_least_value_wins_and_what_diverged_never_does():
    assert best([("a", 2.0), ("b", 1.0), ("c", math.nan), ("d", -math.inf)]) == "b"
    assert best([("a", -1.0), ("b", -2.0)]) == "b"
    with pytest.raises(ValueError, match="at least one finite value"):
        best([("a", math.nan), ("b", math.inf)])


@pytest.mark.parametrize("scale", [1.0, -1.0, 1e-12, 1e12])
def test_which_of_two_converged_runs_wins_does_not_depend_on_rounding(scale):
    for rounding in (-1e-15, 0.0, 1e-15):
        assert best([("first", scale), ("second", scale * (1 + rounding))]) == "first"
    assert best([("first", scale), ("second", scale - 3 * TIE * abs(scale))]) == "second"
    assert best([("far", scale + 1e3 * abs(scale)), ("first", scale), ("second", scale)]) == "first"


def test_the_limits_of_a_share_of_pairs_are_shares():
    """All pairs but those of one thing, and only those: the jackknife reaches beyond both ends."""
    pairs = [(a, b) for a in range(5) for b in range(a + 1, 5)]
    most = share_of_pairs([pair != (0, 1) for pair in pairs], pairs)
    assert most.mean == pytest.approx(0.9) and most.low > 0 and most.high == 1.0
    least = share_of_pairs([pair == (0, 1) for pair in pairs], pairs)
    assert least.mean == pytest.approx(0.1) and least.low == 0.0 and least.high < 1
