"""Turns against a model of them: a list of messages, each of which knows its request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import anyio
from hypothesis import given
from hypothesis import strategies as st

from remora import Config, Runtime, Session, Turn
from remora.errors import KeyConflict
from tests.harness import user

PLAIN = Config.from_dict({"long_term": {"enabled": False}, "models": {"embedder": "none"}})
Fate = Literal["answered", "streamed", "cut", "cut after a tool", "kept", "discarded"]
CALL: dict[str, Any] = {
    "id": "call",
    "type": "function",
    "function": {"name": "look", "arguments": "{}"},
}


@dataclass(frozen=True)
class Request:
    """What a client sends, and what becomes of it if it is not answered yet."""

    key: int
    words: int
    fate: Fate

    @property
    def text(self) -> str:
        return f"question {self.key}, version {self.words}"


@dataclass
class Said:
    """A message of the model's."""

    seq: int
    content: str | None
    key: int | None = None
    role: str = "assistant"
    incomplete: bool = False


class Model:
    """What a session must hold."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.last = self.cleared = self.truncated = 0

    def add(self, content: str | None, key: int | None = None, role: str = "assistant") -> Said:
        self.last += 1
        self.said.append(Said(self.last, content, key, role))
        return self.said[-1]

    def turn(self, key: int) -> list[Said]:
        """The messages of the newest turn under this key that was not taken back."""
        mine = [one for one in self.said if one.key == key and one.seq > self.cleared]
        begun = [place for place, one in enumerate(mine) if one.role == "user"]
        return mine[begun[-1] :] if begun else []

    def is_answered(self, key: int) -> bool:
        turn = self.turn(key)
        return bool(turn) and turn[-1].role == "assistant" and not turn[-1].incomplete

    def verdict(self, request: Request) -> str:
        """What the client hears: ``conflict``, ``replayed`` or ``begun``."""
        turn = self.turn(request.key)
        if turn and turn[0].content != request.text:
            return "conflict"
        return "replayed" if self.is_answered(request.key) else "begun"

    def begin(self, request: Request) -> None:
        """The turn was entered."""
        if not self.turn(request.key):
            self.add(request.text, request.key, "user")

    def end(self, request: Request) -> None:
        """It got what its fate gives it."""
        if request.fate == "cut after a tool":
            if len([one for one in self.turn(request.key) if not one.incomplete]) < 2:
                self._reply(None, request.key, "call")
                self._reply("result", request.key, "tool")
        elif request.fate not in {"cut", "discarded"}:
            said = self._reply(reply_to(request, self.last), request.key)
            said.incomplete = request.fate == "kept"

    def _reply(self, content: str | None, key: int, role: str = "assistant") -> Said:
        turn = self.turn(key)
        if turn[-1].incomplete:
            self.said.remove(turn[-1])
        return self.add(content, key, role)


def reply_to(request: Request, last: int) -> str:
    return f"answer {request.key} after {last}"


async def pieces(text: str) -> AsyncIterator[str]:
    for piece in text:
        yield piece
        await anyio.lowlevel.checkpoint()


async def endless(text: str) -> AsyncIterator[str]:
    yield text
    await anyio.sleep_forever()


async def carry_out(chat: Session, request: Request, model: Model) -> None:
    """Send a request; what the turn shows is what the model has."""
    try:
        async with chat.turn(request.text, key=str(request.key)) as turn:
            verdict = "replayed" if turn.replayed else "begun"
            assert model.verdict(request) == verdict
            stored = model.turn(request.key)[1:]
            whole = [one.content for one in stored if not one.incomplete]
            assert [one.content for one in turn.replies] == whole
            assert turn.resumed is (verdict == "begun" and bool(model.turn(request.key)))
            if turn.replayed:
                return
            model.begin(request)
            shown = [one["content"] for one in turn.context.messages]
            assert request.text in shown or model.turn(request.key)[0].seq <= model.truncated
            assert not {one.content for one in stored if one.incomplete} & set(shown)
            await reply(turn, request, reply_to(request, model.last))
            model.end(request)
    except KeyConflict:
        await anyio.wait_all_tasks_blocked()  # the turn that it conflicts with may be running
        assert model.verdict(request) == "conflict"


async def reply(turn: Turn, request: Request, text: str) -> None:
    match request.fate:
        case "answered":
            await turn.reply(text)
        case "cut after a tool" if not turn.replies:
            called: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
            await turn.reply(called)
            await turn.reply({"role": "tool", "tool_call_id": "call", "content": "result"})
        case "streamed":
            async for _ in turn.stream(pieces(text)):
                pass
        case "kept" | "discarded":
            on_interrupt: Any = "keep" if request.fate == "kept" else "discard"
            await anext(turn.stream(endless(text), on_interrupt=on_interrupt))
        case _:
            pass


FATES: tuple[Fate, ...] = ("answered", "streamed", "cut", "cut after a tool", "kept", "discarded")
requests = st.builds(
    Request, st.integers(0, 2), st.sampled_from([0, 0, 0, 1]), st.sampled_from(FATES)
)
steps = st.lists(
    st.one_of(
        requests,
        requests,
        st.tuples(requests, requests),
        st.tuples(st.just("gives up"), requests),
        st.sampled_from(["append", "clear", "truncate", "rewind", "delete"]),
    ),
    max_size=14,
)


async def play(program: list[Any]) -> None:
    model = Model()
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        for step in program:
            match step:
                case Request():
                    await carry_out(chat, step, model)
                case (Request() as first, Request() as second):
                    async with anyio.create_task_group() as tasks:
                        for request in (first, second):
                            handle = runtime.session("alice", "one")
                            tasks.start_soon(carry_out, handle, request, model)
                case ("gives up", Request() as request):
                    await give_up(chat, model, request)
                case _:
                    await change(chat, model, step)
            history = await chat.history()
            stored = [(one.seq, one.content, bool(one.metadata)) for one in history]
            assert stored == [(one.seq, one.content, one.incomplete) for one in model.said]
        assert len(runtime.internals.turns) == 0


async def give_up(chat: Session, model: Model, request: Request) -> None:
    """Wait for a turn that does not end, and be cancelled: nothing is written."""

    async def wait() -> None:
        try:
            async with chat.turn(request.text, key=str(request.key)) as turn:
                assert turn.replayed
                assert model.verdict(request) == "replayed"
        except KeyConflict:
            assert model.verdict(request) == "conflict"

    async with chat.turn("holds the line", query=False), anyio.create_task_group() as tasks:
        model.add("holds the line", None, "user")
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def change(chat: Session, model: Model, step: str) -> None:
    """Change the conversation outside of turns."""
    there = [one.seq for one in model.said if one.seq > model.cleared]
    match step:
        case "append":
            await chat.append(user("an aside"))
            model.add("an aside", None, "user")
        case "clear":
            await chat.clear()
            model.cleared = model.last
        case "truncate":
            await chat.truncate_to_size(0)
            model.truncated = model.last
        case "rewind" if there:
            to = there[len(there) // 2]
            await chat.rewind(to)
            model.said = [one for one in model.said if one.seq <= to]
        case "delete" if size := await chat.size():
            seq = (await chat.inspect()).entries[-1].seq
            await chat.delete(positions=size - 1)
            model.said = [one for one in model.said if one.seq != seq]


@given(steps)
def test_turns(program: list[Any]) -> None:
    """G2, G4: each request is stored once, answered once, and its answer replayed; an incomplete
    reply is there until another takes its place; requests at the same time do not mix.
    """
    anyio.run(play, program)
