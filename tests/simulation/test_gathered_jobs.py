"""Jobs that are cheaper together wait for each other, and for nobody who waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter

import anyio
import pytest

from remora.ids import SessionKey
from remora.runtime.jobs import Gathering, Job, JobAttempt, JobQueue, JobResult, RetryPolicy
from remora.runtime.log import commit_records
from remora.storage.memory.journal import MemoryJournal
from remora.storage.records import BlocksSpec
from remora.testing.clock import VirtualClock
from tests.harness import Kernel, kernel

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Kernel, list[str], VirtualClock, MemoryJournal]]:
    """A queue whose jobs have the size of their messages; those of 50 do not wait."""
    begun: list[str] = []

    async def handle(attempt: JobAttempt) -> JobResult:
        begun.append(attempt.job.id)
        return JobResult()

    gathering = Gathering(
        size=lambda one: one.payload.through % 50, most=100, most_of_owner=60, age_s=60, quiet_s=5
    )
    clock, journal = VirtualClock(), MemoryJournal()
    queue = JobQueue(
        "gathered",
        handle,
        concurrency=4,
        retry=RetryPolicy(),
        owner=attrgetter("user"),
        gathering=gathering,
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
