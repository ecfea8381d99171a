"""A process that makes extracts, so that the event loop keeps the interpreter for itself.

An extract is Python: in a thread it takes the interpreter from the event loop, 160 µs for each
message of a conversation. So another interpreter makes them where there is much to extract; what
that gains is in docs/evidence/benchmarks.md. The process opens no file of a memory and no
connection; a socket pair carries requests and answers. It ends when its parent closes the socket or
is killed.

Python's own pools of processes are not used, because their children run the main module of the host
again, and because they pickle what they send.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from remora.logging import get_logger
from remora.models.ports import Line
from remora.runtime.threads import run_in_thread

__all__ = ["ExtractProcess", "Extractor", "Given", "Request", "is_useful", "receive", "send"]

Extractor: TypeAlias = Callable[[int], str]
"""Extracts from some lines, within so many tokens; blocking."""

_WORTH_S = 1.0  # to start the process takes 0.7 s of processor time, and 120 MB
_ANSWER_S = 60.0
_BYTES_A_SECOND = 100_000  # of what is extracted from: a tenth of what it takes

_LENGTH = struct.Struct(">I")

_logger = get_logger(__name__)


class Given(msgspec.Struct, array_like=True, frozen=True):
    """What is extracted from."""

    previous: str | None
    lines: Sequence[Line]


class Request(msgspec.Struct, array_like=True, frozen=True):
    """Asks for an extract of at most so many tokens.

    Attributes:
        max_tokens: of the extract.
        given: None if it is the same as in the last request.
    """

    max_tokens: int
    given: Given | None


class ExtractProcess:
    """Makes extracts in a process of its own, once they have taken a second of processor time.

    Until then, and whenever the process fails, the caller's thread makes them. After a failure they
    must take twice as long before the next process is started. Threads may share it.

    Args:
        counter: what the process counts tokens with.
        detail: the encoding of tiktoken, or the unit of the heuristic.
        worth_s: processor time that threads must have taken, in seconds.
        answer_s: the longest time to start, or to answer a short request, in seconds.
    """

    def __init__(
        self,
        counter: Literal["tiktoken", "heuristic"],
        detail: str,
        *,
        worth_s: float = _WORTH_S,
        answer_s: float = _ANSWER_S,
    ) -> None:
        self._counter = (counter, detail)
        self._worth_s = worth_s
        self._answer_s = answer_s
        self._taken_s = 0.0
        self._lock = threading.Lock()  # held by threads that wait for an answer
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._ready_by: float | None = None  # while the process starts
        self._held: Given | None = None  # by the process
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def prepare(
        self, previous: str | None, lines: Sequence[Line], in_thread: Extractor
    ) -> Extractor:
        """What extracts from these lines, for several sizes.

        Args:
            previous: the summary before, if any.
            lines: what is new.
            in_thread: does the same in the thread that calls it.
        """
        given = Given(previous, lines)

        def extract(max_tokens: int) -> str:
            with self._lock:
                text = self._ask(given, max_tokens)
            if text is not None:
                return text
            began = time.thread_time()
            try:
                return in_thread(max_tokens)
            finally:
                with self._lock:
                    self._taken_s += time.thread_time() - began

        return extract

    async def aclose(self) -> None:
        """End the process. What is asked later is made in the caller's thread."""
        await run_in_thread(self._close)

    def _close(self) -> None:
        self._closed = True
        if process := self._process:
            process.kill()  # a thread that waits for its answer holds the lock
        with self._lock:
            self._end()

    def _ask(self, given: Given, max_tokens: int) -> str | None:
        """The process's answer; None if there is none."""
        try:
            connection = self._connect()
            if connection is None:
                return None
            request = Request(max_tokens, None if self._held is given else given)
            data = msgspec.msgpack.encode(request)
            if self._held is not given:
                connection.settimeout(self._answer_s + len(data) / _BYTES_A_SECOND)
            send(connection, data)
            self._held = given
            return msgspec.msgpack.decode(receive(connection), type=str | None)
        except (OSError, EOFError, msgspec.MsgspecError) as e:
            self._fail(e)
            return None

    def _connect(self) -> socket.socket | None:
        """The connection to the process if it is ready; starts one when it is worth it."""
        if self._socket is None:
            if not self._closed and self._taken_s >= self._worth_s:
                self._start()
            return None
        if self._ready_by is not None:
            if not select.select([self._socket], [], [], 0)[0]:
                if time.monotonic() > self._ready_by:
                    raise TimeoutError("it was not ready in time")
                return None
            receive(self._socket)
            self._ready_by = None
            _logger.info("extract_process_started", pid=self.pid)
        return self._socket

    def _start(self) -> None:
        path = [one or str(Path.cwd()) for one in sys.path]
        self._socket, theirs = socket.socketpair()
        self._ready_by = time.monotonic() + self._answer_s
        self._socket.settimeout(self._answer_s)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter
                [sys.executable, "-P", "-m", "remora.models.extract_server", *self._counter],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,  # an interrupt from the terminal is for the parent
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            )

    def _fail(self, error: Exception) -> None:
        code = self._end()
        self._taken_s, self._worth_s = 0.0, 2 * self._worth_s
        if not self._closed:
            _logger.warning(
                "extract_process_failed", error=f"{type(error).__name__}: {error}", exit_code=code
            )

    def _end(self) -> int | None:
        """End the process.

        Returns:
            Its exit code, if there was one.
        """
        connection, self._socket, self._held, self._ready_by = self._socket, None, None, None
        if connection is not None:
            connection.close()
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()  # nothing of it is needed any more
        return process.wait()


def is_useful() -> bool:
    """Whether there are several processors, and this interpreter can be started again."""
    if (
        "python" not in Path(sys.executable or "").name.lower()
    ):  # a frozen program would run again, and uWSGI, too
        return False
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) > 1
    return (os.cpu_count() or 1) > 1


def send(connection: socket.socket, data: bytes) -> None:
    """Send a frame: its length, and the data."""
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> bytearray:
    """The next frame's data.

    Raises:
        EOFError: the other side has closed.
    """
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    return _receive_bytes(connection, length)


def _receive_bytes(connection: socket.socket, number: int) -> bytearray:
    data = bytearray(number)
    view, found = memoryview(data), 0
    while found < number:
        if not (size := connection.recv_into(view[found:])):
            raise EOFError("the other side has closed")
        found += size
    return data
