"""The writes of the checks of a journal, and how they follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import msgspec

from remora.errors import RemoraError
from remora.ids import SessionKey, UserKey
from remora.messages import Entry
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
