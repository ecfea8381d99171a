"""Plugged-in code in threads: how many run, also of those that nobody waits for."""

from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest

from remora.runtime.threads import run_plugin_in_thread

pytestmark = pytest.mark.anyio


class Hanging:
    """Hangs until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        self.begun.release()
        assert self.let_go.wait(30)
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
                    await anyio.to_thread.run_sync(hanging.begun.acquire, True, 30)
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
