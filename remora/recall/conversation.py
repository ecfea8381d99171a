"""The conversation's part of a context: its summaries and messages, and what their sources say."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remora.actors.blocks.source import Source
from remora.actors.policies.summary import shorten
from remora.actors.session.messages import Snapshot
from remora.actors.session.window import Window
from remora.messages import Entry
from remora.storage.records import MessageRange, Summary
from remora.tokens import TokenCounter, count_message

__all__ = ["Conversation", "list_summaries", "show_conversation", "sum_tokens"]

_TRIES = 3  # a counter may find a text longer than the sum of its parts


class Conversation(msgspec.Struct, frozen=True):
    """What a context shows of a conversation.

    Attributes:
        summaries: the running summary and summary entries, oldest first.
        entries: messages, oldest first.
        tokens: of all that.
        summary_source: what became of the summaries.
        recent_source: what became of the messages.
        narrowed: it is less than the session showed.
    """

    summaries: Sequence[Summary]
    entries: Sequence[Entry]
    tokens: int
    summary_source: Source
    recent_source: Source
    narrowed: bool = False


def show_conversation(
    snapshot: Snapshot, window: Snapshot | Window, entries: Sequence[Entry], counter: TokenCounter
) -> Conversation:
    """Show a part of a conversation.

    Args:
        snapshot: what the session showed.
        window: that, or what fits into less room.
        entries: the newest messages of the window, or all of them.
        counter: for a summary that is cut.
    """
    narrowed = len(entries) < len(snapshot.entries) or window is not snapshot
    tokens = window.tokens
    if len(entries) < len(window.entries):
        tokens += sum_tokens(entries) - sum_tokens(window.entries)
    omitted_tokens = snapshot.omitted_tokens
    if narrowed:
        omitted_tokens += sum_tokens(snapshot.entries) - sum_tokens(entries)
    left_out = [*snapshot.left_out, *(window.left_out if window is not snapshot else ())]
    running, room = window.summary, 0
    if running is not None and window.cut_summary:
        room = running.tokens
        running = _cut(running, counter)
        tokens += (running.tokens if running is not None else 0) - room
        if running is None and window.summary is not None:
            full = msgspec.structs.replace(window.summary, tokens=window.shortened_from)
            left_out.append(full)
    return Conversation(
        summaries=(*((running,) if running is not None else ()), *window.summaries),
        entries=entries,
        tokens=tokens,
        summary_source=_summary_source(
            running,
            len(window.summaries),
            left_out,
            max(snapshot.shortened_from, window.shortened_from),
            snapshot.degraded,
        ),
        recent_source=_recent_source(
            len(entries),
            snapshot.omitted + len(snapshot.entries) - len(entries),
            omitted_tokens,
        ),
        narrowed=narrowed,
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
    running: Summary | None,
    listed: int,
    left_out: Sequence[Summary],
    shortened_from: int,
    degraded: MessageRange | None,
) -> Source:
    count = listed + (running is not None)
    notes: list[str] = []
    lost_tokens = sum(one.tokens for one in left_out)
    messages = sum(max(one.through - one.first + 1, 0) for one in left_out)
    if left_out:
        notes.append(f"summaries of {messages} messages do not fit: they have {lost_tokens} tokens")
    cut = running is not None and shortened_from > running.tokens
    if running is not None and cut:
        notes.append(
            f"the summary does not fit: shortened from {shortened_from} to {running.tokens} tokens"
        )
        lost_tokens += shortened_from - running.tokens
    if degraded is not None:
        notes.append(
            f"{degraded.count} of the messages {degraded.first} to {degraded.last} are in no "
            "summary; history() has them"
        )
    if not notes:
        return Source("ok", count) if count else Source("off")
    return Source(
        "omitted" if left_out else "degraded",
        count,
        "; ".join(notes),
        degraded,
        omitted=messages,
        omitted_tokens=lost_tokens,
    )


def _recent_source(count: int, omitted: int, omitted_tokens: int) -> Source:
    if not omitted:
        return Source("ok", count)
    detail = f"{omitted} older messages with {omitted_tokens} tokens are left out to fit the budget"
    return Source("omitted", count, detail, omitted=omitted, omitted_tokens=omitted_tokens)


def list_summaries(window: Snapshot | Window) -> Sequence[Summary]:
    """The running summary and the summary entries, oldest first."""
    if window.summary is None:
        return window.summaries
    return (window.summary, *window.summaries)


def sum_tokens(entries: Sequence[Entry]) -> int:
    """Tokens of messages."""
    return sum([entry.tokens for entry in entries])  # a generator takes twice as long
