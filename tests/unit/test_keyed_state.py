"""Keyed state as the actors decide on it, and as it is stored."""

from __future__ import annotations

from typing import Any

import pytest

from remora.actors.keyed_state import (
    DeleteValue,
    KeyedValues,
    ReadValue,
    ReadValues,
    SetValue,
    StaleVersion,
    StoredValue,
    StoredValues,
    adopt_keyed,
    drop_keyed,
    handle_keyed,
    put_keyed,
)
from remora.errors import InvalidInput
from remora.storage.keyed_values import (
    KeyedImage,
    KeyedValue,
    counter_item,
    decode_counter,
    decode_value,
    keyed_image,
    keyed_item,
)
from remora.storage.ports import UserKey
from remora.storage.records import Opened, StateChanged, StateItem

AT_US = 1_700_000_000_000_000
STORED = bytes.fromhex("9304cf00060a24181e4000c4077b2261223a317d")


def test_the_stored_form_stays() -> None:
    """A journal or an export that holds these bytes reads as it did (G3)."""
    value = KeyedValue(4, AT_US, b'{"a":1}')
    assert keyed_item("cart", value) == StateItem("keyed", "cart", STORED)
    assert decode_value(STORED) == value
    assert counter_item(300) == StateItem("keyed_counter", "", b"\xcd\x01\x2c")
    assert decode_counter(b"\xcd\x01\x2c") == 300


class Actor:
    """What an actor does with decisions: it applies their records."""

    def __init__(self) -> None:
        self.values: KeyedValues | None = None
        self.opened = False
        self.items: dict[tuple[str, str], StateItem] = {}

    def opening(self, at_us: int) -> list[Any]:
        return [] if self.opened else [Opened(7, "alice", "", at_us)]

    def ask(self, message: Any) -> tuple[Any, int]:
        """The reply, and how many state items were written."""
        decision = handle_keyed(self.values, UserKey("alice"), 7, message, self.opening)
        written = 0
        for record in decision.records:
            if isinstance(record, Opened):
                self.opened = True
                continue
            assert isinstance(record, StateChanged)
            written += len(record.put)
            for item in record.put:
                self.values = put_keyed(self.values, item)
                self.items[item.kind, item.name] = item
            for kind, name in record.dropped:
                drop_keyed(self.values, name)
                del self.items[kind, name]
        return decision.reply, written

    def set(self, key: str, json: bytes = b"1", version: int | None = None) -> Any:
        return self.ask(SetValue(key, json, version, AT_US, 3))[0]


def test_a_set_writes_one_item_and_a_read_none() -> None:
    actor = Actor()
    assert actor.ask(ReadValue("a")) == (None, 0)
    assert actor.ask(ReadValues()) == (StoredValues(()), 0)
    assert actor.ask(DeleteValue("a", None)) == (False, 0)
    assert not actor.opened
    reply, written = actor.ask(SetValue("a", b"1", 0, AT_US, 3))
    assert (reply, written) == (StoredValue(KeyedValue(1, AT_US, b"1")), 1)
    assert actor.ask(SetValue("a", b"2", 0, AT_US, 3)) == (StaleVersion(reply.value), 0)
    assert actor.ask(DeleteValue("a", 2)) == (StaleVersion(reply.value), 0)
    assert actor.ask(ReadValue("a")) == (reply, 0)
    assert actor.ask(DeleteValue("a", 1)) == (True, 1)
    assert actor.ask(SetValue("a", b"2", 1, AT_US, 3)) == (StaleVersion(None), 0)


def test_no_version_is_used_twice_after_a_restart() -> None:
    """The state that is restored of the items goes on with the counter."""
    actor = Actor()
    for key in ("a", "b", "a"):
        actor.set(key)
    actor.ask(DeleteValue("a", None))
    restored = Actor()
    for item in actor.items.values():
        restored.values = put_keyed(restored.values, item)
    assert restored.set("a", version=0).value.version == 4
    assert restored.values is not None
    assert restored.values.image == KeyedImage(
        (("a", KeyedValue(4, AT_US, b"1")), ("b", KeyedValue(2, AT_US, b"1"))), 4
    )


def test_what_is_held_is_bounded() -> None:
    """The limits of memory count it, and nothing is left of what was deleted (G10); a key too many
    is refused.
    """
    actor = Actor()
    actor.set("a", b"1" * 1_000)
    assert actor.values is not None
    assert 1_000 < actor.values.size < 1_500
    actor.set("a", b"1")
    assert actor.values.size < 500
    actor.ask(DeleteValue("a", None))
    assert actor.values.size == 0
    for key in "abc":
        actor.set(key)
    with pytest.raises(InvalidInput, match=r"state\.max_keys allows 3"):
        actor.set("d")
    assert isinstance(actor.set("d", version=5), StaleVersion)
    assert actor.set("c").value.version == 6


def test_adopted_versions_were_not_used_here() -> None:
    """Where nothing was used they stay as they were; the same export twice adds nothing."""
    given = KeyedImage((("a", KeyedValue(3, AT_US, b"1")), ("b", KeyedValue(5, 1, b"2"))), 8)
    assert keyed_image(adopt_keyed(None, given.state_items)) == given
    actor = Actor()
    actor.set("a")
    actor.set("x")
    adopted = adopt_keyed(actor.values, given.state_items)
    assert keyed_image(adopted) == KeyedImage((("b", KeyedValue(7, 1, b"2")),), 10)
    for item in adopted:
        actor.values = put_keyed(actor.values, item)
    assert adopt_keyed(actor.values, given.state_items) == []
    assert adopt_keyed(None, []) == []
