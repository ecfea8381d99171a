"""Memories for a message that a framework has not stored yet."""

from __future__ import annotations

from remora.adapters.given import Conversation
from remora.messages import ChatDict, Message
from remora.recall.context import Context, ContextEntry
from remora.recall.memory import quote_memories
from remora.recall.quotes import is_recalled
from remora.services.arguments import MAX_TEXT_CHARACTERS


async def stored_messages(session: Conversation, context: Context) -> list[Message | ChatDict]:
    """The messages of a context, for an adapter that makes the framework's own of them.

    One that is shown as it was stored comes with its metadata; others (a summary, recalled lines,
    a memory block, a message that has recalled lines at its start) are plain dicts.
    """
    _, buffer = await session.contents()
    stored = {message.seq: message for message in buffer}
    shown: list[Message | ChatDict] = []
    for chat, entry in zip(context.messages, context.entries, strict=True):
        original = stored.get(entry.seq) if entry is not None else None
        same = original is not None and original.to_chat() == chat
        shown.append(original if original is not None and same else {**chat})
    return shown


async def load_stored(
    session: Conversation, query: str, *, max_tokens: int | None = None
) -> tuple[list[Message | ChatDict], ChatDict | None]:
    """The `stored_messages` for a message that is not stored yet, and the one with recalled lines.

    Recalled lines come apart, since they belong right before the new message.
    """
    context = await session.load(query if query.strip() else None, max_tokens=max_tokens)
    shown: list[Message | ChatDict] = []
    recalled: ChatDict | None = None
    for one in await stored_messages(session, context):
        if recalled is None and isinstance(one, dict) and is_recalled(one):
            recalled = one
        else:
            shown.append(one)
    return shown, recalled


async def recalled_message(session: Conversation, query: str) -> ChatDict | None:
    """A message with what is recalled for `query` and is not among the session's recent messages.

    None if nothing is, or there is no query.
    """
    if not query.strip():
        return None
    context = await session.load(query[:MAX_TEXT_CHARACTERS])
    _, found = split_recalled(context)
    if found is not None:
        return found
    # `recall.insert_method: user` has put it into a stored message
    text = quote_memories(context.memories)
    return {"role": "user", "content": text} if text else None


def split_recalled(
    context: Context,
) -> tuple[list[tuple[ChatDict, ContextEntry | None]], ChatDict | None]:
    """The other messages of a context, each with what it is of, and the one with recalled lines."""
    kept: list[tuple[ChatDict, ContextEntry | None]] = []
    found: ChatDict | None = None
    for message, entry in zip(context.messages, context.entries, strict=True):
        if found is None and entry is None and is_recalled(message):
            found = {**message}
        else:
            kept.append(({**message}, entry))
    return kept, found
