"""The identity of a file or directory: a name still leads to what was opened under it, or not."""

from __future__ import annotations

import os
from pathlib import Path


class FilesGone(Exception):
    """A file or directory is no longer where it was opened; the text says which."""


class Identity:
    """A file or directory as it was when this was made. Everything here blocks.

    Args:
        path: it exists.
        never_empty: an empty file in its place is damage.
    """

    __slots__ = ("_never_empty", "_opened", "_path")

    def __init__(self, path: Path, *, never_empty: bool = False) -> None:
        self._path = str(path)
        self._never_empty = never_empty
        found = path.stat()
        self._opened = (found.st_dev, found.st_ino)

    def check(self) -> None:
        """Check that it is still there; takes a microsecond or two.

        Raises:
            FilesGone: it was removed, renamed, replaced or emptied, or so was a directory above it.
        """
        try:
            found = os.stat(self._path)  # noqa: PTH116  # after each commit: twice as fast as Path
        except OSError as e:
            raise FilesGone(f"{self._path} was removed or renamed") from e
        if (found.st_dev, found.st_ino) != self._opened:
            raise FilesGone(f"{self._path} was replaced")
        if self._never_empty and not found.st_size:
            raise FilesGone(f"{self._path} was emptied")
