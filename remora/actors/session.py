"""The session actor: a state machine over plain data. It decides; the cell that owns it carries out.

The life of a message here::

    appended ──► buffer ──(over the trigger)──► frozen prefix ──(its summary is in)──► the journal alone
                   │                                 │
                   └── load shows it ────────────────┘   and it is flushed to long-term memory, once, on the way

A fold freezes a prefix of the buffer and asks the supervisor for a summary of it; the messages stay in the buffer, and `load`
goes on showing them, until `SummaryReady` comes back as one more message. If the session was cleared meanwhile, the result is
stale and dropped. One fold is under way at a time; if the summarizer cannot keep up, the buffer grows to a stated
overdraft, and then the fold is hastened: an extract stands in, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec

from remora.actors.buffer import closed_length, presentable
from remora.actors.policies import SummaryBufferPolicy
from remora.identity import SessionKey, message_id
from remora.messages import ChatDict, Entry, Receipt, decode_chat
from remora.runtime.actor import Missing, Turn
from remora.runtime.log import Job, JobDone
from remora.storage.records import (
    HOT_KEYS,
    Appended,
    Cleared,
    FlushSpec,
    FlushStarted,
    FoldStarted,
    KeyLookup,
    Marks,
    Opened,
    OriginalAppend,
    SessionImage,
    Summarized,
    SummarizeSpec,
    Summary,
)

__all__ = [
    "FLUSH_LANE",
    "SUMMARIZE_LANE",
    "Append",
    "Clear",
    "Flush",
    "Inspect",
    "Load",
    "SessionBehavior",
    "SessionState",
    "SessionView",
    "Snapshot",
    "SummaryReady",
]

SUMMARIZE_LANE = "summarize"
FLUSH_LANE = "flush"
_ENTRY_OVERHEAD_BYTES = 160  # of an Entry and its place in a list, beside its content


# -- messages ---------------------------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True):
    """Take these messages, in order, all or none. Replies a `Receipt`."""

    entries: tuple[Entry, ...]
    key: bytes | None
    size: int
    """Bytes of content."""


class Load(msgspec.Struct, frozen=True):
    """Show what a model should see, within `max_tokens` (a negative number counts as 0). Replies a `Snapshot`."""

    max_tokens: int


class Clear(msgspec.Struct, frozen=True):
    """Empty the buffer and the summary. Replies how many messages left the buffer."""


class Flush(msgspec.Struct, frozen=True):
    """Hand over to long-term memory what it does not have yet. Replies how many messages that is."""


class Inspect(msgspec.Struct, frozen=True):
    """Say how things stand. Replies a `SessionView`."""


class SummaryReady(msgspec.Struct, frozen=True):
    """The result of a summarize job. Replies whether it was taken; a stale one is not."""

    spec: SummarizeSpec
    job: str
    prefix: str
    text: str
    tokens: int
    degraded: bool
    model: str


# -- replies ------------------------------------------------------------------------------------------------------------


class Snapshot(msgspec.Struct, frozen=True):
    """What `load` shows of a session. Entries are immutable, so this shares nothing that can change.

    Attributes:
        summary: the running summary, if there is one and it fits.
        entries: messages to show, oldest first.
        tokens: of all that.
        pending: how many of `entries` are folded and wait for their summary.
        omitted: messages of the buffer that did not fit, oldest first.
        awaiting: tool calls without a result yet; their unit is withheld until it is whole.
        orphans: tool messages that fit no call, and calls that were never answered: left out.
        prefix_changed: the front of the context is not what the last load showed.
    """

    summary: Summary | None
    entries: tuple[Entry, ...]
    tokens: int
    pending: int
    omitted: int
    awaiting: tuple[str, ...]
    orphans: int
    prefix_changed: bool


class SessionView(msgspec.Struct, frozen=True):
    """A session from outside, for people and tools."""

    sid: int
    marks: Marks
    last_seq: int
    buffered: int
    buffered_tokens: int
    pending: int
    pending_tokens: int
    summary: Summary | None


# -- state --------------------------------------------------------------------------------------------------------------


class _PrefixShown(msgspec.Struct, frozen=True):
    """A note: what the front of the last loaded context was."""

    prefix: tuple[int, int, int]


class SessionState:
    """What one session actor owns. Only `SessionBehavior.apply` changes it."""

    __slots__ = (
        "answered",
        "entries",
        "key",
        "keys",
        "keys_complete",
        "live_tokens",
        "marks",
        "next_seq",
        "opened",
        "pending",
        "pending_tokens",
        "shown",
        "sid",
        "size",
        "summary",
        "tools",
    )

    def __init__(self, key: SessionKey, image: SessionImage) -> None:
        self.key = key
        self.sid = image.sid
        self.opened = image.opened
        self.marks = image.marks
        self.next_seq = image.next_seq
        self.entries: list[Entry] = list(image.entries)
        """Messages after `marks.summarized`; the first `pending` of them are folded."""
        self.summary = image.summary
        self.keys: dict[bytes, None] = dict.fromkeys(image.keys)
        """Digests of the newest idempotency keys, at most `HOT_KEYS`; older ones are looked up."""
        self.keys_complete = image.keys_complete
        self.answered: tuple[bytes, OriginalAppend | None] | None = None
        """The last idempotency key that was looked up, and what was found."""
        self.shown: tuple[int, int, int] | None = None
        self.pending = max(self.marks.folding - self.marks.summarized, 0)
        self.pending_tokens = sum(entry.tokens for entry in self.entries[: self.pending])
        self.live_tokens = sum(entry.tokens for entry in self.entries[self.pending :])
        self.tools = sum(1 for entry in self.entries if entry.calls or entry.answers)
        self.size = sum(entry.size + _ENTRY_OVERHEAD_BYTES for entry in self.entries)

    @property
    def fold_job(self) -> str:
        """The id of the summarize job under way; empty when there is none."""
        return summarize_job_id(self.sid, self.marks) if self.pending else ""


def summarize_job_id(sid: int, marks: Marks) -> str:
    """Deterministic, so a job written twice is one job; never used again, since marks only grow."""
    return f"{SUMMARIZE_LANE}-{sid}-{marks.generation}-{marks.folding}"


def _recounted(image: SessionImage, count: Callable[[ChatDict], int]) -> SessionImage:
    entries = tuple(msgspec.structs.replace(entry, tokens=count(decode_chat(entry.chat))) for entry in image.entries)
    summary = image.summary
    if summary is not None:
        tokens = count({"role": "system", "content": summary.prefix + summary.text})
        summary = msgspec.structs.replace(summary, tokens=tokens)
    return msgspec.structs.replace(image, entries=entries, summary=summary)


class SessionBehavior:
    """Implements `remora.runtime.actor.Behavior` for conversations.

    Args:
        policy: when to fold, and how much.
        instance: what tells this journal's message ids from another's.
        flushes: whether there is a long-term memory to flush to (S3.11).
        recount: counts a chat dict's tokens anew, where the journal was begun with another counter than today's.
    """

    def __init__(
        self,
        policy: SummaryBufferPolicy,
        *,
        instance: str,
        flushes: bool,
        recount: Callable[[ChatDict], int] | None = None,
    ) -> None:
        self._policy = policy
        self._instance = instance
        self._flushes = flushes
        self._recount = recount

    def restore(self, key: Hashable, image: SessionImage) -> SessionState:
        """The state that the journal's rows add up to."""
        assert isinstance(key, SessionKey)
        if self._recount is not None:
            image = _recounted(image, self._recount)
        return SessionState(key, image)

    def jobs(self, image: SessionImage) -> Sequence[Job]:
        """The session's jobs that stand in the journal."""
        return image.jobs

    def size(self, state: SessionState) -> int:
        """Bytes of the buffer, the summary and the keys."""
        return 512 + state.size + 120 * len(state.keys) + (len(state.summary.text) if state.summary else 0)

    def on_idle(self, state: SessionState) -> Flush | None:
        """An idle session flushes before it leaves memory: what was said must be recallable from other sessions."""
        return Flush() if self._flushes and self._flushable(state) > state.marks.flushing else None

    # -- deciding -----------------------------------------------------------------------------------------------------

    def handle(self, state: SessionState, message: Any) -> Turn | Missing:
        """One turn."""
        match message:
            case Append():
                return self._append(state, message)
            case Load():
                return self._load(state, message.max_tokens)
            case Clear():
                return self._clear(state)
            case Flush():
                return self._flush(state)
            case Inspect():
                return Turn(self._view(state))
            case SummaryReady():
                return self._summary_ready(state, message)
            case _:
                raise TypeError(f"a session has no answer to {type(message).__name__}")

    def _append(self, state: SessionState, message: Append) -> Turn | Missing:
        key = message.key
        if key is not None and (key in state.keys or not state.keys_complete):
            if state.answered is None or state.answered[0] != key:
                return Missing(KeyLookup(key))
            original = state.answered[1]
            if original is not None:
                return Turn(Receipt(original.seqs, self._ids(state, original.seqs, original.ids), duplicate=True))
        first = state.next_seq
        entries = tuple(entry.numbered(first + n) for n, entry in enumerate(message.entries))
        seqs = tuple(range(first, first + len(entries)))
        records: list[Any] = [] if state.opened else [self._opening(state, entries[0].at_us)]
        records.append(Appended(state.sid, entries, key))
        tokens = state.live_tokens + sum(entry.tokens for entry in entries)
        jobs: tuple[Job, ...] = ()
        expedite: tuple[str, ...] = ()
        if state.pending:
            if tokens > self._policy.overdraft_tokens:
                expedite = (state.fold_job,)
        elif self._policy.due(tokens, len(state.entries) + len(entries)):
            fold = self._fold(state, [*state.entries, *entries], state.marks)
            if fold is not None:
                records.append(fold)
                jobs = fold.jobs
        receipt = Receipt(seqs, self._ids(state, seqs, (entry.id for entry in entries)))
        return Turn(receipt, records, jobs=jobs, expedite=expedite, size=message.size)

    def _opening(self, state: SessionState, at_us: int) -> Opened:
        return Opened(state.sid, state.key.user, state.key.session, at_us)

    def _ids(self, state: SessionState, seqs: Iterable[int], given: Iterable[str | None]) -> tuple[str, ...]:
        return tuple(id_ or message_id(self._instance, state.sid, seq) for seq, id_ in zip(seqs, given, strict=True))

    def _fold(self, state: SessionState, live: list[Entry], marks: Marks) -> FoldStarted | None:
        count = self._policy.amount(live)
        if count == 0:
            return None
        through = live[count - 1].seq
        flushing = max(marks.flushing, through) if self._flushes else marks.flushing
        after = Marks(marks.generation, marks.summarized, through, flushing)
        spec = SummarizeSpec(state.sid, marks.generation, marks.summarized + 1, through)
        jobs = [Job(summarize_job_id(state.sid, after), SUMMARIZE_LANE, state.key, spec)]
        if flushing > marks.flushing:
            jobs.append(self._flush_job(state, marks.flushing + 1, flushing))
        return FoldStarted(state.sid, after, tuple(jobs))

    def _flush_job(self, state: SessionState, first: int, through: int) -> Job:
        return Job(f"{FLUSH_LANE}-{state.sid}-{through}", FLUSH_LANE, state.key, FlushSpec(state.sid, first, through))

    def _flushable(self, state: SessionState) -> int:
        """The last message that may be handed over: a call that waits for its result, and what follows, may not (G8)."""
        if not state.tools:
            return state.next_seq - 1
        return state.next_seq - 1 - (len(state.entries) - closed_length(state.entries))

    def _flush(self, state: SessionState) -> Turn:
        through = self._flushable(state)
        if not self._flushes or through <= state.marks.flushing:
            return Turn(0)
        first = state.marks.flushing + 1
        job = self._flush_job(state, first, through)
        marks = msgspec.structs.replace(state.marks, flushing=through)
        return Turn(through - first + 1, [FlushStarted(state.sid, marks, (job,))], jobs=(job,))

    def _load(self, state: SessionState, max_tokens: int) -> Turn:
        budget = max(max_tokens, 0)
        awaiting: tuple[str, ...] = ()
        orphans = 0
        summary = state.summary
        whole = state.live_tokens + state.pending_tokens
        # A summary that would take more than half of a tight budget gives way to the conversation itself.
        if summary is not None and summary.tokens > budget - min(whole, budget // 2):
            summary = None
        room = budget - summary.tokens if summary else budget
        if not state.tools and whole <= room:
            chosen: tuple[Entry, ...] = tuple(state.entries)
            used, omitted = whole, 0
        else:
            shown, waiting, orphans = presentable(state.entries)
            awaiting = tuple(waiting)
            used, kept = 0, len(shown)
            while kept and used + sum(entry.tokens for entry in shown[kept - 1]) <= room:
                kept -= 1
                used += sum(entry.tokens for entry in shown[kept])
            chosen = tuple(entry for unit in shown[kept:] for entry in unit)
            omitted = sum(len(unit) for unit in shown[:kept])
        prefix = (state.marks.generation, summary.through if summary else 0, chosen[0].seq if chosen else 0)
        snapshot = Snapshot(
            summary=summary,
            entries=chosen,
            tokens=used + (summary.tokens if summary else 0),
            pending=sum(1 for entry in chosen if entry.seq <= state.marks.folding) if state.pending else 0,
            omitted=omitted,
            awaiting=awaiting,
            orphans=orphans,
            prefix_changed=state.shown != prefix,
        )
        return Turn(snapshot, notes=() if state.shown == prefix else (_PrefixShown(prefix),))

    def _clear(self, state: SessionState) -> Turn:
        last = state.next_seq - 1
        if not state.opened or (not state.entries and state.summary is None):
            return Turn(0)
        # What is cleared is not flushed later: long-term memory has what was folded or handed over before.
        marks = Marks(state.marks.generation + 1, last, last, max(state.marks.flushing, last))
        cancelled = (state.fold_job,) if state.pending else ()
        return Turn(len(state.entries), [Cleared(state.sid, marks, cancelled)], cancel=cancelled)

    def _summary_ready(self, state: SessionState, result: SummaryReady) -> Turn:
        if not state.pending or result.job != state.fold_job:
            return Turn(False, [JobDone(result.job)])  # stale: cleared, or folded anew, since it was asked for
        marks = msgspec.structs.replace(state.marks, summarized=state.marks.folding)
        summary = Summary(marks.summarized, result.prefix, result.text, result.tokens, result.degraded, result.model)
        records: list[Any] = [Summarized(state.sid, marks, summary, result.job)]
        jobs: tuple[Job, ...] = ()
        live = state.entries[state.pending :]
        if self._policy.due(state.live_tokens, len(live)):
            fold = self._fold(state, live, marks)
            if fold is not None:
                records.append(fold)
                jobs = fold.jobs
        return Turn(True, records, jobs=jobs, size=len(result.text))

    def _view(self, state: SessionState) -> SessionView:
        return SessionView(
            state.sid,
            state.marks,
            state.next_seq - 1,
            len(state.entries) - state.pending,
            state.live_tokens,
            state.pending,
            state.pending_tokens,
            state.summary,
        )

    # -- changing -----------------------------------------------------------------------------------------------------

    def apply(self, state: SessionState, record: Any) -> None:
        """Fold one record into the state."""
        match record:
            case Appended(entries=entries, key=key):
                state.entries.extend(entries)
                state.next_seq += len(entries)
                state.live_tokens += sum(entry.tokens for entry in entries)
                state.tools += sum(1 for entry in entries if entry.calls or entry.answers)
                state.size += sum(entry.size + _ENTRY_OVERHEAD_BYTES for entry in entries)
                if key is not None:
                    state.keys[key] = None
                    if len(state.keys) > HOT_KEYS:
                        del state.keys[next(iter(state.keys))]
                        state.keys_complete = False
                    if state.answered is not None and state.answered[0] == key:
                        state.answered = None  # it was found absent, and now it is there
            case _PrefixShown(prefix=prefix):
                state.shown = prefix
            case Opened():
                state.opened = True
            case FoldStarted(marks=marks):
                state.marks = marks
                state.pending = marks.folding - marks.summarized
                state.pending_tokens = sum(entry.tokens for entry in state.entries[: state.pending])
                state.live_tokens -= state.pending_tokens
            case FlushStarted(marks=marks):
                state.marks = marks
            case JobDone():
                pass
            case Summarized(marks=marks, summary=summary):
                state.marks = marks
                state.summary = summary
                self._forget(state, state.pending)
                state.pending = state.pending_tokens = 0
            case Cleared(marks=marks):
                state.marks = marks
                state.summary = None
                self._forget(state, len(state.entries))
                state.pending = state.pending_tokens = state.live_tokens = 0
            case _:
                raise TypeError(f"a session cannot apply {type(record).__name__}")

    def _forget(self, state: SessionState, count: int) -> None:
        gone = state.entries[:count]
        del state.entries[:count]
        state.tools -= sum(1 for entry in gone if entry.calls or entry.answers)
        state.size -= sum(entry.size + _ENTRY_OVERHEAD_BYTES for entry in gone)

    def supply(self, state: SessionState, query: KeyLookup, answer: OriginalAppend | None) -> None:
        """Take a looked-up idempotency key."""
        state.answered = (query.digest, answer)
