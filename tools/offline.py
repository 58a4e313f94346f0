"""Run a command as on a machine without a network: loopback alone, and an empty home.

``python3 tools/offline.py COMMAND...`` needs ``unshare`` and the right to make a network namespace;
where it is not given, one line says so and the command runs with the network that there is.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
INSIDE = "--inside"


def raise_loopback() -> None:
    """Switch the loopback interface of this namespace on: a new one has it, but down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(s, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    if arguments[:1] == [INSIDE]:
        raise_loopback()
        os.execvp(arguments[1], arguments[1:])
    namespace = ["unshare", "--map-root-user", "--net"]
    again = [*namespace, sys.executable, os.path.abspath(__file__), INSIDE]
    allowed = (
        shutil.which("unshare") and subprocess.run([*again, "true"], check=False).returncode == 0
    )
    if not allowed:
        print(
            "offline: no network namespace is allowed here; the network stays on", file=sys.stderr
        )
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "HOME": home, "XDG_CACHE_HOME": f"{home}/cache"}
        command = [*again, *arguments] if allowed else arguments
        return subprocess.run(command, check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
