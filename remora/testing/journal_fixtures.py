"""The common part of the checks of a journal: how they open it, write to it and run over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import anyio
import msgspec

from remora.api.runtime import Runtime
from remora.config import Config
from remora.errors import RemoraError
from remora.ids import SessionKey, UserKey
from remora.messages import Entry
from remora.models.ports import Line
from remora.runtime.log import Write, commit_records
from remora.storage.ports import Journal
from remora.storage.records import (
    Appended,
    Opened,
    SavedSession,
    SavedUser,
    StateChanged,
    StateItem,
)

Capability: TypeAlias = Literal[
    "owners", "commit_numbers", "connections", "late_commits", "processes", "bytes"
]
"""What a journal can do beyond the contract of a single owner.

``owners``: opening takes the journal over, and a former owner stores nothing more.
``commit_numbers``: it counts its commits. ``connections``: its connection can break.
``late_commits``: the database can store a commit after its connection broke. ``processes``:
another process can open it. ``bytes``: `scrub` leaves no byte of what was deleted.
"""

CommitFate: TypeAlias = Literal["stored", "not_stored", "late"]
"""What becomes of a commit whose connection breaks.

``stored`` and ``not_stored``: the database stores it, or does not. ``late``: not yet; the database
stores it when `JournalAccess.release_late_commit` is called, unless the journal prevents that.
"""


class JournalAccess:
    """Opens a journal for its checks, and breaks it for them.

    Subclass it and override what your journal's capabilities need; `__call__` is always needed.
    """

    async def __call__(self) -> Journal:
        """Open the journal: an empty one the first time, the same one again each other time."""
        raise NotImplementedError

    def break_next_commit(self, journal: Journal, fate: CommitFate) -> None:
        """Break this owner's connection during its next commit, before it hears the answer.

        For ``connections``; the fate ``late`` for ``late_commits`` only.
        """
        raise NotImplementedError

    async def release_late_commit(self) -> None:
        """Let the database go on with the commit whose fate is ``late``.

        For ``late_commits``. Returns when it is stored or refused; does nothing if the journal has
        cancelled it.
        """
        raise NotImplementedError

    def process_target(self) -> tuple[str, str]:
        """Return the arguments by which another process opens the same journal.

        For ``processes``. It calls the function with the text, and awaits what that returns.

        Returns:
            ``module:function``, which that process can import, and a text.
        """
        raise NotImplementedError

    async def stored_bytes(self) -> bytes:
        """All bytes that the journal keeps anywhere, those of deleted rows included.

        For ``bytes``: of files, for instance, the contents, one after another.
        """
        raise NotImplementedError


OpenJournal: TypeAlias = Callable[[], Awaitable[Journal]]
"""Opens a journal: the same one each time."""

_PLAIN: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "long_term": {"enabled": False},
    "models": {"embedder": "none"},
}


class JoinedSummarizer:
    """A summary that leaves nothing out."""

    name = "joined"

    async def summarize(
        self,
        previous: str | None,
        lines: Sequence[Line],
        *,
        max_tokens: int,  # noqa: ARG002
    ) -> str:
        """The previous summary, and all lines."""
        return " ".join([*([previous] if previous else []), *(line.text for line in lines)])


@asynccontextmanager
async def open_runtime(opened: OpenJournal, **options: Any) -> AsyncIterator[Runtime]:
    """A runtime without long-term memory over the journal."""
    async with Runtime.in_memory(
        config=Config.from_dict(_PLAIN), journal=opened, **options
    ) as runtime:
        yield runtime


def user_message(text: str) -> dict[str, Any]:
    """A message of the user's."""
    return {"role": "user", "content": text}


CHAT = SessionKey("alice", "chat")
"""The session of most checks."""
EVERYTHING = 1 << 20
"""A message number that no check reaches."""

_encode = msgspec.msgpack.Encoder().encode


def make_entry(seq: int, text: str, **fields: Any) -> Entry:
    """A message of the user's."""
    chat = _encode({"role": "user", "content": text})
    values = {"at_us": seq, "tokens": 3, "role": "user", **fields}
    return Entry(seq, chat=chat, **values)


def appended(sid: int, first: int, *said: str, key: bytes | None = None) -> Appended:
    """The record of messages `first` and on of a session."""
    entries = tuple(make_entry(first + place, text) for place, text in enumerate(said))
    return Appended(sid, entries, key)


def put(sid: int, name: str, value: bytes = b"\xc3") -> StateChanged:
    """The record of one state item."""
    return StateChanged(sid, (StateItem("block", name, value),))


async def open_actor(journal: Journal, key: SessionKey | UserKey) -> int:
    """Commit an actor's first record, if it has none; returns its number."""
    (image,) = await journal.hydrate([key])
    assert isinstance(image, SavedSession | SavedUser), image
    if not image.opened:
        session = key.session if isinstance(key, SessionKey) else ""
        await commit_records(journal, [Opened(image.sid, key.user, session, 0)])
    return image.sid


async def texts(journal: Journal, key: SessionKey = CHAT) -> list[str]:
    """Return the texts of a session, by a read of its messages."""
    entries = await journal.read(key, 1, EVERYTHING)
    return [msgspec.msgpack.decode(entry.chat)["content"] for entry in entries]


async def outcome_of(journal: Journal, *records: Any) -> RemoraError | None:
    """Commit the records; returns the error with which the journal refused them."""
    try:
        await commit_records(journal, records)
    except RemoraError as e:
        return e
    return None


class Outcomes:
    """Queues writes, and notes what became of each, in the order of the acknowledgements."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.seen: list[tuple[str, Exception | None]] = []
        self._changed = anyio.Event()

    def write(self, name: str, *records: Any) -> Write:
        """Queue the records."""

        def note(error: Exception | None) -> None:
            self.seen.append((name, error))
            self._changed.set()
            self._changed = anyio.Event()

        write = Write(records, note)
        self.journal.write(write)
        return write

    @property
    def names(self) -> list[str]:
        """Of the acknowledged writes."""
        return [name for name, _ in self.seen]

    @property
    def stored(self) -> Sequence[str]:
        """The names of the writes that are durable, as their owner was told."""
        return [name for name, error in self.seen if error is None]

    async def wait_for(self, count: int) -> None:
        """Wait until so many are acknowledged."""
        while len(self.seen) < count:
            await self._changed.wait()
