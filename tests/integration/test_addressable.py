"""Recorded memories by id, key, metadata and page: read, changed, deleted; what is never shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Config, Memory, Runtime, User
from remora.errors import InvalidInput, KeyConflict, NoSuchMemory, NotFound
from remora.maintenance.verify import verify
from remora.storage.memory import MemoryStore
from remora.testing import HashEmbedder
from tests.copies import copy_memory
from tests.integration.remembering import CONFIG
from tests.simulation.rare import reaching

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


def opened(place: Path, **options: Any) -> Runtime:
    return Runtime(place, config=CONFIG, embedder=HashEmbedder(), **options)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with opened(tmp_path / "memory") as runtime:
        yield runtime


async def shown(user: User, query: str = "Lisbon Porto") -> set[str]:
    """All texts that any way of reading shows."""
    found = {one.text for one in await user.recall(query, limit=20)}
    found |= {one.text for one in await user.memories()}
    found |= {one.text for one in await user.remembered(limit=None)}
    found |= set((await user.export_arrow()).column("content").to_pylist())
    context = await user.session("new").load(query=query)
    return found | {one for one in ("Lisbon", "Porto", "Braga") if one in str(context.messages)}


async def test_a_memory_is_read_by_its_id(runtime: Runtime) -> None:
    """At once, with everything that it was given; nobody else's, and None for what is not there."""
    alice = runtime.user("alice")
    (id_,) = await alice.remember(
        "Likes figs", type="preference", importance=0.9, session="s", metadata={"topic": "food"}
    )
    memory = await alice.memory(id_)
    assert memory is not None
    assert (memory.id, memory.text, memory.type, memory.importance, memory.session) == (
        id_, "Likes figs", "preference", 0.9, "s",
    )  # fmt: skip
    assert (memory.metadata, memory.key, memory.updated_at) == ({"topic": "food"}, "", None)
    await alice.settle()
    (found,) = await alice.recall("figs")
    assert (found.id, found.metadata) == (id_, {"topic": "food"})
    assert await runtime.user("bob").memory(id_) is None
    assert await alice.memory("0" * 32) is None
    assert await alice.agent("cook").memory(id_) is None
    bad: tuple[dict[str, Any], ...] = ({}, {"id": id_, "key": "k"}, {"id": ""}, {"id": 7})
    for wrong in bad:
        with pytest.raises(InvalidInput):
            await alice.memory(**wrong)


async def test_a_changed_memory_is_never_shown_as_it_was(tmp_path: Path) -> None:
    """Not before it is indexed again, not after, and not after a crash."""
    crashed = tmp_path / "crashed"
    async with opened(tmp_path / "memory") as runtime:
        alice = runtime.user("alice")
        (id_,) = await alice.remember("Lives in Lisbon", importance=0.5)
        await alice.settle()
        assert await shown(alice) == {"Lives in Lisbon", "Lisbon"}
        changed = await alice.update_memory(id_, "Lives in Porto", metadata={"sure": True})
        copy_memory(tmp_path / "memory", crashed, "*.lock", "owner.json")
        assert (changed.id, changed.text, changed.metadata) == (
            id_, "Lives in Porto", {"sure": True},
        )  # fmt: skip
        assert changed.updated_at is not None
        assert not any("Lisbon" in text for text in await shown(alice))
        await alice.settle()
        assert await shown(alice) == {"Lives in Porto", "Porto"}
        (found,) = await alice.recall("Porto")
        assert (found.id, found.metadata) == (id_, {"sure": True})
        await alice.update_memory(id_, importance=0.9)
        assert (await alice.recall("Porto"))[0].importance == 0.9
        await alice.settle()
        assert (await alice.recall("Porto"))[0].importance == 0.9
    for place in (crashed, tmp_path / "memory"):
        async with opened(place) as runtime:
            alice = runtime.user("alice")
            assert not any("Lisbon" in text for text in await shown(alice))
            await alice.settle()
            assert await shown(alice) == {"Lives in Porto", "Porto"}
        report = await verify(place, CONFIG)
        assert list(report.findings) == []


async def test_a_deleted_memory_is_never_shown_again(tmp_path: Path) -> None:
    """Nor its text, wherever the index is; deleting again finds nothing; it can be remembered."""
    crashed = tmp_path / "crashed"
    async with opened(tmp_path / "memory") as runtime:
        alice = runtime.user("alice")
        first, second = await alice.remember(["Lives in Lisbon", "Has been to Porto"])
        await alice.settle()
        assert (await alice.delete([first, "0" * 32])).deleted == 1
        copy_memory(tmp_path / "memory", crashed, "*.lock", "owner.json")
        assert await shown(alice) == {"Has been to Porto", "Porto"}
        assert await alice.memory(first) is None
        with pytest.raises(NotFound):
            await alice.delete(first)
        await alice.settle()
        assert await shown(alice) == {"Has been to Porto", "Porto"}
        assert await alice.remember("Lives in Lisbon") == [first]
        await alice.delete([second])
        await alice.settle()
        assert await shown(alice) == {"Lives in Lisbon", "Lisbon"}
    async with opened(crashed) as runtime:
        alice = runtime.user("alice")
        assert await shown(alice) == {"Has been to Porto", "Porto"}
        await alice.settle()
        assert await shown(alice) == {"Has been to Porto", "Porto"}
    for place in (crashed, tmp_path / "memory"):
        assert list((await verify(place, CONFIG)).findings) == []


async def test_a_text_is_remembered_although_its_memory_was_changed(runtime: Runtime) -> None:
    """The memory that it named says something else by now; both are there, also after changes."""
    alice = runtime.user("alice")
    (id_,) = await alice.remember("Lives in Lisbon")
    await alice.update_memory(id_, "Lives in Porto")
    (again,) = await alice.remember("Lives in Lisbon")
    assert again != id_
    assert await alice.remember("Lives in Lisbon") == [again]
    await alice.update_memory(again, "Lives in Braga")
    (third,) = await alice.remember("Lives in Lisbon")
    assert len({id_, again, third}) == 3
    await alice.settle()
    texts = {"Lives in Lisbon", "Lives in Porto", "Lives in Braga"}
    assert {one.text for one in await alice.remembered()} == texts
    assert texts < await shown(alice, "Lives in Lisbon Porto Braga")


async def test_a_key_names_one_memory(runtime: Runtime) -> None:
    """The same again changes nothing, another is refused or replaces it; each agent has its own."""
    alice = runtime.user("alice")
    (id_,) = await alice.remember("Lives in Lisbon", key="home", metadata={"v": 1})
    assert await alice.remember("Lives in Lisbon", key="home", metadata={"v": 1}) == [id_]
    for other in ({"content": "Lives in Porto"}, {"content": "Lives in Lisbon", "importance": 0.1}):
        with pytest.raises(KeyConflict):
            await alice.remember([{"content": "Other"}, {**other, "key": "home"}])
    assert len(await alice.remembered()) == 1
    assert await alice.remember("Lives in Porto", key="home", replace=True) == [id_]
    memory = await alice.memory(key="home")
    assert memory is not None
    assert (memory.id, memory.text, memory.key, memory.metadata) == (
        id_, "Lives in Porto", "home", {},
    )  # fmt: skip
    (of_agent,) = await alice.agent("cook").remember("Cooks at home", key="home")
    assert of_agent != id_
    assert (await alice.memory(key="home", agent="cook")) == await alice.memory(of_agent)
    await alice.settle()
    assert not any("Lisbon" in text for text in await shown(alice))
    await alice.delete(id_)
    assert await alice.memory(key="home") is None
    assert await alice.remember("Lives in Braga", key="home") == [id_]
    assert {text for text in await shown(alice) if "Lives" in text} <= {"Lives in Braga"}
    await alice.settle()
    assert "Lives in Braga" in await shown(alice, "Braga")
    with pytest.raises(InvalidInput):
        await alice.remember(["a", "b"], key="home")


async def test_metadata_filters(runtime: Runtime) -> None:
    """Equality and comparisons, in recall and listings; quotes and operators are plain texts."""
    alice = runtime.user("alice")
    odd = "x' OR '1'='1"
    for number in range(6):
        topic = "food" if number % 2 else odd
        metadata = {"topic": topic, "stars": number, "flag": number == 1}
        await alice.remember(f"memory number {number}", metadata=metadata)
    await alice.remember("memory without any")
    await alice.session("s").append({"role": "user", "content": "memory that was said"})
    await alice.session("s").flush()
    await alice.settle()
    await alice.session("s").settle()
    expected: tuple[tuple[dict[str, Any], set[int]], ...] = (
        ({"topic": "food"}, {1, 3, 5}),
        ({"topic": odd}, {0, 2, 4}),
        ({"topic": "food", "stars": {"$gte": 3}}, {3, 5}),
        ({"stars": {"$gt": 1, "$lt": 4}}, {2, 3}),
        ({"stars": {"$lte": 1}}, {0, 1}),
        ({"stars": {"$in": [0, 5, 9]}}, {0, 5}),
        ({"flag": True}, {1}),
        ({"stars": 1}, {1}),
        ({"flag": 1}, set()),
        ({"topic": {"$gt": 1}}, set()),
        ({"stars') OR ('1": "1"}, set()),
    )
    for where, numbers in expected:
        texts = {f"memory number {number}" for number in numbers}
        assert {one.text for one in await alice.remembered(where=where)} == texts, where
        assert {one.text for one in await alice.recall("memory", limit=50, where=where)} == texts, (
            where
        )
    others = {one.text for one in await alice.remembered(where={"topic": {"$ne": "food"}})}
    assert "memory without any" in others
    assert len(others) == 4
    bad: tuple[Any, ...] = (
        "food", [], {"a": {"$like": "x"}}, {3: 4}, {"a": {"$in": 3}},
        {"a": {"$gt": [1]}}, {"a": object()},
        {"a": float("nan")}, {str(n): n for n in range(50)},
    )  # fmt: skip
    for where in bad[2:] + bad[:1]:
        with pytest.raises(InvalidInput):
            await alice.recall("memory", where=where)
        with pytest.raises(InvalidInput):
            await alice.remembered(where=where)


async def test_metadata_is_small_json(runtime: Runtime) -> None:
    """Nothing is written otherwise; what is taken comes back as it was."""
    alice = runtime.user("alice")
    deep: Any = 1
    for _ in range(20):
        deep = [deep]
    refused: tuple[Any, ...] = (
        [], "text", {1: 2}, {"a": object()}, {"a": float("inf")}, {"a": 1 << 80},
        {"a": "x" * 5_000}, {"a": deep}, {"a": "\ud800"},
    )  # fmt: skip
    for metadata in refused:
        with pytest.raises(InvalidInput):
            await alice.remember("never", metadata=metadata)
    assert await alice.remembered() == []
    good = {"a": [1, 2.5, None, True, {"b": "ñ'\""}], "": ""}
    (id_,) = await alice.remember("kept", metadata=good)
    memory = await alice.memory(id_)
    assert memory is not None
    assert memory.metadata == good


async def test_a_memory_has_the_date_that_it_is_given(runtime: Runtime) -> None:
    """In each form that a message may give it; without a zone it is in UTC."""
    alice, noon = runtime.user("alice"), datetime(2023, 6, 30, 12, tzinfo=UTC)
    forms = ("2023-06-30T14:00:00+02:00", "2023-06-30T12:00", noon, noon.timestamp())
    for number, given in enumerate(forms):
        await alice.remember({"content": f"m{number}", "created_at": given})
    assert [one.created_at for one in await alice.remembered()] == [noon] * 4
    for wrong in ("yesterday", True, float("nan"), 1e30, [1]):
        with pytest.raises(InvalidInput, match="created_at"):
            await alice.remember({"content": "x", "created_at": wrong})


async def test_pages_of_memories(runtime: Runtime) -> None:
    """Behind a cursor, also while memories come and go; restricted as recall is."""
    alice = runtime.user("alice")
    for number in range(7):
        await alice.remember({"content": f"m{number}", "created_at": 1_700_000_000 + number // 2})
    (agents,) = await alice.agent("cook").remember("a recipe", type="procedural")
    found: list[Memory] = []
    after = None
    while page := await alice.remembered(limit=3, after=after):
        found += page
        after = page[-1].cursor
        await alice.delete(page[-1].id)
        await alice.remember({"content": f"old {len(found)}", "created_at": 1})
    assert {one.text for one in found} == {*(f"m{n}" for n in range(7)), "a recipe"}
    assert len(found) == 8
    assert await alice.agent("cook").remembered() == []
    assert await alice.memory(agents) is None
    (again,) = await alice.agent("cook").remember("a recipe", type="procedural")
    assert [one.id for one in await alice.remembered(types="procedural")] == [again]
    assert [one.id for one in await alice.remembered(agent="cook")] == [again]
    bad: tuple[dict[str, Any], ...] = (
        {"after": "x"}, {"after": "1/2"}, {"limit": 0}, {"types": "nothing"},
    )  # fmt: skip
    for wrong in bad:
        with pytest.raises(InvalidInput):
            await alice.remembered(**wrong)


async def test_bad_changes_are_refused(runtime: Runtime) -> None:
    """Nothing is changed by them; an agent's handle changes its own memories alone."""
    alice = runtime.user("alice")
    (id_,) = await alice.remember("Lives in Lisbon")
    bad: tuple[dict[str, Any], ...] = (
        {"content": ""}, {"content": 3}, {"importance": 2}, {"metadata": []}, {"importance": "a"},
    )  # fmt: skip
    for wrong in bad:
        with pytest.raises(InvalidInput):
            await alice.update_memory(id_, **wrong)
    for handle in (runtime.user("bob"), alice.agent("cook")):
        with pytest.raises(NoSuchMemory) as caught:
            await handle.update_memory(id_, "Lives in Porto")
        assert caught.value.id == id_
        with pytest.raises(NotFound):
            await handle.delete(id_)
    memory = await alice.memory(id_)
    assert memory is not None
    assert memory.text == "Lives in Lisbon"
    assert memory == await alice.update_memory(id_)


async def test_exports_have_keys_metadata_and_changes(runtime: Runtime, tmp_path: Path) -> None:
    """As lines and as tables; the import shows what there is, and it can be changed."""
    alice = runtime.user("alice")
    (id_,) = await alice.remember("Lives in Lisbon", metadata={"a": 1})
    await alice.remember("Likes figs", key="food", metadata={"b": [2]})
    await alice.update_memory(id_, "Lives in Porto")
    before = await alice.remembered()
    for name in ("all.jsonl", "tables"):
        await runtime.export(tmp_path / name)
        async with opened(tmp_path / f"copy of {name}") as copy:
            await copy.import_(tmp_path / name)
            other = copy.user("alice")
            assert await other.remembered() == before
            await copy.settle()
            assert {"Lives in Porto", "Likes figs"} <= await shown(other, "Lives Porto figs")
            await other.remember("Likes plums", key="food", replace=True)
            assert (await other.remember("Lives in Lisbon")) != [id_]
            await copy.settle()
            assert "Likes figs" not in await shown(other, "Likes figs plums")


async def test_what_was_forgotten_is_gone(tmp_path: Path) -> None:
    """Keys, metadata and texts of before and after a change: no byte of them is left."""
    async with opened(tmp_path / "memory") as runtime:
        alice = runtime.user("alice")
        (id_,) = await alice.remember("canary-one", key="canary-key", metadata={"m": "canary-meta"})
        await alice.settle()
        await alice.update_memory(id_, "canary-two", metadata={"m": "canary-later"})
        await alice.forget()
    for path in (tmp_path / "memory").rglob("*"):
        if path.is_file():
            assert b"canary" not in path.read_bytes(), path


async def test_a_model_corrects_and_deletes_if_allowed(runtime: Runtime) -> None:
    """Four tools with `edit`, two without; other users' memories are out of reach."""
    alice = runtime.user("alice")
    plain, tools = alice.tools(), alice.tools(edit=True)
    assert [one["function"]["name"] for one in plain.openai()] == [
        "save_to_memory", "recall_from_memory",
    ]  # fmt: skip
    names = [one["function"]["name"] for one in tools.openai()]
    assert names[2:] == ["correct_memory", "delete_from_memory"]
    (id_,) = await alice.remember("Lives in Lisbon")
    arguments = {"memory_id": id_, "content": "Lives in Porto"}
    refused = json.loads(await plain.call("correct_memory", arguments))
    assert not refused["success"]
    assert not (await plain.delete_from_memory([id_]))["success"]
    corrected = json.loads(await tools.call("correct_memory", json.dumps(arguments)))
    assert corrected == {
        "success": True, "memory_ids": [id_], "message": "Corrected 1 memory.",
    }  # fmt: skip
    bobs = runtime.user("bob").tools(edit=True)
    assert not json.loads(await bobs.call("correct_memory", arguments))["success"]
    refused = json.loads(await bobs.call("delete_from_memory", {"memory_ids": [id_]}))
    assert not refused["success"], "a model must not say that it has deleted it"
    assert "deleted 0 of 1" in refused["error"]
    done = json.loads(await tools.call("delete_from_memory", {"memory_ids": [id_]}))
    assert done == {"success": True, "deleted": 1, "message": "Deleted 1 memory."}
    assert await alice.memory(id_) is None
    assert not json.loads(await tools.call("correct_memory", arguments))["success"]


class GatedStore(MemoryStore):
    """Deletes rows when it is let."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        self.open = anyio.Event()

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        await self.open.wait()
        return await super().delete(user, ids)


async def test_an_earlier_text_makes_room_for_others() -> None:
    """A memory that was found by what it said before is left out, and the next best is shown."""
    store = GatedStore(64)
    config = Config.from_dict({"recall": {"unindexed_rows": 0}})
    async with Runtime.in_memory(config=config, embedder=HashEmbedder(), store=store) as runtime:
        user = runtime.user("alice")
        first, _ = await user.remember(["green tea from Kyoto", "green tea from Uji"])
        await user.settle()
        await user.update_memory(first, "ferries leave the harbour")  # its index job waits
        with reaching("stale_memories_left_out"):
            found = await user.recall("green tea from Kyoto", limit=1)
        assert [one.text for one in found] == ["green tea from Uji"]
        store.open.set()
        await user.settle()
