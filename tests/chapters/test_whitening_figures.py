"""The figures of the whitening chapter: what the walk over all figures does not see."""

import io

import pytest
import torch
from PIL import Image

from natcompanion.chapters.figures import Picture, Table, digits
from natcompanion.chapters.figures import whitening as figures
from natcompanion.chapters.numbers import whitening as numbers


def curves(panel):
    """Return the coordinates of the labelled lines of a panel, by label."""
    return {line.get_label(): line.get_xydata() for line in panel.get_lines()}


def test_figure1_counts_the_steps_of_the_plain_loop():
    text = figures.FIGURE1.describe(0.1, 0.01, "(1, -1)")
    assert "steepest descent: 7833 steps; natural gradient: 50 steps" in text
    assert "never, it diverges" in figures.FIGURE1.describe(0.23, 0.01, "(1, -1)")


def test_a_start_at_315_degrees_is_that_of_the_paper():
    point = {"lr": 0.1, "eps": 0.01}
    live = figures.ANY_FIGURE1.describe(**point, angle=315.0)
    assert live == figures.FIGURE1.describe(**point, origin="(1, -1)")


def test_figure1_shows_each_rule_in_its_place():
    _, curve = figures.FIGURE1.draw(0.1, 0.01, "(1, -1)").axes
    start = torch.tensor([1.0, -1.0], dtype=torch.float64)
    paths = numbers.gaussian_paths(0.1, 0.01, start, torch.tensor([50.0], dtype=torch.float64))
    found = curves(curve)
    for name, (text, _, _) in figures.STYLES.items():
        at = {int(x): y for x, y in found[text]}
        assert at[50] == pytest.approx(float(numbers.example_kl(paths[name])[0])), name


def test_every_metric_has_its_own_curve():
    (panel,) = figures.BOLTZMANN.draw("-1 and +1", "contrastive divergence").axes
    found = curves(panel)
    for name, text in figures.METRICS.items():
        band = numbers.curves(name, "pm1", "cd")
        assert found[text][:, 1].tolist() == [at.mean for at in band], name
    assert "Eq. 33 1.60 (" in figures.BOLTZMANN.describe("-1 and +1", "contrastive divergence")


def test_gains_are_drawn_under_their_names():
    (panel,) = figures.GAIN.draw(0.01).axes
    found = curves(panel)
    regularized = next(xy for text, xy in found.items() if text.startswith("Eq. 35"))
    damped = next(xy for text, xy in found.items() if text.startswith("damping"))
    assert regularized[0] == pytest.approx([1e-4, 1e-4 / (1e-8 + 0.01)])
    assert damped[0] == pytest.approx([1e-4, 1 / (1e-4 + 0.01)])


def test_rows_of_dots_are_those_of_their_label():
    (panel,) = figures.COORDINATES.draw().axes
    ticks = dict(zip((t.get_text() for t in panel.get_yticklabels()), range(5), strict=True))
    dots = [line for line in panel.get_lines() if line.get_marker() == "o"]
    natural = dots[ticks["natural gradient"]].get_xdata()
    assert list(natural) == numbers.coordinate_steps("fisher")
    assert max(natural) < min(dots[ticks["raw pixels"]].get_xdata())


def test_picture_is_a_png_on_white_with_its_description():
    picture = figures.GAIN.picture(eps=0.01)
    data, metadata = picture._repr_mimebundle_()
    image = Image.open(io.BytesIO(data["image/png"])).convert("RGB")
    assert isinstance(picture, Picture) and image.getpixel((0, 0)) == (255, 255, 255)
    assert data["text/plain"] == figures.GAIN.describe(0.01)
    assert metadata["image/png"]["width"] == round(96 * 5.4) < image.width
    assert len(data["image/png"]) < 60_000


def test_table_has_a_text_form_and_an_html_form():
    table = Table(["name", "value"], [["a < b", 0.123456], ["missing", None]], 'Bob\'s "rows".')
    assert str(table).splitlines() == [
        'Bob\'s "rows".',
        "name     value",
        "a < b    0.123",
        "missing  –",
    ]
    first, page = table._repr_mimebundle_()[0]["text/html"].split("\n")
    assert first == 'Bob\'s "rows".', "what JupyterLab shows of a folded output"
    assert (
        'aria-label="Bob&#x27;s &quot;rows&quot;."' in page
        and '<th scope="row">a &lt; b</th>' in page
        and ">0.123</td>" in page
    )
    assert Table(["name"], [])._repr_mimebundle_()[0]["text/html"].startswith("<div")
    with pytest.raises(ValueError, match="expected 2 cells"):
        Table(["name", "value"], [["only one"]])


@pytest.mark.parametrize(
    "value, text",
    [
        (7833, "7833"),
        (0.123456, "0.123"),
        (123456.0, "123000"),
        (1e-16, "1.00e-16"),
        (None, "–"),
        (True, "yes"),
        ("word", "word"),
        (3.0, "3.00"),
        (1.23456e8, "1.23e8"),
    ],
)
def test_digits(value, text):
    assert digits(value) == text
