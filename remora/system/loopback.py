"""Connections over loopback TCP, for processes of one account.

Any account of a machine can connect to a port of its loopback. So the file in which a listener says
its port also has a secret of 32 random bytes, new for each listener, and is for its account alone.
Each end proves that it knows the secret before the other one takes or sends anything else: an HMAC
of who speaks, the port, and a nonce of each end. So somebody who took the port of a process that
died learns nothing but a nonce, and somebody in between cannot pass proofs on from another port.

A listener takes few bytes, for a short time, from few connections that have proved nothing.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path

import msgspec

from remora.errors import OwnerUnreachable
from remora.system.files import HAS_MODES, KEEPS_PRIVATE, PRIVATE_FLAGS, account, replace

__all__ = ["MOST_UNPROVED", "Gate", "Port", "Unproved", "connect", "listen"]

MOST_UNPROVED = 64
"""Connections that have proved nothing, and are kept; one more ends the oldest."""
_HOST = "127.0.0.1"
_MAGIC = b"remora1\0"
_NONCE = 32
_PROOF = 32
_CHALLENGE = len(_MAGIC) + _NONCE
_ANSWER = _NONCE + _PROOF
_MOST_BYTES = 4_096


class Unproved(TimeoutError):
    """The listener did not prove in time that it wrote the file: it hangs, or is another one."""


class Port(msgspec.Struct, frozen=True):
    """The content of the file.

    Attributes:
        port: where the process listens.
        pid: of the process.
        secret: 32 random bytes, as hexadecimal digits.
    """

    port: int
    pid: int
    secret: str

    def prove(self, who: bytes, nonces: bytes) -> bytes:
        """The proof of one end; `nonces` are the listener's, and the other one's."""
        said = b"remora local %b %d\0%b" % (who, self.port, nonces)
        return hmac.digest(bytes.fromhex(self.secret), said, "sha256")


_decode = msgspec.json.Decoder(Port).decode


def listen(path: Path, backlog: int) -> tuple[socket.socket, Port]:
    """Listen, and say in a file where; a file that is there is replaced.

    Raises:
        OSError: the file cannot be written, or no port is free.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # on Windows others could take the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        listener.bind((_HOST, 0))
        listener.listen(backlog)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = Port(listener.getsockname()[1], os.getpid(), secrets.token_bytes(32).hex())
        _write(path, port)
    except BaseException:
        listener.close()
        raise
    return listener, port


def _write(path: Path, port: Port) -> None:
    """Write the file into a directory of this account, from which it inherits who may read it.

    A file that is moved keeps its access list, also on Windows.

    Raises:
        OSError: others could read it, or it cannot be written.
    """
    if not KEEPS_PRIVATE:
        raise PermissionError(
            errno.EPERM,
            "only Python 3.11.10, 3.12.4 or newer keeps it from other accounts",
            str(path),
        )
    for left in path.parent.glob(f"{path.name}.*"):  # of a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    private = Path(tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))  # with mode 0700
    try:
        staging = private / path.name
        descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PRIVATE_FLAGS, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(port))
        replace(staging, path)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _read(path: Path) -> Port:
    """The content of the file.

    Raises:
        OSError: there is none, or it cannot be read.
        OwnerUnreachable: other accounts wrote it, or could.
    """
    descriptor = os.open(path, os.O_RDONLY | PRIVATE_FLAGS)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        others = HAS_MODES and stat.S_IMODE(found.st_mode) & 0o077
        if found.st_uid not in {account(), 0} or others or not stat.S_ISREG(found.st_mode):
            raise OwnerUnreachable(
                f"{path} belongs to another account, or others can read it: remove it, and start "
                "the process that has the memory open again"
            )
        try:
            return _decode(file.read(_MOST_BYTES))
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise ConnectionRefusedError(f"{path} names no port") from e


class Gate:
    """The listener's side of a new connection, which has proved nothing; never blocks.

    Args:
        port: see `listen`.
        connection: to be read when there is something.

    Raises:
        OSError: it has ended.
    """

    __slots__ = ("_connection", "_nonce", "_port", "_read")

    def __init__(self, port: Port, connection: socket.socket) -> None:
        self._port = port
        self._connection = connection
        self._nonce = secrets.token_bytes(_NONCE)
        self._read = b""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        connection.send(_MAGIC + self._nonce)  # a new connection has room for it

    def is_passed(self) -> bool:
        """Read what has come; whether it is the proof.

        Raises:
            PermissionError: it is another one.
            OSError: the connection has ended.
        """
        data = self._connection.recv(_ANSWER - len(self._read))
        if not data:
            raise ConnectionResetError("the connection ended")
        self._read += data
        if len(self._read) < _ANSWER:
            return False
        nonces = self._nonce + self._read[:_NONCE]
        if not hmac.compare_digest(self._read[_NONCE:], self._port.prove(b"asks", nonces)):
            raise PermissionError("it does not know the secret")
        self._connection.send(self._port.prove(b"answers", nonces))
        return True


def connect(path: Path, timeout_s: float) -> tuple[socket.socket, int]:
    """A connection to the process that wrote a file, and the id of the process. Blocks.

    Args:
        path: of the file.
        timeout_s: of connecting and the proofs together, and of each call of the connection.

    Raises:
        FileNotFoundError, ConnectionRefusedError: nobody listens, or another process does.
        Unproved: not in time.
        OwnerUnreachable: the file is not this account's own.
        OSError: it cannot be reached.
    """
    until = time.monotonic() + timeout_s
    port = _read(path)
    connection = socket.create_connection((_HOST, port.port), timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = _receive(connection, _CHALLENGE, until)
        if not challenge.startswith(_MAGIC):
            raise ConnectionRefusedError(f"at the port of {path} listens something else")
        ours = secrets.token_bytes(_NONCE)
        nonces = challenge[len(_MAGIC) :] + ours
        connection.sendall(ours + port.prove(b"asks", nonces))
        if not hmac.compare_digest(
            _receive(connection, _PROOF, until), port.prove(b"answers", nonces)
        ):
            raise ConnectionRefusedError(f"at the port of {path} listens something else")
        connection.settimeout(timeout_s)
    except TimeoutError as e:
        connection.close()
        raise Unproved(f"what listens at the port of {path} does not answer") from e
    except BaseException:
        connection.close()
        raise
    return connection, port.pid


def _receive(connection: socket.socket, count: int, until: float) -> bytes:
    data = b""
    while len(data) < count:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        some = connection.recv(count - len(data))
        if not some:
            raise ConnectionResetError("the connection ended before the proof")
        data += some
    return data
