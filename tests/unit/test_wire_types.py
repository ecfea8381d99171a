"""What crosses to another process: each struct is in a union, and its bytes stay readable."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest

from remora.actors.wire_types import ActorMessage, Reply, to_sent, to_shown
from tests.golden.make_wire import MESSAGES, NEWEST, REPLIES, files

SAMPLES = {type(one).__name__: one for one in (*MESSAGES, *REPLIES)}


def structs(union: Any) -> set[type]:
    kinds = (one for one in typing.get_args(union) if isinstance(one, type))
    return {one for one in kinds if issubclass(one, msgspec.Struct)}


def decode(name: str, encoded: bytes) -> Any:
    """By the union that has it."""
    (union,) = (
        one for one in (ActorMessage, Reply) if type(to_sent(SAMPLES[name])) in structs(one)
    )
    return to_shown(msgspec.msgpack.decode(encoded, type=union))


def test_the_samples_are_of_every_struct_and_field() -> None:
    """Otherwise a field could change its place, and no golden byte would tell. No tag is used
    twice.
    """
    messages = structs(ActorMessage)
    assert messages == {type(one) for one in MESSAGES}
    assert structs(Reply) == {type(to_sent(one)) for one in REPLIES}
    for one in SAMPLES.values():
        for field in msgspec.structs.fields(one):
            assert getattr(one, field.name) != field.default, (type(one), field.name)
    kinds = messages | structs(Reply)
    tags = {kind.__struct_config__.tag for kind in kinds}  # type: ignore[attr-defined]
    assert len(tags) == len(kinds)


def test_they_are_sent_as_the_newest_golden_bytes() -> None:
    """What was sent once can be read: a field that came later has its default."""
    for name, sample in SAMPLES.items():
        encoded = msgspec.msgpack.encode(to_sent(sample))
        assert encoded.hex() == files()[NEWEST][name]
        assert decode(name, encoded) == sample
    for samples in files().values():
        for name, golden in samples.items():
            sent: list[Any] = msgspec.msgpack.decode(bytes.fromhex(golden))
            read = decode(name, bytes.fromhex(golden))
            values = msgspec.structs.astuple(SAMPLES[name])[: len(sent) - 1]
            assert msgspec.structs.astuple(read)[: len(sent) - 1] == values, name


def test_an_application_encodes_results_with_the_names_of_their_fields() -> None:
    for name in ("Receipt", "SessionView", "UserView"):
        shown = msgspec.to_builtins(SAMPLES[name])
        assert list(shown) == [field.name for field in msgspec.structs.fields(SAMPLES[name])]


def test_what_is_no_struct() -> None:
    """Plain replies stay what they are; a reply, a tag of nothing, and a field of another type are
    no messages.
    """
    replies: tuple[Any, ...] = (None, True, 7, "job", {"lead": "own"})
    for reply in replies:
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=Reply)
        assert (found, type(found)) == (reply, type(reply))
    garbage: list[Any] = [[], [0], [99], [101, [1], ["a"]], [1], [3, "x"], [3, 1, [2]], {"a": 1}]
    for one in (*garbage, None, b"", "x"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=ActorMessage)
