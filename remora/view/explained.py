"""A context and a recall, with what became of each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise, repeat

import msgspec

from remora.actors.blocks.source import Source
from remora.api.runtime import Runtime
from remora.cluster.reading import MemoryReader
from remora.errors import InvalidInput
from remora.ids import SessionKey
from remora.messages import plain_text
from remora.recall.context import Context
from remora.recall.memory import Memory
from remora.view.answers import open_shard

_MORE = 20  # memories behind the limit that are shown, with the reason
_MOST = 100
_CUT = 4_000  # characters
_CUT_RECENT = 400  # of a message of the session, which the page has a place for


class Shown(msgspec.Struct, frozen=True):
    """A message of a context.

    Attributes:
        source: ``synopsis`` (with standing instructions), ``instructions`` (without a synopsis),
            ``summary``, ``long_term`` (or working memory, with it) or ``recent``.
        tokens: of it, without those of `recalled`.
        recalled: tokens of recalled memories that are at its start.
        shortened: tokens that it lost, because it is shown in part.
        seq: its number in the session; 0 for what remora wrote.
        text: its beginning; `cut` is set where it goes on.
    """

    source: str
    role: str
    tokens: int
    recalled: int
    shortened: int
    seq: int
    text: str
    cut: bool


class ContextAnswer(msgspec.Struct, frozen=True):
    """The context of a model.

    Attributes:
        at: the message that was the newest; None for now.
        parts: tokens by source, in the order of the context.
        count: how many messages it has.
        messages: the first of these, as many as were asked for.
        shown: numbers of the session's messages that it has: the first and the last of each run.
    """

    budget: int
    at: int | None
    tokens: int
    parts: dict[str, int]
    sources: dict[str, Source]
    count: int
    messages: Sequence[Shown]
    shown: Sequence[tuple[int, int]]
    omitted: int
    pending: int
    awaiting: Sequence[str]
    orphans: int


class Hit(msgspec.Struct, frozen=True):
    """A memory that was found; `reason` says why a caller would not get it, empty if it would."""

    rank: int
    text: str
    role: str
    speaker: str
    type: str
    session: str
    seq: int
    at: datetime
    tokens: int
    score: float
    parts: dict[str, float]
    reason: str


class RecallAnswer(msgspec.Struct, frozen=True):
    """The recalled memories, best first; `note` says what could not be searched."""

    limit: int
    hits: Sequence[Hit]
    note: str


async def explain_context(
    reader: MemoryReader,
    key: SessionKey,
    *,
    budget: int,
    at: int | None,
    query: str | None,
    messages: int | None = None,
) -> ContextAnswer:
    """Return what `Session.load` would show a model.

    Args:
        reader: reads the directory.
        key: the session.
        budget: the most tokens.
        at: show the session as it was when this message was its newest.
        query: recall memories for this.
        messages: so many messages are in the answer; None for all.

    Raises:
        InvalidInput: no such message, or a negative budget.
    """
    async with open_shard(reader, key.user, long_term=bool(query)) as runtime:
        context = await runtime.session(*key).load(query or None, max_tokens=budget, at=at)
        shown = await _name_parts(runtime, key, context)
    parts: dict[str, int] = {}
    for one in shown:
        if one.recalled:
            parts["long_term"] = parts.get("long_term", 0) + one.recalled
        parts[one.source] = parts.get(one.source, 0) + one.tokens
    return ContextAnswer(
        budget,
        at,
        context.tokens,
        parts,
        dict(context.sources.items()),
        len(shown),
        shown[:messages],
        _runs([one.seq for one in shown if one.seq]),
        context.omitted,
        context.pending,
        context.awaiting,
        context.orphans,
    )


async def _name_parts(runtime: Runtime, key: SessionKey, context: Context) -> list[Shown]:
    """Each message with its source and tokens; see `remora.recall.context` for their order."""
    sources = context.sources
    own = [one.seq for one in context.entries if one is not None]
    stored: dict[int, int] = {}
    if own and (context.memories or sources.recent.shortened):  # else they are as they are stored
        # the instructions at the beginning may be far in front of the others
        gaps = (n for n, (seq, after) in enumerate(pairwise(own), 1) if after - seq > 1)
        gap = next(gaps, 0)
        for some in filter(None, (own[:gap], own[gap:])):
            entries = await runtime.internals.journal.read(key, min(some), max(some))
            stored |= {entry.seq: entry.tokens for entry in entries}
    written = iter(_written(context))
    shown = []
    for message, entry in zip(context.messages, context.entries, strict=True):
        tokens = runtime.message_tokens(message)
        seq = 0 if entry is None else entry.seq
        source = "recent" if entry is not None or message["role"] == "tool" else next(written)
        grown = tokens - stored.get(seq, tokens)
        recalled = max(grown, 0) if context.memories else 0
        text, most = plain_text(message), _CUT if source != "recent" or recalled else _CUT_RECENT
        part = text[:most]
        cut = len(text) > most
        shortened = max(-grown, 0)
        shown.append(
            Shown(source, message["role"], tokens - recalled, recalled, shortened, seq, part, cut)
        )
    return shown


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as runs without gaps: the first and the last of each."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        first = runs.pop()[0] if runs and runs[-1][1] == number - 1 else number
        runs.append((first, number))
    return runs


def _written(context: Context) -> Iterator[str]:
    """The sources of the messages that remora wrote, in their order."""
    if context.synopsis is not None:
        yield "synopsis"
    elif context.sources.instructions.count:
        yield "instructions"
    yield from repeat("summary", context.sources.summary.count)
    yield from repeat("long_term")


async def explain_recall(
    reader: MemoryReader, user: str, question: str, limit: int
) -> RecallAnswer:
    """Return what `User.recall` would find, and what it leaves out.

    Raises:
        InvalidInput: there is no question, or `limit` is not from 1 to 100.
        LongTermError, ModelError: it cannot be searched.
    """
    if not question.strip():
        raise InvalidInput("a question is missing")
    if not 1 <= limit <= _MOST:
        raise InvalidInput(f"limit must be from 1 to {_MOST}, not {limit}")
    async with open_shard(reader, user, long_term=True) as runtime:
        recall = runtime.internals.recall
        if recall is None:
            raise InvalidInput("long-term memory is switched off: long_term.enabled is false")
        floor = runtime.config.recall.relevance
        found = await recall(user, question, limit=limit + _MORE)
        relevant = await recall(user, question, limit=limit + _MORE, relevance=floor)
        note = recall.note(user)
    kept = {(one.session, one.id) for one in relevant}
    hits = []
    for rank, one in enumerate(found, start=1):
        reason = ""
        if rank > limit:
            reason = f"below the limit of {limit}"
        elif (one.session, one.id) not in kept:
            reason = f"load() leaves it out: under {floor:g} of the best score"
        hits.append(_hit(rank, one, reason))
    return RecallAnswer(limit, hits, note)


def _hit(rank: int, one: Memory, reason: str) -> Hit:
    return Hit(
        rank,
        one.text[:_CUT],
        one.role,
        one.speaker,
        one.type,
        one.session,
        one.seq,
        one.created_at,
        one.tokens,
        one.score,
        one.parts,
        reason,
    )
