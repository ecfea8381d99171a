"""Other libraries' names, over remora's sessions and users."""

from __future__ import annotations

import asyncio

import remora
from remora.adapters.llama_index import ChatMemory
from remora.adapters.massgen import ConversationMemory, PersistentMemory
from remora.adapters.muxi import BufferMemory
from remora.adapters.synaptic import ConversationSummaryBufferMemory


async def llama_index() -> None:
    async with ChatMemory.from_defaults(session_id="my_session", token_limit=40_000) as memory:
        await memory.put_messages(
            [
                {"role": "user", "content": "Hello, world!"},
                {"role": "assistant", "content": "Hello, world to you too!"},
            ]
        )
        print([message["content"] for message in await memory.get()])


async def massgen(runtime: remora.Runtime) -> None:
    conversation = ConversationMemory(runtime.session("alice", "session_123"))
    await conversation.add({"role": "user", "content": "My birthday is on March 15."})
    await conversation.truncate_to_size(100)

    persistent = PersistentMemory(agent_name="researcher", user_name="alice", runtime=runtime)
    await persistent.record(await conversation.get_messages())
    await persistent.save_to_memory(thinking="They said so.", content=["Birthday: March 15"])
    await persistent.settle()
    print(await persistent.retrieve("When is the birthday?"))


async def muxi(runtime: remora.Runtime) -> None:
    buffer = BufferMemory(runtime.session("alice", "muxi"))
    await buffer.add_message("user", "Hello, my name is Alice.", metadata={"user_id": "user1"})
    print(await buffer.get_formatted_messages())


async def synaptic(runtime: remora.Runtime) -> None:
    memory = ConversationSummaryBufferMemory(runtime)
    await memory.append("user-1", remora.Message.human("What is Rust?"))
    await memory.append("user-1", remora.Message.ai("Rust is a systems programming language..."))
    print(await memory.load("user-1"))


async def main() -> None:
    await llama_index()
    async with remora.Runtime.in_memory() as runtime:
        await massgen(runtime)
        await muxi(runtime)
        await synaptic(runtime)


if __name__ == "__main__":
    asyncio.run(main())
