"""Checks of a journal that is taken over, whose connection breaks, or whose process is killed.

Some of them need a `JournalAccess`: see `remora.testing.journal_checks`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
from anyio.streams.text import TextReceiveStream

from remora.errors import CommitFailed, OutcomeUnknown, OwnershipLost, RemoraError, StorageError
from remora.ids import SessionKey, key_digest
from remora.runtime.jobs import Job
from remora.runtime.log import commit_records
from remora.storage.journal_port import running_journal
from remora.storage.ports import Journal, Retention
from remora.storage.records import (
    BufferMoved,
    Flushed,
    JobsStarted,
    Opened,
    Pruned,
    RecordSpec,
    Watermarks,
)
from remora.testing.journal_fixtures import (
    CHAT,
    CommitFate,
    JournalAccess,
    OpenJournal,
    Outcomes,
    appended,
    open_actor,
    open_runtime,
    outcome_of,
    put,
    texts,
    user_message,
)

_SECONDS = 20


async def the_newest_owner_stores(opened: OpenJournal) -> None:
    """It has all that was acknowledged before, though the former owner never closed."""
    async with running_journal(await opened()) as former:
        sid = await open_actor(former, CHAT)
        await commit_records(former, [appended(sid, 1, "one")])
        async with running_journal(await opened()) as owner:
            assert await texts(owner) == ["one"]
            assert await open_actor(owner, CHAT) == sid
            assert isinstance(await outcome_of(former, appended(sid, 2, "stale")), OwnershipLost)
            assert await outcome_of(owner, appended(sid, 2, "two")) is None
            assert isinstance(await outcome_of(former, appended(sid, 3, "stale")), OwnershipLost)
            assert await texts(owner) == ["one", "two"]
    async with running_journal(await opened()) as owner:
        assert await texts(owner) == ["one", "two"]


async def a_former_owner_stores_no_record(opened: OpenJournal) -> None:
    """Of no kind: the first write after the claim is refused, whatever it is."""
    async with running_journal(await opened()) as journal:
        sid = await open_actor(journal, CHAT)
        await commit_records(journal, [appended(sid, 1, *"abcd")])
    job = Job("job", "elsewhere", CHAT, RecordSpec(sid, ("m",)))
    stale: dict[str, list[Any]] = {
        "a message": [appended(sid, 5, "stale")],
        "a state item": [put(sid, "stale")],
        "a message and a state item": [appended(sid, 5, "stale"), put(sid, "stale")],
        "an actor": [Opened(sid + 1000, "stale", "s", 0)],
        "a move of the buffer": [
            BufferMoved(sid, Watermarks(0, 2, 2, 0), at_seq=4, reason="dropped")
        ],
        "a job": [JobsStarted(sid, (job,))],
        "what is indexed": [Flushed(sid, 3)],
        "what is pruned": [Pruned(CHAT, (1,))],
    }
    async with running_journal(await opened()) as journal:
        before = await _look(journal)
    for kind, records in stale.items():
        async with running_journal(await opened()) as former:
            await former.hydrate([CHAT])
            async with running_journal(await opened()) as owner:
                error = await outcome_of(former, *records)
                assert isinstance(error, OwnershipLost), f"{kind}: {error!r}"
                assert await _look(owner) == before, f"{kind} of a former owner was stored"


async def _look(journal: Journal) -> object:
    (image,) = await journal.hydrate([CHAT])
    return (
        image,
        await texts(journal),
        [one.name for one in await journal.state_items(CHAT)],
        list(await journal.jobs()),
        list(await journal.indexed_through()),
        list(await journal.pruned_seqs(CHAT)),
        await journal.counts(),
    )


async def a_former_owner_changes_nothing_else(opened: OpenJournal) -> None:
    """It erases and trims nothing, ends no erasure, and sets no setting."""
    async with running_journal(await opened()) as journal:
        sid = await open_actor(journal, CHAT)
        await commit_records(journal, [appended(sid, 1, *(f"m{n}" for n in range(1, 11)))])
        front = BufferMoved(sid, Watermarks(0, 8, 8, 8), at_seq=10, reason="dropped")
        await commit_records(journal, [front, Flushed(sid, 8)])
        await journal.init_setting("colour", "blue")
        note = (await journal.erase("carol")).erasure
        before = await texts(journal)
    attempts: dict[str, Callable[[Journal], Awaitable[object]]] = {
        "set a setting": lambda journal: journal.init_setting("shape", "round"),
        "changed a setting": lambda journal: journal.change_settings({"colour": "red"}),
        "erased a user": lambda journal: journal.erase("alice"),
        "erased a session": lambda journal: journal.erase(*CHAT),
        "ended an erasure": lambda journal: journal.finish_erasure(note.number),
        "trimmed": lambda journal: journal.trim(Retention(max_messages=1), 0),
    }
    for what, attempt in attempts.items():
        async with running_journal(await opened()) as former:
            await former.hydrate([CHAT])
            async with running_journal(await opened()) as owner:
                try:
                    await attempt(former)
                except OwnershipLost:
                    pass
                else:
                    raise AssertionError(f"a former owner {what}")
                assert await texts(owner) == before, f"a former owner {what}"
                assert await owner.setting("colour") == "blue", f"a former owner {what}"
                assert await owner.setting("shape") is None, f"a former owner {what}"
                assert list(await owner.erasures()) == [note], f"a former owner {what}"


async def an_owner_that_stood_still_stores_nothing(opened: OpenJournal) -> None:
    """Writes that it had queued before the claim are refused when its process goes on."""
    async with running_journal(await opened()) as journal:
        sid = await open_actor(journal, CHAT)
    former = await opened()
    await former.hydrate([CHAT])
    outcomes = Outcomes(former)
    outcomes.write("message", appended(sid, 1, "stale"))
    outcomes.write("state", put(sid, "stale"))
    async with running_journal(await opened()) as owner:
        await commit_records(owner, [appended(sid, 1, "new")])
        async with running_journal(former):
            await outcomes.wait_for(2)
            assert [type(error) for _, error in outcomes.seen] == [OwnershipLost] * 2
            await _check_lost(former)
        assert await texts(owner) == ["new"]
        assert list(await owner.state_items(CHAT)) == []


async def a_commit_under_a_claim_is_stored_before_it_or_never(opened: OpenJournal) -> None:
    """The new owner's first read does not change, and holds all that was acknowledged."""
    for delay in range(6):  # the claim comes at another step of the commit
        await _claim_during_commits(opened, SessionKey("alice", f"s{delay}"), delay)


async def _claim_during_commits(opened: OpenJournal, key: SessionKey, delay: int) -> None:
    async with running_journal(await opened()) as former:
        sid = await open_actor(former, key)
        outcomes = Outcomes(former)

        async def append() -> None:
            while not any(error for _, error in outcomes.seen):
                place = len(outcomes.seen)
                for seq in range(place + 1, place + 4):
                    outcomes.write(f"m{seq}", appended(sid, seq, f"m{seq}"))
                await outcomes.wait_for(place + 3)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            await outcomes.wait_for(9)
            for _ in range(delay):
                await anyio.lowlevel.checkpoint()
            owner = await opened()
            first = await texts(owner, key)
        async with running_journal(owner):
            assert set(outcomes.stored) <= set(first), "an acknowledged message is gone"
            assert all(isinstance(error, OwnershipLost) for _, error in outcomes.seen if error)
            assert await texts(owner, key) == first, "a message was stored after the claim"
            assert first == [f"m{seq}" for seq in range(1, len(first) + 1)]


async def _check_lost(former: Journal) -> None:
    assert former.statistics().lost, "statistics().lost does not say that there is a newer owner"
    with anyio.move_on_after(_SECONDS) as scope:
        await former.wait_until_lost()
    assert not scope.cancelled_caught, "wait_until_lost does not return"


async def a_former_owner_notices_without_writing(opened: OpenJournal) -> None:
    """At the next `checkpoint`: `wait_until_lost` returns, and `statistics().lost` says why."""
    async with running_journal(await opened()) as former:
        assert former.statistics().lost == ""
        async with running_journal(await opened()) as owner:
            await former.checkpoint()
            await _check_lost(former)
            assert owner.statistics().lost == ""


async def a_former_runtime_ends(opened: OpenJournal) -> None:
    """It answers nothing from memory when it has noticed, and the new one goes on."""
    async with open_runtime(opened) as former:
        chat = former.session(*CHAT)
        await chat.append(user_message("one"))
        async with open_runtime(opened) as owner:
            assert (await owner.session(*CHAT).append(user_message("two"))).seqs == (2,)
            refused = 0
            for call in (lambda: chat.append(user_message("stale")), chat.load, chat.history):
                try:
                    await call()
                except OwnershipLost:
                    refused += 1
                except RemoraError as e:
                    raise AssertionError(f"a former runtime does not say so: {e!r}") from e
            assert refused == 3, "a former runtime still answers"
            said = [one.content for one in await owner.session(*CHAT).history()]
            assert said == ["one", "two"]


async def epochs_grow(opened: OpenJournal) -> None:
    """Each owner has a higher epoch than all before, closed or not; the instance stays."""
    epochs, instances = [], set()
    async with AsyncExitStack() as stack:
        for number in range(4):
            journal = await opened()
            running = running_journal(journal)
            if number % 2:
                await stack.enter_async_context(running)
            else:
                async with running:
                    pass
            epochs.append(journal.epoch)
            instances.add(journal.instance)
    assert epochs == sorted(set(epochs)), epochs
    assert epochs[0] > 0
    assert len(instances) == 1, "ids of messages would not be unique"


async def commit_numbers_go_on(opened: OpenJournal) -> None:
    """Each acknowledged commit has a higher number, also of a later owner."""
    numbers = [0]
    async with AsyncExitStack() as stack:
        for place in range(3):
            journal = await stack.enter_async_context(running_journal(await opened()))
            assert journal.commit_number >= numbers[-1], "a later owner begins before the last"
            sid = await open_actor(journal, SessionKey("alice", f"s{place}"))
            for name in ("a", "b"):
                before = journal.commit_number
                await commit_records(journal, [put(sid, name)])
                numbers.append(journal.commit_number)
                assert numbers[-1] > before, "a commit was not counted"
    assert numbers == sorted(set(numbers)), numbers


_TRIES = 50
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
