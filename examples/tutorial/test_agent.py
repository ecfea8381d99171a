"""Step 8: tests of an agent, with fixtures that come with remora."""

from __future__ import annotations

import pytest

import remora
from examples.tutorial.agent import reply
from remora.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_retry_costs_nothing(memory: remora.Runtime) -> None:
    model = ScriptedChatModel(["Hello!"])  # a second call would fail
    assert await reply(memory, model, "alice", "Hi", "1") == "Hello!"
    assert await reply(memory, model, "alice", "Hi", "1") == "Hello!"


async def test_the_model_is_told_what_was_remembered(memory: remora.Runtime) -> None:
    await memory.user("alice").remember("Alice is a vegetarian.")
    model = ScriptedChatModel(["Try the soup."])
    await reply(memory, model, "alice", "Is Alice a vegetarian?", "1")
    assert "Alice is a vegetarian." in str(model.requests[0])
