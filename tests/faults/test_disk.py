"""A disk that is full, broken, read-only or slow: what is refused is provably not there, and
service resumes as soon as the disk works.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks.disk import possible, under
from remora import BufferPolicy, Config, Line, Runtime, Session
from remora.errors import CommitFailed, OutcomeUnknown, SessionQuarantined
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.verify import check_journal
from tests.configs import PLAIN, PLAIN_TREE
from tests.faults.crash_states import fast_place
from tests.faults.recorded import RecordedDisk, disk_full, exchanged, sync_failed
from tests.harness import user
from tests.sqlite import Connections, change_rows, row_in_the_way

pytestmark = pytest.mark.anyio


async def test_disk_full(tmp_path: Path, connections: Connections) -> None:
    """G3, G4, G11: nothing of a refused append is kept, everything acknowledged is, and service
    resumes by itself.
    """
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        assert isinstance(runtime.internals.journal, SqliteJournal)
        chat, other = runtime.session("alice", "one"), runtime.session("bob", "one")
        await chat.append(user("before"))
        writer, _ = connections
        ((pages,),) = await writer.execute_fetchall("PRAGMA page_count")
        # what SQLite itself calls a full disk
        await writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        acknowledged = ["before"]
        for number in range(30):
            text = f"{number} " + "x" * 2_000
            try:
                await chat.append(user(text), key=f"k{number}")
            except CommitFailed as e:
                assert "full" in str(e)  # noqa: PT017
                break
            acknowledged.append(text)
        else:
            raise AssertionError("the disk never filled up")
        with pytest.raises(CommitFailed):
            await other.append(user("y" * 9_000))
        assert [m.content for m in await chat.history()] == acknowledged
        await writer.execute("PRAGMA max_page_count = 1000000")
        receipt = await chat.append(user("after"), key="again")
        assert receipt.seqs == (len(acknowledged) + 1,)
        assert (await other.append(user("after"))).seqs == (1,)
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        history = await runtime.session("alice", "one").history()
        assert [m.content for m in history] == [*acknowledged, "after"]


async def test_a_full_disk_does_not_fill_the_log(
    tmp_path: Path, connections: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    """Each append fails, and reads go on; the log has the reason once, and no traceback."""
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chats = [runtime.session(f"user {number}", "one") for number in range(4)]
        for chat in chats:
            await chat.append(user("before"))
        writer, _ = connections
        ((pages,),) = await writer.execute_fetchall("PRAGMA page_count")
        await writer.execute(f"PRAGMA max_page_count = {pages}")
        failed = 0
        for number in range(100):
            try:
                await chats[number % 4].append(user("x" * 40_000))
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
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        good, bad = runtime.session("alice", "good"), runtime.session("alice", "bad")
        await bad.append(user("fine"))
        view = await bad.inspect()
        # a row in the way of the session's next message: an integrity error that is nobody else's
        await change_rows(tmp_path / "journal.db", row_in_the_way(view.sid, 2))
        outcomes: dict[str, Any] = {}

        async def send(name: str, chat: Any) -> None:
            try:
                outcomes[name] = await chat.append(user(name))
            except CommitFailed as e:
                outcomes[name] = e

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send, "bad", bad)
            tasks.start_soon(send, "good", good)
        assert isinstance(outcomes["bad"], CommitFailed)
        assert outcomes["good"].seqs == (1,)


class _Joined:
    name = "joined"

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        return " ".join([*([previous] if previous else []), *(line.text for line in lines)])


class _Fault:
    """Fails four steps of one kind in turn, from step `at` on, counted from 1."""

    def __init__(self, kind: str, at: int) -> None:
        self.seen, self._kind, self._at = 0, kind, at

    def __call__(self, what: str, name: str, number: int) -> Exception | None:
        if name.endswith(".mark") or what != self._kind:
            return None
        self.seen += 1
        if not self._at <= self.seen < self._at + 4:
            return None
        return disk_full() if self._kind == "write" else sync_failed()


async def _append_until_stored(chat: Session, text: str, key: str) -> Counter[type]:
    """Send again under the same key what fails, as an application does; the errors."""
    errors = Counter[type]()
    while True:
        try:
            await chat.append(user(text), key=key)
        except (CommitFailed, OutcomeUnknown) as e:
            errors[type(e)] += 1
        except SessionQuarantined as e:
            await anyio.sleep(e.retry_after_s)
        else:
            return errors
        await anyio.sleep(0.005)


@pytest.fixture
def fast_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_place()) as directory:
        yield Path(directory)


@pytest.mark.blocking
@pytest.mark.parametrize(("kind", "every"), [("write", 11), ("sync", 1)])
async def test_a_disk_that_fails_at_every_step(kind: str, every: int, fast_path: Path) -> None:
    """G3, G4, G7, G11: a fixed schedule, in each run of which another write meets ENOSPC, or sync
    EIO. Nothing acknowledged is lost, nothing doubled, and service resumes.
    """
    config = Config.from_dict(
        {**PLAIN_TREE, "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02}}
    )
    policy = BufferPolicy.window(4, fold="summary")
    texts = [f"message {n} {'x' * (n * 400)}" for n in range(10)]
    every = 1 if os.environ.get("REMORA_HYPOTHESIS") == "soak" else every
    errors, runs = Counter[type](), 0
    for at in itertools.count(1, every):
        disk, fault = RecordedDisk(), _Fault(kind, at)
        disk.recording = False
        path = fast_path / f"{at}" / "journal.db"
        path.parent.mkdir()

        async def opened(path: Path = path) -> SqliteJournal:
            return await SqliteJournal.open(path, durability="power")

        options: dict[str, Any] = {"config": config, "journal": opened, "policy": policy}
        with exchanged(disk, path):
            async with Runtime.in_memory(**options, summarizer=_Joined()) as runtime:
                chats = [runtime.session(name, "chat") for name in ("alice", "bob")]
                for chat in chats:
                    await chat.append(user("before"))
                disk.fault = fault
                for chat in chats:
                    for number, text in enumerate(texts):
                        errors += await _append_until_stored(chat, text, f"k{number}")
                for chat in chats:
                    await chat.settle()
                disk.fault = None
        assert check_journal(path) == [], at
        async with Runtime.in_memory(**options, summarizer=_Joined()) as runtime:
            for name in ("alice", "bob"):
                history = await runtime.session(name, "chat").history()
                assert [one.content for one in history] == ["before", *texts], at
        if fault.seen < at:
            break
        runs += 1
    assert runs >= 10
    assert errors[CommitFailed if kind == "write" else OutcomeUnknown]


# -- faults under the C library, of a process with a whole runtime ---------------------------------

needs_compiler = pytest.mark.skipif(
    bool(possible()), reason=f"faults under the C library: {possible()}"
)


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "most"),
    [
        ("full-at-each-write", 12),
        ("broken-write", 8),
        ("broken-sync", 8),
        ("full-for-a-while", 1),
        ("read-only", 1),
    ],
)
def test_a_disk_that_fails(fault: str, most: int) -> None:
    """G3, G4, G11: nothing acknowledged is lost or doubled, a retried key has one effect, and
    service resumes by itself.
    """
    report = under(fault, most=most, timeout_s=3_600)
    assert report.injected >= most
    assert report.verdict.wrong == {}
    assert report.verdict.acknowledged > 0
    assert report.refused + report.uncertain > 0
    assert report.resumed_s
    if fault == "full-at-each-write":
        assert report.uncertain == 0, "a full disk is a provable refusal"


@needs_compiler
def test_a_slow_disk() -> None:
    """G3, G10: with syncs of 200 ms nobody runs into a deadline; commits grow instead, until all
    who wait share one.
    """
    report = under("slow", most=3, timeout_s=3_600)
    assert report.verdict.wrong == {}
    assert report.refused + report.uncertain == 0
    assert report.details["appends"] == 600
    assert report.details["appends a commit"] > 20
