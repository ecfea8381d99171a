"""An export as JSON lines (docs/reference/export-format.md). Everything here blocks.

The lines are a header, then each session (its own line, messages, state items), then each user (its
own line, memories, state items), then an end line. The end line has the number of the lines before
it, so a truncated file is detected.

Chat dicts and metadata are JSON if JSON reproduces them byte for byte; otherwise (bytes, times,
numbers as keys) they are msgpack in base64.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypeAlias

import msgspec

from remora.errors import InvalidExport, InvalidInput
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
from remora.storage.files import open_private
from remora.storage.records import MemoryItem, StateItem, Summary

_TEXT = 200  # of an error, at most


class _Header(msgspec.Struct, frozen=True, tag="remora-export"):
    format: int
    remora: str
    created_at: datetime
    embedder: str
    counter: str


class _Session(msgspec.Struct, frozen=True, tag="session"):
    user: str
    session: str
    front: int
    flushed: int
    summary: Summary | None = None
    summaries: tuple[Summary, ...] = ()


class _Message(msgspec.Struct, frozen=True, tag="message", omit_defaults=True):
    user: str
    session: str
    seq: int
    id: str
    created_at: datetime
    tokens: int
    importance: float
    chat: Any = None
    metadata: Any = None
    packed: bytes = b""
    pruned: bool = False


class _User(msgspec.Struct, frozen=True, tag="user"):
    user: str


class _Memory(msgspec.Struct, frozen=True, tag="memory"):
    user: str
    memory: MemoryItem


class _StateItem(msgspec.Struct, frozen=True, tag="facet"):
    user: str
    session: str
    kind: str
    name: str
    value: bytes


class _End(msgspec.Struct, frozen=True, tag="end"):
    lines: int


_Line: TypeAlias = _Header | _Session | _Message | _User | _Memory | _StateItem | _End
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode
_decode_any = msgspec.json.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[dict[str, Any], dict[str, Any] | None]).decode


def dump_message(
    chat: dict[str, Any], metadata: dict[str, Any] | None
) -> tuple[bytes, bytes | None, bytes]:
    """A message's dicts, each as JSON, and nothing packed.

    If JSON does not reproduce them: empty JSON, and both packed by msgpack.
    """
    packed = _pack((chat, metadata))
    try:
        one, other = _encode(chat), None if metadata is None else _encode(metadata)
        if _pack((_decode_any(one), None if other is None else _decode_any(other))) == packed:
            return one, other, b""
    except (msgspec.MsgspecError, TypeError, ValueError):
        pass  # JSON has no such value
    return b"", None, packed


def load_message(
    chat: object, metadata: object, packed: bytes
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The inverse of `dump_message`; takes the decoded JSON.

    Raises:
        ValueError: they are not dicts.
    """
    if packed:
        return _unpack(packed)
    if not isinstance(chat, dict) or not (metadata is None or isinstance(metadata, dict)):
        raise ValueError("chat and metadata must be objects")
    return chat, metadata


class JsonlWriter:
    """Implements `remora.storage.export.transfer.ExportWriter`."""

    def __init__(self, path: Path, header: ExportHeader) -> None:
        self._file = os.fdopen(open_private(path, os.O_WRONLY), "wb")
        self._lines = 0
        self._put([_Header(**{name: getattr(header, name) for name in header.__struct_fields__})])

    def write(self, exported: Sequence[Exported]) -> None:
        """Add sessions or users."""
        for one in exported:
            self._put(_session_lines(one) if isinstance(one, SessionExport) else _user_lines(one))

    def _put(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self._file.write(_encode(line) + b"\n")
            self._lines += 1

    def close(self) -> None:
        """Write the end line."""
        self._put([_End(self._lines)])
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        with suppress(OSError):  # a full disk refuses what is left to write
            self._file.close()


def _session_lines(one: SessionExport) -> Iterator[Any]:
    yield _Session(one.user, one.session, one.front, one.flushed, one.summary, one.summaries)
    for message in one.messages:
        chat, metadata, packed = dump_message(message.chat, message.metadata)
        yield _Message(
            one.user,
            one.session,
            message.seq,
            message.id,
            message.created_at,
            message.tokens,
            message.importance,
            msgspec.Raw(chat) if chat else None,
            msgspec.Raw(metadata) if metadata else None,
            packed,
            message.pruned,
        )
    for item in one.state_items:
        yield _StateItem(one.user, one.session, item.kind, item.name, item.value)


def _user_lines(one: UserExport) -> Iterator[Any]:
    yield _User(one.user)
    for memory in one.memories:
        yield _Memory(one.user, memory)
    for item in one.state_items:
        yield _StateItem(one.user, "", item.kind, item.name, item.value)


class JsonlReader:
    """Implements `remora.storage.export.transfer.ExportReader`.

    Raises:
        InvalidExport: the first line is no header, or a newer remora wrote it.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists() and not path.is_file():  # to read a pipe could take for ever
            raise InvalidInput(f"{path} is not a regular file: import one that remora exported")
        self._file: IO[bytes] = path.open("rb")
        try:
            line = self._line(1, self._file.readline())
            if not isinstance(line, _Header):
                raise self._error(1, "this is not a header; is the file a remora export?")
            if line.format > FORMAT:
                raise self._error(
                    1,
                    newer_format(line.format),
                )
        except BaseException:
            self._file.close()
            raise
        self.header = ExportHeader(
            line.format, line.remora, line.created_at, line.embedder, line.counter
        )

    def read(self) -> Iterator[Placed]:
        """Every session and user, from the beginning."""
        self._file.seek(0)
        number, begun, group, ended = 0, 0, _Group(), False
        for number, raw in enumerate(self._file, start=1):
            line = self._line(number, raw)
            if ended:
                raise self._error(number, "there is a line after the end line")
            try:
                match line:
                    case _Header() if number == 1:
                        pass
                    case _Header():
                        raise ValueError("a second header")
                    case _Session() | _User():
                        if group.head is not None:
                            yield begun, group.whole()
                        begun, group = number, _Group(line)
                    case _End(lines=lines):
                        if lines != number - 1:
                            raise ValueError(
                                f"{number - 1} lines come before the end line, which says {lines}"
                            )
                        ended = True
                    case _:
                        group.take(line)
            except (ValueError, msgspec.MsgspecError) as e:
                raise self._error(number, str(e)) from e
        if not ended:
            raise self._error(number + 1, "the end line is missing: the file was cut short")
        if group.head is not None:
            yield begun, group.whole()

    def _line(self, number: int, raw: bytes) -> _Line:
        try:
            line: _Line = _decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise self._error(number, str(e) if raw.strip() else "an empty line") from e
        return line

    def _error(self, number: int, problem: str) -> InvalidExport:
        return InvalidExport(
            f"{self._path.name}, line {number}: {problem[:_TEXT]}; nothing was written", line=number
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Group:
    """The lines of one session or user."""

    def __init__(self, head: _Session | _User | None = None) -> None:
        self.head = head
        self.messages: list[MessageExport] = []
        self.memories: list[MemoryItem] = []
        self.state_items: list[StateItem] = []

    def take(self, line: Any) -> None:
        head = self.head
        session = head.session if isinstance(head, _Session) else ""
        if head is None or head.user != line.user or getattr(line, "session", "") != session:
            raise ValueError("this belongs to another session or user than the lines before it")
        match line:
            case _Message() if session:
                chat, metadata = load_message(line.chat, line.metadata, line.packed)
                self.messages.append(
                    MessageExport(
                        line.seq,
                        line.id,
                        line.created_at,
                        line.tokens,
                        line.importance,
                        chat,
                        metadata,
                        line.pruned,
                    )
                )
            case _Memory() if not session:
                self.memories.append(line.memory)
            case _StateItem():
                self.state_items.append(StateItem(line.kind, line.name, line.value))
            case _:
                raise ValueError("a line of this type cannot come here")

    def whole(self) -> Exported:
        head = self.head
        if isinstance(head, _Session):
            return SessionExport(
                head.user,
                head.session,
                tuple(self.messages),
                head.front,
                head.flushed,
                head.summary,
                head.summaries,
                tuple(self.state_items),
            )
        assert head is not None
        return UserExport(head.user, tuple(self.memories), tuple(self.state_items))
