"""The chat model of the gallery: it streams, calls tools and reads its context by rules.

It needs no key and no network, and answers the same each time. A real one takes its place by one
line, because its chunks have the attributes of OpenAI's: see the gallery in examples/README.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import anyio

Chat = dict[str, Any]

CALLS = (  # the question, the tool that it needs, and the name of the tool's argument
    (re.compile(r"how warm is it in ([\w ]+)", re.IGNORECASE), "read_thermometer", "city"),
    (re.compile(r"\border ([A-Z]-\d+)"), "look_up_order", "number"),
)
SMALL_WORDS = set(re.findall(r"\w+", "a an and are did do i in is it me my of on the to you"))


async def think(messages: Sequence[Chat], tools: Sequence[Chat] = ()) -> AsyncGenerator[Any]:
    """Answer a conversation in OpenAI's format.

    Args:
        messages: the last of them is a question, or the result of a tool.
        tools: those that may be called, as OpenAI's API takes them.

    Yields:
        Objects with the attributes of OpenAI's chat.completion.chunk.
    """
    call = _choose_call(messages[-1], {tool["function"]["name"] for tool in tools})
    if call is not None:
        place = sum(len(one.get("tool_calls") or ()) for one in messages) + 1
        yield _chunk(tool_calls=[{"index": 0, "id": f"call-{place}", "function": call}])
    else:
        for word in re.findall(r"\S+\s*", _answer(messages)):
            await anyio.sleep(0.005)
            yield _chunk(content=word)


def text_of(chunk: Any) -> str:
    """Return the text that a chunk adds to the answer."""
    return chunk.choices[0].delta.content or "" if chunk.choices else ""


def _chunk(**delta: Any) -> SimpleNamespace:
    given = SimpleNamespace(**{"content": None, "tool_calls": None, **delta})
    return SimpleNamespace(choices=[SimpleNamespace(index=0, delta=given, finish_reason=None)])


def _choose_call(newest: Chat, offered: set[str]) -> Chat | None:
    if newest["role"] == "user":
        for pattern, name, argument in CALLS:
            found = pattern.search(_text(newest))
            if found is not None and name in offered:
                return {"name": name, "arguments": json.dumps({argument: found[1].strip()})}
    return None


def _answer(messages: Sequence[Chat]) -> str:
    newest = messages[-1]
    if newest["role"] == "tool":
        return f"I looked: {_text(newest)}."
    question = _text(newest)
    told = re.match(r"tell me about ([\w ]+)", question, re.IGNORECASE)
    if told is not None:
        return " ".join(f"This is sentence {n} on {told[1]}." for n in range(1, 21))
    pictures = [part for part in _parts(newest) if part["type"] == "image_url"]
    if pictures:
        kind = pictures[0]["image_url"]["url"].partition(";")[0].removeprefix("data:")
        return f"I see a picture ({kind})."
    if not question.endswith("?"):
        return "Noted."
    known = max(_statements(messages[:-1]), key=lambda text: _shared(text, question), default="")
    return f"I know this: {known}" if _shared(known, question) else "I do not know that."


def _statements(messages: Sequence[Chat]) -> Iterator[str]:
    """Yield what people and tools said, the newest first: in the conversation, or recalled."""
    for message in reversed(messages):
        for line in _text(message).splitlines():
            quoted = re.fullmatch(r'- \(.*?\) (\w+).*?: (".*")', line)  # a recalled message
            said = json.loads(quoted[2]) if quoted else line
            by = quoted[1].lower() if quoted else message["role"]
            header = not quoted and line.startswith(("<", "Possibly relevant"))
            if by in {"user", "tool", "fact"} and not said.endswith("?") and not header:
                yield said


def _shared(text: str, question: str) -> int:
    return len(_words(text) & _words(question))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower())) - SMALL_WORDS


def _parts(message: Chat) -> list[Chat]:
    content = message.get("content") or ""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(message: Chat) -> str:
    return "\n".join(part["text"] for part in _parts(message) if part["type"] == "text").strip()
