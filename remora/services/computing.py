"""A process that computes for background jobs, so that they do not hold the server's interpreter.

It opens no file and has no state but what saves time: it reads a function and its arguments, calls
it, and writes the result. So it may be killed or stopped at any time: what it does not answer is
computed in a thread, as without it. It is started by its own command when jobs have computed for
some seconds, and ended when they have not for a minute; it ends by itself when the process that
started it is gone.

All runtimes of a process share it. Only functions of remora are called in it, with arguments that
are remora's own: pickles go both ways over a pair of sockets that no other process has.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, TypeVarTuple

from remora.logging import get_logger
from remora.models.extractive import recent_extracts
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread
from remora.system.forks import give_up_in_children, keep_in_children, run_at_fork
from remora.system.processes import start_with_socket, take_socket
from remora.system.sockets import is_readable

__all__ = ["ComputingProcess", "main", "shared_process"]

_logger = get_logger(__name__)
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_BUSY_S = 2.0  # of computing, without a pause, before it is started
_PAUSE_S = 1.0
_IDLE_S = 60.0
_ANSWER_S = 10.0  # what takes longer is computed here: it may be stopped
_START_S = 30.0
_TURN_S = 0.5  # for others' answers: to compute here would hold the interpreter
_EXTRACTS = 64  # whose sentences are held, for those that continue them: 15 MB
_READY = b"\n"
_COMMAND = (sys.executable, "-P", "-c", f"from {__name__} import main; main()")
_MODULES = frozenset({"remora", "builtins", "functools", "numpy", "operator"})
"""Whose functions and objects are sent."""
_length = struct.Struct("<Q")


class ComputingProcess:
    """Calls functions in another process while there is much to compute; for any thread.

    Args:
        command: starts it; its last argument is the number of its socket.
        busy_s: how long is computed here before it is started.
        answer_s: how long an answer may take.
    """

    def __init__(
        self,
        command: tuple[str, ...] = _COMMAND,
        *,
        busy_s: float = _BUSY_S,
        answer_s: float = _ANSWER_S,
    ) -> None:
        self._command = command
        self._busy_after_s = busy_s
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._users = 0
        self._busy_s = self._ended_s = self._started_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._ready = False
        self._unable = False
        self._given: socket.socket | None = None  # the process' end, until it has its own

    @property
    def pid(self) -> int | None:
        """The process that answers now; None if none does."""
        process = self._process
        return process.pid if process is not None and self._ready else None

    def join(self) -> None:
        """It may run until as many have left."""
        with self._lock:
            self._users += 1

    async def leave(self) -> None:
        """One has left; the last one ends it."""
        await run_in_thread(self._leave)

    def _leave(self) -> None:
        process = self._process
        if self._users <= 1 and process is not None:
            process.kill()  # who is asking need not wait for a process that was stopped
        with self._lock:
            self._users -= 1
            if self._users <= 0:
                self._end()

    async def end_if_idle(self) -> None:
        """End it if nobody has asked for a while."""
        idle = time.monotonic() - self._ended_s > _IDLE_S
        if idle and self._process is not None:
            await run_in_thread(self._end_now)

    def _end_now(self) -> None:
        with self._lock:
            self._end()

    def call(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """The function's result: from the process, or computed here. It blocks.

        Args:
            function: of a module of remora; called again with the same arguments, it returns the
                same.
            arguments: what can be pickled without naming a module of the application.
        """
        if self._lock.acquire(timeout=_TURN_S if self._ready else 0):  # others may be asking
            try:
                if self._answers():
                    answer = self._ask(function, arguments)
                    if answer is not None:
                        return answer[0]
            finally:
                self._lock.release()
        began = time.monotonic()
        result = function(*arguments)
        self._note(began, time.monotonic())
        return result

    def forget(self) -> None:
        """In a child that was forked: the process is the parent's, and so are those who use it."""
        self._lock, self._users = threading.Lock(), 0
        self._process = self._socket = None
        self._ready, self._busy_s = False, 0.0

    # -- under the lock ----------------------------------------------------------------------------

    def _answers(self) -> bool:
        """Return whether the process is there, and has loaded what it needs."""
        if self._socket is None or self._ready:
            return self._ready
        if is_readable(self._socket):
            with suppress(OSError):
                self._ready = self._socket.recv(1) == _READY
            if not self._ready:
                self._give_up("it ended while it started")
            self._close_given()
        elif self._process is not None and self._process.poll() is not None:
            self._give_up("it ended while it started")
        elif time.monotonic() - self._started_s > _START_S:
            self._give_up("it does not start")
        return self._ready

    def _ask(
        self, function: Callable[..., Result], arguments: tuple[Any, ...]
    ) -> list[Result] | None:
        """Return its answer; None if there is none."""
        assert self._socket is not None
        try:
            asked = _pickled((function, arguments))
        except Exception:  # a counter of the application's, for instance
            return None
        try:
            _write(self._socket, asked)
            answer: list[Result] = pickle.loads(_read(self._socket))  # noqa: S301 -- its own process
        except Exception as e:
            probe("computing_process_gone")
            _logger.info("computing_process_gone", error=type(e).__name__)
            self._busy_after_s = min(2 * self._busy_after_s, _IDLE_S)  # somebody may kill each
            self._end()
            return None
        self._ended_s = time.monotonic()
        return answer or None  # it raised: so will this process

    def _note(self, began: float, ended: float) -> None:
        """Something was computed here; start the process if that was much."""
        if not self._lock.acquire(blocking=False):  # another thread is asking it
            return
        try:
            paused = began - self._ended_s > _PAUSE_S
            self._busy_s = (0.0 if paused else self._busy_s) + ended - began
            self._ended_s = ended
            if self._busy_s >= self._busy_after_s and self._users and not self._unable:
                self._busy_s = 0.0
                if self._process is None:
                    self._start()
        finally:
            self._lock.release()

    def _start(self) -> None:
        if "python" not in Path(self._command[0]).name:  # the executable of an embedding program
            self._give_up("sys.executable is not an interpreter")
            return
        ours, its = socket.socketpair()
        path = os.pathsep.join(one for one in sys.path if one)
        try:
            self._process, self._given = start_with_socket(self._command, {"PYTHONPATH": path}, its)
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            ours.close()
            its.close()
            self._give_up(type(e).__name__)
            return
        probe("computing_process_started")
        _logger.info("computing_process_started", pid=self._process.pid)
        give_up_in_children(ours.fileno())
        ours.settimeout(self._answer_s)
        self._socket, self._started_s, self._ready = ours, time.monotonic(), False

    def _give_up(self, why: str) -> None:
        """Compute in threads from now on."""
        probe("computing_process_unable")
        _logger.warning("computing_process_unable", error=why)
        self._unable = True
        self._end()

    def _close_given(self) -> None:
        if self._given is not None:
            self._given.close()
            self._given = None

    def _end(self) -> None:
        self._close_given()
        if self._socket is not None:
            keep_in_children(self._socket.fileno())
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._socket = None
        self._ready, self._busy_s = False, 0.0


shared_process = ComputingProcess()
"""That of this process."""

run_at_fork(in_child=shared_process.forget)


class _OwnPickler(pickle.Pickler):
    """Refuses what only a module of the application could make again."""

    def reducer_override(self, one: object) -> Any:
        kind = one if isinstance(one, type | FunctionType) else type(one)
        if str(kind.__module__).partition(".")[0] not in _MODULES:
            raise pickle.PicklingError(f"{kind.__module__} may not be loaded elsewhere")
        return NotImplemented


def _pickled(one: object) -> bytes:
    data = io.BytesIO()
    _OwnPickler(data, pickle.HIGHEST_PROTOCOL).dump(one)
    return data.getvalue()


def _write(to: socket.socket, data: bytes) -> None:
    to.sendall(_length.pack(len(data)))
    to.sendall(data)


def _read(of: socket.socket) -> bytearray:
    """The next message.

    Raises:
        EOFError: the other end has closed.
    """
    (length,) = _length.unpack(_read_bytes(of, _length.size))
    return _read_bytes(of, length)


def _read_bytes(of: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        some = of.recv_into(view[done:])
        if not some:
            raise EOFError
        done += some
    return data


def main() -> None:
    """Answer what comes over the socket whose number is the last argument, until it is closed."""
    recent_extracts.hold(_EXTRACTS)
    with take_socket() as asker:
        asker.sendall(_READY)
        while True:
            try:
                function, arguments = pickle.loads(_read(asker))  # noqa: S301 -- its parent's
            except (EOFError, OSError):
                return
            try:
                answer = pickle.dumps([function(*arguments)], pickle.HIGHEST_PROTOCOL)
            except Exception:
                answer = pickle.dumps([])
            _write(asker, answer)
            recent_extracts.drop_old()
