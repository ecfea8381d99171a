"""One process owns a directory (G12).

The lock is the operating system's, which releases it when its holder dies, so it is never stale. It
is taken on the file ``remora.lock`` and, if the system can, on the directory itself: if the locked
file is removed, another process can lock a new file of the same name. A process that gets past the
locks is fenced by the epoch of the journal.

``owner.json`` names the owner in error messages. Where other processes are served, it names the
socket as well, and what serves them writes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import anyio

from remora.errors import DirectoryLocked
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.threads import run_in_thread
from remora.storage.files import open_private, prepare_directory, unusable_directory
from remora.system.forks import closing
from remora.system.locks import lock_file, open_to_lock, unlock_file

_logger = get_logger(__name__)
_OWNER, _LOCK = "owner.json", "remora.lock"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25
_held: set[tuple[int, int]] = set()
"""Device and inode of each directory that a runtime of this process owns."""
_kept: set[tuple[int, int]] = set()
"""Likewise of each directory whose ``owner.json`` something else in this process writes."""


class DirectoryLock:
    """Ownership of a directory.

    Args:
        directory: it need not exist.
        shared: with others that share it; nobody else owns the directory then.
    """

    def __init__(self, directory: Path, *, shared: bool = False) -> None:
        self._directory = directory
        self._shared = shared
        self._owner = directory / _OWNER
        self._guard = threading.Lock()
        self._released = False
        self._locks = ExitStack()
        self._written = ""
        self._pid = os.getpid()

    def acquire(self) -> None:
        """Create the directory if it does not exist, and own it.

        Blocks on the file system, never on another process.

        Raises:
            DirectoryLocked: another process, or another runtime of this one, owns it.
            DirectoryUnusable: it cannot be created or written, or a file of it is a symbolic link.
        """
        try:
            prepare_directory(self._directory)
            if not os.access(self._directory, os.W_OK | os.X_OK):
                raise PermissionError(13, "no permission to write")
            with self._guard:
                if self._released:  # the caller was cancelled before this thread ran
                    return
                _lock(self._directory, self._locks, shared=self._shared)
                self._locks.enter_context(_hold(self._directory))
                if _identity(self._directory) in _kept:
                    return
                since = datetime.now(UTC).isoformat(timespec="seconds")
                self._written = json.dumps({"pid": os.getpid(), "since": since})
            self._write_owner()
        except OSError as e:
            self.release()
            raise unusable_directory(self._directory, e) from e

    def held_by_this_process(self) -> bool:
        """Return whether another runtime of this process owns the directory. Blocks."""
        with contextlib.suppress(OSError):
            return _identity(self._directory) in _held
        return False

    def _write_owner(self) -> None:
        descriptor = open_private(self._owner, os.O_WRONLY | os.O_TRUNC)
        with os.fdopen(descriptor, "w") as file:
            file.write(self._written)

    def release(self) -> None:
        """Release the lock; it cannot be acquired again.

        In a child that was forked while it was held, the parent goes on owning the directory.
        """
        with self._guard:
            self._released = True
            if self._written and os.getpid() == self._pid:
                with contextlib.suppress(OSError):
                    if self._owner.read_text() == self._written:
                        self._owner.unlink()
            self._locks.close()


async def wait_for_lock(lock: DirectoryLock, wait_s: float, clock: Clock) -> None:
    """Own a directory, as soon as the process that owns it leaves it.

    Args:
        lock: of the directory.
        wait_s: how long to wait. A runtime of this same process is not waited for: it may be the
            caller's own.
        clock: measures the time.

    Raises:
        DirectoryLocked: it is still owned by another.
        DirectoryUnusable: see `DirectoryLock.acquire`.
    """
    end, pause_s, waits = clock.monotonic() + wait_s, _FIRST_PAUSE_S, False
    while True:
        try:
            await run_in_thread(lock.acquire)
        except DirectoryLocked as e:
            left_s = end - clock.monotonic()
            if not wait_s or await run_in_thread(lock.held_by_this_process):
                raise
            if left_s <= 0:
                raise DirectoryLocked(
                    f"{e}. It did not leave within lock_wait_s ({wait_s:g} s)",
                    path=e.path,
                    pid=e.pid,
                    since=e.since,
                ) from None
            if not waits:
                waits = True
                _logger.info(
                    "waiting_for_directory",
                    path=str(e.path),
                    pid=e.pid,
                    since=e.since,
                    wait_s=wait_s,
                )
            await clock.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            return


@contextlib.asynccontextmanager
async def own_directories(*directories: Path) -> AsyncIterator[None]:
    """Own directories, in this order, within the context.

    Raises:
        DirectoryLocked, DirectoryUnusable: see `DirectoryLock.acquire`; none of them is owned.
    """
    locks = [DirectoryLock(one) for one in dict.fromkeys(directories)]

    def acquire() -> None:
        for lock in locks:
            lock.acquire()

    def release() -> None:
        for lock in reversed(locks):
            lock.release()

    try:
        await run_in_thread(acquire)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(release)


class ReadLock:
    """Excludes owners while a directory is read; changes no byte of it.

    Args:
        directory: of the memory.
        shared: those that share it are not excluded.
    """

    def __init__(self, directory: Path, *, shared: bool = False) -> None:
        self._directory = directory
        self._shared = shared
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
            _lock(self._directory, self._locks, file=self._had_file, shared=self._shared)

    def release(self) -> None:
        """Release the lock.

        Raises:
            DirectoryLocked: the system cannot lock directories, and another owner came in between.
        """
        self._locks.close()
        if not self._had_file and os.access(self._directory, os.W_OK) and self._path.exists():
            raise lock_error(self._directory)


def _lock(directory: Path, locks: ExitStack, *, file: bool = True, shared: bool = False) -> None:
    """Lock a directory, and its lock file if `file`, until `locks` is closed.

    Others that ask for it `shared` may have it at the same time; Windows knows no such lock.

    Raises:
        DirectoryLocked: somebody else holds it.
        OSError: the lock file cannot be created or opened; the directory may be locked.
    """
    try:
        locks.enter_context(_lock_directory(directory, shared=shared))
        if file:
            locks.enter_context(_lock_file(directory / _LOCK, shared=shared))
    except BlockingIOError:
        locks.close()
        raise lock_error(directory) from None


@contextlib.contextmanager
def _lock_directory(directory: Path, *, shared: bool) -> Iterator[None]:
    """Lock the directory itself; does nothing where the system cannot.

    Raises:
        BlockingIOError: somebody else holds it.
    """
    descriptor = open_to_lock(directory)
    with contextlib.ExitStack() as locked:
        if descriptor is not None:
            locked.enter_context(closing(descriptor))
            try:
                locked.enter_context(_hold_lock(descriptor, shared=shared))
            except BlockingIOError:
                raise
            except OSError:  # some network file systems lock only files that are open for writing
                pass
        yield


@contextlib.contextmanager
def _lock_file(path: Path, *, shared: bool) -> Iterator[None]:
    descriptor = open_private(path, os.O_RDWR)
    with closing(descriptor), _hold_lock(descriptor, shared=shared):
        yield


@contextlib.contextmanager
def _hold_lock(descriptor: int, *, shared: bool) -> Iterator[None]:
    """Hold the lock of an open file, in this process and never in a child of it."""
    lock_file(descriptor, shared=shared)
    try:
        yield
    finally:
        unlock_file(descriptor)


def _identity(directory: Path) -> tuple[int, int]:
    found = directory.stat()
    return found.st_dev, found.st_ino


def keep_owner_file(directory: Path) -> contextlib.AbstractContextManager[None]:
    """Leave a directory's ``owner.json`` as it is when a runtime of this process owns it. Blocks.

    Raises:
        OSError: there is no such directory.
    """
    return _within(_kept, directory)


def _hold(directory: Path) -> contextlib.AbstractContextManager[None]:
    return _within(_held, directory)


@contextlib.contextmanager
def _within(identities: set[tuple[int, int]], directory: Path) -> Iterator[None]:
    identity = _identity(directory)
    identities.add(identity)
    try:
        yield
    finally:
        identities.discard(identity)


def lock_error(directory: Path) -> DirectoryLocked:
    """Return the error that says who owns a directory. Blocks."""
    pid, since, target = _read_owner(directory)
    if pid == os.getpid():
        remedy = "this process has it open in another runtime: use that one, or close it first"
    elif target:
        remedy = (
            f"it serves other processes: a program uses remora.connect({target!r}) instead of "
            "Runtime; a command has to wait until these, and then that process, have ended"
        )
    else:
        remedy = (
            "one process owns a memory directory: stop that one, start the server with one worker "
            "(--workers 1), choose another directory, or have all of them use remora.connect "
            "instead of Runtime, to share it"
        )
    return DirectoryLocked(
        f"{directory} is in use by process {pid or '?'} since {since or '?'}; {remedy}",
        path=directory,
        pid=pid,
        since=since,
    )


def _read_owner(directory: Path) -> tuple[int | None, str | None, str]:
    """Process, since when, and the target that it serves; empty if it serves none."""
    try:
        owner = json.loads((directory / _OWNER).read_text())
        return int(owner["pid"]), str(owner["since"]), str(owner.get("target", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, None, ""
