"""Test an agent with a memory that needs no disk and a model that follows a script.

``pytest examples/first_day/t09_test_an_agent.py``: the fixtures come with remora.
"""

from __future__ import annotations

import pytest

import remora
from remora.testing import ScriptedChatModel


async def reply(runtime: remora.Runtime, model: remora.ChatModel, session: str, text: str) -> str:
    async with runtime.session("alice", session).turn(text) as turn:
        answer = await model.complete(turn.context.messages)
        await turn.reply(answer)
        return answer


@pytest.mark.anyio
async def test_the_agent_remembers(memory: remora.Runtime) -> None:
    model = ScriptedChatModel(["Lovely!", "In Lisbon."])
    await reply(memory, model, "monday", "I moved to Lisbon.")
    assert await reply(memory, model, "friday", "Where did I say that I moved?") == "In Lisbon."
    assert "I moved to Lisbon." in str(model.requests[1])
