"""Transcripts of the Claude Agent SDK over remora: the SDK's own contracts, and more.

The SDK is not among the development requirements: ``python -m benchmarks.lab.frameworks own
claude-agent-sdk`` runs these in an environment of their own.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

pytest.importorskip(
    "claude_agent_sdk", reason="`python -m benchmarks.lab.frameworks own claude-agent-sdk`"
)
from claude_agent_sdk import list_sessions_from_store, project_key_for_directory
from claude_agent_sdk.testing import run_session_store_conformance

import remora
from remora import Runtime, blocking
from remora.adapters.claude_agent_sdk import RemoraSessionStore
from remora.errors import InvalidInput, InvalidMessage
from remora.testing import HashEmbedder
from tests.configs import PLAIN, RECALLING
from tests.workers import end_owner, write_config

pytestmark = pytest.mark.anyio
KEY: Any = {"project_key": "-home-alice", "session_id": "s1"}


def entry(uuid: str, text: Any, type_: str = "user") -> Any:
    message = {"role": type_, "content": text}
    return {"type": type_, "uuid": uuid, "message": message, "n": 1.5, "none": None}


async def test_the_contracts_of_the_sdk() -> None:
    """All but that of summaries, which the SDK makes itself."""
    async with AsyncExitStack() as stack:

        async def make() -> Any:
            runtime = await stack.enter_async_context(Runtime.in_memory(config=PLAIN))
            return RemoraSessionStore(runtime.user("alice"))

        await run_session_store_conformance(make)


async def test_entries_come_back_as_they_were_and_once() -> None:
    """A batch that is tried again adds nothing; entries without an id are not compared."""
    blocks = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t", "name": "Read", "input": {"path": "/x"}},
    ]
    batch = [entry("a", "hello"), entry("b", blocks, "assistant"), {"type": "tag", "tag": "x"}]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice = runtime.user("alice")
        store = RemoraSessionStore(alice)
        await store.append(KEY, batch)
        await store.append(KEY, batch)
        assert await store.load(KEY) == [*batch, batch[2]]
        (listed,) = await alice.sessions()
        chat = alice.session(listed.session)
        assert [(one.role, one.content) for one in await chat.history()][:3] == [
            ("user", "hello"),
            ("assistant", "I look.\n[tool_use: Read]"),
            ("assistant", "[tag]"),
        ]
        with pytest.raises(InvalidMessage, match="entry 1 is no dict with a type"):
            await store.append(KEY, [entry("c", "x"), {"uuid": "d"}])
        assert len(await store.load(KEY) or ()) == 4
        with pytest.raises(InvalidInput, match="NoneType"):
            RemoraSessionStore(None)  # type: ignore[arg-type]


async def test_keys_with_slashes_stay_apart() -> None:
    """A project ``a/b`` with the session ``c`` is not the project ``a`` with ``b/c``."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        store = RemoraSessionStore(runtime.user("alice"))
        keys: list[Any] = [
            {"project_key": "a/b", "session_id": "c"},
            {"project_key": "a", "session_id": "b/c"},
            {"project_key": "a", "session_id": "b", "subpath": "c"},
        ]
        for number, key in enumerate(keys):
            await store.append(key, [entry(f"u{number}", "x")])
        for number, key in enumerate(keys):
            assert await store.load(key) == [entry(f"u{number}", "x")]
        assert [one["session_id"] for one in await store.list_sessions("a")] == ["b/c"]


async def test_eight_writers_lose_nothing() -> None:
    """Batches stay whole, and entries in the order of their writer."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        store = RemoraSessionStore(runtime.user("alice"))

        async def write(writer: int) -> None:
            for batch in range(8):
                names = [f"{writer}.{batch}.{number}" for number in range(3)]
                await store.append(KEY, [entry(name, name) for name in names])

        async with anyio.create_task_group() as tasks:
            for writer in range(8):
                tasks.start_soon(write, writer)
        found: list[Any] = [one["uuid"] for one in await store.load(KEY) or ()]
        batches = [tuple(found[place : place + 3]) for place in range(0, len(found), 3)]
        assert len(batches) == len(set(batches)) == 64
        for batch in batches:
            begins = batch[0].removesuffix("0")
            assert batch == (f"{begins}0", f"{begins}1", f"{begins}2")
        for writer in range(8):
            ours = [one for one in found if one.startswith(f"{writer}.")]
            assert ours == sorted(ours)


@pytest.mark.blocking  # the owner is a process
async def test_workers_share_a_transcript(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    try:
        async with remora.connect(file) as one, remora.connect(file) as other:
            await RemoraSessionStore(one.user("alice")).append(KEY, [entry("a", "hello")])
            await RemoraSessionStore(other.user("alice")).append(KEY, [entry("b", "again")])
            for memory in (one, other):
                found = await RemoraSessionStore(memory.user("alice")).load(KEY)
                assert found == [entry("a", "hello"), entry("b", "again")]
    finally:
        await anyio.to_thread.run_sync(end_owner, tmp_path / "memory")


@pytest.mark.blocking  # the SDK resolves the directory
async def test_the_sdk_lists_sessions() -> None:
    """With the first question of each, of the project of a directory."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        store = RemoraSessionStore(runtime.user("alice"))
        name = "0f7a3a56-1111-4222-8333-444455556666"
        key: Any = {"project_key": project_key_for_directory("/nowhere"), "session_id": name}
        said = {**entry("a", "Where is the sea?"), "timestamp": "2026-11-23T09:00:00.000Z"}
        await store.append(key, [said])
        (found,) = await list_sessions_from_store(store, directory="/nowhere")
        assert (found.session_id, found.first_prompt) == (name, "Where is the sea?")


async def test_what_was_said_is_recalled() -> None:
    """In the user's other conversations."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await RemoraSessionStore(alice).append(KEY, [entry("a", "My flat is in Lisbon.")])
        found = await alice.recall("Where is my flat?")
        assert [one.text for one in found] == ["My flat is in Lisbon."]


def test_on_any_event_loop() -> None:
    """With a user of `remora.blocking`."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        store = RemoraSessionStore(runtime.user("ada"))
        anyio.run(store.append, KEY, [entry("a", "hello")])
        assert anyio.run(store.load, KEY) == [entry("a", "hello")]
