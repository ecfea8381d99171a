"""At the door: redaction, importance, media."""

from __future__ import annotations

import base64
import re
import struct
from enum import StrEnum
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora import Config, Message, Runtime
from remora.actors.policies.scoring import heuristic_score
from remora.errors import ConfigError, InvalidMessage, RedactionFailed
from remora.formats import to_gemini
from remora.messages import ChatDict
from remora.tokens import count_message
from tests.harness import user
from tests.integration.test_buffers import said

pytestmark = pytest.mark.anyio
NUMBER = re.compile(r"\b\d{4}-\d{4}\b")
SMALL: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "models": {"embedder": "none"},
    "long_term": {"batch_ms": 5},
}


def hidden(text: str) -> str:
    return NUMBER.sub("[card]", text)


async def holding(directory: Path, needle: str) -> list[Path]:
    """The files in which these bytes stand."""

    def search() -> list[Path]:
        return [
            path
            for path in directory.rglob("*")
            if path.is_file() and needle.encode() in path.read_bytes()
        ]

    return await anyio.to_thread.run_sync(search)


async def test_redaction_before_the_journal(tmp_path: Path) -> None:
    """S4.43: what the hook takes out stands in no file and in no answer: content, parts, arguments,
    results, metadata.
    """
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:x"}}
    call: dict[str, Any] = {
        "id": "c",
        "type": "function",
        "function": {"name": "pay", "arguments": '{"card": "1111-2222"}'},
    }
    async with Runtime(tmp_path, config=Config.from_dict(SMALL), redact=hidden) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(
            [
                user("my card is 1111-2222", metadata={"note": ["1111-2222"]}, id="m1"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "paid with 1111-2222"},
                {"role": "user", "content": [{"type": "text", "text": "again 1111-2222"}, image]},
            ]
        )
        await chat.flush()
        await chat.settle()
        messages = await chat.get_messages()
        assert messages[0].content == "my card is [card]"
        assert (messages[0].id, messages[0].metadata) == ("m1", {"note": ["[card]"]})
        assert "[card]" in str((await runtime.user("alice").recall("card"))[0].text)
    assert await holding(tmp_path, "1111-2222") == []
    assert await holding(tmp_path, "[card]") != []


async def test_redaction_before_long_term_memory(tmp_path: Path) -> None:
    """S4.43: the second hook spares the conversation and keeps long-term memory clean."""
    async with Runtime(
        tmp_path, config=Config.from_dict(SMALL), redact_long_term=hidden
    ) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(user("my card is 1111-2222, and the sky is blue"))
        await chat.flush()
        await chat.settle()
        assert said(await chat.get_messages()) == ["my card is 1111-2222, and the sky is blue"]
        assert (await runtime.user("alice").recall("sky"))[
            0
        ].text == "my card is [card], and the sky is blue"
    assert await holding(tmp_path / "longterm", "1111-2222") == []


async def test_redaction_that_fails_refuses_the_message(tmp_path: Path) -> None:
    """S4.43, G4: a hook that raises, or returns no text, refuses the whole batch; nothing is stored
    unredacted.
    """

    def fails(text: str) -> str:
        if "bad" in text:
            raise ValueError(f"cannot read {text}")
        return text

    async with Runtime(tmp_path, config=Config.from_dict(SMALL), redact=fails) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(user("good"))
        with pytest.raises(RedactionFailed) as caught:
            await chat.append([user("fine"), user("this is bad zebra")])
        assert "zebra" not in str(caught.value)
        assert said(await chat.get_messages()) == ["good"]
        assert (await chat.append(user("next"))).seqs == (2,)
    assert await holding(tmp_path, "zebra") == []
    none: Any = lambda _: None  # noqa: E731
    async with Runtime.in_memory(config=Config.from_dict(SMALL), redact=none) as runtime:
        with pytest.raises(RedactionFailed):
            await runtime.session("alice", "chat").append(user("x"))

    async def asynchronous(text: str) -> str:
        return text

    with pytest.raises(ConfigError, match="async"):
        Runtime.in_memory(redact=asynchronous)


async def test_redaction_in_long_term_that_fails_keeps_the_message_out(tmp_path: Path) -> None:
    """S4.43, G6: a failing second hook keeps the message out of long-term memory, visibly; the
    conversation has it.
    """

    def fails(text: str) -> str:
        raise ValueError(text)

    config = Config.from_dict({**SMALL, "supervisor": {"backoff_s": 0.01, "max_attempts": 2}})
    async with Runtime(tmp_path, config=config, redact_long_term=fails) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(user("zebra"))
        await chat.flush()
        await chat.settle()
        (dead,) = await runtime.dead_letters()
        assert "RedactionFailed" in dead.error
        assert "zebra" not in dead.error
        assert said(await chat.get_messages()) == ["zebra"]
    assert await holding(tmp_path / "longterm", "zebra") == []


async def test_importance_at_append(tmp_path: Path) -> None:
    """S4.35: a scorer weighs each message as it comes; the weight reaches long-term memory, and
    survives a restart.
    """
    seen: list[ChatDict] = []

    def scorer(chat: ChatDict) -> float:
        seen.append(chat)
        return 0.9 if "birthday" in str(chat["content"]) else 0.1

    async with Runtime(tmp_path, config=Config.from_dict(SMALL), scorer=scorer) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([user("hello"), user("my birthday is in March")])
        assert len(seen) == 2
    async with Runtime(tmp_path, config=Config.from_dict(SMALL)) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.flush()
        await chat.settle()
        rows = await (await runtime.internals.long_term()).rows("alice")
        assert [round(row.importance, 2) for row in rows] == [0.1, 0.9]


async def test_a_scorer_that_fails_costs_no_message() -> None:
    """S4.35: what is said matters more than what it is worth: a scorer that raises, or answers
    nonsense, weighs neutrally.
    """
    for bad in (lambda _: 1 / 0, lambda _: 7.0, lambda _: "high", lambda _: float("nan")):
        async with Runtime.in_memory(config=Config.from_dict(SMALL), scorer=bad) as runtime:
            chat = runtime.session("alice", "chat")
            assert (await chat.append(user("hello"))).seqs == (1,)
            await chat.flush()
            await chat.settle()
            (row,) = await (await runtime.internals.long_term()).rows("alice")
            assert row.importance == 0.5


async def test_importance_by_configuration() -> None:
    """S4.35: without a scorer of its own, an application may have messages weighed by what they
    look like.
    """
    config = Config.from_dict({**SMALL, "importance": {"score_messages": True}})
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("alice", "chat")
        texts = ["ok", "Please remember: my sister's birthday is 14 March 1985, in Porto."]
        await chat.append([user(text) for text in texts])
        await chat.flush()
        await chat.settle()
        rows = await (await runtime.internals.long_term()).rows("alice")
        assert [row.importance for row in rows] == pytest.approx(
            [heuristic_score(user(text)) for text in texts]
        )
        assert rows[0].importance < rows[1].importance


MEDIA: tuple[tuple[dict[str, Any], str, int], ...] = (
    (
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        "image_tokens",
        256,
    ),
    (
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        "audio_tokens",
        256,
    ),
    ({"type": "video_url", "video_url": {"url": "https://a.b/c.mp4"}}, "video_tokens", 2_630),
    ({"type": "file", "file": {"file_id": "f-1", "filename": "a.pdf"}}, "file_tokens", 2_048),
)
"""A part, what it costs by configuration, and by default."""


def video(seconds: int, *, long_form: bool = False) -> bytes:
    """The head of an MP4 of this length, and data behind it."""
    times = struct.pack(">B3xQQIQ", 1, 0, 0, 600, 600 * seconds)
    if not long_form:
        times = struct.pack(">B3xIIII", 0, 0, 0, 600, 600 * seconds)
    return b"\0\0\0\x18ftypisom" + b"\0\0\0\x6cmvhd" + times + b"\0" * 60_000


async def test_a_video_is_kept_and_counted_by_its_length(tmp_path: Path) -> None:
    """Its bytes are an attachment; contexts have them while it is new, recall finds it by its name
    and what was said with it; it costs 263 tokens a second.
    """
    said: list[dict[str, Any]] = []
    for seconds, long_form in ((30, False), (45, True)):
        encoded = base64.b64encode(video(seconds, long_form=long_form)).decode()
        url = f"data:video/mp4;base64,{encoded}"
        clip = {"type": "video_url", "video_url": {"url": url}, "name": f"clip{seconds}.mp4"}
        said.append({"role": "user", "content": [{"type": "text", "text": "the goal"}, clip]})
    tokens = {"counter": "heuristic"}
    config = Config.from_dict({**SMALL, "buffer": {"token_limit": 60_000}, "tokens": tokens})
    async with Runtime(tmp_path, config=config) as runtime:
        await runtime.session("alice", "match").append(said)
    async with Runtime(tmp_path, config=config) as runtime:
        chat = runtime.session("alice", "match")
        context = await chat.load(max_tokens=50_000)
        assert context.messages == said
        counts = [runtime.message_tokens(one) for one in said]
        assert [one - 263 * seconds < 20 for one, seconds in zip(counts, (30, 45), strict=True)]
        assert counts[0] > 263 * 30
        assert counts[1] > 263 * 45
        assert context.tokens == sum(counts)
        small = await chat.load(max_tokens=200)
        assert "[video clip45.mp4, 45 s]" in str(small.messages)
        found = await runtime.user("alice").recall("clip30")
        assert "[video clip30.mp4, 30 s]" in found[0].text
        assert to_gemini(said[:1])["contents"][0]["parts"][1]["inline_data"]["data"] == video(30)
        picture = {"type": "video_url", "video_url": {"url": "data:image/png;base64,AAAA"}}
        wrong: dict[str, Any] = {"role": "user", "content": [picture]}
        with pytest.raises(InvalidMessage, match="is no video, but image/png"):
            await chat.append(wrong)


async def test_a_custom_tool_call_is_kept_counted_and_found(tmp_path: Path) -> None:
    """OpenAI's calls whose input is text and no JSON, with their results."""
    custom = {"name": "shell", "input": "ls -la zebra"}
    call: dict[str, Any] = {"id": "c1", "type": "custom", "custom": custom}
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "Which files?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "assistant", "content": "One."},
    ]
    config = Config.from_dict(SMALL)
    async with Runtime(tmp_path, config=config) as runtime:
        await runtime.session("alice", "one").append(said)
    async with Runtime(tmp_path, config=config) as runtime:
        chat = runtime.session("alice", "one")
        assert (await chat.load()).messages == said
        longer = {**call, "custom": {"name": "shell", "input": "ls -la zebra " * 50}}
        calling: dict[str, Any] = {**said[1], "tool_calls": [longer]}
        more = runtime.message_tokens(calling)
        assert more > runtime.message_tokens(said[1]) + 100
        found = {one.seq: one.text for one in await runtime.user("alice").recall("zebra")}
        assert found[2] == "[calls shell ls -la zebra]"


class Markup(str):
    """A text of a template engine, whose `str` is something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "escaped"


class Kind(StrEnum):
    USER = "user"
    TEXT = "text"


async def test_texts_of_a_subclass_are_plain_texts() -> None:
    """Markup, enumerations: in each place of a message."""
    given: list[Any] = [
        {"role": Kind.USER, "content": Markup("hello"), "id": Markup("m1")},
        {
            "role": "user",
            "content": [{"type": Kind.TEXT, "text": Markup("in a part")}],
            "metadata": {Markup("k"): [Markup("v")]},
        },
        Message(role="user", content=Markup("typed")),
    ]
    wrong: dict[str, Any] = {"role": Markup("nobody"), "content": Markup("x")}
    async with Runtime.in_memory(config=Config.from_dict(SMALL)) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(given)
        async with chat.turn(Markup("a question"), key=Markup("r1"), query=False) as turn:
            await turn.reply(Markup("an answer"))
        said = await chat.history()
        contents = [one.content for one in said]
        assert contents == [
            "hello",
            [{"type": "text", "text": "in a part"}],
            "typed",
            "a question",
            "an answer",
        ]
        assert {type(one) for one in contents} == {str, list}
        assert (said[0].id, said[1].metadata) == ("m1", {"k": ["v"]})
        with pytest.raises(InvalidMessage, match="its role is 'nobody'"):
            await chat.append(wrong)
        with pytest.raises(InvalidMessage):
            await chat.append({**wrong, "role": Kind.USER, "tool_calls": [None]})


@pytest.mark.parametrize("text", ["x", Markup("x")], ids=["text", "markup"])
async def test_a_message_that_holds_itself_is_refused(text: str) -> None:
    """In each place; nothing goes on computing."""
    circle: dict[str, Any] = {"text": text}
    circle["self"] = [circle, circle]
    given: list[Any] = [
        {"role": "user", "content": text, "metadata": circle},
        {"role": "user", "content": [{"type": "text", "text": text, "more": circle}]},
        {"role": "assistant", "content": text, "annotations": circle},
        {"role": "assistant", "content": None, "tool_calls": [circle]},
    ]
    async with Runtime.in_memory(config=Config.from_dict(SMALL)) as runtime:
        chat = runtime.session("alice", "one")
        for message in given:
            with pytest.raises(InvalidMessage):
                await chat.append(message)
        assert await chat.history() == []


async def test_media_are_kept_and_counted(tmp_path: Path) -> None:
    """S3.32, S4.38, S2.30: a part that is no text survives a restart byte for byte, and costs what
    is configured.
    """
    tokens = {"counter": "heuristic", **{key: 77 for _, key, _ in MEDIA}}
    said_before: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "look"}, part]}
        for part, _, _ in MEDIA
    ]
    async with Runtime(tmp_path, config=Config.from_dict({**SMALL, "tokens": tokens})) as runtime:
        for message, (_, key, _) in zip(said_before, MEDIA, strict=True):
            chat = runtime.session("alice", key)
            await chat.append(message)
            context = await chat.load()
            assert context.messages == [message]
            assert context.tokens == 1 + 77 == runtime.message_tokens(message)
            small = await chat.load(max_tokens=77)  # it is named, and what was said with it
            assert (small.tokens <= 77, small.sources.recent.shortened) == (True, 1)
    async with Runtime(tmp_path, config=Config.from_dict(SMALL)) as runtime:
        for message, (_, key, default) in zip(said_before, MEDIA, strict=True):
            chat = runtime.session("alice", key)
            context = await chat.load()
            assert context.messages == [message]
            assert context.tokens == 1 + default, "another estimate counts anew"
            assert count_message(runtime.internals.counter, message) == 1 + default
            await chat.append(Message.assistant("a picture"))
            await chat.flush()
            await chat.settle()
            found = await runtime.user("alice").recall("look", session=key)
            assert found[0].text.startswith("look\n[")
