"""Step 4: the process dies in the middle of a turn; the retry goes on."""

from __future__ import annotations

import asyncio
import os

import remora


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        chat = runtime.session("alice", "monday")
        async with chat.turn("Please book a hotel.", key="request-3") as turn:
            print(f"resumed: {turn.resumed}, stored: {len(turn.replies)}", flush=True)
            if not turn.resumed:
                await turn.reply(
                    {
                        "role": "assistant",
                        "tool_calls": [
                            {"id": "call-1", "function": {"name": "book", "arguments": "{}"}}
                        ],
                    }
                )
                await turn.reply({"role": "tool", "tool_call_id": "call-1", "content": "Room 7"})
                os._exit(1)  # as kill -9 does: nothing is closed
            await turn.reply({"role": "assistant", "content": "You have room 7."})
        print((await chat.history())[-1].content)


if __name__ == "__main__":
    asyncio.run(main())
