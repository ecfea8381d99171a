"""What every `Journal` must do, as checks that anyone who writes one can run.

`journal_suite` has them all. Each is given an async function that opens the journal: an empty one
the first time, the same again the next time::

    @pytest.mark.parametrize("check", journal_suite, ids=lambda check: check.__name__)
    async def test_my_journal(check, tmp_path):
        await check(lambda: MyJournal.open(tmp_path / "journal"))

Most run a whole runtime over it and look at what a user would notice; those of what a runtime asks
for seldom (erasing, trimming) ask the journal itself. They say what is wrong by `AssertionError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from remora.actors.policies.buffer import BufferPolicy
from remora.api.runtime import Runtime
from remora.config import Config
from remora.errors import CommitFailed, InvalidInput, InvalidMessage
from remora.ids import SHARED_PREFIX, SessionKey, UserKey, memory_id, session_key, user_key
from remora.models.ports import Line
from remora.runtime.log import DeadLetterRetried, Job, JobDeadLettered, JobDone, Write
from remora.runtime.supervisor import commit_records
from remora.storage.erasure_rules import SYNOPSIS_KIND, WORKING_KIND
from remora.storage.ports import Erasure, Journal, Retention
from remora.storage.records import (
    Appended,
    BlocksSpec,
    BufferMoved,
    Flushed,
    FlushSpec,
    JobsStarted,
    MemoryItem,
    Opened,
    Pruned,
    RecordSpec,
    Remembered,
    SavedUser,
    StateChanged,
    StateItem,
    Watermarks,
)
from remora.storage.running import running_journal

__all__ = ["OpenJournal", "journal_suite"]

OpenJournal: TypeAlias = Callable[[], Awaitable[Journal]]
"""Opens a journal: the same one each time."""

_pack = msgspec.msgpack.Encoder().encode
_PLAIN: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "long_term": {"enabled": False},
    "models": {"embedder": "none"},
}


class _Joined:
    """A summary that leaves nothing out."""

    name = "joined"

    async def summarize(
        self,
        previous: str | None,
        lines: Sequence[Line],
        *,
        max_tokens: int,  # noqa: ARG002
    ) -> str:
        return " ".join([*([previous] if previous else []), *(line.text for line in lines)])


@asynccontextmanager
async def _runtime(opened: OpenJournal, **options: Any) -> AsyncIterator[Runtime]:
    async with Runtime.in_memory(
        config=Config.from_dict(_PLAIN), journal=opened, **options
    ) as runtime:
        yield runtime


def _said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def what_was_acknowledged_is_there_again(opened: OpenJournal) -> None:
    """Contexts and histories are the same after opening again, metadata, ids and times included."""
    async with _runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        receipt = await chat.append([_said("one"), {**_said("two"), "metadata": {"a": [1]}}])
        before = (await chat.load()).messages, await chat.history()
    async with _runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        assert ((await chat.load()).messages, await chat.history()) == before
        assert receipt.ids == tuple(message.id for message in before[1])
        assert (await chat.append(_said("three"))).seqs == (3,)


async def a_batch_is_all_or_nothing(opened: OpenJournal) -> None:
    """A bad message takes its batch along, and nothing is left of it."""
    async with _runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        try:
            await chat.append([_said("good"), {"role": "user"}])
        except InvalidMessage:
            assert await chat.history() == []
        else:
            raise AssertionError("a message without content was taken")


async def a_write_without_records_is_settled_in_its_turn(opened: OpenJournal) -> None:
    """A session that was broken is read again when the journal is past what it had written: by this
    it knows.
    """
    settled: list[tuple[int, Exception | None]] = []
    async with running_journal(await opened()) as journal:
        (image,) = await journal.hydrate([UserKey("alice")])
        assert isinstance(image, SavedUser)

        def note(write: Write, error: Exception | None) -> None:
            settled.append((len(write.records), error))

        journal.write(Write([Opened(image.sid, "alice", "", 0)], note))
        journal.write(Write((), note))
        await commit_records(
            journal, [StateChanged(image.sid, (StateItem("grant", "alice", b"own"),))]
        )
        assert settled == [(1, None), (0, None)]
        await commit_records(journal, ())
        assert [state_item.name for state_item in await journal.state_items(UserKey("alice"))] == [
            "alice"
        ]


async def a_key_has_one_effect(opened: OpenJournal) -> None:
    """Whether it comes again at once, or after opening again."""
    async with _runtime(opened) as runtime:
        first = await runtime.session("alice", "chat").append(_said("once"), key="k")
    async with _runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        again = await chat.append(_said("once"), key="k")
        assert (again.duplicate, again.seqs, again.ids) == (True, first.seqs, first.ids)
        assert len(await chat.history()) == 1


async def sessions_and_users_are_apart(opened: OpenJournal) -> None:
    """Each sees its own, and a user's listing has their own sessions, newest last."""
    async with _runtime(opened) as runtime:
        for user, session in (("alice", "one"), ("bob", "one"), ("alice", "two")):
            await runtime.session(user, session).append(_said(f"{user} {session}"))
        for user, session in (("alice", "one"), ("bob", "one"), ("alice", "two")):
            messages = (await runtime.session(user, session).load()).messages
            assert messages == [_said(f"{user} {session}")]
        assert [listing.key.session for listing in await runtime.user("alice").sessions()] == [
            "one",
            "two",
        ]


async def a_fold_keeps_what_it_takes(opened: OpenJournal) -> None:
    """What is folded is in the summary, before and after opening again, and in the history for
    ever.
    """
    texts = [f"message {n}" for n in range(12)]
    policy = BufferPolicy.window(4, fold="summary")
    async with _runtime(opened, policy=policy, summarizer=_Joined()) as runtime:
        chat = runtime.session("alice", "chat")
        for text in texts:
            await chat.append(_said(text))
        await chat.settle()
        before = await chat.load()
        assert before.summary == " ".join(texts[:8])
    async with _runtime(opened, policy=policy, summarizer=_Joined()) as runtime:
        chat = runtime.session("alice", "chat")
        assert (await chat.load()).messages == before.messages
        assert [message.content for message in await chat.history()] == texts
        assert (await chat.stats()).folds.calls > 0


async def clearing_keeps_the_history(opened: OpenJournal) -> None:
    """The buffer is empty, also after opening again; what was said can be looked up."""
    async with _runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([_said("one"), _said("two")])
        assert await chat.clear() == 2
    async with _runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        assert await chat.size() == 0
        assert len(await chat.history()) == 2


async def the_past_can_be_looked_at(opened: OpenJournal) -> None:
    """What was deleted or rewound is gone, and is there at an earlier message."""
    async with _runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([_said(f"m{n}") for n in range(1, 8)])
        await chat.delete(1)
        await chat.rewind(4)
    async with _runtime(opened) as runtime:
        chat = runtime.session("alice", "chat")
        assert [message.content for message in await chat.history()] == ["m1", "m3", "m4"]
        assert [message.content for message in await chat.history(at=6)] == [
            f"m{n}" for n in range(1, 7)
        ]


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
    """Facets, each user's own, in the order in which they were first put."""
    async with _runtime(opened) as runtime:
        scope = runtime.shared("team")
        for name in ("zoe", "ann", "bo"):
            await scope.as_("zoe").grant(name, "own")
        await runtime.session("alice", "one").append(_said("hello"))
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
    """A job that failed for good stays, with its reason, until it is retried or dropped.

    Both hold after opening again.
    """
    key = SessionKey("alice", "chat")
    jobs = tuple(Job(f"job-{n}", "elsewhere", key, RecordSpec(1, (f"m{n}",))) for n in range(3))
    async with _runtime(opened) as runtime:
        view = await runtime.session(*key).inspect()
        await runtime.session(*key).append(_said("hello"))
        await commit_records(runtime.internals.journal, [JobsStarted(view.sid, jobs)])
        await commit_records(
            runtime.internals.journal, [JobDeadLettered(job.id, 4, "broken") for job in jobs]
        )
    async with _runtime(opened) as runtime:
        assert [
            (job.id, job.attempts, job.error, job.dead) for job in await runtime.dead_letters()
        ] == [(job.id, 4, "broken", True) for job in jobs]
        assert await runtime.retry_dead_letters(["job-1"]) == 1
        assert await runtime.drop_dead_letters(["job-2"]) == 1
        await commit_records(
            runtime.internals.journal, [DeadLetterRetried("job-2"), DeadLetterRetried("none such")]
        )
    async with _runtime(opened) as runtime:
        assert [job.id for job in await runtime.dead_letters()] == ["job-0"]
        (waiting,) = await runtime.internals.journal.jobs()
        assert (waiting.id, waiting.attempts, waiting.not_before, waiting.payload) == (
            "job-1",
            0,
            0.0,
            jobs[1].payload,
        )
        assert waiting.resumed, "an earlier attempt may have had effects, which must not be doubled"


async def _remembered(journal: Journal, user: str, session: str) -> int:
    """Something recorded of a user in a session, with the job that goes with it.

    Returns the number of the user's own actor.
    """
    (image,) = await journal.hydrate([UserKey(user)])
    assert isinstance(image, SavedUser)
    words = f"{user} remembers {session}"
    item = MemoryItem(memory_id(user, "", words), session, "", words, "fact", 0.5, 0, 5)
    job = Job(
        f"record-{image.sid}-{session}",
        "elsewhere",
        UserKey(user),
        RecordSpec(image.sid, (item.id,)),
    )
    opening = () if image.opened else (Opened(image.sid, user, "", 0),)
    await commit_records(journal, [*opening, Remembered(image.sid, (item,), (job,))])
    return image.sid


async def forgetting_a_user_leaves_nothing_of_them(opened: OpenJournal) -> None:
    """Rows of every kind go; other users keep theirs.

    A name that is used again begins anew (G13).
    """
    async with _runtime(opened) as runtime:
        for user in ("alice", "bob"):
            await runtime.session(user, "chat").append(
                [_said(f"{user} one"), _said(f"{user} two")], key="k"
            )
            await runtime.session(user, "other").append(_said(f"{user} three"))
            await runtime.shared("team").as_("bob").grant(user, "own" if user == "bob" else "write")
        before = [message.id for message in await runtime.session("alice", "chat").history()]
        kept = await runtime.session("bob", "chat").history()
        await runtime.shared("team").as_("bob").grant("alice", "write")
        await runtime.settle()
    async with running_journal(await opened()) as journal:
        for user in ("alice", "bob"):
            await _remembered(journal, user, "chat")
        erased = await journal.erase("alice")
        assert (erased.erasure.user_key, erased.erasure.session_key) == (user_key("alice"), "")
        assert [erased.removed[table] for table in ("messages", "memories", "jobs", "actors")] == [
            3,
            1,
            1,
            3,
        ]
        assert set(erased.removed) == {"actors", "messages", "folds", "facets", "memories", "jobs"}
        assert await journal.memories("alice") == []
        assert list(await journal.state_items(UserKey("alice"))) == []
        assert await journal.sessions("alice") == []
        grants = [
            state_item.name
            for state_item in await journal.state_items(UserKey(SHARED_PREFIX + "team"))
            if state_item.kind == "grant"
        ]
        assert grants == ["bob", "alice"], "a grant names an agent, who is nobody's user"
        assert "alice" not in {key.user for key, _ in await journal.indexed_through()}
        await journal.finish_erasure(erased.erasure.number)
        assert not [
            job
            for job in (*await journal.jobs(), *await journal.jobs(dead=True))
            if getattr(job.key, "user", "") == "alice"
        ]
    async with _runtime(opened) as runtime:
        assert await runtime.session("bob", "chat").history() == kept
        assert len(await runtime.internals.journal.memories("bob")) == 1
        chat = runtime.session("alice", "chat")
        receipt = await chat.append([_said("new"), _said("newer")], key="k")
        assert (receipt.duplicate, receipt.seqs) == (False, (1, 2))
        assert not set(receipt.ids) & set(before)


async def forgetting_a_session_leaves_the_users_others(opened: OpenJournal) -> None:
    """Its messages, and what the user's own actor has of it: memories, working memory, the synopsis
    (G13).
    """
    async with _runtime(opened) as runtime:
        alice = runtime.user("alice")
        for name in ("chat", "other"):
            await alice.session(name).append(_said(f"said in {name}"))
        kept = await alice.session("other").history()
        sids = [(await alice.session(name).inspect()).sid for name in ("chat", "other")]
    items = tuple(
        StateItem(WORKING_KIND, name, _pack({"id": name, "scope": name, "text": "words"}))
        for name in ("chat", "other", "")
    )
    synopsis = StateItem(SYNOPSIS_KIND, "identity", _pack({"text": "words"}))
    async with running_journal(await opened()) as journal:
        own = await _remembered(journal, "alice", "chat")
        await _remembered(journal, "alice", "other")
        await commit_records(journal, [StateChanged(own, (*items, synopsis))])
        erased = await journal.erase("alice", "chat")
        assert erased.erasure.session_key == session_key("alice", "chat")
        assert (
            erased.removed["messages"],
            erased.removed["memories"],
            erased.removed["actors"],
        ) == (1, 1, 1)
        assert [item.session for item in await journal.memories("alice")] == ["other"]
        left = [
            (state_item.kind, state_item.name)
            for state_item in await journal.state_items(UserKey("alice"))
        ]
        assert [place for place in left if place[0] in {WORKING_KIND, SYNOPSIS_KIND}] == [
            (WORKING_KIND, "other"),
            (WORKING_KIND, ""),
        ]
        assert [listing.key.session for listing in await journal.sessions("alice")] == ["other"]
        try:
            entries = tuple(
                entry.with_seq(2)
                for entry in await journal.read(SessionKey("alice", "other"), 1, 1)
            )
            await commit_records(journal, [Appended(sids[0], entries, None)])
        except CommitFailed:
            pass  # somebody had the session in memory still
        else:
            raise AssertionError("a message was stored for a session that is forgotten")
        other = await journal.erase("alice", "no such session")
        assert not any(other.removed.values())
        for erasure in (erased.erasure, other.erasure):
            await journal.finish_erasure(erasure.number)
        await commit_records(
            journal,
            [
                StateChanged(
                    own, (), tuple((state_item.kind, state_item.name) for state_item in items[1:])
                )
            ],
        )
    async with _runtime(opened) as runtime:
        assert await runtime.session("alice", "other").history() == kept
        assert await runtime.session("alice", "chat").history() == []


async def what_is_being_forgotten_is_noted_until_it_is_gone(opened: OpenJournal) -> None:
    """A note holds digests and no name, is there after opening again, and goes when all is done.

    Numbers are not used twice.
    """
    async with running_journal(await opened()) as journal:
        first = (await journal.erase("alice")).erasure
        second = (await journal.erase("bob", "chat")).erasure
        await journal.scrub()
    async with running_journal(await opened()) as journal:
        assert list(await journal.erasures()) == [first, second]
        assert second == Erasure(second.number, user_key("bob"), session_key("bob", "chat"))
        await journal.finish_erasure(second.number)
        await journal.finish_erasure(second.number)
        third = (await journal.erase("carol")).erasure
        assert third.number not in {first.number, second.number}
        await journal.finish_erasure(first.number)
    async with running_journal(await opened()) as journal:
        assert list(await journal.erasures()) == [third]


async def originals_are_kept_as_long_as_they_must_be(opened: OpenJournal) -> None:
    """By count, age and size; what is in the buffer, and beside it, stays; numbers go on.

    A message takes its key along.
    """
    texts = [f"message {n}" for n in range(1, 31)]
    policy = BufferPolicy.window(4, fold="summary")
    day_us = 86_400_000_000
    async with _runtime(opened, policy=policy, summarizer=_Joined()) as runtime:
        chats = [runtime.session("alice", name) for name in ("one", "two")]
        for number, text in enumerate(texts, start=1):
            at = {"created_at": number * 86_400}
            for chat in chats:
                await chat.append({**_said(text), **at}, key=f"k{number}")
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
        )  # what is beside the buffer stays
        assert [message.seq for message in await chats[0].history()] == list(range(25, 31))
        assert [(await chat.load()).messages for chat in chats] == contexts
    async with _runtime(opened, policy=policy, summarizer=_Joined()) as runtime:
        chat = runtime.session("alice", "one")
        assert (await chat.load()).messages == contexts[0]
        assert (await chat.append(_said("again"), key="k30")).duplicate
        late = await chat.append(_said("again"), key="k3")
        assert (late.duplicate, late.seqs) == (False, (31,))
        await chat.settle()
        assert await chat.clear()
        await runtime.internals.journal.trim(Retention(max_messages=1), 31 * day_us)
        assert [message.seq for message in await chat.history()] == [30, 31]
    async with _runtime(opened) as runtime:
        assert (await runtime.session("alice", "one").append(_said("more"))).seqs == (32,)


async def what_is_not_kept_is_no_answer(opened: OpenJournal) -> None:
    """An earlier buffer whose messages are gone cannot be looked at or gone back to.

    What is there can, and be exported.
    """
    policy = BufferPolicy.window(4, fold="summary")
    async with _runtime(opened, policy=policy, summarizer=_Joined()) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat")
        for number in range(1, 21):
            await chat.append(_said(f"m{number}"))
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
    async with _runtime(opened, policy=policy, summarizer=_Joined()) as runtime:
        assert (await runtime.session("alice", "chat").append(_said("on"))).seqs == (21,)


async def nothing_that_is_needed_is_trimmed(opened: OpenJournal) -> None:
    """What is on its way to long-term memory, with its neighbours, and what a job has yet to read,
    dead letters too (G6, G7).
    """
    key = SessionKey("alice", "chat")
    async with _runtime(opened) as runtime:
        chat = runtime.session(*key)
        await chat.append([_said(f"m{n}") for n in range(1, 41)])
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


journal_suite: tuple[Callable[[OpenJournal], Awaitable[None]], ...] = (
    what_was_acknowledged_is_there_again,
    a_batch_is_all_or_nothing,
    a_write_without_records_is_settled_in_its_turn,
    a_key_has_one_effect,
    sessions_and_users_are_apart,
    a_fold_keeps_what_it_takes,
    clearing_keeps_the_history,
    the_past_can_be_looked_at,
    settings_are_set_once,
    settings_change_together,
    what_an_actor_keeps_can_be_read,
    dead_letters_can_be_retried_and_dropped,
    forgetting_a_user_leaves_nothing_of_them,
    forgetting_a_session_leaves_the_users_others,
    what_is_being_forgotten_is_noted_until_it_is_gone,
    originals_are_kept_as_long_as_they_must_be,
    what_is_not_kept_is_no_answer,
    nothing_that_is_needed_is_trimmed,
)
"""Each takes what opens an empty journal, the same one each time."""
