"""Shared test helpers: exact cases, an empty home, and no network beyond this machine."""

import errno
import ipaddress
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).parent / "cases"


def load_cases(paper: str) -> dict[str, dict]:
    """Return the cases of one paper by their id."""
    return {case["id"]: case for case in json.loads((CASES / f"{paper}.json").read_text())["cases"]}


@pytest.fixture(scope="session")
def cases():
    """Function ``cases(paper)``: the exact values for that paper, by id."""
    return load_cases


@pytest.fixture(autouse=True)
def same_start():
    """Run each test from the same random state, whichever ran before it, and on one thread, or as
    many as the environment says: workers share the cores.
    """
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


# ---- Every test runs as on a new machine without a network, and so do the programs it starts


@pytest.fixture(scope="session", autouse=True)
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder as home, and empty caches in it."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patch.setenv("NATCOMPANION_CACHE", str(home / "cache" / "natcompanion"))
        patch.delenv("NATCOMPANION_DATA", raising=False)
        yield home


class NetworkRefused(OSError):
    """A test tried to reach another machine."""


class Network:
    """What asks Python for a connection, a lookup or a datagram beyond loopback is refused."""

    EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo")
    LOOKUPS = ("socket.gethostbyname", "socket.gethostbyaddr")

    def __init__(self) -> None:
        self.on, self.refused = False, []

    def __call__(self, event: str, arguments: tuple) -> None:
        """Refuse, as an audit hook: Python calls it before anything is sent."""
        if not self.on or event not in self.EVENTS + self.LOOKUPS:
            return
        if event in ("socket.getaddrinfo", *self.LOOKUPS):
            host = arguments[0]
        else:
            address = arguments[1]
            host = address[0] if isinstance(address, tuple) else None
        if not here(host):
            self.refused.append(f"{event} {host}")
            raise NetworkRefused(errno.ENETUNREACH, f"tests reach no other machine: {host}")


def here(host: object) -> bool:
    """Return whether an address is of this machine: none, a path, or a number in loopback."""
    name = host.decode() if isinstance(host, bytes) else host
    if not isinstance(name, str) or name in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


NETWORK = Network()
sys.addaudithook(NETWORK)


@pytest.fixture(autouse=True)
def network() -> Iterator[Network]:
    """Refuse sockets beyond loopback; a test whose code swallowed a refusal fails as well."""
    NETWORK.refused.clear()
    NETWORK.on = True
    yield NETWORK
    NETWORK.on = False
    assert not NETWORK.refused, "the test tried to reach another machine"
