"""Foreign files: JSON, JSON lines, zip archives and SQLite, read record by record.

Of an array and of JSON lines, one record is in memory at a time; a file that is one object is read
whole. The records are found by their brackets, so that a record that is no JSON is one broken
record, and not a broken file. Everything here blocks.
"""

from __future__ import annotations

import codecs
import json
import mmap
import re
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.request import pathname2url

import msgspec

from remora.errors import InvalidInput

MAX_UNPACKED = 8 << 30
"""Most bytes of JSON in a zip archive."""
_MAX_MEMBERS = 100_000
_MAX_VALUE = 256 << 20  # bytes of a value in SQLite
_CHUNK = 1 << 20
_ZIP, _SQLITE = b"PK\x03\x04", b"SQLite format 3\x00"
_LINES = frozenset({".jsonl", ".ndjson"})
# matches at the end as well, where a search would try every byte before it
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+([\[\]{}"]|\Z)', re.DOTALL)
_BETWEEN = re.compile(rb"[\s,]*")
_T = TypeVar("_T")


class Records(msgspec.Struct, frozen=True):
    """The records of a file.

    Attributes:
        each: the place of a record, in words, and the record.
        total: how many there are; None if that is not known.
    """

    each: Iterator[tuple[str, Any]]
    total: int | None = None


def decode(raw: bytes, type_: type[_T]) -> _T:
    """A record of the file, as `type_`.

    Half of an emoji, which exports have where a text was cut, becomes a question mark.

    Raises:
        InvalidInput: it is something else.
    """
    try:
        return msgspec.json.decode(raw, type=type_)
    except msgspec.ValidationError as e:
        raise InvalidInput(f"it has another shape: {e}") from e
    except UnicodeDecodeError as e:
        raise InvalidInput(f"it is not UTF-8: {e.reason}") from e
    except RecursionError as e:
        raise InvalidInput("it nests too deeply") from e
    except msgspec.DecodeError as e:
        mended = _mend(raw)
        if mended is None:
            raise InvalidInput(f"it is not JSON: {e}") from e
        return decode(mended, type_)


def _mend(raw: bytes) -> bytes | None:
    """The same JSON without lone surrogates; None if that is not what is wrong."""
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return None
    try:
        mended = json.dumps(json.loads(raw), ensure_ascii=False).encode(errors="replace")
    except (ValueError, RecursionError):
        return None
    return None if mended == raw else mended


@contextmanager
def open_json(
    path: Path, members: str = "", take_object: Callable[[bytes], Records | None] | None = None
) -> Iterator[Records]:
    """The records of a file of JSON: of an array, of JSON lines, or a single object.

    Args:
        path: of the file.
        members: pattern of the names of files in a zip archive that are read; empty for none.
        take_object: the records in a file that is one object; None if it is a record itself.

    Raises:
        InvalidInput: it cannot be read, or is something else.
    """
    with ExitStack() as opened:
        file = opened.enter_context(_open(path))
        head = file.read(len(_SQLITE))
        file.seek(0)
        if head.startswith(_ZIP):
            archive = opened.enter_context(_open_zip(path, file))
            files = [
                opened.enter_context(_unpack(archive, one))
                for one in _members(archive, members, path)
            ]
        elif head == _SQLITE:
            raise InvalidInput(f"{path} is a SQLite file, not JSON: is --from right?")
        else:
            files = [opened.enter_context(_copy(path, file))]
        found = [_records(path, one, take_object) for one in files]
        counts = [one.total for one in found]
        total = None if None in counts else sum(one for one in counts if one is not None)
        yield Records((one for records in found for one in records.each), total)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    if path.exists() and not path.is_file():  # to read a pipe could take for ever
        raise InvalidInput(f"{path} is not a regular file")
    try:
        file = path.open("rb")
    except (OSError, ValueError) as e:
        raise InvalidInput(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from e
    with file:
        yield file


@contextmanager
def _open_zip(path: Path, file: IO[bytes]) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as e:
        raise InvalidInput(f"{path} is a damaged zip archive: {e}") from e
    with archive:
        yield archive


def open_archive(path: Path) -> zipfile.ZipFile | None:
    """The zip archive at `path`; None for any other file.

    Raises:
        InvalidInput: it cannot be read.
    """
    with _open(path) as file:
        if file.read(len(_ZIP)) != _ZIP:
            return None
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as e:
        raise InvalidInput(f"{path} is a damaged zip archive: {e}") from e


def _members(archive: zipfile.ZipFile, pattern: str, path: Path) -> Sequence[zipfile.ZipInfo]:
    infos = archive.infolist()
    found = [one for one in infos[:_MAX_MEMBERS] if pattern and re.fullmatch(pattern, one.filename)]
    if not found:
        wanted = "no conversations.json" if pattern else "a zip archive: unpack it, and name a file"
        raise InvalidInput(f"{path} {'holds' if pattern else 'is'} {wanted}")
    if sum(one.file_size for one in found) > MAX_UNPACKED:
        raise InvalidInput(f"{path} unpacks to more than {MAX_UNPACKED >> 30} GB")
    return sorted(found, key=lambda one: one.filename)


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, most: int) -> bytes | None:
    """The content of a file in an archive; None if it is larger than `most` or damaged."""
    if info.file_size > most:
        return None
    try:
        with archive.open(info) as member:
            data = member.read(most + 1)
    except (zipfile.BadZipFile, OSError, RuntimeError, ValueError, NotImplementedError, EOFError):
        return None
    return data if len(data) <= most else None


@contextmanager
def _unpack(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    """The content as a file of its own, which has no name and so is gone when it is closed."""
    with tempfile.TemporaryFile(prefix="remora-import-") as file:
        left = min(info.file_size, MAX_UNPACKED)
        try:
            with archive.open(info) as member:
                while chunk := member.read(_CHUNK):
                    left -= len(chunk)
                    if left < 0:
                        raise InvalidInput(f"{info.filename!r} is larger than the archive says")
                    file.write(chunk)
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as e:
            raise InvalidInput(f"the archive is damaged or encrypted: {e}") from e
        except OSError as e:
            raise InvalidInput(f"the archive cannot be unpacked: {e.strerror or e}") from e
        file.flush()
        yield file


@contextmanager
def _copy(path: Path, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """A copy of a file without a name: one that is cut while it is mapped ends the process."""
    with tempfile.TemporaryFile(prefix="remora-import-") as copy:
        try:
            shutil.copyfileobj(file, copy, _CHUNK)
            copy.flush()
        except OSError as e:
            raise InvalidInput(f"{path} cannot be copied to read it: {e.strerror or e}") from e
        yield copy


def _records(
    path: Path, file: IO[bytes], take_object: Callable[[bytes], Records | None] | None
) -> Records:
    file.seek(0, 2)
    if not file.tell():
        raise InvalidInput(f"{path} is empty")
    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise InvalidInput(f"{path} is UTF-16: convert it to UTF-8")
    start = 3 if data[:3] == codecs.BOM_UTF8 else 0
    begin = re.compile(rb"\s*+").match(data, start)
    assert begin is not None
    first = data[begin.end() : begin.end() + 1]
    if path.suffix in _LINES or (first == b"{" and _is_lines(data, begin.end())):
        return Records(_lines(data, start))
    if first == b"[":
        spans = _Array(data, begin.end())
        return Records(spans.elements())
    if first == b'"':  # an object that was encoded twice, as some servers answer it
        return _unquote(path, data[start:], take_object)
    if first == b"{":
        raw = data[begin.end() :]
        taken = take_object(raw) if take_object is not None else None
        return taken or Records(iter([("the object", raw)]), 1)
    raise InvalidInput(f"{path} is not JSON: it begins with {data[start : start + 20]!r}")


def _unquote(
    path: Path, data: bytes, take_object: Callable[[bytes], Records | None] | None
) -> Records:
    raw = decode(data, str).encode()
    if raw.lstrip()[:1] != b"{":
        raise InvalidInput(f"{path} is a text, and no JSON object is in it")
    taken = take_object(raw) if take_object is not None else None
    return taken or Records(iter([("the object", raw)]), 1)


def _is_lines(data: mmap.mmap, start: int) -> bool:
    """Return whether the first line is an object, and something else follows it."""
    end = data.find(b"\n", start)
    if end < 0 or not data[end : end + _CHUNK].strip():
        return False
    try:
        msgspec.json.decode(data[start:end], type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True


def _lines(data: mmap.mmap, start: int) -> Iterator[tuple[str, bytes]]:
    data.seek(start)
    number = 0
    while line := data.readline():
        number += 1
        if line.strip():
            yield f"line {number}", line


class _Array:
    """The objects of an array in a file."""

    def __init__(self, data: mmap.mmap, start: int) -> None:
        self._data = data
        self._start = start

    def elements(self) -> Iterator[tuple[str, bytes]]:
        """The place and the bytes of each.

        Raises:
            InvalidInput: something else than an object is among them, or the end is missing.
        """
        data, depth, begun, ended, number = self._data, 0, 0, self._start + 1, 0
        for found in _BRACKET.finditer(data, self._start):
            at, bracket = found.start(1), found[1] or b'"'
            if bracket in b"[{":
                depth += 1
                if depth == 2:
                    begun = at
                    self._check_between(ended, at, number)
            elif bracket in b"]}":
                depth -= 1
                if depth == 1:
                    number += 1
                    ended = at + 1
                    yield f"record {number}", data[begun:ended]
                elif not depth:
                    self._check_between(ended, at, number)
                    if data[at + 1 : at + 1 + _CHUNK].strip():
                        raise InvalidInput(f"something follows the array, at byte {at + 1}")
                    return
            else:
                break  # the end of the file, or a text without one
        raise InvalidInput(
            f"the JSON ends within record {number + 1}, which begins at byte {begun}: is the file "
            "complete?"
        )

    def _check_between(self, start: int, end: int, number: int) -> None:
        between = _BETWEEN.fullmatch(self._data, start, end)
        if between is None:
            raise InvalidInput(
                f"after record {number}, at byte {start}, is something else than an object"
            )


# -- SQLite ----------------------------------------------------------------------------------------


@contextmanager
def open_sqlite(path: Path, tables: Sequence[str]) -> Iterator[sqlite3.Connection]:
    """A SQLite file that another program may have open, to read.

    Raises:
        InvalidInput: it is none, or lacks one of `tables`.
    """
    with _open(path) as file:
        if file.read(len(_SQLITE)) != _SQLITE:
            raise InvalidInput(f"{path} is not a SQLite file: is --from right?")
    database = sqlite3.connect(f"file:{pathname2url(str(path.absolute()))}?mode=ro", uri=True)
    try:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
        database.text_factory = lambda raw: raw.decode(errors="replace")
        database.execute("PRAGMA trusted_schema = OFF")
        names = {
            one
            for (one,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if missing := [one for one in tables if one not in names]:
            raise InvalidInput(f"{path} has no table {', '.join(missing)}: is --from right?")
        database.execute("BEGIN")
        yield database
    except sqlite3.Error as e:
        raise InvalidInput(f"{path} cannot be read: {e}") from e
    finally:
        database.close()
