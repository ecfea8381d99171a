"""MUXI's `BufferMemory` over a remora session: only the names are its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from remora.api.plain import decode_state, encode_state, format_messages, list_chats
from remora.api.session import Session
from remora.messages import ChatDict, Message, Receipt, Role

__all__ = ["BufferMemory"]

_SUMMARY_PREFIX = "Previous conversation summary: "


class BufferMemory:
    """MUXI's buffer.

    Its ``buffer_size`` and ``summarizer`` are the session's policy:
    ``BufferPolicy.window(5, fold="summary")``.

    Each user has sessions of their own; `filter_metadata` filters messages within one conversation.

    Args:
        session: the conversation.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    async def add_message(
        self, role: Role, content: str, metadata: Mapping[str, Any] | None = None
    ) -> Receipt:
        """Append a message; see `remora.Session.append`.

        Raises:
            InvalidMessage: it is not a chat message; nothing was written.
        """
        return await self.session.append(
            Message(role=role, content=content, metadata=dict(metadata) if metadata else None)
        )

    async def get_messages(
        self, filter_metadata: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """The buffer: dicts with ``role``, ``content``, ``timestamp`` (UTC) and ``metadata``."""
        return [
            _in_muxi_format(message)
            for message in await self.session.get_messages(filter_metadata=filter_metadata)
        ]

    async def get_formatted_messages(self) -> list[ChatDict]:
        """The summary as a message, if any, and role and content of each message."""
        return format_messages(*await self.session.contents(summary_prefix=_SUMMARY_PREFIX))

    async def get_context(self) -> list[ChatDict]:
        """The summary as a message, if any, and each message as a chat API takes it."""
        return list_chats(*await self.session.contents())

    async def get_summary(self) -> str | None:
        """MUXI's attribute ``summary``."""
        summary: str | None = (await self.session.state_dict())["summary"]
        return summary

    async def to_json(self) -> str:
        """Messages, size and summary as JSON; see `remora.Session.state_dict`."""
        view = await self.session.inspect()
        return await encode_state(await self.session.state_dict(), view.policy.above_messages)

    @classmethod
    async def from_json(cls, text: str | bytes, session: Session) -> Self:
        """Restore the output of `to_json` into a session; its policy stays the runtime's.

        Raises:
            InvalidInput: it is not such JSON.
            InvalidMessage: a message in it is invalid; nothing was changed.
        """
        await session.load_state_dict(await decode_state(text))
        return cls(session)


def _in_muxi_format(message: Message) -> dict[str, Any]:
    assert message.created_at is not None
    fields = {
        "role": message.role,
        "content": message.content,
        "timestamp": message.created_at.isoformat(),
    }
    return {**fields, "metadata": message.metadata} if message.metadata else fields
