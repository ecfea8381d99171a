"""Files and directories written as a whole or not at all: staged, synced, renamed (G4).

Everything here blocks.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from pathlib import Path

from remora.errors import InvalidInput
from remora.storage.private import make_private, make_private_directory
from remora.system.files import replace, sync_path


class AtomicTarget:
    """A path to write.

    Args:
        path: the path. Its directory must exist.
        overwrite: replace what is there. A file is replaced in one step; a directory is first
            renamed, with ``.old-…`` added, and a crash between the two steps leaves it so.
        replaceable: whether the caller's own caller could have asked for `overwrite`.

    Attributes:
        staging: the path to write to until `commit`, in the same directory.

    Raises:
        InvalidInput: there is something at `path`, or no directory for it.
    """

    def __init__(self, path: Path, *, overwrite: bool, replaceable: bool = True) -> None:
        self.path = path
        self._overwrite = overwrite
        self._token = secrets.token_hex(4)
        if path.exists() and not overwrite:
            hint = ", or pass overwrite=True (--overwrite)" if replaceable else ""
            raise InvalidInput(f"{path} exists already: choose another name{hint}")
        if not path.parent.is_dir():
            raise InvalidInput(f"there is no directory {path.parent} to write {path.name} into")
        self.staging = path.with_name(f"{path.name}.new-{self._token}")

    def commit(self) -> None:
        """Sync what was written, take it from other accounts, and give it its name.

        Raises:
            InvalidInput: something else was written to the path in the meantime.
            OSError: the disk refused; what was there before is still there.
        """
        for one in self.staging.rglob("*") if self.staging.is_dir() else ():
            make_private(one)
            sync_path(one)
        make_private(self.staging)
        sync_path(self.staging)
        if self.path.exists() and not self._overwrite:
            raise InvalidInput(f"{self.path} exists by now; nothing was replaced")
        if self.path.is_dir() or (self.path.exists() and self.staging.is_dir()):
            aside = self.path.with_name(f"{self.path.name}.old-{self._token}")
            self.path.rename(aside)
            self.staging.rename(self.path)
            sync_path(self.path.parent)
            _remove(aside)
        else:
            replace(self.staging, self.path)
            sync_path(self.path.parent)

    def abandon(self) -> None:
        """Remove what was staged."""
        _remove(self.staging)


def copy_target(source: Path, dest: Path) -> AtomicTarget:
    """The target of a copy of a directory: one that does not exist, or is empty.

    Raises:
        InvalidInput: something is there, or it is in the directory itself.
    """
    if dest.resolve().is_relative_to(source.resolve()):
        raise InvalidInput(f"{dest} is in {source} itself; a backup must stand elsewhere")
    if dest.is_dir() and not any(dest.iterdir()):
        dest.rmdir()  # an empty directory was made for it
    return AtomicTarget(dest, overwrite=False, replaceable=False)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def make_empty(directory: Path) -> None:
    """Make a directory without content, for this account alone; what is there is removed."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(directory)
    make_private_directory(directory)


def sync_tree(directory: Path) -> None:
    """Have a directory and all that is in it on disk, for this account alone."""
    for one in (*directory.rglob("*"), directory):
        make_private(one)
        sync_path(one)
