"""The engine that copies the rows of journals: a division into shards and a move use it.

1. A source gives the rows table by table in the order of `TABLES`, a chunk at a time: no more is in
   memory. The tables have the same names and columns in each database. A row is a tuple of its
   columns, texts as bytes: what a user wrote may hold characters that PostgreSQL has no text for.
2. The target gets them as they are, with numbers and checksums. Between two files SQLite copies
   them itself (`JournalRows.fill`), several times as fast.
3. Every row is read again from both, and compared.
4. The caller says before the first row that the copy does not count (``reshard.json``,
   ``moving.json``, the setting ``moving``), and in one step after the last that it does. After a
   crash before that step the journal is copied again from its first row.

Exports copy what the verbs say of a memory in use, and backups copy files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from remora.errors import StorageError
from remora.storage.rows import SHARES, row_crc

Kind: TypeAlias = Literal["number", "name", "text", "bytes"]
"""``name`` is text that has no NUL; ``text`` may have any character."""
Rows: TypeAlias = Sequence[tuple[Any, ...]]


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


class RowSource(Protocol):
    """The rows of a journal."""

    def read(self, table: str) -> AsyncIterator[Rows]:
        """The rows of a table in its order, some at a time; not those that an erasure has left.

        Raises:
            StorageError: they cannot be read.
        """
        ...


async def copy_rows(
    source: RowSource,
    write: Callable[[str, Rows], Awaitable[None]],
    tell: Callable[[int], None],
) -> None:
    """Copy all rows.

    Args:
        source: the rows.
        write: adds rows to a table of the target.
        tell: called with the number of rows done since the last call.
    """
    for table in TABLES:
        async for rows in source.read(table):
            await write(table, rows)
            tell(len(rows))


async def compare_rows(source: RowSource, copy: RowSource, tell: Callable[[int], None]) -> None:
    """Compare every row with its copy; see `copy_rows`.

    Raises:
        StorageError: one differs.
    """
    for table in TABLES:
        number, copied = 0, copy.read(table)
        there: list[tuple[Any, ...]] = []
        async for rows in source.read(table):
            while len(there) < len(rows) and (more := await _next(copied)):
                there.extend(more)
            for one, other in zip_longest(rows, there[: len(rows)]):
                number += 1
                if one != other:
                    raise _differs(table, number)
            del there[: len(rows)]
            tell(len(rows))
        if there or await _next(copied):
            raise _differs(table, number + 1)


async def _next(chunks: AsyncIterator[Rows]) -> Rows:
    return await anext(chunks, None) or ()


def _differs(table: str, number: int) -> StorageError:
    return StorageError(
        f"row {number:,} of the table {table} is not as its copy; the memory is what it was"
    )
