"""Moving a memory that is not in use from its directory into PostgreSQL, and back.

The memory is first brought into as many shards as it is to have (`remora.cluster.reshard`); then
each moves into a journal of its own. Every row is copied as it is, with number and checksum, and
compared with its copy. Tables of long-term memory stay where they are; from the directory they are
copied, with their vectors, where `long_term.uri` names an object store. Only a memory in one piece
moves back.

At any moment the journals in one of the two places count:

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

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from remora.api.shards import locate_shard
from remora.api.status import add_figures
from remora.cluster.journal_copy import JournalCopy, make_cluster, open_copy, read_cluster
from remora.cluster.reshard import (
    NothingToDivide,
    Watcher,
    check_source,
    require_tables,
    reshard,
)
from remora.config import Config, Secret
from remora.errors import ConfigError, InvalidInput
from remora.logging import get_logger
from remora.maintenance.offline import JOURNAL, offline, require_memory
from remora.runtime.concurrency import Progress
from remora.runtime.threads import run_in_thread
from remora.storage.copying import compare_rows, copy_rows
from remora.storage.files import make_empty, make_private_directory, sync_tree
from remora.storage.lance.objects import is_object_store
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
from remora.storage.sqlite.copying import JournalRows, read_settings, write_settings
from remora.storage.sqlite.journal import SqliteJournal
from remora.system.files import sync_path

if TYPE_CHECKING:
    from remora.storage.postgres import PostgresJournal
    from remora.storage.postgres.copying import DatabaseRows, JournalFacts

_logger = get_logger(__name__)
_STAGING = "moving"


class MoveReport(msgspec.Struct, frozen=True):
    """The result of a move.

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
    shards: int | None = None,
    progress: Progress | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> MoveReport:
    """Move a memory in a directory into the database of ``journal.dsn``.

    Args:
        directory: of a memory that no process has open.
        config: of the application, with `journal.dsn`.
        shards: how many the memory gets; several are for nodes (``remora serve``). None for what
            `cluster.shards` says, or one.
        progress: called with the number of rows done, and of all.
        on_step: called with the name of each step when it is done; for tests.

    Raises:
        NothingToDivide: it was moved there before.
        InvalidInput: there is no memory, long-term memory is being rebuilt or cannot be divided, or
            the schema has another memory; nothing was changed.
        ConfigError: PostgreSQL or the object store cannot be used, or nodes could not use the
            configuration.
        DirectoryLocked: a process uses the directory.
        StorageError: the memory is damaged, or the disk or PostgreSQL failed; the memory is what it
            was, though perhaps in as many shards already, unless the text says that it is moved.
    """
    _require_database(config)
    shards = _number_of_shards(config, shards)
    move = await run_in_thread(read_move, directory)
    if move is not None and move.schema:
        where = f"the memory of {directory} is in the schema {move.schema} of PostgreSQL"
        if move.schema == config.journal.schema:
            raise NothingToDivide(where)
        raise InvalidInput(f"{where}, and journal.schema is {config.journal.schema}")
    if move is None or not move.complete:
        await _divide(directory, config, shards)
    elif move.shards != shards:
        raise InvalidInput(
            f"an unfinished move is into {move.shards} shard{'s'[: move.shards - 1]}: run the same "
            "remora reshard --to postgresql again"
        )
    layout = await run_in_thread(read_layout, directory)
    names = [] if layout is None else layout.names
    names = [name for name in names if (directory / name).exists()]  # a crash may have removed some
    async with own_directories(directory, *(directory / name for name in names)):
        watcher = Watcher(progress, on_step)
        return await _ToDatabase(directory, config, shards, watcher).run()


def _number_of_shards(config: Config, shards: int | None) -> int:
    configured = config.cluster.shards
    if shards is not None and configured is not None and shards != configured:
        raise InvalidInput(
            f"cluster.shards says {configured}, which nodes would expect, not {shards}: correct one"
        )
    shards = shards or configured or 1
    long_term = config.long_term
    if shards > 1 and long_term.enabled and not is_object_store(long_term.uri.reveal()):
        raise ConfigError(
            "several machines share a memory in shards, so its long-term memory must be at an "
            "object store: set long_term.uri to s3://bucket/memory, or long_term.enabled to false",
            key="long_term.uri",
        )
    return shards


async def _divide(directory: Path, config: Config, shards: int) -> None:
    """Bring the memory in the directory into so many shards."""
    layout = await run_in_thread(read_layout, directory)
    if layout is None:
        await run_in_thread(require_memory, directory)
    if shards > 1:
        await _check_schema(directory / ("" if layout is None else layout.name(0)), config, shards)
    if layout is not None or shards > 1:
        source = await run_in_thread(_source_config, directory, config, shards)
        with suppress(NothingToDivide):
            await reshard(directory, shards, source)


async def _check_schema(source: Path, config: Config, shards: int) -> None:
    """Check that no other memory is in the schema, before the directory is changed."""
    settings = await run_in_thread(read_settings, source / JOURNAL)
    found = await read_cluster(config)
    if found is not None and (found.shards, found.instance) != (shards, settings["instance"]):
        raise InvalidInput(
            f"the schema {config.journal.schema} has a memory already: name another one in "
            "journal.schema, or drop it and those of its shards"
        )


def without_database(config: Config) -> Config:
    """The configuration of the same memory with its journal in the directory."""
    return msgspec.structs.replace(
        config, journal=msgspec.structs.replace(config.journal, dsn=Secret())
    )


def _require_database(config: Config) -> None:
    if not config.journal.dsn.reveal():
        raise ConfigError(
            "journal.dsn says which PostgreSQL the journal is moved into, or comes from: set it, "
            "postgresql://user@host/database",
            key="journal.dsn",
        )
    try:
        import remora.storage.postgres  # noqa: F401, PLC0415  # an extra
    except ImportError as e:
        raise ConfigError(str(e), key="journal.dsn") from e


class _ToDatabase:
    """The way there, into one journal or one for each shard."""

    def __init__(self, directory: Path, config: Config, shards: int, watcher: Watcher) -> None:
        self._directory = directory
        self._config = config
        self._shards = shards
        self._watcher = watcher

    async def run(self) -> MoveReport:
        directory = self._directory
        move = await run_in_thread(read_move, directory)
        if move is not None and move.complete:
            resumed, copies = True, await self._list_copies(move.instance)
        else:
            resumed = False
            move, copies = await self._copy()
        self._watcher.step("complete")
        counts = []
        for copy in copies:
            counts.append(await copy.release())
            self._watcher.step("released")
        schema = self._config.journal.schema
        await run_in_thread(partial(end_move, directory, schema=schema, tables=move.tables))
        _logger.info("memory_moved", path=str(directory), to="postgresql")
        return MoveReport("postgresql", add_figures(counts), move.rows, resumed)

    async def _copy(self) -> tuple[Move, list[JournalCopy]]:
        directory = self._directory
        await run_in_thread(end_division, directory)
        source = await run_in_thread(_source_config, directory, self._config, self._shards)
        layout = await run_in_thread(read_layout, directory)
        names = [""] if layout is None else layout.names
        for name in names:
            await self._check(directory / name, source)
        settings = await run_in_thread(read_settings, directory / names[0] / JOURNAL)
        copies = await self._list_copies(settings["instance"])
        self._watcher.step("made")
        for copy in copies:
            await copy.mark()
        self._watcher.step("marked")
        tables = source.long_term.uri != self._config.long_term.uri
        rows = sum([await copy.copy(source, tables=tables) for copy in copies])
        move = Move(
            to="postgresql",
            complete=True,
            tables=tables,
            rows=rows,
            shards=self._shards,
            instance=settings["instance"],
        )
        await run_in_thread(write_move, directory, move)
        return move, copies

    async def _list_copies(self, instance: str) -> list[JournalCopy]:
        """A copy for each shard; the tables of the memory that they make up are made."""
        token = f"postgresql:{instance}"
        make = partial(JournalCopy, token=token, watcher=self._watcher)
        if self._shards == 1:
            return [make(source=self._directory, config=self._config)]
        there = await make_cluster(self._config, self._shards, instance, token)
        here = await run_in_thread(read_layout, self._directory)
        names = there.names if here is None else here.names  # none when all but the end is done
        return [
            make(
                source=self._directory / name,
                config=locate_shard(self._config, there, place.number),
                place=place,
            )
            for name, place in zip(names, there.places, strict=True)
        ]

    async def _check(self, directory: Path, source: Config) -> None:
        await run_in_thread(require_memory, directory)
        if self._shards > 1:
            await run_in_thread(require_tables, directory)
        unready = ("reembed", "leftover")
        await check_source(directory, source, self._watcher, done="moved", unready=unready)


def _source_config(directory: Path, config: Config, shards: int) -> Config:
    """The configuration of the memory as it is: long-term memory may still be in the directory.

    Raises:
        ConfigError: it is, and `long_term.uri` is no object store that it could be copied to.
    """
    source = without_database(config)
    address = config.long_term.uri.reveal()
    places = ("longterm*/mem_*.lance", "shard-*/longterm*/mem_*.lance")
    here = any(one for place in places for one in directory.glob(place))
    if here and (address or shards > 1) and not is_object_store(address):
        otherwise = "name one in long_term.uri" if shards > 1 else "leave it out, and it stays"
        raise ConfigError(
            "long-term memory is in the directory, and can be moved to an object store only "
            f"(long_term.uri): {otherwise}",
            key="long_term.uri",
        )
    if not here and shards == 1:  # it is at the address, or nothing ever was
        return source
    there = msgspec.structs.replace(source.long_term, uri=Secret())
    return msgspec.structs.replace(source, long_term=there)


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
    _require_database(config)
    if shards > 1 and config.long_term.uri.reveal():
        raise InvalidInput(
            "long-term memory is at an address (long_term.uri), and only what is in the directory "
            "can be divided: leave out --shards"
        )
    await run_in_thread(make_private_directory, directory)
    async with own_directories(directory), open_copy(config) as (journal, database):
        watcher = Watcher(progress, on_step)
        report = await _ToDirectory(directory, config, journal, database, watcher).run()
    if shards > 1:
        await reshard(directory, shards, without_database(config))
    return report


class _ToDirectory:
    """The way back, of a journal in one piece."""

    def __init__(
        self,
        directory: Path,
        config: Config,
        journal: PostgresJournal,
        database: DatabaseRows,
        watcher: Watcher,
    ) -> None:
        self._directory = directory
        self._config = config
        self._journal = journal
        self._database = database
        self._watcher = watcher

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
        self._watcher.step("complete")
        await self._database.clear(self._journal.epoch)
        self._watcher.step("released")
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
        async for user, digest, data in self._journal.attachments.all():
            await made.attachments.add(user, digest, data)
        await made.aclose()
        self._watcher.total = 2 * (await self._journal.counts()).messages
        async with JournalRows.open(target) as rows:
            await copy_rows(self._database, rows.write, self._watcher.tell)
            self._watcher.step("copied")
            await compare_rows(self._database, rows, self._watcher.tell)
        settings = {
            **facts.settings,
            "last_sid": str(facts.last_sid),
            "epoch": str(facts.epoch),
        }
        await run_in_thread(write_settings, target, settings)
        self._watcher.step("compared")
        await run_in_thread(sync_tree, staging)
        await self._journal.change_settings({MOVING_SETTING: token})
        self._watcher.step("marked")
        await run_in_thread(_move_up, staging, directory)


def _move_up(staging: Path, directory: Path) -> None:
    """Put the new journal in its place; the journal itself comes last."""
    for one in sorted(staging.iterdir(), key=lambda one: (one.name == JOURNAL, one.name)):
        if (directory / one.name).is_dir():  # by an earlier try
            shutil.rmtree(directory / one.name)
        one.replace(directory / one.name)
    sync_path(directory)
    staging.rmdir()
