"""Messages of other APIs, as their clients' own types have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import MessageParam
from google.genai.types import Blob, Content, FunctionCall, GenerateContentResponse, Part
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseInputItemParam,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
from pydantic import TypeAdapter

from remora import Message, Runtime
from remora.errors import InvalidMessage
from remora.formats import (
    from_anthropic,
    from_gemini,
    from_responses,
    to_anthropic,
    to_gemini,
    to_responses,
)
from remora.tokens import CallableCounter
from tests.configs import PLAIN

pytestmark = pytest.mark.anyio
THINKING = {"type": "thinking", "thinking": "Where is it?", "signature": "abc"}
ANSWER = AnthropicMessage.model_validate(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [
            THINKING,
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": None}},
        ],
    }
)
REASONING = ResponseReasoningItem(
    id="rs_1", type="reasoning", summary=[], encrypted_content="secret"
)
FIRST = ResponseFunctionToolCall(
    id="fc_1", type="function_call", call_id="call_1", name="look", arguments='{"at": null}'
)
SECOND = ResponseFunctionToolCall(
    id="fc_2", type="function_call", call_id="call_2", name="wait", arguments="{}"
)
SPOKEN = ResponseOutputMessage.model_validate(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "A ship.", "annotations": []}],
    }
)
CALLED = Content(
    role="model",
    parts=[
        Part(text="I look."),
        Part(
            function_call=FunctionCall(name="look", args={"at": None}),
            thought_signature=b"\xff\x00sign",
        ),
        Part(function_call=FunctionCall(name="look", args={"at": "sea"})),
    ],
)
LOOK = {"name": "look", "arguments": '{"at": null}'}


def test_an_answer_of_anthropic() -> None:
    """Reasoning is left out, or kept with its signature for Anthropic alone."""
    call = {"id": "toolu_1", "type": "function", "function": LOOK}
    plain: dict[str, Any] = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    assert from_anthropic(ANSWER) == [plain]
    assert from_anthropic({"role": "assistant", "content": ANSWER.content}) == [plain]
    (kept,) = from_anthropic(ANSWER, opaque=True)
    assert {key: value for key, value in kept.items() if key != "metadata"} == plain
    question = {"role": "user", "content": "Where?"}
    _, again = to_anthropic([question, kept])["messages"]
    assert again == {
        "role": "assistant",
        "content": [
            THINKING,
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": None}},
        ],
    }
    TypeAdapter(MessageParam).validate_python(again)
    assert "Where is it?" not in str(to_responses([question, kept]))
    assert "Where is it?" not in str(to_gemini([question, kept]))


def test_what_a_user_shows_anthropic() -> None:
    """Results become tool messages before what was said with them; images keep their bytes."""
    shown = {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "fog"}],
                "is_error": True,
            },
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
            },
            {"type": "text", "text": "and this?"},
        ],
    }
    result, said = from_anthropic(shown)
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "toolu_1", "fog")
    assert said["content"][0]["image_url"] == {"url": "data:image/png;base64,iVBORw=="}
    (back,) = to_anthropic([result, said])["messages"]
    assert back == shown


def test_roles_alternate_for_anthropic() -> None:
    """Neighbours are joined, system messages are apart, and the user begins."""
    prompt = to_anthropic(
        [
            Message.system("Be brief."),
            Message.assistant("Hello."),
            Message.user("one"),
            Message.system("Recalled: fog."),
            Message.user("two"),
            Message.user(" "),
        ]
    )
    assert prompt.get("system") == "Be brief.\n\nRecalled: fog."
    assert [one["role"] for one in prompt["messages"]] == ["user", "assistant", "user"]
    assert [block["text"] for block in prompt["messages"][-1]["content"]] == ["one", "two"]
    assert to_anthropic([]) == {"messages": []}


def test_items_of_a_response() -> None:
    """Calls in a row are one message; reasoning is left out, or kept before what it led to."""
    calls = [
        {"id": "call_1", "type": "function", "function": LOOK},
        {"id": "call_2", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
    ]
    output: list[Any] = [REASONING, FIRST, SECOND]
    assert from_responses(output) == [{"role": "assistant", "content": None, "tool_calls": calls}]
    assert from_responses([SPOKEN, {"role": "user", "content": "and?"}]) == [
        {"role": "assistant", "content": "A ship."},
        {"role": "user", "content": "and?"},
    ]
    (kept,) = from_responses(output, opaque=True)
    again = to_responses([kept])
    assert [one["type"] for one in again] == ["reasoning", "function_call", "function_call"]
    assert again[0]["encrypted_content"] == "secret"
    assert "status" not in again[0], "what is not set does not come back"
    TypeAdapter(list[ResponseInputItemParam]).validate_python(again)
    assert "secret" not in str(to_anthropic([kept]))


def test_items_without_a_role() -> None:
    """They are refused, or kept where an adapter asks for it."""
    for item in (
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"__enc__": 1, "payload": "xyz"},
    ):
        with pytest.raises(InvalidMessage, match="opaque=True"):
            from_responses([item])
        (kept,) = from_responses([item], opaque=True)
        assert kept["role"] == "assistant"
        assert to_responses([kept]) == [item]
        assert "xyz" not in str(to_gemini([kept]))


def test_contents_of_gemini() -> None:
    """Calls without an id have their function's name; signatures are kept if asked for."""
    (chat,) = from_gemini(CALLED)
    assert [call["id"] for call in chat["tool_calls"]] == ["look", "look#2"]
    assert chat["tool_calls"][0]["function"] == LOOK
    results = from_gemini(
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "look", "response": {"output": "fog"}}},
                {"functionResponse": {"name": "look", "response": {"ship": True}}},
            ],
        }
    )
    assert [(one["tool_call_id"], one["content"]) for one in results] == [
        ("look", "fog"),
        ("look#2", '{"ship": true}'),
    ]
    question = {"role": "user", "content": "Where?"}
    contents = to_gemini([question, chat, *results])["contents"]
    assert [one["role"] for one in contents] == ["user", "model", "user"]
    assert "id" not in contents[1]["parts"][1]["function_call"]
    assert [part["function_response"]["name"] for part in contents[2]["parts"]] == ["look", "look"]
    (kept,) = from_gemini(
        GenerateContentResponse.model_validate({"candidates": [{"content": CALLED.model_dump()}]}),
        opaque=True,
    )
    _, again = to_gemini([kept])["contents"]
    assert Content.model_validate(again) == CALLED


def test_blobs_of_gemini() -> None:
    """Images, sounds and files keep their bytes."""
    content = Content(
        role="user",
        parts=[
            Part(inline_data=Blob(mime_type="image/png", data=b"\x89PNG")),
            Part(inline_data=Blob(mime_type="audio/wav", data=b"RIFF")),
            Part(inline_data=Blob(mime_type="application/pdf", data=b"%PDF", display_name="a.pdf")),
            Part(text="what is this?"),
        ],
    )
    (chat,) = from_gemini(content)
    types = [part["type"] for part in chat["content"]]
    assert types == ["image_url", "input_audio", "file", "text"]
    (again,) = to_gemini([chat])["contents"]
    assert Content.model_validate(again) == content


def test_what_is_refused() -> None:
    for bad in (
        lambda: from_anthropic("text"),
        lambda: from_anthropic([7]),
        lambda: from_anthropic({"role": "robot", "content": "x"}),
        lambda: from_anthropic({"role": "user", "content": [{"type": "server_tool_use"}]}),
        lambda: from_anthropic({"role": "user", "content": ["x"]}),
        lambda: from_responses([{"role": "user"}]),
        lambda: from_responses([{"type": "function_call_output", "call_id": "c"}]),
        lambda: from_responses([{"role": "user", "content": [{"type": "hologram"}]}]),
        lambda: from_gemini({"role": "user", "parts": [{"executable_code": {"code": "1"}}]}),
        lambda: from_gemini({"role": "user", "parts": [7]}),
        lambda: from_gemini({"role": "user", "content": "x"}),
        lambda: from_gemini({"candidates": [{}]}),
    ):
        with pytest.raises(InvalidMessage):
            bad()


async def test_what_is_kept_counts(tmp_path: Path) -> None:
    """It is in the message's tokens, with another counter too; no context has it."""
    item = {"type": "compaction", "encrypted_content": "w " * 100}
    kept = from_responses([item], opaque=True)
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([Message.user("hi"), *kept])
        context = await chat.load()
        assert context.tokens > 50 > sum(map(runtime.message_tokens, context.messages))
        assert "w w" not in str(context.messages)
        assert to_responses(await chat.history())[1:] == [item]
    async with Runtime(tmp_path, config=PLAIN, counter=CallableCounter(str.split)) as runtime:
        assert (await runtime.session("alice", "one").load()).tokens > 100


async def test_objects_are_appended_as_they_are() -> None:
    """Of each client; what has no form in a chat is kept as it came, and goes back as it came."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([Message.user("Where?"), ANSWER])
        await chat.append(Message.tool("fog", tool_call_id="toolu_1"))
        await chat.append([REASONING, FIRST, SECOND])
        results = [Message.tool(one, tool_call_id=f"call_{one}") for one in "12"]
        await chat.append([*results, CALLED])
        history = await chat.history()
        roles = " ".join(one.role for one in history)
        assert roles == "user assistant tool assistant tool tool assistant"
        assert [len(one.tool_calls or ()) for one in history] == [0, 1, 0, 2, 0, 0, 2]
        code = Content.model_validate({"parts": [{"executable_code": {"code": "1"}}]})
        await chat.append([Message.user("x"), code])
        [kept] = (await chat.history())[len(history) + 1 :]
        assert to_gemini([kept])["contents"][0]["parts"] == [{"executable_code": {"code": "1"}}]
