"""Dead letters: background jobs that failed for good, and what an operator can do about them.

A dead letter is a row of the journal. It blocks nobody: its messages load as they did, and the
history has them. It is retried, when what it failed of was mended, or dropped, when nobody wants
its effect any longer; both are durable, and neither loses a message. What dropping means depends on
the job, and the journal says it, so that no check ever takes the gap for damage:

=============
====================================================================================================
a job that     when it is dropped =============
====================================================================================================
flushes        its messages are not in long-term memory, and never will be; rows that it had written
are removed flushes a      likewise summary entry shows blocks   nothing: the session's next such
job shows its blocks what they have not seen records        what was remembered stays in the
journal; recall does not find it until a repair writes it again prunes         nothing: the next
round looks anew synopsis       nothing: the next reader asks for another summarizes     cannot be
dropped: its messages would wait for their summary for ever, and no later fold could begin unflushes
cannot be dropped: recall would find messages that were deleted =============
====================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from remora.errors import InvalidInput, NoDeadLetter
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.runtime.log import DeadLetterRetried, Job, JobDone
from remora.runtime.supervisor import Supervisor, commit_records
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

__all__ = ["DeadLetters"]

_logger = get_logger("remora.dead_letters")


class DeadLetters:
    """The dead letters of one journal.

    Args:
        journal: where they are.
        supervisor: runs those that are retried; None where nothing runs, and they wait for a
            runtime to open the journal.
    """

    def __init__(self, journal: Journal, supervisor: Supervisor | None = None) -> None:
        self._journal = journal
        self._supervisor = supervisor
        self._lock = anyio.Lock()

    async def jobs(self) -> list[Job]:
        """All of them, oldest first."""
        return list(await self._journal.jobs(dead=True))

    async def retry(self, ids: Sequence[str] | None = None) -> int:
        """Have them run again, or those of `ids`, as if they had never failed; returns how many.

        Raises:
            NoDeadLetter: one of `ids` is none; nothing was changed.
            CommitFailed, OutcomeUnknown: see `Session.append`; a second try does no harm.
        """
        async with self._lock:
            dead = await self._select(ids)
            if dead and self._supervisor is not None:
                await self._supervisor.retry_dead_letters(dead)
            elif dead:
                await commit_records(self._journal, [DeadLetterRetried(job.id) for job in dead])
        for job in dead:
            _logger.info("dead_letter_retried", job=job.id, lane=job.lane)
        return len(dead)

    async def drop(self, ids: Sequence[str]) -> int:
        """Give these up for good: all of them, in one commit, or none; returns how many.

        Raises:
            NoDeadLetter: one of `ids` is none; nothing was changed.
            InvalidInput: one of them cannot be dropped, only retried; nothing was changed.
            CommitFailed, OutcomeUnknown: see `Session.append`.
        """
        async with self._lock:
            dead = await self._select(ids)
            followers = [job for job in map(_cleanup_job, dead) if job is not None]
            if dead:
                await commit_records(
                    self._journal, [record for job in dead for record in _drop_records(job)]
                )
            if self._supervisor is not None:
                self._supervisor.submit(followers)
        for job in dead:
            _logger.warning("dead_letter_dropped", job=job.id, lane=job.lane, error=job.error)
        return len(dead)

    async def _select(self, ids: Sequence[str] | None) -> list[Job]:
        if isinstance(ids, str):
            raise InvalidInput(f"ids is a list of ids, not one id: [{ids!r}]; nothing was changed")
        dead = {job.id: job for job in await self._journal.jobs(dead=True)}
        if ids is None:
            return list(dead.values())
        unknown = tuple(id_ for id_ in dict.fromkeys(ids) if id_ not in dead)
        if unknown:
            raise NoDeadLetter(
                f"no dead letter is called {', '.join(unknown)}: it was retried, done or dropped "
                "meanwhile, or never died; "
                "nothing was changed",
                ids=unknown,
            )
        return [dead[id_] for id_ in dict.fromkeys(ids)]


def _drop_records(job: Job) -> list[Any]:
    """The records that say that nobody waits for the job's effect."""
    match job.payload:
        case SummarizeSpec():
            raise InvalidInput(
                f"{job.id} cannot be dropped: its messages would wait for their summary for ever; "
                "mend what it failed of "
                f"({job.error}), and retry it; nothing was changed"
            )
        case UnflushSpec():
            raise InvalidInput(
                f"{job.id} cannot be dropped: messages that were deleted would still be found; "
                "mend what it failed of "
                f"({job.error}), and retry it; nothing was changed"
            )
        case FlushSpec(sid=sid, first=first, through=through):
            assert isinstance(job.key, SessionKey)
            follower = _cleanup_job(job)
            assert follower is not None
            return [
                Pruned(job.key, tuple(range(first, through + 1))),
                JobsStarted(sid, (follower,)),
                JobDone(job.id),
            ]
        case EntryFlushSpec(entry=entry):
            assert isinstance(job.key, SessionKey)
            return [Pruned(job.key, (), (entry.through,)), JobDone(job.id)]
        case _:
            return [JobDone(job.id)]


def _cleanup_job(job: Job) -> Job | None:
    """What removes the rows that a dropped job may have written before it failed."""
    if not isinstance(job.payload, FlushSpec):
        return None
    spec = DiscardSpec(job.payload.sid, tuple(range(job.payload.first, job.payload.through + 1)))
    return Job(f"discard-{job.id}", job.lane, job.key, spec)
