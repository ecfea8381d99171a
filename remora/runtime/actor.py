"""The kernel's view of an actor: a behavior over plain state, and the decision on a message.

To handle a message is a plain function call: nothing interleaves with it, it cannot wait for
itself, and a replay needs no event loop. `Behavior.handle` only reads the state. What it wants it
returns as a `Decision`. The state changes in `Behavior.apply` alone, one journalled record at a
time, which is also how a state is rebuilt: replay equals live.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from remora.runtime.jobs import Job

State = TypeVar("State")
Reply = TypeVar("Reply")


class Asked(Generic[Reply]):
    """A base of messages to which an actor replies: it says the type of the reply."""

    __slots__ = ()


class Decision(msgspec.Struct, eq=False):
    """The decision of an actor on a message.

    Attributes:
        reply: the answer; sent when everything that it depends on is durable.
        records: applied to the state, and made durable together.
        volatile: applied to the state only; lost when the actor leaves memory.
        jobs: submitted to the supervisor once the records are durable; the records contain them.
        cancel: ids of jobs that these records made pointless.
        expedite: ids of jobs that must end soon.
        urgent: somebody waits for the jobs: they do not wait for others.
        size: bytes of the records, for the bounds of the log and the mailboxes.
    """

    reply: Any = None
    records: Sequence[Any] = ()
    volatile: Sequence[Any] = ()
    jobs: Sequence[Job] = ()
    cancel: Sequence[str] = ()
    expedite: Sequence[str] = ()
    urgent: bool = False
    size: int = 0


class NeedsLookup:
    """The message cannot be decided without cold records: the cell asks the log, then tries again.

    Attributes:
        query: the question for the log.
        store: puts the log's answer where `Behavior.handle` finds it.
    """

    __slots__ = ("query", "store")

    def __init__(self, query: Any, store: Callable[[Any], None]) -> None:
        self.query = query
        self.store = store


class Image(Protocol):
    """The stored image of an actor."""

    @property
    def jobs(self) -> Sequence[Job]:
        """The actor's jobs that have not ended."""
        ...

    @property
    def is_large(self) -> bool:
        """Return whether it takes milliseconds to make a state of it: that is done in a thread."""
        ...


class Behavior(Protocol[State]):
    """The functions of an actor. None of them may await or block."""

    def restore(self, key: Hashable, image: Any) -> State:
        """The state that the committed records add up to; of a large image, in a thread."""
        ...

    def handle(self, state: State, message: Any) -> Decision | NeedsLookup:
        """Decide without changing the state. An exception fails this one message (G11)."""
        ...

    def apply(self, state: State, record: Any) -> None:
        """Apply one record. An exception here breaks the actor, which is then restored."""
        ...

    def on_idle(self, state: State, *, closing: bool = False) -> Any | None:
        """A message to handle before the actor leaves memory, or the runtime closes; or None."""
        ...

    def size(self, state: State) -> int:
        """Approximate bytes of the state."""
        ...
