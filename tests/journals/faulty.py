"""Journals with a fault that somebody who writes one could make: the conformance suite must fail.

Each names the check that notices it. The first eleven are faults that an earlier suite was tried
with, and of which it noticed three.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio.lowlevel
import msgspec

from remora.errors import CommitFailed, OutcomeUnknown
from remora.messages import Entry
from remora.runtime.jobs import JobRetried
from remora.storage.memory import MemoryJournal
from remora.storage.ports import Erased, Journal, Retention, SessionKey, UserKey, Write
from remora.storage.records import (
    Appended,
    Flushed,
    MemoryChanged,
    MemoryItem,
    Remembered,
    StateItem,
)
from remora.storage.sqlite.connection import Step
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import JournalAccess
from tests.journals import BreakableJournal, MemoryAccess, SqliteAccess

__all__ = ["FAULTY", "open_buffering", "open_unfenced"]

Made = TypeVar("Made", bound=type[Any])

FAULTY: dict[str, tuple[str, Callable[[Path], JournalAccess]]] = {}
"""By name: the check that notices it, and what opens it in a directory."""


def noticed_by(check: str) -> Callable[[Made], Made]:
    """List a journal, or the access to one, with the check that must fail."""

    def add(made: Made) -> Made:
        def access(path: Path) -> JournalAccess:
            if issubclass(made, SqliteAccess):
                found: JournalAccess = made(path / "journal.db")
                return found
            return MemoryAccess(made)

        FAULTY[made.__name__] = (check, access)
        return made

    return add


# -- the eleven ------------------------------------------------------------------------------------


@noticed_by("nothing_is_seen_before_it_is_committed")
class AcknowledgesEarly(MemoryJournal):
    """It acknowledges before it commits: a crash loses what was acknowledged."""

    def write(self, write: Write) -> None:
        super().write(Write(write.records, lambda *_: None))
        asyncio.get_running_loop().call_soon(write.acknowledge, None)


@noticed_by("a_fenced_write_is_not_stored")
class StoresFenced(MemoryJournal):
    """It stores writes that their owner fenced after queueing them."""

    def _apply_batch(self, batch: Sequence[Write]) -> None:
        for write in batch:
            write.fenced = False
        super()._apply_batch(batch)


@noticed_by("outcomes_are_told_in_the_order_of_queueing")
class Reorders(MemoryJournal):
    """It acknowledges the writes of a commit from the last to the first."""

    def _apply_batch(self, batch: Sequence[Write]) -> None:
        told: list[tuple[Write, Exception | None]] = []
        stand_ins = []
        for write in batch:

            def note(error: Exception | None, write: Write = write) -> None:
                told.append((write, error))

            stand_ins.append(Write(write.records, note))
            stand_ins[-1].fenced = write.fenced
        super()._apply_batch(stand_ins)
        for write, error in reversed(told):
            write.acknowledge(error)


@noticed_by("the_newest_owner_stores")
class HasNoOwner(MemoryJournal):
    """Two that are open both write."""

    def _is_overtaken(self) -> bool:
        return False


@noticed_by("nothing_is_seen_before_it_is_committed")
class ReadsUncommitted(MemoryJournal):
    """Reads see what is queued."""

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        await self.commit()
        return await super().read(key, first, last, at=at)


@noticed_by("what_an_actor_keeps_can_be_read")
class ForgetsTheOrder(MemoryJournal):
    """State items come in the order of their names: no column counts them."""

    async def state_items(self, key: SessionKey | UserKey) -> Sequence[StateItem]:
        return sorted(await super().state_items(key), key=lambda one: (one.kind, one.name))


@noticed_by("numbers_come_back_exactly")
class RoundsImportance(MemoryJournal):
    """Importance is a float of four bytes."""

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        def rounded(value: float) -> float:
            return float(struct.unpack("f", struct.pack("f", value))[0])

        return [
            msgspec.structs.replace(entry, importance=rounded(entry.importance))
            for entry in await super().read(key, first, last, at=at)
        ]


class _ScrublessJournal(SqliteJournal):
    async def scrub(self) -> None:
        await self._delete_messages()

    async def finish_erasure(self, number: int) -> None:
        async def work() -> None:
            delete = "DELETE FROM erasures WHERE number = ?"
            await self._writer.execute(delete, (number,))

        await self.transaction(work)


@noticed_by("no_byte_of_what_is_forgotten_is_left")
class ScrubsNothing(SqliteAccess):
    """`scrub` returns at once: deleted bytes stay in the write-ahead log."""

    async def __call__(self) -> Journal:
        return await _ScrublessJournal.open(self.path, durability="process")


@noticed_by("jobs_keep_their_attempts")
class ForgetsRetries(MemoryJournal):
    """`JobRetried` is not stored: each start begins to count again."""

    def _store(self, records: Sequence[Any]) -> None:
        super()._store([one for one in records if not isinstance(one, JobRetried)])


@noticed_by("progress_never_goes_back")
class ProgressGoesBack(MemoryJournal):
    """``flushed = $1`` instead of the greater of both."""

    def _store(self, records: Sequence[Any]) -> None:
        super()._store(records)
        update = "UPDATE actors SET flushed = ? WHERE sid = ?"
        flushed = [(one.through, one.sid) for one in records if isinstance(one, Flushed)]
        self._database.executemany(update, flushed)


@noticed_by("any_text_comes_back")
class RefusesNul(MemoryJournal):
    """Text with a NUL is refused, as PostgreSQL's type ``text`` refuses it."""

    def _store(self, records: Sequence[Any]) -> None:
        items = [item for one in records for item in getattr(one, "memories", ())]
        if any("\x00" in item.content for item in items):
            raise CommitFailed("invalid byte sequence for encoding UTF8: 0x00")
        super()._store(records)


# -- writes of one owner ---------------------------------------------------------------------------


@noticed_by("reads_show_whole_writes")
class AcknowledgesBeforeItStores(MemoryJournal):
    """It answers when the database has the rows, which readers see only later."""

    async def commit(self) -> None:
        batch, self._queue = self._queue, []
        late = [Write(write.records, lambda *_: None) for write in batch if not write.fenced]
        for write in batch:
            write.acknowledge(None)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        self._apply_batch(late)


@noticed_by("reads_show_whole_writes")
class StoresInSteps(MemoryJournal):
    """The messages of a write are stored one after another, each visible at once."""

    async def commit(self) -> None:
        batch, self._queue = self._queue, []
        for write in batch:
            for record in write.records:
                if not isinstance(record, Appended):
                    self.apply(record)
                    continue
                for entry in record.entries:
                    self.apply(Appended(record.sid, (entry,), record.key))
                    await anyio.lowlevel.checkpoint()
            write.acknowledge(None)


@noticed_by("a_refused_write_leaves_nothing")
class StoresHalves(MemoryJournal):
    """A write that fails in the middle leaves what was stored before."""

    def _store(self, records: Sequence[Any]) -> None:
        try:
            super()._store(records)
        except CommitFailed:
            for record in records:
                super()._store([record])
            raise


@noticed_by("a_large_commit_is_stored_whole")
class LimitsItsRows(MemoryJournal):
    """A statement takes a thousand rows; the others of a commit are cut off."""

    def _apply_batch(self, batch: Sequence[Write]) -> None:
        super()._apply_batch(batch[:1000])
        for write in batch[1000:]:
            write.acknowledge(None)


@noticed_by("closing_commits_what_is_queued")
class DropsAtClosing(MemoryJournal):
    """Closing forgets what is queued."""

    async def aclose(self) -> None:
        self._queue.clear()


@noticed_by("erasing_comes_after_what_was_queued")
class ErasesFirst(MemoryJournal):
    """`erase` uses a connection of its own, and does not wait for the writes before it."""

    async def erase(self, user: str, session: str | None = None) -> Erased:
        queue, self._queue = self._queue, []
        erased = await super().erase(user, session)
        self._queue = queue
        await self.commit()
        return erased


@noticed_by("numbers_of_actors_are_never_used_twice")
class UsesNumbersTwice(MemoryJournal):
    """The next number is the highest that is left, and one."""

    def restart(self) -> Self:
        found = super().restart()
        ((last,),) = self._database.execute("SELECT coalesce(max(sid), 0) FROM actors")
        vars(found).update(_numbers=count(last + 1), _erased=set())
        return found


@noticed_by("a_memory_that_exists_stays")
class OverwritesMemories(MemoryJournal):
    """``ON CONFLICT DO UPDATE`` where a memory is recorded again."""

    def _store(self, records: Sequence[Any]) -> None:
        super()._store(records)
        for one in records:
            if isinstance(one, Remembered):
                super()._store([MemoryChanged(one.sid, item, ()) for item in one.memories])


@noticed_by("numbers_come_back_exactly")
class RoundsTimes(MemoryJournal):
    """Times of memories are stored in milliseconds."""

    async def memories(self, user: str, ids: Sequence[str] | None = None) -> Sequence[MemoryItem]:
        return [
            msgspec.structs.replace(one, created_us=one.created_us // 1000 * 1000)
            for one in await super().memories(user, ids)
        ]


@noticed_by("messages_come_back_exactly")
class MakesEmptyNull(MemoryJournal):
    """An empty text is stored as NULL, as some databases do, and comes back as a blank."""

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        return [
            msgspec.structs.replace(entry, meta=entry.meta or b"")
            for entry in await super().read(key, first, last, at=at)
        ]


@noticed_by("the_past_is_answered_alike")
class ShowsRemovedMessages(MemoryJournal):
    """A read of an earlier time has what was removed before it."""

    async def read(
        self, key: SessionKey, first: int, last: int, *, at: int | None = None
    ) -> Sequence[Entry]:
        return await super().read(key, first, last, at=None if at is None else 0)


# -- owners ----------------------------------------------------------------------------------------


@noticed_by("an_owner_that_stood_still_stores_nothing")
class ChecksWhenQueueing(MemoryJournal):
    """The epoch is compared when a write is queued, and not when it is committed."""

    overtaken = False

    def write(self, write: Write) -> None:
        self.overtaken = super()._is_overtaken()
        super().write(write)

    def _is_overtaken(self) -> bool:
        return self.overtaken


@noticed_by("a_commit_under_a_claim_is_stored_before_it_or_never")
class ChecksInTwoSteps(MemoryJournal):
    """The epoch is compared in one round trip, and the rows are stored in the next."""

    checked = False

    async def commit(self) -> None:
        overtaken = super()._is_overtaken()
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        self.checked = not overtaken
        await super().commit()
        self.checked = False

    def _is_overtaken(self) -> bool:
        return False if self.checked else super()._is_overtaken()


@noticed_by("a_former_owner_stores_no_record")
class LeavesMessagesUnfenced(MemoryJournal):
    """A commit of messages alone is another statement, which does not compare the epoch."""

    alone = False

    def _apply_batch(self, batch: Sequence[Write]) -> None:
        records = [record for write in batch for record in write.records]
        self.alone = bool(records) and all(isinstance(one, Appended) for one in records)
        super()._apply_batch(batch)
        self.alone = False

    def _is_overtaken(self) -> bool:
        return False if self.alone else super()._is_overtaken()


class _Unfenced(MemoryJournal):
    """Some of what is not a write is done without looking at the epoch."""

    fenced = False

    async def _begin_work(self) -> None:
        if self.fenced:
            await super()._begin_work()
        elif not self._is_overtaken():
            await self.commit()

    @contextmanager
    def fence(self) -> Iterator[None]:
        """Look at the epoch during this."""
        self.fenced = True
        yield
        self.fenced = False


@noticed_by("a_former_owner_changes_nothing_else")
class LeavesSettingsUnfenced(_Unfenced):
    """Settings are set by their own connection."""

    async def erase(self, user: str, session: str | None = None) -> Erased:
        with self.fence():
            return await super().erase(user, session)


@noticed_by("a_former_owner_changes_nothing_else")
class LeavesErasuresUnfenced(_Unfenced):
    """Erasing and trimming have transactions of their own; settings are fenced."""

    async def init_setting(self, name: str, value: str) -> str:
        with self.fence():
            return await super().init_setting(name, value)

    async def change_settings(self, settings: Mapping[str, str]) -> None:
        with self.fence():
            await super().change_settings(settings)


@noticed_by("a_former_owner_changes_nothing_else")
class TrimsUnfenced(MemoryJournal):
    """Only trimming is not fenced."""

    trims = False

    async def trim(self, limits: Retention, now_us: int) -> int:
        self.trims = True
        try:
            return await super().trim(limits, now_us)
        finally:
            self.trims = False

    async def _begin_work(self) -> None:
        if not self.trims:
            await super()._begin_work()


@noticed_by("a_former_owner_notices_without_writing")
class NoticesAtWritesOnly(MemoryJournal):
    """An owner that writes nothing never hears of another."""

    async def checkpoint(self) -> None:
        await anyio.lowlevel.checkpoint()


@noticed_by("epochs_grow")
class BeginsEachEpochAtOne(MemoryJournal):
    """Its epoch is the number of owners that are open, and falls when one closes."""

    async def aclose(self) -> None:
        await super().aclose()
        self._shared.epoch -= 1


@noticed_by("epochs_grow")
class IsAnotherInstance(MemoryJournal):
    """Each owner makes ids of its own."""

    def restart(self) -> Self:
        found = super().restart()
        found.instance = f"{found.epoch:06x}"
        return found


@noticed_by("commit_numbers_go_on")
class CountsSinceOpening(MemoryJournal):
    """The number of a commit is not stored with it."""

    _before = 0

    def restart(self) -> Self:
        found = super().restart()
        vars(found).update(_before=self._shared.commits)
        return found

    @property
    def commit_number(self) -> int:
        return self._shared.commits - self._before


# -- connections -----------------------------------------------------------------------------------


class _Misreports(BreakableJournal):
    """Says something else of a commit whose connection broke."""

    def told(self, write: Write, error: Exception) -> Exception | None:
        """What the owner is told."""
        raise NotImplementedError

    async def _commit_queued(self) -> None:
        queue = self._queue
        self._queue = [self._stand_in(write) for write in queue]
        await super()._commit_queued()

    def _stand_in(self, write: Write) -> Write:
        def tell(error: Exception | None) -> None:
            if isinstance(error, OutcomeUnknown):
                error = self.told(write, error)
            write.acknowledge(error)

        stand_in = Write(write.records, tell, size=write.size)
        stand_in.fenced = write.fenced
        return stand_in


@noticed_by("a_stored_commit_is_not_called_failed")
class CallsItFailed(_Misreports):
    """A lost connection is `CommitFailed`."""

    def told(self, write: Write, error: Exception) -> Exception | None:
        return CommitFailed(str(error))


@noticed_by("a_commit_that_is_not_stored_is_not_acknowledged")
class CallsItStored(_Misreports):
    """A lost connection is no error: the rows were sent."""

    def told(self, write: Write, error: Exception) -> Exception | None:
        return None


@noticed_by("a_stored_commit_is_not_called_failed")
class SendsAgain(_Misreports):
    """It connects again and sends the same rows, without asking what became of the first."""

    def told(self, write: Write, error: Exception) -> Exception | None:
        try:
            self._store(write.records)
        except CommitFailed as e:
            return e  # of rows that are there
        return None


@noticed_by("writes_go_on_after_a_broken_connection")
class StaysBroken(_Misreports):
    """It never connects again, and does not say that it is lost."""

    broken = False

    def told(self, write: Write, error: Exception) -> Exception | None:
        self.broken = True
        return error

    async def _commit_queued(self) -> None:
        if not self.broken:
            await super()._commit_queued()
            return
        batch, self._queue = self._queue, []
        for write in batch:
            write.acknowledge(OutcomeUnknown("the connection is closed"))


@noticed_by("a_late_commit_changes_nothing")
class StoresLateCommits(BreakableJournal):
    """The database goes on with a commit whose connection broke, and nobody stops it."""

    def release(self) -> None:
        for _, batch in self.late:
            for write in batch:
                self._keep(write)
        self.late.clear()


# -- processes -------------------------------------------------------------------------------------


@noticed_by("a_stopped_owner_stores_nothing_when_it_goes_on")
class Unfenced(SqliteAccess):
    """SQLite without its fences: a process that was stopped goes on as if nothing had happened."""

    target = "tests.journals.faulty:open_unfenced"


def _without_fence(step: Step) -> Step:
    sql, named, _ = step.sql.partition(" WHERE :epoch = ")
    sql, by_place, _ = sql.partition(" WHERE ? = (SELECT CAST(value ")
    if named or not by_place:
        return Step(sql, step.rows)
    # a message alone: the last of its parameters is what the condition compares
    return Step(sql, [row[:-1] for row in step.rows or () if isinstance(row, tuple)])


class _UnfencedJournal(SqliteJournal):
    async def drop_fence(self) -> None:
        await self._writer.execute("DROP TRIGGER one_owner")

    def _make_steps(self, rows: Any) -> list[Step]:
        return [_without_fence(one) for one in super()._make_steps(rows)]


async def open_unfenced(path: str) -> SqliteJournal:
    """Open a journal that stores rows whoever owns it."""
    journal = await _UnfencedJournal.open(Path(path), durability="process")
    assert isinstance(journal, _UnfencedJournal)
    await journal.drop_fence()
    return journal


@noticed_by("a_killed_owner_loses_nothing")
class Buffers(SqliteAccess):
    """Writes are acknowledged when they are in a buffer of the process."""

    target = "tests.journals.faulty:open_buffering"


class _BufferingJournal(SqliteJournal):
    def write(self, write: Write) -> None:
        if all(isinstance(record, Appended) for record in write.records):
            asyncio.get_running_loop().call_soon(write.acknowledge, None)
        else:
            super().write(write)


async def open_buffering(path: str) -> SqliteJournal:
    """Open a journal that keeps messages in memory."""
    return await _BufferingJournal.open(Path(path), durability="process")
