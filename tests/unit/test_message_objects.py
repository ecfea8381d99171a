"""Messages of client libraries, as `append` takes them."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from remora import Message, MessageDict, Runtime
from remora.errors import InvalidMessage
from remora.messages import encode_message
from remora.tokens import HeuristicCounter, count_message
from tests.configs import PLAIN

pytestmark = pytest.mark.anyio
LOOK = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED_CHAT = {"role": "assistant", "content": None, "tool_calls": [LOOK]}
CALLED = ChatCompletionMessage.model_validate({"role": "assistant", "tool_calls": [LOOK]})


async def test_answers_of_the_client_are_appended() -> None:
    """Alone, in a list, and as what `model_dump` makes of them: without keys that are not set. A
    whole response names what to append; nothing of that call is written.
    """
    said = ChatCompletionMessage(role="assistant", content="hello", annotations=[])
    result: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "a ship"}
    response = ChatCompletion.model_construct(id="r", choices=[])
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        with pytest.raises(InvalidMessage, match=r"append its choices\[0\].message"):
            await chat.append([{"role": "user", "content": "hi"}, typing.cast("Any", response)])
        assert await chat.history() == []
        await chat.append({"role": "user", "content": "hi"})
        await chat.append(CALLED)
        await chat.append([result, said, Message.user("and?"), said.model_dump()])
        context = await chat.load()
        shown: list[Any] = list(context.messages)
        assert shown[1:] == [
            CALLED_CHAT,
            result,
            {"role": "assistant", "content": "hello", "annotations": []},
            {"role": "user", "content": "and?"},
            {"role": "assistant", "content": "hello", "annotations": []},
        ]
        counter = HeuristicCounter()
        assert context.tokens == sum(count_message(counter, one) for one in context.messages)
        assert runtime.message_tokens(CALLED) == count_message(counter, CALLED_CHAT)


def test_keys_of_none_are_left_out() -> None:
    """Except the content of an assistant that calls tools: chat APIs ask for the key."""
    dumped = {**CALLED.model_dump(), "refusal": None, "function_call": None}
    assert encode_message(dumped)[1] == CALLED_CHAT
    _, chat = encode_message({"role": "user", "content": "hi", "name": None, "metadata": None})
    assert chat == {"role": "user", "content": "hi"}
    assert dumped["refusal"] is None, "the caller's dict is as it was"


def test_a_type_for_each_role() -> None:
    roles = {
        role
        for one in typing.get_args(MessageDict)
        for role in typing.get_args(typing.get_type_hints(one)["role"])
    }
    assert roles == {"system", "developer", "user", "assistant", "tool"}


async def test_answers_without_a_text() -> None:
    """Refusals, sounds, legacy calls and empty answers of the client are stored whole, and
    shown as its API takes them back. A sound weighs what a sound does, not what base64 does.
    """
    sound = {"id": "audio_1", "data": "AAAA" * 9_000, "expires_at": 3, "transcript": "Hello"}
    called = {"name": "f", "arguments": "{}"}
    async with Runtime.in_memory(config=PLAIN) as runtime:
        for keys, kept in (
            ({"refusal": "I cannot."}, {"refusal": "I cannot."}),
            ({"audio": sound}, {"audio": {"id": "audio_1"}}),
            ({"function_call": called}, {"function_call": called}),
            ({}, {"content": ""}),
        ):
            answer = ChatCompletionMessage.model_validate(
                {"role": "assistant", "content": None, **keys}
            )
            chat = runtime.session("alice", "-".join(["s", *keys]))
            await chat.append([{"role": "user", "content": "hi"}, answer])
            context = await chat.load()
            assert context.messages[1] == {"role": "assistant", "content": None, **kept}
            assert context.tokens < 600
            assert ((await chat.history())[1].extra or {}) == keys
