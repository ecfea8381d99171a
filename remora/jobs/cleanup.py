"""The cleanup of working memories: every few minutes, a message to each active user actor."""

from __future__ import annotations

from remora.actors.user.behavior import MOST_EVICTED
from remora.actors.user.messages import CleanUp
from remora.ids import UserKey
from remora.logging import get_logger
from remora.runtime.concurrency import map_concurrently
from remora.runtime.registry import ActorRegistry

_logger = get_logger(__name__)
_CONCURRENCY = 16


class WorkingMemoryCleanup:
    """Makes active user actors evict what is over the limit, and journal access counts.

    An actor does both before it leaves memory, so the round activates none, and keeps none active.

    Args:
        registry: of the actors.
        max_bytes: of each user's working memory.
    """

    def __init__(self, registry: ActorRegistry, max_bytes: int) -> None:
        self._registry = registry
        self._max_bytes = max_bytes

    async def __call__(self) -> None:
        """Run one round; an actor that cannot clean up is logged and does not stop the others."""
        keys = [key for key in self._registry.live_keys() if isinstance(key, UserKey)]
        await map_concurrently(self._clean_up, keys, concurrency=_CONCURRENCY)

    async def _clean_up(self, key: UserKey) -> None:
        message, evicted = CleanUp(self._max_bytes), MOST_EVICTED
        try:
            while evicted == MOST_EVICTED and self._registry.is_live(key):
                evicted = await self._registry.ask_control(key, message, keeps_alive=False)
        except Exception:
            _logger.exception("cleanup_failed", user=key)
