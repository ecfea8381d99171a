"""Conversations keep their texts, calls, ids and order through the shapes of other APIs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from anthropic.types import MessageParam
from google.genai.types import Content
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from remora.errors import InvalidMessage
from remora.formats import (
    from_anthropic,
    from_gemini,
    from_responses,
    to_anthropic,
    to_gemini,
    to_responses,
)
from remora.messages import encode_message

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
ANTHROPIC = TypeAdapter(list[MessageParam])
RESPONSES = TypeAdapter(list[ResponseInputItemParam])

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda t: t.strip())
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(words, values, max_size=3).map(json.dumps)


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A system message, and turns of a user and an assistant that may call tools."""
    messages: list[dict[str, Any]] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(words)})
    number = 0
    for _ in range(draw(st.integers(1, 4))):
        text: Any = draw(words)
        if draw(st.booleans()):
            text = [{"type": "text", "text": text}, IMAGE, {"type": "text", "text": draw(words)}]
        messages.append({"role": "user", "content": text})
        for _ in range(draw(st.integers(0, 2))):
            ids = [f"call_{number + n}" for n in range(draw(st.integers(1, 3)))]
            number += len(ids)
            calls = [
                {
                    "id": one,
                    "type": "function",
                    "function": {"name": draw(st.sampled_from("fg")), "arguments": draw(arguments)},
                }
                for one in ids
            ]
            said = draw(st.none() | words)
            messages.append({"role": "assistant", "content": said, "tool_calls": calls})
            messages += [
                {"role": "tool", "tool_call_id": one, "content": draw(words)} for one in ids
            ]
        messages.append({"role": "assistant", "content": draw(words)})
    return messages


def events(messages: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """What was said, called and answered, one after the other."""
    for message in messages:
        encode_message(message)  # it can be appended
        content: Any = message.get("content")
        parts: list[Any] = (
            [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        )
        for part in parts:
            if message["role"] == "tool":
                yield "result", message["tool_call_id"], part["text"]
            elif part["type"] == "text":
                yield "said", message["role"], part["text"]
            else:
                yield "shown", message["role"], part["image_url"]["url"]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            yield "called", call["id"], function["name"], json.loads(function["arguments"])


def alternate(roles: list[str]) -> bool:
    return all(one != other for one, other in pairwise(roles))


def without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in messages if message["role"] != "system"]


def same(messages: list[dict[str, Any]], back: Callable[[], list[dict[str, Any]]]) -> None:
    assert list(events(back())) == list(events(messages))


@given(conversations())
def test_anthropic(messages: list[dict[str, Any]]) -> None:
    prompt = to_anthropic(messages)
    ANTHROPIC.validate_python(prompt["messages"])
    assert alternate([one["role"] for one in prompt["messages"]])
    assert prompt["messages"][0]["role"] == "user"
    if messages[0]["role"] == "system":
        assert prompt.get("system") == messages[0]["content"]
    same(without_system(messages), lambda: from_anthropic(prompt["messages"]))


@given(conversations())
def test_responses(messages: list[dict[str, Any]]) -> None:
    items = to_responses(messages)
    RESPONSES.validate_python(items)
    same(messages, lambda: from_responses(items))


@given(conversations())
def test_gemini(messages: list[dict[str, Any]]) -> None:
    prompt = to_gemini(messages)
    contents = [Content.model_validate(one) for one in prompt["contents"]]
    assert alternate([str(one.role) for one in contents])
    if messages[0]["role"] == "system":
        assert prompt.get("system_instruction") == messages[0]["content"]
    same(without_system(messages), lambda: from_gemini(prompt["contents"]))
    same(without_system(messages), lambda: from_gemini(contents))


NAMES = (
    "args arguments call_id candidates content data detail display_name file file_data file_id "
    "file_uri format function function_call function_response id image_url inline_data input "
    "input_audio media_type metadata mime_type name output parts refusal remora.anthropic "
    "remora.gemini remora.responses response role source text thought thought_signature title "
    "tool_call_id tool_calls tool_use_id type url"
)
KINDS = (
    "assistant base64 developer document file function function_call function_call_output image "
    "image_url input_audio input_file input_image input_text message model output_text reasoning "
    "refusal system text thinking tool tool_result tool_use url user"
)
LEAVES = [None, True, 0, 10**400, 1.5, float("nan"), "", "x", "\ud800", "data:a;base64,!", b"\xff"]
junk = st.recursive(
    st.sampled_from(LEAVES) | st.sampled_from(KINDS.split()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=5)
        | st.fixed_dictionaries(
            {"role": st.sampled_from(KINDS.split())},
            optional={"content": inner, "parts": st.lists(inner, max_size=2), "metadata": inner},
        )
        | st.builds(
            lambda kind, more: {**more, "type": kind},
            st.sampled_from(KINDS.split()),
            st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4),
        )
    ),
    max_leaves=12,
)


@given(st.lists(junk, max_size=2) | junk, st.booleans())
@example([{"role": "model", "parts": [{"function_call": "x"}]}], False)
@example([{"role": "model", "parts": [{"function_response": [1]}]}], False)
@example([{"role": ["user"], "parts": []}], False)
@example([{"role": {"a": 1}, "content": "x"}], True)
@example([{"role": "assistant", "content": [{"type": []}]}], True)
@example([{"role": "user", "content": [{"type": "hologram", "text": {}}]}], True)
@example([{"role": "assistant", "content": [{"type": "text", "text": {}}]}], False)
@example([{"role": "assistant", "content": [{"type": "refusal", "refusal": {}}]}], False)
@example([{}], False)
@example([{"role": "tool"}], False)
@example([{"role": "user", "content": "x", "metadata": {"remora.gemini": [1]}}], False)
def test_what_is_no_message_is_refused(anything: Any, opaque: bool) -> None:
    """By the documented error; what is not refused has the shape of chat messages."""
    for read in (from_anthropic, from_gemini, from_responses):
        try:
            chats = read(anything, opaque=opaque)
        except InvalidMessage:
            continue
        for show in (to_anthropic, to_gemini, to_responses):
            show(chats)
    for show in (to_anthropic, to_gemini, to_responses):
        with suppress(InvalidMessage):
            show(anything)


def test_the_error_says_which_message() -> None:
    good: dict[str, Any] = {"role": "user", "content": "x"}
    calls: list[tuple[Callable[[Any], Any], dict[str, Any], dict[str, Any]]] = [
        (from_anthropic, good, {"role": ["user"], "content": "x"}),
        (from_responses, good, {"role": "assistant", "content": [{"type": "refusal"}]}),
        (from_gemini, {"role": "user", "parts": ["x"]}, {"parts": [{"function_call": 1}]}),
        (to_anthropic, good, {}),
        (to_gemini, good, {"role": "tool", "content": "x"}),
        (to_responses, good, {"role": "user", "content": [{"type": "text"}]}),
    ]
    for convert, one, bad in calls:
        with pytest.raises(InvalidMessage) as raised:
            convert([one, bad, one])
        assert raised.value.index == 1, convert


keys = st.dictionaries(st.sampled_from(["x", "cache_control", "id"]), words, max_size=2)


def blocks(*kinds: dict[str, Any]) -> st.SearchStrategy[list[Any]]:
    """Some of these, with keys that remora does not know."""
    one = st.builds(lambda kind, more: {**more, **kind}, st.sampled_from(kinds), keys)
    return st.lists(one, min_size=1, max_size=4)


def source(kind: str, **values: str) -> dict[str, Any]:
    return {"source": {"type": kind, **values}}


PDF = source("base64", media_type="application/pdf", data="JVBERi0=")
SEARCHED = {"type": "search_result", "source": "s", "title": "t", "content": []}
SAID_TO_CLAUDE = blocks(
    {"type": "text", "text": "hi"},
    {"type": "text", "text": "hi", "citations": [{"type": "char_location"}]},
    {"type": "image", **source("file", file_id="file_1")},
    {"type": "image", **source("url", url="https://e.org/a.png")},
    {"type": "document", "citations": {"enabled": True}, "context": "C", **PDF},
    SEARCHED,
)
SAID_BY_CLAUDE = blocks(
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "redacted_thinking", "data": "d"},
    {"type": "text", "text": "hi"},
    {"type": "tool_use", "id": "t", "name": "f", "input": {"at": 1}},
    {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}},
)
ITEMS = blocks(
    {"type": "reasoning", "id": "r", "summary": []},
    {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {
        "type": "message",
        "role": "assistant",
        "phase": "final_answer",
        "content": [
            {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation"}]},
            {"type": "refusal", "refusal": "b"},
        ],
    },
    {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "ls"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
)
PARTS = blocks(
    {"text": "hi"},
    {"text": "hm", "thought": True},
    {"file_data": {"file_uri": "gs://b/f", "mime_type": "video/mp4"}},
    {"function_call": {"name": "f", "args": {"a": 1}}, "thought_signature": b"sig"},
    {"executable_code": {"code": "1", "language": "PYTHON"}},
)
RESPONSES_OF_TOOLS = blocks(
    {"function_response": {"name": "f", "response": {"r": 1}}},
    {"function_response": {"id": "i", "name": "f", "response": {"output": "x"}}},
)


@given(SAID_TO_CLAUDE, SAID_BY_CLAUDE, blocks(SEARCHED, {"type": "text", "text": "r"}))
def test_what_anthropic_understands(asked: Any, said: Any, result: Any) -> None:
    """With `opaque`, each block comes back as it came, whatever is in it."""
    answer = {"type": "tool_result", "tool_use_id": "t", "content": result}
    given = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": said},
        {"role": "user", "content": [answer]},
    ]
    assert to_anthropic(from_anthropic(given, opaque=True))["messages"] == given


@given(ITEMS, st.booleans())
def test_what_the_responses_api_understands(items: Any, together: bool) -> None:
    """All at once, or item by item."""
    batches = [items] if together else [[item] for item in items]
    stored = [chat for batch in batches for chat in from_responses(batch, opaque=True)]
    assert to_responses(stored) == items


@given(PARTS, PARTS, RESPONSES_OF_TOOLS)
def test_what_gemini_understands(asked: Any, said: Any, results: Any) -> None:
    """Contents, and the objects that tools answered."""
    asked = [one for one in asked if {"function_call", "thought"}.isdisjoint(one)] or [
        {"text": "hi"}
    ]
    given = [
        {"role": "user", "parts": asked},
        {"role": "model", "parts": said},
        {"role": "user", "parts": results},
    ]
    assert to_gemini(from_gemini(given, opaque=True))["contents"] == given
