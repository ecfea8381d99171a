"""A journal in memory: `Runtime.in_memory()`, and the reference that the others are tested against.

It runs on any event loop, so the property tests drive it on trio. Like a real one it commits in groups, later than
it is asked to, and what is not committed cannot be read.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from remora.identity import SessionKey
from remora.messages import Entry
from remora.runtime.log import Job, JobBuried, JobDone, JobRetried, LogStatistics, Write
from remora.storage.ports import JournalCounts, SessionListing
from remora.storage.records import (
    HOT_KEYS,
    Appended,
    Cleared,
    Flushed,
    FlushStarted,
    FoldStarted,
    KeyLookup,
    Marks,
    Opened,
    OriginalAppend,
    SessionImage,
    Summarized,
    Summary,
)

__all__ = ["MemoryJournal"]


class _Session:
    def __init__(self, sid: int, key: SessionKey) -> None:
        self.sid = sid
        self.key = key
        self.marks = Marks()
        self.entries: list[Entry] = []  # entry n is message n + 1
        self.summaries: list[tuple[int, Summary]] = []
        self.keys: dict[bytes, tuple[int, ...]] = {}
        self.flushed = 0


class MemoryJournal:
    """Implements `remora.storage.ports.Journal`; nothing survives it.

    Args:
        hot_keys: idempotency keys that an image holds at most; the others are looked up.
    """

    def __init__(self, *, hot_keys: int = HOT_KEYS) -> None:
        self._hot_keys = hot_keys
        self.instance = secrets.token_hex(3)
        self._sessions: dict[int, _Session] = {}
        self._sids: dict[Hashable, int] = {}
        self._next_sid = 0
        self._jobs: dict[str, Job] = {}
        self._settings: dict[str, str] = {}
        self._queue: list[Write] = []
        self._event = anyio.Event()
        self._commits = self._failed = self._writes = self._records = 0

    # -- the log ----------------------------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        """Queue a write for the next commit."""
        self._queue.append(write)
        self._event.set()

    async def run(self) -> None:
        """Commit what is queued, for ever."""
        while True:
            await self._event.wait()
            self._event = anyio.Event()
            await anyio.lowlevel.checkpoint()
            await self._commit()

    async def _commit(self) -> None:
        batch, self._queue = self._queue, []
        for write in batch:
            if write.fenced:
                continue
            for record in write.records:
                self._store(record)
                self._records += 1
            self._writes += 1
        self._commits += 1
        for write in batch:
            if not write.fenced:
                write.settle(None)

    def _store(self, record: Any) -> None:
        match record:
            case Opened(sid=sid, user=user, session=name):
                self._sessions[sid] = _Session(sid, SessionKey(user, name))
                self._sids[SessionKey(user, name)] = sid
            case Appended(sid=sid, entries=entries, key=key):
                session = self._sessions[sid]
                session.entries.extend(entries)
                if key is not None:
                    session.keys[key] = tuple(entry.seq for entry in entries)
            case FoldStarted(sid=sid, marks=marks, jobs=jobs) | FlushStarted(sid=sid, marks=marks, jobs=jobs):
                self._sessions[sid].marks = marks
                self._jobs.update((job.id, job) for job in jobs)
            case Summarized(sid=sid, marks=marks, summary=summary, job=job):
                self._sessions[sid].marks = marks
                self._sessions[sid].summaries.append((marks.generation, summary))
                self._jobs.pop(job, None)
            case Cleared(sid=sid, marks=marks, cancelled=cancelled):
                self._sessions[sid].marks = marks
                for id_ in cancelled:
                    self._jobs.pop(id_, None)
            case Flushed(sid=sid, through=through):
                self._sessions[sid].flushed = max(self._sessions[sid].flushed, through)
            case JobDone(id=id_):
                self._jobs.pop(id_, None)
            case JobRetried(id=id_) if id_ in self._jobs:
                self._jobs[id_] = msgspec.structs.replace(
                    self._jobs[id_], attempts=record.attempts, not_before=record.not_before, error=record.error
                )
            case JobBuried(id=id_) if id_ in self._jobs:
                self._jobs[id_] = msgspec.structs.replace(
                    self._jobs[id_], attempts=record.attempts, dead=True, error=record.error
                )
            case JobRetried() | JobBuried():
                pass  # its actor cancelled it meanwhile
            case _:
                raise TypeError(f"no journal record: {type(record).__name__}")

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[SessionImage | Exception]:
        """The image of each session."""
        await anyio.lowlevel.checkpoint()
        return [self._image(key) for key in keys]

    def _image(self, key: Hashable) -> SessionImage:
        session = self._sessions.get(self._sids.get(key, 0))
        if session is None:
            self._next_sid += 1
            return SessionImage(self._next_sid, False, Marks(), 1, (), None, frozenset(), True)
        current = [s for generation, s in session.summaries if generation == session.marks.generation]
        return SessionImage(
            session.sid,
            True,
            session.marks,
            len(session.entries) + 1,
            tuple(session.entries[session.marks.summarized :]),
            current[-1] if current else None,
            frozenset(list(session.keys)[-self._hot_keys :]),
            len(session.keys) <= self._hot_keys,
            tuple(job for job in self._jobs.values() if job.key == key and not job.dead),
        )

    async def fetch(self, key: Hashable, query: Any) -> OriginalAppend | None:
        """Which append a key belongs to."""
        await anyio.lowlevel.checkpoint()
        assert isinstance(query, KeyLookup)
        session = self._sessions.get(self._sids.get(key, 0))
        seqs = session.keys.get(query.digest) if session else None
        if session is None or seqs is None:
            return None
        return OriginalAppend(seqs, tuple(session.entries[seq - 1].id for seq in seqs))

    def statistics(self) -> LogStatistics:
        """Counters."""
        return LogStatistics(self._commits, self._failed, self._writes, self._records, len(self._queue))

    # -- reads ------------------------------------------------------------------------------------------------------

    async def read(self, key: SessionKey, first: int, last: int) -> Sequence[Entry]:
        """Messages `first`…`last`."""
        await anyio.lowlevel.checkpoint()
        session = self._sessions.get(self._sids.get(key, 0))
        return session.entries[max(first, 1) - 1 : last] if session else ()

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        """Job rows."""
        await anyio.lowlevel.checkpoint()
        return [job for job in self._jobs.values() if job.dead == dead]

    async def sessions(self, user: str) -> Sequence[SessionListing]:
        """A user's sessions."""
        await anyio.lowlevel.checkpoint()
        found = [
            SessionListing(s.key, len(s.entries), s.entries[-1].at_us if s.entries else 0)
            for s in self._sessions.values()
            if s.key.user == user
        ]
        return sorted(found, key=lambda listing: listing.last_at_us)

    async def unflushed(self, limit: int) -> Sequence[SessionKey]:
        """Sessions with an unflushed tail."""
        await anyio.lowlevel.checkpoint()
        return [s.key for s in self._sessions.values() if s.marks.flushing < len(s.entries)][:limit]

    async def counts(self) -> JournalCounts:
        """How much it holds."""
        await anyio.lowlevel.checkpoint()
        sessions = self._sessions.values()
        return JournalCounts(
            users=len({s.key.user for s in sessions}),
            sessions=len(sessions),
            messages=sum(len(s.entries) for s in sessions),
            tokens=sum(entry.tokens for s in sessions for entry in s.entries),
            summaries=sum(len(s.summaries) for s in sessions),
            pending_jobs=sum(not job.dead for job in self._jobs.values()),
            dead_jobs=sum(job.dead for job in self._jobs.values()),
        )

    async def setting(self, name: str, value: str | None = None) -> str | None:
        """Read a setting, after setting it if it never was."""
        await anyio.lowlevel.checkpoint()
        return self._settings.get(name) if value is None else self._settings.setdefault(name, value)

    async def checkpoint(self) -> None:
        """Nothing to do."""
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Commit what is queued."""
        await self._commit()
