"""Keyed state as the journal and exports hold it: one state item a key, and one for the counter.

Versions come from one counter for each session and user, so none is used twice for a key. The
counter is stored when a key is deleted; otherwise the largest version tells it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from remora.storage.records import StateItem

KEYED_KIND, COUNTER_KIND = "keyed", "keyed_counter"

ADAPTER_PREFIX = "remora.adapters/"
"""Begins the keys that adapters keep for a framework: they have bounds of their own."""

OPAQUE_PREFIX = f"{ADAPTER_PREFIX}bytes/"
"""Begins the keys whose values are encoded bytes, which no redaction hook can read."""


def bound_name(key: str, setting: str) -> str:
    """The full name of a bound of a key."""
    return f"state.{'adapter_' * key.startswith(ADAPTER_PREFIX)}{setting}"


class KeyedValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value of keyed state.

    Attributes:
        version: from 1; a later value of the key has a larger one.
        at_us: when it was set, in microseconds since the epoch.
        json: the value.
    """

    version: int
    at_us: int
    json: bytes


class KeyedImage(msgspec.Struct, frozen=True):
    """The keyed state of a session or a user at one moment.

    Attributes:
        values: key and value, by key.
        counter: the largest version that was ever used.
    """

    values: tuple[tuple[str, KeyedValue], ...] = ()
    counter: int = 0

    @property
    def state_items(self) -> tuple[StateItem, ...]:
        """All of it as state items."""
        counter = (counter_item(self.counter),) if self.counter else ()
        return (*(keyed_item(key, value) for key, value in self.values), *counter)


_encode = msgspec.msgpack.Encoder().encode
_value_decoder = msgspec.msgpack.Decoder(KeyedValue)
_counter_decoder = msgspec.msgpack.Decoder(int)
KEYED_DECODERS: Mapping[str, msgspec.msgpack.Decoder[Any]] = {
    KEYED_KIND: _value_decoder,
    COUNTER_KIND: _counter_decoder,
}
"""What decodes the state items of keyed state, by kind."""


def decode_value(encoded: bytes) -> KeyedValue:
    """The value in a state item of `KEYED_KIND`."""
    return _value_decoder.decode(encoded)


def decode_counter(encoded: bytes) -> int:
    """The counter in a state item of `COUNTER_KIND`."""
    return _counter_decoder.decode(encoded)


def keyed_item(key: str, value: KeyedValue) -> StateItem:
    """The state item of a value."""
    return StateItem(KEYED_KIND, key, _encode(value))


def counter_item(counter: int) -> StateItem:
    """The state item of the counter."""
    return StateItem(COUNTER_KIND, "", _encode(counter))


def keyed_image(items: Iterable[StateItem]) -> KeyedImage:
    """The keyed state in state items; those of other kinds are ignored."""
    values: dict[str, KeyedValue] = {}
    counter = 0
    for one in items:
        if one.kind == KEYED_KIND:
            values[one.name] = value = decode_value(one.value)
            counter = max(counter, value.version)
        elif one.kind == COUNTER_KIND:
            counter = max(counter, decode_counter(one.value))
    return KeyedImage(tuple(sorted(values.items())), counter)


_ESCAPED = re.compile("%([0-9a-f]+)-")


def escape(text: str) -> str:
    """Return a framework's name as a part of a key: without slashes, and printable."""
    return "".join(
        one if one.isprintable() and one not in "%/" else f"%{ord(one):x}-" for one in text
    )


def unescape(part: str) -> str:
    """Return the name that `escape` was given."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part)
