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
from remora.actors.session.state import SUMMARIZE_QUEUE, SessionState, ahead_job_id
from remora.actors.session.window import (
    Window,
    WindowRules,
    fit_buffer,
    keep_newest,
)
from remora.messages import Entry, leading_instructions
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

_MOST = 4
"""Readers of a session that have a summary of their own."""
_LEAST_BUDGET = 200
"""Tokens below which a budget has no room for a summary that says anything."""
_FORGOTTEN_AFTER = 500
"""Messages after which a reader that has not come back is forgotten."""

_by_seq = attrgetter("seq")
_encode = msgspec.msgpack.Encoder().encode


def _serves(reader: Reader, budget: int) -> bool:
    """Return whether its summary was made for such a budget, or more, and leaves half of it."""
    made = reader.summary
    return made is not None and 4 * reader.budget >= 3 * budget and 2 * made.tokens <= budget


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
) -> Window:
    """Show the buffer behind the first summary with which all of it fits; else, the last one.

    A summary for a smaller budget is shown only if it leaves no more out than the buffer alone.
    """
    tools = state.tools > 0
    cut = state.watermarks.archived_through > state.watermarks.cleared_through
    running, summaries = state.summary, state.summaries
    if running is not None and running.blank:
        running = None  # a message that it covered was deleted; it is written again
    if any(one.blank for one in summaries):
        summaries = [one for one in summaries if not one.blank]
    chosen = fit_buffer(
        entries,
        tokens,
        running,
        summaries,
        budget,
        rules,
        tools=tools,
        recalls=recalls,
        cut=cut,
        pinned=pinned,
        sums=sums,
    )
    if not state.readers or chosen.complete:
        return chosen
    if not cut:
        pinned = entries[: leading_instructions(entries)]
    for reader in _usable_readers(state):
        summary, serves = reader.summary, _serves(reader, budget)
        if summary is None or 2 * summary.tokens > budget:
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
        if serves or (window.complete and 2 * window.tokens > chosen.tokens):
            chosen = window
        if serves and window.complete:
            probe("shown_behind_own_summary")
            break
    return chosen


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
    limit: int,
) -> Job | None:
    """The job that a load needs, so that later ones lack nothing; None for none.

    Args:
        state: the session.
        budget: of the load.
        shown: what it shows.
        rules: of the runtime.
        limit: the budget for which compaction makes room in time.
    """
    if not state.policy.summarizes or shown.least_tokens or budget < _LEAST_BUDGET:
        return None
    if shown.complete and (budget >= limit or not shown.filled):
        return None
    newest = state.next_seq - 1
    others = [one for name, one in state.readers.items() if name != str(budget)]
    if str(budget) in state.ahead or sum(one.seen == newest for one in others) >= _MOST:
        return None
    archived = state.watermarks.archived_through
    through = max(keep_newest(state.entries, budget, rules), _last_missing(state, shown))
    if through <= archived and not (shown.shortened_from or shown.left_out):
        return None
    through = max(through, archived)
    made = [one.summary for one in state.readers.values() if _serves(one, budget)]
    if any(one is not None and one.through >= through for one in made):
        return None
    probe("summary_planned_for_reader")
    generation = state.watermarks.generation
    first = state.watermarks.cleared_through + 1
    spec = SummarizeSpec(state.sid, generation, first, through, "ahead", budget)
    return Job(ahead_job_id(state, spec), SUMMARIZE_QUEUE, state.key, spec)


def _last_missing(state: SessionState, shown: Window) -> int:
    """The end of the last unit that is left out, but for the newest; 0 for none."""
    if shown.omitted == shown.withheld:
        return 0
    there = {entry.seq for entry in shown.entries}
    last = 0
    for unit in iter_units(state.entries):
        head = state.entries[unit.start]
        if unit.end == len(state.entries):
            break
        if head.seq not in there and head.answers is None:
            last = state.entries[unit.end - 1].seq
    return last


def keep_summary(state: SessionState, spec: SummarizeSpec, summary: Summary) -> StateChanged:
    """The record of a summary that was made for a budget; long-gone readers are forgotten."""
    name, newest = str(spec.budget), state.next_seq - 1
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
