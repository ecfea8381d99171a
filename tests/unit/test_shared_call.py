"""Calls that belong to the runtime: callers share them, and may give up without ending them."""

from __future__ import annotations

import anyio
import pytest

from remora.errors import RuntimeClosed
from remora.runtime.shared_call import SharedCall

pytestmark = pytest.mark.anyio


class Loading:
    """What is called: it waits for `go`, and then fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.go = anyio.Event()
        self.calls = 0
        self._failures = failures

    async def __call__(self) -> str:
        self.calls += 1
        await self.go.wait()
        if self.calls <= self._failures:
            raise OSError("not yet")
        return "loaded"


async def test_a_caller_who_gives_up_does_not_end_the_call() -> None:
    """The next caller gets the result of the call that the first one began."""
    loading = Loading()
    call = SharedCall(loading)
    async with anyio.create_task_group() as tasks:
        call.start(tasks)
        with anyio.move_on_after(0) as scope:
            await call.result()
        assert scope.cancelled_caught
        assert loading.calls == 1
        loading.go.set()
        assert await call.result() == "loaded"
        assert await call.result() == "loaded"
        assert loading.calls == 1
        assert call.ended
        with anyio.fail_after(0):  # what is loaded is there at once
            assert await call.result() == "loaded"


async def test_a_failed_call_is_repeated() -> None:
    """Callers who wait for it all get the error; the next one calls again. `wait` does not."""
    loading = Loading(failures=1)
    call = SharedCall(loading)
    told = []

    async def ask() -> None:
        try:
            await call.result()
        except OSError as e:
            told.append(str(e))

    async with anyio.create_task_group() as tasks:
        call.start(tasks)
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        loading.go.set()
        await call.wait()
        await call.wait()
        assert loading.calls == 1
        assert await call.result() == "loaded"
        assert loading.calls == 2
    assert told == ["not yet", "not yet"]


async def test_a_call_ends_with_its_tasks() -> None:
    """Callers who still wait, and later ones, are told that the runtime closed."""
    call = SharedCall(Loading())
    with pytest.raises(RuntimeClosed):
        await call.result()
    told = []

    async def ask() -> None:
        try:
            await call.result()
        except RuntimeClosed as e:
            told.append(str(e))

    async with anyio.create_task_group() as callers:
        async with anyio.create_task_group() as tasks:
            call.start(tasks)
            callers.start_soon(ask)
            callers.start_soon(call.wait)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert told == ["the runtime closed"]
    with pytest.raises(RuntimeClosed):
        await call.result()
    await call.wait()
