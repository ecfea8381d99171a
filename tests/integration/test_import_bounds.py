"""Imports of small Parquet files that hold a lot."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remora import Config, Runtime
from remora.errors import InvalidExport
from tests.harness import user

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and write files

CONFIG = Config.from_dict(
    {
        "journal": {"max_import_mb": 4.0},
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
        "tokens": {"counter": "heuristic"},
    }
)


def _repeat(path: Path, *, messages: int, content: str, sessions: int = 1) -> None:
    """Make of an export one that says the same many times, in hardly any bytes more."""
    said, places = (pq.read_table(path / f"{name}.parquet") for name in ("messages", "sessions"))
    chat = json.dumps({"role": "user", "content": content})
    row = said.take([0] * messages)
    row = row.set_column(row.column_names.index("seq"), "seq", [range(1, messages + 1)])
    chats = pa.DictionaryArray.from_arrays(pa.array([0] * messages, pa.int32()), pa.array([chat]))
    row = row.set_column(row.column_names.index("chat"), "chat", chats)
    names = [f"s{number}" for number in range(sessions)]
    rows = [row.set_column(1, "session", pa.array([name] * messages)) for name in names]
    place = places.take([0] * sessions).set_column(1, "session", pa.array(names))
    column = place.column_names.index("messages")
    place = place.set_column(column, "messages", [[messages] * sessions])
    header = places.schema.metadata
    pq.write_table(place.replace_schema_metadata(header), path / "sessions.parquet")
    pq.write_table(pa.concat_tables(rows), path / "messages.parquet", compression="zstd")


@pytest.mark.parametrize(
    ("messages", "size", "sessions", "text"),
    [
        (50_000, 10, 1, "more than 4 MB"),
        (4_000, 1_000_000, 1, "more than 4 MB"),
        (1_250, 10, 12, "times as much as its files"),
    ],
    ids=["many messages", "large messages", "many sessions"],
)
async def test_small_files_that_hold_gigabytes_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    messages: int,
    size: int,
    sessions: int,
    text: str,
) -> None:
    """S4.37: what the files themselves claim is right, but an import holds a bounded part of it at
    once, ends, and writes nothing.
    """
    monkeypatch.setattr("remora.storage.export.arrow.FREE_BYTES", 1 << 22)
    monkeypatch.setattr("remora.storage.export.arrow.EXPANSION", 1)
    async with Runtime.in_memory(config=CONFIG) as runtime:
        await runtime.session("alice", "one").append(user("m1"))
        path = tmp_path / "export"
        await runtime.export(path)
        _repeat(path, messages=messages, content="x" * size, sessions=sessions)
        tracemalloc.start()
        try:
            with pytest.raises(InvalidExport, match=text) as caught:
                await runtime.import_(path, skip_existing=True)
            held = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert "nothing was written" in str(caught.value)
        assert held < 100 << 20
        assert (await runtime.counts()).messages == 1


def _damage_index(path: Path) -> None:
    """Flip a byte of the file so that a row has a word that is not in the column's dictionary."""
    table = pq.read_table(path)
    pq.write_table(table, path, compression="none")
    sound = path.read_bytes()
    texts = [field.name for field in table.schema if field.type == pa.string()]
    for place in range(4, len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 0x7F]) + sound[place + 1 :])
        try:
            for batch in pq.ParquetFile(path, read_dictionary=texts).iter_batches():
                batch.to_pylist()
        except IndexError:
            return
        except (ValueError, OSError, ArithmeticError, NotImplementedError):
            continue
    raise AssertionError("no byte leads to such an index")


async def test_an_index_that_is_damaged(tmp_path: Path) -> None:
    """S4.37: pyarrow notices it when the row is read; the import is refused as any other damage."""
    path = tmp_path / "export"
    async with Runtime.in_memory(config=CONFIG) as runtime:
        for number in range(6):
            await runtime.session("alice", "one").append(user(f"m{number}"))
        await runtime.export(path)
    _damage_index(path / "messages.parquet")
    async with Runtime.in_memory(config=CONFIG) as runtime:
        with pytest.raises(InvalidExport, match=r"messages\.parquet, row"):
            await runtime.import_(path)
        assert await runtime.session("alice", "one").history() == []
