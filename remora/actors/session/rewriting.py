"""Changes of a session's past: clear, replace, remove, truncate, rewind, adopt.

Each begins a new generation, for which results of older jobs are stale. What was removed leaves
long-term memory as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from remora.actors.blocks.state import exclusion_item, exclusions, join_ranges
from remora.actors.policies.units import units
from remora.actors.session.compaction import (
    FACTS_QUEUE,
    FLUSH_QUEUE,
    SessionRules,
    compact,
    leaving_jobs,
    repair_jobs,
)
from remora.actors.session.messages import Adopt, Append, Remove, Removed, Replace
from remora.actors.session.readers import drop_summaries
from remora.actors.session.state import (
    HOT_CHANGES,
    BufferRestored,
    SessionState,
    message_ids,
    opening,
)
from remora.errors import IndexOutOfRange, InvalidInput, KeyConflict
from remora.ids import message_id, message_id_prefix, message_number
from remora.messages import Entry, Receipt
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import Job
from remora.runtime.probes import probe
from remora.storage.lookups import EarlierBuffer, Erasable, ErasableLookup, PastLookup
from remora.storage.ports import NEIGHBOURS
from remora.storage.records import (
    CHANGE_KIND,
    ENTRY_KIND,
    Appended,
    BufferMoved,
    ChangedUnder,
    EntryFlushSpec,
    FactsSpec,
    FrontChange,
    JobsStarted,
    MessageRange,
    Pruned,
    StateChanged,
    StateItem,
    StoredMessage,
    Summary,
    UnflushSpec,
    Watermarks,
    erase_content,
    erase_text,
    find_lost,
    merge_ranges,
    without_messages,
)

_NAMED = 10  # positions in an error
_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode


# -- the whole buffer ---------------------------------------------------------------------------


def clear(state: SessionState, rules: SessionRules) -> Decision:
    """Empty the buffer and the summaries."""
    last = state.next_seq - 1
    empty = not state.entries and state.summary is None and not state.summaries
    if not state.opened or (empty and state.watermarks.cleared_through == last):
        return Decision(0)
    records, ended = _start_over(state, rules, "cleared")
    return Decision(len(state.entries), records, cancel=ended)


def replace(state: SessionState, rules: SessionRules, message: Replace) -> Decision:
    """Replace the buffer's messages and summary."""
    last = state.next_seq - 1
    entries = tuple([entry.with_seq(seq) for seq, entry in enumerate(message.entries, last + 1)])
    summary = message.summary
    if summary is not None:
        summary = msgspec.structs.replace(summary, first=min(1, last), through=last)
    records, ended = _start_over(state, rules, "restated", summary)
    records = [*opening(state, entries[0].at_us if entries else 0), *records]
    if entries:
        records.append(Appended(state.sid, entries, None))
    own = message_id_prefix(rules.instance, state.sid)
    indexed = [one.seq for one in entries if one.id and _is_indexed(state, one.id, own)]
    if indexed:  # long-term memory has them under their old numbers
        records.append(Pruned(state.key, tuple(indexed)))
    seqs = tuple(range(last + 1, last + 1 + len(entries)))
    ids = message_ids(rules.instance, state.sid, seqs, [entry.id for entry in entries])
    return Decision(Receipt(seqs, ids), records, cancel=ended, size=message.size)


def _start_over(
    state: SessionState, rules: SessionRules, reason: FrontChange, summary: Summary | None = None
) -> tuple[list[Any], tuple[str, ...]]:
    """Records that clear all messages, and the jobs that end.

    Messages that are not indexed never will be, and memory blocks are not shown them.
    """
    last, before = state.next_seq - 1, state.watermarks
    after = Watermarks(before.generation + 1, last, last, max(before.indexing_through, last), last)
    ended = _running_jobs(state)
    moved = BufferMoved(state.sid, after, at_seq=last, reason=reason, summary=summary, ended=ended)
    records: list[Any] = [
        moved,
        *drop_summaries(state),
        *_never_index(state, before.indexing_through + 1, last),
    ]
    if rules.blocks:
        excluded = exclusions(state.blocks.values(), before.cleared_through)
        leaving = (before.summarizing_through + 1, last)
        item = exclusion_item(join_ranges((*excluded, leaving)))
        records.append(StateChanged(state.sid, (item,)))
    return records, ended


def _never_index(state: SessionState, first: int, last: int) -> list[Any]:
    """Keep messages `first`…`last`, which the watermark passes, out of long-term memory."""
    return [Pruned(state.key, tuple(range(first, last + 1)))] if first <= last else []


def _is_indexed(state: SessionState, id_: str, own: str) -> bool:
    """Return whether an indexed message of this session has this id.

    `own`: the prefix of its ids.
    """
    number = id_.removeprefix(own)
    try:
        return number != id_ and int(number, 16) <= state.watermarks.indexing_through
    except ValueError:
        return False


# -- a part of it -------------------------------------------------------------------------------


def remove(state: SessionState, rules: SessionRules, message: Remove) -> Decision | NeedsLookup:
    """Remove single messages with their content, wherever they are."""
    outside = tuple(place for place in message.places if not 0 <= place < len(state.entries))
    if outside:
        raise IndexOutOfRange(
            f"the buffer holds messages 0 to {len(state.entries) - 1}; "
            f"there is none at {', '.join(map(str, outside[:_NAMED]))}",
            places=outside,
        )
    places = {state.entries[place].seq for place in message.places}
    numbers = (message_number(rules.instance, id_) for id_ in message.ids)
    mine = {one[1] for one in numbers if one is not None and one[0] == state.sid}
    query = ErasableLookup(message.ids, tuple(sorted(places | mine)))
    if query not in state.answers:
        return state.look_up(query)
    answer: Erasable = state.answers[query]
    wanted, known = set(message.ids), set[str]()
    found: list[StoredMessage] = []
    for one in answer.messages:
        entry = one.entry
        id_ = entry.id or message_id(rules.instance, state.sid, entry.seq)
        if entry.seq in places or id_ in wanted:
            found.append(one)  # all that have an id: a replaced buffer has messages once more
            known.add(id_)
    missing = tuple([id_ for id_ in dict.fromkeys(message.ids) if id_ not in known])
    gone = sorted([one.entry.seq for one in found])
    reply = Removed(tuple(gone), missing)
    if not found:
        return Decision(reply)
    here = _buffer(state, state.watermarks.archived_through)
    before: Summary | None = None
    if rules.repairs and here.summary is not None and _covers(here.summary, gone) and gone[0] > 1:
        past = PastLookup(gone[0] - 1)  # what a model wrote before need not be written again
        if past not in state.answers:
            return state.look_up(past)
        before = state.answers[past].summary
    here = msgspec.structs.replace(
        here,
        summary=_without_text(here.summary, gone, before) if here.summary else None,
        summaries=tuple([_without_text(one, gone) for one in here.summaries]),
    )
    entries = [last for first, last in answer.entries if _any_within(gone, first, last)]
    erased = [erase_content(one) for one in found]
    return _rewrite(state, rules, reply, here, tuple(gone), erased=erased, entries=entries)


def remove_number(state: SessionState, rules: SessionRules, seq: int) -> Decision:
    """Remove message `seq`, in the buffer or not; a summary that covers it stays."""
    here = _buffer(state, state.watermarks.archived_through)
    return _rewrite(state, rules, 1, here, (seq,))


def change(
    state: SessionState,
    rules: SessionRules,
    message: Append,
    receipt: Receipt,
    entries: Sequence[Entry],
    changed: Sequence[StoredMessage],
) -> Decision:
    """Change stored messages where they stand, and append `entries`, in one write."""
    probe("message_changed")
    seqs = {one.entry.seq for one in changed}
    by_seq = {one.entry.seq: one.entry for one in changed}
    here = _buffer(state, state.watermarks.archived_through)
    here = msgspec.structs.replace(
        here,
        entries=tuple([by_seq.get(entry.seq, entry) for entry in here.entries]),
        summary=_outdated(here.summary, seqs) if here.summary else None,
        summaries=tuple([_outdated(one, seqs) for one in here.summaries]),
    )
    appended = Appended(state.sid, tuple(entries), message.key) if entries else None
    also = []
    if appended is None and message.key is not None:
        also.append(_note_key(state, message, receipt))
    decision = _rewrite(state, rules, 0, here, changed=changed, appended=appended, also=also)
    decision.reply = receipt
    decision.size = message.size
    return decision


def _note_key(state: SessionState, message: Append, receipt: Receipt) -> StateChanged:
    """Keep the key of an append that adds no message which could have it."""
    assert message.key is not None
    value = _encode(ChangedUnder(receipt.seqs, _digest_of(message)))
    old = list(state.changes)[: max(len(state.changes) - HOT_CHANGES + 1, 0)]
    item = StateItem(CHANGE_KIND, message.key.hex(), value)
    return StateChanged(state.sid, (item,), tuple((CHANGE_KIND, name) for name in old))


def repeat_change(
    state: SessionState, rules: SessionRules, message: Append, known: ChangedUnder
) -> Receipt:
    """Return what the first append under this key answered, which only changed messages.

    Raises:
        KeyConflict: it had other messages.
    """
    if _digest_of(message) != known.digest:
        probe("key_conflict")
        raise KeyConflict(
            f"the idempotency key was used for other messages of {state.key.words}: nothing was "
            "written; a new message needs a new key"
        )
    given = [entry.id for entry in message.entries]
    ids = message_ids(rules.instance, state.sid, known.seqs, given)
    return Receipt(known.seqs, ids, duplicate=True)


def _digest_of(message: Append) -> bytes:
    told = blake2b(digest_size=16)
    for entry in message.entries:
        told.update(b"%d:%b" % (len(entry.chat), entry.chat))
    return told.digest()


def _outdated(summary: Summary, changed: Collection[int]) -> Summary:
    """The summary, which has lost those of its messages that changed."""
    lost = find_lost(summary)
    gone = sorted(
        seq
        for seq in changed
        if summary.first <= seq <= summary.through
        and not any(one.first <= seq <= one.last for one in lost)
    )
    if not gone:
        return summary
    return msgspec.structs.replace(
        summary,
        lost=merge_ranges([*lost, *(MessageRange(seq, seq, 1) for seq in gone)]),
        verbatim=without_messages(summary.verbatim, gone),
    )


def _without_text(summary: Summary, gone: Sequence[int], before: Summary | None = None) -> Summary:
    """The summary without its text, if it covers a deleted message: all of it is written again.

    What the summary `before` the first deleted message covers is not, if it began where this does.
    """
    if not _covers(summary, gone):
        return summary
    probe("summarized_message_deleted")
    first, through = summary.first, summary.through
    told = erase_text(summary)
    if (
        before is not None
        and not before.blank
        and before.first == first
        and before.through < min(gone[0], through)
    ):
        told = msgspec.structs.replace(before, through=through)
        first = before.through + 1
    count = through - first + 1 - sum(first <= seq <= through for seq in gone)
    left = [MessageRange(first, through, count)] if count > 0 else []
    lost = find_lost(before) if before is not None and not told.blank else ()
    return msgspec.structs.replace(
        told,
        lost=merge_ranges([*lost, *left]),
        verbatim=told.verbatim or (MessageRange(first, through, 0),),
    )


def _covers(summary: Summary, seqs: Sequence[int]) -> bool:
    return _any_within(seqs, summary.first, summary.through)


def _any_within(seqs: Sequence[int], first: int, last: int) -> bool:
    """Return whether one of these numbers, in order, is in the range."""
    place = bisect_left(seqs, first)
    return place < len(seqs) and seqs[place] <= last


def truncate(state: SessionState, rules: SessionRules, keep: int) -> Decision:
    """Archive all but the newest `keep` messages, at a turn's boundary."""
    count = len(state.entries)
    start = next((one.start for one in units(state.entries) if count - one.start <= keep), count)
    if start == 0:
        return Decision(0)
    return _rewrite(state, rules, start, _buffer(state, state.entries[start - 1].seq))


def rewind(state: SessionState, rules: SessionRules, to: int) -> Decision | NeedsLookup:
    """Go back to where message `to` was the newest."""
    last = state.next_seq - 1
    if not 0 <= to <= last:
        raise InvalidInput(f"a session with {last} messages cannot go back to message {to}")
    if to == last:
        return Decision(0)
    query = PastLookup(to)
    if query not in state.answers:
        return state.look_up(query)
    earlier: EarlierBuffer = state.answers[query]
    if not earlier.exists:
        raise InvalidInput(f"message {to} was removed; go back to one that is there")
    also: list[Any] = []
    entries: list[int] = []
    if rules.indexes:
        indexed = ErasableLookup((), ())
        if indexed not in state.answers:
            return state.look_up(indexed)
        # Entries that left their list later are in it again, or cover messages that are gone.
        covered = earlier.summary.through if earlier.summary else 0
        entries = [through for _, through in state.answers[indexed].entries if through > covered]
    probe("went_back")
    if excluded := exclusions(state.blocks.values(), 0):  # cleared messages may be back
        clipped = join_ranges((first, min(through, earlier.front)) for first, through in excluded)
        also.append(StateChanged(state.sid, (exclusion_item(clipped),)))
    restored = (BufferRestored(earlier.entries),)
    removed = tuple(range(to + 1, last + 1))
    return _rewrite(
        state, rules, last - to, earlier, removed, entries=entries, also=also, volatile=restored
    )


def _buffer(state: SessionState, front: int) -> EarlierBuffer:
    """The buffer as it is, from behind `front`."""
    entries, summaries = tuple(state.entries), tuple(state.summaries)
    cleared = state.watermarks.cleared_through
    return EarlierBuffer(front, state.summary, summaries, cleared, entries=entries)


def _rewrite(
    state: SessionState,
    rules: SessionRules,
    reply: object,
    to: EarlierBuffer,
    removed: tuple[int, ...] = (),
    *,
    changed: Sequence[StoredMessage] = (),
    erased: Sequence[StoredMessage] = (),
    entries: Sequence[int] = (),
    appended: Appended | None = None,
    also: Sequence[Any] = (),
    volatile: Sequence[Any] = (),
) -> Decision:
    """Make the buffer what `to` says, without `removed`, and compact it if it is too large."""
    before, front = state.watermarks, to.front
    flushing = max(before.indexing_through, front) if rules.indexes else before.indexing_through
    after = Watermarks(before.generation + 1, front, front, flushing, to.cleared)
    jobs: tuple[Job, ...] = ()
    if (
        front > before.archived_through
    ):  # what a truncation cuts off is archived, as in a compaction
        jobs = leaving_jobs(state, rules, after, before.indexing_through, front)
    # Messages just behind the last indexed one have no row; the rows before them hold their words.
    shown_through = before.indexing_through + NEIGHBOURS if before.indexing_through else 0
    touched = removed or tuple(sorted([one.entry.seq for one in changed]))
    indexed = touched[: bisect_right(touched, shown_through)] if rules.indexes else ()
    if indexed or entries:
        probe("removal_of_flushed")
        again = tuple([seq for seq in indexed if changed and seq <= before.indexing_through])
        flushed = before.indexing_through
        spec = UnflushSpec(state.sid, indexed, flushed, again, tuple(entries))
        id_ = f"unflush-{state.sid}-{after.generation}"
        jobs = (*jobs, Job(id_, FLUSH_QUEUE, state.key, spec))
        if rules.facts:
            jobs = (*jobs, *_fact_jobs(state, after.generation, again))
    ended = _running_jobs(state)
    gone = set(removed)
    left = [entry for entry in to.entries if entry.seq > front and entry.seq not in gone]
    if appended is not None:
        left.extend(appended.entries)
    tokens = sum([state.policy.weigh(entry) for entry in left])
    compaction = None
    if state.policy.due(tokens, len(left), sum([entry.size for entry in left])):
        compaction = compact(state, rules, left, tokens, after)
    if compaction is None or state.policy.fold != "summary":
        summaries = (*((to.summary,) if to.summary else ()), *to.summaries)
        jobs = (
            *jobs,
            *repair_jobs(state, rules, summaries, after.generation, changed=bool(changed)),
        )
    moved = BufferMoved(
        state.sid,
        after,
        at_seq=state.next_seq - 1,
        reason="restated",
        summary=to.summary,
        summaries=to.summaries,
        removed=removed,
        changed=tuple(changed),
        ended=ended,
        jobs=jobs,
        erased=tuple(erased),
    )
    records: list[Any] = [moved, *drop_summaries(state), *also]
    if entries:
        records.append(Pruned(state.key, (), tuple(entries)))
    if appended is not None:
        records.append(appended)
    if compaction is not None:
        records.append(msgspec.structs.replace(compaction, ended=()))
        jobs = (*jobs, *compaction.jobs)
    return Decision(reply, records, volatile=volatile, jobs=jobs, cancel=ended)


def _fact_jobs(state: SessionState, generation: int, seqs: Sequence[int]) -> Iterator[Job]:
    for seq in seqs:
        id_ = f"{FACTS_QUEUE}-{state.sid}-{generation}-{seq}"
        yield Job(id_, FACTS_QUEUE, state.key, FactsSpec(state.sid, seq, seq, again=True))


def _running_jobs(state: SessionState) -> tuple[str, ...]:
    """Ids of the jobs whose results the new generation has no use for."""
    running = (state.compaction_job, state.condense_job, state.repair, *state.ahead.values())
    jobs = tuple(job for job in running if job)
    if jobs:
        probe("session_changed_during_compaction")
    return jobs


# -- a copy -------------------------------------------------------------------------------------


def adopt(state: SessionState, rules: SessionRules, message: Adopt) -> Decision:
    """Begin as a copy of another session."""
    if state.opened:
        raise InvalidInput(
            f"{state.key.words} has messages or keyed state already; copy into a session that has "
            "none"
        )
    if not message.entries:
        kept = [StateChanged(state.sid, message.state_items)] if message.state_items else []
        return Decision(0, [*opening(state, 0), *kept] if kept else ())
    last, front = len(message.entries), message.front
    flushing = message.flushing if rules.indexes else 0
    watermarks = Watermarks(1, front, front, flushing, message.cleared)
    records: list[Any] = [
        *opening(state, message.entries[0].at_us),
        Appended(state.sid, message.entries, None, archived=front),
        BufferMoved(
            state.sid,
            watermarks,
            at_seq=last,
            reason="restated",
            summary=message.summary,
            summaries=message.summaries,
        ),
    ]
    if message.state_items:
        records.append(StateChanged(state.sid, message.state_items))
    if message.pruned:
        records.append(Pruned(state.key, message.pruned))
    summaries = (*((message.summary,) if message.summary else ()), *message.summaries)
    jobs = repair_jobs(state, rules, summaries, watermarks.generation)
    if message.flush:
        # The user's export has the facts of an imported session.
        without_facts = msgspec.structs.replace(rules, facts=False)
        jobs = (*jobs, *leaving_jobs(state, without_facts, watermarks, 0, front))
        if rules.indexes:
            entries = (one for one in message.state_items if one.kind == ENTRY_KIND)
            jobs = (*jobs, *(_entry_job(state, one) for one in entries))
    if jobs or message.flush:
        records.append(JobsStarted(state.sid, jobs))
    if not message.flush:  # long-term memory has them under the original's ids
        records.extend(_never_index(state, 1, flushing))
    return Decision(last, records, jobs=jobs, size=message.size)


def _entry_job(state: SessionState, item: StateItem) -> Job:
    spec = msgspec.structs.replace(_decode_entry(item.value), sid=state.sid)
    return Job(f"entry-{state.sid}-0-{item.name}", FLUSH_QUEUE, state.key, spec)
