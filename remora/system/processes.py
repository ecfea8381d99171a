"""Processes: started apart from this one, told from all others, watched, and ended."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remora.system.forks import give_up_in_children, keep_in_children, run_at_fork

if TYPE_CHECKING:
    import asyncio

if sys.platform == "win32":
    import _winapi

    _APART: dict[str, Any] = {
        "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    }
    _END = (signal.SIGINT, signal.SIGBREAK)
    CAN_HOLD_PROCESSES = True
    """Whether there is a `ProcessHandle`: Linux has it from 5.3 on."""
    _SYNCHRONIZE, _TERMINATE = 0x0010_0000, 0x0001
    _KILLED = 1
    _LONGEST_MS = 0x7FFF_FFFF

    def interpreter() -> tuple[str, dict[str, str]]:
        """The program of this interpreter, and what the environment of its process needs.

        In a virtual environment ``python.exe`` starts the real one, whose process id is another.
        """
        real = getattr(sys, "_base_executable", sys.executable)
        return real, {} if real == sys.executable else {"__PYVENV_LAUNCHER__": sys.executable}

    class ProcessHandle:
        """A process that no other one can be mistaken for, also when it has ended.

        Args:
            pid: of the process.

        Raises:
            OSError: there is no such process, or it is another account's.
        """

        def __init__(self, pid: int) -> None:
            self._handle = _winapi.OpenProcess(_SYNCHRONIZE | _TERMINATE, False, pid)

        def kill(self) -> None:
            """Kill it; see `wait`.

            Raises:
                OSError: it cannot be killed.
            """
            if not self.wait(0):
                _winapi.TerminateProcess(self._handle, _KILLED)

        def wait(self, seconds: float) -> bool:
            """Wait until it has ended; whether it has."""
            wanted_ms = min(max(0, math.ceil(seconds * 1_000)), _LONGEST_MS)
            return _winapi.WaitForSingleObject(self._handle, wanted_ms) == _winapi.WAIT_OBJECT_0

        def close(self) -> None:
            """Forget it."""
            _winapi.CloseHandle(self._handle)

    def kill_apart(process: subprocess.Popen[bytes]) -> None:
        """Kill a process that was started apart, and those that it started, as far as they end."""
        process.kill()

    def work_s(pid: int) -> float:
        """Processor time of a process: not known, so it may work at any time."""
        del pid
        return math.inf

    def end_this_process() -> None:
        """End this process as Ctrl-C does; from any thread."""
        signal.raise_signal(signal.SIGINT)

    def on_end_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        """Call `stop` in the loop when this process is told to end, for as long as it lives."""

        def stop_soon(*_: object) -> None:
            loop.call_soon_threadsafe(stop)

        for number in _END:
            signal.signal(number, stop_soon)

    def lower_priority(by: int) -> None:
        """Let other processes go first; `by` is as for ``nice``. Windows keeps its own order."""

    def allow_files(count: int) -> None:
        """Let this process open so many files, if it may: Windows has no limit for it."""

    def start_with_socket(
        command: Sequence[str], environment: Mapping[str, str], theirs: socket.socket
    ) -> tuple[subprocess.Popen[bytes], socket.socket | None]:
        """Start a process apart, which has a socket and nothing else; see `take_socket`.

        Returns:
            The process, and a socket to be closed when it says that it has its own.

        Raises:
            OSError: it cannot be started.
        """
        process = start_apart(
            command,
            environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as given:
            given.write(theirs.share(process.pid))
        return process, theirs

    def take_socket() -> socket.socket:
        """The socket that this process was started with."""
        return socket.fromshare(sys.stdin.buffer.read())

else:
    import resource
    import select
    import threading

    _APART: dict[str, Any] = {"start_new_session": True}
    _END = (signal.SIGTERM, signal.SIGINT)

    CAN_HOLD_PROCESSES = sys.platform != "linux" or hasattr(os, "pidfd_open")
    """Whether there is a `ProcessHandle`: Linux has it from 5.3 on."""

    def interpreter() -> tuple[str, dict[str, str]]:
        """The program of this interpreter, and what the environment of its process needs."""
        return sys.executable, {}

    if sys.platform == "linux":

        class ProcessHandle:
            """A process that no other one can be mistaken for, also when it has ended.

            Args:
                pid: of the process.

            Raises:
                OSError: there is no such process.
            """

            def __init__(self, pid: int) -> None:
                self._descriptor = os.pidfd_open(pid)
                give_up_in_children(self._descriptor)

            def kill(self) -> None:
                """Kill it; see `wait`.

                Raises:
                    OSError: it cannot be killed.
                """
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

            def wait(self, seconds: float) -> bool:
                """Wait until it has ended; whether it has."""
                watched = select.poll()
                watched.register(self._descriptor, select.POLLIN)
                return bool(watched.poll(seconds * 1_000))

            def close(self) -> None:
                """Forget it."""
                keep_in_children(self._descriptor)
                os.close(self._descriptor)

        def work_s(pid: int) -> float:
            """Processor time of a process; infinite while it waits for a processor or its disk."""
            ticks = 0
            try:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    fields = (task / "stat").read_text().rpartition(")")[2].split()
                    if fields[0] in "RD":
                        return math.inf
                    ticks += int(fields[11]) + int(fields[12])
            except OSError:  # another namespace, or a thread or the process has just ended
                pass
            return float(ticks / os.sysconf("SC_CLK_TCK"))

    else:

        class ProcessHandle:
            """A process that no other one is mistaken for, also when it has ended.

            Args:
                pid: of the process.

            Raises:
                OSError: there is no such process.
            """

            def __init__(self, pid: int) -> None:
                self._pid, self._ended = pid, False
                self._queue = select.kqueue()  # which no child that is forked inherits
                end = select.kevent(
                    pid,
                    select.KQ_FILTER_PROC,
                    select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
                    select.KQ_NOTE_EXIT,
                )
                try:
                    self._queue.control([end], 0)
                except OSError:
                    self.close()
                    raise

            def kill(self) -> None:
                """Kill it; see `wait`.

                Raises:
                    OSError: it cannot be killed.
                """
                if not self.wait(0):  # its id may be another process's by now
                    os.kill(self._pid, signal.SIGKILL)

            def wait(self, seconds: float) -> bool:
                """Wait until it has ended; whether it has."""
                self._ended = self._ended or bool(self._queue.control(None, 1, max(0.0, seconds)))
                return self._ended

            def close(self) -> None:
                """Forget it."""
                self._queue.close()

        def work_s(pid: int) -> float:
            """Processor time of a process: not known, so it may work at any time."""
            del pid
            return math.inf

    def kill_apart(process: subprocess.Popen[bytes]) -> None:
        """Kill a process that was started apart, and those that it started."""
        os.killpg(process.pid, signal.SIGKILL)

    _masks = threading.local()

    def _hold_signals() -> None:
        """While a process is forked: until it has handlers of its own, one to it would be lost."""
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _END)

    def _let_signals() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)

    def _forget_signals() -> None:
        """In a process that this one forked: a signal to it ends it, and does not tell this one."""
        signal.set_wakeup_fd(-1)
        for number in _END:
            signal.signal(number, signal.SIG_DFL)
        _let_signals()

    def on_end_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        """Call `stop` in the loop when this process is told to end, for as long as it lives."""
        for number in _END:
            loop.add_signal_handler(number, stop)
        run_at_fork(before=_hold_signals, in_parent=_let_signals, in_child=_forget_signals)

    def end_this_process() -> None:
        """End this process as SIGTERM does; from any thread."""
        os.kill(os.getpid(), signal.SIGTERM)

    def lower_priority(by: int) -> None:
        """Let other processes go first; `by` is as for ``nice``.

        Raises:
            OSError: it may not be changed.
        """
        os.nice(by)

    def allow_files(count: int) -> None:
        """Let this process open so many files, as far as its hard limit has room for them."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < count:
            room = count if hard == resource.RLIM_INFINITY else min(count, hard)
            with suppress(ValueError):  # macOS takes less than the hard limit that it names
                resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))

    def start_with_socket(
        command: Sequence[str], environment: Mapping[str, str], theirs: socket.socket
    ) -> tuple[subprocess.Popen[bytes], socket.socket | None]:
        """Start a process apart, which has a socket and nothing else; see `take_socket`.

        Returns:
            The process, and a socket to be closed when it says that it has its own.

        Raises:
            OSError: it cannot be started.
        """
        with theirs:
            process = start_apart(
                [*command, str(theirs.fileno())],
                environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        return process, None

    def take_socket() -> socket.socket:
        """The socket that this process was started with."""
        return socket.socket(fileno=int(sys.argv[-1]))


def start_apart(
    command: Sequence[str], environment: Mapping[str, str], **given: Any
) -> subprocess.Popen[bytes]:
    """Start a process which no signal to this one's group reaches.

    Args:
        command: begins with `sys.executable`, or another program.
        environment: what is added to this process's.
        given: to `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    program, needed = interpreter() if command[0] == sys.executable else (command[0], {})
    environment = {**os.environ, **needed, **environment}
    process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603  # our own interpreter
        [program, *command[1:]], env=environment, **_APART, **given
    )
    return process
