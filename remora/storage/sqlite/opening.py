"""Opening the journal's file: migrations, the check for lost commits, ownership."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import aiosqlite

from remora.config import Durability
from remora.errors import DirectoryUnusable, JournalDamaged, JournalTooNew, StorageError
from remora.logging import get_logger
from remora.runtime.threads import run_in_thread
from remora.storage.layout import number_actors
from remora.storage.sqlite.mark import (
    CommitMark,
    is_of_another_journal,
    mark_path,
    missing_commits,
    read_mark,
)
from remora.storage.sqlite.schema import APPLICATION_ID, FORMAT, MIGRATIONS
from remora.storage.sqlite.uses import USES_COMPLETE

_logger = get_logger(__name__)
SYNCHRONOUS: dict[Durability, str] = {"power": "FULL", "process": "NORMAL", "none": "NORMAL"}
"""SQLite's name for each durability.

NORMAL syncs when the write-ahead log is moved into the file, and not at a commit. OFF would never
sync, and a power cut could tear the file: of 200 enumerated crash states 11 were malformed, with
NORMAL none.
"""


class Ownership:
    """The right to write to a journal.

    Attributes:
        epoch: the number of its owners so far; only the newest may write.
        instance: six hex digits that tell its message ids from another journal's.
        commits: counted commits; see `mark`.
        numbers: of the actors to come.
        mark: the commit mark.
        uses_complete: when sessions were last used is written; see `uses`.
    """

    __slots__ = ("commits", "epoch", "instance", "mark", "numbers", "uses_complete")

    def __init__(
        self,
        epoch: int,
        instance: str,
        commits: int,
        numbers: Iterator[int],
        mark: CommitMark,
        *,
        uses_complete: bool,
    ) -> None:
        self.epoch = epoch
        self.instance = instance
        self.commits = commits
        self.numbers = numbers
        self.mark = mark
        self.uses_complete = uses_complete


async def migrate(connection: aiosqlite.Connection, path: Path) -> None:
    """Make the schema, or bring it up to date, in one transaction.

    Raises:
        JournalTooNew: a newer remora wrote it; it was not touched.
        DirectoryUnusable: no release wrote its format; it was not touched.
        JournalDamaged: it is no journal; it was not touched.
    """

    async def pragma(name: str) -> int:
        ((value,),) = await connection.execute_fetchall(f"PRAGMA {name}")
        return int(value)

    found, application = await pragma("user_version"), await pragma("application_id")
    if application not in {0, APPLICATION_ID} or (
        application == 0 and (found or await pragma("schema_version"))
    ):
        raise JournalDamaged(f"{path} is an SQLite file, but no remora journal; it was not touched")
    check_format(path, found)
    if found == FORMAT:
        return
    if not found:  # before the first table, or not before the next VACUUM
        await connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    begun = time.monotonic()
    await connection.executescript(
        f"BEGIN IMMEDIATE; {MIGRATIONS[found]} PRAGMA application_id = {APPLICATION_ID}; "
        f"PRAGMA user_version = {FORMAT}; COMMIT;"
    )
    _logger.info(
        "journal_migrated" if found else "journal_created",
        path=str(path),
        before=found,
        after=FORMAT,
        seconds=time.monotonic() - begun,
    )


def check_format(path: Path, found: int) -> None:
    """Check that this remora can read the format, or bring it up to date.

    Raises:
        JournalTooNew: a newer remora wrote it.
        DirectoryUnusable: it is from before the first release.
    """
    if found < FORMAT and found not in MIGRATIONS:
        raise DirectoryUnusable(
            f"{path} has the format {found} from before the first release, which no release reads: "
            "move the directory away and start a new one; nothing was touched",
            path=path.parent,
        )
    if found > FORMAT:
        raise JournalTooNew(
            f"{path} has the format {found}, this remora reads up to {FORMAT}: upgrade remora; "
            "nothing was touched",
            found=found,
            supported=FORMAT,
        )


async def check_commit_mark(path: Path) -> None:
    """Compare the journal with its commit mark: a few reads for any size.

    Raises:
        JournalDamaged: commits acknowledged at durability ``power`` are lost (at another level,
            this is logged), or the journal was replaced by another.
    """
    mark = await run_in_thread(read_mark, mark_path(path))
    if mark is None:
        return

    def compare() -> str:
        with closing(sqlite3.connect(path)) as database:
            if is_of_another_journal(mark, database):
                raise JournalDamaged(
                    f"{path} is not the journal that {mark_path(path).name} is of: it was "
                    "replaced, and long-term memory may be of the other one. Restore the whole "
                    f"directory from a backup; or, if it was replaced on purpose, `remora repair "
                    f"--dir {path.parent} --accept-loss` makes long-term memory agree with it"
                )
            return missing_commits(mark, database)

    lost = await run_in_thread(compare)
    if not lost:
        return
    if mark.durability == "power":
        raise JournalDamaged(
            f"{path} lacks {lost}: its write-ahead log was truncated or lost. Restore a backup, "
            f"or {path.name}-wal if it was left behind; "
            f"`remora repair --dir {path.parent}` accepts what is left"
        )
    _logger.warning("journal_lost_commits", path=str(path), durability=mark.durability, lost=lost)


async def take_ownership(
    writer: aiosqlite.Connection,
    path: Path,
    durability: Durability,
    first_settings: Mapping[str, str],
) -> Ownership:
    """Take the journal over: an earlier owner can store nothing from then on.

    `first_settings` are those of a new journal.
    """
    await writer.execute("BEGIN IMMEDIATE")
    for setting in first_settings.items():
        await writer.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", setting)
    await writer.execute(
        "INSERT INTO settings VALUES ('epoch', '1') ON CONFLICT DO UPDATE SET value = CAST(value "
        "AS INTEGER) + 1"
    )
    await writer.execute(
        "INSERT OR IGNORE INTO settings VALUES ('instance', ?)", (secrets.token_hex(3),)
    )
    lineage = "INSERT OR IGNORE INTO settings VALUES ('lineage', ?)"
    begun = (await writer.execute(lineage, (secrets.token_hex(16),))).rowcount
    settings: dict[str, str] = {  # noqa: C416
        n: v for n, v in await writer.execute_fetchall("SELECT name, value FROM settings")
    }
    await writer.execute("DELETE FROM settings WHERE name = ?", (USES_COMPLETE,))
    ((last_sid,),) = await writer.execute_fetchall("SELECT coalesce(max(sid), 0) FROM actors")
    await writer.execute("COMMIT")
    if begun:  # a mark is recognized by it, though the write-ahead log may be lost
        await writer.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
    try:
        epoch, commits = (int(settings.get(name, "0")) for name in ("epoch", "commits"))
        numbers = number_actors(int(last_sid), settings)
    except ValueError as e:
        raise JournalDamaged(
            f"{path} is damaged: a setting that is a number is none ({e}); restore a backup"
        ) from e
    # Counted commits begin with this update, at which an earlier owner fails.
    await writer.execute(
        "CREATE TEMP TRIGGER one_owner BEFORE UPDATE ON settings WHEN old.name = 'commits' "
        f"AND (SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'epoch') != {epoch} "
        "BEGIN SELECT RAISE(ABORT, 'another process owns the journal'); END"
    )
    mark = await run_in_thread(
        CommitMark.open, mark_path(path), settings["lineage"], durability, commits
    )
    return Ownership(
        epoch,
        settings["instance"],
        commits,
        numbers,
        mark,
        uses_complete=USES_COMPLETE in settings or not last_sid,
    )


def open_error(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> StorageError:
    """Return what a failure to open it means."""
    name = getattr(error, "sqlite_errorname", "")
    if (
        name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT"))
        or "malformed" in str(error)
        or isinstance(error, UnicodeDecodeError)
    ):
        return JournalDamaged(
            f"{path} is damaged, or no SQLite file: {error}; restore a backup, or move it away"
        )
    return DirectoryUnusable(f"{path} cannot be opened for writing: {error}", path=path)
