"""Memory outside of Python that nothing uses any more is given back, on the default install."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
import pytest

from benchmarks.memory_soak import malloc_info
from benchmarks.shared import resident
from remora.ids import user_key
from remora.models.static import WordLlamaEmbedder
from remora.storage.lance import upkeep
from remora.storage.lance.allocators import return_free_memory
from tests.lance import held, lance, put, rows_of

pytestmark = pytest.mark.anyio

_glibc = pytest.mark.skipif(not malloc_info(), reason="the C library is not glibc")


async def test_replaced_indices_leave_the_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erasing replaces indices: LanceDB's caches let go of the old ones, while reads that are under
    way end as they began.
    """
    sessions: list[Any] = []
    new_session = lancedb.Session

    def session(**sizes: int) -> Any:
        sessions.append(new_session(**sizes))
        return sessions[-1]

    monkeypatch.setattr(lancedb, "Session", session)
    monkeypatch.setattr(upkeep, "MOST_REPLACEMENTS", 3)
    async with lance(tmp_path) as store:
        await put(store, rows_of("alice", range(30)))
        for _ in range(3):
            await put(store, rows_of("bob", range(30)))
            assert await store.search("bob", "amber", None, depth=5)
            await store.erase(user_key("bob"), "")
        (shard,) = store.tables.shards.values()
        full = sessions[-1].approx_num_items
        with shard.reading() as table:
            await store.compact()
            assert await table.count_rows() == 30
        assert await store.search("alice", "amber", None, depth=5)
        assert len(sessions) == 2
        assert 0 < sessions[-1].approx_num_items < full / 2
        await put(store, rows_of("carol", range(5)))
        assert len(await held(store)) == 35


async def test_nothing_is_lost_where_a_connection_is_the_store() -> None:
    """In memory a new connection would be an empty store, so the first one stays."""
    async with lance(None) as store:
        await put(store, rows_of("alice", range(30)))
        next(iter(store.tables.shards.values())).replacements += 1_000
        await store.compact()
        assert len(await held(store)) == 30


async def test_host_decides_over_its_allocators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow's pool becomes the C library's, unless the host or the operator has a say."""
    before = pa.default_memory_pool()
    mimalloc, other = pa.mimalloc_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    cases: list[tuple[pa.MemoryPool, str, dict[str, Any], str]] = [
        (mimalloc, "", {}, "system"),
        (mimalloc, "", {"tune_allocators": False}, "mimalloc"),
        (mimalloc, "mimalloc", {}, "mimalloc"),
        (other, "", {}, other.backend_name),
    ]
    try:
        for pool, environment, options, expected in cases:
            pa.set_memory_pool(pool)
            monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
            if environment:
                monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", environment)
            async with lance(tmp_path, **options) as store:
                await put(store, rows_of("alice", range(3)), may_exist=True)
            assert pa.default_memory_pool().backend_name == expected
    finally:
        pa.set_memory_pool(before)


_ARENAS = """
import ctypes, sys, threading
import anyio
import remora

async def main():
    config = remora.Config.from_dict({"long_term": {"tune_allocators": sys.argv[2] == "tuned"}})
    async with remora.Runtime(sys.argv[1], config=config) as runtime:
        session = runtime.session("alice", "chat")
        await session.append([{"role": "user", "content": f"amber {n}"} for n in range(40)])
        await session.flush()
        await runtime.settle()
        assert await runtime.user("alice").recall("amber")
        # each thread allocates, and the last one lives until all have
        barrier = threading.Barrier(12)
        threads = [threading.Thread(target=barrier.wait) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

anyio.run(main)
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[3].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.cold
@_glibc
@pytest.mark.parametrize(
    ("options", "environment", "most"),
    [("tuned", {}, 2), ("tuned", {"MALLOC_ARENA_MAX": "5"}, 5), ("host", {}, None)],
    ids=["default", "environment", "off"],
)
def test_threads_share_two_arenas(
    options: str, environment: dict[str, str], most: int | None, tmp_path: Path
) -> None:
    """In a process of its own, before which nobody has decided; an operator's number stays."""
    clean = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", _ARENAS, f"{tmp_path}/memory", options, f"{tmp_path}/arenas"]
    subprocess.run(command, env=clean | environment, check=True)
    arenas = (tmp_path / "arenas").read_text().count("<heap nr=")
    assert arenas == most if most else arenas > 5


@_glibc
def test_free_memory_is_returned() -> None:
    """What is free between two allocations in use is returned, too."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(60_000) for _ in range(1_000)]
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    full = resident()
    for block in blocks[:-1]:
        libc.free(block)
    return_free_memory()
    assert resident() < full - 40_000_000
    libc.free(blocks[-1])


async def test_rewrites_leave_no_paths(tmp_path: Path) -> None:
    """Each rewrite builds indices in new directories: those of older ones are forgotten."""
    async with lance(tmp_path) as store:

        async def rewrite(times: int) -> int:
            for _ in range(times):
                await put(store, rows_of("bob", range(3)))
                await store.erase(user_key("bob"), "")
            gc.collect()
            return sum(isinstance(one, Path) for one in gc.get_objects())

        await put(store, rows_of("alice", range(3)))
        assert await rewrite(2) == await rewrite(6)


@_glibc
async def test_embedder_keeps_no_text() -> None:
    """Its tokenizer would cache each text of less than 256 bytes as a word."""
    rng, embedder = np.random.default_rng(1), WordLlamaEmbedder()
    words = [f"{one:x}" for one in rng.integers(1 << 40, size=2_000)]

    def texts() -> list[str]:
        return [" ".join(rng.choice(words, 15)) for _ in range(400)]

    await embedder.embed(texts())
    before, _ = malloc_info() or (0.0, 0.0)
    for _ in range(3):
        await embedder.embed(texts())
    after, _ = malloc_info() or (0.0, 0.0)
    assert after < before + 1.0
