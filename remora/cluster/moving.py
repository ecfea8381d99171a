"""Moving a memory that is not in use from its directory into PostgreSQL, and back.

The journal moves in one piece: a memory in shards is brought into one first, and divided again
afterwards (`remora.cluster.reshard`). Every row is copied as it is, with number and checksum, and
compared with its copy. Tables of long-term memory stay where they are; from the directory they are
copied, with their vectors, where `long_term.uri` names an object store.

At any moment one of the two journals counts:

==============================  ================  ===========================================
into PostgreSQL                 what counts       a start
==============================  ================  ===========================================
while it is copied              the directory     finds the memory as it was; with ``journal.dsn``
                                                  it is refused, by the setting ``moving``
``moving.json`` says complete   PostgreSQL        of the directory is refused
the directory's journal is gone PostgreSQL        with ``journal.dsn`` finds the memory; without it
                                                  is refused: ``moving.json`` names the schema
==============================  ================  ===========================================

Back it is the same with the two exchanged: the setting ``moving`` says that the copy is complete.
After a crash the same command goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from remora.cluster.reshard import NothingToDivide, reshard
from remora.config import Config, Secret
from remora.errors import ConfigError, InvalidInput, StorageError
from remora.logging import get_logger
from remora.maintenance.offline import JOURNAL, offline, require_memory
from remora.maintenance.verify import verify_owned
from remora.runtime.threads import run_in_thread
from remora.services.index_directory import location_of
from remora.storage.atomic import make_empty, sync_path, sync_tree
from remora.storage.copying import OWN_SETTINGS, TABLES
from remora.storage.lance.objects import ObjectStore, is_object_store
from remora.storage.lance.store import LanceStore
from remora.storage.lance.versions import JournalVersions, versions_setting
from remora.storage.layout import (
    MOVING_SETTING,
    Move,
    end_division,
    end_move,
    read_layout,
    read_move,
    write_move,
)
from remora.storage.lock import own_directories
from remora.storage.ports import JournalCounts
from remora.storage.private import make_private_directory
from remora.storage.running import running_journal
from remora.storage.sqlite.copying import read_rows, write_rows, write_settings
from remora.storage.sqlite.dividing import read_settings
from remora.storage.sqlite.journal import SqliteJournal

if TYPE_CHECKING:
    from remora.storage.postgres import PostgresJournal
    from remora.storage.postgres.copying import DatabaseRows, JournalFacts

__all__ = ["MoveReport", "move_to_database", "move_to_directory"]

_logger = get_logger(__name__)
_STAGING = "moving"
_COMMAND_S = 10.0

Progress = Callable[[int, int], None]
Rows = Sequence[tuple[Any, ...]]


class MoveReport(msgspec.Struct, frozen=True):
    """What was moved.

    Attributes:
        to: ``postgresql`` or ``directory``.
        counts: what the journal holds.
        rows: rows of long-term memory that were copied; those that stay where they are not counted.
        resumed: an earlier move, which was interrupted, was finished.
    """

    to: str
    counts: JournalCounts
    rows: int
    resumed: bool


async def move_to_database(
    directory: Path,
    config: Config,
    *,
    progress: Progress | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> MoveReport:
    """Move a memory in a directory into the database of ``journal.dsn``.

    Args:
        directory: of a memory that no process has open.
        config: of the application, with `journal.dsn`.
        progress: called with the number of rows done, and of all.
        on_step: called with the name of each step when it is done; for tests.

    Raises:
        NothingToDivide: it was moved there before.
        InvalidInput: there is no memory, long-term memory is being rebuilt, or the schema has
            another memory; nothing was changed.
        ConfigError: PostgreSQL or the object store cannot be used.
        DirectoryLocked: a process uses the directory.
        StorageError: the memory is damaged, or the disk or PostgreSQL failed; the memory is what it
            was, unless the text says that it is moved.
    """
    _require_dsn(config)
    move = await run_in_thread(read_move, directory)
    if move is not None and move.schema:
        where = f"the memory of {directory} is in the schema {move.schema} of PostgreSQL"
        if move.schema == config.journal.schema:
            raise NothingToDivide(where)
        raise InvalidInput(f"{where}, and journal.schema is {config.journal.schema}")
    if move is None or not move.complete:
        layout = await run_in_thread(read_layout, directory)
        if layout is None:
            await run_in_thread(require_memory, directory)
        else:
            with suppress(NothingToDivide):
                await reshard(directory, 1, await run_in_thread(_source_config, directory, config))
    async with own_directories(directory), _opened(config) as (journal, database):
        return await _ToDatabase(directory, config, journal, database, progress, on_step).run()


def without_database(config: Config) -> Config:
    """The configuration of the same memory with its journal in the directory."""
    return msgspec.structs.replace(
        config, journal=msgspec.structs.replace(config.journal, dsn=Secret())
    )


def _require_dsn(config: Config) -> None:
    if not config.journal.dsn.reveal():
        raise ConfigError(
            "journal.dsn says which PostgreSQL the journal is moved into, or comes from: set it, "
            "postgresql://user@host/database",
            key="journal.dsn",
        )


@asynccontextmanager
async def _opened(config: Config) -> AsyncIterator[tuple[PostgresJournal, DatabaseRows]]:
    """The journal in the database, owned, and its rows."""
    try:
        from remora.storage.postgres import PostgresJournal  # noqa: PLC0415  # an extra
        from remora.storage.postgres.copying import DatabaseRows  # noqa: PLC0415
    except ImportError as e:
        raise ConfigError(str(e), key="journal.dsn") from e
    where = config.journal
    journal = await PostgresJournal.open(
        where.dsn.reveal(),
        schema=where.schema,
        memory=where.memory,
        durability=where.durability,
        command_timeout_s=min(_COMMAND_S, where.lease_s),
        lease_s=where.lease_s,
    )
    rows = DatabaseRows.open(where.dsn.reveal(), where.schema)
    async with running_journal(journal), rows as database:
        yield journal, database


class _Mover:
    """What both ways share."""

    def __init__(
        self,
        directory: Path,
        config: Config,
        journal: PostgresJournal,
        database: DatabaseRows,
        progress: Progress | None,
        on_step: Callable[[str], None],
    ) -> None:
        self._directory = directory
        self._config = config
        self._journal = journal
        self._database = database
        self._on_step = on_step
        self._progress = progress
        self._done = self._total = 0

    def _tell(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    async def _compare(self, journal: Path) -> None:
        """Compare every row of the two journals.

        Raises:
            StorageError: one differs.
        """
        for table in TABLES:
            number = 0
            other = _flat(self._database.read_rows(table))
            async for rows in _from_thread(journal, table):
                for row in rows:
                    number += 1
                    if row != await anext(other, None):
                        raise _differs(table, number)
                self._tell(len(rows))
            if await anext(other, None) is not None:
                raise _differs(table, number + 1)
        self._on_step("compared")


def _differs(table: str, number: int) -> StorageError:
    return StorageError(
        f"row {number:,} of the table {table} is not as its copy; the memory is what it was"
    )


async def _flat(chunks: AsyncIterator[Rows]) -> AsyncIterator[tuple[Any, ...]]:
    async for rows in chunks:
        for row in rows:
            yield row


async def _from_thread(journal: Path, table: str) -> AsyncIterator[Rows]:
    chunks = read_rows(journal, table)
    while (rows := await run_in_thread(next, chunks, None)) is not None:
        yield rows


class _ToDatabase(_Mover):
    async def run(self) -> MoveReport:
        directory = self._directory
        move = await run_in_thread(read_move, directory)
        resumed = move is not None and move.complete
        if not resumed:
            move = await self._copy()
        assert move is not None
        self._on_step("complete")
        await self._journal.change_settings({MOVING_SETTING: ""})
        self._on_step("released")
        schema = self._config.journal.schema
        await run_in_thread(partial(end_move, directory, schema=schema, tables=move.tables))
        _logger.info("memory_moved", path=str(directory), to="postgresql")
        return MoveReport("postgresql", await self._journal.counts(), move.rows, resumed)

    async def _copy(self) -> Move:
        directory = self._directory
        await run_in_thread(end_division, directory)
        await run_in_thread(require_memory, directory)
        source = await run_in_thread(_source_config, directory, self._config)
        await self._check(source)
        facts = await run_in_thread(_facts_of, directory / JOURNAL)
        token = f"postgresql:{facts.instance}"
        marked = await self._journal.setting(MOVING_SETTING)
        if marked != token:
            if marked or not await self._database.is_empty():
                raise InvalidInput(
                    f"the schema {self._config.journal.schema} has a journal already: name another "
                    "one in journal.schema, or drop it"
                )
            await self._journal.change_settings({MOVING_SETTING: token})
        self._on_step("marked")

        async def copied(_: str, rows: int) -> None:
            self._tell(rows)

        async def read(table: str) -> AsyncIterator[Rows]:
            async for rows in _from_thread(directory / JOURNAL, table):
                yield rows

        await self._database.replace(
            self._journal.epoch, facts, {MOVING_SETTING: token}, read, copied
        )
        self._on_step("copied")
        await self._compare(directory / JOURNAL)
        rows = -1
        if source.long_term.uri != self._config.long_term.uri:
            rows = await self._copy_tables(source, facts.instance)
            self._on_step("tables copied")
        move = Move(to="postgresql", complete=True, tables=rows >= 0, rows=max(rows, 0))
        await run_in_thread(write_move, directory, move)
        return move

    async def _check(self, source: Config) -> None:
        found = await verify_owned(self._directory, source)
        damage = [one for one in found.findings if one.kind != "erasure"]
        if damage:
            raise StorageError(
                f"{self._directory} is damaged ({damage[0].where}: {damage[0].detail}), and was "
                "not moved: remora verify says more, remora repair mends it"
            )
        settings = await run_in_thread(read_settings, self._directory / JOURNAL)
        if settings.get("reembed") or settings.get("leftover"):
            raise InvalidInput(
                "long-term memory is being rebuilt: open the memory until that is complete "
                "(remora reembed), then move it"
            )
        self._total = 2 * (found.counts.messages if found.counts else 0) + found.rows

    async def _copy_tables(self, source: Config, instance: str) -> int:
        """Copy the rows of long-term memory to the object store, with their vectors."""
        config = self._config.long_term
        address = config.uri.reveal()
        await (await run_in_thread(ObjectStore, address, config.object_store)).claim(instance)
        async with offline(self._directory, source) as memory:
            used = memory.used
            if used is None or memory.place is None:
                return 0
            # what an interrupted copy has left is no table that counts, so opening removes it
            note = '{"tables":{},"refill":false}'
            await self._journal.change_settings({versions_setting(used.name): note})
            store = await LanceStore.open(
                str(location_of(address, used.name)),
                dimension=used.dimension,
                config=msgspec.structs.replace(config, shards=used.shards),
                digests=used.digests,
                versions=JournalVersions(self._journal, used.name),
            )
            async with memory.store() as old, _written(store):
                copied = 0
                async for rows, vectors in old.all_rows():
                    await store.add(rows, vectors, may_exist=False)
                    copied += len(rows)
                    self._tell(len(rows))
                if (await store.statistics()).rows != (await old.statistics()).rows:
                    raise StorageError(
                        "not all rows of long-term memory were copied; the memory is what it was"
                    )
                await store.compact()
        return copied


@asynccontextmanager
async def _written(store: LanceStore) -> AsyncIterator[None]:
    """A store with its writer running; closed at the end."""
    error: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            try:
                yield
            except Exception as e:  # raised outside of the group, which would wrap it
                error = e
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()
    if error is not None:
        raise error


def _source_config(directory: Path, config: Config) -> Config:
    """The configuration of the memory as it is: long-term memory may still be in the directory.

    Raises:
        ConfigError: it is, and `long_term.uri` is no object store that it could be copied to.
    """
    source = without_database(config)
    address = config.long_term.uri.reveal()
    places = ("longterm*/mem_*.lance", "shard-*/longterm*/mem_*.lance")
    if not address or not any(one for place in places for one in directory.glob(place)):
        return source
    if not is_object_store(address):
        raise ConfigError(
            "long-term memory is in the directory, and can be moved to an object store only: leave "
            "long_term.uri out, and it stays",
            key="long_term.uri",
        )
    there = msgspec.structs.replace(source.long_term, uri=Secret())
    return msgspec.structs.replace(source, long_term=there)


def _facts_of(journal: Path) -> JournalFacts:
    from remora.storage.postgres.copying import JournalFacts  # noqa: PLC0415  # an extra

    settings = read_settings(journal)
    last = max(
        [int(settings.get("last_sid", "0"))]
        + [row[0] for rows in read_rows(journal, "actors") for row in rows]
    )
    return JournalFacts(
        settings["instance"],
        int(settings.get("epoch", "0")),
        last,
        {name: value for name, value in settings.items() if name not in OWN_SETTINGS},
    )


# -- back ------------------------------------------------------------------------------------------


async def move_to_directory(
    directory: Path,
    config: Config,
    *,
    shards: int = 1,
    progress: Progress | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> MoveReport:
    """Move a memory from the database of ``journal.dsn`` into its directory.

    The schema is empty afterwards.

    Args:
        directory: of the memory; it has no journal.
        config: of the application, with `journal.dsn`.
        shards: how many the memory gets.
        progress: see `move_to_database`.
        on_step: see there.

    Raises:
        InvalidInput: there is no memory in the schema, or another one in the directory; nothing was
            changed.
        ConfigError, DirectoryLocked, StorageError: see `move_to_database`.
    """
    _require_dsn(config)
    if shards > 1 and config.long_term.uri.reveal():
        raise InvalidInput(
            "long-term memory is at an address (long_term.uri), and only what is in the directory "
            "can be divided: leave out --shards"
        )
    await run_in_thread(make_private_directory, directory)
    async with own_directories(directory), _opened(config) as (journal, database):
        report = await _ToDirectory(directory, config, journal, database, progress, on_step).run()
    if shards > 1:
        await reshard(directory, shards, without_database(config))
    return report


class _ToDirectory(_Mover):
    async def run(self) -> MoveReport:
        directory = self._directory
        facts = await self._database.read_facts()
        token = f"directory:{facts.instance}"
        marked = await self._journal.setting(MOVING_SETTING)
        moved = await run_in_thread((directory / JOURNAL).exists)
        if marked and marked != token:
            raise InvalidInput(
                "this schema holds an unfinished move into PostgreSQL: finish that first (remora "
                "reshard --to postgresql)"
            )
        begun = await run_in_thread(read_move, directory)
        if moved and not marked and (begun is None or begun.to != "directory"):
            raise InvalidInput(f"{directory} has a journal already: name another directory")
        if not moved:
            if not facts.last_sid and not facts.settings:
                raise InvalidInput(
                    f"there is no memory in the schema {self._config.journal.schema}"
                )
            await self._copy(facts, token)
        self._on_step("complete")
        await self._database.clear(self._journal.epoch)
        self._on_step("released")
        await run_in_thread(end_move, directory)
        async with offline(directory, without_database(self._config)) as memory:
            counts = await memory.journal.counts()
        _logger.info("memory_moved", path=str(directory), to="directory")
        return MoveReport("directory", counts, 0, moved)

    async def _copy(self, facts: JournalFacts, token: str) -> None:
        directory = self._directory
        staging = directory / _STAGING
        await run_in_thread(write_move, directory, Move(to="directory"))
        await run_in_thread(make_empty, staging)
        target = staging / JOURNAL
        first = {"instance": facts.instance}
        made = await SqliteJournal.open(target, durability="power", first_settings=first)
        await made.aclose()
        self._total = 2 * (await self._journal.counts()).messages
        for table in TABLES:
            async for rows in self._database.read_rows(table):
                await run_in_thread(write_rows, target, table, [rows])
                self._tell(len(rows))
        settings = {
            **facts.settings,
            "last_sid": str(facts.last_sid),
            "epoch": str(facts.epoch),
        }
        await run_in_thread(write_settings, target, settings)
        self._on_step("copied")
        await self._compare(target)
        await run_in_thread(sync_tree, staging)
        await self._journal.change_settings({MOVING_SETTING: token})
        self._on_step("marked")
        await run_in_thread(_move_up, staging, directory)


def _move_up(staging: Path, directory: Path) -> None:
    """Put the new journal in its place; the journal itself comes last."""
    for one in sorted(staging.iterdir(), key=lambda one: (one.name == JOURNAL, one.name)):
        one.replace(directory / one.name)
    sync_path(directory)
    staging.rmdir()
