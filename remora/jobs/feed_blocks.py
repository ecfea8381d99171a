"""The blocks lane: what left a session's buffer is shown to its memory blocks, each message once.

A job says how far the buffer's front has moved; what a block has seen is in its own facet, next to
its state. So it does not matter in which order jobs come, or how often: each block is shown what it
lacks. Its state and what it has seen change in one record, and with the last of them the job ends.
A put that was under way when the process died is done again from the state before it.

One block's failure is its own: the others go on, what they took in is recorded before the job is
tried again, and then only the block that failed is shown anything. What is never taken in stays to
be shown with the next job, and the block's facet says why it is behind.
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
    block_progress,
    excluded_ranges,
    join_ranges,
    missing_ranges,
    progress_item,
)
from remora.actors.policies.redaction import redact_chat
from remora.actors.policies.turns import batches
from remora.actors.session.messages import BlocksReady, Inspect, SessionView
from remora.errors import BlockFailed
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import Entry, decode_chat
from remora.runtime.guard import guarded_call
from remora.runtime.locks import KeyedLocks
from remora.runtime.probes import probe
from remora.runtime.supervisor import JobAttempt, JobResult
from remora.storage.ports import Journal
from remora.storage.records import BlocksSpec, StateItem

__all__ = ["BlocksHandler"]

_logger = get_logger("remora.blocks")
# a put may take several model calls, but a hanging one must not hold its session for ever
_PUT_S = 300.0


class BlocksHandler:
    """The blocks lane.

    Args:
        journal: where the messages are read.
        tell: gives a message to a session's actor, and returns its reply when it is durable.
        blocks: the blocks of each session.
        batch_tokens: what a block is shown at once, at most, or one whole turn.
        redact: goes over every text before a block sees it.
        put_s: how long a block may take for a batch.
    """

    def __init__(
        self,
        journal: Journal,
        tell: Callable[[SessionKey, Any], Awaitable[Any]],
        blocks: BlockSet,
        *,
        batch_tokens: int,
        redact: Callable[[str], str] | None = None,
        put_s: float = _PUT_S,
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._blocks = blocks
        self._batch_tokens = batch_tokens
        self._redact = redact
        self._put_s = put_s
        self._turns = KeyedLocks()

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """One attempt: all blocks at once, one job of a session at a time.

        Raises:
            BlockFailed: at least one block did not take in what it was shown; what the others did
                is durable.
        """
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(spec, BlocksSpec)
        assert isinstance(key, SessionKey)
        async with self._turns(key):
            state_items, failures = await self._show(key, spec.through, last=attempt.last)
            if not failures:
                # Told here and not by the supervisor: the session's next job must find this one's
                # states.
                await self._tell(key, BlocksReady(tuple(state_items), attempt.job.id))
                return JobResult()
            if state_items:
                await self._tell(key, BlocksReady(tuple(state_items)))
        raise BlockFailed(
            "; ".join(
                f"the memory block {name} failed: {type(e).__name__}: {e}"
                for name, e in failures.items()
            ),
            blocks=tuple(failures),
            # While one of them is merely away, the job waits for it; what is broken then fails
            # alone.
            retryable=any(getattr(e, "retryable", False) for e in failures.values()),
        ) from next(iter(failures.values()))

    async def _show(
        self, key: SessionKey, through: int, *, last: bool
    ) -> tuple[list[StateItem], dict[str, Exception]]:
        """Show each block what it lacks; what to journal, and who failed."""
        view: SessionView = await self._tell(key, Inspect())
        through = min(
            through, view.watermarks.summarizing_through
        )  # what a rewind has brought back leaves again, with a job of its own
        progress = block_progress(view.blocks)
        unseen = excluded_ranges(view.blocks, view.watermarks.cleared)
        prototypes = self._blocks.prototypes(key)
        lacking = {
            name: found
            for name in prototypes
            if (
                found := missing_ranges(
                    through, (*progress.get(name, BlockProgress()).seen, *unseen)
                )
            )
        }
        if not lacking:
            return [], {}
        entries = await self._journal.read(
            key, min(ranges[0][0] for ranges in lacking.values()), through
        )
        state_items: list[StateItem] = []
        failures: dict[str, Exception] = {}

        async def show(name: str) -> None:
            feed = _Feed(key, name, prototypes[name], progress.get(name, BlockProgress()))
            try:
                for first, final in lacking[name]:
                    mine = [entry for entry in entries if first <= entry.seq <= final]
                    for batch in batches(mine, self._batch_tokens):
                        if feed.changed:  # a batch is not done again for the failure of a later one
                            await self._tell(key, BlocksReady((feed.state_item(),)))
                        await self._put(feed, first, batch)
                    feed.skip(first, final)
            except Exception as e:
                _logger.warning(
                    "block_failed", session=key, block=name, error=f"{type(e).__name__}: {e}"
                )
                probe("block_failed")
                failures[name] = e
                if last:
                    feed.fail(f"{type(e).__name__}: {e}")
            if feed.changed:
                state_items.append(feed.state_item())

        async with anyio.create_task_group() as group:
            for name in lacking:
                group.start_soon(show, name)
        return state_items, failures

    async def _put(self, feed: _Feed, first: int, batch: Sequence[Entry]) -> None:
        messages = [ChatMessage.of_entry(self._redact_entry(entry)) for entry in batch]
        block = self._blocks.copy(feed.key, feed.prototype, feed.progress.state)
        with anyio.fail_after(self._put_s):
            await guarded_call(
                block.aput, messages, user_id=feed.key.user, session_id=feed.key.session
            )
        feed.take(first, batch[-1].seq, self._blocks.state(feed.prototype, block))

    def _redact_entry(self, entry: Entry) -> Entry:
        if self._redact is None:
            return entry
        chat = redact_chat(decode_chat(entry.chat), self._redact)
        return msgspec.structs.replace(entry, chat=msgspec.msgpack.encode(chat))


class _Feed:
    """One block's way through what it lacks."""

    def __init__(
        self, key: SessionKey, name: str, prototype: MemoryBlock, progress: BlockProgress
    ) -> None:
        self.key = key
        self.name = name
        self.prototype = prototype
        self.progress = progress
        self.changed = False
        """There is something that is not journalled."""

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
