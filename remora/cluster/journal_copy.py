"""Copying one journal, and its tables of long-term memory, from a directory into PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from remora.cluster.reshard import Watcher
from remora.config import Config
from remora.errors import InvalidInput, StorageError
from remora.maintenance.offline import JOURNAL, offline
from remora.runtime.threads import run_in_thread
from remora.services.index_directory import location_of
from remora.storage.copying import OWN_SETTINGS, compare_rows, copy_rows
from remora.storage.journal_port import running, running_journal
from remora.storage.lance.objects import ObjectStore
from remora.storage.lance.store import LanceStore
from remora.storage.lance.versions import JournalVersions, versions_setting
from remora.storage.layout import MOVING_SETTING, ShardLayout, ShardPlace
from remora.storage.membership import Placement
from remora.storage.ports import JournalCounts
from remora.storage.sqlite.attachments import read_attachments
from remora.storage.sqlite.copying import JournalRows, find_last_sid, read_settings

if TYPE_CHECKING:
    from remora.storage.postgres import PostgresJournal
    from remora.storage.postgres.copying import DatabaseRows, JournalFacts

_COMMAND_S = 10.0


@asynccontextmanager
async def open_copy(
    config: Config, place: ShardPlace | None = None
) -> AsyncIterator[tuple[PostgresJournal, DatabaseRows]]:
    """The journal in the database, owned, and its rows.

    Args:
        config: whose `journal` says where it is.
        place: which shard it is of; None for a memory in one piece.
    """
    from remora.storage.postgres import PostgresJournal  # noqa: PLC0415  # an extra
    from remora.storage.postgres.copying import DatabaseRows  # noqa: PLC0415

    where = config.journal
    journal = await PostgresJournal.open(
        where.dsn.reveal(),
        schema=where.schema,
        memory=where.memory if place is None else place.title,
        durability=where.durability,
        command_timeout_s=min(_COMMAND_S, where.lease_s),
        lease_s=where.lease_s,
    )
    rows = DatabaseRows.open(where.dsn.reveal(), where.schema)
    async with running_journal(journal), rows as database:
        yield journal, database


async def read_cluster(config: Config) -> Placement | None:
    """The memory that is in the schema of ``journal.schema``, if there is one.

    Raises:
        ConfigError, StorageError: PostgreSQL cannot be used.
    """
    from remora.storage.postgres.cluster import ClusterReader  # noqa: PLC0415  # an extra

    reader = ClusterReader(config.journal.dsn.reveal(), config.journal.schema)
    try:
        return await reader.read()
    finally:
        reader.close()


async def make_cluster(config: Config, shards: int, instance: str, token: str) -> ShardLayout:
    """Make the tables of a memory in shards, which may be there from an interrupted move.

    Args:
        config: says where.
        shards: how many.
        instance: what the ids of the memory's messages begin with.
        token: see `JournalCopy`; new journals have it from the beginning.

    Raises:
        ConfigError, StorageError: see `open_cluster`.
    """
    from remora.storage.postgres.cluster import open_cluster  # noqa: PLC0415  # an extra

    where = config.journal
    return await open_cluster(
        where.dsn.reveal(),
        where.schema,
        shards,
        memory=where.memory,
        lease_s=where.lease_s,
        durability=where.durability,
        instance=instance,
        settings={MOVING_SETTING: token},
    )


class JournalCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A journal in a directory, and the one in PostgreSQL that it is copied into.

    The setting ``moving`` of the copy says that it does not count; until `release` no runtime opens
    it.

    Attributes:
        source: the directory.
        config: says where the copy is, and its long-term memory.
        token: the value of ``moving``: of which memory it is to be the copy.
        watcher: is told what is done.
        place: which shard it is; None for a memory in one piece.
    """

    source: Path
    config: Config
    token: str
    watcher: Watcher
    place: ShardPlace | None = None

    async def mark(self) -> None:
        """Note in the new journal that it does not count.

        Raises:
            InvalidInput: it has something of another memory; nothing was changed.
        """
        async with open_copy(self.config, self.place) as (journal, database):
            await self._mark(journal, database)

    async def _mark(self, journal: PostgresJournal, database: DatabaseRows) -> None:
        marked = await journal.setting(MOVING_SETTING)
        if marked == self.token:
            return
        if marked or not await database.is_empty():
            raise InvalidInput(
                f"the schema {self.config.journal.schema} has a journal already: name another one "
                "in journal.schema, or drop it"
            )
        await journal.change_settings({MOVING_SETTING: self.token})

    async def copy(self, source: Config, *, tables: bool) -> int:
        """Copy everything, and compare every row with its copy.

        Args:
            source: the configuration of the memory as it is.
            tables: copy long-term memory, too, from the directory to the object store.

        Returns:
            How many rows of long-term memory were copied.

        Raises:
            StorageError: a row differs, or the disk, PostgreSQL or the object store failed.
        """
        read_from = self.source / JOURNAL
        facts = await run_in_thread(_facts_of, read_from)

        async with open_copy(self.config, self.place) as (journal, database):
            await self._mark(journal, database)
            settings = {MOVING_SETTING: self.token}
            if self.place is not None:
                from remora.storage.postgres.opening import MEMORY_NAME  # noqa: PLC0415

                settings |= {MEMORY_NAME: self.place.title, **self.place.settings}
            async with JournalRows.open(read_from) as rows:
                async with database.filled(journal.epoch, facts, settings):
                    await copy_rows(rows, database.write, self.watcher.tell)
                await self._copy_attachments(journal)
                self.watcher.step("copied")
                await compare_rows(rows, database, self.watcher.tell)
            self.watcher.step("compared")
            if not tables:
                return 0
            copied = await self._copy_tables(journal, source, facts.instance)
            self.watcher.step("tables copied")
            return copied

    async def _copy_attachments(self, journal: PostgresJournal) -> None:
        found = read_attachments(self.source / JOURNAL)
        while (one := await run_in_thread(next, found, None)) is not None:
            user, digest, data = one
            await journal.attachments.add(user, digest, data)

    async def release(self) -> JournalCounts:
        """Let the copy count; returns what it holds."""
        async with open_copy(self.config, self.place) as (journal, _):
            if await journal.setting(MOVING_SETTING):
                await journal.change_settings({MOVING_SETTING: ""})
            return await journal.counts()

    async def _copy_tables(self, journal: PostgresJournal, source: Config, instance: str) -> int:
        """Copy the rows of long-term memory to the object store, with their vectors."""
        config = self.config.long_term
        address = config.uri.reveal()
        await (await run_in_thread(ObjectStore, address, config.object_store)).claim(instance)
        async with offline(self.source, source) as memory:
            used = memory.used
            if used is None or memory.place is None:
                return 0
            # what an interrupted copy has left is no table that counts, so opening removes it
            note = '{"tables":{},"refill":false}'
            await journal.change_settings({versions_setting(used.name): note})
            store = await LanceStore.open(
                str(location_of(address, used.name)),
                dimension=used.dimension,
                config=msgspec.structs.replace(config, shards=used.shards),
                digests=used.digests,
                versions=JournalVersions(journal, used.name),
            )
            async with memory.store() as old, _written(store):
                copied = 0
                async for rows, vectors in old.all_rows():
                    await store.add(rows, vectors, may_exist=False)
                    copied += len(rows)
                    self.watcher.tell(len(rows))
                if (await store.statistics()).rows != (await old.statistics()).rows:
                    raise StorageError(
                        "not all rows of long-term memory were copied; the memory is what it was"
                    )
                await store.compact()
        return copied


@asynccontextmanager
async def _written(store: LanceStore) -> AsyncIterator[None]:
    """A store with its writer running; closed at the end."""
    try:
        async with running(store.run):
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


def _facts_of(journal: Path) -> JournalFacts:
    from remora.storage.postgres.copying import JournalFacts  # noqa: PLC0415  # an extra

    settings = read_settings(journal)
    return JournalFacts(
        settings["instance"],
        int(settings.get("epoch", "0")),
        find_last_sid(journal),
        {name: value for name, value in settings.items() if name not in OWN_SETTINGS},
    )
