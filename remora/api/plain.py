"""A session's buffer in the plain shapes that other libraries' interfaces return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from remora.errors import InvalidInput
from remora.messages import ChatDict, Message
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.threads import run_in_thread

_JSON_IN_THREAD = 200_000  # characters


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
