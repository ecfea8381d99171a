"""Checks of a journal's writes of one owner; part of `remora.testing.journal_suite`."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from remora.errors import CommitFailed
from remora.ids import SessionKey, UserKey
from remora.runtime.log import commit_records
from remora.storage.ports import Journal, Retention
from remora.storage.records import BufferMoved, Flushed, Opened, SavedSession, Watermarks
from remora.storage.running import running_journal
from remora.testing.journal_runtime import OpenJournal
from remora.testing.journal_writes import CHAT, Outcomes, appended, open_actor, put, texts

_MANY = 8_500


async def nothing_is_seen_before_it_is_committed(opened: OpenJournal) -> None:
    """A queued write is neither read nor acknowledged before `run` commits it."""
    journal = await opened()
    (image,) = await journal.hydrate([CHAT])
    assert isinstance(image, SavedSession)
    outcomes = Outcomes(journal)
    outcomes.write("one", Opened(image.sid, *CHAT, 0), appended(image.sid, 1, "one"))
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert await texts(journal) == []
    (again,) = await journal.hydrate([CHAT])
    assert isinstance(again, SavedSession)
    assert not again.opened
    assert outcomes.seen == []
    async with running_journal(journal):
        await outcomes.wait_for(1)
        assert outcomes.seen == [("one", None)]
        assert await texts(journal) == ["one"]


async def what_is_acknowledged_can_be_read(opened: OpenJournal) -> None:
    """By each query that begins after the acknowledgement, without another write in between."""
    async with running_journal(await opened()) as journal:
        sid = await open_actor(journal, CHAT)
        for number in range(1, 6):
            await commit_records(journal, [appended(sid, number, f"m{number}"), put(sid, "last")])
            assert len(await texts(journal)) == number
            (image,) = await journal.hydrate([CHAT])
            assert isinstance(image, SavedSession)
            assert (image.next_seq, len(image.entries)) == (number + 1, number)


async def a_fenced_write_is_not_stored(opened: OpenJournal) -> None:
    """A write that its owner fenced before it is committed leaves nothing; others are stored."""
    async with running_journal(await opened()) as journal:
        sid = await open_actor(journal, CHAT)
        outcomes = Outcomes(journal)
        outcomes.write("first", put(sid, "first"))
        outcomes.write("fenced", put(sid, "fenced")).fenced = True
        outcomes.write("last", put(sid, "last"))
        await outcomes.wait_for(2)
        assert outcomes.stored == ["first", "last"], outcomes.seen
        assert [item.name for item in await journal.state_items(CHAT)] == ["first", "last"]
    async with running_journal(await opened()) as journal:
        assert [item.name for item in await journal.state_items(CHAT)] == ["first", "last"]


async def _trim(journal: Journal) -> tuple[int, BufferMoved]:
    """A session whose oldest messages are trimmed, and a record that goes back to before them."""
    sid = await open_actor(journal, CHAT)
    await commit_records(journal, [appended(sid, 1, *(f"m{n}" for n in range(1, 11)))])
    front = BufferMoved(sid, Watermarks(0, 8, 8, 8), at_seq=10, reason="dropped")
    await commit_records(journal, [front, Flushed(sid, 8)])
    assert await journal.trim(Retention(max_messages=1), 0) > 0
    return sid, BufferMoved(sid, Watermarks(1, 1, 1, 10), at_seq=10, reason="restated")


async def a_refused_write_leaves_nothing(opened: OpenJournal) -> None:
    """Of a write whose last record cannot be stored, the others are not stored either."""
    async with running_journal(await opened()) as journal:
        sid, impossible = await _trim(journal)
        before = await texts(journal)
        try:
            await commit_records(journal, [appended(sid, 11, "m11"), put(sid, "half"), impossible])
        except CommitFailed:
            pass
        else:
            raise AssertionError("a session went back to before what is kept")
        assert await texts(journal) == before
        assert list(await journal.state_items(CHAT)) == []
        await commit_records(journal, [appended(sid, 11, "again")])
    async with running_journal(await opened()) as journal:
        assert await texts(journal) == [*before, "again"]


async def outcomes_are_told_in_the_order_of_queueing(opened: OpenJournal) -> None:
    """The outcomes of a session come in order, though one is a refusal; what is told is stored."""
    async with running_journal(await opened()) as journal:
        sid, impossible = await _trim(journal)
        outcomes = Outcomes(journal)
        names = [f"{number:02}" for number in range(20)]
        for name in names:
            outcomes.write(name, *([impossible] if name == "09" else [put(sid, name)]))
        await outcomes.wait_for(len(names))
        assert outcomes.names == names
        assert isinstance(dict(outcomes.seen)["09"], CommitFailed)
        assert [item.name for item in await journal.state_items(CHAT)] == outcomes.stored


async def a_large_commit_is_stored_whole(opened: OpenJournal) -> None:
    """Thousands of writes that were queued at once, of several sessions, each in its order."""
    keys = [SessionKey("alice", f"s{number}") for number in range(5)]
    async with running_journal(await opened()) as journal:
        sids = [await open_actor(journal, key) for key in keys]
        outcomes = Outcomes(journal)
        for number in range(_MANY):
            seq, place = divmod(number, len(keys))
            outcomes.write(str(number), appended(sids[place], seq + 1, f"m{number}"))
        await outcomes.wait_for(_MANY)
        assert all(error is None for _, error in outcomes.seen)
        for place in range(len(keys)):
            told = [int(name) for name in outcomes.names if int(name) % len(keys) == place]
            assert told == sorted(told)
    async with running_journal(await opened()) as journal:
        for place, key in enumerate(keys):
            assert await texts(journal, key) == [
                f"m{number}" for number in range(place, _MANY, len(keys))
            ]


async def reads_show_whole_writes(opened: OpenJournal) -> None:
    """A read during commits has all messages of a write or none, and all acknowledged ones."""
    async with running_journal(await opened()) as journal:
        sid = await open_actor(journal, CHAT)
        outcomes = Outcomes(journal)

        async def append() -> None:
            for number in range(40):
                first = number * 3 + 1
                said = [f"m{seq}" for seq in range(first, first + 3)]
                outcomes.write(str(number), appended(sid, first, *said))
                await outcomes.wait_for(number + 1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            while len(outcomes.seen) < 40:
                acknowledged = len(outcomes.seen)
                seen = await texts(journal)
                assert len(seen) % 3 == 0, f"a part of a write can be read: {seen[-3:]}"
                assert len(seen) >= acknowledged * 3, "an acknowledged message cannot be read"
                assert seen == [f"m{seq}" for seq in range(1, len(seen) + 1)]
                await anyio.lowlevel.checkpoint()


async def closing_commits_what_is_queued(opened: OpenJournal) -> None:
    """`aclose` commits queued writes, and acknowledges them, though `run` has ended."""
    async with running_journal(await opened()) as journal:
        sid = await open_actor(journal, CHAT)
    journal = await opened()
    await journal.hydrate([CHAT])
    outcomes = Outcomes(journal)
    outcomes.write("late", appended(sid, 1, "late"))
    await journal.aclose()
    assert outcomes.seen == [("late", None)]
    async with running_journal(await opened()) as journal:
        assert await texts(journal) == ["late"]


async def erasing_comes_after_what_was_queued(opened: OpenJournal) -> None:
    """Writes that were queued before `erase` are acknowledged, and then deleted with the others."""
    async with running_journal(await opened()) as journal:
        sid = await open_actor(journal, CHAT)
        outcomes = Outcomes(journal)
        outcomes.write("before", appended(sid, 1, "before"), put(sid, "before"))
        erased = await journal.erase(*CHAT)
        assert outcomes.seen == [("before", None)]
        assert erased.removed["messages"] == 1
        assert await texts(journal) == []
        await journal.finish_erasure(erased.erasure.number)
    async with running_journal(await opened()) as journal:
        assert await texts(journal) == []
        assert list(await journal.state_items(CHAT)) == []


async def numbers_of_actors_are_never_used_twice(opened: OpenJournal) -> None:
    """Neither among actors that are there, nor after the one with the highest was erased."""
    used = []
    for number in range(3):
        async with running_journal(await opened()) as journal:
            keys: list[SessionKey | UserKey] = [
                SessionKey("alice", f"s{number}"),
                UserKey(f"user{number}"),
            ]
            used += [await open_actor(journal, key) for key in keys]
            erased = await journal.erase(f"user{number}")
            await journal.finish_erasure(erased.erasure.number)
    assert len(set(used)) == len(used), used
