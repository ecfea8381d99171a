"""Which archived originals may be removed, and which are removed first (G6, G7)."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from remora.storage.pending import NEIGHBOURS
from remora.storage.rows import SEQ_BITS

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
