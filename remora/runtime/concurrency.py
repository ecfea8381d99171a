"""Bounded concurrency."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio

__all__ = ["map_concurrently"]

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
