"""A machine of its own: a network namespace with two cables to this one, each of which may be cut.

Packets on a cable that is cut vanish: nothing is refused, and no connection ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

__all__ = ["NETWORK", "NO_NAMESPACES", "Cable", "OtherMachine", "other_machine"]

NO_NAMESPACES = "network namespaces need root, and the program ip"
NETWORK = "10.231.0.0/16"
_CABLES = 250


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _draw() -> int:
    """The number of a cable that this makes: of those which other processes have, none can be made
    again.
    """
    for number in range(_CABLES):
        with suppress(subprocess.CalledProcessError):
            _ip("link", "add", f"rm{number}", "type", "veth", "peer", "name", f"rm{number}p")
            return number
    raise LookupError(NO_NAMESPACES)


class Cable:
    """Between this machine (`here`) and the other one (`there`)."""

    def __init__(self, number: int, namespace: str) -> None:
        self._end, other = f"rm{number}", f"rm{number}p"
        self.here, self.there = (f"10.231.{number + 1}.{host}" for host in (1, 2))
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


class OtherMachine:
    """The namespace.

    Attributes:
        prefix: of a command that runs there.
        database: the cable to PostgreSQL.
        workers: the cable to workers.
    """

    def __init__(self, name: str, numbers: tuple[int, int]) -> None:
        self.prefix = ("ip", "netns", "exec", name)
        _ip(*self.prefix[1:], "ip", "link", "set", "lo", "up")
        self.database, self.workers = (Cable(number, name) for number in numbers)


@contextmanager
def other_machine() -> Iterator[OtherMachine]:
    """Such a machine; skips the test where there can be none."""
    import pytest  # noqa: PLC0415

    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip(NO_NAMESPACES)
    with ExitStack() as ends:
        numbers = []
        for _ in range(2):
            try:
                number = _draw()
            except LookupError:
                pytest.skip(NO_NAMESPACES)
            ends.callback(_remove, "link", "del", f"rm{number}")
            numbers.append(number)
        name = f"remora{numbers[0]}"
        _remove("netns", "del", name)  # of a process that was killed
        try:
            _ip("netns", "add", name)
        except subprocess.CalledProcessError:
            pytest.skip(NO_NAMESPACES)
        ends.callback(_remove, "netns", "del", name)
        yield OtherMachine(name, (numbers[0], numbers[1]))


def _remove(*arguments: str) -> None:
    with suppress(subprocess.CalledProcessError):
        _ip(*arguments)
