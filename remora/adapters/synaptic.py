"""Synaptic's `ConversationSummaryBufferMemory` over remora: only the names are its own."""

from __future__ import annotations

from collections.abc import Iterable

from remora.api.runtime import Runtime
from remora.messages import ChatDict, MessageLike, Receipt

__all__ = ["ConversationSummaryBufferMemory"]


class ConversationSummaryBufferMemory:
    """Recent messages as they are, older ones as a running summary: a runtime's default.

    Synaptic's ``store``, ``model`` and ``max_token_limit`` are the runtime's::

        Runtime(journal=store, chat_model=model, policy=BufferPolicy.summary_buffer(500))

    Args:
        runtime: stores the conversations.
        user: the owner of the conversations.
    """

    def __init__(self, runtime: Runtime, *, user: str = "default") -> None:
        self._user = runtime.user(user)

    async def append(self, session: str, message: MessageLike | Iterable[MessageLike]) -> Receipt:
        """Store a message, or many as one append; see `remora.Session.append`."""
        return await self._user.session(session).append(message)

    async def load(self, session: str) -> list[ChatDict]:
        """The summary, as a message, and later messages; see `remora.Session.load`."""
        return [*(await self._user.session(session).load()).messages]

    async def clear(self, session: str) -> None:
        """Remove messages and summary of this session; see `remora.Session.clear`."""
        await self._user.session(session).clear()
