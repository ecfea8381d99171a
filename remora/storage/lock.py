"""One process owns a directory (G12)."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from remora.errors import DirectoryLocked, DirectoryUnusable

if TYPE_CHECKING:
    import filelock

__all__ = ["DirectoryLock", "ReadLock"]

_OWNER = "owner.json"


_held: set[tuple[int, int, int]] = set()
"""Directories that this process owns, by process, device and inode, whatever became of their lock
files.
"""
_held_guard = threading.Lock()


class DirectoryLock:
    """An advisory lock that the operating system drops when its holder dies, so it can never be
    stale.

    The lock is on a file, and somebody may remove that file while it is held: another would then
    lock a new one of the same name. So the owner also leaves its process id and the time at which
    that process was started; while such a process lives, the directory is in use, whatever the lock
    says. What a killed owner left says nothing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: filelock.BaseFileLock | None = None
        self._owner = directory / _OWNER
        self._guard = threading.Lock()
        self._released = False
        self._place: tuple[int, int, int] | None = None
        self._left = ""

    def acquire(self) -> None:
        """Make the directory if need be, and own it.

        Blocks on the file system, never on another process.

        Raises:
            DirectoryLocked: another process, or another runtime of this one, owns it.
            DirectoryUnusable: it cannot be made or written.
        """
        # a tenth of what `import remora` costs with it; this runs in a worker thread
        import filelock  # noqa: PLC0415

        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self._directory, os.W_OK | os.X_OK):
                raise PermissionError(13, "no permission to write")
            with self._guard:
                if (
                    self._released
                ):  # whoever wanted it was cancelled while this thread was on its way
                    return
                # not thread-local: whichever worker thread acquires it, another may release it
                lock = filelock.FileLock(
                    self._directory / "remora.lock",
                    timeout=0,
                    is_singleton=False,
                    thread_local=False,
                )
                lock.acquire()
                self._lock = lock
                found = self._directory.stat()
                place = (os.getpid(), found.st_dev, found.st_ino)
                with _held_guard:
                    if place in _held or _lives(self._directory):
                        lock.release()
                        raise _locked_error(self._directory)
                    _held.add(place)
                self._place = place
                since = datetime.now(UTC).isoformat(timespec="seconds")
                self._left = json.dumps(
                    {"pid": os.getpid(), "since": since, "started": _started(os.getpid())}
                )
            self._owner.write_text(self._left)
        except filelock.Timeout:
            raise _locked_error(self._directory) from None
        except OSError as e:
            self.release()
            raise DirectoryUnusable(
                f"{self._directory} cannot be used as a memory directory: {e.strerror or e}",
                path=self._directory,
            ) from e

    def release(self) -> None:
        """Give it up, for good."""
        with self._guard:
            self._released = True
            if self._lock is not None and self._lock.is_locked:
                with contextlib.suppress(OSError):
                    if self._owner.read_text() == self._left:
                        self._owner.unlink()
                self._lock.release()
            if self._place is not None:
                with _held_guard:
                    _held.discard(self._place)
                self._place = None


class ReadLock:
    """Keeps owners away while a directory is looked at, and changes no byte of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "remora.lock"
        self._lock: filelock.BaseFileLock | None = None

    def acquire(self) -> None:
        """Hold it.

        Where nobody ever owned the directory, a backup, say, there is nothing to hold. Blocks on
        the file system.

        Raises:
            DirectoryLocked: another process, or a runtime of this one, owns it.
        """
        import filelock  # noqa: PLC0415  # see `DirectoryLock.acquire`

        if _lives(self._directory):
            raise _locked_error(self._directory)
        if not self._path.exists():
            return
        lock = filelock.FileLock(self._path, timeout=0, is_singleton=False, thread_local=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise _locked_error(self._directory) from None
        except OSError:  # nobody can own what nobody can write to
            return
        self._lock = lock

    def release(self) -> None:
        """Give it up.

        Raises:
            DirectoryLocked: there was nothing to hold, and an owner has come meanwhile.
        """
        if self._lock is not None:
            self._lock.release()
        elif os.access(self._directory, os.W_OK) and self._path.exists():
            raise _locked_error(self._directory)


def _locked_error(directory: Path) -> DirectoryLocked:
    pid, since = _read_owner(directory)
    return DirectoryLocked(
        f"{directory} is in use by process {pid or '?'} since {since or '?'}; one process owns a "
        "memory "
        "directory: stop that one, or choose another directory",
        path=directory,
        pid=pid,
        since=since,
    )


def _started(pid: int) -> str | None:
    """When a process that runs was started: another that is given its number is told from it.

    None where nobody can say.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        after_its_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if after_its_name[0] in {"Z", "X"} else f"{boot}/{after_its_name[19]}"
    except (OSError, IndexError):
        return None


def _lives(directory: Path) -> bool:
    """Whether the owner that is named in a directory is another process, and runs."""
    try:
        owner = json.loads((directory / _OWNER).read_text())
        pid, started = int(owner["pid"]), owner["started"]
    except (OSError, ValueError, KeyError, TypeError):
        return False  # it is missing, torn, or not ours
    return pid != os.getpid() and isinstance(started, str) and started == _started(pid)


def _read_owner(directory: Path) -> tuple[int | None, str | None]:
    try:
        owner = json.loads((directory / _OWNER).read_text())
        return int(owner["pid"]), str(owner["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
