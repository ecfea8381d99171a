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
from typing import TypeAlias

import msgspec

from remora.actors.policies.buffer import BufferPolicy
from remora.errors import InvalidInput, InvalidMessage
from remora.ids import SessionKey, UserKey
from remora.messages import Message
from remora.runtime.jobs import DeadLetterRetried, Job, JobDeadLettered, JobDone
from remora.runtime.log import Write, commit_records
from remora.storage.records import (
    FactsSpec,
    JobAdvanced,
    JobsStarted,
    Opened,
    RecordSpec,
    SavedUser,
    StateChanged,
    StateItem,
)
from remora.storage.running import running_journal
from remora.testing.journal_access import Capability, CommitFate, JournalAccess
from remora.testing.journal_commits import (
    a_fenced_write_is_not_stored,
    a_large_commit_is_stored_whole,
    a_refused_write_leaves_nothing,
    closing_commits_what_is_queued,
    erasing_comes_after_what_was_queued,
    nothing_is_seen_before_it_is_committed,
    numbers_of_actors_are_never_used_twice,
    outcomes_are_told_in_the_order_of_queueing,
    reads_show_whole_writes,
    what_is_acknowledged_can_be_read,
)
from remora.testing.journal_connections import (
    a_commit_that_is_not_stored_is_not_acknowledged,
    a_killed_owner_loses_nothing,
    a_late_commit_changes_nothing,
    a_retry_after_a_broken_connection_has_one_effect,
    a_stopped_owner_stores_nothing_when_it_goes_on,
    a_stored_commit_is_not_called_failed,
    no_byte_of_what_is_forgotten_is_left,
    writes_go_on_after_a_broken_connection,
)
from remora.testing.journal_erasure import (
    a_note_has_a_digest_under_each_key,
    forgetting_a_session_leaves_the_users_others,
    forgetting_a_user_leaves_nothing_of_them,
    what_is_being_forgotten_is_noted_until_it_is_gone,
)
from remora.testing.journal_listings import users_and_sessions_have_pages
from remora.testing.journal_owners import (
    a_commit_under_a_claim_is_stored_before_it_or_never,
    a_former_owner_changes_nothing_else,
    a_former_owner_notices_without_writing,
    a_former_owner_stores_no_record,
    a_former_runtime_ends,
    an_owner_that_stood_still_stores_nothing,
    commit_numbers_go_on,
    epochs_grow,
    the_newest_owner_stores,
)
from remora.testing.journal_retention import (
    nothing_that_is_needed_is_trimmed,
    originals_are_kept_as_long_as_they_must_be,
    what_is_not_kept_is_no_answer,
)
from remora.testing.journal_runtime import JoinedSummarizer, OpenJournal, open_runtime, user_message
from remora.testing.journal_turns import (
    keyed_state_keeps_its_versions,
    turns_are_found_by_their_keys,
)
from remora.testing.journal_values import (
    a_memory_that_exists_stays,
    any_text_comes_back,
    jobs_keep_their_attempts,
    messages_come_back_exactly,
    numbers_come_back_exactly,
    progress_never_goes_back,
    the_past_is_answered_alike,
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

        def note(write: Write, error: Exception | None) -> None:
            outcomes.append((len(write.records), error))

        journal.write(Write([Opened(image.sid, "alice", "", 0)], note))
        journal.write(Write((), note))
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
