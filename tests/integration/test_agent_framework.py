"""Agents of Microsoft's Agent Framework over remora: history and memory, with a scripted model.

The framework is not among the development requirements: ``python -m benchmarks.lab.frameworks own
agent-framework`` runs these in an environment of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, get_args

import anyio
import pytest

pytest.importorskip("agent_framework", reason="`python -m benchmarks.lab.frameworks own`")
import agent_framework as framework
from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    Content,
    FunctionInvocationLayer,
    Message,
)
from agent_framework._types import ContentType

from remora import Runtime, blocking
from remora.adapters.agent_framework import (
    RemoraContextProvider,
    RemoraHistoryProvider,
    chat_messages,
    framework_messages,
    memory_tools,
)
from remora.errors import InvalidId, InvalidInput
from remora.testing import HashEmbedder
from tests.configs import PLAIN, RECALLING
from tests.conformance import (
    FLAT,
    THOUGHT,
    URL,
    WHERE,
    Blocking,
    Call,
    Connected,
    Conversations,
    Driver,
    Given,
    MemoryTools,
    Recalling,
    Redacted,
    look_at,
    parts_of,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,  # the framework imports parts of itself when it runs an agent
    pytest.mark.filterwarnings("default"),
]
PICTURE = Content.from_uri("https://x/y.png", media_type="image/png")


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):  # type: ignore[misc, unused-ignore]
    """Answers in turn, and notes what it is shown."""

    def __init__(self, answers: Iterable[Any]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.seen: list[list[Any]] = []

    def _inner_get_response(
        self, *, messages: Any, stream: bool, options: Any, **_more: Any
    ) -> Any:
        self.seen.append([noted(one) for one in messages])
        said = self.answers[len(self.seen) - 1]
        if stream:
            finish = framework.ChatResponse.from_updates
            return framework.ResponseStream(self._stream(said), finalizer=finish)
        return self._answer(said)

    async def _answer(self, said: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        if isinstance(said, Exception):
            raise said
        return framework.ChatResponse(messages=Message("assistant", contents_of(said)))

    async def _stream(self, said: Any) -> Any:
        for one in Message("assistant", contents_of(said)).contents:
            yield framework.ChatResponseUpdate(role="assistant", contents=[one])


def contents_of(answer: Any) -> list[Any]:
    return [
        Content.from_function_call(one.id, one.name, arguments=one.arguments)
        if isinstance(one, Call)
        else one
        for one in parts_of(answer)
    ]


def noted(message: Any) -> dict[str, Any]:
    """A message without what the framework notes in it while it runs."""
    found: dict[str, Any] = message.to_dict()
    found["additional_properties"].pop("_attribution", None)
    found.pop("author_name", None)
    shown = [one for one in found["contents"] if one["type"] != "function_approval_request"]
    without = ("id", "additional_properties")
    contents = [{key: one[key] for key in one if key not in without} for one in shown]
    return {**found, "contents": contents}


def texts(messages: Any) -> list[str]:
    return [
        one["text"] if one["type"] == "text" else one["result"]
        for message in messages
        for one in message["contents"]
        if one["type"] in ("text", "function_result")
    ]


@framework.tool(approval_mode="never_require")  # type: ignore[untyped-decorator, unused-ignore]
async def look(at: str) -> str:
    """Look somewhere."""
    return await look_at(at)


@framework.tool(approval_mode="always_require")  # type: ignore[untyped-decorator, unused-ignore]
def wipe() -> str:
    """Wipe everything."""
    return "wiped"


def agent_of(client: Any, *providers: Any, tools: Iterable[Any] = (), **options: Any) -> Any:
    return framework.Agent(
        client, tools=[look, wipe, *tools], context_providers=providers, **options
    )


def chat_of(id_: str = "chat") -> Any:
    return framework.AgentSession(session_id=id_)


class AgentFramework(Driver):
    def model(self, *answers: Any) -> Any:
        return Scripted(answers)

    def shown(self, model: Any) -> list[list[str]]:
        return list(map(texts, model.seen))

    def agent(self, model: Any, given: Given) -> Any:
        """An agent, and its session."""
        history = RemoraHistoryProvider(given.memory.user(given.user), recall=given.recall)
        tools = memory_tools(given.tools) if given.tools else ()
        return agent_of(model, history, tools=tools, instructions="Be kind."), chat_of(given.chat)

    async def ask(self, agent: Any, said: str) -> None:
        await agent[0].run(said, session=agent[1])

    def ask_blocking(self, agent: Any, said: str) -> None:
        asyncio.run(self.ask(agent, said))


class TestAgents(AgentFramework, Conversations, Connected, Recalling, MemoryTools, Blocking):
    def memory_tools(self, tools: Any) -> Any:
        return memory_tools(tools)


# -- messages --------------------------------------------------------------------------------------


def result(id_: str, given: Any) -> Any:
    return Content.from_function_result(id_, result=given)


def call(id_: str, at: str) -> Any:
    return Content.from_function_call(id_, "look", arguments={"at": at})


CONTENTS: dict[str, list[Any]] = {
    "user": [
        ["hi"],
        [""],
        [],
        ["one", "two"],
        ["look", Content.from_uri(URL), PICTURE],
        [Content.from_data(b"%PDF", "application/pdf"), "what is it?"],
        [Content.from_hosted_file("f1"), Content.from_hosted_vector_store("v1")],
        [Content.from_uri(URL)],
    ],
    "system": [["Be kind."], ["a", "b"], []],
    "assistant": [
        ["yes"],
        [],
        ["one", "two"],
        [Content.from_text_reasoning(text="so", protected_data="s"), "so"],
        ["I look.", call("c1", "sea"), Content.from_function_call("c2", "x", arguments='{"a": 1}')],
        [Content.from_function_call("c3", "look")],
        [Content.from_function_call("c4", "look", hosted=True, server_name="s"), "there"],
        [Content.from_function_approval_request("c5", call("c5", "bay"))],
        [Content.from_error(message="no", error_code="1")],
        [Content.from_usage({"input_token_count": 3}), "used"],
    ],
    "tool": [
        [result("c1", "a")],
        [result("c1", {"a": 1})],
        [result("c1", [Content.from_text("a"), Content.from_uri(URL)])],
        [result("c1", "a"), result("c2", "b")],
        [result("c1", "a"), result("c2", "b")],
        ["before", result("c1", "a"), "after"],
        [Content.from_function_result("c1", exception="no")],
        ["no result"],
        [],
    ],
    "narrator": [["Once."]],
}
OTHERS = set(get_args(ContentType)) - {
    one if isinstance(one, str) else one.type
    for given in CONTENTS.values()
    for contents in given
    for one in contents
}  # each as far as a type alone makes one


class TestMessages(Redacted):
    def to_chat(self, messages: Iterable[Any]) -> list[Any]:
        return list(chat_messages(messages))

    def of_chat(self, stored: Iterable[Any]) -> list[Any]:
        return list(framework_messages(stored))

    def plain(self, message: Any) -> Any:
        return message.to_dict(), message.contents

    def every(self) -> list[Any]:
        made = [Message(role, contents) for role, given in CONTENTS.items() for contents in given]
        made += [Message("assistant", [Content(kind)]) for kind in sorted(OTHERS)]
        known: dict[str, Any] = {"message_id": "m1", "additional_properties": {"a": [1]}}
        made.append(Message("user", ["hi"], author_name="Al", **known))
        return [Message.from_dict(one.to_dict()) for one in made]

    def ordinary(self) -> list[Any]:
        return [
            Message("system", ["Be kind."]),
            Message("user", ["What is there?", Content.from_uri(URL)]),
            Message("assistant", [call("c1", "sea"), call("c2", "bay")]),
            Message("tool", [result("c1", "a ship"), result("c2", "a gull")]),
            Message("assistant", ["A ship and a gull."]),
        ]

    def heavy(self) -> list[Any]:
        reasoning = Content.from_text_reasoning(text=THOUGHT, protected_data="s")
        return [Message("assistant", [reasoning, "ok"])]

    def secrets(self) -> list[Any]:
        reasoning = Content.from_text_reasoning(text="4711?")
        return [
            Message("user", ["pin", "4711"]),
            Message("assistant", [reasoning, "4711"]),
            Message("tool", [result("c", {"pin": "4711"})]),
        ]

    def unwritable(self) -> list[Any]:
        deep: Any = {}
        for _ in range(5000):
            deep = {"a": deep}
        return [Message("user", ["hi"], additional_properties=deep)]

    async def test_what_the_framework_has_no_word_for(self) -> None:
        """A developer's message, and an image whose address is none."""
        wrong = {"type": "image_url", "image_url": {"url": "data:nothing"}}
        given: list[Any] = [
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [wrong]},
        ]
        async with Runtime.in_memory(config=PLAIN) as runtime:
            chat = runtime.session("alice", "chat")
            await chat.append(given)
            system, user = framework_messages(await chat.history())
        assert (system.role, system.text, user.text) == ("system", "s", "[image_url]")


# -- the history -----------------------------------------------------------------------------------


async def _scenario(history: Any, name: str) -> list[list[Any]]:
    """Three runs; returns what the model was shown."""
    client = Scripted(
        [
            ["I look.", Call("c1", {"at": "sea"}), Call("c2", {"at": "bay"})],
            "Two ships.",
            Content.from_function_call("c3", "wipe"),
            "As you wish.",
            [Content.from_text_reasoning(text="so"), "yes"],
        ]
    )
    eager = name == "each call of the model"
    agent = agent_of(client, history, require_per_service_call_history_persistence=eager)
    session = chat_of()

    async def run(said: Any) -> Any:
        if name == "streams":
            return await agent.run(said, session=session, stream=True).get_final_response()
        return await agent.run(said, session=session)

    await run("Look.")
    asked = await run(["Wipe it.", "Please."])
    (request,) = asked.user_input_requests
    await run(Message("user", [request.to_function_approval_response(approved=name != "denied")]))
    await run("Did you?")
    return client.seen


async def test_a_model_sees_what_the_frameworks_own_history_shows() -> None:
    """With calls of tools, one that waits for approval, and reasoning: the same messages."""
    for name in ("plain", "streams", "denied", "each call of the model"):
        own = await _scenario(framework.InMemoryHistoryProvider(), name)
        async with Runtime.in_memory(config=PLAIN) as runtime:
            ours = await _scenario(RemoraHistoryProvider(runtime.user("alice")), name)
        assert len(ours) == 5, name
        assert ours == own, name


async def test_what_the_framework_stores_is_its_users_choice() -> None:
    """An audit log: no inputs, never loaded; `HistoryProvider`'s options. A budget holds."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice = runtime.user("alice")
        log = RemoraHistoryProvider(
            lambda id_: alice.session(f"log/{id_}"), "log", load_messages=False, store_inputs=False
        )
        assert isinstance(log, framework.HistoryProvider)
        client = Scripted(["one", "two"])
        agent = agent_of(client, RemoraHistoryProvider(alice), log)
        long = "How are you today, my dear friend? " * 9
        await agent.run(long, session=chat_of())
        await agent.run("again", session=chat_of())
        assert texts(client.seen[1]) == [long, "one", "again"]
        kept = await alice.session("log/chat").history()
        assert [one.content for one in kept] == ["one", "two"]
        few = RemoraHistoryProvider(alice, max_tokens=12)
        assert [one.text for one in await few.get_messages("chat")] == ["again", "two"]


async def test_one_agent_for_all_sessions() -> None:
    """A function chooses; ids may be of any kind that remora takes; others are refused first."""
    client = Scripted(["hello"] * 9)
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chosen = RemoraHistoryProvider(lambda id_: runtime.session(*id_.split("/")))
        for name in ("al", "bo"):
            await agent_of(client, chosen).run(f"I am {name}.", session=chat_of(f"{name}/chat"))
            assert len(await runtime.session(name, "chat").history()) == 2
        assert texts(client.seen[1]) == ["I am bo."]
        alice = runtime.user("alice")
        agent = agent_of(client, RemoraHistoryProvider(alice))
        for id_ in ("a/b", "a b", "ü%2f", "x" * 200):
            await agent.run("hi", session=chat_of(id_))
            assert len(await alice.session(id_).history()) == 2
        with pytest.raises(InvalidId):
            await agent.run("hi", session=chat_of("\n"))
        with pytest.raises(InvalidInput, match="pass a session"):
            await RemoraHistoryProvider(alice).get_messages(None)
        with pytest.raises(InvalidInput, match="NoneType, not a session"):
            await RemoraHistoryProvider(lambda _: None).get_messages("chat")  # type: ignore[arg-type, return-value]
        with pytest.raises(InvalidInput, match="a str is neither a user nor a function"):
            RemoraHistoryProvider("alice")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="max_tokens"):
            RemoraHistoryProvider(alice, max_tokens=-1)


# -- long-term memory ------------------------------------------------------------------------------


async def test_memory_beside_a_history_that_is_kept_elsewhere() -> None:
    """What is said in one conversation is recalled in another, with its session as the origin."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        memory = RemoraContextProvider(alice)
        client = Scripted([Call("c1", {"at": "sea"}), "I see.", "In Lisbon.", "As I said."])
        for said, id_ in ((FLAT["content"], "march"), (WHERE, "june"), (WHERE, "march")):
            agent = agent_of(client, framework.InMemoryHistoryProvider(), memory)
            await agent.run(said, session=chat_of(id_))
        june = texts(client.seen[2])
        assert "My flat is in Lisbon" in june[0]
        assert "a ship" not in june[0]  # results of tools are not remembered
        assert june[1:] == [WHERE]
        march = texts(client.seen[3])[0]  # the agent knows what was said in its own conversation
        assert "My flat is in Lisbon" not in march
        assert await alice.session("march").history() == []

        class Context:
            input_messages = (Message("user", [WHERE]),)
            added: list[Any] = []  # noqa: RUF012

            def extend_messages(self, _source: Any, _messages: Any, **options: Any) -> None:
                self.added.append(options)

        await memory.before_run(agent=None, session=chat_of("may"), context=Context(), state={})
        assert "march" in Context.added[0]["origin_session_ids"]


async def test_memory_that_records_nothing() -> None:
    """Of a user that a function chooses; a limit; nothing is asked without a question."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.remember(["likes green tea", "likes black tea", "likes white tea"])
        client = Scripted(["Tea.", "Hm."])
        memory = RemoraContextProvider(lambda _: alice, limit=1, record=False)
        await agent_of(client, memory).run("Which tea do I like?", session=chat_of())
        await agent_of(client, memory).run(Message("user", [PICTURE]), session=chat_of("x"))
        assert texts(client.seen[0])[0].count("likes") == 1
        assert texts(client.seen[1]) == []
        assert len(await alice.recall("tea", limit=9)) == 3
        with pytest.raises(InvalidInput, match="limit"):
            RemoraContextProvider(alice, limit=0)
        wrong = RemoraContextProvider(lambda _: None)  # type: ignore[arg-type, return-value]
        with pytest.raises(InvalidInput, match="not a user"):
            await agent_of(client, wrong).run("hi", session=chat_of())


def test_a_context_provider_on_another_event_loop() -> None:
    """A runtime of `remora.blocking` has a loop of its own; each run brings another one."""
    with blocking.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        client = Scripted(["one", "two"])
        agent = agent_of(client, RemoraContextProvider(runtime.user("alice")))
        for id_ in ("march", "june"):
            asyncio.run(agent.run("My flat is in Lisbon.", session=chat_of(id_)))
        assert "Lisbon" in texts(client.seen[1])[0]
