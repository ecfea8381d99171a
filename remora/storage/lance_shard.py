"""One LanceDB table: a part of long-term memory, its writes one after the other, its reads on versions that stay while they last.

A write is done when `record` has it on disk (`storage/lance_files.py`). Reads hold a *reading* of the handle they began with;
what rewrites the table works on a handle of its own, and readers change over to it in one step, so they meet neither a table
without its indices nor a file that is gone.

Old versions are removed by when they were superseded and not, as LanceDB does by itself, by when they were made: the version
that an idle table stands at is hours old the moment that it is replaced, and somebody may be reading it.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import anyio
import anyio.to_thread

from remora.logs import get_logger
from remora.storage.lance_files import ShardFiles
from remora.storage.lance_rows import SEARCHED, RowFormat

__all__ = ["Shard", "Tools"]

_logger = get_logger("remora.longterm")
_NEVER = timedelta(days=36_500)
_COMMIT_GRAIN_S = 1.0


class Tools:
    """How indices are made, by LanceDB's module for them."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def full_text(self) -> Any:
        """For words."""
        return self._index.FTS(with_position=False)

    def by_value(self) -> Any:
        """For values of which there are many."""
        return self._index.BTree()


class _Reading:
    """A handle, and how many read through it."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.readers = 0
        self.idle = anyio.Event()


class Shard:
    """A table, and what it went through since it was last compacted.

    Args:
        name: the table's.
        table: its handle.
        files: its files, if it is in a directory of this machine.
        reopen: gives another handle on it.
        rows: the columns.
        tools: for indices.
        checked: rows in it carry their check.

    Attributes:
        lock: held by whoever writes.
        fragments: commits since it was last compacted.
        searchable: its text columns have their indices.
        unsynced: what was committed last could not be recorded; it goes back to what is on disk before anything else is written.
        rewritten_bytes: what compacting and rewriting wrote.
    """

    def __init__(
        self,
        name: str,
        table: Any,
        *,
        files: ShardFiles | None,
        reopen: Callable[[], Any],
        rows: RowFormat,
        tools: Tools,
        checked: bool,
        fragments: int = 0,
        searchable: bool = False,
    ) -> None:
        self.name = name
        self.files = files
        self.lock = anyio.Lock()
        self.fragments = fragments
        self.searchable = searchable
        self.checked = checked
        self.unsynced = False
        self.rewritten_bytes = 0
        self._reading = _Reading(table)
        self._retired: list[_Reading] = []
        self._reopen = reopen
        self._rows = rows
        self._tools = tools
        # when a commit began and when it was recorded, oldest first: how old a version may be that is still read
        self._commits: deque[tuple[float, float]] = deque()

    @property
    def table(self) -> Any:
        """The handle for writing; reads take `reading`."""
        return self._reading.table

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A handle whose version stays as long as this lasts."""
        mine = self._reading
        mine.readers += 1
        try:
            yield mine.table
        finally:
            mine.readers -= 1
            if not mine.readers:
                mine.idle.set()

    # -- writing, under the lock ------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Go back to what is on disk, if the last write could not be recorded."""
        if not self.unsynced:
            return
        assert self.files is not None
        version = self.files.version
        work = await self._reopen()
        if version is not None:
            await work.checkout(version)
            await work.restore()
        await self._record(work)
        _logger.warning("unsynced_writes_undone", table=self.name, version=version)
        self.searchable = (await _indexed(work)).issuperset(SEARCHED)
        self._switch(work)
        self.unsynced = False

    async def add(self, rows: Any) -> None:
        """Store rows that are known to be new."""
        await self.table.add(rows)
        self.fragments += 1

    async def merge(self, rows: Any) -> None:
        """Store those of the rows that are not there."""
        # not through an index: with one, LanceDB doubles rows that two merges bring at once
        await self.table.merge_insert("id").when_not_matched_insert_all().use_index(False).execute(rows)
        self.fragments += 1

    async def delete(self, which: Any) -> int:
        """Take rows out of sight; returns how many."""
        result = await self.table.delete(which)
        self.fragments += 1
        return int(result.num_deleted_rows)

    async def make_searchable(self, table: Any = None) -> None:
        """Index the text columns."""
        for column in SEARCHED:
            await (table or self.table).create_index(column, config=self._tools.full_text(), replace=True)
        self.searchable = True

    async def make_again(self, indices: tuple[str, ...]) -> None:
        """Make damaged indices anew."""
        for index in await self.table.list_indices():
            if index.name in indices:
                (column,) = index.columns
                config = self._tools.full_text() if column in SEARCHED else self._tools.by_value()
                await self.table.create_index(column, config=config, replace=True)
                _logger.warning("index_made_again", table=self.name, column=column)

    async def record(self, began: float) -> int:
        """Return when all that was committed is on disk, and is said to be; how many bytes were new.

        Raises:
            OSError: it is not; it is undone before the next write.
        """
        written = await self._record(self.table)
        self._note(began)
        return written

    async def _record(self, table: Any) -> int:
        if self.files is None:
            return 0
        version = await table.version()
        try:
            return await anyio.to_thread.run_sync(self.files.record, version)
        except BaseException:
            self.unsynced = True
            raise

    def _note(self, began: float) -> None:
        now = time.time()
        if not self._commits or now - self._commits[-1][1] > _COMMIT_GRAIN_S:
            self._commits.append((began, now))

    # -- upkeep, under the lock -------------------------------------------------------------------------------------

    async def optimize(self, *, keep_s: float) -> None:
        """Fold small fragments, bring the indices up to date, remove versions that were superseded `keep_s` ago."""
        began = time.time()
        await self.table.optimize(cleanup_older_than=self._removable(keep_s))
        self.rewritten_bytes += await self.record(began)
        self.fragments = 0

    def _removable(self, keep_s: float) -> timedelta:
        """The age above which versions go: those before the one that was the newest `keep_s` ago."""
        now = time.time()
        settled = None
        while self._commits and self._commits[0][1] <= now - keep_s:
            settled = self._commits.popleft()
        if settled is None:
            return _NEVER
        self._commits.appendleft(settled)
        return timedelta(seconds=now - settled[0] + 0.001)

    async def index_users(self, least_rows: int, table: Any = None) -> None:
        """Index the users' keys, where there are so many rows."""
        table = table or self.table
        if await table.count_rows() < least_rows or "user_key" in await _indexed(table):
            return
        await table.create_index("user_key", config=self._tools.by_value())

    async def rewrite(self, drop: Callable[[dict[str, list[str]]], list[bool]] | None, *, index_rows: int) -> int:
        """Write the table anew, without some rows: each user's side by side, in one fragment, indexed. Returns how many went.

        A crash leaves the table as it was or as it is to be. Readers go on as before until it is.
        """
        began = time.time()
        work = await self._reopen()
        before = await work.query().to_arrow()
        after = await anyio.to_thread.run_sync(self._rows.rearranged, before, drop)
        removed = len(before) - len(after)
        del before
        await work.add(after, mode="overwrite", write_parallelism=1)  # one fragment: nothing is left to be folded
        await work.set_unenforced_primary_key("id")
        if len(after):
            await self.make_searchable(work)
            await self.index_users(index_rows, work)
        self.searchable = bool(len(after))
        del after
        self.rewritten_bytes += await self._record(work)
        self._note(began)
        self._switch(work)
        self.checked = True
        self.fragments = 0
        return removed

    async def forget_versions(self) -> None:
        """Remove all versions but the newest, and what failed writes have left, once nobody reads them."""
        for old in self._retired:
            await old.idle.wait()
        self._retired.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that readers of older versions fail: there are none
            stats = await self.table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
        if stats.compaction.fragments_removed:
            raise RuntimeError("there was something to fold in a table that had just been rewritten")
        self._commits.clear()
        await self.record(time.time())

    def _switch(self, table: Any) -> None:
        old, self._reading = self._reading, _Reading(table)
        if old.readers:
            self._retired.append(old)


async def _indexed(table: Any) -> set[str]:
    return {index.columns[0] for index in await table.list_indices()}
