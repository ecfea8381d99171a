"""The parts that handles use, each behind a narrow port.

A handle sees no actor registry, journal or store. Where the actors live in another process, the
same handles get other implementations of the same ports.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Literal, NoReturn, Protocol

import msgspec

from remora.actors.session.messages import Append, Replace, TurnView
from remora.actors.user.messages import PruneNow, Synopsis
from remora.config import Config
from remora.errors import InvalidInput, OwnershipLost, RuntimeClosed
from remora.ids import SessionKey, UserKey
from remora.messages import Entry, Message, Receipt
from remora.recall.context import Context
from remora.recall.memory import Memory
from remora.runtime.actor import Asked, Reply
from remora.runtime.registry import ActorRegistry
from remora.runtime.shared_call import SharedCall
from remora.runtime.threads import HomeLoop
from remora.services.appending import Instructions
from remora.services.archive import Followed, SessionStatistics, UserStatistics
from remora.services.deleting import DeletionReceipt, DeletionRequest
from remora.services.erasure import ErasureReceipt
from remora.services.intake import Intake
from remora.services.metadata import MetadataFilter
from remora.services.remembered import MemoryPage
from remora.storage.export.transfer import SessionExport
from remora.storage.ports import (
    Journal,
    JournalCounts,
    ListingPage,
    RowOrder,
    Scope,
    SessionListing,
    UserListing,
)


class Actors(Protocol):
    """Sessions and users; see `remora.runtime.registry.ActorRegistry`."""

    def ask(
        self,
        key: SessionKey | UserKey,
        message: Asked[Reply],
        *,
        size: int = 0,
        timeout_s: float | None = None,
    ) -> Awaitable[Reply]:
        """Have the actor handle `message`; its reply comes once that is durable."""
        ...

    def post(self, key: SessionKey | UserKey, message: Any) -> bool:
        """Have the actor handle `message` without waiting for it; False if it was refused."""
        ...


class Appends(Protocol):
    """Appends; see `remora.services.appending.LocalAppends`."""

    async def append(self, key: SessionKey, request: Append, timeout_s: float | None) -> Receipt:
        """Append messages, and wait as the session's buffer policy says."""
        ...

    def begin(
        self, key: SessionKey, request: Append, timeout_s: float | None
    ) -> Awaitable[Receipt]:
        """`append` of messages with attachments; they have their place in the order on return."""
        ...

    async def replace(self, key: SessionKey, request: Replace) -> Receipt:
        """Replace a session's buffer."""
        ...


class Contexts(Protocol):
    """The port of contexts; see `remora.services.contexts.LocalContexts`."""

    async def load(
        self,
        key: SessionKey,
        budget: int,
        query: str | None = None,
        *,
        override: Sequence[Entry] | None = None,
        about: Sequence[Entry] | None = None,
        at: int | None = None,
        turn: TurnView | None = None,
        timeout_s: float | None = None,
    ) -> Context:
        """The session's context within `budget` tokens."""
        ...

    async def synopsis(self, user: str, *, refresh: bool, timeout_s: float | None) -> Synopsis:
        """The user's profile, written first where it is missing or expired."""
        ...

    def note_summaries(self, user: str, digests: Sequence[bytes]) -> None:
        """Remember that the user was shown summaries, by the digests of their texts."""
        ...

    async def find_summaries(self, user: str, digests: Sequence[bytes]) -> Sequence[bool]:
        """Which of these texts the user was shown as summaries; by their digests."""
        ...


class Turns(Protocol):
    """The turns of each session, one after the other; see `remora.services.turns.LocalTurns`."""

    async def begin(self, key: SessionKey, *, wait: bool = True) -> int:
        """Begin a turn, when those before it have ended; returns its number, which `end` takes.

        Without `wait`, 0 if another turn of the session runs or waits. If the caller is cancelled,
        the turn has not begun, or has ended.
        """
        ...

    def end(self, key: SessionKey, number: int) -> None:
        """End this turn, if it runs; the next in line begins."""
        ...

    def watch(self, key: SessionKey, interrupt: Callable[[], Awaitable[None]]) -> None:
        """Call `interrupt` when the runtime closes before the session's turn has ended."""
        ...

    def begin_call(self, function: Callable[[], Awaitable[object]]) -> SharedCall[object]:
        """Call `function` in a task of the runtime, which its caller's cancellation does not end.

        Raises:
            RuntimeClosed: the runtime has closed.
        """
        ...


class Archive(Protocol):
    """The port of the journal's reads; see `remora.services.archive.LocalArchive`."""

    async def history(
        self,
        key: SessionKey,
        *,
        include_archived: bool,
        at: int | None,
        after: int = 0,
        limit: int | None = None,
        attachments: bool = True,
    ) -> list[Message]:
        """The session's messages, oldest first."""
        ...

    async def blobs(self, user: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The user's attachments of these digests; what is missing is left out."""
        ...

    async def follow(
        self, key: SessionKey, *, after: int | None = None, sid: int = 0, limit: int = 100
    ) -> Followed:
        """Messages with larger numbers, when there are some; None: those that are not there yet."""
        ...

    async def stats(self, key: SessionKey) -> SessionStatistics:
        """The session in figures."""
        ...

    async def user_stats(self, user: str) -> UserStatistics:
        """The user in figures."""
        ...

    async def sessions(self, user: str, page: ListingPage) -> Sequence[SessionListing]:
        """A page of the user's sessions."""
        ...

    async def users(self, page: ListingPage) -> Sequence[UserListing]:
        """A page of all users."""
        ...

    async def counts(self, user: str | None = None) -> JournalCounts:
        """Rows of the journal, in all or of one user."""
        ...

    async def fork(self, key: SessionKey, copy: SessionKey, at: int | None) -> None:
        """Begin the session `copy` as `key` is now, or was at message `at`."""
        ...


class Recalls(Protocol):
    """Long-term memory; see `remora.services.recalls.LocalRecalls`."""

    async def recall(
        self, user: str, query: str, k: int, scope: Scope, where: MetadataFilter
    ) -> list[Memory]:
        """The `k` best memories, best first; they count as retrieved."""
        ...

    async def memory(self, user: str, id_: str, agent: str | None) -> Memory | None:
        """A recorded memory of the user, or of this agent."""
        ...

    async def remembered(self, user: str, page: MemoryPage) -> list[Memory]:
        """A page of recorded memories."""
        ...

    async def memories(
        self, user: str, scope: Scope, limit: int | None = None, by: RowOrder = "created"
    ) -> list[Memory]:
        """All memories, or the first of them."""
        ...

    async def arrow_table(self, user: str, scope: Scope) -> Any:
        """All rows with their vectors and access figures, as a `pyarrow.Table`."""
        ...

    async def prune(self, user: str, message: PruneNow, *, wait: bool) -> None:
        """Remove what matters least; with `wait`, return when it is done."""
        ...


class Work(Protocol):
    """Background work; see `remora.api.build.LocalWork`."""

    async def drain(self, key: SessionKey | UserKey) -> None:
        """Return when the actor has no background work left."""
        ...

    async def forget(self, user: str, session: str | None = None) -> ErasureReceipt:
        """Erase the user, or one session; return when no byte is left."""
        ...

    async def delete(self, request: DeletionRequest) -> DeletionReceipt:
        """Delete messages and memories; return when nothing shows them any more."""
        ...


class Transfers(Protocol):
    """Sessions as plain data; see `remora.api.build.LocalTransfers`."""

    async def export_session(self, key: SessionKey) -> SessionExport | None:
        """The session as plain data; None if it has neither messages nor keyed state."""
        ...

    async def import_session(self, export: SessionExport, key: SessionKey) -> None:
        """Begin the session `key` with what `export` holds."""
        ...


class Parts(msgspec.Struct, frozen=True):
    """The parts of a runtime that a handle uses.

    Attributes:
        instance: identifies the journal; ids of messages are made of it.
        intake: checks, redacts, encodes and counts; always in the caller's process.
        recalls: None if long-term memory is switched off.
    """

    config: Config
    instance: str
    intake: Intake
    actors: Actors
    appends: Appends
    contexts: Contexts
    turns: Turns
    archive: Archive
    recalls: Recalls | None
    work: Work
    transfers: Transfers


class TransferParts(msgspec.Struct, frozen=True):
    """The parts that exporting and importing use, in the process that has the journal.

    Attributes:
        working_bytes: what a user's working memory may hold.
        import_bytes: what one session, or one user, may take in an import of compressed files.
        indexed_blocks: names of a session's memory blocks whose rows can be made again from the
            journal.
        instructions: of users; None where none are noticed.
    """

    journal: Journal
    registry: ActorRegistry
    intake: Intake
    working_bytes: int
    import_bytes: int
    indexed_blocks: Callable[[SessionKey], Collection[str]]
    instructions: Instructions | None = None


def long_term_is_off() -> InvalidInput:
    """The error of what needs long-term memory where it is switched off."""
    return InvalidInput("long-term memory is switched off: long_term.enabled is false")


class OfOneProcess:
    """A memory, or a part of one that its handles lead to: neither is pickled or copied.

    Raises:
        InvalidInput: it is.
    """

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a memory belongs to its process: it, its sessions, users and other handles can be "
            "neither pickled nor copied. Pass the ids, and make the handle where it is used: "
            "runtime.session(user, session) costs nothing. Another process enters "
            "remora.connect(…), or a remora.Client"
        )


class PartsHolder(OfOneProcess):
    """Gives handles the parts of a runtime while it is open: a handle may be made before that.

    Args:
        where: names the memory directory in reprs.
        entered: how an application opens it.

    Attributes:
        phase: ``"not opened"``, ``"open"`` or ``"closed"``.
        lost: why the runtime ended by itself: the journal is not its own any more.
        wrap: makes other parts of those that handles are to use; None for these.
    """

    __slots__ = (
        "_check_lease",
        "_find_loop",
        "_home",
        "_loop",
        "_parts",
        "_why",
        "entered",
        "lost",
        "phase",
        "where",
        "wrap",
    )

    _parts: Parts
    _home: HomeLoop

    def __init__(
        self, where: str = "in memory", entered: str = "async with Runtime(…) as runtime"
    ) -> None:
        self.where = where
        self.entered = entered
        self.phase: Literal["not opened", "open", "closed"] = "not opened"
        self.lost = self._why = ""
        self.wrap: Callable[[Parts], Parts] | None = None
        self._loop: object = None
        self._find_loop: Callable[[], object] = object
        self._check_lease: Callable[[], None] = _nothing

    @property
    def parts(self) -> Parts:
        """The parts, for code on the event loop of the runtime.

        Raises:
            RuntimeClosed: it is not open.
            OwnershipLost: it ended because the journal is not its own any more.
            OwnerUnreachable: see `remora.storage.ports.Journal.check_lease`.
            WrongLoop: another event loop runs, or none.
        """
        try:
            here = self._find_loop() is self._loop
        except RuntimeError:  # no event loop runs in this thread
            here = False
        if not here:
            self.check_open()
            self._home.check()
        self._check_lease()
        return self._parts

    @property
    def parts_anywhere(self) -> Parts:
        """The parts, for other threads as well: for what asks no actor and does no I/O.

        Raises:
            RuntimeClosed, OwnershipLost: it is not open.
        """
        self.check_open()
        try:
            return self._parts
        except AttributeError:  # another thread has closed it since
            self.check_open()
            raise

    @property
    def home(self) -> object:
        """The event loop of the open runtime, for other threads.

        Raises:
            RuntimeClosed, OwnershipLost: it is not open.
        """
        self.check_open()
        return self._home.loop

    @property
    def is_here(self) -> bool:
        """Return whether the caller is on the event loop of the open runtime."""
        try:
            return self._find_loop() is self._loop
        except RuntimeError:  # no event loop runs in this thread
            return False

    @property
    def described(self) -> str:
        """The directory and the phase, for the repr of a handle."""
        return f"{self.where}, {self.phase}"

    def check_open(self) -> None:
        """Raise `RuntimeClosed`, or `OwnershipLost`, unless the runtime is open."""
        if self.lost:
            raise OwnershipLost(self.lost)
        if self.phase != "open":
            raise RuntimeClosed(
                self._why if self.phase == "closed" else f"open the runtime first: {self.entered}"
            )

    def open(self, parts: Parts, check_lease: Callable[[], None] | None = None) -> None:
        """Make the parts available to the event loop that runs, while `check_lease` returns."""
        self._check_lease = check_lease or _nothing
        self._parts, self.lost = parts if self.wrap is None else self.wrap(parts), ""
        self._home = HomeLoop()
        self._loop, self._find_loop = self._home.loop, self._home.find
        self.phase = "open"

    def close(self, lost: str = "", *, why: str = "the runtime is closed") -> None:
        """Have every handle raise `RuntimeClosed` from now on; `OwnershipLost`, if it was lost."""
        self.phase, self.lost, self._why = "closed", self.lost or lost, why
        self._loop, self._find_loop = None, object
        with suppress(AttributeError):
            del self._parts


def _nothing() -> None: ...
