"""A lock on a folder, held by one process at a time, on any file system."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]  # files are not locked there

ABANDONED = 60.0
"""Seconds after which a lock file of another machine is taken to be left behind."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the system frees it when the process ends, however it ends.

    Where the file system knows no such locks (some network folders, Windows), a lock file is made
    instead; one whose process is gone is removed.
    """
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _flock(handle):
            yield
        else:
            with _lock_file(folder / ".lock.held"):
                yield
    finally:
        os.close(handle)


def _flock(handle: int) -> bool:
    """Wait for the system's lock; return False if this file system has none."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


@contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            break
        except FileExistsError:
            if _abandoned(path):
                path.unlink(missing_ok=True)
            time.sleep(0.01)
    try:
        os.write(handle, f"{socket.gethostname()} {os.getpid()}".encode())
        os.close(handle)
        yield
    finally:
        path.unlink(missing_ok=True)


def _abandoned(path: Path) -> bool:
    """Return whether the process that made a lock file is gone, or too old to tell."""
    try:
        age = time.time() - path.stat().st_mtime
        host, _, process = path.read_text(encoding="utf-8").partition(" ")
        if fcntl and host == socket.gethostname() and process:
            os.kill(int(process), 0)
            return False
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        return isinstance(error, ProcessLookupError)
    return age > ABANDONED
