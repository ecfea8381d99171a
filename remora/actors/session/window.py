"""Which part of a conversation fits into a budget: one rule, for the session and for the planner.

* Where everything fits, everything is shown.
* Otherwise the summaries get what the messages leave, and at least half of the budget: the running
  summary first, then the newest summary entries up to the first that does not fit. A running
  summary that does not fit is replaced by its brief form, if it is a fallback that has one;
  otherwise it is shortened to half of the budget.
* The messages get the rest, the newest first, in whole units (G8).
* Where messages before the shown ones are left out, the shown ones begin with a user's message, as
  many chat APIs require, if one of them is.

A session applies the rule to its buffer and the budget of a load. Where memory blocks and the
synopsis take some of the budget, the planner applies it again, to what the session showed and what
is left. The result is what the session would show in the smaller budget, with one exception: where
a summary goes, messages that had made room for it do not come back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from remora.actors.policies.units import presentable_units, user_start
from remora.messages import Entry
from remora.storage.records import Summary

__all__ = ["Window", "fit_buffer", "running_sums"]

_LEAST_SUMMARY_TOKENS = 32
"""What a summary is not shortened below: a few words of it would say nothing."""


class Window(msgspec.Struct, frozen=True, gc=False):
    """See `remora.actors.session.messages.Snapshot`."""

    summary: Summary | None
    summaries: tuple[Summary, ...]
    entries: tuple[Entry, ...]
    tokens: int
    omitted: int
    awaiting: tuple[str, ...]
    orphans: int
    omitted_tokens: int = 0
    left_out: tuple[Summary, ...] = ()
    shortened_from: int = 0
    cut_summary: bool = False


class _Messages(msgspec.Struct, frozen=True, gc=False):
    shown: tuple[Entry, ...]
    tokens: int
    omitted: int
    omitted_tokens: int
    awaiting: tuple[str, ...] = ()
    orphans: int = 0


class _Summaries(msgspec.Struct, frozen=True, gc=False):
    running: Summary | None
    entries: tuple[Summary, ...]
    tokens: int
    left_out: tuple[Summary, ...]
    shortened_from: int
    cut: bool


def fit_buffer(
    entries: Sequence[Entry],
    whole_tokens: int,
    summary: Summary | None,
    summaries: Sequence[Summary],
    budget: int,
    *,
    tools: bool,
    cut: bool = False,
    sums: Sequence[int] | None = None,
) -> Window:
    """Choose what fits into `budget` tokens.

    Args:
        entries: the buffer.
        whole_tokens: their sum.
        summary: the running summary.
        summaries: summary entries that it does not cover, oldest first.
        budget: in tokens; a negative one counts as 0.
        tools: whether `entries` hold tool calls or results.
        cut: whether messages before `entries` left the buffer.
        sums: see `running_sums`, where they are known.
    """
    budget = max(budget, 0)
    half = budget // 2
    told = _fit_summaries(summary, summaries, budget - min(whole_tokens, half), half)
    left = budget - told.tokens
    # a summary stands for the messages before, so nothing need be left out for the beginning
    cut = cut and told.running is None and not told.entries
    if tools:
        said = _fit_units(entries, left, cut=cut)
    else:
        said = _fit_messages(entries, whole_tokens, left, cut=cut, sums=sums)
    return Window(
        told.running,
        told.entries,
        said.shown,
        said.tokens + told.tokens,
        said.omitted,
        said.awaiting,
        said.orphans,
        said.omitted_tokens,
        told.left_out,
        told.shortened_from,
        told.cut,
    )


def _fit_summaries(
    running: Summary | None, listed: Sequence[Summary], room: int, half: int
) -> _Summaries:
    if running is None and not listed:
        return _NO_SUMMARIES
    left_out: list[Summary] = []
    spent = shortened_from = 0
    cut = False
    shown: Summary | None = None
    if running is not None:
        shown = _shorten(running, room)
        if shown is None and half >= _LEAST_SUMMARY_TOKENS:
            # to half, and not to the room, which changes with every message
            cut, shown = True, msgspec.structs.replace(running, tokens=half, brief="")
        if shown is None:
            left_out.append(running)
        else:
            spent = shown.tokens
            shortened_from = running.tokens if spent < running.tokens else 0
    chosen: list[Summary] = []
    for whole in reversed(listed):
        one = _shorten(whole, room - spent)
        if one is None:
            break
        spent += one.tokens
        chosen.append(one)
    left_out.extend(listed[: len(listed) - len(chosen)])
    return _Summaries(shown, tuple(chosen[::-1]), spent, tuple(left_out), shortened_from, cut)


_NO_SUMMARIES = _Summaries(None, (), 0, (), 0, cut=False)


def _shorten(summary: Summary, room: int) -> Summary | None:
    """The summary, or its brief form, or None, as `room` allows."""
    if summary.tokens <= room:
        return summary
    if not summary.brief or summary.brief_tokens > room:
        return None
    return msgspec.structs.replace(
        summary, text=summary.brief, tokens=summary.brief_tokens, prose=0, brief="", brief_tokens=0
    )


def running_sums(entries: Sequence[Entry]) -> list[int]:
    """Tokens before the first message, and up to each."""
    return list(accumulate([entry.tokens for entry in entries], initial=0))


def _fit_messages(
    entries: Sequence[Entry],
    whole_tokens: int,
    room: int,
    *,
    cut: bool,
    sums: Sequence[int] | None,
) -> _Messages:
    """The newest messages that fit. Each stands alone, and none is read for its tokens."""
    if whole_tokens <= room:
        used, first = whole_tokens, 0
    else:
        sums = sums or running_sums(entries)
        first = bisect_left(sums, sums[-1] - room)
        used = sums[-1] - sums[first]
    if first or cut:
        start = user_start(entries, first)
        used -= sum(entry.tokens for entry in entries[first:start])
        first = start
    return _Messages(tuple(entries[first:]), used, first, whole_tokens - used)


def _fit_units(entries: Sequence[Entry], room: int, *, cut: bool) -> _Messages:
    """The newest whole units that fit, and what is left out and why."""
    units, awaiting, orphans = presentable_units(entries)
    used, first = 0, len(units)
    while first and used + (more := sum(entry.tokens for entry in units[first - 1])) <= room:
        first -= 1
        used += more
    gone = [entry for unit in units[:first] for entry in unit]
    shown = [entry for unit in units[first:] for entry in unit]
    if first or cut:
        start = user_start(shown, 0)
        gone.extend(shown[:start])
        used -= sum(entry.tokens for entry in shown[:start])
        shown = shown[start:]
    omitted_tokens = sum(entry.tokens for entry in gone)
    return _Messages(tuple(shown), used, len(gone), omitted_tokens, tuple(awaiting), orphans)
