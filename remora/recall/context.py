"""The result of `load`, and how it is put together from what fits.

Many chat APIs want a user's message first. Where the conversation that is shown begins with an
assistant's, and a model is to answer, the summary before it has the role ``user``.

What is stable goes first: memory blocks, the synopsis, the summaries, then the messages. So the
front of the prompt stays the same until a compaction replaces it (`prefix_changed` says when), and
a provider's prompt cache keeps it. What was recalled for one question goes before the newest user
message, where it moves nothing in front of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, cast

import msgspec

from remora.actors.blocks.source import Source
from remora.actors.policies.units import needs_user_before
from remora.actors.session.messages import Snapshot
from remora.actors.user.messages import ScoredItem, Synopsis
from remora.config import ContextConfig
from remora.messages import (
    ChatDict,
    ContextMessages,
    Entry,
    decode_chats,
    kept_metadata,
    loop_begin,
)
from remora.recall.conversation import Conversation
from remora.recall.memory import Memory
from remora.recall.quotes import is_quotation, summary_message

# -- the share of each tier of memory in a context -------------------------------------------------

_OFF = Source("off")
_role_of, _meta_of = attrgetter("role"), attrgetter("meta")
_BLOCK = "block:"


class Sources(msgspec.Struct, frozen=True):
    """The status of each tier in a context: ``context.sources.long_term.status``.

    By name as well, for logs and loops: ``sources["long_term"]``, ``sources["block:NAME"]``,
    ``sources.items()``, ``dict(sources)``. A type checker finds a misspelt field, not a misspelt
    name.

    Attributes:
        summary: the running summary and the summary entries.
        recent: the messages of the conversation.
        synopsis: the user profile.
        working: working memory.
        long_term: long-term memory.
        instructions: the user's standing instructions.
        blocks: memory blocks, by name.
    """

    summary: Source = _OFF
    recent: Source = _OFF
    synopsis: Source = _OFF
    working: Source = _OFF
    long_term: Source = _OFF
    instructions: Source = _OFF
    blocks: dict[str, Source] = msgspec.field(default_factory=dict)

    def __getitem__(self, name: str) -> Source:
        if name in _TIERS:
            source: Source = getattr(self, name)
            return source
        block = name.removeprefix(_BLOCK)
        if block == name or block not in self.blocks:
            raise KeyError(f"no source {name!r}; there are {', '.join(self)}")
        return self.blocks[block]

    def __iter__(self) -> Iterator[str]:
        yield from _TIERS
        for name in self.blocks:
            yield f"{_BLOCK}{name}"

    def keys(self) -> list[str]:
        """The names: of the tiers, then ``block:NAME`` for each memory block."""
        return list(self)

    def items(self) -> list[tuple[str, Source]]:
        """Name and status of each tier and memory block."""
        return [(name, self[name]) for name in self]


_TIERS = tuple(name for name in Sources.__struct_fields__ if name != "blocks")


class ContextEntry(msgspec.Struct, frozen=True, gc=False):
    """Which stored message a message of a context is.

    Attributes:
        seq: its number in the session, as in `Receipt.seqs` and `Message.seq`.
        id: its id, as in `Receipt.ids` and `Message.id`.
    """

    seq: int
    id: str


class Context(msgspec.Struct, frozen=True):
    """The result of `load`: a snapshot; changing it changes nothing.

    Attributes:
        messages: plain dicts in the OpenAI chat format, ready to send.
        tokens: their size by the configured counter, at most the budget.
        summary: the text of the running summary and the summary entries that are among them.
        memories: what was recalled from long-term memory, best first.
        working: what was recalled from working memory, best first.
        synopsis: the synopsis, if it is among them.
        sources: what each tier gave, and what became of it.
        prefix_changed: the front of `messages` differs from the last load of this session.
        pending: messages among them that wait for their summary.
        omitted: messages of the buffer that are not among them: the oldest, which did not fit, and
            those that wait for the results of `awaiting`.
        awaiting: ids of the newest tool calls that have no result. If nothing was said since, these
            calls and the results that they have are withheld until all results are there. If
            somebody has spoken, a message that says so stands for the result that is missing.
        orphans: results of tools that lost their call, left out.
        entries: for each of `messages`, in the same order, which stored message it is. None for a
            message that remora wrote (summary, user profile, recalled memories, memory blocks, the
            result of a call that has none) and for one that `load(override=…)` was given. What was
            recalled has its session and number in `memories`. A message keeps its entry if recalled
            memories or blocks are put into it.
        kept: what one API needs back with the calls of tools of the current loop, such as signed
            reasoning: metadata of these messages, by their places in `messages`. The functions of
            `remora.formats` take the whole context, and use it.
    """

    messages: ContextMessages
    tokens: int
    summary: str | None
    memories: tuple[Memory, ...]
    sources: Sources
    prefix_changed: bool
    pending: int
    omitted: int
    awaiting: tuple[str, ...]
    orphans: int
    working: tuple[ScoredItem, ...] = ()
    synopsis: Synopsis | None = None
    entries: tuple[ContextEntry | None, ...] = ()
    kept: dict[int, dict[str, Any]] = msgspec.field(default_factory=dict)


class Selection(msgspec.Struct, frozen=True):
    """The parts of a context, except memory blocks.

    Attributes:
        conversation: summaries and messages.
        tokens: the size of the selection.
        sources: what each tier gave, except the conversation.
        synopsis_message: the synopsis as a message.
        synopsis: the synopsis itself.
        recalled_message: the recalled lines as a message of their own.
        newest: the newest message with the recalled lines at its start, where they go into it.
        memories: the memories in it, from long-term memory.
        working: the items in it, from working memory.
    """

    conversation: Conversation
    tokens: int
    sources: Sources = Sources()
    synopsis_message: ChatDict | None = None
    synopsis: Synopsis | None = None
    recalled_message: ChatDict | None = None
    newest: ChatDict | None = None
    memories: tuple[Memory, ...] = ()
    working: tuple[ScoredItem, ...] = ()


def build_context(
    snapshot: Snapshot, chosen: Selection, config: ContextConfig, *, prefix_changed: bool
) -> Context:
    """Build the context from a selection."""
    shown = chosen.conversation
    pinned, rest = shown.entries[: snapshot.pinned], shown.entries[snapshot.pinned :]
    messages: list[ChatDict] = decode_chats(pinned)
    if chosen.synopsis_message is not None:
        messages.append(chosen.synopsis_message)
    messages.extend([summary_message(one, config) for one in shown.summaries])
    first = len(messages)
    entries = _identify(snapshot, shown.entries)
    entries[snapshot.pinned : snapshot.pinned] = [None] * (first - snapshot.pinned)
    messages.extend(decode_chats(rest))
    for chat in [one for one in messages if "audio" in one] if snapshot.attached else ():
        sound = chat["audio"]
        if isinstance(sound, dict) and "id" in sound:  # the API has it under its id
            chat["audio"] = {"id": sound["id"]}
    if shown.summaries and needs_user_before(rest):
        messages[first - 1]["role"] = "user"
    asked = newest_user(rest)
    newest, recalled = first + asked, chosen.recalled_message is not None
    begin = loop_begin(rest, _role_of) if any(map(_meta_of, rest)) else len(rest)
    kept = {
        first + place + (recalled and place >= asked): metadata
        for place, entry in enumerate(rest[begin:], start=begin)
        if entry.meta is not None
        and (place != asked or chosen.newest is None)  # recalled lines are in it
        and (metadata := kept_metadata(entry))
    }
    if chosen.newest is not None:
        messages[newest] = chosen.newest
    if chosen.recalled_message is not None:
        messages.insert(newest, chosen.recalled_message)
        entries.insert(newest, None)
    return Context(
        messages=cast("ContextMessages", messages),
        tokens=chosen.tokens,
        summary="\n".join([one.text for one in shown.summaries]) or None,
        memories=chosen.memories,
        working=chosen.working,
        synopsis=chosen.synopsis,
        sources=msgspec.structs.replace(
            chosen.sources, summary=shown.summary_source, recent=shown.recent_source
        ),
        prefix_changed=prefix_changed,
        pending=snapshot.pending,
        omitted=snapshot.omitted,
        awaiting=snapshot.awaiting,
        orphans=snapshot.orphans,
        entries=tuple(entries),
        kept=kept,
    )


def _identify(snapshot: Snapshot, entries: Sequence[Entry]) -> list[ContextEntry | None]:
    prefix = snapshot.id_prefix
    if not prefix:
        return [None] * len(entries)
    # twice as fast as a loop over the entries, which made it a fifth of a load
    seqs, given = [one.seq for one in entries], [one.id for one in entries]
    ids = list(map(f"{prefix}%x".__mod__, seqs))
    if any(given):
        ids = [one or derived for one, derived in zip(given, ids, strict=True)]
    found: list[ContextEntry | None] = list(map(ContextEntry, seqs, ids))
    return found if all(seqs) else [one if one.seq else None for one in found if one is not None]


def conversation_range(snapshot: Snapshot, chosen: Selection) -> range:
    """Where the conversation's own messages are in the context of a selection.

    Recalled lines may be among them, before the newest user message. Instructions at the beginning
    of the session come before them.
    """
    first = snapshot.pinned + len(chosen.conversation.summaries)
    first += chosen.synopsis_message is not None
    entries = chosen.conversation.entries[snapshot.pinned :]
    among = chosen.recalled_message is not None and newest_user(entries) < len(entries)
    return range(first, first + len(entries) + among)


def quoted_places(snapshot: Snapshot, chosen: Selection) -> set[int]:
    """Which messages in the context of a selection repeat stored text."""
    first = snapshot.pinned + int(chosen.synopsis_message is not None)
    places = set(range(snapshot.pinned, first))
    places.update(
        n for n, one in enumerate(chosen.conversation.summaries, first) if is_quotation(one)
    )
    if chosen.recalled_message is not None:
        entries = chosen.conversation.entries[snapshot.pinned :]
        places.add(first + len(chosen.conversation.summaries) + newest_user(entries))
    return places


def newest_user(entries: Sequence[Entry]) -> int:
    """The index of the newest message of the user; the length if there is none."""
    for i in range(len(entries) - 1, -1, -1):
        if entries[i].role == "user":
            return i
    return len(entries)
