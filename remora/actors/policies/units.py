"""Where a conversation may be cut, and what of it a chat API may see (G8).

A *unit* is the smallest piece that is kept or cut: a message, or a tool-call group, which is an
assistant message that calls tools with everything up to its last result. Results are paired with
the calls of the assistant message before them, not by a map over the session: providers reuse call
ids within a conversation.

A user's message between a call and its result belongs to the call's unit and does not end the wait.
An assistant message does: a model does not speak while calls are open, so the one who ran them has
given up. A result that comes later still is shown with its call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from remora.messages import INSTRUCTING_ROLES, Entry
from remora.runtime.probes import probe


class Unit(msgspec.Struct):
    """Entries `start`…`end` (indices, end excluded) of a buffer.

    Attributes:
        start: first index.
        end: one past the last.
        tokens: their sum.
        awaiting: ids of the calls without a result.
    """

    start: int
    end: int
    tokens: int
    awaiting: list[str]


def iter_units(entries: Sequence[Entry]) -> Iterator[Unit]:
    """Partition a buffer lazily, from the front. Only the last unit can have open calls."""
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


def length_before_open_call(entries: Sequence[Entry]) -> int:
    """How many entries, from the front, are before the first open tool call."""
    for index in range(len(entries) - 1, -1, -1):
        if entries[index].role == "assistant":
            last = units(entries[index:])[0]
            return index if last.awaiting and index + last.end == len(entries) else len(entries)
    return len(entries)


def cut_to_keep(
    entries: Sequence[Entry], keep: int, total: int, weigh: Callable[[Entry], int]
) -> int:
    """How many entries to cut from the front so that at most `keep` stay, or the last unit.

    A unit with open calls is not cut, unless other messages make it larger than `keep`: then the
    calls count as abandoned, and the unit is cut like single messages, so that one orphan cannot
    block compaction. What stays is not read, so the cost does not depend on the window's size.

    Args:
        entries: the buffer.
        keep: in the measure of `weigh`.
        total: size of the buffer, in the same measure.
        weigh: what an entry counts for.
    """
    excess, gone, end = total - keep, 0, 0
    if excess <= 0:
        return 0
    for unit in iter_units(entries):
        if unit.end == len(entries):
            return _cut_last(entries, unit, excess - gone, keep, end, weigh)
        gone += sum([weigh(entry) for entry in entries[unit.start : unit.end]])
        end = unit.end
        if gone >= excess:
            if unit.end - unit.start > 1:
                probe("group_cut_whole")
            break
    return end


def cut_oldest(entries: Sequence[Entry], count: int) -> int:
    """How many entries to cut for the oldest `count`, up to a unit's end.

    The last unit is not cut, unless it is abandoned; see `cut_to_keep`.
    """
    end = 0
    for unit in iter_units(entries):
        if unit.end == len(entries):
            return _cut_last(entries, unit, count - end, count, end, lambda _: 1)
        end = unit.end
        if end >= count:
            break
    return end


def _cut_last(
    entries: Sequence[Entry],
    unit: Unit,
    excess: int,
    keep: int,
    end: int,
    weigh: Callable[[Entry], int],
) -> int:
    """The cut within the last unit if it is abandoned; before it otherwise."""
    weight = sum([weigh(entry) for entry in entries[unit.start : unit.end]])
    if unit.awaiting and weight > keep and _is_abandoned(entries[unit.start : unit.end]):
        probe("abandoned_call_cut")
        for index in range(unit.start, unit.end - 1):
            if excess <= 0:
                break
            excess -= weigh(entries[index])
            end = index + 1
    return end


def _is_abandoned(unit: Sequence[Entry]) -> bool:
    """Return whether the unit holds a message that is not a result of its calls."""
    wanted = list(unit[0].calls)
    for entry in unit[1:]:
        if entry.answers not in wanted:
            return True
        wanted.remove(entry.answers)
    return False


def batches(entries: Sequence[Entry], most_tokens: int) -> list[Sequence[Entry]]:
    """Join whole units into batches of at most `most_tokens`; a larger unit is a batch alone."""
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


def newest_units(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """Partition a buffer lazily, from the back: each unit's first index and its tokens.

    An assistant's message ends the wait for results, so nothing before it decides what is a unit
    from there on. A context of the newest messages reads those alone.
    """
    end, calls = len(entries), False
    for index in range(end - 1, -1, -1):
        head = entries[index]
        calls = calls or bool(head.calls)
        if index and head.role != "assistant":
            continue
        if calls:
            for unit in reversed(units(entries[index:end])):
                yield index + unit.start, unit.tokens
        else:  # each message is a unit: a third of the time
            for start in range(end - 1, index - 1, -1):
                yield start, entries[start].tokens
        end, calls = index, False


def user_start(entries: Sequence[Entry], start: int) -> int:
    """Where a context begins that would begin at `start`, so that its first message is a user's.

    At the first user's message from `start` on, or at the system messages right before it; at
    `start` if there is none. `entries` are in the order of `presentable_units`, so that no group is
    split.
    """
    first = start
    for place in range(start, len(entries)):
        role = entries[place].role
        if role == "user":
            return first
        if role not in INSTRUCTING_ROLES:
            first = place + 1
    return start


def needs_user_before(entries: Sequence[Entry]) -> bool:
    """Return whether a model is to answer messages that do not begin with a user's."""
    if not entries or entries[-1].role == "assistant":
        return False
    first = next((entry.role for entry in entries if entry.role not in INSTRUCTING_ROLES), "user")
    return first != "user"


class Presentable(msgspec.Struct, frozen=True):
    """The part of a buffer that a chat API accepts.

    Attributes:
        units: the entries to send, oldest first.
        awaiting: ids of calls without a result, in the newest unit.
        orphans: how many results have no call; they are left out.
        withheld: the messages of the newest unit, while nothing was said since its calls.
    """

    units: list[list[Entry]]
    awaiting: tuple[str, ...] = ()
    orphans: int = 0
    withheld: Sequence[Entry] = ()


def presentable_units(entries: Sequence[Entry], no_result: Callable[[str], Entry]) -> Presentable:
    """Return what a chat API accepts of a buffer: each call has its result right behind it.

    A late result finds its call. A call that has none when somebody speaks again is closed by
    `no_result`, so that what was said with it, and the other results, can be shown.
    """
    shown: list[list[Entry]] = []
    awaiting: tuple[str, ...] = ()
    withheld: Sequence[Entry] = ()
    open_calls: dict[str, list[Entry]] = {}
    orphans = 0
    for unit in units(entries):
        members = entries[unit.start : unit.end]
        head = members[0]
        if not head.calls and head.answers is None:
            shown.append([head])
            continue
        wanted, group, others = list(head.calls), [head] if head.calls else [], []
        for entry in members[len(group) :]:
            if entry.answers is None:
                others.append([entry])
            elif entry.answers in wanted:
                wanted.remove(entry.answers)
                group.append(entry)
            elif (late := open_calls.pop(entry.answers, None)) is not None:
                probe("late_result_found_its_call")
                late.append(entry)
            else:
                probe("orphan_result_dropped")
                orphans += 1
        if wanted and unit.end == len(entries):
            awaiting = tuple(wanted)
            if not others:
                probe("awaiting_call_withheld")
                withheld = group
                break
        for call in wanted:
            if (older := open_calls.pop(call, None)) is not None:
                older.append(no_result(call))
            open_calls[call] = group
        if group:
            shown.append(group)
        shown.extend(others)
    for call, group in open_calls.items():
        probe("open_call_closed")
        group.append(no_result(call))
    return Presentable(shown, awaiting, orphans, withheld)
