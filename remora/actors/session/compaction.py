"""Compaction of a session's buffer into summaries, and its indexing in long-term memory.

A compaction freezes a prefix of the buffer and starts a job that summarizes it. The messages stay
in the buffer until `SummaryReady` brings the result. If the session's past was rewritten in between
(cleared, rewound, messages deleted), the result is stale and dropped. One compaction runs at a
time; if the summarizer cannot keep up, the buffer grows to its overdraft, and then the job is
expedited: a fallback summary is made. A policy that drops messages needs no job: the buffer's front
moves at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from remora.actors.policies.units import length_before_open_call
from remora.actors.session.messages import SummaryReady
from remora.actors.session.readers import keep_summary
from remora.actors.session.state import (
    SUMMARIZE_QUEUE,
    SessionState,
    condense_job_id,
    repair_job_id,
    summarize_job_id,
)
from remora.messages import Entry, leading_instructions
from remora.runtime.actor import Decision
from remora.runtime.jobs import Job, JobDone
from remora.runtime.probes import probe
from remora.storage.records import (
    ENTRY_KIND,
    BlocksSpec,
    BufferMoved,
    EntryFlushSpec,
    FactsSpec,
    FlushSpec,
    JobsStarted,
    StateChanged,
    StateItem,
    SummarizeSpec,
    Summary,
    Watermarks,
    find_lost,
)

__all__ = [
    "BLOCKS_QUEUE",
    "FACTS_QUEUE",
    "FLUSH_QUEUE",
    "SUMMARIZE_QUEUE",
    "SessionRules",
    "compact",
    "flush",
    "last_indexable",
    "leaving_jobs",
    "repair_jobs",
    "resummarize",
    "take_summary",
]

FLUSH_QUEUE = "flush"
BLOCKS_QUEUE = "blocks"
FACTS_QUEUE = "facts"

_encode = msgspec.msgpack.Encoder().encode


class SessionRules(msgspec.Struct, frozen=True):
    """The rules of every session of a runtime.

    Attributes:
        instance: distinguishes the message ids of this journal from another's.
        indexes: whether there is a long-term memory.
        blocks: whether there are memory blocks, which are shown what leaves the buffer.
        repairs: whether a model writes summaries, so that lost messages are summarized again.
        facts: whether a model extracts facts from messages that are indexed.
        token_limit: the budget for which compaction makes room.
    """

    instance: str
    indexes: bool
    blocks: bool
    repairs: bool = False
    facts: bool = False
    token_limit: int = 30_000


def compact(
    state: SessionState,
    rules: SessionRules,
    live: Sequence[Entry],
    tokens: int,
    watermarks: Watermarks,
) -> BufferMoved | None:
    """The record of a compaction; None if the policy finds no cut.

    Args:
        state: the session.
        rules: of all sessions.
        live: messages that are not being summarized.
        tokens: what they count for.
        watermarks: those that hold before this record.
    """
    count = state.policy.amount(live, tokens)
    if count == 0:
        return None
    nothing_left = watermarks.archived_through == watermarks.cleared_through
    if nothing_left and leading_instructions(live) >= count:
        return None  # contexts show them in any case
    through = live[count - 1].seq
    flushing = (
        max(watermarks.indexing_through, through) if rules.indexes else watermarks.indexing_through
    )
    after = msgspec.structs.replace(
        watermarks, summarizing_through=through, indexing_through=flushing
    )
    kind = state.policy.fold
    if kind == "drop":
        after = msgspec.structs.replace(after, archived_through=through)
        jobs = leaving_jobs(state, rules, after, watermarks.indexing_through, through)
        at_seq = max(state.next_seq - 1, live[-1].seq)
        return BufferMoved(state.sid, after, at_seq=at_seq, reason="dropped", jobs=jobs)
    first = watermarks.archived_through + 1
    spec = SummarizeSpec(state.sid, watermarks.generation, first, through, kind)
    job = Job(summarize_job_id(state.sid, after), SUMMARIZE_QUEUE, state.key, spec)
    leaving = leaving_jobs(state, rules, after, watermarks.indexing_through, through)
    # it continues the running summary, and takes lost messages along
    ended = (state.repair,) if state.repair and kind == "summary" else ()
    return BufferMoved(state.sid, after, ended=ended, jobs=(job, *leaving))


def leaving_jobs(
    state: SessionState, rules: SessionRules, after: Watermarks, flushing: int, through: int
) -> tuple[Job, ...]:
    """The jobs for messages that leave the buffer: they are indexed, and shown to memory blocks.

    Args:
        state: the session.
        rules: of all sessions.
        after: the watermarks that hold when they have left.
        flushing: the last message that had an indexing job before.
        through: the last message that leaves.
    """
    jobs: list[Job] = []
    if after.indexing_through > flushing:
        jobs.extend(_index_jobs(state, rules, flushing + 1, after.indexing_through))
    if rules.blocks and through:
        id_ = f"{BLOCKS_QUEUE}-{state.sid}-{after.generation}-{through}"
        jobs.append(Job(id_, BLOCKS_QUEUE, state.key, BlocksSpec(state.sid, through)))
    return tuple(jobs)


def _index_jobs(
    state: SessionState, rules: SessionRules, first: int, through: int
) -> tuple[Job, ...]:
    """The job that indexes these messages, and the one that extracts facts from them."""
    spec = FlushSpec(state.sid, first, through, completes=_ended_a_conversation(state, first - 1))
    flush = Job(f"{FLUSH_QUEUE}-{state.sid}-{through}", FLUSH_QUEUE, state.key, spec)
    if not rules.facts:
        return (flush,)
    id_ = f"{FACTS_QUEUE}-{state.sid}-{through}"
    return flush, Job(id_, FACTS_QUEUE, state.key, FactsSpec(state.sid, first, through))


def _ended_a_conversation(state: SessionState, seq: int) -> bool:
    """Return whether this message, the last indexed one, was the newest when it was indexed.

    Compaction indexes messages that others follow in the buffer. Everything else, `flush` or
    `clear`, leaves the mark of indexing beyond that of compaction, or at the cleared messages.
    """
    watermarks = state.watermarks
    return seq > watermarks.summarizing_through or 0 < seq == watermarks.cleared_through


# -- indexing without compaction ----------------------------------------------------------------


def last_indexable(state: SessionState) -> int:
    """The last message that may be indexed: before the first tool call without a result (G8).

    A call that is being summarized is abandoned, and its messages have their job.
    """
    if state.tools:
        live = state.entries[state.pending :]
        closed = length_before_open_call(live)
        if closed < len(live):
            probe("open_tool_call_withheld")
            return live[closed].seq - 1
    return state.next_seq - 1


def flush(state: SessionState, rules: SessionRules) -> Decision:
    """Start the job that indexes everything that has none yet; the messages stay in the buffer."""
    through = last_indexable(state)
    if not rules.indexes or through <= state.watermarks.indexing_through:
        return Decision(0)
    first = state.watermarks.indexing_through + 1
    jobs = _index_jobs(state, rules, first, through)
    watermarks = msgspec.structs.replace(state.watermarks, indexing_through=through)
    moved = BufferMoved(state.sid, watermarks, jobs=jobs)
    return Decision(through - first + 1, [moved], jobs=jobs)


# -- results ------------------------------------------------------------------------------------


def take_summary(state: SessionState, rules: SessionRules, result: SummaryReady) -> Decision:
    """Take the result of a summarize job, unless it is stale."""
    spec = result.spec
    if spec.kind == "repair":
        return _take_repair(state, rules, result)
    if spec.kind == "ahead":
        return _take_ahead(state, result)
    entry, condensed = spec.kind == "entry", spec.kind == "condense"
    expected = state.condense_job if condensed else state.compaction_job
    outdated = condensed and all(one.through != spec.through for one in state.summaries)
    if result.job != expected or outdated:
        probe("stale_summary_dropped")
        return Decision(False, [JobDone(result.job)])
    first = state.summary.first if state.summary and not entry else spec.first
    summary = _summary(result, first)
    watermarks = state.watermarks
    jobs: tuple[Job, ...] = ()
    if condensed:
        left = [one for one in state.summaries if one.through > spec.through]
        jobs = _condense(state, rules, left)
    else:
        through = watermarks.summarizing_through
        watermarks = msgspec.structs.replace(watermarks, archived_through=through)
        if entry and not state.condensing:
            jobs = _condense(state, rules, [*state.summaries, summary])
    live = state.entries[state.pending :]
    compaction = None
    size = sum([entry.size for entry in live])
    if not condensed and state.policy.due(state.live_weight, len(live), size):
        compaction = compact(state, rules, live, state.live_weight, watermarks)
    # The running summary changes, or will: a repair of it would be of an old one.
    ended = (state.repair,) if state.repair and (jobs or not entry) else ()
    if compaction is None and not jobs and (not result.degraded or result.hurried):
        known = [one for one in state.summaries if entry or one.through > summary.through]
        if not (entry and state.repair):
            running = state.summary if entry else summary
            found = ([running] if running else []) + known + ([summary] if entry else [])
            jobs = repair_jobs(state, rules, found, watermarks.generation)
    moved = BufferMoved(
        state.sid,
        watermarks,
        at_seq=state.next_seq - 1,
        summary=None if entry else summary,
        summaries=(summary,) if entry else (),
        ended=(result.job, *ended),
        jobs=jobs,
    )
    records: list[Any] = [moved, *_keep_entries(state.sid, jobs)]
    if compaction is not None:
        probe("compaction_followed_compaction")
        records.append(compaction)
        jobs = (*jobs, *compaction.jobs)
        ended = (*ended, *(one for one in compaction.ended if one not in ended))
    return Decision(True, records, jobs=jobs, cancel=ended, size=len(result.text))


def _take_ahead(state: SessionState, result: SummaryReady) -> Decision:
    """Take a summary for smaller budgets, unless its messages left the buffer, or changed.

    A session that was erased while the job ran has another number in its journal.
    """
    spec, watermarks = result.spec, state.watermarks
    there = watermarks.archived_through <= spec.through < state.next_seq
    current = (spec.sid, spec.generation) == (state.sid, watermarks.generation)
    if not current or not there or not result.text:
        probe("stale_summary_dropped")
        return Decision(False, [JobDone(result.job)])
    kept = keep_summary(state, spec, _summary(result, spec.first))
    return Decision(True, [kept, JobDone(result.job)], size=len(result.text))


def _summary(result: SummaryReady, first: int) -> Summary:
    return Summary(
        result.spec.through,
        result.prefix,
        result.text,
        result.tokens,
        result.degraded,
        result.model,
        first=first,
        input_tokens=result.input_tokens,
        lost=result.lost,
        verbatim=result.verbatim,
        prose=result.prose,
        brief=result.brief,
        brief_tokens=result.brief_tokens,
    )


# -- lost messages --------------------------------------------------------------------------------


def resummarize(state: SessionState, rules: SessionRules) -> Decision:
    """Start the job that summarizes lost messages, unless one runs that does."""
    if not rules.repairs or state.degraded is None:
        return Decision(False)
    if state.repair or state.condensing or (state.pending and state.policy.fold == "summary"):
        return Decision(True)
    jobs = repair_jobs(state, rules, _summaries(state), state.watermarks.generation)
    return Decision(True, [JobsStarted(state.sid, jobs)] if jobs else [], jobs=jobs)


def repair_jobs(
    state: SessionState,
    rules: SessionRules,
    summaries: Sequence[Summary],
    generation: int,
    *,
    changed: bool = False,
) -> tuple[Job, ...]:
    """The job that summarizes the first lost messages of these summaries again, if there are any.

    Another job follows when it is done, until no message is lost. What is extracted from messages
    is extracted again only if some of them `changed`, or if a summary lost its text.
    """
    if not (rules.repairs or changed or any(one.blank for one in summaries)):
        return ()
    for one in summaries:
        if lost := find_lost(one):
            probe("repair_started")
            spec = SummarizeSpec(state.sid, generation, lost[0].first, one.through, "repair")
            left = sum(part.count for part in lost)
            id_ = repair_job_id(state, spec, left)
            return (Job(id_, SUMMARIZE_QUEUE, state.key, spec),)
    return ()


def _take_repair(state: SessionState, rules: SessionRules, result: SummaryReady) -> Decision:
    """Replace a summary by one that covers messages which it had lost."""
    through = result.spec.through
    old = next((one for one in _summaries(state) if one.through == through), None)
    if result.job != state.repair or old is None:
        probe("stale_summary_dropped")
        return Decision(False, [JobDone(result.job)])
    if not result.text:  # another attempt follows when the model is back
        return Decision(False, [JobDone(result.job)])
    new = _summary(result, old.first)
    running = old is state.summary
    left = [new if one is old else one for one in _summaries(state)]
    jobs = repair_jobs(state, rules, left, state.watermarks.generation)
    moved = BufferMoved(
        state.sid,
        state.watermarks,
        at_seq=state.next_seq - 1,
        summary=new if running else None,
        summaries=() if running else (new,),
        ended=(result.job,),
        jobs=jobs,
    )
    return Decision(True, [moved], jobs=jobs, size=len(result.text))


def _summaries(state: SessionState) -> list[Summary]:
    """The running summary, if there is one, and the entries, oldest first."""
    return [*([state.summary] if state.summary else []), *state.summaries]


def _condense(
    state: SessionState, rules: SessionRules, entries: Sequence[Summary]
) -> tuple[Job, ...]:
    """The jobs for the oldest entry of a full list: into the running summary, and indexed."""
    if len(entries) <= state.policy.entries:
        return ()
    probe("entry_condensed")
    oldest = entries[0]
    generation = state.watermarks.generation
    spec = SummarizeSpec(state.sid, generation, oldest.first, oldest.through, "condense")
    condense_id = condense_job_id(state.sid, generation, oldest.through)
    jobs = [Job(condense_id, SUMMARIZE_QUEUE, state.key, spec)]
    if rules.indexes:
        at_us = state.entries[-1].at_us if state.entries else 0
        id_ = f"entry-{state.sid}-{generation}-{oldest.through}"
        jobs.append(Job(id_, FLUSH_QUEUE, state.key, EntryFlushSpec(state.sid, oldest, at_us)))
    return tuple(jobs)


def _keep_entries(sid: int, jobs: Sequence[Job]) -> list[StateChanged]:
    """Keep the entries that leave their list, so that long-term memory can be rebuilt from them."""
    specs = [job.payload for job in jobs if isinstance(job.payload, EntryFlushSpec)]
    items = tuple(StateItem(ENTRY_KIND, str(one.entry.through), _encode(one)) for one in specs)
    return [StateChanged(sid, items)] if items else []
