"""Makes a process on Linux one that has what a process on macOS has: Python imports it first.

macOS has no ``pidfd`` and no ``/proc``, names the peer of a socket in a way of its own, and its
``fsync`` leaves data in the drive. How often a file was synced with ``F_FULLFSYNC`` is counted in a
file, if `SYNCS` names one.
"""

from __future__ import annotations

import asyncio.unix_events  # noqa: F401  # it and others need what is removed
import fcntl
import os
import select
import signal
import socket
import struct
from typing import Any, NamedTuple

from tests.told import tell_remora

_FULL_SYNC = 51
_pidfd_open, _poll = os.pidfd_open, select.poll
_real_fcntl, _getsockopt = fcntl.fcntl, socket.socket.getsockopt
_counts = os.environ.get("SYNCS")


def _fcntl(descriptor: int, command: int, argument: Any = 0) -> Any:
    if command != _FULL_SYNC:
        return _real_fcntl(descriptor, command, argument)
    os.fsync(descriptor)
    if _counts:
        with open(_counts, "a", encoding="utf-8") as file:
            file.write(f"{os.readlink(f'/proc/self/fd/{descriptor}')}\n")
    return 0


def _peer(self: socket.socket, level: int, option: int, size: int = 0) -> Any:
    if level == 0 and self.family == socket.AF_UNIX:
        pid, uid, gid = struct.unpack("3i", _getsockopt(self, socket.SOL_SOCKET, 17, 12))
        return pid if option == 2 else struct.pack("IIh2x16I", 0, uid, 1, gid, *[0] * 15)
    return _getsockopt(self, level, option, size) if size else _getsockopt(self, level, option)


class _Event(NamedTuple):
    ident: int
    filter: int
    flags: int
    fflags: int


class _Queue:
    """Tells the end of one process."""

    _descriptor = -1

    def control(self, changes: list[_Event] | None, most: int, seconds: float = 0) -> list[str]:
        for one in changes or ():
            self._descriptor = _pidfd_open(one.ident)
        watched = _poll()
        watched.register(self._descriptor, select.POLLIN)
        return ["exit"] if most and watched.poll(seconds * 1_000) else []

    def close(self) -> None:
        os.close(self._descriptor)


_own: Any = fcntl
_own.fcntl, _own.F_FULLFSYNC = _fcntl, _FULL_SYNC
_own = socket.socket
_own.getsockopt = _peer
_own = select
_own.kqueue, _own.kevent = _Queue, _Event
_own.KQ_FILTER_PROC, _own.KQ_EV_ADD, _own.KQ_EV_ONESHOT, _own.KQ_NOTE_EXIT = -5, 1, 16, 1 << 31
_LACKING: dict[Any, str] = {
    os: "pidfd_open sched_getaffinity O_PATH",
    signal: "pidfd_send_signal",
    socket: "SO_PEERCRED TCP_KEEPIDLE TCP_USER_TIMEOUT",
}
for _where, _names in _LACKING.items():
    for _name in _names.split():
        delattr(_where, _name)
tell_remora(platform="darwin")
