"""Children of tests that need a fresh process, but not a fresh import.

A test starts programs by ``subprocess`` or ``anyio`` as an application would. Where the program is
this interpreter with ``-m`` or ``-c``, it is forked from a *zygote*: a process that has imported
what most of them import, which takes a second or two, and has done nothing else. All else about
the child is as if it had been started: its arguments, environment, directory, descriptors and
signals, and its parent is the test's process, which is a subreaper. It dies with that process.

A test that is about a start from nothing, or about what is imported when, is marked ``cold``. A
program also starts cold if it has options or variables of the interpreter, the loader or the
allocator, or if it would import another copy of this repository.

Linux only; elsewhere every program starts cold.
"""

from __future__ import annotations

import builtins
import ctypes
import functools
import gc
import importlib
import inspect
import json
import logging
import os
import runpy
import socket
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["cold_start", "die_with_parent", "forked_children", "serve"]

ROOT = Path(__file__).resolve().parents[1]
PRELOADED = (
    "asyncio", "http.client", "json", "logging", "ssl", "anyio._backends._asyncio", "aiosqlite",
    "filelock", "lance_namespace", "numpy", "pyarrow", "pyarrow.compute", "pyarrow.dataset",
    "pydantic", "rich", "sentencex", "structlog", "tiktoken", "wordllama", "yaml",
    "remora.api.runtime", "remora.testing",
)  # fmt: skip
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_EARLY = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
_HIGH = 300
_SERVE = "from tests.zygote import serve; serve()"
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_parent(how: int = 9) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, how, 0, 0, 0)


_cold = types.SimpleNamespace(on=False)


def _be_subreaper(flag: int) -> None:
    assert _prctl is not None
    _prctl(_PR_SET_CHILD_SUBREAPER, flag, 0, 0, 0)


# -- in the process of tests -----------------------------------------------------------------------


@contextmanager
def forked_children() -> Iterator[None]:
    """Within, programs that can be are forked from a zygote, which the first of them starts."""
    if _prctl is None:
        yield
        return
    start = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(start)
    zygote = _Zygote()

    @functools.wraps(start)
    def execute(*arguments: Any, **options: Any) -> None:
        asked = signature.bind(*arguments, **options).arguments
        if _cold.on or not (_can_be_forked(asked) and zygote.execute(asked)):
            start(*arguments, **options)

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = start  # type: ignore[attr-defined]
        zygote.close()


@contextmanager
def cold_start() -> Iterator[None]:
    """Within, every program is started from nothing."""
    before, _cold.on = _cold.on, True
    try:
        yield
    finally:
        _cold.on = before


def _can_be_forked(asked: dict[str, Any]) -> bool:
    words = asked["args"]
    if isinstance(words, str | bytes) or asked["shell"] or asked["preexec_fn"] is not None:
        return False
    words = list(map(os.fsdecode, words))
    if words[0] != sys.executable or words[1:2] not in (["-m"], ["-c"]) or len(words) < 3:
        return False
    if any(asked[name] not in (None, -1) for name in ("executable", "uid", "gid", "gids", "umask")):
        return False
    environment = os.environ if asked["env"] is None else asked["env"]
    if _read_at_start(environment) != _read_at_start(os.environ):
        return False
    searched = {_directory(asked), *map(Path, _search_path(environment))} - {ROOT}
    if any((one / name).exists() for one in searched for name in ("remora", "tests")):
        return False
    return words[2] not in {"pytest", _SERVE}


def _search_path(environment: Mapping[str, str]) -> list[str]:
    return [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]


def _directory(asked: dict[str, Any]) -> Path:
    return Path(os.fsdecode(asked["cwd"] or ".")).resolve()


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that the interpreter, the loader or the allocator reads, and nobody after them."""
    return {
        name: value
        for name, value in environment.items()
        if str(name).startswith(_EARLY) and name != "PYTHONPATH"
    }


class _Zygote:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def execute(self, asked: dict[str, Any]) -> bool:
        """Start a child; False if that is impossible. See ``subprocess.Popen._execute_child``."""
        child = asked["self"]
        inherited = [
            own if given == -1 else given
            for own, given in enumerate((asked["p2cread"], asked["c2pwrite"], asked["errwrite"]))
        ]
        passed = sorted(asked["pass_fds"])
        request = {
            "words": list(map(os.fsdecode, asked["args"])),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "directory": str(_directory(asked)),
            "session": bool(asked["start_new_session"]),
            "group": asked.get("process_group", -1),
            "descriptors": [0, 1, 2, *passed],
        }
        with self._lock:
            pid = self._ask(request, [*inherited, *passed])
        if not pid:
            return False
        child.pid, child._child_created = pid, True
        child._close_pipe_fds(*(asked[name] for name in _PIPES))
        return True

    def _ask(self, request: dict[str, Any], descriptors: list[int]) -> int:
        connection = self._connect()
        try:
            text = json.dumps(request).encode()
        except TypeError:  # what no environment can have: the real start says so
            return 0
        try:
            # only for this moment: what other processes leave behind is the system's to end
            _be_subreaper(1)
            socket.send_fds(connection, [struct.pack("!I", len(text))], descriptors)
            connection.sendall(text)
            (pid,) = struct.unpack("!I", connection.recv(4, socket.MSG_WAITALL))
        except (OSError, struct.error):  # it ended: the next request starts another
            self.close()
            return 0
        finally:
            _be_subreaper(0)
        return int(pid)

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _SERVE],
                    cwd=ROOT,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={
                        **os.environ,
                        "OPENBLAS_NUM_THREADS": "1",
                    },  # threads do not survive a fork
                )
        return self._socket

    def close(self) -> None:
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._socket = None
            self._process.wait()


# -- in the zygote ---------------------------------------------------------------------------------


def serve() -> None:
    """Fork a child for each request on descriptor 0. Returns at its end, and never in a child."""
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    logging.root.handlers.clear()  # that of wordllama
    logging.root.setLevel(logging.WARNING)
    assert threading.active_count() == 1
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    gc.collect()
    gc.freeze()
    while head := _receive(connection):
        request, descriptors = head
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            os.close(reading)
            parent = os.getpid()
            pid = os.fork()
            if pid:
                os.write(writing, struct.pack("!I", pid))
                os._exit(0)
            os.close(writing)
            connection.close()
            _be_child(request, descriptors, parent)
            return
        os.close(writing)
        answer = os.read(reading, 4)
        os.close(reading)
        os.waitpid(between, 0)  # from here on the child's parent is the process of tests
        for one in descriptors:
            os.close(one)
        connection.sendall(answer)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, descriptors, _, _ = socket.recv_fds(connection, 4, 64)
    if not head:
        return None
    (length,) = struct.unpack("!I", head)
    text = connection.recv(length, socket.MSG_WAITALL)
    return json.loads(text), descriptors


def _be_child(request: dict[str, Any], descriptors: list[int], parent: int) -> None:
    """Run the program; what it raises is the interpreter's to report, as ever."""
    import fcntl  # noqa: PLC0415  # Windows has none

    high = [fcntl.fcntl(one, fcntl.F_DUPFD, _HIGH) for one in descriptors]
    os.closerange(3, _HIGH)
    for one, wanted in zip(high, request["descriptors"], strict=True):
        os.dup2(one, wanted)
        os.close(one)
    while os.getppid() == parent:
        os.sched_yield()
    die_with_parent()
    if request["session"]:
        os.setsid()
    if request["group"] is not None and request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[1:1] = _search_path(request["environment"])
    sys.orig_argv[:] = words = request["words"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if words[1] == "-m":
        sys.path[0], sys.argv[:] = request["directory"], words[2:]
        runpy._run_module_as_main(words[2])  # type: ignore[attr-defined]
    else:
        sys.argv[:] = ["-c", *words[3:]]
        exec(compile(words[2], "<string>", "exec"), main.__dict__)
