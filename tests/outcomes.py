"""A comparison of two kinds of runtime: the outcome of each call must be the same.

Results are compared with their types; errors by class, text and attributes. What differs between
two memories by nature (directories, the numbers of journals) is given, and replaced in all texts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a call.

    Attributes:
        result: what it returned, as `plain` gives it; None if it raised.
        error: the class of the exception; empty if it returned.
        text: what the exception says.
        attributes: its own ones, as `plain` gives them.
    """

    result: Any = None
    error: str = ""
    text: str = ""
    attributes: Any = None


async def outcome_of(
    call: Callable[[], Awaitable[object]], names: Mapping[str, str] | None = None
) -> Outcome:
    """Make a call; `names` are replaced in the texts of what comes of it."""
    names = names or {}
    try:
        return Outcome(plain(await call(), names))
    except Exception as e:
        return _failure(e, names)


def _failure(error: BaseException, names: Mapping[str, str]) -> Outcome:
    kind = type(error)
    text, attributes = plain(str(error), names), plain(vars(error), names)
    return Outcome(None, f"{kind.__module__}.{kind.__qualname__}", text, attributes)


def plain(value: object, names: Mapping[str, str]) -> Any:
    """A value as data that can be compared, with the names of types that matter.

    Handles are their type and what they are of; an Arrow table is its columns.

    Args:
        value: what a call returned.
        names: texts, and what replaces them.
    """
    match value:
        case str():
            for name, other in names.items():
                value = value.replace(name, other)
            return value
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            return [type(value).__name__, plain(fields, names)]
        case Mapping():
            return {plain(key, names): plain(one, names) for key, one in value.items()}
        case list() | tuple():
            return [type(value).__name__, *(plain(one, names) for one in value)]
        case BaseException():
            return _failure(value, names)
        case None | bool() | int() | float() | bytes():
            return value
    if hasattr(value, "column_names"):
        return ["table", {name: _column(value, name, names) for name in value.column_names}]
    if hasattr(value, "isoformat"):
        return value
    return [type(value).__name__, plain(getattr(value, "key", None), names)]


def _column(table: Any, name: str, names: Mapping[str, str]) -> Any:
    """A column of a table; times as numbers, for time zones are read from files."""
    column = table[name]
    kind = str(column.type)
    values = column.cast("int64") if kind.startswith("timestamp") else column
    return [kind, plain(values.to_pylist(), names)]


def find_differences(one: object, other: object, where: str = "") -> list[str]:
    """Where two outcomes differ, and in what; empty if they are equal."""
    if isinstance(one, Outcome) and isinstance(other, Outcome):
        return find_differences(msgspec.structs.asdict(one), msgspec.structs.asdict(other), where)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [
            difference
            for key, value in one.items()
            for difference in find_differences(value, other[key], f"{where}.{key}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            difference
            for index, (mine, yours) in enumerate(zip(one, other, strict=True))
            for difference in find_differences(mine, yours, f"{where}[{index}]")
        ]
    if type(one) is type(other) and one == other:
        return []
    return [f"{where}: {one!r:.300} is {other!r:.300}"]
