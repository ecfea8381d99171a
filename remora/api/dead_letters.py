"""Dead letters: background jobs that were given up, and what an operator can do about them.

A dead letter is a row of the journal. It blocks nothing: its messages load as before, and are in
the history. It can be retried, when its cause is removed, or dropped, when its effect is no longer
wanted; both are durable, and neither loses a message. What dropping does depends on the job, and is
written to the journal, so that no check reports the gap as damage:

=============  ===================================================================================
job            when it is dropped
=============  ===================================================================================
flush          its messages will not be in long-term memory; rows that it wrote are removed
flush of a     the same for the entry
summary entry
blocks         nothing: the session's next such job shows its blocks what they have not seen
record         the memory stays in the journal; recall finds it once a repair has written its row
prune          nothing: the next round prunes
synopsis       nothing: the next reader starts another job
summarize      cannot be dropped: its messages would wait for their summary, and block compaction
unflush        cannot be dropped: recall would find deleted messages
=============  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import anyio

from remora.errors import InvalidInput, NoDeadLetter
from remora.ids import SessionKey, validate_id
from remora.logging import get_logger
from remora.runtime.jobs import DeadLetterRetried, Job, JobDone
from remora.runtime.log import commit_records
from remora.runtime.supervisor import Supervisor
from remora.services.arguments import MAX_IDS, collect
from remora.storage.ports import Journal
from remora.storage.records import (
    DiscardSpec,
    EntryFlushSpec,
    FlushSpec,
    JobsStarted,
    Pruned,
    SummarizeSpec,
    UnflushSpec,
)

_logger = get_logger(__name__)


class DeadLetters:
    """The dead letters of one journal.

    Args:
        journal: has their rows.
        supervisor: runs retried jobs; None if they are to wait for a runtime to open the journal.
    """

    def __init__(self, journal: Journal, supervisor: Supervisor | None = None) -> None:
        self._journal = journal
        self._supervisor = supervisor
        self._lock = anyio.Lock()

    async def jobs(self) -> list[Job]:
        """All of them, oldest first."""
        return list(await self._journal.jobs(dead=True))

    async def retry(self, ids: Sequence[str] | None = None) -> int:
        """Run them again, all or those of `ids`, as if they had never failed; returns how many.

        Raises:
            NoDeadLetter: one of `ids` is not a dead letter; nothing was changed.
            CommitFailed, OutcomeUnknown: see `Session.append`; simply retry.
        """
        async with self._lock:
            dead = await self._select(ids)
            if dead and self._supervisor is not None:
                await self._supervisor.retry_dead_letters(dead)
            elif dead:
                await commit_records(self._journal, [DeadLetterRetried(job.id) for job in dead])
        for job in dead:
            _logger.info("dead_letter_retried", job=job.id, queue=job.queue)
        return len(dead)

    async def drop(self, ids: Sequence[str]) -> int:
        """Drop these in one commit, all or none; returns how many.

        Raises:
            NoDeadLetter: one of `ids` is not a dead letter; nothing was changed.
            InvalidInput: one of them cannot be dropped, only retried; nothing was changed.
            CommitFailed, OutcomeUnknown: see `Session.append`.
        """
        async with self._lock:
            dead = await self._select(ids)
            cleanups = [job for job in map(_cleanup_job, dead) if job is not None]
            if dead:
                await commit_records(
                    self._journal, [record for job in dead for record in _drop_records(job)]
                )
            if self._supervisor is not None:
                self._supervisor.dead.drop(job.id for job in dead)
                self._supervisor.submit(cleanups)
        for job in dead:
            _logger.warning("dead_letter_dropped", job=job.id, queue=job.queue, error=job.error)
        return len(dead)

    async def _select(self, ids: Sequence[str] | None) -> list[Job]:
        wanted = None if ids is None else collect(ids, "ids", validate_id, most=MAX_IDS)
        dead = await self._journal.jobs(dead=True)
        return list(dead) if wanted is None else pick_dead_letters(wanted, dead)


def pick_dead_letters(ids: Iterable[str], dead: Iterable[Job]) -> list[Job]:
    """Return the dead letters of these ids, each once, in the order of the ids.

    Raises:
        NoDeadLetter: none has one of them.
    """
    by_id = {job.id: job for job in dead}
    wanted = dict.fromkeys(ids)
    if unknown := [id_ for id_ in wanted if id_ not in by_id]:
        raise no_dead_letter(unknown)
    return [by_id[id_] for id_ in wanted]


def no_dead_letter(unknown: Sequence[str]) -> NoDeadLetter:
    """The error for ids that no dead letter has; at least one."""
    others = f", nor {len(unknown) - 1} others of these ids" if len(unknown) > 1 else ""
    return NoDeadLetter(
        f"there is no dead letter {unknown[0]!r}{others}: it was retried, done, dropped, or "
        "never failed; nothing was changed",
        ids=tuple(unknown),
    )


def check_droppable(job: Job) -> None:
    """Check that a dead letter may be dropped.

    Raises:
        InvalidInput: it can only be retried.
    """
    match job.payload:
        case SummarizeSpec():
            raise InvalidInput(
                f"{job.id} cannot be dropped: its messages would wait for their summary forever; "
                f"remove the cause of its failure ({job.error}) and retry it; nothing was changed"
            )
        case UnflushSpec():
            raise InvalidInput(
                f"{job.id} cannot be dropped: messages that were deleted would still be found; "
                f"remove the cause of its failure ({job.error}) and retry it; nothing was changed"
            )
        case _:
            pass


def _drop_records(job: Job) -> list[Any]:
    """The records that end the job without its effect."""
    check_droppable(job)
    match job.payload:
        case FlushSpec(sid=sid, first=first, through=through):
            assert isinstance(job.key, SessionKey)
            cleanup = _cleanup_job(job)
            assert cleanup is not None
            return [
                Pruned(job.key, tuple(range(first, through + 1))),
                JobsStarted(sid, (cleanup,)),
                JobDone(job.id),
            ]
        case EntryFlushSpec(entry=entry):
            assert isinstance(job.key, SessionKey)
            return [Pruned(job.key, (), (entry.through,)), JobDone(job.id)]
        case _:
            return [JobDone(job.id)]


def _cleanup_job(job: Job) -> Job | None:
    """A job that removes the rows that the dropped one may have written."""
    if not isinstance(job.payload, FlushSpec):
        return None
    spec = DiscardSpec(job.payload.sid, tuple(range(job.payload.first, job.payload.through + 1)))
    return Job(f"discard-{job.id}", job.queue, job.key, spec)
