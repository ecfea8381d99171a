"""Locks of open files, which end with the process that holds them.

On POSIX systems ``flock``, which other processes may share. On Windows the lock of one byte far
behind the content: Windows refuses to read locked bytes by another handle, and this lock cannot be
shared.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import errno
    import msvcrt
    import time

    CAN_SHARE = False
    """Whether several processes can hold a lock together."""
    _BYTE = 1 << 30
    _PAUSE_S = 0.05

    def lock_file(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
        """Lock an open file; the position in it changes.

        Args:
            descriptor: of the file, open for writing.
            shared: others may have the lock, too, if they share it; see `CAN_SHARE`.
            wait: until nobody else has it. Blocks.

        Raises:
            BlockingIOError: somebody else has it.
            OSError: the file system has no locks.
        """
        del shared
        while True:
            os.lseek(descriptor, _BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError as e:
                if e.errno not in {errno.EACCES, errno.EDEADLK}:
                    raise
                if not wait:
                    raise BlockingIOError(e.errno, "another process has the lock") from e
                time.sleep(_PAUSE_S)
            else:
                return

    def unlock_file(descriptor: int) -> None:
        """Give the lock of an open file back; the position in it changes."""
        os.lseek(descriptor, _BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

    def open_to_lock(directory: Path) -> int | None:
        """Open a directory, to lock it; None where the system has no locks of directories.

        Raises:
            OSError: it cannot be opened.
        """
        del directory
        return None

else:
    import fcntl

    CAN_SHARE = True
    """Whether several processes can hold a lock together."""

    def lock_file(descriptor: int, *, shared: bool = False, wait: bool = False) -> None:
        """Lock an open file; the position in it changes.

        Args:
            descriptor: of the file, open for writing.
            shared: others may have the lock, too, if they share it; see `CAN_SHARE`.
            wait: until nobody else has it. Blocks.

        Raises:
            BlockingIOError: somebody else has it.
            OSError: the file system has no locks.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind | (0 if wait else fcntl.LOCK_NB))

    def unlock_file(descriptor: int) -> None:
        """Give the lock of an open file back; the position in it changes."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def open_to_lock(directory: Path) -> int | None:
        """Open a directory, to lock it; None where the system has no locks of directories.

        Raises:
            OSError: it cannot be opened.
        """
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
