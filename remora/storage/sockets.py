"""Sockets in a memory directory, for processes of the same account."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["connect_socket", "has_sockets", "is_ours", "listen_at", "peer_of"]

_MOST_BYTES = 100
"""Linux has room for 107 in an address; some are left for the name of a temporary file."""


def has_sockets() -> bool:
    """Whether the system has what the others here need: Linux does."""
    return sys.platform == "linux"


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process id and account of the process at the other end, as the kernel knows them."""
    size = struct.calcsize("3i")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


def is_ours(uid: int) -> bool:
    """Whether an account may talk to this process: its own, or root."""
    return uid in {os.getuid(), 0}


def listen_at(path: Path, backlog: int) -> socket.socket:
    """A socket that listens at a path, for this account alone; a file that is there is removed.

    Raises:
        OSError: there is no such directory, or its file system has no sockets.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def connect_socket(path: Path, timeout_s: float) -> socket.socket:
    """A connection to the socket at a path.

    Args:
        path: of the socket.
        timeout_s: of connecting, and of each call of the connection.

    Raises:
        FileNotFoundError, ConnectionRefusedError: nobody listens there.
        OSError: it cannot be reached.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with _address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The address of a path: one that is too long leads through the directory's descriptor."""
    if len(os.fsencode(path)) <= _MOST_BYTES:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
