"""Execute the chapters, write the numbers of their prose and the tables of the other pages, and
store all in canonical form.

``pytest --nbval book/`` compares a fresh run with what is stored. Canonical form: kernel
``python3``; no widget state and no widget views, whose identifiers are random (the rendered book
makes its own); stable cell ids; execution counts 1, 2, ...; printed text in one piece; pictures
kept; cells folded in JupyterLab as their tags fold them in the page.
"""

import argparse
import copy
import hashlib
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from natcompanion.chapters import pages, prose
from natcompanion.chapters.regression import VIEW, profile

ROOT = Path(__file__).resolve().parents[1]
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
FOLDED = {
    "hide-input": {"source_hidden": True},
    "hide-output": {"outputs_hidden": True},
    "hide-cell": {"source_hidden": True, "outputs_hidden": True},
}
"""What JupyterLab folds for a tag. Cells of ``remove-cell``, with live figures, stay open there."""


def chapters(folder: Path = ROOT / "book") -> list[Path]:
    """Return the notebooks of the book."""
    return sorted(path for path in folder.glob("*.ipynb"))


def canonical(notebook: NotebookNode) -> NotebookNode:
    """Return a copy of a notebook in canonical form. Applying it twice changes nothing more."""
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    kept = {
        key: value
        for key, value in notebook.metadata.items()
        if key not in ("widgets", "language_info", "toc")
    }
    notebook.metadata = NotebookNode(
        {**kept, "kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    )
    count = 0
    for index, cell in enumerate(notebook.cells):
        cell.source = "\n".join(line.rstrip() for line in cell.source.strip("\n").split("\n"))
        if not cell.get("id"):
            cell.id = hashlib.sha256(f"{index}:{cell.source}".encode()).hexdigest()[:8]
        for transient in ("execution", "collapsed", "jupyter", "scrolled"):
            cell.metadata.pop(transient, None)
        if cell.cell_type == "code":
            if folded := _folded(cell.metadata.get("tags", [])):
                cell.metadata.jupyter = folded
            count += bool(cell.source.strip())
            cell.execution_count = count if cell.source.strip() else None
            cell.outputs = _outputs(cell.outputs, cell.execution_count)
    return notebook


def _folded(tags: list[str]) -> NotebookNode:
    """Return what JupyterLab folds of a cell with these tags."""
    return NotebookNode({key: True for tag in tags for key in FOLDED.get(tag, ())})


def _outputs(outputs: list[NotebookNode], count: int | None) -> list[NotebookNode]:
    """Return the outputs of a cell without widget views, with neighbouring pieces of one stream
    joined.
    """
    kept: list[NotebookNode] = []
    for output in outputs:
        if "data" in output:
            output.data.pop(VIEW, None)
            output.metadata = _metadata(output.metadata)
            if not output.data:
                continue
        if output.output_type == "execute_result":
            output.execution_count = count
        if (
            kept
            and output.output_type == "stream"
            and kept[-1].output_type == "stream"
            and kept[-1].name == output.name
        ):
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def _metadata(metadata: NotebookNode) -> NotebookNode:
    """Return the metadata of an output with nothing but the width of its picture and the full
    values of its numbers.
    """
    kept = {"image/png": ("width",), "natcompanion": ("values",)}
    found = {
        owner: {key: metadata[owner][key] for key in keys if key in metadata[owner]}
        for owner, keys in kept.items()
        if owner in metadata
    }
    return NotebookNode({owner: values for owner, values in found.items() if values})


def dumps(notebook: NotebookNode) -> str:
    """Return the text of a notebook as it stands in its file."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def run(path: Path, widgets: bool = False) -> NotebookNode:
    """Return a notebook with the outputs of a fresh run and, if asked, its widgets' state."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        store_widget_state=widgets,
    )
    with tempfile.TemporaryDirectory() as folder:
        client.execute(env=environment(Path(folder)))
    return notebook


def execute(path: Path) -> bool:
    """Run one notebook, write it in canonical form, and return whether the file changed."""
    before = path.read_text(encoding="utf-8")
    notebook = run(path)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = prose.fill(path.stem, cell.source)
    after = dumps(canonical(notebook))
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


def environment(folder: Path) -> dict[str, str]:
    """Return an environment whose kernels have the options of the comparison, kept in this empty
    folder.
    """
    return {**os.environ, "IPYTHONDIR": str(profile(folder))}


def write(path: Path) -> bool:
    """Write the tables of one Markdown page, and return whether the file changed."""
    before = path.read_text(encoding="utf-8")
    after = pages.fill(before)
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


def main() -> int:
    """Command line: notebooks and pages to handle (default: every one)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args()
    everything = [*sorted((ROOT / "book").glob("*.md")), *chapters()]
    for path in [path.resolve() for path in options.paths] or everything:
        changed = write(path) if path.suffix == ".md" else execute(path)
        print(f"{path.name}: {'changed' if changed else 'as before'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
