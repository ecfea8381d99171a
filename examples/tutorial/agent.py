"""Step 8: the agent that is tested."""

from __future__ import annotations

import remora
from remora import ChatModel


async def reply(runtime: remora.Runtime, model: ChatModel, user: str, text: str, key: str) -> str:
    async with runtime.session(user, "chat").turn(text, key=key, query=text) as turn:
        if not turn.replayed:
            said = await model.complete(turn.context.messages)
            await turn.reply({"role": "assistant", "content": said})
        return str(turn.replies[-1].content)
