"""The summarize queue: makes a summary of a frozen prefix of a buffer.

A job may run more than once: the session accepts the first result and drops a second as stale.

Lost messages, of which there is a fallback summary only, are summarized again when the model is
back. Each call of the model gets a bounded part of them: with the next compaction, or in a job of
its own. A job that fails ends; `Resummarizer` has the session start another one later.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from remora.actors.policies.summary import shorten
from remora.actors.session.messages import Resummarize, SessionView, SummaryReady
from remora.config import BufferConfig
from remora.errors import ModelAnswerInvalid, ModelError, RemoraError
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import (
    Entry,
    decode_chat,
    indent,
    leading_instructions,
    plain_text,
    remove_hidden,
    speaker_of,
    tool_calls,
    without_surrogates,
)
from remora.messages.text import counted
from remora.models.breaker import CircuitBreaker
from remora.models.clipping import clip, clip_evenly, replace_data
from remora.models.compression import add_tokens, prepare
from remora.models.extractive import extracted_lines
from remora.models.ports import Line, Summarizer
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.guard import call_guarded
from remora.runtime.jobs import JobAttempt, JobResult
from remora.runtime.probes import probe
from remora.runtime.threads import compute_apart, compute_in_thread
from remora.storage.ports import Journal
from remora.storage.records import (
    MessageRange,
    SummarizeSpec,
    Summary,
    find_lost,
    merge_ranges,
    model_name,
)
from remora.tokens import TokenCounter

_logger = get_logger(__name__)
_ASKS = 3  # calls of a model whose answers are too long, each with a stricter limit
_STRICTEST = 8  # times as strict as the first one
_PROMPT_TOKENS, _LINE_TOKENS = 500, 8  # for instructions, and for who speaks when
_LEAST_ROOM = 1_000
_AGAIN = (
    "These messages were left out before, or were changed: what they say replaces what the summary "
    "says of them."
)
_AGAIN_AT_ONCE = 5_000  # messages in memory while a long session is extracted again
_SHARE = 4  # of a budget, for the summary that is made for it


class _TooLong(ModelAnswerInvalid):
    """A summary that must be cut loses messages, and nobody knows which."""


class _Input(msgspec.Struct, frozen=True):
    """The input of a summary.

    Attributes:
        priors: the summaries that it continues, oldest first.
        condensed: entries that go into the running summary.
        entries: messages.
        repaired: lost messages that are summarized as well; they come before `entries`.
        lost: messages that stay lost.
        tokens: of all that.
        most: tokens of the summary.
        owner: whose they are.
    """

    priors: Sequence[Summary]
    condensed: Sequence[Summary]
    entries: Sequence[Entry]
    repaired: Sequence[Entry]
    lost: tuple[MessageRange, ...]
    tokens: int
    most: int
    owner: str


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
        buffer: sizes of summaries, and their first words.
        resummarizer: told of sessions with lost messages.
        durations: told of each compaction.
        timeout_s: how long a model may take.
        window: tokens that the model can read and write.
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
        buffer: BufferConfig,
        resummarizer: Resummarizer,
        durations: CompactionDurations,
        timeout_s: float = 60.0,
        window: int = 32_000,
    ) -> None:
        self._window = window
        self._journal = journal
        self._look = look
        self._summarizer = summarizer
        self._fallback = fallback
        self._breaker = breaker
        self._counter = counter
        self._buffer = buffer
        self._resummarizer = resummarizer
        self._durations = durations
        self._timeout_s = timeout_s
        self._model = model_name(summarizer.name)
        prefix = buffer.summary_prefix
        self._overhead = counter.message_overhead + counter.count(prefix)
        self._max_tokens = max(buffer.most_summary_tokens - self._overhead, 1)
        self._extracts = bool(getattr(summarizer, "extracts", False)) or summarizer is fallback
        """What it leaves out is lost."""
        self._writer = FallbackWriter(journal, counter, prefix, self._max_tokens)

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """Run one attempt.

        The last attempt always has a result: an endless compaction would block all later ones.
        """
        began = time.monotonic()
        result = await self._run(attempt)
        ready, spec = result.message, attempt.job.payload
        if isinstance(ready, SummaryReady) and ready.text:
            seconds = time.monotonic() - began
            assert isinstance(attempt.job.key, SessionKey)
            self._durations.add(attempt.job.key, spec.through, ready.tokens, seconds)
            _logger.info(
                "buffer_compacted",
                session=attempt.job.key,
                kind=spec.kind,
                messages=spec.through - spec.first + 1,
                tokens=ready.input_tokens,
                summary_tokens=ready.tokens,
                model=ready.model,
                degraded=ready.degraded,
                seconds=seconds,
            )
        return result

    async def _run(self, attempt: JobAttempt) -> JobResult:
        spec = attempt.job.payload
        assert isinstance(spec, SummarizeSpec)
        try:
            run = self._repair if spec.kind == "repair" else self._summarize
            return await call_guarded(run, attempt, spec)
        except Exception as e:
            if not attempt.last or getattr(e, "retryable", False) or spec.kind == "repair":
                raise
            probe("compaction_without_summary")
            _logger.exception("compaction_without_summary", session=attempt.job.key)
            text = f"{counted(spec.through - spec.first + 1, 'message')} that could not be read."
            text = shorten(text, self._max_tokens, self._counter)
            return await self._result(attempt, text, "none", degraded=True)

    async def _summarize(self, attempt: JobAttempt, spec: SummarizeSpec) -> JobResult:
        key = attempt.job.key
        assert isinstance(key, SessionKey)
        # An attempt that failed may have failed on what was added to it.
        repairs = not self._extracts and attempt.job.attempts == 0 and not attempt.expedited
        repairs = repairs and spec.kind != "ahead"
        given = await self._input(key, spec, repairs=repairs)
        if self._extracts:
            return await self._write_fallback(attempt, given, self._summarizer)
        skip = attempt.expedited or (self._breaker.open and attempt.job.attempts > 0)
        try:
            text = ""
            if not skip:
                attempts = attempt.job.attempts
                text = await self._ask_model(given, last=attempt.last, attempts=attempts)
        except _TooLong:
            text = ""
            self._resummarizer.postpone(key)
        if text:
            if given.lost:
                self._resummarizer.report(key)
            return await self._result(
                attempt, text, self._model, lost=given.lost, input_tokens=given.tokens
            )
        probe("summary_degraded")
        _logger.warning("summary_degraded", session=key, attempts=attempt.job.attempts + 1)
        self._resummarizer.report(key)
        return await self._write_fallback(attempt, given, self._fallback, replaces=True)

    async def _input(self, key: SessionKey, spec: SummarizeSpec, *, repairs: bool) -> _Input:
        view = await self._look(key)
        priors = [view.summary] if view.summary else []
        condensed: list[Summary] = []
        entries: Sequence[Entry] = ()
        most = self._max_tokens
        if spec.kind == "ahead":
            most = self._within(most, spec)
            priors, first = _newest_summaries(view, spec)
            entries = await self._read(key, view, first, spec.through)
        elif spec.kind == "condense":
            condensed = [one for one in view.summaries if one.through <= spec.through]
        else:
            entries = await self._read(key, view, spec.first, spec.through)
            # A running summary includes entries made under another policy; an entry includes
            # nothing.
            priors = [] if spec.kind == "entry" else [*priors, *view.summaries]
        if self._extracts:
            blank = [one for one in (*priors, *condensed) if one.blank]
            priors = [one for one in priors if not one.blank]
            condensed = [one for one in condensed if not one.blank]
            for one in reversed(blank):  # a message was deleted: the others are extracted again
                folded, again, _ = await self._read_again(key, view, one, self._summarizer)
                priors, entries = [*folded, *priors], [*again, *entries]
        lost = merge_ranges(part for one in (*priors, *condensed) for part in find_lost(one))
        repaired: list[Entry] = []
        if repairs and lost and not condensed:
            probe("repaired_with_compaction")
            repaired, lost = await read_lost(self._journal, key, lost, self._repair_tokens)
        tokens = sum(one.tokens for one in (*priors, *condensed))
        tokens += sum(entry.tokens for entry in (*entries, *repaired))
        return _Input(priors, condensed, entries, repaired, lost, tokens, most, key.user)

    def _within(self, most: int, spec: SummarizeSpec) -> int:
        """At most `most` tokens of text; less where the summary is for a small budget."""
        if not spec.budget:
            return most
        return max(min(most, spec.budget // _SHARE - self._overhead), 1)

    async def _read(
        self, key: SessionKey, view: SessionView, first: int, through: int
    ) -> Sequence[Entry]:
        """Messages, without instructions at the session's beginning: contexts show them."""
        entries = await self._journal.read(key, first, through)
        watermarks = view.watermarks
        if first == watermarks.archived_through + 1 == watermarks.cleared_through + 1:
            return entries[leading_instructions(entries) :]
        return entries

    @property
    def _repair_tokens(self) -> int:
        """Most tokens of lost messages for one call of the model: what a compaction gives it."""
        return max(self._buffer.fold_above_tokens // 2, 1)

    async def _repair(self, attempt: JobAttempt, spec: SummarizeSpec) -> JobResult:
        """Add lost messages to their summary; without a text if the model fails."""
        key = attempt.job.key
        assert isinstance(key, SessionKey)
        view = await self._look(key)
        listed = [*([view.summary] if view.summary else []), *view.summaries]
        prior = next((one for one in listed if one.through == spec.through), None)
        text, tokens = "", 0
        lost: tuple[MessageRange, ...] = ()
        if prior is not None and view.watermarks.generation == spec.generation:
            if self._extracts:
                given = await self._all_of(key, view, prior, self._summarizer)
                return await self._write_fallback(attempt, given, self._summarizer)
            repaired, lost = await read_lost(
                self._journal, key, find_lost(prior), self._repair_tokens
            )
            tokens = prior.tokens + sum(entry.tokens for entry in repaired)
            most = self._max_tokens
            given = _Input([prior], [], (), repaired, lost, tokens, most, key.user)
            try:
                text = await self._ask_model(given, last=True)
            except _TooLong:
                self._resummarizer.postpone(key)
            if lost or not text:
                self._resummarizer.report(key)
            if not text and prior.blank:  # contexts have nothing of these messages
                given = await self._all_of(key, view, prior, self._fallback)
                return await self._write_fallback(attempt, given, self._fallback, replaces=True)
        if not text:
            probe("repair_failed")
            _logger.info("lost_messages_not_summarized", session=key)
            ready = SummaryReady(spec, attempt.job.id, "", "", 0, degraded=False, model=self._model)
            return JobResult(message=ready)
        return await self._result(attempt, text, self._model, lost=lost, input_tokens=tokens)

    async def _all_of(
        self, key: SessionKey, view: SessionView, summary: Summary, summarizer: Summarizer
    ) -> _Input:
        """The messages that a summary covers, without those that contexts show in any case."""
        probe("extracted_again")
        folded, entries, tokens = await self._read_again(key, view, summary, summarizer)
        return _Input(folded, [], entries, [], (), tokens, self._max_tokens, key.user)

    async def _read_again(
        self, key: SessionKey, view: SessionView, summary: Summary, summarizer: Summarizer
    ) -> tuple[list[Summary], Sequence[Entry], int]:
        """The last of the messages that a summary covers, `_AGAIN_AT_ONCE` at most.

        And a summary of the others, if there are more, and the tokens of all.
        """
        folded: list[Summary] = []
        entries: Sequence[Entry] = ()
        tokens = 0
        for first in range(summary.first, summary.through + 1, _AGAIN_AT_ONCE):
            if entries:
                probe("extracted_again_in_parts")
                most = max(self._buffer.fallback_tokens(tokens) - self._overhead, 1)
                made = await self._writer.write(summarizer, key, folded, entries, most)
                folded = [
                    msgspec.structs.replace(
                        summary,
                        through=entries[-1].seq,
                        text=made.text,
                        tokens=self._message_size(made.tokens),
                        model=summarizer.name,
                        lost=made.lost,
                        verbatim=made.verbatim,
                        prose=made.prose,
                    )
                ]
            last = min(first + _AGAIN_AT_ONCE - 1, summary.through)
            entries = await self._journal.read(key, first, last)
            if first == view.watermarks.cleared_through + 1:
                entries = entries[leading_instructions(entries) :]
            tokens += sum(entry.tokens for entry in entries)
        return folded, entries, tokens

    async def _write_fallback(
        self,
        attempt: JobAttempt,
        given: _Input,
        summarizer: Summarizer,
        *,
        replaces: bool = False,
    ) -> JobResult:
        """A fallback summary; `replaces`: in place of a model's."""
        key = attempt.job.key
        assert isinstance(key, SessionKey)
        replaced = given.tokens - sum(entry.tokens for entry in given.repaired)
        most = max(self._buffer.fallback_tokens(replaced) - self._overhead, 1)
        most = self._within(most, attempt.job.payload)
        priors = [*given.priors, *given.condensed]
        written = await self._writer.write(summarizer, key, priors, given.entries, most)
        text, tokens = written.text, written.tokens
        if not text:  # a fallback summary of tool output may be empty; a summary must not be
            text = f"{counted(len(given.entries), 'message')} without text."
            tokens = await self._writer.size(text)
        return await self._result(
            attempt,
            text,
            summarizer.name,
            tokens=tokens,
            degraded=replaces or written.failed,
            hurried=replaces and attempt.expedited and not self._breaker.open,
            input_tokens=replaced,
            lost=written.lost,
            verbatim=written.verbatim,
            prose=written.prose,
            brief=written.brief,
            brief_tokens=self._message_size(written.brief_tokens) if written.brief else 0,
        )

    async def _result(
        self,
        attempt: JobAttempt,
        text: str,
        model: str,
        *,
        tokens: int | None = None,
        degraded: bool = False,
        **rest: Any,
    ) -> JobResult:
        """The result; `tokens` of the text behind a summary's first words, if they are known."""
        job, prefix = attempt.job, self._buffer.summary_prefix
        size = self._message_size(await self._writer.size(text) if tokens is None else tokens)
        ready = SummaryReady(job.payload, job.id, prefix, text, size, degraded, model, **rest)
        return JobResult(message=ready)

    def _message_size(self, tokens: int) -> int:
        """Tokens of a message with so many in its text."""
        return self._counter.message_overhead + tokens

    def _room(self, given: _Input, attempts: int) -> int:
        """Tokens of the model's window for messages.

        What may have failed for its size is not sent again: each attempt has half of the room, down
        to what a compaction has by itself.
        """
        told = sum(one.tokens for one in given.priors)
        room = self._window - told - self._max_tokens - _PROMPT_TOKENS
        return max(room >> attempts, min(room // 2, self._repair_tokens), _LEAST_ROOM)

    def _clip(self, lines: list[Line], room: int) -> list[Line]:
        """The lines, the longest clipped so that all take at most `room` tokens."""
        texts = [line.text for line in lines]
        tokens = sum(map(self._counter.count, texts)) + _LINE_TOKENS * len(lines)
        if tokens <= room:
            return lines
        probe("summary_input_clipped")
        most = sum(map(len, texts)) * room // tokens
        return [
            msgspec.structs.replace(line, text=text)
            for line, text in zip(lines, clip_evenly(texts, most), strict=True)
        ]

    async def _ask_model(self, given: _Input, *, last: bool, attempts: int = 0) -> str:
        """The model's summary; empty if the last attempt failed.

        Raises:
            _TooLong: each answer was longer than a summary may be.
        """
        priors, condensed = given.priors, given.condensed
        if not (condensed or given.entries or given.repaired):  # only a shorter one is wanted
            priors, condensed = [], priors
        previous = "\n".join(one.text for one in priors) or None
        lines = [Line("system", "Summary", one.text, 0) for one in condensed]
        lines.extend(await lines_of((*given.repaired, *given.entries)))
        if given.repaired and not given.entries:
            lines.insert(0, Line("system", "Note", _AGAIN, 0))
        room = self._room(given, attempts)
        if given.tokens + _LINE_TOKENS * len(lines) > room:  # by what was counted already
            lines = await compute_in_thread(self._clip, lines, room)
        ask = prepare(self._summarizer, previous, lines)
        name, most = self._summarizer.name, given.most
        limit = most
        for _ in range(_ASKS):
            try:
                asking = partial(ask, limit)
                text = await self._breaker.call(
                    name, asking, timeout_s=self._timeout_s, owner=given.owner
                )
            except ModelError:
                if last:
                    return ""
                raise
            text = indent(without_surrogates(text).strip())
            tokens = await self._writer.count(text)
            add_tokens(self._summarizer, given.tokens, tokens)
            if tokens <= most:
                return text
            probe("summary_too_long")
            _logger.info("summary_too_long", model=name, tokens=tokens, most=most)
            limit = max(limit * most * 9 // (tokens * 10), most // _STRICTEST, 1)
        raise _TooLong(f"{name} answered {_ASKS} times with more than {most} tokens")


def _newest_summaries(view: SessionView, spec: SummarizeSpec) -> tuple[list[Summary], int]:
    """Return what a summary for a smaller budget continues, and the first message behind that."""
    running = [*([view.summary] if view.summary else []), *view.summaries]
    archived = view.watermarks.archived_through
    size = spec.budget.bit_length()  # a summary for a smaller budget has lost too much
    own = [one.summary for one in view.readers if one.budget.bit_length() >= size and one.summary]
    newest = max(
        (one for one in own if archived < one.through <= spec.through),
        key=lambda one: (one.through, one.tokens),
        default=None,
    )
    if newest is None:
        return running, max(archived + 1, spec.first)
    return [newest], newest.through + 1


# -- fallback summaries: lines extracted from messages, and which messages they cover --------------
#
# A fallback keeps what a model wrote before it, as long as that takes up to half of its size, and
# fills the rest with lines. Lines of earlier fallbacks compete with new ones. A message is covered
# if all its text is in the lines; every other message that no model summarized is lost.

_SLICE = 1_000  # messages read at once
_INLINE = 4_000  # characters
_LINES_INLINE = 64_000  # bytes of messages
_RESULT_CHARACTERS = 4_000  # of a tool's result: who asked for it has read the whole
_MESSAGE_CHARACTERS = 64_000  # of another message: far more than a summary has room for
_TRIES = 4  # a counter may find a text longer than the sum of its lines


class Fallback(msgspec.Struct, frozen=True):
    """A fallback summary; see `remora.storage.records.Summary`.

    Attributes:
        tokens: of the text behind the first words of a summary.
        brief_tokens: of the brief form behind them.
        failed: the summarizer failed, and this is what there was before.
    """

    text: str
    tokens: int
    brief: str
    brief_tokens: int
    prose: int
    lost: tuple[MessageRange, ...]
    verbatim: tuple[MessageRange, ...]
    failed: bool


class _Source:
    """The lines of an extract, in several sizes.

    Args:
        summarizer: extracts them.
        earlier: the lines before.
        lines: what is new.
        tokens: of all that.
        sizes: most tokens of each text that may be asked for.

    Attributes:
        summarize: takes the most tokens.
    """

    def __init__(
        self,
        summarizer: Summarizer,
        earlier: str,
        lines: Sequence[Line],
        tokens: int,
        sizes: Sequence[int] = (),
    ) -> None:
        self.summarizer = summarizer
        self.earlier = earlier
        self.tokens = tokens
        self.summarize = prepare(summarizer, earlier or None, lines, sizes)


class FallbackWriter:
    """Writes fallback summaries.

    Args:
        journal: has the messages.
        counter: for their size.
        prefix: the first words of every summary.
        brief_tokens: longest brief form, without them.
    """

    def __init__(
        self, journal: Journal, counter: TokenCounter, prefix: str, brief_tokens: int
    ) -> None:
        self._journal = journal
        self._counter = counter
        self._prefix, self._prefix_tokens = prefix, counter.count(prefix)
        self._brief_tokens = brief_tokens

    async def write(
        self,
        summarizer: Summarizer,
        key: SessionKey,
        priors: Sequence[Summary],
        entries: Sequence[Entry],
        max_tokens: int,
    ) -> Fallback:
        """Continue the summaries before, `priors`, with lines extracted from new messages."""
        prose = "\n".join(text for one in priors if (text := _prose(one)))
        prose_tokens = await self.count(prose) if prose else 0
        earlier = "\n".join(text for one in priors if (text := _extracted(one)))
        lost = [part for one in priors for part in find_lost(one)]
        if prose_tokens > max_tokens // 2:
            probe("prose_dropped")  # what the model wrote competes with the lines
            lost.extend([part for one in priors for part in await self._prose_ranges(key, one)])
            earlier = "\n".join([prose, earlier] if earlier else [prose])
            prose, prose_tokens = "", 0
        lines = await lines_of(entries)
        given = sum(one.tokens for one in priors) + sum(entry.tokens for entry in entries)
        sizes = () if prose else (self._brief_tokens,)
        source = _Source(summarizer, earlier, lines, given - prose_tokens, sizes)
        text, tokens, failed = await self._extract(source, prose, max_tokens)
        brief, brief_tokens = "", 0
        if tokens > self._brief_tokens + self._prefix_tokens:
            if prose:
                whole = "\n".join(part for part in (prose, earlier) if part)
                source = _Source(summarizer, whole, lines, given)
            brief, brief_tokens, _ = await self._extract(source, "", self._brief_tokens)
        groups = [entries]
        for one in priors:
            groups.extend([await self._read(key, part) for part in one.verbatim])
        if getattr(summarizer, "extracts", False):
            kept = await compute_apart(_find_kept, lines, groups[1:], text[len(prose) :])
        else:  # nobody knows what it keeps
            kept = [[False] * len(group) for group in groups]
        verbatim: list[MessageRange] = []
        for group, whole_ones in zip(groups, kept, strict=True):
            verbatim.extend(_runs(group, whole_ones, covered=True))
            lost.extend(_runs(group, whole_ones, covered=False))
        if lost:
            probe("messages_lost")
        covered = merge_ranges(verbatim)
        if not covered:  # tells it from a fallback that does not say what it covers
            first, last = _bounds(priors, entries)
            covered = (MessageRange(first, last, 0),)
        return Fallback(
            text,
            tokens,
            brief,
            brief_tokens if brief else 0,
            len(prose),
            merge_ranges(lost),
            covered,
            failed,
        )

    async def _extract(self, source: _Source, prose: str, max_tokens: int) -> tuple[str, int, bool]:
        """The prose and the lines, within `max_tokens`; their size; whether that failed."""
        above = await self.count(prose + "\n") if prose else 0
        most, room = max_tokens + self._prefix_tokens, max_tokens - above
        text, tokens, failed = source.earlier, 0, False
        for _ in range(_TRIES):
            try:
                text = await call_guarded(source.summarize, max(room, 1))
            except Exception:
                probe("extract_failed")
                _logger.exception("fallback_summary_failed")
                text, failed = source.earlier, True
            text = without_surrogates("\n".join(part for part in (prose, text.strip()) if part))
            tokens = await self.size(text)
            if not failed:
                made = tokens - above - self._prefix_tokens
                add_tokens(source.summarizer, source.tokens, max(made, 0))
            if failed or tokens <= most:
                break
            room -= max(room // 10, 1)
        if tokens > most:
            text = await run_in_thread_if(
                len(text) > _INLINE, shorten, text, max_tokens, self._counter
            )
            tokens = await self.size(text)
        return text, tokens, failed

    async def size(self, text: str) -> int:
        """Tokens of a text behind the first words of a summary: as it is stored."""
        return await self.count(self._prefix + text)

    async def count(self, text: str) -> int:
        """Tokens of a text; a long one is counted in a thread."""
        return await run_in_thread_if(len(text) > _INLINE, self._counter.count, text)

    async def _read(self, key: SessionKey, part: MessageRange) -> Sequence[Entry]:
        return await self._journal.read(key, part.first, part.last) if part.count else ()

    async def _prose_ranges(self, key: SessionKey, one: Summary) -> list[MessageRange]:
        """The messages that only what a model wrote covers."""
        if not _prose(one):
            return []
        others = [part for part in (*find_lost(one), *one.verbatim) if part.count]
        found: list[MessageRange] = []
        for first in range(one.first, one.through + 1, _SLICE):
            last = min(first + _SLICE - 1, one.through)
            entries = await self._journal.read(key, first, last)
            flags = [any(part.first <= e.seq <= part.last for part in others) for e in entries]
            found.extend(_runs(entries, flags, covered=False))
        return found


async def lines_of(entries: Sequence[Entry]) -> list[Line]:
    """Messages as a summarizer gets them."""
    size = sum(len(entry.chat) for entry in entries)
    return await run_in_thread_if(
        size > _LINES_INLINE, lambda: [_line_of(entry) for entry in entries]
    )


def _line_of(entry: Entry) -> Line:
    chat = decode_chat(entry.chat)
    text = plain_text(chat)
    if entry.role != "tool":  # of a pasted file of megabytes a summary has no room for a hundredth
        text = clip(text, _MESSAGE_CHARACTERS)
    text = replace_data(remove_hidden(text))
    if entry.role == "tool":
        text = clip(text, _RESULT_CHARACTERS)
    calls = tuple([(one.name, one.arguments) for one in tool_calls(chat)]) if entry.calls else ()
    return Line(entry.role, speaker_of(chat), text, entry.at_us, calls)


def _prose(one: Summary) -> str:
    """Return what a model wrote of a summary."""
    return one.text[: one.prose].strip() if one.extracted else one.text


def _extracted(one: Summary) -> str:
    """The lines of a summary."""
    return one.text[one.prose :].strip() if one.extracted else ""


def _find_kept(
    lines: Sequence[Line], earlier: Sequence[Sequence[Entry]], text: str
) -> list[list[bool]]:
    """For each message, the new ones first, whether all its text is in the lines of `text`."""
    whole = extracted_lines(text)
    groups = [lines, *([_line_of(entry) for entry in group] for group in earlier)]
    return [[whole(line) for line in group] for group in groups]


def _runs(
    entries: Sequence[Entry], flags: Sequence[bool], *, covered: bool
) -> Iterable[MessageRange]:
    """The runs of neighbours with this flag."""
    first = count = 0
    for place, (entry, flag) in enumerate(zip(entries, flags, strict=True)):
        if flag is covered:
            first = first if count else entry.seq
            count += 1
        if count and (flag is not covered or place + 1 == len(entries)):
            last = entry.seq if flag is covered else entries[place - 1].seq
            yield MessageRange(first, last, count)
            count = 0


def _bounds(priors: Sequence[Summary], entries: Sequence[Entry]) -> tuple[int, int]:
    seqs = [*(one.first for one in priors), *(entry.seq for entry in entries)]
    lasts = [*(one.through for one in priors), *(entry.seq for entry in entries)]
    return min(seqs, default=1), max(lasts, default=0)


# -- lost messages are summarized again when the model is back -------------------------------------

_LOST_AT_ONCE = 64  # messages read at once
_AT_START = 1_000  # sessions that are asked after a start
_PER_RUN = 50  # sessions that are asked in one run
_MOST_PAUSE = 2_880  # runs between two repairs of a session: a day by default


async def read_lost(
    journal: Journal, key: SessionKey, lost: Sequence[MessageRange], max_tokens: int
) -> tuple[list[Entry], tuple[MessageRange, ...]]:
    """The first lost messages, of up to `max_tokens` or one message, and the ranges that are left.

    Messages that are gone from the journal are in neither: no summary can be made of them.
    """
    found: list[Entry] = []
    tokens = 0
    for place, one in enumerate(lost):
        taken = 0
        for first in range(one.first, one.last + 1, _LOST_AT_ONCE):
            for entry in await journal.read(key, first, min(first + _LOST_AT_ONCE - 1, one.last)):
                if found and tokens + entry.tokens > max_tokens:
                    span = one.last - entry.seq + 1  # some may have been deleted before
                    left = MessageRange(entry.seq, one.last, min(max(one.count - taken, 1), span))
                    return found, (left, *lost[place + 1 :])
                found.append(entry)
                tokens += entry.tokens
                taken += 1
    return found, ()


class Resummarizer:
    """Has sessions with lost messages summarize them, periodically.

    After a start it asks the sessions that had fallback summaries, then those that the summarize
    queue reports.

    Args:
        journal: knows which sessions had fallback summaries.
        tell: sends a message to a session.
        breaker: while it is open, nothing is tried.
    """

    def __init__(
        self,
        journal: Journal,
        tell: Callable[[SessionKey, Resummarize], Awaitable[bool]],
        breaker: CircuitBreaker,
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._breaker = breaker
        self._run = 0
        self._waiting: dict[SessionKey, int] | None = None  # the run that asks it
        self._reported: dict[SessionKey, None] = {}
        self._pauses: dict[SessionKey, int] = {}  # runs before it is asked again

    def report(self, key: SessionKey) -> None:
        """A session has lost messages."""
        self._reported[key] = None

    def postpone(self, key: SessionKey) -> None:
        """A model answered, and not with a summary: to ask it each time would only cost money."""
        probe("repair_postponed")
        pause = self._pauses[key] = min(self._pauses.get(key, 1) * 2, _MOST_PAUSE)
        if self._waiting is not None:
            self._waiting[key] = self._run + pause

    async def __call__(self) -> None:
        """Ask the sessions that wait longest."""
        if self._breaker.open:
            return
        self._run += 1
        if self._waiting is None:
            found = await self._journal.sessions_with_fallbacks(_AT_START)
            self._waiting = dict.fromkeys(found, 0)
        waiting = self._waiting
        for key in self._reported:
            waiting.setdefault(key, self._run + self._pauses.get(key, 0))
        self._reported.clear()
        for key in _take_turns([key for key, run in waiting.items() if run <= self._run])[
            :_PER_RUN
        ]:
            del waiting[key]
            try:
                if await self._tell(key, Resummarize()):
                    probe("session_resummarized")
                    waiting.setdefault(key, self._run + self._pauses.get(key, 1))  # at the end
                else:
                    self._pauses.pop(key, None)
            except RemoraError as e:  # being forgotten, damaged, or resting
                self._pauses.pop(key, None)
                _logger.info("session_not_resummarized", session=key, error=type(e).__name__)


def _take_turns(keys: Sequence[SessionKey]) -> list[SessionKey]:
    """The first session of each user, then the second ones, and so on: none holds up the others."""
    ranks: Counter[str] = Counter()
    places: list[tuple[int, int, SessionKey]] = []
    for key in keys:
        places.append((ranks[key.user], len(places), key))
        ranks[key.user] += 1
    return [key for _, _, key in sorted(places)]


_SESSIONS = 4_096
_EACH = 20


class CompactionDurations:
    """The newest of the sessions that were compacted last, for tools."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[tuple[int, int, float], ...]] = {}
        """By a digest of the session: an erased id is not kept."""

    def add(self, session: SessionKey, through: int, tokens: int, seconds: float) -> None:
        """Note a compaction.

        Args:
            session: that was compacted.
            through: the last message that the summary covers.
            tokens: of the summary.
            seconds: from when the job began.
        """
        known = self._newest.pop(hash(session), ())
        self._newest[hash(session)] = (*known, (through, tokens, seconds))[-_EACH:]
        if len(self._newest) > _SESSIONS:
            del self._newest[next(iter(self._newest))]

    def of(self, session: SessionKey) -> tuple[tuple[int, int, float], ...]:
        """Return those of a session, oldest first: `through`, `tokens`, `seconds`.

        Any thread may ask.
        """
        return self._newest.get(hash(session), ())
