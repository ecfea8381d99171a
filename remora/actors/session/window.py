"""What of a buffer is shown within a budget.

The newest whole turns, and the summaries of what went before.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remora.actors.policies.turns import presentable_units
from remora.messages import Entry
from remora.storage.records import Summary

__all__ = ["Window", "fit_buffer"]


class Window(msgspec.Struct, frozen=True, gc=False):
    """See `remora.actors.session.messages.Snapshot`."""

    summary: Summary | None
    summaries: tuple[Summary, ...]
    entries: tuple[Entry, ...]
    tokens: int
    omitted: int
    awaiting: tuple[str, ...]
    orphans: int


def fit_buffer(
    entries: Sequence[Entry],
    whole_tokens: int,
    summary: Summary | None,
    summaries: Sequence[Summary],
    budget: int,
    *,
    tools: bool,
) -> Window:
    """Choose what fits into `budget` tokens.

    Args:
        entries: the buffer.
        whole_tokens: their sum.
        summary: the running summary.
        summaries: entries that it does not cover, oldest first.
        budget: in tokens; a negative one counts as 0.
        tools: whether `entries` hold tool calls or results.
    """
    budget = max(budget, 0)
    # Summaries that would take more than half of a tight budget give way to the conversation
    # itself.
    room = budget - min(whole_tokens, budget // 2)
    spent = 0
    if summary is not None:
        if summary.tokens <= room:
            spent = summary.tokens
        else:
            summary = None
    chosen_summaries: list[Summary] = []
    for one in reversed(summaries):
        if spent + one.tokens > room:
            break
        spent += one.tokens
        chosen_summaries.append(one)
    left = budget - spent
    if not tools and whole_tokens <= left:
        return Window(
            summary, tuple(chosen_summaries[::-1]), tuple(entries), whole_tokens + spent, 0, (), 0
        )
    if not tools:  # each message stands alone: what does not fit needs no look at
        used, first = 0, len(entries)
        while first and used + entries[first - 1].tokens <= left:
            first -= 1
            used += entries[first].tokens
        return Window(
            summary,
            tuple(chosen_summaries[::-1]),
            tuple(entries[first:]),
            used + spent,
            first,
            (),
            0,
        )
    shown, awaiting, orphans = presentable_units(entries)
    used, kept = 0, len(shown)
    while kept and used + sum(entry.tokens for entry in shown[kept - 1]) <= left:
        kept -= 1
        used += sum(entry.tokens for entry in shown[kept])
    chosen = tuple(entry for unit in shown[kept:] for entry in unit)
    omitted = sum(len(unit) for unit in shown[:kept])
    return Window(
        summary,
        tuple(chosen_summaries[::-1]),
        chosen,
        used + spent,
        omitted,
        tuple(awaiting),
        orphans,
    )
