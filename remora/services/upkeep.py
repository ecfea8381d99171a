"""The runtime's own work: index what an earlier run left, and trim the archive."""

from __future__ import annotations

from remora.actors.session.messages import Flush
from remora.config import RetentionConfig
from remora.errors import StorageError
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.concurrency import map_concurrently
from remora.runtime.probes import probe
from remora.runtime.registry import ActorRegistry
from remora.storage.ports import Journal, Retention

_logger = get_logger(__name__)
_FLUSH_CONCURRENCY = 16
_MAX_SESSIONS = 1_000_000


async def flush_unindexed(
    journal: Journal, registry: ActorRegistry, clock: Clock, idle_s: float
) -> None:
    """Flush the sessions whose last messages an earlier run did not index.

    A session that is used within `idle_s` is flushed when it becomes idle, as always.
    """
    await clock.sleep(idle_s)
    try:
        found = await journal.sessions_to_flush(_MAX_SESSIONS)
    except StorageError:
        _logger.exception("unindexed_sessions_unread")  # the next start finds them
        return

    async def flush(key: SessionKey) -> None:
        if not registry.is_live(key):
            try:
                probe("unindexed_session_flushed")
                await registry.ask_control(key, Flush())
            except Exception:
                _logger.exception("unindexed_flush_failed", session=key)

    await map_concurrently(flush, found, concurrency=_FLUSH_CONCURRENCY)


async def trim_archive(journal: Journal, keep: RetentionConfig, clock: Clock) -> None:
    """Remove archived messages beyond the configured age, number and size."""
    limits = Retention(keep.age_days, keep.session_messages, int(keep.total_mb * (1 << 20)))
    removed = await journal.trim(limits, int(clock.time() * 1_000_000))
    if removed:
        _logger.info("archive_trimmed", messages=removed)
