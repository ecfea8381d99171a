"""What is recalled for a message that a framework has not stored yet."""

from __future__ import annotations

from remora.api.session import Session
from remora.messages import ChatDict
from remora.recall.context import Context, ContextEntry
from remora.recall.memory import quote_memories
from remora.recall.quotes import is_recalled
from remora.services.arguments import MAX_TEXT_CHARACTERS

__all__ = ["recalled_message", "split_recalled"]


async def recalled_message(session: Session, query: str) -> ChatDict | None:
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
