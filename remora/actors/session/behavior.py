"""The session actor: a state machine over plain data.

It decides; the cell that owns it carries out.

The life of a message here::

    appended ──► buffer ──(over the trigger)──► frozen prefix ──(its summary is in)──► the journal alone
                   │                                 │
                   └── load shows it ────────────────┘   and it is flushed to long-term memory, once, on the way

A fold freezes a prefix of the buffer and asks the supervisor for a summary of it; the messages stay
in the buffer, and `load` goes on showing them, until `SummaryReady` comes back as one more message.
If the session's past was restated meanwhile (cleared, rewound, something of it deleted), the result
is stale and dropped. One fold is under way at a time; if the summarizer cannot keep up, the buffer
grows to a stated overdraft, and then the fold is hastened: an extract stands in, and says so. A
policy that drops what it folds asks nobody: the front of the buffer moves in the turn itself.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec

from remora.actors.blocks.state import excluded_item, excluded_ranges, join_ranges
from remora.actors.policies.buffer import BufferPolicy
from remora.actors.policies.turns import closed_length, units
from remora.actors.session.messages import (
    Adopt,
    Append,
    BlocksReady,
    Buffer,
    Clear,
    Flush,
    Inspect,
    Load,
    ReadBuffer,
    Remove,
    Replace,
    Rewind,
    SessionView,
    Snapshot,
    SummaryReady,
    Truncate,
)
from remora.actors.session.state import (
    BufferRestored,
    PrefixShown,
    SessionState,
    apply,
    condense_job_id,
    recount_tokens,
    summarize_job_id,
)
from remora.actors.session.window import fit_buffer
from remora.errors import IndexOutOfRange, InvalidInput
from remora.ids import SessionKey, message_id
from remora.messages import ChatDict, Entry, Receipt
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.log import Job, JobDone
from remora.runtime.probes import probe
from remora.storage.ports import NEIGHBOURS
from remora.storage.records import (
    ENTRY_KIND,
    Appended,
    BlocksSpec,
    BufferMoved,
    EarlierBuffer,
    EntryFlushSpec,
    FlushSpec,
    IdLookup,
    JobsStarted,
    KeyLookup,
    Opened,
    OriginalAppend,
    PastLookup,
    Pruned,
    SavedSession,
    StateChanged,
    StateItem,
    SummarizeSpec,
    Summary,
    UnflushSpec,
    Watermarks,
)

__all__ = ["BLOCKS_QUEUE", "FLUSH_QUEUE", "SUMMARIZE_QUEUE", "SessionBehavior"]

SUMMARIZE_QUEUE = "summarize"
FLUSH_QUEUE = "flush"
BLOCKS_QUEUE = "blocks"
_MOST_ANSWERS = (
    8  # what one turn asks for are two at most; what is left of earlier ones is of no use
)

_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode


class SessionBehavior:
    """Implements `remora.runtime.actor.Behavior` for conversations.

    Args:
        policy: when to fold, how much, and what becomes of it; for each session the same one each
            time.
        instance: what tells this journal's message ids from another's.
        flushes: whether there is a long-term memory to flush to.
        blocks: whether sessions have memory blocks that see what leaves the buffer.
        recount: counts a chat dict's tokens anew, where the journal was begun with another counter
            than today's.
    """

    def __init__(
        self,
        policy: Callable[[SessionKey], BufferPolicy],
        *,
        instance: str,
        flushes: bool,
        blocks: bool = False,
        recount: Callable[[ChatDict], int] | None = None,
    ) -> None:
        self._policy = policy
        self._instance = instance
        self._flushes = flushes
        self._blocks = blocks
        self._recount = recount

    def restore(self, key: Hashable, image: SavedSession) -> SessionState:
        """The state that the journal's rows add up to."""
        assert isinstance(key, SessionKey)
        if self._recount is not None:
            image = recount_tokens(image, self._recount)
        return SessionState(key, image, self._policy(key))

    def jobs(self, image: SavedSession) -> Sequence[Job]:
        """The session's jobs that stand in the journal."""
        return image.jobs

    def size(self, state: SessionState) -> int:
        """Bytes of the buffer, the summaries, the blocks' states and the keys."""
        size = 512 + state.size + 120 * (len(state.keys) + len(state.ids))
        if state.summary is not None:
            size += len(state.summary.text)
        if state.summaries:
            size += sum(len(one.text) for one in state.summaries)
        if state.blocks:
            size += sum(len(state_item.value) for state_item in state.blocks.values())
        return size

    def on_idle(self, state: SessionState) -> Flush | None:
        """An idle session flushes before it leaves memory.

        What was said must be recallable from other sessions.
        """
        return (
            Flush()
            if self._flushes and self._flushable(state) > state.watermarks.flushing
            else None
        )

    def on_close(self, state: SessionState) -> None:
        """Nothing is put off: what is not flushed is found at the next start."""

    apply = staticmethod(apply)

    def store_answer(self, state: SessionState, query: Any, answer: Any) -> None:
        """Take what a turn missed."""
        if len(state.answers) >= _MOST_ANSWERS:
            state.answers.clear()
        state.answers[query] = answer

    # -- deciding ----------------------------------------------------------------------------------

    def handle(self, state: SessionState, message: Any) -> Decision | NeedsLookup:
        """One turn."""
        match message:
            case Append():
                return self._append(state, message)
            case Load():
                return self._load(state, message.max_tokens)
            case ReadBuffer():
                return Decision(
                    Buffer(state.sid, tuple(state.entries), state.summary, tuple(state.summaries))
                )
            case Clear():
                return self._clear(state)
            case Flush():
                return self._flush(state)
            case Inspect():
                return Decision(self._view(state))
            case Remove():
                return self._remove(state, message)
            case Truncate():
                return self._truncate(state, message.keep)
            case Rewind():
                return self._rewind(state, message.to)
            case Replace():
                return self._replace(state, message)
            case Adopt():
                return self._adopt(state, message)
            case SummaryReady():
                return self._summary_ready(state, message)
            case BlocksReady():
                changed = [StateChanged(state.sid, message.states)] if message.states else []
                return Decision(
                    None, [*changed, *([JobDone(message.job)] if message.job is not None else [])]
                )
            case _:
                raise TypeError(f"a session has no answer to {type(message).__name__}")

    # -- taking ------------------------------------------------------------------------------------

    def _append(self, state: SessionState, message: Append) -> Decision | NeedsLookup:
        key = message.key
        original: OriginalAppend | None = None
        if key is not None and (key in state.keys or not state.keys_complete):
            query = KeyLookup(key)
            if query not in state.answers:
                probe("key_looked_up")
                return NeedsLookup(query)
            original = state.answers[query]
        known = self._known(state, message)
        if isinstance(known, NeedsLookup):
            return known
        if original is not None:
            if key in state.keys:
                probe("duplicate_key_hot")
            else:
                probe("duplicate_key_cold")
            return Decision(self._original_receipt(state, message, original, known))
        seqs: list[int] = []
        ids: list[str] = []
        entries: list[Entry] = []
        seq, tokens = state.next_seq, 0
        repeatable = not message.allow_duplicates and (
            len(message.entries) > 1 or message.dedup_window > 0
        )
        for place, entry in enumerate(message.entries):
            there = known.get(place)
            if there is None and repeatable:
                there = self._repeated_seq(state, entries, entry, message)
            if there is None:
                there = seq
                entries.append(entry.with_seq(seq))
                tokens += entry.tokens
                seq += 1
            else:
                probe("duplicate_message")
            seqs.append(there)
            ids.append(entry.id or message_id(self._instance, state.sid, there))
        receipt = Receipt(tuple(seqs), tuple(ids), not entries)
        if not entries:
            return Decision(receipt)
        records: list[Any] = [] if state.opened else [self._opening(state, entries[0].at_us)]
        records.append(Appended(state.sid, tuple(entries), key))
        live = state.live_tokens + tokens
        jobs: tuple[Job, ...] = ()
        expedite: tuple[str, ...] = ()
        if state.pending:
            if live > state.policy.overdraft_tokens:
                probe("overdraft_reached")
                expedite = (state.compaction_job,)
        elif state.policy.due(live, len(state.entries) + len(entries)):
            fold = self._compact(state, [*state.entries, *entries], live, state.watermarks)
            if fold is not None:
                records.append(fold)
                jobs = fold.jobs
        return Decision(receipt, records, jobs=jobs, expedite=expedite, size=message.size)

    def _known(self, state: SessionState, message: Append) -> dict[int, int] | NeedsLookup:
        """Which of the messages, by place in the batch, are there already by their id, and their
        numbers.
        """
        if message.allow_duplicates or not (state.ids or state.has_ids):
            return {}
        found = {
            entry.id: state.ids[entry.id] for entry in message.entries if entry.id in state.ids
        }
        if state.has_ids:
            unknown = tuple(
                entry.id
                for entry in message.entries
                if entry.id is not None and entry.id not in found
            )
            query = IdLookup(unknown, state.watermarks.cleared)
            if unknown and query not in state.answers:
                probe("ids_looked_up")
                return NeedsLookup(query)
            found.update(state.answers.get(query, {}))
        return {
            place: found[entry.id]
            for place, entry in enumerate(message.entries)
            if entry.id in found
        }

    def _original_receipt(
        self, state: SessionState, message: Append, original: OriginalAppend, known: dict[int, int]
    ) -> Receipt:
        """What the first append under this key answered.

        Messages that it skipped are known by their ids.
        """
        if len(original.seqs) >= len(message.entries):
            return Receipt(
                original.seqs, self._ids(state, original.seqs, original.ids), duplicate=True
            )
        probe("key_of_partial_append")
        added = iter(zip(original.seqs, original.ids, strict=True))
        found: list[tuple[int, str | None]] = []
        for place, entry in enumerate(message.entries):
            seq = known.get(place)
            one = (
                (seq, entry.id)
                if seq is not None and seq not in original.seqs
                else next(added, None)
            )
            if one is not None:
                found.append(one)
        seqs = tuple(seq for seq, _ in found)
        return Receipt(seqs, self._ids(state, seqs, (id_ for _, id_ in found)), duplicate=True)

    def _repeated_seq(
        self, state: SessionState, before: Sequence[Entry], entry: Entry, message: Append
    ) -> int | None:
        """The number of the message that this one repeats.

        By its id within the batch, by its words within the window.
        """
        if entry.id is not None:
            return next((one.seq for one in before if one.id == entry.id), None)
        recent = [*state.entries, *before][-message.dedup_window :] if message.dedup_window else ()
        return next((one.seq for one in recent if one.chat == entry.chat), None)

    def _opening(self, state: SessionState, at_us: int) -> Opened:
        return Opened(state.sid, state.key.user, state.key.session, at_us)

    def _ids(
        self, state: SessionState, seqs: Iterable[int], given: Iterable[str | None]
    ) -> tuple[str, ...]:
        return tuple(
            id_ or message_id(self._instance, state.sid, seq)
            for seq, id_ in zip(seqs, given, strict=True)
        )

    # -- folding -----------------------------------------------------------------------------------

    def _compact(
        self, state: SessionState, live: list[Entry], tokens: int, watermarks: Watermarks
    ) -> BufferMoved | None:
        count = state.policy.amount(live, tokens)
        if count == 0:
            return None
        through = live[count - 1].seq
        flushing = max(watermarks.flushing, through) if self._flushes else watermarks.flushing
        if state.policy.fold == "drop":
            after = msgspec.structs.replace(
                watermarks, archived_through=through, summarizing_through=through, flushing=flushing
            )
            jobs = self._leaving_jobs(state, after, watermarks.flushing, through)
            return BufferMoved(
                state.sid,
                after,
                at_seq=max(state.next_seq - 1, live[-1].seq),
                reason="dropped",
                jobs=jobs,
            )
        after = msgspec.structs.replace(watermarks, summarizing_through=through, flushing=flushing)
        kind = state.policy.fold
        spec = SummarizeSpec(
            state.sid, watermarks.generation, watermarks.archived_through + 1, through, kind
        )
        fold = Job(summarize_job_id(state.sid, after), SUMMARIZE_QUEUE, state.key, spec)
        return BufferMoved(
            state.sid,
            after,
            jobs=(fold, *self._leaving_jobs(state, after, watermarks.flushing, through)),
        )

    def _leaving_jobs(
        self, state: SessionState, after: Watermarks, flushing: int, through: int
    ) -> tuple[Job, ...]:
        """The jobs of messages that leave the buffer: to long-term memory, and past the memory
        blocks.
        """
        jobs = (
            [self._flush_job(state, flushing + 1, after.flushing)]
            if after.flushing > flushing
            else []
        )
        if self._blocks and through:
            id_ = f"{BLOCKS_QUEUE}-{state.sid}-{after.generation}-{through}"
            jobs.append(Job(id_, BLOCKS_QUEUE, state.key, BlocksSpec(state.sid, through)))
        return tuple(jobs)

    def _flush_job(self, state: SessionState, first: int, through: int) -> Job:
        return Job(
            f"{FLUSH_QUEUE}-{state.sid}-{through}",
            FLUSH_QUEUE,
            state.key,
            FlushSpec(state.sid, first, through),
        )

    def _flushable(self, state: SessionState) -> int:
        """The last message that may be handed over.

        A call that waits for its result, and what follows, may not (G8).
        """
        if not state.tools:
            return state.next_seq - 1
        closed = closed_length(state.entries)
        if closed == len(state.entries):
            return state.next_seq - 1
        probe("open_tool_call_withheld")
        return state.entries[closed].seq - 1

    def _flush(self, state: SessionState) -> Decision:
        through = self._flushable(state)
        if not self._flushes or through <= state.watermarks.flushing:
            return Decision(0)
        first = state.watermarks.flushing + 1
        job = self._flush_job(state, first, through)
        watermarks = msgspec.structs.replace(state.watermarks, flushing=through)
        return Decision(
            through - first + 1, [BufferMoved(state.sid, watermarks, jobs=(job,))], jobs=(job,)
        )

    def _summary_ready(self, state: SessionState, result: SummaryReady) -> Decision:
        spec = result.spec
        expected = state.condense_job if spec.kind == "condense" else state.compaction_job
        outdated = spec.kind == "condense" and all(
            one.through != spec.through for one in state.summaries
        )
        if result.job != expected or outdated:
            probe("stale_fold_dropped")
            return Decision(
                False, [JobDone(result.job)]
            )  # stale: the past was restated since it was asked for
        first = state.summary.first if state.summary and spec.kind != "entry" else spec.first
        summary = Summary(
            spec.through,
            result.prefix,
            result.text,
            result.tokens,
            result.degraded,
            result.model,
            first,
            result.input_tokens,
        )
        at_seq = state.next_seq - 1
        if spec.kind == "condense":
            left = [one for one in state.summaries if one.through > spec.through]
            jobs = self._condense(state, left)
            condensed = BufferMoved(
                state.sid,
                state.watermarks,
                at_seq=at_seq,
                summary=summary,
                ended=(result.job,),
                jobs=jobs,
            )
            return Decision(True, [condensed, *_left_entries(state.sid, jobs)], jobs=jobs)
        watermarks = msgspec.structs.replace(
            state.watermarks, archived_through=state.watermarks.summarizing_through
        )
        entry = spec.kind == "entry"
        jobs = (
            ()
            if state.condensing or not entry
            else self._condense(state, [*state.summaries, summary])
        )
        records: list[Any] = [
            BufferMoved(
                state.sid,
                watermarks,
                at_seq=at_seq,
                summary=None if entry else summary,
                summaries=(summary,) if entry else (),
                ended=(result.job,),
                jobs=jobs,
            )
        ]
        records.extend(_left_entries(state.sid, jobs))
        live = state.entries[state.pending :]
        if state.policy.due(state.live_tokens, len(live)):
            probe("fold_followed_fold")
            fold = self._compact(state, live, state.live_tokens, watermarks)
            if fold is not None:
                records.append(fold)
                jobs = (*jobs, *fold.jobs)
        return Decision(True, records, jobs=jobs, size=len(result.text))

    def _condense(self, state: SessionState, entries: Sequence[Summary]) -> tuple[Job, ...]:
        """The oldest entry of a list that is full goes into the running summary and into long-term
        memory.
        """
        if len(entries) <= state.policy.entries:
            return ()
        probe("entry_condensed")
        oldest = entries[0]
        generation = state.watermarks.generation
        spec = SummarizeSpec(state.sid, generation, oldest.first, oldest.through, "condense")
        jobs = [
            Job(
                condense_job_id(state.sid, generation, oldest.through),
                SUMMARIZE_QUEUE,
                state.key,
                spec,
            )
        ]
        if self._flushes:
            flush = EntryFlushSpec(
                state.sid, oldest, state.entries[-1].at_us if state.entries else 0
            )
            jobs.append(
                Job(
                    f"entry-{state.sid}-{generation}-{oldest.through}",
                    FLUSH_QUEUE,
                    state.key,
                    flush,
                )
            )
        return tuple(jobs)

    # -- showing -----------------------------------------------------------------------------------

    def _load(self, state: SessionState, max_tokens: int) -> Decision:
        shown = fit_buffer(
            state.entries,
            state.tokens,
            state.summary,
            state.summaries,
            max_tokens,
            tools=state.tools > 0,
        )
        prefix = (
            state.watermarks.generation,
            shown.summary.through if shown.summary else 0,
            shown.summaries[0].through if shown.summaries else 0,
            shown.entries[0].seq if shown.entries else 0,
        )
        summarizing_through = state.watermarks.summarizing_through
        snapshot = Snapshot(
            summary=shown.summary,
            summaries=shown.summaries,
            entries=shown.entries,
            tokens=shown.tokens,
            pending=sum(1 for entry in shown.entries if entry.seq <= summarizing_through)
            if state.pending
            else 0,
            omitted=shown.omitted,
            awaiting=shown.awaiting,
            orphans=shown.orphans,
            prefix_changed=state.shown != prefix,
            blocks=tuple(state.blocks.values()),
        )
        return Decision(snapshot, volatile=() if state.shown == prefix else (PrefixShown(prefix),))

    def _view(self, state: SessionState) -> SessionView:
        return SessionView(
            state.sid,
            state.watermarks,
            state.next_seq - 1,
            len(state.entries) - state.pending,
            state.live_tokens,
            state.pending,
            state.pending_tokens,
            state.summary,
            tuple(state.summaries),
            tuple(state.blocks.values()),
            state.policy,
        )

    # -- restating the past ------------------------------------------------------------------------

    def _jobs_under_way(self, state: SessionState) -> tuple[str, ...]:
        jobs = tuple(job for job in (state.compaction_job, state.condense_job) if job)
        if jobs:
            probe("restated_during_fold")
        return jobs

    def _clear(self, state: SessionState) -> Decision:
        last = state.next_seq - 1
        empty = not state.entries and state.summary is None and not state.summaries
        if not state.opened or (empty and state.watermarks.cleared == last):
            return Decision(0)
        # What is cleared is not flushed later: long-term memory has what was folded or handed over
        # before.
        watermarks = Watermarks(
            state.watermarks.generation + 1, last, last, max(state.watermarks.flushing, last), last
        )
        cancelled = self._jobs_under_way(state)
        unflushed = self._withheld(state, state.watermarks.flushing + 1, last)
        records = [
            BufferMoved(state.sid, watermarks, at_seq=last, reason="cleared", ended=cancelled),
            *unflushed,
            *self._unseen(state, last),
        ]
        return Decision(len(state.entries), records, cancel=cancelled)

    def _withheld(self, state: SessionState, first: int, last: int) -> tuple[Pruned, ...]:
        """That long-term memory is never to have messages `first`…`last`: the flush mark, which
        passes them, does not say so.
        """
        return (Pruned(state.key, tuple(range(first, last + 1))),) if first <= last else ()

    def _unseen(self, state: SessionState, through: int) -> list[StateChanged]:
        """What left the buffer up to `through` without a job is not for memory blocks, not even for
        one that comes later.
        """
        if not self._blocks:
            return []
        ranges = join_ranges(
            (
                *excluded_ranges(state.blocks.values(), state.watermarks.cleared),
                (state.watermarks.summarizing_through + 1, through),
            )
        )
        return [StateChanged(state.sid, (excluded_item(ranges),))]

    def _remove(self, state: SessionState, message: Remove) -> Decision:
        outside = tuple(place for place in message.places if not 0 <= place < len(state.entries))
        if outside:
            raise IndexOutOfRange(
                f"the buffer holds messages 0 to {len(state.entries) - 1}; there is none at "
                f"{', '.join(map(str, outside))}",
                places=outside,
            )
        gone = {state.entries[place].seq for place in message.places}
        if message.ids:
            wanted = set(message.ids)
            gone.update(
                entry.seq
                for entry in state.entries
                if (entry.id or message_id(self._instance, state.sid, entry.seq)) in wanted
            )
        if not gone:
            return Decision(0)
        return self._restate(state, len(gone), removed=tuple(sorted(gone)))

    def _truncate(self, state: SessionState, keep: int) -> Decision:
        start = next(
            (one.start for one in units(state.entries) if len(state.entries) - one.start <= keep),
            len(state.entries),
        )
        if start == 0:
            return Decision(0)
        return self._restate(state, start, front=state.entries[start - 1].seq)

    def _rewind(self, state: SessionState, to: int) -> Decision | NeedsLookup:
        last = state.next_seq - 1
        if not 0 <= to <= last:
            raise InvalidInput(f"a session with {last} messages cannot go back to message {to}")
        if to == last:
            return Decision(0)
        query = PastLookup(to)
        if query not in state.answers:
            return NeedsLookup(query)
        earlier: EarlierBuffer = state.answers[query]
        if not earlier.there:
            raise InvalidInput(f"message {to} was removed; go back to one that is there")
        return self._restate(
            state, last - to, removed=tuple(range(to + 1, last + 1)), earlier=earlier
        )

    def _restate(
        self,
        state: SessionState,
        reply: int,
        *,
        removed: tuple[int, ...] = (),
        front: int | None = None,
        earlier: EarlierBuffer | None = None,
    ) -> Decision:
        """Another past.

        Folds under way are void, and what was removed leaves long-term memory, too.
        """
        watermarks = state.watermarks
        entries: Sequence[Entry] = state.entries
        summary, summaries = state.summary, tuple(state.summaries)
        volatile: tuple[Any, ...] = ()
        if earlier is not None:
            front, entries, summary, summaries = (
                earlier.front,
                earlier.entries,
                earlier.summary,
                earlier.summaries,
            )
            volatile = (BufferRestored(earlier.entries),)
            probe("went_back")
        moved = watermarks.archived_through if front is None else front
        flushing = max(watermarks.flushing, moved) if self._flushes else watermarks.flushing
        cleared = watermarks.cleared if earlier is None else earlier.cleared
        after = Watermarks(watermarks.generation + 1, moved, moved, flushing, cleared)
        jobs: tuple[Job, ...] = ()
        if (
            moved > watermarks.archived_through
        ):  # a truncation: what leaves the buffer goes where folded messages go
            jobs = self._leaving_jobs(state, after, watermarks.flushing, moved)
        # Those just behind the last one are not there themselves, but in the windows of those
        # before them.
        shown_through = watermarks.flushing + NEIGHBOURS if watermarks.flushing else 0
        flushed = tuple(seq for seq in removed if seq <= shown_through) if self._flushes else ()
        if flushed:
            probe("removal_of_flushed")
            id_ = f"unflush-{state.sid}-{after.generation}"
            jobs = (
                *jobs,
                Job(
                    id_,
                    FLUSH_QUEUE,
                    state.key,
                    UnflushSpec(state.sid, flushed, watermarks.flushing),
                ),
            )
        gone = set(removed)
        left = [entry for entry in entries if entry.seq > moved and entry.seq not in gone]
        cancelled = self._jobs_under_way(state)
        records: list[Any] = [
            BufferMoved(
                state.sid,
                after,
                at_seq=state.next_seq - 1,
                reason="restated",
                summary=summary,
                summaries=summaries,
                removed=removed,
                ended=cancelled,
                jobs=jobs,
            )
        ]
        if earlier is not None and self._flushes:
            # Entries that left their list after it are in the list again, or of a past that is no
            # more.
            covered = summary.through if summary else 0
            records.append(Pruned(state.key, (), tuple(range(covered + 1, state.next_seq))))
        if earlier is not None and (
            unseen := excluded_ranges(state.blocks.values(), 0)
        ):  # what was cleared may be back
            clipped = join_ranges((first, min(through, moved)) for first, through in unseen)
            records.append(StateChanged(state.sid, (excluded_item(clipped),)))
        tokens = sum(entry.tokens for entry in left)
        if state.policy.due(tokens, len(left)):
            fold = self._compact(state, left, tokens, after)
            if fold is not None:
                records.append(fold)
                jobs = (*jobs, *fold.jobs)
        return Decision(reply, records, volatile=volatile, jobs=jobs, cancel=cancelled)

    def _replace(self, state: SessionState, message: Replace) -> Decision:
        last = state.next_seq - 1
        entries = tuple(entry.with_seq(last + 1 + n) for n, entry in enumerate(message.entries))
        seqs = tuple(entry.seq for entry in entries)
        records: list[Any] = (
            [] if state.opened else [self._opening(state, entries[0].at_us if entries else 0)]
        )
        flushing = max(state.watermarks.flushing, last)
        watermarks = Watermarks(state.watermarks.generation + 1, last, last, flushing, last)
        cancelled = self._jobs_under_way(state)
        summary = message.summary
        if summary is not None:
            summary = msgspec.structs.replace(summary, first=min(1, last), through=last)
        records.append(
            BufferMoved(
                state.sid,
                watermarks,
                at_seq=last,
                reason="restated",
                summary=summary,
                ended=cancelled,
            )
        )
        records.extend(self._withheld(state, state.watermarks.flushing + 1, last))
        records.extend(self._unseen(state, last))
        if entries:
            records.append(Appended(state.sid, entries, None))
        own = message_id(self._instance, state.sid, 0)[:-1]
        flushed = [
            entry.seq
            for entry in entries
            if entry.id and self._is_flushed(entry.id, own, state.watermarks.flushing)
        ]
        if flushed:  # long-term memory has them under their old numbers
            records.append(Pruned(state.key, tuple(flushed)))
        receipt = Receipt(seqs, self._ids(state, seqs, (entry.id for entry in entries)))
        return Decision(receipt, records, cancel=cancelled, size=message.size)

    def _is_flushed(self, id_: str, own: str, flushing: int) -> bool:
        """Whether an id is that of a message of this session, and long-term memory has it."""
        number = id_.removeprefix(own)
        try:
            return number != id_ and int(number, 16) <= flushing
        except ValueError:
            return False

    def _adopt(self, state: SessionState, message: Adopt) -> Decision:
        if state.opened:
            raise InvalidInput(
                f"{state.key!r} has messages already; copy into a session that has none"
            )
        if not message.entries:
            return Decision(0)
        last = len(message.entries)
        flushing = message.flushing if self._flushes else 0
        watermarks = Watermarks(1, message.front, message.front, flushing, message.cleared)
        records: list[Any] = [
            self._opening(state, message.entries[0].at_us),
            Appended(state.sid, message.entries, None),
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
        jobs: tuple[Job, ...] = ()
        if not message.flush:
            records.extend(
                self._withheld(state, 1, flushing)
            )  # what has them knows them by another name
        else:
            jobs = self._leaving_jobs(state, watermarks, 0, message.front)
            if self._flushes:
                jobs = (
                    *jobs,
                    *(
                        self._entry_job(state, state_item)
                        for state_item in message.state_items
                        if state_item.kind == ENTRY_KIND
                    ),
                )
            records.append(JobsStarted(state.sid, jobs))
        return Decision(last, records, jobs=jobs, size=sum(entry.size for entry in message.entries))

    def _entry_job(self, state: SessionState, state_item: StateItem) -> Job:
        spec = msgspec.structs.replace(_decode_entry(state_item.value), sid=state.sid)
        return Job(f"entry-{state.sid}-0-{state_item.name}", FLUSH_QUEUE, state.key, spec)


def _left_entries(sid: int, jobs: Sequence[Job]) -> tuple[StateChanged, ...]:
    """What the journal keeps of summary entries that leave their list, so that long-term memory can
    be rebuilt.
    """
    left = tuple(job.payload for job in jobs if isinstance(job.payload, EntryFlushSpec))
    return (
        (
            StateChanged(
                sid,
                tuple(StateItem(ENTRY_KIND, str(one.entry.through), _encode(one)) for one in left),
            ),
        )
        if left
        else ()
    )
