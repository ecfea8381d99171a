"""Rows in memory are what the store holds, whatever is written, removed and asked beside it."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Memory
from remora.actors.policies.bm25 import bm25_scores, text_indices, words
from remora.config import RecallConfig
from remora.models.ports import embed_texts
from remora.recall.question import Question
from remora.recall.ranking import fuse
from remora.recall.recall import Recall
from remora.recall.traits import asks, question_share, speakers_named
from remora.recall.user_index import UserIndex
from remora.storage.memory import MemoryStore
from remora.storage.ports import BLOCK_TYPE, EVERYTHING, Candidate, LongTermStore, MemoryRow, Scope
from remora.testing import HashEmbedder, long_term_row

EMBEDDER = HashEmbedder(128)  # with fewer numbers, two words of a text may cancel each other
SUBJECTS = ("tea", "bees", "a bridge over the river", "Ottilie", "what Ann said?", "é")
USERS = ("alice", "bob")
MANY = 200


def recall_over(store: LongTermStore, **config: Any) -> Recall:
    async def opened() -> LongTermStore:
        return store

    return Recall(opened, EMBEDDER, RecallConfig(**config), importance_weight=0.2)


async def put(store: MemoryStore, rows: Sequence[MemoryRow]) -> None:
    await store.add(
        rows, await embed_texts(EMBEDDER, [row.content for row in rows]), may_exist=True
    )


def within(rows: Mapping[str, MemoryRow], scope: Scope) -> set[str]:
    """The ids of a user's rows that a recall in `scope` may find: nothing was said in the same
    words twice.
    """
    return {
        row.id
        for row in rows.values()
        if row.memory_type != BLOCK_TYPE
        and scope.session in {None, row.session}
        and scope.agent in {None, row.agent}
        and (not scope.types or row.memory_type in scope.types)
    }


# -- one after the other ---------------------------------------------------------------------------

users = st.sampled_from(USERS)
numbers = st.integers(0, 30)
kinds = st.sampled_from(["message", "message", "fact", "preference", BLOCK_TYPE])


def made(
    user: str, number: int, subject: str, kind: str, session: str, agent: str, importance: float
) -> MemoryRow:
    # An id is told by user and number: what is written twice is one row, and stays as it was.
    return long_term_row(
        f"{user}-{number}", f"{subject} {number}", user=user, memory_type=kind, session=session,
        seq=number if kind == "message" else 0, role="user" if number % 3 else "assistant", agent=agent, importance=importance,  # noqa: E501
        created_us=number // 2,
    )  # fmt: skip


rows = st.builds(
    made, users, st.integers(1, 30), st.sampled_from(SUBJECTS), kinds, st.sampled_from(["", "one", "two"]),  # noqa: E501
    st.sampled_from(["", "cook"]), st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
scopes = st.builds(
    Scope, st.sampled_from([None, "one", "two"]), st.sampled_from([None, "", "cook"]),
    st.sampled_from([(), ("fact",), ("message", "preference")]),
)  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("write"), st.lists(rows, min_size=1, max_size=8)),
    st.tuples(st.just("delete"), users, st.lists(numbers, min_size=1, max_size=5)),
    st.tuples(st.just("prune"), users, st.integers(0, 10)),
    st.tuples(st.just("erase"), users),
    st.tuples(
        st.just("recall"), users, st.sampled_from(SUBJECTS), scopes, st.sampled_from([3, MANY])
    ),
    st.tuples(
        st.just("recall"), users, st.sampled_from(SUBJECTS), st.just(EVERYTHING), st.just(MANY)
    ),
)


class Program:
    """A store, a recall that keeps rows in memory, and what must be found."""

    def __init__(self, **config: Any) -> None:
        self.store = MemoryStore(EMBEDDER.dimension)
        self.config = {"cache": 5, "hot_rows": 12, **config}
        self.recall = recall_over(self.store, **self.config)
        self.model: dict[str, dict[str, MemoryRow]] = {user: {} for user in USERS}

    async def step(self, step: tuple[Any, ...]) -> None:
        match step:
            case "write", some:
                await put(self.store, some)
                for row in some:
                    self.model[row.user].setdefault(row.id, row)
                    self.recall.note_change(row.user, gone=False)
            case "delete", user, which:
                gone = [f"{user}-{number}" for number in which]
                await self._remove(user, gone)
                self.recall.note_change(user, gone=False)
            case "prune", user, keep:
                await self._remove(user, sorted(self.model[user])[keep:])
                self.recall.note_change(user, gone=True)
            case "erase", user:
                await self._remove(user, list(self.model[user]))
                self.recall.note_change(user, gone=True)
            case "recall", user, query, scope, k:
                await self.ask(user, query, scope, k)

    async def ask(self, user: str, query: str, scope: Scope, k: int) -> None:
        mine = await self.recall(user, query, limit=k, scope=scope)
        fresh = await recall_over(self.store, **self.config)(user, query, limit=k, scope=scope)
        assert ids(mine) == ids(fresh)
        assert [one.score for one in mine] == pytest.approx([one.score for one in fresh])
        assert set(ids(mine)) <= within(self.model[user], scope)
        if k == MANY:
            assert set(ids(mine)) == within(self.model[user], scope)
        assert all(one.text == self.model[user][one.id].content for one in mine)

    async def _remove(self, user: str, gone: Sequence[str]) -> None:
        await self.store.delete(user, gone)
        for id_ in gone:
            self.model[user].pop(id_, None)


def ids(memories: Sequence[Memory]) -> list[str]:
    return [memory.id for memory in memories]


@given(
    st.lists(steps, max_size=30),
    st.sampled_from([{}, {"hot_rows": 1_000}, {"hot_rows": 1}, {"cache": 0}]),
)
def test_warm_and_cold_agree_with_the_rows(
    program: list[tuple[Any, ...]], config: dict[str, Any]
) -> None:
    """S4.39, S4.17, G13: after any writes, deletes, prunes and erasures a recall finds what is
    there, as a new one does.
    """

    async def main() -> None:
        run = Program(**config)
        for step in program:
            await run.step(step)
        for user in USERS:
            await run.step(("recall", user, "tea", EVERYTHING, MANY))

    anyio.run(main)


# -- at once ---------------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """Takes any number of turns of the loop before and after what it does: a read may come back
    with what is no longer there.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__(EMBEDDER.dimension)
        self._rng = rng

    async def wait(self) -> None:
        for _ in range(self._rng.choice([0, 1, 1, 2, 5, 20])):
            await anyio.lowlevel.checkpoint()

    async def embedded_rows(self, user: str, scope: Scope = EVERYTHING) -> Any:
        await self.wait()
        found = await super().embedded_rows(user, scope)
        await self.wait()
        return found

    async def search(self, *arguments: Any, **options: Any) -> Any:
        await self.wait()
        found = await super().search(*arguments, **options)
        await self.wait()
        return found


@given(
    st.integers(0, 1 << 32), st.random_module(), st.sampled_from(["asyncio", "trio"]), st.booleans()
)
def test_no_recall_is_stale(
    seed: int, trio_order: object, backend: str, in_background: bool
) -> None:
    """S4.39, G2: a recall finds each row that was written before it began and not removed before it
    ended, and none that was removed before it began, however reads, writes and recalls fall,
    cancelled ones included.
    """

    rng = random.Random(seed)

    async def main() -> None:
        store = SlowStore(rng)
        recall = recall_over(store, cache=rng.choice([0, 3]), hot_rows=rng.choice([4, 1_000]))
        clock = 0
        written: dict[str, float] = {}  # when it was known to be there
        begun: dict[str, float] = {}  # when it may have been there for the first time
        leaving: dict[str, float] = {}  # when it may have been gone for the first time
        gone: dict[str, float] = {}  # when it was known to be gone

        def tick() -> int:
            nonlocal clock
            clock += 1
            return clock

        async def write(name: str) -> None:
            for n in range(6):
                await store.wait()
                id_ = f"{name}-{n}"
                begun[id_] = tick()
                await put(store, [long_term_row(id_, f"tea {id_}")])
                recall.note_change("alice", gone=False)
                written[id_] = tick()
                if rng.random() < 0.4:
                    await store.wait()
                    leaving[id_] = tick()
                    await store.delete("alice", [id_])
                    recall.note_change("alice", gone=rng.choice([False, True]))
                    gone[id_] = tick()

        async def ask() -> None:
            for n in range(6):
                await store.wait()
                start = tick()
                found: list[str] | None = None
                with anyio.CancelScope() as scope:
                    if rng.random() < 0.2:
                        tasks.start_soon(cancel, scope)
                    found = ids(await recall("alice", f"tea {n % 2}", limit=MANY))
                if found is None:
                    continue
                end = tick()
                must = {
                    id_
                    for id_, at in written.items()
                    if at < start and leaving.get(id_, math.inf) > end
                }
                may = {
                    id_ for id_, at in begun.items() if at < end and gone.get(id_, math.inf) > start
                }
                assert must <= set(found) <= may
                assert len(found) == len(set(found))

        async def cancel(scope: anyio.CancelScope) -> None:
            await store.wait()
            scope.cancel()

        async with anyio.create_task_group() as outer:
            if in_background:
                outer.start_soon(recall.run)
            async with anyio.create_task_group() as tasks:
                for name in ("a", "b"):
                    tasks.start_soon(write, name)
                for _ in range(3):
                    tasks.start_soon(ask)
            assert set(ids(await recall("alice", "tea", limit=MANY))) == set(written) - set(gone)
            outer.cancel_scope.cancel()

    anyio.run(main, backend=backend)


# -- by definition ---------------------------------------------------------------------------------

texts = st.lists(
    st.sampled_from(["tea", "teas", "bees", "bridge", "the", "river", "é", "E"]), max_size=6
).map(" ".join)


def bm25(
    bags: Sequence[Counter[str]], asked: set[str], *, by_length: float, least: float
) -> list[float]:
    """What its definition says of texts, as bags of words, whose mean length counts as `least` at
    least.
    """
    mean = max(sum(bag.total() for bag in bags) / max(len(bags), 1), least)
    scores = [0.0] * len(bags)
    for word in asked:
        held_by = sum(word in bag for bag in bags)
        rarity = math.log(1 + (len(bags) - held_by + 0.5) / (held_by + 0.5))
        for place, bag in enumerate(bags):
            norm = 1.2 * (1 - by_length + by_length * bag.total() / mean)
            scores[place] += rarity * bag[word] * 2.2 / (bag[word] + norm)
    return scores


@given(st.lists(texts, max_size=12), texts)
def test_bm25(column: list[str], query: str) -> None:
    """S2.09, S2.28: an index gives what BM25 says of its texts; a buffer is searched by it with its
    usual length weight, by words as they stand.
    """
    (index,) = text_indices([column])
    bags = [Counter(words(text)) for text in column]
    wanted = bm25(bags, set(words(query)), by_length=0.5, least=1.0)
    assert index.scores(words(query)).tolist() == pytest.approx(wanted, rel=1e-5)
    bags = [Counter(re.findall(r"\w+", text.lower())) for text in column]
    wanted = bm25(bags, set(re.findall(r"\w+", query.lower())), by_length=0.75, least=1e-9)
    assert bm25_scores(query, column) == pytest.approx(wanted, rel=1e-5)


def scaled(candidates: Sequence[Candidate]) -> list[dict[str, float]]:
    parts: list[dict[str, float]] = [{} for _ in candidates]
    for name in ("turn", "window", "vector"):
        held = [one.scores[name] for one in candidates if name in one.scores]
        low = min(held, default=0.0) if name == "vector" or len(held) >= 30 else 0.0
        for part, one in zip(parts, candidates, strict=True):
            if name in one.scores:
                part[name] = (
                    (one.scores[name] - low) / (max(held) - low) if max(held) > low else 1.0
                )
    return parts


def trust(parts: Sequence[dict[str, float]], config: RecallConfig) -> float:
    pairs = [
        (part["vector"], sum(0.5 * part.get(name, 0.0) for name in ("turn", "window")))
        for part in parts
        if "vector" in part
    ]
    if (
        len(pairs) < 30
        or min(len({round(value, 12) for value in side}) for side in zip(*pairs, strict=True)) < 2
    ):
        return 1.0
    return min(max(float(np.corrcoef(np.array(pairs).T)[0, 1]) / config.vector_agreement, 0.2), 1.0)


def place(row: MemoryRow) -> tuple[str, int]:
    return (row.session, row.seq) if row.seq else (row.id, -1)


def defined(candidates: Sequence[Candidate], query: str, gain: float) -> dict[str, float]:
    """Every candidate's score, one after the other, as the module's text says it."""
    config, parts = RecallConfig(), scaled(candidates)
    weights = {"turn": 0.5, "window": 0.5, "vector": 0.35 * trust(parts, config)}
    roles = {(one.row.role, bool(one.row.speaker)) for one in candidates}
    people = ("assistant", False) not in roles and any(one.row.speaker for one in candidates)
    base = {
        place(one.row): sum(weights[name] * value for name, value in part.items())
        * (1.5 if one.row.role != "assistant" and not people else 1.0)
        for one, part in zip(candidates, parts, strict=True)
    }
    asking = {
        place(one.row)
        for one in candidates
        if asks(one.row.content) or (one.row.role == "assistant" and "[calls " in one.row.content)
    }
    results = {place(one.row) for one in candidates if one.row.role == "tool"}
    named = speakers_named(query, {one.row.speaker for one in candidates})
    scores = {}
    for one in candidates:
        row, (session, seq) = one.row, place(one.row)
        before = seq - 1
        while row.role == "tool" and (session, before) in results:
            before -= 1
        answers = (session, before) in asking and (people or row.role != "assistant")
        near = max(
            (0.5 if answers else 0.3) * base.get((session, before), 0.0),
            0.3 * base.get((session, seq + 1), 0.0),
        )
        if not (answers and row.role == "tool"):
            near *= min(1.0, 300 / max(len(row.content), 1))
        score = base[session, seq] + near
        score *= 1.5 if row.speaker in named else 1.0
        score *= 1 - 0.3 * question_share(row.content) * people
        scores[row.id] = score * gain ** (2 * row.importance - 1)
    return scores


@st.composite
def found(draw: st.DrawFn) -> list[Candidate]:
    rng = draw(st.randoms(use_true_random=False))
    candidates = []
    for number in range(draw(st.integers(0, 60))):
        row = long_term_row(
            f"r{number}",
            rng.choice(["", "I like maps.", "Do you?", "Yes? [laughs]", "[calls f {}]", "x" * 700]),
            seq=rng.choice([0, number]),
            session=rng.choice(["one", "two"]),
            role=rng.choice(["user", "assistant", "tool"]),
            speaker=rng.choice(["", "Ann", "Bob"]),
            importance=rng.choice([0.0, 0.5, 1.0]),
            created_us=number // 3,
        )
        scores = {
            name: round(rng.uniform(-1, 9), 1)
            for name in ("turn", "window", "vector")
            if rng.random() < 0.7
        }
        candidates.append(Candidate(row, scores or {"turn": 1.0}))
    return candidates


@given(found(), st.sampled_from(["", "words of Ann"]), st.sampled_from([1.0, 1.2]))
def test_ranking(candidates: list[Candidate], query: str, gain: float) -> None:
    """S2.28, S2.20, S2.29: a ranking in columns is the ranking row by row; of equals, the more
    important and then the earlier.
    """
    config = RecallConfig(session_weight=0.0)
    ranked = list(fuse(candidates, config, Question(query), gain=gain))
    wanted = defined(candidates, query, gain)
    assert {one.row.id: one.score for one in ranked} == pytest.approx(wanted, abs=1e-6)
    assert [one.score for one in ranked] == sorted([one.score for one in ranked], reverse=True)
    parts = dict(zip([one.row.id for one in candidates], scaled(candidates), strict=True))
    for one in ranked:
        assert one.parts == pytest.approx(parts[one.row.id])
    for one, other in itertools.pairwise(ranked):
        if one.score == other.score:
            keys = [
                (-row.importance, row.created_us, row.session, row.seq)
                for row in (one.row, other.row)
            ]
            assert keys == sorted(keys)
    assert msgspec.msgpack.encode(ranked)  # plain data: no number of numpy's


@given(
    st.lists(
        st.tuples(rows, st.sampled_from(SUBJECTS)), max_size=20, unique_by=lambda one: one[0].id
    ),
    st.lists(
        st.tuples(rows, st.sampled_from(SUBJECTS)), max_size=20, unique_by=lambda one: one[0].id
    ),
    st.randoms(use_true_random=False),
    st.sampled_from(SUBJECTS),
)
def test_made_from_earlier_rows(
    first: list[tuple[MemoryRow, str]],
    second: list[tuple[MemoryRow, str]],
    rng: random.Random,
    query: str,
) -> None:
    """S4.39: rows made from those of before are what they would be without them: whatever stayed,
    came, went or changed.
    """

    async def main() -> None:
        def windowed(some: Sequence[tuple[MemoryRow, str]]) -> dict[str, MemoryRow]:
            return {
                row.id: msgspec.structs.replace(row, window=f"{row.turn}\n{beside}")
                for row, beside in some
            }

        before = windowed(first)
        after = {
            **{id_: row for id_, row in before.items() if rng.random() < 0.7},
            **windowed(second),
        }
        texts = [row.content for row in after.values()]
        vectors = (
            await embed_texts(EMBEDDER, texts)
            if texts
            else np.zeros((0, EMBEDDER.dimension), np.float32)
        )
        earlier = UserIndex(list(before.values()), None)
        made = UserIndex(list(after.values()), vectors, earlier)
        anew = UserIndex(list(after.values()), vectors)
        assert made.size_bytes == anew.size_bytes
        vector = (await embed_texts(EMBEDDER, [query]))[0]
        for asked in (query, "tea bees", ""):
            mine, wanted = [
                list(await one.rank(Question(asked, vector), EVERYTHING, RecallConfig(depth=8)))
                for one in (made, anew)
            ]
            assert mine == wanted

    anyio.run(main)
