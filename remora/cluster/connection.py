"""A worker's connection to the owner, made again whenever it breaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from remora.cluster.link import WINDOW, WorkerEnd
from remora.cluster.router import Router
from remora.cluster.tcp import RemoteOwner
from remora.cluster.wire import Hello, Welcome, WireError
from remora.errors import OwnerUnreachable, RemoraError, RuntimeClosed
from remora.logging import get_logger
from remora.runtime.meters import OutageLog
from remora.runtime.threads import run_in_thread
from remora.services.answering import WORK
from remora.system.forks import give_up_in_children, keep_in_children
from remora.system.sockets import connect_socket

Dial: TypeAlias = Callable[[], Awaitable[str | RemoteOwner]]

_logger = get_logger(__name__)
_SWEEP_S = 0.25
PAUSE_S = 0.02  # before an owner is looked for again
_LONGEST_PAUSE_S = 5.0
_LASTING_S = 2.0  # a connection that ended sooner counts as one that failed
_GREETING_S = 10.0


class Connection:
    """Keeps a router connected to the owner.

    Args:
        dial: gives the path of the socket of an owner that listens, or what connects to one on
            another machine; starts one if need be.
        hello: what the worker says of itself.
        max_bytes: see `Router`.
        check: called with the welcome of each owner; raises what refuses it.
        patience_s: how long an owner is looked for before requests fail.
        greet: called for each connection, before anything is sent on it; it may submit requests.

    Attributes:
        router: takes the requests.
    """

    def __init__(
        self,
        dial: Dial,
        hello: Hello,
        max_bytes: int,
        check: Callable[[Welcome], None],
        patience_s: float,
        greet: Callable[[], None] = lambda: None,
    ) -> None:
        self.router = Router(max_bytes, self._wake)
        self._dial = dial
        self._hello = hello
        self._check = check
        self._patience_s = patience_s
        self._greet = greet
        self._loop = asyncio.get_running_loop()
        self._outages = OutageLog(
            _logger,
            "owner_not_found",
            ended="owner_found",
            monotonic=self._loop.time,
            level="warning",
        )
        self._line: _Line | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._sweeping = self._flushing = self._closed = False

    def now(self) -> float:
        """The clock of deadlines, in seconds."""
        return self._loop.time()

    async def open(self) -> Welcome:
        """Connect; returns what the owner said.

        Raises:
            OwnerUnreachable: no owner answered in time.
            RemoraError: the owner refused, or cannot be started.
        """
        line = await self._connect()
        self._use(line)
        self._task = self._loop.create_task(self._keep(line), name="remora.connection")
        assert line.end.welcome is not None
        return line.end.welcome

    def drop(self) -> None:
        """End the connection, if there is one, and look for an owner again."""
        if self._line is not None:
            self._line.abort()

    async def drain(self) -> None:
        """Return when all requests are answered."""
        while self.router.outstanding:  # noqa: ASYNC110  # nothing waits but who closes
            await asyncio.sleep(PAUSE_S)

    async def aclose(self) -> None:
        """Close the connection; requests that wait raise `RuntimeClosed`."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        line, self._line = self._line, None
        if line is not None:
            line.close()
            await line.lost.wait()
        self.router.fail(RuntimeClosed("the runtime is closed"))

    # -- connecting --------------------------------------------------------------------------------

    async def _keep(self, line: _Line) -> None:
        """Connect again each time that the connection is lost, until cancelled."""
        pause_s = 0.0
        while True:
            began = self.now()
            await line.lost.wait()
            self._line = None
            self.router.detach()
            if self.now() - began > _LASTING_S:
                pause_s = 0.0
            problem = "" if line.refusal is None else str(line.refusal)[:200]
            _logger.info(
                "owner_lost", outstanding=self.router.outstanding, problem=problem, pause_s=pause_s
            )
            await asyncio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, PAUSE_S), _LONGEST_PAUSE_S)
            line = await self._reconnect()
            self._use(line)

    async def _reconnect(self) -> _Line:
        while True:
            self._wanted.clear()
            try:
                line = await self._connect()
            except RemoraError as e:
                self._outages.fail(e)
                self.router.fail(e)
            except Exception as e:
                _logger.exception("connecting_failed")
                self.router.fail(OwnerUnreachable(f"the owner cannot be reached: {e}"))
            else:
                self._outages.succeed()
                return line
            await self._wanted.wait()

    async def _connect(self) -> _Line:
        until = self.now() + self._patience_s
        pause_s = PAUSE_S
        while True:
            line = _Line(self._hello, self.router, self._flush)
            try:
                owner = await self._dial()
                if isinstance(owner, RemoteOwner):
                    await owner.connect(line)
                else:
                    line.preface = WORK
                    await self._connect_local(Path(owner), line)
                async with asyncio.timeout(_GREETING_S):
                    await line.greeted.wait()
                if line.refusal is not None:
                    raise line.refusal
                assert line.end.welcome is not None
                self._check(line.end.welcome)
                self.router.attach(line.end)
                self._greet()
            except (OSError, OwnerUnreachable, RuntimeClosed, TimeoutError) as e:
                line.abort()
                if self.now() > until:
                    raise OwnerUnreachable(f"no owner of the memory answers: {e}") from e
            except BaseException:
                line.abort()
                raise
            else:
                return line
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _SWEEP_S)

    async def _connect_local(self, path: Path, line: _Line) -> None:
        connecting = asyncio.ensure_future(run_in_thread(connect_socket, path, _GREETING_S))
        try:
            one = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_connected)
            raise
        unix = self._loop.create_unix_connection
        connect = self._loop.create_connection if one.family == socket.AF_INET else unix
        await connect(partial(_same, line), sock=one)

    def _use(self, line: _Line) -> None:
        self._line = line
        self._flush()

    # -- sending -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Send what there is at the end of this tick."""
        if not self._flushing:
            self._wanted.set()
            self._flushing = True
            self._loop.call_soon(self._flush)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(_SWEEP_S, self._sweep)

    def _flush(self) -> None:
        self._flushing = False
        line = self._line
        if line is not None:
            line.write_all()

    def _sweep(self) -> None:
        self.router.expire(self.now())
        self._sweeping = self.router.outstanding > 0 and not self._closed
        if self._sweeping:
            self._loop.call_later(_SWEEP_S, self._sweep)


class _Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, hello: Hello, router: Router, flush: Callable[[], None]) -> None:
        self.end = WorkerEnd(hello, router.refuse)
        self.greeted = asyncio.Event()
        self.lost = asyncio.Event()
        self.refusal: Exception | None = None
        self.preface = b""
        self._router = router
        self._resume = flush
        self._transport: Any = None
        self._full = False
        self._descriptor = -1

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`, as for the others."""
        self._transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        give_up_in_children(self._descriptor)  # the owner sees the end of this process, not theirs
        transport.set_write_buffer_limits(high=WINDOW)
        hello = self.end.take()
        assert hello is not None
        transport.write(self.preface + hello)

    def data_received(self, data: bytes) -> None:
        try:
            for replies in self.end.feed(data):
                self._router.take_replies(replies)
        except (WireError, RemoraError) as e:
            self.refusal = e if isinstance(e, RemoraError) else OwnerUnreachable(str(e))
            self.abort()
        if self.end.welcome is not None:
            self.greeted.set()
        if self.end.draining:
            self._resume()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.greeted.is_set() and self.refusal is None:
            self.refusal = OwnerUnreachable("the owner closed the connection")
        self.greeted.set()
        self.lost.set()
        keep_in_children(self._descriptor)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._resume()

    def write_all(self) -> None:
        """Write what the router has, as far as the owner reads it."""
        for frame in self._router.pump(self._has_room):
            self._transport.write(frame)

    def _has_room(self) -> bool:
        return not self._full and not self._transport.is_closing()

    def close(self) -> None:
        """Close the connection when all is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()


def _close_connected(connecting: asyncio.Future[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


def _same(line: _Line) -> _Line:
    return line
