"""Background jobs: lanes with bounded concurrency, retry with back-off and jitter, dead letters.

A job is a row in the log, written with the records that caused it, so it outlives the process: at
start the runtime hands the rows it finds back to `submit`. A lane's handler returns what the job
came to, either a message for the job's actor (which then journals the result and the job's end
together) or records to write; only when that is durable is the job gone. A handler may therefore
run more than once, never less, and must be idempotent.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import msgspec

from remora.errors import ReentrantAsk
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.guard import guarded_call
from remora.runtime.log import (
    DeadLetterRetried,
    Job,
    JobDeadLettered,
    JobDone,
    JobRetried,
    Log,
    Write,
)
from remora.runtime.probes import probe
from remora.runtime.promise import Promise, new_promise

__all__ = [
    "Handler",
    "JobAttempt",
    "JobResult",
    "Lane",
    "LaneStatistics",
    "RetryPolicy",
    "Supervisor",
    "SupervisorStatistics",
    "commit_records",
]

_logger = get_logger("remora.supervisor")
_working_for: ContextVar[Hashable | None] = ContextVar("remora_working_for", default=None)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed job runs again: `backoff_s`, doubled at each failure, plus up to `jitter` of
    it, at random.
    """

    max_attempts: int = 6
    backoff_s: float = 0.5
    max_backoff_s: float = 60.0
    jitter: float = 0.5

    def delay_s(self, attempts: int, rng: random.Random) -> float:
        """Seconds to wait after the given number of failures."""
        doublings = min(
            attempts - 1, 64
        )  # a job that is tried for days has more attempts than a float has exponents
        base: float = min(self.backoff_s * 2.0**doublings, self.max_backoff_s)
        return base * (1 + self.jitter * rng.random())


class JobAttempt(msgspec.Struct, frozen=True):
    """What a handler is given.

    Attributes:
        job: the job.
        last: no further attempt will follow.
        expedited: whoever waits for it can wait no longer: take the quick way.
    """

    job: Job
    last: bool
    expedited: bool


class JobResult(msgspec.Struct, frozen=True):
    """What a job came to.

    A message for its actor, or records for the log (the job's end is added to them).
    """

    message: Any = None
    records: Sequence[Any] = ()


Handler = Callable[[JobAttempt], Awaitable[JobResult]]


async def commit_records(log: Log, records: Sequence[Any]) -> None:
    """Write records of no actor's turn, and return when they are durable.

    Raises:
        CommitFailed: nothing of it is stored.
        OutcomeUnknown: the commit's fate is uncertain.
    """
    promise = new_promise()

    def settled(_: Write, error: Exception | None) -> None:
        if error is None:
            promise.resolve(None)
        else:
            promise.reject(error)

    log.write(Write(records, settled))
    await promise.wait()


class LaneStatistics(msgspec.Struct, frozen=True):
    """Counters of one lane since start, and what waits there."""

    waiting: int
    delayed: int
    running: int
    done: int
    retried: int
    dead_lettered: int


class SupervisorStatistics(msgspec.Struct, frozen=True):
    """All lanes, by name."""

    lanes: dict[str, LaneStatistics]


class Lane:
    """A kind of job, and the tasks that work on it."""

    def __init__(
        self, name: str, handler: Handler, *, concurrency: int, retry: RetryPolicy
    ) -> None:
        self.name = name
        self.handler = handler
        self.concurrency = concurrency
        self.retry = retry
        self.queue: deque[Job] = deque()
        self.delayed: list[tuple[float, int, Job]] = []
        self.event = anyio.Event()
        self.running = self.done = self.retried = self.dead_lettered = 0

    def statistics(self) -> LaneStatistics:
        """Counters."""
        return LaneStatistics(
            len(self.queue),
            len(self.delayed),
            self.running,
            self.done,
            self.retried,
            self.dead_lettered,
        )


class Supervisor:
    """Runs jobs until their effects are durable.

    Args:
        log: where a job's failures and end are written.
        tell: delivers a control message to an actor and returns when its records are durable.
        clock: for back-off.
        rng: for jitter.
    """

    def __init__(
        self,
        log: Log,
        tell: Callable[[Hashable, Any], Awaitable[Any]],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._log = log
        self._tell = tell
        self._clock = clock
        self._rng = rng
        self._lanes: dict[str, Lane] = {}
        self._known: dict[str, Job] = {}  # every job that is queued, delayed or running
        self._cancelled: set[str] = set()
        self._expedited: set[str] = set()
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._outstanding: dict[Hashable, int] = {}
        self._settling: dict[Hashable, list[Promise]] = {}
        self._awaited: dict[str, list[Promise]] = {}
        self._timer_event = anyio.Event()
        self._ticket = 0
        self._abandoned: Exception | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    def add_lane(self, lane: Lane) -> None:
        """Register a lane; before `start`."""
        self._lanes[lane.name] = lane

    # -- intake ------------------------------------------------------------------------------------

    def submit(self, jobs: Iterable[Job]) -> None:
        """Take jobs whose rows are durable. A job that is known already is not taken twice."""
        for job in jobs:
            if (
                job.id in self._known or job.lane not in self._lanes
            ):  # a lane that is switched off: its jobs keep in the log
                continue
            self._known[job.id] = job
            self._outstanding[job.key] = self._outstanding.get(job.key, 0) + 1
            lane = self._lanes[job.lane]
            wait_s = job.not_before - self._clock.time() if job.not_before else 0.0
            if job.resumed:
                probe("job_resumed")
            if wait_s > 0:
                probe("job_resumed_in_backoff")
                self._delay(lane, job, wait_s)
            else:
                lane.queue.append(job)
                lane.event.set()

    async def retry_dead_letters(self, dead: Sequence[Job]) -> None:
        """Have dead letters run again, as if they had never failed; returns when that is durable.

        Raises:
            CommitFailed: they are as dead as before.
            OutcomeUnknown: they may run again, now or after the next start.
            ReentrantAsk: called from within a job of the same actor.
        """
        for job in dead:
            await self.wait_for_job(job.id)  # its burial is durable before its place is free
        await commit_records(self._log, [DeadLetterRetried(job.id) for job in dead])
        probe("job_revived")
        self.submit(
            msgspec.structs.replace(job, attempts=0, not_before=0.0, resumed=True, dead=False)
            for job in dead
        )

    def cancel(self, ids: Iterable[str]) -> None:
        """Forget jobs that their actor has made pointless (and whose rows it has removed)."""
        for id_ in ids:
            job = self._known.get(id_)
            if job is None:
                continue
            self._cancelled.add(id_)
            if scope := self._scopes.get(id_):
                probe("job_cancelled_running")
                scope.cancel()
            elif self._pull(job):
                self._finish(job)
            else:
                probe("job_cancelled_while_recorded")

    async def cancel_matching(self, matches: Callable[[Hashable], bool]) -> int:
        """Cancel the jobs of these actors; returns how many, when none of them runs.

        Their rows are the caller's business.

        Raises:
            ReentrantAsk: called from within one of them.
        """
        ids = [job.id for job in self._known.values() if matches(job.key)]
        self.cancel(ids)
        for id_ in ids:
            await self.wait_for_job(id_)
        return len(ids)

    def expedite(self, ids: Iterable[str]) -> None:
        """Run these at once, the quick way.

        The present attempt is given up, a back-off cut short.
        """
        for id_ in ids:
            job = self._known.get(id_)
            if job is None or id_ in self._expedited:
                continue
            self._expedited.add(id_)
            lane = self._lanes[job.lane]
            if scope := self._scopes.get(id_):
                probe("job_expedited_running")
                scope.cancel()
            elif self._pull(job):
                if self._tasks is not None:  # not behind those that hold every place of the lane
                    self._tasks.start_soon(
                        self._attempt, lane, self._known[id_], name=f"remora.{lane.name}.expedited"
                    )
                else:
                    lane.queue.appendleft(job)
                    lane.event.set()

    def _pull(self, job: Job) -> bool:
        """Take a job out of its lane's queue or its back-off; False if it is in neither."""
        lane = self._lanes[job.lane]
        queued = next((one for one in lane.queue if one.id == job.id), None)
        if queued is not None:
            probe("job_pulled_from_queue")
            lane.queue.remove(queued)
            return True
        kept = [entry for entry in lane.delayed if entry[2].id != job.id]
        found = len(kept) < len(lane.delayed)
        if found:
            probe("job_pulled_from_backoff")
            heapq.heapify(kept)
            lane.delayed = kept
        return found

    @staticmethod
    def in_a_job() -> bool:
        """Whether the caller is one of the supervisor's own jobs."""
        return _working_for.get() is not None

    async def settle(self, key: Hashable) -> None:
        """Return when no job of `key` is queued, delayed or running (dead letters do not count).

        Raises:
            ReentrantAsk: called from within one of these jobs.
        """
        if _working_for.get() == key:
            raise ReentrantAsk(
                f"a background job of {key!r} waits for {key!r} to settle, which waits for that job"
            )
        while self._outstanding.get(key):
            if self._abandoned is not None:
                raise self._abandoned
            promise = new_promise()
            self._settling.setdefault(key, []).append(promise)
            await promise.wait()

    async def wait_for_job(self, id_: str) -> None:
        """Return when this job is neither queued, delayed nor running: it is done, cancelled, or a
        dead letter.

        Raises:
            ReentrantAsk: called from within a job of the same actor, which may be that job.
        """
        job = self._known.get(id_)
        if job is None:
            return
        if _working_for.get() == job.key:
            raise ReentrantAsk(
                f"a background job of {job.key!r} waits for another of its own, or for itself"
            )
        if self._abandoned is not None:
            raise self._abandoned
        promise = new_promise()
        self._awaited.setdefault(id_, []).append(promise)
        try:
            await promise.wait()
        finally:
            if waiting := self._awaited.get(
                id_
            ):  # this waiter gave up, so that others' promises stay
                waiting.remove(promise)
                if not waiting:
                    del self._awaited[id_]

    async def drain_all(self) -> None:
        """Return when no job of any actor is queued, delayed or running."""
        while self._outstanding:
            await self.settle(next(iter(self._outstanding)))

    # -- work --------------------------------------------------------------------------------------

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the workers.

        They end when the task group is cancelled, and their jobs stay in the log.
        """
        self._tasks = tasks
        for lane in self._lanes.values():
            for number in range(lane.concurrency):
                tasks.start_soon(self._work, lane, name=f"remora.{lane.name}.{number}")
        tasks.start_soon(self._timer, name="remora.supervisor.timer")

    async def _work(self, lane: Lane) -> None:
        while True:
            if not lane.queue:
                if lane.event.is_set():
                    lane.event = anyio.Event()
                await lane.event.wait()
                continue
            job = lane.queue.popleft()
            lane.running += 1
            try:
                await self._attempt(lane, job)
            finally:
                lane.running -= 1

    async def _attempt(self, lane: Lane, job: Job) -> None:
        try:
            await self._try(lane, job)
        except Exception:
            # a bug of ours must not take the lane's place along, or the runtime; the job is tried
            # again
            probe("attempt_broke_off")
            _logger.exception("attempt_broke_off", job=job.id, lane=lane.name)
            self._delay(lane, job, lane.retry.max_backoff_s)

    async def _try(self, lane: Lane, job: Job) -> None:
        if job.id in self._cancelled:
            self._finish(job)
            return
        attempt = JobAttempt(
            job, job.attempts + 1 >= lane.retry.max_attempts, job.id in self._expedited
        )
        token = _working_for.set(job.key)
        try:
            with anyio.CancelScope() as scope:
                self._scopes[job.id] = scope
                verdict = await guarded_call(lane.handler, attempt)
        except Exception as e:
            self._scopes.pop(job.id, None)
            await self._failed(lane, attempt, e, last=attempt.last)
            return
        finally:
            _working_for.reset(token)
            self._scopes.pop(job.id, None)
        if scope.cancelled_caught:
            if job.id in self._cancelled:
                self._finish(job)
            else:  # expedited: once more, at once
                lane.queue.appendleft(job)
                lane.event.set()
            return
        try:
            if verdict.message is not None:
                await self._tell(job.key, verdict.message)
            else:
                await commit_records(self._log, (*verdict.records, JobDone(job.id)))
        except Exception as e:
            probe("job_end_unrecorded")
            # The work is done but its end is not recorded: do it again, which it must bear.
            await self._failed(lane, attempt, e, last=False)
            return
        lane.done += 1
        self._finish(job)

    async def _failed(
        self, lane: Lane, attempt: JobAttempt, error: Exception, *, last: bool
    ) -> None:
        job = attempt.job
        attempts = job.attempts + 1
        text = f"{type(error).__name__}: {error}"
        if job.id in self._cancelled:
            self._finish(job)
            return
        # What is merely away comes back; what is broken does not.
        last = last and not getattr(error, "retryable", False)
        wait_s = lane.retry.delay_s(attempts, self._rng)
        if last:
            record: Any = JobDeadLettered(job.id, attempts, text)
        else:
            probe("job_retried")
            lane.retried += 1
            _logger.warning(
                "job_failed",
                job=job.id,
                lane=lane.name,
                attempts=attempts,
                retry_s=wait_s,
                error=text,
            )
            record = JobRetried(job.id, attempts, self._clock.time() + wait_s, text)
        try:
            await commit_records(self._log, (record,))
        except Exception:
            probe("job_failure_unrecorded")
            _logger.exception("job_failure_not_recorded", job=job.id)
            # a dead letter that nobody could find would be lost until the next start: it is tried
            # once more
            last = False
        if last:
            probe("job_buried")
            lane.dead_lettered += 1
            _logger.error("job_buried", job=job.id, lane=lane.name, attempts=attempts, error=text)
        if last or job.id in self._cancelled:
            self._finish(job)
        else:
            again = msgspec.structs.replace(job, attempts=attempts, resumed=True, error=text)
            self._known[job.id] = again
            if (
                job.id in self._expedited and not attempt.expedited
            ):  # asked for while this failure was being recorded
                lane.queue.appendleft(again)
                lane.event.set()
            else:
                self._delay(lane, again, wait_s)

    def _finish(self, job: Job) -> None:
        self._known.pop(job.id, None)
        self._cancelled.discard(job.id)
        self._expedited.discard(job.id)
        for promise in self._awaited.pop(job.id, ()):
            promise.resolve(None)
        left = self._outstanding[job.key] - 1
        if left:
            self._outstanding[job.key] = left
            return
        del self._outstanding[job.key]
        for promise in self._settling.pop(job.key, ()):
            promise.resolve(None)

    def abandon(self, error: Exception) -> None:
        """Fail whoever waits for jobs to settle; they stay in the log."""
        self._abandoned = error
        for promises in (*self._settling.values(), *self._awaited.values()):
            for promise in promises:
                promise.reject(error)
        self._settling.clear()
        self._awaited.clear()

    # -- back-off ----------------------------------------------------------------------------------

    def _delay(self, lane: Lane, job: Job, wait_s: float) -> None:
        self._ticket += 1
        heapq.heappush(lane.delayed, (self._clock.monotonic() + wait_s, self._ticket, job))
        self._timer_event.set()

    async def _timer(self) -> None:
        while True:
            self._timer_event = anyio.Event()
            now = self._clock.monotonic()
            soonest = None
            for lane in self._lanes.values():
                while lane.delayed and lane.delayed[0][0] <= now:
                    lane.queue.append(heapq.heappop(lane.delayed)[2])
                    lane.event.set()
                if lane.delayed and (soonest is None or lane.delayed[0][0] < soonest):
                    soonest = lane.delayed[0][0]
            if soonest is None:
                await self._timer_event.wait()
            else:
                event = self._timer_event
                async with anyio.create_task_group() as race:
                    race.start_soon(self._until, soonest - now, race.cancel_scope)
                    await event.wait()
                    race.cancel_scope.cancel()

    async def _until(self, seconds: float, scope: anyio.CancelScope) -> None:
        await self._clock.sleep(seconds)
        scope.cancel()

    def statistics(self) -> SupervisorStatistics:
        """Every lane's counters."""
        return SupervisorStatistics({name: lane.statistics() for name, lane in self._lanes.items()})
