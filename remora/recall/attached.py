"""Attachments in contexts: the newest ones whole, and a few words in place of the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from remora.actors.session.messages import Snapshot
from remora.messages import ChatDict, Entry
from remora.messages.attachments import (
    TEXT_KEYS,
    AttachedText,
    Blobs,
    as_reference,
    attached_to,
    decode_attached,
    find_blobs,
    has_attachments,
    is_attachment,
    put_back,
)
from remora.messages.text import MEDIA_PARTS, TEXT_PARTS, attachment_words
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread

Fetch: TypeAlias = Callable[[str, Sequence[bytes]], Awaitable[Mapping[bytes, bytes]]]
"""Reads a user's attachments."""

_encode = msgspec.msgpack.Encoder(enc_hook=as_reference).encode


_WORDS = frozenset({"content", "tool_calls", "audio", "refusal"})
"""Keys of a chat dict in which words may stand for bytes."""


def lighten(entry: Entry, count: Callable[[ChatDict], int]) -> Entry:
    """The message with words in place of its attachments, unless they take more tokens."""
    if not has_attachments(entry.chat, entry.meta):
        return entry
    chat = _shown(decode_attached(entry.chat), {}, ())
    tokens = count(chat)
    if tokens > entry.tokens:
        return entry
    # what came with it belongs to the whole message
    return msgspec.structs.replace(entry, chat=_encode(chat), meta=None, tokens=tokens, blobs=None)


async def attach(snapshot: Snapshot, user: str, fetch: Fetch, most: int) -> Snapshot:
    """Return what a session showed, with the bytes of its attachments.

    Args:
        snapshot: what it showed.
        user: whose attachments they are.
        fetch: reads them.
        most: bytes of attachments, in all; the newest come first.
    """
    if not snapshot.attached:
        return snapshot
    wanted: dict[bytes, int] = {}
    left = most
    for entry in reversed(snapshot.entries):
        for one in find_blobs(entry.chat, entry.meta):
            if one.digest not in wanted and one.size <= left:
                wanted[one.digest] = one.size
                left -= one.size
            elif one.digest not in wanted:
                probe("attachments_left_out")
    blobs = await fetch(user, list(wanted))
    missing = wanted.keys() - blobs.keys()
    entries = await run_in_thread(
        lambda: tuple([_filled(one, blobs, missing, as_text=False) for one in snapshot.entries])
    )
    size = snapshot.size + 2 * sum(map(len, blobs.values()))
    return msgspec.structs.replace(snapshot, entries=entries, size=size)


async def attach_all(entries: Sequence[Entry], user: str, fetch: Fetch) -> Sequence[Entry]:
    """The messages as they came, with the bytes of all their attachments."""
    digests = {
        one.digest: one.size for entry in entries for one in find_blobs(entry.chat, entry.meta)
    }
    if not digests:
        return entries
    blobs = await fetch(user, list(digests))
    missing = digests.keys() - blobs.keys()
    return await run_in_thread(
        lambda: [_filled(one, blobs, missing, as_text=True) for one in entries]
    )


def attach_own(entry: Entry) -> Entry:
    """A message on its way in, with the bytes that came with it."""
    return _filled(entry, entry.blobs or {}, (), as_text=True)


def _filled(entry: Entry, blobs: Blobs, missing: Collection[bytes], *, as_text: bool) -> Entry:
    """The message with these attachments in place; `as_text`: also where a model reads text."""
    if not has_attachments(entry.chat, entry.meta):
        return entry
    meta = entry.meta
    if meta is not None and all(one.digest in blobs for one in find_blobs(meta)):
        meta = _encode(put_back(decode_attached(meta), blobs))
    elif meta is not None:  # it belongs to the whole message
        meta = _encode(_fill(decode_attached(meta), blobs, missing, "")) if as_text else None
    decoded = decode_attached(entry.chat)
    filled = _fill(decoded, blobs, missing, "") if as_text else _shown(decoded, blobs, missing)
    chat = _encode(filled)
    return msgspec.structs.replace(entry, chat=chat, meta=meta, blobs=None)


def _shown(chat: ChatDict, blobs: Blobs, missing: Collection[bytes]) -> ChatDict:
    """The chat dict for a model, which takes encrypted reasoning whole or not at all."""
    return {
        key: _fill(value, blobs, missing, key, as_text=False)
        for key, value in chat.items()
        if key in _WORDS or all(one.digest in blobs for one in attached_to(value))
    }


def _fill(
    value: object, blobs: Blobs, missing: Collection[bytes], key: str, *, as_text: bool = True
) -> Any:
    """The data with these attachments, and words in place of the others."""
    if isinstance(value, AttachedText):
        whole = as_text or (key not in TEXT_KEYS and is_attachment(value))
        return put_back(value, blobs if whole else {})
    if isinstance(value, list):
        place = key if key == "content" and not as_text else ""
        return [_fill(one, blobs, missing, place, as_text=as_text) for one in value]
    if not isinstance(value, dict):
        return value
    if _is_part(value, key) and any(one.digest not in blobs for one in attached_to(value)):
        gone = ", missing" if any(one.digest in missing for one in attached_to(value)) else ""
        return {"type": "text", "text": f"{attachment_words(value)[:-1]}{gone}]"}
    return {name: _fill(one, blobs, missing, name, as_text=as_text) for name, one in value.items()}


def _is_part(value: dict[str, Any], key: str = "") -> bool:
    """Return whether it is a content part that is shown whole or not at all."""
    kind = value.get("type")
    return kind in MEDIA_PARTS or (key == "content" and kind not in TEXT_PARTS)


def shorten_attachments(
    entry: Entry, share: int, count: Callable[[ChatDict], int]
) -> tuple[ChatDict, int]:
    """The chat dict without so many attachments that it takes `share` tokens, the last first.

    Returns:
        It and its tokens, which are more if its texts are longer than that.
    """
    chat = decode_attached(entry.chat)
    parts = chat.get("content")
    places = []
    if isinstance(parts, list):
        places = [n for n, one in enumerate(parts) if _is_part(one)]
    tokens = entry.tokens
    for place in reversed(places):
        if tokens <= share:
            break
        assert isinstance(parts, list)
        parts[place] = {"type": "text", "text": attachment_words(parts[place])}
        tokens = count(chat)
    return chat, tokens
