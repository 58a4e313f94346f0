"""Build the book in a folder, from nothing, and fail on every warning and every failing cell.

A second run must fail as the first did, so nothing is reused: an unchanged page would not warn
again.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from notebooks import environment

MAIN = "import sys; from jupyter_book.cli.main import main; sys.exit(main())"


def build(folder: Path) -> int:
    """Build the book in ``folder`` into its ``_build/html`` and return the exit status."""
    output = folder / "_build"
    for old in ("html", ".doctrees", "jupyter_execute"):
        shutil.rmtree(output / old, ignore_errors=True)
    (output / ".complete").unlink(missing_ok=True)
    command = [sys.executable, "-c", MAIN, "build", str(folder), "--all", "-W", "--keep-going"]
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
