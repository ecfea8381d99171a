"""Checks of a journal whose connection breaks, or its process; and of what `scrub` must leave.

A part of `remora.testing.journal_checks`: the checks that need more than opening the journal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
from anyio.streams.text import TextReceiveStream

from remora.errors import CommitFailed, OutcomeUnknown, OwnershipLost, StorageError
from remora.ids import key_digest
from remora.runtime.log import commit_records
from remora.storage.ports import Journal
from remora.storage.running import running_journal
from remora.testing.journal_access import CommitFate, JournalAccess
from remora.testing.journal_runtime import open_runtime, user_message
from remora.testing.journal_writes import CHAT, appended, open_actor, outcome_of, put, texts

_TRIES = 50
_SECONDS = 20
_STALLED_S = 3.0
_MARKER = "a secret of Zebulon's"


async def _break(access: JournalAccess, journal: Journal, fate: CommitFate) -> Exception | None:
    """Commit message one, and break the connection under message two; returns what it was told."""
    sid = await open_actor(journal, CHAT)
    await commit_records(journal, [appended(sid, 1, "one")])
    access.break_next_commit(journal, fate)
    with anyio.fail_after(_SECONDS):
        return await outcome_of(journal, appended(sid, 2, "two", key=key_digest("k")))


@asynccontextmanager
async def _going_on(access: JournalAccess, journal: Journal) -> AsyncIterator[Journal]:
    """The journal, when it has dealt with what broke; a new owner's, if it ended by that."""
    for _ in range(_TRIES):
        with anyio.fail_after(_SECONDS):
            error = await outcome_of(journal)
        if error is None:
            yield journal
            return
        if isinstance(error, OwnershipLost):
            async with running_journal(await access()) as owner:
                yield owner
            return
        await anyio.sleep(0.02)
    raise AssertionError(f"a write without records is never acknowledged: {error}")


async def a_stored_commit_is_not_called_failed(access: JournalAccess) -> None:
    """`CommitFailed` says that nothing is stored: the caller would send it again, under no key."""
    async with running_journal(await access()) as journal:
        error = await _break(access, journal, "stored")
        assert error is None or isinstance(error, OutcomeUnknown), f"told {error!r}"
        async with _going_on(access, journal) as after:
            assert await texts(after) == ["one", "two"]


async def a_commit_that_is_not_stored_is_not_acknowledged(access: JournalAccess) -> None:
    """Nor is it stored later: the owner was told that it failed, or that nobody knows."""
    async with running_journal(await access()) as journal:
        error = await _break(access, journal, "not_stored")
        assert isinstance(error, CommitFailed | OutcomeUnknown), f"told {error!r}"
        async with _going_on(access, journal) as after:
            assert await texts(after) in (["one"], ["one", "two"])
            if isinstance(error, CommitFailed):
                assert await texts(after) == ["one"]
    async with running_journal(await access()) as journal:
        said = await texts(journal)
        sid = await open_actor(journal, CHAT)
        await commit_records(journal, [appended(sid, len(said) + 1, "three")])
        assert await texts(journal) == [*said, "three"]


async def writes_go_on_after_a_broken_connection(access: JournalAccess) -> None:
    """A journal connects again, or says that it is lost; each break is got over."""
    async with running_journal(await access()) as journal:
        sid = await open_actor(journal, CHAT)
        fates: tuple[CommitFate, ...] = ("stored", "not_stored") * 2
        for number, fate in enumerate(fates):
            access.break_next_commit(journal, fate)
            with anyio.fail_after(_SECONDS):
                await outcome_of(journal, put(sid, f"broken {number}"))
            for _ in range(_TRIES):
                with anyio.fail_after(_SECONDS):
                    error = await outcome_of(journal, put(sid, f"after {number}"))
                if error is None:
                    break
                assert not isinstance(error, OwnershipLost), "nobody has taken it over"
                await anyio.sleep(0.02)
            else:
                raise AssertionError(f"no write succeeds after a connection broke: {error}")
    async with running_journal(await access()) as journal:
        names = [item.name for item in await journal.state_items(CHAT)]
        assert [name for name in names if name.startswith("after")] == [
            f"after {number}" for number in range(4)
        ]
        assert {"broken 0", "broken 2"} <= set(names)


async def a_retry_after_a_broken_connection_has_one_effect(access: JournalAccess) -> None:
    """Under a key, through a runtime, whatever became of the first try."""
    fates: tuple[CommitFate, ...] = ("stored", "not_stored")
    async with open_runtime(access) as runtime:
        chat = runtime.session(*CHAT)
        await chat.append(user_message("begin"))
        for fate in fates:
            access.break_next_commit(runtime.internals.journal, fate)
            for _ in range(_TRIES):
                try:
                    await chat.append(user_message(fate), key=fate)
                except (OutcomeUnknown, CommitFailed):
                    await anyio.sleep(0.02)
                else:
                    break
            else:
                raise AssertionError("no retry succeeds after a connection broke")
        before = [one.content for one in await chat.history()]
        assert before == ["begin", *fates], before
    async with open_runtime(access) as runtime:
        assert [one.content for one in await runtime.session(*CHAT).history()] == before


async def a_late_commit_changes_nothing(access: JournalAccess) -> None:
    """A commit that the database still has of a broken connection is not stored later.

    The journal may wait for it, and acknowledge it then.
    """
    told: list[Exception | None] = []
    heard = anyio.Event()
    async with running_journal(await access()) as journal:

        async def commit() -> None:
            told.append(await _break(access, journal, "late"))
            heard.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit)
            with anyio.move_on_after(_STALLED_S):
                await heard.wait()
            if not told:  # it waits for the commit's end
                await access.release_late_commit()
        async with _going_on(access, journal) as after:
            seen = await texts(after)
            if told[0] is None:
                assert seen == ["one", "two"]
            elif isinstance(told[0], CommitFailed):
                assert seen == ["one"]
            await access.release_late_commit()
            assert await texts(after) == seen, "a commit was stored after its outcome was read"
            sid = await open_actor(after, CHAT)
            await commit_records(after, [appended(sid, len(seen) + 1, "three")])
            assert await texts(after) == [*seen, "three"]


# -- processes -------------------------------------------------------------------------------------


class _OwnerProcess:
    """Another process that owns the journal and appends to a session without end."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self.process = process
        self.acknowledged = 0
        self.last_words = ""
        self._out = TextReceiveStream(process.stdout)
        self._rest = ""

    async def read_until(self, count: int) -> None:
        """Read what it prints until it has `count` messages acknowledged, or ended."""
        while self.acknowledged < count:
            try:
                text = await self._out.receive()
            except anyio.EndOfStream:
                return
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                if line.isdecimal():
                    self.acknowledged = int(line)
                else:
                    self.last_words = line

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def _owner_process(access: JournalAccess) -> AsyncIterator[_OwnerProcess]:
    target, text = access.process_target()
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "remora.testing.journal_process", target, text]
    process = await anyio.open_process(
        command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths}
    )
    try:
        yield _OwnerProcess(process)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def a_killed_owner_loses_nothing(access: JournalAccess) -> None:
    """All that a process acknowledged before SIGKILL is there, in order, and nothing twice."""
    async with _owner_process(access) as owner:
        await owner.read_until(20)
        owner.process.kill()
        await owner.read_until(1 << 30)
        assert owner.acknowledged >= 20, f"the process ended: {owner.last_words}"
        async with running_journal(await access()) as journal:
            said = await texts(journal)
            assert len(said) >= owner.acknowledged, "an acknowledged message is gone"
            assert said == [f"m{seq}" for seq in range(1, len(said) + 1)]


async def a_stopped_owner_stores_nothing_when_it_goes_on(access: JournalAccess) -> None:
    """Stopped at any moment, taken over within seconds, and continued (SIGSTOP, SIGCONT).

    A claim may be refused with `StorageError` while the former owner stands in the middle of a
    commit; it must not wait for it without end.
    """
    async with _owner_process(access) as former:
        for _ in range(_TRIES):
            await former.read_until(former.acknowledged + 10)
            assert former.acknowledged >= 10, f"the process ended: {former.last_words}"
            former.send(signal.Signals["SIGSTOP"])
            try:
                with anyio.fail_after(_SECONDS):
                    journal = await access()
            except StorageError:
                former.send(signal.Signals["SIGCONT"])
                continue
            except TimeoutError:
                raise AssertionError("a claim waits for an owner that stands still") from None
            break
        else:
            raise AssertionError("the journal of a stopped owner is never taken over")
        async with running_journal(journal) as owner:
            first = await texts(owner)
            sid = await open_actor(owner, CHAT)
            await commit_records(owner, [appended(sid, len(first) + 1, "new")])
            former.send(signal.Signals["SIGCONT"])
            await former.read_until(1 << 30)
            assert former.acknowledged <= len(first), "a stale message was acknowledged"
            assert former.last_words == OwnershipLost.__name__, former.last_words
            assert await texts(owner) == [*first, "new"], "a stale message was stored"


# -- bytes -----------------------------------------------------------------------------------------


async def no_byte_of_what_is_forgotten_is_left(access: JournalAccess) -> None:
    """After `erase` and `scrub`; also of what was changed before, and is no row any more."""
    marker = _MARKER.encode()
    async with running_journal(await access()) as journal:
        sid = await open_actor(journal, CHAT)
        for number in range(20):
            said = appended(sid, number + 1, f"{_MARKER} {number}")
            await commit_records(journal, [said, put(sid, "b", marker + bytes([number]))])
        assert marker in await access.stored_bytes(), "stored_bytes does not show what is stored"
        erased = await journal.erase("alice")
        await journal.scrub()
        await journal.finish_erasure(erased.erasure.number)
        assert marker not in await access.stored_bytes(), "bytes of a forgotten user are left"
    assert marker not in await access.stored_bytes(), "bytes of a forgotten user are left"
