"""Which part of a conversation fits into a budget: one rule for every context.

* Where everything fits, everything is shown as it is.
* Otherwise the summaries get what the messages leave, and at least half of the budget: the running
  summary first, then the newest summary entries up to the first that does not fit. A running
  summary that does not fit is replaced by its brief form, if it is a fallback that has one;
  otherwise it is shortened to half of the budget.
* The messages get the rest, in whole units (G8). No message gets more than a quarter of the room,
  but the newest. Results of tools give way first: they are shown as stubs, but for the newest.
* If that does not suffice, the oldest units are left out. Both happens in steps, so that what was
  shown is shown again as it was, and the provider's prompt cache keeps it.
* System and developer messages at the beginning of the session are shown before all else, and
  whole, as far as they leave half of the budget.
* The newest message of the user is shown in any case. Of the newest unit each message gets its
  share, if not all of them fit.
* Where messages before the shown ones are left out, the shown ones begin with a user's message, as
  many chat APIs require, if one of them is.

A message that gets fewer tokens than it has is shortened where the context is built. Nothing here
depends on an earlier context: the same messages and budget give the same window.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from remora.actors.policies.units import (
    newest_units,
    presentable_units,
    user_start,
)
from remora.messages import Entry, decode_chat, has_media, leading_instructions, tool_calls
from remora.runtime.probes import probe
from remora.storage.records import MessageRange, Summary

LEAST_SHARE = 24
"""Tokens below which no message is shortened: a few words of it would say nothing."""

_LEAST_SUMMARY_TOKENS = 32
_STEPS = 4  # of the room, in which the first message moves


class WindowRules(msgspec.Struct, frozen=True):
    """The rules of every window of a runtime.

    Attributes:
        no_result: makes the entry that closes a call without a result, from the call's id.
        whole_results: how many results of tools are not shown as stubs, at least.
        stub_tokens: what a stub takes, at most.
        recent: the newest messages, for which room for recalled memories gives way.
        recall_room: tokens of a budget that are kept free for recalled memories.
        lighten: a message with words in place of its attachments.
        whole_attachments: how many of the newest messages with attachments have them, at least.
        kept_results: names of tools whose results never become stubs.
    """

    no_result: Callable[[str], Entry]
    whole_results: int
    stub_tokens: int
    recent: int
    recall_room: Callable[[int], int]
    lighten: Callable[[Entry], Entry] = lambda entry: entry
    whole_attachments: int = 8
    kept_results: frozenset[str] = frozenset()

    def lighten_old(
        self, entries: Sequence[Entry], known: dict[int, tuple[Entry, Entry]] | None = None
    ) -> tuple[Sequence[Entry], int]:
        """The messages, old ones without their attachments, and how many of them lack some.

        Which ones are old changes in steps, as the window does. From the newest message of the user
        on, none are. What was made before is in `known`, and what is made is put there.
        """
        asked = max((n for n, one in enumerate(entries) if one.role == "user"), default=0)
        places = [n for n, one in enumerate(entries) if has_media(one)]
        step = max(self.whole_attachments // 2, 1)
        count = max((len(places) - self.whole_attachments) // step * step, 0)
        old = {n for n in places[:count] if n < asked}
        if not old:
            return entries, 0
        known = {} if known is None else known
        shown = list(entries)
        for n in old:
            made = known.get(shown[n].seq)
            if made is None or made[0] is not shown[n]:
                made = known[shown[n].seq] = (shown[n], self.lighten(shown[n]))
            shown[n] = made[1]
        return shown, sum(a is not b for a, b in zip(shown, entries, strict=True))


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
    shares: tuple[int, ...] = ()
    withheld: int = 0
    least_tokens: int = 0
    pinned: int = 0
    gap: MessageRange | None = None
    filled: bool = False

    def shown(self) -> dict[str, Any]:
        """The fields that a snapshot has as well."""
        fields = msgspec.structs.asdict(self)
        del fields["filled"]
        return fields

    @property
    def complete(self) -> bool:
        """Return whether nothing is left out or cut for want of room."""
        whole = self.omitted == self.withheld and not self.left_out
        return whole and not self.shortened_from and not self.least_tokens


class _Messages(msgspec.Struct, frozen=True, gc=False):
    shown: Sequence[Entry]
    tokens: int
    omitted: int
    omitted_tokens: int
    shares: Sequence[int] = ()
    awaiting: tuple[str, ...] = ()
    orphans: int = 0
    withheld: int = 0
    least_tokens: int = 0
    filled: bool = False
    gap: MessageRange | None = None


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
    rules: WindowRules,
    *,
    tools: bool,
    recalls: bool = False,
    cut: bool = False,
    pinned: Sequence[Entry] = (),
    sums: Sequence[int] | None = None,
) -> Window:
    """Choose what fits into `budget` tokens.

    Args:
        entries: the buffer.
        whole_tokens: their sum.
        summary: the running summary.
        summaries: summary entries that it does not cover, oldest first.
        budget: in tokens; a negative one counts as 0.
        rules: of the runtime.
        tools: whether `entries` hold tool calls or results.
        recalls: whether a part of the budget is kept free for recalled memories.
        cut: whether messages before `entries` left the buffer.
        pinned: those of them that are shown in any case.
        sums: see `running_sums`, where they are known.
    """
    if not cut and (count := leading_instructions(entries)):
        pinned, entries = entries[:count], entries[count:]
        whole_tokens -= sum(entry.tokens for entry in pinned)
        sums = sums[count:] if sums is not None else None
    budget = max(budget, 0)
    before: Sequence[int] = ()
    first = 0
    if pinned:
        before = [entry.tokens for entry in pinned]
        every = sum(before) + whole_tokens + sum([one.tokens for one in summaries])
        if every + (summary.tokens if summary is not None else 0) > budget:
            before = _share_out(before, max(budget // 2, LEAST_SHARE * len(pinned)))
        first = sum(before)
    if first > budget:
        gone = (*pinned, *entries)
        needed = first + min(gone[-1].tokens, LEAST_SHARE)
        tokens = sum([entry.tokens for entry in gone])
        return Window(None, (), (), 0, len(gone), (), 0, tokens, least_tokens=needed)
    budget -= first
    room = budget - rules.recall_room(budget) if recalls else budget
    half = room // 2
    told = _fit_summaries(summary, summaries, room - min(whole_tokens, half), half)
    # a summary stands for the messages before, so nothing need be left out for the beginning
    cut = cut and told.running is None and not told.entries
    left, most = room - told.tokens, budget - told.tokens
    said = None
    if not tools:
        said = _fit_small(entries, whole_tokens, left, most, rules, cut=cut, sums=sums)
    if said is None:
        said = _fit_units(entries, left, most, rules, cut=cut)
    if said.least_tokens and told.tokens:  # the newest message comes before any summary
        told = _Summaries(None, (), 0, (*([summary] if summary else []), *summaries), 0, cut=False)
        said = _fit_units(entries, room, budget, rules, cut=cut)
    return Window(
        told.running,
        told.entries,
        (*pinned, *said.shown) if pinned else tuple(said.shown),
        said.tokens + told.tokens + first,
        said.omitted,
        said.awaiting,
        said.orphans,
        said.omitted_tokens,
        told.left_out,
        told.shortened_from,
        told.cut,
        _join_shares(pinned, before, said),
        said.withheld,
        said.least_tokens + told.tokens + first if said.least_tokens else 0,
        len(pinned),
        said.gap,
        said.filled or (not said.shares and 8 * said.tokens > 7 * left > 0),
    )


def _join_shares(
    pinned: Sequence[Entry], before: Sequence[int], said: _Messages
) -> tuple[int, ...]:
    if not said.shares and sum(before) == sum([entry.tokens for entry in pinned]):
        return ()
    return (*before, *(said.shares or [entry.tokens for entry in said.shown]))


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


def _step(sums: Sequence[int], room: int) -> int:
    """Where the window begins: what is cut off grows by quarters of the room.

    `sums` are `running_sums` of units. The newest one is never cut off.
    """
    excess = sums[-1] - sums[0] - room
    if excess <= 0:
        return 0
    step = max(room // _STEPS, 1)
    first = bisect_left(sums, sums[0] + -(-excess // step) * step)
    return min(first, len(sums) - 2)


def _fit_small(
    entries: Sequence[Entry],
    whole_tokens: int,
    room: int,
    most: int,
    rules: WindowRules,
    *,
    cut: bool,
    sums: Sequence[int] | None,
) -> _Messages | None:
    """The newest messages that fit; each stands alone. None if some of them are to be shortened."""
    first, used = 0, whole_tokens
    if whole_tokens > room:
        if max(entry.tokens for entry in entries) > room // 4:
            return None
        sums = sums or running_sums(entries)
        first = _step(sums, room)
        recent = len(entries) - rules.recent
        if first > recent and sums[-1] - sums[max(recent, 0)] <= most:
            first = max(recent, 0)
        used = sums[-1] - sums[first]
    if first or cut:
        start = user_start(entries, first)
        if first and entries[start].role != "user":
            return None
        used -= sum(entry.tokens for entry in entries[first:start])
        first = start
    gap = _range_of(entries[:first])
    return _Messages(entries[first:], used, first, whole_tokens - used, gap=gap)


def _fit_units(
    entries: Sequence[Entry], room: int, most: int, rules: WindowRules, *, cut: bool
) -> _Messages:
    """The newest whole units that fit, and what is left out and why."""
    found = presentable_units(entries, rules.no_result)
    units, orphans = found.units, found.orphans
    everything = [entry for unit in units for entry in unit]
    whole_tokens = sum([entry.tokens for entry in everything])
    if whole_tokens <= room:
        start = user_start(everything, 0) if cut else 0
        shown: Sequence[Entry] = everything[start:]
        shares: Sequence[int] = ()
        least, filled = 0, False
    else:
        squeeze = _Squeeze(units, room, most, rules, cut=cut)
        shown, shares, least = squeeze.fit()
        filled = squeeze.filled
    tokens = sum(shares) if shares else sum([entry.tokens for entry in shown])
    there = {entry.seq for entry in shown}
    # a result that stands for a missing one is no message of the buffer
    gone = [entry for entry in everything if entry.seq and entry.seq not in there]
    gone.extend(found.withheld)
    withheld = len(found.withheld)
    return _Messages(
        shown,
        tokens,
        len(gone),
        sum([entry.tokens for entry in gone]),
        shares,
        found.awaiting,
        orphans,
        withheld,
        least,
        filled,
        _range_of(gone),
    )


def _range_of(entries: Sequence[Entry]) -> MessageRange | None:
    if not entries:
        return None
    seqs = [entry.seq for entry in entries]
    return MessageRange(min(seqs), max(seqs), len(seqs))


class _Squeeze:
    """Units that do not fit as they are.

    The window is what a reader has who takes unit after unit: each as it comes, but no message more
    than a quarter of the room. Where the room is full, the results of tools before the newest
    become stubs; where that does not make a quarter of it free, the oldest units are left out, for
    half of the room.
    So a message that was shown is shown again as it was until the next such step.
    """

    def __init__(
        self,
        units: Sequence[Sequence[Entry]],
        room: int,
        most: int,
        rules: WindowRules,
        *,
        cut: bool,
    ) -> None:
        self._units = units
        self._room = room
        self._most = most
        self._rules = rules
        self._cut = cut
        stub, other = rules.stub_tokens, max(room // 4, LEAST_SHARE)
        self._full = [
            _share_out(
                [min(entry.tokens, other) for entry in unit],
                max(room // 2, LEAST_SHARE * len(unit)),
            )
            for unit in units
        ]
        """The tokens of each message where it comes."""
        kept = self._kept_results() if rules.kept_results else set()
        self._base = [
            [
                tokens if entry.answers is None or entry.seq in kept else min(tokens, stub)
                for entry, tokens in zip(unit, full, strict=True)
            ]
            for unit, full in zip(units, self._full, strict=True)
        ]
        """The same with results as stubs."""
        self._with_results = [
            place
            for place, unit in enumerate(units)
            if any(entry.answers is not None for entry in unit)
        ]

    def _kept_results(self) -> set[int]:
        """The newest results of tools whose results are kept, for half of the room."""
        calls = _calls_of(self._units, self._rules.kept_results)
        left = self._room // 2
        kept: set[int] = set()
        for unit, full in zip(reversed(self._units), reversed(self._full), strict=True):
            for entry, tokens in zip(reversed(unit), reversed(full), strict=True):
                if entry.answers in calls:
                    left -= tokens
                    if left < 0:
                        return kept
                    kept.add(entry.seq)
        return kept

    @property
    def filled(self) -> bool:
        """Return whether units are left out at the next step, or soon."""
        whole = self._newest_results(len(self._units))
        left = sum(map(sum, self._base[:whole])) + sum(map(sum, self._full[whole:]))
        return 8 * left > 5 * self._room

    def fit(self) -> tuple[Sequence[Entry], Sequence[int], int]:
        """Return what is shown, the tokens of each, and what is needed if nothing fits."""
        units = self._units
        question = next(
            (n for n in range(len(units) - 1, -1, -1) if any(e.role == "user" for e in units[n])),
            None,
        )
        start, whole = self._walk(self._room)
        chosen = list(range(start, len(units)))
        asked = question is not None and question < start
        if question is not None and asked:
            probe("question_kept")
            start, whole = self._walk(max(self._room - sum(self._full[question]), 0))
            start = max(start, question + 1)
            chosen = [question, *range(start, len(units))]
        shown = [entry for n in chosen for entry in units[n]]
        shares = [
            tokens for n in chosen for tokens in (self._full[n] if n >= whole else self._base[n])
        ]
        if not asked:
            first = user_start(shown, 0) if start or self._cut else 0
            shown, shares = shown[first:], shares[first:]
        if sum(shares) > self._room:
            return self._fit_newest(units[-1], units[question] if question is not None else [])
        self._hand_out(shown, shares, len(units[-1]))
        return shown, shares, 0

    def _walk(self, room: int) -> tuple[int, int]:
        """The first unit that is shown, and the first one whose results are no stubs."""
        full = [sum(one) for one in self._full]
        base = [sum(one) for one in self._base]
        start = whole = used = 0
        for place, tokens in enumerate(full):
            used += tokens
            if used <= room:
                continue
            before, whole = whole, max(self._newest_results(place), start)
            used -= sum(full[before:whole]) - sum(base[before:whole])
            if 4 * used > 3 * room:
                while used > room // 2 and start < place:
                    used -= base[start] if start < whole else full[start]
                    start += 1
            whole = max(whole, start)
        return start, whole

    def _newest_results(self, end: int) -> int:
        """Where the units begin that have the results before unit `end` which are no stubs.

        They take a quarter of the room at most.
        """
        left, room = self._rules.whole_results, self._room // 4
        begin = end
        for place in reversed(self._with_results[: bisect_left(self._with_results, end)]):
            room -= sum(self._full[place])
            if room < 0 or left <= 0:
                break
            left -= sum(1 for entry in self._units[place] if entry.answers is not None)
            begin = place
        return begin

    def _hand_out(self, shown: Sequence[Entry], shares: list[int], newest: int) -> None:
        """Give up to half of the room to the newest unit, and to the newest message of the user."""
        last = range(len(shown) - newest, len(shown))
        asked = next((n for n in range(len(shown) - 1, -1, -1) if shown[n].role == "user"), None)
        places = [*last] if asked is None or asked in last else [asked, *last]
        taken = sum(shares[n] for n in places)
        left = min(self._room - sum(shares), max(self._room // 2 - taken, 0))
        more = _share_out([shown[n].tokens - shares[n] for n in places], left)
        for n, tokens in zip(places, more, strict=True):
            shares[n] += tokens

    def _fit_newest(
        self, newest: Sequence[Entry], question: Sequence[Entry]
    ) -> tuple[Sequence[Entry], Sequence[int], int]:
        """The newest unit and the question, each message with its share; what fits of that."""
        needed = 0
        both = newest if question is newest else [*question, *newest]
        for shown in (both, newest):
            needed = sum(min(entry.tokens, LEAST_SHARE) for entry in shown)
            if needed <= self._most:
                return shown, _share_out([entry.tokens for entry in shown], self._most), 0
        return (), (), needed


def keep_newest(entries: Sequence[Entry], budget: int, rules: WindowRules) -> int:
    """The last message before the newest units that take a quarter of a budget; 0 for none.

    Results of tools count as stubs.
    """
    end, kept = len(entries), 0
    for start, _ in newest_units(entries):
        kept += sum(
            min(one.tokens, budget // 4 if one.answers is None else rules.stub_tokens)
            for one in entries[start:end]
        )
        if 4 * kept > budget and end < len(entries):
            return entries[end - 1].seq
        end = start
    return 0


def _calls_of(units: Sequence[Sequence[Entry]], names: Collection[str]) -> frozenset[str]:
    """The ids of the calls of these tools."""
    asking = [entry for unit in units for entry in unit if entry.calls]
    calls = [call for entry in asking for call in tool_calls(decode_chat(entry.chat))]
    return frozenset([call.id for call in calls if call.name in names])


def _share_out(wanted: Sequence[int], room: int) -> list[int]:
    """Shares of at most `room` in all: the largest are cut, to one size."""
    left, most = room, None
    for place, tokens in enumerate(sorted(wanted)):
        share = left // (len(wanted) - place)
        if tokens > share:
            most = share
            break
        left -= tokens
    return list(wanted) if most is None else [min(tokens, most) for tokens in wanted]
