"""Find what a user said before, or had recorded: embed the question, search the rows, rank."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio.abc

from remora.config import RecallConfig
from remora.messages import without_surrogates
from remora.models.ports import Embedder, as_near_words
from remora.recall.current import CurrentMemories, is_recorded
from remora.recall.days import day_of
from remora.recall.index_cache import (
    ResultStatistics,
    UserEntry,
    UserIndexCache,
    UserIndexStatistics,
)
from remora.recall.memory import FoundMemories, Memory, make_memory, sort_by_importance
from remora.recall.near import Vocabulary
from remora.recall.question import Question, ask, related_words
from remora.recall.ranking import Ranked, Ranking, add_related, fuse
from remora.recall.reranking import Reranking, RerankStatistics, reorder
from remora.recall.tail import EMPTY_TAIL, Tail, add_tail
from remora.recall.user_index import MAX_ON_LOOP
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.meters import Histogram, HistogramMeter
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread
from remora.storage.ports import (
    BLOCK_TYPE,
    EVERYTHING,
    LongTermStore,
    MemoryRow,
    RowOrder,
    Scope,
    Vector,
)
from remora.storage.windows import makes_windows

_IN_THREAD = 500  # rows from which on making memories of them is a thread's work
_CHARACTERS_IN_THREAD = 100_000  # of a query and what it found, from which on it is ranked in one
_RANKED_ON_LOOP = 100  # candidates; 300 take 5 ms
_MORE = 8  # memories that are looked at when some are not as they were found
_MAX_HELD_QUERY = 4_096  # characters of a query whose result is held


class Tails(Protocol):
    """The port of messages that are not indexed yet; see `remora.services.unindexed`."""

    async def get(
        self, user: str, without: Collection[tuple[str, int]] = (), newest: int = 0
    ) -> Tail:
        """The user's tail, no older than this call.

        Args:
            user: the user.
            without: messages that are not recalled, by session and number; it may lack them.
            newest: the number of the newest message of the only session that these are of; 0 if
                that is not known.
        """
        ...

    async def widen(self, user: str, tail: Tail, question: Question) -> Tail:
        """A tail that is cut, with older rows that have words of the question."""
        ...

    def note(self, user: str) -> str:
        """Return what of the user's tail is not searched; empty if all is."""
        ...

    def note_change(self, user: str, *, gone: bool) -> None:
        """The user's rows of long-term memory changed, or may have."""
        ...

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Read tails in this group."""
        ...


class Recall:
    """Search in one user's long-term memory.

    The rows of the users who recalled last are held and searched in memory, and what was found in
    them is held as long as they do not change (`remora.recall.index_cache`).

    Args:
        store: opens long-term memory at first use.
        embedder: None for text search alone.
        config: weights, depths, and how much is held.
        importance_weight: how much importance moves the rank: the most important gains this share,
            the least important loses as much, and importance 0.5 changes nothing.
        admit: raises for a user who is being forgotten.
        unindexed: what users said that is not indexed yet; None to search indexed rows only.
        current: compares recorded memories with the journal; None to take them as they are found.
        reranking: judges the best of what was found; None to take the order of the fusion.
        now: the time of asking, in seconds since the epoch.
    """

    def __init__(
        self,
        store: Callable[[], Awaitable[LongTermStore]],
        embedder: Embedder | None,
        config: RecallConfig,
        *,
        importance_weight: float = 0.0,
        admit: Callable[[str], None] = lambda _: None,
        unindexed: Tails | None = None,
        current: CurrentMemories | None = None,
        reranking: Reranking | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.meter = HistogramMeter()
        self._now = now
        self._current = current
        self._reranking = reranking
        self._store = store
        self._admit = admit
        self._embedder = embedder
        near_words = as_near_words(embedder) if config.near_words > 0 else None
        self._vocabulary = None if near_words is None else Vocabulary(near_words)
        self._config = config
        self._unindexed = unindexed
        self._gain = 1.0 + importance_weight
        self._users = UserIndexCache(
            store,
            max_bytes=config.hot_mb << 20,
            max_rows=config.hot_rows,
            max_results=config.cache,
        )

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Read rows, and call the reranker, in this group."""
        tasks.start_soon(self.run, name="remora.recall")
        if self._unindexed is not None:
            self._unindexed.start(tasks)
        if self._reranking is not None:
            self._reranking.start(tasks)

    async def run(self) -> None:
        """Read rows into memory until cancelled. Without it, each recall reads for itself."""
        await self._users.run()

    async def __call__(
        self,
        user: str,
        query: str,
        *,
        limit: int,
        scope: Scope = EVERYTHING,
        without: Collection[tuple[str, int]] = (),
        newest: int = 0,
        max_tokens: int | None = None,
        relevance: float = 0.0,
        report: Callable[[str], None] = lambda _: None,
    ) -> list[Memory]:
        """The best memories, best first.

        Args:
            user: the user.
            query: the question.
            limit: how many at most.
            scope: which of the user's rows to search.
            without: messages to leave out, by session and number.
            newest: see `Tails.get`.
            max_tokens: none after those that have so many together; None for no such bound.
            relevance: leave out what is less relevant; see `FoundMemories.best`.
            report: called with why the memories are not reranked, if they should be.

        Raises:
            LongTermError: the store failed.
            ModelError: the embedder failed.
            ErasureInProgress: the user is being forgotten.
        """
        began_s = time.perf_counter()
        query = without_surrogates(query)
        tail = await self._tail(user, without, newest)
        shown = tail.shown(without) if without and tail else ()
        question = None
        if len(query) <= _MAX_HELD_QUERY and not tail.cut:
            question = (query, scope, tail.version, shown, self._today())
        found = None if question is None else self._users.result(user, question)
        if found is None:
            asked = await self.ask(query)
            if tail.cut and self._unindexed is not None:
                tail = await self._unindexed.widen(user, tail, asked)
                self._admit(user)
            found, entry, problem = await self._find(tail, user, asked, scope, shown)
            if problem:
                report(problem)
            elif question is not None:
                self._users.keep(user, entry, question, found)
        best = partial(found.best, without=without, max_tokens=max_tokens, relevance=relevance)
        memories = await self._best(user, best, limit, scope, without)
        self.meter.add(time.perf_counter() - began_s)
        return memories

    async def rows(
        self,
        user: str,
        scope: Scope = EVERYTHING,
        *,
        limit: int | None = None,
        by: RowOrder = "created",
    ) -> list[Memory]:
        """Return what long-term memory holds of a user in `scope`: all, or the first `limit`.

        What was deleted is left out before it is removed, and what is written again is there.

        Raises:
            LongTermError: the store failed.
            ErasureInProgress: the user is being forgotten.
        """
        tail = await self._tail(user)
        store = await self._store()
        asked = limit
        if by == "importance" and any(is_recorded(row.memory_type) for row in tail.rows):
            asked = None  # the store may have another importance of them
        while True:
            most = None if asked is None else asked + len(tail.hidden)
            rows = await store.rows(user, scope, limit=most, by=by)
            whole = most is None or len(rows) < most
            large = len(rows) >= _IN_THREAD
            last = rows[-1] if rows and not whole else None
            found = await run_in_thread_if(large, _make_memories, rows, tail, scope, last, by)
            if self._current is not None:
                found = await self._current(user, found, history=True)
            if by == "importance":
                found = await sort_by_importance(found)
            if whole or asked is None or len(found) >= asked:
                return found[:limit]
            asked *= 2  # some of the first were deleted

    async def count(self, user: str) -> int:
        """How many rows long-term memory holds of a user.

        Raises:
            LongTermError: the store failed.
            ErasureInProgress: the user is being forgotten.
        """
        self._admit(user)
        store = await self._store()
        return await store.count(user)

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """The rows of `rows` with their vectors, shape (rows, dimension); None without an embedder.

        Raises:
            LongTermError: the store failed.
            ErasureInProgress: the user is being forgotten.
        """
        tail = await self._tail(user)
        rows, vectors = await self._current_rows(user, scope)
        more = tail.rewritten_places(scope)
        if not more and not tail.hidden:
            return rows, vectors
        return await run_in_thread_if(
            len(rows) >= _IN_THREAD, _join_in_order, rows, vectors, tail, more
        )

    async def _tail(
        self, user: str, without: Collection[tuple[str, int]] = (), newest: int = 0
    ) -> Tail:
        """Return what long-term memory lacks of a user, and has no longer.

        It is read before long-term memory: a row that is indexed in between is then in both, and
        not in neither.

        Raises:
            ErasureInProgress: the user is being forgotten.
        """
        self._admit(user)
        if self._unindexed is None:
            return EMPTY_TAIL
        tail = await self._unindexed.get(user, without, newest)
        self._admit(user)  # an erasure may have begun
        return tail

    async def _current_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """The rows that are in long-term memory, with their vectors."""
        rows, vectors = await (await self._store()).embedded_rows(user, scope)
        if self._current is None:
            return rows, vectors
        recorded = [row.id for row in rows if is_recorded(row.memory_type)]
        current = await self._current.row_ids(user, recorded) if recorded else frozenset()
        kept = [
            place
            for place, row in enumerate(rows)
            if not is_recorded(row.memory_type) or row.id in current
        ]
        if len(kept) == len(rows):
            return rows, vectors
        return [rows[place] for place in kept], None if vectors is None else vectors[kept]

    async def ask(self, query: str) -> Question:
        """A question as searches take it.

        Raises:
            ModelError: the embedder failed.
        """
        return await ask(query, self._embedder, self._vocabulary, today=self._today())

    def _today(self) -> int | None:
        """The day, if questions are read for days."""
        return day_of(int(self._now() * 1_000_000)) if self._config.date_bonus != 1 else None

    async def searched_rows(self, user: str) -> tuple[Sequence[MemoryRow], Vector | None]:
        """All rows that a recall searches, indexed or not, as `embedded_rows` returns them.

        Raises:
            LongTermError: the store failed.
            ErasureInProgress: the user is being forgotten.
        """
        tail = await self._tail(user)
        rows, vectors = await self._current_rows(user)
        if not tail:
            return rows, vectors
        return _join(rows, vectors, tail, range(len(tail.rows)))

    def note(self, user: str) -> str:
        """Return what the last recall of a user could not search, for people; empty if nothing."""
        return "" if self._unindexed is None else self._unindexed.note(user)

    def note_change(self, user: str, *, gone: bool) -> None:
        """The user's rows changed, or may have: later recalls see it.

        Args:
            user: the user.
            gone: rows were removed: nothing of them stays in memory (G13).
        """
        self._users.note_change(user, gone=gone)
        if gone and self._reranking is not None:
            self._reranking.note_removal(user)
        if self._unindexed is not None:
            self._unindexed.note_change(user, gone=gone)

    def statistics(self) -> ResultStatistics:
        """Return what the held results saved; zeros where none are held."""
        return self._users.result_statistics()

    def index_statistics(self) -> UserIndexStatistics:
        """Return what the rows in memory saved; zeros where none are held."""
        return self._users.statistics()

    def seconds(self) -> Histogram:
        """How long each call took that succeeded."""
        return self.meter.figures()

    def rerank_statistics(self) -> RerankStatistics:
        """Return what the reranker did; zeros without one."""
        return RerankStatistics() if self._reranking is None else self._reranking.statistics()

    @property
    def reranker_fails(self) -> bool:
        """Return whether a reranker failed, or was late, several times in a row."""
        return self._reranking is not None and self._reranking.failing

    async def _find(
        self, tail: Tail, user: str, asked: Question, scope: Scope, shown: Collection[str]
    ) -> tuple[FoundMemories, UserEntry, str]:
        """Return the judged result of a search, its entry, and why it is not judged."""
        self._admit(user)  # an erasure may have begun
        search = partial(self._search, user=user, asked=asked, scope=scope, shown=shown)
        reranking = self._reranking
        if reranking is None:
            entry = await self._users.get(user)
            return FoundMemories(await search(entry, tail)), entry, ""
        with reranking.watch(user) as watched:
            entry = await self._users.get(user)
            ranking = await search(entry, tail)
            first = FoundMemories(ranking).best(self._config.rerank_depth)
            if self._current is not None:  # the reranker does not see what was deleted
                first = await self._current(user, first, as_found=True)
            judgement = await reranking.judge(user, asked.text, first)
        if not watched.void:
            ranking = reorder(ranking, judgement.scores, self._config.rerank_weight)
            return FoundMemories(ranking), entry, judgement.problem
        tail = await self._tail(user)
        entry = await self._users.get(user)
        found = FoundMemories(await search(entry, tail))
        return found, entry, "not reranked: memories were removed at the same time"

    async def _best(
        self,
        user: str,
        find: Callable[[int], list[Memory]],
        limit: int,
        scope: Scope,
        without: Collection[tuple[str, int]],
    ) -> list[Memory]:
        """The best that are in the journal as they were found."""
        if self._current is None:
            return find(limit)
        wanted = limit
        while True:
            best = find(wanted)
            there = [one for one in best if scope.ids is None or one.id in scope.ids]
            current = await self._current(user, there, without=without)
            if len(current) >= limit or len(best) < wanted:
                return current[:limit]
            probe("stale_memories_left_out")
            wanted = 2 * wanted + _MORE

    async def _search(
        self,
        entry: UserEntry,
        tail: Tail,
        user: str,
        asked: Question,
        scope: Scope,
        shown: Collection[str],
    ) -> Ranking:
        config, query, vector = self._config, asked.text, asked.vector
        if entry.index is not None:
            if not tail:
                return await entry.index.rank(asked, scope, config, gain=self._gain)
            large = len(entry.index) > MAX_ON_LOOP
            index = await run_in_thread_if(large, tail.combined_with, entry.index)
            return await index.rank(asked, scope, config, gain=self._gain, without=shown)
        store = await self._store()
        searched = await run_in_thread_if(asked.is_long, getattr, asked, "searched")
        search = partial(store.search, user, depth=config.depth, scope=scope)
        found = await search(searched, vector)
        related: Mapping[str, str] = {}
        if config.near_words:
            related = await run_in_thread_if(asked.is_long, related_words, asked, ())
        others = await search(" ".join(related), None) if related else ()
        candidates = [one for one in found if one.row.memory_type != BLOCK_TYPE]
        size = len(query) + sum(len(one.row.content) for one in candidates)
        if tail:
            lists = ("turn",) if makes_windows(store) else ("turn", "window")
            add = partial(
                add_tail,
                candidates,
                tail,
                asked,
                scope,
                depth=config.depth,
                without=shown,
                lists_of_words=lists,
                related=related,
                share=config.near_words,
            )
            candidates = await run_in_thread_if(True, add)
        if others:
            left_out = tail.hidden.union(shown)
            others = [
                one
                for one in others
                if one.row.memory_type != BLOCK_TYPE and one.row.id not in left_out
            ]
            share = config.near_words
            candidates = await run_in_thread(add_related, candidates, others, related, share)
        rank = partial(fuse, candidates, config, asked, gain=self._gain)
        large = size > _CHARACTERS_IN_THREAD or len(candidates) > _RANKED_ON_LOOP
        large = large or asked.reads_texts or asked.is_long
        return await run_in_thread_if(large, rank)


def _make_memories(
    rows: Sequence[MemoryRow], tail: Tail, scope: Scope, last: MemoryRow | None, by: RowOrder
) -> list[Memory]:
    """Memories of rows, and of those that are written again, up to the last of the rows."""

    def place_of(row: MemoryRow) -> tuple[float, tuple[int, str, int]]:
        return (-row.importance if by == "importance" else 0.0, _age(row))

    more = tail.rewritten_places(scope)
    if last is not None:
        more = [one for one in more if place_of(tail.rows[one]) <= place_of(last)]
    if more or tail.hidden:
        rows = _join(rows, None, tail, more)[0]
    rows = sorted(rows, key=_age)
    return [make_memory(Ranked(row, 0.0, {})) for row in rows if row.memory_type != BLOCK_TYPE]


def _join_in_order(
    rows: Sequence[MemoryRow], vectors: Vector | None, tail: Tail, places: Iterable[int]
) -> tuple[list[MemoryRow], Vector | None]:
    """`_join`, oldest first."""
    rows, vectors = _join(rows, vectors, tail, places)
    order = sorted(range(len(rows)), key=lambda place: _age(rows[place]))
    return [rows[place] for place in order], None if vectors is None else vectors[order]


def _join(
    rows: Sequence[MemoryRow], vectors: Vector | None, tail: Tail, places: Iterable[int]
) -> tuple[list[MemoryRow], Vector | None]:
    """The rows that are not removed, and those at these places of the tail that they lack."""
    known = {row.id for row in rows}
    kept = [place for place, row in enumerate(rows) if row.id not in tail.hidden]
    more = [place for place in places if tail.rows[place].id not in known]
    every = [*(rows[place] for place in kept), *(tail.rows[place] for place in more)]
    halves = [
        part[some]
        for part, some in ((vectors, kept), (tail.vectors, more))
        if part is not None and some
    ]
    if sum(map(len, halves)) != len(every):
        return every, None
    if not halves:
        return every, vectors[:0] if vectors is not None else None
    import numpy as np  # noqa: PLC0415

    return every, np.concatenate(halves).astype(np.float32, copy=False)


def _age(row: MemoryRow) -> tuple[int, str, int]:
    return row.created_us, row.session, row.seq
