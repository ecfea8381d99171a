"""What the supervisor's lanes do for sessions.

Summarize a frozen prefix, hand messages over to long-term memory.

Both may run more than once for one job, and bear it: a summary is taken once (the actor drops the
second as stale), and rows have deterministic ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any

import anyio.to_thread
import msgspec

from remora.actors.policies.redaction import redact_text
from remora.actors.policies.summary import shorten
from remora.actors.policies.turns import batches
from remora.actors.session.messages import SessionView, SummaryReady
from remora.errors import ModelError
from remora.ids import SessionKey, entry_id, row_id
from remora.logging import get_logger
from remora.messages import (
    Entry,
    dated_line,
    decode_chat,
    plain_text,
    speaker_of,
    without_surrogates,
)
from remora.models.breaker import CircuitBreaker
from remora.models.ports import Embedder, Line, Summarizer, embed_texts
from remora.runtime.locks import KeyedLocks, SharedLocks
from remora.runtime.probes import probe
from remora.runtime.supervisor import JobAttempt, JobResult
from remora.storage.owed import owed
from remora.storage.ports import NEIGHBOURS, Journal, LongTermStore, MemoryRow, Vector
from remora.storage.records import (
    ENTRY_KIND,
    DiscardSpec,
    EntryFlushSpec,
    Flushed,
    FlushSpec,
    SummarizeSpec,
    Summary,
    UnflushSpec,
)
from remora.tokens import INLINE_CHARACTERS, TokenCounter, count_message

__all__ = [
    "FlushHandler",
    "SummarizeHandler",
    "embedding_text",
    "entry_row",
    "message_rows",
    "prepare_rows",
    "redact_row",
    "standalone_row",
]  # fmt: skip

_logger = get_logger("remora.jobs")
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode
_ENTRIES_AT_ONCE = 64


class SummarizeHandler:
    """The summarize lane.

    After the last attempt, or when the session can wait no longer, or while the breaker is open on
    a retry, an extract stands in and is marked `degraded` (G6).

    Args:
        journal: where the frozen prefix is read.
        look: how a session stands.
        summarizer: the configured one.
        fallback: the extract; the same object where that is what is configured.
        breaker: shared by all sessions.
        counter: for the summary's size.
        max_tokens: longest summary, its prefix line included.
        prefix: what the summary's system message begins with.
        timeout_s: how long a model may take; one that hangs would hold a place that others wait
            for.
    """

    def __init__(
        self,
        journal: Journal,
        look: Callable[[SessionKey], Awaitable[SessionView]],
        summarizer: Summarizer,
        fallback: Summarizer,
        *,
        breaker: CircuitBreaker,
        counter: TokenCounter,
        max_tokens: int,
        prefix: str,
        timeout_s: float = 60.0,
    ) -> None:
        self._journal = journal
        self._look = look
        self._summarizer = summarizer
        self._fallback = fallback
        self._breaker = breaker
        self._counter = counter
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._max_tokens = max(max_tokens - counter.message_overhead - counter.count(prefix), 1)

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """One attempt.

        The last comes to something, whatever happens: a fold without an end would block all later
        ones.
        """
        try:
            return await self._summarize(attempt)
        except Exception as e:
            if not attempt.last or getattr(e, "retryable", False):
                raise
            probe("fold_without_summary")
            _logger.exception("fold_without_summary", session=attempt.job.key)
            spec = attempt.job.payload
            return self._ready(
                attempt,
                f"{spec.through - spec.first + 1} messages that could not be read.",
                "none",
                degraded=True,
            )

    async def _summarize(self, attempt: JobAttempt) -> JobResult:
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, SummarizeSpec)
        assert isinstance(key, SessionKey)
        previous, lines, given = await self._given(key, spec)
        degraded = False
        summarizer = self._summarizer
        if summarizer is self._fallback:
            text, degraded = await self._extract(previous, lines)
        else:
            hopeless = attempt.expedited or (self._breaker.open and attempt.job.attempts > 0)
            text = "" if hopeless else await self._try_model(previous, lines, last=attempt.last)
            if not text:
                probe("summary_degraded")
                degraded, summarizer = True, self._fallback
                text, _ = await self._extract(previous, lines)
                _logger.warning("summary_degraded", session=key, attempts=attempt.job.attempts + 1)
        # An extract of nothing but tool noise may be empty; a summary must say something, or its
        # messages would vanish.
        text = without_surrogates(text).strip() or f"{len(lines)} messages without text."
        return self._ready(attempt, text, summarizer.name, degraded=degraded, given=given)

    async def _given(
        self, key: SessionKey, spec: SummarizeSpec
    ) -> tuple[str | None, list[Line], int]:
        """What goes into the summary: the one before it, the lines of what is folded, and the
        tokens of both.
        """
        view = await self._look(key)
        before = [view.summary] if view.summary else []
        if spec.kind == "condense":
            folded = [one for one in view.summaries if one.through <= spec.through]
            lines = [Line("system", "Summary", one.text, 0) for one in folded]
            given = sum(one.tokens for one in folded)
        else:
            entries = await self._journal.read(key, spec.first, spec.through)
            lines = [_line(entry) for entry in entries]
            given = sum(entry.tokens for entry in entries)
            # Entries made under another policy are carried on as well; an entry of its own carries
            # nothing on.
            before = [] if spec.kind == "entry" else [*before, *view.summaries]
        previous = "\n".join(one.text for one in before) or None
        return previous, lines, given + sum(one.tokens for one in before)

    def _ready(
        self, attempt: JobAttempt, text: str, model: str, *, degraded: bool, given: int = 0
    ) -> JobResult:
        text = shorten(text, self._max_tokens, self._counter)
        tokens = count_message(self._counter, {"role": "system", "content": self._prefix + text})
        job = attempt.job
        return JobResult(
            message=SummaryReady(
                job.payload, job.id, self._prefix, text, tokens, degraded, model, given
            )
        )

    async def _extract(self, previous: str | None, lines: Sequence[Line]) -> tuple[str, bool]:
        """The extract; at worst, the previous summary, and that it is no more than that."""
        try:
            return await self._fallback.summarize(
                previous, lines, max_tokens=self._max_tokens
            ), False
        except Exception:
            probe("extract_failed")
            _logger.exception("extract_failed")
            return previous or "", True

    async def _try_model(self, previous: str | None, lines: Sequence[Line], *, last: bool) -> str:
        """The model's summary; the empty text when it failed for the last time."""
        ask = partial(self._summarizer.summarize, previous, lines, max_tokens=self._max_tokens)
        try:
            return await self._breaker.call(self._summarizer.name, ask, timeout_s=self._timeout_s)
        except ModelError:
            if last:
                return ""
            raise


class FlushHandler:
    """The flush lane: messages into long-term memory, and out of it again where they were removed.

    Args:
        journal: where the messages are read.
        store: opens long-term memory at first use.
        embedder: None for text search alone.
        counter: for a row's size in a context.
        window_chars: how much of each neighbour a row's window holds.
        batch_tokens: what is embedded and written at once, at most, or one whole turn.
        redact: goes over every text before long-term memory sees it.
        written: told the user of whatever was written, or may have been.
        users: keeps a repeated flush apart from the pruning of its user's rows.
    """

    def __init__(
        self,
        journal: Journal,
        store: Callable[[], Awaitable[LongTermStore]],
        embedder: Embedder | None,
        counter: TokenCounter,
        *,
        window_chars: int,
        batch_tokens: int,
        redact: Callable[[str], str] | None,
        written: Callable[[str], None],
        users: SharedLocks,
    ) -> None:
        self._journal = journal
        self._store = store
        self._embedder = embedder
        self._counter = counter
        self._window_chars = window_chars
        self._batch_tokens = batch_tokens
        self._redact = redact
        self._written = written
        self._users = users
        self._turns = KeyedLocks()
        self.merging = False
        """Take every row for one that may be there.

        Long-term memory is being made anew meanwhile.
        """

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """One attempt; from the second on, or after a restart, rows may be there already."""
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(key, SessionKey)
        may_exist = attempt.job.resumed or attempt.job.attempts > 0
        # One at a time for each session: what was removed must not be put back by a flush that had
        # read it before.
        async with self._turns(key):
            try:
                match spec:
                    case FlushSpec() if may_exist:
                        probe("doubtful_flush")
                        async with self._users.shared(key.user):
                            await self.flush(key, spec.first, spec.through, may_exist=True)
                    case FlushSpec():
                        await self.flush(key, spec.first, spec.through, may_exist=False)
                    case UnflushSpec():
                        async with self._users.shared(key.user):
                            await self._unflush(key, spec)
                    case DiscardSpec(seqs=seqs):
                        await (await self._store()).delete(
                            key.user, [row_id(key, seq) for seq in seqs]
                        )
                    case EntryFlushSpec():
                        await self._flush_entry(key, spec)
                    case _:
                        raise TypeError(f"the flush lane cannot do {type(spec).__name__}")
            finally:
                self._written(key.user)
        return JobResult(
            records=(Flushed(spec.sid, spec.through),) if isinstance(spec, FlushSpec) else ()
        )

    async def rebuild(self, key: SessionKey, through: int) -> None:
        """Write from the journal alone what long-term memory holds of a session.

        Messages up to `through`, and entries.

        What dead letters owe is theirs to bring: a message that long-term memory cannot take must
        not bar the others' way.
        """
        async with self._turns(key), self._users.shared(key.user):
            try:
                if through:
                    missing = owed(await self._journal.jobs(dead=True)).get(key)
                    among = set(range(1, through + 1)).difference(*missing) if missing else None
                    await self.flush(key, 1, through, may_exist=True, among=among)
                left = [
                    _decode_entry(one.value)
                    for one in await self._journal.state_items(key)
                    if one.kind == ENTRY_KIND
                ]
                for start in range(0, len(left), _ENTRIES_AT_ONCE):
                    some = left[start : start + _ENTRIES_AT_ONCE]
                    await self._add(
                        [entry_row(key, one.entry, one.at_us) for one in some], may_exist=True
                    )
            finally:
                self._written(key.user)

    async def flush(
        self,
        key: SessionKey,
        first: int,
        through: int,
        *,
        may_exist: bool,
        among: Collection[int] | None = None,
    ) -> None:
        """Write messages `first`…`through`, those that were pruned left out.

        Args:
            key: the session.
            first: number of the first.
            through: number of the last.
            may_exist: some may be there already.
            among: these alone.
        """
        entries = await self._journal.read(key, first - NEIGHBOURS, through + NEIGHBOURS)
        made = partial(
            message_rows,
            key,
            entries,
            first,
            through,
            self._counter,
            window_chars=self._window_chars,
        )
        size = sum(len(entry.chat) for entry in entries)
        rows = await anyio.to_thread.run_sync(made) if size > INLINE_CHARACTERS else made()
        if rows and (
            may_exist or first == 1
        ):  # of a session that was imported, some may have been pruned before it was flushed
            pruned = set(await self._journal.pruned(key))
            rows = [row for row in rows if row.seq not in pruned]
        by_seq = {row.seq: row for row in rows if among is None or row.seq in among}
        mine = [entry for entry in entries if entry.seq in by_seq]
        for batch in batches(mine, self._batch_tokens):
            await self._add([by_seq[entry.seq] for entry in batch], may_exist=may_exist)

    async def _flush_entry(self, key: SessionKey, spec: EntryFlushSpec) -> None:
        """Write a summary entry, unless the session went back before it meanwhile."""
        kept = {one.name for one in await self._journal.state_items(key) if one.kind == ENTRY_KIND}
        if str(spec.entry.through) in kept:
            # One that came back into its list, and left it again, is there already.
            await self._add([entry_row(key, spec.entry, spec.at_us)], may_exist=True)

    async def _unflush(self, key: SessionKey, spec: UnflushSpec) -> None:
        """Remove messages' rows, and write those of their neighbours anew, whose windows hold the
        same words.
        """
        removed = set(spec.seqs)
        reach = range(-NEIGHBOURS, NEIGHBOURS + 1)
        beside = {
            seq + step for seq in removed for step in reach if 0 < seq + step <= spec.flushing
        } - removed
        ended = [
            entry_id(key, seq) for seq in removed
        ]  # summary entries that ended with one of them
        await (await self._store()).delete(
            key.user, [*(row_id(key, seq) for seq in (*removed, *beside)), *ended]
        )
        if beside:
            await self.flush(key, min(beside), max(beside), may_exist=True, among=beside)

    async def _add(self, rows: Sequence[MemoryRow], *, may_exist: bool) -> None:
        rows, vectors = await prepare_rows(rows, self._redact, self._embedder)
        await (await self._store()).add(rows, vectors, may_exist=may_exist or self.merging)


async def prepare_rows(
    rows: Sequence[MemoryRow], redact: Callable[[str], str] | None, embedder: Embedder | None
) -> tuple[Sequence[MemoryRow], Vector | None]:
    """Rows as long-term memory may have them, and their vectors, where there is an embedder.

    Raises:
        RedactionFailed: the hook raised, or returned no text.
        ModelError: the embedder failed.
    """
    if redact is not None:
        rows = [redact_row(row, redact) for row in rows]
    return rows, None if embedder is None else await embed_texts(
        embedder, [embedding_text(row) for row in rows]
    )


def embedding_text(row: MemoryRow) -> str:
    """What of a row is embedded.

    Who said it is worth 16 points of recall to a vector search, where somebody said it.
    """
    return (
        f"{row.speaker or row.role.title()}: {row.content}"
        if row.memory_type == "message"
        else row.content
    )


def redact_row(row: MemoryRow, redact: Callable[[str], str]) -> MemoryRow:
    """The row as long-term memory may have it.

    Raises:
        RedactionFailed: the hook raised, or returned no text.
    """
    texts = {
        name: redact_text(getattr(row, name), redact) for name in ("content", "turn", "window")
    }
    return msgspec.structs.replace(row, **texts)


def _line(entry: Entry) -> Line:
    chat = decode_chat(entry.chat)
    return Line(entry.role, speaker_of(chat), plain_text(chat), entry.at_us)


def message_rows(
    key: SessionKey,
    entries: Sequence[Entry],
    first: int,
    through: int,
    counter: TokenCounter,
    *,
    window_chars: int,
) -> list[MemoryRow]:
    """Rows for messages `first`…`through`; `entries` also holds neighbours, for the windows."""
    chats = [decode_chat(entry.chat) for entry in entries]
    texts = [plain_text(chat) for chat in chats]
    rows = []
    for i, (entry, chat) in enumerate(zip(entries, chats, strict=True)):
        if not first <= entry.seq <= through:
            continue
        turn = dated_line(entry.at_us, f"{speaker_of(chat)}: {texts[i]}")
        window = [
            turn if j == i else f"{speaker_of(chats[j])}: {texts[j][:window_chars]}"
            for j in range(max(i - NEIGHBOURS, 0), min(i + NEIGHBOURS + 1, len(entries)))
            # by their numbers: whose words are where must not depend on what else is gone
            # (`_unflush` goes by it)
            if abs(entries[j].seq - entry.seq) <= NEIGHBOURS
        ]
        rows.append(
            MemoryRow(
                id=row_id(key, entry.seq),
                user=key.user,
                session=key.session,
                seq=entry.seq,
                role=entry.role,
                speaker=str(chat.get("name") or "") if entry.role != "tool" else "",
                content=texts[i],
                turn=turn,
                window="\n".join(window),
                memory_type="message",
                importance=entry.importance,
                created_us=entry.at_us,
                tokens=counter.count(turn),
            )
        )
    return rows


def entry_row(key: SessionKey, entry: Summary, at_us: int) -> MemoryRow:
    """The row of a summary entry that left its list."""
    return standalone_row(
        entry_id(key, entry.through),
        key.user,
        key.session,
        entry.text,
        dated_line(at_us, f"Summary: {entry.text}"),
        memory_type="summary",
        importance=0.5,
        created_us=at_us,
        tokens=entry.tokens,
    )


def standalone_row(
    id_: str, user: str, session: str, content: str, turn: str, **rest: Any
) -> MemoryRow:
    """A row that belongs to no conversation even where it names a session.

    No message is its neighbour, and nobody said it.
    """
    return MemoryRow(
        id=id_,
        user=user,
        session=session,
        seq=0,
        role="system",
        speaker="",
        content=content,
        turn=turn,
        window=turn,
        **rest,
    )
