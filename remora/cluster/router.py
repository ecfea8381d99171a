"""A worker's requests, from the call to the answer, whatever becomes of the owner in between.

No socket, no event loop and no clock: the time is given. One router for each owner address.

What was not sent yet is sent to the next owner. What was sent and not answered may have taken
effect: requests that do no harm a second time are sent again, in their order; the others end as
`OutcomeUnknown`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

from remora.actors.keyed_state import ReadNamed, ReadValue, ReadValues
from remora.actors.session.messages import Append, FindTurn, Flush, Inspect, Load
from remora.actors.user.messages import (
    ExpireSynopsis,
    InspectUser,
    Learn,
    ReadGrants,
    Remember,
    SearchWorking,
)
from remora.actors.wire_types import to_shown
from remora.cluster.link import WorkerEnd
from remora.cluster.wire import (
    Ask,
    Call,
    Cancel,
    Progress,
    Raised,
    Replies,
    WireError,
    restore_error,
)
from remora.errors import (
    InvalidInput,
    MailboxFull,
    OutcomeUnknown,
    OwnershipLost,
    OwnerUnreachable,
)
from remora.runtime.promise import Promise

Repeat: TypeAlias = Literal["never", "write", "read"]
"""Whether a request may be sent again: a write that has no effect a second time, or a read."""

_READS = frozenset(
    {
        FindTurn,
        Inspect,
        InspectUser,
        Load,
        ReadGrants,
        ReadNamed,
        ReadValue,
        ReadValues,
        SearchWorking,
    }
)
_REPEATABLE_WRITES = frozenset({ExpireSynopsis, Flush, Learn, Remember})

_LATE_S = 5.0  # an owner that is there answers by a request's deadline, or a little later
_REQUEST_BYTES = 1024  # of a request, besides its content
_MOST_TRIES = 10  # what breaks every connection is not sent for ever


def repeat_of(message: object) -> Repeat:
    """Return whether an actor may be told this again, where nobody knows whether it was handled."""
    kind = type(message)
    if kind is Append:
        return "never" if message.key is None else "write"  # type: ignore[attr-defined]
    if kind in _READS:
        return "read"
    return "write" if kind in _REPEATABLE_WRITES else "never"


class _Pending:
    """A request without an answer."""

    __slots__ = ("deadline", "on_progress", "promise", "repeat", "request", "sent", "size", "tries")

    def __init__(
        self,
        request: Ask | Call,
        promise: Promise | None,
        deadline: float,
        *,
        repeat: Repeat,
        size: int,
        on_progress: Callable[[int, int], object] | None,
    ) -> None:
        self.request = request
        self.promise = promise
        self.deadline = deadline
        self.repeat = repeat
        self.size = size
        self.on_progress = on_progress
        self.sent = False
        """On the connection that there is."""
        self.tries = 0
        """Connections that it was sent on."""

    @property
    def uncertain(self) -> bool:
        """Return whether it may have changed something."""
        return self.tries > 0 and self.repeat != "read"


class Router:
    """Sends requests to the owner, and the same ones to the next owner if need be.

    Args:
        max_bytes: of content in requests that wait to be sent.
        wake: called when there is something to send, or to expire.

    Attributes:
        epochs: the newest epoch of each shard that an owner has shown.
    """

    def __init__(self, max_bytes: int, wake: Callable[[], None]) -> None:
        self.epochs: tuple[int, ...] = ()
        self._max_bytes = max_bytes
        self._wake = wake
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        self._unsent: deque[_Pending] = deque()
        self._unsent_bytes = 0
        self._cancelled: list[Cancel] = []
        self._end: WorkerEnd | None = None
        self.repeated = self.unknown = self.stale = 0

    # -- requests ----------------------------------------------------------------------------------

    def next_number(self) -> int:
        """The number of the next request; never the same again."""
        self._number += 1
        return self._number

    def submit(
        self,
        request: Ask | Call,
        promise: Promise | None,
        deadline: float,
        *,
        repeat: Repeat,
        size: int = 0,
        on_progress: Callable[[int, int], object] | None = None,
        first: bool = False,
        always: bool = False,
    ) -> None:
        """Send a request, now or when there is an owner.

        Args:
            request: its number is 0, or from `next_number`.
            promise: gets the answer; None if nobody waits.
            deadline: when the caller gives up; infinity for never.
            repeat: whether it may be sent again, to another owner.
            size: bytes of content.
            on_progress: called with what is done and what there is to do.
            first: before everything that waits.
            always: however much waits.

        Raises:
            MailboxFull: too much waits to be sent.
        """
        if self._unsent and self._unsent_bytes + size > self._max_bytes and not always:
            raise MailboxFull(
                "too much waits for the owner of the memory; nothing ran, retry later",
                limit="total",
            )
        pending = _Pending(
            request, promise, deadline, repeat=repeat, size=size, on_progress=on_progress
        )
        if request.number:
            self._pending[request.number] = pending
        if first:
            self._unsent.appendleft(pending)
        else:
            self._unsent.append(pending)
        self._unsent_bytes += size + _REQUEST_BYTES
        self._wake()

    def cancel(self, number: int) -> None:
        """Nobody waits for this request any more; if it was not sent, it never is."""
        pending = self._pending.pop(number, None)
        if pending is not None and pending.sent and self._end is not None:
            self._cancelled.append(Cancel(number))
            self._wake()

    @property
    def outstanding(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    # -- the connection ----------------------------------------------------------------------------

    def attach(self, end: WorkerEnd) -> None:
        """Send everything that waits over this connection, which is open.

        Raises:
            OwnershipLost: fewer owners than before are counted. Only the owner that holds the lock
                is connected to, so its journal is an earlier copy.
        """
        assert end.welcome is not None
        epochs = tuple(shard.epoch for shard in end.welcome.shards)
        if not self._take_epochs(epochs):
            raise OwnershipLost(
                "an earlier copy of the memory was put in place while this process used it: close "
                "the memory, and connect again"
            )
        self._end = end
        if self._unsent:
            self._wake()

    def detach(self) -> None:
        """The connection is gone: what may be sent again is, first; nobody knows of the rest."""
        if self._end is None:
            return
        self._end = None
        self._cancelled.clear()
        again: list[_Pending] = []
        for number, pending in list(self._pending.items()):
            if not pending.sent:
                continue
            if pending.repeat != "never" and pending.tries < _MOST_TRIES:
                self.repeated += 1
                pending.sent = False
                again.append(pending)
            else:
                self.unknown += 1
                del self._pending[number]
                self._reject(pending, _unknown() if pending.uncertain else _lost_often())
        self._unsent.extendleft(reversed(again))
        self._unsent_bytes += sum(one.size + _REQUEST_BYTES for one in again)

    def fail(self, error: Exception) -> None:
        """No owner can be had: answer everything that waits with this error."""
        self.detach()
        unsent, self._unsent, self._unsent_bytes = self._unsent, deque(), 0
        for one in unsent:
            self._pending.pop(one.request.number, None)
            self._reject(one, _unknown() if one.uncertain else error)

    def pump(self, room: Callable[[], bool]) -> Iterable[bytearray]:
        """Frames to write, while there is `room`."""
        end = self._end
        while end is not None and room():
            if end.open:
                self._fill(end)
            frame = end.take()
            if frame is None:
                return
            yield frame

    def _fill(self, end: WorkerEnd) -> None:
        for cancel in self._cancelled:
            end.put(cancel)
        self._cancelled.clear()
        unsent, bytes_left = self._unsent, 1 << 18
        while unsent and bytes_left > 0:
            one = unsent.popleft()
            one_bytes = one.size + _REQUEST_BYTES
            self._unsent_bytes -= one_bytes
            if one.request.number and one.request.number not in self._pending:
                continue  # cancelled
            one.sent = True
            one.tries += 1
            end.put(one.request)
            bytes_left -= one_bytes

    def refuse(self, request: object, reason: Exception) -> None:
        """A request cannot be sent."""
        pending = self._pending.pop(getattr(request, "number", 0), None)
        if pending is not None and pending.promise is not None:
            text = f"this cannot be sent to the owner of the memory, and did not run: {reason}"
            pending.promise.reject(InvalidInput(text))

    # -- answers -----------------------------------------------------------------------------------

    def take_replies(self, replies: Replies) -> None:
        """Answer those who wait.

        Raises:
            WireError: an earlier owner of a shard sent them; nobody gets them.
        """
        epochs, answers = replies
        if not answers:  # a welcome: `attach` looks at its epochs
            return
        if epochs != self.epochs and not self._take_epochs(epochs):
            self.stale += len(answers)
            raise WireError("an earlier owner of the memory answered")
        pending = self._pending
        for number, value in answers:
            if type(value) is Progress:
                self._tell_progress(number, value)
                continue
            one = pending.get(number)
            if one is None:
                continue
            # before it is taken out: one that cannot be read must not leave its caller waiting
            outcome: Any = restore_error(value) if type(value) is Raised else to_shown(value)
            del pending[number]
            if one.promise is None:
                continue
            if type(value) is Raised:
                one.promise.reject(outcome)
            else:
                one.promise.resolve(outcome)

    def _tell_progress(self, number: int, value: Progress) -> None:
        one = self._pending.get(number)
        if one is not None and one.on_progress is not None:
            one.on_progress(value.done, value.all)

    def _take_epochs(self, epochs: tuple[int, ...]) -> bool:
        """Note the epochs; whether none of them is older than a known one."""
        if any(new < known for new, known in zip(epochs, self.epochs, strict=False)):
            return False
        self.epochs = epochs
        return True

    def expire(self, now: float) -> float:
        """Answer requests past their deadline; returns the earliest of the other deadlines."""
        earliest = float("inf")
        late = 0.0 if self._end is None else _LATE_S
        for number, one in list(self._pending.items()):
            limit = one.deadline + (late if one.sent else 0.0)
            if limit > now:
                earliest = min(earliest, limit)
                continue
            self.cancel(number)
            self._reject(one, _unknown() if one.uncertain else _unreachable())
        if self._end is None:
            self._drop_cancelled()
        return earliest

    def _drop_cancelled(self) -> None:
        """Forget unsent requests that nobody waits for any more; they would be skipped later."""
        pending = self._pending
        left = [
            one for one in self._unsent if not one.request.number or one.request.number in pending
        ]
        if len(left) < len(self._unsent):
            self._unsent = deque(left)
            self._unsent_bytes = sum(one.size + _REQUEST_BYTES for one in left)

    @staticmethod
    def _reject(one: _Pending, error: Exception) -> None:
        promise, one.promise = one.promise, None
        if promise is not None:
            promise.reject(error)


def _unknown() -> OutcomeUnknown:
    return OutcomeUnknown(
        "the owner of the memory went away before it answered; retry with the same key"
    )


def _lost_often() -> OwnerUnreachable:
    return OwnerUnreachable(
        f"the connection to the owner of the memory ended {_MOST_TRIES} times before it answered "
        "this; nothing changed: look at the owner's log"
    )


def _unreachable() -> OwnerUnreachable:
    return OwnerUnreachable("no owner of the memory answered in time; nothing ran, retry later")
