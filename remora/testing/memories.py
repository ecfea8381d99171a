"""Checks of an `AgentMemory` that anyone who writes one can run.

Each is given an empty memory, and raises AssertionError where it does not hold::

    @pytest.mark.parametrize("check", MEMORY_CHECKS, ids=lambda check: check.__name__)
    async def test_my_memory(check):
        await check(MyMemory())
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from remora.adapters.protocol import AgentMemory

_CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": "sea"}'},
}


async def it_follows_the_protocol(memory: AgentMemory) -> None:
    """It has `put` and `get`."""
    assert isinstance(memory, AgentMemory), f"{type(memory).__name__} lacks put or get"


async def an_empty_memory_gives_nothing(memory: AgentMemory) -> None:
    """No messages."""
    assert await memory.get() == []


async def what_was_put_comes_back_in_order(memory: AgentMemory) -> None:
    """Role and content, oldest first."""
    said: list[dict[str, Any]] = [
        {"role": role, "content": f"{role} {n}"} for n in range(5) for role in ("user", "assistant")
    ]
    for message in said:
        await memory.put(message)
    got = [
        {"role": message["role"], "content": message["content"]} for message in await memory.get()
    ]
    assert got == said


async def equal_messages_are_two(memory: AgentMemory) -> None:
    """People repeat themselves."""
    await memory.put({"role": "user", "content": "yes"})
    await memory.put({"role": "user", "content": "yes"})
    assert len(await memory.get()) == 2


async def tool_calls_come_back_whole(memory: AgentMemory) -> None:
    """A call, its result, and what ties them."""
    await memory.put({"role": "user", "content": "What is out there?"})
    await memory.put({"role": "assistant", "content": None, "tool_calls": [_CALL]})
    await memory.put({"role": "tool", "tool_call_id": "call_1", "content": "a ship"})
    _, call, result = await memory.get()
    assert call["tool_calls"] == [_CALL]
    assert (result["tool_call_id"], result["content"]) == ("call_1", "a ship")


async def what_it_gives_is_the_callers_own(memory: AgentMemory) -> None:
    """Changing it changes nothing in the memory."""
    message: dict[str, Any] = {"role": "user", "content": "mine"}
    await memory.put(message)
    message["content"] = "changed"
    got = await memory.get()
    got[0]["content"] = "changed, too"
    got.clear()
    assert [one["content"] for one in await memory.get()] == ["mine"]


async def what_is_no_message_is_refused(memory: AgentMemory) -> None:
    """With a `TypeError`, and nothing is stored."""
    wrong: Any
    for wrong in ("hello", 7, {"role": "user"}, {"content": "nobody"}):
        try:
            await memory.put(wrong)
        except TypeError:
            continue
        raise AssertionError(f"{wrong!r} was taken for a message")
    assert await memory.get() == []


MEMORY_CHECKS: tuple[Callable[[AgentMemory], Awaitable[None]], ...] = (
    it_follows_the_protocol,
    an_empty_memory_gives_nothing,
    what_was_put_comes_back_in_order,
    equal_messages_are_two,
    tool_calls_come_back_whole,
    what_it_gives_is_the_callers_own,
    what_is_no_message_is_refused,
)
"""Each takes an empty memory."""
