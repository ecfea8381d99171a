"""LangGraph's checkpoints as values of keyed state: their keys, and bytes in them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from remora.adapters.keys import escape

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = [
    "BLOBS",
    "CHECKPOINTS",
    "LAST",
    "WRITES",
    "Record",
    "blob_key",
    "checkpoint_key",
    "config_of",
    "decode_record",
    "decode_typed",
    "encode_typed",
    "namespace_key",
    "write_key",
    "writes_prefix",
]

CHECKPOINTS, WRITES, BLOBS = "checkpoint/", "write/", "value/"
LAST = "last"
"""The key of the id of the checkpoint that was put last: who deletes sees that another came."""

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


def encode_typed(typed: tuple[str, bytes]) -> list[str]:
    """A type's name and bytes, as JSON can hold them."""
    return [typed[0], b64encode(typed[1]).decode()]


def decode_typed(value: list[str]) -> tuple[str, bytes]:
    """The type's name and bytes."""
    return value[0], b64decode(value[1])


def namespace_key(namespace: str) -> str:
    """What stands for a namespace in keys: names of graphs in graphs may be too long for one."""
    return f"{_digest(namespace)}/"


def checkpoint_key(namespace: str, id_: str) -> str:
    """The key of a checkpoint; those of a namespace sort by their ids."""
    return f"{CHECKPOINTS}{namespace_key(namespace)}{escape(id_)}"


def blob_key(namespace: str, channel: str, version: object) -> str:
    """The key of a channel's value."""
    return f"{BLOBS}{namespace_key(namespace)}{_digest(f'{channel}/{version}')}"


def writes_prefix(namespace: str, id_: str) -> str:
    """What the keys of a checkpoint's writes begin with."""
    return f"{WRITES}{namespace_key(namespace)}{escape(id_)}/"


def write_key(namespace: str, id_: str, task: str, place: int) -> str:
    """The key of a write; they sort by task and place."""
    return f"{writes_prefix(namespace, id_)}{escape(task)}/{place + _LOWEST_PLACE:08}"


def config_of(thread: str, namespace: str, id_: str) -> RunnableConfig:
    """LangGraph's name of a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id_}}


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
