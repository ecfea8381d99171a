"""Sockets: in a memory directory, for processes of the same account; and of TCP."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

_MOST_BYTES = 100
"""Linux has room for 107 in an address; some are left for the name of a temporary file."""
_ANSWER_S = 1.0


def has_sockets() -> bool:
    """Return whether the system has what the others here need: Linux does."""
    return sys.platform == "linux"


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Process id and account of the process at the other end, as the kernel knows them."""
    size = struct.calcsize("3i")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


def is_ours(uid: int) -> bool:
    """Return whether an account may talk to this process: its own, or root."""
    return uid in {os.getuid(), 0}


def listen_at(path: Path, backlog: int) -> socket.socket:
    """A socket that listens at a path, for this account alone; what a dead process left is removed.

    Raises:
        OSError: there is no such directory, its file system has no sockets, or a process that lives
            listens there (EADDRINUSE).
    """
    if _has_listener(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _has_listener(path: Path) -> bool:
    try:
        with contextlib.closing(connect_socket(path, _ANSWER_S)) as connection:
            pid, _ = peer_of(connection)
    except (TimeoutError, BlockingIOError):  # it accepts too few
        return True
    except OSError:
        return False
    if pid <= 0:  # of another container
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:  # a process that it forked has the socket still
        return False
    except PermissionError:
        return True
    return True


def listen_tcp(host: str, port: int) -> socket.socket:
    """A socket that listens at an address of this machine; port 0 takes one that is free.

    What it accepts sends each write at once. asyncio sees to that only for a socket that says it is
    of TCP, which those of `socket.create_server` do not; the second write of an answer would wait
    40 ms for the peer to acknowledge the first.

    Raises:
        OSError: it is no address of this machine, or the port is in use.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, port), family=family)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address or a name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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
        with socket_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """The address of a path: one that is too long leads through the directory's descriptor."""
    if len(os.fsencode(path)) <= _MOST_BYTES:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
