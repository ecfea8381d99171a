"""The messages and replies of session actors: plain data, each a msgspec struct.

Nothing here refers to an actor, a task or a connection, so all of it can be stored, sent elsewhere,
or made in a test.
"""

from __future__ import annotations

import msgspec

from remora.actors.policies.buffer import BufferPolicy
from remora.messages import Entry, Receipt
from remora.runtime.actor import Asked
from remora.storage.keyed_values import KeyedImage
from remora.storage.records import (
    MessageRange,
    Reader,
    StateItem,
    SummarizeSpec,
    Summary,
    Watermarks,
)

# -- messages --------------------------------------------------------------------------------------


class TurnMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The turn that a reply belongs to.

    Attributes:
        seq: number of the message that it answers; 0 for the turn's first append.
        chat: what that message says, as in `remora.messages.Entry`.
        replaces: number of the incomplete reply that this one replaces; 0 for none.
        sid: the session's number in its journal when the turn began. After an erasure the session
            has another one, although the numbers of its messages begin at 1 again.
    """

    seq: int = 0
    chat: bytes = b""
    replaces: int = 0
    sid: int = 0


class Append(msgspec.Struct, Asked[Receipt], frozen=True, array_like=True, tag=1, gc=False):
    """Append messages, in order, all or none.

    Replies a `Receipt`; for the first append of a turn, a `TurnReceipt`.

    Attributes:
        entries: the messages.
        key: digest of the idempotency key.
        size: bytes of content.
        allow_duplicates: append messages whose id is stored already.
        dedup_window: skip a message equal to one of the newest so many.
        turn: the turn that these messages are of: none of them is skipped. Raises TurnClosed if
            the message that they answer was cleared, removed or erased, and InvalidInput if one has
            an id that is stored already.
        replace: change a message whose id is stored already, where it stands, if it says something
            else now. Without it, raises IdConflict.
    """

    entries: tuple[Entry, ...]
    key: bytes | None
    size: int
    allow_duplicates: bool = False
    dedup_window: int = 0
    turn: TurnMark | None = None
    replace: bool = False


class FindTurn(msgspec.Struct, Asked["StoredTurn"], frozen=True, array_like=True, tag=2, gc=False):
    """Ask for the stored part of the turn whose keys begin with `root`. Replies a `StoredTurn`."""

    root: bytes


class Load(msgspec.Struct, Asked["Snapshot"], frozen=True, array_like=True, tag=3, gc=False):
    """Show what a model should see, within `max_tokens`. Replies a `Snapshot`.

    Attributes:
        max_tokens: the budget.
        without: number of a message that is not shown; 0 for none.
        sid: with `without`, the number in its journal of the session that the message is of: all of
            another one is shown.
        recalls: a part of the budget is kept free for recalled memories. It is from then on in
            every load of the session, so that the window is the same with a question and without.
        again: the last load was for the same context, and was not shown.
    """

    max_tokens: int
    without: int = 0
    sid: int = 0
    recalls: bool = False
    again: bool = False


class Clear(msgspec.Struct, Asked[int], frozen=True, array_like=True, tag=4):
    """Empty the buffer and the summaries. Replies the number of messages in the buffer."""


class Flush(msgspec.Struct, Asked[int], frozen=True, array_like=True, tag=5):
    """Index the messages that have no index job yet. Replies their number.

    Attributes:
        now: somebody asked for it: the job does not wait for others.
    """

    now: bool = False


class Inspect(msgspec.Struct, Asked["SessionView"], frozen=True, array_like=True, tag=6):
    """Show the session's state. Replies a `SessionView`."""


class Remove(msgspec.Struct, Asked["Removed"], frozen=True, array_like=True, tag=7):
    """Remove messages and their content, by place in the buffer or by id. Replies a `Removed`.

    Raises IndexOutOfRange and removes nothing if a place is not in the buffer.
    """

    places: tuple[int, ...] = ()
    ids: tuple[str, ...] = ()


class Truncate(msgspec.Struct, Asked[int], frozen=True, array_like=True, tag=8):
    """Keep the newest `keep` messages, or fewer at a unit's boundary. Replies how many left."""

    keep: int


class Rewind(msgspec.Struct, Asked[int], frozen=True, array_like=True, tag=9):
    """Go back to where message `to` was the newest. Replies how many messages are gone."""

    to: int


class Replace(msgspec.Struct, Asked[Receipt], frozen=True, array_like=True, tag=10):
    """Replace the buffer's messages and summary by these. Replies a `Receipt`."""

    entries: tuple[Entry, ...]
    summary: Summary | None
    size: int


class Adopt(msgspec.Struct, Asked[int], frozen=True):
    """Begin as a copy, for an import or a fork. Replies the number of messages.

    Raises InvalidInput if the session has messages.

    Attributes:
        entries: numbered from 1 without gaps.
        front: messages up to here are out of the buffer.
        flushing: messages up to here get no index job later; see `flush`.
        summary: the running summary.
        summaries: summary entries that it does not cover.
        state_items: of blocks, and of summary entries that left their list.
        flush: start jobs that index messages up to `flushing` and the entries; otherwise long-term
            memory has them already.
        pruned: messages that are not to be indexed.
        cleared: messages up to here were cleared.
        size: bytes of the entries.
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
    size: int = 0


class Resummarize(msgspec.Struct, Asked[bool], frozen=True):
    """Summarize lost messages again. Replies whether there are any."""


class SummaryReady(msgspec.Struct, Asked[bool], frozen=True):
    """The result of a summarize job. Replies whether it was taken; a stale one is not.

    Attributes:
        spec: the job's.
        job: its id.
        prefix: what the summary's message begins with.
        text: the summary; empty if lost messages could not be summarized.
        tokens: size of its message.
        degraded: it is a fallback for a model's answer.
        model: what wrote it.
        input_tokens: what the summarizer was given.
        hurried: it is a fallback because the model was too slow, not because it failed.
        lost: see `remora.storage.records.Summary`; so are the attributes that follow.
    """

    spec: SummarizeSpec
    job: str
    prefix: str
    text: str
    tokens: int
    degraded: bool
    model: str
    input_tokens: int = 0
    hurried: bool = False
    lost: tuple[MessageRange, ...] = ()
    verbatim: tuple[MessageRange, ...] = ()
    prose: int = 0
    brief: str = ""
    brief_tokens: int = 0


class BlocksReady(msgspec.Struct, Asked[None], frozen=True):
    """New states of memory blocks; with a `job`, that job is done. Replies nothing."""

    states: tuple[StateItem, ...]
    job: str | None = None


# -- replies ---------------------------------------------------------------------------------------


class Removed(msgspec.Struct, frozen=True):
    """The result of `Remove`.

    Attributes:
        seqs: numbers of the messages.
        missing: ids that no message has.
    """

    seqs: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=104, gc=False):
    """The session as `load` shows it. Entries are immutable and shared.

    Attributes:
        summary: the running summary, if there is one and it fits. See `cut_summary`.
        summaries: the newest summary entries that fit, oldest first.
        entries: messages to show, oldest first, in whole units.
        tokens: of all that.
        pending: how many of `entries` are being summarized.
        omitted: messages of the buffer that did not fit.
        awaiting: calls of tools without a result, in the newest unit.
        orphans: results without a call; left out.
        prefix_changed: the front of the context differs from the last load's.
        blocks: state items of the session's memory blocks.
        degraded: the messages of the session that no summary covers; None for none.
        size: about how many bytes `entries` hold, at most.
        omitted_tokens: of these.
        left_out: summaries that did not fit.
        shortened_from: the tokens that `summary` has in full, if it is shown in a shorter form.
        cut_summary: the text of `summary` is the whole one, and has to be cut to its `tokens`.
        id_prefix: what the ids of messages without an id of their own begin with; empty if
            `entries` are not stored.
        shares: for each of `entries` the tokens that it may take, which `tokens` counts; empty if
            all are shown as they are.
        shortened: how many of `entries` have been shortened to their share.
        shortened_tokens: what these lost.
        withheld: of the `omitted`, those that wait for the results of `awaiting`.
        least_tokens: the budget that is needed to show anything; 0 if this one suffices.
        gap: the messages that were `omitted`; None for none.
        pinned: how many of `entries` are instructions at the beginning of the session.
        closed: how many of `entries` stand for results that have not come.
        attached: some of `entries` may have attachments, or sounds.
        lightened: messages whose attachments are only named.
        newest: the number of the session's newest message, shown or not; 0 if what is shown is not
            the session as it is.
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
    degraded: MessageRange | None = None
    size: int = 0
    omitted_tokens: int = 0
    left_out: tuple[Summary, ...] = ()
    shortened_from: int = 0
    cut_summary: bool = False
    id_prefix: str = ""
    shares: tuple[int, ...] = ()
    shortened: int = 0
    shortened_tokens: int = 0
    withheld: int = 0
    least_tokens: int = 0
    pinned: int = 0
    gap: MessageRange | None = None
    closed: int = 0
    attached: bool = False
    lightened: int = 0
    newest: int = 0


class StoredTurn(msgspec.Struct, frozen=True, array_like=True, tag=103):
    """The stored part of a turn.

    Attributes:
        sid: the session's number in its journal.
        attempt: the number under which it is stored, or is to be stored; see
            `remora.ids.turn_key`.
        opening: the user's messages; empty if the turn is not stored, or was cleared or removed.
        replies: what was stored after them, in order.
        parts: number of the next append of replies.
        overtaken: other messages were stored since, or its messages have left the buffer.
    """

    sid: int
    attempt: int = 0
    opening: tuple[Entry, ...] = ()
    replies: tuple[Entry, ...] = ()
    parts: int = 1
    overtaken: bool = False


class TurnReceipt(Receipt, frozen=True, array_like=True, tag=102, gc=False):
    """The result of the first append of a turn.

    Attributes:
        sid: the session's number in its journal.
    """

    sid: int = 0


class TurnView(msgspec.Struct, frozen=True, array_like=True):
    """The context of a turn that is resumed.

    Attributes:
        sid: the session's number in its journal when the turn began; of a session that has another
            one, all is shown as it is.
        without: number of its incomplete reply, which is not shown; 0 for none.
        at: show the session as it was when this message was its newest; 0 for as it is.
        replies: with `at`, the replies of the turn, which came after it.
    """

    sid: int
    without: int = 0
    at: int = 0
    replies: tuple[Entry, ...] = ()


class SessionView(msgspec.Struct, frozen=True):
    """The state of a session, for people and tools.

    Attributes:
        sid: the session's number in its journal.
        watermarks: how far it has come.
        last_seq: number of the newest message.
        buffered: messages in the buffer, those that are being summarized included.
        buffered_tokens: their tokens.
        pending: messages that are being summarized.
        pending_tokens: their tokens.
        summary: the running summary.
        summaries: summary entries that it does not cover, oldest first.
        blocks: state items of its memory blocks.
        policy: its buffer policy.
        entries: the messages in its buffer, oldest first.
        degraded: the messages that no summary covers: neither one by a model, nor a fallback with
            all their text; None for none.
        keyed: its keyed state; None if it never had any.
        readers: smaller budgets, with summaries that cover messages in the buffer as well.
    """

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
    entries: tuple[Entry, ...]
    degraded: MessageRange | None = None
    keyed: KeyedImage | None = None
    readers: tuple[Reader, ...] = ()
