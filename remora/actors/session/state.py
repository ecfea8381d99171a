"""What one session actor owns, and how records change it. Nothing else does: replay equals live."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from remora.actors.policies.buffer import BufferPolicy
from remora.ids import SessionKey, message_id
from remora.messages import ChatDict, Entry, decode_chat
from remora.runtime.log import JobDone
from remora.storage.records import (
    HOT_KEYS,
    Appended,
    BufferMoved,
    JobsStarted,
    Opened,
    Pruned,
    SavedSession,
    StateChanged,
    SummarizeSpec,
    Summary,
    Watermarks,
)

__all__ = [
    "BufferRestored",
    "PrefixShown",
    "SessionState",
    "apply",
    "condense_job_id",
    "message_ids",
    "opening",
    "recount_tokens",
    "summarize_job_id",
]

_ENTRY_OVERHEAD_BYTES = 160  # of an Entry and its place in a list, beside its content


class PrefixShown(msgspec.Struct, frozen=True):
    """A note: what the front of the last loaded context was."""

    prefix: tuple[int, ...]


class BufferRestored(msgspec.Struct, frozen=True):
    """A note: messages that had left the buffer and are in it again, with those after them."""

    entries: tuple[Entry, ...]


def summarize_job_id(sid: int, watermarks: Watermarks) -> str:
    """Deterministic, so a job written twice is one job; never used again, since marks only grow."""
    return f"summarize-{sid}-{watermarks.generation}-{watermarks.summarizing_through}"


def condense_job_id(sid: int, generation: int, through: int) -> str:
    """The same, for folding the entry that ends at `through` into the running summary."""
    return f"condense-{sid}-{generation}-{through}"


def opening(state: SessionState, at_us: int) -> list[Any]:
    """The record that comes before a session's first one; none if it is opened."""
    key = state.key
    return [] if state.opened else [Opened(state.sid, key.user, key.session, at_us)]


def message_ids(
    instance: str, sid: int, seqs: Iterable[int], given: Iterable[str | None]
) -> tuple[str, ...]:
    """The ids of messages: as given by their sender, or derived from their numbers."""
    pairs = zip(seqs, given, strict=True)
    return tuple(id_ or message_id(instance, sid, seq) for seq, id_ in pairs)


class SessionState:
    """What one session actor owns. Only `apply` changes it."""

    __slots__ = (
        "answers",
        "blocks",
        "condensing",
        "entries",
        "has_ids",
        "ids",
        "key",
        "keys",
        "keys_complete",
        "next_seq",
        "opened",
        "pending",
        "pending_tokens",
        "policy",
        "shown",
        "sid",
        "size",
        "summaries",
        "summary",
        "tokens",
        "tools",
        "watermarks",
    )

    def __init__(self, key: SessionKey, image: SavedSession, policy: BufferPolicy) -> None:
        self.key = key
        self.policy = policy
        self.sid = image.sid
        self.opened = image.opened
        self.watermarks = image.watermarks
        self.next_seq = image.next_seq
        self.entries: list[Entry] = list(image.entries)
        """Messages after `watermarks.archived_through`; the first `pending` of them are folded."""
        self.summary = image.summary
        """The running summary."""
        self.summaries: list[Summary] = list(image.summaries)
        """Summary entries that the running summary does not cover, oldest first."""
        self.condensing = _find_condensing(image) if image.jobs else 0
        """The last message of the entry that is being folded into the running summary.

        0 for none.
        """
        self.keys: dict[bytes, None] = dict.fromkeys(image.keys)
        """Digests of the newest idempotency keys, at most `HOT_KEYS`; older ones are looked up."""
        self.keys_complete = image.keys_complete
        self.has_ids = image.has_ids
        """Whether messages that left the buffer carry ids, so that one that is not in `ids` must be
        looked up.
        """
        self.ids: dict[str, int] = {}
        """Ids that their senders gave, of messages in the buffer."""
        self.blocks = {
            state_item.name: state_item
            for state_item in image.state_items
            if state_item.kind == "block"
        }
        self.answers: dict[Any, Any] = {}
        """What turns asked of the journal, and its answers; of use until the next change."""
        self.shown: tuple[int, ...] | None = None
        self.tokens = self.size = self.tools = self.pending = self.pending_tokens = 0
        _measure(self)

    @property
    def live_tokens(self) -> int:
        """Tokens of the messages that are not folded."""
        return self.tokens - self.pending_tokens

    @property
    def compaction_job(self) -> str:
        """The id of the summarize job under way; empty when there is none."""
        return (
            summarize_job_id(self.sid, self.watermarks)
            if self.watermarks.summarizing_through > self.watermarks.archived_through
            else ""
        )

    @property
    def condense_job(self) -> str:
        """The id of the condense job under way; empty when there is none."""
        return (
            condense_job_id(self.sid, self.watermarks.generation, self.condensing)
            if self.condensing
            else ""
        )


def _find_condensing(image: SavedSession) -> int:
    specs = [job.payload for job in image.jobs if isinstance(job.payload, SummarizeSpec)]
    return max(
        (
            spec.through
            for spec in specs
            if spec.kind == "condense" and spec.generation == image.watermarks.generation
        ),
        default=0,
    )


def recount_tokens(image: SavedSession, count: Callable[[ChatDict], int]) -> SavedSession:
    """The image with every size counted anew, where the journal was begun with another counter than
    today's.
    """

    def summary(one: Summary) -> Summary:
        return msgspec.structs.replace(
            one, tokens=count({"role": "system", "content": one.prefix + one.text})
        )

    return msgspec.structs.replace(
        image,
        entries=tuple(
            msgspec.structs.replace(entry, tokens=count(decode_chat(entry.chat)))
            for entry in image.entries
        ),
        summary=summary(image.summary) if image.summary else None,
        summaries=tuple(summary(one) for one in image.summaries),
    )


def apply(state: SessionState, record: Any) -> None:
    """Fold one record into the state."""
    if state.answers:
        state.answers.clear()
    match record:
        case Appended(entries=entries, key=key):
            state.entries.extend(entries)
            state.next_seq = entries[-1].seq + 1
            for entry in entries:
                state.tokens += entry.tokens
                state.tools += bool(entry.calls or entry.answers)
                state.size += entry.size + _ENTRY_OVERHEAD_BYTES
                if entry.id is not None:
                    state.ids[entry.id] = entry.seq
            if key is not None:
                state.keys[key] = None
                if len(state.keys) > HOT_KEYS:
                    del state.keys[next(iter(state.keys))]
                    state.keys_complete = False
        case PrefixShown(prefix=prefix):
            state.shown = prefix
        case BufferRestored(entries=entries):
            state.entries = list(entries)
            state.has_ids = True  # among those that left before them there may be some
        case Opened():
            state.opened = True
        case BufferMoved():
            _move_buffer(state, record)
        case JobDone() | JobsStarted() | Pruned():
            pass
        case StateChanged(put=put):
            state.blocks.update(
                (state_item.name, state_item) for state_item in put if state_item.kind == "block"
            )
        case _:
            raise TypeError(f"a session cannot apply {type(record).__name__}")


def _move_buffer(state: SessionState, record: BufferMoved) -> None:
    watermarks = record.watermarks
    rewritten = watermarks.generation != state.watermarks.generation
    state.watermarks = watermarks
    if rewritten:
        _rewrite(state, record)
        return
    if record.summary is not None:
        covered = record.summary.through
        state.summary = record.summary
        state.summaries = [one for one in state.summaries if one.through > covered]
        state.condensing = 0
    state.summaries.extend(record.summaries)
    _drop_summarized(state)
    for job in record.jobs:
        if isinstance(job.payload, SummarizeSpec) and job.payload.kind == "condense":
            state.condensing = job.payload.through


def _rewrite(state: SessionState, record: BufferMoved) -> None:
    """Replace the past: a new generation has its own summaries and buffer."""
    front = record.watermarks.archived_through
    removed = set(record.removed)
    state.summary = record.summary
    state.summaries = list(record.summaries)
    state.condensing = 0
    gone = (entry for entry in state.entries if entry.seq <= front)
    state.has_ids = record.watermarks.cleared < front and (
        state.has_ids or any(entry.id for entry in gone)
    )
    state.entries = [
        entry for entry in state.entries if entry.seq > front and entry.seq not in removed
    ]
    _measure(state)


def _drop_summarized(state: SessionState) -> None:
    """Let the messages up to `watermarks.archived_through` go."""
    count = 0
    for entry in state.entries:
        if entry.seq > state.watermarks.archived_through:
            break
        count += 1
        state.tokens -= entry.tokens
        state.tools -= bool(entry.calls or entry.answers)
        state.size -= entry.size + _ENTRY_OVERHEAD_BYTES
        if entry.id is not None:
            state.ids.pop(entry.id, None)
            state.has_ids = True
    del state.entries[:count]
    _count_summarizing(state)


def _count_summarizing(state: SessionState) -> None:
    """Tell the frozen prefix from the rest."""
    state.pending = state.pending_tokens = 0
    if state.watermarks.summarizing_through > state.watermarks.archived_through:
        for entry in state.entries:
            if entry.seq > state.watermarks.summarizing_through:
                break
            state.pending += 1
            state.pending_tokens += entry.tokens


def _measure(state: SessionState) -> None:
    """Count everything anew."""
    tokens = tools = size = 0
    ids: dict[str, int] = {}
    for entry in state.entries:  # once over all of them: an activation does it
        tokens += entry.tokens
        if entry.calls or entry.answers:
            tools += 1
        size += entry.size + _ENTRY_OVERHEAD_BYTES
        if entry.id is not None:
            ids[entry.id] = entry.seq
    state.tokens, state.tools, state.size, state.ids = tokens, tools, size, ids
    _count_summarizing(state)
