"""A commit that is submitted while another one runs: what it is for, and what becomes of it when
the one before it fails.
"""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest

from remora.errors import CommitFailed, OutcomeUnknown, OwnershipLost
from remora.messages import encode_message
from remora.runtime.log import commit_records
from remora.storage.ports import Write
from remora.storage.records import Appended, MemoriesRemoved, Opened
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.writer import JournalWriter
from remora.testing import count_probes
from tests.sqlite import BreakableConnection, Connections, change_rows, refuse_full_disk

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests hold the connection's thread


@pytest.fixture(autouse=True)
def _alternating(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commits at a time, however long they take here."""
    if "clock" not in request.fixturenames:
        monkeypatch.setattr(JournalWriter, "alternates", True)


FIRST, SECOND = range(2, 9), range(9, 16)
"""Sessions whose messages go into the commit that is held, and into the one behind it."""
TURNS = 60  # of the event loop: senders are answered 16 at a time


def said(sid: int, *, tokens: int = 3) -> Write:
    entry, _ = encode_message({"role": "user", "content": f"text {sid}"})
    entry = msgspec.structs.replace(entry, seq=1, tokens=tokens)
    opened = Opened(sid, "alice", str(sid), 1)
    return Write([opened, Appended(sid, (entry,), None)], lambda *_: None)


class Held:
    """A journal whose second commit is held in the connection's thread.

    Attributes:
        journal: it.
        events: the number of each transaction that the thread began, and the session of each write
            that was told, with the type of its error.
        ended: is released when the thread has ended a transaction.
        then, after: what a transaction meets before its first statement and after its last, by its
            number.
        fenced: writes that are fenced as soon as any sender is told of a failure.
        on_error: called when any sender is told of a failure.
        running: the scope of the journal's task.
    """

    def __init__(
        self, journal: SqliteJournal, writer: BreakableConnection, running: anyio.CancelScope
    ) -> None:
        self.journal = journal
        self.running = running
        self.events: list[tuple[str, int, type[Exception] | None]] = []
        self.ended = threading.Semaphore(0)
        self.then: dict[int, Callable[[], None]] = {}
        self.after: dict[int, Callable[[], None]] = {}
        self.fenced: list[Write] = []
        self.on_error: Callable[[], object] = lambda: None
        self._begun = 0
        self._holds = {2: threading.Event()}
        self._told = anyio.Event()
        writer.before_commit, writer.after_commit = self._before, self._after

    def _before(self) -> None:
        self._begun += 1
        number = self._begun
        self.events.append(("begun", number, None))
        if number in self._holds:
            self._holds[number].wait()
        self.then.get(number, lambda: None)()

    def _after(self) -> None:
        self.after.get(self._begun, lambda: None)()
        self.ended.release()

    def hold(self, number: int) -> None:
        """Hold this transaction, too."""
        self._holds[number] = threading.Event()

    def let_go(self, number: int = 2) -> None:
        """Release the transaction that is held."""
        self._holds[number].set()

    def let_go_all(self) -> None:
        for number in self._holds:
            self.let_go(number)

    async def write(self, writes: Iterable[Write]) -> None:
        """Write them, and let the loop go round."""

        def tell(sid: int, error: Exception | None) -> None:
            self.events.append(("told", sid, None if error is None else type(error)))
            if error is not None:
                self.on_error()
                for one in self.fenced:
                    one.fenced = True
            self._told.set()

        for write in writes:
            write.acknowledge = partial(tell, write.records[0].sid if write.records else 0)
            self.journal.write(write)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()

    async def until_told(self, sids: Iterable[int]) -> dict[int, type[Exception] | None]:
        """Wait until these were told; what all were told so far, in order."""
        wanted = set(sids)
        while not wanted <= self._all_told().keys():
            self._told = anyio.Event()
            await self._told.wait()
        return self._all_told()

    def _all_told(self) -> dict[int, type[Exception] | None]:
        return {sid: error for what, sid, error in self.events if what == "told"}

    def stored(self) -> set[int]:
        """The sessions that have a message in the file."""
        with closing(sqlite3.connect(self.journal.path)) as database:
            return {sid for (sid,) in database.execute("SELECT pos >> 32 FROM messages")}


@asynccontextmanager
async def running(
    path: Path, scope: anyio.CancelScope | None = None
) -> AsyncIterator[SqliteJournal]:
    """A journal and its task, which runs in `scope`."""
    journal = await SqliteJournal.open(path / "journal.db", durability="none")

    async def run() -> None:
        with scope or anyio.CancelScope():
            await journal.run()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        try:
            yield journal
        finally:
            tasks.cancel_scope.cancel()
    with anyio.CancelScope(shield=True):
        await journal.aclose()


@asynccontextmanager
async def held(
    path: Path, connections: Connections, *, erased: int | None = None
) -> AsyncIterator[Held]:
    """The first commit has the first write alone; the second has `FIRST`, and is held.

    Args:
        path: of the journal's directory.
        connections: that it opens.
        erased: a session that was written and erased before; then the first commit has them all,
            and is held.
    """
    scope = anyio.CancelScope()
    async with running(path, scope) as journal:
        if erased is not None:
            await commit_records(journal, said(erased).records)
            await journal.erase("alice", str(erased))
        one = Held(journal, connections[0], scope)
        if erased is not None:
            one.hold(1)
        try:
            await one.write([said(1), *map(said, FIRST)])
            if erased is None:
                await one.until_told([1])
            yield one
        finally:
            one.let_go_all()


@pytest.fixture
async def one(tmp_path: Path, connections: Connections) -> AsyncIterator[Held]:
    async with held(tmp_path, connections) as made:
        yield made


async def test_a_commit_of_many_begins_when_the_one_before_it_ends(one: Held) -> None:
    """G2: the disk does not wait for the event loop, which serves those who were told before."""
    await one.write(map(said, SECOND))
    one.let_go()
    for _ in range(3):  # and the loop stands still
        one.ended.acquire()
    assert one.stored() == {1, *FIRST, *SECOND}
    told = await one.until_told(SECOND)
    assert list(told.items()) == [(sid, None) for sid in (1, *FIRST, *SECOND)]
    assert one.journal.statistics().commits == 3


async def test_fewer_than_the_commit_that_runs_wait_for_more(one: Held) -> None:
    """G2: those who are answered next share their commit: a commit of one costs a sync, too."""
    await one.write([said(SECOND[0])])
    await one.write([said(sid) for sid in SECOND[1:3]])
    one.let_go()
    await one.until_told(SECOND[:3])
    assert one.journal.statistics().commits == 3


async def test_what_is_behind_a_commit_that_failed_is_stored_when_all_know(one: Held) -> None:
    """G2, G4: nothing of it is stored before those of the failed one were told. What is fenced then
    is never stored, and the rest is.
    """
    later = [said(sid) for sid in SECOND]
    one.fenced, one.then[2] = later[2:4], refuse_full_disk
    await one.write(later)
    with count_probes() as counts:
        one.let_go()
        told = await one.until_told({*SECOND} - {*SECOND[2:4]})
    failed = dict.fromkeys(FIRST, CommitFailed)
    rest = {sid: None for sid in SECOND if sid not in SECOND[2:4]}
    assert list(told.items()) == list(({1: None} | failed | rest).items())
    assert one.stored() == {1, *rest}
    assert counts["commit_behind_not_begun"] == 1
    third = one.events.index(("begun", 3, None))
    assert {sid for what, sid, _ in one.events[:third] if what == "told"} == {1, *FIRST}


async def test_all_behind_a_commit_of_unknown_outcome_wait_for_it(one: Held) -> None:
    """G3, G4: the disk failed while it synced, and what was written is there all the same."""

    def fail() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        raise error

    one.fenced = [said(sid) for sid in SECOND]
    one.after[2] = fail
    await one.write(one.fenced)
    one.let_go()
    told = await one.until_told(FIRST)
    assert told == {1: None} | dict.fromkeys(FIRST, OutcomeUnknown)
    await one.write([said(20)])
    await one.until_told([20])
    assert one.stored() == {1, *FIRST, 20}


async def test_a_write_that_cannot_be_stored_fails_alone_behind_another_commit(one: Held) -> None:
    """G4: it fails after those before it, and takes nobody with it."""
    await one.write(said(sid, tokens=1 << 70 if sid == 12 else 3) for sid in SECOND)
    one.let_go()
    told = await one.until_told(SECOND)
    assert told == dict.fromkeys((1, *FIRST, *SECOND), None) | {12: CommitFailed}
    assert one.stored() == {1, *FIRST, *SECOND} - {12}


async def test_writes_of_nothing_are_told_after_all_before_them(one: Held) -> None:
    """G2: who writes no records asks whether the journal is past what it wrote before."""
    await one.write(Write([], lambda *_: None) for _ in SECOND)
    assert {*await one.until_told([1])} == {1}
    one.let_go()
    told = await one.until_told([*FIRST, 0])
    assert list(told) == [1, *FIRST, 0]
    await one.journal.change_settings({"a": "b"})  # other work has its place behind them


async def test_other_work_begins_after_both_commits(one: Held) -> None:
    """G4, S8.04: an erasure, say, sees all that was written before it, and nothing is stored amid
    it.
    """
    async with anyio.create_task_group() as tasks:
        await one.write(map(said, SECOND))
        tasks.start_soon(one.journal.change_settings, {"a": "b"})
        await one.write([])
        await one.write(map(said, range(16, 32)))
        one.let_go()
        await one.until_told(range(16, 32))
    began, ended = (one.events.index(("begun", number, None)) for number in (4, 5))
    assert {sid for what, sid, _ in one.events[:began] if what == "told"} == {1, *FIRST, *SECOND}
    assert not [what for what, *_ in one.events[began:ended] if what == "told"]


async def test_all_who_wait_hear_that_another_process_owns_the_journal(one: Held) -> None:
    """G4, G12: also if the runtime closes as soon as it knows."""
    waiting = range(16, 40)
    one.on_error = one.running.cancel
    await one.write(map(said, SECOND))
    await one.write(map(said, waiting))
    owner = "UPDATE settings SET value = value + 1 WHERE name = 'epoch'"
    await change_rows(one.journal.path, owner)
    one.let_go()
    told = await one.until_told(waiting)
    assert told == {1: None} | dict.fromkeys((*FIRST, *SECOND, *waiting), OwnershipLost)
    assert one.stored() == {1}


async def test_closing_waits_for_both_commits(tmp_path: Path, connections: Connections) -> None:
    """G3, G12: and what came after them is stored, too."""
    async with held(tmp_path, connections) as one:
        await one.write(map(said, SECOND))
        await one.write(map(said, range(16, 19)))
    assert one.stored() == {1, *FIRST, *SECOND, *range(16, 19)}
    told = await one.until_told([1])
    assert told == dict.fromkeys((1, *FIRST, *SECOND, *range(16, 19)), None)


async def test_last_uses_are_written_if_a_commit_behind_another_one_fails(
    tmp_path: Path, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions are listed by their last use: what a commit was to write belongs to it alone."""
    monkeypatch.setattr("remora.storage.sqlite.writer.MANY_HELD", 8)
    fourth = range(16, 23)
    async with held(tmp_path, connections) as one:
        one.hold(3)
        one.then[4] = refuse_full_disk
        await one.write(map(said, SECOND))
        one.let_go()
        await one.until_told(FIRST)  # the last uses of so many are held now
        await one.write(map(said, fourth))
        one.let_go(3)
        told = await one.until_told(fourth)
        assert [sid for sid, error in told.items() if error is not None] == [*fourth]
    with closing(sqlite3.connect(one.journal.path)) as database:
        assert database.execute("SELECT sid FROM actors WHERE NOT used_us").fetchall() == []


class Clock:
    """What `time` is to the writer: it passes when a test says so; the connection's thread waits
    for what is passed there alone.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._of_loop = 0.0
        self._loop = threading.get_ident()

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self._of_loop

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        if threading.get_ident() == self._loop:
            self._of_loop += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("writer", "connection"):
        monkeypatch.setattr(f"remora.storage.sqlite.{module}.time", clock)
    return clock


@asynccontextmanager
async def paced(writer: BreakableConnection) -> AsyncIterator[None]:
    """Each transaction takes some turns of the event loop, however busy the machine is: in these
    the senders of the one before it are answered, and send again.
    """
    begun, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        let_go.wait()
        let_go.clear()

    async def pace() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            if begun.is_set():
                for _ in range(TURNS):
                    await anyio.lowlevel.checkpoint()
                begun.clear()
                let_go.set()

    writer.before_commit = hold
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pace)
            yield
            tasks.cancel_scope.cancel()
    finally:
        writer.before_commit = None
        let_go.set()  # a transaction that has begun would wait for the end of a failed test


async def send(journal: SqliteJournal, senders: int, commits: int, then: Callable[[], None]) -> int:
    """Have so many senders write again as soon as they are told; how many commits had one behind.

    Args:
        journal: it.
        senders: how many.
        commits: after so many they stop.
        then: called before each writes again.
    """
    before, left = journal.statistics().commits, anyio.Event()
    writing = senders

    def again(error: Exception | None) -> None:
        nonlocal writing
        assert error is None
        then()
        if journal.statistics().commits - before < commits:
            next_one = said(next(sids))
            next_one.acknowledge = again
            journal.write(next_one)
            return
        writing -= 1
        if not writing:
            left.set()

    sids = itertools.count(journal.statistics().records + 1)
    with count_probes() as counts:
        for _ in range(senders):
            again(None)
        await left.wait()
    return counts["commit_behind"]


@pytest.mark.parametrize("senders", [16, 40, 300])
async def test_two_commits_alternate_where_the_disk_is_fast(
    tmp_path: Path, clock: Clock, connections: Connections, senders: int
) -> None:
    """G2: the thread waits for the disk a shorter time than for the event loop; also after other
    work, and after a commit of all.
    """
    async with running(tmp_path) as journal, paced(connections[0]):
        for _ in range(2):
            assert await send(journal, senders, 40, lambda: clock.pass_by(0.002 / senders)) >= 18
            await journal.change_settings({"a": "b"})


async def test_senders_share_their_commits_where_the_disk_is_slow(
    tmp_path: Path, clock: Clock, connections: Connections
) -> None:
    """G2: a second sync would cost more than it saves."""
    async with running(tmp_path) as journal:
        connections[0].before_commit = lambda: clock.pass_by(0.01)
        assert await send(journal, 40, 40, lambda: clock.pass_by(0.0001)) <= 2


async def test_a_burst_has_two_commits(tmp_path: Path, connections: Connections) -> None:
    """G2: half of it and the other half, and not a half of each rest."""
    async with running(tmp_path) as journal, paced(connections[0]):
        for burst in range(3):
            before = journal.statistics().commits
            told = anyio.Semaphore(0)
            for sid in range(100):
                write = said(1 + 100 * burst + sid)
                write.acknowledge = lambda *_, told=told: told.release()
                journal.write(write)
            for _ in range(100):
                await told.acquire()
            assert journal.statistics().commits - before <= 3  # the first write may be alone


async def test_last_uses_are_written_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: what is held in memory is bounded while commits follow one another."""
    monkeypatch.setattr("remora.storage.sqlite.writer.MANY_HELD", 64)
    async with running(tmp_path) as journal:
        assert await send(journal, 20, 60, lambda: None) >= 10
        with closing(sqlite3.connect(journal.path)) as database:
            ((unwritten,),) = database.execute("SELECT count(*) FROM actors WHERE NOT used_us")
    assert unwritten <= 64 + 3 * 20


async def test_who_is_refused_is_told_after_those_before_it(
    tmp_path: Path, connections: Connections
) -> None:
    """G2, G13: a write for what was erased meanwhile does not overtake a commit that runs."""
    later = range(9, 17)
    async with held(tmp_path, connections, erased=later[2]) as one:
        await one.write(map(said, later))
        assert await one.until_told([]) == {}
        one.let_go_all()
        told = await one.until_told(later)
        assert [sid for sid, error in told.items() if error is not None] == [later[2]]
        assert [*told][: len(FIRST) + 1] == [1, *FIRST]


async def test_commits_that_store_nothing_take_no_time(tmp_path: Path, clock: Clock) -> None:
    """A write of records that change no row is told without a commit."""
    clock.pass_by(1e6)
    async with running(tmp_path) as journal:
        await commit_records(journal, [MemoriesRemoved(1, (), ())])
        assert journal.statistics().commit_s.sum == 0


async def test_memory_that_runs_out_in_sqlite_is_told(one: Held) -> None:
    """G3, G11: whoever wrote is told, and those behind are stored."""

    def fail() -> None:
        raise MemoryError

    one.then[2] = fail
    await one.write(map(said, SECOND))
    one.let_go()
    told = await one.until_told(SECOND)
    assert not {*told.values()} - {None, CommitFailed}
    assert one.stored() == {sid for sid, error in told.items() if error is None}
    assert {*SECOND} <= one.stored()
