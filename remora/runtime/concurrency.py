"""Bounded concurrency, and calls whose threads end with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio

__all__ = ["map_concurrently", "run_to_end"]

Item = TypeVar("Item")
Result = TypeVar("Result")


async def map_concurrently(
    function: Callable[[Item], Awaitable[Result]], items: Sequence[Item], *, concurrency: int
) -> list[Result]:
    """Call the function for each item, `concurrency` at once; the results in the items' order.

    The first exception cancels the others and is raised itself, not in a group.
    """
    results: list[Any] = [None] * len(items)
    left = iter(enumerate(items))
    failure: Exception | None = None

    async def work(scope: anyio.CancelScope) -> None:
        nonlocal failure
        for place, item in left:
            try:
                results[place] = await function(item)
            except Exception as e:
                failure = failure or e
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(min(concurrency, len(items))):
            tasks.start_soon(work, tasks.cancel_scope)
    if failure is not None:
        raise failure
    return results


async def run_to_end(
    function: Callable[..., Awaitable[Result]], *arguments: Any, **options: Any
) -> Result:
    """Call a function that works in threads; however it is cancelled, its threads have ended then.

    A cancellation of asyncio's own leaves `anyio.to_thread.run_sync` at once: what the thread
    returns, a file that it opened for instance, is lost. One of anyio's scopes waits for the
    thread. So the function runs in a child task, which is cancelled by a scope.
    """
    results: list[Result] = []
    failures: list[Exception] = []

    async def work() -> None:
        try:
            results.append(await function(*arguments, **options))
        except Exception as e:
            failures.append(e)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
    for failure in failures:
        raise failure
    return results[0]
