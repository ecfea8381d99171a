"""Handles on keyed state: small JSON values of a session or a user."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from remora.actors.keyed_state import (
    DeleteValue,
    ReadValue,
    ReadValues,
    SetValue,
    StaleVersion,
    StoredValue,
    StoredValues,
)
from remora.errors import StateConflict
from remora.ids import SessionKey, UserKey
from remora.messages import without_surrogates
from remora.runtime.concurrency import run_in_thread_if
from remora.services.arguments import check_int, check_text
from remora.services.parts import PartsHolder
from remora.services.state_values import check_key, encode_value, is_large
from remora.storage.keyed_values import KeyedValue

__all__ = ["KeyedState", "StateValue"]

_BYTES_IN_THREAD = 200_000


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

    __slots__ = ("_holder", "_key")

    def __init__(self, holder: PartsHolder, key: SessionKey | UserKey) -> None:
        self._holder = holder
        self._key = key

    def __repr__(self) -> str:
        return f"KeyedState({', '.join(map(repr, self._key))}, {self._holder.described})"

    async def get(self, key: str) -> StateValue | None:
        """The value under a key; None if there is none.

        Raises:
            InvalidId: the key is not valid.
        """
        found: StoredValue | None = await self._holder.parts.actors.ask(
            self._key, ReadValue(check_key(key))
        )
        return None if found is None else _as_value(key, found.value)

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
            InvalidInput: it is no such value, it is too large, or there are `state.max_keys`
                already; nothing was written.
            RedactionFailed: the redaction hook failed; nothing was written.
        """
        key = check_key(key)
        expected = _check_version(version)
        parts = self._holder.parts
        intake = parts.intake
        encoded = await run_in_thread_if(
            is_large(value), encode_value, value, intake.state, intake.redact
        )
        request = SetValue(key, encoded, expected, intake.now_us(), intake.state.max_keys)
        reply = await parts.actors.ask(self._key, request, size=len(key) + len(encoded))
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
            self._key, DeleteValue(check_key(key), expected)
        )
        if isinstance(reply, StaleVersion):
            raise _conflict(key, expected, reply.present)
        return bool(reply)

    async def items(
        self, *, prefix: str = "", limit: int | None = None, after: str | None = None
    ) -> list[StateValue]:
        """All values, or a page of them, in the order of their keys, as of one moment.

        The next page begins behind the last key of a page: ``after=page[-1].key``.

        Args:
            prefix: only keys that begin with this.
            limit: how many at most; None for all.
            after: only keys behind this one; None for the first page.

        Raises:
            InvalidInput: an argument is of another type or out of range.
        """
        request = ReadValues(
            without_surrogates(check_text(prefix, "prefix")),
            "" if after is None else without_surrogates(check_text(after, "after")),
            None if limit is None else check_int(limit, "limit", low=1),
        )
        reply: StoredValues = await self._holder.parts.actors.ask(self._key, request)
        found = reply.values
        large = sum(len(value.json) for _, value in found) > _BYTES_IN_THREAD
        return await run_in_thread_if(
            large, lambda: [_as_value(key, value) for key, value in found]
        )


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
