"""What an actor is to the kernel.

A behaviour over plain state, and the turn that it answers a message with.

A turn is a plain function, so nothing can interleave inside it, it cannot wait for itself, and
replaying it needs no event loop. `handle` only looks at the state. What it wants of the world it
returns as a `Decision`; the state changes in `apply` alone, one journalled record at a time, which
is also how a state is rebuilt: replay equals live.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeVar

from remora.runtime.log import Job

__all__ = ["Behavior", "Decision", "NeedsLookup"]

State = TypeVar("State")


class Decision:
    """What a turn decided.

    Attributes:
        reply: the answer; held back until everything it saw is durable.
        records: to be applied to the state, and made durable together.
        volatile: to be applied to the state and forgotten with it (what was last shown, not what is
            true).
        jobs: for the supervisor, once the records are durable; the records must contain them.
        cancel: ids of jobs that these records made pointless.
        expedite: ids of jobs that can no longer be waited for.
        size: bytes of the records, for the log's and the mailbox's bounds.
    """

    __slots__ = ("cancel", "expedite", "jobs", "records", "reply", "size", "volatile")

    def __init__(
        self,
        reply: Any = None,
        records: Sequence[Any] = (),
        *,
        volatile: Sequence[Any] = (),
        jobs: Sequence[Job] = (),
        cancel: Sequence[str] = (),
        expedite: Sequence[str] = (),
        size: int = 0,
    ) -> None:
        self.reply = reply
        self.records = records
        self.volatile = volatile
        self.jobs = jobs
        self.cancel = cancel
        self.expedite = expedite
        self.size = size


class NeedsLookup:
    """A turn that cannot decide without cold records.

    The cell fetches the answer and runs the turn again.
    """

    __slots__ = ("query",)

    def __init__(self, query: Any) -> None:
        self.query = query


class Behavior(Protocol[State]):
    """The functions that make an actor.

    None of them may await, block, or keep a reference to what it returns.
    """

    def restore(self, key: Hashable, image: Any) -> State:
        """The state that the committed records add up to."""
        ...

    def jobs(self, image: Any) -> Sequence[Job]:
        """The jobs of this actor that the log holds.

        Submitting one that is known already does nothing.
        """
        ...

    def handle(self, state: State, message: Any) -> Decision | NeedsLookup:
        """Decide; the state must not change here. An exception fails this one message (G11)."""
        ...

    def apply(self, state: State, record: Any) -> None:
        """Fold one record into the state.

        An exception here breaks the actor, which is then restored.
        """
        ...

    def store_answer(self, state: State, query: Any, answer: Any) -> None:
        """Take the answer that a turn missed."""
        ...

    def on_idle(self, state: State) -> Any | None:
        """A message to run before this idle actor may leave memory, or None if it may."""
        ...

    def on_close(self, state: State) -> Any | None:
        """A message to run before the runtime closes, for what this actor had put off writing.

        None for nothing.
        """
        ...

    def size(self, state: State) -> int:
        """Approximate bytes that the state holds."""
        ...
