"""LangGraph's checkpoints as values of keyed state: their keys, and bytes in them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from remora.adapters.keys import escape

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = [
    "BLOBS",
    "CHECKPOINTS",
    "LAST",
    "PIECES",
    "PIECE_BYTES",
    "SAID",
    "WRITES",
    "Record",
    "blob_key",
    "checkpoint_key",
    "config_of",
    "cut_typed",
    "decode_record",
    "decode_typed",
    "encode_typed",
    "is_of_task",
    "namespace_key",
    "piece_keys",
    "write_key",
    "writes_prefix",
]

CHECKPOINTS, WRITES, BLOBS, PIECES = "checkpoint/", "write/", "value/", "piece/"
SAID = "said"
"""The key that says that messages of the checkpoints so far are the session's as well."""
LAST = "last"
"""The key of the id of the checkpoint that was put last: who deletes sees that another came."""

PIECE_BYTES = 98_304
"""Of a piece of a large value; 128 KiB as JSON."""

_NO_PIECES: Mapping[str, str] = MappingProxyType({})
_LOWEST_PLACE = 100  # places of writes that are not regular are below 0


class Record(msgspec.Struct, frozen=True):
    """A checkpoint as it is stored, without the values of its channels.

    Attributes:
        namespace: of the graph, or of a graph in it.
        id: sorts by time.
        parent: id of the one before; None for the first.
        run: id of the run that it is of.
        checkpoint: typed bytes, see `encode_typed`.
        metadata: typed bytes.
    """

    namespace: str
    id: str
    parent: str | None
    run: str | None
    checkpoint: list[str]
    metadata: list[str]


def decode_record(value: Any) -> Record:
    """The checkpoint in a value of keyed state."""
    return Record(*value)


def encode_typed(typed: tuple[str, bytes]) -> list[Any]:
    """A type's name and bytes, as JSON can hold them."""
    return [typed[0], b64encode(typed[1]).decode()]


def cut_typed(typed: tuple[str, bytes], pieces: dict[str, bytes]) -> list[Any]:
    """The same; if the bytes are many, the keys of their pieces, which are added to `pieces`.

    A key is the digest of its piece. So a list that has only grown shares the pieces of its
    beginning with earlier checkpoints, and a picture in it is stored once.
    """
    name, data = typed
    if len(data) <= PIECE_BYTES:
        return encode_typed(typed)
    keys = []
    for start in range(0, len(data), PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        keys.append(f"{PIECES}{blake2b(piece, digest_size=20).hexdigest()}")
        pieces[keys[-1]] = piece
    return [name, keys]


def piece_keys(value: list[Any]) -> list[str]:
    """The keys of the pieces that a value has; none if it has its bytes in itself."""
    return [] if isinstance(value[1], str) else value[1]


def decode_typed(value: list[Any], pieces: Mapping[str, str] = _NO_PIECES) -> tuple[str, bytes]:
    """The type's name and bytes; `pieces` has, as base64, those that `piece_keys` names."""
    parts = [pieces[key] for key in piece_keys(value)] or [value[1]]
    return value[0], b"".join(map(b64decode, parts))


def namespace_key(namespace: str) -> str:
    """Return the key of a namespace: names of graphs in graphs may be too long for one."""
    return f"{_digest(namespace)}/"


def is_of_task(namespace: str) -> bool:
    """Return whether it is of one call of a graph in a graph, from which no later call goes on."""
    return ":" in namespace  # before a task's id; no name of a node has it


def checkpoint_key(namespace: str, id_: str) -> str:
    """The key of a checkpoint; those of a namespace sort by their ids."""
    return f"{CHECKPOINTS}{namespace_key(namespace)}{escape(id_)}"


def blob_key(namespace: str, channel: str, version: object) -> str:
    """The key of a channel's value."""
    return f"{BLOBS}{namespace_key(namespace)}{_digest(f'{channel}/{version}')}"


def writes_prefix(namespace: str, id_: str) -> str:
    """Return what the keys of a checkpoint's writes begin with."""
    return f"{WRITES}{namespace_key(namespace)}{escape(id_)}/"


def write_key(namespace: str, id_: str, task: str, place: int) -> str:
    """The key of a write; they sort by task and place."""
    return f"{writes_prefix(namespace, id_)}{escape(task)}/{place + _LOWEST_PLACE:08}"


def config_of(thread: str, namespace: str, id_: str | None = None) -> RunnableConfig:
    """LangGraph's name of a checkpoint; without an id, of the latest one."""
    name = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": name if id_ is None else {**name, "checkpoint_id": id_}}


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
