"""The cache folder: whole files only, written under a temporary name and then moved into place."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pooch


class DataUnavailable(RuntimeError):
    """A data set is neither in a local folder nor in the cache and could not be downloaded."""


def cache_folder() -> Path:
    """Return the cache folder: ``NATCOMPANION_CACHE``, or else the user's cache folder of the operating system."""
    return Path(os.environ.get("NATCOMPANION_CACHE") or pooch.os_cache("natcompanion")).expanduser()


def write_whole(path: Path, write: Callable) -> None:
    """Write a file at once: ``write(file)`` fills a temporary file beside ``path``, which then takes its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
        try:
            write(file)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            file.close()
            os.unlink(file.name)
            raise
