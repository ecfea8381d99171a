"""All rows of a journal's file that no process has open, or those of some actors; and its settings.

Rows keep their numbers and checksums: the shards of a memory hand out different numbers
(`remora.storage.layout.ShardPlace`). So what refers to a row by its number, a job or the id of a
message, needs no change, and every row can be compared with the one that it was copied from.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import anyio
import anyio.from_thread

from remora.errors import JournalDamaged, StorageError
from remora.runtime.threads import run_in_thread
from remora.storage.copying import OWN_SETTINGS, TABLES, Column, Rows, with_checksums
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

_AT_ONCE = 1_000
_ACTORS_AT_ONCE = 200
_MINE = "temp.mine"
_UNSYNCED = "PRAGMA synchronous = OFF"
"""For a file that is being filled: it is synced as a whole. One that is read stays as it is."""
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


class JournalRows:
    """The rows of a journal's file. Made by `open`."""

    def __init__(self, path: Path, database: sqlite3.Connection, *, chosen: bool) -> None:
        self._path = path
        self._database = database
        self._chosen = chosen

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, sids: Collection[int] | None = None
    ) -> AsyncIterator[JournalRows]:
        """Open a file. What is written is not synced.

        Args:
            path: of the journal.
            sids: the actors whose rows are meant; None for the whole journal. Rows of some actors
                are without the numbers that a journal gives, because another one gives its own:
                they are in the order of these, actor by actor.

        Raises:
            JournalDamaged: SQLite cannot read it.
        """
        with _named(path):
            database = await run_in_thread(_connect, path, sids)
        try:
            yield cls(path, database, chosen=sids is not None)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_thread(database.close)

    async def read(self, table: str) -> AsyncIterator[Rows]:
        """See `remora.storage.copying.RowSource`."""
        columns = _columns(table, chosen=self._chosen)
        if not columns:
            return
        query = self._select(table, ", ".join(map(_read_column, columns)))
        with _named(self._path):
            cursor = await run_in_thread(self._database.execute, query)
            while rows := await run_in_thread(cursor.fetchmany, _AT_ONCE):
                # a journal in another engine has a checksum for each row
                yield rows if self._chosen else with_checksums(table, rows)

    async def write(self, table: str, rows: Rows) -> None:
        """Add rows to a table."""
        columns = _columns(table, chosen=self._chosen)
        values = ", ".join("CAST(? AS TEXT)" if _is_text(one) else "?" for one in columns)
        names = ", ".join(map(_name, columns))
        sql = f"INSERT INTO {table} ({names}) VALUES ({values})"

        def write() -> None:
            self._database.execute(_UNSYNCED)
            with self._database:
                self._database.executemany(sql, rows)

        with _named(self._path):
            await run_in_thread(write)

    async def fill(self, source: Path, tell: Callable[[int], None]) -> None:
        """Copy the chosen actors' rows from another file.

        Args:
            source: the other journal, which no process has open.
            tell: see `remora.storage.copying.copy_rows`.

        Raises:
            StorageError: both have an actor of the same number; or the disk refused.
            JournalDamaged: SQLite cannot read `source`.
        """
        with _named(source):
            await run_in_thread(
                self._fill, source, lambda count: anyio.from_thread.run_sync(tell, count)
            )

    def _fill(self, source: Path, tell: Callable[[int], None]) -> None:
        database = self._database
        database.execute(_UNSYNCED)
        sids = [sid for (sid,) in database.execute(f"SELECT sid FROM {_MINE} ORDER BY sid")]
        database.execute("ATTACH ? AS old", (str(source),))
        for start in range(0, len(sids), _ACTORS_AT_ONCE):
            some = sids[start : start + _ACTORS_AT_ONCE]
            with database:
                for table in TABLES:
                    if columns := _columns(table, chosen=True):
                        names = ", ".join(map(_name, columns))
                        where = f"WHERE a.sid BETWEEN {some[0]} AND {some[-1]}"
                        old = ", ".join(f"t.{_name(one)}" for one in columns)
                        rows = self._select(table, old, where, of="old.")
                        sql = f"INSERT INTO main.{table} ({names}) {rows}"
                        tell(database.execute(sql).rowcount)
        database.execute("DETACH old")

    def _select(self, table: str, columns: str, where: str = "", of: str = "") -> str:
        """The query for the rows of a table; `t` is the table, and `a` the actor."""
        if table == "erasures":
            return f"SELECT {columns} FROM erasures AS t ORDER BY t.rowid"
        actors = _MINE if self._chosen else "actors"
        owner = "t.sid = a.sid"
        if table == "messages":  # a range of the table: no other row of it is read
            owner = f"t.pos BETWEEN a.sid << {SEQ_BITS} AND (a.sid + 1 << {SEQ_BITS}) - 1"
        order = "" if TABLES[table].counted and not self._chosen else "a.sid, "
        return (
            f"SELECT {columns} FROM {actors} AS a CROSS JOIN {of}{table} AS t ON {owner} {where} "
            f"ORDER BY {order}t.rowid"
        )


def _connect(path: Path, sids: Collection[int] | None) -> sqlite3.Connection:
    # each part is read in another thread
    database = sqlite3.connect(path, check_same_thread=False)
    if sids is not None:
        with database:
            database.execute("CREATE TEMP TABLE mine (sid INTEGER PRIMARY KEY)")
            database.executemany(f"INSERT INTO {_MINE} VALUES (?)", ((sid,) for sid in sids))
    return database


def _columns(table: str, *, chosen: bool) -> Sequence[Column]:
    """The columns of a table that are read; none of one that has no rows of actors."""
    columns = TABLES[table].columns
    if not chosen:
        return columns
    if table == "erasures":
        return ()
    kept = [one for one in columns if one.name != "number"]
    return [*kept, Column("used_us")] if table == "actors" else kept


def _name(column: Column) -> str:
    return "rowid" if column.name == "number" else f'"{column.name}"'


def _is_text(column: Column) -> bool:
    return column.kind in {"name", "text"}


def _read_column(column: Column) -> str:
    name = f"t.{_name(column)}"
    return f"CAST({name} AS BLOB)" if _is_text(column) else name


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into those of this library, which name the journal."""
    try:
        yield
    except sqlite3.IntegrityError as e:
        raise StorageError(
            f"{path} has numbers that another shard has as well ({e}): they are not shards of one "
            "memory; export each of them, and import both into a new memory"
        ) from e
    except sqlite3.DatabaseError as e:
        raise JournalDamaged(f"{path} cannot be copied: {e}") from e


def find_actors(journal: Path, wanted: Callable[[str], bool]) -> Sequence[int]:
    """The numbers of some users' actors. Blocks.

    Args:
        journal: of which no process writes.
        wanted: whether a user's are meant.

    Raises:
        JournalDamaged: SQLite cannot read it.
    """
    with _named(journal), closing(sqlite3.connect(journal)) as database:
        rows = database.execute("SELECT sid, user FROM actors ORDER BY sid")
        return [sid for sid, user in rows if wanted(user)]


def write_settings(journal: Path, settings: Mapping[str, str]) -> None:
    """Set settings; sessions are sorted by their last use when the journal is opened next.

    Blocks.
    """
    with closing(sqlite3.connect(journal, isolation_level=None)) as database:
        database.execute("BEGIN")
        database.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", settings.items())
        database.execute("DELETE FROM settings WHERE name = ?", (USES_COMPLETE,))
        database.execute("COMMIT")


def copy_settings(target: Path, sources: Sequence[Path], *, with_notes: bool) -> None:
    """Copy what journals keep of no actor. Blocks.

    Args:
        target: a new journal, which has the rows. It is not synced.
        sources: all journals of the memory.
        with_notes: copy the notes of erasures that wait, which hold no name.
    """
    told = [read_settings(source) for source in sources]
    merged = {
        name: value
        for name, value in told[0].items()
        if name not in _OWN and all(one.get(name) == value for one in told)
    }
    merged["last_sid"] = str(max(find_last_sid(source) for source in sources))
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
    """The settings of a journal; its epoch says how often an owner opened it. Blocks.

    Raises:
        JournalDamaged: SQLite cannot read it.
    """
    with _named(journal), closing(sqlite3.connect(journal)) as database:
        return dict(database.execute("SELECT name, value FROM settings").fetchall())


def read_notes(journal: Path) -> list[Erasure]:
    """The notes of erasures that wait. Blocks.

    Raises:
        JournalDamaged: SQLite cannot read it.
    """
    with _named(journal), closing(sqlite3.connect(journal)) as database:
        return [decode_note(*row) for row in database.execute(_SELECT_NOTES)]


def find_last_sid(journal: Path) -> int:
    """The highest number that an actor of a journal ever had. Blocks."""
    with closing(sqlite3.connect(journal)) as database:
        ((last,),) = database.execute("SELECT coalesce(max(sid), 0) FROM actors").fetchall()
    return max(int(last), int(read_settings(journal).get("last_sid", "0")))
