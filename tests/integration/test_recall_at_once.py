"""What was acknowledged is recalled at once: not indexed, after a restart, and never too much."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Config, Runtime, User, quote_memories
from remora.errors import ModelUnavailable, OutcomeUnknown
from remora.storage.memory import MemoryJournal, MemoryStore
from remora.testing import FaultyJournal, HashEmbedder
from tests.integration.remembering import CONFIG

pytestmark = pytest.mark.anyio


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


async def texts(user: Any, query: str = "tea", **options: Any) -> list[str]:
    return sorted(one.text for one in await user.recall(query, **{"limit": 100, **options}))


def configured(**recall: Any) -> Config:
    return Config.from_dict(
        {"tokens": {"counter": "heuristic"}, "recall": {"deadline_s": 600, **recall}}
    )


class Refusing(MemoryStore):
    """A store that takes no rows: what is recorded stays where it is."""

    async def add(self, *_: Any, **__: Any) -> None:
        await anyio.sleep_forever()


class Stuck(MemoryStore):
    """A store that removes no more rows, once it is told so."""

    stuck = False

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        if self.stuck:
            await anyio.sleep_forever()
        return await super().delete(user, ids)


class Counting(HashEmbedder):
    """Counts how often each text was embedded."""

    def __init__(self) -> None:
        super().__init__(16)
        self.texts: list[str] = []
        self.away = False

    async def embed(self, texts: Sequence[str]) -> Any:
        if self.away and len(texts) and not texts[0].startswith("tea?"):
            raise ModelUnavailable("away")
        self.texts += texts
        return await super().embed(texts)


@asynccontextmanager
async def in_memory(**options: Any) -> AsyncIterator[User]:
    """A user of a runtime in memory, whose rows are indexed when somebody asks for it."""
    options = {"embedder": HashEmbedder(16), "config": configured(), **options}
    options.setdefault("store", MemoryStore(16))
    async with Runtime.in_memory(**options) as runtime:
        yield runtime.user("ann")


async def test_what_is_said_in_one_chat_is_known_in_another(tmp_path: Path) -> None:
    """At once, in recalls, contexts and tools; after a restart; and once when it is indexed."""
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        user = runtime.user("ann")
        assert await texts(user) == []
        await user.session("one").append([said("I drink tea."), said("With milk?", "assistant")])
        await user.remember("Prefers green tea", type="preference")
        assert await texts(user) == ["I drink tea.", "Prefers green tea", "With milk?"]
        context = await user.session("two").load(query="which tea?")
        assert {one.text for one in context.memories} >= {"I drink tea.", "Prefers green tea"}
        answer = await user.tools().call("recall_from_memory", {"keywords": ["tea"]})
        assert "I drink tea." in str(answer)
        assert [len(one) for one in await user.recall_many(["tea", "milk"], limit=2)] == [2, 2]
        assert "I drink tea." in quote_memories(await user.recall("tea", limit=3))
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        user = runtime.user("ann")
        assert await texts(user) == ["I drink tea.", "Prefers green tea", "With milk?"]
        before = await user.recall("milk tea")
        await user.session("one").flush()
        await runtime.settle()
        after = await user.recall("milk tea")
        assert [(one.text, one.id) for one in after] == [(one.text, one.id) for one in before]
        assert [one.score for one in after] == pytest.approx([one.score for one in before])
        assert await texts(runtime.user("bob")) == []


@pytest.mark.parametrize("hot_mb", [0, 64])
async def test_scopes_hold_for_what_is_not_indexed(hot_mb: int) -> None:
    """Agents, sessions and types narrow a recall as they do for indexed rows. What one member of a
    shared scope records, another one finds.
    """
    config, store = configured(hot_mb=hot_mb), Refusing(16)
    async with Runtime.in_memory(config=config, embedder=HashEmbedder(16), store=store) as runtime:
        user = runtime.user("ann")
        await user.session("one").append(said("tea at one"))
        await user.session("two").append(said("tea at two"))
        await user.remember("tea is a fact", session="one")
        await user.agent("cook").remember("tea of the cook", type="procedural")
        assert len(await texts(user)) == 4
        assert await texts(user, session="one") == ["tea at one", "tea is a fact"]
        assert await texts(user, types="message") == ["tea at one", "tea at two"]
        assert await texts(user, types=["fact", "message"], session="one") == [
            "tea at one",
            "tea is a fact",
        ]
        assert await texts(user.agent("cook")) == ["tea of the cook"]
        context = await user.session("three").load(query="tea")
        assert "tea of the cook" not in {one.text for one in context.memories}
        scope = runtime.shared("kitchen")
        await scope.as_("ann").claim()
        await scope.as_("ann").grant("bob", "read")
        await scope.as_("ann").remember("the kettle is for tea")
        assert await texts(scope.as_("bob")) == ["the kettle is for tea"]


@pytest.mark.parametrize("hot_mb", [0, 64])
async def test_what_was_removed_is_not_recalled(hot_mb: int) -> None:
    """Cleared, deleted, rewound or forgotten: indexed or not, it is gone when the call returns."""
    async with in_memory(config=configured(hot_mb=hot_mb)) as user:
        chat = user.session("one")
        await chat.append([said("tea one"), said("tea two"), said("tea three")])
        await chat.flush()
        await chat.settle()
        await chat.append([said("tea four"), said("tea five")])
        assert len(await texts(user)) == 5
        await chat.rewind(4)
        assert "tea five" not in await texts(user)
        await chat.delete(positions=1)  # it is indexed
        assert await texts(user) == ["tea four", "tea one", "tea three"]
        await chat.clear()
        assert await texts(user) == ["tea one", "tea three"]
        await chat.append(said("tea six"))
        await user.session("two").append(said("tea seven"))
        await chat.forget()
        assert await texts(user) == ["tea seven"]
        await user.forget()
        assert await texts(user) == []
        await chat.append(said("tea eight"))
        assert await texts(user) == ["tea eight"]


async def test_forks_and_pruned_rows() -> None:
    """A fork's own messages are found; what was pruned is not found again."""
    async with in_memory() as user:
        chat = user.session("one")
        await chat.append([said("tea one"), said("tea two")])
        await chat.flush()
        await chat.settle()
        fork = await chat.fork("other")
        assert await texts(user) == ["tea one", "tea two"]
        await fork.append(said("tea three"))
        assert await texts(user) == ["tea one", "tea three", "tea two"]
        await user.prune(keep=1, strategy="fifo")
        assert await texts(user) == ["tea three", "tea two"]


async def test_redaction_comes_first() -> None:
    """Recall sees what long-term memory would have; what cannot be redacted is not found."""

    def redact(text: str) -> str:
        if "broken" in text:
            raise ValueError
        return text.replace("4711", "…")

    async with in_memory(redact_long_term=redact) as user:
        await user.session("one").append([said("tea for 4711"), said("tea, broken")])
        await user.session("two").append(said("tea 4711"))
        found = await texts(user)
        assert "4711" not in str(found)
        assert "tea …" in found
        assert not any("broken" in one for one in found)


async def test_the_oldest_is_found_whatever_the_backlog() -> None:
    """Beyond a bound by its words, in the forms that they have; the context says so. What was
    deleted is not found, nor another user's.
    """
    config = configured(unindexed_rows=3)
    async with in_memory(config=config, store=Refusing(16)) as user:
        await user.session("s0").append(
            [said("The lighthouse of my Großmutter is PETREL Rock"), said("A secret lighthouse")]
        )
        await user.session("s0").append([said("Übergabe am Freitag"), said("Пароль от сейфа 4711")])
        await user.session("s0").append(said("zanzibar: 4712"))
        for number in range(80):
            await user.session("s8").append(said(f"the name of the tea project number {number}"))
        await user.session("s0").append([said("1 x 100% 'quoted'"), said("我的祖母住在灯塔")])
        for number in range(40):
            await user.session(f"s{number % 7}").append(said(f"tea {number} with_a cake\\"))
        chat = user.session("new")
        for question, wanted in (
            ("What are the lighthouses called?", "Großmutter"),
            ("Wo ist der Leuchtturm der Großmutter?", "Großmutter"),
            ("petrel", "Großmutter"),
            ("übergabe?", "Freitag"),
            ("пароль?", "4711"),
            ("ПАРОЛЬ", "4711"),
            ("Which tea project name has zanzibar?", "4712"),
            ("祖母住在哪里?", "灯塔"),
        ):
            found = await user.recall(question, limit=1)
            assert wanted in found[0].text, question
            context = await chat.load(query=question)
            assert wanted in str(context.messages), question
            assert "newest 3 rows" in context.sources["long_term"].detail
            assert context.sources["long_term"].status == "ok"
        for odd in ("100%", "with_a cake\\", "' OR 1=1 --", "\ud800", "a\x00b"):
            await user.recall(odd)
        await user.session("s0").delete(positions=[1])
        assert "secret" not in str(await user.recall("secret lighthouse", limit=100))
        assert await texts(user, "tea", limit=4) != []
        await user.session("s5").append(said("tea 40"))
        assert "tea 40" in await texts(user)
    async with in_memory(config=config) as user:
        for number in range(6):
            await user.session(f"s{number}").append(said(f"tea {number}"))
        assert await texts(user) == [f"tea {number}" for number in range(6)]
        for number in range(6):
            await user.session(f"s{number}").settle()
        assert await texts(user) == [f"tea {number}" for number in range(6)]
        context = await user.session("new").load(query="tea?")
        assert context.sources["long_term"].detail == ""


@pytest.mark.parametrize("redacts", [False, True])
async def test_a_long_message_costs_its_user_no_recall(redacts: bool) -> None:
    """It is found by its beginning and its end, also when it is indexed; `history` has all of it.
    What a hook removes is removed before it is cut.
    """
    middle = "the quiet harbour had seven copper lanterns 4711 " * 20_000
    long = f"A report on figs. {middle} It was signed by Petrel."

    def redact(text: str) -> str:
        return text.replace("4711", "…")

    options = {"redact_long_term": redact} if redacts else {}
    async with in_memory(**options) as user:
        await user.session("one").append([said(long), said("My dog is called Bruno.")])
        for _ in range(2):
            for question, wanted in (
                ("figs", "figs"),
                ("signed Petrel", "Petrel"),
                ("dog", "Bruno"),
            ):
                found = await user.recall(question, limit=2)
                (text,) = [one.text for one in found if wanted in one.text]
                assert len(text) < 9_000
                assert ("4711" in text) == (not redacts and wanted != "Bruno")
            context = await user.session("two").load(query="What is my dog called?")
            assert "Bruno" in str(context.messages)
            await user.session("one").flush()
            await user.session("one").settle()
        assert (await user.session("one").history(limit=1))[0].content == long


async def test_a_text_is_embedded_once() -> None:
    """By the first recall, for the index as well; an append embeds nothing."""
    embedder = Counting()
    async with in_memory(embedder=embedder) as user:
        chat = user.session("one")
        await chat.append([said("tea one"), said("tea two")])
        assert embedder.texts == []
        await texts(user, "tea?")
        await texts(user, "tea? again")
        await chat.append(said("tea three"))
        await texts(user, "tea? once more")
        await chat.flush()
        await chat.settle()
        rows = [one for one in embedder.texts if not one.startswith("tea?")]
        assert sorted(rows) == ["User: tea one", "User: tea three", "User: tea two"]


async def test_words_are_searched_while_no_embedder_answers() -> None:
    """The rows are found by their words, and the context says that they are not embedded."""
    embedder = Counting()
    embedder.away = True
    async with in_memory(embedder=embedder) as user:
        await user.session("one").append(said("green tea"))
        assert await texts(user, "tea? green") == ["green tea"]
        context = await user.session("two").load(query="tea? green")
        assert "by words alone" in context.sources["long_term"].detail
        embedder.away = False
        await user.session("one").append(said("black tea"))
        context = await user.session("two").load(query="tea? green")
        assert context.sources["long_term"].detail == ""


class Watched(MemoryJournal):
    """Counts what a recall asks of the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []
        self.failing = False

    async def unindexed(self, user: str, limit: int, sessions: Any = None) -> Any:
        self.asked.append(sessions if sessions is None else sorted(sessions))
        if self.failing:
            raise OSError("away")
        return await super().unindexed(user, limit, sessions)


async def test_only_what_changed_is_read() -> None:
    """The first recall looks for all of a user's sessions; later ones read those with a write.
    Without long-term memory there is no tail to search, and nothing is read for one.
    """
    journal = Watched()
    async with in_memory(journal=journal) as user:
        for name in ("one", "two"):
            await user.session(name).append(said(f"tea of {name}"))
        for _ in range(3):
            await texts(user)
        assert journal.asked == [None]
        await user.session("two").append(said("more tea"))
        assert len(await texts(user)) == 3
        await texts(user, "other tea")
        assert journal.asked == [None, ["two"]]
    journal = Watched()
    config = Config.from_dict({"long_term": {"enabled": False}})
    async with in_memory(journal=journal, config=config, store=None) as user:
        await user.session("one").append(said("tea"))
        context = await user.session("two").load(query="tea")
        assert context.sources["long_term"].status == "off"
        assert journal.asked == []


async def test_a_journal_that_cannot_be_read_fails_no_recall() -> None:
    """What is indexed is found, the context says what is missing, and the next recall has all."""
    journal = Watched()
    async with in_memory(journal=journal) as user:
        await user.session("one").append(said("tea one"))
        await user.session("one").flush()
        await user.session("one").settle()
        await user.session("two").append(said("tea two"))
        journal.failing = True
        assert await texts(user) == ["tea one"]
        context = await user.session("new").load(query="tea")
        assert "could not be read" in context.sources["long_term"].detail
        journal.failing = False
        assert await texts(user) == ["tea one", "tea two"]


async def test_an_uncertain_append_is_found_when_it_is_known() -> None:
    """A retry that is answered with the first append's numbers wrote nothing itself."""
    faults: list[Any] = []
    journal = FaultyJournal(lambda: faults.pop() if faults else None)
    async with in_memory(journal=journal) as user:
        await user.session("one").append(said("tea one"))
        assert await texts(user) == ["tea one"]
        faults.append("kept")
        with pytest.raises(OutcomeUnknown):
            await user.session("one").append(said("tea two"), key="k")
        await texts(user)
        receipt = await user.session("one").append(said("tea two"), key="k")
        assert receipt.duplicate
        assert await texts(user) == ["tea one", "tea two"]


async def test_rows_are_found_once_while_they_are_indexed(tmp_path: Path) -> None:
    """However an index job and recalls interleave, each message is found, once."""
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        user = runtime.user("ann")
        chat = user.session("one")
        await runtime.ready()
        for number in range(3):
            await chat.append([said(f"tea {number} {n}") for n in range(4)])
            await chat.flush()
            for query in ("tea", "tea 1", "tea 2", "0 tea"):
                assert len(await texts(user, query)) == 4 * (number + 1)
        await runtime.settle()
        assert len(await texts(user)) == 12


async def test_dead_letters_are_found() -> None:
    """Messages and memories whose index job failed too often."""

    class Failing(MemoryStore):
        async def add(self, *_: Any, **__: Any) -> None:
            raise ValueError("never")

    config = Config.from_dict({"supervisor": {"max_attempts": 1}})
    async with in_memory(store=Failing(16), config=config) as user:
        await user.session("one").append(said("tea one"))
        await user.session("one").flush()
        await user.remember("tea two")
        assert await texts(user) == ["tea one", "tea two"]
        await user.session("one").settle()
        await user.settle()
        assert await texts(user) == ["tea one", "tea two"]
        await user.session("one").append(said("tea three"))
        assert await texts(user) == ["tea one", "tea three", "tea two"]


async def test_rows_keep_their_size_when_more_is_said() -> None:
    """A recall after each message, as turns have it: each memory has the tokens that it has in a
    fresh memory, and so a context has no more than it may.
    """
    async with in_memory() as user:
        session = user.session("chat")
        for number in range(10, 22):
            await session.append(said(f"tea number {number} with milk"))
            found = await user.recall("tea", limit=50)
        assert len(found) == 12
        (tokens,) = {one.tokens for one in found}
        assert tokens > 0


async def test_words_of_a_deleted_neighbour_are_not_searched() -> None:
    """Also where the neighbour was indexed and those around it are not, and nobody recalled in
    between; and nothing that recall holds has them.
    """
    async with in_memory() as user:
        session = user.session("chat")
        await session.append([said("We spoke of gardens."), said("My PIN is zyxwvut.")])
        await session.flush()
        await session.append([said("The weather is nice."), said("I like trains.")])
        found = await user.recall("zyxwvut")
        assert "turn" in found[0].parts
        await session.delete(found[0])
        await session.settle()
        for _ in range(2):
            for one in await user.recall("zyxwvut"):
                assert not {"turn", "window"} & one.parts.keys(), one.text
            await session.append(said("Another one."))


async def test_a_pruned_message_is_not_searched_while_its_neighbours_are_written_again() -> None:
    """It is between the neighbours of what was deleted, which are read from the journal."""

    def weigh(message: Any) -> float:
        return 0.0 if message["content"] == "tea 3" else 1.0

    store = Stuck(16)
    async with in_memory(store=store, scorer=weigh) as user:
        chat = user.session("chat")
        await chat.append([said(f"tea {number}") for number in range(7)])
        await chat.flush()
        await chat.settle()
        await user.prune(keep=6, strategy="importance")
        left = [f"tea {number}" for number in (0, 1, 2, 4, 5, 6)]
        assert await texts(user) == left
        store.stuck = True
        await chat.delete(positions=4)
        left.remove("tea 4")
        assert await texts(user) == left


async def recalled(session: Any) -> list[str]:
    """What a turn of the session recalls, next to what it shows."""
    context = await session.load(query="tea", max_tokens=4_000)
    return sorted(one.text for one in context.memories)


async def test_a_conversation_is_not_read_for_its_own_turns() -> None:
    """Other sessions' turns see what it says, at once."""
    journal = Watched()
    async with in_memory(journal=journal, store=Refusing(16)) as user:
        other, chat = user.session("other"), user.session("chat")
        await other.append(said("tea of another"))
        for number in range(5):
            await chat.append(said(f"tea {number}"))
            assert await recalled(chat) == ["tea of another"]
        assert journal.asked == [None]
        assert await recalled(other) == [f"tea {number}" for number in range(5)]
        await other.append(said("more tea of another"))
        await user.remember("tea is green", session="chat")
        expected = ["more tea of another", "tea is green", "tea of another"]
        assert await recalled(chat) == expected
        await chat.append(said("tea again"))
        assert await recalled(chat) == expected


async def test_what_is_deleted_is_not_recalled_in_its_own_session() -> None:
    """Neither a message that was read and is not indexed, nor an indexed one that a stuck job is to
    remove.
    """
    store = Stuck(16)
    async with in_memory(store=store) as user:
        chat = user.session("chat")
        (old,) = (await chat.append(said("tea of old"))).ids
        await chat.flush()
        await chat.settle()
        await chat.clear()
        await chat.append([said("tea one"), said("tea two")])
        for _ in range(2):
            assert await texts(user) == ["tea of old", "tea one", "tea two"]
            assert await recalled(chat) == ["tea of old"]
        await chat.delete(positions=0)
        await chat.append(said("tea three"))
        assert await recalled(chat) == ["tea of old"]
        store.stuck = True
        await chat.delete(old)
        assert await recalled(chat) == []


@pytest.mark.parametrize("loaded_before", [False, True])
async def test_what_a_load_does_not_show_of_its_session_is_recalled(loaded_before: bool) -> None:
    """What came after the moment that is shown, and a call that waits for its result."""
    async with in_memory() as user:
        chat = user.session("chat")
        await chat.append([said("tea one"), said("tea two")])
        if loaded_before:
            assert await recalled(chat) == []
        await chat.append(said("tea three"))
        past = await chat.load(query="tea", at=2)
        assert [one.text for one in past.memories] == ["tea three"]
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        asked: dict[str, Any] = {"role": "assistant", "content": "tea in Lisbon?"}
        asked["tool_calls"] = [call]
        await chat.append(asked)
        context = await chat.load(query="tea")
        assert "tea in Lisbon?" not in [one["content"] for one in context.messages[-1:]]
        assert ["tea in Lisbon?" in one.text for one in context.memories] == [True]


async def test_a_load_that_comes_while_a_tail_is_read() -> None:
    """What it shows may have been said after that reading began."""
    journal = Held()
    async with Runtime.in_memory(
        config=configured(), embedder=HashEmbedder(16), store=MemoryStore(16), journal=journal
    ) as runtime:
        recall = runtime.internals.planner.tiers.recall
        assert recall is not None
        chat = runtime.session("ann", "chat")
        await chat.append(said("tea one"))
        async with anyio.create_task_group() as tasks:
            first = {("chat", 1)}
            tasks.start_soon(partial(recall, "ann", "tea", limit=9, without=first, newest=1))
            await journal.reached.wait()
            await chat.append(said("tea two"))
            shown = {("chat", 1), ("chat", 2)}
            tasks.start_soon(partial(recall, "ann", "tea", limit=9, without=shown, newest=2))
            await anyio.wait_all_tasks_blocked()
            journal.go_on.set()
        await chat.append(said("tea three"))
        shown = {("chat", 1), ("chat", 3)}
        found = await recall("ann", "tea", limit=9, without=shown, newest=3)
        assert [one.text for one in found] == ["tea two"]


class Held(MemoryJournal):
    """Holds the answer of the first reading of a tail."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = anyio.Event(), anyio.Event()

    async def unindexed(self, user: str, limit: int, sessions: Any = None) -> Any:
        found = await super().unindexed(user, limit, sessions)
        self.reached.set()
        await self.go_on.wait()
        return found
