"""A JupyterLab of its own for a test: its folders, its settings, and whether a request stays
here.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BINDER = Path(__file__).resolve().parents[2] / "binder"
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}
"""No messages at all; every cell is in the page, not only those on the screen."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def running(root: Path) -> Iterator[str]:
    """Run a JupyterLab as Binder starts it, in the folder ``root / "work"``; yield its address."""
    for name in ("work", "config", "data", "runtime", "settings"):
        (root / name).mkdir(exist_ok=True)
    (root / "settings" / "overrides.json").write_text(
        json.dumps(json.loads((BINDER / "overrides.json").read_text()) | SETTINGS)
    )
    folders = {name: str(root / name) for name in ("config", "data", "runtime")}
    environment = os.environ | {
        f"JUPYTER_{name.upper()}_DIR": folder for name, folder in folders.items()
    }
    environment |= {"HOME": str(root), "JUPYTER_NO_CONFIG": "1"}
    port = free_port()
    options = [
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--port-retries=0",
        "--IdentityProvider.token=",
        f"--ServerApp.root_dir={root / 'work'}",
        f"--LabApp.app_settings_dir={root / 'settings'}",
        "--LabApp.extension_manager=readonly",
        "--LabApp.news_url=",
        "--ServerApp.terminals_enabled=False",
    ]
    with (root / "log").open("w") as log:
        server = subprocess.Popen(
            [str(BINDER / "start"), sys.executable, "-m", "jupyterlab", *options],
            env=environment,
            stdout=log,
            stderr=log,
        )
        try:
            yield wait_for(f"http://127.0.0.1:{port}", server, root / "log")
        finally:
            server.terminate()
            server.wait(60)


def wait_for(address: str, server: subprocess.Popen, log: Path) -> str:
    """Return the address once the server answers."""
    for _ in range(1800):
        assert server.poll() is None, f"JupyterLab ended: {log.read_text()[-2000:]}"
        try:
            urllib.request.urlopen(address + "/api", timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return address
    raise AssertionError(f"JupyterLab did not answer in three minutes: {log.read_text()[-2000:]}")


def local(url: str) -> bool:
    """Return whether a request stays on this machine."""
    return re.match(r"(data|blob|about):|(http|ws)://(127\.0\.0\.1|localhost)[:/]", url) is not None
