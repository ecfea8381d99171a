"""Checks of a `Journal` that anyone who writes one can run.

`journal_suite` has them all. Each is given an async function that opens the journal: an empty one
the first time, the same again the next time::

    @pytest.mark.parametrize("check", journal_suite, ids=lambda check: check.__name__)
    async def test_my_journal(check, tmp_path):
        await check(lambda: MyJournal.open(tmp_path / "journal"))

A journal is opened a second time while it is open: the newest owner is then the only one that
stores anything. `journal_checks` has more checks, for what only some journals can do: those get a
`JournalAccess`, which also breaks the journal's connection or names a process that opens it.

Most run a whole runtime over it and look at what a user would notice; those of what a runtime asks
for seldom (erasing, trimming) ask the journal itself. They say what is wrong by `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from remora.actors.policies.buffer import BufferPolicy
from remora.errors import CommitFailed, InvalidInput, InvalidMessage, StateConflict
from remora.ids import SessionKey, UserKey, turn_key, turn_root
from remora.messages import Message, decode_chat
from remora.runtime.jobs import DeadLetterRetried, Job, JobDeadLettered, JobDone
from remora.runtime.log import Write, commit_records
from remora.storage.journal_port import running_journal
from remora.storage.listing import ListingOrder, SessionListing
from remora.storage.lookups import TurnLookup
from remora.storage.ports import Retention
from remora.storage.records import (
    BlocksSpec,
    BufferMoved,
    FactsSpec,
    Flushed,
    FlushSpec,
    JobAdvanced,
    JobsStarted,
    Opened,
    Pruned,
    RecordSpec,
    SavedUser,
    StateChanged,
    StateItem,
    Watermarks,
)
from remora.testing.journal_commits import (
    a_fenced_write_is_not_stored,
    a_large_commit_is_stored_whole,
    a_memory_that_exists_stays,
    a_refused_write_leaves_nothing,
    any_text_comes_back,
    closing_commits_what_is_queued,
    erasing_comes_after_what_was_queued,
    jobs_keep_their_attempts,
    messages_come_back_exactly,
    nothing_is_seen_before_it_is_committed,
    numbers_come_back_exactly,
    numbers_of_actors_are_never_used_twice,
    outcomes_are_told_in_the_order_of_queueing,
    progress_never_goes_back,
    reads_show_whole_writes,
    the_past_is_answered_alike,
    what_is_acknowledged_can_be_read,
)
from remora.testing.journal_erasure import (
    a_note_has_a_digest_under_each_key,
    forgetting_a_session_leaves_the_users_others,
    forgetting_a_user_leaves_nothing_of_them,
    what_is_being_forgotten_is_noted_until_it_is_gone,
)
from remora.testing.journal_fixtures import (
    Capability,
    CommitFate,
    JoinedSummarizer,
    JournalAccess,
    OpenJournal,
    open_runtime,
    user_message,
)
from remora.testing.journal_owners import (
    a_commit_that_is_not_stored_is_not_acknowledged,
    a_commit_under_a_claim_is_stored_before_it_or_never,
    a_former_owner_changes_nothing_else,
    a_former_owner_notices_without_writing,
    a_former_owner_stores_no_record,
    a_former_runtime_ends,
    a_killed_owner_loses_nothing,
    a_late_commit_changes_nothing,
    a_retry_after_a_broken_connection_has_one_effect,
    a_stopped_owner_stores_nothing_when_it_goes_on,
    a_stored_commit_is_not_called_failed,
    an_owner_that_stood_still_stores_nothing,
    commit_numbers_go_on,
    epochs_grow,
    no_byte_of_what_is_forgotten_is_left,
    the_newest_owner_stores,
    writes_go_on_after_a_broken_connection,
)

__all__ = [
    "AccessCheck",
    "Capability",
    "CommitFate",
    "JournalAccess",
    "JournalCheck",
    "OpenJournal",
    "journal_checks",
    "journal_suite",
]


# -- the checks of what a journal may let go; part of `remora.testing.journal_suite` ---------------


async def originals_are_kept_as_long_as_they_must_be(opened: OpenJournal) -> None:
    """By count, age and size; the buffer and its neighbours stay; numbers go on.

    A message takes its key along.
    """
    texts = [f"message {n}" for n in range(1, 31)]
    policy = BufferPolicy.window(4, fold="summary")
    day_us = 86_400_000_000
    async with open_runtime(opened, policy=policy, summarizer=JoinedSummarizer()) as runtime:
        chats = [runtime.session("alice", name) for name in ("one", "two")]
        for number, text in enumerate(texts, start=1):
            at = {"created_at": number * 86_400}
            for chat in chats:
                await chat.append({**user_message(text), **at}, key=f"k{number}")
        for chat in chats:
            await chat.settle()
        contexts = [(await chat.load()).messages for chat in chats]
        assert await runtime.internals.journal.trim(Retention(), 1_000 * day_us) == 0
        assert (
            await runtime.internals.journal.trim(Retention(max_messages=20), 1_000 * day_us) == 12
        )  # 26 are archived in each
        assert [message.seq for message in await chats[0].history()] == list(range(7, 31))
        assert await runtime.internals.journal.trim(Retention(max_age_days=20.5), 31 * day_us) == 8
        assert [message.content for message in await chats[1].history()] == texts[10:]
        journal = runtime.internals.journal
        sizes = [entry.size for entry in await journal.read(chats[0].key, 11, 26)]
        assert (
            await runtime.internals.journal.trim(
                Retention(max_bytes=2 * sum(sizes) - 1), 31 * day_us
            )
            == 1
        )
        assert (
            await runtime.internals.journal.trim(
                Retention(max_bytes=2 * sum(sizes[2:])), 31 * day_us
            )
            == 3
        )
        assert (
            await runtime.internals.journal.trim(Retention(max_bytes=1), 31 * day_us) == 2 * 12
        )  # the buffer's neighbours stay
        assert [message.seq for message in await chats[0].history()] == list(range(25, 31))
        assert [(await chat.load()).messages for chat in chats] == contexts
    async with open_runtime(opened, policy=policy, summarizer=JoinedSummarizer()) as runtime:
        chat = runtime.session("alice", "one")
        assert (await chat.load()).messages == contexts[0]
        assert (await chat.append(user_message("message 30"), key="k30")).duplicate
        late = await chat.append(user_message("again"), key="k3")
        assert (late.duplicate, late.seqs) == (False, (31,))
        await chat.settle()
        assert await chat.clear()
        await runtime.internals.journal.trim(Retention(max_messages=1), 31 * day_us)
        assert [message.seq for message in await chat.history()] == [30, 31]
    async with open_runtime(opened) as runtime:
        assert (await runtime.session("alice", "one").append(user_message("more"))).seqs == (32,)


async def what_is_not_kept_is_no_answer(opened: OpenJournal) -> None:
    """An earlier buffer whose messages are gone cannot be looked at or gone back to.

    What is there can, and be exported.
    """
    policy = BufferPolicy.window(4, fold="summary")
    async with open_runtime(opened, policy=policy, summarizer=JoinedSummarizer()) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat")
        for number in range(1, 21):
            await chat.append(user_message(f"m{number}"))
            await chat.settle()
        then = (await chat.load(at=16)).messages
        assert await runtime.internals.journal.trim(Retention(max_messages=6), 0) == 10
        assert [message.seq for message in await chat.history(at=15)] == list(range(11, 16))
        assert (await chat.load(at=16)).messages == then
        for call in (chat.load(at=12), chat.fork("fork", at=12), chat.rewind(12), chat.rewind(0)):
            try:
                await call
            except InvalidInput:
                continue
            raise AssertionError("an answer was made of messages that are gone")
        # it was looked at before, and gone back to after what it needs was trimmed
        late = BufferMoved(
            (await chat.inspect()).sid, Watermarks(1, 11, 11, 20), at_seq=20, reason="restated"
        )
        try:
            await commit_records(runtime.internals.journal, [late])
        except CommitFailed:
            pass
        else:
            raise AssertionError("a session went back to before what is kept")
        copy = await chat.fork("copy", at=18)
        assert [message.content for message in await copy.history()] == [
            f"m{n}" for n in range(11, 19)
        ]
        exported = await chat.export()
        back = await alice.import_session(exported, session="back")
        assert [message.content for message in await alice.session("back").history()] == [
            f"m{n}" for n in range(11, 21)
        ], back
        assert await chat.rewind(17) == 3
        assert [message.seq for message in await chat.history()] == list(range(11, 18))
    async with open_runtime(opened, policy=policy, summarizer=JoinedSummarizer()) as runtime:
        assert (await runtime.session("alice", "chat").append(user_message("on"))).seqs == (21,)


async def nothing_that_is_needed_is_trimmed(opened: OpenJournal) -> None:
    """Messages that are being indexed stay, with neighbours, and so does what a job reads."""
    key = SessionKey("alice", "chat")
    async with open_runtime(opened) as runtime:
        chat = runtime.session(*key)
        await chat.append([user_message(f"m{n}") for n in range(1, 41)])
        sid = (await chat.inspect()).sid
    jobs = [
        Job(f"{name}-{first}", "elsewhere", key, FlushSpec(sid, first, last))
        for name, first, last in (("a", 1, 10), ("b", 11, 30))
    ]
    everything = Retention(max_bytes=1)
    async with running_journal(await opened()) as journal:
        await commit_records(
            journal, [BufferMoved(sid, Watermarks(0, 0, 30, 30), jobs=tuple(jobs))]
        )
        assert await journal.trim(everything, 0) == 0  # in the buffer still
        await commit_records(
            journal, [BufferMoved(sid, Watermarks(0, 30, 30, 30), at_seq=40, reason="dropped")]
        )
        assert await journal.trim(everything, 0) == 0  # on its way
        await commit_records(journal, [Flushed(sid, 10), JobDone(jobs[0].id)])
        assert await journal.trim(everything, 0) == 8  # the next ones' windows hold the last two
        await commit_records(journal, [JobDeadLettered(jobs[1].id, 3, "poisoned")])
        assert await journal.trim(everything, 0) == 0
        await commit_records(journal, [Pruned(key, tuple(range(11, 21))), JobDone(jobs[1].id)])
        assert (
            await journal.trim(everything, 0) == 10
        )  # pruned is never to be there; the others may be flushed again
        blocks = Job("blocks-1", "elsewhere", key, BlocksSpec(sid, 30))
        await commit_records(journal, [Flushed(sid, 30), JobsStarted(sid, (blocks,))])
        assert (
            await journal.trim(everything, 0) == 0
        )  # what its blocks have not seen, they alone know
        await commit_records(journal, [JobDone(blocks.id)])
        assert await journal.trim(everything, 0) == 10
        assert [entry.seq for entry in await journal.read(key, 1, 40)] == list(range(29, 41))


# -- checks of a journal's listings: users and sessions, page by page ------------------------------

_SESSIONS = (
    ("bob", "b"),
    ("alice", "c"),
    ("alice", "a"),
    ("alice", "b"),
    ("ña", "x"),
    ("bob", "a"),
)
_BEGIN = 1_700_000_000
_ORDERS: tuple[tuple[ListingOrder, str], ...] = (
    ("name", "abc"),
    ("newest", "bac"),
    ("oldest", "cab"),
)


async def users_and_sessions_have_pages(opened: OpenJournal) -> None:
    """The same page by page as at once, in each order, also after opening again."""
    async with open_runtime(opened) as runtime:
        for number, (user, session) in enumerate(_SESSIONS):
            message = {**user_message("hello"), "created_at": _BEGIN + number}
            await runtime.session(user, session).append([message, message])
        await runtime.shared("team").as_("alice").grant("bob", "read")
        await runtime.session("alice", "c").delete(positions=0)
        await runtime.session("alice", "gone").append(user_message("never mind"))
        await runtime.session("alice", "gone").delete(positions=0)
    for _ in range(2):
        async with open_runtime(opened) as runtime:
            alice = runtime.user("alice")
            for order, names in _ORDERS:
                found: list[SessionListing] = []
                after = None
                while page := await alice.sessions(order=order, limit=2, after=after):
                    found += page
                    after = page[-1].cursor
                assert [one.key.session for one in found] == list(names), order
                assert found == list(await alice.sessions(order=order))
            assert [one.messages for one in found] == [1, 2, 2]
            assert [one.last_at.timestamp() - _BEGIN for one in found] == [1, 2, 3]
            users = await runtime.users(order="newest")
            assert [(one.user, one.sessions) for one in users] == [
                ("alice", 4),
                ("bob", 2),
                ("ña", 1),
            ]
            (bob,) = await runtime.users(prefix="b", limit=1)
            assert bob.user == "bob"
            assert list(await runtime.users(prefix="b", after=bob.cursor)) == []
            assert [one.user for one in await runtime.users(after="alice")] == ["bob", "ña"]


async def messages_of_one_time_have_one_order(opened: OpenJournal) -> None:
    """Unindexed ones: the session that began last comes first, and its newest message."""
    words = ["rain"]
    expected = [(name, seq) for name in ("m", "z", "a") for seq in (2, 1)]
    async with open_runtime(opened) as runtime:
        for name in ("a", "z", "m"):
            message = {**user_message("rain"), "created_at": _BEGIN}
            await runtime.session("alice", name).append([message, message])
    async with running_journal(await opened()) as journal:
        for found in (
            await journal.unindexed("alice", 10),
            await journal.find_unindexed("alice", words, 10),
        ):
            assert [(key.session, seq) for key, seq in found] == expected
        assert list(await journal.unindexed("alice", 3)) == list(found)[:3]


# -- checks of a journal's turns and keyed state; a part of `journal_suite` ------------------------


async def turns_are_found_by_their_keys(opened: OpenJournal) -> None:
    """All appends of a turn, in order, and of no other; deleted replies are counted.

    A turn that was cut goes on after opening again.
    """
    key = SessionKey("alice", "chat")
    async with open_runtime(opened) as runtime:
        chat = runtime.session(*key)
        for request in ("r", "r1", "r10"):
            async with chat.turn(f"question {request}", key=request) as turn:
                await turn.reply({"role": "assistant", "content": f"one {request}"})
                await turn.reply({"role": "assistant", "content": f"two {request}"})
        async with runtime.session("bob", "chat").turn("another", key="r1") as turn:
            pass
        async with chat.turn("cut", key="cut"):
            pass
        await chat.delete(positions=5)
    async with open_runtime(opened) as runtime:
        journal = runtime.internals.journal
        found = await journal.fetch(key, TurnLookup(turn_root("r1")))
        assert isinstance(found, tuple)
        assert [one.key for one in found] == [turn_key(turn_root("r1"), 0, n) for n in range(3)]
        said = [[decode_chat(entry.chat)["content"] for entry in one.entries] for one in found]
        assert said == [["question r1"], ["one r1"], []]
        assert [one.removed for one in found] == [0, 0, 1]
        for other in (key, SessionKey("alice", "none such")):
            assert await journal.fetch(other, TurnLookup(turn_root("none such"))) == ()
        chat = runtime.session(*key)
        async with chat.turn("question r10", key="r10") as turn:
            assert turn.replayed
            assert [one.content for one in turn.replies] == ["one r10", "two r10"]
        async with chat.turn("cut", key="cut") as turn:
            assert (turn.replayed, turn.resumed) == (False, True)
            await turn.reply("at last")
        async with chat.turn("cut", key="cut") as turn:
            assert turn.replayed
        assert [one.content for one in await chat.history()][-2:] == ["cut", "at last"]


async def keyed_state_keeps_its_versions(opened: OpenJournal) -> None:
    """Values and versions are there after opening again; no version is used twice."""
    async with open_runtime(opened) as runtime:
        for state in (runtime.session("alice", "chat").state, runtime.user("alice").state):
            await state.set("kept", {"a": [1, None, "ñ\u2028"]})
            gone = await state.set("gone", 1)
            await state.delete("gone", version=gone.version)
    async with open_runtime(opened) as runtime:
        assert (await runtime.counts("alice")).state_keys == 2
        assert (await runtime.counts("bob")).state_keys == 0
        for state in (runtime.session("alice", "chat").state, runtime.user("alice").state):
            (kept,) = await state.items()
            assert (kept.value, kept.version) == ({"a": [1, None, "ñ\u2028"]}, 1)
            again = await state.set("gone", 2, version=0)
            assert again.version > gone.version
            try:
                await state.set("kept", 2, version=again.version)
            except StateConflict:
                assert await state.get("kept") == kept
            else:
                raise AssertionError("a version that is not the present one was taken")


JournalCheck: TypeAlias = Callable[[OpenJournal], Awaitable[None]]
"""A check that opens the journal, and does no more to it."""
AccessCheck: TypeAlias = Callable[[JournalAccess], Awaitable[None]]
"""A check that may also break the journal."""


async def what_was_acknowledged_is_there_again(opened: OpenJournal) -> None:
    """Contexts and histories are the same after opening again, metadata, ids and times included."""
    async with open_runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        two = {**user_message("two"), "metadata": {"a": [1]}}
        receipt = await chat.append([user_message("one"), two])
        before = (await chat.load()).messages, await chat.history()
    async with open_runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        assert ((await chat.load()).messages, await chat.history()) == before
        assert receipt.ids == tuple(message.id for message in before[1])
        assert (await chat.append(user_message("three"))).seqs == (3,)


async def a_batch_is_all_or_nothing(opened: OpenJournal) -> None:
    """A bad message takes its batch along, and nothing is left of it."""
    async with open_runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        try:
            await chat.append([user_message("good"), Message(role="user")])
        except InvalidMessage:
            assert await chat.history() == []
        else:
            raise AssertionError("a message without content was taken")


async def a_write_without_records_is_settled_in_its_turn(opened: OpenJournal) -> None:
    """A broken session waits for it, and is then read again: all it wrote before is decided."""
    outcomes: list[tuple[int, Exception | None]] = []
    async with running_journal(await opened()) as journal:
        (image,) = await journal.hydrate([UserKey("alice")])
        assert isinstance(image, SavedUser)

        def note(records: int, error: Exception | None) -> None:
            outcomes.append((records, error))

        journal.write(Write([Opened(image.sid, "alice", "", 0)], partial(note, 1)))
        journal.write(Write((), partial(note, 0)))
        await commit_records(
            journal, [StateChanged(image.sid, (StateItem("grant", "alice", b"own"),))]
        )
        assert outcomes == [(1, None), (0, None)]
        await commit_records(journal, ())
        assert [state_item.name for state_item in await journal.state_items(UserKey("alice"))] == [
            "alice"
        ]


async def a_key_has_one_effect(opened: OpenJournal) -> None:
    """A key that comes again has no second effect, at once or after opening again."""
    async with open_runtime(opened) as runtime:
        first = await runtime.session("alice", "chat").append(user_message("once"), key="k")
    async with open_runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        again = await chat.append(user_message("once"), key="k")
        assert (again.duplicate, again.seqs, again.ids) == (True, first.seqs, first.ids)
        assert len(await chat.history()) == 1


async def sessions_and_users_are_apart(opened: OpenJournal) -> None:
    """Each sees its own, and a user's listing has their own sessions, newest last."""
    async with open_runtime(opened) as runtime:
        for user, session in (("alice", "one"), ("bob", "one"), ("alice", "two")):
            await runtime.session(user, session).append(user_message(f"{user} {session}"))
        for user, session in (("alice", "one"), ("bob", "one"), ("alice", "two")):
            messages = (await runtime.session(user, session).load()).messages
            assert messages == [user_message(f"{user} {session}")]
        assert [listing.key.session for listing in await runtime.user("alice").sessions()] == [
            "one",
            "two",
        ]


async def a_fold_keeps_what_it_takes(opened: OpenJournal) -> None:
    """Compacted messages are in the summary, also after opening again, and in the history."""
    texts = [f"message {n}" for n in range(12)]
    policy = BufferPolicy.window(4, fold="summary")
    async with open_runtime(opened, policy=policy, summarizer=JoinedSummarizer()) as runtime:
        chat = runtime.session("alice", "chat")
        for text in texts:
            await chat.append(user_message(text))
        await chat.settle()
        before = await chat.load()
        assert before.summary == " ".join(texts[:8])
    async with open_runtime(opened, policy=policy, summarizer=JoinedSummarizer()) as runtime:
        chat = runtime.session("alice", "chat")
        assert (await chat.load()).messages == before.messages
        assert [message.content for message in await chat.history()] == texts
        assert (await chat.stats()).summaries.calls > 0


async def clearing_keeps_the_history(opened: OpenJournal) -> None:
    """The buffer is empty, also after opening again; what was said can be looked up."""
    async with open_runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([user_message("one"), user_message("two")])
        assert await chat.clear() == 2
    async with open_runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        assert await chat.size() == 0
        assert len(await chat.history()) == 2


async def the_past_can_be_looked_at(opened: OpenJournal) -> None:
    """Deleted and rewound messages are gone, and are there at an earlier message."""
    async with open_runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([user_message(f"m{n}") for n in range(1, 8)])
        await chat.delete(positions=1)
        await chat.rewind(4)
    async with open_runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        assert [message.content for message in await chat.history()] == ["m1", "m3", "m4"]
        assert [message.content for message in await chat.history(at=6)] == [
            f"m{n}" for n in range(1, 7) if n != 2
        ], "what was deleted is in no past"


async def settings_are_set_once(opened: OpenJournal) -> None:
    """The first value stays."""
    journal = await opened()
    assert await journal.setting("colour") is None
    assert await journal.init_setting("colour", "blue") == "blue"
    assert await journal.init_setting("colour", "red") == "blue"
    await journal.aclose()


async def settings_change_together(opened: OpenJournal) -> None:
    """Several at once, those that were set and those that were not.

    The others stay, and all of it is there again.
    """
    journal = await opened()
    await journal.init_setting("colour", "blue")
    await journal.init_setting("shape", "round")
    await journal.change_settings(
        {"colour": "red", "size": "big", "odd": 'it\'s \u2028 {"json": 1}'}
    )
    assert await journal.init_setting("colour", "green") == "red"
    await journal.change_settings({"size": ""})
    await journal.aclose()
    journal = await opened()
    names = ("colour", "shape", "size", "odd")
    assert [await journal.setting(name) for name in names] == [
        "red",
        "round",
        "",
        'it\'s \u2028 {"json": 1}',
    ]
    await journal.aclose()


async def what_an_actor_keeps_can_be_read(opened: OpenJournal) -> None:
    """State items, each user's own, in the order in which they were first put."""
    async with open_runtime(opened) as runtime:
        scope = runtime.shared("team")
        for name in ("zoe", "ann", "bo"):
            await scope.as_("zoe").grant(name, "own")
        await runtime.session("alice", "one").append(user_message("hello"))
        (key,) = [
            key
            for key, _ in await runtime.internals.journal.indexed_through()
            if isinstance(key, UserKey)
        ]
        grants = [
            state_item.name
            for state_item in await runtime.internals.journal.state_items(key)
            if state_item.kind == "grant"
        ]
        assert grants == ["zoe", "ann", "bo"]
        assert list(await runtime.internals.journal.state_items(SessionKey("alice", "one"))) == []
        assert list(await runtime.internals.journal.state_items(UserKey("nobody"))) == []


async def dead_letters_can_be_retried_and_dropped(opened: OpenJournal) -> None:
    """A dead letter stays, with its reason, until it is retried or dropped.

    Both hold after opening again.
    """
    key = SessionKey("alice", "chat")
    jobs = tuple(Job(f"job-{n}", "elsewhere", key, RecordSpec(1, (f"m{n}",))) for n in range(3))
    async with open_runtime(opened) as runtime:
        view = await runtime.session(*key).inspect()
        await runtime.session(*key).append(user_message("hello"))
        await commit_records(runtime.internals.journal, [JobsStarted(view.sid, jobs)])
        await commit_records(
            runtime.internals.journal, [JobDeadLettered(job.id, 4, "broken") for job in jobs]
        )
    async with open_runtime(opened) as runtime:
        assert [
            (job.id, job.attempts, job.error, job.dead) for job in await runtime.dead_letters()
        ] == [(job.id, 4, "broken", True) for job in jobs]
        assert await runtime.retry_dead_letters(["job-1"]) == 1
        assert await runtime.drop_dead_letters(["job-2"]) == 1
        await commit_records(
            runtime.internals.journal, [DeadLetterRetried("job-2"), DeadLetterRetried("none such")]
        )
    async with open_runtime(opened) as runtime:
        assert [job.id for job in await runtime.dead_letters()] == ["job-0"]
        (waiting,) = await runtime.internals.journal.jobs()
        assert (waiting.id, waiting.attempts, waiting.not_before, waiting.payload) == (
            "job-1",
            0,
            0.0,
            jobs[1].payload,
        )
        assert waiting.resumed, "an earlier attempt may have had effects, which must not be doubled"


async def a_job_goes_on_where_it_was(opened: OpenJournal) -> None:
    """The done part of a job is taken off it, and brings back none that has ended."""
    key = SessionKey("alice", "chat")
    job = Job("facts-1", "elsewhere", key, FactsSpec(1, 1, 9))
    rest = msgspec.structs.replace(job, payload=FactsSpec(1, 5, 9))
    async with open_runtime(opened) as runtime:
        sid = (await runtime.session(*key).inspect()).sid
        await runtime.session(*key).append(user_message("hello"))
        journal = runtime.internals.journal
        await commit_records(journal, [JobsStarted(sid, (job,))])
        await commit_records(journal, [JobAdvanced(sid, rest)])
        assert [one.payload for one in await journal.user_jobs("alice")] == [rest.payload]
    async with open_runtime(opened) as runtime:
        journal = runtime.internals.journal
        (left,) = [one for one in await journal.jobs() if one.id == job.id]
        assert (left.payload, left.queue, left.key) == (rest.payload, job.queue, key)
        await commit_records(journal, [JobDone(job.id)])
        await commit_records(journal, [JobAdvanced(sid, rest)])
    async with open_runtime(opened) as runtime:
        assert list(await runtime.internals.journal.jobs()) == []


_BASE: tuple[JournalCheck, ...] = (
    what_was_acknowledged_is_there_again,
    a_batch_is_all_or_nothing,
    a_write_without_records_is_settled_in_its_turn,
    nothing_is_seen_before_it_is_committed,
    what_is_acknowledged_can_be_read,
    a_fenced_write_is_not_stored,
    a_refused_write_leaves_nothing,
    outcomes_are_told_in_the_order_of_queueing,
    a_large_commit_is_stored_whole,
    reads_show_whole_writes,
    closing_commits_what_is_queued,
    messages_come_back_exactly,
    numbers_come_back_exactly,
    any_text_comes_back,
    jobs_keep_their_attempts,
    progress_never_goes_back,
    a_memory_that_exists_stays,
    the_past_is_answered_alike,
    a_key_has_one_effect,
    turns_are_found_by_their_keys,
    keyed_state_keeps_its_versions,
    sessions_and_users_are_apart,
    users_and_sessions_have_pages,
    messages_of_one_time_have_one_order,
    numbers_of_actors_are_never_used_twice,
    a_fold_keeps_what_it_takes,
    clearing_keeps_the_history,
    the_past_can_be_looked_at,
    settings_are_set_once,
    settings_change_together,
    what_an_actor_keeps_can_be_read,
    dead_letters_can_be_retried_and_dropped,
    a_job_goes_on_where_it_was,
    erasing_comes_after_what_was_queued,
    forgetting_a_user_leaves_nothing_of_them,
    forgetting_a_session_leaves_the_users_others,
    what_is_being_forgotten_is_noted_until_it_is_gone,
    a_note_has_a_digest_under_each_key,
    originals_are_kept_as_long_as_they_must_be,
    what_is_not_kept_is_no_answer,
    nothing_that_is_needed_is_trimmed,
)
_OWNERS: tuple[JournalCheck, ...] = (
    the_newest_owner_stores,
    a_former_owner_stores_no_record,
    a_former_owner_changes_nothing_else,
    an_owner_that_stood_still_stores_nothing,
    a_commit_under_a_claim_is_stored_before_it_or_never,
    a_former_owner_notices_without_writing,
    a_former_runtime_ends,
    epochs_grow,
)
_CAPABILITIES: Mapping[Capability, tuple[AccessCheck, ...]] = {
    "owners": _OWNERS,
    "commit_numbers": (commit_numbers_go_on,),
    "connections": (
        a_stored_commit_is_not_called_failed,
        a_commit_that_is_not_stored_is_not_acknowledged,
        writes_go_on_after_a_broken_connection,
        a_retry_after_a_broken_connection_has_one_effect,
    ),
    "late_commits": (a_late_commit_changes_nothing,),
    "processes": (a_killed_owner_loses_nothing, a_stopped_owner_stores_nothing_when_it_goes_on),
    "bytes": (no_byte_of_what_is_forgotten_is_left,),
}


def journal_checks(*capabilities: Capability) -> tuple[AccessCheck, ...]:
    """The checks of a journal with these capabilities: those that each journal must pass, and more.

    Args:
        capabilities: what your journal can do; see `Capability`. Each given to the checks must be
            reachable by your `JournalAccess`.

    Raises:
        InvalidInput: there is no such capability.
    """
    if unknown := [name for name in capabilities if name not in _CAPABILITIES]:
        raise InvalidInput(
            f"no capability of a journal: {unknown[0]!r}; there are {', '.join(_CAPABILITIES)}"
        )
    return (*_BASE, *(check for name in capabilities for check in _CAPABILITIES[name]))


journal_suite: tuple[JournalCheck, ...] = (*_BASE, *_OWNERS)
"""Each takes what opens an empty journal, the same one each time."""
