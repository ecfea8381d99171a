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
    attached_to,
    decode_attached,
    find_blobs,
    has_attachments,
    is_attachment,
    put_back,
)
from remora.messages.text import attachment_words
from remora.runtime.probes import probe
from remora.runtime.threads import run_in_thread

__all__ = ["Fetch", "attach", "attach_all", "lighten"]

Fetch: TypeAlias = Callable[[str, Sequence[bytes]], Awaitable[Mapping[bytes, bytes]]]
"""Reads a user's attachments."""

_encode = msgspec.msgpack.Encoder().encode


def lighten(entry: Entry, count: Callable[[ChatDict], int]) -> Entry:
    """The message with words in place of its attachments, unless they take more tokens."""
    if not has_attachments(entry.chat, entry.meta):
        return entry
    chat = _in_words(decode_attached(entry.chat), frozenset())
    tokens = count(chat)
    if tokens > entry.tokens:
        return entry
    # what came with it belongs to the whole message
    return msgspec.structs.replace(entry, chat=_encode(chat), meta=None, tokens=tokens, blobs=None)


async def attach(snapshot: Snapshot, user: str, fetch: Fetch, most: int) -> Snapshot:
    """What a session showed, with the bytes of the newest attachments.

    Args:
        snapshot: what it showed.
        user: whose attachments they are.
        fetch: reads them.
        most: bytes of attachments, in all; the newest come first.
    """
    if not snapshot.attached:
        return snapshot
    own: dict[bytes, bytes] = {}
    wanted: dict[bytes, int] = {}
    left = most
    for entry in reversed(snapshot.entries):
        own.update(entry.blobs or {})
        new = {one.digest: one.size for one in find_blobs(entry.chat, entry.meta)}
        new = {digest: size for digest, size in new.items() if digest not in wanted}
        if sum(new.values()) > left:
            probe("attachments_left_out")
            break
        left -= sum(new.values())
        wanted.update(new)
    blobs = {**await fetch(user, [one for one in wanted if one not in own]), **own}
    blobs = {digest: data for digest, data in blobs.items() if digest in wanted}
    entries = await run_in_thread(
        lambda: tuple([_show(entry, blobs, wanted) for entry in snapshot.entries])
    )
    size = snapshot.size + 2 * sum(map(len, blobs.values()))
    return msgspec.structs.replace(snapshot, entries=entries, size=size)


def _show(entry: Entry, blobs: Blobs, wanted: Collection[bytes]) -> Entry:
    if not has_attachments(entry.chat, entry.meta):
        return entry
    here = {one.digest for one in find_blobs(entry.chat, entry.meta)}
    meta = None
    if here <= blobs.keys():
        chat = _whole(decode_attached(entry.chat), blobs, "")
        if entry.meta is not None:
            meta = _encode(put_back(decode_attached(entry.meta), blobs))
    else:
        chat = _in_words(decode_attached(entry.chat), {*wanted} - blobs.keys())
    return msgspec.structs.replace(entry, chat=_encode(chat), meta=meta, blobs=None)


async def attach_all(entries: Sequence[Entry], user: str, fetch: Fetch) -> Sequence[Entry]:
    """The messages as they came, with the bytes of all their attachments."""
    digests = {
        one.digest: one.size for entry in entries for one in find_blobs(entry.chat, entry.meta)
    }
    if not digests:
        return entries
    blobs = await fetch(user, list(digests))
    return await run_in_thread(lambda: [_restored(entry, blobs) for entry in entries])


def _restored(entry: Entry, blobs: Blobs) -> Entry:
    if not has_attachments(entry.chat, entry.meta):
        return entry
    meta = entry.meta
    if meta is not None:
        meta = _encode(put_back(decode_attached(meta), blobs))
    chat = _encode(put_back(decode_attached(entry.chat), blobs))
    return msgspec.structs.replace(entry, chat=chat, meta=meta, blobs=None)


def _whole(value: Any, blobs: Blobs, key: str) -> Any:
    """The data with its attachments; words where a model would read the bytes as text."""
    if isinstance(value, AttachedText):
        return put_back(value, blobs if key not in TEXT_KEYS and is_attachment(value) else {})
    if isinstance(value, dict):
        return {name: _whole(one, blobs, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole(one, blobs, "") for one in value]
    return value


def _in_words(value: Any, missing: Collection[bytes]) -> Any:
    """The data with words in place of attachments: of a part that is one, a text part."""
    if isinstance(value, AttachedText):
        return value.words
    if isinstance(value, list):
        return [_in_words(one, missing) for one in value]
    if not isinstance(value, dict):
        return value
    blobs = attached_to(value)
    if "type" in value and value["type"] not in {"text", "refusal", "function", "custom"} and blobs:
        gone = ", missing" if any(one.digest in missing for one in blobs) else ""
        return {"type": "text", "text": f"{attachment_words(value)[:-1]}{gone}]"}
    return {key: _in_words(one, missing) for key, one in value.items()}
