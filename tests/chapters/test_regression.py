"""When a fresh run of a cell equals its stored outputs: every rule, and what it must not let
pass.
"""

import pytest

from natcompanion.chapters.explore import explore
from natcompanion.chapters.printed import full_values, values_in
from natcompanion.chapters.regression import EXACT, KERNEL_OPTIONS, compare, profile, spread_of
from natcompanion.chapters.show import Picture, Table, digits
from natcompanion.chapters.statistics import Interval, recording, significant


def said(text: str, name: str = "stdout") -> dict:
    """Return an output that prints a text."""
    return {"output_type": "stream", "name": name, "text": text}


def shown(*rows: tuple, caption: str = "Losses.") -> dict:
    """Return the output of a table of these rows."""
    data, metadata = Table(["method", "loss"], rows, caption)._repr_mimebundle_()
    return {"output_type": "execute_result", "data": data, "metadata": metadata}


def moved(stored: str, fresh: str, spread: float | None = None) -> list[str]:
    """Return the differences of two printed texts."""
    return list(compare([said(stored)], [said(fresh)], spread))


@pytest.mark.parametrize(
    "stored, fresh, equal",
    [
        ("loss 0.0721", "loss 0.0722", True),
        ("loss 0.0721", "loss 0.0720", True),
        ("loss 0.0721", "loss 0.072", True),
        ("loss 0.0721", "loss 0.0723", False),
        ("loss 0.072", "loss 0.074", False),
        ("1.25e-08", "1.26e-08", True),
        ("1.25e-08", "1.27e-08", False),
        ("1.25e-08", "1.25e-07", False),
        ("1.25e8", "125000000.0", True),
        ("9.99e-05", "0.000100", True),
        ("12,345 steps", "12345 steps", True),
        ("12,345 steps", "12,346 steps", False),
        ("1,234.5", "1,234.6", True),
        ("-0.50", "-0.51", True),
        ("-0.50", "−0.50", True),
        ("-0.50", "0.50", False),
        ("54 % worse", "55 % worse", True),
        ("54 % worse", "56 % worse", False),
        ("5.4%", "5.5%", True),
        ("in 3 of 10 runs", "in 4 of 10 runs", False),
        ("step 0.1", "step 0.2", False),
        ("damping 1e-3", "damping 1e-4", False),
        ("a: nan", "a: nan", True),
        ("a: nan", "a: 0.50", False),
        ("a: 0.50", "a: nan", False),
        ("a: inf", "a: -inf", False),
        ("conv2 is 1.50", "conv3 is 1.50", False),
        ("yes", "no", False),
        ("1.50 2.50", "1.50", False),
        ("1.50", "1.50 2.50", False),
        ("1.50 2.50", "2.50 1.50", False),
        ("SGD 1.50", "PRONG 1.50", False),
        ("3-5 runs", "3-6 runs", False),
        ("2026-11-28", "2026-11-29", False),
        ("a     0.5\nb  0.25", "a  0.5\nb       0.25", True),
        ("a 0.5\nb 0.25", "a 0.5 b 0.25", False),
    ],
)
def test_printed_numbers(stored, fresh, equal):
    assert (moved(stored, fresh) == []) is equal
    assert (moved(fresh, stored) == []) is equal


def test_the_report_says_which_number_moved_from_what_to_what():
    found = moved("loss 0.0721 after 40 steps, 0.50 left", "loss 0.0731 after 41 steps, 0.50 left")
    place = "of stdout 'loss 0.0721 after 40 steps, 0.50 left': stored"
    assert found == [
        f"number 1 {place} 0.0721, now 0.0731 (allowed: one unit of the last digit)",
        f"number 2 {place} 40, now 41 (allowed: nothing)",
    ]
    (found,) = compare([shown(("SGD", 0.0721234))], [shown(("SGD", 0.0721244))])
    assert found == (
        "number 1 of table 'Losses.': stored 0.0721 (0.0721234), now 0.0721 (0.0721244) "
        "(allowed: 1e-06 of it)"
    )
    (found,) = moved("the loss of the last of the runs is nan", "the loss of the last is 0.50")
    assert "the last of the runs is nan', now '…" in found


def test_full_values_decide_where_they_are_known():
    stored = shown(("SGD", 0.0719996), ("PRONG", Interval(1 / 3, 0.3, 0.4, 5)))
    near = shown(("SGD", 0.0719996 * (1 + 0.9 * EXACT)), ("PRONG", Interval(1 / 3, 0.3, 0.4, 5)))
    far = shown(("SGD", 0.0719996 * (1 + 2 * EXACT)), ("PRONG", Interval(1 / 3, 0.3, 0.4, 5)))
    assert values_in(stored["metadata"]) == [0.0719996, 0.333333333, 0.3, 0.4]
    assert list(compare([stored], [near])) == []
    assert len(list(compare([stored], [far]))) == 1


def test_a_value_on_the_edge_of_its_rounding_may_fall_to_either_side():
    stored, fresh = (shown(("SGD", x)) for x in (0.07205 - 1e-12, 0.07205 + 1e-12))
    assert stored["data"]["text/plain"] != fresh["data"]["text/plain"]
    assert list(compare([stored], [fresh])) == []
    stored, fresh = (shown(("SGD", x)) for x in (123500 - 1e-4, 123500 + 1e-4))
    assert [x["data"]["text/plain"].split()[-1] for x in (stored, fresh)] == ["123000", "124000"]
    assert list(compare([stored], [fresh])) == []


def test_a_change_of_one_percent_is_seen_whatever_the_digits():
    for value in (1.0, 1.004, 2.34567e-7, -0.5, 123456.0, 0.0999):
        assert list(compare([shown(("SGD", value))], [shown(("SGD", 1.01 * value))]))
        assert list(compare([shown(("SGD", 1.01 * value))], [shown(("SGD", value))]))


def test_a_value_rounded_before_it_is_printed_may_move_by_one_unit():
    assert list(compare([shown(("SGD", 0.015))], [shown(("SGD", 0.016))])) == []
    assert list(compare([shown(("SGD", 0.015))], [shown(("SGD", 0.017))]))
    assert list(compare([shown(("SGD", 0.015))], [shown(("SGD", 0.0160001))]))
    assert list(compare([shown(("SGD", 0.5))], [shown(("SGD", 0.6))])), "one digit: a setting"


def test_a_spread_that_the_cell_states():
    assert moved("loss 0.500 at 100", "loss 0.520 at 104", spread=0.05) == []
    (found,) = moved("loss 0.500", "loss 0.530", spread=0.05)
    assert "(allowed: a spread of 0.05)" in found
    assert moved("5 runs", "6 runs", spread=0.05) and moved("a 0.5", "b 0.5", spread=0.05)
    assert list(compare([shown(("SGD", 0.5))], [shown(("SGD", 0.52))], 0.05)) == []
    assert spread_of({"natcompanion": {"spread": 0.05}}) == 0.05 and spread_of({}) is None
    for wrong in (0, 1e-9, 0.5, "5 %", True):
        with pytest.raises(ValueError, match="spread: expected a number"):
            spread_of({"natcompanion": {"spread": wrong}})


PICTURE = {"data": {"image/png": "AAAA", "text/plain": "It ends at 1.50."}}


@pytest.mark.parametrize(
    "stored, fresh, words",
    [
        ([said("a")], [], "an output is missing: 'a'"),
        ([], [said("a")], "an output is added: 'a'"),
        ([said("a"), said("b", "x")], [said("b", "x"), said("a")], "stored stdout, now x"),
        ([said("a")], [said("a", "stderr")], "stored stdout, now stderr"),
        ([PICTURE], [{"data": {"text/plain": "It ends at 1.50."}}], "now text/plain"),
        ([PICTURE], [{"output_type": "error", "ename": "E", "evalue": "x"}], "now error"),
        ([shown(("a", 1.5))], [shown(("a", 1.5), caption="Gains.")], "now 'Gains."),
        ([shown(("a", 1.5), ("b", 2.5))], [shown(("b", 2.5), ("a", 1.5))], "| b #', now"),
    ],
)
def test_everything_else_is_exact(stored, fresh, words):
    assert words in "\n".join(compare(stored, fresh))


def test_equal_outputs_are_equal():
    other = {"data": {**PICTURE["data"], "image/png": "BBBB"}}
    assert list(compare([PICTURE, said("a 1.5")], [other, said("a 1.5")])) == []
    lines = {"output_type": "stream", "name": "stdout", "text": ["a 1.5\n", "b"]}
    assert list(compare([lines], [said("a 1.5\nb")])) == []


def test_of_html_the_text_is_compared():
    def page(text: str) -> dict:
        return {"data": {"text/html": text, "text/plain": "a 1.50"}}

    table = page("<table><caption>Tom&#x27;s</caption><tr><td>1.50</td></tr></table>")
    line = page("Tom's\n<div style='padding:1em'><table><tr><td>1.50</td></tr></table></div>")
    assert list(compare([table], [line])) == []
    for other in ("Tom's\n<b>1.60</b>", "Tom\n<b>1.50</b>", "Tom's\n<b>1.50</b><b>2</b>"):
        assert list(compare([table], [page(other)])) != [], other


def test_displayed_source_is_exact():
    one, other = ({"data": {"text/markdown": f"x = {x}", "text/plain": ""}} for x in (0.95, 0.96))
    assert list(compare([one], [one])) == [] and list(compare([one], [other]))


def draw(scale: float):
    """Return a small figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([0, scale])
    return figure


def describe(scale: float) -> str:
    """Return its sentence."""
    return f"A third of the end is {digits(scale / 3)}, and {significant(scale / 7)} a seventh."


def test_pictures_and_interactive_figures_hold_their_values():
    _, metadata = Picture(draw, describe, scale=1.0)._repr_mimebundle_()
    assert values_in(metadata) == [0.333333333, 0.142857143]
    figure = explore(draw, describe, start={"scale": 2.0}, scale=[1.0, 2.0])
    box, metadata = figure._repr_mimebundle_()
    assert box["text/plain"].startswith("[scale = 2] A third of the end is 0.667")
    assert values_in(metadata) == [None, 0.666666667, 0.285714286]
    assert box["image/png"].startswith(b"\x89PNG") and metadata["image/png"]["width"] == 288


def test_values_must_stand_on_both_sides():
    stored = {**shown(("SGD", 0.5)), "metadata": {}}
    assert "fresh output only" in next(compare([stored], [shown(("SGD", 0.5))]))
    assert "stored output only" in next(compare([shown(("SGD", 0.5))], [stored]))


def test_values_go_to_the_numbers_that_print_so():
    recorded = [("0.500", 0.5001), ("0.500", 0.4999), ("1.00e-5", 1e-5), ("-2.00", -2.0)]
    text = "0.500, 0.500, again 0.500, 1.00e-5, −2.00 and 7"
    assert full_values(text, recorded) == [0.5001, 0.4999, 0.4999, 1e-5, -2.0, None]


def test_nothing_is_recorded_outside_the_block():
    with recording() as outer:
        significant(1.5)
        with recording() as inner:
            significant(2.5)
    significant(3.5)
    assert (outer, inner) == ([("1.50", 1.5)], [("2.50", 2.5)])


def test_kernels_get_their_options(tmp_path):
    written = profile(tmp_path) / "profile_default" / "ipython_kernel_config.py"
    assert written.read_text() == KERNEL_OPTIONS
