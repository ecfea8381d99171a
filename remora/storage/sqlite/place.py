"""The place of the journal's files: where they were opened, or not.

SQLite works on open files. If somebody removes or replaces ``journal.db`` or its write-ahead log,
or renames the directory, it goes on without an error, and what it commits is in no file that the
next start finds. So after each commit, and at each checkpoint, the names are looked up again.
"""

from __future__ import annotations

import os
from pathlib import Path

from remora.errors import DirectoryUnusable, JournalDamaged
from remora.storage.files import Identity, open_private
from remora.storage.sqlite.mark import mark_path


class JournalPlace:
    """The journal's files as they were when it was opened. Everything here blocks.

    Args:
        path: of the journal.
    """

    def __init__(self, path: Path) -> None:
        log = path.with_name(f"{path.name}-wal")
        self._files = [Identity(path, never_empty=True)]
        if log.exists():  # not if the disk refused it so far
            self._files.append(Identity(log))

    def check(self) -> None:
        """Check that the files are still there; takes a few microseconds.

        Raises:
            FilesGone: one was removed or replaced, or its directory was.
        """
        for file in self._files:
            file.check()


def prepare_file(path: Path) -> None:
    """Create a journal's file, for its owner alone, if there is none. Blocks.

    Raises:
        JournalDamaged: it is missing or empty, and other files say that there was a journal.
        DirectoryUnusable: it cannot be created.
    """
    empty = path.exists() and not path.stat().st_size
    if path.exists() and not empty:
        return
    remains = [
        one.name
        for one in (path.with_name(f"{path.name}-wal"), mark_path(path))
        if one.exists() and one.stat().st_size
    ]
    remains += sorted({table.parent.name for table in path.parent.glob("longterm*/*.lance")})
    if remains:
        raise JournalDamaged(
            f"{path} is {'empty' if empty else 'missing'}, but {', '.join(remains)} of its "
            "directory is not: restore the whole directory from a backup. To start without the "
            f"conversations on purpose, move {path.parent} away, or use another directory"
        )
    try:
        os.close(open_private(path, os.O_RDWR))
    except OSError as e:
        raise DirectoryUnusable(f"{path} cannot be created: {e}", path=path) from e
