"""The interface that an agent needs of a memory: `put` and `get`."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from remora.messages import ChatDict, MessageLike

__all__ = ["AgentMemory"]


@runtime_checkable
class AgentMemory(Protocol):
    """A memory that can replace another one, such as `remora.adapters.llama_index.ChatMemory`.

    An agent written against these two methods accepts any of them;
    `remora.testing.MEMORY_CHECKS` tests an implementation.
    """

    async def put(self, message: MessageLike) -> Any:
        """Store one message.

        Raises:
            TypeError: it is not a chat message; nothing was stored.
        """
        ...

    async def get(self) -> list[ChatDict]:
        """The messages for the model, oldest first: new dicts in the OpenAI chat format."""
        ...
