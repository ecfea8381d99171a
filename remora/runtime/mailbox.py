"""A bounded queue in front of a busy cell; an idle cell has none.

Bounded by count and by bytes, its own and those of all mailboxes (`fairness`). The newest message
is refused, an accepted one is never dropped for lack of room, so `MailboxFull` always means that
nothing ran. Age is bounded by the deadline of each message. Control messages (results of jobs,
passivation) are not counted: a full mailbox must not keep out what empties it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from remora.errors import MailboxFull
from remora.runtime.fairness import Quota
from remora.runtime.probes import probe
from remora.runtime.promise import Promise


class Envelope(msgspec.Struct, eq=False):
    """A message that waits to be handled.

    Attributes:
        message: for the actor.
        promise: gets the reply.
        size: bytes of the message.
        deadline: monotonic time at which its sender gives up.
        control: it comes from the runtime: never refused, never expired.
        keeps_alive: the actor counts as used by it.
        ready: it can be handled; False while it only has its place in the order, and something of
            the message is still being computed.
    """

    message: Any
    promise: Promise
    size: int
    deadline: float
    control: bool
    keeps_alive: bool = True
    ready: bool = True

    @property
    def holds_up(self) -> bool:
        """Return whether later messages must wait for it."""
        return not self.ready and not self.promise.abandoned


class Mailbox:
    """First in, first out.

    Args:
        max_messages: how many may wait.
        max_behind: how many more, behind one that is not ready: they would be handled by now.
        max_bytes: how many bytes may wait.
        quota: of the actor's owner.
    """

    __slots__ = (
        "_bytes",
        "_counted",
        "_max_behind",
        "_max_bytes",
        "_max_messages",
        "_queue",
        "_quota",
    )

    def __init__(self, max_messages: int, max_behind: int, max_bytes: int, quota: Quota) -> None:
        self._queue: deque[Envelope] = deque()
        self._max_messages = max_messages
        self._max_behind = max_behind
        self._max_bytes = max_bytes
        self._counted = 0
        self._bytes = 0
        self._quota = quota

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, envelope: Envelope) -> None:
        """Queue it.

        Raises:
            MailboxFull: over the count, the bytes or its owner's quota; it was not taken.
        """
        if not envelope.control:
            if self._counted >= self._max_messages and (
                self._queue[0].ready or self._counted >= self._max_messages + self._max_behind
            ):
                probe("mailbox_full_of_messages")
                raise MailboxFull(
                    f"the actor's mailbox holds its {self._max_messages} messages; "
                    "nothing ran, retry later",
                    limit="messages",
                )
            # An empty mailbox takes a message of any size, or that one could never be delivered.
            if self._bytes + envelope.size > self._max_bytes and self._counted:
                probe("mailbox_full_of_bytes")
                raise MailboxFull(
                    f"the actor's mailbox holds {self._bytes} of its {self._max_bytes} bytes; "
                    "nothing ran, retry later",
                    limit="bytes",
                )
            if not self._quota.allows(envelope.size):
                raise MailboxFull(
                    "too much waits to be handled or to be committed, of all users or of this one; "
                    "nothing ran, retry later",
                    limit="total",
                )
            self._count(envelope)
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
        """The oldest message, not removed."""
        return self._queue[0]

    @property
    def earliest_deadline(self) -> float:
        """The earliest deadline of its messages."""
        return min((envelope.deadline for envelope in self._queue), default=float("inf"))

    def get(self) -> Envelope:
        """Remove and return the oldest message."""
        envelope = self._queue.popleft()
        self._discount(envelope)
        return envelope

    def put_first(self, envelope: Envelope) -> None:
        """Queue a message that is handled next, whatever the bounds."""
        self._queue.appendleft(envelope)
        if not envelope.control:
            self._count(envelope)

    def take_expired(self, now: float) -> list[Envelope]:
        """Remove and return messages past their deadline, or whose sender gave up."""
        expired = [
            e for e in self._queue if not e.control and (e.deadline <= now or e.promise.abandoned)
        ]
        if expired:
            gone = set(map(id, expired))
            self._queue = deque(e for e in self._queue if id(e) not in gone)
            for envelope in expired:
                self._discount(envelope)
        return expired

    def take_all(self) -> list[Envelope]:
        """Remove and return all messages."""
        envelopes = list(self._queue)
        self._queue.clear()
        for envelope in envelopes:
            self._discount(envelope)
        return envelopes

    def _count(self, envelope: Envelope) -> None:
        self._counted += 1
        self._bytes += envelope.size
        self._quota.reserve(envelope.size)

    def _discount(self, envelope: Envelope) -> None:
        if not envelope.control:
            self._counted -= 1
            self._bytes -= envelope.size
            self._quota.release(envelope.size)
