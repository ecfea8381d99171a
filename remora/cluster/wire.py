"""The wire between a worker and the process that owns a memory.

A frame is a length of four bytes, little endian, and a msgpack array: requests in one direction,
replies in the other. What an actor is told crosses as it is (`remora.actors.wire_types`); all else
is a call by name. A field that is added comes last and has a default, so a peer of another release
reads what it knows; what it cannot read changes `WIRE`.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

import remora
from remora import errors
from remora.actors.session.messages import SessionView
from remora.actors.user.messages import UserView
from remora.actors.wire_types import ActorMessage, Reply
from remora.messages import Receipt

WIRE: Final = 1
"""The version of the protocol that this release speaks."""
OLDEST: Final = 1
"""The oldest version that it speaks as well."""
MAX_FRAME: Final = 1 << 28
"""Bytes of a frame, at most."""
LENGTH: Final = struct.Struct("<I")
_MAX_TEXT = 100_000


class WireError(Exception):
    """Received bytes are not this protocol; the connection ends."""


class UnreadableCall(WireError):
    """A call, its arguments or its result are of another release; the call fails, alone."""


# -- from a worker to the owner --------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=201):
    """The first request of a connection; the owner answers with `Welcome`, or `Raised`.

    Attributes:
        wire: the version that the worker speaks.
        release: its version of remora.
        digest: of its configuration.
        worker: a name that no other worker has. A new connection of a worker ends its earlier one,
            so that nothing which is still on its way there comes after what is sent here.
        shard: that it asks for, where shards are on several machines; a connection is of one then.
            Where several processes of one machine own the memory, the number of the owner.
        owners: how many processes of this machine own the memory, as the worker is configured.
        shards: how many the memory has, as the worker knows it; 0 if it does not say so.
    """

    wire: int
    release: str = ""
    digest: str = ""
    worker: str = ""
    shard: int = 0
    owners: int = 1
    shards: int = 0


class Ask(msgspec.Struct, frozen=True, array_like=True, tag=202, gc=False):
    """A message for an actor.

    Attributes:
        number: of the request; 0 if nobody waits for a reply.
        shard: where the actor is.
        user: the key of the actor.
        session: its session; empty for the user's own.
        message: for the actor.
        size: bytes of content.
        timeout_s: seconds to wait; None for the configured default.
    """

    number: int
    shard: int
    user: str
    session: str
    message: ActorMessage
    size: int = 0
    timeout_s: float | None = None


class Call(msgspec.Struct, frozen=True, array_like=True, tag=203):
    """A call of what is no actor's.

    Attributes:
        number: of the request; 0 if nobody waits for a reply.
        shard: whose it is.
        name: of the port's method.
        arguments: see `remora.cluster.calls`.
    """

    number: int
    shard: int
    name: str
    arguments: bytes = b""


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=204):
    """Nobody waits for the request `number` any more; there is no reply."""

    number: int


class Bye(msgspec.Struct, frozen=True, array_like=True, tag=205):
    """The answer to `Draining`: the worker sends nothing more on this connection."""


Request: TypeAlias = Ask | Call | Cancel | Bye | Hello

# -- from the owner to a worker --------------------------------------------------------------------


class ShardInfo(msgspec.Struct, frozen=True, array_like=True):
    """A shard that the owner serves.

    Attributes:
        epoch: the number of its owners so far; 0 if its journal does not count them.
        instance: identifies its journal.
        recalls: it has long-term memory.
        blocks: its sessions have memory blocks.
        digest_keys: of the digests that name users in its notes of erasures.
    """

    epoch: int
    instance: str
    recalls: bool = True
    blocks: bool = False
    digest_keys: tuple[str, ...] = ()


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=211):
    """The answer to `Hello`.

    Attributes:
        wire: the version that is spoken from now on.
        release: the owner's version of remora.
        shards: all of them, by number.
        max_frame: bytes that a frame may have.
    """

    wire: int
    release: str
    shards: tuple[ShardInfo, ...]
    max_frame: int = MAX_FRAME


class Returned(msgspec.Struct, frozen=True, array_like=True, tag=212, gc=False):
    """The result of a call; see `remora.cluster.calls`."""

    value: bytes


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=213, gc=False):
    """How far a call is; it goes on."""

    done: int
    all: int


class Raised(msgspec.Struct, frozen=True, array_like=True, tag=214):
    """An exception.

    Attributes:
        name: of its class: one of `remora.errors`, or a builtin one.
        text: what it says.
        attributes: its own ones.
        kinds: what those are that msgpack has no type for, by name: ``tuple``.
    """

    name: str
    text: str
    attributes: dict[str, Any] = {}
    kinds: dict[str, str] = {}


class Draining(msgspec.Struct, frozen=True, array_like=True, tag=215):
    """The owner is about to close: it answers what it has, and takes nothing more."""


Value: TypeAlias = Reply | Returned | Progress | Raised | Welcome | Draining
Outcome: TypeAlias = Value | Receipt | SessionView | UserView
"""What came of a request, before `to_sent`."""

Replies: TypeAlias = tuple[tuple[int, ...], list[tuple[int, Value]]]
"""A frame of the owner: the epoch of each shard, then numbers of requests with what came of them;
the number 0 where no request is answered.
"""

# -- frames ----------------------------------------------------------------------------------------

ENCODER: Final = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(list[Request])
_replies = msgspec.msgpack.Decoder(Replies)


def frame(what: Sequence[Any]) -> bytearray:
    """A frame that holds the array."""
    buffer = bytearray(LENGTH.size)
    ENCODER.encode_into(what, buffer, LENGTH.size)
    LENGTH.pack_into(buffer, 0, len(buffer) - LENGTH.size)
    return buffer


def decode_requests(payload: bytes | memoryview) -> list[Request]:
    """The requests of a frame.

    Raises:
        WireError: it holds something else.
    """
    requests: list[Request] = _decode(_requests, payload)
    return requests


def decode_replies(payload: bytes | memoryview) -> Replies:
    """The replies of a frame.

    Raises:
        WireError: it holds something else.
    """
    replies: Replies = _decode(_replies, payload)
    return replies


def _decode(decoder: msgspec.msgpack.Decoder[Any], payload: bytes | memoryview) -> Any:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError, MemoryError) as e:
        raise WireError(f"a frame that cannot be read: {e}") from e


class Frames:
    """Cuts what arrives into frames.

    Args:
        most: bytes that a frame may have.
    """

    def __init__(self, most: int = MAX_FRAME) -> None:
        self.most = most
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes | memoryview]:
        """The payloads of the frames that are complete now.

        Raises:
            WireError: no frame is as long, or as short, as this one says it is.
        """
        head = LENGTH.size
        if not self._rest and len(data) > head:
            (length,) = LENGTH.unpack_from(data)
            if head + length == len(data):  # the common case is not copied
                self._check(length)
                return [memoryview(data)[head:]]
        rest = self._rest
        rest += data
        found: list[bytes | memoryview] = []
        at = 0
        while len(rest) - at >= head:
            (length,) = LENGTH.unpack_from(rest, at)
            self._check(length)
            end = at + head + length
            if end > len(rest):
                break
            found.append(bytes(memoryview(rest)[at + head : end]))
            at = end
        if at:
            del rest[:at]
        return found

    def _check(self, length: int) -> None:
        if not 0 < length <= self.most:
            raise WireError(f"a frame of {length} bytes; at most {self.most} are allowed")


# -- versions --------------------------------------------------------------------------------------


def release() -> str:
    """This process's version of remora."""
    return remora.__version__


def check_wire(worker: Hello, wire: int, oldest: int, release: str) -> None:
    """Check that the owner, which speaks `oldest` to `wire`, understands the worker.

    Raises:
        ProtocolMismatch: it does not; as the worker sees it.
    """
    if oldest <= worker.wire <= wire:
        return
    both = (
        f"the worker (remora {worker.release or 'of unknown version'}) speaks version "
        f"{worker.wire} of the protocol between processes, and the owner (remora {release}) "
        f"{'version' if oldest == wire else f'versions {oldest} to'} {wire}"
    )
    advice = (
        "upgrade the owner's remora, and restart the owner"
        if worker.wire > wire
        else "upgrade the worker's remora"
    )
    raise errors.ProtocolMismatch(f"{both}; {advice}", theirs=wire, ours=worker.wire)


def call_mismatch(worker: Hello, error: UnreadableCall) -> errors.ProtocolMismatch:
    """Return what a worker hears whose release makes calls that this owner's does not know."""
    return errors.ProtocolMismatch(
        f"the owner of the memory (remora {release()}) cannot do what this process (remora "
        f"{worker.release or 'of unknown version'}) asks: {error}; upgrade the owner's remora, and "
        "restart the owner",
        theirs=WIRE,
        ours=worker.wire,
    )


# -- exceptions ------------------------------------------------------------------------------------


def to_raised(error: BaseException) -> Raised:
    """The exception as data."""
    kind, text = type(error), _clean(str(error))
    if kind.__module__ == "remora.errors" and kind.__name__ in errors.__all__:
        attributes, kinds = _pack(vars(error))
        return Raised(kind.__name__, text, attributes, kinds)
    if kind.__module__ == "builtins" and isinstance(error, Exception):
        return Raised(kind.__name__, text)
    return Raised("RemoraError", f"the memory's owner failed: {kind.__name__}: {text}")


def _pack(attributes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    packed: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for name, value in attributes.items():
        if isinstance(value, tuple):
            kinds[name] = "tuple"
        try:
            ENCODER.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            value = _clean(str(value))  # noqa: PLW2901
            kinds.pop(name, None)
        packed[name] = value
    return packed, kinds


def _clean(text: str) -> str:
    """No longer than an error needs, and without lone surrogates, which msgpack cannot hold."""
    return text[:_MAX_TEXT].encode(errors="backslashreplace").decode()


def restore_error(raised: Raised) -> Exception:
    """The exception that `to_raised` made data of; a `RemoraError` for one of a newer release."""
    if raised.name in errors.__all__:
        error: Exception = getattr(errors, raised.name).__new__(getattr(errors, raised.name))
        error.args = (raised.text,)
        vars(error).update(_unpack(raised))
        return error
    kind = getattr(builtins, raised.name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):  # some cannot be made without what they hold: ExceptionGroup
            error = kind.__new__(kind)
            error.args = (raised.text,)
            return error
    return errors.RemoraError(f"{raised.name}: {raised.text}")


def _unpack(raised: Raised) -> dict[str, Any]:
    unpacked = dict(raised.attributes)
    for name, kind in raised.kinds.items():
        value = unpacked.get(name)
        if kind == "tuple" and isinstance(value, list):
            unpacked[name] = tuple(value)
    return unpacked
