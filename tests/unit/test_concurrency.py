"""Calls that run at once leave the event loop to others in between."""

from __future__ import annotations

from collections import Counter

import anyio
import anyio.lowlevel
import pytest

from remora.runtime.concurrency import map_concurrently

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("waits", [False, True])
async def test_other_tasks_have_their_turn_between_calls(*, waits: bool) -> None:
    """A thousand recalls that are answered from memory begin one after the other, not in a heap."""
    rounds = 0
    begun: list[int] = []

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            await anyio.lowlevel.checkpoint()
            rounds += 1

    async def call(number: int) -> int:
        begun.append(rounds)
        if waits:
            await anyio.lowlevel.checkpoint()
        return number

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_rounds)
        assert await map_concurrently(call, range(100), concurrency=8) == list(range(100))
        tasks.cancel_scope.cancel()
    # two, where one came after and one before the others' turn
    assert max(Counter(begun).values()) <= 2


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_first_failure_ends_the_others() -> None:
    """It is raised itself; calls that have not begun never do."""
    begun: list[int] = []

    async def call(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise KeyError(number)
        await anyio.sleep_forever()

    with pytest.raises(KeyError):
        await map_concurrently(call, range(100), concurrency=8)
    assert begun == [0, 1, 2, 3]
