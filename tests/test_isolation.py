"""Tests see a new machine: nothing at home, nothing in a cache, and no other machine."""

import dataclasses
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from natcompanion import data
from natcompanion.data import _sets
from natcompanion.data._store import cache_folder

ELSEWHERE = "192.0.2.1"  # an address that documentation may use, and nobody has


def datagram(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.sendto(b"x", address)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: socket.create_connection((ELSEWHERE, 80), timeout=1),
        lambda: socket.create_connection(("2001:db8::1", 80), timeout=1),
        lambda: socket.create_connection(("a-name.invalid", 80), timeout=1),
        lambda: socket.gethostbyname("a-name.invalid"),
        lambda: datagram(socket.AF_INET, (ELSEWHERE, 9)),
        lambda: urllib.request.urlopen(f"http://{ELSEWHERE}/", timeout=1),
    ],
    ids=["IPv4", "IPv6", "name", "lookup", "datagram", "page"],
)
def test_another_machine_is_refused(network, attempt):
    with pytest.raises(OSError, match="tests reach no other machine"):
        attempt()
    assert network.refused
    network.refused.clear()


def test_a_download_that_gives_up_in_words_is_seen_all_the_same(network, monkeypatch, tmp_path):
    monkeypatch.setenv("NATCOMPANION_CACHE", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    nowhere = dataclasses.replace(_sets.FASHION_MNIST, system="")  # Debian may have it
    monkeypatch.setattr(_sets, "FASHION_MNIST", nowhere)
    with pytest.raises(data.DataUnavailable):
        data.fashion_mnist(10)
    assert network.refused, "the library swallowed the refusal; the fixture noted it"
    network.refused.clear()


def greet(server):
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"hello")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.10"])
def test_this_machine_answers(host):
    with socket.create_server((host, 0)) as server:
        thread = threading.Thread(target=greet, args=(server,))
        thread.start()
        with socket.create_connection(server.getsockname()) as client:
            assert client.recv(5) == b"hello"
        thread.join()


def test_paths_are_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # short: such a name has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("a")
        server.listen()
        client.connect("a")


def test_home_and_cache_are_new_here_and_in_programs(empty_home):
    assert Path.home() == empty_home and cache_folder().is_relative_to(empty_home)
    program = "import pathlib; print(pathlib.Path.home())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(empty_home)
