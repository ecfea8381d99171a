"""Every public coroutine of remora, and a call of each that works.

Tests of what holds for *all* verbs (cancellation, arguments) take their cases from here. The
public classes are searched for coroutines: a new verb without a call fails
`test_every_verb_has_a_call`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio.lowlevel
import msgspec
import numpy as np
import numpy.typing as npt

import remora
from remora import Runtime, Session, User
from remora.api.memories import Agent
from remora.api.shared import SharedMember
from remora.messages import ChatDict
from remora.recall.memory import Memory
from remora.testing import HashEmbedder

__all__ = [
    "CALLS",
    "Call",
    "SlowChatModel",
    "SlowEmbedder",
    "World",
    "fill_world",
    "open_world",
    "public_coroutines",
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


Call = Callable[[World], Awaitable[Any]]

SESSION: dict[str, Call] = {
    "append": lambda w: w.session.append(said(w.text)),
    "clear": lambda w: w.session.clear(),
    "contents": lambda w: w.session.contents(),
    "delete": lambda w: w.session.delete(ids=["none such"]),
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


async def _update_memory(user: User | Agent | SharedMember, text: str) -> Memory:
    (id_,) = await user.remember(text)
    return await user.update_memory(id_, f"{text}, or not")


MEMORIES: dict[str, Call] = {
    "delete_memories": lambda w: w.user.delete_memories("0" * 32),
    "memory": lambda w: w.user.memory("0" * 32),
    "remembered": lambda w: w.user.remembered(),
    "update_memory": lambda w: _update_memory(w.user, w.text),
    "memories": lambda w: w.user.memories(),
    "recall": lambda w: w.user.recall(w.text),
    "recall_many": lambda w: w.user.recall_many([w.text, "tea"]),
    "record": lambda w: w.user.record(said(w.text)),
    "record_many": lambda w: w.user.record_many([said(w.text), said("tea")]),
    "remember": lambda w: w.user.remember(w.text),
    "settle": lambda w: w.user.settle(),
}
USER: dict[str, Call] = MEMORIES | {
    "append_many": lambda w: w.user.append_many({"chat": said(w.text), "more": said(w.text)}),
    "export_arrow": lambda w: w.user.export_arrow(),
    "forget": lambda w: w.other.forget(),
    "import_session": _import_session,
    "inspect": lambda w: w.user.inspect(),
    "learn": lambda w: w.user.learn(w.text),
    "prune": lambda w: w.user.prune(keep=1_000),
    "search_working": lambda w: w.user.search_working(w.text),
    "sessions": lambda w: w.user.sessions(),
    "stats": lambda w: w.user.stats(),
    "synopsis": lambda w: w.user.synopsis(refresh=True),
}
AGENT: dict[str, Call] = {
    "delete_memories": lambda w: w.user.agent("cook").delete_memories("0" * 32),
    "memory": lambda w: w.user.agent("cook").memory("0" * 32),
    "remembered": lambda w: w.user.agent("cook").remembered(),
    "update_memory": lambda w: _update_memory(w.user.agent("cook"), w.text),
    "memories": lambda w: w.user.agent("cook").memories(),
    "recall": lambda w: w.user.agent("cook").recall(w.text),
    "recall_many": lambda w: w.user.agent("cook").recall_many([w.text, "tea"]),
    "record": lambda w: w.user.agent("cook").record(said(w.text)),
    "record_many": lambda w: w.user.agent("cook").record_many([said(w.text), said("tea")]),
    "remember": lambda w: w.user.agent("cook").remember(w.text),
    "settle": lambda w: w.user.agent("cook").settle(),
}
SHARED: dict[str, Call] = {
    "claim": lambda w: w.member.claim(),
    "forget": _forget_scope,
    "grant": lambda w: w.member.grant("reader"),
    "delete_memories": lambda w: w.member.delete_memories("0" * 32),
    "members": lambda w: w.member.members(),
    "memories": lambda w: w.member.memories(),
    "memory": lambda w: w.member.memory("0" * 32),
    "recall": lambda w: w.member.recall(w.text),
    "remember": lambda w: w.member.remember(w.text),
    "revoke": lambda w: w.member.revoke("reader"),
    "settle": lambda w: w.member.settle(),
    "update_memory": lambda w: _update_memory(w.member, w.text),
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


def public_coroutines() -> Iterator[str]:
    """``Class.method`` of every coroutine function of a class that `remora` shows.

    Protocols are left out: an application's classes have their methods. So are deprecated names,
    which call the current ones, and `remora.Client`, whose verbs are a runtime's over HTTP.
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
