"""Power cuts and kills, enumerated: the real journal works on a recorded disk, and what a crash
could leave of it is looked at.

python -m tests.faults.crash_states [--states N] [--durability power|process|none]
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import anyio
import msgspec

from remora.config import Durability
from remora.ids import key_digest, user_key
from remora.messages import Entry, encode_message
from remora.results import Job
from remora.runtime.jobs import JobDone
from remora.runtime.log import commit_records
from remora.storage.decoding import SEQ_MASK
from remora.storage.ports import Retention, SessionKey
from remora.storage.records import (
    Appended,
    BufferMoved,
    Flushed,
    FlushSpec,
    Opened,
    StateChanged,
    StateItem,
    SummarizeSpec,
    Summary,
    Watermarks,
)
from remora.storage.sqlite.changes import read_erased_actors
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.verify import check_journal
from remora.storage.sqlite.writer import JournalWriter
from remora.testing import count_probes
from tests.faults.recorded import RecordedDisk, journal_on, states

Outcome = Literal["all", "none", "torn"]
Check = Callable[[sqlite3.Connection], Outcome]


class CrashFigures(msgspec.Struct):
    """What crashes did to what was acknowledged.

    Attributes:
        durability: the level that was promised.
        injected: crash states that were looked at.
        acknowledged: writes that had been acknowledged before, all states together.
        by_loss: of which kind; see `tests.faults.recorded.Loss`.
        lost_states: those in which something acknowledged is missing.
        lost: acknowledged writes that are missing, all states together.
        torn: writes that are there in part.
        named: states that lack something acknowledged, and in which the commit mark says so.
        false_alarms: states in which nothing at all is lost, and something is said to be.
        other: findings of another kind, and their texts.
        seconds: how long it took.
    """

    durability: str
    injected: int = 0
    acknowledged: int = 0
    by_loss: dict[str, int] = {}
    lost_states: int = 0
    lost: int = 0
    torn: int = 0
    named: int = 0
    false_alarms: int = 0
    other: dict[str, int] = {}
    seconds: float = 0.0


def _said(first: int, *texts: str) -> tuple[Entry, ...]:
    return tuple(
        encode_message({"role": "user", "content": text})[0].with_seq(first + n)
        for n, text in enumerate(texts)
    )


def _present(database: sqlite3.Connection, sql: str, *parameters: Any) -> int:
    found = database.execute(sql, parameters).fetchone()
    return int(found[0]) if found else 0


def _whole(parts: list[tuple[int, int]]) -> Outcome:
    """Of what was written together: how much of each part there is, and how much there should be."""  # noqa: E501
    if all(there == wanted for there, wanted in parts):
        return "all"
    return "none" if not any(there for there, _ in parts) else "torn"


_CROWD = 20  # senders


class Workload:
    """What the journal is given to do, and how to see whether it did it."""

    def __init__(self, disk: RecordedDisk, journal: SqliteJournal, seed: int) -> None:
        self.checks: dict[int, Check] = {}
        self._disk = disk
        self._journal = journal
        self._rng = random.Random(seed)
        self._next = dict.fromkeys((1, 2, 3), 1)
        self._folded = 0
        self._number = 0

    async def run(self, rounds: int) -> None:
        """Everything that a journal does: appends alone and in company, folds, jobs, facets,
        erasing, trimming, upkeep.
        """
        for sid, session in ((1, "one"), (2, "two"), (3, "long")):
            records = [Opened(sid, "alice", session, 0), *self._append(sid, "first")]
            await self._do(records, self._messages(sid, 1, 1))
        for number in range(rounds):
            await self._appends(number)
            await self._company(number)
            await self._fold(number)
            if number == rounds // 3:
                await self.crowd(number)
            if number % 3 == 1:
                await self._journal.checkpoint()
            if number % 4 == 2:
                await self._forget(f"user {number}", 100 + number)
            if number % 5 == 3:
                await self._trim()
            if number == rounds // 2:
                await self._journal.scrub()

    async def _do(self, records: list[Any], check: Check) -> None:
        self._number += 1
        number = self._number
        self.checks[number] = check
        await commit_records(self._journal, records)
        self._disk.note(f"ack {number}")

    def _append(self, sid: int, *texts: str, key: str | None = None) -> list[Any]:
        first = self._next[sid]
        self._next[sid] += len(texts)
        return [Appended(sid, _said(first, *texts), None if key is None else key_digest(key))]

    def _messages(self, sid: int, first: int, count: int) -> Check:
        where = "SELECT count(*) FROM messages WHERE pos BETWEEN ? AND ?"
        place = sid << 32 | first

        def check(database: sqlite3.Connection) -> Outcome:
            trimmed = _present(database, "SELECT trimmed FROM actors WHERE sid = ?", sid)
            gone = min(max(trimmed - first + 1, 0), count)
            return _whole([(_present(database, where, place, place + count - 1) + gone, count)])

        return check

    async def _appends(self, number: int) -> None:
        """Messages alone: one statement, whatever its sessions."""
        count = self._rng.choice([1, 1, 3])
        texts = [f"{number} {'x' * self._rng.choice([10, 300, 5_000])}" for _ in range(count)]
        check = self._messages(1, self._next[1], count)
        await self._do(self._append(1, *texts, key=f"k{number}"), check)
        async with anyio.create_task_group() as tasks:  # one commit for both
            for sid in (1, 2):
                check = self._messages(sid, self._next[sid], 1)
                tasks.start_soon(self._do, self._append(sid, f"together {number}"), check)

    async def crowd(self, number: int) -> None:
        """So many senders that a commit is submitted while another one runs; some of their messages
        come with other rows.
        """

        async def send(sender: int) -> None:
            for wave in range(3):
                sid = 1 + sender % 2
                first = self._next[sid]
                records = self._append(sid, f"crowd {number}.{sender}.{wave}")
                if not sender % 5:
                    name = f"crowd {number}.{sender}.{wave}"
                    records.append(StateChanged(sid, (StateItem("block", name, b"x"),)))
                await self._do(records, self._messages(sid, first, 1))

        async with anyio.create_task_group() as tasks:
            for sender in range(_CROWD):
                tasks.start_soon(send, sender)

    async def _company(self, number: int) -> None:
        """Messages and other rows in one write."""
        first = self._next[2]
        message = self._messages(2, first, 2)
        state_item = "SELECT count(*) FROM state_items WHERE name = ?"

        def check(database: sqlite3.Connection) -> Outcome:
            there = {"all": 1, "none": 0, "torn": 2}[message(database)]
            return _whole([(there, 1), (_present(database, state_item, f"f{number}"), 1)])

        records = [
            *self._append(2, "a", "b" * 2_000),
            StateChanged(2, (StateItem("block", f"f{number}", b"x" * 700),)),
        ]
        await self._do(records, check)

    async def _fold(self, number: int) -> None:
        """A fold with its jobs, and then its end with what it brought."""
        begin = self._next[3]
        texts = [f"fold {number}.{n}" for n in range(4)]
        await self._do(self._append(3, *texts), self._messages(3, begin, 4))
        first, last = self._folded + 1, self._next[3] - 1
        self._folded = last
        key = SessionKey("alice", "long")
        summarize = Job(f"summarize-{last}", "summarize", key, SummarizeSpec(3, 0, first, last))
        flush = Job(f"flush-{last}", "flush", key, FlushSpec(3, first, last))
        jobs = "SELECT count(*) FROM jobs WHERE id IN (?, ?)"
        marked = "SELECT summarizing >= ? FROM actors WHERE sid = 3"
        ended = "SELECT count(*) FROM summaries WHERE through = ? AND sid = 3"
        state_item = "SELECT count(*) FROM state_items WHERE name = ?"

        def begun(database: sqlite3.Connection) -> Outcome:
            if _present(database, ended, last):
                return "all"  # and over: its jobs are gone
            there = _present(database, jobs, summarize.id, flush.id)
            return _whole([(there, 2), (_present(database, marked, last), 1)])

        def done(database: sqlite3.Connection) -> Outcome:
            left = _present(database, jobs, summarize.id, flush.id)
            gone = 2 - left if _present(database, marked, last) else 0
            noted = _present(database, state_item, f"done {last}")
            return _whole([(_present(database, ended, last), 1), (noted, 1), (gone, 2)])

        marks = Watermarks(0, first - 1, last, last)
        await self._do([BufferMoved(3, marks, jobs=(summarize, flush))], begun)
        marks, text = Watermarks(0, last, last, last), "s" * 400
        summary = Summary(last, "", text, 9, degraded=False, model="m", first=1, input_tokens=10)
        records = [
            BufferMoved(3, marks, at_seq=last, summary=summary, ended=(summarize.id,)),
            Flushed(3, last),
            JobDone(flush.id),
            StateChanged(3, (StateItem("block", f"done {last}", b"y"),)),
        ]
        await self._do(records, done)

    async def _forget(self, user: str, sid: int) -> None:
        """Somebody comes, leaves messages that are dropped and cleared, and is forgotten."""
        rows = "SELECT count(*) FROM messages WHERE pos >> 32 = ?"
        there = "SELECT count(*) FROM actors WHERE sid = ?"
        note = "SELECT count(*) FROM erasures WHERE user_key = ?"
        digest = user_key(user)

        def came(database: sqlite3.Connection) -> Outcome:
            if _present(database, note, digest):
                return "all"
            return _whole([(_present(database, rows, sid), 3), (_present(database, there, sid), 1)])

        secrets = _said(1, "secret", "secret", "secret")
        await self._do([Opened(sid, user, "s", 0), Appended(sid, secrets, None)], came)
        for moved in (
            BufferMoved(sid, Watermarks(0, 1, 1, 0), at_seq=3, reason="dropped"),
            BufferMoved(sid, Watermarks(1, 3, 3, 3, 3), at_seq=3, reason="cleared"),
        ):
            await commit_records(self._journal, [moved])

        def gone(database: sqlite3.Connection) -> Outcome:
            left = _present(database, rows, sid) + _present(database, there, sid)
            noted = _present(database, note, digest)
            if sid in read_erased_actors(database):  # its messages go next, or at the next start
                return "torn" if _present(database, there, sid) else "none"
            if noted:
                return "all" if not left else "torn"
            return "none" if left in {0, 4} else "torn"

        self._number += 1
        number = self._number
        self.checks[number] = gone
        await self._journal.erase(user)
        self._disk.note(f"ack {number}")

    async def _trim(self) -> None:
        """The long session's oldest messages go; what was acknowledged of them is to be gone."""
        await self._journal.trim(Retention(max_messages=6), 0)
        oldest, *_ = await self._journal.read(SessionKey("alice", "long"), 1, SEQ_MASK)
        trimmed = oldest.seq - 1
        rows = "SELECT count(*) FROM messages WHERE pos BETWEEN ? AND ?"
        mark = "SELECT trimmed FROM actors WHERE sid = 3"

        def gone(database: sqlite3.Connection) -> Outcome:
            reached = _present(database, mark)
            left = _present(database, rows, (3 << 32) | 1, (3 << 32) | reached)
            return "torn" if left else "all" if reached >= trimmed else "none"

        self._number += 1
        self.checks[self._number] = gone
        self._disk.note(f"ack {self._number}")


@contextmanager
def _laid_out(files: dict[str, bytes], root: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=root) as directory:
        for name, content in files.items():
            (Path(directory) / name).write_bytes(content)
        yield Path(directory) / "journal.db"


async def crash_states(
    durability: Durability, most: int, *, root: Path | None = None, seed: int = 1, rounds: int = 12
) -> CrashFigures:
    """Let the journal work, and look at `most` of the states that crashes could have left."""
    begun = time.monotonic()
    figures = CrashFigures(durability)
    rng, disk = random.Random(seed), RecordedDisk()
    root = root or fast_place()
    with tempfile.TemporaryDirectory(dir=root) as directory:
        async with journal_on(
            disk, Path(directory) / "journal.db", durability=durability
        ) as journal:
            workload = Workload(disk, journal, seed)
            # whether it pays depends on how long this disk takes
            with mock.patch.object(JournalWriter, "alternates", True), count_probes() as counts:
                await workload.run(rounds)
                for more in range(rounds, 3 * rounds):  # a busy machine may run one by one
                    if not counts["commit_behind"]:
                        await workload.crowd(more)
            assert counts["commit_behind"], counts
        first = next(n for n, step in enumerate(disk.steps) if step[0] == "note")
        by_loss: Counter[str] = Counter()
        other: Counter[str] = Counter()
        for number, loss, files in states(disk.steps, first, rng, most=most):
            acknowledged = {
                int(text.split()[1]) for what, text, _, _ in disk.steps[:number] if what == "note"
            }
            by_loss[loss] += 1
            with _laid_out(files, Path(directory)) as path:
                complete = loss in {"kill", "all"}
                _look(path, workload.checks, acknowledged, figures, other, complete=complete)
            figures.injected += 1
            figures.acknowledged += len(acknowledged)
    figures.by_loss, figures.other = dict(by_loss), dict(other)
    figures.seconds = time.monotonic() - begun
    return figures


def _look(
    path: Path,
    checks: dict[int, Check],
    acknowledged: set[int],
    figures: CrashFigures,
    other: Counter[str],
    *,
    complete: bool,
) -> None:
    findings = check_journal(path)
    amiss = [one for one in findings if one.kind != "wal"]
    other.update(f"{one.where}: {one.detail}"[:120] for one in amiss)
    if any("SQLite" in one.detail for one in amiss):
        figures.torn += 1  # what a malformed file says of its rows is worth nothing
        return
    with closing(sqlite3.connect(path)) as database:
        outcomes = {number: check(database) for number, check in checks.items()}
    lost = [number for number in acknowledged if outcomes[number] == "none"]
    figures.torn += sum(outcome == "torn" for outcome in outcomes.values())
    figures.lost += len(lost)
    figures.lost_states += bool(lost)
    if len(findings) > len(amiss):
        figures.named += bool(lost)
        figures.false_alarms += complete


def fast_place() -> Path:
    """Where files cost little: in memory, if there is such a place."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--states", type=int, default=1_000)
    parser.add_argument("--durability", choices=["power", "process", "none"], action="append")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    levels: list[Durability] = options.durability or ["power", "process", "none"]
    for level in levels:
        figures = anyio.run(partial(crash_states, level, options.states, seed=options.seed))
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(figures)).decode() + "\n")


if __name__ == "__main__":
    main()
