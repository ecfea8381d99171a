"""A bounded queue in front of a busy cell. An idle cell has none: it is made at first need.

Bounded by count and by bytes, its own and those of all mailboxes (`shares`); the newest is refused,
never dropped later, so `MailboxFull` always means that nothing ran. Age is bounded by each
envelope's deadline. Control messages (results of jobs, passivation) are not counted: a full mailbox
must not keep out what would empty it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from remora.errors import MailboxFull
from remora.runtime.fairness import Quota
from remora.runtime.probes import probe
from remora.runtime.promise import Promise

__all__ = ["Envelope", "Mailbox", "MailboxStatistics", "quota_exhausted"]


class Envelope:
    """A message that waits for its turn.

    One that is no `keeps_alive` of its actor leaves it as idle as it was.
    """

    __slots__ = ("control", "deadline", "keeps_alive", "message", "promise", "size")

    def __init__(
        self,
        message: Any,
        promise: Promise,
        *,
        size: int,
        deadline: float,
        control: bool,
        keeps_alive: bool = True,
    ) -> None:
        self.message = message
        self.promise = promise
        self.size = size
        self.deadline = deadline
        self.control = control
        self.keeps_alive = keeps_alive


class MailboxStatistics(msgspec.Struct, frozen=True):
    """What a mailbox holds."""

    messages: int
    bytes: int


class Mailbox:
    """First in, first out."""

    __slots__ = ("_bytes", "_counted", "_max_bytes", "_max_messages", "_queue", "_quota")

    def __init__(self, max_messages: int, max_bytes: int, quota: Quota) -> None:
        self._queue: deque[Envelope] = deque()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._counted = 0
        self._bytes = 0
        self._quota = quota

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, envelope: Envelope) -> None:
        """Queue it.

        Raises:
            MailboxFull: over the count or the bytes, or over its owner's share; the envelope was
                not taken.
        """
        if not envelope.control:
            if self._counted >= self._max_messages:
                probe("mailbox_full_of_messages")
                raise MailboxFull(
                    f"the session's mailbox holds its {self._max_messages} messages; nothing ran, "
                    "retry later",
                    limit="messages",
                )
            # A single message over the bound may still pass an empty mailbox, or it could never be
            # delivered.
            if self._bytes + envelope.size > self._max_bytes and self._counted:
                probe("mailbox_full_of_bytes")
                raise MailboxFull(
                    f"the session's mailbox holds {self._bytes} of its {self._max_bytes} bytes; "
                    "nothing ran, retry later",
                    limit="bytes",
                )
            if not self._quota.allows(envelope.size):
                raise quota_exhausted()
            self._counted += 1
            self._bytes += envelope.size
            self._quota.take(envelope.size)
        self._queue.append(envelope)

    def offer(self, envelope: Envelope) -> bool:
        """Queue it if there is room."""
        try:
            self.put(envelope)
        except MailboxFull:
            return False
        return True

    @property
    def head(self) -> Envelope:
        """The oldest, left where it is."""
        return self._queue[0]

    @property
    def soonest(self) -> float:
        """The earliest deadline in it."""
        return min((envelope.deadline for envelope in self._queue), default=float("inf"))

    def get(self) -> Envelope:
        """The oldest."""
        envelope = self._queue.popleft()
        self._forget(envelope)
        return envelope

    def put_back(self, envelope: Envelope) -> None:
        """Return what `get` gave, to its old place."""
        self._queue.appendleft(envelope)
        if not envelope.control:
            self._counted += 1
            self._bytes += envelope.size
            self._quota.take(envelope.size)

    def take_expired(self, now: float) -> list[Envelope]:
        """Remove and return what nobody waits for any longer: past its deadline, or its sender
        gone.
        """
        expired = [
            e for e in self._queue if not e.control and (e.deadline <= now or e.promise.abandoned)
        ]
        if expired:
            gone = set(map(id, expired))
            self._queue = deque(e for e in self._queue if id(e) not in gone)
            for envelope in expired:
                self._forget(envelope)
        return expired

    def take_all(self) -> list[Envelope]:
        """Empty it."""
        envelopes = list(self._queue)
        self._queue.clear()
        for envelope in envelopes:
            self._forget(envelope)
        return envelopes

    def statistics(self) -> MailboxStatistics:
        """What it holds now."""
        return MailboxStatistics(len(self._queue), self._bytes)

    def _forget(self, envelope: Envelope) -> None:
        if not envelope.control:
            self._counted -= 1
            self._bytes -= envelope.size
            self._quota.give(envelope.size)


def quota_exhausted() -> MailboxFull:
    """What a request is told whose owner has its share waiting already."""
    return MailboxFull(
        "too much waits for its turn or for the disk, of all users or of this one; nothing ran, "
        "retry later",
        limit="total",
    )
