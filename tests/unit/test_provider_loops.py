"""Loops of tools with reasoning, by what each provider refuses: contexts pass, turn after turn."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from remora import Context, Runtime, Session
from remora.config import Config
from remora.formats import (
    from_anthropic,
    from_gemini,
    from_responses,
    to_anthropic,
    to_gemini,
    to_openai,
    to_responses,
)

pytestmark = pytest.mark.anyio
CONFIG = Config.from_dict({"long_term": {"enabled": False}, "tokens": {"counter": "heuristic"}})
ASKED = ("What is the weather in Lisbon?", "And in Porto?")


# -- what each provider refuses --------------------------------------------------------------------


def check_anthropic(prompt: Mapping[str, Any]) -> None:
    """Roles alternate and begin with the user; each call has its result in the next message, before
    any text; while thinking is on, the calls that wait begin with a signed thought.
    https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking
    """
    messages = prompt["messages"]
    roles = [one["role"] for one in messages]
    assert roles[0] == "user"
    assert all(one != other for one, other in pairwise(roles))
    for place, message in enumerate(messages):
        calls = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
        if calls:
            after = messages[place + 1]["content"]
            results = [block for block in after if block["type"] == "tool_result"]
            assert {block["tool_use_id"] for block in results} == calls
            assert after[: len(results)] == results
    if messages[-1]["content"][0]["type"] == "tool_result":
        called = messages[-2]["content"]
        assert called[0]["type"] == "thinking"
        assert called[0]["signature"]


def check_gemini(prompt: Mapping[str, Any]) -> None:
    """Gemini 3 refuses a call of the current turn without its thought signature.
    https://ai.google.dev/gemini-api/docs/thought-signatures
    """
    contents = prompt["contents"]
    asked = max(n for n, one in enumerate(contents) if any("text" in p for p in one["parts"]))
    for content in contents[asked:]:
        calls = [part for part in content["parts"] if "function_call" in part]
        assert not calls or calls[0].get("thought_signature")


def check_responses(items: Sequence[Mapping[str, Any]]) -> None:
    """A reasoning item is followed by the item that came with it, and each call has its output.
    https://platform.openai.com/docs/guides/reasoning
    """
    for place, item in enumerate(items):
        if item.get("type") == "reasoning":
            assert items[place + 1].get("type") in {"function_call", "message"}
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert calls == outputs
    if items[-1].get("type") == "function_call_output":
        assert items[-3].get("type") == "reasoning"


def check_deepseek(messages: Sequence[Mapping[str, Any]]) -> None:
    """Reasoning goes back with the calls of the current turn, and with no older answer.
    https://api-docs.deepseek.com/guides/thinking_mode
    """
    asked = max(n for n, one in enumerate(messages) if one["role"] == "user")
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            assert ("reasoning_content" in message) == (place > asked)


# -- their answers ---------------------------------------------------------------------------------


def claude(number: int, place: str) -> Any:
    return from_anthropic(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": f"I look {place} up.", "signature": f"s{number}"},
                {"type": "tool_use", "id": f"c{number}", "name": "look", "input": {"in": place}},
            ],
        },
        opaque=True,
    )


def gemini(number: int, place: str) -> Any:
    call = {"id": f"c{number}", "name": "look", "args": {"in": place}}
    parts = [{"function_call": call, "thought_signature": "c2ln"}]
    return from_gemini({"role": "model", "parts": parts}, opaque=True)


def responses(number: int, place: str) -> Any:
    return from_responses(
        [
            {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "e"},
            {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": f"c{number}",
                "name": "look",
                "arguments": f'{{"in": "{place}"}}',
            },
        ],
        opaque=True,
    )


def deepseek(number: int, place: str) -> Any:
    function = {"name": "look", "arguments": f'{{"in": "{place}"}}'}
    return {
        "role": "assistant",
        "content": None,
        "reasoning_content": f"I look {place} up.",
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


PROVIDERS: list[tuple[Callable[[int, str], Any], Callable[[Context], Any], Callable[[Any], None]]]
PROVIDERS = [
    (claude, to_anthropic, check_anthropic),
    (gemini, to_gemini, check_gemini),
    (responses, to_responses, check_responses),
    (deepseek, to_openai, check_deepseek),
]


@pytest.mark.parametrize(("answer", "convert", "check"), PROVIDERS)
async def test_a_loop_with_reasoning(
    answer: Callable[[int, str], Any],
    convert: Callable[[Context], Any],
    check: Callable[[Any], None],
) -> None:
    """Every request of two turns is one that the provider takes: reasoning whole with the
    calls of this turn, and none of an older one.
    """
    async with Runtime.in_memory(config=CONFIG) as runtime:
        chat = runtime.session("ada", "weather")
        number = 0
        for question in ASKED:
            async with chat.turn(question) as turn:
                for place in ("the city", "the coast"):
                    check(convert(await turn.load()))
                    await turn.reply(answer(number, place))
                    await turn.reply(
                        {"role": "tool", "tool_call_id": f"c{number}", "content": "18 degrees"}
                    )
                    request = convert(await turn.load())
                    check(request)
                    assert str(request).count("look") >= 1
                    number += 1
                await turn.reply({"role": "assistant", "content": "Sunny, 18 degrees."})
        await chat.append({"role": "user", "content": "Thanks."})
        request = convert(await chat.load())
        assert not any(word in str(request) for word in ("signature", "encrypted", "reasoning"))


@pytest.mark.parametrize(("answer", "convert", "check"), PROVIDERS)
@pytest.mark.parametrize("texts", [("In Celsius, please.",), ("Wait.", "In Celsius, please.")])
async def test_a_user_interrupts_a_loop(
    answer: Callable[[int, str], Any],
    convert: Callable[[Context], Any],
    check: Callable[[Any], None],
    texts: Sequence[str],
) -> None:
    """What a user says behind a result does not end the loop: its reasoning is still there."""
    async with Runtime.in_memory(config=CONFIG) as runtime:
        chat = runtime.session("ada", "weather")
        await chat.append({"role": "user", "content": ASKED[0]})
        await chat.append(answer(0, "the city"))
        await chat.append({"role": "tool", "tool_call_id": "c0", "content": "64 degrees"})
        for text in texts:
            await chat.append({"role": "user", "content": text})
        request = convert(await chat.load())
        assert any(word in str(request) for word in ("signature", "encrypted", "reasoning"))
        if check is check_anthropic:
            check(request)
        await chat.append({"role": "assistant", "content": "18 degrees."})
        await chat.append({"role": "user", "content": "Thanks."})
        request = convert(await chat.load())
        assert not any(word in str(request) for word in ("signature", "encrypted", "reasoning"))


# -- strict templates, and the prompt cache --------------------------------------------------------


async def talk(chat: Session) -> None:
    await chat.append({"role": "system", "content": "Be brief."})
    for text in ("One.", "Two."):
        await chat.append({"role": "user", "content": text})
    await chat.append({"role": "assistant", "content": "Yes?"})
    await chat.append({"role": "user", "content": [{"type": "text", "text": "Three."}]})
    await chat.append({"role": "user", "content": "Four."})


async def test_roles_alternate_where_a_template_demands_it() -> None:
    """Neighbours of one role are one message, and nothing of them is lost."""
    async with Runtime.in_memory(config=CONFIG) as runtime:
        chat = runtime.session("ada", "strict")
        await talk(chat)
        messages = to_openai(await chat.load(), alternate=True)
        assert [one["role"] for one in messages] == ["system", "user", "assistant", "user"]
        assert messages[1]["content"] == "One.\n\nTwo."
        texts = [part["text"] for part in messages[3]["content"]]
        assert texts == ["Three.", "Four."]
        assert to_openai(await chat.load()) == (await chat.load()).messages


def test_strict_templates_and_odd_messages() -> None:
    """Two speakers stay two, an assistant is not first, and what else a message has is kept."""
    call = {"id": "c23456789", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    given: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "name": "Ana", "content": "Lunch at one?"},
        {"role": "user", "name": "Rui", "content": "No."},
        {"role": "assistant", "content": "Let me look.", "reasoning_content": "hm"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c23456789", "content": "x"},
    ]
    before = str(given)
    strict = to_openai(given, alternate=True)
    assert str(given) == before
    roles = [one["role"] for one in strict]
    assert roles == ["user", "assistant", "user", "assistant", "tool"]
    assert strict[2]["content"] == "Ana: Lunch at one?\n\nRui: No."
    assert "name" not in strict[2]
    assert (strict[3]["content"], strict[3]["tool_calls"]) == ("Let me look.", [call])
    assert to_openai([{"role": "system", "content": "x"}], alternate=True) == [
        {"role": "system", "content": "x"}
    ]


@pytest.mark.parametrize("ids", [("functions.look:0", "functions_look_0"), ("", "x" * 80)])
def test_calls_of_another_provider(ids: tuple[str, str]) -> None:
    """A conversation goes on with another provider, which refuses the ids of the first: they are
    changed, and each result still has its call.
    """
    calls = [
        {"id": one, "type": "function", "function": {"name": "files.look", "arguments": "{}"}}
        for one in ids
    ]
    given: list[dict[str, Any]] = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": one, "content": "x"} for one in ids),
    ]
    prompt = to_anthropic(given)
    used, answered = (message["content"] for message in prompt["messages"][1:])
    check_ids([one["id"] for one in used], [one["tool_use_id"] for one in answered], r"[\w-]{1,64}")
    assert all(re.fullmatch(r"[\w-]{1,128}", one["name"]) for one in used)
    items = to_responses(given)[1:]
    check_ids(
        [one["call_id"] for one in items[:2]], [one["call_id"] for one in items[2:]], ".{1,64}"
    )
    for alternate, form in ((False, ".{1,40}"), (True, "[a-zA-Z0-9]{9}")):
        _, said, *results = to_openai(given, alternate=alternate)
        called = [one["id"] for one in said["tool_calls"]]
        check_ids(called, [one["tool_call_id"] for one in results], form)


def test_calls_that_are_kept_keep_their_ids() -> None:
    """A server that speaks Anthropic's protocol has ids of its own: what is shown as it came, and
    what is made, name a call alike.
    """
    id_ = "functions.look:0"
    used = {"type": "tool_use", "id": id_, "name": "look", "input": {}}
    thought = {"type": "thinking", "thinking": "Look.", "signature": "s"}
    given = [
        {"role": "user", "content": "Look."},
        *from_anthropic({"role": "assistant", "content": [thought, used]}, opaque=True),
        {"role": "tool", "tool_call_id": id_, "content": "x"},
    ]
    _, said, answered = to_anthropic(given)["messages"]
    assert said["content"] == [thought, used]
    assert answered["content"][0]["tool_use_id"] == id_


def check_ids(calls: Sequence[str], results: Sequence[str], form: str) -> None:
    assert list(calls) == list(results)
    assert len(set(calls)) == len(calls)
    assert all(re.fullmatch(form, one) for one in calls)


def test_a_conversation_that_begins_with_a_call() -> None:
    """Gemini refuses a call of a function that no turn of the user stands before."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    contents = to_gemini(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ]
    )["contents"]
    assert [one["role"] for one in contents] == ["user", "model", "user"]


async def test_the_prompt_cache_of_anthropic() -> None:
    """Breakpoints are behind the system prompt, behind what stays, and at the end."""
    async with Runtime.in_memory(config=CONFIG) as runtime:
        chat = runtime.session("ada", "cached")
        await talk(chat)
        prompt = to_anthropic(await chat.load(), cache=True)
        assert prompt["system"] == [
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
        ]
        marked = [
            [block.get("text") for block in message["content"] if "cache_control" in block]
            for message in prompt["messages"]
        ]
        assert marked == [[], ["Yes?"], ["Four."]]
        assert "cache_control" not in str(to_anthropic(await chat.load()))
