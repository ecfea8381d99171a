"""Which messages journalled jobs have yet to read, and which originals may be removed (G6, G7).

`Journal.indexed_through` is a high watermark. Flush jobs of one session end in any order, and one
may never end, so the watermark can be past messages that are not in long-term memory. A job's row
is removed in the transaction that moves the watermark (G7). So long-term memory has the messages
up to the watermark that were not pruned, except those that a job still has to read. Comparing the
two stores, rebuilding one from the other and removing originals must use both.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from remora.ids import SessionKey
from remora.runtime.jobs import Job
from remora.storage.records import BlocksSpec, FactsSpec, FlushSpec, SummarizeSpec, UnflushSpec
from remora.storage.rows import SEQ_BITS

NEIGHBOURS = 2
"""Messages on either side of one that are indexed with it: when it is removed, their rows are
rewritten.
"""


def pending_flushes(jobs: Iterable[Job]) -> dict[SessionKey, list[range]]:
    """The messages that these jobs have yet to flush, by session.

    Args:
        jobs: of `Journal.jobs`: those still to be done, the dead letters, or both.
    """
    found: dict[Any, list[range]] = {}
    for job in jobs:
        if isinstance(job.payload, FlushSpec):
            messages = range(first_row_written(job.payload), job.payload.through + 1)
            found.setdefault(job.key, []).append(messages)
    return found


def first_row_written(spec: FlushSpec) -> int:
    """The first message whose row the job writes, or removes and writes again."""
    return max(spec.first - NEIGHBOURS, 1) if spec.completes else spec.first


def first_message_needed(payload: object) -> int | None:
    """The first message that a job has yet to read, neighbours included; None for none."""
    match payload:
        case FlushSpec():
            return first_row_written(payload) - NEIGHBOURS
        case UnflushSpec(seqs=seqs):
            return min(seqs, default=1) - NEIGHBOURS
        case SummarizeSpec(first=first) | FactsSpec(first=first):
            return first
        case BlocksSpec():
            return 1  # only its blocks know which messages they have not seen
        case _:
            return None


MessageSizes: TypeAlias = Sequence[tuple[int, int, int]]
"""Messages in order: number, time in microseconds, bytes."""


class ArchivedRange(msgspec.Struct, frozen=True):
    """The removable messages of one session: after `trimmed`, up to `through`."""

    sid: int
    trimmed: int
    through: int

    @property
    def positions(self) -> tuple[int, int]:
        """The positions of the first of them and of the last in the table of messages."""
        start = self.sid << SEQ_BITS
        return start + self.trimmed + 1, start + self.through


def last_removable(
    archived_through: int, unflushed: int | None, needed: Iterable[int | None]
) -> int:
    """The last message of a session that nothing needs any more; 0 for none.

    Args:
        archived_through: messages up to here are out of the buffer.
        unflushed: the first of them that is on its way to long-term memory; None for none.
        needed: by jobs (`remora.storage.pending.first_message_needed`).
    """
    bounds = [archived_through - NEIGHBOURS, *(first - 1 for first in needed if first is not None)]
    if unflushed is not None:
        bounds.append(unflushed - 1 - NEIGHBOURS)
    return max(min(bounds), 0)


async def choose_oldest(
    archives: Sequence[ArchivedRange],
    excess: int,
    read: Callable[[ArchivedRange, int], Awaitable[MessageSizes]],
) -> dict[int, int]:
    """Choose the oldest messages of all sessions until they take `excess` bytes.

    Args:
        archives: what may be removed.
        excess: bytes to remove.
        read: some of the messages of an archive, from this number on, in order.

    Returns:
        By session, the last message to remove.
    """
    gone: dict[int, int] = {}
    heads: list[tuple[int, int, int]] = []  # time, session, which archive
    waiting: list[list[tuple[int, int, int]]] = []
    for number, archive in enumerate(archives):
        some = list(await read(archive, archive.trimmed + 1))
        waiting.append(some[::-1])
        if some:
            heads.append((some[0][1], archive.sid, number))
    heapq.heapify(heads)
    while heads and excess > 0:
        _, sid, number = heapq.heappop(heads)
        seq, _, size = waiting[number].pop()
        gone[sid] = seq
        excess -= size
        if not waiting[number] and seq < archives[number].through:
            waiting[number] = list(await read(archives[number], seq + 1))[::-1]
        if waiting[number]:
            heapq.heappush(heads, (waiting[number][-1][1], sid, number))
    return gone
