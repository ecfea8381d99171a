"""Directories and files that are not what they should be: a clear error, and nothing touched."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from remora import Config, Runtime
from remora.errors import DirectoryUnusable, JournalDamaged, JournalTooNew
from remora.storage.sqlite.schema import FORMAT
from tests.accounts import ANOTHER, require_interpreter_for_another
from tests.configs import PLAIN
from tests.harness import user
from tests.patience import until

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves write files


async def say(directory: Path, text: str) -> None:
    async with Runtime(directory, config=PLAIN) as runtime:
        await runtime.session("alice", "one").append(user(text))


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


async def test_a_file_that_is_no_journal_of_this_version(tmp_path: Path) -> None:
    """A newer journal is refused with both numbers, garbage and somebody else's SQLite file are
    named as such, and not a byte of them changes.
    """
    newer, foreign, garbage = (tmp_path / name for name in ("newer", "foreign", "garbage"))
    await say(newer, "hello")
    foreign.mkdir()
    for directory, statement in (
        (newer, f"PRAGMA user_version = {FORMAT + 7}"),
        (foreign, "CREATE TABLE theirs (x)"),
    ):
        with closing(sqlite3.connect(directory / "journal.db")) as database, database:
            database.execute(statement)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/journal.db")}
    with pytest.raises(JournalTooNew, match="upgrade remora") as caught:
        await say(newer, "no")
    assert (caught.value.found, caught.value.supported) == (FORMAT + 7, FORMAT)
    with pytest.raises(JournalDamaged, match="no remora journal"):
        await say(foreign, "no")
    garbage.mkdir()
    for content in (b"this is no database" * 300, b"SQLite format 3\x00" + b"\xff" * 5000):
        before[garbage / "journal.db"] = content
        (garbage / "journal.db").write_bytes(content)
        with pytest.raises(JournalDamaged):
            await say(garbage, "no")
        assert {path: path.read_bytes() for path in before} == before


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
            "recall": {"deadline_s": 600},
        }
    )
    async with Runtime(tmp_path, config=config) as runtime:
        chat, message = runtime.session("alice", "one"), user("The key is under the flowerpot.")
        await chat.append(message)
        assert await chat.flush() == 1
        context = await chat.load(query="key")
        assert context.sources["long_term"].status == "failed"
        assert context.messages == [message]
        journal = runtime.internals.journal

        async def failed() -> list[str]:
            return [one.error for one in await journal.jobs() if one.error]

        errors: list[str] = await until(failed)
        assert "LongTermError" in errors[0]
        in_the_way.unlink()
        await chat.settle()
        assert await runtime.dead_letters() == []
        assert len(await runtime.user("alice").recall("key")) == 1
