"""Each argument of each public verb: a wrong one is refused, typed, and nothing is written."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from remora import Agent, KeyedState, Runtime, Session, SharedMember, SharedScope, Turn, User
from remora.errors import InvalidId, InvalidInput, InvalidMessage, RemoraError
from remora.results import MemoryTools
from tests.served import connected, is_served
from tests.verbs import CALLS, World, open_world, said

pytestmark = pytest.mark.anyio

NOT_A_NUMBER = float("nan")
ENDLESS = "x" * 1_100_000


def ignore(*_: object) -> None:
    """A function: no argument but a report of progress may be one."""


BAD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, NOT_A_NUMBER, float("inf"), float("-inf"), 2**63, 2**70, -(2**70),
    "", " ", "a\0b", "\ud800", "x" * 2_000, ENDLESS, "..", b"x", object(), ignore, range(3),
    datetime.max.replace(tzinfo=UTC), [], {}, (), [None],
    ["\ud800"], [b"x"], [[]], [{}], {"x": None},
    {"\ud800": said("x")}, {"a": 2**70}, {"role": "user", "content": None},
    {"role": "user", "content": "x", "created_at": NOT_A_NUMBER},
    {"content": "x", "importance": 2**70}, {"content": "x", "created_at": 2**70},
    {"content": "x", "type": []}, {"messages": 5}, {"messages": [None]},
    {"messages": [said("x")], "summary": 5}, [(1, 2, 3)], [(1, 2)], [None, None],
)  # fmt: skip
"""A value of each wrong kind; some are legal for some arguments, and may succeed there."""

Handle = Callable[[World], Any]
CLASSES: dict[str, type] = {
    one.__name__: one
    for one in (
        Agent,
        KeyedState,
        MemoryTools,
        Runtime,
        Session,
        SharedMember,
        SharedScope,
        Turn,
        User,
    )
}
HANDLES: dict[str, Handle] = {
    "Session": lambda w: w.session,
    "User": lambda w: w.user,
    "Agent": lambda w: w.user.agent("cook"),
    "KeyedState": lambda w: w.user.state,
    "SharedMember": lambda w: w.member,
    "SharedScope": lambda w: w.runtime.shared("team"),
    "Runtime": lambda w: w.runtime,
    "MemoryTools": lambda w: w.user.tools(),
}
MAKERS = (
    "Agent.tools", "MemoryTools.call", "MemoryTools.recall_from_memory",
    "MemoryTools.save_to_memory", "Runtime.message_tokens", "Runtime.reschedule",
    "Runtime.session", "Runtime.shared", "Runtime.user", "Session.turn", "SharedScope.as_",
    "User.agent", "User.session", "User.tools",
)  # fmt: skip
"""Public functions with arguments that are not coroutines of a class that `remora` shows."""

VALID: Mapping[str, Callable[[World], Any]] = {
    "messages": lambda w: said(w.text),
    "conversations": lambda w: [said(w.text)],
    "session": lambda w: f"copy {w.number}",
    "user": lambda _: "ada",
    "agent": lambda _: "cook",
    "who": lambda _: "owner",
    "name": lambda _: "recall_from_memory",
    "query": lambda _: "tea",
    "queries": lambda _: ["tea"],
    "content": lambda w: [w.text],
    "text": lambda w: w.text,
    "to": lambda _: "reader",
    "path": lambda w: w.file,
    "dest": lambda w: w.file,
    "ids": lambda _: [],
    "which": lambda _: [],
    "state": lambda _: {"messages": []},
    "arguments": lambda _: {"keywords": ["tea"]},
    "keywords": lambda _: ["tea"],
    "thinking": lambda _: "",
    "message": lambda _: said("x"),
    "task": lambda _: "fifo_cleanup",
    "seconds": lambda _: 60.0,
    "batches": lambda w: [(w.session, said(w.text), None)],
    "keep": lambda _: 1_000,
    "key": lambda _: "step",
    "keys": lambda _: ["step"],
    "put": lambda w: {"step": w.number},
    "value": lambda w: w.number,
    "id": lambda _: "0" * 32,
    "reply": lambda w: w.text,
}
"""For each required argument by its name, a value that is legal."""

SPECIAL: Mapping[str, Callable[[World], Any]] = {
    "Session.rewind.to": lambda _: 1,
    "User.append_many.messages": lambda w: {"chat": said(w.text)},
    "Runtime.import_.path": lambda w: w.path / "export.jsonl",
    "Session.load.at": lambda _: 1,
}
"""Where one name means different things."""


def parameters(verb: str) -> dict[str, inspect.Parameter]:
    kind, _, method = verb.partition(".")
    found = dict(inspect.signature(getattr(CLASSES[kind], method)).parameters)
    del found["self"]
    return found


def verbs() -> list[str]:
    return sorted(verb for verb in (*CALLS, *MAKERS) if parameters(verb))


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def world(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """One for all verbs. Whatever is taken for a relative path is in its own directory."""
    path = tmp_path_factory.mktemp("world")
    with contextlib.chdir(path):
        async with open_world(path) as opened:
            yield opened


async def legal_arguments(world: World, verb: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A legal value for each argument that must be given."""
    arguments: dict[str, Any] = {}
    for name, parameter in wanted.items():
        if parameter.default is not parameter.empty:
            continue
        if verb == "User.import_session" and name == "export":
            arguments[name] = await world.session.export()
            continue
        arguments[name] = (SPECIAL.get(f"{verb}.{name}") or VALID[name])(world)
    if verb == "User.prune":
        arguments["keep"] = 1_000
    return arguments


async def contents(world: World) -> object:
    """What the journal holds: a refused call changes nothing of it."""
    counts = await world.runtime.counts()
    return (
        (counts.sessions, counts.messages, counts.memories),
        await world.session.size(),
        (await world.user.inspect()).working_items,
        await world.member.members(),
        await world.user.state.items(),
    )


@asynccontextmanager
async def opened(world: World, verb: str) -> AsyncIterator[Any]:
    """What the verb is a method of."""
    kind = verb.partition(".")[0]
    if kind == "Turn":
        async with world.session.turn(said(world.text)) as turn:
            yield turn
    else:
        yield HANDLES[kind](world)


async def call(handle: Any, verb: str, arguments: dict[str, Any]) -> Exception | None:
    """Call the verb; returns what it raised."""
    try:
        found = getattr(handle, verb.partition(".")[2])(**arguments)
        if inspect.isawaitable(found):
            await found
    except Exception as e:
        return e
    return None


_numbers = itertools.count(1)


@pytest.fixture(scope="module")
async def remote(world: World, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """The same memory, for a client of a server."""
    async with connected(world.runtime, tmp_path_factory.mktemp("keys")) as client:
        there = msgspec.structs.replace(world, runtime=client)
        await there.session.append([said(f"fact {number}") for number in range(8)])
        await there.member.claim()
        yield there


SENT_ALONE = {
    ("Session.append", "key", InvalidId),  # a header loses blanks at its ends
    ("Session.get_messages", "filter_metadata", InvalidInput),  # it is sent as JSON
    ("User.record", "messages", InvalidMessage),  # nothing to record is no request
}
"""What only a client refuses, besides texts that are too long for an address."""
PAGED = ("prefix", "after")


@pytest.mark.parametrize(
    "verb", [one for one in verbs() if is_served(one) and not one.startswith("MemoryTools")]
)
async def test_a_client_refuses_the_same(verb: str, world: World, remote: World) -> None:
    """Each argument, each wrong value: as a runtime of this process does, with the same class."""
    wrong = []
    for name, value in itertools.product(parameters(verb), BAD):
        errors: list[Exception | None] = []
        if name == "timeout_s":  # how long is no matter of what it is
            continue
        for host in (world, remote):
            at = host.at(next(_numbers))
            arguments = await legal_arguments(at, verb, parameters(verb))
            async with opened(at, verb) as handle:
                errors.append(await call(handle, verb, {**arguments, name: value}))
        here, there = errors
        if here is None and (verb, name, type(there)) in SENT_ALONE:
            continue
        if here is None and isinstance(there, InvalidInput) and name in PAGED:
            continue
        if type(here) is not type(there):
            wrong.append(f"{name}={value!r:.60}: {here!r:.100}, of a client {there!r:.100}")
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize("verb", verbs())
async def test_wrong_arguments_are_refused(verb: str, world: World) -> None:
    """Each argument, each wrong value: an error of remora's tree, and nothing is written."""
    wrong = []
    await world.session.append([said("before"), said("and more")])
    before = await contents(world)
    for name in parameters(verb):
        for value in BAD:
            at = world.at(next(_numbers))
            arguments = await legal_arguments(at, verb, parameters(verb))
            async with opened(at, verb) as handle:
                if verb.startswith("Turn."):  # it has written what the user said
                    before = await contents(world)
                error = await call(handle, verb, {**arguments, name: value})
                held = await contents(world)
            said_so = f"{name}={value!r:.60}: {error!r:.200}"
            if error is not None and not isinstance(error, RemoraError):
                wrong.append(said_so)
            refused = isinstance(error, (InvalidInput, InvalidMessage))
            if refused and held != before and verb != "User.append_many":  # its sessions differ
                wrong.append(f"{said_so}, and yet something was written")
            before = held
    assert not wrong, "\n" + "\n".join(wrong)
    # nobody else noticed
    figures = world.runtime.statistics().registry
    assert (figures.restarts, figures.quarantines) == (0, 0)
    await world.runtime.settle()
    assert not await world.runtime.dead_letters()
    other = world.runtime.session("bob", verb)
    await other.append(said("still there"))
    assert [one.content for one in await other.history()] == ["still there"]


async def test_what_a_call_may_carry(world: World) -> None:
    """The largest is taken, one more is refused, and nothing of that is written."""
    session, user = world.runtime.session("carol", "chat"), world.runtime.user("carol")
    most = [{**said(f"line {number}"), "id": f"line-{number}"} for number in range(1_000)]
    parts = [{"type": "text", "text": "x"}] * 1_001
    call_: dict[str, Any] = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    long_text = "tea " * 25_001
    refused: list[Callable[[], Any]] = [
        lambda: session.append([*most, said("one more")]),
        lambda: session.append(said(parts)),  # type: ignore[arg-type]
        lambda: session.append({"role": "assistant", "tool_calls": [call_] * 1_001}),
        lambda: session.load(query=long_text),
        lambda: session.search(long_text),
        lambda: session.search("tea", limit=1_001),
        lambda: user.recall(long_text),
        lambda: user.recall("tea", limit=1_001),
        lambda: user.recall_many(["tea"] * 1_001),
        lambda: user.search_working(long_text),
        lambda: user.search_working("tea", limit=1_001),
        lambda: user.remember(long_text),
        lambda: user.remember(["tea"] * 1_001),
        lambda: user.record([*most, said("one more")]),
        lambda: user.learn(long_text),
        lambda: user.learn(["tea"] * 1_001),
        lambda: user.prune(keep=2**70),
        lambda: session.delete(positions=range(10_001)),
    ]
    for ask in refused:
        with pytest.raises((InvalidInput, InvalidMessage)):
            await ask()
    counts = await world.runtime.counts("carol")
    assert (counts.messages, counts.memories) == (0, 0)
    receipt = await session.append(most)
    assert receipt.seqs == tuple(range(1, 1_001))
    assert (await session.append([*most[:-1]])).duplicate
    assert await session.size() == 1_000
    assert len((await session.append(said(parts[:1_000]))).seqs) == 1  # type: ignore[arg-type]
    await session.load(query=long_text[:100_000])
    assert await user.recall("tea", limit=1_000)
    assert (await user.stats()).long_term_rows == 0
    await user.remember(["she likes tea", "he likes coffee"])
    await user.settle()
    assert (await user.stats()).long_term_rows >= 2
