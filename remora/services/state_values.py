"""Values of keyed state on their way in and out: copied, checked, redacted, encoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from remora.actors.policies.redaction import redact_value
from remora.config import StateConfig
from remora.errors import InvalidInput
from remora.ids import validate_id
from remora.services.arguments import check_int
from remora.services.intake import measure
from remora.services.metadata import copy_json
from remora.storage.keyed_values import (
    ADAPTER_PREFIX,
    KEYED_KIND,
    OPAQUE_PREFIX,
    bound_name,
    decode_value,
    keyed_image,
    keyed_item,
)
from remora.storage.records import StateItem

MAX_LEVELS = 32
_INLINE = 1_000  # characters and elements
_LAST_US = 253_402_300_799_999_999  # the year 9999
_encode = msgspec.json.Encoder().encode


def check_key(key: object) -> str:
    """`key`, if it can name a value.

    Raises:
        InvalidId: it cannot.
    """
    return validate_id(key, "a key of keyed state")


def is_large(value: object) -> bool:
    """Return whether encoding a value would hold the event loop for a millisecond or more."""
    return measure([value], _INLINE) > _INLINE


def bounds_of(key: str, limits: StateConfig) -> StateConfig:
    """The bounds of a key: those of adapters have their own."""
    return limits.of_adapters() if key.startswith(ADAPTER_PREFIX) else limits


def encode_values(
    values: Iterable[tuple[str, object]], limits: StateConfig, redact: Callable[[str], str] | None
) -> tuple[tuple[str, bytes], ...]:
    """Keys and values as JSON; see `encode_value`."""
    return tuple((key, encode_value(key, value, limits, redact)) for key, value in values)


def encode_value(
    key: str, value: object, limits: StateConfig, redact: Callable[[str], str] | None
) -> bytes:
    """A value as JSON, with every text in it redacted, unless the key is of encoded bytes.

    Raises:
        InvalidInput: it is no JSON value, or too large.
        RedactionFailed: the redaction hook failed.
    """
    limits, bound = bounds_of(key, limits), bound_name(key, "max_value_bytes")
    if measure([value], limits.max_value_bytes) > limits.max_value_bytes:  # before it is copied
        raise InvalidInput(
            f"a value takes over {limits.max_value_bytes} bytes as JSON, which {bound} allows"
        )
    if key.startswith(OPAQUE_PREFIX):
        redact = None
    copied = copy_json(value, MAX_LEVELS)
    if redact is not None:
        copied = redact_value(copied, redact)
    try:
        encoded = _encode(copied)
    except UnicodeError as e:
        raise InvalidInput("a value holds a lone surrogate, which no file can keep") from e
    _check_size(key, encoded, limits)
    return encoded


def _check_size(key: str, encoded: bytes, limits: StateConfig) -> None:
    if len(encoded) > limits.max_value_bytes:
        raise InvalidInput(
            f"a value takes {len(encoded)} bytes as JSON; {bound_name(key, 'max_value_bytes')} "
            f"allows {limits.max_value_bytes}"
        )


def check_state_items(items: Iterable[StateItem], limits: StateConfig) -> None:
    """Check the keyed state among the state items of an import.

    Raises:
        InvalidInput: a key, a version, a time or a value is not valid, or there are too many.
    """
    try:
        image = keyed_image(items)
    except msgspec.MsgspecError as e:
        raise InvalidInput(f"keyed state cannot be read: {e}") from e
    check_int(image.counter, "a version of keyed state")
    adapters = sum(key.startswith(ADAPTER_PREFIX) for key, _ in image.values)
    for count, most, name in (
        (len(image.values) - adapters, limits.max_keys, "max_keys"),
        (adapters, limits.adapter_max_keys, "adapter_max_keys"),
    ):
        if count > most:
            raise InvalidInput(f"keyed state has {count} keys; state.{name} allows {most}")
    for key, value in image.values:
        check_key(key)
        check_int(value.version, "a version of keyed state", low=1)
        check_int(value.at_us, "a time of keyed state", high=_LAST_US)
        try:
            decoded: Any = msgspec.json.decode(value.json)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
            raise InvalidInput(f"the value of {key!r} is not JSON") from e
        copy_json(decoded, MAX_LEVELS)
        _check_size(key, value.json, bounds_of(key, limits))


def redact_item(item: StateItem, redact: Callable[[str], str]) -> StateItem:
    """A state item of keyed state whose value went through the redaction hook.

    Raises:
        RedactionFailed: the hook failed.
    """
    if item.kind != KEYED_KIND or item.name.startswith(OPAQUE_PREFIX):
        return item
    value = decode_value(item.value)
    redacted = _encode(redact_value(msgspec.json.decode(value.json), redact))
    return keyed_item(item.name, msgspec.structs.replace(value, json=redacted))
