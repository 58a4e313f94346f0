"""Find Chromium for the tests, or get it: the distribution's package, or else Playwright's own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DOWNLOADED = Path(sys.prefix) / "browsers"
PATTERNS = ("chromium-*/chrome-linux*/chrome", "chromium-*/chrome-mac*/*.app/Contents/MacOS/*")


def program() -> str | None:
    """Return the path of a Chromium that starts, or None."""
    found = [path for name in PROGRAMS if (path := shutil.which(name))]
    found += [str(path) for pattern in PATTERNS for path in sorted(DOWNLOADED.glob(pattern))]
    return next(filter(starts, found), None)


def starts(path: str) -> bool:
    """Return whether a program runs here: a download may lack libraries of the system."""
    return quiet([path, "--version"])


def quiet(command: list[str], **environment: str) -> bool:
    """Run a command without its output and return whether it succeeded."""
    try:
        done = subprocess.run(
            command,
            check=False,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError:
        return False
    return done.returncode == 0


def from_distribution() -> None:
    """Install the distribution's package where that is allowed without a password."""
    root = os.geteuid() == 0
    if not shutil.which("apt-get") or not (root or quiet(["sudo", "-n", "true"])):
        return
    apt = ["sudo", "-n"] * (not root) + ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q"]
    install = [*apt, "install", "-y", "--no-install-recommends"]
    quiet([*apt, "update"])
    quiet([*install, "chromium"]) or quiet([*install, "chromium-browser"])


def from_playwright() -> None:
    """Let Playwright download its build into the environment."""
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    quiet(command, PLAYWRIGHT_BROWSERS_PATH=str(DOWNLOADED))


def main() -> int:
    """Get a browser if there is none; print one line, and return 1 if it cannot be had."""
    for get in (lambda: None, from_distribution, from_playwright):
        get()
        if path := program():
            print(f"browser: {path}")
            return 0
    print(
        "no Chromium, and none could be installed; type: sudo apt-get install chromium "
        f"(or: sudo {sys.executable} -m playwright install-deps chromium), then make install",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
