"""The figures of the whitening chapter, over the whole grid of each, and what shows them."""

import io

import pytest
from _pictures import check_drawings, check_texts
from PIL import Image

from natcompanion.chapters import experiments
from natcompanion.chapters.figures import Picture, Table, digits, glue
from natcompanion.chapters.figures import whitening as figures

GRIDS = {
    "figure1": (figures.draw_figure1, figures.describe_figure1, figures.FIGURE1),
    "live figure1": (
        figures.draw_live_figure1,
        figures.describe_live_figure1,
        {"lr": [1e-3, 2.0], "eps": [1e-8, 1.0], "angle": [0.0, 315.0, 360.0]},
    ),
    "kinds": (figures.draw_kinds, figures.describe_kinds, figures.KINDS),
    "gain": (figures.draw_gain, figures.describe_gain, figures.GAIN),
    "boltzmann": (figures.draw_boltzmann, figures.describe_boltzmann, figures.BOLTZMANN),
    "digits": (figures.draw_digits, figures.describe_digits, figures.DIGITS),
    "separation": (figures.draw_separation, figures.describe_separation, figures.SEPARATION),
    "fields": (figures.draw_fields, figures.describe_fields, {}),
    "coordinates": (figures.draw_coordinates, figures.describe_coordinates, {}),
    "guesses": (figures.draw_guesses, figures.describe_guesses, {}),
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_the_grid_is_described(name):
    _, describe, grid = GRIDS[name]
    check_texts(describe, grid)


@pytest.mark.parametrize("name", GRIDS)
def test_every_point_of_the_grid_is_drawn_in_one_size_on_white(name):
    draw, _, grid = GRIDS[name]
    check_drawings(draw, grid)


def test_figure1_counts_the_steps_of_the_plain_loop():
    text = figures.describe_figure1(0.1, 0.01, "(1, -1)")
    assert "steepest descent: 7833 steps; natural gradient: 50 steps" in text
    assert "never, it diverges" in figures.describe_figure1(0.23, 0.01, "(1, -1)")


def test_the_gain_of_eq_35_is_largest_at_the_root_of_eps():
    assert "no eigenvalue more than 5." in figures.describe_gain(0.01)
    assert "no eigenvalue more than 500." in figures.describe_gain(1e-6)


def test_picture_is_a_png_on_white_with_its_description():
    picture = Picture(figures.draw_gain, figures.describe_gain, eps=0.01)
    data, metadata = picture._repr_mimebundle_()
    image = Image.open(io.BytesIO(data["image/png"])).convert("RGB")
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert data["text/plain"] == figures.describe_gain(0.01)
    assert metadata["image/png"]["width"] == round(96 * 5.4) < image.width
    assert len(data["image/png"]) < 60_000


def test_table_has_a_text_form_and_an_html_form():
    table = Table(["name", "value"], [["a < b", 0.123456], ["missing", None]], "Two rows.")
    assert str(table).splitlines() == [
        "Two rows.",
        "name     value",
        "a < b    0.123",
        "missing  –",
    ]
    page = table._repr_mimebundle_()["text/html"]
    assert (
        "<caption>Two rows.</caption>" in page
        and '<th scope="row">a &lt; b</th>' in page
        and ">0.123</td>" in page
    )
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


def test_glue_leaves_the_value_where_myst_nb_looks_for_it(monkeypatch):
    shown = []
    monkeypatch.setattr(
        "natcompanion.chapters.show.display",
        lambda data, **options: shown.append((data, options)),
    )
    glue(steps=7833.4)
    ((data, options),) = shown
    assert data == {"application/papermill.record/text/plain": "7830"}
    assert options["metadata"]["scrapbook"] == {
        "name": "steps",
        "mime_prefix": "application/papermill.record/",
    }


def test_the_example_counts_the_start_of_the_paper_once():
    speedups = figures.example_speedups("fisher")
    stored = experiments.load("whitening_figure1").values("speedup_fisher")
    assert len(speedups) == 1 + stored.shape[0] * (stored.shape[1] - 1) < stored.size
    assert speedups[0] == stored[0, 0] == stored[1, 0]


def test_settings_of_the_text_are_plain_numbers():
    settings = figures.settings()
    assert (
        settings["rates_count"] == 21
        and settings["bm_parameters"] == 21
        and settings["pairs"] == 45
    )
    assert all(isinstance(value, (int, float)) for value in settings.values())
