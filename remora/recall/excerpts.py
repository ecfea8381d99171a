"""Messages that are larger than their share of a context, shown in part.

An excerpt keeps the head and the tail of a text and says how much is between, and which message has
it. Tool calls keep valid JSON: only the texts in their arguments are shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from remora.actors.policies.units import units
from remora.actors.session.messages import Snapshot
from remora.actors.session.window import WindowRules
from remora.config import Config
from remora.messages import (
    ChatDict,
    Entry,
    decode_chat,
    has_media,
    plain_text,
    remove_hidden,
)
from remora.messages.attachments import as_reference
from remora.models.clipping import clip, replace_data, size_words
from remora.recall.attached import lighten, shorten_attachments
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.probes import probe
from remora.storage.records import MessageRange
from remora.tokens import TokenCounter, count_message

_TRIES = 6
_AROUND, _LEAST_AROUND = 4, 1_000  # characters that are looked at, for one that is shown
_NO_RESULT = "[no result: the call was interrupted, or its result has not come]"
_BYTES_ON_LOOP, _ON_LOOP = 50_000, 50  # of messages that are shortened, and they themselves
_KEPT = frozenset({"role", "name", "tool_call_id", "tool_calls"})

_encode = msgspec.msgpack.Encoder(enc_hook=as_reference).encode


def window_rules(config: Config, counter: TokenCounter) -> WindowRules:
    """How a runtime fits its contexts."""
    return WindowRules(
        no_result=partial(_close_call, count=partial(count_message, counter)),
        whole_results=config.context.whole_results,
        stub_tokens=config.context.stub_tokens,
        recent=config.context.recent,
        recall_room=config.recall.room,
        lighten=partial(lighten, count=partial(count_message, counter)),
        whole_attachments=config.attachments.newest,
        kept_results=frozenset(config.context.keep_results),
    )


def _close_call(call: str, count: Callable[[ChatDict], int]) -> Entry:
    """The entry that closes a tool call without a result; it has no number."""
    chat: ChatDict = {"role": "tool", "tool_call_id": call, "content": _NO_RESULT}
    return Entry(0, 0, count(chat), "tool", _encode(chat), answers=call)


async def shorten_messages(snapshot: Snapshot, counter: TokenCounter) -> Snapshot:
    """Return what a session showed, each message at most as large as its share."""
    if not snapshot.shares:
        return snapshot
    pairs = list(zip(snapshot.entries, snapshot.shares, strict=True))
    cut = [entry.size for entry, share in pairs if share < entry.tokens]
    shown = await run_in_thread_if(
        sum(cut) > _BYTES_ON_LOOP or len(cut) > _ON_LOOP,
        lambda: [
            _shorten(entry, share, counter) if share < entry.tokens else entry
            for entry, share in pairs
        ],
    )
    before = sum([entry.tokens for entry in snapshot.entries])
    after = sum([entry.tokens for entry in shown])
    return msgspec.structs.replace(
        snapshot,
        entries=tuple(shown),
        shares=(),
        shortened=len(cut),
        shortened_tokens=before - after,
        tokens=snapshot.tokens + after - sum(snapshot.shares),
    )


def leave_room(snapshot: Snapshot, room: int) -> Snapshot:
    """Return the shown units without the oldest, if names and ids make excerpts too long.

    The instructions, the newest message of the user and the newest unit stay.
    """
    excess = snapshot.tokens - room
    if excess <= 0:
        return snapshot
    entries, pinned = list(snapshot.entries), snapshot.pinned
    parts = units(entries[pinned:])
    asked = max((n for n, one in enumerate(entries) if one.role == "user"), default=-1)
    gone: list[int] = []
    for unit in parts[:-1]:
        if excess > 0 and asked != pinned + unit.start:
            gone.extend(range(pinned + unit.start, pinned + unit.end))
            excess -= unit.tokens
    if not gone:
        return snapshot
    probe("excerpts_too_long")
    left, lost = {*gone}, [entries[n] for n in gone if entries[n].seq]
    seqs = [one.seq for one in lost]
    gap = snapshot.gap or MessageRange(seqs[0], seqs[-1], 0) if seqs else snapshot.gap
    if gap is not None and seqs:
        first, through = min(gap.first, *seqs), max(gap.last, *seqs)
        gap = MessageRange(first, through, gap.count + len(seqs))
    return msgspec.structs.replace(
        snapshot,
        entries=tuple([one for n, one in enumerate(entries) if n not in left]),
        tokens=snapshot.tokens - sum(entries[n].tokens for n in gone),
        omitted=snapshot.omitted + len(lost),
        omitted_tokens=snapshot.omitted_tokens + sum(one.tokens for one in lost),
        gap=gap,
    )


def _shorten(entry: Entry, share: int, counter: TokenCounter) -> Entry:
    probe("message_shortened")
    chat, whole, size = decode_chat(entry.chat), entry.tokens, len(entry.chat)
    if has_media(entry):
        count = partial(count_message, counter)
        light, whole = shorten_attachments(entry, share, count)
        if whole <= share:
            return msgspec.structs.replace(entry, chat=_encode(light), meta=None, tokens=whole)
        chat = decode_chat(_encode(light))
        size = len(_encode(chat))
    what = "this result" if entry.answers is not None else "this message"
    room = max(size * share // max(whole, 1), 1)
    for number in range(_TRIES):
        left_out = max(size - room, 1)
        note = f"[… {size_words(left_out)} of {what} are left out; it is message {entry.seq} …]"
        if number >= _TRIES - 2:
            note, room = ("…", 0) if number == _TRIES - 2 else ("", 0)
        shorter = _excerpt(chat, max(room - len(note), 0), note)
        tokens = count_message(counter, shorter)
        if tokens <= share:
            break
        room = min(room * share // tokens, room - room // 8)
    # what came with it belongs to the whole message
    return msgspec.structs.replace(entry, chat=_encode(shorter), meta=None, tokens=tokens)


def _excerpt(chat: ChatDict, most: int, note: str) -> ChatDict:
    """The message with about `most` characters of its texts."""
    shorter: ChatDict = {key: chat[key] for key in chat if key in _KEPT}
    said = plain_text({key: value for key, value in chat.items() if key != "tool_calls"})
    calls: Sequence[dict[str, Any]] = chat.get("tool_calls") or ()
    asked = sum(len(_arguments(call)) for call in calls)
    own = most if not asked else max(most - asked, most * len(said) // (len(said) + asked))
    shorter["content"] = _clip(said, own, note) if said or not calls else None
    if calls and asked > most - own:
        each = (most - own) // len(calls)
        shorter["tool_calls"] = [_shorten_call(call, each, note) for call in calls]
    return shorter


def _clip(text: str, most: int, note: str) -> str:
    """`clip` of what a model may read of a text; of a long one, the middle is not looked at."""
    around = max(_AROUND * most, _LEAST_AROUND)
    if len(text) > 2 * around:
        text = text[:around] + text[-around:]
    return clip(replace_data(remove_hidden(text)), most, note)


def _arguments(call: dict[str, Any]) -> str:
    text: str = call["function"]["arguments"] if "function" in call else call["custom"]["input"]
    return text


def _shorten_call(call: dict[str, Any], most: int, note: str) -> dict[str, Any]:
    text = _arguments(call)
    if len(text) <= most:
        return call
    if "custom" in call:
        return {**call, "custom": {**call["custom"], "input": clip(text, most, note)}}
    shorter = msgspec.json.encode({"left_out": note}).decode()
    with suppress(msgspec.DecodeError, RecursionError):
        arguments, longest = msgspec.json.decode(text), most
        for _ in range(_TRIES):
            clipped = msgspec.json.encode(_clip_texts(arguments, longest, note)).decode()
            if len(clipped) <= most + len(note):
                shorter = clipped
                break
            longest //= 2
    return {**call, "function": {**call["function"], "arguments": shorter}}


def _clip_texts(value: object, most: int, note: str) -> Any:
    if isinstance(value, str):
        return clip(value, most, note)
    if isinstance(value, dict):
        return {key: _clip_texts(one, most, note) for key, one in value.items()}
    if isinstance(value, list):
        return [_clip_texts(one, most, note) for one in value]
    return value
