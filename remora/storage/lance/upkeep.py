"""Work on whole tables: rows are deleted and erased, tables compacted, checked, repaired.

Deleting leaves the bytes in LanceDB: in old versions, in fragments of which little was deleted, in
indices, and the predicate in the log. So erasing rewrites the table (`storage/lance/shard.py`).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from remora.errors import LongTermError
from remora.logging import get_logger
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread
from remora.storage.lance.allocators import return_free_memory
from remora.storage.lance.rows import OwnerFilter
from remora.storage.lance.shard import MOST_UNINDEXED, Shard
from remora.storage.lance.tables import LanceTables
from remora.storage.ports import Finding

if TYPE_CHECKING:
    import pyarrow as pa

_logger = get_logger(__name__)
_DELETE_AT_ONCE = 500
_INDEX_PAUSE_S = 0.25
_REWRITTEN_AT_ONCE = 2  # tables; each has some hundred bytes of each of its rows in memory
MOST_REPLACEMENTS = 64
"""Replaced indices after which LanceDB's caches are renewed; one leaves 54 entries, 200 kB."""


class _Erasing:
    """A call of `LanceUpkeep.erase`: whose rows, and how it ended."""

    def __init__(self, owner: tuple[str, str]) -> None:
        self.owner = owner
        self.rows = 0
        self.ended = False
        self.error: LongTermError | None = None


class LanceUpkeep:
    """Looks after the tables.

    Attributes:
        commits: commits so far that deleted rows.
        compactions: tables compacted so far.
    """

    def __init__(self, tables: LanceTables) -> None:
        self.commits = self.compactions = 0
        self._tables = tables
        self._replacements_seen = self._uses_seen = 0
        self._expr = importlib.import_module("lancedb.expr")
        self._erasing: dict[str, list[_Erasing]] = {}
        self._rewriting = anyio.Semaphore(_REWRITTEN_AT_ONCE)

    @asynccontextmanager
    async def _writing(self, doing: str, shard: Shard) -> AsyncIterator[None]:
        """Alone with a table whose last write is whole; a cancelled caller does not stop it."""
        async with shard.lock:
            with (
                self._tables.finishing.shielded(),
                self._tables.map_errors(doing, shard, writing=True),
            ):
                await self._tables.check_place()
                await shard.roll_back_uncertain()
                yield

    # -- removing ----------------------------------------------------------------------------------

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        """See `LanceStore.delete`."""
        key = self._tables.digests.user(user)
        shard = self._tables.of_user(key)
        if shard is None or not ids:
            return 0
        col, lit = self._expr.col, self._expr.lit
        gone = 0
        for start in range(0, len(ids), _DELETE_AT_ONCE):
            among = col("id").isin(list(ids[start : start + _DELETE_AT_ONCE]))
            async with self._writing("deleting", shard):
                which = (col("user_key") == lit(key)) & among
                gone += await shard.commit(partial(shard.delete, which))
            self.commits += 1
        return gone

    async def delete_row_ids(self, table: str, row_ids: Sequence[int]) -> int:
        """See `LanceStore.delete_row_ids`."""
        shard = self._tables.shards[table]
        async with self._writing("deleting", shard):
            gone = await self._delete_row_ids(shard, row_ids)
            await shard.record(time.time())
        return gone

    async def _delete_row_ids(self, shard: Shard, row_ids: Sequence[int]) -> int:
        gone = 0
        for start in range(0, len(row_ids), _DELETE_AT_ONCE):
            among = list(row_ids[start : start + _DELETE_AT_ONCE])
            gone += await shard.delete(self._expr.col("_rowid").isin(among))
            self.commits += 1
        return gone

    async def remove(self, user_key: str, session_key: str) -> int:
        """Delete the rows of a user, or of one of their sessions; see `LanceStore.remove`."""
        shard = self._tables.shards.get(self._tables.name_of(user_key))
        if shard is None:
            return 0
        col, lit = self._expr.col, self._expr.lit
        which = col("user_key") == lit(user_key)
        async with self._writing("deleting", shard):
            if session_key:
                sessions = await self._sessions_of(shard, which, session_key)
                if not sessions:
                    return 0
                which &= col("session_id").isin(sessions)
            gone = await shard.commit(partial(shard.delete, which))
        self.commits += 1
        return gone

    async def _sessions_of(self, shard: Shard, which: object, session_key: str) -> list[str]:
        """The session with this key, if the user has rows of it."""
        names = await shard.table.query().where(which).select(["user_id", "session_id"]).to_arrow()
        found = set(zip(*(names.column(one).to_pylist() for one in (0, 1)), strict=True))
        digests = self._tables.digests
        return [session for user, session in found if digests.session(user, session) == session_key]

    async def erase(self, user_key: str, session_key: str) -> int:
        """Rewrite a user's table without the user, or without one of their sessions (G13).

        Older versions and what was quarantined go, too. Calls that wait for the same table share
        one rewriting.
        """
        name = self._tables.name_of(user_key)
        shard = self._tables.shards.get(name)
        if shard is None:
            if (files := self._tables.files(name)) is not None:
                with self._tables.map_errors("erasing"):
                    await run_in_thread(files.purge)
            return 0
        own = _Erasing((user_key, session_key))
        waiting = self._erasing.setdefault(name, [])
        waiting.append(own)
        try:
            async with self._rewriting, self._writing("erasing", shard):
                if not own.ended:
                    await self._erase_waiting(shard, waiting)
        finally:
            if own in waiting:
                waiting.remove(own)
        if own.error is not None:
            raise LongTermError(str(own.error), retryable=own.error.retryable) from own.error
        return own.rows

    async def _erase_waiting(self, shard: Shard, waiting: list[_Erasing]) -> None:
        shared: list[_Erasing] = []

        def drop(columns: dict[str, list[str]]) -> list[bool]:
            # only now: more may have come while the table was read
            shared[:] = waiting
            owned = OwnerFilter([one.owner for one in shared], self._tables.digests)
            marks = owned(columns)
            for one, rows in zip(shared, owned.counts, strict=True):
                one.rows = rows
            return marks

        try:
            with self._tables.map_errors("erasing", shard, writing=True):
                await self._rewrite_without(shard, drop)
        except BaseException as e:
            failed = LongTermError(f"erasing failed: {type(e).__name__}", retryable=True)
            for one in shared:
                one.ended, one.error = True, e if isinstance(e, LongTermError) else failed
            raise
        for one in shared:
            one.ended = True
        _logger.info("rows_erased", table=shard.name, rows=sum(one.rows for one in shared))

    async def _rewrite_without(
        self, shard: Shard, drop: Callable[[dict[str, list[str]]], list[bool]]
    ) -> None:
        """Rewrite a table, and remove every file that is older.

        What is removed is decided by the names of files, never by what they contain: a text or an
        id can neither hide a file nor keep one from being removed.

        Raises:
            LongTermError: LanceDB still uses an older file.
        """
        files, objects = shard.files, shard.objects
        before: Collection[str] = ()
        if files is not None:
            before = await run_in_thread(files.file_names)
        elif objects is not None:
            before = await objects.sizes()
        rewrite = partial(shard.rewrite, drop, index_rows=self._tables.config.index_user_rows)
        await shard.commit(rewrite)
        await shard.release_versions()
        kept: list[str] = []
        if files is not None:
            await run_in_thread(files.purge)
            kept = await run_in_thread(files.remove_unlisted, before)
        elif objects is not None:
            kept = await objects.remove_unlisted(before)
        if kept:
            _logger.error("erasure_left_files", table=shard.name, files=kept)
            raise LongTermError(
                f"the table {shard.name} still uses files from before it was rewritten",
                retryable=True,
            )

    # -- compacting --------------------------------------------------------------------------------

    async def compact(self) -> int:
        """See `LanceStore.compact`."""
        config = self._tables.config
        return await self._compact_where(
            lambda shard: shard.wants_compacting(
                config.compact_fragments, keep_s=config.keep_versions_s
            )
        )

    async def _compact_where(self, wanted: Callable[[Shard], bool]) -> int:
        config = self._tables.config
        compacted = 0
        for shard in list(self._tables.shards.values()):
            if not wanted(shard):
                continue
            async with self._writing("compacting", shard):
                if not wanted(shard):  # another caller has done it
                    continue
                compact = partial(
                    shard.compact, keep_s=config.keep_versions_s, index_rows=config.index_user_rows
                )
                await shard.commit(compact)
            compacted += 1
            self.compactions += 1
        await self._release_memory()
        return compacted

    async def index_written(self) -> None:
        """See `LanceStore.index_written`."""
        await self._index_large_users()
        await self._compact_where(lambda shard: shard.unindexed > MOST_UNINDEXED)

    async def index_words_of(self, user: str) -> None:
        """Index the words of a user's table, unless they are.

        Before anybody has so many rows that others search for words, upkeep does it. Otherwise
        somebody searches a table of small users, and does it again.

        Raises:
            OwnershipLost: the directory was removed or replaced.
            LongTermError: it failed.
        """
        shard = self._tables.of_user(self._tables.digests.user(user))
        if shard is None or shard.searchable:
            return
        async with self._tables.reading("searching", shard):
            pass  # another directory in its place is no answer
        async with self._writing("indexing words", shard):
            if not shard.searchable:
                shard.asked = True
                await shard.commit(shard.make_searchable)

    async def _index_large_users(self) -> None:
        for shard in list(self._tables.shards.values()):
            if shard.may_lack_words():
                async with self._writing("indexing words", shard):
                    if await shard.has_large_user():
                        await shard.commit(shard.make_searchable)

    async def run(self, written: Callable[[], Awaitable[None]]) -> None:
        """Index what large users wrote, and rows that came in bulk, without end.

        Args:
            written: returns after the next commit.
        """
        while True:
            try:
                await self._index_large_users()
                while any(one.unindexed > MOST_UNINDEXED for one in self._tables.shards.values()):
                    await self._compact_where(Shard.wants_indexing)
                    await anyio.sleep(_INDEX_PAUSE_S)
            except LongTermError as e:
                # the next commit, or the next compaction, tries again
                _logger.warning("rows_not_indexed", error=str(e))
            await written()

    async def _release_memory(self) -> None:
        """Renew LanceDB's caches now and then, and return free memory to the system.

        The caches keep entries of replaced indices until newer ones push them out, and cannot be
        emptied. Renewing them costs less than the replacements did: each of those built its
        indices, and the new caches read the indices that are searched, once.
        """
        tables = self._tables
        replacements = sum(shard.replacements for shard in tables.shards.values())
        if tables.may_reconnect and replacements - self._replacements_seen >= MOST_REPLACEMENTS:
            with tables.map_errors("reconnecting"):
                await tables.connect()
            for shard in list(tables.shards.values()):
                async with self._writing("reopening", shard):
                    await shard.renew_handle()
            self._replacements_seen = replacements
            probe("caches_renewed")
        uses = sum(shard.uses for shard in tables.shards.values())
        if uses != self._uses_seen and tables.config.tune_allocators:
            self._uses_seen = uses
            await run_in_thread(return_free_memory)

    # -- checking and repairing --------------------------------------------------------------------

    async def findings(self, *, deep: bool) -> list[Finding]:
        """Return what is wrong with the tables' files and rows; see `LanceStore.verify`."""
        found: list[Finding] = []
        for _, shard in sorted(self._tables.shards.items()):
            async with shard.lock:
                with anyio.CancelScope(shield=True):
                    if shard.files is not None:
                        look = partial(shard.files.findings, deep=deep)
                        found += await run_in_thread(look)
                    elif shard.objects is not None:
                        with self._tables.map_errors("verifying", shard):
                            found += await shard.objects.findings()
                    found += await self._row_findings(shard, deep=deep)
        return found

    async def _row_findings(self, shard: Shard, *, deep: bool) -> list[Finding]:
        tables = self._tables
        columns = ["user_key", *(shard.columns if deep else ("id", "user_id"))]
        if deep and shard.checked and tables.rows.embedded:
            columns.append("vector")
        try:
            with tables.map_errors("verifying", shard), shard.reading() as table:
                query = table.query().select(columns)
                return await tables.rows.verify_rows(
                    # without a timeout: under the lock no version is removed, and a machine that is
                    # slow is no damage
                    await query.to_batches(),
                    shard.name,
                    home=lambda key: tables.name_of(key) == shard.name,
                )
        except LongTermError as e:
            return [Finding("table", shard.name, str(e), repairable=True)]

    async def repair(self) -> Sequence[str]:
        """See `LanceStore.repair_tables`."""
        done: list[str] = []
        for name, shard in sorted(self._tables.shards.items()):
            async with shard.lock:
                with anyio.CancelScope(shield=True):
                    try:
                        with self._tables.map_errors("repairing", shard):
                            done += await self._repair_shard(shard)
                    except LongTermError as e:
                        if shard.files is None:
                            raise
                        shard.table.close()
                        await run_in_thread(shard.files.quarantine, str(e))
                        del self._tables.shards[name]
                        done.append(
                            f"the table {name} was quarantined: its rows cannot be read: {e}"
                        )
        return done

    async def _repair_shard(self, shard: Shard) -> list[str]:
        await shard.roll_back_uncertain()
        done = []
        indices: tuple[str, ...] | None = ()
        if shard.files is not None:
            indices = await run_in_thread(shard.files.find_damaged_indices)
        damaged = await self._find_damaged_row_ids(shard) if shard.checked else []
        if damaged:
            removed = await self._delete_row_ids(shard, damaged)
            await shard.record(time.time())
            done.append(f"{removed} damaged rows of the table {shard.name} were removed")
        if indices is None:
            await shard.rewrite(None, index_rows=self._tables.config.index_user_rows)
            done.append(f"the table {shard.name} was rewritten, because files were damaged")
        elif indices:
            await shard.rebuild_indices(indices)
            await shard.record(time.time())
            done.append(f"{len(indices)} damaged indices of the table {shard.name} were rebuilt")
        return done

    async def _find_damaged_row_ids(self, shard: Shard) -> list[int]:
        rows = self._tables.rows
        columns = [*shard.columns, *(["vector"] if rows.embedded else [])]
        batches: AsyncIterable[pa.RecordBatch] = (
            await shard.table.query().select(columns).with_row_id().to_batches()
        )
        found: list[int] = []
        async for batch in batches:
            found += await run_in_thread(rows.find_damaged_row_ids, batch)
        return found
