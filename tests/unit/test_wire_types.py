"""What crosses to another process: each struct is in a union, and its bytes stay readable."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest

from remora.actors.wire_types import Reply, SessionMessage, UserMessage, to_sent, to_shown
from tests.golden.make_wire import MESSAGES, NEWEST, REPLIES, files

MESSAGE_DECODERS = tuple(msgspec.msgpack.Decoder(one) for one in (SessionMessage, UserMessage))
SAMPLES = {type(one).__name__: one for one in (*MESSAGES, *REPLIES)}


def structs(union: Any) -> set[type]:
    kinds = (one for one in typing.get_args(union) if isinstance(one, type))
    return {one for one in kinds if issubclass(one, msgspec.Struct)}


def decode(name: str, encoded: bytes) -> Any:
    """By each union that has it, with the same result."""
    kind = type(to_sent(SAMPLES[name]))
    unions = [one for one in (SessionMessage, UserMessage, Reply) if kind in structs(one)]
    found = [msgspec.msgpack.decode(encoded, type=union) for union in unions]
    assert all(one == found[0] for one in found)
    return to_shown(found[0])


def test_every_struct_of_the_unions_has_a_sample() -> None:
    kinds = structs(SessionMessage) | structs(UserMessage)
    assert kinds == {type(one) for one in MESSAGES}
    assert structs(Reply) == {type(to_sent(one)) for one in REPLIES}


def test_the_samples_use_every_field() -> None:
    """Otherwise a field could change its place, and no golden byte would tell."""
    for one in SAMPLES.values():
        for field in msgspec.structs.fields(one):
            assert getattr(one, field.name) != field.default, (type(one), field.name)


@pytest.mark.parametrize("name", SAMPLES)
def test_they_are_sent_as_the_newest_golden_bytes(name: str) -> None:
    sample = SAMPLES[name]
    encoded = msgspec.msgpack.encode(to_sent(sample))
    assert encoded.hex() == files()[NEWEST][name]
    assert decode(name, encoded) == sample


@pytest.mark.parametrize("name", ["Receipt", "SessionView", "UserView"])
def test_an_application_encodes_results_with_the_names_of_their_fields(name: str) -> None:
    shown = msgspec.to_builtins(SAMPLES[name])
    assert list(shown) == [field.name for field in msgspec.structs.fields(SAMPLES[name])]


@pytest.mark.parametrize("number", files())
def test_what_was_sent_once_can_be_read(number: int) -> None:
    """A field that came later has its default."""
    for name, encoded in files()[number].items():
        sent: list[Any] = msgspec.msgpack.decode(bytes.fromhex(encoded))
        read = decode(name, bytes.fromhex(encoded))
        values = msgspec.structs.astuple(SAMPLES[name])[: len(sent) - 1]
        assert msgspec.structs.astuple(read)[: len(sent) - 1] == values


def test_no_tag_is_used_twice() -> None:
    kinds = structs(SessionMessage) | structs(UserMessage) | structs(Reply)
    tags = [kind.__struct_config__.tag for kind in kinds]  # type: ignore[attr-defined]
    assert len(set(tags)) == len(kinds)


@pytest.mark.parametrize("reply", [None, True, 7, "job", {"lead": "own"}])
def test_plain_replies_stay_what_they_are(reply: Any) -> None:
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Reply)
    assert (found, type(found)) == (reply, type(reply))


@pytest.mark.parametrize("decoder", MESSAGE_DECODERS)
@pytest.mark.parametrize(
    "garbage",
    [[], [0], [99], [101, [1], ["a"]], [1], [3, "x"], [3, 1, [2]], {"a": 1}, None, b"", "x"],
)
def test_garbage_is_refused(decoder: msgspec.msgpack.Decoder[Any], garbage: Any) -> None:
    """A reply, a tag of nothing, and a field of another type are no messages."""
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.msgpack.encode(garbage))
