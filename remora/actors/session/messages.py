"""What session actors are told, and what they answer: plain data, each a msgspec struct.

Nothing here refers to an actor, a task or a connection, so any of it can be written down, sent
elsewhere, or made up in a test.
"""

from __future__ import annotations

import msgspec

from remora.actors.policies.buffer import BufferPolicy
from remora.messages import Entry
from remora.storage.records import StateItem, SummarizeSpec, Summary, Watermarks

__all__ = [
    "Adopt",
    "Append",
    "BlocksReady",
    "Buffer",
    "Clear",
    "Flush",
    "Inspect",
    "Load",
    "ReadBuffer",
    "Remove",
    "Replace",
    "Rewind",
    "SessionView",
    "Snapshot",
    "SummaryReady",
    "Truncate",
]


# -- messages --------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True, gc=False):
    """Take these messages, in order, all or none. Replies a `Receipt`.

    Attributes:
        entries: the messages.
        key: digest of the idempotency key.
        size: bytes of content.
        allow_duplicates: take messages whose id is there already.
        dedup_window: skip a message equal to one of the newest so many.
    """

    entries: tuple[Entry, ...]
    key: bytes | None
    size: int
    allow_duplicates: bool = False
    dedup_window: int = 0


class Load(msgspec.Struct, frozen=True, gc=False):
    """Show what a model should see, within `max_tokens` (a negative number counts as 0).

    Replies a `Snapshot`.
    """

    max_tokens: int


class ReadBuffer(msgspec.Struct, frozen=True):
    """Show the whole buffer. Replies a `Buffer`."""


class Clear(msgspec.Struct, frozen=True):
    """Empty the buffer and the summaries. Replies how many messages left the buffer."""


class Flush(msgspec.Struct, frozen=True):
    """Hand over to long-term memory what it does not have yet.

    Replies how many messages that is.
    """


class Inspect(msgspec.Struct, frozen=True):
    """Say how things stand. Replies a `SessionView`."""


class Remove(msgspec.Struct, frozen=True):
    """Take single messages out, by place in the buffer or by id. Replies how many went.

    Raises IndexOutOfRange if a place is not in the buffer; nothing goes then. Ids that are not
    there are passed over.
    """

    places: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()


class Truncate(msgspec.Struct, frozen=True):
    """Let only the newest `keep` messages stay in the buffer, or fewer where the cut would part a
    turn. Replies how many went.
    """

    keep: int


class Rewind(msgspec.Struct, frozen=True):
    """Go back to where message `to` was the newest; what came after it is gone.

    Replies how many messages that is.
    """

    to: int


class Replace(msgspec.Struct, frozen=True):
    """Let these messages and this summary be the buffer, instead of what it holds.

    Replies a `Receipt`.
    """

    entries: tuple[Entry, ...]
    summary: Summary | None
    size: int


class Adopt(msgspec.Struct, frozen=True):
    """Begin as a copy: for an import or a fork.

    Replies how many messages that is; raises InvalidInput if anything is there.

    Attributes:
        entries: numbered from 1 without gaps.
        front: messages up to here are out of the buffer.
        flushing: messages up to here are none to be flushed any more; see `flush`.
        summary: the running summary.
        summaries: the entries that it does not cover.
        state_items: block states, and summary entries that left their list.
        flush: bring messages up to `flushing` and the entries into long-term memory, by jobs;
            otherwise it has them from elsewhere.
        pruned: messages that long-term memory is not to have even so.
        cleared: messages up to here were cleared.
    """

    entries: tuple[Entry, ...]
    front: int
    flushing: int
    summary: Summary | None
    summaries: tuple[Summary, ...]
    state_items: tuple[StateItem, ...]
    flush: bool = False
    pruned: tuple[int, ...] = ()
    cleared: int = 0


class SummaryReady(msgspec.Struct, frozen=True):
    """The result of a summarize job. Replies whether it was taken; a stale one is not."""

    spec: SummarizeSpec
    job: str
    prefix: str
    text: str
    tokens: int
    degraded: bool
    model: str
    input_tokens: int = 0


class BlocksReady(msgspec.Struct, frozen=True):
    """Memory blocks have seen messages: what they are now; with a `job`, that job is done.

    Replies nothing.
    """

    states: tuple[StateItem, ...]
    job: str | None = None


# -- replies ---------------------------------------------------------------------------------------


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """What `load` shows of a session.

    Entries are immutable, so this shares nothing that can change.

    Attributes:
        summary: the running summary, if there is one and it fits.
        summaries: the newest summary entries that fit, oldest first.
        entries: messages to show, oldest first; whole units.
        tokens: of all that.
        pending: how many of `entries` are folded and wait for their summary.
        omitted: messages of the buffer that did not fit, oldest first.
        awaiting: tool calls without a result yet; their unit is withheld until it is whole.
        orphans: tool messages that fit no call, and calls that were never answered: left out.
        prefix_changed: the front of the context is not what the last load showed.
        blocks: states of the session's memory blocks.
    """

    summary: Summary | None
    summaries: tuple[Summary, ...]
    entries: tuple[Entry, ...]
    tokens: int
    pending: int
    omitted: int
    awaiting: tuple[str, ...]
    orphans: int
    prefix_changed: bool
    blocks: tuple[StateItem, ...] = ()


class Buffer(msgspec.Struct, frozen=True):
    """The whole buffer of a session, as it is.

    Attributes:
        sid: the session's number in its journal.
        entries: its messages, oldest first, pending ones included.
        summary: the running summary.
        summaries: entries that it does not cover, oldest first.
    """

    sid: int
    entries: tuple[Entry, ...]
    summary: Summary | None
    summaries: tuple[Summary, ...]


class SessionView(msgspec.Struct, frozen=True):
    """A session from outside, for people and tools."""

    sid: int
    watermarks: Watermarks
    last_seq: int
    buffered: int
    buffered_tokens: int
    pending: int
    pending_tokens: int
    summary: Summary | None
    summaries: tuple[Summary, ...]
    blocks: tuple[StateItem, ...]
    policy: BufferPolicy
