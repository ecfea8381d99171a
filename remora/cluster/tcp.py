"""Connections between machines: TCP, TLS 1.3, and a proof of a shared secret by each end.

Each end draws a nonce. The worker proves first that it knows the secret, then the owner: an HMAC of
who speaks, both nonces, and the owner's certificate (as RFC 5929's tls-server-end-point). So no
authority has to sign certificates, and no name in them counts: somebody in between, with another
certificate, has nothing that either end accepts. Who cannot prove it learns a nonce, and no more.

An owner takes few bytes, for a short time, from few connections that have proved nothing; one more
ends the oldest of them. So who cannot prove it may hold as many open as they like, and keeps nobody
out who proves it at once.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from remora.cluster.machines import Address, Machines, digest_of
from remora.errors import ConfigError
from remora.logging import get_logger
from remora.runtime.meters import OutageLog
from remora.system.forks import give_up_in_children, keep_in_children
from remora.system.sockets import keep_alive

_logger = get_logger(__name__)
_MAGIC = b"remora1\0"
_NONCE = 32
_PROOF = 32
_CHALLENGE = len(_MAGIC) + _NONCE
_ANSWER = _NONCE + _PROOF
_YES, _NO = b"\1", b"\0"
_PROVE_S = 5.0
_CONNECT_S = 3.0
_MOST_UNPROVED = 64
_BACKLOG = 128


def _prove(secret: bytes, who: bytes, nonces: bytes, certificate: bytes) -> bytes:
    return hmac.digest(secret, b"remora " + who + b"\0" + nonces + certificate, "sha256")


class TcpListener:
    """The owner's side: a listening socket, and who may come in.

    Args:
        machines: what is configured; `listen` is set.

    Attributes:
        address: what workers connect to.

    Raises:
        ConfigError: it cannot listen there, or a file cannot be used.
    """

    def __init__(self, machines: Machines) -> None:
        assert machines.listen is not None
        self._secret = machines.secret
        self._context, self._certificate = machines.make_context()
        self._unproved: dict[socket.socket, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = OutageLog(
            _logger,
            "worker_refused",
            ended="workers_accepted",
            monotonic=time.monotonic,
            level="warning",
        )
        listen = machines.listen
        try:
            family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
            self._socket = socket.create_server((listen.host, listen.port), family=family)
        except OSError as e:
            raise ConfigError(
                f"cluster.listen: {listen} cannot be listened on ({e.strerror or e}): name an "
                "address of this machine, and a port that is free",
                key="cluster.listen",
            ) from e
        give_up_in_children(self._socket.fileno())
        self._socket.setblocking(False)
        port = self._socket.getsockname()[1]
        told = machines.address or listen
        self.address = Address(told.host, told.port or port)

    async def accept(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Serve connections of workers that know the secret, until cancelled."""
        loop = asyncio.get_running_loop()
        self._socket.listen(_BACKLOG)
        try:
            while True:
                try:
                    one, (host, *_) = await loop.sock_accept(self._socket)
                except OSError as e:  # too many files, for instance
                    _logger.error("accept_failed", error=str(e))
                    await asyncio.sleep(0.1)
                    continue
                if len(self._unproved) >= _MOST_UNPROVED:
                    self._end_oldest()
                self._unproved[one] = None
                keep_alive(one)
                task = loop.create_task(self._let_in(one, host, make_protocol))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                await asyncio.sleep(0)  # the next may be here already, and many behind it
        finally:
            for task in self._tasks:
                task.cancel()

    def _end_oldest(self) -> None:
        """Have its task see that it ends."""
        oldest = next(iter(self._unproved))
        del self._unproved[oldest]
        with suppress(OSError):  # it has ended
            oldest.shutdown(socket.SHUT_RDWR)

    def _refuse(self, host: str, problem: Exception) -> None:
        """Log it: once for each kind, as long as there are some, for anybody may cause many."""
        self._refused.fail(problem, host=host)

    async def _let_in(
        self, one: socket.socket, host: str, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        loop = asyncio.get_running_loop()
        gate = _Gate()
        try:
            async with asyncio.timeout(_PROVE_S):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: gate, one, ssl=self._context
                )
                ours = secrets.token_bytes(_NONCE)
                transport.write(_MAGIC + ours)
                answer = await gate.read(_ANSWER)
            nonces = ours + answer[:_NONCE]
            wanted = _prove(self._secret, b"worker", nonces, self._certificate)
            if not hmac.compare_digest(answer[_NONCE:], wanted):
                self._refuse(host, PermissionError("another secret"))
                transport.write(_NO + bytes(_PROOF))
                transport.close()
                return
            transport.write(_YES + _prove(self._secret, b"owner", nonces, self._certificate))
            gate.pass_to(make_protocol())
            self._refused.succeed()
        except (OSError, TimeoutError) as e:  # it is something else, or has gone again
            self._refuse(host, e)
            gate.abort()
            one.close()
        except asyncio.CancelledError:
            gate.abort()
            raise
        finally:
            self._unproved.pop(one, None)

    def close(self) -> None:
        """Listen no more."""
        if self._socket.fileno() >= 0:
            keep_in_children(self._socket.fileno())
            self._socket.close()


class RemoteOwner(msgspec.Struct, frozen=True):
    """An owner on this machine or another, as workers connect to it.

    Attributes:
        machines: what is configured.
        address: where it listens.
        epoch: of its lease.
    """

    machines: Machines
    address: Address
    epoch: int

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Connect, and let `protocol` take the connection over.

        Raises:
            OSError, TimeoutError: there is none.
            ConfigError: it and this process do not know the same secret.
        """
        try:
            await self._connect(protocol, encrypted=self.machines.uses_tls(self.address))
        except _NotInTheClear:  # on loopback an owner may have a certificate, and workers none
            await self._connect(protocol, encrypted=True)

    async def _connect(self, protocol: asyncio.Protocol, *, encrypted: bool) -> None:
        loop = asyncio.get_running_loop()
        gate = _Gate()
        secret, address = self.machines.secret, self.address
        context = _open_context() if encrypted else None
        ours = secrets.token_bytes(_NONCE)
        try:
            async with asyncio.timeout(_CONNECT_S):
                transport, _ = await loop.create_connection(
                    lambda: gate, address.host, address.port, ssl=context
                )
                certificate = b""
                if context is not None:
                    shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
                    certificate = digest_of(shown)
                transport.write(ours)  # at once: an owner that waits for TLS ends the connection
                try:
                    challenge = await gate.read(_CHALLENGE)
                except ConnectionError as e:
                    raise e if encrypted else _NotInTheClear from e
                if not challenge.startswith(_MAGIC):
                    raise ConnectionError(f"at {address} listens something else than an owner")
                nonces = challenge[len(_MAGIC) :] + ours
                transport.write(_prove(secret, b"worker", nonces, certificate))
                answer = await gate.read(len(_YES) + _PROOF)
            if answer[:1] != _YES:
                raise ConfigError(
                    f"the owner at {address} refuses this process: cluster.secret must be the same "
                    "on all machines",
                    key="cluster.secret",
                )
            wanted = _prove(secret, b"owner", nonces, certificate)
            if not hmac.compare_digest(answer[1:], wanted):
                raise ConfigError(
                    f"the process at {address} does not prove that it knows cluster.secret: look "
                    "who listens there",
                    key="cluster.secret",
                )
        except TimeoutError as e:
            gate.abort()
            raise TimeoutError(f"the process at {address} does not answer") from e
        except BaseException:
            gate.abort()
            raise
        with suppress(OSError):
            keep_alive(transport.get_extra_info("socket"))
        gate.pass_to(protocol)


class _NotInTheClear(ConnectionError):
    """A connection without encryption ended before the owner said anything."""


def _open_context() -> ssl.SSLContext:
    """Encryption with anybody: what the other end proves afterwards is bound to its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _Gate(asyncio.Protocol):
    """A connection before the proofs: it takes few bytes."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._data = bytearray()
        self._wanted = 0
        self._ready: asyncio.Future[None] | None = None
        self._lost = False

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`, as for the others."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > max(self._wanted, _ANSWER):
            self._transport.abort()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._lost = True
        self._look()

    def _look(self) -> None:
        ready = self._ready
        if ready is not None and not ready.done() and (self._lost or self._is_there):
            ready.set_result(None)

    @property
    def _is_there(self) -> bool:
        return len(self._data) >= self._wanted

    async def read(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            ConnectionError: there are none.
        """
        self._wanted = count
        if not self._is_there and not self._lost:
            self._ready = asyncio.get_running_loop().create_future()
            await self._ready
        if len(self._data) != count:
            raise ConnectionError("the connection ended, or it is something else")
        found = bytes(self._data)
        self._data.clear()
        return found

    def pass_to(self, protocol: asyncio.Protocol) -> None:
        """Let another protocol go on with the connection; it has said nothing more until now."""
        if self._lost or self._data:
            raise ConnectionError("the connection ended, or it is something else")
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
