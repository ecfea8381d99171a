"""Bounded concurrency, work in threads, and calls whose threads end with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeGuard, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel

from remora.runtime.threads import compute_in_thread

Progress: TypeAlias = Callable[[int, int], None]
"""Told how much of long work is done, and how much there is."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def is_open(tasks: anyio.abc.TaskGroup | None) -> TypeGuard[anyio.abc.TaskGroup]:
    """Return whether a task may be started in the group; ask wherever a caller starts one.

    anyio 4.16 tells asyncio's tasks of a cancellation until all of them have heard of it, or are
    shielded. One that is started later is never told: at its first checkpoint it loops without
    end, and so the group never ends either.
    """
    return tasks is not None and not tasks.cancel_scope.cancel_called


async def run_in_thread_if(
    large: bool,
    function: Callable[..., Result],
    *arguments: Any,
) -> Result:
    """Call the function in a thread if its work is `large`, at once otherwise.

    A hop to a thread takes some 0.1 ms, so small work is faster on the event loop; work that takes
    milliseconds would hold all other tasks. Without a hop, nothing else runs before it returns.
    """
    if large:
        return await compute_in_thread(function, *arguments)
    return function(*arguments)


async def map_concurrently(
    function: Callable[[Item], Awaitable[Result]],
    items: Sequence[Item],
    *,
    concurrency: int | None = None,
) -> list[Result]:
    """Call the function for each item, `concurrency` at once; the results in the items' order.

    None: all at once.

    Other tasks have their turn between two calls that begin.

    The first exception cancels the others and is raised itself, not in a group.
    """
    results: list[Any] = [None] * len(items)
    left = iter(enumerate(items))
    turns = anyio.Lock()
    failure: Exception | None = None

    async def work(scope: anyio.CancelScope) -> None:
        nonlocal failure
        for place, item in left:
            if place:  # calls that never wait, or begin at once, would keep all other tasks out
                async with turns:
                    await anyio.lowlevel.checkpoint()
            try:
                results[place] = await function(item)
            except Exception as e:
                failure = failure or e
                scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(len(items) if concurrency is None else min(concurrency, len(items))):
            tasks.start_soon(work, tasks.cancel_scope)
    if failure is not None:
        raise failure
    return results


async def run_to_end(
    function: Callable[..., Awaitable[Result]], *arguments: Any, **options: Any
) -> Result:
    """Call a function that works in threads; however it is cancelled, its threads have ended then.

    A cancellation of asyncio's own leaves `run_in_thread` at once: what the thread
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
