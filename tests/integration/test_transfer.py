"""Export and import: whatever a runtime holds stands in another one as it was, by JSON lines and by
Parquet.
"""

from __future__ import annotations

import base64
import json
import os
import random
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from remora import BufferPolicy, Config, Message, Runtime, Session
from remora.adapters.muxi import BufferMemory
from remora.blocks import BaseMemoryBlock, FactExtractionMemoryBlock, VectorMemoryBlock
from remora.errors import (
    InvalidExport,
    InvalidId,
    InvalidInput,
    InvalidMessage,
    RedactionFailed,
    StorageError,
)
from remora.ids import row_id
from remora.messages import ChatDict
from remora.storage.ports import SessionKey, UserKey
from remora.testing import HashEmbedder
from remora.transfer import MessageExport, SessionExport, TransferReport
from tests.harness import user
from tests.patience import until

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and write files

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "long_term": {"batch_ms": 1, "compact_fragments": 1},
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 600},
        "synopsis": {"shown": "always"},
    }
)
FORMS = ("export.jsonl", "export")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"x": 1}'},
    "index": 0,
}


def opened(where: Path | None, **options: Any) -> Runtime:
    options = {"config": CONFIG, "embedder": HashEmbedder(), **options}
    return Runtime.in_memory(**options) if where is None else Runtime(where, **options)


async def conversation(chat: Session, number: int) -> None:
    """Plain turns, tool turns, pictures and sound, ids, metadata, times."""
    rng = random.Random(number)
    topics = ["bridges", "gardens", "cellos", "ferries", "beehives", "maps"]
    at = datetime(2024, 1, 1, 9, 0, 0, 123_457, tzinfo=UTC) + timedelta(days=number)
    said: list[dict[str, Any]] = []
    for turn in range(rng.randrange(3, 9)):
        topic = rng.choice(topics)
        said += [
            user(
                f"Question {turn} of {number} about {topic}",
                created_at=at + timedelta(minutes=turn),
            ),
            {
                "role": "assistant",
                "content": f"The {topic} of {number} are {rng.randrange(900)} years old.",
                "id": f"a{turn}",
            },
        ]
    said += [
        user(
            [{"type": "text", "text": f"a picture of {number}"}, IMAGE, AUDIO],
            metadata={"seen": [1, {"deep": None}]},
        ),
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": "Found.", "refusal": None, "custom": {"b": 1, "a": [2.5]}},
    ]
    # At once: the rows of a flush hold words of the messages beside them, as far as those had been
    # said.
    await chat.append(said, key="k")


async def shown(runtime: Runtime, key: SessionKey) -> tuple[Any, ...]:
    """What a user sees of a session."""
    chat = runtime.session(*key)
    context = await chat.load()
    query = f"which ferries and bridges of {key.session}"
    hits = await runtime.user(key.user).recall(query, limit=8)
    return (
        context.messages,
        context.tokens,
        context.summary,
        await chat.history(),
        [(one.text, one.session, one.seq, one.created_at, round(one.score, 4)) for one in hits],
    )


async def compacted(runtime: Runtime) -> None:
    await runtime.settle()
    await (await runtime.internals.long_term()).compact()


async def copied(chat: Session, target: Runtime) -> Session:
    """The session in another runtime, which says the same of it."""
    export = await chat.export()
    copy = await target.user(chat.key.user).import_session(export)
    await target.settle()
    assert await copy.export() == export
    assert await said_in(copy) == await said_in(chat)
    assert (await copy.load()).messages == (await chat.load()).messages
    return copy


async def said_in(chat: Session) -> list[ChatDict]:
    return [one.to_chat() for one in await chat.history()]


async def recalled(runtime: Runtime, query: str) -> list[str]:
    return sorted(one.text for one in await runtime.user("alice").recall(query, limit=20))


async def test_many_sessions_are_the_same_elsewhere(tmp_path: Path) -> None:
    """S4.37, S4.25, S4.38, S3.32: load, history and recall, scores too; media are kept, and
    counted. Exported again as lines, it is, but for the header, what was exported as lines. Users
    without anything beside sessions are not in an export, and importing makes no actor of theirs.
    """
    keys = [SessionKey(f"user-{number % 6}", f"s{number}") for number in range(30)]
    async with opened(tmp_path / "one") as source:
        for number, key in enumerate(keys):
            await conversation(source.session(*key), number)
            await source.session(*key).flush()
        one = source.user("user-1")
        facts = ["Prefers metric units", "Was born in Faro"]
        await one.remember(facts, type="preference", importance=0.8)
        await one.learn("The ferry leaves at nine")
        await compacted(source)
        messages = sum([len(await source.session(*key).history()) for key in keys])
        rows = sorted(await (await source.internals.long_term()).row_ids())
        told = TransferReport(sessions=30, messages=messages, users=1, memories=2)
        steps: list[tuple[int, int]] = []
        for form in FORMS:
            steps.clear()
            report = await source.export(
                tmp_path / form, progress=lambda done, total: steps.append((done, total))
            )
            assert report == told
            assert steps[-1] == (messages, messages)
            assert steps == sorted(steps)
        for form in FORMS:
            async with opened(tmp_path / f"of {form}") as target:
                assert await target.import_(tmp_path / form) == told
                through = await target.internals.journal.indexed_through()
                assert UserKey("user-2") not in {key for key, _ in through}
                await compacted(target)
                again = tmp_path / f"again {form}.jsonl"
                await target.export(again)
                wanted, found = (
                    sorted(path.read_text().splitlines()[1:])
                    for path in (tmp_path / "export.jsonl", again)
                )
                assert found == wanted, form
                assert sorted(await (await target.internals.long_term()).row_ids()) == rows
                for key in keys:
                    there = await shown(target, key)
                    assert there == await shown(source, key)
                    assert there[4], "something was recalled"
                assert await target.user("user-1").memories() == await one.memories()
                history = await target.session(*keys[0]).history()
                with_media = next(one for one in history if isinstance(one.content, list))
                assert with_media.content is not None
                assert with_media.content[1:] == [IMAGE, AUDIO]
                assert target.message_tokens(with_media) > 2 * CONFIG.tokens.image_tokens - 1


async def test_a_session_is_exported_and_imported(tmp_path: Path) -> None:
    """S3.28, S4.36: equality, plain data, through JSON too; another user, another name, another
    directory; once only.
    """
    async with opened(tmp_path / "one") as source, opened(None) as target:
        chat = source.session("alice", "chat")
        await conversation(chat, 7)
        await chat.settle()
        export = await chat.export()
        again = msgspec.json.decode(msgspec.json.encode(export), type=SessionExport)
        assert again == export
        copy = await target.user("bob").import_session(again, session="other")
        assert copy.key == SessionKey("bob", "other")
        assert await copy.export() == msgspec.structs.replace(export, user="bob", session="other")
        assert await copy.history() == await chat.history()
        receipt = await copy.append(user("and on"))
        assert receipt.seqs == (len(export.messages) + 1,)
        with pytest.raises(InvalidInput, match="already"):
            await target.user("bob").import_session(export, session="other")
        same = await source.user("alice").import_session(export, session="again")
        assert await said_in(same) == await said_in(chat)
        with pytest.raises(InvalidId):
            await target.user("bob").import_session(export, session="")
        with pytest.raises(InvalidInput, match="no messages"):
            await source.session("alice", "none").export()


class Counting(BaseMemoryBlock[str], kw_only=True):
    """Keeps how many messages it has seen, and the last words of each."""

    name: str = "counting"
    seen: int = 0
    words: list[str] = msgspec.field(default_factory=list)

    async def _aget(self, messages: Any = None, **_: Any) -> str:
        return f"{self.seen}: {' '.join(self.words)}"

    async def _aput(self, messages: Any) -> None:
        self.seen += len(messages)
        self.words += [str(one.content) for one in messages]


BLOCK_POLICY = BufferPolicy.window(2, fold="drop")


async def test_block_states_come_along() -> None:
    """S3.28: a block's state is exported and goes on where it was; what it has seen it is not shown
    again.
    """
    options: dict[str, Any] = {"blocks": [Counting()], "policy": BLOCK_POLICY}
    async with opened(None, **options) as source, opened(None, **options) as target:
        chat = source.session("alice", "chat")
        for number in range(1, 6):
            await chat.append(user(f"m{number}"))
        await chat.settle()
        state = (await chat.export()).state_items
        assert [one.name for one in state if one.kind == "block"] == ["counting"]
        copy = await copied(chat, target)
        for one in (chat, copy):
            await one.append(user("m6"))
            await one.settle()
        assert (await copy.load()).messages == (await chat.load()).messages
        assert "4: m1 m2 m3 m4" in str((await copy.load()).messages)


async def test_messages_are_numbered_anew_where_some_were_removed() -> None:
    """S4.37, S3.28: gaps close, and summaries, blocks, marks and figures of access refer to the
    same messages as before.
    """
    options: dict[str, Any] = {
        "blocks": [Counting()],
        "policy": BufferPolicy.window(3, fold="summary"),
    }
    async with opened(None, **options) as source, opened(None, **options) as target:
        chat = source.session("alice", "chat")
        for number in range(1, 5):
            await chat.append(user(f"m{number} about ferries"))
            await chat.settle()
        assert (await chat.delete(positions=0)).deleted == 1
        for number in range(5, 10):
            await chat.append(user(f"m{number} about ferries"))
            await chat.settle()
        assert await chat.rewind(8) == 1
        await chat.flush()
        await source.settle()
        export = await chat.export()
        assert [one.seq for one in export.messages] == list(range(1, len(export.messages) + 1))
        view = await chat.inspect()
        buffered = [one.chat["content"] for one in export.messages[export.front :]]
        assert buffered == [one.content for one in await chat.get_messages()]
        assert view.summary is not None
        assert export.summary is not None
        assert export.summary.through == export.front
        assert export.summary.text == view.summary.text
        found = await recalled(source, "m8 ferries")
        await copied(chat, target)
        assert await recalled(target, "m8 ferries") == found


async def test_figures_of_access_follow_their_messages(tmp_path: Path) -> None:
    """S2.21, S4.37: a row's figures move with its message's number; those of messages that are gone
    are left behind.
    """
    async with opened(None) as source, opened(None) as target:
        chat = source.session("alice", "chat")
        await chat.append(
            [user("The ferry leaves at nine"), user("Nothing else"), user("The bridge is closed")]
        )
        await chat.flush()
        await source.settle()
        for query in ("ferry nine", "bridge closed", "bridge closed"):
            assert await source.user("alice").recall(query, limit=1)
        before = (await source.user("alice").inspect()).accesses
        assert (await chat.delete(positions=0)).deleted == 1
        await source.settle()
        await source.export(tmp_path / "export.jsonl")
        await target.import_(tmp_path / "export.jsonl")
        after = (await target.user("alice").inspect()).accesses
        old, new = row_id(chat.key, 3), row_id(chat.key, 2)
        assert after[new] == before[old]
        assert after.keys() == {
            row_id(chat.key, seq - 1) for seq in (2, 3) if row_id(chat.key, seq) in before
        }


async def test_what_long_term_memory_lacked_it_still_lacks() -> None:
    """S1.14, S4.37, S4.41: messages that were cleared unflushed, or pruned, are not recallable
    after an import either.
    """
    async with opened(None) as source, opened(None) as target:
        chat = source.session("alice", "chat")
        await chat.append([user("the oldest ferry"), user("a ferry of old")])
        await chat.flush()
        await source.settle()
        await source.user("alice").prune(keep=1, strategy="fifo")
        await source.settle()
        await chat.append([user("the ferry that was cleared")])
        await chat.clear()
        await chat.append(user("the ferry of today"))
        await chat.flush()
        await source.settle()
        wanted = ["a ferry of old", "the ferry of today"]
        assert await recalled(source, "ferry") == wanted
        copy = await copied(chat, target)
        assert await recalled(target, "ferry") == wanted
        assert len(await copy.history()) == 4
        assert (await target.counts()).dead_jobs == 0


async def test_summary_entries_come_along() -> None:
    """S2.04, S4.37: entries in the list are in the list, those that left it are recallable, and
    both are exported again.
    """
    policy = BufferPolicy(above_messages=2, batch=2, fold="entry", entries=3)
    async with opened(None, policy=policy) as source, opened(None, policy=policy) as target:
        chat = source.session("alice", "chat")
        for number in range(30):
            await chat.append(user(f"Sentence number {number} about ferries."))
            await chat.settle()
        export = await chat.export()
        assert [one for one in export.state_items if one.kind == "entry"], "entries left the list"
        assert export.summaries
        await copied(chat, target)
        there, here = [
            sorted(await (await runtime.internals.long_term()).row_ids())
            for runtime in (source, target)
        ]
        assert here == there


async def test_vector_blocks_are_shown_everything_again() -> None:
    """S3.15, S4.37: rows of a block are not exported; where they were in long-term memory the block
    makes them anew.
    """
    options: dict[str, Any] = {
        "blocks": [VectorMemoryBlock(similarity_top_k=1)],
        "policy": BLOCK_POLICY,
    }
    async with opened(None, **options) as source, opened(None, **options) as target:
        chat = source.session("alice", "chat")
        for text in ("The ferry leaves at nine", "The key is under the pot", "one", "two"):
            await chat.append(user(text))
        await chat.settle()
        copy = await target.user("alice").import_session(await chat.export())
        await copy.settle()
        for one in (chat, copy):
            await one.append(user("when does the ferry leave?"))
            await one.settle()
            assert "The ferry leaves at nine" in str((await one.load()).messages)


async def test_everything_of_a_user_comes_along(tmp_path: Path) -> None:
    """S4.37: working memory, synopsis, memories and grants; embedded anew where another embedder
    made the vectors.
    """
    for embedder in (HashEmbedder(), HashEmbedder(96)):
        path = tmp_path / f"{embedder.name}.jsonl"
        async with opened(None) as source, opened(None, embedder=embedder) as target:
            alice = source.user("alice")
            await alice.remember("Prefers metric units", type="preference", importance=0.8)
            await alice.learn(
                ["The ferry leaves at nine", "The key is under the pot"], source="tool:search"
            )
            await source.session("alice", "chat").append(user("I live in Faro and like bees."))
            synopsis = await alice.synopsis()
            await source.shared("team").as_("ann").grant("bo", "write")
            await source.shared("team").as_("bo").remember("The build is green")
            await source.settle()
            await source.export(path)
            await target.import_(path)
            await target.settle()
            there = target.user("alice")
            assert await there.memories() == await alice.memories()
            found, wanted = [
                [(hit.text, hit.source, hit.created_at) for hit in hits]
                for hits in [await one.search_working("ferry", limit=2) for one in (there, alice)]
            ]
            assert found == wanted
            assert (await there.synopsis()).identity == synopsis.identity
            (hit,) = await target.shared("team").as_("bo").recall("build")
            assert hit.text == "The build is green"


async def test_what_is_there_already_stays(tmp_path: Path) -> None:
    """S4.37: sessions that exist are refused before anything is written, or skipped; a user's own
    things are not replaced.
    """
    path = tmp_path / "export.jsonl"
    async with opened(None) as source, opened(None) as target:
        for name in ("one", "two"):
            await source.session("alice", name).append(user(f"source {name}"))
        await source.user("alice").remember("Prefers metric units", importance=0.8)
        await source.export(path)
        await target.session("alice", "two").append(user("target two"))
        await target.user("alice").remember("Prefers  metric units", importance=0.3)
        with pytest.raises(InvalidInput, match=SessionKey("alice", "two").words) as caught:
            await target.import_(path)
        assert "skip_existing=True" in str(caught.value)
        assert [one.key.session for one in await target.user("alice").sessions()] == ["two"]
        report = await target.import_(path, skip_existing=True)
        assert report == TransferReport(sessions=1, messages=1, users=1, memories=0, skipped=1)
        for name, text in {"one": "source one", "two": "target two"}.items():
            assert await said_in(target.session("alice", name)) == [user(text)]
        await target.settle()
        (memory,) = await target.user("alice").memories()
        assert memory.importance == pytest.approx(0.3)
        again = await target.import_(path, skip_existing=True)
        assert (again.sessions, again.skipped) == (0, 2)
        await target.settle()
        assert (await target.counts()).dead_jobs == 0


async def test_values_that_json_does_not_know(tmp_path: Path) -> None:
    """S4.37: bytes, times, numbers as keys, not-a-number and big numbers come back as they were, in
    either form.
    """
    odd = {
        "bytes": b"\x00\xff",
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "keys": {1: "one"},
        "big": 2**63,
        "text": "\u2028🐝",
    }
    for form in FORMS:
        async with opened(None) as source, opened(None) as target:
            chat = source.session("alice", "chat")
            await chat.append(user("odd", metadata=odd, x_extra={"raw": b"\x01"}))
            await chat.append(
                user("nan", metadata={"nan": float("nan"), "float": 1.0, "int": 1, "yes": True})
            )
            await chat.append(
                Message(role="user", content="extra", extra={"seq": 5, "id": "inner"})
            )
            await source.export(tmp_path / form)
            await target.import_(tmp_path / form)
            before, after = await chat.history(), await target.session("alice", "chat").history()
            assert [repr(one) for one in after] == [repr(one) for one in before]
            assert after[0].metadata == odd
            assert after[0].extra == {"x_extra": {"raw": b"\x01"}}


async def test_an_export_is_whole_or_not_there(tmp_path: Path) -> None:
    """G4, S4.37: an existing target is refused or replaced, an export that fails leaves nothing,
    and names must make sense.
    """
    async with opened(None) as source:
        await source.session("alice", "one").append(user("hello"))
        for form in FORMS:
            path = tmp_path / form
            await source.export(path)
            before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
            with pytest.raises(InvalidInput, match="exists already"):
                await source.export(path)

            def failing(done: int, total: int) -> None:
                raise RuntimeError("the bar broke")

            with pytest.raises(RuntimeError, match="the bar broke"):
                await source.export(path, overwrite=True, progress=failing)
            after = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
            assert after == before
            await source.export(path, overwrite=True)
        assert sorted(one.name for one in tmp_path.iterdir()) == ["export", "export.jsonl"]
        for wrong in ("export.json", "export.parquet", "a.csv"):
            with pytest.raises(InvalidInput, match=r"\.jsonl, or a directory"):
                await source.export(tmp_path / wrong)
        with pytest.raises(InvalidInput, match="no directory"):
            await source.export(tmp_path / "absent" / "export.jsonl")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows bounds no file")
@pytest.mark.parametrize("name", FORMS)
async def test_an_export_that_the_disk_refuses_leaves_nothing(tmp_path: Path, name: str) -> None:
    """S4.25: the error names the file, and no part of a conversation is left beside it."""
    import resource  # noqa: PLC0415  # not on Windows

    noise = random.Random(7)
    async with opened(None) as runtime:
        texts = [base64.b64encode(noise.randbytes(3_000)).decode() for _ in range(200)]
        await runtime.session("alice", "one").append([user(text) for text in texts])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StorageError, match=f"{name} cannot be written"):
                await runtime.export(tmp_path / name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not any(tmp_path.iterdir())


async def test_an_export_is_consistent_although_appends_go_on(tmp_path: Path) -> None:
    """S4.37, G1, G4: each session in the file is a prefix of its history, whole batches of it,
    while ten writers go on.
    """
    async with opened(None) as source, opened(None) as target:
        stop = anyio.Event()

        async def write(name: str) -> None:
            number = 0
            while not stop.is_set():
                await source.session("alice", name).append(
                    [user(f"{name} {number}"), user(f"{name} {number + 1}")]
                )
                number += 2

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(write, f"s{number}")

            async def written() -> bool:
                return (await source.counts()).messages >= 400

            await until(written, "appends go on")
            report = await source.export(tmp_path / "export.jsonl")
            stop.set()
        assert report.sessions == 10
        await target.import_(tmp_path / "export.jsonl")
        for number in range(10):
            said = [one.content for one in await target.session("alice", f"s{number}").history()]
            assert said == [f"s{number} {place}" for place in range(len(said))]
            assert len(said) % 2 == 0


Record = dict[str, Any]
Edit = Callable[[list[str]], list[str]]


def edited(change: Callable[[list[Record]], Any]) -> Edit:
    def edit(lines: list[str]) -> list[str]:
        rows = [json.loads(line) for line in lines]
        change(rows)
        return [json.dumps(row) for row in rows]

    return edit


def changed(line: int, **values: Any) -> Edit:
    return edited(lambda rows: rows[line - 1].update(values))


def last(kind: str, change: Callable[[Record], Any]) -> Edit:
    """Change what comes last of its kind, after sessions and users that are sound."""
    return edited(
        lambda rows: change([one for one in rows if kind in (one["type"], one.get("kind"))][-1])
    )


def message(**values: Any) -> Edit:
    return last("message", lambda record: record.update(values))


def memory(**values: Any) -> Edit:
    return last("memory", lambda record: record["memory"].update(values))


def working(**values: Any) -> Edit:
    def change(record: Record) -> None:
        item = msgspec.msgpack.decode(base64.b64decode(record["value"]))
        encoded = msgspec.msgpack.encode({**item, **values})
        record["value"] = base64.b64encode(encoded).decode()

    return last("working", change)


def text(**values: Any) -> Record:
    return {"role": "user", "content": "x", **values}


SUMMARY = {"through": 2, "prefix": "", "text": "x", "tokens": 1, "degraded": False, "model": "m"}
END = 20
BROKEN: list[tuple[str, int | None, Edit]] = [
    ("no JSON", 3, lambda lines: [*lines[:2], "{broken", *lines[3:]]),
    ("an empty line", 3, lambda lines: [*lines[:2], "", *lines[3:]]),
    ("an unknown type", 3, changed(3, type="robot")),
    ("a field of another type", 3, changed(3, seq="one")),
    ("a field that is missing", 3, edited(lambda rows: rows[2].pop("id"))),
    ("a message of another session", 3, changed(3, session="other")),
    ("a message that is none", 2, edited(lambda rows: rows[2]["chat"].update(role="robot"))),
    ("a number out of order", 2, changed(4, seq=7)),
    ("an importance", 2, changed(3, importance=3.0)),
    ("a front beyond the end", 2, changed(2, front=9)),
    ("a summary beyond the front", 2, changed(2, summary=SUMMARY)),
    ("an id", 2, changed(3, id="line\nbreak")),
    ("a user's name", 2, edited(lambda rows: [row.update(user="") for row in rows[1:4]])),
    ("a session twice", 5, lambda lines: [*lines[:4], *lines[1:-1], '{"type":"end","lines":22}']),
    ("the end cut off", END, lambda lines: lines[:-1]),
    ("a line that is missing", END - 1, lambda lines: [*lines[:3], *lines[4:]]),
    ("more after the end", END + 1, lambda lines: [*lines, lines[1]]),
    ("no header", 1, lambda lines: lines[1:]),
    ("a newer format", 1, changed(1, format=99)),
    ("another file altogether", 1, lambda _: ["PK\x03\x04"]),
    ("an empty file", 1, lambda _: []),
    ("a message too late", None, message(created_at="9999-12-31T23:59:59.999999Z")),
    ("a message's metadata", None, message(metadata={"number": 2**70})),
    ("a message's id", None, message(chat=text(id=2**70))),
    ("a message's field", None, message(chat=text(number=-(2**70)))),
    ("a memory too late", None, memory(created_us=2**62)),
    ("a memory of no time", None, memory(created_us=2**70)),
    ("a memory's importance", None, memory(importance=2**70)),
    ("an item too late", None, working(at_us=2**63)),
    ("an item's tokens", None, working(tokens=2**64 - 1)),
    ("an item too large", None, working(text="x" * 30_000)),
    ("a synopsis", None, last("synopsis", lambda row: row.update(name="2026-01-01T00:00:00Z"))),
]


async def test_of_a_malformed_import_nothing_is_written(tmp_path: Path) -> None:
    """S4.37: whatever is wrong with a file, the error says where, and the runtime is as it was:
    what cannot be written is found before anything is written.
    """
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    small = Config.from_dict({"working": {"max_memory_mb": 0.02}, "synopsis": {"shown": "always"}})
    async with opened(None) as source, opened(None, config=small) as target:
        for name, session in (("alice", "one"), ("bob", "two")):
            await source.session(name, session).append([user("m1"), user("m2")])
            await source.user(name).remember("likes tea")
            await source.user(name).learn("a ticket costs ten euros")
            assert (await source.user(name).synopsis()).state == "ok"
        await source.export(good)
        lines = good.read_text().splitlines()
        assert len(lines) == END
        for what, line, edit in BROKEN:
            bad.write_text("".join(one + "\n" for one in edit(lines)))
            with pytest.raises(InvalidExport) as caught:
                await target.import_(bad)
            if line is not None:
                assert caught.value.line == line, (what, str(caught.value))
                assert f"line {line}" in str(caught.value), what
            counts = await target.counts()
            assert (counts.sessions, counts.messages, counts.memories) == (0, 0, 0), what
        assert (await target.import_(good)).sessions == 2


async def test_a_bad_vector_is_made_again(tmp_path: Path) -> None:
    """Working memory whose vectors are damaged is embedded again, and can be searched."""
    path, said = tmp_path / "export.jsonl", "a ticket costs ten euros"
    async with opened(None, embedder=HashEmbedder(16)) as source:
        await source.user("ada").learn(said)
        await source.export(path)
    lines = path.read_text().splitlines()
    for vector in (b"", b"x", b"\0" * 60, b"\xff" * 64, b"\0\0\x80\x7f" * 16):
        path.write_text("".join(one + "\n" for one in working(vector=vector)(lines)))
        async with opened(None, embedder=HashEmbedder(16)) as target:
            await target.import_(path)
            (found,) = await target.user("ada").search_working(said)
            assert found.text == said, vector
            assert found.score == pytest.approx(1, abs=1e-3), vector


async def test_malformed_tables_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    """S4.37: a missing file, a missing column, rows out of order, a table of somebody else's."""
    async with opened(None) as source, opened(None) as target:
        await source.session("alice", "one").append([user("m1"), user("m2")])
        await source.user("alice").remember("Prefers metric units")

        def table(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
            def write(path: Path) -> None:
                file = path / f"{name}.parquet"
                pq.write_table(change(pq.read_table(file)), file, compression="zstd")

            return write

        cases: list[tuple[Callable[[Path], object], str]] = [
            (lambda path: (path / "users.parquet").unlink(), "users.parquet"),
            (table("messages", lambda rows: rows.take([1, 0])), "begins at line 1"),
            (
                table("memories", lambda rows: rows.set_column(0, "user", [["bob"]])),
                "memories.parquet, row 1",
            ),
            (table("messages", lambda rows: rows.slice(0, 1)), "1 messages here, not 2"),
            # a few kilobytes of file, gigabytes of messages: they are not read to the end
            (
                table("messages", lambda rows: rows.take(np.repeat([0, 1], 500_000))),
                "more than 2 messages here, not 2",
            ),
            (table("sessions", lambda rows: rows.drop_columns(["front"])), "no column front"),
            (
                lambda path: (path / "facets.parquet").write_bytes(b"this is no table"),
                "facets.parquet",
            ),
            (
                table("sessions", lambda rows: rows.replace_schema_metadata({})),
                "not written by remora",
            ),
        ]
        for number, (harm, told) in enumerate(cases):
            path = tmp_path / f"export-{number}"
            await source.export(path)
            harm(path)
            with pytest.raises(InvalidExport) as caught:
                await target.import_(path)
            assert told in str(caught.value)
            assert (await target.counts()).messages == 0
        with pytest.raises(InvalidInput, match="cannot be read"):
            await target.import_(tmp_path / "absent.jsonl")


async def test_tables_are_of_use_to_others(tmp_path: Path) -> None:
    """S4.37: the Parquet files hold typed columns that any reader understands."""
    async with opened(None) as source:
        await conversation(source.session("alice", "chat"), 3)
        await source.user("alice").remember("Prefers metric units", type="preference")
        await source.export(tmp_path / "export")
    messages = pq.read_table(tmp_path / "export" / "messages.parquet")
    assert str(messages.schema.field("created_at").type) == "timestamp[us, tz=UTC]"
    assert messages.column("seq").to_pylist() == list(range(1, len(messages) + 1))
    assert json.loads(messages.column("chat")[0].as_py())["content"].startswith("Question 0 of 3")
    assert pq.read_table(tmp_path / "export" / "memories.parquet").column("type").to_pylist() == [
        "preference"
    ]


async def test_redaction_stands_at_this_door_too(tmp_path: Path) -> None:
    """S4.43, S4.37: no text of an import passes the hook, in whatever it stands: messages,
    metadata, summaries, memories, working memory, the synopsis, a block's facts.
    """
    path, copied_again = tmp_path / "export.jsonl", tmp_path / "copy.jsonl"

    def hide(text: str) -> str:
        if "POISON" in text:
            raise ValueError(text)
        return text.replace("Lisbon", "[city]").replace("4111-1111", "")

    async def model(_: str) -> str:
        return "<fact>The harbour is Lisbon.</fact>"

    def with_facts(**options: Any) -> Runtime:
        blocks = [FactExtractionMemoryBlock(name="facts")]
        return opened(None, chat_model=model, blocks=blocks, **options)

    async with with_facts() as source:
        alice, chat = source.user("alice"), source.session("alice", "chat")
        for number in range(40):
            said = user(f"I moved to Lisbon, part {number}.", metadata={"where": "Lisbon"})
            await chat.append(said)
        await alice.remember("Lives in Lisbon")
        await alice.learn("a ticket to Lisbon", session="chat")
        await alice.learn("4111-1111", session="chat")  # nothing is left of it
        await source.settle()
        assert "Lisbon" in str((await chat.load()).summary)
        assert "Lisbon" in (await alice.synopsis()).identity
        await source.export(path)
    kinds = {json.loads(line).get("kind") for line in path.read_text().splitlines()}
    assert {"working", "synopsis", "block"} <= kinds

    async with with_facts(redact=hide) as target:
        alice = target.user("alice")
        await target.import_(path)
        await target.settle()
        assert "[city]" in str((await target.session("alice", "chat").load()).summary)
        assert "Lives in [city]" in [one.text for one in await alice.recall("city", types="fact")]
        (found,) = await alice.search_working("a ticket to [city]", session="chat", limit=9)
        assert found.text == "a ticket to [city]"
        assert found.score == pytest.approx(1, abs=1e-3)
        assert (await alice.synopsis()).identity
        bad = SessionExport("alice", "bad", (exported(chat=user("POISON")),), 0, 0, None, (), ())
        with pytest.raises(RedactionFailed):
            await alice.import_session(bad)
        assert [one.key.session for one in await alice.sessions()] == ["chat"]
        await target.export(copied_again)
    records = [json.loads(line) for line in copied_again.read_text().splitlines()]
    texts = "".join(
        str(base64.b64decode(one["value"])) if "value" in one else str(one) for one in records
    )
    assert "The harbour is [city]." in texts
    assert "4111-1111" not in texts
    assert "Lisbon" not in texts


def exported(**fields: Any) -> MessageExport:
    """The first message of a session, as it is exported."""
    sound = MessageExport(1, "i", datetime.now(UTC), 1, 0.5, user("hello"))
    return msgspec.structs.replace(sound, **fields)


async def test_what_cannot_be_a_session_is_refused() -> None:
    """S3.28: an export that was made up or changed is checked like anything else that comes in."""
    async with opened(None) as runtime:
        alice = runtime.user("alice")
        good = SessionExport("x", "s", (exported(),), 0, 0, None, (), ())
        timeless = exported(created_at=datetime(2024, 1, 1))  # noqa: DTZ001
        for changes, error in (
            ({"messages": ()}, InvalidInput),
            ({"messages": (exported(seq=2),)}, InvalidInput),
            ({"messages": (exported(chat={"role": "robot"}),)}, InvalidMessage),
            ({"messages": (timeless,)}, InvalidInput),
            ({"flushed": 2}, InvalidInput),
        ):
            with pytest.raises(error):
                await alice.import_session(msgspec.structs.replace(good, **changes))
        assert await alice.sessions() == []
        await alice.import_session(good)


async def test_export_arrow() -> None:
    """S2.17: exactly these columns, with their defaults and what must not be null; figures of
    access; nobody else's rows.
    """
    async with opened(None) as runtime:
        alice = runtime.user("alice")
        (known,) = await alice.remember(
            "Prefers metric units", type="preference", importance=0.8, session="chat"
        )
        await alice.remember("Keeps bees", type="fact")
        await runtime.user("bob").remember("Keeps cats")
        await runtime.settle()
        await alice.recall("metric units", limit=1)
        table = await alice.export_arrow()
        assert table.column_names == [
            "id",
            "user_id",
            "session_id",
            "content",
            "embedding",
            "memory_type",
            "importance",
            "created_at",
            "accessed_at",
            "access_count",
        ]
        rows = {row["id"]: row for row in table.to_pylist()}
        assert len(rows) == 2
        other, wanted = next(one for id_, one in rows.items() if id_ != known), rows[known]
        for row, expected in (
            (wanted, ("alice", "chat", "Prefers metric units", "preference", 0.8, 1)),
            (other, ("alice", None, "Keeps bees", "fact", 0.5, 0)),
        ):
            names = ("user_id", "session_id", "content", "memory_type", "importance")
            found = (*(row[name] for name in names), row["access_count"])
            assert found == tuple(
                pytest.approx(one) if isinstance(one, float) else one for one in expected
            )
        assert wanted["accessed_at"] >= wanted["created_at"]
        assert other["accessed_at"] is None
        vector = (await HashEmbedder().embed(["Prefers metric units"]))[0]
        assert wanted["embedding"] == pytest.approx(
            list(vector / (vector**2).sum() ** 0.5), abs=1e-6
        )
        assert not table.schema.field("user_id").nullable
        assert not table.schema.field("content").nullable
        assert (await runtime.user("carol").export_arrow()).num_rows == 0
        assert (await alice.export_arrow(types="fact")).num_rows == 1
    config = Config.from_dict({"models": {"embedder": "none"}, "tokens": {"counter": "heuristic"}})
    async with Runtime.in_memory(config=config) as plain:
        await plain.user("alice").remember("Keeps bees")
        await plain.settle()
        assert (await plain.user("alice").export_arrow()).column("embedding").to_pylist() == [None]


async def test_append_many() -> None:
    """S4.40: many sessions at once, results in order; what is refused keeps nothing else out; a
    session's order holds.
    """
    async with opened(None) as runtime:
        one, two = runtime.session("alice", "one"), runtime.session("bob", "two")
        results = await runtime.append_many(
            [
                (one, user("m1"), "k1"),
                (two, [user("m2"), user("m3")], None),
                (one, dict[str, Any](role="robot", content="x"), None),
                (one, user("m1"), "k1"),
                *((one, user(f"n{number}"), None) for number in range(50)),
            ],
            concurrency=4,
        )
        assert [getattr(result, "seqs", None) for result in results[:4]] == [
            (1,),
            (1, 2),
            None,
            (1,),
        ]
        assert isinstance(results[2], InvalidMessage)
        assert [one.content for one in await one.history()] == [
            "m1",
            *(f"n{number}" for number in range(50)),
        ]
        assert await runtime.append_many([]) == []
        with pytest.raises(InvalidInput):
            await runtime.append_many([], concurrency=0)


async def test_json_that_nests_too_deep() -> None:
    """S3.28: it is invalid input, like other JSON that is no session; Python 3.14 reads more depth,
    and then finds no messages in it.
    """
    async with Runtime.in_memory() as runtime:
        for depth in (1_100, 100_000):
            text = '{"messages": ' + "[" * depth + "]" * depth + "}"
            with pytest.raises((InvalidInput, InvalidMessage)):
                await BufferMemory.from_json(text, runtime.session("ada", "chat"))


async def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    """To read one could take for ever, and could not be cancelled."""
    os.mkfifo(tmp_path / "pipe")
    async with opened(None) as runtime:
        with pytest.raises(InvalidInput, match="regular file"):
            await runtime.import_(tmp_path / "pipe")
