"""One process owns a directory (G12)."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import filelock

from remora.errors import DirectoryLocked, DirectoryUnusable

__all__ = ["DirectoryLock", "QuietLock"]

_OWNER = "owner.json"


class DirectoryLock:
    """An advisory lock that the operating system drops when its holder dies, so it can never be stale."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # not thread-local: whichever worker thread acquires it, another may release it
        self._lock = filelock.FileLock(directory / "remora.lock", timeout=0, is_singleton=False, thread_local=False)
        self._owner = directory / _OWNER
        self._guard = threading.Lock()
        self._given_up = False

    def acquire(self) -> None:
        """Make the directory if need be, and own it. Blocks on the file system, never on another process.

        Raises:
            DirectoryLocked: another process, or another runtime of this one, owns it.
            DirectoryUnusable: it cannot be made or written.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self._directory, os.W_OK | os.X_OK):
                raise PermissionError(13, "no permission to write")
            with self._guard:
                if self._given_up:  # whoever wanted it was cancelled while this thread was on its way
                    return
                self._lock.acquire()
            self._owner.write_text(json.dumps({"pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}))
        except filelock.Timeout:
            raise _in_use(self._directory) from None
        except OSError as e:
            self._lock.release()
            raise DirectoryUnusable(
                f"{self._directory} cannot be used as a memory directory: {e.strerror or e}", path=self._directory
            ) from e

    def release(self) -> None:
        """Give it up, for good."""
        with self._guard:
            self._given_up = True
            if self._lock.is_locked:
                self._owner.unlink(missing_ok=True)
                self._lock.release()


class QuietLock:
    """Keeps owners away while a directory is looked at, and changes no byte of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "remora.lock"
        self._lock: filelock.FileLock | None = None

    def acquire(self) -> None:
        """Hold it; where nobody ever owned the directory, a backup, say, there is nothing to hold. Blocks on the file system.

        Raises:
            DirectoryLocked: another process, or a runtime of this one, owns it.
        """
        if not self._path.exists():
            return
        lock = filelock.FileLock(self._path, timeout=0, is_singleton=False, thread_local=False)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise _in_use(self._directory) from None
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
            raise _in_use(self._directory)


def _in_use(directory: Path) -> DirectoryLocked:
    pid, since = _read_owner(directory)
    return DirectoryLocked(
        f"{directory} is in use by process {pid or '?'} since {since or '?'}; one process owns a memory "
        "directory: stop that one, or choose another directory",
        path=directory,
        pid=pid,
        since=since,
    )


def _read_owner(directory: Path) -> tuple[int | None, str | None]:
    try:
        owner = json.loads((directory / _OWNER).read_text())
        return int(owner["pid"]), str(owner["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
