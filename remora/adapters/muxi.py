"""MUXI's `BufferMemory` over a remora session: only the names are its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import msgspec

from remora.api.session import Session
from remora.errors import InvalidInput
from remora.messages import ChatDict, Message, Receipt, Role
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.threads import run_in_thread

__all__ = ["BufferMemory"]

_JSON_IN_THREAD = 200_000  # characters
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


def list_chats(summaries: Iterable[ChatDict], messages: Iterable[Message]) -> list[ChatDict]:
    """Return what `Session.contents` gives, as chat dicts."""
    return [*summaries, *(message.to_chat() for message in messages)]


def format_messages(summaries: Iterable[ChatDict], messages: Iterable[Message]) -> list[ChatDict]:
    """Return what `Session.contents` gives, as role and content only."""
    chats = list_chats((), messages)
    return [*summaries, *({"role": one["role"], "content": one.get("content")} for one in chats)]


async def encode_state(state: Mapping[str, Any], buffer_size: int | None) -> str:
    """A `Session.state_dict` as JSON, with ``buffer_size``: the policy's number of messages."""

    def encode() -> bytes:
        rest = {**state, "buffer_size": buffer_size}
        # message by message: encoding all at once would keep the interpreter from the loop
        messages = b",".join(map(msgspec.json.encode, rest.pop("messages")))
        return b'{"messages":[%b],%b' % (messages, msgspec.json.encode(rest)[1:])

    return (await run_in_thread(encode)).decode()


async def decode_state(text: str | bytes) -> dict[str, Any]:
    """Return what `encode_state` wrote.

    Raises:
        InvalidInput: it is not such JSON.
    """
    large = len(text) > _JSON_IN_THREAD if isinstance(text, (str, bytes)) else False
    try:
        return await run_in_thread_if(large, _decode_state, text)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as e:
        raise InvalidInput(f"this is not the JSON of a session: {e}") from e


def _decode_state(text: str | bytes) -> dict[str, Any]:
    return msgspec.json.decode(text, type=dict[str, Any])
