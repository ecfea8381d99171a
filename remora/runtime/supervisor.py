"""Background jobs: queues with bounded concurrency, retry with back-off and jitter, dead letters.

A job is a row in the log, written with the records that caused it, so it survives the process: at
start the runtime submits the rows that it finds. A queue's handler returns the result: a message
for the job's actor, which journals the result and the job's end together, or records to write.
Only when that is durable the job is gone. So a handler may run more than once, never less, and
must be idempotent.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import msgspec

from remora.errors import CommitFailed, OutcomeUnknown, ReentrantAsk, StorageError
from remora.ids import words_of
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.concurrency import is_open
from remora.runtime.guard import call_guarded
from remora.runtime.jobs import (
    DeadJobs,
    DeadLetterRetried,
    Job,
    JobAttempt,
    JobDeadLettered,
    JobDone,
    JobQueue,
    JobResult,
    JobRetried,
    QueueStatistics,
)
from remora.runtime.log import Log, commit_records
from remora.runtime.meters import OutageLog
from remora.runtime.probes import probe
from remora.runtime.promise import Promise, new_promise
from remora.runtime.threads import in_background, with_process

_logger = get_logger(__name__)
_working_for: ContextVar[Hashable | None] = ContextVar("remora_working_for", default=None)


class SupervisorStatistics(msgspec.Struct, frozen=True):
    """Counters of all queues, by name."""

    queues: dict[str, QueueStatistics]


class Supervisor:
    """Runs jobs until their effects are durable.

    Args:
        log: where a job's failures and end are written.
        tell: sends a control message to an actor; returns when its records are durable.
        clock: for back-off.
        rng: for jitter.
        elsewhere: where jobs compute, if not here; see `compute_apart`.

    Attributes:
        dead: the dead letters that the log has.
        queues: by name.
    """

    def __init__(
        self,
        log: Log,
        tell: Callable[[Hashable, Any], Awaitable[Any]],
        clock: Clock,
        rng: random.Random,
        *,
        elsewhere: Callable[..., Any] | None = None,
    ) -> None:
        self.dead = DeadJobs()
        self._elsewhere = elsewhere
        self._log = log
        self._tell = tell
        self._clock = clock
        self._rng = rng
        self.queues: dict[str, JobQueue] = {}
        self._outages: dict[str, OutageLog] = {}  # by queue
        self._unrecorded = OutageLog(
            _logger,
            "job_failure_not_recorded",
            ended="job_failures_recorded_again",
            monotonic=clock.monotonic,
        )
        self._known: dict[str, Job] = {}  # every job that is queued, delayed or running
        self._cancelled: set[str] = set()
        self._expedited: set[str] = set()
        self._scopes: dict[str, anyio.CancelScope] = {}  # of running jobs
        self._ends: dict[str, JobResult] = {}  # of jobs whose work is done, and whose end is unsure
        self._job_counts: dict[Hashable, int] = {}  # of known jobs, by actor
        self._drain_waiters: dict[Hashable, list[Promise]] = {}
        self._job_waiters: dict[str, list[Promise]] = {}
        self._timer_event = anyio.Event()
        self._ticket = self._commits = 0
        self._committed_s = 0.0
        self._abandoned: Exception | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    def add_queue(self, queue: JobQueue) -> None:
        """Register a queue; before `start`."""
        self.queues[queue.name] = queue
        self._outages[queue.name] = OutageLog(
            _logger,
            "job_failed",
            ended="jobs_succeed_again",
            monotonic=self._clock.monotonic,
            level="warning",
        )

    # -- intake -----------------------------------------------------------------------------------

    def submit(self, jobs: Iterable[Job]) -> None:
        """Take jobs whose rows are durable; those that are known already are ignored."""
        for job in jobs:
            # The jobs of a queue that is switched off stay in the log.
            if job.id in self._known or job.queue not in self.queues:
                continue
            self._known[job.id] = job
            self._job_counts[job.key] = self._job_counts.get(job.key, 0) + 1
            queue = self.queues[job.queue]
            queue.note(job, self._clock.monotonic())
            gathered = len(queue.gathered)
            wait_s = job.not_before - self._clock.time() if job.not_before else 0.0
            if job.resumed:
                probe("job_resumed")
            if wait_s > 0:
                probe("job_resumed_in_backoff")
                self._delay(queue, job, wait_s)
            else:
                queue.push(job)
                if queue.gathered and not gathered:
                    self._timer_event.set()

    async def retry_dead_letters(self, dead: Sequence[Job]) -> None:
        """Run dead letters again, with no attempts counted; return when that is durable.

        Raises:
            CommitFailed: they are still dead letters.
            OutcomeUnknown: they may run again, now or after the next start.
            ReentrantAsk: called from a job of the same actor.
        """
        for job in dead:
            await self.wait_for_job(job.id)  # it is known until its dead letter is durable
        await commit_records(self._log, [DeadLetterRetried(job.id) for job in dead])
        probe("dead_letter_retried")
        self.dead.drop(job.id for job in dead)
        self.submit(
            msgspec.structs.replace(job, attempts=0, not_before=0.0, resumed=True, dead=False)
            for job in dead
        )

    def cancel(self, ids: Iterable[str]) -> None:
        """Forget jobs that their actor has made pointless, and whose rows it has removed."""
        for id_ in ids:
            job = self._known.get(id_)
            if job is None:
                self.dead.drop((id_,))
                continue
            self._cancelled.add(id_)
            if scope := self._scopes.get(id_):
                probe("job_cancelled_running")
                scope.cancel()
            elif self.queues[job.queue].pull(job):
                self._forget(job)
            else:
                probe("job_cancelled_while_recorded")

    async def cancel_matching(self, matches: Callable[[Hashable], bool]) -> int:
        """Cancel the jobs of the actors that match; the caller removes their rows.

        Returns:
            Their number, when none of them runs.

        Raises:
            ReentrantAsk: called from one of them.
        """
        ids = [job.id for job in self._known.values() if matches(job.key)]
        self.dead.drop_matching(matches)
        self.cancel(ids)
        for id_ in ids:
            await self.wait_for_job(id_)
        return len(ids)

    def begin_gathered(self) -> None:
        """Have jobs begin that wait for others to join them."""
        for queue in self.queues.values():
            queue.release()

    def expedite(self, ids: Iterable[str]) -> None:
        """Run jobs at once, the quick way: end a back-off, or an attempt that takes another way."""
        for id_ in ids:
            job = self._known.get(id_)
            if job is None or id_ in self._expedited:
                continue
            self._expedited.add(id_)
            queue = self.queues[job.queue]
            if scope := self._scopes.get(id_):
                if queue.hurries:
                    probe("job_expedited_running")
                    scope.cancel()
            elif queue.pull(job):
                if is_open(self._tasks):  # besides the queue's workers, which may all be busy
                    name = f"remora.{queue.name}.expedited"
                    self._tasks.start_soon(self._run_guarded, queue, self._known[id_], name=name)
                else:
                    queue.push_first(job)

    # -- waiting ----------------------------------------------------------------------------------

    @staticmethod
    def in_a_job() -> bool:
        """Return whether the caller is one of the supervisor's own jobs."""
        return _working_for.get() is not None

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the jobs that run; any thread may ask."""
        return tuple(self._scopes)

    def has_jobs(self, key: Hashable) -> bool:
        """Return whether the actor has a job queued, delayed or running."""
        return key in self._job_counts

    async def drain(self, key: Hashable) -> None:
        """Return when the actor has no job queued, delayed or running; dead letters do not count.

        Raises:
            ReentrantAsk: called from one of these jobs.
        """
        if _working_for.get() == key:
            raise ReentrantAsk(
                f"a background job of {words_of(key)} waits until it has no background job left"
            )
        with self._waited_for():
            while self._job_counts.get(key):
                if self._abandoned is not None:
                    raise self._abandoned
                promise = new_promise()
                self._drain_waiters.setdefault(key, []).append(promise)
                await promise.answer

    async def drain_all(self) -> None:
        """Return when no actor has a job queued, delayed or running."""
        with self._waited_for():
            while self._job_counts:
                await self.drain(next(iter(self._job_counts)))

    @contextmanager
    def _waited_for(self) -> Iterator[None]:
        """Jobs do not wait for each other during the body."""
        for queue in self.queues.values():
            queue.waited_for += 1
        self.begin_gathered()
        try:
            yield
        finally:
            for queue in self.queues.values():
                queue.waited_for -= 1

    async def wait_for_job(self, id_: str) -> None:
        """Return when this job is done, cancelled or a dead letter.

        Raises:
            ReentrantAsk: called from a job of the same actor, which may be that job.
        """
        job = self._known.get(id_)
        if job is None:
            return
        if _working_for.get() == job.key:
            raise ReentrantAsk(
                f"a background job of {words_of(job.key)} waits for another job of it, or itself"
            )
        if self._abandoned is not None:
            raise self._abandoned
        promise = new_promise()
        self._job_waiters.setdefault(id_, []).append(promise)
        self.begin_gathered()
        try:
            await promise.answer
        finally:
            if waiters := self._job_waiters.get(id_):  # this one gave up; the others still wait
                waiters.remove(promise)
                if not waiters:
                    del self._job_waiters[id_]

    # -- work -------------------------------------------------------------------------------------

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the workers; they end when the task group is cancelled. Jobs stay in the log."""
        self._tasks = tasks
        for queue in self.queues.values():
            for number in range(queue.concurrency):
                tasks.start_soon(self._work, queue, name=f"remora.{queue.name}.{number}")
        tasks.start_soon(self._timer, name="remora.supervisor.timer")

    async def _work(self, queue: JobQueue) -> None:
        while True:
            jobs = await queue.take()
            try:
                if len(jobs) == 1:
                    await self._run_guarded(queue, jobs[0])
                else:
                    queue.push_alone(await self._run_together(queue, jobs))
            finally:
                queue.end(jobs)

    async def _run_guarded(self, queue: JobQueue, job: Job) -> None:
        try:
            await self._run(queue, job)
        except Exception:  # a defect of the supervisor must not end the worker, or the runtime
            probe("attempt_ended_by_defect")
            _logger.exception("attempt_ended_by_defect", job=job.id, queue=queue.name)
            self._delay(queue, job, queue.retry.max_backoff_s)

    async def _run_together(self, queue: JobQueue, jobs: Sequence[Job]) -> Sequence[Job]:
        """Run jobs as one; returns those that are to run alone."""
        attempts = [JobAttempt(job, last=False, expedited=False) for job in jobs]
        if any(job.id in self._cancelled for job in jobs):
            return jobs
        try:
            results = await self._work_together(queue, attempts)
        except Exception as e:
            for attempt in attempts:
                await self._handle_failure(queue, attempt, e, last=False)
            return ()
        if results is None:
            return jobs
        ends = [JobDone(job.id) for job in jobs]
        try:
            await commit_records(self._log, [*(r for one in results for r in one.records), *ends])
        except Exception:  # `_run` records each end, or sees to it
            self._ends.update(zip([job.id for job in jobs], results, strict=True))
            return jobs
        queue.done += len(jobs)
        self._outages[queue.name].succeed()
        for job in jobs:
            self._forget(job)
        return ()

    async def _work_together(
        self, queue: JobQueue, attempts: Sequence[JobAttempt]
    ) -> Sequence[JobResult] | None:
        """Do the work of several jobs once; None if nothing was done, and each is to run alone."""
        assert queue.together is not None
        ids = [attempt.job.id for attempt in attempts]
        begun = False

        def begin() -> None:
            nonlocal begun
            if scope.cancel_called:
                raise RuntimeError("one of the jobs is cancelled")
            begun = True
            for id_ in ids:  # who cancels one of them now waits for the end
                del self._scopes[id_]

        token = _working_for.set(attempts[0].job.key)
        try:
            with anyio.CancelScope() as scope, in_background(), with_process(self._elsewhere):
                self._scopes.update(dict.fromkeys(ids, scope))
                return await call_guarded(queue.together.work, attempts, begin)
        except Exception as e:
            if begun:
                raise
            probe("jobs_run_alone")
            _logger.debug("jobs_run_alone", jobs=len(ids), error=f"{type(e).__name__}: {e}")
        finally:
            _working_for.reset(token)
            for id_ in ids:
                self._scopes.pop(id_, None)
        return None

    async def _run(self, queue: JobQueue, job: Job) -> None:
        if job.id in self._cancelled:
            self._forget(job)
            return
        last = job.attempts + 1 >= queue.retry.max_attempts
        attempt = JobAttempt(job, last, job.id in self._expedited)
        result = self._ends.get(job.id)
        if result is None:
            result = await self._work_on(queue, attempt, last=last)
        if result is None:
            return
        try:
            await self._record_result(job, result)
        except Exception as e:
            probe("job_end_unrecorded")
            if isinstance(e, OutcomeUnknown):
                # The log may hold the end: were the work begun again and cut off, nobody would
                # finish it. So only its end is recorded again.
                self._ends[job.id] = result
            elif not isinstance(e, StorageError | CommitFailed):
                self._ends.pop(job.id, None)
            await self._handle_failure(queue, attempt, e, last=False)
            return
        queue.done += 1
        self._outages[queue.name].succeed()
        self._forget(job)

    async def _work_on(
        self, queue: JobQueue, attempt: JobAttempt, *, last: bool
    ) -> JobResult | None:
        """Do a job's work once; None if there is nothing to record, and the job was seen to."""
        job = attempt.job
        token = _working_for.set(job.key)
        try:
            # somebody waits for an expedited job: it computes at once
            place = nullcontext() if attempt.expedited else in_background()
            with anyio.CancelScope() as scope, place, with_process(self._elsewhere):
                self._scopes[job.id] = scope
                return await call_guarded(queue.handler, attempt)
        except Exception as e:
            self._scopes.pop(job.id, None)
            await self._handle_failure(queue, attempt, e, last=last)
            return None
        finally:
            _working_for.reset(token)
            self._scopes.pop(job.id, None)
        if job.id in self._cancelled:
            self._forget(job)
        else:  # expedited: once more, at once
            queue.push_first(job)
        return None

    async def _record_result(self, job: Job, result: JobResult) -> None:
        if result.message is not None:
            await self._tell(job.key, result.message)
        else:
            await commit_records(self._log, (*result.records, JobDone(job.id)))

    async def _handle_failure(
        self, queue: JobQueue, attempt: JobAttempt, error: Exception, *, last: bool
    ) -> None:
        job = attempt.job
        attempts = job.attempts + 1
        text = f"{type(error).__name__}: {error}"
        if job.id in self._cancelled:
            self._forget(job)
            return
        # A service that is merely unavailable comes back; other failures may not.
        last = last and not getattr(error, "retryable", False)
        wait_s = queue.retry.delay_s(attempts, self._rng)
        stalled = isinstance(error, StorageError | CommitFailed | OutcomeUnknown)
        if stalled:
            wait_s = queue.stall(job, wait_s)
        else:
            queue.stalled.pop(job.id, None)
        fields = {
            "job": job.id,
            "actor": job.key,
            "queue": queue.name,
            "attempts": attempts,
            "error": text,
        }
        record: JobDeadLettered | JobRetried
        if last:
            record = JobDeadLettered(job.id, attempts, text)
        else:
            probe("job_retried")
            queue.retried += 1
            if stalled:
                # of all jobs of a queue at once, as long as the disk is full
                self._outages[queue.name].fail(
                    error, retry_s=wait_s, job=job.id, queue=queue.name, attempts=attempts
                )
            else:
                _logger.warning("job_failed", retry_s=wait_s, **fields)
            record = JobRetried(job.id, attempts, self._clock.time() + wait_s, text)
        try:
            await commit_records(self._log, (record,))
        except Exception as e:
            probe("job_failure_unrecorded")
            self._unrecorded.fail(e, job=job.id)
            last = False  # an unrecorded dead letter would be lost until the next start: retry
        else:
            self._unrecorded.succeed()
        if last:
            probe("job_dead_lettered")
            queue.dead_lettered += 1
            if job.id not in self._cancelled:
                self.dead.add((job,))
            _logger.error("job_dead_lettered", **fields)
        if last or job.id in self._cancelled:
            self._forget(job)
            return
        again = msgspec.structs.replace(job, attempts=attempts, resumed=True, error=text)
        self._known[job.id] = again
        if job.id in self._expedited and not attempt.expedited:  # while the failure was recorded
            queue.push_first(again)
        else:
            self._delay(queue, again, wait_s)

    def _forget(self, job: Job) -> None:
        """The job is done, cancelled or a dead letter: tell all that wait for it."""
        self._known.pop(job.id, None)
        self._cancelled.discard(job.id)
        self._expedited.discard(job.id)
        self._ends.pop(job.id, None)
        queue = self.queues[job.queue]
        queue.came_s.pop(job.id, None)
        if queue.stalled:
            probe("stalled_jobs_resumed")
            queue.resume_stalled(self._clock.monotonic())
            self._timer_event.set()
        for promise in self._job_waiters.pop(job.id, ()):
            promise.resolve(None)
        left = self._job_counts[job.key] - 1
        if left:
            self._job_counts[job.key] = left
            return
        del self._job_counts[job.key]
        for promise in self._drain_waiters.pop(job.key, ()):
            promise.resolve(None)

    def abandon(self, error: Exception) -> None:
        """Fail all callers that wait for jobs; the jobs stay in the log."""
        self._abandoned = error
        for promises in (*self._drain_waiters.values(), *self._job_waiters.values()):
            for promise in promises:
                promise.reject(error)
        self._drain_waiters.clear()
        self._job_waiters.clear()

    # -- back-off ---------------------------------------------------------------------------------

    def _delay(self, queue: JobQueue, job: Job, wait_s: float) -> None:
        self._ticket += 1
        heapq.heappush(queue.delayed, (self._clock.monotonic() + wait_s, self._ticket, job))
        self._timer_event.set()

    async def _timer(self) -> None:
        while True:
            self._timer_event = anyio.Event()
            now = self._clock.monotonic()
            next_due = None
            for queue in self.queues.values():
                while queue.delayed and queue.delayed[0][0] <= now:
                    queue.push(heapq.heappop(queue.delayed)[2])
                if queue.delayed and (next_due is None or queue.delayed[0][0] < next_due):
                    next_due = queue.delayed[0][0]
                if not queue.gathered:
                    continue
                due = queue.due_s(self._written_s(now))
                if due <= now:
                    queue.release()
                elif next_due is None or due < next_due:
                    next_due = due
            if next_due is None:
                await self._timer_event.wait()
            else:
                event = self._timer_event
                async with anyio.create_task_group() as race:
                    race.start_soon(self._cancel_after, next_due - now, race.cancel_scope)
                    await event.wait()
                    race.cancel_scope.cancel()

    def _written_s(self, now: float) -> float:
        """When the log was seen to have a commit more than before; monotonic."""
        commits = self._log.statistics().commits
        if commits != self._commits:
            self._commits, self._committed_s = commits, now
        return self._committed_s

    async def _cancel_after(self, seconds: float, scope: anyio.CancelScope) -> None:
        await self._clock.sleep(seconds)
        scope.cancel()

    def statistics(self) -> SupervisorStatistics:
        """Every queue's counters."""
        now_s, dead = self._clock.monotonic(), self.dead
        return SupervisorStatistics(
            {name: one.statistics(now_s, dead.count(name)) for name, one in self.queues.items()}
        )
