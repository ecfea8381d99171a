"""Sockets: in a memory directory, for processes of the same account; and of TCP.

Where the system says who is at the other end of a unix socket, that is the socket in the directory.
Elsewhere, and where a path is too long for one, a file stands in its place, see
`remora.system.loopback`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from remora.errors import OwnerUnreachable
from remora.system import loopback
from remora.system.loopback import MOST_UNPROVED, Gate, Unproved

__all__ = [
    "MOST_UNPROVED",
    "Gate",
    "LocalListener",
    "Unproved",
    "connect_peer",
    "connect_socket",
    "end_unacknowledged",
    "is_loopback",
    "is_readable",
    "keep_alive",
    "listen_tcp",
]

_ANSWER_S = 1.0
_Poll = getattr(selectors, "PollSelector", selectors.SelectSelector)  # Windows has no poll

# -- sockets of unix -------------------------------------------------------------------------------

if sys.platform == "linux":
    _MOST_BYTES = 100
    """Linux has room for 107 in an address; some are left for the name of a temporary file."""

    def _fits(path: Path) -> bool:
        """Return whether a unix socket can be at a path."""
        del path
        return True

    def _peer_of(connection: socket.socket) -> tuple[int, int]:
        """Process id and account of the process at the other end, as the kernel knows them."""
        size = struct.calcsize("3i")
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, _ = struct.unpack("3i", data)
        return pid, uid

    @contextlib.contextmanager
    def _address_of(path: Path) -> Iterator[str]:
        """The address of a path: one that is too long leads through the directory's descriptor."""
        if len(os.fsencode(path)) <= _MOST_BYTES:
            yield str(path)
            return
        descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/{path.name}"
        finally:
            os.close(descriptor)

elif sys.platform == "darwin":
    _MOST_BYTES = 103
    _SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2  # of <sys/un.h>
    _xucred = struct.Struct("IIh2x16I")

    def _fits(path: Path) -> bool:
        """Return whether a unix socket can be at a path."""
        return len(os.fsencode(path)) <= _MOST_BYTES

    def _peer_of(connection: socket.socket) -> tuple[int, int]:
        """Process id and account of the process at the other end, as the kernel knows them."""
        data = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _xucred.size)
        uid = struct.unpack_from("I", data, 4)[0]
        return connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID), uid

    @contextlib.contextmanager
    def _address_of(path: Path) -> Iterator[str]:
        """The address of a path."""
        yield str(path)


if sys.platform == "linux" or sys.platform == "darwin":  # for type checkers

    def _is_unix(path: Path) -> bool:
        """Return whether there is a unix socket at a path, or nothing, and one can be made."""
        try:
            return stat.S_ISSOCK(path.lstat().st_mode)
        except FileNotFoundError:
            return _fits(path)

    def _is_ours(uid: int) -> bool:
        """Return whether an account may talk to this process: its own, or root."""
        return uid in {os.getuid(), 0}

    def _lives(pid: int) -> bool:
        """Return whether a process lives that listened: one that it forked may still do so."""
        if pid <= 0:  # of another container
            return True
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    def _check_unix(connection: socket.socket) -> None:
        uid = _peer_of(connection)[1]
        if not _is_ours(uid):
            raise PermissionError(f"it is of the account {uid}")

    def _listen_unix(path: Path, backlog: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address_of(path) as address:
                listener.bind(address)
            path.chmod(0o600)
            listener.listen(backlog)
        except BaseException:
            listener.close()
            raise
        return listener

    def _connect_unix(path: Path, timeout_s: float) -> tuple[socket.socket, int]:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            with _address_of(path) as address:
                connection.connect(address)
            pid, uid = _peer_of(connection)
            if not _is_ours(uid):
                raise OwnerUnreachable(f"the process at {path} belongs to another account ({uid})")
        except BaseException:
            connection.close()
            raise
        return connection, pid

else:

    def _is_unix(path: Path) -> bool:
        """Return whether there is a unix socket at a path: the system has none that would do."""
        del path
        return False

    def _lives(pid: int) -> bool:
        """Return whether a process lives that has proved that it does."""
        del pid
        return True

    def _check_unix(connection: socket.socket) -> None:
        raise NotImplementedError

    def _listen_unix(path: Path, backlog: int) -> socket.socket:
        raise NotImplementedError

    def _connect_unix(path: Path, timeout_s: float) -> tuple[socket.socket, int]:
        raise NotImplementedError


# -- connections of processes of one account -------------------------------------------------------


class LocalListener:
    """Listens at a path, for processes of this account; what a dead process left is removed.

    Args:
        path: of the socket, or of the file that stands in its place.
        backlog: how many connections wait to be accepted.

    Attributes:
        socket: is readable when a process connects.

    Raises:
        OSError: there is no such directory, its file system has no sockets, or a process that lives
            listens there (EADDRINUSE).
    """

    def __init__(self, path: Path, backlog: int) -> None:
        self._path = path
        if _has_listener(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), str(path))
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._port: loopback.Port | None = None
        if _is_unix(path):
            self.socket = _listen_unix(path, backlog)
        else:
            self.socket, self._port = loopback.listen(path, backlog)
        self._file = path.lstat().st_ino
        self.socket.setblocking(False)

    def accept(self) -> tuple[socket.socket, Gate | None]:
        """A new connection, and what it has to pass before anything else is read or sent.

        Raises:
            PermissionError: another account connected.
            OSError: there is none, or there are too many files.
        """
        connection, _ = self.socket.accept()
        try:
            connection.setblocking(False)
            if self._port is not None:
                return connection, Gate(self._port, connection)
            _check_unix(connection)
        except BaseException:
            connection.close()
            raise
        return connection, None

    def remove(self) -> None:
        """Remove the socket from its directory, if it is still this one."""
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._file:
                self._path.unlink()


def _has_listener(path: Path) -> bool:
    try:
        connection, pid = connect_peer(path, _ANSWER_S)
    except Unproved:  # it may be anybody's port by now
        return False
    except OwnerUnreachable:  # of another account
        return _is_unix(path)
    except (TimeoutError, BlockingIOError):  # it accepts too few
        return True
    except OSError:
        return False
    connection.close()
    return _lives(pid)


def connect_peer(path: Path, timeout_s: float) -> tuple[socket.socket, int]:
    """A connection to the process that listens at a path, and the id of the process. Blocks.

    Args:
        path: see `LocalListener`.
        timeout_s: of connecting, and of each call of the connection.

    Returns:
        The process' id is 0 if it is in a namespace that this process cannot see.

    Raises:
        FileNotFoundError, ConnectionRefusedError: nobody listens there.
        Unproved: what listens does not prove in time that it does so at the path.
        OwnerUnreachable: it is another account's process.
        OSError: it cannot be reached.
    """
    return (_connect_unix if _is_unix(path) else loopback.connect)(path, timeout_s)


def connect_socket(path: Path, timeout_s: float) -> socket.socket:
    """Return the connection of `connect_peer`."""
    return connect_peer(path, timeout_s)[0]


def is_readable(connection: socket.socket) -> bool:
    """Return whether something can be read, or the connection has ended."""
    with _Poll() as watched:
        watched.register(connection, selectors.EVENT_READ)
        return bool(watched.select(0.0))


# -- TCP -------------------------------------------------------------------------------------------


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


_KEEP_ALIVE = (
    # macOS has another name for the first one
    (getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None)), 10),
    (getattr(socket, "TCP_KEEPINTVL", None), 5),
    (getattr(socket, "TCP_KEEPCNT", None), 4),
)
_UNACKNOWLEDGED: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)


def keep_alive(connection: socket.socket) -> None:
    """Send at once, and notice within half a minute that the other machine is gone.

    Raises:
        OSError: the connection has ended.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def end_unacknowledged(connection: socket.socket, seconds: float) -> None:
    """Have the system end a connection whose peer does not take for so long what it is sent.

    Only Linux can; elsewhere the connection lasts as long as the system tries.
    """
    if _UNACKNOWLEDGED is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _UNACKNOWLEDGED, int(seconds * 1_000))
