"""Long-term memory as an application uses it: handles over real SQLite and real LanceDB."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

import remora
from remora import Agent, Config, Runtime, quote_memories
from remora.api.memories import LongTermHandle
from remora.blocks import BaseMemoryBlock
from remora.errors import (
    CommitFailed,
    InvalidId,
    InvalidInput,
    InvalidMessage,
    ModelUnavailable,
    RecordingFailed,
    RedactionFailed,
    RemoraError,
)
from remora.ids import memory_id
from remora.storage.ports import SessionKey
from remora.testing import FaultyJournal, HashEmbedder
from tests.integration.remembering import CONFIG
from tests.sqlite import Connections, refuse_full_disk

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "memory", config=CONFIG, embedder=HashEmbedder()) as opened:
        yield opened


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
    assert (
        hit.line
        == f'({hit.created_at.day} {hit.created_at:%B %Y}) Preference: "Prefers metric units"'
    )
    (plain,) = [memory for memory in await alice.memories() if memory.id == second]
    assert (plain.type, plain.importance, plain.session) == ("fact", 0.5, "")
    assert await runtime.user("bob").recall("metric units") == []


async def test_remembered_is_durable_before_it_is_searchable(tmp_path: Path) -> None:
    """S2.17, S4.25, G3: remember returns when it is in the journal; a run that ended right then is
    made up for by the next. Nothing has to be saved or handed over: there is no state_dict.
    """
    assert not hasattr(LongTermHandle, "state_dict")

    class Away(HashEmbedder):
        async def embed(self, texts: Any) -> Any:
            raise ModelUnavailable("away")

    async with Runtime(tmp_path, config=CONFIG, embedder=Away()) as runtime:
        scout = runtime.user("alice").agent("scout")
        (id_,) = await scout.remember("Lives in Lisbon", importance=0.75)
        assert [item.id for item in await runtime.internals.journal.memories("alice")] == [id_]
    for _ in range(2):
        async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
            alice = runtime.user("alice")
            await alice.settle()
            (memory,) = await alice.memories()
            assert (memory.id, memory.importance) == (id_, 0.75)
            for handle in (alice, alice.agent("scout")):
                assert [hit.id for hit in await handle.recall("Lisbon")] == [id_]
            assert await (await runtime.internals.long_term()).row_ids() == [id_]


async def test_many_at_once(runtime: Runtime) -> None:
    """S2.31, S4.23, S4.27, S4.40: a batch of texts and dicts, in one commit; each may differ from
    the call's own values. Words that differ in case alone are two memories, as of a password.
    """
    alice = runtime.user("alice")
    commits = runtime.statistics().log.commits
    ids = await alice.remember(
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
            "plays the viola",
        ]
    )
    assert runtime.statistics().log.commits == commits + 1
    assert ids[0] == ids[3]
    await alice.settle()
    found = {memory.id: memory for memory in await alice.memories()}
    assert set(found) == set(ids)
    assert (found[ids[1]].type, found[ids[1]].importance) == ("procedural", 1.0)
    assert (found[ids[2]].agent, found[ids[2]].session) == ("scout", "s9")
    assert found[ids[2]].line == '(3 February 2020) Fact: "Old news"'
    assert found[ids[0]].text == "Plays the viola"


async def test_what_cannot_be_remembered() -> None:
    """S2.17: no text, no known type, no sound number or id: refused before anything is written, the
    good beside it as well.
    """
    config = Config.from_dict(
        {"buffer": {"max_message_bytes": 1_000_000}, "tokens": {"counter": "heuristic"}}
    )
    contents: tuple[Any, ...] = (
        None, "", " \n", 7, b"bytes", [], ["good", None], ["good", ""], ["good", {"content": None}],
        ["good", {"text": "no such key", "content": "x"}],
        {"content": "x", "created_at": "yesterday"},
        {"content": "x", "created_at": float("inf")},
        {"content": "x", "created_at": 10**20},
        "x" * 2_000_000,
    )  # fmt: skip
    options: tuple[dict[str, Any], ...] = (
        {"type": "rumour"}, {"type": None}, {"importance": 1.01}, {"importance": -0.01},
        {"importance": float("nan")}, {"importance": True}, {"importance": "high"},
        {"session": ""}, {"session": "a\nb"}, {"agent": "\ud800"},
    )  # fmt: skip
    async with Runtime.in_memory(config=config, embedder=HashEmbedder()) as runtime:
        for content, more in [*((one, {}) for one in contents), *(("x", one) for one in options)]:
            with pytest.raises(InvalidInput):
                await runtime.user("alice").remember(content, **more)
            assert (await runtime.counts()).memories == 0, (str(content)[:20], more)
            assert runtime.statistics().log.writes == 0, (str(content)[:20], more)


async def test_nobody_remembers_without_a_user(runtime: Runtime) -> None:
    """S2.17, S2.31: there is no call that records or recalls without a user, and no user without an
    id.
    """
    for missing in (None, "", 7):
        with pytest.raises(InvalidId):
            runtime.user(missing)  # type: ignore[arg-type]
    for verb in ("remember", "recall", "record", "memories", "prune", "tools"):
        assert not hasattr(Runtime, verb) or verb == "recall"
        assert "user" not in inspect.signature(getattr(remora.User, verb)).parameters
    for verb in ("remember", "recall", "memories"):
        assert "user" not in inspect.signature(getattr(Agent, verb)).parameters


async def test_text_that_no_file_can_hold(runtime: Runtime) -> None:
    """S2.17: half an emoji is remembered without that half; every other character comes back as it
    was.
    """
    alice = runtime.user("alice")
    kept = "tabs\tand\nlines, 'quotes' \"double\", 🐝, NUL\x00, ' OR 1=1 --, \u202e"
    await alice.remember(["likes \ud83d bees", kept])
    await alice.settle()
    assert {memory.text for memory in await alice.memories()} == {"likes \ufffd bees", kept}
    assert (await alice.recall("likes \ud83d bees"))[0].text == "likes \ufffd bees"


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
    assert quote_memories(await alice.recall("viola")) == ""
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
    text = quote_memories(await alice.recall("viola", limit=1))
    assert text.splitlines()[2:-1] == [f"- {(await alice.recall('viola', limit=1))[0].line}"]
    assert (text.splitlines()[0], text.splitlines()[-1]) == ("<recalled>", "</recalled>")
    # Each round of an agent records its whole prompt again, with what was retrieved in it: nothing
    # piles up.
    again = [{"role": "user", "content": text}, *TALK[1:]]
    assert await alice.record(again) == ids
    await alice.settle()
    assert len(await alice.memories()) == 3


@pytest.mark.parametrize("recalled_at", ["tail", "user"])
@pytest.mark.parametrize("blocks_at", ["system", "user", "tail"])
async def test_record_a_context(tmp_path: Path, recalled_at: str, blocks_at: str) -> None:
    """An agent records its whole context: what was said, and nothing that remora put there."""

    class Notes(BaseMemoryBlock[str]):
        async def _aget(self, messages: Any = None, **block_kwargs: Any) -> str:
            return "Nothing that anybody said."

    config = Config.from_dict(
        {
            "recall": {"insert_method": recalled_at, "deadline_s": 60},
            "context": {"insert_method": blocks_at},
        }
    )
    async with Runtime(
        tmp_path / "memory", config=config, embedder=HashEmbedder(), blocks=[Notes()]
    ) as runtime:
        alice = runtime.user("alice")
        await alice.remember("I moved to Lisbon.")
        await alice.settle()
        chat = alice.session("chat")
        await chat.append({"role": "user", "content": "Where in Lisbon do I live?"})
        context = await chat.load("Lisbon")
        assert context.memories
        shown = str(context.messages)
        assert "<recalled>" in shown
        assert "<memory>" in shown
        (recorded,) = await alice.record(context.messages)
        assert recorded == memory_id("alice", "", "Where in Lisbon do I live?")


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
    """S4.40: append_many, record_many and recall_many: many at once, results in the order of what
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
        [hit.id for hit in found] for found in await alice.recall_many(["plums", "apples"], limit=1)
    ] == [ids[2], ids[0]]
    found = await alice.recall_many(["apples", "plums", "apples"], limit=1)
    assert ["red apples" in quote_memories(one) for one in found] == [True, False, True]
    with pytest.raises(InvalidInput):
        await alice.recall_many(["apples", 7])  # type: ignore[list-item]
    with pytest.raises(InvalidInput):
        await alice.recall_many("apples")
    with pytest.raises(InvalidMessage):
        await alice.record_many([[TALK[1]], ["text"]])  # type: ignore[list-item]


# -- failure ---------------------------------------------------------------------------------------


async def test_a_failing_journal_is_named(tmp_path: Path, connections: Connections) -> None:
    """S4.30, G4: a RuntimeError that says what was tried, for whom, and why it failed. The disk
    refuses the commit: no memory, no job, nothing to recall; afterwards all is well again.
    """
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.remember("before")
        connections[0].before_commit = refuse_full_disk
        for op, call in (
            ("remember", alice.remember(["one", "two"], session="s1")),
            ("record", alice.record([{"role": "user", "content": "three"}], session="s1")),
        ):
            with pytest.raises(RuntimeError) as caught:
                await call
            error = caught.value
            assert isinstance(error, RecordingFailed)
            assert isinstance(error, RemoraError)
            told = (error.op, error.user, error.session, error.cause)
            assert told == (op, "alice", "s1", "CommitFailed")
            assert isinstance(error.__cause__, CommitFailed)
            assert SessionKey("alice", "s1").words in str(error)
        connections[0].before_commit = None
        await alice.settle()
        stored = await runtime.internals.journal.memories("alice")
        assert [item.content for item in stored] == ["before"]
        assert [memory.text for memory in await alice.memories()] == ["before"]
        assert len(await alice.remember(["one", "two"], session="s1")) == 2
        await alice.settle()
        assert len(await alice.memories()) == 3
    faults: list[Any] = []
    journal = FaultyJournal(lambda: faults.pop() if faults else None)
    async with Runtime.in_memory(
        config=CONFIG, embedder=HashEmbedder(), journal=journal
    ) as runtime:
        faults.append("kept")
        with pytest.raises(RecordingFailed) as unknown:
            await runtime.user("alice").remember("one")
        assert unknown.value.cause == "OutcomeUnknown"


async def test_long_term_memory_switched_off(tmp_path: Path) -> None:
    """S2.17: without long-term memory every verb says so, and writes nothing that could never be
    found.
    """
    config = Config.from_dict({"long_term": {"enabled": False}, "tokens": {"counter": "heuristic"}})
    async with Runtime(tmp_path, config=config, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        calls = [
            alice.remember("x"), alice.recall("x"), alice.memories(), alice.prune(keep=1),
            alice.record([{"role": "user", "content": "x"}]), runtime.long_term_statistics(),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidInput, match="switched off"):
                await call
        assert (await alice.tools().save_to_memory("", ["x"]))["success"] is False
        assert (await runtime.counts()).memories == 0


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
