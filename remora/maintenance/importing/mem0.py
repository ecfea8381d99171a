"""Memories of mem0: what ``get_all`` or an export answers, as a list or under ``results``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from remora.errors import InvalidInput
from remora.maintenance.importing.files import Records, decode, open_json
from remora.maintenance.importing.records import (
    Found,
    Notes,
    Remembered,
    read_time,
    stable_id,
)


class _Memory(msgspec.Struct):
    memory: str
    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    metadata: dict[str, Any] | None = None
    categories: list[str] | None = None
    created_at: float | str | None = None


class _Answer(msgspec.Struct):
    results: list[msgspec.Raw] | None = None
    memories: list[msgspec.Raw] | None = None
    relations: list[msgspec.Raw] | None = None


class Raw(msgspec.Struct):
    """A memory as it is in the file, or the number of its graph's relations."""

    data: bytes
    relations: int = 0


def open_records(path: Path) -> AbstractContextManager[Records]:
    """The memories of a file."""
    return open_json(path, take_object=_take)


def _take(raw: bytes) -> Records | None:
    answer = decode(raw, _Answer)
    memories = answer.results if answer.results is not None else answer.memories
    if memories is None:
        return None
    found: list[tuple[str, Any]] = [
        (f"memory {number}", bytes(one)) for number, one in enumerate(memories, start=1)
    ]
    if answer.relations:
        found.append(("the relations", Raw(b"", len(answer.relations))))
    return Records(iter(found), len(found))


def translate(raw: bytes | Raw, notes: Notes) -> Iterator[Found]:
    """The memory.

    Raises:
        InvalidInput: it has another shape.
    """
    if isinstance(raw, Raw):
        notes.leave_out("relation of the graph", count=raw.relations)
        return
    given = decode(raw, _Memory)
    if not given.memory.strip():
        raise InvalidInput("its text is empty")
    metadata = dict(given.metadata or {})
    if given.categories:
        metadata["categories"] = given.categories
    procedural = metadata.get("memory_type") == "procedural_memory"
    yield Remembered(
        given.memory,
        given.user_id or "",
        read_time(given.created_at, "created_at"),
        stable_id(given.agent_id, "agent_id") if given.agent_id else "",
        stable_id(given.run_id, "run_id") if given.run_id else "",
        "procedural" if procedural else "fact",
        metadata,
    )
