"""What the supervisor's lanes do for sessions: summarize a frozen prefix, hand messages over to long-term memory.

Both may run more than once for one job, and bear it: a summary is taken once (the actor drops the second as stale), and rows have
deterministic ids.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from remora.actors.session import SummaryReady
from remora.actors.summary import shortened
from remora.errors import ModelAnswerInvalid, ModelError
from remora.identity import SessionKey, row_id
from remora.logs import get_logger
from remora.messages import Entry, decode_chat, plain_text, sound_text, speaker_of
from remora.models.breaker import CircuitBreaker
from remora.models.ports import Embedder, Line, Summarizer, embed_texts
from remora.runtime.containment import contained
from remora.runtime.supervisor import Attempt, Verdict
from remora.storage.ports import Journal, LongTermStore, MemoryRow
from remora.storage.records import Flushed, FlushSpec, SummarizeSpec, Summary
from remora.tokens import TokenCounter, count_message

__all__ = ["FlushHandler", "SummarizeHandler", "memory_rows"]

_logger = get_logger("remora.jobs")
_NEIGHBOURS = 2  # messages either side that a row's window holds


class SummarizeHandler:
    """The summarize lane.

    After the last attempt, or when the session can wait no longer, or while the breaker is open on a retry, an extract
    stands in and is marked `degraded` (G6).

    Args:
        journal: where the frozen prefix is read.
        summary_of: a session's current summary.
        summarizer: the configured one.
        fallback: the extract; the same object where that is what is configured.
        breaker: shared by all sessions.
        counter: for the summary's size.
        max_tokens: longest summary, its prefix line included.
        prefix: what the summary's system message begins with.
    """

    def __init__(
        self,
        journal: Journal,
        summary_of: Callable[[SessionKey], Awaitable[Summary | None]],
        summarizer: Summarizer,
        fallback: Summarizer,
        *,
        breaker: CircuitBreaker,
        counter: TokenCounter,
        max_tokens: int,
        prefix: str,
    ) -> None:
        self._journal = journal
        self._summary_of = summary_of
        self._summarizer = summarizer
        self._fallback = fallback
        self._breaker = breaker
        self._counter = counter
        self._prefix = prefix
        self._max_tokens = max(max_tokens - counter.message_overhead - counter.count(prefix), 1)

    async def __call__(self, attempt: Attempt) -> Verdict:
        """One attempt; the last comes to something, whatever happens: a fold without an end would block all later ones."""
        try:
            return await self._summarize(attempt)
        except Exception as e:
            if not attempt.last or getattr(e, "retryable", False):
                raise
            _logger.exception("fold_without_summary", session=attempt.job.key)
            spec = attempt.job.payload
            return self._ready(
                attempt, f"{spec.through - spec.first + 1} messages that could not be read.", "none", degraded=True
            )

    async def _summarize(self, attempt: Attempt) -> Verdict:
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, SummarizeSpec)
        assert isinstance(key, SessionKey)
        entries = await self._journal.read(key, spec.first, spec.through)
        summary = await self._summary_of(key)
        previous = summary.text if summary else None
        lines = [_line(entry) for entry in entries]
        degraded = False
        summarizer = self._summarizer
        if summarizer is self._fallback:
            text = await self._extract(previous, lines)
        else:
            hopeless = attempt.expedited or (self._breaker.open and attempt.job.attempts > 0)
            text = "" if hopeless else await self._try_model(previous, lines, last=attempt.last)
            if not text:
                degraded, summarizer = True, self._fallback
                text = await self._extract(previous, lines)
                _logger.warning("summary_degraded", session=key, attempts=attempt.job.attempts + 1)
        # An extract of nothing but tool noise may be empty; a summary must say something, or its messages would vanish.
        text = sound_text(text).strip() or f"{len(entries)} messages without text."
        return self._ready(attempt, text, summarizer.name, degraded=degraded)

    def _ready(self, attempt: Attempt, text: str, model: str, *, degraded: bool) -> Verdict:
        text = shortened(text, self._max_tokens, self._counter)
        tokens = count_message(self._counter, {"role": "system", "content": self._prefix + text})
        job = attempt.job
        return Verdict(message=SummaryReady(job.payload, job.id, self._prefix, text, tokens, degraded, model))

    async def _extract(self, previous: str | None, lines: Sequence[Line]) -> str:
        """The extract; at worst, the previous summary."""
        try:
            return await self._fallback.summarize(previous, lines, max_tokens=self._max_tokens)
        except Exception:
            _logger.exception("extract_failed")
            return previous or ""

    async def _try_model(self, previous: str | None, lines: Sequence[Line], *, last: bool) -> str:
        """The model's summary; the empty text when it failed for the last time."""
        try:
            with self._breaker.guard():
                try:
                    return await contained(self._summarizer.summarize, previous, lines, max_tokens=self._max_tokens)
                except ModelError:
                    raise
                except Exception as e:  # a plugged-in model may raise anything
                    raise ModelAnswerInvalid(f"{self._summarizer.name} failed: {type(e).__name__}: {e}") from e
        except ModelError:
            if last:
                return ""
            raise


class FlushHandler:
    """The flush lane.

    Args:
        journal: where the messages are read.
        store: opens long-term memory at first use.
        embedder: None for text search alone.
        counter: for a row's size in a context.
        window_chars: how much of each neighbour a row's window holds.
    """

    def __init__(
        self,
        journal: Journal,
        store: Callable[[], Awaitable[LongTermStore]],
        embedder: Embedder | None,
        counter: TokenCounter,
        *,
        window_chars: int,
    ) -> None:
        self._journal = journal
        self._store = store
        self._embedder = embedder
        self._counter = counter
        self._window_chars = window_chars

    async def __call__(self, attempt: Attempt) -> Verdict:
        """One attempt; from the second on, or after a restart, rows may be there already."""
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, FlushSpec)
        assert isinstance(key, SessionKey)
        entries = await self._journal.read(key, spec.first - _NEIGHBOURS, spec.through + _NEIGHBOURS)
        rows = memory_rows(key, entries, spec.first, spec.through, self._counter, window_chars=self._window_chars)
        vectors = None
        if self._embedder is not None and rows:
            texts = [f"{row.speaker or row.role.title()}: {row.content}" for row in rows]
            vectors = await embed_texts(self._embedder, texts)
        store = await self._store()
        await store.add(rows, vectors, doubtful=attempt.job.resumed or attempt.job.attempts > 0)
        return Verdict(records=(Flushed(spec.sid, spec.through),))


def _line(entry: Entry) -> Line:
    chat = decode_chat(entry.chat)
    return Line(entry.role, speaker_of(chat), plain_text(chat), entry.at_us)


def memory_rows(
    key: SessionKey, entries: Sequence[Entry], first: int, through: int, counter: TokenCounter, *, window_chars: int
) -> list[MemoryRow]:
    """Rows for messages `first`…`through`; `entries` also holds neighbours, for the windows."""
    chats = [decode_chat(entry.chat) for entry in entries]
    texts = [plain_text(chat) for chat in chats]
    rows = []
    for i, (entry, chat) in enumerate(zip(entries, chats, strict=True)):
        if not first <= entry.seq <= through:
            continue
        at = datetime.fromtimestamp(entry.at_us / 1_000_000, UTC)
        turn = f"({at.day} {at:%B %Y}) {speaker_of(chat)}: {texts[i]}"
        window = [
            turn if j == i else f"{speaker_of(chats[j])}: {texts[j][:window_chars]}"
            for j in range(max(i - _NEIGHBOURS, 0), min(i + _NEIGHBOURS + 1, len(entries)))
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
                importance=0.5,
                created_us=entry.at_us,
                tokens=counter.count(turn),
            )
        )
    return rows
