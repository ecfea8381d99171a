"""What the adapters of all frameworks for agents do, told once.

The file of a framework has a class that derives from these, with the few methods by which its
agents are made, run and watched. Only what is particular to that framework has tests of its own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import anyio
import pytest

import remora
from remora import BufferPolicy, Message, Runtime, blocking
from remora.adapters.sessions import stored_messages
from remora.errors import InvalidMessage
from remora.messages import split_tool_calls
from remora.testing import HashEmbedder, ScriptedChatModel
from tests.configs import PLAIN, RECALLING
from tests.workers import end_owner, write_config

__all__ = [
    "EDITING",
    "FLAT",
    "THOUGHT",
    "URL",
    "WHERE",
    "Blocking",
    "Call",
    "Connected",
    "Conversations",
    "Driver",
    "Given",
    "MemoryTools",
    "Messages",
    "Recalling",
    "Redacted",
    "late",
    "look_at",
    "parts_of",
]

FLAT = {"role": "user", "content": "My flat is in Lisbon, near the river."}
WHERE = "Where is my flat near the river?"
EDITING = ["save_to_memory", "recall_from_memory", "correct_memory", "delete_from_memory"]
_STANDS = re.compile(r"(\[(?!image\])[\w./+-]+\] ?)+")  # a line of words that stand for parts
THOUGHT = "think " * 350
URL = "data:image/png;base64,iVBORw0KGgo="
ORDINARY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is there?"},
            {"type": "image_url", "image_url": {"url": URL}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": id_,
                "type": "function",
                "function": {"name": "look", "arguments": f'{{"at":"{at}"}}'},
            }
            for id_, at in (("c1", "sea"), ("c2", "bay"))
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a ship"},
    {"role": "tool", "tool_call_id": "c2", "content": "a gull"},
    {"role": "assistant", "content": "A ship and a gull."},
]


class Late:
    """A module that is imported when it is first used: collecting the tests does not wait."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def late(name: str) -> Any:
    """A `Late` module."""
    return Late(name)


class Call(NamedTuple):
    """A model's call of a tool; `look` is what every agent has."""

    id: str
    arguments: dict[str, Any]
    name: str = "look"


def parts_of(answer: Any) -> list[Any]:
    """What a model's answer consists of: texts and calls."""
    return answer if isinstance(answer, list) else [answer]


class Given(NamedTuple):
    """What an agent is given.

    Attributes:
        session: its conversation.
        recall: what other conversations have is shown to it.
        tools: by which it uses its memory, or None.
        memory: the runtime, or the client.
        user: whose memory it uses.
        chat: the name of its conversation.
    """

    session: Any
    recall: bool
    tools: Any
    memory: Any
    user: str
    chat: str


_REACHED: ContextVar[anyio.Event] = ContextVar("reached")


async def look_at(at: str) -> str:
    """What the tool `look` of every agent finds; at the edge, the call never ends."""
    if at == "the edge":
        _REACHED.get().set()
        await anyio.sleep_forever()
    return f"a ship at the {at}"


class Driver:
    """How a framework's agents are used.

    A model is made of its answers: a text, an exception, or a list of texts and `Call`. Its agent
    has the tool ``look(at)``, which returns ``a ship at the {at}``.
    """

    whole: ClassVar[bool] = True
    """The messages of a run are stored together, when it has ended."""
    prompt: ClassVar[list[str]] = []
    """The instructions of each agent, if its model is shown them among the messages."""
    repair: ClassVar[str] = ""
    """The words of a result that the framework stores for a call that another run has open."""
    served: ClassVar[bool] = False
    """The memory is a `Client` of a service."""

    def model(self, *answers: Any) -> Any:
        raise NotImplementedError

    def shown(self, model: Any) -> list[list[str]]:
        """What a model was shown by each of its calls: each text, and each result of a tool."""
        raise NotImplementedError

    def agent(self, model: Any, given: Given) -> Any:
        raise NotImplementedError

    async def ask(self, agent: Any, said: str) -> None:
        """Run an agent."""
        raise NotImplementedError

    def ask_blocking(self, agent: Any, said: str) -> None:
        """The same, as a program without a loop does it."""
        raise NotImplementedError

    def give(
        self,
        memory: Any,
        user: str = "alice",
        chat: str = "chat",
        *,
        recall: bool = False,
        tools: bool = False,
    ) -> Given:
        own = memory.user(user).tools() if tools else None
        return Given(self.session(memory, user, chat), recall, own, memory, user, chat)

    async def run(self, memory: Any, model: Any, said: str, **given: Any) -> None:
        """Ask a new agent."""
        await self.ask(self.agent(model, self.give(memory, **given)), said)

    def session(self, memory: Any, user: str = "alice", chat: str = "chat") -> Any:
        """Where the adapter stores what is said."""
        return memory.session(user, chat)

    @asynccontextmanager
    async def memory(self, path: Path, *, kept: bool = False, **options: Any) -> AsyncIterator[Any]:
        """A memory, which the next one at this path goes on with if it is kept."""
        options = {"config": PLAIN, **options}
        make = Runtime(path / "memory", **options) if kept else Runtime.in_memory(**options)
        async with make as runtime:
            if not self.served:
                yield runtime
                return
            connected = import_module("tests.integration.test_client").connected
            async with connected(runtime, path) as client:
                yield client


def said_in(stored: Iterable[Any]) -> list[Any]:
    """Of each stored message its text, or the ids of its calls."""
    return [one.content or [call.id for call in one.tool_calls or ()] for one in stored]


class Conversations(Driver):
    """An agent's conversation is a session."""

    async def test_an_agent_goes_on_with_its_conversation(self, tmp_path: Path) -> None:
        """After a restart, a new agent's model is shown once what was said, what tools found, and
        what somebody else said in the session; another user's is not.
        """
        looks = [Call("c1", {"at": "sea"}), Call("c2", {"at": "bay"})]
        async with self.memory(tmp_path, kept=True) as memory:
            await self.run(memory, self.model(looks, "Two ships."), "Look.")
            await self.session(memory).append({"role": "user", "content": "Anna here."})
        async with self.memory(tmp_path, kept=True) as memory:
            model = self.model("At the sea.", "Nothing.")
            await self.run(memory, model, "Where?")
            await self.run(memory, model, "What did I ask?", user="bob")
            own, other = self.shown(model)
            said = ["Look.", "a ship at the sea", "a ship at the bay", "Two ships.", "Anna here."]
            assert own == [*self.prompt, *said, "Where?"]
            assert other == [*self.prompt, "What did I ask?"]
            stored = await self.session(memory).history()
        assert [one.role for one in stored] == [
            *("user", "assistant", "tool", "tool", "assistant"),
            *("user", "user", "assistant"),
        ]
        assert [one.id for one in stored[1].tool_calls or ()] == ["c1", "c2"]
        assert [one.tool_call_id for one in stored[2:4]] == ["c1", "c2"]
        assert not any("Be kind." in str(one) for one in stored)

    async def test_eight_runs_of_one_session_at_once(self, tmp_path: Path) -> None:
        """Nothing is lost or doubled, and each run's messages are in order: next to each other, if
        they are stored together, or in an exclusive block. A later run is shown all of them.
        """

        async def run(number: int, chat: str) -> None:
            model = self.model([Call(f"c{number}", {"at": f"sea {number}"})], f"answer {number}")
            if chat == "exclusive":
                async with self.session(memory, chat=chat).exclusive():
                    await self.run(memory, model, f"question {number}", chat=chat)
            else:
                await self.run(memory, model, f"question {number}", chat=chat)

        async with self.memory(tmp_path, policy=BufferPolicy.keep_all()) as memory:
            for chat in ("free", *([] if self.served else ["exclusive"])):
                await self.run(memory, self.model("hello"), "first", chat=chat)
                async with anyio.create_task_group() as tasks:
                    for number in range(8):
                        tasks.start_soon(run, number, chat)
                stored = [
                    one
                    for one in await self.session(memory, chat=chat).history()
                    if not self._is_repair(one)
                ]
                told = [str(said).strip("[]'") for said in said_in(stored)]
                assert len(told) == 34
                for number in range(8):
                    wanted = (f"question {number}", f"c{number}", f"answer {number}")
                    asked, called, answered = map(told.index, wanted)
                    (found,) = [at for at, said in enumerate(told) if f"sea {number}" in said]
                    places = [asked, called, found, answered]
                    assert places == sorted(places), (chat, told)
                    assert stored[found].tool_call_id == f"c{number}"
                    if self.whole or chat == "exclusive":
                        assert answered == asked + 3, (chat, told)
                model = self.model("done")
                await self.run(memory, model, "And now?", chat=chat)
                assert len(self.shown(model)[0]) == len(self.prompt) + 2 + 3 * 8 + 1, chat

    def _is_repair(self, message: object) -> bool:
        return bool(self.repair) and self.repair in str(message)

    async def test_a_run_that_fails(self, tmp_path: Path) -> None:
        """Its error is raised. Nothing of it is stored, or what is stored is no half of a call; the
        same question can be asked again.
        """
        model = self.model([Call("c1", {"at": "sea"})], ValueError("the model is away"), "yes")
        async with self.memory(tmp_path) as memory:
            with pytest.raises(Exception, match="the model is away"):
                await self.run(memory, model, "now?")
            if self.whole:
                assert await self.session(memory).history() == []
            await self.run(memory, model, "now?")
            stored = await self.session(memory).history()
            calls = [call.id for one in stored for call in one.tool_calls or ()]
            assert [one.tool_call_id for one in stored if one.role == "tool"] == calls
            assert [said_in(stored)[0], said_in(stored)[-1]] == ["now?", "yes"]
            if self.whole:
                assert len(stored) == 2
                assert self.shown(model)[-1] == [*self.prompt, "now?"]

    async def test_a_run_that_is_cut(self, tmp_path: Path) -> None:
        """Its task is cancelled while a tool works: nothing of it is stored, or the question; the
        next run goes on.
        """
        reached = anyio.Event()
        _REACHED.set(reached)
        async with self.memory(tmp_path) as memory:
            cut = self.model([Call("c1", {"at": "the edge"})], "never")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.run, memory, cut, "What is there?")
                await reached.wait()
                tasks.cancel_scope.cancel()
            session = self.session(memory)
            kept = [] if self.whole else ["What is there?"]
            assert said_in(await session.history())[:1] == kept
            model = self.model("Nothing.")
            await self.run(memory, model, "Again?")
            shown = self.shown(model)[0][len(self.prompt) :]
            assert (shown[:-1][:1], shown[-1]) == (kept, "Again?")
            assert split_tool_calls((await session.load()).messages) == 0

    async def test_a_message_that_is_deleted(self, tmp_path: Path) -> None:
        """The next run is not shown it, and no other conversation recalls it."""
        options: dict[str, Any] = {"config": RECALLING, "embedder": HashEmbedder()}
        async with self.memory(tmp_path, **options) as memory:
            await self.run(memory, self.model("Noted."), str(FLAT["content"]))
            session = self.session(memory)
            await session.delete((await session.history())[0])
            model = self.model("Where?")
            await self.run(memory, model, "And now?")
            assert self.shown(model)[0][len(self.prompt) :] == ["Noted.", "And now?"]
            user = memory.user(session.key.user)
            assert "Lisbon" not in str(await user.recall(WHERE, limit=20))


class Connected(Driver):
    """Workers have one memory, of `remora.connect`."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Iterator[Path]:
        """The configuration of a memory whose owner ends with the test."""
        yield write_config(tmp_path)
        end_owner(tmp_path / "memory")

    @pytest.mark.blocking  # the owner is a process
    async def test_workers_share_a_conversation(self, file: Path) -> None:
        """Each is shown what an agent of the other has stored."""
        async with remora.connect(file) as one, remora.connect(file) as other:
            for number, memory in enumerate((one, other, one)):
                model = self.model(f"answer {number}")
                await self.run(memory, model, f"question {number}")
            said = [text for at in range(2) for text in (f"question {at}", f"answer {at}")]
            assert self.shown(model)[0] == [*self.prompt, *said, "question 2"]


class Recalling(Driver):
    """A model is shown what `Session.load` gives."""

    async def test_an_agent_recalls_other_conversations(self, tmp_path: Path) -> None:
        """Right before the user's new message, if it is asked for; what is recalled is not stored,
        and nothing of another user is.
        """
        options: dict[str, Any] = {"config": RECALLING, "embedder": HashEmbedder()}
        async with self.memory(tmp_path, **options) as memory:
            await self.session(memory, chat="march").append(FLAT)
            secret = {**FLAT, "content": "My flat is in Faro, near the river."}
            await self.session(memory, "bob", "march").append(secret)
            june = self.session(memory, chat="june")
            await june.append({"role": "user", "content": "Hello!"})
            model = self.model("In Lisbon.")
            await self.run(memory, model, WHERE, chat="june", recall=True)
            *before, recalled, question = self.shown(model)[0]
            assert (before, question) == ([*self.prompt, "Hello!"], WHERE)
            assert "My flat is in Lisbon" in recalled
            assert "Faro" not in recalled
            model = self.model("I do not know.")
            await self.run(memory, model, WHERE, chat="july", recall=False)
            assert self.shown(model) == [[*self.prompt, WHERE]]
            assert said_in(await june.history()) == ["Hello!", WHERE, "In Lisbon."]

    async def test_the_model_sees_a_budget(self, tmp_path: Path) -> None:
        """The summary stands for what left the buffer."""
        options: dict[str, Any] = {
            "policy": BufferPolicy.window(2, fold="summary"),
            "chat_model": ScriptedChatModel(["They counted."] * 9),
        }
        async with self.memory(tmp_path, **options) as memory:
            model = self.model(*["yes"] * 4)
            for number in range(4):
                await self.run(memory, model, f"question {number}")
                await memory.settle()
            summary, *shown = self.shown(model)[-1][len(self.prompt) :]
            assert "They counted." in summary
            assert shown == ["question 2", "yes", "question 3"]


class MemoryTools(Driver):
    """Agents use their own long-term memory by tools."""

    def memory_tools(self, tools: Any) -> Iterable[Any]:
        """The framework's tools of `User.tools`."""
        raise NotImplementedError

    async def test_an_agent_uses_its_memory_by_tools(self, tmp_path: Path) -> None:
        """It saves in one session, and finds it in another; a call that is wrong is answered, and
        the run goes on.
        """
        saved = {"thinking": "a fact", "content": ["Alice is allergic to nuts."]}
        model = self.model(
            [Call("c0", {"keywords": []}, "recall_from_memory")],
            [Call("c1", saved, "save_to_memory")],
            "Noted.",
            [Call("c2", {"keywords": ["allergic"]}, "recall_from_memory")],
            "To nuts.",
        )
        options: dict[str, Any] = {"config": RECALLING, "embedder": HashEmbedder()}
        async with self.memory(tmp_path, **options) as memory:
            for chat in ("march", "june"):
                await self.run(memory, model, f"This is {chat}.", chat=chat, tools=True)
            shown = self.shown(model)
            assert '"success": false' in shown[1][-1].replace('":f', '": f')
            assert "allergic to nuts" in shown[-1][-1]
            tools = memory.user("alice").tools(edit=True)
            assert [one.name for one in self.memory_tools(tools)] == EDITING


class Blocking(Driver):
    """Programs without a loop use `remora.blocking`."""

    @pytest.mark.usefixtures("own_loop")
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of calls that frameworks make
    def test_with_a_blocking_runtime(self) -> None:
        """By the framework's own blocking call, with its tools, and on every event loop."""
        tools = isinstance(self, MemoryTools)
        recall = Call("c1", {"keywords": ["x"]}, "recall_from_memory")
        with blocking.Runtime.in_memory(config=PLAIN) as memory:
            used = recall if tools else Call("c1", {"at": "sea"})
            model = self.model([used], "hi", "Ada.", "Again.")
            for said in ("I am Ada.", "Who am I?"):
                self.ask_blocking(self.agent(model, self.give(memory, tools=tools)), said)

            async def run() -> None:
                await self.run(memory, model, "And now?", tools=tools)

            anyio.run(run)
            first, _, *others = self.shown(model)[-1][len(self.prompt) :]
            assert (first, others) == ("I am Ada.", ["hi", "Who am I?", "Ada.", "And now?"])
            assert self.session(memory).size() == 8


def without_metadata(chats: Iterable[Any]) -> list[Any]:
    """Chat messages alone, whose arguments have no blanks."""
    found = [{key: chat[key] for key in chat if key != "metadata"} for chat in chats]
    for function in [call["function"] for one in found for call in one.get("tool_calls", ())]:
        function["arguments"] = function["arguments"].replace(" ", "")
    return found


def _texts(content: Any) -> list[str]:
    """The lines that somebody said."""
    texts = [content] if isinstance(content, str) else [one.get("text") for one in content or ()]
    lines = [line for text in texts for line in (text or "").splitlines()]
    return [line for line in lines if line.strip() and not line.startswith("[")]


class Messages:
    """A framework's messages become chat messages, and are made of them again."""

    def to_chat(self, messages: Iterable[Any]) -> list[Any]:
        raise NotImplementedError

    def of_chat(self, stored: Iterable[Any]) -> list[Any]:
        raise NotImplementedError

    def every(self) -> list[Any]:
        """Messages of each kind."""
        raise NotImplementedError

    def ordinary(self) -> list[Any]:
        """Those that are equivalent to `ORDINARY`."""
        raise NotImplementedError

    def heavy(self) -> list[Any]:
        """An answer with `THOUGHT` as its reasoning."""
        raise NotImplementedError

    def unwritable(self) -> list[Any]:
        """Messages that cannot be written as JSON."""
        return []

    def plain(self, message: Any) -> Any:
        """What is compared of a message."""
        return message

    async def test_each_kind_of_message_comes_back_as_it_was(self) -> None:
        """Through the journal, equal to the last field; alone, and next to all the others."""
        every = self.every()
        async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.keep_all()) as runtime:
            for place, given in enumerate([*([one] for one in every), every]):
                chat = runtime.session("alice", f"{place}")
                await chat.append(self.to_chat(given))
                found = self.of_chat(await chat.history())
                assert list(map(self.plain, found)) == list(map(self.plain, given)), given

    async def test_what_is_kept_for_the_model_counts(self) -> None:
        """Reasoning, files and calls of a provider that only the original has: a context with many
        such messages is within its budget, by their bytes.
        """
        given = self.to_chat(self.heavy())
        async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.keep_all()) as runtime:
            chat = runtime.session("alice", "chat")
            for number in range(30):
                await chat.append([{"role": "user", "content": f"question {number}"}])
                await chat.append(given)
            await chat.append({"role": "user", "content": "last"})
            shown = await stored_messages(chat, await chat.load(max_tokens=2_000))
            size = sum(len(str(one.metadata)) for one in shown if isinstance(one, Message))
            assert 0 < size < 5 * 2_000, size  # four characters a token, and names

    async def test_messages_are_those_of_a_chat_api(self) -> None:
        """To other readers, who see each text once; what others stored becomes equivalent."""
        made = self.to_chat(self.ordinary())
        kept = "".join(str(one.get("metadata", "")) for one in made)
        assert without_metadata(made) == ORDINARY
        for text in ("Be kind.", "a ship", "a gull", "A ship", URL[-8:]):
            assert text not in kept, text
        async with Runtime.in_memory(config=PLAIN) as runtime:
            chat = runtime.session("alice", "chat")
            await chat.append(ORDINARY)
            again = self.to_chat(self.of_chat(await chat.history()))
        assert without_metadata(again) == ORDINARY

    async def test_what_nobody_said_is_not_recalled(self) -> None:
        """A part without text has a word in its place, for readers of a chat: no line of such words
        is found or shown in another conversation, and all that was said is.
        """
        given = self.to_chat(self.every())
        words = " ".join(re.findall(r"[a-z]+", " ".join(str(one.get("content")) for one in given)))
        async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
            alice = runtime.user("alice")
            for place, one in enumerate(given):
                await alice.session(f"{place}").append(one)
            await alice.session("plain").append({"role": "user", "content": "[speech] [event]"})
            found = [one.text for one in await alice.recall(f"{words} event", limit=1_000)]
            lines = [line for text in found for line in text.splitlines()]
            assert "[speech] [event]" in lines
            assert [line for line in lines if _STANDS.fullmatch(line)] == ["[speech] [event]"]
            said = [text for one in given for text in _texts(one.get("content"))]
            assert set(said) <= set(lines)

    async def test_what_is_no_message_is_refused(self) -> None:
        """The error says which one, and nothing of the batch is stored."""
        async with Runtime.in_memory(config=PLAIN) as runtime:
            chat = runtime.session("alice", "chat")
            for wrong in (7, "x", {"role": "nobody", "content": "x"}, *self.unwritable()):
                with pytest.raises(InvalidMessage) as caught:
                    await chat.append(self.to_chat([*self.ordinary()[-1:], wrong]))
                assert caught.value.index == 1, wrong
            assert await chat.history() == []


class Redacted(Messages):
    """What an adapter keeps beside a text has not the text once more."""

    def secrets(self) -> list[Any]:
        """Messages in which ``4711`` is a part of what is said."""
        raise NotImplementedError

    async def test_a_redaction_hook_changes_a_text_everywhere(self) -> None:
        """A message is made again of what the hook left."""
        said = re.compile(r"(?<!\d)4711(?!\d)")  # and no part of a time
        redact = partial(said.sub, "***")
        async with Runtime.in_memory(config=PLAIN, redact=redact) as runtime:
            chat = runtime.session("alice", "chat")
            await chat.append(self.to_chat(self.secrets()))
            found = list(map(self.plain, self.of_chat(await chat.history())))
            assert len(found) == len(self.secrets())
            assert said.search(str(found)) is None
