"""The journal's file and its owner: bytes that flip, logs that are cut short, writers that were
overtaken, readers that stay.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Config, Runtime
from remora.errors import (
    CommitFailed,
    DirectoryUnusable,
    InvalidInput,
    JournalDamaged,
    OutcomeUnknown,
    OwnershipLost,
    RemoraError,
    StorageError,
)
from remora.ids import SessionKey, UserKey, key_digest
from remora.runtime.log import Write, commit_records
from remora.storage.ports import Retention
from remora.storage.records import (
    Appended,
    BufferMoved,
    IdLookup,
    KeyLookup,
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
from remora.storage.sqlite.mark import accept_loss, mark_path, read_mark
from remora.storage.sqlite.verify import check_journal
from tests.golden.make import make, message, said
from tests.sqlite import Connections, free_pages

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and write files

LEAN = Config.from_dict(
    {
        "long_term": {"enabled": False},
        "tokens": {"counter": "heuristic"},
        "models": {"embedder": "none"},
    }
)
ONE, TWO, ALICE = SessionKey("alice", "one"), SessionKey("bob", "two"), UserKey("alice")


@asynccontextmanager
async def journal_at(path: Path, **options: Any) -> AsyncIterator[SqliteJournal]:
    journal = await SqliteJournal.open(path, **{"durability": "process", **options})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        yield journal
        tasks.cancel_scope.cancel()
    await journal.aclose()


def altered(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount > 0, statement


async def two_sessions(journal: SqliteJournal) -> None:
    metadata = {"role": "user", "content": "two", "id": "m2", "metadata": {"a": 1}}
    entries = (
        message(1, {"role": "user", "content": "first"}),
        message(2, metadata, 0.7),
        *said(3, 6),
    )
    summary = Summary(2, "So far: ", "one and two", 9, degraded=False, model="m")
    await commit_records(journal, [Opened(1, *ONE, 5), Appended(1, entries, key_digest("k"))])
    await commit_records(
        journal,
        [BufferMoved(1, Watermarks(0, 2, 2, 2), at_seq=6, summary=summary, ended=("none",))],
    )
    await commit_records(journal, [StateChanged(1, (StateItem("block", "b", b"\xc3"),))])
    await commit_records(journal, [Opened(2, *TWO, 6), Appended(2, said(1, 3), None)])
    item = MemoryItem("memory-1", "one", "", "likes bridges", "fact", 0.5, 7, 3)
    await commit_records(journal, [Opened(3, "alice", "", 5), Remembered(3, (item,), ())])
    await commit_records(journal, [StateChanged(3, (StateItem("grant", "zoe", b"\xa3own"),))])


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        (
            (
                "UPDATE messages SET chat = replace(chat, 'message 4', 'message 5') WHERE pos = (1 << "  # noqa: E501
                "32) + 4"
            ),
            4,
        ),
        ("UPDATE messages SET tokens = tokens + 1 WHERE pos = (1 << 32) + 5", 5),
        ("UPDATE messages SET at_us = at_us + 1 WHERE pos = (1 << 32) + 3", 3),
        ("UPDATE messages SET importance = importance + 1e-9 WHERE pos = (1 << 32) + 2", 2),
        ("UPDATE messages SET meta = x'80' WHERE pos = (1 << 32) + 2", 2),
        ("UPDATE messages SET id = 'm3' WHERE pos = (1 << 32) + 2", 2),
        ("UPDATE messages SET role = 2 WHERE pos = (1 << 32) + 6", 6),
        ("UPDATE messages SET role = 77 WHERE pos = (1 << 32) + 6", 6),
        ("UPDATE messages SET batch = 2 WHERE pos = (1 << 32) + 1", 1),
        ("UPDATE messages SET pos = (1 << 32) + 9 WHERE pos = (1 << 32) + 6", None),
        ("UPDATE messages SET pos = (1 << 32) + 9 WHERE pos = (1 << 32) + 4", 4),
        ("DELETE FROM messages WHERE pos = (1 << 32) + 3", 3),
        ("DELETE FROM messages WHERE pos = (1 << 32) + 4", 4),
        ("UPDATE actors SET summarized = 3 WHERE sid = 1", None),
        ("UPDATE actors SET created_us = 1 WHERE sid = 1", None),
        ("UPDATE folds SET text = 'another' WHERE sid = 1", None),
        ("UPDATE facets SET value = x'c2' WHERE sid = 1", None),
    ],
)
async def test_flipped_bytes_are_named(damage: str, number: int | None, tmp_path: Path) -> None:
    """G3, G11: a row that is not what was written fails whoever reads it, by session and message;
    no other session notices.
    """
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await two_sessions(journal)
    altered(path, damage)
    async with journal_at(path) as journal:
        findings = await journal.verify()
        assert findings, "verify finds nothing"
        assert all("'alice'" in one.where and "'one'" in one.where for one in findings), findings
        errors: list[Exception] = []
        (image,) = await journal.hydrate([ONE])
        if isinstance(image, Exception):
            errors.append(image)
        for read in (
            journal.read(ONE, 1, 9),
            journal.fetch(ONE, KeyLookup(key_digest("k"))),
            journal.fetch(ONE, IdLookup(("m2", "m3"), 0)),
            journal.buffer_start(ONE, 6),
            journal.state_items(ONE),
        ):
            try:
                await read
            except JournalDamaged as e:
                errors.append(e)
        assert errors
        for error in errors:
            assert isinstance(error, JournalDamaged)
            assert "'one'" in str(error)
            assert "'alice'" in str(error)
        if number is not None:
            assert any(f"message {number} " in str(error) for error in errors), errors
        assert [entry.seq for entry in await journal.read(TWO, 1, 9)] == [1, 2, 3]
        (image,) = await journal.hydrate([TWO])
        assert isinstance(image, SavedSession)
    async with Runtime(tmp_path, config=LEAN) as runtime:
        assert (await runtime.session(*TWO).append({"role": "user", "content": "on"})).seqs == (4,)
        if number is not None:
            with pytest.raises(JournalDamaged):
                await runtime.session(*ONE).history()


@pytest.mark.parametrize(
    ("damage", "read"),
    [
        ("UPDATE memories SET content = 'hates bridges'", "memories"),
        ("UPDATE memories SET importance = 0.25", "memories"),
        ("UPDATE facets SET value = x'a57772697465' WHERE sid = 3", "facets"),
        ("UPDATE facets SET name = 'ann' WHERE sid = 3", "facets"),
    ],
)
async def test_flipped_bytes_of_a_user_are_named(damage: str, read: str, tmp_path: Path) -> None:
    """G3, G11, S4.33: what was recorded, and what was granted, is what was recorded and granted, or
    an error.
    """
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await two_sessions(journal)
    altered(path, damage)
    async with journal_at(path) as journal:
        with pytest.raises(JournalDamaged, match="'alice'"):
            await (journal.memories("alice") if read == "memories" else journal.state_items(ALICE))
        assert [one.where for one in await journal.verify()] == ["user 'alice'"]
        assert await journal.read(ONE, 1, 9)


async def test_any_flipped_byte(tmp_path: Path) -> None:
    """G3: whichever byte flips, what is read is what was written, or fails; in an index or a tree,
    at least `verify` says so.
    """
    rng = random.Random(11)
    await make(tmp_path)
    path = tmp_path / "journal.db"
    content = path.read_bytes()
    used = [
        at for at, byte in enumerate(content) if byte and at > 100
    ]  # free space is of no interest
    truth = await everything(path)
    named = same = 0
    for number in range(60):
        at = rng.choice(used)
        flipped = bytearray(content)
        flipped[at] ^= 1 << rng.randrange(8)
        where = tmp_path / f"flip-{number}"
        where.mkdir()
        (where / "journal.db").write_bytes(flipped)
        try:
            findings = check_journal(where / "journal.db")
            found = await everything(where / "journal.db")
        except StorageError:
            named += 1
        else:
            wrong = {
                key: value for key, value in found.items() if value not in (truth.get(key), None)
            }
            assert not wrong or findings, (at, wrong)
            named += bool(findings)
            same += not findings
        shutil.rmtree(where)
    assert named > 10, (named, same)
    assert same > 0  # free space, or bytes of what is not unchangeable


async def everything(path: Path) -> dict[Any, Any]:
    """What can be read of each actor; None for an error."""
    found: dict[Any, Any] = {}
    journal = await SqliteJournal.open(path, durability="process")
    try:
        keys = [key for key, _ in await journal.indexed_through()]
        for key in keys:
            found[key] = None
            with contextlib.suppress(StorageError):
                if isinstance(key, SessionKey):
                    found[key] = [
                        *await journal.read(key, 1, 99),
                        *await journal.state_items(key),
                        await journal.buffer_start(key, 99),
                    ]
                else:
                    found[key] = [
                        *await journal.memories(key.user),
                        *await journal.state_items(key),
                    ]
    finally:
        await journal.aclose()
    return found


# -- one owner -------------------------------------------------------------------------------------


async def test_a_writer_that_was_overtaken_stores_nothing(tmp_path: Path) -> None:
    """G12, G4: once another has opened the journal, whatever the first one writes fails, provably
    not stored, and it stays so.
    """
    path = tmp_path / "journal.db"
    async with journal_at(path) as first:
        await commit_records(first, [Opened(1, *ONE, 0), Appended(1, said(1, 1), None)])
        async with journal_at(path) as second:
            await commit_records(second, [Appended(1, said(2, 2), None)])
            for records in (
                [Appended(1, said(3, 3), None)],
                [Appended(1, said(3, 3), None), StateChanged(1, (StateItem("block", "b", b"x"),))],
                [Opened(2, *TWO, 0)],
            ):
                with pytest.raises(OwnershipLost) as caught:
                    await commit_records(first, records)
                assert isinstance(caught.value, CommitFailed)
                assert not caught.value.retryable
            for work in (
                first.erase("alice"),
                first.finish_erasure(1),
                first.init_setting("colour", "red"),
                first.change_settings({"colour": "red"}),
            ):
                with pytest.raises(OwnershipLost):
                    await work
            assert [entry.seq for entry in await first.read(ONE, 1, 9)] == [1, 2]  # looking is free
            await commit_records(second, [Appended(1, said(3, 3), None)])
            assert await second.setting("colour") is None
            assert await second.verify() == []
    async with journal_at(path) as third:
        assert [entry.seq for entry in await third.read(ONE, 1, 9)] == [1, 2, 3]


async def test_each_kind_of_commit_meets_the_fence(tmp_path: Path) -> None:
    """G12: the very first commit after the journal was taken over fails, of whatever kind it is."""
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 1), None)])
    kinds: list[Any] = [
        lambda j: commit_records(j, [Appended(1, said(2, 2), None)]),
        lambda j: commit_records(j, [StateChanged(1, (StateItem("block", "b", b"x"),))]),
        lambda j: j.erase("alice"),
        lambda j: j.finish_erasure(1),
        lambda j: j.init_setting("colour", "red"),
        lambda j: j.change_settings({"colour": "red"}),
    ]
    for kind in kinds:
        async with journal_at(path) as first:
            async with journal_at(path) as second:
                with pytest.raises(OwnershipLost):
                    await kind(first)
                assert await second.verify() == []
    async with journal_at(path) as journal:
        assert [entry.seq for entry in await journal.read(ONE, 1, 9)] == [1]
        assert await journal.setting("colour") is None


async def test_a_runtime_that_was_overtaken(tmp_path: Path) -> None:
    """G12, G11: its sessions fail with an error that says so, again and again; nothing of it is
    stored, and nothing hangs.
    """
    async with Runtime(tmp_path, config=LEAN) as runtime:
        chat = runtime.session(*ONE)
        await chat.append({"role": "user", "content": "mine"})
        async with journal_at(tmp_path / "journal.db"):
            for _ in range(2):
                with pytest.raises(OwnershipLost):
                    await chat.append({"role": "user", "content": "lost"})
            with pytest.raises(OwnershipLost):
                await runtime.session(*TWO).append({"role": "user", "content": "lost"})
        assert len(await chat.history()) == 1


# -- the commit mark -------------------------------------------------------------------------------


async def left_behind(directory: Path, **options: Any) -> tuple[dict[str, bytes], int]:
    """The files of a journal in use, as a kill leaves them, and how many messages were
    acknowledged.
    """
    path = directory / "journal.db"
    async with journal_at(path, **options) as journal:
        await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 1), None)])
        for number in range(2, 9):
            await commit_records(journal, [Appended(1, said(number, number), None)])
            if number == 5:
                await commit_records(journal, [StateChanged(1, (StateItem("block", "b", b"x"),))])
        return {
            one.name: one.read_bytes()
            for one in directory.iterdir()
            if not one.name.endswith("-shm")
        }, 8


def laid_out(files: dict[str, bytes], directory: Path) -> Path:
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory / "journal.db"


async def messages_in(path: Path, **options: Any) -> int:
    async with journal_at(path, **options) as journal:
        return len(await journal.read(ONE, 1, 99))


async def test_a_log_that_was_cut_short_is_noticed(tmp_path: Path) -> None:
    """G3: wherever the write-ahead log is cut, all that was acknowledged is there, or opening says
    what is not.
    """
    (tmp_path / "made").mkdir()
    files, count = await left_behind(tmp_path / "made", durability="power")
    log = files["journal.db-wal"]
    whole = noticed = 0
    for number, size in enumerate(
        sorted({*range(0, len(log), 4_120), *range(32, len(log), 5_003), len(log) - 1, len(log)})
    ):
        path = laid_out({**files, "journal.db-wal": log[:size]}, tmp_path / f"cut-{number}")
        if not (findings := check_journal(path)):
            assert await messages_in(path) == count
            whole += 1
        else:
            noticed += 1
            with pytest.raises(JournalDamaged, match="remora repair"):
                await messages_in(path)
            assert any(one.kind == "wal" and one.repairable for one in findings)
            assert accept_loss(path) == "accepted"
            assert await messages_in(path) < count
            assert accept_loss(path) == "accepted"  # of the new mark
    assert whole >= 1
    assert noticed >= 10
    gone = laid_out(
        {name: content for name, content in files.items() if not name.endswith("-wal")},
        tmp_path / "gone",
    )
    with pytest.raises(JournalDamaged, match="acknowledged"):
        await messages_in(gone)
    (gone.parent / "journal.db-wal").write_bytes(log)  # it was left behind
    assert await messages_in(gone) == count


async def test_a_setting_that_was_lost_is_noticed(tmp_path: Path) -> None:
    """G3: settings are commits like others: where the log that holds one is lost, opening says
    so.
    """
    (tmp_path / "made").mkdir()
    path = tmp_path / "made" / "journal.db"
    async with journal_at(path, durability="power") as journal:
        assert await journal.init_setting("colour", "red") == "red"
        before = path.with_name("journal.db-wal").read_bytes()
        await journal.change_settings({"colour": "blue", "size": "big"})
        files = {
            one.name: one.read_bytes()
            for one in path.parent.iterdir()
            if not one.name.endswith("-shm")
        }
    intact = laid_out(files, tmp_path / "intact")
    async with journal_at(intact) as journal:
        assert await journal.setting("colour") == "blue"
    for number, log in enumerate((before, b"")):
        cut = laid_out({**files, "journal.db-wal": log}, tmp_path / f"cut-{number}")
        with pytest.raises(JournalDamaged, match="acknowledged"):
            await messages_in(cut)


async def test_settings_before_and_while_it_runs(tmp_path: Path) -> None:
    """G4, G12: a setting is stored before the writer runs, and in turn among its writes; a closed
    journal stores none.
    """
    journal = await SqliteJournal.open(tmp_path / "journal.db", durability="process")
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(journal.change_settings, {"last": str(number), f"n{number}": "there"})
    assert await journal.init_setting("n0", "other") == "there"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.change_settings, {"early": "there"})
        tasks.start_soon(journal.run)
        tasks.start_soon(journal.init_setting, "late", "there")
        await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 1), None)])
        await journal.change_settings({"last": "five"})
        tasks.cancel_scope.cancel()
    names = ("last", "early", "late", *(f"n{number}" for number in range(5)))
    assert [await journal.setting(name) for name in names] == ["five", *["there"] * 7]
    assert await journal.verify() == []
    await journal.aclose()
    with pytest.raises(StorageError):
        await journal.change_settings({"last": "six"})


async def test_what_was_not_promised_is_only_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """G3: what was written at durability ``process`` may be lost in a power cut: the log tells of
    it, and service goes on.
    """
    (tmp_path / "made").mkdir()
    files, count = await left_behind(tmp_path / "made", durability="process")
    path = laid_out({**files, "journal.db-wal": files["journal.db-wal"][:9_000]}, tmp_path / "cut")
    assert await messages_in(path, durability="power") < count
    assert [one.levelname for one in caplog.records if "journal_lost_commits" in one.message] == [
        "WARNING"
    ]
    caplog.clear()
    assert await messages_in(path) < count
    assert "journal_lost_commits" not in caplog.text


async def test_a_mark_that_says_nothing_is_no_error(tmp_path: Path) -> None:
    """G3: one that is missing, stale, garbage, torn, another journal's, or of a journal that was
    restored from a backup.
    """
    made, other = tmp_path / "made", tmp_path / "other"
    made.mkdir()
    other.mkdir()
    files, count = await left_behind(made, durability="power")
    others, _ = await left_behind(other, durability="power")
    mark = files["journal.mark"]
    stale = laid_out(files, tmp_path / "stale")
    async with journal_at(stale, durability="power") as journal:
        await commit_records(
            journal,
            [Appended(1, said(9, 9), None), StateChanged(1, (StateItem("block", "c", b"x"),))],
        )
    (stale.parent / "journal.mark").write_bytes(mark)
    assert await messages_in(stale) == count + 1
    slots = [bytearray(mark), bytearray(mark)]
    slots[0][20] ^= 1
    slots[1][530] ^= 1
    for number, content in enumerate(
        [b"", b"x" * 4_096, mark[:100], mark[512:], bytes(1_024), *slots, others["journal.mark"]]
    ):
        path = laid_out({**files, "journal.mark": bytes(content)}, tmp_path / f"mark-{number}")
        assert await messages_in(path) == count
        assert check_journal(path) == []
    alone = laid_out(
        {name: content for name, content in files.items() if not name.endswith(".mark")},
        tmp_path / "alone",
    )
    assert accept_loss(alone) == "nothing"
    assert await messages_in(alone) == count
    # the directory of a journal that went on, with an older backup put in its place: what came
    # later is not lost, it is elsewhere
    snapshot(alone, tmp_path / "backup.db")
    async with journal_at(alone, durability="power") as journal:
        await commit_records(journal, [Appended(1, said(9, 12), None)])
    shutil.copyfile(tmp_path / "backup.db", alone)
    assert await messages_in(alone, durability="power") == count


async def test_what_is_forgotten_is_not_missed(tmp_path: Path) -> None:
    """G3, G13: a kill at any time around erasing and trimming the very message that the mark names
    leaves no false alarm.
    """
    path = tmp_path / "journal.db"
    watermarks: list[bytes] = []
    async with journal_at(path, durability="power") as journal:
        await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 9), None)])
        await commit_records(
            journal, [BufferMoved(1, Watermarks(0, 9, 9, 0), at_seq=9, reason="dropped")]
        )
        await commit_records(journal, [Opened(2, *TWO, 0)])
        await commit_records(journal, [Appended(2, said(1, 1), None)])
        watermarks.append(mark_path(path).read_bytes())
        named = read_mark(mark_path(path))
        assert named is not None
        assert named.newest == (2 << 32) | 1
        await journal.erase(*TWO)
        watermarks.append(mark_path(path).read_bytes())
        await journal.trim(Retention(max_bytes=1), 0)
        await journal.scrub()
        watermarks.append(mark_path(path).read_bytes())
    for number, content in enumerate(watermarks):
        other = laid_out(
            {"journal.db": path.read_bytes(), "journal.mark": content}, tmp_path / f"kill-{number}"
        )
        assert await messages_in(other, durability="power") == 2


async def test_numbers_of_the_forgotten_are_not_given_out_again(tmp_path: Path) -> None:
    """G13, S4.09: after a restart, too: ids of messages and jobs tell of their actor."""
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        for sid, key in ((1, ONE), (2, TWO)):
            await commit_records(journal, [Opened(sid, *key, 0), Appended(sid, said(1, 1), None)])
        await journal.erase("bob")
    async with journal_at(path) as journal:
        (image,) = await journal.hydrate([TWO])
        assert isinstance(image, SavedSession)
        assert image.sid > 2
        await journal.erase("alice")
    async with journal_at(path) as journal:
        (image,) = await journal.hydrate([TWO])
        assert isinstance(image, SavedSession)
        assert image.sid > 2


# -- verify, backup --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "said_of_it"),
    [
        (
            "UPDATE actors SET cleared = 9, marks_crc = NULL WHERE sid = 1",
            "more was cleared than left the buffer",
        ),
        (
            "UPDATE actors SET folding = 1, marks_crc = NULL WHERE sid = 1",
            "more left the buffer than is summarized",
        ),
        (
            "UPDATE actors SET folding = 99, flushing = 99, marks_crc = NULL WHERE sid = 1",
            "more is being indexed than was appended",
        ),
        (
            "UPDATE actors SET flushed = 5 WHERE sid = 1",
            "more is in long-term memory than was indexed",
        ),
        ("UPDATE folds SET through = 99, crc = NULL WHERE sid = 1", "a summary covers messages"),
        ("DELETE FROM messages WHERE pos = (1 << 32) + 6", "it came under the same key"),
        (
            "UPDATE messages SET chat = x'c1', crc = NULL WHERE pos = (1 << 32) + 4",
            "message 4 cannot be read",
        ),
        ("DELETE FROM actors WHERE sid = 2", "it is not known whose they are"),
        (
            "INSERT INTO jobs (id, lane, sid, payload) VALUES ('j', 'flush', 1, x'c1')",
            "the job j cannot be read",
        ),
        (
            "INSERT INTO jobs (id, lane, sid, payload, crc) VALUES ('j', 'flush', 1, x'80', 5)",
            "the job j is not as it was written",
        ),
        ("UPDATE memories SET sid = 2, crc = NULL", "is of no user"),
        ("UPDATE facets SET sid = 7, crc = NULL WHERE sid = 3", "it is not known whose it is"),
        ("UPDATE settings SET value = 'many' WHERE name = 'commits'", "is no number"),
        ("INSERT INTO erasures (user_key, session_key) VALUES ('', '')", "names no user"),
    ],
)
async def test_verify_finds(damage: str, said_of_it: str, tmp_path: Path) -> None:
    """G3, G7: what does not hold together is found, and said; a sound journal has no findings."""
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await two_sessions(journal)
        assert await journal.verify() == []
    altered(path, damage)
    findings = check_journal(path)
    assert any(said_of_it in one.detail for one in findings), findings
    assert {one.kind for one in findings} <= {"journal", "wal"}


async def test_verify_of_a_file_that_is_no_journal(tmp_path: Path) -> None:
    """G3: it says so, in its findings, of garbage, of a torn page and of an index that lacks an
    entry.
    """
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await two_sessions(journal)
    content = path.read_bytes()
    (tmp_path / "garbage.db").write_bytes(b"this is no database" * 500)
    (tmp_path / "torn.db").write_bytes(content[:8_192] + bytes(4_096) + content[12_288:])
    for name in ("garbage.db", "torn.db"):
        assert check_journal(tmp_path / name), name
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA user_version = 1")
    assert "format 1" in check_journal(path)[0].detail


async def test_backup_of_a_journal_in_use(tmp_path: Path) -> None:
    """G3, G4: all that was acknowledged before is in it, each write whole, while writers go on; it
    is a journal of its own.
    """
    path, copy = tmp_path / "journal.db", tmp_path / "copies" / "copy.db"
    copy.parent.mkdir()
    async with journal_at(path) as journal:
        await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 400), None)])
        written, stop = [400], [False]

        async def write() -> None:
            while not stop[0]:
                await commit_records(
                    journal, [Appended(1, said(written[0] + 1, written[0] + 3), None)]
                )
                written[0] += 3

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for number in range(3):
                before = written[0]
                target = copy.with_name(f"copy-{number}.db")
                await journal.backup(target)
                assert check_journal(target) == []
                async with journal_at(target) as other:
                    there = [entry.seq for entry in await other.read(ONE, 1, 1 << 20)]
                    assert there == list(range(1, len(there) + 1))
                    assert len(there) >= before
                    assert (len(there) - 400) % 3 == 0
                    assert other.instance == journal.instance
            stop[0] = True
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
        caplog.set_level("INFO", "remora.journal")
        for _ in range(2):
            caplog.clear()
            with closing(sqlite3.connect(path, isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM messages").fetchone()
                for _ in range(12):
                    await commit_records(
                        journal,
                        [
                            Appended(
                                1, (message(at, {"role": "user", "content": "x" * 150_000}),), None
                            )
                        ],
                    )
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


@pytest.mark.parametrize("born", [1, 2])
async def test_room_is_given_back(born: int, tmp_path: Path) -> None:
    """G10: what trimming frees does not stay in the file; that of an older journal, too, once it is
    worth the while.
    """
    path = tmp_path / "journal.db"
    if born == 1:
        shutil.copyfile(Path(__file__).parents[1] / "golden" / "format-1" / "journal.db", path)
    async with journal_at(path) as journal:
        (image,) = await journal.hydrate([SessionKey("new", "new")])
        assert isinstance(image, SavedSession)
        await commit_records(journal, [Opened(image.sid, "new", "new", 0)])
        count = 400 if born == 2 else 3_200
        for first in range(1, count, 100):
            entries = tuple(
                message(n, {"role": "user", "content": "x" * 30_000})
                for n in range(first, first + 100)
            )
            await commit_records(journal, [Appended(image.sid, entries, None)])
        await commit_records(
            journal,
            [
                BufferMoved(
                    image.sid, Watermarks(0, count, count, 0), at_seq=count, reason="dropped"
                )
            ],
        )
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
    words = [
        f"canary-{name}-canary"
        for name in (
            "user",
            "session",
            "content",
            "id",
            "meta",
            "summary",
            "facet",
            "memory",
            "agent",
        )
    ]
    user, session, content, id_, meta, told, state_item, memory, agent = words
    async with journal_at(path, durability="power") as journal:
        await two_sessions(journal)
        entries = tuple(
            message(
                n,
                {
                    "role": "user",
                    "content": f"{content} {n} {'y' * 3_000}",
                    "id": f"{id_}{n}",
                    "metadata": {"m": meta},
                },
            )
            for n in range(1, 60)
        )
        await commit_records(journal, [Opened(8, user, session, 0), Opened(9, user, "", 0)])
        await commit_records(journal, [Appended(8, entries, key_digest("canary-key-canary"))])
        summary = Summary(30, told, told, 9, degraded=False, model=told)
        await commit_records(
            journal,
            [
                BufferMoved(
                    8, Watermarks(0, 30, 30, 30), at_seq=59, summary=summary, ended=("none",)
                )
            ],
        )
        await commit_records(
            journal,
            [StateChanged(8, (StateItem(state_item, state_item, state_item.encode() * 2_000),))],
        )
        await commit_records(
            journal, [StateChanged(8, (StateItem(state_item, state_item, b"short"),))]
        )
        await commit_records(
            journal,
            [Remembered(9, (MemoryItem(memory, session, agent, memory, "fact", 0.5, 0, 3),), ())],
        )
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
        assert found_in(tmp_path, [b"likes bridges", b"message 4"]) == {
            "likes bridges",
            "message 4",
        }
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

        def told(_: Write, error: Exception | None) -> None:
            outcomes.append(error)
            if len(outcomes) == 1:
                journal.write(Write([Appended(2, said(1, 1), None)], told))
            else:
                stored.set()

        journal.write(Write([Appended(1, said(1, 1), None)], told))
        with anyio.fail_after(10):
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
        await commit_records(
            journal, [Opened(1, *ONE, 0), Opened(2, *TWO, 0), Appended(2, said(1, 1), None)]
        )
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
