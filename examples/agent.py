"""An agent with a name, a model, instructions and a memory; offline, with a scripted model."""

from __future__ import annotations

import asyncio

import remora
from remora.models.ports import ChatModel
from remora.testing import ScriptedChatModel


class Agent:
    def __init__(
        self, name: str, model: ChatModel, system_message: str, memory: remora.Session
    ) -> None:
        self.name = name
        self.model = model
        self.system_message = system_message
        self.memory = memory

    async def chat(self, text: str) -> str:
        await self.memory.append(remora.Message.human(text))
        context = await self.memory.load(max_tokens=4_000)
        reply = await self.model.complete(
            [{"role": "system", "content": self.system_message}, *context.messages]
        )
        await self.memory.append(remora.Message.ai(reply))
        return reply


async def main() -> None:
    model = ScriptedChatModel(["Hello Charlie!", "Your name is Charlie."])
    async with remora.Runtime.in_memory() as runtime:
        agent = Agent(
            "assistant", model, "You are a helpful assistant.", runtime.session("charlie", "chat")
        )
        for text in ("Hello, my name is Charlie.", "What's my name?"):
            print(f"user: {text}\nassistant: {await agent.chat(text)}")
        print("\nthe second prompt was:")
        for message in model.requests[1]:
            print(f"  {message['role']}: {message['content']}")


if __name__ == "__main__":
    asyncio.run(main())
