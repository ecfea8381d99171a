"""Several keys of keyed state in one write, read at once, and what adapters keep there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Config, Runtime
from remora.api.keyed_state import adapter_state
from remora.errors import InvalidId, InvalidInput, StateConflict

pytestmark = pytest.mark.anyio
TREE: dict[str, Any] = {
    "models": {"embedder": "none"},
    "tokens": {"counter": "heuristic"},
    "long_term": {"enabled": False},
    "state": {
        "max_keys": 4,
        "max_value_bytes": 200,
        "adapter_max_keys": 3,
        "adapter_max_value_bytes": 400,
    },
}
CONFIG = Config.from_dict(TREE)


async def test_several_keys_in_one_write(tmp_path: Path) -> None:
    """Set and deleted together, with versions of their own, and still there after a restart."""
    async with Runtime(tmp_path / "memory", config=CONFIG) as runtime:
        state = runtime.session("alice", "chat").state
        await state.set("old", 1)
        made = await state.change({"a": [1], "b": {"x": 2}}, delete=["old", "never"])
        assert {key: (one.value, one.version) for key, one in made.items()} == {
            "a": ([1], 2),
            "b": ({"x": 2}, 3),
        }
        assert await state.change({}, delete=["never"]) == {}
    async with Runtime(tmp_path / "memory", config=CONFIG) as runtime:
        state = runtime.session("alice", "chat").state
        found = await state.get_many(["b", "old", "a"])
        assert {key: one.value for key, one in found.items()} == {"a": [1], "b": {"x": 2}}
        assert (await state.set("c", 0)).version == 4


async def test_all_or_none() -> None:
    """A version that does not hold, one value too large, one key too many."""
    async with Runtime.in_memory(config=CONFIG) as runtime:
        state = runtime.user("alice").state
        await state.change({"a": 1, "b": 2})
        with pytest.raises(StateConflict) as caught:
            await state.change({"a": 10, "c": 3}, versions={"c": 0, "b": 1})
        assert (caught.value.key, caught.value.expected, caught.value.actual) == ("b", 1, 2)
        for bad in (
            {"c": 1, "d": "x" * 300},
            {"c": 1, "d": 1, "e": 1},
            {"c": 1, "": 1},
            {"c": 1, "d": object()},
        ):
            with pytest.raises(InvalidInput):
                await state.change(bad)
        with pytest.raises(InvalidInput, match="both set and deleted"):
            await state.change({"c": 1}, delete=["c"])
        assert [one.key for one in await state.items()] == ["a", "b"]
        # a key that is deleted makes room for another
        await state.change({"c": 1, "d": 1, "e": 1}, delete=["a"])
        assert len(await state.items()) == 4


async def test_of_several_changes_with_one_version_one_succeeds() -> None:
    """Also where they change different keys and compare a common one."""
    async with Runtime.in_memory(config=CONFIG) as runtime:
        state = runtime.user("alice").state
        head = await state.set("head", 0)
        won: list[int] = []

        async def change(number: int) -> None:
            try:
                await state.change(
                    {f"k{number % 2}": number, "head": number}, versions={"head": head.version}
                )
            except StateConflict:
                return
            won.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(change, number)
        assert len(won) == 1
        found = await state.get_many(["k0", "k1", "head"])
        assert {one.value for one in found.values()} == set(won)


async def test_pages_backward() -> None:
    """The last keys first; a page begins before the last key of the page before."""
    async with Runtime.in_memory(config=CONFIG) as runtime:
        state = runtime.user("alice").state
        await state.change({"a/1": 1, "a/2": 2, "a/3": 3, "b": 4})
        page = await state.items(prefix="a/", limit=2, backward=True)
        assert [one.value for one in page] == [3, 2]
        page = await state.items(prefix="a/", limit=2, after=page[-1].key, backward=True)
        assert [one.value for one in page] == [1]
        assert [one.value for one in await state.items(backward=True)] == [4, 3, 2, 1]


async def test_adapters_have_keys_of_their_own(tmp_path: Path) -> None:
    """With bounds of their own; the application neither sees nor writes them."""
    async with Runtime(tmp_path / "memory", config=CONFIG) as runtime:
        chat = runtime.session("alice", "chat")
        kept = adapter_state(chat, "test")
        await kept.change({"a": "x" * 300, "b": 1, "c": 2})
        await chat.state.change({"a": 0, "b": 0, "c": 0, "d": 0})
        with pytest.raises(InvalidInput, match=r"state\.adapter_max_keys allows 3"):
            await kept.set("d", 1)
        with pytest.raises(InvalidInput, match=r"state\.adapter_max_value_bytes"):
            await kept.set("a", "x" * 500)
        with pytest.raises(InvalidInput, match=r"state\.max_keys allows 4"):
            await chat.state.set("e", 1)
        assert [one.key for one in await chat.state.items()] == ["a", "b", "c", "d"]
        assert [one.key for one in await kept.items()] == ["a", "b", "c"]
        with pytest.raises(InvalidId):
            await chat.state.set("remora.adapters/test/a", 1)
        assert await chat.state.items(prefix="remora.adapters/") == []
        copy = await chat.fork("copy")
        found = await adapter_state(copy, "test").get("b")
        assert found is not None
        assert found.value == 1
        await runtime.export(tmp_path / "all.jsonl")
    async with Runtime(tmp_path / "other", config=CONFIG) as runtime:
        await runtime.import_(tmp_path / "all.jsonl")
        kept = adapter_state(runtime.session("alice", "chat"), "test")
        assert [one.key for one in await kept.items()] == ["a", "b", "c"]


async def test_a_hook_is_given_text_and_no_encoded_bytes(tmp_path: Path) -> None:
    """Of an import as well: bytes that a hook changes could not be decoded."""

    def redact(text: str) -> str:
        return text.replace("secret", "***")

    async with Runtime(tmp_path / "memory", config=CONFIG, redact=redact) as runtime:
        chat = runtime.session("alice", "chat")
        await adapter_state(chat, "test").set("a", "a secret")
        await adapter_state(chat, "test", opaque=True).set("a", "a secret")
        await runtime.export(tmp_path / "all.jsonl")
    async with Runtime(tmp_path / "other", config=CONFIG, redact=redact) as runtime:
        await runtime.import_(tmp_path / "all.jsonl")
        chat = runtime.session("alice", "chat")
        found = await adapter_state(chat, "test").get("a")
        opaque = await adapter_state(chat, "test", opaque=True).get("a")
        assert found is not None
        assert opaque is not None
        assert (found.value, opaque.value) == ("a ***", "a secret")


async def test_sessions_that_have_state_alone_are_listed_if_asked_for(tmp_path: Path) -> None:
    """In memory and in SQLite, page by page."""
    for runtime in (Runtime.in_memory(config=CONFIG), Runtime(tmp_path / "memory", config=CONFIG)):
        async with runtime:
            alice = runtime.user("alice")
            await alice.session("said").append({"role": "user", "content": "hello"})
            await alice.session("kept").state.set("step", 1)
            assert [one.session for one in await alice.sessions()] == ["said"]
            page = await alice.sessions(order="name", limit=1, empty=True)
            assert [(one.session, one.messages) for one in page] == [("kept", 0)]
            page = await alice.sessions(order="name", after=page[-1].cursor, empty=True)
            assert [one.session for one in page] == ["said"]
