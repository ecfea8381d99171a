"""The users whose rows are in memory: bounded, never stale, each user's rows read once (G10).

A search of LanceDB costs 10 to 30 ms on both cores. Hardly any of that is the search: LanceDB needs
at least 3 to 4 ms for each list, and there are three. The same search over one user's rows in
memory takes half a millisecond. So a user's first recall reads all of the user's rows, which for a
few hundred rows costs no more than a search. The rows stay in memory within a number of bytes; the
least recently used user leaves first.

*One way to search one user.* The first recall waits for the rows and searches them in memory, as
the next one will. So no answer depends on what happens to be in memory. A user with more than
`max_rows` rows, or with more bytes than there is room for, is always searched in the store; a user
who grows beyond that changes over once.

*Never stale.* What is held of a user is one `UserEntry`: the index and the results found in it. A
write replaces the whole entry, so neither the old rows nor an old result can answer a later
question. A search that began before the write ends in the old entry, which is not read again.
The old index only serves to build the next one, which reuses what did not change, since that is the
slow part. Rows that were removed leave memory at once.

*No wasted reads.* A user's rows are read once, however many callers ask. The read belongs to the
runtime and not to the first caller: a deadline ends the wait, not the read. Otherwise rows that
take longer than the deadline would never be in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import TypeAlias

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from remora.languages.search_words import reading_size
from remora.logging import get_logger
from remora.recall.memory import FoundMemories
from remora.recall.user_index import UserIndex
from remora.runtime.concurrency import is_open, run_in_thread_if
from remora.runtime.probes import probe
from remora.storage.ports import LongTermStore

_logger = get_logger(__name__)
_BUILT_ON_LOOP = 16  # rows: half a millisecond, as much as a thread costs
_CHARACTERS = 10_000  # of their texts, of English: 2 ms
_READS = 4  # users whose rows are read at once: more would only take memory
_FREED_AT_ONCE = 32
MAX_RESULT_BYTES = 64 << 20
"""Bytes of all results together."""
MAX_WITHOUT_INDEX = 10_000
"""Users that are known to be searched in the store."""

Question: TypeAlias = Hashable
"""All that an answer depends on, except the user's rows in the index."""


class UserIndexStatistics(msgspec.Struct, frozen=True):
    """Counts of the indices in memory, and of what they saved.

    Attributes:
        hits: recalls that found their user's rows in memory.
        misses: recalls that waited for them.
        passed: recalls that asked the store because the user has too many rows.
        evictions: users evicted for others.
        users: users whose rows are held.
        rows: their rows.
        size_bytes: their size; at most the configured bound.
    """

    hits: int = 0
    misses: int = 0
    passed: int = 0
    evictions: int = 0
    users: int = 0
    rows: int = 0
    size_bytes: int = 0


class ResultStatistics(msgspec.Struct, frozen=True):
    """Counts of the held results, and of what they saved.

    Attributes:
        hits: recalls answered from a held result.
        misses: recalls that searched.
        size: results held.
    """

    hits: int = 0
    misses: int = 0
    size: int = 0


class UserEntry:
    """The held data of one user, for one state of their memory. A write replaces it.

    Args:
        index: the rows in memory; None where the store is searched.
        outdated: the rows have changed since; the index only serves to build the next one.
    """

    __slots__ = ("index", "outdated", "result_bytes", "results")

    def __init__(self, index: UserIndex | None = None, *, outdated: bool = False) -> None:
        self.index = index
        self.outdated = outdated
        self.results: OrderedDict[Question, FoundMemories] = OrderedDict()
        self.result_bytes = 0


class UserIndexCache:
    """The indexes of the users who recalled last, with their results; for one event loop.

    Args:
        store: opens long-term memory at first use.
        max_bytes: size of all indexes together; 0 for none: the store is searched.
        max_rows: a user with more rows is searched in the store.
        max_results: results held, of all users together; 0 for none.
    """

    def __init__(
        self,
        store: Callable[[], Awaitable[LongTermStore]],
        *,
        max_bytes: int,
        max_rows: int,
        max_results: int = 0,
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._max_results = max_results
        self._indexed: OrderedDict[str, UserEntry] = OrderedDict()
        self._without_index: OrderedDict[str, UserEntry] = OrderedDict()
        self._answered: OrderedDict[str, UserEntry] = OrderedDict()  # entries with results
        self._reads: dict[str, _Read] = {}
        self._slots = anyio.Semaphore(_READS)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._size_bytes = self._hits = self._misses = self._passed = self._evictions = 0
        self._results = self._result_bytes = self._result_hits = self._result_misses = 0

    async def run(self) -> None:
        """Read rows for recalls until cancelled. Without it, the first caller reads."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    async def get(self, user: str) -> UserEntry:
        """The user's entry, no older than this call; reads the rows if need be."""
        entry = self._indexed.get(user)
        if entry is not None and not entry.outdated:
            self._hits += 1
            self._indexed.move_to_end(user)
            return entry
        entry = self._without_index.get(user)
        if entry is not None:
            if self._max_bytes:
                probe("user_index_too_large")
                self._passed += 1
            self._without_index.move_to_end(user)
            return entry
        if not self._max_bytes:
            entry = UserEntry()
            self._hold_without_index(user, entry)
            return entry
        self._misses += 1
        read = self._reads.get(user)
        if read is None or read.overtaken:  # that one is for those who asked before the write
            read = self._reads[user] = _Read()
            if is_open(self._tasks):
                self._tasks.start_soon(self._run, user, read, name="remora.recall.read")
            else:
                await self._run(user, read)
        await read.done.wait()
        return read.entry

    def note_change(self, user: str, *, gone: bool) -> None:
        """The user's memory changed, or may have: nothing held of it answers a later recall.

        Args:
            user: the user.
            gone: rows were removed: none stays in memory, a running read is not kept, and
                whether the user has too many rows is found out again.
        """
        if user in self._answered:
            probe("recall_cache_invalidated")
        indexed = self._indexed.get(user)
        if indexed is not None:
            self._drop_results(user, indexed)
            if gone:
                self._drop_index(user)
            else:
                self._indexed[user] = UserEntry(indexed.index, outdated=True)
        unindexed = self._without_index.pop(user, None)
        if unindexed is not None:
            self._drop_results(user, unindexed)
            if not gone:
                self._hold_without_index(user, UserEntry())
        read = self._reads.get(user)
        if read is not None:
            read.overtaken = True
            if gone:
                del self._reads[user]

    def statistics(self) -> UserIndexStatistics:
        """The present counts."""
        held = list(self._indexed.values())  # another thread may ask
        indexes = [entry.index for entry in held if entry.index is not None]
        return UserIndexStatistics(
            hits=self._hits,
            misses=self._misses,
            passed=self._passed,
            evictions=self._evictions,
            users=len(indexes),
            rows=sum(map(len, indexes)),
            size_bytes=self._size_bytes,
        )

    # -- results ----------------------------------------------------------------------------------

    def result(self, user: str, question: Question) -> FoundMemories | None:
        """Return what was found for this question since the user's last write.

        None if it is not held.
        """
        if not self._max_results:
            return None
        entry = self._answered.get(user)
        found = None if entry is None else entry.results.get(question)
        if entry is None or found is None:
            self._result_misses += 1
            return None
        self._result_hits += 1
        entry.results.move_to_end(question)
        self._answered.move_to_end(user)
        held = self._without_index if entry.index is None else self._indexed
        held.move_to_end(user)
        return found

    def keep(self, user: str, entry: UserEntry, question: Question, found: FoundMemories) -> None:
        """Hold what a search in `entry` found, unless the entry has been replaced since."""
        if not self._max_results:
            return
        if entry is not self._indexed.get(user) and entry is not self._without_index.get(user):
            probe("recall_overtaken")
            return
        before = entry.results.get(question)
        if before is not None:  # two searched at once
            self._count(entry, -1, -before.nbytes)
        entry.results[question] = found
        self._count(entry, 1, found.nbytes)
        self._answered[user] = entry
        self._answered.move_to_end(user)
        while self._results > self._max_results or self._result_bytes > MAX_RESULT_BYTES:
            other, oldest = next(iter(self._answered.items()))
            _, evicted = oldest.results.popitem(last=False)
            self._count(oldest, -1, -evicted.nbytes)
            if not oldest.results:
                del self._answered[other]

    def result_statistics(self) -> ResultStatistics:
        """The present counts; zeros where no results are held."""
        return ResultStatistics(self._result_hits, self._result_misses, self._results)

    def _count(self, entry: UserEntry, results: int, nbytes: int) -> None:
        entry.result_bytes += nbytes
        self._results += results
        self._result_bytes += nbytes

    def _drop_results(self, user: str, entry: UserEntry) -> None:
        if self._answered.pop(user, None) is not None:
            self._count(entry, -len(entry.results), -entry.result_bytes)
            results, entry.results = entry.results, OrderedDict()
            if len(results) > _FREED_AT_ONCE and is_open(self._tasks):
                self._tasks.start_soon(_free, results, name="remora.recall.free")

    # -- indexes ----------------------------------------------------------------------------------

    async def _run(self, user: str, read: _Read) -> None:
        """Read the user's rows, build the index, and hold what came of it."""
        try:
            async with self._slots:
                read.entry = UserEntry(await self._build(user))
            if self._reads.get(user) is not read:
                probe("user_index_read_overtaken")
                return  # a newer read began, or rows were removed
            # what a write overtook answers those who wait, and serves to build the next index
            entry = UserEntry(read.entry.index, outdated=True) if read.overtaken else read.entry
            if entry.index is None:
                self._drop_index(user)
                self._hold_without_index(user, entry)
            else:
                self._hold_index(user, entry, entry.index.size_bytes)
        except Exception as e:
            probe("user_index_read_failed")
            # The store is searched instead, and its error says what is wrong.
            _logger.warning("rows_not_read", error=f"{type(e).__name__}: {e}")
        finally:
            if self._reads.get(user) is read:
                del self._reads[user]
            read.done.set()

    async def _build(self, user: str) -> UserIndex | None:
        """Index the user's rows; None if they are too many."""
        store = await self._store()
        if await self._has_too_many(store, user):
            return None
        rows, vectors = await store.embedded_rows(user)
        if len(rows) > self._max_rows:
            return None
        held = self._indexed.get(user)
        build = partial(UserIndex, rows, vectors, None if held is None else held.index)
        many = len(rows) > _BUILT_ON_LOOP or reading_size([row.turn for row in rows]) > _CHARACTERS
        index = await run_in_thread_if(many, build)
        return index if index.size_bytes <= self._max_bytes else None

    async def _has_too_many(self, store: LongTermStore, user: str) -> bool:
        """Return whether the user has too many rows to read them: they would fill memory."""
        held = self._indexed.get(user)
        if held is not None and held.index is not None and len(held.index) < self._max_rows // 2:
            return False  # a user of few rows seldom has too many by the next recall
        return await store.count(user) > self._max_rows

    def _hold_without_index(self, user: str, entry: UserEntry) -> None:
        self._without_index[user] = entry
        if len(self._without_index) > MAX_WITHOUT_INDEX:
            self._drop_results(*self._without_index.popitem(last=False))

    def _hold_index(self, user: str, entry: UserEntry, size_bytes: int) -> None:
        self._drop_index(user)
        self._indexed[user] = entry
        self._size_bytes += size_bytes
        while self._size_bytes > self._max_bytes:
            self._drop_index(next(iter(self._indexed)))
            probe("user_index_evicted")
            self._evictions += 1

    def _drop_index(self, user: str) -> None:
        entry = self._indexed.pop(user, None)
        if entry is not None and entry.index is not None:
            self._size_bytes -= entry.index.size_bytes
            self._drop_results(user, entry)


async def _free(results: OrderedDict[Question, FoundMemories]) -> None:
    """Free some at a time: a thousand at once would hold the event loop."""
    while results:
        for _ in range(min(_FREED_AT_ONCE, len(results))):
            results.popitem()
        await anyio.lowlevel.checkpoint()


class _Read:
    """A running read."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.overtaken = False  # by a write
        self.entry = UserEntry()
