"""Whose memories are found, how often they were, and which are pruned."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remora import Config, Runtime, quote_memories
from remora.actors.user.messages import InspectUser, UserView
from remora.errors import (
    InvalidInput,
)
from remora.ids import UserKey, memory_id
from remora.testing import HashEmbedder
from tests.integration.remembering import CONFIG

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "memory", config=CONFIG, embedder=HashEmbedder()) as opened:
        yield opened


async def accesses(runtime: Runtime, user: str = "alice") -> dict[str, int]:
    view: UserView = await runtime.internals.registry.ask(UserKey(user), InspectUser())
    return {row: count for row, (count, _) in view.accesses.items()}


# -- scope -----------------------------------------------------------------------------------------


async def test_each_scope_narrows_and_all_must_hold(runtime: Runtime) -> None:
    """S4.17: session, agent and type each narrow the result, and together what holds of all."""
    alice = runtime.user("alice")
    for session in (None, "s", "t"):
        for agent in (None, "x", "y"):
            for kind in ("fact", "preference"):
                await alice.remember(
                    f"tea {session} {agent} {kind}", type=kind, session=session, agent=agent
                )
    await alice.settle()

    async def found(**scope: Any) -> set[str]:
        return {memory.text for memory in await alice.recall("tea", limit=50, **scope)}

    assert len(await found()) == 18
    assert await found(session="s") == {
        f"tea s {a} {k}" for a in (None, "x", "y") for k in ("fact", "preference")
    }
    assert await found(agent="x") == {
        f"tea {s} x {k}" for s in (None, "s", "t") for k in ("fact", "preference")
    }
    assert await found(types="fact", session="s", agent="x") == {"tea s x fact"}
    assert await found(types=["fact", "preference"], session="t", agent="y") == {
        "tea t y fact",
        "tea t y preference",
    }
    assert await found(types=["procedural"]) == set()
    assert await found(session="none such") == set()
    listed = await alice.memories("preference", session="s", agent="x")
    assert [memory.text for memory in listed] == ["tea s x preference"]
    for wrong in (
        {"types": "rumour"},
        {"session": "\n"},
        {"agent": ""},
        {"limit": 0},
        {"limit": True},
    ):
        with pytest.raises(InvalidInput):
            await alice.recall("tea", **wrong)


async def test_an_agent_finds_its_own_and_nothing_else(runtime: Runtime) -> None:
    """S4.18, S4.17: an agent's handle never finds, lists or writes what is another agent's, another
    user's, or common.
    """
    alice = runtime.user("alice")
    scout, scribe = alice.agent("scout"), alice.agent("scribe")
    await scout.remember("The treasure is under the oak")
    await scribe.remember("The treasure is a myth")
    await alice.remember("The treasure is gone")
    await alice.session("s").append({"role": "user", "content": "Where is the treasure?"})
    await alice.session("s").flush()
    await alice.session("s").settle()
    await runtime.user("bob").agent("scout").remember("Bob's treasure is at sea")
    await runtime.settle()
    for handle, own in ((scout, "under the oak"), (scribe, "a myth")):
        assert [hit.text for hit in await handle.recall("treasure")] == [f"The treasure is {own}"]
        assert [hit.text for hit in await handle.memories()] == [f"The treasure is {own}"]
        assert own in quote_memories(await handle.recall("treasure"))
        answer = await handle.tools().recall_from_memory(["treasure"])
        assert [memory["content"] for memory in answer["memories"]] == [f"The treasure is {own}"]
        for reach in (
            handle.recall("treasure", agent="other"),
            handle.remember("x", agent="other"),
        ):
            with pytest.raises(InvalidInput):
                await reach
        with pytest.raises(InvalidInput):
            await handle.remember([{"content": "x", "agent": "other"}])
        with pytest.raises(InvalidInput):
            handle.tools(agent="other")
    assert len(await alice.recall("treasure", limit=9)) == 4
    # the same words of two agents are two memories
    assert await scout.remember("It rains") != await scribe.remember("It rains")


_HOSTILE = [
    "a",
    "a:b",
    "a:b:c",
    "b",
    "a' OR 1=1 --",
    'a" OR ""="',
    "a%",
    "_",
    "ä",
    "a\u0308",
    "用户",
    "\\",
    "{}",
    "🜁",
    "A",
]
_NAMES = st.one_of(
    st.sampled_from(_HOSTILE),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12),
)
_round = itertools.count()


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(_NAMES, _NAMES, _NAMES), min_size=2, max_size=6, unique_by=lambda case: case[0]
    )
)
async def test_users_never_meet(runtime: Runtime, triples: list[tuple[str, str, str]]) -> None:
    """S2.31: whatever users, sessions, agents and contents are called, no handle finds another's,
    and no two ids are equal.
    """
    number = next(_round)
    ids: dict[str, str] = {}
    for user, session, agent in triples:
        handle = runtime.user(f"{user} {number}")
        (id_,) = await handle.remember(f"our secret word {session}", session=session, agent=agent)
        assert id_ not in ids
        ids[id_] = handle.id
    await runtime.settle()
    for user, session, agent in triples:
        handle = runtime.user(f"{user} {number}")
        mine = [id_ for id_, owner in ids.items() if owner == handle.id]
        everyone = [handle.recall(f"secret {other}", limit=50) for other, _, _ in triples]
        narrowed = [
            handle.recall("secret", session=session),
            handle.recall("secret", agent=agent),
            handle.memories(),
        ]
        for call in (*everyone, *narrowed):
            assert [memory.id for memory in await call] == mine


@given(
    st.lists(
        st.tuples(st.text(), st.text(), st.text(min_size=1)), min_size=2, max_size=2, unique=True
    )
)
def test_memory_ids_do_not_collide(pair: list[tuple[str, str, str]]) -> None:
    """S2.31, S4.23: two memories have one id only if user, agent and words are the same, but for
    blanks.
    """

    def plain(text: str) -> str:
        return " ".join(text.split())

    (u1, a1, c1), (u2, a2, c2) = [(u, a, c.encode("utf-8", "replace").decode()) for u, a, c in pair]
    u1, u2, a1, a2 = (text.encode("utf-8", "replace").decode() for text in (u1, u2, a1, a2))
    same = (u1, a1, plain(c1)) == (u2, a2, plain(c2))
    assert (memory_id(u1, a1, c1) == memory_id(u2, a2, c2)) == same


# -- importance and access -------------------------------------------------------------------------


async def test_order_by_importance(runtime: Runtime) -> None:
    """S2.18, S2.20: listed by importance, the older first among equals; or by age."""
    alice = runtime.user("alice")
    for content, importance in (("a", 0.2), ("b", 0.9), ("c", 0.2), ("d", 0.5), ("e", 1.0)):
        await alice.remember(content, importance=importance)
    await alice.settle()
    assert [memory.text for memory in await alice.memories(order="importance")] == [
        "e",
        "b",
        "d",
        "a",
        "c",
    ]
    assert [memory.text for memory in await alice.memories(order="importance", limit=2)] == [
        "e",
        "b",
    ]
    assert [memory.text for memory in await alice.memories()] == ["a", "b", "c", "d", "e"]
    for wrong in ({"order": "size"}, {"limit": -1}):
        with pytest.raises(InvalidInput):
            await alice.memories(**wrong)


async def test_the_more_important_surfaces_first(runtime: Runtime) -> None:
    """S2.20: of two memories that answer equally well, the more important comes first, whichever
    was recorded first.
    """
    alice = runtime.user("alice")
    await alice.remember(
        [
            {"content": f"tea {name}", "importance": level}
            for name, level in (("p", 0.1), ("q", 0.9), ("r", 0.5))
        ]
    )
    await alice.settle()
    assert [memory.text[-1] for memory in await alice.recall("tea")] == ["q", "r", "p"]


async def test_each_retrieval_counts_once(runtime: Runtime) -> None:
    """S2.21, S4.39: a recall counts once for each memory that it returned, from the cache or not; a
    listing does not count.
    """
    alice = runtime.user("alice")
    tea, milk = await alice.remember(["likes green tea", "dislikes milk"])
    await alice.settle()
    assert await accesses(runtime) == {}
    for times in (1, 2, 3):
        await alice.recall("tea", limit=1)
        assert await accesses(runtime) == {tea: times}
    await alice.recall_many(["milk", "tea"], limit=1)
    assert await accesses(runtime) == {tea: 4, milk: 1}
    await alice.recall("milk", limit=1)
    assert await accesses(runtime) == {tea: 4, milk: 2}
    await alice.memories()
    await runtime.user("bob").recall("tea")
    assert await accesses(runtime) == {tea: 4, milk: 2}
    assert await accesses(runtime, "bob") == {}
    chat = alice.session("s")
    await chat.append({"role": "user", "content": "Which tea?"})
    context = await chat.load(query="green tea")
    shown = {memory.id for memory in context.memories}
    assert await accesses(runtime) == {tea: 4 + (tea in shown), milk: 2 + (milk in shown)}
    assert tea in shown


async def test_counting_waits_for_nothing(runtime: Runtime) -> None:
    """S2.21, G5: a recall writes nothing: the figures of a hundred recalls are no commit of their
    own.
    """
    alice = runtime.user("alice")
    await alice.remember("likes green tea")
    await alice.settle()
    commits = runtime.statistics().log.commits
    for _ in range(100):
        await alice.recall("tea")
    assert runtime.statistics().log.commits == commits
    assert list((await accesses(runtime)).values()) == [100]


async def test_a_write_is_seen_by_the_next_recall(runtime: Runtime) -> None:
    """S4.39: a repeated query is answered from the cache, until anything of the user's is recorded,
    flushed or pruned.
    """
    alice, bob = runtime.user("alice"), runtime.user("bob")
    await alice.remember("likes green tea")
    await runtime.settle()
    assert runtime.internals.recall is not None

    async def hits() -> list[str]:
        return sorted(memory.text for memory in await alice.recall("tea", limit=9))

    assert await hits() == ["likes green tea"]
    base = runtime.internals.recall.statistics()
    assert await hits() == ["likes green tea"]
    await bob.remember("likes tea as well")
    await runtime.settle()
    assert await hits() == ["likes green tea"]
    assert runtime.internals.recall.statistics().hits == base.hits + 2
    await alice.remember("likes black tea")
    await runtime.settle()
    assert await hits() == ["likes black tea", "likes green tea"]
    await alice.session("s").append({"role": "user", "content": "More tea, please"})
    await alice.session("s").flush()
    await runtime.settle()
    assert len(await hits()) == 3
    await alice.prune(keep=1, strategy="fifo")
    assert await hits() == ["More tea, please"]
    assert runtime.internals.recall.statistics().misses == base.misses + 3


# -- pruning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"keep": 2, "strategy": "fifo"}, ["loved", "new"]),
        ({"keep": 2, "strategy": "importance"}, ["loved", "vital"]),
        ({"keep": 2, "strategy": "lru"}, ["loved", "new"]),
        ({"strategy": "age", "max_age_s": 86_400.0 * 45}, ["loved", "new"]),
        ({"keep": 0}, []),
        ({"keep": 0, "types": "preference"}, ["dull", "loved", "new"]),
    ],
)
async def test_pruning(runtime: Runtime, options: dict[str, Any], left: list[str]) -> None:
    """S4.41, S2.20: each strategy keeps what it should; what went is gone for recall and listing,
    and from the journal.
    """
    alice = runtime.user("alice")
    now = datetime.now(UTC).timestamp()
    day = 86_400.0
    await alice.remember(
        [
            {"content": "dull", "importance": 0.0, "created_at": now - 90 * day},
            {
                "content": "vital",
                "importance": 1.0,
                "created_at": now - 60 * day,
                "type": "preference",
            },
            {"content": "loved", "importance": 0.9, "created_at": now - 30 * day},
            {"content": "new", "importance": 0.0, "created_at": now - 20 * day},
        ]
    )
    await alice.settle()
    if options.get("strategy") == "lru":
        await alice.recall("loved", limit=1)
    await alice.prune(**options)
    assert sorted(memory.text for memory in await alice.memories()) == left
    assert (
        sorted(item.content for item in await runtime.internals.journal.memories("alice")) == left
    )
    assert sorted(hit.text for hit in await alice.recall("dull vital loved new", limit=9)) == left
    # and what went may be remembered again
    await alice.remember("dull")
    await alice.settle()
    assert "dull" in [memory.text for memory in await alice.memories()]


async def test_pruned_messages_stay_in_the_history(runtime: Runtime) -> None:
    """S4.41: pruning takes messages out of long-term memory, and not out of what was said; they do
    not come back.
    """
    alice = runtime.user("alice")
    chat = alice.session("s")
    await chat.append([{"role": "user", "content": f"tea number {n}"} for n in range(6)])
    await chat.flush()
    await chat.settle()
    await alice.prune(keep=2, strategy="fifo")
    assert len(await alice.memories()) == 2
    assert len(await chat.history()) == 6
    assert sorted(await runtime.internals.journal.pruned_seqs(chat.key)) == [1, 2, 3, 4]


async def test_pruning_needs_to_know_how(runtime: Runtime) -> None:
    """S4.41: no bound, no such strategy, a number that means nothing: refused, and nothing goes."""
    alice = runtime.user("alice")
    await alice.remember("stays")
    await alice.settle()
    for wrong in (
        {},
        {"keep": -1},
        {"keep": 1.5},
        {"keep": True},
        {"keep": 1, "strategy": "random"},
        {"strategy": "age", "max_age_s": 0},
        {"strategy": "fifo", "max_age_s": 5.0},
        {"strategy": "age", "max_age_s": float("nan")},
        {"keep": 1, "types": ["rumour"]},
    ):
        with pytest.raises(InvalidInput):
            await alice.prune(**wrong)
    assert len(await alice.memories()) == 1


async def test_the_supervisor_prunes(tmp_path: Path) -> None:
    """S4.27, S4.41: users over their bound are pruned on schedule, by the configured strategy;
    others are left alone.
    """
    config = Config.from_dict(
        {
            "long_term": {
                "batch_ms": 1,
                "max_user_rows": 3,
                "prune": "importance",
                "prune_interval_s": 0.05,
            },
            "tokens": {"counter": "heuristic"},
        }
    )
    async with Runtime(tmp_path, config=config, embedder=HashEmbedder()) as runtime:
        alice, bob = runtime.user("alice"), runtime.user("bob")
        await bob.remember([f"bob {n}" for n in range(3)])
        await alice.remember([{"content": f"alice {n}", "importance": n / 10} for n in range(8)])
        with anyio.fail_after(60):
            await runtime.settle()
            while len(await alice.memories()) > 3:
                runs = runtime.statistics().schedule["prune"].runs
                while runtime.statistics().schedule["prune"].runs == runs:
                    await anyio.sleep(0.01)
        await runtime.settle()
        assert [memory.text for memory in await alice.memories()] == [
            "alice 5",
            "alice 6",
            "alice 7",
        ]
        assert len(await bob.memories()) == 3
        assert runtime.statistics().schedule["prune"].failures == 0
