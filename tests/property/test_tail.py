"""What is not indexed yet is found as if it were: the same rows, in the same order."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import Config, Runtime
from remora.config import RecallConfig
from remora.ids import row_id
from remora.models.ports import embed_texts
from remora.recall.question import Question
from remora.recall.ranking import Ranking, fuse
from remora.recall.tail import Tail, add_tail
from remora.recall.user_index import UserIndex
from remora.storage.memory import MemoryStore
from remora.storage.ports import Candidate, MemoryRow, Scope, SessionKey
from remora.testing import HashEmbedder, long_term_row

EMBEDDER = HashEmbedder(16)
WORDS = ("tea", "bees", "bridge", "river", "Ottilie", "Lisbon", "why?", "Ann")
SCOPES = (Scope(), Scope(session="one"), Scope(agent=""), Scope(types=("fact",)))


def row(number: int, text: str, session: str, kind: str) -> MemoryRow:
    key = SessionKey("ann", session)
    said = kind == "message"
    return long_term_row(
        row_id(key, number) if said else f"fact-{number}",
        text,
        user="ann",
        session=session,
        seq=number if said else 0,
        role="user" if number % 3 else "assistant",
        turn=f"User: {text}",
        memory_type=kind,
        importance=(number % 5) / 4,
        created_us=number,
    )


rows = st.lists(
    st.builds(
        lambda text, session, kind: (" ".join(text), session, kind),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=6),
        st.sampled_from(["one", "two"]),
        st.sampled_from(["message", "message", "fact"]),
    ),
    min_size=1,
    max_size=40,
)


def ranked(ranking: Ranking) -> list[tuple[float, str]]:
    """Scores and rows, of equals by name: which of them comes first is not said."""
    found = [(-round(one.score, 9), one.row.id) for one in ranking]
    assert [score for score, _ in found] == sorted(score for score, _ in found)
    return sorted(found)


async def vectors_of(given: Sequence[MemoryRow]) -> Any:
    if not given:
        return np.zeros((0, EMBEDDER.dimension), np.float32)
    return await embed_texts(EMBEDDER, [one.content for one in given])


@settings(max_examples=30)
@given(rows, st.data(), st.sampled_from(WORDS), st.sampled_from(SCOPES))
def test_a_tail_ranks_as_if_it_were_indexed(
    given_rows: list[tuple[str, str, str]], data: st.DataObject, query: str, scope: Scope
) -> None:
    """However rows are divided, and whatever is in both parts, the ranking is that of one index."""
    made = [row(n, *one) for n, one in enumerate(given_rows, start=1)]
    places = st.sampled_from(["index", "tail", "both"])
    where = [data.draw(places) for _ in made]
    indexed = [one for one, place in zip(made, where, strict=True) if place != "tail"]
    rest = [one for one, place in zip(made, where, strict=True) if place != "index"]
    random.Random(0).shuffle(rest)

    async def rank() -> None:
        vector = (await vectors_of([made[0]]))[0]
        config = RecallConfig(depth=1000)
        whole = UserIndex(made, await vectors_of(made))
        base = UserIndex(indexed, await vectors_of(indexed))
        tail = Tail(1, rest, await vectors_of(rest))
        expected = await whole.rank(Question(query, vector), scope, config, gain=1.2)
        both = tail.combined_with(base)
        found = await both.rank(Question(query, vector), scope, config, gain=1.2)
        assert ranked(found) == ranked(expected)
        without = {one.id for one in rest if one not in indexed}
        found = await both.rank(Question(query, vector), scope, config, without=without)
        assert {one.row.id for one in found} <= {one.id for one in indexed}
        hiding = Tail(2, rest, tail.vectors, hidden=frozenset(one.id for one in indexed))
        found = await hiding.combined_with(base).rank(Question(query, vector), scope, config)
        assert {one.row.id for one in found} <= {one.id for one in rest if one not in indexed}

    anyio.run(rank)


@settings(max_examples=20)
@given(rows, st.sampled_from([2, 4, 8]))
def test_a_tail_has_the_scale_of_the_store(
    given_rows: list[tuple[str, str, str]], factor: int
) -> None:
    """A store whose scores are larger does not rank what it has above the tail.

    The factors are powers of two: they change no digit, so that equals stay equals.
    """
    made = [row(n, *one) for n, one in enumerate(given_rows, start=1)]
    indexed, rest = made[::2], made[1::2]

    async def rank() -> None:
        store = MemoryStore(EMBEDDER.dimension)
        await store.add(indexed, await vectors_of(indexed), may_exist=False)
        found = await store.search("ann", "tea bees", None, depth=100)
        larger = [
            Candidate(one.row, {name: score * factor for name, score in one.scores.items()})
            for one in found
        ]
        tail = Tail(1, rest, await vectors_of(rest))
        ids = []
        for candidates in (found, larger):
            both = add_tail(candidates, tail, Question("tea bees"), Scope(), depth=100)
            assert both[: len(candidates)] == candidates
            ids.append(ranked(fuse(both, RecallConfig())))
        assert ids[0] == ids[1]

    anyio.run(rank)


# -- a whole runtime -------------------------------------------------------------------------------


class Said:
    """What must be found of one session."""

    def __init__(self) -> None:
        self.seqs: dict[int, str] = {}
        self.indexed: set[int] = set()
        self.buffered: set[int] = set()


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("append"), st.integers(0, 1), st.just(1)),
    st.tuples(st.just("remember"), st.just(0), st.just(0)),
    st.tuples(st.just("flush"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("settle"), st.just(0), st.just(0)),
    st.tuples(st.just("clear"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("delete"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("rewind"), st.integers(0, 1), st.integers(0, 3)),
)


class Told:
    """A user's memory, and what must be found in it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.user = runtime.user("ann")
        self.sessions = [self.user.session("one"), self.user.session("two")]
        self.said = [Said(), Said()]
        self.facts: set[str] = set()

    def expected(self) -> list[str]:
        return sorted({text for one in self.said for text in one.seqs.values()} | self.facts)

    async def do(self, number: int, verb: str, which: int, count: int) -> None:
        chat, mine = self.sessions[which], self.said[which]
        match verb:
            case "append":
                texts = [f"said {number} {n}" for n in range(count)]
                receipt = await chat.append([{"role": "user", "content": t} for t in texts])
                mine.seqs.update(zip(receipt.seqs, texts, strict=True))
                mine.buffered.update(receipt.seqs)
            case "remember":
                self.facts.add(f"fact {number}")
                await self.user.remember(f"fact {number}")
            case "flush":
                await chat.flush()
                mine.indexed.update(mine.seqs)
            case "settle":
                await self.runtime.settle()
            case "clear":
                await chat.clear()
                mine.seqs = {s: t for s, t in mine.seqs.items() if s in mine.indexed}
                mine.buffered.clear()
            case "delete" if mine.buffered:
                seq = sorted(mine.buffered)[count % len(mine.buffered)]
                await chat.delete(positions=sorted(mine.buffered).index(seq))
                mine.buffered.discard(seq)
                mine.seqs.pop(seq)
            case "rewind" if count < len(mine.buffered):
                seq = sorted(mine.buffered)[-1 - count]
                await chat.rewind(seq)
                for later in [one for one in mine.seqs if one > seq]:
                    mine.seqs.pop(later)
                    mine.buffered.discard(later)


@asynccontextmanager
async def telling(hot_mb: int) -> AsyncIterator[Told]:
    config = Config.from_dict(
        {
            "recall": {"depth": 1000, "hot_mb": hot_mb},
            "tokens": {"counter": "heuristic"},
            "working": {"embedding_cache": 10},
        }
    )
    store = MemoryStore(EMBEDDER.dimension)
    async with Runtime.in_memory(config=config, store=store, embedder=EMBEDDER) as runtime:
        yield Told(runtime)


@settings(max_examples=15)
@given(st.lists(steps, min_size=1, max_size=12), st.sampled_from([0, 64]))
def test_what_was_acknowledged_is_found(program: list[tuple[str, int, int]], hot_mb: int) -> None:
    """Whatever is appended, remembered, indexed, cleared, deleted and rewound: a recall finds what
    was acknowledged before it began and not removed, each once, and nothing else.
    """

    async def play() -> None:
        async with telling(hot_mb) as told:
            for number, step in enumerate(program):
                await told.do(number, *step)
                found = [one.text for one in await told.user.recall("said fact", limit=1000)]
                assert sorted(found) == told.expected(), (number, step)

    anyio.run(play)


turns = st.one_of(
    steps,
    st.tuples(st.just("turn"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("turn"), st.integers(0, 1), st.integers(1, 15)),
    st.tuples(st.just("turn beside an append"), st.integers(0, 1), st.just(0)),
)


@settings(max_examples=60)
@given(st.lists(turns, min_size=4, max_size=24), st.sampled_from([0, 64]))
def test_a_load_finds_what_it_does_not_show(
    program: list[tuple[str, int, int]], hot_mb: int
) -> None:
    """Loads of a session that show all of its messages, or all but some of the newest four, between
    whatever else is done: each finds all that it does not show, and nothing else.
    """

    async def turn(told: Told, which: int, hidden: int) -> tuple[list[str], list[str]]:
        mine, name = told.said[which], ("one", "two")[which]
        newest = sorted(mine.buffered, reverse=True)
        shown = [seq for place, seq in enumerate(newest) if not hidden >> place & 1]
        without = {(name, seq) for seq in shown}
        expected = {*told.expected()} - {mine.seqs[seq] for seq in shown}
        recall = told.runtime.internals.planner.tiers.recall
        assert recall is not None
        last = max(newest, default=0)
        found = await recall("ann", "said fact", limit=1000, without=without, newest=last)
        return sorted(one.text for one in found), sorted(expected)

    async def play() -> None:
        async with telling(hot_mb) as told:
            for number, (verb, which, count) in enumerate(program):
                if verb == "turn":
                    found, expected = await turn(told, which, count)
                    assert found == expected, number
                elif verb == "turn beside an append":
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(turn, told, which, 0)
                        tasks.start_soon(told.do, number, "append", which, 1)
                else:
                    await told.do(number, verb, which, count)
            for which in (0, 1):
                found, expected = await turn(told, which, 0)
                assert found == expected

    anyio.run(play)


@pytest.mark.anyio
async def test_two_recalls_at_once_share_one_reading() -> None:
    """Both find what was acknowledged before the later one began."""
    async with Runtime.in_memory(embedder=EMBEDDER, store=MemoryStore(16)) as runtime:
        user = runtime.user("ann")
        found: list[list[str]] = []

        async def recall() -> None:
            found.append(sorted(one.text for one in await user.recall("tea", limit=100)))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                await user.session("one").append({"role": "user", "content": f"tea {number}"})
                tasks.start_soon(recall)
        assert len(found) == 10
        assert len(found[-1]) == 10
        assert {f"tea {n}" for n in range(10)} >= set(found[0])
