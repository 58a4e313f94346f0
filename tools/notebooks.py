"""Execute the chapters and store their outputs in canonical form, or compare a fresh run with the
stored outputs.

Canonical form: kernel ``python3``; no widget state and no widget views, whose identifiers are
random (the rendered book makes its own); stable cell ids; execution counts 1, 2, ...; printed text
in one piece; pictures kept.
"""

import argparse
import copy
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


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
            count += bool(cell.source.strip())
            cell.execution_count = count if cell.source.strip() else None
            cell.outputs = _outputs(cell.outputs, cell.execution_count)
    return notebook


def _outputs(outputs: list[NotebookNode], count: int | None) -> list[NotebookNode]:
    """Return the outputs of a cell without widget views, with neighbouring pieces of one stream
    joined.
    """
    kept: list[NotebookNode] = []
    for output in outputs:
        if "data" in output:
            output.data.pop(VIEW, None)
            output.metadata = NotebookNode()
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


def dumps(notebook: NotebookNode) -> str:
    """Return the text of a notebook as it stands in its file."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def execute(path: Path) -> bool:
    """Run one notebook, write it in canonical form, and return whether the file changed."""
    before = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(before, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        store_widget_state=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        after = dumps(canonical(client.execute(env=environment(Path(folder)))))
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


def regress(paths: list[Path], workers: int) -> int:
    """Compare a fresh run of each notebook with its stored outputs, by nbval; return the exit
    status.
    """
    if not paths:
        print("no notebooks")
        return 0
    options = [
        "--nbval",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "notebooks",
        "--nbval-kernel-startup-timeout",
        "300",
        "-n",
        str(min(workers, len(paths))),
        "--dist",
        "loadfile",
    ]
    command = [sys.executable, "-m", "pytest", *options, *map(str, paths)]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            command, check=False, cwd=ROOT, env=environment(Path(folder))
        ).returncode


KERNEL_OPTIONS = "c.HistoryManager.hist_file = ':memory:'\nc.IPKernelApp.log_level = 'ERROR'\n"
"""No history file, which one kernel could find locked by another; no notice that they talk over a
local port.
"""


def environment(folder: Path) -> dict[str, str]:
    """Return an environment whose kernels read ``KERNEL_OPTIONS``, written into this empty
    folder.
    """
    profile = folder / "profile_default"
    profile.mkdir()
    (profile / "ipython_kernel_config.py").write_text(KERNEL_OPTIONS)
    path = os.pathsep.join(filter(None, (str(ROOT / "tools"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "IPYTHONDIR": str(folder), "PYTHONPATH": path}


def pytest_collection_modifyitems(items: list) -> None:
    """Let nbval wait longer for the outputs of a cell: this file is its plugin. Its own 5 seconds
    fail on a busy machine.
    """
    for item in items:
        if hasattr(item, "output_timeout"):
            item.output_timeout = 120


def main() -> int:
    """Command line: notebooks to handle (default: every chapter)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument(
        "--regress", action="store_true", help="compare with the stored outputs and write nothing"
    )
    parser.add_argument("-n", "--workers", type=int, default=2, help="notebooks compared at once")
    options = parser.parse_args()
    paths = [path.resolve() for path in options.notebooks] or chapters()
    if options.regress:
        return regress(paths, options.workers)
    for path in paths:
        print(f"{path.name}: {'changed' if execute(path) else 'as before'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
