"""Arrow tables: an export as Parquet files, and a user's long-term memory as one table.

The files are described in docs/reference/export-format.md. pyarrow takes half a second to
load, so it is loaded at the first call. Everything here blocks. Times are passed as integers of
microseconds: to convert a zoned timestamp to a Python object, pyarrow needs the machine's time
zone files.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from remora.errors import InvalidExport
from remora.ids import UserKey, memory_of_row
from remora.storage.export.jsonl import dump_message, load_message
from remora.storage.export.transfer import (
    FORMAT,
    Exported,
    ExportHeader,
    MessageExport,
    Placed,
    SessionExport,
    UserExport,
    newer_format,
)
from remora.storage.files import make_private_directory
from remora.storage.ports import MemoryRow, Vector
from remora.storage.records import MemoryItem, StateItem, Summary

MEMORY_COLUMNS = (
    "id",
    "user_id",
    "session_id",
    "content",
    "embedding",
    "memory_type",
    "importance",
    "created_at",
    "accessed_at",
    "access_count",
)
"""The columns of `User.export_arrow`, in order."""

_TABLES = ("sessions", "messages", "users", "memories", "facets")
_ADDED = {"memories": frozenset({"key", "metadata", "revision", "updated_us", "sources", "topic"})}
"""Columns that earlier exports do not have."""
_HEADER = b"remora-export"
_ROWS = 10_000  # of a row group
_ROWS_AT_ONCE = 64  # decoded together: each may be as large as a message
_ROW_AT_ONCE_BYTES = 1 << 20  # or one by one, if texts are longer
_ROW_BYTES = 512  # of a row in memory, without its texts
EXPANSION = 1_000  # as large as its files an export may be; text has a tenth or a fiftieth of that
FREE_BYTES = 1 << 30  # that much may be in it however small its files are
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _pyarrow() -> Any:
    return importlib.import_module("pyarrow")


# -- long-term memory ------------------------------------------------------------------------------


def memory_table(
    rows: Sequence[MemoryRow],
    vectors: Vector | None,
    accesses: Mapping[str, tuple[int, int]],
    *,
    dimension: int,
) -> Any:
    """A user's rows as a `pyarrow.Table` with the columns `MEMORY_COLUMNS`.

    Args:
        rows: the rows.
        vectors: theirs, shape (len(rows), dimension); None where nothing is embedded: the column is
            null then.
        accesses: row id -> how often it was retrieved, and when last, in microseconds.
        dimension: of the vectors; 0 for none.
    """
    pa = _pyarrow()
    at = pa.timestamp("us", tz="UTC")
    embedding = pa.list_(pa.float32(), dimension) if dimension else pa.list_(pa.float32())
    schema = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("user_id", pa.string(), nullable=False),
            pa.field("session_id", pa.string()),
            pa.field("content", pa.string(), nullable=False),
            pa.field("embedding", embedding),
            pa.field("memory_type", pa.string(), nullable=False),
            pa.field("importance", pa.float32(), nullable=False, metadata={"default": "0.5"}),
            pa.field("created_at", at, nullable=False),
            pa.field("accessed_at", at),
            pa.field("access_count", pa.int64(), nullable=False, metadata={"default": "0"}),
        ]
    )
    if vectors is None:
        embedded = pa.nulls(len(rows), embedding)
    else:
        embedded = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1), pa.float32()), dimension
        )
    ids = [memory_of_row(row.id) for row in rows]
    figures = [accesses.get(id_) for id_ in ids]
    columns = [
        pa.array(ids, pa.string()),
        pa.array([row.user for row in rows], pa.string()),
        pa.array([row.session or None for row in rows], pa.string()),
        pa.array([row.content for row in rows], pa.string()),
        embedded,
        pa.array([row.memory_type for row in rows], pa.string()),
        pa.array([row.importance for row in rows], pa.float32()),
        pa.array([row.created_us for row in rows], pa.int64()).cast(at),
        pa.array([one[1] if one else None for one in figures], pa.int64()).cast(at),
        pa.array([one[0] if one else 0 for one in figures], pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


# -- exports ---------------------------------------------------------------------------------------


def _schemas(pa: Any) -> dict[str, Any]:
    text, whole, at = pa.string(), pa.int64(), pa.timestamp("us", tz="UTC")

    def table(**types: Any) -> Any:
        return pa.schema([pa.field(name, type_) for name, type_ in types.items()])

    some = pa.list_(pa.struct([("first", whole), ("last", whole), ("count", whole)]))
    summary = pa.struct(
        [
            ("through", whole),
            ("prefix", text),
            ("text", text),
            ("tokens", whole),
            ("degraded", pa.bool_()),
            ("model", text),
            ("first", whole),
            ("input_tokens", whole),
            ("lost", some),
            ("verbatim", some),
            ("prose", whole),
            ("brief", text),
            ("brief_tokens", whole),
        ]
    )
    return {
        "sessions": table(
            user=text, session=text, messages=whole, front=whole, flushed=whole, summary=summary,
            summaries=pa.list_(summary),
        ),
        "messages": table(
            user=text, session=text, seq=whole, id=text, created_at=at, tokens=whole,
            importance=pa.float64(), role=text, chat=text, metadata=text, packed=pa.binary(),
            pruned=pa.bool_(),
        ),
        "users": table(user=text),
        "memories": table(
            user=text, id=text, session=text, agent=text, content=text, type=text,
            importance=pa.float64(), created_at=at, tokens=whole, key=text, metadata=text,
            revision=whole, updated_us=whole, sources=pa.list_(whole), topic=text,
        ),
        "facets": table(user=text, session=text, kind=text, name=text, value=pa.binary()),
    }  # fmt: skip


class ParquetWriter:
    """Implements `remora.storage.export.transfer.ExportWriter`.

    It creates the directory, with one file for each table.
    """

    def __init__(self, path: Path, header: ExportHeader) -> None:
        self._pa = _pyarrow()
        parquet = importlib.import_module("pyarrow.parquet")
        make_private_directory(path)
        self._schemas = _schemas(self._pa)
        described = {_HEADER: msgspec.json.encode(header)}
        self._rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
        self._writers = {
            name: parquet.ParquetWriter(
                path / f"{name}.parquet",
                self._schemas[name].with_metadata(described),
                compression="zstd",
            )
            for name in _TABLES
        }

    def write(self, exported: Sequence[Exported]) -> None:
        """Add sessions or users."""
        for one in exported:
            if isinstance(one, SessionExport):
                self._session(one)
            else:
                self._user(one)
        for name, rows in self._rows.items():
            if len(rows) >= _ROWS:
                self._flush(name)

    def _session(self, one: SessionExport) -> None:
        summary = msgspec.to_builtins(one.summary) if one.summary else None
        summaries = [msgspec.to_builtins(entry) for entry in one.summaries]
        place = {"user": one.user, "session": one.session}
        self._rows["sessions"].append(
            {
                **place,
                "messages": len(one.messages),
                "front": one.front,
                "flushed": one.flushed,
                "summary": summary,
                "summaries": summaries,
            }
        )
        for message in one.messages:
            chat, metadata, packed = dump_message(message.chat, message.metadata)
            self._rows["messages"].append(
                {
                    **place,
                    "seq": message.seq,
                    "id": message.id,
                    "created_at": (message.created_at - _EPOCH) // _MICROSECOND,
                    "tokens": message.tokens,
                    "importance": message.importance,
                    "role": message.chat["role"],
                    "chat": chat.decode() or None,
                    "metadata": metadata.decode() if metadata else None,
                    "packed": packed or None,
                    "pruned": message.pruned,
                }
            )
        self._state_items(place, one.state_items)

    def _user(self, one: UserExport) -> None:
        self._rows["users"].append({"user": one.user})
        for item in one.memories:
            row = msgspec.structs.asdict(item)
            self._rows["memories"].append(
                {"user": one.user, **row, "created_at": row.pop("created_us")}
            )
        self._state_items({"user": one.user, "session": ""}, one.state_items)

    def _state_items(self, place: dict[str, str], state_items: Iterable[StateItem]) -> None:
        self._rows["facets"].extend(
            {**place, "kind": one.kind, "name": one.name, "value": one.value} for one in state_items
        )

    def _flush(self, name: str) -> None:
        rows, schema = self._rows[name], self._schemas[name]
        columns = []
        for field in schema:
            values = [row[field.name] for row in rows]
            timed = field.name == "created_at"
            columns.append(
                self._pa.array(values, self._pa.int64()).cast(field.type)
                if timed
                else self._pa.array(values, field.type)
            )
        self._writers[name].write_table(self._pa.Table.from_arrays(columns, schema=schema))
        rows.clear()

    def close(self) -> None:
        """Write the remaining rows, and finish the files."""
        for name in _TABLES:
            if self._rows[name]:
                self._flush(name)
            self._writers[name].close()

    def abandon(self) -> None:
        """Close the files as they are."""
        for writer in self._writers.values():
            with suppress(OSError):  # a full disk refuses what is left to write
                writer.close()


class _Weight:
    """The size of decoded rows. Of Parquet, millions of equal rows take a few bytes.

    Args:
        file_bytes: size of the files.
        most_bytes: of one session, or of one user.
    """

    def __init__(self, file_bytes: int, most_bytes: int) -> None:
        self._most = most_bytes
        self._left = EXPANSION * file_bytes + FREE_BYTES
        self._one = 0

    def begin(self) -> None:
        """The next session or user begins."""
        self._one = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row.

        Raises:
            ValueError: it is too much.
        """
        texts = (len(one) for one in row.values() if isinstance(one, str | bytes))
        weight = _ROW_BYTES + sum(texts)
        self._one += weight
        self._left -= weight
        if self._one > self._most:
            raise ValueError(
                f"it has more than {self._most >> 20} MB; journal.max_import_mb is the bound"
            )
        if self._left < 0:
            raise ValueError(f"the export has more than {EXPANSION} times as much as its files")


class ParquetReader:
    """Implements `remora.storage.export.transfer.ExportReader`.

    What it holds at once is bounded, whatever the files claim.

    Args:
        path: the directory.
        max_bytes: most of one session, or of one user without the sessions.

    Raises:
        InvalidExport: a file is missing or is not Parquet, a column is missing or has another
            type, or a newer remora wrote it.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._pa = _pyarrow()
        parquet = importlib.import_module("pyarrow.parquet")
        self._schemas = _schemas(self._pa)
        self._max_bytes = max_bytes
        self._file_bytes = 0
        self._files: dict[str, Any] = {}
        try:
            for name in _TABLES:
                with _locate_errors(name, 0):
                    there = path / f"{name}.parquet"
                    present = set(parquet.read_schema(there).names)
                    texts = [one for one in self._texts(name) if one in present]
                    self._files[name] = parquet.ParquetFile(there, read_dictionary=texts)
                    self._file_bytes += there.stat().st_size
                    missing = [
                        field.name
                        for field in self._schemas[name]
                        if field.name not in present | _ADDED.get(name, frozenset())
                    ]
                    if missing:
                        raise ValueError(f"it has no column {', '.join(missing)}")
            with _locate_errors("sessions", 0):
                described = (self._files["sessions"].schema_arrow.metadata or {}).get(_HEADER)
                if described is None:
                    raise ValueError("it was not written by remora")
                self.header = msgspec.json.decode(described, type=ExportHeader)
                if self.header.format > FORMAT:
                    raise ValueError(newer_format(self.header.format))
        except BaseException:
            self.close()
            raise

    def read(self) -> Iterator[Placed]:
        """Every session and user, from the beginning."""
        weight = _Weight(self._file_bytes, self._max_bytes)
        messages, state_items, memories = (
            _Groups(self._rows(name), name, weight) for name in ("messages", "facets", "memories")
        )
        for number, row in self._rows("sessions"):
            weight.begin()
            with _locate_errors("sessions", number):
                key = (_text(row["user"]), _text(row["session"]))
                summary = None if row["summary"] is None else _summary(row["summary"])
                summaries = tuple(_summary(one) for one in row["summaries"] or ())
                told = _whole(row["messages"])
                front, flushed = _whole(row["front"]), _whole(row["flushed"])
                rows = islice(messages.take(key), told + 1)
                said = tuple(_message(at, one) for at, one in rows)
                if len(said) != told:
                    here = f"more than {told}" if len(said) > told else str(len(said))
                    raise ValueError(f"messages.parquet has {here} messages here, not {told}")
                kept = tuple(_state_item(at, one) for at, one in state_items.take(key))
            yield number, SessionExport(*key, said, front, flushed, summary, summaries, kept)
        for number, row in self._rows("users"):
            weight.begin()
            with _locate_errors("users", number):
                user = _text(row["user"])
                items = tuple(_memory(at, one) for at, one in memories.take((user,)))
                kept = tuple(_state_item(at, one) for at, one in state_items.take((user, "")))
            yield number, UserExport(user, items, kept)
        for groups in (messages, state_items, memories):
            groups.finish()

    def _texts(self, name: str) -> list[str]:
        """The columns whose values repeat in the file once only: so they do in memory."""
        text = (self._pa.string(), self._pa.binary())
        return [field.name for field in self._schemas[name] if field.type in text]

    def _rows(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each row with its number, from 1."""
        number = 0
        present = set(self._files[name].schema_arrow.names)
        added = _ADDED.get(name, frozenset())
        schema = [
            one for one in self._schemas[name] if one.name in present or one.name not in added
        ]
        names = [field.name for field in schema]
        nested = name == "sessions"  # a row may have any number of summaries
        size = 1 if nested else _ROWS_AT_ONCE
        with _locate_errors(name, 0):
            batches = self._files[name].iter_batches(batch_size=size, columns=names)
        while True:
            with _locate_errors(name, number + 1):
                batch = next(batches, None)
                if batch is None:
                    return
                columns = [
                    batch.column(field.name).cast(self._pa.timestamp("us", tz="UTC")).cast("int64")
                    if field.name == "created_at"
                    else batch.column(field.name)
                    for field in schema
                ]
                found = self._pa.RecordBatch.from_arrays(columns, names=names)
            together = found.num_rows if self._widest(found) < _ROW_AT_ONCE_BYTES else 1
            for place in range(0, found.num_rows, together):
                with _locate_errors(name, number + 1):
                    rows = found.slice(place, together).to_pylist()
                for row in rows:
                    number += 1
                    yield number, row

    def _widest(self, batch: Any) -> int:
        """At most so many bytes has a row's longest text: each row may have the same one."""
        compute = importlib.import_module("pyarrow.compute")
        texts = (one.dictionary for one in batch.columns if hasattr(one, "dictionary"))
        longest = (compute.max(compute.binary_length(one)).as_py() or 0 for one in texts)
        return max(longest, default=0)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


@contextmanager
def _locate_errors(table: str, row: int) -> Iterator[None]:
    """Turn an error into `InvalidExport` that names the table and the row.

    Pyarrow's errors are builtins, or derived from them.
    """
    try:
        yield
    except InvalidExport:
        raise
    except (
        ValueError,
        TypeError,
        LookupError,
        MemoryError,  # a length that is damaged
        OSError,
        ArithmeticError,
        NotImplementedError,
        RecursionError,
        msgspec.MsgspecError,
    ) as e:
        place = f"{table}.parquet, row {row}" if row else f"{table}.parquet"
        raise InvalidExport(f"{place}: {str(e)[:200]}; nothing was written", line=row) from e


class _Groups:
    """The rows of a table by session or user; they are in the order of `sessions` and `users`."""

    def __init__(
        self, rows: Iterator[tuple[int, dict[str, Any]]], name: str, weight: _Weight
    ) -> None:
        self._rows = rows
        self._name = name
        self._weight = weight
        self._next = next(rows, None)

    def take(self, key: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The next rows, if they are the key's."""
        names = ("user", "session")[: len(key)]
        while self._next is not None and tuple(self._next[1][name] for name in names) == key:
            self._weight.add(self._next[1])
            taken = self._next
            self._next = next(self._rows, None)
            yield taken

    def finish(self) -> None:
        """Check that no row is left."""
        if self._next is not None:
            number, row = self._next
            with _locate_errors(self._name, number):
                raise ValueError(
                    f"{UserKey(row['user']).words} is not in the order of sessions.parquet and "
                    "users.parquet"
                )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is missing")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError("a number is missing")
    return value


def _summary(fields: dict[str, Any]) -> Summary:
    """A summary; fields that its export did not know yet are null."""
    return msgspec.convert(
        {name: value for name, value in fields.items() if value is not None}, Summary
    )


def _message(number: int, row: dict[str, Any]) -> MessageExport:
    with _locate_errors("messages", number):
        chat, metadata = (
            None if row[name] is None else msgspec.json.decode(row[name])
            for name in ("chat", "metadata")
        )
        chat, metadata = load_message(chat, metadata, row["packed"] or b"")
        plain = {
            "seq": row["seq"],
            "id": row["id"],
            "created_at": _EPOCH + row["created_at"] * _MICROSECOND,
            "tokens": row["tokens"],
            "importance": row["importance"],
            "pruned": row["pruned"],
        }
        return msgspec.structs.replace(
            msgspec.convert({**plain, "chat": {}}, MessageExport), chat=chat, metadata=metadata
        )


def _memory(number: int, row: dict[str, Any]) -> MemoryItem:
    with _locate_errors("memories", number):
        return msgspec.convert({**row, "created_us": row["created_at"]}, MemoryItem)


def _state_item(number: int, row: dict[str, Any]) -> StateItem:
    with _locate_errors("facets", number):
        if not isinstance(row["value"], bytes):
            raise TypeError("the value is missing")
        return StateItem(_text(row["kind"]), _text(row["name"]), row["value"])


def table_to_bytes(table: Any) -> bytes:
    """A `pyarrow.Table` as one stream of Arrow's format for processes."""
    import pyarrow as pa  # noqa: PLC0415

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def table_from_bytes(data: bytes) -> Any:
    """The inverse of `table_to_bytes`.

    Raises:
        ValueError: it is something else.
    """
    import pyarrow as pa  # noqa: PLC0415

    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except pa.ArrowException as e:
        raise ValueError(f"not an Arrow table: {e}") from e
