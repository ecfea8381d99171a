"""The memory directory and its files: for their owner alone, and never reached through a link.

Conversations of all users are in these files. Each directory that remora makes has the mode 0700,
and each file 0600, whatever the umask; a file that a library makes (SQLite, LanceDB) is in such a
directory. Somebody who may write to the directory could put a symbolic link in a file's place, and
have remora overwrite another file: such links are refused.

What is written whole or not at all has an `AtomicTarget`; an `Identity` tells whether a name still
leads to what was opened under it.

Everything here blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from remora.errors import DirectoryUnusable, InvalidInput
from remora.logging import get_logger
from remora.system.files import HAS_MODES, PRIVATE_FLAGS, replace, set_private, sync_path

_logger = get_logger(__name__)
_JOURNAL = "journal.db"
_SHARDS = "shards.json"
_FILES = (
    _SHARDS,
    "reshard.json",
    "remora.lock",
    _JOURNAL,
    f"{_JOURNAL}-wal",
    f"{_JOURNAL}-shm",
    "journal.mark",
)
_OWNERS = re.compile(
    r"(owner(-\d+)?\.(json|lock|log|log\.1|sock))|((control|status)(-\d+)?\.sock)"
    r"|(next-owner(-\d+)?\.json)|(spawn(-\d+)?\.lock)"
)
"""Files of the processes that own it; see `remora.cluster.place`."""
_DIRECTORIES = re.compile(r"attachments|longterm(-\d+)?|shard-\d{2,3}(-\d+)?")
_DIRECTORY, _FILE = 0o700, 0o600
_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def open_private(path: Path, flags: int) -> int:
    """Open a file, made with the mode 0600 if it does not exist; returns its descriptor.

    Raises:
        OSError: it cannot be opened, or is a symbolic link.
    """
    descriptor = os.open(path, flags | os.O_CREAT | PRIVATE_FLAGS, _FILE)
    if HAS_MODES and stat.S_IMODE(os.fstat(descriptor).st_mode) != _FILE:
        with contextlib.suppress(OSError):
            set_private(descriptor, _FILE)
    return descriptor


def make_private_directory(path: Path) -> bool:
    """Make a directory with the mode 0700 unless it exists; whether it was made.

    Raises:
        OSError: it cannot be made, or there is a file in its place.
    """
    if path.is_dir():
        return False
    path.mkdir(mode=_DIRECTORY, parents=True, exist_ok=True)
    path.chmod(_DIRECTORY)
    return True


def make_private(path: Path) -> bool:
    """Take a file or directory from everybody but its owner; whether its mode changed.

    Does nothing to what belongs to another account, or where the file system has no modes.
    """
    mode = path.lstat().st_mode
    if not HAS_MODES or stat.S_ISLNK(mode) or not mode & _OTHERS:
        return False
    with contextlib.suppress(OSError):
        path.chmod(_DIRECTORY if stat.S_ISDIR(mode) else _FILE)
    return path.lstat().st_mode != mode


def refuse_links(directory: Path) -> None:
    """Check that no name of remora's in a memory directory is a symbolic link.

    Raises:
        DirectoryUnusable: one is.
    """
    for path in _own(directory):
        if path.is_symlink():
            raise DirectoryUnusable(
                f"{path} is a symbolic link, which could lead writes to another file: remove it, "
                "and put what it leads to in its place (long_term.uri names another place for "
                "long-term memory)",
                path=directory,
            )


def unusable_directory(directory: Path, error: OSError) -> DirectoryUnusable:
    """The error for a memory directory that cannot be made or used, with the cause. Blocks."""
    where = "" if error.filename in {None, str(directory)} else f"{error.filename}: "
    cause = f"{where}{error.strerror or error}"
    for path in (directory, *directory.parents):
        # of `os.path`, which raise nothing where this account may not look
        if os.path.islink(path) and not os.path.exists(path):  # noqa: PTH110, PTH114
            cause = f"{path} is a link to {path.readlink()}, which does not exist"
        elif os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112
            cause = f"{path} is a file, not a directory"
        else:
            continue
        break
    return DirectoryUnusable(
        f"{directory} cannot be used as a memory directory: {cause}", path=directory
    )


def find_links(directory: Path) -> list[Path]:
    """The symbolic links in place of what remora has in a memory directory, and below it."""
    found: list[Path] = []
    for path in _own(directory):
        if path.is_symlink():
            found.append(path)
        elif path.is_dir():
            found += sorted(one for one in path.rglob("*") if one.is_symlink())
    return found


def prepare_directory(directory: Path) -> None:
    """Make a memory directory if it does not exist, and make what remora has in it private.

    A directory that holds something else than a memory keeps its mode; only the files are private.

    Raises:
        DirectoryUnusable: there is a symbolic link in it in place of a file of remora's.
        OSError: it cannot be made or read.
    """
    if make_private_directory(directory):
        return
    refuse_links(directory)
    own = list(_own(directory))
    changed = [path.name for path in own if make_private(path)]
    # a directory with the sticky bit is everybody's, and one with other files may be for others
    memory = any(path.name in {_JOURNAL, _SHARDS} for path in own)
    ours = memory or not any(directory.iterdir())
    if ours and not directory.stat().st_mode & stat.S_ISVTX and make_private(directory) and own:
        changed.insert(0, ".")
    if changed:
        _logger.info("directory_made_private", path=str(directory), changed=changed)
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & _OTHERS_WRITE and HAS_MODES:
        _logger.warning(
            "directory_writable_by_others",
            path=str(directory),
            mode=oct(mode),
            hint="other accounts can remove or replace its files: use a directory of its own, or "
            "chmod 700",
        )


def _own(directory: Path) -> Iterator[Path]:
    """Return what remora has in a memory directory."""
    for path in sorted(directory.iterdir()):
        name = path.name
        if name in _FILES or _OWNERS.fullmatch(name) or _DIRECTORIES.fullmatch(name):
            yield path


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
