"""Probes: named places in rare branches, so that a test can tell whether it ever came there.

A test of schedules and faults that passes proves nothing of a branch that it never took. So the
branches that only a race, a fault or a crash takes bear a name, and a suite that observes them
fails when one was never reached. The idea is FoundationDB's (its coverage macros: Zhou et al.,
SIGMOD 2021, section 4).

While nobody observes, a probe is one look at a module's variable; and none is on the path of an
append or a load that meets nothing rare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["PROBES", "count_probes", "ignore_probes", "probe"]

PROBES: Mapping[str, str] = {
    # the kernel: one cell
    "turn_broke_state": "applying a turn's records raised: the state is half changed, and is "
    "restored",
    "fenced_write_settled": "a write that was fenced came back from the log all the same",
    "fetch_after_commit": "a cold record was missed while writes were under way, and is fetched "
    "now that they have landed",
    "gate_broken": "a commit failed, or a turn broke its state: all that waits behind the gate is "
    "void",
    "write_fenced": "a write behind one that failed is fenced, so that it is never stored without "
    "it",
    "deadline_behind_gate": "a caller's deadline passed after its turn ran and before its commit: "
    "outcome unknown",
    # the kernel: all cells
    "quarantine_refused": "a message came for an actor that rests",
    "mailbox_refused": "a full mailbox refused a message: nothing ran",
    "sender_parked": "a mailbox was full, and its sender waits for room",
    "activation_joined": "another message came for an actor whose first one is still waiting for "
    "its activation",
    "quarantine_entered": "an actor failed too often in a short time, and rests",
    "cold_record_missed": "a turn missed a record that is not in memory: the cell is suspended, "
    "its message first in line",
    "actor_barred": "a message came for an actor that may not come to life now: it is being "
    "forgotten",
    "activation_waited_for_room": "no cell could leave memory, so an activation waits",
    "image_unreadable": "an actor's image could not be read: its messages fail, and the next one "
    "tries anew",
    "cell_reloaded": "a cell that lost its state was restored from the log, in place",
    "activated_amid_jobs": "an actor came to life, or was restored, while jobs of its earlier "
    "life stood in the log",
    "lost_actor_read_again": "an actor that was lost and could not be read is tried again, for "
    "the jobs that it may have left",
    "fetch_failed": "the log could not answer a cell's question",
    "parked_sender_admitted": "there is room again for a message whose sender waited for it",
    "sender_gone_before_turn": "a queued message's sender gave up before its turn: it never runs",
    "quantum_spent": "a cell had more messages than one round takes, and goes to the end of the "
    "line",
    "quarantine_left": "an actor has rested, and may be tried again",
    "deadline_in_mailbox": "a message's deadline passed before its turn: it never runs",
    "shed_by_count": "too many actors are in memory: those that were idle longest leave",
    "shed_by_bytes": "actors take too many bytes: those that were idle longest leave",
    "retire_found_used": "a cell that was to leave memory had been used since it was filed",
    "retire_found_busy": "a cell that was to leave memory was busy",
    "farewell_run": "an idle actor wrote what it had put off before it leaves memory; messages "
    "may come meanwhile",
    "expulsion_waited": "an actor that is to leave memory has a commit under way",
    "mailbox_full_of_messages": "a mailbox holds as many messages as it may",
    "mailbox_full_of_bytes": "a mailbox holds as many bytes as it may",
    # the kernel: background jobs
    "job_resumed": "a job that was found in the log is taken up: after a crash, a commit of "
    "unknown outcome, a burial",
    "job_resumed_in_backoff": "a job that is taken up must not run yet",
    "job_revived": "a dead letter runs again",
    "job_cancelled_running": "a job was cancelled while its handler ran",
    "job_cancelled_while_recorded": "a job was cancelled while its end or its failure was on its "
    "way to the log",
    "job_expedited_running": "a job that can be waited for no longer gives its present attempt up",
    "job_pulled_from_queue": "a job was cancelled or hastened while it waited for a place in its "
    "lane",
    "job_pulled_from_backoff": "a job was cancelled or hastened while it waited to be tried again",
    "attempt_broke_off": "a bug of ours ended an attempt; the lane goes on",
    "job_end_unrecorded": "a job's work is done, and its end could not be recorded: it is done "
    "again",
    "job_retried": "a job failed, and is tried again later",
    "job_failure_unrecorded": "the log refused to take a job's failure down",
    "job_buried": "a job failed for good: a dead letter",
    # models
    "breaker_refused": "a model is left alone, so a call was refused",
    "breaker_opened": "a model failed too often in a row: it is left alone for a while",
    "breaker_closed": "a model that was left alone answered its trial call",
    "model_hung": "a chat model or summarizer did not answer in time",
    "embedder_hung": "an embedder did not answer in time",
    "embedder_misshaped": "an embedder answered with another number of vectors, or of another "
    "length",
    "embedder_not_finite": "an embedder answered with what is no number",
    "embedding_joined": "a text that another call was embedding was waited for",
    "embedding_joined_failed": "the call that was waited for failed, so this one embeds the text "
    "itself",
    # a session
    "key_looked_up": "an idempotency key was looked up in the journal",
    "duplicate_key_hot": "an append came again under a key that is in memory: it is answered as "
    "before",
    "duplicate_key_cold": "an append came again under a key that only the journal knows: it is "
    "answered as before",
    "duplicate_message": "a message was there already, by its id or its words, and is not stored "
    "again",
    "ids_looked_up": "message ids were looked up in the journal",
    "key_of_partial_append": "a key came again whose append had skipped messages that were there "
    "already",
    "overdraft_reached": "the summarizer cannot keep up: the buffer is over its overdraft, and "
    "its fold is hastened",
    "open_tool_call_withheld": "a tool call waits for its result, so it and what follows are not "
    "flushed",
    "stale_fold_dropped": "a summary came in after the past was restated (a clear, a rewind): it "
    "is dropped",
    "fold_followed_fold": "when a summary came in, the next fold was due already",
    "entry_condensed": "a list of summary entries was full: its oldest goes into the running "
    "summary",
    "restated_during_fold": "a session was cleared, rewound or changed while a fold of it was "
    "under way",
    "removal_of_flushed": "messages that long-term memory has were removed, and leave it, too",
    "went_back": "a session went back to an earlier message",
    # tool calls
    "turn_cut_whole": "a fold ended within a tool call's turn: all of the turn goes, and no call "
    "is split from its results",
    "abandoned_call_cut": "a tool call whose agent is taken for dead was cut like single messages",
    "orphan_result_dropped": "a tool result that nobody called for is left out of a context",
    "orphan_call_dropped": "a tool call that was never answered is left out of a context, with "
    "what results it had",
    "awaiting_call_withheld": "a tool call without all its results is withheld from a context",
    # what jobs do
    "fold_without_summary": "not even an extract could be made of a fold: it says so, and the "
    "messages stay in the journal",
    "summary_degraded": "an extract stands in for the model's summary",
    "extract_failed": "the extract failed: the previous summary stands in",
    "doubtful_flush": "a flush runs again: rows of it may be in long-term memory already",
    "prune_resumed": "a prune runs again, and first finishes what the earlier attempt had begun",
    "memory_gone_while_embedded": "a memory was removed while it was embedded: it does not come "
    "back",
    "block_failed": "a memory block did not take in what it was shown; the others did",
    # a user
    "working_memory_overfull": "what was learned does not wait for the next cleanup: the oldest "
    "items leave at once",
    "working_memory_evicted": "a cleanup removed the oldest items of working memory",
    "synopsis_joined": "a synopsis was asked for while it was being written: both wait for one job",
    "synopsis_stale": "a part of a synopsis has outlived its term, or was never written: it is "
    "written anew",
    "synopsis_dropped": "a synopsis came in that nobody waits for any longer: what it tells of "
    "was changed meanwhile",
    "synopsis_degraded": "an extract stands in for the model's synopsis",
    "synopsis_unwritten": "no synopsis could be written at all: an empty one stands in",
    # recall
    "recall_overtaken": "a search was under way while its user wrote: its result answers nobody "
    "else",
    "recall_cache_invalidated": "a result that was held is dropped, for its user has written",
    "hot_rows_too_many": "a user has too many rows to be held in memory: the store is asked",
    "hot_read_overtaken": "a user's rows were removed, or asked for anew, while they were read "
    "into memory",
    "hot_read_failed": "a user's rows could not be read into memory: the store is asked",
    "hot_user_evicted": "a user's rows gave way to others'",
    # context assembly
    "tier_late": "a tier missed its deadline, and is left out of a context",
    "tier_failed": "a tier failed, and is left out of a context",
    "synopsis_left_out": "there is no room for the synopsis in a context",
    "recalled_already_shown": "what was recalled turned out to be in the conversation that is "
    "shown",
    # storage
    "write_of_forgotten_refused": "a write came for an actor that was forgotten: there must be no "
    "rows of it again",
    "batch_halved": "a batch cannot be stored: it is halved until the write that is to blame "
    "stands alone",
    "commit_unknown": "a write or sync of the journal's files failed: the commit may come back "
    "after a crash",
    "commit_refused": "SQLite refused a commit, and rolled it back",
    "rollback_failed": "not even the rollback of a failed commit succeeded",
    "ownership_lost": "another process has taken the journal over",
    "writer_did_other_work": "the journal's writer erased, trimmed or compacted between two "
    "batches",
    "row_there_already": "a row that was to be written was in long-term memory already: it is not "
    "doubled",
    "uncertain_write_undone": "a write to long-term memory failed half way: the table goes back "
    "to what is on disk",
    "doubtful_add_merged": "rows that may be there already are merged and not just added",
    "queued_rows_dropped": "rows that were queued are of a user who is being forgotten",
    "long_term_failed": "LanceDB or the file system under it raised",
    "table_put_aside": "a table of long-term memory is damaged, and was put aside",
    # the runtime
    "tail_flushed": "what a session of an earlier run had not handed over is flushed",
    "drain_timed_out": "closing took too long: what waits is given up, and what is in the journal "
    "goes on later",
    "erasure_resumed": "a start found a note of something that was being forgotten",
    "erasure_uncertain": "it is uncertain whether the journal has forgotten: it is asked again",
    "erasure_retried": "files could not be rewritten for an erasure: it is tried again",
}
"""Every probe, and what happens there."""

_observers: tuple[Counter[str], ...] = ()


def probe(name: str) -> None:
    """Say that this branch was taken; `name` is one of `PROBES`."""
    for counts in _observers:
        counts[name] += 1


@contextmanager
def count_probes() -> Iterator[Counter[str]]:
    """How often each probe is reached meanwhile, by whatever runs in this process.

    One that is not reached counts 0.
    """
    global _observers  # noqa: PLW0603  # one look at a global is all that a probe may cost
    counts: Counter[str] = Counter()
    _observers = (*_observers, counts)
    try:
        yield counts
    finally:
        _observers = tuple(one for one in _observers if one is not counts)


@contextmanager
def ignore_probes() -> Iterator[None]:
    """Meanwhile nobody observes: what runs now is not what is tested."""
    global _observers  # noqa: PLW0603
    observers, _observers = _observers, ()
    try:
        yield
    finally:
        _observers = observers
