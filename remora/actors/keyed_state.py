"""Keyed state: small values that an application keeps with a session or a user.

Each value has a version. Who gives the version that they read changes or deletes the value only if
nobody else did since (compare-and-set). The actor handles one message at a time, so exactly one of
several that give the same version succeeds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from remora.errors import TooManyKeys
from remora.ids import SessionKey, UserKey
from remora.logging import get_logger
from remora.runtime.actor import Asked, Decision
from remora.runtime.probes import probe
from remora.storage.keyed_values import (
    ADAPTER_PREFIX,
    COUNTER_KIND,
    KEYED_KIND,
    KeyedImage,
    KeyedValue,
    bound_name,
    counter_item,
    decode_counter,
    decode_value,
    keyed_image,
    keyed_item,
)
from remora.storage.records import StateChanged, StateItem

NEAR_LIMIT = 0.8
"""Of a bound, from which on the log says so."""
_VALUE_BYTES = 240  # of a value in memory, without key and JSON
_logger = get_logger(__name__)


class ReadValue(msgspec.Struct, Asked["StoredValue | None"], frozen=True, array_like=True, tag=11):
    """Show a value. Replies a `StoredValue`, or None."""

    key: str


class ReadValues(msgspec.Struct, Asked["StoredValues"], frozen=True, array_like=True, tag=12):
    """Show values by key. Replies `StoredValues`.

    Attributes:
        prefix: only keys that begin with this.
        after: only keys behind this one; empty for all.
        limit: how many at most; None for all.
        backward: in the reverse order of the keys; `after` is then what they are before.
    """

    prefix: str = ""
    after: str = ""
    limit: int | None = None
    backward: bool = False


class SetValue(
    msgspec.Struct, Asked["StoredValue | StaleVersion"], frozen=True, array_like=True, tag=13
):
    """Set a value. Replies a `StoredValue`, or `StaleVersion`.

    Raises TooManyKeys, and writes nothing, if the key is new and there are too many.

    Attributes:
        key: which one.
        json: the value.
        version: what the present value must have; 0: there must be none; None: whatever there is.
        at_us: the time.
        max_keys: how many keys there may be.
    """

    key: str
    json: bytes
    version: int | None
    at_us: int
    max_keys: int


class DeleteValue(
    msgspec.Struct, Asked["bool | StaleVersion"], frozen=True, array_like=True, tag=14
):
    """Delete a value. Replies whether there was one, or `StaleVersion`.

    Attributes:
        key: which one.
        version: see `SetValue`.
    """

    key: str
    version: int | None


class ReadNamed(msgspec.Struct, Asked["StoredValues"], frozen=True, array_like=True, tag=15):
    """Show the values of these keys. Replies `StoredValues`, of those that are there."""

    keys: tuple[str, ...]


class ChangeValues(
    msgspec.Struct, Asked["StoredValues | StaleKey"], frozen=True, array_like=True, tag=16
):
    """Set and delete values, all or none. Replies `StoredValues` of those set, or a `StaleKey`.

    Raises TooManyKeys, and writes nothing, if there would be too many keys.

    Attributes:
        put: keys and values.
        dropped: keys; those that are not there are ignored.
        versions: what the present values of these keys must have; see `SetValue`.
        at_us: the time.
        max_keys: how many keys of the kind of the first one (an adapter's, or not) there may be.
    """

    put: tuple[tuple[str, bytes], ...]
    dropped: tuple[str, ...]
    versions: tuple[tuple[str, int], ...]
    at_us: int
    max_keys: int


class StoredValue(msgspec.Struct, frozen=True, array_like=True, tag=111):
    """The reply to `ReadValue` and `SetValue`: the present value."""

    value: KeyedValue


class StoredValues(msgspec.Struct, frozen=True, array_like=True, tag=112):
    """The reply to `ReadValues`: keys and values, in the order of the keys."""

    values: tuple[tuple[str, KeyedValue], ...]


class StaleVersion(msgspec.Struct, frozen=True, array_like=True, tag=113):
    """The reply to a change that gave another version than the present one; nothing was written.

    It is a reply, and no exception: it waits until what it shows is durable.

    Attributes:
        present: the value; None for none.
    """

    present: KeyedValue | None


class StaleKey(msgspec.Struct, frozen=True, array_like=True, tag=114):
    """The reply to `ChangeValues` that gave another version of a key; nothing was written.

    Attributes:
        key: which one, the first of several.
        present: the value; None for none.
    """

    key: str
    present: KeyedValue | None


KeyedMessage: TypeAlias = ReadValue | ReadValues | SetValue | DeleteValue | ReadNamed | ChangeValues


class KeyedValues:
    """The keyed state of an actor. Only `put_keyed` and `drop_keyed` change it.

    Attributes:
        by_key: the values.
        counter: the largest version that was ever used.
        size: approximate bytes held.
        of_adapters: how many of the values are adapters'.
    """

    __slots__ = ("by_key", "counter", "of_adapters", "size")

    def __init__(self) -> None:
        self.of_adapters = 0
        self.by_key: dict[str, KeyedValue] = {}
        self.counter = 0
        self.size = 0

    def count(self, key: str) -> int:
        """How many values there are of the kind of this one, an adapter's or not."""
        adapters = self.of_adapters
        return adapters if key.startswith(ADAPTER_PREFIX) else len(self.by_key) - adapters

    @property
    def image(self) -> KeyedImage:
        """All of it."""
        return KeyedImage(tuple(sorted(self.by_key.items())), self.counter)


def put_keyed(values: KeyedValues | None, item: StateItem) -> KeyedValues:
    """Take a state item of keyed state; an actor without any gets its first."""
    values = values or KeyedValues()
    if item.kind == COUNTER_KIND:
        values.counter = max(values.counter, decode_counter(item.value))
        return values
    drop_keyed(values, item.name)
    value = decode_value(item.value)
    values.by_key[item.name] = value
    values.counter = max(values.counter, value.version)
    values.size += _size(item.name, value)
    values.of_adapters += item.name.startswith(ADAPTER_PREFIX)
    return values


def drop_keyed(values: KeyedValues | None, key: str) -> None:
    """Forget a value, if there is one."""
    if values is not None and (value := values.by_key.pop(key, None)) is not None:
        values.size -= _size(key, value)
        values.of_adapters -= key.startswith(ADAPTER_PREFIX)


def handle_keyed(
    values: KeyedValues | None,
    owner: SessionKey | UserKey,
    sid: int,
    message: KeyedMessage,
    opening: Callable[[int], list[Any]],
) -> Decision:
    """Decide what one message changes.

    Args:
        values: the actor's; None for none so far.
        owner: the actor's key.
        sid: the actor's number.
        message: what is asked.
        opening: the record that comes before the actor's first one, if it has none, at a time.
    """
    values = values or KeyedValues()
    match message:
        case ReadValue(key=key):
            present = values.by_key.get(key)
            return Decision(None if present is None else StoredValue(present))
        case ReadValues():
            return Decision(_read(values, message))
        case SetValue():
            return _set(values, owner, sid, message, opening)
        case DeleteValue():
            return _delete(values, sid, message)
        case ReadNamed(keys=keys):
            found = values.by_key
            return Decision(StoredValues(tuple((key, found[key]) for key in keys if key in found)))
        case ChangeValues():
            return _change(values, owner, sid, message, opening)


def _read(values: KeyedValues, message: ReadValues) -> StoredValues:
    prefix, after = message.prefix, message.after
    hidden = not prefix.startswith(ADAPTER_PREFIX)
    found = [
        key
        for key in values.by_key
        if key.startswith(prefix)
        and (not after or (key < after if message.backward else key > after))
        and not (hidden and key.startswith(ADAPTER_PREFIX))
    ]
    if message.limit is None:
        found.sort(reverse=message.backward)
    else:
        choose = heapq.nlargest if message.backward else heapq.nsmallest
        found = choose(message.limit, found)
    return StoredValues(tuple((key, values.by_key[key]) for key in found))


def _set(
    values: KeyedValues,
    owner: SessionKey | UserKey,
    sid: int,
    message: SetValue,
    opening: Callable[[int], list[Any]],
) -> Decision:
    key = message.key
    present = values.by_key.get(key)
    if _is_stale(present, message.version):
        return Decision(StaleVersion(present))
    if present is None:
        _check_count(values, owner, key, 1, message.max_keys)
    value = KeyedValue(values.counter + 1, message.at_us, message.json)
    item = keyed_item(key, value)
    records = [*opening(message.at_us), StateChanged(sid, (item,))]
    return Decision(StoredValue(value), records, size=len(key) + len(item.value))


def _change(
    values: KeyedValues,
    owner: SessionKey | UserKey,
    sid: int,
    message: ChangeValues,
    opening: Callable[[int], list[Any]],
) -> Decision:
    here = values.by_key
    for key, version in message.versions:
        if _is_stale(here.get(key), version):
            return Decision(StaleKey(key, here.get(key)))
    dropped = tuple((KEYED_KIND, key) for key in message.dropped if key in here)
    new = sum(key not in here for key, _ in message.put)
    if new > len(dropped):
        _check_count(values, owner, message.put[0][0], new - len(dropped), message.max_keys)
    if not (message.put or dropped):
        return Decision(StoredValues(()))
    stored = tuple(
        (key, KeyedValue(values.counter + number, message.at_us, json))
        for number, (key, json) in enumerate(message.put, 1)
    )
    items = tuple(keyed_item(key, value) for key, value in stored)
    if dropped:
        items = (*items, counter_item(values.counter + len(stored)))
    records = [*opening(message.at_us), StateChanged(sid, items, dropped)]
    size = sum(len(one.name) + len(one.value) for one in items)
    return Decision(StoredValues(stored), records, size=size)


def _check_count(
    values: KeyedValues, owner: SessionKey | UserKey, key: str, more: int, most: int
) -> None:
    count = values.count(key)
    bound = bound_name(key, "max_keys")
    if count + more > most:
        raise TooManyKeys(
            f"there are {count} keys already; {bound} allows {most}: nothing was written",
            limit=most,
        )
    if count < NEAR_LIMIT * most <= count + more:
        _logger.warning(
            "state_keys_near_limit", **owner_field(owner), keys=count + more, setting=bound
        )


def owner_field(owner: SessionKey | UserKey) -> dict[str, SessionKey | UserKey]:
    """The field of a log event that says whose keyed state it is about."""
    return {"session" if isinstance(owner, SessionKey) else "user": owner}


def _delete(values: KeyedValues, sid: int, message: DeleteValue) -> Decision:
    present = values.by_key.get(message.key)
    if _is_stale(present, message.version):
        return Decision(StaleVersion(present))
    if present is None:
        return Decision(False)
    change = StateChanged(sid, (counter_item(values.counter),), ((KEYED_KIND, message.key),))
    return Decision(True, [change])


def _is_stale(present: KeyedValue | None, expected: int | None) -> bool:
    actual = present.version if present is not None else 0
    if expected is None or expected == actual:
        return False
    probe("state_version_stale")
    return True


def adopt_keyed(values: KeyedValues | None, items: Iterable[StateItem]) -> list[StateItem]:
    """Return what an import adds: keys that are not there, with versions that were not used here.

    Where nothing was used, they keep their versions.
    """
    given = keyed_image(items)
    here, used = (values.by_key, values.counter) if values is not None else ({}, 0)
    fresh = tuple(
        (key, msgspec.structs.replace(value, version=used + value.version))
        for key, value in given.values
        if key not in here
    )
    if not fresh and used:
        return []
    return list(KeyedImage(fresh, used + given.counter if given.counter else 0).state_items)


def _size(key: str, value: KeyedValue) -> int:
    return _VALUE_BYTES + len(key) + len(value.json)
