"""The open tables of a store: how each is opened, created, found and closed."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from remora.config import LongTermConfig
from remora.errors import LongTermError, OwnershipLost
from remora.logging import get_logger
from remora.runtime.concurrency import map_concurrently
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread
from remora.storage.files import FilesGone, Identity
from remora.storage.lance.directory import TABLE_PREFIX, shard_names, table_of
from remora.storage.lance.errors import map_errors
from remora.storage.lance.files import ShardFiles, TableState
from remora.storage.lance.indices import IndexTools
from remora.storage.lance.object_table import ObjectTable
from remora.storage.lance.objects import ObjectStore
from remora.storage.lance.rows import RowFormat
from remora.storage.lance.shard import Shard
from remora.storage.lance.versions import TableVersions, VersionNote
from remora.storage.ports import Finding

if TYPE_CHECKING:
    import pyarrow as pa
    from lancedb import AsyncConnection, AsyncTable

_logger = get_logger(__name__)
_CLAIMED_AT_ONCE = 8
_LONGEST_READ_S = 60.0
_LONGEST_LAST_READ_S = 2.0  # that closing waits for
_LOOKED_AT = 8  # rows of each table, at opening


class LanceTables:
    """The open tables that the parts of a store share.

    Args:
        connect: gives a connection to LanceDB, with caches of its own.
        rows: the columns.
        config: sizes and intervals.
        base: the store's directory; None where it is not in a directory of this machine.
        sync: write through to the disk.
        secret_address: the address of the store, which no message may show.
        objects: the store's objects, and where versions are noted, at an object store that has one
            writer at a time.

    Attributes:
        refill_needed: rows were lost, and are to be written again from the journal.
        digests: what users are found by.
        shards: the tables that exist, by name.
        read_timeout: no read outlives the version that it began with.
        may_reconnect: another connection finds the same tables.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        rows: RowFormat,
        config: LongTermConfig,
        *,
        base: Path | None,
        sync: bool,
        words_from: int,
        secret_address: str | None,
        objects: tuple[ObjectStore, TableVersions] | None = None,
    ) -> None:
        self.rows = rows
        self.digests = rows.digests
        self.config = config
        self.base = base
        self.shards: dict[str, Shard] = {}
        self.may_reconnect = base is not None or not (secret_address or "memory:").startswith(
            "memory:"
        )
        self.read_timeout = timedelta(
            seconds=max(1.0, min(_LONGEST_READ_S, config.keep_versions_s))
        )
        self._connect = connect
        self._database: Any = None
        self._tools = IndexTools(importlib.import_module("lancedb.index"))
        self._sync = sync
        self._words_from = words_from
        self._secret_address = secret_address
        self._opened: Identity | None = None
        self._objects = objects
        self._making = anyio.Lock()
        self._closing = False
        self.finishing = Finishing()
        self.refill_needed = False

    # -- opening -----------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Open tables through a new connection from now on.

        The caches of the one before are freed with its last table.
        """
        self._database = await self._connect()

    async def _open_table(self, name: str) -> Any:
        return await self._database.open_table(name)

    async def load(self) -> list[Finding]:
        """Open every table that exists; returns what was damaged and repaired, or quarantined."""
        await self.connect()
        if self._objects is not None:
            return await self._claim_tables(*self._objects)
        if self.base is not None:
            self._opened = await run_in_thread(Identity, self.base)
            names = await run_in_thread(shard_names, self.base)
        else:
            names = await table_names(self._database)
        findings: list[Finding] = []
        for name in names:
            files = self.files(name)
            opened = TableState(usable=True, recorded=True)
            if files is not None:
                opened = await run_in_thread(files.prepare)
            if opened.usable:
                await self._load_shard(name, await self._open_table(name), opened, files=files)
            if files is not None:
                findings += files.opening_findings
        return findings

    async def _claim_tables(self, objects: ObjectStore, versions: TableVersions) -> list[Finding]:
        """Open the tables at their versions that count, so that a former owner's writes do not."""
        names = set(await table_names(self._database))
        noted = await versions.read()
        if noted is None:  # of an older remora: what is there counts
            handles = {name: await self._open_table(name) for name in names}
            tables = {name: int(await one.version()) for name, one in handles.items()}
            noted = VersionNote(tables)
            if versions.owned:
                await versions.note(tables)
        if strays := names - noted.tables.keys():
            await self._remove_strays(objects, versions, strays)
        missing = sorted(noted.tables.keys() - names)
        found = [Finding("table", one, "it is missing", repairable=True) for one in missing]
        claim = partial(self._claim_table, objects, versions, noted)
        known = sorted(names - strays)
        for problems in await map_concurrently(claim, known, concurrency=_CLAIMED_AT_ONCE):
            found += problems
        if versions.owned:
            if missing:
                await versions.note({}, refill=True)
            noted = await versions.read() or noted
            self.refill_needed = noted.refill
        return found

    async def _remove_strays(
        self, objects: ObjectStore, versions: TableVersions, names: Collection[str]
    ) -> None:
        """Remove tables that no journal noted: nothing in them was acknowledged."""
        if not versions.owned:
            return
        left = [path for name in sorted(names) for path in await objects.sizes(f"{name}.lance")]
        await versions.note({})  # a newer owner could have made them: then this is refused
        await objects.remove(left)
        _logger.warning("stray_tables_removed", tables=sorted(names))

    async def _claim_table(
        self, objects: ObjectStore, versions: TableVersions, noted: VersionNote, name: str
    ) -> list[Finding]:
        version = noted.tables[name]
        table = ObjectTable(name, objects, versions, version)
        indices, problems = await table.find_damage(version)
        if indices is None:
            if versions.owned:
                probe("table_emptied")
                reason = problems[0].detail
                _logger.error("table_emptied", table=name, version=version, reason=reason)
                self.shards[name] = await self._make_empty(name, table, refill=True)
            return problems
        reading, writing = await self._open_table(name), None
        if versions.owned:
            writing = await self._open_table(name)
            await writing.checkout(version)
            await writing.restore()
            version = int(await writing.version())
            await table.note(version)
        await reading.checkout(version)
        opened = TableState(usable=True, recorded=True, indices=indices if writing else ())
        await self._load_shard(name, reading, opened, objects=table, writing=writing)
        return []

    async def _make_empty(self, name: str, objects: ObjectTable, *, refill: bool = False) -> Shard:
        """A new table at an object store, on top of whatever is there under its name."""
        writing = await self._database.create_table(name, schema=self.rows.schema, mode="overwrite")
        await writing.set_unenforced_primary_key("id")
        await objects.note(int(await writing.version()), refill=refill)
        reading = await self._open_table(name)
        await reading.checkout(objects.version)
        return self._make_shard(name, reading, None, objects=objects, writing=writing)

    async def _load_shard(
        self,
        name: str,
        table: AsyncTable,
        opened: TableState,
        *,
        files: ShardFiles | None = None,
        objects: ObjectTable | None = None,
        writing: AsyncTable | None = None,
    ) -> None:
        found = await table.schema()
        schema = self.rows.known(found)
        problem = ""
        if schema is None:
            problem = (
                f"its columns are {found.names}, not {self.rows.schema.names}: it is damaged, or "
                "another version's"
            )
        elif not await self._is_of_this_key(table):
            problem = (
                "its users' digests were made with another key than the journal has now, so none "
                "of its rows would be found"
            )
        if schema is None or problem:
            if files is None:
                raise LongTermError(
                    f"the table {name}: {problem}; move it away and it is filled again",
                    retryable=False,
                )
            table.close()  # type: ignore[no-untyped-call]
            put_aside = partial(files.quarantine, problem, of_other_key=schema is not None)
            await run_in_thread(put_aside)
            return
        statistics: Any = await table.stats()  # a dict, and not the class of its annotation
        shard = self._make_shard(
            name, table, files, schema=schema, objects=objects, writing=writing
        )
        shard.fragments = statistics["fragment_stats"]["num_fragments"]
        await shard.read_indices()
        if opened.indices:
            await shard.rebuild_indices(opened.indices)
        changed_at = time.time()
        if opened.indices or not opened.recorded:
            await shard.record(changed_at)
        elif files is not None:
            changed_at = await run_in_thread(files.changed_at)
        shard.note_opened(await shard.table.version(), changed_at)
        self.shards[name] = shard

    async def _is_of_this_key(self, table: AsyncTable) -> bool:
        """Return whether rows can be found by these digests.

        A few are looked at: one may be damaged.
        """
        columns = ["user_key", "user_id"]
        found = await table.query().select(columns).limit(_LOOKED_AT).to_arrow()
        keys, users = (found.column(name).to_pylist() for name in columns)
        return not users or any(map(eq, keys, map(self.digests.user, users)))

    def _make_shard(
        self,
        name: str,
        table: AsyncTable,
        files: ShardFiles | None,
        *,
        schema: pa.Schema | None = None,
        objects: ObjectTable | None = None,
        writing: AsyncTable | None = None,
    ) -> Shard:
        return Shard(
            name,
            table,
            files=files,
            objects=objects,
            writing=writing,
            reopen=partial(self._open_table, name),
            rows=self.rows,
            tools=self._tools,
            schema=self.rows.schema if schema is None else schema,
            words_from=self._words_from,
        )

    # -- finding -----------------------------------------------------------------------------------

    def name_of(self, user_key: str) -> str:
        """The name of the table that a user's rows are in, which may not exist."""
        return table_of(user_key, self.config.shards)

    def of_user(self, user_key: str) -> Shard | None:
        """The table that a user's rows are in; None where it does not exist."""
        return self.shards.get(self.name_of(user_key))

    async def check_place(self) -> None:
        """Check that the directory is the one that was opened, since LanceDB goes by its name.

        Raises:
            LongTermError: it was removed or replaced; what is there now is another's.
        """
        if self._opened is None:
            return
        try:
            await run_in_thread(self._opened.check)
        except FilesGone as e:
            raise LongTermError(
                f"{e} while this runtime had it open: nothing is written there; start again",
                retryable=True,
            ) from e

    @asynccontextmanager
    async def reading(self, doing: str, shard: Shard) -> AsyncIterator[Any]:
        """A table to read. What was read in another directory's place is no answer.

        Raises:
            OwnershipLost: the directory was removed or replaced.
            LongTermError: it cannot be read, or is being closed.
        """
        if self._closing:
            raise LongTermError(f"long-term memory failed {doing}: it is closed", retryable=True)
        try:
            with self.map_errors(doing, shard), shard.reading() as table:
                yield table
        finally:
            await self._check_read()

    async def _check_read(self) -> None:
        """Check the place after a read: had it been another before, it would be so now."""
        if self._opened is None:
            return
        try:
            await run_in_thread(self._opened.check)
        except FilesGone as e:
            probe("long_term_gone")
            raise OwnershipLost(
                f"{e} while this runtime had it open: nothing is read there; start again"
            ) from e

    async def get_or_create(self, name: str) -> Shard:
        """The table of this name.

        Raises:
            LongTermError: it cannot be created.
        """
        async with self._making:
            shard = self.shards.get(name)
            if shard is None:
                with self.map_errors("making a table", writing=True):
                    shard = self.shards[name] = await self._create(name)
        return shard

    async def _create(self, name: str) -> Shard:
        if self._objects is not None:
            return await self._make_empty(name, ObjectTable(name, *self._objects, None))
        table = await self._database.create_table(name, schema=self.rows.schema, exist_ok=True)
        await table.set_unenforced_primary_key("id")
        shard = self._make_shard(name, table, self.files(name))
        await shard.record(time.time())
        return shard

    def files(self, name: str) -> ShardFiles | None:
        """A table's files; None where they are not in a directory of this machine."""
        return None if self.base is None else ShardFiles(self.base, name, sync=self._sync)

    def map_errors(
        self, doing: str, *shards: Shard, writing: bool = False
    ) -> AbstractContextManager[None]:
        """See `remora.storage.lance.errors.map_errors`; `shards` are what a damaged file is in."""

        def mark_suspect() -> None:
            for shard in shards:
                if shard.files is not None:
                    shard.files.mark_suspect()

        return map_errors(
            doing, writing=writing, secret_address=self._secret_address, mark_suspect=mark_suspect
        )

    @property
    def at_object_store(self) -> bool:
        """Return whether a commit waits for a server, not for this machine."""
        return self._objects is not None

    async def clear_refill(self) -> None:
        """Note that the lost rows are written again."""
        self.refill_needed = False
        if self._objects is not None:
            await self._objects[1].note({}, refill=False)

    async def aclose(self) -> None:
        """Close the tables and the connection, when what is being read has been read.

        LanceDB panics where a table is closed during a search, and writes so to standard error.
        """
        self._closing = True
        with anyio.move_on_after(_LONGEST_LAST_READ_S):
            for shard in self.shards.values():
                await shard.wait_for_reads()
        for shard in self.shards.values():
            shard.close()
        if self._database is not None:
            self._database.close()


async def table_names(database: AsyncConnection) -> list[str]:
    """The names of a database's tables that are remora's."""
    names = (await database.list_tables(limit=10_000)).tables
    return [name for name in names if name.startswith(TABLE_PREFIX)]


# -- writes that go on though their caller is cancelled; at an object store, not without end -------


class Finishing:
    """Lets writes finish when a store is closed, until `limit` says how long that may take."""

    def __init__(self) -> None:
        self._scopes: set[anyio.CancelScope] = set()
        self._deadline = math.inf

    def limit(self, seconds: float) -> None:
        """Give up what has not finished after so many seconds, also if it begins later."""
        self._deadline = anyio.current_time() + seconds
        for scope in self._scopes:
            scope.deadline = self._deadline

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Run the block though its task is cancelled.

        Raises:
            LongTermError: it was given up; whether it wrote anything is not known.
        """
        with anyio.CancelScope(shield=True, deadline=self._deadline) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise LongTermError("long-term memory was closed before it answered", retryable=True)
