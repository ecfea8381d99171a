"""Many calls at once, but not too many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import anyio

__all__ = ["map_concurrently"]

Item = TypeVar("Item")
Result = TypeVar("Result")


async def map_concurrently(
    function: Callable[[Item], Awaitable[Result]], items: Sequence[Item], *, concurrency: int
) -> list[Result]:  # fmt: skip
    """What `function` makes of each item, in the order of the items.

    `concurrency` calls run at once.

    The first exception ends the others and is raised as it is, not in a group.
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
