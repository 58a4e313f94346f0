"""Fixtures of the book's tests: a small book to build and break, the real pages, and Chromium
without a network.
"""

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
MINI = Path(__file__).parent / "mini"
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess:
    """Build the book in ``folder`` as ``make book`` does, with no address of a repository unless
    given.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NATCOMPANION_")}
    command = [sys.executable, str(ROOT / "tools" / "build.py"), str(folder)]
    return subprocess.run(
        command, check=False, env={**clean, **environment}, capture_output=True, text=True
    )


@pytest.fixture(scope="session")
def build_book() -> Callable[..., subprocess.CompletedProcess]:
    """Function ``build(folder, **environment)``."""
    return build


def copy_book(folder: Path) -> Path:
    """Copy the small book, with the real configuration, extensions and style, into ``folder``."""
    shutil.copytree(MINI, folder)
    shutil.copy(ROOT / "_config.yml", folder)
    for name in ("_ext", "_static"):
        shutil.copytree(ROOT / "book" / name, folder / "book" / name)
    shutil.copytree(ROOT / "book" / "ledger", folder / "book" / "ledger")
    return folder


@pytest.fixture
def mini_book(tmp_path: Path) -> Path:
    """Return a fresh copy of the small book, not built."""
    return copy_book(tmp_path / "copy")


@pytest.fixture(scope="session")
def mini_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the pages of the small book, built once."""
    folder = copy_book(tmp_path_factory.mktemp("mini") / "copy")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "_build" / "html"


@pytest.fixture(scope="session")
def site() -> Path:
    """Return the pages of the book, which must be newer than their sources."""
    complete = ROOT / "_build" / ".complete"
    if not complete.exists():
        pytest.fail("no complete book in _build/html: run 'make book' first")
    sources = [ROOT / "_config.yml", ROOT / "_toc.yml", *(ROOT / "natcompanion").rglob("*.py")]
    sources += [
        file for file in (ROOT / "book").rglob("*") if file.is_file() and "vendor" not in file.parts
    ]
    newer = [
        file.relative_to(ROOT)
        for file in sources
        if file.stat().st_mtime > complete.stat().st_mtime
    ]
    newer = [file for file in newer if not {"__pycache__", ".ipynb_checkpoints"} & set(file.parts)]
    if newer:
        pytest.fail(f"the book is older than {newer[0]}: run 'make book' first")
    return ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium once. There is no skip: pages that nobody opened are not tested."""
    spec = spec_from_file_location("browser_tool", ROOT / "tools" / "browser.py")
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    program = tool.program()
    if program is None:
        pytest.fail("no browser: type make install, which finds Chromium, gets it or says how")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield chromium
        chromium.close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def copyfile(self, *files: object) -> None:
        """Send a file, unless the browser left the page meanwhile."""
        with contextlib.suppress(ConnectionError):
            super().copyfile(*files)


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Path], str]]:
    """Function ``serve(folder)``: the address of a local server of that folder."""
    servers = []

    def start(folder: Path) -> str:
        handler = functools.partial(Quiet, directory=str(folder))
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
