"""The commit mark of a journal: what a disk lost is noticed."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora.errors import CommitFailed, JournalDamaged, OwnershipLost, StorageError
from remora.runtime.log import commit_records
from remora.storage.ports import Retention
from remora.storage.records import (
    Appended,
    BufferMoved,
    Opened,
    SavedSession,
    StateChanged,
    StateItem,
    Watermarks,
)
from remora.storage.sqlite.backup import snapshot
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.mark import accept_loss, mark_path, read_mark
from remora.storage.sqlite.verify import check_journal
from tests.faults.journals import ONE, TWO, journal_at
from tests.golden.make import said

BLOCK = StateChanged(1, (StateItem("block", "b", b"x"),))
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and write files


# -- one owner -------------------------------------------------------------------------------------

COMMITS: dict[str, Callable[[SqliteJournal], Awaitable[object]]] = {
    "messages": lambda journal: commit_records(journal, [Appended(1, said(2, 2), None)]),
    "state": lambda journal: commit_records(journal, [BLOCK]),
    "messages and state": lambda journal: commit_records(
        journal, [Appended(1, said(2, 2), None), BLOCK]
    ),
    "a session": lambda journal: commit_records(journal, [Opened(2, *TWO, 0)]),
    "an erasure": lambda journal: journal.erase("alice"),
    "an erasure's end": lambda journal: journal.finish_erasure(1),
    "a new setting": lambda journal: journal.init_setting("colour", "red"),
    "settings": lambda journal: journal.change_settings({"colour": "red"}),
}


async def test_a_writer_that_was_overtaken_stores_nothing(tmp_path: Path) -> None:
    """G12, G4: once another has opened the journal, whatever the first one writes fails, provably
    not stored, and it stays so: the very first commit of each kind, and all that follow.
    """
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 1), None)])
    kinds = list(COMMITS)
    for number in range(len(kinds)):
        async with journal_at(path) as first, journal_at(path) as second:
            if number % 2:  # it has not only opened it, but written
                await commit_records(second, [BLOCK])
            for kind in kinds[number:] + kinds[:number]:
                with pytest.raises(OwnershipLost) as caught:
                    await COMMITS[kind](first)
                assert isinstance(caught.value, CommitFailed), kind
                assert not caught.value.retryable, kind
            assert [entry.seq for entry in await first.read(ONE, 1, 9)] == [1]  # looking is free
            assert await second.setting("colour") is None
            assert await second.verify() == []
    async with journal_at(path) as third:
        await commit_records(third, [Appended(1, said(2, 2), None)])
        assert [entry.seq for entry in await third.read(ONE, 1, 9)] == [1, 2]


# -- the commit mark -------------------------------------------------------------------------------


def files_of(directory: Path) -> dict[str, bytes]:
    """The files of a journal in use, as a kill leaves them."""
    files = [one for one in directory.iterdir() if not one.name.endswith("-shm")]
    return {one.name: one.read_bytes() for one in files}


async def left_behind(directory: Path, **options: Any) -> tuple[dict[str, bytes], int]:
    """What a kill leaves of a new journal, and how many messages were acknowledged."""
    directory.mkdir()
    async with journal_at(directory / "journal.db", **options) as journal:
        await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 1), None)])
        for number in range(2, 9):
            await commit_records(journal, [Appended(1, said(number, number), None)])
            if number == 5:
                await commit_records(journal, [BLOCK])
        return files_of(directory), 8


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
    del files["journal.db-wal"]
    gone = laid_out(files, tmp_path / "gone")
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
        files = files_of(path.parent)
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
    async with anyio.create_task_group() as running:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(journal.change_settings, {"early": "there"})
            running.start_soon(journal.run)
            tasks.start_soon(journal.init_setting, "late", "there")
            await commit_records(journal, [Opened(1, *ONE, 0), Appended(1, said(1, 1), None)])
            await journal.change_settings({"last": "five"})
        running.cancel_scope.cancel()
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
    """G3: one that is missing, stale, garbage or torn."""
    files, count = await left_behind(tmp_path / "made", durability="power")
    mark = files["journal.mark"]
    stale = laid_out(files, tmp_path / "stale")
    async with journal_at(stale, durability="power") as journal:
        await commit_records(journal, [Appended(1, said(9, 9), None), BLOCK])
    (stale.parent / "journal.mark").write_bytes(mark)
    assert await messages_in(stale) == count + 1
    slots = [bytearray(mark), bytearray(mark)]
    slots[0][20] ^= 1
    slots[1][530] ^= 1
    for number, content in enumerate(
        [b"", b"x" * 4_096, mark[:100], mark[512:], bytes(1_024), *slots]
    ):
        path = laid_out({**files, "journal.mark": bytes(content)}, tmp_path / f"mark-{number}")
        assert await messages_in(path) == count
        assert check_journal(path) == []
    del files["journal.mark"]
    alone = laid_out(files, tmp_path / "alone")
    assert accept_loss(alone) == "nothing"
    assert await messages_in(alone) == count


async def test_a_mark_of_another_journal_says_that_it_was_replaced(tmp_path: Path) -> None:
    """G7: another journal's mark, or a backup put in the place of a journal that went on."""
    files, count = await left_behind(tmp_path / "made", durability="power")
    others, _ = await left_behind(tmp_path / "other", durability="power")
    path = laid_out({**files, "journal.mark": others["journal.mark"]}, tmp_path / "mixed")
    with pytest.raises(JournalDamaged, match="replaced"):
        await messages_in(path)
    snapshot(path, tmp_path / "backup.db")
    restored = laid_out({"journal.mark": files["journal.mark"]}, tmp_path / "restored")
    shutil.copyfile(tmp_path / "backup.db", restored)
    with pytest.raises(JournalDamaged, match="replaced"):
        await messages_in(restored)
    assert accept_loss(restored) == "accepted"
    assert await messages_in(restored) == count


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
    for _ in range(2):
        async with journal_at(path) as journal:
            (image,) = await journal.hydrate([TWO])
            assert isinstance(image, SavedSession)
            assert image.sid > 2
            await journal.erase("alice")
