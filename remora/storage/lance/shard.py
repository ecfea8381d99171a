"""One LanceDB table. Its writes run one after the other; a read keeps the version it began with.

A write is done when `record` has synced it (`storage/lance/files.py`). A rewrite uses a handle of
its own, and new reads switch to it in one step: no reader finds a table without indices, or a
missing file.

LanceDB's `optimize` merges neighbouring fragments that the same indices cover, so it rewrites a
table of 100 000 rows (132 MB) for each hundred rows added. But rows that an update touched are in
no index. So in larger tables an update without effect merges small fragments of similar size (one
commit, 10 ms); `optimize` then finds nothing to merge, and updates the indices. When it pays, the
table is rewritten, sorted, in one fragment.

At an object store nothing is synced, and a former owner may still write. So a write is done when
the journal has noted its version (`storage/lance/object_table.py`); reads stay at that version,
with a handle of their own; and a write that another process came between is undone and done again.

Old versions are removed by the time when they were superseded. LanceDB uses the time of creation:
the version of an idle table is hours old when it is replaced, and may still be read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from remora.errors import RemoraError
from remora.logging import get_logger
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread
from remora.storage.lance.errors import OVERTAKEN, meaning
from remora.storage.lance.files import ShardFiles
from remora.storage.lance.indices import (
    IndexTools,
    count_most_of_a_user,
    count_unindexed,
    index_users,
    index_vectors,
    index_words,
    indexed_columns,
    lacks_users,
    optimize,
)
from remora.storage.lance.manifest import Fragment, Manifest
from remora.storage.lance.object_table import ForeignWrite, ObjectTable
from remora.storage.lance.rows import CHECK, COLUMNS, ORDERED, SEARCHED, WINDOW, RowFormat

if TYPE_CHECKING:
    import pyarrow as pa
    from lancedb import AsyncTable

_logger = get_logger(__name__)
T = TypeVar("T")
CLOCK_SLACK_S = 5.0
"""Between our reading of the clock and LanceDB's."""
COMMIT_GRAIN_S = 1.0
"""Commits closer than this count as one when it is decided how old a version is."""
_NEVER = timedelta(days=36_500)
_LEAST_AGE = timedelta(milliseconds=1)
_FEW_ROWS = 2_000  # of a shard: so few that it may be rewritten each time
MOST_UNINDEXED = 1_500
"""Rows outside of the full-text indices, beyond which these are extended at once: each row costs a
search 75 µs."""
_BULK_GROWTH = (
    2  # unindexed rows, by the indexed ones: extending an index costs as much as making it
)
_PAUSE_S = 1.0  # without a write: rows that came in bulk are indexed
_DIRTY, _DIRTY_WHEN_QUIET = 1.0, 0.1  # rows behind the first fragment, by the rows in it
_QUIET_S = 60.0
_MOST_VERSIONS = 1_000
_MOST_ATTEMPTS = 3  # of a write that another process comes between


class _Reading:
    """A handle, and the number of its readers."""

    def __init__(self, table: AsyncTable) -> None:
        self.table = table
        self.readers = 0
        self.idle = anyio.Event()


class Shard:
    """A table, with counters since its last compaction.

    Args:
        name: the table's name.
        table: its handle.
        files: its files, if it is in a directory of this machine.
        objects: its objects, if it is at an object store; `table` stays at the version that counts.
        writing: the handle for writing, where that is another one.
        reopen: opens another handle.
        rows: the columns.
        tools: for indices.
        schema: the table's.
        words_from: rows of a user from which on the words of the table are indexed.

    Attributes:
        lock: held while writing.
        fragments: commits since the last compaction.
        searchable: the text columns are indexed.
        asked: somebody searched for words in a table of small users, who may do it again.
        unindexed: rows whose words are in no index, or more, if words are indexed.
        vectors_indexed: there is an index of vectors.
        needs_rollback: the last write may be incomplete; the recorded version is restored before
            the next write.
        rewritten_bytes: bytes written by compaction and rewriting.
        replacements: how often its indices were replaced, or all of it.
        uses: reads begun and commits recorded.
        large_users: keys of users whose vectors are searched by their index.
    """

    def __init__(
        self,
        name: str,
        table: AsyncTable,
        *,
        files: ShardFiles | None,
        objects: ObjectTable | None = None,
        writing: AsyncTable | None = None,
        reopen: Callable[[], Any],
        rows: RowFormat,
        tools: IndexTools,
        schema: pa.Schema,
        words_from: int,
        fragments: int = 0,
        searchable: bool = False,
    ) -> None:
        self.name = name
        self.files = files
        self.objects = objects
        self.lock = anyio.Lock()
        self.fragments = fragments
        self.searchable = searchable
        self.asked = False
        self.schema = schema
        self._words_from = words_from
        self._uncounted = words_from  # rows that came since users' rows were counted
        self.unindexed = self._indexed = 0
        self.vectors_indexed = False
        self.needs_rollback = False
        self.rewritten_bytes = 0
        self.replacements = self.uses = 0
        self.large_users: set[str] = set()
        self._reading = _Reading(table)
        self._writing = table if writing is None else writing
        self._retired: list[_Reading] = []
        self.reopen = reopen
        self._rows = rows
        self._tools = tools
        # when a commit began and when it was recorded, oldest first; bounds the age of versions
        # that are still read
        self._commits: deque[tuple[float, float]] = deque()
        self._written_at = self._changed_at = time.monotonic()
        self._noted_version = self._optimized_version = 0
        self._superseded = True

    def note_opened(self, version: int, changed_at: float) -> None:
        """Note that the version which was opened is the newest since `changed_at`.

        In seconds since the epoch: so the versions before it, and a pause, have the age that they
        had for the process before this one.
        """
        self._noted_version = version
        self._commits.append((changed_at, changed_at))
        pause_s = max(time.time() - changed_at, 0.0)
        self._written_at = self._changed_at = time.monotonic() - pause_s

    @property
    def columns(self) -> list[str]:
        """Return what is read of a row, without its vector."""
        more = [name for name in (WINDOW, CHECK) if name in self.schema.names]
        return [*COLUMNS, *more]

    @property
    def checked(self) -> bool:
        """Return whether damaged rows can be told."""
        return CHECK in self.schema.names

    @property
    def outdated(self) -> bool:
        """Return whether the table is of an older version, and to be rewritten."""
        return WINDOW in self.schema.names

    @property
    def table(self) -> Any:
        """The handle for writing; reads use `reading`."""
        return self._writing

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A handle whose version is kept while the context is open."""
        mine = self._reading
        mine.readers += 1
        self.uses += 1
        try:
            yield mine.table
        finally:
            mine.readers -= 1
            if not mine.readers:
                mine.idle.set()

    async def wait_for_reads(self) -> None:
        """Return when nothing reads; nothing may begin to."""
        if self._reading.readers:
            self._reading.idle = anyio.Event()  # it may have been idle before
        for one in (self._reading, *self._retired):
            if one.readers:
                await one.idle.wait()

    # -- writing, under the lock -------------------------------------------------------------------

    async def commit(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write and record; undo it and do it again where another process came between.

        Raises:
            OwnershipLost: that process owns the journal.
        """
        attempts = 1 if self.objects is None else _MOST_ATTEMPTS
        while True:
            attempts -= 1
            await self.roll_back_uncertain()
            began = time.time()
            try:
                done = await write()
                await self.record(began)
            except BaseException as e:
                self.needs_rollback |= self.objects is not None
                if not (attempts and _is_overtaken(e)):
                    raise
                probe("overtaken_write_repeated")
                _logger.warning("foreign_write_undone", table=self.name)
            else:
                return done

    async def roll_back_uncertain(self) -> None:
        """Restore the recorded version if the last write may be incomplete."""
        if not self.needs_rollback:
            return
        version = None if self.files is None else self.files.version
        if self.objects is not None:
            version = await self.objects.confirm()
        work = await self.reopen()
        if version is not None:
            probe("uncertain_write_undone")
            await work.checkout(version)
            await work.restore()
            _logger.warning("uncertain_writes_undone", table=self.name, version=version)
        await self._read_indices(work)
        if self.objects is not None:
            await self.objects.note(await work.version())
        await self._record(work, time.time())
        await self._switch_table(work)
        self.needs_rollback = False

    async def add(self, rows: pa.Table) -> None:
        """Store rows that are known to be new."""
        async with self._one_commit():
            await self.table.add(rows)
        self._note_write(len(rows))

    async def merge(self, rows: pa.Table) -> None:
        """Store the rows that do not exist yet."""
        # without an index: with one, LanceDB doubles rows that two merges add at the same time
        merge = self.table.merge_insert("id").when_not_matched_insert_all().use_index(False)
        async with self._one_commit():
            result = await merge.execute(rows)
        if result.num_inserted_rows < len(rows):
            probe("row_exists")
        self._note_write(result.num_inserted_rows)

    async def delete(self, which: object) -> int:
        """Delete rows; returns how many. Their bytes stay."""
        async with self._one_commit():
            result = await self.table.delete(which)
        self._note_write()
        return int(result.num_deleted_rows)

    @asynccontextmanager
    async def _one_commit(self) -> AsyncIterator[None]:
        """Return what is done makes one version; another one is another process's."""
        if self.objects is None:
            yield
            return
        before = await self.table.version()
        yield
        if await self.table.version() != before + 1:
            probe("foreign_version_found")
            raise ForeignWrite(f"another process wrote to {self.name} during a write")

    def _note_write(self, rows: int = 0) -> None:
        self.fragments += 1
        self.unindexed += rows if self.searchable else 0
        self._uncounted += rows
        self._written_at = time.monotonic()
        self._superseded = True

    async def make_searchable(self) -> None:
        """Index the text columns, and the vectors of a user who has many."""
        probe("words_indexed")
        await index_words(self.table, self._tools)
        await index_vectors(self.table, self._tools)
        await self._read_indices(self.table)

    def may_lack_words(self) -> bool:
        """Return whether a user may have so many rows now that words have to be indexed."""
        return not self.searchable and self._uncounted >= self._words_from

    async def has_large_user(self) -> bool:
        """Return whether a user has so many rows that their words are searched for in the table."""
        self._uncounted = 0
        return await count_most_of_a_user(self.table) >= self._words_from

    async def read_indices(self) -> None:
        """Find out which indices there are, and how far they reach."""
        await self._read_indices(self.table)

    async def _read_indices(self, table: AsyncTable) -> None:
        columns = await indexed_columns(table)
        self.searchable = columns.issuperset(SEARCHED)
        self.vectors_indexed = "vector" in columns
        self.unindexed = await count_unindexed(table)
        self._indexed = max(await table.count_rows() - self.unindexed, 0)

    async def rebuild_indices(self, indices: tuple[str, ...]) -> None:
        """Rebuild damaged indices."""
        for index in await self.table.list_indices():
            if index.name in indices:
                (column,) = index.columns
                config = self._tools.of_column(column)
                await self.table.create_index(column, config=config, replace=True)
                _logger.warning("index_rebuilt", table=self.name, column=column)

    async def record(self, began: float) -> int:
        """Sync and record all commits; returns the number of new bytes.

        Raises:
            OSError: they may not be on disk; the next write first undoes them.
        """
        return await self._record(self.table, began)

    async def _record(self, table: AsyncTable, began: float) -> int:
        version, written = await table.version(), 0
        try:
            if self.files is not None:
                written = await run_in_thread(self.files.record, version)
            elif self.objects is not None and version != self.objects.version:
                await self.objects.record(version)
                if table is self._writing:  # another handle's readers are given it afterwards
                    await self._reading.table.checkout(version)
        except BaseException:
            self.needs_rollback = True
            raise
        self.uses += 1
        now = time.time()
        fresh, self._noted_version = version != self._noted_version, version
        if fresh:
            self._changed_at = time.monotonic()
        if fresh and (not self._commits or now - self._commits[-1][1] > COMMIT_GRAIN_S):
            self._commits.append((began, now))
        return written

    # -- upkeep, under the lock --------------------------------------------------------------------

    def wants_compacting(self, commits: int, *, keep_s: float) -> bool:
        """Return whether compaction is due: after so many commits, or when writing has paused.

        After a pause it runs again once no one can read the old versions any more.
        """
        now = time.monotonic()
        return (
            self.fragments >= commits
            or self.outdated
            or self.wants_indexing()
            or (
                self._superseded
                and now - self._written_at > _QUIET_S
                and (self.fragments > 0 or now - self._changed_at > keep_s)
            )
        )

    def wants_indexing(self) -> bool:
        """Return whether rows that came in bulk are to be indexed now, or writing has paused."""
        if self.unindexed <= MOST_UNINDEXED:
            return False
        paused = time.monotonic() - self._written_at > _PAUSE_S
        return paused or self.unindexed > max(_FEW_ROWS, _BULK_GROWTH * self._indexed)

    async def compact(self, *, keep_s: float, index_rows: int) -> None:
        """Merge small fragments, index new rows, and remove versions superseded `keep_s` ago.

        What it writes is bounded by the rows that were added: the whole table is rewritten only
        if they are as many as the sorted ones, or a tenth when writing has paused.
        """
        manifest = await self._manifest()
        fragments = () if manifest is None else manifest.fragments
        rows = sum(one.rows for one in fragments)
        await index_users(self.table, self._tools, least_rows=index_rows)
        quiet = time.monotonic() - self._written_at > _QUIET_S
        if self.outdated:
            await self.rewrite(None, index_rows=index_rows)
            await self._optimize(keep_s)
        elif manifest is None or rows <= _FEW_ROWS or len(fragments) == 1 or not self.fragments:
            await self._optimize(keep_s)
        elif rows - fragments[0].rows > fragments[0].rows * (
            _DIRTY_WHEN_QUIET if quiet else _DIRTY
        ):
            await self.rewrite(None, index_rows=index_rows)
            await self._optimize(keep_s)
        elif quiet or await self._needs_optimize(manifest):
            await self._merge_fragments(fragments[1])
            await self._optimize(keep_s)
        else:
            await self._merge_fragments(_first_of_similar_size(fragments))

    async def _manifest(self) -> Manifest | None:
        if self.objects is not None:
            return await self.objects.manifest()
        return None if self.files is None else await run_in_thread(self.files.manifest)

    async def _needs_optimize(self, manifest: Manifest) -> bool:
        """Return whether too many rows are in no index, or too many versions are kept."""
        return (
            await count_unindexed(self.table) > MOST_UNINDEXED
            or await lacks_users(self.table)
            or manifest.version - self._optimized_version > _MOST_VERSIONS
        )

    async def _merge_fragments(self, first: Fragment) -> None:
        """Merge all fragments from this one on."""
        began = time.time()
        async with self._one_commit():
            await self.table.update(updates_sql={"seq": "seq"}, where=_rows_from(first.number))
        self.rewritten_bytes += await self.record(began)
        self.fragments = 0
        await self._read_indices(self.table)

    async def _optimize(self, keep_s: float) -> None:
        began, before = time.time(), await self.table.version()
        age = self._cleanup_age(keep_s)
        if self.objects is not None:
            # first all that makes versions: what is cleaned up must be older than one that this
            # owner could note. A second round finds something to do after the first
            done = -1
            while done != (done := await self.table.version()):
                await optimize(self.table, self._tools, cleanup_older_than=_NEVER)
            await self.record(began)
        await optimize(self.table, self._tools, cleanup_older_than=age)
        await self._read_indices(self.table)
        self.replacements += 1
        self.rewritten_bytes += await self.record(began)
        self.fragments = 0
        self._optimized_version = await self.table.version()
        # if the newest version was the newest `keep_s` ago, no old version is left
        self._superseded = (
            self._optimized_version != before or len(self._commits) != 1 or age == _NEVER
        )
        if not self._superseded and self.objects is None:
            # nor what the commit that made it had superseded; it is on disk, and stays
            recorded = timedelta(seconds=time.time() - self._commits[0][1] - COMMIT_GRAIN_S)
            await optimize(self.table, self._tools, cleanup_older_than=max(recorded, _LEAST_AGE))

    def _cleanup_age(self, keep_s: float) -> timedelta:
        """The age of the versions to remove: those before the newest one of `keep_s` ago."""
        now = time.time()
        newest = None
        while self._commits and self._commits[0][1] <= now - keep_s:
            newest = self._commits.popleft()
        if newest is None:
            return _NEVER
        self._commits.appendleft(newest)
        return timedelta(seconds=now - newest[0] + CLOCK_SLACK_S)

    async def rewrite(
        self, drop: Callable[[dict[str, list[str]]], list[bool]] | None, *, index_rows: int
    ) -> int:
        """Rewrite the table without some rows; returns how many were left out.

        All rows are then in one fragment, sorted by user, indexed. After a crash, and for readers,
        the table is either the old one or the new one.
        """
        began = time.time()
        source, work = await self._open_recorded(), await self._open_recorded()
        order, removed = await sorted_row_ids(source, self._rows, drop)
        self.needs_rollback = True
        await copy_rows(source, work, self._rows, order)
        source.close()
        await work.set_unenforced_primary_key("id")
        if order:
            if self.asked or await count_most_of_a_user(work) >= self._words_from:
                await index_words(work, self._tools)
            await index_users(work, self._tools, least_rows=index_rows)
            await index_vectors(work, self._tools)
        await self._read_indices(work)
        self.rewritten_bytes += await self._record(work, began)
        self.replacements += 1
        await self._switch_table(work)
        self.needs_rollback, self.schema = False, self._rows.schema
        self.fragments = 0
        return removed

    async def release_versions(self) -> None:
        """Wait until nothing reads an old version: its files can then be removed.

        A table in memory has no files; LanceDB removes its versions here, by their age alone.
        """
        for old in self._retired:
            await old.idle.wait()
        self._retired.clear()
        in_memory = self.files is None and self.objects is None
        while in_memory and len(await self.table.list_versions()) > 1:
            # for an age of 0 LanceDB warns, and only the whole process can silence a warning
            await anyio.sleep(_LEAST_AGE.total_seconds())
            await optimize(
                self.table, self._tools, cleanup_older_than=_LEAST_AGE, delete_unverified=True
            )
        while len(self._commits) > 1:
            self._commits.popleft()

    async def renew_handle(self) -> None:
        """Read and write through another handle on the same version; under the lock."""
        await self._switch_table(await self._open_recorded())

    async def _open_recorded(self) -> Any:
        """Another handle for writing."""
        handle = await self.reopen()
        if self.objects is not None and await handle.version() != self.objects.version:
            raise ForeignWrite(f"another process wrote to {self.name}")
        return handle

    async def _switch_table(self, table: AsyncTable) -> None:
        """Write with another handle from now on, and have new reads use it, or one like it."""
        reading = table
        if self.objects is not None:
            reading = await self.reopen()
            await reading.checkout(self.objects.version)
        old, self._reading = self._reading, _Reading(reading)
        self._writing = table
        self.large_users.clear()
        self._retired = [one for one in self._retired if one.readers]
        if old.readers:
            old.idle = anyio.Event()  # it may have been idle before
            self._retired.append(old)

    def close(self) -> None:
        """Close its handles."""
        self._writing.close()  # type: ignore[no-untyped-call]
        if self._reading.table is not self._writing:
            self._reading.table.close()  # type: ignore[no-untyped-call]


def _is_overtaken(error: BaseException) -> bool:
    return not isinstance(error, RemoraError) and meaning(error)[0] == OVERTAKEN


def _rows_from(fragment: int) -> str:
    """The filter for all rows from a fragment on; a number, so nothing needs quoting."""
    return f"_rowaddr >= {fragment << 32:d}"


def _first_of_similar_size(fragments: Sequence[Fragment]) -> Fragment:
    """The first of the newest fragments that are each no larger than all after it together."""
    after = fragments[-1].rows
    at = len(fragments) - 1
    while at > 1 and fragments[at - 1].rows <= max(after, 1):
        at -= 1
        after += fragments[at].rows
    return fragments[at]


# -- copying a table's rows, sorted by user, into its next version ---------------------------------
#
# The order is found from a few narrow columns, and rows are copied some thousands at a time: a
# table of 165 000 rows is 300 MB, and sorting it in memory would take three times as much.

_ROWS_AT_ONCE = 16_384  # 30 MB with their vectors


async def sorted_row_ids(
    source: AsyncTable, form: RowFormat, drop: Callable[[dict[str, list[str]]], list[bool]] | None
) -> tuple[list[int], int]:
    """The ids of the rows to copy, in their new order, and how many rows are left out.

    Args:
        source: a handle on a version of the table.
        form: the columns.
        drop: marks rows to leave out; see `RowFormat.order`.
    """
    found = await source.query().select(list(ORDERED)).with_row_id().to_arrow()
    order = await run_in_thread(form.order, found, drop)
    return order, len(found) - len(order)


async def copy_rows(
    source: AsyncTable, target: AsyncTable, form: RowFormat, row_ids: Sequence[int]
) -> None:
    """Replace the target's rows by some of the source's, in one fragment, without indices.

    Args:
        source: a handle that stays at the version that the ids are of.
        target: another handle on the table.
        form: the columns.
        row_ids: the rows, in their new order.
    """
    for start in range(0, max(len(row_ids), 1), _ROWS_AT_ONCE):
        some = row_ids[start : start + _ROWS_AT_ONCE]
        found = await source.take_row_ids(list(some)).with_row_id().to_arrow()
        rows = await run_in_thread(form.rewritten, found, some)
        # without parallelism there is one fragment
        await target.add(rows, mode="append" if start else "overwrite", write_parallelism=1)
    if len(row_ids) > _ROWS_AT_ONCE:
        await target.optimize()  # keeps the order; nothing is left to compact
