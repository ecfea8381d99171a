"""Processes that tests start, stop and end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["bound", "free_port", "http_server", "is_asleep", "stop"]

_SETPRIV = shutil.which("setpriv") if sys.platform == "linux" else None


def bound(*command: str | os.PathLike[str], end: signal.Signals | None = None) -> list[str]:
    """A command whose process gets a signal when the thread ends that starts it, however it ends.

    That should be a thread that ends with the test process, which may be killed. Programs that are
    forked (tests.zygote) are bound already.
    """
    words = [os.fspath(one) for one in command]
    forked = words[0] == sys.executable and words[1] in {"-m", "-c"}
    if forked or _SETPRIV is None:
        return words
    return [_SETPRIV, "--pdeathsig", end.name.removeprefix("SIG") if end else "KILL", "--", *words]


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def http_server(
    directory: Path, keys: Path, port: int = 0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``remora http`` as a process, once it answers, and its address; it is killed in the end."""
    words = ("http", directory, "--keys", keys, "--port", str(port))
    command = bound(sys.executable, "-m", "remora", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            assert "serving" in told, told
            yield process, told.split()[-1]
        finally:
            process.kill()


def stop(pid: int) -> None:
    """Stop a process, and return when none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    while any(_state(thread) != "T" for thread in Path(f"/proc/{pid}/task").iterdir()):
        os.sched_yield()


def is_asleep(pid: int) -> bool:
    """Whether the main thread of a process waits for something."""
    return _state(Path(f"/proc/{pid}/task/{pid}")) == "S"


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(") ")[2][0]
