"""Files and directories that are there whole or not at all: written beside, synced, renamed (G4).

Everything here blocks.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from remora.errors import InvalidInput

__all__ = ["AtomicTarget", "sync_path"]


class AtomicTarget:
    """A path that is to be written.

    Args:
        path: where the result is to stand. Its directory must exist.
        overwrite: replace what is there. A file gives way in one step; a directory is moved aside
            first, and a crash between the two steps leaves it there, under its name with ``.old-…``
            added.

    Attributes:
        beside: what to write instead, in the same directory.

    Raises:
        InvalidInput: something is there already, or the directory is not.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path = path
        self._overwrite = overwrite
        self._token = secrets.token_hex(4)
        if path.exists() and not overwrite:
            raise InvalidInput(
                f"{path} exists already: choose another name, or pass overwrite=True (--overwrite)"
            )
        if not path.parent.is_dir():
            raise InvalidInput(f"there is no directory {path.parent} to write {path.name} into")
        self.beside = path.with_name(f"{path.name}.new-{self._token}")

    def commit(self) -> None:
        """Sync what was written, and give it its name.

        Raises:
            InvalidInput: something has come there meanwhile.
            OSError: the disk refused; what was there before is still there.
        """
        for one in self.beside.rglob("*") if self.beside.is_dir() else ():
            sync_path(one)
        sync_path(self.beside)
        if self.path.exists() and not self._overwrite:
            raise InvalidInput(f"{self.path} has come into being meanwhile; nothing was replaced")
        if self.path.is_dir() or (self.path.exists() and self.beside.is_dir()):
            aside = self.path.with_name(f"{self.path.name}.old-{self._token}")
            self.path.rename(aside)
            self.beside.rename(self.path)
            sync_path(self.path.parent)
            _remove(aside)
        else:
            self.beside.replace(self.path)
            sync_path(self.path.parent)

    def abandon(self) -> None:
        """Remove what was written beside."""
        _remove(self.beside)


def sync_path(path: Path) -> None:
    """Have a file, or the names in a directory, on the disk.

    Raises:
        OSError: the disk refused.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
