"""Which part of a conversation fits into a budget: one rule, for the session and for the planner.

* Where everything fits, everything is shown.
* Otherwise the summaries get what the messages leave, and at least half of the budget: the running
  summary first, if it fits, then the newest summary entries up to the first that does not fit. A
  fallback summary that does not fit is replaced by its brief form.
* The messages get the rest, the newest first, in whole units (G8).

A session applies the rule to its buffer and the budget of a load. Where memory blocks and the
synopsis take some of the budget, the planner applies it again, to what the session showed and what
is left. The result is what the session would show in the smaller budget, with one exception: where
a summary goes, messages that had made room for it do not come back.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remora.actors.policies.units import presentable_units
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
        summaries: summary entries that it does not cover, oldest first.
        budget: in tokens; a negative one counts as 0.
        tools: whether `entries` hold tool calls or results.
    """
    budget = max(budget, 0)
    room = budget - min(whole_tokens, budget // 2)
    spent = 0
    if summary is not None:
        summary = _shorten(summary, room)
        spent = summary.tokens if summary is not None else 0
    chosen: list[Summary] = []
    for whole in reversed(summaries):
        one = _shorten(whole, room - spent)
        if one is None:
            break
        spent += one.tokens
        chosen.append(one)
    newest_summaries = tuple(chosen[::-1])
    left = budget - spent
    if tools:
        shown, used, omitted, awaiting, orphans = _fit_units(entries, left)
        return Window(summary, newest_summaries, shown, used + spent, omitted, awaiting, orphans)
    if whole_tokens <= left:
        return Window(summary, newest_summaries, tuple(entries), whole_tokens + spent, 0, (), 0)
    # each message stands alone, so the ones that do not fit need no look
    used, first = 0, len(entries)
    while first and used + entries[first - 1].tokens <= left:
        first -= 1
        used += entries[first].tokens
    return Window(summary, newest_summaries, tuple(entries[first:]), used + spent, first, (), 0)


def _shorten(summary: Summary, room: int) -> Summary | None:
    """The summary, or its brief form, or None, as `room` allows."""
    if summary.tokens <= room:
        return summary
    if not summary.brief or summary.brief_tokens > room:
        return None
    return msgspec.structs.replace(
        summary, text=summary.brief, tokens=summary.brief_tokens, prose=0, brief="", brief_tokens=0
    )


def _fit_units(
    entries: Sequence[Entry], room: int
) -> tuple[tuple[Entry, ...], int, int, tuple[str, ...], int]:
    """The newest whole units that fit: their entries and tokens, and what is left out and why."""
    units, awaiting, orphans = presentable_units(entries)
    used, first = 0, len(units)
    while first and used + (more := sum(entry.tokens for entry in units[first - 1])) <= room:
        first -= 1
        used += more
    shown = tuple(entry for unit in units[first:] for entry in unit)
    omitted = sum(len(unit) for unit in units[:first])
    return shown, used, omitted, tuple(awaiting), orphans
