"""Fallback summaries: lines extracted from messages, and which messages they cover.

A fallback keeps what a model wrote before it, as long as that takes up to half of its size, and
fills the rest with lines. Lines of earlier fallbacks compete with new ones. A message is covered
if all its text is in the lines; every other message that no model summarized is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from remora.actors.policies.summary import shorten
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import (
    Entry,
    decode_chat,
    plain_text,
    remove_hidden,
    speaker_of,
    tool_calls,
    without_surrogates,
)
from remora.models.clipping import clip, replace_data
from remora.models.compression import add_tokens, prepare
from remora.models.extractive import extracted_lines
from remora.models.ports import Line, Summarizer
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.guard import call_guarded
from remora.runtime.probes import probe
from remora.runtime.threads import compute_apart
from remora.storage.ports import Journal
from remora.storage.records import MessageRange, Summary, find_lost, merge_ranges
from remora.tokens import TokenCounter

_logger = get_logger(__name__)
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
