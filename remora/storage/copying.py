"""The rows of a journal in a form that every engine takes, so that one can be copied into another.

The tables have the same names and columns in each. A row is a tuple of its columns in the order of
`TABLES`, texts as bytes: what a user wrote may hold characters that one engine has no text for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from remora.storage.rows import SHARES, row_crc

Kind: TypeAlias = Literal["number", "name", "text", "bytes"]
"""``name`` is text that has no NUL; ``text`` may have any character."""


class Column(msgspec.Struct, frozen=True):
    """A column: its name, and what it holds."""

    name: str
    kind: Kind = "number"


class Table(msgspec.Struct, frozen=True):
    """A table.

    Attributes:
        columns: all that are copied.
        order: the column that its rows are ordered by; its own number where it has one.
        counted: the database gives out the numbers of `order`.
    """

    columns: tuple[Column, ...]
    order: str
    counted: bool = False

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [one.name for one in self.columns]


def _columns(text: str) -> tuple[Column, ...]:
    kinds: dict[str, Kind] = {"": "number", "n": "name", "t": "text", "b": "bytes"}
    found = [one.partition(":") for one in text.split()]
    return tuple(Column(name, kinds[kind]) for name, _, kind in found)


TABLES: Mapping[str, Table] = {
    "actors": Table(
        _columns(
            "sid user:n session:n created_us generation summarized summarizing flushing cleared "
            "flushed trimmed crc marks_crc"
        ),
        "sid",
    ),
    "messages": Table(
        _columns(
            "pos at_us tokens role epoch chat:b meta:b id:n key:b batch importance crc removed "
            "pruned"
        ),
        "pos",
    ),
    "summaries": Table(
        _columns(
            "number sid at_seq kind:n generation first through prefix:t text:t tokens degraded "
            "model:t input_tokens cover:b crc"
        ),
        "number",
        counted=True,
    ),
    "state_items": Table(_columns("number sid kind:n name:t value:b crc"), "number", counted=True),
    "memories": Table(
        _columns(
            "number id:n sid session:n agent:t content:t type:t importance created_us tokens "
            "details:b crc"
        ),
        "number",
        counted=True,
    ),
    "jobs": Table(
        _columns("number id:n queue:n sid payload:b attempts not_before dead error:t crc"),
        "number",
        counted=True,
    ),
    "erasures": Table(_columns("number user_key:n session_key:n"), "number", counted=True),
}
"""All tables but the settings, in the order of copying."""

OWN_SETTINGS = frozenset(
    {
        "instance",
        "lineage",
        "commits",
        "epoch",
        "last_sid",
        "sid_step",
        "sid_offset",
        "memory_name",
        "uses_complete",
        "erased_actors",
        "moving",
        "attachments_key",
        "attachments_unswept",
    }
)
"""Settings that an engine keeps for itself, or that the copy gets in another way."""

_CHECKED: Mapping[str, Sequence[str]] = {
    "actors": ("sid", "user", "session", "created_us"),
    "messages": (
        *("pos", "at_us", "tokens", "role", "chat", "meta", "id", "importance", "key", "batch"),
    ),
    "summaries": (
        *("sid", "at_seq", "kind", "generation", "first", "through", "prefix", "text", "tokens"),
        *("degraded", "model", "input_tokens", "cover"),
    ),
    "state_items": ("sid", "kind", "name", "value"),
    "memories": (
        *("id", "sid", "session", "agent", "content", "type", "importance", "created_us"),
        *("tokens", "details"),
    ),
    "jobs": ("id", "queue", "sid", "payload"),
}
"""What a row's checksum is of; the last one of summaries and memories only where there is one."""


def with_checksums(table: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows; a summary that lost its text gets a checksum."""
    checked = _CHECKED.get(table)
    if checked is None:
        return list(rows)
    columns = TABLES[table].columns
    places = {column.name: place for place, column in enumerate(columns)}
    crc = places["crc"]
    found = []
    for row in rows:
        if row[crc] is None:
            values = [_checked(table, columns[places[name]], row[places[name]]) for name in checked]
            if checked[-1] in {"cover", "details"} and values[-1] is None:
                values.pop()
            row = (*row[:crc], row_crc(tuple(values)), *row[crc + 1 :])  # noqa: PLW2901
        found.append(row)
    return found


def _checked(table: str, column: Column, value: Any) -> Any:
    if value is not None and column.kind in {"name", "text"}:
        return value.decode()
    if table == "messages" and column.name == "importance":
        return int(value * SHARES)
    return value
