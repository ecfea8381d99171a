"""The OpenAI Agents SDK over remora, with its own runner and scripted models; offline."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from remora import BufferPolicy, Runtime
from remora.errors import CommitFailed, InvalidInput, InvalidMessage
from remora.testing import CommitFault, FaultyJournal, HashEmbedder, ScriptedChatModel
from tests.configs import PLAIN, RECALLING
from tests.conformance import (
    FLAT,
    THOUGHT,
    URL,
    Blocking,
    Call,
    Connected,
    Conversations,
    Driver,
    Given,
    MemoryTools,
    Messages,
    Recalling,
    late,
    look_at,
    parts_of,
)

pytestmark = pytest.mark.anyio
agents, testing = late("agents"), late("agents.testing")
adapter = late("remora.adapters.openai_agents")
PICTURE = {"type": "input_image", "image_url": "data:,", "detail": "low"}
REASONS: Any = {"type": "reasoning", "id": "rs_2", "summary": []}
ITEMS: list[Any] = [
    {"role": "user", "content": "hello"},
    {"role": "user", "content": [{"type": "input_text", "text": "look"}, PICTURE]},
    {**REASONS, "summary": [{"type": "summary_text", "text": "I should look."}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "id": "fc_1"},
    REASONS,
    {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "a ship"},
    {
        "type": "function_call_output",
        "call_id": "c2",
        "output": [{"type": "input_text", "text": "a gull"}],
    },
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {**REASONS, "id": "rs_3"},
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "A ship.", "annotations": []}],
    },
]


@pytest.fixture(scope="module", autouse=True)
def no_tracing() -> None:
    """The SDK makes its exporter at first use, which reads files: here, and not on an event loop."""  # noqa: E501
    agents.set_trace_processors([])
    assert testing.ScriptedModel
    assert adapter.RemoraSession


def said(text: str) -> Any:
    return {"role": "user", "content": text}


def call(id_: str) -> Any:
    return {"type": "function_call", "call_id": id_, "name": "look", "arguments": "{}"}


@cache
def look() -> Any:
    @agents.function_tool
    async def look(at: str) -> str:
        """Look."""
        return await look_at(at)

    return look


class OpenAI(Driver):
    whole = False  # the runner stores the question first

    def model(self, *answers: Any) -> Any:
        return testing.ScriptedModel(
            [
                answer
                if isinstance(answer, Exception)
                else [
                    testing.assistant_message(part)
                    if isinstance(part, str)
                    else testing.function_call(part.name, part.arguments, call_id=part.id)
                    for part in parts_of(answer)
                ]
                for answer in answers
            ]
        )

    def shown(self, model: Any) -> list[list[str]]:
        return [
            [
                text if isinstance(text, str) else text[0]["text"]
                for item in call.input
                if (text := item.get("content") or item.get("output"))
            ]
            for call in model.calls
        ]

    def agent(self, model: Any, given: Given) -> Any:
        """An agent, and the options of its run."""
        session = adapter.RemoraSession(given.session)
        tools = adapter.memory_tools(given.tools) if given.tools else []
        agent = agents.Agent(
            name="bot", instructions="Be kind.", model=model, tools=[look(), *tools]
        )
        config = agents.RunConfig(tracing_disabled=True)
        if given.recall:
            config.session_input_callback = session.recall
        return agent, {"session": session, "run_config": config}

    async def ask(self, agent: Any, said: str) -> None:
        await agents.Runner.run(agent[0], said, **agent[1])

    def ask_blocking(self, agent: Any, said: str) -> None:
        agents.Runner.run_sync(agent[0], said, **agent[1])


class Items(OpenAI):
    """The methods that the runner and an application call."""

    async def test_items_are_read_and_taken_back(self, tmp_path: Path) -> None:
        """S3.03, S4.28: all or the newest, taken back one by one, out of a row of calls as well,
        and cleared; what is no item is refused, with all of its batch.
        """
        async with self.memory(tmp_path) as memory:
            session = adapter.RemoraSession(memory.session("alice", "chat"))
            assert session.session_id == "alice/chat"
            assert isinstance(session, agents.Session)
            assert await session.pop_item() is None
            await session.add_items([])
            await session.add_items(ITEMS)
            assert await session.get_items() == ITEMS
            assert await session.get_items(3) == ITEMS[-3:]
            assert await session.get_items(0) == []
            with pytest.raises(InvalidInput, match="negative"):
                await session.get_items(-1)
            for wrong in (["hello"], [said("a"), 7], [said("a"), {"role": "king", "content": "b"}]):
                with pytest.raises(InvalidMessage) as caught:
                    await session.add_items(wrong)
                assert caught.value.index == len(wrong) - 1
            assert await session.get_items() == ITEMS
            assert [await session.pop_item() for _ in ITEMS] == ITEMS[::-1]
            assert (await session.get_items(), await session.pop_item()) == ([], None)
            await session.add_items(ITEMS)
            await session.clear_session()
            assert await session.get_items() == []

    async def test_parallel_calls_are_taken_back_by_several_at_once(self, tmp_path: Path) -> None:
        """Each item once, whoever takes it, though each has to store what is left."""
        items = [said("look"), *(call(f"c{number}") for number in range(4))]
        taken: list[Any] = []

        async def take() -> None:
            taken.append(await session.pop_item())

        async with self.memory(tmp_path) as memory:
            session = adapter.RemoraSession(memory.session("alice", "chat"))
            await session.add_items(items)
            async with anyio.create_task_group() as tasks:
                for _ in items:
                    tasks.start_soon(take)
            assert sorted(map(str, taken)) == sorted(map(str, items))
            assert await session.get_items() == []

    async def test_items_without_a_role(self, tmp_path: Path) -> None:
        """What an encrypting wrapper makes is kept as it is where it is asked for, and is not shown."""  # noqa: E501
        sealed = [{"__enc__": 1, "v": 1, "kid": "k", "payload": f"secret {n}"} for n in range(2)]
        async with self.memory(tmp_path) as memory:
            chat = memory.session("alice", "sealed")
            with pytest.raises(InvalidMessage):
                await adapter.RemoraSession(chat).add_items(sealed)
            session = adapter.RemoraSession(chat, opaque=True)
            await session.add_items(sealed)
            assert await session.get_items() == sealed
            assert "secret" not in str((await chat.load()).messages)
            assert await session.pop_item() == sealed[1]
            assert await session.get_items() == sealed[:1]


class TestAgents(Items, Conversations, Connected, Recalling, MemoryTools, Blocking):
    """S3.03"""

    def memory_tools(self, tools: Any) -> Any:
        return adapter.memory_tools(tools)


@pytest.mark.blocking  # the service
class TestAgentsOfAService(Items, Conversations, Recalling):
    """S3.03: over a session of `remora.Client`, by real HTTP, the same."""

    served = True


class TestMessages(Messages):
    """S3.03"""

    def to_chat(self, messages: Iterable[Any]) -> list[Any]:
        return list(adapter.chat_messages(messages))

    def of_chat(self, stored: Iterable[Any]) -> list[Any]:
        return [item for one in stored for item in adapter.response_items(one)]

    def every(self) -> list[Any]:
        return ITEMS

    def heavy(self) -> list[Any]:
        return [{**REASONS, "encrypted_content": THOUGHT}, ITEMS[-1]]

    def ordinary(self) -> list[Any]:
        seen = [
            {"type": "input_text", "text": "What is there?"},
            {"type": "input_image", "image_url": URL, "detail": "auto"},
        ]
        calls = [
            {**call(id_), "arguments": f'{{"at":"{at}"}}'}
            for id_, at in (("c1", "sea"), ("c2", "bay"))
        ]
        results = [
            {"type": "function_call_output", "call_id": id_, "output": output}
            for id_, output in (("c1", "a ship"), ("c2", "a gull"))
        ]
        answer = {"role": "assistant", "content": "A ship and a gull."}
        system = {"role": "system", "content": "Be kind."}
        return [system, {"role": "user", "content": seen}, *calls, *results, answer]


async def test_the_summary_is_an_item() -> None:
    """S3.03, S1.12: what left the buffer is in the summary, the first item; a limit counts it as
    one.
    """
    model = ScriptedChatModel(["They said m0 and m1."])
    policy = BufferPolicy.window(2, fold="summary")
    async with Runtime.in_memory(config=PLAIN, policy=policy, chat_model=model) as runtime:
        chat = runtime.session("alice", "chat")
        session = adapter.RemoraSession(chat)
        await session.add_items([said(f"m{number}") for number in range(4)])
        await chat.settle()
        summary, *items = await session.get_items()
        assert summary["role"] == "system"
        assert summary["content"].endswith("They said m0 and m1.")
        assert items == [said("m2"), said("m3")] == await session.get_items(2)


async def test_a_limit_splits_no_tool_call() -> None:
    """Whatever the limit: no result comes without its call, and no call of a message without the
    others of it; the calls of two runs have one id.
    """

    def call(id_: str) -> Any:
        return {"type": "function_call", "call_id": id_, "name": "look", "arguments": "{}"}

    def output(id_: str, text: str) -> Any:
        return {"type": "function_call_output", "call_id": id_, "output": text}

    first = [said("q1"), call("c1"), call("c2"), output("c1", "r1"), output("c2", "r2")]
    second = [said("q2"), call("c1"), output("c1", "r3"), said("thanks")]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        session = adapter.RemoraSession(runtime.session("alice", "chat"))
        await session.add_items(first)
        await session.add_items(second)
        items = [*first, *second]
        assert await session.get_items() == items
        found = [await session.get_items(limit) for limit in range(len(items) + 2)]
    newest = items[-3:]
    assert found[:4] == [[], items[-1:], items[-1:], newest]
    assert found[4:8] == [items[-4:]] * 4  # of the parallel calls neither, for want of room
    assert found[8] == items[1:]
    assert found[9:] == [items] * 2


async def test_a_run_that_waits_for_a_person_is_resumed(tmp_path: Path) -> None:
    """From its state, in another process: the call, its result and the answer are there once."""
    driver = OpenAI()
    model = driver.model([Call("c1", {}, "pay")], "Paid.", "You paid.")

    @agents.function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    agent = agents.Agent(name="bot", model=model, tools=[pay])
    options = {"run_config": agents.RunConfig(tracing_disabled=True)}
    async with driver.memory(tmp_path, kept=True) as memory:
        session = adapter.RemoraSession(driver.session(memory))
        asked = await agents.Runner.run(agent, "Pay it.", session=session, **options)
        written = asked.to_state().to_json()
    async with driver.memory(tmp_path, kept=True) as memory:
        session = adapter.RemoraSession(driver.session(memory))
        state = await agents.RunState.from_json(agent, written)
        state.approve(state.get_interruptions()[0])
        done = await agents.Runner.run(agent, state, session=session, **options)
        assert done.final_output == "Paid."
        await agents.Runner.run(agent, "What was it?", session=session, **options)
        stored = await driver.session(memory).history()
        said = ["Pay it.", None, "paid", "Paid.", "What was it?", "You paid."]
        assert [one.content for one in stored] == said
        assert driver.shown(model)[-1] == [one for one in said[:-1] if one]


class Compacting:
    """A client of the SDK's compaction session: the user's words, and what is encrypted."""

    def __init__(self) -> None:
        self.responses = self

    async def compact(self, **options: Any) -> Any:
        said = [one for one in options["input"] if one.get("role") == "user"]
        sealed = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}
        return SimpleNamespace(output=[*said, sealed], usage=None)


async def test_what_the_sdk_compacts_is_recalled() -> None:
    """And what it puts in the place is not, which repeats and summarizes; the model sees just that,
    without remora's own summary.
    """
    policy = BufferPolicy.window(3, fold="summary")
    options: Any = {"policy": policy, "chat_model": ScriptedChatModel(["They said hello."])}
    options |= {"config": RECALLING, "embedder": HashEmbedder()}
    async with Runtime.in_memory(**options) as runtime:
        alice = runtime.user("alice")
        chat = alice.session("chat")
        session = late("agents.memory").OpenAIResponsesCompactionSession(
            "chat", adapter.RemoraSession(chat), client=Compacting(), compaction_mode="input"
        )
        answer = {"role": "assistant", "content": "Near the Tejo, then."}
        await session.add_items([said("hello"), said("hi"), said(str(FLAT["content"])), answer])
        await chat.settle()
        assert "They said hello." in str(await session.get_items())
        await session.run_compaction({"force": True})
        items = await session.get_items()
        assert [one.get("content", one.get("type")) for one in items] == [
            *("hi", FLAT["content"]),
            "compaction",
        ]
        assert [one.content for one in await chat.history()][-3:] == [
            *("hi", FLAT["content"]),
            "[compaction]",
        ]
        for _ in range(2):  # before and after it is indexed
            found = [one.text for one in await alice.recall("flat river Tejo compaction", limit=20)]
            assert found.count(str(FLAT["content"])) == 1
            assert answer["content"] in found
            assert "[compaction]" not in found
            await chat.flush()


async def test_a_compaction_that_is_not_stored_changes_nothing() -> None:
    """The model's next run sees what it saw before."""
    faults: list[CommitFault | None] = []
    journal = FaultyJournal(lambda: faults.pop() if faults else None)
    policy = BufferPolicy.keep_all()
    async with Runtime.in_memory(config=PLAIN, policy=policy, journal=journal) as runtime:
        under = adapter.RemoraSession(runtime.session("alice", "chat"))
        session = late("agents.memory").OpenAIResponsesCompactionSession(
            "chat", under, client=Compacting(), compaction_mode="input"
        )
        items = [said("hello"), {"role": "assistant", "content": "hi"}]
        await session.add_items(items)
        for after in ([], [None]):  # the first of its writes fails, or the second
            faults += ["refused", *after]
            with pytest.raises(CommitFailed):
                await session.run_compaction({"force": True})
            assert await session.get_items() == items


async def test_settings_of_the_sdk() -> None:
    """S3.03: a limit holds with and without a runner, a given one goes before it, and a dict is as
    good.
    """
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        session = adapter.RemoraSession(chat, session_settings={"limit": 2})
        await session.add_items([said(f"m{number}") for number in range(5)])
        assert await session.get_items() == [said("m3"), said("m4")]
        assert await session.get_items(4) == [said(f"m{number}") for number in range(1, 5)]
        assert session.session_settings == agents.SessionSettings(limit=2)
        with pytest.raises(TypeError, match="limitt"):
            adapter.RemoraSession(chat, session_settings={"limitt": 2})
        driver = OpenAI()
        model = driver.model("hello")
        agent, options = driver.agent(model, driver.give(runtime))
        one = agents.SessionSettings(limit=1)
        options["session"] = adapter.RemoraSession(chat, session_settings=one)
        await agents.Runner.run(agent, "now", **options)
        assert driver.shown(model) == [["m4", "now"]]


async def test_nothing_is_recalled_where_there_is_nothing_to_ask() -> None:
    """Without long-term memory, and without a message of the user's."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        session = adapter.RemoraSession(runtime.session("alice", "chat"))
        output = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
        for new in ([said("hello")], [output], [said("")]):
            assert await session.recall([said("before")], new) == [said("before"), *new]


async def test_files_and_sounds_of_other_writers() -> None:
    """S3.03: as items, and back; an answer in parts is a text."""
    parts: list[dict[str, Any]] = [
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ]
    spoken: Any = [{"type": "text", "text": "Yes."}]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([{"role": "user", "content": parts}])
        await chat.append([{"role": "assistant", "content": spoken}])
        asked, answer = await adapter.RemoraSession(chat).get_items()
    assert [part["type"] for part in asked["content"]] == ["input_file", "input_audio"]
    assert adapter.chat_messages([asked])[0]["content"] == parts
    assert answer == {"role": "assistant", "content": "Yes."}
