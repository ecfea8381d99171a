"""One process owns a directory (G12).

The lock is the operating system's, which releases it when its holder dies, so it is never stale. It
is taken on the file ``remora.lock`` and, if the system can, on the directory itself: if the locked
file is removed, another process can lock a new file of the same name. A process that gets past the
locks is fenced by the epoch of the journal.

``owner.json`` names the owner in error messages only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from remora.errors import DirectoryLocked, DirectoryUnusable

if sys.platform != "win32":
    import fcntl

__all__ = ["DirectoryLock", "ReadLock"]

_OWNER, _LOCK = "owner.json", "remora.lock"


class DirectoryLock:
    """Ownership of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._owner = directory / _OWNER
        self._guard = threading.Lock()
        self._released = False
        self._locks = ExitStack()
        self._written = ""

    def acquire(self) -> None:
        """Create the directory if it does not exist, and own it.

        Blocks on the file system, never on another process.

        Raises:
            DirectoryLocked: another process, or another runtime of this one, owns it.
            DirectoryUnusable: it cannot be created or written.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self._directory, os.W_OK | os.X_OK):
                raise PermissionError(13, "no permission to write")
            with self._guard:
                if self._released:  # the caller was cancelled before this thread ran
                    return
                _lock(self._directory, self._locks)
                since = datetime.now(UTC).isoformat(timespec="seconds")
                self._written = json.dumps({"pid": os.getpid(), "since": since})
            self._owner.write_text(self._written)
        except OSError as e:
            self.release()
            raise DirectoryUnusable(
                f"{self._directory} cannot be used as a memory directory: {e.strerror or e}",
                path=self._directory,
            ) from e

    def release(self) -> None:
        """Release the lock; it cannot be acquired again."""
        with self._guard:
            self._released = True
            if self._written:
                with contextlib.suppress(OSError):
                    if self._owner.read_text() == self._written:
                        self._owner.unlink()
            self._locks.close()


class ReadLock:
    """Excludes owners while a directory is read; changes no byte of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / _LOCK
        self._locks = ExitStack()
        self._had_file = False

    def acquire(self) -> None:
        """Hold it. Blocks on the file system, never on another process.

        Raises:
            DirectoryLocked: another process, or a runtime of this one, owns it.
        """
        self._had_file = self._path.exists()
        # without permission to open the file, only the directory is locked
        with contextlib.suppress(OSError):
            _lock(self._directory, self._locks, file=self._had_file)

    def release(self) -> None:
        """Release the lock.

        Raises:
            DirectoryLocked: the system cannot lock directories, and another owner came in between.
        """
        self._locks.close()
        if not self._had_file and os.access(self._directory, os.W_OK) and self._path.exists():
            raise _lock_error(self._directory)


def _lock(directory: Path, locks: ExitStack, *, file: bool = True) -> None:
    """Lock a directory, and its lock file if `file`, until `locks` is closed.

    Raises:
        DirectoryLocked: somebody else holds it.
        OSError: the lock file cannot be created or opened; the directory may be locked.
    """
    import filelock  # noqa: PLC0415  # a tenth of what `import remora` costs with it

    try:
        locks.enter_context(_lock_directory(directory))
        if file:
            # not thread-local: another thread may release it
            lock = filelock.FileLock(
                directory / _LOCK, timeout=0, is_singleton=False, thread_local=False
            )
            lock.acquire()
            locks.callback(lock.release)
    except (filelock.Timeout, BlockingIOError):
        locks.close()
        raise _lock_error(directory) from None


@contextlib.contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    """Lock the directory itself; does nothing where the system cannot.

    Raises:
        BlockingIOError: somebody else holds it.
    """
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # some network file systems lock only files that are open for writing
            pass
        yield
    finally:
        os.close(descriptor)


def _lock_error(directory: Path) -> DirectoryLocked:
    pid, since = _read_owner(directory)
    return DirectoryLocked(
        f"{directory} is in use by process {pid or '?'} since {since or '?'}; one process owns a "
        "memory directory: stop that one, or choose another directory",
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
