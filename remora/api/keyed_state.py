"""Handles on keyed state: small JSON values of a session or a user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from remora.actors.keyed_state import (
    NEAR_LIMIT,
    ChangeValues,
    DeleteValue,
    ReadNamed,
    ReadValue,
    ReadValues,
    SetValue,
    StaleKey,
    StaleVersion,
    StoredValue,
    StoredValues,
    owner_field,
)
from remora.config import StateConfig
from remora.errors import InvalidId, InvalidInput, StateConflict
from remora.ids import SessionKey, UserKey
from remora.logging import get_logger
from remora.messages import without_surrogates
from remora.runtime.concurrency import run_in_thread_if
from remora.services.arguments import MAX_IDS, check_flag, check_int, check_text, collect
from remora.services.parts import PartsHolder
from remora.services.state_values import (
    bounds_of,
    check_key,
    encode_value,
    encode_values,
    is_large,
)
from remora.storage.keyed_values import ADAPTER_PREFIX, OPAQUE_PREFIX, KeyedValue, bound_name

_BYTES_IN_THREAD = 200_000
_logger = get_logger(__name__)


class StateValue(msgspec.Struct, frozen=True):
    """A value of keyed state, as it was at one moment.

    Attributes:
        key: its name.
        value: a copy of what was set.
        version: a number from 1; each value that is set under the key has a larger one than those
            before it, deleted ones included.
        updated_at: when it was set.
    """

    key: str
    value: Any
    version: int
    updated_at: datetime


class KeyedState:
    """Small JSON values by key, kept with a session or a user: a cart, a step, a preference.

    Get one from `Session.state` or `User.state`. A change is durable when its call returns, and
    every handle sees it. No model sees the values.

    `Session.clear` and `rewind` do not change it, `Session.fork` copies it, exports carry it, and
    `forget` erases it down to the bytes. Each verb may raise `MailboxFull` (nothing ran),
    `CommitFailed` (nothing was written), `OutcomeUnknown` (it may have been written: read the value
    again) and `RuntimeClosed`.
    """

    __slots__ = ("_holder", "_key", "_root")

    def __init__(self, holder: PartsHolder, key: SessionKey | UserKey, root: str = "") -> None:
        self._holder = holder
        self._key = key
        self._root = root  # before each key, of those that an adapter keeps

    def __repr__(self) -> str:
        return f"KeyedState({', '.join(map(repr, self._key))}, {self._holder.described})"

    async def get(self, key: str) -> StateValue | None:
        """The value under a key; None if there is none.

        Raises:
            InvalidId: the key is not valid.
        """
        found: StoredValue | None = await self._holder.parts.actors.ask(
            self._key, ReadValue(self._full(key))
        )
        return None if found is None else _as_value(key, found.value)

    async def get_many(self, keys: Iterable[str]) -> dict[str, StateValue]:
        """The values under these keys, as of one moment, by key, without those that are not there.

        Raises:
            InvalidId: a key is not valid.
            InvalidInput: there are too many.
        """
        wanted = tuple(self._full(key) for key in collect(keys, "keys", most=MAX_IDS))
        reply: StoredValues = await self._holder.parts.actors.ask(self._key, ReadNamed(wanted))
        return {one.key: one for one in await self._shown(reply)}

    async def set(self, key: str, value: object, *, version: int | None = None) -> StateValue:
        """Set a value, and return it with its new version.

        With `version`, it is set only if nobody else changed it since: of several calls that give
        the same version, exactly one succeeds (compare-and-set). Await a call before the next one
        for the same key: a large value is encoded in a thread, and may be overtaken.

        Args:
            key: its name, of at most 512 bytes.
            value: None, a bool, number or text, or lists and dicts of them with texts as names, at
                most 32 levels deep and `state.max_value_bytes` as JSON. It is copied. The redaction
                hook is applied to each text in it, but not to keys and names.
            version: the version that the present value must have; 0: there must be none; None: set
                it whatever there is.

        Raises:
            StateConflict: the present value has another version; nothing was written.
            InvalidId: the key is not valid.
            InvalidInput: it is no such value, or it is too large; nothing was written.
            TooManyKeys: there are `state.max_keys` already; nothing was written.
            RedactionFailed: the redaction hook failed; nothing was written.
        """
        full = self._full(key)
        expected = _check_version(version)
        parts = self._holder.parts
        intake = parts.intake
        encoded = await run_in_thread_if(
            is_large(value), encode_value, full, value, intake.state, intake.redact
        )
        most = self._bounds(((full, encoded),)).max_keys
        request = SetValue(full, encoded, expected, intake.now_us(), most)
        reply = await parts.actors.ask(self._key, request, size=len(full) + len(encoded))
        if isinstance(reply, StaleVersion):
            raise _conflict(key, expected, reply.present)
        return _as_value(key, reply.value)

    async def delete(self, key: str, *, version: int | None = None) -> bool:
        """Delete a value; returns whether there was one.

        Args:
            key: its name.
            version: see `set`.

        Raises:
            StateConflict: the present value has another version; nothing was deleted.
            InvalidId: the key is not valid.
        """
        expected = _check_version(version)
        reply = await self._holder.parts.actors.ask(
            self._key, DeleteValue(self._full(key), expected)
        )
        if isinstance(reply, StaleVersion):
            raise _conflict(key, expected, reply.present)
        return bool(reply)

    async def change(
        self,
        put: Mapping[str, object],
        *,
        delete: Iterable[str] = (),
        versions: Mapping[str, int] | None = None,
    ) -> dict[str, StateValue]:
        """Set and delete several values, all or none, in one write.

        Args:
            put: values by key; see `set`.
            delete: keys, none of which is in `put`; those that are not there are ignored.
            versions: the versions that the present values of some keys must have; 0: there must be
                none. Keys that are only compared may be among them.

        Returns:
            What was set, by key, with its new versions.

        Raises:
            StateConflict: a present value has another version; `key` is the first one. Nothing was
                written.
            InvalidId, InvalidInput, TooManyKeys, RedactionFailed: see `set`; nothing was written.
        """
        given: tuple[object, object] = (put, {} if versions is None else versions)
        if not all(isinstance(one, Mapping) for one in given):
            raise InvalidInput("put and versions must be dicts by key")
        values = [(self._full(key), value) for key, value in put.items()]
        dropped = tuple(
            dict.fromkeys(self._full(key) for key in collect(delete, "delete", most=MAX_IDS))
        )
        if both := {key for key, _ in values}.intersection(dropped):
            raise InvalidInput(f"{self._short(min(both))!r} is both set and deleted")
        expected = {
            self._full(key): check_int(one, "version") for key, one in (versions or {}).items()
        }
        if max(len(values), len(expected)) > MAX_IDS:
            raise InvalidInput(f"at most {MAX_IDS} keys are changed at once")
        parts = self._holder.parts
        intake = parts.intake
        large = is_large([value for _, value in values])
        encoded = await run_in_thread_if(large, encode_values, values, intake.state, intake.redact)
        most = self._bounds(encoded).max_keys
        pairs = tuple(expected.items())
        request = ChangeValues(encoded, dropped, pairs, intake.now_us(), most)
        size = sum(len(key) + len(json) for key, json in encoded)
        reply = await parts.actors.ask(self._key, request, size=size)
        if isinstance(reply, StaleKey):
            raise _conflict(self._short(reply.key), expected[reply.key], reply.present)
        return {one.key: one for one in await self._shown(reply)}

    async def items(
        self,
        *,
        prefix: str = "",
        limit: int | None = None,
        after: str | None = None,
        backward: bool = False,
    ) -> list[StateValue]:
        """All values, or a page of them, in the order of their keys, as of one moment.

        The next page begins behind the last key of a page: ``after=page[-1].key``.

        Args:
            prefix: only keys that begin with this.
            limit: how many at most; None for all.
            after: only keys behind this one; None for the first page.
            backward: in the reverse order, the last key first; a page begins before `after`.

        Raises:
            InvalidInput: an argument is of another type or out of range.
        """
        request = ReadValues(
            self._root + without_surrogates(check_text(prefix, "prefix")),
            "" if after is None else self._root + without_surrogates(check_text(after, "after")),
            None if limit is None else check_int(limit, "limit", low=1),
            check_flag(backward, "backward"),
        )
        actors = self._holder.parts.actors
        if not self._root and request.prefix.startswith(ADAPTER_PREFIX):
            return []  # the keys are those of adapters
        reply: StoredValues = await actors.ask(self._key, request)
        return await self._shown(reply)

    def _bounds(self, encoded: Iterable[tuple[str, bytes]]) -> StateConfig:
        """The bounds of these values; it logs those that are close to the one of their size."""
        bounds = bounds_of(self._root, self._holder.parts.intake.state)
        for _, json in encoded:
            if len(json) >= NEAR_LIMIT * bounds.max_value_bytes:
                setting = bound_name(self._root, "max_value_bytes")
                whose = owner_field(self._key)
                _logger.warning("state_value_near_limit", **whose, bytes=len(json), setting=setting)
        return bounds

    def _full(self, key: str) -> str:
        """A key as it is stored.

        Raises:
            InvalidId: it is not valid.
        """
        key = check_key(key)
        if not self._root and key.startswith(ADAPTER_PREFIX):
            raise InvalidId(f"keys that begin with {ADAPTER_PREFIX} are those of adapters")
        return check_key(self._root + key) if self._root else key

    def _short(self, key: str) -> str:
        return key[len(self._root) :]

    async def _shown(self, reply: StoredValues) -> list[StateValue]:
        found = [(self._short(key), value) for key, value in reply.values]
        large = sum(len(value.json) for _, value in found) > _BYTES_IN_THREAD
        return await run_in_thread_if(
            large, lambda: [_as_value(key, value) for key, value in found]
        )


def adapter_state(handle: Any, name: str, *, opaque: bool = False) -> KeyedState:
    """Return what an adapter keeps for a framework with a session or a user.

    Its keys are apart from the application's own, and have the bounds of `state.adapter_max_keys`
    and `state.adapter_max_value_bytes`.

    Args:
        handle: a `Session` or a `User`.
        name: of the adapter, and what it keeps.
        opaque: the values are encoded bytes; no redaction hook is given them.
    """
    root = f"{OPAQUE_PREFIX if opaque else ADAPTER_PREFIX}{name}/"
    key = getattr(handle, "key", None) or UserKey(handle.id)
    return KeyedState(handle._holder, key, root)  # noqa: SLF001 - a handle of the same layer


def _check_version(version: object) -> int | None:
    return None if version is None else check_int(version, "version")


def _as_value(key: str, value: KeyedValue) -> StateValue:
    updated_at = datetime.fromtimestamp(value.at_us / 1_000_000, UTC)
    return StateValue(key, msgspec.json.decode(value.json), value.version, updated_at)


def _conflict(key: str, expected: int | None, present: KeyedValue | None) -> StateConflict:
    assert expected is not None
    actual = present.version if present is not None else 0
    return StateConflict(
        f"{key!r} has {_describe(actual)}, and the call expected {_describe(expected)}: nothing "
        "was changed; decide again from the present value",
        key=key,
        expected=expected,
        actual=actual,
        value=msgspec.json.decode(present.json) if present is not None else None,
    )


def _describe(version: int) -> str:
    return f"version {version}" if version else "no value"
