"""The record and prune lanes over a real journal and store, cut off at every step."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from remora import Synopsis
from remora.config import ImportanceConfig, RecallConfig
from remora.errors import RedactionFailed
from remora.ids import memory_id, row_id
from remora.jobs.flush import FlushHandler
from remora.jobs.memories import RecordHandler
from remora.jobs.prune import PruneHandler
from remora.jobs.rows import IndexAccess, memory_row
from remora.messages import dated_line, encode_message
from remora.recall.ranking import fuse
from remora.recall.recall import Recall
from remora.results import Job, UserView
from remora.runtime.jobs import JobAttempt
from remora.runtime.locks import SharedLocks
from remora.runtime.log import commit_records
from remora.storage.memory import MemoryJournal, MemoryStore
from remora.storage.ports import Candidate, LongTermStore, MemoryRow, SessionKey, UserKey, Write
from remora.storage.records import (
    Appended,
    FlushSpec,
    MemoriesRemoved,
    MemoryItem,
    Opened,
    PruneSpec,
    RecordSpec,
    Remembered,
)
from remora.testing import HashEmbedder, long_term_row
from remora.tokens import HeuristicCounter

pytestmark = pytest.mark.anyio

ALICE, CHAT = UserKey("alice"), SessionKey("alice", "chat")
EMBEDDER = HashEmbedder(16)
NOW = 1_700_000_000.0


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """Long-term memory and a journal whose process ends at the n-th step: before it took effect, or
    right after.
    """

    def __init__(self, journal: MemoryJournal, store: MemoryStore) -> None:
        self.journal, self.store = journal, store
        self.steps = itertools.count()
        self.at: tuple[int, str] | None = None

    def kill_at(self, step: int, when: str) -> None:
        self.steps, self.at = itertools.count(), (step, when)

    async def step(self, effect: Any) -> Any:
        number = next(self.steps)
        if self.at == (number, "before"):
            raise Killed
        result = await effect()
        if self.at == (number, "after"):
            raise Killed
        return result


class MortalStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__(EMBEDDER.dimension)
        self.life: Mortal | None = None

    async def add(self, rows: Sequence[MemoryRow], vectors: Any, *, may_exist: bool) -> None:
        real = super().add
        for place in range(len(rows)):  # a commit may have taken in some of them
            part = vectors[place : place + 1]
            await self._step(
                lambda place=place, part=part: real(
                    rows[place : place + 1], part, may_exist=may_exist
                )
            )

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        real = super().delete
        return sum([await self._step(lambda id_=id_: real(user, [id_])) for id_ in ids])

    async def _step(self, effect: Any) -> Any:
        return await self.life.step(effect) if self.life else await effect()


class MortalJournal(MemoryJournal):
    life: Mortal | None = None

    async def commit(self) -> None:
        if self.life is None:
            await super().commit()
            return
        batch, self._queue = self._queue, []
        error = None
        if batch:
            try:
                await self.life.step(lambda: self._kept(batch))
            except Killed:
                error = RuntimeError("killed")
        for write in batch:
            write.acknowledge(error)

    async def _kept(self, batch: Sequence[Write]) -> None:
        for write in batch:
            for record in write.records:
                self.apply(record)


class Bench:
    """Both lanes, and what they work on."""

    def __init__(self, *, redact: Any = None, embedder: Any = EMBEDDER) -> None:
        self.journal, self.store = MortalJournal(), MortalStore()
        self.accesses: dict[str, tuple[int, int]] = {}
        self.told: list[str] = []
        self.gone: list[str] = []
        self.now = NOW

        async def store() -> LongTermStore:
            return self.store

        async def look(_: UserKey) -> UserView:
            return UserView(1, 0, 0, 0, self.accesses, Synopsis("", "", "empty"), 0, 0, {})

        self.access = IndexAccess(
            self.journal, store, embedder, redact, self.told.append, self.gone.append, SharedLocks()
        )
        self.prune = PruneHandler(
            self.access, look, now=lambda: self.now, importance=ImportanceConfig()
        )
        self.embed_with(embedder)

    def embed_with(self, embedder: Any) -> None:
        """From now on, rows are embedded by this one."""
        access = msgspec.structs.replace(self.access, embedder=embedder)
        self.record = RecordHandler(access)
        self.flush = FlushHandler(access, HeuristicCounter(), window_chars=100, batch_tokens=10)

    async def open(self) -> None:
        await commit_records(
            self.journal, [Opened(1, "alice", "", 0), Opened(2, "alice", "chat", 0)]
        )

    async def remember(self, *items: MemoryItem) -> JobAttempt:
        spec = RecordSpec(1, tuple(item.id for item in items))
        job = Job(f"record-{spec.ids}", "record", ALICE, spec)
        await commit_records(self.journal, [Remembered(1, items, ())])
        return JobAttempt(job, last=False, expedited=False)

    async def say(self, *texts: str) -> JobAttempt:
        entries = []
        for seq, text in enumerate(texts, start=1):
            entry, _ = encode_message(
                {"role": "user", "content": text, "created_at": NOW - 1_000 + seq}
            )
            entries.append(entry.with_seq(seq))
        await commit_records(self.journal, [Appended(2, tuple(entries), None)])
        return JobAttempt(
            Job("flush", "flush", CHAT, FlushSpec(2, 1, len(texts))), last=False, expedited=False
        )

    def pruning(self, keep: int, strategy: str = "fifo", **options: Any) -> JobAttempt:
        return JobAttempt(
            Job("prune", "prune", ALICE, PruneSpec(1, keep, strategy, **options)),
            last=False,
            expedited=False,
        )

    async def ids(self) -> list[str]:
        return sorted(await self.store.row_ids())


@asynccontextmanager
async def bench(**options: Any) -> AsyncIterator[Bench]:
    made = Bench(**options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.journal.run)
        await made.open()
        yield made
        tasks.cancel_scope.cancel()


def item(
    content: str,
    *,
    importance: float = 0.5,
    age_s: float = 0.0,
    kind: str = "fact",
    agent: str = "",
) -> MemoryItem:
    at_us = int((NOW - age_s) * 1_000_000)
    return MemoryItem(
        memory_id("alice", agent, content), "chat", agent, content, kind, importance, at_us, 5
    )


def again(attempt: JobAttempt) -> JobAttempt:
    return msgspec.structs.replace(attempt, job=msgspec.structs.replace(attempt.job, resumed=True))


async def test_a_memory_becomes_a_row() -> None:
    """S2.17, S4.43: type, importance, session, agent and date arrive; what must not be kept is
    taken out first, and what cannot be redacted does not reach long-term memory.
    """

    def hook(text: str) -> str:
        if "secret" in text:
            raise ValueError(text)
        return text.replace("4711", "…")

    async with bench(redact=hook) as made:
        memory = item("My PIN is 4711", importance=0.9, kind="preference", agent="scout")
        await made.record(await made.remember(memory))
        assert made.told == ["alice"]
        secret = await made.remember(item("a secret"))
        with pytest.raises(RedactionFailed):
            await made.record(secret)
        (row,) = await made.store.rows("alice")
        assert (row.id, row.session, row.agent) == (memory.id, "chat", "scout")
        assert (row.memory_type, row.importance) == ("preference", 0.9)
        assert (row.content, row.turn) == ("My PIN is …", "(14 November 2023) My PIN is …")
        assert row.window == row.turn == dated_line(memory.created_us, row.content)


async def test_twice_is_once() -> None:
    """S4.23, G7: the same words recorded by two jobs, at once or one after the other, are one row."""  # noqa: E501
    async with bench() as made:
        first, second = (
            await made.remember(item("likes tea")),
            await made.remember(item("likes tea", importance=1.0)),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.record, first)
            tasks.start_soon(made.record, second)
        await made.record(again(first))
        assert [row.importance for row in await made.store.rows("alice")] == [0.5]


async def test_what_was_removed_meanwhile_stays_away() -> None:
    """S4.41: a memory that is removed while a model embeds it is not put into long-term memory any
    more.
    """
    async with bench() as made:
        attempt = await made.remember(item("one"), item("two"))

        class Slow(HashEmbedder):
            async def embed(self, texts: Sequence[str]) -> Any:
                await commit_records(made.journal, [MemoriesRemoved(1, (item("one").id,))])
                return await super().embed(texts)

        made.embed_with(Slow(16))
        await made.record(attempt)
        assert await made.ids() == [item("two").id]


async def test_recording_survives_a_kill_at_any_step() -> None:
    """G7, S4.30: cut off at any step, and run again: each memory is there once."""
    for step, when in itertools.product(range(4), ("before", "after")):
        async with bench() as made:
            attempt = await made.remember(*(item(f"fact {number}") for number in range(3)))
            made.store.life = life = Mortal(made.journal, made.store)
            life.kill_at(step, when)
            try:
                await made.record(attempt)
            except Killed:
                pass
            else:
                assert step == 3, "there is no such step"
            life.at = None
            await made.record(again(attempt))
            recorded = sorted(memory.id for memory in await made.journal.memories("alice"))
            assert await made.ids() == recorded, (step, when)


PRUNED_STEPS = 5  # one commit, then a delete for each of four rows


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(PRUNED_STEPS))
async def test_pruning_survives_a_kill_at_any_step(step: int, when: str) -> None:
    """S4.41, G7: cut off at any step, run again in a changed world: no row is half forgotten, and
    not one too many is gone.
    """
    async with bench() as made:
        await made.record(
            await made.remember(*(item(f"fact {n}", age_s=5_000 - n) for n in range(3)))
        )
        said = await made.say("one", "two", "three")
        await made.flush(said)
        attempt = made.pruning(2, "lru")
        made.store.life = made.journal.life = life = Mortal(made.journal, made.store)
        life.kill_at(step, when)
        with pytest.raises((Killed, RuntimeError)):
            await made.prune(attempt)
        life.at = None
        # Meanwhile the user asked for what was about to go, time went on: another choice would be
        # made today.
        for place, id_ in enumerate(sorted(await made.store.row_ids())):
            made.accesses[id_] = (1, int((NOW + 60 + place) * 1_000_000))
        made.now = NOW + 100
        await made.prune(again(attempt))
        left = await made.ids()
        assert len(left) == 2
        recorded = {memory.id for memory in await made.journal.memories("alice")}
        unpruned = {row_id(CHAT, seq) for seq in (1, 2, 3)} - {
            row_id(CHAT, seq) for seq in await made.journal.pruned_seqs(CHAT)
        }
        assert set(left) == recorded | unpruned
        # what was said is still in the history
        assert len(await made.journal.read(CHAT, 1, 9)) == 3
        # and a flush that is repeated, for whatever reason, does not bring it back
        await made.flush(again(said))
        await made.prune(again(attempt))
        assert await made.ids() == left


async def test_a_repeated_flush_does_not_undo_pruning() -> None:
    """S4.41, G7: pruning waits for a flush that runs again, whose rows it would otherwise miss."""
    async with bench() as made:
        said = await made.say("one", "two", "three")
        await made.flush(said)

        class Slow(HashEmbedder):
            async def embed(self, texts: Sequence[str]) -> Any:
                tasks.start_soon(made.prune, made.pruning(0))
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                return await super().embed(texts)

        made.embed_with(Slow(16))
        async with anyio.create_task_group() as tasks:
            await made.flush(again(said))
        assert await made.ids() == []


async def test_strategies() -> None:
    """S4.41, S2.20, S2.21: first in first out, age, importance and last use choose each for
    themselves; with types, others neither count nor go.
    """
    memories = {
        "dull": item("dull", importance=0.1, age_s=9_000),
        "popular": item("popular", importance=0.3, age_s=8_000),
        "vital": item("vital", importance=1.0, age_s=3_000, kind="context"),
        "newest": item("newest", importance=0.1, age_s=1_000, kind="context"),
    }
    cases: tuple[tuple[int, str, dict[str, Any], list[str]], ...] = (
        (2, "fifo", {}, ["newest", "vital"]),
        (-1, "age", {"max_age_s": 2_500.0}, ["newest"]),
        (2, "age", {}, ["newest", "vital"]),
        (2, "importance", {}, ["popular", "vital"]),
        (2, "lru", {}, ["newest", "popular"]),
        (1, "fifo", {"types": ("context",)}, ["dull", "newest", "popular"]),
    )
    for keep, strategy, options, left in cases:
        async with bench() as made:
            await made.record(await made.remember(*memories.values()))
            made.accesses = {memories["popular"].id: (50, int(NOW * 1_000_000))}
            await made.prune(made.pruning(keep, strategy, **options))
            for kept in (await made.store.rows("alice"), await made.journal.memories("alice")):
                assert sorted(one.content for one in kept) == left, (strategy, options)


# -- ranking ---------------------------------------------------------------------------------------


async def recalled(rows: Sequence[MemoryRow], query: str, *, weight: float = 0.2) -> list[str]:
    store = MemoryStore(None)
    await store.add(rows, None, may_exist=False)
    recall = recall_over(store, cache=0, hot_mb=64, weight=weight)
    return [memory.id for memory in await recall("alice", query, limit=20)]


async def test_importance_moves_the_rank() -> None:
    """S2.20: other things equal, the more important comes first; 0.5 moves nothing; a weight of 0
    switches it off. It does not bring up what has nothing to do with the question.
    """
    levels = [0.3, 1.0, 0.0, 0.5, 0.7]
    rows = [
        long_term_row(str(level), "green tea", importance=level, created_us=n)
        for n, level in enumerate(levels)
    ]
    assert await recalled(rows, "green tea") == ["1.0", "0.7", "0.5", "0.3", "0.0"]
    plain = [msgspec.structs.replace(row, importance=0.5) for row in rows]
    without = await recalled(plain, "green tea", weight=0.0)
    assert await recalled(plain, "green tea") == without
    rows = [
        long_term_row("answer", "Ottilie keeps bees near Coimbra", importance=0.0),
        long_term_row("vital", "The alarm code is blue", importance=1.0),
        long_term_row("near", "Ottilie is a sister", importance=1.0),
    ]
    assert (await recalled(rows, "where does Ottilie keep bees"))[0] == "answer"


async def test_rank_is_monotone_in_importance() -> None:
    """S2.20: whatever the weight, raising a memory's importance never lowers its place."""
    texts = [
        "green tea",
        "green tea with milk",
        "black tea",
        "green apples",
        "a green hat and a cup of tea",
    ]
    rows = [long_term_row(str(n), text, created_us=n) for n, text in enumerate(texts)]
    for weight, place in itertools.product((0.0, 0.2, 1.0, 50.0), range(len(rows))):
        places = []
        for level in (0.0, 0.25, 0.5, 0.75, 1.0):
            changed = [*rows]
            changed[place] = msgspec.structs.replace(rows[place], importance=level)
            places.append((await recalled(changed, "green tea", weight=weight)).index(str(place)))
        assert places == sorted(places, reverse=True), (weight, place)


def test_recorded_memories_are_nobodys_neighbours() -> None:
    """S4.17: memories of one session share no place: each keeps its own score, and lends nothing to
    the session's messages.
    """
    config = RecallConfig(session_weight=0.0)
    strong = memory_row("alice", item("strong"))
    weak = memory_row("alice", item("weak"))
    message = long_term_row(
        "m1", "hello", session="chat", seq=1, role="assistant", memory_type="message"
    )
    scores = {"strong": 9.0, "weak": 1.0}
    candidates = [Candidate(row, {"turn": scores[row.content]}) for row in (weak, strong)] + [
        Candidate(message, {"turn": 0.0})
    ]
    ranked = {one.row.content: one.score for one in fuse(candidates, config)}
    assert ranked["strong"] == pytest.approx(0.5)
    assert ranked["weak"] == pytest.approx(0.5 / 9)
    assert ranked["hello"] == 0.0


# -- the cache -------------------------------------------------------------------------------------


class CountingStore(MemoryStore):
    searches = 0
    during: Any = None

    async def search(self, *arguments: Any, **options: Any) -> Any:
        self.searches += 1
        found = await super().search(*arguments, **options)
        if self.during is not None:
            self.during()
        return found


def recall_over(
    store: MemoryStore, cache: int = 10, *, hot_mb: int = 0, weight: float = 0.2
) -> Recall:
    async def opened() -> LongTermStore:
        return store

    # related words would be another search
    config = RecallConfig(cache=cache, hot_mb=hot_mb, near_words=0.0)
    return Recall(opened, None, config, importance_weight=weight)


async def test_a_repeated_query_is_not_searched_again() -> None:
    """S4.39: the second time it comes from the cache, until the user's memory changes; another
    scope is another question. What was handed out is the caller's own. recall.cache 0 searches each
    time.
    """
    store = CountingStore(None)
    rows = [long_term_row("r1", "green tea"), long_term_row("b1", "green tea", user="bob")]
    await store.add(rows, None, may_exist=False)
    recall = recall_over(store)
    for _ in range(3):
        (memory,) = await recall("alice", "tea", limit=5)
        assert (memory.id, memory.parts) == ("r1", {"turn": 1.0, "window": 1.0})
        memory.parts.clear()
        recall.note_change("bob", gone=False)
    assert store.searches == 1
    await store.add([long_term_row("r2", "black tea")], None, may_exist=False)
    recall.note_change("alice", gone=False)
    assert {memory.id for memory in await recall("alice", "tea", limit=5)} == {"r1", "r2"}
    assert store.searches == 2
    await recall("bob", "tea", limit=5)
    assert store.searches == 3
    assert (recall.statistics().hits, recall.statistics().misses) == (2, 3)
    never = recall_over(store, cache=0)
    for _ in range(3):
        await never("alice", "tea", limit=5)
    assert (store.searches, never.statistics().hits) == (6, 0)


async def test_a_write_during_a_search_is_seen_by_the_next() -> None:
    """S4.39: what a search brings back that a write overtook is answered, and not kept."""
    store = CountingStore(None)
    recall = recall_over(store)
    store.during = lambda: recall.note_change("alice", gone=False)
    assert await recall("alice", "tea", limit=5) == []
    await store.add([long_term_row("r1", "green tea")], None, may_exist=False)
    store.during = None
    assert [memory.id for memory in await recall("alice", "tea", limit=5)] == ["r1"]


async def test_what_one_caller_does_not_want_another_gets() -> None:
    """S4.39: `without` neither poisons the cache nor is answered wrongly from it, however much it
    takes away.
    """
    store = CountingStore(None)
    rows = [
        long_term_row(
            f"r{n}", f"tea {'x ' * n}", session="s", seq=n, memory_type="message", created_us=n
        )
        for n in range(1, 60)
    ]
    await store.add(rows, None, may_exist=False)
    recall, plain = recall_over(store), recall_over(store, cache=0)
    for without in ([], [1], range(1, 40), [], range(3, 60), range(1, 60)):
        unwanted = {("s", seq) for seq in without}
        mine = [memory.id for memory in await recall("alice", "tea", limit=5, without=unwanted)]
        assert mine == [
            memory.id for memory in await plain("alice", "tea", limit=5, without=unwanted)
        ]
