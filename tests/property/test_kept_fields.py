"""What a provider sent comes back, whatever keys it has, by every path."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage

from remora import Runtime, Session
from tests.configs import PLAIN

texts = st.text(st.characters(codec="utf-8"), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
unknown = st.dictionaries(st.sampled_from(["x", "extra_content", "cache"]), values, max_size=2)
thoughts = st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), max_size=1)
parts = st.one_of(  # of OpenAI, Mistral, Databricks, and of nobody
    st.builds(lambda text, more: {"type": "text", "text": text, **more}, texts, unknown),
    st.builds(lambda thinking: {"type": "thinking", "thinking": thinking}, thoughts),
    st.builds(lambda ids: {"type": "reference", "reference_ids": ids}, values),
    st.builds(lambda summary: {"type": "reasoning", "summary": summary}, thoughts),
    st.builds(lambda value: {"type": "another", "another": value}, values),
)
said = (
    st.none() | texts | st.lists(parts, min_size=1, max_size=3, unique_by=lambda one: one["type"])
)
shared = st.sampled_from(
    [
        {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
        {"type": "document_url", "document_url": "https://example.com/a.pdf"},
        {"type": "document", "document": {"id": "1", "data": "rows"}},
    ]
)
calls = st.builds(
    lambda kind, name, text, of_call, of_function: (
        {"type": "custom", "custom": {"name": name, "input": text, **of_function}, **of_call}
        if kind
        else {"type": "function", "function": {"name": name, "arguments": text, **of_function}}
        | of_call
    ),
    st.booleans(), texts, texts, unknown, unknown,
)  # fmt: skip
top = unknown.map(lambda keys: {k: v for k, v in keys.items() if v is not None})


def assistant(content: Any, called: list[Any], extra: dict[str, Any]) -> dict[str, Any]:
    numbered = [{"id": f"c{n}", **one} for n, one in enumerate(called)]
    chat = {"role": "assistant", "content": content, **extra}
    return chat | ({"tool_calls": numbered} if numbered else {"content": content or ""})


replies = st.builds(assistant, said, st.lists(calls, max_size=2), top)


def conversation(reply: dict[str, Any], *parts: dict[str, Any]) -> list[dict[str, Any]]:
    """A question with parts that have unknown keys, the reply, and results of its calls."""
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": "done"}
        for one in reply.get("tool_calls", ())
    ]
    said = [{"type": "text", "text": "hi", **one} for one in parts or ({},)]
    asked = {"role": "user", "content": said}
    return [asked, reply, *results]


async def shown(session: Session) -> list[Any]:
    return list((await session.load()).messages)


@given(replies, unknown, shared)
def test_unknown_keys(reply: dict[str, Any], part: dict[str, Any], sent: dict[str, Any]) -> None:
    """In a context, in a history that is appended again, a state, a fork and an export."""
    given = conversation(reply, part, sent)

    async def run() -> None:
        async with Runtime.in_memory(config=PLAIN) as runtime:
            first = runtime.session("ada", "first")
            await first.append(given)
            assert await shown(first) == given
            assert [one.to_chat() for one in await first.history()] == given
            again, restored = runtime.session("ada", "again"), runtime.session("ada", "restored")
            await again.append(await first.history())
            assert await shown(again) == given
            await restored.load_state_dict(json.loads(json.dumps(await first.state_dict())))
            assert await shown(restored) == given
            assert await shown(await first.fork("fork")) == given
            imported = await runtime.user("bob").import_session(await first.export())
            assert await shown(imported) == given

    anyio.run(run)


@given(replies)
def test_an_object_is_as_its_dump(reply: dict[str, Any]) -> None:
    """What `append` keeps of a client's message is what it keeps of the dict."""

    async def run() -> None:
        async with Runtime.in_memory(config=PLAIN) as runtime:
            of_dict, of_object = runtime.session("ada", "dict"), runtime.session("ada", "object")
            await of_dict.append(conversation(reply, {}))
            made = ChatCompletionMessage.construct(**reply)
            await of_object.append(conversation({**reply, "x": 1}, {})[:1])
            await of_object.append([made, *conversation(reply, {})[2:]])
            assert await shown(of_object) == await shown(of_dict)

    anyio.run(run)


@given(replies, st.integers(1, 3))
def test_a_stream_is_as_its_whole(reply: dict[str, Any], size: int) -> None:
    """Pieces of text, arguments and reasoning are joined; other keys are kept as they are."""
    reply = {**reply, "reasoning_content": "first this, then that"}
    pieces = [reply["reasoning_content"][n : n + size] for n in range(0, 21, size)]
    deltas: list[dict[str, Any]] = [
        {key: value for key, value in reply.items() if key not in _IN_PIECES},
        *({"reasoning_content": piece} for piece in pieces),
        *({"content": piece} for piece in streamed(reply["content"])),
    ]
    for index, call in enumerate(reply.get("tool_calls", ())):
        key, text = ("custom", "input") if call["type"] == "custom" else ("function", "arguments")
        begun = {**call, key: {**call[key], text: ""}}
        deltas.append({"tool_calls": [{"index": index, **begun}]})
        rest = ({"index": index, key: {text: letter}} for letter in call[key][text])
        deltas.extend({"tool_calls": [one]} for one in rest)

    async def chunks() -> AsyncIterator[ChatCompletionChunk]:
        for delta in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            yield ChatCompletionChunk.construct(  # as the client does: it validates nothing
                id="i", object="chat.completion.chunk", created=1, model="m", choices=[choice]
            )

    async def run() -> None:
        async with Runtime.in_memory(config=PLAIN) as runtime:
            chat = runtime.session("ada", "s")
            async with chat.turn("hi", key="k", query=False) as turn:
                async for _ in turn.stream(chunks()):
                    pass
            stored = await chat.history()
            said = [one.to_chat() for one in stored[1:]]
            if reply["content"] or reply.get("tool_calls"):
                assert said == [{**reply, "content": reply["content"] or None}]

    anyio.run(run)


def streamed(content: Any) -> list[Any]:
    """Texts and thoughts come letter by letter, and other parts whole."""
    if not isinstance(content, list):
        return list(content or "")
    pieces = []
    for part in content:
        thought = "".join(one["text"] for one in part.get("thinking", ()))
        pieces.append([{**part, "thinking": []} if thought else part])
        pieces += [
            [{"type": "thinking", "thinking": [{"type": "text", "text": letter}]}]
            for letter in thought
        ]
    return pieces


_IN_PIECES = frozenset({"content", "tool_calls", "reasoning_content"})
