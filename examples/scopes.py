"""Summaries for long conversations, one scope per user, and metadata within one conversation."""

from __future__ import annotations

import asyncio

import remora

# A conversation of more than 300 tokens is compacted: old messages become a summary, recent ones
# stay as they are.
POLICY = remora.BufferPolicy.summary_buffer(300)
CONFIG = remora.Config.from_dict({"buffer": {"summary_tokens": 150}})


async def long_conversation(chat: remora.Session) -> remora.Context:
    for day in range(1, 21):
        await chat.append(
            {
                "role": "user",
                "content": f"Day {day}: I walked {day} kilometres along the coast near Lagos.",
            }
        )
        await chat.append(
            {"role": "assistant", "content": f"Well done, {day} kilometres! How do your feet feel?"}
        )
    await chat.settle()
    return await chat.load()


async def two_users(runtime: remora.Runtime) -> None:
    # The handle is the scope: no call on alice's handle returns what bob said.
    await runtime.session("alice", "support").append(
        {"role": "user", "content": "My order is 4711."}
    )
    await runtime.session("bob", "support").append({"role": "user", "content": "My order is 815."})
    for user in ("alice", "bob"):
        context = await runtime.session(user, "support").load()
        print(f"{user}: {[message['content'] for message in context.messages]}")


async def one_room(room: remora.Session) -> None:
    # Several people in one conversation: the message's name is the speaker, and metadata holds
    # what else to filter by.
    await room.append(
        {"role": "user", "name": "Ana", "content": "Lunch at one?", "metadata": {"user_id": "ana"}}
    )
    await room.append(
        {"role": "user", "name": "Rui", "content": "Half past!", "metadata": {"user_id": "rui"}}
    )
    print(
        "rui said:",
        [
            message.content
            for message in await room.get_messages(filter_metadata={"user_id": "rui"})
        ],
    )


async def main() -> None:
    async with remora.Runtime.in_memory(config=CONFIG, policy=POLICY) as runtime:
        context = await long_conversation(runtime.session("alice", "walks"))
        print(f"40 messages in {context.tokens} tokens; summary: {context.summary}")
        await two_users(runtime)
        await one_room(runtime.session("team", "lunch"))


if __name__ == "__main__":
    asyncio.run(main())
