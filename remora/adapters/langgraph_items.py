"""Items of LangGraph's store as values of keyed state: their keys, filters and vectors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from langgraph.store.base import Item, MatchCondition, PutOp

from remora.api.keyed_state import StateValue
from remora.errors import InvalidInput
from remora.storage.keyed_values import escape, unescape

_BEHIND = "/"  # a namespace's own items come before its children's: "a//key", "a/b//key"
_MINUTE_US = 60_000_000


class Stored(msgspec.Struct, frozen=True):
    """An item as it is stored.

    Attributes:
        key: of keyed state.
        version: of the value.
        namespace: LangGraph's.
        name: LangGraph's key.
        value: the item's own.
        created_us: microseconds since the epoch.
        updated_us: likewise.
        ttl: minutes from the last access; None for ever.
        expires_us: when it ends.
        vectors: by field.
    """

    key: str
    version: int
    namespace: tuple[str, ...]
    name: str
    value: dict[str, Any]
    created_us: int
    updated_us: int
    ttl: float | None
    expires_us: int | None
    vectors: dict[str, list[float]]

    @property
    def times(self) -> tuple[datetime, datetime]:
        """When it was created and changed."""
        return _read_time(self.created_us), _read_time(self.updated_us)

    def has_expired(self, now_us: int) -> bool:
        """Return whether its time to live is over."""
        return self.expires_us is not None and self.expires_us <= now_us

    def refreshed(self, now_us: int) -> dict[str, Any]:
        """The value of keyed state, with its whole time to live from now on."""
        return _encoded(self, _end(self.ttl, now_us))

    def similarity(self, vector: np.ndarray[Any, Any]) -> float | None:
        """The cosine of the nearest of its vectors; None if it has none."""
        if not self.vectors:
            return None
        own = np.asarray(list(self.vectors.values()), np.float32)
        lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(vector)
        products = own @ vector
        return float(
            np.max(np.divide(products, lengths, np.zeros_like(products), where=lengths != 0))
        )


def write_time() -> int:
    """Now, in microseconds since the epoch."""
    return time.time_ns() // 1_000


def _read_time(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)


def _end(ttl: float | None, now_us: int) -> int | None:
    return None if ttl is None else now_us + int(ttl * _MINUTE_US)


# -- keys ------------------------------------------------------------------------------------------


def join_path(namespace: Sequence[str], name: str) -> str:
    """The key of an item."""
    return namespace_prefix(namespace) + _BEHIND + escape(str(name))


def namespace_prefix(namespace: Sequence[str]) -> str:
    """Return what the keys of a namespace and of those below it begin with."""
    return "".join(f"{escape(str(label))}/" for label in namespace)


def matches_namespace(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Return whether a namespace begins, or ends, with a path that may have ``*`` in it."""
    path = tuple(condition.path)
    if condition.match_type not in {"prefix", "suffix"}:
        raise InvalidInput(
            f"a namespace is matched by prefix or suffix, not {condition.match_type!r}"
        )
    if len(namespace) < len(path):
        return False
    start = 0 if condition.match_type == "prefix" else len(namespace) - len(path)
    part = namespace[start : start + len(path)]
    return all(one in {"*", label} for one, label in zip(path, part, strict=True))


# -- values ----------------------------------------------------------------------------------------


def encode(
    op: PutOp, created_us: int, now_us: int, vectors: Mapping[str, list[float]]
) -> dict[str, Any]:
    """The value of keyed state for what is put."""
    if not isinstance(op.value, dict):
        raise InvalidInput(f"an item is a dict, not {type(op.value).__name__}")
    return {
        "value": op.value,
        "created": created_us,
        "updated": now_us,
        "ttl": op.ttl,
        "expires": _end(op.ttl, now_us),
        "vectors": dict(vectors),
    }


def _encoded(one: Stored, expires_us: int | None) -> dict[str, Any]:
    return {
        "value": one.value,
        "created": one.created_us,
        "updated": one.updated_us,
        "ttl": one.ttl,
        "expires": expires_us,
        "vectors": one.vectors,
    }


def decode(found: StateValue) -> Stored:
    """The item in a value of keyed state."""
    where, _, name = found.key.rpartition("/" if found.key.startswith("/") else "//")
    kept = found.value
    return Stored(
        found.key,
        found.version,
        tuple(unescape(label) for label in where.split("/")) if where else (),
        unescape(name),
        kept["value"],
        kept["created"],
        kept["updated"],
        kept["ttl"],
        kept["expires"],
        kept["vectors"],
    )


def to_item(one: Stored) -> Item:
    """LangGraph's item."""
    created, updated = one.times
    return Item(
        value=one.value,
        key=one.name,
        namespace=one.namespace,
        created_at=created,
        updated_at=updated,
    )


# -- filters ---------------------------------------------------------------------------------------


def compare(value: dict[str, Any], name: str, wanted: Any) -> bool:
    """Return whether a field of an item is as a filter wants it.

    The name may have dots, for a field of a field.

    Raises:
        InvalidInput: there is no such operator.
    """
    if name.startswith("$"):
        raise InvalidInput(f"Unsupported operator: {name}; conditions name fields, and all hold")
    found: Any = value
    if name in value:
        return _is_as_wanted(value[name], wanted)
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return _is_as_wanted(found, wanted)


def _is_as_wanted(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        if any(str(key).startswith("$") for key in wanted):
            return all(_holds(found, operator, bound) for operator, bound in wanted.items())
        return isinstance(found, dict) and all(
            _is_as_wanted(found.get(key), one) for key, one in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(map(_is_as_wanted, found, wanted))
        )
    return bool(found == wanted)


def _holds(found: Any, operator: str, bound: Any) -> bool:
    if operator in {"$eq", "$ne"}:
        return bool(found == bound) is (operator == "$eq")
    if operator not in {"$gt", "$gte", "$lt", "$lte"}:
        raise InvalidInput(f"Unsupported operator: {operator}")
    numbers = isinstance(found, (int, float)) and isinstance(bound, (int, float))
    if not numbers and not (isinstance(found, str) and isinstance(bound, str)):
        return False
    if operator in {"$gt", "$gte"}:
        return bool(found > bound or (operator == "$gte" and found == bound))
    return bool(found < bound or (operator == "$lte" and found == bound))
