"""Messages as a request carries them, and what answers hold as the classes of a `Runtime`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

from remora.api.turn import Spoken
from remora.errors import InvalidInput, InvalidMessage
from remora.messages import ChatDict, Message, MessageLike, Receipt, parse_time
from remora.messages.entry import MAX_DEPTH, no_message
from remora.rest import shapes
from remora.services.arguments import check_int
from remora.services.intake import as_batch, as_messages
from remora.services.metadata import copy_json


def plain_messages(messages: MessageLike | Iterable[MessageLike]) -> list[ChatDict]:
    """One message or many as plain dicts.

    Raises:
        InvalidMessage, InvalidInput: it is no message, or there is none, or there are too many.
    """
    return [_plain(one, index) for index, one in enumerate(as_batch(messages))]


def spoken_messages(spoken: Spoken, role: Literal["user", "assistant"]) -> list[ChatDict]:
    """Return what is said in a turn."""
    if isinstance(spoken, str):
        return [{"role": role, "content": spoken}]
    return plain_messages(spoken)


def _plain(message: object, index: int) -> ChatDict:
    if isinstance(message, Mapping):
        chat: ChatDict = dict(message)
    elif isinstance(message, Message):
        chat = message.to_chat()
        for name in ("id", "created_at", "metadata"):
            if (value := getattr(message, name)) is not None:
                chat[name] = value
    else:
        raise no_message(message, index)
    at = chat.pop("created_at", None)
    try:
        plain: ChatDict = copy_json(chat, MAX_DEPTH)
    except InvalidInput as e:
        raise InvalidMessage(f"message {index} cannot be sent: {e}", index=index) from e
    if at is not None:
        try:
            parse_time(at)
        except ValueError as e:
            raise InvalidMessage(f"message {index}: created_at {e}", index=index) from e
        plain["created_at"] = at
    return plain


def all_messages(messages: MessageLike | Iterable[MessageLike]) -> list[ChatDict]:
    """A conversation, however long.

    Raises:
        InvalidMessage: it is none.
    """
    return [_plain(one, n) for n, one in enumerate(as_messages(messages, most=sys.maxsize - 1))]


def receipt_of(answer: shapes.Appended) -> Receipt:
    """Return what was stored."""
    return Receipt(answer.seqs, answer.ids, answer.duplicate)


# -- lists that the server gives page by page ------------------------------------------------------

_PAGE = 1_000


async def list_all(
    read: Callable[[int, str | None], Awaitable[list[Any]]],
    limit: int | None,
    after: str | None,
    cursor: str = "cursor",
) -> list[Any]:
    """All items behind the cursor `after`, at most `limit`.

    Args:
        read: gives at most so many items, behind a cursor.
        limit: how many at most; None for all.
        after: where they begin; None for the first one.
        cursor: the attribute of an item that asks for those behind it.

    Raises:
        InvalidInput: the limit is not a positive number.
    """
    if limit is not None:
        check_int(limit, "limit", low=1)
    found: list[Any] = []
    while True:
        size = _PAGE if limit is None else min(limit - len(found), _PAGE)
        page = await read(size, after)
        found += page
        if len(page) < size or len(found) == limit:
            return found
        after = getattr(page[-1], cursor)
