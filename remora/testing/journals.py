"""What every `Journal` must do, as checks that anyone who writes one can run (S1.02, S2.16, S3.26).

Each is given an async function that opens the journal: an empty one the first time, the same again the next time::

    @pytest.mark.parametrize("check", JOURNAL_CHECKS, ids=lambda check: check.__name__)
    async def test_my_journal(check, tmp_path):
        await check(lambda: MyJournal.open(tmp_path / "journal"))

The checks run a whole runtime over it and look at what a user would notice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from remora.actors.policies import BufferPolicy
from remora.config import Config
from remora.errors import InvalidMessage
from remora.identity import SessionKey, UserKey
from remora.models.ports import Line
from remora.runtime.log import Job, JobBuried, JobRevived
from remora.runtime.supervisor import durable
from remora.runtime.system import Runtime
from remora.storage.ports import Journal
from remora.storage.records import JobsStarted, RecordSpec

__all__ = ["JOURNAL_CHECKS", "OpenJournal"]

OpenJournal: TypeAlias = Callable[[], Awaitable[Journal]]
"""Opens a journal: the same one each time."""

_PLAIN: dict[str, Any] = {"tokens": {"counter": "heuristic"}, "long_term": {"enabled": False}, "models": {"embedder": "none"}}


class _Joined:
    """A summary that leaves nothing out."""

    name = "joined"

    async def summarize(self, previous: str | None, lines: Sequence[Line], *, max_tokens: int) -> str:  # noqa: ARG002
        return " ".join([*([previous] if previous else []), *(line.text for line in lines)])


@asynccontextmanager
async def _runtime(opened: OpenJournal, **options: Any) -> AsyncIterator[Runtime]:
    async with Runtime.in_memory(config=Config.from_dict(_PLAIN), journal=opened, **options) as runtime:
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
        assert [listing.key.session for listing in await runtime.user("alice").sessions()] == ["one", "two"]


async def a_fold_keeps_what_it_takes(opened: OpenJournal) -> None:
    """What is folded is in the summary, before and after opening again, and in the history for ever."""
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
        assert [message.content for message in await chat.history(at=6)] == [f"m{n}" for n in range(1, 7)]


async def settings_are_set_once(opened: OpenJournal) -> None:
    """The first value stays."""
    journal = await opened()
    assert await journal.setting("colour") is None
    assert await journal.setting("colour", "blue") == "blue"
    assert await journal.setting("colour", "red") == "blue"
    await journal.aclose()


async def settings_change_together(opened: OpenJournal) -> None:
    """Several at once, those that were set and those that were not; the others stay, and all of it is there again."""
    journal = await opened()
    await journal.setting("colour", "blue")
    await journal.setting("shape", "round")
    await journal.change({"colour": "red", "size": "big", "odd": 'it\'s \u2028 {"json": 1}'})
    assert await journal.setting("colour", "green") == "red"
    await journal.change({"size": ""})
    await journal.aclose()
    journal = await opened()
    names = ("colour", "shape", "size", "odd")
    assert [await journal.setting(name) for name in names] == ["red", "round", "", 'it\'s \u2028 {"json": 1}']
    await journal.aclose()


async def what_an_actor_keeps_can_be_read(opened: OpenJournal) -> None:
    """Facets, each user's own, in the order in which they were first put."""
    async with _runtime(opened) as runtime:
        scope = runtime.shared("team")
        for name in ("zoe", "ann", "bo"):
            await scope.as_("zoe").grant(name, "own")
        await runtime.session("alice", "one").append(_said("hello"))
        (key,) = [key for key, _ in await runtime.journal.flushed() if isinstance(key, UserKey)]
        grants = [facet.name for facet in await runtime.journal.facets(key) if facet.kind == "grant"]
        assert grants == ["zoe", "ann", "bo"]
        assert list(await runtime.journal.facets(SessionKey("alice", "one"))) == []
        assert list(await runtime.journal.facets(UserKey("nobody"))) == []


async def dead_letters_can_be_retried_and_dropped(opened: OpenJournal) -> None:
    """A job that failed for good stays, with its reason, until it is retried or dropped; both hold after opening again."""
    key = SessionKey("alice", "chat")
    jobs = tuple(Job(f"job-{n}", "elsewhere", key, RecordSpec(1, (f"m{n}",))) for n in range(3))
    async with _runtime(opened) as runtime:
        view = await runtime.session(*key).inspect()
        await runtime.session(*key).append(_said("hello"))
        await durable(runtime.journal, [JobsStarted(view.sid, jobs)])
        await durable(runtime.journal, [JobBuried(job.id, 4, "broken") for job in jobs])
    async with _runtime(opened) as runtime:
        assert [(job.id, job.attempts, job.error, job.dead) for job in await runtime.dead_letters()] == [
            (job.id, 4, "broken", True) for job in jobs
        ]
        assert await runtime.retry_dead_letters(["job-1"]) == 1
        assert await runtime.drop_dead_letters(["job-2"]) == 1
        await durable(runtime.journal, [JobRevived("job-2"), JobRevived("none such")])
    async with _runtime(opened) as runtime:
        assert [job.id for job in await runtime.dead_letters()] == ["job-0"]
        (waiting,) = await runtime.journal.jobs()
        assert (waiting.id, waiting.attempts, waiting.not_before, waiting.payload) == ("job-1", 0, 0.0, jobs[1].payload)
        assert waiting.resumed, "an earlier attempt may have had effects, which must not be doubled"


JOURNAL_CHECKS: tuple[Callable[[OpenJournal], Awaitable[None]], ...] = (
    what_was_acknowledged_is_there_again,
    a_batch_is_all_or_nothing,
    a_key_has_one_effect,
    sessions_and_users_are_apart,
    a_fold_keeps_what_it_takes,
    clearing_keeps_the_history,
    the_past_can_be_looked_at,
    settings_are_set_once,
    settings_change_together,
    what_an_actor_keeps_can_be_read,
    dead_letters_can_be_retried_and_dropped,
)
"""Each takes what opens an empty journal, the same one each time."""
