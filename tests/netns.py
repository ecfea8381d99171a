"""A machine of its own: a network namespace with two cables to this one, each of which may be cut.

Packets on a cable that is cut vanish: nothing is refused, and no connection ends.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["NETWORK", "NO_NAMESPACES", "Cable", "OtherMachine", "other_machine"]

NO_NAMESPACES = "network namespaces need root, and the program ip"
NETWORK = "10.231.0.0/16"
_numbers = itertools.count(os.getpid() * 8 % 250)  # other processes run tests as well


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Cable:
    """Between this machine (`here`) and the other one (`there`)."""

    def __init__(self, namespace: str, number: int) -> None:
        self._end = f"rm{os.getpid() % 100_000}x{number}"
        self.here, self.there = (f"10.231.{number % 250 + 1}.{host}" for host in (1, 2))
        other = f"{self._end}p"
        _ip("link", "add", self._end, "type", "veth", "peer", "name", other)
        _ip("link", "set", other, "netns", namespace)
        _ip("addr", "add", f"{self.here}/24", "dev", self._end)
        _ip("link", "set", self._end, "up")
        inside = ("netns", "exec", namespace, "ip")
        _ip(*inside, "addr", "add", f"{self.there}/24", "dev", other)
        _ip(*inside, "link", "set", other, "up")
        self._namespace, self._other = namespace, other

    def cut(self) -> None:
        """From now on packets vanish."""
        _ip("netns", "exec", self._namespace, "ip", "link", "set", self._other, "down")

    def mend(self) -> None:
        """Packets arrive again."""
        _ip("netns", "exec", self._namespace, "ip", "link", "set", self._other, "up")

    def remove(self) -> None:
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._end)


class OtherMachine:
    """The namespace.

    Attributes:
        prefix: of a command that runs there.
        database: the cable to PostgreSQL.
        workers: the cable to workers.
    """

    def __init__(self, name: str) -> None:
        self.prefix = ("ip", "netns", "exec", name)
        _ip(*self.prefix[1:], "ip", "link", "set", "lo", "up")
        self.database, self.workers = (Cable(name, next(_numbers)) for _ in range(2))


@contextmanager
def other_machine() -> Iterator[OtherMachine]:
    """Such a machine; skips the test where there can be none."""
    import pytest  # noqa: PLC0415

    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip(NO_NAMESPACES)
    name = f"remora{os.getpid()}x{next(_numbers)}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip(NO_NAMESPACES)
    machine = None
    try:
        machine = OtherMachine(name)
        yield machine
    finally:
        if machine is not None:
            machine.database.remove()
            machine.workers.remove()
        _ip("netns", "del", name)
