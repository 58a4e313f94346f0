"""Build the book in a folder, from nothing, and fail on every warning and every failing cell.

A second run must fail as the first did, so nothing is reused: an unchanged page would not warn
again. Notebooks are executed first, as many at once as there are processors; the pages take their
outputs from the cache that this fills. One that fails is not in it: the build of its page runs it
again, and says where it fails.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode
from notebooks import chapters, environment, run

MAIN = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"
CORES = os.cpu_count() or 1
AT_ONCE = min(CORES, 4)  # a chapter takes up to 1 GB


def executed(path: Path) -> NotebookNode | None:
    """Run a notebook and return it with its outputs; None if a cell fails."""
    try:
        return run(path, widgets=True)
    except (CellExecutionError, CellTimeoutError):
        return None


def execute(folder: Path) -> None:
    """Run the notebooks of a book, the longest first, and keep their outputs for its pages."""
    paths = sorted(chapters(folder / "book"), key=lambda path: -path.stat().st_size)
    cache = get_cache(folder / "_build" / ".jupyter_cache")
    threads = ("OMP_NUM_THREADS", str(CORES // AT_ONCE))
    with ProcessPoolExecutor(AT_ONCE, initializer=os.environ.setdefault, initargs=threads) as pool:
        for path, notebook in zip(paths, pool.map(executed, paths), strict=True):
            print(f"{path.name}: {'executed' if notebook else 'FAILED'}", flush=True)
            if notebook:
                bundle = CacheBundleIn(notebook, str(path))
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def build(folder: Path) -> int:
    """Build the book in ``folder`` into its ``_build/html`` and return the exit status."""
    output = folder / "_build"
    for old in ("html", ".doctrees", "jupyter_execute", ".jupyter_cache"):
        shutil.rmtree(output / old, ignore_errors=True)
    (output / ".complete").unlink(missing_ok=True)
    command = [sys.executable, "-c", MAIN, "build", str(folder), "--all", "-W", "--keep-going"]
    execute(folder)
    with tempfile.TemporaryDirectory() as profile:
        status = subprocess.run(
            command, check=False, cwd=folder, env=environment(Path(profile))
        ).returncode
    if status == 0:
        for source_map in (output / "html" / "_static").rglob("*.map"):
            source_map.unlink()
        (output / ".complete").write_text("")
        print(f"\nThe book: {output / 'html' / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]).resolve()))
