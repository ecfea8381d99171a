"""What an agent asks of a memory: `put` and `get`, no more."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from remora.messages import ChatDict, MessageLike

__all__ = ["AgentMemory"]


@runtime_checkable
class AgentMemory(Protocol):
    """A memory that can be put in place of another, as `remora.adapters.llama_index.ChatMemory`
    can.

    An agent written against these two methods takes any of them; `remora.testing.MEMORY_CHECKS`
    says of one's own whether it follows.
    """

    async def put(self, message: MessageLike) -> Any:
        """Store one message.

        Raises:
            TypeError: it is no chat message; nothing was stored.
        """
        ...

    async def get(self) -> list[ChatDict]:
        """What the model should see now, oldest first, as dicts of the caller's own in the OpenAI
        chat format.
        """
        ...
