"""The checks of what a journal must forget; part of `remora.testing.journal_suite`."""

from __future__ import annotations

import msgspec

from remora.errors import CommitFailed
from remora.ids import SHARED_PREFIX, Digests, SessionKey, UserKey, memory_id, session_key, user_key
from remora.runtime.jobs import Job
from remora.runtime.log import commit_records
from remora.storage.erasure_notes import (
    DIGEST_KEYS,
    SYNOPSIS_KIND,
    WORKING_KIND,
    encode_digest_keys,
)
from remora.storage.journal_port import running_journal
from remora.storage.ports import Erasure, Journal
from remora.storage.records import (
    Appended,
    MemoryItem,
    Opened,
    RecordSpec,
    Remembered,
    SavedUser,
    StateChanged,
    StateItem,
)
from remora.testing.journal_fixtures import OpenJournal, open_runtime, user_message

_pack = msgspec.msgpack.Encoder().encode


async def _remember(journal: Journal, user: str, session: str) -> int:
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

    A name that is used again starts empty.
    """
    async with open_runtime(opened) as runtime:
        for user in ("alice", "bob"):
            await runtime.session(user, "chat").append(
                [user_message(f"{user} one"), user_message(f"{user} two")], key="k"
            )
            await runtime.session(user, "other").append(user_message(f"{user} three"))
            await runtime.shared("team").as_("bob").grant(user, "own" if user == "bob" else "write")
        before = [message.id for message in await runtime.session("alice", "chat").history()]
        kept = await runtime.session("bob", "chat").history()
        await runtime.shared("team").as_("bob").grant("alice", "write")
        await runtime.settle()
    async with running_journal(await opened()) as journal:
        for user in ("alice", "bob"):
            await _remember(journal, user, "chat")
        erased = await journal.erase("alice")
        assert (erased.erasure.user_key, erased.erasure.session_key) == (user_key("alice"), "")
        assert [erased.removed[table] for table in ("messages", "memories", "jobs", "actors")] == [
            3,
            1,
            1,
            3,
        ]
        assert set(erased.removed) == {
            "actors",
            "messages",
            "summaries",
            "state_items",
            "memories",
            "jobs",
        }
        assert await journal.memories("alice") == []
        assert list(await journal.state_items(UserKey("alice"))) == []
        assert await journal.sessions("alice") == []
        grants = [
            state_item.name
            for state_item in await journal.state_items(UserKey(SHARED_PREFIX + "team"))
            if state_item.kind == "grant"
        ]
        assert grants == ["bob", "alice"], "a grant names an agent, not a user"
        assert "alice" not in {key.user for key, _ in await journal.indexed_through()}
        await journal.finish_erasure(erased.erasure.number)
        assert not [
            job
            for job in (*await journal.jobs(), *await journal.jobs(dead=True))
            if getattr(job.key, "user", "") == "alice"
        ]
    async with open_runtime(opened) as runtime:
        assert await runtime.session("bob", "chat").history() == kept
        assert len(await runtime.internals.journal.memories("bob")) == 1
        chat = runtime.session("alice", "chat")
        receipt = await chat.append([user_message("new"), user_message("newer")], key="k")
        assert (receipt.duplicate, receipt.seqs) == (False, (1, 2))
        assert not set(receipt.ids) & set(before)


async def forgetting_a_session_leaves_the_users_others(opened: OpenJournal) -> None:
    """The session's messages go, and its memories, working memory and synopsis of the user's."""
    async with open_runtime(opened) as runtime:
        alice = runtime.user("alice")
        for name in ("chat", "other"):
            await alice.session(name).append(user_message(f"said in {name}"))
        kept = await alice.session("other").history()
        sids = [(await alice.session(name).inspect()).sid for name in ("chat", "other")]
    items = tuple(
        StateItem(WORKING_KIND, name, _pack({"id": name, "scope": name, "text": "words"}))
        for name in ("chat", "other", "")
    )
    synopsis = StateItem(SYNOPSIS_KIND, "identity", _pack({"text": "words"}))
    async with running_journal(await opened()) as journal:
        own = await _remember(journal, "alice", "chat")
        await _remember(journal, "alice", "other")
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
    async with open_runtime(opened) as runtime:
        assert await runtime.session("alice", "other").history() == kept
        assert await runtime.session("alice", "chat").history() == []


async def a_note_has_a_digest_under_each_key(opened: OpenJournal) -> None:
    """Long-term memory finds users by digests under a key, or several: a note has them all."""
    keys = ("1" * 64, "", "2" * 64)
    async with running_journal(await opened()) as journal:
        await journal.change_settings({DIGEST_KEYS: encode_digest_keys(keys)})
        of_user = (await journal.erase("alice")).erasure
        of_session = (await journal.erase("bob", "chat")).erasure
    digests = [Digests(key) for key in keys]
    assert of_user.owners == tuple(one.owner("alice", None) for one in digests)
    assert of_session.owners == tuple(one.owner("bob", "chat") for one in digests)
    async with running_journal(await opened()) as journal:
        assert list(await journal.erasures()) == [of_user, of_session]


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
