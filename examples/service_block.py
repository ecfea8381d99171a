"""A memory service (mem0, Zep, one of your own) as a memory block.

Messages that leave the buffer are sent to the service, and its results are shown. The client here
is an offline stand-in with mem0's two calls, `add` and `search`; the block works unchanged with
the real one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import remora
from remora.blocks import BaseMemoryBlock, ChatMessage


class MemoryClient(Protocol):
    async def add(self, messages: list[dict[str, str]], *, user_id: str) -> Any: ...

    async def search(
        self, query: str, *, filters: dict[str, str], top_k: int
    ) -> dict[str, Any]: ...


class ServiceBlock(BaseMemoryBlock[str], kw_only=True):
    client: MemoryClient

    async def _aput(self, messages: list[ChatMessage]) -> None:
        assert self.services is not None
        said = [{"role": message.role, "content": message.content} for message in messages]
        await self.client.add(said, user_id=self.services.user_id)

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        if not messages:
            return ""
        filters = {"user_id": block_kwargs["user_id"]}
        found = await self.client.search(messages[-1].content, filters=filters, top_k=3)
        return "\n".join(f"- {one['memory']}" for one in found["results"])


class OfflineClient:
    """Stores messages, and searches them by shared words."""

    def __init__(self) -> None:
        self.memories: list[tuple[str, str]] = []

    async def add(self, messages: list[dict[str, str]], *, user_id: str) -> dict[str, Any]:
        self.memories.extend(
            (user_id, message["content"]) for message in messages if message["role"] == "user"
        )
        return {"results": []}

    async def search(self, query: str, *, filters: dict[str, str], top_k: int) -> dict[str, Any]:
        words = set(query.lower().split())
        mine = [text for user, text in self.memories if user == filters["user_id"]]
        ranked = sorted(mine, key=lambda text: -len(words & set(text.lower().split())))
        return {
            "results": [
                {"memory": text} for text in ranked[:top_k] if words & set(text.lower().split())
            ]
        }


async def main() -> None:
    blocks = [ServiceBlock(name="service", client=OfflineClient(), priority=1)]
    async with remora.Runtime.in_memory(
        blocks=blocks, policy=remora.BufferPolicy.window(2)
    ) as runtime:
        chat = runtime.session("ana", "chat")
        for text in (
            "my cat is called Figaro",
            "I work in a bakery",
            "it rains",
            "what is my cat called",
        ):
            await chat.append({"role": "user", "content": text})
            await chat.settle()  # the service has the messages; a server does not wait for this
        for message in (await chat.load()).messages:
            print(f"{message['role']}: {message['content']}")


if __name__ == "__main__":
    asyncio.run(main())
