"""Memories that agents share: grants, and who may use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from remora import Runtime
from remora.actors.user.messages import ChangeMemory, DeleteMemories
from remora.errors import (
    InvalidId,
    InvalidInput,
    NoSuchMemory,
    NotGranted,
)
from remora.ids import UserKey
from remora.testing import HashEmbedder
from tests.integration.remembering import CONFIG

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "memory", config=CONFIG, embedder=HashEmbedder()) as opened:
        yield opened


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
    assert await scout.delete_memories(leads) == 0
    for member in (reader, scope.as_("stranger")):
        with pytest.raises(NotGranted):
            await member.update_memory(scouts, "The venue is in Faro")
        with pytest.raises(NotGranted):
            await member.delete_memories([scouts, leads])
    with pytest.raises(NotGranted):
        await scope.as_("stranger").memory(scouts)
    assert (await lead.update_memory(scouts, importance=0.9)).agent == "scout"
    assert {one.text for one in await reader.recall("venue launch")} == {
        "The launch is in May", "The venue is in Braga",
    }  # fmt: skip
    await lead.revoke("scout")
    with pytest.raises(NotGranted):
        await scout.delete_memories(scouts)
    assert await lead.delete_memories([scouts, leads]) == 2
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
