"""The cache folder and the downloads into it: whole, checked files only."""

import contextlib
import functools
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pooch
import requests
from tqdm import tqdm

TIMEOUT = (10, 60)  # seconds to connect, and between two packets
CHUNK = 1 << 12  # bytes; what came of an unfinished chunk is lost when a download breaks off
QUIET = 60  # seconds without a write after which an unfinished file counts as abandoned


class DataUnavailable(RuntimeError):
    """A data set is neither in a local folder nor in the cache and could not be downloaded.

    Examples
    --------
    >>> from natcompanion.data import mnist
    >>> mnist(full=True, folder="nowhere")
    Traceback (most recent call last):
    natcompanion.data._store.DataUnavailable: ...
    """


def cache_folder() -> Path:
    """Return the cache folder: ``NATCOMPANION_CACHE``, or else the system's place for a user's
    caches.
    """
    return Path(os.environ.get("NATCOMPANION_CACHE") or pooch.os_cache("natcompanion")).expanduser()


def write_whole(path: Path, write: Callable) -> None:
    """Write a file at once: ``write(file)`` fills a temporary file, which then takes the name."""
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


def fetch(name: str, md5: str, mirrors: Sequence[str], subfolder: str) -> Path:
    """Return the path of a file in the cache; download it from the first mirror that works if
    needed.

    A file in the cache is used only if its MD5 is right. A download that breaks off stays beside
    the file under a name that ends in ``.part``; the next call goes on from there, if the server
    can. The file gets its name only when it is whole and its MD5 is right. A download with a wrong
    MD5 is thrown away.

    Parameters
    ----------
    name : str
        The file name, the same on each mirror.
    md5 : str
        Hash of the whole file.
    mirrors : sequence of str
        Addresses that ``name`` is appended to.
    subfolder : str
        Where in the cache folder.

    Raises
    ------
    DataUnavailable
        If no mirror gives the right file; the message has the reason for each.
    """
    final = cache_folder() / subfolder / name
    reasons = []
    for mirror in mirrors:
        resuming = any(_parts(final))
        try:
            try:
                return _retrieve(mirror + name, md5, final)
            except (
                ValueError,
                requests.HTTPError,
            ):  # perhaps the old part was bad: once more from the start
                if not resuming:
                    raise
                return _retrieve(mirror + name, md5, final)
        except (OSError, ValueError) as error:
            reasons.append(f"{mirror}{name}: {_reason(error)}")
    raise DataUnavailable("\n".join(reasons))


def _reason(error: Exception) -> str:
    """Return the cause without the wrapping that urllib3 puts around it."""
    cause = getattr(error.args[0], "reason", error) if error.args else error
    return " ".join(str(cause).split()) or type(error).__name__


def _retrieve(url: str, md5: str, final: Path) -> Path:
    downloader = functools.partial(_download, final=final)
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # pooch would announce each download on stderr
    try:
        pooch.retrieve(
            url, known_hash=f"md5:{md5}", fname=final.name, path=final.parent, downloader=downloader
        )
    finally:
        logger.setLevel(level)
    return final


def _download(url: str, output: str, _pooch: object, *, final: Path) -> None:
    """Downloader for pooch that goes on with the unfinished file of an earlier try."""
    with _unfinished(final) as part:
        start = part.stat().st_size
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                os.truncate(part, 0)
            answer.raise_for_status()
            if answer.status_code != requests.codes.partial_content:
                start = 0
            _save(answer, part, start)
        os.replace(part, output)


def _save(answer: requests.Response, part: Path, start: int) -> None:
    size = int(answer.headers.get("Content-Length", 0))
    total = start + size if size else None
    bar = tqdm(
        desc=answer.url.rsplit("/", 1)[-1],
        initial=start,
        total=total,
        unit="B",
        unit_scale=True,
        leave=False,
    )
    with bar, open(part, "ab" if start else "wb", buffering=0) as file:
        for chunk in answer.iter_content(CHUNK):
            file.write(chunk)
            bar.update(len(chunk))


@contextlib.contextmanager
def _unfinished(final: Path) -> Iterator[Path]:
    """Give an unfinished file that no other process writes to: an abandoned one or a new one."""
    mine = final.with_name(f"{final.name}.{uuid.uuid4().hex}.part")
    for old in _parts(final):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            os.replace(old, mine)
            os.utime(mine)
            break
    mine.touch()
    try:
        yield mine
    except BaseException:
        if mine.stat().st_size:
            os.utime(mine, (0, 0))  # free for the next try
        else:
            mine.unlink()
        raise


def _parts(final: Path) -> Iterator[Path]:
    """Unfinished files that nobody has written to for a while."""
    for part in sorted(final.parent.glob(f"{final.name}.*.part")):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime > QUIET:
                yield part
