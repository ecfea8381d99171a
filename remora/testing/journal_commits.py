"""Checks of the writes of one owner, and of every kind of record; part of `journal_suite`.

The journal in memory stores the same records, with values that a database may change, and every
query of the port must answer the same as there, before the journal is opened again and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from remora.errors import CommitFailed
from remora.ids import SessionKey, UserKey, key_digest, memory_id
from remora.messages import Entry
from remora.runtime.jobs import DeadLetterRetried, Job, JobDeadLettered, JobDone, JobRetried
from remora.runtime.log import commit_records
from remora.storage.journal_port import running_journal
from remora.storage.listing import ListingPage
from remora.storage.lookups import IdLookup, KeyLookup, MemoryLookup, PastLookup
from remora.storage.memory import MemoryJournal
from remora.storage.ports import Journal, Retention
from remora.storage.records import (
    Appended,
    BlocksSpec,
    BufferMoved,
    Flushed,
    FlushSpec,
    JobAdvanced,
    JobsStarted,
    MemoriesRemoved,
    MemoryChanged,
    MemoryItem,
    MessageRange,
    Opened,
    Pruned,
    RecordSpec,
    Remembered,
    SavedSession,
    StateChanged,
    StateItem,
    StoredMessage,
    Summary,
    Watermarks,
)
from remora.testing.journal_fixtures import (
    CHAT,
    EVERYTHING,
    OpenJournal,
    Outcomes,
    appended,
    make_entry,
    open_actor,
    outcome_of,
    put,
    texts,
)

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


_ALICE = UserKey("alice")
_OTHER = SessionKey("alice", "an \u2028other's \U0001f701")
_TEXTS = (
    "",
    " ",
    "nul \x00 in the middle",
    "\x00",
    'it\'s "quoted" \\ back\\slashed',
    "line\nline\r\n\ttab",
    "\u2028\u2029\ufeff\ufffe",
    "\U0001f701 a\u0308 \u7528\u6237 \u05d0",
    '{"json": [1, null]} $1 %s :name ? \'); --',
    "long " * 20_000,
)
_NUMBERS = (0.0, 1.0, 0.1, 1 / 3, 0.7, 0.1 + 2**-50, 1 - 2**-53)
_TIMES = (0, 1, 1_700_000_000_123_457, 253_402_300_799_999_999, -62_135_596_800_000_000)


async def _answers(journal: Journal, number: int) -> dict[str, Any]:
    """Everything that the port tells of the two sessions and their user."""
    found: dict[str, Any] = {}
    for key in (CHAT, _OTHER, SessionKey("nobody", "s")):
        found[f"read {key}"] = list(await journal.read(key, 1, EVERYTHING))
        found[f"summary_figures {key}"] = await journal.summary_figures(key)
        found[f"pruned_seqs {key}"] = list(await journal.pruned_seqs(key))
        found[f"state_items {key}"] = list(await journal.state_items(key))
        found[f"indexed {key}"] = await journal.session_indexed_through(key)
        for at in range(number + 1):
            found[f"read {key} at {at}"] = list(await journal.read(key, 1, at, at=at))
            found[f"buffer_start {key} at {at}"] = await journal.buffer_start(key, at)
            removed = await journal.any_removed(key, 1, at, since=at)
            assert removed == (
                len(await journal.read(key, 1, at)) < len(await journal.read(key, 1, at, at=at))
            )
            found[f"past {key} at {at}"] = await journal.fetch(key, PastLookup(at))
        found[f"keys {key}"] = [
            await journal.fetch(key, KeyLookup(key_digest(name))) for name in ("k", "none")
        ]
        for ids in (("id \u2028", "none"), ("i1", "i11")):
            found[f"ids {key} {ids[0]}"] = await journal.fetch(key, IdLookup(ids, 0))
    for words in (("line", "tab"), ("\u7528\u6237", "u0001f701"), ("\\", "100%"), ("'quoted'",)):
        asked = await journal.find_unindexed("alice", words, EVERYTHING)
        found[f"unindexed with {words}"] = list(asked)
    ranges = [
        (CHAT, 2, number),
        (_OTHER, 1, EVERYTHING),
        (SessionKey("no", "s"), 1, 9),
        (CHAT, 1, 1),
    ]
    parts = await journal.read_ranges(ranges, max_bytes=EVERYTHING)
    assert parts is not None
    for part, (key, first, last) in zip(parts, ranges, strict=True):
        assert part.key == key
        assert list(part.entries) == list(await journal.read(key, first, last))
        seqs = {entry.seq for entry in part.entries}
        assert part.pruned & seqs == seqs.intersection(await journal.pruned_seqs(key))
    if any(part.entries for part in parts):
        assert await journal.read_ranges(ranges, max_bytes=1) is None
    found["images"] = [
        # which keys an image has is the journal's to choose
        msgspec.structs.replace(image, keys=frozenset(), keys_complete=True)
        if isinstance(image, SavedSession)
        else image
        for image in await journal.hydrate([CHAT, _ALICE, _OTHER])
    ]
    found["state_items alice"] = list(await journal.state_items(_ALICE))
    found["memories"] = list(await journal.memories("alice"))
    found["listed"] = list(await journal.list_memories("alice", after=None, limit=100))
    topics = sorted({one.topic for one in found["memories"]} - {""})[:2]
    found["facts"] = [
        list(await journal.facts("alice")),
        list(await journal.facts("alice", topics=topics)),
        list(await journal.facts("alice", session="chat", topics=["none"])),
    ]
    found["instructions"] = [list(await journal.instructions("alice", limit=n)) for n in (1, 100)]
    found["jobs"] = list(await journal.jobs())
    found["dead"] = list(await journal.jobs(dead=True))
    found["jobs of alice"] = list(await journal.user_jobs("alice"))
    found["removed"] = set(
        await journal.removed_messages("alice", [("chat", n) for n in range(1, number + 1)])
    )
    found["indexed_through"] = sorted(await journal.indexed_through())
    found["unindexed"] = list(await journal.unindexed("alice", 100))
    found["sessions"] = list(await journal.sessions("alice"))
    found["users"] = list(await journal.list_users(ListingPage()))
    found["to flush"] = set(await journal.sessions_to_flush(100))
    found["fallbacks"] = set(await journal.sessions_with_fallbacks(100))
    found["counts"] = [await journal.counts(), await journal.counts("alice")]
    memories = MemoryLookup(tuple(one.id for one in found["memories"]))
    found["memories by id"] = await journal.fetch(_ALICE, memories)
    return found


async def _compare(
    opened: OpenJournal, story: Callable[[int, int, int], list[list[Any]]], *, number: int = 0
) -> None:
    """Store a story, and compare what the journal tells with what one in memory tells.

    Args:
        opened: opens the journal.
        story: the records of each commit, given the numbers of a session, another, and a user.
        number: the highest number of a message in it.
    """
    reference = MemoryJournal()
    async with running_journal(await opened()) as journal:
        keys: list[SessionKey | UserKey] = [CHAT, _OTHER, _ALICE]
        sids = [await open_actor(journal, key) for key in keys]
        for sid, key in zip(sids, keys, strict=True):
            reference.apply(Opened(sid, key.user, getattr(key, "session", ""), 0))
        for records in story(*sids):
            error = await outcome_of(journal, *records)
            assert error is None, f"it cannot be stored: {error!r}"
            for record in records:
                reference.apply(record)
        expected = await _answers(reference, number)
        _check_same(await _answers(journal, number), expected)
    async with running_journal(await opened()) as journal:
        _check_same(await _answers(journal, number), expected)


def _check_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        assert found[name] == value, f"{name}: {_difference(found[name], value)}"


def _difference(found: object, expected: object) -> str:
    """The first part in which two answers differ, not longer than a reader can take."""
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        found, expected = next(
            pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]
        )
    return f"{found!r:.600} instead of {expected!r:.600}"


async def messages_come_back_exactly(opened: OpenJournal) -> None:
    """Content, metadata, ids, times, sizes, roles and keys, byte for byte."""

    def story(chat: int, other: int, _: int) -> list[list[Any]]:
        entries = tuple(
            make_entry(place, text, at_us=_TIMES[place % len(_TIMES)], tokens=place * 300_000)
            for place, text in enumerate(_TEXTS, start=1)
        )
        roles = ("system", "developer", "user", "assistant")
        answer = {"role": "tool", "content": "", "tool_call_id": "\u2028 1"}
        others = (
            make_entry(1, "none", meta=None, id=None),
            make_entry(2, "meta", meta=b"\x80", id="id \u2028"),
            *(make_entry(3 + place, role, role=role) for place, role in enumerate(roles)),
            Entry(7, 7, 7, "tool", msgspec.msgpack.encode(answer), answers="\u2028 1"),
        )
        return [
            [Appended(chat, entries[:4], key_digest("k")), Appended(other, others, None)],
            [Appended(chat, entries[4:], key_digest("k2"))],
        ]

    await _compare(opened, story, number=len(_TEXTS))


async def numbers_come_back_exactly(opened: OpenJournal) -> None:
    """Importance is a double, times are microseconds before and after 1970."""

    def story(chat: int, _: int, alice: int) -> list[list[Any]]:
        entries = tuple(
            make_entry(place, f"m{place}", importance=value, at_us=1_700_000_000_000_000 + place)
            for place, value in enumerate(_NUMBERS, start=1)
        )
        items = tuple(
            msgspec.structs.replace(
                _memory(f"memory {place}"), importance=value, created_us=_TIMES[place % 5]
            )
            for place, value in enumerate(_NUMBERS)
        )
        jobs = (Job("j", "elsewhere", CHAT, FlushSpec(chat, 1, 2)),)
        retried = JobRetried("j", 3, 1_700_000_000.123456, "once")
        return [
            [Appended(chat, entries, None)],
            [Remembered(alice, items, ())],
            [JobsStarted(chat, jobs)],
            [retried],
        ]

    await _compare(opened, story, number=len(_NUMBERS))


def _memory(words: str, **fields: Any) -> MemoryItem:
    values = {"type": "fact", "importance": 0.5, "created_us": 5, "tokens": 4, **fields}
    return MemoryItem(memory_id("alice", "", words), "chat", "", words, **values)


def _fact(words: str, **fields: Any) -> MemoryItem:
    item = _memory(words, **fields)
    return msgspec.structs.replace(item, topic=item.id[:16])


async def any_text_comes_back(opened: OpenJournal) -> None:
    """NUL, quotes and separators in memories, summaries, state items, errors and settings."""

    def story(chat: int, other: int, alice: int) -> list[list[Any]]:
        said = tuple(make_entry(place, "m") for place in range(1, 4))
        items = tuple(
            _memory(f"{place} {text}", key=f"{place}{text}", metadata=text)
            for place, text in enumerate(_TEXTS)
        )
        kept = tuple(
            StateItem("block", f"{place}", text.encode()) for place, text in enumerate(_TEXTS)
        )
        jobs = tuple(
            Job(f"j{place}", "elsewhere", _ALICE, RecordSpec(alice, (text,)))
            for place, text in enumerate(_TEXTS)
        )
        failed = [
            JobDeadLettered(f"j{place}", 1, text)
            if place % 2
            else JobRetried(f"j{place}", 1, 2.5, text)
            for place, text in enumerate(_TEXTS)
        ]
        summary = Summary(2, _TEXTS[2], _TEXTS[4] + _TEXTS[2], 5, degraded=False, model=_TEXTS[7])
        return [
            [Appended(chat, said, None), Appended(other, said, None)],
            [
                Remembered(alice, items, jobs),
                StateChanged(alice, kept),
                StateChanged(chat, kept[::-1]),
            ],
            failed,
            [BufferMoved(chat, Watermarks(0, 2, 2, 2), at_seq=3, summary=summary)],
        ]

    await _compare(opened, story, number=3)
    async with running_journal(await opened()) as journal:
        settings = {f"name {place}": text for place, text in enumerate(_TEXTS)}
        await journal.change_settings(settings)
    async with running_journal(await opened()) as journal:
        assert {name: await journal.setting(name) or "" for name in settings} == settings


async def jobs_keep_their_attempts(opened: OpenJournal) -> None:
    """How often a job failed, when it is tried again and why, in the order in which jobs began."""

    def story(chat: int, _: int, alice: int) -> list[list[Any]]:
        jobs = tuple(
            Job(name, queue, CHAT, BlocksSpec(chat, place))
            for place, (name, queue) in enumerate(
                [("zz", "b"), ("retried", "a"), ("dead", "a"), ("done", "b"), ("again", "c")]
            )
        )
        own = (Job("aa", "a", _ALICE, RecordSpec(alice, ("m1", "m2"), ("old",))),)
        more = msgspec.structs.replace(jobs[1], payload=BlocksSpec(chat, 9))
        return [
            [JobsStarted(chat, jobs)],
            [JobsStarted(alice, own)],
            [JobRetried("retried", 1, 10.5, "first"), JobRetried("none such", 1, 0.5, "x")],
            [JobRetried("retried", 2, 11.25, "second"), JobAdvanced(chat, more)],
            [JobDeadLettered("dead", 4, "poison"), JobDeadLettered("again", 5, "poison too")],
            [DeadLetterRetried("again"), DeadLetterRetried("zz"), JobDone("done")],
            [BufferMoved(chat, Watermarks(), ended=("none such",), jobs=())],
        ]

    await _compare(opened, story)


async def progress_never_goes_back(opened: OpenJournal) -> None:
    """The indexed part only grows, in one commit or several, in whatever order it is said."""

    def story(chat: int, other: int, _: int) -> list[list[Any]]:
        said = tuple(make_entry(place, f"m{place}") for place in range(1, 9))
        return [
            [Appended(chat, said, None), Appended(other, said, None)],
            [Flushed(chat, 6)],
            [Flushed(chat, 4), Flushed(other, 5), Flushed(other, 2)],
            [Flushed(chat, 0)],
            [Pruned(CHAT, (2, 7)), Pruned(CHAT, (2,)), Pruned(SessionKey("no", "one"), (1,))],
        ]

    await _compare(opened, story, number=8)


async def a_memory_that_exists_stays(opened: OpenJournal) -> None:
    """Recording one again changes nothing; changing and removing do."""

    def story(_: int, __: int, alice: int) -> list[list[Any]]:
        first = [
            _fact(f"memory {number}", created_us=90 - number, sources=(1, 2)) for number in range(4)
        ]
        again = msgspec.structs.replace(first[1], content="another", created_us=99, sources=(3,))
        changed = msgspec.structs.replace(
            first[2], content="changed", revision=3, updated_us=7, key="k"
        )
        return [
            [Remembered(alice, tuple(first), ())],
            [Remembered(alice, (again,), ())],
            [MemoryChanged(alice, changed, ())],
            [MemoriesRemoved(alice, (first[3].id, "none such"))],
            [Remembered(alice, (again, _memory("new")), ())],
        ]

    await _compare(opened, story)


async def the_past_is_answered_alike(opened: OpenJournal) -> None:
    """Buffers that moved, summaries and their entries, removed messages, later generations."""

    def story(chat: int, other: int, alice: int) -> list[list[Any]]:
        said = tuple(make_entry(place, f"m{place}", id=f"i{place}") for place in range(1, 13))
        lost = (MessageRange(1, 2, 2),)
        running = Summary(3, "So far: ", "one", 5, degraded=True, model="lead", lost=lost)
        entry = Summary(5, "", "four to five", 6, degraded=False, model="m", first=4)
        later = Summary(
            7,
            "p",
            "all",
            9,
            degraded=False,
            model="m",
            input_tokens=50,
            verbatim=(MessageRange(7, 7, 1),),
            prose=2,
            brief="b",
            brief_tokens=1,
        )
        restated = Watermarks(1, 4, 4, 7)
        first, newest = (
            msgspec.structs.replace(make_entry(one.seq, "changed", id=one.id), importance=0.3)
            for one in (said[0], said[10])
        )
        changed = (StoredMessage(first, key_digest("k"), 6), StoredMessage(newest))
        return [
            [Appended(chat, said[:6], key_digest("k")), Appended(other, said[:3], None)],
            [BufferMoved(chat, Watermarks(0, 3, 3, 3), at_seq=6, summary=running)],
            [BufferMoved(chat, Watermarks(0, 5, 5, 3), at_seq=6, summaries=(entry,))],
            [Appended(chat, said[6:10], None)],
            [BufferMoved(chat, Watermarks(0, 7, 8, 5), at_seq=10, summary=later, removed=(8, 9))],
            [BufferMoved(other, Watermarks(1, 3, 3, 0, 3), at_seq=3, reason="cleared")],
            [StateChanged(chat, (StateItem("b", "z", b"1"), StateItem("b", "a", b"2")))],
            [StateChanged(chat, (StateItem("b", "z", b"3"), StateItem("c", "a", b"")))],
            [StateChanged(chat, (), (("c", "a"), ("c", "none")))],
            [StateChanged(alice, (StateItem("b", "q", b"\x00\xff"),))],
            [BufferMoved(chat, restated, at_seq=10, reason="restated", removed=(10,))],
            [Appended(chat, said[10:], None)],
            [BufferMoved(chat, Watermarks(2, 4, 4, 7), 12, "restated", changed=changed)],
            [BufferMoved(chat, Watermarks(3, 4, 4, 7), 12, "restated", changed=changed[1:])],
        ]

    await _compare(opened, story, number=12)
