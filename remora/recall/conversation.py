"""The conversation's part of a context: its summaries and messages, and what their sources say."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remora.actors.blocks.source import Source
from remora.actors.policies.summary import shorten
from remora.actors.session.messages import Snapshot
from remora.messages import Entry
from remora.messages.text import counted
from remora.storage.records import MessageRange, Summary
from remora.tokens import TokenCounter, count_message

_TRIES = 3  # a counter may find a text longer than the sum of its parts


class Conversation(msgspec.Struct, frozen=True):
    """The part of a conversation that a context shows.

    Attributes:
        summaries: the running summary and summary entries, oldest first.
        entries: messages, oldest first.
        tokens: of all that.
        summary_source: what became of the summaries.
        recent_source: what became of the messages.
    """

    summaries: Sequence[Summary]
    entries: Sequence[Entry]
    tokens: int
    summary_source: Source
    recent_source: Source


def show_conversation(snapshot: Snapshot, counter: TokenCounter) -> Conversation:
    """Show what a session showed, its messages shortened already (`shorten_messages`).

    Args:
        snapshot: what the session showed.
        counter: for a summary that is cut.
    """
    tokens = snapshot.tokens
    left_out = list(snapshot.left_out)
    running = snapshot.summary
    if running is not None and snapshot.cut_summary:
        cut = _cut(running, counter)
        tokens += (cut.tokens if cut is not None else 0) - running.tokens
        if cut is None:
            left_out.append(msgspec.structs.replace(running, tokens=snapshot.shortened_from))
        running = cut
    shown = (*((running,) if running is not None else ()), *snapshot.summaries)
    shorter = running is not None and snapshot.shortened_from > running.tokens
    cut_from = snapshot.shortened_from if shorter else 0
    return Conversation(
        summaries=shown,
        entries=snapshot.entries,
        tokens=tokens,
        summary_source=_summary_source(shown, cut_from, left_out, snapshot.degraded),
        recent_source=_recent_source(snapshot),
    )


def _cut(summary: Summary, counter: TokenCounter) -> Summary | None:
    """The summary, its text cut so that its message has at most its `tokens`; None if none fits."""
    most = summary.tokens
    room = most - counter.message_overhead - counter.count(summary.prefix)
    for _ in range(_TRIES):
        if room < 1:
            break
        text = shorten(summary.text, room, counter)
        message = {"role": "system", "content": summary.prefix + text}
        tokens = count_message(counter, message)
        if tokens <= most:
            return msgspec.structs.replace(summary, text=text, tokens=tokens)
        room -= tokens - most
    return None


def _summary_source(
    shown: Sequence[Summary],
    cut_from: int,
    left_out: Sequence[Summary],
    degraded: MessageRange | None,
) -> Source:
    count = len(shown)
    covered = None
    if shown:
        first, last = shown[0].first, shown[-1].through
        covered = MessageRange(first, last, last - first + 1)
    notes: list[str] = []
    lost_tokens = sum(one.tokens for one in left_out)
    messages = sum(max(one.through - one.first + 1, 0) for one in left_out)
    if left_out:
        what = f"summaries of {counted(messages, 'message')}"
        notes.append(f"{what} do not fit: they have {counted(lost_tokens, 'token')}")
    if cut_from:
        tokens = shown[0].tokens
        cut = f"from {cut_from} to {counted(tokens, 'token')}"
        notes.append(f"the summary does not fit: it is shortened {cut}")
        lost_tokens += cut_from - tokens
    if degraded is not None:
        notes.append(
            f"of messages {degraded.first} to {degraded.last}, "
            f"{counted(degraded.count, 'is', 'are')} in no summary; history() has them"
        )
    if not notes:
        return Source("ok", count, messages=covered) if count else Source("off")
    return Source(
        "omitted" if left_out else "degraded",
        count,
        "; ".join(notes),
        degraded,
        omitted=messages,
        omitted_tokens=lost_tokens,
        messages=covered,
    )


def _recent_source(snapshot: Snapshot) -> Source:
    count = len(snapshot.entries) - snapshot.closed
    if not (snapshot.omitted or snapshot.shortened or snapshot.lightened):
        return Source("ok", count)
    notes = []
    if older := snapshot.omitted - snapshot.withheld:
        left_out = counted(older, "message is", "messages are")
        notes.append(f"{left_out} left out to fit the budget, and not summarized yet")
    if snapshot.withheld:
        waiting = counted(snapshot.withheld, "message waits", "messages wait")
        notes.append(f"{waiting} for the results of {counted(len(snapshot.awaiting), 'call')}")
    if snapshot.omitted:
        notes[-1] += f": {counted(snapshot.omitted_tokens, 'token')}"
    if snapshot.shortened:
        shortened = counted(snapshot.shortened, "message is", "messages are")
        notes.append(f"{shortened} shortened by {counted(snapshot.shortened_tokens, 'token')}")
    if snapshot.lightened:
        lightened = counted(snapshot.lightened, "message")
        notes.append(f"the attachments of {lightened} are only named")
    return Source(
        "omitted" if snapshot.omitted else "degraded",
        count,
        "; ".join(notes),
        omitted=snapshot.omitted,
        omitted_tokens=snapshot.omitted_tokens + snapshot.shortened_tokens,
        shortened=snapshot.shortened + snapshot.lightened,
        messages=snapshot.gap,
    )


def list_summaries(window: Snapshot) -> Sequence[Summary]:
    """The running summary and the summary entries, oldest first."""
    if window.summary is None:
        return window.summaries
    return (window.summary, *window.summaries)
