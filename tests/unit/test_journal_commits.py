"""How a commit gets to SQLite, and how those who wait for it are told."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import remora
from remora.messages import encode_message
from remora.runtime.jobs import JobDone
from remora.storage.journal_port import running_journal
from remora.storage.ports import Write
from remora.storage.records import Appended, BufferMoved, Watermarks
from remora.storage.sqlite.connection import JournalConnection, NothingChanged, Step, run_steps
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.writer import Rows

pytestmark = pytest.mark.anyio
MANY = 100  # more than are told at a time


def said(number: int) -> Write:
    entry, _ = encode_message({"role": "user", "content": f"text {number}"})
    return Write([Appended(number, (entry.with_seq(1),), None)], lambda *_: None)


async def test_all_of_a_large_commit_are_told_in_order(tmp_path: Path) -> None:
    """G2, G3, G4: every one, once, in the order of writing, and nobody before the commit; a failure
    of the next one after them.
    """
    journal = await SqliteJournal.open(tmp_path / "journal.db", durability="none")
    told: list[tuple[int, bool]] = []
    commits: list[int] = []
    done = anyio.Event()

    def write(number: int, sid: int) -> None:
        def tell(error: Exception | None) -> None:
            told.append((number, error is None))
            if number == MANY:
                commits.append(journal.statistics().commits)
                write(0, 1)  # is there already
            elif number == 0:
                done.set()

        one = said(sid)
        one.acknowledge = tell
        journal.write(one)

    for number in range(1, MANY + 1):
        write(number, number)
    async with running_journal(journal):
        await done.wait()
    assert told == [*((number, True) for number in range(1, MANY + 1)), (0, False)]
    assert commits == [1]


async def test_who_was_not_told_yet_is_told_by_the_end(tmp_path: Path) -> None:
    """G3, G12: a journal that closes in the midst of telling tells the rest: their messages are
    durable.
    """
    journal = await SqliteJournal.open(tmp_path / "journal.db", durability="none")
    told: list[Exception | None] = []
    first = anyio.Event()

    def tell(error: Exception | None) -> None:
        told.append(error)
        first.set()

    for number in range(1, MANY + 1):
        write = said(number)
        write.acknowledge = tell
        journal.write(write)
    async with running_journal(journal):
        await first.wait()
        assert len(told) < MANY
    assert told == [None] * MANY


@pytest.mark.blocking  # the test itself looks into the file
async def test_a_queued_write_that_is_fenced_is_never_stored(tmp_path: Path) -> None:
    """G4: its sender was told that it failed, while it waited for its commit."""
    path = tmp_path / "journal.db"
    journal = await SqliteJournal.open(path, durability="none")
    done = anyio.Event()
    fenced, later = said(1), said(2)
    later.acknowledge = lambda *_: done.set()
    journal.write(fenced)
    journal.write(later)
    fenced.fenced = True
    async with running_journal(journal):
        await done.wait()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT pos >> 32 FROM messages").fetchall() == [(2,)]


def test_marks_of_one_actor_go_one_after_the_other() -> None:
    """G4: where an actor moves twice in a commit, both moves are made, so that one which must not
    be is noticed.
    """
    moves = [
        BufferMoved(sid, Watermarks(generation, 1, 1, 0, 0), at_seq=1, reason="dropped")
        for generation, sid in [(1, 7), (1, 8), (2, 7), (2, 8), (3, 7)]
    ]
    rows = Rows([Write([*moves, JobDone("a"), JobDone("b")], lambda _: None)])
    rows.make()
    found = [(step.sql.split()[0], (step.rows or [])[0]) for step in rows.steps()]
    moved = [
        [sid for *_, sid in msgspec.json.decode(row[0])]  # type: ignore[index]
        for kind, row in found
        if kind == "UPDATE"
    ]
    assert moved == [[7, 8], [7, 8], [7]]
    assert [row for kind, row in found if kind == "DELETE"] == [('[["a"],["b"]]',)]


def test_a_transaction_stops_at_its_first_failure(tmp_path: Path) -> None:
    """G4: what is open stays open, for whoever began it to roll it back."""
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE t (a INTEGER PRIMARY KEY)")
        steps = [Step("BEGIN"), Step("INSERT INTO t VALUES (?)", [(1,), (2,)])]
        with pytest.raises(sqlite3.IntegrityError):
            run_steps(
                database, [*steps, Step("INSERT INTO t VALUES (?)", [(2,)]), Step("COMMIT", [()])]
            )
        assert database.in_transaction
        database.execute("ROLLBACK")
        with pytest.raises(NothingChanged):
            run_steps(database, [Step("DELETE FROM t WHERE a = ?", [(9,)], must_change=True)])
        run_steps(database, [*steps, Step("COMMIT", [()])])
        assert database.execute("SELECT count(*) FROM t").fetchall() == [(2,)]


async def test_a_connection_does_a_transaction_in_its_thread(tmp_path: Path) -> None:
    """G1: what aiosqlite gives is enough for it, whichever version is there, and its errors come
    back as SQLite's.
    """
    connection = JournalConnection(tmp_path / "x.db")
    await connection
    try:
        await connection.run([Step("CREATE TABLE t (a)"), Step("INSERT INTO t VALUES (?)", [(1,)])])
        assert list(await connection.execute_fetchall("SELECT a FROM t")) == [(1,)]
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await connection.run([Step("INSERT INTO missing VALUES (?)", [(1,)])])
    finally:
        await connection.close()


def test_parameters_of_sql_have_no_numbers() -> None:
    """G2: Python 3.14 refuses ``?1`` with a sequence: no commit would get through there."""
    numbered = {
        path.name: found
        for path in Path(remora.__file__).parent.rglob("*.py")
        if (found := re.findall(r"\?\d.*", path.read_text(encoding="utf-8")))
    }
    assert numbered == {}


async def test_senders_are_answered_outside_of_each_others_contexts(tmp_path: Path) -> None:
    """What a request binds to its log lines is in no line that another's message causes; and what
    answers may ask the event loop for its time, as in a task (a callback of another thread has no
    context at all).
    """
    request: ContextVar[str] = ContextVar("request", default="nobody's")
    journal = await SqliteJournal.open(tmp_path / "journal.db", durability="none")
    found: list[str] = []
    answered = [anyio.Event() for _ in range(3)]

    def tell(*_: Any) -> None:
        anyio.current_time()
        answered[len(found)].set()
        found.append(request.get())

    async with running_journal(journal):
        await anyio.wait_all_tasks_blocked()
        for number, event in enumerate(answered, 1):
            request.set(f"of {number}")
            write = said(number)
            write.acknowledge = tell
            journal.write(write)
            await event.wait()
    assert found == ["nobody's"] * 3
