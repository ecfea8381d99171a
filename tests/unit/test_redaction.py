"""What a redaction hook takes out is out, and a hook that fails lets nothing through."""

from __future__ import annotations

import copy
import functools
import re
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Runtime
from remora.actors.policies.redaction import redact_chat, redact_metadata, validate_hook
from remora.errors import ConfigError, RedactionFailed, RemoraError
from remora.messages import encode_message
from tests.configs import PLAIN

SECRET = "4111-1111"


def mask(text: str) -> str:
    return re.sub(r"\d{4}-\d{4}", "[card]", text)


FUNCTION = {"name": "pay", "arguments": f'{{"card": "{SECRET}"}}'}
CALL = {"id": "call_1", "type": "function", "function": FUNCTION}
PICTURE = {"type": "text", "text": f"a picture of {SECRET}", "cache_control": {"type": "ephemeral"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": f"my card is {SECRET}", "name": f"Ann {SECRET}"},
    {
        "role": "assistant",
        "content": None,
        "refusal": f"I will not say {SECRET}",
        "reasoning_content": f"hm, {SECRET}",
    },
    {
        "role": "user",
        "content": [
            PICTURE,
            {"type": "refusal", "refusal": SECRET},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            {"type": "file", "file": {"file_id": "file-1"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        "annotations": [{"quote": SECRET, "start": 3}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": f"paid with {SECRET}"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": f"hm, {SECRET}"}]},
            {"type": "hologram", "of": SECRET},
        ],
    },
]


def test_no_text_is_missed() -> None:
    """S4.43: content, parts, name, refusal, arguments and keys that nobody knows are redacted, and
    the metadata's texts, however deep; numbers and keys are kept; what was given is not changed.
    """
    for chat in MESSAGES:
        before = copy.deepcopy(chat)
        fresh = redact_chat(chat, mask)
        assert chat == before
        assert SECRET not in str(fresh)
        assert str(fresh) == str(before).replace(SECRET, "[card]")
    plain = {"n": 7, "ok": True, "none": None}
    metadata = {"card": SECRET, **plain, "deep": [{"card": SECRET}, [SECRET, 1.5]]}
    masked = {"card": "[card]", **plain, "deep": [{"card": "[card]"}, ["[card]", 1.5]]}
    assert redact_metadata(metadata, mask) == masked
    assert metadata["card"] == SECRET


def test_what_holds_a_message_together_stays() -> None:
    """S4.43: a hook that replaces every text leaves a message that is still one: roles, ids, types,
    tool names, media.
    """
    for chat in MESSAGES:
        if "refusal" in chat:
            continue
        fresh = redact_chat(chat, lambda _: "gone")
        entry, original = encode_message(fresh)[0], encode_message(chat)[0]
        assert (entry.role, entry.calls) == (original.role, original.calls)
        assert entry.answers == original.answers
        if chat["role"] == "assistant" and isinstance(chat["content"], list):
            thought = {"type": "thinking", "thinking": [{"type": "text", "text": "gone"}]}
            assert fresh["content"] == [thought, {"type": "hologram", "of": "gone"}]
        elif isinstance(chat["content"], list):
            assert fresh["content"][0] == {**PICTURE, "text": "gone"}
            assert fresh["content"][2:] == chat["content"][2:]
        for call in fresh.get("tool_calls", ()):
            assert call == {**CALL, "function": {"name": "pay", "arguments": "gone"}}


def failing(text: str) -> str:
    raise ValueError(f"cannot parse {text}")


async def later(text: str) -> str:
    return text


async def stream(text: str) -> AsyncIterator[str]:
    yield text


class Async:
    async def __call__(self, text: str) -> str:
        return text


def test_a_failing_hook_refuses_the_message() -> None:
    """S4.43: a hook that raises or returns no text refuses the message, and the error holds nothing
    of it.
    """
    hooks: list[Any] = [
        failing,
        lambda _: None,
        lambda text: text.encode(),
        lambda text: [text],
        later,
    ]
    for hook in hooks:
        for attempt in (
            functools.partial(redact_chat, {"role": "user", "content": SECRET}, hook),
            functools.partial(redact_metadata, {"card": [SECRET]}, hook),
        ):
            with pytest.raises(RedactionFailed) as caught:
                attempt()
            assert isinstance(caught.value, RemoraError)
            assert isinstance(caught.value, RuntimeError)
            assert caught.value.__context__ is None
            assert SECRET not in "".join(traceback.format_exception(caught.value))
            assert "refused" in str(caught.value)
            assert caught.value.hook in str(caught.value)


def test_what_can_be_a_hook() -> None:
    """S4.43: any plain callable is taken, as it is; an async hook, or what is no function, is
    refused when it is configured.
    """
    for hook in (mask, failing, functools.partial(re.sub, "a", "b"), str.upper):
        assert validate_hook(hook) is hook
    bad: tuple[Any, ...] = (later, functools.partial(later), Async(), stream, "mask", None, 7)
    for hook in bad:
        with pytest.raises(ConfigError, match="redaction hook"):
            validate_hook(hook)


json = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in inner for text in texts_of(one)]


@given(st.dictionaries(st.text(), json))
def test_every_text_goes_through_once(metadata: dict[str, Any]) -> None:
    """S4.43: the hook sees each text of any metadata once, and what it returns is what stands
    there.
    """
    seen: list[str] = []

    def note(text: str) -> str:
        seen.append(text)
        return f"<{text}>"

    assert texts_of(redact_metadata(metadata, note)) == [f"<{text}>" for text in texts_of(metadata)]
    assert seen == texts_of(metadata)


@pytest.mark.anyio
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
async def test_an_interrupt_that_arrives_in_a_hook_reaches_the_program(
    interrupt: type[BaseException],
) -> None:
    """It is no failure of the hook; nothing is written, and the next append is."""

    def hook(text: str) -> str:
        if text == "now":
            raise interrupt
        return text

    async with Runtime.in_memory(config=PLAIN, redact=hook) as runtime:
        chat = runtime.session("alice", "chat")
        with pytest.raises(interrupt):
            await chat.append({"role": "user", "content": "now"})
        await chat.append({"role": "user", "content": "later"})
        assert [one.content for one in await chat.history()] == ["later"]
