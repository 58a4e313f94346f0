"""Every number in the prose of a chapter is what its function gives today."""

from pathlib import Path

import nbformat
import pytest

from natcompanion.chapters import prose
from natcompanion.chapters.numbers import boltzmann

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "book").glob("*.ipynb"))


def stale(paper: str, notebook: nbformat.NotebookNode) -> list[str]:
    """Return a line for each number of the prose that is not what its function gives."""
    return [
        f"cell {cell.id}: {line}"
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for line in prose.differences(paper, cell.source)
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_numbers_of_the_prose_are_those_of_today(path):
    assert stale(path.stem, nbformat.read(path, as_version=4)) == [], "run 'make notebooks'"


def test_a_wrong_number_a_missing_function_and_a_broken_span_are_named(monkeypatch):
    def answer() -> int:
        return 42

    answer.__module__ = boltzmann.__name__
    monkeypatch.setattr(boltzmann, "answer", answer, raising=False)
    spans = [
        '<span data-number="answer()">41</span>',
        '<span data-number="no_such_number()">7</span>',
        '<span data-number="stored(">7</span>',
        "<span data-number='x'>7</span>",
    ]
    for span in spans:
        cell = nbformat.v4.new_markdown_cell(f"It takes {span} steps.")
        assert len(stale("boltzmann", nbformat.v4.new_notebook(cells=[cell]))) == 1
    cell.source = prose.fill("boltzmann", spans[0])
    assert stale("boltzmann", nbformat.v4.new_notebook(cells=[cell])) == []
    assert ">42<" in cell.source
