"""Work in threads: plugged-in code, also of callers who left, and what background jobs compute."""

from __future__ import annotations

import threading

import anyio
import pytest

from remora.results import Job
from remora.runtime.jobs import JobAttempt, JobQueue, JobResult, RetryPolicy
from remora.runtime.threads import compute_in_thread, in_background, run_plugin_in_thread
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.records import BlocksSpec
from remora.testing import VirtualClock
from tests.harness import kernel
from tests.patience import until, wait_until

pytestmark = pytest.mark.anyio


class Hanging:
    """Hangs until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.calls = 0

    def has_begun(self) -> bool:
        """Whether a call began since the last answer."""
        return self.begun.acquire(blocking=False)

    def __call__(self) -> str:
        self.calls += 1
        self.begun.release()
        wait_until(self.let_go.is_set, "it is let go")
        return "done"


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_abandoned_thread_keeps_its_place() -> None:
    """Until it ends: others wait, as long as they like, and no more threads run."""
    hanging, limiter = Hanging(), anyio.CapacityLimiter(2)

    async def call() -> None:
        await run_plugin_in_thread(hanging, limiter=limiter)

    for _ in range(2):
        async with anyio.create_task_group() as tasks:
            for _n in range(20):
                tasks.start_soon(call)
            if not hanging.calls:
                for _n in range(2):
                    await until(hanging.has_begun, "it began")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert hanging.calls == 2
    assert limiter.borrowed_tokens == 2
    hanging.let_go.set()
    for _ in range(3):
        assert await run_plugin_in_thread(hanging, limiter=limiter) == "done"
    while limiter.borrowed_tokens:
        await anyio.sleep(0)


async def test_a_place_is_free_after_an_error() -> None:
    """And after a caller who left before its thread began."""
    limiter = anyio.CapacityLimiter(1)

    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await run_plugin_in_thread(fail, limiter=limiter)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_plugin_in_thread(fail, limiter=limiter)
    assert await run_plugin_in_thread(len, "abc", limiter=limiter) == 3
    assert limiter.borrowed_tokens == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_background_work_computes_in_one_thread_at_a_time() -> None:
    """In the order in which it was asked for; what callers wait for does not wait for it."""
    hanging, asked, done = Hanging(), list[int](), list[int]()

    async def compute(number: int) -> None:
        asked.append(number)
        await compute_in_thread(hanging)
        done.append(number)

    async with anyio.create_task_group() as tasks:
        with in_background():
            for number in range(10):
                tasks.start_soon(compute, number)
        await until(hanging.has_begun, "it began")
        await anyio.wait_all_tasks_blocked()
        assert await compute_in_thread(len, "abc") == 3
        assert hanging.calls == 1
        assert not done
        hanging.let_go.set()
    assert len(done) == 10
    assert done == asked


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_background_work_whose_callers_leave_still_computes_in_one_thread() -> None:
    """Who waits for its turn leaves at once; who is computed for leaves when that has ended."""
    hanging, left = Hanging(), list[int]()

    async def compute(number: int) -> None:
        try:
            await compute_in_thread(hanging, abandon_on_cancel=True)
        finally:
            left.append(number)

    async with anyio.create_task_group() as tasks:
        with in_background():
            for number in range(3):
                tasks.start_soon(compute, number)
        await until(hanging.has_begun, "it began")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
            assert len(left) == 2
            hanging.let_go.set()
    assert len(left) == 3
    assert hanging.calls == 1
    with in_background():
        assert await compute_in_thread(len, "abc") == 3


async def test_an_expedited_job_computes_at_once() -> None:
    """A caller waits for it, and does not wait for what other jobs compute as well."""
    hanging = Hanging()
    computed = anyio.Event()

    async def work(attempt: JobAttempt) -> JobResult:
        if attempt.expedited:
            assert await compute_in_thread(len, "abc") == 3
            computed.set()
        else:
            await compute_in_thread(hanging)
        return JobResult()

    queue = JobQueue("a", work, concurrency=1, retry=RetryPolicy())
    async with kernel(MemoryJournal(), clock=VirtualClock(), queues=[queue]) as core:
        core.supervisor.submit(
            Job(f"{n}", "a", SessionKey("ann", f"{n}"), BlocksSpec(1, 1)) for n in range(3)
        )
        await until(hanging.has_begun, "it began")
        core.supervisor.expedite(["2"])
        await computed.wait()
        assert hanging.calls == 1
        hanging.let_go.set()
        await core.supervisor.drain_all()
    assert hanging.calls == 2


async def test_jobs_compute_in_one_thread_at_a_time_however_many_run() -> None:
    """Of all queues, also in the tasks that a job starts; other calls have threads of their own."""
    hanging = Hanging()

    async def work(_: JobAttempt) -> JobResult:
        async with anyio.create_task_group() as tasks:
            for _n in range(2):
                tasks.start_soon(compute_in_thread, hanging)
        return JobResult()

    queues = [JobQueue(name, work, concurrency=4, retry=RetryPolicy()) for name in ("a", "b")]
    async with kernel(MemoryJournal(), clock=VirtualClock(), queues=queues) as core:
        core.supervisor.submit(
            Job(f"{queue.name}-{n}", queue.name, SessionKey("ann", f"{n}"), BlocksSpec(1, 1))
            for queue in queues
            for n in range(4)
        )
        await until(hanging.has_begun, "it began")
        await anyio.wait_all_tasks_blocked()
        assert [core.supervisor.statistics().queues[name].running for name in "ab"] == [4, 4]
        assert await compute_in_thread(len, "abc") == 3
        assert hanging.calls == 1
        hanging.let_go.set()
        await core.supervisor.drain_all()
    assert hanging.calls == 16
