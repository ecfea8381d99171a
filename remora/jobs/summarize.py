"""The summarize queue: makes a summary of a frozen prefix of a buffer.

A job may run more than once: the session accepts the first result and drops a second as stale.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from remora.actors.policies.summary import shorten
from remora.actors.session.messages import SessionView, SummaryReady
from remora.errors import ModelError
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import Entry, decode_chat, plain_text, speaker_of, without_surrogates
from remora.models.breaker import CircuitBreaker
from remora.models.ports import Line, Summarizer
from remora.runtime.jobs import JobAttempt, JobResult
from remora.runtime.probes import probe
from remora.storage.ports import Journal
from remora.storage.records import SummarizeSpec
from remora.tokens import TokenCounter, count_message

__all__ = ["SummarizeHandler"]

_logger = get_logger(__name__)


class SummarizeHandler:
    """Runs the jobs of the summarize queue.

    It makes a fallback summary, marked `degraded`, if the last attempt fails, if the session cannot
    wait any longer, and on a retry while the breaker is open (G6).

    Args:
        journal: has the frozen prefix.
        look: the view of a session.
        summarizer: the configured one.
        fallback: makes fallback summaries; the same object if it is the configured one.
        breaker: shared by all sessions.
        counter: for the summary's size.
        max_tokens: longest summary, its prefix line included.
        prefix: what the summary's system message begins with.
        timeout_s: how long a model may take.
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
        """Run one attempt.

        The last attempt always has a result: an endless compaction would block all later ones.
        """
        try:
            return await self._summarize(attempt)
        except Exception as e:
            if not attempt.last or getattr(e, "retryable", False):
                raise
            probe("compaction_without_summary")
            _logger.exception("compaction_without_summary", session=attempt.job.key)
            count = attempt.job.payload.through - attempt.job.payload.first + 1
            text = f"{count} messages that could not be read."
            return self._result(attempt, text, "none", degraded=True)

    async def _summarize(self, attempt: JobAttempt) -> JobResult:
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, SummarizeSpec)
        assert isinstance(key, SessionKey)
        previous, lines, given = await self._input(key, spec)
        degraded = False
        summarizer = self._summarizer
        if summarizer is self._fallback:
            text, degraded = await self._run_fallback(previous, lines)
        else:
            skip = attempt.expedited or (self._breaker.open and attempt.job.attempts > 0)
            text = "" if skip else await self._ask_model(previous, lines, last=attempt.last)
            if not text:
                probe("summary_degraded")
                degraded, summarizer = True, self._fallback
                text, _ = await self._run_fallback(previous, lines)
                _logger.warning("summary_degraded", session=key, attempts=attempt.job.attempts + 1)
        # A fallback summary of tool output may be empty; a summary must not be.
        text = without_surrogates(text).strip() or f"{len(lines)} messages without text."
        return self._result(attempt, text, summarizer.name, degraded=degraded, given=given)

    async def _input(
        self, key: SessionKey, spec: SummarizeSpec
    ) -> tuple[str | None, list[Line], int]:
        """The previous summary, the lines to summarize, and the tokens of both."""
        view = await self._look(key)
        before = [view.summary] if view.summary else []
        if spec.kind == "condense":
            condensed = [one for one in view.summaries if one.through <= spec.through]
            lines = [Line("system", "Summary", one.text, 0) for one in condensed]
            given = sum(one.tokens for one in condensed)
        else:
            entries = await self._journal.read(key, spec.first, spec.through)
            lines = [_line(entry) for entry in entries]
            given = sum(entry.tokens for entry in entries)
            # A running summary includes entries made under another policy; an entry includes
            # nothing.
            before = [] if spec.kind == "entry" else [*before, *view.summaries]
        previous = "\n".join(one.text for one in before) or None
        return previous, lines, given + sum(one.tokens for one in before)

    def _result(
        self, attempt: JobAttempt, text: str, model: str, *, degraded: bool, given: int = 0
    ) -> JobResult:
        text = shorten(text, self._max_tokens, self._counter)
        tokens = count_message(self._counter, {"role": "system", "content": self._prefix + text})
        job = attempt.job
        spec, prefix = job.payload, self._prefix
        ready = SummaryReady(spec, job.id, prefix, text, tokens, degraded, model, given)
        return JobResult(message=ready)

    async def _run_fallback(self, previous: str | None, lines: Sequence[Line]) -> tuple[str, bool]:
        """The fallback summary, and whether it is only the previous one because it failed."""
        summarize, most = self._fallback.summarize, self._max_tokens
        try:
            return await summarize(previous, lines, max_tokens=most), False
        except Exception:
            probe("extract_failed")
            _logger.exception("fallback_summary_failed")
            return previous or "", True

    async def _ask_model(self, previous: str | None, lines: Sequence[Line], *, last: bool) -> str:
        """The model's summary; empty if the last attempt failed."""
        ask = partial(self._summarizer.summarize, previous, lines, max_tokens=self._max_tokens)
        try:
            return await self._breaker.call(self._summarizer.name, ask, timeout_s=self._timeout_s)
        except ModelError:
            if last:
                return ""
            raise


def _line(entry: Entry) -> Line:
    chat = decode_chat(entry.chat)
    return Line(entry.role, speaker_of(chat), plain_text(chat), entry.at_us)
