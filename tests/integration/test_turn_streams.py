"""Replies that are streamed are passed on as they come, and stored at their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from openai.types.chat import ChatCompletionChunk

from remora import Runtime, Session, Turn
from remora.errors import InvalidInput, RuntimeClosed, TurnClosed
from remora.testing import count_probes
from tests.harness import user
from tests.integration.conftest import PLAIN, Open

pytestmark = pytest.mark.anyio


class Model:
    """Streams what it was given; then it ends, fails, or says nothing more."""

    def __init__(self, chunks: Sequence[Any], then: str = "ends") -> None:
        self._chunks = chunks
        self._then = then
        self.closed = False
        self.waits = anyio.Event()

    async def stream(self) -> AsyncGenerator[Any, None]:
        try:
            for chunk in self._chunks:
                yield chunk
            if self._then == "fails":
                raise ConnectionError("the model is gone")
            if self._then == "hangs":
                self.waits.set()
                await anyio.sleep_forever()
        finally:
            self.closed = True


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """As a chat completion of OpenAI streams it."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {
        "id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [choice],
    }  # fmt: skip


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    name = more.pop("name", None)
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return {"index": index, "function": function, **more}


CALLS = [
    chunk(role="assistant", content=None),
    chunk(tool_calls=[call(0, "", id="call-a", type="function", name="now")]),
    chunk(tool_calls=[call(0, '{"zone": ')]),
    chunk(tool_calls=[call(0, '"UTC"}')]),
    chunk(tool_calls=[call(1, "{}", id="call-b", type="function", name="place")]),
    chunk("tool_calls"),
    {"choices": [], "usage": {"total_tokens": 7}},
]


async def stored(chat: Session) -> list[tuple[str, Any, Any]]:
    """Role, content and metadata of what the conversation holds."""
    return [(one.role, one.content, one.metadata) for one in await chat.history()]


async def test_a_whole_stream(open_runtime: Open) -> None:
    """It is passed on, and stored at its end. Where the model fails, its exception is the caller's,
    who may ask another model in the same turn.
    """
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        async with chat.turn("hi", key="r1") as turn:
            with pytest.raises(ConnectionError):
                async for _ in turn.stream(Model(["Good"], "fails").stream()):
                    pass
            assert turn.replies == []
            assert (await turn.load()).messages == [user("hi")]
            passed = [one async for one in turn.stream(Model(["Hel", "lo"]).stream())]
            assert passed == ["Hel", "lo"]
            assert [one.content for one in turn.replies] == ["Hello"]
        async with chat.turn("hi", key="r1") as turn:
            assert turn.replayed
        assert await stored(chat) == [("user", "hi", None), ("assistant", "Hello", None)]


async def test_parts_are_put_together(open_runtime: Open) -> None:
    """Texts and thoughts come in pieces; pictures, files and signatures are each of their own."""
    pictures = [{"type": "image_url", "image_url": {"url": f"https://x/{n}.png"}} for n in "ab"]
    thoughts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": text}], **signature}
        for text, signature in (("I see ", {}), ("two.", {"signature": "s1"}), ("Or three.", {}))
    ]
    chunks = [
        *(chunk(content=[one]) for one in thoughts),
        chunk(content="Two "),
        chunk(content="pictures:"),
        chunk(content=pictures),
        chunk("stop"),
    ]
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        async with chat.turn("hi", key="r1") as turn:
            assert [one async for one in turn.stream(Model(chunks).stream())] == chunks
        assert (await stored(chat))[1][1] == [
            {**thoughts[1], "thinking": [{"type": "text", "text": "I see two."}]},
            thoughts[2],
            {"type": "text", "text": "Two pictures:"},
            *pictures,
        ]


@pytest.mark.parametrize("as_objects", [False, True])
async def test_tool_calls_are_put_together(open_runtime: Open, as_objects: bool) -> None:
    """Of dicts, and of the objects of OpenAI's package; the turn goes on after them."""
    chunks: list[Any] = list(CALLS)
    if as_objects:
        chunks = [ChatCompletionChunk.model_construct(**one) for one in CALLS[-1:]]
        chunks = [ChatCompletionChunk.model_validate(one) for one in CALLS[:-1]] + chunks
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        async with chat.turn("hi", key="r1") as turn:
            assert [one async for one in turn.stream(Model(chunks).stream())] == chunks
            (message,) = turn.replies
            assert message.to_chat() == {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call-a",
                        "type": "function",
                        "function": {"name": "now", "arguments": '{"zone": "UTC"}'},
                    },
                    {
                        "id": "call-b",
                        "type": "function",
                        "function": {"name": "place", "arguments": "{}"},
                    },
                ],
            }
            for id_ in ("call-a", "call-b"):
                await turn.reply({"role": "tool", "tool_call_id": id_, "content": "done"})
            assert len((await turn.load()).messages) == 4
            words = [chunk(content="It is "), chunk(content="noon."), chunk("stop")]
            assert len([one async for one in turn.stream(Model(words).stream())]) == 3
        assert (await stored(chat))[-1] == ("assistant", "It is noon.", None)


async def test_other_shapes(open_runtime: Open) -> None:
    """A function says what a chunk adds; without one, a chunk of another shape is refused."""
    events: list[Any] = [
        SimpleNamespace(type="start"),
        SimpleNamespace(type="text", text="Hel"),
        SimpleNamespace(type="delta", delta={"content": "lo"}),
    ]

    def read(event: Any) -> str | Mapping[str, Any] | None:
        return getattr(event, "text", None) or getattr(event, "delta", None)

    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        async with chat.turn("hi") as turn:
            assert [one async for one in turn.stream(Model(events).stream(), read=read)] == events
            with pytest.raises(InvalidInput, match="pass read="):
                await anext(turn.stream(Model(events).stream()))
            refused = [chunk(refusal="I can"), chunk(refusal="not."), chunk("stop")]
            assert [one async for one in turn.stream(Model(refused).stream())] == refused
            assert [one async for one in turn.stream(Model([chunk("stop")]).stream())]
        assert [content for _, content, _ in await stored(chat)] == ["hi", "Hello", None]
        assert (await chat.history())[-1].extra == {"refusal": "I cannot."}


async def drop(turn: Turn, model: Model, **options: Any) -> None:
    """Read two chunks, and no more."""
    passing = turn.stream(model.stream(), **options)
    await anext(passing)
    await anext(passing)


async def close(turn: Turn, model: Model, **options: Any) -> None:
    passing = turn.stream(model.stream(), **options)
    await anext(passing)
    await anext(passing)
    await passing.aclose()


async def fail(turn: Turn, model: Model, **options: Any) -> None:
    async for one in turn.stream(model.stream(), **options):
        if one == "lo":
            raise ValueError("the socket is gone")


async def cancel(turn: Turn, model: Model, **options: Any) -> None:
    async with anyio.create_task_group() as tasks:
        async for one in turn.stream(model.stream(), **options):
            if one == "lo":
                tasks.cancel_scope.cancel()


INTERRUPTIONS: list[Callable[..., Awaitable[None]]] = [drop, close, fail, cancel]


@pytest.mark.parametrize("interrupt", INTERRUPTIONS)
@pytest.mark.parametrize("on_interrupt", ["keep", "discard"])
async def test_interrupted(
    open_runtime: Open, interrupt: Callable[..., Awaitable[None]], on_interrupt: str
) -> None:
    """What was streamed is kept, marked, or discarded; the model's stream is closed; the next
    attempt takes its place.
    """
    async with open_runtime() as runtime:
        chat, model = runtime.session("alice", "one"), Model(["Hel", "lo"], "hangs")
        with count_probes() as probes:
            try:
                async with chat.turn("hi", key="r1") as turn:
                    await interrupt(turn, model, on_interrupt=on_interrupt)
            except ValueError:
                pass
        assert probes["stream_interrupted"] == 1
        assert model.closed
        assert len(runtime.internals.turns) == 0
        kept = [("assistant", "Hello", {"incomplete": True})] if on_interrupt == "keep" else []
        assert await stored(chat) == [("user", "hi", None), *kept]
        shown = [{"role": "assistant", "content": "Hello"}] if kept else []
        assert (await chat.load()).messages == [user("hi"), *shown]
        async with chat.turn("hi", key="r1") as turn:
            assert turn.resumed
            assert turn.context.messages == [user("hi")]
            assert [one async for one in turn.stream(Model(["Good ", "day"]).stream())]
        assert await stored(chat) == [("user", "hi", None), ("assistant", "Good day", None)]


async def test_never_half_a_tool_call(open_runtime: Open) -> None:
    """An interrupted stream keeps its text alone; one that the model had finished is whole."""
    text = chunk(content="Let me see. ")
    whole = [text, *CALLS]
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        for number, (chunks, kept, metadata) in enumerate(
            (
                (whole[:4], "Let me see. ", {"incomplete": True}),
                (whole[: len(CALLS)], "Let me see. ", None),
                (CALLS[:3], "hi", None),
            )
        ):
            with pytest.raises(ConnectionError):
                async with chat.turn("hi", key=f"r{number}") as turn:
                    async for _ in turn.stream(Model(chunks, "fails").stream()):
                        pass
            last = (await chat.history())[-1]
            assert (last.content, last.metadata) == (kept, metadata)
            assert bool(last.tool_calls) is (len(chunks) == len(CALLS))


async def test_cancelled_or_closed_from_outside(open_runtime: Open) -> None:
    """As asyncio.timeout and a server that shuts down do it; or as web frameworks do with a
    response whose client has gone: the turn ends in another task.
    """
    kept = ("assistant", "Hello", {"incomplete": True})
    async with open_runtime() as runtime:
        chat, model = runtime.session("alice", "one"), Model(["Hel", "lo"], "hangs")

        async def body(key: str) -> AsyncIterator[str]:
            async with chat.turn("hi", key=key) as turn:
                async for text in turn.stream(model.stream()):
                    yield text

        async def serve() -> None:
            async for _ in body("r1"):
                pass

        task = asyncio.create_task(serve())
        await model.waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert model.closed
        assert (await stored(chat))[-1] == kept
        response = body("r2")
        assert [await anext(response), await anext(response)] == ["Hel", "lo"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(response.aclose)  # type: ignore[attr-defined]
        assert (await stored(chat))[-1] == kept
        async with chat.turn("next") as turn:
            assert len(turn.context.messages) == 5


@pytest.mark.parametrize("cancelled", ["at the end", "twice in the middle", "by asyncio.timeout"])
async def test_a_long_reply_outlasts_cancellations(open_runtime: Open, cancelled: str) -> None:
    """Which asyncio's own cancel and shields do not hold back; the task ends as cancelled."""
    text = "word " * 20_000  # so long that it is encoded in a thread
    at_end = cancelled != "twice in the middle"
    reached = asyncio.Event()

    async def model() -> AsyncIterator[str]:
        yield text
        reached.set()
        if not at_end:
            await anyio.sleep_forever()

    async def serve(chat: Session) -> None:
        async with asyncio.timeout(None) as limit, chat.turn("hi", key="r1", query=False) as turn:
            async for _ in turn.stream(model()):
                if cancelled == "by asyncio.timeout":
                    limit.reschedule(0)

    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        task = asyncio.create_task(serve(chat))
        await reached.wait()
        if cancelled == "by asyncio.timeout":
            with pytest.raises(TimeoutError):
                await task
        else:
            task.cancel()
            if not at_end:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        metadata = None if at_end else {"incomplete": True}
        assert (await stored(chat))[1:] == [("assistant", text, metadata)]
        assert len(runtime.internals.turns) == 0


@pytest.mark.parametrize("closing", ["while it waits for the model", "while the client reads"])
async def test_the_runtime_closes(tmp_path: Path, closing: str) -> None:
    """What was streamed is stored before; the stream ends with an error."""
    waits = closing == "while it waits for the model"
    model = Model(["Hel", "lo", "!"][: 2 if waits else 3], "hangs")
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        async with anyio.create_task_group() as tasks:
            with pytest.raises(RuntimeClosed):
                async with chat.turn("hi", key="r1") as turn:
                    async for one in turn.stream(model.stream()):
                        if one == "lo" and waits:
                            tasks.start_soon(close_and_cancel, runtime, tasks)
                        elif one == "lo":
                            await runtime.aclose()
                    raise AssertionError
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        assert (await stored(chat))[-1] == ("assistant", "Hello", {"incomplete": True})
        async with chat.turn("hi", key="r1") as turn:
            assert turn.resumed


async def close_and_cancel(runtime: Runtime, tasks: anyio.abc.TaskGroup) -> None:
    await runtime.aclose()
    tasks.cancel_scope.cancel()


async def test_misuse(open_runtime: Open) -> None:
    async with open_runtime() as runtime:
        chat, model = runtime.session("alice", "one"), Model(["a", "b", "c"])
        turn = chat.turn("hi")
        with pytest.raises(TurnClosed):
            turn.stream(model.stream())
        async with turn:
            for bad in ({"chunks": ["a"]}, {"on_interrupt": "maybe"}, {"read": "text"}):
                with pytest.raises(InvalidInput):
                    turn.stream(**{"chunks": model.stream(), **bad})  # type: ignore[arg-type]
            turn.stream(model.stream())  # never read: nothing is stored
            passing = turn.stream(model.stream())
            await anext(passing)
            with pytest.raises(TurnClosed, match="is running"):
                turn.stream(model.stream())
            assert [one async for one in passing] == ["b", "c"]
        assert [content for _, content, _ in await stored(chat)] == ["hi", "abc"]
