"""A session of the OpenAI Agents SDK over a remora session.

Needs the extra: ``pip install "remora[openai-agents]"``.

The SDK uses items of the Responses API, remora chat messages. Each item becomes an equivalent
message, so that `Session.load`, summaries and recall work on it; an item that cannot be converted
back exactly is stored in the message's metadata. Parallel function calls become one message, as a
chat API wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from remora.api.session import Session
from remora.errors import InvalidInput, InvalidMessage
from remora.formats.responses import items_of, read_part
from remora.messages import KEPT_PREFIX, ChatDict, Message, plain_text

try:
    from agents import SessionSettings, TResponseInputItem
except ImportError as e:
    raise ImportError(
        'a session of the OpenAI Agents SDK needs it: pip install "remora[openai-agents]"'
    ) from e

__all__ = ["RemoraSession", "chat_messages", "response_items"]

_KEY = "openai_agents"
_KEPT = f"{KEPT_PREFIX}{_KEY}"  # of items without a role: these count as tokens
_CALLS = frozenset({"function_call", "reasoning"})


class RemoraSession:
    """The SDK's ``Session`` protocol, for ``Runner.run(agent, input, session=…)``.

    `get_items` returns the summary, as a message, and the buffer: a run sees as much as the
    session's policy keeps, for any length of conversation. Only one runner at a time should use a
    session; several sessions may run at once.

    Args:
        session: the conversation.
        session_settings: the SDK's own; the runner applies its ``limit``.
        opaque: keep items that have neither a role nor a known type, such as those of the SDK's
            ``EncryptedSession``; otherwise they are refused. They count towards the tokens of a
            context, which shows a word in their place.
    """

    def __init__(
        self,
        session: Session,
        *,
        session_settings: SessionSettings | None = None,
        opaque: bool = False,
    ) -> None:
        self.session = session
        self.session_id = f"{session.key.user}/{session.key.session}"
        self.session_settings = session_settings
        self._opaque = opaque

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The summary and the buffer as items, or the newest `limit` of them.

        Raises:
            InvalidInput: a negative limit.
        """
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit must not be negative, not {limit}")
        summaries, messages = await self.session.contents()
        items = [cast("TResponseInputItem", summary) for summary in summaries]
        for message in messages:
            items.extend(response_items(message))
        return items if limit is None else items[max(len(items) - limit, 0) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items: all of them, or none.

        Raises:
            InvalidMessage: one of them is not an item; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        if items:
            await self.session.append(chat_messages(items, opaque=self._opaque))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the newest item; None if the buffer is empty.

        It is removed from `history` and long-term memory as well.
        """
        while newest := await self.session.get_messages(limit=1):
            message = newest[0]
            items = response_items(message)
            assert message.id is not None
            if len(items) > 1:  # one of several parallel calls: the others stay
                await self.session.append(chat_messages(items[:-1], opaque=self._opaque))
            if await self.session.delete(ids=message.id):
                return items[-1]
        return None

    async def clear_session(self) -> None:
        """Empty the buffer and the summary; see `remora.Session.clear`."""
        await self.session.clear()


def chat_messages(items: Iterable[TResponseInputItem], *, opaque: bool = False) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them.

    Raises:
        InvalidMessage: one of them is not an item.
    """
    messages: list[ChatDict] = []
    calls: list[Mapping[str, Any]] = []  # function calls in a row, and the reasoning before each

    def close() -> None:
        if any(item["type"] == "function_call" for item in calls):
            messages.append(_message(_message_of_calls(calls), calls))
        else:
            messages.extend(_message(_message_of_item(item), [item]) for item in calls)
        calls.clear()

    for index, item in enumerate(items):
        found: object = item
        if not isinstance(found, Mapping):
            raise InvalidMessage(
                f"item {index} is a {type(found).__name__}, not a dict of the Responses API",
                index=index,
            )
        if found.get("type") in _CALLS:
            calls.append(found)
            continue
        close()
        if opaque and "role" not in found and "type" not in found:
            kept = {_KEPT: [dict(found)]}
            messages.append({"role": "assistant", "content": "[item]", "metadata": kept})
        else:
            messages.append(_message(_message_of_item(found), [found]))
    close()
    return messages


def response_items(message: Message) -> list[TResponseInputItem]:
    """The items that a message was made from; equivalent items for other messages."""
    metadata = message.metadata or {}
    kept = metadata.get(_KEY, metadata.get(_KEPT))
    items = kept if kept is not None else _items(message.to_chat())
    return [cast("TResponseInputItem", item) for item in items]


def _message(chat: ChatDict, items: Iterable[Mapping[str, Any]]) -> ChatDict:
    originals = [dict(item) for item in items]
    return chat if _items(chat) == originals else {**chat, "metadata": {_KEY: originals}}


def _message_of_calls(items: Iterable[Mapping[str, Any]]) -> ChatDict:
    calls = [
        {
            "id": item.get("call_id"),
            "type": "function",
            "function": {"name": item.get("name"), "arguments": item.get("arguments")},
        }
        for item in items
        if item["type"] == "function_call"
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _message_of_item(item: Mapping[str, Any]) -> ChatDict:
    """The message of any other item."""
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role"), "content": _content(item.get("content"))}
    if kind == "function_call_output":
        return {
            "role": "tool",
            "tool_call_id": item.get("call_id"),
            "content": _text(item.get("output")),
        }
    said = _text(item.get("summary")) or _text(item.get("content"))
    return {"role": "assistant", "content": f"[{kind}] {said}".rstrip()}


def _content(content: Any) -> Any:
    """Text if there is only text; otherwise content parts of a chat API."""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return read_part(part, 0)
    except InvalidMessage:
        return {"type": "text", "text": f"[{part.get('type')}]"}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(
        str(part.get("text") or f"[{part.get('type')}]")
        for part in content
        if isinstance(part, Mapping)
    )


def _items(chat: ChatDict) -> list[dict[str, Any]]:
    """Equivalent items of a chat message, at least one."""
    if chat["role"] == "tool":
        return items_of({**chat, "content": plain_text(chat)})
    return items_of(chat) or [{"role": chat["role"], "content": plain_text(chat)}]
