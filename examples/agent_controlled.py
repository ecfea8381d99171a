"""The model manages memory itself, by two tools, in an ordinary tool-call loop.

A scripted model replaces the real one, so that the example runs without a key; with OpenAI's
client, `complete` becomes
``client.chat.completions.create(messages=…, tools=tools.openai())``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import remora
from remora.testing import ScriptedChatModel


def calls(tool: str, **arguments: Any) -> str:
    """A tool call of the scripted model, as the text of its script."""
    return json.dumps({"tool": tool, "arguments": json.dumps(arguments)})


class ToolModel:
    """A scripted model that answers as a chat API does: with text, or with tool calls."""

    def __init__(self, script: Sequence[str]) -> None:
        self._model = ScriptedChatModel(script)
        self._calls = 0

    async def complete(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """The next message of the assistant."""
        offered = {tool["function"]["name"] for tool in tools}
        text = await self._model.complete(list(messages))
        if not text.startswith("{"):
            return {"role": "assistant", "content": text}
        call = json.loads(text)
        assert call["tool"] in offered
        self._calls += 1
        function = {"name": call["tool"], "arguments": call["arguments"]}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call-{self._calls}", "function": function}],
        }


async def chat(user: remora.User, session: str, model: ToolModel, text: str) -> str:
    """One turn: the model may call its tools any number of times before it answers."""
    conversation = user.session(session)
    tools = user.tools(session=session)
    await conversation.append({"role": "user", "content": text})
    while True:
        messages = (await conversation.load()).messages
        message = await model.complete(messages, tools.openai())
        results: list[dict[str, Any]] = []
        for call in message.get("tool_calls") or ():
            result = await tools.call(call["function"]["name"], call["function"]["arguments"])
            print(f"{call['function']['name']}({call['function']['arguments']}) -> {result}")
            results.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        await conversation.append([message, *results])
        if not results:
            print(f"assistant: {message['content']}")
            return str(message["content"])


async def main(directory: str) -> None:
    model = ToolModel(
        [
            calls(
                "save_to_memory",
                thinking="A birthday is worth remembering.",
                content=["Birthday: March 15"],
            ),
            "Noted!",
            calls("recall_from_memory", keywords=["birthday"], limit=5),
            "It is on March 15.",
        ]
    )
    async with remora.Runtime(directory) as runtime:
        alice = runtime.user("alice")
        await chat(alice, "monday", model, "My birthday is on March 15.")
        await alice.settle()  # wait until it can be recalled; applications need not
        await chat(alice, "friday", model, "When is my birthday?")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            asyncio.run(main(temporary))
