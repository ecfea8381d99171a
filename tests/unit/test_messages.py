"""What is a message, what is an id, and what is refused before anything is written."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import Message
from remora.errors import InvalidId, InvalidMessage
from remora.formats import to_anthropic, to_gemini, to_openai, to_responses
from remora.ids import MAX_ID_BYTES, row_id, user_key, validate_id
from remora.messages import (
    decode_chat,
    encode_message,
    encode_plain,
    plain_text,
    remove_hidden,
    restore_message,
    said_text,
)
from remora.storage.ports import SessionKey
from remora.tokens import HeuristicCounter, count_message

BAD: list[Any] = [
    None,
    7,
    "hello",
    b"hello",
    [],
    {},
    {"content": "no role"},
    {"role": "robot", "content": "x"},
    {"role": "user"},
    {"role": "user", "content": None},
    {"role": "user", "content": 7},
    {"role": "user", "content": ["x"]},
    {"role": "user", "content": [{"type": "hologram"}]},
    {"role": "user", "content": [{"type": "document_url"}]},
    {"role": "assistant", "content": [{"type": 7}]},
    {"role": "assistant", "content": [{"type": "hologram"}, {"type": "text"}]},
    {"role": "tool", "content": "x"},
    {
        "role": "user",
        "content": "x",
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "assistant", "tool_calls": [{"id": "a"}]},
    {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "function": {}}]},
    {"role": "tool", "content": "x", "tool_call_id": "half \ud800"},
    {"role": "user", "content": "x", "metadata": 7},
    {"role": "user", "content": "x", "metadata": {"f": 1j}},
    {"role": "user", "content": "x", "metadata": {"a": {"b": {1, 2}}}},
    {"role": "user", "content": "x", "metadata": {"id": UUID(int=1)}},
    {"role": "user", "content": "x", "metadata": {"price": [Decimal("1.10")]}},
    {"role": "user", "content": "x", "metadata": {"at": datetime(2024, 1, 1)}},  # noqa: DTZ001
    {"role": "user", "content": "x", "id": ""},
    {"role": "user", "content": "x", "created_at": "yesterday"},
    {"role": "user", "content": "x", "created_at": 1e30},
    {"role": "user", "content": "x", "big": 2**80},
]


def test_no_message_is_refused() -> None:
    """S4.28: a TypeError of our own tree, which names the place in the batch; the encoded size is
    bounded.
    """
    for bad in BAD:
        with pytest.raises(InvalidMessage) as caught:
            encode_message(bad, index=3)
        assert isinstance(caught.value, TypeError)
        assert caught.value.index == 3
        assert "message 3" in str(caught.value), bad
    with pytest.raises(InvalidMessage, match="at most 100"):
        encode_message({"role": "user", "content": "x" * 200}, max_bytes=100)


contents = st.one_of(
    st.text(),
    st.lists(
        st.one_of(
            st.builds(
                lambda t: {"type": "text", "text": t, "cache_control": {"type": "ephemeral"}},
                st.text(),
            ),
            st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}),
            st.just({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        ),
        max_size=3,
    ),
)
extras = st.dictionaries(
    st.sampled_from(["refusal", "annotations", "reasoning_content"]),
    st.none() | st.text(),
    max_size=2,
)


@given(
    contents,
    extras,
    st.none() | st.dictionaries(st.text(), st.integers() | st.text(), min_size=1, max_size=3),
)
def test_kept_messages_are_exact(content: Any, extra: dict[str, Any], metadata: Any) -> None:
    """S0.02, S1.18: what is not None comes out: unknown keys, parts and metadata too."""
    try:
        given_message = {"role": "user", "content": content, **extra}
        entry, chat = encode_message(
            {**given_message, "metadata": metadata, "created_at": "2024-02-29T12:00:00+02:00"}
        )
    except InvalidMessage as e:
        assert "cannot be encoded" in str(e)  # a lone surrogate, or a number beyond 64 bits  # noqa: PT017
        return
    expected = {key: value for key, value in given_message.items() if value is not None}
    assert decode_chat(entry.chat) == chat == expected
    message = restore_message(entry, "id-1")
    assert message.created_at == datetime(2024, 2, 29, 10, tzinfo=UTC)
    assert message.metadata == metadata
    assert message.to_chat() == expected
    again, _ = encode_message(message)
    assert again.chat == entry.chat


@pytest.mark.parametrize(
    ("content", "metadata", "said"),
    [
        (
            "[thinking]\nYes.\n[tool_use: Bash] [web]",
            {"strands": ["thinking", "tool_use", "web"]},
            "Yes.",
        ),
        (
            "[web_search_call]\nof gulls",
            {"openai_agents": [{"type": "web_search_call"}]},
            "of gulls",
        ),
        ("[event]", {"google_adk": {}}, ""),
        ("[image/png]", {"remora.gemini": ["image/png"]}, ""),
        ("[event]", {"mine": "event"}, "[event]"),  # an application's
        ("[event]", None, "[event]"),
        ("[tool]\na = 1", {"langchain": {"kind": "thinking"}}, "[tool]\na = 1"),
        (
            "[tool]\na = 1",
            {"langchain": {"type": "tool", "text": "[tool]\na = 1"}},
            "[tool]\na = 1",
        ),
        ("see [web] and", {"langchain": {"type": "web"}}, "see [web] and"),
    ],
)
def test_words_that_stand_for_parts_were_not_said(content: str, metadata: Any, said: str) -> None:
    """Of a message that keeps its original: those that its parts are called by, on a line of their
    own. What somebody said in brackets stays.
    """
    message = {"role": "assistant", "content": content, "metadata": metadata}
    assert said_text(*encode_message(message)) == said


def test_constructors_and_text() -> None:
    """S0.02: the typed message is accepted wherever a dict is."""
    entry, chat = encode_message(Message.tool("42", tool_call_id="c1"))
    assert (entry.answers, chat["role"]) == ("c1", "tool")
    chat = {
        "role": "assistant",
        "content": "See.",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }
    assert plain_text(chat) == 'See.\n[calls f {"a":1}]'


def test_ids() -> None:
    """S2.31: any printable text may be an id; empty, over-long, control characters, no text are
    refused, by name. What compares as it likes, as an ``Enum`` or a template's string, loses that.
    """
    good = ["a", "a:b", "O'Brien", 'say "hi"', "org/team/x", "a' OR 1=1 --", "ümläut 漢字 🚀"]
    for id_ in (*good, "x" * MAX_ID_BYTES):
        assert validate_id(id_, "a user id") == id_
    bad: list[Any] = ["", "a\x00b", "a\nb", "a\x7fb", "\ud800", None, 7, b"x"]
    for id_ in (*bad, "x" * (MAX_ID_BYTES + 1), "é" * 257):
        with pytest.raises(InvalidId, match="a user id"):
            validate_id(id_, "a user id")

    class Odd(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

        def __str__(self) -> str:
            return "another"

    plain = validate_id(Odd("ada"), "a user id")
    assert type(plain) is str
    assert plain == "ada"
    assert plain != "bob"


@given(st.text(), st.text(), st.text(), st.text(), st.integers(1, 2**32), st.integers(1, 2**32))
def test_digests_do_not_collide_by_construction(
    a: str, b: str, c: str, d: str, m: int, n: int
) -> None:
    """S2.31, G7: a row's id is a function of user, session and number, and of nothing that could
    shift between them.
    """
    try:
        first, second = row_id(SessionKey(a, b), m), row_id(SessionKey(c, d), n)
    except UnicodeEncodeError:
        return
    assert (first == second) == ((a, b, m) == (c, d, n))
    assert len(user_key(a)) == len(first) == 32


def test_a_long_text_is_not_encoded_on_the_event_loop() -> None:
    """The short path passes it on to a thread unseen: 15 MB of emoji held the loop for 34 ms."""
    message = {"role": "user", "content": "🙂" * 1_000_000}
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert encode_plain(message, 1 << 24, 4_000) is None
        assert tracemalloc.get_traced_memory()[1] - before < 100_000
    finally:
        tracemalloc.stop()
    assert encode_plain(message, 1 << 24, 1_000_000) is not None


@given(
    st.text(max_size=30)
    | st.text(
        "a \n\t\u4e00\u00e9\x00\x7f\x85\xad\u200b\u200c\u200d\u2028\ufeff\U000e0001\v\x1c",
        max_size=9,
    )
)
def test_hidden_characters_are_removed_whatever_else_a_text_has(text: str) -> None:
    """The line break at the end leads past the short way, which texts without any take."""
    assert remove_hidden(f"{text}\u4e00\r") == remove_hidden(f"{text}\u4e00") + "\n"


def test_a_character_is_hidden_or_not() -> None:
    """Of all that Unicode has."""
    hidden = {
        code
        for code in range(0x110000)
        if remove_hidden(f"\u4e00{chr(code)}\u4e00") == "\u4e00" * 2
    }
    assert {0, 0x1B, 0x7F, 0xAD, 0x200B, 0x202E, 0x2066, 0xFE0D, 0xFEFF, 0xE0041} <= hidden
    assert not hidden & {*range(32, 127), 9, 10, 0xA0, 0x200D, 0x2014, 0x3000, 0xFE0F, 0x1F600}


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "She means the red one."}]}


def test_parts_that_only_one_provider_has() -> None:
    """An answer's parts of an unknown type are kept and counted; their texts are what was said,
    and reasoning was not said. Other APIs get the texts.
    """
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": [THOUGHT, {"type": "hologram", "text": "Red."}],
    }
    entry, chat = encode_message(answer)
    assert decode_chat(entry.chat) == chat == answer
    assert plain_text(chat) == "Red."
    short = {"role": "assistant", "content": "Red."}
    assert count_message(HeuristicCounter(), chat) > count_message(HeuristicCounter(), short)
    asked: list[dict[str, Any]] = [{"role": "user", "content": "Which?"}, answer]
    [_, said] = to_anthropic(asked)["messages"]
    assert said["content"] == [{"type": "text", "text": "Red."}]
    assert to_gemini(asked)["contents"][1]["parts"] == [{"text": "Red."}]
    assert to_responses(asked)[1] == short
    assert to_openai(asked)[1] == answer


def test_bytes_in_parts_of_a_provider_are_no_text() -> None:
    """Sounds that an assistant answered are sent to their provider alone; their words are said."""
    sound = {"data": "UklG" * 20_000, "transcript": "Hello."}
    answer = {"role": "assistant", "content": [{"type": "output_audio", "output_audio": sound}]}
    assert plain_text(answer) == "Hello."
    (said,) = (one for one in to_anthropic([answer])["messages"] if one["role"] == "assistant")
    assert said["content"] == [{"type": "text", "text": "Hello."}]
    encoded = {"type": "blob", "text": "UklG" * 20_000}
    assert plain_text({"role": "assistant", "content": [encoded]}) == ""
    document = {"type": "document", "document": {"id": "1", "data": "18 degrees"}}
    assert plain_text({"role": "tool", "tool_call_id": "c", "content": [document]}) == "18 degrees"


@pytest.mark.parametrize(
    ("kind", "function"),
    [("tool_use", "from_anthropic"), ("thinking", "from_anthropic"), ("output_text", "responses")],
)
def test_parts_of_another_api(kind: str, function: str) -> None:
    """Who appends an answer of another API is told which function makes a chat message of it."""
    with pytest.raises(InvalidMessage, match=function):
        encode_message({"role": "assistant", "content": [{"type": kind, kind: "x"}]})


def test_known_keys_of_another_shape() -> None:
    """Another provider may mean something else by the name of a key: it is kept, and counted."""
    given = {"role": "user", "content": "x", "audio": "a.wav", "refusal": ["no"]}
    entry, chat = encode_message(given)
    assert decode_chat(entry.chat) == chat == given
    assert plain_text(chat) == "x"
    assert count_message(HeuristicCounter(), chat) > count_message(
        HeuristicCounter(), {"role": "user", "content": "x"}
    )
