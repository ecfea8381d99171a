"""A journal's file: backup, its write-ahead log, the room that it takes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from remora.errors import (
    CommitFailed,
    DirectoryUnusable,
    InvalidInput,
    JournalDamaged,
    OutcomeUnknown,
    OwnershipLost,
    RemoraError,
)
from remora.ids import key_digest
from remora.runtime.log import commit_records
from remora.storage.ports import Retention, SessionKey, Write
from remora.storage.records import (
    Appended,
    BufferMoved,
    MemoryItem,
    Opened,
    Remembered,
    SavedSession,
    StateChanged,
    StateItem,
    Summary,
    Watermarks,
)
from remora.storage.sqlite.backup import snapshot
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.verify import check_journal
from tests.faults.journals import ONE, TWO, journal_at, two_sessions
from tests.golden.make import message, said
from tests.sqlite import Connections, free_pages, refuse_full_disk

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and write files


# -- verify, backup --------------------------------------------------------------------------------


MARKS = "UPDATE actors SET marks_crc = NULL,"
FINDINGS = (
    (f"{MARKS} cleared = 9 WHERE sid = 1", "more was cleared than left the buffer"),
    (f"{MARKS} summarizing = 1 WHERE sid = 1", "more left the buffer than is summarized"),
    (f"{MARKS} summarizing = 99, flushing = 99 WHERE sid = 1", "more is being indexed than was"),
    ("UPDATE actors SET flushed = 5 WHERE sid = 1", "more is in long-term memory than was indexed"),
    ("UPDATE summaries SET through = 99, crc = NULL WHERE sid = 1", "a summary covers messages"),
    ("DELETE FROM messages WHERE pos = (1 << 32) + 6", "it came under the same key"),
    (
        "UPDATE messages SET chat = x'c1', crc = NULL WHERE pos = (1 << 32) + 4",
        "message 4 cannot be read",
    ),
    ("DELETE FROM actors WHERE sid = 2", "it is not known whose they are"),
    (
        "INSERT INTO jobs (id, queue, sid, payload) VALUES ('j', 'flush', 1, x'c1')",
        "the job j cannot be read",
    ),
    (
        "INSERT INTO jobs (id, queue, sid, payload, crc) VALUES ('j', 'flush', 1, x'80', 5)",
        "the job j is not as it was written",
    ),
    ("UPDATE memories SET sid = 2, crc = NULL", "is of no user"),
    ("UPDATE state_items SET sid = 7, crc = NULL WHERE sid = 3", "it is not known whose it is"),
    ("UPDATE settings SET value = 'many' WHERE name = 'commits'", "is no number"),
    ("INSERT INTO erasures (user_key, session_key) VALUES ('', '')", "names no user"),
    ("PRAGMA user_version = 1", "format 1"),
)


async def test_verify_finds(tmp_path: Path) -> None:
    """G3, G7: what does not hold together is found, and said, of rows, garbage and a torn page; a
    sound journal has no findings.
    """
    path, copy = tmp_path / "journal.db", tmp_path / "copy.db"
    async with journal_at(path) as journal:
        await two_sessions(journal)
        assert await journal.verify() == []
    content = path.read_bytes()
    for damage, said_of_it in FINDINGS:
        copy.write_bytes(content)
        with closing(sqlite3.connect(copy)) as database, database:
            assert database.execute(damage).rowcount, damage
        findings = check_journal(copy)
        assert any(said_of_it in one.detail for one in findings), (damage, findings)
        assert {one.kind for one in findings} <= {"journal", "wal"}, damage
    for other in (b"no database" * 500, content[:8_192] + bytes(4_096) + content[12_288:]):
        copy.write_bytes(other)
        assert check_journal(copy)


async def test_backup_of_a_journal_in_use(tmp_path: Path) -> None:
    """G3, G4: all that was acknowledged before is in it, each write whole, while writers go on; it
    is a journal of its own.
    """
    path, copy = tmp_path / "journal.db", tmp_path / "copies" / "copy.db"
    copy.parent.mkdir()
    async with journal_at(path) as journal:
        await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 400), None)])
        written, stop = 400, False

        async def write() -> None:
            nonlocal written
            while not stop:
                entries = said(written + 1, written + 3)
                await commit_records(journal, [Appended(1, entries, None)])
                written += 3

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for number in range(3):
                before = written
                target = copy.with_name(f"copy-{number}.db")
                await journal.backup(target)
                assert check_journal(target) == []
                async with journal_at(target) as other:
                    there = [entry.seq for entry in await other.read(ONE, 1, 1 << 20)]
                    assert there == list(range(1, len(there) + 1))
                    assert len(there) >= before
                    assert (len(there) - 400) % 3 == 0
                    assert other.instance == journal.instance
            stop = True
        with pytest.raises(InvalidInput, match="exists already"):
            await journal.backup(target)
        with pytest.raises(InvalidInput, match="no directory"):
            await journal.backup(tmp_path / "nowhere" / "copy.db")
    assert {one.suffix for one in copy.parent.iterdir()} <= {".db", ".mark"}
    (tmp_path / "garbage.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(JournalDamaged):
        snapshot(tmp_path / "garbage.db", tmp_path / "of-garbage.db")
    with pytest.raises(DirectoryUnusable):
        snapshot(tmp_path / "nothing.db", tmp_path / "of-nothing.db")
    assert not list(tmp_path.glob("of-*"))


# -- the write-ahead log, and room -----------------------------------------------------------------


async def test_a_reader_that_holds_the_log_back_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """G10: the log outgrows its bound while somebody reads an old state: one alarm each time;
    afterwards it is small again.
    """
    path = tmp_path / "journal.db"
    async with journal_at(path, max_wal_mb=1) as journal:
        await commit_records(journal, [Opened(1, *ONE, 0)])
        at = 1
        caplog.set_level("INFO", "remora.storage.sqlite")
        for _ in range(2):
            caplog.clear()
            with closing(sqlite3.connect(path, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM messages").fetchone()
                for _ in range(12):
                    entry = message(at, {"role": "user", "content": "x" * 150_000})
                    await commit_records(journal, [Appended(1, (entry,), None)])
                    at += 1
                    await journal.checkpoint()
                held = journal.statistics()
                assert held.wal_bytes > 1 << 20
                assert held.wal_held_s > 0
                reader.execute("COMMIT")
            alarms = [one for one in caplog.records if "wal_held_back" in one.message]
            assert [one.levelname for one in alarms] == ["ERROR"]
            assert "wal_released" not in caplog.text
            await journal.checkpoint()
            assert "wal_released" in caplog.text
            assert (path.parent / "journal.db-wal").stat().st_size <= 1 << 20
            freed = journal.statistics()
            assert (freed.wal_bytes <= 1 << 20, freed.wal_held_s) == (True, 0.0)
        assert len(await journal.read(ONE, 1, 99)) == 24


async def test_room_is_given_back(tmp_path: Path) -> None:
    """G10: what trimming frees does not stay in the file."""
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        (image,) = await journal.hydrate([SessionKey("new", "new")])
        assert isinstance(image, SavedSession)
        await commit_records(journal, [Opened(image.sid, "new", "new", 0)])
        count = 400
        for first in range(1, count, 100):
            entries = tuple(
                message(n, {"role": "user", "content": "x" * 30_000})
                for n in range(first, first + 100)
            )
            await commit_records(journal, [Appended(image.sid, entries, None)])
        dropped = Watermarks(0, count, count, 0)
        moved = BufferMoved(image.sid, dropped, at_seq=count, reason="dropped")
        await commit_records(journal, [moved])
        await journal.checkpoint()
        before = path.stat().st_size
        assert before > count * 30_000
        assert await journal.trim(Retention(max_messages=10), 0) >= count - 10
        await journal.checkpoint()
        assert await free_pages(path) <= 1_024
        assert await journal.verify() == []
    assert path.stat().st_size < 6 << 20


async def test_no_byte_of_the_forgotten_is_left(tmp_path: Path) -> None:
    """G13: after erasing and scrubbing no file of the directory holds a word of it, nor the user's
    name; others' words stay.
    """
    path = tmp_path / "journal.db"
    names = ["user", "session", "content", "id", "meta", "summary", "facet", "memory", "agent"]
    words = [f"canary-{name}-canary" for name in names]
    user, session, content, id_, meta, told, state_item, memory, agent = words
    async with journal_at(path, durability="power") as journal:
        await two_sessions(journal)
        fields = {"role": "user", "content": f"{content} {'y' * 3_000}", "metadata": {"m": meta}}
        entries = tuple(message(n, {**fields, "id": f"{id_}{n}"}) for n in range(1, 60))
        marks = Watermarks(0, 30, 30, 30)
        summary = Summary(30, told, told, 9, degraded=False, model=told)
        for records in (
            [Opened(8, user, session, 0), Opened(9, user, "", 0)],
            [Appended(8, entries, key_digest("canary-key-canary"))],
            [BufferMoved(8, marks, at_seq=59, summary=summary, ended=("none",))],
            [StateChanged(8, (StateItem(state_item, state_item, state_item.encode() * 2_000),))],
            [StateChanged(8, (StateItem(state_item, state_item, b"short"),))],
            [Remembered(9, (MemoryItem(memory, session, agent, memory, "fact", 0.5, 0, 3),), ())],
        ):
            await commit_records(journal, records)
        await journal.checkpoint()
        assert found_in(tmp_path, [word.encode() for word in words]) == set(words)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM messages").fetchone()
            async with anyio.create_task_group() as tasks:
                await journal.erase(user)
                tasks.start_soon(journal.scrub)  # waits for the reader; nobody's write waits for it
                await commit_records(journal, [Appended(2, said(4, 4), None)])
                assert [entry.seq for entry in await journal.read(TWO, 1, 9)] == [1, 2, 3, 4]
                reader.execute("COMMIT")
        digests = [key_digest("canary-key-canary")]
        assert found_in(tmp_path, [*(word.encode() for word in words), *digests]) == set()
        kept = [b"likes bridges", b"message 4"]
        assert found_in(tmp_path, kept) == {word.decode() for word in kept}
        assert await journal.verify() == []


def found_in(directory: Path, words: Sequence[bytes]) -> set[str]:
    files = [one.read_bytes() for one in directory.rglob("*") if one.is_file()]
    return {word.decode("latin-1") for word in words if any(word in content for content in files)}


async def test_a_write_that_comes_of_a_refusal(tmp_path: Path) -> None:
    """G13, G2: who is told that what they write for is forgotten may write something else at once,
    and that is stored.
    """
    async with journal_at(tmp_path / "journal.db") as journal:
        await commit_records(journal, [Opened(1, *ONE, 0), Opened(2, *TWO, 0)])
        await journal.erase("alice")
        outcomes: list[Exception | None] = []
        stored = anyio.Event()

        def told(error: Exception | None) -> None:
            outcomes.append(error)
            if len(outcomes) == 1:
                journal.write(Write([Appended(2, said(1, 1), None)], told))
            else:
                stored.set()

        journal.write(Write([Appended(1, said(1, 1), None)], told))
        await stored.wait()
        assert isinstance(outcomes[0], CommitFailed)
        assert outcomes[1] is None
        assert [entry.seq for entry in await journal.read(TWO, 1, 9)] == [1]
        assert await journal.verify() == []


async def test_erasing_after_a_crash(tmp_path: Path, connections: Connections) -> None:
    """G13, G4: what was queued before is erased, too; a failed erasure deletes nothing, and can be
    done again.
    """
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        opened = [Opened(1, *ONE, 0), Opened(2, *TWO, 0)]
        await commit_records(journal, [*opened, Appended(2, said(1, 1), None)])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit_records, journal, [Appended(1, said(1, 3), None)])
            await anyio.sleep(0)
            erased = await journal.erase("alice")
        assert erased.removed["messages"] == 3
        writer, _ = connections
        # what a file system that became read-only does to it
        await writer.execute("PRAGMA query_only = ON")
        for work in (
            journal.erase("bob"),
            journal.finish_erasure(erased.erasure.number),
            commit_records(journal, [Appended(2, said(2, 2), None)]),
        ):
            with pytest.raises((CommitFailed, OutcomeUnknown)) as caught:
                await work
            assert not isinstance(caught.value, OwnershipLost)
        assert [entry.seq for entry in await journal.read(TWO, 1, 9)] == [1]
        assert len(await journal.erasures()) == 1
        await writer.execute("PRAGMA query_only = OFF")
        assert (await journal.erase("bob")).removed["messages"] == 1
    with pytest.raises(RemoraError):
        await journal.erase("alice")


MALLORY = "mallory-and-no-other"


async def long_conversation(journal: SqliteJournal, messages: int) -> None:
    """Two sessions, and a third of somebody who will be forgotten."""
    await two_sessions(journal)
    entries = said(1, messages)
    await commit_records(journal, [Opened(8, MALLORY, "long", 0), Appended(8, entries, None)])


async def test_others_write_while_a_long_conversation_is_erased(tmp_path: Path) -> None:
    """G13: an append waits for some of the messages that go, not for all of them."""
    path = tmp_path / "journal.db"
    left: list[int] = []

    def count_messages(error: Exception | None) -> None:
        assert error is None
        with closing(sqlite3.connect(path)) as database:
            ((count,),) = database.execute("SELECT count(*) FROM messages").fetchall()
        left.append(count)

    async with journal_at(path) as journal:
        await long_conversation(journal, 1_600)
        async with anyio.create_task_group() as tasks:

            async def erase() -> None:
                erased = await journal.erase(MALLORY)
                assert erased.removed["messages"] == 1_600

            tasks.start_soon(erase)
            await anyio.sleep(0)
            journal.write(Write([Appended(2, said(4, 4), None)], count_messages))
    assert left == [6 + 4 + 1_600], "the append is stored before the first of them goes"


@pytest.mark.parametrize("commits", [2, 3])
async def test_an_erasure_that_ends_between_two_steps(
    tmp_path: Path, connections: Connections, commits: int
) -> None:
    """G13: what it has not deleted is no damage, is never found, and goes with the next start."""
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await long_conversation(journal, 1_600)
        writer, _ = connections
        steps = iter(range(2 * commits))  # each transaction begins, and commits

        def refuse() -> None:
            if next(steps, None) is None:
                refuse_full_disk()

        writer.before_commit = refuse
        with pytest.raises(OutcomeUnknown):
            await journal.erase(MALLORY)
        writer.before_commit = None
        assert await journal.sessions(MALLORY) == []
    assert found_in(tmp_path, [b"message 1599"])
    assert check_journal(path) == []
    async with journal_at(path) as journal:
        again = [Opened(9, MALLORY, "long", 0), Appended(9, said(1, 2), None)]
        await commit_records(journal, again)
        assert len(await journal.read(SessionKey(MALLORY, "long"), 1, 9)) == 2
        await journal.scrub()
        assert (await journal.counts()).messages == 6 + 3 + 2
    assert not found_in(tmp_path, [b"message 1599"])
    assert check_journal(path) == []
