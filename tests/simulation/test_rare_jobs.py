"""Rare branches of jobs and of the journal."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from remora.actors.session.messages import Append, Clear, Inspect, Load, Snapshot
from remora.errors import (
    CommitFailed,
    ModelUnavailable,
    OutcomeUnknown,
)
from remora.ids import SessionKey
from remora.messages import Receipt
from remora.runtime.jobs import RetryPolicy
from remora.storage.memory import MemoryJournal
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import FaultyJournal, VirtualClock
from tests.harness import FirstWordsSummarizer, append, kernel, said, user
from tests.simulation.rare import (
    KEY,
    OTHER,
    Unreadable,
    breathe,
    long,
    on_both_loops,
    over_sqlite,
    reaching,
    shown,
    touchy,
)
from tests.sqlite import Connections

# -- jobs ------------------------------------------------------------------------------------------


class Model:
    """A summarizer that is down while it is told to be, or never answers."""

    name = "model"

    def __init__(self, error: Exception | None = None, *, hangs: bool = False) -> None:
        self.error = error
        self.hangs = hangs
        self.calls = 0

    async def summarize(self, previous: str | None, lines: Any, *, max_tokens: int) -> str:
        self.calls += 1
        if self.hangs:
            await anyio.sleep_forever()
        if self.error is not None:
            raise self.error
        return await FirstWordsSummarizer().summarize(previous, lines, max_tokens=max_tokens)


def down() -> Model:
    return Model(ModelUnavailable("down"))


def covered(snapshot: Snapshot) -> list[str]:
    """First words of all that a context tells of."""
    summary = snapshot.summary.text.split() if snapshot.summary else []
    return [*summary, *(text.split()[0] for text in said(snapshot.entries))]


PATIENT = RetryPolicy(max_attempts=50, backoff_s=60, max_backoff_s=60, jitter=0)


@pytest.mark.anyio
@on_both_loops
async def test_a_job_that_waits_to_be_tried_again_waits_after_a_restart_too() -> None:
    """G6, G12: a crash does not make a model that is down be asked at once; when its pause is over,
    the fold ends.
    """
    journal, clock = MemoryJournal(), VirtualClock()
    async with kernel(
        journal,
        clock=clock,
        summarizer=down(),
        fallback=FirstWordsSummarizer(),
        retry=PATIENT,
        fold_above=30,
    ) as core:
        for number in range(8):
            await core.ask(KEY, append(long(number)))
        await breathe()
    model = Model()
    with reaching("job_resumed_in_backoff", "activated_amid_jobs"):
        journal = journal.restart()
        async with kernel(
            journal, clock=clock, summarizer=model, retry=PATIENT, fold_above=30
        ) as core:
            assert (await core.ask(KEY, Load(10_000))).pending
            await clock.advance(50)
            assert model.calls == 0
            assert covered(await core.ask(KEY, Load(10_000))) == [f"m{n}" for n in range(8)]
            await clock.advance(20)
            snapshot = await core.ask(KEY, Load(10_000))
            assert (model.calls > 0, snapshot.pending, snapshot.summary.degraded) == (
                True,
                0,
                False,
            )
            assert covered(snapshot) == [f"m{n}" for n in range(8)]
            assert await journal.jobs() == []


@pytest.mark.anyio
@on_both_loops
async def test_a_clear_does_not_wait_for_a_job_in_its_pause() -> None:
    """G5: the fold of what was cleared is gone at once, from the log as well, and the next fold has
    its place.
    """
    journal, clock, model = MemoryJournal(), VirtualClock(), down()
    with reaching("job_pulled_from_backoff", "session_changed_during_compaction"):
        async with kernel(
            journal,
            clock=clock,
            summarizer=model,
            fallback=FirstWordsSummarizer(),
            retry=PATIENT,
            fold_above=30,
        ) as core:
            for number in range(8):
                await core.ask(KEY, append(long(number)))
            await breathe()
            assert model.calls == 1
            await core.ask(KEY, Clear())
            with anyio.fail_after(5):
                await core.supervisor.drain(KEY)
            assert await journal.jobs() == []
            model.error = None
            for number in range(8, 16):
                await core.ask(KEY, append(long(number)))
            with anyio.fail_after(5):
                await core.supervisor.drain(KEY)
            assert covered(await core.ask(KEY, Load(10_000))) == [f"m{n}" for n in range(8, 16)]


@pytest.mark.anyio
@on_both_loops
@pytest.mark.parametrize(
    ("hangs", "probe"), [(True, "job_expedited_running"), (False, "job_pulled_from_backoff")]
)
async def test_past_the_overdraft_an_extract_stands_in_at_once(*, hangs: bool, probe: str) -> None:
    """G5, G6: whether the model hangs or rests; the buffer shrinks without a second going by, and
    nothing is left out.
    """
    model = Model(ModelUnavailable("down"), hangs=hangs)
    with reaching("overdraft_reached", probe, "summary_degraded"):
        async with kernel(
            MemoryJournal(),
            clock=VirtualClock(),
            summarizer=model,
            fallback=FirstWordsSummarizer(),
            retry=PATIENT,
            fold_above=30,
        ) as core:
            longest = 0
            for number in range(40):
                await core.ask(KEY, append(long(number)))
                await breathe(40)
                snapshot = await core.ask(KEY, Load(100_000))
                assert covered(snapshot) == [f"m{n}" for n in range(number + 1)]
                longest = max(longest, len(snapshot.entries))
            assert longest < 40
            assert snapshot.summary.degraded


class Wordless(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise KeyError("message")


@pytest.mark.anyio
@on_both_loops
async def test_an_error_without_words_costs_one_attempt() -> None:
    """G11: where even writing a failure down fails, the job is tried again later, and others have
    its lane meanwhile.
    """
    clock, retry = VirtualClock(), RetryPolicy(backoff_s=1, max_backoff_s=60, jitter=0)

    class Journal(Unreadable):
        wordless = True

        async def read(
            self, key: SessionKey, first: int, last: int, *, at: int | None = None
        ) -> Any:
            if self.wordless and key == KEY:
                raise Wordless
            return await super().read(key, first, last, at=at)

    journal = Journal()
    with reaching("attempt_ended_by_defect"):
        async with kernel(journal, clock=clock, retry=retry, fold_above=30) as core:
            for number in range(8):
                await core.ask(KEY, append(long(number)))
            for number in range(8):
                await core.ask(OTHER, append(long(number)))
            await core.supervisor.drain(OTHER)
            assert (await core.ask(OTHER, Load(10_000))).summary is not None
            assert covered(await core.ask(KEY, Load(10_000))) == [f"m{n}" for n in range(8)]
            journal.wordless = False
            await clock.advance(61)
            snapshot = await core.ask(KEY, Load(10_000))
            assert snapshot.pending == 0
            assert covered(snapshot) == [f"m{n}" for n in range(8)]


@pytest.mark.anyio
@on_both_loops
async def test_an_error_without_words_in_a_hastened_job() -> None:
    """G11: a hastened attempt runs beside its lane; what breaks it off breaks nothing else."""
    clock, retry = VirtualClock(), RetryPolicy(backoff_s=60, max_backoff_s=60, jitter=0)

    class Journal(Unreadable):
        wordless = False

        async def read(
            self, key: SessionKey, first: int, last: int, *, at: int | None = None
        ) -> Any:
            if self.wordless:
                raise Wordless
            return await super().read(key, first, last, at=at)

    journal, model = Journal(), down()
    with reaching("job_pulled_from_backoff", "attempt_ended_by_defect"):
        async with kernel(
            journal,
            clock=clock,
            summarizer=model,
            fallback=FirstWordsSummarizer(),
            retry=retry,
            fold_above=30,
        ) as core:
            for number in range(8):
                await core.ask(KEY, append(long(number)))
            await breathe()
            journal.wordless = True
            for number in range(8, 40):
                await core.ask(KEY, append(long(number)))
            await breathe(40)
            journal.wordless = False
            assert covered(await core.ask(KEY, Load(100_000))) == [f"m{n}" for n in range(40)]
            await clock.advance(200)
            snapshot = await core.ask(KEY, Load(100_000))
            assert covered(snapshot) == [f"m{n}" for n in range(40)]
            assert snapshot.summary.degraded


@pytest.mark.anyio
@on_both_loops
@pytest.mark.parametrize("alone", [False, True], ids=["in a model's stead", "on its own"])
async def test_an_extract_that_fails_is_replaced_by_what_was_known(*, alone: bool) -> None:
    """G6: the summary before stays, marked as no model's work; the messages are in the journal, and
    the session goes on.
    """
    clock, fallback = VirtualClock(), Model()
    model = fallback if alone else Model()
    async with kernel(
        MemoryJournal(),
        clock=clock,
        summarizer=model,
        fallback=fallback,
        retry=RetryPolicy(max_attempts=2),
        fold_above=30,
    ) as core:
        for number in range(8):
            await core.ask(KEY, append(long(number)))
        await core.supervisor.drain(KEY)
        before = (await core.ask(KEY, Load(10_000))).summary
        assert before is not None
        model.error = fallback.error = RuntimeError("no sentence was found")
        with reaching("extract_failed"):
            for number in range(8, 16):
                await core.ask(KEY, append(long(number)))
            await clock.advance(60)
            await core.supervisor.drain(KEY)
        snapshot = await core.ask(KEY, Load(10_000))
        assert (snapshot.summary.text, snapshot.summary.degraded, snapshot.pending) == (
            before.text,
            True,
            0,
        )
        assert said(await core.journal.read(KEY, 1, 99)) == [long(n)["content"] for n in range(16)]
        model.error = fallback.error = None
        for number in range(16, 24):
            await core.ask(KEY, append(long(number)))
        await core.supervisor.drain(KEY)
        snapshot = await core.ask(KEY, Load(10_000))
        assert snapshot.summary.text.startswith(before.text)
        assert covered(snapshot)[-8:] == [f"m{n}" for n in range(16, 24)]


@pytest.mark.anyio
@on_both_loops
async def test_a_fold_whose_messages_cannot_be_read_ends() -> None:
    """G6, G11: it says so and how many they were; the session folds on when the journal can be read
    again.
    """
    clock, journal = VirtualClock(), Unreadable()
    with reaching("compaction_without_summary"):
        async with kernel(
            journal,
            clock=clock,
            retry=RetryPolicy(max_attempts=2, backoff_s=1, jitter=0),
            fold_above=30,
        ) as core:
            journal.damaged = True
            for number in range(8):
                await core.ask(KEY, append(long(number)))
            assert covered(await core.ask(KEY, Load(10_000))) == [f"m{n}" for n in range(8)]
            await clock.advance(10)
            snapshot = await core.ask(KEY, Load(10_000))
            gone = 8 - len(snapshot.entries)
            assert "could not be read" in snapshot.summary.text
            assert (snapshot.summary.degraded, snapshot.summary.through) == (True, gone)
            journal.damaged = False
            assert said(await journal.read(KEY, 1, gone)) == [
                long(n)["content"] for n in range(gone)
            ]
            for number in range(8, 16):
                await core.ask(KEY, append(long(number)))
            await core.supervisor.drain(KEY)
            snapshot = await core.ask(KEY, Load(10_000))
            assert not snapshot.summary.degraded
            assert covered(snapshot)[-8:] == [f"m{n}" for n in range(8, 16)]


# -- the journal -----------------------------------------------------------------------------------


def entries_of(text: str, key: str) -> Append:
    return append(user(text), key=key)


@pytest.mark.anyio
async def test_not_even_the_rollback_succeeds(tmp_path: Path, connections: Connections) -> None:
    """G3, G4: the outcome is unknown and is said to be; what is acknowledged afterwards was
    committed, and stays.
    """
    denied: list[str] = []

    def authorizer(action: int, operation: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and operation in denied:
            denied.remove(operation)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    path = tmp_path / "journal.db"
    journal: Any = await SqliteJournal.open(path, durability="power")
    with reaching("rollback_failed", "commit_unknown"):
        async with kernel(journal, behavior=touchy()) as core:
            await core.ask(KEY, entries_of("one", "k1"))
            denied += ["COMMIT", "ROLLBACK"]
            # statements that were prepared are looked at anew
            await connections[0].set_authorizer(authorizer)
            with pytest.raises(OutcomeUnknown):
                await core.ask(OTHER, entries_of("hello", "k"))
            assert not denied
            two: Receipt = await core.ask(
                KEY, entries_of("two", "k2")
            )  # messages alone: one statement, without a transaction
            assert (two.seqs, two.duplicate) == ((2,), False)
            assert (await core.ask(OTHER, entries_of("hello", "k"))).seqs == (1,)
            assert await shown(core) == ["one", "two"]
    await journal.aclose()
    async with over_sqlite(path) as core:
        assert await shown(core) == ["one", "two"]
        assert await shown(core, OTHER) == ["hello"]


@pytest.mark.anyio
async def test_a_write_that_cannot_be_stored_fails_alone(tmp_path: Path) -> None:
    """G4, G11: of many sessions' writes in one commit, those of all others are acknowledged and
    stay.
    """
    path = tmp_path / "journal.db"
    names = [
        *(f"good {number}" for number in range(12)),
        "bad",
        *(f"late {number}" for number in range(12)),
    ]
    outcomes: dict[str, Any] = {}
    (entry,) = append(user("hello")).entries
    unstorable = Append((msgspec.structs.replace(entry, tokens=2**70),), None, 1)
    with reaching("batch_halved", "commit_refused"):
        async with over_sqlite(path) as core:

            async def ask(name: str) -> None:
                try:
                    outcomes[name] = await core.ask(
                        SessionKey("alice", name),
                        unstorable if name == "bad" else append(user("hello")),
                    )
                except CommitFailed as e:
                    outcomes[name] = e

            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(ask, name)
    assert [name for name in names if isinstance(outcomes[name], CommitFailed)] == ["bad"]
    async with over_sqlite(path) as core:
        for name in names:
            assert await shown(core, SessionKey("alice", name)) == (
                [] if name == "bad" else ["hello"]
            )


@pytest.mark.anyio
@on_both_loops
async def test_a_commit_that_fails_takes_what_is_behind_it() -> None:
    """G3, G4: what was written behind it is void as well; nobody is told of it, and everything can
    be sent again.
    """
    faults: list[Any] = [None, "refused"]
    journal = FaultyJournal(lambda: faults.pop(0) if faults else None)
    with reaching("write_fenced", "gate_broken"):
        async with kernel(journal, clock=VirtualClock()) as core:
            await core.ask(KEY, append(user("one")))
            failed: list[Exception] = []

            async def ask(text: str) -> None:
                try:
                    await core.ask(KEY, append(user(text), key=text))
                except CommitFailed as e:
                    failed.append(e)

            async with anyio.create_task_group() as tasks:
                for text in ("two", "three"):
                    tasks.start_soon(ask, text)
            assert len(failed) == 2
            assert await shown(core) == ["one"]
            assert (await core.ask(KEY, append(user("two"), key="two"))).seqs == (2,)
            assert (await core.ask(KEY, Inspect())).last_seq == 2
