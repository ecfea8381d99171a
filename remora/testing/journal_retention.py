"""The checks of what a journal may let go; part of `remora.testing.journal_suite`."""

from __future__ import annotations

from remora.actors.policies.buffer import BufferPolicy
from remora.errors import CommitFailed, InvalidInput
from remora.ids import SessionKey
from remora.runtime.jobs import Job, JobDeadLettered, JobDone
from remora.runtime.log import commit_records
from remora.storage.ports import Retention
from remora.storage.records import (
    BlocksSpec,
    BufferMoved,
    Flushed,
    FlushSpec,
    JobsStarted,
    Pruned,
    Watermarks,
)
from remora.storage.running import running_journal
from remora.testing.journal_runtime import JoinedSummarizer, OpenJournal, open_runtime, user_message


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
