"""Where a conversation may be cut, and what of it a chat API may see (G8).

A *unit* is the smallest piece that is kept or cut whole: a message by itself, or an assistant
message that calls tools together with everything up to the last of its results. Results are paired
with the calls of the assistant message that they follow, never by a map over the session: providers
reuse call ids within one conversation, for other calls.

People interrupt. A user's message between a call and its result stays in the call's unit; it ends
the wait no more than the result does. An assistant message does: nobody speaks with calls open, so
those calls were orphaned by a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from remora.messages import Entry
from remora.runtime.probes import probe

__all__ = [
    "Unit",
    "batches",
    "closed_length",
    "cut_oldest",
    "cut_to_keep",
    "iter_units",
    "newest_start",
    "presentable_units",
    "units",
]


class Unit(msgspec.Struct):
    """Entries `start`…`end` (indices, end excluded) of a buffer.

    Attributes:
        start: first index.
        end: one past the last.
        tokens: their sum.
        awaiting: ids of the calls that have no result yet.
    """

    start: int
    end: int
    tokens: int
    awaiting: list[str]


def iter_units(entries: Sequence[Entry]) -> Iterator[Unit]:
    """Partition a buffer from the front, as far as it is asked to.

    Only the last unit can still be waiting for results.
    """
    index = 0
    while index < len(entries):
        head = entries[index]
        unit = Unit(index, index + 1, head.tokens, list(head.calls))
        index += 1
        while unit.awaiting and index < len(entries) and entries[index].role != "assistant":
            entry = entries[index]
            index += 1
            unit.end = index
            unit.tokens += entry.tokens
            if entry.answers in unit.awaiting:
                unit.awaiting.remove(entry.answers)
        yield unit


def units(entries: Sequence[Entry]) -> list[Unit]:
    """Partition a buffer, in order."""
    return list(iter_units(entries))


def closed_length(entries: Sequence[Entry]) -> int:
    """How many entries, from the front, no longer wait for a tool's result."""
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].role == "assistant":
            last = units(entries[index:])[0]
            return index if last.awaiting and index + last.end == len(entries) else len(entries)
    return len(entries)


def cut_to_keep(entries: Sequence[Entry], keep: int, total: int, *, messages: bool = False) -> int:
    """How many entries, from the front, to fold so that what stays weighs at most `keep`, or is the
    last unit alone.

    A unit that still waits for results is never cut, unless others speak on meanwhile until it
    outgrows `keep`: then the agent that made the calls is taken for dead, and its unit is cut like
    single messages, so that one orphan can never block folding. What stays is not looked at: a full
    window costs the same whatever its size.

    Args:
        entries: the buffer.
        keep: in tokens, or in messages.
        total: what the buffer weighs.
        messages: weigh by number.
    """
    excess, gone, end = total - keep, 0, 0
    if excess <= 0:
        return 0
    for unit in iter_units(entries):
        if unit.end == len(entries):
            return _cut_last(entries, unit, excess - gone, keep, end, messages=messages)
        gone += unit.end - unit.start if messages else unit.tokens
        end = unit.end
        if gone >= excess:
            if unit.end - unit.start > 1:
                probe("turn_cut_whole")
            break
    return end


def cut_oldest(entries: Sequence[Entry], count: int) -> int:
    """How many entries, from the front, make up the oldest `count`, and the rest of the turn that
    they end in.

    The last unit is never folded, unless it was abandoned; see `cut_to_keep`.
    """
    end = 0
    for unit in iter_units(entries):
        if unit.end == len(entries):
            return _cut_last(entries, unit, count - end, count, end, messages=True)
        end = unit.end
        if end >= count:
            break
    return end


def _cut_last(
    entries: Sequence[Entry], unit: Unit, excess: int, keep: int, end: int, *, messages: bool
) -> int:
    """The cut within the last unit, if the agent that made its calls is taken for dead.

    In front of it otherwise.
    """
    weight = unit.end - unit.start if messages else unit.tokens
    if unit.awaiting and weight > keep and _is_abandoned(entries[unit.start : unit.end]):
        probe("abandoned_call_cut")
        for index in range(unit.start, unit.end - 1):
            if excess <= 0:
                break
            excess -= 1 if messages else entries[index].tokens
            end = index + 1
    return end


def _is_abandoned(unit: Sequence[Entry]) -> bool:
    """Whether anything but awaited results came after the calls."""
    wanted = list(unit[0].calls)
    for entry in unit[1:]:
        if entry.answers not in wanted:
            return True
        wanted.remove(entry.answers)
    return False


def batches(entries: Sequence[Entry], most_tokens: int) -> list[Sequence[Entry]]:
    """Whole units joined into batches of at most `most_tokens`.

    A larger unit is a batch of its own.
    """
    found: list[Sequence[Entry]] = []
    start = tokens = 0
    for unit in units(entries):
        if tokens and tokens + unit.tokens > most_tokens:
            found.append(entries[start : unit.start])
            start, tokens = unit.start, 0
        tokens += unit.tokens
    if start < len(entries):
        found.append(entries[start:])
    return found


def newest_start(entries: Sequence[Entry], room: int) -> int:
    """How many entries, from the front, to leave out so that whole units of at most `room` tokens
    remain.
    """
    used, start = 0, len(entries)
    for unit in reversed(units(entries)):
        used += unit.tokens
        if used > room:
            break
        start = unit.start
    return start


def presentable_units(entries: Sequence[Entry]) -> tuple[list[Sequence[Entry]], list[str], int]:
    """What a chat API takes of a buffer.

    Each unit's calls followed at once by their results, orphans left out.

    Returns:
        The units, oldest first, each as the entries to send; the ids of calls that still wait for a
        result (their unit is withheld until it is whole); and how many orphans (calls never
        answered, results never called for) were left out.
    """
    shown: list[Sequence[Entry]] = []
    awaiting: list[str] = []
    orphans = 0
    for unit in units(entries):
        members = entries[unit.start : unit.end]
        head = members[0]
        if not head.calls:
            if head.answers is None:
                shown.append(members)
            else:
                orphans += 1
                probe("orphan_result_dropped")
            continue
        wanted = list(head.calls)
        results, others = [], []
        for entry in members[1:]:
            if entry.answers is None:
                others.append(entry)
            elif entry.answers in wanted:
                wanted.remove(entry.answers)
                results.append(entry)
            else:
                orphans += 1
        if not wanted:
            shown.append([head, *results])
        elif unit.end == len(entries):
            probe("awaiting_call_withheld")
            awaiting.extend(wanted)
        else:
            probe("orphan_call_dropped")
            orphans += 1 + len(results)  # the call goes, and takes what results it had along
        shown.extend([entry] for entry in others)
    return shown, awaiting, orphans
