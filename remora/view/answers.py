"""The page's questions to a memory, each answered from one moment of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from itertools import pairwise, repeat
from typing import Any

import anyio
import msgspec

from remora.actors.blocks.source import Source
from remora.api.runtime import Runtime
from remora.api.status import RuntimeStatus
from remora.cluster.operating import JobLine, job_line, list_erasures, list_jobs
from remora.cluster.reading import MemoryReader, find_journals
from remora.cluster.sharded import ShardIds
from remora.cluster.sharding import shard_of
from remora.errors import InvalidInput
from remora.ids import SessionKey
from remora.messages import Entry, decode_chat, plain_text, restore_message, tool_calls
from remora.messages.text import MEDIA_PARTS, TEXT_PARTS, attachment_words, part_text
from remora.recall.context import Context
from remora.recall.memory import Memory
from remora.runtime.threads import run_in_thread
from remora.services.arguments import check_page
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.listing import UserListing, merge_users
from remora.storage.records import MessageRange, Summary, Watermarks
from remora.storage.sqlite.outline import Compaction, SessionOutline
from remora.storage.sqlite.peek import peek_counts, peek_sessions, peek_users
from remora.storage.sqlite.read_only import ReadOnlyJournal
from remora.view.health import ask_about

PAGE = 100
_MOST_MESSAGES = 200
_MOST_JOBS = 500
_MOST_CALLS = 50  # tool calls and attachments of a message
_STATES = ("dead", "running", "delayed", "waiting")
_CUT = 2_000  # characters of a message in a list
_COUNTED_FOR = 20  # times as long as counting took, the counts are kept
_LONGEST = 100_000  # of a message alone


class CallLine(msgspec.Struct, frozen=True):
    """A call of a tool; its arguments are cut as the text is."""

    id: str
    name: str
    arguments: str


class MessageLine(msgspec.Struct, frozen=True):
    """A message; `cut` is set where the text goes on.

    Attributes:
        text: its content, without tool calls.
        attachments: for each part without text: its kind, and the name and size of a file.
        calls: the tools that it calls.
        answers: the call whose result it is; empty for none.
    """

    seq: int
    role: str
    name: str
    text: str
    cut: bool
    tokens: int
    at: datetime | None
    importance: float
    id: str
    attachments: list[str]
    calls: list[CallLine]
    answers: str
    metadata: Any


class CountsAnswer(msgspec.Struct, frozen=True):
    """How much a memory has."""

    users: int
    sessions: int
    messages: int


class SessionLine(msgspec.Struct, frozen=True):
    """A session in a listing; `live` says whether it is in a process's memory, None if unknown."""

    session: str
    messages: int
    last_at: datetime
    cursor: str
    live: bool | None


class SessionAnswer(msgspec.Struct, frozen=True):
    """A session without its messages.

    Attributes:
        seconds: how long compactions took, by their number in the journal; only the process that
            made them knows, and only of the newest.
    """

    user: str
    session: str
    last_seq: int
    watermarks: Watermarks
    buffered: int
    buffered_tokens: int
    pending: int
    pending_tokens: int
    token_limit: int
    summary: Summary | None
    summaries: Sequence[Summary]
    degraded: MessageRange | None
    state_keys: int
    trimmed: int
    removed: Sequence[MessageRange]
    compactions: Sequence[Compaction]
    seconds: dict[int, float]
    jobs: Sequence[JobLine]


class JobsAnswer(msgspec.Struct, frozen=True):
    """Background work. `jobs` has 500 at most, dead letters and those that run first.

    The figures count all.
    """

    queues: dict[str, dict[str, int]]
    jobs: Sequence[JobLine]
    erasures: Sequence[WaitingErasure]


@asynccontextmanager
async def open_shard(
    reader: MemoryReader, user: str, *, long_term: bool = False
) -> AsyncIterator[Runtime]:
    """The runtime that has the user, at this moment."""
    async with reader.open(user=user, long_term=long_term) as memory:
        assert isinstance(memory, Runtime)
        yield memory


class Answers:
    """Answers from a memory directory that another process may own.

    Args:
        reader: reads the directory.
    """

    def __init__(self, reader: MemoryReader) -> None:
        self.reader = reader
        self._counts: CountsAnswer | None = None
        self._counts_kept_until = 0.0
        self._counting = anyio.Lock()

    async def counts(self) -> CountsAnswer:
        """How much the memory has, or had a moment ago: a large one takes a while to count."""
        async with self._counting:
            began = anyio.current_time()
            if self._counts is None or began > self._counts_kept_until:
                journals = await run_in_thread(find_journals, self.reader.directory)
                found = [await run_in_thread(peek_counts, one) for one in journals]
                self._counts = CountsAnswer(*map(sum, zip(*found, strict=True)))
                took = anyio.current_time() - began
                self._counts_kept_until = anyio.current_time() + _COUNTED_FOR * took
            return self._counts

    async def users(self, prefix: str, after: str | None, order: str) -> Sequence[UserListing]:
        """A page of users."""
        page = check_page(order, prefix, PAGE, after)
        journals = await run_in_thread(find_journals, self.reader.directory)
        uses = await self._unwritten_uses(len(journals))
        found = [
            await run_in_thread(peek_users, one, page, unwritten)
            for one, unwritten in zip(journals, uses, strict=True)
        ]
        return merge_users(found, page)

    async def _unwritten_uses(self, shards: int) -> Sequence[tuple[int, ...] | None]:
        """Return each shard's unwritten last uses, of the process that has the memory open."""
        status = await ask_about(self.reader.directory, uses=True)
        uses = () if status is None else status.unwritten_uses
        return uses if len(uses) == shards else (None,) * shards

    async def sessions(
        self, user: str, prefix: str, after: str | None, order: str
    ) -> Sequence[SessionLine]:
        """A page of a user's sessions."""
        page = check_page(order, prefix, PAGE, after)
        journals = await run_in_thread(find_journals, self.reader.directory)
        shard = shard_of(user, len(journals))
        uses = (await self._unwritten_uses(len(journals)))[shard]
        found = await run_in_thread(peek_sessions, journals[shard], user, page, uses)
        names = [(user, one.session) for one in found]
        status = await ask_about(self.reader.directory, sessions=names)
        live = None if status is None else set(status.live)
        return [
            SessionLine(
                one.session,
                one.messages,
                one.last_at,
                one.cursor,
                None if live is None else (user, one.session) in live,
            )
            for one in found
        ]

    async def session(self, key: SessionKey) -> SessionAnswer | None:
        """A session without its messages; None if there is none."""
        async with open_shard(self.reader, key.user) as runtime:
            view = await runtime.session(*key).inspect()
            outline = await _outline(runtime, key)
            jobs = await runtime.internals.journal.user_jobs(key.user)
        if not view.last_seq and view.keyed is None:
            return None
        status = await ask_about(self.reader.directory, compactions=tuple(key))
        return SessionAnswer(
            key.user,
            key.session,
            view.last_seq,
            view.watermarks,
            view.buffered,
            view.buffered_tokens,
            view.pending,
            view.pending_tokens,
            self.reader.config.buffer.token_limit,
            view.summary,
            view.summaries,
            view.degraded,
            0 if view.keyed is None else len(view.keyed.values),
            outline.trimmed,
            outline.removed,
            outline.compactions,
            _durations(outline, status),
            [job_line(job) for job in jobs if job.key == key],
        )

    async def messages(self, key: SessionKey, first: int, last: int) -> list[MessageLine]:
        """Messages of a range that are there: one with 100,000 characters, several with 2,000 each.

        Raises:
            InvalidInput: the range is too long.
        """
        if not 1 <= first <= last < first + _MOST_MESSAGES:
            raise InvalidInput(f"first and last must name 1 to {_MOST_MESSAGES} messages")
        async with open_shard(self.reader, key.user) as runtime:
            journal = runtime.internals.journal
            entries = await journal.read(key, first, last)
            places = [(key.session, one.seq) for one in entries]
            named = await journal.message_ids(key.user, places)
            ids = {seq: id_ for (_, seq), id_ in named.items()}
        alone = first == last
        make = partial(_line, ids=ids, cut=_LONGEST if alone else _CUT, alone=alone)
        return await run_in_thread(lambda: [make(one) for one in entries])

    async def jobs(self) -> JobsAnswer:
        """Background work of the whole memory."""
        status = await ask_about(self.reader.directory, jobs=True)
        shards = () if status is None else status.running
        name = ShardIds(len(shards)).name_one
        running = {name(number, id_) for number, ids in enumerate(shards) for id_ in ids}
        lines = [
            msgspec.structs.replace(line, state="running") if line.id in running else line
            for line in map(job_line, await list_jobs(self.reader.directory))
        ]
        lines.sort(key=lambda one: _STATES.index(one.state))
        queues: dict[str, dict[str, int]] = {}
        for line in lines:
            queues.setdefault(line.lane, dict.fromkeys(_STATES, 0))[line.state] += 1
        erasures = await list_erasures(self.reader.directory)
        return JobsAnswer(queues, lines[:_MOST_JOBS], erasures)


async def _outline(runtime: Runtime, key: SessionKey) -> SessionOutline:
    journal = runtime.internals.journal
    assert isinstance(journal, ReadOnlyJournal)
    return await journal.outline(key)


def _durations(outline: SessionOutline, status: RuntimeStatus | None) -> dict[int, float]:
    took = {} if status is None else {known[:2]: known[2] for known in status.compactions}
    places = {one.number: (one.summary.through, one.summary.tokens) for one in outline.compactions}
    return {number: took[place] for number, place in places.items() if place in took}


def _has_text(part: Mapping[str, Any]) -> bool:
    kind = part["type"]
    return kind in TEXT_PARTS or (kind not in MEDIA_PARTS and bool(part_text(part)))


def _line(entry: Entry, *, ids: Mapping[int, str], cut: int, alone: bool) -> MessageLine:
    message = restore_message(entry, ids.get(entry.seq, ""))
    chat = decode_chat(entry.chat)
    content = chat.get("content")
    attachments = []
    if isinstance(content, list):
        others = [one for one in content if not _has_text(one)]
        attachments = [attachment_words(one)[1:-1] for one in others[:_MOST_CALLS]]
        content = [one for one in content if _has_text(one)]
    text = plain_text(chat | {"content": content, "tool_calls": None})
    long = len(text) > cut
    calls = [
        CallLine(one.id, one.name, one.arguments[: cut // 2])
        for one in tool_calls(chat)[:_MOST_CALLS]
    ]
    return MessageLine(
        entry.seq,
        entry.role,
        message.name or "",
        text[:cut] if long else text,
        long,
        entry.tokens,
        message.created_at,
        entry.importance,
        message.id or "",
        attachments,
        calls,
        entry.answers or "",
        message.metadata if alone else None,
    )


# -- a context and a recall, with what became of each part -----------------------------------------

_MORE = 20  # memories behind the limit that are shown, with the reason
_MOST = 100
_CUT_KEPT = 4_000  # characters
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
        text, most = (
            plain_text(message),
            _CUT_KEPT if source != "recent" or recalled else _CUT_RECENT,
        )
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
        one.text[:_CUT_KEPT],
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
