"""Memory directories that tests damage: a journal with two sessions, a configuration, digests."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio

from remora.ids import key_digest
from remora.runtime.log import commit_records
from remora.storage.ports import SessionKey, UserKey
from remora.storage.records import (
    Appended,
    BufferMoved,
    MemoryItem,
    Opened,
    Remembered,
    StateChanged,
    StateItem,
    Summary,
    Watermarks,
)
from remora.storage.sqlite.journal import SqliteJournal
from tests.golden.make import message, said

ONE, TWO, ALICE = SessionKey("alice", "one"), SessionKey("bob", "two"), UserKey("alice")


@asynccontextmanager
async def journal_at(path: Path, **options: Any) -> AsyncIterator[SqliteJournal]:
    journal = await SqliteJournal.open(path, **{"durability": "process", **options})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        yield journal
        tasks.cancel_scope.cancel()
    await journal.aclose()


def digests(directory: Path, *without: str) -> dict[str, str]:
    """What is in each file of a directory, in short."""
    return {
        str(path.relative_to(directory)): blake2b(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in without
    }


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
