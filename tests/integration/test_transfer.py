"""Export and import: whatever a runtime holds stands in another one as it was, by JSON lines and by
Parquet.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from remora import BufferPolicy, Config, Message, Runtime, Session
from remora.blocks import BaseMemoryBlock, VectorMemoryBlock
from remora.errors import InvalidExport, InvalidId, InvalidInput, InvalidMessage, RedactionFailed
from remora.ids import SessionKey, UserKey, row_id
from remora.testing import HashEmbedder
from remora.transfer import MessageExport, SessionExport, TransferReport
from tests.harness import user

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and write files

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "long_term": {"batch_ms": 1, "compact_fragments": 1},
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 60},
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
    recalled = await runtime.user(key.user).recall(
        f"which ferries and bridges of {key.session}", limit=8
    )
    return (
        context.messages,
        context.tokens,
        context.summary,
        await chat.history(),
        [(one.text, one.session, one.seq, one.created_at, round(one.score, 4)) for one in recalled],
    )


async def compacted(runtime: Runtime) -> None:
    await runtime.settle()
    await (await runtime.internals.long_term()).compact()


@pytest.mark.parametrize("form", FORMS)
async def test_a_hundred_sessions_are_the_same_elsewhere(tmp_path: Path, form: str) -> None:
    """S4.37, S4.25, S4.38, S3.32: load, history and recall, scores too, of 100 sessions; media are
    kept, and counted.
    """
    keys = [SessionKey(f"user-{number % 20}", f"s{number}") for number in range(100)]
    async with opened(tmp_path / "one") as source, opened(tmp_path / "two") as target:
        for number, key in enumerate(keys):
            await conversation(source.session(*key), number)
            await source.session(*key).flush()
        await source.user("user-1").remember(
            ["Prefers metric units", "Was born in Faro"], type="preference", importance=0.8
        )
        await compacted(source)
        steps: list[tuple[int, int]] = []
        report = await source.export(
            tmp_path / form, progress=lambda done, total: steps.append((done, total))
        )
        messages = (await source.counts()).messages
        assert (report.sessions, report.messages, report.memories) == (100, messages, 2)
        assert steps[-1] == (messages, messages)
        assert steps == sorted(steps)
        assert await target.import_(tmp_path / form) == report
        await compacted(target)
        assert sorted(await (await target.internals.long_term()).row_ids()) == sorted(
            await (await source.internals.long_term()).row_ids()
        )
        for key in keys:
            there = await shown(target, key)
            assert there == await shown(source, key)
            assert there[4], "something was recalled"
            assert await target.session(*key).export() == await source.session(*key).export()
        assert await target.user("user-1").memories() == await source.user("user-1").memories()
        with_media = next(
            one for one in await target.session(*keys[0]).history() if isinstance(one.content, list)
        )
        assert with_media.content is not None
        assert with_media.content[1:] == [IMAGE, AUDIO]
        assert target.message_tokens(with_media) > 2 * CONFIG.tokens.image_tokens - 1


@pytest.mark.parametrize("form", FORMS)
async def test_the_other_form_says_the_same(tmp_path: Path, form: str) -> None:
    """S4.37: what was imported from one form and exported again is, but for the header, the file
    that it came from.
    """
    async with opened(None) as source:
        for number in range(3):
            await conversation(source.session(f"u{number}", "s"), number)
        await source.user("u1").remember("Prefers metric units")
        await source.user("u1").learn("The ferry leaves at nine")
        await source.settle()
        await source.export(tmp_path / form)
        await source.export(tmp_path / "wanted.jsonl")
    async with opened(None) as middle:
        await middle.import_(tmp_path / form)
        await middle.settle()
        await middle.export(tmp_path / "found.jsonl")
    wanted, found = (
        (tmp_path / f"{name}.jsonl").read_text().splitlines()[1:] for name in ("wanted", "found")
    )
    assert sorted(found) == sorted(wanted)


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
        assert [one.to_chat() for one in await same.history()] == [
            one.to_chat() for one in await chat.history()
        ]
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
        export = await chat.export()
        assert [
            state_item.name for state_item in export.state_items if state_item.kind == "block"
        ] == ["counting"]
        copy = await target.user("alice").import_session(export)
        await copy.settle()
        assert await copy.export() == export
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
        assert await chat.delete(0) == 1
        for number in range(5, 10):
            await chat.append(user(f"m{number} about ferries"))
            await chat.settle()
        assert await chat.rewind(8) == 1
        await chat.flush()
        await source.settle()
        found = {one.text for one in await source.user("alice").recall("m8 ferries", limit=20)}
        export = await chat.export()
        assert [one.seq for one in export.messages] == list(range(1, len(export.messages) + 1))
        view = await chat.inspect()
        buffered = [one.chat["content"] for one in export.messages[export.front :]]
        assert buffered == [one.content for one in await chat.get_messages()]
        assert view.summary is not None
        assert export.summary is not None
        assert export.summary.through == export.front
        assert export.summary.text == view.summary.text
        copy = await target.user("alice").import_session(export)
        await target.settle()
        assert await copy.export() == export
        assert [one.to_chat() for one in await copy.history()] == [
            one.to_chat() for one in await chat.history()
        ]
        assert (await copy.load()).messages == (await chat.load()).messages
        assert {
            one.text for one in await target.user("alice").recall("m8 ferries", limit=20)
        } == found


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
        assert await chat.delete(0) == 1
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
        assert (
            sorted(one.text for one in await source.user("alice").recall("ferry", limit=9))
            == wanted
        )
        copy = await target.user("alice").import_session(await chat.export())
        await target.settle()
        assert (
            sorted(one.text for one in await target.user("alice").recall("ferry", limit=9))
            == wanted
        )
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
        assert [state_item for state_item in export.state_items if state_item.kind == "entry"], (
            "entries have left the list"
        )
        assert export.summaries
        copy = await target.user("alice").import_session(export)
        await target.settle()
        assert await copy.export() == export
        rows = [
            sorted(await (await runtime.internals.long_term()).row_ids())
            for runtime in (source, target)
        ]
        assert rows[0] == rows[1]
        assert (await copy.load()).messages == (await chat.load()).messages


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
        assert "The ferry leaves at nine" in str((await chat.load()).messages)
        assert "The ferry leaves at nine" in str((await copy.load()).messages)


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
            assert [
                (hit.text, hit.source, hit.created_at)
                for hit in await there.search_working("ferry", limit=2)
            ] == [
                (hit.text, hit.source, hit.created_at)
                for hit in await alice.search_working("ferry", limit=2)
            ]
            assert (await there.synopsis()).identity == synopsis.identity
            assert [one.text for one in await target.shared("team").as_("bo").recall("build")] == [
                "The build is green"
            ]


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
        with pytest.raises(InvalidInput, match="alice/two for instance") as caught:
            await target.import_(path)
        assert "skip_existing=True" in str(caught.value)
        assert [one.key.session for one in await target.user("alice").sessions()] == ["two"]
        report = await target.import_(path, skip_existing=True)
        assert report == TransferReport(sessions=1, messages=1, users=1, memories=1, skipped=1)
        assert [one.content for one in await target.session("alice", "two").history()] == [
            "target two"
        ]
        assert [one.content for one in await target.session("alice", "one").history()] == [
            "source one"
        ]
        await target.settle()
        assert [one.importance for one in await target.user("alice").memories()] == [
            pytest.approx(0.3)
        ]
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
            before = (
                path.read_bytes() if path.is_file() else sorted(one.name for one in path.iterdir())
            )
            with pytest.raises(InvalidInput, match="exists already"):
                await source.export(path)

            def failing(done: int, total: int) -> None:
                raise RuntimeError("the bar broke")

            with pytest.raises(RuntimeError, match="the bar broke"):
                await source.export(path, overwrite=True, progress=failing)
            assert (
                path.read_bytes() if path.is_file() else sorted(one.name for one in path.iterdir())
            ) == before
            await source.export(path, overwrite=True)
        assert sorted(one.name for one in tmp_path.iterdir()) == ["export", "export.jsonl"]
        for wrong in ("export.json", "export.parquet", "a.csv"):
            with pytest.raises(InvalidInput, match=r"\.jsonl, or a directory"):
                await source.export(tmp_path / wrong)
        with pytest.raises(InvalidInput, match="no directory"):
            await source.export(tmp_path / "absent" / "export.jsonl")


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
            while (await source.counts()).messages < 400:
                await anyio.lowlevel.checkpoint()
            report = await source.export(tmp_path / "export.jsonl")
            stop.set()
        assert report.sessions == 10
        await target.import_(tmp_path / "export.jsonl")
        for number in range(10):
            said = [one.content for one in await target.session("alice", f"s{number}").history()]
            assert said == [f"s{number} {place}" for place in range(len(said))]
            assert len(said) % 2 == 0


def _edited(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[list[str]], list[str]]:
    def edit(lines: list[str]) -> list[str]:
        rows = [json.loads(line) for line in lines]
        change(rows)
        return [json.dumps(row) for row in rows]

    return edit


def _set(line: int, **values: Any) -> Callable[[list[str]], list[str]]:
    return _edited(lambda rows: rows[line - 1].update(values))


BROKEN: list[tuple[str, int, Callable[[list[str]], list[str]]]] = [
    ("no JSON", 3, lambda lines: [*lines[:2], "{broken", *lines[3:]]),
    ("an empty line", 3, lambda lines: [*lines[:2], "", *lines[3:]]),
    ("an unknown type", 3, _set(3, type="robot")),
    ("a field of another type", 3, _set(3, seq="one")),
    ("a field that is missing", 3, _edited(lambda rows: rows[2].pop("id"))),
    ("a message of another session", 3, _set(3, session="other")),
    ("a message that is none", 2, _edited(lambda rows: rows[2]["chat"].update(role="robot"))),
    ("a number out of order", 2, _set(4, seq=7)),
    ("an importance", 2, _set(3, importance=3.0)),
    ("a front beyond the end", 2, _set(2, front=9)),
    (
        "a summary beyond the front",
        2,
        _edited(
            lambda rows: rows[1].update(
                summary={
                    "through": 2,
                    "prefix": "",
                    "text": "x",
                    "tokens": 1,
                    "degraded": False,
                    "model": "m",
                }
            )
        ),
    ),
    ("an id", 2, _set(3, id="line\nbreak")),
    ("a user's name", 2, _edited(lambda rows: [row.update(user="") for row in rows[1:4]])),
    (
        "a session twice",
        5,
        lambda lines: [
            *lines[:4],
            *lines[1:-1],
            json.dumps({"type": "end", "lines": len(lines) + 2}),
        ],
    ),
    ("the end cut off", 8, lambda lines: lines[:-1]),
    ("a line that is missing", 7, lambda lines: [*lines[:3], *lines[4:]]),
    ("more after the end", 9, lambda lines: [*lines, lines[1]]),
    ("no header", 1, lambda lines: lines[1:]),
    ("a newer format", 1, _set(1, format=99)),
    ("another file altogether", 1, lambda _: ["PK\x03\x04"]),
    ("an empty file", 1, lambda _: []),
]


@pytest.mark.parametrize(("what", "line", "edit"), BROKEN, ids=[what for what, _, _ in BROKEN])
async def test_a_malformed_line_is_named_and_nothing_is_written(
    tmp_path: Path, what: str, line: int, edit: Callable[[list[str]], list[str]]
) -> None:
    """S4.37: whatever is wrong with a file, the error says where, and the runtime is as it was."""
    path = tmp_path / "export.jsonl"
    async with opened(None) as source, opened(None) as target:
        await source.session("alice", "one").append([user("m1"), user("m2")])
        await source.session("bob", "two").append([user("m3"), user("m4")])
        await source.export(path)
        lines = path.read_text().splitlines()
        assert len(lines) == 8
        path.write_text("".join(one + "\n" for one in edit(lines)))
        with pytest.raises(InvalidExport) as caught:
            await target.import_(path)
        assert caught.value.line == line, str(caught.value)
        assert f"line {line}" in str(caught.value)
        assert (await target.counts()).messages == 0


async def test_malformed_tables_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    """S4.37: a missing file, a missing column, rows out of order, a table of somebody else's."""
    async with opened(None) as source, opened(None) as target:
        await source.session("alice", "one").append([user("m1"), user("m2")])
        await source.user("alice").remember("Prefers metric units")

        def reordered(path: Path) -> None:
            table = pq.read_table(path / "messages.parquet")
            pq.write_table(table.take([1, 0]), path / "messages.parquet")

        def another(path: Path) -> None:
            table = pq.read_table(path / "memories.parquet")
            pq.write_table(table.set_column(0, "user", [["bob"]]), path / "memories.parquet")

        def shorter(path: Path) -> None:
            table = pq.read_table(path / "messages.parquet")
            pq.write_table(table.slice(0, 1), path / "messages.parquet")

        def a_million_times(path: Path) -> None:
            """A few kilobytes of file, gigabytes of messages: they are not read to the end."""
            table = pq.read_table(path / "messages.parquet")
            repeated = table.take(np.repeat([0, 1], 500_000))
            pq.write_table(repeated, path / "messages.parquet", compression="zstd")

        def without_a_column(path: Path) -> None:
            table = pq.read_table(path / "sessions.parquet")
            pq.write_table(table.drop_columns(["front"]), path / "sessions.parquet")

        def garbage(path: Path) -> None:
            (path / "facets.parquet").write_bytes(b"this is no table")

        def without_a_header(path: Path) -> None:
            table = pq.read_table(path / "sessions.parquet")
            pq.write_table(table.replace_schema_metadata({}), path / "sessions.parquet")

        cases = [
            (lambda path: (path / "users.parquet").unlink(), "users.parquet"),
            (reordered, "row 1"),
            (another, "memories.parquet, row 1"),
            (shorter, "1 messages here, not 2"),
            (a_million_times, "more than 2 messages here, not 2"),
            (without_a_column, "no column front"),
            (garbage, "facets.parquet"),
            (without_a_header, "not written by remora"),
        ]
        for number, (harm, text) in enumerate(cases):
            path = tmp_path / f"export-{number}"
            await source.export(path)
            harm(path)
            with pytest.raises(InvalidExport) as caught:
                await target.import_(path)
            if text == "row 1":
                assert "begins at line 1" in str(caught.value)
            else:
                assert text in str(caught.value)
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
    """S4.43, S4.37: messages, metadata, summaries and memories of an import go through the hook."""

    def hide(text: str) -> str:
        if "POISON" in text:
            raise ValueError(text)
        return text.replace("Lisbon", "[city]")

    path = tmp_path / "export.jsonl"
    async with opened(None) as source, opened(None, redact=hide) as target:
        chat = source.session("alice", "chat")
        for number in range(40):
            await chat.append(
                user(f"I moved to Lisbon, part {number}.", metadata={"where": "Lisbon"})
            )
        await source.user("alice").remember("Lives in Lisbon")
        await source.settle()
        assert "Lisbon" in str((await chat.load()).summary)
        await source.export(path)
        await target.import_(path)
        await target.settle()
        copy = target.session("alice", "chat")
        assert "Lisbon" not in str(await copy.history()) + str(await copy.load()) + str(
            await target.user("alice").memories()
        )
        assert "[city]" in str((await copy.load()).summary)
        assert [one.text for one in await target.user("alice").recall("city", types="fact")] == [
            "Lives in [city]"
        ]
        bad = SessionExport(
            "alice",
            "bad",
            (MessageExport(1, "x", datetime.now(UTC), 1, 0.5, user("POISON")),),
            0,
            0,
            None,
            (),
            (),
        )
        with pytest.raises(RedactionFailed):
            await target.user("alice").import_session(bad)
        assert [one.key.session for one in await target.user("alice").sessions()] == ["chat"]


async def test_what_cannot_be_a_session_is_refused() -> None:
    """S3.28: an export that was made up or changed is checked like anything else that comes in."""
    async with opened(None) as runtime:
        alice = runtime.user("alice")
        at = datetime.now(UTC)
        good = SessionExport(
            "x", "s", (MessageExport(1, "i", at, 1, 0.5, user("hello")),), 0, 0, None, (), ()
        )
        timeless = MessageExport(1, "i", at.replace(tzinfo=None), 1, 0.5, user("x"))
        wrong: list[tuple[SessionExport, type[Exception]]] = [
            (msgspec.structs.replace(good, messages=()), InvalidInput),
            (
                msgspec.structs.replace(
                    good, messages=(MessageExport(2, "i", at, 1, 0.5, user("x")),)
                ),
                InvalidInput,
            ),
            (
                msgspec.structs.replace(
                    good, messages=(MessageExport(1, "i", at, 1, 0.5, {"role": "robot"}),)
                ),
                InvalidMessage,
            ),
            (msgspec.structs.replace(good, messages=(timeless,)), InvalidInput),
            (msgspec.structs.replace(good, flushed=2), InvalidInput),
        ]
        for export, error in wrong:
            with pytest.raises(error):
                await alice.import_session(export)
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
        row = rows[known]
        assert (row["user_id"], row["session_id"], row["content"]) == (
            "alice",
            "chat",
            "Prefers metric units",
        )
        assert (row["memory_type"], row["importance"], row["access_count"]) == (
            "preference",
            pytest.approx(0.8),
            1,
        )
        assert row["accessed_at"] >= row["created_at"]
        other = next(one for id_, one in rows.items() if id_ != known)
        assert (
            other["importance"],
            other["access_count"],
            other["accessed_at"],
            other["session_id"],
        ) == (0.5, 0, None, None)
        vector = (await HashEmbedder().embed(["Prefers metric units"]))[0]
        assert row["embedding"] == pytest.approx(list(vector / (vector**2).sum() ** 0.5), abs=1e-6)
        assert not table.schema.field("user_id").nullable
        assert not table.schema.field("content").nullable
        assert (await runtime.user("carol").export_arrow()).num_rows == 0
        assert (await alice.export_arrow(types="fact")).num_rows == 1
    config = Config.from_dict(
        {
            "models": {"embedder": "none"},
            "tokens": {"counter": "heuristic"},
            "long_term": {"batch_ms": 1},
        }
    )
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


async def test_no_session_is_opened_for_a_user_of_an_import(tmp_path: Path) -> None:
    """S4.37: users without anything beside sessions are not in the export, and importing makes no
    actor of theirs.
    """
    async with opened(None) as source, opened(None) as target:
        await source.session("alice", "one").append(user("hello"))
        await source.export(tmp_path / "export.jsonl")
        await target.import_(tmp_path / "export.jsonl")
        assert UserKey("alice") not in {
            key for key, _ in await target.internals.journal.indexed_through()
        }
