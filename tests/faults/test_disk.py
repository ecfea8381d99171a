"""A disk that is full: refused provably, and in service again as soon as there is room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora import Config, Runtime
from remora.errors import CommitFailed
from remora.storage.sqlite.journal import SqliteJournal
from tests.sqlite import Connections, change_rows, row_in_the_way

pytestmark = pytest.mark.anyio

LEAN = Config.from_dict({"long_term": {"enabled": False}, "tokens": {"counter": "heuristic"}})


async def test_disk_full(tmp_path: Path, connections: Connections) -> None:
    """G3, G4, G11: nothing of a refused append is kept, everything acknowledged is, and service
    resumes by itself.
    """
    async with Runtime(tmp_path, config=LEAN) as runtime:
        assert isinstance(runtime.internals.journal, SqliteJournal)
        chat, other = runtime.session("alice", "one"), runtime.session("bob", "one")
        await chat.append({"role": "user", "content": "before"})
        writer, _ = connections
        ((pages,),) = await writer.execute_fetchall("PRAGMA page_count")
        # what SQLite itself calls a full disk
        await writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        acknowledged = ["before"]
        for number in range(30):
            text = f"{number} " + "x" * 2_000
            try:
                await chat.append({"role": "user", "content": text}, key=f"k{number}")
            except CommitFailed as e:
                assert "full" in str(e)  # noqa: PT017
                break
            acknowledged.append(text)
        else:
            raise AssertionError("the disk never filled up")
        with pytest.raises(CommitFailed):
            await other.append({"role": "user", "content": "y" * 9_000})
        assert [m.content for m in await chat.history()] == acknowledged
        await writer.execute("PRAGMA max_page_count = 1000000")
        receipt = await chat.append({"role": "user", "content": "after"}, key="again")
        assert receipt.seqs == (len(acknowledged) + 1,)
        assert (await other.append({"role": "user", "content": "after"})).seqs == (1,)
    async with Runtime(tmp_path, config=LEAN) as runtime:
        assert [m.content for m in await runtime.session("alice", "one").history()] == [
            *acknowledged,
            "after",
        ]


async def test_a_full_disk_does_not_fill_the_log(
    tmp_path: Path, connections: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    """Each append fails, and reads go on; the log has the reason once, and no traceback."""
    async with Runtime(tmp_path, config=LEAN) as runtime:
        chats = [runtime.session(f"user {number}", "one") for number in range(4)]
        for chat in chats:
            await chat.append({"role": "user", "content": "before"})
        writer, _ = connections
        ((pages,),) = await writer.execute_fetchall("PRAGMA page_count")
        await writer.execute(f"PRAGMA max_page_count = {pages}")
        failed = 0
        for number in range(100):
            try:
                await chats[number % 4].append({"role": "user", "content": "x" * 40_000})
            except CommitFailed:
                failed += 1
            assert (await chats[number % 4].load()).messages
        assert failed > 90
        assert caplog.text.count("commit_failed") == 1
        assert "full" in caplog.text
        assert "Traceback" not in caplog.text
        assert len(caplog.records) < 5


async def test_a_write_that_cannot_be_stored_fails_alone(tmp_path: Path) -> None:
    """G11: one session's impossible row does not fail the others that share its commit."""
    import anyio  # noqa: PLC0415

    async with Runtime(tmp_path, config=LEAN) as runtime:
        good, bad = runtime.session("alice", "good"), runtime.session("alice", "bad")
        await bad.append({"role": "user", "content": "fine"})
        view = await bad.inspect()
        # a row in the way of the session's next message: an integrity error that is nobody else's
        await change_rows(tmp_path / "journal.db", row_in_the_way(view.sid, 2))
        outcomes: dict[str, Any] = {}

        async def send(name: str, chat: Any) -> None:
            try:
                outcomes[name] = await chat.append({"role": "user", "content": name})
            except CommitFailed as e:
                outcomes[name] = e

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, "bad", bad)
            tasks.start_soon(send, "good", good)
        assert isinstance(outcomes["bad"], CommitFailed)
        assert outcomes["good"].seqs == (1,)
