"""The supervisor's round through working memories: every few minutes, a message to each user's
actor that is awake.
"""

from __future__ import annotations

from collections.abc import Iterator

import anyio

from remora.actors.user.messages import CleanUp
from remora.ids import UserKey
from remora.logging import get_logger
from remora.runtime.registry import ActorRegistry

__all__ = ["WorkingMemoryCleanup"]

_logger = get_logger("remora.cleanup")
_CONCURRENCY = 16


class WorkingMemoryCleanup:
    """Has every live user's actor evict what is over the limit, and write the figures that it has
    gathered.

    A user who is not in memory needs none of it: an actor does both before it leaves. The round
    wakes nobody, and keeps nobody awake.

    Args:
        directory: where the actors live.
        max_bytes: of each user's working memory.
    """

    def __init__(self, directory: ActorRegistry, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes

    async def __call__(self) -> None:
        """One round.

        An actor that cannot clean up is reported, and the others are not kept from it.
        """
        keys = iter([key for key in self._directory.live_keys() if isinstance(key, UserKey)])
        async with anyio.create_task_group() as tasks:
            for _ in range(_CONCURRENCY):
                tasks.start_soon(self._work, keys)

    async def _work(self, keys: Iterator[UserKey]) -> None:
        for key in keys:
            if not self._directory.is_live(key):
                continue  # it left while the others were cleaning up
            try:
                await self._directory.tell(key, CleanUp(self._max_bytes), keeps_alive=False)
            except Exception:
                _logger.exception("cleanup_failed", user=key)
