"""The stored notebooks: canonical form, stored outputs, and the rules that keep them readable and
comparable.
"""

import ast
import re
import statistics
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import nbformat
import pytest
from jupyter_cache import get_cache

from natcompanion.chapters.regression import VIEW, compare, spread_of

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "tests" / "book" / "mini" / "book" / "chapter.ipynb"
NOTEBOOKS = [MINI, *sorted((ROOT / "book").glob("*.ipynb"))]
HIDDEN = {"remove-cell", "remove-input", "hide-input", "hide-cell"}
LONGEST, MEDIAN, WIDEST = (
    40,
    6,
    76,
)  # lines, lines, characters: what the page shows without scrolling

spec = spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
tool = module_from_spec(spec)
spec.loader.exec_module(tool)

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    """Return a notebook as it is stored."""
    return nbformat.read(path, as_version=4)


def lines(source: str) -> int:
    """Return the number of lines of code."""
    return sum(bool(line.strip()) for line in source.splitlines())


def form_problems(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what keeps a notebook from being compared with a fresh run."""
    problems = []
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        problems.append("the kernel is not python3")
    if "widgets" in notebook.metadata:
        problems.append("widget state is stored")
    ids = [cell.get("id") for cell in notebook.cells]
    if None in ids or len(set(ids)) != len(ids):
        problems.append("cells without an id of their own")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any(cell.outputs for cell in code):
        problems.append("no outputs are stored")
    for cell in code:
        problems += [f"cell {cell.id}: {text}" for text in cell_problems(cell)]
    return problems


def cell_problems(cell: nbformat.NotebookNode) -> list[str]:
    """Return what is wrong with one code cell."""
    problems = spread_problems(cell)
    source = re.sub(r"^[%!].*$", "pass", cell.source, flags=re.MULTILINE)
    body = ast.parse(source).body
    last = body[-1] if body else None
    if cell.source.rstrip().endswith(";"):
        problems.append("ends in a semicolon, which hides an output from the comparison")
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant):
        problems.append("ends in a constant")
    if re.search(r"\binteract(ive|_manual|ive_output)?\(", cell.source):
        problems.append("uses interact, whose errors pass every check")
    if body and cell.execution_count is None:
        problems.append("was not executed")
    for output in cell.outputs:
        data = output.get("data", {})
        text = "".join(data.get("text/plain", ""))
        if re.search(
            r"\bnan\b",
            " ".join("".join(value) for value in data.values() if isinstance(value, str)),
        ):
            problems.append("shows nan")
        if output.output_type == "error":
            problems.append("stores an error")
        if output.get("name") == "stderr":
            problems.append("prints to stderr")
        if re.match(r"(np|numpy)\.\w+\(|tensor\(|array\(|^-?\d+\.\d{4,}", text):
            problems.append(f"shows a bare number or tensor: {text[:40]}")
        interactive = re.match(r"\[\w+ = .*\] ", text)  # in the page, its frames have their own
        picture = any(kind.startswith("image/") for kind in data)
        if picture and not interactive and not alternative(cell):
            problems.append("has a picture without alt text in its metadata")
        if " at 0x" in text or "<IPython" in text and "HTML" not in text:
            problems.append(f"shows an address in memory: {text[:60]}")
    return problems


def spread_problems(cell: nbformat.NotebookNode) -> list[str]:
    """Return what is wrong with the spread that a cell states for its numbers."""
    try:
        spread_of(cell.metadata)
    except ValueError as error:
        return [str(error)]
    return []


def alternative(cell: nbformat.NotebookNode) -> str:
    """Return the alternative text that the metadata of a cell gives to its picture."""
    return str(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")).strip()


@every_notebook
def test_notebook_is_stored_in_canonical_form(path):
    text = path.read_text(encoding="utf-8")
    assert text == tool.dumps(tool.canonical(nbformat.reads(text, as_version=4))), (
        "run 'make notebooks'"
    )


@every_notebook
def test_notebook_can_be_compared_with_a_fresh_run(path):
    assert form_problems(read(path)) == []


def differences(stored: nbformat.NotebookNode, fresh: nbformat.NotebookNode) -> list[str]:
    """Return how the outputs of a fresh run differ from the stored ones."""
    return [
        f"cell {before.id}: {line}"
        for before, now in zip(stored.cells, tool.canonical(fresh).cells, strict=True)
        if before.cell_type == "code"
        for line in compare(before.outputs, now.outputs, spread_of(before.metadata))
    ]


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
def test_what_the_pages_ran_is_what_is_stored(site, path):
    cache = get_cache(site.parent / ".jupyter_cache")
    assert differences(read(path), cache.merge_match_into_notebook(read(path))[1]) == []


def test_another_output_is_a_difference():
    assert differences(read(MINI), read(MINI)) == []
    other = spoil(outputs=[nbformat.v4.new_output("stream", text="12.5")])
    found = differences(read(MINI), other)
    assert found and all(line.startswith(f"cell {other.cells[-1].id}: ") for line in found)


@every_notebook
def test_code_cells_are_short(path):
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert max(lines(cell.source) for cell in code) <= LONGEST
    shown = [lines(cell.source) for cell in code if not HIDDEN & set(cell.metadata.get("tags", []))]
    assert statistics.median(shown) <= MEDIAN


def unfolded_imports(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the cells that begin with imports and stand open."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    begins = [cell for cell in cells if re.match(r"(import|from) ", cell.source)]
    return [cell.id for cell in begins if not HIDDEN & set(cell.metadata.get("tags", []))]


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
def test_imports_are_folded(path):
    assert unfolded_imports(read(path)) == []
    assert unfolded_imports(spoil(source="import torch", metadata={})) == [read(MINI).cells[-1].id]


@every_notebook
def test_shown_code_fits_the_page(path):
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    shown = [cell for cell in code if not HIDDEN & set(cell.metadata.get("tags", []))]
    wide = [line for cell in shown for line in cell.source.splitlines() if len(line) > WIDEST]
    assert wide == []


def hidden_share(notebook: nbformat.NotebookNode) -> float:
    """Return which part of the characters of code a reader has to unfold, solutions included."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    hidden = [cell for cell in code if HIDDEN & set(cell.metadata.get("tags", []))]
    return sum(len(cell.source) for cell in hidden) / sum(len(cell.source) for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
def test_most_code_is_open(path):
    assert hidden_share(read(path)) <= 0.3


def test_the_hidden_share_counts_characters():
    notebook = nbformat.v4.new_notebook()
    sources = {"shown": [], "x" * 3: ["hide-input"], "y" * 2: ["remove-cell", "other"]}
    notebook.cells = [
        nbformat.v4.new_code_cell(source, metadata={"tags": tags})
        for source, tags in sources.items()
    ]
    notebook.cells.append(nbformat.v4.new_markdown_cell("prose", metadata={"tags": ["hide-cell"]}))
    assert hidden_share(notebook) == 0.5


def spoil(**changes) -> nbformat.NotebookNode:
    """Return the small chapter with its last cell changed."""
    notebook = read(MINI)
    notebook.cells[-1].update(changes)
    return notebook


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"source": "figure;"}, "semicolon"),
        ({"source": "figure\n1.5"}, "constant"),
        ({"source": "interact(draw)"}, "interact"),
        ({"metadata": {}}, "alt text"),
        ({"metadata": {"natcompanion": {"spread": 0.9}}}, "spread"),
        ({"id": "imports"}, "id of their own"),
        ({"execution_count": None}, "not executed"),
        ({"outputs": [nbformat.v4.new_output("stream", name="stderr", text="x")]}, "stderr"),
        ({"outputs": [nbformat.v4.new_output("error", ename="E", evalue="x")]}, "error"),
        (
            {"outputs": [nbformat.v4.new_output("execute_result", {"text/plain": "tensor(1.)"})]},
            "bare",
        ),
        (
            {"outputs": [nbformat.v4.new_output("execute_result", {"text/plain": "<A at 0x1>"})]},
            "memory",
        ),
        (
            {"outputs": [nbformat.v4.new_output("execute_result", {"text/plain": "angle nan"})]},
            "nan",
        ),
    ],
)
def test_a_spoiled_notebook_is_noticed(changes, word):
    assert any(word in problem for problem in form_problems(spoil(**changes)))


def test_canonical_form_is_a_fixed_point_and_drops_what_changes():
    notebook = read(MINI)
    notebook.metadata.update(
        widgets={"state": {}}, kernelspec={"name": "other"}, language_info={"version": "3.11.7"}
    )
    notebook.cells[0].pop("id")
    notebook.cells[1].metadata.execution = {"shell.execute_reply": "2026"}
    notebook.cells[3].outputs[0].data[VIEW] = {"model_id": "random"}
    notebook.cells[3].execution_count = 17
    once = tool.canonical(notebook)
    assert tool.dumps(tool.canonical(once)) == tool.dumps(once)
    text = tool.dumps(once)
    assert not any(
        word in text for word in ("widget", "other", "3.11.7", "execute_reply", "random")
    )
    assert [cell.execution_count for cell in once.cells[1:]] == [1, 2, 3, 4]
    assert once.cells[0].id and "image/png" in text


@pytest.mark.parametrize(
    "tags, folded",
    [
        ([], None),
        (["hide-input"], {"source_hidden": True}),
        (["hide-cell"], {"source_hidden": True, "outputs_hidden": True}),
        (["remove-cell"], None),
    ],
)
def test_a_cell_is_folded_as_its_tags_say(tags, folded):
    notebook = read(MINI)
    notebook.cells[2].metadata = nbformat.from_dict(
        {"tags": tags, "jupyter": {"source_hidden": True, "outputs_hidden": False}}
    )
    assert tool.canonical(notebook).cells[2].metadata.get("jupyter") == folded
