"""Calls between processes of what is no actor's: the ports behind the handles, and runtime verbs.

A call has a name, ``port.method`` (``archive.history``) or ``runtime.verb`` (``runtime.settle``).
`CALLS` has them all: argument structs and types of results come from the annotations of the ports
(`remora.services.parts`, `remora.api.operator`), so a port that changes changes its calls.

In a worker::

    data = encode_arguments("archive.history", key, include_archived=True, at=None)
    ...                                     # sent as `wire.Call`, answered by `wire.Returned`
    messages = await decode_result("archive.history", returned)

In the owner::

    data = await perform("archive.history", data, parts=parts, verbs=runtime, progress=tell)

`perform` decodes the arguments, calls the method and encodes what it returns; exceptions of the
method pass. Callables do not cross: an argument ``progress`` is left out of `encode_arguments`, and
the owner gives its own to verbs that take one (`CallType.has_progress`).

`CallType.repeat` says whether a call may be sent again to another owner, after the one that it was
sent to was lost: it only reads, or doing it twice is doing it once.

Calls are added between releases, and so are arguments with defaults, at the end; what changes a
call that there is changes `WIRE`. ``tests/golden/calls-N.json`` has those of each version.
"""

from __future__ import annotations

import inspect
import struct
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from remora.api.operator import Operator
from remora.cluster.router import Repeat
from remora.cluster.wire import UnreadableCall
from remora.ids import SessionKey, UserKey
from remora.maintenance.backup import BackupReport
from remora.runtime.concurrency import Progress
from remora.runtime.jobs import Job
from remora.runtime.threads import run_in_thread
from remora.services.parts import (
    Appends,
    Archive,
    Contexts,
    Parts,
    Recalls,
    Transfers,
    Turns,
    Work,
    long_term_is_off,
)
from remora.storage.export.arrow import table_from_bytes, table_to_bytes
from remora.storage.export.transfer import MessageExport, SessionExport
from remora.storage.records import Spec

_PORTS: Mapping[str, type] = {
    "appends": Appends,
    "archive": Archive,
    "contexts": Contexts,
    "recalls": Recalls,
    "transfers": Transfers,
    "turns": Turns,
    "work": Work,
    "runtime": Operator,
}


_NAMES = {"BackupReport": BackupReport}  # of annotations; `remora.api` does without the module
_LOCAL = frozenset({"appends.begin", "appends.replace", "turns.begin_call", "turns.watch"})
"""What takes a function of the caller's, and is done where the caller is."""

_ONCE = frozenset(
    {
        "appends.append",
        "archive.fork",
        "recalls.prune",
        "transfers.import_session",
        "work.delete",
        "runtime.retry_dead_letters",
        "runtime.drop_dead_letters",
        "runtime.backup",
        "runtime.export",
        "runtime.import_",
    }
)
"""What is not repeated: a second time would do more, or fail because of the first."""

_WRITES = frozenset({"work.forget"})


# -- what msgspec does not decode by itself --------------------------------------------------------


class _Conversion(msgspec.Struct, frozen=True):
    """How values of a type cross.

    Attributes:
        wire: the type on the wire.
        pack: gives a value of it.
        unpack: the inverse.
        pack_slowly: the same as `pack` of what may be large: other tasks run in between.
        unpack_slowly: the inverse.
    """

    wire: Any
    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    pack_slowly: Callable[[Any], Awaitable[Any]] | None = None
    unpack_slowly: Callable[[Any], Awaitable[Any]] | None = None


class _WireJob(msgspec.Struct, frozen=True, array_like=True):
    """A `Job`, whose key and payload have types here."""

    id: str
    queue: str
    key: tuple[str, ...]
    payload: Spec
    attempts: int
    not_before: float
    resumed: bool
    dead: bool
    error: str


def _pack_jobs(jobs: Sequence[Job]) -> list[_WireJob]:
    return [_WireJob(*msgspec.structs.astuple(job)) for job in jobs]


def _unpack_jobs(jobs: Sequence[_WireJob]) -> list[Job]:
    return [
        Job(job.id, job.queue, _key(job.key), *msgspec.structs.astuple(job)[3:]) for job in jobs
    ]


def _key(names: Sequence[str]) -> SessionKey | UserKey:
    """An actor's key, which crosses as an array of one name or two."""
    if len(names) == 1:
        return UserKey(*names)
    if len(names) == 2:
        return SessionKey(*names)
    raise ValueError(f"a key of {len(names)} names")


class _WireExport(msgspec.Struct, frozen=True, array_like=True):
    """A `SessionExport` without its messages, and these in parts; None if there is none."""

    head: SessionExport | None
    parts: tuple[msgspec.Raw, ...] = ()


def _cut_messages(export: SessionExport | None) -> Iterator[msgspec.Raw]:
    messages = export.messages if export is not None else ()
    for first in range(0, len(messages), _PART):
        yield msgspec.Raw(_encode(messages[first : first + _PART]))


def _head(export: SessionExport | None) -> SessionExport | None:
    return None if export is None else msgspec.structs.replace(export, messages=())


def _pack_export(export: SessionExport | None) -> _WireExport:
    return _WireExport(_head(export), tuple(_cut_messages(export)))


async def _pack_export_slowly(export: SessionExport | None) -> _WireExport:
    parts = []
    for part in _cut_messages(export):
        parts.append(part)
        await anyio.lowlevel.checkpoint()
    return _WireExport(_head(export), tuple(parts))


def _unpack_export(wire: _WireExport) -> SessionExport | None:
    return _fill(wire, [one for part in wire.parts for one in _decode_messages(part)])


async def _unpack_export_slowly(wire: _WireExport) -> SessionExport | None:
    messages: list[MessageExport] = []
    for part in wire.parts:
        messages += _decode_messages(part)
        await anyio.lowlevel.checkpoint()
    return _fill(wire, messages)


def _fill(wire: _WireExport, messages: Sequence[MessageExport]) -> SessionExport | None:
    head = wire.head
    return None if head is None else msgspec.structs.replace(head, messages=tuple(messages))


async def _pack_table(table: object) -> bytes:
    return await run_in_thread(table_to_bytes, table)


async def _unpack_table(data: bytes) -> Any:
    return await run_in_thread(table_from_bytes, data)


def _same(value: object) -> Any:
    return value


_PART = 1_000  # items of a list that are encoded, or decoded, at once
_ARRAY, _ARRAY_32 = struct.Struct(">BI"), 0xDD
_NOTHING = msgspec.Raw(b"\x90")  # an array without items
_encode = msgspec.msgpack.Encoder().encode
_decode_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_messages = msgspec.msgpack.Decoder(list[MessageExport]).decode
_EXPORT = _Conversion(
    _WireExport, _pack_export, _unpack_export, _pack_export_slowly, _unpack_export_slowly
)
_CONVERSIONS: Mapping[Any, _Conversion] = {
    SessionExport: _EXPORT,
    SessionExport | None: _EXPORT,
    SessionKey | UserKey: _Conversion(tuple[str, ...], tuple, _key),
    list[Job]: _Conversion(list[_WireJob], _pack_jobs, _unpack_jobs),
    Path: _Conversion(str, str, Path),
}
_TABLE = _Conversion(bytes, table_to_bytes, table_from_bytes, _pack_table, _unpack_table)


# -- the table -------------------------------------------------------------------------------------


class CallType:
    """One call.

    Lists cross as an array of their parts, each of at most 1,000 items, and so do the messages of a
    session's export.

    Attributes:
        name: see the module.
        arguments: the struct of the arguments that cross, in the order of the signature.
        has_progress: the method takes an argument ``progress``.
        repeat: see the module.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        hints = typing.get_type_hints(function, localns=_NAMES)
        fields: list[Any] = []
        self.has_progress = False
        self._conversions: dict[str, _Conversion] = {}
        for parameter in list(inspect.signature(function).parameters.values())[1:]:
            if parameter.name == "progress":
                self.has_progress = True
                continue
            hint = hints[parameter.name]
            if (conversion := _CONVERSIONS.get(hint)) is not None:
                self._conversions[parameter.name], hint = conversion, conversion.wire
            default = msgspec.NODEFAULT
            if parameter.default is not inspect.Parameter.empty:
                default = parameter.default
            fields.append((parameter.name, hint, msgspec.field(default=default)))
        self.name = name
        self.repeat: Repeat = "write" if name in _WRITES else "read"
        if name in _ONCE:
            self.repeat = "never"
        self.arguments = msgspec.defstruct(name, fields, frozen=True, array_like=True)
        result = hints["return"]
        whole = _TABLE if name == "recalls.arrow_table" else _CONVERSIONS.get(result)
        self._result = whole or _Conversion(result, _same, _same)
        self._decode_arguments = msgspec.msgpack.Decoder(self.arguments).decode
        self._decode_result = msgspec.msgpack.Decoder(self._result.wire).decode
        in_parts = typing.get_origin(self._result.wire) in {list, Sequence}
        self._decode_part = self._decode_result if in_parts else None

    def encode_arguments(self, *positional: Any, **named: Any) -> bytes:
        """Arguments as the method takes them, without ``progress``, as bytes."""
        given = self.arguments(*positional, **named)
        if self._conversions:
            changed = {
                name: one.pack(getattr(given, name)) for name, one in self._conversions.items()
            }
            given = msgspec.structs.replace(given, **changed)
        return _encode(given)

    async def encode_arguments_slowly(self, *positional: Any, **named: Any) -> bytes:
        """`encode_arguments` of what may be large: other tasks run in between."""
        given = self.arguments(*positional, **named)
        changed = {}
        for name, one in self._conversions.items():
            value = getattr(given, name)
            slowly = one.pack_slowly
            changed[name] = one.pack(value) if slowly is None else await slowly(value)
        return _encode(msgspec.structs.replace(given, **changed) if changed else given)

    def decode_arguments(self, data: bytes) -> dict[str, Any]:
        """The arguments by name.

        Raises:
            UnreadableCall: they are not this call's.
        """
        try:
            given = msgspec.structs.asdict(self._decode_arguments(data))
            for name, conversion in self._conversions.items():
                given[name] = conversion.unpack(given[name])
        except (msgspec.DecodeError, ValueError, RecursionError) as e:
            raise self._unreadable(e) from e
        return given

    async def decode_arguments_slowly(self, data: bytes) -> dict[str, Any]:
        """`decode_arguments` of what may be large: other tasks run in between."""
        try:
            given = msgspec.structs.asdict(self._decode_arguments(data))
            for name, conversion in self._conversions.items():
                if conversion.unpack_slowly is not None:
                    given[name] = await conversion.unpack_slowly(given[name])
                else:
                    given[name] = conversion.unpack(given[name])
        except (msgspec.DecodeError, ValueError, RecursionError) as e:
            raise self._unreadable(e) from e
        return given

    def _unreadable(self, error: Exception) -> UnreadableCall:
        return UnreadableCall(f"arguments of {self.name} that cannot be read: {error}")

    async def encode_result(self, value: object) -> bytes:
        """Return what the method returned, as bytes; a long list in parts, a table in a thread."""
        if self._result.pack_slowly is not None:
            return _encode(await self._result.pack_slowly(value))
        packed = self._result.pack(value)
        if self._decode_part is None:
            return _encode(packed)
        parts = [_encode(packed[:_PART])]
        for first in range(_PART, len(packed), _PART):
            await anyio.lowlevel.checkpoint()
            parts.append(_encode(packed[first : first + _PART]))
        return _ARRAY.pack(_ARRAY_32, len(parts)) + b"".join(parts)

    async def decode_result(self, data: bytes) -> Any:
        """Return what the method returned.

        Raises:
            UnreadableCall: the method does not return that.
        """
        try:
            if self._result.unpack_slowly is not None:
                return await self._result.unpack_slowly(self._decode_result(data))
            if self._decode_part is None:
                return self._result.unpack(self._decode_result(data))
            first, *others = _decode_parts(data) or [_NOTHING]
            found = self._decode_part(first)
            for part in others:
                await anyio.lowlevel.checkpoint()
                found += self._decode_part(part)
            return self._result.unpack(found)
        except (msgspec.DecodeError, ValueError, RecursionError) as e:
            raise UnreadableCall(f"a result of {self.name} that cannot be read: {e}") from e


def _call_types() -> dict[str, CallType]:
    found = {}
    for port, protocol in _PORTS.items():
        for method, member in vars(protocol).items():
            if not method.startswith("_") and f"{port}.{method}" not in _LOCAL:
                function: Any = member.fget if isinstance(member, property) else member
                found[f"{port}.{method}"] = CallType(f"{port}.{method}", function)
    return found


CALLS: Mapping[str, CallType] = _call_types()
"""Every call, by its name."""


def find_call(name: str) -> CallType:
    """The call of this name.

    Raises:
        UnreadableCall: there is none.
    """
    call = CALLS.get(name)
    if call is None:
        raise UnreadableCall(f"there is no call {name!r:.80}")
    return call


def encode_arguments(name: str, *positional: Any, **named: Any) -> bytes:
    """See `CallType.encode_arguments`."""
    return find_call(name).encode_arguments(*positional, **named)


def decode_arguments(name: str, data: bytes) -> dict[str, Any]:
    """See `CallType.decode_arguments`."""
    return find_call(name).decode_arguments(data)


async def encode_result(name: str, value: object) -> bytes:
    """See `CallType.encode_result`."""
    return await find_call(name).encode_result(value)


async def decode_result(name: str, data: bytes) -> Any:
    """See `CallType.decode_result`."""
    return await find_call(name).decode_result(data)


async def perform(
    name: str,
    arguments: bytes,
    *,
    parts: Parts,
    verbs: Operator,
    progress: Progress | None = None,
) -> bytes:
    """Do what a call asks, and return its encoded result.

    Args:
        name: of the call.
        arguments: as `encode_arguments` made them.
        parts: what ports are called of.
        verbs: what runtime verbs are called of: a runtime, or all shards of a memory as one.
        progress: hears of the progress of verbs that tell it.

    Raises:
        UnreadableCall: there is no such call, or these are not its arguments.
        InvalidInput: it needs long-term memory, which is switched off.
        Exception: what the method raises.
    """
    call = find_call(name)
    given = await call.decode_arguments_slowly(arguments)
    if call.has_progress:
        given["progress"] = progress
    port, _, method = name.partition(".")
    target = verbs if port == "runtime" else getattr(parts, port)
    if target is None:
        raise long_term_is_off()
    value = getattr(target, method)
    if callable(value):
        value = value(**given)
    if inspect.isawaitable(value):
        value = await value
    return await call.encode_result(value)
