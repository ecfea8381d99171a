"""Agents of Microsoft's Agent Framework over remora: history and memory, with a scripted model.

The framework is not among the development requirements: ``python -m benchmarks.frameworks own
agent-framework`` runs these in an environment of their own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest

pytest.importorskip("agent_framework", reason="`python -m benchmarks.frameworks own`")
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    HistoryProvider,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
    tool,
)
from agent_framework._types import ContentType

from remora import BufferPolicy, Runtime, blocking
from remora.adapters import versions
from remora.adapters.agent_framework import (
    RemoraContextProvider,
    RemoraHistoryProvider,
    chat_messages,
    framework_messages,
    memory_tools,
)
from remora.errors import InvalidId, InvalidInput, InvalidMessage
from remora.testing import HashEmbedder, ScriptedChatModel
from tests.agents import PLAIN, RECALLING

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,  # the framework imports parts of itself when it runs an agent
    pytest.mark.filterwarnings("default"),
]
PICTURE = Content.from_uri("https://x/y.png", media_type="image/png")
URL = "data:image/png;base64,iVBORw0KGgo="


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):  # type: ignore[misc, unused-ignore]
    """Answers in turn, and notes what it is shown."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = list(answers)
        self.seen: list[list[Any]] = []

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_more: Any) -> Any:  # fmt: skip  # noqa: E501
        self.seen.append([plain(one) for one in messages])
        said = self.answers[len(self.seen) - 1]
        if stream:
            return ResponseStream(self._stream(said), finalizer=ChatResponse.from_updates)
        return self._answer(said)

    async def _answer(self, said: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        if isinstance(said, BaseException):
            raise said
        return ChatResponse(messages=Message("assistant", said))

    async def _stream(self, said: Any) -> Any:
        for one in Message("assistant", said).contents:
            yield ChatResponseUpdate(role="assistant", contents=[one])


def plain(message: Any) -> dict[str, Any]:
    """A message without what the framework notes in it while it runs."""
    found: dict[str, Any] = message.to_dict()
    found["additional_properties"].pop("_attribution", None)
    found.pop("author_name", None)
    shown = [one for one in found["contents"] if one["type"] != "function_approval_request"]
    noted = ("id", "additional_properties")
    return {
        **found,
        "contents": [{key: one[key] for key in one if key not in noted} for one in shown],
    }


def result(id_: str, given: Any) -> Any:
    return Content.from_function_result(id_, result=given)


def calls(id_: str, name: str, arguments: Any) -> Any:
    return Content.from_function_call(id_, name, arguments=arguments)


def call(id_: str, at: str) -> Any:
    return calls(id_, "look", {"at": at})


@tool(approval_mode="never_require")
def look(at: str) -> str:
    """Look somewhere."""
    return f"a ship at the {at}"


@tool(approval_mode="always_require")
def wipe() -> str:
    """Wipe everything."""
    return "wiped"


def texts(messages: Any) -> list[str]:
    """Of messages as the model was shown them: each text, each result."""
    return [
        one["text"] if one["type"] == "text" else one["result"]
        for message in messages
        for one in message["contents"]
        if one["type"] in ("text", "function_result")
    ]


def agent_of(client: Any, *providers: Any, **options: Any) -> Any:
    return Agent(client, tools=[look, wipe], context_providers=providers, **options)


def chat_of(id_: str = "chat") -> Any:
    return AgentSession(session_id=id_)


# -- messages --------------------------------------------------------------------------------------

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
        ["I look.", call("c1", "sea"), calls("c2", "look", '{"a": 1}')],
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
        ["before", result("c1", "a"), "after"],
        [Content.from_function_result("c1", exception="no")],
        ["no result"],
        [],
    ],
    "narrator": [["Once."]],
}  # fmt: skip
OTHERS = set(get_args(ContentType)) - {
    one if isinstance(one, str) else one.type
    for given in CONTENTS.values()
    for contents in given
    for one in contents
}  # each as far as a type alone makes one


def all_messages() -> list[Any]:
    made = [Message(role, contents) for role, given in CONTENTS.items() for contents in given]
    made += [Message("assistant", [Content(kind)]) for kind in sorted(OTHERS)]
    named = Message("user", ["hi"], author_name="Al", message_id="m1", additional_properties={"a": [1]})  # fmt: skip  # noqa: E501
    return [Message.from_dict(one.to_dict()) for one in [*made, named]]


@pytest.mark.parametrize("message", all_messages(), ids=lambda one: "+".join([one.role, *(part.type for part in one.contents)]))  # fmt: skip  # noqa: E501
async def test_each_kind_of_message_comes_back_as_it_was(message: Any) -> None:
    """Through the journal, equal to the last field."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(chat_messages([message]))
        (found,) = framework_messages(await chat.history())
        assert found.to_dict() == message.to_dict()
        assert found.contents == message.contents


async def test_a_conversation_comes_back_as_it_was() -> None:
    """Messages next to each other stay apart, and the results of one message together."""
    messages = [one for one in all_messages() if one.role != "tool"]
    results = [one for one in all_messages() if one.role == "tool" and len(one.contents) == 2]
    messages += [*results, *results]
    async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.keep_all()) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(chat_messages(messages))
        found = framework_messages(await chat.history())
        assert [one.to_dict() for one in found] == [one.to_dict() for one in messages]


def test_other_readers_see_an_ordinary_conversation() -> None:
    """A message with two results is two messages; each text is stored once."""
    asked = Message("user", ["look", Content.from_uri(URL)])
    called = Message("assistant", ["I look.", call("c1", "sea"), call("c2", "bay")])
    results = Message("tool", [result("c1", "a ship"), result("c2", "nothing")])
    messages = chat_messages([asked, called, results, Message("assistant", ["A ship."])])
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert messages[0]["content"][1]["image_url"]["url"] == URL
    assert messages[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"sea"}'}
    assert [one["tool_call_id"] for one in messages[2:4]] == ["c1", "c2"]
    assert "metadata" not in messages[4]
    for one in messages:
        kept = str(one.get("metadata"))
        assert not any(text in kept for text in ("I look.", "a ship", "nothing", URL))


async def test_messages_of_others_become_equivalent_ones() -> None:
    """What another framework stored in the session is shown to the model."""
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    shown = {"type": "image_url", "image_url": {"url": URL}}
    wrong = {"type": "image_url", "image_url": {"url": "data:nothing"}}
    given: list[Any] = [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "t"}, shown, wrong]},
        {"role": "assistant", "content": "a", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(given)
        system, user, answer, result = framework_messages(await chat.history())
    assert (system.role, system.text) == ("system", "s")
    assert user.contents[1].uri == URL
    assert (answer.text, answer.contents[1].call_id, answer.contents[1].name) == ("a", "c", "f")
    assert (result.contents[0].call_id, result.contents[0].result) == ("c", "r")


async def test_a_redaction_hook_changes_a_text_everywhere() -> None:
    """A message is made again of what the hook left."""
    async with Runtime.in_memory(config=PLAIN, redact=lambda text: text.replace("4711", "***")) as runtime:  # fmt: skip  # noqa: E501
        chat = runtime.session("alice", "chat")
        said = [
            Message("user", ["pin", "4711"]),
            Message("assistant", [Content.from_text_reasoning(text="4711?"), "4711"]),
            Message("tool", [result("c", {"pin": "4711"})]),
        ]
        await chat.append(chat_messages(said))
        found = framework_messages(await chat.history())
        assert "4711" not in str([one.to_dict() for one in found])
        assert len(found) == 3


def test_what_is_no_message_is_refused() -> None:
    """The error says which one."""
    with pytest.raises(InvalidMessage, match="message 1 is a dict, not a Message"):
        chat_messages([Message("user", ["hi"]), {"role": "user"}])
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    unwritable = Message("user", ["hi"], additional_properties=deep)
    with pytest.raises(InvalidMessage, match="message 0 cannot be written as JSON"):
        chat_messages([unwritable])


# -- agents ----------------------------------------------------------------------------------------


async def test_an_agent_remembers_its_conversation() -> None:
    """A second one sees what the first one said and did; instructions are not stored."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice = runtime.user("alice")
        first = Scripted(["I look.", call("c1", "sea"), call("c2", "bay")], ["Two ships."])
        history = RemoraHistoryProvider(alice)
        await agent_of(first, history, instructions="Be kind.").run("Look.", session=chat_of())
        second = Scripted(["At the sea."])
        done = await agent_of(second, RemoraHistoryProvider(alice)).run("Where?", session=chat_of())
        assert done.text == "At the sea."
        said = ["Look.", "I look.", "a ship at the sea", "a ship at the bay", "Two ships."]
        assert texts(second.seen[0]) == [*said, "Where?"]
        stored = await alice.session("chat").history()
        assert [one.role for one in stored] == [
            "user", "assistant", "tool", "tool", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert not any("Be kind." in str(one) for one in stored)


async def _scenario(history: Any, name: str) -> list[list[Any]]:
    """Three runs; returns what the model was shown."""
    client = Scripted(
        ["I look.", call("c1", "sea"), call("c2", "bay")],
        ["Two ships."],
        [Content.from_function_call("c3", "wipe")],
        ["As you wish."],
        [Content.from_text_reasoning(text="so"), "yes"],
    )
    eager = name == "each call of the model"
    agent = agent_of(client, history, require_per_service_call_history_persistence=eager)
    session = chat_of()
    stream = name == "streams"

    async def run(said: Any) -> Any:
        if stream:
            return await agent.run(said, session=session, stream=True).get_final_response()
        return await agent.run(said, session=session)

    await run("Look.")
    asked = await run(["Wipe it.", "Please."])
    (request,) = asked.user_input_requests
    await run(Message("user", [request.to_function_approval_response(approved=name != "denied")]))
    await run("Did you?")
    return client.seen


@pytest.mark.parametrize("name", ["plain", "streams", "denied", "each call of the model"])
async def test_a_model_sees_what_the_frameworks_own_history_shows(name: str) -> None:
    """With calls of tools, one that waits for approval, and reasoning: the same messages."""
    own = await _scenario(InMemoryHistoryProvider(), name)
    async with Runtime.in_memory(config=PLAIN) as runtime:
        ours = await _scenario(RemoraHistoryProvider(runtime.user("alice")), name)
    assert len(ours) == 5
    assert ours == own


async def test_what_the_framework_stores_is_its_users_choice() -> None:
    """An audit log: no inputs, never loaded; `HistoryProvider`'s options."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        alice = runtime.user("alice")
        log = RemoraHistoryProvider(
            lambda id_: alice.session(f"log/{id_}"), "log", load_messages=False, store_inputs=False
        )
        client = Scripted(["one"], ["two"])
        agent = agent_of(client, RemoraHistoryProvider(alice), log)
        await agent.run("hi", session=chat_of())
        await agent.run("again", session=chat_of())
        assert texts(client.seen[1]) == ["hi", "one", "again"]
        kept = await alice.session("log/chat").history()
        assert [one.content for one in kept] == ["one", "two"]
        assert isinstance(log, HistoryProvider)


async def test_an_agent_recalls_other_conversations() -> None:
    """Right before the new message, as a user's message, and not stored."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        await alice.session("march").append(
            {"role": "user", "content": "My flat is in Lisbon, near the river."}
        )
        client = Scripted(["In Lisbon."], ["I do not know."])
        for recall in (True, False):
            history = RemoraHistoryProvider(alice, recall=recall)
            await agent_of(client, history).run("Where is my flat near the river?", session=chat_of("june"))  # fmt: skip  # noqa: E501
        first, second = (texts(one) for one in client.seen)
        assert "My flat is in Lisbon" in first[0]
        assert first[1:] == ["Where is my flat near the river?"]
        assert not any("My flat is in Lisbon" in text for text in second)
        assert len(await alice.session("june").history()) == 4


async def test_the_model_sees_a_budget() -> None:
    """The summary stands for what left the buffer."""
    client = Scripted(*[["yes"]] * 4)
    async with Runtime.in_memory(
        config=PLAIN,
        policy=BufferPolicy.window(2, fold="summary"),
        chat_model=ScriptedChatModel(["They counted."] * 4),
    ) as runtime:
        chat = runtime.session("alice", "chat")
        agent = agent_of(client, RemoraHistoryProvider(runtime.user("alice")))
        for number in range(4):
            await agent.run(f"question {number}", session=chat_of())
            await chat.settle()
        shown = texts(client.seen[-1])
        assert "They counted." in shown[0]
        assert shown[1:] == ["question 2", "yes", "question 3"]
        few = RemoraHistoryProvider(runtime.user("alice"), max_tokens=12)
        assert [one.text for one in await few.get_messages("chat")] == ["question 3", "yes"]


async def test_eight_runs_at_once_stay_whole() -> None:
    """Nothing is lost, and each question has its tools and its answer right behind it."""

    async def run(number: int) -> None:
        client = Scripted([call(f"c{number}", f"sea {number}")], [f"answer {number}"])
        agent = agent_of(client, RemoraHistoryProvider(alice))
        await agent.run(f"question {number}", session=chat_of())

    async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.keep_all()) as runtime:
        alice = runtime.user("alice")
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(run, number)
        history = await alice.session("chat").history()
        assert len(history) == 32
        found = set()
        for place in range(0, 32, 4):
            question, calls, result, answer = history[place : place + 4]
            asked = str(question.content).removeprefix("question ")
            found.add(asked)
            assert calls.tool_calls is not None
            assert calls.tool_calls[0].id == f"c{asked}"
            assert (result.content, answer.content) == (f"a ship at the sea {asked}", f"answer {asked}")  # fmt: skip  # noqa: E501
        assert len(found) == 8


async def test_a_run_that_fails_stores_nothing() -> None:
    """The same question can be asked again."""
    client = Scripted([call("c1", "sea")], ValueError("no"), ["yes"])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        agent = agent_of(client, RemoraHistoryProvider(runtime.user("alice")))
        with pytest.raises(ValueError, match="no"):
            await agent.run("now?", session=chat_of())
        assert await chat.history() == []
        await agent.run("now?", session=chat_of())
        assert [message.content for message in await chat.history()] == ["now?", "yes"]
        assert texts(client.seen[-1]) == ["now?"]


_PROCESS = """
import os, sys
import anyio
sys.path[:0] = [{root!r}]
from remora import Runtime
from remora.adapters.agent_framework import RemoraHistoryProvider
from tests.integration.test_agent_framework import PLAIN, Scripted, agent_of, call, chat_of, texts

async def main():
    async with Runtime({directory!r}, config=PLAIN) as runtime:
        client = Scripted(*{answers})
        agent = agent_of(client, RemoraHistoryProvider(runtime.user("alice")))
        await agent.run({question!r}, session=chat_of())
        print(texts(client.seen[0]), flush=True)
        os._exit(0)

anyio.run(main)
"""


def test_a_conversation_is_resumed_in_another_process(tmp_path: Path) -> None:
    """What the first process was told, and what its tool found; it ended without closing."""

    def run(question: str, answers: str) -> str:
        program = _PROCESS.format(
            root=str(Path(__file__).parents[2]),
            directory=str(tmp_path / "memory"),
            question=question,
            answers=answers,
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    run("Look.", '[[call("c1", "sea")], ["A ship."]]')
    shown = run("And now?", '[["Nothing."]]')
    assert shown == "['Look.', 'a ship at the sea', 'A ship.', 'And now?']"


def test_an_agent_on_another_event_loop() -> None:
    """A runtime of `remora.blocking` has a loop of its own; each run brings another one."""
    with blocking.Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        client = Scripted(["one"], ["two"], ["three"])
        agent = agent_of(client, RemoraHistoryProvider(alice), RemoraContextProvider(alice))
        for question in ("hi", "again"):
            asyncio.run(agent.run(question, session=chat_of()))
        chosen = RemoraHistoryProvider(lambda id_: runtime.session(*id_.split("/")))
        asyncio.run(agent_of(client, chosen).run("more", session=chat_of("alice/chat")))
        assert texts(client.seen[2])[-5:] == ["hi", "one", "again", "two", "more"]


async def test_one_agent_for_all_sessions() -> None:
    """A function chooses; ids may be of any kind that remora takes; others are refused first."""
    client = Scripted(*[["hello"]] * 9)
    async with Runtime.in_memory(config=PLAIN) as runtime:
        agent = agent_of(client, RemoraHistoryProvider(lambda id_: runtime.session(*id_.split("/"))))  # fmt: skip  # noqa: E501
        await agent.run("I am Al.", session=chat_of("al/chat"))
        await agent.run("I am Bo.", session=chat_of("bo/chat"))
        assert texts(client.seen[1]) == ["I am Bo."]
        assert len(await runtime.session("al", "chat").history()) == 2
        alice = runtime.user("alice")
        plain_agent = agent_of(client, RemoraHistoryProvider(alice))
        for id_ in ("a/b", "a b", "ü%2f", "x" * 200):
            await plain_agent.run("hi", session=chat_of(id_))
            assert len(await alice.session(id_).history()) == 2
        with pytest.raises(InvalidId):
            await plain_agent.run("hi", session=chat_of("\n"))
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
        question = "Where is my flat near the river?"
        client = Scripted([call("c1", "sea")], ["I see."], ["In Lisbon."], ["As I said."])
        for said, id_ in (
            ("My flat is in Lisbon, near the river.", "march"),
            (question, "june"),
            (question, "march"),
        ):
            agent = agent_of(client, InMemoryHistoryProvider(), memory)
            await agent.run(said, session=chat_of(id_))
        june = texts(client.seen[2])
        assert "My flat is in Lisbon" in june[0]
        assert "a ship" not in june[0]  # results of tools are not remembered
        assert june[1:] == [question]
        march = texts(client.seen[3])[0]  # the agent knows what was said in its own conversation
        assert "My flat is in Lisbon" not in march
        assert await alice.session("march").history() == []

        class Context:
            input_messages = (Message("user", [question]),)
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
        client = Scripted(["Tea."], ["Hm."])
        memory = RemoraContextProvider(lambda _: alice, limit=1, record=False)
        await agent_of(client, memory).run("Which tea do I like?", session=chat_of())
        await agent_of(client, memory).run(Message("user", [Content.from_uri(URL)]), session=chat_of("x"))  # fmt: skip  # noqa: E501
        assert texts(client.seen[0])[0].count("likes") == 1
        assert texts(client.seen[1]) == []
        assert len(await alice.recall("tea", limit=9)) == 3
        with pytest.raises(InvalidInput, match="limit"):
            RemoraContextProvider(alice, limit=0)
        with pytest.raises(InvalidInput, match="not a user"):
            await agent_of(client, RemoraContextProvider(lambda _: None)).run("hi", session=chat_of())  # type: ignore[arg-type, return-value]  # fmt: skip  # noqa: E501


async def test_an_agent_uses_its_memory_by_tools() -> None:
    """It saves and recalls by itself; what it calls wrongly is told to the model."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        saved = {"thinking": "asked", "content": ["lives in Porto"]}
        client = Scripted(
            [calls("c1", "save_to_memory", saved)],
            [calls("c2", "recall_from_memory", {"keywords": ["Porto"]})],
            [calls("c3", "recall_from_memory", {"keywords": []})],
            ["Done."],
        )
        agent = Agent(client, tools=memory_tools(alice.tools()))
        assert (await agent.run("Remember Porto.")).text == "Done."
        assert "lives in Porto" in texts(client.seen[2])[-1]
        names = [one.name for one in memory_tools(alice.tools(edit=True))]
        assert names == [
            "save_to_memory", "recall_from_memory", "correct_memory", "delete_from_memory",
        ]  # fmt: skip


# -- releases --------------------------------------------------------------------------------------


def test_an_untested_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the range that the adapter is tested with; the installed one is in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.warn_if_untested("agent-framework-core")
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.0.1")
    with pytest.warns(versions.UntestedVersion, match=r"agent-framework-core 2\.0\.1 .* with 1\.23"):  # fmt: skip  # noqa: E501
        versions.warn_if_untested("agent-framework-core")
