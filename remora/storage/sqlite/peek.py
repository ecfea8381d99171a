"""Read-only looks into a journal that another process may have open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from remora.errors import DirectoryUnusable, JournalDamaged
from remora.ids import UNKEYED
from remora.runtime.jobs import Job
from remora.storage.decoding import JOB_COLUMNS, decode_jobs
from remora.storage.erasure_notes import (
    DIGEST_KEYS,
    PROGRESS_SETTING,
    WaitingErasure,
    decode_digests,
    decode_note,
    decode_progress,
    list_waiting,
    of_user,
)
from remora.storage.listing import ListingPage, SessionListing, UserListing
from remora.storage.sqlite.listing import (
    COUNT_ALL,
    read_session_rows,
    read_user_rows,
    session_query,
    user_query,
)
from remora.storage.sqlite.opening import check_format
from remora.storage.sqlite.schema import APPLICATION_ID, FORMAT
from remora.storage.sqlite.uses import USES_COMPLETE

_BUSY_S = 5.0


def peek_jobs(journal: Path) -> Sequence[Job]:
    """The jobs of a journal, dead letters included, oldest first, as of the last commit.

    Blocks on the file system.

    Args:
        journal: the ``journal.db`` of a memory directory, which a running server may own.

    Raises:
        JournalTooNew: a newer remora wrote it.
        JournalDamaged: it is no journal, or SQLite finds it malformed.
        DirectoryUnusable: it cannot be read, or is from before the first release.
    """
    with open_to_peek(journal) as database:
        return decode_jobs(
            database.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs AS j JOIN actors AS s USING (sid) ORDER BY "
                "j.number"
            ).fetchall()
        )


def peek_erasures(journal: Path, user: str | None = None) -> Sequence[WaitingErasure]:
    """The erasures that are not finished, oldest first, of one user or all; see `peek_jobs`."""
    with open_to_peek(journal) as database:
        notes = database.execute(
            "SELECT number, user_key, session_key FROM erasures ORDER BY number"
        ).fetchall()
        settings: dict[str, str] = dict(
            database.execute(
                "SELECT name, value FROM settings WHERE name IN (?, ?)",
                (PROGRESS_SETTING, DIGEST_KEYS),
            ).fetchall()
        )
    failures = decode_progress(settings.get(PROGRESS_SETTING))
    waiting = list_waiting([decode_note(*note) for note in notes], failures)
    if user is None:
        return waiting
    return of_user(waiting, user, [UNKEYED, *decode_digests(settings.get(DIGEST_KEYS))])


def peek_format(journal: Path) -> int:
    """The format of a journal; see `peek_jobs`."""
    with _open(journal) as (_, found):
        return found


def check_current(journal: Path) -> None:
    """Check that a journal has this remora's format; see `peek_jobs`."""
    with open_to_peek(journal):
        pass


def has_log(journal: Path) -> bool:
    """Return whether there is a write-ahead log: without one, no process has the journal open."""
    return journal.with_name(f"{journal.name}-wal").exists()


def read_only_address(journal: Path) -> str:
    """The address at which SQLite opens a journal and changes no file."""
    alone = not has_log(journal)  # then this must not create one
    return f"{journal.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"


def peek_users(
    journal: Path, page: ListingPage, unwritten: Sequence[int] | None = None
) -> Sequence[UserListing]:
    """A page of the users of a journal; see `peek_sessions`."""
    with open_to_peek(journal) as database:
        rows = _read_page(database, page, unwritten, partial(user_query, page))
        return read_user_rows(_first(rows, page), page)


def peek_sessions(
    journal: Path, user: str, page: ListingPage, unwritten: Sequence[int] | None = None
) -> Sequence[SessionListing]:
    """A page of a user's sessions; see `peek_jobs`.

    Args:
        journal: of the user.
        user: the user.
        page: what is wanted.
        unwritten: what the process that has the journal open says of its index of last uses; see
            `remora.storage.journal_port.IndexesUses`. Without it, all newest messages are read.
    """
    with open_to_peek(journal) as database:
        query = partial(session_query, user, page)
        rows = _read_page(database, page, unwritten, query)
        return read_session_rows(_first(rows, page), user, page)


def peek_counts(journal: Path) -> tuple[int, int, int]:
    """How many users, sessions and messages a journal has; see `peek_jobs`."""
    with open_to_peek(journal) as database:
        users, sessions, messages = database.execute(COUNT_ALL).fetchone()
    return users, sessions, messages


def _read_page(
    database: sqlite3.Connection,
    page: ListingPage,
    unwritten: Sequence[int] | None,
    query: Callable[..., tuple[str, Sequence[Any]]],
) -> list[tuple[Any, ...]]:
    """The rows of a page: from the index, and from messages where the index is behind them."""
    if _uses_are_complete(database):
        return database.execute(*query(by_index=True)).fetchall()
    if unwritten is None or page.order == "name":
        return database.execute(*query(by_index=False)).fetchall()
    numbers = msgspec.json.encode(unwritten).decode()
    return [
        row
        for by_index in (True, False)
        for row in database.execute(*query(by_index=by_index, unwritten=numbers))
    ]


def _first(rows: list[tuple[Any, ...]], page: ListingPage) -> list[tuple[Any, ...]]:
    """The first rows in the order of the page; each begins with a name, and ends with a use."""
    if page.order != "name":
        rows.sort(key=lambda row: (row[-1], row[0]), reverse=page.order == "newest")
    return rows[: page.limit]


def _uses_are_complete(database: sqlite3.Connection) -> bool:
    """Return whether the index of last uses can be relied on: no process has the journal open."""
    query = "SELECT 1 FROM settings WHERE name = ?"
    return database.execute(query, (USES_COMPLETE,)).fetchone() is not None


@contextmanager
def open_to_peek(journal: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes nothing; see `peek_jobs`."""
    with _open(journal) as (database, found):
        if found != FORMAT:
            raise DirectoryUnusable(
                f"{journal} has the format {found} of an earlier remora, and this one reads "
                f"{FORMAT}: start the application once with this remora, which brings it up to "
                "date",
                path=journal.parent,
            )
        yield database


@contextmanager
def _open(journal: Path) -> Iterator[tuple[sqlite3.Connection, int]]:
    try:
        with closing(
            sqlite3.connect(read_only_address(journal), uri=True, timeout=_BUSY_S)
        ) as database:
            ((application,),) = database.execute("PRAGMA application_id")
            ((found,),) = database.execute("PRAGMA user_version")
            if application != APPLICATION_ID:
                raise JournalDamaged(f"{journal} is no remora journal; it was not touched")
            check_format(journal, found)
            yield database, found
    except sqlite3.DatabaseError as e:
        if isinstance(e, sqlite3.OperationalError):
            raise DirectoryUnusable(f"{journal} cannot be read: {e}", path=journal.parent) from e
        raise JournalDamaged(
            f"{journal} is damaged, or no SQLite file: {e}; restore a backup, or move it away"
        ) from e
