"""The files of one version of a LanceDB table, read from its manifest.

LanceDB has no API for the names of its files, which are needed to sync them and to detect a missing
one. So this module parses the part of a manifest that names files. A manifest is a protobuf message
after its length, at the position in the file's last 16 bytes. The field numbers are lance 13's
(``table.proto``).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator

import msgspec

_MAGIC = b"LANC"
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_LAST = 2**64 - 1  # a newer version has a smaller name, so it is the first in a listing

_FRAGMENTS, _VERSION, _INDICES, _TRANSACTION = 2, 3, 6, 12  # of a manifest
_ID, _FILES, _DELETIONS, _ROWS = 1, 2, 3, 4  # of a fragment
_PATH, _SIZE, _BASE = 1, 6, 7  # of a data file
_TYPE, _READ_VERSION, _NUMBER, _GONE = 1, 2, 3, 4  # of a deletion file
_UUID, _NAME, _INDEX_FILES = 1, 3, 10  # of an index
_INDEX_PATH, _INDEX_SIZE = 1, 2  # of a file of an index
_FIRST_OPERATION = 100  # of a transaction
REWRITE, RESERVE_FRAGMENTS = 104, 107
"""Operations of transactions: a compaction, and what it commits first."""
_DELETION_SUFFIX = {0: "arrow", 1: "bin"}


class Fragment(msgspec.Struct, frozen=True):
    """Rows with their own files: its number, and how many rows are visible and deleted."""

    number: int
    rows: int
    deleted: int


class Manifest(msgspec.Struct, frozen=True):
    """One version of a table.

    Attributes:
        version: its number.
        files: the paths of its files from the table's directory, and their sizes if known.
        indices: the name of each index by its directory; an index can be rebuilt from the rows.
        transaction: the file that describes the change, which no reader needs; empty if none.
        fragments: its fragments, in the order of their rows.
    """

    version: int
    files: dict[str, int | None]
    indices: dict[str, str]
    transaction: str
    fragments: tuple[Fragment, ...]


def manifest_name(version: int) -> str:
    """The name of a version's file."""
    return f"{_LAST - version:020d}.manifest"


def version_of(name: str) -> int | None:
    """The version in a manifest's file name; None if it is another name."""
    stem, _, suffix = name.partition(".")
    return (
        _LAST - int(stem) if suffix == "manifest" and stem.isdecimal() and len(stem) == 20 else None
    )


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ValueError: it is truncated, zeroed, or not as lance 13 writes it.
    """
    try:
        return _parse(data)
    except (struct.error, LookupError, TypeError, OverflowError, UnicodeDecodeError) as e:
        raise ValueError(f"no manifest: {type(e).__name__}: {e}") from e


def damaged_indices(manifest: Manifest, problems: Iterable[str]) -> tuple[str, ...] | None:
    """Names of the indices that files with a problem belong to; None if any belongs to none."""
    places = {path.rpartition("/")[0] for path in problems}
    return (
        tuple(sorted(manifest.indices[place] for place in places))
        if places <= manifest.indices.keys()
        else None
    )


def operation_of(data: bytes) -> int:
    """Return what a transaction's file says that it did; 0 if that is none that lance 13 writes.

    Raises:
        ValueError: it is truncated.
    """
    try:
        numbers = [number for number, _ in _fields(data)]
    except (struct.error, LookupError) as e:
        raise ValueError(f"no transaction: {type(e).__name__}: {e}") from e
    return max([number for number in numbers if number >= _FIRST_OPERATION], default=0)


def _parse(data: bytes) -> Manifest:
    if len(data) < _FOOTER.size:
        raise ValueError(f"no manifest: {len(data)} bytes")
    position, _, _, magic = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if magic != _MAGIC:
        raise ValueError("no manifest: it does not end as one")
    version = 0
    files: dict[str, int | None] = {}
    indices: dict[str, str] = {}
    transaction = ""
    fragments: list[Fragment] = []
    for number, value in _message(data, position):
        match number, value:
            case (_, bytes()) if number == _FRAGMENTS:
                fragments.append(_parse_fragment(value, files))
            case (_, int()) if number == _VERSION:
                version = value
            case (_, int()) if number == _INDICES:
                for _, index in _message(data, value):
                    _parse_index(_as_bytes(index), files, indices)
            case (_, bytes()) if number == _TRANSACTION:
                transaction = f"_transactions/{value.decode()}"
            case _:
                pass
    if not version:
        raise ValueError("no manifest: it has no version")
    return Manifest(version, files, indices, transaction, tuple(fragments))


def _parse_fragment(data: bytes, files: dict[str, int | None]) -> Fragment:
    found = list(_fields(data))
    first = dict(reversed(found))
    number, deleted = _as_int(first.get(_ID)), 0
    for field, value in found:
        if field == _FILES:
            described = dict(_fields(_as_bytes(value)))
            _require_local(described)
            files[f"data/{_as_bytes(described[_PATH]).decode()}"] = (
                _as_int(described.get(_SIZE)) or None
            )
        elif field == _DELETIONS:
            described = dict(_fields(_as_bytes(value)))
            _require_local(described)
            suffix = _DELETION_SUFFIX[_as_int(described.get(_TYPE))]
            read_version, unique = (
                _as_int(described.get(_READ_VERSION)),
                _as_int(described.get(_NUMBER)),
            )
            files[f"_deletions/{number}-{read_version}-{unique}.{suffix}"] = None
            deleted = _as_int(described.get(_GONE))
    return Fragment(number, _as_int(first.get(_ROWS)) - deleted, deleted)


def _parse_index(data: bytes, files: dict[str, int | None], indices: dict[str, str]) -> None:
    found = list(_fields(data))
    first = dict(reversed(found))
    place = f"_indices/{uuid.UUID(bytes=dict(_fields(_as_bytes(first[_UUID])))[1])}"  # type: ignore[arg-type]
    indices[place] = _as_bytes(first[_NAME]).decode()
    for number, value in found:
        if number == _INDEX_FILES:
            described = dict(_fields(_as_bytes(value)))
            files[f"{place}/{_as_bytes(described[_INDEX_PATH]).decode()}"] = _as_int(
                described.get(_INDEX_SIZE)
            )


def _require_local(described: dict[int, int | bytes]) -> None:
    if _BASE in described:
        raise ValueError("the table has files elsewhere, which remora never writes")


def _message(data: bytes, position: int) -> Iterator[tuple[int, int | bytes]]:
    (length,) = _LENGTH.unpack_from(data, position)
    begin = position + _LENGTH.size
    if begin + length > len(data):
        raise ValueError("no manifest: it is cut off")
    return _fields(data[begin : begin + length])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message, in their order."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            whole, at = _varint(data, at)
            yield number, whole
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in {1, 5}:
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"no manifest: a field of type {kind}")
        if at + size > len(data):
            raise ValueError("no manifest: it is cut off")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("no manifest: a number where a message should be")  # noqa: TRY004
    return value


def _as_int(value: int | bytes | None) -> int:
    if isinstance(value, bytes):
        raise ValueError("no manifest: a message where a number should be")  # noqa: TRY004
    return value or 0
