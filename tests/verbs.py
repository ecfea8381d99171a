"""Every public coroutine of remora, and a call of each that works; more calls, and some that fail.

Tests of what holds for *all* verbs (cancellation, arguments, the same results in all places where a
memory can be) take their cases from here. The public classes are searched for coroutines: a new
verb without a call fails `test_every_verb_has_a_call`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import numpy.typing as npt

import remora
from remora import Agent, DeletionReceipt, Memory, Message, Runtime, Session, SharedMember, User
from remora.messages import ChatDict
from remora.testing import HashEmbedder

__all__ = [
    "CALLS",
    "ERRORS",
    "MORE",
    "Call",
    "SlowChatModel",
    "SlowEmbedder",
    "World",
    "fill_world",
    "open_world",
    "public_coroutines",
    "public_members",
    "said",
]

STEPS = 4
"""Turns of the event loop that each model call takes, so that a call can be cut in the middle."""


class SlowEmbedder(HashEmbedder):
    """Answers after a few turns of the event loop."""

    async def embed(self, texts: Any) -> npt.NDArray[np.float32]:
        for _ in range(STEPS):
            await anyio.lowlevel.checkpoint()
        return await super().embed(texts)


class SlowChatModel:
    """Answers after a few turns of the event loop."""

    name = "slow"

    async def complete(self, messages: Any) -> str:
        for _ in range(STEPS):
            await anyio.lowlevel.checkpoint()
        return f"{len(messages)} messages"


class World(msgspec.Struct, frozen=True):
    """An open runtime with a user who has said something; `number` differs from call to call."""

    runtime: Runtime
    path: Path
    number: int = 0

    @property
    def user(self) -> User:
        """The user of every call that destroys nothing."""
        return self.runtime.user("ada")

    @property
    def session(self) -> Session:
        """The session of every call that destroys nothing."""
        return self.user.session("chat")

    @property
    def other(self) -> User:
        """A user of this call alone, who may be erased."""
        return self.runtime.user(f"user {self.number}")

    @property
    def text(self) -> str:
        """A text of this call alone, which no cache holds."""
        return f"the {self.number}. night train"

    @property
    def member(self) -> SharedMember:
        """A member, and the owner, of a scope."""
        return self.runtime.shared("team").as_("owner")

    @property
    def file(self) -> Path:
        """A path of this call alone."""
        return self.path / f"file-{self.number}"

    def at(self, number: int) -> World:
        """The same world for another call."""
        return msgspec.structs.replace(self, number=number)


def said(text: str) -> ChatDict:
    """A user's message."""
    return {"role": "user", "content": text}


async def fill_world(world: World) -> None:
    """Have the user say, remember and learn something, and write an export of it."""
    await world.session.append([said(f"fact {number}") for number in range(8)])
    await world.runtime.export(world.path / "export.jsonl")
    await world.user.remember("ada likes tea")
    await world.user.learn("a ticket costs ten euros")
    await world.member.claim()
    await world.member.remember("the team meets on Monday")


@asynccontextmanager
async def open_world(path: Path, *, sessions: bool = True) -> AsyncIterator[World]:
    """A world whose directory, and the files that verbs read, are under `path`."""
    runtime = Runtime(path / "memory", embedder=SlowEmbedder(16), chat_model=SlowChatModel())
    async with runtime:
        world = World(runtime, path)
        if sessions:
            await fill_world(world)
        yield world


Call: TypeAlias = Callable[[World], Awaitable[Any]]

SESSION: dict[str, Call] = {
    "append": lambda w: w.session.append(said(w.text)),
    "clear": lambda w: w.session.clear(),
    "contents": lambda w: w.session.contents(),
    "delete": lambda w: _delete_message(w.session, w.text),
    "export": lambda w: w.session.export(),
    "flush": lambda w: w.session.flush(),
    "forget": lambda w: w.other.session("chat").forget(),
    "fork": lambda w: w.session.fork(f"fork {w.number}"),
    "get_messages": lambda w: w.session.get_messages(),
    "history": lambda w: w.session.history(),
    "inspect": lambda w: w.session.inspect(),
    "load": lambda w: w.session.load(query=w.text),
    "load_state_dict": lambda w: w.other.session("chat").load_state_dict({"messages": []}),
    "rewind": lambda w: w.session.rewind(1),
    "search": lambda w: w.session.search(w.text, semantic=True),
    "settle": lambda w: w.session.settle(),
    "size": lambda w: w.session.size(),
    "state_dict": lambda w: w.session.state_dict(),
    "stats": lambda w: w.session.stats(),
    "truncate_to_size": lambda w: w.session.truncate_to_size(4),
}


async def _forget_scope(w: World) -> None:
    member = w.runtime.shared(f"scope {w.number}").as_("owner")
    await member.claim()
    await member.forget()


async def _load_turn(w: World) -> None:
    async with w.session.turn(said(w.text)) as turn:
        await turn.load()


async def _reply_turn(w: World) -> None:
    async with w.session.turn(said(w.text)) as turn:
        await turn.reply(w.text)


async def _import_session(w: World) -> Session:
    return await w.other.import_session(await w.session.export(), session="copy")


async def _delete_message(session: Session, text: str) -> DeletionReceipt:
    receipt = await session.append(said(text))
    return await session.delete(receipt.ids[0])


async def _delete_memory(user: User | Agent | SharedMember, text: str) -> DeletionReceipt:
    return await user.delete(await user.remember(f"{text}, for a while"))


async def _update_memory(user: User | Agent | SharedMember, text: str) -> Memory:
    (id_,) = await user.remember(text)
    return await user.update_memory(id_, f"{text}, or not")


MEMORIES: dict[str, Callable[[World, Any], Awaitable[Any]]] = {
    "delete": lambda w, who: _delete_memory(who, w.text),
    "memory": lambda _, who: who.memory("0" * 32),
    "update_memory": lambda w, who: _update_memory(who, w.text),
    "memories": lambda _, who: who.memories(),
    "recall": lambda w, who: who.recall(w.text),
    "remember": lambda w, who: who.remember(w.text),
    "settle": lambda _, who: who.settle(),
}
"""Of everybody who has memories."""
OWN_MEMORIES = MEMORIES | {
    "remembered": lambda _, who: who.remembered(),
    "recall_many": lambda w, who: who.recall_many([w.text, "tea"]),
    "record": lambda w, who: who.record(said(w.text)),
    "record_many": lambda w, who: who.record_many([said(w.text), said("tea")]),
}


def _calls_of(
    who: Callable[[World], Any], calls: dict[str, Callable[[World, Any], Awaitable[Any]]]
) -> dict[str, Call]:
    return {name: partial(lambda call, w: call(w, who(w)), call) for name, call in calls.items()}


USER: dict[str, Call] = _calls_of(lambda w: w.user, OWN_MEMORIES) | {
    "append_many": lambda w: w.user.append_many({"chat": said(w.text), "more": said(w.text)}),
    "export_arrow": lambda w: w.user.export_arrow(),
    "find_sessions": lambda w: w.user.find_sessions("bees"),
    "forget": lambda w: w.other.forget(),
    "import_session": _import_session,
    "inspect": lambda w: w.user.inspect(),
    "instructions": lambda w: w.user.instructions(),
    "learn": lambda w: w.user.learn(w.text),
    "prune": lambda w: w.user.prune(keep=1_000),
    "search_working": lambda w: w.user.search_working(w.text),
    "sessions": lambda w: w.user.sessions(),
    "stats": lambda w: w.user.stats(),
    "synopsis": lambda w: w.user.synopsis(refresh=True),
}
AGENT = _calls_of(lambda w: w.user.agent("cook"), OWN_MEMORIES)
SHARED: dict[str, Call] = _calls_of(lambda w: w.member, MEMORIES) | {
    "claim": lambda w: w.member.claim(),
    "forget": _forget_scope,
    "grant": lambda w: w.member.grant("reader"),
    "members": lambda w: w.member.members(),
    "revoke": lambda w: w.member.revoke("reader"),
}


async def _start_another(w: World) -> None:
    runtime = Runtime(w.file, embedder=HashEmbedder(16))
    try:
        await runtime.start()
    finally:
        await runtime.aclose()


RUNTIME: dict[str, Call] = {
    "aclose": lambda w: w.runtime.aclose(),
    "append_many": lambda w: w.runtime.append_many([(w.session, said(w.text), None)]),
    "backup": lambda w: w.runtime.backup(w.file),
    "counts": lambda w: w.runtime.counts(),
    "dead_letters": lambda w: w.runtime.dead_letters(),
    "drop_dead_letters": lambda w: w.runtime.drop_dead_letters([]),
    "export": lambda w: w.runtime.export(w.file),
    "import_": lambda w: w.runtime.import_(w.path / "export.jsonl", skip_existing=True),
    "long_term_statistics": lambda w: w.runtime.long_term_statistics(),
    "ready": lambda w: w.runtime.ready(),
    "reembedded": lambda w: w.runtime.reembedded(),
    "retry_erasures": lambda w: w.runtime.retry_erasures(),
    "retry_dead_letters": lambda w: w.runtime.retry_dead_letters(),
    "settle": lambda w: w.runtime.settle(),
    "start": _start_another,
    "users": lambda w: w.runtime.users(),
}


async def _delete_value(w: World) -> bool:
    await w.user.state.set(w.text, w.number)
    return await w.user.state.delete(w.text)


STATE: dict[str, Call] = {
    "change": lambda w: w.session.state.change({w.text: w.number}, delete=["gone"]),
    "delete": _delete_value,
    "get": lambda w: w.session.state.get("step"),
    "get_many": lambda w: w.session.state.get_many(["step", "gone"]),
    "items": lambda w: w.session.state.items(prefix="s"),
    "set": lambda w: w.session.state.set("step", {"number": w.number}),
}
TURN: dict[str, Call] = {"load": _load_turn, "reply": _reply_turn}
CALLS: dict[str, Call] = {
    f"{kind}.{name}": call
    for kind, calls in (
        ("Agent", AGENT),
        ("KeyedState", STATE),
        ("Runtime", RUNTIME),
        ("Session", SESSION),
        ("SharedMember", SHARED),
        ("Turn", TURN),
        ("User", USER),
    )
    for name, call in calls.items()
}
"""By class and method."""


def public_members(kind: type) -> set[str]:
    """Public names of a class."""
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def public_coroutines() -> Iterator[str]:
    """``Class.method`` of every coroutine function of a class that `remora` shows.

    Protocols are left out: an application's classes have their methods. So is `remora.Client`,
    whose verbs are a runtime's over HTTP.
    """
    for name in sorted(remora.__all__):
        kind = getattr(remora, name)
        if not inspect.isclass(kind) or Protocol in kind.__bases__ or kind is remora.Client:
            continue
        for method, function in inspect.getmembers(kind):
            if method.startswith("_") or hasattr(function, "__deprecated__"):
                continue
            if inspect.iscoroutinefunction(function):
                yield f"{name}.{method}"


# -- more than one plain call of each --------------------------------------------------------------

_RICH: list[Any] = [
    Message(role="user", content=[{"type": "text", "text": "☂"}], metadata={"a": 1}),
    {"role": "assistant", "content": "ok", "id": "mine", "x": [1, {"y": None}]},
]


async def _at_once(value: object) -> Any:
    return value


async def _exclusive(w: World) -> list[Any]:
    """A block that keeps turns waiting: they end in the order in which they were begun."""
    session, seen = w.other.session("exclusive"), []

    async def speak() -> None:
        async with session.turn("and I?", query=False) as turn:
            await turn.reply("you as well")
        seen.append("turn")

    async with anyio.create_task_group() as tasks:
        async with session.exclusive():
            tasks.start_soon(speak)
            await session.append({"role": "user", "content": "am I alone?"})
            seen.append("block")
    return [seen, await session.history()]


async def _turn_with_key(w: World) -> list[Any]:
    """Begun, cut, resumed, answered, and asked again."""
    session, seen = w.other.session("turns"), []
    for _ in range(2):
        async with session.turn("when does it leave?", key="r1", query=False) as turn:
            seen += [turn.resumed, turn.context]
            if turn.resumed:
                seen.append(await turn.reply("at nine"))
            else:
                seen.append(await turn.reply({"role": "assistant", "content": "", "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ]}))  # fmt: skip
                seen.append(
                    await turn.reply({"role": "tool", "tool_call_id": "c1", "content": "9"})
                )
    async with session.turn("when does it leave?", key="r1", query=False) as turn:
        seen += [turn.replayed, turn.replies, turn.key, turn.open_calls]
    return [*seen, await session.history()]


async def _chunks(*texts: str) -> AsyncIterator[str]:
    for text in texts:
        yield text


async def _stream(w: World) -> list[Any]:
    session = w.other.session("streams")
    async with session.turn("and back?", query=False) as turn:
        passed = [chunk async for chunk in turn.stream(_chunks("at ", "ten"))]
    async with session.turn("and then?", key="r2", query=False) as turn:
        stream = turn.stream(_chunks("no ", "more"))
        passed.append(await anext(stream))
        await stream.aclose()
    async with session.turn("and then?", key="r2", query=False) as turn:
        cut = [turn.resumed, turn.replies, turn.context.messages]
        await turn.reply("no more trains")
    return [passed, cut, await session.history()]


async def _record_a_context(w: World) -> list[Any]:
    """What remora wrote itself is not recorded as the user's words."""
    session = w.other.session("long")
    await session.load_state_dict({"messages": [said("hello")], "summary": "They met in Lisbon."})
    context = await session.load()
    ids = await w.other.record([*context.messages, said("bye")])
    return [context, len(ids), [one.text for one in await w.other.remembered()]]


async def _tools(w: World) -> list[Any]:
    tools = w.other.tools(edit=True, agent="cook")
    saved = await tools.save_to_memory("worth it", ["the oven is broken"])
    found = await tools.recall_from_memory(["oven"])
    return [
        saved,
        found,
        tools.specs,
        await tools.call("recall_from_memory", {"keywords": ["oven"]}),
    ]


async def _state(w: World) -> list[Any]:
    state = w.session.state
    first = await state.set("cart", {"tea": [1, None, 0.5]}, version=0)
    second = await state.set("cart", [], version=first.version)
    return [
        first,
        second,
        await state.get("cart"),
        await state.items(limit=1),
        await state.get("x"),
    ]


async def _memories(w: World) -> list[Any]:
    user = w.other
    ids = await user.remember(
        ["likes tea", {"content": "has a cat", "key": "pet", "metadata": {"legs": 4}}],
        session="chat",
    )
    await w.runtime.settle()
    changed = await user.update_memory(ids[1], "has a dog", metadata={"legs": [4]})
    await w.runtime.settle()
    return [
        ids,
        changed,
        await user.memory(key="pet"),
        await user.memory(ids[0]),
        await user.remembered(where={"legs": {"$in": [4, 3]}}, limit=1),
        await user.recall("tea", where={"legs": {"$gte": 1}}),
        await user.recall("tea", types=["fact"], session="chat"),
        await user.memories(order="importance", limit=3),
        await user.delete(ids),
        await user.remembered(),
    ]


async def _listings(w: World) -> list[Any]:
    user = w.other
    for name in ("a", "b", "c"):
        await user.session(name).append(said(f"in {name}"))
    page = await user.sessions(order="name", limit=2)
    return [
        page,
        await user.sessions(order="name", after=page[-1].cursor),
        await user.sessions(prefix="b"),
        await w.runtime.users(prefix="user", limit=2),
        await w.runtime.counts(user.id),
        await user.stats(),
        await user.inspect(),
    ]


async def _many(w: World) -> Any:
    batches: list[Any] = [
        (w.other.session("m1"), said("one"), "k1"),
        (w.other.session("m2"), {"role": "nobody"}, None),
        (w.other.session("m1"), said("other"), "k1"),
    ]
    return await w.runtime.append_many(batches)


async def _rewritten(w: World) -> list[Any]:
    session = w.other.session("rewritten")
    await session.append([said(str(n)) for n in range(6)])
    fork = await session.fork("forked", at=3)
    return [
        fork,
        await session.delete(positions=[0, 1]),
        await session.rewind(4),
        await session.truncate_to_size(1),
        await session.history(),
        await session.history(include_archived=False, at=3),
        await session.history(after=1, limit=2),
        await fork.history(),
        await session.contents(),
        await session.size(),
        await session.state_dict(),
        await session.stats(),
        await session.inspect(),
        await session.clear(),
    ]


async def _followed(w: World) -> list[Any]:
    """What is there, then what comes."""
    session = w.other.session("followed")
    await session.append([said("one"), said("two")])
    heard: list[Any] = []
    async with aclosing(session.follow(after=0)) as messages:
        async for message in messages:
            heard.append(message)
            if len(heard) == 2:
                await session.append(said("three"))
            if len(heard) == 3:
                break
    return heard


async def _moved(w: World) -> list[Any]:
    exported = await w.session.export()
    copy = await w.other.import_session(exported, session="copy")
    await w.runtime.settle()
    return [exported, copy, await copy.history(), await copy.load(max_tokens=60)]


async def _grants(w: World) -> list[Any]:
    scope = w.runtime.shared(f"team {w.number}")
    lead, scout = scope.as_("lead"), scope.as_("scout")
    await lead.claim()
    await lead.grant("scout", "read")
    (id_,) = await lead.remember("the door is open")
    await w.runtime.settle()
    seen = [await lead.members(), await scout.recall("door"), await scout.memory(id_)]
    await lead.revoke("scout")
    return [*seen, await lead.members(), scope.name, scout.scope, scout.who]


async def _reschedule(w: World, task: str, seconds: float) -> None:
    w.runtime.reschedule(task, seconds)


async def _figures(w: World) -> list[Any]:
    """What is the same in two memories of them."""
    statistics = w.runtime.statistics()
    return [
        sorted(statistics.schedule),
        sorted(statistics.supervisor.queues),
        statistics.registry.quarantines,
        statistics.erasures,
        w.runtime.health().live,
        w.runtime.erasures(),
        w.runtime.erasures("nobody"),
        w.runtime.reembedding,
    ]


MORE: dict[str, Call] = {
    "append with all": lambda w: w.session.append(
        _RICH, key="all", allow_duplicates=True, timeout_s=60
    ),
    "append again": lambda w: w.session.append(_RICH, key="all"),
    "messages by metadata": lambda w: w.session.get_messages("user", filter_metadata={"a": 1}),
    "load": lambda w: w.session.load(),
    "load a little": lambda w: w.session.load(max_tokens=30),
    "load with all": lambda w: w.session.load(
        "tea", max_tokens=300, messages=[said("?")], timeout_s=60
    ),
    "load another": lambda w: w.session.load("tea", override=[said("what now?")]),
    "load as it was": lambda w: w.session.load(at=3),
    "load again": lambda w: w.session.load(),
    "search by words": lambda w: w.session.search("fact", semantic=False, limit=2),
    "search working memory": lambda w: w.user.search_working("ticket", 3, session="chat"),
    "learn several": lambda w: w.other.learn(["one", "two"], source="tool:x", session="chat"),
    "no message": lambda w: w.other.session("none").history(),
    "nothing to rewind": lambda w: w.other.session("none").rewind(0),
    "nothing loaded": lambda w: w.other.session("none").load(),
    "a turn, cut and resumed": _turn_with_key,
    "streams": _stream,
    "an exclusive block": _exclusive,
    "a context is recorded": _record_a_context,
    "tools": _tools,
    "keyed state": _state,
    "memories": _memories,
    "listings": _listings,
    "several appends": _many,
    "a past that was rewritten": _rewritten,
    "a session that is followed": _followed,
    "another session": _moved,
    "grants": _grants,
    "figures": _figures,
    "a periodic task": lambda w: _reschedule(w, "fifo_cleanup", 1_000.0),
    "tokens": lambda w: _at_once(w.runtime.message_tokens(said("hello there"))),
    "what is configured": lambda w: _at_once(w.runtime.config.buffer),
    "profile": lambda w: w.user.synopsis(refresh=True, timeout_s=60),
    "agents": lambda w: _at_once([w.user.agent("cook").name, w.user.agent("cook").user]),
}
"""What handles do beyond one plain call of each verb."""


async def _outside_a_turn(w: World) -> Any:
    turn = w.session.turn("hello")
    return await turn.reply("too early")


async def _conflict(w: World) -> Any:
    await w.session.state.set("step", [1], version=None)
    return await w.session.state.set("step", 3, version=7_000)


async def _another_turn(w: World) -> None:
    async with w.other.session("t").turn("one", key="same", query=False) as turn:
        await turn.reply("yes")
    async with w.other.session("t").turn("two", key="same", query=False):
        pass


async def _append_with_a_used_key(w: World) -> Any:
    await w.session.append(said("one"), key="used")
    return await w.session.append(said("two"), key="used")


async def _forget_and_use(w: World) -> Any:
    await w.other.session("x").append(said("soon gone"))
    await w.other.forget()
    return [await w.other.session("x").history(), await w.other.sessions()]


async def _import_twice(w: World) -> Any:
    exported = await w.session.export()
    await w.other.import_session(exported, session="copy")
    return await w.other.import_session(exported, session="copy")


async def _import_garbage(w: World) -> Any:
    await anyio.Path(w.file).with_suffix(".jsonl").write_text("{}\n")
    return await w.runtime.import_(w.file.with_suffix(".jsonl"))


_BAD: Any = {"role": "nobody", "content": "x"}


ERRORS: dict[str, Call] = {
    "no chat message": lambda w: w.session.append(_BAD),
    "no chat message later": lambda w: w.session.append([said("a"), {}]),
    "no id": lambda w: w.session.append(said("x"), key="\n"),
    "no session id": lambda w: _at_once(w.user.session("")),
    "a key that was used": _append_with_a_used_key,
    "another turn's key": _another_turn,
    "no turn": _outside_a_turn,
    "no such place": lambda w: w.session.delete(positions=[77, -1]),
    "no such message": lambda w: w.session.load(at=70_000),
    "rewound too far": lambda w: w.session.rewind(70_000),
    "a fork of nothing": lambda w: w.session.fork("forked", at=70_000),
    "a negative budget": lambda w: w.session.load(max_tokens=-1),
    "a stale version": _conflict,
    "a value that is none": lambda w: w.session.state.set("x", object()),
    "no such memory": lambda w: w.user.update_memory("0" * 32, "x"),
    "an agent's memory": lambda w: w.user.agent("cook").update_memory("0" * 32, "x"),
    "no such type": lambda w: w.user.recall("x", types="dream"),
    "no such operator": lambda w: w.user.recall("x", where={"a": {"$like": 1}}),
    "no limit": lambda w: w.user.recall("x", limit=0),
    "no right": lambda w: w.runtime.shared("team").as_("stranger").recall("x"),
    "no right to grant": lambda w: w.runtime.shared("team").as_("stranger").grant("me", "own"),
    "nobody's rights": lambda w: w.runtime.shared(f"team {w.number}").as_("me").revoke("you"),
    "the last owner": lambda w: w.member.revoke("owner"),
    "no such right": lambda w: w.member.grant("x", "rule"),  # type: ignore[arg-type]
    "a cursor of nothing": lambda w: w.user.sessions(after="nothing"),
    "an export of nothing": lambda w: w.other.session("none").export(),
    "an import over another": _import_twice,
    "no such task": lambda w: _reschedule(w, "nothing", 1.0),
    "no interval": lambda w: _reschedule(w, "fifo_cleanup", -1.0),
    "no user": lambda w: _at_once(w.runtime.erasures("")),
    "no dead letter": lambda w: w.runtime.retry_dead_letters(["flush-7-1"]),
    "nothing to import": lambda w: w.runtime.import_(w.file),
    "no export at all": _import_garbage,
    "sessions that exist": lambda w: w.runtime.import_(w.path / "export.jsonl"),
    "something is there": lambda w: w.runtime.export(w.path / "export.jsonl"),
    "a backup over something": lambda w: w.runtime.backup(w.path),
    "forgotten": _forget_and_use,
}
"""Calls that raise, but for the last."""
