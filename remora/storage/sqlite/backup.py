"""A copy of a journal that is in use. Everything here blocks."""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from remora.errors import DirectoryUnusable, JournalDamaged
from remora.storage.files import AtomicTarget, open_private
from remora.storage.sqlite.peek import has_log, read_only_address

_PAGES_AT_ONCE = 1_024
_BUSY_S = 30.0


def snapshot(journal: Path, copy: Path) -> None:
    """Copy a journal as it is at this moment to a new file; it may be written to (G3).

    One read transaction covers the copy, so no commit restarts it. The copy gets a lineage of its
    own: a commit mark of the original, left in the directory where a copy is put
    back, says nothing of it.

    Args:
        journal: a journal, in use or not, by this process or another.
        copy: a path where nothing is yet. It is staged, synced and renamed.

    Raises:
        InvalidInput: there is something at `copy`, or no directory for it.
        JournalDamaged: `journal` is none, or is malformed.
        DirectoryUnusable: it cannot be read, or the copy not be written; nothing stands at `copy`
            then.
    """
    target = AtomicTarget(copy, overwrite=False)
    try:
        os.close(open_private(target.staging, os.O_RDWR))
        address, before = _address(journal), _state(journal)
        with (
            closing(sqlite3.connect(address, uri=True, timeout=_BUSY_S)) as source,
            closing(sqlite3.connect(target.staging, isolation_level=None)) as database,
        ):
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            source.backup(database, pages=_PAGES_AT_ONCE, sleep=0.0)
            database.execute(
                "PRAGMA journal_mode = DELETE"
            )  # a single file, whatever is copied with it
            database.execute(
                "UPDATE settings SET value = ? WHERE name = 'lineage'", (secrets.token_hex(16),)
            )
        if "immutable" in address and _state(journal) != before:
            raise DirectoryUnusable(
                f"{journal} was opened by another process while it was copied, and this one may "
                "not write its directory, so no lock was held: nothing was copied; try again",
                path=journal.parent,
            )
        target.commit()
    except sqlite3.DatabaseError as e:
        if getattr(e, "sqlite_errorname", "") in {"SQLITE_NOTADB", "SQLITE_CORRUPT"}:
            raise JournalDamaged(f"{journal} is damaged, or no SQLite file: {e}") from e
        raise DirectoryUnusable(
            f"{journal} cannot be copied to {copy}: {e}", path=journal.parent
        ) from e
    except OSError as e:
        raise DirectoryUnusable(
            f"{journal} cannot be copied to {copy}: {e}", path=copy.parent
        ) from e
    finally:
        target.abandon()
        for extra in ("-journal", "-wal", "-shm"):
            (target.staging.parent / f"{target.staging.name}{extra}").unlink(missing_ok=True)


def _address(journal: Path) -> str:
    """The address to read it at: without permission to write, SQLite cannot make its lock files."""
    if all(os.access(place, os.W_OK) for place in (journal, journal.parent)):
        return f"{journal.absolute().as_uri()}?mode=rw"
    return read_only_address(journal)


def _state(journal: Path) -> tuple[bool, int, int]:
    found = journal.stat()
    return has_log(journal), found.st_mtime_ns, found.st_size
