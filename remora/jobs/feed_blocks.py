"""The blocks queue: each message that left a session's buffer is shown once to its memory blocks.

A job has the position of the buffer's front; each block's state item has the messages that it has
seen. So jobs may repeat and run in any order: a block gets the messages that it is missing. Its
state and the messages it has seen change in one record, and the last record ends the job. After a
crash an interrupted put runs again from the state before it.

Blocks fail separately: the progress of the others is recorded before the job is retried for the
failed block. Its state item has the error, and the next job shows it the same messages again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import msgspec

from remora.actors.blocks.base import ChatMessage, MemoryBlock
from remora.actors.blocks.state import (
    BlockProgress,
    BlockSet,
    Ranges,
    block_progress,
    exclusions,
    join_ranges,
    missing_ranges,
    progress_item,
)
from remora.actors.policies.redaction import redact_chat
from remora.actors.policies.units import batches
from remora.actors.session.messages import BlocksReady, Inspect, SessionView
from remora.errors import BlockFailed
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import Entry, decode_chat
from remora.runtime.guard import call_guarded
from remora.runtime.jobs import JobAttempt, JobResult
from remora.runtime.probes import probe
from remora.storage.ports import Journal
from remora.storage.records import BlocksSpec, StateItem

_logger = get_logger(__name__)
_PUT_S = 300.0  # a put may take several model calls, but must end


class BlocksHandler:
    """Runs the jobs of the blocks queue.

    Args:
        journal: has the messages.
        tell: sends a message to a session's actor, and returns its durable reply.
        blocks: the blocks of each session.
        batch_tokens: tokens that a block is shown at once; a larger unit is a batch of its
            own.
        redact: applied to every text before a block sees it.
    """

    def __init__(
        self,
        journal: Journal,
        tell: Callable[[SessionKey, Any], Awaitable[Any]],
        blocks: BlockSet,
        *,
        batch_tokens: int,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._blocks = blocks
        self._batch_tokens = batch_tokens
        self._redact = redact

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """Run one attempt: all blocks at once.

        Raises:
            BlockFailed: at least one block failed; what the others did is durable.
        """
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, BlocksSpec)
        assert isinstance(key, SessionKey)
        state_items, failures = await self._show(key, spec.through, last=attempt.last)
        if not failures:
            return JobResult(message=BlocksReady(tuple(state_items), attempt.job.id))
        if state_items:
            await self._tell(key, BlocksReady(tuple(state_items)))
        raise BlockFailed(
            "; ".join(
                f"the memory block {name} failed: {type(e).__name__}: {e}"
                for name, e in failures.items()
            ),
            blocks=tuple(failures),
            # The job waits while one of them is unavailable.
            retryable=any(getattr(e, "retryable", False) for e in failures.values()),
        ) from next(iter(failures.values()))

    async def _show(
        self, key: SessionKey, through: int, *, last: bool
    ) -> tuple[list[StateItem], dict[str, Exception]]:
        """Show each block its missing messages; returns items to journal, and errors by block."""
        view: SessionView = await self._tell(key, Inspect())
        # Messages that a rewind brought back get another job when they leave again.
        through = min(through, view.watermarks.summarizing_through)
        progress = block_progress(view.blocks)
        excluded = exclusions(view.blocks, view.watermarks.cleared_through)
        prototypes = self._blocks.prototypes(key)
        missing: dict[str, Ranges] = {}
        for name in prototypes:
            seen = progress.get(name, BlockProgress()).seen
            if ranges := missing_ranges(through, (*seen, *excluded)):
                missing[name] = ranges
        if not missing:
            return [], {}
        first = min(ranges[0][0] for ranges in missing.values())
        entries = await self._journal.read(key, first, through)
        state_items: list[StateItem] = []
        failures: dict[str, Exception] = {}

        async def show(name: str) -> None:
            feed = _Feed(key, name, prototypes[name], progress.get(name, BlockProgress()))
            try:
                for first, final in missing[name]:
                    mine = [entry for entry in entries if first <= entry.seq <= final]
                    for batch in batches(mine, self._batch_tokens):
                        if feed.changed:  # keep it if a later batch fails
                            await self._tell(key, BlocksReady((feed.state_item(),)))
                        await self._put(feed, first, batch)
                    feed.skip(first, final)
            except Exception as e:
                error = f"{type(e).__name__}: {e}"
                _logger.warning("block_failed", session=key, block=name, error=error)
                probe("block_failed")
                failures[name] = e
                if last:
                    feed.fail(error)
            if feed.changed:
                state_items.append(feed.state_item())

        async with anyio.create_task_group() as group:
            for name in missing:
                group.start_soon(show, name)
        return state_items, failures

    async def _put(self, feed: _Feed, first: int, batch: Sequence[Entry]) -> None:
        messages = [ChatMessage.of_entry(self._redact_entry(entry)) for entry in batch]
        block = self._blocks.copy(feed.key, feed.prototype, feed.progress.state)
        with anyio.fail_after(_PUT_S):
            await call_guarded(
                block.aput, messages, user_id=feed.key.user, session_id=feed.key.session
            )
        feed.take(first, batch[-1].seq, self._blocks.state(feed.prototype, block))

    def _redact_entry(self, entry: Entry) -> Entry:
        if self._redact is None:
            return entry
        chat = redact_chat(decode_chat(entry.chat), self._redact)
        return msgspec.structs.replace(entry, chat=msgspec.msgpack.encode(chat))


class _Feed:
    """The progress of one block during a job."""

    def __init__(
        self, key: SessionKey, name: str, prototype: MemoryBlock, progress: BlockProgress
    ) -> None:
        self.key = key
        self.name = name
        self.prototype = prototype
        self.progress = progress
        self.changed = False
        """Whether some progress is not journalled."""

    def take(self, first: int, last: int, state: bytes) -> None:
        self.progress = BlockProgress(join_ranges((*self.progress.seen, (first, last))), state)
        self.changed = True

    def skip(self, first: int, last: int) -> None:
        """The rest of a range was removed before the block could see it."""
        seen = join_ranges((*self.progress.seen, (first, last)))
        if seen != self.progress.seen:
            self.progress = msgspec.structs.replace(self.progress, seen=seen)
            self.changed = True

    def fail(self, error: str) -> None:
        if self.progress.error != error:
            self.progress = msgspec.structs.replace(self.progress, error=error)
            self.changed = True

    def state_item(self) -> StateItem:
        self.changed = False
        return progress_item(self.name, self.progress)
