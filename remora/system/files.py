"""Files: how they are opened, brought to the disk, replaced, and kept from other accounts."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

PRIVATE_FLAGS = (
    getattr(os, "O_CLOEXEC", 0)  # where it is missing, Python sees to it
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)  # Windows would write \r\n for \n
)
"""Of `os.open`, for a file that is read and written as it is, and never reached through a link."""

if sys.platform == "win32":
    import time

    FULL_SYNC: int | None = None
    """The call that has the drive write what it holds, where ``fsync`` does not: on macOS."""
    KEEPS_PRIVATE = sys.version_info >= (3, 12, 4) or (3, 11, 10) <= sys.version_info < (3, 12)
    """Whether a directory can be made for this account alone: Windows needs a newer Python."""
    HAS_MODES = False
    """Whether modes say who may read a file. On Windows access lists do, inherited from above."""
    _PATIENCE_S = 2.0
    _PAUSE_S = 0.01

    def account() -> int:
        """The account of this process as files name their owner: 0, which is said of each file."""
        return 0

    def set_private(descriptor: int, mode: int) -> None:
        """Give an open file a mode: nothing to do here."""

    def sync_file(descriptor: int) -> None:
        """Have an open file on disk, also in the drive.

        Raises:
            OSError: the disk refused.
        """
        os.fsync(descriptor)

    def sync_path(path: Path) -> None:
        """Sync a file, or the names in a directory, to the disk.

        Windows syncs no directories: its file systems note names in a journal of their own.

        Raises:
            OSError: the disk refused.
        """
        if path.is_dir():
            return
        descriptor = os.open(path, os.O_RDWR | PRIVATE_FLAGS)  # it syncs what may be written
        try:
            sync_file(descriptor)
        finally:
            os.close(descriptor)

    def replace(source: Path, path: Path) -> None:
        """Give a file the name of another one, which is gone then, in one step.

        Windows refuses that while the other one is open, for instance to be read. So it is tried
        again for a while.

        Raises:
            OSError: it cannot be done.
        """
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                source.replace(path)
            except PermissionError:
                if time.monotonic() > end:
                    raise
                time.sleep(_PAUSE_S)
            else:
                return

    def write_at(descriptor: int, data: bytes, position: int, /) -> int:
        """Write at a position of an open file, which one thread at a time does."""
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.write(descriptor, data)

    def free_pages(mapped: mmap.mmap) -> None:
        """Have a mapped file take no memory until it is read again: Windows decides that alone."""

else:
    import fcntl

    KEEPS_PRIVATE = True
    """Whether a directory can be made for this account alone: Windows needs a newer Python."""
    HAS_MODES = True
    """Whether modes say who may read a file. On Windows access lists do, inherited from above."""
    FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    """The call that has the drive write what it holds, where ``fsync`` does not: on macOS."""

    def account() -> int:
        """The account of this process as files name their owner."""
        return os.geteuid()

    def set_private(descriptor: int, mode: int) -> None:
        """Give an open file a mode.

        Raises:
            OSError: it belongs to another account, or its file system has no modes.
        """
        os.fchmod(descriptor, mode)

    def sync_file(descriptor: int) -> None:
        """Have an open file on disk, also in the drive.

        Raises:
            OSError: the disk refused.
        """
        if FULL_SYNC is not None:
            try:
                fcntl.fcntl(descriptor, FULL_SYNC)
            except OSError:  # its file system does not know that
                pass
            else:
                return
        os.fsync(descriptor)

    def sync_path(path: Path) -> None:
        """Sync a file, or the names in a directory, to the disk.

        Raises:
            OSError: the disk refused.
        """
        descriptor = os.open(path, os.O_RDONLY)
        try:
            sync_file(descriptor)
        finally:
            os.close(descriptor)

    def replace(source: Path, path: Path) -> None:
        """Give a file the name of another one, which is gone then, in one step.

        Raises:
            OSError: it cannot be done.
        """
        source.replace(path)

    write_at = os.pwrite

    def free_pages(mapped: mmap.mmap) -> None:
        """Have a mapped file take no memory until it is read again."""
        mapped.madvise(mmap.MADV_DONTNEED)


def read_whole(descriptor: int, most: int) -> bytes:
    """The first bytes of an open file, at most `most`; the position in it changes."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, most)


def write_whole(descriptor: int, data: bytes) -> None:
    """Replace the content of an open file; the position in it changes."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, data)
