"""Metadata of recorded memories: checked when it is stored, compared when it is filtered.

Filters are compared here, with values that were read: no text of a caller becomes part of a query.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from remora.errors import InvalidInput

MAX_METADATA_BYTES = 4_096
"""Size of a memory's metadata as JSON, at most."""

_MAX_CONDITIONS = 32
_MAX_DEPTH = 8
_MAX_INT = 1 << 63
_encode = msgspec.json.Encoder(order="deterministic").encode

Condition = tuple[str, str, Any]


def check_metadata(value: object) -> str:
    """The metadata as JSON text; empty for an empty dict.

    Raises:
        InvalidInput: it is no dict of JSON values, or too large.
    """
    if not isinstance(value, Mapping):
        raise InvalidInput(f"metadata must be a dict, not {type(value).__name__}")
    if not value:
        return ""
    try:
        text = _encode(copy_json(value)).decode()
    except UnicodeError as e:
        raise InvalidInput("metadata holds a lone surrogate, which no file can keep") from e
    if len(text.encode()) > MAX_METADATA_BYTES:
        raise InvalidInput(
            f"metadata takes {len(text.encode())} bytes as JSON; at most {MAX_METADATA_BYTES} are "
            "allowed"
        )
    return text


def copy_json(value: object, levels: int = _MAX_DEPTH) -> Any:
    """A copy of the value, made of plain dicts, lists, texts, numbers, booleans and None.

    Args:
        value: of a caller; tuples become lists.
        levels: how many may be nested in it.

    Raises:
        InvalidInput: it holds something else, a number that JSON or 64 bits cannot hold, or more
            levels.
    """
    return _copy_json(value, levels, levels)


def _copy_json(value: object, left: int, levels: int) -> Any:
    if left < 0:
        raise InvalidInput(f"a value nests deeper than {levels} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        if not -_MAX_INT <= value < _MAX_INT:
            raise InvalidInput("a number has more than 64 bits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{value} is no JSON number")
        return float(value)
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise InvalidInput(f"names must be texts, not {type(name).__name__}")
        return {str.__str__(name): _copy_json(one, left - 1, levels) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy_json(one, left - 1, levels) for one in value]
    raise InvalidInput(f"a value must be JSON, not {type(value).__name__}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _equal(found: object, wanted: object) -> bool:
    """Equal as JSON: true is no 1."""
    return isinstance(found, bool) == isinstance(wanted, bool) and found == wanted


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[object, object], bool]:
    """A comparison of two numbers or of two texts; others do not match."""

    def matches(found: object, wanted: object) -> bool:
        alike = (_is_number(found) and _is_number(wanted)) or (
            isinstance(found, str) and isinstance(wanted, str)
        )
        return alike and compare(found, wanted)

    return matches


_OPERATORS: Mapping[str, Callable[[object, Any], bool]] = {
    "$eq": _equal,
    "$gt": _ordered(operator.gt),
    "$gte": _ordered(operator.ge),
    "$in": lambda found, wanted: any(_equal(found, one) for one in wanted),
    "$lt": _ordered(operator.lt),
    "$lte": _ordered(operator.le),
    "$ne": lambda found, wanted: not _equal(found, wanted),
}
_ORDERS = frozenset({"$gt", "$gte", "$lt", "$lte"})
_ABSENT = object()


class MetadataFilter(msgspec.Struct, frozen=True):
    """Conditions that all must hold; made by `check_where`.

    Attributes:
        conditions: name, operator and value of each.
    """

    conditions: tuple[Condition, ...] = ()

    def matches(self, metadata: str) -> bool:
        """Return whether metadata, as `check_metadata` gave it, meets them all."""
        if not self.conditions:
            return True
        return self.fits(msgspec.json.decode(metadata) if metadata else {})

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Return whether these values meet all conditions."""
        return all(
            _OPERATORS[how](values.get(name, _ABSENT), wanted)
            for name, how, wanted in self.conditions
        )


def check_where(
    where: object, argument: str = "where", *, copy: Callable[[object], Any] = copy_json
) -> MetadataFilter:
    """The conditions that a caller gave.

    Args:
        where: names with values, or with dicts of operators and values.
        argument: where the caller gave it.
        copy: of a value; raises `InvalidInput` if it cannot be compared.

    Raises:
        InvalidInput: one is not a value or a dict of operators and values, or there are too many.
    """
    if where is None:
        return MetadataFilter()
    if not isinstance(where, Mapping):
        raise InvalidInput(f"{argument} must be a dict, not {type(where).__name__}")
    conditions: list[Condition] = []
    for name, wanted in where.items():
        if not isinstance(name, str):
            raise InvalidInput(f"{argument}: names must be texts, not {type(name).__name__}")
        if name.startswith("$"):
            raise InvalidInput(
                f"{argument}: {name:.80} is no name of metadata: conditions have the form "
                '{"stars": {"$gt": 3}}, and all must hold'
            )
        given = wanted if isinstance(wanted, Mapping) and wanted else {"$eq": wanted}
        for how, value in given.items():
            if how not in _OPERATORS:
                raise InvalidInput(
                    f"{argument}: {name!r:.80} has no operator {how!r:.80}; there are "
                    f'{", ".join(_OPERATORS)}; a whole dict is compared by {{"$eq": …}}'
                )
            if how == "$in" and not isinstance(value, (list, tuple)):
                raise InvalidInput(f"{argument}: $in takes a list of values")
            if how in _ORDERS and not (_is_number(value) or isinstance(value, str)):
                raise InvalidInput(f"{argument}: {how} takes a number or a text")
            conditions.append((name, how, copy(value)))
    if len(conditions) > _MAX_CONDITIONS:
        raise InvalidInput(f"{argument}: at most {_MAX_CONDITIONS} conditions are allowed")
    return MetadataFilter(tuple(conditions))
