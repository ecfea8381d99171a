"""Probes: named places in rare branches, so that a test can tell whether it was there.

A test of schedules and faults that passes proves nothing about a branch that it never took. So the
branches that only a race, a fault or a crash takes have a name, and a suite that counts them fails
if one was never reached. The idea is FoundationDB's (its coverage macros: Zhou et al., SIGMOD
2021, section 4).

While nobody counts, a probe reads one module variable. None is on the path of an append or a load
that meets nothing rare. Each folder that has probes lists them in its `probes.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_counters: tuple[Counter[str], ...] = ()


def probe(name: str) -> None:
    """Count that this branch was taken; `name` is in the folder's `PROBES`."""
    for counts in _counters:
        counts[name] += 1


@contextmanager
def count_probes() -> Iterator[Counter[str]]:
    """Count how often each probe is reached while this is open, by any code in this process."""
    global _counters  # noqa: PLW0603  # a probe may cost no more than reading one global
    counts: Counter[str] = Counter()
    _counters = (*_counters, counts)
    try:
        yield counts
    finally:
        _counters = tuple(one for one in _counters if one is not counts)


@contextmanager
def ignore_probes() -> Iterator[None]:
    """Count nothing while this is open: the code that runs is not what is tested."""
    global _counters  # noqa: PLW0603
    counters, _counters = _counters, ()
    try:
        yield
    finally:
        _counters = counters


PROBES: Mapping[str, str] = {
    # one cell
    "records_not_applied": "applying a decision's records raised: the state is restored",
    "fenced_write_acknowledged": "a write that was fenced was acknowledged by the log all the same",
    "lookup_after_commit": "a lookup waited for the cell's own writes, which are durable now",
    "gate_broken": "a commit failed, or a state broke: all that waits behind the gate is void",
    "write_fenced": "a write behind a failed one is fenced, so that it is not stored without it",
    "deadline_behind_gate": "a deadline passed between handling and commit: outcome unknown",
    "mailbox_full_of_messages": "a mailbox holds as many messages as it may",
    "mailbox_full_of_bytes": "a mailbox holds as many bytes as it may",
    # messages
    "quarantine_refused": "a message came for an actor in quarantine",
    "mailbox_refused": "a full mailbox refused a message: nothing ran",
    "sender_parked": "a mailbox was full, and its sender waits for room",
    "parked_sender_admitted": "there is room again for a message whose sender waited for it",
    "sender_gone_before_handling": "a queued message's sender gave up: it is never handled",
    "message_not_ready": "later messages wait behind one of which something is being computed",
    "quantum_spent": "a cell had more messages than one round takes, and queues again",
    "deadline_in_mailbox": "a message's deadline passed in the mailbox: it is never handled",
    "lookup_started": "a message needs a cold record: the cell is suspended, its message first",
    "lookup_failed": "the log could not answer a lookup",
    # activation
    "activation_joined": "a message came for an actor that is being activated for another one",
    "activation_waited_for_room": "no cell could leave memory, so an activation waits",
    "image_unreadable": "an actor's image could not be read: its messages fail; the next retries",
    "cell_reloaded": "a cell that lost its state was restored from the log, in place",
    "activated_amid_jobs": "an actor was activated or restored while jobs of it were in the log",
    "lost_actor_reread": "an actor that was lost is tried again, for the jobs it may have left",
    "quarantine_entered": "an actor failed too often in a short time, and rests",
    "quarantine_left": "an actor has rested, and is tried again",
    # leaving memory
    "shed_by_count": "too many actors are in memory: those that were idle longest leave",
    "shed_by_bytes": "actors take too many bytes: those that were idle longest leave",
    "passivation_found_used": "a cell that was to leave memory had been used since it was filed",
    "passivation_found_busy": "a cell that was to leave memory was busy",
    "passivation_wrote_first": "an idle actor writes what it put off before it leaves memory",
    "actor_barred": "a message came for an actor that must not be activated: it is being erased",
    "eviction_waited": "an actor that must leave memory has a commit in progress",
    # background jobs
    "job_resumed": "a job was found in the log: after a crash, an unknown commit, a retry",
    "job_resumed_in_backoff": "a job that was found in the log must not run yet",
    "dead_letter_retried": "a dead letter runs again",
    "job_cancelled_running": "a job was cancelled while its handler ran",
    "job_cancelled_while_recorded": "a job was cancelled while its end or failure was recorded",
    "job_expedited_running": "a job that was expedited gives its present attempt up",
    "gathered_jobs_begin": "jobs that waited to be run together begin",
    "jobs_run_alone": "the work of several jobs failed before it changed anything: each runs alone",
    "job_pulled_from_queue": "a job was cancelled or expedited while it waited in its queue",
    "stalled_jobs_resumed": "a store works again: the jobs that it refused wait no longer",
    "job_pulled_from_line": "a job was cancelled or expedited while it waited behind another",
    "job_pulled_from_backoff": "a job was cancelled or expedited while it waited to be retried",
    "attempt_ended_by_defect": "a defect of the supervisor ended an attempt; the queue goes on",
    "job_end_unrecorded": "a job's work is done; its end could not be recorded, and is tried again",
    "job_retried": "a job failed, and is tried again later",
    "job_failure_unrecorded": "the log refused the record of a job's failure",
    "job_dead_lettered": "a job failed too often: it is a dead letter",
}
"""The kernel's probes, and when each is reached."""
