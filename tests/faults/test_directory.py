"""Directories and files that are not what they should be: a clear error, and nothing touched."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.abc
import pytest

from remora import Config, Runtime
from remora.errors import DirectoryLocked, DirectoryUnusable, JournalDamaged, JournalTooNew
from remora.storage.sqlite.schema import FORMAT
from tests.accounts import ANOTHER, require_interpreter_for_another

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves write files

LEAN = Config.from_dict(
    {"long_term": {"enabled": False}, "tokens": {"counter": "heuristic"}, "lock_wait_s": 0}
)


async def say(directory: Path, text: str) -> None:
    async with Runtime(directory, config=LEAN) as runtime:
        await runtime.session("alice", "one").append({"role": "user", "content": text})


async def test_second_runtime_is_refused(tmp_path: Path) -> None:
    """G12: in one process and in another; the owner is named; afterwards the directory is free."""
    async with Runtime(tmp_path, config=LEAN):
        with pytest.raises(DirectoryLocked) as caught:
            await say(tmp_path, "no")
        assert caught.value.pid == os.getpid()
        assert caught.value.since
        program = f"""
import asyncio, remora
from remora.errors import DirectoryLocked
async def main():
    try:
        async with remora.Runtime({str(tmp_path)!r}): pass
    except DirectoryLocked as e:
        assert e.pid == {os.getpid()} and "in use by process" in str(e)
        print("refused")
asyncio.run(main())
"""
        done = await anyio.run_process([sys.executable, "-c", program])
        assert done.stdout == b"refused\n"
    await say(tmp_path, "free again")


OWNER = """
import asyncio, sys, remora
async def main():
    async with remora.Runtime(sys.argv[1], config=remora.Config.from_dict({"long_term": {"enabled": False}})) as runtime:
        await runtime.session("alice", "one").append({"role": "user", "content": "mine"})
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""  # noqa: E501


async def owned_by_another(directory: Path) -> anyio.abc.Process:
    """A process that owns the directory until it is killed."""
    process = await anyio.open_process([sys.executable, "-c", OWNER, str(directory)])
    assert process.stdout is not None
    assert b"open" in await process.stdout.receive()
    return process


async def test_killed_owner_is_followed_at_once(tmp_path: Path) -> None:
    """G12: another process is refused with the owner's pid and start time; once the owner is
    killed, the next takes over.
    """
    owner = await owned_by_another(tmp_path)
    with pytest.raises(DirectoryLocked) as caught:
        await say(tmp_path, "no")
    assert caught.value.pid == owner.pid
    assert caught.value.since is not None
    assert f"process {owner.pid} since {caught.value.since}" in str(caught.value)
    os.kill(owner.pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # where the event loop was faster, its number is free already
        os.waitid(
            os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT
        )  # dead, and not buried: its number is still taken
    assert (tmp_path / "owner.json").exists()
    async with Runtime(tmp_path, config=LEAN) as runtime:
        assert [message.content for message in await runtime.session("alice", "one").history()] == [
            "mine"
        ]
    await owner.aclose()


async def test_lock_file_that_is_removed_while_it_is_held(tmp_path: Path) -> None:
    """G12: the directory stays its owner's, another process's and this one's own; and what the
    owner leaves is its own.
    """
    owner = await owned_by_another(tmp_path)
    (tmp_path / "remora.lock").unlink()
    for _ in range(2):  # the one that was refused has made another lock file
        with pytest.raises(DirectoryLocked) as caught:
            await say(tmp_path, "no")
        assert caught.value.pid == owner.pid
    os.kill(owner.pid, signal.SIGKILL)
    await owner.aclose()
    async with Runtime(tmp_path, config=LEAN):
        (tmp_path / "remora.lock").unlink()
        with pytest.raises(DirectoryLocked) as caught:
            await say(tmp_path, "no")
        assert caught.value.pid == os.getpid()
    await say(tmp_path, "free again")


@pytest.mark.parametrize(
    "left",
    [
        "",
        "{",
        "[]",
        '{"pid": "many"}',
        '{"pid": 1}',
        '{"pid": 1, "since": "2026", "started": "elsewhere/1"}',
        "\x00" * 40,
    ],
)
async def test_owner_that_left_nothing_of_use(left: str, tmp_path: Path) -> None:
    """G12: a torn or foreign note of an owner, of a directory that was copied from elsewhere, say,
    keeps nobody out.
    """
    (tmp_path / "owner.json").write_text(left)
    async with Runtime(tmp_path, config=LEAN) as runtime:
        (tmp_path / "owner.json").write_text(left)
        with pytest.raises(DirectoryLocked, match="in use by process"):
            await say(tmp_path, "no")
        await runtime.session("alice", "one").append({"role": "user", "content": "mine"})
    await say(tmp_path, "free again")


async def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in the way, and a parent that is none."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DirectoryUnusable) as caught:
            await say(path, "no")
        assert caught.value.path == str(path)


@pytest.mark.skipif(
    not Path("/usr/bin/setpriv").exists() and os.geteuid() == 0, reason="root may write anywhere"
)
async def test_read_only_directory(tmp_path: Path) -> None:
    """A directory without write permission: refused before anything is written."""
    directory = tmp_path / "memory"
    await say(directory, "before")
    program = f"""
import asyncio, remora
from remora.errors import DirectoryUnusable
async def main():
    try:
        async with remora.Runtime({str(directory)!r}): pass
    except DirectoryUnusable as e: print("refused:", e)
asyncio.run(main())
"""
    for parent in (tmp_path, *tmp_path.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
    directory.chmod(0o555)
    prefix = []
    if os.geteuid() == 0:
        require_interpreter_for_another()
        prefix = ["setpriv", f"--reuid={ANOTHER}", "--clear-groups"]
    repository = str(Path(__file__).parents[2])
    done = await anyio.run_process(
        [*prefix, sys.executable, "-c", program],
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": repository},
    )
    directory.chmod(0o755)
    assert b"refused:" in done.stdout, done.stderr
    await say(directory, "after")


async def test_journal_of_a_newer_format(tmp_path: Path) -> None:
    """A newer journal is refused with both numbers, and not a byte of it changes."""
    await say(tmp_path, "hello")
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 7}")
    database.close()
    before = path.read_bytes()
    with pytest.raises(JournalTooNew, match="upgrade remora") as caught:
        await say(tmp_path, "no")
    assert (caught.value.found, caught.value.supported) == (FORMAT + 7, FORMAT)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"this is no database" * 300, b"SQLite format 3\x00" + b"\xff" * 5000]
)
async def test_file_that_is_no_journal(tmp_path: Path, content: bytes) -> None:
    """Garbage where the journal should be is named as such, and left alone."""
    path = tmp_path / "journal.db"
    path.write_bytes(content)
    with pytest.raises(JournalDamaged):
        await say(tmp_path, "no")
    assert path.read_bytes() == content


async def test_foreign_database(tmp_path: Path) -> None:
    """Somebody else's SQLite file is not turned into a journal."""
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(JournalDamaged, match="no remora journal"):
        await say(tmp_path, "no")
    assert path.read_bytes() == before


async def test_lost_long_term_directory_is_visible_not_fatal(tmp_path: Path) -> None:
    """G6, G7: long-term memory that cannot be opened fails recall and delays flushes, no more; when
    it is back, all arrives.
    """
    in_the_way = tmp_path / "longterm"
    in_the_way.write_text("a file where a directory should be")
    config = Config.from_dict(
        {
            "tokens": {"counter": "heuristic"},
            "models": {"embedder": "none"},
            "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.05},
            "recall": {"deadline_s": 60},
        }
    )
    async with Runtime(tmp_path, config=config) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append({"role": "user", "content": "The key is under the flowerpot."})
        assert await chat.flush() == 1
        context = await chat.load(query="key")
        assert context.sources["long_term"].status == "failed"
        assert context.messages == [{"role": "user", "content": "The key is under the flowerpot."}]
        with anyio.fail_after(60):
            while not (jobs := await runtime.internals.journal.jobs()) or not jobs[0].error:
                await anyio.sleep(0.01)
        assert "LongTermError" in jobs[0].error
        in_the_way.unlink()
        with anyio.fail_after(60):
            await chat.settle()
        assert await runtime.dead_letters() == []
        assert len(await runtime.user("alice").recall("key")) == 1
