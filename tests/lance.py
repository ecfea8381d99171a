"""Long-term memory in LanceDB, as tests and benchmarks open, fill and look at it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import numpy as np
import numpy.typing as npt

from remora.config import LongTermConfig
from remora.ids import Digests
from remora.storage.erasure_notes import DIGEST_KEYS, decode_digest_keys
from remora.storage.lance.manifest import manifest_name
from remora.storage.lance.record import SyncRecord
from remora.storage.lance.store import LanceStore
from remora.storage.ports import MemoryRow
from remora.testing import long_term_row
from remora.testing.stores import DIMENSION
from tests.copies import copy_memory

USERS = ("alice", "bob", "carol")
WORDS = (
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heath",
    "inlet",
    "juniper",
    "kelp",
    "lagoon",
    "meadow",
    "nectar",
    "opal",
    "pebble",
    "quartz",
    "reed",
)


@asynccontextmanager
async def lance(
    path: Path | str | None, dimension: int | None = DIMENSION, **options: Any
) -> AsyncIterator[LanceStore]:
    """An open store of one table, with its writer running."""
    rest = {
        name: options.pop(name) for name in ("sync", "digests", "words_from") if name in options
    }
    config = LongTermConfig(**{"batch_ms": 0.5, "shards": 1, **options})
    store = await LanceStore.open(path, dimension=dimension, config=config, **rest)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        yield store
        tasks.cancel_scope.cancel()
    await store.aclose()


def digest_keys(memory: Path) -> list[str]:
    """The keys of digests in a memory directory's journal, which may be open."""
    path = memory / "journal.db"
    alone = not path.with_name("journal.db-wal").exists()  # and no byte may change
    address = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' * alone}"
    with closing(sqlite3.connect(address, uri=True)) as journal:
        found = journal.execute("SELECT value FROM settings WHERE name = ?", (DIGEST_KEYS,))
        return decode_digest_keys(next((value for (value,) in found), None))


def digests_of(memory: Path) -> Digests:
    """What users are found by in a memory directory's long-term memory."""
    return Digests(digest_keys(memory)[0])


def rows_of(user: str, numbers: Iterable[int], **fields: Any) -> list[MemoryRow]:
    """Rows whose ids name user and number."""
    return [
        long_term_row(
            f"{user}-{n}",
            f"{WORDS[n % 18]} {WORDS[n * 7 % 18]} number{n}",
            user=user,
            created_us=n,
            **{"session": f"s{n % 3}", **fields},
        )
        for n in numbers
    ]


def vectors_of(rows: Sequence[MemoryRow]) -> npt.NDArray[np.float32]:
    """A vector for each row, the same each time."""
    vectors = np.array(
        [np.random.default_rng(list(row.id.encode())).standard_normal(DIMENSION) for row in rows],
        np.float32,
    )
    lengths: npt.NDArray[np.float32] = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths)


async def put(store: LanceStore, rows: Sequence[MemoryRow], *, may_exist: bool = False) -> None:
    """Add rows with their vectors."""
    await store.add(rows, vectors_of(rows), may_exist=may_exist)


async def held(store: LanceStore, users: Iterable[str] = USERS) -> list[str]:
    """Ids of all rows that can be read, in order; doubled ones doubled."""
    return sorted([row.id for user in users for row in await store.rows(user)])


def record_of(base: Path, name: str = "mem_000") -> SyncRecord:
    """What is known to be on disk."""
    return msgspec.json.decode((base / f"{name}.synced.json").read_bytes(), type=SyncRecord)


def newest(base: Path, name: str = "mem_000") -> Path:
    """The file of the recorded version."""
    return base / f"{name}.lance" / "_versions" / manifest_name(record_of(base, name).version)


def data_files(base: Path, name: str = "mem_000") -> list[Path]:
    """The data files of the recorded version, in the order of its fragments."""
    return [
        base / f"{name}.lance" / path
        for path in record_of(base, name).files
        if path.startswith("data/")
    ]


def unsynced(base: Path, name: str = "mem_000") -> list[Path]:
    """Files that a power cut may take: all that the record does not vouch for."""
    record = record_of(base, name)
    safe = {base / f"{name}.lance" / path for path in record.files}
    files = [
        path for path in (base / f"{name}.lance").rglob("*") if path.is_file() and path not in safe
    ]
    kept = {manifest_name(version) for version in range(record.version + 1)}
    return [path for path in files if path.name not in kept]


async def copied(base: Path, to: Path) -> Path:
    """The directory as a crash would leave it at this moment."""
    await anyio.to_thread.run_sync(copy_memory, base, to)
    return to
