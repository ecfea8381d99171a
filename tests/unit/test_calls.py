"""Calls between processes: arguments and results as bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import remora
from remora.actors.session.messages import TurnView
from remora.api.base import holder_of
from remora.cluster.calls import (
    CALLS,
    decode_arguments,
    decode_result,
    encode_arguments,
    encode_result,
    perform,
)
from remora.cluster.wire import UnreadableCall, WireError
from remora.errors import InvalidInput
from remora.messages import Entry
from remora.results import Job
from remora.services.metadata import MetadataFilter
from remora.storage.ports import Scope, SessionKey, UserKey
from remora.storage.records import FlushSpec
from remora.testing import HashEmbedder
from remora.transfer import MessageExport, SessionExport
from tests.golden import make_calls

pytestmark = pytest.mark.anyio
KEY = SessionKey("ada", "chat")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENTRY = Entry(1, 2, 3, "user", b"\x80")
JOB = Job("flush-7", "flush", KEY, FlushSpec(7, 1, 2), 3, 0.5, True, True, "disk full")


@pytest.fixture
async def runtime() -> AsyncIterator[remora.Runtime]:
    async with remora.Runtime.in_memory(embedder=HashEmbedder(8)) as opened:
        await opened.session("ada", "chat").append({"role": "user", "content": "tea, please"})
        await opened.user("ada").remember("likes tea")
        await opened.settle()
        yield opened


async def called(runtime: remora.Runtime, name: str, *positional: Any, **named: Any) -> Any:
    """What another process would get."""
    data = encode_arguments(name, *positional, **named)
    parts = holder_of(runtime).parts
    return await decode_result(name, await perform(name, data, parts=parts, verbs=runtime))


STARS = MetadataFilter((("stars", "$in", [1, "two", None]),))
CHAT_FACTS = Scope("chat", None, ("fact",))
GIVEN: list[tuple[str, dict[str, Any]]] = [
    (
        "archive.history",
        {
            "key": KEY,
            "include_archived": True,
            "at": None,
            "after": 2,
            "limit": 5,
            "attachments": True,
        },
    ),
    ("work.drain", {"key": KEY}),
    ("work.drain", {"key": UserKey("ada")}),
    ("archive.blobs", {"user": "ada", "digests": [b"\x01" * 32]}),
    ("archive.fork", {"key": KEY, "copy": SessionKey("ada", "copy"), "at": 3}),
    (
        "contexts.load",
        {
            "key": KEY, "budget": 100, "query": "tea", "override": [ENTRY], "about": None,
            "at": None, "turn": TurnView(1, 2, 3, (ENTRY,)), "timeout_s": 1.5,
        },
    ),
    (
        "recalls.recall",
        {"user": "ada", "query": "tea", "k": 3, "scope": CHAT_FACTS, "where": STARS},
    ),
    ("runtime.backup", {"dest": Path("there")}),
    ("runtime.ready", {"timeout_s": None}),
]  # fmt: skip


def test_arguments_arrive_as_they_were_given() -> None:
    """With the port's defaults; those of a later release are read as far as they are known."""
    for name, given in GIVEN:
        found = decode_arguments(name, encode_arguments(name, **given))
        assert found == given, name
        assert [type(found[one]) for one in given] == [type(value) for value in given.values()]
    found = decode_arguments("contexts.load", encode_arguments("contexts.load", KEY, 100))
    assert found["query"] is None
    with pytest.raises(TypeError):
        encode_arguments("contexts.load", KEY)
    for sent, session in ((["ada"], None), (["ada", "chat", "later"], "chat")):
        found = decode_arguments("work.forget", msgspec.msgpack.encode(sent))
        assert found == {"user": "ada", "session": session}
    with pytest.raises(UnreadableCall):
        decode_arguments("work.forget", msgspec.msgpack.encode([]))


def test_garbage_is_no_call() -> None:
    for name in CALLS:
        for data in (b"", b"\xc1", b"\xa1x", msgspec.msgpack.encode({"a": 1})):
            with pytest.raises(WireError):
                decode_arguments(name, data)
    for name in ("runtime.aclose", "archive._journal", "turns.watch", "", "runtime.__init__"):
        with pytest.raises(WireError):
            encode_arguments(name)


async def test_a_long_list_arrives_whole_and_in_order() -> None:
    """In parts, between which others have their turn; jobs with their keys and payloads."""
    for key in (KEY, UserKey("ada")):
        job = msgspec.structs.replace(JOB, key=key)
        data = await encode_result("runtime.dead_letters", [job])
        (found,) = await decode_result("runtime.dead_letters", data)
        assert (found, type(found.key)) == (job, type(key))
    for number in (0, 1, 999, 1_000, 1_001, 2_500):
        jobs = [msgspec.structs.replace(JOB, id=str(n)) for n in range(number)]
        data = await encode_result("runtime.dead_letters", jobs)
        assert await decode_result("runtime.dead_letters", data) == jobs
        with pytest.raises(WireError):
            await decode_result("runtime.dead_letters", data[:-1])


async def test_a_long_session_arrives_whole_and_in_order() -> None:
    call, said = CALLS["transfers.import_session"], {"role": "user", "content": "tea"}
    for number in (0, 1, 1_000, 2_500):
        messages = tuple(
            MessageExport(n, f"msg_{n}", NOON, 9, 0.5, said, {"a": n}) for n in range(1, number + 1)
        )
        export = SessionExport("ada", "chat", messages, 0, number, None, (), ())
        data = await encode_result("transfers.export_session", export)
        assert await decode_result("transfers.export_session", data) == export
        data = encode_arguments("transfers.import_session", export, KEY)
        given = {"export": export, "key": KEY}
        assert decode_arguments("transfers.import_session", data) == given
        assert await call.decode_arguments_slowly(data) == given
        with pytest.raises(WireError):
            await call.decode_arguments_slowly(data[:-3])
    nothing = await encode_result("transfers.export_session", None)
    assert await decode_result("transfers.export_session", nothing) is None


def test_calls_are_added_and_never_changed() -> None:
    """Workers and owners of different releases, with one version of the protocol, agree.

    After adding one: ``python -m tests.golden.make_calls``.
    """
    golden = json.loads(make_calls.file().read_text())
    assert set(CALLS) == set(golden)
    for name, known in golden.items():
        assert make_calls.shape(CALLS[name]) == known, f"{name}: does it need another WIRE?"


async def test_results_are_those_of_the_method(runtime: remora.Runtime) -> None:
    session, user = runtime.session("ada", "chat"), runtime.user("ada")
    found = await called(runtime, "archive.history", KEY, include_archived=True, at=None)
    assert found == await session.history()
    assert await called(runtime, "archive.stats", KEY) == await session.stats()
    assert await called(runtime, "archive.counts", None) == await runtime.counts()
    context = await called(runtime, "contexts.load", KEY, 1_000, "tea")
    assert [one.text for one in context.memories] == ["likes tea"]
    table = await called(runtime, "recalls.arrow_table", "ada", Scope())
    assert table.equals(await user.export_arrow())
    assert await called(runtime, "runtime.reembedding") is None
    statistics = await called(runtime, "runtime.statistics")
    assert statistics == runtime.statistics()
    export = await called(runtime, "transfers.export_session", KEY)
    assert export == await session.export()
    assert await called(runtime, "work.drain", UserKey("ada")) is None
    assert (await called(runtime, "work.forget", "ada", None)).journal["messages"] == 1


async def test_progress_and_errors_are_those_of_the_method(
    runtime: remora.Runtime, tmp_path: Path
) -> None:
    parts = holder_of(runtime).parts
    told: list[tuple[int, int]] = []
    data = encode_arguments("runtime.export", tmp_path / "all.jsonl")
    await perform(
        "runtime.export",
        data,
        parts=parts,
        verbs=runtime,
        progress=lambda done, all_: told.append((done, all_)),
    )
    assert told[-1] == (1, 1)
    with pytest.raises(InvalidInput, match="exists"):
        await perform("runtime.export", data, parts=parts, verbs=runtime)


async def test_without_long_term_memory() -> None:
    config = remora.Config.from_dict({"long_term": {"enabled": False}})
    async with remora.Runtime.in_memory(config=config) as runtime:
        with pytest.raises(InvalidInput, match="switched off"):
            await called(runtime, "recalls.memories", "ada", Scope())
