"""Actors copied from journals to a new one, row by row as they are. Everything here blocks.

Rows keep their numbers and checksums: the shards of a memory hand out different numbers
(`remora.storage.layout.ShardPlace`). So what refers to a row by its number, a job or the id of a
message, needs no change, and every row can be compared with the one that it was copied from.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from pathlib import Path

from remora.errors import JournalDamaged, StorageError
from remora.storage.copying import OWN_SETTINGS
from remora.storage.erasure_notes import (
    DIGEST_KEYS,
    PROGRESS_SETTING,
    decode_digest_keys,
    decode_note,
    decode_progress,
    encode_digest_keys,
    encode_progress,
)
from remora.storage.journal_port import Erasure
from remora.storage.rows import SEQ_BITS
from remora.storage.sqlite.uses import USES_COMPLETE

_ACTORS_AT_ONCE = 200
# Each table's columns that name the actor, and what its rows are ordered by; ``number`` is the
# journal's own, and only its order says something.
_TABLES = (
    ("actors", "sid", "sid"),
    ("messages", "pos", "pos"),
    ("summaries", "sid", "sid, number"),
    ("state_items", "sid", "sid, rowid"),
    ("memories", "sid", "sid, number"),
    ("jobs", "sid", "sid, number"),
)
_SELECT_NOTES = "SELECT number, user_key, session_key FROM erasures ORDER BY number"
_OWN = OWN_SETTINGS | {
    "embedder",
    "longterm",
    "shards",
    "reembed",
    "leftover",
    "counter",
    "counters",
    DIGEST_KEYS,
    PROGRESS_SETTING,
}
"""Settings that say something of one journal alone, or are put together from several."""


def copy_actors(
    target: Path,
    source: Path,
    wanted: Callable[[str], bool],
    progress: Callable[[int], None],
) -> None:
    """Copy the actors of some users, with all that is theirs, to a new journal.

    Args:
        target: a journal that no process has open. It is not synced.
        source: a journal that no process writes to; no row of it changes.
        wanted: whether a user is copied.
        progress: called with the number of messages copied since the last call.

    Raises:
        StorageError: both have an actor of the same number; or the disk refused.
        JournalDamaged: SQLite cannot read `source`.
    """
    with _joined(target, source, wanted) as database:
        sids = [sid for (sid,) in database.execute("SELECT sid FROM mine ORDER BY sid")]
        for start in range(0, len(sids), _ACTORS_AT_ONCE):
            some = sids[start : start + _ACTORS_AT_ONCE]
            database.execute("BEGIN")
            for table, _, order in _TABLES:
                names = ", ".join(_columns(database, table))
                copied = database.executemany(
                    f"INSERT INTO main.{table} ({names}) SELECT {names} FROM old.{table} "
                    f"WHERE {_of_actor(table)} ORDER BY {order}",
                    [_range(table, sid) for sid in some],
                ).rowcount
                if table == "messages":
                    progress(max(copied, 0))
            database.execute("COMMIT")


def find_copy_difference(
    target: Path, sources: Sequence[Path], wanted: Callable[[str], bool]
) -> str:
    """The first row that differs from the one that it was copied from, in words; empty for none.

    Every row of these users is compared, and the order of each actor's rows.

    Raises:
        JournalDamaged: SQLite cannot read one of the journals.
    """
    counts = dict.fromkeys((table for table, _, _ in _TABLES), 0)
    for source in sources:
        with _joined(target, source, wanted) as database:
            for table, _, order in _TABLES:
                names = ", ".join(_columns(database, table))
                of_mine = f"WHERE {_among(table)} ORDER BY {order}"
                before, after = (
                    database.execute(f"SELECT {names} FROM {where}.{table} {of_mine}")
                    for where in ("old", "main")
                )
                for number, (one, other) in enumerate(zip_longest(before, after), start=1):
                    if one != other:
                        return f"row {number:,} of the table {table}, copied from {source}"
                    counts[table] = counts[table] + 1
    with closing(sqlite3.connect(target)) as database:
        for table, count in counts.items():
            ((found,),) = database.execute(f"SELECT count(*) FROM {table}").fetchall()
            if found != count:
                return f"the table {table}, which has {found:,} rows and not {count:,}"
    return ""


def copy_settings(target: Path, sources: Sequence[Path], *, with_notes: bool) -> None:
    """Copy what journals keep of no actor.

    Args:
        target: see `copy_actors`.
        sources: all journals of the memory.
        with_notes: copy the notes of erasures that wait, which hold no name.
    """
    told = [read_settings(source) for source in sources]
    merged = {
        name: value
        for name, value in told[0].items()
        if name not in _OWN and all(one.get(name) == value for one in told)
    }
    merged["last_sid"] = str(max(_last_number(source) for source in sources))
    merged["epoch"] = str(max(int(one.get("epoch", "0")) for one in told))
    counters = {one["counter"] for one in told if "counter" in one}
    if counters:
        merged["counter"] = min(counters)
    if len(counters) > 1 or any("counters" in one for one in told):
        merged["counters"] = "several"
    with closing(sqlite3.connect(target, isolation_level=None)) as database:
        database.execute("BEGIN")
        if with_notes:
            merged |= _copy_notes(database, sources, told)
        for setting in merged.items():
            database.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", setting)
        if not all(USES_COMPLETE in one for one in told):
            database.execute("DELETE FROM settings WHERE name = ?", (USES_COMPLETE,))
        database.execute("COMMIT")


def _copy_notes(
    database: sqlite3.Connection, sources: Sequence[Path], told: Sequence[dict[str, str]]
) -> dict[str, str]:
    """Copy the notes; returns the settings that belong to them."""
    failures = {}
    keys: list[str] = []
    for source, settings in zip(sources, told, strict=True):
        failed = decode_progress(settings.get(PROGRESS_SETTING))
        with closing(sqlite3.connect(source)) as old:
            notes = old.execute(_SELECT_NOTES).fetchall()
        for number, *owners in notes:
            cursor = database.execute(
                "INSERT INTO erasures (user_key, session_key) VALUES (?, ?)", owners
            )
            if number in failed and cursor.lastrowid is not None:
                failures[cursor.lastrowid] = failed[number]
        if notes:
            keys += decode_digest_keys(settings.get(DIGEST_KEYS))
    found = {PROGRESS_SETTING: encode_progress(failures)} if failures else {}
    return found | ({DIGEST_KEYS: encode_digest_keys(keys)} if keys else {})


def read_settings(journal: Path) -> dict[str, str]:
    """The settings of a journal; its epoch says how often an owner opened it.

    Raises:
        JournalDamaged: SQLite cannot read it.
    """
    with _named(journal), closing(sqlite3.connect(journal)) as database:
        return dict(database.execute("SELECT name, value FROM settings").fetchall())


def read_notes(journal: Path) -> list[Erasure]:
    """The notes of erasures that wait.

    Raises:
        JournalDamaged: SQLite cannot read it.
    """
    with _named(journal), closing(sqlite3.connect(journal)) as database:
        return [decode_note(*row) for row in database.execute(_SELECT_NOTES)]


def _last_number(journal: Path) -> int:
    with closing(sqlite3.connect(journal)) as database:
        ((last,),) = database.execute("SELECT coalesce(max(sid), 0) FROM actors").fetchall()
    return max(int(last), int(read_settings(journal).get("last_sid", "0")))


@contextmanager
def _joined(
    target: Path, source: Path, wanted: Callable[[str], bool]
) -> Iterator[sqlite3.Connection]:
    """Both journals in one connection: the source as ``old``, its wanted actors as ``mine``."""
    with closing(sqlite3.connect(target, isolation_level=None)) as database, _named(source):
        database.execute("PRAGMA synchronous = OFF")  # it is synced as a whole
        database.execute("PRAGMA temp_store = MEMORY")
        database.execute("ATTACH ? AS old", (str(source),))
        database.create_function("wanted", 1, lambda user: int(wanted(user)))
        database.execute("CREATE TEMP TABLE mine (sid INTEGER PRIMARY KEY)")
        database.execute("INSERT INTO mine SELECT sid FROM old.actors WHERE wanted(user)")
        database.text_factory = bytes
        yield database


@contextmanager
def _named(source: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as e:
        raise StorageError(
            f"{source} has numbers that another shard has as well ({e}): they are not shards of "
            "one memory; export each of them, and import both into a new memory"
        ) from e
    except sqlite3.DatabaseError as e:
        raise JournalDamaged(f"{source} cannot be copied: {e}") from e


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    names = [
        name if isinstance(name, str) else name.decode()
        for _, name, *_ in database.execute(f"PRAGMA main.table_info({table})")
    ]
    return [name for name in names if name != "number"]


def _of_actor(table: str) -> str:
    if table == "messages":
        return f"pos BETWEEN ? << {SEQ_BITS} AND (? + 1 << {SEQ_BITS}) - 1"
    return "sid = ?"


def _range(table: str, sid: int) -> tuple[int, ...]:
    return (sid, sid) if table == "messages" else (sid,)


def _among(table: str) -> str:
    owner = f"pos >> {SEQ_BITS}" if table == "messages" else "sid"
    return f"{owner} IN (SELECT sid FROM mine)"
