"""The application manages memory: add, retrieve, build, generate, add, record, in every turn.

A scripted model answers, so that the example runs without a key;
`remora.models.openai.OpenAIChatModel`, or anything with ``async complete(messages) -> str``, can
replace it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import remora
from remora.testing import ScriptedChatModel


class ChatModel(Protocol):
    """A chat model."""

    async def complete(self, messages: Sequence[dict[str, Any]]) -> str:
        """The answer to a conversation."""
        ...


class Assistant:
    """One conversation, with memories of the user's other conversations."""

    def __init__(
        self,
        user: remora.User,
        session: str,
        model: ChatModel,
        trace: Callable[[str], object] = print,
    ) -> None:
        self.user = user
        self.conversation = user.session(session)
        self.model = model
        self.trace = trace

    async def chat(self, text: str) -> str:
        """One turn."""
        # 1. Add to short-term memory.
        await self.conversation.append({"role": "user", "content": text})
        self.trace(f"1 add: {text}")

        # 2. Retrieve from long-term memory. What this conversation said is in its own messages.
        found = await self.user.recall(text)
        known = [memory for memory in found if memory.session != self.conversation.key.session]
        context = remora.quote_memories(known)
        self.trace(f"2 retrieve: {context or 'nothing'}")

        # 3. Build the full context.
        messages = (await self.conversation.load()).messages
        if context:
            messages.insert(0, {"role": "system", "content": context})
        self.trace(f"3 build: {[message['role'] for message in messages]}")

        # 4. Generate the answer.
        answer = await self.model.complete(messages)
        self.trace(f"4 generate: {answer}")

        # 5. Add the answer to short-term memory.
        await self.conversation.append({"role": "assistant", "content": answer})
        self.trace("5 add")

        # 6. Record the messages in long-term memory; recorded ones are not stored again.
        ids = await self.user.record([*messages, {"role": "assistant", "content": answer}])
        self.trace(f"6 record: {len(ids)} memories")
        return answer


async def main(directory: str) -> None:
    model = ScriptedChatModel(["Noted: March 15!", "March 15, of course."])
    async with remora.Runtime(directory) as runtime:
        alice = runtime.user("alice")
        await Assistant(alice, "monday", model).chat("My birthday is on March 15.")
        await alice.settle()  # wait until it can be recalled; applications need not
        await Assistant(alice, "friday", model).chat("When is my birthday?")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            asyncio.run(main(temporary))
