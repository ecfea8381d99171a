"""Both ends of a connection, without sockets and without an event loop: bytes in, bytes out.

All that is put into an end during one tick of the event loop leaves in one frame. A frame is cut
where it reaches 256 kB, so that nobody decodes for long; a single message may be longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from remora.actors.wire_types import to_sent
from remora.cluster.wire import (
    ENCODER,
    LENGTH,
    MAX_FRAME,
    OLDEST,
    WIRE,
    Ask,
    Bye,
    Call,
    Cancel,
    Draining,
    Frames,
    Hello,
    Outcome,
    Raised,
    Replies,
    Value,
    Welcome,
    WireError,
    check_wire,
    decode_replies,
    decode_requests,
    restore_error,
    to_raised,
)
from remora.errors import InvalidInput, RemoraError

WINDOW = 8 << 20
"""Bytes that may be on their way in one direction."""

Work: TypeAlias = Ask | Call | Cancel

_encode_into = ENCODER.encode_into
_CUT = 1 << 18
_MAX_HELLO = 1 << 16
_ARRAY = 5  # bytes of the head of an array of any length
_FAILURES = (TypeError, ValueError, OverflowError, RecursionError, MemoryError)


class _Outbox:
    """The frames to be sent, in order."""

    def __init__(self, refuse: Callable[[Any, Exception], None], most: int = MAX_FRAME) -> None:
        self.items: deque[Any] = deque()
        self.most = most
        self._refuse = refuse

    def take(self, head: bytes) -> bytearray | None:
        """A frame with the next items, an array behind `head`; None if there are none."""
        items = self.items
        start = LENGTH.size + len(head)
        buffer = bytearray(start + _ARRAY)
        count = 0
        while items and len(buffer) < _CUT:
            item = items.popleft()
            before = len(buffer)
            try:
                _encode_into(item, buffer, before)
                if len(buffer) > self.most and before > start + _ARRAY:
                    del buffer[before:]  # alone it may be short enough
                    items.appendleft(item)
                    break
                if len(buffer) > self.most:
                    raise OverflowError(f"it takes {len(buffer)} bytes, of at most {self.most}")
            except _FAILURES as e:
                del buffer[before:]
                self._refuse(item, e)
            else:
                count += 1
        if not count:
            return None
        LENGTH.pack_into(buffer, 0, len(buffer) - LENGTH.size)
        buffer[LENGTH.size : start] = head
        buffer[start] = 0xDD  # an array whose length takes four bytes, the highest first
        buffer[start + 1 : start + _ARRAY] = count.to_bytes(4)
        return buffer


class WorkerEnd:
    """The worker's end.

    Args:
        hello: what it says first.
        refuse: called with a request that cannot be sent, and why.

    Attributes:
        welcome: the owner's answer; None until it is there.
        draining: the owner takes no more requests.
    """

    def __init__(self, hello: Hello, refuse: Callable[[Any, Exception], None]) -> None:
        self.welcome: Welcome | None = None
        self.draining = False
        self._out = _Outbox(refuse)
        self._out.items.append(hello)
        self._frames = Frames()
        self._parted = False

    @property
    def open(self) -> bool:
        """Return whether requests can be put."""
        return self.welcome is not None and not self.draining

    def put(self, request: Work) -> None:
        """Send a request; call it only while the end is open."""
        self._out.items.append(request)

    def take(self) -> bytearray | None:
        """The next frame to write; None if there is nothing to send now."""
        if self.draining and not self._parted:
            self._parted = True
            self._out.items.append(Bye())
        return self._out.take(b"")

    def feed(self, data: bytes) -> list[Replies]:
        """Return what has arrived for requests.

        Raises:
            WireError: it is not the protocol.
            RemoraError: the owner refuses the connection.
        """
        found = []
        for payload in self._frames.feed(data):
            replies = decode_replies(payload)
            if any(number == 0 for number, _ in replies[1]):
                replies = (replies[0], self._take_notices(replies[1]))
            if self.welcome is None or len(replies[0]) != len(self.welcome.shards):
                raise WireError("replies before the welcome, or of other shards")
            found.append(replies)
        return found

    def _take_notices(self, replies: Sequence[tuple[int, Value]]) -> list[tuple[int, Value]]:
        rest = []
        for number, value in replies:
            match value:
                case _ if number:
                    rest.append((number, value))
                case Welcome() if self.welcome is None:
                    self.welcome = value
                    self._out.most = min(value.max_frame, MAX_FRAME)
                case Raised() if self.welcome is None:
                    raise restore_error(value)
                case Draining():
                    self.draining = True
                case _:
                    raise WireError(f"unexpected from an owner: {type(value).__name__}")
        return rest


class OwnerEnd:
    """The owner's end.

    Args:
        greet: gives the welcome for a worker, or raises what refuses it.
        epochs: of all shards, encoded.
        max_frame: bytes that a frame may have.

    Attributes:
        hello: what the worker said; None until it has.
        parted: the worker sends nothing more.
        refused: the worker is not served: close the connection when all is written.
        queued: replies that wait to be written.
    """

    def __init__(
        self, greet: Callable[[Hello], Welcome], epochs: bytes, *, max_frame: int = MAX_FRAME
    ) -> None:
        self.hello: Hello | None = None
        self.parted = self.refused = False
        self._greet = greet
        self._head = b"\x92" + epochs
        self._out = _Outbox(self._cannot_send, max_frame)
        self._frames = Frames(_MAX_HELLO)

    @property
    def queued(self) -> int:
        """Replies that wait to be written."""
        return len(self._out.items)

    def feed(self, data: bytes) -> list[Work]:
        """The requests that have arrived.

        Raises:
            WireError: it is not the protocol.
        """
        if self.refused:
            return []
        found: list[Work] = []
        for payload in self._frames.feed(data):
            requests = decode_requests(payload)
            if self.hello is None:
                self._take_hello(requests)
                continue
            for one in requests:
                if isinstance(one, (Hello, Bye)) or self.parted:
                    if not isinstance(one, Bye) or self.parted:
                        raise WireError(f"unexpected from a worker: {type(one).__name__}")
                    self.parted = True
                else:
                    found.append(one)
        return found

    def _take_hello(self, requests: Sequence[object]) -> None:
        if len(requests) != 1 or not isinstance(requests[0], Hello):
            raise WireError("a worker says hello first, and waits")
        self.hello = hello = requests[0]
        self._frames.most = MAX_FRAME
        try:
            welcome = self._greet(hello)
            check_wire(hello, WIRE, OLDEST, welcome.release)
        except RemoraError as e:
            self.refused = True
            self.reply(0, to_raised(e))
        else:
            self.reply(0, welcome)

    def reply(self, number: int, value: Outcome) -> None:
        """Send what came of a request."""
        self._out.items.append((number, to_sent(value)))

    def drain(self) -> None:
        """Tell the worker that nothing more is taken."""
        self.reply(0, Draining())

    def take(self) -> bytearray | None:
        """The next frame to write; None if there is nothing to send now."""
        return self._out.take(self._head)

    def _cannot_send(self, item: tuple[int, Value], error: Exception) -> None:
        text = f"the answer cannot be sent between processes: {error}; ask for less at once"
        self.reply(item[0], to_raised(InvalidInput(text)))
