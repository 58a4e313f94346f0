"""Say which comparisons of the tests come within a factor of 3 of their bounds, and move with the
processor.

``python tools/margins.py`` runs the tests under several instruction sets with ``tests/margins.py``
as plugin; ``python tools/margins.py FOLDER`` reads what an earlier run left: one folder for each
setting.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from anywhere import EVERY, NUMERIC, ROOT, UNIT, environment

SETTINGS = ("native", "ATen default", "ATen AVX2", "MKL SSE4.2")
NEAR = 1 / 3
MOVES = 0.01
"""A value moves if it differs between settings by more than this part of its distance to the
bound: one that is the same everywhere is a property of the case, not of the processor."""

Place = tuple[str, str, int, str]


def measure(folder: Path) -> None:
    """Run the tests under every setting; each process leaves a file in the setting's folder."""
    for name in SETTINGS:
        (folder / name).mkdir()
        options = ["-p", "tests.margins", "-o", "enable_assertion_pass_hook=true", "-n", "2"]
        options += ["-q", "--margins", str(folder / name / "margins"), *UNIT]
        options += ["-k", f"{NUMERIC} and not nothing_is_left"]  # explanations keep objects alive
        environ = {**environment(EVERY[name]), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        subprocess.run(
            [sys.executable, "-m", "pytest", *options], check=False, cwd=ROOT, env=environ
        )


def read(folder: Path) -> dict[Place, dict[str, tuple[float, float]]]:
    """Return (value, bound) by place and setting."""
    found: dict[Place, dict[str, tuple[float, float]]] = {}
    for path in sorted(folder.glob("*/margins*")):
        for row in map(json.loads, path.read_text().splitlines()):
            place = (row["test"], row["kind"], row["line"], " ".join(row["text"].split()))
            found.setdefault(place, {})[path.parent.name] = (row["value"], row["bound"])
    return found


def near(seen: dict[str, tuple[float, float]]) -> bool:
    """Return whether some value comes within ``NEAR`` of its bound.

    Beyond the bound is the part of an assertion that was false, as a negative control may be.
    """
    return any(NEAR * bound < value <= bound for value, bound in seen.values())


def moves(seen: dict[str, tuple[float, float]]) -> bool:
    """Return whether the distance to the bound depends on the setting."""
    distances = [bound - value for value, bound in seen.values()]
    return max(distances) - min(distances) > MOVES * min(distances)


def main() -> int:
    """Print the comparisons that are near and move, nearest first."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        if len(sys.argv) == 1:
            measure(folder)
        found = read(folder)
    close = {place: seen for place, seen in found.items() if near(seen)}
    fragile = {place: seen for place, seen in close.items() if moves(seen)}
    ratios = {place: max(v / b for v, b in seen.values()) for place, seen in fragile.items()}
    for place in sorted(ratios, key=ratios.__getitem__, reverse=True):
        test, kind, line, text = place
        values = ", ".join(f"{name} {v:.3g} of {b:.3g}" for name, (v, b) in fragile[place].items())
        print(f"{ratios[place]:.2f} {test} line {line} {kind}: {text[:80]}\n     {values}")
    print(f"{len(found)} comparisons, {len(close)} within 3 of their bound, {len(fragile)} move")
    return 0


if __name__ == "__main__":
    sys.exit(main())
