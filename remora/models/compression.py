"""Two more summarizers that need no model, and a meter for any summarizer.

============  ===================================================  =================================
summarizer    keeps                                                choose it when
============  ===================================================  =================================
`extractive`  sentences with facts (`remora.models.extractive`)    it is the default
`lead`        the first sentence of each message                   the course of a conversation
                                                                   matters
`tail`        the end, word for word                               only the newest messages matter;
                                                                   cheapest of all
a chat model  what it selects (`remora.actors.policies.summary`)   quality is worth a call
============  ===================================================  =================================

Both summarizers of this module continue the previous summary: all of it while there is room;
otherwise its newest lines, in a third of the budget or in what the new lines leave, whichever is
more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from remora.errors import ModelAnswerInvalid
from remora.models.clipping import cut_sentences
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import Line, Summarizer, check_answer_length
from remora.runtime.threads import compute_in_thread

_MAX_SENTENCE_CHARS = 600  # for text without sentence ends (logs, JSON)


class LeadSummarizer:
    """Implements `remora.models.ports.Summarizer`: the first sentence of each message.

    Args:
        count: tokens in a text.
    """

    name = "lead"
    extracts = True

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        """The previous summary, then lines "- 8 May 2023, Caroline: …".

        Over `max_tokens` the oldest lines go.
        """
        return await compute_in_thread(self._summarize, previous, lines, max_tokens)

    def _summarize(self, previous: str | None, lines: Sequence[Line], max_tokens: int) -> str:
        leads = []
        for line in lines:
            text = line.text.strip()[: 2 * _MAX_SENTENCE_CHARS]
            sentence = next(cut_sentences(text, "en"), "")
            if len(sentence) > _MAX_SENTENCE_CHARS:
                sentence = sentence[: _MAX_SENTENCE_CHARS - 1] + "…"
            if sentence:
                at = datetime.fromtimestamp(line.at_us / 1_000_000, UTC)
                leads.append(f"- {at.day} {at:%b %Y}, {line.speaker}: {sentence}")
        return _fit(previous, leads, max_tokens, self._count, _keep_start)


class TailSummarizer:
    """Implements `remora.models.ports.Summarizer`: the end of the conversation, verbatim.

    Args:
        count: tokens in a text.
    """

    name = "tail"
    extracts = True

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        """The previous summary, then lines "Caroline: …".

        Over `max_tokens` the oldest messages go.
        """
        return await compute_in_thread(self._summarize, previous, lines, max_tokens)

    def _summarize(self, previous: str | None, lines: Sequence[Line], max_tokens: int) -> str:
        said = [line.spoken for line in lines if line.text.strip()]
        return _fit(previous, said, max_tokens, self._count, _keep_end)


class CompressionStatistics(msgspec.Struct, frozen=True):
    """Counts of a summarizer's input and output.

    Attributes:
        calls: how often it was called.
        failures: how often it failed; failed calls are not counted below.
        tokens_in: tokens of the previous summaries and of the messages.
        tokens_out: tokens of the summaries.
    """

    calls: int
    failures: int
    tokens_in: int
    tokens_out: int

    @property
    def ratio(self) -> float:
        """Tokens out for each token in; 1.0 before there were any."""
        return self.tokens_out / self.tokens_in if self.tokens_in else 1.0


class CompressionMeter:
    """Implements `remora.models.ports.Summarizer` by another, under its name, and measures it.

    Args:
        summarizer: writes the summaries.
        count: tokens in a text; called in a worker thread.
    """

    def __init__(self, summarizer: Summarizer, count: Callable[[str], int]) -> None:
        self.name = summarizer.name
        self.extracts: bool = getattr(summarizer, "extracts", False)
        """Whether it writes lines extracted from messages, as the embedded summarizers do."""
        self._summarizer = summarizer
        self._count = count
        self._calls = self._failures = self._tokens_in = self._tokens_out = 0

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        """The other summarizer's result; its exceptions are counted as failures.

        Raises:
            ModelAnswerInvalid: it returned no text, or one that is too long.
        """
        text = await self.prepare(previous, lines)(max_tokens)
        given = [previous] if previous else []
        given += [f"{line.speaker}: {line.text}" for line in lines]
        tokens_in = await compute_in_thread(self._count, "\n".join(given))
        self.add(tokens_in, await compute_in_thread(self._count, text))
        return text

    def prepare(
        self, previous: str | None, lines: Sequence[Line], sizes: Sequence[int] = ()
    ) -> Callable[[int], Awaitable[str]]:
        """See `prepare` of this module. Who calls the function counts the tokens, for `add`."""
        ask = prepare(self._summarizer, previous, lines, sizes)

        async def summarize(max_tokens: int) -> str:
            self._calls += 1
            try:
                text: object = check_answer_length(await ask(max_tokens))
                if not isinstance(text, str):
                    raise ModelAnswerInvalid(f"{self.name} returned no text")
            except Exception:
                self._failures += 1
                raise
            return text

        return summarize

    def add(self, tokens_in: int, tokens_out: int) -> None:
        """Add the tokens of one answer: of what it was made of, and its own."""
        self._tokens_in += tokens_in
        self._tokens_out += tokens_out

    def statistics(self) -> CompressionStatistics:
        """The counts so far."""
        return CompressionStatistics(self._calls, self._failures, self._tokens_in, self._tokens_out)


def prepare(
    summarizer: Summarizer,
    previous: str | None,
    lines: Sequence[Line],
    sizes: Sequence[int] = (),
) -> Callable[[int], Awaitable[str]]:
    """`summarize` for several sizes of one summary; the embedded summarizer reads the lines once.

    Args:
        summarizer: writes the summaries.
        previous: the summary before, if any.
        lines: what is new.
        sizes: most tokens of each summary that may be asked for.

    Returns:
        A function that takes the most tokens.
    """
    if isinstance(summarizer, CompressionMeter | ExtractiveSummarizer):
        return summarizer.prepare(previous, lines, sizes)

    async def summarize(max_tokens: int) -> str:
        return await summarizer.summarize(previous, [*lines], max_tokens=max_tokens)

    return summarize


def add_tokens(summarizer: Summarizer, tokens_in: int, tokens_out: int) -> None:
    """Tell a meter the tokens of what a prepared summarizer was given, and of its answer."""
    if isinstance(summarizer, CompressionMeter):
        summarizer.add(tokens_in, tokens_out)


def _fit(
    previous: str | None,
    lines: Sequence[str],
    max_tokens: int,
    count: Callable[[str], int],
    cut: Callable[[str, int], str],
) -> str:
    """The previous summary and the lines, without the oldest ones if they do not fit.

    `cut` shortens a single line that does not fit.
    """
    earlier = [line for line in (previous or "").splitlines() if line.strip()]
    whole = "\n".join([*earlier, *lines])
    if count(whole) <= max_tokens:
        return whole
    left = max_tokens - count("\n".join(["", *lines])) if lines else max_tokens
    carried = _fit_newest("", earlier, max(max_tokens // 3, left), count, _keep_start)
    return _fit_newest(carried, lines, max_tokens, count, cut)


def _fit_newest(
    head: str,
    lines: Sequence[str],
    max_tokens: int,
    count: Callable[[str], int],
    cut: Callable[[str, int], str],
) -> str:
    """`head`, and as many lines, from the last one back, as fit.

    If none fits, as much of the last line as fits.
    """

    def join_with_head(tail: Sequence[str]) -> str:
        return "\n".join([*([head] if head else []), *tail])

    if number := _largest(len(lines), lambda n: count(join_with_head(lines[-n:])) <= max_tokens):
        return join_with_head(lines[-number:])
    if lines and (
        length := _largest(
            len(lines[-1]), lambda n: count(join_with_head([cut(lines[-1], n)])) <= max_tokens
        )
    ):
        return join_with_head([cut(lines[-1], length)])
    return head


def _largest(top: int, fits: Callable[[int], bool]) -> int:
    """The greatest number up to `top` that fits, if all smaller ones do; 0 if none was found.

    The search gallops from below, so that it tries nothing much larger than what fits.
    """
    low, step = 0, 1
    while low + step <= top and fits(low + step):
        low, step = low + step, step * 2
    high = min(low + step - 1, top)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _keep_start(line: str, length: int) -> str:
    """The first `length` characters, to the end of a word if there is one."""
    cut = line.rfind(" ", 0, length)
    return line[: cut if cut > length // 2 else length].rstrip() + " …"


def _keep_end(line: str, length: int) -> str:
    """The speaker, and the last `length` characters, from the beginning of a word if possible."""
    speaker, _, text = line.partition(": ")
    start = max(len(text) - length, 0)
    space = text.find(" ", start, start + length // 2)
    return f"{speaker}: … {text[space + 1 if space >= 0 else start :].lstrip()}"
