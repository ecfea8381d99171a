"""Whose memories are found, how often they were, which are pruned, and who may use shared ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Config, Memory, Runtime, quote_memories
from remora.actors.user.messages import ChangeMemory, DeleteMemories, InspectUser
from remora.errors import InvalidId, InvalidInput, NoSuchMemory, NotFound, NotGranted
from remora.ids import memory_id
from remora.results import UserView
from remora.storage.ports import UserKey
from remora.testing import HashEmbedder
from tests.integration.remembering import CONFIG
from tests.patience import until

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
    alice, s = runtime.user("alice"), "s%' OR ''='"
    for session in (None, s, "t"):
        for agent in (None, "x", "y"):
            for kind in ("fact", "preference"):
                await alice.remember(
                    f"tea {session} {agent} {kind}", type=kind, session=session, agent=agent
                )
    await alice.settle()

    async def found(**scope: Any) -> set[str]:
        return {memory.text for memory in await alice.recall("tea", limit=50, **scope)}

    assert len(await found()) == 18
    assert await found(session=s) == {
        f"tea {s} {a} {k}" for a in (None, "x", "y") for k in ("fact", "preference")
    }
    assert await found(agent="x") == {
        f"tea {name} x {k}" for name in (None, s, "t") for k in ("fact", "preference")
    }
    assert await found(types="fact", session=s, agent="x") == {f"tea {s} x fact"}
    assert await found(types=["fact", "preference"], session="t", agent="y") == {
        "tea t y fact",
        "tea t y preference",
    }
    assert await found(types=["procedural"]) == set()
    assert await found(session="none such") == set()
    listed = await alice.memories("preference", session=s, agent="x")
    assert [memory.text for memory in listed] == [f"tea {s} x preference"]
    wrong: dict[str, Any]
    for wrong in (
        {"types": "rumour"},
        {"types": []},
        {"session": "\n"},
        {"agent": ""},
        {"limit": 0},
        {"limit": True},
    ):
        with pytest.raises(InvalidInput):
            await alice.recall("tea", **wrong)
    with pytest.raises(InvalidInput):
        await alice.memories([])


async def test_an_agent_finds_its_own_and_nothing_else(runtime: Runtime) -> None:
    """S4.18, S4.17: an agent's handle never finds, lists or writes what is another agent's, another
    user's, or common.
    """
    alice = runtime.user("alice")
    scout, scribe = alice.agent("scout"), alice.agent("s' OR ''='")
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
    """S2.18, S2.20: listed by importance, the older first among equals; or by age. Of memories that
    answer equally well, the more important comes first, whichever was recorded first.
    """
    alice = runtime.user("alice")
    for name, importance in (("a", 0.2), ("b", 0.9), ("c", 0.2), ("d", 0.5), ("e", 1.0)):
        await alice.remember(f"tea {name}", importance=importance)
    await alice.settle()

    def names(memories: list[Memory]) -> str:
        return "".join(memory.text[-1] for memory in memories)

    assert names(await alice.memories(order="importance")) == "ebdac"
    assert names(await alice.memories(order="importance", limit=2)) == "eb"
    assert names(await alice.memories()) == "abcde"
    levels = (("p", 0.1), ("q", 0.9), ("r", 0.5))
    await alice.remember([{"content": f"milk {name}", "importance": n} for name, n in levels])
    await alice.settle()
    assert names(await alice.recall("milk", limit=3)) == "qrp"
    for wrong in ({"order": "size"}, {"limit": -1}):
        with pytest.raises(InvalidInput):
            await alice.memories(**wrong)


async def test_each_retrieval_counts_once(runtime: Runtime) -> None:
    """S2.21, S4.39, G5: a recall counts once for each memory that it returned, from the cache or
    not; a listing does not count. The figures of a hundred recalls are no commit of their own.
    """
    alice = runtime.user("alice")
    tea, milk = await alice.remember(["likes green tea", "dislikes milk"])
    await alice.settle()
    assert await accesses(runtime) == {}
    commits = runtime.statistics().log.commits
    for times in range(1, 101):
        await alice.recall("tea", limit=1)
        assert await accesses(runtime) == {tea: times}
    assert runtime.statistics().log.commits == commits
    await alice.recall_many(["milk", "tea"], limit=1)
    await alice.recall("milk", limit=1)
    await alice.memories()
    await runtime.user("bob").recall("tea")
    assert await accesses(runtime) == {tea: 101, milk: 2}
    assert await accesses(runtime, "bob") == {}
    chat = alice.session("s")
    await chat.append({"role": "user", "content": "Which tea?"})
    context = await chat.load(query="green tea")
    shown = {memory.id for memory in context.memories}
    assert await accesses(runtime) == {tea: 101 + (tea in shown), milk: 2 + (milk in shown)}
    assert tea in shown


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
    not come back. No bound, no such strategy, a number that means nothing: refused, and nothing
    goes.
    """
    alice = runtime.user("alice")
    chat = alice.session("s")
    await chat.append([{"role": "user", "content": f"tea number {n}"} for n in range(6)])
    await chat.flush()
    await chat.settle()
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
        {"keep": 0, "types": []},  # no type is not every type
    ):
        with pytest.raises(InvalidInput):
            await alice.prune(**wrong)
    assert len(await alice.memories()) == 6
    await alice.prune(keep=2, strategy="fifo")
    assert len(await alice.memories()) == 2
    assert len(await chat.history()) == 6
    assert sorted(await runtime.internals.journal.pruned_seqs(chat.key)) == [1, 2, 3, 4]


async def test_the_supervisor_prunes(tmp_path: Path) -> None:
    """S4.27, S4.41: users over their bound are pruned on schedule, by the configured strategy;
    others are left alone.
    """
    bounds = {"max_user_rows": 3, "prune": "importance", "prune_interval_s": 0.05}
    config = Config.from_dict(
        {"long_term": {"batch_ms": 1, **bounds}, "tokens": {"counter": "heuristic"}}
    )
    async with Runtime(tmp_path, config=config, embedder=HashEmbedder()) as runtime:
        alice, bob = runtime.user("alice"), runtime.user("bob")
        await bob.remember([f"bob {n}" for n in range(3)])
        await alice.remember([{"content": f"alice {n}", "importance": n / 10} for n in range(8)])
        await runtime.settle()

        async def is_pruned() -> bool:
            return len(await alice.memories()) <= 3

        await until(is_pruned, "alice is pruned")
        await runtime.settle()
        assert [memory.text for memory in await alice.memories()] == [
            "alice 5",
            "alice 6",
            "alice 7",
        ]
        assert len(await bob.memories()) == 3
        assert runtime.statistics().schedule["prune"].failures == 0


# -- sharing ---------------------------------------------------------------------------------------


async def test_one_writes_the_granted_read(runtime: Runtime) -> None:
    """S4.33: in a shared scope one writes and the granted read; nobody else does, before or after."""  # noqa: E501
    scope = runtime.shared("project")
    lead, reader, stranger = scope.as_("lead"), scope.as_("reader"), scope.as_("stranger")
    early: list[Awaitable[object]] = [lead.remember("too early"), lead.recall("x"), lead.members()]
    for call in early:
        with pytest.raises(NotGranted):
            await call
    await lead.claim()
    await lead.grant("reader")
    (id_,) = await lead.remember("The launch is in May", type="context", importance=0.9)
    await lead.settle()
    (hit,) = await reader.recall("launch")
    assert (hit.id, hit.text, hit.type, hit.agent) == (
        id_,
        "The launch is in May",
        "context",
        "lead",
    )
    assert [memory.id for memory in await reader.memories()] == [id_]
    assert await reader.members() == {"lead": "own", "reader": "read"}
    refused: list[Awaitable[object]] = [
        reader.remember("mine"),
        reader.grant("stranger"),
        reader.claim(),
        reader.revoke("lead"),
        stranger.recall("launch"),
        stranger.remember("x"),
        stranger.memories(),
        stranger.members(),
        stranger.grant("stranger"),
    ]
    for call in refused:
        with pytest.raises(NotGranted) as caught:
            await call
        assert caught.value.scope == "project"
        assert caught.value.who in {"reader", "stranger"}
        assert "\x1f" not in str(caught.value)
    assert [
        item.content for item in await runtime.internals.journal.memories("\x1fshared/project")
    ] == ["The launch is in May"]


async def test_rights_change_and_last(tmp_path: Path) -> None:
    """S4.33: grants outlive a restart; a right that was taken away is gone at once; the last owner
    stays.
    """
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        lead = runtime.shared("project").as_("lead")
        await lead.grant("writer", "write")
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        scope = runtime.shared("project")
        lead, writer = scope.as_("lead"), scope.as_("writer")
        await writer.remember("The launch is in May")
        await lead.remember("The launch is in May")
        await lead.settle()
        assert {hit.agent for hit in await writer.recall("launch")} == {"lead", "writer"}
        assert [hit.agent for hit in await writer.recall("launch", by="lead")] == ["lead"]
        with pytest.raises(InvalidInput):
            await writer.remember([{"content": "forged", "agent": "lead"}])
        assert len(await writer.recall("launch")) == 2
        await lead.revoke("writer")
        for call in (writer.recall("launch"), writer.remember("x")):
            with pytest.raises(NotGranted):
                await call
        with pytest.raises(NotGranted):
            await lead.revoke("lead")
        with pytest.raises(InvalidInput):
            await lead.grant("writer", "rule")  # type: ignore[arg-type]
        assert await lead.members() == {"lead": "own"}


async def test_nothing_leaks_out_of_a_shared_scope(runtime: Runtime) -> None:
    """S4.33, S2.31: no user, agent or other scope finds what is shared, whatever it is called; and
    no user's id names a scope.
    """
    owner = runtime.shared("project").as_("lead")
    await owner.claim()
    await owner.remember("The launch is in May")
    await runtime.user("project").remember("A launch of my own")
    await runtime.settle()
    for user in ("lead", "shared/project", "shared", "/project"):
        assert await runtime.user(user).recall("launch") == []
        assert await runtime.user(user).agent("lead").recall("launch") == []
    assert [hit.text for hit in await runtime.user("project").recall("launch")] == [
        "A launch of my own"
    ]
    assert [hit.text for hit in await owner.recall("launch")] == ["The launch is in May"]
    other = runtime.shared("project2").as_("lead")
    await other.claim()
    assert await other.recall("launch") == []
    for name in ("\x1fshared/project", "shared\x1f"):
        with pytest.raises(InvalidId):
            runtime.user(name)
        with pytest.raises(InvalidId):
            runtime.shared(name)
        with pytest.raises(InvalidId):
            runtime.shared("project").as_(name)


async def test_members_correct_what_they_recorded(runtime: Runtime) -> None:
    """A writer changes and deletes its own memories, an owner everybody's, and nobody else any; who
    recorded it stays on it, and nothing shows what it said before.
    """
    scope = runtime.shared("project")
    lead, scout, reader = scope.as_("lead"), scope.as_("scout"), scope.as_("reader")
    await lead.claim()
    await lead.grant("scout", "write")
    await lead.grant("reader")
    (leads,) = await lead.remember("The launch is in May")
    (scouts,) = await scout.remember("The venue is in Porto")
    changed = await scout.update_memory(scouts, "The venue is in Braga", metadata={"sure": True})
    assert (changed.id, changed.agent, changed.text) == (scouts, "scout", "The venue is in Braga")
    assert await reader.memory(scouts) == changed
    with pytest.raises(NoSuchMemory):
        await scout.update_memory(leads, "The launch is in June")
    with pytest.raises(NotFound):
        await scout.delete(leads)
    for member in (reader, scope.as_("stranger")):
        with pytest.raises(NotGranted):
            await member.update_memory(scouts, "The venue is in Faro")
        with pytest.raises(NotGranted):
            await member.delete([scouts, leads])
    with pytest.raises(NotGranted):
        await scope.as_("stranger").memory(scouts)
    assert (await lead.update_memory(scouts, importance=0.9)).agent == "scout"
    assert {one.text for one in await reader.recall("venue launch")} == {
        "The launch is in May", "The venue is in Braga",
    }  # fmt: skip
    await lead.revoke("scout")
    with pytest.raises(NotGranted):
        await scout.delete(scouts)
    assert (await lead.delete([scouts, leads])).deleted == 2
    await lead.settle()
    assert await reader.recall("venue launch") == []
    assert await lead.memories() == []


async def test_the_actor_itself_checks_who_changes(runtime: Runtime) -> None:
    """A right that is revoked between the handle's check and the change is gone."""
    scope = runtime.shared("project")
    lead = scope.as_("lead")
    await lead.claim()
    (id_,) = await lead.remember("The launch is in May")
    key = UserKey("\x1fshared/project")
    registry = runtime.internals.registry
    for message in (ChangeMemory(id_, "stranger", 1, "x"), DeleteMemories((id_,), "stranger")):
        with pytest.raises(NotGranted):
            await registry.ask(key, message)
    assert (await lead.memory(id_)) is not None
