"""Makes a process on Linux one that has what a process on Windows has: Python imports it first.

Windows lacks much of `os`, `signal` and `socket`, refuses to open directories, to rename what is
open, and some names. It has modules of its own, which are written here with what Linux has.
"""

from __future__ import annotations

import asyncio.unix_events
import concurrent.futures.process  # noqa: F401  # it and others need what is removed
import contextlib
import errno
import fcntl
import os
import random  # noqa: F401
import re
import secrets
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile  # noqa: F401
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.told import tell_remora

# -- modules of Windows ----------------------------------------------------------------------------

_pidfd_open, _send_signal, _poll = os.pidfd_open, signal.pidfd_send_signal, select.poll
_unix, _real_pair = socket.AF_UNIX, socket.socketpair


def _locking(descriptor: int, mode: int, count: int) -> None:
    kind = fcntl.F_UNLCK if mode == 0 else fcntl.F_WRLCK
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    wanted = struct.pack("@hhqqi", kind, os.SEEK_SET, start, count, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except BlockingIOError as e:
        raise PermissionError(errno.EACCES, "Permission denied") from e


def _wait(handle: int, milliseconds: int) -> int:
    watched = _poll()
    watched.register(handle, select.POLLIN)
    return 0 if watched.poll(milliseconds) else 258


def _module(name: str, **content: Any) -> None:
    module = ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


_module("msvcrt", locking=_locking, LK_UNLCK=0, LK_NBLCK=2)
_module(
    "_winapi",
    OpenProcess=lambda _access, _inherit, pid: _pidfd_open(pid),
    WaitForSingleObject=_wait,
    TerminateProcess=lambda handle, _code: _send_signal(handle, 9),
    CloseHandle=os.close,
    WAIT_OBJECT_0=0,
)


def _share(self: socket.socket, pid: int) -> bytes:
    """Wait, in a thread, for the process that takes the socket by the name that is returned."""
    del pid
    name = f"\0remora {secrets.token_hex(8)}".encode()
    listener = socket.socket(_unix, socket.SOCK_STREAM)
    listener.bind(name)
    listener.listen(1)
    given = os.dup(self.fileno())

    def give() -> None:
        with listener, listener.accept()[0] as taker:
            socket.send_fds(taker, [b"!"], [given])
        os.close(given)

    threading.Thread(target=give, daemon=True).start()
    return name


def _from_share(name: bytes) -> socket.socket:
    with socket.socket(_unix, socket.SOCK_STREAM) as giver:
        giver.connect(name)
        _, (descriptor,), *_ = socket.recv_fds(giver, 1, 1)
    return socket.socket(fileno=descriptor)


def _terminate(self: subprocess.Popen[Any]) -> None:
    self.send_signal(9)


_own: Any = socket
_own.socket.share, _own.fromshare = _share, _from_share
_own.socketpair = lambda *_: _real_pair(_unix)
_own = subprocess
_own.CREATE_NEW_PROCESS_GROUP = _own.CREATE_NO_WINDOW = 0
_own.Popen.terminate = _own.Popen.kill = _terminate
vars(shutil).update(_use_fd_functions=False)
_own = selectors
_own.DefaultSelector = selectors.SelectSelector
_own = signal
_own.SIGBREAK = signal.SIGUSR2

# -- what Windows lacks ----------------------------------------------------------------------------

_LACKING: dict[Any, str] = {
    os: "fchmod fork forkpty getegid geteuid getgid getuid killpg nice pidfd_open pread pwrite "
    "register_at_fork sched_getaffinity setsid sysconf statvfs O_CLOEXEC O_DIRECTORY O_NOFOLLOW "
    "O_PATH",
    signal: "SIGCONT SIGHUP SIGKILL SIGSTOP SIG_BLOCK SIG_SETMASK pidfd_send_signal "
    "pthread_sigmask",
    socket: "AF_UNIX SO_PEERCRED TCP_USER_TIMEOUT",
    select: "epoll poll",
    selectors: "EpollSelector PollSelector",
    asyncio.SelectorEventLoop: "add_signal_handler",
}
_real_fcntl = fcntl
for _where, _names in _LACKING.items():
    for _name in _names.split():
        delattr(_where, _name)
for _name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[_name] = None  # type: ignore[assignment]

# -- what Windows refuses --------------------------------------------------------------------------

_REFUSED = re.compile(
    r'[<>:"|?*\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE
)


def _check_name(path: object) -> None:
    name = os.path.basename(os.fsdecode(path)) if isinstance(path, str | bytes | Path) else ""
    if name not in {"", ".", ".."} and _REFUSED.search(name):
        raise OSError(errno.EINVAL, "The filename, directory name, or volume label is incorrect")


def _check_closed(path: object) -> None:
    """Refuse to rename or remove what this process has open; LanceDB lets others do that."""
    if not isinstance(path, str | bytes | Path) or ".lance" in os.fsdecode(path):
        return
    real = os.path.realpath(os.fsdecode(path))
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            opened = os.readlink(f"/proc/self/fd/{one}")
            if opened == real or opened.startswith(f"{real}/"):
                raise _InUse


class _InUse(Exception):
    """It is open."""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes | Path):
        path = os.fsdecode(arguments[0])
        if not path.startswith(("/proc/", "/dev/")):
            _check_name(path)
            if os.path.isdir(path):
                raise PermissionError(errno.EACCES, "Permission denied", path)
    elif event == "os.mkdir":
        _check_name(arguments[0])
    elif event in {"os.rename", "os.remove", "os.rmdir"}:
        try:
            for one in arguments[: 2 if event == "os.rename" else 1]:
                _check_name(one)
                _check_closed(one)
        except _InUse:
            raise PermissionError(errno.EACCES, "it is being used", arguments[0]) from None


_sync = os.fsync


def _fsync(descriptor: int) -> None:
    if _real_fcntl.fcntl(descriptor, _real_fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    _sync(descriptor)


os.fsync = _fsync  # type: ignore[assignment]
sys.addaudithook(_watch)
_version = (3, 11, 9) if os.environ.get("OLD_PYTHON") else (3, 13)
tell_remora(platform="win32", version_info=_version)
