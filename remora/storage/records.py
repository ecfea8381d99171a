"""The records that actors write to the journal, and the images that restore them.

A record says what is true after it (watermarks are absolute), so a batch can be stored kind by
kind, and replaying one twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from remora.ids import SessionKey
from remora.messages import Entry
from remora.runtime.jobs import Job

_LARGE = 500  # items of state, which take some 3 ms


HOT_KEYS = 1_024
"""Idempotency keys of a session that are kept in memory; older ones are looked up."""


ENTRY_KIND = "entry"
"""Kind of state items for summary entries that left their list, named by their last message.

Their value is an `EntryFlushSpec`. Long-term memory is rebuilt from them; actors are restored
without them.
"""


class Watermarks(msgspec.Struct, frozen=True, gc=False):
    """How far a session has come; message numbers, 0 for not yet.

    Attributes:
        generation: how often its past was replaced: cleared, rewound, or partly deleted.
        archived_through: messages up to here are out of the buffer: summarized, dropped, or
            cleared.
        summarizing_through: messages up to here are frozen and wait for their summary; equal to
            `archived_through` when none do.
        indexing_through: messages up to here are in long-term memory, or in a journalled flush job.
        cleared_through: messages up to here were cleared: their ids may be used again.
    """

    generation: int = 0
    archived_through: int = 0
    summarizing_through: int = 0
    indexing_through: int = 0
    cleared_through: int = 0


class MessageRange(msgspec.Struct, frozen=True, gc=False):
    """Some of the messages from `first` to `last`.

    Attributes:
        first: the first of them.
        last: the last of them.
        count: how many they are: all from `first` to `last` but those that were deleted or rewound
            and, in a range that was joined from several, those between them.
    """

    first: int
    last: int
    count: int


class Summary(msgspec.Struct, frozen=True):
    """A running summary, or one entry of a summary list.

    The text of a fallback summary is what a model wrote before it, and lines extracted from
    messages. The messages that it covers are in `lost`, in `verbatim`, or covered by the model's
    part.

    Attributes:
        through: the last message that it covers.
        prefix: what its message begins with.
        text: what it says.
        tokens: size of the message that carries it.
        degraded: the configured model failed, and this is a fallback summary (G6).
        model: what wrote it.
        first: the first message that it covers.
        input_tokens: what the summarizer was given, by the runtime's counter.
        lost: messages that neither a model's part nor whole lines cover; see `find_lost`.
        verbatim: messages whose whole text is in extracted lines.
        prose: characters at the start of `text` that a model wrote; of a model's own summary, 0.
        brief: a fallback of at most `buffer.summary_tokens`, for contexts in which `text` does not
            fit; empty if `text` is no longer than that.
        brief_tokens: size of the message that carries `brief`.
    """

    through: int
    prefix: str
    text: str
    tokens: int
    degraded: bool
    model: str
    first: int = 1
    input_tokens: int = 0
    lost: tuple[MessageRange, ...] = ()
    verbatim: tuple[MessageRange, ...] = ()
    prose: int = 0
    brief: str = ""
    brief_tokens: int = 0

    @property
    def blank(self) -> bool:
        """Return whether it lost its text with a deleted message.

        No context shows it (`erase_text`).
        """
        return not (self.tokens or self.text)

    @property
    def extracted(self) -> bool:
        """Return whether the text has lines extracted from messages, and is no model's."""
        return bool(self.verbatim) or self.degraded or self.model in _EXTRACTORS


RESTORED = "restored"
"""What a summary has as its model that came from outside: nobody knows who wrote it."""
_EXTRACTORS = frozenset({"extractive", "lead", "tail", "none"})


def model_name(name: str) -> str:
    """Return the recorded writer of a model's summary: never the name of an extractor."""
    return f"{name} (custom)" if name in _EXTRACTORS else name


def find_lost(summary: Summary) -> tuple[MessageRange, ...]:
    """The messages of a summary's range that it lost.

    A fallback of an earlier version does not say which, so it may have lost all of them.
    """
    if summary.lost or summary.verbatim or not summary.extracted:
        return summary.lost
    count = summary.through - summary.first + 1
    return (MessageRange(summary.first, summary.through, count),) if count > 0 else ()


def join_lost(ranges: Iterable[MessageRange]) -> MessageRange | None:
    """One range from the first to the last of these, with all their messages; None for none."""
    found = [one for one in ranges if one.count]
    if not found:
        return None
    return MessageRange(
        min(one.first for one in found),
        max(one.last for one in found),
        sum(one.count for one in found),
    )


def merge_ranges(ranges: Iterable[MessageRange]) -> tuple[MessageRange, ...]:
    """The same messages in order, in as few ranges as their numbers allow."""
    merged: list[MessageRange] = []
    for one in sorted((one for one in ranges if one.count), key=lambda part: part.first):
        if merged and merged[-1].last + 1 == one.first:
            before = merged.pop()
            merged.append(MessageRange(before.first, one.last, before.count + one.count))
        else:
            merged.append(one)
    return tuple(merged)


def without_messages(
    ranges: Iterable[MessageRange], gone: Iterable[int]
) -> tuple[MessageRange, ...]:
    """The ranges without these messages, each of which is one message less."""
    left = list(ranges)
    for seq in gone:
        found = next((one for one in left if one.count and one.first <= seq <= one.last), None)
        if found is not None:
            place = left.index(found)
            parts = (
                MessageRange(found.first, seq - 1, min(found.count - 1, seq - found.first)),
                MessageRange(seq + 1, found.last, max(found.count - 1 - (seq - found.first), 0)),
            )
            left[place : place + 1] = [one for one in parts if one.count]
    return tuple(left)


CHANGE_KIND = "change"
"""Kind of state items for appends under a key that only changed messages, named by the key's
digest in hexadecimal; their value is a `ChangedUnder`."""


class ChangedUnder(msgspec.Struct, frozen=True, array_like=True):
    """An append under an idempotency key that only changed messages.

    Attributes:
        seqs: numbers of all its messages.
        digest: of what they said.
    """

    seqs: tuple[int, ...]
    digest: bytes


READER_KIND = "reader"
"""Kind of state items for budgets that a session is loaded with; their value is a `Reader`."""


class Reader(msgspec.Struct, frozen=True, array_like=True):
    """A budget that a session is loaded with.

    Attributes:
        budget: in tokens.
        seen: the newest message at the last such load that is known.
        summary: covers the session up to a message in the buffer; None for none so far.
    """

    budget: int
    seen: int
    summary: Summary | None = None


# -- jobs ------------------------------------------------------------------------------------------

SummaryKind: TypeAlias = Literal["summary", "entry", "condense", "repair", "ahead"]


class SummarizeSpec(msgspec.Struct, frozen=True, tag="summarize"):
    """Summarize the frozen prefix `first`…`through`.

    Attributes:
        kind: ``summary`` continues the running summary; ``entry`` makes a summary entry of this
            prefix; ``condense`` merges the oldest entry, which covers `first`…`through`, into the
            running summary; ``repair`` adds lost messages from `first` on to the summary or entry
            that ends at `through`; ``ahead`` makes a summary of all up to `through`, which stay
            in the buffer.
        budget: of ``ahead``: tokens of the contexts that it is for.
    """

    sid: int
    generation: int
    first: int
    through: int
    kind: SummaryKind = "summary"
    budget: int = 0


class FlushSpec(msgspec.Struct, frozen=True, tag="flush"):
    """Index messages `first`…`through` in long-term memory.

    Attributes:
        completes: the messages just before `first` were indexed when they were the newest: their
            rows are written again, with their later neighbours.
    """

    sid: int
    first: int
    through: int
    completes: bool = False


class UnflushSpec(msgspec.Struct, frozen=True, tag="unflush"):
    """Remove deleted messages from long-term memory, which has messages up to `flushing`.

    Attributes:
        changed: those of them that are to be written again, with other content.
        entries: the last messages of summary entries that go as well.
    """

    sid: int
    seqs: tuple[int, ...]
    flushing: int
    changed: tuple[int, ...] = ()
    entries: tuple[int, ...] = ()


class DiscardSpec(msgspec.Struct, frozen=True, tag="discard"):
    """Remove messages from long-term memory that the journal says it must not have."""

    sid: int
    seqs: tuple[int, ...]


class EntryFlushSpec(msgspec.Struct, frozen=True, tag="entry_flush"):
    """Index a summary entry that left its list in long-term memory."""

    sid: int
    entry: Summary
    at_us: int


class BlocksSpec(msgspec.Struct, frozen=True, tag="blocks"):
    """Feed the session's memory blocks the messages up to `through` that they have not seen."""

    sid: int
    through: int


class FactsSpec(msgspec.Struct, frozen=True, tag="facts"):
    """Extract facts from messages `first`…`through`.

    Attributes:
        again: they had other content before, whose facts are deleted.
    """

    sid: int
    first: int
    through: int
    again: bool = False


class RecordSpec(msgspec.Struct, frozen=True, tag="record"):
    """Index recorded memories in long-term memory; `ids` name rows of the journal.

    Attributes:
        replaced: ids of rows in long-term memory that are removed first.
    """

    sid: int
    ids: tuple[str, ...]
    replaced: tuple[str, ...] = ()


class PruneSpec(msgspec.Struct, frozen=True, tag="prune"):
    """Prune a user's long-term memory to `keep` rows.

    Attributes:
        keep: rows that stay, at most; -1 for no bound.
        strategy: fifo, age, importance or lru.
        max_age_s: older rows are removed, with the strategy age; 0 for no bound.
        types: memory types to prune; empty for all.
    """

    sid: int
    keep: int
    strategy: str
    max_age_s: float = 0.0
    types: tuple[str, ...] = ()


class SynopsisSpec(msgspec.Struct, frozen=True, tag="synopsis"):
    """Rewrite a user's synopsis."""

    sid: int
    number: int


Spec: TypeAlias = (
    SummarizeSpec
    | FlushSpec
    | UnflushSpec
    | DiscardSpec
    | EntryFlushSpec
    | BlocksSpec
    | FactsSpec
    | RecordSpec
    | PruneSpec
    | SynopsisSpec
)


# -- records ---------------------------------------------------------------------------------------


class Opened(msgspec.Struct, frozen=True):
    """An actor's first write; `session` is empty for a user's own actor."""

    sid: int
    user: str
    session: str
    at_us: int


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Messages, and the digest of their idempotency key.

    The first `archived` of them never enter the buffer: a `BufferMoved` with them begins behind.
    """

    sid: int
    entries: tuple[Entry, ...]
    key: bytes | None
    archived: int = 0


FrontChange: TypeAlias = Literal["dropped", "cleared", "restated"]


class StoredMessage(msgspec.Struct, frozen=True):
    """A message of the journal.

    Attributes:
        entry: the message.
        key: digest of the idempotency key, if it is the first that came under one.
        batch: how many messages came under it.
    """

    entry: Entry
    key: bytes | None = None
    batch: int | None = None


BLANK_CHAT = msgspec.msgpack.encode({"role": "tool", "tool_call_id": "", "content": ""})
"""What a message has as its chat dict when its content was erased, or could not be read."""


def erase_content(stored: StoredMessage) -> StoredMessage:
    """The message without what it said: its number, time, role and id are left."""
    blank = msgspec.structs.replace(
        stored.entry,
        tokens=0,
        chat=BLANK_CHAT,
        meta=None,
        calls=(),
        answers=None,
        importance=0.5,
        blobs=None,
    )
    return msgspec.structs.replace(stored, entry=blank)


def erase_text(summary: Summary) -> Summary:
    """The summary without its text: no context shows it until it is written again."""
    return msgspec.structs.replace(
        summary,
        text="",
        tokens=0,
        degraded=True,
        model="none",
        lost=(),
        verbatim=(),
        prose=0,
        brief="",
        brief_tokens=0,
    )


class BufferMoved(msgspec.Struct, frozen=True):
    """The front of a buffer or its summaries changed, and jobs started or ended with it (G7).

    Attributes:
        watermarks: after the change. With a new generation, the summaries given here replace those
            of the past; otherwise they are added to them.
        at_seq: the newest message's number; needed with `reason` or summaries.
        reason: why the front moved without a summary; empty if it did not.
        summary: a new running summary.
        summaries: new summary entries.
        removed: numbers of the messages that no reader sees any more.
        changed: messages with other content than before.
        erased: those of `removed` whose content goes, as they are from then on (`erase_content`);
            summaries of earlier generations that cover one lose their texts.
        ended: ids of jobs that end.
        jobs: jobs that start.
    """

    sid: int
    watermarks: Watermarks
    at_seq: int = 0
    reason: FrontChange | Literal[""] = ""
    summary: Summary | None = None
    summaries: tuple[Summary, ...] = ()
    removed: tuple[int, ...] = ()
    changed: tuple[StoredMessage, ...] = ()
    ended: tuple[str, ...] = ()
    jobs: tuple[Job, ...] = ()
    erased: tuple[StoredMessage, ...] = ()


class Flushed(msgspec.Struct, frozen=True):
    """Messages up to `through` are in long-term memory."""

    sid: int
    through: int


class JobsStarted(msgspec.Struct, frozen=True):
    """Jobs that no other record starts."""

    sid: int
    jobs: tuple[Job, ...]


class JobAdvanced(msgspec.Struct, frozen=True):
    """A part of a job is done: its payload is this one from now on. Nothing if it has ended."""

    sid: int
    job: Job


class StateItem(msgspec.Struct, frozen=True):
    """A small value that an actor keeps: a block's state, a working memory item, a grant, ...

    Attributes:
        kind: what it is.
        name: which one of its kind.
        value: msgpack; only its owner decodes it.
    """

    kind: str
    name: str
    value: bytes


class StateChanged(msgspec.Struct, frozen=True):
    """State items put, replacing those of the same kind and name; then items dropped."""

    sid: int
    put: tuple[StateItem, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()


INSTRUCTION = "instruction"
"""The type of a memory that is a standing instruction: it is shown, and not searched."""


class MemoryItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A recorded memory.

    Attributes:
        id: deterministic (`remora.ids.memory_id`).
        session: where it was learned; empty for none.
        agent: the agent that it belongs to; empty for all of the user's agents.
        content: what to remember.
        type: fact, preference, context, procedural, message_batch or instruction.
        importance: 0 to 1, as given.
        created_us: microseconds since the epoch.
        tokens: size in a context.
        key: the caller's own name for it; empty for none.
        metadata: a JSON object, as text; empty for none.
        revision: distinguishes its texts, so that an earlier one is not taken for it; 0 for the
            first text of a memory without a key.
        updated_us: when it was changed last, in microseconds since the epoch; 0 for never.
        sources: of a fact or an instruction that was extracted, the messages of `session` that it
            rests on, in order.
        topic: what an extracted fact is about, and the first half of its id: of the facts of one
            topic, the newest holds. Empty for what was recorded on purpose.
    """

    id: str
    session: str
    agent: str
    content: str
    type: str
    importance: float
    created_us: int
    tokens: int
    key: str = ""
    metadata: str = ""
    revision: int = 0
    updated_us: int = 0
    sources: tuple[int, ...] = ()
    topic: str = ""

    @property
    def row_id(self) -> str:
        """The id of its row in long-term memory: another one for each of its texts."""
        return f"{self.id}.{self.revision}" if self.revision else self.id


class Remembered(msgspec.Struct, frozen=True):
    """Memories of a user, and the job that indexes them. Existing ones stay as they are."""

    sid: int
    memories: tuple[MemoryItem, ...]
    jobs: tuple[Job, ...]


class MemoryChanged(msgspec.Struct, frozen=True):
    """A memory of a user is this one from now on; and the job that indexes it again."""

    sid: int
    memory: MemoryItem
    jobs: tuple[Job, ...]


class MemoriesRemoved(msgspec.Struct, frozen=True):
    """Memories of a user were removed; and the job that removes their rows, if there is none."""

    sid: int
    ids: tuple[str, ...]
    jobs: tuple[Job, ...] = ()


class Pruned(msgspec.Struct, frozen=True):
    """Messages of a session must not be in long-term memory. The journal keeps them.

    Attributes:
        key: the session; a user's own actor, which prunes, does not know its number.
        seqs: the messages.
        entries: summary entries that left their list, by their last message.
    """

    key: SessionKey
    seqs: tuple[int, ...]
    entries: tuple[int, ...] = ()


# -- saved actors ----------------------------------------------------------------------------------


class SavedSession(msgspec.Struct, frozen=True):
    """The image of a session's actor.

    Attributes:
        sid: the actor's number in this journal; a new actor gets it here.
        opened: False for a session that has never written.
        watermarks: how far it has come.
        next_seq: number of the next message.
        entries: messages after `watermarks.archived_through` that were not removed, in order.
        summary: the running summary of this generation.
        summaries: entries of this generation that the running summary does not cover, oldest first.
        keys: digests of idempotency keys.
        keys_complete: whether `keys` holds all of them.
        has_ids: whether messages between `watermarks.cleared_through` and the buffer carry ids
            that their sender gave.
        state_items: in the order in which they were first put.
        jobs: its job rows, without dead letters.
    """

    sid: int
    opened: bool
    watermarks: Watermarks
    next_seq: int
    entries: tuple[Entry, ...]
    summary: Summary | None
    keys: frozenset[bytes]
    keys_complete: bool
    jobs: tuple[Job, ...] = ()
    summaries: tuple[Summary, ...] = ()
    has_ids: bool = False
    state_items: tuple[StateItem, ...] = ()

    @property
    def is_large(self) -> bool:
        """Return whether it takes milliseconds to restore."""
        return False  # a buffer has limits


class SavedUser(msgspec.Struct, frozen=True):
    """The image of a user's own actor."""

    sid: int
    opened: bool
    state_items: tuple[StateItem, ...] = ()
    jobs: tuple[Job, ...] = ()

    @property
    def is_large(self) -> bool:
        """Return whether it takes milliseconds to restore."""
        return len(self.state_items) >= _LARGE
