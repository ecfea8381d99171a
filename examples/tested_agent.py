"""An agent, and its tests with the fixtures that come with remora: ``pytest tested_agent.py``."""

from __future__ import annotations

from typing import Any

import pytest

import remora
from remora.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio


class Agent:
    """The "model" here repeats what it is shown, so that the example needs no key."""

    def __init__(self, memory: remora.Runtime) -> None:
        self._memory = memory

    async def reply(self, user: str, session: str, content: str) -> str:
        conversation = self._memory.session(user, session)
        await conversation.append({"role": "user", "content": content})
        context = await conversation.load(query=content, max_tokens=2_000)
        reply = " ".join(str(message["content"]) for message in context.messages)
        await conversation.append({"role": "assistant", "content": reply})
        return reply


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_agent_remembers(memory: remora.Runtime) -> None:
    agent = Agent(memory)
    await agent.reply("alice", "monday", "I moved to Lisbon.")
    await memory.session("alice", "monday").flush()  # what a long conversation does by itself
    await memory.settle()  # until background work is done
    reply = await agent.reply("alice", "friday", "Where did I say that I moved?")
    assert "I moved to Lisbon." in reply


class TestSummary:
    @pytest.fixture
    def memory_options(self) -> dict[str, Any]:
        return {"policy": remora.BufferPolicy.summary_buffer(100)}

    async def test_a_summary(self, memory: remora.Runtime, memory_model: ScriptedChatModel) -> None:
        memory_model.script("Alice likes tea.", "Alice likes tea and coffee.")
        chat = memory.session("alice", "monday")
        for number in range(6):
            await chat.append({"role": "user", "content": f"{number}. I like tea. " * 4})
            await memory.settle()
        assert (await chat.load()).summary
        assert "I like tea" in str(memory_model.requests[0])


class TestFacts:
    @pytest.fixture
    def memory_options(self) -> dict[str, Any]:
        return {"config": remora.Config.from_dict({"facts": {"enabled": True}})}

    async def test_new_facts(self, memory: remora.Runtime, memory_model: ScriptedChatModel) -> None:
        memory_model.script(
            '{"facts": [{"text": "Ana lives in Lisbon", "sources": [1]}]}',  # monday
            '{"facts": [{"text": "Ana lives in Porto", "sources": [1]}]}',  # friday
            '{"replaces": [{"new": 2, "old": 1}]}',  # friday's fact and monday's are compared
        )
        ana = memory.user("ana")
        for day, text in (("monday", "My Lisbon flat is tiny."), ("friday", "I moved to Porto!")):
            await ana.session(day).append({"role": "user", "name": "Ana", "content": text})
            await ana.session(day).flush()
            await ana.session(day).settle()
        (found,) = await ana.recall("Where does Ana live?", types="fact")
        assert (found.text, found.sources) == ("Ana lives in Porto", (1,))
