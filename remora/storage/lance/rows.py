"""Rows of long-term memory as Arrow columns, and back.

LanceDB does not detect a flipped bit. So each row has a column `check` with a digest of its values
and a digest of its vector. Every read compares them; a damaged row is reported and left out of the
answer.

A row's `window` is not stored, since its neighbours have the same words: where all rows of a user
are read it is made again (`storage/windows.py`). Older tables have it, and still older ones
have no `check`; both are rewritten.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from remora.ids import Digests
from remora.runtime.threads import run_in_thread
from remora.storage.ports import Finding, MemoryRow, RowOrder, Vector

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "id",
    "user_id",
    "session_id",
    "seq",
    "role",
    "speaker",
    "content",
    "turn",
    "memory_type",
    "importance",
    "created_at",
    "tokens",
    "agent_id",
)
"""The columns of a `MemoryRow`, in the order of its fields; older tables have `WINDOW` as well."""
SEARCHED = ("turn",)
"""Columns with a full-text index."""
WINDOW = "window"
CHECK = "check"
_FIELDS = tuple(name for name in MemoryRow.__struct_fields__ if name != WINDOW)
_PLACE_OF_WINDOW = MemoryRow.__struct_fields__.index(WINDOW)
_IMPORTANCE = MemoryRow.__struct_fields__.index("importance")
_AGED = ("created_at", "session_id", "seq")
_SORTED = ("user_key", *_AGED)
ORDERED = ("user_id", *_SORTED)
"""The columns that a rewrite is decided by."""

_encode = msgspec.msgpack.Encoder().encode
_float = struct.Struct("<f")
_halves = struct.Struct("<II")
_whole = struct.Struct("<q")


class Read(msgspec.Struct, frozen=True):
    """Rows that were read, and their positions in the table.

    `foreign` and `damaged` are the ids of rows that were left out.
    """

    rows: list[MemoryRow]
    places: list[int]
    foreign: list[str]
    damaged: list[str]


def _content_digest(row: MemoryRow, *, windowed: bool = False) -> int:
    """A digest of a row's values, in the precision in which they are stored."""
    values = list(msgspec.structs.astuple(row))
    values[_IMPORTANCE] = _float.pack(row.importance)
    if not windowed:
        del values[_PLACE_OF_WINDOW]
    return zlib.crc32(_encode(values))


def _check(row: MemoryRow, vector: bytes, *, windowed: bool = False) -> int:
    """The value of `check`: the digest of the values above that of the vector (0 for none)."""
    digest = _content_digest(row, windowed=windowed)
    (check,) = _whole.unpack(_halves.pack(zlib.crc32(vector) if vector else 0, digest))
    return int(check)


class RowFormat:
    """The columns of one store.

    Args:
        dimension: of the vectors; None for rows without vectors.
        digests: what `user_key` is made with.
    """

    def __init__(self, dimension: int | None, digests: Digests) -> None:
        self._pa = pa = importlib.import_module("pyarrow")
        self.dimension = dimension
        self.digests = digests
        text = pa.string()
        types = {
            "id": text,
            "user_key": text,
            "user_id": text,
            "session_id": text,
            "seq": pa.int64(),
            "role": text,
            "speaker": text,
            "content": text,
            "turn": text,
            "memory_type": text,
            "importance": pa.float32(),
            "created_at": pa.timestamp("us", tz="UTC"),
            "tokens": pa.int32(),
            "agent_id": text,
        }
        if dimension is not None:
            types["vector"] = pa.list_(pa.float32(), dimension)
        check = pa.field(CHECK, pa.int64(), nullable=False)
        plain = pa.schema([pa.field(name, type_, nullable=False) for name, type_ in types.items()])
        window = pa.field(WINDOW, text, nullable=False)
        windowed = plain.insert(plain.get_field_index("memory_type"), window)
        self.schema = plain.append(check)
        self.older_schemas = (windowed.append(check), windowed)
        """Of tables that are to be rewritten."""

    @property
    def embedded(self) -> bool:
        """Rows have vectors."""
        return self.dimension is not None

    def known(self, found: pa.Table) -> Any:
        """The schema of these that a table has; None if it has another."""
        for schema in (self.schema, *self.older_schemas):
            if found.names == schema.names and found.types == schema.types:
                return schema
        return None

    def table(
        self, pairs: Iterable[tuple[MemoryRow, Vector | None]], schema: pa.Schema | None = None
    ) -> Any:
        """Rows and their vectors as a `pyarrow.Table`.

        Args:
            pairs: each row with its vector.
            schema: one that `known` returned; that of new tables by default.
        """
        import numpy as np  # noqa: PLC0415

        pa = self._pa
        schema = self.schema if schema is None else schema
        pairs = list(pairs)
        plain = [row for row, _ in pairs]
        columns: dict[str, Any] = {
            name: [getattr(row, field) for row in plain]
            for name, field in zip(COLUMNS, _FIELDS, strict=True)
        }
        windowed = WINDOW in schema.names
        if windowed:
            columns[WINDOW] = [row.window for row in plain]
        keys = {user: self.digests.user(user) for user in {row.user for row in plain}}
        columns["user_key"] = [keys[row.user] for row in plain]
        vectors = [b""] * len(pairs)
        if self.embedded:
            matrix = np.array([vector for _, vector in pairs], np.float32).reshape(
                len(pairs), self.dimension or 0
            )
            vectors = [one.tobytes() for one in matrix]
            columns["vector"] = pa.FixedSizeListArray.from_arrays(
                pa.array(matrix.reshape(-1)), self.dimension
            )
        if CHECK in schema.names:
            columns[CHECK] = [
                _check(row, vector, windowed=windowed)
                for row, vector in zip(plain, vectors, strict=True)
            ]
        return pa.table(columns, schema=schema)

    def read(self, user: str | None, found: pa.Table) -> Read:
        """The rows of a table.

        Args:
            user: the expected owner; None for any.
            found: a table with `COLUMNS`, and perhaps `window`, `check` and `vector`.
        """
        records = self._records(found)
        windowed = WINDOW in found.column_names
        checks = found.column(CHECK).to_pylist() if CHECK in found.column_names else None
        vectors = (
            self._matrix(found) if checks is not None and "vector" in found.column_names else None
        )
        read = Read([], [], [], [])
        for place, record in enumerate(records):
            row = MemoryRow(*record)
            if checks is not None:
                of_vector, says = _halves.unpack(_whole.pack(checks[place]))
                if says != _content_digest(row, windowed=windowed) or (
                    vectors is not None and of_vector != zlib.crc32(vectors[place].tobytes())
                ):
                    read.damaged.append(row.id)
                    continue
            if user is not None and row.user != user:
                read.foreign.append(row.id)
                continue
            read.rows.append(row)
            read.places.append(place)
        return read

    def read_with_vectors(self, user: str, found: pa.Table) -> tuple[Read, Vector]:
        """The user's rows, oldest first, and their vectors, shape (rows, dimension)."""
        read = self.read(user, found)
        order = sorted(range(len(read.rows)), key=lambda n: _age(read.rows[n]))
        matrix = self._matrix(found)[[read.places[n] for n in order]]
        return msgspec.structs.replace(
            read, rows=[read.rows[n] for n in order], places=[read.places[n] for n in order]
        ), matrix

    def read_sorted(self, user: str, found: pa.Table, by: RowOrder = "created") -> Read:
        """The user's rows in their order."""
        read = self.read(user, found)
        rows = sorted(read.rows, key=_age)
        if by == "importance":
            rows.sort(key=lambda row: -row.importance)
        return msgspec.structs.replace(read, rows=rows)

    @staticmethod
    def order_of(by: RowOrder) -> tuple[str, ...]:
        """The columns that rows are sorted by."""
        return _AGED if by == "created" else ("importance", *_AGED)

    def first_places(self, found: pa.Table, limit: int, by: RowOrder) -> dict[str, int]:
        """Ids and row ids of the rows that come first."""
        keys = [(name, "ascending") for name in _AGED]
        if by == "importance":
            keys.insert(0, ("importance", "descending"))
        first = found.sort_by(keys).slice(0, limit)
        ids, places = (first.column(name).to_pylist() for name in ("id", "_rowid"))
        return dict(zip(ids, places, strict=True))

    def read_batches(self, batches: Sequence[Any]) -> tuple[Read, Vector | None]:
        """The rows of record batches with all columns, of any users, and their vectors."""
        found = self._pa.Table.from_batches(batches)
        read = self.read(None, found)
        return read, self._matrix(found)[read.places] if self.embedded else None

    def take(self, found: pa.Table, places: Sequence[int]) -> Any:
        """Some of the rows, by their positions."""
        return found.take(self._pa.array(places, self._pa.int64()))

    def _matrix(self, found: pa.Table) -> Any:
        flat = found.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(found), self.dimension)

    def _records(self, found: pa.Table) -> Iterator[tuple[Any, ...]]:
        """The values of a `MemoryRow`'s fields, a tuple for each row."""
        columns = []
        for name in COLUMNS:
            column = found.column(name)
            if name == "created_at":
                # A zoned timestamp needs the machine's time zone files, read on the event loop.
                column = column.cast(self._pa.int64())
            columns.append(column.to_pylist())
        windows = [""] * len(found)
        if WINDOW in found.column_names:
            windows = found.column(WINDOW).to_pylist()
        columns.insert(_PLACE_OF_WINDOW, windows)
        return zip(*columns, strict=True)

    # -- whole tables ------------------------------------------------------------------------------

    async def verify_rows(
        self, batches: AsyncIterable[pa.RecordBatch], where: str, *, home: Callable[[str], bool]
    ) -> list[Finding]:
        """Return what is wrong with a table's rows.

        Args:
            batches: an async iterator of record batches, with the columns `id`, `user_key` and
                `user_id`, or with all.
            where: the table's name.
            home: whether the rows of a user with this key belong in this table.
        """
        found: list[Finding] = []
        seen: Counter[str] = Counter()
        async for batch in batches:
            found += await run_in_thread(self._verify_batch, batch, where, home, seen)
        return found + [
            Finding("doubled", f"{where}, row {id_}", f"it exists {count} times", repairable=True)
            for id_, count in seen.items()
            if count > 1
        ]

    def _verify_batch(
        self, batch: pa.RecordBatch, where: str, home: Callable[[str], bool], seen: Counter[str]
    ) -> list[Finding]:
        found = self._pa.Table.from_batches([batch])
        ids, keys, users = (
            found.column(name).to_pylist() for name in ("id", "user_key", "user_id")
        )
        seen.update(ids)
        findings = [
            Finding(
                "foreign",
                f"{where}, row {id_}",
                "it is under another user's key, or in another user's table",
                repairable=True,
            )
            for id_, key, user in zip(ids, keys, users, strict=True)
            if self.digests.user(user) != key or not home(key)
        ]
        damaged = self.read(None, found).damaged if CHECK in found.column_names else []
        return findings + [
            Finding("table", f"{where}, row {id_}", "it is not as it was written", repairable=True)
            for id_ in damaged
        ]

    def find_damaged_row_ids(self, batch: pa.RecordBatch) -> list[int]:
        """Row ids of the damaged rows of a record batch with all columns and ``_rowid``."""
        found = self._pa.Table.from_batches([batch])
        sound = set(self.read(None, found).places)
        places: list[int] = found.column("_rowid").to_pylist()
        return [place for number, place in enumerate(places) if number not in sound]

    def order(
        self, found: pa.Table, drop: Callable[[dict[str, list[str]]], list[bool]] | None
    ) -> list[int]:
        """Row ids in the order of a rewrite: by user, oldest first.

        Args:
            found: `ORDERED` and ``_rowid`` of all rows.
            drop: marks the rows to leave out, from the columns `user_key`, `user_id` and
                `session_id`; None to keep all.
        """
        pa = self._pa
        if drop is not None and len(found):
            names = ("user_key", "user_id", "session_id")
            gone = drop({name: found.column(name).to_pylist() for name in names})
            found = found.filter(pa.array([not one for one in gone], pa.bool_()))
        found = found.sort_by([(name, "ascending") for name in _SORTED])
        row_ids: list[int] = found.column("_rowid").to_pylist()
        return row_ids

    def rewritten(self, found: pa.Table, row_ids: Sequence[int]) -> Any:
        """Rows as a rewrite stores them, in this order, each with its check.

        Args:
            found: all columns of the rows, and ``_rowid``.
            row_ids: of the same rows.
        """
        place_of = {row_id: place for place, row_id in enumerate(found["_rowid"].to_pylist())}
        found = self.take(found, [place_of[row_id] for row_id in row_ids])
        if WINDOW in found.column_names:
            checks = self._pa.array(self._new_checks(found), self._pa.int64())
            if CHECK in found.column_names:
                found = found.drop_columns([CHECK])
            found = found.append_column(CHECK, checks)
        return found.select(self.schema.names).cast(self.schema)

    def _new_checks(self, found: pa.Table) -> list[int]:
        """The checks of an older table's rows; those of damaged ones show that they are."""
        read = self.read(None, found)
        vectors = (
            [one.tobytes() for one in self._matrix(found)] if self.embedded else [b""] * len(found)
        )
        checks = [~_check(MemoryRow(*one), b"") for one in self._records(found)]
        for row, place in zip(read.rows, read.places, strict=True):
            checks[place] = _check(row, vectors[place])
        return checks


class OwnerFilter:
    """Marks the rows of some users and sessions, and counts each one's.

    Args:
        owners: keys of users and of sessions; an empty session's key for all that is the user's.
        digests: what the keys were made with.
    """

    def __init__(self, owners: Sequence[tuple[str, str]], digests: Digests) -> None:
        self._digests = digests
        self.counts = [0] * len(owners)
        self._by_user: dict[str, list[tuple[str, int]]] = {}
        for place, (user, session) in enumerate(owners):
            self._by_user.setdefault(user, []).append((session, place))

    def __call__(self, columns: dict[str, list[str]]) -> list[bool]:
        """Return whether each row is one of theirs, from `user_key`, `user_id` and `session_id`."""
        keys, users, sessions = columns["user_key"], columns["user_id"], columns["session_id"]
        return [
            key in self._by_user and self._mark(key, user, session)
            for key, user, session in zip(keys, users, sessions, strict=True)
        ]

    def _mark(self, key: str, user: str, session: str) -> bool:
        for wanted, place in self._by_user[key]:
            if not wanted or self._digests.session(user, session) == wanted:
                self.counts[place] += 1
                return True
        return False


def _age(row: MemoryRow) -> tuple[int, str, int]:
    return row.created_us, row.session, row.seq
