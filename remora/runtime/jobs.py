"""Background jobs as data: the job, its records in the log, its queue, and when it is retried."""

from __future__ import annotations

import heapq
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import anyio
import msgspec

from remora.runtime.probes import probe


class Job(msgspec.Struct, frozen=True):
    """Work for the supervisor, journalled with the records that caused it.

    Attributes:
        id: deterministic, so that a job written twice is one job.
        queue: the queue whose handler runs it.
        key: the actor that it works for.
        payload: the handler's own; plain data that the log can store.
        attempts: failures so far.
        not_before: earliest wall time of the next attempt, in seconds since the epoch.
        resumed: it was found in the log, so an earlier attempt may have had effects.
        dead: it is a dead letter: it failed too often, and waits for an operator.
        error: the text of the last failure.
    """

    id: str
    queue: str
    key: Hashable
    payload: Any
    attempts: int = 0
    not_before: float = 0.0
    resumed: bool = False
    dead: bool = False
    error: str = ""


class JobRetried(msgspec.Struct, frozen=True):
    """A job failed and will run again."""

    id: str
    attempts: int
    not_before: float
    error: str


class JobDeadLettered(msgspec.Struct, frozen=True):
    """A job failed and will not run again: it is a dead letter."""

    id: str
    attempts: int
    error: str


class DeadLetterRetried(msgspec.Struct, frozen=True):
    """A dead letter will run again with no attempts counted; the text of its failure is kept."""

    id: str


class JobDone(msgspec.Struct, frozen=True):
    """A job's effects are durable, or no longer needed: its row is removed."""

    id: str


class JobAttempt(msgspec.Struct, frozen=True):
    """An attempt at a job, as its handler gets it.

    Attributes:
        job: the job.
        last: after a failure the job becomes a dead letter.
        expedited: the job must end soon: the handler takes its quick way.
    """

    job: Job
    last: bool
    expedited: bool


class JobResult(msgspec.Struct, frozen=True):
    """The result of an attempt.

    Attributes:
        message: for the job's actor, which journals the result and the job's end together.
        records: for the log, if there is no message; the job's end is added to them.
    """

    message: Any = None
    records: Sequence[Any] = ()


Handler: TypeAlias = Callable[[JobAttempt], Awaitable[JobResult]]


class Together(msgspec.Struct, frozen=True):
    """How small jobs that wait at the same time are one work.

    Attributes:
        size: of a job; 0 for one that always runs alone.
        most: size of all jobs of one work.
        work: does it; each job then has its result. It calls its second argument before it does
            what must not be done twice. Where it raises before that, or returns None, each of the
            jobs runs alone.
    """

    size: Callable[[Job], int]
    most: int
    work: Callable[
        [Sequence[JobAttempt], Callable[[], None]], Awaitable[Sequence[JobResult] | None]
    ]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed job runs again.

    The wait is `backoff_s`, doubled at each failure, plus a random part of up to `jitter` of it.
    """

    max_attempts: int = 6
    backoff_s: float = 0.5
    max_backoff_s: float = 60.0
    jitter: float = 0.5

    def delay_s(self, attempts: int, rng: random.Random) -> float:
        """Seconds to wait after the given number of failures."""
        doublings = min(attempts - 1, 64)  # 2.0**1024 overflows
        base: float = min(self.backoff_s * 2.0**doublings, self.max_backoff_s)
        return base * (1 + self.jitter * rng.random())


class QueueStatistics(msgspec.Struct, frozen=True):
    """Counters of one queue since start, and its jobs now.

    Attributes:
        waiting: jobs that wait for their turn.
        delayed: jobs that failed, and wait for their next attempt.
        running: jobs that run.
        done: jobs that ended since start.
        retried: attempts that failed since start, and are repeated.
        dead_lettered: jobs that became dead letters since start.
        dead: dead letters now.
        oldest_s: for how long the oldest job that is not done has been here.
    """

    waiting: int
    delayed: int
    running: int
    done: int
    retried: int
    dead_lettered: int
    dead: int = 0
    oldest_s: float = 0.0


class DeadJobs:
    """Which jobs are dead letters now, so that nobody needs to ask the log how many there are."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, Hashable]] = {}
        """The actor of each, by its queue and id."""

    def add(self, jobs: Iterable[Job]) -> None:
        """These are."""
        for job in jobs:
            self._keys.setdefault(job.queue, {})[job.id] = job.key

    def drop(self, ids: Iterable[str]) -> None:
        """These are not any more, or never were."""
        for id_ in ids:
            for keys in self._keys.values():
                keys.pop(id_, None)

    def drop_matching(self, matches: Callable[[Hashable], bool]) -> None:
        """Forget the dead letters of matching actors."""
        for keys in self._keys.values():
            for id_ in [id_ for id_, key in keys.items() if matches(key)]:
                del keys[id_]

    def count(self, queue: str) -> int:
        """How many there are in a queue."""
        return len(self._keys.get(queue, ()))


class Gathering(msgspec.Struct, frozen=True, kw_only=True):
    """When jobs begin that are cheaper together.

    Attributes:
        size: of a job; 0 for one that does not wait, nor has others wait.
        most: they begin when they have this size together.
        most_of_owner: or when those of one owner have this.
        age_s: or when the oldest has waited for so long.
        quiet_s: or when nothing was written for so long.
    """

    size: Callable[[Job], int]
    most: int
    most_of_owner: int
    age_s: float
    quiet_s: float


_STALLED_S = 5.0


class JobQueue:
    """Jobs of one kind, and how they are run.

    With `line`, jobs of one line run one after the other, in the order in which they came, and
    lines take turns: many jobs of one do not hold up the others. Without it each job is a
    line of its own.

    With `owner`, owners take turns, and none has more than half of the places, rounded up: neither
    thousands of jobs of one, nor calls of a model that hang for one, make another's job wait.

    While a store refuses everything, a full disk for instance, each job's pause doubles. So one of
    them, the first in `stalled`, tries more often, and when it succeeds the others run, too:
    otherwise they would wait for a minute and more on a store that works.

    With `gathering`, jobs wait for each other, unless somebody waits for them. A job that is run
    again, or for which `Gathering.size` is 0, begins at once, after those that came before it. With
    `together`, small ones that have not failed take one place and are one work.

    With `hurries`, the handler has a quicker way than its usual one: an attempt that runs is ended
    when its job is expedited. Without it that would only cost what the attempt has done.
    """

    def __init__(
        self,
        name: str,
        handler: Handler,
        *,
        concurrency: int,
        retry: RetryPolicy,
        line: Callable[[Any], Hashable] | None = None,
        owner: Callable[[Any], Hashable] | None = None,
        hurries: bool = True,
        gathering: Gathering | None = None,
        together: Together | None = None,
    ) -> None:
        self.name = name
        self.handler = handler
        self.together = together
        self.hurries = hurries
        self.concurrency = concurrency
        self.retry = retry
        self._line = line
        self._behind: dict[Hashable, deque[Job]] = {}
        """By line: jobs behind one that is in `_ready` or runs."""
        self._owner = owner or (lambda _: "")  # one for all
        self._most = concurrency if owner is None else (concurrency + 1) // 2
        """Jobs of one owner that run at the same time."""
        self._alone: set[str] = set()
        """Ids of jobs that were run together with others, and are to run alone."""
        self._ready: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        """By owner, the one whose turn it is first."""
        self._running: Counter[Hashable] = Counter()
        """By owner."""
        self.gathered: deque[Job] = deque()
        """Jobs that wait for each other."""
        self._gathering = gathering
        self._sizes: Counter[Hashable] = Counter()
        """Of gathered jobs, by owner."""
        self._first_s = 0.0
        """When the first of them came; monotonic."""
        self.waited_for = 0
        """So many wait for jobs: none is gathered."""
        self.delayed: list[tuple[float, int, Job]] = []
        """A heap of jobs in back-off: when due, ticket, job."""
        self.stalled: dict[str, None] = {}
        """Ids of jobs that a store refused at their last attempt."""
        self._resumed_s = float("-inf")
        self.came_s: dict[str, float] = {}
        """When each job that is not done came, by its id, the oldest first; monotonic."""
        self.on_job: Callable[[Job], None] | None = None
        """Called when a job comes, with what caused it still waiting for its answer."""
        self._idle: deque[anyio.Event] = deque()
        """Of workers that wait for a job, one each: a job wakes one of them."""
        self.running = self.done = self.retried = self.dead_lettered = 0

    def note(self, job: Job, now_s: float) -> None:
        """A job came, at this monotonic time; it is pushed next, or waits in back-off."""
        self.came_s[job.id] = now_s
        if self.on_job is not None:
            self.on_job(job)

    def push(self, job: Job) -> None:
        """Add a job at the end of its line, or to those that are gathered."""
        gathering = self._gathering
        size = 0 if gathering is None else gathering.size(job)
        if gathering is None or not size or job.attempts or job.resumed or self.waited_for:
            self.release()
            self._push(job)
            return
        if not self.gathered:
            self._first_s = self.came_s.get(job.id, 0.0)
        self.gathered.append(job)
        owner = self._owner(job.key)
        self._sizes[owner] += size
        if self._sizes[owner] >= gathering.most_of_owner or self._sizes.total() >= gathering.most:
            self.release()

    def release(self) -> None:
        """Have the gathered jobs begin."""
        if not self.gathered:
            return
        probe("gathered_jobs_begin")
        jobs, self.gathered = self.gathered, deque()
        self._sizes.clear()
        for job in jobs:
            self._push(job)

    def due_s(self, written_s: float) -> float:
        """When the gathered jobs are to begin.

        Args:
            written_s: when something was written last; both are monotonic.
        """
        assert self._gathering is not None
        return min(self._first_s + self._gathering.age_s, written_s + self._gathering.quiet_s)

    def _push(self, job: Job) -> None:
        if self._line is not None:
            line = self._line(job.key)
            if (behind := self._behind.get(line)) is not None:
                behind.append(job)
                return
            self._behind[line] = deque()
        self._make_ready(job)

    def push_first(self, job: Job) -> None:
        """Add a job that runs next; of a line, when the one that runs has ended."""
        if self._line is not None:
            line = self._line(job.key)
            if (behind := self._behind.get(line)) is not None:
                behind.appendleft(job)
                return
            self._behind[line] = deque()
        owner = self._owner(job.key)
        self._ready.setdefault(owner, deque()).appendleft(job)
        self._ready.move_to_end(owner, last=False)
        self._wake_worker()

    def push_alone(self, jobs: Sequence[Job]) -> None:
        """Add jobs that run next, each by itself."""
        self._alone.update([job.id for job in jobs])
        for job in reversed(jobs):
            self.push_first(job)

    def _make_ready(self, job: Job) -> None:
        self._ready.setdefault(self._owner(job.key), deque()).append(job)
        self._wake_worker()

    async def take(self) -> list[Job]:
        """Wait for the job that runs next, with those that run together with it; `end` follows.

        Only the end of the runtime cancels a worker that waits.
        """
        while (owner := self._next_owner()) is None:  # another worker may have taken the job
            event = anyio.Event()
            self._idle.append(event)
            await event.wait()
        jobs = [self._take_first(owner)]
        if self.together is not None:
            jobs += self._take_small(jobs[0])
        self.running += len(jobs)
        self._running.update({self._owner(job.key) for job in jobs})
        return jobs

    def _take_first(self, owner: Hashable) -> Job:
        jobs = self._ready[owner]
        job = jobs.popleft()
        if jobs:
            self._ready.move_to_end(owner)
        else:
            del self._ready[owner]
        return job

    def _take_small(self, first: Job) -> Iterator[Job]:
        """Return those that run together with it, of each owner in turn."""
        assert self.together is not None
        size, room = self.together.size, self.together.most
        if first.id in self._alone:
            self._alone.discard(first.id)
            return
        if not 0 < size(first) <= room or first.attempts:
            return
        room -= size(first)
        found = True
        while found and room > 0:
            found = False
            for owner in [one for one in self._ready if self._running[one] < self._most]:
                job = self._ready[owner][0]
                alike = job.resumed == first.resumed and not job.attempts
                alike = alike and job.id not in self._alone
                if alike and 0 < size(job) <= room:
                    room -= size(job)
                    found = True
                    yield self._take_first(owner)

    def _next_owner(self) -> Hashable | None:
        """Whose job runs next; None if none is ready whose owner may have one more."""
        free = (owner for owner in self._ready if self._running[owner] < self._most)
        return next(free, None)

    def _wake_worker(self) -> None:
        if self._idle:
            self._idle.popleft().set()

    def end(self, jobs: Sequence[Job]) -> None:
        """An attempt of jobs that were taken is over: the next of their lines may run."""
        self.running -= len(jobs)
        owners = {self._owner(job.key) for job in jobs}
        self._running -= Counter(owners)
        for job in jobs:
            self._advance(job)
        for _ in range(len(owners) - 1):  # who calls this takes one itself
            self._wake_worker()

    def _advance(self, job: Job) -> None:
        if self._line is None:
            return
        line = self._line(job.key)
        if behind := self._behind[line]:
            self._make_ready(behind.popleft())
        else:
            del self._behind[line]

    def pull(self, job: Job) -> bool:
        """Take a job out of its line or its back-off; False if it is in neither."""
        owner = self._owner(job.key)
        self._alone.discard(job.id)
        if one := _find(self.gathered, job):
            self.gathered.remove(one)
            assert self._gathering is not None
            self._sizes[owner] -= self._gathering.size(one)
            return True
        ready = self._ready.get(owner, ())
        if ready and (one := _find(ready, job)):
            probe("job_pulled_from_queue")
            ready.remove(one)
            if not ready:
                del self._ready[owner]
            self._advance(one)
            return True
        for behind in self._behind.values():
            if one := _find(behind, job):
                probe("job_pulled_from_line")
                behind.remove(one)
                return True
        kept = [entry for entry in self.delayed if entry[2].id != job.id]
        found = len(kept) < len(self.delayed)
        if found:
            probe("job_pulled_from_backoff")
            heapq.heapify(kept)
            self.delayed = kept
        return found

    def stall(self, job: Job, pause_s: float) -> float:
        """Note that a store refused a job's work. The pause before its next attempt, in seconds."""
        self.stalled.setdefault(job.id)
        return min(pause_s, _STALLED_S) if next(iter(self.stalled)) == job.id else pause_s

    def resume_stalled(self, now_s: float) -> None:
        """Run stalled jobs that are in back-off now; at most once in `_STALLED_S`."""
        due_s = self._resumed_s = max(now_s, self._resumed_s + _STALLED_S)
        stalled = self.stalled
        self.delayed = [
            (min(at, due_s) if job.id in stalled else at, ticket, job)
            for at, ticket, job in self.delayed
        ]
        heapq.heapify(self.delayed)
        stalled.clear()

    def statistics(self, now_s: float, dead: int) -> QueueStatistics:
        """Counters; any thread may ask."""
        return QueueStatistics(
            waiting=sum(map(len, [self.gathered, *self._ready.values(), *self._behind.values()])),
            delayed=len(self.delayed),
            running=self.running,
            done=self.done,
            retried=self.retried,
            dead_lettered=self.dead_lettered,
            dead=dead,
            oldest_s=self._oldest_s(now_s),
        )

    def _oldest_s(self, now_s: float) -> float:
        try:
            return max(now_s - next(iter(self.came_s.values()), now_s), 0.0)
        except RuntimeError:  # another thread asks, and a job has just come or gone
            return 0.0


def _find(jobs: Iterable[Job], job: Job) -> Job | None:
    return next((one for one in jobs if one.id == job.id), None)
