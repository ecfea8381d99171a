"""Messages and memories with the dates that they had elsewhere: recall and contexts show these.

``python -m examples.earlier_dates DIRECTORY``
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import remora

OLD_CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "I moved to Oslo.", "created_at": "2024-03-01T09:00:00Z"},
    {"role": "assistant", "content": "How is it?", "created_at": "2024-03-01T09:00:04Z"},
]


async def main(directory: str) -> None:
    async with remora.Runtime(directory) as runtime:
        alice = runtime.user("alice")
        await alice.session("support-17").append(OLD_CHAT, key="support-17")  # once, run twice
        await alice.remember({"content": "Speaks Norwegian", "created_at": "2023-06-30"})
        context = await alice.session("today").load(query="Where did I move to in March 2024?")
        print(context.messages[0]["content"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
