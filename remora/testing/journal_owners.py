"""Checks of a journal that is taken over; part of `remora.testing.journal_suite`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.lowlevel

from remora.errors import OwnershipLost, RemoraError
from remora.ids import SessionKey
from remora.runtime.jobs import Job
from remora.runtime.log import commit_records
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
from remora.storage.running import running_journal
from remora.testing.journal_runtime import OpenJournal, open_runtime, user_message
from remora.testing.journal_writes import (
    CHAT,
    Outcomes,
    appended,
    open_actor,
    outcome_of,
    put,
    texts,
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
