"""Jobs that are cheaper together wait for each other, and for nobody who waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

import anyio
import pytest

from remora.errors import OutcomeUnknown
from remora.results import Job
from remora.runtime import supervisor
from remora.runtime.jobs import Gathering, JobAttempt, JobQueue, JobResult, RetryPolicy, Together
from remora.runtime.log import commit_records
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.records import BlocksSpec
from remora.testing import VirtualClock
from tests.harness import Kernel, kernel

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(
    work: Work | None = None,
) -> AsyncIterator[tuple[Kernel, list[str], VirtualClock, MemoryJournal]]:
    """A queue whose jobs have the size of their messages; those of 50 do not wait."""
    begun: list[str] = []

    async def handle(attempt: JobAttempt) -> JobResult:
        begun.append(attempt.job.id)
        return JobResult()

    gathering = Gathering(
        size=lambda one: 0 if one.payload.through == 50 else one.payload.through,
        most=100,
        most_of_owner=60,
        age_s=60,
        quiet_s=5,
    )
    clock, journal = VirtualClock(), MemoryJournal()
    queue = JobQueue(
        "gathered",
        handle,
        concurrency=4,
        retry=RetryPolicy(),
        owner=attrgetter("user"),
        gathering=gathering,
        together=None if work is None else Together(gathering.size, 100, work),
    )
    async with kernel(journal, clock=clock, queues=[queue]) as core:
        yield core, begun, clock, journal


def job(user: str, number: int, size: int = 10) -> Job:
    key = SessionKey(user, f"session {number}")
    return Job(f"{user}-{number}", "gathered", key, BlocksSpec(1, size))


async def test_jobs_begin_when_enough_have_come() -> None:
    """Of all users together, or of one."""
    async with running() as (core, begun, _, _):
        core.supervisor.submit([job(f"user {n}", 0) for n in range(9)])
        await anyio.wait_all_tasks_blocked()
        assert begun == []
        assert core.supervisor.statistics().queues["gathered"].waiting == 9
        core.supervisor.submit([job("user 9", 0)])
        await anyio.wait_all_tasks_blocked()
        assert len(begun) == 10
        core.supervisor.submit([job("ann", 1, 40)])
        await anyio.wait_all_tasks_blocked()
        assert "ann-1" not in begun
        core.supervisor.submit([job("ann", 2, 20)])
        await anyio.wait_all_tasks_blocked()
        assert begun[10:] == ["ann-1", "ann-2"]


async def test_jobs_begin_when_nothing_is_written_and_when_they_are_old() -> None:
    async with running() as (core, begun, clock, journal):
        core.supervisor.submit([job("ann", 1)])
        await anyio.wait_all_tasks_blocked()
        await clock.advance(6)
        await anyio.wait_all_tasks_blocked()
        assert begun == ["ann-1"]
        core.supervisor.submit([job("ann", 2)])
        for second in range(0, 60, 3):  # somebody writes all the time
            await anyio.wait_all_tasks_blocked()
            assert begun == ["ann-1"], second
            await commit_records(journal, [])
            await clock.advance(3)
        await anyio.wait_all_tasks_blocked()
        assert begun == ["ann-1", "ann-2"]


async def test_jobs_do_not_wait_for_others_while_somebody_waits_for_them() -> None:
    async with running() as (core, begun, _, _):
        core.supervisor.submit([job("ann", 1)])
        await core.supervisor.drain_all()
        assert begun == ["ann-1"]
        core.supervisor.submit([job("ann", 2), job("bob", 1)])
        await core.supervisor.wait_for_job("bob-1")
        assert begun[1:] == ["ann-2", "bob-1"]
        core.supervisor.submit([job("ann", 3)])
        core.supervisor.begin_gathered()
        await anyio.wait_all_tasks_blocked()
        assert begun[3:] == ["ann-3"]


async def test_a_job_that_does_not_wait_comes_after_those_that_do() -> None:
    """As what is deleted comes after what is indexed; a job that is cancelled is gone."""
    async with running() as (core, begun, _, _):
        core.supervisor.submit([job("ann", 1), job("ann", 2), job("bob", 1)])
        core.supervisor.cancel(["ann-2"])
        core.supervisor.submit([job("ann", 3, 50)])
        await anyio.wait_all_tasks_blocked()
        assert begun == ["ann-1", "bob-1", "ann-3"]
        assert not core.supervisor.has_jobs(SessionKey("ann", "session 2"))


# -- several jobs as one work ----------------------------------------------------------------------


class Work:
    """What several jobs are: it is noted, and goes as a test says.

    Attributes:
        done: the jobs of each work.
        fails: raised before anything is changed, or after.
        before: which of it.
        entered: a work has begun, and waits for `go`.
    """

    def __init__(self, fails: Exception | None = None, *, before: bool = True) -> None:
        self.done: list[list[str]] = []
        self.fails, self.before = fails, before
        self.entered, self.go = anyio.Event(), anyio.Event()
        self.go.set()

    async def __call__(
        self, attempts: Sequence[JobAttempt], begin: Callable[[], None]
    ) -> Sequence[JobResult] | None:
        self.done.append([attempt.job.id for attempt in attempts])
        self.entered.set()
        if self.before:
            await self.go.wait()
            if self.fails is not None:
                raise self.fails
        begin()
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        return [JobResult() for _ in attempts]


def some_jobs(count: int = 6) -> list[Job]:
    return [job(f"user {n % 3}", n) for n in range(count)]


async def test_small_jobs_are_one_work() -> None:
    """Of all users in turn, up to a size; their ends are one commit. A large one is run alone."""
    work = Work()
    async with running(work) as (core, alone, _, journal):
        writes = journal.statistics().writes
        core.supervisor.submit([*some_jobs(9), job("user 0", 9, 149)])
        core.supervisor.begin_gathered()
        await core.supervisor.drain_all()
        assert work.done == [[f"user {n % 3}-{n}" for n in range(9)]]
        assert alone == ["user 0-9"]
        assert journal.statistics().writes - writes == 2
        core.supervisor.submit([job("ann", n, 9) for n in range(25)])
        await core.supervisor.drain_all()
        assert max(map(len, work.done)) == 11
        assert sorted(map(len, work.done)) == [3, 9, 11, 11]
        assert core.supervisor.statistics().queues["gathered"].done == 35


async def test_work_that_fails_before_it_changes_anything_is_done_for_each_job() -> None:
    async with running(Work(ValueError("one is damaged"))) as (core, alone, _, _):
        core.supervisor.submit(some_jobs())
        await core.supervisor.drain_all()
        assert sorted(alone) == sorted(one.id for one in some_jobs())
        assert core.supervisor.statistics().queues["gathered"].retried == 0


async def test_work_that_fails_later_is_a_failure_of_each_job() -> None:
    """What it changed is not known: each is run again as one that may have done its work."""
    work = Work(ValueError("no answer"), before=False)
    async with running(work) as (core, alone, clock, _):
        core.supervisor.submit(some_jobs())
        core.supervisor.begin_gathered()
        await anyio.wait_all_tasks_blocked()
        assert alone == []
        await clock.advance(60)
        await core.supervisor.drain_all()
        assert sorted(alone) == sorted(one.id for one in some_jobs())
        assert len(work.done) == 1
        assert core.supervisor.statistics().queues["gathered"].retried == 6


@pytest.mark.parametrize("before", [True, False])
async def test_a_job_is_cancelled_while_it_is_part_of_a_work(before: bool) -> None:
    """Before anything is changed the others are run alone; after that it is waited for."""
    work = Work(before=before)
    work.go = anyio.Event()
    async with running(work) as (core, alone, _, _):
        core.supervisor.submit(some_jobs())
        core.supervisor.begin_gathered()
        await work.entered.wait()
        core.supervisor.cancel(["user 1-1"])
        work.go.set()
        await core.supervisor.drain_all()
        others = sorted(one.id for one in some_jobs() if one.id != "user 1-1")
        assert sorted(alone) == (others if before else [])


async def test_ends_that_cannot_be_recorded_are_recorded_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The work is not done twice."""
    work, lost = Work(), [OutcomeUnknown("no answer")]

    async def commit(*arguments: Any) -> None:
        if lost:
            raise lost.pop()
        await commit_records(*arguments)

    monkeypatch.setattr(supervisor, "commit_records", commit)
    async with running(work) as (core, alone, _, journal):
        core.supervisor.submit(some_jobs())
        await core.supervisor.drain_all()
        assert len(work.done) == 1
        assert alone == []
        assert await journal.jobs() == []
