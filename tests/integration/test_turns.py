"""Turns: one request of a user, from their message to the reply; and a session kept for one caller."""  # noqa: E501

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from remora import Config, Message, Runtime, Session, blocking
from remora.api.turn import Query
from remora.errors import (
    InvalidId,
    InvalidInput,
    InvalidMessage,
    KeyConflict,
    RuntimeClosed,
    SessionBusy,
    TurnClosed,
)
from remora.testing import HashEmbedder, count_probes
from tests.harness import user
from tests.integration.conftest import PLAIN, PLAIN_TREE, Open
from tests.integration.remembering import CONFIG

pytestmark = pytest.mark.anyio
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call-1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    ],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call-1", "content": "noon"}
HALF: dict[str, Any] = {"role": "assistant", "content": "It is", "metadata": {"incomplete": True}}


@pytest.fixture(params=["sqlite", "memory"])
def open_small(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A runtime with a small buffer, which keeps two actors in memory."""
    config = Config.from_dict(
        {**PLAIN_TREE, "buffer": {"token_limit": 500}, "activation": {"max_live": 2}}
    )
    if request.param == "sqlite":
        return lambda: Runtime(tmp_path / "memory", config=config)
    return lambda: Runtime.in_memory(config=config)


async def said(chat: Session) -> list[Any]:
    return [one.content for one in await chat.history()]


def texts(messages: list[Message]) -> list[Any]:
    return [one.content for one in messages]


async def answer(chat: Session, question: str, reply: str, key: str | None = None) -> list[Any]:
    """What a turn shows the model; the reply is stored."""
    async with chat.turn(question, key=key) as turn:
        assert not turn.replayed
        shown = [one["content"] for one in turn.context.messages]
        await turn.reply(reply)
    return shown


async def test_a_turn_and_its_retry(open_runtime: Open) -> None:
    """The retry gives the stored reply, and writes nothing."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        async with chat.turn("What time is it?", key="r1") as turn:
            assert (turn.key, turn.replayed, turn.resumed, turn.replies) == ("r1", False, False, [])
            assert turn.context.messages == [user("What time is it?")]
            receipt = await turn.reply("Noon.")
            assert receipt.seqs == (2,)
        await answer(chat, "And now?", "One.", key="r2")
        async with chat.turn("What time is it?", key="r1") as turn:
            assert turn.replayed
            assert texts(turn.replies) == ["Noon."]
            assert turn.replies[0].id == receipt.ids[0]
            with pytest.raises(TurnClosed, match="answered before"):
                _ = turn.context
            with pytest.raises(TurnClosed, match="answered before"):
                await turn.reply("Noon again.")
            assert len((await turn.load()).messages) == 2  # as it was then
        assert await said(chat) == ["What time is it?", "Noon.", "And now?", "One."]


async def test_turns_run_one_after_the_other(open_runtime: Open) -> None:
    """Of all handles of a session, in order; an append beside them does not wait."""
    async with open_runtime() as runtime:
        begun = []

        async def ask(number: int) -> None:
            async with runtime.session("alice", "one").turn(f"q{number}") as turn:
                begun.append(number)
                if number == 0:
                    await runtime.session("alice", "one").append(user("aside"))
                    await runtime.session("alice", "two").append(user("other"))
                await turn.reply(f"a{number}")

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(ask, number)
        assert begun == [0, 1, 2, 3]
        assert await said(runtime.session("alice", "one")) == [
            "q0", "aside", "a0", "q1", "a1", "q2", "a2", "q3", "a3",
        ]  # fmt: skip
        assert len(runtime.internals.turns) == 0


async def test_the_same_request_twice_at_once(open_runtime: Open) -> None:
    """The second waits for the first, and gets its reply. One that is answered does not wait for
    another.
    """
    async with open_runtime() as runtime:
        chat, replayed = runtime.session("alice", "one"), []

        async def ask() -> None:
            async with chat.turn("hi", key="r1") as turn:
                replayed.append(turn.replayed)
                if not turn.replayed:
                    await anyio.wait_all_tasks_blocked()
                    await turn.reply("hello")
                assert texts(turn.replies) == ["hello"]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(ask)
        assert replayed == [False, True]
        assert await said(chat) == ["hi", "hello"]
        async with chat.turn("another"):
            await ask()
            with pytest.raises(KeyConflict):
                await answer(chat, "something else", "hello", key="r1")


async def test_those_that_wait() -> None:
    """Nothing is written for those that are refused, as there are too many, or as the runtime
    closes.
    """
    config = Config.from_dict({**PLAIN_TREE, "turns": {"max_waiting": 0}})
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("alice", "one")
        async with chat.turn("first") as turn:
            with pytest.raises(SessionBusy):
                await answer(chat, "second", "no", key="r2")
            await turn.reply("yes")
        assert await said(chat) == ["first", "yes"]
        assert await answer(chat, "second", "now", key="r2") == ["first", "yes", "second"]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        async with anyio.create_task_group() as tasks, chat.turn("first") as turn:

            async def wait() -> None:
                with pytest.raises(RuntimeClosed):
                    await answer(chat, "second", "no")

            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await runtime.aclose()
            with pytest.raises(RuntimeClosed):
                await turn.reply("too late")


async def test_what_a_key_names(open_runtime: Open) -> None:
    """One request of one session: another request under it is refused; keys of appends are apart;
    a copy of the session knows none of them.
    """
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("Before"), key="r1")
        await answer(chat, "What?", "That.", key="r1")
        others: tuple[Any, ...] = ("Other?", [user("What?"), user("More?")])
        for number, given in enumerate(others):
            with pytest.raises(KeyConflict, match="message 2"):
                async with chat.turn(given, key="r1"):
                    raise AssertionError
            async with runtime.session("alice", f"two {number}").turn(given, key="r1") as turn:
                assert not turn.replayed
        assert (await chat.append(user("Before"), key="r1")).seqs == (1,)
        assert await said(chat) == ["Before", "What?", "That."]
        copy = await chat.fork("copy")
        assert await answer(copy, "What?", "Again.", key="r1") == [
            "Before", "What?", "That.", "What?",
        ]  # fmt: skip
        for session, reply in ((copy, "Again."), (chat, "That.")):
            async with session.turn("What?", key="r1") as turn:
                assert texts(turn.replies) == [reply]


async def test_resumed_after_a_failure(open_runtime: Open) -> None:
    """The user's message is not stored twice, and what the tools said is there. An incomplete reply
    is replaced in one write; the model does not see it, later turns see what stands in its place.
    """
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        with pytest.raises(ConnectionError):
            async with chat.turn("What time is it?", key="r1") as turn:
                await turn.reply(CALL)
                await turn.reply(RESULT)
                await turn.reply(HALF)
                assert [one.role for one in turn.replies] == ["assistant", "tool"]
                raise ConnectionError
        assert await said(chat) == ["What time is it?", None, "noon", "It is"]
        assert [one["content"] for one in (await chat.load()).messages] == await said(chat)
        async with chat.turn("What time is it?", key="r1") as turn:
            assert (turn.replayed, turn.resumed) == (False, True)
            assert [one.role for one in turn.replies] == ["assistant", "tool"]
            assert turn.context.messages == [user("What time is it?"), CALL, RESULT]
            with count_probes() as probes:
                await turn.reply("It is noon.")
            assert probes["incomplete_reply_replaced"] == 1
            assert texts(turn.replies) == [None, "noon", "It is noon."]
        assert await said(chat) == ["What time is it?", None, "noon", "It is noon."]
        async with chat.turn("What time is it?", key="r1") as turn:
            assert texts(turn.replies) == [None, "noon", "It is noon."]


@pytest.mark.parametrize("overtaken", [False, True])
async def test_a_retry_recalls_nothing_of_its_own_reply(overtaken: bool) -> None:
    """Neither the half that it replaces, nor what came after it: the model sees the conversation
    as it was then.
    """
    question = "Which cities in Portugal should I visit?"
    half = {**HALF, "content": "In Portugal you should visit Lisbon, Porto, and"}
    async with Runtime.in_memory(config=CONFIG, embedder=HashEmbedder()) as runtime:
        await runtime.ready()
        chat = runtime.session("alice", "one")
        await runtime.session("alice", "old").append(user("I like cities by the sea in Portugal."))
        with pytest.raises(ConnectionError):
            async with chat.turn(question, key="r1") as turn:
                await turn.reply(half)
                raise ConnectionError
        if overtaken:
            await answer(chat, "Or cities in Spain?", "In Spain and Portugal visit Vigo.")
        await runtime.settle()
        async with chat.turn(question, key="r1") as turn:
            shown = str(turn.context.messages)
            assert "by the sea" in shown
            assert "Lisbon" not in shown
            assert "Spain" not in shown
            await turn.reply("Lisbon, Porto, and Braga.")


async def test_the_calls_to_run_next(open_runtime: Open) -> None:
    """Also where each step calls a tool by the same id, as some models do, and in the retry."""
    named = [{**CALL["tool_calls"][0], "id": one} for one in ("call-1", "call-2")]
    both: dict[str, Any] = {**CALL, "tool_calls": named}
    other: dict[str, Any] = {**RESULT, "tool_call_id": "call-2"}
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        with pytest.raises(ConnectionError):
            async with chat.turn("when?", key="k", query=False) as turn:
                assert turn.open_calls == []
                await turn.reply([CALL, RESULT])
                assert turn.open_calls == []
                await turn.reply([CALL])
                assert [one.id for one in turn.open_calls] == ["call-1"]
                await turn.reply(RESULT)
                await turn.reply([both, other])
                raise ConnectionError
        async with chat.turn("when?", key="k", query=False) as turn:
            assert [one.id for one in turn.open_calls] == ["call-1"]
            assert turn.open_calls[0].function.name == "now"
            await turn.reply([RESULT, {"role": "assistant", "content": "noon"}])
            assert turn.open_calls == []
        async with chat.turn("when?", key="k", query=False) as turn:
            assert (turn.replayed, turn.open_calls) == (True, [])


async def test_resumed_after_later_turns(open_runtime: Open) -> None:
    """The model sees the conversation as it was then, with what the turn stored itself."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        await answer(chat, "hi", "hello", key="r0")
        async with chat.turn("What time is it?", key="r1") as turn:
            await turn.reply(CALL)
            await turn.reply(HALF)
        await answer(chat, "later", "much later", key="r2")
        async with chat.turn("What time is it?", key="r1") as turn:
            await turn.reply(RESULT)
            shown = (await turn.load()).messages
            assert shown == [
                user("hi"),
                {"role": "assistant", "content": "hello"},
                user("What time is it?"),
                CALL,
                RESULT,
            ]
            await turn.reply("Noon.")
        assert await said(chat) == [
            "hi", "hello", "What time is it?", None, "later", "much later", "noon", "Noon.",
        ]  # fmt: skip


@pytest.mark.parametrize("change", ["clear", "rewind", "delete", "forget"])
async def test_a_turn_that_was_taken_back_begins_again(open_runtime: Open, change: str) -> None:
    """Under the same key; a reply to the old one is refused."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("before"))

        async def take_back() -> None:
            match change:
                case "clear":
                    await chat.clear()
                case "rewind":
                    await chat.rewind(1)
                case "delete":
                    await chat.delete(positions=range(1, await chat.size()))
                case _:
                    await chat.forget()

        before = ["before"] if change in {"rewind", "delete"} else []
        await answer(chat, "hi", "hello", key="r1")
        await take_back()
        async with chat.turn("hi", key="r1") as turn:
            assert (turn.replayed, turn.resumed) == (False, False)
            assert [one["content"] for one in turn.context.messages] == [*before, "hi"]
            if change == "rewind":
                before = []  # it is gone after the second time
                await chat.rewind(0)
            else:
                await take_back()
            with count_probes() as probes, pytest.raises(TurnClosed, match="nothing was written"):
                await turn.reply("too late")
            assert probes["turn_gone"] == 1
        async with chat.turn("other words", key="r1") as turn:
            assert [one["content"] for one in turn.context.messages] == [*before, "other words"]
            await turn.reply("the third")
        async with chat.turn("other words", key="r1") as turn:
            assert texts(turn.replies) == ["the third"]


@pytest.mark.parametrize("whose", ["session", "user"])
@pytest.mark.parametrize("again", ["the same text", "more than the buffer holds"])
async def test_a_turn_does_not_outlive_an_erasure(open_small: Open, whose: str, again: str) -> None:
    """The next session of that name numbers its messages as the erased one did."""
    async with open_small() as runtime:
        chat = runtime.session("alice", "one")

        async def erase() -> list[Any]:
            await (chat if whose == "session" else runtime.user("alice")).forget()
            texts = ["hi", "important"]
            if again != "the same text":
                texts = [f"new {number} " + "word " * 60 for number in range(12)]
            for text in texts:
                await chat.append(user(text))
            await chat.settle()
            return texts

        async with chat.turn(user("hi", id="own"), key="r1", query=False) as turn:
            await turn.reply(HALF)
            new = await erase()
            shown = (await turn.load()).messages
            assert shown == (await chat.load()).messages
            for _ in range(2):
                with pytest.raises(TurnClosed, match="forgotten"):
                    await turn.reply("the secret")
            assert await said(chat) == new

        async def secrets() -> AsyncIterator[str]:
            yield "the "
            await erase()
            yield "secret"

        async with chat.turn("hi", key="r2", query=False) as turn:
            with pytest.raises(TurnClosed, match="forgotten"):
                [chunk async for chunk in turn.stream(secrets())]
        assert await said(chat) == new
        async with chat.turn("hi", query=False) as turn:
            passing = turn.stream(secrets())
            assert [await anext(passing), await anext(passing)] == ["the ", "secret"]
        assert await said(chat) == new  # nothing of the stream that was cut


async def test_a_turn_outlives_an_eviction(open_small: Open) -> None:
    """It is of the same session when that is in memory again."""
    async with open_small() as runtime:
        chat = runtime.session("alice", "one")
        async with chat.turn("hi", key="r1", query=False) as turn:
            await turn.reply(HALF)
            for number in range(6):
                await runtime.session("alice", f"other {number}").append(user("hi"))
                await runtime.settle()
            before = runtime.statistics().registry.activations
            await turn.reply("hello")
            assert runtime.statistics().registry.activations > before
        assert await said(chat) == ["hi", "hello"]


async def test_misuse(open_runtime: Open) -> None:
    """Each is refused before anything is written."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        turn = chat.turn("hi")
        call: Any
        given: Any
        told: str | None
        for call in (turn.reply("no"), turn.load()):
            with pytest.raises(TurnClosed, match="enter the turn first"):
                await call
        async with turn:
            with pytest.raises(InvalidMessage, match="role user") as refused:
                await turn.reply([{"role": "assistant", "content": "no"}, user("me?")])
            assert refused.value.index == 1
            with pytest.raises(InvalidMessage):
                await turn.reply([])
            with pytest.raises(TurnClosed, match="entered once"):
                await turn.__aenter__()
            await turn.reply("yes")
        for call, told in (
            (turn.reply("no"), "has ended"),
            (turn.load(), "has ended"),
            (turn.__aenter__(), "entered once"),
        ):
            with pytest.raises(TurnClosed, match=told):
                await call
        for given, error, told in (
            ({"role": "assistant", "content": "no"}, InvalidMessage, "role assistant"),
            ([], InvalidMessage, None),
            ([user("a", id="m1"), user("b", id="m1")], InvalidMessage, "the id 'm1' of another"),
        ):
            with pytest.raises(error, match=told):
                await chat.turn(given).__aenter__()
        with pytest.raises(InvalidId):
            chat.turn("hi", key="")
        for bad in ({"query": 3}, {"query": True}, {"max_tokens": -1}, {"timeout_s": "soon"}):
            with pytest.raises(InvalidInput):
                chat.turn("hi", **bad)
        assert await said(chat) == ["hi", "yes"]
        assert len(runtime.internals.turns) == 0
    with pytest.raises(RuntimeClosed):
        await chat.turn("hi").__aenter__()


async def test_after_a_restart(tmp_path: Path) -> None:
    """What was answered is replayed, what was cut is resumed, also when it left the buffer. A retry
    is recognized by what is stored, which a hook may have changed.
    """
    options: Any = {"config": PLAIN, "redact": lambda text: text.replace("4711", "####")}
    async with Runtime(tmp_path, **options) as runtime:
        chat = runtime.session("alice", "one")
        assert await answer(chat, "My PIN is 4711", "one", key="r1") == ["My PIN is ####"]
        async with chat.turn("second", key="r2") as turn:
            await turn.reply(HALF)
    async with Runtime(tmp_path, **options) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([user("later"), {"role": "assistant", "content": "yes"}])
        await chat.truncate_to_size(1)
        async with chat.turn("My PIN is 4711", key="r1") as turn:
            assert texts(turn.replies) == ["one"]
        async with chat.turn("second", key="r2") as turn:
            assert turn.resumed
            assert [one["content"] for one in turn.context.messages] == [
                "My PIN is ####", "one", "second",
            ]  # fmt: skip
            await turn.reply("two")
        assert await said(chat) == ["My PIN is ####", "one", "second", "later", "yes", "two"]
    async with Runtime(tmp_path, **options) as runtime:
        async with runtime.session("alice", "one").turn("second", key="r2") as turn:
            assert texts(turn.replies) == ["two"]


async def test_the_users_text_is_what_is_recalled(tmp_path: Path) -> None:
    """Unless the caller says otherwise."""
    async with Runtime(tmp_path, config=CONFIG) as runtime:
        alice = runtime.user("alice")
        await alice.remember("Alice is allergic to peanuts.")
        await runtime.settle()
        chat = alice.session("one")
        queries: list[tuple[Query, int]] = [(None, 1), (False, 0), ("peanuts", 1)]
        for query, found in queries:
            async with chat.turn("Is there something with peanuts?", query=query) as turn:
                assert len(turn.context.memories) >= found
                assert bool(turn.context.memories) is bool(found)
                assert not (await turn.load(False)).memories
                assert (await turn.load("peanuts", max_tokens=2_000)).tokens <= 2_000


# -- a session kept for one caller -----------------------------------------------------------------


async def test_blocks_run_one_after_the_other() -> None:
    """What eight callers append in their blocks does not mix, in the order of their entering."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")

        async def run(number: int) -> None:
            async with chat.exclusive():
                for part in range(3):
                    await chat.append({"role": "user", "content": f"{number}.{part}"})
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(run, number)
        said = [message.content for message in await chat.history()]
        assert said == [f"{number}.{part}" for number in range(8) for part in range(3)]


async def test_blocks_wait_for_turns_and_turns_for_blocks() -> None:
    """Both are in one line; other sessions go on, and so does what is appended without either."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat, done = runtime.session("alice", "chat"), []

        async def turn() -> None:
            async with chat.turn("question") as turn:
                await turn.reply("answer")
            done.append("turn")

        async with anyio.create_task_group() as tasks:
            async with chat.exclusive():
                tasks.start_soon(turn)
                await anyio.wait_all_tasks_blocked()
                await chat.append({"role": "user", "content": "from outside"})
                async with runtime.session("alice", "other").exclusive():
                    done.append("block")
        assert done == ["block", "turn"]
        said = [message.content for message in await chat.history()]
        assert said == ["from outside", "question", "answer"]


async def test_a_block_ends_however_it_is_left() -> None:
    """An exception and a cancellation let the next one in; nothing waits for who gave up. Who waits
    longer than `turns.wait_s` is refused; nothing ran.
    """
    config = Config.from_dict({**PLAIN_TREE, "turns": {"wait_s": 0.01}})
    for settings in (PLAIN, config):
        async with Runtime.in_memory(config=settings) as runtime:
            chat = runtime.session("alice", "chat")
            with pytest.raises(ValueError, match="odd"):
                async with chat.exclusive():
                    raise ValueError("odd")
            block = chat.exclusive()
            async with block:
                if settings is config:
                    with pytest.raises(SessionBusy):
                        await chat.exclusive().__aenter__()
                    continue
                with anyio.move_on_after(0) as scope:
                    await chat.exclusive().__aenter__()
                assert scope.cancelled_caught
            with pytest.raises(TurnClosed):
                await block.__aenter__()
            async with chat.exclusive():
                pass


def test_blocks_of_threads() -> None:
    """`remora.blocking` has it with ``with``."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        with chat.exclusive():
            chat.append({"role": "user", "content": "hello"})
        with chat.exclusive():
            assert chat.size() == 1
