"""Memory blocks as text: sections in an envelope, put into the messages of a context."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from remora.actors.blocks.base import BlockContent
from remora.messages import (
    INSTRUCTING_ROLES,
    ChatDict,
    Role,
    content_parts,
    escape_tags,
    join_contents,
    remove_hidden,
    without_surrogates,
)

ENVELOPE = "memory"
"""The tag around all memory blocks of a message."""

InsertMethod: TypeAlias = Literal["system", "user", "tail"]
"""Where blocks go: the first system message, the newest user message, or a message before that."""


class Inserted(msgspec.Struct, frozen=True):
    """Messages with memory blocks in them.

    Attributes:
        messages: all of them.
        tokens: what the blocks added.
        place: the index of the message that was added for them; None if they are in another one.
    """

    messages: list[ChatDict]
    tokens: int
    place: int | None = None


def insert(
    messages: Sequence[ChatDict],
    sections: Sequence[tuple[str, BlockContent]],
    method: InsertMethod,
    count: Callable[[ChatDict], int],
    *,
    tail_role: Role = "user",
    conversation: range | None = None,
    quoted: Collection[int] = (),
) -> Inserted:
    """Put sections into messages.

    ``system``: at the end of the first system message that quotes nothing, or in a new one at the
    front. ``user``: at the start of the newest user message, or in a new one at the end. ``tail``:
    in a message of `tail_role` before the newest user message, or at the end.

    Args:
        messages: not changed.
        sections: name and content of each.
        method: where to.
        count: tokens of a chat message.
        tail_role: the role of a message at the tail.
        conversation: which of `messages` are the conversation's own; all by default. The newest
            user message is one of them.
        quoted: which of `messages` repeat stored text: nothing is added to a system message that
            does.
    """
    fresh = list(messages)
    if not sections:
        return Inserted(fresh, 0)
    memory = _render(sections)
    own = range(len(fresh)) if conversation is None else conversation
    at = _target(fresh, method, own, quoted)
    if at is None or method == "tail":
        role = tail_role if method == "tail" else method
        new: ChatDict = {"role": role, "content": memory}
        place = {"system": 0, "user": len(fresh), "tail": len(fresh) if at is None else at}[method]
        fresh.insert(place, new)
        return Inserted(fresh, count(new), place)
    old = fresh[at]
    parts = (old.get("content"), memory) if method == "system" else (memory, old.get("content"))
    fresh[at] = {**old, "content": join_contents(*parts)}
    return Inserted(fresh, count(fresh[at]) - count(old))


def _target(
    messages: Sequence[ChatDict],
    method: InsertMethod,
    conversation: range,
    quoted: Collection[int],
) -> int | None:
    if method == "system":
        for place, one in enumerate(messages):
            if one["role"] in INSTRUCTING_ROLES and place not in quoted:
                return place
        return None
    return next((i for i in reversed(conversation) if messages[i]["role"] == "user"), None)


def _render(sections: Sequence[tuple[str, BlockContent]]) -> BlockContent:
    """The envelope with all sections: text, or parts if a section has media."""
    names = [ENVELOPE, *(name for name, _ in sections)]
    parts: list[dict[str, Any]] = []
    text = [f"<{ENVELOPE}>"]
    for name, content in sections:
        text.append(f"<{name}>")
        for part in content_parts(content):
            if part["type"] == "text":
                text.append(escape_tags(remove_hidden(part["text"]), names))
            else:
                parts.extend(({"type": "text", "text": "\n".join(text)}, part))
                text = []
        text.append(f"</{name}>")
    text.append(f"</{ENVELOPE}>")
    rest = "\n".join(text)
    return [*parts, {"type": "text", "text": rest}] if parts else rest


def check_content(content: object) -> BlockContent:
    """The content that a block returned; empty text if it has no words and no media.

    Raises:
        TypeError: it is neither text nor a list of content parts.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return without_surrogates(content) if content.strip() else ""
    if not isinstance(content, (list, tuple)):
        raise TypeError(
            f"a memory block returns text or a list of content parts, not {type(content).__name__}"
        )
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or not isinstance(
            part.get(kind), str if kind == "text" else (str, dict)
        ):
            raise TypeError(f"not a content part: {str(part)[:80]!r}")
        parts.append({**part, "text": without_surrogates(part["text"])} if kind == "text" else part)
    if all(part["type"] == "text" and not part["text"].strip() for part in parts):
        return ""
    return parts


def characters(content: BlockContent) -> int:
    """Characters of its texts."""
    return sum(len(part["text"]) for part in content_parts(content) if part["type"] == "text")
