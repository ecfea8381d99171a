"""The socket of a process that has a memory open, for other processes of the same account.

A thread of its own accepts connections, also while the event loop is busy or stuck. What comes by
one is of two kinds:

- lines of JSON, each a question that the thread answers with a line, at once;
- the line `WORK`, and then whatever a worker and an event loop say to each other
  (`remora.cluster.link`): the thread gives the connection away.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from remora.logging import get_logger
from remora.runtime.threads import run_in_thread
from remora.system.forks import run_at_fork
from remora.system.sockets import MOST_UNPROVED, Gate, LocalListener

if TYPE_CHECKING:
    import asyncio

_logger = get_logger(__name__)
SOCKET_NAME = "owner.sock"
WORK = b'{"type":"work"}\n'
"""The first line of a worker."""
MAX_LINE_BYTES = 256 << 10
"""Of a question."""
MAX_CONNECTIONS = 256
"""Of those that ask; workers are not counted."""
PARTING_S = 1.0
"""How long a process that closes waits for commands that do not answer."""
_IDLE_S = 60.0
_FIRST_LINE_S = 5.0
_TICK_S = 5.0
_PAUSE_S = 0.05

Take: TypeAlias = Callable[[socket.socket], None]


def socket_name(number: int) -> str:
    """Of the process that has this number among those that own a memory together."""
    return f"owner-{number}.sock" if number else SOCKET_NAME


def start_answering(directory: Path, answer: Callable[[bytes], bytes]) -> AnswerThread | None:
    """Answer at the socket of a memory directory, which this process owns. Blocks.

    Args:
        directory: the memory's.
        answer: the answer to a question, both without the end of the line; called in the thread.

    Returns:
        None where that is not possible, which is logged: a memory works without it.
    """
    try:
        thread = AnswerThread(directory / SOCKET_NAME, answer)
        thread.start()
    except (OSError, RuntimeError) as e:  # a file system without sockets; no more threads
        _logger.warning("status_not_answered", path=str(directory), error=str(e))
        return None
    return thread


class AnswerThread(threading.Thread):
    """Serves the socket until it is stopped.

    Args:
        path: of the socket.
        answer: see `start_answering`. What it raises ends the connection.
        tick: called every few seconds, in this thread.

    Raises:
        OSError: nothing can listen there.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[bytes], bytes],
        tick: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(name="remora.answers", daemon=True)
        self._path = path
        self._answer = answer
        self._tick = tick
        self._ended = self._refused = False
        self._pid = os.getpid()
        self._listener = LocalListener(path, MAX_CONNECTIONS)
        self._waker, self._woken = socket.socketpair()
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._listener.socket, selectors.EVENT_READ)
        self._ready.register(self._woken, selectors.EVENT_READ)
        self._peers: dict[socket.socket, _Peer] = {}
        self._unproved: dict[socket.socket, None] = {}
        self._workers: deque[socket.socket] = deque()
        self._take: Take | None = None
        _threads.add(self)

    def give_workers(self, take: Take | None) -> None:
        """Give connections of workers to `take`, which is called in any thread, from now on.

        None: keep them until it is told to whom they go, or until the end.
        """
        self._take = take
        self._pass_on()

    def stop(self) -> None:
        """Answer no more, and remove the socket. Blocks until the thread has ended."""
        self._ended = True
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")
        if self.is_alive():
            self.join()
        if os.getpid() == self._pid:
            self._listener.remove()

    def close_in_child(self) -> None:
        """A forked process has the sockets, and no thread that answers."""
        self._ended = True
        self._ready.close()
        for one in (*self._own, *self._peers, *self._workers):
            one.close()

    @property
    def _own(self) -> tuple[socket.socket, ...]:
        return self._listener.socket, self._waker, self._woken

    def run(self) -> None:
        """Answer until `stop`."""
        next_tick = time.monotonic()
        try:
            while not self._ended:
                if self._tick is not None and time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + _TICK_S
                    self._tick()
                waits = self._tick is None and not self._peers
                for key, events in self._ready.select(None if waits else _TICK_S):
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    if one is self._listener.socket:
                        self._accept()
                    elif one in self._peers:  # not ended by one that was accepted just now
                        self._serve(one, events)
                self._end_idle()
        except Exception:  # a defect; the memory goes on without it
            _logger.exception("status_failed")
        finally:
            for one in (*self._peers, *self._workers, *self._own):
                one.close()
            self._peers.clear()
            self._ready.close()

    def _accept(self) -> None:
        try:
            one, gate = self._listener.accept()
        except PermissionError as e:
            self._refuse(e)
            return
        except ConnectionError:  # it has gone again
            return
        except OSError:  # there are too many files
            time.sleep(_PAUSE_S)
            return
        if len(self._peers) - len(self._unproved) >= MAX_CONNECTIONS:
            one.close()
            return
        if gate is not None:
            if len(self._unproved) >= MOST_UNPROVED:
                self._end(next(iter(self._unproved)))
            self._unproved[one] = None
        self._ready.register(one, selectors.EVENT_READ)
        self._peers[one] = _Peer(gate)

    def _refuse(self, problem: PermissionError) -> None:
        """Log it: once, for any account of the machine may cause many."""
        if not self._refused:
            self._refused = True
            _logger.warning("status_refused", problem=str(problem))

    def _serve(self, one: socket.socket, events: int) -> None:
        """Read and write what can be; a peer that asks on reads its answer first."""
        peer = self._peers[one]
        peer.used_at = time.monotonic()
        try:
            if peer.gate is not None:
                if peer.gate.is_passed():
                    peer.gate = None
                    del self._unproved[one]
                return
            if events & selectors.EVENT_READ:
                peer.read(one)
            if peer.asked == WORK and peer.is_new:
                self._forget(one)
                self._workers.append(one)
                self._pass_on()
                return
            if not peer.answer and (line := peer.take_line()) is not None:
                peer.answer = self._answer(line) + b"\n"
            if peer.answer:
                with contextlib.suppress(BlockingIOError):
                    peer.answer = peer.answer[one.send(peer.answer) :]
        except Exception as e:
            if isinstance(e, PermissionError):
                self._refuse(e)
            elif not isinstance(e, OSError):
                _logger.warning("status_question_refused", error=type(e).__name__)
            self._end(one)
            return
        more = b"\n" in peer.asked
        wanted = selectors.EVENT_WRITE if peer.answer or more else selectors.EVENT_READ
        self._ready.modify(one, wanted)

    def _pass_on(self) -> None:
        while (take := self._take) is not None:
            try:
                one = self._workers.popleft()
            except IndexError:
                return
            try:
                take(one)
            except Exception as e:  # the memory closes
                _logger.warning("worker_refused", error=type(e).__name__)
                one.close()

    def _forget(self, one: socket.socket) -> None:
        self._ready.unregister(one)
        del self._peers[one]
        self._unproved.pop(one, None)

    def _end(self, one: socket.socket) -> None:
        self._forget(one)
        one.close()

    def _end_idle(self) -> None:
        now = time.monotonic()
        for one in [one for one, peer in self._peers.items() if peer.is_idle(now)]:
            self._end(one)


class ServesWorkers(Protocol):
    """The port of what speaks with workers: `remora.cluster.serving.Served`."""

    def make_protocol(self) -> asyncio.Protocol:
        """Return what speaks with one."""
        ...

    async def drain(self, seconds: float, parting_s: float | None = None) -> None:
        """Answer what was asked, at most for so long, and close all connections."""
        ...


class Workers:
    """Takes connections of workers from the thread that accepts them to an event loop.

    Args:
        thread: accepts them.
        loop: where they are served.
        make: gives what serves them; called in a thread, at the first connection.
    """

    def __init__(
        self,
        thread: AnswerThread,
        loop: asyncio.AbstractEventLoop,
        make: Callable[[], ServesWorkers],
    ) -> None:
        self._thread = thread
        self._loop = loop
        self._make = make
        self._served: ServesWorkers | None = None
        self._making = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Serve those that have come, and those that come."""
        await run_in_thread(self._thread.give_workers, self._take)

    async def drain(self, seconds: float, parting_s: float | None = None) -> None:
        """Serve no more of them; see `remora.cluster.serving.Served.drain`."""
        self._thread.give_workers(None)
        if self._served is not None:
            await self._served.drain(seconds, parting_s)

    def _take(self, connection: socket.socket) -> None:
        with self._making:
            if self._served is None:
                self._served = self._make()
        self._loop.call_soon_threadsafe(self._serve, self._served, connection)

    def _serve(self, served: ServesWorkers, connection: socket.socket) -> None:
        task = self._loop.create_task(self._connect(served, connection), name="remora.worker")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, served: ServesWorkers, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(served.make_protocol, connection)
        except OSError:  # it has gone again
            connection.close()


class _Peer:
    """A connection: what was asked and is not answered, and what of the answer is not sent."""

    def __init__(self, gate: Gate | None) -> None:
        self.gate = gate
        self.asked = b""
        self.answer = b""
        self.is_new = True
        self.came_at = self.used_at = time.monotonic()

    def read(self, connection: socket.socket) -> None:
        """Read what has come: of a worker, only its first line.

        Raises:
            ConnectionError: it is the end, or a line that is too long.
        """
        data = b""
        if self.is_new and WORK.startswith(self.asked):
            data = connection.recv(len(WORK) - len(self.asked))
        if not data or not WORK.startswith(self.asked + data):
            with contextlib.suppress(BlockingIOError):
                data += connection.recv(MAX_LINE_BYTES)
        self.asked += data
        if not data or len(self.asked) > MAX_LINE_BYTES:
            raise ConnectionError

    def is_idle(self, now: float) -> bool:
        """Return whether it has said nothing for long, or no whole line since it came."""
        return now - self.used_at > _IDLE_S or (self.is_new and now - self.came_at > _FIRST_LINE_S)

    def take_line(self) -> bytes | None:
        line, end, rest = self.asked.partition(b"\n")
        if not end:
            return None
        self.asked, self.is_new = rest, False
        return line


_threads: weakref.WeakSet[AnswerThread] = weakref.WeakSet()


def _close_in_child() -> None:
    for thread in list(_threads):
        thread.close_in_child()


run_at_fork(in_child=_close_in_child)
