"""LangGraph over remora: its store, its checkpointer, and graphs that use both; offline."""

from __future__ import annotations

import asyncio
import operator
import random
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import anyio.to_thread
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.types import Command, interrupt

import remora
from remora import Config, Runtime, Session, blocking
from remora.adapters.langgraph import RemoraStore
from remora.adapters.langgraph_checkpoints import RemoraSaver
from remora.api.keyed_state import adapter_state
from remora.errors import CommitFailed, InvalidInput, WrongLoop
from remora.testing import CommitFault, FaultyJournal, HashEmbedder
from tests.configs import PLAIN, PLAIN_TREE, RECALLING
from tests.workers import end_owner, write_config

pytestmark = pytest.mark.anyio


class Said(TypedDict):
    words: Annotated[list[str], operator.add]


def answer(state: Said) -> dict[str, Any]:
    return {"words": [f"{state['words'][-1]}!"]}


def approve(state: Said) -> dict[str, Any]:
    return {"words": [f"{interrupt(state['words'][-1])}"]}


def graph(saver: RemoraSaver, *nodes: Any) -> Any:
    builder = StateGraph(Said)
    places = [START, *(node.__name__ for node in nodes), END]
    for node in nodes:
        builder.add_node(node.__name__, node)
    for place, one in enumerate(places[1:]):
        builder.add_edge(places[place], one)
    return builder.compile(checkpointer=saver)


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


# -- the checkpointer ------------------------------------------------------------------------------


async def test_a_graph_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Its state, its past and an interrupt that waits for a person."""
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        app = graph(RemoraSaver(runtime.user("app")), answer, approve)
        await app.ainvoke({"words": ["one"]}, thread("chat/ä"))
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        app = graph(RemoraSaver(runtime.user("app")), answer, approve)
        state = await app.aget_state(thread("chat/ä"))
        assert (state.values["words"], state.next) == (["one", "one!"], ("approve",))
        done = await app.ainvoke(Command(resume="yes"), thread("chat/ä"))
        assert done["words"] == ["one", "one!", "yes"]
        past = [one.values.get("words") async for one in app.aget_state_history(thread("chat/ä"))]
        assert past == [["one", "one!", "yes"], ["one", "one!"], ["one"], []]
        assert await app.aget_state(thread("another")) != state


async def test_threads_of_a_user_are_sessions() -> None:
    """`Session.fork` copies a thread and `forget` erases it; conversation and checkpoints do not
    disturb each other.
    """
    async with Runtime.in_memory(config=PLAIN) as runtime:
        user = runtime.user("app")
        saver = RemoraSaver(user)
        app = graph(saver, answer)
        await app.ainvoke({"words": ["one"]}, thread("a"))
        await user.session("a").append({"role": "user", "content": "hello"})
        await user.session("a").fork("b")
        await app.ainvoke({"words": ["two"]}, thread("b"))
        assert (await app.aget_state(thread("a"))).values["words"] == ["one", "one!"]
        words = (await app.aget_state(thread("b"))).values["words"]
        assert words == ["one", "one!", "two", "two!"]
        assert await user.session("a").state.items() == []
        threads = {one.config["configurable"]["thread_id"] async for one in saver.alist(None)}
        assert threads == {"a", "b"}
        await user.session("a").forget()
        assert await saver.aget_tuple(thread("a")) is None
        assert await user.session("a").history() == []


async def test_eight_runs_of_one_thread_lose_no_checkpoint() -> None:
    """Each run's checkpoints are there; in an exclusive block each sees what the one before did."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        user = runtime.user("app")
        saver = RemoraSaver(user)
        app = graph(saver, answer)

        async def run(number: int) -> None:
            await app.ainvoke({"words": [f"{number}"]}, thread("mixed"))

        async def run_alone(number: int) -> None:
            async with user.session("whole").exclusive():
                await app.ainvoke({"words": [f"{number}"]}, thread("whole"))

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(run, number)
                tasks.start_soon(run_alone, number)
        ended = [
            one.values["words"]
            async for one in app.aget_state_history(thread("mixed"))
            if not one.next and one.values
        ]
        assert {words[-1] for words in ended} == {f"{number}!" for number in range(8)}
        words = (await app.aget_state(thread("whole"))).values["words"]
        assert words == [word for number in range(8) for word in (f"{number}", f"{number}!")]


async def test_pruning_beside_a_run_loses_no_value() -> None:
    """A run that goes on while old checkpoints are deleted keeps all that its latest one needs."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        saver = RemoraSaver(runtime.user("app"))
        app = graph(saver, answer)

        async def prune() -> None:
            for _ in range(10):
                await saver.aprune(["a"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prune)
            for number in range(10):
                await app.ainvoke({"words": [f"{number}"]}, thread("a"))
        await saver.aprune(["a"])
        words = (await app.aget_state(thread("a"))).values["words"]
        assert words == [word for number in range(10) for word in (f"{number}", f"{number}!")]
        assert len([one async for one in saver.alist(thread("a"))]) == 1
        with pytest.raises(InvalidInput):
            await saver.aprune(["a"], strategy="some")


async def test_a_checkpoint_is_there_whole_or_not_at_all() -> None:
    """One that has a value over the bound is refused, and leaves nothing."""
    config = Config.from_dict({**PLAIN_TREE, "state": {"adapter_max_value_bytes": 2_000}})
    async with Runtime.in_memory(config=config) as runtime:
        saver = RemoraSaver(runtime.user("app"))
        values = {"small": 1, "large": "x" * 3_000}
        large: Any = {**empty_checkpoint(), "channel_values": values}
        versions: Any = {"small": "1", "large": "1"}
        where: Any = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}
        with pytest.raises(InvalidInput, match="adapter_max_value_bytes"):
            await saver.aput(where, large, {}, versions)
        assert await saver.aget_tuple(thread("a")) is None
        assert (await runtime.counts()).state_keys == 0


async def test_a_task_that_is_run_again_writes_once() -> None:
    """Regular writes stay as they were; an error takes the place of an earlier one."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        saver = RemoraSaver(runtime.user("app"))
        where: Any = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}
        put = await saver.aput(where, empty_checkpoint(), {}, {})
        await saver.aput_writes(put, [("words", "a"), ("__error__", "first")], "task")
        await saver.aput_writes(put, [("words", "b"), ("__error__", "then"), ("x", "c")], "task")
        found = await saver.aget_tuple(put)
        assert found is not None
        assert found.pending_writes == [
            ("task", "__error__", "then"),
            ("task", "words", "a"),
            ("task", "x", "c"),
        ]


# -- values of any size ----------------------------------------------------------------------------


class Talk(TypedDict):
    said: Annotated[list[bytes], operator.add]


class Word(TypedDict):
    word: str


def confirm(state: Word) -> dict[str, Any]:
    return {"word": f"{state['word']} {interrupt(state['word'])}"}


def talk(saver: RemoraSaver, speak: Callable[[int], bytes]) -> Any:
    """A graph whose answers are long."""

    def reply(state: Talk) -> dict[str, Any]:
        return {"said": [speak(len(state["said"]))]}

    builder = StateGraph(Talk)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def noise(number: int, size: int = 1_600_000) -> bytes:
    return random.Random(number).randbytes(size)


def size_of(directory: Path) -> int:
    return sum(one.stat().st_size for one in directory.rglob("journal*"))


async def test_a_thread_grows_past_the_bound_of_a_value(tmp_path: Path) -> None:
    """It goes on after a restart and as a copy; what has not changed is stored once."""
    turns = 4
    expected = [one for number in range(turns) for one in (b"q", noise(2 * number + 1))]
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        app = talk(RemoraSaver(runtime.user("app")), noise)
        for _ in range(turns):
            await app.ainvoke({"said": [b"q"]}, thread("a"))
    stored = await anyio.to_thread.run_sync(size_of, tmp_path)
    assert stored < 4 * sum(map(len, expected))  # as JSON, in a write and in a checkpoint
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        user = runtime.user("app")
        saver = RemoraSaver(user)
        app = talk(saver, noise)
        assert (await app.aget_state(thread("a"))).values["said"] == expected
        await user.session("a").fork("b")
        await saver.acopy_thread("a", "c")
        await user.session("a").forget()
        for copy in ("b", "c"):
            await app.ainvoke({"said": [b"more"]}, thread(copy))
            said = (await app.aget_state(thread(copy))).values["said"]
            assert said == [*expected, b"more", noise(2 * turns + 1)]


@pytest.mark.blocking  # the owner is a process
async def test_workers_share_a_thread(tmp_path: Path) -> None:
    """In turns, with large values, one of which deletes what the other knows to be there."""
    file = write_config(tmp_path)
    try:
        async with remora.connect(file) as one, remora.connect(file) as other:
            savers = [RemoraSaver(memory.user("app")) for memory in (one, other, one)]
            for saver in savers:
                await talk(saver, noise).ainvoke({"said": [b"q"]}, thread("a"))
            found = (await talk(savers[1], noise).aget_state(thread("a"))).values["said"]
            assert found == [said for number in (1, 3, 5) for said in (b"q", noise(number))]
            await savers[1].adelete_thread("a")
            await talk(savers[0], noise).ainvoke({"said": found}, thread("a"))
            again = (await talk(savers[1], noise).aget_state(thread("a"))).values["said"]
            assert again == [*found, noise(6)]
    finally:
        await anyio.to_thread.run_sync(end_owner, tmp_path / "memory")


async def test_what_was_stored_in_one_piece_is_read(tmp_path: Path) -> None:
    """As releases before pieces did."""
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        saver = RemoraSaver(runtime.user("app"))
        app = talk(saver, noise)
        await app.ainvoke({"said": [b"q"]}, thread("a"))
        state = adapter_state(runtime.session("app", "a"), "langgraph", opaque=True)
        found = {one.key: one.value for one in await state.items()}
        whole = {
            key: [value[0], b64encode(b"".join(b64decode(found[one]) for one in value[1])).decode()]
            for key, value in found.items()
            if key.startswith("value/") and isinstance(value[1], list)
        }
        assert whole
        await state.change(whole, delete=[key for key in found if key.startswith("piece/")])
        assert (await app.aget_state(thread("a"))).values["said"] == [b"q", noise(1)]
        await app.ainvoke({"said": [b"q"]}, thread("a"))
        said = (await app.aget_state(thread("a"))).values["said"]
        assert said == [b"q", noise(1), b"q", noise(3)]


async def test_a_reader_finds_a_checkpoint_whole_while_others_are_pruned() -> None:
    async with Runtime.in_memory(config=PLAIN) as runtime:
        saver = RemoraSaver(runtime.user("app"))
        app = talk(saver, lambda number: noise(number, 200_000))
        await app.ainvoke({"said": [b"q"]}, thread("a"))
        read = 0
        ended = anyio.Event()

        async def run() -> None:
            for _ in range(8):
                await app.ainvoke({"said": [b"q"]}, thread("a"))
                await saver.aprune(["a"])
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            while not ended.is_set():
                found = await saver.aget_tuple(thread("a"))
                assert found is not None
                assert found.checkpoint["channel_values"]["said"]
                read += 1
        assert read > 8


async def test_pruning_and_deleting_remove_pieces() -> None:
    """A piece that a checkpoint needs stays; another saver that knows of a deleted one is right."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        user = runtime.user("app")
        saver, other = RemoraSaver(user), RemoraSaver(user)
        app = talk(saver, noise)
        for _ in range(3):
            await app.ainvoke({"said": [b"q"]}, thread("a"))
        before = (await runtime.counts()).state_keys
        await other.aprune(["a"])
        assert (await runtime.counts()).state_keys < before / 2
        expected = (await app.aget_state(thread("a"))).values["said"]
        assert expected == [one for at in (1, 3, 5) for one in (b"q", noise(at))]
        await other.adelete_thread("a")
        assert (await runtime.counts()).state_keys == 0
        await app.ainvoke({"said": expected}, thread("a"))  # it knows the pieces of before
        said = (await app.aget_state(thread("a"))).values["said"]
        assert said == [*expected, noise(6)]


async def test_a_write_that_fails_leaves_the_checkpoint_before() -> None:
    """Its pieces were stored first, in writes of their own; the next run uses them."""
    faults: list[CommitFault | None] = []
    journal = FaultyJournal(lambda: faults.pop() if faults else None)
    async with Runtime.in_memory(config=PLAIN, journal=journal) as runtime:
        saver = RemoraSaver(runtime.user("app"))
        where: Any = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}

        def checkpoint(said: bytes) -> Any:
            return {
                **empty_checkpoint(),
                "channel_values": {"said": said},
                "channel_versions": {"said": f"{len(said)}"},
            }

        first, second = checkpoint(noise(1)), checkpoint(noise(2, 20_000_000))
        await saver.aput(where, first, {}, first["channel_versions"])
        keys = (await runtime.counts()).state_keys
        faults += ["refused", None, None, None]
        with pytest.raises(CommitFailed):
            await saver.aput(where, second, {}, second["channel_versions"])
        assert (await runtime.counts()).state_keys > keys
        found = await saver.aget_tuple(where)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"said": noise(1)}
        await saver.aput(where, second, {}, second["channel_versions"])
        found = await saver.aget_tuple(where)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"said": noise(2, 20_000_000)}


async def test_old_checkpoints_make_room(caplog: pytest.LogCaptureFixture) -> None:
    """A thread that has as many keys as are allowed goes on, without its oldest checkpoints; a run
    that waits for a person inside a graph of its graph loses nothing.
    """
    config = Config.from_dict({**PLAIN_TREE, "state": {"adapter_max_keys": 100}})
    async with Runtime.in_memory(config=config) as runtime:
        inner = StateGraph(Word)
        inner.add_node("confirm", confirm)
        inner.add_edge(START, "confirm")
        outer = StateGraph(Word)
        outer.add_node("inner", inner.compile())
        outer.add_edge(START, "inner")
        app = outer.compile(checkpointer=RemoraSaver(runtime.user("app")))
        alone = outer.compile(checkpointer=InMemorySaver())
        for number in range(30):
            for one in (app, alone):
                await one.ainvoke({"word": f"{number}"}, thread("a"))
                done = await one.ainvoke(Command(resume="yes"), thread("a"))
                assert done == {"word": f"{number} yes"}
        past = [one.values async for one in app.aget_state_history(thread("a"))]
        theirs = [one.values for one in alone.get_state_history(thread("a"))]
        assert 3 < len(past) < len(theirs)
        assert past == theirs[: len(past)]
    assert "state_keys_near_limit" in caplog.text
    assert "setting=state.adapter_max_keys" in caplog.text
    assert "checkpoints_pruned" in caplog.text


# -- messages of threads ---------------------------------------------------------------------------


def chatting(saver: RemoraSaver) -> Any:
    def reply(state: MessagesState) -> dict[str, Any]:
        asked = state["messages"][-1].content
        if asked == "fail":
            raise ValueError(asked)
        return {"messages": [AIMessage(f"I hear: {asked}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def ask(text: str, **options: Any) -> Any:
    return {"messages": [HumanMessage(text, **options)]}


async def said_in(session: Session) -> list[Any]:
    return [one.content for one in await session.history()]


async def test_messages_of_a_thread_are_recalled_and_listed(tmp_path: Path) -> None:
    """Once each, after a restart as well; a run that fails keeps the question; a message is changed
    under its id, and what a graph drops to be shorter was said all the same.
    """
    async with Runtime(tmp_path / "memory", config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        plain = chatting(RemoraSaver(alice))
        await plain.ainvoke(ask("nothing of this"), thread("plain"))
        assert await alice.sessions() == []
        app = chatting(RemoraSaver(alice, messages="messages"))
        await app.ainvoke(ask("My boat lies in Porto.", id="m1"), thread("a"))
    async with Runtime(tmp_path / "memory", config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        app = chatting(RemoraSaver(alice, messages="messages"))
        await app.ainvoke(ask("Thanks."), thread("a"))
        with pytest.raises(ValueError, match="fail"):
            await app.ainvoke(ask("fail"), thread("a"))
        said = ["My boat lies in Porto.", "I hear: My boat lies in Porto."]
        more = ["Thanks.", "I hear: Thanks.", "fail"]
        assert await said_in(alice.session("a")) == [*said, *more]
        assert [one.session for one in await alice.sessions()] == ["a"]
        assert "Porto" in (await alice.recall("Where is my boat?"))[0].text
        edited = HumanMessage("My boat lies in Faro.", id="m1")
        await app.aupdate_state(thread("a"), {"messages": [edited]})
        assert await said_in(alice.session("a")) == ["My boat lies in Faro.", said[1], *more]
        await app.aupdate_state(thread("a"), {"messages": [RemoveMessage("m1")]})
        assert "Faro" in (await alice.recall("Where is my boat?"))[0].text


@pytest.mark.parametrize("saver", ["same", "second", "after a restart"])
async def test_a_deleted_message_of_a_thread_stays_deleted(saver: str, tmp_path: Path) -> None:
    """Although the checkpoints have it still: whichever saver goes on. After `forget` the same ids
    are new messages.
    """
    secret = "My PIN is 4711."
    async with Runtime(tmp_path / "memory", config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        app = chatting(RemoraSaver(alice, messages="messages"))
        other = chatting(RemoraSaver(alice, messages="messages"))
        await app.ainvoke(ask(secret, id="m1"), thread("a"))
        await other.ainvoke(ask("Thanks."), thread("a"))
        chat = alice.session("a")
        assert (await chat.delete(["m1", (await chat.history())[1]])).deleted == 2
        if saver != "after a restart":
            await (app if saver == "same" else other).ainvoke(ask("Bye."), thread("a"))
    async with Runtime(tmp_path / "memory", config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        app = chatting(RemoraSaver(alice, messages="messages"))
        if saver == "after a restart":
            await app.ainvoke(ask("Bye."), thread("a"))
        said = ["Thanks.", "I hear: Thanks.", "Bye.", "I hear: Bye."]
        assert await said_in(alice.session("a")) == said
        assert "4711" not in str(await alice.recall("What is my PIN?", limit=20))
        await alice.session("a").forget()
        await app.ainvoke(ask(secret, id="m1"), thread("a"))
        assert await said_in(alice.session("a")) == [secret, f"I hear: {secret}"]


async def test_a_branch_that_a_run_leaves_is_not_recalled() -> None:
    """What was said before it stays, and so do runs at once, which leave no branch."""
    async with Runtime.in_memory(config=RECALLING, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        app = chatting(RemoraSaver(alice, messages="messages"))
        await app.ainvoke(ask("hello"), thread("a"))
        start = (await app.aget_state(thread("a"))).config
        await app.ainvoke(ask("My secret city is Porto."), thread("a"))
        await app.ainvoke(ask("A walk in Porto."), thread("a"))
        await app.ainvoke(ask("My secret city is Faro."), start)
        await app.ainvoke(ask("and then?"), thread("a"))
        heard = ["hello", "My secret city is Faro.", "and then?"]
        said = [text for one in heard for text in (one, f"I hear: {one}")]
        assert await said_in(alice.session("a")) == said
        assert "Porto" not in str(await alice.recall("secret city Porto", limit=20))
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(app.ainvoke, ask(f"at once {number}"), thread("b"))
        assert len(await said_in(alice.session("b"))) == 8


# -- the store -------------------------------------------------------------------------------------


async def test_items_stay_and_belong_to_the_user(tmp_path: Path) -> None:
    """Namespaces and keys of any text; kept over a restart, erased with the user."""
    odd = ("a/b", "ü %", "x\ny")
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        store = RemoraStore(runtime.user("app"))
        await store.aput(odd, "k/ey\n", {"n": 1})
        await store.aput(odd[:1], "k", {"n": 2})
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        user = runtime.user("app")
        store = RemoraStore(user)
        item = await store.aget(odd, "k/ey\n")
        assert item is not None
        assert (item.namespace, item.key, item.value) == (odd, "k/ey\n", {"n": 1})
        assert await store.alist_namespaces() == [odd[:1], odd]
        assert [one.value["n"] for one in await store.asearch(odd[:1])] == [2, 1]
        assert await store.asearch(("a",)) == []  # labels are whole
        assert await user.state.items() == []
        created = item.created_at
        await store.aput(odd, "k/ey\n", {"n": 3})
        item = await store.aget(odd, "k/ey\n")
        assert item is not None
        assert (item.created_at, item.value) == (created, {"n": 3})
        await user.forget()
        assert await store.aget(odd, "k/ey\n") is None


async def test_filters_pages_and_namespaces() -> None:
    """Operators, fields of fields, the newest first; wildcards."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        store = RemoraStore(runtime.user("app"))
        for number in range(5):
            value = {"n": number, "at": {"city": "Oslo" if number % 2 else "Rome"}, "tag": "x"}
            await store.aput(("docs", f"d{number % 2}"), f"k{number}", value)

        async def found(**wanted: Any) -> list[int]:
            return [one.value["n"] for one in await store.asearch(("docs",), **wanted)]

        assert await found(filter={"n": {"$gt": 1, "$lte": 3}}) == [3, 2]
        assert await found(filter={"n": {"$ne": 2}, "at.city": "Rome"}) == [4, 0]
        assert await found(filter={"at": {"city": "Oslo"}}) == [3, 1]
        assert await found(filter={"none": {"$gt": 1}}) == []
        assert await found(limit=2, offset=1) == [3, 2]
        with pytest.raises(InvalidInput, match="operator"):
            await found(filter={"n": {"$near": 1}})
        with pytest.raises(InvalidInput, match=r"\$or"):
            await found(filter={"$or": [{"n": 1}, {"n": 2}]})
        assert await store.alist_namespaces(suffix=("d1",)) == [("docs", "d1")]
        assert await store.alist_namespaces(max_depth=1) == [("docs",)]
        condition = MatchCondition("prefix", ("*", "d0"))
        (listed,) = await store.abatch([ListNamespacesOp(match_conditions=(condition,))])
        assert listed == [("docs", "d0")]


async def test_a_batch_reads_first_and_writes_once() -> None:
    """All of its changes or none, the last one of a key; unknown operations are refused."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        store = RemoraStore(runtime.user("app"))
        await store.aput(("a",), "old", {"n": 0})
        got, *_ = await store.abatch(
            [
                GetOp(("a",), "old"),
                PutOp(("a",), "old", None),
                PutOp(("a",), "new", {"n": 1}),
                PutOp(("a",), "new", {"n": 2}),
                SearchOp(("a",)),
            ]
        )
        assert got is not None
        assert [(one.key, one.value) for one in await store.asearch(("a",))] == [("new", {"n": 2})]
        bad: Any = [PutOp(("a",), "x", {"n": 3}), PutOp(("a",), "y", {"n": object()})]
        odd: Any = [PutOp(("a",), "x", {"n": 3}), "put"]
        for wrong in (bad, odd):
            with pytest.raises(InvalidInput):
                await store.abatch(wrong)
        assert await store.aget(("a",), "x") is None


async def test_search_by_meaning() -> None:
    """Best first; what is not indexed comes last; the index stays with the item."""
    embeddings = DeterministicFakeEmbedding(size=24)
    index: Any = {"dims": 24, "embed": embeddings, "fields": ["text"]}
    async with Runtime.in_memory(config=PLAIN) as runtime:
        user = runtime.user("app")
        store = RemoraStore(user, index=index)
        for text in ("tea", "coffee", "milk"):
            await store.aput(("drinks",), text, {"text": text})
        await store.aput(("drinks",), "none", {"text": "water"}, index=False)
        await store.aput(("drinks",), "other", {"text": "x", "more": ["soup"]}, ["more[*]"])
        found = await RemoraStore(user, index=index).asearch(("drinks",), query="coffee")
        assert (found[0].key, found[-1].key, len(found)) == ("coffee", "none", 5)
        assert found[0].score == pytest.approx(1.0, abs=1e-5)
        assert found[-1].score is None
        assert (await store.asearch(("drinks",), query="soup", limit=1))[0].key == "other"
        assert len(await RemoraStore(user).asearch(("drinks",), query="coffee")) == 5


async def test_expired_items_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once for readers, and from the disk with a sweep; a read begins the time anew if asked."""
    now = [1_000_000_000]
    monkeypatch.setattr("remora.adapters.langgraph.write_time", lambda: now[0])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        user = runtime.user("app")
        store = RemoraStore(user, ttl={"default_ttl": 1, "refresh_on_read": True})
        for name in ("read", "left"):
            await store.aput(("a",), name, {"n": 1})
        await store.aput(("a",), "stays", {"n": 1}, ttl=None)
        now[0] += 40_000_000
        assert await store.aget(("a",), "read") is not None
        now[0] += 40_000_000
        left = await store.asearch(("a",), refresh_ttl=False)
        assert {one.key for one in left} == {"read", "stays"}
        assert await store.asweep_ttl() == 1
        now[0] += 40_000_000
        assert await store.aget(("a",), "read") is None
        assert await store.asweep_ttl() == 1
        assert (await user.stats()).state_keys == 1


async def test_the_event_loop_is_not_blocked() -> None:
    """Sync methods work in threads, and refuse where they would wait for themselves."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        user = runtime.user("app")
        store, saver = RemoraStore(user), RemoraSaver(user)
        with pytest.raises(WrongLoop):
            store.put(("a",), "k", {})
        with pytest.raises(WrongLoop):
            saver.get_tuple(thread("a"))
        await anyio.to_thread.run_sync(store.put, ("a",), "k", {"n": 1})
        assert await anyio.to_thread.run_sync(saver.get_tuple, thread("a")) is None
        item = await store.aget(("a",), "k")
        assert item is not None


def test_without_async() -> None:
    """With a user of `remora.blocking`; its async methods work on every loop."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        user = runtime.user("app")
        app = graph(RemoraSaver(user), answer)
        assert app.invoke({"words": ["one"]}, thread("a"))["words"] == ["one", "one!"]
        assert app.invoke({"words": ["two"]}, thread("a"))["words"][2:] == ["two", "two!"]
        assert len(list(app.get_state_history(thread("a")))) == 6
        store = RemoraStore(user)
        store.put(("a",), "k", {"n": 2})
        found = asyncio.run(store.aget(("a",), "k"))
        assert found is not None
        assert found.value == {"n": 2}


async def test_as_many_writers_as_there_are_lose_nothing() -> None:
    """Those for whom the mailbox has no room wait, as in LangGraph's own stores."""
    config = Config.from_dict({**PLAIN_TREE, "mailbox": {"max_messages": 100}})
    async with Runtime.in_memory(config=config) as runtime:
        store = RemoraStore(runtime.user("app"))
        async with anyio.create_task_group() as tasks:
            for number in range(400):
                place = ("a", f"w{number % 8}")
                tasks.start_soon(store.aput, place, f"{number}", {"n": number})
        found = await store.asearch(("a",), limit=1_000)
        assert sorted(one.value["n"] for one in found) == list(range(400))
