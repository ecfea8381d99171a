"""The state of a session actor. Only `apply` changes it, record by record: replay equals live."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import msgspec

from remora.actors.keyed_state import KeyedValues, drop_keyed, put_keyed
from remora.actors.policies.buffer import BufferPolicy
from remora.ids import SessionKey, message_id_prefix
from remora.messages import ChatDict, Entry, counted_chat, has_media, leading_instructions
from remora.messages.attachments import decode_attached
from remora.runtime.actor import NeedsLookup
from remora.runtime.jobs import Job, JobDone
from remora.storage.keyed_values import KEYED_DECODERS, KEYED_KIND
from remora.storage.records import (
    CHANGE_KIND,
    HOT_KEYS,
    READER_KIND,
    Appended,
    BufferMoved,
    ChangedUnder,
    JobsStarted,
    MessageRange,
    Opened,
    Pruned,
    Reader,
    SavedSession,
    StateChanged,
    StateItem,
    StoredMessage,
    SummarizeSpec,
    Summary,
    Watermarks,
    find_lost,
    join_lost,
)

SUMMARIZE_QUEUE = "summarize"

HOT_CHANGES = 64
_decode_change = msgspec.msgpack.Decoder(ChangedUnder).decode
_decode_reader = msgspec.msgpack.Decoder(Reader).decode
_ENTRY_OVERHEAD_BYTES = 160  # of an Entry and its place in a list, without content
_MAX_ANSWERS = 8  # a message asks at most two questions; older answers are of no use


class PrefixShown(msgspec.Struct, frozen=True):
    """Volatile: what the last loaded context began with.

    Attributes:
        front: summaries, and the first messages.
        newest: number of the first message of the newest unit.
        shares: number and tokens of each message before the newest unit, if some are shortened.
        before: the one before it; None for none.
        recalls: whether room is kept for recalled memories.
        second: number of the second message, if it is before the newest unit; 0 if it is not.
        missing: places of messages that stand for results which have not come.
    """

    front: tuple[int, ...]
    newest: int = 0
    shares: tuple[tuple[int, int], ...] = ()
    before: PrefixShown | None = None
    recalls: bool = False
    second: int = 0
    missing: tuple[int, ...] = ()


class PinnedFound(msgspec.Struct, frozen=True):
    """Volatile: the instructions at the beginning of the session that have left the buffer."""

    entries: tuple[Entry, ...]


class ReaderSeen(msgspec.Struct, frozen=True):
    """Volatile: the session was loaded with a budget.

    Attributes:
        name: of the reader.
        reader: it, without a change of its summary.
        job: the id of the job that writes a summary for it; empty for none.
    """

    name: str
    reader: Reader
    job: str = ""


class BufferRestored(msgspec.Struct, frozen=True):
    """Volatile: the messages that are in the buffer again after a rewind."""

    entries: tuple[Entry, ...]


def summarize_job_id(sid: int, watermarks: Watermarks) -> str:
    """Deterministic, so a job written twice is one job. Watermarks only grow: no id is reused."""
    return f"summarize-{sid}-{watermarks.generation}-{watermarks.summarizing_through}"


def condense_job_id(sid: int, generation: int, through: int) -> str:
    """The id of the job that condenses the entry ending at `through`; see `summarize_job_id`."""
    return f"condense-{sid}-{generation}-{through}"


def ahead_job_id(state: SessionState, spec: SummarizeSpec) -> str:
    """The id of the job that summarizes up to a message in the buffer; see `repair_job_id`."""
    about = f"{spec.generation}-{spec.budget}-{spec.through}"
    return f"ahead-{state.sid}-{about}-{state.next_seq}-{state.planned}"


def repair_job_id(state: SessionState, spec: SummarizeSpec, lost: int) -> str:
    """The id of a job that summarizes lost messages again; see `summarize_job_id`.

    One that failed has changed nothing, so the next is told from it by its number alone: it may be
    started while the supervisor still hears that the first has ended.
    """
    about = f"{spec.generation}-{spec.through}-{lost}-{state.next_seq}"
    return f"repair-{state.sid}-{about}-{state.repairs}"


def opening(state: SessionState, at_us: int) -> list[Any]:
    """The record that comes before a session's first one; none if it is opened."""
    key = state.key
    return [] if state.opened else [Opened(state.sid, key.user, key.session, at_us)]


def message_ids(
    instance: str, sid: int, seqs: Iterable[int], given: Iterable[str | None]
) -> tuple[str, ...]:
    """The ids of messages: as given by their sender, or derived from their numbers."""
    prefix = message_id_prefix(instance, sid)
    pairs = zip(seqs, given, strict=True)
    return tuple([id_ or f"{prefix}{seq:x}" for seq, id_ in pairs])


class SessionState:
    """The state of a session actor. Only `apply` changes it."""

    __slots__ = (
        "ahead",
        "answers",
        "attached",
        "blocks",
        "changes",
        "condensing",
        "degraded",
        "entries",
        "erased",
        "has_ids",
        "ids",
        "key",
        "keyed",
        "keys",
        "keys_complete",
        "light",
        "next_seq",
        "opened",
        "pending",
        "pending_tokens",
        "pending_weight",
        "pinned",
        "planned",
        "policy",
        "readers",
        "repair",
        "repairs",
        "running_tokens",
        "shown",
        "sid",
        "size",
        "summaries",
        "summary",
        "tokens",
        "tools",
        "watermarks",
        "weight",
    )

    def __init__(self, key: SessionKey, image: SavedSession, policy: BufferPolicy) -> None:
        self.key = key
        self.policy = policy
        self.sid = image.sid
        self.opened = image.opened
        self.watermarks = image.watermarks
        self.next_seq = image.next_seq
        self.entries: list[Entry] = list(image.entries)
        """Messages after `archived_through`; the first `pending` are being summarized."""
        self.summary = image.summary
        """The running summary."""
        self.summaries: list[Summary] = list(image.summaries)
        """Summary entries that the running summary does not cover, oldest first."""
        self.condensing = _find_condensing(image) if image.jobs else 0
        """Last message of the entry that goes into the running summary; 0 for none."""
        self.repair = _find_repair(image) if image.jobs else ""
        """The id of the job that summarizes lost messages; empty for none."""
        self.repairs = int(self.repair.rpartition("-")[2]) + 1 if self.repair else 0
        """The number of the next such job."""
        self.degraded: MessageRange | None = None
        """The messages of this session that no summary covers; None for none."""
        self.keys: dict[bytes, None] = dict.fromkeys(image.keys)
        """Digests of the newest idempotency keys, at most `HOT_KEYS`; older ones are looked up."""
        self.keys_complete = image.keys_complete
        self.has_ids = image.has_ids
        """Messages that left the buffer have ids: one that is not in `ids` must be looked up."""
        self.ids: dict[str, int] = {}
        """Ids given by senders, of messages in the buffer, with their numbers."""
        self.blocks: dict[str, StateItem] = {}
        self.keyed: KeyedValues | None = None
        """Values that the application keeps; None for none so far."""
        self.readers: dict[str, Reader] = {}
        """Budgets that the session is loaded with, by the names of their items."""
        self.changes: dict[str, ChangedUnder] = {}
        """Appends under keys that only changed messages, the newest `HOT_CHANGES`."""
        self.planned = 0
        """The number of the next such summary's job."""
        self.ahead: dict[str, str] = {}
        """The ids of jobs that write a summary for one of these."""
        _put(self, image.state_items)
        self.erased: set[int] = set()
        """Numbers of messages that were deleted since the activation: their turns have ended."""
        self.answers: dict[Any, Any] = {}
        """The journal's answers to lookups; valid until the next change."""
        self.light: dict[int, tuple[Entry, Entry]] = {}
        """Messages of the buffer, and each without its attachments, as loads have needed them."""
        self.shown: PrefixShown | None = None
        self.pinned: tuple[Entry, ...] | None = None
        """Instructions at the beginning that have left the buffer; None until a load needs them."""
        self.running_tokens: list[int] | None = None
        """Tokens up to each message of the buffer, and before the first; None until a load must
        leave messages out."""
        self.tokens = self.size = self.tools = self.pending = self.pending_tokens = 0
        self.attached = 0
        """How many messages of the buffer have attachments, or sounds."""
        self.weight = self.pending_weight = 0
        """Of the buffer, in the tokens that its policy counts."""
        _measure(self)
        _find_degraded(self)

    @property
    def live_weight(self) -> int:
        """Return what the messages that are not being summarized count for."""
        return self.weight - self.pending_weight

    @property
    def compaction_job(self) -> str:
        """The id of the running summarize job; empty if there is none."""
        running = self.watermarks.summarizing_through > self.watermarks.archived_through
        return summarize_job_id(self.sid, self.watermarks) if running else ""

    @property
    def condense_job(self) -> str:
        """The id of the running condense job; empty if there is none."""
        if not self.condensing:
            return ""
        return condense_job_id(self.sid, self.watermarks.generation, self.condensing)

    def stored(self, seq: int) -> StoredMessage:
        """A message of the buffer."""
        place = bisect_left(self.entries, seq, key=attrgetter("seq"))
        return StoredMessage(self.entries[place])

    def look_up(self, query: object) -> NeedsLookup:
        """Ask the journal; the answer goes to `answers`."""

        def store(answer: object) -> None:
            if len(self.answers) >= _MAX_ANSWERS:
                self.answers.clear()
            self.answers[query] = answer

        return NeedsLookup(query, store)


def _find_condensing(image: SavedSession) -> int:
    specs = [job.payload for job in image.jobs if isinstance(job.payload, SummarizeSpec)]
    current = [one for one in specs if one.generation == image.watermarks.generation]
    return max((one.through for one in current if one.kind == "condense"), default=0)


def _find_repair(image: SavedSession) -> str:
    current = [
        job.id
        for job in image.jobs
        if isinstance(job.payload, SummarizeSpec)
        and job.payload.kind == "repair"
        and job.payload.generation == image.watermarks.generation
    ]
    return current[-1] if current else ""


def recount_entry(entry: Entry, count: Callable[[ChatDict], int]) -> Entry:
    """The message with its tokens counted again."""
    tokens = count(counted_chat(decode_attached(entry.chat), entry.meta))
    return msgspec.structs.replace(entry, tokens=tokens)


def recount_tokens(image: SavedSession, count: Callable[[ChatDict], int]) -> SavedSession:
    """Count all tokens again, if the journal was begun with another counter."""

    def summary(one: Summary) -> Summary:
        tokens = count({"role": "system", "content": one.prefix + one.text})
        brief = count({"role": "system", "content": one.prefix + one.brief}) if one.brief else 0
        return msgspec.structs.replace(one, tokens=tokens, brief_tokens=brief)

    def item(one: StateItem) -> StateItem:
        if one.kind != READER_KIND:
            return one
        reader = _decode_reader(one.value)
        if reader.summary is not None:
            reader = msgspec.structs.replace(reader, summary=summary(reader.summary))
        return StateItem(one.kind, one.name, msgspec.msgpack.encode(reader))

    return msgspec.structs.replace(
        image,
        state_items=tuple(map(item, image.state_items)),
        entries=tuple([recount_entry(one, count) for one in image.entries]),
        summary=summary(image.summary) if image.summary else None,
        summaries=tuple(map(summary, image.summaries)),
    )


def apply(state: SessionState, record: object) -> None:
    """Change the state by one record."""
    if state.answers:
        state.answers.clear()
    match record:
        case Appended(entries=entries, key=key, archived=archived):
            state.next_seq = entries[-1].seq + 1
            if archived:
                state.has_ids = state.has_ids or any(entry.id for entry in entries[:archived])
                entries = entries[archived:]
            state.entries.extend(entries)
            sums = state.running_tokens
            for entry in entries:
                if sums is not None:
                    sums.append(sums[-1] + entry.tokens)
                state.tokens += entry.tokens
                state.weight += entry.tokens if entry.answers is None else state.policy.weigh(entry)
                state.tools += bool(entry.calls or entry.answers)
                state.attached += has_media(entry)
                state.size += entry.size + _ENTRY_OVERHEAD_BYTES
                if entry.id is not None:
                    state.ids[entry.id] = entry.seq
            if key is not None:
                state.keys[key] = None
                if len(state.keys) > HOT_KEYS:
                    del state.keys[next(iter(state.keys))]
                    state.keys_complete = False
        case PrefixShown():
            state.shown = record
        case PinnedFound(entries=entries):
            state.pinned = entries
        case ReaderSeen(name=name, reader=reader, job=job):
            state.readers[name] = reader
            if job:
                state.ahead[name] = job
                state.planned += 1
        case BufferRestored(entries=entries):
            state.entries = list(entries)
            state.running_tokens = None
            state.has_ids = True  # messages before them may have ids
        case Opened():
            state.opened = True
        case BufferMoved():
            _move_buffer(state, record)
        case JobDone(id=id_):
            if id_ == state.repair:
                state.repair = ""
            state.ahead = {name: one for name, one in state.ahead.items() if one != id_}
        case JobsStarted(jobs=jobs):
            _note_jobs(state, jobs)
        case Pruned():
            pass
        case StateChanged(put=put, dropped=dropped):
            _put(state, put)
            for kind, name in dropped:
                if kind == KEYED_KIND:
                    drop_keyed(state.keyed, name)
                elif kind == READER_KIND:
                    state.readers.pop(name, None)
                elif kind == CHANGE_KIND:
                    state.changes.pop(name, None)
        case _:
            raise TypeError(f"a session cannot apply {type(record).__name__}")


def _put(state: SessionState, items: Iterable[StateItem]) -> None:
    for one in items:
        if one.kind == "block":
            state.blocks[one.name] = one
        elif one.kind in KEYED_DECODERS:
            state.keyed = put_keyed(state.keyed, one)
        elif one.kind == CHANGE_KIND:
            state.changes[one.name] = _decode_change(one.value)
        elif one.kind == READER_KIND:
            state.readers[one.name] = _decode_reader(one.value)


def _move_buffer(state: SessionState, record: BufferMoved) -> None:
    watermarks = record.watermarks
    before, state.watermarks = state.watermarks, watermarks
    if watermarks.generation != before.generation:
        state.pinned = None
        _rewrite(state, record)
        return
    if before.archived_through == before.cleared_through < watermarks.archived_through:
        # `compact` never takes some of them alone
        leading = state.entries[: leading_instructions(state.entries)]
        state.pinned = tuple(one for one in leading if one.seq <= watermarks.archived_through)
    if record.summary is not None:
        covered = record.summary.through
        state.summary = record.summary
        state.summaries = [one for one in state.summaries if one.through > covered]
        state.condensing = 0
    if record.summaries:
        listed = {one.through: one for one in state.summaries}
        listed.update((one.through, one) for one in record.summaries)  # a repair replaces one
        state.summaries = list(listed.values())
    if record.summary is not None or record.summaries:
        _find_degraded(state)
    _drop_summarized(state)
    if state.repair in record.ended:
        state.repair = ""
    _note_jobs(state, record.jobs)


def _note_jobs(state: SessionState, jobs: Iterable[Job]) -> None:
    for job in jobs:
        if isinstance(job.payload, SummarizeSpec):
            if job.payload.kind == "condense":
                state.condensing = job.payload.through
            elif job.payload.kind == "repair":
                state.repair = job.id
                state.repairs += 1


def _find_degraded(state: SessionState) -> None:
    running = [state.summary] if state.summary else []
    state.degraded = join_lost(
        one for summary in (*running, *state.summaries) for one in find_lost(summary)
    )


def _rewrite(state: SessionState, record: BufferMoved) -> None:
    """Replace the past: a new generation has its own summaries and buffer."""
    front = record.watermarks.archived_through
    removed = set(record.removed)
    state.erased.update(one.entry.seq for one in record.erased)
    state.summary = record.summary
    state.summaries = list(record.summaries)
    state.condensing = 0
    state.repair = ""
    state.ahead = {}
    _note_jobs(state, record.jobs)
    _find_degraded(state)
    gone = (entry for entry in state.entries if entry.seq <= front)
    state.has_ids = record.watermarks.cleared_through < front and (
        state.has_ids or any(entry.id for entry in gone)
    )
    state.entries = [
        entry for entry in state.entries if entry.seq > front and entry.seq not in removed
    ]
    if record.changed:
        changed = {one.entry.seq: one.entry for one in record.changed}
        state.entries = [changed.get(entry.seq, entry) for entry in state.entries]
    _measure(state)


def _drop_summarized(state: SessionState) -> None:
    """Remove the messages up to `watermarks.archived_through` from the buffer."""
    count = 0
    for entry in state.entries:
        if entry.seq > state.watermarks.archived_through:
            break
        count += 1
        state.tokens -= entry.tokens
        state.weight -= state.policy.weigh(entry)
        state.tools -= bool(entry.calls or entry.answers)
        state.attached -= has_media(entry)
        state.size -= entry.size + _ENTRY_OVERHEAD_BYTES
        if entry.id is not None:
            state.ids.pop(entry.id, None)
            state.has_ids = True
    for entry in state.entries[:count] if state.light else ():
        state.light.pop(entry.seq, None)
    del state.entries[:count]
    if state.running_tokens is not None:
        del state.running_tokens[:count]
    _count_summarizing(state)


def _count_summarizing(state: SessionState) -> None:
    """Count the messages that are being summarized."""
    state.pending = state.pending_tokens = state.pending_weight = 0
    if state.watermarks.summarizing_through > state.watermarks.archived_through:
        for entry in state.entries:
            if entry.seq > state.watermarks.summarizing_through:
                break
            state.pending += 1
            state.pending_tokens += entry.tokens
            state.pending_weight += state.policy.weigh(entry)


def _measure(state: SessionState) -> None:
    """Count everything, when the buffer is restored or rewritten."""
    tokens = tools = size = weight = attached = 0
    weigh = state.policy.weigh
    ids: dict[str, int] = {}
    for entry in state.entries:  # one pass: every activation does this
        tokens += entry.tokens
        weight += weigh(entry)
        if entry.calls or entry.answers:
            tools += 1
        attached += has_media(entry)
        size += entry.size + _ENTRY_OVERHEAD_BYTES
        if entry.id is not None:
            ids[entry.id] = entry.seq
    state.tokens, state.tools, state.size, state.ids = tokens, tools, size, ids
    state.weight, state.attached = weight, attached
    state.light = {}
    state.running_tokens = None
    _count_summarizing(state)
