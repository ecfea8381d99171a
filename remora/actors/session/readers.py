"""Budgets that a session is loaded with, and a summary for each that needs its own.

The buffer is compacted for the largest contexts. A smaller one has no room for all of it: the
messages in between would be in no summary and in no context. So a load that must leave messages
out, or soon will, starts a job that summarizes the session up to a message in the buffer, at the
length that the budget has room for. Later loads show this summary with the messages behind it. The
buffer stays as it is for larger budgets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from remora.actors.policies.units import iter_units
from remora.actors.session.state import SessionState, ahead_job_id
from remora.actors.session.window import (
    Window,
    WindowRules,
    fit_buffer,
    keep_newest,
    leading_instructions,
)
from remora.messages import Entry
from remora.runtime.jobs import Job
from remora.runtime.probes import probe
from remora.storage.records import (
    READER_KIND,
    Reader,
    StateChanged,
    StateItem,
    SummarizeSpec,
    Summary,
)

__all__ = ["drop_summaries", "fit_for_reader", "keep_summary", "plan_summary", "reader_name"]

_MOST = 4
"""Readers of a session that have a summary of their own."""
_FORGOTTEN_AFTER = 500
"""Messages after which a reader that has not come back is forgotten."""

_by_seq = attrgetter("seq")
_encode = msgspec.msgpack.Encoder().encode


def reader_name(budget: int) -> str:
    """The name under which a budget is remembered: one for all up to twice as large."""
    return str(budget.bit_length())


def fit_for_reader(
    state: SessionState,
    entries: Sequence[Entry],
    tokens: int,
    budget: int,
    rules: WindowRules,
    pinned: Sequence[Entry],
    *,
    recalls: bool,
    sums: Sequence[int] | None,
) -> tuple[Window, bool]:
    """Show the buffer behind the first summary with which all of it fits; else, the last one.

    Returns:
        The window, and whether its summary was made for a smaller budget.
    """
    tools = state.tools > 0
    cut = state.watermarks.archived_through > state.watermarks.cleared_through
    chosen = fit_buffer(
        entries,
        tokens,
        state.summary,
        state.summaries,
        budget,
        rules,
        tools=tools,
        recalls=recalls,
        cut=cut,
        pinned=pinned,
        sums=sums,
    )
    if not cut:
        pinned = entries[: leading_instructions(entries)]
    smaller = False
    if not state.readers or chosen.complete:
        return chosen, smaller
    for reader in _usable_readers(state):
        summary = reader.summary
        if summary is None or summary.tokens > budget // 2:
            continue
        first = bisect_right(entries, summary.through, key=_by_seq)
        rest = sums[first:] if sums is not None else None
        window = fit_buffer(
            entries[first:],
            rest[-1] - rest[0] if rest else sum([entry.tokens for entry in entries[first:]]),
            summary,
            (),
            budget,
            rules,
            tools=tools,
            recalls=recalls,
            cut=True,
            pinned=pinned,
            sums=rest,
        )
        chosen, smaller = window, reader.budget.bit_length() < budget.bit_length()
        if window.complete:
            probe("shown_behind_own_summary")
            break
    return chosen, smaller


def _usable_readers(state: SessionState) -> list[Reader]:
    """Readers whose summaries end in the buffer, those of the fewest messages first."""
    archived = state.watermarks.archived_through
    found = [
        (one.summary.through, number, one)
        for number, one in enumerate(state.readers.values())
        if one.summary is not None and one.summary.through >= archived
    ]
    return [one for _, _, one in sorted(found)]


def plan_summary(
    state: SessionState,
    budget: int,
    shown: Window,
    rules: WindowRules,
    *,
    smaller: bool,
    limit: int,
) -> Job | None:
    """The job that a load needs, so that later ones lack nothing; None for none.

    Args:
        state: the session.
        budget: of the load.
        shown: what it shows.
        rules: of the runtime.
        smaller: whether that has a summary for a smaller budget.
        limit: the budget for which compaction makes room in time.
    """
    if not state.policy.summarizes:
        return None
    if shown.complete and not smaller and (budget >= limit or not shown.filled):
        return None
    name = reader_name(budget)
    if name in state.ahead:
        return None
    through = max(keep_newest(state.entries, budget, rules), _last_missing(state, shown))
    covered = shown.summary.through if shown.summary is not None else 0
    archived = state.watermarks.archived_through
    if through <= archived and not (shown.shortened_from or shown.left_out):
        return None
    through = max(through, archived)
    if not smaller and (through < covered or (through == covered and not shown.shortened_from)):
        return None
    probe("summary_planned_for_reader")
    generation = state.watermarks.generation
    first = state.watermarks.cleared_through + 1
    spec = SummarizeSpec(state.sid, generation, first, through, "ahead", budget)
    return Job(ahead_job_id(state.sid, spec), "summarize", state.key, spec)


def _last_missing(state: SessionState, shown: Window) -> int:
    """The end of the last unit that is left out, but for one that waits for results; 0 for none."""
    if shown.omitted == shown.withheld:
        return 0
    there = {entry.seq for entry in shown.entries}
    last = 0
    for unit in iter_units(state.entries):
        head = state.entries[unit.start]
        waits = unit.end == len(state.entries) and unit.awaiting
        if head.seq not in there and head.answers is None and not waits:
            last = state.entries[unit.end - 1].seq
    return last


def keep_summary(state: SessionState, spec: SummarizeSpec, summary: Summary) -> StateChanged:
    """The record of a summary that was made for a budget; long-gone readers are forgotten."""
    name, newest = reader_name(spec.budget), state.next_seq - 1
    known = state.readers.get(name)
    seen = known.seen if known is not None else newest
    item = StateItem(READER_KIND, name, _encode(Reader(spec.budget, seen, summary)))
    others = sorted(
        ((one.seen, other) for other, one in state.readers.items() if other != name), reverse=True
    )
    gone = [
        other
        for place, (last, other) in enumerate(others, start=1)
        if place >= _MOST or newest - last > _FORGOTTEN_AFTER
    ]
    return StateChanged(state.sid, (item,), tuple((READER_KIND, other) for other in gone))


def drop_summaries(state: SessionState) -> Iterable[StateChanged]:
    """The record for a past that was rewritten: the summaries of it are gone."""
    names = [name for name, one in state.readers.items() if one.summary is not None]
    if not names:
        return ()
    return (StateChanged(state.sid, (), tuple((READER_KIND, name) for name in names)),)
