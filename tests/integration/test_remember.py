"""Long-term memory as an application uses it: handles over real SQLite and real LanceDB."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import remora
from remora import Config, Runtime
from remora.actors.user.messages import InspectUser, UserView
from remora.api.memories import Agent, LongTermHandle
from remora.errors import (
    CommitFailed,
    InvalidId,
    InvalidInput,
    InvalidMessage,
    ModelUnavailable,
    NotGranted,
    OutcomeUnknown,
    RecordingFailed,
    RedactionFailed,
    RemoraError,
)
from remora.ids import UserKey, memory_id
from remora.runtime.registry import ActorRegistry
from remora.testing import HashEmbedder
from tests.sqlite import Connections, refuse_full_disk

pytestmark = pytest.mark.anyio

CONFIG = Config.from_dict(
    {
        "long_term": {"batch_ms": 1},
        "journal": {"durability": "process"},
        "tokens": {"counter": "heuristic"},
    }
)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "memory", config=CONFIG, embedder=HashEmbedder()) as opened:
        yield opened


async def accesses(runtime: Runtime, user: str = "alice") -> dict[str, int]:
    view: UserView = await runtime.internals.registry.ask(UserKey(user), InspectUser())
    return {row: count for row, (count, _) in view.accesses.items()}


# -- recording -------------------------------------------------------------------------------------


async def test_remember_and_recall(runtime: Runtime) -> None:
    """S2.17, S5.01: what was remembered comes back as it was given, with the document's defaults
    where nothing was.
    """
    alice = runtime.user("alice")
    before = datetime.now(UTC)
    (first,) = await alice.remember(
        "Prefers metric units", type="preference", importance=0.8, session="s1"
    )
    (second,) = await alice.remember("Lives in Lisbon")
    await alice.settle()
    (hit, *_) = await alice.recall("metric units")
    assert (hit.id, hit.text, hit.type, hit.importance) == (
        first,
        "Prefers metric units",
        "preference",
        0.8,
    )
    assert (hit.session, hit.agent, hit.role, hit.seq) == ("s1", "", "system", 0)
    assert before <= hit.created_at <= datetime.now(UTC)
    assert hit.line == f"({hit.created_at.day} {hit.created_at:%B %Y}) Prefers metric units"
    (plain,) = [memory for memory in await alice.memories() if memory.id == second]
    assert (plain.type, plain.importance, plain.session) == ("fact", 0.5, "")
    assert await runtime.user("bob").recall("metric units") == []


async def test_remembered_is_durable_before_it_is_searchable(tmp_path: Path) -> None:
    """S2.17, S4.25, G3: remember returns when it is in the journal; a run that ended right then is
    made up for by the next.
    """

    class Away(HashEmbedder):
        async def embed(self, texts: Any) -> Any:
            raise ModelUnavailable("away")

    async with Runtime(tmp_path, config=CONFIG, embedder=Away()) as runtime:
        (id_,) = await runtime.user("alice").remember("Lives in Lisbon")
        assert [item.id for item in await runtime.internals.journal.memories("alice")] == [id_]
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        with anyio.fail_after(30):
            await alice.settle()
        assert [hit.id for hit in await alice.recall("Lisbon")] == [id_]
        assert await (await runtime.internals.long_term()).row_ids() == [id_]


async def test_many_at_once(runtime: Runtime) -> None:
    """S4.27, S4.40: a batch of texts and dicts, in one commit; each may differ from the call's own
    values.
    """
    alice = runtime.user("alice")
    commits = runtime.statistics().log.commits
    ids = await alice.remember_many(
        [
            "Plays the viola",
            {"content": "To deploy, run make ship", "type": "procedural", "importance": 1},
            {
                "content": "Old news",
                "created_at": datetime(2020, 2, 3, tzinfo=UTC),
                "agent": "scout",
                "session": "s9",
            },
            " Plays  the viola",
        ]
    )
    assert runtime.statistics().log.commits == commits + 1
    assert ids[0] == ids[3]
    await alice.settle()
    found = {memory.id: memory for memory in await alice.memories()}
    assert set(found) == set(ids)
    assert (found[ids[1]].type, found[ids[1]].importance) == ("procedural", 1.0)
    assert (found[ids[2]].agent, found[ids[2]].session) == ("scout", "s9")
    assert found[ids[2]].line == "(3 February 2020) Old news"
    assert found[ids[0]].text == "Plays the viola"


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (None, {}),
        ("", {}),
        (" \n", {}),
        (7, {}),
        (b"bytes", {}),
        ([], {}),
        (["good", None], {}),
        (["good", ""], {}),
        (["good", {"content": None}], {}),
        (["good", {"text": "no such key", "content": "x"}], {}),
        ({"content": "x", "created_at": "yesterday"}, {}),
        ({"content": "x", "created_at": float("inf")}, {}),
        ({"content": "x", "created_at": 10**20}, {}),
        ("x" * 2_000_000, {}),
        ("x", {"type": "rumour"}),
        ("x", {"type": None}),
        ("x", {"importance": 1.01}),
        ("x", {"importance": -0.01}),
        ("x", {"importance": float("nan")}),
        ("x", {"importance": True}),
        ("x", {"importance": "high"}),
        ("x", {"session": ""}),
        ("x", {"session": "a\nb"}),
        ("x", {"agent": "\ud800"}),
    ],
)
async def test_what_cannot_be_remembered(content: Any, options: dict[str, Any]) -> None:
    """S2.17: no text, no known type, no sound number or id: refused before anything is written, the
    good beside it as well.
    """
    config = Config.from_dict(
        {"buffer": {"max_message_bytes": 1_000_000}, "tokens": {"counter": "heuristic"}}
    )
    async with Runtime.in_memory(config=config, embedder=HashEmbedder()) as runtime:
        with pytest.raises(InvalidInput):
            await runtime.user("alice").remember(content, **options)
        assert (await runtime.counts()).memories == 0
        assert runtime.statistics().log.commits == 0


async def test_nobody_remembers_without_a_user(runtime: Runtime) -> None:
    """S2.17, S2.31: there is no call that records or recalls without a user, and no user without an
    id.
    """
    for missing in (None, "", 7):
        with pytest.raises(InvalidId):
            runtime.user(missing)  # type: ignore[arg-type]
    for verb in ("remember", "recall", "record", "retrieve", "memories", "prune", "tools"):
        assert not hasattr(Runtime, verb) or verb == "recall"
        assert "user" not in inspect.signature(getattr(remora.User, verb)).parameters
    for verb in ("remember", "recall", "retrieve", "memories"):
        assert "user" not in inspect.signature(getattr(Agent, verb)).parameters


async def test_text_that_no_file_can_hold(runtime: Runtime) -> None:
    """S2.17: half an emoji is remembered without that half; every other character comes back as it
    was.
    """
    alice = runtime.user("alice")
    kept = "tabs\tand\nlines, 'quotes' \"double\", 🐝, NUL\x00, ' OR 1=1 --, \u202e"
    await alice.remember(["likes \ud83d bees", kept])
    await alice.settle()
    assert {memory.text for memory in await alice.memories()} == {"likes ? bees", kept}
    assert (await alice.recall("likes \ud83d bees"))[0].text == "likes ? bees"


async def test_redaction_comes_first(tmp_path: Path) -> None:
    """S4.43: the hook in front of the journal goes over memories, too; where it fails, nothing is
    written.
    """

    def hook(text: str) -> str:
        if "fail" in text:
            raise ValueError(text)
        return text.replace("4711", "****")

    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder(), redact=hook) as runtime:
        alice = runtime.user("alice")
        await alice.remember("The PIN is 4711")
        assert [item.content for item in await runtime.internals.journal.memories("alice")] == [
            "The PIN is ****"
        ]
        with pytest.raises(RedactionFailed):
            await alice.remember(["good", "fail"])
        assert (await runtime.counts()).memories == 1


# -- what was said ---------------------------------------------------------------------------------

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You are helpful. What is remembered: likes tea"},
    {"role": "user", "content": "I play the viola"},
    {
        "role": "assistant",
        "content": "How lovely!",
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "17 results"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "2", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "user", "content": [{"type": "text", "text": "and the oboe"}]},
]


async def test_record_and_retrieve(runtime: Runtime) -> None:
    """S4.07, S4.21: record takes what user and assistant said; retrieve makes a system message's
    text of it, or none.
    """
    alice = runtime.user("alice")
    assert await alice.retrieve("viola") == ""
    ids = await alice.record(TALK, session="s1")
    assert len(ids) == 3
    await alice.settle()
    memories = await alice.memories()
    assert sorted(memory.text for memory in memories) == [
        "How lovely!",
        "I play the viola",
        "and the oboe",
    ]
    assert {(memory.type, memory.session) for memory in memories} == {("context", "s1")}
    text = await alice.retrieve("viola", limit=1)
    assert text.splitlines() == [
        "What is remembered that may bear on this:",
        f"- {(await alice.recall('viola', k=1))[0].line}",
    ]
    # Each round of an agent records its whole prompt again, with what was retrieved in it: nothing
    # piles up.
    again = [{"role": "system", "content": text}, *TALK[1:]]
    assert await alice.record(again) == ids
    await alice.settle()
    assert len(await alice.memories()) == 3


async def test_record_refuses_what_is_no_message(runtime: Runtime) -> None:
    """S4.28, S4.30: a bad message is a TypeError, and nothing of the others is written."""
    alice = runtime.user("alice")
    for bad in ([*TALK, "text"], "text", None, [{"role": "user"}], [{"content": "x"}], 7):
        with pytest.raises(TypeError) as caught:
            await alice.record(bad)  # type: ignore[arg-type]
        assert isinstance(caught.value, InvalidMessage)
    assert (await runtime.counts()).memories == 0
    assert await alice.record([]) == []
    assert await alice.record({"role": "user", "content": "one alone"}) == [
        memory_id("alice", "", "one alone")
    ]
    assert len(await alice.record(remora.Message.user("a Message"))) == 1


async def test_batches(runtime: Runtime) -> None:
    """S4.40: append_many, record_many and retrieve_many: many at once, results in the order of what
    was asked.
    """
    alice = runtime.user("alice")
    receipts = await alice.append_many({"one": TALK[1], "two": [TALK[1], TALK[5]]})
    assert {name: receipt.seqs for name, receipt in receipts.items()} == {
        "one": (1,),
        "two": (1, 2),
    }
    assert len(await alice.session("two").history()) == 2
    commits = runtime.statistics().log.commits
    ids = await alice.record_many(
        [[{"role": "user", "content": "red apples"}], [], {"role": "user", "content": "blue plums"}]
    )
    assert [len(part) for part in ids] == [1, 0, 1]
    assert runtime.statistics().log.commits == commits + 1
    await alice.settle()
    assert [
        [hit.id for hit in found] for found in await alice.recall_many(["plums", "apples"], k=1)
    ] == [ids[2], ids[0]]
    texts = await alice.retrieve_many(["apples", "plums", "apples"], limit=1)
    assert ["red apples" in text for text in texts] == [True, False, True]
    with pytest.raises(InvalidInput):
        await alice.recall_many(["apples", 7])  # type: ignore[list-item]
    with pytest.raises(InvalidInput):
        await alice.retrieve_many("apples")
    with pytest.raises(InvalidMessage):
        await alice.record_many([[TALK[1]], ["text"]])  # type: ignore[list-item]


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
        return {memory.text for memory in await alice.recall("tea", k=50, **scope)}

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
    for wrong in ({"types": "rumour"}, {"session": "\n"}, {"agent": ""}, {"k": 0}, {"k": True}):
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
        assert own in await handle.retrieve("treasure")
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
    assert len(await alice.recall("treasure", k=9)) == 4
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
        everyone = [handle.recall(f"secret {other}", k=50) for other, _, _ in triples]
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
    await alice.remember_many(
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
        await alice.recall("tea", k=1)
        assert await accesses(runtime) == {tea: times}
    await alice.recall_many(["milk", "tea"], k=1)
    assert await accesses(runtime) == {tea: 4, milk: 1}
    await alice.retrieve("milk", limit=1)
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
        return sorted(memory.text for memory in await alice.recall("tea", k=9))

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
    await alice.remember_many(
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
        await alice.recall("loved", k=1)
    await alice.prune(**options)
    assert sorted(memory.text for memory in await alice.memories()) == left
    assert (
        sorted(item.content for item in await runtime.internals.journal.memories("alice")) == left
    )
    assert sorted(hit.text for hit in await alice.recall("dull vital loved new", k=9)) == left
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
        await alice.remember_many(
            [{"content": f"alice {n}", "importance": n / 10} for n in range(8)]
        )
        with anyio.fail_after(30):
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


# -- failure ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [CommitFailed("disk full"), OutcomeUnknown("who knows")])
async def test_a_failing_journal_is_named(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """S4.30: a RuntimeError that says what was tried, for whom, and why it failed; nothing is half
    written; a retry succeeds.
    """
    alice = runtime.user("alice")
    real = ActorRegistry.ask

    async def ask(self: ActorRegistry, key: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(key, UserKey):
            raise failure
        return await real(self, key, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(ActorRegistry, "ask", ask)
        for op, call in (
            ("remember", alice.remember(["one", "two"], session="s1")),
            ("record", alice.record([{"role": "user", "content": "three"}], session="s1")),
        ):
            with pytest.raises(RuntimeError) as caught:
                await call
            error = caught.value
            assert isinstance(error, RecordingFailed)
            assert isinstance(error, RemoraError)
            assert (error.op, error.user, error.session, error.cause) == (
                op,
                "alice",
                "s1",
                failure,
            )
            assert error.__cause__ is failure
            assert "alice" in str(error)
            assert "s1" in str(error)
    assert (await runtime.counts()).memories == 0
    assert len(await alice.remember(["one", "two"], session="s1")) == 2


async def test_a_commit_that_fails_leaves_nothing(tmp_path: Path, connections: Connections) -> None:
    """S4.30, G4: the disk refuses the commit: no memory, no job, nothing to recall; afterwards all
    is well again.
    """
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.remember("before")
        connections[0].before_commit = refuse_full_disk
        with pytest.raises(RecordingFailed):
            await alice.remember(["one", "two"])
        connections[0].before_commit = None
        stored = await runtime.internals.journal.memories("alice")
        assert [item.content for item in stored] == ["before"]
        await alice.settle()
        assert [memory.text for memory in await alice.memories()] == ["before"]
        await alice.remember(["one", "two"])
        await alice.settle()
        assert len(await alice.memories()) == 3


async def test_long_term_memory_switched_off(tmp_path: Path) -> None:
    """S2.17: without long-term memory every verb says so, and writes nothing that could never be
    found.
    """
    config = Config.from_dict({"long_term": {"enabled": False}, "tokens": {"counter": "heuristic"}})
    async with Runtime(tmp_path, config=config, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        calls = [
            alice.remember("x"), alice.recall("x"), alice.retrieve("x"), alice.memories(), alice.prune(keep=1),  # noqa: E501
            alice.record([{"role": "user", "content": "x"}]),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidInput, match="switched off"):
                await call
        assert (await alice.tools().save_to_memory("", ["x"]))["success"] is False
        assert (await runtime.counts()).memories == 0


async def test_state_lives_in_the_store(tmp_path: Path) -> None:
    """S4.25: nothing has to be saved or handed over: another run on the same directory remembers;
    there is no state_dict.
    """
    assert not hasattr(LongTermHandle, "state_dict")
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        await (
            runtime.user("alice")
            .agent("scout")
            .remember("The treasure is under the oak", importance=0.75)
        )
        await runtime.settle()
        before = await runtime.user("alice").memories()
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        assert await runtime.user("alice").memories() == before
        assert await runtime.user("alice").agent("scout").recall("treasure") != []


async def test_another_address(tmp_path: Path) -> None:
    """S2.33, S2.34: long-term memory lives where long_term.uri says, and the journal in the
    directory.
    """
    uri = str(tmp_path / "elsewhere" / "lance")
    config = Config.from_dict(
        {
            "long_term": {"uri": "${{ secrets.LANCE }}", "batch_ms": 1},
            "tokens": {"counter": "heuristic"},
        },
        secrets={"LANCE": uri},
    )
    async with Runtime(tmp_path / "memory", config=config, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.remember("likes tea")
        await alice.settle()
        assert len(await alice.recall("tea")) == 1
    assert await anyio.Path(uri).is_dir()
    assert not await anyio.Path(tmp_path / "memory" / "longterm").exists()


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
