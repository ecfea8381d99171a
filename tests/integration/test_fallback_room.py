"""A fallback summary that has no room for what a model wrote before it."""

from __future__ import annotations

import pytest

from remora import Config, Runtime
from remora.runtime.probes import count_probes
from remora.testing import ScriptedChatModel

pytestmark = pytest.mark.anyio


async def test_messages_of_a_dropped_model_summary_count_as_lost(small: Config) -> None:
    """What the model had summarized is named as degraded, from the first message on."""
    model = ScriptedChatModel([" ".join(f"fact{number}" for number in range(22))])
    with count_probes() as counts:
        async with Runtime.in_memory(config=small, chat_model=model) as runtime:
            chat = runtime.session("alice", "chat")
            for number in range(40):
                text = f"Sentence {number} is about gardens and what grows in them."
                await chat.append({"role": "user", "content": text})
                await chat.settle()
            degraded = (await chat.inspect()).degraded
    assert counts["prose_dropped"]
    assert degraded is not None
    assert degraded.first == 1
